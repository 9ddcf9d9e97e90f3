"""Exercise 2.5, softmax_kernel."""

import math

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import exp32, generator, laid_out
from fa_tutorial.exercises.running import INF, UNWRITTEN

triton = hardware.require_triton("Exercise 2.5")
import triton.language as tl  # noqa: E402


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


MISTAKES = {
    "not_divided": "exp(x − m) is not divided by its sum",
    "exp_alone": "exp(x) is not divided by its sum",
    "log": "that is the logarithm of the softmax",
    "base_2": "the base is 2: use tl.exp, because tl.exp2(x) is 2 to the power x",
    "no_exp": "x is divided by its sum, without exp",
    "copied": "out is a copy of x",
    "row_zero": "every program reads row 0: row i of x starts at i · stride_x",
    "first_row": "only row 0 is written: row i of out starts at i · stride_out, and in every row the mask counts columns from 0",
    "not_multiplied": "row i starts at element i: multiply the row by its stride",
    "unshifted": "exp overflows: subtract the row's maximum before exp",
    "no_other": "the positions past the end of the row may hold anything: without other= a load leaves them undefined, and they reach the maximum and "
    'the sum. Load them as −inf, other=-float("inf")',
    "zeros": "the positions past the end of the row count in the sum: load them as −inf (other=), whose exp is 0",
    "in_sum": "the positions past the end of the row add exp(0) = 1 to the sum: make them −inf before exp, or 0 after it",
    "in_maximum": "the positions past the end of the row give the maximum: load them as −inf (other=), which is never the maximum",
    "finite": "the positions past the end of the row give the maximum: any finite other= is larger than some row, −inf never is",
    "half": "computed in half precision: convert x to tl.float32 right after the load, so that only the store rounds",
}

CONDITIONS = {
    "low": "rows may be as low as −1e30: the padding must still not be their maximum",
    "half": "fp16 inputs (and bf16 inputs on a GPU) are computed in float32: only the store rounds",
}


def _row(x, BLOCK, mistake):
    """softmax of one row in BLOCK lanes."""
    cols = len(x)
    if mistake in ("log", "base_2", "no_exp", "copied"):
        return {"log": torch.log_softmax(x, 0), "base_2": torch.softmax(x * math.log(2), 0), "no_exp": x / x.sum(), "copied": x}[mistake]
    other = {"zeros": 0.0, "in_maximum": 0.0, "finite": -1e9, "no_other": math.nan}.get(mistake, -INF)
    lanes = torch.cat([x, torch.full((BLOCK - cols,), other, dtype=torch.float64)])
    p = exp32(lanes - (0.0 if mistake in ("unshifted", "exp_alone") else lanes.max()))
    p[cols:] = {"in_maximum": 0.0, "in_sum": 1.0}.get(mistake, p[cols:])
    if mistake == "half":
        return (p[:cols].half() / p.half().sum()).double()
    return p[:cols] if mistake in ("not_divided", "exp_alone") else p[:cols] / p.sum()


def twin(x, BLOCK, stride_x, stride_out, mistake=None):
    rows, cols = x.shape
    x = x.double()
    memory = laid_out(x, (stride_x, 1))
    out = torch.full((rows * stride_out + cols,), UNWRITTEN, dtype=torch.float64)
    for i in range(rows):
        start_x, start = {"row_zero": (0, i * stride_out), "first_row": (0, 0), "not_multiplied": (i, i)}.get(
            mistake, (i * stride_x, i * stride_out)
        )
        out[start : start + cols] = _row(memory[start_x : start_x + cols], BLOCK, mistake)
    return out.as_strided((rows, cols), (stride_out, 1))


def launch(x, BLOCK, stride_x, stride_out):
    rows, cols = x.shape
    args = (In(x, (stride_x, 1)), Out(x.shape, x.dtype, (stride_out, 1)), cols, stride_x, stride_out)
    return Launch((rows,), args, {"BLOCK": BLOCK})


def tolerance(args, part):
    """fp16 and bf16: one rounding, at the store, is all that may differ."""
    return {torch.float32: (1e-4, 1e-7), torch.float16: (1.05 * 2**-11, 4e-8), torch.bfloat16: (1.05 * 2**-8, 1e-7)}[args[0].dtype]


def inputs():
    def softmax(x, BLOCK, otherwise="", stride_x=None, stride_out=None, **options):
        x = torch.tensor(x) if isinstance(x, list) else x
        rows, cols = x.shape
        on = (
            f"x = {[f'{value:g}' for value in x[0].tolist()]}".replace("'", "").replace("-", "−")
            if rows == 1 and cols < 5
            else f"x of shape {(rows, cols)}"
        )
        on += (
            f", BLOCK = {BLOCK}" + (f", stride_x = {stride_x}" if stride_x else "") + (f", stride_out = {stride_out}" if stride_out else "")
        )
        on += "" if x.dtype == torch.float32 else f", {str(x.dtype).removeprefix('torch.')}"
        return case(x, BLOCK, stride_x or cols, stride_out or cols, on=on, otherwise=otherwise, **options)

    yield softmax([[1.0, 2.0, 3.0, 4.0]], 4, "y = exp(x − m) / Σ exp(x − m), m being the row's maximum")
    yield softmax(
        [[1.0, 2.0, 3.0, 4.0], [4.0, 0.0, 0.0, 1.0]],
        4,
        "program i takes row i, which starts at i · stride_x in x and at i · stride_out in out",
    )
    yield softmax([[1000.0] * 4], 4, MISTAKES["unshifted"])
    ragged = "runs past the end of the row: the load and the store need mask=offs < cols"
    yield softmax([[-1.0, -2.0, -3.0]], 4, ragged)
    yield softmax([[-200.0, -201.0, -202.0]], 4, MISTAKES["in_maximum"])
    x = [[1.0, 2.0, 4.0], [0.0, 0.0, 1.0], [3.0, 1.0, 1.0]]
    rows = "row i starts at i · stride_x in x and at i · stride_out in out, whatever cols and BLOCK are"
    yield softmax(x, 4, rows, stride_x=8)
    yield softmax(x, 4, rows, stride_out=7)
    draw = generator()
    factor, shift = torch.tensor([[1.0], [3.0], [1e3]]), torch.tensor([[0.0], [-1e4], [1e4]])  # one distribution a row
    for cols, BLOCK in ((1, 4), (16, 64), (100, 128)):
        yield softmax(factor * torch.randn(3, cols, generator=draw) + shift, BLOCK, "", cols + 3, cols + 2, fresh=True)
    yield softmax([[-1e30, -1e30, -1e30]], 4, MISTAKES["finite"], edge="low")
    for dtype in (torch.float16, torch.bfloat16) if hardware.device().type == "cuda" else (torch.float16,):  # no bf16 in the interpreter
        half = 3 * torch.randn(2, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
        yield softmax(half, 64, edge="half")
        yield softmax(3 * torch.randn(3, 17, generator=draw).to(dtype), 64, "", 20, 19, fresh=True, edge="half")


EXERCISE = Exercise(
    id="2.5",
    task="Write a softmax kernel that reads each element once and writes it once: each program takes one row.",
    conditions=CONDITIONS,
    hints=(
        "Write chapter 1's safe softmax with tl.max, tl.exp and tl.sum. What must the positions past the end of the row hold, so that they change "
        "neither the maximum nor the sum?",
        'tl.load(x_ptr + row * stride_x + offs, mask=offs < cols, other=-float("inf")).to(tl.float32): −inf is never the maximum, and its exp is 0. '
        "Then the numerator is tl.exp(x - tl.max(x, axis=0)).",
    ),
    solution=softmax_kernel,
    reasoning="The row stays in registers from the load to the store, so each element makes two trips instead of eight. −inf past the end of the row "
    "changes neither the maximum nor the sum of exp. The arithmetic is float32, whatever the input's dtype. "
    "(tl.max returns float32 for fp16, so a kernel without the conversion is right too, by luck.)",
    more="The package's version, layout.softmax_kernel, also computes its offsets in int64, for tensors of more than 2³¹ elements, and rounds to the "
    "output's dtype by name, .to(out_ptr.dtype.element_ty), which tl.store would otherwise do.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    launch=launch,
    tolerance=tolerance,
    overlap="rows are written by more than one program: program i writes only row i",
    again="load the row once, keep it as a block, and use that block for the maximum, the exponentials and their sum, so that each element makes "
    "two trips",
)
