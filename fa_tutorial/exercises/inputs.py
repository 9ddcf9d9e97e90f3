"""Random inputs of the exercises: values that once broke a softmax, and views with NaN around them."""

import math
from collections.abc import Iterator

import torch


def generator() -> torch.Generator:
    """A generator with a new seed each time: an answer that knows the inputs cannot pass."""
    fresh = torch.Generator()
    fresh.seed()
    return fresh


def vectors(draw: torch.Generator, *shape: int) -> Iterator[tuple[str, torch.Tensor]]:
    """(in words, float64 values) for each distribution that has once broken a softmax."""
    n = shape[-1]
    randn = torch.randn(*shape, generator=draw, dtype=torch.float64)
    yield "randn", randn
    yield "a maximum that keeps growing", torch.arange(n) * 0.7 + 0.1 * randn
    yield "a maximum at the start", -torch.arange(n) * 0.7 + 0.1 * randn
    yield "all values near −1e4", randn - 1e4
    yield "values up to ±1e4", 2e4 * torch.rand(*shape, generator=draw, dtype=torch.float64) - 1e4
    yield "equal values", torch.full(shape, 2.5, dtype=torch.float64)


def views(x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """x with other strides and a storage offset; what lies between and around its elements is NaN."""
    if x.ndim > 1:
        yield "a transposed view", x.transpose(-1, -2).contiguous().transpose(-1, -2)
    for words, step in (("a slice of a wider tensor", 1), ("every second column of a tensor", 2)):
        wide = torch.full((*x.shape[:-1], 3 + step * x.shape[-1]), math.nan, dtype=x.dtype)
        view = wide[..., 2 : 2 + step * x.shape[-1] : step]
        yield words, view.copy_(x)
