"""Chapter 9's way up to `forward`: one TMA copy, one wgmma, and a plain forward with a producer and two consumers.

The forward takes contiguous (B, H, S, D) in fp16 or bf16, D = 64 or 128, S a multiple of ROWS, and no mask. It has no
lse, and a program for each 128 rows. Its ring has one stage for a block of k and the block of v with the same keys, so
its barriers are those of `fa_tutorial.barriers.ring`.
"""

from __future__ import annotations

import math

import torch

from fa_tutorial.hardware import require_triton

require_triton("Chapter 9 (fa_tutorial.hopper)")
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait  # noqa: E402
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # noqa: E402

ROWS = gl.constexpr(128)  # of a tile of q, k or v; a consumer has half of q's


@gluon.jit
def copy_kernel(x_desc, y_desc):
    """y = x. x_desc, y_desc: descriptors of (M, D), tiles (ROWS, D). Grid: (M // ROWS,)."""
    start = gl.program_id(0) * ROWS
    tile = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_type.shape, x_desc.layout)  # [ROWS, D]
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.expect(full, x_desc.block_type.nbytes)  # arrives; the phase also waits for so many bytes
    tma.async_copy_global_to_shared(x_desc, [start, 0], full, tile)
    mbarrier.wait(full, 0)  # phase 0 is complete: the tile is there
    tma.async_copy_shared_to_global(y_desc, [start, 0], tile)
    tma.store_wait(0)


@gluon.jit
def wgmma_kernel(q_desc, k_desc, s_ptr):
    """s = q kᵀ of one tile each, [64, ROWS] float32 (4.1). Grid: (1,), 4 warps.
    q_desc, k_desc: tiles (64, D) and (ROWS, D)."""
    q = gl.allocate_shared_memory(q_desc.dtype, q_desc.block_type.shape, q_desc.layout)  # [64, D]
    k = gl.allocate_shared_memory(k_desc.dtype, k_desc.block_type.shape, k_desc.layout)  # [ROWS, D]
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.expect(full, q_desc.block_type.nbytes + k_desc.block_type.nbytes)  # both copies, one phase
    tma.async_copy_global_to_shared(q_desc, [0, 0], full, q)
    tma.async_copy_global_to_shared(k_desc, [0, 0], full, k)
    mbarrier.wait(full, 0)
    # Version 3 is Hopper's wgmma. The four warps of the program (CTA) lie one below the other. Each
    # instruction covers 16 rows per warp, ROWS columns, and 16 elements of D.
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, ROWS, 16])  # fmt: skip
    zeros = gl.zeros([64, ROWS], gl.float32, layout)
    s = warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)  # returns at once
    s = warpgroup_mma_wait(0, [s])  # until none is in flight
    offs_m = gl.arange(0, 64, gl.SliceLayout(1, layout))  # [64], rows, laid out as those of s
    offs_n = gl.arange(0, ROWS, gl.SliceLayout(0, layout))  # [ROWS], columns, likewise
    gl.store(s_ptr + offs_m[:, None] * ROWS + offs_n[None, :], s)


@gluon.jit
def producer(q_desc, k_desc, v_desc, q, k, v, q_full, full, empty, start_m, start_n, blocks,
             STEP: gl.constexpr):  # fmt: skip
    """One warp: loads 128 rows of q, then tiles of k and v, each pair as soon as its stage is empty.
    start_n: where the first begins; STEP: rows from one to the next."""
    STAGES: gl.constexpr = k.shape[0]
    mbarrier.expect(q_full, q_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(q_desc, [start_m, 0], q_full, q)
    for i in range(blocks):
        stage, parity = i % STAGES, i // STAGES % 2
        mbarrier.wait(empty.index(stage), 1 - parity)
        mbarrier.expect(full.index(stage), k_desc.block_type.nbytes + v_desc.block_type.nbytes)
        row = start_n + i * STEP
        tma.async_copy_global_to_shared(k_desc, [row, 0], full.index(stage), k.index(stage))
        tma.async_copy_global_to_shared(v_desc, [row, 0], full.index(stage), v.index(stage))


@gluon.jit
def softmax_step(s, m, l, scale_log2):
    """Chapter 8's, in base 2. s: [64, ROWS]; m, l: [64]. Returns p, m, l, alpha."""
    m_new = gl.maximum(m, gl.max(s, axis=1) * scale_log2)
    p = gl.exp2(s * scale_log2 - m_new[:, None])
    alpha = gl.exp2(m - m_new)
    return p, m_new, alpha * l + gl.sum(p, axis=1), alpha


@gluon.jit
def left_operand(p, acc, dtype: gl.constexpr):
    """p in dtype, still in registers, as left operand of p v. k_width: neighbours in one register."""
    layout: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=acc.type.layout, k_width=2)
    return gl.convert_layout(p.to(dtype), layout)


@gluon.jit
def rescaled(acc, alpha):
    """acc · alpha, row by row (4.3)."""
    return acc * gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout))[:, None]


@gluon.jit
def attend(q, k, v, full, empty, zeros, m, l, acc, scale_log2, blocks):
    """Exercise 9.3: all blocks of keys for 64 rows of q, (4.1) to (4.3). zeros: [64, ROWS]; returns l and acc."""
    STAGES: gl.constexpr = k.shape[0]
    for i in range(blocks):
        stage, parity = i % STAGES, i // STAGES % 2
        mbarrier.wait(full.index(stage), parity)
        k_t = k.index(stage).permute((1, 0))  # [D, 128]
        s = warpgroup_mma(q, k_t, zeros, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, [s])  # [64, 128]
        p, m, l, alpha = softmax_step(s, m, l, scale_log2)
        p = left_operand(p, acc, v.dtype)
        acc = warpgroup_mma(p, v.index(stage), rescaled(acc, alpha), is_async=True)
        acc = warpgroup_mma_wait(0, [acc])  # [64, D]
        mbarrier.arrive(empty.index(stage), count=1)
    return l, acc


@gluon.jit
def attend_overlapped(q, k, v, full, empty, zeros, m, l, acc, scale_log2, blocks):
    """Exercise 9.4: as attend, with p v of a block under the softmax of the next (9.3); two stages or more. But ptxas
    moves the second wait up, so that of the softmax only some of the maximum runs under p v."""
    STAGES: gl.constexpr = k.shape[0]
    mbarrier.wait(full.index(0), 0)
    s = warpgroup_mma(q, k.index(0).permute((1, 0)), zeros, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, [s])
    p, m, l, alpha = softmax_step(s, m, l, scale_log2)
    p = left_operand(p, acc, v.dtype)
    for i in range(1, blocks):
        stage, parity, before = i % STAGES, i // STAGES % 2, (i - 1) % STAGES
        mbarrier.wait(full.index(stage), parity)
        k_t = k.index(stage).permute((1, 0))
        s = warpgroup_mma(q, k_t, zeros, use_acc=False, is_async=True)
        acc = warpgroup_mma(p, v.index(before), acc, is_async=True)
        s = warpgroup_mma_wait(1, [s])  # p v, which was issued last, may be under way
        p_new, m, l, alpha = softmax_step(s, m, l, scale_log2)
        acc, p = warpgroup_mma_wait(0, [acc, p])
        mbarrier.arrive(empty.index(before), count=1)
        acc = rescaled(acc, alpha)
        p = left_operand(p_new, acc, v.dtype)
    acc = warpgroup_mma(p, v.index((blocks - 1) % STAGES), acc, is_async=True)
    acc = warpgroup_mma_wait(0, [acc])
    mbarrier.arrive(empty.index((blocks - 1) % STAGES), count=1)
    return l, acc


@gluon.jit
def consumer(o_ptr, q, k, v, q_full, full, empty, start_m, blocks, scale_log2,
             C: gl.constexpr, ATTEND: gl.constexpr):  # fmt: skip
    """Warpgroup C: o of its 64 rows (4.4)."""
    D: gl.constexpr = k.shape[2]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, ROWS, 16])  # fmt: skip
    o_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])  # fmt: skip
    zeros = gl.zeros([64, ROWS], gl.float32, s_layout)
    m = gl.full([64], -float("inf"), gl.float32, gl.SliceLayout(1, s_layout))
    l = gl.full([64], 0.0, gl.float32, gl.SliceLayout(1, s_layout))
    acc = gl.zeros([64, D], gl.float32, o_layout)
    mbarrier.wait(q_full, 0)
    l, acc = ATTEND(q.slice(C * 64, 64), k, v, full, empty, zeros, m, l, acc, scale_log2, blocks)
    offs_m = start_m + C * 64 + gl.arange(0, 64, gl.SliceLayout(1, o_layout))  # [64]
    offs_d = gl.arange(0, D, gl.SliceLayout(0, o_layout))  # [D]
    o = rescaled(acc, 1.0 / l).to(k.dtype)  # [64, D]
    gl.store(o_ptr + offs_m.to(gl.int64)[:, None] * D + offs_d[None, :], o)


@gluon.jit
def forward_kernel(q_desc, k_desc, v_desc, o_ptr, S, scale_log2,
                   STAGES: gl.constexpr, ATTEND: gl.constexpr):  # fmt: skip
    """o of 128 rows. q_desc, k_desc, v_desc: descriptors of (B · H · S, D), tiles (ROWS, D).
    Grid: (B · H · S // ROWS,)."""
    D: gl.constexpr = k_desc.block_type.shape[1]
    q = gl.allocate_shared_memory(q_desc.dtype, [ROWS, D], q_desc.layout)
    k = gl.allocate_shared_memory(k_desc.dtype, [STAGES, ROWS, D], k_desc.layout)
    v = gl.allocate_shared_memory(v_desc.dtype, [STAGES, ROWS, D], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)  # the load
        mbarrier.init(empty.index(stage), count=2)  # both consumers
    start_m = gl.program_id(0) * ROWS
    start_n = start_m // S * S  # where the head's keys begin
    blocks = S // ROWS
    gl.warp_specialize([
        (consumer, (o_ptr, q, k, v, q_full, full, empty, start_m, blocks, scale_log2, 0, ATTEND)),
        (consumer, (o_ptr, q, k, v, q_full, full, empty, start_m, blocks, scale_log2, 1, ATTEND)),
        (producer, (q_desc, k_desc, v_desc, q, k, v, q_full, full, empty, start_m, start_n, blocks,
                    ROWS)),
    ], [4, 1], [240, 24])  # fmt: skip


def descriptor(x: torch.Tensor, rows: int = ROWS.value) -> TensorDescriptor:
    """A TMA descriptor of x, (M, D) contiguous, 16 bits an element, in tiles (rows, D), swizzled as
    wgmma reads them: a column's elements lie in different banks."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return TensorDescriptor.from_tensor(x, [rows, x.shape[1]], layout)


def copy(x: torch.Tensor) -> torch.Tensor:
    """x: (M, D) contiguous, M a multiple of ROWS."""
    y = torch.empty_like(x)
    copy_kernel[(x.shape[0] // ROWS.value,)](descriptor(x), descriptor(y), num_warps=4)
    return y


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """q kᵀ for q: (64, D) and k: (128, D), in float32."""
    s = torch.empty(64, ROWS.value, dtype=torch.float32, device=q.device)
    wgmma_kernel[(1,)](descriptor(q, 64), descriptor(k), s, num_warps=4)
    return s


def flash_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *,
                  attend=attend, stages: int = 2) -> torch.Tensor:  # fmt: skip
    """o of the module's plain forward. attend: the consumers' loop; D = 128 has room for 3 stages."""
    B, H, S, D = q.shape
    o = torch.empty_like(q)
    tiles = [descriptor(x.view(-1, D)) for x in (q, k, v)]
    programs = B * H * S // ROWS.value
    scale_log2 = scale * math.log2(math.e)
    forward_kernel[(programs,)](*tiles, o, S, scale_log2, STAGES=stages, ATTEND=attend, num_warps=4)
    return o
