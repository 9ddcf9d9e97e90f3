"""Chapter 9: the finished kernels with a clock, D = 128: when a consumer of the forward, and of the backward, is where
in a block.

The kernels are hopper.forward's and hopper.backward's, full, S = 4,096. A program stores the clock of all its blocks.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from fa_tutorial import hopper
from fa_tutorial.bench.cases import Shape, about
from fa_tutorial.bench.chapter_8 import at_4096, inputs
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.source import defined, edited, source_of
from measure.clocks import cycles_in_turns

# Room for the blocks of a consumer: 16 work tiles of a program, of 32 blocks each; in the backward, where programs draw
# their numbers from a counter, up to 24 of 64 each.
ROOM = {"forward": 16 * 32, "backward": 24 * 64}
TILES = 12  # that each program has at least
# When a consumer is in a block of the forward: k is there, s is in registers, acc is rescaled and p packed. A stamp
# behind the softmax would keep ptxas from moving the wait for p v up, as it does without.
FORWARD = ("k", "s", "packed")
# Of the backward: what is done.
BACKWARD = ("begin", "dp", "ds", "met", "dk, s′", "p′", "dq", "added", "dv′")
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
    ("\n@gluon.jit\ndef next_block(", CLOCK.format(room=ROOM["forward"], stamps=len(FORWARD), before="next_block"), 1),
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


BACKWARD_EDITS = (
    ("\n@gluon.jit\ndef issue_dq(", CLOCK.format(room=ROOM["backward"], stamps=len(BACKWARD), before="issue_dq"), 1),
    ("    ds_full: object\n    dq: object\n", "    ds_full: object\n    dq: object\n    stamps_ptr: object\n", 1),
    ("dq_desc.layout),\n    )\n", "dq_desc.layout),\n        stamps_ptr,\n    )\n", 1),
    ("counter_ptr, heads_at_once, scale,\n    flags", "counter_ptr, stamps_ptr, heads_at_once, scale,\n    flags", 1),
    ("(counter, at_once, scale)", "(counter, stamps, at_once, scale)", 1),
    ("    dlse: torch.Tensor | None, is_causal", "    dlse: torch.Tensor | None, stamps: torch.Tensor, is_causal", 1),
    ('("hopper backward", ', '("hopper backward with a clock", ', 1),
    ('("prepare dq", ', '("prepare dq with a clock", ', 1),
)  # fmt: skip


def _stamp(i: int) -> str:
    return f"    stamp(shared.stamps_ptr, block.n, {i}, clock_of, C)\n"


BACKWARD_EDITS += (
    ("    dtype: gl.constexpr = shared.q.tiles.dtype\n    dp_t", "    dtype: gl.constexpr = shared.q.tiles.dtype\n"
     "    clock_of = gl.zeros([64], gl.float32, gl.SliceLayout(1, dk.type.layout))\n" + _stamp(0) + "    dp_t", 1),
    ("  # wait for dp\n", "  # wait for dp\n" + _stamp(1), 1),
    ("  # hand over ds\n", "  # hand over ds\n" + _stamp(2), 1),
    ("    dq = issue_dq(block, shared, C)", "    mbarrier.wait(shared.ds_full.index(stage_of(block.n, STAGES)), "
     "parity_of(block.n, STAGES))\n" + _stamp(3) + "    dq = issue_dq(block, shared, C)", 1),
    ("dq, issued last, stays under way\n", "dq, issued last, stays under way\n    " + _stamp(4), 1),
    ("  # p′ (6.7)\n", "  # p′ (6.7)\n    " + _stamp(5), 1),
    ("  # wait for dq\n", "  # wait for dq\n    " + _stamp(6), 1),
    ("while dv′ is computed\n", "while dv′ is computed\n    " + _stamp(7), 1),
    ("  # wait for dv′\n", "  # wait for dv′\n    " + _stamp(8), 1),
)  # fmt: skip


@functools.cache
def backward() -> Callable:
    """hopper.flash_backward that stores BACKWARD of each block. stamps: (programs, 2, ROOM, n) int64."""
    module = hopper.backward
    return defined(edited(source_of(module), *BACKWARD_EDITS), {"__name__": module.__name__})["flash_backward"]


def clocked_cases() -> Iterator[Measurement]:
    shape = at_4096(128, False)
    for provider, row in (("hopper", _forward_row), ("hopper backward", _backward_row)):
        yield about(9, "clocked", provider, **vars(shape)), partial(row, shape)


def _forward_row(shape: Shape) -> dict[str, Any]:
    q, k, v = inputs(shape)
    stamps = _stamps("forward", FORWARD)
    call = partial(forward(), q, k, v, False, shape.D**-0.5, stamps=stamps)
    return _row(call, stamps, FORWARD, shape.S_k // 128)


def _backward_row(shape: Shape) -> dict[str, Any]:
    q, k, v = inputs(shape)
    do = torch.randn_like(q)
    o, lse = hopper.flash_forward(q, k, v, False, shape.D**-0.5)
    stamps = _stamps("backward", BACKWARD)
    call = partial(backward(), q, k, v, o, do, lse, None, stamps, False, shape.D**-0.5)
    return _row(call, stamps, BACKWARD, shape.S_q // 64)


def _stamps(which: str, names: Sequence[str]) -> torch.Tensor:
    programs = torch.cuda.get_device_properties(0).multi_processor_count
    return torch.zeros(programs, 2, ROOM[which], len(names), dtype=torch.int64, device="cuda")


def _row(call: Callable, stamps: torch.Tensor, names: Sequence[str], blocks: int) -> dict[str, Any]:
    """SM cycles of a call; the mean cycles from each of `names` to the next, of each program's first work tiles, in the
    middle of their loops; the stamps of four blocks, and of the next one, of both consumers of a program."""
    call_cycles = cycles_in_turns({"": call}, rounds=1)[""]
    clock = stamps.cpu()[:, :, : TILES * blocks].unflatten(2, (TILES, blocks)).transpose(1, 2).flatten(0, 1)
    clock = clock[:, :, 4:-4]
    until_next = torch.cat([clock[:, :, :-1], clock[:, :, 1:, :1]], dim=3).double().diff(dim=3)
    mean = until_next.mean((0, 1, 2)).round().int().tolist()
    each = until_next.sum(3).mean((1, 2))
    shown = clock[(each - each.mean()).abs().argmin(), :, 4:9]
    row = {"call": call_cycles, "cycles": dict(zip(names, mean, strict=True))}
    return row | {"stamps": (shown - shown.min()).tolist()}
