"""Chapter 2: accesses outside the tensors, lanes that hold anything, programs that do each other's work."""

from edits import edit

from fa_tutorial.matmul import tl, triton


@triton.jit
def add_everything_in_every_program(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) + tl.load(y_ptr + offs, mask=offs < n), mask=offs < n)


LOAD_X = 'x = tl.load(x_ptr + row * stride_x + offs, mask=mask, other=-float("inf")).to(tl.float32)'
THROUGH_OUT = """tl.store(out_ptr + row * stride_out + offs, p, mask=mask)
    p = tl.load(out_ptr + row * stride_out + offs, mask=mask, other=0.0).to(tl.float32)"""

WRONG_ANSWERS = (
    edit("2.1", "generator", ("tuple(reversed(strides))", "(step for step in strides)"),
         told="returns a generator, want a number, a tensor, or a tuple of them (brackets around a loop"),
    edit("2.1", "not returned", ("return tuple(reversed(strides))", "pass"), told="is the return missing?"),
    edit("2.3", "no load mask", (", mask=mask, other=0.0", "", 2), told="runs past the end"),
    edit("2.3", "no store mask", ("x + y, mask=mask", "x + y"), told="writes outside out"),
    ("2.3", add_everything_in_every_program, "added more than once", None),
    edit("2.3", "block of n", ("tl.arange(0, BLOCK)", "tl.arange(0, n)"), told="use the block's size here, tl.arange(0, BLOCK)"),
    edit("2.4", "no row mask", ("(offs_r[:, None] < rows) & ", ""), told="runs past x's last row"),
    edit("2.4", "x's strides swapped",
         ("offs_r[:, None] * stride_xr + offs_c[None, :] * stride_xc", "offs_r[:, None] * stride_xc + offs_c[None, :] * stride_xr"),
         told="element (r, c) of x lies at r · stride_xr + c · stride_xc"),
    edit("2.4", "mask without brackets",
         ("(offs_r[:, None] < rows) & (offs_c[None, :] < cols)", "offs_r[:, None] < rows & offs_c[None, :] < cols"),
         told="with each comparison in brackets, because & binds closer than <", gpu="does not run"),
    edit("2.4", "transpose of the addresses",
         ("offs_c[None, :] * stride_or + offs_r[:, None]", "offs_c[:, None] * stride_or + offs_r[None, :]"),
         told="(for out, only the strides change): x of shape (2, 8)"),
    edit("2.4", "no axes", ("[:, None]", "", 3), ("[None, :]", "", 3),
         told="broadcast to one shape: offs_r [2], offs_c [8]", gpu="only the strides change"),
    edit("2.5", "no other", (', other=-float("inf")', ""), told="without other= a load leaves them undefined", gpu="count in the sum"),
    edit("2.5", "p in half", ("tl.exp(x - tl.max(x, axis=0))", "tl.exp(x - tl.max(x, axis=0)).to(x_ptr.dtype.element_ty)"),
         told="one edge is left: computed in half precision", gpu="one edge is left: fp16 inputs"),
    edit("2.5", "exp of half", ("tl.exp(x - tl.max(x, axis=0))", "tl.exp((x - tl.max(x, axis=0)).to(x_ptr.dtype.element_ty))"),
         told="takes float32, not fp16"),
    edit("2.5", "loads twice", ("    p = ", f"    {LOAD_X}\n    p = "),
         told="the result is right, but x is read more than once: load the row once", gpu=None),
    edit("2.5", "by way of out", ("    y = ", f"    {THROUGH_OUT}\n    y = "),
         told="the result is right, but out is read back: load the row once", gpu=None),
    edit("2.5", "rows side by side", ("row * stride_x + ", "row * cols + "), told="row i starts at i · stride_x in x"),
)  # fmt: skip
