import random

from fa_tutorial.exercises.harness import Exercise, case


def attention_flops(B, H, S, D, is_causal):
    """FLOPs of q kᵀ and p v, with S queries and S keys in each of B·H heads."""
    pairs = S * (S + 1) // 2 if is_causal else S * S  # (query, key) pairs in one head
    per_pair = 2 * 2 * D  # two matmuls, D multiply-adds each, 2 FLOPs per multiply-add
    return B * H * pairs * per_pair


CAUSAL, PER_PAIR = "S * (S + 1) // 2", "2 * 2 * D"
MISTAKES = {
    "half of the FLOPs are missing: there are two matmuls, and a multiply-add is 2 FLOPs": (PER_PAIR, "2 * D"),
    "D is missing: each dot product of q kᵀ runs over D elements, and each row of p v has D elements": (PER_PAIR, "2 * 2"),
    "you count pairs that the causal mask hides": (CAUSAL, "S * S"),
    "1 + 2 + … + S is half of S · (S + 1): you count each causal pair twice": (CAUSAL, "S * (S + 1)"),
    "you halve the diagonal too: query i sees i + 1 keys, so half of the square is a little too few": (CAUSAL, "S * S / 2"),
    "half of the square, rounded down, is too few: query i sees i + 1 keys": (CAUSAL, "S * S // 2"),
    "B is missing: each of B batch entries has its own H heads": ("B * H * pairs", "H * pairs"),
    "you leave out the diagonal: query i sees key i as well": (CAUSAL, "S * (S - 1) // 2"),
}


def truth(B, H, S, D, is_causal):
    pairs = sum(query + 1 if is_causal else S for query in range(S))
    return 2 * B * H * pairs * (D + D)


def inputs():
    yield case(1, 1, 3, 4, False)
    yield case(5, 3, 3, 8, False)
    yield case(1, 1, 5, 8, True)
    large = "a large count is exact too: leave it in Python's integers"
    yield case(63, 65, 99, 127, False, otherwise=large)  # past int32 and float32 by B and H: an answer may build the mask
    for number in range(40):
        sizes = (random.randint(1, high) for high in (4, 8, 200, 128))
        yield case(*sizes, number % 2 == 0, on="a random case", fresh=True)


EXERCISE = Exercise(
    task="Count the FLOPs of attention's two matmuls.",
    hints=(
        "How many (query, key) pairs are there? How many multiply-adds does one pair cost in q kᵀ, and how many in p v?",
        "A pair costs 4·D FLOPs. For the causal count, query 0 sees 1 key, query 1 sees 2 keys, …, the last query sees S keys: add them "
        "up.",
    ),
    solution=attention_flops,
    reasoning="Every pair costs D multiply-adds in q kᵀ and D more in p v, so 4·D FLOPs. The causal mask changes only the number of pairs: "
    "1 + 2 + … + S = S·(S + 1)/2.",
    more="The package's version, ledger.attention_flops, also takes different numbers of queries and keys, and checks its arguments.",
    inputs=inputs,
    truth=truth,
    rule="count 2 matmuls, and 2 FLOPs per multiply-add, for every (query, key) pair that is seen, in each of B·H heads",
    mistakes=MISTAKES,
    exact=True,
)
