"""Exercise 1.2, online_normalizer."""

import math

import torch

from fa_tutorial.exercises import harness
from fa_tutorial.exercises.harness import INF, Exercise, case, generator, masked_vectors, vectors, views


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


MISTAKES = {
    "swapped": "m and l are swapped: return (m, l)",
    "m_is_last": "m is the last element, not the maximum",
    "m_never": "m is never updated",
    "m_is_first": "m stays at the first element",
    "m_is_minimum": "m is the minimum",
    "m_is_lse": "m is the logarithm of Σ exp(x): return the maximum",
    "unshifted": "the exponentials are not shifted by m",
    "l_is_lse": "that is log Σ exp(x): return the sum itself, shifted by m",
    "l_is_log": "that is the logarithm of l: return the sum itself",
    "no_first": "l misses the first element, which counts exp(0) = 1 while it is the maximum",
    "first_twice": "l counts the first element twice",
    "counts": "each element counts as 1: it must count as exp(x − m)",
    "term_sign": "the exponent has the wrong sign: it is x − m, which is never positive",
    "last_alone": "l holds only the last element's term: add up all the terms",
    "no_rescale": "your l is not rescaled when the maximum grows",
    "wrong_sign": "your l is rescaled with the wrong sign in the exponent: when the maximum grows, l must shrink",
    "to_first": "your l is measured from the first element, not from the maximum",
    "anew": "a larger maximum makes your l start again: rescale what you have summed so far instead of dropping it",
    "uncounted": "the element that makes the maximum grow is not counted: it adds exp(0) = 1",
    "new_rescaled": "the element that makes the maximum grow is rescaled as well: rescale only what you summed before it",
    "old_maximum": "the new element is measured from the old maximum",
    "from_zero": "m starts at 0, above every element: start at −inf",
    "from_finite": "m starts at a finite number, and elements may be smaller: start at −inf",
    "late": "exp overflows or underflows on the way: measure each term from the running maximum, not only at the end",
    "nan": "−inf at the start gives NaN: m is still −inf there, and −inf − (−inf) is NaN",
    "stops": "a −inf entry ends your loop, and the entries after it are missing: skip it and go on",
    "inf_counts": "−inf entries are counted: exp(−inf) is 0",
    "inf_is_one": "a −inf entry counts as 1: exp(−inf) is 0",
}

CONDITIONS = {
    "inf": "a −inf entry adds nothing, wherever it stands",
    "all_inf": "a vector of only −inf gives (−inf, 0)",
    "empty": "an empty vector gives (−inf, 0)",
}


def _exp(x):
    return INF if x > 88.7228 else math.exp(x)


def _step(m, l, value, first, mistake):
    """One element's new (m, l)."""
    m_new = max(m, value)
    alpha, term, is_new = _exp(m - m_new), _exp(value - m_new), value > m > -INF
    alpha, term = {
        "no_rescale": (1.0, term),
        "wrong_sign": (_exp(m_new - m) if m > -INF else 0.0, term),
        "anew": (float(m == m_new), term),
        "uncounted": (alpha, 0.0 if is_new else term),
        "new_rescaled": (alpha, alpha if is_new else term),
        "old_maximum": (alpha, _exp(value - m) if is_new else term),
        "term_sign": (alpha, _exp(m_new - value)),
        "last_alone": (0.0, term),
        "counts": (1.0, 1.0),
        "unshifted": (1.0, _exp(value)),
        "late": (1.0, _exp(value)),
        "to_first": (1.0, _exp(value - first)),
    }.get(mistake, (alpha, term))
    return m_new, l * alpha + term


def twin(x, mistake=None):
    values = x.double().tolist()
    m, l = {"from_zero": 0.0, "from_finite": -1e9}.get(mistake, -INF), 0.0
    for i, value in enumerate(values):
        if mistake == "stops" and value == -INF < m:
            break
        if value == -INF and mistake != "nan":
            l += mistake == "inf_is_one" or (mistake == "inf_counts" and m == -INF)
        elif i == 0 and mistake in ("no_first", "first_twice"):
            m, l = value, 2.0 * (mistake == "first_twice")
        else:
            m, l = _step(m, l, value, values[0], mistake)
    if mistake == "late":
        l *= _exp(-m) if m > -INF else 1.0
    log_l = math.log(l) if l > 0 else -INF
    return {
        "swapped": lambda: (l, m),
        "m_is_last": lambda: (values[-1], l),
        "m_never": lambda: (-INF, l),
        "m_is_first": lambda: (values[0], l),
        "m_is_minimum": lambda: (min(values), l),
        "m_is_lse": lambda: (m + log_l, l),
        "l_is_lse": lambda: (m, m + log_l),
        "l_is_log": lambda: (m, log_l),
    }.get(mistake, lambda: (m, l))()


def tolerance(args, part):
    """m is one of the inputs, so nothing rounds it; l may be a float32 sum."""
    return (1e-6, 0.0) if part == "m" else harness.tolerance(args, part, torch.float32)


def inputs():
    yield case(torch.tensor([3.0, 0.0, 1.0]), otherwise="m is the maximum and l is the sum of exp(x − m), one number each")
    growing = "when the maximum grows, rescale what you have summed so far"
    for x in ([1.0, 2.0], [1.0, 1.0, 2.0], [1.0, 1.0, 2.0, 4.0, 3.0]):
        yield case(torch.tensor(x), otherwise=growing)
    yield case(torch.tensor([-2.0, -1.0]), otherwise="your l is measured from 0, not from the maximum: does m start at 0?")
    yield case(torch.tensor([1000.0, 1001.0]), otherwise="exp overflows on the way: no exponent may be positive, not even for a while")
    yield case(torch.tensor([-1000.0, -1001.0]), otherwise="exp underflows on the way: measure each term from the running maximum")
    yield case(torch.tensor([-1e30]), otherwise=MISTAKES["from_finite"])
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
    id="1.2",
    task="Find m, the maximum, and l, the sum of exp(x − m), in one pass over a vector.",
    conditions=CONDITIONS,
    hints=(
        "Keep m and l for the elements you have seen. When a larger element arrives, every term in l is still measured from the old m. "
        "Which single factor corrects them all?",
        "For each x, let m_new = max(m, x), multiply l by exp(m − m_new), and add exp(x − m_new). Start with m = −inf and l = 0, and skip an x "
        "of −inf, because −inf − (−inf) is NaN.",
    ),
    solution=online_normalizer,
    reasoning="exp(x − m_new) = exp(x − m)·exp(m − m_new), so one factor moves the whole sum to the new maximum. The factor is 1 while the maximum "
    "stays the same. We skip a −inf entry: it adds nothing, and before the first finite element −inf − (−inf) would give NaN.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("m", "l"),
    tolerance=tolerance,
)
