import math

import torch
from edits import edit

from fa_tutorial.hardware import require_triton

triton = require_triton("Chapter 2's right answers")
import triton.language as tl  # noqa: E402


@triton.jit
def transpose_kernel_flat(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                          BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):  # fmt: skip
    # One vector over the tile: lane t is row t // BLOCK_C and column t % BLOCK_C of it.
    lane = tl.arange(0, BLOCK_R * BLOCK_C)
    r = tl.program_id(0) * BLOCK_R + lane // BLOCK_C
    c = tl.program_id(1) * BLOCK_C + lane % BLOCK_C
    inside = (r < rows) & (c < cols)
    tl.store(out_ptr + c * stride_or + r * stride_oc, tl.load(x_ptr + r * stride_xr + c * stride_xc, mask=inside), mask=inside)


@triton.jit
def softmax_kernel_named(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    # A local with the name of Triton's own function; the padding is taken out of the sum by the mask.
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, offs < cols, -float("inf")).to(tl.float32)
    softmax = tl.where(offs < cols, tl.exp(x - tl.max(x)), 0.0)
    softmax /= tl.sum(softmax)
    tl.store(out_ptr + row * stride_out + offs, softmax.to(out_ptr.dtype.element_ty), offs < cols)


@triton.jit
def softmax_of_rows_kept(x_ptr, out_ptr, cols, stride_x, stride_out, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    # keep_dims in place of [:, None], and pointers that are moved; exp of the padding is 0 by itself.
    rows, offs = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    mask = (offs < cols)[None, :]
    x = tl.load(x_ptr + rows[:, None] * stride_x + offs[None, :], mask, -float("inf")).to(tl.float32)
    x -= tl.max(x, 1, keep_dims=True)
    x -= tl.log(tl.sum(tl.exp(x), 1, keep_dims=True))
    tl.store(out_ptr + rows[:, None] * stride_out + offs[None, :], tl.exp(x), mask)


RIGHT_ANSWERS = (
    edit("2.5", "a grid of the tile's sides", ("(triton.cdiv(rows, block_r)", "lambda meta: (triton.cdiv(rows, meta['BLOCK_R'])"),
         ("C=block_c)", "C=block_c, num_warps=8)")),
    ("2.1", lambda shape: [torch.tensor(shape[i + 1 :], dtype=torch.int64).prod() for i in range(len(shape))]),
    ("2.4", transpose_kernel_flat),
    ("2.7", lambda gb_s, ns, warps, sms: 2 ** max(0, math.ceil(math.log2(gb_s * ns / (8 * sms * min(32, 64 // warps))) / 2))),
    ("2.8", softmax_kernel_named),
    edit("2.8", "by the sum's logarithm", ("p = tl.exp(x - tl.max(x, axis=0))", "m = tl.max(x, axis=0)"),
         ("y = p / tl.sum(p, axis=0)", "y = tl.exp(x - m - tl.log(tl.sum(tl.exp(x - m), axis=0)))")),
    ("2.9", softmax_of_rows_kept),
)  # fmt: skip
