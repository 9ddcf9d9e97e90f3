"""Chapter 12: chapter 5's forward by Hopper's instruction and by Ampere's, beside FA2, which has Ampere's."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from fa_tutorial import forward, hardware
from fa_tutorial.bench import peers
from fa_tutorial.bench.cases import Shape, about
from fa_tutorial.bench.chapter_8 import in_words, inputs
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.tiles import TileConfig, heads, padded_d

hardware.require_triton("Measuring (tools/measure)")
from triton.runtime.errors import OutOfResources  # noqa: E402

# An instruction -> the launch's options: Triton writes Ampere's instructions, and ptxas compiles them for the GPU.
INSTRUCTIONS = {"wgmma": {}, "mma.sync": {"arch": "sm80"}}
TILES = [
    TileConfig(*sizes)
    for sizes in (
        (64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 8, 3), (128, 64, 8, 2), (128, 64, 4, 2),
        (128, 32, 4, 3), (128, 32, 4, 2), (128, 128, 8, 2), (64, 32, 4, 3), (128, 32, 8, 3),
    )
]  # fmt: skip
ROUNDS, FIRST = 12, 2  # the first rounds warm up


def instruction_cases() -> Iterator[Measurement]:
    """FA2, and chapter 5's kernel by each instruction with the fastest of TILES: 16,384 tokens, full."""
    for D, provider in itertools.product((64, 128), ("sdpa_flash", *INSTRUCTIONS)):
        shape = Shape(1, 2048 // D, 2048 // D, 16_384, 16_384, D, False)
        yield (
            about(12, "instruction", provider, **vars(shape)),
            lambda shape=shape, provider=provider: instructions_in_turns(shape)[provider],
        )


def launched(tensors: tuple[torch.Tensor, ...], instruction: str, tile: TileConfig) -> Any:
    """Chapter 5's kernel on q, k, v, o and lse; returns what was compiled."""
    q, k, v, o, lse = tensors
    B, H, S, D = q.shape
    return forward.flash_forward_kernel[(-(-S // tile.block_m) * B * H,)](
        *map(heads, (q, k, v, o)), lse, H, H, S, S, D, D**-0.5,
        IS_CAUSAL=False, BLOCK_D=padded_d(D), **tile.launch(), **INSTRUCTIONS[instruction],
    )  # fmt: skip


@functools.cache
def instructions_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    """Each provider's median, least and largest time. A tile that doesn't fit is left out, and a kernel that gives
    another o than FA2, or multiplies by another instruction than asked for, is an error.
    """
    q, k, v = inputs(shape)
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3], device=q.device)
    calls: dict[tuple, Callable[[], Any]] = {("sdpa_flash",): partial(peers.provider("sdpa_flash"), q, k, v)}
    want, facts = calls["sdpa_flash",](), {("sdpa_flash",): {}}
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
    times: dict[tuple, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(once(call))
    rows: dict[str, dict[str, Any]] = {}
    for name, found in times.items():
        ms, least, most = (round(of(found[FIRST:]), 3) for of in (statistics.median, min, max))
        if name[0] not in rows or ms < rows[name[0]]["ms"]:
            rows[name[0]] = {"ms": ms, "ms_min": least, "ms_max": most} | facts[name]
    return rows


def once(call: Callable[[], Any]) -> float:
    """Milliseconds of one call."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)
