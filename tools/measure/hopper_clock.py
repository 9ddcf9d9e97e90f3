"""Chapter 9: when each consumer of the finished forward is where in a block, by the SM's clock. The stamps are added to
a copy of the kernel; they cost it about a seventh of its speed at D = 64, and a twentieth at D = 128."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from fa_tutorial import hardware, hopper
from fa_tutorial.bench.cases import Shape, about
from fa_tutorial.bench.chapter_8 import inputs
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.source import defined, edited, source_of
from measure.alone import mean_parts, of_an_sm

hardware.require_triton("Chapter 9's measurements")

BLOCKS = 160  # of each consumer that are kept, from a launch's first on
STAMP = """@gluon.jit
def stamp(stamps_ptr, block, n: gl.constexpr, after):
    clock = gl.inline_asm_elementwise(
        "mov.u32 $0, %clock; // $1", "=r,f", [after], dtype=gl.int32, is_pure=False, pack=1
    )
    row = gl.arange(0, ROWS, after.type.layout)
    gl.store(stamps_ptr + (block * 5 + n) + row * 0, clock, mask=row == 0)


@gluon.jit
def take_turn("""
ISSUE = """    take_turn(turns, n, C, flags.TURNS)
    s = issue_qk(q, shared, n, zeros)  # [ROWS, BLOCK_N]
"""
STAMPED = """    at = min(n, BLOCKS - 1)
    consumer_wait(shared.k, n)
    stamp(stamps_ptr, at, 0, m)
    take_turn(turns, n, C, flags.TURNS)
    stamp(stamps_ptr, at, 1, m)
    s = issue_qk(q, shared, n, zeros)  # [ROWS, BLOCK_N]
"""
D_LINE = "    D: gl.constexpr = shared.k.tiles.shape[4]\n"
RELEASE_K = "    consumer_release(shared.k, n)\n    p, m, alpha"
RELEASE_V = "    consumer_release(shared.v, n - 1)\n    return"
EDITS = (
    ("@gluon.jit\ndef take_turn(", STAMP, 1),
    (ISSUE, STAMPED, 1),
    (RELEASE_K, "    stamp(stamps_ptr, at, 2, m)\n" + RELEASE_K, 1),
    ("    pairs_new = pack(", "    stamp(stamps_ptr, at, 3, l)\n    pairs_new = pack(", 1),
    (RELEASE_V, "    stamp(stamps_ptr, at, 4, l)\n" + RELEASE_V, 1),
    ("scale_log2, C: gl.constexpr, MASK", "scale_log2, stamps_ptr, C: gl.constexpr, MASK", 1),
    ("scale_log2, C, ", "scale_log2, stamps_ptr, C, ", 2),
    (D_LINE, D_LINE + "    stamps_ptr += (gl.program_id(0) * CONSUMERS + C) * BLOCKS * 5\n", 1),
    ("shared, turns, sizes, C: gl.constexpr", "shared, turns, sizes, stamps_ptr, C: gl.constexpr", 1),
    *((f"shared, turns, sizes, {c}, flags", f"shared, turns, sizes, stamps_ptr, {c}, flags") for c in range(3)),
    ("counter_ptr, heads_at_once, scale,\n", "counter_ptr, heads_at_once, scale, stamps_ptr,\n", 1),
    ("(lse, counter, at_once, scale))", "(lse, counter, at_once, scale, STAMPS))", 1),
    ("NUM_WARPS = 4", f"BLOCKS = gl.constexpr({BLOCKS})\nNUM_WARPS = 4", 1),
    ('("hopper", step', '("clocked", step', 1),
)  # fmt: skip


def clocked_cases() -> Iterator[Measurement]:
    """Full, S = 4,096, with three consumers in turns and without, and with two."""
    for name, step, D in (("hopper", "turns", 64), ("hopper without turns", "order", 64), ("hopper", "turns", 128)):
        shape = Shape(4, 2048 // D, 2048 // D, 4096, 4096, D, False)
        yield about(9, "clocked", name, **vars(shape)), partial(_clocked_row, shape, step)


def _clocked_row(shape: Shape, step: str) -> dict[str, Any]:
    q, k, v = inputs(shape)
    consumers = hopper.forward.CONFIGS[shape.D].consumers
    stamps = torch.zeros(132, consumers, BLOCKS, 5, dtype=torch.int32, device="cuda")
    names = {"__name__": hopper.forward.__name__, "STAMPS": stamps}
    clocked = defined(edited(source_of(hopper.forward), *EDITS), names)
    for _ in range(3):
        clocked["flash_forward"](q, k, v, False, shape.D**-0.5, step=clocked["STEPS"][step])
    return row_of(stamps.cpu())


def row_of(stamps: torch.Tensor) -> dict[str, Any]:
    """As `alone.clocked`, of the third work tile of each program."""
    stamps = stamps.long()
    tile = stamps[:, :, 66:94]  # of its 32 blocks, the first has no stamps
    whole = (tile.flatten(2).diff(dim=2) > 0).all(2).all(1)  # all of its consumers have rows
    tile = tile[whole]
    until_next = torch.cat([tile[:, :, :-1], tile[:, :, 1:, :1]], dim=3).diff(dim=3)
    each = until_next.double().sum(3).mean((1, 2))
    alive = tile[(each - each.mean()).abs().argmin()]  # the program whose blocks take the mean time
    return {"clock": mean_parts(tile)} | of_an_sm(alive, alive[:, 14, 0].min())
