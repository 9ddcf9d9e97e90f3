"""Right answers to chapter 11 in other words: clipped bounds, a running merge of two, a merge kernel by loop over parts, a split by tiles."""

import math

import torch

from fa_tutorial.forward import softmax_step
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, load_tile, store_tile


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


@triton.jit
def split_without_attend(q, k, v, o, lse_ptr, H_k, S_q, rows, S, D, scale,
                         BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    i, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    tiles = (S + BLOCK_N - 1) // BLOCK_N
    each = (tiles + splits - 1) // splits
    offs_m = tl.arange(0, BLOCK_M)
    q_tile = load_tile(q, i // H_k, i % H_k, 0, rows, D, BLOCK_M, BLOCK_D)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l, acc = tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for tile in range(split * each, tl.minimum((split + 1) * each, tiles)):
        offs_n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        k_tile = load_tile(k, i // H_k, i % H_k, tile * BLOCK_N, S, D, BLOCK_N, BLOCK_D)
        v_tile = load_tile(v, i // H_k, i % H_k, tile * BLOCK_N, S, D, BLOCK_N, BLOCK_D)
        is_seen = (offs_n[None, :] < S) & (offs_n[None, :] - (S - S_q) <= (offs_m % S_q)[:, None])
        s = tl.where(is_seen, scale * dot(q_tile, tl.trans(k_tile)), -float("inf"))
        p, m, l, alpha = softmax_step(s, m, l)
        acc = dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None])
    is_empty = l == 0.0
    store_tile(o, tl.where(is_empty[:, None], 0.0, acc / tl.where(is_empty, 1.0, l)[:, None]), split, i, 0, rows, D, BLOCK_M, BLOCK_D)
    lse = tl.where(is_empty, -float("inf"), m + tl.log(tl.where(is_empty, 1.0, l)))
    tl.store(lse_ptr + split * tl.num_programs(0) * rows + i * rows + offs_m, lse, mask=offs_m < rows)


def key_offsets_by_list(offs_n, table, page_size, page_stride, row_stride):
    return torch.tensor([int(table[n // page_size]) * page_stride + n % page_size * row_stride for n in offs_n.tolist()])


RIGHT_ANSWERS = (
    ("11.1", one_step_by_key),
    ("11.2", keys_of_split_clipped),
    ("11.3", merge_one_by_one),
    ("11.4", merge_in_a_loop),
    ("11.5", split_without_attend),
    ("11.6", key_offsets_by_list),
)
