"""Exercise 1.1, safe_softmax."""

import math

import torch

from fa_tutorial.exercises import harness
from fa_tutorial.exercises.harness import INF, Exercise, case, exp32, generator, masked_vectors, vectors, views


def safe_softmax(x):
    """Softmax over the last dimension of x: (..., n). Returns a tensor of x's shape and dtype."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # fp16 can't hold a sum above 65,504
    m = wide.amax(dim=-1, keepdim=True)
    p = torch.exp(wide - m)
    return (p / p.sum(dim=-1, keepdim=True)).to(x.dtype)


_BELOW = "exp overflows, because you subtract {}, which may be far below the maximum"
_ABOVE = "every exponential underflows and 0 / 0 is NaN, because you subtract {}, which may be far above the maximum"
MISTAKES = {
    "not_divided": "the exponentials are not divided by their sum",
    "exp_alone": "nothing is divided: y must add up to 1",
    "wrong_sign": "the exponent has the wrong sign, so that the smallest x gets the largest weight",
    "log": "that is the logarithm of softmax",
    "base_2": "the base is e, not 2",
    "no_exp": "x itself is divided by its sum: exp is missing",
    "count": "the exponentials are divided by their number, not by their sum",
    "shifted_above": "only the numerators are shifted: divide by the sum of the same shifted exponentials",
    "shifted_below": "only the sum is shifted: the numerators must be the terms of that sum",
    "sigmoid": "each element is treated on its own: softmax compares it with the rest of its row",
    "columns": "the softmax runs down the columns: take it over the last dimension",
    "dim_0": "the softmax runs over dimension 0: take it over the last",
    "dim_1": "the softmax runs over dimension 1: take it over the last",
    "one_sum": "one sum is taken over the whole tensor: each row has its own",
    "one_softmax": "one maximum and one sum are taken over the whole tensor: each row has its own",
    "flat_maximum": "the maximum of row i is subtracted from column i: the maximum has lost its dimension (keepdim=True keeps it)",
    "flat_sum": "column i is divided by the sum of row i: the sum has lost its dimension (keepdim=True keeps it)",
    "flat_both": "column i is shifted by row i's maximum and divided by row i's sum: both have lost their dimension (keepdim=True keeps it)",
    "unshifted": "exp overflows: float32 holds exp(x) only up to x = 88.72, so bring the largest exponent down to 0 first",
    "clamped": "x is clamped, so different scores become equal: subtract the maximum instead",
    "minimum": _BELOW.format("the row's minimum"),
    "first": _BELOW.format("the row's first value"),
    "last": _BELOW.format("the row's last value"),
    "mean": _BELOW.format("the row's mean"),
    "unshifted_wide": "exp overflows: even float64 holds exp(x) only up to x = 709.78, so bring the largest exponent down to 0 first",
    "first_wide": _BELOW.format("the row's first value"),
    "last_wide": _BELOW.format("the row's last value"),
    "minimum_wide": _BELOW.format("the row's minimum"),
    "mean_wide": _BELOW.format("the row's mean"),
    "far_below": "every exponential underflows and 0 / 0 is NaN: subtract the row's maximum; the largest |x| or a constant won't do",
    "half_sum": "the sum of 70,000 ones is inf in float16, so every weight is 0: compute the sum in float32",
    "one_maximum": _ABOVE.format("one maximum for the whole tensor") + " of a row",
}

CONDITIONS = {
    "inf": "a −inf entry gets the weight 0 and doesn't affect the others",
    "half": "fp16 and bf16 work too, even on a row of 70,000 equal scores, and the result has x's dtype",
    "float64": "a float64 input gives a result with float64's accuracy",
    "views": "x may be a view: a slice, or a transpose",
}


def twin(x, mistake=None):
    is_half, x, whole = x.dtype == torch.float16, x.double(), x.dim() - 1
    exp = torch.exp if (mistake or "").endswith("_wide") else exp32  # float64 hides an overflow for longer
    mistake = (mistake or "").removesuffix("_wide")
    shifts = {"minimum": x.amin(-1, keepdim=True), "first": x[..., :1], "last": x[..., -1:], "mean": x.mean(-1, keepdim=True),
              "far_below": x.abs().amax(-1, keepdim=True), "one_maximum": x.max(), "unshifted": 0.0, "flat_maximum": x.amax(-1),
              "flat_both": x.amax(-1)}  # fmt: skip
    if mistake == "clamped":
        return twin(x.clamp(max=80), "unshifted")
    if mistake in ("columns", "dim_0", "dim_1"):
        return torch.softmax(x, min(whole, {"columns": max(whole - 1, 0), "dim_0": 0, "dim_1": 1}[mistake]))
    p = exp(x - shifts.get(mistake, x.amax(-1, keepdim=True)))
    total = p.sum(-1, keepdim=True)
    if mistake in ("flat_sum", "flat_both"):
        return p / p.sum(-1)
    return {
        "not_divided": lambda: p,
        "exp_alone": lambda: exp32(x),
        "wrong_sign": lambda: torch.softmax(-x, -1),
        "log": lambda: torch.log_softmax(x, -1),
        "base_2": lambda: torch.softmax(x * math.log(2), -1),
        "no_exp": lambda: x / x.sum(-1, keepdim=True),
        "half_sum": lambda: p / total.masked_fill((total > 65_504) & is_half, INF),
        "count": lambda: p / x.shape[-1],
        "shifted_above": lambda: p / exp32(x).sum(-1, keepdim=True),
        "shifted_below": lambda: exp32(x) / total,
        "sigmoid": lambda: torch.sigmoid(x),
        "one_sum": lambda: p / p.sum(),
        "one_softmax": lambda: torch.softmax(x.flatten(), 0).view(x.shape),
    }.get(mistake, lambda: p / total)()


class SameDtype:
    """Watches for a result in another dtype than x's."""

    def __init__(self, x):
        self.dtype = x.dtype

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def complaint(self, result):
        if not isinstance(result, torch.Tensor) or result.dtype == self.dtype:
            return ""
        got, want = (str(dtype).removeprefix("torch.") for dtype in (result.dtype, self.dtype))
        return f"the weights are right, but they are in {got}: convert them to x's dtype, {want}"


def tolerance(args, part):
    """The weights of a long row are small, so no absolute error may cover them."""
    rtol, atol = harness.tolerance(args, part)
    return rtol, atol if args[0].shape[-1] < 1_000 else 0.0


def inputs():
    yield case(torch.tensor([1.0, 3.0]), otherwise="y = exp(x) / Σ exp(x)")
    yield case(torch.tensor([[1.0, 3.0], [5.0, 6.0]]), otherwise="each row has its own maximum and its own sum")
    yield case(
        (torch.arange(8.0) ** 1.5).view(2, 2, 2), on="x of shape (2, 2, 2)", otherwise="with 3 dimensions the softmax runs over the last"
    )
    for x in ([89.0, 89.0], [90.0, 100.0], [0.0, 160.0], [160.0, 0.0], [0.0, 300.0]):
        yield case(torch.tensor(x), otherwise=_BELOW.format("something"))
    for x in ([0.0, 1000.0], [1000.0, 0.0], [0.0, 2000.0]):
        yield case(torch.tensor(x), otherwise=_BELOW.format("something"))
    yield case(torch.tensor([-1000.0, -1000.0]), otherwise=_ABOVE.format("something"))
    yield case(torch.tensor([[0.0, 0.0], [1000.0, 1000.0]]), otherwise=_ABOVE.format("something") + " of row 0")
    yield case(torch.tensor([5.0]), otherwise="a row of one element has the weight 1")
    draw = generator()
    for shape in ((7,), (5, 33), (2, 2, 3, 64)):
        for words, x in vectors(draw, *shape):
            yield case(x.float(), on=f"{words}, shape {shape}", fresh=True)
            yield case(x, on=f"{words}, shape {shape}, float64", fresh=True, edge="float64")
    yield case(torch.arange(1.0, 7.0, dtype=torch.float64) / 3, on="x = 1/3, 2/3, … 2 in float64", edge="float64")
    yield case(torch.tensor([-INF, 1.0, 2.0]), edge="inf")
    for words, x in masked_vectors(draw, 5, 33):
        yield case(x.float(), on=f"{words}, shape (5, 33)", fresh=True, edge="inf")
    for dtype, largest in ((torch.float16, 6e4), (torch.bfloat16, 3e38)):
        name = str(dtype).removeprefix("torch.")
        x = torch.tensor([largest, largest, -largest], dtype=dtype)
        yield case(x, on=f"x = [{largest:g}, {largest:g}, −{largest:g}] in {name}", otherwise=f"overflows in {name}", edge="half")
        yield case(3 * torch.randn(3, 4, 8, generator=draw).to(dtype), on=f"3·randn, shape (3, 4, 8), {name}", fresh=True, edge="half")
    yield case(torch.zeros(70_000, dtype=torch.float16), on="x = 70,000 zeros in float16", otherwise=MISTAKES["half_sum"], edge="half")
    for words, view in views(torch.randn(3, 4, 8, generator=draw)):
        yield case(view, on=f"{words}, shape (3, 4, 8)", fresh=True, edge="views")


EXERCISE = Exercise(
    id="1.1",
    task="Write a softmax over the last dimension that never overflows.",
    conditions=CONDITIONS,
    hints=(
        "softmax(x) = softmax(x − c) for every c. Which c makes the largest exponent 0, so that no other one is positive?",
        "Take three steps along dim=-1: the maximum m, the exponentials p of x − m, and p divided by its sum. With keepdim=True each row keeps its "
        "own maximum and sum. For fp16, take these steps on x.float() (float64 must stay float64), and convert the result back with .to(x.dtype).",
    ),
    solution=safe_softmax,
    reasoning="We subtract the row's maximum, so the largest exponent is 0. Nothing overflows, and the sum is at least 1, so the division is safe too. "
    "keepdim=True leaves a last dimension of 1, so each row's maximum and sum broadcast along that row. fp16 and bf16 inputs become float32 first: in "
    "fp16 the sum itself would overflow on a long row of equal scores.",
    more="The package's version, softmax.safe_softmax, checks its argument.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    tolerance=tolerance,
    watch=SameDtype,
)
