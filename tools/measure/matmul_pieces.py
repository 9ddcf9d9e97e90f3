"""Chapter 3: what an SM does in a cycle, for each tile of a matmul and each instruction of the tensor cores, with and
without the kernel's loads.

The launch option `arch="sm80"` makes Triton multiply by mma.sync, where it would take wgmma.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from fa_tutorial import hardware, matmul
from fa_tutorial.bench.cases import about
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import randn, require_gpu, rounds_of
from measure import changed_kernels
from measure.clocks import read_clocks
from measure.turns import in_turns

triton = hardware.require_triton("Chapter 3's measurements")

SIDE = 4096
OPTIONS = {"wgmma": {}, "mma.sync": {"arch": "sm80"}}
KERNELS = {"": matmul.matmul_kernel, ", no loads": changed_kernels.matmul_without_loads_kernel}


class Piece(NamedTuple):
    """A tile of c, the warps of its program, and their instruction."""

    block_m: int
    block_n: int
    warps: int
    instruction: str


# The chapter's six tiles; then a larger one, other tiles, other warps, and mma.sync where Triton would take wgmma.
SIX = [
    Piece(16, 16, 1, "mma.sync"),
    Piece(32, 32, 4, "mma.sync"),
    Piece(64, 64, 4, "wgmma"),
    Piece(128, 64, 4, "wgmma"),
    Piece(128, 128, 8, "wgmma"),
    Piece(128, 256, 8, "wgmma"),
]
OTHERS = [
    Piece(256, 256, 8, "wgmma"),
    Piece(32, 32, 1, "mma.sync"),
    Piece(64, 64, 16, "mma.sync"),
    Piece(64, 64, 4, "mma.sync"),
    Piece(64, 64, 8, "wgmma"),
    Piece(128, 64, 4, "mma.sync"),
    Piece(128, 128, 8, "mma.sync"),
    Piece(128, 256, 8, "mma.sync"),
]


def piece_cases() -> Iterator[Measurement]:
    """Each piece with and without the kernel's loads: SM cycles, milliseconds and the clock, where it has settled."""
    words = {}
    for piece, how in itertools.product(SIX + OTHERS, KERNELS):
        size = dict.fromkeys("MNK", SIDE) | piece._asdict()
        words[piece, how] = about(3, "matmul_piece", size.pop("instruction") + how, **size)
    return in_turns(words, _pieces_in_turns)


def _calls() -> dict[tuple[Piece, str], Callable[[], Any]]:
    a, b = randn(SIDE, SIDE), randn(SIDE, SIDE)
    c = torch.empty_like(a)

    def launch(piece: Piece, how: str) -> None:
        grid = (triton.cdiv(SIDE, piece.block_m) * triton.cdiv(SIDE, piece.block_n),)
        KERNELS[how][grid](
            a, b, c, *[SIDE] * 3, *(SIDE, 1) * 3, BLOCK_M=piece.block_m, BLOCK_N=piece.block_n, BLOCK_K=64, GROUP=1,
            num_warps=piece.warps, num_stages=3, **OPTIONS[piece.instruction],
        )  # fmt: skip

    return {(piece, how): partial(launch, piece, how) for piece, how in itertools.product(SIX + OTHERS, KERNELS)}


def _readings(calls: list[Callable[[], Any]], flushes: int, seconds: float) -> torch.Tensor:
    """(n, 2): cycles, the median of the SMs, and nanoseconds of all `calls` together, again and again, the first half
    left out. L2 is flushed before, which also keeps the GPU behind the launches.
    """
    flush = torch.empty(2**28, dtype=torch.int8, device="cuda")  # several times as large as L2
    found, start = [], time.monotonic()
    while time.monotonic() - start < seconds:
        for _ in range(flushes):
            flush.zero_()
        before = read_clocks()
        for call in calls:
            call()
        found.append(read_clocks() - before)
        if len(found) % 16 == 0:
            torch.cuda.synchronize()  # or the launches would run far ahead of the clock
    return torch.stack(found[len(found) // 2 :]).double().median(1).values


def _pieces_in_turns() -> dict[tuple[Piece, str], dict[str, float]]:
    """{"cycles", "ms", "mhz"} of each of _calls, four launches at a time, less what two readings take by themselves."""
    require_gpu()
    found: dict[tuple[Piece, str], list[torch.Tensor]] = {}
    for call in (calls := _calls()).values():
        call()  # compiles
    nothing = _readings([], 8, 0.3).median(0).values
    for order in rounds_of(calls, 3):
        for name in order:
            found.setdefault(name, []).append((_readings([calls[name]] * 4, 1, 0.25) - nothing) / 4)
    rows = {}
    for name, readings in found.items():
        cycles, ns = torch.cat(readings).median(0).values.tolist()
        rows[name] = {"cycles": round(cycles), "ms": round(ns / 1e6, 5), "mhz": round(cycles / ns * 1e3)}
    return rows
