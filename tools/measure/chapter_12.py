"""Chapter 12: chapter 5's forward by Hopper's instruction and by Ampere's, beside FA2, which has Ampere's; and FA2's
loop written by hand, with early copies and with late ones.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from fa_tutorial import forward, hardware
from fa_tutorial.bench import peers
from fa_tutorial.bench.cases import Shape
from fa_tutorial.bench.chapter_8 import in_words, inputs
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import time_call, timed_in_turns
from fa_tutorial.tiles import TileConfig, heads, padded_d

hardware.require_triton("Measuring (tools/measure)")
from triton.runtime.errors import OutOfResources  # noqa: E402

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
FA2 = ("sdpa_flash", None)  # it chooses its tile by itself
# FA2's loop, and what it is with late copies -> whether its copies begin early
LOOPS = {"whole": True, "copies begin late": False}
LOOP_TILES = [(128, 128, 4), (128, 64, 4), (128, 32, 4), (64, 64, 4), (128, 64, 8)]  # BLOCK_M, BLOCK_N, warps

SHAPE = Shape(1, 16, 16, 16_384, 16_384, 128, False)


def instruction_cases() -> Iterator[Measurement]:
    """FA2, and chapter 5's kernel by each instruction with the fastest of TILES: 16,384 tokens, full."""
    return by_shape(12, "instruction", instructions_in_turns, [SHAPE], ("sdpa_flash", *INSTRUCTIONS))


def launched(tensors: tuple[torch.Tensor, ...], instruction: str, tile: TileConfig) -> Any:
    """Chapter 5's kernel on q, k, v, o and lse; returns what was compiled."""
    q, k, v, o, lse = tensors
    B, H, S, D = q.shape
    return forward.flash_forward_kernel[(-(-S // tile.block_m) * B * H,)](
        *map(heads, (q, k, v, o)), lse, H, H, S, S, D, D**-0.5,
        IS_CAUSAL=False, BLOCK_D=padded_d(D), **tile.launch(), **INSTRUCTIONS[instruction],
    )  # fmt: skip


def instructions_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    """Each provider's time, with its fastest tile. A tile that doesn't fit is left out, and a kernel that gives
    another o than FA2, or multiplies by another instruction than asked for, is an error.
    """
    q, k, v = inputs(shape)
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3], device=q.device)
    calls: dict[tuple, Callable[[], Any]] = {FA2: partial(peers.provider("sdpa_flash"), q, k, v)}
    want, facts = calls[FA2](), {FA2: {}}
    for instruction, tile in itertools.product(INSTRUCTIONS, TILES):
        call = partial(launched, (q, k, v, o, lse), instruction, tile)
        try:
            compiled = call()
        except OutOfResources:
            continue
        if (found := [name for name in INSTRUCTIONS if name in compiled.asm["ptx"]]) != [instruction]:
            raise RuntimeError(f"{instruction}, {in_words(tile)}: compiled to {found}")
        if (o - want).abs().max() > 2e-3:
            raise RuntimeError(f"{instruction}, {in_words(tile)}: o isn't FA2's")
        calls[instruction, tile] = call
        facts[instruction, tile] = {
            "tile": in_words(tile), "registers": compiled.n_regs, "spilled_registers": compiled.n_spills,
        }  # fmt: skip
    best = fastest(calls, lambda name: name[0])
    rows = timed_in_turns({name: calls[name] for name in best.values()})
    return {provider: rows[name] | facts[name] for provider, name in best.items()}


def loop_cases() -> Iterator[Measurement]:
    """FA2, and its loop by hand with early and with late copies, at the tile of LOOP_TILES at which the whole loop is
    the fastest: 16,384 tokens, full.
    """
    return by_shape(12, "fa2_loop", loops_in_turns, [SHAPE], ("sdpa_flash", *LOOPS))


def loops_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    """The time of FA2 and of each of LOOPS. A loop that gives another o than FA2 is an error."""
    q, k, v = inputs(shape)
    o, S, D = torch.empty_like(q), q.shape[2], q.shape[3]

    def launch(name: str, tile: tuple[int, int, int]) -> Any:
        block_m, block_n, num_warps = tile
        sizes = S, D**-0.5 * math.log2(math.e), D, block_m, block_n
        return fa2_kernel[(q.numel() // D // block_m,)](q, k, v, o, *sizes, EARLY=LOOPS[name], num_warps=num_warps)

    whole = {tile: partial(launch, "whole", tile) for tile in LOOP_TILES}
    (tile,) = fastest(whole, lambda tile: "all").values()
    flash = partial(peers.provider("sdpa_flash"), q, k, v)
    want, calls, facts = flash(), {"sdpa_flash": flash}, {"sdpa_flash": {}}
    for name in LOOPS:
        calls[name] = partial(launch, name, tile)
        o.zero_()
        compiled = calls[name]()
        if not (o - want).abs().max() <= 2e-3:
            raise RuntimeError(f"{name}: o isn't FA2's")
        words = "{}x{}, {} warps".format(*tile)
        facts[name] = {"tile": words, "registers": compiled.n_regs, "spilled_registers": compiled.n_spills}
    rows = timed_in_turns(calls, rounds=3)
    return {name: rows[name] | facts[name] for name in calls}


def fastest(calls: dict[Any, Callable[[], Any]], of: Callable[[Any], Any]) -> dict[Any, Any]:
    """What `of` says of a name -> the name of its fastest call, by one short look at each."""
    times = {name: time_call(call, warmup_ms=30, repeat_ms=30).ms for name, call in calls.items()}
    return {group: min((name for name in calls if of(name) == group), key=times.get) for group in map(of, calls)}
