"""The inner step of chapter 5's kernels: its mistakes, and the inputs of one program that show them."""

import torch

from fa_tutorial.exercises.forward_kernels import attention_case, draw_qkv

_KEYS = "a row's maximum and sum run over its keys, axis 1"
_ROWS = "[:, None] gives one number for each row"
KEYS_PAST = (
    "what a load puts in place of v's rows past S_k is not 0: p is 0 there, and 0 · NaN or 0 · inf is NaN. Load v with other=0.0; without it "
    "these lanes hold anything"
)
_NEXT = "its rows are start_n + tl.arange(0, BLOCK_N)"
ONE_TILE = {
    "scale_ignored": "scale is forgotten: s = scale · q kᵀ",
    "scale_twice": "scale is applied twice",
    "not_divided": "acc is not divided: o = acc / l",
    "divided_keys": "acc is divided by the number of keys: o = acc / l",
    "k_transposed": "k is not transposed: s = scale · q kᵀ, so k's tile is read as [BLOCK_D, BLOCK_N]",
    "v_transposed": "v is read transposed",
    "o_transposed": "o is stored transposed",
    "k_for_v": "k stands where v belongs",
    "base_2": "the base is 2: tl.exp2(s) is 2 to the power s, and exp(s) is exp2(s · log2(e))",
    "nan_first": "NaN from the first tile on, where the old m is still −inf: p is exp(s − m_new), and alpha is exp(m − m_new), not exp(m_new − m)",
    "over_queries": "the softmax runs over the queries: a row's maximum and sum run over the keys, axis 1",
    "both_down": f"maximum and sum run over the queries, and so those of key i are taken for row i: {_KEYS}",
    "sum_down": f"the sum runs over the queries, and so l of key i divides row i: {_KEYS}",
    "max_down": "every p of the other rows underflows to 0: a row's maximum is its own, over its keys, axis 1",
    "m_columns": f"s − m[None, :] takes the m of row j from column j: m{_ROWS}",
    "l_columns": f"acc / l[None, :] divides column j by the l of row j: l{_ROWS}",
    "tf32": 'fp32 is rounded to the 10 bits of mantissa of TF32, as tl.dot does by default: ask for input_precision="ieee"',
}  # fmt: skip
STEPS = {
    "alpha_columns": f"acc · alpha[None, :] rescales column j by the alpha of row j: alpha{_ROWS}",
    "acc_kept": "acc is not rescaled when the maximum grows: acc = alpha · acc + p v",
    "l_kept": "l is not rescaled when the maximum grows: l = alpha · l + Σ p",
    "alpha_one": "neither acc nor l is rescaled when the maximum grows: alpha = exp(m_old − m_new), taken before m is replaced",
    "last_l": "each tile's l replaces the one before: l = alpha · l + Σ p",
    "last_acc": "each tile's p v replaces the one before: acc = alpha · acc + p v",
    "divided_early": "acc is divided by l at every step: divide once, after the loop",
    "last_block": "only the last tile counts: is m kept from step to step, so that alpha is not 0?",
    "first_block": "only the first tile counts: the loop runs to S_k, and so does the mask of the scores",
    "first_k": f"every step reads the first tile of k: {_NEXT}",
    "first_v": f"every step reads the first tile of v: {_NEXT}",
    "one_on": "the second step takes keys 1 to 16: a tile begins BLOCK_N keys after the one before",
    "unshifted": "exp overflows: subtract the row's maximum before exp",
    "m_raw": "with a scale other than 1 exp under- or overflows: m is the maximum of scale · q kᵀ, not of q kᵀ",
    "from_zero": "every p underflows to 0: m starts at −inf, not at 0 or another finite value",
    "falls": "the maximum is that of the last tile alone, so alpha overflows: m_new = max(m, the tile's maximum)",
    "half_acc": "acc is kept in fp16, which ends at 65504: m, l and acc are float32",
    "half_scores": "the scores overflow: keep what tl.dot returns in float32, fp16 ends at 65504",
}  # fmt: skip


def logits(*tiles, scale=0.25, S_k=None):
    """q, k and v of 16 queries whose logits are equal within each tile of 16 keys, the last one cut off at S_k."""
    q, _, v = draw_qkv(1, 1, 16, 16 * len(tiles), 16)
    k = torch.cat([torch.full((1, 1, 16, 16), tile / (16 * scale)) for tile in tiles], dim=2)
    return torch.ones_like(q), k[:, :, :S_k].clone(), v[:, :, :S_k].clone()


def one_tile_inputs():
    """One program and one step, for whole tiles."""
    fits = "an offset is wrong, not a mask, for whole tiles fit here"
    zeros = torch.zeros(1, 1, 16, 16)
    yield attention_case(zeros, zeros, zeros + 4097, "one tile, q = k = 0, v all 4097", "o is the mean of v here", stray=fits)
    one_tile = "one tile gives softmax(scale · q kᵀ) v"
    yield attention_case(*draw_qkv(1, 1, 16, 16, 16), "S_q = S_k = D = 16, one tile", one_tile, stray=fits)
    q, k, v = logits(200)
    q[:, :, :15] = 0
    own = "each row is shifted by its own maximum: p = exp(s − m)"
    yield attention_case(q, k, v, "logits 200 in row 15, 0 in all others", own)


def two_tiles_input():
    q, k, v = draw_qkv(1, 1, 16, 32, 16)
    k[:, :, 16:] *= 3  # most rows' maximum grows
    return attention_case(q, k, v, "S_k = 32, two tiles of keys", "a second tile joins m, l and acc by (4.2)",
                          stray="a step's keys are start_n to start_n + BLOCK_N − 1, and start_n stays below S_k")  # fmt: skip


def range_inputs():
    """Scores that no exp can take as they are, and then fp16, as the edge "half"."""
    yield attention_case(*logits(200, scale=1.0), "all logits 200, scale = 1", STEPS["unshifted"], scale=1.0)
    yield attention_case(*logits(200), "all logits 200, scale = 0.25", STEPS["m_raw"])
    yield attention_case(*logits(-200), "all logits −200", STEPS["from_zero"])
    yield attention_case(*logits(200, 0), "logits 200 in the first tile, 0 in the second", STEPS["falls"])
    half, edge = torch.zeros(1, 1, 48, 16, dtype=torch.float16), {"edge": "half"}
    equal = "fp16, equal scores, three tiles, v all 60000"
    yield attention_case(half[:, :, :16], half, half + 60000, equal, STEPS["half_acc"], **edge)
    full = "fp16, all of q and k 64, so that q kᵀ is 65536 before it is scaled"
    half, v = half[:, :, :16] + 64, draw_qkv(1, 1, 16, 16, 16)[2].half()
    yield attention_case(half, half, v, full, STEPS["half_scores"], **edge)
