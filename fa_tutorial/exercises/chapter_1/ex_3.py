import math

import torch

from fa_tutorial.exercises import harness
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator, vectors
from fa_tutorial.exercises.running import INF


def merge(m_a, l_a, m_b, l_b):
    """(m, l) of two parts together; (−inf, 0) is the empty part.

    Numbers, or tensors whose shapes broadcast.
    """
    m_a, l_a, m_b, l_b = (torch.as_tensor(x) for x in (m_a, l_a, m_b, l_b))
    m = torch.maximum(m_a, m_b)
    shift = torch.where(m == -math.inf, 0.0, m)  # two empty parts: exp(−inf − 0) is 0, not NaN
    return m, l_a * torch.exp(m_a - shift) + l_b * torch.exp(m_b - shift)


A, B = "l_a * torch.exp(m_a - shift)", "l_b * torch.exp(m_b - shift)"
GUARD = "shift = torch.where(m == -math.inf, 0.0, m)"
MISTAKES = {
    "the part with the smaller maximum is not rescaled before the sums are added": (f"{A} + {B}", "l_a + l_b"),
    "both corrections have the wrong sign: the exponent is m_part − m, which is never positive": [
        ("m_a - shift", "shift - m_a"), ("m_b - shift", "shift - m_b")],
    "m and l are swapped: return (m, l)": (f"return m, {A} + {B}", f"return {A} + {B}, m"),
    "exp overflows or underflows on the way: only differences of maxima may be exponents": (
        f"{A} + {B}", "(l_a * torch.exp(m_a) + l_b * torch.exp(m_b)) / torch.exp(shift)"),
    "two empty parts give NaN: −inf − (−inf) is NaN": (GUARD, "shift = m"),
    "one element is two empty parts and gets NaN, because another is not: guard each element by itself (torch.where)": (
        GUARD, "shift = 0.0 if (m == -math.inf).all() else m"),
}  # fmt: skip


def truth(m_a, l_a, m_b, l_b):
    m_a, l_a, m_b, l_b = (torch.as_tensor(x, dtype=torch.float64) for x in (m_a, l_a, m_b, l_b))
    m = torch.maximum(m_a, m_b)
    return m, l_a * (m_a - m).exp().nan_to_num() + l_b * (m_b - m).exp().nan_to_num()


def inputs():
    def numbers(*values, **options):
        return case(*(torch.tensor(value) for value in values), **options)

    yield numbers(1.0, 2.0, 2.0, 3.0, otherwise="move each l from its own maximum to the common one, then add")
    yield numbers(2.0, 3.0, 1.0, 2.0, otherwise="either part may hold the larger maximum: merge must be commutative")
    yield numbers(1000.0, 1.0, 1001.0, 1.0, otherwise="exp(1000) overflows: no exponent may be positive, not even for a while")
    low = "a maximum may be any finite number, however low: it alone is subtracted"
    yield numbers(-2e4, 1.0, -2e4, 2.0, otherwise=low)
    maxima, ones = (torch.tensor([1.0, 4.0]), torch.tensor([3.0, 2.0])), torch.ones(2)
    yield case(maxima[0], ones, maxima[1], ones, otherwise="each element of the tensors is a pair of its own")
    for words, x in vectors(generator(), 3, 5, 2):
        m_a, m_b = x.float().unbind(-1)
        l = torch.arange(1.0, 16.0).view(3, 5)
        yield case(m_a, l, m_b, 1 / l, on=f"(m, l) of shape (3, 5) from {words}", fresh=True)
    yield numbers(-INF, 0.0, 1.0, 2.0, edge="empty")
    yield numbers(1.0, 2.0, -INF, 0.0, edge="empty")
    yield numbers(-2e30, 1.0, -INF, 0.0, otherwise=low, edge="empty")
    yield numbers(-INF, 0.0, -INF, 0.0, edge="two_empty")
    maxima, sums = torch.tensor([-INF, 1.0]), torch.tensor([0.0, 2.0])
    yield case(maxima, sums, maxima, sums, edge="two_empty")
    row, column = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([[0.0], [5.0]])
    yield case(row, row, column, column + 1, on="m_a of shape (3,), m_b of shape (2, 1)", edge="broadcast")
    yield case(1.0, 2.0, 2.0, 3.0, on="merge(1.0, 2.0, 2.0, 3.0) with floats", edge="numbers")
    thirds = torch.arange(1.0, 5.0, dtype=torch.float64) / 3
    yield case(*thirds, on="m_a, l_a, m_b, l_b = 1/3, 2/3, 1, 4/3 in float64", edge="float64")


EXERCISE = Exercise(
    task="Merge the pairs (m, l) of two parts into the pair of the whole.",
    conditions={
        "empty": "an empty part (−inf, 0) leaves the other part as it is",
        "two_empty": "two empty parts give an empty part, (−inf, 0)",
        "broadcast": "shapes broadcast",
        "numbers": "Python numbers work as well as tensors",
        "float64": "float64 tensors give a result with float64's accuracy",
    },
    hints=(
        "The whole has one maximum. What is each part's sum when you measure it from that maximum?",
        "l = l_a·exp(m_a − m) + l_b·exp(m_b − m), with torch.as_tensor around the four arguments so that numbers work too. Two empty "
        "parts have m = −inf, and −inf − (−inf) is NaN: let torch.where replace a −inf maximum by 0 before you subtract it.",
    ),
    solution=merge,
    reasoning="We move each sum from its own maximum to the common one, then add them. An empty part has m = −inf, so its factor is "
    "exp(−inf) = 0. Where both parts are empty we subtract 0 instead of −inf, so the exponent stays −inf and gives 0 instead of NaN.",
    more="The package's version, softmax.merge, turns Python numbers into float64 tensors.",
    inputs=inputs,
    truth=truth,
    rule="m is the larger maximum, and l is both sums, each moved from its own maximum to m",
    mistakes=MISTAKES,
    parts=("m", "l"),
    tolerance=lambda args, part: (min((own := harness.tolerance(args, part))[0], 0.1), own[1]),  # a huge maximum rounds nothing
)
