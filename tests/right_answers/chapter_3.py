"""Right answers to chapter 3 in other words: padding, float64, other loops, offsets computed anew, `if` for min, pointers that move."""

import torch
import torch.nn.functional as F

from fa_tutorial.matmul import tl, triton


def blocked_by_padding(a, b, block_m, block_n, block_k):
    (M, K), N, dtype = a.shape, b.shape[1], a.dtype
    a = F.pad(a.double(), (0, -K % block_k, 0, -M % block_m))
    b = F.pad(b.double(), (0, -N % block_n, 0, -K % block_k))
    c = torch.zeros(len(a), b.shape[1], dtype=torch.float64)
    for m in range(0, len(a), block_m):
        for n in range(0, b.shape[1], block_n):
            for k in range(0, len(b), block_k):
                c[m : m + block_m, n : n + block_n] += a[m : m + block_m, k : k + block_k] @ b[k : k + block_k, n : n + block_n]
    return c[:M, :N].to(dtype)


@triton.jit
def kernel_with_offsets_computed_anew(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                                      BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    pid = tl.program_id(0)
    tiles_n = (N + BLOCK_N - 1) // BLOCK_N
    m = pid // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = (pid - pid // tiles_n * tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        k = step * BLOCK_K + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + m * stride_am + k[None, :] * stride_ak, mask=(m < M) & (k[None, :] < K), other=0.0)
        b = tl.load(b_ptr + k[:, None] * stride_bk + n * stride_bn, mask=(k[:, None] < K) & (n < N), other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + m * stride_cm + n * stride_cn, acc, mask=(m < M) & (n < N))


def tile_without_min(pid, tiles_m, tiles_n, group):
    first_row = pid // (group * tiles_n) * group
    rows = group
    if tiles_m < first_row + group:
        rows = tiles_m - first_row
    within = pid - first_row * tiles_n
    tile_n = within // rows
    return [first_row + within - tile_n * rows, tile_n]


@triton.jit
def skeleton_with_pointers_that_move(q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, stride_qs, stride_qd, stride_ks, stride_kd,
                                     stride_vs, stride_vd, stride_os, stride_od,
                                     BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """tl.trans, pointers that are advanced, one mask for k and v, and the scale at the end."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    q = tl.load(q_ptr + m[:, None] * stride_qs + d[None, :] * stride_qd, mask=(m[:, None] < S_q) & (d[None, :] < D), other=0.0)
    k_ptrs = k_ptr + n[:, None] * stride_ks + d[None, :] * stride_kd
    v_ptrs = v_ptr + n[:, None] * stride_vs + d[None, :] * stride_vd
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for step in range(tl.cdiv(S_k, BLOCK_N)):
        mask = (n[:, None] < S_k - step * BLOCK_N) & (d[None, :] < D)
        s = tl.dot(q, tl.trans(tl.load(k_ptrs, mask=mask, other=0.0)), input_precision="ieee")
        acc += tl.dot(s.to(q.dtype), tl.load(v_ptrs, mask=mask, other=0.0), input_precision="ieee")
        k_ptrs += BLOCK_N * stride_ks
        v_ptrs += BLOCK_N * stride_vs
    tl.store(o_ptr + m[:, None] * stride_os + d[None, :] * stride_od, scale * acc, mask=(m[:, None] < S_q) & (d[None, :] < D))


RIGHT_ANSWERS = (
    ("3.1", blocked_by_padding),
    ("3.2", kernel_with_offsets_computed_anew),
    ("3.3", tile_without_min),
    ("3.4", skeleton_with_pointers_that_move),
)
