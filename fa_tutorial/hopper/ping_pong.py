"""Chapter 9's experiment: a loop with one stop a block, one that is overlapped, and ping-pong, whose two consumers
issue their matmuls by turns. Full and causal, with a clock to look at them.

Takes what `ladder` takes, and a causal mask. The blocks of keys come from the last to the first, so that under a mask
the first one that a consumer meets, before its loop, is the diagonal's.
"""

from __future__ import annotations

import math

import torch

from fa_tutorial.hardware import require_triton
from fa_tutorial.hopper.ladder import (
    ROWS,
    descriptor,
    left_operand,
    mbarrier,
    producer,
    rescaled,
    softmax_step,
    warpgroup_mma,
    warpgroup_mma_wait,
)

require_triton("Chapter 9 (fa_tutorial.hopper)")
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402

LOOPS = ("one stop", "overlapped", "ping-pong")
# When a consumer is in a block: its tiles are there, its turn has come, the stop is over, p is there, p v is in acc,
# acc is rescaled and p in fp16; with two stops: this block's own p v is in acc. A loop needn't store all.
STAMPS = ("tiles", "turn", "stop", "softmax", "end", "packed", "done")
N_STAMPS = gl.constexpr(len(STAMPS))


@gluon.jit
def stamp(stamps_ptr, i, n: gl.constexpr, after, STAMPED: gl.constexpr):
    """With STAMPED store the SM's clock as block i's n-th of STAMPS, once `after`, [64], has been computed."""
    if STAMPED:
        clock = gl.inline_asm_elementwise(
            "mov.u64 $0, %clock64; // $1", "=l,f", [after], dtype=gl.int64, is_pure=False, pack=1
        )
        row = gl.arange(0, 64, after.type.layout)
        gl.store(stamps_ptr + i * N_STAMPS + n + row, clock, mask=row == 0)


@gluon.jit
def attend(q, k, v, full, empty, zeros, m, l, acc, scale_log2, blocks, turns, first, stamps_ptr, C: gl.constexpr,
           LOOP: gl.constexpr, STAMPED: gl.constexpr):  # fmt: skip
    """LOOP, one of LOOPS, in the order that ptxas gives it. first: [64, ROWS], what the first scores are added to.

    "one stop": ladder.attend_overlapped, but with one wait for both matmuls. "overlapped": p v is issued when s is
    there, and ptxas leaves the wait for it after the softmax. "ping-pong": one stop, and a consumer issues its matmuls
    when the other has issued its own; turns: two barriers.
    """
    STAGES: gl.constexpr = k.shape[0]
    mbarrier.wait(full.index(0), 0)
    s = warpgroup_mma(q, k.index(0).permute((1, 0)), first, is_async=True)
    s = warpgroup_mma_wait(0, [s])  # [64, ROWS]
    p, m, l, alpha = softmax_step(s, m, l, scale_log2)
    p = left_operand(p, acc, v.dtype)
    for i in range(1, blocks):
        stage, parity = i % STAGES, i // STAGES % 2
        before = (i - 1) % STAGES
        stamp(stamps_ptr, i - 1, 5, l, STAMPED)
        mbarrier.wait(full.index(stage), parity)
        stamp(stamps_ptr, i, 0, m, STAMPED)
        if LOOP == "ping-pong":
            mbarrier.wait(turns.index(C), (i - C) % 2)  # consumer 0 begins
        stamp(stamps_ptr, i, 1, m, STAMPED)
        s = warpgroup_mma(q, k.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
        if LOOP == "overlapped":
            s = warpgroup_mma_wait(0, [s])
            stamp(stamps_ptr, i, 2, m, STAMPED)
        acc = warpgroup_mma(p, v.index(before), acc, is_async=True)
        if LOOP == "ping-pong":
            mbarrier.arrive(turns.index(1 - C), count=1)
        if LOOP != "overlapped":
            s, acc, p = warpgroup_mma_wait(0, [s, acc, p])
            mbarrier.arrive(empty.index(before), count=1)
            stamp(stamps_ptr, i, 2, m, STAMPED)
        p_new, m, l, alpha = softmax_step(s, m, l, scale_log2)
        stamp(stamps_ptr, i, 3, l, STAMPED)
        if LOOP == "overlapped":
            acc, p = warpgroup_mma_wait(0, [acc, p])
            mbarrier.arrive(empty.index(before), count=1)
        stamp(stamps_ptr, i, 4, l, STAMPED)
        acc = rescaled(acc, alpha)
        p = left_operand(p_new, acc, v.dtype)
    acc = warpgroup_mma(p, v.index((blocks - 1) % STAGES), acc, is_async=True)
    acc = warpgroup_mma_wait(0, [acc])
    return l, acc


@gluon.jit
def consumer(o_ptr, q, k, v, q_full, full, empty, turns, start_m, blocks, scale_log2, stamps_ptr,
             C: gl.constexpr, IS_CAUSAL: gl.constexpr, LOOP: gl.constexpr, STAMPED: gl.constexpr):  # fmt: skip
    """Warpgroup C: o of its 64 rows (4.4)."""
    D: gl.constexpr = k.shape[2]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, ROWS, 16])  # fmt: skip
    o_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])  # fmt: skip
    zeros = gl.zeros([64, ROWS], gl.float32, s_layout)
    first = zeros
    if IS_CAUSAL:  # the diagonal block: query C · 64 + i sees its keys up to C · 64 + i
        query = C * 64 + gl.arange(0, 64, gl.SliceLayout(1, s_layout))
        key = gl.arange(0, ROWS, gl.SliceLayout(0, s_layout))
        first = gl.where(key[None, :] <= query[:, None], zeros, -float("inf"))
    m = gl.full([64], -float("inf"), gl.float32, gl.SliceLayout(1, s_layout))
    l = gl.full([64], 0.0, gl.float32, gl.SliceLayout(1, s_layout))
    acc = gl.zeros([64, D], gl.float32, o_layout)
    if STAMPED:
        stamps_ptr += (gl.program_id(0) * 2 + C) * blocks * N_STAMPS
    mbarrier.wait(q_full, 0)
    l, acc = attend(q.slice(C * 64, 64), k, v, full, empty, zeros, m, l, acc, scale_log2, blocks, turns, first,
                    stamps_ptr, C, LOOP, STAMPED)  # fmt: skip
    offs_m = start_m + C * 64 + gl.arange(0, 64, gl.SliceLayout(1, o_layout))  # [64]
    offs_d = gl.arange(0, D, gl.SliceLayout(0, o_layout))  # [D]
    o = rescaled(acc, 1.0 / l).to(k.dtype)  # [64, D]
    gl.store(o_ptr + offs_m.to(gl.int64)[:, None] * D + offs_d[None, :], o)


@gluon.jit
def forward_kernel(q_desc, k_desc, v_desc, o_ptr, S, scale_log2, stamps_ptr,
                   STAGES: gl.constexpr, IS_CAUSAL: gl.constexpr, LOOP: gl.constexpr,
                   STAMPED: gl.constexpr):  # fmt: skip
    """ladder.forward_kernel with this module's attend. stamps_ptr: (programs, 2, S // ROWS, N_STAMPS) int64, with
    STAMPED."""
    D: gl.constexpr = k_desc.block_type.shape[1]
    q = gl.allocate_shared_memory(q_desc.dtype, [ROWS, D], q_desc.layout)
    k = gl.allocate_shared_memory(k_desc.dtype, [STAGES, ROWS, D], k_desc.layout)
    v = gl.allocate_shared_memory(v_desc.dtype, [STAGES, ROWS, D], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)  # the load
        mbarrier.init(empty.index(stage), count=2)  # both consumers
    for c in gl.static_range(2):
        mbarrier.init(turns.index(c), count=1)  # the other consumer
    start_m = gl.program_id(0) * ROWS
    start_n = start_m // S * S  # where the head's keys begin
    blocks = S // ROWS
    if IS_CAUSAL:
        blocks = (start_m - start_n) // ROWS + 1
    last_n = start_n + (blocks - 1) * ROWS
    gl.warp_specialize([
        (consumer, (o_ptr, q, k, v, q_full, full, empty, turns, start_m, blocks, scale_log2, stamps_ptr,
                    0, IS_CAUSAL, LOOP, STAMPED)),
        (consumer, (o_ptr, q, k, v, q_full, full, empty, turns, start_m, blocks, scale_log2, stamps_ptr,
                    1, IS_CAUSAL, LOOP, STAMPED)),
        (producer, (q_desc, k_desc, v_desc, q, k, v, q_full, full, empty, start_m, last_n, blocks, -ROWS)),
    ], [4, 1], [240, 24])  # fmt: skip


def flash_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool, scale: float, *,
                  loop: str = "ping-pong", stages: int = 3,
                  stamps: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
    """o. loop: one of LOOPS. stamps: (B · H · S // ROWS, 2, S // ROWS, N_STAMPS) int64 for the clock, full; row 0 gets
    "packed" alone."""
    B, H, S, D = q.shape
    o = torch.empty_like(q)
    tiles = [descriptor(x.view(-1, D)) for x in (q, k, v)]
    programs, scale_log2 = B * H * S // ROWS.value, scale * math.log2(math.e)
    forward_kernel[(programs,)](
        *tiles, o, S, scale_log2, stamps, STAGES=stages, IS_CAUSAL=is_causal, LOOP=loop, STAMPED=stamps is not None,
        num_warps=4,
    )  # fmt: skip
    return o
