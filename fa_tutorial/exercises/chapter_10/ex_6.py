import math

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_10.jitted_mod import Aux, launched
from fa_tutorial.exercises.chapter_10.masks import THIRD, is_seen, mod_and_words
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import check_begun
from fa_tutorial.matmul import tl, triton
from fa_tutorial.variants.mods import tanh


@triton.jit
def score_gradients(s, dp, lse, delta, b, h, i, j, aux, MASK_MOD: tl.constexpr,
                    SCORE_MOD: tl.constexpr, SCORE_GRAD: tl.constexpr):  # fmt: skip
    """(p, ds) of a tile of scaled scores s; ds is the gradient of s."""
    p = tl.exp(SCORE_MOD(s, b, h, i, j, aux) - lse)
    p = tl.where(MASK_MOD(b, h, i, j, aux), p, 0.0)
    ds = p * (dp - delta) * SCORE_GRAD(s, b, h, i, j, aux)
    return p, ds


@triton.jit
def capped(s, b, h, i, j, aux):
    """A soft cap at aux.c, a square, whose derivative has no bound, and a penalty for distance, of each batch entry's and head's own, which
    grows with s."""
    return aux.c * tanh(s / aux.c) + 0.01 * s * s + (0.125 + 0.01 * s) * (1 + b + 2 * h) * (j - i)


@triton.jit
def capped_grad(s, b, h, i, j, aux):
    t = tanh(s / aux.c)
    return 1 - t * t + 0.02 * s + 0.01 * (1 + b + 2 * h) * (j - i)


@triton.jit
def run_step(s_ptr, dp_ptr, lse_ptr, delta_ptr, p_ptr, ds_ptr, S_q, S_k, aux, STEP: tl.constexpr, MASK_MOD: tl.constexpr,
             SCORE_MOD: tl.constexpr, SCORE_GRAD: tl.constexpr, TURNED: tl.constexpr):  # fmt: skip
    """Store p and ds by STEP, (S_q, S_k) float32, of batch entry 1 and head 2, from a tile, [16, 16], or (TURNED) from its transpose."""
    i, j = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    if TURNED:
        i, j = tl.arange(0, 16)[None, :], tl.arange(0, 16)[:, None]
    at, inside = i * S_k + j, (i < S_q) & (j < S_k)
    s, dp = tl.load(s_ptr + at, mask=inside, other=0.0), tl.load(dp_ptr + at, mask=inside, other=0.0)
    lse, delta = tl.load(lse_ptr + i, mask=i < S_q, other=0.0), tl.load(delta_ptr + i, mask=i < S_q, other=0.0)
    p, ds = STEP(s, dp, lse, delta, 1, 2, i, j, aux, MASK_MOD, SCORE_MOD, SCORE_GRAD)
    tl.store(p_ptr + at, p, mask=inside)
    tl.store(ds_ptr + at, ds, mask=inside)


def adapt(step):
    """The step as a function of tensors: of s and dp (S_q, S_k), lse and delta (S_q,), the window's left, the cap and TURNED."""
    check_begun(step)

    def on_tiles(s, dp, lse, delta, left, cap, turned):
        (S_q, S_k), p, ds = s.shape, torch.empty_like(s), torch.empty_like(s)
        tensors = [x.to(hardware.device()) for x in (s, dp, lse, delta, p, ds)]
        mods = {"STEP": step, "MASK_MOD": mod_and_words(left)[0], "SCORE_MOD": capped, "SCORE_GRAD": capped_grad}
        launched(lambda: run_step[(1,)](*tensors, S_q, S_k, Aux(left, S_k - S_q, cap), **mods, TURNED=turned))
        return tensors[4:]

    return on_tiles


MOD, GRAD, MASK = "SCORE_MOD(s, b, h, i, j, aux)", "SCORE_GRAD(s, b, h, i, j, aux)", "tl.where(MASK_MOD(b, h, i, j, aux), p, 0.0)"
MISTAKES = {
    "hidden pairs have a p: ask MASK_MOD, and put 0 there": (f"    p = {MASK}\n", ""),
    "ds isn't 0 where a pair is hidden: put 0 in p before ds is made of it": [
        (f"    p = {MASK}\n", ""), ("    return p, ds", f"    return {MASK}, ds")],
    "p is made from the plain score: the forward's softmax was of SCORE_MOD's": (MOD, "s"),
    "the derivative is missing: by the chain rule ds is SCORE_GRAD times the gradient of the modified score": (f" * {GRAD}", ""),
    "the derivative is taken at the modified score: SCORE_GRAD wants s": (GRAD, GRAD.replace("(s", f"({MOD}")),
    "delta is missing: the gradient of the modified score is p (dp − delta)": ("(dp - delta)", "dp"),
    "SCORE_GRAD multiplies dp alone: it is a factor of all of p (dp − delta)": (f"(dp - delta) * {GRAD}", f"({GRAD} * dp - delta)"),
    "p and ds are exchanged: return p first": ("return p, ds", "return ds, p"),
}  # fmt: skip


def modified(s, cap, left):
    b, h, i, j = torch.meshgrid(*map(torch.arange, s.shape), indexing="ij")
    penalty = (0.125 + 0.01 * s) * (1 + b + 2 * h) * (j - i)
    return (cap * torch.tanh(s / cap) + 0.01 * s**2 + penalty).masked_fill(~is_seen(*s.shape, left), -math.inf)


def derivative(s, cap):
    b, h, i, j = torch.meshgrid(*map(torch.arange, s.shape), indexing="ij")
    return 1 - torch.tanh(s / cap) ** 2 + 0.02 * s + 0.01 * (1 + b + 2 * h) * (j - i)


def truth(s, dp, lse, delta, left, cap, turned):
    s, dp, delta = s.double(), dp.double(), delta.double()
    each = s.expand(2, 3, *s.shape)
    p = torch.softmax(modified(each, cap, left)[1, 2], dim=-1).nan_to_num()
    return p, p * (dp - delta[:, None]) * derivative(each, cap)[1, 2]


def inputs():
    def rows(S_q, S_k, left, otherwise="", *, cap=2.0, turned=False, size=2.0, **options):
        draw = torch.Generator().manual_seed(S_q)
        s, dp = size * torch.randn(S_q, S_k, generator=draw), torch.randn(S_q, S_k, generator=draw)
        lse = modified(s.expand(2, 3, S_q, S_k), cap, left)[1, 2].logsumexp(dim=-1)
        on = f"S_q = {S_q}, S_k = {S_k}, {mod_and_words(left)[1]}, soft cap {cap} + 0.01 s² + a penalty{', the tile transposed' * turned}"
        return case(s, dp, lse, torch.randn(S_q, generator=draw), left, cap, turned, on=on, otherwise=otherwise, **options)

    yield rows(1, 3, 2)
    after = (
        "a hidden pair has p = 0, for dv too, and ds = 0: put 0 in p after exp, and leave s as it is, because a mod may be undefined at −∞"
    )
    yield rows(2, 2, 1, after)
    yield rows(6, 6, 2, "p is of the modified score, and the derivative of s", size=20.0)
    yield rows(5, 8, 3, "the mask and score mods get b, h, i, j and aux as they are, whichever way the tile lies", turned=True)
    yield rows(3, 9, THIRD, "MASK_MOD gets the numbers of batch entry, head, query and key, and aux")
    yield rows(1, 4, 3, cap=200.0, size=200.0, edge="large")
    yield rows(5, 3, 1, edge="blind")


EXERCISE = Exercise(
    task="Write the backward's step with a mask mod and a score mod: p, and the gradient of the scaled score.",
    conditions={
        "large": "a score may be large, and the cap too: exp(SCORE_MOD(s) − lse) is computed in one step, so nothing overflows",
        "blind": "a row that sees no key has lse = −inf, and exp gives inf or NaN: choose 0 with tl.where, after exp",
    },
    hints=(
        "p is the forward's: the softmax of the modified scores, over the pairs that are seen. lse is that of the modified scores too.",
        "Chapter 7 masks p, not s, by tl.where: where a row sees nothing, lse is −inf and exp(s − lse) is inf.",
        "p (dp − delta) is the gradient of the modified score. By the chain rule that of s is this times SCORE_GRAD(s, …).",
    ),
    solution=score_gradients,
    reasoning="The backward of softmax doesn't ask where its scores came from, so p (dp − delta) is the gradient of the modified score. One "
    "more factor of the chain rule leads to the score itself, and a hidden pair has p = 0, so its ds is 0.",
    more="The package's score_gradient is this step in base 2, with dropout.",
    inputs=inputs,
    truth=truth,
    rule="p is exp(SCORE_MOD(s, b, h, i, j, aux) − lse), and 0, after exp, where MASK_MOD(b, h, i, j, aux) is False; ds is all of p (dp − delta), "
    "times SCORE_GRAD(s, b, h, i, j, aux), with s as it came in",
    mistakes=MISTAKES,
    parts=("p", "ds"),
    adapt=adapt,
)
