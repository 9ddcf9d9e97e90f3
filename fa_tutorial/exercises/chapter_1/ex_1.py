import torch

from fa_tutorial.arguments import dtype_name
from fa_tutorial.exercises import harness
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator, vectors, views
from fa_tutorial.exercises.running import INF, Wrong, adapting
from fa_tutorial.exercises.watch import names_in


def safe_softmax(x):
    """Softmax over the last dimension of x: (..., n). Returns a tensor of x's shape and dtype."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # fp16 can't hold a sum above 65,504
    m = wide.amax(dim=-1, keepdim=True)
    p = torch.exp(wide - m)
    return (p / p.sum(dim=-1, keepdim=True)).to(x.dtype)


HIGH = "a score may be higher than exp can take, 88.72 in float32 and 709 in float64: subtract the row's maximum, so that the largest exponent is 0"
LOW = "exp(−1000) is 0, and 0 / 0 is NaN: subtract the row's own maximum, so that its largest exponent is 0"
ROUNDED = {
    torch.float16: (1.05 * 2**-11, 4e-8),
    torch.bfloat16: (1.05 * 2**-8, 1e-7),
}  # one rounding, of the result, is all that may differ
LOWEST = "a finite score may be as low as this: subtract the row's own maximum, add no constant, and let no number stand for it or for −inf"
MISTAKES = {
    "exp overflows: float32 holds exp(x) only up to x = 88.72, so subtract the row's maximum first": ("wide - m", "wide"),
    "one maximum is taken over the whole tensor: each row has its own": ("wide.amax(dim=-1, keepdim=True)", "wide.max()"),
    "the softmax runs over dimension 0: take it over the last": ("dim=-1", "dim=0"),
    "the maximum and the sum have lost their dimension, so that column i gets those of row i (keepdim=True keeps it)": (
        ", keepdim=True", ""),
    "the exponentials are not divided by their sum": ("p / p.sum(dim=-1, keepdim=True)", "p"),
    "the exponent has the wrong sign, so that the smallest x gets the largest weight": ("wide - m", "m - wide"),
}  # fmt: skip


LIBRARY = {"softmax", "_softmax", "log_softmax", "logsumexp", "logcumsumexp", "Softmax", "LogSoftmax"}


@adapting
def in_its_dtype(answer, x):
    """The answer; Wrong where a library made its result, or the result has another dtype than x."""
    if names_in(answer) & LIBRARY:
        raise Wrong("a library's function makes it: write it with max, exp and sum")
    y = answer(x)
    if isinstance(y, torch.Tensor) and y.dtype != x.dtype:
        raise Wrong(f"returns {dtype_name(y.dtype)}: convert the weights to x's dtype, {dtype_name(x.dtype)}")
    return y


def inputs():
    yield case(torch.tensor([1.0, 3.0]), otherwise="y = exp(x) / Σ exp(x)")
    rows = "each row has its own maximum and its own sum, each of shape (..., 1), as keepdim=True leaves them"
    yield case(torch.tensor([[1.0, 3.0], [5.0, 6.0]]), otherwise=rows)
    for x in ([90.0, 100.0], [0.0, 2000.0], [2000.0, 0.0]):
        yield case(torch.tensor(x), otherwise=HIGH)
    for x in ([-1000.0, -1000.0], [[0.0, 0.0], [1000.0, 1000.0]]):
        yield case(torch.tensor(x), otherwise=LOW)
    draw = generator()
    for shape in ((7,), (5, 33), (2, 2, 3, 64)):
        for words, x in vectors(draw, *shape):
            yield case(x.float(), on=f"{words}, shape {shape}", fresh=True)
            yield case(x, on=f"{words}, shape {shape}, float64", fresh=True, edge="float64")
    yield case(torch.tensor([-INF, 1.0, 2.0]), edge="inf")
    yield case(torch.tensor([-2e30, -4e30, -INF]), otherwise=LOWEST, edge="inf")
    half = "take every step in float32, and round only the weights: in float16 a sum of 70,000 ones overflows, in bfloat16 it is rounded"
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.zeros(70_000, dtype=dtype)
        yield case(x, on=f"x = 70,000 zeros in {dtype_name(dtype)}", otherwise=half, edge="half")
        x = 3 * torch.linspace(-1.1, 1.1, 128).view(2, 64).to(dtype)
        yield case(x, on=f"x of shape (2, 64), {dtype_name(dtype)}", otherwise=half, edge="half")
    for words, view in views(torch.randn(3, 4, 8, generator=draw)):
        yield case(view, on=f"{words}, shape (3, 4, 8)", fresh=True, edge="views")


EXERCISE = Exercise(
    task="Write a softmax over the last dimension that never overflows.",
    conditions={
        "inf": "a −inf entry gets the weight 0 and doesn't affect the others",
        "half": "fp16 and bf16 are computed in float32, and only the result is rounded, to x's dtype",
        "float64": "a float64 input gives a result with float64's accuracy",
        "views": "x may be a view: a slice, or a transpose",
    },
    hints=(
        "softmax(x) = softmax(x − c) for every c. Which c makes the largest exponent 0, so that no other one is positive?",
        "Take three steps along dim=-1: the maximum m, the exponentials p of x − m, and p divided by its sum. With keepdim=True each row "
        "keeps its own maximum and sum. For fp16, take these steps on x.float() (float64 must stay float64), and convert the result back "
        "with .to(x.dtype).",
    ),
    solution=safe_softmax,
    reasoning="We subtract the row's maximum, so the largest exponent is 0. Nothing overflows, and the sum is at least 1, so the division "
    "is safe too. keepdim=True leaves a last dimension of 1, so each row's maximum and sum broadcast along that row. fp16 and bf16 inputs "
    "become float32 first: in fp16 the sum itself would overflow on a long row of equal scores.",
    inputs=inputs,
    truth=lambda x: torch.softmax(x.double(), -1),
    rule="y = exp(x − m) / Σ exp(x − m), along the last dimension, where m is the row's maximum",
    mistakes=MISTAKES,
    tolerance=lambda args, part: (
        ROUNDED.get(args[0].dtype) or (min(harness.tolerance(args, part)[0], 0.1), 1e-37 if args[0].min() == -INF else 1e-14)
    ),  # some weights are small; a −inf entry's is 0
    adapt=in_its_dtype,
)
