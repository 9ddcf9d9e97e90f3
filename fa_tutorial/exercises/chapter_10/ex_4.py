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
    "value": "that is the capped score, not its derivative",
    "outer_only": "the inner derivative is missing: s / aux[0] has the derivative 1 / aux[0]",
    "inner_only": "the factor aux[0] before tanh is missing: it cancels 1 / aux[0]",
    "no_inside": "tanh is taken of s: it is taken of s / aux[0]",
    "no_square": "tanh isn't squared: its derivative is 1 − tanh²",
    "plus": "1 + tanh² grows: the derivative is 1 − tanh²",
    "sign": "the derivative has the wrong sign: a capped score grows with s",
    "of_value": "the capped score is squared: square tanh alone",
    "ones": "the derivative is 1 everywhere: that holds only near s = 0",
    "tanh": "that is tanh, not its derivative, 1 − tanh²",
}


def twin(s, cap, mistake=None):
    s = s.double()
    t = torch.tanh(s / cap)
    return {
        "value": cap * t,
        "outer_only": cap * (1 - t * t),
        "inner_only": (1 - t * t) / cap,
        "no_inside": 1 - torch.tanh(s) ** 2,
        "no_square": 1 - t,
        "plus": 1 + t * t,
        "sign": t * t - 1,
        "of_value": 1 - (cap * t) ** 2,
        "ones": torch.ones_like(t),
        "tanh": t,
    }.get(mistake, 1 - t * t)


def inputs():
    place = hardware.device()
    yield case(
        torch.tensor([0.0, 1.0, 2.0, -4.0], device=place), 2.0, otherwise="the derivative of c · tanh(s / c) by s is 1 − tanh²(s / c)"
    )
    yield case(torch.tensor([0.5, -3.0, 90.0], device=place), 30.0, otherwise="the cap is aux[0], whatever its value")
    draw = generator()
    yield case((20 * torch.randn(SIZE, generator=draw)).to(place), 10.0, on="random scores", fresh=True)


EXERCISE = Exercise(
    id="10.4",
    task="Write the derivative of the soft cap as a score mod.",
    hints=(
        "The derivative of tanh is 1 − tanh², and two factors come from the chain rule: one before tanh, one inside it.",
        "c · (1 / c) is 1: only 1 − tanh²(s / c) is left.",
    ),
    solution=cap_grad,
    reasoning="By the chain rule the derivative is c · (1 − tanh²(s / c)) · 1 / c. The cap cancels. Near 0 the derivative is 1, and for a score far beyond "
    "the cap it is 0, so such a score has no gradient.",
    more="The package's soft_cap_grad takes the cap as aux.softcap.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    adapt=adapt,
)
