import random

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.watch import not_by


def view_of_k(S, H, D):
    """Start and strides, in elements, of k = qkv[:, :, 1].transpose(1, 2), where qkv is contiguous.

    qkv: (B, S, 3, H, D). k: (B, H, S, D).
    Returns (start, (stride_b, stride_h, stride_s, stride_d)).
    """
    start = 1 * H * D
    return start, (S * 3 * H * D, D, 3 * H * D, 1)


START, STRIDES = "1 * H * D", "(S * 3 * H * D, D, 3 * H * D, 1)"
MISTAKES = {
    "the two are exchanged: return start first, then the strides": (f"return start, {STRIDES}", f"return {STRIDES}, start"),
    "the strides are in the order of qkv, (B, S, H, D): the transpose swaps those of S and H": (
        STRIDES, "(S * 3 * H * D, 3 * H * D, D, 1)"),
    "these are the strides of a contiguous (B, H, S, D) tensor: k is a view of qkv, so it keeps the steps of qkv": (
        STRIDES, "(H * S * D, S * D, D, 1)"),
    "these are the steps of a tensor that holds k alone: one step in s must skip q, k and v, and one in b all of their tokens": (
        STRIDES, "(S * H * D, D, H * D, 1)"),
    "that is where q starts: index 1 in the dimension of size 3 moves the start by that dimension's stride": (START, "0"),
    "that is where v starts: k is number 1 of q, k and v": (START, "2 * H * D"),
    "the start is the index itself: index 1 in the dimension of size 3 moves by that dimension's stride": (START, "1"),
    "the start moves by one head only: index 1 in the dimension of size 3 moves by H · D elements": (START, "D"),
    "start and strides count elements, and these are bytes of fp32": [
        (START, "4 * H * D"), (STRIDES, "(S * 12 * H * D, 4 * D, 12 * H * D, 4)")],
}  # fmt: skip


def truth(S, H, D):
    k = torch.empty((2, S, 3, H, D), device="meta")[:, :, 1].transpose(1, 2)
    return k.storage_offset(), k.stride()


def inputs():
    yield case(10, 4, 8)
    yield case(5, 2, 16)
    for _ in range(10):
        yield case(*(random.randint(2, 99) for _ in range(3)), on="a random shape", fresh=True)


EXERCISE = Exercise(
    task="Describe the k of a fused qkv: where it starts and how it steps.",
    hints=(
        "Start from the five strides of qkv itself; exercise 2.1 gives them. Which of the five does [:, :, 1] remove, and where does it "
        "move the start? Which two does the transpose swap?",
        "qkv has strides (S · 3 · H · D, 3 · H · D, H · D, D, 1). Index 1 removes the third, H · D, and moves the start by it.",
    ),
    solution=view_of_k,
    reasoning="An integer index removes a dimension and moves the start by index · stride. A transpose swaps two strides. Neither moves "
    "any data, so k keeps the steps of qkv: one token further means past that token's q, k and v.",
    inputs=inputs,
    truth=truth,
    rule="k keeps the steps of qkv: the index removes the dimension of size 3 and moves the start by its stride, and the transpose swaps two strides",
    mistakes=MISTAKES,
    parts=("start", "strides"),
    exact=True,
    refused=not_by("PyTorch found it: work it out without making a tensor", "torch"),
)
