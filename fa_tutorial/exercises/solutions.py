"""Solutions of the exercises of chapters 5 and 7: the finished kernels of fa_tutorial.forward and backward, in the steps that lead to them.

B batch, H heads (H_q of queries, H_k of keys), S_q and S_k lengths, D head dimension, BLOCK_D its padding to a power of two; q, k, v, o and
any x lie by four strides each. s scaled scores, m running maximum, l running sum, p = exp(s − m), alpha = exp(m_old − m_new), acc the
unnormalised output. offs_m, offs_n, offs_d count rows of q, rows of k, and columns. seen: True where a query may see a key.
Backward: do, dq, dk, dv are the gradients of o, q, k, v, and of every tile likewise; delta = rowsum(do ∘ o); lse and delta are (B, H, S_q)
float32, contiguous, and dq, dk and dv contiguous too.
"""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

from fa_tutorial.backward import flash_backward
from fa_tutorial.exercises.pieces import load_lse, load_tile, p_and_ds, tl, triton
from fa_tutorial.forward import flash_forward
from fa_tutorial.tiles import dot


@triton.jit
def delta_kernel(
    o_ptr, do_ptr, delta_ptr, H, S_q, D,
    stride_ob, stride_oh, stride_os, stride_od, stride_dob, stride_doh, stride_dos, stride_dod,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """delta = rowsum(do ∘ o) (6.6). o_ptr, do_ptr: (B, H, S_q, D); delta_ptr: (B, H, S_q)."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = (batch_head // H).to(tl.int64), (batch_head % H).to(tl.int64)
    offs_m = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)  # [BLOCK_D]
    o = load_tile(o_ptr + b * stride_ob + h * stride_oh, offs_m, offs_d, S_q, D, stride_os, stride_od)  # [BLOCK_M, BLOCK_D]
    do = load_tile(do_ptr + b * stride_dob + h * stride_doh, offs_m, offs_d, S_q, D, stride_dos, stride_dod)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)  # [BLOCK_M]
    tl.store(delta_ptr + (b * H + h) * S_q + offs_m, delta, mask=offs_m < S_q)


@triton.jit
def dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_dob, stride_doh, stride_dos, stride_dod,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dv = pᵀ do (6.8) and dk = scale · dsᵀ q (6.12), with all tiles of scores as transposes, [BLOCK_N, BLOCK_M]."""
    key_blocks = tl.cdiv(S_k, BLOCK_N)
    key_block, batch_head = tl.program_id(0) % key_blocks, tl.program_id(0) // key_blocks
    b, h = (batch_head // H).to(tl.int64), (batch_head % H).to(tl.int64)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    do_ptr += b * stride_dob + h * stride_doh
    lse_ptr += (b * H + h) * S_q
    delta_ptr += (b * H + h) * S_q
    offs_n = key_block.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)  # [BLOCK_D]
    k = load_tile(k_ptr, offs_n, offs_d, S_k, D, stride_ks, stride_kd)  # [BLOCK_N, BLOCK_D]
    v = load_tile(v_ptr, offs_n, offs_d, S_k, D, stride_vs, stride_vd)  # [BLOCK_N, BLOCK_D]
    dk = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)

    start = 0
    if IS_CAUSAL:  # (6.13): the block of the first query that sees the first key
        start = tl.maximum(key_block * BLOCK_N + S_q - S_k, 0) // BLOCK_M * BLOCK_M
    for start_m in range(start, S_q, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M).to(tl.int64)  # [BLOCK_M]
        q = load_tile(q_ptr, offs_m, offs_d, S_q, D, stride_qs, stride_qd)  # [BLOCK_M, BLOCK_D]
        do = load_tile(do_ptr, offs_m, offs_d, S_q, D, stride_dos, stride_dod)  # [BLOCK_M, BLOCK_D]
        lse = load_lse(lse_ptr, offs_m, S_q)  # [BLOCK_M]
        delta = tl.load(delta_ptr + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
        s_t = scale * dot(k, tl.trans(q), tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32))  # [BLOCK_N, BLOCK_M]
        dp_t = dot(v, tl.trans(do), tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32))  # [BLOCK_N, BLOCK_M]
        last_seen = offs_m + (S_k - S_q)  # [BLOCK_M]
        p_t, ds_t = p_and_ds(s_t, dp_t, lse[None, :], delta[None, :], offs_n[:, None], last_seen[None, :], IS_CAUSAL)
        dv = dot(p_t.to(do.dtype), do, dv)  # [BLOCK_N, BLOCK_D]
        dk = dot(ds_t.to(q.dtype), q, dk)  # [BLOCK_N, BLOCK_D]

    out = ((b * H + h) * S_k + offs_n[:, None]) * D + offs_d[None, :]  # [BLOCK_N, BLOCK_D]
    mask = (offs_n[:, None] < S_k) & (offs_d[None, :] < D)
    tl.store(dk_ptr + out, (scale * dk).to(dk_ptr.dtype.element_ty), mask=mask)
    tl.store(dv_ptr + out, dv.to(dv_ptr.dtype.element_ty), mask=mask)


@triton.jit
def dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_dob, stride_doh, stride_dos, stride_dod,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dq = scale · ds k (6.11); a row that sees no key gets 0."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = (batch_head // H).to(tl.int64), (batch_head % H).to(tl.int64)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    do_ptr += b * stride_dob + h * stride_doh
    row = (b * H + h) * S_q
    offs_m = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)  # [BLOCK_D]
    q = load_tile(q_ptr, offs_m, offs_d, S_q, D, stride_qs, stride_qd)  # [BLOCK_M, BLOCK_D]
    do = load_tile(do_ptr, offs_m, offs_d, S_q, D, stride_dos, stride_dod)  # [BLOCK_M, BLOCK_D]
    lse = load_lse(lse_ptr + row, offs_m, S_q)  # [BLOCK_M]
    delta = tl.load(delta_ptr + row + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
    dq = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    end = S_k
    last_seen = tl.zeros((BLOCK_M,), dtype=tl.int64) + (S_k - 1)  # [BLOCK_M]
    if IS_CAUSAL:  # (4.6)
        end = tl.minimum((row_block + 1) * BLOCK_M, S_q) + S_k - S_q
        last_seen = tl.minimum(offs_m + (S_k - S_q), S_k - 1)
    for start_n in range(0, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)  # [BLOCK_N]
        k = load_tile(k_ptr, offs_n, offs_d, S_k, D, stride_ks, stride_kd)  # [BLOCK_N, BLOCK_D]
        v = load_tile(v_ptr, offs_n, offs_d, S_k, D, stride_vs, stride_vd)  # [BLOCK_N, BLOCK_D]
        s = scale * dot(q, tl.trans(k), tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32))  # [BLOCK_M, BLOCK_N]
        dp = dot(do, tl.trans(v), tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32))  # [BLOCK_M, BLOCK_N]
        _, ds = p_and_ds(s, dp, lse[:, None], delta[:, None], offs_n[None, :], last_seen[:, None], True)
        dq = dot(ds.to(k.dtype), k, dq)  # [BLOCK_M, BLOCK_D]

    dq_ptrs = dq_ptr + (row + offs_m[:, None]) * D + offs_d[None, :]  # [BLOCK_M, BLOCK_D]
    tl.store(dq_ptrs, (scale * dq).to(dq_ptr.dtype.element_ty), mask=(offs_m[:, None] < S_q) & (offs_d[None, :] < D))


class FlashAttention(torch.autograd.Function):
    """FlashAttention.apply(q, k, v, is_causal, scale) -> o, differentiable once. q, o: (B, H, S_q, D); k, v: (B, H, S_k, D)."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal, scale):
        o, lse = flash_forward(q, k, v, is_causal, scale)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal, ctx.scale = is_causal, scale
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        dq, dk, dv = flash_backward(q, k, v, o, do, lse, None, ctx.is_causal, ctx.scale)
        return dq, dk, dv, None, None
