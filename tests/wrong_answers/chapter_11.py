"""Chapter 11: a merge kernel without masks; split kernels that take the row for the token, or store every row of their tile; tables
that are read in another order.
"""

from edits import edit

PART, LSE = "tl.cdiv(tl.cdiv(S, BLOCK_N), tl.num_programs(1)) * BLOCK_N", "m + tl.log(l_or_one)"
WRONG_ANSWERS = (
    edit("11.1", "in fp32", ("4 * B * H_k", "8 * B * H_k"), told="a number has 4 bytes: fp16 has 2"),
    edit("11.1", "a rate for each program", ("bytes_read / gb_s", "bytes_read / sm_gb_s"), told="2 programs on 100 SMs pull 10 GB/s, and a number has 2 bytes"),
    edit("11.1", "MiB", ("gb_s / 1e3", "gb_s / 1e3 / 1.048576"), told="a GB is 10⁹ bytes"),
    edit("11.1", "the faster limit", ("gb_s = min(", "gb_s = max("), told="the slower of SMs and memory decides"),
    edit("11.2", "m starts at 0", ("tl.max(s, axis=0)", "tl.maximum(tl.max(s, axis=0), 0.0)"), told="m is never below 0"),
    edit("11.2", "a finite number for missing parts", ('other=-float("inf")', "other=-1e4"), told="missing parts get a large negative number"),
    edit("11.2", "an average", ("tl.sum(p[:, None] * v, axis=0) / l", "tl.sum(v, axis=0) / splits"), told="the parts are averaged"),
    edit("11.2", "no masks", (', mask=offs_s < splits, other=-float("inf")', ""), (", mask=mask, other=0.0", ""), (", mask=offs_d < D", ""),
         told="offs_s < splits"),
    edit("11.2", "lse a split apart", ("lse_parts_ptr + part,", "lse_parts_ptr + offs_s * splits + row,"), told="an offset is wrong, not a mask"),
    edit("11.3", "every row sees all", ("S - S_q + offs_m % S_q", "S - 1 + 0 * offs_m"),
         told="row r is token r % S_q of a query head"),
    edit("11.3", "the query head's number", ("offs_m % S_q", "offs_m // S_q"),
         told="row r is token r % S_q of a query head"),
    edit("11.3", "a part in tiles", (PART, PART.removesuffix(" * BLOCK_N")), told="one split is the whole attention"),
    edit("11.3", "whole tiles alone", (PART, PART.replace("tl.cdiv(S, BLOCK_N)", "S // BLOCK_N")), told="the tile that S ends in is not counted"),
    edit("11.3", "lse in base 2", (LSE, f"({LSE}) * 1.4426950408889634"), told="lse is in base 2"),
    edit("11.3", "key head 0", ("batch_head // H_k, batch_head % H_k", "batch_head // H_k, batch_head * 0"),
         told="key head i % H_k"),
    edit("11.3", "batch entry 0", ("batch_head // H_k, batch_head % H_k", "batch_head * 0, batch_head % H_k"),
         told="batch entry i // H_k"),
    edit("11.3", "program ids exchanged", ("tl.program_id(0), tl.program_id(1)", "tl.program_id(1), tl.program_id(0)"),
         told="i is tl.program_id(0)", gpu=None),
    edit("11.3", "no scale", ("last_seen, S, D, scale", "last_seen, S, D, 1.0"),
         told="the scores aren't scaled"),
    edit("11.3", "lse in another order",
         ("split * tl.num_programs(0) + batch_head", "batch_head * tl.num_programs(1) + split"),
         told="tl.num_programs(0) + i) · rows"),
    edit("11.3", "lse of nothing", (LSE, f"tl.where(l == 0.0, 0.0, {LSE})"), told="and lse is −∞"),
    edit("11.3", "walks on after the last key", ("tl.minimum((split + 1) * part, S)", "(split + 1) * part"),
         told="no tile begins at S or after it, so end is at most S", gpu=None),
    edit("11.3", "stores every row", (", mask=offs_m < rows", ""), told="r < rows"),
    edit("11.5", "a row of the table for each key head", ("b * pages", "batch_head * pages"), told="table[b, start_n // PAGE_SIZE]", gpu=None),
    edit("11.5", "an entry for each tile", ("start_n // PAGE_SIZE)", "start_n // BLOCK_N)"), told="table[b, start_n // PAGE_SIZE]", gpu=None),
    edit("11.5", "walks on after the last key", ("tl.minimum((split + 1) * part, S)", "(split + 1) * part"),
         told="no tile begins at S or after it", gpu=None),
    edit("11.5", "one page for the part", ("start_n // PAGE_SIZE)", "start // PAGE_SIZE)"), told="look the page up in the loop"),
    edit("11.5", "the position for the row", ("h_k, start_n - first, ", "h_k, start_n, "), told="key n is row n % 16 of page table[b, n // 16]", gpu=None),
    edit("11.5", "batch entry b", ("acc, page, h_k", "acc, b, h_k"), told="key n is row n % 16 of page table[b, n // 16]"),
)  # fmt: skip
