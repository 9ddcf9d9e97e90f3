import random

from fa_tutorial.exercises.harness import Exercise, case


def speed_limits(D, softmax_instructions, all_instructions, peak):
    """(in_series, in_turns, at_once): TFLOP/s at most. peak: TFLOP/s of tensor cores that never wait.

    softmax_instructions, all_instructions: of one score. Both count the exponential.
    """
    products = 2 * 2 * D / 4096  # cycles of an SM for one score
    exponential = 1 / 16
    softmax, every = softmax_instructions / 128, all_instructions / 128
    in_series = peak * products / (products + exponential + every - 1 / 128)
    in_turns = peak * products / (products + max(exponential, softmax))
    at_once = peak * products / max(products, exponential, every)
    return in_series, in_turns, at_once


PARTS = ("in_series", "in_turns", "at_once")
PRODUCTS = "2 * 2 * D / 4096"
SOFTMAX, EVERY = "softmax_instructions / 128", "all_instructions / 128"
IN_SERIES = "(products + exponential + every - 1 / 128)"
IN_TURNS, AT_ONCE = "(products + max(exponential, softmax))", "max(products, exponential, every)"
MISTAKES = {
    "a score has two products, q kᵀ and p v, of 2 D FLOPs each: one is missing": (PRODUCTS, "2 * D / 4096"),
    "at once, the tensor cores wait where something else takes longer: the longest of the three decides": (AT_ONCE, "products"),
    "in turns, the exponential unit works while other instructions issue: the longer of the two joins the products": (
        IN_TURNS, "(products + exponential + softmax - 1 / 128)"),
    "in turns, the instructions are missing, which may take longer than the exponential": (IN_TURNS, "(products + exponential)"),
    "the other instructions are missing in in_series": (IN_SERIES, "(products + exponential)"),
    "in series, the exponential counts twice: it is one of the instructions": (IN_SERIES, "(products + exponential + every)"),
    "the share is upside down: the tensor cores multiply in `products` of all cycles": [
        (f"products / {cycles}", f"{cycles} / products") for cycles in (IN_SERIES, IN_TURNS, AT_ONCE)],
    "these are the shares of the time: multiply each by peak": ("peak * products", "products"),
    "peak is an argument, which the caller chooses: multiply each share of the time by it, not by 100": ("peak * products", "100 * products"),
    "these are a score's cycles: the tensor cores multiply in products / cycles of the time, and peak is their TFLOP/s": ("peak * products / ", ""),
    "the three stand in reverse order: return in_series, in_turns, at_once": (
        "return in_series, in_turns, at_once", "return at_once, in_turns, in_series"),
    "in_series and in_turns are in each other's place: return in_series, in_turns, at_once": (
        "return in_series, in_turns, at_once", "return in_turns, in_series, at_once"),
}  # fmt: skip


def truth(D, softmax_instructions, all_instructions, peak):
    exponentials = 4 * D * 16 / 4096  # as many could be computed while a score's products are
    issued = 4 * D * 128 / 4096
    waiting = max(1 / exponentials, softmax_instructions / issued)
    at_once = max(1, 1 / exponentials, all_instructions / issued)
    return peak / (1 + 1 / exponentials + (all_instructions - 1) / issued), peak / (1 + waiting), peak / at_once


RULES = {
    "in_series": "peak times the products' share of a score's cycles, which are those of its products, exponential and other instructions together",
    "in_turns": "the longer of the exponential's 1/16 of a cycle and the softmax's instructions joins the products' cycles; the other "
    "instructions go on during the products",
    "at_once": "the longest of 4 D / 4096, 1/16 and all_instructions / 128 decides: where it's the first, the tensor cores never wait",
}


def inputs():
    """In each, the instructions besides the softmax's take no longer than the products, as the task says."""
    for args in ((64, 7, 7), (32, 7, 7), (256, 7, 10), (64, 20, 20), (128, 12, 17)):
        yield case(*args, 1000.0, otherwise=RULES)
    for _ in range(10):
        D, softmax = random.randint(1, 256), random.randint(2, 20)
        every = softmax + random.randint(0, D // 8)
        yield case(D, softmax, every, random.uniform(100, 1000), on="random arguments", fresh=True)


EXERCISE = Exercise(
    task="Compute the TFLOP/s that a forward reaches at most, if an SM does all its work in series, its products in turns with the softmax, and "
    "everything at once.",
    hints=(
        "Take one score. How many cycles of an SM do its products take, its exponential, its instructions?",
        "Its two products have 2 D FLOPs each, so they take 4 D / 4096 cycles. The tensor cores multiply in this share of all cycles: which "
        "cycles are these in series, in turns, and at once?",
        "in_series = peak · products / (products + 1 / 16 + (all_instructions − 1) / 128). In turns, products + max(1 / 16, "
        "softmax_instructions / 128) stands for the sum; at once, max(products, 1 / 16, all_instructions / 128).",
    ),
    solution=speed_limits,
    reasoning="The peak is reached where the tensor cores multiply in every cycle. In series, all work adds up, but the exponential is one of "
    "the instructions already. In turns, the longer of exponential and the softmax's instructions joins the products. At once, a score takes as "
    "long as its longest kind of work. So the tensor cores multiply in products / cycles of the time.",
    inputs=inputs,
    truth=truth,
    rule="the tensor cores multiply in 4 D / 4096 of the cycles that a score takes: in series all three kinds of work, in turns the products and "
    "the longer of the other two, at once the longest kind",
    mistakes=MISTAKES,
    parts=PARTS,
)
