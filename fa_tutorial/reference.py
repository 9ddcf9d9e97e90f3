"""Attention in float64: the one truth that every kernel, exercise and table is compared with.

Beside it stands plain attention in the inputs' own dtype, the three kernels that the course sets out to replace.
"""

from __future__ import annotations

import math

import torch

from fa_tutorial import hardware
from fa_tutorial.arguments import FLOAT_DTYPES_AND_64, check_attention, check_int


def causal_mask(S_q: int, S_k: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """(S_q, S_k) booleans, True where query i may see key j: j ≤ i + S_k − S_q (bottom-right aligned, as flash-attn 2.1
    and later)."""
    S_q, S_k = check_int("S_q", S_q, 0), check_int("S_k", S_k, 0)
    return torch.ones(S_q, S_k, dtype=torch.bool, device=device).tril(S_k - S_q)


def naive_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """Attention as three kernels, scores, softmax and weighted sum, in the inputs' dtype (0.1; FA1, algorithm 0).

    q: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D), H_q a multiple of H_k. scale: 1/√D unless given. Returns o like q.
    Holds two (B, H_q, S_q, S_k) matrices on the way. A query that sees no key (causal, S_q > S_k) gives NaN. TypeError
    and ValueError as check_attention.
    """
    check_attention(q, k, v, scale, dtypes=FLOAT_DTYPES_AND_64)
    S_q, S_k, D = q.shape[-2], k.shape[-2], q.shape[-1]
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    s = q @ k.transpose(-1, -2)  # [B, H_q, S_q, S_k]; one name throughout, so that what is done with is freed
    s = s / math.sqrt(D) if scale is None else s * scale
    if is_causal:
        s = s.masked_fill(~causal_mask(S_q, S_k, q.device), -math.inf)
    p = torch.softmax(s, dim=-1)
    return p @ v


def repeat_heads(x: torch.Tensor, H_q: int) -> torch.Tensor:
    """(B, H_k, S, D) as (B, H_q, S, D): each key head stands H_q / H_k times, side by side
    (grouped-query attention)."""
    return x if x.shape[1] == H_q else x.repeat_interleave(H_q // x.shape[1], dim=1)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False,
              scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """softmax(scale · q kᵀ) v in float64, and the natural-log LSE of the scaled scores (0.1).

    q: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D) with H_q a multiple of H_k (each key head serves H_q / H_k query heads).
    scale: a finite number, 1/√D unless given. Returns o (B, H_q, S_q, D) and lse (B, H_q, S_q), both float64. A query
    that sees no key gets o = 0 and lse = −inf. TypeError and ValueError as check_attention.
    """
    scale = check_attention(q, k, v, scale, dtypes=FLOAT_DTYPES_AND_64)
    S_q, S_k = q.shape[2], k.shape[2]
    q, k, v = q.double(), repeat_heads(k.double(), q.shape[1]), repeat_heads(v.double(), q.shape[1])
    s = scale * (q @ k.transpose(-1, -2))  # [B, H_q, S_q, S_k]
    if is_causal:
        s = s.masked_fill(~causal_mask(S_q, S_k, q.device), -math.inf)
    lse = torch.logsumexp(s, dim=-1)
    p = torch.where(lse[..., None] == -math.inf, 0.0, torch.exp(s - lse[..., None]))
    return p @ v, lse


def gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, is_causal: bool = False,
    scale: float | None = None, dlse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(dq, dk, dv) of `attention` in float64, by autograd: of sum(do ∘ o), plus sum(dlse ∘ lse) where dlse is given.

    q, k, v, is_causal, scale as for attention; do: (B, H_q, S_q, D); dlse: (B, H_q, S_q). dk and dv are summed over the
    query heads of a key head. A query that sees no key gets dq = 0 and adds nothing to dk and dv.
    """
    with torch.enable_grad():
        inputs = [x.detach().double().requires_grad_() for x in (q, k, v)]
        o, lse = attention(*inputs, is_causal, scale)
        outputs, weights = ((o,), (do.double(),)) if dlse is None else ((o, lse), (do.double(), dlse.double()))
        return torch.autograd.grad(outputs, inputs, weights)


LSE_TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 1e-3, torch.float32: 1e-5, torch.float64: 1e-12}  # absolute


def assert_accurate(
    x: torch.Tensor, truth: torch.Tensor, plain: torch.Tensor, *, factor: float = 2.0, slack: float = 0.0
) -> None:
    """Raise AssertionError unless max|x − truth| ≤ factor · max|plain − truth| + 1e-5 + slack. NaN never passes.

    truth: float64. plain: PyTorch's unfused result in x's dtype. factor: 2 for o, 3 for gradients. slack: a further
    absolute error. In the interpreter a store to bf16 truncates instead of rounding: there one bf16 unit of the largest
    value is added. ValueError where truth or plain is not finite: then there is no bound, and x is not to blame.
    """
    if not x.shape == truth.shape == plain.shape:
        raise AssertionError(f"shapes differ: {tuple(x.shape)}, truth {tuple(truth.shape)}, plain {tuple(plain.shape)}")
    if x.dtype != plain.dtype:
        raise AssertionError(f"dtype is {x.dtype}, want {plain.dtype}")
    if not x.numel():
        return
    truncated = x.dtype == torch.bfloat16 and hardware.interpreter_on()
    x, truth, plain = (tensor.detach().double().cpu() for tensor in (x, truth, plain))
    for name, tensor in (("truth", truth), ("plain", plain)):
        if not_finite(tensor):
            raise ValueError(
                f"there is no bound to compare with: {not_finite(tensor)} of {tensor.numel()} elements of `{name}` "
                f"are NaN or inf"
            )
    if not_finite(x):
        raise AssertionError(f"{not_finite(x)} of {x.numel()} elements are NaN or inf")
    unit = torch.finfo(torch.bfloat16).eps * float(truth.abs().max()) if truncated else 0.0
    bound = factor * float((plain - truth).abs().max()) + 1e-5 + slack + unit
    error = float((x - truth).abs().max())
    if error > bound:
        raise AssertionError(f"largest error {error:.3g}, bound {bound:.3g}")


def not_finite(x: torch.Tensor) -> int:
    """How many elements are NaN or inf."""
    return x.numel() - int(torch.isfinite(x).sum())


def assert_lse_accurate(lse: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise AssertionError unless lse (float32) is the float64 `truth` within LSE_TOLERANCE[dtype], or 1e-6 of it; −inf
    must be −inf.

    The relative part is for logits in the thousands, where float32 itself is coarser than the absolute one.
    """
    torch.testing.assert_close(lse.double().cpu(), truth.cpu(), rtol=1e-6, atol=LSE_TOLERANCE[dtype])
