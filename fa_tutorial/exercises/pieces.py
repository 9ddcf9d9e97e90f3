"""What the solutions of chapters 5 and 7 share, and a reader's kernel may import: a tile by its strides, and p and ds of a tile."""

from __future__ import annotations

from fa_tutorial.hardware import require_triton
from fa_tutorial.tiles import INTERPRETED

triton = require_triton("The exercises of chapters 5 and 7 (fa_tutorial.exercises.pieces)")
import triton.language as tl  # noqa: E402


@triton.jit
def load_tile(ptr, offs_r, offs_c, rows, cols, stride_r, stride_c):
    """The tile [len(offs_r), len(offs_c)] of a (rows, cols) matrix by its strides, with 0 beyond rows and cols."""
    mask = (offs_r[:, None] < rows) & (offs_c[None, :] < cols)
    tile = tl.load(ptr + offs_r[:, None] * stride_r + offs_c[None, :] * stride_c, mask=mask, other=0.0)
    if INTERPRETED and tile.dtype == tl.bfloat16:
        tile = tile.to(tl.float32)  # the interpreter cannot compute with bf16
    return tile


@triton.jit
def load_lse(lse_ptr, offs_m, S_q):
    """[BLOCK_M] of lse, +inf for rows that see nothing or are not there (7.3): exp(s − lse) is 0 for them, whatever s is."""
    lse = tl.load(lse_ptr + offs_m, mask=offs_m < S_q, other=float("inf"))
    return tl.where(lse == -float("inf"), float("inf"), lse)


@triton.jit
def p_and_ds(s, dp, lse, delta, key, last_seen, MASK: tl.constexpr):
    """A tile's p = exp(s − lse) (6.7) and ds = p ∘ (dp − delta) (6.10): algorithm.p_and_ds, for a tile that lies either way.

    s, dp: [BLOCK_M, BLOCK_N] or its transpose. lse, delta: along the queries, with 1 for the other axis. With MASK, key: the position of
    each key in the tile, and last_seen: that of the last key each query sees; beyond it both are 0.
    """
    p = tl.exp(s - lse)
    if MASK:
        p = tl.where(key <= last_seen, p, 0.0)
    return p, p * (dp - delta)
