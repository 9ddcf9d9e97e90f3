"""Exercise 6.5, flash_backward."""

import functools
import math

import torch

from fa_tutorial.exercises.chapter_6 import ex_4
from fa_tutorial.exercises.gradient_inputs import Inputs, bounds
from fa_tutorial.exercises.gradient_twin import IN_DKV, IN_DQ, gradient_twin
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.exercises.watch import GradientTiles


def flash_backward(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    """(dq, dk, dv), tile by tile. q, o, do: (B, H, S_q, D); k, v: (B, H, S_k, D); lse: (B, H, S_q)."""
    S_q, S_k = q.shape[2], k.shape[2]
    dtype = q.dtype
    q, k, v, o, do = (x.to(torch.promote_types(dtype, torch.float32)) for x in (q, k, v, o, do))
    delta = (do * o).sum(dim=-1)  # (6.6)
    lse = torch.where(lse == -math.inf, math.inf, lse)  # rows that see nothing
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)

    def p_and_ds(rows, keys):
        """[B, H, block_m, block_n] each."""
        s = scale * (q[:, :, rows] @ k[:, :, keys].transpose(-1, -2))
        if is_causal:
            i = torch.arange(rows.start, rows.stop)[:, None]  # positions in the sequence
            j = torch.arange(keys.start, keys.stop)[None, :]
            s = s.masked_fill(j > i + S_k - S_q, -math.inf)
        p = torch.exp(s - lse[:, :, rows, None])  # (6.7)
        dp = do[:, :, rows] @ v[:, :, keys].transpose(-1, -2)  # (6.9)
        return p, p * (dp - delta[:, :, rows, None])  # (6.10)

    row_blocks = [slice(i, min(i + block_m, S_q)) for i in range(0, S_q, block_m)]
    key_blocks = [slice(j, min(j + block_n, S_k)) for j in range(0, S_k, block_n)]
    for keys in key_blocks:
        for rows in row_blocks:
            p, ds = p_and_ds(rows, keys)
            dv[:, :, keys] += p.transpose(-1, -2) @ do[:, :, rows]  # (6.14)
            dk[:, :, keys] += scale * ds.transpose(-1, -2) @ q[:, :, rows]
    for rows in row_blocks:
        for keys in key_blocks:
            _, ds = p_and_ds(rows, keys)
            dq[:, :, rows] += scale * ds @ k[:, :, keys]
    return dq.to(dtype), dk.to(dtype), dv.to(dtype)


_RAGGED = "is skipped: 3 {0} are a block of 2 and a block of 1"
_NUMBERS = "row_block is compared with key_block as if block_m and block_n were equal"
_PLACE = "the mask is by positions in the tile: compare positions in the sequence, the tile's own start added"
_LOST = "2,048 + 1 is 2,048 in float16: keep the sums over blocks in float32"
_TILES = "2,049 and −2,048 make 1, and float16 has no 2,049: add up a tile's product in float32, as it is computed"
_NEGATIVE = "no block of rows comes before row 0, and a slice with a negative start takes it from the end"
IN_EITHER = {  # of these a reader may make one in both loops, or in one of them
    "ragged_rows": f"the ragged last block of rows {_RAGGED.format('rows')}",
    "ragged_keys": f"the ragged last block of keys {_RAGGED.format('keys')}",
    "rows_to_S_k": "the loop over rows runs to S_k: q has S_q rows",
    "keys_to_S_q": "the loop over keys runs to S_q: k and v have S_k rows",
    "by_place": _PLACE,
    "diagonal_open": "the tile on the diagonal is not masked: some of its keys come after some of its queries",
    "diagonal_skipped": "the tile on the diagonal is skipped: some of its keys are seen",
    "above_open": "tiles above the diagonal are left unmasked: skip them",
    "below_skipped": "tiles below the diagonal are skipped: they are seen whole",
    "numbers_skip": f"{_NUMBERS}: too many tiles are skipped",
    "numbers_mask": f"{_NUMBERS}: too few tiles are masked",
    "skip_top_left": "the tiles to skip are found top left: S_k − S_q is missing",
    "skip_sign": "S_k − S_q has the wrong sign where tiles are skipped",
}
FOR_DKV = {
    "first_row_decides": "a block of rows is skipped where its first row does not see the first key: its later rows may see it",
    "mask_first": "only the first block of rows is masked: several may see the key block in part",
}
FOR_DQ = {
    "first_row_decides": "the walk over the keys ends with what the first of the rows sees: the last row sees more",
    "end_down": "the block of keys where the walk ends is rounded down: some of the rows see a part of the next one",
    "mask_last": "only the last block of keys is masked: a block of rows may see several in part",
}
MISTAKES = {
    **ex_4.MISTAKES,
    **{f"{name}_never": f"{name} is never written, or stays 0, or its sum begins in uninitialised memory" for name in ("dq", "dk", "dv")},
    "delta_tile": "delta is summed over one tile alone: it is rowsum(do ∘ o), over all keys",
    "dk_over": "dk is overwritten in every step: add up the row blocks",
    "dv_over": "dv is overwritten in every step: add up the row blocks",
    "dkv_over": "dk and dv are overwritten in every step: add up the row blocks",
    "all_over": "dq, dk and dv are overwritten in every step: add up the tiles",
    "dq_over": "only the last key block is left in dq: add up the key blocks",
    "dq_first_keys": "only the first key block is in dq: add up the key blocks",
    "dkv_first_rows": "only the first block of rows reaches dk and dv",
    "dq_first_rows": "only the first block of rows of dq is computed",
    "dkv_first_keys": "only the first key block of dk and dv is computed",
    "dk_carried": "the sum in dk is carried over from one key block to the next: it begins with 0",
    "dv_carried": "the sum in dv is carried over from one key block to the next: it begins with 0",
    "dkv_carried": "the sums in dk and dv are carried over from one key block to the next: they begin with 0",
    **{name: words for names in (IN_EITHER, FOR_DQ, FOR_DKV) for name, words in names.items()},
    **{name + IN_DKV: f"{words} (in the loop for dk and dv)" for name, words in (IN_EITHER | FOR_DKV).items()},
    **{name + IN_DQ: f"{words} (in the loop for dq)" for name, words in (IN_EITHER | FOR_DQ).items()},
    "keys_by_place": _PLACE,
    "rows_by_place": _PLACE,
    "start_below_0" + IN_DKV: f"row 0 is counted twice for key 0: {_NEGATIVE}",
    **{f"half_{name}": f"{name} loses its small terms: {_LOST}" for name in ("dq", "dk", "dv")},
    **{f"tile_{name}": f"{name} is rounded before it is summed: {_TILES}" for name in ("dq", "dk", "dv")},
}

CONDITIONS = {
    **ex_4.CONDITIONS,
    "memory": "nothing of size S_q × S_k is held: no mask either, and no tiles are kept from one loop for the other",
    "half": "for fp16 and bf16 all is computed and summed in float32; p and ds may be rounded for their matmuls, and each gradient at the end",
}


def tolerance(args, part):
    return bounds(part, *args)


MAKE = Inputs(lambda tensors, blocks, is_causal, scale: (*tensors, *blocks, is_causal, scale), has_blocks=True)


def ladder():
    head, seed = MAKE.head, torch.Generator().manual_seed(0)
    yield from MAKE.one_tile()
    pair = [1.0, 2.0], [1.0, 0.5], [3.0, 5.0], [2.0, 1.0]
    yield head(*pair, blocks=(1, 1), otherwise="four tiles: dk and dv are summed over row blocks, dq over key blocks")
    tall = [1.0, 2.0, 0.5], [1.0, 0.5], [3.0, 5.0], [2.0, 1.0, 3.0]
    yield head(*tall, blocks=(1, 1), otherwise="S_q > S_k: the loop over rows runs to S_q")
    yield head(*tall, blocks=(2, 2), otherwise="3 rows in blocks of 2: the last block has one row")
    wide = [1.0, 2.0], [1.0, 0.5, 2.0], [3.0, 5.0, 1.0], [2.0, 1.0]
    for blocks in ((1, 1), (2, 2)):
        yield head(*wide, blocks=blocks, otherwise="3 keys and 2 rows: the loop over keys runs to S_k, and its last block may be ragged")
    yield head(*wide, blocks=(8, 8), otherwise="blocks may be larger than S_q and S_k")
    four = [1.0, 2.0, 0.5, 1.5], [1.0, 0.5, 2.0, -1.0], [3.0, 5.0, 1.0, 2.0], [2.0, 1.0, 3.0, 1.0]
    for blocks, words in (((2, 2), "four tiles: those below the diagonal whole, those on it masked, those above it skipped"),
                          ((2, 1), "tiles of 2 rows and 1 key: the first block of rows that sees a key is found by positions"),
                          ((1, 2), "tiles of 1 row and 2 keys: the tile on the diagonal is found by positions, not by block numbers"),
                          ((1, 4), "tiles of 1 row and 4 keys: a block of keys needs the mask for several blocks of rows"),
                          ((4, 1), "tiles of 4 rows and 1 key: a block of rows needs the mask for several blocks of keys"),
                          ((2, 3), "4 keys in blocks of 3: masked tiles may be ragged"),
                          ((3, 2), "4 rows in blocks of 3: the last block has one row")):  # fmt: skip
        yield head(*four, True, blocks=blocks, otherwise=words)
    yield from MAKE.masks()
    yield head(*wide, True, blocks=(1, 1), otherwise="S_q < S_k, tiles of one score: query i sees keys 0 … i + S_k − S_q")
    yield head(pair[0], *four[1:3], pair[3], True, blocks=(1, 1),
               otherwise=f"all of q sees the first keys, and every row counts once: {_NEGATIVE}")  # fmt: skip
    yield MAKE.drawn((1, 2, 11, 14, 3), 1.0, False, seed, (4, 6), otherwise="the tiles are block_m × block_n")
    yield from MAKE.edges((3, 2), (1, 1))
    half = {"dtype": torch.float16, "edge": "half"}
    many, ones = [2048.0, *[1.0] * 8], [1.0] * 9
    signs, keys = [1.0, -1.0] * 4, [2048.0, *[-1.0, 1.0] * 3, -1.0]
    yield head([0.0] * 9, [0.0], [1.0], many, blocks=(1, 1), otherwise=MISTAKES["half_dv"], **half)
    yield head(many, [0.0, 0.0], [1.0, -1.0], [2 * x for x in ones], blocks=(1, 1), otherwise=MISTAKES["half_dk"], **half)
    yield head([0.0], keys, signs, [8.0], blocks=(1, 1), otherwise=MISTAKES["half_dq"], **half)
    rows = [2048.0, 1.0, -2048.0, 0.0]
    yield head([0.0] * 4, [0.0], [1.0], rows, blocks=(2, 1), otherwise=MISTAKES["tile_dv"], **half)
    yield head(rows, [0.0, 0.0], [1.0, -1.0], [2.0] * 4, blocks=(2, 1), otherwise=MISTAKES["tile_dk"], **half)
    yield head([0.0], [2048.0, -1.0, 2048.0, 0.0], [1.0, -1.0, -1.0, 1.0], [4.0], blocks=(1, 2), otherwise=MISTAKES["tile_dq"], **half)
    yield MAKE.drawn((1, 2, 11, 14, 3), 1.0, True, seed, (4, 6), edge="memory")
    yield MAKE.drawn((1, 1, 12, 15, 5), 1.0, False, seed, (2, 3), edge="memory")


@functools.cache  # the same tensors each time: what the twin gives for them is computed once
def fixed():
    return tuple(ladder())


def inputs():
    yield from fixed()
    yield from MAKE.fresh([(4, 4), (8, 4), (4, 8), (16, 16), (8, 4)])


EXERCISE = Exercise(
    id="6.5",
    task="Write attention's backward tile by tile, block_m queries by block_n keys.",
    conditions=CONDITIONS,
    hints=(
        "dk and dv of a key block are sums over blocks of rows, dq of a row block is a sum over blocks of keys: two loops, each with one owner for what "
        "it sums. What can be had before both, in one pass over the rows?",
        "delta = rowsum(do ∘ o) first. Then every tile: s, p = exp(s − lse), dp = do vᵀ, ds = p ∘ (dp − delta). Add pᵀ do to dv and scale · dsᵀ q to dk "
        "of the key block; in the second loop, add scale · ds k to dq of the row block.",
        "Causal, bottom right: key j is hidden where j > i + S_k − S_q, with positions in the sequence. Slices past the end are cut short by PyTorch. "
        "A row whose lse is −inf must give p = 0. Keep the sums in float32: p and ds may be rounded for their matmuls, and each gradient once, at the end.",
    ),
    solution=flash_backward,
    reasoning="delta is a sum over all keys, and rowsum(do ∘ o) gives it without them. After that, no tile needs another. The first loop keeps a block of "
    "keys and sums dk and dv over the rows, the second keeps a block of rows and sums dq over the keys: both compute the tile anew, and no sum has "
    "two owners.",
    more="The package's version, algorithm.flash_backward, skips the tiles that the mask hides (causal_rows and causal_tiles say which), rounds p and ds to "
    "the inputs' dtype for their matmuls, takes the gradient of lse too, and fewer heads for k and v than for q.",
    inputs=inputs,
    twin=gradient_twin,
    mistakes=MISTAKES,
    parts=("dq", "dk", "dv"),
    tolerance=tolerance,
    watch=GradientTiles,
)
