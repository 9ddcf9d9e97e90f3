"""Exercise 2.2, flat_offset."""

import math
import random

from fa_tutorial.exercises.harness import Exercise, case


def flat_offset(index, strides):
    """How many elements after the first one the element at `index` stands."""
    return sum(i * stride for i, stride in zip(index, strides, strict=True))


MISTAKES = {
    "no_strides": "the strides are not used: one step in index i moves stride[i] elements",
    "no_index": "the sizes of the steps are added without the index",
    "product": "the products are multiplied: add them",
    "from_one": "1 is added: the first element has offset 0",
    "reversed": "the strides are taken in reverse order",
    "last_is_one": "the last stride is taken for 1: in a view it need not be",
    "bytes": "the offset is counted in bytes: strides count elements",
    "no_last": "the last index is left out",
    "no_first": "the first index is left out",
    "sorted": "the strides are sorted first: each belongs to its own index",
    "zero_is_one": "a stride of 0 is taken for 1: an expanded dimension does not move",
    "two": "only two dimensions are added up",
    "int32": "large offsets must be exact: stay with Python integers",
}

CONDITIONS = {
    "scalar": "no dimensions: the only element has offset 0",
    "large": "large offsets must be exact: stay with Python integers",
}


def twin(index, strides, mistake=None):
    steps = {"reversed": strides[::-1], "last_is_one": (*strides[:-1], 1)[: len(strides)], "sorted": tuple(sorted(strides, reverse=True)),
             "zero_is_one": tuple(stride or 1 for stride in strides)}.get(mistake, strides)  # fmt: skip
    moved = [i * step for i, step in zip(index, steps, strict=True)]
    return {
        "no_strides": sum(index),
        "no_index": sum(strides),
        "product": math.prod(moved),
        "from_one": sum(moved) + 1,
        "bytes": 4 * sum(moved),
        "no_last": sum(moved[:-1]),
        "no_first": sum(moved[1:]),
        "two": sum(moved[:2]),
        "int32": (sum(moved) + 2**31) % 2**32 - 2**31,
    }.get(mistake, sum(moved))


def inputs():
    rule = "the offset is Σ index[i] · stride[i]"
    yield case((1, 2), (10, 3), otherwise=rule)
    yield case((0, 0), (4, 1), otherwise="the first element has offset 0")
    yield case((1, 2), (1, 3), otherwise="the strides may stand in any order: a transposed view has them swapped")
    yield case((5, 2), (0, 1), otherwise="a stride of 0 counts as 0: an expanded dimension does not move")
    yield case((2, 1, 3), (12, 4, 1), otherwise="any number of dimensions: add up all of them")
    for _ in range(20):
        ndim = random.randint(1, 5)
        index, strides = (tuple(random.randint(0, high) for _ in range(ndim)) for high in (99, 9_999))
        yield case(index, strides, on="a random case", fresh=True)
    yield case((), (), edge="scalar")
    yield case((70_001, 3), (1_000_003, 1), edge="large")


EXERCISE = Exercise(
    id="2.2",
    task="Find where an element lies: its offset from the tensor's first element.",
    conditions=CONDITIONS,
    hints=(
        "One step in index i moves stride[i] elements. How far do index[i] steps move, and all the indices together?",
        "sum(i * stride for i, stride in zip(index, strides)); nothing else about the tensor is needed, not even its shape.",
    ),
    solution=flat_offset,
    reasoning="Each index moves by its own stride, whatever the others do. That is why a transpose only swaps strides, an expand only sets one "
    "to 0, and a kernel that is given the strides works on every view.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
)
