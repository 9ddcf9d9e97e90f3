"""Exercise 10.3, listed_kernel."""

import math

import torch

from fa_tutorial.exercises.chapter_10.ex_1 import window
from fa_tutorial.exercises.chapter_10.ex_2 import tile_kinds
from fa_tutorial.exercises.forward_kernels import draw_qkv
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.forward import softmax_step
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, load_tile, store_tile


@triton.jit
def listed_kernel(q, k, v, o, index_ptr, count_ptr, H, S_q, S_k, D, scale, aux, MASK_MOD: tl.constexpr,
                  BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """Attention over the pairs of the listed tiles that MASK_MOD lets through."""
    row_blocks, across = tl.cdiv(S_q, BLOCK_M), tl.cdiv(S_k, BLOCK_N)
    row, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    start_m, b, h = row * BLOCK_M, batch_head // H, batch_head % H

    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    i = start_m + tl.arange(0, BLOCK_M)[:, None]  # [BLOCK_M, 1]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    count = tl.load(count_ptr + row)
    for t in range(count):
        start_n = tl.load(index_ptr + row * across + t) * BLOCK_N
        k_tile = load_tile(k, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
        j = start_n + tl.arange(0, BLOCK_N)[None, :]  # [1, BLOCK_N]
        seen = (j < S_k) & MASK_MOD(b, h, i, j, aux)  # [BLOCK_M, BLOCK_N]
        s = tl.where(seen, scale * dot(q_tile, tl.trans(k_tile)), -float("inf"))  # [BLOCK_M, BLOCK_N]
        p, m, l, alpha = softmax_step(s, m, l)
        v_tile = load_tile(v, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
        acc = dot(p, v_tile, acc * alpha[:, None])
    l = tl.where(l == 0, 1.0, l)  # a row that sees no key has acc = 0
    store_tile(o, acc / l[:, None], b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


ENTRY, NUMBER = "row * across + t", "tl.load(index_ptr + row * across + t)"
LOOP, SEEN = "range(count)", "(j < S_k) & MASK_MOD(b, h, i, j, aux)"
NO_KEY = "    l = tl.where(l == 0, 1.0, l)  # a row that sees no key has acc = 0\n"
MISSING_KEYS = "a key past S_k gets a score of 0, and softmax counts it: where the mask mod hides nothing, j < S_k must"
EXCHANGED = "b and h are exchanged in MASK_MOD(b, h, i, j, aux)"
MISTAKES = {
    "t is taken for the tile's number: it is the place in the list, and index_ptr holds the number": (NUMBER, "t"),
    "start_n counts keys, and index_ptr holds numbers of tiles: multiply by BLOCK_N": (f"{NUMBER} * BLOCK_N", NUMBER),
    "every tile is loaded, in the list or not: loop over the list's count, and take each tile's number from index": [
        (LOOP, "range(across)"), (NUMBER, "t")],
    "the loop runs to the end of the list's row: only its first count entries mean anything": (LOOP, "range(across)"),
    "every block of rows walks the first block's list: its own is row start_m // BLOCK_M of index and of count": [
        ("count_ptr + row", "count_ptr"), (ENTRY, "t")],
    "every block of rows takes its tiles from the first block's list: its own starts ceil(S_k / BLOCK_N) entries a row further on": (ENTRY, "t"),
    "every block of rows takes the first block's count: its own is at count_ptr + start_m // BLOCK_M": ("count_ptr + row", "count_ptr"),
    "the lists overlap: row r of index starts at r · ceil(S_k / BLOCK_N)": (ENTRY, "row + t"),
    "a row of index has an entry for every tile of keys: ceil(S_k / BLOCK_N), not ceil(S_q / BLOCK_M)": (ENTRY, "row * row_blocks + t"),
    "a row of index has an entry for the ragged last tile, too: ceil(S_k / BLOCK_N), not S_k // BLOCK_N": (ENTRY, "row * (S_k // BLOCK_N) + t"),
    "a tile of keys starts at its number times BLOCK_N, not BLOCK_M": (f"{NUMBER} * BLOCK_N", f"{NUMBER} * BLOCK_M"),
    "the mask is missing: a listed tile may still hold hidden pairs": (SEEN, "(j < S_k)"),
    MISSING_KEYS: ("(j < S_k) & ", ""),
    EXCHANGED: ("MASK_MOD(b, h,", "MASK_MOD(h, b,"),
    "rows that see no key give NaN, from 0 / 0: divide by 1 where l is 0": (NO_KEY, ""),
}  # fmt: skip
CONDITIONS = {"empty": "a list may be empty: the rows of its block see no key, and get o = 0"}


@triton.jit
def everything(b, h, i, j, aux):
    """A mask mod that hides nothing."""
    return (i >= 0) & (j >= 0)


@triton.jit
def every_second(b, h, i, j, aux):
    """A mask mod that shows batch entry b the keys with an even j + b."""
    return (i >= 0) & ((j + b) % 2 == 0)


SECOND = -1  # in place of a window's `left`
MODS = {None: everything, SECOND: every_second}


def is_seen(distance, left):
    """Whether a window of `left` shows a key at this distance from the diagonal; None and SECOND have something to show everywhere."""
    return torch.ones_like(distance, dtype=torch.bool) if left in MODS else (distance <= 0) & (distance >= -left)


def lists(S_q, S_k, left, block_m, block_n):
    """(index, count) of a window's tiles: (blocks of queries, blocks of keys) and (blocks of queries,) int32. An unused entry repeats the first."""
    distance = torch.arange(S_k) - torch.arange(S_q)[:, None] - (S_k - S_q)
    needed = tile_kinds(is_seen(distance, left), block_m, block_n) > 0
    index, count = needed.int().argsort(dim=1, descending=True, stable=True), needed.sum(dim=1)
    unused = torch.arange(needed.shape[1]) >= count[:, None]
    return torch.where(unused, index[:, :1], index).int(), count.int()


def launch(q, k, v, left, blocks):
    (B, H, S_q, D), S_k = q.shape, k.shape[2]
    index, count = lists(S_q, S_k, left, *blocks)
    tensors = *(In(x, as_heads=True) for x in (q, k, v)), Out(q.shape, q.dtype, as_heads=True), In(index), In(count)
    meta = {"MASK_MOD": MODS.get(left, window), "BLOCK_M": blocks[0], "BLOCK_N": blocks[1], "BLOCK_D": D}
    return Launch((len(count) * B * H,), (*tensors, H, S_q, S_k, D, D**-0.5, (left or 0, S_k - S_q)), meta)


def truth(q, k, v, left, blocks):
    B, S_q, S_k = len(q), q.shape[2], k.shape[2]
    j = torch.arange(S_k)
    seen = is_seen(j - torch.arange(S_q)[:, None] - (S_k - S_q), left).expand(B, 1, S_q, S_k)
    if left == SECOND:
        seen = seen & ((j + torch.arange(B).view(B, 1, 1, 1)) % 2 == 0)
    s = q.shape[-1] ** -0.5 * q.double() @ k.double().mT
    return torch.softmax(s.masked_fill(~seen, -math.inf), dim=-1).nan_to_num() @ v.double().nan_to_num()  # v is NaN where no tile is needed


def inputs():
    def rows(B, H, S_q, S_k, left, otherwise, *, blocks=(16, 16), on="", edge="", draw=None, **options):
        words = on or f"S_q = {S_q}, S_k = {S_k}, tiles of {blocks[0]} × {blocks[1]}, a window of {left} keys and the query's own"
        return case(*draw_qkv(B, H, S_q, S_k, 16, draw=draw), left, blocks, on=words, otherwise=otherwise, edge=edge, **options)

    loop = "for each t below count, the tile's number is at index_ptr + row · ceil(S_k / BLOCK_N) + t, and its keys start at BLOCK_N times that"
    heads = "all heads and batch entries share the lists: a program's row is the number of its block of rows, program_id % row_blocks"
    beyond = "a program's row is the number of its block of rows, program_id % row_blocks, and a list's row has ceil(S_k / BLOCK_N) entries"
    yield rows(1, 1, 16, 16, 3, "", stray=beyond)
    yield rows(1, 1, 32, 32, 5, loop, stray=beyond)
    yield rows(1, 1, 64, 64, 20, loop, stray=beyond)
    yield rows(1, 1, 32, 64, 20, "S_q and S_k may differ", stray=beyond)
    yield rows(1, 1, 64, 96, 10, "BLOCK_M and BLOCK_N may differ", blocks=(16, 32), stray=beyond)
    yield rows(1, 1, 40, 40, 10, "the last tiles may be ragged", stray=beyond)
    hides_nothing = "S_q = S_k = 40, tiles of 16 × 16, a mask mod that hides nothing"
    yield rows(1, 1, 40, 40, None, MISSING_KEYS, on=hides_nothing, stray=beyond)
    yield rows(2, 2, 32, 32, 5, heads, on="B = H = 2, S_q = S_k = 32", stray=heads)
    yield rows(2, 1, 32, 32, SECOND, EXCHANGED, on="B = 2, H = 1, batch entry b sees the keys with an even j + b", stray=heads)
    q, k, v = draw_qkv(1, 1, 16, 64, 16)
    v[:, :, :32] = math.nan  # it shows in o if it is read, because 0 · NaN is NaN
    yield case(
        q,
        k,
        v,
        10,
        (16, 16),
        on="S_q = 16, S_k = 64, the list holds tiles 2 and 3, and v is NaN in tiles 0 and 1",
        otherwise=loop,
        stray=beyond,
    )
    draw = generator()
    yield rows(1, 2, 70, 90, 33, loop, on="random numbers, S_q = 70, S_k = 90", blocks=(32, 16), draw=draw, fresh=True, stray=beyond)
    yield rows(1, 1, 48, 16, 20, "", on="S_q = 48, S_k = 16, so that rows 0 to 31 see no key", edge="empty", stray=beyond)


EXERCISE = Exercise(
    id="10.3",
    task="Let the kernel's loop take its tiles from a list.",
    conditions=CONDITIONS,
    hints=(
        "Only the loop's head changes. Which row of the lists belongs to this program? All heads share it.",
        "The row is start_m // BLOCK_M. Load count_ptr + row before the loop, and let t run over range(count).",
        "In the loop, start_n = tl.load(index_ptr + row * tl.cdiv(S_k, BLOCK_N) + t) * BLOCK_N, and the rest is masked_kernel's.",
    ),
    solution=listed_kernel,
    reasoning="A tile's number, times BLOCK_N, is its first key, and nothing else in the loop knew where the tile came from. So any set of tiles does, in "
    "any order: the running softmax doesn't care.",
    more="The package's attend_tiles has two lists, and no mask for the tiles of the second. It also loads the next number one tile ahead.",
    inputs=inputs,
    truth=truth,
    rule="attention over the pairs that MASK_MOD lets through, of the tiles in the row's list",
    mistakes=MISTAKES,
    launch=launch,
    tolerance=lambda args, part: (0.0, 2e-5 * float(args[2].double().nan_to_num().abs().max())),
)
