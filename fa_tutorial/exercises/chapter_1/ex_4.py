"""Exercise 1.4, softmax_in_blocks."""

import math

import torch

from fa_tutorial.exercises import harness, watch
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator, masked_vectors, vectors, views
from fa_tutorial.exercises.running import INF


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


FACTOR = " * torch.exp(m_block - m)"
OF_PART, OF_ROW = "part.amax(dim=-1, keepdim=True)", "torch.cat(maxima, dim=-1).amax(dim=-1, keepdim=True)"
GUARD = "shift = torch.where(m_block == -math.inf, 0.0, m_block)"
MISTAKES = {
    "that is the shortcut itself: multiply each block's numerators by exp(m_block − m) before you add them up": (FACTOR, ""),
    "each block is normalised on its own: the sum belongs to the whole row": [
        ("torch.exp(part - shift)", "torch.softmax(part, -1)"), (FACTOR, ""), ("p / p.sum(dim=-1, keepdim=True)", "p")],
    "each block is divided by its own sum before the correction: correct the numerators, then divide by the sum of all": (
        "torch.exp(part - shift)", "torch.exp(part - shift) / torch.exp(part - shift).sum(dim=-1, keepdim=True)"),
    "the correction has the wrong sign: a block with a smaller maximum must shrink": ("m_block - m)", "m - m_block)"),
    "the numerators are not divided by their sum": ("p / p.sum(dim=-1, keepdim=True)", "p"),
    "one sum is taken over the whole tensor: each row has its own": ("p.sum(dim=-1, keepdim=True)", "p.sum()"),
    "one maximum is taken over the whole tensor: each row has its own": (OF_ROW, "torch.cat(maxima, dim=-1).max()"),
    "m is the last block's maximum: it must be the row's": (OF_ROW, "maxima[-1]"),
    "every numerator ends up measured from the first block's maximum, and the row's may be far above it": (OF_ROW, "maxima[0]"),
    "exp overflows: x must be shifted by its block's maximum before exp": [("torch.exp(part - shift)", "torch.exp(part)"), (FACTOR, "")],
    "a block of only −inf gives NaN: its own maximum is −inf, and −inf − (−inf) is NaN": (GUARD, "shift = m_block"),
    "one row's block is only −inf and gets NaN, because another row's is not: guard each row by itself (torch.where)": (
        GUARD, "shift = 0.0 if (m_block == -math.inf).all() else m_block"),
}  # fmt: skip

CONDITIONS = {
    "inf": "a −inf entry gets the weight 0, and a block of only −inf changes nothing, wherever it stands",
    "float64": "a float64 input gives a result with float64's accuracy",
}


def truth(x, block):
    return torch.softmax(x.double(), -1)


def tolerance(args, part):
    """The usual one, but a single huge element rounds nothing."""
    rtol, atol = harness.tolerance(args, part)
    return min(rtol, 0.1), atol


def inputs():
    yield case(torch.tensor([1.0, 2.0]), 2, otherwise="one block: y = exp(x − m) / l")
    yield case(torch.tensor([1.0, 2.0]), 1, otherwise="two blocks: the weights need the m and l of the whole row")
    yield case(torch.tensor([2.0, 1.0]), 1, otherwise="the maximum is in the first block, and the second one must not change it")
    two = "two blocks of two: all four numerators must be measured from the row's maximum"
    yield case(torch.tensor([1.0, 2.0, 3.0, 5.0]), 2, otherwise=two)
    yield case(torch.tensor([1.0, 2.0, 3.0]), 2, otherwise="the last block may be ragged: 3 columns are a block of 2 and a block of 1")
    yield case(torch.tensor([1.0, 2.0]), 8, otherwise="a block may be longer than the row")
    rows = "two rows: each is cut along the last dimension, and has its own m and l"
    yield case(torch.tensor([[1.0, 2.0, 4.0], [6.0, 5.0, 3.0]]), 2, otherwise=rows)
    yield case(torch.tensor([1000.0, 1001.0]), 1, otherwise="exp(1000) overflows: x must be shifted by a maximum before exp")
    yield case(torch.tensor([1000.0, 0.0]), 1, otherwise="the maximum is far above the other block: measure both from it")
    above = "the second block is far above the first: exp overflows where it is measured from the first block's maximum"
    yield case(torch.tensor([0.0, 1000.0]), 1, otherwise=above)
    yield case(torch.tensor([-2e30]), 1, otherwise="an element may be any finite number, however low, and counts like any other")
    yield case(torch.tensor([-1000.0, -1001.0]), 1, otherwise="exp(−1000) is 0: measure each numerator from a maximum of its row")
    apart = "two rows far apart: each is measured from its own maximum"
    yield case(torch.tensor([[0.0, 0.0], [1000.0, 1000.0]]), 1, otherwise=apart)
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
        "A block's numerators are measured from its own maximum m_block, and they must be measured from m, the maximum of the row. Which "
        "single factor moves them all?",
        "Keep each block's maximum m_block, of shape (..., 1), and its numerators. When you know m, multiply the numerators by "
        "exp(m_block − m), join them with torch.cat, and divide by their sum. In a block of only −inf subtract 0 instead of the maximum, "
        "with torch.where as in 1.3.",
    ),
    solution=softmax_in_blocks,
    reasoning="exp(x − m_block)·exp(m_block − m) = exp(x − m), so one factor per block puts all numerators on one scale. A block of only "
    "−inf has numerators 0, because we subtract 0 there, and its factor exp(−inf) is 0 too.",
    more=(
        "The package's version, softmax.online_softmax, keeps only the pairs: it merges them in a first pass, and reads x again in a "
        "second one."
    ),
    inputs=inputs,
    truth=truth,
    rule="the weights are those of the whole row's softmax, whatever the blocks",
    mistakes=MISTAKES,
    tolerance=tolerance,
    watch=watch.BlocksOfRows,
)
