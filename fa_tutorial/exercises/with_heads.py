"""Launches a kernel that takes its (B, H, S, D) tensors as Heads, for the exercises of chapter 7."""

from typing import Any

import torch

from fa_tutorial.tiles import heads


class WithHeads:
    """A kernel that gets Heads in place of each tensor of four dimensions; other arguments stay as they are."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.fn = kernel, kernel.fn

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **meta: self.kernel[grid](*(heads(x) if torch.is_tensor(x) and x.ndim == 4 else x for x in args), **meta)


def with_heads(answer: Any) -> Any:
    """The kernel as WithHeads; what is no kernel stays as it is, and the harness says so."""
    return WithHeads(answer) if hasattr(answer, "fn") else answer
