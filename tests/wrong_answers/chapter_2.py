"""Wrong answers to the exercises of chapter 2, each with words that its diagnosis must hold. The kernels are real ones."""

from __future__ import annotations

import itertools
import math

import torch

from fa_tutorial.hardware import require_triton
from wrong_answers import WrongAnswer

triton = require_triton("Chapter 2's wrong answers")
import triton.language as tl  # noqa: E402

# ---------------------------------------------------------------- 2.1


def _strides_column_major(shape):
    return tuple(math.prod(shape[:i]) for i in range(len(shape)))


def _strides_reversed(shape):
    return tuple(math.prod(shape[i + 1 :]) for i in reversed(range(len(shape))))


def _strides_with_own_size(shape):
    return tuple(math.prod(shape[i:]) for i in range(len(shape)))


def _strides_in_bytes(shape):
    return tuple(4 * math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _strides_next_size(shape):
    return (*shape[1:], 1)


def _strides_summed(shape):
    return tuple(sum(shape[i + 1 :]) if i + 1 < len(shape) else 1 for i in range(len(shape)))


def _strides_zero_for_one(shape):
    return tuple(0 if size == 1 else math.prod(shape[i + 1 :]) for i, size in enumerate(shape))


def _strides_scalar_has_one(shape):
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))) or (1,)


def _strides_in_float32(shape):
    later = torch.tensor([*reversed(shape[1:]), 1.0], dtype=torch.float32).roll(1)
    return tuple(int(stride) for stride in reversed(later[: len(shape)].cumprod(0).tolist()))


def _strides_as_generator(shape):
    return (math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _strides_printed(shape):
    print(end="")


# ---------------------------------------------------------------- 2.2


def _offset_without_strides(index, strides):
    return sum(index)


def _offset_product(index, strides):
    return math.prod(i * stride for i, stride in zip(index, strides, strict=True))


def _offset_from_one(index, strides):
    return 1 + sum(i * stride for i, stride in zip(index, strides, strict=True))


def _offset_strides_reversed(index, strides):
    return sum(i * stride for i, stride in zip(index, reversed(strides), strict=True))


def _offset_last_stride_one(index, strides):
    return sum(i * stride for i, stride in zip(index, (*strides[:-1], 1), strict=False))


def _offset_in_bytes(index, strides):
    return 4 * sum(i * stride for i, stride in zip(index, strides, strict=True))


def _offset_strides_sorted(index, strides):
    return sum(i * stride for i, stride in zip(index, sorted(strides, reverse=True), strict=True))


def _offset_zero_stride_is_one(index, strides):
    return sum(i * (stride or 1) for i, stride in zip(index, strides, strict=True))


def _offset_two_dimensions(index, strides):
    return sum(i * stride for i, stride in itertools.islice(zip(index, strides, strict=True), 2))


def _offset_in_int32(index, strides):
    return int((torch.tensor(index, dtype=torch.int32) * torch.tensor(strides, dtype=torch.int32)).sum(dtype=torch.int32))


# ---------------------------------------------------------------- 2.3


@triton.jit
def _add_without_masks(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) + tl.load(y_ptr + offs))


@triton.jit
def _add_without_load_mask(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    y = tl.load(y_ptr + offs)
    tl.store(out_ptr + offs, x + y, mask=offs < n)


@triton.jit
def _add_without_store_mask(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    y = tl.load(y_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, x + y)


@triton.jit
def _add_mask_one_too_far(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs <= n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0)
    tl.store(out_ptr + offs, x + y, mask=mask)


@triton.jit
def _add_mask_one_too_short(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n - 1
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0)
    tl.store(out_ptr + offs, x + y, mask=mask)


@triton.jit
def _add_mask_of_lanes(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    offs = tl.program_id(0) * BLOCK + lanes
    x = tl.load(x_ptr + offs, mask=lanes < n, other=0.0)
    y = tl.load(y_ptr + offs, mask=lanes < n, other=0.0)
    tl.store(out_ptr + offs, x + y, mask=lanes < n)


@triton.jit
def _add_id_not_multiplied(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0)
    tl.store(out_ptr + offs, x + y, mask=mask)


@triton.jit
def _add_first_block_only(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0)
    tl.store(out_ptr + offs, x + y, mask=mask)


@triton.jit
def _add_everything_in_every_program(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < n
        x = tl.load(x_ptr + offs, mask=mask, other=0.0)
        y = tl.load(y_ptr + offs, mask=mask, other=0.0)
        tl.store(out_ptr + offs, x + y, mask=mask)


@triton.jit
def _add_first_program_only(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    if pid == 0:
        mask = offs < n
        x = tl.load(x_ptr + offs, mask=mask, other=0.0)
        y = tl.load(y_ptr + offs, mask=mask, other=0.0)
        tl.store(out_ptr + offs, x + y, mask=mask)


@triton.jit
def _add_loads_without_id(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    offs = tl.program_id(0) * BLOCK + lanes
    x = tl.load(x_ptr + lanes, mask=offs < n, other=0.0)
    y = tl.load(y_ptr + lanes, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, x + y, mask=offs < n)


@triton.jit
def _add_x_twice(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    y = tl.load(x_ptr + offs, mask=mask, other=0.0)
    tl.store(out_ptr + offs, x + y, mask=mask)


@triton.jit
def _add_into_x(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0)
    tl.store(x_ptr + offs, x + y, mask=mask)


@triton.jit
def _add_never_stores(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    out = tl.load(x_ptr + offs, mask=mask, other=0.0) + tl.load(y_ptr + offs, mask=mask, other=0.0)  # noqa: F841


@triton.jit
def _add_in_half(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0)
    tl.store(out_ptr + offs, (x + y).to(tl.float16), mask=mask)


@triton.jit
def _add_unknown_name(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offs < n)  # noqa: F821
    tl.store(out_ptr + offs, x, mask=offs < n)


@triton.jit
def _add_indexes_pointers(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    out_ptr[offs] = x_ptr[offs] + y_ptr[offs]


@triton.jit
def _add_block_not_constexpr(x_ptr, y_ptr, out_ptr, n, BLOCK):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask) + tl.load(y_ptr + offs, mask=mask), mask=mask)


@triton.jit
def _add_without_n(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) + tl.load(y_ptr + offs))


def _add_plain_function(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask) + tl.load(y_ptr + offs, mask=mask), mask=mask)


# ---------------------------------------------------------------- 2.4


@triton.jit
def _transpose_x_strides_swapped(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                                 BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    mask = (offs_r < rows) & (offs_c < cols)
    x = tl.load(x_ptr + offs_r * stride_xc + offs_c * stride_xr, mask=mask, other=0.0)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, x, mask=mask)


@triton.jit
def _transpose_out_strides_swapped(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                                   BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    mask = (offs_r < rows) & (offs_c < cols)
    x = tl.load(x_ptr + offs_r * stride_xr + offs_c * stride_xc, mask=mask, other=0.0)
    tl.store(out_ptr + offs_r * stride_or + offs_c * stride_oc, x, mask=mask)


@triton.jit
def _transpose_copies(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                      BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    mask = (offs_r < rows) & (offs_c < cols)
    offs = offs_r * stride_xr + offs_c * stride_xc
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask, other=0.0), mask=mask)


@triton.jit
def _transpose_mask_swapped(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                            BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    mask = (offs_r < cols) & (offs_c < rows)
    x = tl.load(x_ptr + offs_r * stride_xr + offs_c * stride_xc, mask=mask, other=0.0)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, x, mask=mask)


@triton.jit
def _transpose_first_tile_only(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                               BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = tl.arange(0, BLOCK_R)[:, None]
    offs_c = tl.arange(0, BLOCK_C)[None, :]
    mask = (offs_r < rows) & (offs_c < cols)
    x = tl.load(x_ptr + offs_r * stride_xr + offs_c * stride_xc, mask=mask, other=0.0)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, x, mask=mask)


@triton.jit
def _transpose_first_columns_only(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                                  BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = tl.arange(0, BLOCK_C)[None, :]
    mask = (offs_r < rows) & (offs_c < cols)
    x = tl.load(x_ptr + offs_r * stride_xr + offs_c * stride_xc, mask=mask, other=0.0)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, x, mask=mask)


@triton.jit
def _transpose_ids_swapped(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                           BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    mask = (offs_r < rows) & (offs_c < cols)
    x = tl.load(x_ptr + offs_r * stride_xr + offs_c * stride_xc, mask=mask, other=0.0)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, x, mask=mask)


@triton.jit
def _transpose_one_id(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                      BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    pid = tl.program_id(0)
    offs_r = (pid * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (pid * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    mask = (offs_r < rows) & (offs_c < cols)
    x = tl.load(x_ptr + offs_r * stride_xr + offs_c * stride_xc, mask=mask, other=0.0)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, x, mask=mask)


@triton.jit
def _transpose_ids_not_multiplied(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                                  BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(1) + tl.arange(0, BLOCK_C))[None, :]
    mask = (offs_r < rows) & (offs_c < cols)
    x = tl.load(x_ptr + offs_r * stride_xr + offs_c * stride_xc, mask=mask, other=0.0)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, x, mask=mask)


@triton.jit
def _transpose_block_r_for_columns(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                                   BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_C))[None, :]
    mask = (offs_r < rows) & (offs_c < cols)
    x = tl.load(x_ptr + offs_r * stride_xr + offs_c * stride_xc, mask=mask, other=0.0)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, x, mask=mask)


@triton.jit
def _transpose_without_row_mask(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                                BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    x = tl.load(x_ptr + offs_r * stride_xr + offs_c * stride_xc, mask=offs_c < cols, other=0.0)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, x, mask=offs_c < cols)


@triton.jit
def _transpose_without_column_mask(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                                   BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    x = tl.load(x_ptr + offs_r * stride_xr + offs_c * stride_xc, mask=offs_r < rows, other=0.0)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, x, mask=offs_r < rows)


@triton.jit
def _transpose_mask_without_brackets(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                                     BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    mask = offs_r < rows & offs_c < cols
    x = tl.load(x_ptr + offs_r * stride_xr + offs_c * stride_xc, mask=mask, other=0.0)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, x, mask=mask)


@triton.jit
def _transpose_without_load_mask(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                                 BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    x = tl.load(x_ptr + offs_r * stride_xr + offs_c * stride_xc)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, x, mask=(offs_r < rows) & (offs_c < cols))


@triton.jit
def _transpose_x_contiguous(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                            BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    mask = (offs_r < rows) & (offs_c < cols)
    x = tl.load(x_ptr + offs_r * cols + offs_c, mask=mask, other=0.0)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, x, mask=mask)


@triton.jit
def _transpose_x_column_stride_one(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                                   BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    mask = (offs_r < rows) & (offs_c < cols)
    x = tl.load(x_ptr + offs_r * stride_xr + offs_c, mask=mask, other=0.0)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, x, mask=mask)


@triton.jit
def _transpose_out_contiguous(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                              BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    mask = (offs_r < rows) & (offs_c < cols)
    x = tl.load(x_ptr + offs_r * stride_xr + offs_c * stride_xc, mask=mask, other=0.0)
    tl.store(out_ptr + offs_c * rows + offs_r, x, mask=mask)


@triton.jit
def _transpose_tile_of_wrong_shape(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                                   BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    mask = (offs_r < rows) & (offs_c < cols)
    x = tl.load(x_ptr + offs_r * stride_xr + offs_c * stride_xc, mask=mask, other=0.0)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, tl.trans(x), mask=mask)


# ---------------------------------------------------------------- 2.5


@triton.jit
def _softmax_without_max(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < cols, other=-float("inf")).to(tl.float32)
    p = tl.exp(x)
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0), mask=offs < cols)


@triton.jit
def _softmax_without_sum(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < cols, other=-float("inf")).to(tl.float32)
    tl.store(out_ptr + row * stride_out + offs, tl.exp(x - tl.max(x, axis=0)), mask=offs < cols)


@triton.jit
def _softmax_base_two(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < cols, other=-float("inf")).to(tl.float32)
    p = tl.exp2(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0), mask=offs < cols)


@triton.jit
def _softmax_padded_with_zero(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < cols, other=0.0).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0), mask=offs < cols)


@triton.jit
def _softmax_without_other(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < cols).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0), mask=offs < cols)


@triton.jit
def _softmax_padding_in_sum(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    mask = offs < cols
    x = tl.load(x_ptr + row * stride_x + offs, mask=mask, other=-float("inf")).to(tl.float32)
    p = tl.exp(tl.where(mask, x - tl.max(x, axis=0), 0.0))
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0), mask=mask)


@triton.jit
def _softmax_padding_in_max(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    mask = offs < cols
    x = tl.load(x_ptr + row * stride_x + offs, mask=mask, other=0.0).to(tl.float32)
    p = tl.where(mask, tl.exp(x - tl.max(x, axis=0)), 0.0)
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0), mask=mask)


@triton.jit
def _softmax_finite_padding(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < cols, other=-1e9).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0), mask=offs < cols)


@triton.jit
def _softmax_without_masks(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0))


@triton.jit
def _softmax_without_store_mask(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < cols, other=-float("inf")).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0))


@triton.jit
def _softmax_first_row_only(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < cols, other=-float("inf")).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + offs, p / tl.sum(p, axis=0), mask=offs < cols)


@triton.jit
def _softmax_row_in_mask(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = row * BLOCK + tl.arange(0, BLOCK)
    mask = offs < cols
    x = tl.load(x_ptr + offs, mask=mask, other=-float("inf")).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + offs, p / tl.sum(p, axis=0), mask=mask)


@triton.jit
def _softmax_reads_row_zero(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < cols, other=-float("inf")).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0), mask=offs < cols)


@triton.jit
def _softmax_row_not_multiplied(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row + offs, mask=offs < cols, other=-float("inf")).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row + offs, p / tl.sum(p, axis=0), mask=offs < cols)


@triton.jit
def _softmax_rows_cols_apart(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + offs, mask=offs < cols, other=-float("inf")).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0), mask=offs < cols)


@triton.jit
def _softmax_one_stride(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_out + offs, mask=offs < cols, other=-float("inf")).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0), mask=offs < cols)


@triton.jit
def _softmax_out_by_stride_x(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * stride_x + tl.arange(0, BLOCK)
    mask = tl.arange(0, BLOCK) < cols
    x = tl.load(x_ptr + offs, mask=mask, other=-float("inf")).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + offs, p / tl.sum(p, axis=0), mask=mask)


@triton.jit
def _softmax_in_place(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < cols, other=-float("inf")).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(x_ptr + row * stride_x + offs, p / tl.sum(p, axis=0), mask=offs < cols)


@triton.jit
def _softmax_in_half(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < cols, other=-float("inf"))
    p = tl.exp((x - tl.max(x, axis=0)).to(tl.float32)).to(x_ptr.dtype.element_ty)
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0), mask=offs < cols)


@triton.jit
def _softmax_axis_one(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < cols, other=-float("inf")).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=1))
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=1), mask=offs < cols)


WRONG_ANSWERS = (
    WrongAnswer("2.1", _strides_column_major, "the strides are column-major"),
    WrongAnswer("2.1", _strides_reversed, "the strides are in reverse order"),
    WrongAnswer("2.1", _strides_with_own_size, "own size does not count"),
    WrongAnswer("2.1", _strides_in_bytes, "strides count elements, not bytes"),
    WrongAnswer("2.1", _strides_next_size, "the next size alone"),
    WrongAnswer("2.1", _strides_summed, "the sizes are added"),
    WrongAnswer("2.1", _strides_zero_for_one, "the strides of size 1 are set to 0"),
    WrongAnswer("2.1", _strides_scalar_has_one, "without dimensions has no strides"),
    WrongAnswer("2.1", _strides_in_float32, "large strides must be exact"),
    WrongAnswer("2.1", _strides_as_generator, "returns a generator, want a tuple"),
    WrongAnswer("2.1", _strides_printed, "is the return missing?"),
    WrongAnswer("2.2", _offset_without_strides, "the strides are not used"),
    WrongAnswer("2.2", _offset_product, "the products are multiplied"),
    WrongAnswer("2.2", _offset_from_one, "1 is added"),
    WrongAnswer("2.2", _offset_strides_reversed, "the strides are taken in reverse order"),
    WrongAnswer("2.2", _offset_last_stride_one, "the last stride is taken for 1"),
    WrongAnswer("2.2", _offset_in_bytes, "the offset is counted in bytes"),
    WrongAnswer("2.2", _offset_strides_sorted, "the strides are sorted first"),
    WrongAnswer("2.2", _offset_zero_stride_is_one, "a stride of 0 is taken for 1"),
    WrongAnswer("2.2", _offset_two_dimensions, "only two dimensions are added up"),
    WrongAnswer("2.2", _offset_in_int32, "large offsets must be exact"),
    WrongAnswer("2.3", _add_without_masks, "runs past the end"),
    WrongAnswer("2.3", _add_without_load_mask, "runs past the end"),
    WrongAnswer("2.3", _add_without_store_mask, "writes outside out"),
    WrongAnswer("2.3", _add_mask_one_too_far, "runs past the end"),
    WrongAnswer("2.3", _add_mask_one_too_short, "the last element is masked out"),
    WrongAnswer("2.3", _add_mask_of_lanes, "runs past the end"),
    WrongAnswer("2.3", _add_id_not_multiplied, "multiply program_id(0) by BLOCK"),
    WrongAnswer("2.3", _add_first_block_only, "every program works on the first BLOCK elements"),
    WrongAnswer("2.3", _add_everything_in_every_program, "added more than once"),
    WrongAnswer("2.3", _add_first_program_only, "the first BLOCK elements"),
    WrongAnswer("2.3", _add_loads_without_id, "every program reads the first BLOCK"),
    WrongAnswer("2.3", _add_x_twice, "y is never read"),
    WrongAnswer("2.3", _add_into_x, "writes to x, which is an input"),
    WrongAnswer("2.3", _add_never_stores, "nothing is stored"),
    WrongAnswer("2.3", _add_in_half, "rounded to half precision"),
    WrongAnswer("2.3", _add_unknown_name, "`x = tl.load(x_ptr + offsets"),
    WrongAnswer("2.3", _add_indexes_pointers, "a pointer takes no index"),
    WrongAnswer("2.3", _add_block_not_constexpr, "must be annotated tl.constexpr"),
    WrongAnswer("2.3", _add_without_n, "keep the parameters of the starter"),
    WrongAnswer("2.3", _add_plain_function, "put @triton.jit above it"),
    WrongAnswer("2.4", _transpose_x_strides_swapped, "element (r, c) of x lies at r · stride_xr + c · stride_xc"),
    WrongAnswer("2.4", _transpose_out_strides_swapped, "the output's strides are swapped"),
    WrongAnswer("2.4", _transpose_copies, "out holds the elements in x's order"),
    WrongAnswer("2.4", _transpose_mask_swapped, "rows and cols are swapped in the mask"),
    WrongAnswer("2.4", _transpose_first_tile_only, "every program works on the first tile"),
    WrongAnswer("2.4", _transpose_first_columns_only, "only the first BLOCK_C columns"),
    WrongAnswer("2.4", _transpose_ids_swapped, "the program ids are swapped"),
    WrongAnswer("2.4", _transpose_one_id, "program_id(0) is used for both axes"),
    WrongAnswer("2.4", _transpose_ids_not_multiplied, "the program ids are not multiplied"),
    WrongAnswer("2.4", _transpose_block_r_for_columns, "BLOCK_R is used for the columns"),
    WrongAnswer("2.4", _transpose_without_row_mask, "runs past x's last row"),
    WrongAnswer("2.4", _transpose_without_column_mask, "runs past x's last column"),
    WrongAnswer("2.4", _transpose_mask_without_brackets, "& binds closer than <", on_gpu="does not run"),
    WrongAnswer("2.4", _transpose_without_load_mask, "runs past"),
    WrongAnswer("2.4", _transpose_x_contiguous, "x is read as if it were contiguous"),
    WrongAnswer("2.4", _transpose_x_column_stride_one, "x may be any view"),
    WrongAnswer("2.4", _transpose_out_contiguous, "out is written as if it were contiguous"),
    WrongAnswer("2.4", _transpose_tile_of_wrong_shape, "does not run"),
    WrongAnswer("2.5", _softmax_without_max, "exp overflows"),
    WrongAnswer("2.5", _softmax_without_sum, "is not divided by its sum"),
    WrongAnswer("2.5", _softmax_base_two, "the base is 2"),
    WrongAnswer("2.5", _softmax_padded_with_zero, "count in the sum"),
    WrongAnswer("2.5", _softmax_without_other, "past the row's end"),
    WrongAnswer("2.5", _softmax_padding_in_sum, "add exp(0) = 1 to the sum"),
    WrongAnswer("2.5", _softmax_padding_in_max, "which is never the maximum"),
    WrongAnswer("2.5", _softmax_finite_padding, "a finite other= is larger than some row"),
    WrongAnswer("2.5", _softmax_without_masks, "runs past the row's end"),
    WrongAnswer("2.5", _softmax_without_store_mask, "writes outside out"),
    WrongAnswer("2.5", _softmax_first_row_only, "only row 0 is written: row i of out starts at i · stride_out"),
    WrongAnswer("2.5", _softmax_row_in_mask, "in every row the mask counts its lanes from 0"),
    WrongAnswer("2.5", _softmax_reads_row_zero, "every program reads row 0"),
    WrongAnswer("2.5", _softmax_row_not_multiplied, "row i starts at element i"),
    WrongAnswer("2.5", _softmax_rows_cols_apart, "row i starts at i · stride_x in x"),
    WrongAnswer("2.5", _softmax_one_stride, "row i starts at i · stride_x in x"),
    WrongAnswer("2.5", _softmax_out_by_stride_x, "and at i · stride_out in out"),
    WrongAnswer("2.5", _softmax_in_place, "writes to x, which is an input"),
    WrongAnswer("2.5", _softmax_in_half, "computed in half precision"),
    WrongAnswer("2.5", _softmax_axis_one, "does not run"),
)
