"""The inner step of chapter 5's kernels: its mistakes, and the inputs of one program that show them."""

import torch

from fa_tutorial.exercises.forward_kernels import attention_case, draw_qkv

_KEYS = "a row's maximum and sum run over its keys, axis 1"
_ROWS = "[:, None] gives one number to each row"
_NEXT = "its rows start at start_n"
OVERLAP = "two programs compute the same rows: program pid computes row block pid % row_blocks of batch and head pid // row_blocks"
HALF = "fp16 works too (and bf16 on a GPU): the scores, m, l and acc stay float32"
PADS_V = (
    "rows of v's tile past S_k hold anything: p is 0 there, but 0 · NaN is NaN. Load v with other=0.0, as load_tile does, and pass it S_k"
)
PADS_D = "columns past D hold anything, and they enter the sums of q kᵀ: load q and k with other=0.0, as load_tile does"
KEYS_READ = "keys past S_k are read: pass S_k to load_tile for k and for v"
ONE_TILE = {
    "scale_ignored": "scale is missing: s = scale · q kᵀ",
    "scale_twice": "scale is applied twice",
    "scale_own": "the kernel computes the scale itself: scale is an argument, which the caller chooses",
    "not_divided": "acc is not divided: o = acc / l",
    "divided_keys": "acc is divided by the number of keys: o = acc / l",
    "k_transposed": "q is multiplied by k, not by kᵀ: dot(q_tile, tl.trans(k_tile))",
    "v_transposed": "v is transposed: p is [BLOCK_M, BLOCK_N] and v [BLOCK_N, BLOCK_D], so no transpose is needed",
    "k_for_v": "p is multiplied by k again: the second dot takes v",
    "base_2": "the base is 2: tl.exp2(s) is 2 to the power s, and exp(s) is exp2(s · log2(e))",
    "over_queries": "the softmax runs over the queries: a row's maximum and sum run over the keys, axis 1",
    "both_down": f"maximum and sum run over the queries, and those of key i are taken for row i: {_KEYS}",
    "sum_down": f"the sum runs over the queries, and l of key i divides row i: {_KEYS}",
    "max_down": f"the maximum runs over the queries, so the p of other rows underflow to 0: {_KEYS}",
    "max_columns": f"the maximum runs over the queries, and column j loses key j's maximum: {_KEYS}, and m{_ROWS}",
    "m_columns": f"s − m[None, :] subtracts the m of row j from column j: m{_ROWS}",
    "l_columns": f"acc / l[None, :] divides column j by the l of row j: l{_ROWS}",
    "tf32": 'tl.dot rounds fp32 to TF32 by default: use tiles.dot, or pass input_precision="ieee"',
    "unshifted": "exp overflows: subtract the row's maximum before exp",
    "m_raw": "with a scale other than 1 exp over- or underflows: m is the maximum of scale · q kᵀ, not of q kᵀ",
    "half_scores": "the scores overflow: keep what dot returns in float32, because fp16 ends at 65504",
}  # fmt: skip
STEPS = {
    "acc_kept": "acc is not rescaled when the maximum grows: acc = alpha · acc + p v",
    "l_kept": "l is not rescaled when the maximum grows: l = alpha · l + Σ p",
    "alpha_one": "neither acc nor l is rescaled when the maximum grows: alpha = exp(m_old − m_new), taken before m is replaced",
    "alpha_columns": f"acc · alpha[None, :] rescales column j by the alpha of row j: alpha{_ROWS}",
    "nan_first": "NaN from the first tile on, where the old m is still −inf: p is exp(s − m_new), and alpha is exp(m − m_new), not exp(m_new − m)",
    "last_l": "each tile's l replaces the one before: l = alpha · l + Σ p",
    "last_acc": "each tile's p v replaces the one before: acc = alpha · acc + p v",
    "acc_after": "p v is rescaled too: bring acc to the new maximum first, acc · alpha, and then add p v",
    "divided_early": "acc is divided by l in every iteration: divide once, after the loop",
    "divided_twice": "acc is divided by l in every iteration: divide once, after the loop",
    "last_block": "only the last tile counts: m must carry over to the next iteration, or alpha is 0",
    "first_block": "only the first tile counts: the loop runs to S_k",
    "first_k": f"every iteration reads the first tile of k: {_NEXT}",
    "first_v": f"every iteration reads the first tile of v: {_NEXT}",
    "from_zero": "every p underflows to 0: m starts at −inf, not at 0 or another finite value",
    "from_finite": "m starts at a finite number: where every score is lower, every p is 0. m starts at −inf",
    "falls": "m is the maximum of the last tile alone, so alpha overflows: m_new = max(m, the tile's maximum)",
    "half_acc": "acc is kept in fp16, which ends at 65504: m, l and acc are float32",
}  # fmt: skip


def logits(*tiles, scale=0.25, S_k=None):
    """q, k and v of 16 queries whose logits are equal within each tile of 16 keys, the last one cut off at S_k."""
    q, _, v = draw_qkv(1, 1, 16, 16 * len(tiles), 16)
    k = torch.cat([torch.full((1, 1, 16, 16), tile / (16 * scale)) for tile in tiles], dim=2)
    return torch.ones_like(q), k[:, :, :S_k].clone(), v[:, :, :S_k].clone()


def one_tile_inputs(**options):
    """One program and one step, for whole tiles. options: of every case."""
    fits = "an offset is wrong, not a mask: every tile is full here"
    zeros = torch.zeros(1, 1, 16, 16)
    yield attention_case(zeros, zeros, zeros + 4097, "one tile, q = k = 0, v all 4097", "o is the mean of v here", stray=fits, **options)
    one_tile = "one tile gives softmax(scale · q kᵀ) v"
    yield attention_case(*draw_qkv(1, 1, 16, 16, 16), "S_q = S_k = D = 16, one tile", one_tile, stray=fits, **options)


def two_tiles_input(edge=""):
    q, k, v = draw_qkv(1, 1, 16, 32, 16)
    k[:, :, 16:] *= 3  # most rows' maximum grows
    return attention_case(q, k, v, "S_k = 32, two tiles of keys", "a second tile joins m, l and acc by (4.2) and (4.3)",
                          stray="an iteration takes keys start_n to start_n + BLOCK_N − 1, and start_n stays below S_k", edge=edge)  # fmt: skip
