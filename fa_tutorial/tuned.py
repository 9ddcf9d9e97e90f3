"""Chapter 8: the kernels of chapters 5 and 7, tuned for speed in plain Triton, step by step, each step callable by name.

The same algorithm with cheaper exponentials, tiles that move by TMA, an order of programs of its own, and tile sizes that are measured and
not guessed. What a step does not change stands in forward.py and backward.py. fp32, an empty input and a scale that is not positive, or so large or
small that float32 loses it, take the kernels there; so does, tile by tile, what TMA cannot reach (strides, alignment, the card).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from fa_tutorial import backward, forward
from fa_tutorial.arguments import check_attention, check_flag, check_name
from fa_tutorial.backward import DELTA_ELEMENTS, BackwardConfig, finite_or_0, is_finite, load_lse, row_delta_tile
from fa_tutorial.forward import MAX_D, TileConfig, add_strays, load_tile, p_scale, padded_d, weigh_finite
from fa_tutorial.hardware import (
    HOPPER_CAPABILITY,
    TENSOR_CORE_CAPABILITY,
    capability,
    on_device_of,
    require_kernel_device,
    require_triton,
    shared_memory_limit,
)
from fa_tutorial.matmul import INTERPRETED, dot, grouped_tile_device

triton = require_triton("Chapter 8 (fa_tutorial.tuned)")
import triton.language as tl  # noqa: E402
from triton.runtime.cache import get_cache_manager  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

TMA_CAPABILITY = HOPPER_CAPABILITY  # and all later ones
LOG2_E = math.log2(math.e)
LN_2, LOG2_E_IN_KERNELS = tl.constexpr(math.log(2.0)), tl.constexpr(LOG2_E)
LARGE_LOGIT = tl.constexpr(4096.0)  # in base 2. Its rounding, 2^−13 of p, is half of what changes a one in fp16
LEAST_SCALE, MOST_SCALE = 2.0**-126, 2.0**127
REPAIR_ROWS = tl.constexpr(1024)  # a multiple of every BLOCK_M

# ---------------------------------------------------------------- tiles, by descriptor or by pointer


@triton.jit
def on_head(x, b, h, stride_b, stride_h, TMA: tl.constexpr):
    """x where it is a descriptor; else the pointer to head h of batch entry b."""
    if TMA:
        return x
    else:
        return x + b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h


@triton.jit
def load_rows(
    x, b, h, start, rows, D, stride_s, stride_d, TMA: tl.constexpr, MASK: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Rows start … start + ROWS − 1 of one head, [ROWS, BLOCK_D], 0 beyond `rows` and D. x: on_head's. Without MASK all rows are there.

    A descriptor has the shape (B, H, S, D) of its tensor: a tile that runs over a head's end is filled with 0, not with the next head.
    """
    if TMA:
        tile = x.load([b, h, start, 0]).reshape([ROWS, BLOCK_D])
        if INTERPRETED and tile.dtype == tl.bfloat16:
            tile = tile.to(tl.float32)
        return tile
    else:
        offs = start + tl.arange(0, ROWS).to(tl.int64)  # [ROWS]
        return load_tile(x, offs, tl.arange(0, BLOCK_D).to(tl.int64), rows, D, stride_s, stride_d, MASK, True)


@triton.jit
def store_rows(x, tile, b, h, start, rows, D, stride_s, stride_d, TMA: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Store [ROWS, BLOCK_D] to where load_rows reads from; what lies beyond `rows` and D is left out."""
    if TMA:
        x.store([b, h, start, 0], tile.to(x.dtype).reshape([1, 1, ROWS, BLOCK_D]))
    else:
        offs, offs_d = start + tl.arange(0, ROWS).to(tl.int64), tl.arange(0, BLOCK_D).to(tl.int64)
        mask = (offs[:, None] < rows) & (offs_d[None, :] < D)
        tl.store(x + offs[:, None] * stride_s + offs_d[None, :] * stride_d, tile.to(x.dtype.element_ty), mask=mask)


# ---------------------------------------------------------------- forward


@triton.jit
def add_constant(x, CONSTANT: tl.constexpr):
    """x + CONSTANT, and no instruction where that is 0: the compiler keeps x + 0.0, which turns −0 into 0."""
    if CONSTANT == 0:
        return x
    else:
        return x + CONSTANT


@triton.jit
def attend(q, k, v, m, l, acc, b, h_k, start_n, offs_m, S_q, S_k, D, scale_log2, stride_ks, stride_kd, stride_vs, stride_vd,
           IS_CAUSAL: tl.constexpr, MASK: tl.constexpr, SAFE: tl.constexpr, TMA: tl.constexpr, SHIFT: tl.constexpr,
           BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """forward.attend_block in base 2 (8.3): s and m not scaled, p = 2^(s · scale_log2 − m · scale_log2), a multiply-add an element.

    q: [BLOCK_M, BLOCK_D]; k, v: on_head's; offs_m: int32. SHIFT: p is 2^−SHIFT of what it would be, and so is l, which takes it back.
    SAFE: where m is large p = 2^((s − m) · scale_log2), whose largest is 1 however large m is; and every NaN and inf among causal values is left
    out, as weigh_finite does, for add_strays to add. Returns m, l, acc.
    """
    k_tile = load_rows(k, b, h_k, start_n, S_k, D, stride_ks, stride_kd, TMA, MASK, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    s = dot(q, tl.trans(k_tile), tl.zeros((q.shape[0], BLOCK_N), dtype=tl.float32))  # [BLOCK_M, BLOCK_N]
    if MASK:
        key = tl.arange(0, BLOCK_N)[None, :]  # within this tile
        if IS_CAUSAL:  # a row that is there sees no key beyond S_k
            s = tl.where(key <= (offs_m + (S_k - S_q - start_n))[:, None], s, -float("inf"))
        else:
            s = tl.where(key < S_k - start_n, s, -float("inf"))
    m_new = tl.maximum(m, tl.max(s, axis=1))  # [BLOCK_M]
    shift = m_new
    if MASK:  # a row that sees nothing
        shift = tl.where(m_new == -float("inf"), 0.0, m_new)
    # alpha from the same rounded product as x: that rounding is then common to the whole row, and o = acc / l loses it.
    shift_log2 = shift * scale_log2
    x = s * scale_log2 - add_constant(shift_log2, SHIFT)[:, None]  # [BLOCK_M, BLOCK_N]
    x_alpha = m * scale_log2 - shift_log2  # [BLOCK_M]
    if SAFE:
        large = tl.abs(shift_log2) > LARGE_LOGIT
        x = tl.where(large[:, None], add_constant((s - shift[:, None]) * scale_log2, -SHIFT), x)
        x_alpha = tl.where(large, (m - shift) * scale_log2, x_alpha)
    p, alpha = tl.exp2(x), tl.exp2(x_alpha)
    acc = acc * alpha[:, None]  # [BLOCK_M, BLOCK_D]
    v_tile = load_rows(v, b, h_k, start_n, S_k, D, stride_vs, stride_vd, TMA, MASK, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    if SAFE and IS_CAUSAL:
        acc, _ = weigh_finite(p, v_tile, acc, 1)
    else:
        acc = dot(p.to(v_tile.dtype), v_tile, acc)
    return m_new, alpha * l + tl.sum(p, axis=1), acc


@triton.jit
def forward_rows(
    q, k, v, o, lse_ptr, batch_head, row_block, H_q, H_k, S_q, S_k, D, scale_log2,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    IS_CAUSAL: tl.constexpr, SAFE: tl.constexpr, LAST_FIRST: tl.constexpr, TMA: tl.constexpr, SHIFT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A row block of one head: (4.1) to (4.6) in base 2. Arguments as in forward_kernel; lse_ptr: the head's. SAFE, LAST_FIRST: repair_kernel's."""
    b, h = batch_head // H_q, batch_head % H_q
    h_k = h // (H_q // H_k)
    q, o = on_head(q, b, h, stride_qb, stride_qh, TMA), on_head(o, b, h, stride_ob, stride_oh, TMA)
    k, v = on_head(k, b, h_k, stride_kb, stride_kh, TMA), on_head(v, b, h_k, stride_vb, stride_vh, TMA)

    start_m = row_block * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    q_tile = load_rows(q, b, h, start_m, S_q, D, stride_qs, stride_qd, TMA, True, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    full, end = S_k // BLOCK_N * BLOCK_N, S_k  # keys up to full without a mask, up to end with one
    if IS_CAUSAL:  # (4.6)
        full = tl.maximum(start_m + 1 + S_k - S_q, 0) // BLOCK_N * BLOCK_N
        end = tl.maximum(tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q, 0)
    # One ragged tile needs no pipeline, and with one ptxas serialises the wgmma of the pointer path (C7515); None: as the launch says.
    TAIL_STAGES: tl.constexpr = None if IS_CAUSAL else 1
    if SAFE:
        for start in tl.range(0, end, BLOCK_N, num_stages=1):
            start_n = (tl.cdiv(end, BLOCK_N) - 1) * BLOCK_N - start if LAST_FIRST else start
            m, l, acc = attend(q_tile, k, v, m, l, acc, b, h_k, start_n, offs_m, S_q, S_k, D, scale_log2,
                               stride_ks, stride_kd, stride_vs, stride_vd, IS_CAUSAL, True, True, TMA, SHIFT, BLOCK_N, BLOCK_D)  # fmt: skip
        if IS_CAUSAL:
            offs_d = tl.arange(0, BLOCK_D).to(tl.int64)
            acc = add_strays(acc, v, 0, end, offs_m.to(tl.int64), offs_d, S_q, S_k, D, stride_vs, stride_vd)
    else:
        for start_n in tl.range(0, full, BLOCK_N):
            m, l, acc = attend(q_tile, k, v, m, l, acc, b, h_k, start_n, offs_m, S_q, S_k, D, scale_log2,
                               stride_ks, stride_kd, stride_vs, stride_vd, IS_CAUSAL, False, False, TMA, SHIFT, BLOCK_N, BLOCK_D)  # fmt: skip
        for start_n in tl.range(full, end, BLOCK_N, num_stages=TAIL_STAGES):
            m, l, acc = attend(q_tile, k, v, m, l, acc, b, h_k, start_n, offs_m, S_q, S_k, D, scale_log2,
                               stride_ks, stride_kd, stride_vs, stride_vd, IS_CAUSAL, True, False, TMA, SHIFT, BLOCK_N, BLOCK_D)  # fmt: skip

    l_or_one = tl.where(l == 0.0, 1.0, l)
    o_tile = acc * (1.0 / l_or_one)[:, None]  # (4.4), with one division a row: one an element is a tenth of a short row's time
    # (4.5). fma by name: the compiler joins a product and a sum in one kernel and not in the next, and what is computed again is to have the same bits.
    lse = tl.where(l == 0.0, -float("inf"), tl.fma(m, scale_log2, SHIFT + tl.log2(l_or_one)) * LN_2)
    if not SAFE:  # the mark
        lse = tl.where((tl.abs(m * scale_log2) > LARGE_LOGIT) & (l > 0.0), float("nan"), lse)
        if IS_CAUSAL:
            lse += tl.sum(o_tile * 0.0, axis=1)  # NaN where the row is not finite, else nothing
    store_rows(o, o_tile, b, h, start_m, S_q, D, stride_os, stride_od, TMA, BLOCK_M, BLOCK_D)
    tl.store(lse_ptr + offs_m, lse, mask=offs_m < S_q)


@triton.jit
def forward_kernel(
    q, k, v, o, lse_ptr, H_q, H_k, heads, heads_at_once, S_q, S_k, D, scale_log2,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    IS_CAUSAL: tl.constexpr, TMA: tl.constexpr, SHIFT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """o and lse as forward.flash_forward_kernel gives them, but for the rows that are left to repair_kernel: their lse is NaN.

    B batch, H_q and H_k heads, heads = B · H_q, S_q and S_k lengths, D head dimension, BLOCK_D its next power of two.
    q, o: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D): with TMA descriptors of tiles (1, 1, BLOCK_M or BLOCK_N, BLOCK_D), else pointers.
    lse_ptr: (B, H_q, S_q) float32, contiguous. scale_log2: scale · log2(e), positive.
    Programs go through heads_at_once heads at a time, causal ones from the longest row block to the shortest (8.4).
    Grid: (ceil(S_q / BLOCK_M) · heads,).
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    batch_head, row_block = grouped_tile_device(tl.program_id(0), heads, row_blocks, heads_at_once)
    if IS_CAUSAL:
        row_block = row_blocks - 1 - row_block
    forward_rows(q, k, v, o, lse_ptr + batch_head.to(tl.int64) * S_q, batch_head, row_block, H_q, H_k, S_q, S_k, D, scale_log2,
                 stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
                 stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
                 IS_CAUSAL, False, False, TMA, SHIFT, BLOCK_M, BLOCK_N, BLOCK_D)  # fmt: skip


@triton.jit
def any_nan(x_ptr, start, end, ROWS: tl.constexpr):
    """True where one of the elements start … start + ROWS − 1, before end, is NaN."""
    offs = start + tl.arange(0, ROWS)
    x = tl.load(x_ptr + offs, mask=offs < end, other=0.0)
    return tl.max((x != x).to(tl.int32), axis=0) > 0


@triton.jit
def repair_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, H_q, H_k, S_q, S_k, D, scale_log2,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    IS_CAUSAL: tl.constexpr, LAST_FIRST: tl.constexpr, SHIFT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The row blocks in which forward_kernel left a NaN in lse, once more, with what the loops that everyone runs do not care for.

    A NaN or inf among values that the causal mask hides reaches every row of its tile, since 0 · NaN is NaN; and where m is beyond LARGE_LOGIT, the
    rounding of m · scale_log2 is more than fp16's. Most often there is no NaN, and a program ends after it has looked at REPAIR_ROWS rows.
    Arguments as in forward_kernel, all pointers. LAST_FIRST: blocks of keys from the last to the first, as chapter 9's kernel takes them. Grid: (ceil(S_q / REPAIR_ROWS) · B · H_q,).
    """
    chunks = tl.cdiv(S_q, REPAIR_ROWS)
    batch_head = tl.program_id(0) // chunks
    lse_ptr += batch_head.to(tl.int64) * S_q
    start = tl.program_id(0) % chunks * REPAIR_ROWS
    if any_nan(lse_ptr, start, S_q, REPAIR_ROWS):
        for row_block in range(start // BLOCK_M, tl.cdiv(tl.minimum(start + REPAIR_ROWS, S_q), BLOCK_M)):
            if any_nan(lse_ptr, row_block * BLOCK_M, S_q, BLOCK_M):
                forward_rows(q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, batch_head, row_block, H_q, H_k, S_q, S_k, D, scale_log2,
                             stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
                             stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
                             IS_CAUSAL, True, LAST_FIRST, False, SHIFT, BLOCK_M, BLOCK_N, BLOCK_D)  # fmt: skip


# ---------------------------------------------------------------- backward


@triton.jit
def prepare_kernel(
    o_ptr, do_ptr, lse_ptr, dlse_ptr, delta_ptr, lse2_ptr, H_q, S_q, S_padded, D,
    stride_ob, stride_oh, stride_os, stride_od, stride_dob, stride_doh, stride_dos, stride_dod, stride_dlseb, stride_dlseh, stride_dlses,
    HAS_DLSE: tl.constexpr, P_SCALE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """delta as backward.delta_kernel, and lse2 = lse · log2(e), both (B, H_q, S_padded) float32 (8.5).

    lse2 is +inf for rows that see nothing (7.3), and for the rows from S_q to S_padded, which no kernel then has to mask.
    Glossary and arguments as in delta_kernel; lse_ptr: (B, H_q, S_q), contiguous. Grid: (ceil(S_padded / BLOCK_M) · B · H_q,).
    """
    row_blocks = tl.cdiv(S_padded, BLOCK_M)
    batch_head = (tl.program_id(0) // row_blocks).to(tl.int64)
    offs_m = (tl.program_id(0) % row_blocks).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    delta = row_delta_tile(o_ptr, do_ptr, dlse_ptr, batch_head // H_q, batch_head % H_q, offs_m, S_q, D,
                           stride_ob, stride_oh, stride_os, stride_od, stride_dob, stride_doh, stride_dos, stride_dod,
                           stride_dlseb, stride_dlseh, stride_dlses, HAS_DLSE, P_SCALE, BLOCK_D)  # fmt: skip
    lse2 = load_lse(lse_ptr + batch_head * S_q, offs_m, S_q) * LOG2_E_IN_KERNELS  # [BLOCK_M]
    tl.store(delta_ptr + batch_head * S_padded + offs_m, delta, mask=offs_m < S_padded)
    tl.store(lse2_ptr + batch_head * S_padded + offs_m, lse2, mask=offs_m < S_padded)


@triton.jit
def p_and_ds2(s, dp, lse2, delta, scale_log2, key, last_seen, MASK: tl.constexpr):
    """backward.p_and_ds in base 2: p = 2^(s · scale_log2 − lse2) (8.5), from scores that are not scaled yet."""
    p = tl.exp2(s * scale_log2 - lse2)
    if MASK:
        p = tl.where(key <= last_seen, p, 0.0)
    ds = p * (dp - delta)
    if MASK:
        ds = tl.where(key <= last_seen, ds, 0.0)  # even where dp is inf or NaN
    return p, ds


@triton.jit
def row_sum_of_do_o(do, o, b, h, start_m, S_q, D, stride_os, stride_od, TMA: tl.constexpr, P_SCALE: tl.constexpr,
                    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """delta of a tile, computed where it is needed: what step "delta_twice" does in place of reading it."""
    o_tile = load_rows(o, b, h, start_m, S_q, D, stride_os, stride_od, TMA, True, BLOCK_M, BLOCK_D)
    return tl.sum(o_tile.to(tl.float32) * P_SCALE * do.to(tl.float32), axis=1)


@triton.jit
def add_to_dk_dv(k, v, dk, dv, q, do, o, lse2_ptr, delta_ptr, b, h, start_m, start_n, S_q, S_k, D, scale_log2,
                 stride_qs, stride_qd, stride_dos, stride_dod, stride_os, stride_od,
                 MASK: tl.constexpr, TMA: tl.constexpr, REUSE_DELTA: tl.constexpr, P_SCALE: tl.constexpr,
                 BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """backward.dkdv_step in base 2. k, v: [BLOCK_N, BLOCK_D], v times P_SCALE; q, do, o: on_head's. Returns dk, dv."""
    q_tile = load_rows(q, b, h, start_m, S_q, D, stride_qs, stride_qd, TMA, True, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    do_tile = load_rows(do, b, h, start_m, S_q, D, stride_dos, stride_dod, TMA, True, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    lse2 = tl.load(lse2_ptr + offs_m)  # [BLOCK_M]
    if REUSE_DELTA:
        delta = tl.load(delta_ptr + offs_m)  # [BLOCK_M]
    else:
        delta = row_sum_of_do_o(do_tile, o, b, h, start_m, S_q, D, stride_os, stride_od, TMA, P_SCALE, BLOCK_M, BLOCK_D)
    s_t = dot(k, tl.trans(q_tile), tl.zeros((k.shape[0], BLOCK_M), dtype=tl.float32))  # [BLOCK_N, BLOCK_M]
    dp_t = dot(v, tl.trans(do_tile), tl.zeros((k.shape[0], BLOCK_M), dtype=tl.float32))  # [BLOCK_N, BLOCK_M]
    if MASK:  # as in dkdv_step: 0 · NaN must not reach a key that the query may not see
        q_tile = tl.where((is_finite(delta) & is_finite(lse2))[:, None], q_tile, 0.0).to(q_tile.dtype)
    key = tl.arange(0, k.shape[0])[:, None]  # [BLOCK_N, 1], within this tile
    last_seen = (offs_m + (S_k - S_q - start_n))[None, :]  # [1, BLOCK_M]
    p_t, ds_t = p_and_ds2(s_t, dp_t, lse2[None, :], delta[None, :], scale_log2, key, last_seen, MASK)
    dv = dot(p_t.to(do_tile.dtype), do_tile, dv)  # (6.8)
    dk = dot(ds_t.to(q_tile.dtype), q_tile, dk)  # (6.12)
    return dk, dv


@triton.jit
def dkdv_kernel(
    q, k, v, do, o, lse2_ptr, delta_ptr, dk, dv, H_q, H_k, heads, heads_at_once, S_q, S_k, S_padded, D, scale, scale_log2,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_dob, stride_doh, stride_dos, stride_dod, stride_ob, stride_oh, stride_os, stride_od,
    stride_dkb, stride_dkh, stride_dks, stride_dkd,
    IS_CAUSAL: tl.constexpr, TMA: tl.constexpr, REUSE_DELTA: tl.constexpr, P_SCALE: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dk and dv as backward.dkdv_kernel gives them, in base 2.

    Glossary as in forward_kernel; heads = B · H_k, GROUP = H_q / H_k. q, do, o: (B, H_q, S_q, D); k, v, dk, dv: (B, H_k, S_k, D), dk and dv of
    one layout. lse2_ptr, delta_ptr: (B, H_q, S_padded), prepare_kernel's; o is read only without REUSE_DELTA. A causal key block is the longer
    the earlier it comes, so the programs' order is as it is. Grid: (ceil(S_k / BLOCK_N) · heads,).
    """
    batch_head, key_block = grouped_tile_device(tl.program_id(0), heads, tl.cdiv(S_k, BLOCK_N), heads_at_once)
    b, h_k = batch_head // H_k, batch_head % H_k
    k, v = on_head(k, b, h_k, stride_kb, stride_kh, TMA), on_head(v, b, h_k, stride_vb, stride_vh, TMA)
    dk, dv = on_head(dk, b, h_k, stride_dkb, stride_dkh, TMA), on_head(dv, b, h_k, stride_dkb, stride_dkh, TMA)
    start_n = key_block * BLOCK_N
    k_tile = load_rows(k, b, h_k, start_n, S_k, D, stride_ks, stride_kd, TMA, True, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    v_tile = load_rows(v, b, h_k, start_n, S_k, D, stride_vs, stride_vd, TMA, True, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    if P_SCALE != 1.0:
        v_tile = (v_tile.to(tl.float32) * P_SCALE).to(v_tile.dtype)
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)

    start, full = 0, 0  # queries: start … full − 1 with a mask, from full on without
    if IS_CAUSAL:  # (6.13)
        start = tl.maximum(start_n + S_q - S_k, 0) // BLOCK_M * BLOCK_M
        full = tl.cdiv(tl.maximum(tl.minimum(start_n + BLOCK_N, S_k) - 1 + S_q - S_k, 0), BLOCK_M) * BLOCK_M
    for member in tl.range(0, GROUP, num_stages=1):
        h = h_k * GROUP + member  # (7.4)
        q_head, do_head = on_head(q, b, h, stride_qb, stride_qh, TMA), on_head(do, b, h, stride_dob, stride_doh, TMA)
        o_head = on_head(o, b, h, stride_ob, stride_oh, TMA)
        lse2_head = lse2_ptr + (b * H_q + h).to(tl.int64) * S_padded
        delta_head = delta_ptr + (b * H_q + h).to(tl.int64) * S_padded
        for start_m in tl.range(full, S_q, BLOCK_M):
            dk_acc, dv_acc = add_to_dk_dv(
                k_tile, v_tile, dk_acc, dv_acc, q_head, do_head, o_head, lse2_head, delta_head, b, h, start_m, start_n, S_q, S_k, D,
                scale_log2, stride_qs, stride_qd, stride_dos, stride_dod, stride_os, stride_od,
                False, TMA, REUSE_DELTA, P_SCALE, BLOCK_M, BLOCK_D,
            )  # fmt: skip
        if IS_CAUSAL:
            for start_m in tl.range(start, tl.minimum(full, S_q), BLOCK_M):
                dk_acc, dv_acc = add_to_dk_dv(
                    k_tile, v_tile, dk_acc, dv_acc, q_head, do_head, o_head, lse2_head, delta_head, b, h, start_m, start_n, S_q, S_k, D,
                    scale_log2, stride_qs, stride_qd, stride_dos, stride_dod, stride_os, stride_od,
                    True, TMA, REUSE_DELTA, P_SCALE, BLOCK_M, BLOCK_D,
                )  # fmt: skip

    store_rows(dk, dk_acc * (scale / P_SCALE), b, h_k, start_n, S_k, D, stride_dks, stride_dkd, TMA, BLOCK_N, BLOCK_D)
    store_rows(dv, dv_acc, b, h_k, start_n, S_k, D, stride_dks, stride_dkd, TMA, BLOCK_N, BLOCK_D)


@triton.jit
def add_to_dq(q, do, lse2, delta, dq, k, v, b, h_k, start_n, last_seen, S_k, D, scale_log2, stride_ks, stride_kd, stride_vs, stride_vd,
              MASK: tl.constexpr, TMA: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """backward.dq_step in base 2. q, do: [BLOCK_M, BLOCK_D], do times P_SCALE; k, v: on_head's. Returns dq."""
    k_tile = load_rows(k, b, h_k, start_n, S_k, D, stride_ks, stride_kd, TMA, MASK, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    v_tile = load_rows(v, b, h_k, start_n, S_k, D, stride_vs, stride_vd, TMA, MASK, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    s = dot(q, tl.trans(k_tile), tl.zeros((q.shape[0], BLOCK_N), dtype=tl.float32))  # [BLOCK_M, BLOCK_N]
    dp = dot(do, tl.trans(v_tile), tl.zeros((q.shape[0], BLOCK_N), dtype=tl.float32))  # [BLOCK_M, BLOCK_N]
    if MASK:
        k_tile = finite_or_0(k_tile)
    key = start_n + tl.arange(0, BLOCK_N)[None, :]  # [1, BLOCK_N]
    _, ds = p_and_ds2(s, dp, lse2[:, None], delta[:, None], scale_log2, key, last_seen[:, None], MASK)
    return dot(ds.to(k_tile.dtype), k_tile, dq)  # (6.11)


@triton.jit
def dq_kernel(
    q, k, v, do, o, lse2_ptr, delta_ptr, dq, H_q, H_k, heads, heads_at_once, S_q, S_k, S_padded, D, scale, scale_log2,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_dob, stride_doh, stride_dos, stride_dod, stride_ob, stride_oh, stride_os, stride_od,
    stride_dqb, stride_dqh, stride_dqs, stride_dqd,
    IS_CAUSAL: tl.constexpr, TMA: tl.constexpr, REUSE_DELTA: tl.constexpr, P_SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dq as backward.dq_kernel gives it, in base 2. Glossary as in dkdv_kernel; heads = B · H_q; dq: (B, H_q, S_q, D).

    Programs in forward_kernel's order (8.4). Grid: (ceil(S_q / BLOCK_M) · heads,).
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    batch_head, row_block = grouped_tile_device(tl.program_id(0), heads, row_blocks, heads_at_once)
    if IS_CAUSAL:
        row_block = row_blocks - 1 - row_block
    b, h = batch_head // H_q, batch_head % H_q
    h_k = h // (H_q // H_k)
    q, do = on_head(q, b, h, stride_qb, stride_qh, TMA), on_head(do, b, h, stride_dob, stride_doh, TMA)
    k, v = on_head(k, b, h_k, stride_kb, stride_kh, TMA), on_head(v, b, h_k, stride_vb, stride_vh, TMA)
    dq = on_head(dq, b, h, stride_dqb, stride_dqh, TMA)

    start_m = row_block * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    rows = batch_head.to(tl.int64) * S_padded + offs_m  # [BLOCK_M]
    q_tile = load_rows(q, b, h, start_m, S_q, D, stride_qs, stride_qd, TMA, True, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    do_tile = load_rows(do, b, h, start_m, S_q, D, stride_dos, stride_dod, TMA, True, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    lse2 = tl.load(lse2_ptr + rows)  # [BLOCK_M]
    if REUSE_DELTA:
        delta = tl.load(delta_ptr + rows)  # [BLOCK_M]
    else:
        o_head = on_head(o, b, h, stride_ob, stride_oh, TMA)
        delta = row_sum_of_do_o(do_tile, o_head, b, h, start_m, S_q, D, stride_os, stride_od, TMA, P_SCALE, BLOCK_M, BLOCK_D)
    if P_SCALE != 1.0:
        do_tile = (do_tile.to(tl.float32) * P_SCALE).to(do_tile.dtype)
    dq_acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    full, end = S_k // BLOCK_N * BLOCK_N, S_k
    last_seen = tl.zeros((BLOCK_M,), dtype=tl.int32) + (S_k - 1)  # [BLOCK_M]
    if IS_CAUSAL:  # (4.6)
        full = tl.maximum(start_m + 1 + S_k - S_q, 0) // BLOCK_N * BLOCK_N
        end = tl.maximum(tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q, 0)
        last_seen = offs_m + (S_k - S_q)
    TAIL_STAGES: tl.constexpr = None if IS_CAUSAL else 1  # as in forward_rows
    for start_n in tl.range(0, full, BLOCK_N):
        dq_acc = add_to_dq(q_tile, do_tile, lse2, delta, dq_acc, k, v, b, h_k, start_n, last_seen, S_k, D, scale_log2,
                           stride_ks, stride_kd, stride_vs, stride_vd, False, TMA, BLOCK_N, BLOCK_D)  # fmt: skip
    for start_n in tl.range(full, end, BLOCK_N, num_stages=TAIL_STAGES):
        dq_acc = add_to_dq(q_tile, do_tile, lse2, delta, dq_acc, k, v, b, h_k, start_n, last_seen, S_k, D, scale_log2,
                           stride_ks, stride_kd, stride_vs, stride_vd, True, TMA, BLOCK_N, BLOCK_D)  # fmt: skip
    store_rows(dq, dq_acc * (scale / P_SCALE), b, h, start_m, S_q, D, stride_dqs, stride_dqd, TMA, BLOCK_M, BLOCK_D)


# ---------------------------------------------------------------- steps


@dataclass(frozen=True)
class Step:
    """What a step of the tuning switches on. exp2: the kernels of this module, else those of chapters 5 and 7."""

    exp2: bool = True
    descriptors: bool = False
    order: bool = False
    reuse_delta: bool = True

    def heads_at_once(self, S_k: int) -> int:
        """Heads whose programs run side by side (8.4): as many as hold KEYS_AT_ONCE keys, at least 2, and at most 64: their row blocks are
        counted in int32."""
        return min(max(2, KEYS_AT_ONCE // S_k), 64) if self.order else 1


# Of 1 to 8 heads on an H200, 8 came first for causal S = 4,096, and 2 for S = 16,384 in one run of two: little more than the noise.
KEYS_AT_ONCE = 32_768
# In the order of the chapter: each adds one thing to the one before. "delta_twice" is "order" with one thing taken away.
STEPS = {
    "autotune": Step(exp2=False),
    "exp2": Step(),
    "descriptors": Step(descriptors=True),
    "order": Step(descriptors=True, order=True),
    "delta_twice": Step(descriptors=True, order=True, reuse_delta=False),
}
BEST = "order"

# ---------------------------------------------------------------- tiles

# As forward.CONFIGS: BLOCK_D to candidates, the smallest last, for cards with at least so many bytes of shared memory a block.
# 227 KB: for BLOCK_D = 64 and 128 the fastest of those tried on an H200. 99 KB: tiles that ptxas compiles without spills, or nearly, for every
# such card (fa_tutorial.compile_report); a card of capability 120 holds in registers what TMA brings, so its tiles are the smallest.
FORWARD_TILES = {
    232_448: {
        64: (TileConfig(64, 64, 4, 3), TileConfig(64, 128, 4, 2), TileConfig(128, 64, 4, 3), TileConfig(64, 64, 4, 2)),
        128: (
            TileConfig(128, 64, 4, 2),
            TileConfig(64, 64, 4, 3),
            TileConfig(128, 64, 8, 3),
            TileConfig(128, 64, 8, 2),
            TileConfig(64, 64, 4, 2),
        ),
        256: (TileConfig(128, 64, 8, 2), TileConfig(64, 64, 4, 2), TileConfig(64, 32, 4, 2)),
    },
    101_376: {
        64: (TileConfig(128, 64, 8, 3), TileConfig(64, 64, 4, 3)),
        128: (TileConfig(128, 64, 8, 2), TileConfig(64, 64, 8, 2)),
        256: (TileConfig(32, 64, 8, 1), TileConfig(32, 32, 8, 2)),
    },
}
DKDV_TILES = {
    232_448: {
        64: (TileConfig(64, 64, 4, 3), TileConfig(64, 64, 4, 2), TileConfig(32, 64, 4, 3)),
        128: (TileConfig(64, 64, 4, 2), TileConfig(32, 64, 4, 3)),
        256: (TileConfig(64, 64, 8, 1), TileConfig(32, 64, 8, 2)),
    },
    101_376: {
        64: (TileConfig(32, 64, 4, 1), TileConfig(64, 32, 4, 2)),
        128: (TileConfig(64, 32, 8, 2), TileConfig(32, 32, 8, 2)),
        256: (TileConfig(32, 16, 8, 1), TileConfig(16, 16, 8, 2)),
    },
}
DQ_TILES = {
    232_448: {
        64: (TileConfig(64, 64, 4, 3), TileConfig(128, 64, 8, 3), TileConfig(64, 64, 4, 2)),
        128: (TileConfig(128, 64, 8, 3), TileConfig(64, 64, 4, 2)),
        256: (TileConfig(128, 32, 8, 2), TileConfig(64, 32, 4, 3)),
    },
    101_376: {
        64: (TileConfig(128, 64, 8, 2), TileConfig(64, 64, 8, 2)),
        128: (TileConfig(32, 64, 8, 2), TileConfig(32, 32, 4, 2)),
        256: (TileConfig(16, 64, 8, 1), TileConfig(16, 32, 8, 1)),
    },
}
TILES = {"forward": FORWARD_TILES, "dkdv": DKDV_TILES, "dq": DQ_TILES}
MAX_BLOCK = 128  # of any tile's rows: S_q is padded to a multiple of it


def shared_bytes(kernel: str, tile: TileConfig, block_d: int, itemsize: int) -> int:
    """Bytes of shared memory that a block of `kernel` ("forward", "dkdv", "dq") asks for: what stays, and num_stages of what streams (8.2)."""
    if kernel == "forward":
        return tile.shared_bytes(block_d, itemsize)  # q; k and v
    held, streamed = {
        "dkdv": (2 * tile.block_n, 2 * tile.block_m),  # k and v; q and do
        "dq": (2 * tile.block_m, 2 * tile.block_n),  # q and do; k and v
    }[kernel]
    return block_d * itemsize * (held + tile.num_stages * streamed)


def repair_tile(tile: TileConfig) -> TileConfig:
    """repair_kernel's tile after a forward_kernel with `tile`: the same rows and columns, and a warp for 16 rows at least. Then each row meets the
    same blocks, and its sums are added up in the same order, so that the rows that need no repair keep their bits."""
    return TileConfig(tile.block_m, tile.block_n, max(tile.num_warps, tile.block_m // 16), 1)


@functools.cache
def candidates(kernel: str, D: int, itemsize: int, shared_memory: int | None) -> tuple[TileConfig, ...]:
    """The tiles of `kernel` for a card with `shared_memory` bytes a block, at least one; in the interpreter (None) there is one."""
    if shared_memory is None:
        return (forward.INTERPRETER_CONFIG,)
    block_d, by_memory = max(padded_d(D), 64), TILES[kernel]
    tiles = next((tiles for least, tiles in by_memory.items() if least <= shared_memory), by_memory[min(by_memory)])[block_d]
    return tuple(tile for tile in tiles if shared_bytes(kernel, tile, block_d, itemsize) <= shared_memory) or tiles[-1:]


Launch = Callable[[TileConfig], object]
_measured: dict[tuple, TileConfig] = {}
ROUNDS = 2


def fastest(kernel, tiles: Sequence[TileConfig], key: tuple, launch: Launch) -> TileConfig:
    """The tile with which launch(tile) takes least time; measured once for each `key`, and kept on disk beside Triton's compiled kernels.

    kernel: the jitted function that `launch` launches; a change of its source, of the tiles, of Triton or of the card measures again.
    While a CUDA graph is captured, or where memory does not suffice for it, nothing can be measured: there the first tile is taken.
    """
    if len(tiles) == 1:
        return tiles[0]
    key = (kernel.__name__, *key)
    if key not in _measured:
        if torch.cuda.is_current_stream_capturing():
            return tiles[0]
        try:
            _measured[key] = _from_disk_or_measured(kernel, tiles, key, launch)
        except torch.cuda.OutOfMemoryError:  # measuring asks for a buffer of its own; the call may do without
            return tiles[0]
    return _measured[key]


def _from_disk_or_measured(kernel, tiles: Sequence[TileConfig], key: tuple, launch: Launch) -> TileConfig:
    about = [triton.__version__, kernel.cache_key, key, [asdict(tile) for tile in tiles]]
    cache = get_cache_manager(hashlib.sha256(repr(about).encode()).hexdigest())
    stored = cache.get_file("tile.json")
    if stored is not None:
        with contextlib.suppress(OSError, ValueError, TypeError):  # what cannot be read is measured again, and written anew
            tile = TileConfig(**json.loads(Path(stored).read_text(encoding="utf-8")))
            if tile in tiles:
                return tile
    tile = min(tiles, key=_times(tiles, launch).get)
    cache.put(json.dumps(asdict(tile)), "tile.json", binary=False)
    return tile


def _times(tiles: Sequence[TileConfig], launch: Launch) -> dict[TileConfig, float]:
    """Each tile's milliseconds: the least of ROUNDS medians, taken in turns, for the first to be measured meets a cold GPU."""
    times = dict.fromkeys(tiles, math.inf)
    for _ in range(ROUNDS):
        for tile in tiles:
            times[tile] = min(times[tile], _time(launch, tile))
    return times


def _time(launch: Launch, tile: TileConfig) -> float:
    """Milliseconds of launch(tile); infinite where the card has not enough shared memory for it after all."""
    try:
        return triton.testing.do_bench(lambda: launch(tile), warmup=25, rep=50, return_mode="median")
    except triton.runtime.errors.OutOfResources:
        return math.inf


def bucket(S: int) -> int:
    """Lengths that share a measurement: up to the next power of two, at least 256, at most 16,384."""
    return min(max(1 << (S - 1).bit_length(), 256), 16_384)


# ---------------------------------------------------------------- launching


def reachable(x: torch.Tensor) -> bool:
    """True where a descriptor can hold the (B, H, S, D) tensor: aligned to 16 bytes, rows and heads too, D of stride 1, nothing expanded."""
    return x.data_ptr() % 16 == 0 and _spaced(x.shape, x.stride(), x.element_size())


@functools.lru_cache(maxsize=1024)
def _spaced(shape: torch.Size, strides: tuple[int, ...], itemsize: int) -> bool:
    """The part of reachable that many tensors share."""
    spaced = all(stride > 0 and stride * itemsize % 16 == 0 for size, stride in zip(shape[:3], strides[:3], strict=True) if size > 1)
    return spaced and strides[3] == 1


def can_use_tma(*tensors: torch.Tensor) -> bool:
    """True where the card has TMA and it can move all of the tensors."""
    return card_of(tensors[0]).capability >= TMA_CAPABILITY and all(map(reachable, tensors))


def box(shape: Sequence[int], strides: Sequence[int], rows: int) -> tuple[list[int], list[int], list[int]]:
    """What a descriptor says of a reachable (B, H, S, D) tensor: shape, strides, and tiles of `rows` rows of one head, D padded to BLOCK_D."""
    spaced = [stride if size > 1 else 16 for size, stride in zip(shape[:3], strides[:3], strict=True)]
    return list(shape), [*spaced, 1], [1, 1, rows, padded_d(shape[3])]


def descriptor(x: torch.Tensor, rows: int) -> TensorDescriptor:
    """A descriptor of a reachable (B, H, S, D) tensor, for tiles of `rows` rows of one head."""
    return over(x, _blank(x.shape, x.stride(), x.dtype, rows))


@functools.lru_cache(maxsize=1024)
def _blank(shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype, rows: int) -> TensorDescriptor:
    return TensorDescriptor(torch.empty(0, dtype=dtype), *box(shape, strides, rows))


def over(x: torch.Tensor, blank):
    """The descriptor `blank` over x's memory. Making one anew would check once more what this shape and these strides have passed, which takes
    ten times as long; a launch needs four to eight."""
    made = object.__new__(type(blank))
    vars(made).update(vars(blank), base=x)
    return made


@dataclass(frozen=True)
class Card:
    """What decides how a launch looks. shared_memory: bytes a block; None stands for the interpreter."""

    name: str
    capability: int
    shared_memory: int | None


@functools.cache
def card(index: int | None) -> Card:
    """The GPU with this index, or for None the interpreter, which takes descriptors too. Asked once: a question to the driver takes longer
    than a launch."""
    if index is None:
        return Card("interpreter", TMA_CAPABILITY, None)
    with torch.cuda.device(index):
        return Card(torch.cuda.get_device_name(), capability(), shared_memory_limit())


def card_of(x: torch.Tensor) -> Card:
    """The card on which kernels run on x: x's GPU, or the interpreter where it is on, also for a tensor that lies on a GPU."""
    return card(None if INTERPRETED.value else x.device.index)


def applies(q: torch.Tensor, scale: float) -> bool:
    """True where this module's kernels take the input: fp16 or bf16, a positive scale, a card with tensor cores.

    scale · log₂ e has to be a normal float32: 0 or inf times a score of −inf would be NaN.
    """
    return q.dtype != torch.float32 and LEAST_SCALE <= scale <= MOST_SCALE and card_of(q).capability >= TENSOR_CORE_CAPABILITY


def kind(q: torch.Tensor, k: torch.Tensor, is_causal: bool, step: str) -> tuple:
    """What calls have in common that share a measurement. Equal cards are one: their bits are equal as long as their tiles are."""
    return card_of(q).name, padded_d(q.shape[3]), q.dtype, is_causal, bucket(q.shape[2]), bucket(k.shape[2]), step


def flash_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False, scale: float | None = None,
    *, step: str = BEST, tile: TileConfig | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """forward.flash_forward, tuned up to `step`, one of STEPS. Same arguments, results and errors; ValueError for another step.

    tile: None takes the fastest, which the first call of a kind measures.
    """
    scale, is_causal = check_attention(q, k, v, scale, max_d=MAX_D), check_flag("is_causal", is_causal)
    how = check_step(step)
    require_kernel_device(q, "q")
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    if not (q.numel() and k.numel()) or not applies(q, scale):
        return forward.flash_forward(q, k, v, is_causal, scale)
    with on_device_of(q):
        tiles = candidates("forward", D, q.element_size(), card_of(q).shared_memory) if tile is None else (tile,)
        key = kind(q, k, is_causal, step)
        if not how.exp2:
            tile = fastest(
                forward.flash_forward_kernel, tiles, key, lambda tile: forward.flash_forward(q, k, v, is_causal, scale, config=tile)
            )
            return forward.flash_forward(q, k, v, is_causal, scale, config=tile)
        o = torch.empty_like(q, memory_format=torch.contiguous_format)
        lse = torch.empty((B, H_q, S_q), dtype=torch.float32, device=q.device)
        tma = how.descriptors and can_use_tma(q, k, v, o)

        strides = (*q.stride(), *k.stride(), *v.stride(), *o.stride())
        constants = {"IS_CAUSAL": is_causal, "SHIFT": round(-math.log2(p_scale(q.dtype))), "BLOCK_D": padded_d(D)}

        def launch(tile: TileConfig) -> None:
            M, N = tile.block_m, tile.block_n
            on_rows = [descriptor(x, rows) if tma else x for x, rows in ((q, M), (k, N), (v, N), (o, M))]
            forward_kernel[(-(-S_q // M) * B * H_q,)](
                *on_rows, lse, H_q, H_k, B * H_q, how.heads_at_once(S_k), S_q, S_k, D, scale * LOG2_E, *strides,
                TMA=tma, BLOCK_M=M, BLOCK_N=N, num_warps=tile.num_warps, num_stages=tile.num_stages, **constants,
            )  # fmt: skip
            repair(q, k, v, o, lse, is_causal, scale, repair_tile(tile))

        launch(fastest(forward_kernel, tiles, (*key, tma), launch))
    return o, lse


def repair(q, k, v, o, lse, is_causal: bool, scale: float, tile: TileConfig, last_first: bool = False) -> None:
    """Compute in place the row blocks of o and lse once more in which lse holds a NaN, by repair_kernel with `tile`. scale: positive."""
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    repair_kernel[(-(-S_q // REPAIR_ROWS.value) * B * H_q,)](
        q, k, v, o, lse, H_q, H_k, S_q, S_k, D, scale * LOG2_E, *q.stride(), *k.stride(), *v.stride(), *o.stride(),
        IS_CAUSAL=is_causal, LAST_FIRST=last_first, SHIFT=round(-math.log2(p_scale(q.dtype))),
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_D=padded_d(D), num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip


def flash_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, do: torch.Tensor, lse: torch.Tensor,
    is_causal: bool = False, scale: float | None = None, *, dlse: torch.Tensor | None = None,
    needs: tuple[bool, bool, bool] = (True, True, True), step: str = BEST, config: BackwardConfig | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """backward.flash_backward, tuned up to `step`, one of STEPS. Same arguments, results and errors; ValueError for another step."""
    scale, is_causal = check_attention(q, k, v, scale, max_d=MAX_D), check_flag("is_causal", is_causal)
    how = check_step(step)
    backward.check_outputs(q, o, do, lse, dlse)
    require_kernel_device(q, "q")
    if not (q.numel() and k.numel()) or not applies(q, scale):
        return backward.flash_backward(q, k, v, o, do, lse, is_causal, scale, dlse=dlse, needs=needs)
    with on_device_of(q):
        if not how.exp2:
            return _autotuned_backward(q, k, v, o, do, lse, is_causal, scale, dlse, needs)
        rows_aligned = q.shape[3] * q.element_size() % 16 == 0  # those of dk and dv, which will be contiguous
        tma = how.descriptors and rows_aligned and can_use_tma(q, k, v, o)
        if tma and not reachable(do):
            do = do.clone(memory_format=torch.contiguous_format)  # o.sum() sends strides of 0
        if config is not None and max(config.dkdv.block_m, config.dq.block_m) > MAX_BLOCK:
            raise ValueError(f"block_m must be at most {MAX_BLOCK}: delta and lse2 are padded to a multiple of that; got {config}")
        case = Backward(q, k, v, o, do, lse, dlse, is_causal, scale, how, step, tma)
        dk, dv = case.dk_and_dv(config and config.dkdv) if needs[1] or needs[2] else (None, None)
        dq = case.dq(config and config.dq) if needs[0] else None
    return dq, dk if needs[1] else None, dv if needs[2] else None


def check_step(step: str) -> Step:
    """The step of STEPS with this name; ValueError that lists them for another."""
    return STEPS[check_name("step", step, STEPS)]


def _autotuned_backward(q, k, v, o, do, lse, is_causal, scale, dlse, needs):
    """backward.flash_backward with the fastest tiles."""

    def run(dkdv: TileConfig, dq: TileConfig, needs: tuple[bool, bool, bool]):
        return backward.flash_backward(
            q, k, v, o, do, lse, is_causal, scale, dlse=dlse, needs=needs, config=BackwardConfig(dkdv, dq)
        )  # fmt: skip

    key = kind(q, k, is_causal, "autotune")
    tiles = {kernel: candidates(kernel, q.shape[3], q.element_size(), card_of(q).shared_memory) for kernel in ("dkdv", "dq")}
    dkdv = fastest(backward.dkdv_kernel, tiles["dkdv"], key, lambda tile: run(tile, tile, (False, True, True)))
    dq = fastest(backward.dq_kernel, tiles["dq"], key, lambda tile: run(tile, tile, (True, False, False)))
    return run(dkdv, dq, needs)


class Backward:
    """One backward: what its kernels share, delta and lse2 among it, computed as it is made."""

    def __init__(self, q, k, v, o, do, lse, dlse, is_causal: bool, scale: float, how: Step, step: str, tma: bool):
        self.q, self.k, self.v, self.o, self.do = q, k, v, o, do
        self.scale, self.tma, self.how = scale, tma, how
        (self.B, self.H_q, self.S_q, self.D), (self.H_k, self.S_k) = q.shape, k.shape[1:3]
        self.strides = (*q.stride(), *k.stride(), *v.stride(), *do.stride(), *o.stride())
        self.S_padded = -(-self.S_q // MAX_BLOCK) * MAX_BLOCK
        self.delta, self.lse2 = self.prepare(lse, dlse)
        self.key = (*kind(q, k, is_causal, step), tma)
        self.constants = {
            "IS_CAUSAL": is_causal, "TMA": tma, "REUSE_DELTA": how.reuse_delta or dlse is not None, "P_SCALE": p_scale(q.dtype),
            "BLOCK_D": padded_d(self.D),
        }  # fmt: skip

    def prepare(self, lse, dlse) -> tuple[torch.Tensor, torch.Tensor]:
        """delta and lse2, (B, H_q, S_padded) float32."""
        delta, lse2 = (torch.empty((self.B, self.H_q, self.S_padded), dtype=torch.float32, device=self.q.device) for _ in range(2))
        block_d = padded_d(self.D)
        block_m = DELTA_ELEMENTS // block_d
        unused = lse if dlse is None else dlse
        prepare_kernel[(-(-self.S_padded // block_m) * self.B * self.H_q,)](
            self.o, self.do, lse, unused, delta, lse2, self.H_q, self.S_q, self.S_padded, self.D,
            *self.o.stride(), *self.do.stride(), *unused.stride(),
            HAS_DLSE=dlse is not None, P_SCALE=p_scale(self.q.dtype), BLOCK_M=block_m, BLOCK_D=block_d,
        )  # fmt: skip
        return delta, lse2

    def rows(self, x: torch.Tensor, rows: int):
        return descriptor(x, rows) if self.tma else x

    def launch(
        self, kernel, grid: int, tile: TileConfig, outputs: Sequence[torch.Tensor], rows_out: int, heads: int, at_once: int, **constants
    ):
        M, N = tile.block_m, tile.block_n
        q, k, v, do, o = (self.rows(x, rows) for x, rows in ((self.q, M), (self.k, N), (self.v, N), (self.do, M), (self.o, M)))
        kernel[(grid,)](
            q, k, v, do, o, self.lse2, self.delta, *(self.rows(x, rows_out) for x in outputs),
            self.H_q, self.H_k, heads, at_once, self.S_q, self.S_k, self.S_padded, self.D, self.scale, self.scale * LOG2_E,
            *self.strides, *outputs[0].stride(),
            BLOCK_M=M, BLOCK_N=N, num_warps=tile.num_warps, num_stages=tile.num_stages, **self.constants, **constants,
        )  # fmt: skip

    def dk_and_dv(self, tile: TileConfig | None) -> tuple[torch.Tensor, torch.Tensor]:
        dk, dv = (torch.empty_like(self.k, memory_format=torch.contiguous_format) for _ in range(2))
        group = self.H_q // self.H_k

        def launch(tile: TileConfig) -> None:
            blocks = -(-self.S_k // tile.block_n) * self.B * self.H_k
            self.launch(
                dkdv_kernel, blocks, tile, (dk, dv), tile.block_n, self.B * self.H_k, 1, GROUP=group
            )  # in order (8.4) it is no faster

        launch(self.tile("dkdv", dkdv_kernel, tile, (group,), launch))
        return dk, dv

    def dq(self, tile: TileConfig | None) -> torch.Tensor:
        dq = torch.empty_like(self.q, memory_format=torch.contiguous_format)

        def launch(tile: TileConfig) -> None:
            blocks = -(-self.S_q // tile.block_m) * self.B * self.H_q
            self.launch(dq_kernel, blocks, tile, (dq,), tile.block_m, self.B * self.H_q, self.how.heads_at_once(self.S_k))

        launch(self.tile("dq", dq_kernel, tile, (), launch))
        return dq

    def tile(self, name: str, kernel, tile: TileConfig | None, key: tuple, launch: Launch) -> TileConfig:
        if tile is not None:
            return tile
        return fastest(kernel, candidates(name, self.D, self.q.element_size(), card_of(self.q).shared_memory), (*self.key, *key), launch)
