"""Exercise 2.4, transpose_kernel."""

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator, laid_out
from fa_tutorial.exercises.running import UNWRITTEN

triton = hardware.require_triton("Exercise 2.4")
import triton.language as tl  # noqa: E402


@triton.jit
def transpose_kernel(
    x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """out[c, r] = x[r, c]. x: (rows, cols); out: (cols, rows); each with its own strides.

    Grid: (ceil(rows / BLOCK_R), ceil(cols / BLOCK_C)); program_id(0) counts along the rows.
    """
    offs_r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)  # [BLOCK_R]
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)  # [BLOCK_C]
    mask = (offs_r[:, None] < rows) & (offs_c[None, :] < cols)  # [BLOCK_R, BLOCK_C]
    x_ptrs = x_ptr + offs_r[:, None] * stride_xr + offs_c[None, :] * stride_xc
    out_ptrs = out_ptr + offs_c[None, :] * stride_or + offs_r[:, None] * stride_oc
    tl.store(out_ptrs, tl.load(x_ptrs, mask=mask, other=0.0), mask=mask)


_STARTS = "tile (i, j) starts at row i · BLOCK_R and column j · BLOCK_C, where i is program_id(0) and j is program_id(1)"
MISTAKES = {
    "copies": "out holds the elements in the order of x: store element (r, c) at c · stride_or + r · stride_oc",
    "out_swapped": "the output's strides are swapped: element (r, c) goes to row c and column r of out, at c · stride_or + r · stride_oc",
    "mask_swapped": "rows and cols are swapped in the mask: it needs offs_r < rows and offs_c < cols",
    "first_tile": f"every program works on the first tile: {_STARTS}",
    "first_rows": "only the first BLOCK_R rows of x are copied: offs_r starts at program_id(0) · BLOCK_R",
    "first_columns": "only the first BLOCK_C columns of x are copied: offs_c starts at program_id(1) · BLOCK_C",
    "ids_swapped": "the program ids are swapped: program_id(0) counts blocks of rows, program_id(1) blocks of columns",
    "one_id": "program_id(0) is used for both axes: blocks of columns are counted by program_id(1)",
    "not_multiplied": "the program ids are not multiplied by the tile's size: tile (i, j) starts at row i · BLOCK_R and column j · BLOCK_C",
    "block_r": "BLOCK_R is used for the columns: offs_c starts at program_id(1) · BLOCK_C",
    "x_contiguous": "x is read as if it were contiguous: use stride_xr and stride_xc",
    "out_contiguous": "out is written as if it were contiguous: use stride_or and stride_oc",
}
SHAPES = (
    "the tile stays [BLOCK_R, BLOCK_C] from the load to the store, so both addresses and the mask are made of offs_r[:, None] and offs_c[None, :] "
    "(for out, only the strides change)"
)


def twin(x, block, x_strides, out_strides, mistake=None):
    rows, cols = x.shape
    memory = laid_out(x, x_strides)
    out = torch.full(((rows + cols) * sum(out_strides),), UNWRITTEN, dtype=torch.float64)
    xr, xc = (cols, 1) if mistake == "x_contiguous" else x_strides
    o_r, o_c = {"out_contiguous": (rows, 1), "out_swapped": out_strides[::-1], "copies": (1, cols)}.get(mistake, out_strides)
    for i in range(triton.cdiv(rows, block[0])):
        for j in range(triton.cdiv(cols, block[1])):
            a, b = {"first_tile": (0, 0), "first_rows": (0, j), "first_columns": (i, 0), "ids_swapped": (j, i), "one_id": (i, i)}.get(
                mistake, (i, j)
            )
            sizes = {"not_multiplied": (1, 1), "block_r": (block[0], block[0])}.get(mistake, block)
            r, c = a * sizes[0] + torch.arange(block[0])[:, None], b * sizes[1] + torch.arange(block[1])[None, :]
            inside = (r < cols) & (c < rows) if mistake == "mask_swapped" else (r < rows) & (c < cols)
            r, c = (index.expand(inside.shape)[inside] for index in (r, c))
            out[c * o_r + r * o_c] = memory[r * xr + c * xc]
    return out.as_strided((cols, rows), out_strides)


def launch(x, block, x_strides, out_strides):
    rows, cols = x.shape
    args = (In(x, x_strides), Out((cols, rows), x.dtype, out_strides), rows, cols, *x_strides, *out_strides)
    grid = (triton.cdiv(rows, block[0]), triton.cdiv(cols, block[1]))
    return Launch(grid, args, {"BLOCK_R": block[0], "BLOCK_C": block[1]}, shapes=SHAPES)


def inputs():
    def lies(how, rows, cols):
        return {"": (cols, 1), "padded": (cols + 4, 1), "column-major": (1, rows)}[how]

    def transpose(x, block, otherwise="", x_lies="", out_lies="", **options):
        rows, cols = x.shape
        x_strides, out_strides = lies(x_lies, rows, cols), lies(out_lies, cols, rows)
        on = f"x of shape {(rows, cols)}, tiles of {block}" + (f", x's strides {x_strides}" if x_lies else "")
        on += (f", out's strides {out_strides}" if out_lies else "") + ("" if x.dtype == torch.float32 else f", {x.dtype}"[:9])
        return case(x, block, x_strides, out_strides, on=on, otherwise=otherwise, **options)

    count, tile = torch.arange(1.0, 97.0), (2, 8)
    yield transpose(
        count[:16].view(2, 8),
        tile,
        "element (r, c) of x lies at r · stride_xr + c · stride_xc, and goes to c · stride_or + r · stride_oc of out",
    )
    yield transpose(count.view(6, 16), tile, f"an offset is wrong: {_STARTS}, and 3 · 2 tiles fill the matrix exactly")
    both = "belongs in the mask of the load and of the store, in brackets, joined by & (which binds closer than <)"
    yield transpose(count[:24].view(3, 8), tile, f"runs past x's last row: (offs_r < rows) {both}")
    yield transpose(count[:10].view(2, 5), tile, f"runs past x's last column: (offs_c < cols) {both}")
    x = count[:15].view(3, 5)
    yield transpose(x, tile, "x may be any view: use stride_xr and stride_xc", "column-major")
    yield transpose(x, tile, MISTAKES["x_contiguous"], "padded")
    yield transpose(x, tile, "out may be any view: use stride_or and stride_oc", "", "column-major")
    yield transpose(x, tile, MISTAKES["out_contiguous"], "", "padded")
    draw = generator()
    for shape, block in (((15, 17), (16, 16)), ((300, 3), (128, 16)), ((33, 18), (16, 16))):
        yield transpose(torch.randn(shape, generator=draw), block, "", "padded", "column-major", fresh=True)
    yield transpose(torch.randn(17, 15, generator=draw).half(), (16, 16), "", "padded", "padded", fresh=True)


EXERCISE = Exercise(
    id="2.4",
    task="Write a kernel that copies the transpose of x into out, and uses the strides for every access.",
    hints=(
        "offs_r[:, None] and offs_c[None, :] broadcast to a (BLOCK_R, BLOCK_C) tile of offsets. You need two such tiles: one with the strides of x, "
        "one with the strides of out.",
        "Load from x_ptr + offs_r[:, None] * stride_xr + offs_c[None, :] * stride_xc. Element (r, c) goes to row c and column r of out. "
        "The mask (offs_r[:, None] < rows) & (offs_c[None, :] < cols) serves both.",
    ),
    solution=transpose_kernel,
    reasoning="Your code never rearranges the tile. Only the addresses differ, so the strides do the whole transpose, the load and the store share one "
    "mask, and padded rows or transposed views need no case of their own.",
    more="The package's version, layout.transpose_kernel, also computes its offsets in int64, for tensors of more than 2³¹ elements.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    launch=launch,
    tolerance=lambda args, part: (0.0, 0.0),
    overlap="tiles are copied by more than one program: program (i, j) copies only tile (i, j)",
)
