"""Exercise 4.4, causal_forward."""

import math

import torch

from fa_tutorial.exercises.chapter_4.ex_1 import softmax_step as step
from fa_tutorial.exercises.chapter_4.ex_2 import CONDITIONS as FORWARD_CONDITIONS
from fa_tutorial.exercises.chapter_4.ex_2 import MISTAKES as FORWARD_MISTAKES
from fa_tutorial.exercises.chapter_4.ex_3 import causal_tiles as tiles_of
from fa_tutorial.exercises.chapter_4.tiled_cases import column, half_cases, random_case, scores_case, tolerance
from fa_tutorial.exercises.forward_twin import forward_twin
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.watch import CausalTiles, WholeTilesCompared


def causal_forward(q, k, v, block_m, block_n, scale):
    """(o, lse) of causal attention, tile by tile. q: (B, H, S_q, D); k, v: (B, H, S_k, D)."""
    S_q, S_k = q.shape[2], k.shape[2]
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    for row_block in range(math.ceil(S_q / block_m)):
        rows = slice(row_block * block_m, min((row_block + 1) * block_m, S_q))
        i = torch.arange(rows.start, rows.stop)[:, None]  # [block_m, 1], positions in the sequence
        q_tile = q[:, :, rows].float()  # [block_m, D]
        m = torch.full(q_tile.shape[:3], -math.inf)  # [block_m]
        l, acc = torch.zeros_like(m), torch.zeros_like(q_tile)  # [block_m], [block_m, D]
        full, end = tiles_of(row_block, block_m, block_n, S_q, S_k)  # (4.6)
        for key_block in range(end):
            keys = slice(key_block * block_n, min((key_block + 1) * block_n, S_k))
            # [block_m, block_n], (4.1)
            s = scale * (q_tile @ k[:, :, keys].float().transpose(-1, -2))
            if key_block >= full:
                j = torch.arange(keys.start, keys.stop)[None, :]  # [1, block_n]
                s = s.masked_fill(j > i + S_k - S_q, -math.inf)
            p, m, l, alpha = step(s, m, l)  # (4.2)
            acc = alpha[..., None] * acc + p @ v[:, :, keys].float()  # (4.3)
        o[:, :, rows] = acc / torch.where(l == 0, 1.0, l)[..., None]  # (4.4)
        lse[:, :, rows] = m + torch.log(l)  # (4.5)
    return o, lse


_AS_IN_4_2 = (
    *("exchanged", "not_divided", "acc_kept", "o_zero", "lse_never", "scale_ignored", "scale_own", "scale_twice"),
    *("half_scores", "half_acc", "half_lse", "half_scale"),
)
MISTAKES = {name: FORWARD_MISTAKES[name] for name in _AS_IN_4_2} | {
    "nan_mask": "0 · ∞ is NaN, if the mask multiplies by −inf: choose with torch.where or masked_fill (or neither o nor lse is written)",
    "end_as_key": "end counts tiles, and your loop takes it for a position: loop over range(end), or up to end · block_n",
    "tiles_of_start": "tiles_of wants the number of the block of rows, not its first row: start_m // block_m, if start_m is that row",
    "no_mask": "nothing is masked: query i must not see later keys",
    "strict": "the mask is strict: query i sees key i too",
    "upside": "the mask is upside down: it hides the past",
    "mask_inverted": "the mask is inverted: it hides what is seen, and shows what is hidden",
    "hide_zero": "hidden scores are set to 0, and exp(0 − m) is a weight like any other: use −inf",
    "mask_after": "the mask comes after the softmax: the weights that are left no longer add up to 1",
    "by_place_skips": "the mask compares positions in the tile: add the tile's own start, to i and to j",
    "by_place_keys_skips": "j counts keys from the tile's own start: add that start, so that j is a position in the sequence",
    "by_place_rows_skips": "i counts rows from the tile's own start: add that start, so that i is a position in the sequence",
    "edge_rows": "i counts rows from the tile's own start: add that start, so that i is a position in the sequence",
    "edge_by_place": "the mask compares positions in the tile: add the tile's own start, to i and to j",
    "edge_last": "only the last tile is masked: mask every tile from full on, since a block of rows may cross several",
    "edge_first": "only the tile with the number full is masked: mask every tile from full on, since a block of rows may cross several",
    "from_full": "the loop over keys starts at full: the whole tiles before it need no mask, but they count",
    "diagonal_open": "nothing is hidden in the tile on the diagonal: mask it, where j > i + S_k − S_q",
    "diagonal_skipped": "the tile on the diagonal is skipped: some of its keys are seen",
    "above_open": "tiles above the diagonal are left unmasked",
    "numbers_skip": "row_block is compared with key_block as if block_m and block_n were equal: too many tiles are skipped",
    "numbers_mask": "row_block is compared with key_block as if block_m and block_n were equal: too few tiles are masked",
    "last_skipped": "the last tile that the block of rows sees is skipped: end is one past it",
    "end_first": "the loop ends where the first block of rows ends: each block of rows has its own end",
    "top_left": "the mask starts at the top left: align it so that the last query sees the last key",
    "shift_clamped": "S_k − S_q may be negative here: without max, the first S_q − S_k rows see no key",
    "shift_sign": "S_k − S_q has the wrong sign: query i sees keys 0 … i + S_k − S_q",
    "skip_top_left": "the tiles to skip are found top left: S_k − S_q is missing where the loop over keys ends",
    "unseen_nan": "rows that see nothing give NaN, by −inf − (−inf) in an exponent or 0 / 0 at the end: o must be 0",
    "unseen_finite": "hidden scores are a finite number such as −1e6: where a row sees nothing, that is its maximum, and p is 1",
    "unseen_lse_nan": "lse of rows that see nothing is NaN: it must be −inf",
    "unseen_lse_zero": "lse of rows that see nothing is 0: log 0 is −inf",
    "unseen_lse_inf": "lse of rows that see nothing is +inf: it must be −inf",
}

CONDITIONS = {
    "lengths": "S_q and S_k may differ: query i sees keys 0 … i + S_k − S_q",
    "unseen": "a row that sees no key gets o = 0 and lse = −inf",
    "ragged": "the last block of rows and the last block of keys may be shorter",
    "skip": "tiles from end on are not computed",
    "tiles": "no product takes more than one tile of block_m × block_n",
    "half": FORWARD_CONDITIONS["half"],
}


def twin(q, k, v, block_m, block_n, scale, mistake=None):
    return forward_twin(q, k, v, block_m, block_n, True, scale, mistake)


def inputs():
    def scores(s, blocks, otherwise, edge=""):
        return scores_case(s, blocks, otherwise, edge=edge)

    yield scores([[1.0, 2.0], [4.0, 1.0]], (2, 2), "one tile: query i sees keys 0 … i")
    four = [[1.0, 2.0, 0.0, 3.0], [2.0, 1.0, 3.0, 0.0], [0.0, 3.0, 1.0, 2.0], [3.0, 0.0, 2.0, 1.0]]
    yield scores(four, (2, 2), "four tiles: query i sees keys 0 … i")
    yield scores(four, (2, 1), "tiles of 2 rows and 1 key: the mask compares positions, i and j, not block numbers")
    yield scores(four, (4, 2), "tiles of 4 rows and 2 keys: a block of rows may need several masked tiles")
    yield scores(four, (1, 2), "tiles of 1 row and 2 keys: the tile on the diagonal is found by positions, not by block numbers")
    seed = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 12, 8, generator=seed) for _ in range(3))  # tells numbers of blocks from positions
    yield case(
        q,
        k,
        v,
        4,
        2,
        0.5,
        on="S_q = S_k = 12, D = 8, blocks 4 × 2, scale = 0.5",
        otherwise="three blocks of rows: each has its own full and end",
    )
    draw = generator()
    for words, factor in (("randn", 1.0), ("3·randn", 3.0)):
        yield random_case(draw, words, (2, 3, 16, 16, 8), (8, 4), 0.3, factor)
    below = "S_q < S_k: query i sees keys 0 … i + S_k − S_q"
    two = [[1.0, 2.0, 0.0], [4.0, 1.0, 3.0]]
    yield scores(two, (2, 3), f"one tile, {below}", "lengths")
    yield scores(two, (1, 1), f"tiles of one score, {below}", "lengths")
    yield random_case(draw, "randn", (2, 3, 8, 16, 8), (4, 8), 0.3, edge="lengths")
    ones = column(1.0, 1.0, 1.0)
    for blocks, words in (((4, 2), "one tile"), ((1, 1), "tiles of one score")):
        pair = column(2.0, 2.0), column(5.0, 7.0)
        yield case(ones, *pair, *blocks, 1.0, on=f"S_q = 3, S_k = 2, q kᵀ = 2, v = [5, 7], {words}", edge="unseen")
    yield case(ones, column(), column(), 2, 2, 1.0, on="S_q = 3, S_k = 0", edge="unseen")
    yield random_case(draw, "randn", (2, 2, 20, 9, 4), (8, 4), 0.5, edge="unseen")
    yield scores(four, (2, 3), "4 keys in blocks of 3: masked tiles may be ragged", "ragged")
    yield scores(four, (3, 2), "4 rows in blocks of 3: the last block has one row", "ragged")
    for sizes, blocks in (((1, 1, 1, 1, 1), (4, 4)), ((2, 3, 9, 17, 8), (8, 4)), ((1, 2, 33, 33, 5), (32, 16))):
        yield random_case(draw, "randn", sizes, blocks, 0.5, edge="ragged")
    q, k, v = (torch.randn(1, 1, 24, 4, generator=seed) for _ in range(3))
    yield case(q, k, v, 4, 2, 0.5, on="S_q = S_k = 24, blocks 4 × 2", edge="skip")
    for S_q, blocks in ((18, (6, 4)), (20, (4, 6))):  # the last block of rows is whole and sees all keys
        q, k, v = (torch.randn(1, 1, S, 3, generator=seed) for S in (S_q, 26, 26))
        yield case(q, k, v, *blocks, 0.5, on=f"S_q = {S_q}, S_k = 26, D = 3, blocks {blocks[0]} × {blocks[1]}", edge="tiles")
    yield from half_cases(draw, MISTAKES)


def note(answer):
    q = k = v = torch.zeros(1, 1, 24, 4)
    with WholeTilesCompared(4, 2) as watch:
        answer(q, k, v, 4, 2, 1.0)
    return "every tile is masked, and only those from full on need it: in a kernel each comparison costs time" if watch.found else ""


EXERCISE = Exercise(
    id="4.4",
    task="Make the tiled forward causal: skip the tiles that no row sees, and mask those that cross the edge.",
    conditions=CONDITIONS,
    hints=(
        "Three things change: where the loop over key blocks ends, what happens to s in some of its iterations, and the division.",
        "full, end = tiles_of(row_block, block_m, block_n, S_q, S_k). Loop over range(end), and mask where key_block >= full. "
        "A row that sees nothing ends with l = 0: divide by 1 there, and let log 0 give −inf.",
        "i and j are positions in the sequence, not in the tile: i = torch.arange(rows.start, rows.stop)[:, None], j likewise for the keys. "
        "Then s = s.masked_fill(j > i + S_k − S_q, −math.inf).",
    ),
    solution=causal_forward,
    reasoning="The loop over keys ends at end, and only the tiles from full on compare positions. A hidden score of −inf gets p = 0 whatever the maximum is. "
    "A row that sees nothing has l = 0 and acc = 0, so dividing by 1 gives o = 0, and m + log l is −inf. step is the softmax_step of exercise 4.1, "
    "and tiles_of is the causal_tiles of 4.3.",
    more="The package's version, algorithm.flash_forward, has both forms in one function, also accepts fewer heads for k and v than for q, and counts the bytes that "
    "its tiles move.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("o", "lse"),
    tolerance=tolerance,
    watch=CausalTiles,
    note=note,
)
