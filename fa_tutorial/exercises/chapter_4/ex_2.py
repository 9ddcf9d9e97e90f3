import math

import torch

from fa_tutorial.exercises.chapter_4.ex_1 import softmax_step as step
from fa_tutorial.exercises.chapter_4.tiled_cases import ONE_KEY, half_cases, random_case, scores_case, tolerance
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.watch import OnePass


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


ACC, O = "alpha[..., None] * acc + p @ v[:, :, keys].float()", "acc / l[..., None]"
KEYS = "slice(key_block * block_n, (key_block + 1) * block_n)"
MISTAKES = {
    "your acc is not rescaled when the maximum grows, and l is": (ACC, ACC.replace("alpha[..., None] * ", "")),
    "the new block's p v is rescaled as well: rescale only what was summed before it": (
        ACC, "alpha[..., None] * (acc + p @ v[:, :, keys].float())"),
    "acc is not divided by l": (O, "acc"),
    "acc / l divides element [i, d] by row d's l, and it takes row i's: l[..., None]": (O, "acc / l"),
    "acc is divided by l in every block, but the next block needs the undivided sum: divide once, at the end": [
        (ACC, f"({ACC}) / l[..., None]"), (f"rows] = {O}", "rows] = acc")],
    "k is not transposed: s is q kᵀ": (".transpose(-1, -2)", ""),
    "the scale is 1/√D here: multiply by the scale that is given": ("scale * (q_tile", "q.shape[-1] ** -0.5 * (q_tile"),
    "the loop over keys runs to S_q: k and v have S_k rows": ("math.ceil(S_k / block_n)", "math.ceil(S_q / block_n)"),
    "a slice of k and v has block_m rows here: a tile has block_n keys": (KEYS, KEYS.replace("block_n", "block_m")),
    "a slice of k and v ends block_m rows after its start: a tile has block_n keys": (
        KEYS, "slice(key_block * block_n, key_block * block_n + block_m)"),
}  # fmt: skip

CONDITIONS = {
    "ragged": "the last block of rows and the last block of keys may be shorter",
    "half": "with fp16 or bf16 inputs, compute in float32 or better; o has q's dtype, and lse is float32",
    "views": "q, k and v may be views with any strides: slice them, don't use .view",
}


def truth(q, k, v, block_m, block_n, scale):
    s = scale * (q.double() @ k.double().mT)
    return torch.softmax(s, -1) @ v.double(), torch.logsumexp(s, -1)


def inputs():
    yield scores_case([[2.0]], (1, 1), ONE_KEY)
    one = "one tile, so the loop over keys takes one step: s = q kᵀ, o = acc / l and lse = m + log l, and p is rounded to v's dtype at most"
    yield scores_case([[3.0, 2.625]], (1, 2), one)
    yield scores_case([[2.0, 4.0]], (1, 2), "multiply the scores by scale, once: s = scale · q kᵀ", scale=0.5)
    negative = "a negative scale turns the order round: m is the maximum of the scaled scores"
    yield scores_case([[2.0, 4.0]], (1, 2), negative, scale=-0.5)
    yield scores_case([[1.0, 2.0]], (1, 1), "two blocks: when the maximum grows, rescale acc and l alike")
    yield scores_case([[1.0, 2.0, 3.0]], (1, 1), "three blocks: acc and l are carried on from block to block")
    yield scores_case([[1000.0, 1001.0]], (1, 1), "exp(1000) overflows: shift by the running maximum before exp")
    yield scores_case([[-2e30]], (1, 1), "a score may be any finite number, however low: m starts at −∞")
    yield scores_case([[1.0, 2.0], [1000.0, 1000.0]], (2, 2), "two rows of one tile: each has its own m and l")
    yield scores_case([[1000.0, 1001.0], [4.0, 1.0]], (1, 2), "two blocks of rows: each begins with m = −inf, l = 0 and acc = 0")
    seed = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, S, 4, generator=seed) for S in (4, 6, 6))
    heads = "every head of every batch element is attention of its own"
    yield case(q, k, v, 2, 2, 0.5, on="B = 2, H = 3, S_q = 4, S_k = 6, D = 4, blocks 2 × 2, scale = 0.5", otherwise=heads)
    q, k, v = (torch.randn(1, 2, S, 3, generator=seed) for S in (12, 18, 18))
    for blocks in ((4, 6), (6, 3)):
        words = f"S_q = 12, S_k = 18, D = 3, blocks {blocks[0]} × {blocks[1]}"
        yield case(q, k, v, *blocks, 1.0, on=words, otherwise="the tiles are block_m × block_n")
    draw = generator()
    for words, factor in (("randn", 1.0), ("30·randn", 30.0)):
        yield random_case(draw, words, (2, 3, 16, 24, 8), (8, 4), 0.3, factor)
        yield random_case(draw, words, (2, 3, 33, 33, 5), (32, 16), 0.5, factor, edge="ragged")
    shorter = "3 keys are a block of 2 and a block of 1, and so are 3 rows"
    yield scores_case([[1.0, 2.0, 3.0], [4.0, 1.0, 0.0], [0.0, 3.0, 1.0]], (2, 2), shorter, edge="ragged")
    yield from half_cases(draw)

    def transposed(x):
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    yield random_case(draw, "transposed views", (2, 3, 7, 10, 8), (4, 4), 0.35, edge="views", change=transposed)


EXERCISE = Exercise(
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
    reasoning="Each block of rows walks over all blocks of keys with its own m, l and acc, and writes o and lse once, at the end. The "
    "division can wait until then because acc and l are always rescaled by the same alpha. step is the softmax_step of exercise 4.1.",
    inputs=inputs,
    truth=truth,
    rule="o = softmax(scale · q kᵀ) v and lse = log Σ exp(scale · q kᵀ) for each row, whatever the tiles",
    mistakes=MISTAKES,
    parts=("o", "lse"),
    tolerance=tolerance,
    watch=OnePass,
)
