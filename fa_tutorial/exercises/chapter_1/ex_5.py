"""Exercise 1.5, running_weighted_sum."""

import math

import torch

from fa_tutorial.exercises import harness
from fa_tutorial.exercises.harness import INF, Exercise, case, exp32, generator, masked_vectors, vectors, views


def running_weighted_sum(scores, values, block):
    """(o, lse) of one query: o = softmax(scores) · values, lse = log Σ exp(scores).

    scores: (S,); values: (S, D). Returns o: (D,) and lse, a number.
    """
    m = scores.new_tensor(-math.inf)
    l = scores.new_tensor(0.0)
    acc = values.new_zeros(values.shape[1])
    for start in range(0, len(scores), block):
        s = scores[start : start + block]
        m_new = torch.maximum(m, s.max())
        if m_new == -math.inf:
            continue  # nothing seen yet
        p = torch.exp(s - m_new)
        alpha = torch.exp(m - m_new)
        l = alpha * l + p.sum()
        acc = alpha * acc + p @ values[start : start + block]
        m = m_new
    o = acc / l if l > 0 else acc
    return o, m + torch.log(l)


_VANISHES = "your first block vanishes: alpha is 0 there, and it belongs to the old acc and l, not to the new block"
MISTAKES = {
    "not_divided": "acc is not divided by l",
    "exp_alone": "nothing is shifted or divided: p = exp(s − m), o = acc / l",
    "exponent_sign": "the exponent has the wrong sign: it is s − m, which is never positive",
    "scaled": "the scores are scaled by 1/√D: they are scaled already",
    "lse_never": "m is never updated, and lse = m + log l with it",
    "lse_is_m": "lse is m alone: add log l",
    "lse_is_log_l": "lse is log l alone: l is measured from m, so add m",
    "lse_is_l": "lse is l: take its logarithm and add m",
    "lse_is_sum": "lse is Σ exp(scores): take its logarithm",
    "lse_adds_l": "lse is m + l: take the logarithm of l",
    "lse_log2": "log l is in base 2: lse is the natural logarithm",
    "lse_base_2": "lse is in base 2: it is the natural logarithm",
    "lse_negative": "lse has the wrong sign: it is m + log l",
    "lse_subtracts": "log l is subtracted: lse is m + log l",
    "columns": "the weights run along the columns of values: weight j belongs to row j",
    "columns_added": "the weights run along the columns of values, and its rows are added: weight j belongs to row j",
    "acc_no_rescale": "your acc is not rescaled when the maximum grows, and l is",
    "l_no_rescale": "your l is not rescaled when the maximum grows, and acc is",
    "no_rescale": "neither acc nor l is rescaled when the maximum grows",
    "by_itself": "each block is normalised on its own, and the results are added",
    "wrong_sign": "acc and l are rescaled with the wrong sign in the exponent",
    "acc_sign": "acc is rescaled with the wrong sign in the exponent",
    "l_sign": "l is rescaled with the wrong sign in the exponent",
    "last_block": "only the last block is left in o: carry m, l and acc from block to block",
    "last_acc": "only the last block is left in acc: add to the rescaled acc",
    "last_l": "only the last block is left in l: add to the rescaled l",
    "first_block": "only the first block's values are in o",
    "new_rescaled": "the new block is rescaled as well: rescale only what you summed before it",
    "lse_last_l": "the l in lse is the sum of the last block alone",
    "lse_no_rescale": "the l in lse is not rescaled when the maximum grows",
    "lse_first_m": "the m in lse is the first block's",
    "lse_last_m": "the m in lse is the last block's, not the running maximum",
    "own_maximum": "p is measured from its block's own maximum, but acc and l from the running maximum",
    "own_l": "acc is right, but l adds the second block measured from its own maximum",
    "divided_early": "acc is divided by l in every block, but the next block needs the undivided sum: divide once, at the end",
    "dropped": "the ragged last block is dropped: 3 scores are a block of 2 and a block of 1",
    "zeros": "the ragged last block is filled up with scores of 0, and exp(0 − m) counts: fill with −inf",
    "unshifted": "exp overflows: the scores must be shifted by the running maximum before exp",
    "falls": "exp overflows: m must be the maximum of all scores so far, so it never falls",
    "from_zero": "exp underflows: m starts at 0, above every score",
    "from_finite": "a finite number stands in for −inf, and scores may be smaller: start m at −inf",
    "first_vanishes": _VANISHES,
    "first_vanishes_nan": _VANISHES,
    "nan_block": "a block of only −inf gives NaN: its own maximum is −inf, and −inf − (−inf) is NaN",
    "nan_first": "a first block of only −inf gives NaN: m is still −inf then, and −inf − (−inf) is NaN",
    "stops": "a block of only −inf ends your loop, and the keys after it are missing: skip it and go on",
    "skips_partly": "a block is skipped although only some of its scores are −inf, and the others count",
    "nothing_nan": "nothing is seen, and o is 0 / 0 = NaN: it must be 0",
    "nothing_lse_nan": "nothing is seen, and lse is NaN: it must be −inf",
    "nothing_lse_zero": "nothing is seen, and lse is 0: log 0 is −inf",
}

CONDITIONS = {
    "inf": "a −inf score gets the weight 0, and a block of only −inf changes nothing, wherever it stands",
    "nothing": "with no key at all, or only −inf scores, o is 0 and lse is −inf",
    "float64": "float64 inputs give results with float64's accuracy",
}


def _pass(blocks, D, mistake):
    """m, l and acc after the last block."""
    m, l, acc = (
        torch.tensor({"from_zero": 0.0, "from_finite": -1e9}.get(mistake, -INF)).double(),
        torch.zeros((), dtype=torch.float64),
        torch.zeros(D).double(),
    )
    for s, v in blocks:
        own = s.max()
        m_new = {"falls": own, "last_block": own, "unshifted": 0.0 * own}.get(mistake, torch.maximum(m, own))
        if mistake == "stops" and own == -INF < m:
            break
        if (m_new == -INF and mistake != "nan_first") or (mistake == "skips_partly" and (s == -INF).any()):
            continue
        p, alpha, sign = exp32(s - m_new), exp32(m - m_new), exp32(m_new - m) if m > -INF else 0.0
        p_l = exp32(s - own) if mistake in ("own_maximum", "own_l", "nan_block") else p
        p = p_l if mistake == "own_maximum" else p_l * exp32(own - m_new) if mistake == "nan_block" else p
        if mistake == "new_rescaled" and m > -INF:
            p = p_l = p * alpha
        if mistake in ("first_vanishes", "first_vanishes_nan"):
            p, p_l, alpha = p * alpha, p_l * alpha, torch.ones_like(alpha)
        alpha_l = {"l_no_rescale": 1, "no_rescale": 1, "wrong_sign": sign, "l_sign": sign, "last_block": 0, "last_l": 0}.get(mistake, alpha)
        alpha_acc = {"acc_no_rescale": 1, "no_rescale": 1, "wrong_sign": sign, "acc_sign": sign, "last_block": 0, "last_acc": 0}.get(
            mistake, alpha
        )
        l, acc, m = alpha_l * l + (p if mistake == "nan_block" else p_l).sum(), alpha_acc * acc + p @ v, m_new
        acc = acc / l if mistake == "divided_early" else acc
    return m, l, acc


def twin(scores, values, block, mistake=None):
    s, v = scores.double(), values.double()
    S, D = v.shape
    whole = max(S // block * block, min(S, block))
    s, v = (s[:whole], v[:whole]) if mistake == "dropped" else (s / D**0.5, v) if mistake == "scaled" else (s, v)
    if mistake == "zeros":
        s, v = torch.cat([s, s.new_zeros(-S % block)]), torch.cat([v, v.new_zeros(-S % block, D)])
    blocks = list(zip(s.split(block), v.split(block), strict=True)) if S else []
    m, l, acc = _pass(blocks, D, mistake)
    if l == 0:
        nothing = math.nan if mistake in ("nothing_nan", "first_vanishes_nan") else 0.0
        return acc * 0 + nothing, {"nothing_lse_nan": math.nan, "nothing_lse_zero": 0.0}.get(mistake, -INF)
    o, lse, p = acc / l, m + l.log(), torch.softmax(s, 0)
    o = {
        "not_divided": lambda: acc,
        "divided_early": lambda: acc,
        "exp_alone": lambda: exp32(s) @ v,
        "exponent_sign": lambda: torch.softmax(-s, 0) @ v,
        "columns": lambda: v @ p,
        "columns_added": lambda: v.sum(0) * p,
        "by_itself": lambda: sum(torch.softmax(part, 0) @ rows for part, rows in blocks),
        "first_block": lambda: torch.softmax(blocks[0][0], 0) @ blocks[0][1],
    }.get(mistake, lambda: o)()
    lse = {
        "lse_never": -INF,
        "lse_is_m": m,
        "lse_is_log_l": l.log(),
        "lse_is_l": l,
        "lse_is_sum": l * m.exp(),
        "lse_adds_l": m + l,
        "lse_log2": m + l.log2(),
        "lse_base_2": lse / math.log(2),
        "lse_negative": -lse,
        "lse_subtracts": m - l.log(),
        "lse_last_l": m + exp32(blocks[-1][0] - m).sum().log(),
        "lse_no_rescale": m + _pass(blocks, D, "no_rescale")[1].log(),
        "lse_first_m": blocks[0][0].max() + l.log(),
        "lse_last_m": blocks[-1][0].max() + l.log(),
    }.get(mistake, lse)
    return o, lse


def tolerance(args, part):
    """o is a mean of values of about 1, and the error of an lse is absolute."""
    rtol, _ = harness.tolerance(args, part)
    rtol = min(rtol, 0.1)  # a single huge score rounds nothing
    return (1e-12 if part == "lse" else rtol), rtol


def inputs():
    def weights(scores, block, **options):
        """With the identity for values, o is the weights themselves."""
        scores = torch.tensor(scores)
        on = f"scores = {harness.show(scores)}, values = the identity, block = {block}"
        return case(scores, torch.eye(len(scores)), block, on=on, **options)

    yield weights([1.0, 2.0], 2, otherwise="one block: o = acc / l, of shape (D,), and lse = m + log l, a number")
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    yield case(torch.tensor([1.0, 2.0]), rows, 2, otherwise="o is the sum of the rows of values, each times its key's weight")
    yield weights([1.0, 2.0], 1, otherwise="two blocks: when the maximum grows, rescale acc and l by the same factor")
    yield weights([2.0, 1.0], 1, otherwise="the maximum is in the first block: measure the second block from it")
    yield weights([1.0, 2.0, 3.0], 1, otherwise="three blocks: carry acc and l from block to block")
    yield weights([1.0, 2.0, 3.0], 2, otherwise="the last block may be ragged: 3 scores are a block of 2 and a block of 1")
    yield weights([1.0, 2.0], 8, otherwise="a block may be longer than the row")
    yield weights([1000.0, 1001.0], 1, otherwise=MISTAKES["unshifted"])
    yield weights([1000.0, 0.0], 1, otherwise=MISTAKES["falls"])
    yield weights([-1000.0, -1001.0], 1, otherwise="exp underflows: shift by the running maximum")
    yield weights([-2e30], 1, otherwise=MISTAKES["from_finite"])
    thirds = torch.arange(1.0, 8.0, dtype=torch.float64) / 3  # no float32 holds them
    yield case(thirds, torch.outer(thirds, thirds), 3, on="scores = 1/3, 2/3, … 7/3 in float64, block = 3", edge="float64")
    draw = generator()
    for S, D, block in ((1, 1, 4), (33, 4, 8), (100, 5, 16), (64, 64, 64)):
        for words, s in vectors(draw, S):
            v = torch.randn(S, D, generator=draw, dtype=torch.float64)
            on = f"{words}, S = {S}, D = {D}, block = {block}"
            yield case(s.float(), v.float(), block, on=on, fresh=True)
            yield case(s, v, block, on=f"{on}, float64", fresh=True, edge="float64")
    yield weights([1.0, -INF], 1, edge="inf")
    yield weights([-INF, 1.0], 1, edge="inf")
    yield weights([1.0, -INF, 2.0], 1, edge="inf")
    yield weights([1.0, -INF, 2.0], 2, edge="inf")
    for words, s in masked_vectors(draw, 33):
        yield case(s.float(), torch.randn(33, 4, generator=draw), 8, on=f"{words}, S = 33, D = 4, block = 8", fresh=True, edge="inf")
    yield case(torch.tensor([-INF, -INF]), torch.ones(2, 2), 1, on="scores = [−inf, −inf], block = 1", edge="nothing")
    yield case(torch.zeros(0), torch.ones(0, 2), 1, on="no key at all (S = 0)", edge="nothing")
    scores, values = torch.randn(10, generator=draw), torch.randn(10, 6, generator=draw)
    for words, view in views(scores):
        yield case(view, values, 4, on=f"scores are {words}", fresh=True)
    for words, view in views(values):
        yield case(scores, view, 4, on=f"values are {words}", fresh=True)


EXERCISE = Exercise(
    id="1.5",
    task="Compute one query's attention and its log-sum-exp in one pass over blocks of keys.",
    conditions=CONDITIONS,
    hints=(
        "acc = Σ exp(s − m) · value is measured from m, and so is l. What must you do to both when the maximum grows?",
        "In each block find m_new, p = exp(s − m_new) and alpha = exp(m − m_new). Multiply l and acc by alpha, then add p.sum() to l and p @ v to acc. "
        "Divide once, after the last block. Skip a block while m_new is −inf, and test whether l is 0 before you divide by it.",
    ),
    solution=running_weighted_sum,
    reasoning="acc and l are sums of the same terms exp(s − m), and acc weights them with the values. So the same alpha moves both to the new maximum, and "
    "their ratio is right at the end. lse = m + log l is the logarithm of Σ exp(scores). With no key l stays 0, so o = 0 and lse = −inf.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("o", "lse"),
    tolerance=tolerance,
)
