"""What 6.3, 6.5 and 6.6 share: the mistakes that an attention backward can make, and the inputs of its loops over tiles."""

import torch

from fa_tutorial.exercises.gradient_inputs import DP_IN_HALF, HALF_SCALE, HALF_SCORES, Inputs, bounds

TILE = {  # in p, dp and ds
    "ds_sign": "ds has the wrong sign: it is p ∘ (dp − delta)",
    "no_p": "p is missing in ds: it is p ∘ (dp − delta)",
    "dp_from_k": "k stands where v belongs: dp = do vᵀ",
    "dp_v": "v is not transposed: dp = do vᵀ",
    "dp_scaled": "dp is scaled: only the scores are",
    "ds_is_dp": "softmax's gradient is missing: ds is not dp",
    "p_for_ds": "p stands where ds belongs: only dv takes p",
}
WEIGHTS = {  # in dk and dv
    "dk_ds": "ds is not transposed: dk = scale · dsᵀ q",
    "dk_from_do": "do stands where q belongs: dk = scale · dsᵀ q",
    "dk_from_k": "k stands where q belongs: dk = scale · dsᵀ q",
    "dv_p": "p is not transposed: dv = pᵀ do",
    "dv_from_v": "v stands where do belongs: dv = pᵀ do",
    "dv_from_ds": "ds stands where p belongs: dv = pᵀ do",
}
SCALES = {
    "dk_unscaled": "dk is without the scale: s = scale · q kᵀ, so dk = scale · dsᵀ q",
    "dk_twice": "the scale is applied twice in dk",
    "dv_scaled": "dv is scaled: only the scores are, and so dq and dk",
    "own_outside": "1/√D stands in place of the scale: multiply by the scale that is given",
}
HEADS = {
    "one_head": "every head gets the gradients of head 0",
    "one_batch": "every batch element gets the gradients of batch element 0",
    "heads_summed": "the gradients are summed over the heads",
}
DELTA = {
    "no_delta": "delta is missing: ds = p ∘ (dp − delta)",
    "delta_plus": "delta has the wrong sign: ds = p ∘ (dp − delta)",
    "delta_outside": "delta is subtracted after p is multiplied: ds = p ∘ (dp − delta)",
    "delta_tile": "delta is summed over one tile: take the delta that is given, a sum over all keys",
    "delta_lost": "column j is shifted by the delta of row j: delta[..., None] is a column",
    "delta_all": "one delta is taken for all rows: each row has its own",
    "lse_columns": "column j is shifted by the lse of row j: p = exp(s − lse[..., None])",
    "no_lse": "lse is missing: p = exp(s − lse)",
    "scores_unscaled": "the scores are without the scale: p = exp(scale · q kᵀ − lse)",
    "scale_ignored": "the scale is ignored: it multiplies the scores, and so dq and dk",
    "scale_own": "1/√D stands in place of the scale: multiply by the scale that is given",
}
_NEGATIVE = "no block of rows comes before row 0, and a slice with a negative start counts from the end"
_PLACE = "the mask compares positions inside the tile: compare positions in the sequence, rows.start + i and keys.start + j"
_NUMBERS = "row_block is compared with key_block as if block_m and block_n were equal"
MASK = {
    "no_mask": "is_causal changes nothing",
    "strict": "the mask is strict: query i sees key i too",
    "wide": "the mask is one key too wide: the last key that query i sees is key i",
    "upside": "the mask is upside down: it hides the past",
    "hide_zero": "hidden scores are set to 0, and exp(0 − lse) is not 0: use −inf",
    "top_left": "the mask starts at the top left: the last query sees the last key",
    "shift_sign": "S_k − S_q has the wrong sign: query i sees keys 0 … i + S_k − S_q",
    "shift_opens": "with S_q < S_k nothing is masked any more",
    "shift_clipped": "rows see too much: S_k − S_q is negative here, and the mask moves left",
    "unseen_nan": "rows that see nothing give NaN: lse and s are −inf there, and −inf − (−inf) is NaN; p must be 0",
    "unseen_inf": "rows that see nothing give inf or NaN: lse is −inf there, and exp(s + inf) is not 0; p must be 0",
    "by_place": _PLACE,
    "keys_by_place": _PLACE,
    "rows_by_place": _PLACE,
    "diagonal_open": "the tile on the diagonal is not masked: some of its keys come after some of its queries",
    "diagonal_skipped": "the tile on the diagonal is skipped: some of its keys are seen",
    "above_open": "tiles above the diagonal are left unmasked: skip them, or mask them",
    "below_skipped": "tiles below the diagonal are skipped: every row sees them whole",
    "numbers_skip": f"{_NUMBERS}: too many tiles are skipped",
    "numbers_mask": f"{_NUMBERS}: too few tiles are masked",
    "skip_top_left": "the tiles to skip are found as if S_k = S_q: S_k − S_q is missing",
    "skip_sign": "S_k − S_q has the wrong sign where tiles are skipped",
}
RAGGED = {
    "ragged_rows": "the ragged last block of rows is skipped: 3 rows make a block of 2 and a block of 1",
    "ragged_keys": "the ragged last block of keys is skipped: 3 keys make a block of 2 and a block of 1",
    "rows_to_S_k": "the loop over rows runs to S_k: q has S_q rows",
    "keys_to_S_q": "the loop over keys runs to S_q: k and v have S_k rows",
}
HALF = {
    "half_dp": DP_IN_HALF,
    "half_scores": HALF_SCORES,
    "half_scale": HALF_SCALE,
    "half_grads": "float32 comes in, and float16 goes out: return the dtype that came in",
}
_LOST = "2,048 + 1 is 2,048 in float16: keep the sums over blocks in float32"
_TILES = "2,049 and −2,048 make 1, and float16 has no 2,049: add up a tile's product in float32, as it is computed"
OWNED = {
    name: {
        f"{name}_never": f"{name} is never written, or stays 0, or its sum starts in uninitialised memory",
        f"half_{name}": f"{name} loses its small terms: {_LOST}",
        f"tile_{name}": f"{name} is rounded before it is summed: {_TILES}",
    }
    for name in ("dq", "dk", "dv")
}

CONDITIONS = {
    "unseen": "a row that sees no key has lse = −inf, and p = 0: causal with S_q > S_k, or S_k = 0",
    "half": "for fp16 and bf16 everything is computed and summed in float32; only p, ds and each gradient at the end may be rounded",
    "float64": "float64 in gives float64's accuracy out",
    "views": "the inputs may be views: any strides work, 0 too",
    "memory": "nothing of size S_q × S_k is held, and neither is a mask of that size",
}


def tolerance(args, part):
    return bounds(part, *args)


MAKE = Inputs(
    lambda q, k, v, do, lse, delta, blocks, is_causal, scale: (q, k, v, do, lse, delta, *blocks, is_causal, scale), has_blocks=True
)


def ladder(sums, words):
    """The inputs of a loop over tiles. sums: which gradient is summed over what, in words. words: name -> diagnosis, of what fp16 loses."""
    head, seed = MAKE.head, torch.Generator().manual_seed(0)
    yield from MAKE.one_tile()
    pair = [1.0, 2.0], [1.0, 0.5], [3.0, 5.0], [2.0, 1.0]
    yield head(*pair, blocks=(1, 1), otherwise=f"four tiles: {sums}")
    tall = [1.0, 2.0, 0.5], [1.0, 0.5], [3.0, 5.0], [2.0, 1.0, 3.0]
    yield head(*tall, blocks=(1, 1), otherwise="S_q > S_k: the loop over rows runs to S_q")
    yield head(*tall, blocks=(2, 2), otherwise="3 rows in blocks of 2: the last block has one row")
    wide = [1.0, 2.0], [1.0, 0.5, 2.0], [3.0, 5.0, 1.0], [2.0, 1.0]
    for blocks in ((1, 1), (2, 2)):
        yield head(*wide, blocks=blocks, otherwise="3 keys and 2 rows: the loop over keys runs to S_k, and its last block may be ragged")
    yield head(*wide, blocks=(8, 8), otherwise="blocks may be larger than S_q and S_k")
    four = [1.0, 2.0, 0.5, 1.5], [1.0, 0.5, 2.0, -1.0], [3.0, 5.0, 1.0, 2.0], [2.0, 1.0, 3.0, 1.0]
    for blocks, otherwise in (((2, 2), "four tiles: the one below the diagonal is seen whole, two are masked, the one above it is hidden"),
                              ((2, 1), "tiles of 2 rows and 1 key: positions say which block of rows sees a key first"),
                              ((1, 2), "tiles of 1 row and 2 keys: positions say which tile lies on the diagonal, and block numbers do not"),
                              ((1, 4), "tiles of 1 row and 4 keys: a block of keys needs the mask for several blocks of rows"),
                              ((4, 1), "tiles of 4 rows and 1 key: a block of rows needs the mask for several blocks of keys"),
                              ((2, 3), "4 keys in blocks of 3: masked tiles may be ragged"),
                              ((3, 2), "4 rows in blocks of 3: the last block has one row")):  # fmt: skip
        yield head(*four, True, blocks=blocks, otherwise=otherwise)
    yield from MAKE.masks()
    yield head(*wide, True, blocks=(1, 1), otherwise="S_q < S_k, tiles of one score: query i sees keys 0 … i + S_k − S_q")
    yield head(
        pair[0], *four[1:3], pair[3], True, blocks=(1, 1), otherwise=f"every query sees the first keys, and counts once: {_NEGATIVE}"
    )
    yield MAKE.drawn((1, 2, 11, 14, 3), 1.0, False, seed, (4, 6), otherwise="the tiles are block_m × block_n")
    yield from MAKE.edges((3, 2), (1, 1))
    half = {"dtype": torch.float16, "edge": "half"}
    for name, tensors, blocks in FP16_SUMS:
        if name in words:
            yield head(*tensors, blocks=blocks, otherwise=words[name], **half)
    yield MAKE.drawn((1, 2, 11, 14, 3), 1.0, True, seed, (4, 6), edge="memory")
    yield MAKE.drawn((1, 1, 12, 15, 5), 1.0, False, seed, (2, 3), edge="memory")


_MANY, _SIGNS, _ROWS = [2048.0, *[1.0] * 8], [1.0, -1.0] * 4, [2048.0, 1.0, -2048.0, 0.0]
FP16_SUMS = (  # q, k, v, do in which a sum in float16 loses terms
    ("half_dv", ([0.0] * 9, [0.0], [1.0], _MANY), (1, 1)),
    ("half_dk", (_MANY, [0.0, 0.0], [1.0, -1.0], [2.0] * 9), (1, 1)),
    ("half_dq", ([0.0], [2048.0, *[-1.0, 1.0] * 3, -1.0], _SIGNS, [8.0]), (1, 1)),
    ("tile_dv", ([0.0] * 4, [0.0], [1.0], _ROWS), (2, 1)),
    ("tile_dk", (_ROWS, [0.0, 0.0], [1.0, -1.0], [2.0] * 4), (2, 1)),
    ("tile_dq", ([0.0], [2048.0, -1.0, 2048.0, 0.0], [1.0, -1.0, -1.0, 1.0], [4.0]), (1, 2)),
)


def fresh():
    yield from MAKE.fresh([(4, 4), (8, 4), (4, 8), (16, 16), (8, 4)])
