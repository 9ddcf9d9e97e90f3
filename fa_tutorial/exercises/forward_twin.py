"""The tiled forward in float64, and with each mistake that readers make in it: the twin of chapter 4's exercises and of chapter 5's kernels.

Blocks of keys join a running state (m, l, acc), as in the kernels, so that a mistake in the state, in the mask or in a bound of a loop gives here
what it gives in an answer. An exercise names the mistakes that it knows in its MISTAKES, by the names that stand here.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from fa_tutorial import algorithm
from fa_tutorial.exercises.harness import ANYTHING
from fa_tutorial.exercises.inputs import exp32
from fa_tutorial.exercises.running import INF, UNWRITTEN

# Mistakes that leave rows with l = 0, by a mask or because exp underflows: what comes out there, 0 or NaN, depends on how the answer divides.
LEAVES_NOTHING = {
    *(
        "strict",
        "upside",
        "mask_inverted",
        "by_place",
        "by_place_skips",
        "by_place_keys",
        "by_place_rows",
        "by_place_keys_skips",
        "by_place_rows_skips",
        "edge_rows",
        "edge_by_place",
        "from_full",
        "top_left",
        "shift_sign",
        "skip_top_left",
        "numbers_skip",
    ),
    *("diagonal_skipped", "last_skipped", "end_first", "end_block_n", "end_down", "end_early"),
    *("from_zero", "from_finite", "m_raw", "mask_maximum", "one_maximum", "max_down", "m_columns", "max_columns"),
}
# Whole blocks of keys are computed, past S_k too.
PADDED = ("keys_zeros", "pads_finite", "pads_v", "mask_start", "mask_one_more", "mask_rows", "mask_off")


def forward_twin(q, k, v, block_m, block_n, is_causal, scale, mistake=None):
    """(o, lse) of attention. q: (B, H, S_q, D); k, v: (B, H, S_k, D)."""
    half = q.dtype == torch.float16
    if mistake in ("one_head", "one_batch"):
        part = (slice(None), slice(0, 1)) if mistake == "one_head" else (slice(0, 1),)
        o, lse = forward_twin(q[part], k[part], v[part], block_m, block_n, is_causal, scale)
        return o.expand(q.shape), lse.expand(q.shape[:3])
    if mistake == "half_scale" and half:
        q, scale = q * scale, 1.0
    q, k, v = q.double(), k.double(), (k if mistake == "k_for_v" else v).double()
    S_q, S_k, own = q.shape[2], k.shape[2], q.shape[3] ** -0.5
    scale = {"scale_own": own, "scale_both": scale * own, "scale_ignored": 1.0, "scale_twice": scale**2, "scale_divides": scale and 1 / scale,
             "scale_zero": scale or own, "base_2": scale * math.log(2)}.get(mistake, scale)  # fmt: skip
    end = {"keys_dropped": min(S_k, max(S_k // block_n, 1) * block_n), "keys_to_S_q": min(S_k, S_q), "first_block": min(S_k, block_n),
           **dict.fromkeys(PADDED, -(-S_k // block_n) * block_n)}.get(mistake, S_k)  # fmt: skip
    k, v = (F.pad(x, (0, 0, 0, max(0, end - S_k)), value=value) for x, value in ((k, 0.0), (v, math.nan if mistake == "pads_v" else 0.0)))
    stop = min(S_q, end) if mistake == "loop_to_S_q" else end
    starts = range(-(-S_k // block_n)) if mistake == "one_on" else range(0, stop, block_m if mistake == "step_m" else block_n)
    low = {"from_zero": 0.0, "from_finite": -1e4}.get(mistake, -INF)
    o, lse, state = torch.full_like(q, UNWRITTEN), torch.full(q.shape[:3], UNWRITTEN, dtype=torch.float64), None
    for start in range(0, S_q, block_m):
        if start and (mistake == "first_rows" or (mistake == "rows_dropped" and start + block_m > S_q)):
            continue
        rows = slice(start, min(start + block_m, S_q))
        i, q_tile = torch.arange(rows.start, rows.stop)[:, None], q[:, :, : rows.stop - start] if mistake == "first_q" else q[:, :, rows]
        if not (mistake == "carried" and state and state[1].shape == q_tile.shape[:3]):
            l = torch.zeros(q_tile.shape[:3], dtype=torch.float64)
            state = torch.full_like(l, low), l, torch.zeros_like(q_tile)
        tiles = []
        if (mistake or "").endswith("_in_tiles"):
            starts = _counted_in_tiles(rows, S_q, S_k, block_m, block_n, is_causal, mistake)
        elif mistake == "full_unrounded" and is_causal:
            full = max(0, start + 1 + S_k - S_q)
            starts = *range(0, full, block_n), *range(full, rows.stop + S_k - S_q, block_n)
        for key in starts:
            j = torch.arange(key, min(key + (block_m if mistake == "width_m" else block_n), end))
            k_tile = k[:, :, j - key if mistake == "first_k" else j]
            s = q_tile @ (k_tile if mistake == "k_not_turned" else k_tile.mT)
            s = scale * (s.half().double() if mistake == "half_scores" and half else s)
            seen = (
                _seen(i, j[None, :], rows, S_q, S_k, block_m, block_n, mistake)
                if is_causal
                else torch.ones(len(i), len(j), dtype=torch.bool)
            )
            top = {"mask_maximum": s, "m_raw": s / (scale or 1.0)}.get(mistake)
            s = s.masked_fill(~seen, {"hide_zero": 0.0, "unseen_finite": -1e6}.get(mistake, -INF))
            if mistake == "nan_mask" and (j[-1] >= max(0, start + 1 + S_k - S_q)):  # 0 · ∞ where a masked tile hides nothing
                s = s.masked_fill(seen, math.nan)
            missing = {"mask_start": j - key, "mask_one_more": j - 1, "mask_rows": key + i - start}.get(mistake, j) >= S_k
            s = s.masked_fill(seen & missing, {"keys_zeros": 0.0, "mask_off": 0.0, "pads_finite": -1e4}.get(mistake, -INF))
            tiles.append(s)
            if not seen.any() and mistake not in ("hide_zero", "unseen_finite", "none_skipped"):
                continue
            kept = j[None, :] <= i + S_k - S_q if is_causal and mistake == "mask_after" else torch.ones(())
            v_tile = v[:, :, j - key if mistake == "first_v" else j]
            state = _join(state, s, (s if top is None else top).amax(-1), v_tile, kept, half, mistake)
        if mistake == "divided_keys":
            state = state[0], torch.full_like(state[1], block_n), state[2]
        place = slice(0, rows.stop - start) if mistake == "first_place" else rows
        o[:, :, place], lse[:, :, place] = _finish(state, tiles, scale, half, mistake)
    o = torch.full_like(o, UNWRITTEN) if mistake == "o_zero" else o
    lse = torch.full_like(lse, UNWRITTEN) if mistake == "lse_never" else lse
    return (lse, o) if mistake == "exchanged" else (o, lse)


def _counted_in_tiles(rows, S_q, S_k, block_m, block_n, is_causal, mistake):
    """Where the tiles of two loops over keys start, if full, end or both are numbers of tiles."""
    full, end = algorithm.all_tiles(block_n, S_k)
    if is_causal:
        full, end = algorithm.causal_tiles(rows.start // block_m, block_m, block_n, S_q, S_k)
    full *= 1 if "full" in mistake else block_n
    end *= 1 if "end" in mistake else block_n
    return *range(0, full, block_n), *range(full, min(end, S_k), block_n)


def _seen(i, j, rows, S_q, S_k, block_m, block_n, mistake):
    """Which keys j the queries i of a block of rows see."""
    shift, row_block, key_block, first, last = S_k - S_q, i // block_m, j // block_n, rows.start, rows.stop - 1
    seen = j <= i + shift
    end = {"end_first": min(block_m, S_q) + shift, "end_block_n": (first // block_m + 1) * block_n + shift,
           "end_down": (last + 1 + shift) // block_n * block_n, "end_early": last + shift,
           "end_as_key": -(-(last + 1 + shift) // block_n)}.get(mistake)  # fmt: skip
    if end is not None:  # of the loop over the keys, which goes by whole blocks
        return seen & (key_block * block_n < end)
    full = max(0, first + 1 + shift) // block_n  # tiles that the first row sees whole
    whole, computed = key_block < full, key_block * block_n <= last + shift
    return {
        "edge_rows": whole | ((j <= i % block_m + shift) & computed),
        "edge_by_place": whole | ((j % block_n <= i % block_m + shift) & computed),
        "edge_last": computed & (seen | ((key_block + 1) * block_n <= last + shift)),
        "edge_first": computed & (seen | (key_block > full)),
        "from_full": seen & ~whole,
        "no_mask": seen | True,
        "mask_after": seen | True,
        "strict": j < i + shift,
        "upside": j >= i + shift,
        "mask_inverted": (whole | (j > i + shift)) & computed,
        "by_place": j % block_n <= i % block_m,
        "by_place_skips": (j % block_n <= i % block_m) & (key_block * block_n <= last + shift),
        "by_place_keys": j % block_n <= i,
        "by_place_keys_skips": (j % block_n <= i) & (key_block * block_n <= last + shift),
        "by_place_rows": j <= i % block_m,
        "by_place_rows_skips": (j <= i % block_m) & (key_block * block_n <= last + shift),
        "diagonal_open": key_block * block_n <= last + shift,
        "mask_off": key_block * block_n <= last + shift,
        "full_unrounded": seen | (j.min() < max(0, first + 1 + shift)),
        "full_last": seen | ((key_block + 1) * block_n <= last + 1 + shift),
        "mask_top_left": ((j <= i) | ((key_block + 1) * block_n <= first + 1 + shift)) & (key_block * block_n <= last + shift),
        "diagonal_skipped": (key_block + 1) * block_n - 1 <= first + shift,
        "above_open": seen | (key_block * block_n > last + shift),
        "numbers_skip": seen & (key_block <= row_block),
        "numbers_mask": seen | (key_block < row_block),
        "tiles_of_start": seen | (key_block < max(0, first * block_m + 1 + shift) // block_n),
        "last_skipped": seen & (key_block != (last + shift) // block_n),
        "top_left": j <= i,
        "shift_clamped": j <= i + max(0, shift),
        "shift_sign": j <= i - shift,
        "skip_top_left": seen & (key_block * block_n <= (row_block + 1) * block_m - 1),
    }.get(mistake, seen)


def _finite(m):
    return m.masked_fill(m == -INF, 0.0)


def _join(state, s, own, v, kept, half, mistake):
    """m, l and acc after another block of scores, own being their maximum. kept: the weights that a mask after the softmax leaves."""
    m, l, acc = state
    is_new = m == -INF
    if mistake == "exponent_sign":
        s, own, m = -s, (-s).amax(-1), torch.where(is_new, m, -m)  # a right step on negated scores; m is turned round again below
    own = s.amax((-1, -2))[..., None].expand(own.shape) if mistake == "one_maximum" else own
    if mistake in ("max_down", "both_down", "max_columns"):
        own = s.amax(-2)  # of the queries, one for each key: needs as many rows as keys
    m_new = own if mistake in ("falls", "last_block") else torch.maximum(m, own)
    still = mistake in ("unshifted", "exp_alone")
    shift = 0 * _finite(m_new) if still else _finite(own) if mistake == "both_kept" else _finite(m_new)
    p = exp32(s - (shift[..., None, :] if mistake in ("m_columns", "max_columns") else shift[..., None]))
    p_own = exp32(s - _finite(own)[..., None]) if mistake in ("own_maximum", "own_l") else p
    p_acc = p if mistake == "own_l" else p_own
    if mistake in ("over_queries", "by_itself"):
        p_acc = torch.softmax(s, -2 if mistake == "over_queries" else -1)
    p_acc = p_acc * kept
    sums = p_own.sum(-2 if mistake in ("sum_down", "both_down") else -1)
    sums = p_own.sum((-1, -2))[..., None].expand(l.shape) if mistake == "one_l" else sums
    one, none = torch.ones_like(l), torch.zeros_like(l)
    alpha = one if still or mistake in ("both_kept", "alpha_one") else exp32(m - shift)
    alpha = alpha.masked_fill(is_new, math.nan) if mistake == "nan_first" else alpha
    inverted = exp32(shift - m).masked_fill(is_new, 0.0) if "inverted" in (mistake or "") else none
    p_acc = p_acc * alpha.masked_fill(is_new, 1.0)[..., None] if mistake == "new_rescaled" else p_acc
    rescale = {"acc_divided": one, "over_queries": one, "by_itself": one, "acc_kept": one, "inverted": inverted, "acc_inverted": inverted, "last_acc": none,
               "last_block": none}.get(mistake, alpha)  # fmt: skip
    p_acc = p_acc * alpha[..., None] if mistake == "acc_after" else p_acc
    acc = acc / alpha[..., None] if mistake == "acc_divided" else acc
    acc = (rescale[..., None, :] if mistake == "alpha_columns" else rescale[..., None]) * acc + p_acc @ v
    l = {"l_kept": one, "inverted": inverted, "l_inverted": inverted, "last_l": none, "last_block": none}.get(mistake, alpha) * l + sums
    acc = acc / l.masked_fill(l == 0, 1.0)[..., None] if mistake in ("divided_early", "divided_twice") else acc
    return -m_new if mistake == "exponent_sign" else m_new, l, acc.half().double() if half and mistake == "half_acc" else acc


def _finish(state, tiles, scale, half, mistake):
    """o and lse of a block of rows, from its state and its tiles of scores."""
    m, l, acc = state
    nothing = l == 0
    o = (
        acc
        if mistake in ("not_divided", "exp_alone", "by_itself", "divided_early", "over_queries")
        else acc / l.masked_fill(nothing, 1.0).unsqueeze(-2 if mistake == "l_columns" else -1)
    )
    lse = l.log() if mistake == "unshifted" else m + l.log()
    if tiles and (mistake or "").startswith("lse_"):
        raw = torch.cat(tiles, -1) / (scale or 1.0)
        lse = {"lse_m": m, "lse_log_l": l.log(), "lse_l": l, "lse_m_l": m + l, "lse_log2": m + l.log2(), "lse_minus": m - l.log(),
               "lse_minus_m": l.log() - m, "lse_base_2": lse / math.log(2), "lse_m_raw": m / (scale or 1.0) + l.log(),
               "lse_tile": torch.logsumexp(tiles[-1], -1),
               "lse_raw": torch.logsumexp(raw, -1), "lse_last_l": m + exp32(tiles[-1] - m[..., None]).sum(-1).log(),
               "lse_first_m": tiles[0].amax(-1) + l.log(), "lse_last_m": tiles[-1].amax(-1) + l.log()}.get(mistake, lse)  # fmt: skip
    if mistake in LEAVES_NOTHING:
        return o.masked_fill(nothing[..., None], ANYTHING), lse.masked_fill(nothing, ANYTHING)
    is_nan = mistake == "unseen_nan" or (mistake == "no_keys_nan" and not tiles)
    o = o.masked_fill(nothing[..., None], math.nan) if is_nan else o
    lse = lse.masked_fill(nothing, {"unseen_lse_nan": math.nan, "unseen_lse_zero": 0.0, "unseen_lse_inf": INF}.get(mistake, -INF))
    return o, lse.half().double() if half and mistake == "half_lse" else lse
