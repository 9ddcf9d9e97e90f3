"""Right answers to chapter 8 in other words: a mask that is counted, byte counts tile by tile, base 2 and transposed tiles, other launches."""

import numpy as np
import torch

from fa_tutorial.backward import dkdv_kernel, dq_kernel, row_delta
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import heads, padded_d

LOG2_E = tl.constexpr(1.4426950408889634)


# ---------------------------------------------------------------- 8.1


def tflops_by_ratio(batch, heads, queries, keys, dim, causal, mode, time):
    mask = np.tril(np.ones((queries, keys)), keys - queries) if causal else np.ones((queries, keys))
    forward = 4 * batch * heads * dim * mask.sum()
    return {"fwd": 1.0, "bwd": 2.5, "fwd_bwd": 3.5}[mode] * forward * 1e-12 / time


# ---------------------------------------------------------------- 8.2


def fits_tile_by_tile(config, D, itemsize, shared_memory_limit):
    columns = 16
    while columns < D:
        columns *= 2
    q, k, v = (rows * columns * itemsize for rows in (config.block_m, config.block_n, config.block_n))
    return not q + config.num_stages * (k + v) > shared_memory_limit


# ---------------------------------------------------------------- 8.3


@triton.jit
def forward_transposed(q_desc, k_desc, v_desc, o_desc, H, S_q, S_k, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr):
    """Scores as [BLOCK_N, BLOCK_M], in base 2, with a finite number for hidden keys; keys from the last tile to the first."""
    row_blocks = (S_q + BLOCK_M - 1) // BLOCK_M
    batch_head = tl.program_id(0) // row_blocks
    row = (tl.program_id(0) - batch_head * row_blocks) * BLOCK_M
    b = batch_head // H
    h = batch_head - b * H
    q = tl.reshape(q_desc.load([b, h, row, 0]), (BLOCK_M, D))
    m = tl.full((BLOCK_M,), -1e30, tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((D, BLOCK_M), tl.float32)
    tiles = tl.cdiv(S_k, BLOCK_N)
    for step in range(tiles):
        start = (tiles - 1 - step) * BLOCK_N
        k = tl.reshape(k_desc.load([b, h, start, 0]), (BLOCK_N, D))
        v = tl.reshape(v_desc.load([b, h, start, 0]), (BLOCK_N, D))
        s = tl.dot(k, tl.trans(q), input_precision="ieee") * (scale * LOG2_E)
        s = tl.where((tl.arange(0, BLOCK_N) < S_k - start)[:, None], s, -1e30)
        m_new = tl.maximum(m, tl.max(s, axis=0))
        p = tl.exp2(s - m_new[None, :])
        l = l * tl.exp2(m - m_new) + tl.sum(p, axis=0)
        acc = acc * tl.exp2(m - m_new)[None, :] + tl.dot(tl.trans(v), p.to(v.dtype), input_precision="ieee")
        m = m_new
    o_desc.store([b, h, row, 0], tl.reshape(tl.trans(acc / l[None, :]), (1, 1, BLOCK_M, D)).to(o_desc.dtype))


# ---------------------------------------------------------------- 8.4


def backward_by_row_delta(q, k, v, o, do, lse, is_causal, scale):
    """row_delta for delta; a tile for each kernel; dq before dk and dv; copies of the inputs, contiguous."""
    if q.numel() * k.numel() == 0:
        return tuple(torch.zeros_like(x) for x in (q, k, v))
    q, k, v, do = (x.contiguous() for x in (q, k, v, do))
    delta = row_delta(o, do)
    B, H_q, S_q, D = q.shape
    _, H_k, S_k, _ = k.shape
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    fixed = {"IS_CAUSAL": is_causal, "BLOCK_D": padded_d(D)}
    dq_kernel[(B * H_q * -(-S_q // 64),)](
        *map(heads, (q, k, v, do, dq)), lse, delta, H_q, H_k, S_q, S_k, D, scale, BLOCK_M=64, BLOCK_N=32, **fixed
    )
    dkdv_kernel[(B * H_k * -(-S_k // 64),)](
        *map(heads, (q, k, v, do, dk, dv)), lse, delta, H_k, S_q, S_k, D, scale, GROUP=H_q // H_k, BLOCK_M=32, BLOCK_N=64, **fixed
    )
    return dq, dk, dv


RIGHT_ANSWERS = (
    ("8.1", tflops_by_ratio),
    ("8.2", fits_tile_by_tile),
    ("8.3", forward_transposed),
    ("8.4", backward_by_row_delta),
)
