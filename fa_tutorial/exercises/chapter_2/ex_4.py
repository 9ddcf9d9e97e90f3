import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.layout import tl, triton


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


X, OUT = "offs_r[:, None] * stride_xr + offs_c[None, :] * stride_xc", "offs_c[None, :] * stride_or + offs_r[:, None] * stride_oc"
ROW, COLUMN = "tl.program_id(0)", "tl.program_id(1)"
MISTAKES = {
    "the output's strides are swapped: element (r, c) goes to row c and column r of out, at c · stride_or + r · stride_oc": (
        OUT, "offs_r[:, None] * stride_or + offs_c[None, :] * stride_oc"),
    "out is addressed as x is, so it is a copy: element (r, c) goes to c · stride_or + r · stride_oc": (OUT, X),
    "rows and cols are swapped in the mask: it needs offs_r < rows and offs_c < cols": [("None] < rows", "None] < cols"), (":] < cols", ":] < rows")],
    "the program ids are swapped: program_id(0) counts blocks of rows, program_id(1) blocks of columns": [
        (ROW, "ROW"), (COLUMN, ROW), ("ROW", COLUMN)],
    "one program id is used for both axes: program_id(0) counts blocks of rows, program_id(1) blocks of columns": (COLUMN, ROW),
}  # fmt: skip


def launch(x, block, x_strides, out_strides):
    rows, cols = x.shape
    shapes = "the tile stays [BLOCK_R, BLOCK_C] from the load to the store, so both addresses and the mask are made of offs_r[:, None] "
    shapes += "and offs_c[None, :], unless you turn the tile and its mask (for out, only the strides change)"
    args = (In(x, x_strides), Out((cols, rows), x.dtype, out_strides), rows, cols, *x_strides, *out_strides)
    grid = (triton.cdiv(rows, block[0]), triton.cdiv(cols, block[1]))
    return Launch(grid, args, {"BLOCK_R": block[0], "BLOCK_C": block[1]}, shapes=shapes)


def inputs():
    def transpose(x, block, otherwise="", x_strides=None, out_strides=None, **options):
        rows, cols = x.shape
        return case(x, block, x_strides or (cols, 1), out_strides or (rows, 1), otherwise=otherwise, **options)

    count, tile = torch.arange(1.0, 97.0), (2, 8)
    place = "element (r, c) of x lies at r · stride_xr + c · stride_xc, and goes to c · stride_or + r · stride_oc of out, where r < rows and c < cols"
    yield transpose(count[:16].view(2, 8), tile, place)
    starts = "tile (i, j) starts at row i · BLOCK_R and column j · BLOCK_C, where i is program_id(0) and j is program_id(1)"
    yield transpose(count.view(6, 16), tile, f"{starts}; 3 · 2 tiles fill the matrix exactly")
    both = "belongs in the mask of the load and of the store, in brackets, joined by & (which binds closer than <)"
    yield transpose(count[:24].view(3, 8), tile, f"the last tiles reach past x's last row: (offs_r < rows) {both}")
    yield transpose(count[:10].view(2, 5), tile, f"the last tiles reach past x's last column: (offs_c < cols) {both}")
    x = count[:15].view(3, 5)
    yield transpose(x, tile, "x may be any view: use stride_xr and stride_xc", x_strides=(1, 3))
    yield transpose(x, tile, "x and out may be any views: use all four strides", x_strides=(9, 1), out_strides=(1, 5))
    x, padded, column_major = torch.randn(300, 3, generator=generator()), (7, 1), (1, 3)
    yield transpose(x, (128, 16), "a copy of each element as it is, whatever the strides", padded, column_major, fresh=True)


EXERCISE = Exercise(
    task="Write a kernel that copies the transpose of x into out, and uses the strides for every access.",
    hints=(
        "offs_r[:, None] and offs_c[None, :] broadcast to a (BLOCK_R, BLOCK_C) tile of offsets. You need two such tiles: one with the "
        "strides of x, one with the strides of out.",
        "Load from x_ptr + offs_r[:, None] * stride_xr + offs_c[None, :] * stride_xc. Element (r, c) goes to row c and column r of out. "
        "The mask (offs_r[:, None] < rows) & (offs_c[None, :] < cols) serves both.",
    ),
    solution=transpose_kernel,
    reasoning="Your code never rearranges the tile. Only the addresses differ, so the strides do the whole transpose, the load and the "
    "store share one mask, and padded rows or transposed views need no case of their own.",
    more="The package's version, layout.transpose_kernel, also computes its offsets in int64, for tensors of more than 2³¹ elements.",
    inputs=inputs,
    truth=lambda x, block, x_strides, out_strides: x.double().t(),
    rule="out[c, r] = x[r, c]",
    mistakes=MISTAKES,
    launch=launch,
    tolerance=lambda args, part: (0.0, 0.0),
    seen={
        "overlap": "tiles are copied by more than one program: program (i, j) copies only tile (i, j)",
        "pieces": "load and store a whole tile at once, [BLOCK_R, BLOCK_C]: program (i, j) copies tile (i, j)",
    },
)
