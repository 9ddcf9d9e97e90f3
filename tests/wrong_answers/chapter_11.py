"""Chapter 11: one number where two are wanted, a merge that returns o alone, a merge kernel without masks, an offset in int32."""

from fa_tutorial.matmul import tl, triton


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


def offsets_in_int32(offs_n, table, page_size, page_stride, row_stride):
    return table[offs_n // page_size].int() * page_stride + offs_n.int() % page_size * row_stride


WRONG_ANSWERS = (
    ("11.1", flops_alone, "flops"),
    ("11.3", o_alone, "o"),
    ("11.4", merge_without_masks, "offs_s < splits"),
    ("11.6", offsets_in_int32, "int64"),
)
