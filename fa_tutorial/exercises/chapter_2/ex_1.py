import math
import random

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.watch import names_in


def contiguous_strides(shape):
    """Strides, in elements, of a contiguous row-major tensor of this shape, one for each dimension."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


RETURN = "tuple(reversed(strides))"
MISTAKES = {
    "the strides are in reverse order: the last one must be 1": (RETURN, "tuple(strides)"),
    "each stride includes its own dimension's size: multiply only the later sizes, so that the last stride is 1": (
        "        strides.append(step)\n        step *= size", "        step *= size\n        strides.append(step)"),
    "these strides are column-major: in a row-major tensor the last index runs fastest, not the first": [
        ("reversed(shape)", "shape"), (RETURN, "tuple(strides)")],
    "each stride is only the next size: multiply all later sizes": ("step *= size", "step = size"),
    "strides count elements, not bytes": (RETURN, "tuple(4 * step for step in reversed(strides))"),
}  # fmt: skip


def found_elsewhere(answer):
    """Why a right result isn't enough."""
    if "stride" in names_in(answer):
        return "PyTorch found the strides: work them out yourself"
    has_float = any(isinstance(step, float) for step in answer((2, 3)))
    return "a stride is an integer, and one of yours is a float: divide by // only" if has_float else ""


def inputs():
    yield case((2, 3))
    yield case((2, 3, 4))
    for _ in range(20):
        yield case(tuple(random.choices(range(1, 10), k=random.randint(1, 6))), fresh=True)
    yield case((), edge="scalar")
    yield case((2, 2**27 + 1, 2**27 + 1), edge="large")  # past 32 bits and float64's 2⁵³


EXERCISE = Exercise(
    task="Compute the strides of a contiguous tensor from its shape.",
    conditions={"scalar": "an empty shape has no strides", "large": "large strides are exact: use Python integers"},
    hints=(
        "In a (2, 3) tensor, how many elements lie between x[0, 0] and x[0, 1]? And between x[0, 0] and x[1, 0]?",
        "Walk through the shape from the end. Keep a running product that starts at 1: append it, then multiply it by the size.",
    ),
    solution=contiguous_strides,
    reasoning="The last index runs fastest, so its stride is 1. One step in an earlier index skips everything that the later indices "
    "span, which is the product of their sizes.",
    more="The package's version, layout.contiguous_strides, also checks its argument, and counts a size of 0 as 1, as PyTorch does.",
    inputs=inputs,
    truth=lambda shape: tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))),
    rule="stride[i] is the product of the sizes after i",
    mistakes=MISTAKES,
    exact=True,
    refused=found_elsewhere,
)
