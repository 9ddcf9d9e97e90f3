"""Chapter 14: the FP8 forward's arithmetic in PyTorch: e4m3's rounding (14.1), the tensor core's sums (14.6), the
loop."""

from __future__ import annotations

import torch

from fa_tutorial.decode import FP8, FP8_MAX
from fa_tutorial.fp8.quantise import BLOCK, Quantised, key_order

P_LOG2 = 8  # p is at most 2⁸, not 1 (14.4)
KEPT_BITS = 13  # below the leading bit of the largest term, in a tensor core's sum of FP8 products
PRODUCTS = 32  # of one wgmma


def to_e4m3(x: torch.Tensor) -> torch.Tensor:
    """x rounded to the nearest number of e4m3, ties to even, in x's dtype; beyond 448 it becomes 448 (14.1)."""
    return x.clamp(-FP8_MAX, FP8_MAX).to(FP8).to(x.dtype)


def tensor_core_sum(a: torch.Tensor, b: torch.Tensor, acc: torch.Tensor) -> torch.Tensor:
    """acc + a bᵀ as Hopper's FP8 wgmmas add it up, PRODUCTS at a time (14.6).

    a: [M, K], b: [N, K], acc: [M, N], float64. acc and the products are aligned to the largest of them,
    and what lies more than KEPT_BITS below its leading bit is cut off, towards zero.
    """
    for start in range(0, a.shape[1], PRODUCTS):
        part = slice(start, start + PRODUCTS)
        products = a[:, None, part] * b[None, :, part]  # [M, N, PRODUCTS]
        terms = torch.cat([products, acc[:, :, None]], dim=2)
        leading = torch.frexp(terms.abs().amax(dim=2, keepdim=True)).exponent - 1
        unit = torch.exp2((leading - KEPT_BITS).double())
        acc = ((terms / unit).trunc() * unit).sum(dim=2)
    return acc


def flash_forward(q: Quantised, k: Quantised, v: Quantised, D: int, dtype: torch.dtype, is_causal: bool,
                  ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """What forward.forward_kernel computes, but with sums in float32: block by block of keys, from the last to the
    first.

    Arguments and results as forward.flash_forward's.
    """
    (B, H_q, S_q, _), (H_k, S_k) = q.values.shape, k.values.shape[1:3]
    q_tile = q.values.float()
    q_scale = q.scales.repeat_interleave(BLOCK, dim=2)[:, :, :S_q, None]  # [B, H_q, S_q, 1]
    k_values, k_scales, v_values, v_scales = (x.repeat_interleave(H_q // H_k, dim=1) for x in (*k, *v))
    last_seen = torch.arange(S_q, device=q_tile.device)[:, None] + S_k - S_q if is_causal else S_k - 1
    m = q_tile.new_full((B, H_q, S_q, 1), -torch.inf)
    l, acc = torch.zeros_like(m), torch.zeros_like(q_tile)
    for j in reversed(range(k.scales.shape[2])):
        k_tile = k_values[:, :, j * BLOCK : (j + 1) * BLOCK].float()  # [B, H_q, keys, D]
        v_columns = v_values[:, :, :, j * BLOCK : (j + 1) * BLOCK].float()  # [B, H_q, D, columns], in key_order
        s = q_tile @ k_tile.mT * (q_scale * k_scales[:, :, j, None, None])  # times log2(e), [B, H_q, S_q, keys]
        offs_n = j * BLOCK + torch.arange(s.shape[3], device=s.device)
        s = s.where(offs_n <= last_seen, -torch.inf)
        m_new = torch.maximum(m, s.amax(dim=3, keepdim=True))
        shift = m_new.where(m_new > -torch.inf, 0.0)
        alpha = torch.exp2(m - shift)
        p = to_e4m3(torch.exp2(s - (shift - P_LOG2)))  # (14.4)
        l = alpha * l + p.sum(dim=3, keepdim=True)
        positions = torch.arange(v_columns.shape[3], device=s.device)
        p = torch.nn.functional.pad(p, (0, len(positions) - p.shape[3]))[:, :, :, key_order(positions)]  # (14.8)
        acc = alpha * acc + p @ v_columns.mT * v_scales[:, :, j, None, None]
        m = m_new
    l_or_one = l.where(l > 0, 1.0)
    lse = (m + torch.log2(l_or_one) - P_LOG2) / torch.log2(torch.tensor(torch.e))
    return (acc / l_or_one)[:, :, :, :D].to(dtype).contiguous(), lse[..., 0]
