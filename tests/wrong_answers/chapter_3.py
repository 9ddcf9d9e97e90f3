"""Wrong answers to the exercises of chapter 3, each with words that its diagnosis must hold."""

from __future__ import annotations

import torch

from fa_tutorial.matmul import grouped_tile, tl, triton
from fa_tutorial.tiles import dot
from wrong_answers import WrongAnswer

# ---------------------------------------------------------------- 3.1


def _tiles(M, N, block_m, block_n):
    return [(slice(m, m + block_m), slice(n, n + block_n)) for m in range(0, M, block_m) for n in range(0, N, block_n)]


def _blocked_whole(a, b, block_m, block_n, block_k):
    return (a.float() @ b.float()).to(a.dtype)


def _blocked_without_k(a, b, block_m, block_n, block_k):
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    for rows, columns in _tiles(*c.shape, block_m, block_n):
        c[rows, columns] = a[rows].float() @ b[:, columns].float()
    return c


def _blocked_rows_alone(a, b, block_m, block_n, block_k):
    return torch.cat([rows.float() @ b.float() for rows in a.split(block_m)]).to(a.dtype)


def _blocked_k_alone(a, b, block_m, block_n, block_k):
    steps = zip(a.float().split(block_k, dim=1), b.float().split(block_k), strict=True)
    return sum((columns[:, :, None] * rows).sum(1) for columns, rows in steps).to(a.dtype)


def _blocked_without_block_n(a, b, block_m, block_n, block_k):
    c = torch.zeros(a.shape[0], b.shape[1])
    for rows, columns in _tiles(*c.shape, block_m, block_m):
        for k in range(0, a.shape[1], block_k):
            c[rows, columns] += a[rows, k : k + block_k].float() @ b[k : k + block_k, columns].float()
    return c.to(a.dtype)


def _blocked_block_m_for_k(a, b, block_m, block_n, block_k):
    c = torch.zeros(a.shape[0], b.shape[1])
    for rows, columns in _tiles(*c.shape, block_m, block_n):
        for k in range(0, a.shape[1], block_m):
            c[rows, columns] += torch.einsum("mk,kn->mn", a[rows, k : k + block_m].float(), b[k : k + block_m, columns].float())
    return c.to(a.dtype)


def _blocked_acc_never_reset(a, b, block_m, block_n, block_k):
    c, acc = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype), 0
    for rows, columns in _tiles(*c.shape, block_m, block_n):
        for k in range(0, a.shape[1], block_k):
            acc = acc + a[rows, k : k + block_k].float() @ b[k : k + block_k, columns].float()
        c[rows, columns] = acc
    return c


def _blocked_acc_reset_by_rows(a, b, block_m, block_n, block_k):
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    for m in range(0, a.shape[0], block_m):
        acc = 0
        for n in range(0, b.shape[1], block_n):
            for k in range(0, a.shape[1], block_k):
                acc = acc + a[m : m + block_m, k : k + block_k].float() @ b[k : k + block_k, n : n + block_n].float()
            c[m : m + block_m, n : n + block_n] = acc
    return c


def _blocked_elementwise(a, b, block_m, block_n, block_k):
    c = torch.empty(a.shape[0], b.shape[1])
    for rows, columns in _tiles(*c.shape, block_m, block_n):
        acc = torch.zeros(c[rows, columns].shape)
        for k in range(0, a.shape[1], block_k):
            acc += a[rows, k : k + block_k] * b[k : k + block_k, columns]
        c[rows, columns] = acc
    return c


def _blocked_overwrites(a, b, block_m, block_n, block_k):
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    for rows, columns in _tiles(*c.shape, block_m, block_n):
        for k in range(0, a.shape[1], block_k):
            c[rows, columns] = a[rows, k : k + block_k] @ b[k : k + block_k, columns]
    return c


def _blocked_drops_last_k(a, b, block_m, block_n, block_k):
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    for rows, columns in _tiles(*c.shape, block_m, block_n):
        acc = torch.zeros(c[rows, columns].shape)
        for k in range(0, max(a.shape[1] - block_k, 1), block_k):
            acc += a[rows, k : k + block_k].float() @ b[k : k + block_k, columns].float()
        c[rows, columns] = acc
    return c


def _blocked_drops_ragged_k(a, b, block_m, block_n, block_k):
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    for rows, columns in _tiles(*c.shape, block_m, block_n):
        acc = torch.zeros(c[rows, columns].shape)
        for step in range(a.shape[1] // block_k):
            ks = slice(step * block_k, (step + 1) * block_k)
            acc += a[rows, ks].float() @ b[ks, columns].float()
        c[rows, columns] = acc
    return c


def _blocked_drops_ragged_tiles(a, b, block_m, block_n, block_k):
    c = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    whole = _tiles(a.shape[0] // block_m * block_m, b.shape[1] // block_n * block_n, block_m, block_n)
    for rows, columns in whole:
        for k in range(0, a.shape[1], block_k):
            c[rows, columns] += a[rows, k : k + block_k] @ b[k : k + block_k, columns]
    return c


def _blocked_fixed_acc(a, b, block_m, block_n, block_k):
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    for rows, columns in _tiles(*c.shape, block_m, block_n):
        acc = torch.zeros(block_m, block_n)
        for k in range(0, a.shape[1], block_k):
            acc += a[rows, k : k + block_k].float() @ b[k : k + block_k, columns].float()
        c[rows, columns] = acc
    return c


def _blocked_bounds_exchanged(a, b, block_m, block_n, block_k):
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    for m in range(0, b.shape[1], block_m):
        for n in range(0, a.shape[0], block_n):
            acc = torch.zeros(c[m : m + block_m, n : n + block_n].shape)
            for k in range(0, a.shape[1], block_k):
                acc += a[m : m + block_m, k : k + block_k].float() @ b[k : k + block_k, n : n + block_n].float()
            c[m : m + block_m, n : n + block_n] = acc
    return c


def _blocked_block_m_for_columns(a, b, block_m, block_n, block_k):
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    for m in range(0, a.shape[0], block_m):
        for n in range(0, b.shape[1], block_n):
            acc = torch.zeros(c[m : m + block_m, n : n + block_m].shape)
            for k in range(0, a.shape[1], block_k):
                acc += a[m : m + block_m, k : k + block_k].float() @ b[k : k + block_k, n : n + block_m].float()
            c[m : m + block_m, n : n + block_m] = acc
    return c


def _blocked_one_column_of_tiles(a, b, block_m, block_n, block_k):
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    for rows, columns in _tiles(a.shape[0], block_n, block_m, block_n):
        acc = torch.zeros(c[rows, columns].shape)
        for k in range(0, a.shape[1], block_k):
            acc += a[rows, k : k + block_k].float() @ b[k : k + block_k, columns].float()
        c[rows, columns] = acc
    return c


def _blocked_half_accumulator(a, b, block_m, block_n, block_k):
    c = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for rows, columns in _tiles(*c.shape, block_m, block_n):
        for k in range(0, a.shape[1], block_k):
            c[rows, columns] += a[rows, k : k + block_k] @ b[k : k + block_k, columns]
    return c


def _blocked_half_products(a, b, block_m, block_n, block_k):
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    for rows, columns in _tiles(*c.shape, block_m, block_n):
        acc = torch.zeros(c[rows, columns].shape)
        for k in range(0, a.shape[1], block_k):
            acc += a[rows, k : k + block_k] @ b[k : k + block_k, columns]
        c[rows, columns] = acc
    return c


def _blocked_returns_accumulator(a, b, block_m, block_n, block_k):
    c = torch.zeros(a.shape[0], b.shape[1])
    for rows, columns in _tiles(*c.shape, block_m, block_n):
        for k in range(0, a.shape[1], block_k):
            c[rows, columns] += a[rows, k : k + block_k].float() @ b[k : k + block_k, columns].float()
    return c


# ---------------------------------------------------------------- 3.2
# What these kernels get right is shared; what each gets wrong stands in it.


@triton.jit
def _offsets(M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    tiles_n = tl.cdiv(N, BLOCK_N)
    offs_m = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    return offs_m, offs_n


@triton.jit
def _load_a(a_ptrs, offs_m, M, left, BLOCK_K: tl.constexpr):
    return tl.load(a_ptrs, mask=(offs_m[:, None] < M) & (tl.arange(0, BLOCK_K)[None, :] < left), other=0.0)


@triton.jit
def _load_b(b_ptrs, offs_n, N, left, BLOCK_K: tl.constexpr):
    return tl.load(b_ptrs, mask=(tl.arange(0, BLOCK_K)[:, None] < left) & (offs_n[None, :] < N), other=0.0)


@triton.jit
def _sum_over_k(a_ptr, b_ptr, offs_m, offs_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
                BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        acc = dot(_load_a(a_ptrs, offs_m, M, K - k, BLOCK_K), _load_b(b_ptrs, offs_n, N, K - k, BLOCK_K), acc)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    return acc


@triton.jit
def _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn):
    c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


def _kernel_without_jit(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    acc = _sum_over_k(a_ptr, b_ptr, offs_m, offs_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K)
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_b_strides_exchanged(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                                BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    acc = _sum_over_k(a_ptr, b_ptr, offs_m, offs_n, M, N, K, stride_am, stride_ak, stride_bn, stride_bk, BLOCK_M, BLOCK_N, BLOCK_K)
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_stores_transposed(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                              BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    acc = _sum_over_k(a_ptr, b_ptr, offs_m, offs_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K)
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cn, stride_cm)


@triton.jit
def _kernel_contiguous_c(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                         BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    acc = _sum_over_k(a_ptr, b_ptr, offs_m, offs_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K)
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, N, 1)


@triton.jit
def _kernel_columns_of_a_side_by_side(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                                      BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    acc = _sum_over_k(a_ptr, b_ptr, offs_m, offs_n, M, N, K, stride_am, 1, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K)
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_overwrites(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                       BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a, b = _load_a(a_ptrs, offs_m, M, K - k, BLOCK_K), _load_b(b_ptrs, offs_n, N, K - k, BLOCK_K)
        acc = tl.dot(a, b, input_precision="ieee")
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_result_of_dot_lost(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a, b = _load_a(a_ptrs, offs_m, M, K - k, BLOCK_K), _load_b(b_ptrs, offs_n, N, K - k, BLOCK_K)
        tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_one_step_too_few(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                             BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    K = K - BLOCK_K
    acc = _sum_over_k(a_ptr, b_ptr, offs_m, offs_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K)
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_rounds_steps_down(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                              BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    K = K // BLOCK_K * BLOCK_K
    acc = _sum_over_k(a_ptr, b_ptr, offs_m, offs_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K)
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_a_not_advanced(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                           BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        acc = dot(_load_a(a_ptrs, offs_m, M, K - k, BLOCK_K), _load_b(b_ptrs, offs_n, N, K - k, BLOCK_K), acc)
        b_ptrs += BLOCK_K * stride_bk
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_b_advanced_without_stride(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                                      BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        acc = dot(_load_a(a_ptrs, offs_m, M, K - k, BLOCK_K), _load_b(b_ptrs, offs_n, N, K - k, BLOCK_K), acc)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_a_advanced_without_stride(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                                      BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        acc = dot(_load_a(a_ptrs, offs_m, M, K - k, BLOCK_K), _load_b(b_ptrs, offs_n, N, K - k, BLOCK_K), acc)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * stride_bk
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_divides_by_tiles_m(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    tiles_m = tl.cdiv(M, BLOCK_M)
    offs_m = tl.program_id(0) // tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(0) % tiles_m * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = _sum_over_k(a_ptr, b_ptr, offs_m, offs_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K)
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_on_a_grid_of_two_dimensions(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                                        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = _sum_over_k(a_ptr, b_ptr, offs_m, offs_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K)
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_stores_in_the_loop(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        acc = dot(_load_a(a_ptrs, offs_m, M, K - k, BLOCK_K), _load_b(b_ptrs, offs_n, N, K - k, BLOCK_K), acc)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
        _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_columns_by_block_m(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    tiles_n = tl.cdiv(N, BLOCK_N)
    offs_m = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(0) % tiles_n * BLOCK_M + tl.arange(0, BLOCK_N)
    acc = _sum_over_k(a_ptr, b_ptr, offs_m, offs_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K)
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_rounds_tiles_down(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                              BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    tiles_n = tl.maximum(N // BLOCK_N, 1)
    offs_m = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = _sum_over_k(a_ptr, b_ptr, offs_m, offs_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K)
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_without_k_mask(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                           BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    K = tl.cdiv(K, BLOCK_K) * BLOCK_K
    acc = _sum_over_k(a_ptr, b_ptr, offs_m, offs_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K)
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_k_mask_on_a_alone(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                              BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        b = tl.load(b_ptrs, mask=offs_n[None, :] < N, other=0.0)
        acc = dot(_load_a(a_ptrs, offs_m, M, K - k, BLOCK_K), b, acc)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_without_store_mask(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    acc = _sum_over_k(a_ptr, b_ptr, offs_m, offs_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K)
    tl.store(c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn, acc.to(c_ptr.dtype.element_ty))


@triton.jit
def _kernel_half_accumulator(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                             BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float16)
    for k in range(0, K, BLOCK_K):
        a, b = _load_a(a_ptrs, offs_m, M, K - k, BLOCK_K), _load_b(b_ptrs, offs_n, N, K - k, BLOCK_K)
        acc += tl.dot(a, b, input_precision="ieee").to(tl.float16)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _kernel_half_products(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                          BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a, b = _load_a(a_ptrs, offs_m, M, K - k, BLOCK_K), _load_b(b_ptrs, offs_n, N, K - k, BLOCK_K)
        acc += tl.dot(a, b, input_precision="ieee", out_dtype=tl.float16)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


@triton.jit
def _as_tf32(x):
    bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    return ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def _kernel_tf32(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    offs_m, offs_n = _offsets(M, N, BLOCK_M, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a, b = _load_a(a_ptrs, offs_m, M, K - k, BLOCK_K), _load_b(b_ptrs, offs_n, N, K - k, BLOCK_K)
        # Rounded by hand, as a tensor core does to fp32 by default: the interpreter and older GPUs multiply in full.
        acc = tl.dot(_as_tf32(a), _as_tf32(b), acc)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    _store_c(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


# ---------------------------------------------------------------- 3.3


def _tile_in_row_order(pid, tiles_m, tiles_n, group):
    return pid // tiles_n, pid % tiles_n


def _tile_in_column_order(pid, tiles_m, tiles_n, group):
    return pid % tiles_m, pid // tiles_m


def _tile_bands_of_columns(pid, tiles_m, tiles_n, group):
    return grouped_tile(pid, tiles_n, tiles_m, group)[::-1]


def _tile_exchanged(pid, tiles_m, tiles_n, group):
    return grouped_tile(pid, tiles_m, tiles_n, group)[::-1]


def _tile_columns_fastest(pid, tiles_m, tiles_n, group):
    band, within = divmod(pid, group * tiles_n)
    rows = min(tiles_m - band * group, group)
    return band * group + within // rows, within % rows


def _tile_from_row_0(pid, tiles_m, tiles_n, group):
    band, within = divmod(pid, group * tiles_n)
    rows = min(tiles_m - band * group, group)
    return within % rows, within // rows


def _tile_band_as_row(pid, tiles_m, tiles_n, group):
    band, within = divmod(pid, group * tiles_n)
    rows = min(tiles_m - band * group, group)
    return band + within % rows, within // rows


def _tile_without_min(pid, tiles_m, tiles_n, group):
    band, within = divmod(pid, group * tiles_n)
    return band * group + within % group, within // group


def _tile_clamped(pid, tiles_m, tiles_n, group):
    band, within = divmod(pid, group * tiles_n)
    return min(band * group + within % group, tiles_m - 1), within // group


def _tile_last_band_in_row_order(pid, tiles_m, tiles_n, group):
    band, within = divmod(pid, group * tiles_n)
    if tiles_m - band * group < group:
        return band * group + within // tiles_n, within % tiles_n
    return band * group + within % group, within // group


def _tile_divided_by_slash(pid, tiles_m, tiles_n, group):
    band, within = divmod(pid, group * tiles_n)
    rows = min(tiles_m - band * group, group)
    return band * group + within % rows, within / rows


# ---------------------------------------------------------------- 3.4


def _up(size, block):
    return -(-size // block)


def _traffic_in_elements(M, N, K, block_m, block_n, itemsize):
    return _up(N, block_n) * M * K + _up(M, block_m) * K * N + M * N


def _traffic_each_once(M, N, K, block_m, block_n, itemsize):
    return (M * K + K * N + M * N) * itemsize


def _traffic_a_once(M, N, K, block_m, block_n, itemsize):
    return (M * K + _up(M, block_m) * K * N + M * N) * itemsize


def _traffic_factors_exchanged(M, N, K, block_m, block_n, itemsize):
    return (_up(M, block_m) * M * K + _up(N, block_n) * K * N + M * N) * itemsize


def _traffic_tiles_n_for_both(M, N, K, block_m, block_n, itemsize):
    return (_up(N, block_n) * (M * K + K * N) + M * N) * itemsize


def _traffic_all_for_every_tile(M, N, K, block_m, block_n, itemsize):
    return (_up(M, block_m) * _up(N, block_n) * (M * K + K * N) + M * N) * itemsize


def _traffic_without_tiles(M, N, K, block_m, block_n, itemsize):
    return (2 * M * N * K + M * N) * itemsize


def _traffic_without_c(M, N, K, block_m, block_n, itemsize):
    return (_up(N, block_n) * M * K + _up(M, block_m) * K * N) * itemsize


def _traffic_c_twice(M, N, K, block_m, block_n, itemsize):
    return (_up(N, block_n) * M * K + _up(M, block_m) * K * N + 2 * M * N) * itemsize


def _traffic_c_every_step(M, N, K, block_m, block_n, itemsize):
    return (_up(N, block_n) * M * K + _up(M, block_m) * K * N + M * N * K) * itemsize


def _traffic_rounded_down(M, N, K, block_m, block_n, itemsize):
    return (N // block_n * M * K + M // block_m * K * N + M * N) * itemsize


def _traffic_one_tile_more(M, N, K, block_m, block_n, itemsize):
    return ((N // block_n + 1) * M * K + (M // block_m + 1) * K * N + M * N) * itemsize


def _traffic_bytes_of_c_alone(M, N, K, block_m, block_n, itemsize):
    return _up(N, block_n) * M * K + _up(M, block_m) * K * N + M * N * itemsize


def _traffic_not_rounded(M, N, K, block_m, block_n, itemsize):
    return (N / block_n * M * K + M / block_m * K * N + M * N) * itemsize


def _traffic_padded(M, N, K, block_m, block_n, itemsize):
    tiles = _up(M, block_m) * _up(N, block_n)
    return tiles * (block_m * K + K * block_n + block_m * block_n) * itemsize


def _traffic_in_float32(M, N, K, block_m, block_n, itemsize):
    a, b = torch.tensor([float(_up(N, block_n)), M, K]), torch.tensor([float(_up(M, block_m)), K, N])
    return int((a.prod() + b.prod() + M * N) * itemsize)


WRONG_ANSWERS = (
    WrongAnswer("3.1", _blocked_whole, "all of a and all of b go into one product"),
    WrongAnswer("3.1", _blocked_without_k, "a product takes a part of a of shape (2, 8)"),
    WrongAnswer("3.1", _blocked_rows_alone, "a product takes a part of a of shape (2, 8)"),
    WrongAnswer("3.1", _blocked_k_alone, "a product takes a part of a of shape (4, 4, 1)"),
    WrongAnswer("3.1", _blocked_without_block_n, "a product takes a part of b of shape (4, 3)"),
    WrongAnswer("3.1", _blocked_block_m_for_k, "a product takes a part of a of shape (3, 3)"),
    WrongAnswer("3.1", _blocked_acc_never_reset, "the accumulator still holds every tile before it, row by row"),
    WrongAnswer("3.1", _blocked_acc_reset_by_rows, "the accumulator still holds the tiles to its left"),
    WrongAnswer("3.1", _blocked_elementwise, "element by element"),
    WrongAnswer("3.1", _blocked_overwrites, "overwrites the one before"),
    WrongAnswer("3.1", _blocked_drops_last_k, "ends one step early"),
    WrongAnswer("3.1", _blocked_drops_ragged_k, "K's ragged last block"),
    WrongAnswer("3.1", _blocked_drops_ragged_tiles, "the ragged last tiles are never computed"),
    WrongAnswer("3.1", _blocked_fixed_acc, "M = 3, N = 5"),
    WrongAnswer("3.1", _blocked_bounds_exchanged, "bounds of the loops are exchanged"),
    WrongAnswer("3.1", _blocked_block_m_for_columns, "columns are cut with block_m"),
    WrongAnswer("3.1", _blocked_one_column_of_tiles, "only the first column of tiles"),
    WrongAnswer("3.1", _blocked_half_accumulator, "the sum is kept in fp16"),
    WrongAnswer("3.1", _blocked_half_products, "rounded to fp16 before it is added"),
    WrongAnswer("3.1", _blocked_returns_accumulator, "c has dtype torch.float32"),
    WrongAnswer("3.2", _kernel_without_jit, "put @triton.jit above it"),
    WrongAnswer("3.2", _kernel_b_strides_exchanged, "b's strides are exchanged"),
    WrongAnswer("3.2", _kernel_stores_transposed, "c is stored transposed"),
    WrongAnswer("3.2", _kernel_contiguous_c, "c's strides are not used"),
    WrongAnswer("3.2", _kernel_columns_of_a_side_by_side, "stride_ak is not used"),
    WrongAnswer("3.2", _kernel_overwrites, "overwrites the one before"),
    WrongAnswer("3.2", _kernel_result_of_dot_lost, "is what tl.dot returns kept in acc"),
    WrongAnswer("3.2", _kernel_one_step_too_few, "c stays 0"),
    WrongAnswer("3.2", _kernel_rounds_steps_down, "the number of steps is rounded up"),
    WrongAnswer("3.2", _kernel_a_not_advanced, "a's pointers are not advanced"),
    WrongAnswer("3.2", _kernel_b_advanced_without_stride, "b's pointers are advanced by BLOCK_K elements"),
    WrongAnswer("3.2", _kernel_a_advanced_without_stride, "a's pointers are advanced by BLOCK_K elements"),
    WrongAnswer("3.2", _kernel_divides_by_tiles_m, "a row of c has tiles_n tiles"),
    WrongAnswer("3.2", _kernel_on_a_grid_of_two_dimensions, "the grid has one dimension"),
    WrongAnswer("3.2", _kernel_stores_in_the_loop, "tl.store comes after the loop"),
    WrongAnswer("3.2", _kernel_columns_by_block_m, "BLOCK_M and BLOCK_N are mixed up"),
    WrongAnswer("3.2", _kernel_rounds_tiles_down, "the number of tiles is rounded up"),
    WrongAnswer("3.2", _kernel_without_k_mask, "0 · NaN is NaN"),
    WrongAnswer("3.2", _kernel_k_mask_on_a_alone, "0 · NaN is NaN"),
    WrongAnswer("3.2", _kernel_without_store_mask, "mask the store"),
    WrongAnswer("3.2", _kernel_half_accumulator, "sums are rounded to fp16"),
    WrongAnswer("3.2", _kernel_half_products, "sums are rounded to fp16"),
    WrongAnswer("3.2", _kernel_tf32, "10 bits of mantissa of TF32"),
    WrongAnswer("3.3", _tile_in_row_order, "group changes nothing"),
    WrongAnswer("3.3", _tile_in_column_order, "each column goes down all of c"),
    WrongAnswer("3.3", _tile_bands_of_columns, "the bands are made of columns"),
    WrongAnswer("3.3", _tile_exchanged, "tile_m and tile_n are exchanged"),
    WrongAnswer("3.3", _tile_columns_fastest, "// and % are exchanged"),
    WrongAnswer("3.3", _tile_from_row_0, "every band starts at row 0"),
    WrongAnswer("3.3", _tile_band_as_row, "the band's number is taken for its first row"),
    WrongAnswer("3.3", _tile_without_min, "has 1 row, not `group`"),
    WrongAnswer("3.3", _tile_clamped, "tile (2, 0) is computed twice and tile (2, 1) never"),
    WrongAnswer("3.3", _tile_last_band_in_row_order, "the last band is in row order"),
    WrongAnswer("3.3", _tile_divided_by_slash, "divide with //"),
    WrongAnswer("3.4", _traffic_in_elements, "elements are counted"),
    WrongAnswer("3.4", _traffic_each_once, "a and b are each read once"),
    WrongAnswer("3.4", _traffic_a_once, "a is read once"),
    WrongAnswer("3.4", _traffic_factors_exchanged, "the two factors are exchanged"),
    WrongAnswer("3.4", _traffic_tiles_n_for_both, "b's factor is that of a"),
    WrongAnswer("3.4", _traffic_all_for_every_tile, "every tile is charged all of a and all of b"),
    WrongAnswer("3.4", _traffic_without_tiles, "as without tiles"),
    WrongAnswer("3.4", _traffic_without_c, "c is not counted"),
    WrongAnswer("3.4", _traffic_c_twice, "c is counted twice"),
    WrongAnswer("3.4", _traffic_c_every_step, "at every step along K"),
    WrongAnswer("3.4", _traffic_rounded_down, "rounded down"),
    WrongAnswer("3.4", _traffic_one_tile_more, "one tile too many"),
    WrongAnswer("3.4", _traffic_bytes_of_c_alone, "itemsize multiplies the bytes of c alone"),
    WrongAnswer("3.4", _traffic_not_rounded, "not rounded"),
    WrongAnswer("3.4", _traffic_padded, "ragged tiles are counted whole"),
    WrongAnswer("3.4", _traffic_in_float32, "stay with integers"),
)
