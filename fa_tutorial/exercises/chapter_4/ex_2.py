"""Exercise 4.2, flash_forward."""

import math

import torch

from fa_tutorial.exercises.chapter_4.ex_1 import softmax_step as step
from fa_tutorial.exercises.chapter_4.tiled_cases import column, half_cases, random_case, scores_case, tolerance
from fa_tutorial.exercises.forward_twin import forward_twin
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.watch import Scores


def flash_forward(q, k, v, block_m, block_n, scale):
    """(o, lse) of attention, tile by tile. q: (B, H, S_q, D); k, v: (B, H, S_k, D)."""
    S_q, S_k = q.shape[2], k.shape[2]
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    for row_block in range(math.ceil(S_q / block_m)):
        rows = slice(row_block * block_m, (row_block + 1) * block_m)
        q_tile = q[:, :, rows].float()  # [block_m, D]
        m = torch.full(q_tile.shape[:3], -math.inf)  # [block_m]
        l, acc = torch.zeros_like(m), torch.zeros_like(q_tile)  # [block_m], [block_m, D]
        for key_block in range(math.ceil(S_k / block_n)):
            keys = slice(key_block * block_n, (key_block + 1) * block_n)
            # [block_m, block_n], (4.1)
            s = scale * (q_tile @ k[:, :, keys].float().transpose(-1, -2))
            p, m, l, alpha = step(s, m, l)  # (4.2)
            acc = alpha[..., None] * acc + p @ v[:, :, keys].float()  # (4.3)
        o[:, :, rows] = acc / l[..., None]  # (4.4)
        lse[:, :, rows] = m + torch.log(l)  # (4.5)
    return o, lse


_SHORT = "3 keys are a block of 2 and a block of 1"
_STEP = "a block of keys has block_n rows, and the next one starts block_n further on"
_AGAIN = "each block of rows begins with m = −inf, l = 0, acc = 0"
MISTAKES = {
    "exchanged": "o and lse are swapped: return (o, lse)",
    "not_divided": "acc is not divided by l",
    "exp_alone": "p = exp(s) is neither shifted nor divided",
    "exponent_sign": "the exponent has the wrong sign: it is s − m, which is never positive",
    "acc_divided": "acc is divided by alpha, 0 / 0 in the first block: multiply by alpha (if nothing is divided, o is never written)",
    "o_zero": "o stays 0: write each finished block of rows to it",
    "k_not_turned": "k is not transposed: s is q kᵀ, with k.transpose(-1, -2), and a .view moves no element",
    "k_for_v": "k stands where v belongs",
    "scale_own": "the scores are scaled by 1/√D: multiply them by the scale that is given, and nothing else",
    "scale_both": "the scores are scaled by 1/√D too: multiply them by the scale that is given, and nothing else",
    "scale_ignored": "the scale is ignored",
    "scale_twice": "the scale is applied twice",
    "scale_divides": "the scores are divided by the scale: multiply them",
    "scale_zero": "a scale of 0 is taken for none given: all keys weigh the same",
    "lse_m": "lse is m alone: add log l",
    "lse_log_l": "lse is log l alone: it is relative to m, so add m",
    "lse_l": "lse is l: take its logarithm and add m",
    "lse_m_l": "lse is m + l: take the logarithm of l",
    "lse_log2": "log l is in base 2: lse is the natural logarithm",
    "lse_minus": "log l is subtracted: lse is m + log l",
    "lse_never": "lse is never written, or stays 0: write each finished block of rows to it",
    "lse_raw": "lse is that of the scores before the scale",
    "lse_last_l": "the l in lse is the last block's alone",
    "lse_first_m": "the m in lse is the first block's",
    "lse_last_m": "the m in lse is the last block's, not the running maximum",
    "acc_kept": "your acc is not rescaled when the maximum grows, and l is",
    "l_kept": "your l is not rescaled when the maximum grows, and acc is",
    "both_kept": "neither acc nor l is rescaled: each block's p is relative to its own maximum, and counts alike",
    "by_itself": "each block is normalised by itself, and the results are added",
    "inverted": "acc and l are rescaled with alpha inverted: it is exp(m − m_new)",
    "acc_inverted": "acc is rescaled with alpha inverted: it is exp(m − m_new)",
    "l_inverted": "l is rescaled with alpha inverted: it is exp(m − m_new)",
    "last_block": "only the last block is left in o: carry m, l and acc from block to block",
    "last_acc": "only the last block is left in acc: add to the rescaled acc",
    "last_l": "only the last block is left in l: add to the rescaled l",
    "first_block": "only the first block of keys is used",
    "new_rescaled": "the new block's p v is rescaled as well: rescale only what was summed before it",
    "acc_after": "the new block's p v is rescaled as well: rescale only what was summed before it",
    "own_maximum": "p is relative to its block's own maximum, and acc and l to the running one",
    "own_l": "acc is right, but l adds the second block relative to its own maximum",
    "falls": "m is the last block's own maximum: it is the maximum of all scores seen so far, and it never falls",
    "divided_early": "acc is divided by l in every block, and the next one takes it for the undivided sum: divide once, at the end",
    "keys_dropped": f"the ragged last block of keys is dropped: {_SHORT}",
    "keys_zeros": "the ragged last block of keys is filled up with zeros, and a score of 0 counts: hide it with −inf",
    "unshifted": "exp overflows: the scores must be shifted by the running maximum before exp",
    "from_zero": "exp underflows: m starts at 0, above every score",
    "one_l": "l is summed over the whole tile: each row has its own",
    "over_queries": "the softmax runs over the queries: each query's weights over the keys must add up to 1",
    "one_maximum": "one maximum is taken over the whole tile: each row has its own",
    "carried": f"the state of one block of rows is carried over to the next: {_AGAIN}",
    "first_rows": "only the first block of rows is computed",
    "first_place": "every block of rows is written to the place of the first",
    "first_q": "every block of rows takes the first block of q",
    "rows_dropped": "the ragged last rows are dropped: 3 rows are a block of 2 and a block of 1",
    "step_m": f"the next block of keys starts block_m further on: {_STEP}",
    "width_m": f"a block of keys has block_m rows: {_STEP}",
    "loop_to_S_q": "the loop over keys runs to S_q: k and v have S_k rows",
    "one_head": "every head gets the result of head 0",
    "one_batch": "every batch element gets the result of batch element 0",
    "half_scores": "the scores are computed in float16, which ends at 65,504 and rounds 2,049 to 2,048: compute the scores in float32",
    "half_acc": "acc or p v passes 65,504, where float16 ends: multiply and add in float32",
    "half_lse": "lse has lost digits: keep m, l and lse in float32",
    "half_scale": "q or k times the scale is rounded to float16: scale the scores, which are float32",
}  # fmt: skip

CONDITIONS = {
    "ragged": "the last block of rows and the last block of keys may be shorter",
    "half": "with fp16 or bf16 inputs, compute in float32 or better; o has q's dtype, and lse is float32",
    "views": "q, k and v may be views with any strides: slice them, don't use .view",
}


def twin(q, k, v, block_m, block_n, scale, mistake=None):
    return forward_twin(q, k, v, block_m, block_n, False, scale, mistake)


def inputs():
    yield scores_case([[1.0, 3.0]], (1, 2), "one tile: o = acc / l and lse = m + log l")
    mixed = "q = [[1]], k = [[1], [2]], v = [[3], [5]], one tile"
    yield case(column(1.0), column(1.0, 2.0), column(3.0, 5.0), 1, 2, 1.0, on=mixed,
               otherwise="o is the sum of the rows of v, each times its key's weight")  # fmt: skip
    yield scores_case([[2.0, 4.0]], (1, 2), "s = scale · q kᵀ", scale=0.5)
    negative = "the maximum is taken before the scale: a negative scale turns the order round, so take it of the scaled scores"
    yield scores_case([[1.0, 2.0]], (1, 2), negative, scale=-1.0)
    yield scores_case([[1.0, 2.0]], (1, 2), "a scale of 0 is a scale too: all keys weigh the same", scale=0.0)
    yield scores_case([[1.0, 2.0]], (1, 1), "two blocks: when the maximum grows, rescale acc and l alike")
    yield scores_case([[2.0, 1.0]], (1, 1), "the maximum is in the first block: the second must be relative to it")
    yield scores_case([[1.0, 2.0, 3.0]], (1, 1), "three blocks: acc and l are carried on from block to block")
    yield scores_case([[1000.0, 1001.0]], (1, 1), MISTAKES["unshifted"])
    yield scores_case([[1000.0, 0.0]], (1, 1), "exp overflows: m is the maximum of all scores seen so far, and it never falls")
    yield scores_case([[-1000.0, -1001.0]], (1, 1), "exp underflows: shift by the running maximum")
    yield scores_case([[1.0, 2.0], [4.0, 1.0]], (2, 2), "two rows of one tile: each has its own m and l")
    yield scores_case([[1.0, 2.0], [4.0, 1.0]], (1, 2), f"two blocks of rows: {_AGAIN}")
    yield scores_case([[1.0, 2.0, 3.0], [4.0, 1.0, 0.0]], (1, 1), "the loop over rows runs to S_q, the loop over keys to S_k")
    yield scores_case([[0.0, 0.0], [1000.0, 1000.0]], (2, 2), "row 0 underflows (it would if one maximum were taken for the whole tile)")
    seed = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, S, 4, generator=seed) for S in (4, 6, 6))
    yield case(q, k, v, 2, 2, 0.5, on="B = 2, H = 3, S_q = 4, S_k = 6, D = 4, blocks 2 × 2, scale = 0.5",
               otherwise="every head of every batch element is attention of its own")  # fmt: skip
    q, k, v = (torch.randn(1, 2, S, 3, generator=seed) for S in (12, 18, 18))
    for blocks in ((4, 6), (6, 3)):
        words = f"S_q = 12, S_k = 18, D = 3, blocks {blocks[0]} × {blocks[1]}"
        yield case(q, k, v, *blocks, 1.0, on=words, otherwise="the tiles are block_m × block_n")
    draw = generator()
    for words, factor in (("randn", 1.0), ("3·randn", 3.0), ("30·randn", 30.0)):
        yield random_case(draw, words, (2, 3, 16, 24, 8), (8, 4), 0.3, factor)
        for sizes, blocks in (((1, 1, 1, 1, 1), (4, 4)), ((2, 3, 9, 17, 8), (8, 4)), ((1, 2, 33, 33, 5), (32, 16))):
            yield random_case(draw, words, sizes, blocks, 0.5, factor, edge="ragged")
    yield scores_case([[1.0, 2.0, 3.0]], (1, 2), f"the last block of keys may be shorter: {_SHORT}", edge="ragged")
    yield scores_case([[1.0, 2.0], [4.0, 1.0], [0.0, 3.0]], (2, 2), "3 rows are a block of 2 and a block of 1", edge="ragged")
    yield scores_case([[1.0, 2.0]], (8, 8), "blocks may be larger than S_q and S_k", edge="ragged")

    yield from half_cases(draw, MISTAKES)

    def transposed(x):
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    yield random_case(draw, "transposed views", (2, 3, 7, 10, 8), (4, 4), 0.35, edge="views", change=transposed)


EXERCISE = Exercise(
    id="4.2",
    task="Compute attention and its log-sum-exp tile by tile, block_m queries by block_n keys.",
    conditions=CONDITIONS,
    hints=(
        "Keep the skeleton's two loops. What must a block of rows start with, and what can it write only after its last block of keys?",
        "In the inner loop: s as in the skeleton, then p, m, l, alpha = step(s, m, l), then acc = alpha[..., None] · acc + p v. "
        "After it: o = acc / l[..., None] and lse = m + log l.",
        "Set m to −inf and l and acc to 0 for each block of rows, all three float32. PyTorch cuts a slice short at the end of a tensor, "
        "so give m, l and acc the shape of the slice of q, not block_m.",
    ),
    solution=flash_forward,
    reasoning="Each block of rows walks over all blocks of keys with its own m, l and acc, and writes o and lse once, at the end. The division "
    "can wait until then because acc and l are always rescaled by the same alpha. step is the softmax_step of exercise 4.1.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("o", "lse"),
    tolerance=tolerance,
    watch=Scores,
)
