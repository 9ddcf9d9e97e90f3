"""Launching a kernel again without Triton's binder, which looks at every argument of every call and takes longer than short kernels run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch


def signature_of(*tensors: torch.Tensor | None) -> tuple:
    """All that decides how a kernel is compiled for these tensors, and on which grid it runs: shapes, strides, dtypes, devices, alignment."""
    return tuple([x if x is None else (x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % 16) for x in tensors])


class Launch:
    """A kernel, its number of programs, a function for each tensor that makes it the kernel's argument (a descriptor or Heads), and the constants.

    The first call goes the usual way, kernel[grid](…), and keeps the compiled kernel; later ones launch that.
    """

    def __init__(self, kernel, programs: int, to_argument: list[Callable], constants: dict[str, Any]):
        self.kernel, self.grid, self.to_argument, self.constants = kernel, (programs, 1, 1), to_argument, constants
        self.compiled = None

    def __call__(self, tensors: Iterable[torch.Tensor], arguments: tuple) -> None:
        on_tiles = [to_argument(x) for to_argument, x in zip(self.to_argument, tensors, strict=True)]
        if self.compiled is None:
            self.compiled = self.kernel[self.grid](*on_tiles, *arguments, **self.constants)  # None in the interpreter
            if self.compiled is not None:
                names = self.kernel.arg_names[len(on_tiles) + len(arguments) :]
                self.in_order = [self.constants[name] for name in names]  # as the kernel's signature has them
        else:
            self.compiled[self.grid](*on_tiles, *arguments, *self.in_order)


MAX_PREPARED = 4096
_prepared: dict[Hashable, Launch] = {}


def launch_prepared(key: Hashable, prepare: Callable[[], Launch], tensors: Iterable[torch.Tensor], arguments: tuple) -> None:
    """Launch what prepare() returned for this key and these integers, which must hold all that the launch depends on but pointers and floats."""
    key = key, tuple(x for x in arguments if x is None or isinstance(x, int))
    prepared = _prepared.get(key)
    if prepared is None:
        if len(_prepared) == MAX_PREPARED:
            _prepared.clear()
        prepared = _prepared[key] = prepare()
    prepared(tensors, arguments)
