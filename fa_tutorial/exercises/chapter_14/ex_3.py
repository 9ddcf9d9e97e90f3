"""Exercise 14.3, worst_error."""

import random

from fa_tutorial.exercises.harness import Exercise, case


def worst_error(x, largest):
    """The largest relative error that e4m3 can make of x. Both above 0.

    largest: the largest number in x's block.
    """
    scaled = x * 448 / largest
    return max(2.0**-4, min(2.0**-10 / scaled, 1.0))


MISTAKES = {
    "x itself isn't rounded, but x / scale, and the scale is largest / 448": ("x * 448 / largest", "x"),
    "the scale is largest / 448: 448 is missing": ("x * 448 / largest", "x / largest"),
    "the scale makes 448 of the largest number, not 256": ("x * 448 / largest", "x * 256 / largest"),
    "a number becomes 0 below half of the smallest one, 2⁻¹⁰, not below 2⁻⁹": ("min(2.0**-10 / scaled, 1.0)", "(1.0 if scaled < 2.0**-9 else 2.0**-10 / scaled)"),
    "the block is scaled the wrong way: its largest number becomes 448": ("x * 448 / largest", "x * largest / 448"),
    "a number is off by half a step at most: 2⁻⁴ of itself, not 2⁻³": ("2.0**-4", "2.0**-3"),
    "below 2⁻⁶ a number is off by half of 2⁻⁹ at most": ("2.0**-10", "2.0**-9"),
    "a number that becomes 0 has lost all of itself, and no more: that is an error of 1": ("min(2.0**-10 / scaled, 1.0)", "2.0**-10 / scaled"),
    "large numbers are rounded too, by 2⁻⁴ of themselves at most": ("max(2.0**-4, min(2.0**-10 / scaled, 1.0))", "min(2.0**-10 / scaled, 1.0)"),
    "you leave out what happens below 2⁻⁶, where the steps no longer shrink": ("max(2.0**-4, min(2.0**-10 / scaled, 1.0))", "2.0**-4"),
    "the larger of the two errors is the bound": ("max(2.0**-4,", "min(2.0**-4,"),
}  # fmt: skip


def truth(x, largest):
    y = 448 * x / largest
    return 1 / 16 if y >= 1 / 64 else min(1 / 1024 / y, 1.0)


def inputs():
    octave = "from 2⁻⁶ on, a number from 2^e to 2^(e + 1) is off by half a step, 2^(e − 4), at most"
    yield case(1.0, 1.0, otherwise=octave)
    yield case(2.0**-8, 2.0**-4, otherwise=f"x becomes 28: {octave}")
    yield case(1.0, 1000.0, otherwise=f"x becomes 0.448: {octave}")
    yield case(1.0, 57_344.0, otherwise="x becomes 2⁻⁷, where the step is still 2⁻⁹: it is off by at most 2⁻¹⁰")
    yield case(1.0, 114_688.0, otherwise="x becomes 2⁻⁸: it is off by at most 2⁻¹⁰, a quarter of it")
    yield case(1.0, 300_000.0, otherwise="x becomes 0.0015, between 2⁻¹⁰ and 2⁻⁹: it is rounded to 2⁻⁹, not to 0")
    yield case(1.0, 600_000.0, otherwise="x becomes 0.00075, below 2⁻¹⁰: it is rounded to 0")
    yield case(1.0, 10_000_000.0, otherwise="x becomes 0: all of it is lost")
    yield case(3.0, 172_032.0, otherwise="only x / largest counts")
    for _ in range(20):
        x, factor = 10 ** random.uniform(-3, 3), 2 ** random.uniform(0, 22)
        yield case(x, x * factor, on="a random case", fresh=True)


EXERCISE = Exercise(
    id="14.3",
    task="Say how large the relative error of a number can be, when its block also holds a much larger one.",
    hints=(
        "What does the scale make of x? From 2⁻⁶ on, the step grows with the number. And below?",
        "x becomes y = 448 · x / largest. It's off by half a step at most: y / 16 at worst from 2⁻⁶ on, 2⁻¹⁰ below, and never by more than y.",
    ),
    solution=worst_error,
    reasoning="A floating-point number carries its own step, so the scale doesn't matter until the exponent ends. That takes an outlier 448 · 64 = 28,672 "
    "times as large.",
    inputs=inputs,
    truth=truth,
    rule="half a step, over the number: 2⁻⁴ at most where the scaled number is at least 2⁻⁶, and 2⁻¹⁰ / number below, at most 1",
    mistakes=MISTAKES,
)
