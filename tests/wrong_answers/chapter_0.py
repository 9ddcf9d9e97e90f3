"""Chapter 0: a count that is not returned, k and v counted twice, a fixed itemsize, wrong ways to round up, a float's root, and half of S."""

import math


def flops_not_returned(B, H, S, D, is_causal):
    4 * B * H * S * S * D


def always_one_block_more(S, D, block_m, itemsize):
    return (2 * S * D + (S // block_m + 1) * 2 * S * D) * itemsize + 4 * S


def k_and_v_in_the_vectors_too(S, D, block_m, itemsize):
    return (4 * S * D + math.ceil(S / block_m) * 2 * S * D) * itemsize + 4 * S


def bytes_of_fp16(S, D, block_m, itemsize):
    return (2 * S * D + math.ceil(S / block_m) * 2 * S * D) * 2 + 4 * S


def rows_of_full_blocks(S, D, block_m, itemsize):
    blocks = math.ceil(S / block_m)
    return (2 * blocks * block_m * D + blocks * 2 * S * D) * itemsize + 4 * blocks * block_m


def floats_of_full_blocks(S, D, block_m, itemsize):
    blocks = math.ceil(S / block_m)
    return (2 * S * D + blocks * 2 * S * D) * itemsize + 4 * blocks * block_m


def keys_in_full_blocks(S, D, block_m, itemsize):
    blocks = math.ceil(S / block_m)
    return (2 * S * D + blocks * 2 * blocks * block_m * D) * itemsize + 4 * S


def half_of_s(memory_bytes, B, H, itemsize):
    return math.isqrt(memory_bytes // (B * H * itemsize)) // 2


def longest_in_fp16(memory_bytes, B, H, itemsize):
    return math.isqrt(memory_bytes // (4 * B * H))


def root_of_a_float(memory_bytes, B, H, itemsize):
    return math.isqrt(memory_bytes / (2 * B * H * itemsize))


WRONG_ANSWERS = (
    ("0.1", flops_not_returned, "None (is the return missing?)"),
    ("0.2", always_one_block_more, "you count k and v once more than there are blocks"),
    ("0.2", k_and_v_in_the_vectors_too, "a 4·S·D does, which holds them already"),
    ("0.2", bytes_of_fp16, "you fix the bytes of an element at 2"),
    ("0.2", rows_of_full_blocks, "q, o and the float32 have S rows"),
    ("0.2", floats_of_full_blocks, "for each query of a full last block"),
    ("0.2", keys_in_full_blocks, "you round the number of keys up"),
    ("0.3", half_of_s, "S shrinks by √2"),
    ("0.3", longest_in_fp16, "you fix the bytes of an element at 2"),
    ("0.3", root_of_a_float, "raises TypeError"),
)
