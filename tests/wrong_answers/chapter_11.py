"""Chapter 11: one number where two are wanted, a merge that returns o alone, a merge kernel without masks, an offset in int32;
split kernels that take the row for the token, or store every row of their tile.
"""

import torch
from edits import edit


def merge_without_the_largest(o_parts, lse_parts):
    share = torch.exp(lse_parts - lse_parts.amax(dim=0).nan_to_num(neginf=0.0))
    l = share.sum(dim=0)
    return (share[:, :, None] * o_parts).sum(dim=0) / torch.where(l == 0, 1.0, l)[:, None], torch.log(l)


WRONG_ANSWERS = (
    edit("11.1", "flops alone", ("return flops, bytes_read", "return flops"), told="flops"),
    edit("11.1", "itemsize for S", ("4 * B * H_q * S", "4 * B * H_q * itemsize"), told="flops are 2 · D in q kᵀ and as many in p v"),
    edit("11.1", "q and o", ("D * itemsize", "D * itemsize + 2 * B * H_q * D * itemsize"), told="q and o are counted too"),
    edit("11.2", "whole tiles alone", ("-(-S // BLOCK_N)", "(S // BLOCK_N)"), told="the ragged last tile isn't counted"),
    ("11.3", merge_without_the_largest, "measured from the largest lse: add the largest"),
    edit("11.3", "o alone", ("return o, lse", "return o"), told="o"),
    edit("11.4", "no masks", (', mask=offs_s < splits, other=-float("inf")', ""), (", mask=mask, other=0.0", ""), (", mask=offs_d < D", ""),
         told="offs_s < splits"),
    edit("11.4", "lse a split apart", ("lse_parts_ptr + part,", "lse_parts_ptr + offs_s * splits + row,"), told="an offset is wrong, not a mask"),
    edit("11.5", "row taken for the token", ("offs_m % S_q", "offs_m"), told="the row is taken for the token"),
    edit("11.5", "walks on after the last key", ("tl.minimum((split + 1) * part, S)", "(split + 1) * part"),
         told="the loop goes on after the last key", gpu=None),
    edit("11.5", "stores every row", (", mask=offs_m < rows", ""), told="r < rows"),
    edit("11.6", "strides swapped", ("* page_stride", "* stride"), ("* row_stride", "* page_stride"), ("* stride", "* row_stride"),
         told="the strides are swapped"),
    edit("11.6", "in int32", (".long()", ".int()"), ("offs_n % page_size", "offs_n.int() % page_size"), told="int64"),
)  # fmt: skip
