import math

import torch
from torch.overrides import TorchFunctionMode

from fa_tutorial.exercises import harness
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator, masked_vectors, vectors, views
from fa_tutorial.exercises.running import INF


def online_normalizer(x):
    """(m, l) of a vector x in one pass: m = max x, l = Σ exp(x − m)."""
    m, l = -math.inf, 0.0
    for value in x.tolist():
        if value == -math.inf:
            continue  # it adds nothing, and −inf − (−inf) would be NaN
        m_new = max(m, value)
        l = l * math.exp(m - m_new) + math.exp(value - m_new)
        m = m_new
    return m, l


TERM, RESCALED = "math.exp(value - m_new)", "l * math.exp(m - m_new)"
MISTAKES = {
    "your l is not rescaled when the maximum grows": (RESCALED, "l"),
    "l is NaN from the first element on: m is −∞ there and l is 0, and 0 · ∞ is NaN, so l takes the factor exp(m − m_new), which is 0": (
        RESCALED, "l * math.exp(m_new - m)"),
    "the exponentials are not shifted by m": [(f"{RESCALED} + {TERM}", "l + math.exp(value)")],
    "the new element is measured from the old maximum": (TERM, "math.exp(value - m if l else 0.0)"),
    "the new element is measured from the old maximum, which is −inf at first, so that l is inf: exp(x − m_new)": (TERM, "math.exp(value - m)"),
    "the element that makes the maximum grow is not counted: it adds exp(0) = 1": (
        f"+ {TERM}", f"+ ({TERM} if m == m_new or not l else 0.0)"),
    "m and l are returned in the wrong order: return (m, l)": ("return m, l", "return l, m"),
    "your return stands inside the loop, which ends with the first element": ("return m, l", "    return m, l"),
    "m starts at 0, above every element: start at −inf": ("m, l = -math.inf", "m, l = 0.0"),
    "a −inf entry gives NaN while m_new is −inf: x − m_new is −inf − (−inf) in the new term, too": [
        ("        if value == -math.inf:\n            continue  # it adds nothing, and −inf − (−inf) would be NaN\n", ""),
        (RESCALED, "(l * math.exp(m - m_new) if m > -math.inf else 0.0)")],
}  # fmt: skip

CONDITIONS = {
    "inf": "a −inf entry adds nothing, wherever it stands",
    "all_inf": "a vector of only −inf gives (−inf, 0)",
    "empty": "an empty vector gives (−inf, 0)",
}


def truth(x):
    m = max(x.double().tolist(), default=-INF)
    return m, torch.exp(x[x > -INF].double() - m).sum()


def tolerance(args, part):
    """m is one of the inputs, so nothing rounds it; l may be a float32 sum."""
    return (1e-6, 0.0) if part == "m" else harness.tolerance(args, part, torch.float32)


LENGTH = 40  # of the vector whose passes are counted


class Passes(TorchFunctionMode):
    """Counts how often a vector is gone through: a loop over it or over its list, or an operation on all of it."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result, passes = func(*args, **(kwargs or {})), self
        name = getattr(func, "__name__", "")
        if name != "tolist":
            whole = any(isinstance(arg, torch.Tensor) and arg.numel() == LENGTH for arg in args)
            self.count += whole and name in ("unbind", "max", "amax", "sub", "exp", "logsumexp")
            return result

        class Numbers(list):
            def __iter__(self):
                passes.count += 1
                return super().__iter__()

        return Numbers(result)


def goes_twice(answer):
    """Why a right result isn't enough: the answer goes through x more than once."""
    with Passes() as passes:
        answer(torch.arange(float(LENGTH)))
    return "x is gone through more than once: find m and l in the same loop" if passes.count > 1 else ""


def inputs():
    first = "m = max x, and l is the sum of exp(x − m): the maximum itself adds exp(0) = 1, and a correction multiplies only the old sum"
    yield case(torch.tensor([3.0, 0.0, 1.0]), otherwise=first)
    growing = "when the maximum grows, rescale the sum so far: it shrinks"
    for x in ([1.0, 2.0], [1.0, 1.0, 2.0, 4.0, 3.0]):
        yield case(torch.tensor(x), otherwise=growing)
    yield case(torch.tensor([-2.0, -1.0]), otherwise="all elements may be negative: m is their maximum, and l is measured from it")
    high = "exp(1000) overflows: no exponent may be positive, not even for a while"
    yield case(torch.tensor([1000.0, 1001.0]), otherwise=high)
    yield case(torch.tensor([0.0, 1000.0]), on="x = [0, 1000]", otherwise=high, fresh=True)  # fresh: math.exp raises, torch.exp doesn't
    yield case(torch.tensor([-1000.0, -1001.0]), otherwise="exp(−1000) is 0: measure each term from the running maximum")
    yield case(torch.tensor([-1e30]), otherwise="an element may be any finite number, however low, and counts like any other")
    draw = generator()
    for n in (2, 33, 128):
        for words, x in vectors(draw, n):
            yield case(x.float(), on=f"{words}, n = {n}", fresh=True)
    yield case(torch.tensor([1.0, -INF]), edge="inf")
    yield case(torch.tensor([-INF, 1.0]), edge="inf")
    yield case(torch.tensor([1.0, -INF, 2.0]), edge="inf")
    yield case(torch.tensor([-INF, -INF]), edge="all_inf")
    yield case(torch.zeros(0), on="an empty vector", edge="empty")
    for words, x in masked_vectors(draw, 33):
        yield case(x.float(), on=f"{words}, n = 33", fresh=True, edge="inf")
    for words, view in views(torch.randn(40, generator=draw)):
        yield case(view, on=f"{words}, n = 40", fresh=True)


EXERCISE = Exercise(
    task="Find m, the maximum, and l, the sum of exp(x − m), in one pass over a vector.",
    conditions=CONDITIONS,
    hints=(
        "Keep m and l for the elements you have seen. When a larger element arrives, every term in l is still measured from the old m. "
        "Which single factor corrects them all?",
        "For each x, let m_new = max(m, x), multiply l by exp(m − m_new), and add exp(x − m_new). Start with m = −inf and l = 0, and skip "
        "an x of −inf, because −inf − (−inf) is NaN.",
    ),
    solution=online_normalizer,
    reasoning="exp(x − m_new) = exp(x − m)·exp(m − m_new), so one factor moves the whole sum to the new maximum. The factor is 1 while "
    "the maximum stays the same. We skip a −inf entry: it adds nothing, and before the first finite element −inf − (−inf) would give NaN.",
    inputs=inputs,
    truth=truth,
    rule="m is the maximum of x, and l is the sum of exp(x − m)",
    mistakes=MISTAKES,
    parts=("m", "l"),
    tolerance=tolerance,
    refused=goes_twice,
)
