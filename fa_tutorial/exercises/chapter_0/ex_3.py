"""Exercise 0.3, longest_sequence."""

import math
import random

from fa_tutorial.exercises.harness import Exercise, case


def longest_sequence(memory_bytes, B, H, itemsize):
    """The largest S at which s and p fit into memory_bytes together."""
    per_pair = 2 * B * H * itemsize  # bytes that s and p take for one (query, key) pair
    return math.isqrt(memory_bytes // per_pair)


MISTAKES = {
    "one_matrix": "you make room for one S × S matrix, but softmax reads s while it writes p: both are in memory",
    "three_matrices": "you make room for three S × S matrices, but only s and p are in memory together",
    "four_matrices": "you make room for four S × S matrices, but only s and p are stored: with half of the pairs, S shrinks by √2, not by 2",
    "no_root": "you divide the memory by what one pair takes, which gives the number of pairs: S queries and S keys make S² of them",
    "no_heads": "the heads are missing: every head has its own s and p",
    "no_batch": "the batch is missing: every sequence has its own s and p",
    "no_batch_no_heads": "B and H are missing: every head of every sequence has its own s and p",
    "elements": "you count elements, not bytes: itemsize is missing",
    "itemsize_2": "you fix the bytes of an element at 2: take itemsize",
    "fraction": "S counts queries, so it is a whole number: round down",
    "rounded": "you round to the nearest whole number, and then s and p may no longer fit: round down",
    "rounded_up": "you round up, and then s and p no longer fit: round down",
    "below": "s and p may fill the memory to the last byte",
    "power_of_two": "S may be any whole number, not only a power of two",
}


def twin(memory_bytes, B, H, itemsize, mistake=None):
    B = 1 if mistake in ("no_batch", "no_batch_no_heads") else B
    H = 1 if mistake in ("no_heads", "no_batch_no_heads") else H
    itemsize = {"elements": 1, "itemsize_2": 2}.get(mistake, itemsize)
    pairs = memory_bytes / ({"one_matrix": 1, "three_matrices": 3, "four_matrices": 4}.get(mistake, 2) * B * H * itemsize)
    S = math.isqrt(int(pairs))
    return {
        "no_root": int(pairs),
        "fraction": math.sqrt(pairs),
        "rounded": round(math.sqrt(pairs)),
        "rounded_up": math.ceil(math.sqrt(pairs)),
        "below": math.ceil(math.sqrt(pairs)) - 1,
        "power_of_two": 2 ** int(math.log2(S)) if S else 0,
    }.get(mistake, S)


def inputs():
    rule = "find the largest S with 2 · B · H · S² · itemsize ≤ memory_bytes"
    yield case(1000, 1, 1, 2, otherwise=rule)  # √250 = 15.8
    yield case(576, 1, 1, 2, otherwise=rule)  # 12 exactly
    yield case(9000, 5, 3, 8, otherwise=rule)  # with 4, an itemsize fixed at 2 is one matrix alone
    yield case(24 * 2**30, 1, 16, 2, otherwise=rule)
    for _ in range(20):
        B, H, S, itemsize = random.randint(1, 4), random.randint(1, 64), random.randint(1, 10**5), random.choice((2, 4))
        fits = 2 * B * H * S * S * itemsize
        yield case(fits, B, H, itemsize, on="memory that s and p fill exactly", otherwise=rule, fresh=True)
        yield case(fits - 1, B, H, itemsize, on="one byte less than s and p fill exactly", otherwise=rule, fresh=True)


EXERCISE = Exercise(
    id="0.3",
    task="Predict the longest sequence whose scores and probabilities fit into a given amount of memory.",
    hints=(
        "How many bytes do s and p take together, for one (query, key) pair of every head?",
        "Divide memory_bytes by those bytes. That is how many pairs fit, and S queries with S keys make S² pairs. "
        "math.isqrt(n) is the square root of n, rounded down.",
    ),
    solution=longest_sequence,
    reasoning="s and p take 2 · B · H · S² · itemsize bytes. Solve for S, and round down.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
)
