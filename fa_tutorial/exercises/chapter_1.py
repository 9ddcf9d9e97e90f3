"""Graders, hints and reasoning of chapter 1: safe softmax, the online normaliser, merging, blocks, the running weighted sum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fa_tutorial import softmax
from fa_tutorial.arguments import dtype_name
from fa_tutorial.exercises.catalogue import Exercise
from fa_tutorial.exercises.grader import OTHERS, expect, fresh, run, show, unpack

E = math.e
INF = math.inf
NAN = math.nan
RTOL = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 5e-5, torch.float64: 1e-9}
ATOL = {torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float32: 1e-6, torch.float64: 1e-12}
COARSE = "float64 goes in, and the result has less accuracy: a tensor inside is float32 (make it in the input's dtype), or a small constant is added"


def _rounding(x: torch.Tensor, dtype: torch.dtype) -> float:
    """What an lse as large as x is rounded by: exp(x − lse) is off by that factor, and it is no mistake."""
    finite = x[torch.isfinite(x)].double().abs()
    return 4 * torch.finfo(dtype).eps * float(finite.max()) if len(finite) else 0.0


def _compare(got: Any, want: torch.Tensor, x: torch.Tensor, *, on: str, otherwise: str, suspects: Mapping[str, Any] | None = None,
             what: str = "", values: bool = True, size: float = 1.0, log: bool = False, strict: bool = True) -> None:  # fmt: skip
    """`expect` with the tolerance that x's dtype and magnitude call for.

    size: the largest value that weights multiply. log: an lse, which is held to an absolute error. strict: for float64 in, float64's
    accuracy is wanted out.
    """
    suspects = {name: torch.as_tensor(value) for name, value in (suspects or {}).items()}
    wide = torch.float32 if x.dtype == torch.float64 else x.dtype
    for dtype in (wide, x.dtype) if strict else (wide,):
        rtol = RTOL[dtype] + _rounding(x, dtype)
        atol = rtol * size if log or size != 1.0 else ATOL[dtype]
        coarse = dtype != wide
        expect(got, want, on=on, otherwise=COARSE if coarse else otherwise, suspects=suspects, what=what, rtol=0.0 if log else rtol,
               atol=atol, values=values and not coarse)  # fmt: skip


def _compare_pair(result: Any, want: tuple, x: torch.Tensor, *, on: str, otherwise: str, of_m: Mapping[str, Any] | None = None,
                  of_l: Mapping[str, Any] | None = None, values: bool = True) -> None:  # fmt: skip
    """`expect` for (m, l). m is one of the inputs, so nothing rounds it."""
    m, l = unpack(result, ("m", "l"), on)
    expect(m, want[0], on=on, otherwise=otherwise, suspects=of_m, what="m", rtol=1e-6, atol=0.0, values=values)
    _compare(l, want[1], x, on=on, otherwise=otherwise, suspects=of_l, what="l", values=values, strict=False)


def _vectors(generator: torch.Generator, *shape: int) -> Iterator[tuple[str, torch.Tensor]]:
    """(in words, float64 values) for each distribution that has once broken a softmax. No row is −inf throughout."""
    n = shape[-1]
    randn = torch.randn(*shape, generator=generator, dtype=torch.float64)
    yield "randn", randn
    yield "3·randn", 3 * randn
    yield "a maximum that keeps growing", torch.arange(n) * 0.7 + 0.1 * randn
    yield "a maximum at the start", -torch.arange(n) * 0.7 + 0.1 * randn
    yield "all values near −1e4", randn - 1e4
    yield "values up to ±1e4", 2e4 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1e4
    yield "equal values", torch.full(shape, 2.5, dtype=torch.float64)
    masked = randn.clone()
    masked[..., : n // 2] = -INF  # leading ones, so that whole blocks hold nothing but −inf
    masked[..., n // 2 : n - 1 : 3] = -INF
    yield "−inf entries, the first half among them", masked
    masked = randn.masked_fill(torch.rand(*shape, generator=generator) < 0.5, -INF)
    masked[..., 0] = randn[..., 0]
    yield "−inf entries here and there", masked


def _views(x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """x with other strides and a storage offset; what lies between and around its elements is NaN."""
    n = x.shape[-1]
    if x.ndim > 1:
        yield "a transposed view", x.transpose(-1, -2).contiguous().transpose(-1, -2)
    for name, step in (("a slice of a wider tensor", 1), ("every second column of a tensor", 2)):
        wide = torch.full((*x.shape[:-1], 3 + step * n), NAN, dtype=x.dtype)
        view = wide[..., 2 : 2 + step * n : step]
        yield name, view.copy_(x)


# ---------------------------------------------------------------- 1.1


def grade_safe_softmax(answer) -> None:
    def compare(x, otherwise, suspects=None, on=None, values=True):
        x = torch.as_tensor(x)
        on = on or f"x = {show(x)}"
        want = torch.softmax(x.double(), dim=-1).to(x.dtype)
        _compare(run(answer, x, on=on), want, x, on=on, otherwise=otherwise, suspects=suspects, values=values)

    x = torch.tensor([1.0, 3.0], dtype=torch.float64)
    p = torch.exp(x - 3)
    compare([1.0, 3.0], "y = exp(x) / Σ exp(x)", {
        "the exponentials are not divided by their sum": p,
        "nothing is divided: y must add up to 1": torch.exp(x),
        "the exponent has the wrong sign, so that the smallest x gets the largest weight": p.flip(0) / p.sum(),
        "that is the logarithm of softmax": torch.log_softmax(x, 0),
        "the base is e, not 2": torch.softmax(x * math.log(2), 0),
        "x itself is divided by its sum: exp is missing": x / x.sum(),
        "the exponentials are divided by how many they are, not by their sum": p / 2,
        "only the numerators are shifted: divide by the sum of those very exponentials": p / torch.exp(x).sum(),
        "only the sum is shifted: the numerators must be its own terms": torch.exp(x) / p.sum(),
        "each element is treated by itself: softmax compares it with the rest of its row": torch.sigmoid(x),
    })  # fmt: skip

    x = torch.tensor([[1.0, 3.0], [5.0, 6.0]], dtype=torch.float64)
    m, flat = x.amax(-1), torch.exp(x - x.amax())
    p, shifted_along_columns = torch.exp(x - m[:, None]), torch.exp(x - m)
    compare(x.float(), "each row has its own maximum and its own sum", {
        "the softmax runs down the columns: take it over the last dimension": torch.softmax(x, 0),
        "one sum is taken over the whole tensor: each row has its own": p / p.sum(),
        "one maximum and one sum are taken over the whole tensor: each row has its own": flat / flat.sum(),
        "the maximum of row i is subtracted from column i: it has lost its dimension": shifted_along_columns
        / shifted_along_columns.sum(-1, keepdim=True),
        "column i is divided by the sum of row i: the sum has lost its dimension": p / p.sum(-1),
        "column i is shifted and divided by what belongs to row i: maximum and sum have lost their dimension": shifted_along_columns
        / shifted_along_columns.sum(-1),
    })  # fmt: skip
    x = torch.arange(8.0, dtype=torch.float64).view(2, 2, 2) ** 1.5
    compare(x.float(), "with 3 dimensions the softmax still runs over the last", {
        "the softmax runs over dimension 0: take it over the last": torch.softmax(x, 0),
        "the softmax runs over dimension 1: take it over the last": torch.softmax(x, 1),
    }, on="x of shape (2, 2, 2)")  # fmt: skip

    compare([89.0, 89.0], "exp overflows: float32 holds exp(x) only for x below 89, so bring the largest exponent down to 0 first")
    compare([90.0, 100.0], "large values are told apart no more", {"x is clamped, and what was different becomes equal": [0.5, 0.5]})
    below = "exp overflows, for what you subtract lies far below the maximum"
    compare([0.0, 160.0], f"{below} (the first value would, or the smallest)")
    compare([160.0, 0.0], f"{below} (the last value would)")
    compare([0.0, 300.0], f"{below} (the mean would)")
    above = "every exponential underflows, and 0 / 0 is NaN, for what you subtract lies far above the maximum"
    compare([-1000.0, -1000.0], f"{above} (the largest |x| would, or 0)")
    compare([[0.0, 0.0], [1000.0, 1000.0]], f"{above} of row 0 (one maximum for the whole tensor would)")
    compare([-INF, 1.0, 2.0], "a −inf entry must get the weight 0 and leave the others alone")
    compare([5.0], "a row of one element has the weight 1")
    for dtype, largest in ((torch.float16, 6e4), (torch.bfloat16, 3e38)):
        x = torch.tensor([largest, largest, -largest], dtype=dtype)
        compare(x, f"overflows in {dtype_name(dtype)}", on=f"x = [{largest:g}, {largest:g}, −{largest:g}] in {dtype_name(dtype)}")

    generator = fresh()
    for shape in ((1,), (7,), (5, 33), (2, 3, 17), (2, 2, 3, 64)):
        for words, x in _vectors(generator, *shape):
            for dtype in (torch.float32, torch.float64):
                compare(x.to(dtype), OTHERS, on=f"{words}, shape {shape}, {dtype_name(dtype)}", values=False)
    x = torch.randn(3, 4, 8, generator=generator)
    for dtype in (torch.float16, torch.bfloat16):
        compare((3 * x).to(dtype), OTHERS, on=f"3·randn, shape (3, 4, 8), {dtype_name(dtype)}", values=False)
    for words, view in _views(x):
        compare(view, "strides other than contiguous must work too", on=f"{words}, shape (3, 4, 8)", values=False)


# ---------------------------------------------------------------- 1.2


def _normalizer(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """m and l over the last dimension in float64: the truth."""
    x = x.double()
    if x.shape[-1] == 0:
        return x.new_full(x.shape[:-1], -INF), x.new_zeros(x.shape[:-1])
    m = x.amax(-1)
    return m, torch.exp(x - torch.where(m == -INF, 0.0, m)[..., None]).sum(-1)


def grade_online_normalizer(answer) -> None:
    def compare(x, otherwise, of_m=None, of_l=None, on=None, values=True):
        x = torch.as_tensor(x, dtype=torch.float32) if isinstance(x, list) else x
        on = on or f"x = {show(x)}"
        result = run(answer, x, on=on)
        _compare_pair(result, _normalizer(x), x, on=on, otherwise=otherwise, of_m=of_m, of_l=of_l, values=values)

    total = 1 + E**-3 + E**-2  # of [3, 0, 1]
    compare([3.0, 0.0, 1.0], "m is the maximum, l the sum of exp(x − m), one number each", {
        "m and l are swapped: return (m, l)": total,
        "m is the last element, not the maximum": 1.0,
        "m is never updated": -INF,
        "m is the minimum": 0.0,
        "m is the logarithm of Σ exp(x): return the maximum": 3 + math.log(total),
    }, {
        "the exponentials are not shifted by m": E**3 * total,
        "that is log Σ exp(x): return the sum itself, shifted by m": 3 + math.log(total),
        "that is the logarithm of l: return the sum itself": math.log(total),
        "l misses the first element, which counts exp(0) = 1": total - 1,
        "l counts the first element twice": total + 1,
        "the elements are counted, each as 1: below the maximum they count exp(x − m)": 3.0,
        "the exponent has the wrong sign: it is x − m, which is never positive": 1 + E**3 + E**2,
        "l holds the last element alone: add up": E**-2,
    })  # fmt: skip

    stays_first = {"m stays at the first element": 1.0}
    growing = "when the maximum grows, what was summed so far must be rescaled to it"
    if _sum_of(answer, [1.0, 2.0], 1 + E):  # two mistakes give 1 + e there: [1, 1, 2] tells which
        compare([1.0, 1.0, 2.0], growing, stays_first, {
            "your l is rescaled with the wrong sign of the exponent: it grows with the maximum, and should shrink": 2 * E + 1,
            "your l is relative to the first element, not to the maximum": 2 + E,
        })  # fmt: skip
    compare([1.0, 2.0], growing, stays_first, {
        "your l is not rescaled when the maximum grows": 2.0,
        "a larger maximum starts your l anew: rescale what was summed so far, do not drop it": 1.0,
        "the element that makes the maximum grow is not counted: it adds exp(0) = 1": 1 / E,
        "the element that makes the maximum grow is rescaled as well: only what was summed before it is": 2 / E,
        "the new element is taken relative to the old maximum": 1 / E + E,
        "the exponentials are not shifted by m": E + E**2,
    })  # fmt: skip
    compare([1.0, 1.0, 2.0, 4.0, 3.0], growing)

    from_zero = "m starts at 0, above every element: start where nothing is larger"
    compare([-2.0, -1.0], "negative values", {from_zero: 0.0}, {
        "your l is relative to 0, not to the maximum: does m start at 0?": E**-1 + E**-2,
    })  # fmt: skip
    compare([1000.0, 1001.0], "exp overflows on the way: no exponent may be positive, not even for a while")
    compare([-1000.0, -1001.0], "exp underflows on the way: each term must be relative to the maximum from the start")
    compare([-1e30], "m starts at a finite number, and elements may lie below it")

    compare([1.0, -INF], "a −inf entry counts nothing")
    compare([-INF, 1.0], "a −inf entry at the start counts nothing", of_m={
        "a −inf entry at the start makes m NaN": NAN,
    }, of_l={
        "−inf at the start gives NaN: m is still −inf there, and −inf − (−inf) is NaN": NAN,
        "a −inf entry counts as 1: exp(−inf) is 0": 2.0,
    })  # fmt: skip
    compare([-INF, -INF], "a vector of only −inf gives (−inf, 0)", of_l={
        "−inf in every place gives NaN: −inf − (−inf) is NaN": NAN,
        "−inf entries are counted: exp(−inf) is 0": 2.0,
        "one −inf entry is counted: exp(−inf) is 0": 1.0,
    })  # fmt: skip
    compare([], "an empty vector gives (−inf, 0)", on="an empty vector")

    generator = fresh()
    for n in (1, 2, 33, 128):
        for words, x in _vectors(generator, n):
            for dtype in (torch.float32, torch.float64):
                compare(x.to(dtype), OTHERS, on=f"{words}, n = {n}, {dtype_name(dtype)}", values=False)
    for words, view in _views(torch.randn(40, generator=generator)):
        compare(view, "strides other than contiguous must work too", on=f"{words}, n = 40", values=False)


def _sum_of(answer, x: list[float], value: float) -> bool:
    """Whether the answer's l for x is `value`."""
    on = f"x = {show(torch.tensor(x))}"
    _, l = unpack(run(answer, torch.tensor(x), on=on), ("m", "l"), on)
    try:
        return math.isclose(float(l), value, rel_tol=1e-4)
    except (TypeError, ValueError, RuntimeError):
        return False  # compare says what is wrong with it


# ---------------------------------------------------------------- 1.3


def _merged(m_a, l_a, m_b, l_b) -> tuple[torch.Tensor, torch.Tensor]:
    """The truth, in float64."""
    m_a, l_a, m_b, l_b = (torch.as_tensor(value, dtype=torch.float64) for value in (m_a, l_a, m_b, l_b))
    m = torch.maximum(m_a, m_b)
    weights = [torch.where(part == -INF, 0.0, torch.exp(part - m)) for part in (m_a, m_b)]
    return m, weights[0] * l_a + weights[1] * l_b


def grade_merge(answer) -> None:
    def compare(args, otherwise, of_m=None, of_l=None, on=None, values=True, numbers=False):
        tensors = [torch.as_tensor(value) for value in args]
        on = on or f"merge({', '.join(map(show, tensors))})"
        result = run(answer, *(args if numbers else tensors), on=on)
        maxima = torch.cat([tensors[0].flatten(), tensors[2].flatten()])
        _compare_pair(result, _merged(*args), maxima, on=on, otherwise=otherwise, of_m=of_m, of_l=of_l, values=values)

    compare((1.0, 2.0, 2.0, 3.0), "rescale each l from its own maximum to the common one, then add", {
        "m and l are swapped: return (m, l)": 2 / E + 3,
        "the maxima are added: the maximum of both parts is the larger one": 3.0,
        "the maxima are averaged: the maximum of both parts is the larger one": 1.5,
        "m is the smaller of the two maxima": 1.0,
    }, {
        "the part with the smaller maximum is not rescaled before the sums are added": 5.0,
        "the part with the larger maximum is rescaled, and the other one should be": 2 + 3 / E,
        "the correction has the wrong sign: the exponent is m_part − m, which is never positive": 2 * E + 3,
        "both parts get the same correction: each has its own maximum": 5 / E,
        "the part with the smaller maximum is left out": 3.0,
        "the sums are relative to 0, not to the new maximum": 2 * E + 3 * E**2,
        "the sums are averaged: add them once they are relative to one maximum": 2.5,
        "the rescaled sums are averaged: add them": 1 / E + 1.5,
        "that is m + log l: return l": math.log(2 * E + 3 * E**2),
    })  # fmt: skip
    compare((2.0, 3.0, 1.0, 2.0), "either part may hold the larger maximum: merge must be commutative", of_l={
        "only the first part is ever rescaled, and here the second one must be": 5.0,
        "the first part is rescaled to the maximum of the second, and here its own is larger": 3 * E + 2,
    })  # fmt: skip
    compare((1.0, 2.0, 1.0, 3.0), "two equal maxima: both parts count in full", of_l={
        "two equal maxima: one part is left out": 2.0,
        "two equal maxima: the first part is left out": 3.0,
        "two equal maxima: one part is counted twice and the other left out": 6.0,
    })  # fmt: skip

    neutral = "an empty part (−inf, 0) must leave the other one as it is"
    compare((-INF, 0.0, 1.0, 2.0), neutral)
    compare((1.0, 2.0, -INF, 0.0), neutral)
    compare((-INF, 0.0, -INF, 0.0), "two empty parts give an empty part, (−inf, 0)", {
        "two empty parts make m NaN: their maximum is −inf": NAN,
    }, {
        "two empty parts give NaN: −inf − (−inf) is NaN": NAN,
    })  # fmt: skip
    compare((1000.0, 1.0, 1001.0, 1.0), "exp overflows on the way: no exponent may be positive, not even for a while")
    compare((-1000.0, 1.0, -1001.0, 1.0), "exp underflows on the way: only differences of maxima may be exponents")

    m_a, l_a = torch.tensor([1.0, 2.0, -INF, 0.0]), torch.tensor([2.0, 3.0, 0.0, 1.0])
    m_b, l_b = torch.tensor([2.0, 1.0, -INF, -INF]), torch.tensor([3.0, 2.0, 0.0, 0.0])
    compare((m_a, l_a, m_b, l_b), "each element of a tensor is a pair of its own, and any of them may be empty", {
        "one maximum is taken over all elements: each has its own": torch.full((4,), 2.0),
    }, on="m_a = [1, 2, −inf, 0], m_b = [2, 1, −inf, −inf]")  # fmt: skip
    row, column = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([[0.0], [5.0]])
    compare((row, row, column, column + 1), "shapes must broadcast", on="m_a of shape (3,), m_b of shape (2, 1)")

    generator = fresh()
    for dtype in (torch.float32, torch.float64):
        for words, x in _vectors(generator, 3, 5, 12):
            parts = [tuple(value.to(dtype) for value in _normalizer(part)) for part in x.to(dtype).split((1, 5, 6), dim=-1)]
            on = f"(m, l) of shape (3, 5) from {words}, {dtype_name(dtype)}"
            compare((*parts[0], *parts[1]), OTHERS, on=on, values=False)
            compare((*parts[2], *parts[0]), OTHERS, on=on, values=False)
            _compare_orders(answer, parts, _normalizer(x.to(dtype)), x.to(dtype), on)
    m, l = torch.randn(4, 6, generator=generator), 1 + torch.rand(4, 6, generator=generator)
    for words, view in _views(m):
        compare((view, l, m.flip(0), l), "strides other than contiguous must work too", on=f"m_a is {words}", values=False)
    compare((1.0, 2.0, 2.0, 3.0), "Python numbers must do as well as tensors", on="merge(1.0, 2.0, 2.0, 3.0) with floats", numbers=True)


def _compare_orders(answer, parts: list, want: tuple, x: torch.Tensor, on: str) -> None:
    """Three parts merged as (a b) c and as a (b c), on the answer's own results: both are the whole."""
    a, b, c = parts
    left = run(answer, *unpack(run(answer, *a, *b, on=on), ("m", "l"), on), *c, on=on)
    right = run(answer, *a, *unpack(run(answer, *b, *c, on=on), ("m", "l"), on), on=on)
    for result, order in ((left, "(a b) c"), (right, "a (b c)")):
        otherwise = f"three parts merged as {order} do not give the whole: merge must be associative"
        _compare_pair(result, want, x, on=on, otherwise=otherwise, values=False)


# ---------------------------------------------------------------- 1.4


def grade_online_softmax(answer) -> None:
    def compare(x, block, otherwise, suspects=None, on=None, values=True):
        x = torch.as_tensor(x)
        on = on or f"x = {show(x)}, block = {block}"
        want = torch.softmax(x.double(), dim=-1)
        _compare(run(answer, x, block, on=on), want, x, on=on, otherwise=otherwise, suspects=suspects, values=values)

    p = torch.tensor([1 / E, 1.0], dtype=torch.float64)  # exp(x − m) of [1, 2]
    l = 1 + 1 / E
    compare([1.0, 2.0], 2, "one block: y = exp(x − m) / l", {
        "exp(x − m) is not divided by l": p,
        "nothing is shifted or divided: y = exp(x − m) / l": E**2 * p,
        "that is the logarithm of softmax": torch.log(p / l),
        "m is still −inf in the second pass": [INF, INF],
        "the exponent has the wrong sign: it is x − m, which is never positive": torch.softmax(torch.tensor([-1.0, -2.0]), 0),
    })  # fmt: skip
    compare([1.0, 2.0], 1, "two blocks: the second pass must use the m and l of the whole row", {
        "each block is normalised by itself: m and l belong to the whole row": [1.0, 1.0],
        "each block's own maximum is used in the second pass: the m of the whole row belongs there": [1 / l, 1 / l],
        "your l is not rescaled when the maximum grows": p / 2,
        "your l is rescaled with the wrong sign of the exponent": p / (1 + E),
        "m and l are those of the last block: merge them with what came before": p,
        "m and l are those of the first block: merge the others into them": [1.0, E],
        "the first block is written before the last one is seen: its m and l were not final yet, and a second pass must follow": [1, 1 / l],
        "a larger maximum shrinks the whole l, the new block's share too": p / (2 / E),
        "the new block's sum is relative to the old maximum": p / (1 / E + E),
    })  # fmt: skip
    compare([2.0, 1.0], 1, "the maximum is in the first block, and the second one must not change it", {
        "each block's own maximum is used in the second pass: the m of the whole row belongs there": [1 / l, 1 / l],
        "your l adds the second block relative to its own maximum: it must be relative to the running one": [0.5, 0.5 / E],
    })  # fmt: skip

    x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    p = torch.exp(x - 3)
    seen = torch.tensor([1.0, 1.0, 0.0])
    compare([1.0, 2.0, 3.0], 2, "the last block may be ragged: 3 columns are a block of 2 and a block of 1", {
        "the ragged last block is dropped: 3 columns are a block of 2 and a block of 1": torch.softmax(x[:2], 0),
        "the ragged last block is never written": p / p.sum() * seen,
        "the ragged last block is dropped": torch.cat([torch.softmax(x[:2], 0), x.new_zeros(1)]),
        "the first pass leaves the ragged last block out": p / (p * seen).sum(),
        "the ragged last block is filled up with zeros, and exp(0 − m) counts: fill with −inf": p / (p.sum() + E**-3),
    })  # fmt: skip
    compare([1.0, 2.0], 8, "a block may be longer than the row")
    compare([5.0], 1, "a row of one element has the weight 1")

    x = torch.tensor([[1.0, 2.0, 4.0], [6.0, 5.0, 3.0]], dtype=torch.float64)
    flat = torch.softmax(x.flatten(), 0).view(2, 3)
    p = torch.exp(x - x.amax(-1, keepdim=True))
    compare(x.float(), 2, "two rows: each has its own m and l", {
        "m and l are those of the whole tensor: each row has its own": flat,
        "l is the sum of all rows: each row has its own": p / p.sum(),
        "the softmax runs down the columns: take it over the last dimension": torch.softmax(x, 0),
    })  # fmt: skip

    compare([1000.0, 1001.0], 1, "exp overflows: x must be shifted by the running maximum before exp")
    compare([1000.0, 0.0], 1, "exp overflows: m is the maximum of all blocks, not of the last one")
    compare([-1000.0, -1001.0], 1, "exp underflows (it would if m started at 0, above every element)")
    compare([[0.0, 0.0], [1000.0, 1000.0]], 1, "row 0 underflows (it would if one m were taken for all rows)")
    compare([1.0, -INF], 1, "a block of only −inf must change nothing", {
        "a block of only −inf gives NaN: its own maximum is −inf, and −inf − (−inf) is NaN": [NAN, NAN],
    })  # fmt: skip
    compare([-INF, 1.0], 1, "a first block of only −inf must change nothing", {
        "a first block of only −inf gives NaN: m is still −inf then, and −inf − (−inf) is NaN": [NAN, NAN],
    })  # fmt: skip

    generator = fresh()
    for shape, blocks in (((1,), (1, 4)), ((5, 33), (8, 64)), ((2, 3, 17), (4, 17)), ((2, 2, 2, 32), (16,)), ((2, 4), (1,))):
        for words, x in _vectors(generator, *shape):
            for dtype, block in ((dtype, block) for block in blocks for dtype in (torch.float32, torch.float64)):
                compare(x.to(dtype), block, OTHERS, on=f"{words}, shape {shape}, block = {block}, {dtype_name(dtype)}", values=False)
    for words, view in _views(torch.randn(3, 4, 10, generator=generator)):
        on = f"{words}, shape (3, 4, 10), block = 4"
        compare(view, 4, "strides other than contiguous must work too", on=on, values=False)


# ---------------------------------------------------------------- 1.5


def grade_running_weighted_sum(answer) -> None:
    def compare(scores, values, block, otherwise, of_o=None, of_lse=None, on=None, show_values=True):
        on = on or f"scores = {show(scores)}, values = the identity, block = {block}"
        o, lse = unpack(run(answer, scores, values, block, on=on), ("o", "lse"), on)
        want_lse = torch.logsumexp(scores.double(), 0)
        weights = torch.where(want_lse == -INF, 0.0, torch.exp(scores.double() - want_lse))
        size = float(values.abs().max()) if values.numel() else 1.0
        common = {"on": on, "otherwise": otherwise, "values": show_values}
        _compare(o, weights @ values.double(), scores, what="o", suspects=of_o, size=size, **common)
        _compare(lse, want_lse, scores, what="lse", suspects=of_lse, log=True, **common)

    def weights_of(scores, block, otherwise, of_o=None, of_lse=None):
        """With the identity for values, o is the weights themselves."""
        compare(torch.tensor(scores), torch.eye(len(scores)), block, otherwise, of_o, of_lse)

    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    p, l = torch.exp(x - 2), 1 + 1 / E
    weights_of([1.0, 2.0], 2, "one block: o = acc / l, of shape (D,), and lse = m + log l, a number", {
        "acc is not divided by l": p,
        "nothing is shifted or divided: p = exp(s − m), o = acc / l": torch.exp(x),
        "the exponent has the wrong sign: it is s − m, which is never positive": p.flip(0) / l,
        "the scores are scaled by 1/√D: they come scaled already": torch.softmax(x / math.sqrt(2), 0),
    }, {
        "m is never updated, and lse = m + log l with it": -INF,
        "lse is m alone: add log l": 2.0,
        "lse is log l alone: it is relative to m, so add m": math.log(l),
        "lse is l: take its logarithm and add m": l,
        "lse is Σ exp(scores): take its logarithm": E**2 * l,
        "lse is m + l: take the logarithm of l": 2 + l,
        "log l is in base 2: lse is the natural logarithm": 2 + math.log2(l),
        "lse is in base 2: it is the natural logarithm": (2 + math.log(l)) / math.log(2),
        "lse has the wrong sign: it is m + log l": -(2 + math.log(l)),
        "log l is subtracted: lse is m + log l": 2 - math.log(l),
    })  # fmt: skip
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    one_block = "o is the sum of the rows of values, each times its key's weight"
    compare(torch.tensor([1.0, 2.0]), rows, 2, one_block, {
        "the weights run along the columns of values: key j weighs row j": rows.double() @ (p / l),
        "the weights run along the columns of values, and its rows are added: key j weighs row j": rows.sum(0) * (p / l),
    }, on="scores = [1, 2], values = [[1, 2], [3, 4]], block = 2")  # fmt: skip
    weights_of([1.0, 2.0], 1, "two blocks: when the maximum grows, rescale acc and l alike", {
        "your acc is not rescaled when the maximum grows, and l is": torch.ones(2) / l,
        "your l is not rescaled when the maximum grows, and acc is": p / 2,
        "neither acc nor l is rescaled when the maximum grows, so that every block counts alike": [0.5, 0.5],
        "each block is normalised by itself, and the results are added": [1.0, 1.0],
        "acc and l are rescaled with the wrong sign of the exponent": p.flip(0) / l,
        "acc is rescaled with the wrong sign of the exponent": torch.tensor([E, 1.0]) / l,
        "l is rescaled with the wrong sign of the exponent": p / (1 + E),
        "only the last block is left in o: m, l and acc are carried on from block to block": [0.0, 1.0],
        "only the last block is left in acc: add to the rescaled acc": [0.0, 1 / l],
        "only the last block is left in l: add to the rescaled l": p,
        "only the first block's values are in o": [1.0, 0.0],
        "the new block is rescaled as well: only what was summed before it is": [0.5, 0.5 * E],
    }, {
        "the l in lse is the last block's alone": 2.0,
        "the l in lse is not rescaled when the maximum grows": 2 + math.log(2),
        "the m in lse is the first block's": 1 + math.log(l),
    })  # fmt: skip
    weights_of([2.0, 1.0], 1, "the maximum is in the first block: the second must be relative to it", {
        "p is relative to its block's own maximum, and acc and l to the running one": [0.5, 0.5],
        "acc is right, but l adds the second block relative to its own maximum": p.flip(0) / 2,
    }, {
        "the m in lse is the last block's, not the running maximum": 1 + math.log(l),
    })  # fmt: skip
    three = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    first_two = torch.softmax(three[:2], 0)
    weights_of([1.0, 2.0, 3.0], 1, "three blocks: acc and l are carried on from block to block", {
        "acc is divided by l in every block, and the next one takes it for the undivided sum: divide once, at the end": torch.cat(
            [first_two / E, torch.ones(1)]
        )
        / torch.exp(three - 3).sum(),
    })  # fmt: skip
    without_last = torch.cat([first_two, torch.zeros(1)])
    weights_of([1.0, 2.0, 3.0], 2, "the last block may be ragged: 3 scores are a block of 2 and a block of 1", {
        "the ragged last block is dropped: 3 scores are a block of 2 and a block of 1": without_last,
        "the ragged last block is filled up with scores of 0, and exp(0 − m) counts: fill with −inf": torch.exp(three - 3)
        / (torch.exp(three - 3).sum() + E**-3),
    })  # fmt: skip
    weights_of([1.0, 2.0], 8, "a block may be longer than the row")
    weights_of([5.0], 1, "one key gets the weight 1")

    weights_of([1000.0, 1001.0], 1, "exp overflows: the scores must be shifted by the running maximum before exp")
    weights_of([1000.0, 0.0], 1, "exp overflows: m is the maximum of all that was seen, and it never falls")
    weights_of([-1000.0, -1001.0], 1, "exp underflows (it would if m started at 0, above every score)")
    weights_of([1.0, -INF], 1, "a block of only −inf must change nothing", {
        "a block of only −inf gives NaN: its own maximum is −inf, and −inf − (−inf) is NaN": [NAN, NAN],
    })  # fmt: skip
    weights_of([-INF, 1.0], 1, "a first block of only −inf must change nothing", {
        "a first block of only −inf gives NaN: m is still −inf then, and −inf − (−inf) is NaN": [NAN, NAN],
    })  # fmt: skip
    for scores, words in ((torch.tensor([-INF, -INF]), "scores = [−inf, −inf], block = 1"), (torch.zeros(0), "no key at all")):
        compare(scores, torch.ones(len(scores), 2), 1, "nothing is seen: o is 0 and lse is −inf", {
            "nothing is seen, and o is 0 / 0 = NaN: it must be 0": [NAN, NAN],
        }, {
            "nothing is seen, and lse is NaN: it must be −inf": NAN,
            "nothing is seen, and lse is 0: log 0 is −inf": 0.0,
        }, on=words)  # fmt: skip

    thirds = torch.arange(1.0, 8.0, dtype=torch.float64) / 3  # no float32 holds them
    compare(thirds, torch.outer(thirds, thirds), 3, OTHERS, on="scores = 1/3, 2/3, … 7/3 in float64, block = 3", show_values=False)
    generator = fresh()
    for S, D, blocks in ((1, 1, (1, 4)), (33, 4, (1, 8, 64)), (100, 5, (16,)), (64, 64, (16, 64))):
        for words, scores in _vectors(generator, S):
            values = torch.randn(S, D, generator=generator, dtype=torch.float64)
            for dtype, block in ((dtype, block) for block in blocks for dtype in (torch.float32, torch.float64)):
                on = f"{words}, S = {S}, D = {D}, block = {block}, {dtype_name(dtype)}"
                compare(scores.to(dtype), values.to(dtype), block, OTHERS, on=on, show_values=False)
    scores, values = torch.randn(10, generator=generator), torch.randn(10, 6, generator=generator)
    strided = "strides other than contiguous must work too"
    for words, view in _views(scores):
        compare(view, values, 4, strided, on=f"scores are {words}", show_values=False)
    for words, view in _views(values):
        compare(scores, view, 4, strided, on=f"values are {words}", show_values=False)


EXERCISES = (
    Exercise(
        "1.1", "safe_softmax", "Write the softmax over the last dimension so that nothing overflows.", grade_safe_softmax,
        ("softmax(x) = softmax(x − c) for every c. Which c makes one exponent 0 and all others negative?",
         "Three steps along dim=-1: the maximum, the exponentials of x less it, their sum. keepdim=True keeps a row's maximum beside that row."),
        softmax.safe_softmax,
        "Shifted by the row's maximum, the largest exponent is 0 and its exponential 1: nothing overflows, and the sum is at least 1, so that "
        "the division is safe too. keepdim leaves the last dimension as 1, and a row's maximum and sum broadcast along that row.",
    ),
    Exercise(
        "1.2", "online_normalizer", "Find the maximum m and the sum l of exp(x − m) in one pass over a vector.", grade_online_normalizer,
        ("Keep m and l for what you have seen. When a larger element comes, every term in l is still relative to the old m: "
         "which single factor mends them all?",
         "For each x: m_new = max(m, x); l is multiplied by exp(m − m_new), then exp(x − m_new) is added. Begin with m = −inf and l = 0, and see "
         "what −inf − (−inf) is when x is −inf as well."),
        softmax.online_normalizer,
        "exp(x − m_new) = exp(x − m)·exp(m − m_new), so one factor carries the whole sum over to the new maximum; it is 1 while the maximum "
        "stays. A −inf entry is skipped: it adds nothing, and before the first finite element the difference −inf − (−inf) would be NaN.",
    ),
    Exercise(
        "1.3", "merge", "Merge the pairs (m, l) of two parts, numbers or tensors, into the pair of the whole.", grade_merge,
        ("The whole has one maximum. Relative to it, what is each part's sum?",
         "l_a·exp(m_a − m) + l_b·exp(m_b − m), elementwise, so that tensors broadcast; torch.as_tensor takes numbers too. Two empty parts have "
         "m = −inf: exp must not see −inf − (−inf), and torch.where can put another number in its place."),
        softmax.merge,
        "Each sum is carried over from its own maximum to the common one, then they add. An empty part has m = −inf and is weighted by "
        "exp(−inf) = 0. Where both are empty the exponent is shifted by 0 instead of −inf, so that it stays −inf and gives 0, not NaN.",
    ),
    Exercise(
        "1.4", "online_softmax", "Write the softmax in two passes over blocks of columns.", grade_online_softmax,
        ("The first pass needs the (m, l) of each block and merge from 1.3; the second needs nothing but x and the final (m, l).",
         "x.split(block, dim=-1) gives the blocks, the ragged last one included. Keep m and l of shape (…, 1), begin with (−inf, 0), and mind a "
         "block of only −inf: its own maximum is −inf too."),
        softmax.online_softmax,
        "A block's (m, l) is merged into what came before it. Only after the last block are m and l those of the row, and the second pass "
        "writes exp(x − m) / l with them. A block of only −inf is shifted by 0, so that its l is 0 and merge leaves the rest alone.",
    ),
    Exercise(
        "1.5", "running_weighted_sum", "Compute one query's attention and its LSE in one pass over blocks of keys.",
        grade_running_weighted_sum,
        ("acc = Σ exp(s − m) · value is a sum relative to m, as l is. What does that say of a maximum that grows?",
         "In each block: m_new, p = exp(s − m_new), alpha = exp(m − m_new); l and acc are multiplied by alpha, then p.sum() and p @ values of "
         "the block are added. Divide once, after the last block. Skip a block while m_new is −inf, and look at l before you divide by it."),
        softmax.running_weighted_sum,
        "acc and l are sums of the same terms exp(s − m), one of them weighted by the values, so the same alpha carries both over to the new "
        "maximum, and their ratio is right at the end. lse = m + log l is the logarithm of the whole sum. With no key l stays 0: o = 0, lse = −inf.",
    ),
)  # fmt: skip
