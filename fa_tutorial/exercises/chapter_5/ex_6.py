import math
import re
from functools import partial

from fa_tutorial.exercises import forward_cases as cases
from fa_tutorial.exercises.chapter_5.inner_step import HALF, KEYS_READ, ONCE, OVERLAP, ROW_BLOCKS, half_inputs, heads_input, one_tile_inputs
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.forward import attend
from fa_tutorial.matmul import tl, triton
from fa_tutorial.source import source_of
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
    full_n, end_n = S_k // BLOCK_N * BLOCK_N, S_k  # keys 0 … full_n − 1 need no mask
    if IS_CAUSAL:  # (4.6), in keys
        last_seen = offs_m + (S_k - S_q)
        full_n = tl.maximum(start_m + 1 + S_k - S_q, 0) // BLOCK_N * BLOCK_N
        end_n = tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q
    for start_n in range(0, full_n, BLOCK_N):
        m, l, acc = attend(q_tile, k, v, m, l, acc, b, h, start_n, last_seen, S_k, D, scale,
                           False, BLOCK_N, BLOCK_D)  # fmt: skip
    for start_n in tl.range(full_n, end_n, BLOCK_N, num_stages=1):  # a few tiles: don't load ahead
        m, l, acc = attend(q_tile, k, v, m, l, acc, b, h, start_n, last_seen, S_k, D, scale,
                           True, BLOCK_N, BLOCK_D)  # fmt: skip
    l_or_one = tl.where(l == 0.0, 1.0, l)  # a row that sees no key has acc = 0 and l = 0
    store_tile(o, acc / l_or_one[:, None], b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


BOTTOM = "query i sees keys 0 to i + S_k − S_q, so that the last query sees the last key"
LAST_SEEN = "offs_m + (S_k - S_q)"
FULL, END = "tl.maximum(start_m + 1 + S_k - S_q, 0) // BLOCK_N * BLOCK_N", "tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q"
MISTAKES = {
    "the mask is aligned top-left, and so are the loops' ends: " + BOTTOM: [
        (LAST_SEEN, "offs_m"), (FULL, "(start_m + 1) // BLOCK_N * BLOCK_N"), (END, "tl.minimum(tl.minimum(start_m + BLOCK_M, S_q), S_k)")],
    "last_seen counts rows of the tile: row i of q is start_m + its row of the tile": (LAST_SEEN, "tl.arange(0, BLOCK_M) + (S_k - S_q)"),
    "S_k − S_q is missing in last_seen: row i's last key is i + S_k − S_q": (LAST_SEEN, "offs_m"),
    "the mask is right, but the loops end at key start_m + BLOCK_M: add S_k − S_q": (END, "tl.minimum(start_m + BLOCK_M, S_q)"),
    "last_seen is S_k − 1 for all rows: with IS_CAUSAL row i's last key is i + S_k − S_q": (LAST_SEEN, "last_seen"),
    "the mask is strict: a query sees its own key too, j ≤ i + S_k − S_q": (LAST_SEEN, "offs_m + (S_k - S_q) - 1"),
    "full_n takes the block's last row, which sees most: the loop without a mask ends where its first row stops seeing": (
        FULL, "tl.maximum(start_m + BLOCK_M + S_k - S_q, 0) // BLOCK_N * BLOCK_N"),
    "full_n is a number of tiles, and the loops count keys: multiply by BLOCK_N": [
        (FULL, FULL.removesuffix(" * BLOCK_N")), ("= S_k // BLOCK_N * BLOCK_N, S_k", "= S_k // BLOCK_N, S_k")],
    "the second loop begins at 0 again: it goes on where the first one ends, at full_n": ("range(full_n, end", "range(0, end"),
}  # fmt: skip
CONDITIONS = {
    "full": "with IS_CAUSAL = False it is still the kernel of 5.4",
    "unseen": "S_q may be larger than S_k: a row that sees no key gets o = 0",
    "skip": "tiles that no row of the block sees are skipped",
    "loops": "a tile that every row of the block sees whole goes through the loop without a mask, and only the others through the one with it",
    "half": HALF,
}


@cases.with_fresh(*cases.ANY_LENGTH, is_causal=True)
def inputs():
    causal = partial(cases.attention_case, is_causal=True)
    yield from one_tile_inputs(
        "one tile, on the diagonal: query i sees keys 0 to i, so the loop with a mask takes it, by the caller's scale", is_causal=True
    )
    yield heads_input(is_causal=True)
    rows = "full_n, end_n and start_n count keys: full_n is a multiple of BLOCK_N, from the block's first row, and end_n one past the last key of its last row"
    told = f"{BOTTOM}; {rows}; both loops carry m, l and acc"
    yield causal(*cases.draw_qkv(1, 1, 48, 48, 16), "S_q = S_k = 48, three blocks of rows", told)
    on = "S_q = S_k = 32, BLOCK_M = 16, BLOCK_N = 32"
    yield causal(*cases.draw_qkv(1, 1, 32, 32, 16), on, f"BLOCK_M and BLOCK_N may differ: {rows}", blocks=(16, 32, 16))
    yield causal(*cases.draw_qkv(1, 1, 16, 32, 16), "S_q = 16, S_k = 32", BOTTOM)
    ragged = "the last tile may be ragged, and only the last row sees into it: full_n is a multiple of BLOCK_N, and end_n is one past the last key"
    yield causal(*cases.draw_qkv(1, 1, 16, 17, 16), "S_q = 16, S_k = 17, BLOCK_N = 16", ragged, stray=KEYS_READ)
    yield causal(*cases.draw_qkv(1, 2, 20, 32, 16), "two heads, S_q = 20, S_k = 32, BLOCK_M = 16", ROW_BLOCKS)
    past = "a tile past S_k goes through the loop with a mask: without IS_CAUSAL full_n is S_k // BLOCK_N · BLOCK_N"
    yield cases.attention_case(*cases.draw_qkv(1, 1, 16, 20, 16), "IS_CAUSAL = False, S_q = 16, S_k = 20", stray=past, edge="full")
    before = "a key that doesn't exist is read: the first row sees start_m + 1 + S_k − S_q keys, or none where that is negative"
    unseen = "S_q = 40, S_k = 16, so that rows 0 to 23 see no key"
    yield causal(*cases.draw_qkv(1, 1, 40, 16, 16), unseen, stray=before, edge="unseen")
    q, k, v = cases.draw_qkv(1, 1, 32, 32, 16)
    v[:, :, 16:] = math.nan  # it shows in the o of rows 0 to 15 if they read it, because 0 · NaN is NaN
    yield causal(q, k, v, "S_q = S_k = 32, where rows 0 to 15 see no key of the second tile, whose v is NaN", edge="skip")
    for is_causal, S_q, S_k in ((True, 96, 96), (True, 1, 32), (False, 32, 72)):  # counting_tiles counts their tiles
        on = f"IS_CAUSAL = {is_causal}, S_q = {S_q}, S_k = {S_k}, BLOCK_M = 32, BLOCK_N = 16"
        yield cases.attention_case(*cases.draw_qkv(1, 1, S_q, S_k, 64), on, blocks=(32, 16, 64), is_causal=is_causal, edge="loops")
    yield from half_inputs(is_causal=True)


def note(kernel):
    ahead = "tiles with a mask may be loaded ahead here: the second loop is tl.range(full_n, end_n, BLOCK_N, num_stages=1)"
    return "" if re.search(r"\bnum_stages\s*=\s*1\b", source_of(kernel)) else ahead


EXERCISE = Exercise(
    task="Make it causal in two loops: one without a mask, one with it, and both call attend.",
    conditions=CONDITIONS,
    hints=(
        "last_seen is the last key that each row may see: S_k − 1 for all rows, or row i's own key i + S_k − S_q. Which row of the block "
        "decides where the loop without a mask must stop, and which row decides where the other one may stop?",
        "The first row sees start_m + 1 + S_k − S_q keys: round that down to whole tiles for full_n, and not below 0. The last row that "
        "exists is tl.minimum(start_m + BLOCK_M, S_q) − 1; end_n is one past its last key.",
        "Without IS_CAUSAL, full_n is S_k // BLOCK_N * BLOCK_N, and end_n is S_k. After the loops divide by tl.where(l == 0.0, 1.0, l).",
    ),
    solution=causal_kernel,
    reasoning="The first row of the block sees fewest keys, so tiles that it sees whole need no mask. The last row sees most, so nothing "
    "after it is read. IS_CAUSAL is a constant for the compiler, so each value gives a kernel of its own, without a test at run time.",
    inputs=inputs,
    truth=cases.o_truth,
    rule=f"o = softmax(scale · q kᵀ) v: {BOTTOM}",
    adapt=cases.counting_tiles(),
    mistakes=MISTAKES,
    launch=partial(cases.launch, has_causal=True),
    tolerance=cases.tolerance,
    note=note,
    seen={"overlap": OVERLAP, "stored_again": ONCE},
)
