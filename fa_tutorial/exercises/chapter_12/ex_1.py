"""Exercise 12.1, combine."""

import math

import torch

from fa_tutorial.exercises.harness import INF, Exercise, case, exp32, generator, views


def combine(o_parts, lse_parts):
    """(o, lse) of all keys. o_parts: (parts, …, D), lse_parts: (parts, …), each part by itself."""
    m = lse_parts.amax(dim=0)
    shift = torch.where(m == -math.inf, 0.0, m)  # only empty parts: exp(−inf − 0) is 0, not NaN
    weights = torch.exp(lse_parts - shift)  # [parts, …]
    l = weights.sum(dim=0)
    o = (weights[..., None] * o_parts).sum(dim=0) / torch.where(l == 0, 1.0, l)[..., None]
    return o, shift + torch.log(l)


MISTAKES = {
    "exchanged": "o and lse are swapped: return (o, lse)",
    "mean": "the parts' outputs are averaged: a part whose keys score higher counts for more",
    "added": "the parts' outputs are added: each is an average already, so their weights must add up to 1",
    "largest": "only the part with the largest lse counts: the others are part of the sum too",
    "by_lse": "the outputs are weighted by lse itself: a part's sum of exponentials is exp(lse)",
    "not_divided": "the weights do not add up to 1: divide by their sum",
    "sign": "the weights have the wrong sign in the exponent: a larger lse is a larger weight",
    "over_rows": "the weights are normalised over the rows: each row has its own weights, one a part",
    "lse_added": "the lse are added: add their exponentials, and take the logarithm",
    "lse_largest": "lse is the largest lse of a part: it is the logarithm of the sum of all",
    "lse_mean": "the lse are averaged: add their exponentials, and take the logarithm",
    "log_mean": "lse is the logarithm of the mean: add the exponentials, do not average them",
    "no_log": "that is the sum of exponentials: lse is its logarithm",
    "no_shift": "lse lacks the maximum that you subtracted before exp: add it again",
    "late": "exp overflows or underflows: subtract the largest lse before exp",
    "nan_empty": "an empty part gives NaN: 0 · exp(lse) or −inf − (−inf) on the way; its weight is 0",
    "nan": "parts that are all empty give NaN, by −inf − (−inf) or 0 / 0: o is 0",
    "lse_zero": "lse of parts that are all empty is 0: log 0 is −inf",
}

CONDITIONS = {
    "empty": "a part without keys, o = 0 and lse = −inf, changes nothing",
    "all_empty": "where every part is empty, o = 0 and lse = −inf",
}


def twin(o_parts, lse_parts, mistake=None):
    o_parts, lse_parts = o_parts.double(), lse_parts.double()
    m = lse_parts.amax(0)
    nothing = m == -INF
    shift = torch.zeros_like(m) if mistake == "late" else m.masked_fill(nothing, 0.0)
    exponent = shift - lse_parts if mistake == "sign" else lse_parts - shift
    exps = exp32(exponent)
    l = exps.sum(0)
    weights = exps / l.masked_fill(l == 0, 1.0)
    weights = {
        "mean": torch.full_like(exps, 1 / len(exps)),
        "added": torch.ones_like(exps),
        "largest": (lse_parts == m).double(),
        "by_lse": lse_parts / lse_parts.sum(0),
        "not_divided": exps,
        "over_rows": torch.softmax(lse_parts, -1) if lse_parts.ndim > 1 else weights,
        "late": exps / l,
    }.get(mistake, weights)
    o = (weights[..., None] * o_parts).sum(0)
    lse = {
        "lse_added": lse_parts.sum(0),
        "lse_largest": m,
        "lse_mean": lse_parts.mean(0),
        "log_mean": shift + (l / len(exps)).log(),
        "no_log": exp32(shift) * l,
        "no_shift": l.log(),
        "lse_zero": (shift + l.log()).masked_fill(nothing, 0.0),
    }.get(mistake, torch.logsumexp(lse_parts, 0))
    bad = {"nan": nothing, "nan_empty": (lse_parts == -INF).any(0)}.get(mistake)
    if bad is not None:
        o = o.masked_fill(bad[..., None], math.nan)
    return (lse, o) if mistake == "exchanged" else (o, lse)


def inputs():
    def parts(o, lse, **options):
        return case(torch.tensor(o)[:, None, None], torch.tensor(lse)[:, None], **options)

    log = math.log
    yield parts([10.0, 40.0], [log(1.0), log(3.0)], otherwise="sums of 1 and 3: the weights are 1/4 and 3/4")
    yield parts([10.0, 40.0, 70.0], [1.0, 3.0, 2.0], otherwise="three parts: a weight is exp(lse of the part − lse of all)")
    yield parts([10.0, 40.0], [1000.0, 1001.0], otherwise="exp overflows: subtract the largest lse first")
    yield parts([10.0, 40.0], [-1000.0, -1001.0], otherwise="exp underflows: subtract the largest lse first")
    rows = torch.tensor([[0.0, 2.0], [1.0, 0.0]])
    yield case(torch.tensor([[[10.0], [20.0]], [[30.0], [50.0]]]), rows, otherwise="two rows: each has weights of its own")
    draw = generator()
    for shape in ((4, 2, 3, 5, 8), (7, 6, 4)):
        o, lse = torch.randn(*shape, generator=draw), 5 * torch.randn(*shape[:-1], generator=draw)
        yield case(o, lse, on=f"o_parts of shape {shape}", fresh=True)
        for words, view in views(o):
            yield case(view, lse, on=f"o_parts is {words}", fresh=True)
    yield parts([10.0, 0.0, 40.0], [log(1.0), -INF, log(3.0)], edge="empty")
    yield parts([0.0, 10.0], [-INF, 2.0], edge="empty")
    yield parts([0.0, 0.0], [-INF, -INF], edge="all_empty")
    mixed = torch.tensor([[-INF, 0.0], [-INF, 1.0]])
    yield case(torch.tensor([[[0.0], [20.0]], [[0.0], [50.0]]]), mixed, otherwise="one row sees no key, another does", edge="all_empty")


EXERCISE = Exercise(
    id="12.1",
    task="Join the parts of a split cache: (o, lse) of all keys from each part's own (o, lse).",
    conditions=CONDITIONS,
    hints=(
        "A part's lse is the logarithm of its sum of exponentials. What is the sum of all parts, and which share of it does each part have?",
        "weights = exp(lse_parts − m) with m = lse_parts.amax(dim=0), l = weights.sum(dim=0), lse = m + log(l). The output is the weighted sum, "
        "divided by l.",
        "Where every part is empty, m is −inf and −inf − (−inf) is NaN: subtract torch.where(m == −math.inf, 0.0, m), and divide by 1 where l is 0.",
    ),
    solution=combine,
    reasoning="(lse, 1) is a pair (m, l) of chapter 1, because exp(lse) · 1 is the part's sum. Merging any number of such pairs means measuring every sum "
    "from one maximum. A part's o is already divided by its own sum, so multiplying it by exp(lse) gives back its part of acc. An empty part has the "
    "weight exp(−inf) = 0.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("o", "lse"),
)
