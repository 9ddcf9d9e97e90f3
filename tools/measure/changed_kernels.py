"""Kernels of chapters 2, 3 and 7 otherwise: one that does nothing, the matmul without its loads, and the backward in
one loop that adds dq up in memory."""

from fa_tutorial.hardware import require_triton
from fa_tutorial.matmul import grouped_tile_device
from fa_tutorial.tiles import dot, load_tile, store_tile

triton = require_triton("Measuring (tools/measure)")
import triton.language as tl  # noqa: E402


@triton.jit
def nothing_kernel():
    """Programs that only start and end."""


@triton.jit
def matmul_without_loads_kernel(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
                                stride_cm, stride_cn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                                BLOCK_K: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """matmul.matmul_kernel, of which every step multiplies the tiles of the first: as many products, and no loads.

    M, N and K are multiples of the blocks.
    """
    tile_m, tile_n = grouped_tile_device(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N]
    offs_k = tl.arange(0, BLOCK_K)  # [BLOCK_K]
    a = tl.load(a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak)  # [BLOCK_M, BLOCK_K]
    b = tl.load(b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn)  # [BLOCK_K, BLOCK_N]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(0, K, BLOCK_K):
        acc = dot(a, b, acc)
    tl.store(c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn, acc.to(c_ptr.dtype.element_ty))


@triton.jit
def add_to_all(k_tile, v_tile, dk, dv, q, do, dq, lse_ptr, delta_ptr, b, h, start_m, first_seeing, keys, S_q, D, scale,
               MASK: tl.constexpr, RAGGED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """backward.add_to_dkdv, which also adds this tile's part to dq in memory: Heads of (B, H, S_q, D) float32.

    keys: how many keys are there from the tile's first on. RAGGED: they may be fewer than the tile's, and the others
    get p = 0.
    """
    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D)  # [BLOCK_D]
    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    do_tile = load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    lse = tl.load(lse_ptr + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
    delta = tl.load(delta_ptr + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
    s_t = scale * dot(k_tile, tl.trans(q_tile))  # [BLOCK_N, BLOCK_M]
    p_t = tl.exp(s_t - lse[None, :])  # [BLOCK_N, BLOCK_M]
    if MASK:
        p_t = tl.where(offs_m[None, :] >= first_seeing[:, None], p_t, 0.0)
    if RAGGED:
        p_t = tl.where(tl.arange(0, k_tile.shape[0])[:, None] < keys, p_t, 0.0)
    dv = dot(p_t.to(do_tile.dtype), do_tile, dv)  # [BLOCK_N, BLOCK_D]
    dp_t = dot(v_tile, tl.trans(do_tile))  # [BLOCK_N, BLOCK_M]
    ds_t = (p_t * (dp_t - delta[None, :])).to(q_tile.dtype)  # [BLOCK_N, BLOCK_M]
    dk = dot(ds_t, q_tile, dk)  # [BLOCK_N, BLOCK_D]
    dq_part = scale * dot(tl.trans(ds_t), k_tile)  # [BLOCK_M, BLOCK_D]
    places = dq.ptr + b.to(tl.int64) * dq.strides[0] + h.to(tl.int64) * dq.strides[1]
    places = places + offs_m.to(tl.int64)[:, None] * dq.strides[2] + offs_d[None, :] * dq.strides[3]
    tl.atomic_add(places, dq_part, mask=(offs_m[:, None] < S_q) & (offs_d[None, :] < D), sem="relaxed")
    return dk, dv


@triton.jit
def atomic_kernel(q, k, v, do, dq, dk, dv, lse_ptr, delta_ptr, H, S_q, S_k, D, scale,
                  IS_CAUSAL: tl.constexpr, RAGGED: tl.constexpr,
                  BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """backward.dkdv_kernel without groups, which also adds up dq: Heads of (B, H, S_q, D) float32, zeros at first."""
    key_blocks = tl.cdiv(S_k, BLOCK_N)
    start_n = tl.program_id(0) % key_blocks * BLOCK_N
    batch_head = tl.program_id(0) // key_blocks
    b, h = batch_head // H, batch_head % H

    k_tile = load_tile(k, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    v_tile = load_tile(v, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)

    first_seeing = start_n + tl.arange(0, BLOCK_N) - (S_k - S_q)  # [BLOCK_N]
    row = batch_head.to(tl.int64) * S_q
    first_m, full_m = 0, 0
    if IS_CAUSAL:
        first_m = tl.maximum(start_n + S_q - S_k, 0) // BLOCK_M * BLOCK_M
        last_key = tl.minimum(start_n + BLOCK_N, S_k) - 1
        full_m = tl.cdiv(tl.maximum(last_key + S_q - S_k, 0), BLOCK_M) * BLOCK_M
    for start_m in tl.range(full_m, S_q, BLOCK_M, disable_licm=True):
        dk_acc, dv_acc = add_to_all(
            k_tile, v_tile, dk_acc, dv_acc, q, do, dq, lse_ptr + row, delta_ptr + row,
            b, h, start_m, first_seeing, S_k - start_n, S_q, D, scale, False, RAGGED, BLOCK_M, BLOCK_D)  # fmt: skip
    if IS_CAUSAL:
        for start_m in tl.range(first_m, tl.minimum(full_m, S_q), BLOCK_M, num_stages=1, disable_licm=True):
            dk_acc, dv_acc = add_to_all(
                k_tile, v_tile, dk_acc, dv_acc, q, do, dq, lse_ptr + row, delta_ptr + row,
                b, h, start_m, first_seeing, S_k - start_n, S_q, D, scale, True, RAGGED, BLOCK_M, BLOCK_D)  # fmt: skip
    store_tile(dk, dk_acc * scale, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)
    store_tile(dv, dv_acc, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)
