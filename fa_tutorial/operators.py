"""What the registered PyTorch operators share: a node of autograd's graph where somebody asks for a gradient, and none where nobody does.

torch.library.register_autograd would do the same in twice the host's time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

LIBRARY = torch.library.Library("fa_tutorial", "DEF")


def below_autograd(operator, *arguments):
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*arguments)


def differentiable(function: type[torch.autograd.Function], operator) -> Callable:
    """The operator's implementation for autograd's dispatch key: a node of the graph where somebody asks for a gradient."""

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
