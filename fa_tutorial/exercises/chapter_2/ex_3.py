"""Exercise 2.3, add_kernel."""

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import UNWRITTEN

triton = hardware.require_triton("Exercise 2.3")
import triton.language as tl  # noqa: E402


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out = x + y for n contiguous elements; program i takes elements i·BLOCK … (i+1)·BLOCK − 1."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0)
    tl.store(out_ptr + offs, x + y, mask=mask)


MISTAKES = {
    "x_twice": "y is never read: out is x + x",
    "y_twice": "x is never read: out is y + y",
    "x_alone": "out is x alone",
    "y_alone": "out is y alone",
    "total": "you store the sum of all elements: element i of out is x[i] + y[i]",
    "reads_first": "every program reads the first BLOCK elements of x and y: the loads need program_id(0) · BLOCK too",
    "first_block": "every program works on the first BLOCK elements: offs must start at program_id(0) · BLOCK",
    "not_multiplied": "program i starts at element i instead of i · BLOCK: multiply program_id(0) by BLOCK",
    "one_short": "the last element is masked out: the mask is offs < n",
    "half": "the sum is rounded to half precision: store it as it is, tl.store converts to the dtype of out",
}

CONDITIONS = {"half": "fp16 inputs work too, and bf16 inputs on a GPU"}
PAST = "runs past the end of the data: every load and the store need mask=offs < n"


def twin(x, y, BLOCK, mistake=None):
    n = len(x)
    x, y = x.double(), y.double()
    out = torch.full((n,), UNWRITTEN, dtype=torch.float64)
    for pid in range(triton.cdiv(n, BLOCK)):
        lanes = torch.arange(BLOCK)
        offs = {"first_block": lanes, "not_multiplied": pid + lanes}.get(mistake, pid * BLOCK + lanes)
        offs = offs[offs < n - (mistake == "one_short")]
        read = lanes[: len(offs)] if mistake == "reads_first" else offs
        a, b = x[read], y[read]
        out[offs] = {"x_twice": a + a, "y_twice": b + b, "x_alone": a, "y_alone": b, "total": (a + b).sum().expand(len(a)),
                     "half": (a + b).half().double()}.get(mistake, a + b)  # fmt: skip
    return out


def launch(x, y, BLOCK):
    n = len(x)
    return Launch((triton.cdiv(n, BLOCK),), (In(x), In(y), Out((n,), x.dtype), n), {"BLOCK": BLOCK})


def tolerance(args, part):
    """Both inputs are exact in x's dtype, so one rounding of the exact sum is all that may differ."""
    return {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}[args[0].dtype], 1e-7


def inputs():
    def add(x, y, BLOCK, otherwise="", dtype="", **options):
        return case(x, y, BLOCK, on=f"n = {len(x)}, BLOCK = {BLOCK}{dtype}", otherwise=otherwise, stray=PAST, **options)

    x, y = torch.arange(1.0, 9.0), 10 * torch.arange(1.0, 9.0)
    starts = "program i works on the elements from i · BLOCK to (i + 1) · BLOCK − 1, and 2 programs of 4 fill 8 elements exactly"
    yield add(x[:4], y[:4], 4, "element i of out is x[i] + y[i]")
    yield add(x, y, 4, f"an offset is wrong: {starts}")
    yield add(x[:5], y[:5], 4, PAST)
    yield add(x[:1], y[:1], 4, PAST)
    third = torch.tensor([1 / 3, 2 / 3, 1e-3, 1000.1])
    yield add(third, third, 4, "fp32 inputs must keep their precision")
    draw = generator()
    for n, BLOCK in ((15, 16), (17, 16), (1000, 128)):
        yield add(*(factor * torch.randn(n, generator=draw) for factor in (3, 100)), BLOCK, fresh=True)
    for dtype in (torch.float16, torch.bfloat16) if hardware.device().type == "cuda" else (torch.float16,):  # no bf16 in the interpreter
        name = f", {str(dtype).removeprefix('torch.')}"
        yield add(*(torch.randn(17, generator=draw).to(dtype) for _ in "xy"), 16, dtype=name, fresh=True, edge="half")


EXERCISE = Exercise(
    id="2.3",
    task="Write a kernel that adds two vectors: out = x + y.",
    conditions=CONDITIONS,
    hints=(
        "double_kernel has the offsets and the mask that you need. What does it load, and what does it store?",
        "offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) and mask = offs < n. Load x and y at offs, and store their sum at offs; all three take "
        "mask=mask, and the loads other=0.0.",
    ),
    solution=add_kernel,
    reasoning="One vector of offsets serves x, y and out, and one mask keeps the last program inside all three.",
    more="The package's version, layout.add_kernel, also computes its offsets in int64, for tensors of more than 2³¹ elements, and adds in float32, "
    "because the interpreter cannot add bf16.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    launch=launch,
    tolerance=tolerance,
    overlap="elements are added more than once: program i takes only those from i · BLOCK to (i + 1) · BLOCK − 1",
)
