"""Exercise 1.4, softmax_in_blocks."""

import math

import torch

from fa_tutorial.exercises import harness
from fa_tutorial.exercises.harness import INF, Exercise, case, exp32, generator, masked_vectors, vectors, views


def softmax_in_blocks(x, block):
    """Softmax over the last dimension of x: (..., n), in blocks that each subtract their own maximum."""
    numerators, maxima = [], []
    for part in x.split(block, dim=-1):
        m_block = part.amax(dim=-1, keepdim=True)
        shift = torch.where(m_block == -math.inf, 0.0, m_block)  # only −inf: the numerators are 0
        numerators.append(torch.exp(part - shift))
        maxima.append(m_block)

    m = torch.cat(maxima, dim=-1).amax(dim=-1, keepdim=True)
    corrected = [p * torch.exp(m_block - m) for p, m_block in zip(numerators, maxima, strict=True)]
    p = torch.cat(corrected, dim=-1)
    return p / p.sum(dim=-1, keepdim=True)


MISTAKES = {
    "not_divided": "exp(x − m) is not divided by l",
    "exp_alone": "nothing is shifted or divided: y = exp(x − m) / l",
    "log": "that is the logarithm of softmax",
    "m_never": "m is still −inf when the weights are computed",
    "wrong_sign": "the exponent has the wrong sign: it is x − m, which is never positive",
    "running_maximum": "each block's numerators are measured from the running maximum of its time: bring them all to the row's maximum, m",
    "first_maximum": "every block is measured from the first block's maximum, and a later block's may be far above it: exp overflows",
    "from_finite": "a finite number stands in for −inf, and elements may be smaller: start m at −inf",
    "by_itself": "each block is normalised on its own: m and l belong to the whole row",
    "shortcut": "that is the shortcut itself: multiply each block's numerators by exp(m_block − m) before you add them up",
    "own_maximum": "the numerators are still measured from their own block's maximum: multiply each block's by exp(m_block − m)",
    "no_rescale": "your l is not rescaled when the maximum grows",
    "rescale_sign": "your l is rescaled with the wrong sign in the exponent",
    "last_block": "m and l are those of the last block: merge them with what came before",
    "first_block": "m and l are those of the first block: merge the others into them",
    "one_pass": "the first block is finished before the last one is seen, so its m and l are not final yet: finish after the loop",
    "new_rescaled": "a larger maximum shrinks the new block's sum too: shrink only what you summed before it",
    "old_maximum": "the new block's sum is measured from the old maximum",
    "own_sum": "your l adds the second block measured from its own maximum: measure it from the running maximum",
    "falls": "exp overflows: m must be the maximum of all blocks so far, so it never falls",
    "dropped": "the ragged last block is dropped: 3 columns are a block of 2 and a block of 1",
    "unwritten": "the ragged last block is never written: 3 columns are a block of 2 and a block of 1",
    "unsummed": "l leaves the ragged last block out",
    "zeros": "the ragged last block is filled up with zeros, and exp(0 − m) counts: fill with −inf",
    "one_row": "m and l are those of the whole tensor: each row has its own",
    "one_sum": "l is the sum of all rows: each row has its own",
    "columns": "the softmax runs down the columns: take it over the last dimension",
    "unshifted": "exp overflows: x must be shifted by the running maximum before exp",
    "from_zero": "exp underflows: m starts at 0, above every element",
    "stops": "a block of only −inf ends your loop, and the blocks after it are missing from l: skip it and go on",
    "skips_partly": "a block is left out of l although only some of its entries are −inf, and the others count",
    "skips_rows": "a block that is only −inf in one row is left out in every row: each row has its own",
    "one_guard": "one row sees only −inf at first and gets NaN, because another row sees more: guard each row by itself (torch.where)",
    "nan_block": "a block of only −inf gives NaN: its own maximum is −inf, and −inf − (−inf) is NaN",
    "nan_first": "a first block of only −inf gives NaN: m is still −inf then, and −inf − (−inf) is NaN",
}

CONDITIONS = {
    "inf": "a −inf entry gets the weight 0, and a block of only −inf changes nothing, wherever it stands",
    "float64": "a float64 input gives a result with float64's accuracy",
}


def _first_pass(parts, mistake):
    """The (m, l) before and after each block."""
    m = torch.full_like(parts[0][..., :1], {"from_zero": 0.0, "from_finite": -1e9}.get(mistake, -INF))
    l, steps = torch.zeros_like(m), []
    for part in parts:
        own = part.amax(-1, keepdim=True)
        if mistake == "stops" and (part == -INF).all() and (m > -INF).any():
            break
        if (mistake == "skips_partly" and (part == -INF).any()) or (mistake == "skips_rows" and (own == -INF).any()):
            continue
        m_new = own if mistake in ("last_block", "falls") else torch.maximum(m, own)
        bare = mistake == "nan_first" or (mistake == "one_guard" and (m_new > -INF).any())
        shift = m_new if bare else m_new.masked_fill(m_new == -INF, 0.0)
        alpha, new = exp32(m - shift), exp32(part - shift).sum(-1, keepdim=True)
        alpha, new = {
            "no_rescale": (1.0, new),
            "last_block": (0.0, new),
            "rescale_sign": (torch.where(m == -INF, 0.0, exp32(shift - m)), new),
            "new_rescaled": (alpha, new * torch.where(m == -INF, 1.0, alpha)),
            "old_maximum": (alpha, torch.where(m == -INF, new, exp32(part - m).sum(-1, keepdim=True))),
            "own_sum": (alpha, exp32(part - own).sum(-1, keepdim=True)),
            "nan_block": (alpha, exp32(part - own).sum(-1, keepdim=True) * exp32(own - shift)),
        }.get(mistake, (alpha, new))
        l, m = l * alpha + new, m_new
        steps.append((m, l))
    return steps or [(m, l)]


def _shortcut(parts):
    p = torch.cat([exp32(part - part.amax(-1, keepdim=True)) for part in parts], -1)
    return p / p.sum(-1, keepdim=True)


def _running_maximum(parts):
    tops = torch.cat([part.amax(-1, keepdim=True) for part in parts], -1).cummax(-1).values.split(1, -1)
    p = torch.cat([exp32(part - m) for part, m in zip(parts, tops, strict=True)], -1)
    return p / p.sum(-1, keepdim=True)


def twin(x, block, mistake=None):
    x = x.double()
    n = x.shape[-1]
    whole = max(n // block * block, min(n, block))  # without the ragged last block
    if mistake == "dropped":
        return torch.softmax(x[..., :whole], -1)
    seen = torch.nn.functional.pad(x, (0, -n % block)) if mistake == "zeros" else x[..., :whole] if mistake == "unsummed" else x
    steps = _first_pass(seen.split(block, -1), mistake)
    m, l = steps[0] if mistake == "first_block" else steps[-1]
    parts = x.split(block, -1)
    y = exp32(x - m) / l
    return {
        "not_divided": lambda: exp32(x - m),
        "exp_alone": lambda: exp32(x),
        "log": lambda: torch.log_softmax(x, -1),
        "m_never": lambda: torch.full_like(x, INF),
        "wrong_sign": lambda: torch.softmax(-x, -1),
        "by_itself": lambda: torch.cat([torch.softmax(part, -1) for part in parts], -1),
        "shortcut": lambda: _shortcut(parts),
        "running_maximum": lambda: _running_maximum(parts),
        "first_maximum": lambda: exp32(x - steps[0][0]) / exp32(x - steps[0][0]).sum(-1, keepdim=True),
        "own_maximum": lambda: torch.cat([exp32(part - part.amax(-1, keepdim=True)) / l for part in parts], -1),
        "one_pass": lambda: torch.cat([exp32(part - m) / l for part, (m, l) in zip(parts, steps, strict=True)], -1),
        "unwritten": lambda: torch.cat([y[..., :whole], 0 * y[..., whole:]], -1),
        "one_row": lambda: torch.softmax(x.flatten(), 0).view(x.shape),
        "one_sum": lambda: exp32(x - m) / l.sum(),
        "columns": lambda: torch.softmax(x, max(x.ndim - 2, 0)),
        "unshifted": lambda: exp32(x) / exp32(x).sum(-1, keepdim=True),
    }.get(mistake, lambda: y)()


def tolerance(args, part):
    """The usual one, but a single huge element rounds nothing."""
    rtol, atol = harness.tolerance(args, part)
    return min(rtol, 0.1), atol


def inputs():
    yield case(torch.tensor([1.0, 2.0]), 2, otherwise="one block: y = exp(x − m) / l")
    yield case(torch.tensor([1.0, 2.0]), 1, otherwise="two blocks: the weights need the m and l of the whole row")
    yield case(torch.tensor([2.0, 1.0]), 1, otherwise="the maximum is in the first block, and the second one must not change it")
    yield case(torch.tensor([1.0, 2.0, 3.0]), 2, otherwise="the last block may be ragged: 3 columns are a block of 2 and a block of 1")
    yield case(torch.tensor([1.0, 2.0]), 8, otherwise="a block may be longer than the row")
    yield case(torch.tensor([[1.0, 2.0, 4.0], [6.0, 5.0, 3.0]]), 2, otherwise="two rows: each has its own m and l")
    yield case(torch.tensor([1000.0, 1001.0]), 1, otherwise=MISTAKES["unshifted"])
    yield case(torch.tensor([1000.0, 0.0]), 1, otherwise=MISTAKES["falls"])
    yield case(torch.tensor([0.0, 1000.0]), 1, otherwise=MISTAKES["first_maximum"])
    yield case(torch.tensor([-2e30]), 1, otherwise=MISTAKES["from_finite"])
    yield case(torch.tensor([-1000.0, -1001.0]), 1, otherwise="exp underflows: shift by the running maximum")
    yield case(torch.tensor([[0.0, 0.0], [1000.0, 1000.0]]), 1, otherwise="row 0 underflows (it would if one m were taken for all rows)")
    draw = generator()
    for shape, block in (((1,), 4), ((5, 33), 8), ((2, 3, 17), 17), ((2, 2, 32), 16)):
        for words, x in vectors(draw, *shape):
            yield case(x.float(), block, on=f"{words}, shape {shape}, block = {block}", fresh=True)
            yield case(x, block, on=f"{words}, shape {shape}, block = {block}, float64", fresh=True, edge="float64")
    yield case(torch.arange(1.0, 7.0, dtype=torch.float64) / 3, 4, on="x = 1/3, 2/3, … 2 in float64, block = 4", edge="float64")
    yield case(torch.tensor([1.0, -INF]), 1, edge="inf")
    yield case(torch.tensor([-INF, 1.0]), 1, edge="inf")
    yield case(torch.tensor([1.0, -INF, 2.0]), 1, edge="inf")
    yield case(torch.tensor([1.0, -INF, 2.0]), 2, edge="inf")
    yield case(torch.tensor([[1.0, -INF], [3.0, 4.0]]), 1, edge="inf")
    yield case(torch.tensor([[-INF, 1.0], [3.0, 4.0]]), 1, edge="inf")
    for words, x in masked_vectors(draw, 5, 33):
        yield case(x.float(), 8, on=f"{words}, shape (5, 33), block = 8", fresh=True, edge="inf")
    for words, view in views(torch.randn(3, 4, 10, generator=draw)):
        yield case(view, 4, on=f"{words}, shape (3, 4, 10), block = 4", fresh=True)


EXERCISE = Exercise(
    id="1.4",
    task="Repair the shortcut: write the softmax over the last dimension in blocks that each subtract their own maximum.",
    conditions=CONDITIONS,
    hints=(
        "A block's numerators are measured from its own maximum m_block, and they must be measured from m, the maximum of the row. Which single "
        "factor moves them all?",
        "Keep each block's maximum m_block, of shape (..., 1), and its numerators. When you know m, multiply the numerators by exp(m_block − m), join "
        "them with torch.cat, and divide by their sum. In a block of only −inf subtract 0 instead of the maximum, with torch.where as in 1.3.",
    ),
    solution=softmax_in_blocks,
    reasoning="exp(x − m_block)·exp(m_block − m) = exp(x − m), so one factor per block puts all numerators on one scale. A block of only −inf has "
    "numerators 0, because we subtract 0 there, and its factor exp(−inf) is 0 too.",
    more="The package's version, softmax.online_softmax, keeps only the pairs: it merges them in a first pass, and reads x again in a second one.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    tolerance=tolerance,
)
