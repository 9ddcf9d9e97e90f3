"""Exercise 11.1, one_step."""

import random

from fa_tutorial.exercises.harness import OTHERS, Exercise, case


def one_step(B, H_q, H_k, S, D, itemsize):
    """(flops, bytes) of one decoding step: two products, and each key and value read once."""
    flops = 4 * B * H_q * S * D
    bytes_read = 2 * B * H_k * S * D * itemsize
    return flops, bytes_read


MISTAKES = {
    "one_product": "half of the FLOPs are missing: q kᵀ takes D multiplications and D additions a key, and p v as many",
    "square": "S queries are counted: a step has one",
    "key_heads": "flops are counted per key head: each of the H_q query heads computes its own products",
    "query_heads": "keys are counted once per query head: the cache holds H_k heads, and each is read once",
    "two_bytes": "itemsize isn't used: an element has itemsize bytes, which may be 1 or 4",
    "keys_alone": "the values are missing: the cache holds a key and a value for each token",
    "elements": "that is elements: an element has itemsize bytes",
    "no_batch": "each of the B sequences has its own query and its own cache",
}
LOOK = "a key takes 2 · D FLOPs in q kᵀ and as many in p v, for each query head; the cache holds D numbers for a key and D for its value"


def twin(B, H_q, H_k, S, D, itemsize, mistake=None):
    flops, bytes_read = 4 * B * H_q * S * D, 2 * B * H_k * S * D * itemsize
    flops = {
        "one_product": flops // 2,
        "square": flops * S,
        "key_heads": flops // H_q * H_k,
        "no_batch": flops // B,
    }.get(mistake, flops)
    bytes_read = {
        "query_heads": bytes_read // H_k * H_q,
        "two_bytes": bytes_read // itemsize * 2,
        "keys_alone": bytes_read // 2,
        "elements": bytes_read // itemsize,
        "no_batch": bytes_read // B,
    }.get(mistake, bytes_read)
    return flops, bytes_read


def inputs():
    yield case(1, 1, 1, 4, 2, 2, otherwise=LOOK)
    yield case(1, 1, 1, 5, 3, 4, otherwise=LOOK)
    yield case(1, 6, 2, 5, 3, 4, otherwise="query heads compute, key heads are read")
    yield case(7, 1, 1, 5, 3, 4, otherwise=MISTAKES["no_batch"])
    for _ in range(10):
        B, group, H_k, S, D = (random.randint(1, 9) for _ in range(5))
        yield case(B, group * H_k, H_k, S, D, random.choice((1, 2, 4)), on="random sizes", fresh=True, otherwise=OTHERS)


EXERCISE = Exercise(
    id="11.1",
    task="Count the FLOPs and the bytes of one decoding step.",
    hints=(
        "Chapter 0 counted 4 · S · S · D FLOPs a head. How many of the S queries are left?",
        "The cache holds B · H_k · S keys of D numbers, and as many values.",
        "flops = 4 · B · H_q · S · D, and the bytes are 2 · B · H_k · S · D · itemsize.",
    ),
    solution=one_step,
    reasoning="Query heads compute, key heads are read. So the intensity is 2 · (H_q / H_k) / itemsize FLOPs a byte, however long the sequence is.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("flops", "bytes"),
    exact=True,
)
