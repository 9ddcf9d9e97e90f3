"""Chapter 9: does it matter that two consumers share a program? The loop with one stop, whose consumers have programs
of their own, with a producer each or loading for themselves; and a program that loads each tile twice. Of some, a
clock.

Takes what `ladder` takes, without a mask.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from fa_tutorial import hardware
from fa_tutorial.bench.cases import Shape
from fa_tutorial.bench.chapter_8 import flops_of, inputs
from fa_tutorial.bench.sweep import Measurement
from measure.chapter_8 import counted_in_turns, settled
from measure.turns import by_shape

hardware.require_triton("Chapter 9's measurements")
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402

from fa_tutorial.hopper import ladder, ping_pong  # noqa: E402
from fa_tutorial.hopper.ladder import (  # noqa: E402
    left_operand,
    mbarrier,
    rescaled,
    softmax_step,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.jit
def new_state(D: gl.constexpr, N: gl.constexpr):
    """zeros, [64, N], and m, l, acc before the first block."""
    s_layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    zeros = gl.zeros([64, N], gl.float32, s_layout)
    m = gl.full([64], -float("inf"), gl.float32, gl.SliceLayout(1, s_layout))
    l = gl.full([64], 0.0, gl.float32, gl.SliceLayout(1, s_layout))
    return zeros, m, l, gl.zeros([64, D], gl.float32, o_layout)


@gluon.jit
def store(o_ptr, acc, l, start_m, dtype: gl.constexpr):
    layout: gl.constexpr = acc.type.layout
    offs_m = start_m + gl.arange(0, 64, gl.SliceLayout(1, layout))  # [64]
    offs_d = gl.arange(0, acc.shape[1], gl.SliceLayout(0, layout))  # [D]
    o = rescaled(acc, 1.0 / l).to(dtype)  # [64, D]
    gl.store(o_ptr + offs_m.to(gl.int64)[:, None] * acc.shape[1] + offs_d[None, :], o)


@gluon.jit
def make_ring(q_desc, k_desc, ROWS: gl.constexpr, STAGES: gl.constexpr, COUNT: gl.constexpr):
    """q, k, v, q_full, full and empty of a program; COUNT: arrivals that make a stage empty."""
    D: gl.constexpr = k_desc.block_type.shape[1]
    N: gl.constexpr = k_desc.block_type.shape[0]
    q = gl.allocate_shared_memory(q_desc.dtype, [ROWS, D], q_desc.layout)
    k = gl.allocate_shared_memory(k_desc.dtype, [STAGES, N, D], k_desc.layout)
    v = gl.allocate_shared_memory(k_desc.dtype, [STAGES, N, D], k_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    for place in gl.static_range(STAGES):
        mbarrier.init(full.index(place), count=1)
        mbarrier.init(empty.index(place), count=COUNT)
    return q, k, v, q_full, full, empty


@gluon.jit
def load_block(k_desc, v_desc, k, v, full, start_n, i, LOADS: gl.constexpr):
    """The i-th block of k and v, LOADS times, each over the one before."""
    stage, row = i % k.shape[0], start_n + i * k.shape[1]
    mbarrier.expect(full.index(stage), LOADS * (k_desc.block_type.nbytes + v_desc.block_type.nbytes))
    for _ in gl.static_range(LOADS):
        tma.async_copy_global_to_shared(k_desc, [row, 0], full.index(stage), k.index(stage))
        tma.async_copy_global_to_shared(v_desc, [row, 0], full.index(stage), v.index(stage))


@gluon.jit
def producer(q_desc, k_desc, v_desc, q, k, v, q_full, full, empty, start_m, start_n, blocks, LOADS: gl.constexpr):
    """ladder.producer, which loads each block LOADS times."""
    STAGES: gl.constexpr = k.shape[0]
    mbarrier.expect(q_full, q_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(q_desc, [start_m, 0], q_full, q)
    for i in range(blocks):
        mbarrier.wait(empty.index(i % STAGES), 1 - i // STAGES % 2)
        load_block(k_desc, v_desc, k, v, full, start_n, i, LOADS)


@gluon.jit
def stamp_sm(stamps_ptr):
    """Stores which SM this is. Block 0 has no other stamps."""
    sm = gl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    gl.store(stamps_ptr, sm.to(gl.int64))


@gluon.jit
def consumer(o_ptr, q, k, v, q_full, full, empty, start_m, blocks, scale_log2, stamps_ptr,
             C: gl.constexpr, CONSUMERS: gl.constexpr, LOOP: gl.constexpr, STAMPED: gl.constexpr):  # fmt: skip
    zeros, m, l, acc = new_state(k.shape[2], k.shape[1])
    if STAMPED:
        stamps_ptr += (gl.program_id(0) * CONSUMERS + C) * blocks * ping_pong.N_STAMPS
        stamp_sm(stamps_ptr)
    mbarrier.wait(q_full, 0)
    l, acc = ping_pong.attend(q.slice(C * 64, 64), k, v, full, empty, zeros, m, l, acc, scale_log2, blocks, empty,
                              zeros, stamps_ptr, C, LOOP, STAMPED)  # fmt: skip
    store(o_ptr, acc, l, start_m + C * 64, k.dtype)


@gluon.jit
def with_producer(q_desc, k_desc, v_desc, o_ptr, S, scale_log2, stamps_ptr,
                  STAGES: gl.constexpr, CONSUMERS: gl.constexpr, LOOP: gl.constexpr, LOADS: gl.constexpr,
                  STAMPED: gl.constexpr):  # fmt: skip
    """One consumer in each program or two, and a producer."""
    N: gl.constexpr = k_desc.block_type.shape[0]
    q, k, v, q_full, full, empty = make_ring(q_desc, k_desc, CONSUMERS * 64, STAGES, CONSUMERS)
    start_m = gl.program_id(0) * (CONSUMERS * 64)
    start_n, blocks = start_m // S * S, S // N
    if CONSUMERS == 1:
        gl.warp_specialize([
            (consumer, (o_ptr, q, k, v, q_full, full, empty, start_m, blocks, scale_log2, stamps_ptr,
                        0, CONSUMERS, LOOP, STAMPED)),
            (producer, (q_desc, k_desc, v_desc, q, k, v, q_full, full, empty, start_m, start_n, blocks, LOADS)),
        ], [1], [24])  # fmt: skip
    else:
        gl.warp_specialize([
            (consumer, (o_ptr, q, k, v, q_full, full, empty, start_m, blocks, scale_log2, stamps_ptr,
                        0, CONSUMERS, LOOP, STAMPED)),
            (consumer, (o_ptr, q, k, v, q_full, full, empty, start_m, blocks, scale_log2, stamps_ptr,
                        1, CONSUMERS, LOOP, STAMPED)),
            (producer, (q_desc, k_desc, v_desc, q, k, v, q_full, full, empty, start_m, start_n, blocks, LOADS)),
        ], [4, 1], [240, 24])  # fmt: skip


@gluon.jit
def without_producer(q_desc, k_desc, v_desc, o_ptr, S, scale_log2, stamps_ptr,
                     STAGES: gl.constexpr, STAMPED: gl.constexpr):  # fmt: skip
    """One warpgroup in each program, which loads a block when it has released the stage; else ping_pong's one stop."""
    D: gl.constexpr = k_desc.block_type.shape[1]
    N: gl.constexpr = k_desc.block_type.shape[0]
    q, k, v, q_full, full, empty = make_ring(q_desc, k_desc, 64, STAGES, 1)
    start_m = gl.program_id(0) * 64
    start_n, blocks = start_m // S * S, S // N
    mbarrier.expect(q_full, q_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(q_desc, [start_m, 0], q_full, q)
    for first in gl.static_range(STAGES):
        load_block(k_desc, v_desc, k, v, full, start_n, first, 1)
    zeros, m, l, acc = new_state(D, N)
    if STAMPED:
        stamps_ptr += gl.program_id(0) * blocks * ping_pong.N_STAMPS
        stamp_sm(stamps_ptr)
    mbarrier.wait(q_full, 0)
    mbarrier.wait(full.index(0), 0)
    s = warpgroup_mma(q, k.index(0).permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, [s])  # [64, N]
    p, m, l, alpha = softmax_step(s, m, l, scale_log2)
    p = left_operand(p, acc, v.dtype)
    for i in range(1, blocks):
        stage, parity, before = i % STAGES, i // STAGES % 2, (i - 1) % STAGES
        mbarrier.wait(full.index(stage), parity)
        ping_pong.stamp(stamps_ptr, i, 0, m, STAMPED)
        ping_pong.stamp(stamps_ptr, i, 1, m, STAMPED)
        s = warpgroup_mma(q, k.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
        acc = warpgroup_mma(p, v.index(before), acc, is_async=True)
        s, acc, p = warpgroup_mma_wait(0, [s, acc, p])
        mbarrier.arrive(empty.index(before), count=1)
        mbarrier.wait(empty.index(before), (i - 1) // STAGES % 2)  # all four warps have read it
        ping_pong.stamp(stamps_ptr, i, 2, m, STAMPED)
        if i - 1 + STAGES < blocks:
            load_block(k_desc, v_desc, k, v, full, start_n, i - 1 + STAGES, 1)
        p_new, m, l, alpha = softmax_step(s, m, l, scale_log2)
        ping_pong.stamp(stamps_ptr, i, 3, l, STAMPED)
        ping_pong.stamp(stamps_ptr, i, 4, l, STAMPED)
        acc = rescaled(acc, alpha)
        p = left_operand(p_new, acc, v.dtype)
    acc = warpgroup_mma(p, v.index((blocks - 1) % STAGES), acc, is_async=True)
    acc = warpgroup_mma_wait(0, [acc])  # [64, D]
    store(o_ptr, acc, l, start_m, k.dtype)


# ---------------------------------------------------------------- what is measured


@dataclass(frozen=True)
class Alone:
    """How consumers are spread over programs. keys: of a block; consumers: of a program; 0: it loads for itself;
    registers: of a thread at the launch, so that `programs` fit on an SM; loop: one of ping_pong's; loads: of a tile.
    """

    programs: int
    consumers: int
    keys: int
    stages: int
    registers: int | None = None
    loop: str = "one stop"
    loads: int = 1

    def __str__(self) -> str:
        if self.consumers == 2:
            return "2 consumers in 1 program" + ", each tile loaded twice" * (self.loads == 2)
        overlapped = ", overlapped" * (self.loop == "overlapped")
        return f"{self.programs} program{'s' * (self.programs > 1)} of 1 consumer{overlapped}"


ALONE = {
    64: [Alone(1, 1, 128, 4, 128), Alone(1, 1, 128, 4, 128, "overlapped"), Alone(1, 2, 128, 3),
         Alone(1, 2, 128, 3, loads=2), Alone(2, 1, 128, 3, 128)],
    128: [Alone(1, 1, 64, 4, 128), Alone(1, 1, 64, 4, 128, "overlapped"), Alone(1, 2, 64, 3),
          Alone(1, 2, 64, 3, loads=2), Alone(2, 1, 64, 3, 128)],
}  # fmt: skip
SHAPES = {D: Shape(2, 2048 // D, 2048 // D, 6144, 6144, D, False) for D in ALONE}


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, how: Alone, stamps: torch.Tensor | None = None):
    """o. stamps: (programs, consumers, blocks, n) int64 for ping_pong.STAMPS of each block; block 0 gets the SM."""
    S, D = q.shape[2:]
    o, rows = torch.empty_like(q), 64 * max(how.consumers, 1)
    tiles = [ladder.descriptor(x.view(-1, D), n) for x, n in ((q, rows), (k, how.keys), (v, how.keys))]
    options = {"maxnreg": how.registers} if how.registers else {}
    options |= {"CONSUMERS": how.consumers, "LOOP": how.loop, "LOADS": how.loads} if how.consumers else {}
    (with_producer if how.consumers else without_producer)[(q.numel() // D // rows,)](
        *tiles, o, S, D**-0.5 * math.log2(math.e), stamps, STAGES=how.stages, STAMPED=stamps is not None, num_warps=4,
        **options,
    )  # fmt: skip
    return o


def alone_cases() -> Iterator[Measurement]:
    """Each of ALONE, in turns."""
    for D, shape in SHAPES.items():
        yield from by_shape(9, "alone", _alone_in_turns, [shape], map(str, ALONE[D]))


def _alone_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    q, k, v = inputs(shape)
    calls = {str(how): partial(attend, q, k, v, how) for how in ALONE[shape.D]}
    rows = counted_in_turns(calls, flops=flops_of(shape))
    clocks = {name: settled(call, flops_of(shape)) for name, call in calls.items()}
    return {
        str(how): rows[str(how)] | {"clock": clocked(shape, how)} | {x: clocks[str(how)][x] for x in ("mhz", "watts")}
        for how in ALONE[shape.D]
    }


def clocked(shape: Shape, how: Alone) -> dict[str, int]:
    """The mean cycles from each of ping_pong.STAMPS to the next, of all blocks in the middle of the loop."""
    return mean_parts(stamped(shape, how)[:, :, 4:-4])


def stamped(shape: Shape, how: Alone) -> torch.Tensor:
    """The stamps of a call: (programs, consumers, blocks, STAMPS), with each program's SM first."""
    q, k, v = inputs(shape)
    consumers = max(how.consumers, 1)
    sizes = q.numel() // shape.D // 64 // consumers, consumers, shape.S_k // how.keys, len(ping_pong.STAMPS)
    stamps = torch.zeros(sizes, dtype=torch.int64, device=q.device)
    for _ in range(3):
        attend(q, k, v, how, stamps)
    return completed(stamps.cpu())


def completed(stamps: torch.Tensor) -> torch.Tensor:
    """Stamps, [..., n], in which one that a loop doesn't store is the one before it."""
    stamps = stamps.clone()
    for n in range(1, stamps.shape[-1]):
        stamps[..., n] = torch.where(stamps[..., n] == 0, stamps[..., n - 1], stamps[..., n])
    return stamps


def shares(shape: Shape, how: Alone) -> list[float]:
    """Of several SMs the mean share of the time in which 0, 1, 2 consumers are at a softmax, of one program or two."""
    stamps = stamped(shape, how)
    inner = stamps[:, :, 4:-4]
    if how.consumers == 2:
        groups = inner[5::37]
    else:
        clock, sm = inner[:, 0], stamps[:, 0, 0, 0]
        groups = [clock[group] for group in groups_of(clock, sm) if len(group) == how.programs]
    return mean_shares(groups)


def mean_parts(blocks: torch.Tensor) -> dict[str, int]:
    """The mean cycles from each of ping_pong.STAMPS to the next, of the first n that `blocks` has: [programs,
    consumers, blocks, n]."""
    until_next = torch.cat([blocks[:, :, :-1], blocks[:, :, 1:, :1]], dim=3).double().diff(dim=3)
    return dict(zip(ping_pong.STAMPS, until_next.mean((0, 1, 2)).round().int().tolist(), strict=False))


def softmax_at_once(alive: torch.Tensor) -> list[float]:
    """The share of the time in which 0, 1, … of one SM's consumers are at a softmax. alive: their stamps, [consumers,
    blocks, n]."""
    times = torch.arange(int(alive[:, 0, 1].max()), int(alive[:, -1, 3].min()), 7)
    begun, ended = (
        torch.stack([torch.searchsorted(of[:, n].contiguous(), times, right=True) for of in alive]) for n in (2, 3)
    )
    at_once = (begun > ended).sum(0)
    return [(at_once == n).double().mean().item() for n in range(len(alive) + 1)]


def mean_shares(groups: Iterable[torch.Tensor]) -> list[float]:
    """The mean of softmax_at_once over these groups of consumers, each of as many."""
    return torch.tensor([softmax_at_once(of) for of in groups], dtype=torch.float64).mean(0).round(decimals=3).tolist()


def together(clock: torch.Tensor, sm: torch.Tensor, one: int) -> list[int]:
    """`one` and the programs that share most of its time on its SM. clock: their stamps, (programs, blocks, n);
    sm: each one's."""
    begun, ended = clock[:, 0, 1], clock[:, -1, 3]
    shared = torch.minimum(ended, ended[one]) - torch.maximum(begun, begun[one])
    many = (sm == sm[one]) & (2 * shared > ended[one] - begun[one])
    return many.nonzero()[:, 0].tolist()


def groups_of(clock: torch.Tensor, sm: torch.Tensor) -> list[list[int]]:
    """Of every 37th program those that are `together` with it, where there are others."""
    groups = [together(clock, sm, one) for one in range(5, len(sm), 37)]
    return [group for group in groups if len(group) > 1]
