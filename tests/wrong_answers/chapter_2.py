"""Chapter 2: accesses outside the tensors, lanes that hold anything, programs that do each other's work."""

import math

from fa_tutorial.hardware import require_triton

triton = require_triton("Chapter 2's wrong answers")
import triton.language as tl  # noqa: E402


def strides_as_generator(shape):
    return (math.prod(shape[i + 1 :]) for i in range(len(shape)))


def strides_printed(shape):
    print(end="")


@triton.jit
def add_without_load_mask(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) + tl.load(y_ptr + offs), mask=offs < n)


@triton.jit
def add_without_store_mask(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) + tl.load(y_ptr + offs, mask=offs < n))


@triton.jit
def add_everything_in_every_program(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) + tl.load(y_ptr + offs, mask=offs < n), mask=offs < n)


@triton.jit
def add_with_a_block_of_n(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, n)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) + tl.load(y_ptr + offs))


@triton.jit
def transpose_without_row_mask(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                               BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    x = tl.load(x_ptr + offs_r * stride_xr + offs_c * stride_xc, mask=offs_c < cols)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, x, mask=offs_c < cols)


@triton.jit
def transpose_x_strides_swapped(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                                BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    mask = (offs_r < rows) & (offs_c < cols)
    x = tl.load(x_ptr + offs_r * stride_xc + offs_c * stride_xr, mask=mask)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, x, mask=mask)


@triton.jit
def transpose_mask_without_brackets(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                                    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    offs_c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    mask = offs_r < rows & offs_c < cols
    x = tl.load(x_ptr + offs_r * stride_xr + offs_c * stride_xc, mask=mask)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, x, mask=mask)


@triton.jit
def transpose_of_the_addresses(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                               BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = (offs_r[:, None] < rows) & (offs_c[None, :] < cols)
    x = tl.load(x_ptr + offs_r[:, None] * stride_xr + offs_c[None, :] * stride_xc, mask=mask)
    tl.store(out_ptr + offs_c[:, None] * stride_or + offs_r[None, :] * stride_oc, x, mask=mask)


@triton.jit
def transpose_without_axes(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                           BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    offs_r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    tl.store(out_ptr + offs_c * stride_or + offs_r * stride_oc, tl.load(x_ptr + offs_r * stride_xr + offs_c * stride_xc))


@triton.jit
def softmax_without_other(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < cols).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0), mask=offs < cols)


@triton.jit
def softmax_in_half(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < cols, other=-float("inf"))
    p = tl.exp((x - tl.max(x, axis=0)).to(tl.float32)).to(x_ptr.dtype.element_ty)
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0), mask=offs < cols)


@triton.jit
def softmax_exp_of_half(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < cols, other=-float("inf"))
    p = tl.exp((x - tl.max(x, axis=0)).to(x_ptr.dtype.element_ty))
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0), mask=offs < cols)


@triton.jit
def softmax_rows_side_by_side(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + offs, mask=offs < cols, other=-float("inf")).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0), mask=offs < cols)


@triton.jit
def softmax_that_loads_three_times(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    ptrs = x_ptr + row * stride_x + offs
    m = tl.max(tl.load(ptrs, mask=offs < cols, other=-float("inf")).to(tl.float32), axis=0)
    l = tl.sum(tl.exp(tl.load(ptrs, mask=offs < cols, other=-float("inf")).to(tl.float32) - m), axis=0)
    p = tl.exp(tl.load(ptrs, mask=offs < cols, other=-float("inf")).to(tl.float32) - m)
    tl.store(out_ptr + row * stride_out + offs, p / l, mask=offs < cols)


@triton.jit
def softmax_by_way_of_out(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < cols, other=-float("inf")).to(tl.float32)
    tl.store(out_ptr + row * stride_out + offs, tl.exp(x - tl.max(x, axis=0)), mask=offs < cols)
    p = tl.load(out_ptr + row * stride_out + offs, mask=offs < cols, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0), mask=offs < cols)


WRONG_ANSWERS = (
    ("2.1", strides_as_generator, "returns a generator, want a number, a tensor, or a tuple of them (brackets around a loop"),
    ("2.1", strides_printed, "is the return missing?"),
    ("2.3", add_without_load_mask, "runs past the end"),
    ("2.3", add_without_store_mask, "writes outside out"),
    ("2.3", add_everything_in_every_program, "added more than once", None),
    ("2.3", add_with_a_block_of_n, "use the block's size here, tl.arange(0, BLOCK)"),
    ("2.4", transpose_without_row_mask, "runs past x's last row"),
    ("2.4", transpose_x_strides_swapped, "element (r, c) of x lies at r · stride_xr + c · stride_xc"),
    ("2.4", transpose_mask_without_brackets, "with each comparison in brackets, because & binds closer than <", "does not run"),
    ("2.4", transpose_of_the_addresses, "(for out, only the strides change): x of shape (2, 8)"),
    ("2.4", transpose_without_axes, "broadcast to one shape: offs_r [2], offs_c [8]", "only the strides change"),
    ("2.5", softmax_without_other, "without other= a load leaves them undefined", "count in the sum"),
    ("2.5", softmax_in_half, "one edge is left: computed in half precision", "one edge is left: fp16 inputs"),
    ("2.5", softmax_exp_of_half, "takes float32, not fp16"),
    ("2.5", softmax_that_loads_three_times, "the result is right, but x is read more than once: load the row once", None),
    ("2.5", softmax_by_way_of_out, "the result is right, but out is read back: load the row once", None),
    ("2.5", softmax_rows_side_by_side, "row i starts at i · stride_x in x"),
)
