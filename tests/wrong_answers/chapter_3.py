"""Chapter 3: products that are larger than a tile, a result of another dtype, accesses past the ragged ends, lanes that hold anything."""

import numpy as np
import torch

from fa_tutorial.matmul import tl, triton


def blocked_whole(a, b, block_m, block_n, block_k):
    return (a.float() @ b.float()).to(a.dtype)


def blocked_without_k(a, b, block_m, block_n, block_k):
    rows = [torch.cat([part.float() @ columns.float() for columns in b.split(block_n, 1)], 1) for part in a.split(block_m)]
    return torch.cat(rows).to(a.dtype)


def blocked_fixed_acc(a, b, block_m, block_n, block_k):
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    for m in range(0, a.shape[0], block_m):
        for n in range(0, b.shape[1], block_n):
            acc = torch.zeros(block_m, block_n)
            for k in range(0, a.shape[1], block_k):
                acc += a[m : m + block_m, k : k + block_k].float() @ b[k : k + block_k, n : n + block_n].float()
            c[m : m + block_m, n : n + block_n] = acc
    return c


def blocked_returns_accumulator(a, b, block_m, block_n, block_k):
    c = torch.zeros(a.shape[0], b.shape[1])
    for m in range(0, a.shape[0], block_m):
        for n in range(0, b.shape[1], block_n):
            for k in range(0, a.shape[1], block_k):
                c[m : m + block_m, n : n + block_n] += (
                    a[m : m + block_m, k : k + block_k].float() @ b[k : k + block_k, n : n + block_n].float()
                )
    return c


@triton.jit
def _matmul(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
            BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WRONG: tl.constexpr):  # fmt: skip
    """A right kernel but for what WRONG names."""
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    if WRONG == "column order":
        tile_m, tile_n = tl.program_id(0) % tl.cdiv(M, BLOCK_M), tl.program_id(0) // tl.cdiv(M, BLOCK_M)
    m = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    n = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        end = K + BLOCK_K if WRONG == "no K mask" else K
        mask_a = (m < M) & (k[None, :] < end)
        mask_b = (k[:, None] < end) & (n < N)
        if WRONG == "and":
            mask_a = (m < M) and (k[None, :] < end)
        if WRONG == "no other":
            a = tl.load(a_ptr + m * stride_am + k[None, :] * stride_ak, mask=mask_a)
            b = tl.load(b_ptr + k[:, None] * stride_bk + n * stride_bn, mask=mask_b)
        else:
            a = tl.load(a_ptr + m * stride_am + k[None, :] * stride_ak, mask=mask_a, other=0.0)
            b = tl.load(b_ptr + k[:, None] * stride_bk + n * stride_bn, mask=mask_b, other=0.0)
        if WRONG == "widened":
            a, b = a.to(tl.float32), b.to(tl.float32)
        if WRONG == "tf32":
            acc = tl.dot(a, b, acc)
        else:
            acc = tl.dot(a, b, acc, input_precision="ieee")
    mask = (m < M) & (n < N) if WRONG != "no store mask" else (m < M) & (n < N + BLOCK_N)
    tl.store(c_ptr + m * stride_cm + n * stride_cn, acc.to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def matmul_without_other(
    a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    _matmul(a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn, BLOCK_M, BLOCK_N, BLOCK_K, "no other")


@triton.jit
def matmul_without_k_mask(
    a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    _matmul(a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn, BLOCK_M, BLOCK_N, BLOCK_K, "no K mask")


@triton.jit
def matmul_without_store_mask(
    a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    _matmul(a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn, BLOCK_M, BLOCK_N, BLOCK_K, "no store mask")


@triton.jit
def matmul_with_and(
    a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    _matmul(a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn, BLOCK_M, BLOCK_N, BLOCK_K, "and")


@triton.jit
def matmul_in_tf32(
    a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    _matmul(a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn, BLOCK_M, BLOCK_N, BLOCK_K, "tf32")


@triton.jit
def matmul_of_widened_tiles(
    a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    _matmul(a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn, BLOCK_M, BLOCK_N, BLOCK_K, "widened")


@triton.jit
def matmul_in_column_order(
    a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    _matmul(a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn, BLOCK_M, BLOCK_N, BLOCK_K, "column order")


@triton.jit
def matmul_with_python_cdiv(
    a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    if tl.program_id(0) < triton.cdiv(M, BLOCK_M) * triton.cdiv(N, BLOCK_N):
        _matmul(a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn, BLOCK_M, BLOCK_N, BLOCK_K, "")


def tile_by_float(pid, tiles_m, tiles_n, group):
    first_row = int(pid / (group * tiles_n)) * group
    within, rows = pid % (group * tiles_n), min(tiles_m - first_row, group)
    return first_row + within % rows, within // rows


def tile_by_divmod(pid, tiles_m, tiles_n, group):
    band, within = divmod(pid, group * tiles_n)
    rows = min(tiles_m - band * group, group)
    return band * group + within % rows, within // rows


def tile_by_sorting(pid, tiles_m, tiles_n, group):
    m, n = np.divmod(np.arange(tiles_m * tiles_n), tiles_n)
    place = np.lexsort((m, n, m // group))[pid]
    return [m[place], n[place]]


@triton.jit
def _skeleton(q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, qs, qd, ks, kd, vs, vd, os, od,
              BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, WRONG: tl.constexpr):  # fmt: skip
    """A right kernel but for what WRONG names."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    d = tl.arange(0, BLOCK_D)[None, :]
    q = tl.load(q_ptr + m * qs + d * qd, mask=(m < S_q) & (d < D), other=0.0)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    for start in range(0, S_k, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)[:, None]
        mask = (n < S_k) & (d < D)
        if WRONG == "no key mask":
            mask = (n < S_k + BLOCK_N) & (d < D)
        if WRONG == "and":
            mask = n < S_k and d < D
        k = tl.load(k_ptr + n * ks + d * kd, mask=mask, other=0.0)
        v = tl.load(v_ptr + n * vs + d * vd, mask=mask, other=0.0)
        if WRONG == "no transpose":
            s = scale * tl.dot(q, tl.reshape(k, (BLOCK_D, BLOCK_N)), input_precision="ieee")
        else:
            s = scale * tl.dot(q, tl.trans(k), input_precision="ieee")
        if WRONG == "widened":
            v = v.to(tl.float32)
        if WRONG != "not rounded":
            s = s.to(v.dtype)
        if WRONG == "tf32":
            acc = tl.dot(s, v, acc)
        elif WRONG == "scaled again":
            acc = scale * tl.dot((s / scale).to(v.dtype), v, acc, input_precision="ieee")
        else:
            acc = tl.dot(s, v, acc, input_precision="ieee")
    mask_o = (m < S_q) & (d < D) if WRONG != "no store mask" else (m < S_q + BLOCK_M) & (d < D)
    tl.store(o_ptr + m * os + d * od, acc.to(o_ptr.dtype.element_ty), mask=mask_o)


@triton.jit
def skeleton_without_key_mask(
    q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, qs, qd, ks, kd, vs, vd, os, od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    _skeleton(q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, qs, qd, ks, kd, vs, vd, os, od, BLOCK_M, BLOCK_N, BLOCK_D, "no key mask")


@triton.jit
def skeleton_with_and(
    q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, qs, qd, ks, kd, vs, vd, os, od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    _skeleton(q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, qs, qd, ks, kd, vs, vd, os, od, BLOCK_M, BLOCK_N, BLOCK_D, "and")


@triton.jit
def skeleton_of_k_straight(
    q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, qs, qd, ks, kd, vs, vd, os, od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    _skeleton(q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, qs, qd, ks, kd, vs, vd, os, od, BLOCK_M, BLOCK_N, BLOCK_D, "no transpose")


@triton.jit
def skeleton_without_rounding(
    q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, qs, qd, ks, kd, vs, vd, os, od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    _skeleton(q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, qs, qd, ks, kd, vs, vd, os, od, BLOCK_M, BLOCK_N, BLOCK_D, "not rounded")


@triton.jit
def skeleton_without_store_mask(
    q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, qs, qd, ks, kd, vs, vd, os, od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    _skeleton(q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, qs, qd, ks, kd, vs, vd, os, od, BLOCK_M, BLOCK_N, BLOCK_D, "no store mask")


@triton.jit
def skeleton_of_widened_values(
    q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, qs, qd, ks, kd, vs, vd, os, od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    _skeleton(q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, qs, qd, ks, kd, vs, vd, os, od, BLOCK_M, BLOCK_N, BLOCK_D, "widened")


@triton.jit
def skeleton_whose_second_product_is_tf32(
    q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, qs, qd, ks, kd, vs, vd, os, od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    _skeleton(q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, qs, qd, ks, kd, vs, vd, os, od, BLOCK_M, BLOCK_N, BLOCK_D, "tf32")


@triton.jit
def skeleton_scaled_in_every_step(
    q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, qs, qd, ks, kd, vs, vd, os, od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    _skeleton(q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, qs, qd, ks, kd, vs, vd, os, od, BLOCK_M, BLOCK_N, BLOCK_D, "scaled again")


WRONG_ANSWERS = (
    ("3.1", blocked_whole, "all of a and all of b go into one product"),
    ("3.1", blocked_without_k, "a product takes parts of shape (2, 8) and (8, 3): a step multiplies a tile of a"),
    ("3.1", blocked_fixed_acc, "M = 3, N = 5, K = 2, blocks 2 × 2 × 2: raises RuntimeError"),
    ("3.1", blocked_returns_accumulator, "one edge is left: c has dtype torch.float32, want a's"),
    ("3.2", matmul_without_other, "elements that a mask leaves out hold anything", None),
    ("3.2", matmul_without_k_mask, "the last step reads past K, and 0 · NaN is NaN", "0 · NaN is NaN"),
    ("3.2", matmul_without_store_mask, "mask rows by M and columns by N"),
    ("3.2", matmul_with_and, "join masks by &, not by `and`", None),
    ("3.2", matmul_in_tf32, "fp32 is rounded to TF32", None),
    ("3.2", matmul_of_widened_tiles, "the result is right, but tl.dot gets float32 tiles from 16-bit inputs", None),
    ("3.2", matmul_in_column_order, "programs go down the columns of tiles"),
    ("3.2", matmul_with_python_cdiv, "use tl.cdiv there", None),
    ("3.3", tile_by_float, "this works in Python only"),
    ("3.3", tile_by_divmod, "this works in Python only"),
    ("3.3", tile_by_sorting, "this works in Python only"),
    ("3.4", skeleton_without_key_mask, "mask rows of q and o by S_q, keys by S_k", "0 · NaN is NaN"),
    ("3.4", skeleton_without_store_mask, "mask rows of q and o by S_q, keys by S_k"),
    ("3.4", skeleton_with_and, "join masks by &, not by `and`", None),
    ("3.4", skeleton_of_k_straight, "q is multiplied by k, not by kᵀ"),
    ("3.4", skeleton_without_rounding, "these are fp32 and fp16: round one to the other's: x.to(y.dtype)"),
    ("3.4", skeleton_of_widened_values, "the result is right, but a tl.dot gets float32 tiles from 16-bit inputs", None),
    ("3.4", skeleton_whose_second_product_is_tf32, "fp32 is rounded to TF32", None),
    ("3.4", skeleton_scaled_in_every_step, "acc is scaled again in every step"),
)
