"""Exercise 6.6, dq_loop."""

import functools
import math

import torch

from fa_tutorial import algorithm
from fa_tutorial.algorithm import p_and_ds
from fa_tutorial.exercises.chapter_6 import shared
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.exercises.watch import SeenTiles, where_it_tells


def dq_loop(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    """dq. q, do: (B, H, S_q, D); k, v: (B, H, S_k, D); lse, delta: (B, H, S_q)."""
    S_q, S_k = q.shape[2], k.shape[2]
    lse = torch.where(lse == -math.inf, math.inf, lse)  # rows that see nothing: p = 0
    dq = torch.zeros(q.shape, dtype=lse.dtype)
    for i in range(0, S_q, block_m):
        rows = slice(i, min(i + block_m, S_q))
        stop = S_k
        if is_causal:
            _, end = algorithm.causal_tiles(i // block_m, block_m, block_n, S_q, S_k)
            stop = min(end * block_n, S_k)
        for j in range(0, stop, block_n):
            keys = slice(j, min(j + block_n, S_k))
            _, ds = p_and_ds(q, k, v, do, lse, delta, rows, keys, is_causal, scale)
            dq[:, :, rows] += scale * ds @ k[:, :, keys].to(ds.dtype)
    return dq.to(q.dtype)


GUARD = "    lse = torch.where(lse == -math.inf, math.inf, lse)  # rows that see nothing: p = 0\n"
STOP, STEP = "stop = min(end * block_n, S_k)", "scale * ds @ k[:, :, keys].to(ds.dtype)"
MISTAKES = {
    "the loop over keys ends at key `end`: end counts blocks, so it ends at end · block_n": (STOP, "stop = end"),
    "dq is without the scale: s = scale · q kᵀ, so dq = scale · ds k": (STEP, "ds @ k[:, :, keys].to(ds.dtype)"),
    "v stands where k belongs: dq = scale · ds k": ("k[:, :, keys]", "v[:, :, keys]"),
    "p stands where ds belongs: dq = scale · ds k": ("_, ds =", "ds, _ ="),
    "dq is overwritten in every step: add up the key blocks": ("dq[:, :, rows] +=", "dq[:, :, rows] ="),
    "is_causal stops the loop, but nothing is masked in the tiles: p_and_ds masks where its `mask` is True": (
        "rows, keys, is_causal, scale", "rows, keys, False, scale"),
    "delta is not subtracted: ds = p ∘ (dp − delta)": ("do, lse, delta, rows", "do, lse, 0 * delta, rows"),
    "the mask is on although is_causal is False": ("rows, keys, is_causal, scale", "rows, keys, True, scale"),
    "the causal loop is aligned top left: query i sees keys 0 … i + S_k − S_q, so its last key depends on S_k − S_q too": (
        STOP, "stop = min(i + block_m, S_k)"),
    "the loop ends at full: the blocks from full to end − 1 are seen in part": ("_, end =", "end, _ ="),
    "the loop over keys runs to S_q: k and v have S_k rows": ("stop = S_k", "stop = S_q"),
    "a last block of rows that is shorter is left out": ("range(0, S_q, block_m)", "range(0, S_q - block_m + 1, block_m)"),
    "rows that see nothing give NaN: lse and s are −inf there, and −inf − (−inf) is NaN; pass +inf as their lse": (GUARD, ""),
    "the sum is kept in the inputs' dtype, and float16 loses small terms: sum in float32": ("dtype=lse.dtype", "dtype=q.dtype"),
    "the product is rounded to float16: ds may be rounded, but each product stays in float32 until it is summed": (
        STEP, "scale * (ds.to(k.dtype) @ k[:, :, keys])"),
}  # fmt: skip


def truth(*args):
    return shared.truth(*args)[0]


CONDITIONS = {**shared.CONDITIONS, "skip": shared.SKIP}


def tolerance(args, part):
    return shared.tolerance(args, "dq")


@functools.cache  # the same tensors each time: what is right for them is computed once
def fixed():
    return *shared.ladder("dq is summed over the key blocks", "dq = scale · ds k", "dq"), shared.skips()


def inputs():
    yield from fixed()
    yield from shared.fresh()


EXERCISE = Exercise(
    id="6.6",
    task="Write the loop that owns queries: dq, tile by tile, without the tiles that the causal mask hides.",
    conditions=CONDITIONS,
    hints=(
        (
            "Exchange the two loops of 6.5: the outer one takes a block of queries, the inner one walks over the blocks of keys. What does "
            "a tile add to?"
        ),
        "Add scale · ds k, with the tile's own rows of k, to dq[:, :, rows]. p itself is not needed, only ds. If is_causal, take (full, "
        "end) from algorithm.causal_tiles(row_block, block_m, block_n, S_q, S_k), and let the inner loop stop before block number end.",
        "ds is float32 for fp16 inputs: convert the tile of k before you multiply. Where lse is −inf, pass +inf in its place, as in 6.4.",
    ),
    solution=dq_loop,
    reasoning="The same tiles as in 6.5, in the other order: the outer loop owns a block of queries, so dq of these queries is complete "
    "when the inner loop ends. It computes p and ds a second time, because no tile was kept. No row of the block sees a key from block "
    "number end on, so ds is 0 there.",
    more="In the package this is the second loop of algorithm.flash_backward. It also masks only from full on, rounds ds to the "
    "inputs' dtype for its matmul, and takes fewer heads for k and v than for q.",
    inputs=inputs,
    truth=truth,
    rule="dq = scale · Σ ds k, over all blocks of keys that a row sees",
    mistakes=MISTAKES,
    tolerance=tolerance,
    watch=where_it_tells(SeenTiles),
)
