"""Watches what PyTorch multiplies while an answer runs, for exercises that ask for tiles: a right result must not come from the whole matrices."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2), "mv": (0, 1), "addmv": (1, 2), "dot": (0, 1), "mul": (0, 1)}


class Products(TorchDispatchMode):
    """Notes the largest product of two tensors, in multiply-adds: each matrix of a batch is a product of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.largest: tuple[int, list[tuple[int, ...]]] = (0, [])

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_")
        if name in PRODUCTS:
            factors = [args[place] for place in PRODUCTS[name]]
            if all(isinstance(factor, torch.Tensor) and factor.ndim for factor in factors):
                shapes = [tuple(factor.shape[-2:]) if "bmm" in name else tuple(factor.shape) for factor in factors]
                steps = result.numel() if name == "mul" else math.prod(shapes[0]) * (shapes[1][1] if len(shapes[1]) > 1 else 1)
                self.largest = max(self.largest, (steps, shapes))
        return result


class Tiles(Products):
    """For a product of a (M, K) and b (K, N) by tiles: no product may take more multiply-adds than one tile's step, and c has a's dtype."""

    def __init__(self, a: torch.Tensor, b: torch.Tensor, block_m: int, block_n: int, block_k: int) -> None:
        super().__init__()
        self.dtype = a.dtype
        self.whole = a.shape[0] * a.shape[1] * b.shape[1]
        self.step = block_m * block_n * block_k
        self.is_cut = block_m < a.shape[0] and block_n < b.shape[1] and block_k < a.shape[1]

    def complaint(self, result: Any) -> str:
        steps, shapes = self.largest
        if self.is_cut and steps >= self.whole:
            return "all of a and all of b go into one product: multiply a tile of a by a tile of b"
        if self.is_cut and steps > self.step:
            parts = " and ".join(map(str, shapes))
            return f"a product takes parts of shape {parts}: a step multiplies a tile of a, block_m × block_k, by a tile of b, block_k × block_n"
        if isinstance(result, torch.Tensor) and result.dtype != self.dtype:
            return f"c has dtype {result.dtype}, want a's: the accumulator is float32, what is stored is not"
        return ""
