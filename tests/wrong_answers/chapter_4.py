"""Chapter 4: whole matrices of scores, exceptions, inputs that are changed, float32's overflow, results of another dtype."""

import math

import torch

from fa_tutorial.exercises.chapter_4.ex_3 import causal_tiles


def _step(s, m, l):
    m_new = torch.maximum(m, s.amax(-1))
    shift = torch.where(m_new == -math.inf, 0.0, m_new)
    p, alpha = torch.exp(s - shift[..., None]), torch.exp(m - shift)
    return p, m_new, alpha * l + p.sum(-1), alpha


def step_in_place(s, m, l):
    p, m_new, l_new, alpha = _step(s, m, l)
    return p, m_new, l.copy_(l_new), alpha


def step_in_float32(s, m, l):
    return _step(s.float(), m.float(), l.float())


def step_without_alpha(s, m, l):
    return _step(s, m, l)[:3]


def step_branches_on_a_tensor(s, m, l):
    return _step(s, m, l) if m.max() > s.max() or torch.maximum(m, s.amax(-1)) != -math.inf else (s * 0, m, l, l)


def _flash(q, k, v, block_m, block_n, scale, overflow=False, causal=False):
    S_q, S_k, dtype = q.shape[2], k.shape[2], q.dtype
    q, k, v = q.float(), k.float(), v.float()
    seen = torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q) if causal else torch.ones(S_q, S_k, dtype=torch.bool)
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    for i in range(0, S_q, block_m):
        rows = q[:, :, i : i + block_m]
        m, l, acc = torch.full(rows.shape[:3], 0.0 if overflow else -math.inf), torch.zeros(rows.shape[:3]), torch.zeros_like(rows)
        for j in range(0, S_k, block_n):
            s = (scale * rows @ k[:, :, j : j + block_n].mT).masked_fill(~seen[i : i + block_m, j : j + block_n], -math.inf)
            p, m_new, l, alpha = (torch.exp(s), m, l + torch.exp(s).sum(-1), torch.ones_like(m)) if overflow else _step(s, m, l)
            m, acc = m_new, alpha[..., None] * acc + p @ v[:, :, j : j + block_n]
        o[:, :, i : i + block_m], lse[:, :, i : i + block_m] = acc / torch.where(l == 0, 1.0, l)[..., None], m + l.log()
    return o.to(dtype), lse


def forward_not_shifted(q, k, v, block_m, block_n, scale):
    return _flash(q, k, v, block_m, block_n, scale, overflow=True)


def forward_untiled(q, k, v, block_m, block_n, scale):
    return _flash(q, k, v, q.shape[2], k.shape[2], scale)


def forward_all_keys_at_once(q, k, v, block_m, block_n, scale):
    return _flash(q, k, v, block_m, k.shape[2], scale)


def forward_all_queries_at_once(q, k, v, block_m, block_n, scale):
    return _flash(q, k, v, q.shape[2], block_n, scale)


def forward_blocks_exchanged(q, k, v, block_m, block_n, scale):
    return _flash(q, k, v, block_n, block_m, scale)


def forward_o_in_float32(q, k, v, block_m, block_n, scale):
    o, lse = _flash(q, k, v, block_m, block_n, scale)
    return o.float(), lse


def _forward(q, k, v, block_m, block_n, scale, join=None, turned=lambda k: k.mT, last=None, step=None, width=None):
    """The tiled forward with one line of it exchanged."""
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    for row in range(0, q.shape[2], block_m):
        rows = q[:, :, row : row + block_m]
        m, l, acc = torch.full(rows.shape[:3], -math.inf), torch.zeros(rows.shape[:3]), torch.zeros_like(rows)
        for key in range(0, last or k.shape[2], step or block_n):
            keys = slice(key, key + (width or block_n))
            p, m, l, alpha = _step(scale * rows @ turned(k[:, :, keys]), m, l)
            acc = join(acc, alpha[..., None], p @ v[:, :, keys]) if join else alpha[..., None] * acc + p @ v[:, :, keys]
        o[:, :, row : row + block_m], lse[:, :, row : row + block_m] = acc / l[..., None], m + l.log()
    return o, lse


def forward_divides_by_alpha(*args):
    return _forward(*args, join=lambda acc, alpha, new: acc / alpha + new)


def forward_rescales_the_new(*args):
    return _forward(*args, join=lambda acc, alpha, new: alpha * (acc + new))


def forward_k_as_it_is(*args):
    return _forward(*args, turned=lambda k: k)


def forward_k_viewed(*args):
    return _forward(*args, turned=lambda k: k.reshape(*k.shape[:2], k.shape[3], -1))


def forward_loop_to_S_q(q, *args):
    return _forward(q, *args, last=q.shape[2])


def forward_width_m(q, k, v, block_m, block_n, scale):
    return _forward(q, k, v, block_m, block_n, scale, width=block_m)


def forward_ignores_block_n(q, k, v, block_m, block_n, scale):
    return _forward(q, k, v, block_m, block_n, scale, step=block_m, width=block_m)


def causal_all_keys_at_once(q, k, v, block_m, block_n, scale):
    S_q, S_k = q.shape[2], k.shape[2]
    o, lse = torch.zeros_like(q), torch.full(q.shape[:3], -math.inf)
    for row in range(0, S_q, block_m):
        rows = torch.arange(row, min(row + block_m, S_q))
        keys = torch.arange(min(S_k, -(-max(0, int(rows[-1]) + 1 + S_k - S_q) // block_n) * block_n))
        s = (scale * q[:, :, rows] @ k[:, :, keys].mT).masked_fill(keys > rows[:, None] + S_k - S_q, -math.inf)
        o[:, :, rows] = torch.softmax(s, -1).nan_to_num() @ v[:, :, keys]
        lse[:, :, rows] = torch.logsumexp(s, -1)
    return o, lse


def causal_skips_nothing(q, k, v, block_m, block_n, scale):
    return _flash(q, k, v, block_m, block_n, scale, causal=True)


def _causal_by_bounds(
    q,
    k,
    v,
    block_m,
    block_n,
    scale,
    local=False,
    masks=None,
    starts=0,
    hides=lambda keys, last: keys > last,
    clamp=-math.inf,
    multiplies=False,
):
    """A causal forward that masks the tiles full … end − 1. masks(tile, full, end): which tiles are masked instead; starts: 1 for a loop from full."""
    S_q, S_k = q.shape[2], k.shape[2]
    o, lse = torch.zeros_like(q), torch.full(q.shape[:3], -math.inf)
    for row in range(0, S_q, block_m):
        rows = torch.arange(row, min(row + block_m, S_q))
        full, end = max(0, row + 1 + S_k - S_q) // block_n, -(-max(0, int(rows[-1]) + 1 + S_k - S_q) // block_n)
        m, l, acc = torch.full((*q.shape[:2], len(rows)), -math.inf), torch.zeros(*q.shape[:2], len(rows)), torch.zeros_like(q[:, :, rows])
        for tile in range(starts * full, end):
            keys = torch.arange(tile * block_n, min((tile + 1) * block_n, S_k))
            s = scale * q[:, :, rows] @ k[:, :, keys].mT
            if masks(tile, full, end) if masks else tile >= full:
                hidden = hides(keys, (rows - row * local)[:, None] + max(clamp, S_k - S_q))
                s = s + hidden * -math.inf if multiplies else s.masked_fill(hidden, -math.inf)
            p, m, l, alpha = _step(s, m, l)
            acc = alpha[..., None] * acc + p @ v[:, :, keys]
        o[:, :, rows], lse[:, :, rows] = acc / torch.where(l == 0, 1.0, l)[..., None], m + l.log()
    return o, lse


def causal_local_rows(q, k, v, block_m, block_n, scale):
    return _causal_by_bounds(q, k, v, block_m, block_n, scale, local=True)


def causal_masks_the_last_tile(q, k, v, block_m, block_n, scale):
    return _causal_by_bounds(q, k, v, block_m, block_n, scale, masks=lambda tile, full, end: tile == end - 1)


def causal_starts_at_full(q, k, v, block_m, block_n, scale):
    return _causal_by_bounds(q, k, v, block_m, block_n, scale, starts=1)


def causal_mask_inverted(*args):
    return _causal_by_bounds(*args, hides=lambda keys, last: keys <= last)


def causal_shift_never_negative(*args):
    return _causal_by_bounds(*args, clamp=0)


def causal_mask_times_infinity(*args):
    return _causal_by_bounds(*args, multiplies=True)


def causal_lse_unwritten(*args):
    o, lse = _causal_by_bounds(*args)
    return o, torch.empty_like(lse)


def causal_scale_forgotten(q, k, v, block_m, block_n, scale):
    return _causal_by_bounds(q, k, v, block_m, block_n, 1.0)


def _causal_by_positions(q, k, v, block_m, block_n, scale, block_of=lambda start, size: start // size, last=lambda end, size: end * size):
    """The loops of 4.2 over positions, made causal."""
    S_q, S_k = q.shape[2], k.shape[2]
    o, lse = torch.zeros_like(q), torch.full(q.shape[:3], -math.inf)
    for start_m in range(0, S_q, block_m):
        rows = torch.arange(start_m, min(start_m + block_m, S_q))
        full, end = causal_tiles(block_of(start_m, block_m), block_m, block_n, S_q, S_k)
        m, l, acc = torch.full((*q.shape[:2], len(rows)), -math.inf), torch.zeros(*q.shape[:2], len(rows)), torch.zeros_like(q[:, :, rows])
        for start_n in range(0, last(end, block_n), block_n):
            keys = torch.arange(start_n, min(start_n + block_n, S_k))
            s = scale * q[:, :, rows] @ k[:, :, keys].mT
            if start_n // block_n >= full:
                s = s.masked_fill(keys > rows[:, None] + S_k - S_q, -math.inf)
            p, m, l, alpha = _step(s, m, l)
            acc = alpha[..., None] * acc + p @ v[:, :, keys]
        o[:, :, rows], lse[:, :, rows] = acc / torch.where(l == 0, 1.0, l)[..., None], m + l.log()
    return o, lse


def causal_tiles_of_a_row(*args):
    return _causal_by_positions(*args, block_of=lambda start, size: start)


def causal_end_as_a_key(*args):
    return _causal_by_positions(*args, last=lambda end, size: end)


def causal_both_as_positions(*args):
    return _causal_by_positions(*args, block_of=lambda start, size: start, last=lambda end, size: end)


def causal_in_half(*args):
    return _causal_by_positions(*args)


def tiles_printed(row_block, block_m, block_n, S_q, S_k):
    print(end="")


WRONG_ANSWERS = (
    ("4.1", step_in_place, "changes its input l in place"),
    ("4.1", step_in_float32, "one edge is left: float64 goes in"),
    ("4.1", step_without_alpha, "want a tuple (p, m_new, l_new, alpha)"),
    ("4.1", step_branches_on_a_tensor, "raises RuntimeError: Boolean value of Tensor"),
    ("4.2", forward_not_shifted, "exp overflows: the scores must be shifted"),
    ("4.2", forward_untiled, "all scores are computed at once"),
    ("4.2", forward_all_keys_at_once, "all keys of a block of rows are taken at once"),
    ("4.2", forward_all_queries_at_once, "all queries are taken at once"),
    ("4.2", forward_blocks_exchanged, "block_m and block_n are exchanged"),
    ("4.2", forward_o_in_float32, "one edge is left: o is float32, and must have the dtype of q"),
    ("4.2", forward_divides_by_alpha, "acc is divided by alpha"),
    ("4.2", forward_rescales_the_new, "the new block's p v is rescaled as well"),
    ("4.2", forward_k_as_it_is, "k is not transposed"),
    ("4.2", forward_k_viewed, "k is not transposed"),
    ("4.2", forward_loop_to_S_q, "the loop over keys runs to S_q"),
    ("4.2", forward_width_m, "a block of keys has block_m rows"),
    ("4.2", forward_ignores_block_n, "a tile is too large"),
    ("4.4", causal_all_keys_at_once, "all keys of a block of rows are taken at once"),
    ("4.4", causal_mask_inverted, "the mask is inverted"),
    ("4.4", causal_shift_never_negative, "S_k − S_q may be negative"),
    ("4.4", causal_skips_nothing, "one edge is left: the result is right, but tiles are computed that no row of their block sees"),
    ("4.4", causal_local_rows, "i counts rows from the tile's own start"),
    ("4.4", causal_masks_the_last_tile, "only the last tile is masked"),
    ("4.4", causal_starts_at_full, "the loop over keys starts at full"),
    ("4.4", causal_mask_times_infinity, "0 · ∞ is NaN"),
    ("4.4", causal_lse_unwritten, "lse is never written"),
    ("4.4", causal_scale_forgotten, "the scale is ignored"),
    ("4.4", causal_tiles_of_a_row, "tiles_of wants the number of the block of rows"),
    ("4.4", causal_end_as_a_key, "end counts tiles"),
    ("4.4", causal_both_as_positions, "end counts tiles"),
    ("4.4", causal_in_half, "one edge is left: float16"),
    ("4.3", tiles_printed, "want a tuple (full, end)"),
)
