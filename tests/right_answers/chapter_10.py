import torch
from edits import edit

from fa_tutorial.matmul import tl, triton


def window_kinds_by_loop(left, S, block_m, block_n):
    kinds = torch.zeros(S // block_m, S // block_n, dtype=torch.int64)
    for row in range(S // block_m):
        first, last = row * block_m, row * block_m + block_m - 1
        for tile in range(max(0, first - left) // block_n, last // block_n + 1):
            is_whole = tile * block_n + block_n - 1 <= first and tile * block_n >= last - left
            kinds[row, tile] = 2 if is_whole else 1
    return kinds


@triton.jit
def soft_cap_by_exponentials(s, b, h, i, j, aux):
    e = tl.exp(-2 * tl.abs(s) / aux[2])
    t = tl.where(s < 0, -1.0, 1.0) * (1 - e) / (1 + e)
    return t * aux[2], 4 * e / ((1 + e) * (1 + e))


@triton.jit
def gradients_then_mask(s, dp, lse, delta, b, h, i, j, aux, MASK_MOD: tl.constexpr, SCORE_MOD: tl.constexpr, SCORE_GRAD: tl.constexpr):
    seen = MASK_MOD(b, h, i, j, aux)
    p = tl.exp(SCORE_MOD(s, b, h, i, j, aux) - lse)
    ds = SCORE_GRAD(s, b, h, i, j, aux) * (dp - delta) * p
    return tl.where(seen, p, 0.0), tl.where(seen, ds, 0.0)


def packed_tiles_by_sequences(cu, block):
    token = torch.arange(cu[-1])
    own = (token[:, None] >= cu[1:]).sum(dim=1)  # each token's sequence
    last = torch.arange(block - 1, len(token) + block - 1, block).clamp(max=len(token) - 1)
    return cu[own[::block]] // block, (cu[own[last] + 1] - 1) // block + 1


RIGHT_ANSWERS = (
    ("10.2", window_kinds_by_loop),
    edit("10.3", "backwards", ("for t in range(mixed):", "while mixed > 0:\n        mixed -= 1"),
         ("row * across + t", "row * across + mixed")),
    edit("10.3", "one loop, which asks the mask by an if", ("range(mixed)", "range(mixed + whole)"), ("range(whole)", "range(0)"),
         ("+ t) * BLOCK_N", "+ tl.where(t < mixed, t, across - 1 - (t - mixed))) * BLOCK_N"),
         ("""        seen = (j < S_k) & MASK_MOD(b, h, i, j, aux)  # [BLOCK_M, BLOCK_N]
        s = tl.where(seen, scale * dot(q_tile, tl.trans(k_tile)), -float("inf"))  # [BLOCK_M, BLOCK_N]
""", """        s = scale * dot(q_tile, tl.trans(k_tile))
        if t < mixed:
            s = tl.where((j < S_k) & MASK_MOD(b, h, i, j, aux), s, -float("inf"))
""")),
    ("10.4", soft_cap_by_exponentials),
    edit("10.5", "the sink joins after the loops", ("tl.zeros((BLOCK_M,), dtype=tl.float32) + tl.load(sink_ptr + h)", 'tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)'),
         ("tl.full((BLOCK_M,), 1.0, dtype=tl.float32)", "tl.zeros((BLOCK_M,), dtype=tl.float32)"), ("    l = tl.where(l == 0", """    sink = tl.load(sink_ptr + h)
    top = tl.maximum(m, sink)
    shift = tl.where(top == -float("inf"), 0.0, top)
    acc = acc * tl.exp(m - shift)[:, None]
    l = l * tl.exp(m - shift) + tl.exp(sink - shift)
    m = top
    l = tl.where(l == 0""")),
    ("10.6", gradients_then_mask),
    edit("10.7", "queries are the rows, and p and ds are transposed", ("dot(k_tile, tl.trans(q_tile))", "dot(q_tile, tl.trans(k_tile))"),
         ("dot(v_tile, tl.trans(do_tile))", "dot(do_tile, tl.trans(v_tile))"), ("BLOCK_N)[:, None]", "BLOCK_N)[None, :]"),
         ("BLOCK_M)[None, :]", "BLOCK_M)[:, None]"), ("dot(p.to(do_tile.dtype)", "dot(tl.trans(p).to(do_tile.dtype)"),
         ("dot(ds.to(q_tile.dtype)", "dot(tl.trans(ds).to(q_tile.dtype)")),
    ("10.9", packed_tiles_by_sequences),
)  # fmt: skip
