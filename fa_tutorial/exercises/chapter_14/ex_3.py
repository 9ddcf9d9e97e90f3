import math
import random

from fa_tutorial.exercises.harness import Exercise, case


def worst_error(x, largest):
    """Half a step of e4m3 at y, as a share of y. x and largest are above 0.

    largest: the largest number in x's block.
    """
    y = x * 448 / largest
    step = 2.0 ** (max(math.floor(math.log2(y)), -6) - 3)
    return min(step / 2 / y, 1.0)


SCALED, SHARE = "x * 448 / largest", "min(step / 2 / y, 1.0)"
MISTAKES = {
    "x itself isn't rounded, but x / scale, and the scale is largest / 448": (SCALED, "x"),
    "the scale is largest / 448: 448 is missing": (SCALED, "x / largest"),
    "that is half a step of the scaled x, over the unscaled x: both must be in the same unit": ("step / 2 / y", "step / 2 / x"),
    "that is half a step itself: which share of the scaled x is it?": ("step / 2 / y", "step / 2"),
    "that is what the scaled x happens to be off by: at worst it's half a step": (SHARE, "abs(round(y / step) * step - y) / y"),
    "a number that becomes 0 has lost all of itself, and no more: that is an error of 1": (SHARE, "step / 2 / y"),
}


def truth(x, largest):
    y = 448 * x / largest
    e = max(math.frexp(y)[1] - 1, -6)
    return min(2.0 ** (e - 4) / y, 1.0)


def inputs():
    for x, largest, rule in (
        (1.0, 448.0, "y is 1, where the step is 1/8: half a step is 1/16 of y"),
        (1.75, 448.0, "y is 1.75, where the step is 1/8: half a step is 1/28 of y"),
        (1.0, 1.0, "y is 448, where the step is 32"),
        (1.0, 114_688.0, "y is 2⁻⁸, where the step is still 2⁻⁹: it is off by at most 2⁻¹⁰, a quarter of it"),
        (1.0, 300_000.0, "y is 0.0015, between 2⁻¹⁰ and 2⁻⁹: it is rounded to 2⁻⁹, not to 0"),
        (1.0, 600_000.0, "y is 0.00075, below 2⁻¹⁰: it is rounded to 0"),
        (3.0, 172_032.0, "only x / largest counts"),
    ):
        yield case(x, largest, otherwise=rule)
    for _ in range(20):
        x = 10 ** random.uniform(-3, 3)
        yield case(x, x * 2 ** random.uniform(0, 22), on="a random case", fresh=True)


EXERCISE = Exercise(
    task="Say which share of itself half a step is, for a number whose block also holds a much larger one.",
    hints=(
        "What does the scale make of x? Which step has e4m3 there?",
        "x becomes y = 448 · x / largest. Its step is (14.1), with e at least −6. Half of that over y is the share, and it is never more than 1.",
    ),
    solution=worst_error,
    reasoning="A floating-point number carries its own step, so the scale doesn't matter until the exponent ends. That takes an outlier 448 · 64 = 28,672 "
    "times as large.",
    inputs=inputs,
    truth=truth,
    rule="y is 448 · x / largest; the result is half of y's step (14.1) over y, at most 1",
    mistakes=MISTAKES,
)
