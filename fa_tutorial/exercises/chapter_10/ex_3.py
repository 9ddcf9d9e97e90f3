import math

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_10.ex_1 import window
from fa_tutorial.exercises.chapter_10.jitted_mod import Aux
from fa_tutorial.exercises.forward_cases import WIDENED, draw_qkv, widens
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.forward import softmax_step
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, heads, load_tile, store_tile


@triton.jit
def listed_kernel(q, k, v, o, index_ptr, count_ptr, H, S_q, S_k, D, scale, aux, MASK_MOD: tl.constexpr,
                  BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """Attention over the listed tiles: all pairs of the whole ones, MASK_MOD's of the mixed ones."""
    row_blocks, across = tl.cdiv(S_q, BLOCK_M), tl.cdiv(S_k, BLOCK_N)
    row, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    start_m, b, h = row * BLOCK_M, batch_head // H, batch_head % H

    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    i = start_m + tl.arange(0, BLOCK_M)[:, None]  # [BLOCK_M, 1]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    mixed, whole = tl.load(count_ptr + row), tl.load(count_ptr + row_blocks + row)
    for t in range(mixed):
        start_n = tl.load(index_ptr + row * across + t) * BLOCK_N
        k_tile = load_tile(k, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
        j = start_n + tl.arange(0, BLOCK_N)[None, :]  # [1, BLOCK_N]
        seen = (j < S_k) & MASK_MOD(b, h, i, j, aux)  # [BLOCK_M, BLOCK_N]
        s = tl.where(seen, scale * dot(q_tile, tl.trans(k_tile)), -float("inf"))  # [BLOCK_M, BLOCK_N]
        p, m, l, alpha = softmax_step(s, m, l)
        v_tile = load_tile(v, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
        acc = dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None])
    for t in range(whole):  # from the row's end, and no mask
        start_n = tl.load(index_ptr + row * across + across - 1 - t) * BLOCK_N
        k_tile = load_tile(k, b, h, start_n, None, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
        s = scale * dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N]
        p, m, l, alpha = softmax_step(s, m, l)
        v_tile = load_tile(v, b, h, start_n, None, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
        acc = dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None])
    l = tl.where(l == 0, 1.0, l)  # a row that sees no key has acc = 0
    store_tile(o, acc / l[:, None], b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


ENTRY, NUMBER = "row * across + t)", "tl.load(index_ptr + row * across + t)"
END, WHOLE = "row * across + across - 1 - t)", "range(whole)"
MIXED, SEEN = "range(mixed)", "(j < S_k) & MASK_MOD(b, h, i, j, aux)"
PLAIN = "        s = scale * dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N]\n"
MASKED = f"""        j = start_n + tl.arange(0, BLOCK_N)[None, :]
        s = tl.where({SEEN}, scale * dot(q_tile, tl.trans(k_tile)), -float("inf")) + 0.0\n"""
MISTAKES = {
    "the whole tiles are missing: a second loop takes them from the end of the row of index": (WHOLE, "range(0)"),
    "the whole tiles are taken from the start of the row, where the mixed ones stand: they stand at its end": (END, ENTRY),
    "the whole tiles are taken from right behind the mixed ones: they stand at the row's end, and what lies between means nothing": (
        END, "row * across + mixed + t)"),
    "the whole tiles ask MASK_MOD: every pair of theirs is seen, so only the mixed ones ask": (PLAIN, MASKED),
    "no tile asks MASK_MOD: a mixed tile holds hidden pairs": (SEEN, "(j < S_k)"),
    "the counts are exchanged: count's first row is of the mixed tiles": [
        (MIXED, "range(whole) "), ("range(whole):", "range(mixed):")],
    "both loops take the count of the mixed tiles: that of the whole ones is row_blocks entries further on": (
        "count_ptr + row_blocks + row", "count_ptr + row"),
    "count is (2, blocks of queries): a block's two counts don't stand side by side": [
        ("count_ptr + row)", "count_ptr + 2 * row)"), ("count_ptr + row_blocks + row)", "count_ptr + 2 * row + 1)")],
    "t is taken for the tile's number: it is the place in the list, and index_ptr holds the number": (NUMBER, "t"),
    "start_n counts keys, and index_ptr holds numbers of tiles: multiply by BLOCK_N": [
        (f"{NUMBER} * BLOCK_N", NUMBER), (f"{END} * BLOCK_N", END)],
    "start_n counts keys, and index_ptr holds numbers of tiles: multiply by BLOCK_N, in both loops": (f"{END} * BLOCK_N", END),
    "the loop over mixed tiles runs to the end of the row: only as many entries as count says are mixed": (MIXED, "range(across)"),
}  # fmt: skip
CONDITIONS = {"empty": "both lists may be empty: the rows of such a block see no key, and get o = 0"}


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


@triton.jit
def silent(b, h, i, j, aux):
    """A mask mod that shows nothing: it is asked about no whole tile."""
    return (i < 0) & (j < 0)


THIRD, ENDS, LATE, ALL = -1, -2, -3, -4  # in place of a window's `left`
MODS = {THIRD: every_third, ENDS: both_ends, LATE: late, ALL: silent}


def is_seen(B, H, S_q, S_k, left):
    """(B, H, S_q, S_k) booleans: what `window` of this left shows, or one of MODS."""
    b, h, i, j = torch.meshgrid(*map(torch.arange, (B, H, S_q, S_k)), indexing="ij")
    distance = j - (i + S_k - S_q)
    if left == THIRD:
        return (j + b + 2 * h) % 3 == 0
    if left in (LATE, ALL):
        return (i >= 16) & (j >= 16) | (left == ALL)
    return (j < 4) | (j >= 40) if left == ENDS else (distance <= 0) & (distance >= -left)


def lists(seen, block_m, block_n):
    """(index, count) of a mask's tiles as the package's block masks have them, int32: in each row of index the mixed tiles, and the whole
    ones from its end; count: (2, blocks of queries). An entry between them repeats a needed tile."""
    tiles = [rows.split(block_n, dim=1) for rows in seen[0, 0].split(block_m)]
    pairs = torch.tensor([[tile.sum() for tile in row] for row in tiles])
    mixed, whole = (pairs > 0) & (pairs < block_m * block_n), pairs == block_m * block_n
    index = (whole.int() - mixed.int()).argsort(dim=1, stable=True)
    count = torch.stack([mixed.sum(dim=1), whole.sum(dim=1)])
    place = torch.arange(len(tiles[0]))
    unused = (place >= count[0][:, None]) & (place < len(place) - count[1][:, None])
    return torch.where(unused, pairs.argmax(dim=1)[:, None], index).int(), count.int()


def launch(q, k, v, left, blocks):
    (B, H, S_q, D), S_k = q.shape, k.shape[2]
    index, count = lists(is_seen(B, H, S_q, S_k, left), *blocks)
    tensors = *(In(x, as_heads=True) for x in (q, k, v)), Out(q.shape, q.dtype, as_heads=True), In(index), In(count)
    meta = {"MASK_MOD": MODS.get(left, window), "BLOCK_M": blocks[0], "BLOCK_N": blocks[1], "BLOCK_D": D}
    return Launch((len(index) * B * H,), (*tensors, H, S_q, S_k, D, D**-0.5, Aux(left, S_k - S_q)), meta)


def truth(q, k, v, left, blocks):
    seen = is_seen(*q.shape[:3], k.shape[2], left)
    s = (q.shape[-1] ** -0.5 * q.double() @ k.double().mT).masked_fill(~seen, -math.inf)
    return torch.softmax(s, dim=-1).nan_to_num() @ v.double().nan_to_num()  # v is NaN where no tile is needed


def inputs():
    lists = "a program's row of the lists is the number of its block of queries"
    stray = f"{lists}, a row of index has ceil(S_k / BLOCK_N) entries, and count says how many are mixed, from its start, and whole, from its end"

    def rows(B, H, S_q, S_k, left, otherwise="", *, blocks=(16, 16), on="", unlisted=slice(0), draw=None, dtype=torch.float32, **options):
        q, k, v = (x.to(dtype) for x in draw_qkv(B, H, S_q, S_k, 16, draw=draw))
        v[:, :, unlisted] = math.nan  # it shows in o if it is read, because 0 · NaN is NaN
        masks = {THIRD: "every third key", ENDS: "the first 4 keys and those from 40 on", LATE: "from query 16 and key 16 on",
                 ALL: "all tiles listed as whole, MASK_MOD never True"}  # fmt: skip
        mask = masks.get(left, f"a window of {left} keys and the query's own")
        on = f"B = {B}, H = {H}, S_q = {S_q}, S_k = {S_k}, tiles of {blocks[0]} × {blocks[1]}, {mask}{on}"
        return case(q, k, v, left, blocks, on=on, otherwise=otherwise, **{"stray": stray} | options)

    loop = "each block of queries visits the tiles of its own row of index, of ceil(S_k / BLOCK_N) entries, and no other tile"
    yield rows(1, 1, 16, 16, 3, stray="t runs from 0 to the count − 1, and here one tile is mixed and none whole")
    ends = (
        "count is (2, blocks of queries), a row of index has ceil(S_k / BLOCK_N) entries, across, and a row's whole tiles stand at its places "
        "across − 1, across − 2, …"
    )
    yield rows(1, 1, 16, 32, ALL, "each whole tile adds to the first loop's m, l and acc, without a mask", stray=ends)
    yield rows(1, 1, 32, 32, 5, loop)
    yield rows(1, 1, 48, 48, 10, "a list may begin after tile 0: k_tile, j and v_tile all start at index's number · BLOCK_N")
    yield rows(1, 1, 96, 96, 47, "mixed tiles at a row's start, whole ones at its end: both add to one m, l and acc")
    yield rows(1, 1, 32, 64, 20, "S_q and S_k may differ")
    yield rows(1, 1, 32, 64, 10, "BLOCK_M and BLOCK_N may differ", blocks=(16, 32))
    yield rows(1, 1, 32, 32, 31, "the tensors may be fp16", on=", fp16", dtype=torch.float16)
    yield rows(2, 2, 32, 32, 5, f"all heads and batch entries share the lists: {lists}")
    yield rows(2, 2, 16, 16, THIRD, "MASK_MOD gets the numbers of batch entry, head, query and key, and aux")
    padding = "the last tile is padded: where the mask mod shows a key past S_k, j < S_k must hide it"
    short = "the last tile of keys may be ragged: there load_tile needs S_k, for k and for v"
    yield rows(1, 1, 16, 39, THIRD, padding, stray=short)  # the mask mod shows key 39
    yield rows(1, 1, 40, 40, 10, "the last tiles may be ragged: a row of index has ceil(S_k / BLOCK_N) entries")
    yield rows(1, 1, 16, 48, 10, loop, on=", v is NaN in tile 0, which isn't listed", unlisted=slice(16))
    gap = "a list may have gaps: each tile's number stands in index"
    yield rows(1, 1, 16, 64, ENDS, gap, on=", v is NaN in tile 1, which isn't listed", unlisted=slice(16, 32))
    yield rows(1, 2, 40, 50, 20, loop, blocks=(32, 16), draw=generator(), fresh=True)
    yield rows(1, 1, 48, 16, 20, on=", so that rows 0 to 31 see no key", edge="empty")
    blind = "a row of a mixed tile may see no key: its scores are −inf, and its o is 0"
    yield rows(1, 1, 40, 16, 20, blind, on=", so that rows 0 to 23 see no key", edge="empty")
    yield rows(1, 1, 32, 32, LATE, on=", v is NaN in tile 0, which isn't listed", unlisted=slice(16), edge="empty")


@triton.jit
def noting(b, h, i, j, aux):
    """The window's mask mod, which sets aux.asked, (S, S) zeros with S = aux.c, to 1 at each pair that it is asked about."""
    tl.store(aux.asked + i * aux.c + j, 1.0)
    return window(b, h, i, j, aux)


def refused(kernel):
    """What is wrong where a whole tile asks the mask, or a dot gets widened tiles, which the result doesn't show."""
    half = *(x.half() for x in draw_qkv(1, 1, 32, 32, 16)), 20, (16, 16)
    if widens(kernel, launch(*half)):
        return f"{WIDENED}: leave q, k and v as they are, and round p to v's dtype"
    S, left, block = 96, 47, 16
    index, count = (x.to(hardware.device()) for x in lists(is_seen(1, 1, S, S, left), block, block))
    q, k, v, o = (torch.zeros(1, 1, S, block, device=hardware.device()) for _ in range(4))
    asked = torch.zeros(S, S, device=hardware.device())
    meta = {"MASK_MOD": noting, "BLOCK_M": block, "BLOCK_N": block, "BLOCK_D": block}
    kernel[(S // block,)](*map(heads, (q, k, v, o)), index, count, 1, S, S, block, 1.0, Aux(left, c=S, asked=asked), **meta)
    asked = asked.view(S // block, block, S // block, block).sum(dim=(1, 3)) > 0
    if int(asked.sum()) > int(count[0].sum()):
        return (
            "the whole tiles ask MASK_MOD as well, and the mask costs time even where its answer isn't used: a loop of their own, or an if, "
            "leaves it out"
        )
    return ""


EXERCISE = Exercise(
    task="Let the kernel take its tiles from two lists, and ask the mask of the mixed ones alone.",
    conditions=CONDITIONS,
    hints=(
        "Two loops, one after the other, add to the same m, l and acc. Which row of index and of count belongs to this program? All heads "
        "share it.",
        "The row is start_m // BLOCK_M. The mixed tiles' count is at count_ptr + row, the whole ones' at count_ptr + row_blocks + row.",
        "A row of index begins at row * across, with across = tl.cdiv(S_k, BLOCK_N). The t-th mixed tile stands t entries on, the t-th whole "
        "one across - 1 - t. The second loop's body is the first one's without j and tl.where.",
    ),
    solution=listed_kernel,
    reasoning="A tile's number, times BLOCK_N, is its first key, and nothing else in the loop knew where the tile came from. So any set "
    "of tiles does, in any order, from two loops as from one: the running softmax doesn't care.",
    more="The package's attend_tiles also loads the next number one tile ahead.",
    inputs=inputs,
    truth=truth,
    rule="attention over the tiles of the row's two lists, with one m, l and acc for both loops, and in the mixed ones over the pairs that "
    "MASK_MOD lets through",
    mistakes=MISTAKES,
    launch=launch,
    refused=refused,
    tolerance=lambda args, part: (
        0.0,
        (2e-5 if args[0].dtype == torch.float32 else 1e-3) * float(args[2].double().nan_to_num().abs().max()),
    ),
)
