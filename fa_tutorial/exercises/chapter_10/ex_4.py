"""Exercise 10.4, cap_grad."""

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_10.jitted_mod import launched, ready
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.variants.mods import tanh

triton = hardware.require_triton("Exercise 10.4")
import triton.language as tl  # noqa: E402


@triton.jit
def cap_grad(s, b, h, i, j, aux):
    """The derivative by s of aux[0] · tanh(s / aux[0])."""
    t = tanh(s / aux[0])
    return 1 - t * t


SIZE = 16


@triton.jit
def run_grad(s_ptr, out_ptr, count, aux, MOD: tl.constexpr, SIZE: tl.constexpr):
    """Store MOD of `count` scores, one tile of 1 × SIZE."""
    j = tl.arange(0, SIZE)[None, :]
    i = j * 0
    s = tl.load(s_ptr + j, mask=j < count, other=0.0)
    tl.store(out_ptr + j, MOD(s, 0, 0, i, j, aux) + s * 0, mask=j < count)


def adapt(mod):
    """The mod as a function of a tensor of scores and the cap."""
    ready(mod, 6)

    def on_scores(s, cap):
        out = torch.empty_like(s)
        launched(lambda: run_grad[(1,)](s, out, s.numel(), (cap,), MOD=mod, SIZE=SIZE))
        return out

    return on_scores


MISTAKES = {
    "that is the capped score, not its derivative": ("1 - t * t", "aux[0] * t"),
    "the inner derivative is missing: s / aux[0] has the derivative 1 / aux[0]": ("1 - t * t", "aux[0] * (1 - t * t)"),
    "the factor aux[0] before tanh is missing: it cancels 1 / aux[0]": ("1 - t * t", "(1 - t * t) / aux[0]"),
    "tanh is taken of s: it is taken of s / aux[0]": ("tanh(s / aux[0])", "tanh(s)"),
    "tanh isn't squared: its derivative is 1 − tanh²": ("1 - t * t", "1 - t"),
    "1 + tanh² grows: the derivative is 1 − tanh²": ("1 - t * t", "1 + t * t"),
    "the derivative has the wrong sign: a capped score grows with s": ("1 - t * t", "t * t - 1"),
    "the capped score is squared: square tanh alone": ("t * t", "aux[0] * t * aux[0] * t"),
    "the derivative is 1 everywhere: that holds only near s = 0": ("1 - t * t", "1.0"),
    "that is tanh, not its derivative, 1 − tanh²": ("1 - t * t", "t"),
}
CONDITIONS = {"far": "a score may lie far beyond the cap, on either side: the derivative is 0 there, so no exponential may overflow"}


def truth(s, cap):
    return 1 - torch.tanh(s.double() / cap) ** 2


def inputs():
    place = hardware.device()
    yield case(torch.tensor([0.0, 1.0, 2.0, -4.0], device=place), 2.0)
    yield case(torch.tensor([0.5, -3.0, 90.0], device=place), 30.0, otherwise="the cap is aux[0], whatever its value")
    yield case(torch.tensor([3000.0, -3000.0], device=place), 2.0, edge="far")
    draw = generator()
    yield case((20 * torch.randn(SIZE, generator=draw)).to(place), 10.0, on="random scores", fresh=True)


EXERCISE = Exercise(
    id="10.4",
    task="Write the derivative of the soft cap as a score mod.",
    conditions=CONDITIONS,
    hints=(
        "The derivative of tanh is 1 − tanh², and two factors come from the chain rule: one before tanh, one inside it.",
        "c · (1 / c) is 1: only 1 − tanh²(s / c) is left.",
    ),
    solution=cap_grad,
    reasoning="By the chain rule the derivative is c · (1 − tanh²(s / c)) · 1 / c. The cap cancels. Near 0 the derivative is 1, and for a "
    "score far beyond the cap it is 0, so such a score has no gradient.",
    more="The package's soft_cap_grad takes the cap as aux.softcap.",
    inputs=inputs,
    truth=truth,
    rule="the derivative of c · tanh(s / c) by s is 1 − tanh²(s / c)",
    mistakes=MISTAKES,
    adapt=adapt,
)
