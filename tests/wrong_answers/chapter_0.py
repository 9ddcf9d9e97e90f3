"""Chapter 0: a count that is not returned, the usual wrong ways to round up, the integer root of a float, and half of S."""

import math


def flops_not_returned(B, H, S, D, is_causal):
    4 * B * H * S * S * D


def always_one_block_more(S, D, block_m, itemsize):
    return (2 * S * D + (S // block_m + 1) * 2 * S * D) * itemsize + 4 * S


def floats_of_full_blocks(S, D, block_m, itemsize):
    blocks = math.ceil(S / block_m)
    return (2 * S * D + blocks * 2 * S * D) * itemsize + 4 * blocks * block_m


def keys_in_full_blocks(S, D, block_m, itemsize):
    blocks = math.ceil(S / block_m)
    return (2 * S * D + blocks * 2 * blocks * block_m * D) * itemsize + 4 * S


def half_of_s(memory_bytes, B, H, itemsize):
    return math.isqrt(memory_bytes // (B * H * itemsize)) // 2


def root_of_a_float(memory_bytes, B, H, itemsize):
    return math.isqrt(memory_bytes / (2 * B * H * itemsize))


WRONG_ANSWERS = (
    ("0.1", flops_not_returned, "None (is the return missing?)"),
    ("0.2", always_one_block_more, "you count one block too many"),
    ("0.2", floats_of_full_blocks, "for each query of a full last block"),
    ("0.2", keys_in_full_blocks, "you round the number of keys up"),
    ("0.3", half_of_s, "S shrinks by √2"),
    ("0.3", root_of_a_float, "raises TypeError"),
)
