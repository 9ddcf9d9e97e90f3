"""Chapter 12: float division, a count that forgets the window, causal tiles alone, tiles never whole, a mask aligned at the top, a result left out."""

from fa_tutorial import algorithm
from fa_tutorial.exercises.chapter_12.ex_2 import window_tiles


def steps_in_floats(block_m, block_n, is_causal, is_local, is_even):
    return block_m / block_n if is_causal else 1


def steps_of_the_diagonal_alone(block_m, block_n, is_causal, is_local, is_even):
    return max(1, -(-block_m // block_n)) + (not is_even)


def tiles_in_floats(row_block, block_m, block_n, S_q, S_k, left, right):
    first, last = row_block * block_m + S_k - S_q, min((row_block + 1) * block_m, S_q) - 1 + S_k - S_q
    keys = first - left, last - left, first + right + 1, last + right + 1
    return tuple(key / block_n for key in keys)


def causal_tiles_alone(row_block, block_m, block_n, S_q, S_k, left, right):
    full, end = algorithm.causal_tiles(row_block, block_m, block_n, S_q, S_k)
    return 0, 0, full, end


def no_whole_tiles(row_block, block_m, block_n, S_q, S_k, left, right):
    start, _, _, end = window_tiles(row_block, block_m, block_n, S_q, S_k, left, right)
    return start, start, start, end


def no_whole_tiles_after_the_first(row_block, block_m, block_n, S_q, S_k, left, right):
    start, full_0, _, end = window_tiles(row_block, block_m, block_n, S_q, S_k, left, right)
    return start, full_0, full_0, end


def tiles_aligned_at_the_top(row_block, block_m, block_n, S_q, S_k, left, right):
    return window_tiles(row_block, block_m, block_n, S_q, S_q, left, right)


def tiles_without_end(row_block, block_m, block_n, S_q, S_k, left, right):
    return tiles_in_floats(row_block, block_m, block_n, S_q, S_k, left, right)[:3]


def tiles_without_a_limit_of_0(row_block, block_m, block_n, S_q, S_k, left, right):
    return window_tiles(row_block, block_m, block_n, S_q, S_k, left if left > 0 else -1, right)


WRONG_ANSWERS = (
    ("12.1", steps_in_floats, "blocks of 128 x 48"),
    ("12.1", steps_of_the_diagonal_alone, "a window always takes one more"),
    ("12.2", tiles_in_floats, "gives start = 8.333, want 8"),
    ("12.2", causal_tiles_alone, "no tile is skipped on the left"),
    ("12.2", no_whole_tiles, "no tile is called whole"),
    ("12.2", no_whole_tiles_after_the_first, "full_1 is full_0"),
    (
        "12.2",
        tiles_aligned_at_the_top,
        "S_k − S_q is missing: the last row is aligned with the last key: window_tiles(3, 4, 2, 32, 45, 9, 4)",
    ),
    ("12.2", tiles_without_end, "returns a tuple of 3"),
    ("12.2", tiles_without_a_limit_of_0, "left = 0 or right = 0 is taken for no limit"),
)
