"""Exercise 0.1, attention_flops."""

import random

import torch

from fa_tutorial.exercises.harness import Exercise, case


def attention_flops(B, H, S_q, S_k, D, is_causal):
    """FLOPs of q kᵀ and p v: 2 matmuls, 2 FLOPs a multiply-add, only pairs that are seen."""
    if is_causal:
        pairs = sum(max(0, i + 1 + S_k - S_q) for i in range(S_q))
    else:
        pairs = S_q * S_k
    return 4 * B * H * pairs * D


MISTAKES = {
    "half": "half is missing: a multiply-add is 2 FLOPs, and there are two matmuls, q kᵀ and p v",
    "quarter": "both the second matmul and the addition of a multiply-add are missing",
    "no_batch": "the batch size B is missing: every batch has its own scores",
    "no_heads": "the number of heads H is missing: every head has its own scores",
    "no_batch_no_heads": "B and H are missing: every head of every batch has its own scores",
    "S_q_twice": "S_q is used for both lengths",
    "S_k_twice": "S_k is used for both lengths",
    "no_mask": "pairs that the causal mask hides are counted",
    "half_diagonal": "the diagonal is half counted: a causal row i of a square sees i + 1 keys, so S·(S + 1)/2 pairs in all",
    "no_diagonal": "the diagonal is not counted: query i sees key i too",
    "top_left": "the mask starts at the top left: with S_q ≠ S_k the last query sees the last key",
    "negative_rows": "a query that sees no key costs nothing, never less than nothing",
    "float32": "large counts must be exact: stay with integers",
}

CONDITIONS = {
    "no_keys": "causal with S_q > S_k: the first S_q − S_k queries see no key and cost nothing",
    "large": "large counts are exact integers",
}


def twin(B, H, S_q, S_k, D, is_causal, mistake=None):
    B = 1 if mistake in ("no_batch", "no_batch_no_heads") else B
    H = 1 if mistake in ("no_heads", "no_batch_no_heads") else H
    S_k = S_q if mistake == "S_q_twice" else S_k
    S_q = S_k if mistake == "S_k_twice" else S_q
    seen = [min(i + 1, S_k) if mistake == "top_left" else i + 1 + S_k - S_q - (mistake == "no_diagonal") for i in range(S_q)]
    pairs = sum(seen if mistake == "negative_rows" else [max(0, n) for n in seen])
    if not is_causal or mistake in ("no_mask", "half_diagonal"):
        pairs = S_q * S_k
    flops = {"half": 2, "quarter": 1}.get(mistake, 4) * B * H * pairs * D
    if mistake == "half_diagonal" and is_causal:
        flops //= 2
    return int(torch.tensor([4.0, B, H, pairs, D], dtype=torch.float32).prod()) if mistake == "float32" else flops


def inputs():
    full = "count 2 matmuls, 2 FLOPs a multiply-add, for every (query, key) pair of every head"
    yield case(1, 1, 4, 4, 8, False, otherwise=full)
    yield case(5, 3, 4, 4, 8, False, otherwise=full)
    yield case(5, 3, 5, 7, 8, False, otherwise=full)
    yield case(1, 1, 4, 4, 8, True, otherwise="causal: only the pairs that are seen count")
    yield case(1, 1, 2, 5, 8, True, otherwise="causal with S_q < S_k: query i sees keys 0 … i + S_k − S_q")
    yield case(1, 1, 5, 2, 8, True, edge="no_keys")
    yield case(63, 65, 99, 99, 127, True, edge="large")  # past int32 and float32 by B and H: an answer may build the mask
    for _ in range(20):
        B, H, S_q, S_k, D = (random.randint(1, high) for high in (4, 8, 200, 200, 128))
        yield case(B, H, S_q, S_k, D, False, on="a random case", fresh=True)
        yield case(B, H, min(S_q, S_k), max(S_q, S_k), D, True, on="a random causal case with S_q ≤ S_k", fresh=True)
        yield case(B, H, max(S_q, S_k), min(S_q, S_k), D, True, on="a random causal case with S_q ≥ S_k", fresh=True, edge="no_keys")


EXERCISE = Exercise(
    id="0.1",
    task="Count the FLOPs of attention's two matmuls.",
    conditions=CONDITIONS,
    hints=(
        "How many (query, key) pairs are there, and how many multiply-adds does one pair cost in q kᵀ, and again in p v?",
        "A pair costs 4·D FLOPs in a head. For the causal count, add up over the rows how many keys each query sees, "
        "max(0, i + 1 + S_k − S_q), and mind the rows that see none.",
    ),
    solution=attention_flops,
    reasoning="Every pair costs D multiply-adds in q kᵀ and D in p v, so 4·D FLOPs together. The causal mask only changes the number of "
    "pairs: the last query sees S_k keys, and each query before it sees one less, down to none.",
    more="The package's version, ledger.attention_flops, adds the rows up in closed form and checks its arguments.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
)
