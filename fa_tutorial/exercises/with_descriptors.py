"""Launches a kernel with tensor descriptors in place of tensors, for exercise 8.3, and says in its terms why a tile has the wrong shape."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.running import Wrong, chain, where_in

hardware.require_triton("Exercise 8.3")
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402


class WithDescriptors:
    """A kernel that gets a descriptor in place of each of its first four arguments, the tensors q, k, v and o."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.fn = kernel, kernel.fn

    def __getitem__(self, grid: Any) -> Callable:
        def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, *numbers: Any, **meta: int) -> Any:
            rows = (meta["BLOCK_M"], meta["BLOCK_N"], meta["BLOCK_N"], meta["BLOCK_M"])
            descriptors = [TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, n, x.shape[3]])
                           for x, n in zip((q, k, v, o), rows, strict=True)]  # fmt: skip
            try:
                return self.kernel[grid](*descriptors, *numbers, **meta)
            except Exception as error:
                if not (why := _shape_fault(error)):
                    raise
                why += where_in(error, self.kernel)
            raise Wrong(why)

        return launch


def _shape_fault(error: BaseException) -> str:
    """Words for a tile that is still of four dimensions, or no longer; "" for another error."""
    root = chain(error)[-1]
    if isinstance(root, AssertionError) and "equal ranks" in str(root):
        return "a descriptor loads a tile of shape [1, 1, rows, D], and tl.dot takes two dimensions: drop the ones by .reshape([rows, D])"
    if isinstance(root, AssertionError) and any("store" in frame.name for frame in traceback.extract_tb(root.__traceback__)):
        return "o_desc.store takes a tile of shape [1, 1, BLOCK_M, D]: give o its ones back by .reshape([1, 1, BLOCK_M, D])"
    return ""
