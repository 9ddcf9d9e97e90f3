from edits import edit

from fa_tutorial.matmul import tl, triton


@triton.jit
def merge_two_by_two(o_parts_ptr, lse_parts_ptr, o_ptr, lse_ptr, rows, splits, D, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr):
    row, offs_d = tl.program_id(0), tl.arange(0, BLOCK_D)
    acc, lse = tl.zeros((BLOCK_D,), tl.float32), -float("inf")
    for split in range(splits):
        part = tl.load(lse_parts_ptr + split * rows + row)
        largest = tl.maximum(lse, part)
        merged = largest + tl.log(tl.exp(lse - largest) + tl.exp(part - largest))
        v = tl.load(o_parts_ptr + (split * rows + row) * D + offs_d, mask=offs_d < D, other=0.0)
        if part > -float("inf"):
            acc, lse = acc * tl.exp(lse - merged) + v * tl.exp(part - merged), merged
    tl.store(o_ptr + row * D + offs_d, acc, mask=offs_d < D)
    tl.store(lse_ptr + row, lse)


def window_part_by_tiles(split, splits, S, S_q, left, BLOCK_N):
    tiles = range(max(S - S_q - left, 0) // BLOCK_N, -(-S // BLOCK_N))
    size = -(-len(tiles) // splits)
    mine = tiles[split * size : split * size + size]
    return [mine[0] * BLOCK_N, min(mine[-1] * BLOCK_N + BLOCK_N, S)] if mine else [0, 0]


RIGHT_ANSWERS = (
    ("11.6", window_part_by_tiles),
    ("11.2", merge_two_by_two),  # by (1.13)
    edit("11.2", "by (11.2)", ("    p = tl.exp(s - m)\n    l = tl.sum(p, axis=0)\n", "    lse = m + tl.log(tl.sum(tl.exp(s - m), axis=0))\n    p = tl.exp(s - lse)\n"),
         (" / l, mask", ", mask"), ("m + tl.log(l)", "lse")),
    edit("11.3", "by tiles, empty parts by tl.where",
         ("tl.minimum((split + 1) * part, S)", "tl.minimum(split * part + part, tl.cdiv(S, BLOCK_N) * BLOCK_N)"),
         ("acc / l_or_one[:, None]", "tl.where(l[:, None] == 0.0, 0.0, acc / l_or_one[:, None])"),
         ("m + tl.log(l_or_one)", 'tl.where(l == 0.0, -float("inf"), m + tl.log(l_or_one))')),
    edit("11.5", "the row by modulo, the first key by it",
         ("first = start_n // PAGE_SIZE * PAGE_SIZE", "row = start_n % PAGE_SIZE"),
         ("start_n - first, last_seen - first,", "row, last_seen - start_n + row,"), ("S - first", "S - start_n + row")),
)  # fmt: skip
