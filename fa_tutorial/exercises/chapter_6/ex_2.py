import math

import torch

from fa_tutorial.exercises.chapter_6.shared import NAN, drawn, given_p, gradients, head, masks, one_tile, sizes, transposed
from fa_tutorial.exercises.harness import RTOL, Exercise
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.watch import Gradients


def backward_with_p(q, k, v, p, do, scale):
    """(dq, dk, dv). q, do: (B, H, S_q, D); k, v: (B, H, S_k, D); p: (B, H, S_q, S_k)."""
    dv = p.transpose(-1, -2) @ do
    dp = do @ v.transpose(-1, -2)
    ds = p * (dp - (p * dp).sum(dim=-1, keepdim=True))
    dq = scale * ds @ k
    dk = scale * ds.transpose(-1, -2) @ q
    return dq, dk, dv


MISTAKES = {
    "dq and dk are without the scale: s = scale · q kᵀ": ("scale * ds", "ds"),
    "dq and dk are scaled by 1/√D: use the scale that is given": ("    dq = ", "    scale = q.shape[-1] ** -0.5\n    dq = "),
    "ds is without the row sum of (6.5)": ("(dp - (p * dp).sum(dim=-1, keepdim=True))", "dp"),
    "dv is p do: o = p v is a matmul, and (6.3) gives another product for its second factor": ("p.transpose(-1, -2) @ do", "p @ do"),
    "dp is do v: o = p v is a matmul, and (6.3) gives another product for its first factor": ("do @ v.transpose(-1, -2)", "do @ v"),
    "the results come in the order (dv, dq, dk): return (dq, dk, dv)": ("return dq, dk, dv", "return dv, dq, dk"),
    "dq and dv are exchanged: return (dq, dk, dv)": ("return dq, dk, dv", "return dv, dk, dq"),
    "dk and dv are exchanged: return (dq, dk, dv)": ("return dq, dk, dv", "return dq, dv, dk"),
    "dq and dk are exchanged: return (dq, dk, dv)": ("return dq, dk, dv", "return dk, dq, dv"),
    "p ∘ dp is summed over the queries: each query has a sum over its keys": ("dim=-1, keepdim", "dim=-2, keepdim"),
    "p is computed again, without the pairs that a mask has hidden: take the p that is given": (
        "    dv = p", "    p = torch.softmax(scale * q @ k.mT, dim=-1)\n    dv = p"),
    "ds is not transposed in dk: key j adds up column j of ds": ("ds.transpose(-1, -2)", "ds"),
}  # fmt: skip

RULE = "o = p v and s = scale · q kᵀ take (6.3), and p = softmax(s) takes (6.5)"
CONDITIONS = {
    "half": "fp16 comes in, and fp16 goes out",
    "float64": "float64 in gives float64's accuracy out",
    "views": "the inputs may be views: any strides work",
    "nan": NAN,
}


def tolerance(args, part):
    rtol = RTOL[args[0].dtype]
    return rtol, rtol * sizes(*args)[("dq", "dk", "dv").index(part)]


def inputs():
    yield from one_tile(RULE, pack=given_p)
    yield from masks(pack=given_p)
    seed, draw = torch.Generator().manual_seed(0), generator()
    yield drawn((1, 1, 2, 3, 2), 1 / 3, False, seed, words="float64, ", dtype=torch.float64, edge="float64", pack=given_p)
    yield drawn((1, 2, 3, 5, 4), 0.5, False, seed, words="float16, ", dtype=torch.float16, edge="half", pack=given_p)
    yield head([math.nan], [1.0, 2.0], [3.0, 5.0], [1.0], edge="nan", pack=given_p)
    for shape, scale in (((2, 3, 9, 17, 8), 0.3), ((1, 2, 1, 25, 16), -0.25)):
        yield drawn(shape, scale, True, draw, words="randn, ", pack=given_p)
    yield drawn((2, 3, 7, 10, 8), 0.35, True, draw, words="views, ", change=transposed, edge="views", pack=given_p)


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
    truth=lambda *args: gradients(*args),
    rule=RULE,
    mistakes=MISTAKES,
    parts=("dq", "dk", "dv"),
    tolerance=tolerance,
    watch=Gradients,
)
