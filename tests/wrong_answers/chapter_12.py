"""Chapter 12: a line that does something else, float division, causal tiles alone, tiles never whole, a mask aligned at the top, a result left out, a shift
that never lags or falls."""

from edits import edit

TILES = "start, end: from the first tile that any row sees to one past the last; full_0, full_1: the tiles that every row sees whole"
FIRST = "    first = row_block * block_m\n"

WRONG_ANSWERS = (
    edit("12.1", "the line before the loop", ('"p v": ("kernel", 367)', '"p v": ("kernel", 301)'),
         told="the second matmul adds to acc_o: fa2_line(p v) gives line 301 of kernel"),
    edit("12.1", "another step's line", ('"alpha": ("softmax", 157)', '"alpha": ("softmax", 148)'),
         told="alpha is the exponential of the old maximum minus the new one: fa2_line(alpha) gives m"),
    edit("12.1", "no file", ('"q kᵀ": ("kernel", 319)', '"q kᵀ": 319'), told="q kᵀ"),
    edit("12.2", "in floats", ("low(first) // block_n", "low(first) / block_n"), told="gives start = 8.333, want 8"),
    edit("12.2", "causal tiles alone", (FIRST, f"    left, right = -1, 0\n{FIRST}"), told=TILES),
    edit("12.2", "no whole tiles", ("    return low(first)", "    full_0 = full_1 = low(first) // block_n\n    return low(first)"),
         told=TILES),
    edit("12.2", "no whole tiles after the first", ("    return low(first)", "    full_1 = full_0\n    return low(first)"),
         told=TILES),
    edit("12.2", "aligned at the top", (FIRST, f"    S_k = S_q\n{FIRST}"),
         told="the last of 32 rows stands at the last of 45 keys: window_tiles(3, 4, 2, 32, 45, 9, 4)"),
    edit("12.2", "0 taken for no limit", (FIRST, f"    left = left or -1\n{FIRST}"), told=("left = 0 is a limit: no key before the row's "
                                                                                          "own")),
    edit("12.2", "aligned with the first key", ("S_k - S_q ", "0 ", 2),
         told="the last of 32 rows stands at the last of 45 keys"),
    edit("12.2", "whole last block", ("min(first + block_m, S_q) - 1", "first + block_m - 1"),
         told="its last row is S_q − 1"),
    edit("12.2", "past the last key", ("min(S_k, i + 1 + S_k - S_q + right)", "i + 1 + S_k - S_q + right"),
         told="high is at most S_k"),
    edit("12.2", "before key 0", ("max(0, i + S_k - S_q - left)", "i + S_k - S_q - left"), told="low is at least 0"),
    edit("12.2", "high below 0", ("max(0, min(S_k, i + 1 + S_k - S_q + right))", "min(S_k, i + 1 + S_k - S_q + right)"),
         told="no row of this block sees a key"),
    edit("12.2", "no end", (", -(-high(last) // block_n)", ""), told="returns a tuple of 3"),
    edit("12.3", "divided by log2 e", ("(m - shift) * math", "(m - shift) / math"),
         told="p = exp(s − new shift), alpha = exp(old shift − new shift)"),
    edit("12.3", "a shift that falls", ("torch.maximum(shift, s.amax(dim=-1))", "s.amax(dim=-1)"), ("> threshold", "!= 0"),
         told="p = exp(s − new shift), alpha = exp(old shift − new shift), and l joins them as in softmax_step"),
)  # fmt: skip
