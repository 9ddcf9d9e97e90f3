import math

import torch
from edits import edit


def softmax_through_lse(x):
    wide = x.double()
    return torch.exp(wide - torch.logsumexp(wide, dim=-1, keepdim=True)).to(x.dtype)


def two_passes(x):
    m = max(x.tolist(), default=-math.inf)
    return m, sum(math.exp(value - m) for value in x.tolist()) if m > -math.inf else 0.0


def two_passes_of_tensors(x):
    m = x.max() if len(x) else torch.tensor(-math.inf)
    return m, torch.exp(x - torch.where(m == -math.inf, 0.0, m)).sum()


def merge_numbers_only(m_a, l_a, m_b, l_b):
    m = max(m_a, m_b)
    return m, l_a * math.exp(m_a - m) + l_b * math.exp(m_b - m)


def whole_row(blocks, D):
    scores, values = map(torch.cat, zip(*blocks, strict=True))
    return torch.softmax(scores, 0).nan_to_num() @ values, torch.logsumexp(scores, 0)


def whole_row_of_copies(blocks, D):
    return whole_row([(s.clone(), v.clone()) for s, v in blocks], D)


def copies_for_a_second_pass(blocks, D):
    kept, m = [], torch.tensor(-math.inf)
    for s, v in blocks:
        kept.append((s.clone(), v.clone()))
        m = torch.maximum(m, s.max())
    shift = torch.where(m == -math.inf, 0.0, m)
    l = sum((torch.exp(s - shift).sum() for s, _ in kept), torch.tensor(0.0))
    acc = sum((torch.exp(s - shift) @ v for s, v in kept), torch.zeros(D))
    return acc / torch.where(l == 0, 1.0, l), m + torch.log(l)


def row_that_grows(blocks, D):
    scores, values, m = torch.zeros(0), torch.zeros(0, D), torch.tensor(-math.inf)
    for s, v in blocks:
        scores, values, m = torch.cat([scores.to(s), s]), torch.cat([values.to(v), v]), torch.maximum(m, s.max())
    return copies_for_a_second_pass(zip(scores.split(1), values.split(1), strict=True), D) if len(scores) else (values.sum(0), m)


COARSE = "one edge is left: float64 goes in, and the result has less accuracy"
MAXIMUM, SUM = "wide.amax(dim=-1, keepdim=True)", "p.sum(dim=-1, keepdim=True)"
PROMOTED = "x.to(torch.promote_types(x.dtype, torch.float32))"
NEXT_BLOCK = "        m_new = "
NORMALISED = (
    ("        if m_new == -math.inf:\n            continue  # nothing seen yet\n", ("        shift = torch.where(m_new == -math.inf, "
                                                                                   "0.0, m_new)\n")),
    ("s - m_new", "s - shift"),
    ("(m - m_new)", "(m - shift)"),
    ("        l = alpha * l + p.sum()\n        acc = alpha * acc + p @ v",
     "        l_new = alpha * l + p.sum()\n        acc = (alpha * l * acc + p @ v) / l_new\n        l = l_new"),
    ("acc / l if l > 0 else acc", "torch.where(l > 0, acc, 0.0)"),
)  # fmt: skip
UNGUARDED = ("acc / l if l > 0 else acc", "acc / l")


def skips(condition: str, by: str = "continue") -> tuple[str, str]:
    return NEXT_BLOCK, f"        if {condition}:\n            {by}\n{NEXT_BLOCK}"


WRONG_ANSWERS = (
    *(
        ("1.1", made, "a library's softmax or logsumexp made them")
        for made in (
            softmax_through_lse,
            lambda x: torch.softmax(x, -1),
            lambda x: torch.special.softmax(x, -1),
            lambda x: torch._softmax(x, -1, False),
            lambda x: torch.nn.functional.softmin(-x.double(), -1).to(x.dtype),
            lambda x: torch.exp(x - torch.special.logsumexp(x, -1, keepdim=True)),
            lambda x: torch.exp(x - torch.logcumsumexp(x, -1)[..., -1:]),
        )
    ),
    edit("1.1", "clamped at 80", ("wide - m", "wide.clamp(max=80)"), told="a score may be above 88.72, where float32's exp overflows: subtract"),
    edit("1.1", "clamped at −1e9", (PROMOTED, f"{PROMOTED}.clamp(min=-1e9)"), told="a finite score may be as low as this"),
    edit("1.1", "masked by −1e9", (PROMOTED, f"torch.where(x == -torch.inf, -1e9, {PROMOTED})"),
         told="one edge is left: a finite score may be as low as this"),
    edit("1.1", "each exponential a little larger", ("torch.exp(wide - m)", "torch.exp(wide - m) + 1e-9"), told="add no constant"),
    edit("1.1", "the sum a little larger", (SUM, f"({SUM} + 1e-12)"), told=COARSE),
    edit("1.1", "no keepdim, in x's dtype", (", keepdim=True", "", 2), (PROMOTED, "x"), told=("each of shape (..., 1), as keepdim=True "
                                                                                             "leaves them: x = [[1, 3]")),
    edit("1.1", "in place", ("    wide = ", "    x -= x.amax(dim=-1, keepdim=True)\n    wide = "), told="changes its input x in place"),
    edit("1.1", "in float32", (PROMOTED, "x.float()"), (").to(x.dtype)", ")"),
         told="two edges are left; the first: float64 goes in, and the result has less accuracy"),
    edit("1.1", "float64 lost", (PROMOTED, "x.float()"), told="one edge is left: float64 goes in, and the result has less accuracy: a tensor "
         "inside is float32 (convert only fp16 and bf16 to it"),
    edit("1.1", "through a view", ("wide = x.to(", "wide = x.view(-1, x.shape[-1]).to("), (").to(x.dtype)", ").to(x.dtype).view(x.shape)"),
         told="one edge is left: a transposed view, shape (3, 4, 8): raises RuntimeError: view size is not compatible"),
    edit("1.1", "in half", (PROMOTED, "x"), told="one edge is left: the sum of 70,000 ones is inf in float16"),
    edit("1.1", "result in float32", (").to(x.dtype)", ")"),
         told="one edge is left: the weights are right, but they are in float32: convert them to x's dtype, float16"),
    edit("1.1", "a pair", (MAXIMUM, "wide.max(-1, keepdim=True)"), told="take its .values, or use amax"),
    *(
        edit("1.1", f"{name}, {wide}", (MAXIMUM, subtracted), (PROMOTED, wide), told=f"so that the largest exponent is 0: x = {shown}")
        for name, wide, subtracted, shown in (
            ("first value", "x", "wide[..., :1]", "[0, 1000]"),
            ("last value", "x.double()", "wide[..., -1:]", "[1000, 0]"),
            ("minimum", "x", "wide.amin(dim=-1, keepdim=True)", "[0, 1000]"),
            ("mean in double", "x.double()", "wide.mean(dim=-1, keepdim=True)", "[0, 2000]"),
            ("a number", "x.double()", "80.0", "[0, 1000]"),
        )
    ),
    edit("1.1", "clamped at 700", ("wide - m", "wide.double().clamp(max=700)"), told="exp(−1000) is 0, and 0 / 0 is NaN"),
    ("1.2", two_passes, "x is gone through more than once"),
    ("1.2", two_passes_of_tensors, "x is gone through more than once"),
    ("1.2", lambda x: (0.0, 0.0), "the maximum itself adds exp(0) = 1"),
    edit("1.2", "l before the maximum", ("l * math.exp(m - m_new) + math.exp(value - m_new)", "(l + math.exp(value - (m if l else m_new))) * math.exp((m if l else m_new) - m_new)"),
         told="no exponent may be positive, not even for a while"),
    edit("1.2", "skips what is very low", ("value == -math.inf", "value < -1e9"), told=("however low, and counts like any other: x = "
                                                                                       "[−1e+30]")),
    edit("1.2", "last term alone", ("l * math.exp(m - m_new) + ", ""), told="l is the sum of exp(x − m)"),
    edit("1.2", "stops", ("            continue", "            if m > -math.inf:\n                break\n            continue"),
         told="one edge is left: a −inf entry adds nothing, wherever it stands: x = [1, −inf, 2]"),
    edit("1.2", "needs a first", ("m, l = -math.inf", "m, l = x[0].item()"), told="one edge is left: an empty vector: raises IndexError"),
    edit("1.2", "no exp", ("l * math.exp(m - m_new)", "l * (m - m_new)"), told="l is NaN from the first element on"),
    ("1.3", merge_numbers_only, "torch.where decides for each"),
    edit("1.3", "shift for m", ("return m,", "return shift,"), told="one edge is left: two empty parts give an empty part, (−inf, 0)"),
    edit("1.3", "shift clamped", ("torch.where(m == -math.inf, 0.0, m)", "m.clamp(min=-1e9)"),
         told="a maximum may be as low as this, and isn't −inf"),
    edit("1.3", "in float32", ("torch.as_tensor(x) for", "torch.as_tensor(x).float() for"), told="one edge is left: float64 goes in"),
    edit("1.3", "l a little larger", ("(m_b - shift)", "(m_b - shift) + torch.where(m == -math.inf, 0.0, 1e-12)"), told=COARSE),
    edit("1.3", "tensors only", ("(torch.as_tensor(x) for x in (m_a, l_a, m_b, l_b))", "(m_a, l_a, m_b, l_b)"),
         told="one edge is left: merge(1.0, 2.0, 2.0, 3.0) with floats: raises TypeError"),
    edit("1.3", "one guard",
         ("    shift = torch.where(m == -math.inf, 0.0, m)", "    if (m == -math.inf).all():\n        return m, l_a + l_b\n    shift = m"),
         told="one edge is left: one element is two empty parts"),
    edit("1.4", "one score alone", ("[low, high, low[:-1]]", "[low[:-1]]"), told="fewer than one block of 2"),
    edit("1.4", "masked", ("[low, high, low[:-1]]", "[low, high, low[:-1] * math.inf]"), told="a score that is not finite"),
    edit("1.4", "a list", ("torch.cat([low, high, low[:-1]])", "[1.0, 2.0]"), told="returns a list of 2, want a vector of scores"),
    edit("1.4", "a short end", ("low[:-1]]", "low, high[:1] - 1]"), told="want more than 0.01: what it gets wrong is too small a share"),
    ("1.4", lambda block: torch.tensor([-20_002.0] * 128 + [-20_000.0] * 128 + [-20_001.0]), "(your row is the same for every block)"),
    edit("1.4", "an end that is too low", ("low[:-1]]", "low[:-1] - 2.62]"), told="by only 0.0097"),
    edit("1.4", "unseeded", ("[low, high, low[:-1]])", "[low, high, low[:-1]]) + torch.rand(1)"), told="is another row in each call"),
    edit("1.4", "a low end", ("low[:-1]]", "low[:-1] - 50]"), told="whose scores count"),
    edit("1.4", "flat", ("[low, high, low[:-1]]", "[low, low, low[:-1]]"), told="A and B are right: A goes wrong only if the maximum grows"),
    edit("1.4", "high", ("-2e4)", "0.0)"), ("-2e4 + 1", "1.0"), told="C is right: C goes wrong only if every score is so far below"),
    edit("1.4", "one block", ("[low, high, low[:-1]]", "[low]"), told="A, B and D are right: A goes wrong only if the maximum grows"),
    edit("1.4", "rising", ("[low, high, low[:-1]]", "[low, high[:-1]]"), told="gives a row on which B is right: B goes wrong only if a block's"),
    edit("1.4", "too low for float32", ("-2e4 + 1", "-1e8 + 1"), ("-2e4)", "-1e8)"), told="all your scores are equal: far from 0"),
    ("1.4", lambda block: torch.randn(1_024, generator=torch.Generator().manual_seed(0)), "gives a row on which C and D are right"),
    edit("1.5", "m starts at −1e4", ("torch.tensor(-math.inf)", "torch.tensor(-1e4)"), UNGUARDED, told=("however low, and counts like any "
                                                                                                   "other")),
    edit("1.5", "m starts at −1e30", ("torch.tensor(-math.inf)", "torch.tensor(-1e30)"), told="a score may be any finite number"),
    edit("1.5", "normalised in each block", *NORMALISED, told="one edge is left: a −inf score gets the weight 0, and a block of only −inf"),
    edit("1.5", "last block alone", ("alpha * acc + ", ""), ("alpha * l + ", ""), told="rescale the old acc and l"),
    edit("1.5", "lse in base 2 by log2", ("m + torch.log(l)", "m + torch.log2(l)"), told="one block: lse = m + log l, one number"),
    ("1.5", whole_row, "a block is used after the next one was asked for"),
    ("1.5", whole_row_of_copies, "take a block at a time"),
    ("1.5", copies_for_a_second_pass, "the result is right, but what you keep grows with every block"),
    ("1.5", row_that_grows, "the result is right, but what you keep grows with every block"),
    edit("1.5", "collected", ("in blocks:", "in list(blocks):"), told="a block is used after the next one was asked for"),
    edit("1.5", "two passes", ("    for s, v in", "    blocks = list(blocks)\n    m = max([s.max() for s, _ in blocks], default=m)\n    for s, v in"),
         told="a block is used after the next one was asked for"),
    edit("1.5", "one row", ("torch.zeros(D)", "torch.zeros(())"), told="one edge is left"),
    edit("1.5", "wrong sign", ("m - m_new", "m_new - m"), told="alpha = exp(m − m_new) is 0 and"),
    edit("1.5", "stops", skips("s.max() == -math.inf and m > -math.inf", "break"),
         told="one edge is left: a −inf score gets the weight 0, and a block of only −inf changes nothing, wherever it stands"),
    edit("1.5", "skips for one score", skips("(s == -math.inf).any()"),
         told="one edge is left: a −inf score gets the weight 0, and a block of only −inf changes nothing, wherever it stands"),
    edit("1.5", "fails without keys", UNGUARDED, told="one edge is left: nothing is seen, and o is 0 / 0 = NaN"),
    edit("1.5", "l a little larger", ("acc / l if l > 0 else acc", "acc / (l + 1e-12)"), told=COARSE),
    edit("1.5", "in float32", ("p @ v", "p.float() @ v.float()"),
         told="one edge is left: float64 goes in"),
    edit("1.6", "shares of a little more", ("* o_b, lse", "* o_b + 1e-12 * o_a, lse"), told=COARSE),
    edit("1.6", "lse lost", ("shift) * o_b, lse", "shift) * o_b, shift"), told="right on the main case; one edge is left: two empty parts give"),
    edit("1.6", "shares of the maxima", ("torch.logaddexp(lse_a, lse_b)", "torch.maximum(lse_a, lse_b)"), told="counts with its part's share"),
    edit("1.6", "one part never empty", ("torch.where(lse == -math.inf, 0.0, lse)", "lse_a + torch.log1p(torch.exp(lse_b - lse_a))"),
         told="right on the main case"),
    edit("1.5", "in place", ("torch.exp(s - m_new)", "s.sub_(m_new).exp_()"), told="changes a block's s or v in place: work on a copy"),
    edit("1.5", "values in place", ("p @ v", "(v.mul_(p[:, None])).sum(0)"), told="changes a block's s or v in place: work on a copy"),
)  # fmt: skip
