import math

import torch
from edits import edit


def two_passes(x):
    m = max(x.tolist(), default=-math.inf)
    return m, sum(math.exp(value - m) for value in x.tolist()) if m > -math.inf else 0.0


def two_passes_of_a_list(x):
    seen = [value for value in x.tolist() if value > -math.inf]
    m = max(seen, default=-math.inf)
    return m, sum(math.exp(value - m) for value in seen)


def two_passes_of_tensors(x):
    m = x.max() if len(x) else torch.tensor(-math.inf)
    return m, torch.exp(x - torch.where(m == -math.inf, 0.0, m)).sum()


def merge_numbers_only(m_a, l_a, m_b, l_b):
    m = max(m_a, m_b)
    return m, l_a * math.exp(m_a - m) + l_b * math.exp(m_b - m)


def whole_row(blocks, D):
    kept = [(s.clone(), v.clone()) for s, v in blocks]
    scores, values = map(torch.cat, zip((torch.zeros(0), torch.zeros(0, D)), *kept, strict=True))
    return torch.softmax(scores, 0).nan_to_num() @ values.to(scores), torch.logsumexp(scores, 0)


MAXIMUM, SUM = "wide.amax(dim=-1, keepdim=True)", "p.sum(dim=-1, keepdim=True)"
PROMOTED = "x.to(torch.promote_types(x.dtype, torch.float32))"
FLOAT64 = "one edge is left: float64 goes in, and the result has less accuracy"


def skips(condition: str, by: str = "continue") -> tuple[str, str]:
    return "        m_new = ", f"        if {condition}:\n            {by}\n        m_new = "


WRONG_ANSWERS = (
    ("1.1", lambda x: torch.nn.functional.softmax(x, -1), "a library's function makes it"),
    edit("1.1", "clamped at 80", ("wide - m", "wide.clamp(max=80)"), told="a score may be higher than exp can take"),
    edit("1.1", "the first value", (MAXIMUM, "wide[..., :1]"), told="so that the largest exponent is 0: x = [0, 2000]"),
    edit("1.1", "the last value", (MAXIMUM, "wide[..., -1:]"), (PROMOTED, "x.double()"), told="so that the largest exponent is 0: x = [2000, 0]"),
    edit("1.1", "masked by −1e9", (PROMOTED, f"torch.where(x == -torch.inf, -1e9, {PROMOTED})"),
         told="one edge is left: a finite score may be as low as this"),
    edit("1.1", "the sum a little larger", (SUM, f"({SUM} + 1e-12)"), told=FLOAT64),
    edit("1.1", "in place", ("    wide = ", "    x -= x.amax(dim=-1, keepdim=True)\n    wide = "), told="changes its input x in place"),
    edit("1.1", "float64 lost", (PROMOTED, "x.float()"), told=FLOAT64),
    edit("1.1", "through a view", ("wide = x.to(", "wide = x.view(-1, x.shape[-1]).to("), (").to(x.dtype)", ").to(x.dtype).view(x.shape)"),
         told="one edge is left: a transposed view, shape (3, 4, 8): raises RuntimeError: view size is not compatible"),
    edit("1.1", "in half", (PROMOTED, "x"), told="one edge is left: take every step in float32, and round only the weights"),
    edit("1.1", "bf16 in bf16", (PROMOTED, "x.float() if x.dtype == torch.float16 else x"), told="and round only the weights"),
    edit("1.1", "only the sum in float32", (PROMOTED, "x"), (SUM, f"{SUM[:-1]}, dtype=torch.promote_types(x.dtype, torch.float32))"),
         told="and round only the weights"),
    *(("1.1", library, "a library's function makes it") for library in (lambda x: torch.log_softmax(x, -1).exp(), lambda x: torch.nn.Softmax(-1)(x))),
    edit("1.1", "clamped at −80", ("wide - m", "(wide - m).clamp(min=-80)"), told="one edge is left: a −inf entry gets the weight 0"),
    edit("1.1", "result in float32", (").to(x.dtype)", ")"),
         told="x = 70,000 zeros in float16: returns float32: convert the weights"),
    ("1.2", two_passes, "x is gone through more than once"),
    ("1.2", two_passes_of_a_list, "x is gone through more than once"),
    ("1.2", two_passes_of_tensors, "x is gone through more than once"),
    edit("1.2", "l before the maximum", ("l * math.exp(m - m_new) + math.exp(value - m_new)", "(l + math.exp(value - (m if l else m_new))) * math.exp((m if l else m_new) - m_new)"),
         told="no exponent may be positive, not even for a while"),
    edit("1.2", "skips what is very low", ("value == -math.inf", "value < -1e9"), told="however low, and counts like any other: x = [−1e+30]"),
    edit("1.2", "stops", ("            continue", "            if m > -math.inf:\n                break\n            continue"),
         told="one edge is left: a −inf entry adds nothing, wherever it stands: x = [1, −inf, 2]"),
    edit("1.2", "needs a first", ("m, l = -math.inf", "m, l = x[0].item()"), told="one edge is left: an empty vector: raises IndexError"),
    ("1.3", merge_numbers_only, "torch.where decides for each"),
    edit("1.3", "clamped at −1e4", ("torch.where(m == -math.inf, 0.0, m)", "m.clamp(min=-1e4)"), told="a maximum may be any finite number"),
    edit("1.3", "clamped at −3e4", ("torch.where(m == -math.inf, 0.0, m)", "m.clamp(min=-3e4)"), told="a maximum may be any finite number"),
    edit("1.3", "in float32", ("torch.as_tensor(x) for", "torch.as_tensor(x).float() for"), told=FLOAT64),
    edit("1.3", "tensors only", ("(torch.as_tensor(x) for x in (m_a, l_a, m_b, l_b))", "(m_a, l_a, m_b, l_b)"),
         told="one edge is left: merge(1.0, 2.0, 2.0, 3.0) with floats: raises TypeError"),
    edit("1.4", "flat", ("[low, high, low[:-1] - 0.5]", "[low, low, low[:-1]]"), told="A by 0 (it goes wrong only if the maximum grows"),
    edit("1.4", "high", ("-2e4)", "0.0)"), ("-2e4 + 1", "1.0"), told="C by 0 (it goes wrong only if every score is so far below"),
    edit("1.4", "rising", ("[low, high, low[:-1] - 0.5]", "[low, high[:-1]]"), told="B by 0 (it goes wrong only if a block's"),
    edit("1.5", "m starts at −1e30", ("torch.tensor(-math.inf)", "torch.tensor(-1e30)"), told="a score may be any finite number"),
    ("1.5", whole_row, "the result is right, but what you keep grows with every block"),
    edit("1.5", "two passes", ("    for s, v in", "    blocks = list(blocks)\n    m = max([s.max() for s, _ in blocks], default=m)\n    for s, v in"),
         told="its memory holds NaN after you ask for the next"),
    edit("1.5", "two loops", ("    for s, v in", "    for s, _ in blocks:\n        m = torch.maximum(m, s.max())\n    for s, v in"), told="a second loop finds none"),
    edit("1.5", "from the old maximum", ("m, l, acc = torch.tensor(-math.inf)", "m, l, acc = torch.tensor(0.0)"), ("s - m_new", "s - m"),
         told="one block: lse = m + log l, and p is measured from m"),
    edit("1.5", "lse is l", ("m + torch.log(l)", "l"), told="one block: lse = m + log l"),
    edit("1.5", "l first", ("return o, m + torch.log(l)", "return l, acc"), told="one block: o = acc / l, of shape (D,)"),
    edit("1.5", "divided by l in each block", ("p @ v", "(p @ v) / l"), ("acc / l if l > 0 else acc", "acc"), told="divide by l only at the end"),
    edit("1.5", "stops", skips("s.max() == -math.inf and m > -math.inf", "break"),
         told="one edge is left: a −inf score gets the weight 0, and a block of only −inf changes nothing, wherever it stands"),
    edit("1.5", "skips for one score", skips("(s == -math.inf).any()"),
         told="one edge is left: a −inf score gets the weight 0, and a block of only −inf changes nothing, wherever it stands"),
    edit("1.5", "in float32", ("p @ v", "p.float() @ v.float()"), told="one edge is left: float64 goes in"),
    edit("1.5", "in place", ("torch.exp(s - m_new)", "s.sub_(m_new).exp_()"), told="changes a block's s or v in place: work on a copy"),
    edit("1.6", "in float32", ("lse_a, lse_b)", "lse_a.float(), lse_b.float())"), told=FLOAT64),
)  # fmt: skip
