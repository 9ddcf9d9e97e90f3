import math

import torch

from fa_tutorial.exercises.chapter_11 import ex_3
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch
from fa_tutorial.forward import attend
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import load_tile, store_tile


@triton.jit
def paged_split_kernel(q, k, v, table_ptr, seqlens_ptr, o, lse_ptr, H_k, S_q, rows, pages, D, scale,
                       PAGE_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                       BLOCK_D: tl.constexpr):  # fmt: skip
    """Attention to one part of a sequence's keys, which lie in pages: that part's o and lse, (11.1)."""
    batch_head, split = tl.program_id(0), tl.program_id(1)
    b, h_k = batch_head // H_k, batch_head % H_k
    S = tl.load(seqlens_ptr + b)
    part = tl.cdiv(tl.cdiv(S, BLOCK_N), tl.num_programs(1)) * BLOCK_N
    start, end = split * part, tl.minimum((split + 1) * part, S)

    offs_m = tl.arange(0, BLOCK_M)  # [BLOCK_M]
    last_seen = S - S_q + offs_m % S_q  # [BLOCK_M]
    q_tile = load_tile(q, b, h_k, 0, rows, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    for start_n in range(start, end, BLOCK_N):
        page = tl.load(table_ptr + b * pages + start_n // PAGE_SIZE)
        first = start_n // PAGE_SIZE * PAGE_SIZE  # the position of the page's first key
        m, l, acc = attend(q_tile, k, v, m, l, acc, page, h_k, start_n - first, last_seen - first,
                           S - first, D, scale, True, BLOCK_N, BLOCK_D)  # fmt: skip

    l_or_one = tl.where(l == 0.0, 1.0, l)
    store_tile(o, acc / l_or_one[:, None], split, batch_head, 0, rows, D, BLOCK_M, BLOCK_D)
    first_row = (split * tl.num_programs(0) + batch_head) * rows
    tl.store(lse_ptr + first_row + offs_m, m + tl.log(l_or_one), mask=offs_m < rows)


SEEN = "last_seen - first,"
MISTAKES = {
    "every tile of a part comes from the page of the part's first: look the page up in the loop, for each tile": (
        "start_n // PAGE_SIZE)", "start // PAGE_SIZE)"),
    "the mask compares rows of a page with positions in the sequence, so that rows see keys beyond their own: shift last_seen, too": (
        SEEN, "last_seen, "),
    "keys beyond the sequence's end are loaded, and 0 times what stands there may be NaN: shift S, too": ("S - first,", "S,"),
    "last_seen and S are positions in the sequence, and attend compares them with rows of a page: shift both": [
        (SEEN, "last_seen,"), ("S - first,", "S,")],
    "the sequence's last key is left out: S is the end of the keys, one more than the last": ("S - first,", "S - first - 1,"),
    "the parts are cut from the table's width: count the tiles of this sequence's own S": (
        "tl.cdiv(S, BLOCK_N)", "tl.cdiv(pages * PAGE_SIZE, BLOCK_N)"),
}  # fmt: skip


def truth(q, k, v, table, seqlens, S_q, splits, page_size, block_n):
    """By sequence, with its pages put in order: that of 11.3."""
    done = []
    for b, S in enumerate(seqlens.tolist()):
        keys, values = (x[table[b].long()].transpose(0, 1).flatten(1, 2)[None, :, :S] for x in (k, v))
        done.append(ex_3.truth(q[b : b + 1], keys, values, S_q, splits, block_n))
    return tuple(torch.cat(part, dim=1) for part in zip(*done, strict=True))


def launch(q, k, v, table, seqlens, S_q, splits, page_size, block_n):
    plain = ex_3.launch(q, k, v, S_q, splits, block_n)
    q, k, v, o, lse, H_k, S_q, rows, _, *sizes = plain.args
    args = q, k, v, In(table), In(seqlens), o, lse, H_k, S_q, rows, table.shape[1], *sizes
    return Launch(plain.grid, args, {"PAGE_SIZE": page_size} | plain.meta)


STRAY = """a tile's page is table[b, start_n // PAGE_SIZE], no tile begins at S or after it, so end is at most S, seqlens is (B,), a page's rows
count from its first key, and a tile, a step of the loop and a part's measure are BLOCK_N keys, not BLOCK_M"""


def inputs():
    def paged(lengths, H_k, page_size, splits, otherwise="", *, S_q=1, D=16, block_n=16, score=0, dtype=torch.float32):
        B, pages, draw = len(lengths), -(-max(lengths) // page_size), torch.Generator().manual_seed(0)
        table = torch.arange(B * pages).flip(0).view(B, pages)
        q = torch.randn((B, H_k, 4 * S_q, D), generator=draw).to(dtype)
        k, v = (torch.randn((B * pages, H_k, page_size, D), generator=draw).to(dtype) for _ in range(2))
        if score:
            q, k = torch.full_like(q, 4.0), torch.full_like(k, score / D)
        for b, length in enumerate(lengths):  # what a cache holds beyond a sequence's end may be anything
            for x in (k, v):
                x[table[b, length // page_size :].long(), :, length % page_size :] = math.nan
        on = f"lengths {list(lengths)}, pages of {page_size}, splits = {splits}, H_k = {H_k}, S_q = {S_q}, D = {D}, BLOCK_N = {block_n}"
        args = q, k, v, table.int(), torch.tensor(lengths).int(), S_q, splits, page_size, block_n
        nan = "a NaN comes from what stands at S or after it, or from a division by l = 0, where a row sees nothing"
        if B > 1:
            return case(*args, on=on, otherwise=otherwise, stray=otherwise, infinite=f"{otherwise}; {nan}")
        return case(*args, on=on, otherwise=otherwise, stray=STRAY, infinite=nan)

    yield paged((32,), 1, 16, 2, "key n is row n % 16 of page table[b, n // 16], so each tile starts at its page's row 0")
    yield paged((16,), 1, 16, 1, "each row sees the keys up to its own token's position", S_q=4)
    yield paged((40,), 1, 16, 2, "split 0 sees two whole pages, split 1 the first half of the third")
    yield paged((32,), 1, 16, 1, "each score is −128: m begins at −∞, so that it becomes −128 and no p underflows", score=-128)
    tiles = "pages of 32 keys hold two tiles: a tile starts at row start_n % PAGE_SIZE, and last_seen and S count from the page's first key"
    yield paged((64,), 1, 32, 1, tiles)
    wide = "three tiles of BLOCK_N = 32 keys for two splits, 2 and 1: BLOCK_M = 16 is the height of q's tile alone"
    yield paged((90,), 1, 64, 2, wide, block_n=32)
    yield paged((40,), 1, 32, 3, "a part is counted in tiles, not in pages: three tiles in three parts")
    both = "sequence b = i // H_k has its own length and row of the table, key head i % H_k its own part of each page, and q, k and v are views"
    yield paged((40, 21), 2, 16, 2, f"two sequences, two key heads: {both}")
    yield paged((90, 7, 33), 2, 32, 3, both, S_q=2, D=20, dtype=torch.float16)


EXERCISE = Exercise(
    task="Give split_kernel a length for each sequence, and a block table: page p of the caches holds PAGE_SIZE keys of one sequence.",
    hints=(
        "For attend a page is what a batch entry was: k and v are (pages of all sequences, H_k, PAGE_SIZE, D). Which page has the tile's keys?",
        "In that page the tile starts at row start_n − first, where first = start_n // PAGE_SIZE * PAGE_SIZE is the position of the page's first "
        "key. attend compares with last_seen and S: from where must they count?",
        "Sequence b's row of the table begins at b * pages, and each tile needs its own entry, so look it up in the loop. attend knows only rows "
        "of this page: give it each position minus that of the page's first key.",
    ),
    solution=paged_split_kernel,
    reasoning="A key has two numbers, its position in the sequence and its row in a page. The table is looked up by position, the page by row. "
    "The mask needs both to count from one key, so last_seen and S are measured from the page's first.",
    more="The package's load_keys looks a page up for each key of a tile, so its pages may be smaller than a tile.",
    inputs=inputs,
    truth=truth,
    rule="key n of sequence b is row n % PAGE_SIZE of page table[b, n // PAGE_SIZE], and rows see what they saw without pages",
    mistakes=MISTAKES,
    parts=("o", "lse"),
    launch=launch,
    tolerance=ex_3.EXERCISE.tolerance,
)
