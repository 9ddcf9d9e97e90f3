"""Exercise 5.9, speed_limits."""

import random

from fa_tutorial.exercises.harness import Exercise, case


def speed_limits(D, others, peak):
    """(at_once, in_series): TFLOP/s at most. peak: TFLOP/s of tensor cores that never wait.

    others: the other operations that a score takes.
    """
    products = 2 * 2 * D / 4096  # cycles of an SM for one score
    exponential = 1 / 16
    rest = others / 128
    at_once = peak * products / max(products, exponential, rest)
    in_series = peak * products / (products + exponential + rest)
    return at_once, in_series


PRODUCTS, LONGEST, SUM = "2 * 2 * D / 4096", "max(products, exponential, rest)", "(products + exponential + rest)"
MISTAKES = {
    "a score has two products, q kᵀ and p v, of 2 D FLOPs each: one is missing": (PRODUCTS, "2 * D / 4096"),
    "a score's two products have 2 D FLOPs each, 4 D in all, and here they have 8 D": (PRODUCTS, "2 * 4 * D / 4096"),
    "only FLOPs of products go 4096 to a cycle: 16 exponentials and 128 other operations do": [
        ("exponential = 1 / 16", "exponential = 1 / 4096"), ("others / 128", "others / 4096")],
    "at once, the tensor cores wait where something else takes longer: the longest of the three decides": (LONGEST, "products"),
    "at once, exponentials and the others overlap too: the longest of the three decides": (LONGEST, "max(products, exponential + rest)"),
    "the other operations are missing in in_series": (SUM, "(products + exponential)"),
    "a score takes `others` other operations, not always five": ("others / 128", "5 / 128"),
    "a score takes `others` other operations, not one": ("others / 128", "1 / 128"),
    "at_once and in_series are exchanged": ("return at_once, in_series", "return in_series, at_once"),
    "these are shares of the peak: multiply by it": [("at_once = peak *", "at_once ="), ("in_series = peak *", "in_series =")],
    "the share is upside down: the tensor cores multiply in `products` of all cycles": [
        (f"products / {LONGEST}", f"{LONGEST} / products"), (f"products / {SUM}", f"{SUM} / products")],
}  # fmt: skip


def truth(D, others, peak):
    exponentials = 4 * D * 16 / 4096  # as many could be computed while a score's products are
    rest = 4 * D * 128 / 4096
    return peak * min(1, exponentials, rest / others), peak / (1 + 1 / exponentials + others / rest)


def inputs():
    def limits(D, at_once, others=5):
        cycles = f"{4 * D / 4096:.4f} + {1 / 16:.4f} + {others / 128:.4f}"
        in_series = f"the cycles of products, exponential and {others} others add up: a score takes {cycles}"
        return case(D, others, 1000.0, otherwise={"at_once": at_once, "in_series": in_series})

    yield limits(64, "256 FLOPs and one exponential take 1/16 of a cycle each, five others 5/128, all at once: the tensor cores never wait, and "
                     "at_once is the peak that was passed")  # fmt: skip
    yield limits(32, "128 FLOPs take 1/32 of a cycle, and the exponential 1/16: the tensor cores wait for half of the time")
    yield limits(256, "the products take longest, so the tensor cores never wait")
    yield limits(64, "20 others take 20/128 of a cycle, more than the products' 1/16: the tensor cores wait", others=20)
    for _ in range(10):
        yield case(random.randint(1, 256), random.randint(1, 20), random.uniform(100, 1000), on="a random D, others and peak", fresh=True)


EXERCISE = Exercise(
    task="Compute the TFLOP/s that a forward reaches at most, if an SM does its three kinds of work at once, and one after the other.",
    hints=(
        "Take one score. How many cycles of an SM do its products take, its exponential, its other operations?",
        "Its two products have 2 D FLOPs each, so they take 4 D / 4096 cycles. The tensor cores multiply in this share of all cycles: which "
        "cycles are these at once, and which in series?",
        "at_once = peak · products / max(products, 1 / 16, others / 128). In series, the sum stands for the maximum.",
    ),
    solution=speed_limits,
    reasoning="The peak is reached where the tensor cores multiply in every cycle. At once, a score takes as long as its longest kind of "
    "work; in series, as long as all three. So the tensor cores multiply in products / longest, or products / sum, of all cycles.",
    inputs=inputs,
    truth=truth,
    rule="the tensor cores multiply in 4 D / 4096 of the cycles that a score takes: at once its longest kind of work, in series all three",
    mistakes=MISTAKES,
    parts=("at_once", "in_series"),
)
