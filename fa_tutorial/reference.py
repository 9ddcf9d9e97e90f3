"""Attention in float64: the one truth that every kernel, exercise and table is compared with.

Beside it stands plain attention in the inputs' own dtype, the three kernels that the course sets out to replace.
"""

from __future__ import annotations

import math

import torch

from fa_tutorial.arguments import check_finite, check_int, check_tensor


def causal_mask(S_q: int, S_k: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """(S_q, S_k) booleans, True where query i may see key j: j ≤ i + S_k − S_q (bottom-right aligned, as flash-attn 2.1 and later)."""
    S_q, S_k = check_int("S_q", S_q, 0), check_int("S_k", S_k, 0)
    return torch.ones(S_q, S_k, dtype=torch.bool, device=device).tril(S_k - S_q)


def naive_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
    """Attention as three kernels, scores, softmax and weighted sum, in the inputs' dtype (0.1; FA1, algorithm 0).

    q: (B, H, S_q, D); k, v: (B, H, S_k, D). Returns o (B, H, S_q, D). Holds two (B, H, S_q, S_k) matrices on the way.
    A query that sees no key (causal, S_q > S_k) gives NaN.
    """
    S_q, S_k, D = q.shape[-2], k.shape[-2], q.shape[-1]
    s = q @ k.transpose(-1, -2) / math.sqrt(D)  # [B, H, S_q, S_k]
    if is_causal:
        s = s.masked_fill(~causal_mask(S_q, S_k, q.device), -math.inf)
    p = torch.softmax(s, dim=-1)
    return p @ v


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False,
              scale: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """softmax(scale · q kᵀ) v in float64, and the natural-log LSE of the scaled scores (0.1).

    q: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D) with H_q a multiple of H_k (each key head serves H_q / H_k query heads).
    scale: a finite number, 1/√D unless given. Returns o (B, H_q, S_q, D) and lse (B, H_q, S_q), both float64. A query that sees no key gets
    o = 0 and lse = −inf. A NaN or inf in a key or value that a query may not see does not reach it.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, tensor, ndim=4)
    B, H_q, S_q, D = q.shape
    H_k, S_k = k.shape[1], k.shape[2]
    if k.shape != v.shape or (k.shape[0], k.shape[3]) != (B, D):
        raise ValueError(f"k and v must have one shape and q's B and D, got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    if D == 0:
        raise ValueError(f"D must be at least 1, got q of shape {tuple(q.shape)}")
    if H_q % H_k if H_k else H_q:
        raise ValueError(f"query heads must be a multiple of key heads, got {H_q} and {H_k}")
    q, k, v = q.double(), k.double(), v.double()
    if H_k:
        k, v = k.repeat_interleave(H_q // H_k, dim=1), v.repeat_interleave(H_q // H_k, dim=1)
    scale = 1 / math.sqrt(D) if scale is None else check_finite("scale", scale)
    s = scale * (q @ k.transpose(-1, -2))  # [B, H_q, S_q, S_k]
    if is_causal:
        s = s.masked_fill(~causal_mask(S_q, S_k, q.device), -math.inf)
    lse = torch.logsumexp(s, dim=-1)
    p = torch.where(lse[..., None] == -math.inf, 0.0, torch.exp(s - lse[..., None]))
    return _weighted_values(p, v, is_causal), lse


def _weighted_values(p: torch.Tensor, v: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """p v where a hidden key's NaN or inf does not leak: 0 · NaN is NaN, so hidden values are taken out row by row."""
    if not is_causal or bool(torch.isfinite(v).all()):
        return p @ v
    seen = causal_mask(p.shape[-2], p.shape[-1], p.device)
    o = p.new_empty(*p.shape[:-1], v.shape[-1])
    for i in range(p.shape[-2]):
        o[..., i, :] = (p[..., i, seen[i]].unsqueeze(-2) @ v[..., seen[i], :]).squeeze(-2)
    return o
