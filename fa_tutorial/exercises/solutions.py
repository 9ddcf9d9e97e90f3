"""Solutions of chapter 5's exercises: the finished kernel of fa_tutorial.forward, taken apart into the four steps that lead to it.

B batch, H heads (H_q of queries, H_k of keys), S_q and S_k lengths, D head dimension, BLOCK_D its padding to a power of two; q, k, v, o and
any x lie by four strides each. s scaled scores, m running maximum, l running sum, p = exp(s − m), alpha = exp(m_old − m_new), acc the
unnormalised output. offs_m, offs_n, offs_d count rows of q, rows of k, and columns. seen: True where a query may see a key.
"""

from __future__ import annotations

from fa_tutorial.forward import load_tile, softmax_step
from fa_tutorial.matmul import dot, tl, triton


@triton.jit
def load_tile_kernel(x_ptr, out_ptr, H, S, D, stride_xb, stride_xh, stride_xs, stride_xd, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """out[pid] = the (BLOCK_M, D) tile of program pid, 0 beyond S and D. x_ptr: (B, H, S, D); out_ptr: (programs, BLOCK_M, BLOCK_D)."""
    pid = tl.program_id(0)
    row_blocks = tl.cdiv(S, BLOCK_M)
    row_block, batch_head = pid % row_blocks, pid // row_blocks
    b, h = (batch_head // H).to(tl.int64), (batch_head % H).to(tl.int64)
    offs_m = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D)  # [BLOCK_D]
    x_ptrs = x_ptr + b * stride_xb + h * stride_xh + offs_m[:, None] * stride_xs + offs_d[None, :].to(tl.int64) * stride_xd
    x = tl.load(x_ptrs, mask=(offs_m[:, None] < S) & (offs_d[None, :] < D), other=0.0)  # [BLOCK_M, BLOCK_D]
    rows = pid.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    tl.store(out_ptr + rows[:, None] * BLOCK_D + offs_d[None, :], x)


@triton.jit
def flash_forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """o = softmax(scale · q kᵀ) v, (4.1) to (4.4). q_ptr, o_ptr: (B, H, S_q, D); k_ptr, v_ptr: (B, H, S_k, D)."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = (batch_head // H).to(tl.int64), (batch_head % H).to(tl.int64)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    o_ptr += b * stride_ob + h * stride_oh
    offs_m = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)  # [BLOCK_D]
    q = load_tile(q_ptr, offs_m, offs_d, S_q, D, stride_qs, stride_qd, True, True)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    for start_n in range(0, S_k, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)  # [BLOCK_N]
        k_t = load_tile(k_ptr, offs_d, offs_n, D, S_k, stride_kd, stride_ks, True, True)  # [BLOCK_D, BLOCK_N]
        s = scale * dot(q, k_t, tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32))  # [BLOCK_M, BLOCK_N]
        s = tl.where(offs_n[None, :] < S_k, s, -float("inf"))  # a key that is not there must not count as a score of 0
        p, m, l, alpha = softmax_step(s, m, l)
        v = load_tile(v_ptr, offs_n, offs_d, S_k, D, stride_vs, stride_vd, True, True)  # [BLOCK_N, BLOCK_D]
        acc = dot(p.to(v.dtype), v, acc * alpha[:, None])  # [BLOCK_M, BLOCK_D]

    o_ptrs = o_ptr + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    tl.store(o_ptrs, (acc / l[:, None]).to(o_ptr.dtype.element_ty), mask=(offs_m[:, None] < S_q) & (offs_d[None, :] < D))


@triton.jit
def flash_forward_causal_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Query i sees keys 0 … i + S_k − S_q, (4.6); one that sees none gets o = 0. Shapes as in flash_forward_kernel."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = (batch_head // H).to(tl.int64), (batch_head % H).to(tl.int64)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    o_ptr += b * stride_ob + h * stride_oh
    offs_m = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)  # [BLOCK_D]
    q = load_tile(q_ptr, offs_m, offs_d, S_q, D, stride_qs, stride_qd, True, True)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    seen_by_last = tl.minimum((row_block + 1) * BLOCK_M, S_q) + S_k - S_q  # keys that the block's last row sees; none if negative
    for start_n in range(0, seen_by_last, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)  # [BLOCK_N]
        k_t = load_tile(k_ptr, offs_d, offs_n, D, S_k, stride_kd, stride_ks, True, True)  # [BLOCK_D, BLOCK_N]
        s = scale * dot(q, k_t, tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32))  # [BLOCK_M, BLOCK_N]
        seen = (offs_n[None, :] < S_k) & (offs_n[None, :] <= offs_m[:, None] + (S_k - S_q))
        s = tl.where(seen, s, -float("inf"))
        p, m, l, alpha = softmax_step(s, m, l)
        v = load_tile(v_ptr, offs_n, offs_d, S_k, D, stride_vs, stride_vd, True, True)  # [BLOCK_N, BLOCK_D]
        acc = dot(p.to(v.dtype), v, acc * alpha[:, None])  # [BLOCK_M, BLOCK_D]

    o = acc / tl.where(l == 0.0, 1.0, l)[:, None]  # a row that sees nothing has acc = 0 and l = 0
    o_ptrs = o_ptr + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=(offs_m[:, None] < S_q) & (offs_d[None, :] < D))


@triton.jit
def flash_forward_gqa_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, H_q, H_k, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """o and lse (4.5) with H_q query heads on H_k key heads. q_ptr, o_ptr: (B, H_q, S_q, D); k_ptr, v_ptr: (B, H_k, S_k, D).

    lse_ptr: (B, H_q, S_q) float32, contiguous. S_k = 0 gives o = 0 and lse = −inf.
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = (batch_head // H_q).to(tl.int64), (batch_head % H_q).to(tl.int64)
    h_k = h // (H_q // H_k)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h_k * stride_kh
    v_ptr += b * stride_vb + h_k * stride_vh
    o_ptr += b * stride_ob + h * stride_oh
    lse_ptr += (b * H_q + h) * S_q
    offs_m = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)  # [BLOCK_D]
    q = load_tile(q_ptr, offs_m, offs_d, S_q, D, stride_qs, stride_qd, True, True)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    for start_n in range(0, S_k, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)  # [BLOCK_N]
        k_t = load_tile(k_ptr, offs_d, offs_n, D, S_k, stride_kd, stride_ks, True, True)  # [BLOCK_D, BLOCK_N]
        s = scale * dot(q, k_t, tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32))  # [BLOCK_M, BLOCK_N]
        s = tl.where(offs_n[None, :] < S_k, s, -float("inf"))
        p, m, l, alpha = softmax_step(s, m, l)
        v = load_tile(v_ptr, offs_n, offs_d, S_k, D, stride_vs, stride_vd, True, True)  # [BLOCK_N, BLOCK_D]
        acc = dot(p.to(v.dtype), v, acc * alpha[:, None])  # [BLOCK_M, BLOCK_D]

    l_or_one = tl.where(l == 0.0, 1.0, l)
    o_ptrs = o_ptr + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    tl.store(o_ptrs, (acc / l_or_one[:, None]).to(o_ptr.dtype.element_ty), mask=(offs_m[:, None] < S_q) & (offs_d[None, :] < D))
    tl.store(lse_ptr + offs_m, m + tl.log(l_or_one), mask=offs_m < S_q)  # where l is 0, m is −inf, and so is lse
