"""Chapter 0: a count that is printed but not returned, and the integer root of a float."""

import math


def flops_not_returned(B, H, S, D, is_causal):
    4 * B * H * S * S * D


def root_of_a_float(memory_bytes, B, H, itemsize):
    return math.isqrt(memory_bytes / (2 * B * H * itemsize))


WRONG_ANSWERS = (
    ("0.1", flops_not_returned, "None (is the return missing?)"),
    ("0.3", root_of_a_float, "raises TypeError"),
)
