"""Exercise 6.3, backward_with_p."""

import functools

import torch

from fa_tutorial.exercises.chapter_6.shared import HEADS, SCALES, TILE, WEIGHTS
from fa_tutorial.exercises.gradient_inputs import Inputs
from fa_tutorial.exercises.gradient_twin import gradient_twin, weights
from fa_tutorial.exercises.harness import RTOL, Exercise
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


_ORDER = "return (dq, dk, dv)"
MISTAKES = {
    "no_delta": "the row sum is missing: ds = p ∘ (dp − rowsum(p ∘ dp))",
    "delta_plus": "the row sum is added: ds = p ∘ (dp − rowsum(p ∘ dp))",
    "delta_outside": "the row sum is not multiplied by p: p multiplies the whole difference",
    "delta_dp": "rowsum(dp) is subtracted: weight dp by p before summing",
    "delta_mean": "the mean of p ∘ dp is subtracted: subtract its sum",
    "delta_columns": "p ∘ dp is summed over the queries: sum over the keys, along each row",
    "delta_lost": "column j is shifted by the sum of row j: the sum has lost its dimension (keepdim=True)",
    "delta_all": "one sum is taken over all rows: each row has its own",
    **{name: words for name, words in TILE.items() if name != "dp_scaled"},  # here it gives what both_twice gives
    **WEIGHTS,
    **SCALES,
    "dq_ds_transposed": "ds is transposed in dq: row i of dq sums over the keys",
    "dq_from_v": "v stands where k belongs in dq: q was multiplied by k",
    "dq_from_q": "q stands where k belongs in dq: q was multiplied by k",
    "dk_from_dq": "dq stands where q belongs in dk: k was multiplied by q",
    "dq_unscaled": "dq is without the scale: s = scale · q kᵀ",
    "both_unscaled": "dq and dk are without the scale: s = scale · q kᵀ",
    "both_twice": "the scale is applied twice in dq and dk",
    "dq_twice": "the scale is applied twice in dq",
    "exchanged": f"dq and dk are exchanged: {_ORDER}",
    "dk_dv": f"dk and dv are exchanged: {_ORDER}",
    "turned": f"the gradients come in another order: {_ORDER}",
    **HEADS,
}

CONDITIONS = {
    "half": "fp16 comes in, and fp16 goes out",
    "float64": "float64 in gives float64's accuracy out",
    "views": "the inputs may be views: any strides work, 0 too",
}


def twin(q, k, v, p, do, scale, mistake=None):
    return gradient_twin(q, k, v, do, None, None, q.shape[2], k.shape[2], False, scale, mistake, p)


def tolerance(args, part):
    """Relative to the largest sum of absolute values that an element is added up from."""
    q, k, v, p, do = (x.double().abs() for x in args[:5])
    dp = do @ v.mT
    ds = abs(args[5]) * p * (dp + (p * dp).sum(-1, keepdim=True))
    sums = {"dq": ds @ k, "dk": ds.mT @ q, "dv": p.mT @ do}[part]
    return RTOL[args[0].dtype], RTOL[args[0].dtype] * float(sums.max())


def pack(q, k, v, do, lse, delta, blocks, is_causal, scale):
    return q, k, v, weights(q, k, lse, *blocks, is_causal, scale).to(q.dtype), do, scale


MAKE = Inputs(pack, has_blocks=False)


@functools.cache  # the same tensors each time: what the twin gives for them is computed once
def fixed():
    seed = torch.Generator().manual_seed(0)
    float64 = MAKE.drawn((1, 1, 2, 3, 2), 1 / 3, False, seed, words="float64, ", dtype=torch.float64, edge="float64")
    half = MAKE.drawn((1, 2, 3, 5, 4), 0.5, False, seed, words="float16, ", dtype=torch.float16, edge="half")
    return *MAKE.one_tile(), *MAKE.masks(), float64, half


def inputs():
    yield from fixed()
    draw = generator()
    for shape, scale in (((1, 1, 1, 1, 1), 1.0), ((2, 3, 9, 17, 8), 0.3), ((1, 2, 13, 13, 5), 0.5), ((1, 2, 1, 25, 16), -0.25)):
        yield MAKE.drawn(shape, scale, False, draw, words="randn, ")
        yield MAKE.drawn(shape, scale, True, draw, words="randn, ")
    for n in range(3):
        change = lambda x, n=n: list(views(x))[n][1]  # noqa: E731
        yield MAKE.drawn((2, 3, 7, 10, 8), 0.35, True, draw, words="views, ", change=change, edge="views")


EXERCISE = Exercise(
    id="6.3",
    task="Write the gradients of q, k and v, given p.",
    conditions=CONDITIONS,
    hints=(
        "Go backward through o = p v, p = softmax(s), s = scale · q kᵀ: a matmul as in exercise 6.1, a softmax as in 6.2, and a matmul again. What does each step hand to the next?",
        "o = p v gives dv and dp: dv = pᵀ do and dp = do vᵀ. Softmax makes ds from p and dp.",
        "s = scale · q kᵀ: the gradient of q kᵀ is scale · ds, so dq = scale · ds k and dk = scale · dsᵀ q.",
    ),
    solution=backward_with_p,
    reasoning="o = p v and q kᵀ are matmuls with two gradients each, and softmax stands between them. The scale multiplies the scores, so it "
    "multiplies dq and dk, and not dv.",
    more="The package's version, algorithm.attention_backward, is not given p: it recomputes p from q, k and lse, as exercise 6.4 does.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("dq", "dk", "dv"),
    tolerance=tolerance,
    watch=Gradients,
)
