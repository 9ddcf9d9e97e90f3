"""Exercise 2.1, contiguous_strides."""

import math
import random

import torch

from fa_tutorial.exercises.harness import Exercise, case


def contiguous_strides(shape):
    """Strides, in elements, of a contiguous row-major tensor of this shape, as a tuple."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


MISTAKES = {
    "column_major": "the strides are column-major, the first index running fastest: in a row-major tensor the last one does",
    "reversed": "the strides are in reverse order: the last one is 1",
    "own_size": "a dimension's own size does not count in its stride: only the later sizes do, so the last stride is 1",
    "bytes": "strides count elements, not bytes",
    "shape": "that is the shape: how far must an offset move for one step in each index?",
    "next_size": "each stride is the next size alone: take the product of all later sizes",
    "added": "the sizes are added: multiply them",
    "zero": "the strides of size 1 are set to 0: that is what expand does, a contiguous tensor has none",
    "float32": "large strides must be exact: stay with Python integers",
}

CONDITIONS = {
    "scalar": "a tensor without dimensions has no strides: an empty tuple",
    "large": "large strides must be exact: stay with Python integers",
}


def twin(shape, mistake=None):
    later = [shape[i + 1 :] for i in range(len(shape))]
    strides = [math.prod(sizes) for sizes in later]
    return {
        "column_major": lambda: tuple(math.prod(shape[:i]) for i in range(len(shape))),
        "reversed": lambda: tuple(reversed(strides)),
        "own_size": lambda: tuple(stride * size for stride, size in zip(strides, shape, strict=True)),
        "bytes": lambda: tuple(4 * stride for stride in strides),
        "shape": lambda: tuple(shape),
        "next_size": lambda: (*shape[1:], 1),
        "added": lambda: tuple(sum(sizes) or 1 for sizes in later),
        "zero": lambda: tuple(0 if size == 1 else stride for stride, size in zip(strides, shape, strict=True)),
        "float32": lambda: tuple(int(torch.tensor(sizes, dtype=torch.float32).prod()) for sizes in later),
    }.get(mistake, lambda: tuple(strides))()


def inputs():
    rule = "stride[i] is the product of the sizes after i"
    yield case((2, 3), otherwise=rule)
    yield case((2, 3, 4), otherwise=rule)
    yield case((5,), otherwise="nothing comes after the last dimension, so its stride is 1")
    yield case((3, 1, 2), otherwise="a size of 1 is a size like any other: it multiplies by 1")
    for _ in range(20):
        shape = tuple(random.randint(1, 9) for _ in range(random.randint(1, 6)))
        yield case(shape, on="a random shape", fresh=True)
    yield case((), edge="scalar")
    yield case((2, 4_099, 4_099), edge="large")  # past float32's 2²⁴, in a tensor that PyTorch can still make


EXERCISE = Exercise(
    id="2.1",
    task="Find the strides of a row-major tensor.",
    conditions=CONDITIONS,
    hints=(
        "How many elements lie between x[0, 0] and x[1, 0] in a (2, 3) tensor? And between x[0, 0] and x[0, 1]?",
        "Walk over the shape from its end with a running product that starts at 1: note it down, then multiply it by the size.",
    ),
    solution=contiguous_strides,
    reasoning="The last index runs fastest, so its stride is 1. A step in an earlier index skips everything that the later ones span, which is the "
    "product of their sizes.",
    more="The package's version, layout.contiguous_strides, counts a size of 0 as 1, as PyTorch does; such a tensor has no element to reach.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
)
