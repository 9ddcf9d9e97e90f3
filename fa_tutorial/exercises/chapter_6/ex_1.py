import math

import torch

from fa_tutorial.exercises.chapter_6.shared import NAN, transposed
from fa_tutorial.exercises.harness import RTOL, Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.watch import RowSums


def softmax_backward(p, dp):
    """ds of p = softmax(s) over the last dimension. p, dp: (…, n)."""
    delta = (p * dp).sum(dim=-1, keepdim=True)  # one number a row
    return p * (dp - delta)


DS, SUM = "p * (dp - delta)", "(p * dp).sum(dim=-1, keepdim=True)"
MISTAKES = {
    "p ∘ dp is only diag(p) dp: what does p pᵀ dp give?": (DS, "p * dp"),
    "this takes only the diagonal of the Jacobian, p (1 − p): every score changes every p of its row": (DS, "p * (1 - p) * dp"),
    "the row sum is not multiplied by p: p multiplies the whole difference": (DS, "p * dp - delta"),
    "a factor p is missing: diag(p) dp has one, and so has p pᵀ dp": (DS, "dp - delta"),
    "ds has the wrong sign": (DS, "p * (delta - dp)"),
    "the row sum is added: J has a minus before p pᵀ": (DS, "p * (dp + delta)"),
    "this takes the mean of p ∘ dp: pᵀ dp is a sum": (SUM, "(p * dp).mean(dim=-1, keepdim=True)"),
    "rowsum(dp) is subtracted: pᵀ dp is a weighted sum": (SUM, "dp.sum(dim=-1, keepdim=True)"),
    "column j is shifted by the sum of row j: the sum has lost its dimension (keepdim=True)": (", keepdim=True", ""),
    "p ∘ dp is summed down the columns: sum along the last dimension": ("dim=-1", "dim=-2"),
}

RULE = "ds = J dp, with the J of (6.4) for each row"
CONDITIONS = {
    "unseen": "a row that sees nothing has p = 0, and gets ds = 0",
    "float64": "float64 in gives float64's accuracy out",
    "half": "fp16 comes in, and fp16 goes out",
    "views": "p and dp may be views: any strides work",
    "nan": NAN,
}


def truth(p, dp):
    p, dp = p.double(), dp.double()
    return p * dp - p * (p * dp).sum(-1, keepdim=True)


def tolerance(args, part):
    """Relative to the largest sum of absolute values that an element is added up from."""
    p, dp = (x.double().abs().nan_to_num() for x in args)
    rtol = RTOL[args[0].dtype]
    return rtol, rtol * float((p * (dp + (p * dp).sum(-1, keepdim=True))).max())


def inputs():
    seed, fresh = torch.Generator().manual_seed(0), generator()

    def drawn(shape, words="", draw=seed, hidden=False, change=torch.Tensor.float, name="", **options):
        s, dp = (torch.randn(*shape, generator=draw, dtype=torch.float64) for _ in range(2))
        s = s.masked_fill(torch.rand(*shape, generator=draw) < 0.5, -torch.inf) if hidden else s
        p = torch.softmax(s, -1).nan_to_num(0.0)
        return case(change(p), change(dp), on=f"{name}p of shape {shape}", otherwise=words, fresh=draw is fresh, **options)

    yield case(torch.tensor([[0.25, 0.75]]), torch.tensor([[2.0, 8.0]]))
    rows = torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([[1.0, 3.0], [2.0, 8.0]])
    yield case(*rows, otherwise="two rows: each has a sum of its own")
    yield drawn((2, 3, 2, 3), "there may be leading dimensions: sum along the last one")
    yield drawn((16, 3))
    yield case(torch.zeros(2, 3), torch.ones(2, 3), on="p = 0 in both rows", edge="unseen")
    yield case(torch.tensor([[0.0, 1.0], [math.nan, 0.5]]), torch.tensor([[math.nan, 2.0], [1.0, 3.0]]), edge="nan")
    yield drawn((3, 16), change=torch.Tensor.half, name="float16, ", edge="half")
    thirds = torch.tensor([[1.0, 2.0], [3.0, 0.0]], dtype=torch.float64) / 3  # no float32 holds most of them
    yield case(thirds, thirds + 1, on="p = [[1/3, 2/3], [1, 0]], dp = p + 1 in float64", edge="float64")
    for shape in ((1,), (2, 3, 4, 33)):
        yield drawn(shape, draw=fresh)
        yield drawn(shape, draw=fresh, hidden=True, name="hidden pairs, ", edge="unseen")
        yield drawn(shape, draw=fresh, change=torch.Tensor.half, name="float16, ", edge="half")
    yield drawn((2, 3, 4), draw=fresh, change=lambda x: transposed(x.float()), name="views, ", edge="views")


EXERCISE = Exercise(
    task="Write the gradient of softmax over the last dimension, without its Jacobian.",
    conditions=CONDITIONS,
    hints=(
        "The Jacobian of a row is diag(p) − p pᵀ. Multiply it by dp by hand: what does each of the two terms give?",
        "diag(p) dp is p ∘ dp, and p pᵀ dp is p times one number, rowsum(p ∘ dp): factor p out, and mind keepdim=True.",
    ),
    solution=softmax_backward,
    reasoning="(diag(p) − p pᵀ) dp = p ∘ dp − p · (pᵀ dp), and pᵀ dp is one number a row, rowsum(p ∘ dp). So ds = p ∘ (dp − rowsum(p ∘ "
    "dp)): one sum a row and two products an element, where the Jacobian has n² elements a row.",
    inputs=inputs,
    truth=truth,
    rule=RULE,
    mistakes=MISTAKES,
    tolerance=tolerance,
    watch=RowSums,
)
