import math

import torch

from fa_tutorial.exercises.chapter_4 import ex_2
from fa_tutorial.exercises.chapter_4.ex_1 import softmax_step as step
from fa_tutorial.exercises.chapter_4.ex_3 import causal_tiles as tiles_of
from fa_tutorial.exercises.chapter_4.tiled_cases import ONE_KEY, column, half_cases, random_case, scores_case, tolerance
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.watch import HiddenByInfinity, WholeTilesCompared
from fa_tutorial.source import source_of


def causal_forward(q, k, v, block_m, block_n, scale):
    """(o, lse) of causal attention, tile by tile. q: (B, H, S_q, D); k, v: (B, H, S_k, D)."""
    S_q, S_k = q.shape[2], k.shape[2]
    o, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    for row_block in range(math.ceil(S_q / block_m)):
        rows = slice(row_block * block_m, min((row_block + 1) * block_m, S_q))
        i = torch.arange(rows.start, rows.stop)[:, None]  # [block_m, 1], row numbers in q
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


MASKED, STEP = "s.masked_fill(j > i + S_k - S_q, -math.inf)", "p, m, l, alpha = step(s, m, l)"
I, J = "torch.arange(rows.start, rows.stop)[:, None]", "torch.arange(keys.start, keys.stop)[None, :]"
MISTAKES = {
    "nothing is masked: in the tiles from full on, query i must not see later keys": (MASKED, "s"),
    "the mask is strict: query i sees key i + S_k − S_q too": ("j > i", "j >= i"),
    "the mask is the wrong way round: hide the keys with j > i + S_k − S_q": ("j > i", "j < i"),
    "tile full needs the mask, too": ("key_block >= full", "key_block > full"),
    "the mask comes after the step, so that m and l count hidden keys: mask s": [
        (MASKED, "s"), (STEP, f"{STEP}\n            if key_block >= full:\n                p = {MASKED.replace('s.', 'p.').replace('-math.inf', '0')}")],
    "the mask compares places in the tile: add the tile's own start, to i and to j": [
        (I, I.replace("rows.start, rows.stop", "rows.stop - rows.start")), (J, J.replace("keys.start, keys.stop", "keys.stop - keys.start"))],
    "the loop over keys starts at full: the whole tiles before it need no mask, but they count": ("range(end)", "range(full, end)"),
    "the loop over keys ends at full: the masked tiles, from full to end − 1, count as well": ("range(end)", "range(full)"),
    "hidden scores are set to 0, and exp(0 − m) is a weight like any other: use −inf": (MASKED, MASKED.replace("-math.inf", "0.0")),
    "end counts tiles, and your loop takes it for a number of keys: loop over range(end)": (
        "range(end)", "range(math.ceil(end / block_n))"),
    "the mask starts at the top left: align it so that the last query sees the last key": (MASKED, MASKED.replace(" + S_k - S_q", "")),
    "rows that see nothing give NaN, by 0 / 0 at the end: o must be 0": ("torch.where(l == 0, 1.0, l)", "l"),
} | {told: change for told, change in ex_2.MISTAKES.items() if str(change[0]) in source_of(causal_forward)}  # fmt: skip

CONDITIONS = {
    "lengths": "S_q and S_k may differ: query i sees keys 0 … i + S_k − S_q",
    "unseen": "a row that sees no key gets o = 0 and lse = −inf",
    "ragged": "the last block of rows and the last block of keys may be shorter",
    "skip": "tiles from end on are not computed",
    "tiles": "no product takes more than one tile of block_m × block_n",
    "half": ex_2.CONDITIONS["half"],
}


def truth(q, k, v, block_m, block_n, scale):
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    s = (scale * (q.double() @ k.double().mT)).masked_fill(j > i + len(j) - len(i), -math.inf)
    return torch.softmax(s, -1).nan_to_num() @ v.double(), torch.logsumexp(s, -1)  # a row that sees nothing: 0


def masks_whole_tiles(answer):
    with WholeTilesCompared(2, 3) as compared:
        answer(*torch.ones(3, 1, 1, 6, 1), 2, 3, 1.0)
    return "but tiles are masked in which every row sees all keys: those before full need no mask" if compared.found else ""


def inputs():
    yield scores_case([[2.0]], (1, 1), ONE_KEY)
    one = "one tile: query i sees keys 0 … i, s = scale · q kᵀ, o = acc / l and lse = m + log l, and p is rounded to v's dtype at most"
    times = "0 · (−∞) is NaN: hide scores by masked_fill or where, not by a product"
    yield scores_case([[1.0, 2.0], [4.0, 3.625]], (2, 2), one, infinite=times)
    yield scores_case([[1.0, 2.0], [4.0, 1.0]], (2, 2), "multiply the scores by scale, once: s = scale · q kᵀ", scale=0.5)
    low = "a score that is seen may be any finite number, however low: hidden ones are −∞, and m starts there"
    yield scores_case([[-2e30, 0.0], [0.0, 1.0]], (2, 2), low)
    begins = "tiles of 1 × 1: each block of rows begins with m = −∞, l = 0 and acc = 0; when the maximum grows, rescale acc and l alike"
    yield scores_case([[1.0, 9.0], [1.0, 2.0]], (1, 1), begins)
    four = [[1.0, 2.0, 0.0, 3.0], [2.0, 1.0, 3.0, 0.0], [0.0, 3.0, 1.0, 2.0], [3.0, 0.0, 2.0, 1.0]]
    yield scores_case(four, (2, 2), "four tiles: query i sees keys 0 … i, counted in all of q and k")
    yield scores_case(four, (1, 2), "tiles of 1 row and 2 keys: the mask compares positions, i and j, not block numbers")
    yield scores_case(four, (2, 4), "tiles of 2 rows and 4 keys: i and j are counted in all of q and k, not in the tile")
    seed = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 12, 8, generator=seed) for _ in range(3))  # tells numbers of blocks from positions
    three = "each block of rows has its own full and end, and all tiles from full to end − 1 are masked"
    yield case(q, k, v, 4, 2, 0.5, on="S_q = S_k = 12, D = 8, blocks 4 × 2, scale = 0.5", otherwise=three)
    q, k, v = (torch.randn(2, 3, 16, 8, generator=seed) for _ in range(3))
    heads = "every head of every batch element is attention of its own"
    yield case(q, k, v, 8, 4, 0.3, on="B = 2, H = 3, S_q = S_k = 16, D = 8, blocks 8 × 4, scale = 0.3", otherwise=heads)
    draw = generator()
    below = "S_q < S_k: query i sees keys 0 … i + S_k − S_q"
    yield scores_case([[1.0, 2.0, 0.0], [4.0, 1.0, 3.0]], (2, 3), f"one tile, {below}", edge="lengths")
    args = column(1.0, 1.0, 1.0), column(2.0, 2.0), column(5.0, 7.0)
    fewer = "S_q > S_k: query i sees keys 0 … i + S_k − S_q, and one that sees none gets o = 0 and lse = −inf"
    yield case(*args, 4, 2, 1.0, on="S_q = 3, S_k = 2, q kᵀ = 2, v = [5, 7], one tile", otherwise=fewer, edge="unseen")
    yield random_case(draw, "randn", (2, 2, 20, 9, 4), (8, 4), 0.5, edge="unseen")
    yield scores_case(four, (3, 3), "4 rows and 4 keys in blocks of 3: masked tiles may be ragged", edge="ragged")
    yield random_case(draw, "randn", (2, 3, 33, 33, 5), (32, 16), 0.5, edge="ragged")
    q, k, v = (torch.randn(1, 1, S, 3, generator=seed) for S in (18, 26, 26))  # the last block of rows is whole and sees all keys
    yield case(
        q, k, v, 6, 4, 0.5, on="S_q = 18, S_k = 26, D = 3, blocks 6 × 4", otherwise="S_q < S_k: all tiles before end count", edge="tiles"
    )
    q, k, v = (torch.randn(1, 1, 24, 4, generator=seed) for _ in range(3))
    yield case(q, k, v, 4, 2, 0.5, on="S_q = S_k = 24, blocks 4 × 2", edge="skip")
    yield from half_cases(draw)


EXERCISE = Exercise(
    task="Make the tiled forward causal: skip the tiles that no row sees, and mask those that cross the edge.",
    conditions=CONDITIONS,
    hints=(
        "Three things change: where the loop over key blocks ends, what happens to s in some of its iterations, and the division.",
        "full, end = tiles_of(row_block, block_m, block_n, S_q, S_k). Loop over range(end), and mask where key_block >= full. "
        "A row that sees nothing ends with l = 0: divide by 1 there, and let log 0 give −inf.",
        "i and j are numbers of rows in q and k, not places in the tile: i = torch.arange(rows.start, rows.stop)[:, None], j likewise for "
        "the keys. Then s = s.masked_fill(j > i + S_k − S_q, −math.inf).",
    ),
    solution=causal_forward,
    reasoning="The loop over keys ends at end, and only the tiles from full on compare positions. A hidden score of −inf gets p = 0 "
    "whatever the maximum is. A row that sees nothing has l = 0 and acc = 0, so dividing by 1 gives o = 0, and m + log l is −inf. step is "
    "the softmax_step of exercise 4.1, and tiles_of is the causal_tiles of 4.3.",
    more="The package's version, algorithm.flash_forward, has both forms in one function, also accepts fewer heads for k and v than for "
    "q, and counts the bytes that its tiles move.",
    inputs=inputs,
    truth=truth,
    rule="query i sees keys 0 … i + S_k − S_q: o = softmax(s) v and lse = log Σ exp(s) over these",
    mistakes=MISTAKES,
    parts=("o", "lse"),
    tolerance=tolerance,
    watch=HiddenByInfinity,
    note=masks_whole_tiles,
)
