"""Chapter 12: FA2; its loop written by hand, whole and with one thing changed; and chapter 5's forward by Hopper's
instruction and by Ampere's, which is FA2's.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from fa_tutorial import hardware
from fa_tutorial.bench import peers
from fa_tutorial.bench.cases import Shape
from fa_tutorial.bench.chapter_8 import in_words, inputs
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import time_call, timed_in_turns
from fa_tutorial.tiles import TileConfig

hardware.require_triton("Measuring (tools/measure)")
from triton.runtime.errors import OutOfResources  # noqa: E402

from measure.chapters_0_to_7 import launched  # noqa: E402
from measure.fa2_loop import fa2_kernel  # noqa: E402
from measure.turns import by_shape  # noqa: E402

# An instruction -> the launch's options: Triton writes Ampere's instructions, and ptxas compiles them for the GPU.
INSTRUCTIONS = {"wgmma": {}, "mma.sync": {"arch": "sm80"}}
TILES = [
    TileConfig(*sizes)
    for sizes in (
        (64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 8, 3), (128, 64, 8, 2), (128, 64, 4, 2),
        (128, 32, 4, 3), (128, 32, 4, 2), (128, 128, 8, 2), (64, 32, 4, 3), (128, 32, 8, 3),
    )
]  # fmt: skip
FA2 = "sdpa_flash"  # it chooses its tile by itself
# FA2's loop, whole and with changes -> what fa2_kernel is compiled with
WHOLE = {"EARLY": True, "SWIZZLED": True, "FOLDED": True}
LOOPS = {
    "whole": WHOLE,
    "not swizzled": WHOLE | {"SWIZZLED": False},
    "Triton's order": WHOLE | {"EARLY": False},
    "Triton's order, your softmax": WHOLE | {"EARLY": False, "FOLDED": False},
}
LOOP_TILES = [(128, 128, 4), (128, 64, 4), (128, 32, 4), (64, 64, 4), (128, 64, 8)]  # BLOCK_M, BLOCK_N, warps

SHAPE = Shape(1, 16, 16, 16_384, 16_384, 128, False)


def kernels_cases() -> Iterator[Measurement]:
    """All of them in turns: 16,384 tokens, full."""
    return by_shape(12, "fa2_loop", kernels_in_turns, [SHAPE], (FA2, *LOOPS, *INSTRUCTIONS))


def kernels_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    """The time of each, and what it was compiled to. One that gives another o than FA2 is an error."""
    q, k, v = inputs(shape)
    calls: dict[str, Callable[[], Any]] = {FA2: partial(peers.provider("sdpa_flash"), q, k, v)}
    want, facts = calls[FA2](), {FA2: {}}
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3], device=q.device)
    for name, (call, tile) in (loops(q, k, v, o) | instructions(q, k, v, o, lse)).items():
        o.zero_()
        compiled = call()
        if not (o - want).abs().max() <= 2e-3:
            raise RuntimeError(f"{name}, {tile}: o isn't FA2's")
        calls[name] = call
        facts[name] = {"tile": tile, "registers": compiled.n_regs, "spilled_registers": compiled.n_spills}
    rows = timed_in_turns(calls, rounds=5)
    return {name: rows[name] | facts[name] for name in calls}


def loops(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor) -> dict[str, tuple[Callable, str]]:
    """(a call, its tile in words) of each of LOOPS, at the one of LOOP_TILES at which the whole loop is the fastest."""
    S, D = q.shape[2:]

    def launch(name: str, tile: tuple[int, int, int]) -> Any:
        block_m, block_n, num_warps = tile
        sizes = S, D**-0.5 * math.log2(math.e), D, block_m, block_n
        return fa2_kernel[(q.numel() // D // block_m,)](q, k, v, o, *sizes, **LOOPS[name], num_warps=num_warps)

    tile = fastest({tile: partial(launch, "whole", tile) for tile in LOOP_TILES})
    return {name: (partial(launch, name, tile), "{}x{}, {} warps".format(*tile)) for name in LOOPS}


def instructions(*tensors: torch.Tensor) -> dict[str, tuple[Callable, str]]:
    """(a call, its tile in words) of chapter 5's kernel by each of INSTRUCTIONS, at the fastest of TILES. A tile that
    doesn't fit is left out; a kernel that multiplies by another instruction is an error.
    """
    found = {}
    for instruction in INSTRUCTIONS:
        calls = {}
        for tile in TILES:
            call = partial(launched, tensors, tile, **INSTRUCTIONS[instruction])
            try:
                compiled = call()
            except OutOfResources:
                continue
            if [name for name in INSTRUCTIONS if name in compiled.asm["ptx"]] != [instruction]:
                raise RuntimeError(f"{instruction}, {in_words(tile)}: compiled to another instruction")
            calls[tile] = call
        tile = fastest(calls)
        found[instruction] = calls[tile], in_words(tile)
    return found


def fastest(calls: dict[Any, Callable[[], Any]]) -> Any:
    """The key of the fastest call, by one short look at each."""
    return min(calls, key=lambda key: time_call(calls[key]).ms)
