import torch

from fa_tutorial.exercises.chapter_2.ex_8 import EXERCISE as ONE_ROW
from fa_tutorial.exercises.chapter_2.ex_8 import PADDING
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.layout import tl, triton


@triton.jit
def softmax_of_rows_kernel(x_ptr, out_ptr, cols, stride_x, stride_out,
                           ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """out = softmax(x) over each row, ROWS rows a program. BLOCK ≥ cols. Grid: (rows / ROWS,)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    offs = tl.arange(0, BLOCK)[None, :]  # [1, BLOCK]
    mask = offs < cols
    x = tl.load(x_ptr + rows * stride_x + offs, mask=mask, other=-float("inf")).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=1)[:, None])  # [ROWS, BLOCK]
    y = p / tl.sum(p, axis=1)[:, None]
    tl.store(out_ptr + rows * stride_out + offs, y, mask=mask)


FIRST, SUM = "tl.program_id(0) * ROWS", "tl.sum(p, axis=1)[:, None]"
MISTAKES = {
    "program i begins at row i: it takes rows i · ROWS, i · ROWS + 1, …": (FIRST, "tl.program_id(0)"),
    "the maximum is the whole tile's: each row has its own (axis=1)": ("tl.max(x, axis=1)[:, None]", "tl.max(x)"),
    "the sum is the whole tile's: each row has its own (axis=1)": (SUM, "tl.sum(p)"),
    "you reduce down the columns of x: each row has its own maximum and its own sum": [
        ("tl.max(x, axis=1)[:, None]", "tl.max(x, axis=0)[None, :]"), (SUM, "tl.sum(p, axis=0)[None, :]")],
    "exp(x − m) is not divided by its sum": (f"p / {SUM}", "p"),
    "cols is compared with the row numbers, too, so rows are left out: every row exists, and the mask is for the columns": (
        "mask = offs < cols", "mask = (rows < cols) & (offs < cols)"),
    "the positions past the end of a row count: load them as −inf (other=)": ('-float("inf")', "0.0"),
}  # fmt: skip

ROWS_OF_I = "program i takes rows i · ROWS to i · ROWS + ROWS − 1"


def launch(x, ROWS, BLOCK, stride_x, stride_out):
    args = (In(x, (stride_x, 1)), Out(x.shape, x.dtype, (stride_out, 1)), x.shape[1], stride_x, stride_out)
    shapes = "numbers for each row are [ROWS], reduced along axis=1, and [:, None] makes them a column; offs is a row: [None, :]"
    return Launch((len(x) // ROWS,), args, {"ROWS": ROWS, "BLOCK": BLOCK}, shapes, left_out=torch.finfo(x.dtype).max)


def inputs():
    def softmax(x, ROWS, BLOCK, otherwise="", more=0, **options):
        x = torch.as_tensor(x)
        return case(x, ROWS, BLOCK, x.shape[1] + more, x.shape[1] + 2 * more, otherwise=otherwise, **options)

    place = f"{ROWS_OF_I}: element c of row r lies at r · stride_x + c in x, and at r · stride_out + c in out"
    x = [[1.0, 2.0, 3.0, 4.0], [4.0, 0.0, 0.0, 1.0], [0.0, 0.0, 5.0, 1.0], [1.0, 0.0, 2.0, 0.0]]
    yield softmax(
        x[:2],
        2,
        4,
        "the tile has ROWS rows along axis 0, a row's numbers along axis 1, and for each row y = exp(x − m) / Σ exp(x − m)",
        stray=place,
    )
    yield softmax(x, 2, 4, place, stray=place)
    yield softmax([[0.0, 1.0], [1000.0, 1001.0]], 2, 2, "each row has its own maximum, which is subtracted before exp")
    past = "past the end of a row there is another: the load needs mask=offs < cols and other=−inf, the store the same mask"
    yield softmax([[-200.0, -201.0, -202.0], [-1.0, -2.0, -3.0]], 2, 4, PADDING, stray=past)
    yield softmax([row[:3] for row in x], 4, 4, place, more=3)
    yield softmax(10 * torch.randn(8, 100, generator=generator()), 4, 128, "", 1, fresh=True)
    yield softmax([[-1e30, -1e30, -1e30], [0.0, 1.0, 2.0]], 2, 4, edge="low")
    yield softmax(3 * torch.linspace(-1.1, 1.1, 128).view(2, 64).half(), 2, 64, edge="half")


EXERCISE = Exercise(
    task="Write a softmax kernel whose programs take ROWS rows each, as one tile.",
    conditions=ONE_ROW.conditions,
    hints=(
        "Which rows does program i take? Make them a column and the columns a row, as in 2.4. Along which axis of the tile does a row of x lie?",
        "rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]. tl.max(x, axis=1) has a number for each row, and [:, None] makes "
        "it a column, which broadcasts over the tile.",
    ),
    solution=softmax_of_rows_kernel,
    reasoning="A tile is reduced along axis 1, so each row keeps its own maximum and sum, and the launch needs only rows / ROWS programs.",
    inputs=inputs,
    truth=lambda x, ROWS, BLOCK, stride_x, stride_out: torch.softmax(x.double(), -1),
    launch=launch,
    rule="y = exp(x − m) / Σ exp(x − m), m being the row's maximum",
    mistakes=MISTAKES,
    tolerance=ONE_ROW.tolerance,
    refused=ONE_ROW.refused,
    seen={
        "overlap": f"rows are written by more than one program: {ROWS_OF_I}",
        "pieces": "take the rows of a program as one tile, [ROWS, BLOCK], with one load and one store",
        "again": "load the tile once, and use it for the maxima, the exponentials and their sums",
    },
)
