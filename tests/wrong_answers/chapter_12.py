"""Chapter 12: an alpha upside down, float division, causal tiles alone, tiles never whole, a mask aligned at the top, a result left out, scaled
gradients, a shift that never lags or falls, tests that hide a bug or show none."""

import torch
from edits import edit

TILES = "start, end: from the first tile that any row sees to one past the last; full_0, full_1: the tiles that every row sees whole"
FIRST_MAX = "    if is_first:\n        new_max = s.amax(dim=1)\n    else:\n        new_max = torch.maximum(row_max, s.amax(dim=1))\n"
STATE = "        row_max, row_sum = torch.full_like(row_max, -math.inf), torch.zeros_like(row_sum)\n"
P = "torch.exp2(s * scale_log2 - (safe * scale_log2)[:, None])"
FIRST = "    first = row_block * block_m\n"


def tiles_by_the_keys_of_all_and_any(row_block, block_m, block_n, S_q, S_k, left, right):
    rows = torch.arange(row_block * block_m, min((row_block + 1) * block_m, S_q))
    keys = torch.arange(-(-S_k // block_n) * block_n)
    left, right = (S_q + S_k if limit < 0 else limit for limit in (left, right))
    ahead = keys - rows[:, None] - S_k + S_q
    seen = (ahead >= -left) & (ahead <= right) & (keys < S_k)
    tiles = seen.unflatten(1, (-1, block_n))
    touched, whole = tiles.any(dim=2).any(dim=0), tiles.all(dim=2).all(dim=0)
    if not touched.any():
        return 0, 0, 0, 0
    start, end = int(touched.nonzero()[0]), int(touched.nonzero()[-1]) + 1
    if whole.any():
        return start, int(whole.nonzero()[0]), int(whole.nonzero()[-1]) + 1, end
    full = -(-max(0, int(rows[-1]) + S_k - S_q - left) // block_n)
    return start, full, full, end


def tiles_by_a_loop_over_all_pairs(row_block, block_m, block_n, S_q, S_k, left, right):
    rows = range(row_block * block_m, min((row_block + 1) * block_m, S_q))
    touched, whole = [], []
    for tile in range(-(-S_k // block_n)):
        keys = range(tile * block_n, min((tile + 1) * block_n, S_k))
        ahead = [key - row - S_k + S_q for row in rows for key in keys]
        seen = [(left < 0 or a >= -left) and (right < 0 or a <= right) for a in ahead]
        touched += [tile] if any(seen) else []
        whole += [tile] if all(seen) and len(keys) == block_n else []
    if not touched:
        return 0, 0, 0, 0
    full = (whole[0], whole[-1] + 1) if whole else (touched[-1] + 1, touched[-1] + 1)
    return touched[0], *full, touched[-1] + 1


WRONG_ANSWERS = (
    edit("12.1", "alpha upside down", ("torch.exp2((row_max - safe) * scale_log2)", "torch.exp2((safe - row_max) * scale_log2)"),
         told="scores_scale is upside down"),
    edit("12.1", "scaled, and compared with the scaled old maximum", ("    if is_first:\n        new_max", "    s = s * scale_log2\n    if is_first:\n        new_max"),
         ("torch.maximum(row_max,", "torch.maximum(row_max * scale_log2,"),
         ("torch.exp2(s * scale_log2 - (safe * scale_log2)[:, None])", "torch.exp2(s - safe[:, None])"),
         ("(row_max - safe) * scale_log2", "row_max * scale_log2 - safe"), told="row_max comes back scaled"),
    edit("12.1", "p v, too", ("    return p,", "    acc = acc + p.sum()\n    return p,"),
         told="a later block: acc is rescaled by 2^((old − new row_max) · scale_log2), and nothing is added"),
    edit("12.1", "an unscaled maximum in a later block", (P, f"({P} if is_first else torch.exp2(s * scale_log2 - safe[:, None]))"),
         told="row_max is unscaled, so the scale multiplies both, and the base is 2"),
    edit("12.1", "a scaled row_max, without a guard in the first block", ("    return p,", "    new_max = scale_log2 * new_max if is_first else new_max\n    p = p + 0 * new_max[:, None]\n    return p,"),
         told="the first block: row_max becomes the block's largest score, unscaled, whatever it held"),
    edit("12.1", "acc alone from the first block", ("    return p,", "    acc = acc + row_sum[:, None] * 0 if is_first else acc\n    return p,"),
         told="the first block: acc stays as it was, and no row_max or row_sum of before is read"),
    edit("12.1", "a state set before the first block", (FIRST_MAX, f"    if is_first:\n{STATE}    new_max = torch.maximum(row_max, s.amax(dim=1))\n"),
         ("if not is_first:", "if True:"), told="with Is_first the function doesn't touch acc_o"),
    edit("12.1", "unset numbers, a NaN dropped by fmax", (FIRST_MAX, "    row_sum = row_sum.nan_to_num()\n    new_max = torch.fmax(row_max, s.amax(dim=1))\n"),
         ("if not is_first:", "if True:"), ("(row_max - safe)", "(torch.where(row_max.isnan(), -math.inf, row_max) - safe)"),
         told="with Is_first neither row_max nor row_sum is read"),
    edit("12.1", "in place", ("acc = alpha[:, None] * acc", "acc *= alpha[:, None]"), told="changes its input acc in place"),
    edit("12.1", "acc rescaled in the first block", ("    return p,", "    acc = torch.exp2((row_max - safe) * scale_log2)[:, None] * acc if is_first"
                                                    " else acc\n    return p,"), told="with Is_first the function doesn't touch acc_o"),
    edit("12.1", "another order", ("p, new_max, new_sum, acc", "new_max, new_sum, p, acc"), told="return p, row_max, row_sum, acc"),
    edit("12.1", "one maximum for the tile in the first block", ("if is_first:\n        new_max = s.amax(dim=1)", "if is_first:\n        new_max = s.max().repeat(len(s))"),
         told="in the first block row_max is one maximum for the whole tile"),
    ("12.2", tiles_by_the_keys_of_all_and_any, "pairs of the block is made: its first and last row decide"),
    ("12.2", tiles_by_a_loop_over_all_pairs, "lines run for a block with 16,384 pairs of a row and a key"),
    edit("12.2", "other negatives taken for 0", (FIRST, f"    left, right = (10**9 if x == -1 else max(x, 0) for x in (left, right))\n{FIRST}"),
         told="left = −3 is no limit either"),
    edit("12.2", "in floats", ("low(first) // block_n", "low(first) / block_n"), told="gives start = 8.333, want 8"),
    edit("12.2", "whole floats", ("low(first) // block_n,", "float(low(first) // block_n),"), told="a tile's number is an integer"),
    edit("12.2", "causal tiles alone", (FIRST, f"    left, right = -1, 0\n{FIRST}"), told="these are causal_tiles"),
    edit("12.2", "FA3's bound", ("full_0 = -(-low(last) // block_n)", "full_0 = max(low(first) // block_n, -(-(first + block_m + S_k - S_q - left)"
                                 " // block_n)) if left >= 0 else 0"), told="from a row after the block's last"),
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
    edit("12.2", "no whole tile, and full_0 = full_1 = 0", ("    return low(first)", "    full_0, full_1 = (0, 0) if full_1 == full_0 else (full_0, full_1)\n    return low(first)"),
         told="window_tiles(3, 4, 4, 16, 16, 0, 0) gives full_0 = 0"),
    edit("12.2", "no end", (", -(-high(last) // block_n)", ""), told="returns a tuple of 3"),
    edit("12.3", "scaled scores, and their gradients", ("q @ k.T", "q @ k.T * scale_log2 * math.log(2)"), ("s * scale_log2 - ", "s * math.log2(math.e) - "),
         ("return ds @ k, ds.T @ q", "return scale_log2 * math.log(2) * ds @ k, scale_log2 * math.log(2) * ds.T @ q"), told="dq and dk are scaled"),
    edit("12.3", "delta by columns", ("delta[:, None]", "delta"), told="delta is subtracted by columns"),
    edit("12.3", "shares in float16", ("return ds @ k, ds.T @ q, p.T @ do", "return (ds @ k).half(), (ds.T @ q).half(), (p.T @ do).half()"), told="the shares are rounded to 16 bits"),
    edit("12.3", "p by rows' own softmax", ("torch.exp2(s * scale_log2 - (lse * math.log2(math.e))[:, None])", "torch.softmax(s * scale_log2 * math.log(2), 1)"),
         told="p is a softmax of this block alone"),
    edit("12.3", "a mask by subtraction", ("torch.where(seen, q @ k.T, -math.inf)", "(q @ k.T).masked_fill(~seen, -math.inf)"), ("torch.exp2(s", "torch.exp2(s.nan_to_num(0.0)"),
         ("lse * math.log2(math.e)", "lse.nan_to_num(posinf=-math.inf) * math.log2(math.e)"), told="so its p is 0, and no result is NaN"),
    edit("12.4", "divided by ln 2 and compared with 2^threshold", ("(m - shift) * math.log2(math.e) > threshold",
         "(m - shift) / math.log(2) > 2**threshold"), told="the new shift is m if exp(m − shift) exceeds 2^threshold"),
    edit("12.4", "a shift that falls", ("torch.maximum(shift, s.amax(dim=-1))", "s.amax(dim=-1)"), ("> threshold", "!= 0"),
         told="the new shift is m if exp(m − shift) exceeds 2^threshold"),
    edit("12.4", "alpha from m", ("torch.exp(shift - safe)", "torch.exp(shift - m)"), told="is 1 for a row that doesn't move"),
    edit("12.4", "alpha of a first block unset", ("p.sum(dim=-1), alpha", "p.sum(dim=-1), torch.where((shift == -math.inf) & (new_shift > -math.inf), 5.0, alpha)"),
         told="0 where a row moves from −∞"),
    edit("12.4", "NaN for a row that has seen nothing", ("p.sum(dim=-1), alpha", "p.sum(dim=-1), torch.where(new_shift == -math.inf, math.nan, alpha)"),
         told="gives alpha = [nan, 1, 0], want [0, 1, 0]"),
    edit("12.4", "8 in place of the threshold", ("(m - shift) * math.log2(math.e) > threshold", "m > shift + 8 * math.log(2)"), told="the threshold is fixed at 8"),
    edit("12.5", "one test twice", ("both_fail = 31, 100, 110.0", "both_fail = both_pass"), told="so a shift of 0 is as good as another"),
    edit("12.5", "ragged, and two blocks enough", ("31, 100, 110.0", "17, 36, 150.0"), told="row 0 sees every key before the last two blocks"),
    edit("12.5", "two blocks of keys", ("20, 46,", "20, 31,"), told="S_k of the first test is 31, want a whole number from 33"),
    edit("12.5", "a picture's lengths", ("20, 46,", "31, 94,"), told="row 0 of the first test sees keys 0 to 63, the first or last key of a block"),
    edit("12.5", "a block of rows", ("31, 100,", "32, 100,"), told="S_q of the second test is 32, want a whole number from 17 to 31"),
    edit("12.5", "full blocks", ("20, 46,", "20, 96,"), told="want a last block that isn't full"),
    edit("12.5", "scores too low for any loop", ("110.0", "1e5"), told="the loop as it is fails the second test"),
    edit("12.5", "too low for float32", ("110.0", "1e38"), told="want a number from 0 to 1,000,000"),
    edit("12.5", "nearly low enough", ("110.0", "100"), told="change 3 is off by less than 0.01"),
    edit("12.5", "one test", ("return both_pass, both_fail", "return both_pass"), told="returns a tuple of 3, want two tuples"),
    edit("12.5", "two numbers", ("100, 110.0", "100"), told="the second test is a tuple of 2"),
)  # fmt: skip
