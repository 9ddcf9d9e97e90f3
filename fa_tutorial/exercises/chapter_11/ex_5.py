"""Exercise 11.5, split_kernel."""

import math

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import UNWRITTEN
from fa_tutorial.forward import attend
from fa_tutorial.tiles import load_tile, store_tile

triton = hardware.require_triton("Exercise 11.5")
import triton.language as tl  # noqa: E402


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


_TOKEN = "row r is token r % S_q of a query head, and the newest token, S_q − 1, sees key S − 1"
_PLACE = "row r of program (i, split) is at (split · tl.num_programs(0) + i) · rows + r of lse"
_EMPTY = "it is −∞, the logarithm of an empty sum"
MISTAKES = {
    "not_split": "every split takes all keys: its loop goes from start to end",
    "from_0": "the loop starts at key 0: a split's keys begin at start",
    "to_S": "the loop goes on to the last key: a split's keys end before end",
    "keys": "a part starts inside a tile, so its last tile runs on into the next part: a part is whole tiles, as in 11.2",
    "in_tiles": "a part is counted in tiles: its keys are ceil(tiles / splits) · BLOCK_N",
    "rounded_down": "keys at the end belong to no split: round up when you divide the tiles by splits",
    "last_split": "only the first split counts keys: part is the number of keys, and start is split · part",
    "all_keys": f"every row sees all keys: {_TOKEN}",
    "row_is_token": f"the row is taken for the token: {_TOKEN}",
    "row_is_head": f"r // S_q is the query head: {_TOKEN}",
    "top_left": f"the mask starts at key 0: {_TOKEN}",
    "key_head0": "every program reads key head 0: program i has batch entry i // H_k and key head i % H_k",
    "batch0": "every program reads batch entry 0: program i has batch entry i // H_k and key head i % H_k",
    "scale_ignored": "scale is missing: attend takes it",
    "not_divided": "acc is not divided: a part's o is acc / l, (11.1)",
    "part_end": "last_seen counts from the part's end: it is S − S_q + r % S_q in every part",
    "lse_l": "lse is l: it is m + log l",
    "lse_m": "lse is m alone: add log l",
    "lse_log_l": "lse is log l alone: l is measured from m, so add m",
    "lse_log2": "lse is m + log2 l: it is a natural logarithm",
    "lse_order": f"the parts of lse are in the wrong order: {_PLACE}",
    "lse_no_split": f"all splits store lse at the same place: {_PLACE}",
    "empty_nan": "where nothing is seen o is NaN: l is 0 there, so divide by 1 instead",
    "empty_zero": f"where nothing is seen lse is 0: {_EMPTY}",
    "empty_lse_nan": f"where nothing is seen lse is NaN: {_EMPTY}",
}  # fmt: skip
CONDITIONS = {"empty": "where a row sees no key of a part, or the part has none, o = 0 and lse = −∞"}


def keys_of(split, splits, S, block_n, mistake):
    """The keys that a split's program counts."""
    tiles = -(-S // block_n)
    each = -(-tiles // splits)
    part = {"keys": -(-S // splits), "in_tiles": each, "rounded_down": tiles // splits * block_n}.get(mistake, each * block_n)
    start, end = split * part, min((split + 1) * part, S)
    if mistake == "not_split":
        start, end = 0, S
    if mistake == "from_0":
        start = 0
    if mistake == "to_S":
        end = S
    if mistake == "last_split":
        start = 0 if split == 0 else S
    if mistake in ("keys", "in_tiles") and end > start:
        end = min(start + -(-(end - start) // block_n) * block_n, S)
    return torch.arange(start, max(start, end))


def twin(q, k, v, S_q, splits, blocks, scale, mistake=None):
    q, k, v = q.double(), k.double(), v.double()
    (B, H_k, rows, D), S = q.shape, k.shape[2]
    if mistake in ("key_head0", "batch0"):
        k, v = ((x[:, :1] if mistake == "key_head0" else x[:1]).expand_as(x) for x in (k, v))
    r = torch.arange(rows)
    last_seen = {
        "all_keys": r * 0 + S - 1,
        "row_is_token": S - S_q + r,
        "row_is_head": S - S_q + r // S_q,
        "top_left": r % S_q,
    }.get(mistake, S - S_q + r % S_q)
    s = (1.0 if mistake == "scale_ignored" else scale) * (q @ k.mT)
    o, lse = torch.empty(splits, B, H_k, rows, D).double(), torch.empty(splits, B, H_k, rows).double()
    for split in range(splits):
        keys = keys_of(split, splits, S, blocks[1], mistake)
        last = last_seen - S + keys[-1] + 1 if mistake == "part_end" and len(keys) else last_seen
        part = s[..., keys].masked_fill(keys > last[:, None], -math.inf)
        m = part.amax(dim=-1) if len(keys) else torch.full((B, H_k, rows), -math.inf).double()
        p = torch.exp(part - torch.where(m == -math.inf, 0.0, m)[..., None])
        l = p.sum(dim=-1)
        seen = l > 0
        divisor = 1.0 if mistake == "not_divided" else torch.where(seen | (mistake == "empty_nan"), l, 1.0)[..., None]
        o[split] = p @ v[:, :, keys] / divisor
        log_l = torch.where(seen, l, 1.0).log()
        lse[split] = {"lse_l": l, "lse_m": m, "lse_log_l": log_l, "lse_log2": m + log_l / math.log(2)}.get(mistake, m + log_l)
        empty = {"empty_zero": 0.0, "empty_lse_nan": math.nan}.get(mistake, -math.inf)
        lse[split] = torch.where(seen | (mistake == "lse_log_l"), lse[split], empty)
    if mistake == "lse_order":
        lse = lse.flatten(1, 2).transpose(0, 1).reshape(lse.shape)
    if mistake == "lse_no_split":
        lse[0], lse[1:] = lse[-1].clone(), UNWRITTEN
    return o.flatten(1, 2), lse.flatten(1, 2)


def launch(q, k, v, S_q, splits, blocks, scale):
    (B, H_k, rows, D), S = q.shape, k.shape[2]
    tensors = *(In(x, as_heads=True) for x in (q, k, v)), Out((splits, B * H_k, rows, D), torch.float32, as_heads=True)
    lse = Out((splits, B * H_k, rows), torch.float32)
    meta = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_D"), blocks, strict=True))
    return Launch((B * H_k, splits), (*tensors, lse, H_k, S_q, rows, S, D, scale), meta)


def tolerance(args, part):
    """p is rounded to the dtype of v, and o is a mean of values; the error of an lse is absolute."""
    q, _, v = args[:3]
    rounding = 2e-3 if q.dtype == torch.float16 else 2e-5
    return 1e-6, rounding * (float(v.abs().max()) if part == "o" else 1.0)


def inputs():
    def parts(sizes, S_q, splits, otherwise, *, dtype=torch.float32, block_d=16, draw=None, **options):
        B, H_k, rows, S, D = sizes
        draw = draw or torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(shape, generator=draw).to(dtype) for shape in ((B, H_k, rows, D), *[(B, H_k, S, D)] * 2))
        on = f"{splits} split{'s' * (splits > 1)}, B = {B}, H_k = {H_k}, rows = {rows}, S_q = {S_q}, S = {S}, D = {D}, BLOCK_N = 16"
        stray = f"a tile leaves its tensor: q and o end at rows, k and v at S, all of them at D; b = i // H_k, h_k = i % H_k; {_PLACE}, r < rows"
        return case(q, k, v, S_q, splits, (16, 16, block_d), 0.25, on=on, otherwise=otherwise, stray=stray, **options)

    bounds = "the loop goes from start to end, tile by tile"
    yield parts((1, 1, 16, 32, 16), 1, 1, "one split is the whole attention")
    yield parts((1, 1, 8, 32, 16), 1, 2, "two tiles, one for each split")
    yield parts((1, 1, 6, 32, 16), 3, 2, _TOKEN)
    yield parts((1, 1, 8, 40, 16), 1, 2, f"three tiles, the last one ragged: {bounds}")
    yield parts((1, 1, 8, 72, 16), 1, 3, f"five tiles: two, two and one; {bounds}")
    yield parts((1, 1, 6, 40, 16), 3, 2, _TOKEN)
    yield parts((2, 3, 4, 32, 16), 1, 2, f"program i has batch entry i // H_k and key head i % H_k; {_PLACE}")
    yield parts((1, 1, 8, 32, 12), 1, 2, "D may be less than BLOCK_D")
    yield parts((1, 1, 8, 20, 16), 1, 4, MISTAKES["empty_nan"], edge="empty")
    yield parts((1, 1, 8, 18, 16), 4, 2, "the last part may begin after a row's last key", edge="empty")
    draw = generator()
    for sizes, S_q, splits, dtype in (((2, 2, 4, 70, 20), 2, 3, torch.float16), ((1, 3, 10, 90, 32), 5, 2, torch.float32)):
        yield parts(sizes, S_q, splits, "right on the small cases, wrong on others", dtype=dtype, block_d=32, draw=draw, fresh=True)


EXERCISE = Exercise(
    id="11.5",
    task="Write the kernel that attends to one part of the keys: program (i, split) takes split's part for key head i % H_k of sequence i // H_k.",
    conditions=CONDITIONS,
    hints=(
        "Take chapter 5's loop. What is its first key now, and where does it end? The number of splits is tl.num_programs(1).",
        "part = tl.cdiv(tl.cdiv(S, BLOCK_N), splits) * BLOCK_N, and the loop goes over range(split * part, tl.minimum((split + 1) * part, S), BLOCK_N). "
        "last_seen = S - S_q + offs_m % S_q.",
        "store_tile(o, acc / l_or_one[:, None], split, i, 0, rows, D, BLOCK_M, BLOCK_D), and m + tl.log(l_or_one) goes to "
        "lse_ptr + (split * tl.num_programs(0) + i) * rows + offs_m, where offs_m < rows.",
    ),
    solution=split_kernel,
    reasoning="Only the bounds of the loop are new. A program knows nothing of the other parts: its o and lse are those of a whole attention to its own keys, "
    "and the merge needs no more.",
    more="The package's split_kernel also takes several tiles of rows, a length for each sequence, pages and FP8.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("o", "lse"),
    launch=launch,
    tolerance=tolerance,
    overlap=f"two programs write the same row: the first two indices of o are split and i, and {_PLACE}",
)
