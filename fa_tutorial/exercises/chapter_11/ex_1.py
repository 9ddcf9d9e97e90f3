"""Exercise 11.1, one_step."""

import random

from fa_tutorial.exercises.harness import Exercise, case


def one_step(B, H_q, H_k, S, D, itemsize):
    """(flops, bytes) of one decoding step: two products, and each key and value read once."""
    flops = 4 * B * H_q * S * D
    bytes_read = 2 * B * H_k * S * D * itemsize
    return flops, bytes_read


FLOPS, BYTES = "4 * B * H_q * S * D", "2 * B * H_k * S * D * itemsize"
MISTAKES = {
    "half of the FLOPs are missing: q kᵀ takes D multiplications and D additions a key, and p v as many": ("4 * B", "2 * B"),
    "S queries are counted: a step has one": (FLOPS, f"{FLOPS} * S"),
    "flops are counted per key head: each of the H_q query heads computes its own products": ("4 * B * H_q", "4 * B * H_k"),
    "keys are counted once per query head: the cache holds H_k heads, and each is read once": ("2 * B * H_k", "2 * B * H_q"),
    "the values are missing: the cache holds a key and a value for each token": ("2 * B", "B"),
    "q and o are counted too: leave them out": (BYTES, f"{BYTES} + 2 * B * H_q * D * itemsize"),
    "that is elements: an element has itemsize bytes": (" * itemsize", ""),
    "itemsize isn't used: an element has itemsize bytes, which may be 1 or 4": (" * itemsize", " * 2"),
    "each of the B sequences has its own query and its own cache": (" * B", ""),
}


def truth(B, H_q, H_k, S, D, itemsize):
    return 4 * B * H_q * S * D, 2 * B * H_k * S * D * itemsize


def inputs():
    yield case(1, 1, 1, 4, 2, 2)
    yield case(1, 1, 1, 5, 3, 4)
    yield case(1, 6, 2, 5, 3, 4, otherwise="query heads compute, key heads are read")
    yield case(7, 1, 1, 5, 3, 4, otherwise="each of the B sequences has its own query and its own cache")
    for _ in range(10):
        B, group, H_k, S, D = (random.randint(1, 9) for _ in range(5))
        yield case(B, group * H_k, H_k, S, D, random.choice((1, 2, 4)), on="random sizes", fresh=True)


EXERCISE = Exercise(
    id="11.1",
    task="Count the FLOPs and the bytes of one decoding step.",
    hints=(
        "Chapter 0 counted 4 · S · S · D FLOPs a head. How many of the S queries are left?",
        "The cache holds B · H_k · S keys of D numbers, and as many values.",
        "flops = 4 · B · H_q · S · D, and the bytes are 2 · B · H_k · S · D · itemsize.",
    ),
    solution=one_step,
    reasoning=(
        "Query heads compute, key heads are read. So the intensity is 2 · (H_q / H_k) / itemsize FLOPs a byte, however long the "
        "sequence is."
    ),
    inputs=inputs,
    truth=truth,
    rule="flops: 2 · D in q kᵀ and as many in p v, for each query head and key; bytes: those of a key and a value, "
    "D numbers each, for each key head and token, and of nothing else",
    mistakes=MISTAKES,
    parts=("flops", "bytes"),
    exact=True,
)
