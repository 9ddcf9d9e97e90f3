import math

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_10.jitted_mod import Aux
from fa_tutorial.exercises.chapter_10.masks import LATE, THIRD, is_seen, lists, mod_and_words, noting, views
from fa_tutorial.exercises.forward_cases import WIDENED, draw_qkv, widens
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch
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


ENTRY, NUMBER, MIXED = "row * across + t)", "tl.load(index_ptr + row * across + t)", "range(mixed)"
END, WHOLE = "row * across + across - 1 - t)", "range(whole)"
MISTAKES = {
    "every tile is visited and masked: index and count aren't read": [(MIXED, "range(across)"), (NUMBER, "t"), (WHOLE, "range(0)")],
    "a row of index has an entry for each tile of keys, not for each block of queries: across = tl.cdiv(S_k, BLOCK_N)": (
        ", tl.cdiv(S_k, BLOCK_N)\n", ", tl.cdiv(S_q, BLOCK_M)\n"),
    "the whole tiles are missing: a second loop takes them from the end of the row of index": (WHOLE, "range(0)"),
    "the whole tiles are taken from the start of the row, where the mixed ones stand: they stand at its end": (END, ENTRY),
    "the whole tiles are taken from right behind the mixed ones: they stand at the row's end, and what lies between means nothing": (
        END, "row * across + mixed + t)"),
    "no tile asks MASK_MOD: a mixed tile holds hidden pairs": ("(j < S_k) & MASK_MOD(b, h, i, j, aux)", "(j < S_k)"),
    "t is taken for the tile's number: it is the place in the list, and index_ptr holds the number": (NUMBER, "t"),
    "start_n counts keys, and index_ptr holds numbers of tiles: multiply by BLOCK_N": [
        (f"{NUMBER} * BLOCK_N", NUMBER), (f"{END} * BLOCK_N", END)],
    "the loop over mixed tiles runs to the end of the row: only as many entries as count says are mixed": (MIXED, "range(across)"),
    "i counts from 0 in every block: a block's queries begin at start_m": ("i = start_m + tl", "i = tl"),
    "j counts from 0 in every tile: a tile's keys begin at start_n": ("j = start_n + tl", "j = tl"),
    "acc isn't rescaled where m grows: multiply it by alpha": ("acc * alpha[:, None]", "acc"),
}  # fmt: skip


def launch(q, k, v, left, blocks):
    (B, H, S_q, D), S_k = q.shape, k.shape[2]
    index, count = lists(is_seen(B, H, S_q, S_k, left), *blocks)
    tensors = *views(q, k, v), In(index), In(count)
    meta = {"MASK_MOD": mod_and_words(left)[0], "BLOCK_M": blocks[0], "BLOCK_N": blocks[1], "BLOCK_D": D}
    return Launch((len(index) * B * H,), (*tensors, H, S_q, S_k, D, D**-0.5, Aux(left, S_k - S_q)), meta)


def truth(q, k, v, left, blocks):
    seen = is_seen(*q.shape[:3], k.shape[2], left)
    s = (q.shape[-1] ** -0.5 * q.double() @ k.double().mT).masked_fill(~seen, -math.inf)
    return torch.softmax(s, dim=-1).nan_to_num() @ v.double().nan_to_num()  # v is NaN where no tile is needed


LISTS = """each block of queries has a row of index, for all heads, of across = ceil(S_k / BLOCK_N) entries, and count, (2, blocks of queries), says how many are
mixed, at places 0, 1, …, and how many whole, at across − 1, across − 2, …, both in any order"""
SHORT = f"the last tile of keys is ragged: there load_tile needs S_k, for k and for v; and {LISTS}"


def inputs():
    def rows(B, H, S_q, S_k, left, otherwise="", *, blocks=(16, 16), on="", unlisted=slice(0), dtype=torch.float32, **options):
        q, k, v = (x.to(dtype) for x in draw_qkv(B, H, S_q, S_k, 16))
        v[:, :, unlisted] = math.nan  # it shows in o if it is read, because 0 · NaN is NaN
        on = f"B = {B}, H = {H}, S_q = {S_q}, S_k = {S_k}, tiles of {blocks[0]} × {blocks[1]}, {mod_and_words(left)[1]}{on}"
        return case(q, k, v, left, blocks, on=on, otherwise=otherwise, stray=SHORT if S_k % blocks[1] else LISTS, **options)

    yield rows(1, 1, 16, 16, 3)
    alike = "both loops scale s, share one m, l and acc, and multiply acc by alpha, and a tile starts at its number · BLOCK_N"
    yield rows(1, 1, 16, 32, 31, alike)
    out = {"on": ", v is NaN in tile 0, which isn't listed", "unlisted": slice(16)}
    yield rows(1, 1, 32, 64, 5, f"a tile that isn't listed isn't read; {LISTS}", **out)
    yield rows(1, 1, 96, 96, 63, "index holds tiles' numbers, in any order, for both loops, which add to one m, l and acc")
    yield rows(1, 1, 32, 64, 10, "S_q and S_k may differ, and so may BLOCK_M and BLOCK_N", blocks=(16, 32))
    yield rows(1, 1, 32, 32, 31, "the tensors may be fp16", on=", fp16", dtype=torch.float16)
    yield rows(2, 3, 16, 16, THIRD, "MASK_MOD gets the numbers of batch entry, head, query and key, and aux; a head's tiles take b and h")
    yield rows(2, 2, 32, 32, 5, f"all heads and batch entries share the lists: {LISTS}")
    padding = "the last tile is padded: where the mask mod shows a key past S_k, j < S_k must hide it"
    yield rows(1, 1, 16, 39, THIRD, padding)  # the mask mod shows key 39
    yield rows(1, 1, 40, 40, 10, LISTS)
    blind = "a row of a mixed tile may see no key: its scores are −inf, and its o is 0"
    yield rows(1, 1, 40, 16, 20, blind, on=", so that rows 0 to 23 see no key", edge="empty")
    yield rows(1, 1, 32, 32, LATE, **out, edge="empty")


def refused(kernel):
    """What is wrong where a whole tile asks the mask, or a dot gets widened tiles, which the result doesn't show."""
    if widens(kernel, launch(*(x.half() for x in draw_qkv(1, 1, 32, 32, 16)), 31, (16, 16))):
        return f"{WIDENED}: leave q, k and v as they are, and round p to v's dtype"
    *qkvo, asked = torch.zeros(5, 1, 1, 16, 16, device=hardware.device())
    index, count = (torch.tensor(x, dtype=torch.int32, device=asked.device) for x in ([[0]], [[0], [1]]))  # a whole tile
    meta = {"MASK_MOD": noting, "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_D": 16}
    kernel[(1,)](*map(heads, qkvo), index, count, 1, 16, 16, 16, 1.0, Aux(asked=asked), **meta)
    told = "the whole tiles ask MASK_MOD as well, which costs time even where its answer isn't used: a loop of their own, or an if, leaves it out"
    return told if asked.any() else ""


EXERCISE = Exercise(
    task="Let the kernel take its tiles from two lists, and ask the mask of the mixed ones alone.",
    conditions={"empty": "both lists may be empty: the rows of such a block see no key, and get o = 0"},
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
    rule="attention over the tiles of the row's two lists, with one m, l and acc for both loops, and in the mixed ones, which the first row of "
    "count counts, over the pairs that MASK_MOD lets through",
    mistakes=MISTAKES,
    launch=launch,
    refused=refused,
    tolerance=lambda args, part: (0.0, 6e-5 if args[0].dtype == torch.float32 else 3e-3),
)
