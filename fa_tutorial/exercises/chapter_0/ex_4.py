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


SCORES, PRODUCTS, EXPONENTIALS = "heads * S * S / sms", "scores * 4 * D / 4096", "scores / 16"
IN_SERIES, AT_ONCE = "products + exponentials,", "max(products, exponentials)"
MISTAKES = {
    "in_series and at_once are swapped: return (in_series, at_once)": (f"{IN_SERIES} {AT_ONCE}", f"{AT_ONCE}, products + exponentials"),
    "at_once is the shorter of the two times, but the SM is done when the slower unit is": (AT_ONCE, "min(products, exponentials)"),
    "at_once is half of in_series, as if the units shared their work: each does its own, and the slower one decides": (
        AT_ONCE, "(products + exponentials) / 2"),
    "at_once is the time of the products, but the exponentials may take longer": (AT_ONCE, "products"),
    "at_once is the time of the exponentials, but the products may take longer": (AT_ONCE, "exponentials"),
    "half of the FLOPs are missing: a score takes part in two products, with D multiply-adds of 2 FLOPs in each": [
        (PRODUCTS, "scores * 2 * D / 4096")],
    "a multiply-add is 2 FLOPs, and a score takes D of them in each of two products": (PRODUCTS, "scores * D / 4096"),
    "D is missing in the products: a score takes D multiply-adds in q kᵀ, and D more in p v": (PRODUCTS, "scores * 4 / 4096"),
    "you count D exponentials for each score: it needs one, whatever D is": (EXPONENTIALS, "scores * D / 16"),
    "you count one exponential for each query: each score needs one, and there are S · S in a head": (
        EXPONENTIALS, "heads * S / sms / 16"),
    "the SMs are missing: they share the heads' work, and asked is what one of them needs": (SCORES, "heads * S * S"),
    "the heads are missing: each has S · S scores of its own": (SCORES, "S * S / sms"),
    "you exchange the two rates: the tensor cores do 4,096 FLOPs a cycle, the other unit 16 exponentials": [
        (PRODUCTS, "scores * 4 * D / 16"), (EXPONENTIALS, "scores / 4096")],
}  # fmt: skip


def truth(heads, S, D, sms):
    pairs = heads * S**2
    cycles = 2 * pairs * (D + D) / (4096 * sms), pairs / (16 * sms)
    return sum(cycles), cycles[0] if cycles[0] > cycles[1] else cycles[1]


def inputs():
    yield case(1, 64, 128, 1, otherwise="4,096 scores with D = 128: 512 cycles of products and 256 of exponentials")
    yield case(1, 64, 32, 1, otherwise="4,096 scores with D = 32: 128 cycles of products and 256 of exponentials")
    yield case(6, 64, 256, 2, otherwise="each of 2 SMs has 3 heads of 4,096 scores: 3,072 cycles of products and 768 of exponentials")
    equal = "SMs share the scores equally and nothing is rounded: 36 scores on 4 SMs are 9 each, 1.125 cycles of products and 0.5625 of exponentials"
    yield case(1, 6, 128, 4, otherwise=equal)
    yield case(16, 4096, 64, 132)  # chapter 0's own
    for _ in range(20):
        heads, S, sms = random.randint(1, 64), random.randint(1, 8192), random.randint(1, 200)
        yield case(heads, S, random.randint(1, 60), sms, on="random sizes with a small D", fresh=True)
        yield case(heads, S, random.randint(70, 512), sms, on="random sizes with a large D", fresh=True)


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
