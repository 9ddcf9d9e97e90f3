"""Right answers to chapter 4 in other words: merges of (m, l), log-sum-exp, FA1's loop order, one head at a time, counting key by key."""

import math

import torch

INF = math.inf


# ---------------------------------------------------------------- 4.1


def step_by_log_sum_exp(s, m, l):
    m_new = torch.cat([m[..., None], s], dim=-1).max(dim=-1).values
    p = torch.nan_to_num(torch.exp(s - m_new.unsqueeze(-1)), nan=0.0)
    alpha = torch.nan_to_num(torch.exp(m - m_new), nan=0.0)
    lse = torch.logaddexp(m + torch.log(l), torch.logsumexp(s, -1))
    return p, m_new, torch.where(m_new == -INF, 0.0, torch.exp(lse - m_new)), alpha


# ---------------------------------------------------------------- 4.2


def _causal(rows, keys, S_q, S_k):
    return torch.tensor(keys)[None, :] <= torch.tensor(rows)[:, None] + (S_k - S_q)


def forward_normalised_as_it_goes(q, k, v, block_m, block_n, is_causal, scale):
    S_q, S_k = q.shape[2], k.shape[2]
    outputs, sums = [], []
    for row, q_tile in enumerate(q.double().split(block_m, dim=2)):
        o, lse = torch.zeros_like(q_tile), q_tile.new_full(q_tile.shape[:3], -INF)
        for key, (k_tile, v_tile) in enumerate(zip(k.double().split(block_n, dim=2), v.double().split(block_n, dim=2), strict=True)):
            s = scale * torch.einsum("bhid,bhjd->bhij", q_tile, k_tile)
            if is_causal:
                seen = _causal(range(row * block_m, row * block_m + s.shape[2]), range(key * block_n, key * block_n + s.shape[3]), S_q, S_k)
                s = torch.where(seen, s, -INF)
            lse_new = torch.logaddexp(lse, torch.logsumexp(s, -1))
            shift = torch.where(lse_new == -INF, 0.0, lse_new)[..., None]
            o = torch.exp(lse[..., None] - shift) * o + torch.exp(s - shift) @ v_tile
            lse = lse_new
        outputs.append(o)
        sums.append(lse)
    return torch.cat(outputs, dim=2).to(q.dtype), torch.cat(sums, dim=2).float()


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


def bytes_with_math(S_q, S_k, D, block_m, itemsize):
    q = o = S_q * D * itemsize
    k = v = S_k * D * itemsize * math.ceil(S_q / block_m)
    return sum((q, k, v, o, 4 * S_q))


RIGHT_ANSWERS = (
    ("4.1", step_by_log_sum_exp),
    ("4.2", forward_normalised_as_it_goes),
    ("4.3", tiles_by_counting),
    ("4.4", bytes_with_math),
)
