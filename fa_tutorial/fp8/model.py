"""Chapter 14: the FP8 forward's arithmetic in PyTorch: e4m3's rounding (14.1), the quantiser, the tensor core's sums
(14.6), the loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from fa_tutorial.decode import FP8, FP8_MAX
from fa_tutorial.fp8.quantise import BLOCK, COLUMNS, LEAST_SCALE, Quantised, key_order, random_hadamard

P_LOG2 = 8  # p is at most 2⁸, not 1 (14.4)
KEPT_BITS = 14  # from the largest exponent of a term on, in a tensor core's sum of FP8 products
PRODUCTS = 32  # of one wgmma
OF_ZERO = -500  # in place of an exponent: below all others


def to_e4m3(x: torch.Tensor) -> torch.Tensor:
    """x rounded to the nearest number of e4m3, ties to even, in x's dtype; beyond 448 it becomes 448 (14.1)."""
    return x.clamp(-FP8_MAX, FP8_MAX).to(FP8).to(x.dtype)


def quantise(x: torch.Tensor, *, factor: float = 1.0, rotate: bool = False, as_columns: bool = False) -> Quantised:
    """As quantise.quantise, whose kernel takes milliseconds a block of rows in Triton's interpreter."""
    S, D = x.shape[2:]
    block_d = 64 if D <= 64 else 128
    x = torch.nn.functional.pad(x.float(), (0, block_d - D, 0, -S % BLOCK))
    if rotate:
        x, factor = x @ random_hadamard(block_d, x.dtype, x.device), factor * block_d**-0.5
    blocks = (x * factor).unflatten(2, (-1, BLOCK))
    scales = (blocks.abs().amax(dim=(3, 4)) / FP8_MAX).clamp(min=LEAST_SCALE.value)
    y = to_e4m3(blocks * (1 / scales)[..., None, None]).flatten(2, 3)
    y = y[:, :, key_order(torch.arange(-(-S // COLUMNS) * COLUMNS))].mT if as_columns else y[:, :, :S]
    return Quantised(y.to(FP8).contiguous(), scales)


def exponents(x: torch.Tensor) -> torch.Tensor:
    """e of each number x, 2^e ≤ |x| < 2^(e + 1)."""
    return (torch.frexp(x).exponent - 1).where(x != 0, OF_ZERO)


def tensor_core_sum(a: torch.Tensor, b: torch.Tensor, acc: torch.Tensor) -> torch.Tensor:
    """acc + a bᵀ as Hopper's FP8 wgmmas add it up, PRODUCTS at a time (14.6).

    a: [M, K], b: [N, K], acc: [M, N], float64. acc and the products are aligned to the largest exponent,
    a product's being the sum of its factors'. KEPT_BITS are kept from there on, and the rest is cut off,
    towards zero.
    """
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"the last dimension of both is summed: a is {[*a.shape]}, b is {[*b.shape]}")
    for start in range(0, a.shape[1], PRODUCTS):
        x, y = (z[:, start : start + PRODUCTS] for z in (a, b))
        terms = torch.cat([x[:, None] * y[None], acc[:, :, None]], dim=2)  # [M, N, PRODUCTS + 1]
        largest = (exponents(x)[:, None] + exponents(y)[None]).amax(dim=2)  # [M, N]
        largest = torch.maximum(largest, exponents(acc))
        last_bit = torch.exp2((largest - (KEPT_BITS - 1)).double())[:, :, None]  # that is kept
        acc = ((terms / last_bit).trunc() * last_bit).sum(dim=2)
    return acc


def sums_in_float32(p, v, scale, alpha, l, acc, last_scale):
    """A block joins l and acc, all sums in float32. Arguments and results as sums_by_blocks'."""
    return alpha * l + p.sum(dim=1), alpha[:, None] * (last_scale / scale) * acc + p @ v


def sums_in_one_chain(p, v, scale, alpha, l, acc, last_scale):
    """As chapter 9's kernel: the tensor core's sum begins at alpha · acc, and l is summed in float32."""
    return alpha * l + p.sum(dim=1), tensor_core_sum(p, v.T, alpha[:, None] * (last_scale / scale) * acc)


def sums_in_two_chains(p, v, scale, alpha, l, acc, last_scale):
    """As sums_in_one_chain, but the tensor core sums l, too, as p times a column of ones, from alpha · l on."""
    l = tensor_core_sum(p, torch.ones_like(p[:1]), (alpha * l)[:, None])[:, 0]
    return l, sums_in_one_chain(p, v, scale, alpha, l, acc, last_scale)[1]


def sums_by_blocks(p, v, scale, alpha, l, acc, last_scale):
    """As this chapter's kernel: the tensor core's sums begin at zero in each block, acc's and l's. Returns l, acc.

    p: [rows, keys], v: [keys, D], numbers of e4m3, v's in units of scale. alpha, l: [rows]. acc: [rows, D], in units of
    last_scale, that of the block before; the acc that is returned is in units of scale.
    """
    new_l = tensor_core_sum(p, torch.ones_like(p[:1]), torch.zeros_like(l[:, None]))[:, 0]
    new = tensor_core_sum(p, v.T, torch.zeros_like(acc))
    return alpha * l + new_l, alpha[:, None] * (last_scale / scale) * acc + new


def flash_forward(q: Quantised, k: Quantised, v: Quantised, D: int, dtype: torch.dtype, is_causal: bool,
                  join: Callable = sums_in_float32) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """What forward.forward_kernel computes, head by head, in blocks of keys from the last to the first.

    Arguments and results as forward.flash_forward's, and join: how a block's p and v join l and acc. sums_by_blocks are
    the kernel's sums, and sums_in_float32 are faster. The short chains of q kᵀ are exact here.
    """
    (B, H_q, S_q, _), (H_k, S_k) = q.values.shape, k.values.shape[1:3]
    o, lse = q.scales.new_zeros(q.values.shape), q.scales.new_zeros(B, H_q, S_q)
    last_seen = torch.arange(S_q, device=o.device)[:, None] + S_k - S_q if is_causal else S_k - 1
    for b, h in itertools.product(range(B), range(H_q)):
        keys, values = (Quantised(*(x[b, h // (H_q // H_k)] for x in both)) for both in (k, v))
        o[b, h], lse[b, h] = one_head(Quantised(q.values[b, h], q.scales[b, h]), keys, values, last_seen, join)
    return o[..., :D].to(dtype).contiguous(), lse


def one_head(q: Quantised, k: Quantised, v: Quantised, last_seen: torch.Tensor | int, join: Callable):
    """flash_forward's o and lse of one head. last_seen: of each query, the last key that it sees."""
    q_tile = q.values.float()
    q_scale = q.scales.repeat_interleave(BLOCK)[: len(q_tile), None]  # [S_q, 1]
    m = q_tile.new_full((len(q_tile),), -torch.inf)
    l, acc, unit = torch.zeros_like(m), torch.zeros_like(q_tile), v.scales[-1]
    for j in reversed(range(len(k.scales))):
        k_tile = k.values[j * BLOCK : (j + 1) * BLOCK].float()  # [keys, D]
        v_tile = v.values[:, j * BLOCK : (j + 1) * BLOCK].float().T  # [columns, D], in key_order
        s = q_tile @ k_tile.T * (q_scale * k.scales[j])  # times log2(e), [S_q, keys]
        offs_n = j * BLOCK + torch.arange(s.shape[1], device=s.device)
        s = s.where(offs_n <= last_seen, -torch.inf)
        m_new = torch.maximum(m, s.amax(dim=1))
        shift = m_new.where(m_new > -torch.inf, 0.0)
        alpha = torch.exp2(m - shift)
        p = to_e4m3(torch.exp2(s - (shift - P_LOG2)[:, None]))  # (14.4)
        positions = torch.arange(len(v_tile), device=s.device)
        p = torch.nn.functional.pad(p, (0, len(positions) - p.shape[1]))[:, key_order(positions)]  # (14.8)
        l, acc = join(p, v_tile, v.scales[j], alpha, l, acc, unit)
        m, unit = m_new, v.scales[j]
    l_or_one = l.where(l > 0, 1.0)
    lse = (m + torch.log2(l_or_one) - P_LOG2) / torch.log2(torch.tensor(torch.e))
    return acc * unit / l_or_one[:, None], lse
