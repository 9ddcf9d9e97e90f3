import math

import torch
from torch.overrides import TorchFunctionMode

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator, vectors
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
    "the exponentials are not shifted by m": (f"{RESCALED} + {TERM}", "l + math.exp(value)"),
    "the new element is measured from the old maximum, which is −inf at first, so that l is inf: exp(x − m_new)": (TERM, "math.exp(value - m)"),
    "m and l are returned in the wrong order: return (m, l)": ("return m, l", "return l, m"),
    "m starts at 0, above every element: start at −inf": ("m, l = -math.inf", "m, l = 0.0"),
    "a −inf entry gives NaN while m_new is −inf: −inf − (−inf) is NaN": (
        "        if value == -math.inf:\n            continue  # it adds nothing, and −inf − (−inf) would be NaN\n", ""),
}  # fmt: skip


def truth(x):
    m = max(x.double().tolist(), default=-INF)
    return m, torch.exp(x[x > -INF].double() - m).sum()


def goes_twice(answer):
    """Why a right result isn't enough: the answer goes through x, its list, or a tensor as long more than once."""
    x, passes, at = torch.arange(40.0), [], 0

    class Number(float):
        def __sub__(self, other):
            if self < at - 1:  # the maximum so far is one behind, at most
                passes.append("a list")
            return float(self) - other

    class Numbers(list):
        def __iter__(self):
            nonlocal at
            passes.append("a loop")
            for at in super().__iter__():
                yield Number(at)

    class Passes(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            name = getattr(func, "__name__", "")
            if name in ("unbind", "max", "amax", "sub", "exp", "logsumexp") and args[0].numel() == len(x):
                passes.append(name)
            return Numbers(result) if name == "tolist" else result

    with Passes():
        answer(x)
    return "x is gone through more than once: find m and l in the same loop" if len(passes) > 1 else ""


def inputs():
    first = "m = max x, and l is the sum of exp(x − m): the maximum itself adds exp(0) = 1, and a correction multiplies only the old sum"
    yield case(torch.tensor([3.0, 0.0, 1.0]), otherwise=first)
    grows = "when the maximum grows, the sum so far shrinks by exp(m − m_new), and the new element adds 1"
    yield case(torch.tensor([1.0, 2.0]), otherwise=grows)
    yield case(torch.tensor([-2.0, -1.0]), otherwise="all elements may be negative: m is their maximum, and l is measured from it")
    high = "exp(1000) overflows: no exponent may be positive, not even for a while"
    yield case(torch.tensor([0.0, 1000.0]), on="x = [0, 1000]", otherwise=high, fresh=True)  # fresh: math.exp raises, torch.exp doesn't
    yield case(torch.tensor([-1e30]), otherwise="an element may be any finite number, however low, and counts like any other")
    for words, x in vectors(generator(), 33):
        yield case(x.float(), on=f"{words}, n = 33", fresh=True)
    for x in ([-INF, 1.0], [1.0, -INF, 2.0]):
        yield case(torch.tensor(x), edge="inf")
    yield case(torch.tensor([-INF, -INF]), edge="all_inf")
    yield case(torch.zeros(0), on="an empty vector", edge="empty")


EXERCISE = Exercise(
    task="Find m, the maximum, and l, the sum of exp(x − m), in one pass over a vector.",
    conditions={
        "inf": "a −inf entry adds nothing, wherever it stands",
        "all_inf": "a vector of only −inf gives (−inf, 0)",
        "empty": "an empty vector gives (−inf, 0)",
    },
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
    tolerance=lambda args, part: (1e-3, 1e-6),
    refused=goes_twice,
)
