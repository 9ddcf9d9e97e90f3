"""Chapter 3: matmul by tiles, the loop that every attention kernel is built on.

matmul computes a product tile by tile with a float32 accumulator, in an order of programs that share what they read;
strips_per_wave counts what that order saves. scores_times_values computes (q kᵀ) v by blocks: flash attention without
its softmax. A wrong type raises TypeError; shapes, devices and values that do not fit raise ValueError
(fa_tutorial.arguments).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_tutorial.arguments import FLOAT_DTYPES, check_alike, check_finite, check_int, check_tensor
from fa_tutorial.hardware import card_of, on_device_of, require_kernel_device, require_triton
from fa_tutorial.tiles import MIN_DOT, check_block, dot

triton = require_triton("Chapter 3 (fa_tutorial.matmul)")
import triton.language as tl  # noqa: E402


def blocked_matmul(a: torch.Tensor, b: torch.Tensor, block_m: int, block_n: int, block_k: int) -> torch.Tensor:
    """a @ b by tiles, in PyTorch: the twin of matmul_kernel, tile for tile (3.2).

    a: (M, K), b: (K, N), one float dtype, any sizes: the last tiles may be smaller. Accumulates in float32
    (float64 for float64).
    """
    check_tensor("a", a, ndim=2)
    check_tensor("b", b, ndim=2)
    check_product(a, b)
    (M, K), N = a.shape, b.shape[1]
    block_m, block_n, block_k = (
        check_int("block_m", block_m),
        check_int("block_n", block_n),
        check_int("block_k", block_k),
    )
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    acc_dtype = torch.promote_types(a.dtype, torch.float32)
    for m in range(0, M, block_m):
        for n in range(0, N, block_n):
            tile = c[m : m + block_m, n : n + block_n]
            acc = torch.zeros(tile.shape, dtype=acc_dtype, device=a.device)  # [block_m, block_n]
            for k in range(0, K, block_k):
                acc += a[m : m + block_m, k : k + block_k].to(acc_dtype) @ b[k : k + block_k, n : n + block_n].to(
                    acc_dtype
                )
            tile.copy_(acc)
    return c


def check_product(a: torch.Tensor, b: torch.Tensor) -> None:
    """Raise unless a (M, K) and b (K, N) can be multiplied: one dtype, one device, one K."""
    check_alike(a=a, b=b)
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"a's columns must match b's rows, got shapes {tuple(a.shape)} and {tuple(b.shape)}")


def grouped_tile(pid, tiles_m, tiles_n, group):
    """The tile (tile_m, tile_n) that program `pid` computes when programs go down bands of `group` rows of tiles.

    Within a band the row changes fastest. The last band may have fewer rows. group = 1 is row order. Integers in,
    integers out.
    """
    band_size = group * tiles_n
    first_row = (pid // band_size) * group
    rows = min(tiles_m - first_row, group)
    within = pid % band_size
    return first_row + within % rows, within // rows


# The same source runs in the kernel: integer arithmetic means the same in Python and in Triton.
grouped_tile_device = triton.jit(grouped_tile)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K,
                  stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                  BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                  GROUP: tl.constexpr = 1):  # fmt: skip
    """c = a @ b (3.2): one program computes one (BLOCK_M, BLOCK_N) tile of c, looping over K.

    a_ptr: (M, K), b_ptr: (K, N), c_ptr: (M, N), each with its two strides, one float dtype.
    Grid: (ceil(M / BLOCK_M) · ceil(N / BLOCK_N),), in bands of GROUP rows of tiles;
    GROUP = 1 is row order.
    """
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = grouped_tile_device(tl.program_id(0), tiles_m, tiles_n, GROUP)
    offs_m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_n = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N]
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)  # [BLOCK_K]
    mask_m = offs_m[:, None] < M
    mask_n = offs_n[None, :] < N
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak  # [BLOCK_M, BLOCK_K]
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn  # [BLOCK_K, BLOCK_N]
    step = tl.full((), BLOCK_K, dtype=tl.int64)  # int64, because step * stride may pass 2**31
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        # Both loads mask K: memory beyond a tensor may hold NaN, and 0 · NaN is NaN.
        a = tl.load(a_ptrs, mask=mask_m & (offs_k[None, :] < K - k), other=0.0)
        b = tl.load(b_ptrs, mask=mask_n & (offs_k[:, None] < K - k), other=0.0)
        acc = dot(a, b, acc)
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk
    c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask_m & mask_n)


@dataclass(frozen=True)
class MatmulConfig:
    """A tile, and how a GPU runs it: rows of a, columns of b, the part of K that a step takes; group: rows of tiles in
    a band.

    The blocks are powers of two of at least 16, group is at least 1; TypeError or ValueError otherwise.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    group: int = 16

    def __post_init__(self):
        for name in ("block_m", "block_n", "block_k"):
            check_block(name, getattr(self, name), MIN_DOT)
        check_int("group", self.group)

    def shared_bytes(self, itemsize: int) -> int:
        """Bytes of shared memory that the pipeline's buffers of a and b take, or less where block_m is below 64."""
        return self.num_stages * self.block_k * (self.block_m + self.block_n) * itemsize


# Largest first; none of them spills (tools/compile_report.py). fp32 in IEEE precision does not use tensor cores, and
# Triton uses none on cards with 64 KiB of shared memory (Turing), so their tiles are smaller.
HALF_CONFIGS = (MatmulConfig(128, 256, 64, 8, 3), MatmulConfig(128, 128, 64, 8, 3), MatmulConfig(64, 64, 32, 8, 3))
FULL_CONFIGS = (MatmulConfig(64, 64, 16, 4, 3),)
INTERPRETER_CONFIG = MatmulConfig(64, 64, 64, 4, 1)


def choose_config(dtype: torch.dtype, shared_memory: int | None) -> MatmulConfig:
    """The largest configuration whose buffers fit `shared_memory` bytes; None stands for the interpreter."""
    if shared_memory is None:
        return INTERPRETER_CONFIG
    configs = FULL_CONFIGS if dtype == torch.float32 else HALF_CONFIGS
    fitting = [config for config in configs if config.shared_bytes(dtype.itemsize) <= shared_memory]
    return fitting[0] if fitting else configs[-1]


def matmul(a: torch.Tensor, b: torch.Tensor, *, config: MatmulConfig | None = None) -> torch.Tensor:
    """a @ b by matmul_kernel. a: (M, K), b: (K, N), any strides, one dtype of fp16, bf16, fp32. Returns (M, N) in that
    dtype.

    config: tile, warps, stages and order of programs; None takes choose_config's for this device.
    """
    check_tensor("a", a, ndim=2, dtypes=FLOAT_DTYPES)
    check_tensor("b", b, ndim=2, dtypes=FLOAT_DTYPES)
    check_product(a, b)
    require_kernel_device(a, "a")
    if config is None:
        config = choose_config(a.dtype, card_of(a).shared_memory)
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(M, config.block_m) * triton.cdiv(N, config.block_n),)
    if c.numel():
        with on_device_of(a):
            matmul_kernel[grid](
                a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride(),
                BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k, GROUP=config.group,
                num_warps=config.num_warps, num_stages=config.num_stages,
            )  # fmt: skip
    return c


def strips_per_wave(tiles_m: int, tiles_n: int, group: int, wave: int) -> list[int]:
    """For each wave of `wave` programs that run at the same time, how many different strips of a and b they read (3.4).

    A strip is one row of a's tiles or one column of b's. Programs of a wave can share a strip through the L2 cache.
    """
    tiles_m, tiles_n = check_int("tiles_m", tiles_m), check_int("tiles_n", tiles_n)
    group, wave = check_int("group", group), check_int("wave", wave)
    tiles = [grouped_tile(pid, tiles_m, tiles_n, group) for pid in range(tiles_m * tiles_n)]
    waves = (tiles[start : start + wave] for start in range(0, len(tiles), wave))
    return [len({m for m, _ in now}) + len({n for _, n in now}) for now in waves]


@triton.jit
def scores_values_kernel(q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, stride_qs, stride_qd, stride_ks, stride_kd,
                         stride_vs, stride_vd, stride_os, stride_od,
                         BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """o = scale · (q kᵀ) v for one head (3.6): the loop of flash attention, without the softmax.

    q_ptr, o_ptr: (S_q, D); k_ptr, v_ptr: (S_k, D); each with its two strides. BLOCK_D is D padded to a power of two.
    Grid: (ceil(S_q / BLOCK_M),). One program keeps BLOCK_M rows of q and of o, and walks over the keys.
    """
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)  # [BLOCK_D]
    mask_q = (offs_m[:, None] < S_q) & (offs_d[None, :] < D)  # [BLOCK_M, BLOCK_D]
    q = tl.load(q_ptr + offs_m[:, None] * stride_qs + offs_d[None, :] * stride_qd, mask=mask_q, other=0.0)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    for start in range(0, S_k, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N).to(tl.int64)  # [BLOCK_N]
        # kᵀ by its strides, [BLOCK_D, BLOCK_N]: the rows of this tile run along D.
        k_t = tl.load(k_ptr + offs_d[:, None] * stride_kd + offs_n[None, :] * stride_ks,
                      mask=(offs_d[:, None] < D) & (offs_n[None, :] < S_k), other=0.0)  # fmt: skip
        v = tl.load(v_ptr + offs_n[:, None] * stride_vs + offs_d[None, :] * stride_vd,
                    mask=(offs_n[:, None] < S_k) & (offs_d[None, :] < D), other=0.0)  # [BLOCK_N, BLOCK_D]  # fmt: skip
        s = scale * dot(q, k_t, tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32))  # [BLOCK_M, BLOCK_N]
        acc = dot(s.to(v.dtype), v, acc)  # [BLOCK_M, BLOCK_D]
    o_ptrs = o_ptr + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    tl.store(o_ptrs, acc.to(o_ptr.dtype.element_ty), mask=mask_q)


SCORES_VALUES_WARPS = 8  # 4 warps spill on Turing


def scores_times_values(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float = 1.0,
                        block_m: int = 32, block_n: int = 32) -> torch.Tensor:  # fmt: skip
    """scale · (q kᵀ) v by blocks; q kᵀ is never stored. q: (S_q, D), k and v: (S_k, D), D ≤ 128, fp16, bf16 or fp32.

    block_m, block_n: rows of q and of k in a tile, powers of two of at least 16. Returns (S_q, D).
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, tensor, ndim=2, dtypes=FLOAT_DTYPES)
    check_alike(q=q, k=k, v=v)
    if k.shape != v.shape or q.shape[1] != k.shape[1]:
        raise ValueError(
            f"k and v must have one shape, and q their D; got q {tuple(q.shape)}, k {tuple(k.shape)}, v "
            f"{tuple(v.shape)}"
        )
    if not 1 <= q.shape[1] <= 128:
        raise ValueError(f"D must be 1 to 128, got {q.shape[1]}")
    require_kernel_device(q, "q")
    scale = check_finite("scale", scale)
    check_block("block_m", block_m, MIN_DOT)
    check_block("block_n", block_n, MIN_DOT)
    (S_q, D), S_k = q.shape, len(k)
    o = torch.empty((S_q, D), dtype=q.dtype, device=q.device)
    if S_q:
        with on_device_of(q):
            scores_values_kernel[(triton.cdiv(S_q, block_m),)](
                q, k, v, o, S_q, S_k, D, scale, *q.stride(), *k.stride(), *v.stride(), *o.stride(), BLOCK_M=block_m,
                BLOCK_N=block_n, BLOCK_D=max(triton.next_power_of_2(D), MIN_DOT), num_warps=SCORES_VALUES_WARPS,
            )  # fmt: skip
    return o
