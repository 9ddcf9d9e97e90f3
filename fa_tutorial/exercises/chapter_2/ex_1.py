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
    "column_major": "these strides are column-major: in a row-major tensor the last index runs fastest, not the first",
    "reversed": "the strides are in reverse order: the last one must be 1",
    "own_size": "each stride includes its own dimension's size: multiply only the later sizes, so that the last stride is 1",
    "bytes": "strides count elements, not bytes",
    "shape": "that is the shape: how far do you move in memory when one index grows by 1?",
    "next_size": "each stride is only the next size: multiply all later sizes",
    "added": "you add the later sizes: multiply them",
    "zero": "dimensions of size 1 get stride 0: only expand makes such strides, a contiguous tensor has none",
    "float32": "large strides lose digits: use Python integers",
}

CONDITIONS = {
    "scalar": "an empty shape has an empty tuple of strides",
    "large": "large strides are exact: use Python integers",
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
    yield case((3, 1, 2), otherwise="a size of 1 counts like any other: it multiplies by 1")
    for _ in range(20):
        shape = tuple(random.randint(1, 9) for _ in range(random.randint(1, 6)))
        yield case(shape, on="a random shape", fresh=True)
    yield case((), edge="scalar")
    yield case((2, 4_099, 4_099), edge="large")  # past float32's 2²⁴, in a tensor that PyTorch can still make


EXERCISE = Exercise(
    id="2.1",
    task="Compute the strides of a contiguous tensor from its shape.",
    conditions=CONDITIONS,
    hints=(
        "In a (2, 3) tensor, how many elements lie between x[0, 0] and x[0, 1]? And between x[0, 0] and x[1, 0]?",
        "Walk through the shape from the end. Keep a running product that starts at 1: append it, then multiply it by the size.",
    ),
    solution=contiguous_strides,
    reasoning="The last index runs fastest, so its stride is 1. One step in an earlier index skips everything that the later indices span, which "
    "is the product of their sizes.",
    more="The package's version, layout.contiguous_strides, also checks its argument, and counts a size of 0 as 1, as PyTorch does.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
)
