import math

import torch

from fa_tutorial import algorithm
from fa_tutorial.exercises.chapter_6 import shared
from fa_tutorial.exercises.chapter_6.ex_4 import p_and_ds as my_p_and_ds
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.exercises.watch import SeenTiles, where_it_tells


def dq_loop(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    """dq. q, do: (B, H, S_q, D); k, v: (B, H, S_k, D); lse, delta: (B, H, S_q)."""
    S_q, S_k = q.shape[2], k.shape[2]
    dq = torch.zeros(q.shape, dtype=lse.dtype)
    for row_block in range(math.ceil(S_q / block_m)):
        rows = slice(row_block * block_m, min((row_block + 1) * block_m, S_q))
        full = end = math.ceil(S_k / block_n)
        if is_causal:
            full, end = algorithm.causal_tiles(row_block, block_m, block_n, S_q, S_k)
        for key_block in range(end):
            keys = slice(key_block * block_n, min((key_block + 1) * block_n, S_k))
            _, ds = my_p_and_ds(q, k, v, do, lse, delta, rows, keys, key_block >= full, scale)
            dq[:, :, rows] += scale * ds @ k[:, :, keys].to(ds.dtype)
    return dq.to(q.dtype)


MASK, CALL = "rows, keys, key_block >= full, scale", "(row_block, block_m, block_n, S_q, S_k)"
MISTAKES = {
    "end counts blocks of keys, and your loop takes it for a number of keys": ("range(end)", "range(math.ceil(end / block_n))"),
    "dq is without the scale: s = scale · q kᵀ, so dq = scale · ds k": ("scale * ds", "ds"),
    "dq is overwritten in every step: add up the key blocks": ("dq[:, :, rows] +=", "dq[:, :, rows] ="),
    "the tiles from full on are not masked, and not every query sees all of their keys: my_p_and_ds masks where its `mask` is True": (
        MASK, "rows, keys, False, scale"),
    "the mask comes one block late: block number full is the first that needs it": (">= full", "> full"),
    "a last tile that is shorter is masked although is_causal is False: `mask` hides what the causal mask hides, and the slice ends at S_k": (
        "full = end = math.ceil(S_k / block_n)", "full, end = S_k // block_n, math.ceil(S_k / block_n)"),
    "the mask is on although is_causal is False": (MASK, "rows, keys, True, scale"),
    "block_m and block_n are exchanged in the call of causal_tiles": (CALL, CALL.replace("m, block_n", "n, block_m")),
    "these are the bounds of 6.5, which count blocks of queries, and your inner loop walks over keys: take causal_tiles": [
        ("full = end = math", "start, full, end = 0, 0, math"), ("full, end = algorithm.causal_tiles", "start, full = algorithm.causal_rows"),
        ("range(end)", "range(start, end)"), ("key_block >= full", "key_block < full")],
    "the loop ends at full: the blocks from full to end are seen too, in part": ("range(end)", "range(full)"),
    "without a bound and a mask each query sees all keys, as in the loop that owns keys: if is_causal, end at end, and mask from full on": [
        ("range(end)", "range(math.ceil(S_k / block_n))"), (MASK, "rows, keys, False, scale")],
    "the mask is on before full: the queries see all keys of these blocks, so mask from full on": (">= full", "< full"),
}  # fmt: skip


def truth(*args):
    return shared.truth(*args)[0]


EXERCISE = Exercise(
    task="Write the loop that owns queries: dq, tile by tile, without the tiles that the causal mask hides.",
    conditions=shared.CONDITIONS,
    hints=(
        "Which loop must be the outer one, so that a block of dq is complete when the inner loop ends? Then the bounds belong to a block of "
        "queries: which function gives them?",
        "Outside, row_block runs over all blocks of queries. (full, end) = algorithm.causal_tiles(row_block, block_m, block_n, S_q, S_k) "
        "count blocks of keys: key_block runs over range(end), and the mask is on from full on.",
        "Without a mask, full and end are both math.ceil(S_k / block_n). The line that adds to dq stays as it is.",
    ),
    solution=dq_loop,
    reasoning="The same tiles in the other order: the outer loop owns a block of queries, so dq of these queries is complete when the inner "
    "loop ends, and no other iteration of the outer loop adds to it. A block of queries sees all keys before full, and none from end on. "
    "6.5 bounds the queries of a block of keys instead.",
    more="In the package this is the second loop of algorithm.flash_backward. It also rounds ds to the inputs' dtype for its matmul, and "
    "takes fewer heads for k and v than for q.",
    inputs=shared.inputs("dq is summed over the key blocks, each with its own rows of k", "dq = scale · ds k", "dq"),
    truth=truth,
    rule="dq = scale · Σ ds k, over all blocks of keys that a row sees",
    mistakes=MISTAKES,
    tolerance=lambda args, part: shared.tolerance(args, "dq"),
    watch=where_it_tells(SeenTiles),
)
