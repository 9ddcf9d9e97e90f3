"""What the exercises on forward kernels say alike, and their inputs of one program."""

import types

import torch

from fa_tutorial.exercises.forward_cases import attention_case, draw_qkv
from fa_tutorial.matmul import triton

OVERLAP = "two programs compute the same rows: program pid computes row block pid % row_blocks of batch and head pid // row_blocks"
HALF = "fp16 works too (and bf16 on a GPU): the scores, m, l and acc stay float32"
TF32 = "q kᵀ is rounded to TF32: tl.dot rounds fp32 unless you say otherwise, the course's dot doesn't"
KEYS_READ = "keys past S_k are read: pass S_k to load_tile for k and for v"
BLOCKS = "BLOCK_M and BLOCK_N may differ: a tile of q or o has BLOCK_M rows, a tile of k or v BLOCK_N"
ROWS = "S_q and S_k may differ: k and v have S_k rows, q and o have S_q rows"
LOW = "all scores may be low: m starts at −inf, below them all, and exp takes differences"
FIRST = "keys past S_k are hidden before the maximum is taken: a score of 0 in their place may be the largest of all"
HEADS = "pid % row_blocks is the row block, and pid // row_blocks is b · H + h, so // H gives b and % H gives h: pass both to every load_tile and store_tile"
ROW_BLOCKS = "rows end at S_q: a head has tl.cdiv(S_q, BLOCK_M) row blocks, and q's load_tile and o's store_tile get S_q"
ONCE = "a program stores each element once, after its loop"
NOT_FINITE = (
    "a result isn't finite: look for a division by 0, an exponent that is positive or NaN, and a tile in fp16, which ends at 65504. p is "
    "exp(s − m), where m is the largest score so far, and alpha exp(old m − new m)"
)
FALLS = "the maximum may be in the first tile: m never falls, and p is exp(s − m)"


def as_solution(kernel, module):
    """The package's kernel, word for word, as a solution: a copy under this module's name, because check refuses the package's own."""
    function = kernel.fn
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__)
    copy.__annotations__, copy.__doc__, copy.__module__ = function.__annotations__, function.__doc__, module
    return triton.jit(copy)


def half_inputs(loop=True, **options):
    """fp16 inputs that show scores, acc, or an m that a loop carries, that are no float32, or a scaled q."""
    options["edge"] = "half"
    zero, one = torch.zeros(1, 1, 16, 16, dtype=torch.float16), torch.ones(1, 1, 16, 16, dtype=torch.float16)
    q, k = zero.clone(), zero.clone()
    q[..., 0], q[..., 1], k[..., 0], k[:, :, ::2, 1] = 64, 1, 32, 1
    v = torch.where(k[..., 1:2] == 1, 2 * one, one)
    if loop:  # a second tile whose v are others: how the tiles weigh shows m
        k, v = torch.cat([k, k], 2), torch.cat([v, -v * v], 2)
    equal = f"{HALF}: fp16 rounds 2049 to 2048"
    yield attention_case(q, k, v, "fp16, odd keys with score 2048, even keys with score 2049, scale = 1", equal, scale=1.0, **options)
    q, k, v = zero.clone(), zero.clone(), one.clone()
    q[..., 0], q[..., 1], k[:, :, ::2, 0], k[:, :, ::2, 1], v[:, :, 1::2] = 5, -1, 4096, 20480, 2
    on = "fp16, q = (5, −1, 0 …), even keys (4096, 20480, 0 …) and v 1, odd keys 0 and v 2, scale = 0.3"
    alike = "all scores are 0.3 · (5 · 4096 − 20480) = 0, but scaled first, q is rounded to fp16: multiply q and k as they are, scale their product"
    yield attention_case(q, k, v, on, alike, scale=0.3, **options)
    large = 100 * one, 100 * one, 60000 * one
    yield attention_case(*large, "fp16, all scores 80000, v all 60000, scale = 0.5", f"{HALF}: fp16 ends at 65504", scale=0.5, **options)


def logits(*tiles, scale=0.25, S_k=None):
    """q, k and v of 16 queries whose logits are equal within each tile of 16 keys, the last one cut off at S_k."""
    q, _, v = draw_qkv(1, 1, 16, 16 * len(tiles), 16)
    k = torch.cat([torch.full((1, 1, 16, 16), tile / (16 * scale)) for tile in tiles], dim=2)
    return torch.ones_like(q), k[:, :, :S_k].clone(), v[:, :, :S_k].clone()


def own_maximum():
    q, k, v = logits(200)
    q[:, :, :15], k[:, :, 1:] = 0, 0  # row 15's mean is not its maximum
    return attention_case(q, k, v, "key 0's logit 200 in row 15, all others 0", "each row subtracts its own maximum, tl.max(s, axis=1)")


def one_tile_inputs(one_tile="", **options):
    """One program and one step, for whole tiles. one_tile: the rule, for random numbers; options: of each case."""
    options |= {"stray": "an offset is wrong, not a mask: every tile is full here", "infinite": NOT_FINITE}
    zeros = torch.zeros(1, 1, 16, 16)
    mean = "all scores are 0, so p is 1 for each key that a row sees, l is their number, and o is acc / l, the mean of v, 100001 (tl.dot would round it to TF32)"
    yield attention_case(zeros, zeros, zeros + 100001, "one tile, q = k = 0, v all 100001", mean, **options)
    softmax = "one tile gives softmax(scale · q kᵀ) v: scale is an argument, which the caller chooses, maximum and sum run over a row's keys, axis 1, acc is divided by l, and neither a cast nor tl.dot (TF32) rounds it"
    yield attention_case(*draw_qkv(1, 1, 16, 16, 16), "16 queries, 16 keys, scale = 0.5", one_tile or softmax, scale=0.5, **options)
    k = zeros.clone()
    k[:, :, 0] = 10
    alone = "key 0 takes all the weight, so l is 1, and o is that key's v: divide acc by l, with nothing added to it"
    yield attention_case(zeros + 1, k, zeros + 1, "key 0's logits 40, all others 0, v all 1", alone, **options)


def heads_input(**options):
    """As views, so that the stride of b isn't H times that of h."""
    options |= {"layouts": ("bshd",) * 4, "stray": HEADS}
    return attention_case(*draw_qkv(3, 2, 16, 16, 16), "B = 3, H = 2, views of (B, S, H, D)", HEADS, **options)


def two_tiles_input():
    q, k, v = draw_qkv(1, 1, 16, 32, 16)
    k[:, :, 16:] *= 3  # most rows' maximum grows
    joins = "a second tile, of k and of v, joins m, l and acc by (4.2) and (4.3), where m and s are scaled alike, and no key is left out or counts twice"
    stray = "an iteration takes keys start_n to start_n + BLOCK_N − 1, and start_n stays below S_k"
    return attention_case(q, k, v, "S_k = 32, two tiles of keys", joins, stray=stray)
