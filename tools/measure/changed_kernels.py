"""Kernels of chapters 3, 5 and 7 otherwise: the matmul without its loads, the forward with one loop that masks every
tile, and the backward with tiles that are transposed later.

Each takes the place of the package's own while it is measured.
"""

from fa_tutorial.forward import attend
from fa_tutorial.hardware import require_triton
from fa_tutorial.matmul import grouped_tile_device
from fa_tutorial.tiles import dot, load_tile, store_tile

triton = require_triton("Measuring (tools/measure)")
import triton.language as tl  # noqa: E402


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
def one_loop_kernel(q, k, v, o, lse_ptr, H_q, H_k, S_q, S_k, D, scale, IS_CAUSAL: tl.constexpr,
                    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """forward.flash_forward_kernel with every tile masked, in one loop that loads ahead."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    start_m = tl.program_id(0) % row_blocks * BLOCK_M
    batch_head = tl.program_id(0) // row_blocks
    b, h = batch_head // H_q, batch_head % H_q
    h_k = h // (H_q // H_k)

    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    last_seen = tl.full((BLOCK_M,), S_k - 1, dtype=tl.int32)  # [BLOCK_M]
    end = S_k
    if IS_CAUSAL:
        last_seen = offs_m + (S_k - S_q)
        end = tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q
    for start_n in range(0, end, BLOCK_N):
        m, l, acc = attend(q_tile, k, v, m, l, acc, b, h_k, start_n, last_seen, S_k, D, scale,
                           True, BLOCK_N, BLOCK_D)  # fmt: skip

    l_or_one = tl.where(l == 0.0, 1.0, l)
    store_tile(o, acc / l_or_one[:, None], b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)
    lse = m + tl.log(l_or_one)
    tl.store(lse_ptr + batch_head.to(tl.int64) * S_q + offs_m, lse, mask=offs_m < S_q)


@triton.jit
def add_to_dkdv_transposed_later(k_tile, v_tile, dk, dv, q, do, lse_ptr, delta_ptr, b, h, start_m, first_seeing,
                                 S_q, D, scale,
                                 MASK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """backward.add_to_dkdv with tiles [BLOCK_M, BLOCK_N], of which p and ds are transposed for dv and dk."""
    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    do_tile = load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    lse = tl.load(lse_ptr + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
    delta = tl.load(delta_ptr + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
    s = scale * dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N]
    p = tl.exp(s - lse[:, None])  # [BLOCK_M, BLOCK_N]
    if MASK:
        p = tl.where(offs_m[:, None] >= first_seeing[None, :], p, 0.0)
    dv = dot(tl.trans(p.to(do_tile.dtype)), do_tile, dv)  # [BLOCK_N, BLOCK_D]
    dp = dot(do_tile, tl.trans(v_tile))  # [BLOCK_M, BLOCK_N]
    ds = p * (dp - delta[:, None])  # [BLOCK_M, BLOCK_N]
    dk = dot(tl.trans(ds.to(q_tile.dtype)), q_tile, dk)  # [BLOCK_N, BLOCK_D]
    return dk, dv
