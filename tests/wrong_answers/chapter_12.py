import math

import torch
from edits import edit

FIRST_MAX = "    if is_first:\n        new_max = s.amax(dim=1)\n    else:\n        new_max = torch.maximum(row_max, s.amax(dim=1))\n"
P, ALPHA = "torch.exp2(s * scale_log2 - (safe * scale_log2)[:, None])", "torch.exp2((row_max - safe) * scale_log2)"
SAFE = "torch.where(new_max == -math.inf, 0.0, new_max)"
S, BACKWARD_P = "torch.where(seen, q @ k.T, -math.inf)", "torch.exp2(s * scale_log2 - max_scaled[:, None])"
WAIT_1 = '        "warpgroup_wait<1>",  # p v, issued last, may be under way\n'
GUARDED = "torch.where(lse == -math.inf, 0.0, lse * math.log2(math.e))"


def lagging_step_that_forgets_the_old_shift(s, shift, l, threshold):
    """FA4's lines with a line 136 that doesn't take in row_max_old: a block that a row can't see moves its shift to −∞."""
    m = s.max(1).values
    safe = torch.where(m == -math.inf, 0.0, m)
    power = (shift - safe) * math.log2(math.e)
    keeps = power >= -threshold
    new, ref = torch.where(keeps, shift, m), torch.where(keeps, shift, safe)
    alpha = torch.where(keeps, 1.0, torch.exp2(power))
    p = torch.exp(s - ref[:, None])
    return p, new, alpha * l + p.sum(1), alpha


WRONG_ANSWERS = (
    edit("12.1", "no pieces", ("piece ^ (row % 8)", "row % 8"), told="the pieces of row 0 stand at [0, 0, 0, 0, 0, 0, 0, 0]"),
    edit("12.1", "past the row", ("piece ^ (row % 8)", "piece + row % 8"), told="the pieces of row 1 stand at [1, 2, 3, 4, 5, 6, 7, 8]"),
    edit("12.1", "in floats", ("piece ^ (row % 8)", "float(piece)"), told="'float' object cannot be interpreted as an integer"),
    edit("12.1", "four of eight rows", ("row % 8", "row % 2"), told="64 rows of 8 pieces gives accesses = 4, want 1"),
    edit("12.2", "chapter 8's step", ("    if is_first:\n        new_max", "    s = s * scale_log2\n    if is_first:\n        new_max"),
         (P, "torch.exp2(s - safe[:, None])"), (ALPHA, "torch.exp2(row_max - safe)"),
         (FIRST_MAX, "    new_max = torch.maximum(row_max, s.amax(dim=1))\n"), ("if not is_first:", "if True:"), told="a later block: "),
    edit("12.2", "rounded as line 347 rounds", ("    return p,", "    p = p.to(torch.float16).to(torch.float32)\n    return p,"), told="unscaled, all in float32"),
    edit("12.2", "a maximum of one thread", (FIRST_MAX, FIRST_MAX.replace("s.amax", "reading.by_thread(s)[:, 0].amax")),
         told="where row_max is the row's largest score so far"),
    edit("12.2", "all in float64", ("    return p, new_max, new_sum, acc", "    return p.double(), new_max.double(), new_sum.double(), acc.double()"),
         told="p is float64, want float32"),
    edit("12.2", "one sum a row", ("reading.by_thread(p).sum(dim=2)", "p.sum(dim=1)"), ("alpha[:, None] * row_sum", "alpha * row_sum.sum(1)"),
         told="gives row_sum of shape (2,), want (2, 4)"),
    edit("12.2", "alpha 1 where nothing was seen before", (ALPHA, f"torch.where(row_max == -math.inf, 1.0, {ALPHA})"),
         told="where it had seen nothing before, alpha = 2^(−∞) = 0"),
    edit("12.2", "NaN made 0 in p and alpha, without a guard", (SAFE, "new_max"), (P, f"({P}).nan_to_num(0.0)"),
         (ALPHA, f"{ALPHA}.nan_to_num(0.0)"), told="a NaN score stays NaN in p"),
    edit("12.2", "NaN scores hidden before the maximum", ("    if is_first:\n        new_max", "    s = s.nan_to_num(nan=-math.inf, neginf=-math.inf)\n    if is_first:\n        new_max"),
         told="a NaN score stays NaN in p"),
    edit("12.2", "acc as zeros from the first block", ("    return p,", "    acc = torch.zeros_like(acc) if is_first else acc\n    return p,"),
         told="a first block reads no old state"),
    edit("12.2", "columns four apart", ("reading.by_thread(p).sum(dim=2)", "torch.stack([p[:, t::4].sum(1) for t in range(4)], dim=1)"),
         told="its own columns of p, as by_thread gives them"),
    edit("12.2", "acc divided", ("    return p,", "    acc = acc / new_sum.sum(dim=1, keepdim=True)\n    return p,"), told="acc is rescaled by 2^((old − new row_max) · scale_log2), and nothing else"),
    edit("12.3", "a picture's lengths", ("24, 46,", "31, 94,"), told="the first test is (31, 94, 0.0): S_q is 24 to 31"),
    edit("12.3", "full blocks", ("24, 46,", "24, 96,"), told="S_k 33 to 1,024 and no multiple of 16"),
    edit("12.3", "the shortest lengths", ("24, 46,", "24, 33,"), told="change 4 fails the first test"),
    edit("12.3", "scores too low for any loop", ("30.0", "1e5"), told="the loop as it is fails the second test"),
    edit("12.3", "nearly low enough", ("30.0", "13.0"), told="the second test = change 3 neither passes nor fails"),
    edit("12.3", "one test", ("return both_pass, both_fail", "return both_pass"), told="returns a tuple of 3, want two tuples"),
    edit("12.3", "two numbers", ("100, 30.0", "100"), told="the second test is a tuple of 2"),
    edit("12.4", "a mask for dv alone", ("ds = p * (", "ds = torch.exp2((q @ k.T) * scale_log2 - max_scaled[:, None]) * ("), told="where ds = p · (dp − delta), with p of (6.7)"),
    edit("12.4", "p and ds in bfloat16", ("    return ds", "    p, ds = p.bfloat16().float(), ds.bfloat16().float()\n    return ds"), told="with p of (6.7), all in float32"),
    edit("12.4", "delta by columns", ("delta[:, None]", "delta"), told="where ds = p · (dp − delta)"),
    edit("12.4", "dk scaled alone", ("ds.T @ q, p", "ds.T @ q * scale_log2 / math.log2(math.e), p"), told="with the scale inside exp2 alone"),
    edit("12.4", "dv first", ("ds @ k, ds.T @ q, p.T @ do", "p.T @ do, ds.T @ q, ds @ k"), told="the shares are ds k of dq, dsᵀ q of dk and pᵀ do of dv"),
    edit("12.4", "a softmax without NaN", (BACKWARD_P, "torch.softmax(s * scale_log2 * math.log(2), 1).nan_to_num()"), told="with p of (6.7)"),
    edit("12.4", "a large negative number for −∞", ("q @ k.T, -math.inf", "q @ k.T, -1e4"), told="a hidden key's p is 0, because its score is −∞"),
    edit("12.4", "the mask as a factor, in base e", (S, "q @ k.T"), (BACKWARD_P, "seen * torch.exp(s * scale_log2 * math.log(2) - lse[:, None])"),
         told="p is multiplied by the mask"),
    edit("12.4", "lse in base e, and no guard", (GUARDED, "lse"), told="lse is in base e: p is a power of two"),
    edit("12.4", "an ∞ in p made 0", (BACKWARD_P, f"{BACKWARD_P}.nan_to_num(nan=0.0, posinf=0.0)"), told="a p that overflows is ∞"),
    edit("12.5", "a wait for one twice", ("warpgroup_wait<0>", "warpgroup_wait<1>"), told="release v: changes v, which gemm p v may still read"),
    edit("12.5", "one wait", ('        "warpgroup_wait<0>",\n', ""), told="adds release k, release v, warpgroup_wait<1> to the seven calls, want"),
    edit("12.5", "no release", ('        "release k",\n', ""), told="want release k, release v and two of"),
    edit("12.5", "p v first", ('        "gemm q kᵀ",\n        "gemm p v",\n', '        "gemm p v",\n        "gemm q kᵀ",\n'), told="once each and in their order"),
    edit("12.5", "p v waits for q kᵀ", (WAIT_1, ""), ('        "gemm p v",\n', '        "warpgroup_wait<0>",\n        "gemm p v",\n'),
         told="warpgroup_wait<0> stands between the two matmuls"),
    edit("12.5", "another word", ("warpgroup_wait<1>", "wait<1>"), told="adds release k, release v, wait<1>, warpgroup_wait<0>"),
    edit("12.5", "a text", ("    return (\n", "    return str(\n     ("), ('        "rescale_o",\n    )', '        "rescale_o"))'), told="returns a str, want a tuple"),
    edit("12.6", "divided by ln 2 and compared with 2^threshold", ("(m - shift) * math.log2(math.e) > threshold",
         "(m - shift) / math.log(2) > 2**threshold"), told="the new shift is m if exp(m − shift) exceeds 2^threshold"),
    edit("12.6", "a shift that falls", ("torch.maximum(shift, s.amax(dim=-1))", "s.amax(dim=-1)"), ("> threshold", "!= 0"),
         told="the new shift is m if exp(m − shift) exceeds 2^threshold"),
    edit("12.6", "a shift that moves down, too", ("torch.maximum(shift, s.amax(dim=-1))", "s.amax(dim=-1)"),
         ("(m - shift) * math.log2(math.e) > threshold", "((m - shift).abs() * math.log2(math.e) > threshold) & (m > -math.inf)"),
         told="the new shift is m if exp(m − shift) exceeds 2^threshold"),
    edit("12.6", "alpha from m", ("torch.exp(shift - safe)", "torch.exp(shift - m)"), told="is 1 for a row that doesn't move"),
    edit("12.6", "NaN for a row that has seen nothing", ("p.sum(dim=-1), alpha", "p.sum(dim=-1), torch.where(new_shift == -math.inf, math.nan, alpha)"),
         told="gives alpha = [nan, 1, 1], want [0, 1, 1]"),
    edit("12.6", "FA4's lines as they are, in base 2", ("(m - shift) * math.log2(math.e) > threshold", "m - shift > threshold"),
         ("torch.exp(s - safe[:, None])", "torch.exp2(s - safe[:, None])"), ("torch.exp(shift - safe)", "torch.exp2(shift - safe)"),
         ("alpha * l + p.sum(dim=-1)", "l * alpha + p.sum(1)"), told="m − shift is multiplied by log₂ e before it is compared"),
    edit("12.6", "alpha before l", ("alpha * l + p.sum(dim=-1), alpha", "alpha, alpha * l + p.sum(dim=-1)"), told="l is alpha · l plus the row's sum of p"),
    ("12.6", lagging_step_that_forgets_the_old_shift, "a row that sees none of a block's keys keeps its shift"),
    edit("12.6", "all rows move unless all stay", ("moves = (m - shift) * math.log2(math.e) > threshold", "moves = ~((m - shift) * math.log2(math.e) <= threshold).all()"),
         told="the new shift is m if exp(m − shift) exceeds 2^threshold"),
    edit("12.7", "Python's division", ("    if 32 + diagonal > 0:\n        return []", "    n_block = min(-(-S_k // 16), (32 + diagonal + 15) // 16) - 1\n    if n_block >= 0:\n        return []"),
         ("row + diagonal >= -16", "any(key <= row + diagonal for key in range(16 * n_block, 0))"), told="so n_block is −1, never −2"),
    edit("12.7", "a number", ("    diagonal =", "    return 16\n    diagonal ="), told="returns 16, want a list of whole numbers from 0 to 31"),
    edit("12.7", "all rows of S_q", ("for row in range(32) if", "for row in range(S_q) if"), told="want a list of whole numbers from 0 to 31"),
    edit("12.7", "half of the block", ("row + diagonal >= -16", "row >= 16"), told="a row is wrong if the loop reads a key before 0"),
    edit("12.7", "row 31 sees key 0 alone", ("32 + diagonal > 0", "32 + diagonal > 1"), told="ruined(33, 2) gives"),
    edit("12.7", "row 31 sees key -16 alone", ("32 + diagonal > 0", "32 + diagonal > 0 or diagonal == -47"), told="ruined(48, 1) gives"),
)  # fmt: skip
