"""Exercise 0.5, longest_sequence."""

import bisect
import math
import random

from fa_tutorial.exercises.harness import Exercise, case


def longest_sequence(memory_bytes, B, H, itemsize):
    """The largest S at which s and p fit into memory_bytes together."""
    per_pair = 2 * B * H * itemsize  # bytes that s and p take for one (query, key) pair
    return math.isqrt(memory_bytes // per_pair)


FITS, PER_PAIR = "math.isqrt(memory_bytes // per_pair)", "2 * B * H * itemsize"
MISTAKES = {
    "you make room for one S × S matrix, but softmax reads s while it writes p: both are in memory": (PER_PAIR, "B * H * itemsize"),
    "you make room for four S × S matrices, but only s and p are stored: with half of the pairs, S shrinks by √2, not by 2": (
        PER_PAIR, "4 * B * H * itemsize"),
    "you divide the memory by what one pair takes, which gives the number of pairs: S queries and S keys make S² of them": (
        FITS, "memory_bytes // per_pair"),
    "the heads are missing: every head has its own s and p": ("B * H *", "B *"),
    "the batch is missing: every sequence has its own s and p": ("B * H *", "H *"),
    "B and H are missing: every head of every sequence has its own s and p": ("B * H *", ""),
    "you count elements, not bytes: itemsize is missing": (" * itemsize", ""),
    "you fix the bytes of an element at 2: take itemsize": ("* itemsize", "* 2"),
    "S counts queries, so it is a whole number: round down": (FITS, "math.sqrt(memory_bytes / per_pair)"),
    "you round to the nearest whole number, and then s and p may no longer fit: round down": (
        FITS, "round(math.sqrt(memory_bytes / per_pair))"),
    "you round up, and then s and p no longer fit: round down": (FITS, "math.ceil(math.sqrt(memory_bytes / per_pair))"),
    "s and p may fill the memory to the last byte": (FITS, "math.isqrt((memory_bytes - 1) // per_pair)"),
}  # fmt: skip


def truth(memory_bytes, B, H, itemsize):
    return bisect.bisect_right(range(2**20), memory_bytes, key=lambda S: 2 * (B * H * S * S) * itemsize) - 1


def inputs():
    yield case(1000, 1, 1, 2)  # √250 = 15.8
    yield case(576, 1, 1, 2, otherwise="here s and p may fill the memory to the last byte, 2 · 12² · 2 = 576")
    yield case(9000, 5, 3, 8)  # with 4, an itemsize fixed at 2 is one matrix alone
    yield case(24 * 2**30, 1, 16, 2)
    for _ in range(20):
        B, H, S, itemsize = random.randint(1, 4), random.randint(1, 64), random.randint(1, 10**5), random.choice((2, 4))
        fits = 2 * B * H * S * S * itemsize
        yield case(fits, B, H, itemsize, on="memory that s and p fill exactly", fresh=True)
        yield case(fits - 1, B, H, itemsize, on="one byte less than s and p fill exactly", fresh=True)


EXERCISE = Exercise(
    task="Predict the longest sequence whose scores and probabilities fit into a given amount of memory.",
    hints=(
        "How many bytes do s and p take together, for one (query, key) pair of every head?",
        "Divide memory_bytes by those bytes. That is how many pairs fit, and S queries with S keys make S² pairs. "
        "math.isqrt(n) is the square root of n, rounded down.",
    ),
    solution=longest_sequence,
    reasoning="s and p take 2 · B · H · S² · itemsize bytes. Solve for S, and round down.",
    inputs=inputs,
    truth=truth,
    rule="S is the largest whole number with 2 · B · H · S² · itemsize ≤ memory_bytes",
    mistakes=MISTAKES,
    exact=True,
)
