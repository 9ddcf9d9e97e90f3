import math

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out, results
from fa_tutorial.forward import attend
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import load_tile, store_tile


@triton.jit
def split_kernel(q, k, v, o, lse_ptr, H_k, S_q, rows, S, D, scale,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """Attention to one part of the keys: that part's o and lse, (11.1)."""
    batch_head, split = tl.program_id(0), tl.program_id(1)
    b, h_k = batch_head // H_k, batch_head % H_k
    part = tl.cdiv(tl.cdiv(S, BLOCK_N), tl.num_programs(1)) * BLOCK_N
    start, end = split * part, tl.minimum((split + 1) * part, S)

    offs_m = tl.arange(0, BLOCK_M)  # [BLOCK_M]
    last_seen = S - S_q + offs_m % S_q  # [BLOCK_M]
    q_tile = load_tile(q, b, h_k, 0, rows, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    for start_n in range(start, end, BLOCK_N):
        m, l, acc = attend(q_tile, k, v, m, l, acc, b, h_k, start_n, last_seen, S, D, scale,
                           True, BLOCK_N, BLOCK_D)  # fmt: skip

    l_or_one = tl.where(l == 0.0, 1.0, l)
    store_tile(o, acc / l_or_one[:, None], split, batch_head, 0, rows, D, BLOCK_M, BLOCK_D)
    first_row = (split * tl.num_programs(0) + batch_head) * rows
    tl.store(lse_ptr + first_row + offs_m, m + tl.log(l_or_one), mask=offs_m < rows)


TOKEN = "row r is token r % S_q of a query head, and the newest token, S_q − 1, sees key S − 1"
PLACE = "row r of program (i, split) is at (split · tl.num_programs(0) + i) · rows + r of lse"
STRAY = """q, o and lse end at row `rows`, k and v at key S; i is tl.program_id(0), split tl.program_id(1), b = i // H_k, h_k = i % H_k;
the first two indices of o are split and i"""
PART, SEEN = "tl.cdiv(tl.cdiv(S, BLOCK_N), tl.num_programs(1)) * BLOCK_N", "S - S_q + offs_m % S_q"
MISTAKES = {
    "keys at the end belong to no split: round up when you divide the tiles by splits": (
        PART, "tl.cdiv(S, BLOCK_N) // tl.num_programs(1) * BLOCK_N"),
    "a part starts inside a tile, so its last tile runs on into the next part: a part is whole tiles, as the text counts them": (
        PART, "tl.cdiv(S, tl.num_programs(1))"),
    "the loop steps by BLOCK_M, the rows of q's tile: a tile of keys has BLOCK_N": ("end, BLOCK_N", "end, BLOCK_M"),
    "the parts are cut in tiles of BLOCK_M, the rows of q's tile: a tile of keys has BLOCK_N": (PART, PART.replace("BLOCK_N", "BLOCK_M")),
    f"last_seen leaves out the keys before the new tokens: {TOKEN}": (SEEN, "offs_m % S_q"),
    "attend gets False for its mask: keys after a row's last one, and lanes past S, then count": ("True, BLOCK_N", "False, BLOCK_N"),
    f"the rows of the tile are taken for tokens: {TOKEN}": (SEEN, "S - rows + offs_m"),
    "the tile of q ends at S_q: it has `rows` rows, S_q for each query head of the group": (
        "load_tile(q, b, h_k, 0, rows", "load_tile(q, b, h_k, 0, S_q"),
}  # fmt: skip


def truth(q, k, v, S_q, splits, block_n):
    rows, S = q.shape[2], k.shape[2]
    part = math.ceil(math.ceil(S / block_n) / splits) * block_n
    keys, r, split = torch.arange(S), torch.arange(rows)[:, None], torch.arange(splits).view(-1, 1, 1, 1, 1)
    seen = (keys <= S - S_q + r % S_q) & (keys // part == split)
    s = (0.25 * q.double() @ k.double().mT).masked_fill(~seen, -math.inf)  # (splits, B, H_k, rows, S)
    o, lse = torch.softmax(s, dim=-1).nan_to_num() @ v.double(), torch.logsumexp(s, dim=-1)
    return o.flatten(1, 2), lse.flatten(1, 2)


def launch(q, k, v, S_q, splits, block_n):
    (B, H_k, rows, D), S = q.shape, k.shape[2]
    ins = (In(x, x.transpose(1, 2).contiguous().transpose(1, 2).stride(), True) for x in (q, k, v))  # views of (B, S, H, D)
    outs = Out((splits, B * H_k, rows, D), torch.float32, as_heads=True), Out((splits, B * H_k, rows), torch.float32)
    meta = {"BLOCK_M": 16, "BLOCK_N": block_n, "BLOCK_D": 16 if D <= 16 else 32}
    return Launch((B * H_k, splits), (*ins, *outs, H_k, S_q, rows, S, D, 0.25), meta)


def inputs():
    def parts(B, H_k, rows, S, S_q, splits, otherwise="", *, D=16, dtype=torch.float32, block_n=16, score=0, **options):
        draw = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(shape, generator=draw).to(dtype) for shape in ((B, H_k, rows, D), *[(B, H_k, S, D)] * 2))
        if score:
            q, k = torch.full_like(q, 4.0), torch.full_like(k, score / D)
        on = f"splits = {splits}, B = {B}, H_k = {H_k}, rows = {rows}, S_q = {S_q}, S = {S}, D = {D}, BLOCK_N = {block_n}"
        return case(q, k, v, S_q, splits, block_n, on=on, otherwise=otherwise, stray=STRAY, **options)

    yield parts(1, 1, 8, 32, 1, 1, "one split is the whole attention: each row sees all 32 keys, o is acc / l and lse is m + log l")
    halves = "two tiles, one for each split: the same rows of q, and positions that count in the whole sequence"
    yield parts(1, 1, 8, 32, 1, 2, {"o": halves, "lse": PLACE})
    yield parts(1, 1, 6, 32, 3, 2, TOKEN)
    three = "three tiles for two splits, so ceil(3 / 2) = 2 a part: tiles 0 and 1, then tile 2 with its single key"
    yield parts(1, 1, 8, 33, 1, 2, three)
    yield parts(1, 1, 8, 32, 1, 1, "each score is −128: m begins at −∞, so that it becomes −128 and no p underflows", score=-128)
    wide = "three tiles of BLOCK_N = 32 keys for two splits, 2 and 1: BLOCK_M = 16 is the height of q's tile alone"
    yield parts(1, 1, 8, 90, 1, 2, wide, block_n=32)
    yield parts(2, 3, 4, 32, 1, 2, f"q, k, v are views; program i has batch entry i // H_k, key head i % H_k; {PLACE}")
    yield parts(2, 2, 4, 70, 2, 3, "the tensors may be fp16, and D less than BLOCK_D", D=20, dtype=torch.float16)
    nothing = "where a row sees nothing m stays −∞ and l 0: divide by 1, and lse is m + log 1 = −∞"
    yield parts(1, 1, 8, 20, 1, 4, nothing, edge="empty")
    last = "the last part, keys 16 and 17, counts for the two newest tokens alone; for the two before o = 0 and lse = −∞"
    yield parts(1, 1, 8, 18, 4, 2, last, edge="empty", infinite=nothing)


def refused(kernel):
    """What is wrong where tiles without a key are multiplied, which the result doesn't show. Only the interpreter shows it."""
    q, k, v = torch.zeros(1, 1, 8, 16), *torch.zeros(2, 1, 1, 20, 16)  # two tiles for four splits
    trace = results(kernel, launch(q, k, v, 1, 4, 16), kernel, "", "", once=True)[1]
    told = "tiles are multiplied that hold no key: no tile begins at S or after it, so end is at most S"
    return told if trace.dots > 2 * 2 else ""


EXERCISE = Exercise(
    task="Write the kernel that attends to one part of the keys: program (i, split) takes split's part for key head i % H_k of sequence i "
    "// H_k.",
    conditions={"empty": "where a row sees no key of a part, o = 0 and lse = −∞; no tile begins at S or after it"},
    hints=(
        "Take chapter 5's loop. What is its first key now, and where does it end? The number of splits is tl.num_programs(1).",
        "Count in tiles: there are ceil(S / BLOCK_N), a part takes ceil(tiles / splits) of them, and the last part may end before the "
        "others do. Which token is row r, and how many tokens come after it? That decides its last key.",
        "A part begins at split * part and ends at (split + 1) * part or at S, whichever comes first. The last key of token t is S - S_q + t. "
        "In o the place (split, i) stands where (b, h) stood; in lse that many rows of `rows` numbers come first.",
    ),
    solution=split_kernel,
    reasoning="Only the bounds of the loop are new. A program knows nothing of the other parts: its o and lse are those of a whole "
    "attention to its own keys, and the merge needs no more.",
    more="The package's split_kernel also takes several tiles of rows, a length for each sequence, pages and FP8.",
    inputs=inputs,
    truth=truth,
    rule="o and lse of a part are those of a whole attention to the part's keys, start … end − 1, by (11.1)",
    mistakes=MISTAKES,
    parts=("o", "lse"),
    launch=launch,
    refused=refused,
    tolerance=lambda args, part: (1e-6, 6e-3 if args[0].dtype == torch.float16 else 6e-5),
    seen={"overlap": f"two programs write the same row: the first two indices of o are split and i, and {PLACE}"},
)
