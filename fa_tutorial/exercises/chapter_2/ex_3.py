import torch

from fa_tutorial import hardware
from fa_tutorial.arguments import dtype_name
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.layout import tl, triton


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out = x + y for n contiguous elements; program i takes elements i·BLOCK … (i+1)·BLOCK − 1."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0)
    tl.store(out_ptr + offs, x + y, mask=mask)


START = "tl.program_id(0) * BLOCK"
MISTAKES = {
    "only the first BLOCK elements are written: program i writes those from i · BLOCK on, where i is program_id(0)": (f"{START} + ", ""),
    "program i starts at element i instead of i · BLOCK: multiply program_id(0) by BLOCK": (START, "tl.program_id(0)"),
    "every program reads the first BLOCK elements of x and y: the loads need program_id(0) · BLOCK too": [
        ("x_ptr + offs", "x_ptr + tl.arange(0, BLOCK)"), ("y_ptr + offs", "y_ptr + tl.arange(0, BLOCK)")],
    "the last element is masked out: the mask is offs < n": ("offs < n", "offs < n - 1"),
    "your mask compares with BLOCK, where program 1's offsets begin, so it lets nothing of program 1 through: the mask is offs < n": (
        "offs < n", "offs < BLOCK"),
    "an offset counts elements, not bytes: don't multiply tl.arange by their size": ("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK) * 4"),
}  # fmt: skip

STARTS = "program i works on the elements from i · BLOCK to (i + 1) · BLOCK − 1, whatever BLOCK is"


def launch(x, y, BLOCK):
    n = len(x)
    return Launch((triton.cdiv(n, BLOCK),), (In(x), In(y), Out((n,), x.dtype), n), {"BLOCK": BLOCK})


def inputs():
    past = "runs past the end of the data: every load and the store need mask=offs < n"
    x, y = torch.arange(1.0, 9.0), 10 * torch.arange(1.0, 9.0)
    one = "x_ptr + i points to element i (a pointer steps by elements, not by bytes), and here program 0 takes elements 0 to 3"
    yield case(x[:4], y[:4], 4, stray=one)
    for BLOCK in (4, 8):
        yield case(x, y, BLOCK, otherwise=STARTS)
    yield case(x[:4] / 3, y[:4] / 7, 4, otherwise="fp32 numbers are rounded: add what you load as it is, and store the sum as it is")
    ragged = "the last program has more lanes than elements are left: every load and the store need mask=offs < n"
    for n in (5, 1):
        yield case(x[:n], y[:n], 4, otherwise=ragged, stray=past)
    draw = generator()
    for n, BLOCK in ((17, 16), (5000, 2048)):
        yield case(*torch.randn(2, n, generator=draw), BLOCK, otherwise=STARTS, stray=past, fresh=True)
    for dtype in (torch.float16, torch.bfloat16) if hardware.device().type == "cuda" else (torch.float16,):  # no bf16 in the interpreter
        x, y = torch.randn(2, 17, generator=draw).to(dtype)
        yield case(x, y, 16, on=f"n = 17, BLOCK = 16, {dtype_name(dtype)}", fresh=True, edge="half")


EXERCISE = Exercise(
    task="Write a kernel that adds two vectors: out = x + y.",
    conditions={"half": "fp16 inputs work too, and bf16 inputs on a GPU"},
    hints=(
        "double_kernel has the offsets and the mask that you need. What does it load, and what does it store?",
        "offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) and mask = offs < n. Load x and y at offs, and store their sum at offs; "
        "all three take mask=mask, and the loads other=0.0.",
    ),
    solution=add_kernel,
    reasoning="One vector of offsets serves x, y and out, and one mask keeps the last program inside all three.",
    more="The package's version, layout.add_kernel, also computes its offsets in int64, for tensors of more than 2³¹ elements, and adds "
    "in float32, because the interpreter cannot add bf16.",
    inputs=inputs,
    truth=lambda x, y, BLOCK: x.double() + y.double(),
    rule="element i of out is x[i] + y[i]",
    mistakes=MISTAKES,
    launch=launch,
    seen={
        "overlap": f"elements are added more than once: {STARTS}",
        "pieces": f"one store is enough, since the grid has a program for each block: {STARTS}",
    },
)
