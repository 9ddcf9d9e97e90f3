"""Kernels that are measured together, a little at a time in turns: a row of the results each."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fa_tutorial.bench.cases import Shape, about
from fa_tutorial.bench.sweep import About, Measurement
from fa_tutorial.bench.timing import graph_of, timed_in_turns

Rows = Callable[..., dict[Any, dict[str, Any]]]


def in_turns(abouts: dict[Any, About], rows: Rows, *args: Any, **sizes: Any) -> Iterator[Measurement]:
    """A measurement for each key: rows(*args, **sizes)[key], all measured when the first one is asked for."""
    measured = functools.cache(functools.partial(rows, *args, **sizes))
    for key, words in abouts.items():
        yield words, lambda key=key: measured()[key]


def by_shape(
    chapter: int, kernel: str, rows: Rows, shapes: Iterable[Shape], names: Iterable[Any], words: Callable = str
) -> Iterator[Measurement]:
    """in_turns of rows(shape), for each of the shapes. words: (name) -> the row's provider."""
    names = list(names)
    for shape in shapes:
        yield from in_turns({name: about(chapter, kernel, words(name), **vars(shape)) for name in names}, rows, shape)


def graphs_in_turns(calls: dict[Any, Callable[[], Any]], **options: Any) -> dict[Any, dict[str, Any]]:
    """timed_in_turns from CUDA graphs: in Python, a launch may take longer than a short kernel does."""
    graphs = {name: graph_of(call) for name, call in calls.items()}
    return timed_in_turns({name: graph.replay for name, graph in graphs.items()}, **options)
