"""Chapter 8: launch a kernel again without Triton's binder, which inspects every argument of every call. That takes
longer than a short kernel runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch

from fa_tutorial.tiles import Heads


def signature_of(*tensors: torch.Tensor | None) -> tuple:
    """Everything about these tensors that decides how a kernel is compiled and on which grid it runs: shapes, strides,
    dtypes, devices, alignment."""
    return tuple([x if x is None else (x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % 16) for x in tensors])


class Launch:
    """A kernel, its number of programs, its constants, and for each tensor a function that makes the kernel's argument
    (a descriptor or Heads).

    The first call is the usual kernel[grid](…), and keeps the compiled kernel. Later calls launch that one, and give it
    addresses: of each tensor Triton's launcher asks the driver whether a GPU can reach it. keep: False if there will be
    no later call.
    """

    def __init__(
        self, kernel, programs: int, to_argument: list[Callable], constants: dict[str, Any], keep: bool = True
    ):
        self.kernel, self.grid, self.constants = kernel, (programs, 1, 1), constants
        self.to_argument, self.keep = to_argument, keep
        self.run = None

    def __call__(self, tensors: Iterable[torch.Tensor], arguments: tuple) -> None:
        on_tiles = [to_argument(x) for to_argument, x in zip(self.to_argument, tensors, strict=True)]
        if self.run is not None:
            addresses = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in arguments]
            self.run(*on_tiles, *addresses, *self.in_order)
            return
        self.compiled = self.kernel[self.grid](*on_tiles, *arguments, **self.constants)
        if self.compiled is not None:  # it is None in the interpreter
            names = self.kernel.arg_names[len(on_tiles) + len(arguments) :]
            self.in_order = [self.constants[name] for name in names]  # as the kernel's signature has them
            self.to_argument = [
                (lambda x, strides=x.strides: (x.data_ptr(), strides)) if isinstance(x, Heads) else to_argument
                for x, to_argument in zip(on_tiles, self.to_argument, strict=True)
            ]
            self.run = self.compiled[self.grid]


MAX_PREPARED = 4096
_prepared: dict[Hashable, Launch] = {}


def launch_prepared(
    key: Hashable, prepare: Callable[[], Launch], tensors: Iterable[torch.Tensor], arguments: tuple
) -> None:
    """Launch what prepare() returned for this key and these integers. Together they must hold everything that the
    launch depends on, except pointers and floats."""
    key = key, tuple(x for x in arguments if x is None or isinstance(x, int))
    prepared = _prepared.get(key)
    if prepared is None:
        if len(_prepared) == MAX_PREPARED:
            _prepared.clear()
        prepared = prepare()
        if prepared.keep:
            _prepared[key] = prepared
    prepared(tensors, arguments)
