"""Right answers to chapter 8 in other words: a mask that is counted, byte counts tile by tile, base 2 and transposed tiles, other launches."""

import numpy as np
import torch

from fa_tutorial.backward import delta_kernel, dkdv_kernel, dq_kernel, row_delta
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import heads, padded_d
from fa_tutorial.tuned.autotuning import shared_bytes

LOG2_E = tl.constexpr(1.4426950408889634)


# ---------------------------------------------------------------- 8.1


def tflops_by_ratio(batch, heads, queries, keys, dim, causal, mode, time):
    mask = np.tril(np.ones((queries, keys)), keys - queries) if causal else np.ones((queries, keys))
    forward = 4 * batch * heads * dim * mask.sum()
    return {"fwd": 1.0, "bwd": 2.5, "fwd_bwd": 3.5}[mode] * forward * 1e-12 / time


def tflops_in_float32(B, H, S_q, S_k, D, is_causal, mode, seconds):
    seen = torch.ones(S_q, S_k).tril(S_k - S_q if is_causal else S_k).sum()
    matmuls = ("fwd" in mode) * 2 + ("bwd" in mode) * 5
    return torch.tensor(2.0 * matmuls * B * H * D) * seen / seconds / 1e12


# ---------------------------------------------------------------- 8.2


def fits_tile_by_tile(config, D, itemsize, shared_memory_limit):
    columns = 16
    while columns < D:
        columns *= 2
    q, k, v = (rows * columns * itemsize for rows in (config.block_m, config.block_n, config.block_n))
    return not q + config.num_stages * (k + v) > shared_memory_limit


def fits_by_the_package(config, D, itemsize, limit):
    return np.bool_(2 * limit - itemsize * shared_bytes("forward", config, max(triton.next_power_of_2(D), 16)) >= 0)


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


@triton.jit
def _rows(desc, b, h, start, ROWS: tl.constexpr, D: tl.constexpr):
    return desc.load([b, h, start, 0]).reshape([ROWS, D])


@triton.jit
def forward_two_loops(q_desc, k_desc, v_desc, o_desc, H, S_q, S_k, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr):
    """Whole tiles without a mask, then the ragged one with p masked; acc is normalised at every step."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    b, h = tl.program_id(0) // row_blocks // H, tl.program_id(0) // row_blocks % H
    start_m = tl.program_id(0) % row_blocks * BLOCK_M
    q = _rows(q_desc, b, h, start_m, BLOCK_M, D)
    lse = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    o = tl.zeros((BLOCK_M, D), tl.float32)
    whole = S_k // BLOCK_N * BLOCK_N
    for start_n in range(0, whole, BLOCK_N):
        s = scale * tl.dot(q, tl.trans(_rows(k_desc, b, h, start_n, BLOCK_N, D)), input_precision="ieee")
        high = tl.maximum(lse, tl.max(s, axis=1))
        p = tl.exp(s - high[:, None])
        share = tl.exp(lse - high)
        total = share + tl.sum(p, axis=1)
        v = _rows(v_desc, b, h, start_n, BLOCK_N, D)
        o = (o * share[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")) / total[:, None]
        lse = high + tl.log(total)
    if whole < S_k:
        there = whole + tl.arange(0, BLOCK_N)[None, :] < S_k
        s = scale * tl.dot(q, tl.trans(_rows(k_desc, b, h, whole, BLOCK_N, D)), input_precision="ieee")
        high = tl.maximum(lse, tl.max(tl.where(there, s, -float("inf")), axis=1))
        p = tl.where(there, tl.exp(tl.where(there, s, high[:, None]) - high[:, None]), 0.0)
        share = tl.exp(lse - high)
        total = share + tl.sum(p, axis=1)
        v = _rows(v_desc, b, h, whole, BLOCK_N, D)
        o = (o * share[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")) / total[:, None]
    o_desc.store([b, h, start_m, 0], o.to(o_desc.dtype).reshape([1, 1, BLOCK_M, D]))


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


def backward_by_names(q, k, v, o, do, lse, is_causal, scale):
    """Every argument by its name, grids as functions of the tile, delta like lse, gradients with the strides of views."""
    B, H_q, S_q, D = q.shape
    H_k, S_k = k.shape[1], k.shape[2]
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    if min(B, S_q, S_k) > 0:
        delta = torch.empty_like(lse)
        fixed = {"BLOCK_M": 16, "BLOCK_D": max(16, triton.next_power_of_2(D))}
        delta_kernel[lambda meta: (triton.cdiv(S_q, meta["BLOCK_M"]) * B * H_q,)](
            o=heads(o), do=heads(do), dlse_ptr=None, delta_ptr=delta, H_q=H_q, S_q=S_q, D=D, **fixed
        )
        shared = {"q": heads(q), "k": heads(k), "v": heads(v), "do": heads(do), "lse_ptr": lse, "delta_ptr": delta, "H_k": H_k, "S_q": S_q}
        shared |= {"S_k": S_k, "D": D, "scale": scale, "IS_CAUSAL": is_causal, "BLOCK_N": 32, "num_warps": 4, **fixed}
        dkdv_kernel[lambda meta: (triton.cdiv(S_k, meta["BLOCK_N"]) * B * H_k,)](dk=heads(dk), dv=heads(dv), GROUP=H_q // H_k, **shared)
        dq_kernel[lambda meta: (triton.cdiv(S_q, meta["BLOCK_M"]) * B * H_q,)](dq=heads(dq), H_q=H_q, **shared)
    return dq, dk, dv


RIGHT_ANSWERS = (
    ("8.1", tflops_by_ratio), ("8.1", tflops_in_float32),
    ("8.2", fits_tile_by_tile), ("8.2", fits_by_the_package),
    ("8.3", forward_transposed), ("8.3", forward_two_loops),
    ("8.4", backward_by_row_delta), ("8.4", backward_by_names),
)  # fmt: skip
