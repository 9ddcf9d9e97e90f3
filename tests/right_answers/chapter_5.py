"""Right answers to chapter 5 in other words: clamped and transposed loads, keys from the end and −1e30 for −inf, two loops and exp2, a state (lse, o)."""

from fa_tutorial.matmul import tl, triton

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def tile_from_a_clamped_pointer(
    x_ptr, out_ptr, H, S, D, stride_xb, stride_xh, stride_xs, stride_xd, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Rows and columns past the end read the last one, and are set to 0 afterwards."""
    pid = tl.program_id(0)
    row_blocks = (S + BLOCK_M - 1) // BLOCK_M
    b = pid // (row_blocks * H)
    h = pid // row_blocks - b * H
    s = (pid - pid // row_blocks * row_blocks) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    d = tl.arange(0, BLOCK_D)[None, :]
    x = tl.load(x_ptr + b * stride_xb + h * stride_xh + tl.minimum(s, S - 1) * stride_xs + tl.minimum(d, D - 1) * stride_xd)
    x = tl.where((s < S) & (d < D), x, 0.0)
    tl.store(out_ptr + pid * BLOCK_M * BLOCK_D + tl.arange(0, BLOCK_M)[:, None] * BLOCK_D + d, x)


@triton.jit
def tile_loaded_transposed(
    x_ptr, out_ptr, H, S, D, stride_xb, stride_xh, stride_xs, stride_xd, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr
):
    pid = tl.program_id(0)
    row_block, batch_head = pid % tl.cdiv(S, BLOCK_M), pid // tl.cdiv(S, BLOCK_M)
    x_ptr += batch_head // H * stride_xb + batch_head % H * stride_xh
    s = row_block * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    d = tl.arange(0, BLOCK_D)[:, None]
    x_t = tl.load(x_ptr + d * stride_xd + s * stride_xs, mask=(d < D) & (s < S), other=0.0)
    lanes = tl.arange(0, BLOCK_M * BLOCK_D)
    tl.store(out_ptr + pid * BLOCK_M * BLOCK_D + lanes, tl.reshape(tl.trans(x_t), (BLOCK_M * BLOCK_D,)))


@triton.jit
def _widened(x):
    """The interpreter's dot is exact for float32 alone in every version, and fp16 products are exact in float32."""
    return x.to(tl.float32)


@triton.jit
def flash_last_tile_first(
    q_ptr, k_ptr, v_ptr, o_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Keys from the last tile to the first; p is masked rather than s; o is divided at every step, as FA1 does."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    b, h = tl.program_id(0) // row_blocks // H, tl.program_id(0) // row_blocks % H
    offs_m = tl.program_id(0) % row_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    rows = offs_m[:, None] % S_q
    q = tl.load(q_ptr + b * stride_qb + h * stride_qh + rows * stride_qs + offs_d[None, :] * stride_qd, mask=offs_d[None, :] < D, other=0.0)
    m = tl.full((BLOCK_M,), -1e30, tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    o = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for step in range(tl.cdiv(S_k, BLOCK_N)):
        offs_n = (tl.cdiv(S_k, BLOCK_N) - 1 - step) * BLOCK_N + tl.arange(0, BLOCK_N)
        k_t = tl.load(k_ptr + b * stride_kb + h * stride_kh + offs_d[:, None] * stride_kd + offs_n[None, :] * stride_ks,
                      mask=(offs_d[:, None] < D) & (offs_n[None, :] < S_k), other=0.0)  # fmt: skip
        v = tl.load(v_ptr + b * stride_vb + h * stride_vh + offs_n[:, None] * stride_vs + offs_d[None, :] * stride_vd,
                    mask=(offs_d[None, :] < D) & (offs_n[:, None] < S_k), other=0.0)  # fmt: skip
        there = offs_n[None, :] < S_k
        s = tl.where(there, scale * tl.dot(_widened(q), _widened(k_t), input_precision="ieee"), -1e30)
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.where(there, tl.exp(s - m_new[:, None]), 0.0)
        l_old = l * tl.exp(m - m_new)
        l = l_old + tl.sum(p, 1)
        o = (o * l_old[:, None] + tl.dot(p, _widened(v), input_precision="ieee")) / l[:, None]
        m = m_new
    tl.store(o_ptr + b * stride_ob + h * stride_oh + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od, o,
             mask=(offs_m[:, None] < S_q) & (offs_d[None, :] < D))  # fmt: skip


@triton.jit
def _causal_step(q, k_ptr, v_ptr, m, l, acc, start, offs_m, S_q, S_k, D, scale_log2, stride_ks, stride_kd, stride_vs, stride_vd,
                 MASK: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    offs_n, offs_d = start + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    there = (offs_n[:, None] < S_k) & (offs_d[None, :] < D)
    k = tl.load(k_ptr + offs_n[:, None] * stride_ks + offs_d[None, :] * stride_kd, mask=there, other=0.0)
    v = tl.load(v_ptr + offs_n[:, None] * stride_vs + offs_d[None, :] * stride_vd, mask=there, other=0.0)
    s = scale_log2 * tl.dot(_widened(q), tl.trans(_widened(k)), input_precision="ieee")
    if MASK:
        s = tl.where(offs_n[None, :] <= offs_m[:, None] + S_k - S_q, s, -float("inf"))
    m_new = tl.maximum(m, tl.max(s, 1))
    shift = tl.maximum(m_new, -1e30)
    p = tl.exp2(s - shift[:, None])
    alpha = tl.exp2(m - shift)
    acc = acc * alpha[:, None] + tl.dot(p, _widened(v), input_precision="ieee")
    return m_new, l * alpha + tl.sum(p, 1), acc


@triton.jit
def causal_two_loops(
    q_ptr, k_ptr, v_ptr, o_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One loop over whole tiles, without a mask, one over those that the diagonal crosses; exp2."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block = tl.program_id(0) % row_blocks
    b, h = tl.program_id(0) // row_blocks // H, tl.program_id(0) // row_blocks % H
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    offs_m, offs_d = row_block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    inside = (offs_m[:, None] < S_q) & (offs_d[None, :] < D)
    q = tl.load(q_ptr + b * stride_qb + h * stride_qh + offs_m[:, None] * stride_qs + offs_d[None, :] * stride_qd, mask=inside, other=0.0)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    first = tl.maximum(row_block * BLOCK_M + 1 + S_k - S_q, 0) // BLOCK_N * BLOCK_N
    for start in range(0, first, BLOCK_N):
        m, l, acc = _causal_step(q, k_ptr, v_ptr, m, l, acc, start, offs_m, S_q, S_k, D, scale * LOG2_E,
                                 stride_ks, stride_kd, stride_vs, stride_vd, False, BLOCK_N, BLOCK_D)  # fmt: skip
    for start in range(first, tl.minimum((row_block + 1) * BLOCK_M + S_k - S_q, S_k), BLOCK_N):
        m, l, acc = _causal_step(q, k_ptr, v_ptr, m, l, acc, start, offs_m, S_q, S_k, D, scale * LOG2_E,
                                 stride_ks, stride_kd, stride_vs, stride_vd, True, BLOCK_N, BLOCK_D)  # fmt: skip
    o = tl.where(m[:, None] == -float("inf"), 0.0, acc / tl.maximum(l, 1e-30)[:, None])
    tl.store(o_ptr + b * stride_ob + h * stride_oh + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od, o, mask=inside)


@triton.jit
def gqa_keeping_the_lse_alone(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, H_q, H_k, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The state is (lse, o): each tile's own softmax is merged with what came before, weighted by exp of the two lse."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    b, h = tl.program_id(0) // row_blocks // H_q, tl.program_id(0) // row_blocks % H_q
    h_k = h // (H_q // H_k)
    offs_m = tl.program_id(0) % row_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    inside = (offs_m[:, None] < S_q) & (offs_d[None, :] < D)
    q = tl.load(q_ptr + b * stride_qb + h * stride_qh + offs_m[:, None] * stride_qs + offs_d[None, :] * stride_qd, mask=inside, other=0.0)
    lse = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    o = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, S_k, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        there = (offs_n[:, None] < S_k) & (offs_d[None, :] < D)
        k = tl.load(
            k_ptr + b * stride_kb + h_k * stride_kh + offs_n[:, None] * stride_ks + offs_d[None, :] * stride_kd, mask=there, other=0.0
        )
        v = tl.load(
            v_ptr + b * stride_vb + h_k * stride_vh + offs_n[:, None] * stride_vs + offs_d[None, :] * stride_vd, mask=there, other=0.0
        )
        s = tl.dot(_widened(q) * scale, tl.trans(_widened(k)), input_precision="ieee")
        s = tl.where(offs_n[None, :] < S_k, s, -float("inf"))
        m = tl.max(s, 1)
        p = tl.exp(s - m[:, None])
        l = tl.sum(p, 1)
        lse_tile = m + tl.log(l)
        top = tl.maximum(lse, lse_tile)
        lse_new = top + tl.log(tl.exp(lse - top) + tl.exp(lse_tile - top))
        o_tile = tl.dot(p / l[:, None], _widened(v), input_precision="ieee")
        o = o * tl.exp(lse - lse_new)[:, None] + o_tile * tl.exp(lse_tile - lse_new)[:, None]
        lse = lse_new
    tl.store(o_ptr + b * stride_ob + h * stride_oh + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od, o, mask=inside)
    tl.store(lse_ptr + (b * H_q + h) * S_q + offs_m, lse, mask=offs_m < S_q)


RIGHT_ANSWERS = (
    ("5.1", tile_from_a_clamped_pointer), ("5.1", tile_loaded_transposed),
    ("5.2", flash_last_tile_first), ("5.3", causal_two_loops), ("5.4", gqa_keeping_the_lse_alone),
)  # fmt: skip
