"""Exercise 1.3, merge."""

import math

import torch

from fa_tutorial.exercises import harness
from fa_tutorial.exercises.harness import INF, Exercise, case, exp32, generator, vectors, views


def merge(m_a, l_a, m_b, l_b):
    """(m, l) of two parts together; (−inf, 0) is the empty part.

    Numbers, or tensors whose shapes broadcast.
    """
    m_a, l_a, m_b, l_b = (torch.as_tensor(x) for x in (m_a, l_a, m_b, l_b))
    m = torch.maximum(m_a, m_b)
    shift = torch.where(m == -math.inf, 0.0, m)  # two empty parts: exp(−inf − 0) is 0, not NaN
    return m, l_a * torch.exp(m_a - shift) + l_b * torch.exp(m_b - shift)


MISTAKES = {
    "swapped": "m and l are swapped: return (m, l)",
    "added": "the maxima are added: the maximum of both parts is the larger one",
    "averaged": "the maxima are averaged: the maximum of both parts is the larger one",
    "smaller": "m is the smaller of the two maxima",
    "no_rescale": "the part with the smaller maximum is not rescaled before the sums are added",
    "crossed": "the part with the larger maximum is rescaled: rescale the other one",
    "wrong_sign": "the correction has the wrong sign: the exponent is m_part − m, which is never positive",
    "both": "both parts get the same correction: each has its own maximum",
    "larger_alone": "the part with the smaller maximum is missing from l",
    "to_zero": "the sums are measured from 0, not from the new maximum",
    "mean": "the sums are averaged: measure both from one maximum, then add them",
    "rescaled_mean": "the rescaled sums are averaged: add them",
    "lse": "that is m + log l: return l",
    "first_only": "only the first part is ever rescaled, and here the second one has the smaller maximum",
    "to_second": "the first part is always rescaled to the second part's maximum, and here its own is larger",
    "equal_first": "two equal maxima: the first part is missing from l",
    "equal_second": "two equal maxima: the second part is missing from l",
    "equal_twice": "two equal maxima: one part is counted twice and the other not at all",
    "late": "exp overflows or underflows on the way: only differences of maxima may be exponents",
    "one_maximum": "one maximum is taken over all elements: each has its own",
    "nan": "two empty parts give NaN: −inf − (−inf) is NaN",
    "one_guard": "one element is two empty parts and gets NaN, because another is not: guard each element by itself (torch.where)",
    "finite": "two empty parts give an empty part, (−inf, 0): their maximum is −inf, not a finite number",
}

CONDITIONS = {
    "empty": "an empty part (−inf, 0) leaves the other part as it is",
    "two_empty": "two empty parts give an empty part, (−inf, 0)",
    "broadcast": "shapes broadcast",
    "numbers": "Python numbers work as well as tensors",
}


def twin(m_a, l_a, m_b, l_b, mistake=None):
    m_a, l_a, m_b, l_b = torch.broadcast_tensors(*(torch.as_tensor(x, dtype=torch.float64) for x in (m_a, l_a, m_b, l_b)))
    m, low = torch.maximum(m_a, m_b), torch.minimum(m_a, m_b)
    shown = {"added": m_a + m_b, "averaged": (m_a + m_b) / 2, "smaller": low, "one_maximum": m.max().expand(m.shape),
             "finite": m.nan_to_num(neginf=torch.finfo(torch.float32).min)}.get(mistake, m)  # fmt: skip
    shift = shown if mistake in ("nan", "finite") else shown.masked_fill(shown == -INF, 0.0)
    shift = m if mistake == "one_guard" and (m > -INF).any() else shift
    a, b = exp32(m_a - shift), exp32(m_b - shift)
    a, b = {
        "no_rescale": (1.0, 1.0),
        "crossed": (b, a),
        "wrong_sign": (exp32(shift - m_a), exp32(shift - m_b)),
        "both": (exp32(low - m), exp32(low - m)),
        "larger_alone": (m_a > m_b, m_b >= m_a),
        "to_zero": (exp32(m_a), exp32(m_b)),
        "mean": (0.5, 0.5),
        "rescaled_mean": (a / 2, b / 2),
        "first_only": (a, 1.0),
        "to_second": (exp32(m_a - m_b), 1.0),
        "equal_first": (torch.where(m_a == m_b, 0.0, a), b),
        "equal_second": (a, torch.where(m_a == m_b, 0.0, b)),
        "equal_twice": (torch.where(m_a == m_b, 0.0, a), torch.where(m_a == m_b, 2.0, b)),
        "late": (exp32(m_a) * exp32(-shift), exp32(m_b) * exp32(-shift)),
    }.get(mistake, (a, b))
    l = l_a * a + l_b * b
    return (l, shown) if mistake == "swapped" else (shown, shown + l.log() if mistake == "lse" else l)


def tolerance(args, part):
    """m is one of the inputs, so nothing rounds it; l may be a float32 sum."""
    return (1e-6, 0.0) if part == "m" else harness.tolerance(args, part, torch.float32)


def inputs():
    def numbers(*values, **options):
        return case(*(torch.tensor(value) for value in values), **options)

    yield numbers(1.0, 2.0, 2.0, 3.0, otherwise="move each l from its own maximum to the common one, then add")
    yield numbers(2.0, 3.0, 1.0, 2.0, otherwise="either part may hold the larger maximum: merge must be commutative")
    yield numbers(1.0, 2.0, 1.0, 3.0, otherwise="two equal maxima: both parts count in full")
    yield numbers(1000.0, 1.0, 1001.0, 1.0, otherwise="exp overflows on the way: no exponent may be positive, not even for a while")
    yield numbers(-1000.0, 1.0, -1001.0, 1.0, otherwise="exp underflows on the way: only differences of maxima may be exponents")
    ones = torch.ones(2)
    on = "m_a = [1, 4], m_b = [3, 2], every l = 1"
    yield case(
        torch.tensor([1.0, 4.0]), ones, torch.tensor([3.0, 2.0]), ones, on=on, otherwise="each element of the tensors is a pair of its own"
    )
    draw = generator()
    for words, x in vectors(draw, 3, 5, 2):
        l = 1 + torch.rand(3, 5, 2, generator=draw)
        yield case(x[..., 0].float(), l[..., 0], x[..., 1].float(), l[..., 1], on=f"(m, l) of shape (3, 5) from {words}", fresh=True)
    yield numbers(-INF, 0.0, 1.0, 2.0, edge="empty")
    yield numbers(1.0, 2.0, -INF, 0.0, edge="empty")
    yield numbers(-INF, 0.0, -INF, 0.0, edge="two_empty")
    maxima, sums = torch.tensor([-INF, 1.0]), torch.tensor([0.0, 2.0])
    yield case(maxima, sums, maxima, sums, edge="two_empty")
    row, column = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([[0.0], [5.0]])
    yield case(row, row, column, column + 1, on="m_a of shape (3,), m_b of shape (2, 1)", edge="broadcast")
    yield case(1.0, 2.0, 2.0, 3.0, on="merge(1.0, 2.0, 2.0, 3.0) with floats", edge="numbers")
    m, l = torch.randn(4, 6, generator=draw), 1 + torch.rand(4, 6, generator=draw)
    for words, view in views(m):
        yield case(view, l, m.flip(0), l, on=f"m_a is {words}", fresh=True)


EXERCISE = Exercise(
    id="1.3",
    task="Merge the pairs (m, l) of two parts into the pair of the whole.",
    conditions=CONDITIONS,
    hints=(
        "The whole has one maximum. What is each part's sum when you measure it from that maximum?",
        "l = l_a·exp(m_a − m) + l_b·exp(m_b − m), with torch.as_tensor around the four arguments so that numbers work too. Two empty parts have "
        "m = −inf, and −inf − (−inf) is NaN: let torch.where replace a −inf maximum by 0 before you subtract it.",
    ),
    solution=merge,
    reasoning="We move each sum from its own maximum to the common one, then add them. An empty part has m = −inf, so its factor is exp(−inf) = 0. Where "
    "both parts are empty we subtract 0 instead of −inf, so the exponent stays −inf and gives 0 instead of NaN.",
    more="The package's version, softmax.merge, turns Python numbers into float64 tensors.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("m", "l"),
    tolerance=tolerance,
)
