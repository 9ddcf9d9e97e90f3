"""Exercise 2.2, view_of_k."""

import random

from fa_tutorial.exercises.harness import Exercise, case


def view_of_k(S, H, D):
    """Start and strides, in elements, of k = qkv[:, :, 1].transpose(1, 2), where qkv is contiguous.

    qkv: (B, S, 3, H, D). k: (B, H, S, D).
    Returns (start, (stride_b, stride_h, stride_s, stride_d)).
    """
    start = 1 * H * D
    return start, (S * 3 * H * D, D, 3 * H * D, 1)


MISTAKES = {
    "not_transposed": "the strides are in the order of qkv, (B, S, H, D): the transpose swaps those of S and H",
    "contiguous": "these are the strides of a contiguous (B, H, S, D) tensor: k is a view of qkv, so it keeps the steps of qkv",
    "no_three": "one step in s must skip q, k and v: 3 · H · D elements",
    "token_without_three": "one step in s must skip q, k and v: 3 · H · D elements",
    "batch_without_three": "one step in b must skip all of q, k and v: S · 3 · H · D elements",
    "reversed": "the strides are in reverse order: d comes last, and its stride is 1",
    "at_q": "that is where q starts: index 1 in the dimension of size 3 moves the start by that dimension's stride",
    "at_v": "that is where v starts: k has index 1 in the dimension of size 3, v has index 2",
    "one_element": "the start is the index itself: index 1 in the dimension of size 3 moves by that dimension's stride",
    "one_head": "the start moves by one head only: index 1 in the dimension of size 3 moves by H · D elements",
    "one_token": "the start moves by one token: index 1 in the dimension of size 3 moves by H · D elements",
}


def twin(S, H, D, mistake=None):
    right = (S * 3 * H * D, D, 3 * H * D, 1)
    strides = {
        "not_transposed": (S * 3 * H * D, 3 * H * D, D, 1),
        "contiguous": (H * S * D, S * D, D, 1),
        "no_three": (S * H * D, D, H * D, 1),
        "token_without_three": "one step in s must skip q, k and v: 3 · H · D elements",
        "batch_without_three": (S * H * D, *right[1:]),
        "reversed": right[::-1],
    }.get(mistake, right)
    start = {"at_q": 0, "at_v": 2 * H * D, "one_element": 1, "one_head": D, "one_token": 3 * H * D}.get(mistake, H * D)
    return start, strides


def inputs():
    rule = "write down the strides of qkv, (S · 3 · H · D, 3 · H · D, H · D, D, 1), then follow the index and the transpose"
    yield case(10, 4, 8, otherwise=rule)
    yield case(5, 2, 16, otherwise=rule)
    for _ in range(10):
        yield case(*(random.randint(2, 99) for _ in range(3)), on="a random shape", otherwise=rule, fresh=True)


EXERCISE = Exercise(
    id="2.2",
    task="Describe the k of a fused qkv: where it starts and how it steps.",
    hints=(
        "Start from the five strides of qkv itself; exercise 2.1 gives them. Which of the five does [:, :, 1] remove, and where does it move the "
        "start? Which two does the transpose swap?",
        "qkv has strides (S · 3 · H · D, 3 · H · D, H · D, D, 1). Index 1 removes the third, H · D, and moves the start by it.",
    ),
    solution=view_of_k,
    reasoning="An integer index removes a dimension and moves the start by index · stride. A transpose swaps two strides. Neither moves any data, so "
    "k keeps the steps of qkv: one token further means past that token's q, k and v.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("start", "strides"),
    exact=True,
)
