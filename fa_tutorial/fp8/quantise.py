"""Chapter 14: fp16 and bf16 as e4m3, with a scale for each block of rows.

q and k may be rotated (14.3), v is written as columns, in an order that spares p its shuffles (14.8).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from fa_tutorial.decode import FP8
from fa_tutorial.hardware import require_triton
from fa_tutorial.tiles import INTERPRETED, dot, heads
from fa_tutorial.tuned.launching import Launch, launch_prepared, signature_of

triton = require_triton("Chapter 14 (fa_tutorial.fp8)")
import triton.language as tl  # noqa: E402

BLOCK = 128  # rows that share a scale
COLUMNS = 16  # keys that key_order orders, and to a multiple of which v's columns are padded, as TMA wants
LEAST_SCALE = tl.constexpr(2.0**-60)  # of a block of zeros: the product of two is no subnormal number


def key_order(position):
    """The key at this position of v's columns (14.8): of 16 keys, a thread of q kᵀ holds 2c, 2c + 1, 2c + 8, 2c + 9."""
    return position // 16 * 16 + position % 4 // 2 * 8 + position % 16 // 4 * 2 + position % 2


key_order_in_triton = triton.jit(key_order)


@triton.jit
def rounded(x):
    """x, at most 448, rounded to the nearest number of e4m3, ties to even (14.1).

    The interpreter's own conversion halves a number that is rounded up to a power of two.
    """
    power = (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)  # 2^⌊log2 |x|⌋
    step = tl.maximum(power, 2.0**-6) * 2.0**-3  # between neighbours
    return ((x / step + 1.5 * 2.0**23) - 1.5 * 2.0**23) * step


@triton.jit
def as_e4m3(x):
    """x, float32 and at most 448 in size, as e4m3: rounded to the nearest, ties to even (14.1)."""
    if INTERPRETED:
        x = rounded(x)
    return x.to(tl.float8e4nv)


@triton.jit
def quantise_kernel(x, y_ptr, scale_ptr, rotation_ptr, factor, H, S, D, y_columns, blocks,
                    AS_COLUMNS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """y · scale = factor · x in e4m3, a scale for each BLOCK rows (14.2). Grid: (blocks · B · H,).

    x: Heads (B, H, S, D). rotation_ptr: None, or [BLOCK_D, BLOCK_D] of ±1 in x's dtype, by which x is
    multiplied, over √BLOCK_D (14.3). y_ptr: (B, H, S, BLOCK_D), or AS_COLUMNS
    (B, H, BLOCK_D, y_columns), its columns in key_order. scale_ptr: (B, H, blocks) float32.
    """
    block, head = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    position = block * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    rows = (key_order_in_triton(position) if AS_COLUMNS else position).to(tl.int64)  # [BLOCK]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)  # [BLOCK_D]
    of_head = x.ptr + head // H * x.strides[0] + head % H * x.strides[1]
    # [BLOCK, BLOCK_D]
    pointers = of_head + (rows[:, None] * x.strides[2] + offs_d[None, :] * x.strides[3])
    x_tile = tl.load(pointers, mask=(rows[:, None] < S) & (offs_d[None, :] < D), other=0.0)
    if rotation_ptr is None:
        x_tile = x_tile.to(tl.float32) * factor
    else:
        # [BLOCK_D, BLOCK_D]
        rotation = tl.load(rotation_ptr + (offs_d[:, None] * BLOCK_D + offs_d[None, :]))
        x_tile = dot(x_tile, rotation) * (factor * BLOCK_D**-0.5)
    scale = tl.maximum(tl.div_rn(tl.max(tl.abs(x_tile)), 448.0), LEAST_SCALE)
    y_tile = as_e4m3(x_tile * tl.div_rn(1.0, scale))
    tl.store(scale_ptr + head * blocks + block, scale)
    if AS_COLUMNS:
        pointers = y_ptr + (head * BLOCK_D + offs_d[:, None]) * y_columns + position[None, :]
        tl.store(pointers, tl.trans(y_tile), mask=position[None, :] < y_columns)
    else:
        pointers = y_ptr + (head * S + rows)[:, None] * BLOCK_D + offs_d[None, :]
        tl.store(pointers, y_tile, mask=rows[:, None] < S)


# ---------------------------------------------------------------- launching


class Quantised(NamedTuple):
    """values: e4m3, (B, H, S, BLOCK_D), or as columns (B, H, BLOCK_D, S rounded up to 16).

    scales: (B, H, blocks) float32, for BLOCK rows each.
    """

    values: torch.Tensor
    scales: torch.Tensor


@functools.cache
def random_hadamard(D: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Random signs times Hadamard's matrix, (D, D) of ±1: over √D it is orthogonal (14.3).

    D: a power of two. The signs are the same at every call.
    """
    matrix = torch.ones(1, 1)
    while len(matrix) < D:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = torch.randint(0, 2, (D, 1), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    return (signs * matrix).to(device, dtype)


def quantise(x: torch.Tensor, *, factor: float = 1.0, rotate: bool = False, as_columns: bool = False) -> Quantised:
    """factor · x in e4m3, a scale for each BLOCK rows of a head, by quantise_kernel on x's GPU, which must be current.

    x: (B, H, S, D), fp16 or bf16, any strides, finite, not empty, D at most 128; D is padded to 64 or 128 by zeros.
    rotate: by random_hadamard. as_columns: v's layout, (B, H, BLOCK_D, S), keys in key_order.
    """
    B, H, S, D = x.shape
    block_d = 64 if D <= 64 else 128
    blocks, columns = triton.cdiv(S, BLOCK), triton.cdiv(S, COLUMNS) * COLUMNS
    shape = (B, H, block_d, columns) if as_columns else (B, H, S, block_d)
    values = torch.empty(shape, dtype=FP8, device=x.device)
    scales = torch.empty((B, H, blocks), dtype=torch.float32, device=x.device)
    rotation = random_hadamard(block_d, x.dtype, x.device) if rotate else None

    def prepare() -> Launch:
        constants = {"AS_COLUMNS": as_columns, "BLOCK": BLOCK, "BLOCK_D": block_d, "num_warps": 8}
        return Launch(quantise_kernel, blocks * B * H, [heads], constants)

    key = ("quantise", as_columns, *signature_of(x))
    launch_prepared(key, prepare, (x,), (values, scales, rotation, factor, H, S, D, columns, blocks))
    return Quantised(values, scales)
