"""The public door: flash_attention checks its arguments and picks the kernel."""

from __future__ import annotations

import torch

from fa_tutorial.arguments import check_attention
from fa_tutorial.forward import MAX_D, flash_forward

KERNELS = ("auto", "basic")


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    kernel: str = "auto",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale · q kᵀ) v with memory linear in the sequence length (FlashAttention-2, Dao, 2023).

    Shapes: q (B, H_q, S_q, D); k and v (B, H_k, S_k, D), H_q a multiple of H_k (grouped-query attention), 1 ≤ D ≤ 256; any strides.
    Dtypes: fp16, bf16, fp32, one for all three; sums are float32. Under torch.autocast the inputs are cast to the autocast dtype.
    is_causal: query i sees keys 0 … i + S_k − S_q (bottom-right aligned, as flash-attn 2.1 and later). scale: 1/√D unless given.
    kernel: "auto", or "basic" for the kernel of chapter 5.

    Returns o (B, H_q, S_q, D) in q's dtype; with return_lse also lse (B, H_q, S_q), float32, the natural logarithm of the sum of exponentials
    of the scaled scores. A query that sees no key gets o = 0 and lse = −inf.

    Raises TypeError for other dtypes, sparse or nested tensors and what is no tensor; ValueError for shapes, devices, head counts, D and
    scale; RuntimeError for CPU tensors where Triton's interpreter is off, and for inputs that ask for gradients, which come with chapter 7.
    """
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {', '.join(map(repr, KERNELS))}, got {kernel!r}")
    q, k, v = autocast(q, k, v)
    check_attention(q, k, v, scale, max_d=MAX_D)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise RuntimeError("flash_attention has no backward yet: call it under torch.no_grad(), or detach q, k and v")
    o, lse = run_forward(q, k, v, is_causal, scale)
    return (o, lse) if return_lse else o


def autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors in the autocast dtype where autocast is on for their device; what is no floating-point tensor is left as it is."""
    return tuple(_cast(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in tensors)


def _cast(x: torch.Tensor) -> torch.Tensor:
    kind = x.device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return x.to(torch.get_autocast_dtype(kind)) if on and x.dtype != torch.float64 else x


# A clean graph break: torch.compile runs the launch as eager does.
run_forward = torch.compiler.disable(flash_forward)
