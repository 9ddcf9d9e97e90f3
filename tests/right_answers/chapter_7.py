"""Right answers to chapter 7 in other words: other axes for the tiles, exp2, one loop with a mask, two loops, options in a dict."""

import torch

from fa_tutorial.backward import flash_backward
from fa_tutorial.forward import flash_forward
from fa_tutorial.matmul import tl, triton

LOG2_E = tl.constexpr(1.4426950408889634)


# ---------------------------------------------------------------- 7.1


@triton.jit
def delta_in_two_steps(
    o_ptr, do_ptr, delta_ptr, H, S_q, D,
    stride_ob, stride_oh, stride_os, stride_od, stride_dob, stride_doh, stride_dos, stride_dod,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Transposed tiles, [columns, BLOCK_M], half of the columns at a time."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    b, h = tl.program_id(0) // row_blocks // H, tl.program_id(0) // row_blocks % H
    rows = (tl.program_id(0) % row_blocks * BLOCK_M + tl.arange(0, BLOCK_M))[None, :]
    delta = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, D, BLOCK_D // 2):
        cols = (start + tl.arange(0, BLOCK_D // 2))[:, None]
        inside = (rows < S_q) & (cols < D)
        o = tl.load(o_ptr + b * stride_ob + h * stride_oh + rows * stride_os + cols * stride_od, mask=inside, other=0.0)
        do = tl.load(do_ptr + b * stride_dob + h * stride_doh + rows * stride_dos + cols * stride_dod, mask=inside, other=0.0)
        delta += tl.sum(do.to(tl.float32) * o.to(tl.float32), axis=0)
    places = (b * H + h) * S_q + rows
    tl.store(delta_ptr + places, delta[None, :], mask=rows < S_q)


@triton.jit
def delta_with_clamped_rows(
    o_ptr, do_ptr, delta_ptr, H, S_q, D,
    stride_ob, stride_oh, stride_os, stride_od, stride_dob, stride_doh, stride_dos, stride_dod,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Rows past the end read the last one; columns past D are taken out of the product."""
    pid = tl.program_id(0)
    row_blocks = (S_q + BLOCK_M - 1) // BLOCK_M
    batch_head = pid // row_blocks
    b = batch_head // H
    h = batch_head - b * H
    rows = (pid - batch_head * row_blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    there = tl.minimum(rows, S_q - 1)[:, None]
    cols = tl.arange(0, BLOCK_D)[None, :]
    read = tl.minimum(cols, D - 1)
    o = tl.load(o_ptr + b * stride_ob + h * stride_oh + there * stride_os + read * stride_od).to(tl.float32)
    do = tl.load(do_ptr + b * stride_dob + h * stride_doh + there * stride_dos + read * stride_dod).to(tl.float32)
    tl.store(delta_ptr + batch_head * S_q + rows, tl.sum(tl.where(cols < D, o * do, 0.0), 1), mask=rows < S_q)


# ---------------------------------------------------------------- 7.2, 7.3


@triton.jit
def _widened(x):
    """The interpreter's dot is exact for float32 alone in every version, and fp16 products are exact in float32."""
    return x.to(tl.float32)


@triton.jit
def _matmul(a, b):
    return tl.dot(_widened(a), _widened(b), input_precision="ieee")


@triton.jit
def dkdv_queries_by_keys(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_dob, stride_doh, stride_dos, stride_dod,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One loop with one mask, from the first block that sees a key; p and ds are [BLOCK_M, BLOCK_N] and turned by tl.trans; exp2."""
    key_blocks = tl.cdiv(S_k, BLOCK_N)
    batch_head = tl.program_id(0) // key_blocks
    b, h = batch_head // H, batch_head % H
    first_key = tl.program_id(0) % key_blocks * BLOCK_N
    keys = (first_key + tl.arange(0, BLOCK_N))[:, None]
    cols = tl.arange(0, BLOCK_D)[None, :]
    there = (keys < S_k) & (cols < D)
    k = tl.load(k_ptr + b * stride_kb + h * stride_kh + keys * stride_ks + cols * stride_kd, mask=there, other=0.0)
    v = tl.load(v_ptr + b * stride_vb + h * stride_vh + keys * stride_vs + cols * stride_vd, mask=there, other=0.0)
    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    first = tl.maximum(first_key + S_q - S_k, 0) if IS_CAUSAL else 0
    for start in range(first // BLOCK_M * BLOCK_M, S_q, BLOCK_M):
        rows = (start + tl.arange(0, BLOCK_M))[:, None]
        inside = (rows < S_q) & (cols < D)
        q = tl.load(q_ptr + b * stride_qb + h * stride_qh + rows * stride_qs + cols * stride_qd, mask=inside, other=0.0)
        do = tl.load(do_ptr + b * stride_dob + h * stride_doh + rows * stride_dos + cols * stride_dod, mask=inside, other=0.0)
        lse = tl.load(lse_ptr + batch_head * S_q + rows, mask=rows < S_q, other=0.0)
        delta = tl.load(delta_ptr + batch_head * S_q + rows, mask=rows < S_q, other=0.0)
        seen = (rows < S_q) & (tl.trans(keys) < S_k)
        if IS_CAUSAL:
            seen = seen & (rows - S_q >= tl.trans(keys) - S_k)
        p = tl.where(seen, tl.exp2(_matmul(q, tl.trans(k)) * (scale * LOG2_E) - lse * LOG2_E), 0.0)
        ds = tl.where(seen, p * (_matmul(do, tl.trans(v)) - delta) * scale, 0.0)
        dv += _matmul(tl.trans(p), do)
        dk += _matmul(tl.trans(ds), q)
    out = (batch_head * S_k + keys) * D + cols
    tl.store(dv_ptr + out, dv, mask=there)
    tl.store(dk_ptr + out, dk, mask=there)


@triton.jit
def dkdv_last_block_first(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_dob, stride_doh, stride_dos, stride_dod,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Transposed tiles; queries from the last block to the first that sees a key; k is scaled once; the mask goes into s."""
    key_blocks = tl.cdiv(S_k, BLOCK_N)
    key_block = tl.program_id(0) % key_blocks
    b, h = tl.program_id(0) // key_blocks // H, tl.program_id(0) // key_blocks % H
    keys, cols = key_block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    there = (keys[:, None] < S_k) & (cols[None, :] < D)
    k = tl.load(k_ptr + b * stride_kb + h * stride_kh + keys[:, None] * stride_ks + cols[None, :] * stride_kd, mask=there, other=0.0)
    v = tl.load(v_ptr + b * stride_vb + h * stride_vh + keys[:, None] * stride_vs + cols[None, :] * stride_vd, mask=there, other=0.0)
    k = _widened(k) * scale
    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    first = 0
    if IS_CAUSAL:
        first = tl.maximum(key_block * BLOCK_N - (S_k - S_q), 0)
    blocks = tl.cdiv(S_q - first, BLOCK_M)  # counted from `first` on, which need not be a multiple of BLOCK_M
    for step in range(blocks):
        rows = first + (blocks - 1 - step) * BLOCK_M + tl.arange(0, BLOCK_M)
        inside = (cols[:, None] < D) & (rows[None, :] < S_q)
        q_t = tl.load(q_ptr + b * stride_qb + h * stride_qh + cols[:, None] * stride_qd + rows[None, :] * stride_qs, mask=inside, other=0.0)
        do_t = tl.load(
            do_ptr + b * stride_dob + h * stride_doh + cols[:, None] * stride_dod + rows[None, :] * stride_dos, mask=inside, other=0.0
        )
        lse = tl.load(lse_ptr + (b * H + h) * S_q + rows, mask=rows < S_q, other=0.0)
        delta = tl.load(delta_ptr + (b * H + h) * S_q + rows, mask=rows < S_q, other=0.0)
        s_t = _matmul(k, q_t)
        if IS_CAUSAL:
            s_t = tl.where(keys[:, None] <= rows[None, :] + S_k - S_q, s_t, -float("inf"))
        p_t = tl.exp(s_t - tl.where(lse > -float("inf"), lse, 0.0)[None, :])
        dv += _matmul(p_t, tl.trans(do_t))
        dk += _matmul(p_t * _matmul(v, do_t) - p_t * delta[None, :], tl.trans(q_t))
    out = ((b * H + h) * S_k + keys[:, None]) * D + cols[None, :]
    tl.store(dk_ptr + out, dk * scale, mask=there)
    tl.store(dv_ptr + out, dv, mask=there)


@triton.jit
def dq_keys_by_queries(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_dob, stride_doh, stride_dos, stride_dod,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One loop over all keys, with one mask; transposed tiles; the sum is that of dqᵀ, and ds is scaled before it is summed."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    b, h = tl.program_id(0) // row_blocks // H, tl.program_id(0) // row_blocks % H
    rows, cols = tl.program_id(0) % row_blocks * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < S_q) & (cols[None, :] < D)
    q = tl.load(q_ptr + b * stride_qb + h * stride_qh + rows[:, None] * stride_qs + cols[None, :] * stride_qd, mask=inside, other=0.0)
    do = tl.load(do_ptr + b * stride_dob + h * stride_doh + rows[:, None] * stride_dos + cols[None, :] * stride_dod, mask=inside, other=0.0)
    lse = tl.load(lse_ptr + (b * H + h) * S_q + rows, mask=rows < S_q, other=0.0)[None, :]
    delta = tl.load(delta_ptr + (b * H + h) * S_q + rows, mask=rows < S_q, other=0.0)[None, :]
    dq_t = tl.zeros((BLOCK_D, BLOCK_M), tl.float32)
    for start in range(0, S_k, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)[:, None]
        there = (keys < S_k) & (cols[None, :] < D)
        k = tl.load(k_ptr + b * stride_kb + h * stride_kh + keys * stride_ks + cols[None, :] * stride_kd, mask=there, other=0.0)
        v = tl.load(v_ptr + b * stride_vb + h * stride_vh + keys * stride_vs + cols[None, :] * stride_vd, mask=there, other=0.0)
        seen = (keys < S_k) & (rows[None, :] < S_q)
        if IS_CAUSAL:
            seen = seen & (keys - S_k <= rows[None, :] - S_q)
        p_t = tl.where(seen, tl.exp2((scale * _matmul(k, tl.trans(q)) - lse) * LOG2_E), 0.0)
        ds_t = scale * p_t * (_matmul(v, tl.trans(do)) - delta)
        dq_t += _matmul(tl.trans(k), ds_t)
    tl.store(dq_ptr + ((b * H + h) * S_q + rows[:, None]) * D + cols[None, :], tl.trans(dq_t), mask=inside)


@triton.jit
def _dq_step(q, do, lse, delta, dq, k_ptr, v_ptr, start, rows, cols, S_q, S_k, D, scale, stride_ks, stride_kd, stride_vs, stride_vd,
             IS_CAUSAL: tl.constexpr, MASK: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    keys = start + tl.arange(0, BLOCK_N)
    there = (keys[:, None] < S_k) & (cols[None, :] < D)
    k = tl.load(k_ptr + keys[:, None] * stride_ks + cols[None, :] * stride_kd, mask=there, other=0.0)
    v = tl.load(v_ptr + keys[:, None] * stride_vs + cols[None, :] * stride_vd, mask=there, other=0.0)
    p = tl.exp(_matmul(q, tl.trans(k)) * scale - lse[:, None])
    if MASK:
        p = tl.where(keys[None, :] < S_k, p, 0.0)
        if IS_CAUSAL:
            p = tl.where(keys[None, :] <= rows[:, None] + S_k - S_q, p, 0.0)
    return dq + _matmul(p * (_matmul(do, tl.trans(v)) - delta[:, None]), k)


@triton.jit
def dq_two_loops(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_dob, stride_doh, stride_dos, stride_dod,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A loop over whole tiles without a mask, then one with it."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block = tl.program_id(0) % row_blocks
    b, h = tl.program_id(0) // row_blocks // H, tl.program_id(0) // row_blocks % H
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    rows, cols = row_block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < S_q) & (cols[None, :] < D)
    q = tl.load(q_ptr + b * stride_qb + h * stride_qh + rows[:, None] * stride_qs + cols[None, :] * stride_qd, mask=inside, other=0.0)
    do = tl.load(do_ptr + b * stride_dob + h * stride_doh + rows[:, None] * stride_dos + cols[None, :] * stride_dod, mask=inside, other=0.0)
    lse = tl.load(lse_ptr + (b * H + h) * S_q + rows, mask=rows < S_q, other=0.0)
    delta = tl.load(delta_ptr + (b * H + h) * S_q + rows, mask=rows < S_q, other=0.0)
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    whole, end = S_k // BLOCK_N * BLOCK_N, S_k
    if IS_CAUSAL:
        whole = tl.maximum(row_block * BLOCK_M + 1 + S_k - S_q, 0) // BLOCK_N * BLOCK_N
        end = tl.minimum((row_block + 1) * BLOCK_M + S_k - S_q, S_k)
    for start in range(0, whole, BLOCK_N):
        dq = _dq_step(q, do, lse, delta, dq, k_ptr, v_ptr, start, rows, cols, S_q, S_k, D, scale,
                      stride_ks, stride_kd, stride_vs, stride_vd, IS_CAUSAL, False, BLOCK_N)  # fmt: skip
    for start in range(whole, end, BLOCK_N):
        dq = _dq_step(q, do, lse, delta, dq, k_ptr, v_ptr, start, rows, cols, S_q, S_k, D, scale,
                      stride_ks, stride_kd, stride_vs, stride_vd, IS_CAUSAL, True, BLOCK_N)  # fmt: skip
    dq = tl.where(lse[:, None] == -float("inf"), 0.0, dq * scale)
    tl.store(dq_ptr + ((b * H + h) * S_q + rows[:, None]) * D + cols[None, :], dq, mask=inside)


# ---------------------------------------------------------------- 7.4


class RaisesByItself(torch.autograd.Function):
    """No decorator: backward refuses to run where a graph of it is wanted. do is made contiguous, which is not needed."""

    @staticmethod
    def forward(ctx, *args):
        o, lse = flash_forward(*args)
        ctx.save_for_backward(*args[:3], o, lse)
        ctx.settings = args[3:]
        return o

    @staticmethod
    def backward(ctx, do):
        if torch.is_grad_enabled():
            raise RuntimeError("differentiable once")
        q, k, v, o, lse = ctx.saved_tensors
        gradients = flash_backward(q, k, v, o, do.contiguous(), lse, None, *ctx.settings)
        return (*gradients, *[None] * len(ctx.settings))


RIGHT_ANSWERS = (
    ("7.1", delta_in_two_steps), ("7.1", delta_with_clamped_rows),
    ("7.2", dkdv_queries_by_keys), ("7.2", dkdv_last_block_first),
    ("7.3", dq_keys_by_queries), ("7.3", dq_two_loops),
    ("7.4", RaisesByItself),
)  # fmt: skip
