"""Right answers to chapter 4 in other words: merges of (m, l), log-sum-exp, FA1's loop order, counting key by key."""

import math

import torch

from fa_tutorial.exercises.chapter_4.ex_1 import softmax_step
from fa_tutorial.exercises.chapter_4.ex_3 import causal_tiles as tiles_of

INF = math.inf


# ---------------------------------------------------------------- 4.1


def step_by_log_sum_exp(s, m, l):
    m_new = torch.cat([m[..., None], s], dim=-1).max(dim=-1).values
    p = torch.nan_to_num(torch.exp(s - m_new.unsqueeze(-1)), nan=0.0)
    alpha = torch.nan_to_num(torch.exp(m - m_new), nan=0.0)
    lse = torch.logaddexp(m + torch.log(l), torch.logsumexp(s, -1))
    return p, m_new, torch.where(m_new == -INF, 0.0, torch.exp(lse - m_new)), alpha


# ---------------------------------------------------------------- 4.2


def _normalised_as_it_goes(q, k, v, block_m, block_n, scale, causal):
    S_q, S_k = q.shape[2], k.shape[2]
    outputs, sums = [], []
    for row, q_tile in enumerate(q.double().split(block_m, dim=2)):
        o, lse = torch.zeros_like(q_tile), q_tile.new_full(q_tile.shape[:3], -INF)
        i = torch.arange(q_tile.shape[2])[:, None] + row * block_m
        for key, (k_tile, v_tile) in enumerate(zip(k.double().split(block_n, dim=2), v.double().split(block_n, dim=2), strict=True)):
            j = torch.arange(k_tile.shape[2])[None, :] + key * block_n
            hidden = causal & (j > i + S_k - S_q)
            if hidden.all():
                continue
            s = scale * torch.einsum("bhid,bhjd->bhij", q_tile, k_tile).masked_fill(hidden, -INF)
            lse_new = torch.logaddexp(lse, torch.logsumexp(s, -1))
            shift = torch.where(lse_new == -INF, 0.0, lse_new)[..., None]
            o = torch.exp(lse[..., None] - shift) * o + torch.exp(s - shift) @ v_tile
            lse = lse_new
        outputs.append(o)
        sums.append(lse)
    return torch.cat(outputs, dim=2).to(q.dtype), torch.cat(sums, dim=2).float()


def forward_normalised_as_it_goes(q, k, v, block_m, block_n, scale):
    return _normalised_as_it_goes(q, k, v, block_m, block_n, scale, causal=False)


# ---------------------------------------------------------------- 4.3


def tiles_by_counting(row_block, block_m, block_n, S_q, S_k):
    rows = range(row_block * block_m, min((row_block + 1) * block_m, S_q))
    full = end = 0
    for tile in range(math.ceil(S_k / block_n)):
        keys = range(tile * block_n, (tile + 1) * block_n)
        if all(key <= row + S_k - S_q and key < S_k for key in (keys[0], keys[-1]) for row in (rows[0], rows[-1])):
            full = tile + 1
        if keys[0] <= rows[-1] + S_k - S_q:
            end = tile + 1
    return full, end


# ---------------------------------------------------------------- 4.4


def causal_normalised_as_it_goes(q, k, v, block_m, block_n, scale):
    return _normalised_as_it_goes(q, k, v, block_m, block_n, scale, causal=True)


def causal_masks_every_tile(q, k, v, block_m, block_n, scale):
    """Loops over positions, and compares them in whole tiles too."""
    S_q, S_k = q.shape[2], k.shape[2]
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    for start_m in range(0, S_q, block_m):
        rows = torch.arange(start_m, min(start_m + block_m, S_q))
        _, end = tiles_of(start_m // block_m, block_m, block_n, S_q, S_k)
        m, l, acc = torch.full((*q.shape[:2], len(rows)), -INF), torch.zeros(*q.shape[:2], len(rows)), torch.zeros(q[:, :, rows].shape)
        for start_n in range(0, end * block_n, block_n):
            keys = torch.arange(start_n, min(start_n + block_n, S_k))
            s = scale * (q[:, :, rows].float() @ k[:, :, keys].float().mT)
            s = torch.where(keys <= rows[:, None] + S_k - S_q, s, -INF)
            p, m, l, alpha = softmax_step(s, m, l)
            acc = alpha[..., None] * acc + p @ v[:, :, keys].float()
        o[:, :, rows], lse[:, :, rows] = (acc / l.masked_fill(l == 0, 1.0)[..., None]).to(o.dtype), m + l.log()
    return o, lse


# ---------------------------------------------------------------- 4.5


def bytes_round_by_round(S_q, S_k, D, block_n, itemsize):
    total = 0
    for start in range(0, S_k, block_n):
        total += 2 * (min(start + block_n, S_k) - start) * D * itemsize
        total += S_q * (3 * D * itemsize + 4 * 4)
    return total


RIGHT_ANSWERS = (
    ("4.1", step_by_log_sum_exp),
    ("4.2", forward_normalised_as_it_goes),
    ("4.3", tiles_by_counting),
    ("4.4", causal_normalised_as_it_goes, "correct (every tile is masked"),
    ("4.4", causal_masks_every_tile, "correct (every tile is masked"),
    ("4.5", bytes_round_by_round),
)
