"""Exercise 0.1, attention_flops."""

import random

import torch

from fa_tutorial.exercises.harness import Exercise, case


def attention_flops(B, H, S, D, is_causal):
    """FLOPs of q kᵀ and p v, with S queries and S keys in each of B·H heads."""
    pairs = S * (S + 1) // 2 if is_causal else S * S  # (query, key) pairs in one head
    per_pair = 2 * 2 * D  # two matmuls, D multiply-adds each, 2 FLOPs per multiply-add
    return B * H * pairs * per_pair


MISTAKES = {
    "half": "half of the FLOPs are missing: there are two matmuls, and a multiply-add is 2 FLOPs",
    "quarter": "you count one matmul and one FLOP per multiply-add: there are two matmuls, and a multiply-add is 2 FLOPs",
    "no_batch": "the batch size B is missing: every sequence in the batch has its own scores",
    "no_heads": "the number of heads H is missing: every head has its own scores",
    "no_batch_no_heads": "B and H are missing: every head of every sequence has its own scores",
    "no_dimension": "D is missing: each dot product of q kᵀ runs over D elements, and each row of p v has D elements",
    "linear": "you count S pairs, but each of the S queries meets each of the S keys",
    "no_mask": "you count pairs that the causal mask hides",
    "half_square": "you halve the diagonal too: query i sees i + 1 keys, so half of the square is a little too few",
    "half_square_rounded": "you halve the diagonal too: query i sees i + 1 keys, so half of the square is a little too few",
    "no_diagonal": "you leave out the diagonal: query i sees key i as well",
    "one_addition_less": "a dot product of D elements is D multiply-adds, which count as 2·D FLOPs: you leave one addition out",
    "rounded": "a float rounds S·(S + 1)/2 here: stay with integers",
    "float32": "large counts must be exact: stay with integers",
}


def twin(B, H, S, D, is_causal, mistake=None):
    B = 1 if mistake in ("no_batch", "no_batch_no_heads") else B
    H = 1 if mistake in ("no_heads", "no_batch_no_heads") else H
    D = 1 if mistake == "no_dimension" else D
    full = S if mistake == "linear" else S * S
    halves = {"no_mask": full, "half_square": S * S / 2, "half_square_rounded": S * S // 2, "no_diagonal": S * (S - 1) // 2}
    causal = halves.get(mistake, S * (S + 1) // 2)
    pairs = causal if is_causal else full
    if mistake == "one_addition_less":  # D − 1 additions in q kᵀ, and one less than keys in p v
        return B * H * (pairs * (2 * D - 1) + D * (2 * pairs - S))
    if mistake == "rounded" and is_causal:
        return int(B * H * 4 * D * (S * S / 2 * (1 + 1 / S)))
    if mistake == "float32":
        return int(torch.tensor([4.0, B, H, pairs, D], dtype=torch.float32).prod())
    return {"half": 2, "quarter": 1}.get(mistake, 4) * B * H * pairs * D


def inputs():
    full = "count 2 matmuls, and 2 FLOPs per multiply-add, for every (query, key) pair of every head"
    yield case(1, 1, 3, 4, False, otherwise=full)
    yield case(5, 3, 3, 8, False, otherwise=full)
    yield case(1, 1, 3, 8, True, edge="causal")
    yield case(1, 1, 34, 1, True, edge="causal")  # a float's rounding shows here
    yield case(63, 65, 99, 127, False, otherwise=full)  # past int32 and float32 by B and H: an answer may build the mask
    for _ in range(20):
        B, H, S, D = (random.randint(1, high) for high in (4, 8, 200, 128))
        yield case(B, H, S, D, False, on="a random case", fresh=True)
        yield case(B, H, S, D, True, on="a random causal case", fresh=True, edge="causal")


EXERCISE = Exercise(
    id="0.1",
    task="Count the FLOPs of attention's two matmuls.",
    conditions={"causal": "causal: query i sees only keys 0 … i, and hidden pairs cost nothing"},
    hints=(
        "How many (query, key) pairs are there? How many multiply-adds does one pair cost in q kᵀ, and how many in p v?",
        "A pair costs 4·D FLOPs. For the causal count, query 0 sees 1 key, query 1 sees 2 keys, …, the last query sees S keys: add them up.",
    ),
    solution=attention_flops,
    reasoning="Every pair costs D multiply-adds in q kᵀ and D more in p v, so 4·D FLOPs. The causal mask changes only the number of pairs: "
    "1 + 2 + … + S = S·(S + 1)/2.",
    more="The package's version, ledger.attention_flops, also takes different numbers of queries and keys, and checks its arguments.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
)
