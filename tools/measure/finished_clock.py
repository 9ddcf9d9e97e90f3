"""Chapter 9: the finished forward with a clock, D = 128: when a consumer is where in a block.

The kernel is hopper.forward's, full, S = 4,096. A program stores the clock of all its blocks.
"""

import functools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from fa_tutorial import hopper
from fa_tutorial.bench.cases import Shape, about
from fa_tutorial.bench.chapter_8 import at_4096, inputs
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.source import defined, edited, source_of
from measure.clocks import cycles_in_turns
from measure.stamps import mean_parts

ROOM = 16 * 32  # for the blocks of a consumer: 16 work tiles of a program, of 32 blocks each
TILES = 12  # that each program has at least
# When a consumer is in a block: k is there, s is in registers, acc is rescaled and p packed. A stamp
# behind the softmax would keep ptxas from moving the wait for p v up, as it does without.
FORWARD = ("k", "s", "packed")
CLOCK = """
@gluon.jit
def stamp(stamps_ptr, n, i: gl.constexpr, after, C: gl.constexpr):
    clock = gl.inline_asm_elementwise(
        "mov.u64 $0, %clock64; // $1", "=l,f", [after], dtype=gl.int64, is_pure=False, pack=1
    )
    row = gl.arange(0, after.shape[0], after.type.layout)
    place = (gl.program_id(0) * 2 + C) * {room} + n
    gl.store(stamps_ptr + place * {stamps} + i + row, clock, mask=row == 0)


@gluon.jit
def {before}("""
STAMP = "    stamp(shared.stamps_ptr, {}, {}, {}, C)\n"
FORWARD_EDITS = (
    ("\n@gluon.jit\ndef next_block(", CLOCK.format(room=ROOM, stamps=len(FORWARD), before="next_block"), 1),
    ("    v: object\n    o: object\n", "    v: object\n    o: object\n    stamps_ptr: object\n", 1),
    ("o_desc.layout),\n    )\n    turns", "o_desc.layout),\n        counter_ptr,\n    )\n    turns", 1),
    ("    take_turn(turns, n, C, flags.TURNS)\n    s = issue_qk(q, shared, n, zeros)  # [ROWS, BLOCK_N]\n",
     STAMP.format("n - 1", 2, "l") + "    consumer_wait(shared.k, n)\n" + STAMP.format("n", 0, "m")
     + "    s = issue_qk(q, shared, n, zeros)\n", 1),
    ("    consumer_release(shared.k, n)\n    p, m, alpha = softmax_step(s, m, scale_log2, seen, MASK)\n",
     STAMP.format("n", 1, "m") + "    consumer_release(shared.k, n)\n"
     "    p, m, alpha = softmax_step(s, m, scale_log2, seen, MASK)\n", 1),
    ("config: HopperConfig | None = None,", "config: HopperConfig | None = None, stamps: torch.Tensor,", 1),
    ("    counter = torch.zeros(1, dtype=torch.int32, device=q.device) if counted else None\n",
     "    counter = stamps\n", 1),
    ('key = ("hopper", ', 'key = ("hopper with a clock", ', 1),
)  # fmt: skip


@functools.cache
def forward() -> Callable:
    """hopper.flash_forward that stores FORWARD of each block. stamps: (programs, 2, ROOM, n) int64."""
    module = hopper.forward
    return defined(edited(source_of(module), *FORWARD_EDITS), {"__name__": module.__name__})["flash_forward"]


def clocked_cases() -> Iterator[Measurement]:
    shape = at_4096(128, False)
    yield about(9, "clocked", "finished", **vars(shape)), partial(_forward_row, shape)


def _forward_row(shape: Shape) -> dict[str, Any]:
    """SM cycles of a call; the mean cycles from each of FORWARD to the next, of each program's first work tiles, in the
    middle of their loops."""
    q, k, v = inputs(shape)
    programs, blocks = torch.cuda.get_device_properties(0).multi_processor_count, shape.S_k // 128
    stamps = torch.zeros(programs, 2, ROOM, len(FORWARD), dtype=torch.int64, device="cuda")
    call = partial(forward(), q, k, v, False, shape.D**-0.5, stamps=stamps)
    call_cycles = cycles_in_turns({"": call}, rounds=1)[""]
    clock = stamps.cpu()[:, :, : TILES * blocks].unflatten(2, (TILES, blocks)).transpose(1, 2).flatten(0, 1)
    return {"call": call_cycles, "cycles": mean_parts(clock[:, :, 4:-4], FORWARD)}
