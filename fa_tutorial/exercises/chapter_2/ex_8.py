import torch

from fa_tutorial import hardware
from fa_tutorial.arguments import dtype_name
from fa_tutorial.exercises.chapter_1.ex_1 import ROUNDED
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.watch import not_by
from fa_tutorial.layout import tl, triton


@triton.jit
def softmax_kernel(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr):
    """out = softmax(x) over each row. Columns have stride 1. BLOCK ≥ cols. Grid: (rows,)."""
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)  # [BLOCK]
    mask = offs < cols
    # −inf past the end of the row is never the maximum, and exp turns it into 0 for the sum.
    x = tl.load(x_ptr + row * stride_x + offs, mask=mask, other=-float("inf")).to(tl.float32)
    p = tl.exp(x - tl.max(x, axis=0))
    y = p / tl.sum(p, axis=0)
    tl.store(out_ptr + row * stride_out + offs, y, mask=mask)


ROW_X, ROW_OUT = "row * stride_x", "row * stride_out"
MISTAKES = {
    "exp(x − m) is not divided by its sum": ("p / tl.sum(p, axis=0)", "p"),
    "the base is 2: use tl.exp, because tl.exp2(x) is 2 to the power x": ("tl.exp(", "tl.exp2("),
    "every program reads row 0: row i of x starts at i · stride_x": (f" + {ROW_X}", ""),
    "every program writes row 0: row i of out starts at i · stride_out": (f" + {ROW_OUT}", ""),
    "the exponentials are rounded to half precision: keep them in float32": ("axis=0))", "axis=0)).to(tl.float16)"),
    "the positions past the end of the row count in the sum: load them as −inf (other=), whose exp is 0": ('-float("inf")', "0.0"),
}  # fmt: skip

PADDING = "what you compute with past the end of the row changes the maximum or the sum: −inf (other=) changes neither"


def launch(x, BLOCK, stride_x, stride_out):
    rows, cols = x.shape
    args = (In(x, (stride_x, 1)), Out(x.shape, x.dtype, (stride_out, 1)), cols, stride_x, stride_out)
    return Launch((rows,), args, {"BLOCK": BLOCK}, left_out=torch.finfo(x.dtype).max)  # not NaN, which tl.max ignores


def tolerance(args, part):
    """A result of zeros and ones is exact. Else float32 may round x, as exp(x − lse) does."""
    x = args[0]
    y = torch.softmax(x.double(), -1)
    if (y == y.round()).all():
        return 2e-7, 0.0
    return ROUNDED.get(x.dtype) or (min(1e-4, 2e-6 + 1.2e-7 * float(x.abs().max())), 1e-7)


def inputs():
    def softmax(x, BLOCK, otherwise="", more=0, **options):
        x = torch.as_tensor(x)
        return case(x, BLOCK, x.shape[1] + 2 * more, x.shape[1] + more, otherwise=otherwise, **options)

    place = "program i takes row i: element c of it lies at i · stride_x + c in x, and its result goes to i · stride_out + c in out"
    yield softmax([[1.0, 2.0, 3.0, 4.0]], 4, stray=place)
    yield softmax([[1.0, 2.0, 3.0, 4.0], [4.0, 0.0, 0.0, 1.0]], 4, place)
    yield softmax([[1000.0, 0.0, 0.0, 1000.0]], 4, "subtract the row's maximum before exp: float32 holds exp(x) only up to x = 88.72")
    yield softmax([[-200.0, -201.0, -202.0, -203.0]], 4, "m is the row's own maximum, which may be negative")
    yield softmax([[10.01, 10.02, 10.03, 10.04]], 4, "fp32 inputs must keep their precision: compute in float32")
    yield softmax([[0.0, -1e4, -1e4, -1e4]], 4, "the denominator is the sum, with nothing added: it is at least 1")
    past = "runs past the end of the row: the load and the store need mask=offs < cols"
    for low in (-1.0, -200.0):
        yield softmax([[low, low - 1, low - 2]], 4, PADDING, stray=past)
    x = [[1.0, 2.0, 4.0], [0.0, 0.0, 1.0], [3.0, 1.0, 1.0]]
    rows = "row i starts at i · stride_x in x and at i · stride_out in out, whatever cols and BLOCK are"
    yield softmax(x, 4, rows, more=3)
    yield softmax(10 * torch.randn(3, 100, generator=generator()), 128, "", more=1, fresh=True)
    yield softmax([[-1e30, -1e30, -1e30]], 4, edge="low")
    for dtype in (torch.float16, torch.bfloat16) if hardware.device().type == "cuda" else (torch.float16,):  # no bf16 in the interpreter
        x = 3 * torch.linspace(-1.1, 1.1, 128).view(2, 64).to(dtype)
        yield softmax(x, 64, on=f"x of shape (2, 64), {dtype_name(dtype)}", edge="half")


EXERCISE = Exercise(
    task="Write a softmax kernel that reads each element once and writes it once: each program takes one row.",
    conditions={
        "low": "rows may be as low as −1e30: the padding must still not be their maximum",
        "half": "fp16 inputs (and bf16 inputs on a GPU) are computed in float32: only the store rounds",
    },
    hints=(
        "Write chapter 1's safe softmax with tl.max, tl.exp and tl.sum. What must the positions past the end of the row hold, so that "
        "they change neither the maximum nor the sum?",
        'tl.load(x_ptr + row * stride_x + offs, mask=offs < cols, other=-float("inf")).to(tl.float32): −inf is never the maximum, and '
        "its exp is 0. Then the numerator is tl.exp(x - tl.max(x, axis=0)).",
    ),
    solution=softmax_kernel,
    reasoning="The row stays in registers from the load to the store, so each element makes two trips instead of eight. −inf past the end "
    "of the row changes neither the maximum nor the sum of exp. The arithmetic is float32, whatever the input's dtype. (tl.max returns "
    "float32 for fp16, so a kernel without the conversion is right too, by luck.)",
    more="The package's version, layout.softmax_kernel, also computes its offsets in int64, for tensors of more than 2³¹ elements, and "
    "rounds to the output's dtype by name, .to(out_ptr.dtype.element_ty), which tl.store would otherwise do.",
    inputs=inputs,
    truth=lambda x, BLOCK, stride_x, stride_out: torch.softmax(x.double(), -1),
    rule="y = exp(x − m) / Σ exp(x − m) in float32, m being the row's maximum",
    mistakes=MISTAKES,
    launch=launch,
    tolerance=tolerance,
    refused=not_by("tl.softmax does all the work: write it with tl.max, tl.exp and tl.sum", "softmax"),
    seen={
        "overlap": "rows are written by more than one program: program i writes only row i",
        "pieces": "program i takes row i alone, in one block",
        "again": "load the row once, keep it as a block, and use that block for the maximum, the exponentials and their sum, so that each "
        "element makes two trips",
    },
)
