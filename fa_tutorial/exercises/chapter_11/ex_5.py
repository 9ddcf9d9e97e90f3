"""Exercise 11.5, split_kernel."""

import math
import types

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import Wrong
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
_NAN = "where nothing is seen o is NaN: l is 0 there, so divide by 1 instead"
PART, TOKEN, BEGIN, END = (
    "tl.cdiv(tl.cdiv(S, BLOCK_N), tl.num_programs(1)) * BLOCK_N",
    "offs_m % S_q",
    "split * part, ",
    "tl.minimum((split + 1) * part, S)",
)
HEAD, LSE = "b, h_k = batch_head // H_k, batch_head % H_k", "m + tl.log(l_or_one)"
MISTAKES = {
    "every split takes all keys: its loop goes from start to end": (BEGIN + END, "0, S"),
    "the loop starts at key 0: a split's keys begin at start": (BEGIN, "0, "),
    "the loop goes on to the last key: a split's keys end before end": (END, "S"),
    "keys at the end belong to no split: round up when you divide the tiles by splits": (PART, "tl.cdiv(S, BLOCK_N) // tl.num_programs(1) * BLOCK_N"),
    "a part starts inside a tile, so its last tile runs on into the next part: a part is whole tiles, as in 11.2": (PART, "tl.cdiv(S, tl.num_programs(1))"),
    "a part is counted in tiles: its keys are ceil(tiles / splits) · BLOCK_N": (PART, PART.removesuffix(" * BLOCK_N")),
    f"every row sees all keys: {_TOKEN}": (f"S - S_q + {TOKEN}", "S - 1 + 0 * offs_m"),
    f"the row is taken for the token: {_TOKEN}": (TOKEN, "offs_m"),
    f"r // S_q is the query head: {_TOKEN}": (TOKEN, "offs_m // S_q"),
    f"the mask starts at key 0: {_TOKEN}": ("S - S_q + ", ""),
    "last_seen counts from the part's end: it is S − S_q + r % S_q in every part": (f"S - S_q + {TOKEN}", f"end - S_q + {TOKEN}"),
    "every program reads key head 0: program i has batch entry i // H_k and key head i % H_k": (HEAD, "b, h_k = batch_head // H_k, batch_head * 0"),
    "every program reads batch entry 0: program i has batch entry i // H_k and key head i % H_k": (HEAD, "b, h_k = batch_head * 0, batch_head % H_k"),
    "scale is missing: attend takes it": ("last_seen, S, D, scale", "last_seen, S, D, 1.0"),
    "acc is not divided: a part's o is acc / l, (11.1)": ("acc / l_or_one[:, None]", "acc"),
    "lse is m alone: add log l": (LSE, "m"),
    "lse is log l alone: l is measured from m, so add m": (LSE, "tl.log(l_or_one)"),
    f"the parts of lse are in the wrong order: {_PLACE}": (
        "split * tl.num_programs(0) + batch_head", "batch_head * tl.num_programs(1) + split"),
    _NAN: ("tl.where(l == 0.0, 1.0, l)", "l"),
    "where nothing is seen lse is 0: it is −∞, the logarithm of an empty sum": (LSE, f"tl.where(l == 0.0, 0.0, {LSE})"),
}  # fmt: skip
CONDITIONS = {"empty": "where a row sees no key of a part, or the part has none, o = 0 and lse = −∞"}


def truth(q, k, v, S_q, splits, blocks, scale):
    rows, S = q.shape[2], k.shape[2]
    part = math.ceil(math.ceil(S / blocks[1]) / splits) * blocks[1]
    keys, r, split = torch.arange(S), torch.arange(rows)[:, None], torch.arange(splits).view(-1, 1, 1, 1, 1)
    seen = (keys <= S - S_q + r % S_q) & (keys // part == split)
    s = (scale * q.double() @ k.double().mT).masked_fill(~seen, -math.inf)  # (splits, B, H_k, rows, S)
    o, lse = torch.softmax(s, dim=-1).nan_to_num() @ v.double(), torch.logsumexp(s, dim=-1)
    return o.flatten(1, 2), lse.flatten(1, 2)


def ends_with_the_keys(kernel):
    """In the interpreter: the kernel, Wrong where it calls attend for a tile that begins after the last key."""
    function = getattr(kernel, "fn", None)
    attend = getattr(function, "__globals__", {}).get("attend")
    if not hardware.interpreter_on() or attend is None:
        return kernel

    def number(x):
        return int(x.handle.data.item() if hasattr(x, "handle") else getattr(x, "value", x))

    def watched(*args):
        if len(args) > 10 and number(args[8]) >= number(args[10]):
            raise Wrong(
                f"the loop goes on after the last key, to a tile at start_n = {number(args[8])} of {number(args[10])} keys: end is at most S"
            )
        return attend(*args)

    copy = types.FunctionType(function.__code__, function.__globals__ | {"attend": watched}, function.__name__, function.__defaults__)
    copy.__annotations__, copy.__module__ = function.__annotations__, function.__module__
    return triton.jit(copy)


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
    yield parts((1, 1, 8, 20, 16), 1, 4, _NAN, edge="empty")
    yield parts((1, 1, 8, 18, 16), 4, 2, "the last part may begin after a row's last key", edge="empty")
    draw = generator()
    for sizes, S_q, splits, dtype in (((2, 2, 4, 70, 20), 2, 3, torch.float16), ((1, 3, 10, 90, 32), 5, 2, torch.float32)):
        yield parts(sizes, S_q, splits, "", dtype=dtype, block_d=32, draw=draw, fresh=True)


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
    truth=truth,
    rule="o and lse of a part are those of a whole attention to the part's keys, start … end − 1, by (11.1)",
    mistakes=MISTAKES,
    parts=("o", "lse"),
    launch=launch,
    adapt=ends_with_the_keys,
    tolerance=tolerance,
    overlap=f"two programs write the same row: the first two indices of o are split and i, and {_PLACE}",
)
