import numpy as np
import torch
from edits import edit

from fa_tutorial.matmul import tl, triton


@triton.jit
def add_everything_in_every_program(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) + tl.load(y_ptr + offs, mask=offs < n), mask=offs < n)


@triton.jit
def softmax_row_after_row(x_ptr, out_ptr, cols, stride_x, stride_out, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0) * ROWS, (tl.program_id(0) + 1) * ROWS):
        x = tl.load(x_ptr + row * stride_x + offs, mask=offs < cols, other=-float("inf")).to(tl.float32)
        p = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + row * stride_out + offs, p / tl.sum(p, axis=0), mask=offs < cols)


LOAD_X = 'x = tl.load(x_ptr + row * stride_x + offs, mask=mask, other=-float("inf")).to(tl.float32)'
THROUGH_OUT = """tl.store(out_ptr + row * stride_out + offs, p, mask=mask)
    p = tl.load(out_ptr + row * stride_out + offs, mask=mask, other=0.0).to(tl.float32)"""

WRONG_ANSWERS = (
    edit("2.1", "a stride of nothing", ("tuple(reversed(strides))", "tuple(reversed(strides)) or (1,)"), told="one edge is left: an empty shape has"),
    ("2.1", lambda shape: tuple(int(torch.tensor(shape[i + 1 :]).float().prod()) for i in range(len(shape))), "one edge is left: large strides"),
    edit("2.2", "by PyTorch", ("start = 1 * H * D", "start = torch.empty(2, S, 3, H, D)[:, :, 1].storage_offset()"), told="PyTorch found it"),
    ("2.1", lambda shape: tuple(np.prod(shape[i + 1 :]) for i in range(len(shape))), "a stride is an integer, and one of yours is a float"),
    ("2.1", lambda shape: torch.empty(shape, device="meta").stride(), "the result is right, but PyTorch found the strides"),
    edit("2.3", "no load mask", (", mask=mask, other=0.0", "", 2), told="runs past the end"),
    edit("2.3", "a block of its own", ("BLOCK +", "1024 +"), ("0, BLOCK", "0, 1024"), told="− 1, whatever BLOCK is: x of shape (5000,)"),
    edit("2.3", "offsets in bytes", ("_ptr + offs", "_ptr + offs * 4", 3), told="a pointer steps by elements, not by bytes"),
    edit("2.3", "one element a program", ("+ tl.arange(0, BLOCK)", "+ 0"), told="element i of out is x[i] + y[i]"),
    edit("2.3", "block of n", ("tl.arange(0, BLOCK)", "tl.arange(0, n)"), told="use the block's size here, tl.arange(0, BLOCK)"),
    edit("2.3", "loads in half", ("mask=mask, other=0.0)", "mask=mask, other=0.0).to(tl.float16)", 2), told="fp32 numbers are rounded"),
    edit("2.3", "sum in half", ("x + y,", "(x + y).to(tl.float16),"), told="fp32 numbers are rounded"),
    ("2.3", add_everything_in_every_program, "added more than once", None),
    edit("2.4", "no row mask", ("(offs_r[:, None] < rows) & ", ""), told="the last tiles reach past x's last row: (offs_r < rows) belongs in the mask"),
    edit("2.4", "mask without brackets",
         ("(offs_r[:, None] < rows) & (offs_c[None, :] < cols)", "offs_r[:, None] < rows & offs_c[None, :] < cols"),
         told="put each comparison in brackets", gpu="does not run"),
    edit("2.4", "turned on purpose, mask not", ("offs_c[None, :] * stride_or + offs_r[:, None]", "offs_c[:, None] * stride_or + offs_r[None, :]"),
         ("tl.load(x_ptrs, mask=mask, other=0.0)", "tl.trans(tl.load(x_ptrs, mask=mask, other=0.0))"), told="unless you turn the tile and its mask"),
    edit("2.4", "no axes", ("[:, None]", "", 3), ("[None, :]", "", 3),
         told="broadcast to one shape: offs_r [2], offs_c [8]", gpu="only the strides change"),
    edit("2.4", "in fp16", ("tl.load(x_ptrs, mask=mask, other=0.0)", "tl.load(x_ptrs, mask=mask, other=0.0).to(tl.float16)"),
         told="a copy of each element as it is"),
    edit("2.4", "out's row stride taken for rows", ("offs_c[None, :] * stride_or", "offs_c[None, :] * rows"), told="x and out may be any views"),
    edit("2.5", "out like x", ("torch.empty(cols, rows, dtype=x.dtype, device=x.device)", "torch.empty_like(x)"), told="out has the shape of x"),
    edit("2.5", "out like the view", ("torch.empty(cols, rows, dtype=x.dtype, device=x.device)", "torch.empty_like(x.t())"),
         told="the result is right, but out has the strides (1, 4): make a contiguous out"),
    edit("2.5", "contiguous first", ("    rows, cols", "    x = x.contiguous()\n    rows, cols"), told="x is copied before the launch"),
    edit("2.5", "out first", ("[grid](x, out,", "[grid](out, x,"), told="x and out are exchanged"),
    edit("2.5", "a tile of its own", ("rows, block_r)", "rows, 16)"), ("cols, block_c)", "cols, 16)"), ("=block_r", "=16"), ("=block_c", "=16"),
         told="the caller asks for tiles of (4, 4), and you launch (BLOCK_R, BLOCK_C) = (16, 16)"),
    edit("2.5", "PyTorch's copy", ("return out", "return x.t().contiguous()"), told="return what one launch of the kernel writes"),
    edit("2.5", "on the CPU", ("device=x.device", "device='cpu'"), told="out hasn't both the dtype and the device of x"),
    edit("2.5", "no grid", ("kernel[grid](", "kernel("), told="the grid is missing: a launch is kernel[grid](…)"),
    edit("2.5", "too many programs", ("(triton.cdiv(rows, block_r), triton.cdiv(cols, block_c))", "(rows, cols)"),
         told="the result is right, but the grid (4, 4) has programs without a tile"),
    edit("2.6", "start within 8", ("start + r", "start % 8 + r"), told="whatever the strides: here it is 58 bytes: sectors((64, 3), (1, 3), 2, 29) gives"),
    edit("2.6", "start in sectors", ("start + r", "start * 8 + r"), told="a row that starts inside a sector ends inside another one"),
    edit("2.6", "half a line", ("itemsize // 32", "itemsize // 64"), told="share sectors of 32 bytes two by two"),
    edit("2.6", "start by columns", ("start + r * strides[0] + c *", "r * strides[0] + (start + c) *"), told="here it is 58 bytes"),
    edit("2.7", "as wide as a warp at least", ("side = 1", "side = 16"), told="64 each, which are 4 × 4 floats"),
    edit("2.7", "floats rounded down", ("gb_s / 2 * ns / sms", "gb_s / 2 * ns / sms // programs // 4 * programs * 4"), told="65 each, and 4 × 4 floats are too few"),
    edit("2.7", "side rounded down", ("    side = 1\n    while programs * side**2 * 4 < in_flight:\n        side *= 2\n    return side", "    return 1 << (int((in_flight / programs / 4) ** 0.5) - 1).bit_length()"),
         told="65 each, and 4 × 4 floats are too few"),
    edit("2.7", "doubled", ("gb_s / 2", "gb_s * 2"), told="half of gb_s are loads"),
    edit("2.8", "no other", (', other=-float("inf")', ""), told="changes the maximum or the sum", gpu="count in the sum"),
    edit("2.8", "no other, and a mask for exp",
         (', other=-float("inf")', ""), ("tl.exp(x - tl.max(x, axis=0))", "tl.where(mask, tl.exp(x - tl.max(x, axis=0)), 0.0)"),
         told="changes the maximum or the sum"),
    edit("2.8", "0 wins the maximum", ('-float("inf")', "0.0"), ("tl.sum(p, axis=0)", "tl.sum(tl.where(mask, p, 0.0), axis=0)"), told="changes the maximum or the sum"),
    edit("2.8", "−1e9 for −inf", ('-float("inf")', "-1e9"), told="one edge is left: rows may be as low as −1e30"),
    edit("2.8", "Triton's softmax", ("p / tl.sum(p, axis=0)", "tl.softmax(x)"), told="the result is right, but tl.softmax does all the work"),
    edit("2.8", "in half", (".to(tl.float32)", ".to(tl.float16)"), told="fp32 inputs must keep their precision: compute in float32"),
    edit("2.8", "the sum + 1e-4", ("tl.sum(p, axis=0)", "(tl.sum(p, axis=0) + 1e-4)"), told="y = exp(x − m) / Σ exp(x − m)"),
    edit("2.8", "the sum + 1e-6", ("tl.sum(p, axis=0)", "(tl.sum(p, axis=0) + 1e-6)"), told="the denominator is the sum, with nothing added"),
    edit("2.8", "a maximum of at least 0", ("tl.max(x, axis=0)", "tl.maximum(tl.max(x, axis=0), 0.0)"), told="m is the row's own maximum"),
    edit("2.8", "no mask at all", ("offs < cols", "offs < BLOCK"), told="runs past the end of the row"),
    edit("2.8", "loads twice", ("    p = ", f"    {LOAD_X}\n    p = "),
         told="the result is right, but x is read more than once: load the row once", gpu=None),
    edit("2.8", "by way of out", ("    y = ", f"    {THROUGH_OUT}\n    y = "),
         told="the result is right, but out is read back: load the row once", gpu=None),
    edit("2.8", "rows side by side", ("row * stride_x + ", "row * cols + "), told="row i starts at i · stride_x in x"),
    edit("2.9", "of each column", ("tl.max(x, axis=1)", "tl.max(x, axis=0)"), ("tl.sum(p, axis=1)", "tl.sum(p, axis=0)"), told="reduced along axis=1"),
    edit("2.9", "the sum + 1e-4", ("p / tl.sum(p, axis=1)[:, None]", "p / (tl.sum(p, axis=1)[:, None] + 1e-4)"), told="for each row y = exp(x − m) / Σ exp(x − m)"),
    edit("2.9", "0 wins the maximum", ('-float("inf")', "0.0"), ("p = tl.exp(x - tl.max(x, axis=1)[:, None])", "p = tl.where(mask, tl.exp(x - tl.max(x, axis=1)[:, None]), 0.0)"),
         told="changes the maximum or the sum"),
    edit("2.9", "one row", (" + tl.arange(0, ROWS)[:, None]", ""), told="the tile has ROWS rows along axis 0"),
    edit("2.9", "the tile turned, its axis not", ("tl.arange(0, ROWS)[:, None]", "tl.arange(0, ROWS)[None, :]"), ("tl.arange(0, BLOCK)[None, :]", "tl.arange(0, BLOCK)[:, None]"),
         told="you reduce down the columns of x"),
    edit("2.9", "no column", ("tl.max(x, axis=1)[:, None]", "tl.max(x, axis=1)"), told="[:, None] makes them a column"),
    ("2.9", softmax_row_after_row, "take the rows of a program as one tile, [ROWS, BLOCK]", None),
)  # fmt: skip
