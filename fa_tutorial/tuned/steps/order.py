"""Chapter 8, the order of programs: those of several heads side by side, causal ones the longest first."""

from fa_tutorial.hardware import require_triton
from fa_tutorial.matmul import grouped_tile_device
from fa_tutorial.tiles import dot, load_tile, store_tile
from fa_tutorial.tuned.forward import LN_2, LOG2_E

triton = require_triton("Chapter 8 (fa_tutorial.tuned)")
import triton.language as tl  # noqa: E402

# fmt: off


@triton.jit
def softmax_step(s, m, l, scale_log2):
    m_new = tl.maximum(m, tl.max(s, axis=1) * scale_log2)  # [BLOCK_M]
    shift = tl.where(m_new == -float("inf"), 0.0, m_new)  # −inf − (−inf) would be NaN
    p = tl.exp2(s * scale_log2 - shift[:, None])  # [BLOCK_M, BLOCK_N]
    alpha = tl.exp2(m - shift)  # [BLOCK_M]
    return p, m_new, alpha * l + tl.sum(p, axis=1), alpha


@triton.jit
def attend(q_tile, k, v, m, l, acc, b, h_k, start_n, last_seen, S_k, D, scale_log2,
           MASK: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    k_tile = load_tile(k, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    s = dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N]
    if MASK:
        offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        s = tl.where(offs_n[None, :] <= last_seen[:, None], s, -float("inf"))
    p, m, l, alpha = softmax_step(s, m, l, scale_log2)
    acc = acc * alpha[:, None]  # [BLOCK_M, BLOCK_D]
    v_tile = load_tile(v, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    acc = dot(p.to(v_tile.dtype), v_tile, acc)
    return m, l, acc


@triton.jit
def flash_forward_kernel(q, k, v, o, lse_ptr, H_q, H_k, heads_at_once, S_q, S_k, D, scale,
                         IS_CAUSAL: tl.constexpr,
                         BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                         BLOCK_D: tl.constexpr):
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    batch_head = tl.program_id(0) // row_blocks
    row_block = tl.program_id(0) - batch_head * row_blocks
    if IS_CAUSAL:
        batch_head, row_block = grouped_tile_device(
            tl.program_id(0), tl.num_programs(0) // row_blocks, row_blocks, heads_at_once)
        row_block = row_blocks - 1 - row_block
    start_m = row_block * BLOCK_M
    b, h = batch_head // H_q, batch_head % H_q
    h_k = h // (H_q // H_k)

    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    scale_log2 = scale * LOG2_E
    last_seen = tl.full((BLOCK_M,), S_k - 1, dtype=tl.int32)  # [BLOCK_M]
    full_n, end_n = S_k // BLOCK_N * BLOCK_N, S_k
    if IS_CAUSAL:
        last_seen = offs_m + (S_k - S_q)
        full_n = tl.maximum(start_m + 1 + S_k - S_q, 0) // BLOCK_N * BLOCK_N
        end_n = tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q
    for start_n in range(0, full_n, BLOCK_N):
        m, l, acc = attend(q_tile, k, v, m, l, acc, b, h_k, start_n, last_seen, S_k, D, scale_log2,
                           False, BLOCK_N, BLOCK_D)
    for start_n in tl.range(full_n, end_n, BLOCK_N, num_stages=1):
        m, l, acc = attend(q_tile, k, v, m, l, acc, b, h_k, start_n, last_seen, S_k, D, scale_log2,
                           True, BLOCK_N, BLOCK_D)

    l_or_one = tl.where(l == 0.0, 1.0, l)
    store_tile(o, acc / l_or_one[:, None], b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)
    lse = tl.where(l == 0.0, -float("inf"), (m + tl.log2(l_or_one)) * LN_2)
    tl.store(lse_ptr + batch_head.to(tl.int64) * S_q + offs_m, lse, mask=offs_m < S_q)
