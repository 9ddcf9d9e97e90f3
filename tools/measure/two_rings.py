"""Chapter 9: from ping_pong's one stop to the finished kernel's loop, one change after the other: a ring for k and one
for v, p in pairs, the finished softmax, and o by TMA.

Takes what `ladder` takes, without a mask.
"""

import math
from typing import NamedTuple

import torch

from fa_tutorial import hardware

hardware.require_triton("Chapter 9's measurements")
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import (  # noqa: E402
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from fa_tutorial.hopper import ladder, softmax  # noqa: E402
from fa_tutorial.hopper.ladder import ROWS, left_operand, mbarrier, rescaled, tma  # noqa: E402
from fa_tutorial.hopper.pipeline import make_barriers  # noqa: E402
from measure.alone import new_state, store  # noqa: E402


class Change(NamedTuple):
    """Which changes are made. stages: of each ring; pairs: two fp16 numbers of p share a register; finished: the
    softmax of the finished kernel; tma: o goes through shared memory, by TMA."""

    stages: int = 3
    pairs: bool = False
    finished: bool = False
    tma: bool = False


CHANGES = {
    "two rings": Change(),
    "2 stages": Change(2),
    "p in pairs": Change(2, pairs=True),
    "finished softmax": Change(2, pairs=True, finished=True),
    "o by TMA": Change(2, pairs=True, finished=True, tma=True),
}


@gluon.jit
def producer(q_desc, k_desc, v_desc, q, k, v, q_full, k_full, k_empty, v_full, v_empty, start_m, start_n, blocks):
    """ladder.producer, with barriers for k and for v. Blocks come from the last to the first, as in ping_pong."""
    STAGES: gl.constexpr = k.shape[0]
    mbarrier.expect(q_full, q_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(q_desc, [start_m, 0], q_full, q)
    for i in range(blocks):
        stage, parity = i % STAGES, i // STAGES % 2
        row = start_n + (blocks - 1 - i) * ROWS
        mbarrier.wait(k_empty.index(stage), 1 - parity)
        mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(k_desc, [row, 0], k_full.index(stage), k.index(stage))
        mbarrier.wait(v_empty.index(stage), 1 - parity)
        mbarrier.expect(v_full.index(stage), v_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(v_desc, [row, 0], v_full.index(stage), v.index(stage))


@gluon.jit
def probabilities(s, m, l, acc, scale_log2, dtype: gl.constexpr, PAIRS: gl.constexpr, FINISHED: gl.constexpr):
    """p as it lives until its matmul, m, l, alpha."""
    if FINISHED:
        p, m, alpha = softmax.softmax_step(s, m, scale_log2, m, False)
        l = alpha * l + gl.sum(p, axis=1)
    else:
        p, m, l, alpha = ladder.softmax_step(s, m, l, scale_log2)
    if PAIRS:
        p = softmax.pack(p, dtype)
    else:
        p = left_operand(p, acc, dtype)
    return p, m, l, alpha


@gluon.jit
def issue_pv(p, v, acc, PAIRS: gl.constexpr):
    layout: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=acc.type.layout, k_width=2)
    if PAIRS:
        acc = warpgroup_mma(softmax.unpack(p, v.dtype, layout), v, acc, is_async=True)
    else:
        acc = warpgroup_mma(p, v, acc, is_async=True)
    return acc


@gluon.jit
def attend(q, k, v, k_full, k_empty, v_full, v_empty, zeros, m, l, acc, scale_log2, blocks,
           PAIRS: gl.constexpr, FINISHED: gl.constexpr):  # fmt: skip
    """ping_pong.attend's "one stop", which waits for k before q kᵀ and for v before p v, and releases both after the
    stop."""
    STAGES: gl.constexpr = k.shape[0]
    mbarrier.wait(k_full.index(0), 0)
    s = warpgroup_mma(q, k.index(0).permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, [s])  # [64, ROWS]
    mbarrier.arrive(k_empty.index(0), count=1)
    p, m, l, alpha = probabilities(s, m, l, acc, scale_log2, v.dtype, PAIRS, FINISHED)
    for i in range(1, blocks):
        stage, before = i % STAGES, (i - 1) % STAGES
        mbarrier.wait(k_full.index(stage), i // STAGES % 2)
        s = warpgroup_mma(q, k.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(before), (i - 1) // STAGES % 2)
        acc = issue_pv(p, v.index(before), acc, PAIRS)
        if PAIRS:
            s, acc = warpgroup_mma_wait(0, [s, acc])
        else:
            s, acc, p = warpgroup_mma_wait(0, [s, acc, p])
        mbarrier.arrive(k_empty.index(stage), count=1)
        mbarrier.arrive(v_empty.index(before), count=1)
        p, m, l, alpha = probabilities(s, m, l, acc, scale_log2, v.dtype, PAIRS, FINISHED)
        acc = rescaled(acc, alpha)
    mbarrier.wait(v_full.index((blocks - 1) % STAGES), (blocks - 1) // STAGES % 2)
    acc = issue_pv(p, v.index((blocks - 1) % STAGES), acc, PAIRS)
    acc = warpgroup_mma_wait(0, [acc])
    return l, acc


@gluon.jit
def consumer(o_desc, o_ptr, q, k, v, o, q_full, k_full, k_empty, v_full, v_empty, start_m, blocks, scale_log2,
             C: gl.constexpr, PAIRS: gl.constexpr, FINISHED: gl.constexpr, TMA: gl.constexpr):  # fmt: skip
    zeros, m, l, acc = new_state(k.shape[2], k.shape[1])
    mbarrier.wait(q_full, 0)
    l, acc = attend(q.slice(C * 64, 64), k, v, k_full, k_empty, v_full, v_empty, zeros, m, l, acc, scale_log2, blocks,
                    PAIRS, FINISHED)  # fmt: skip
    if TMA:
        o.index(C).store(rescaled(acc, 1.0 / l).to(k.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(o_desc, [start_m + C * 64, 0], o.index(C))
        tma.store_wait(0)
    else:
        store(o_ptr, acc, l, start_m + C * 64, k.dtype)


@gluon.jit
def forward_kernel(q_desc, k_desc, v_desc, o_desc, o_ptr, S, scale_log2,
                   STAGES: gl.constexpr, PAIRS: gl.constexpr, FINISHED: gl.constexpr, TMA: gl.constexpr):  # fmt: skip
    """ladder.forward_kernel with two rings. o_desc: tiles (64, D)."""
    D: gl.constexpr = k_desc.block_type.shape[1]
    q = gl.allocate_shared_memory(q_desc.dtype, [ROWS, D], q_desc.layout)
    k = gl.allocate_shared_memory(k_desc.dtype, [STAGES, ROWS, D], k_desc.layout)
    v = gl.allocate_shared_memory(v_desc.dtype, [STAGES, ROWS, D], v_desc.layout)
    o = q.reshape([2, 64, D])
    if TMA:
        o = gl.allocate_shared_memory(q_desc.dtype, [2, 64, D], q_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    k_full, k_empty = make_barriers(STAGES, 1), make_barriers(STAGES, 2)
    v_full, v_empty = make_barriers(STAGES, 1), make_barriers(STAGES, 2)
    start_m = gl.program_id(0) * ROWS
    start_n = start_m // S * S  # where the head's keys begin
    blocks = S // ROWS
    gl.warp_specialize([
        (consumer, (o_desc, o_ptr, q, k, v, o, q_full, k_full, k_empty, v_full, v_empty, start_m, blocks, scale_log2,
                    0, PAIRS, FINISHED, TMA)),
        (consumer, (o_desc, o_ptr, q, k, v, o, q_full, k_full, k_empty, v_full, v_empty, start_m, blocks, scale_log2,
                    1, PAIRS, FINISHED, TMA)),
        (producer, (q_desc, k_desc, v_desc, q, k, v, q_full, k_full, k_empty, v_full, v_empty, start_m, start_n,
                    blocks)),
    ], [4, 1], [240, 24])  # fmt: skip


def flash_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, change: Change) -> torch.Tensor:
    """o, full, with scale 1 / √D."""
    S, D = q.shape[2:]
    o = torch.empty_like(q)
    tiles = [ladder.descriptor(x.view(-1, D), rows) for x, rows in ((q, 128), (k, 128), (v, 128), (o, 64))]
    forward_kernel[(q.numel() // D // ROWS.value,)](
        *tiles, o, S, D**-0.5 * math.log2(math.e), STAGES=change.stages, PAIRS=change.pairs, FINISHED=change.finished,
        TMA=change.tma, num_warps=4,
    )  # fmt: skip
    return o
