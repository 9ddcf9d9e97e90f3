"""Chapter 1: a softmax that never overflows, its maximum and sum in one pass, over blocks in any order.

The pair (m, l) of running maximum and running sum describes the part of a row seen so far. Pairs merge in any order,
and a weighted sum of values can be carried along (Milakov and Gimelshein, 2018, arXiv:1805.02867). A wrong type or
dtype raises TypeError, a wrong shape or value ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from fa_tutorial.arguments import check_alike, check_int, check_tensor

# running sums need at least float32; the kernels keep theirs in float32 too
RUNNING_DTYPES = (torch.float32, torch.float64)


def safe_softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension, shifted by each row's maximum so that nothing overflows (1.3).

    x: (..., n), any float dtype, n ≥ 1. Returns y like x. A row of only −inf gives NaN, as torch.softmax does.
    """
    check_tensor("x", x)
    check_row(x)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # a sum of more than 65,504 ones overflows float16
    m = wide.amax(dim=-1, keepdim=True)
    p = torch.exp(wide - m)
    return (p / p.sum(dim=-1, keepdim=True)).to(x.dtype)


def check_row(x: torch.Tensor) -> None:
    """Raise ValueError if x's last dimension is empty, because nothing has no maximum."""
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must have at least one element in its last dimension, got shape {tuple(x.shape)}")


def online_normalizer(x: torch.Tensor) -> tuple[float, float]:
    """Maximum m and sum l = Σ exp(x − m) of a vector, in one pass (1.5, 1.6; Milakov and Gimelshein, algorithm 3).

    x: (n,), any float dtype; −inf entries add nothing. An empty or fully masked vector gives (−inf, 0).
    """
    check_tensor("x", x, ndim=1)
    m, l = -math.inf, 0.0
    for value in x.tolist():
        if value == -math.inf:
            continue  # exp(−inf − m) adds nothing, and while m is −inf the difference would be NaN
        m_new = max(m, value)
        l = l * math.exp(m - m_new) + math.exp(value - m_new)
        m = m_new
    return m, l


def merge(m_a, l_a, m_b, l_b) -> tuple[torch.Tensor, torch.Tensor]:
    """The pair (m, l) of two parts taken together (1.8). Associative and commutative; the empty part (−inf, 0) is
    neutral.

    m_a, l_a, m_b, l_b: numbers, which become float64, or tensors whose shapes broadcast. Returns two tensors of the
    broadcast shape.
    """
    given = (m_a, l_a, m_b, l_b)
    m_a, l_a, m_b, l_b = (x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=torch.float64) for x in given)
    m = torch.maximum(m_a, m_b)
    shift = torch.where(m == -math.inf, 0.0, m)  # two empty parts: exp(−inf − 0) is 0, and exp(−inf + inf) would be NaN
    return m, l_a * torch.exp(m_a - shift) + l_b * torch.exp(m_b - shift)


def online_softmax(x: torch.Tensor, block: int) -> torch.Tensor:
    """Softmax over the last dimension in two passes over blocks of `block` columns (1.9).

    x: (..., n), float32 or float64, n ≥ 1; the last block may be shorter. Returns y like x. The first pass merges the
    pairs of the blocks, and the second writes exp(x − m) / l. A row of only −inf gives NaN, as torch.softmax does.
    """
    check_tensor("x", x, dtypes=RUNNING_DTYPES)
    check_row(x)
    block = check_int("block", block)
    m = torch.full((*x.shape[:-1], 1), -math.inf, dtype=x.dtype, device=x.device)
    l = torch.zeros_like(m)
    for part in x.split(block, dim=-1):
        m_part = part.amax(dim=-1, keepdim=True)
        shift = torch.where(m_part == -math.inf, 0.0, m_part)
        m, l = merge(m, l, m_part, torch.exp(part - shift).sum(dim=-1, keepdim=True))
    return torch.cat([torch.exp(part - m) / l for part in x.split(block, dim=-1)], dim=-1)


def running_weighted_sum(
    blocks: Iterable[tuple[torch.Tensor, torch.Tensor]], D: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """One query's attention in one pass, (1.10) to (1.12): o = softmax(scores) · values, and lse = log Σ exp(scores).

    blocks: yields the keys' (s, v) block by block, s: (n,), v: (n, D), n ≥ 1, both float32 or both float64, and each is
    used once. Returns o (D,) and lse (0-dimensional). A block of only −inf changes nothing. With no key at all, o is 0
    and lse is −inf, both in float32.
    """
    m, l, acc = torch.tensor(-math.inf), torch.tensor(0.0), torch.zeros(check_int("D", D))
    for s, v in blocks:
        check_block_of_keys(s, v, D)
        m_new = torch.maximum(m, s.amax())
        if m_new == -math.inf:
            continue  # nothing seen yet
        p = torch.exp(s - m_new)  # [n]
        alpha = torch.exp(m - m_new)
        l = alpha * l + p.sum()
        acc = alpha * acc + p @ v  # [D]
        m = m_new
    if l == 0:
        return acc, m
    return acc / l, m + torch.log(l)


def check_block_of_keys(s: torch.Tensor, v: torch.Tensor, D: int) -> None:
    """Raise TypeError or ValueError unless s: (n,) and v: (n, D) are a block of running_weighted_sum."""
    check_tensor("s", s, ndim=1, dtypes=RUNNING_DTYPES)
    check_tensor("v", v, ndim=2, dtypes=RUNNING_DTYPES)
    check_alike(s=s, v=v)
    check_row(s)
    if v.shape != (len(s), D):
        raise ValueError(f"v must have a row of D = {D} for each of {len(s)} scores, got shape {tuple(v.shape)}")
