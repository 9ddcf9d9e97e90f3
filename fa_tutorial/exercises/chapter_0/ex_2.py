"""Exercise 0.2, naive_hbm_bytes."""

import random

from fa_tutorial.exercises.harness import Exercise, case


def naive_hbm_bytes(B, H, S, D, itemsize):
    """Bytes that the three kernels read from HBM and write to it, for B·H heads."""
    vectors, scores = S * D, S * S  # elements of q, k, v or o; elements of s or p
    first = 2 * vectors + scores  # reads q and k, writes s
    second = 2 * scores  # reads s, writes p
    third = scores + 2 * vectors  # reads p and v, writes o
    return B * H * (first + second + third) * itemsize


MISTAKES = {
    "elements": "you count elements, not bytes: multiply by itemsize",
    "scores_only": "itemsize multiplies only the scores: q, k, v and o have it too",
    "two_touches": "you count two touches of each score, but there are four: s is written and read, and p is written and read",
    "three_touches": "one of the score matrices is written but never read, or read but never written: each score is touched four times",
    "five_touches": "you count five touches of each score, but softmax only reads s and writes p",
    "fused": "s and p never reach HBM in your count: that is what a fused kernel moves",
    "three_vectors": "one of q, k, v and o is missing: the first kernel reads q and k, the last reads v and writes o",
    "scores_alone": "you count only the scores: q, k, v and o travel too",
    "no_heads": "the heads are missing: every head has its own s and p",
    "no_batch": "the batch is missing: every sequence has its own s and p",
    "no_batch_no_heads": "B and H are missing: every head of every sequence has its own s and p",
    "fp16": "itemsize is an argument: it is 4 here, not always 2",
    "fp32": "itemsize is an argument: it is 2 here, not always 4",
}


def twin(B, H, S, D, itemsize, mistake=None):
    B = 1 if mistake in ("no_batch", "no_batch_no_heads") else B
    H = 1 if mistake in ("no_heads", "no_batch_no_heads") else H
    itemsize = {"fp16": 2, "fp32": 4, "elements": 1}.get(mistake, itemsize)
    tensors = {"three_vectors": 3, "scores_alone": 0}.get(mistake, 4)
    touches = {"two_touches": 2, "three_touches": 3, "five_touches": 5, "fused": 0}.get(mistake, 4)
    vectors, scores = B * H * tensors * S * D, B * H * touches * S * S
    return vectors + scores * itemsize if mistake == "scores_only" else (vectors + scores) * itemsize


def inputs():
    rule = "add up what each of the three kernels reads and writes"
    yield case(1, 1, 7, 3, 4, otherwise=rule)  # no two of the mistakes agree here
    yield case(1, 1, 7, 3, 2, otherwise=rule)
    yield case(5, 3, 4, 2, 4, otherwise=rule)
    yield case(1, 1, 4096, 64, 2, otherwise=rule)  # the picture's 136 MB
    for _ in range(20):
        sizes = [random.randint(1, high) for high in (9, 9, 500, 500)]
        yield case(*sizes, random.choice((1, 2, 4)), on="a random case", fresh=True)


EXERCISE = Exercise(
    id="0.2",
    task="Count the bytes that naive attention moves through HBM.",
    hints=(
        "Go through the picture arrow by arrow. How many elements does each arrow carry?",
        "q, k, v and o have S·D elements and one arrow each. s and p have S·S elements and two arrows each.",
    ),
    solution=naive_hbm_bytes,
    reasoning="q, k and v are read once and o is written once. The first kernel writes s and the second reads it; the second writes p and the "
    "third reads it. So there are four touches of S·S elements, and nearly all the bytes are there.",
    more="The package's version, ledger.naive_hbm_bytes, also takes different numbers of queries and keys, and checks its arguments.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
)
