import random

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting


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
    "only FLOPs of products go 4096 to a cycle: 16 exponentials and 128 instructions do": [
        ("exponential = 1 / 16", "exponential = 1 / 4096"), (EVERY, "all_instructions / 4096"), (SOFTMAX, "softmax_instructions / 4096"),
        ("every - 1 / 128", "every - 1 / 4096")],
    "at once, the tensor cores wait where something else takes longer: the longest of the three decides": (AT_ONCE, "products"),
    "at once, the exponential unit works while other instructions issue: the longest of the three decides": (
        AT_ONCE, "max(products, exponential + every - 1 / 128)"),
    "at once, an SM issues every instruction, not only those of the softmax": (AT_ONCE, "max(products, exponential, softmax)"),
    "in turns, the exponential unit works while other instructions issue: the longer of the two joins the products": (
        IN_TURNS, "(products + exponential + softmax - 1 / 128)"),
    "in turns, the tensor cores wait for the instructions of the softmax alone: the others go on during the products": (
        IN_TURNS, "(products + max(exponential, every))"),
    "in turns, the instructions outside the softmax go on during the products: they add nothing": (
        IN_TURNS, "(products + max(exponential, softmax) + every - softmax)"),
    "in turns, the instructions are missing, which may take longer than the exponential": (IN_TURNS, "(products + exponential)"),
    "in turns, the exponential is missing, which may take longer than the instructions": (IN_TURNS, "(products + softmax)"),
    "the other instructions are missing in in_series": (IN_SERIES, "(products + exponential)"),
    "in series, nothing overlaps, so every instruction counts, not only those of the softmax": (
        IN_SERIES, "(products + exponential + softmax - 1 / 128)"),
    "in series, the exponential counts twice: it is one of the instructions": (IN_SERIES, "(products + exponential + every)"),
    "`softmax_instructions` and `all_instructions` are in each other's place: in_turns counts those of the softmax, in_series and at_once all": (
        f"softmax, every = {SOFTMAX}, {EVERY}", f"every, softmax = {SOFTMAX}, {EVERY}"),
    "the numbers of instructions are arguments, and not always seven": [(SOFTMAX, "7 / 128"), (EVERY, "7 / 128")],
    "`softmax_instructions` and `all_instructions` are the numbers of a score already: nothing joins them": [
        (SOFTMAX, "(softmax_instructions + 6 + D / 64) / 128"), (EVERY, "(all_instructions + 6 + D / 64) / 128")],
    "one instruction is missing in in_turns and at_once: the exponential is one, too, beside its work in its own unit": [
        (IN_TURNS, "(products + max(exponential, softmax - 1 / 128))"), (AT_ONCE, "max(products, exponential, every - 1 / 128)")],
    "these are shares of the peak: multiply by it": [
        (f"{name} = peak *", f"{name} =") for name in PARTS],
    "the share is upside down: the tensor cores multiply in `products` of all cycles": [
        (f"products / {cycles}", f"{cycles} / products") for cycles in (IN_SERIES, IN_TURNS, AT_ONCE)],
    "the order is in_series, in_turns, at_once": ("return in_series, in_turns, at_once", "return at_once, in_turns, in_series"),
    "in_series and in_turns are in each other's place: return in_series, in_turns, at_once": (
        "return in_series, in_turns, at_once", "return in_turns, in_series, at_once"),
}  # fmt: skip


def truth(D, softmax_instructions, all_instructions, peak):
    exponentials = 4 * D * 16 / 4096  # as many could be computed while a score's products are
    issued = 4 * D * 128 / 4096
    waiting = max(1 / exponentials, softmax_instructions / issued)
    at_once = max(1, 1 / exponentials, all_instructions / issued)
    return peak / (1 + 1 / exponentials + (all_instructions - 1) / issued), peak / (1 + waiting), peak / at_once


@adapting
def adapt(answer, *args):
    """What it returns; Wrong where a right limit was rounded."""
    found = answer(*args)
    if isinstance(found, tuple | list):
        for name, limit, right in zip(PARTS, found, truth(*args), strict=False):
            rounded = isinstance(limit, int | float) and 1e-4 < abs(limit - right) < 1
            if rounded and limit in {round(right, digits) for digits in range(3)} | {int(right)}:
                raise Wrong(f"{name} is right, but rounded: return it as it is")
    return found


def inputs():
    """In each, the instructions besides the softmax's take no longer than the products, as the task says."""

    def limits(D, softmax, every, at_once, in_turns):
        cycles = f"{4 * D / 4096:.4f} + {1 / 16:.4f} + {(every - 1) / 128:.4f}"
        in_series = f"the cycles of products, exponential and the {every - 1} other instructions add up: a score takes {cycles}"
        told = {"in_series": in_series, "in_turns": in_turns, "at_once": at_once}
        return case(D, softmax, every, 1000.0, otherwise=told)

    exponential = "the exponential's 1/16 of a cycle is longer than the softmax's 7 instructions, 7/128, and joins the products' "
    yield limits(64, 7, 7, "256 FLOPs and one exponential take 1/16 of a cycle each, seven instructions 7/128, all at once: the tensor cores "
                 "never wait, and at_once is the peak that was passed", f"{exponential}1/16")  # fmt: skip
    yield limits(
        32,
        7,
        7,
        "128 FLOPs take 1/32 of a cycle, and the exponential 1/16: the tensor cores wait for half of the time",
        f"{exponential}1/32",
    )
    yield limits(256, 7, 10, "the products take longest, so the tensor cores never wait", f"{exponential}1/4; the other 3 "
                 "go on during the products")  # fmt: skip
    yield limits(64, 20, 20, "20 instructions take 20/128 of a cycle, more than the products' 1/16: the tensor cores wait",
                 "20 instructions take 20/128 of a cycle, more than the exponential's 1/16, and join the products")  # fmt: skip
    yield limits(128, 12, 17, "17 instructions take 17/128 of a cycle, more than the products' 1/8: the tensor cores wait",
                 "of 17 instructions the softmax's 12 take 12/128 of a cycle, more than the exponential's 1/16, and join the products; the "
                 "other 5 go on during the products")  # fmt: skip
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
    adapt=lambda answer: adapt(answer) if hasattr(answer, "__code__") else answer,
)
