import random

from fa_tutorial.exercises.harness import Exercise, case


def sm_cycles(heads, S, D, sms):
    """(in_series, at_once): cycles that each SM needs at least for its products and exponentials.

    heads: with S queries, S keys and head dimension D each. sms: how many SMs share the work equally.
    """
    scores = heads * S * S / sms  # of one SM
    products = scores * 4 * D / 4096  # 2·D FLOPs of q kᵀ and 2·D of p v
    exponentials = scores / 16
    return products + exponentials, max(products, exponentials)


PRODUCTS, AT_ONCE = "scores * 4 * D / 4096", "max(products, exponentials)"
MISTAKES = {
    "the two are exchanged: return in_series first, then at_once": (f"return products + exponentials, {AT_ONCE}", f"return {AT_ONCE}, products + exponentials"),
    "at_once is the shorter of the two times, but the SM is done when the slower unit is": (AT_ONCE, "min(products, exponentials)"),
    "at_once is the time of the products, but the exponentials may take longer": (AT_ONCE, "products"),
    "half of the FLOPs are missing: a score takes part in two products, with D multiply-adds of 2 FLOPs in each": (
        PRODUCTS, "scores * 2 * D / 4096"),
    "D is missing in the products: a score takes D multiply-adds in q kᵀ, and D more in p v": (PRODUCTS, "scores * 4 / 4096"),
    "you count D exponentials for each score: it needs one, whatever D is": ("scores / 16", "scores * D / 16"),
    "the SMs are missing: they share the heads' work, and asked is what one of them needs": (" / sms", ""),
}  # fmt: skip


def truth(heads, S, D, sms):
    pairs = heads * S**2
    cycles = 2 * pairs * (D + D) / (4096 * sms), pairs / (16 * sms)
    return sum(cycles), cycles[0] if cycles[0] > cycles[1] else cycles[1]


def inputs():
    yield case(1, 64, 128, 1, otherwise="4,096 scores with D = 128: 512 cycles of products and 256 of exponentials")
    yield case(1, 64, 32, 1, otherwise="4,096 scores with D = 32: 128 cycles of products and 256 of exponentials")
    yield case(6, 64, 256, 2, otherwise="each of 2 SMs has 3 heads of 4,096 scores: 3,072 cycles of products and 768 of exponentials")
    equal = "SMs share the scores equally and nothing is rounded: 36 scores on 5 SMs are 7.2 each, 0.9 cycles of products and 0.45 of exponentials"
    yield case(1, 6, 128, 5, otherwise=equal)
    for _ in range(40):
        yield case(*(random.randint(1, high) for high in (64, 8192, 256, 200)), on="random sizes", fresh=True)


EXERCISE = Exercise(
    task="Count the cycles that an SM needs at least for products and exponentials, one after the other and both at once.",
    hints=(
        "How many scores does one SM make? What does each of them cost the tensor cores, and what does it cost the other unit?",
        "A score takes 4·D FLOPs, so 4·D / 4,096 cycles of the tensor cores, and 1 / 16 of a cycle for its exponential. Which of sum and "
        "maximum tells how long two units take that wait for each other? And two that never wait?",
    ),
    solution=sm_cycles,
    reasoning="Units that wait for each other take the sum of their times. Units that never wait take the longer of the two, as a perfect "
    "kernel takes the longer of its FLOPs and its bytes. Every other kernel lies between.",
    inputs=inputs,
    truth=truth,
    rule="a score takes 4·D FLOPs, at 4,096 a cycle, and one exponential, at 16 a cycle; each SM makes heads · S · S / sms of the scores; "
    "units that wait take the sum of both times, units that don't the longer one",
    mistakes=MISTAKES,
    parts=("in_series", "at_once"),
)
