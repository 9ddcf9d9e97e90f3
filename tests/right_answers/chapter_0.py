"""Right answers to chapter 0 in other words: loops, masks, floats that are whole, running totals, rooflines, bandwidths."""

import itertools

import torch


def flops_by_a_mask(B, H, S, D, is_causal):
    seen = torch.ones(S, S, dtype=torch.bool)
    pairs = int((seen.tril() if is_causal else seen).sum())
    return 4 * B * H * pairs * D


def bytes_block_by_block(S, D, block_m, itemsize):
    total = 0.0
    for start in range(0, S, block_m):
        queries = min(block_m, S - start)
        total += (2 * queries * D + 2 * S * D) * itemsize + 4 * queries
    return total


def peak_by_running_totals(events):
    totals = list(itertools.accumulate((size for _, size in events), initial=0))
    seen = events[: totals.index(max(totals))]
    freed = [name for name, size in seen if size < 0]
    return max(totals), tuple(name for name, size in seen if name not in freed)


def gain_by_rooflines(flops, bytes_before, bytes_after, peak_flops, bandwidth):
    before, after = (min(peak_flops, flops / count * bandwidth) for count in (bytes_before, bytes_after))
    return after / before, "memory" if flops / bytes_after < peak_flops / bandwidth else "arithmetic"


def tensor_by_subtraction(ms, heads, S, D, bandwidth):
    moved = torch.tensor([S * S + 2 * S * D, 2 * S * S, S * S + 2 * S * D], dtype=torch.float64) * 2 * heads
    times = torch.tensor(list(ms.values()), dtype=torch.float64)
    saved = times[:-1] + times[1:] - 1e3 * moved / bandwidth
    return ("q kᵀ", "s", "p")[int(saved.argmax())], saved.max()


RIGHT_ANSWERS = (
    ("0.1", flops_by_a_mask),
    ("0.2", bytes_block_by_block),
    ("0.5", peak_by_running_totals),
    ("0.3", gain_by_rooflines),
    ("0.4", tensor_by_subtraction),
)
