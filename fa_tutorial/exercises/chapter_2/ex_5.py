import functools
import inspect

import torch

from fa_tutorial.exercises.chapter_2.ex_4 import transpose_kernel
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import Wrong, adapting, kind
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
    "a part of a tile at the edge needs a program too: round up (triton.cdiv)": (
        GRID, "(rows // block_r, cols // block_c)"),
    "the tile's sides are exchanged in the grid: BLOCK_R divides the rows, BLOCK_C the columns": (
        GRID, "(triton.cdiv(rows, block_c), triton.cdiv(cols, block_r))"),
    "the strides of x are exchanged: x.stride() has the row's first": ("*x.stride()", "*x.stride()[::-1]"),
    "the strides of out are exchanged: stride_or is the one of out's rows, out.stride()[0]": ("*out.stride()", "*out.stride()[::-1]"),
    "the strides of out stand in place of those of x: a view has its own": ("*x.stride()", "*out.stride()"),
    "rows and cols are exchanged in the call, so the kernel masks the wrong side": ("rows, cols, *x", "cols, rows, *x"),
}  # fmt: skip


class Simulated:
    """Takes the kernel's place: does what its programs would do, and stops where one leaves its tensors."""

    signature = inspect.signature(transpose_kernel.fn)

    def __init__(self, x, *tile):
        self.x, self.tile, self.launches, self.spare = x, tile, 0, ""

    def __getitem__(self, grid):
        return functools.partial(self._launch, grid)

    def __call__(self, *args, **named):
        raise Wrong("the grid is missing: a launch is kernel[grid](…)")

    def _launch(self, grid, *args, num_warps=4, num_stages=3, **named):
        self.launches += 1
        try:
            given = self.signature.bind(*args, **named).arguments
        except TypeError as error:
            names = ", ".join(self.signature.parameters)
            raise Wrong(f"the kernel takes ({names}), and the call has other arguments: {error}") from None
        x, self.out, *numbers = given.values()
        if self.x.is_meta:
            return
        out = self.out
        self._check(x, out, numbers)
        rows, cols, *strides, block_r, block_c = numbers
        grid = grid(named) if callable(grid) else grid
        if not isinstance(grid, tuple) or not all(isinstance(size, int) for size in grid):
            raise Wrong(f"a grid is a tuple of whole numbers, and this is {grid!r}")
        tiles = (triton.cdiv(rows, block_r), triton.cdiv(cols, block_c))
        grid = (*grid, 1, 1)[:2]
        if any(size > needed for size, needed in zip(grid, tiles, strict=True)):
            self.spare = f"the grid {grid} has programs without a tile: {tiles} is enough"
        r, c = torch.arange(min(grid[0] * block_r, rows))[:, None], torch.arange(min(grid[1] * block_c, cols))[None, :]
        place_x, place_out = r * strides[0] + c * strides[1], c * strides[2] + r * strides[3]
        flat(out)[cells(out, place_out, own=True)] = flat(x)[cells(x, place_x, own=False)]

    def _check(self, x, out, numbers):
        if not (isinstance(x, torch.Tensor) and isinstance(out, torch.Tensor)):
            raise Wrong("x and out are passed as tensors: Triton takes their addresses itself")
        if x.data_ptr() != self.x.data_ptr():
            raise Wrong("x is copied before the launch: pass x itself, whose strides say how it lies")
        if out.data_ptr() == x.data_ptr():
            raise Wrong("the second argument is no new tensor: make an out for the kernel to write to")
        if out.dtype != x.dtype:
            raise Wrong(f"out is {out.dtype} and x is {x.dtype}: give out the dtype of x".replace("torch.", ""))
        if out.device != x.device:
            raise Wrong("out is on another device than x: give out the device of x")
        if not all(isinstance(number, int) for number in numbers):
            raise Wrong(f"sizes, strides and blocks are whole numbers, and the call passes {numbers}")
        if (tile := tuple(numbers[-2:])) != self.tile:
            raise Wrong(f"the caller asks for tiles of {self.tile}, (block_r, block_c), and you launch (BLOCK_R, BLOCK_C) = {tile}")


def flat(x):
    """All of the memory that x is a view of."""
    return x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)


def cells(x, offsets, own):
    """Where in x's memory these offsets from its first element lie. Wrong where one is outside; own: where it isn't x's own."""
    memory = torch.full((len(flat(x)),), not own)
    memory.as_strided(x.shape, x.stride(), x.storage_offset()).fill_(True)
    places = offsets + x.storage_offset()
    if places.numel() and not (places.min() >= 0 and places.max() < len(memory) and memory[places].all()):
        name = "writes outside out" if own else "reads outside x"
        raise Wrong(f"a program {name}, of shape {tuple(x.shape)}: do the sizes and strides that you pass belong to it?")
    return places.to(x.device)


@adapting
def launched(answer, x, block_r, block_c):
    """The answer, which gets a stand-in for the kernel."""
    kernel = Simulated(x, block_r, block_c)
    out = answer(kernel, x, block_r, block_c)
    if kernel.launches != 1:
        raise Wrong(f"the kernel is launched {kernel.launches} times: once, kernel[grid](…), does it all")
    if not isinstance(out, torch.Tensor):
        raise Wrong(f"returns {kind(out)}, want out")
    if out.data_ptr() != kernel.out.data_ptr() and torch.equal(out, x.t()):
        raise Wrong("the result is right, but it isn't the tensor that the kernel writes to: return that one")
    if kernel.spare and torch.equal(out, x.t()):
        raise Wrong(f"the result is right, but {kernel.spare}")
    if not out.is_contiguous() and torch.equal(out, x.t()):
        raise Wrong(f"the result is right, but out has the strides {out.stride()}: make a contiguous out, torch.empty(cols, rows, …)")
    elsewhere = Simulated(x.to("meta"))
    answer(elsewhere, elsewhere.x, block_r, block_c)
    # only with a ragged edge: without one a grid that is rounded down gives the right result, too
    if x.shape[0] % block_r and not elsewhere.out.is_meta and torch.equal(out, x.t()):
        raise Wrong("the result is right, but out is on the CPU wherever x is: give out the device of x")
    return out


def truth(x, block_r, block_c):
    return x.t()


def inputs():
    def launch(x, blocks, otherwise="", how="", **options):
        on = f"x of shape {tuple(x.shape)}{how}, tiles of {blocks}"
        return case(x, *blocks, on=on, otherwise=otherwise, **options)

    count = torch.arange(64.0)
    strides = "the kernel reads (r, c) at r · stride_xr + c · stride_xc, and writes it at c · stride_or + r · stride_oc"
    yield launch(count[:16].view(4, 4), (4, 4), strides)
    tiles = "the grid has a program for each tile: axis 0 counts them along the rows, axis 1 along the columns"
    yield launch(count.view(8, 8), (2, 4), tiles)
    yield launch(count[:15].view(3, 5), (2, 4), "out has the shape (cols, rows), and tiles at the edges may be ragged")
    yield launch(count.view(8, 8)[::2], (2, 4), "x may be any view: pass its own strides", ", every second row of 8")
    yield launch(count[:10].view(5, 2).t(), (2, 4), "x may be any view: pass its own strides", ", a transpose")
    yield launch(count[:15].view(5, 3).half(), (4, 2), "", ", float16")
    draw = generator()
    for rows, cols in ((33, 17), (1, 40)):
        yield launch(torch.randn(rows, cols, generator=draw), (16, 8), fresh=True)


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
    truth=truth,
    rule="one program for each tile, and every number where the kernel expects it",
    mistakes=MISTAKES,
    adapt=launched,
)
