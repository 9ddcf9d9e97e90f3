import math

import torch

from fa_tutorial.exercises import harness
from fa_tutorial.exercises.harness import ANYTHING, Exercise, case
from fa_tutorial.exercises.inputs import generator, vectors, views
from fa_tutorial.exercises.running import INF, show


def softmax_step(s, m, l):
    """A tile of scores joins the running m and l of its rows. Returns (p, m_new, l_new, alpha)."""
    m_new = torch.maximum(m, s.amax(dim=-1))
    shift = torch.where(m_new == -math.inf, 0.0, m_new)  # −inf − (−inf) would be NaN
    p = torch.exp(s - shift[..., None])
    alpha = torch.exp(m - shift)
    l_new = alpha * l + p.sum(dim=-1)
    return p, m_new, l_new, alpha


M, SHIFT = "torch.maximum(m, s.amax(dim=-1))", "torch.where(m_new == -math.inf, 0.0, m_new)"
P, ALPHA, L = "p = torch.exp(s - shift[..., None])", "alpha = torch.exp(m - shift)", "alpha * l + p.sum(dim=-1)"
MISTAKES = {
    "your l is not rescaled when the maximum grows": (L, "l + p.sum(dim=-1)"),
    "alpha is inverted: it is exp(m − m_new), which is at most 1": (ALPHA, "alpha = torch.exp(shift - m)"),
    "the new block's sum is rescaled as well: multiply by alpha only what was summed before it": (L, "alpha * (l + p.sum(dim=-1))"),
    "m_new is the block's own maximum: the running one never falls": (M, "s.amax(dim=-1)"),
    "p is summed along the wrong dimension: a row's sum runs over its keys, dim=-1": (L, "alpha * l + p.sum(dim=-2)"),
    "one maximum is taken over the whole tile: each row has its own": (M, "torch.maximum(m, s.max())"),
    "p is divided by its sum: the division waits until every block has been seen": (
        "    return p, m_new", "    p = p / p.sum(dim=-1, keepdim=True)\n    return p, m_new"),
    "a row that has seen nothing gives NaN: m_new is −inf, and −inf − (−inf) is NaN": (SHIFT, "m_new"),
    "alpha is NaN in a row that has seen nothing, and so is l: there m − m_new is −inf − (−inf), as s − m_new was for p": (
        ALPHA, "alpha = torch.exp(m - m_new)"),
}  # fmt: skip

CONDITIONS = {
    "hidden": "a block that is hidden from a row leaves its m and l as they are, and its p is 0",
    "unseen": "a row that has seen nothing keeps m = −inf and l = 0, and its p is 0",
    "float64": "a float64 input gives a result with float64's accuracy",
    "views": "s, m and l may be views with any strides: no .view",
}


def truth(s, m, l):
    s, m, l = s.double(), m.double(), l.double()
    m_new = torch.maximum(m, s.amax(-1))
    shift = m_new.masked_fill(m_new == -INF, 0.0)
    p, alpha = torch.exp(s - shift[..., None]), torch.exp(m - shift)
    return p, m_new, alpha * l + p.sum(-1), alpha.masked_fill(m_new == -INF, ANYTHING)  # it multiplies 0


def tolerance(args, part):
    """The inputs' own, but at most 0.1 of a number: a single huge score rounds nothing."""
    rtol, atol = harness.tolerance(args, part)
    return min(rtol, 0.1), atol


def inputs():
    def step(s, m, l, otherwise="", **options):
        s, m, l = torch.tensor(s), torch.tensor(m), torch.tensor(l)
        return case(s, m, l, on=f"s = {show(s)}, m = {show(m)}, l = {show(l)}", otherwise=otherwise, **options)

    yield step([[1.0, 3.0]], [-INF], [0.0], "a first block: p = exp(s − m_new), l_new is the sum of p, and alpha = exp(−∞) = 0")
    yield step([[2.0]], [1.0], [2.0], "the maximum grows: l and whatever was summed before must be rescaled to it")
    yield step([[1.0]], [3.0], [2.0], "the maximum was seen before: the new block is measured from it, and alpha is 1")
    yield step([[1.0, 2.0], [4.0, 6.0]], [3.0, 5.0], [2.0, 1.0], "a square tile: a row's maximum and sum run over its keys")
    yield step([[1000.0, 1001.0]], [999.0], [1.0], "exp(1000) overflows: measure every exponent from m_new")
    yield step([[-2e30]], [-INF], [0.0], "a score may be any finite number, however low: shift by m_new wherever it isn't −∞")
    draw = generator()
    for shape in ((1, 1), (2, 3, 4, 8)):
        for words, s in vectors(draw, *shape):
            m, l = s[..., 0] + torch.randn(shape[:-1], generator=draw), 1 + torch.rand(shape[:-1], generator=draw)
            yield case(s.float(), m.float(), l, on=f"{words}, s of shape {shape}", fresh=True)
    thirds = torch.arange(1.0, 7.0, dtype=torch.float64).view(2, 3) / 3  # no float32 holds most of them
    yield case(thirds, thirds[:, 0] / 3, thirds[:, 1], on="s = [[1/3, 2/3, 1], [4/3, 5/3, 2]] in float64", edge="float64")
    yield step([[-INF, -INF]], [2.0], [3.0], edge="hidden")
    apart = "one row has seen nothing, the other has: tell them apart row by row"
    yield step([[-INF, -INF], [1.0, 2.0]], [-INF, 0.0], [0.0, 1.0], apart, edge="unseen")
    m = torch.randn(4, 3, generator=draw).T
    for words, s in views(torch.randn(3, 4, 6, generator=draw)):
        yield case(s, m, m.abs() + 1, on=f"{words}, s of shape (3, 4, 6)", fresh=True, edge="views")


EXERCISE = Exercise(
    task="Let a tile of scores join the running maximum and sum of its rows.",
    conditions=CONDITIONS,
    hints=(
        "It is (1.10) for many rows at once. By which factor must you multiply what was summed before, and which tensors have one number "
        "per row?",
        "m_new is the larger of m and s.amax(dim=-1), p = exp(s − m_new[..., None]), alpha = exp(m − m_new), l_new = alpha · l + "
        "p.sum(dim=-1).",
        "A row that has seen nothing has m_new = −inf, and −inf − (−inf) is NaN. Shift such rows by 0 instead; torch.where decides row by "
        "row.",
    ),
    solution=softmax_step,
    reasoning="p is measured from the new maximum, so alpha = exp(m − m_new) moves the old sum there as well. While the maximum stays, "
    "alpha is 1. The function returns alpha because acc needs the same factor. Rows that have seen nothing are shifted by 0 instead of "
    "−inf: exp(−inf − 0) gives 0 for p and alpha, and −inf − (−inf) would give NaN.",
    inputs=inputs,
    truth=truth,
    rule="m_new is the maximum of m and the row of s, p = exp(s − m_new), alpha = exp(m − m_new), l_new = alpha · l + Σ p",
    mistakes=MISTAKES,
    parts=("p", "m_new", "l_new", "alpha"),
    tolerance=tolerance,
)
