"""Chapter 12: log-sum-exp whose weights are NaN, a tuple of one, results left out, float division, and causal tiles alone."""

import torch

from fa_tutorial import algorithm


def combine_without_a_guard(o_parts, lse_parts):
    lse = torch.logsumexp(lse_parts, dim=0)
    return (torch.exp(lse_parts - lse)[..., None] * o_parts).sum(dim=0), lse


def combine_o_alone(o_parts, lse_parts):
    return combine_without_a_guard(o_parts, lse_parts)[0]


def combine_two(o_parts, lse_parts):
    a, b = lse_parts
    return combine_without_a_guard(o_parts, torch.stack((a, b)))


def combine_in_half(o_parts, lse_parts):
    o, lse = combine_without_a_guard(o_parts.half(), lse_parts.half())
    return o.float(), lse.float()


def tiles_in_floats(row_block, block_m, block_n, S_q, S_k, left, right):
    first, last = row_block * block_m + S_k - S_q, min((row_block + 1) * block_m, S_q) - 1 + S_k - S_q
    keys = first - left, last - left, first + right + 1, last + right + 1
    return tuple(key / block_n for key in keys)


def causal_tiles_alone(row_block, block_m, block_n, S_q, S_k, left, right):
    full, end = algorithm.causal_tiles(row_block, block_m, block_n, S_q, S_k)
    return 0, 0, full, end


def tiles_without_end(row_block, block_m, block_n, S_q, S_k, left, right):
    return tiles_in_floats(row_block, block_m, block_n, S_q, S_k, left, right)[:3]


WRONG_ANSWERS = (
    ("12.1", combine_without_a_guard, "all empty give NaN"),
    ("12.1", combine_o_alone, "want a tuple (o, lse)"),
    ("12.1", combine_two, "ValueError"),
    ("12.1", combine_in_half, "the weights are 1/4 and 3/4"),
    ("12.2", tiles_in_floats, "gives start = 8.333, want 8"),
    ("12.2", causal_tiles_alone, "no tile is skipped on the left"),
    ("12.2", tiles_without_end, "returns a tuple of 3"),
)
