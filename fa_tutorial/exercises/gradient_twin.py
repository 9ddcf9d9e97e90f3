"""Attention's backward in float64, right or with one of the mistakes that readers make: the twin of chapter 6's exercises.

It recomputes p from q, k and lse, unless p is given, and computes dq, dk and dv by matmuls of whole matrices. It never loops over tiles: a matrix of
booleans says which pairs a wrong loop leaves out, or fails to mask. Each exercise lists the mistakes that it knows in its MISTAKES.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F

from fa_tutorial.exercises.inputs import exp32
from fa_tutorial.exercises.running import INF, UNWRITTEN


def scores(q, k, scale, mistake=None):
    """s = scale · q kᵀ in float64."""
    half, own = q.dtype == torch.float16, q.shape[-1] ** -0.5
    scale = {"scale_ignored": 1.0, "scores_unscaled": 1.0, "scale_own": own, "scale_both": scale * own, "scale_twice": scale**2,
             "scale_divides": scale and 1 / scale, "scale_zero": scale or 1.0}.get(mistake, scale)  # fmt: skip
    if half and mistake == "half_scale":
        q, scale = q * scale, 1.0
    s = q.double() @ k.double().mT
    return (scale * s.half().double()).half().double() if half and mistake == "half_scores" else scale * s


@functools.cache
def seen(S_q, S_k, block_m, block_n, is_causal, mistake=None):
    """Booleans (S_q, S_k): which pairs count. The causal mask leaves pairs out, and so does a loop that skips their tile."""
    i, j, shift = torch.arange(S_q)[:, None], torch.arange(S_k)[None, :], S_k - S_q
    row_block, key_block = i // block_m, j // block_n
    first, first_key = row_block * block_m, key_block * block_n
    last, last_key = (first + block_m - 1).clamp(max=S_q - 1), (first_key + block_n - 1).clamp(max=S_k - 1)
    start, end = (first_key - shift).clamp(min=0) // block_m, -(-(last + 1 + shift).clamp(min=0) // block_n)
    right = (j <= i + shift) | (not is_causal)
    right &= {"ragged_rows": row_block < S_q // block_m, "ragged_keys": key_block < S_k // block_n, "rows_to_S_k": first < S_k,
              "keys_to_S_q": first_key < S_q}.get(mistake, right | True)  # fmt: skip
    return right if not is_causal else {
        "no_mask": right | True,
        "strict": j < i + shift,
        "wide": j <= i + shift + 1,
        "upside": j >= i + shift,
        "top_left": j <= i,
        "shift_sign": j <= i - shift,
        "shift_opens": right | (shift > 0),
        "shift_clipped": j <= i + max(0, shift),
        "by_place": j % block_n <= i % block_m + shift,
        "keys_by_place": j % block_n <= i + shift,
        "rows_by_place": j <= i % block_m + shift,
        "diagonal_open": first_key <= last + shift,
        "diagonal_skipped": last_key <= first + shift,
        "above_open": right | (first_key > last + shift),
        "below_skipped": right & (last_key > first + shift),
        "numbers_skip": right & (key_block <= row_block),
        "numbers_mask": right | (key_block < row_block),
        "skip_top_left": right & (first_key <= last),
        "skip_sign": right & (first_key <= last - shift),
        "first_row_decides": right & (first_key <= first + shift),
        "end_down": right & (first_key + block_n - 1 <= last + shift),
        "mask_first": right | (row_block > start),
        "mask_last": right | (key_block < end - 1),
    }.get(mistake, right)  # fmt: skip


def weights(q, k, lse, block_m, block_n, is_causal, scale, mistake=None):
    """p = exp(s − lse), 0 where a pair does not count. (B, H, S_q, S_k)"""
    s, lse = scores(q, k, scale, mistake), lse.double()[..., None]
    counts, unseen = seen(q.shape[2], k.shape[2], block_m, block_n, is_causal, mistake), lse == -INF
    if mistake == "hide_zero":
        s, counts = s.masked_fill(~counts, 0.0), counts | True
    lse = {"no_lse": 0 * lse.masked_fill(unseen, 0.0), "lse_columns": lse.mT}.get(mistake, lse)
    p = exp32(s - lse).masked_fill(~counts | unseen, 0.0)
    if mistake in ("unseen_nan", "unseen_inf"):
        return p.masked_fill(unseen, math.nan if mistake == "unseen_nan" else INF)
    if mistake == "start_below_0":  # a slice with a negative start takes row i once more, as row i − S_q
        i, j, shift = torch.arange(-q.shape[2], 0)[:, None], torch.arange(k.shape[2])[None, :], k.shape[2] - q.shape[2]
        p = p * (1 + ((i < -block_m) & (i >= (j // block_n * block_n - shift) // block_m * block_m) & (j <= i + shift)))
    return p


@functools.lru_cache(maxsize=8192)  # the harness asks often for the same input; a tensor equals only itself as a key
def gradient_twin(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale, mistake=None, p=None):
    """(dq, dk, dv) of attention. q, do: (B, H, S_q, D); k, v: (B, H, S_k, D); lse, delta: (B, H, S_q).

    p: (B, H, S_q, S_k), used in place of the p that q, k and lse give; then delta is rowsum(p ∘ dp), and lse and delta are None.
    """
    args, how = (q, k, v, do, lse, delta), (block_m, block_n, is_causal, scale)
    if mistake in ("one_head", "one_batch", "heads_summed"):
        grads = gradient_twin(*args, *how, None, p)
        part = {"one_head": lambda x: x[:, :1], "one_batch": lambda x: x[:1], "heads_summed": lambda x: x.sum(1, keepdim=True)}[mistake]
        return tuple(part(x).expand(x.shape) for x in grads)
    p = weights(q, k, lse, *how, mistake) if p is None else p.double()
    plain = weights(q, k, lse, block_m, block_n, False, scale) if mistake == "ds_unmasked" else p
    half, dtype, (q, k, v, do) = q.dtype == torch.float16, q.dtype, (x.double() for x in args[:4])
    S_q, S_k, own = q.shape[2], k.shape[2], q.shape[3] ** -0.5
    row_block, key_block = torch.arange(S_q)[:, None] // block_m, torch.arange(S_k)[None, :] // block_n
    dp = do @ {"dp_from_k": k.mT, "dp_v": v}.get(mistake, v.mT)
    dp = scale * dp if mistake == "dp_scaled" else dp
    rounded = mistake if half else None  # a mistake in what is rounded to float16
    dp = dp.half().double() if rounded == "half_dp" else dp
    weighted = p * dp
    delta = weighted.sum(-1, keepdim=True) if delta is None else delta.double()[..., None]
    delta = _delta(delta, dp, weighted, key_block, mistake)
    ds = plain * (dp - delta)
    ds = {"ds_sign": lambda: -ds, "no_p": lambda: dp - delta, "delta_outside": lambda: weighted - delta, "ds_is_dp": lambda: dp}.get(
        mistake, lambda: ds
    )()
    outside = {"scale_ignored": 1.0, "scale_own": own, "both_unscaled": 1.0, "both_twice": scale**2, "own_outside": own}.get(mistake, scale)
    first_rows, last_rows, last_keys = row_block == 0, row_block == row_block[-1:], key_block == key_block[:, -1:]
    ds_q = {"dq_ds_transposed": ds.mT, "p_for_ds": p}.get(mistake, ds)
    kept = {"dq_over": last_keys, "all_over": last_keys, "dq_first_keys": key_block == 0}.get(mistake)
    ds_q = ds_q if kept is None else ds_q * kept
    dq = _added("dq", ds_q, {"dq_from_v": v, "dq_from_q": q}.get(mistake, k), key_block, rounded)
    dq = dq * {"dq_unscaled": 1.0, "dq_twice": scale**2}.get(mistake, outside)
    ds_k, p_v = {"dk_ds": ds.mT, "p_for_ds": p}.get(mistake, ds), {"dv_p": p.mT, "dv_from_ds": ds}.get(mistake, p)
    if mistake in ("all_over", "dkv_over", "dk_over", "dv_over", "dkv_first_rows"):
        kept = first_rows if mistake == "dkv_first_rows" else last_rows
        ds_k, p_v = ds_k if mistake == "dv_over" else ds_k * kept, p_v if mistake == "dk_over" else p_v * kept
    right = {"dk_from_do": do, "dk_from_k": k, "dk_from_dq": dq}.get(mistake, q)
    dk = _added("dk", ds_k.mT, right, row_block.mT, rounded)
    dk = dk * {"dk_unscaled": 1.0, "dk_twice": scale**2}.get(mistake, outside)
    dv = _added("dv", p_v.mT, {"dv_from_v": v}.get(mistake, do), row_block.mT, rounded)
    dv = dv * scale if mistake == "dv_scaled" else dv
    if mistake in ("dk_carried", "dv_carried", "dkv_carried"):
        dk, dv = (dk if mistake == "dv_carried" else _carried(dk, block_n)), (dv if mistake == "dk_carried" else _carried(dv, block_n))
    gone = {"ragged_rows": row_block >= S_q // block_m, "rows_to_S_k": row_block * block_m >= S_k, "dq_first_rows": ~first_rows,
            "dq_never": row_block >= 0}.get(mistake)  # fmt: skip
    dq = dq if gone is None else dq.masked_fill(gone, UNWRITTEN)
    gone = {"ragged_keys": key_block >= S_k // block_n, "keys_to_S_q": key_block * block_n >= S_q, "dkv_first_keys": key_block > 0,
            "dk_never": key_block >= 0, "dv_never": key_block >= 0}.get(mistake)  # fmt: skip
    dk = dk if gone is None or mistake == "dv_never" else dk.masked_fill(gone.mT, UNWRITTEN)
    dv = dv if gone is None or mistake == "dk_never" else dv.masked_fill(gone.mT, UNWRITTEN)
    if mistake == "half_grads" and dtype == torch.float32:
        dq, dk, dv = (x.half().double() for x in (dq, dk, dv))
    return {"exchanged": (dk, dq, dv), "dk_dv": (dq, dv, dk), "turned": (dv, dk, dq)}.get(mistake, (dq, dk, dv))


def _delta(delta, dp, weighted, key_block, mistake):
    """What is subtracted from dp in place of delta. weighted: p ∘ dp."""
    return {
        "no_delta": lambda: 0 * delta,
        "delta_plus": lambda: -delta,
        "delta_dp": lambda: dp.sum(-1, keepdim=True),
        "delta_mean": lambda: weighted.mean(-1, keepdim=True),
        "delta_columns": lambda: weighted.sum(-2, keepdim=True),
        "delta_lost": lambda: delta.mT,
        "delta_all": lambda: delta.sum((-1, -2), keepdim=True),
        "delta_tile": lambda: weighted @ (key_block.mT == key_block).double(),
    }.get(mistake, lambda: delta)()


def _added(name, left, right, blocks, rounded):
    """left @ right, added up over the blocks that left's columns lie in: half_… rounds the sum to float16 each time, tile_… each block's product."""
    if rounded not in (f"half_{name}", f"tile_{name}"):
        return left @ right
    total = torch.zeros(())
    for block in range(int(blocks.max()) + 1):
        tile = (left * (blocks == block)) @ right
        total = (total + tile).half().double() if rounded == f"half_{name}" else total + tile.half().double()
    return total


def _carried(x, block):
    """Every block of rows of x with what the blocks before it gave added, row by row."""
    padded = F.pad(x, (0, 0, 0, -x.shape[2] % block)).unflatten(2, (-1, block))
    return padded.cumsum(2).flatten(2, 3)[:, :, : x.shape[2]]
