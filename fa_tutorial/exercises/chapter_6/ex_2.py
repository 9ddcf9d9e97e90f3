import functools
import math

import torch

from fa_tutorial.exercises.chapter_6.shared import NAN, drawn, given_p, gradients, head, masks, one_tile
from fa_tutorial.exercises.harness import RTOL, Exercise, case
from fa_tutorial.exercises.inputs import generator, views
from fa_tutorial.exercises.watch import Gradients


def backward_with_p(q, k, v, p, do, scale):
    """(dq, dk, dv). q, do: (B, H, S_q, D); k, v: (B, H, S_k, D); p: (B, H, S_q, S_k)."""
    dv = p.transpose(-1, -2) @ do
    dp = do @ v.transpose(-1, -2)
    ds = p * (dp - (p * dp).sum(dim=-1, keepdim=True))
    dq = scale * ds @ k
    dk = scale * ds.transpose(-1, -2) @ q
    return dq, dk, dv


SUM = "(p * dp).sum(dim=-1, keepdim=True)"
MISTAKES = {
    "dq and dk are without the scale: s = scale · q kᵀ": ("scale * ds", "ds"),
    "dq and dk are scaled by 1/√D: use the scale that is given": (
        "    dq = ", "    scale = q.shape[-1] ** -0.5\n    dq = "),
    "ds is without the row sum of (6.5)": (f"(dp - {SUM})", "dp"),
    "the row sum is not multiplied by p: p multiplies the whole difference": (f"p * (dp - {SUM})", f"p * dp - {SUM}"),
    "column j is shifted by the sum of row j: the sum has lost its dimension (keepdim=True)": (", keepdim=True", ""),
    "dv is p do: o = p v is a matmul, and (6.3) gives another product for its second factor": ("p.transpose(-1, -2) @ do", "p @ do"),
    "dp is do v: o = p v is a matmul, and (6.3) gives another product for its first factor": ("do @ v.transpose(-1, -2)", "do @ v"),
    "the results come in the order (dv, dq, dk): return (dq, dk, dv)": ("return dq, dk, dv", "return dv, dq, dk"),
    "p is computed again, without the pairs that a mask has hidden: take the p that is given": (
        "    dv = p", "    p = torch.softmax(scale * q @ k.mT, dim=-1)\n    dv = p"),
    "rowsum(dp) is subtracted: pᵀ dp is a weighted sum": (SUM, "dp.sum(dim=-1, keepdim=True)"),
    "ds is not transposed in dk: key j adds up column j of ds": ("ds.transpose(-1, -2)", "ds"),
    "q and k are exchanged: the gradient of the first factor of q kᵀ takes the second, and that of the second takes the first": [
        ("ds @ k", "ds @ q"), ("-2) @ q", "-2) @ k")],
    "dk and dv are exchanged: return (dq, dk, dv)": ("return dq, dk, dv", "return dq, dv, dk"),
}  # fmt: skip

RULE = "o = p v and s = scale · q kᵀ take (6.3), and p = softmax(s) takes (6.5)"
CONDITIONS = {
    "half": "fp16 comes in, and fp16 goes out",
    "float64": "float64 in gives float64's accuracy out",
    "views": "the inputs may be views: any strides work, 0 too",
    "nan": NAN,
}


def truth(q, k, v, p, do, scale):
    return gradients(q, k, v, p, do, scale)


def tolerance(args, part):
    """Relative to the largest sum of absolute values that an element is added up from."""
    q, k, v, p, do = (x.double().abs() for x in args[:5])
    dp = do @ v.mT
    ds = abs(args[5]) * p * (dp + (p * dp).sum(-1, keepdim=True))
    sums = {"dq": ds @ k, "dk": ds.mT @ q, "dv": p.mT @ do}[part]
    return RTOL[args[0].dtype], RTOL[args[0].dtype] * float(sums.nan_to_num().max())


@functools.cache  # the same tensors each time: what is right for them is computed once
def fixed():
    seed = torch.Generator().manual_seed(0)
    float64 = drawn((1, 1, 2, 3, 2), 1 / 3, False, seed, words="float64, ", dtype=torch.float64, edge="float64", pack=given_p)
    half = drawn((1, 2, 3, 5, 4), 0.5, False, seed, words="float16, ", dtype=torch.float16, edge="half", pack=given_p)
    nan = head([1.0], [1.0, 2.0], [3.0, math.nan], [1.0], edge="nan", pack=given_p)
    q, k, v, p, do, scale = nan.args
    nan_in_p = case(q, k, v, p.index_fill(3, torch.tensor([0]), math.nan), do, scale, otherwise=f"p of key 0 is NaN: {NAN}", edge="nan")
    return *one_tile(RULE, pack=given_p), *masks(pack=given_p), float64, half, nan, nan_in_p


def inputs():
    yield from fixed()
    draw = generator()
    for shape, scale in (((1, 1, 1, 1, 1), 1.0), ((2, 3, 9, 17, 8), 0.3), ((1, 2, 13, 13, 5), 0.5), ((1, 2, 1, 25, 16), -0.25)):
        yield drawn(shape, scale, False, draw, words="randn, ", pack=given_p)
        yield drawn(shape, scale, True, draw, words="randn, ", pack=given_p)
    for n in range(3):
        change = lambda x, n=n: list(views(x))[n][1]  # noqa: E731
        yield drawn((2, 3, 7, 10, 8), 0.35, True, draw, words="views, ", change=change, edge="views", pack=given_p)


EXERCISE = Exercise(
    task="Write the gradients of q, k and v, given p.",
    conditions=CONDITIONS,
    hints=(
        "Go backward through o = p v, p = softmax(s), s = scale · q kᵀ: a matmul, a softmax as in exercise 6.1, and a matmul again. "
        " What does each step hand to the next?",
        "o = p v gives dv and dp: dv = pᵀ do and dp = do vᵀ. Softmax makes ds from p and dp.",
        "s = scale · q kᵀ: the gradient of q kᵀ is scale · ds, so dq = scale · ds k and dk = scale · dsᵀ q.",
    ),
    solution=backward_with_p,
    reasoning="o = p v and q kᵀ are matmuls with two gradients each, and softmax stands between them. The scale multiplies the scores, so "
    "it multiplies dq and dk, and not dv.",
    more="The package's version, algorithm.attention_backward, is not given p: it recomputes p from q, k and lse, as exercise 6.4 does.",
    inputs=inputs,
    truth=truth,
    rule=RULE,
    mistakes=MISTAKES,
    parts=("dq", "dk", "dv"),
    tolerance=tolerance,
    watch=Gradients,
)
