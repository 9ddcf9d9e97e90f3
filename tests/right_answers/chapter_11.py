"""Right answers to chapter 11 in other words: clipped bounds, a running merge of two, a merge kernel by loop over parts, a split by
tiles."""

import math

import torch
from edits import edit

from fa_tutorial.matmul import tl, triton


def one_step_by_key(B, H_q, H_k, S, D, itemsize):
    return B * H_q * S * (2 * D + 2 * D), B * H_k * S * (D + D) * itemsize


def keys_of_split_clipped(split, splits, S, BLOCK_N):
    part = math.ceil(math.ceil(S / BLOCK_N) / splits) * BLOCK_N
    return min(split * part, S), min(split * part + part, S)


def merge_one_by_one(o_parts, lse_parts):
    o, lse = o_parts[0], lse_parts[0]
    for o_b, lse_b in zip(o_parts[1:], lse_parts[1:], strict=True):
        both = torch.logaddexp(lse, lse_b)
        shift = both.nan_to_num(neginf=0.0)
        o = torch.exp(lse - shift)[:, None] * o + torch.exp(lse_b - shift)[:, None] * o_b
        lse = both
    return o, lse


@triton.jit
def merge_in_a_loop(o_parts_ptr, lse_parts_ptr, o_ptr, lse_ptr, rows, splits, D, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr):
    row = tl.program_id(0)
    offs_d = tl.arange(0, BLOCK_D)
    largest = -float("inf")
    for split in range(splits):
        largest = tl.maximum(largest, tl.load(lse_parts_ptr + split * rows + row))
    total = 0.0
    acc = tl.zeros((BLOCK_D,), tl.float32)
    for split in range(splits):
        place = split * rows + row
        share = tl.exp(tl.load(lse_parts_ptr + place) - largest)
        total += share
        acc += share * tl.load(o_parts_ptr + place * D + offs_d, mask=offs_d < D, other=0.0)
    tl.store(o_ptr + row * D + offs_d, acc / total, mask=offs_d < D)
    tl.store(lse_ptr + row, largest + tl.log(total))


def key_offsets_by_list(offs_n, table, page_size, page_stride, row_stride):
    return torch.tensor([int(table[n // page_size]) * page_stride + n % page_size * row_stride for n in offs_n.tolist()])


RIGHT_ANSWERS = (
    ("11.1", one_step_by_key),
    ("11.2", keys_of_split_clipped),
    ("11.3", merge_one_by_one),
    ("11.4", merge_in_a_loop),
    edit("11.5", "by tiles, empty parts by tl.where",
         ("tl.minimum((split + 1) * part, S)", "tl.minimum(split * part + part, tl.cdiv(S, BLOCK_N) * BLOCK_N)"),
         ("acc / l_or_one[:, None]", "tl.where(l[:, None] == 0.0, 0.0, acc / l_or_one[:, None])"),
         ("m + tl.log(l_or_one)", 'tl.where(l == 0.0, -float("inf"), m + tl.log(l_or_one))')),
    ("11.6", key_offsets_by_list),
)  # fmt: skip
