"""Wrong answers to the exercises of chapter 6, each with words that its diagnosis must hold."""

from __future__ import annotations

import math

import torch

from wrong_answers import WrongAnswer

INF = math.inf


# ---------------------------------------------------------------- 6.1


def _matmul_exchanged(a, b, dc):
    return a.mT @ dc, dc @ b.mT


def _matmul_dc_transposed_in_da(a, b, dc):
    return (dc.mT if dc.shape[-1] == dc.shape[-2] else dc) @ b.mT, a.mT @ dc


def _matmul_b_not_transposed(a, b, dc):
    return dc @ b, a.mT @ dc


def _matmul_a_not_transposed(a, b, dc):
    return dc @ b.mT, a @ dc


def _matmul_a_for_b(a, b, dc):
    return dc @ a.mT, a.mT @ dc


def _matmul_b_for_a(a, b, dc):
    return dc @ b.mT, b.mT @ dc


def _matmul_wrong_way_round(a, b, dc):
    return b.mT @ dc, dc @ a.mT


def _matmul_only_square(a, b, dc):
    da = torch.zeros_like(a)
    for i in range(a.shape[-2]):
        for j in range(a.shape[-2]):
            da[..., i, j] = (dc[..., i, :] * b[..., j, :]).sum(-1)
    return da, a.mT @ dc


def _matmul_without_dc(a, b, dc):
    return torch.ones_like(dc) @ b.mT, a.mT @ torch.ones_like(dc)


def _matmul_db_transposed(a, b, dc):
    return dc @ b.mT, dc.mT @ a


def _matmul_batch_summed(a, b, dc):
    db = a.mT @ dc
    return dc @ b.mT, db.sum(dim=0) if db.ndim == 3 else db


def _matmul_all_dimensions_reversed(a, b, dc):
    return dc @ b.permute(*reversed(range(b.ndim))), a.permute(*reversed(range(a.ndim))) @ dc


def _matmul_by_jacobians(a, b, dc):
    if a.ndim > 2:
        return dc @ b.mT, a.mT @ dc
    (M, _), N = a.shape, b.shape[1]
    of_a = torch.kron(torch.eye(M, dtype=a.dtype), b.T.contiguous())  # of c's M N elements by a's M K
    of_b = torch.kron(a.contiguous(), torch.eye(N, dtype=a.dtype))
    return (of_a.T @ dc.reshape(-1)).view(a.shape), (of_b.T @ dc.reshape(-1)).view(b.shape)


def _matmul_in_float32(a, b, dc):
    return dc.float() @ b.float().mT, a.float().mT @ dc.float()


def _matmul_one_gradient(a, b, dc):
    return dc @ b.mT


# ---------------------------------------------------------------- 6.2


def _softmax_without_delta(p, dp):
    return p * dp


def _softmax_diagonal(p, dp):
    return p * (1 - p) * dp


def _softmax_mean(p, dp):
    return p * (dp - (p * dp).mean(-1, keepdim=True))


def _softmax_over_queries(p, dp):
    return p * (dp - (p * dp).sum(-2, keepdim=True)) if p.ndim > 1 else p * (dp - (p * dp).sum())


def _softmax_over_everything(p, dp):
    return p * (dp - (p * dp).sum())


def _softmax_keepdim_forgotten(p, dp):
    return p * (dp - (p * dp).sum(-1))


def _softmax_over_dimension_1(p, dp):
    return p * (dp - (p * dp).sum(1 if p.ndim > 1 else 0, keepdim=True))


def _softmax_p_missing(p, dp):
    return dp - (p * dp).sum(-1, keepdim=True)


def _softmax_p_on_dp_alone(p, dp):
    return p * dp - (p * dp).sum(-1, keepdim=True)


def _softmax_plain_rowsum(p, dp):
    return p * (dp - dp.sum(-1, keepdim=True))


def _softmax_sign(p, dp):
    return p * ((p * dp).sum(-1, keepdim=True) - dp)


def _softmax_of_p(p, dp):
    p = torch.softmax(p, -1)
    return p * (dp - (p * dp).sum(-1, keepdim=True))


def _softmax_jacobian(p, dp):
    jacobian = torch.diag_embed(p) - p[..., :, None] * p[..., None, :]
    return (jacobian @ dp[..., None])[..., 0]


def _softmax_of_log(p, dp):
    return dp - p * dp.sum(-1, keepdim=True)


def _softmax_in_place(p, dp):
    dp -= (p * dp).sum(-1, keepdim=True)
    return p * dp


def _softmax_largest(p, dp):
    return p * (dp - (p * dp).amax(-1, keepdim=True))


def _softmax_largest_dp(p, dp):
    return p * (dp - dp.amax(-1, keepdim=True))


# ---------------------------------------------------------------- 6.3


def _seen(S_q, S_k, is_causal, shift=None):
    whole = torch.ones(S_q, S_k, dtype=torch.bool)
    return whole.tril(S_k - S_q if shift is None else shift) if is_causal else whole


def _up_cast(*tensors):
    dtype = torch.promote_types(tensors[0].dtype, torch.float32)
    return [x.to(dtype) for x in tensors]


def _live(lse):
    return torch.where(lse == -INF, INF, lse)


def _masked_scores(q, k, scale, is_causal, shift=None, hide=-INF):
    q, k = _up_cast(q, k)
    return (scale * (q @ k.mT)).masked_fill(~_seen(q.shape[2], k.shape[2], is_causal, shift), hide)


def _p_without_scale(q, k, lse, scale, is_causal):
    return torch.exp(_masked_scores(q, k, 1.0, is_causal) - _live(lse)[..., None])


def _p_scaled_after_lse(q, k, lse, scale, is_causal):
    return torch.exp(scale * (_masked_scores(q, k, 1.0, is_causal) - _live(lse)[..., None]))


def _p_in_base_2(q, k, lse, scale, is_causal):
    return torch.exp2(_masked_scores(q, k, scale, is_causal) - _live(lse)[..., None])


def _p_half_in_base_2(q, k, lse, scale, is_causal):
    return torch.exp2(_masked_scores(q, k, scale / math.log(2), is_causal) - _live(lse)[..., None])


def _p_softmax_again(q, k, lse, scale, is_causal):
    return torch.softmax(_masked_scores(q, k, scale, is_causal), -1).nan_to_num(0.0)


def _p_divided_by_its_sum(q, k, lse, scale, is_causal):
    p = torch.exp(_masked_scores(q, k, scale, is_causal) - _live(lse)[..., None])
    return p / p.sum(-1, keepdim=True).clamp(min=1e-30)


def _p_divided_by_lse(q, k, lse, scale, is_causal):
    return torch.exp(_masked_scores(q, k, scale, is_causal)) / lse[..., None]


def _p_divided_by_exp_lse(q, k, lse, scale, is_causal):
    return torch.exp(_masked_scores(q, k, scale, is_causal)) / torch.exp(lse)[..., None]


def _p_without_lse(q, k, lse, scale, is_causal):
    return torch.exp(_masked_scores(q, k, scale, is_causal))


def _p_top_left(q, k, lse, scale, is_causal):
    return torch.exp(_masked_scores(q, k, scale, is_causal, shift=0) - _live(lse)[..., None])


def _p_strict(q, k, lse, scale, is_causal):
    return torch.exp(_masked_scores(q, k, scale, is_causal, shift=k.shape[2] - q.shape[2] - 1) - _live(lse)[..., None])


def _p_not_masked(q, k, lse, scale, is_causal):
    return torch.exp(_masked_scores(q, k, scale, False) - _live(lse)[..., None])


def _p_hides_with_zero(q, k, lse, scale, is_causal):
    return torch.exp(_masked_scores(q, k, scale, is_causal, hide=0.0) - _live(lse)[..., None])


def _p_nan_when_unseen(q, k, lse, scale, is_causal):
    return torch.exp(_masked_scores(q, k, scale, is_causal) - lse[..., None])


def _p_hidden_afterwards(q, k, lse, scale, is_causal):
    p = torch.exp(_masked_scores(q, k, scale, False) - _live(lse)[..., None])
    return p * _seen(q.shape[2], k.shape[2], is_causal)


def _p_lse_along_the_keys(q, k, lse, scale, is_causal):
    lse = _live(lse)
    return torch.exp(_masked_scores(q, k, scale, is_causal) - (lse[..., None, :] if q.shape[2] == k.shape[2] else lse[..., None]))


def _p_own_scale(q, k, lse, scale, is_causal):
    scale = 1 / math.sqrt(q.shape[-1]) if q.shape[-1] > 1 and scale else scale
    return torch.exp(_masked_scores(q, k, scale, is_causal) - _live(lse)[..., None])


def _p_zero_scale_is_none(q, k, lse, scale, is_causal):
    return torch.exp(_masked_scores(q, k, scale or 1 / math.sqrt(q.shape[-1]), is_causal) - _live(lse)[..., None])


def _p_scores_in_half(q, k, lse, scale, is_causal):
    s = (scale * (q @ k.mT)).masked_fill(~_seen(q.shape[2], k.shape[2], is_causal), -INF)
    return torch.exp(s - _live(lse)[..., None])


def _p_scaled_q_in_half(q, k, lse, scale, is_causal):
    s = ((scale * q) @ k.mT).masked_fill(~_seen(q.shape[2], k.shape[2], is_causal), -INF)
    return torch.exp(s - _live(lse)[..., None])


def _p_right(q, k, lse, scale, is_causal, shift=None):
    return torch.exp(_masked_scores(q, k, scale, is_causal, shift) - _live(lse)[..., None])


def _p_scaled_q_in_half_before_float32(q, k, lse, scale, is_causal):
    return _p_right(q * scale, k, lse, 1.0, is_causal)


def _p_in_the_inputs_dtype(q, k, lse, scale, is_causal):
    return _p_right(q, k, lse, scale, is_causal).to(q.dtype)


def _p_always_in_half(q, k, lse, scale, is_causal):
    return _p_right(q, k, lse, scale, is_causal).half()


def _p_one_too_wide(q, k, lse, scale, is_causal):
    return _p_right(q, k, lse, scale, is_causal, shift=k.shape[2] - q.shape[2] + 1)


def _p_shift_at_least_0(q, k, lse, scale, is_causal):
    return _p_right(q, k, lse, scale, is_causal, shift=max(0, k.shape[2] - q.shape[2]))


def _p_shift_without_sign(q, k, lse, scale, is_causal):
    return _p_right(q, k, lse, scale, is_causal, shift=abs(k.shape[2] - q.shape[2]))


# ---------------------------------------------------------------- 6.4


def _delta(p, dp, o, do):
    return (o * do).sum(-1, keepdim=True)


def _ds(p, dp, delta):
    return p * (dp - delta)


def _attention(q, k, v, o, do, lse, scale, is_causal, *, delta=_delta, ds_of=_ds, score_scale=None, dq_scale=None, dk_scale=None, shift=None,
               hide=-INF, live=_live):  # fmt: skip
    """A right backward, but for the part that a wrong answer puts in its place. Returns dq, dk, dv, p and ds in the state's dtype."""
    q, k, v, o, do, lse = _up_cast(q, k, v, o, do, lse)
    p = torch.exp(_masked_scores(q, k, scale if score_scale is None else score_scale, is_causal, shift, hide) - live(lse)[..., None])
    dp = do @ v.mT
    ds = ds_of(p, dp, delta(p, dp, o, do))
    dq, dk = ds @ k * (scale if dq_scale is None else dq_scale), ds.mT @ q * (scale if dk_scale is None else dk_scale)
    return dq, dk, p.mT @ do, p, ds


def _backward_right(q, k, v, o, do, lse, scale, is_causal):
    return _attention(q, k, v, o, do, lse, scale, is_causal)[:3]


def _backward_without_delta(*args):
    return _attention(*args, delta=lambda p, dp, o, do: 0.0)[:3]


def _backward_dq_without_scale(*args):
    return _attention(*args, dq_scale=1.0)[:3]


def _backward_dk_without_scale(*args):
    return _attention(*args, dk_scale=1.0)[:3]


def _backward_without_scale_outside(*args):
    return _attention(*args, dq_scale=1.0, dk_scale=1.0)[:3]


def _backward_scale_twice(q, k, v, o, do, lse, scale, is_causal):
    return _attention(q, k, v, o, do, lse, scale, is_causal, dq_scale=scale * scale, dk_scale=scale * scale)[:3]


def _backward_own_scale(q, k, v, o, do, lse, scale, is_causal):
    own = 1 / math.sqrt(q.shape[-1])
    return _attention(q, k, v, o, do, lse, scale, is_causal, dq_scale=own, dk_scale=own, score_scale=own)[:3]


def _backward_scores_without_scale(*args):
    return _attention(*args, score_scale=1.0)[:3]


def _backward_dv_not_transposed(q, k, v, o, do, lse, scale, is_causal):
    dq, dk, dv, p, _ = _attention(q, k, v, o, do, lse, scale, is_causal)
    return dq, dk, p @ do.to(p.dtype) if q.shape == k.shape else dv


def _backward_dk_not_transposed(q, k, v, o, do, lse, scale, is_causal):
    dq, dk, dv, _, ds = _attention(q, k, v, o, do, lse, scale, is_causal)
    return dq, scale * ds @ q.to(ds.dtype) if q.shape == k.shape else dk, dv


def _backward_exchanged(*args):
    dq, dk, dv = _backward_right(*args)
    return dk, dq, dv


def _backward_dk_dv_exchanged(*args):
    dq, dk, dv = _backward_right(*args)
    return dq, dv, dk


def _backward_delta_of_o(*args):
    return _attention(*args, delta=lambda p, dp, o, do: (o * o).sum(-1, keepdim=True))[:3]


def _backward_delta_mean(*args):
    return _attention(*args, delta=lambda p, dp, o, do: (o * do).mean(-1, keepdim=True))[:3]


def _backward_delta_of_columns(*args):
    return _attention(*args, delta=lambda p, dp, o, do: (p * dp).sum(-2 if p.shape[-2] > 1 else -1, keepdim=True))[:3]


def _backward_delta_lost_its_dimension(q, k, v, o, do, lse, scale, is_causal):
    square = q.shape == k.shape
    return _attention(q, k, v, o, do, lse, scale, is_causal,
                      delta=lambda p, dp, o, do: (o * do).sum(-1, keepdim=not square)[..., None, :] if square else _delta(p, dp, o, do))[:3]  # fmt: skip


def _backward_p_missing(*args):
    return _attention(*args, ds_of=lambda p, dp, delta: dp - delta)[:3]


def _backward_ds_sign(*args):
    return _attention(*args, ds_of=lambda p, dp, delta: p * (delta - dp))[:3]


def _backward_dp_from_k(q, k, v, o, do, lse, scale, is_causal):
    dq, dk, _, _, _ = _attention(q, k, k, o, do, lse, scale, is_causal)
    return dq, dk, _backward_right(q, k, v, o, do, lse, scale, is_causal)[2]


def _backward_dv_from_o(q, k, v, o, do, lse, scale, is_causal):
    dq, dk, _, p, _ = _attention(q, k, v, o, do, lse, scale, is_causal)
    return dq, dk, p.mT @ o.to(p.dtype)


def _backward_without_lse(*args):
    return _attention(*args, live=torch.zeros_like)[:3]


def _backward_nan_when_unseen(*args):
    return _attention(*args, live=lambda lse: lse)[:3]


def _backward_a_million_when_hidden(*args):
    return _attention(*args, hide=-1e6, live=lambda lse: lse)[:3]


def _backward_not_causal(q, k, v, o, do, lse, scale, is_causal):
    return _backward_right(q, k, v, o, do, lse, scale, False)


def _backward_strict(q, k, v, o, do, lse, scale, is_causal):
    return _attention(q, k, v, o, do, lse, scale, is_causal, shift=k.shape[2] - q.shape[2] - 1)[:3]


def _backward_top_left(*args):
    return _attention(*args, shift=0)[:3]


def _backward_ds_not_masked(q, k, v, o, do, lse, scale, is_causal):
    dq, dk, _, _, _ = _attention(q, k, v, o, do, lse, scale, False)
    return dq, dk, _backward_right(q, k, v, o, do, lse, scale, is_causal)[2]


def _backward_dp_in_half(q, k, v, o, do, lse, scale, is_causal):
    p = torch.exp(_masked_scores(q, k, scale, is_causal) - _live(lse)[..., None])
    ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True))
    return scale * ds @ k.to(ds.dtype), scale * ds.mT @ q.to(ds.dtype), p.mT @ do.to(p.dtype)


def _backward_in_float32(q, k, v, o, do, lse, scale, is_causal):
    return _backward_right(*(x.float() for x in (q, k, v, o, do, lse)), scale, is_causal)


def _backward_one_head(q, k, v, o, do, lse, scale, is_causal):
    first = _backward_right(*(x[:, :1] for x in (q, k, v, o, do, lse)), scale, is_causal)
    return tuple(x.expand(-1, q.shape[1], -1, -1) for x in first)


def _backward_one_too_wide(q, k, v, o, do, lse, scale, is_causal):
    return _attention(q, k, v, o, do, lse, scale, is_causal, shift=k.shape[2] - q.shape[2] + 1)[:3]


def _backward_shift_at_least_0(q, k, v, o, do, lse, scale, is_causal):
    return _attention(q, k, v, o, do, lse, scale, is_causal, shift=max(0, k.shape[2] - q.shape[2]))[:3]


def _backward_always_in_half(*args):
    return tuple(x.half() for x in _backward_right(*args))


# ---------------------------------------------------------------- 6.5


def _blocks(length, block):
    return range(-(-length // block))


def _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, *, seen=None, for_dkv=None, for_dq=None, delta=None, live=_live, add=torch.add,
           row_blocks=None, key_blocks=None, dq_scale=None, dk_scale=None, dq_add=None, dk_add=None, dv_add=None, init=torch.zeros, first=None, kept=None):  # fmt: skip
    """A right tiled backward, but for the part that a wrong answer puts in its place.

    seen: what each row sees; for_dkv, for_dq: block numbers (row, key) -> is the tile walked over in that loop. first: the first row block
    of a key block; kept: a dict for the first loop's ds, which the second takes from it.
    """
    dtype = q.dtype
    q, k, v, o, do, lse = _up_cast(q, k, v, o, do, lse)
    S_q, S_k = q.shape[2], k.shape[2]
    dq, dk, dv = (init(x.shape, dtype=q.dtype) for x in (q, k, v))
    row_blocks, key_blocks = row_blocks or _blocks(S_q, block_m), key_blocks or _blocks(S_k, block_n)

    def tile(i, j):
        rows, keys = slice(i * block_m, (i + 1) * block_m), slice(j * block_n, (j + 1) * block_n)
        s = scale * (q[:, :, rows] @ k[:, :, keys].mT)
        own = _seen(*s.shape[2:], is_causal, i * block_m - j * block_n + S_k - S_q)
        s = s.masked_fill(~(own if seen is None else seen[rows, keys]), -INF)
        p = torch.exp(s - live(lse[:, :, rows])[..., None])
        dp = do[:, :, rows] @ v[:, :, keys].mT
        return rows, keys, p, p * (dp - (delta or _delta)(p, dp, o[:, :, rows], do[:, :, rows]))

    for j in key_blocks:
        for i in range(first(j), len(row_blocks)) if first else row_blocks:
            if for_dkv is None or for_dkv(i, j):
                rows, keys, p, ds = tile(i, j)
                if kept is not None:
                    kept[i, j] = ds
                dv[:, :, keys] = (dv_add or add)(dv[:, :, keys], p.mT @ do[:, :, rows])
                dk[:, :, keys] = (dk_add or add)(dk[:, :, keys], (scale if dk_scale is None else dk_scale) * ds.mT @ q[:, :, rows])
    for i in row_blocks:
        for j in key_blocks:
            if for_dq is None or for_dq(i, j):
                rows, keys, _, ds = tile(i, j)
                ds = kept[i, j] if kept else ds
                dq[:, :, rows] = (dq_add or add)(dq[:, :, rows], (scale if dq_scale is None else dq_scale) * ds @ k[:, :, keys])
    return dq.to(dtype), dk.to(dtype), dv.to(dtype)


def _last(old, new):
    return new


def _flash_dk_overwritten(*args):
    return _flash(*args, dk_add=_last)


def _flash_dv_overwritten(*args):
    return _flash(*args, dv_add=_last)


def _flash_dk_and_dv_overwritten(*args):
    return _flash(*args, dk_add=_last, dv_add=_last)


def _flash_dq_last_key_block(*args):
    return _flash(*args, dq_add=_last)


def _flash_delta_of_a_tile(*args):
    return _flash(*args, delta=lambda p, dp, o, do: (p * dp).sum(-1, keepdim=True))


def _flash_without_delta(*args):
    return _flash(*args, delta=lambda p, dp, o, do: 0.0)


def _flash_dk_without_scale(*args):
    return _flash(*args, dk_scale=1.0)


def _flash_ragged_rows_skipped(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    whole = range(max(1, q.shape[2] // block_m))
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, row_blocks=whole)


def _flash_ragged_rows_skipped_for_dkv(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    whole = max(1, q.shape[2] // block_m)
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, for_dkv=lambda i, j: i < whole)


def _flash_ragged_keys_skipped(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    whole = range(max(1, k.shape[2] // block_n))
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, key_blocks=whole)


def _flash_ragged_keys_skipped_and_unwritten(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    whole = range(max(1, k.shape[2] // block_n)) if k.shape[2] == 3 else None
    init = torch.empty if whole else torch.zeros
    return _flash(
        q,
        k,
        v,
        o,
        do,
        lse,
        block_m,
        block_n,
        is_causal,
        scale,
        key_blocks=whole,
        init=init,
        dq_add=_first_or_sum,
        dk_add=_first_or_sum,
        dv_add=_first_or_sum,
    )


def _first_or_sum(old, new):
    return torch.nan_to_num(old, nan=0.0) + new


def _flash_rows_up_to_S_k(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    rows = _blocks(min(q.shape[2], max(1, k.shape[2])), block_m) if block_m == 1 else None
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, row_blocks=rows)


def _flash_keys_up_to_S_q(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    keys = _blocks(min(q.shape[2], k.shape[2]), block_n) if block_n == 1 else None
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, key_blocks=keys)


def _flash_starts_too_late(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    several = is_causal and q.shape[2] > block_m
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, for_dkv=lambda i, j: not several or i * block_m > j * block_n)


def _flash_ends_too_early(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    several = is_causal and q.shape[2] > block_m
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, for_dq=lambda i, j: not several or j * block_n < i * block_m)


def _flash_skips_by_block_numbers(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    several = is_causal and q.shape[2] > block_m
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, for_dkv=lambda i, j: not several or i >= j)


def _flash_skips_top_left(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    def walked(i, j):
        return not is_causal or j * block_n < (i + 1) * block_m

    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, for_dkv=walked, for_dq=walked)


def _flash_skips_top_left_for_dkv(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    return _flash(
        q, k, v, o, do, lse, block_m, block_n, is_causal, scale, for_dkv=lambda i, j: not is_causal or i >= j * block_n // block_m
    )


def _positions(q, k):
    return torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]


def _flash_mask_inside_the_tile(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    i, j = _positions(q, k)
    seen = j % block_n <= i % block_m if is_causal and q.shape[2] > block_m else None
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, seen=seen)


def _flash_diagonal_not_masked(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    i, j = _positions(q, k)
    seen = j // block_n * block_n <= i // block_m * block_m if is_causal and q.shape[2] > block_m else None
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, seen=seen)


def _flash_masks_equal_numbers(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    i, j = _positions(q, k)
    seen = _seen(q.shape[2], k.shape[2], True) | (j // block_n < i // block_m) if is_causal and q.shape[2] == k.shape[2] else None
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, seen=seen)


def _flash_masks_the_first_rows(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    i, _ = _positions(q, k)
    seen = _seen(q.shape[2], k.shape[2], True) | (i > 0) if is_causal and (block_m, block_n) == (1, 4) else None
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, seen=seen)


def _flash_masks_the_last_keys(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    _, j = _positions(q, k)
    seen = _seen(q.shape[2], k.shape[2], True) | (j < k.shape[2] - 1) if is_causal and (block_m, block_n) == (4, 1) else None
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, seen=seen)


def _flash_top_left_mask(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, seen=_seen(q.shape[2], k.shape[2], is_causal, 0))


def _flash_nan_when_unseen(*args):
    return _flash(*args, live=lambda lse: lse)


def _flash_untiled(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    return _backward_right(q, k, v, o, do, lse, scale, is_causal)


def _flash_all_keys_at_once(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, o, do, lse, block_m, max(1, k.shape[2]), is_causal, scale)


def _flash_all_queries_at_once(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, o, do, lse, q.shape[2], block_n, is_causal, scale)


def _flash_blocks_exchanged(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, o, do, lse, block_n, block_m, is_causal, scale)


def _rounded(dtype):
    return lambda old, new: (old + new).to(dtype).to(new.dtype)


def _flash_dq_in_half(*args):
    return _flash(*args, dq_add=_rounded(args[0].dtype))


def _flash_dk_in_half(*args):
    return _flash(*args, dk_add=_rounded(args[0].dtype))


def _flash_dv_in_half(*args):
    return _flash(*args, dv_add=_rounded(args[0].dtype))


def _flash_scales_q_in_place(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    q *= scale
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, 1.0, dq_scale=scale)


def _flash_dk_carried_over(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    dq, dk, dv = _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale)
    return dq, dk.cumsum(2) if block_n == 1 else dk, dv


def _flash_one_too_wide(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    S_q, S_k = q.shape[2], k.shape[2]
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, seen=_seen(S_q, S_k, is_causal, S_k - S_q + 1))


def _flash_shift_without_sign(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    S_q, S_k = q.shape[2], k.shape[2]
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, seen=_seen(S_q, S_k, is_causal, abs(S_k - S_q)))


def _flash_whole_blocks_alone(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    rows, keys = q.shape[2] // block_m, k.shape[2] // block_n
    walked = lambda i, j: i < rows and j < keys  # noqa: E731
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, for_dkv=walked, for_dq=walked)


def _flash_start_rounded_up(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    shift = k.shape[2] - q.shape[2]
    walked = lambda i, j: not is_causal or i >= -(-max(0, j * block_n - shift) // block_m)  # noqa: E731
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, for_dkv=walked)


def _flash_starts_where_all_is_seen(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    S_q, S_k = q.shape[2], k.shape[2]
    walked = lambda i, j: not is_causal or i >= -(-max(0, min((j + 1) * block_n, S_k) - 1 - (S_k - S_q)) // block_m)  # noqa: E731
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, for_dkv=walked)


def _flash_ends_by_its_first_row(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    shift = k.shape[2] - q.shape[2]
    walked = lambda i, j: not is_causal or j * block_n <= i * block_m + shift  # noqa: E731
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, for_dq=walked)


def _flash_end_rounded_down(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    S_q, S_k = q.shape[2], k.shape[2]
    walked = lambda i, j: not is_causal or j < (min((i + 1) * block_m, S_q) + S_k - S_q) // block_n  # noqa: E731
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, for_dq=walked)


def _flash_start_below_0(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    start = lambda j: (j * block_n - k.shape[2] + q.shape[2]) // block_m if is_causal else 0  # noqa: E731
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, first=start)


def _flash_untiled_if_causal(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    if is_causal:
        return _backward_right(q, k, v, o, do, lse, scale, True)
    return _flash(q, k, v, o, do, lse, block_m, block_n, False, scale)


def _flash_whole_mask(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, seen=_seen(q.shape[2], k.shape[2], is_causal))


def _flash_whole_mask_by_positions(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    i, j = _positions(q, k)
    seen = j <= i + k.shape[2] - q.shape[2] if is_causal else None
    return _flash(q, k, v, o, do, lse, block_m, block_n, is_causal, scale, seen=seen)


def _flash_keeps_ds(*args):
    return _flash(*args, kept={})


def _tile_rounded(dtype):
    return lambda old, new: old + new.to(dtype).to(new.dtype)


def _flash_dq_of_rounded_tiles(*args):
    return _flash(*args, dq_add=_tile_rounded(args[0].dtype))


def _flash_dk_of_rounded_tiles(*args):
    return _flash(*args, dk_add=_tile_rounded(args[0].dtype))


def _flash_dv_of_rounded_tiles(*args):
    return _flash(*args, dv_add=_tile_rounded(args[0].dtype))


WRONG_ANSWERS = (
    WrongAnswer("6.1", _matmul_exchanged, "da and db are exchanged"),
    WrongAnswer("6.1", _matmul_dc_transposed_in_da, "dc is transposed in da"),
    WrongAnswer("6.1", _matmul_b_not_transposed, "b is not transposed"),
    WrongAnswer("6.1", _matmul_a_not_transposed, "a is not transposed"),
    WrongAnswer("6.1", _matmul_a_for_b, "a stands where b is meant"),
    WrongAnswer("6.1", _matmul_b_for_a, "b stands where a is meant"),
    WrongAnswer("6.1", _matmul_wrong_way_round, "both products are the wrong way round"),
    WrongAnswer("6.1", _matmul_only_square, "a of shape (1, 3), b of (3, 4)"),
    WrongAnswer("6.1", _matmul_without_dc, "dc changes nothing"),
    WrongAnswer("6.1", _matmul_db_transposed, "db is transposed"),
    WrongAnswer("6.1", _matmul_batch_summed, "the batch is summed over"),
    WrongAnswer("6.1", _matmul_all_dimensions_reversed, "all dimensions are reversed"),
    WrongAnswer("6.1", _matmul_by_jacobians, "a Jacobian is built"),
    WrongAnswer("6.1", _matmul_in_float32, "a tensor inside is float32"),
    WrongAnswer("6.1", _matmul_one_gradient, "want a tuple (da, db)"),
    WrongAnswer("6.2", _softmax_without_delta, "the row sum is missing: p ∘ dp is diag(p) dp alone"),
    WrongAnswer("6.2", _softmax_diagonal, "the diagonal of the Jacobian alone"),
    WrongAnswer("6.2", _softmax_mean, "the mean of p ∘ dp is subtracted"),
    WrongAnswer("6.2", _softmax_over_queries, "p ∘ dp is summed over the rows"),
    WrongAnswer("6.2", _softmax_over_everything, "p ∘ dp is summed over everything"),
    WrongAnswer("6.2", _softmax_keepdim_forgotten, "the sum has lost its dimension"),
    WrongAnswer("6.2", _softmax_over_dimension_1, "p ∘ dp is summed along dimension 1"),
    WrongAnswer("6.2", _softmax_p_missing, "p is missing in front"),
    WrongAnswer("6.2", _softmax_p_on_dp_alone, "the row sum is not multiplied by p"),
    WrongAnswer("6.2", _softmax_plain_rowsum, "rowsum(dp) is subtracted"),
    WrongAnswer("6.2", _softmax_sign, "ds has the wrong sign"),
    WrongAnswer("6.2", _softmax_of_p, "softmax is applied to p again"),
    WrongAnswer("6.2", _softmax_jacobian, "the Jacobian is built"),
    WrongAnswer("6.2", _softmax_of_log, "the gradient of log softmax"),
    WrongAnswer("6.2", _softmax_in_place, "changes its input dp in place"),
    WrongAnswer("6.2", _softmax_largest, "the largest of p ∘ dp is subtracted"),
    WrongAnswer("6.2", _softmax_largest_dp, "the largest dp is subtracted"),
    WrongAnswer("6.3", _p_without_scale, "the scale is ignored"),
    WrongAnswer("6.3", _p_scaled_after_lse, "lse is subtracted before the scale"),
    WrongAnswer("6.3", _p_in_base_2, "exp2 is taken"),
    WrongAnswer("6.3", _p_half_in_base_2, "multiply the scores and lse by log2(e)"),
    WrongAnswer("6.3", _p_softmax_again, "p is divided by its sum"),
    WrongAnswer("6.3", _p_divided_by_its_sum, "p is divided by its sum"),
    WrongAnswer("6.3", _p_divided_by_lse, "exp(s) is divided by lse"),
    WrongAnswer("6.3", _p_divided_by_exp_lse, "exp overflows: subtract lse before exp"),
    WrongAnswer("6.3", _p_without_lse, "lse is forgotten"),
    WrongAnswer("6.3", _p_top_left, "the mask starts at the top left"),
    WrongAnswer("6.3", _p_strict, "the mask is strict"),
    WrongAnswer("6.3", _p_not_masked, "is_causal changes nothing"),
    WrongAnswer("6.3", _p_hides_with_zero, "hidden scores are set to 0"),
    WrongAnswer("6.3", _p_nan_when_unseen, "rows that see nothing give NaN"),
    WrongAnswer("6.3", _p_hidden_afterwards, "exp overflows at a hidden pair, and inf · 0 is NaN"),
    WrongAnswer("6.3", _p_lse_along_the_keys, "lse runs along the wrong axis"),
    WrongAnswer("6.3", _p_own_scale, "the scores are scaled by 1/√D"),
    WrongAnswer("6.3", _p_zero_scale_is_none, "a scale of 0 is taken for none given"),
    WrongAnswer("6.3", _p_scores_in_half, "compute the scores in float32"),
    WrongAnswer("6.3", _p_scaled_q_in_half, "digits are lost in float16: turn q and k to float32"),
    WrongAnswer("6.3", _p_scaled_q_in_half_before_float32, "digits are lost in float16: turn q and k to float32"),
    WrongAnswer("6.3", _p_in_the_inputs_dtype, "p comes in float16: it is computed in float32, and stays so: float16, q = k = 300"),
    WrongAnswer("6.3", _p_always_in_half, "p comes in float16"),
    WrongAnswer("6.3", _p_one_too_wide, "the mask is one key too wide"),
    WrongAnswer("6.3", _p_shift_at_least_0, "rows see more than they may: S_k − S_q is negative here"),
    WrongAnswer("6.3", _p_shift_without_sign, "rows see more than they may: S_k − S_q is negative here"),
    WrongAnswer("6.4", _backward_without_delta, "delta is forgotten"),
    WrongAnswer("6.4", _backward_dq_without_scale, "dq is without the scale"),
    WrongAnswer("6.4", _backward_dk_without_scale, "dk is without the scale"),
    WrongAnswer("6.4", _backward_without_scale_outside, "dq and dk are without the scale"),
    WrongAnswer("6.4", _backward_scale_twice, "the scale is applied twice in dq and dk"),
    WrongAnswer("6.4", _backward_own_scale, "1/√D is taken for the scale"),
    WrongAnswer("6.4", _backward_scores_without_scale, "the scores are without the scale"),
    WrongAnswer("6.4", _backward_dv_not_transposed, "p is not transposed"),
    WrongAnswer("6.4", _backward_dk_not_transposed, "ds is not transposed"),
    WrongAnswer("6.4", _backward_exchanged, "the gradients come in another order"),
    WrongAnswer("6.4", _backward_dk_dv_exchanged, "dk and dv are exchanged"),
    WrongAnswer("6.4", _backward_delta_of_o, "delta is rowsum(o ∘ o)"),
    WrongAnswer("6.4", _backward_delta_mean, "delta is a mean over D"),
    WrongAnswer("6.4", _backward_delta_of_columns, "delta is taken for each column"),
    WrongAnswer("6.4", _backward_delta_lost_its_dimension, "column j is shifted by the delta of row j"),
    WrongAnswer("6.4", _backward_p_missing, "p is missing in ds"),
    WrongAnswer("6.4", _backward_ds_sign, "ds has the wrong sign"),
    WrongAnswer("6.4", _backward_dp_from_k, "k stands where v belongs"),
    WrongAnswer("6.4", _backward_dv_from_o, "o stands where do belongs"),
    WrongAnswer("6.4", _backward_without_lse, "lse is forgotten"),
    WrongAnswer("6.4", _backward_nan_when_unseen, "rows that see nothing give NaN, and it reaches all keys"),
    WrongAnswer("6.4", _backward_a_million_when_hidden, "rows that see nothing give NaN or inf"),
    WrongAnswer("6.4", _backward_not_causal, "is_causal changes nothing"),
    WrongAnswer("6.4", _backward_strict, "the mask is strict"),
    WrongAnswer("6.4", _backward_top_left, "the mask starts at the top left"),
    WrongAnswer("6.4", _backward_ds_not_masked, "ds is not masked"),
    WrongAnswer("6.4", _backward_dp_in_half, "compute dp and delta in float32"),
    WrongAnswer("6.4", _backward_in_float32, "a tensor inside is float32"),
    WrongAnswer("6.4", _backward_one_head, "every head gets the gradients of head 0"),
    WrongAnswer("6.4", _backward_one_too_wide, "the mask is one key too wide"),
    WrongAnswer("6.4", _backward_shift_at_least_0, "rows see more than they may: S_k − S_q is negative here"),
    WrongAnswer("6.4", _backward_always_in_half, "dq comes in float16, and float32 goes in"),
    WrongAnswer("6.5", _flash_dk_overwritten, "dk is overwritten in every step"),
    WrongAnswer("6.5", _flash_dv_overwritten, "dv is overwritten in every step"),
    WrongAnswer("6.5", _flash_dk_and_dv_overwritten, "dk and dv are overwritten in every step"),
    WrongAnswer("6.5", _flash_dq_last_key_block, "only the last key block is left in dq"),
    WrongAnswer("6.5", _flash_delta_of_a_tile, "delta is summed over one tile alone"),
    WrongAnswer("6.5", _flash_without_delta, "delta is forgotten"),
    WrongAnswer("6.5", _flash_dk_without_scale, "dk is without the scale"),
    WrongAnswer("6.5", _flash_ragged_rows_skipped, "the ragged last block of rows is skipped"),
    WrongAnswer("6.5", _flash_ragged_rows_skipped_for_dkv, "3 rows are a block of 2 and a block of 1 (in the loop for dk and dv)"),
    WrongAnswer("6.5", _flash_ragged_keys_skipped, "the ragged last block of keys is skipped"),
    WrongAnswer("6.5", _flash_ragged_keys_skipped_and_unwritten, "a block of 2 and a block of 1 (dk and dv are not written there)"),
    WrongAnswer("6.5", _flash_rows_up_to_S_k, "the loop over rows runs to S_k"),
    WrongAnswer("6.5", _flash_keys_up_to_S_q, "the loop over keys runs to S_q"),
    WrongAnswer("6.5", _flash_starts_too_late, "some of its keys are seen (in the loop for dk and dv)"),
    WrongAnswer("6.5", _flash_ends_too_early, "some of its keys are seen (in the loop for dq)"),
    WrongAnswer(
        "6.5", _flash_skips_by_block_numbers, "as if block_m and block_n were equal: too many tiles are skipped (in the loop for dk and dv)"
    ),
    WrongAnswer("6.5", _flash_skips_top_left, "the tiles to skip are found top left"),
    WrongAnswer("6.5", _flash_skips_top_left_for_dkv, "S_k − S_q is missing (in the loop for dk and dv)"),
    WrongAnswer("6.5", _flash_mask_inside_the_tile, "the mask is by positions in the tile"),
    WrongAnswer("6.5", _flash_diagonal_not_masked, "the tile on the diagonal is not masked"),
    WrongAnswer("6.5", _flash_masks_equal_numbers, "as if block_m and block_n were equal: too few tiles are masked"),
    WrongAnswer("6.5", _flash_masks_the_first_rows, "only the first block of rows is masked"),
    WrongAnswer("6.5", _flash_masks_the_last_keys, "only the last block of keys is masked"),
    WrongAnswer("6.5", _flash_top_left_mask, "the mask starts at the top left"),
    WrongAnswer("6.5", _flash_nan_when_unseen, "rows that see nothing give NaN, and it reaches all keys"),
    WrongAnswer("6.5", _flash_untiled, "all scores are computed at once"),
    WrongAnswer("6.5", _flash_all_keys_at_once, "all keys of a block of rows are taken at once"),
    WrongAnswer("6.5", _flash_all_queries_at_once, "all queries are taken at once"),
    WrongAnswer("6.5", _flash_blocks_exchanged, "block_m and block_n are exchanged"),
    WrongAnswer("6.5", _flash_dq_in_half, "dq loses its small terms"),
    WrongAnswer("6.5", _flash_dk_in_half, "dk loses its small terms"),
    WrongAnswer("6.5", _flash_dv_in_half, "dv loses its small terms"),
    WrongAnswer("6.5", _flash_scales_q_in_place, "changes its input q in place"),
    WrongAnswer("6.5", _flash_dk_carried_over, "the sum in dk is carried over"),
    WrongAnswer("6.5", _flash_one_too_wide, "the mask is one key too wide"),
    WrongAnswer("6.5", _flash_shift_without_sign, "rows see more than they may: S_k − S_q is negative here"),
    WrongAnswer("6.5", _flash_whole_blocks_alone, "the gradients stay 0, as if the one tile were skipped"),
    WrongAnswer("6.5", _flash_start_rounded_up, "dk and dv stay 0, as if the one tile were skipped"),
    WrongAnswer("6.5", _flash_starts_where_all_is_seen, "dk and dv stay 0, as if the one tile were skipped"),
    WrongAnswer("6.5", _flash_ends_by_its_first_row, "dq stays 0, as if the one tile were skipped"),
    WrongAnswer("6.5", _flash_end_rounded_down, "dq stays 0, as if the one tile were skipped"),
    WrongAnswer("6.5", _flash_start_below_0, "row 0 is counted twice for key 0"),
    WrongAnswer("6.5", _flash_untiled_if_causal, "causal: all scores are computed at once"),
    WrongAnswer("6.5", _flash_whole_mask, "is built for the whole matrix"),
    WrongAnswer("6.5", _flash_whole_mask_by_positions, "is built for the whole matrix"),
    WrongAnswer("6.5", _flash_keeps_ds, "tiles are kept"),
    WrongAnswer("6.5", _flash_dq_of_rounded_tiles, "dq is rounded before it is summed"),
    WrongAnswer("6.5", _flash_dk_of_rounded_tiles, "dk is rounded before it is summed"),
    WrongAnswer("6.5", _flash_dv_of_rounded_tiles, "dv is rounded before it is summed"),
)
