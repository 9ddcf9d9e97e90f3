import functools
import inspect

import torch

from fa_tutorial.exercises.chapter_2.ex_4 import transpose_kernel
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import Wrong, adapting
from fa_tutorial.layout import triton


def transposed(kernel, x, block_r, block_c):
    """A contiguous copy of the transpose of x: (rows, cols), any strides, by one launch of the kernel.

    kernel: the transpose kernel. block_r, block_c: the tile of one program.
    """
    rows, cols = x.shape
    out = torch.empty(cols, rows, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, block_r), triton.cdiv(cols, block_c))
    kernel[grid](x, out, rows, cols, *x.stride(), *out.stride(), BLOCK_R=block_r, BLOCK_C=block_c)
    return out


GRID = "(triton.cdiv(rows, block_r), triton.cdiv(cols, block_c))"
MISTAKES = {
    "a part of a tile at the edge needs a program too: round up (triton.cdiv)": (GRID, "(rows // block_r, cols // block_c)"),
    "the tile's sides are exchanged in the grid: BLOCK_R divides the rows, BLOCK_C the columns": (
        GRID, "(triton.cdiv(rows, block_c), triton.cdiv(cols, block_r))"),
    "the strides of x are exchanged: x.stride() has the row's first": ("*x.stride()", "*x.stride()[::-1]"),
    "the strides of out are exchanged: stride_or is the one of out's rows, out.stride()[0]": ("*out.stride()", "*out.stride()[::-1]"),
    "the strides of out stand in place of those of x: a view has its own": ("*x.stride()", "*out.stride()"),
    "the result is x, not its transpose: return out": ("return out", "return out.t()"),
    "rows and cols are exchanged in the call, so the kernel masks the wrong side": ("rows, cols, *x", "cols, rows, *x"),
}  # fmt: skip


class Simulated:
    """Takes the kernel's place: does what its programs would do."""

    signature = inspect.signature(transpose_kernel.fn)

    def __init__(self, x, *tile):
        self.x, self.tile, self.spare, self.outs = x, tile, "", []

    def __getitem__(self, grid):
        return functools.partial(self.launch, grid)

    def __call__(self, *args, **named):
        raise Wrong("the grid is missing: a launch is kernel[grid](…)")

    def launch(self, grid, *args, num_warps=4, num_stages=3, **named):
        given = self.signature.bind(*args, **named).arguments
        x, out, rows, cols, *strides, block_r, block_c = given.values()
        self.outs.append(out)
        grid = grid(given) if callable(grid) else grid
        if not isinstance(grid, tuple) or not all(isinstance(size, int) for size in grid):
            raise Wrong(f"a grid is a tuple of whole numbers, and this is {grid!r}")
        if x.data_ptr() != self.x.data_ptr() == out.data_ptr():
            raise Wrong("x and out are exchanged: the kernel takes x first")
        if x.data_ptr() != self.x.data_ptr():
            raise Wrong("x is copied before the launch: pass x itself, whose strides say how it lies")
        if (out.dtype, out.device) != (x.dtype, x.device):
            raise Wrong("out hasn't both the dtype and the device of x: torch.empty(cols, rows, dtype=x.dtype, device=x.device)")
        if (block_r, block_c) != self.tile:
            raise Wrong(f"the caller asks for tiles of {self.tile}, and you launch (BLOCK_R, BLOCK_C) = {(block_r, block_c)}")
        needed = triton.cdiv(rows, block_r), triton.cdiv(cols, block_c)
        if any(size > most for size, most in zip(grid, needed, strict=False)):
            self.spare = f"the grid {grid} has programs without a tile: {needed} is enough"
        rows, cols = min(rows, grid[0] * block_r), min(cols, (*grid, 1)[1] * block_c)
        try:
            source, target = x.as_strided((rows, cols), strides[:2]), out.as_strided((cols, rows), strides[2:])
        except RuntimeError:
            shaped = out.shape == self.x.shape != self.x.shape[::-1]
            why = "out has the shape of x, and needs (cols, rows)" if shaped else "do the sizes and strides that you pass belong to it?"
            raise Wrong(f"a program reads outside x, or writes outside out: {why}") from None
        target.copy_(source.t())


@adapting
def launched(answer, x, block_r, block_c):
    """The answer, which gets a stand-in for the kernel, and once an x on another device."""
    kernel = Simulated(x, block_r, block_c)
    out = answer(kernel, x, block_r, block_c)
    if isinstance(out, torch.Tensor) and torch.equal(out, x.t()):
        if [out.data_ptr()] != [written.data_ptr() for written in kernel.outs]:
            raise Wrong("the result is right, but return what one launch of the kernel writes, and no other tensor")
        answer(Simulated(x.to("meta"), block_r, block_c), x.to("meta"), block_r, block_c)
        if kernel.spare:
            raise Wrong(f"the result is right, but {kernel.spare}")
        if not out.is_contiguous():
            raise Wrong(f"the result is right, but out has the strides {out.stride()}: make a contiguous out, torch.empty(cols, rows, …)")
    return out


def inputs():
    count = torch.arange(64.0)
    strides = "the kernel reads (r, c) at r · stride_xr + c · stride_xc, and writes it at c · stride_or + r · stride_oc"
    yield case(count[:16].view(4, 4), 4, 4, otherwise=strides)
    tiles = "the grid has a program for each tile: axis 0 counts them along the rows, axis 1 along the columns"
    yield case(count.view(8, 8), 2, 4, otherwise=tiles)
    yield case(count[:15].view(3, 5), 2, 4, otherwise="out has the shape (cols, rows), and tiles at the edges may be ragged")
    on = "x of shape (2, 5), a transpose, tiles of (2, 4)"
    yield case(count[:10].view(5, 2).t(), 2, 4, on=on, otherwise="x may be any view: pass its own strides")
    yield case(count[:15].view(5, 3).half(), 4, 2, on="x of shape (5, 3), float16, tiles of (4, 2)")
    yield case(torch.randn(33, 17, generator=generator()), 16, 8, fresh=True)


EXERCISE = Exercise(
    task="Launch the transpose kernel: make out, count the programs, and pass the strides.",
    hints=(
        "What does the kernel need of x, and what of out? How many tiles are there along the rows, and how many along the columns?",
        "out = torch.empty(cols, rows, dtype=x.dtype, device=x.device), and the grid is (triton.cdiv(rows, block_r), "
        "triton.cdiv(cols, block_c)). The call passes x, out, rows, cols, then *x.stride() and *out.stride().",
    ),
    solution=transposed,
    reasoning="Everything that the kernel knows of the tensors goes through its arguments: their first elements, sizes and strides. The "
    "grid covers x with tiles, rounded up, and its mask keeps the last ones inside.",
    more="The package's version, layout.transpose_copy, also checks its arguments.",
    inputs=inputs,
    truth=lambda x, block_r, block_c: x.t(),
    rule="one program for each tile, and every number where the kernel expects it",
    mistakes=MISTAKES,
    adapt=launched,
)
