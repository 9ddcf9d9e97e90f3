"""Exercise 5.5, causal_kernel."""

import math
from functools import partial

import torch

from fa_tutorial.exercises.chapter_5.inner_step import HALF, KEYS_READ, OVERLAP, PADS_V, STEPS, one_tile_inputs, two_tiles_input
from fa_tutorial.exercises.forward_kernels import TILE, attention_case, draw_qkv, launch, o_twin, tolerance, with_fresh
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.forward import attend
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import load_tile, store_tile


@triton.jit
def causal_kernel(q, k, v, o, H, S_q, S_k, D, scale, IS_CAUSAL: tl.constexpr,
                  BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """As any_length_kernel. IS_CAUSAL: query i sees keys 0 … i + S_k − S_q; if none, o = 0."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    start_m = tl.program_id(0) % row_blocks * BLOCK_M
    batch_head = tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H

    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    last_seen = tl.full((BLOCK_M,), S_k - 1, dtype=tl.int32)  # [BLOCK_M]
    full, end = S_k // BLOCK_N * BLOCK_N, S_k  # keys 0 … full − 1 need no mask
    if IS_CAUSAL:  # (4.6), in keys
        last_seen = offs_m + (S_k - S_q)
        full = tl.maximum(start_m + 1 + S_k - S_q, 0) // BLOCK_N * BLOCK_N
        end = tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q
    for start_n in range(0, full, BLOCK_N):
        m, l, acc = attend(q_tile, k, v, m, l, acc, b, h, start_n, last_seen, S_k, D, scale,
                           False, BLOCK_N, BLOCK_D)  # fmt: skip
    for start_n in tl.range(full, end, BLOCK_N, num_stages=1):  # a few tiles: don't load ahead
        m, l, acc = attend(q_tile, k, v, m, l, acc, b, h, start_n, last_seen, S_k, D, scale,
                           True, BLOCK_N, BLOCK_D)  # fmt: skip
    l_or_one = tl.where(l == 0.0, 1.0, l)  # a row that sees no key has acc = 0 and l = 0
    store_tile(o, acc / l_or_one[:, None], b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


_BOTTOM = "query i sees keys 0 to i + S_k − S_q, so that the last query sees the last key"
_IN_TILES = "full and end count keys, not tiles: multiply a number of tiles by BLOCK_N"
_EARLY = "the tile that the diagonal crosses holds keys that are seen"
_WHOLE = "the loop without a mask reads keys past S_k: without IS_CAUSAL it ends at S_k // BLOCK_N · BLOCK_N"
_PLACE = "the mask compares positions within the tile: add start_n to the keys' and start_m to the queries'"
MISTAKES = {name: f"in attend, {STEPS[name]}" for name in ("acc_kept", "acc_after", "alpha_columns", "last_acc")} | {
    "no_mask": "nothing is hidden: query i sees keys 0 to i + S_k − S_q",
    "strict": "the mask is strict: a query sees its own key too, j ≤ i + S_k − S_q",
    "upside": "the mask is upside down: hide the keys after the query, not those before it",
    "hide_zero": "hidden keys get a score of 0, and exp(0 − m) is not 0: set it to −inf",
    "mask_after": "the mask comes after exp, so l has counted the hidden keys: hide them in s, before m and l",
    "mask_maximum": "hidden keys move the maximum: hide them in s, before m",
    "diagonal_skipped": f"the loop stops one tile too early: {_EARLY}",
    "full_last": "the tile that the diagonal crosses is not masked: the loop without a mask ends where the block's first row stops seeing, "
    "full = (start_m + 1 + S_k − S_q) // BLOCK_N · BLOCK_N",
    "full_unrounded": "full is no multiple of BLOCK_N: the loop without a mask runs past it, and the loop with a mask counts those keys again",
    "mask_off": "attend hides nothing where it should: with MASK, set the scores of keys past last_seen to −inf",
    "diagonal_open": "the mask hides nothing in the tile that the diagonal crosses: with IS_CAUSAL, row i's last_seen is i + S_k − S_q",
    "full_in_tiles": _IN_TILES,
    "end_in_tiles": _IN_TILES,
    "full_end_in_tiles": _IN_TILES,
    "end_first": "every block of rows stops where the first one does: end depends on start_m",
    "by_place_skips": _PLACE,
    "by_place": f"{_PLACE} (no tile is skipped)",
    "by_place_keys": f"{_PLACE} (the queries' start is missing)",
    "end_block_n": "the loop stops before the last row's diagonal: it goes on while start_n < start_m + BLOCK_M + S_k − S_q",
    "end_down": f"end is rounded down to whole tiles: {_EARLY}",
    "top_left": f"the mask is aligned top-left: {_BOTTOM}",
    "mask_top_left": "S_k − S_q is missing in last_seen: row i's last key is i + S_k − S_q",
    "skip_top_left": "the mask is right, but the loop stops at key start_m + BLOCK_M: add S_k − S_q",
    "shift_sign": f"S_k − S_q has the wrong sign: {_BOTTOM}",
    "keys_dropped": "the ragged last tile of keys is left out: the last row sees all S_k keys",
    "end_early": "the loop stops one key too early: end is exclusive, and the last row sees key i + S_k − S_q too",
    "pads_v": PADS_V,
    "mask_one_more": "one key too many: without IS_CAUSAL, every row's last_seen is S_k − 1",
    "none_skipped": "a tile that no row of the block sees is not skipped",
    "unseen_nan": "rows that see no key give NaN, from −inf − (−inf) or 0 / 0; they must be 0",
    "unseen_finite": "rows that see no key give an average of v, as if a finite number stood for −inf; they must be 0",
}  # fmt: skip
CONDITIONS = {
    "full": "with IS_CAUSAL = False it is still the kernel of 5.4",
    "unseen": "S_q may be larger than S_k: a row that sees no key gets o = 0",
    "skip": "tiles that no row of the block sees are skipped",
    "half": HALF,
}


@with_fresh(
    ((1, 1, 1, 1, 1, 1), torch.float32, TILE, 1.0),
    ((1, 2, 2, 33, 40, 20), torch.float16, (32, 32, 32), 3.0),
    ((1, 2, 2, 20, 25, 12), torch.float32, TILE, 1.0),
    ((1, 1, 1, 20, 40, 40), torch.float32, (16, 32, 64), 3.0),
    ((1, 2, 2, 40, 50, 40), torch.bfloat16, (16, 32, 64), 1.0),
    is_causal=True,
)
def inputs():
    causal = partial(attention_case, is_causal=True)
    yield from one_tile_inputs(is_causal=True)
    q, k, v = draw_qkv(1, 1, 16, 16, 16)
    k[:, :, 15] = 100
    yield causal(q.abs() + 1, k, v, "the last key's logits over 400, all others small", MISTAKES["mask_maximum"])
    square, differ = draw_qkv(1, 1, 32, 32, 16), "BLOCK_M and BLOCK_N may differ"
    yield causal(*square, "S_q = S_k = 32, two blocks of rows", "a block of rows goes through every tile that its last row sees")
    for m, n in ((32, 16), (16, 32)):
        yield causal(*square, f"S_q = S_k = 32, BLOCK_M = {m}, BLOCK_N = {n}", differ, blocks=(m, n, 16))
    yield causal(*draw_qkv(1, 1, 16, 32, 16), "S_q = 16, S_k = 32", _BOTTOM)
    for S_k in (20, 17):  # in the second case only the last row sees into the second tile, one key
        yield causal(
            *draw_qkv(1, 1, 16, S_k, 16), f"S_q = 16, S_k = {S_k}, BLOCK_N = 16", "the last tile of keys may be ragged", stray=KEYS_READ
        )
    yield attention_case(*draw_qkv(1, 1, 16, 16, 16), "IS_CAUSAL = False, one tile", edge="full")
    yield two_tiles_input("full")
    yield attention_case(*draw_qkv(1, 1, 16, 20, 16), "IS_CAUSAL = False, S_q = 16, S_k = 20", edge="full", stray=_WHOLE)
    before = "the second loop starts before key 0 where S_k − S_q is negative: tl.maximum(…, 0) in full"
    for S_q, words in ((24, "rows 0 to 7 see no key"), (40, "rows 0 to 23 see no key")):
        on = f"S_q = {S_q}, S_k = 16, so that {words}"
        yield causal(*draw_qkv(1, 1, S_q, 16, 16), on, "S_q may be larger than S_k", stray=before, edge="unseen")
    q, k, v = draw_qkv(1, 1, 32, 32, 16)
    v[:, :, 16:] = math.nan  # it shows in the o of rows 0 to 15 if they read it, because 0 · NaN is NaN
    yield causal(q, k, v, "S_q = S_k = 32, where rows 0 to 15 see no key of the second tile, whose v is NaN", edge="skip")


EXERCISE = Exercise(
    id="5.5",
    task="Make it causal in two loops: one without a mask, one with it, and both call attend.",
    conditions=CONDITIONS,
    hints=(
        "last_seen is the last key that each row may see: S_k − 1 for all rows, or row i's own key i + S_k − S_q. Which row of the block decides where the "
        "loop without a mask must stop, and which row decides where the other one may stop?",
        "The first row sees start_m + 1 + S_k − S_q keys: round that down to whole tiles for full, and not below 0. The last row that exists is "
        "tl.minimum(start_m + BLOCK_M, S_q) − 1; end is one past its last key.",
        "Without IS_CAUSAL, full is S_k // BLOCK_N * BLOCK_N, and end is S_k. After the loops divide by tl.where(l == 0.0, 1.0, l).",
    ),
    solution=causal_kernel,
    reasoning="The first row of the block sees fewest keys, so tiles that it sees whole need no mask. The last row sees most, so nothing after it is read. "
    "IS_CAUSAL is a constant for the compiler, so each value gives a kernel of its own, without a test at run time.",
    more="attend is forward.attend, the body of your loop as a function: display_source(forward.attend) shows it, display_source(forward.softmax_step) "
    "the step inside it.",
    inputs=inputs,
    twin=o_twin,
    mistakes=MISTAKES,
    launch=partial(launch, has_causal=True),
    tolerance=tolerance,
    overlap=OVERLAP,
)
