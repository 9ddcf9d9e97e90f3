"""Exercise 0.2, naive_hbm_bytes."""

import random

from fa_tutorial.exercises.harness import Exercise, case


def naive_hbm_bytes(B, H, S_q, S_k, D, itemsize):
    """Bytes that the three kernels read from and write to HBM."""
    scores = S_q * S_k
    first = S_q * D + S_k * D + scores  # reads q and k, writes s
    second = scores + scores  # reads s, writes p
    third = scores + S_k * D + S_q * D  # reads p and v, writes o
    return B * H * (first + second + third) * itemsize


MISTAKES = {
    "elements": "elements are counted, not bytes: multiply by itemsize",
    "scores_only": "itemsize multiplies only the scores: q, k, v and o have it too",
    "two_touches": "only two touches of each score are counted: s is written and read, and p is written and read",
    "three_touches": "s and p are each written but one of the reads is missing: each score is touched four times",
    "five_touches": "a third matrix of scores is counted: softmax reads s and writes p, nothing else",
    "fused": "s and p never reach HBM in this count: that is what a fused kernel would move",
    "no_o": "o is not counted: the third kernel writes it (and the first one reads q)",
    "no_v": "v is not counted: the third kernel reads it (and the first one reads k)",
    "scores_alone": "only the scores are counted: q, k, v and o travel too",
    "S_q_rows": "S_q is used for both lengths of q, k, v and o: k and v have S_k rows",
    "S_q_twice": "S_q is used for both lengths: k and v have S_k rows",
    "no_heads": "the heads are missing: every head has its own s and p",
    "no_batch": "the batch is missing: every batch has its own s and p",
    "no_batch_no_heads": "B and H are missing: every head of every batch has its own s and p",
    "fp16": "half of the bytes are counted: itemsize is an argument, 4 here and not always 2",
    "fp32": "itemsize is an argument, 2 here and not always 4",
}


def twin(B, H, S_q, S_k, D, itemsize, mistake=None):
    B = 1 if mistake in ("no_batch", "no_batch_no_heads") else B
    H = 1 if mistake in ("no_heads", "no_batch_no_heads") else H
    S_k = S_q if mistake == "S_q_twice" else S_k
    itemsize = {"fp16": 2, "fp32": 4, "elements": 1}.get(mistake, itemsize)
    rows = {"no_o": S_q + 2 * S_k, "no_v": 2 * S_q + S_k, "S_q_rows": 4 * S_q, "scores_alone": 0}.get(mistake, 2 * (S_q + S_k))
    touches = {"two_touches": 2, "three_touches": 3, "five_touches": 5, "fused": 0}.get(mistake, 4)
    vectors, scores = B * H * rows * D, B * H * touches * S_q * S_k
    return vectors + scores * itemsize if mistake == "scores_only" else (vectors + scores) * itemsize


def inputs():
    rule = "add up what each of the three kernels reads and writes"
    yield case(1, 1, 5, 7, 3, 4, otherwise=rule)  # no two of the mistakes agree here
    yield case(1, 1, 5, 7, 3, 2, otherwise=rule)
    yield case(5, 3, 4, 6, 2, 4, otherwise=rule)
    for _ in range(20):
        sizes = [random.randint(1, high) for high in (9, 9, 500, 500, 500)]
        yield case(*sizes, random.choice((1, 2, 4)), on="a random case", fresh=True)


EXERCISE = Exercise(
    id="0.2",
    task="Count the bytes that naive attention moves through HBM.",
    hints=(
        "List the three kernels; beside each, what it reads and what it writes.",
        "q and o have S_q·D elements, k and v S_k·D. s and p have S_q·S_k, and each is written once and read once.",
    ),
    solution=naive_hbm_bytes,
    reasoning="q, k and v are read once and o is written once. The first kernel writes s and the second reads it; the second writes p and the "
    "third reads it. That makes four touches of S_q·S_k elements, which is where nearly all the bytes are.",
    more="The package's version, ledger.naive_hbm_bytes, also checks its arguments.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
)
