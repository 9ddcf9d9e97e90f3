"""Chapter 11: one number where two are wanted, a merge that returns o alone, a merge kernel without masks, an offset in int32;
split kernels that take the row for the token, or store every row of their tile.
"""

import torch
from edits import edit


def merge_without_the_largest(o_parts, lse_parts):
    share = torch.exp(lse_parts - lse_parts.amax(dim=0).nan_to_num(neginf=0.0))
    l = share.sum(dim=0)
    return (share[:, :, None] * o_parts).sum(dim=0) / torch.where(l == 0, 1.0, l)[:, None], torch.log(l)


PART, LSE = "tl.cdiv(tl.cdiv(S, BLOCK_N), tl.num_programs(1)) * BLOCK_N", "m + tl.log(l_or_one)"
WRONG_ANSWERS = (
    edit("11.1", "flops alone", ("return flops, bytes_read", "return flops"), told="flops"),
    edit("11.1", "itemsize for S", ("4 * B * H_q * S", "4 * B * H_q * itemsize"),
         told="flops: 2 · D in q kᵀ and as many in p v"),
    edit("11.1", "q alone", ("D * itemsize", "D * itemsize + B * H_q * D * itemsize"),
         told="bytes: those of a key and a value, D numbers each"),
    ("11.3", merge_without_the_largest, "measured from the largest lse: add the largest"),
    edit("11.3", "o alone", ("return o, lse", "return o"), told="o"),
    edit("11.4", "no masks", (', mask=offs_s < splits, other=-float("inf")', ""), (", mask=mask, other=0.0", ""), (", mask=offs_d < D", ""),
         told="offs_s < splits"),
    edit("11.4", "lse a split apart", ("lse_parts_ptr + part,", "lse_parts_ptr + offs_s * splits + row,"), told="an offset is wrong, not a mask"),
    edit("11.5", "every row sees all", ("S - S_q + offs_m % S_q", "S - 1 + 0 * offs_m"),
         told="row r is token r % S_q of a query head"),
    edit("11.5", "the query head's number", ("offs_m % S_q", "offs_m // S_q"),
         told="row r is token r % S_q of a query head"),
    edit("11.5", "a part in tiles", (PART, PART.removesuffix(" * BLOCK_N")), told="one split is the whole attention"),
    edit("11.5", "key head 0", ("batch_head // H_k, batch_head % H_k", "batch_head // H_k, batch_head * 0"),
         told="key head i % H_k"),
    edit("11.5", "batch entry 0", ("batch_head // H_k, batch_head % H_k", "batch_head * 0, batch_head % H_k"),
         told="batch entry i // H_k"),
    edit("11.5", "no scale", ("last_seen, S, D, scale", "last_seen, S, D, 1.0"),
         told="one split is the whole attention"),
    edit("11.5", "lse in another order",
         ("split * tl.num_programs(0) + batch_head", "batch_head * tl.num_programs(1) + split"),
         told="tl.num_programs(0) + i) · rows"),
    edit("11.5", "lse of nothing", (LSE, f"tl.where(l == 0.0, 0.0, {LSE})"), told="and lse is −∞"),
    edit("11.5", "walks on after the last key", ("tl.minimum((split + 1) * part, S)", "(split + 1) * part"),
         told="no tile begins at S or after it, so end is at most S", gpu=None),
    edit("11.5", "stores every row", (", mask=offs_m < rows", ""), told="r < rows"),
    edit("11.6", "in int32", (".long()", ".int()"), ("offs_n % page_size", "offs_n.int() % page_size"), told="int64"),
)  # fmt: skip
