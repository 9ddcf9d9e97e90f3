"""Chapter 12: float division, a count that forgets the window, causal tiles alone, tiles never whole, a mask aligned at the top, a result left out, a shift that never lags."""

from edits import edit

CEIL = "-(-block_m // block_n)"
FIRST = "    first = row_block * block_m\n"

WRONG_ANSWERS = (
    edit("12.1", "in floats", (CEIL, "block_m / block_n"), told="blocks of 96 x 64"),
    edit("12.1", "the diagonal alone", ("crossed if is_causal and is_even else crossed + 1", "crossed + (not is_even)"),
         told="a window always takes one more"),
    edit("12.2", "in floats", ("low(first) // block_n", "low(first) / block_n"), told="gives start = 8.333, want 8"),
    edit("12.2", "causal tiles alone", (FIRST, f"    left, right = -1, 0\n{FIRST}"), told="no tile is skipped on the left"),
    edit("12.2", "no whole tiles", ("    return low(first)", "    full_0 = full_1 = low(first) // block_n\n    return low(first)"),
         told="no tile is called whole"),
    edit("12.2", "no whole tiles after the first", ("    return low(first)", "    full_1 = full_0\n    return low(first)"),
         told="full_1 is full_0"),
    edit("12.2", "aligned at the top", (FIRST, f"    S_k = S_q\n{FIRST}"),
         told="S_k − S_q is missing: the last row is aligned with the last key: window_tiles(3, 4, 2, 32, 45, 9, 4)"),
    edit("12.2", "0 taken for no limit", (FIRST, f"    left = left or -1\n{FIRST}"), told="left = 0 or right = 0 is taken for no limit"),
    edit("12.2", "no end", (", -(-high(last) // block_n)", ""), told="returns a tuple of 3"),
    edit("12.3", "softmax_step as it was", ("torch.where(moves, m, shift)", "m"), told="the shift moves with every larger maximum"),
    edit("12.3", "no log2", (" * math.log2(math.e)", ""), told="the growth is compared in powers of e"),
    edit("12.3", "one decision for all rows", ("> threshold", "> threshold\n    moves = moves.any()"), told="each row decides for itself"),
)  # fmt: skip
