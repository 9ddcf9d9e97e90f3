"""Chapter 1: overflows in float32, exceptions, inputs that are changed, accuracy that is lost."""

import math

import torch
from edits import edit
from right_answers.chapter_1 import blocks_in_two_passes


def merge_numbers_only(m_a, l_a, m_b, l_b):
    m = max(m_a, m_b)
    return m, l_a * math.exp(m_a - m) + l_b * math.exp(m_b - m)


def blocks_by_reshape(x, block):
    blocks = x.reshape(*x.shape[:-1], -1, min(block, x.shape[-1]))
    p = torch.exp(blocks - blocks.amax(dim=(-1, -2), keepdim=True))
    return (p / p.sum(dim=(-1, -2), keepdim=True)).reshape(x.shape)


def blocks_from_the_first_maximum(x, block):
    p = torch.exp(x - x[..., :block].amax(dim=-1, keepdim=True))
    return p / p.sum(dim=-1, keepdim=True)


MAXIMUM = "wide.amax(dim=-1, keepdim=True)"
PROMOTED = "x.to(torch.promote_types(x.dtype, torch.float32))"
NOT_CORRECTED = ("p * torch.exp(m_block - m) for", "p for")
RUNNING = "torch.cat([*maxima, part], dim=-1).amax(dim=-1, keepdim=True)"
SHIFT = "shift = torch.where(m_new == -INF, 0.0, m_new)"
NEXT_BLOCK = "        m_new = "
NEW_ACC = ("alpha * acc + p @", "acc + alpha * p @")
NEW_L = ("alpha * l + p.sum()", "l + alpha * p.sum()")
UNGUARDED = ("acc / l if l > 0 else acc", "acc / l")


def skips(condition: str, by: str = "continue") -> tuple[str, str]:
    return NEXT_BLOCK, f"        if {condition}:\n            {by}\n{NEXT_BLOCK}"


WRONG_ANSWERS = (
    edit("1.1", "naive", ("wide - m", "wide"), told="exp overflows: float32 holds exp(x) only up to x = 88.72"),
    ("1.1", lambda x: torch.softmax(x, -1), "a library's softmax made them"),
    ("1.1", lambda x: torch.log_softmax(x.double(), -1).exp().to(x.dtype), "a library's softmax made them"),
    edit("1.1", "in place", ("    wide = ", "    x -= x.amax(dim=-1, keepdim=True)\n    wide = "), told="changes its input x in place"),
    edit("1.1", "in float32", (PROMOTED, "x.float()"), (").to(x.dtype)", ")"),
         told="two edges are left; the first: float64 goes in, and the result has less accuracy"),
    edit("1.1", "through a view", ("wide = x.to(", "wide = x.view(-1, x.shape[-1]).to("), (").to(x.dtype)", ").to(x.dtype).view(x.shape)"),
         told="one edge is left: a transposed view, shape (3, 4, 8): raises RuntimeError: view size is not compatible"),
    edit("1.1", "in half", (PROMOTED, "x"), told="one edge is left: the sum of 70,000 ones is inf in float16"),
    edit("1.1", "result in float32", (").to(x.dtype)", ")"),
         told="one edge is left: the weights are right, but they are in float32: convert them to x's dtype, float16"),
    edit("1.1", "a pair", (MAXIMUM, "wide.max(-1, keepdim=True)"), told="take its .values, or use amax"),
    *(
        edit("1.1", f"{name}, {wide}", (MAXIMUM, subtracted), (PROMOTED, wide), told=told)
        for wide in ("x", "x.double()")
        for name, subtracted, told in (
            ("last value", "wide[..., -1:]", "bring the largest exponent down to 0 first: x ="),
            ("minimum", "wide.amin(dim=-1, keepdim=True)", "bring the largest exponent down to 0 first: x ="),
        )
    ),
    edit("1.1", "a number", (MAXIMUM, "80.0"), (PROMOTED, "x.double()"), told="bring the largest exponent down to 0 first"),
    edit("1.1", "clamped", ("wide - m", "wide.double().clamp(max=700)"), told="subtract the row's own maximum, and nothing larger"),
    edit("1.2", "stops", ("            continue", "            if m > -math.inf:\n                break\n            continue"),
         told="one edge is left: a −inf entry adds nothing, wherever it stands: x = [1, −inf, 2]"),
    edit("1.2", "needs a first", ("m, l = -math.inf", "m, l = x[0].item()"), told="one edge is left: an empty vector: raises IndexError"),
    ("1.3", merge_numbers_only, "raises RuntimeError: Boolean value of Tensor"),
    ("1.3", merge_numbers_only, "torch.where decides for each"),
    edit("1.3", "tensors only", ("(torch.as_tensor(x) for x in (m_a, l_a, m_b, l_b))", "(m_a, l_a, m_b, l_b)"),
         told="one edge is left: merge(1.0, 2.0, 2.0, 3.0) with floats: raises TypeError"),
    edit("1.3", "one guard",
         ("    shift = torch.where(m == -math.inf, 0.0, m)", "    if (m == -math.inf).all():\n        return m, l_a + l_b\n    shift = m"),
         told="one edge is left: one element is two empty parts"),
    ("1.4", lambda x, block: torch.softmax(x, -1), "take a block at a time"),
    ("1.4", lambda x, block: torch.exp(x - x.amax(-1, keepdim=True)) / torch.exp(x - x.amax(-1, keepdim=True)).sum(-1, keepdim=True),
     "take a block at a time"),
    edit("1.4", "no correction", NOT_CORRECTED, told="that is the shortcut itself"),
    ("1.4", blocks_from_the_first_maximum, "measured from the first block's maximum"),
    edit("1.4", "from the running maximum", ("part.amax(dim=-1, keepdim=True)", RUNNING), NOT_CORRECTED,
         told="two blocks: the weights need the m and l of the whole row"),
    edit("1.4", "starts at a large negative", ("torch.full_like(x[..., :1], -INF)", "torch.full_like(x[..., :1], -1e9)"),
         base=blocks_in_two_passes, told="a finite number stands in for −inf, and elements may be smaller"),
    ("1.4", blocks_by_reshape, "x = [1, 2, 3], block = 2: raises RuntimeError"),
    edit("1.4", "stops", skips("(part == -INF).all() and (m > -INF).any()", "break"), base=blocks_in_two_passes,
         told="one edge is left: a −inf entry gets the weight 0, and a block of only −inf changes nothing, wherever it stands"),
    edit("1.4", "skips every row", skips("(part == -INF).all(dim=-1).any()"), base=blocks_in_two_passes,
         told="one edge is left: a −inf entry gets the weight 0, and a block of only −inf changes nothing, wherever it stands"),
    edit("1.4", "skips for one entry", skips("(part == -INF).any()"), base=blocks_in_two_passes,
         told="one edge is left: a −inf entry gets the weight 0, and a block of only −inf changes nothing, wherever it stands"),
    edit("1.4", "one guard", (SHIFT, "if (m_new == -INF).all():\n            continue\n        shift = m_new"), base=blocks_in_two_passes,
         told="one edge is left: a −inf entry gets the weight 0, and a block of only −inf changes nothing, wherever it stands"),
    *(
        edit("1.5", f"m starts at {start}, {name}", ("new_tensor(-math.inf)", f"new_tensor({start})"), *change,
             told="a finite number stands in for −inf")
        for start in (-1e4, -1e9, -1e30)
        for name, change in (("unguarded", [UNGUARDED]), ("guarded", []))
    ),
    ("1.5", lambda scores, values, block: (torch.softmax(scores, 0).nan_to_num() @ values, torch.logsumexp(scores, 0)), "take a block at a time"),
    edit("1.5", "alpha on the new l and acc", NEW_ACC, NEW_L, told="your first block vanishes"),
    edit("1.5", "alpha on the new acc", NEW_ACC, told="one block: o = acc / l"),
    edit("1.5", "alpha on the new l and acc, unguarded", NEW_ACC, NEW_L, UNGUARDED, told="one block: o = acc / l"),
    edit("1.5", "stops", skips("s.max() == -math.inf and m > -math.inf", "break"),
         told="one edge is left: a −inf score gets the weight 0, and a block of only −inf changes nothing, wherever it stands"),
    edit("1.5", "skips for one score", skips("(s == -math.inf).any()"),
         told="one edge is left: a −inf score gets the weight 0, and a block of only −inf changes nothing, wherever it stands"),
    edit("1.5", "fails without keys", UNGUARDED, told="one edge is left: nothing is seen, and o is 0 / 0 = NaN"),
    edit("1.5", "in float32", ("p @ values[start : start + block]", "p.float() @ values[start : start + block].float()"),
         told="one edge is left: float64 goes in"),
    edit("1.5", "no lse", ("return o, m + torch.log(l)", "return o"), told="want a tuple (o, lse)"),
)  # fmt: skip
