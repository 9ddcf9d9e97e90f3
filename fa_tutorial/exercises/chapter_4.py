"""Graders, hints and reasoning of chapter 4: the step of the running softmax, the tiled forward, causal tiles, bytes through HBM."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fa_tutorial import algorithm, ledger, reference
from fa_tutorial.arguments import dtype_name
from fa_tutorial.exercises.catalogue import Exercise
from fa_tutorial.exercises.grader import (
    OTHERS,
    PoisonedEmpty,
    Wrong,
    as_tensor,
    close,
    expect,
    expect_equal,
    fresh,
    run,
    show,
    show_nested,
    told_on,
    unpack,
)

E = math.e
INF = math.inf
NAN = math.nan
COARSE = "float64 goes in, and the result has less accuracy: a tensor inside is float32 (make it in the input's dtype)"
STRIDES = "strides other than contiguous must work too"
# What p and o may be off by, relative to the largest value: halves round p and o once each.
RTOL = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 5e-5, torch.float64: 1e-9}

Suspects = Mapping[str, Any] | None


def refuse_shape(got: Any, want: torch.Tensor, what: str, on: str, because: str) -> None:
    shape = tuple(as_tensor(got, what).shape)
    if shape != tuple(want.shape):
        raise Wrong(f"{what} has shape {shape}, want {tuple(want.shape)}, {because}: {on}")


def refuse_exchanged(m_new: Any, l_new: Any, want_m: torch.Tensor, want_l: torch.Tensor, on: str) -> None:
    """Wrong if each of the two states is right, but for the other's name."""
    m_new, l_new = as_tensor(m_new, "m_new"), as_tensor(l_new, "l_new")
    if m_new.shape == l_new.shape == want_m.shape and not close(want_m, want_l, 1e-4, 1e-4) and (
        close(m_new, want_l, 1e-4, 1e-6) and close(l_new, want_m, 1e-4, 1e-6)
    ):  # fmt: skip
        raise Wrong(f"m_new and l_new are exchanged: return (p, m_new, l_new, alpha): {on}")


def _tensors(suspects: Suspects) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(value) for name, value in (suspects or {}).items()}


def strided_copy(x: torch.Tensor) -> torch.Tensor:
    """x with another step along its last dimension, rows further apart and a storage offset; what lies between its elements is NaN."""
    wide = torch.full((*x.shape[:-1], 3 + 2 * x.shape[-1]), NAN, dtype=x.dtype)
    return wide[..., 2 : 2 + 2 * x.shape[-1] : 2].copy_(x)


# ---------------------------------------------------------------- 4.1


def _step(s: torch.Tensor, m: torch.Tensor, l: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """p, m_new, l_new, alpha in float64: the truth."""
    s, m, l = s.double(), m.double(), l.double()
    m_new = torch.maximum(m, s.amax(-1))
    p = torch.where(s == -INF, 0.0, torch.exp(s - m_new[..., None]))
    alpha = torch.where(m == -INF, 0.0, torch.exp(m - m_new))
    return p, m_new, alpha * l + p.sum(-1), alpha


def _step_states(generator: torch.Generator, *shape: int) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(in words, s, m, l) in float64, for each distribution that has once broken a softmax."""
    rows = shape[:-1]
    randn = torch.randn(*shape, generator=generator, dtype=torch.float64)
    m, l = torch.randn(*rows, generator=generator, dtype=torch.float64), 1 + torch.rand(*rows, generator=generator, dtype=torch.float64)
    new, nothing = torch.full_like(m, -INF), torch.zeros_like(l)
    unseen = torch.rand(*rows, generator=generator) < 0.5
    yield "randn", randn, m, l
    yield "a first block, 3·randn", 3 * randn, new, nothing
    yield "a maximum that grows in every row", randn + 20, m, l
    yield "a maximum that stays in every row", randn - 20, m, l
    yield "all scores near −1e4", randn - 1e4, m - 1e4, l
    yield "scores up to ±1e4", 2e4 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1e4, m, l
    yield "equal scores", torch.full(shape, 2.5, dtype=torch.float64), torch.full_like(m, 2.5), l
    yield "hidden scores here and there", randn.masked_fill(torch.rand(*shape, generator=generator) < 0.5, -INF), m, l
    hidden = randn.masked_fill((torch.rand(*rows, generator=generator) < 0.5)[..., None], -INF)
    yield "some rows wholly hidden, some that have seen nothing yet", hidden, m.masked_fill(unseen, -INF), l.masked_fill(unseen, 0.0)


def grade_softmax_step(answer) -> None:
    def compare(s, m, l, otherwise, of_m=None, of_p=None, of_alpha=None, of_l=None, on=None, values=True):
        s, m, l = torch.as_tensor(s), torch.as_tensor(m), torch.as_tensor(l)
        on = on or f"s = {show(s)}, m = {show(m)}, l = {show(l)}"
        p, m_new, l_new, alpha = unpack(run(answer, s, m, l, on=on), ("p", "m_new", "l_new", "alpha"), on)
        want_p, want_m, want_l, want_alpha = _step(s, m, l)
        refuse_exchanged(m_new, l_new, want_m, want_l, on)
        refuse_shape(p, want_p, "p", on, "that of s")
        for got, what in ((m_new, "m_new"), (l_new, "l_new"), (alpha, "alpha")):
            refuse_shape(got, want_m, what, on, "that of m: one number a row")
        largest = max([1.0, *(float(x[torch.isfinite(x)].abs().max()) for x in (s, m) if torch.isfinite(x).any())])
        # Where nothing has been seen, alpha multiplies 0: any finite number does.
        alpha = torch.where((want_m == -INF) & torch.isfinite(as_tensor(alpha)), want_alpha, as_tensor(alpha))
        parts = (
            ("m_new", m_new, want_m, of_m),
            ("p", p, want_p, of_p),
            ("alpha", alpha, want_alpha, of_alpha),
            ("l_new", l_new, want_l, of_l),
        )
        for dtype in dict.fromkeys((torch.float32, s.dtype)):
            coarse = dtype == torch.float64
            rtol = RTOL[dtype] + 4 * torch.finfo(dtype).eps * largest
            for what, got, want, suspects in parts:
                expect(got, want, on=on, otherwise=COARSE if coarse else otherwise, suspects=_tensors(suspects), what=what,
                       rtol=rtol, atol=1e-12 if coarse else 1e-6, values=values and not coarse)  # fmt: skip

    compare([[1.0, 3.0]], [-INF], [0.0], "a first block: p = exp(s − m_new), l_new is the sum of p", {
        "m_new is the minimum of the scores": [1.0],
        "m is never updated: m_new is the larger of m and the row's largest score": [-INF],
    }, {
        "p is divided by its sum: the division waits until every block has been seen": [[E**-2 / (1 + E**-2), 1 / (1 + E**-2)]],
        "the scores are not shifted: p = exp(s − m_new)": [[E, E**3]],
        "the exponent has the wrong sign: it is s − m_new, which is never positive": [[E**2, 1.0]],
        "that is s − m_new: exp is missing": [[-2.0, 0.0]],
        "p is relative to the old maximum: it must be relative to m_new": [[INF, INF]],
        "the base is e, not 2": [[0.25, 1.0]],
    }, {
        "alpha is inverted: it is exp(m − m_new), which is at most 1": [INF],
    }, {
        "l_new is NaN: 0 · inf, for alpha is inverted": [NAN],
        "l_new is the logarithm of the sum: return the sum itself": [math.log(1 + E**-2)],
        "l_new stays 0: add the sum of p, and multiply by alpha only what was summed before it": [0.0],
    })  # fmt: skip
    compare([[2.0]], [1.0], [2.0], "the maximum grows: l and whatever was summed before must be rescaled to it", {
        "m_new is the old m: it is the larger of m and the row's largest score": [1.0],
        "the maxima are added: m_new is the larger of the two": [3.0],
    }, {
        "p is relative to the old maximum: it must be relative to m_new": [[E]],
    }, {
        "alpha is inverted: it is exp(m − m_new), which is at most 1": [E],
        "alpha is 1, and the maximum has grown: it is exp(m − m_new)": [1.0],
        "alpha is the exponent m − m_new: exp is missing": [-1.0],
        "the base of alpha is e, not 2": [0.5],
        "alpha is the part of l_new that comes from before: it is exp(m − m_new)": [2 / E / (1 + 2 / E)],
    }, {
        "your l is not rescaled when the maximum grows": [3.0],
        "your l is rescaled with the wrong sign of the exponent": [2 * E + 1],
        "the new block's sum is rescaled as well: only what was summed before it is": [3 / E],
        "l starts anew with every block: add to the rescaled l": [1.0],
        "the new block's sum is missing in l_new": [2 / E],
        "the new block's sum is rescaled, and the old one is not": [2 + 1 / E],
    })  # fmt: skip
    compare([[1.0]], [3.0], [2.0], "the maximum was seen before: the new block must be relative to it", {
        "m_new is the block's own maximum: the running one never falls": [1.0],
    }, {
        "p is relative to the block's own maximum: it must be relative to m_new": [[1.0]],
        "the exponent has the wrong sign: it is s − m_new, which is never positive": [[E**2]],
    }, {
        "alpha is taken with the block's own maximum: it is exp(m − m_new), which is at most 1": [E**2],
        "alpha belongs to the new block here: it is exp(m − m_new), and m has not changed": [E**-2],
    }, {
        "l_new adds the block's sum relative to its own maximum": [3.0],
        "l starts anew with every block: add to the rescaled l": [E**-2],
    })  # fmt: skip

    s = torch.tensor([[1.0, 2.0, 0.0], [4.0, 3.0, 6.0]], dtype=torch.float64)
    m, l = torch.tensor([3.0, 5.0], dtype=torch.float64), torch.tensor([2.0, 1.0], dtype=torch.float64)
    p, _, _, alpha = _step(s, m, l)
    flat = torch.exp(s - 6)
    compare(s.float(), m.float(), l.float(), "two rows: each has its own m, l and alpha", {
        "one maximum is taken over the whole tile: each row has its own": [6.0, 6.0],
    }, {
        "p of both rows is relative to the largest score of the tile: each row has its own maximum": flat,
    }, {
        "one alpha is taken for the whole tile: each row has its own": [E**-3, E**-1],
    }, {
        "l_new adds the sum of the whole tile: each row has its own sum": alpha * l + p.sum(),
    }, on="s of shape (2, 3), m = [3, 5], l = [2, 1]")  # fmt: skip
    s = torch.tensor([[1.0, 2.0], [4.0, 6.0]], dtype=torch.float64)
    p, m_new, _, alpha = _step(s, m, l)
    compare(s.float(), m.float(), l.float(), "a square tile: a row's maximum and sum run over its keys", {
        "the maximum runs down the columns: take it over the last dimension, the keys": torch.maximum(m, s.amax(0)),
    }, {
        "column j is shifted by the maximum of row j: it has lost its dimension": torch.exp(s - m_new),
    }, None, {
        "the sum runs down the columns: take it over the last dimension, the keys": alpha * l + p.sum(0),
    })  # fmt: skip
    compare(torch.arange(12.0).view(2, 2, 3) ** 0.5, torch.ones(2, 2), torch.ones(2, 2), "s may have more dimensions, batch and heads, in front",
            on="s of shape (2, 2, 3)")  # fmt: skip

    nothing = "a row that has seen nothing keeps m = −inf and l = 0, and its p is 0"
    compare([[-INF, -INF]], [-INF], [0.0], nothing, {
        "the maximum of nothing is NaN: it is −inf": [NAN],
    }, {
        "a row that has seen nothing gives NaN: m_new is −inf, and −inf − (−inf) is NaN": [[NAN, NAN]],
        "hidden scores count as 1 in a row that has seen nothing: exp(−inf) is 0": [[1.0, 1.0]],
    }, {
        "alpha is NaN in a row that has seen nothing: −inf − (−inf)": [NAN],
    }, {
        "l_new is NaN in a row that has seen nothing: −inf − (−inf)": [NAN],
    })  # fmt: skip
    compare([[-INF, -INF]], [2.0], [3.0], "a block that is hidden from a row must leave its m and l as they are", None, {
        "a hidden block gives NaN: its own maximum is −inf, and −inf − (−inf) is NaN": [[NAN, NAN]],
        "hidden scores count as 1: exp(−inf) is 0": [[1.0, 1.0]],
    }, {
        "alpha drops what was seen before a hidden block: m has not changed, so it is 1": [0.0],
    }, {
        "l starts anew at a hidden block": [0.0],
    })  # fmt: skip
    compare([[-INF, 1.0]], [-INF], [0.0], "a hidden score beside one that is seen has p = 0", None, {
        "a row with one hidden score is treated as if it saw nothing": [[0.0, 0.0]],
    })  # fmt: skip
    compare([[-INF, -INF], [1.0, 2.0]], [-INF, 0.0], [0.0, 1.0], "one row has seen nothing, the other has: tell them apart row by row")
    compare([[-2.0, -1.0]], [-INF], [0.0], "negative scores: m_new is their maximum", {"m_new is never below 0: the scores are": [0.0]})
    compare([[1000.0, 1001.0]], [999.0], [1.0], "exp overflows: every exponent must be relative to m_new")
    compare([[-1000.0, -1001.0]], [-INF], [0.0], "exp underflows: every exponent must be relative to m_new")
    compare([[0.0], [1000.0]], [0.0, 0.0], [1.0, 1.0], "row 0 underflows (it would if one maximum were taken for the whole tile)")

    thirds = torch.arange(1.0, 7.0, dtype=torch.float64).view(2, 3) / 3  # no float32 holds most of them
    compare(thirds, thirds[:, 0] / 3, thirds[:, 1], OTHERS, on="s = [[1/3, 2/3, 1], [4/3, 5/3, 2]] in float64", values=False)
    generator = fresh()
    for shape in ((1, 1), (5, 7), (2, 3, 4, 8)):
        for words, s, m, l in _step_states(generator, *shape):
            for dtype in (torch.float32, torch.float64):
                compare(s.to(dtype), m.to(dtype), l.to(dtype), OTHERS, on=f"{words}, s of shape {shape}, {dtype_name(dtype)}", values=False)
    _, s, m, l = next(_step_states(generator, 3, 4, 6))
    compare(
        strided_copy(s.float()), strided_copy(m.float()), strided_copy(l.float()), STRIDES, on="views, s of shape (3, 4, 6)", values=False
    )


# ---------------------------------------------------------------- 4.2


class ShapeWatch(TorchFunctionMode):
    """Notes the sizes of the float tensors that come up.

    shapes: their last two dimensions. sliced: the numbers of rows of views, D wide, into memory as large as q's.
    """

    def __init__(self, q: torch.Tensor):
        super().__init__()
        self.size, self.D = q.numel(), q.shape[-1]
        self.shapes: set[tuple[int, ...]] = set()
        self.sliced: set[int] = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, torch.Tensor) and x.is_floating_point() and x.ndim >= 2:
                self.shapes.add(tuple(x.shape[-2:]))
                if x.shape[-1] == self.D and x.untyped_storage().nbytes() == self.size * x.element_size():
                    self.sliced.add(x.shape[-2])
        return result


def refuse_whole_scores(answer) -> None:
    """Wrong unless the scores come in tiles of at most block_m × block_n. No two of the sizes are equal."""
    S_q, S_k, D, block_m, block_n = 11, 14, 3, 4, 6
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, S, D, generator=generator) for S in (S_q, S_k, S_k))
    on = f"S_q = {S_q}, S_k = {S_k}, blocks {block_m} × {block_n}"
    with ShapeWatch(q) as watch:
        run(answer, q, k, v, block_m, block_n, False, 1.0, on=on)
    if block_n in watch.sliced and block_m not in watch.sliced:
        raise Wrong(
            f"block_m and block_n are exchanged: block_m counts rows of q, block_n rows of k: {on}, q is cut into blocks of {block_n} rows"
        )
    for shape, what in (((S_q, S_k), "all scores are computed at once"), ((block_m, S_k), "all keys of a block of rows are taken at once"),
                        ((S_q, block_n), "all queries are taken at once")):  # fmt: skip
        if shape in watch.shapes or shape[::-1] in watch.shapes:
            raise Wrong(f"{what}: {on}, a matrix of {shape[0]} × {shape[1]} is built, and no tile may be larger than {block_m} × {block_n}")


def _attend(s: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse of one head from its scores, its values and what each row sees; a row that sees nothing gives 0 and −inf."""
    s = s.double().masked_fill(~seen, -INF)
    lse = torch.logsumexp(s, -1)
    return torch.where(lse[:, None] == -INF, 0.0, torch.exp(s - lse[:, None])) @ v.double(), lse


def distributions(generator: torch.Generator, B: int, H: int, S_q: int, S_k: int, D: int) -> Iterator[tuple[str, tuple[torch.Tensor, ...]]]:
    """(in words, (q, k, v)) for each distribution that has once broken a kernel; scores are meant before a scale of about 1/√D."""
    q, k, v = (torch.randn(B, H, S, D, generator=generator) for S in (S_q, S_k, S_k))
    yield "randn", (q, k, v)
    yield "3·randn", (3 * q, 3 * k, v)
    ramp, lead = torch.arange(S_k).float(), q.clone()
    lead[..., 0] = 2.0
    for words, first in (
        ("a maximum that grows with every block", 0.7 * ramp),
        ("a maximum at the start", -0.7 * ramp),
        ("all scores near −1e4", torch.full_like(ramp, -5e3 * math.sqrt(D))),
        ("scores up to ±1e4", 5e3 * math.sqrt(D) * torch.cos(ramp)),
    ):
        steered = k.clone()
        steered[..., 0] = first
        yield words, (lead, steered, v)
    yield "equal keys", (q, k[:, :, :1].expand_as(k).contiguous(), v)


def grade_flash_forward(answer) -> None:
    def compare(q, k, v, blocks, is_causal=False, scale=1.0, *, on, otherwise, of_o=None, of_lse=None, values=True):
        with PoisonedEmpty():
            o, lse = unpack(run(answer, q, k, v, *blocks, is_causal, scale, on=on), ("o", "lse"), on)
        want_o, want_lse = reference.attention(q, k, v, is_causal, scale)
        if as_tensor(o, "o").shape == want_lse.shape and as_tensor(lse, "lse").shape == want_o.shape:
            raise Wrong(f"o and lse are exchanged: return (o, lse): {on}")
        refuse_shape(o, want_o, "o", on, "that of q")
        refuse_shape(lse, want_lse, "lse", on, "(B, H, S_q)")
        # Scores are sums of products: each is rounded by a few float32 units of the sum of their absolute values.
        noise = (
            4 * torch.finfo(torch.float32).eps * abs(scale) * float((q.abs().double() @ k.abs().double().mT).amax()) if k.numel() else 0.0
        )
        size = float(v.double().abs().max()) if v.numel() else 1.0
        one = (0,) * (3 if q.shape[:3].numel() == 1 else 2 if q.shape[:2].numel() == 1 else 0)  # what is compared and shown: no leading 1s
        for got, want, suspects, what, rtol, atol in (
            (o, want_o, of_o, "o", 0.0, (RTOL[q.dtype] + noise) * size),
            (lse, want_lse, of_lse, "lse", 1e-6, noise + (2e-5 if q.dtype == torch.float32 else 1e-3)),
        ):
            shaped = {name: value.double().reshape(want.shape)[one] for name, value in _tensors(suspects).items()}
            expect(
                as_tensor(got)[one], want[one], on=on, otherwise=otherwise, suspects=shaped, what=what, rtol=rtol, atol=atol, values=values
            )

    def with_scores(s, blocks, is_causal=False, scale=1.0, *, otherwise, of_o=None, of_lse=None):
        """q is the identity and k = sᵀ, so that q kᵀ is s; v is the identity, so that o is the weights themselves."""
        s = torch.tensor(s)
        (S_q, S_k), D = s.shape, max(s.shape)
        q, k, v = torch.eye(S_q, D), torch.zeros(S_k, D), torch.eye(S_k, D)
        k[:, :S_q] = s.T
        on = f"q kᵀ = {show_nested(s.tolist())}, v = the identity, blocks {blocks[0]} × {blocks[1]}, scale = {scale:g}{', causal' if is_causal else ''}"
        if S_k < D:  # o has columns that no key fills: 0, or NaN where the row is
            of_o = {name: torch.cat([value, 0 * value[:, : D - S_k]], dim=1) for name, value in (of_o or {}).items()}
        compare(q[None, None], k[None, None], v[None, None], blocks, is_causal, scale, on=on, otherwise=otherwise, of_o=of_o, of_lse=of_lse)

    _grade_one_row(compare, with_scores)
    _grade_rows(compare, with_scores)
    _grade_causal(with_scores)
    _grade_unseen(compare)
    refuse_whole_scores(answer)
    _grade_halves(compare)
    refuse_other_dtype(answer)
    _grade_fresh(compare)


def _grade_one_row(compare, with_scores) -> None:
    """One query: the softmax of its scores, in one block and in several, with a scale."""
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    p, l = torch.exp(x - 2), 1 + 1 / E
    lse = 2 + math.log(l)
    with_scores([[1.0, 2.0]], (1, 2), otherwise="one tile: o = acc / l and lse = m + log l", of_o={
        "acc is not divided by l": p,
        "p = exp(s) is neither shifted nor divided": torch.exp(x),
        "the exponent has the wrong sign: it is s − m, which is never positive": p.flip(0) / l,
        "the scores are scaled by 1/√D: multiply them by the scale that is given, and nothing else": torch.softmax(x / math.sqrt(2), 0),
        "o is never written": [NAN, NAN],
        "o stays 0: write each finished block of rows to it": [0.0, 0.0],
    }, of_lse={
        "lse is m alone: add log l": 2.0,
        "lse is log l alone: it is relative to m, so add m": math.log(l),
        "lse is l: take its logarithm and add m": l,
        "lse is m + l: take the logarithm of l": 2 + l,
        "log l is in base 2: lse is the natural logarithm": 2 + math.log2(l),
        "lse is in base 2: it is the natural logarithm": lse / math.log(2),
        "log l is subtracted: lse is m + log l": 2 - math.log(l),
        "lse has the wrong sign: it is m + log l": -lse,
        "lse is never written": NAN,
        "lse stays 0: write each finished block of rows to it": 0.0,
    })  # fmt: skip
    plain, rows = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [5.0]])
    mixed = "o is the sum of the rows of v, each times its key's weight"
    compare(torch.ones(1, 1, 1, 1), plain.view(1, 1, 2, 1), rows.view(1, 1, 2, 1), (1, 2), on="q = [[1]], k = [[1], [2]], v = [[3], [5]], one tile",
            otherwise=mixed, of_o={"k stands where v belongs": p @ plain[:, 0].double() / l})  # fmt: skip
    raw = torch.tensor([2.0, 4.0], dtype=torch.float64)
    with_scores([[2.0, 4.0]], (1, 2), scale=0.5, otherwise="s = scale · q kᵀ", of_o={
        "the scale is ignored": torch.softmax(raw, 0),
        "the scale is applied twice": torch.softmax(raw / 4, 0),
        "the scores are divided by the scale: multiply them": torch.softmax(raw * 2, 0),
        "the scores are multiplied by the root of the scale": torch.softmax(raw * math.sqrt(0.5), 0),
        "o is multiplied by the scale: the scores are": 0.5 * torch.softmax(raw, 0),
        "the weights are multiplied by the scale: the scores are": 0.5 * torch.softmax(raw / 2, 0),
    }, of_lse={
        "lse is that of the scores before the scale": 4 + math.log(1 + E**-2),
        "the m in lse is that of the scores before the scale": 4 + math.log(l),
        "lse is scaled a second time": 0.5 * lse,
    })  # fmt: skip
    with_scores([[1.0, 2.0]], (1, 2), scale=-1.0, otherwise="a negative scale turns the order round: take the maximum of the scaled scores")
    with_scores([[1.0, 2.0]], (1, 2), scale=0.0, otherwise="a scale of 0 is a scale too: all keys weigh the same", of_o={
        "a scale of 0 is taken for none given: all keys weigh the same": torch.softmax(x / math.sqrt(2), 0),
    })  # fmt: skip

    with_scores([[1.0, 2.0]], (1, 1), otherwise="two blocks: when the maximum grows, rescale acc and l alike", of_o={
        "your acc is not rescaled when the maximum grows, and l is": torch.ones(2) / l,
        "your l is not rescaled when the maximum grows, and acc is": p / 2,
        "neither acc nor l is rescaled: each block's p is relative to its own maximum, and counts alike": [0.5, 0.5],
        "each block is normalised by itself, and the results are added": [1.0, 1.0],
        "acc and l are rescaled with alpha inverted: it is exp(m − m_new)": p.flip(0) / l,
        "acc is rescaled with alpha inverted: it is exp(m − m_new)": torch.tensor([E, 1.0]) / l,
        "l is rescaled with alpha inverted: it is exp(m − m_new)": p / (1 + E),
        "only the last block is left in o: m, l and acc are carried on from block to block": [0.0, 1.0],
        "only the last block is left in acc: add to the rescaled acc": [0.0, 1 / l],
        "only the last block is left in l: add to the rescaled l": p,
        "only the first block of keys is used": [1.0, 0.0],
        "the new block's p v is rescaled as well: only what was summed before it is": torch.tensor([1 / E, 1 / E]) / l,
    }, of_lse={
        "the l in lse is the last block's alone": 2.0,
        "the l in lse is not rescaled when the maximum grows": 2 + math.log(2),
        "the m in lse is the first block's": 1 + math.log(l),
    })  # fmt: skip
    with_scores([[2.0, 1.0]], (1, 1), otherwise="the maximum is in the first block: the second must be relative to it", of_o={
        "p is relative to its block's own maximum, and acc and l to the running one": [0.5, 0.5],
        "acc is right, but l adds the second block relative to its own maximum": p.flip(0) / 2,
        "m is the last block's own maximum: the running one never falls": torch.tensor([E, 1.0]) / (E + 1),
    }, of_lse={
        "the m in lse is the last block's, not the running maximum": 1 + math.log(l),
    })  # fmt: skip
    three = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    first_two, total = torch.softmax(three[:2], 0), torch.exp(three - 3).sum()
    with_scores([[1.0, 2.0, 3.0]], (1, 1), otherwise="three blocks: acc and l are carried on from block to block", of_o={
        "acc is divided by l in every block, and the next one takes it for the undivided sum: divide once, at the end":
            torch.cat([torch.tensor([1 / E, 1.0]) / l / E, torch.ones(1)]) / total,
    })  # fmt: skip
    padded = torch.exp(three - 3) / (total + E**-3)
    with_scores([[1.0, 2.0, 3.0]], (1, 2), otherwise="the last block of keys may be ragged: 3 keys are a block of 2 and a block of 1", of_o={
        "the ragged last block of keys is dropped: 3 keys are a block of 2 and a block of 1": torch.cat([first_two, torch.zeros(1)]),
        "the ragged last block of keys is filled up with zeros, and a score of 0 counts: hide it with −inf": padded,
    })  # fmt: skip
    with_scores([[1.0, 2.0]], (8, 8), otherwise="blocks may be larger than S_q and S_k")
    with_scores([[1000.0, 1001.0]], (1, 1), otherwise="exp overflows: the scores must be shifted by the running maximum before exp")
    with_scores([[1000.0, 0.0]], (1, 1), otherwise="exp overflows: m is the maximum of all that was seen, and it never falls")
    with_scores([[-1000.0, -1001.0]], (1, 1), otherwise="exp underflows (it would if m started at 0, above every score)")


def _grade_rows(compare, with_scores) -> None:
    """Several queries, in one block and in several, ragged; several heads; S_q ≠ S_k."""
    s = torch.tensor([[1.0, 2.0], [4.0, 1.0]], dtype=torch.float64)
    (o, lse), p = _attend(s, torch.eye(2), torch.ones(2, 2, dtype=torch.bool)), torch.exp(s - s.amax(-1, keepdim=True))
    with_scores([[1.0, 2.0], [4.0, 1.0]], (2, 2), otherwise="two rows of one tile: each has its own m and l", of_o={
        "l is summed over the whole tile: each row has its own": p / p.sum(),
        "the softmax runs over the queries: each query's weights over the keys must add up to 1": torch.softmax(s, 0),
        "column j is divided by the l of row j: it has lost its dimension": p / p.sum(-1),
    })  # fmt: skip
    nan, zero = torch.full((1, 2), NAN), torch.zeros(1, 2)
    carried = torch.exp(s - 4).sum(0) / torch.exp(s - 4).sum()
    again = "each block of rows begins with m = −inf, l = 0, acc = 0"
    with_scores([[1.0, 2.0], [4.0, 1.0]], (1, 2), otherwise=f"two blocks of rows: {again}", of_o={
        f"the state of one block of rows is carried over to the next: {again}": torch.stack([o[0], carried]),
        "only the first block of rows is computed": torch.cat([o[:1], nan]),
        "only the first block of rows is computed, the others stay 0": torch.cat([o[:1], zero]),
        "every block of rows is written to the place of the first": torch.cat([o[1:], nan]),
        "the first block of rows stays 0": torch.cat([zero, o[1:]]),
        "every block of rows takes the first block of q": torch.stack([o[0], o[0]]),
    }, of_lse={
        "lse of the first block of rows alone is written": [float(lse[0]), NAN],
    })  # fmt: skip
    s = torch.tensor([[1.0, 2.0], [4.0, 1.0], [0.0, 3.0]], dtype=torch.float64)
    o, lse = _attend(s, torch.eye(2), torch.ones(3, 2, dtype=torch.bool))
    with_scores(s.float().tolist(), (2, 2), otherwise="the last block of rows may be ragged: 3 rows are a block of 2 and a block of 1", of_o={
        "the ragged last rows are dropped: 3 rows are a block of 2 and a block of 1": torch.cat([o[:2], nan]),
        "the ragged last rows are dropped, and stay 0: 3 rows are a block of 2 and a block of 1": torch.cat([o[:2], zero]),
    }, of_lse={
        "lse of the ragged last rows is never written": torch.cat([lse[:2], lse.new_tensor([NAN])]),
        "lse of the ragged last rows stays 0": torch.cat([lse[:2], lse.new_zeros(1)]),
    })  # fmt: skip
    wide = torch.tensor([[1.0, 2.0, 3.0], [4.0, 1.0, 0.0]], dtype=torch.float64)
    cut = torch.ones(2, 3, dtype=torch.bool)
    cut[:, 2] = False
    with_scores(wide.float().tolist(), (1, 1), otherwise="the loop over rows runs to S_q, the loop over keys to S_k", of_o={
        "the loop over keys runs to S_q: k and v have S_k rows": _attend(wide, torch.eye(3), cut)[0],
    })  # fmt: skip
    with_scores(
        [[0.0, 0.0], [1000.0, 1000.0]], (2, 2), otherwise="row 0 underflows (it would if one maximum were taken for the whole tile)"
    )
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, S, 4, generator=generator) for S in (3, 5, 5))
    o = reference.attention(q, k, v, False, 0.5)[0]
    compare(q, k, v, (2, 2), scale=0.5, on="B = 2, H = 3, S_q = 3, S_k = 5, D = 4, blocks 2 × 2, scale = 0.5",
            otherwise="every head of every batch element is attention of its own", of_o={
                "every head gets the result of head 0": o[:, :1].expand(-1, 3, -1, -1),
                "every batch element gets the result of batch element 0": o[:1].expand(2, -1, -1, -1),
            })  # fmt: skip


def _masked_suspects(s: torch.Tensor, seen: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Diagnosis -> o where each row sees what this mistake lets it see. Where a row is left with nothing, o is 0 or, divided by 0, NaN."""
    suspects = {}
    for name, mask in seen.items():
        o, lse = _attend(s, torch.eye(s.shape[1]), mask)
        suspects[name] = o
        if bool((lse == -INF).any()):
            suspects[f"{name} (NaN: a row is left with nothing)"] = torch.where(lse[:, None] == -INF, NAN, o)
    return suspects


def _grade_causal(with_scores) -> None:
    """The mask within a tile, from tile to tile, with tiles that are no squares, and with S_q ≠ S_k."""
    s = torch.tensor([[1.0, 2.0], [4.0, 1.0]], dtype=torch.float64)
    whole = torch.ones(2, 2, dtype=torch.bool)
    with_scores(s.float().tolist(), (2, 2), True, otherwise="one tile: query i sees keys 0 … i", of_o={
        **_masked_suspects(s, {
            "is_causal changes nothing": whole,
            "the mask is strict: query i sees key i too": whole.tril(-1),
            "the mask is upside down: it hides the past": whole.triu(),
            "the tile on the diagonal is skipped: some of its keys are seen": ~whole,
        }),
        "hidden scores are set to 0, and exp(0 − m) is a weight like any other: use −inf": torch.softmax(s.tril(), -1),
        "the mask comes after the softmax: the weights that are left no longer add up to 1": torch.softmax(s, -1).tril(),
    })  # fmt: skip
    s = torch.tensor([[1.0, 2.0, 0.0, 3.0], [2.0, 1.0, 3.0, 0.0], [0.0, 3.0, 1.0, 2.0], [3.0, 0.0, 2.0, 1.0]], dtype=torch.float64)
    i, j = torch.arange(4)[:, None], torch.arange(4)[None, :]
    seen = j <= i
    by_position = "the mask is by positions in the tile: compare positions in the sequence, the tile's own start added"
    for (block_m, block_n), otherwise, mistakes in (
        ((2, 2), "four tiles: query i sees keys 0 … i", {
            by_position: j % 2 <= i % 2,
            f"{by_position} (tiles above the diagonal are skipped)": (j % 2 <= i % 2) & (j // 2 <= i // 2),
            "the tile on the diagonal is not masked: some of its keys come after some of its queries": j // 2 <= i // 2,
            "the tile on the diagonal is skipped: some of its keys are seen": j // 2 < i // 2,
            "tiles above the diagonal are left unmasked": seen | (j // 2 > i // 2),
        }),
        ((2, 1), "tiles of 2 rows and 1 key: a block of rows may need several masked tiles", {
            "row_block is compared with key_block as if block_m and block_n were equal: too many tiles are skipped": seen & (j <= i // 2),
            "the last tile that the block of rows sees is skipped": seen & (j < i // 2 * 2 + 1),
        }),
        ((1, 2), "tiles of 1 row and 2 keys: the tile on the diagonal is found by positions, not by block numbers", {
            "row_block is compared with key_block as if block_m and block_n were equal: too few tiles are masked": seen | (j // 2 < i),
            "the last tile that the block of rows sees is skipped": seen & (j // 2 < (i + 1) // 2),
        }),
        ((2, 3), "4 keys in blocks of 3: masked tiles may be ragged", {}),
        ((3, 2), "4 rows in blocks of 3: the last block has one row", {}),
    ):  # fmt: skip
        with_scores(s.float().tolist(), (block_m, block_n), True, otherwise=otherwise, of_o=_masked_suspects(s, mistakes))
    wide = torch.tensor([[1.0, 2.0, 0.0], [4.0, 1.0, 3.0]], dtype=torch.float64)
    whole = torch.ones(2, 3, dtype=torch.bool)
    below = "S_q < S_k: query i sees keys 0 … i + S_k − S_q"
    with_scores(wide.float().tolist(), (2, 3), True, otherwise=f"one tile, {below}", of_o=_masked_suspects(wide, {
        "the mask starts at the top left: align it so that the last query sees the last key": whole.tril(),
        "S_k − S_q has the wrong sign: query i sees keys 0 … i + S_k − S_q": whole.tril(-1),
        "with S_q < S_k nothing is masked any more": whole,
    }))  # fmt: skip
    with_scores(wide.float().tolist(), (1, 1), True, otherwise=f"tiles of one score, {below}", of_o=_masked_suspects(wide, {
        "the tiles to skip are found top left: S_k − S_q is missing where the walk over the keys ends": whole.tril(),
        "the last tile that the block of rows sees is skipped": whole.tril(0),
    }))  # fmt: skip


def _grade_unseen(compare) -> None:
    """Rows that see nothing: under the causal mask with S_q > S_k, and without any key."""
    q, k, v = torch.ones(1, 1, 3, 1), torch.full((1, 1, 1, 1), 2.0), torch.full((1, 1, 1, 1), 5.0)
    for blocks, words, finite in (
        (
            (4, 1),
            "all rows in one tile",
            "hidden scores are a finite number such as −1e6: where a row sees nothing, that is its maximum, and p is 1",
        ),
        ((1, 1), "a row a tile", "rows that see nothing get a key all the same"),
    ):
        compare(q, k, v, blocks, True, on=f"causal, S_q = 3, S_k = 1, q kᵀ = 2, v = 5, {words}",
                otherwise="rows 0 and 1 see no key: o = 0 and lse = −inf, and the last row sees the one key", of_o={
            "rows that see nothing give NaN, by −inf − (−inf) in an exponent or 0 / 0 at the end: o must be 0": [NAN, NAN, 5.0],
            "rows that see nothing are never written: o must be 0": [NAN, NAN, NAN],
            finite: [5.0, 5.0, 5.0],
            "the mask starts at the top left: the last query sees the last key": [5.0, 0.0, 0.0],
        }, of_lse={
            "lse of rows that see nothing is NaN: it must be −inf": [NAN, NAN, 2.0],
            "lse of rows that see nothing is 0: log 0 is −inf": [0.0, 0.0, 2.0],
            "lse of rows that see nothing is +inf: it must be −inf": [INF, INF, 2.0],
        })  # fmt: skip
    nothing = torch.zeros(1, 1, 0, 1)
    compare(q, nothing, nothing, (2, 2), on="S_q = 3, S_k = 0", otherwise="no key at all: o = 0 and lse = −inf", of_o={
        "no key at all, and o is 0 / 0 = NaN: it must be 0": [NAN] * 3,
    }, of_lse={
        "no key at all, and lse is NaN: it must be −inf": [NAN] * 3,
        "no key at all, and lse is 0: log 0 is −inf": [0.0] * 3,
    })  # fmt: skip


def _grade_halves(compare) -> None:
    """float16 in: what would overflow or lose its digits there has to be float32."""
    half = torch.float16
    row = torch.full((1, 1, 1, 1), 300.0, dtype=half)
    one = torch.ones(1, 1, 1, 1, dtype=half)
    compare(row, row, one, (1, 1), scale=1e-4, on="float16, q = k = 300, scale = 1e-4",
            otherwise="q kᵀ is 90,000, and float16 ends at 65,504: compute the scores in float32", of_o={
                "a score of 90,000 is inf in float16, and inf − inf is NaN: compute the scores in float32": NAN,
            })  # fmt: skip
    keys, values = torch.zeros(1, 1, 4, 1, dtype=half), torch.full((1, 1, 4, 1), 6e4, dtype=half)
    compare(one, keys, values, (1, 2), on="float16, four equal keys, v = 60,000",
            otherwise="the undivided acc passes 65,504, where float16 ends: keep acc in float32")  # fmt: skip
    keys = torch.full((1, 1, 3, 1), 9.0, dtype=half)
    compare(one, keys, keys, (1, 2), on="float16, three scores of 9", otherwise="lse has lost digits: keep m, l and lse in float32",
            values=False)  # fmt: skip
    keys = torch.tensor([[2048.0, 1.0], [2048.0, 0.0]], dtype=half).view(1, 1, 2, 2)
    compare(torch.ones(1, 1, 1, 2, dtype=half), keys, torch.eye(2, dtype=half).view(1, 1, 2, 2), (1, 2), on="float16, scores 2,049 and 2,048",
            otherwise="float16 has no 2,049: compute the scores in float32", of_o={
                "both keys weigh the same, for float16 rounds 2,049 to 2,048: compute the scores in float32, not only keep them so": [0.5, 0.5],
            })  # fmt: skip
    row = torch.full((1, 1, 1, 1), 9.5, dtype=half)
    compare(one, row, one, (1, 1), scale=1.0004, on="float16, q = 1, k = 9.5, scale = 1.0004", otherwise="one score of 9.5038: lse is that score", of_lse={
        "q or k times the scale is rounded to float16: scale the scores, which are float32": 9.5,
    })  # fmt: skip


def refuse_other_dtype(answer) -> None:
    """Wrong unless o has q's dtype. Its values are right by now."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        x = torch.ones(1, 1, 1, 1, dtype=dtype)
        on = f"q, k and v in {dtype_name(dtype)}"
        o = unpack(run(answer, x, x, x, 1, 1, False, 1.0, on=on), ("o", "lse"), on)[0]
        if o.dtype != dtype:
            raise Wrong(f"o is {dtype_name(o.dtype)}, and must have the dtype of q: {on}")


def _grade_fresh(compare) -> None:
    generator = fresh()
    for (*shape, block_m, block_n), scale in (((1, 1, 1, 1, 1, 4, 4), 1.0), ((2, 3, 9, 17, 8, 8, 4), 0.3), ((1, 2, 33, 33, 5, 32, 16), 0.5),
                                              ((2, 2, 20, 9, 4, 8, 4), 0.5), ((1, 2, 1, 40, 16, 16, 16), 0.25)):  # fmt: skip
        for words, (q, k, v) in distributions(generator, *shape):
            for is_causal in (False, True):
                on = f"{words}, (B, H, S_q, S_k, D) = {tuple(shape)}, blocks {block_m} × {block_n}{', causal' if is_causal else ''}"
                compare(q, k, v, (block_m, block_n), is_causal, scale, on=on, otherwise=OTHERS, values=False)
    q, k, v = (torch.randn(2, 3, S, 8, generator=generator) for S in (7, 10, 10))
    for dtype in (torch.float16, torch.bfloat16):
        halves = (x.to(dtype) for x in (q, k, v))
        compare(*halves, (4, 4), True, 0.35, on=f"randn, S_q = 7, S_k = 10, causal, {dtype_name(dtype)}", otherwise=OTHERS, values=False)
    transposed = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    compare(*transposed, (4, 4), True, 0.35, on="transposed views of (B, S, H, D)", otherwise=STRIDES, values=False)
    compare(*(strided_copy(x) for x in (q, k, v)), (4, 4), True, 0.35, on="slices of wider tensors", otherwise=STRIDES, values=False)


# ---------------------------------------------------------------- 4.3


def _up(x: int, y: int) -> int:
    return -(-x // y)


def _tile_suspects(row_block: int, block_m: int, block_n: int, S_q: int, S_k: int) -> tuple[dict[str, int | None], dict[str, int | None]]:
    """Diagnosis -> full, and diagnosis -> end, that this very mistake gives; None where it gives nothing."""
    shift = S_k - S_q
    first, stop = row_block * block_m, min((row_block + 1) * block_m, S_q)
    by_first, by_last = first + 1 + shift, stop + shift
    masked = max(0, _up(by_last, block_n)) - max(0, by_first // block_n)
    of_full = {
        "full is negative: the first row sees no key, so no tile is whole": by_first // block_n if by_first < 0 else None,
        "full is found from the last row: a tile is whole only if the first row, which sees least, sees all of it": by_last // block_n,
        "a ragged last block is counted as whole: its missing keys need the mask": _up(by_first, block_n) if by_first == S_k else None,
        "full counts tiles of which the first row sees a part: round down": _up(by_first, block_n),
        "full is counted top left: S_k − S_q is missing": (first + 1) // block_n,
        "full is one short at the diagonal: row i sees i + 1 + S_k − S_q keys, key i + S_k − S_q among them": (by_first - 1) // block_n,
        "S_k − S_q has the wrong sign in full": (first + 1 - shift) // block_n,
        "full counts keys: divide by block_n": by_first,
        "row_block is taken for a row: the block's first row is row_block · block_m": (row_block + 1 + shift) // block_n,
        "block_m and block_n are exchanged in full": (row_block * block_n + 1 + shift) // block_m,
        "full is row_block, as if block_m and block_n were equal: divide the number of keys by block_n": row_block,
        "full is the index of the last whole tile: return how many there are": by_first // block_n - 1,
        "full is how many tiles need the mask: return how many come before them": masked,
    }
    of_end = {
        "end is negative: a block of rows that sees no key ends at 0": _up(by_last, block_n) if by_last < 0 else None,
        "end is the last key block that is seen: return one past it": _up(by_last, block_n) - 1 if by_last % block_n == 0 else None,
        "end goes on past the last row: the last block of rows is ragged, and its last row is S_q − 1": _up(
            first + block_m + shift, block_n
        ),
        "end leaves out a tile that the last row sees in part: round up": by_last // block_n if by_last % block_n != 1 else None,
        "end is found from the first row, or one past full: the last row sees most": _up(by_first, block_n),
        "end is counted top left: S_k − S_q is missing": _up(stop, block_n),
        "end is one short at the diagonal: row i sees i + 1 + S_k − S_q keys, key i + S_k − S_q among them": _up(by_last - 1, block_n),
        "S_k − S_q has the wrong sign in end": _up(stop - shift, block_n),
        "no tile is skipped: end is where all key blocks end": _up(S_k, block_n),
        "end counts keys: divide by block_n": by_last,
        "block_m and block_n are exchanged in end": _up(min((row_block + 1) * block_n, S_q) + shift, block_m),
        "end is row_block + 1, as if block_m and block_n were equal: divide the number of keys by block_n": row_block + 1,
        "end is one too many: it is one past the last tile that row row_block · block_m + block_m − 1 sees": max(0, _up(by_last, block_n))
        + 1,
        "end is how many tiles need the mask: return one past the last of them": masked,
    }
    return of_full, of_end


def _count(got: Any, what: str, on: str) -> float:
    with told_on(on):
        number = as_tensor(got, what)
        if number.numel() != 1:
            raise Wrong(f"{what} is a tensor of shape {tuple(number.shape)}, want one number")
    return int(number) if float(number).is_integer() else float(number)


def grade_causal_tiles(answer) -> None:
    def compare(*args: int, otherwise: str, values: bool = True) -> None:
        on = "causal_tiles({})".format(", ".join(map(str, args))) if values else "a random case"
        full, end = unpack(run(answer, *args, on=on), ("full", "end"), on)
        full, end = _count(full, "full", on), _count(end, "end", on)
        want_full, want_end = algorithm.causal_tiles(*args)
        of_full, of_end = _tile_suspects(*args) if values else ({}, {})
        if values and want_full != want_end and (full, end) == (want_end, want_full):
            raise Wrong(
                f"full and end are exchanged: return (full, end): {on} gives {show((full, end))}, want {show((want_full, want_end))}"
            )
        for got, want, suspects, what in ((full, want_full, of_full, "full"), (end, want_end, of_end, "end")):
            where = f"{on}, {what}," if values else f"{on}, {what}"
            given = {name: value for name, value in suspects.items() if value is not None}
            expect_equal(got, want, on=where, otherwise=otherwise, suspects=given, values=values)

    small = "full: tiles that the block's first row sees whole; end: one past the last tile that its last row sees"
    compare(2, 8, 2, 32, 32, otherwise=small)  # here each known mistake gives another number
    compare(2, 2, 4, 16, 16, otherwise="block_m < block_n: the tile on the diagonal is not that of the same number")
    compare(3, 1, 2, 8, 8, otherwise="row i sees key i too")
    compare(2, 1, 2, 8, 8, otherwise="row i sees key i too")
    compare(2, 2, 2, 8, 11, otherwise="S_q < S_k: row i sees keys 0 … i + S_k − S_q")
    compare(1, 4, 2, 5, 5, otherwise="the last block of rows is ragged: its last row is S_q − 1")
    compare(4, 1, 2, 5, 5, otherwise="a ragged last key block is seen, and is not whole")
    compare(1, 4, 2, 6, 9, otherwise="ragged rows and S_q < S_k")
    unseen = "S_q > S_k: the first S_q − S_k rows see no key, and count nothing, never less than nothing"
    compare(0, 2, 2, 8, 3, otherwise=unseen)
    compare(0, 4, 4, 20, 4, otherwise=unseen)
    compare(1, 4, 2, 8, 3, otherwise="S_q > S_k, a block of rows of which some see nothing")
    compare(0, 4, 2, 4, 0, otherwise="no key at all: (0, 0)")
    compare(0, 64, 32, 3, 200, otherwise="blocks may be larger than S_q")
    for _ in range(200):
        block_m, block_n = (random.choice((1, 2, 3, 16, 64)) for _ in range(2))
        S_q, S_k = (random.randint(1, 300) for _ in range(2))
        compare(random.randrange(_up(S_q, block_m)), block_m, block_n, S_q, S_k, otherwise=OTHERS, values=False)


# ---------------------------------------------------------------- 4.4


def _byte_suspects(S_q: int, S_k: int, D: int, block_m: int, itemsize: int) -> dict[str, float]:
    """Diagnosis -> the count that this very mistake gives."""
    blocks, lse = _up(S_q, block_m), 4 * S_q

    def count(q_and_o: float, k_and_v: float, lse_bytes: float = lse) -> float:
        """q_and_o: how often S_q · D elements move; k_and_v: how often S_k · D do."""
        return (q_and_o * S_q * D + k_and_v * S_k * D) * itemsize + lse_bytes

    return {
        "lse is not counted: 4 bytes a row": count(2, 2 * blocks, 0),
        "lse is counted with itemsize: it is float32, 4 bytes a row": count(2, 2 * blocks, S_q * itemsize),
        "one byte a row is counted for lse: it is float32, 4 bytes": count(2, 2 * blocks, S_q),
        "lse is counted twice, or m and l are: only lse goes to HBM, 4 bytes a row": count(2, 2 * blocks, 2 * lse),
        "lse's 4 bytes are multiplied by itemsize: they are bytes already": count(2, 2 * blocks, lse * itemsize),
        "lse is counted as D numbers a row: it is one": count(2, 2 * blocks, lse * D),
        "one lse is counted a block of rows: every row has its own": count(2, 2 * blocks, 4 * blocks),
        "elements are counted, not bytes: multiply by itemsize": count(2, 2 * blocks, 0) // itemsize + lse,
        "elements are counted, not bytes: multiply by itemsize, and lse by 4": count(2, 2 * blocks, 0) // itemsize + S_q,
        "elements are counted, not bytes: multiply by itemsize (lse is missing too: 4 bytes a row)": count(2, 2 * blocks, 0) // itemsize,
        "k and v are read once in this count: each block of rows reads all of them": count(2, 2),
        "k alone is counted: v is read as often": count(2, blocks),
        "one of k and v is read once in this count: each block of rows reads both": count(2, blocks + 1),
        "o is not counted, or q is not: q is read once and o written once": count(1, 2 * blocks),
        "neither q nor o is counted: q is read once and o written once": count(0, 2 * blocks),
        "o is counted as read and written: acc stays on the chip, o is written once": count(3, 2 * blocks),
        "q and o are counted once a block of rows: a block moves its own rows": count(2 * blocks, 2 * blocks),
        "q is counted once a block of rows: a block reads its own rows": count(blocks + 1, 2 * blocks),
        "the loops are the wrong way round: in FA2's order q and o move once, k and v once a block of rows": count(2 * blocks, 2),
        "that is FA1's order: in FA2's, q and o move once, k and v once a block of rows": ledger.fa1_hbm_bytes(S_q, S_k, D, block_m, itemsize),
        "the number of blocks is rounded down: the ragged last block reads k and v too": count(2, 2 * (S_q // block_m)),
        "the number of blocks is not rounded: the ragged last block reads all of k and v": count(2, 2 * S_q / block_m),
        "the number of blocks is rounded down and 1 is added: S_q may be a multiple of block_m": count(2, 2 * (S_q // block_m + 1)),
        "blocks are counted along S_k: there is one for every block_m rows of q": count(2, 2 * _up(S_k, block_m)),
        "block_m stands where the number of blocks belongs": count(2, 2 * block_m),
        "k and v are read for every row: a block of block_m rows reads them once": count(2, 2 * S_q),
        "S_q is used for k and v: they have S_k rows": (2 + 2 * blocks) * S_q * D * itemsize + lse,
        "S_k is used for q and o: they have S_q rows": (2 + 2 * blocks) * S_k * D * itemsize + lse,
        "the lengths are exchanged: q, o and lse have S_q rows, k and v have S_k": ledger.flash_hbm_bytes(S_k, S_q, D, block_m, itemsize),
        "ragged rows are counted whole: masked rows of q, o and lse are neither read nor written":
            2 * blocks * block_m * D * itemsize + count(0, 2 * blocks, 4 * blocks * block_m),
        "ragged rows are counted whole: masked rows of q and o are neither read nor written":
            2 * blocks * block_m * D * itemsize + count(0, 2 * blocks),
        "s and p are counted: they stay on the chip": count(2, 2 * blocks) + 4 * S_q * S_k * itemsize,
        "that is naive attention: s and p stay on the chip": ledger.naive_hbm_bytes(1, 1, S_q, S_k, D, itemsize),
        "D is missing: a row of q, k, v or o has D elements": (2 * S_q + 2 * blocks * S_k) * itemsize + lse,
    }  # fmt: skip


def grade_flash_hbm_bytes(answer) -> None:
    def compare(*args: int, otherwise: str = "q and o once, k and v once for each block of rows, lse 4 bytes a row") -> None:
        on = "flash_hbm_bytes({})".format(", ".join(map(str, args)))
        expect_equal(run(answer, *args, on=on), ledger.flash_hbm_bytes(*args), on=on, otherwise=otherwise, suspects=_byte_suspects(*args))

    # Here each known mistake gives another number; with itemsize 4 and 2, since 4 · itemsize is 2 · 4 bytes and itemsize is 4 in one of them.
    compare(9, 7, 5, 3, 4)
    compare(9, 7, 4, 3, 2)
    compare(11, 7, 3, 2, 2, otherwise="S_q = 11 is six blocks of 2 rows, the last one ragged")
    compare(3, 5, 2, 16, 2, otherwise="a block larger than S_q makes one block")
    compare(99_999, 99_999, 127, 64, 2, otherwise="large counts must be exact: stay with integers")
    for _ in range(50):
        args = (*(random.randint(1, 500) for _ in range(2)), random.randint(1, 256), random.randint(1, 128), random.choice((1, 2, 4)))
        want = ledger.flash_hbm_bytes(*args)
        expect_equal(run(answer, *args, on="a random case"), want, on="a random case", otherwise=OTHERS, values=False)


EXERCISES = (
    Exercise(
        "4.1", "softmax_step", "Let a block of scores join the running maximum and sum of its rows.", grade_softmax_step,
        ("This is merge of chapter 1, with one row of the block for a part. By which factor must whatever was summed before be multiplied?",
         "m_new is the larger of m and s.amax(dim=-1), p = exp(s − m_new[..., None]), alpha = exp(m − m_new), l_new = alpha · l + p.sum(dim=-1).",
         "A row that has seen nothing has m_new = −inf, and −inf − (−inf) is NaN: shift such rows by 0 instead, which torch.where does row by row."),
        algorithm.softmax_step,
        "p is relative to the new maximum, so the sum so far is carried over to it by alpha = exp(m − m_new), which is 1 while the maximum "
        "stays. alpha is returned because acc needs the same factor. Rows that have seen nothing are shifted by 0 instead of −inf: then "
        "exp(−inf − 0) gives 0 for p and alpha, where −inf − (−inf) would give NaN.",
    ),
    Exercise(
        "4.2", "flash_forward", "Write attention's forward tile by tile, block_m queries by block_n keys, with the scores, m, l, acc and lse in float32.",
        grade_flash_forward,
        ("Two loops: over blocks of rows, and within one over blocks of keys. What must a block of rows begin with, and what may it write at its end?",
         "For each tile: s = scale · q kᵀ, hidden scores set to −inf, p, m, l, alpha = softmax_step(s, m, l), acc = alpha[..., None] · acc + p v. "
         "After the last key block: o = acc / l, lse = m + log l. Slices past the end are cut short by PyTorch.",
         "Causal, bottom right: i and j are positions in the sequence, not in the tile, and key j is hidden where j > i + S_k − S_q. A row that "
         "sees nothing ends with l = 0: divide by 1 there, and let log 0 give −inf."),
        algorithm.flash_forward,
        "Each block of rows walks over its blocks of keys with a state of its own, (m, l, acc), and writes o and lse once, at the end. The division "
        "waits until then, because acc and l are rescaled by the same alpha. all_tiles and causal_tiles say how far the walk goes and from which "
        "tile on the mask is needed; traffic only counts bytes.",
    ),
    Exercise(
        "4.3", "causal_tiles", "Find which key blocks a block of rows sees whole, and one past the last that it sees at all.", grade_causal_tiles,
        ("Row i sees keys 0 … i + S_k − S_q. How many keys is that? Which row of the block sees fewest, and which most?",
         "A tile is whole if the first row sees all of it: round down. A tile is seen if the last row sees any of it: round up. "
         "A number of keys is never below 0, and the last row is never past S_q − 1."),
        algorithm.causal_tiles,
        "The first row sees fewest keys, max(0, first + 1 + S_k − S_q), and every other row of the block sees these too: divided by block_n and "
        "rounded down they are the tiles that need no mask. The last row sees most: rounded up, its keys say where to stop. The last row "
        "of a ragged block is S_q − 1.",
    ),
    Exercise(
        "4.4", "flash_hbm_bytes", "Count the bytes that one head moves through HBM in FA2's loop order.", grade_flash_hbm_bytes,
        ("Which tensors does a block of rows touch only in its own rows, and which does it read from end to end?",
         "There are ceil(S_q / block_m) blocks of rows. Add up: q read and o written once, k and v once a block, and 4 bytes of lse for each row."),
        ledger.flash_hbm_bytes,
        "q, o and lse move once, for every block of rows touches its own rows only. k and v are read from end to end by each of the "
        "ceil(S_q / block_m) blocks: that is the term with S_q · S_k · D / block_m, and larger blocks make it smaller. s and p never leave the chip.",
    ),
)  # fmt: skip
