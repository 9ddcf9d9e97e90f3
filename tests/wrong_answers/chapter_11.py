"""Chapter 11: one number where two are wanted, a merge that returns o alone, a merge kernel without masks, an offset in int32;
split kernels that take the row for the token, or store every row of their tile.
"""

from fa_tutorial.forward import attend
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import load_tile, store_tile


def flops_alone(B, H_q, H_k, S, D, itemsize):
    return 4 * B * H_q * S * D


def o_alone(o_parts, lse_parts):
    return (lse_parts.softmax(0)[:, :, None] * o_parts).sum(0)


@triton.jit
def merge_without_masks(o_parts_ptr, lse_parts_ptr, o_ptr, lse_ptr, rows, splits, D, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr):
    row = tl.program_id(0)
    part = tl.arange(0, BLOCK_S) * rows + row
    offs_d = tl.arange(0, BLOCK_D)
    s = tl.load(lse_parts_ptr + part)
    v = tl.load(o_parts_ptr + part[:, None] * D + offs_d[None, :])
    p = tl.exp(s - tl.max(s, axis=0))
    l = tl.sum(p, axis=0)
    tl.store(o_ptr + row * D + offs_d, tl.sum(p[:, None] * v, axis=0) / l)
    tl.store(lse_ptr + row, tl.max(s, axis=0) + tl.log(l))


@triton.jit
def split_takes_the_row_for_the_token(q, k, v, o, lse_ptr, H_k, S_q, rows, S, D, scale,
                                      BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    i, split = tl.program_id(0), tl.program_id(1)
    part = tl.cdiv(tl.cdiv(S, BLOCK_N), tl.num_programs(1)) * BLOCK_N
    offs_m = tl.arange(0, BLOCK_M)
    q_tile = load_tile(q, i // H_k, i % H_k, 0, rows, D, BLOCK_M, BLOCK_D)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l, acc = tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start_n in range(split * part, tl.minimum((split + 1) * part, S), BLOCK_N):
        m, l, acc = attend(q_tile, k, v, m, l, acc, i // H_k, i % H_k, start_n, S - S_q + offs_m, S, D, scale, True, BLOCK_N, BLOCK_D)
    store_tile(o, acc / l[:, None], split, i, 0, rows, D, BLOCK_M, BLOCK_D)
    tl.store(lse_ptr + (split * tl.num_programs(0) + i) * rows + offs_m, m + tl.log(l), mask=offs_m < rows)


@triton.jit
def split_stores_every_row(q, k, v, o, lse_ptr, H_k, S_q, rows, S, D, scale,
                           BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    i, split = tl.program_id(0), tl.program_id(1)
    part = tl.cdiv(tl.cdiv(S, BLOCK_N), tl.num_programs(1)) * BLOCK_N
    offs_m = tl.arange(0, BLOCK_M)
    q_tile = load_tile(q, i // H_k, i % H_k, 0, rows, D, BLOCK_M, BLOCK_D)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l, acc = tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start_n in range(split * part, tl.minimum((split + 1) * part, S), BLOCK_N):
        m, l, acc = attend(q_tile, k, v, m, l, acc, i // H_k, i % H_k, start_n, S - S_q + offs_m % S_q, S, D, scale, True, BLOCK_N, BLOCK_D)
    store_tile(o, acc / l[:, None], split, i, 0, rows, D, BLOCK_M, BLOCK_D)
    tl.store(lse_ptr + (split * tl.num_programs(0) + i) * rows + offs_m, m + tl.log(l))


def offsets_in_int32(offs_n, table, page_size, page_stride, row_stride):
    return table[offs_n // page_size].int() * page_stride + offs_n.int() % page_size * row_stride


WRONG_ANSWERS = (
    ("11.1", flops_alone, "flops"),
    ("11.3", o_alone, "o"),
    ("11.4", merge_without_masks, "offs_s < splits"),
    ("11.5", split_takes_the_row_for_the_token, "the row is taken for the token"),
    ("11.5", split_stores_every_row, "r < rows"),
    ("11.6", offsets_in_int32, "int64"),
)
