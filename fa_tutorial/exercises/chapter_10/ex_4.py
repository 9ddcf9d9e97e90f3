import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_10.jitted_mod import Aux, launched
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import check_begun
from fa_tutorial.matmul import tl, triton
from fa_tutorial.variants.mods import tanh


@triton.jit
def soft_cap(s, b, h, i, j, aux):
    """(the capped score, its derivative by s). c is aux.c."""
    t = tanh(s / aux.c)
    return aux.c * t, 1 - t * t


@triton.jit
def run_both(s_ptr, score_ptr, grad_ptr, count, aux, MOD: tl.constexpr):
    """Store both results of MOD for `count` scores, one tile of 1 × 16."""
    j = tl.arange(0, 16)[None, :]
    s = tl.load(s_ptr + j, mask=j < count, other=0.0)
    score, grad = MOD(s, 0, 0, j * 0, j, aux)
    tl.store(score_ptr + j, score + s * 0, mask=j < count)
    tl.store(grad_ptr + j, grad + s * 0, mask=j < count)


def adapt(mod):
    """The mod as a function of a tensor of scores and the cap."""
    check_begun(mod)

    def on_scores(s, cap):
        s, score, grad = torch.stack([s] * 3).to(hardware.device())
        launched(lambda: run_both[(1,)](s, score, grad, s.numel(), Aux(7, 0, cap), MOD=mod))
        return score, grad

    return on_scores


BOTH = "aux.c * t, 1 - t * t"
MISTAKES = {
    "the two results are exchanged: first the score, then its derivative": (BOTH, "1 - t * t, aux.c * t"),
    "the score isn't multiplied by c again: it must reach ±c": ("return aux.c * t", "return t"),
    "tanh is taken of s: it is taken of s / c": ("tanh(s / aux.c)", "tanh(s)"),
    "the score is cut off at ±c, and the derivative falls from 1 to 0 there: a soft cap bends, c · tanh(s / c)": (
        BOTH, "tl.minimum(tl.maximum(s, -aux.c), aux.c), tl.where(tl.abs(s) < aux.c, 1.0, 0.0)"),
    "the inner derivative is missing: s / c has the derivative 1 / c": ("1 - t * t", "aux.c * (1 - t * t)"),
    "tanh isn't squared: its derivative is 1 − tanh²": ("1 - t * t", "1 - t"),
}  # fmt: skip


def truth(s, cap):
    t = torch.tanh(s.double() / cap)
    return cap * t, 1 - t**2


CAPPED = "the score is a tanh that is nearly s for small s, and never leaves ±c"


def inputs():
    slope = "the derivative is by s: that of tanh is 1 − tanh², of the tanh and not of the score, and the chain rule's c and 1 / c cancel"
    yield case(torch.tensor([0.0, 1.0, 2.0, -4.0]), 2.0, otherwise={"the score": CAPPED, "the derivative": slope})
    formula = "c is aux.c, whatever its value, and the derivative comes from a formula, not from a difference"
    yield case(torch.tensor([0.5, -3.0, 90.0]), 30.0, otherwise=formula)
    yield case(torch.tensor([3000.0, -3000.0]), 2.0, edge="far")


EXERCISE = Exercise(
    task="Write the soft cap as a score mod, with its derivative.",
    conditions={"far": "a score may lie far beyond the cap, on either side: then it is ±c, and the derivative 0"},
    hints=(
        "tanh(x) is nearly x for small x, and never leaves ±1. Which c goes where, so that c · tanh is nearly s, and never leaves ±c?",
        "The score is c · tanh(s / c). Two factors come from the chain rule: c before tanh, 1 / c inside it.",
        "The derivative of tanh is 1 − tanh², and c · (1 / c) is 1: with t = tanh(s / c), return c · t and 1 − t².",
    ),
    solution=soft_cap,
    reasoning="By the chain rule the derivative is c · (1 − tanh²(s / c)) · 1 / c, and the cap cancels. Near 0 it is 1, and for a "
    "score far beyond the cap it is 0, so such a score has no gradient.",
    more="The package's soft_cap and soft_cap_grad are two functions, because a kernel calls the one or the other.",
    inputs=inputs,
    truth=truth,
    rule=f"{CAPPED}; then comes its derivative by s",
    mistakes=MISTAKES,
    parts=("the score", "the derivative"),
    adapt=adapt,
)
