"""Chapter 2: how a tensor lies in memory, and the first kernels: vector add, transposing copy, fused row softmax.

A kernel gets a tensor's pointer, shape and strides, and reads the element at pointer + Σ index · stride. Its launcher
checks the arguments, and raises TypeError for a wrong type or dtype, ValueError for shapes, devices and values that do
not fit, and RuntimeError for CPU tensors while the interpreter is off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from fa_tutorial.arguments import FLOAT_DTYPES, check_alike, check_int, check_tensor
from fa_tutorial.hardware import on_device_of, require_kernel_device, require_triton
from fa_tutorial.tiles import check_block

triton = require_triton("Chapter 2 (fa_tutorial.layout)")
import triton.language as tl  # noqa: E402

MAX_GRID_Y = 65_535  # programs along a grid's second axis; the first axis takes 2**31 − 1
MAX_SOFTMAX_COLUMNS = 65_536  # one program holds a whole row in registers


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a row-major tensor: stride[i] is the product of the later sizes (2.2).

    A size of 0 counts as 1, so that the strides agree with torch.empty(shape).stride().
    """
    sizes = [max(check_int("every size in shape", size, 0), 1) for size in shape]
    return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))


def flat_offset(index: Sequence[int], strides: Sequence[int]) -> int:
    """Element offset of `index` from the tensor's first element: Σ index[i] · stride[i] (2.1)."""
    if len(index) != len(strides):
        raise ValueError(f"index and strides must have one length, got {len(index)} and {len(strides)}")
    pairs = zip(index, strides, strict=True)
    return sum(check_int("every index", i, 0) * check_int("every stride", stride, 0) for i, stride in pairs)


SECTOR_BYTES = 32  # what a GPU's memory delivers at once


def sectors(strides: Sequence[int], tile: Sequence[int], itemsize: int, start: int = 0) -> int:
    """How many sectors of 32 bytes a tile of a matrix touches: what memory has to deliver for it.

    strides: elements from one row to the next, and from one column to the next. tile: rows and columns. itemsize: bytes
    of an element. start: where the tile's first element lies, in elements from the beginning of a sector.
    """
    offsets = [check_int("start", start, 0)]
    for stride, size in zip(strides, tile, strict=True):
        steps = check_int("every stride", stride, 0) * torch.arange(check_int("every size in tile", size))
        offsets = torch.as_tensor(offsets)[..., None] + steps
    return (offsets * check_int("itemsize", itemsize) // SECTOR_BYTES).unique().numel()


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out = x + y over n contiguous elements (2.3); program i takes elements i·BLOCK … (i+1)·BLOCK − 1.

    x_ptr, y_ptr, out_ptr: (n,) contiguous, with the same float dtype. Grid: (ceil(n / BLOCK),).
    """
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)  # float32: the interpreter cannot add bf16
    y = tl.load(y_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, (x + y).to(out_ptr.dtype.element_ty), mask=mask)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x + y by add_kernel. x, y: same shape, same dtype (fp16, bf16 or fp32). Returns a contiguous tensor.

    The kernel reads memory in order and ignores strides, so inputs that are not contiguous are copied first.
    """
    check_tensor("x", x, dtypes=FLOAT_DTYPES)
    check_tensor("y", y, dtypes=FLOAT_DTYPES)
    check_alike(x=x, y=y)
    if x.shape != y.shape:
        raise ValueError(f"x and y must have one shape, got {tuple(x.shape)} and {tuple(y.shape)}")
    require_kernel_device(x, "x")
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    block = 1024
    if x.numel():
        with on_device_of(x):
            add_kernel[(triton.cdiv(x.numel(), block),)](x, y, out, x.numel(), BLOCK=block)
    return out


@triton.jit
def transpose_kernel(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                     BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    """out[c, r] = x[r, c] (2.4); program (i, j) copies tile (i, j) of x, of shape (BLOCK_R, BLOCK_C), to tile (j, i) of
    out.

    x_ptr: (rows, cols) with strides stride_xr, stride_xc. out_ptr: (cols, rows) with strides stride_or, stride_oc.
    Grid: (ceil(rows / BLOCK_R), ceil(cols / BLOCK_C)).
    """
    offs_r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)  # [BLOCK_R]
    offs_c = tl.program_id(1).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)  # [BLOCK_C]
    mask = (offs_r[:, None] < rows) & (offs_c[None, :] < cols)  # [BLOCK_R, BLOCK_C]
    x = tl.load(x_ptr + offs_r[:, None] * stride_xr + offs_c[None, :] * stride_xc, mask=mask, other=0.0)
    # The tile is not rearranged: only the addresses differ. The compiler swaps elements between threads in shared
    # memory, so that threads next to each other load and store addresses next to each other.
    tl.store(out_ptr + offs_c[None, :] * stride_or + offs_r[:, None] * stride_oc, x, mask=mask)


def transpose_copy(x: torch.Tensor, block_r: int = 32, block_c: int = 32) -> torch.Tensor:
    """A contiguous (cols, rows) copy of the transpose of x. x: (rows, cols), any strides, fp16, bf16 or fp32.

    block_r, block_c: the tile's shape, powers of two.
    """
    check_tensor("x", x, ndim=2, dtypes=FLOAT_DTYPES)
    check_block("block_r", block_r)
    check_block("block_c", block_c)
    require_kernel_device(x, "x")
    rows, cols = x.shape
    grid = (triton.cdiv(rows, block_r), triton.cdiv(cols, block_c))
    if grid[1] > MAX_GRID_Y:
        most = f"at most {MAX_GRID_Y} fit on the grid's second axis"
        raise ValueError(f"{cols} columns make {grid[1]} tiles of {block_c}; {most}")
    out = torch.empty((cols, rows), dtype=x.dtype, device=x.device)
    if x.numel():
        with on_device_of(x):
            transpose_kernel[grid](x, out, rows, cols, *x.stride(), *out.stride(), BLOCK_R=block_r, BLOCK_C=block_c)
    return out


@triton.jit
def softmax_kernel(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    """out = softmax(x) over each row (1.3). Each element is read once and written once: the row stays in registers in
    between.

    x_ptr, out_ptr: (rows, cols), column stride 1, row strides stride_x and stride_out. BLOCK ≥ cols. Grid: (rows,).
    """
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)  # [BLOCK]
    mask = offs < cols
    # −inf past the end of the row is never the maximum, and exp turns it into 0 for the sum.
    x = tl.load(x_ptr + row * stride_x + offs, mask=mask, other=-float("inf")).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    y = p / tl.sum(p, axis=0)
    tl.store(out_ptr + row * stride_out + offs, y.to(out_ptr.dtype.element_ty), mask=mask)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the rows of x by softmax_kernel. x: (rows, cols), fp16, bf16 or fp32, 1 ≤ cols ≤ 65,536.

    The row stride may be anything. If the column stride is not 1, x is copied first. Returns a contiguous tensor.
    """
    check_tensor("x", x, ndim=2, dtypes=FLOAT_DTYPES)
    require_kernel_device(x, "x")
    rows, cols = x.shape
    if not 1 <= cols <= MAX_SOFTMAX_COLUMNS:
        raise ValueError(f"x must have 1 to {MAX_SOFTMAX_COLUMNS} columns, got shape {tuple(x.shape)}")
    if x.stride(1) != 1:
        x = x.contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if rows:
        block = triton.next_power_of_2(cols)
        with on_device_of(x):
            softmax_kernel[(rows,)](x, out, cols, x.stride(0), out.stride(0), BLOCK=block, num_warps=row_warps(block))
    return out


def row_warps(block: int) -> int:
    """Warps for one row of `block` elements: about 8 elements per thread, at least 1 warp and at most 16."""
    return min(max(block // 256, 1), 16)
