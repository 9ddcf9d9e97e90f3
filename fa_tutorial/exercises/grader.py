"""The parts of the graders of chapters that are not converted to harness.Exercise yet; it goes with the last of them.

A grader here is a function of the reader's answer that raises Wrong with the first diagnosis. Answers run in the harness.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from fa_tutorial.exercises import harness
from fa_tutorial.exercises.harness import (
    OTHERS,
    NotAttempted,
    PoisonedEmpty,
    Wrong,
    as_tensor,
    close,
    run,
    show,
    show_nested,
    unpack,
    where_in,
)
from fa_tutorial.exercises.harness import generator as fresh
from fa_tutorial.exercises.harness import kind as _kind
from fa_tutorial.exercises.harness import same as _same
from fa_tutorial.exercises.harness_kernel import GUARD, SENTINEL, Buffer, Stray, Trace, make_buffer, run_twice

__all__ = [
    "GUARD", "OTHERS", "SENTINEL", "Buffer", "NotAttempted", "PoisonedEmpty", "Stray", "Unwritten", "Wrong", "as_tensor", "close", "expect",
    "expect_equal", "fresh", "input_buffer", "misses_told", "output_buffer", "run", "run_kernel", "show", "show_nested", "told_on", "unpack",
    "where_in",
]  # fmt: skip


@contextlib.contextmanager
def told_on(on: str) -> Iterator[None]:
    """Put the input's description in front of a diagnosis that is raised inside."""
    try:
        yield
    except Wrong as wrong:
        raise (Wrong(f"{on}: {wrong}") if on else wrong) from wrong.__cause__


def expect(
    got: Any,
    want: Any,
    *,
    on: str,
    otherwise: str,
    suspects: Mapping[str, Any] | None = None,
    what: str = "",
    rtol: float = 1e-4,
    atol: float = 1e-6,
    values: bool = True,
) -> None:
    """Raise Wrong unless `got` is `want`, within atol + rtol · |want|. NaN passes only where want is NaN.

    on: the input, in words. otherwise: the diagnosis in general. suspects: diagnosis -> the value that this very mistake gives;
    the first whose value is `got` names the mistake. values: show the numbers; False for fresh inputs, whose message must not vary.
    """
    got, want = as_tensor(got, what or "the result"), as_tensor(want)
    subject = f"{what} = " if what else ""
    if got.shape != want.shape:
        raise Wrong(f"{otherwise}: {on} gives {what + ' ' if what else ''}shape {tuple(got.shape)}, want {tuple(want.shape)}")
    if close(got, want, rtol, atol):
        return
    named = ((name, as_tensor(value)) for name, value in (suspects or {}).items())
    diagnosis = next((name for name, value in named if value.shape == got.shape and close(got, value, rtol, atol)), otherwise)
    shown = f" gives {subject}{_difference(got, want, rtol, atol)}" if values else f", {what or 'the result'}"
    raise Wrong(f"{diagnosis}: {on}{shown}")


def _difference(got: torch.Tensor, want: torch.Tensor, rtol: float, atol: float) -> str:
    if want.numel() <= 4:
        return f"{harness._show_tensor(got)}, want {harness._show_tensor(want)}"
    bad = ~torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
    index = tuple(torch.nonzero(bad)[0].tolist())
    place = ", ".join(map(str, index))
    return f"{harness._show_tensor(got[index])} at [{place}], want {harness._show_tensor(want[index])}"


def expect_equal(got: Any, want: Any, *, on: str, otherwise: str, suspects: Mapping[str, Any] | None = None, values: bool = True) -> None:
    """Raise Wrong unless `got` equals `want` exactly: integers, or tuples of them. Floats that are whole numbers count as integers.

    The other arguments are those of `expect`.
    """
    if _same(got, want):
        return
    diagnosis = next((name for name, value in (suspects or {}).items() if _same(got, value)), otherwise)
    shown = show(got) if isinstance(got, int | float | tuple) else _kind(got)
    raise Wrong(f"{diagnosis}: {on}" + (f" gives {shown}, want {show(want)}" if values else ""))


def input_buffer(name: str, data: torch.Tensor, strides: Sequence[int] | None = None) -> Buffer:
    """A kernel's input holding `data`, with the given element strides (default: contiguous)."""
    return make_buffer(name, data.shape, data.dtype, strides, data)


def output_buffer(name: str, shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None) -> Buffer:
    """A kernel's output of this shape, with the given element strides (default: contiguous)."""
    return make_buffer(name, shape, dtype, strides, None)


class Unwritten(Wrong):
    """A kernel leaves elements of an output unwritten. written: bool, of the output's shape, True where it wrote."""

    def __init__(self, message: str, written: torch.Tensor) -> None:
        super().__init__(message)
        self.written = written


@contextlib.contextmanager
def misses_told(on: str, *, stray: str, unwritten: str) -> Iterator[None]:
    """Turn Stray and Unwritten, raised inside, into Wrong with the diagnosis that belongs to each. on: the input, in words."""
    try:
        yield
    except Unwritten as wrong:
        raise Wrong(f"{unwritten}: {on}, it {wrong}") from wrong
    except Stray as wrong:
        raise Wrong(f"{stray}: {on}, it {wrong.brief}") from wrong


def run_kernel(kernel: Any, grid: tuple[int, ...], args: Sequence[Any], **meta: int) -> list[torch.Tensor]:
    """Launch the reader's kernel on `grid` twice, and return its outputs as float64 CPU tensors.

    args: the kernel's positional arguments, Buffers and numbers. meta: its tl.constexpr arguments.
    Wrong if it is no kernel, takes other parameters, raises, writes to an input, or differs between the runs; Stray if it writes
    outside an output; Unwritten if it leaves an element of an output as it was. A NaN that it computes is returned, for the grader
    to explain. A read outside the tensors is Stray too where the interpreter can run the kernel: see _rehearse.
    """
    trace = Trace([arg for arg in args if isinstance(arg, Buffer)], strict=False)
    first, second = run_twice(kernel, grid, args, meta, trace)
    for name in first:
        _check_written(name, first[name], second[name])
    return list(first.values())


def _check_written(name: str, first: torch.Tensor, second: torch.Tensor) -> None:
    """Wrong if an element kept its poison in both runs, or the runs differ."""
    unwritten = torch.isnan(first) & (second == SENTINEL)
    if unwritten.any():
        place = ", ".join(map(str, torch.nonzero(unwritten)[0].tolist()))
        raise Unwritten(f"never writes {name}[{place}] of shape {tuple(first.shape)}", ~unwritten)
    if not _same(first, second):
        raise Wrong(
            f"two runs with the same input give a different {name}: it reads what it should write, or programs overwrite each other"
        )
