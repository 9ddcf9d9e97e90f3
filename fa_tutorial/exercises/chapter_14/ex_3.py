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
    "x and largest are exchanged: the scale makes 448 of the largest number, so y = 448 · x / largest": (SCALED, "largest * 448 / x"),
    "the block is scaled the wrong way: its largest number becomes 448": (SCALED, "x * largest / 448"),
    "that is half a step of the scaled x, over the unscaled x: both must be in the same unit": ("step / 2 / y", "step / 2 / x"),
    "that is half a step itself: which share of the scaled x is it?": ("step / 2 / y", "step / 2"),
    "that is what the scaled x happens to be off by: at worst it's half a step": (SHARE, "abs(round(y / step) * step - y) / y"),
    "1/16 is the worst between two powers of two: this y may lie anywhere between them": (SHARE, "1 / 16 if y >= 2**-6 else min(step / 2 / y, 1.0)"),
    "a number that becomes 0 has lost all of itself, and no more: that is an error of 1": (SHARE, "step / 2 / y"),
}  # fmt: skip


def truth(x, largest):
    y = 448 * x / largest
    e = max(math.frexp(y)[1] - 1, -6)
    return min(2.0 ** (e - 4) / y, 1.0)


def inputs():
    yield case(1.0, 448.0, otherwise="y is 1, where the step is 1/8: half a step is 1/16 of y")
    yield case(1.75, 448.0, otherwise="y is 1.75, where the step is 1/8: half a step is 1/28 of y")
    yield case(1.0, 1.0, otherwise="y is 448, where the step is 32")
    yield case(1.0, 1000.0, otherwise="y is 0.448, between 1/4 and 1/2, where the step is 1/32")
    yield case(1.0, 57_344.0, otherwise="y is 2⁻⁷, where the step is still 2⁻⁹: it is off by at most 2⁻¹⁰")
    yield case(1.0, 114_688.0, otherwise="y is 2⁻⁸: it is off by at most 2⁻¹⁰, a quarter of it")
    yield case(1.0, 300_000.0, otherwise="y is 0.0015, between 2⁻¹⁰ and 2⁻⁹: it is rounded to 2⁻⁹, not to 0")
    yield case(1.0, 600_000.0, otherwise="y is 0.00075, below 2⁻¹⁰: it is rounded to 0")
    yield case(1.0, 10_000_000.0, otherwise="y becomes 0: all of it is lost")
    yield case(3.0, 172_032.0, otherwise="only x / largest counts")
    drawn = random.Random(14)
    for number in range(30):  # the first with numbers that can be shown
        draw, fresh = (drawn, False) if number < 15 else (random, True)
        x, factor = round(10 ** draw.uniform(-3, 3), 4), 2 ** draw.uniform(0, 22)
        yield case(x, x * factor, on="a random case" if fresh else "", fresh=fresh)


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
