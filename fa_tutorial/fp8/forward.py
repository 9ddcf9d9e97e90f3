"""Chapter 14: chapter 9's forward with operands in e4m3 (FlashAttention-3, section 3.3), for compute capability 9.0.

Rings, work tiles and roles are chapter 9's. What differs, by the numbers of the chapter's equations:

- q, k and v come quantised, with a scale for each block of rows (14.2). k's enters the scores' scale, v's is acc's
  unit;
- p leaves softmax_step times 2⁸ (14.4), and is rounded to e4m3 where it lies: v's keys are in `key_order` (14.8);
- the tensor core adds up one block of keys, and float32 the blocks: a longer chain would lose more (14.7). l is a sum
  of the p that were rounded, by the tensor core too: p times a column of ones.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch

from fa_tutorial.fp8.quantise import BLOCK, Quantised
from fa_tutorial.hardware import card_of, require_triton
from fa_tutorial.hopper.forward import HopperConfig, Shared, issue_qk, skip
from fa_tutorial.hopper.pipeline import (
    consumer_release,
    consumer_wait,
    load,
    make_pipeline,
    mbarrier,
    producer_acquire,
    stage_of,
    tma,
)
from fa_tutorial.hopper.tile_scheduler import (
    NO_ROWS,
    ROWS,
    announce_rows,
    announced_rows,
    make_work,
    next_work_tile,
    sizes_of,
    work_tile,
)
from fa_tutorial.tuned.forward import heads_at_once
from fa_tutorial.tuned.launching import Launch, launch_prepared, signature_of

triton = require_triton("Chapter 14 (fa_tutorial.fp8)")
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait  # noqa: E402
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # noqa: E402

Q_STAGES = gl.constexpr(2)
BLOCK_N = gl.constexpr(BLOCK)  # keys of a tile, which share a scale
P_LOG2 = gl.constexpr(8.0)  # p is at most 2⁸, not 1 (14.4)
LN_2 = gl.constexpr(math.log(2.0))
ONES = gl.constexpr(8)  # columns of the narrowest wgmma, which sums p


# ---------------------------------------------------------------- producer


@gluon.jit
def load_columns(ring, n, desc, b, h, start):
    """pipeline.load for vᵀ: columns start … of head h."""
    stage = stage_of(n, ring.tiles.shape[0])
    mbarrier.expect(ring.full.index(stage), ring.tiles.shape[3] * ring.tiles.shape[4])  # bytes, one an element
    tma.async_copy_global_to_shared(desc, [b, h, 0, start], ring.full.index(stage), ring.tiles.index(stage))


@gluon.jit
def producer(q_desc, k_desc, v_desc, counter_ptr, shared, sizes, flags: gl.constexpr):
    """Chapter 9's, with load_columns for v."""
    CONSUMERS: gl.constexpr = shared.o.shape[0]
    work_tiles = sizes.row_blocks * sizes.heads
    n = 0
    turn = 0
    i = gl.program_id(0)
    while i < work_tiles:
        batch_head, start_m, end_m, key_blocks = work_tile(
            i, sizes, CONSUMERS, BLOCK_N, flags.IS_CAUSAL, flags.IS_CAUSAL
        )
        b = batch_head // sizes.H_q
        h = batch_head % sizes.H_q
        h_k = h // (sizes.H_q // sizes.H_k)
        for c in gl.static_range(CONSUMERS):
            first = start_m + c * ROWS
            producer_acquire(shared.q, turn * CONSUMERS + c)
            announce_rows(
                batch_head, first if first < end_m else NO_ROWS, key_blocks, shared.work, turn * CONSUMERS + c
            )
            load(shared.q, turn * CONSUMERS + c, q_desc, b, h, first)
        for j in range(key_blocks):
            start_n = (key_blocks - 1 - j) * BLOCK_N
            producer_acquire(shared.k, n)
            load(shared.k, n, k_desc, b, h_k, start_n)
            producer_acquire(shared.v, n)
            load_columns(shared.v, n, v_desc, b, h_k, start_n)
            n += 1
        turn += 1
        i = next_work_tile(i, counter_ptr, flags.COUNTER)
    for c in gl.static_range(CONSUMERS):
        producer_acquire(shared.q, turn * CONSUMERS + c)
        announce_rows(sizes.heads, 0, 0, shared.work, turn * CONSUMERS + c)
        mbarrier.arrive(shared.q.full.index(stage_of(turn * CONSUMERS + c, shared.q.tiles.shape[0])), count=1)


# ---------------------------------------------------------------- consumer


class Scales(NamedTuple):
    """Pointers to float32: q's, (B, H_q, blocks), k's and v's, (B, H_k, blocks), a scale for each BLOCK_N rows."""

    q: object
    k: object
    v: object


class Flags(NamedTuple):
    """What the kernel knows when it compiles: the mask, and whether work tiles are handed out by a counter."""

    IS_CAUSAL: bool
    COUNTER: bool


@gluon.jit
def softmax_step(s, m, scale_log2, seen, MASK: gl.constexpr):
    """Chapter 9's, but m is scaled, since each block of keys has a scale of its own. Returns p · 2⁸, m_new, alpha."""
    if MASK:
        key = gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
        s = gl.where(key[None, :] < seen[:, None], s, -float("inf"))
    m_new = gl.maximum(m, gl.max(s, axis=1) * scale_log2)
    shift = m_new
    if MASK:
        shift = gl.where(m_new == -float("inf"), 0.0, m_new)
    return gl.exp2(s * scale_log2 - (shift - P_LOG2)[:, None]), m_new, gl.exp2(m - shift)


@gluon.jit
def fp8_operand(p, layout: gl.constexpr):
    """p, [ROWS, BLOCK_N] float32, as left operand of a wgmma: no value leaves its thread (14.8)."""
    M: gl.constexpr = p.shape[0]
    N: gl.constexpr = p.shape[1]
    # Key 8b + 2c + e becomes column 4c + 2b + e, in the same thread c.
    p = p.reshape([M, N // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([M, N])
    # Four columns, $1 to $4, become one register, $0. cvt puts its first operand into the upper 8 bits.
    return gl.inline_asm_elementwise(
        """{ .reg .b16 low, high;
        cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
        cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
        mov.b32 $0, {low, high}; }""",
        "=r,f,f,f,f", [gl.convert_layout(p, layout)], dtype=gl.float8e4nv, is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def issue_pv(p, columns):
    """Start p v over one block of keys, summed from zero. columns: of vᵀ, [N, BLOCK_N] in shared memory."""
    N: gl.constexpr = columns.shape[0]
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 32])
    zeros = gl.zeros([p.shape[0], N], gl.float32, layout)
    return warpgroup_mma(p, columns.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def rescaled(acc, factor, new):
    """acc · factor + new, row by row, in float32."""
    factor = gl.convert_layout(factor, gl.SliceLayout(1, acc.type.layout))
    return acc * factor[:, None] + gl.convert_layout(new, acc.type.layout)


@gluon.jit
def half_of(l):
    """One of two neighbouring columns, which are equal: [ROWS, ONES] -> [ROWS, ONES / 2]."""
    return l.reshape([l.shape[0], l.shape[1] // 2, 2]).split()[0]


@gluon.jit
def next_block(q, m, l, acc, v_scale, zeros, ones, shared, n, seen, row_scale, k_scales, v_scales, j,
               MASK: gl.constexpr):  # fmt: skip
    """Block j of keys, the n-th use of the rings, joins m, l and acc. Returns them, and this block's
    scale of v, which is now acc's unit.

    The tensor core adds up this block of keys, and float32 the blocks: a longer chain would lose more (14.7).
    """
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=acc.type.layout, k_width=4)
    scale_log2 = row_scale * gl.load(k_scales + j)
    new_scale = gl.load(v_scales + j)
    s = warpgroup_mma_wait(0, [issue_qk(q, shared, n, zeros)])  # [ROWS, BLOCK_N]
    consumer_release(shared.k, n)
    p, m, alpha = softmax_step(s, m, scale_log2, seen, MASK)
    p = fp8_operand(p, P_LAYOUT)  # [ROWS, BLOCK_N]
    columns = consumer_wait(shared.v, n)  # [D, BLOCK_N]
    # [ROWS, ONES], [ROWS, D]
    new_l, new = warpgroup_mma_wait(0, [issue_pv(p, ones), issue_pv(p, columns)])
    consumer_release(shared.v, n)
    l = rescaled(l, alpha, half_of(new_l))
    acc = rescaled(acc, alpha * (v_scale / new_scale), new)
    return m, l, acc, new_scale


@gluon.jit
def consumer(o_desc, lse_ptr, scales, shared, ones, sizes, C: gl.constexpr, flags: gl.constexpr):
    """Chapter 9's, without overlap: rows C · ROWS … of each work tile, blocks of keys from the last to the first."""
    CONSUMERS: gl.constexpr = shared.o.shape[0]
    D: gl.constexpr = shared.k.tiles.shape[4]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 32]
    )
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 32])
    L_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, ONES, 32])
    ROW_LAYOUT: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, S_LAYOUT)
    n = 0
    turn = 0
    q = consumer_wait(shared.q, C)
    batch_head, first, key_blocks = announced_rows(shared.work, C)
    while batch_head < sizes.heads:
        offs_m = first + gl.arange(0, ROWS, ROW_LAYOUT)  # [ROWS]
        seen = gl.zeros([ROWS], gl.int32, ROW_LAYOUT) + sizes.S_k  # [ROWS] keys that a row sees
        mine = key_blocks  # blocks that one of these rows sees
        full = sizes.S_k // BLOCK_N  # blocks that need no mask
        if flags.IS_CAUSAL:  # (4.6)
            seen = gl.minimum(seen, offs_m + (1 + sizes.S_k - sizes.S_q))
            mine = max(gl.cdiv(min(first + ROWS, sizes.S_q) + sizes.S_k - sizes.S_q, BLOCK_N), 1)
            full = max(first + 1 + sizes.S_k - sizes.S_q, 0) // BLOCK_N
        if first == NO_ROWS:  # this work tile has fewer rows
            mine = 0
        for _ in range(key_blocks - mine):
            skip(shared, n)
            n += 1
        if mine > 0:
            head_k = batch_head // sizes.H_q * sizes.H_k + batch_head % sizes.H_q // (sizes.H_q // sizes.H_k)
            row_scale = gl.load(scales.q + batch_head * gl.cdiv(sizes.S_q, BLOCK_N) + first // BLOCK_N)
            k_scales = scales.k + head_k * gl.cdiv(sizes.S_k, BLOCK_N)
            v_scales = scales.v + head_k * gl.cdiv(sizes.S_k, BLOCK_N)
            m = gl.full([ROWS], -float("inf"), gl.float32, ROW_LAYOUT)
            l = half_of(gl.zeros([ROWS, ONES], gl.float32, L_LAYOUT))
            acc = gl.zeros([ROWS, D], gl.float32, O_LAYOUT)
            v_scale = 1.0
            masked = max(mine - full, 1)  # the first one too: there m is still −inf
            for j in range(masked):
                m, l, acc, v_scale = next_block(
                    q, m, l, acc, v_scale, zeros, ones, shared, n, seen - (mine - 1 - j) * BLOCK_N, row_scale, k_scales,
                    v_scales, mine - 1 - j, True,
                )  # fmt: skip
                n += 1
            for j in range(masked, mine):
                m, l, acc, v_scale = next_block(
                    q, m, l, acc, v_scale, zeros, ones, shared, n, seen, row_scale, k_scales, v_scales, mine - 1 - j,
                    False,
                )  # fmt: skip
                n += 1
            consumer_release(shared.q, turn * CONSUMERS + C)
            l = gl.convert_layout(gl.max(l, axis=1), ROW_LAYOUT)  # its columns are equal
            epilogue(o_desc, lse_ptr, acc, m, l, v_scale, shared, batch_head, sizes, first, offs_m, C)
        else:
            consumer_release(shared.q, turn * CONSUMERS + C)
        turn += 1
        q = consumer_wait(shared.q, turn * CONSUMERS + C)
        batch_head, first, key_blocks = announced_rows(shared.work, turn * CONSUMERS + C)
    tma.store_wait(0)


@gluon.jit
def epilogue(o_desc, lse_ptr, acc, m, l, v_scale, shared, batch_head, sizes, first, offs_m, C: gl.constexpr):
    """o = acc · v_scale / l, in which 2⁸ cancels, and lse, in which it does not."""
    l_or_one = gl.where(l == 0.0, 1.0, l)
    lse = gl.where(l == 0.0, -float("inf"), (m + gl.log2(l_or_one) - P_LOG2) * LN_2)
    gl.store(lse_ptr + batch_head.to(gl.int64) * sizes.S_q + offs_m, lse, mask=offs_m < sizes.S_q)
    o = acc * gl.convert_layout(v_scale / l_or_one, gl.SliceLayout(1, acc.type.layout))[:, None]
    tma.store_wait(0)
    shared.o.index(C).reshape([ROWS, acc.shape[1]]).store(o.to(shared.o.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(o_desc, [0, batch_head, first, 0], shared.o.index(C))


# ---------------------------------------------------------------- kernel


@gluon.jit
def forward_kernel(q_desc, k_desc, v_desc, o_desc, lse_ptr, q_scales, k_scales, v_scales, counter_ptr, heads_at_once,
                   flags: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
                   CONSUMER_REGISTERS: gl.constexpr):  # fmt: skip
    """o = softmax(log 2 · q kᵀ) v and lse, of quantised q, k and v.

    q_desc, k_desc: e4m3, tiles (1, 1, ROWS or BLOCK_N, D); v_desc: (B, H_k, D, S_k), tiles (1, 1, D, BLOCK_N);
    o_desc: (1, B · H_q, S_q, D), fp16 or bf16.
    Pointers as for Scales; lse_ptr: (B, H_q, S_q) float32. Grid as chapter 9's.
    """
    Q_TILES: gl.constexpr = Q_STAGES * CONSUMERS
    shared = Shared(
        make_pipeline(q_desc, Q_TILES, 1),
        make_work(Q_TILES),
        make_pipeline(k_desc, STAGES, CONSUMERS),
        make_pipeline(v_desc, STAGES, CONSUMERS),
        gl.allocate_shared_memory(o_desc.dtype, [CONSUMERS, 1, 1, ROWS, o_desc.block_type.shape[3]], o_desc.layout),
    )
    rows_of_128_bytes: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)
    ones = gl.allocate_shared_memory(gl.float8e4nv, [ONES, BLOCK_N], rows_of_128_bytes)
    # 1.0 by its bits: of a constant's conversion to e4m3, ptxas leaves the upper half of each register undefined.
    one = gl.full([ONES, BLOCK_N], 0x38, gl.int8, gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
    ones.store(one.to(gl.float8e4nv, bitcast=True))
    fence_async_shared()
    sizes = sizes_of(q_desc, k_desc, heads_at_once, CONSUMERS)
    scales = Scales(q_scales, k_scales, v_scales)
    if CONSUMERS == 2:
        gl.warp_specialize([
            (consumer, (o_desc, lse_ptr, scales, shared, ones, sizes, 0, flags)),
            (consumer, (o_desc, lse_ptr, scales, shared, ones, sizes, 1, flags)),
            (producer, (q_desc, k_desc, v_desc, counter_ptr, shared, sizes, flags)),
        ], [4, 1], [CONSUMER_REGISTERS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (consumer, (o_desc, lse_ptr, scales, shared, ones, sizes, 0, flags)),
            (consumer, (o_desc, lse_ptr, scales, shared, ones, sizes, 1, flags)),
            (consumer, (o_desc, lse_ptr, scales, shared, ones, sizes, 2, flags)),
            (producer, (q_desc, k_desc, v_desc, counter_ptr, shared, sizes, flags)),
        ], [4, 4, 1], [CONSUMER_REGISTERS, CONSUMER_REGISTERS, 24])  # fmt: skip


# ---------------------------------------------------------------- launching


# The fastest of those tried on an H200, by BLOCK_D. As in chapter 9, a short causal sequence takes smaller work tiles.
CONFIGS = {64: HopperConfig(3, BLOCK, 4, 160), 128: HopperConfig(3, BLOCK, 2, 160)}
SHORT_CAUSAL, SHORT_ROWS = HopperConfig(2, BLOCK, 2, 240), 2048


def choose_config(block_d: int, S_q: int, is_causal: bool) -> HopperConfig:
    return SHORT_CAUSAL if block_d == 128 and is_causal and S_q <= SHORT_ROWS else CONFIGS[block_d]


@functools.cache
def layout(row_bytes: int, bits: int) -> gl.NVMMASharedLayout:
    """How a tile whose rows have so many bytes lies in shared memory: what TMA writes and wgmma reads."""
    return gl.NVMMASharedLayout(swizzle_byte_width=min(128, row_bytes), element_bitwidth=bits, rank=4)


def template(x: torch.Tensor, rows: int, columns: int):
    """A function that makes descriptors of contiguous tensors like x, (B, H, ., .), with tiles of rows x columns."""
    in_shared_memory = layout(columns * x.element_size(), 8 * x.element_size())
    box = list(x.shape), list(x.stride()), [1, 1, rows, columns], in_shared_memory
    return lambda x: TensorDescriptor(x, *box)


def flash_forward(q: Quantised, k: Quantised, v: Quantised, D: int, dtype: torch.dtype, is_causal: bool,
                  *, config: HopperConfig | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """o (B, H_q, S_q, D) in dtype, and lse (B, H_q, S_q) float32, by forward_kernel.

    q, k, v: quantise's, v as columns; D: o's columns, a multiple of 8, at most as many as theirs.
    """
    (B, H_q, S_q, block_d), S_k = q.values.shape, k.values.shape[2]
    config = config or choose_config(block_d, S_q, is_causal)
    o = torch.empty((B, H_q, S_q, D), dtype=dtype, device=q.values.device)
    lse = torch.empty((B, H_q, S_q), dtype=torch.float32, device=o.device)
    work_tiles = triton.cdiv(S_q, ROWS.value * config.consumers) * B * H_q
    programs = min(work_tiles, card_of(o).multiprocessors)
    counted = programs < work_tiles
    counter = torch.zeros(1, dtype=torch.int32, device=o.device) if counted else None

    def prepare() -> Launch:
        rows = (
            (q.values, ROWS.value, block_d),
            (k.values, BLOCK, block_d),
            (o.view(1, B * H_q, S_q, D), ROWS.value, block_d),
        )
        to_argument = [template(*tile) for tile in (*rows[:2], (v.values, block_d, BLOCK), rows[2])]
        constants = {"flags": Flags(is_causal, counted)}
        constants |= {"CONSUMERS": config.consumers, "STAGES": config.stages, "CONSUMER_REGISTERS": config.registers}
        return Launch(forward_kernel, programs, to_argument, constants | {"num_warps": 4})

    key = ("fp8", config, is_causal, dtype, *signature_of(q.values, k.values, v.values, o))
    arguments = lse, q.scales, k.scales, v.scales, counter, heads_at_once(S_k)
    launch_prepared(key, prepare, (q.values, k.values, v.values, o), arguments)
    return o, lse
