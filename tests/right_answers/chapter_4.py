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


def step_alpha_one_where_unseen(s, m, l):
    m_new = torch.maximum(m, s.max(dim=-1).values)
    unseen = m_new == -INF
    p = torch.where(unseen[..., None], torch.zeros_like(s), torch.exp(s - m_new[..., None]))
    alpha = torch.where(unseen, torch.ones_like(m), torch.exp(m - m_new))
    return p, m_new, torch.addcmul(p.sum(-1), alpha, l), alpha


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


def forward_in_fa1_order_from_the_end(q, k, v, block_m, block_n, is_causal, scale):
    S_q, S_k = q.shape[2], k.shape[2]
    m, l, acc = q.new_full(q.shape[:3], -INF, dtype=torch.float32), torch.zeros(q.shape[:3]), torch.zeros(q.shape)
    for j in reversed(range(0, S_k, block_n)):
        for i in range(0, S_q, block_m):
            s = scale * (q[:, :, i : i + block_m].float() @ k[:, :, j : j + block_n].float().transpose(2, 3))
            if is_causal:
                hidden = torch.ones(s.shape[2:], dtype=torch.bool).triu(i - j + S_k - S_q + 1)
                s.masked_fill_(hidden, -INF)
            rows = (slice(None), slice(None), slice(i, i + block_m))
            m_new = torch.maximum(m[rows], s.amax(-1))
            shift = m_new.clamp(min=-1e30)
            p, alpha = torch.exp(s - shift[..., None]), torch.exp(m[rows] - shift)
            l[rows] = alpha * l[rows] + p.sum(-1)
            acc[rows] = alpha[..., None] * acc[rows] + p @ v[:, :, j : j + block_n].float()
            m[rows] = m_new
    return (acc / l.clamp(min=1e-30)[..., None]).to(q.dtype), m + l.log()


def forward_with_transposed_scores(q, k, v, block_m, block_n, is_causal, scale):
    S_q, S_k = q.shape[2], k.shape[2]
    o, lse = torch.zeros_like(q, dtype=torch.float32), torch.zeros(q.shape[:3])
    for i in range(0, S_q, block_m):
        q_t = q[:, :, i : i + block_m].float().mT
        state = q_t.new_full((*q_t.shape[:2], 1, q_t.shape[3]), -INF), q_t.new_zeros(*q_t.shape[:2], 1, q_t.shape[3]), torch.zeros_like(q_t)
        for j in range(0, S_k, block_n):
            s_t = (scale * k[:, :, j : j + block_n].float()) @ q_t
            if is_causal:
                s_t = s_t.masked_fill(~_causal(range(i, i + s_t.shape[3]), range(j, j + s_t.shape[2]), S_q, S_k).T, -INF)
            m, l, acc = state
            m_new = torch.maximum(m, s_t.amax(2, keepdim=True))
            weights, alpha = (torch.exp(x - m_new).nan_to_num(0.0) for x in (s_t, m))
            state = m_new, alpha * l + weights.sum(2, keepdim=True), alpha * acc + v[:, :, j : j + block_n].float().mT @ weights
        m, l, acc = state
        o[:, :, i : i + block_m] = (acc / l).nan_to_num(0.0).mT
        lse[:, :, i : i + block_m] = (m + l.log())[:, :, 0]
    return o.to(q.dtype), lse


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
    ("4.1", step_alpha_one_where_unseen),
    ("4.2", forward_normalised_as_it_goes),
    ("4.2", forward_in_fa1_order_from_the_end),
    ("4.2", forward_with_transposed_scores),
    ("4.3", tiles_by_counting),
    ("4.4", bytes_with_math),
)
