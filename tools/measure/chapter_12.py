"""Chapter 12: chapter 5's forward by Hopper's instruction and by Ampere's, beside FA2, which has Ampere's; and FA2's
loop written by hand, with a line taken out.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from fa_tutorial import forward, hardware
from fa_tutorial.bench import peers
from fa_tutorial.bench.cases import Shape, about
from fa_tutorial.bench.chapter_8 import in_words, inputs
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import time_call, timed_in_turns
from fa_tutorial.tiles import TileConfig, heads, padded_d

hardware.require_triton("Measuring (tools/measure)")
from triton.runtime.errors import OutOfResources  # noqa: E402

from measure.fa2_loop import fa2_kernel  # noqa: E402
from measure.turns import by_shape, in_turns  # noqa: E402

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
# FA2's loop, whole and without a line -> fa2_kernel's arguments
LOOPS = {
    "whole": {"EARLY": True, "SWIZZLED": True},
    "copies begin late": {"EARLY": False, "SWIZZLED": True},
    "tiles aren't swizzled": {"EARLY": True, "SWIZZLED": False},
}
LOOP_TILES = {"128x128 4 warps": (128, 128, 4), "128x64 4 warps": (128, 64, 4), "128x32 4 warps": (128, 32, 4),
              "64x64 4 warps": (64, 64, 4), "128x64 8 warps": (128, 64, 8)}  # fmt: skip


SHAPES = [Shape(1, 2048 // D, 2048 // D, 16_384, 16_384, D, False) for D in (64, 128)]


def instruction_cases() -> Iterator[Measurement]:
    """FA2, and chapter 5's kernel by each instruction with the fastest of TILES: 16,384 tokens, full."""
    return by_shape(12, "instruction", instructions_in_turns, SHAPES, ("sdpa_flash", *INSTRUCTIONS))


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
    """FA2, and its loop by hand, whole and without a line, at each of LOOP_TILES: 16,384 tokens, full, D = 128."""
    shape = SHAPES[-1]
    names = [FA2, *itertools.product(LOOPS, LOOP_TILES)]
    abouts = {(name, tile): about(12, "fa2_loop", name, **vars(shape), tile=tile) for name, tile in names}
    return in_turns(abouts, loops_in_turns, shape)


def loop_calls(shape: Shape) -> tuple[dict[tuple, Callable[[], Any]], torch.Tensor]:
    """FA2, which returns o, and each loop at each tile, which returns what was compiled; and the o that these write."""
    q, k, v = inputs(shape)
    o, S, D = torch.empty_like(q), q.shape[2], q.shape[3]
    calls: dict[tuple, Callable[[], Any]] = {FA2: partial(peers.provider("sdpa_flash"), q, k, v)}
    for tile, (block_m, block_n, num_warps) in LOOP_TILES.items():
        grid, sizes = (q.numel() // D // block_m,), (S, D**-0.5 * math.log2(math.e), D, block_m, block_n)
        for name, lines in LOOPS.items():
            calls[name, tile] = partial(fa2_kernel[grid], q, k, v, o, *sizes, **lines, num_warps=num_warps)
    return calls, o


def loops_in_turns(shape: Shape) -> dict[tuple, dict[str, Any]]:
    """The time of each of loop_calls. A loop that gives another o than FA2 is an error."""
    calls, o = loop_calls(shape)
    want, facts = calls[FA2](), {FA2: {}}
    for name, call in calls.items():
        if name != FA2:
            o.zero_()
            compiled = call()
            if not (o - want).abs().max() <= 2e-3:
                raise RuntimeError(f"{name}: o isn't FA2's")
            facts[name] = {"registers": compiled.n_regs, "spilled_registers": compiled.n_spills}
    rows = timed_in_turns(calls, rounds=3)
    return {name: rows[name] | facts[name] for name in calls}


def fastest(calls: dict[Any, Callable[[], Any]], of: Callable[[Any], Any]) -> dict[Any, Any]:
    """What `of` says of a name -> the name of its fastest call, by one short look at each."""
    times = {name: time_call(call, warmup_ms=30, repeat_ms=30).ms for name, call in calls.items()}
    return {group: min((name for name in calls if of(name) == group), key=times.get) for group in map(of, calls)}
