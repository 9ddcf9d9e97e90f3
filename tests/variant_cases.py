"""What the tests of the variants share: cases, and attention by its definition, a dense matrix of scores and a dense mask."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from attention_cases import Case
from buffers import copy_of, guarded_outputs, randn, unchanged

from fa_tutorial import flash_attention, reference


@dataclass(frozen=True)
class VariantCase(Case):
    """One call of a variant, and of its backward. alibi: "heads" or "batch"; attn_mask: the shape
    of a float mask, mask_seen: of one of booleans."""

    D: int = 24
    B: int = 1
    H_k: int = 1
    window: tuple[int, int] | None = None
    softcap: float | None = None
    alibi: str | None = None
    attn_mask: tuple[int, ...] | None = None
    mask_seen: tuple[int, ...] | None = None
    sinks: bool = False

    def options(self) -> dict[str, Any]:
        """flash_attention's arguments beside q, k and v."""
        options = {"is_causal": self.is_causal, "scale": self.scale, "window": self.window, "softcap": self.softcap}
        if self.alibi:
            slopes = 0.3 * randn(self.B, self.H_q, seed=6).abs()
            options["alibi_slopes"] = slopes if self.alibi == "batch" else slopes[0]
        if self.attn_mask:
            options["attn_mask"] = randn(*self.attn_mask, dtype=self.dtype, seed=7)
        if self.mask_seen:
            options["attn_mask"] = randn(*self.mask_seen, seed=7) > -0.7  # three of four
        if self.sinks:
            options["sinks"] = randn(self.H_q, seed=8)
        return options


LEARNED = ("attn_mask", "sinks")  # options that have a gradient, unless they are booleans


def seen(S_q: int, S_k: int, is_causal: bool, window: tuple[int, int] | None) -> torch.Tensor:
    """(S_q, S_k) booleans: the definition of flash_attention's docstring."""
    distance = torch.arange(S_k)[None, :] - (torch.arange(S_q)[:, None] + S_k - S_q)
    mask = torch.ones(S_q, S_k, dtype=torch.bool)
    if is_causal:
        mask &= distance <= 0
    if window is not None and window[0] >= 0:
        mask &= distance >= -window[0]
    if window is not None and window[1] >= 0:
        mask &= distance <= window[1]
    return mask


def dense(
    q, k, v, *, is_causal=False, scale=None, window=None, softcap=None, alibi_slopes=None, attn_mask=None, sinks=None, mask=None, kept=None
):
    """o and lse in q's dtype by the definition. mask: (…, S_q, S_k) booleans in place of is_causal and window; kept: 0, or dropout's 1 /
    (1 − p)."""
    (B, H_q, S_q, D), S_k = q.shape, k.shape[2]
    s = (q @ reference.repeat_heads(k, H_q).mT) * (D**-0.5 if scale is None else scale)
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if alibi_slopes is not None:
        distance = torch.arange(S_q, device=q.device)[:, None] + S_k - S_q - torch.arange(S_k, device=q.device)
        s = s - alibi_slopes.expand(B, H_q)[:, :, None, None].to(q.dtype) * distance.abs().to(q.dtype)
    mask = seen(S_q, S_k, is_causal, window).to(q.device) if mask is None else mask
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        mask = mask & attn_mask
    elif attn_mask is not None:
        s = s + attn_mask.to(q.dtype)
    s = s.masked_fill(~mask, -math.inf)
    logits = s if sinks is None else torch.cat([s, sinks.to(q.dtype)[:, None, None].expand(B, -1, S_q, 1)], dim=-1)
    lse = torch.logsumexp(logits, dim=-1)
    p = torch.where(mask & (lse[..., None] > -math.inf), torch.exp(s - lse[..., None]), 0.0)
    return (p if kept is None else p * kept.to(p.dtype)) @ reference.repeat_heads(v, H_q), lse


def differentiate(attend, tensors, options, do, dlse=None):
    """o, lse and the gradients of q, k, v and of what options hold of LEARNED."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in tensors]
        given = {name: options[name] for name in LEARNED if options.get(name) is not None}
        learned = {name: x.detach().requires_grad_() for name, x in given.items() if x.is_floating_point()}
        o, lse = attend(*leaves, **(options | learned))
        loss = (o * do.to(o.dtype)).sum()
        if dlse is not None:
            loss = loss + (lse.where(lse > -math.inf, 0.0) * dlse.to(lse.dtype)).sum()
        gradients = torch.autograd.grad(loss, [*leaves, *learned.values()])
    return o.detach(), lse.detach(), dict(zip(["dq", "dk", "dv", *learned], gradients, strict=True))


def call(q, k, v, **options):
    return flash_attention(q, k, v, return_lse=True, **options)


def double(options: dict[str, Any]) -> dict[str, Any]:
    return {name: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for name, x in options.items()}


def assert_like_dense(got, tensors, options, do, dlse=None) -> None:
    """o, lse and the gradients are as accurate as DESIGN's bound asks, against `dense` in float64."""
    tensors = [copy_of(x) for x in tensors]
    o, lse, gradients = got
    truth, truth_lse, truth_gradients = differentiate(dense, [x.double() for x in tensors], double(options), do.double(), dlse)
    plain, _, plain_gradients = differentiate(dense, tensors, options, do, dlse)
    reference.assert_lse_accurate(lse, truth_lse, tensors[0].dtype)
    checks = [("o", o, truth, plain, 2.0)]
    checks += [(name, x, truth_gradients[name], plain_gradients[name], 3.0) for name, x in gradients.items()]
    for name, x, want, peer, factor in checks:
        # A sum of few numbers may be exact by luck in the peer: one rounding of the largest value is allowed all the same.
        slack = torch.finfo(tensors[0].dtype).eps * float(want.abs().max()) if want.numel() and tensors[0].dtype != torch.float32 else 0.0
        try:
            reference.assert_accurate(x, want, peer.nan_to_num(0.0).to(x.dtype), factor=factor, slack=slack)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def check(case: VariantCase) -> None:
    """flash_attention's variant and its gradients are accurate, write nothing else, and leave what they were given."""
    tensors, (do, dlse) = case.inputs(), case.output_gradients()
    options = case.options()
    given = [x for x in (*tensors, do, *options.values()) if isinstance(x, torch.Tensor)]
    with unchanged(*given), guarded_outputs():
        got = differentiate(call, tensors, options, do, dlse)
    assert_like_dense(got, tensors, options, do, dlse)
