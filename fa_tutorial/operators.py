"""Chapters 5 to 11: what the registered PyTorch operators and the public functions share.

That is autocast, and a node of autograd's graph where somebody asks for a gradient. torch.library.register_autograd
would make that node too, in twice the host's time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

LIBRARY = torch.library.Library("fa_tutorial", "DEF")


def autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors in the autocast dtype where autocast is on for their device. What is no floating-point tensor is left
    as it is, to be refused later."""
    kind = getattr(getattr(tensors[0], "device", None), "type", None)
    if kind not in ("cuda", "cpu") or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(
        x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != torch.float64 else x
        for x in tensors
    )


def nothing_seen(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse of queries that see no key: 0, and −inf in float32."""
    return torch.zeros_like(q, memory_format=torch.contiguous_format), q.new_full(
        q.shape[:3], -math.inf, dtype=torch.float32
    )


def below_autograd(operator, *arguments):
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*arguments)


def differentiable(function: type[torch.autograd.Function], operator) -> Callable:
    """The operator's implementation for autograd's dispatch key: a node of the graph where somebody asks for a
    gradient."""

    def run(*arguments):
        asked = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in arguments)
        return function.apply(*arguments) if asked else below_autograd(operator, *arguments)

    return run


def once_differentiable(operator) -> type[torch.autograd.Function]:
    """A backward operator as a node of autograd's graph that cannot be differentiated."""

    class OnceDifferentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *arguments):
            return below_autograd(operator, *arguments)

        @staticmethod
        def backward(ctx, *gradients):
            raise RuntimeError(
                "flash_attention is once differentiable: autograd cannot see into its backward kernels. "
                "For second derivatives use torch.nn.functional.scaled_dot_product_attention with SDPBackend.MATH"
            )

    return OnceDifferentiable


def gradients_of(operator, *arguments):
    """What the backward operator gives. Only with create_graph=True can somebody want to differentiate it."""
    return operator(*arguments) if torch.is_grad_enabled() else below_autograd(operator, *arguments)
