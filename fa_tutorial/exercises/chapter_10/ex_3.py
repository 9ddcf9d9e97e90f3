"""Exercise 10.3, listed_kernel."""

import math

import torch

from fa_tutorial.exercises.chapter_10.ex_1 import window
from fa_tutorial.exercises.forward_cases import draw_qkv
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
        acc = dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None])
    l = tl.where(l == 0, 1.0, l)  # a row that sees no key has acc = 0
    store_tile(o, acc / l[:, None], b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


ENTRY, NUMBER = "row * across + t", "tl.load(index_ptr + row * across + t)"
LOOP, SEEN = "range(count)", "(j < S_k) & MASK_MOD(b, h, i, j, aux)"
NO_KEY = "    l = tl.where(l == 0, 1.0, l)  # a row that sees no key has acc = 0\n"
MISTAKES = {
    "t is taken for the tile's number: it is the place in the list, and index_ptr holds the number": (NUMBER, "t"),
    "start_n counts keys, and index_ptr holds numbers of tiles: multiply by BLOCK_N": (f"{NUMBER} * BLOCK_N", NUMBER),
    "every tile is loaded, in the list or not: loop over the list's count, and take each tile's number from index": [
        (LOOP, "range(across)"), (NUMBER, "t")],
    "the loop runs to the end of the list's row: only its first count entries mean anything": (LOOP, "range(across)"),
    "past its end each list goes on with tile 0, which is then computed again: the loop ends after count entries": [
        (LOOP, "range(across)"), (NUMBER, NUMBER.replace("+ t)", "+ t, mask=t < count, other=0)"))],
    "every block of rows takes the first block's list: its own is row start_m // BLOCK_M of index and of count": [
        ("count_ptr + row", "count_ptr"), (ENTRY, "t")],
    ("every block of rows takes its tiles from the first block's list: its own starts ceil(S_k / BLOCK_N) entries a row further "
    "on"): (ENTRY, "t"),
    "every block of rows takes the first block's count: its own is at count_ptr + start_m // BLOCK_M": ("count_ptr + row", "count_ptr"),
    "a row of index has an entry for every tile of keys: ceil(S_k / BLOCK_N), not ceil(S_q / BLOCK_M)": (ENTRY, "row * row_blocks + t"),
    "a row of index has ceil(S_k / BLOCK_N) entries, however many of them count": (ENTRY, "row * count + t"),
    "MASK_MOD gets i and j exchanged: i is the query, j the key": (SEEN, SEEN.replace("i, j", "j, i")),
    "count is looked up by batch_head: all heads share the lists, so the row of count is the block of queries, as for index": (
        "count_ptr + row", "count_ptr + batch_head"),
    "the first tile of every list is left out: t starts at 0": (LOOP, "range(1, count)"),
    "the last tile of every list is left out: t runs over all count entries": (LOOP, "range(count - 1)"),
    "j runs down the rows of a tile: keys are its columns, so j is [1, BLOCK_N]": ("tl.arange(0, BLOCK_N)[None, :]", "tl.arange(0, BLOCK_N)[:, None]"),
    "the mask is missing: a listed tile may still hold hidden pairs": (SEEN, "(j < S_k)"),
    "rows that see no key give NaN, from 0 / 0: divide by 1 where l is 0": (NO_KEY, ""),
    "a row of a listed tile may see no key, and takes the mean of v if its scores are a large negative number: hide them by −inf": (
        'trans(k_tile)), -float("inf"))', "trans(k_tile)), -1e6)"),
}  # fmt: skip
CONDITIONS = {"empty": "a list may be empty: the rows of its block see no key, and get o = 0"}


@triton.jit
def every_third(b, h, i, j, aux):
    """A mask mod under which each head of each batch entry sees keys of its own in every tile."""
    return (i >= 0) & ((j + b + 2 * h) % 3 == 0)


@triton.jit
def both_ends(b, h, i, j, aux):
    """A mask mod whose listed tiles have another between them."""
    return (i >= 0) & ((j < 4) | (j >= 40))


@triton.jit
def late(b, h, i, j, aux):
    """A mask mod that leaves the first 16 queries no key, and nobody the first 16 keys."""
    return (i >= 16) & (j >= 16)


THIRD, ENDS, LATE = -1, -2, -3  # in place of a window's `left`
MODS = {THIRD: every_third, ENDS: both_ends, LATE: late}


def is_seen(B, H, S_q, S_k, left):
    """(B, H, S_q, S_k) booleans: what `window` of this left shows, or one of MODS."""
    b, h, i, j = torch.meshgrid(*map(torch.arange, (B, H, S_q, S_k)), indexing="ij")
    distance = j - (i + S_k - S_q)
    if left == THIRD:
        return (j + b + 2 * h) % 3 == 0
    if left == LATE:
        return (i >= 16) & (j >= 16)
    return (j < 4) | (j >= 40) if left == ENDS else (distance <= 0) & (distance >= -left)


def lists(seen, block_m, block_n):
    """(index, count) of a mask's tiles, for each block of queries, int32. Unused entries of index repeat the first."""
    tiles = [[tile.any() for tile in rows.split(block_n, dim=1)] for rows in seen[0, 0].split(block_m)]
    needed = torch.tensor(tiles)
    index, count = needed.int().argsort(dim=1, descending=True, stable=True), needed.sum(dim=1)
    unused = torch.arange(needed.shape[1]) >= count[:, None]
    return torch.where(unused, index[:, :1], index).int(), count.int()


def launch(q, k, v, left, blocks):
    (B, H, S_q, D), S_k = q.shape, k.shape[2]
    index, count = lists(is_seen(B, H, S_q, S_k, left), *blocks)
    tensors = *(In(x, as_heads=True) for x in (q, k, v)), Out(q.shape, q.dtype, as_heads=True), In(index), In(count)
    meta = {"MASK_MOD": MODS.get(left, window), "BLOCK_M": blocks[0], "BLOCK_N": blocks[1], "BLOCK_D": D}
    return Launch((len(count) * B * H,), (*tensors, H, S_q, S_k, D, D**-0.5, (left, S_k - S_q)), meta)


def truth(q, k, v, left, blocks):
    seen = is_seen(*q.shape[:3], k.shape[2], left)
    s = (q.shape[-1] ** -0.5 * q.double() @ k.double().mT).masked_fill(~seen, -math.inf)
    return torch.softmax(s, dim=-1).nan_to_num() @ v.double().nan_to_num()  # v is NaN where no tile is needed


def inputs():
    lists = "a program's row of the lists is the number of its block of queries"
    stray = f"{lists}, a row of index has ceil(S_k / BLOCK_N) entries, and its first count entries mean anything"

    def rows(B, H, S_q, S_k, left, otherwise="", *, blocks=(16, 16), on="", unlisted=slice(0), draw=None, **options):
        q, k, v = draw_qkv(B, H, S_q, S_k, 16, draw=draw)
        v[:, :, unlisted] = math.nan  # it shows in o if it is read, because 0 · NaN is NaN
        masks = {THIRD: "every third key", ENDS: "the first 4 keys and those from 40 on", LATE: "from query 16 and key 16 on"}
        mask = masks.get(left, f"a window of {left} keys and the query's own")
        on = f"B = {B}, H = {H}, S_q = {S_q}, S_k = {S_k}, tiles of {blocks[0]} × {blocks[1]}, {mask}{on}"
        return case(q, k, v, left, blocks, on=on, otherwise=otherwise, **{"stray": stray} | options)

    loop = "each block of queries visits the tiles of its own row of index, of ceil(S_k / BLOCK_N) entries, and no other tile"
    yield rows(1, 1, 16, 16, 3, stray="t runs from 0 to count − 1, and here count is 1")
    yield rows(1, 1, 32, 32, 5, loop)
    yield rows(1, 1, 48, 48, 10, "a list may begin after tile 0: k_tile, j and v_tile all start at index's number · BLOCK_N")
    yield rows(1, 1, 32, 64, 20, "S_q and S_k may differ")
    yield rows(1, 1, 32, 64, 10, "BLOCK_M and BLOCK_N may differ", blocks=(16, 32))
    yield rows(1, 1, 40, 40, 10, "the last tiles may be ragged: a row of index has ceil(S_k / BLOCK_N) entries")
    padding = "the last tile is padded: where the mask mod shows a key past S_k, j < S_k must hide it"
    yield rows(2, 2, 32, 32, 5, f"all heads and batch entries share the lists: {lists}")
    yield rows(2, 2, 16, 16, THIRD, "MASK_MOD gets the numbers of batch entry, head, query and key, and aux")
    yield rows(1, 1, 16, 39, THIRD, padding)  # the mask mod shows key 39
    yield rows(1, 1, 16, 48, 10, loop, on=", v is NaN in tile 0, which isn't listed", unlisted=slice(16))
    gap = "a list may have gaps: each tile's number stands in index"
    yield rows(1, 1, 16, 64, ENDS, gap, on=", the list is 0, 2, 3, v is NaN in tile 1, which isn't listed", unlisted=slice(16, 32))
    yield rows(1, 2, 40, 50, 20, loop, blocks=(32, 16), draw=generator(), fresh=True)
    yield rows(1, 1, 48, 16, 20, on=", so that rows 0 to 31 see no key", edge="empty")
    blind = "a row of a listed tile may see no key: its scores are −inf, and its o is 0"
    yield rows(1, 1, 40, 16, 20, blind, on=", so that rows 0 to 23 see no key", edge="empty")
    yield rows(1, 1, 32, 32, LATE, on=", v is NaN in tile 0, which isn't listed", unlisted=slice(16), edge="empty")


EXERCISE = Exercise(
    task="Let the kernel's loop take its tiles from a list.",
    conditions=CONDITIONS,
    hints=(
        "Only the loop's head changes. Which row of the lists belongs to this program? All heads share it.",
        "The row is start_m // BLOCK_M. Load count_ptr + row before the loop, and let t run over range(count).",
        "In the loop, start_n = tl.load(index_ptr + row * tl.cdiv(S_k, BLOCK_N) + t) * BLOCK_N, and the rest is masked_kernel's.",
    ),
    solution=listed_kernel,
    reasoning="A tile's number, times BLOCK_N, is its first key, and nothing else in the loop knew where the tile came from. So any set "
    "of tiles does, in any order: the running softmax doesn't care.",
    more="The package's attend_tiles has two lists, and no mask for the tiles of the second. It also loads the next number one tile ahead.",
    inputs=inputs,
    truth=truth,
    rule="attention over the pairs that MASK_MOD lets through, of the tiles in the row's list",
    mistakes=MISTAKES,
    launch=launch,
    tolerance=lambda args, part: (0.0, 2e-5 * float(args[2].double().nan_to_num().abs().max())),
)
