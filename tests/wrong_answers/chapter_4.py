"""Wrong answers to the exercises of chapter 4, each with words that its diagnosis must hold."""

from __future__ import annotations

import math

import torch

from wrong_answers import WrongAnswer

INF = math.inf


# ---------------------------------------------------------------- 4.1


def _safe_shift(m):
    return torch.where(m == -INF, 0.0, m)


def _step_right(s, m, l):
    m_new = torch.maximum(m, s.amax(-1))
    shift = _safe_shift(m_new)
    p, alpha = torch.exp(s - shift[..., None]), torch.exp(m - shift)
    return p, m_new, alpha * l + p.sum(-1), alpha


def _step_block_maximum(s, m, l):
    m_new = s.amax(-1)
    shift = _safe_shift(m_new)
    p, alpha = torch.exp(s - shift[..., None]), torch.exp(m - shift)
    return p, m_new, alpha * l + p.sum(-1), alpha


def _step_p_to_block_maximum(s, m, l):
    p, m_new, _, alpha = _step_right(s, m, l)
    p = torch.exp(s - _safe_shift(s.amax(-1))[..., None])
    return p, m_new, alpha * l + p.sum(-1), alpha


def _step_not_rescaled(s, m, l):
    p, m_new, _, alpha = _step_right(s, m, l)
    return p, m_new, l + p.sum(-1), alpha


def _step_alpha_inverted(s, m, l):
    p, m_new, _, alpha = _step_right(s, m, l)
    return p, m_new, alpha * l + p.sum(-1), 1 / alpha


def _step_alpha_exponent_reversed(s, m, l):
    m_new = torch.maximum(m, s.amax(-1))
    p = torch.exp(s - m_new[..., None])
    alpha = torch.exp(m_new - m)
    return p, m_new, alpha * l + p.sum(-1), alpha


def _step_all_rescaled(s, m, l):
    p, m_new, _, alpha = _step_right(s, m, l)
    return p, m_new, alpha * (l + p.sum(-1)), alpha


def _step_starts_anew(s, m, l):
    p, m_new, _, alpha = _step_right(s, m, l)
    return p, m_new, p.sum(-1), alpha


def _step_normalised(s, m, l):
    p, m_new, l_new, alpha = _step_right(s, m, l)
    return p / l_new[..., None], m_new, l_new, alpha


def _step_alpha_without_exp(s, m, l):
    p, m_new, l_new, alpha = _step_right(s, m, l)
    return p, m_new, l_new, torch.where(m == -INF, alpha, m - m_new)


def _step_nan_when_unseen(s, m, l):
    m_new = torch.maximum(m, s.amax(-1))
    p, alpha = torch.exp(s - m_new[..., None]), torch.exp(m - m_new)
    return p, m_new, alpha * l + p.sum(-1), alpha


def _step_nan_alpha_when_unseen(s, m, l):
    m_new = torch.maximum(m, s.amax(-1))
    p, alpha = torch.exp(s - _safe_shift(m_new)[..., None]), torch.exp(m - m_new)
    return p, m_new, alpha * l + p.sum(-1), alpha


def _step_counts_hidden(s, m, l):
    m_new = torch.maximum(m, s.amax(-1))
    p, alpha = torch.nan_to_num(torch.exp(s - m_new[..., None]), nan=1.0), torch.nan_to_num(torch.exp(m - m_new), nan=1.0)
    return p, m_new, alpha * l + p.sum(-1), alpha


def _step_finite_maximum(s, m, l):
    return _step_right(s, m.clamp(min=-1e6), l)


def _step_one_maximum(s, m, l):
    m_new = torch.maximum(m, s.max())
    shift = _safe_shift(m_new)
    p, alpha = torch.exp(s - shift[..., None]), torch.exp(m - shift)
    return p, m_new, alpha * l + p.sum(-1), alpha


def _step_sum_of_tile(s, m, l):
    p, m_new, _, alpha = _step_right(s, m, l)
    return p, m_new, alpha * l + p.sum(), alpha


def _step_over_queries(s, m, l):
    p, m_new, l_new, alpha = _step_right(s, m, l)
    return (p, m_new, alpha * l + p.sum(-2), alpha) if s.shape[-1] == s.shape[-2] else (p, m_new, l_new, alpha)


def _step_in_float32(s, m, l):
    return _step_right(s.float(), m.float(), l.float())


def _step_keepdim(s, m, l):
    p, m_new, l_new, alpha = _step_right(s, m, l)
    return p, m_new[..., None], l_new[..., None], alpha[..., None]


def _step_in_place(s, m, l):
    p, m_new, _, alpha = _step_right(s, m, l)
    l *= alpha
    l += p.sum(-1)
    return p, m_new, l, alpha


def _step_states_exchanged(s, m, l):
    p, m_new, l_new, alpha = _step_right(s, m, l)
    return p, l_new, m_new, alpha


def _step_without_alpha(s, m, l):
    return _step_right(s, m, l)[:3]


def _step_branches_on_a_tensor(s, m, l):
    m_new = torch.maximum(m, s.amax(-1))
    if m_new == -INF:
        return torch.zeros_like(s), m_new, l, torch.ones_like(l)
    return _step_right(s, m, l)


def _step_only_if_all_unseen(s, m, l):
    m_new = torch.maximum(m, s.amax(-1))
    if (m_new == -INF).all():
        return torch.zeros_like(s), m_new, l, torch.ones_like(l)
    return _step_nan_when_unseen(s, m, l)


# ---------------------------------------------------------------- 4.2


def _seen(S_q, S_k, is_causal):
    whole = torch.ones(S_q, S_k, dtype=torch.bool)
    return whole.tril(S_k - S_q) if is_causal else whole


def _join(s, m, l, acc, v):
    p, m, l, alpha = _step_right(s, m, l)
    return m, l, alpha[..., None] * acc + p @ v


def _finish(m, l, acc):
    return acc / torch.where(l == 0, 1.0, l)[..., None], m + torch.log(l)


def _flash(q, k, v, block_m, block_n, is_causal, scale, *, seen=None, join=_join, finish=_finish, hide=-INF, start=-INF):
    """A right forward, but for the part that a wrong answer puts in its place."""
    q, k, v = q.float(), k.float(), v.float()
    S_q, S_k = q.shape[2], k.shape[2]
    seen = _seen(S_q, S_k, is_causal) if seen is None else seen
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    for i in range(0, S_q, block_m):
        q_tile = q[:, :, i : i + block_m]
        m, l, acc = torch.full(q_tile.shape[:3], start), torch.zeros(q_tile.shape[:3]), torch.zeros_like(q_tile)
        for j in range(0, S_k, block_n):
            s = scale * (q_tile @ k[:, :, j : j + block_n].mT)
            s = s.masked_fill(~seen[i : i + block_m, j : j + block_n], hide)
            m, l, acc = join(s, m, l, acc, v[:, :, j : j + block_n])
        o[:, :, i : i + block_m], lse[:, :, i : i + block_m] = finish(m, l, acc)
    return o, lse


def _forward_acc_not_rescaled(q, k, v, block_m, block_n, is_causal, scale):
    def join(s, m, l, acc, v_tile):
        p, m, l, _ = _step_right(s, m, l)
        return m, l, acc + p @ v_tile

    return _flash(q, k, v, block_m, block_n, is_causal, scale, join=join)


def _forward_l_not_rescaled(q, k, v, block_m, block_n, is_causal, scale):
    def join(s, m, l, acc, v_tile):
        p, m, _, alpha = _step_right(s, m, l)
        return m, l + p.sum(-1), alpha[..., None] * acc + p @ v_tile

    return _flash(q, k, v, block_m, block_n, is_causal, scale, join=join)


def _forward_block_maximum(q, k, v, block_m, block_n, is_causal, scale):
    def join(s, m, l, acc, v_tile):
        p = torch.exp(s - _safe_shift(s.amax(-1))[..., None])
        return torch.maximum(m, s.amax(-1)), l + p.sum(-1), acc + p @ v_tile

    return _flash(q, k, v, block_m, block_n, is_causal, scale, join=join)


def _forward_maximum_falls(q, k, v, block_m, block_n, is_causal, scale):
    def join(s, m, l, acc, v_tile):
        p, m, l, alpha = _step_block_maximum(s, m, l)
        return m, l, alpha[..., None] * acc + p @ v_tile

    return _flash(q, k, v, block_m, block_n, is_causal, scale, join=join)


def _forward_p_to_block_maximum(q, k, v, block_m, block_n, is_causal, scale):
    def join(s, m, l, acc, v_tile):
        p, m, l, alpha = _step_p_to_block_maximum(s, m, l)
        return m, l, alpha[..., None] * acc + p @ v_tile

    return _flash(q, k, v, block_m, block_n, is_causal, scale, join=join)


def _forward_alpha_inverted(q, k, v, block_m, block_n, is_causal, scale):
    def join(s, m, l, acc, v_tile):
        p, m_new, _, alpha = _step_right(s, m, l)
        alpha = torch.where(alpha == 0, 0.0, 1 / alpha)
        return m_new, alpha * l + p.sum(-1), alpha[..., None] * acc + p @ v_tile

    return _flash(q, k, v, block_m, block_n, is_causal, scale, join=join)


def _forward_blocks_normalised(q, k, v, block_m, block_n, is_causal, scale):
    def join(s, m, l, acc, v_tile):
        _, m, l, _ = _step_right(s, m, l)
        return m, l, acc + torch.softmax(s, -1) @ v_tile

    return _flash(q, k, v, block_m, block_n, is_causal, scale, join=join, finish=lambda m, l, acc: (acc, m + torch.log(l)))


def _forward_not_divided(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_m, block_n, is_causal, scale, finish=lambda m, l, acc: (acc, m + torch.log(l)))


def _forward_divided_in_the_loop(q, k, v, block_m, block_n, is_causal, scale):
    def join(s, m, l, acc, v_tile):
        m, l, acc = _join(s, m, l, acc, v_tile)
        return m, l, acc / torch.where(l == 0, 1.0, l)[..., None]

    return _flash(q, k, v, block_m, block_n, is_causal, scale, join=join, finish=lambda m, l, acc: (acc, m + torch.log(l)))


def _forward_only_last_block(q, k, v, block_m, block_n, is_causal, scale):
    def join(s, m, l, acc, v_tile):
        return _join(s, torch.full_like(m, -INF), torch.zeros_like(l), torch.zeros_like(acc), v_tile)

    return _flash(q, k, v, block_m, block_n, is_causal, scale, join=join)


def _forward_not_shifted(q, k, v, block_m, block_n, is_causal, scale):
    def join(s, m, l, acc, v_tile):
        p = torch.exp(s)
        return m, l + p.sum(-1), acc + p @ v_tile

    return _flash(q, k, v, block_m, block_n, is_causal, scale, join=join, finish=lambda m, l, acc: (_finish(m, l, acc)[0], torch.log(l)))


def _forward_starts_at_zero(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_m, block_n, is_causal, scale, start=0.0)


def _forward_scale_ignored(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_m, block_n, is_causal, 1.0)


def _forward_own_scale(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_m, block_n, is_causal, 1 / math.sqrt(q.shape[-1]))


def _forward_scale_twice(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(scale * q, k, v, block_m, block_n, is_causal, scale)


def _forward_both_scales(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_m, block_n, is_causal, scale / math.sqrt(q.shape[-1]))


def _forward_zero_scale_is_none(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_m, block_n, is_causal, scale or 1 / math.sqrt(q.shape[-1]))


def _forward_scaled_after_the_maximum(q, k, v, block_m, block_n, is_causal, scale):
    def join(s, m, l, acc, v_tile):
        m_new = torch.maximum(m, s.amax(-1))
        shift = _safe_shift(m_new)
        p, alpha = torch.exp(scale * (s - shift[..., None])), torch.exp(scale * (m - shift))
        return m_new, alpha * l + p.sum(-1), alpha[..., None] * acc + p @ v_tile

    return _flash(q, k, v, block_m, block_n, is_causal, 1.0, join=join,
                  finish=lambda m, l, acc: (_finish(m, l, acc)[0], scale * m + torch.log(l)))  # fmt: skip


def _forward_lse_without_m(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_m, block_n, is_causal, scale, finish=lambda m, l, acc: (_finish(m, l, acc)[0], torch.log(l)))


def _forward_lse_without_log(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_m, block_n, is_causal, scale, finish=lambda m, l, acc: (_finish(m, l, acc)[0], m + l))


def _forward_lse_in_base_2(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_m, block_n, is_causal, scale, finish=lambda m, l, acc: (_finish(m, l, acc)[0], m + torch.log2(l)))


def _forward_exchanged_results(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_m, block_n, is_causal, scale)[::-1]


def _forward_without_lse(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_m, block_n, is_causal, scale)[0]


def _forward_rows_dropped(q, k, v, block_m, block_n, is_causal, scale):
    o, lse = _flash(q, k, v, block_m, block_n, is_causal, scale)
    done = len(range(0, q.shape[2] - block_m + 1, block_m)) * block_m if q.shape[2] > block_m else q.shape[2]
    o_short, lse_short = torch.empty_like(o), torch.empty_like(lse)
    o_short[:, :, :done], lse_short[:, :, :done] = o[:, :, :done], lse[:, :, :done]
    return o_short, lse_short


def _forward_keys_dropped(q, k, v, block_m, block_n, is_causal, scale):
    whole = max(1, k.shape[2] // block_n) * block_n
    return _flash(q, k[:, :, :whole], v[:, :, :whole], block_m, block_n, is_causal, scale)


def _forward_keys_filled_with_zeros(q, k, v, block_m, block_n, is_causal, scale):
    if q.shape[2] == 1 and k.shape[2] > block_n:
        missing = -k.shape[2] % block_n
        k, v = (torch.nn.functional.pad(x, (0, 0, 0, missing)) for x in (k, v))
    return _flash(q, k, v, block_m, block_n, is_causal, scale)


def _forward_whole_blocks_only(q, k, v, block_m, block_n, is_causal, scale):
    q_tiles = q.view(*q.shape[:2], -1, min(block_m, q.shape[2]), q.shape[3])
    return _flash(q_tiles.flatten(2, 3), k, v, block_m, block_n, is_causal, scale)


def _forward_state_carried_over(q, k, v, block_m, block_n, is_causal, scale):
    state = {}

    def join(s, m, l, acc, v_tile):
        if "m" in state and state["m"].shape == m.shape and (m == -INF).all():
            m, l, acc = state["m"], state["l"], state["acc"]
        state["m"], state["l"], state["acc"] = _join(s, m, l, acc, v_tile)
        return state["m"], state["l"], state["acc"]

    return _flash(q, k, v, block_m, block_n, is_causal, scale, join=join)


def _forward_keys_up_to_S_q(q, k, v, block_m, block_n, is_causal, scale):
    S_q = q.shape[2] if q.shape[2] > 1 else k.shape[2]
    return _flash(q, k[:, :, :S_q], v[:, :, :S_q], block_m, block_n, is_causal, scale)


def _forward_blocks_exchanged(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_n, block_m, is_causal, scale)


def _forward_untiled(q, k, v, block_m, block_n, is_causal, scale):
    s = scale * (q.float() @ k.float().mT)
    s = s.masked_fill(~_seen(q.shape[2], k.shape[2], is_causal), -INF)
    return torch.softmax(s, -1).nan_to_num(0.0) @ v.float(), torch.logsumexp(s, -1)


def _forward_all_keys_at_once(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_m, max(1, k.shape[2]), is_causal, scale)


def _forward_all_queries_at_once(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, q.shape[2], block_n, is_causal, scale)


def _forward_k_for_v(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, k if q.shape[-1] == 1 else v, block_m, block_n, is_causal, scale)


def _forward_not_causal(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_m, block_n, False, scale)


def _forward_strict_mask(q, k, v, block_m, block_n, is_causal, scale):
    S_q, S_k = q.shape[2], k.shape[2]
    seen = torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q - 1) if is_causal else None
    return _flash(q, k, v, block_m, block_n, is_causal, scale, seen=seen)


def _forward_top_left_mask(q, k, v, block_m, block_n, is_causal, scale):
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril() if is_causal else None
    return _flash(q, k, v, block_m, block_n, is_causal, scale, seen=seen)


def _forward_skips_top_left(q, k, v, block_m, block_n, is_causal, scale):
    seen, i, j = _positions(q, k, is_causal)
    return _flash(q, k, v, block_m, block_n, is_causal, scale, seen=seen & (j // block_n * block_n < (i // block_m + 1) * block_m)
                  if is_causal else seen)  # fmt: skip


def _positions(q, k, is_causal):
    S_q, S_k = q.shape[2], k.shape[2]
    return _seen(S_q, S_k, is_causal), torch.arange(S_q)[:, None], torch.arange(S_k)[None, :]


def _forward_mask_inside_the_tile(q, k, v, block_m, block_n, is_causal, scale):
    seen, i, j = _positions(q, k, is_causal)
    seen = j % block_n <= i % block_m if is_causal else seen
    return _flash(q, k, v, block_m, block_n, is_causal, scale, seen=seen)


def _forward_diagonal_not_masked(q, k, v, block_m, block_n, is_causal, scale):
    seen, i, j = _positions(q, k, is_causal)
    whole = j // block_n * block_n <= i // block_m * block_m
    seen = whole if is_causal and q.shape[2] > block_m else seen
    return _flash(q, k, v, block_m, block_n, is_causal, scale, seen=seen)


def _forward_diagonal_by_block_numbers(q, k, v, block_m, block_n, is_causal, scale):
    seen, i, j = _positions(q, k, is_causal)
    seen = seen & (j // block_n <= i // block_m) if is_causal else seen
    return _flash(q, k, v, block_m, block_n, is_causal, scale, seen=seen)


def _forward_masks_one_tile(q, k, v, block_m, block_n, is_causal, scale):
    seen, i, j = _positions(q, k, is_causal)
    seen = seen | (j // block_n < i // block_m) if is_causal else seen
    return _flash(q, k, v, block_m, block_n, is_causal, scale, seen=seen)


def _forward_hides_with_zero(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_m, block_n, is_causal, scale, hide=0.0)


def _forward_hides_with_a_million(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_m, block_n, is_causal, scale, hide=-1e6)


def _forward_nan_when_unseen(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_m, block_n, is_causal, scale, finish=lambda m, l, acc: (acc / l[..., None], m + torch.log(l)))


def _forward_lse_nan_to_zero(q, k, v, block_m, block_n, is_causal, scale):
    o, lse = _flash(q, k, v, block_m, block_n, is_causal, scale)
    return o, lse.masked_fill(lse == -INF, 0.0)


def _forward_without_keys(q, k, v, block_m, block_n, is_causal, scale):
    if k.shape[2] == 0:
        return torch.full_like(q, torch.nan), torch.full(q.shape[:3], -INF)
    return _flash(q, k, v, block_m, block_n, is_causal, scale)


def _forward_one_head(q, k, v, block_m, block_n, is_causal, scale):
    o, lse = _flash(q[:, :1], k[:, :1], v[:, :1], block_m, block_n, is_causal, scale)
    return o.expand(q.shape), lse.expand(q.shape[:3])


def _forward_scores_in_half(q, k, v, block_m, block_n, is_causal, scale):
    if q.dtype == torch.float16:
        return torch.softmax(scale * (q @ k.mT), -1) @ v, torch.logsumexp(scale * (q @ k.mT), -1)
    return _flash(q, k, v, block_m, block_n, is_causal, scale)


def _forward_scores_in_the_inputs_dtype(q, k, v, block_m, block_n, is_causal, scale):
    S_q, S_k = q.shape[2], k.shape[2]
    seen, o, lse = _seen(S_q, S_k, is_causal), torch.empty_like(q), torch.empty(q.shape[:3])
    for i in range(0, S_q, block_m):
        q_tile = q[:, :, i : i + block_m] * scale
        m, l, acc = torch.full(q_tile.shape[:3], -INF), torch.zeros(q_tile.shape[:3]), torch.zeros(q_tile.shape)
        for j in range(0, S_k, block_n):
            s = (q_tile @ k[:, :, j : j + block_n].mT).float().masked_fill(~seen[i : i + block_m, j : j + block_n], -INF)
            m, l, acc = _join(s, m, l, acc, v[:, :, j : j + block_n].float())
        o[:, :, i : i + block_m], lse[:, :, i : i + block_m] = _finish(m, l, acc)
    return o, lse


def _forward_q_scaled_in_half(q, k, v, block_m, block_n, is_causal, scale):
    if q.dtype != torch.float16:
        return _flash(q, k, v, block_m, block_n, is_causal, scale)
    return _flash(q * scale, k, v, block_m, block_n, is_causal, 1.0)


def _forward_k_scaled_in_half(q, k, v, block_m, block_n, is_causal, scale):
    if q.dtype != torch.float16:
        return _flash(q, k, v, block_m, block_n, is_causal, scale)
    return _flash(q, k * scale, v, block_m, block_n, is_causal, 1.0)


def _forward_o_in_float32(q, k, v, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, block_m, block_n, is_causal, scale)


def _forward_acc_in_half(q, k, v, block_m, block_n, is_causal, scale):
    def join(s, m, l, acc, v_tile):
        m, l, acc = _join(s, m, l, acc, v_tile)
        return m, l, acc.to(q.dtype).float()

    return _flash(q, k, v, block_m, block_n, is_causal, scale, join=join)


def _forward_lse_in_half(q, k, v, block_m, block_n, is_causal, scale):
    o, lse = _flash(q, k, v, block_m, block_n, is_causal, scale)
    return o, lse.to(q.dtype)


# ---------------------------------------------------------------- 4.3


def _up(x, y):
    return -(-x // y)


def _bounds(row_block, block_m, S_q, S_k):
    """How many keys the block's first and last row see; below 0 where even the next would see none."""
    first = row_block * block_m
    return first + 1 + S_k - S_q, min(first + block_m, S_q) + S_k - S_q


def _tiles(by_first, by_last, block_n):
    return max(0, by_first) // block_n, _up(max(0, by_last), block_n)


def _tiles_exchanged(row_block, block_m, block_n, S_q, S_k):
    return _tiles(*_bounds(row_block, block_m, S_q, S_k), block_n)[::-1]


def _tiles_full_rounded_up(row_block, block_m, block_n, S_q, S_k):
    by_first, by_last = _bounds(row_block, block_m, S_q, S_k)
    return _up(max(0, by_first), block_n), _up(max(0, by_last), block_n)


def _tiles_full_from_last_row(row_block, block_m, block_n, S_q, S_k):
    _, by_last = _bounds(row_block, block_m, S_q, S_k)
    return _tiles(by_last, by_last, block_n)


def _tiles_full_is_an_index(row_block, block_m, block_n, S_q, S_k):
    full, end = _tiles(*_bounds(row_block, block_m, S_q, S_k), block_n)
    return full - 1, end


def _tiles_ragged_counted_whole(row_block, block_m, block_n, S_q, S_k):
    by_first, by_last = _bounds(row_block, block_m, S_q, S_k)
    full, end = _tiles(by_first, by_last, block_n)
    return (end if by_first == S_k else full), end


def _tiles_end_is_last(row_block, block_m, block_n, S_q, S_k):
    full, end = _tiles(*_bounds(row_block, block_m, S_q, S_k), block_n)
    return full, max(0, end - 1)


def _tiles_end_one_too_many(row_block, block_m, block_n, S_q, S_k):
    by_first, by_last = _bounds(row_block, block_m, S_q, S_k)
    return _tiles(by_first, by_last, block_n)[0], max(0, by_last) // block_n + 1


def _tiles_end_rounded_down(row_block, block_m, block_n, S_q, S_k):
    by_first, by_last = _bounds(row_block, block_m, S_q, S_k)
    return max(0, by_first) // block_n, max(0, by_last) // block_n


def _tiles_end_from_first_row(row_block, block_m, block_n, S_q, S_k):
    by_first, _ = _bounds(row_block, block_m, S_q, S_k)
    return _tiles(by_first, by_first, block_n)


def _tiles_nothing_skipped(row_block, block_m, block_n, S_q, S_k):
    return _tiles(*_bounds(row_block, block_m, S_q, S_k), block_n)[0], _up(S_k, block_n)


def _tiles_top_left(row_block, block_m, block_n, S_q, S_k):
    return _tiles(*_bounds(row_block, block_m, S_q, S_q), block_n)


def _tiles_wrong_sign(row_block, block_m, block_n, S_q, S_k):
    by_first, by_last = _bounds(row_block, block_m, S_q, S_q)
    return _tiles(by_first + S_q - S_k, by_last + S_q - S_k, block_n)


def _tiles_strict_full(row_block, block_m, block_n, S_q, S_k):
    by_first, by_last = _bounds(row_block, block_m, S_q, S_k)
    return _tiles(by_first - 1, by_last, block_n)


def _tiles_strict_end(row_block, block_m, block_n, S_q, S_k):
    by_first, by_last = _bounds(row_block, block_m, S_q, S_k)
    return _tiles(by_first, by_last - 1, block_n)


def _tiles_not_capped(row_block, block_m, block_n, S_q, S_k):
    first = row_block * block_m
    return _tiles(first + 1 + S_k - S_q, first + block_m + S_k - S_q, block_n)


def _tiles_full_negative(row_block, block_m, block_n, S_q, S_k):
    by_first, by_last = _bounds(row_block, block_m, S_q, S_k)
    return by_first // block_n, _up(max(0, by_last), block_n)


def _tiles_end_negative(row_block, block_m, block_n, S_q, S_k):
    by_first, by_last = _bounds(row_block, block_m, S_q, S_k)
    return max(0, by_first) // block_n, _up(by_last, block_n)


def _tiles_by_number(row_block, block_m, block_n, S_q, S_k):
    return row_block, row_block + 1


def _tiles_blocks_exchanged(row_block, block_m, block_n, S_q, S_k):
    return _tiles(*_bounds(row_block, block_n, S_q, S_k), block_m)


def _tiles_in_keys(row_block, block_m, block_n, S_q, S_k):
    return _bounds(row_block, block_m, S_q, S_k)


def _tiles_one_masked(row_block, block_m, block_n, S_q, S_k):
    full, _ = _tiles(*_bounds(row_block, block_m, S_q, S_k), block_n)
    return full, full + 1


# ---------------------------------------------------------------- 4.4


def _bytes(S_q, S_k, D, block_m, itemsize, lse=4):
    return (2 * S_q * D + _up(S_q, block_m) * 2 * S_k * D) * itemsize + S_q * lse


def _bytes_elements(S_q, S_k, D, block_m, itemsize):
    return _bytes(S_q, S_k, D, block_m, 1)


def _bytes_without_lse(S_q, S_k, D, block_m, itemsize):
    return _bytes(S_q, S_k, D, block_m, itemsize, lse=0)


def _bytes_lse_with_itemsize(S_q, S_k, D, block_m, itemsize):
    return _bytes(S_q, S_k, D, block_m, itemsize, lse=itemsize)


def _bytes_lse_times_itemsize(S_q, S_k, D, block_m, itemsize):
    return _bytes(S_q, S_k, D, block_m, itemsize, lse=4 * itemsize)


def _bytes_m_and_l(S_q, S_k, D, block_m, itemsize):
    return _bytes(S_q, S_k, D, block_m, itemsize, lse=8)


def _bytes_one_pass(S_q, S_k, D, block_m, itemsize):
    return (2 * S_q * D + 2 * S_k * D) * itemsize + 4 * S_q


def _bytes_k_alone(S_q, S_k, D, block_m, itemsize):
    return (2 * S_q * D + _up(S_q, block_m) * S_k * D) * itemsize + 4 * S_q


def _bytes_without_o(S_q, S_k, D, block_m, itemsize):
    return (S_q * D + _up(S_q, block_m) * 2 * S_k * D) * itemsize + 4 * S_q


def _bytes_o_read_too(S_q, S_k, D, block_m, itemsize):
    return (3 * S_q * D + _up(S_q, block_m) * 2 * S_k * D) * itemsize + 4 * S_q


def _bytes_everything_each_block(S_q, S_k, D, block_m, itemsize):
    return _up(S_q, block_m) * (2 * S_q * D + 2 * S_k * D) * itemsize + 4 * S_q


def _bytes_rounded_down(S_q, S_k, D, block_m, itemsize):
    return (2 * S_q * D + S_q // block_m * 2 * S_k * D) * itemsize + 4 * S_q


def _bytes_one_block_more(S_q, S_k, D, block_m, itemsize):
    return (2 * S_q * D + (S_q // block_m + 1) * 2 * S_k * D) * itemsize + 4 * S_q


def _bytes_not_rounded(S_q, S_k, D, block_m, itemsize):
    return (2 * S_q * D + S_q / block_m * 2 * S_k * D) * itemsize + 4 * S_q


def _bytes_blocks_of_keys(S_q, S_k, D, block_m, itemsize):
    return (2 * S_q * D + _up(S_k, block_m) * 2 * S_k * D) * itemsize + 4 * S_q


def _bytes_block_for_count(S_q, S_k, D, block_m, itemsize):
    return (2 * S_q * D + block_m * 2 * S_k * D) * itemsize + 4 * S_q


def _bytes_every_row(S_q, S_k, D, block_m, itemsize):
    return (2 * S_q * D + S_q * 2 * S_k * D) * itemsize + 4 * S_q


def _bytes_fa1(S_q, S_k, D, block_m, itemsize):
    blocks = _up(S_k, block_m)
    return (2 * S_k * D + blocks * 3 * S_q * D) * itemsize + blocks * 16 * S_q


def _bytes_padded_rows(S_q, S_k, D, block_m, itemsize):
    rows = _up(S_q, block_m) * block_m
    return (2 * rows * D + rows // block_m * 2 * S_k * D) * itemsize + 4 * rows


def _bytes_one_length(S_q, S_k, D, block_m, itemsize):
    return _bytes(S_q, S_q, D, block_m, itemsize)


def _bytes_with_scores(S_q, S_k, D, block_m, itemsize):
    return _bytes(S_q, S_k, D, block_m, itemsize) + 4 * S_q * S_k * itemsize


def _bytes_in_floats(S_q, S_k, D, block_m, itemsize):
    return (
        (2.0 * S_q * D + math.ceil(S_q / block_m) * 2.0 * S_k * D) * itemsize + 4.0 * S_q
        if S_q < 1000
        else float(torch.tensor(_bytes(S_q, S_k, D, block_m, itemsize), dtype=torch.float32))
    )


WRONG_ANSWERS = (
    WrongAnswer("4.1", _step_block_maximum, "m_new is the block's own maximum"),
    WrongAnswer("4.1", _step_p_to_block_maximum, "p is relative to the block's own maximum"),
    WrongAnswer("4.1", _step_not_rescaled, "your l is not rescaled"),
    WrongAnswer("4.1", _step_alpha_inverted, "alpha is inverted"),
    WrongAnswer("4.1", _step_alpha_exponent_reversed, "alpha is inverted"),
    WrongAnswer("4.1", _step_all_rescaled, "multiply by alpha only what was summed before"),
    WrongAnswer("4.1", _step_starts_anew, "l starts anew with every block"),
    WrongAnswer("4.1", _step_normalised, "p is divided by its sum"),
    WrongAnswer("4.1", _step_alpha_without_exp, "alpha is the exponent m − m_new"),
    WrongAnswer("4.1", _step_nan_when_unseen, "a row that has seen nothing gives NaN"),
    WrongAnswer("4.1", _step_nan_alpha_when_unseen, "alpha is NaN in a row that has seen nothing"),
    WrongAnswer("4.1", _step_counts_hidden, "hidden scores count as 1 in a row that has seen nothing"),
    WrongAnswer("4.1", _step_finite_maximum, "a row that has seen nothing keeps m = −inf"),
    WrongAnswer("4.1", _step_one_maximum, "one maximum is taken over the whole tile"),
    WrongAnswer("4.1", _step_sum_of_tile, "l_new adds the sum of the whole tile"),
    WrongAnswer("4.1", _step_over_queries, "the sum runs down the columns"),
    WrongAnswer("4.1", _step_in_float32, "float64 goes in"),
    WrongAnswer("4.1", _step_keepdim, "m_new has shape (1, 1), want (1,)"),
    WrongAnswer("4.1", _step_in_place, "changes its input l in place"),
    WrongAnswer("4.1", _step_states_exchanged, "m_new and l_new are exchanged"),
    WrongAnswer("4.1", _step_without_alpha, "want a tuple (p, m_new, l_new, alpha)"),
    WrongAnswer("4.1", _step_branches_on_a_tensor, "raises RuntimeError: Boolean value of Tensor"),
    WrongAnswer("4.1", _step_only_if_all_unseen, "tell them apart row by row"),
    WrongAnswer("4.2", _forward_acc_not_rescaled, "your acc is not rescaled"),
    WrongAnswer("4.2", _forward_l_not_rescaled, "your l is not rescaled"),
    WrongAnswer("4.2", _forward_block_maximum, "neither acc nor l is rescaled"),
    WrongAnswer("4.2", _forward_maximum_falls, "it never falls"),
    WrongAnswer("4.2", _forward_p_to_block_maximum, "p is relative to its block's own maximum"),
    WrongAnswer("4.2", _forward_alpha_inverted, "acc and l are rescaled with alpha inverted"),
    WrongAnswer("4.2", _forward_blocks_normalised, "each block is normalised by itself"),
    WrongAnswer("4.2", _forward_not_divided, "acc is not divided by l"),
    WrongAnswer("4.2", _forward_divided_in_the_loop, "acc is divided by l in every block"),
    WrongAnswer("4.2", _forward_only_last_block, "only the last block is left in o"),
    WrongAnswer("4.2", _forward_not_shifted, "exp overflows"),
    WrongAnswer("4.2", _forward_starts_at_zero, "if m started at 0"),
    WrongAnswer("4.2", _forward_scale_ignored, "the scale is ignored"),
    WrongAnswer("4.2", _forward_own_scale, "the scores are scaled by 1/√D: multiply them by the scale that is given"),
    WrongAnswer("4.2", _forward_scale_twice, "the scale is applied twice"),
    WrongAnswer("4.2", _forward_both_scales, "the scores are scaled by 1/√D"),
    WrongAnswer("4.2", _forward_zero_scale_is_none, "a scale of 0 is taken for none given"),
    WrongAnswer("4.2", _forward_scaled_after_the_maximum, "a negative scale turns the order round"),
    WrongAnswer("4.2", _forward_lse_without_m, "lse is log l alone"),
    WrongAnswer("4.2", _forward_lse_without_log, "lse is m + l"),
    WrongAnswer("4.2", _forward_lse_in_base_2, "log l is in base 2"),
    WrongAnswer("4.2", _forward_exchanged_results, "o and lse are exchanged"),
    WrongAnswer("4.2", _forward_without_lse, "want a tuple (o, lse)"),
    WrongAnswer("4.2", _forward_rows_dropped, "the ragged last rows are dropped"),
    WrongAnswer("4.2", _forward_keys_dropped, "the ragged last block of keys is dropped"),
    WrongAnswer("4.2", _forward_keys_filled_with_zeros, "the ragged last block of keys is filled up with zeros"),
    WrongAnswer("4.2", _forward_whole_blocks_only, "raises RuntimeError: shape"),
    WrongAnswer("4.2", _forward_state_carried_over, "the state of one block of rows is carried over to the next"),
    WrongAnswer("4.2", _forward_keys_up_to_S_q, "the loop over keys runs to S_q"),
    WrongAnswer("4.2", _forward_blocks_exchanged, "block_m and block_n are exchanged"),
    WrongAnswer("4.2", _forward_untiled, "all scores are computed at once"),
    WrongAnswer("4.2", _forward_all_keys_at_once, "all keys of a block of rows are taken at once"),
    WrongAnswer("4.2", _forward_all_queries_at_once, "all queries are taken at once"),
    WrongAnswer("4.2", _forward_k_for_v, "k stands where v belongs"),
    WrongAnswer("4.2", _forward_not_causal, "is_causal changes nothing"),
    WrongAnswer("4.2", _forward_strict_mask, "the mask is strict"),
    WrongAnswer("4.2", _forward_top_left_mask, "the mask starts at the top left"),
    WrongAnswer("4.2", _forward_skips_top_left, "the tiles to skip are found top left"),
    WrongAnswer("4.2", _forward_mask_inside_the_tile, "the mask is by positions in the tile"),
    WrongAnswer("4.2", _forward_diagonal_not_masked, "the tile on the diagonal is not masked"),
    WrongAnswer("4.2", _forward_diagonal_by_block_numbers, "too many tiles are skipped"),
    WrongAnswer("4.2", _forward_masks_one_tile, "too few tiles are masked"),
    WrongAnswer("4.2", _forward_hides_with_zero, "hidden scores are set to 0"),
    WrongAnswer("4.2", _forward_hides_with_a_million, "hidden scores are a finite number such as −1e6"),
    WrongAnswer("4.2", _forward_nan_when_unseen, "rows that see nothing give NaN"),
    WrongAnswer("4.2", _forward_lse_nan_to_zero, "lse of rows that see nothing is 0"),
    WrongAnswer("4.2", _forward_without_keys, "no key at all, and o is 0 / 0"),
    WrongAnswer("4.2", _forward_one_head, "every head gets the result of head 0"),
    WrongAnswer("4.2", _forward_scores_in_half, "compute the scores in float32"),
    WrongAnswer("4.2", _forward_scores_in_the_inputs_dtype, "float16 rounds 2,049 to 2,048"),
    WrongAnswer("4.2", _forward_q_scaled_in_half, "q or k times the scale is rounded to float16"),
    WrongAnswer("4.2", _forward_k_scaled_in_half, "q or k times the scale is rounded to float16"),
    WrongAnswer("4.2", _forward_o_in_float32, "o is float32, and must have the dtype of q"),
    WrongAnswer("4.2", _forward_acc_in_half, "keep acc in float32"),
    WrongAnswer("4.2", _forward_lse_in_half, "lse has lost digits"),
    WrongAnswer("4.3", _tiles_exchanged, "full and end are exchanged"),
    WrongAnswer("4.3", _tiles_full_rounded_up, "full counts tiles of which the first row sees a part"),
    WrongAnswer("4.3", _tiles_full_from_last_row, "full is found from the last row"),
    WrongAnswer("4.3", _tiles_full_is_an_index, "full is the index of the last whole tile"),
    WrongAnswer("4.3", _tiles_ragged_counted_whole, "a ragged last block is counted as whole"),
    WrongAnswer("4.3", _tiles_end_is_last, "end is the last key block that is seen"),
    WrongAnswer("4.3", _tiles_end_one_too_many, "end is one too many"),
    WrongAnswer("4.3", _tiles_end_rounded_down, "end leaves out a tile that the last row sees in part"),
    WrongAnswer("4.3", _tiles_end_from_first_row, "end is found from the first row"),
    WrongAnswer("4.3", _tiles_nothing_skipped, "no tile is skipped"),
    WrongAnswer("4.3", _tiles_top_left, "full is counted top left"),
    WrongAnswer("4.3", _tiles_wrong_sign, "S_k − S_q has the wrong sign in full"),
    WrongAnswer("4.3", _tiles_strict_full, "full is one short at the diagonal"),
    WrongAnswer("4.3", _tiles_strict_end, "end is one short at the diagonal"),
    WrongAnswer("4.3", _tiles_not_capped, "end goes on past the last row"),
    WrongAnswer("4.3", _tiles_full_negative, "full is negative"),
    WrongAnswer("4.3", _tiles_end_negative, "end is negative"),
    WrongAnswer("4.3", _tiles_by_number, "full is row_block, as if"),
    WrongAnswer("4.3", _tiles_blocks_exchanged, "block_m and block_n are exchanged in full"),
    WrongAnswer("4.3", _tiles_in_keys, "full counts keys"),
    WrongAnswer("4.3", _tiles_one_masked, "end is found from the first row, or one past full"),
    WrongAnswer("4.4", _bytes_elements, "elements are counted, not bytes"),
    WrongAnswer("4.4", _bytes_without_lse, "lse is not counted"),
    WrongAnswer("4.4", _bytes_lse_with_itemsize, "lse is counted with itemsize"),
    WrongAnswer("4.4", _bytes_lse_times_itemsize, "lse's 4 bytes are multiplied by itemsize"),
    WrongAnswer("4.4", _bytes_m_and_l, "lse is counted twice, or m and l are"),
    WrongAnswer("4.4", _bytes_one_pass, "k and v are read once in this count"),
    WrongAnswer("4.4", _bytes_k_alone, "k alone is counted"),
    WrongAnswer("4.4", _bytes_without_o, "o is not counted, or q is not"),
    WrongAnswer("4.4", _bytes_o_read_too, "o is counted as read and written"),
    WrongAnswer("4.4", _bytes_everything_each_block, "q and o are counted once a block of rows"),
    WrongAnswer("4.4", _bytes_rounded_down, "the number of blocks is rounded down: the ragged last block"),
    WrongAnswer("4.4", _bytes_one_block_more, "the number of blocks is rounded down and 1 is added"),
    WrongAnswer("4.4", _bytes_not_rounded, "the number of blocks is not rounded"),
    WrongAnswer("4.4", _bytes_blocks_of_keys, "blocks are counted along S_k"),
    WrongAnswer("4.4", _bytes_block_for_count, "block_m stands where the number of blocks belongs"),
    WrongAnswer("4.4", _bytes_every_row, "k and v are read for every row"),
    WrongAnswer("4.4", _bytes_fa1, "that is FA1's order"),
    WrongAnswer("4.4", _bytes_padded_rows, "ragged rows are counted whole"),
    WrongAnswer("4.4", _bytes_one_length, "S_q is used for k and v"),
    WrongAnswer("4.4", _bytes_with_scores, "s and p are counted"),
    WrongAnswer("4.4", _bytes_in_floats, "stay with integers"),
)
