"""Graders, hints and reasoning of chapter 6: gradients of matmul and softmax, p from lse, attention's backward, and the same in tiles."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fa_tutorial import algorithm, reference
from fa_tutorial.arguments import dtype_name
from fa_tutorial.exercises.catalogue import Exercise
from fa_tutorial.exercises.grader import OTHERS, PoisonedEmpty, Wrong, as_tensor, close, expect, fresh, run, show_nested, told_on, unpack

E = math.e
INF = math.inf
NAN = math.nan
COARSE = "float64 goes in, and the result has less accuracy: a tensor inside is float32 (make it in the input's dtype)"
STRIDES = "strides other than contiguous must work too"
# What p and o may be off by, relative to the largest value: halves round p and o once each.
RTOL = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 5e-5, torch.float64: 1e-9}


def refuse_shape(got: Any, want: torch.Tensor, what: str, on: str, because: str) -> None:
    shape = tuple(as_tensor(got, what).shape)
    if shape != tuple(want.shape):
        raise Wrong(f"{what} has shape {shape}, want {tuple(want.shape)}, {because}: {on}")


def strided_copy(x: torch.Tensor) -> torch.Tensor:
    """x with another step along its last dimension, rows further apart and a storage offset; what lies between its elements is NaN."""
    wide = torch.full((*x.shape[:-1], 3 + 2 * x.shape[-1]), NAN, dtype=x.dtype)
    return wide[..., 2 : 2 + 2 * x.shape[-1] : 2].copy_(x)


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


Variants = Mapping[str, Sequence[torch.Tensor]]
Suspects = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class _Part:
    """One of an answer's results. size: the sum of the absolute values that each element is added up from; suspects: for expect.

    noise: what may come on top of RTOL, in units of the dtype that the answer computes in. atol: in place of both.
    """

    what: str
    got: Any
    want: torch.Tensor
    size: float
    suspects: Suspects | None = None
    noise: float = 0.0
    atol: float | None = None

    def tolerance(self, dtype: torch.dtype) -> float:
        computed_in = torch.promote_types(dtype, torch.float32)
        relative = RTOL[dtype] + self.noise * torch.finfo(computed_in).eps
        return 1e-12 + relative * self.size if self.atol is None else self.atol


def _expect_parts(
    parts: Sequence[_Part], dtype: torch.dtype, *, on: str, otherwise: str, variants: Variants | None = None, values: bool = True
) -> None:
    """Wrong unless each part is what is wanted. variants: diagnosis -> all the parts that this very mistake gives, asked before suspects.

    float64 goes by float32's tolerance first: only what passes that is told that it has lost digits.
    """
    for step in (torch.float32, dtype) if dtype == torch.float64 else (dtype,):
        coarse = step == torch.float64
        rtol = 0.0 if coarse else 1e-5  # for suspects larger than what is wanted; for the rest it is below the tolerance
        agree = [close(as_tensor(part.got, part.what), part.want, rtol, part.tolerance(step)) for part in parts]
        if all(agree):
            continue
        if coarse:  # which input and which part show it first is luck
            raise Wrong(COARSE)
        whole = _matching(parts, step, variants or {})
        for position, part in enumerate(parts):
            suspects = {name: value[position] for name, value in whole.items()} or part.suspects
            expect(part.got, part.want, on=on, otherwise=otherwise, suspects=suspects, what=part.what, rtol=rtol,
                   atol=part.tolerance(step), values=values)  # fmt: skip


def _matching(parts: Sequence[_Part], dtype: torch.dtype, variants: Variants) -> Variants:
    """The variants whose every part is what the answer gave."""
    return {
        name: value
        for name, value in variants.items()
        if all(close(as_tensor(part.got), x, 1e-5, part.tolerance(dtype)) for part, x in zip(parts, value, strict=True))
    }


# ---------------------------------------------------------------- 6.1


def _largest(x: torch.Tensor) -> float:
    return float(x.max()) if x.numel() else 0.0


def _refuse_matmul_jacobian(answer) -> None:
    """Wrong if a matrix comes up as large as the Jacobian of the smaller factor, flattened."""
    M, K, N = 5, 6, 7
    generator = torch.Generator().manual_seed(0)
    a, b, dc = (torch.randn(*shape, generator=generator) for shape in ((M, K), (K, N), (M, N)))
    on = f"a of {M} × {K}, b of {K} × {N}"
    with ShapeWatch(a) as watch:
        run(answer, a, b, dc, on=on)
    built = [shape for shape in watch.shapes if math.prod(shape) >= M * N * min(M * K, K * N)]
    if built:
        rows, columns = sorted(built)[0]
        raise Wrong(f"a Jacobian is built: {on}, a matrix of {rows} × {columns} comes up, and two matmuls of the factors' sizes do")


def grade_matmul_backward(answer) -> None:
    def compare(a, b, dc, *, on, otherwise, variants=None, of_da=None, of_db=None, values=True):
        da, db = unpack(run(answer, a, b, dc, on=on), ("da", "db"), on)
        a64, b64, dc64 = (x.double() for x in (a, b, dc))
        if a.ndim > 2 and as_tensor(db, "db").shape == b.shape[1:]:
            raise Wrong(f"the batch is summed over: each matrix of the batch has a gradient of its own: {on}")
        if a.shape != b.shape and as_tensor(da, "da").shape == b.shape and as_tensor(db, "db").shape == a.shape:
            raise Wrong(f"da and db are exchanged: return (da, db): {on}")
        refuse_shape(da, a, "da", on, "that of a")
        refuse_shape(db, b, "db", on, "that of b")
        parts = (
            _Part("da", da, dc64 @ b64.mT, _largest(dc64.abs() @ b64.abs().mT), of_da),
            _Part("db", db, a64.mT @ dc64, _largest(a64.abs().mT @ dc64.abs()), of_db),
        )
        _expect_parts(parts, a.dtype, on=on, otherwise=otherwise, variants=variants, values=values)

    a, b, dc = (torch.tensor(x) for x in ([[1.0, 2.0], [3.0, 5.0]], [[2.0, 0.0], [1.0, 4.0]], [[1.0, 3.0], [2.0, 7.0]]))
    da, db, ones = dc @ b.T, a.T @ dc, torch.ones(2, 2)
    compare(a, b, dc, on="a = [[1, 2], [3, 5]], b = [[2, 0], [1, 4]], dc = [[1, 3], [2, 7]]", otherwise="da = dc bᵀ and db = aᵀ dc", variants={
        "da and db are exchanged: return (da, db)": (db, da),
        "dc changes nothing: both gradients are products with dc": (ones @ b.T, a.T @ ones),
        "dc is transposed: da = dc bᵀ and db = aᵀ dc": (dc.T @ b.T, a.T @ dc.T),
        "both products are the wrong way round: da = dc bᵀ, with dc on the left as a is in a b; db = aᵀ dc, with dc on the right": (
            b.T @ dc, dc @ a.T),
        "the products are taken element by element: da = dc bᵀ and db = aᵀ dc are matmuls": (dc * b.T, a.T * dc),
        "c is returned, not a gradient": (a @ b, a @ b),
    }, of_da={
        "b is not transposed: da = dc bᵀ": dc @ b,
        "dc is transposed in da: da = dc bᵀ": dc.T @ b.T,
        "the product is the wrong way round: da = dc bᵀ, dc on the left as a is in a b": b.T @ dc,
        "a stands where b is meant: da = dc bᵀ": dc @ a.T,
        "a stands where b is meant, and is not transposed: da = dc bᵀ": dc @ a,
        "da is transposed: each gradient has the shape of its factor": da.T,
        "dc is missing in da: da = dc bᵀ": ones @ b.T,
        "da is bᵀ: multiply by dc": b.T,
        "da has the wrong sign": -da,
    }, of_db={
        "a is not transposed: db = aᵀ dc": a @ dc,
        "dc is transposed in db: db = aᵀ dc": a.T @ dc.T,
        "the product is the wrong way round: db = aᵀ dc, dc on the right as b is in a b": dc @ a.T,
        "b stands where a is meant: db = aᵀ dc": b.T @ dc,
        "da stands where dc is meant: db = aᵀ dc": a.T @ da,
        "db is transposed: each gradient has the shape of its factor": db.T,
        "dc is missing in db: db = aᵀ dc": a.T @ ones,
        "db is aᵀ: multiply by dc": a.T,
        "db has the wrong sign": -db,
    })  # fmt: skip
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, generator: torch.Generator = generator) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    compare(
        random(1, 3), random(3, 4), random(1, 4), on="a of shape (1, 3), b of (3, 4), dc of (1, 4)", otherwise="da = dc bᵀ and db = aᵀ dc"
    )
    a, b, dc = random(2, 2, 2), random(2, 2, 2), random(2, 2, 2)
    da, db = dc @ b.mT, a.mT @ dc
    batch = "dimensions in front are a batch: every matrix of it has gradients of its own"
    reversed_dims = "all dimensions are reversed, the batch too: transpose the last two, x.transpose(-1, -2)"
    compare(a, b, dc, on="a, b and dc of shape (2, 2, 2)", otherwise=batch, of_da={
        reversed_dims: dc @ b.permute(2, 1, 0),
        "dimensions 0 and 1 are transposed: transpose the last two": dc @ b.transpose(0, 1),
        "the batch is summed over: each matrix of the batch has a gradient of its own": da.sum(0, keepdim=True).expand(2, 2, 2),
        "every matrix of the batch gets the gradient of the first": da[:1].expand(2, 2, 2),
    }, of_db={
        reversed_dims: a.permute(2, 1, 0) @ dc,
        "dimensions 0 and 1 are transposed: transpose the last two": a.transpose(0, 1) @ dc,
        "the batch is summed over: each matrix of the batch has a gradient of its own": db.sum(0, keepdim=True).expand(2, 2, 2),
        "every matrix of the batch gets the gradient of the first": db[:1].expand(2, 2, 2),
    })  # fmt: skip
    compare(random(2, 3, 1, 4), random(2, 3, 4, 5), random(2, 3, 1, 5), on="a of shape (2, 3, 1, 4), b of (2, 3, 4, 5)", otherwise=batch)
    _refuse_matmul_jacobian(answer)
    generator = fresh()
    for batch_shape, M, K, N in (((), 1, 1, 1), ((), 7, 5, 9), ((3,), 4, 6, 2), ((2, 3), 5, 1, 8), ((2, 2), 16, 33, 17)):
        shapes = ((*batch_shape, M, K), (*batch_shape, K, N), (*batch_shape, M, N))
        inputs = [random(*shape, generator=generator) for shape in shapes]
        for words, factor in (("randn", 1.0), ("3·randn", 3.0), ("randn near −1e3", None)):
            drawn = [x - 1e3 for x in inputs] if factor is None else [factor * x for x in inputs]
            for dtype in (torch.float32, torch.float64, *((torch.float16,) if factor else ())):
                on = f"{words}, batch {batch_shape}, (M, K, N) = {(M, K, N)}, {dtype_name(dtype)}"
                compare(*(x.to(dtype) for x in drawn), on=on, otherwise=OTHERS, values=False)
    compare(*(strided_copy(x) for x in inputs), on="slices of wider tensors", otherwise=STRIDES, values=False)


# ---------------------------------------------------------------- 6.2


def _softmax_suspects(p: torch.Tensor, dp: torch.Tensor) -> dict[str, torch.Tensor]:
    delta = (p * dp).sum(-1, keepdim=True)
    again, n = torch.softmax(p, -1), p.shape[-1]
    return {
        "the row sum is missing: p ∘ dp is diag(p) dp alone, and p pᵀ dp is to be subtracted": p * dp,
        "that is the diagonal of the Jacobian alone, p (1 − p): every score changes every p of its row, as p pᵀ says": p * (1 - p) * dp,
        "ds has the wrong sign: it is p ∘ (dp − rowsum(p ∘ dp))": p * (delta - dp),
        "the row sum is added: subtract it": p * (dp + delta),
        "p is missing in front: ds = p ∘ (dp − rowsum(p ∘ dp))": dp - delta,
        "the row sum is not multiplied by p: p stands in front of the whole difference": p * dp - delta,
        "the mean of p ∘ dp is subtracted: subtract its sum": p * (dp - delta / n),
        "rowsum(dp) is subtracted: weigh dp by p before it is summed": p * (dp - dp.sum(-1, keepdim=True)),
        "the mean of dp is subtracted: subtract the sum of p ∘ dp": p * (dp - dp.mean(-1, keepdim=True)),
        "the largest of p ∘ dp is subtracted: subtract their sum": p * (dp - (p * dp).amax(-1, keepdim=True)),
        "the largest dp is subtracted: subtract the sum of p ∘ dp": p * (dp - dp.amax(-1, keepdim=True)),
        "softmax is applied to p again: p is its result already": again * (dp - (again * dp).sum(-1, keepdim=True)),
        "p is squared: p stands in front once": p * p * (dp - delta),
        "exp is applied to p: p is a probability already": torch.exp(p) * (dp - (torch.exp(p) * dp).sum(-1, keepdim=True)),
        "that is the gradient of log softmax: softmax's is p ∘ (dp − rowsum(p ∘ dp))": dp - p * dp.sum(-1, keepdim=True),
        "that is p's forward, not a gradient": again,
        "dp is returned as it came": dp,
    }


def grade_softmax_backward(answer) -> None:
    def compare(p, dp, *, on, otherwise="ds = p ∘ (dp − rowsum(p ∘ dp))", suspects=None, values=True):
        ds = run(answer, p, dp, on=on)
        refuse_shape(ds, p, "ds", on, "that of p")
        p64, dp64 = p.double(), dp.double()
        want = p64 * (dp64 - (p64 * dp64).sum(-1, keepdim=True))
        size = _largest(p64 * (dp64.abs() + (p64 * dp64).abs().sum(-1, keepdim=True)))
        named = {name: value.double() for name, value in (suspects or {}).items()}
        _expect_parts((_Part("ds", ds, want, size, named),), p.dtype, on=on, otherwise=otherwise, values=values)

    p, dp = torch.tensor([0.25, 0.75]), torch.tensor([2.0, 8.0])
    compare(p, dp, on="p = [0.25, 0.75], dp = [2, 8]", suspects=_softmax_suspects(p, dp))
    p, dp = torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([[1.0, 3.0], [2.0, 8.0]])
    weighed = p * dp
    delta = weighed.sum(-1)
    compare(p, dp, on="p = [[0.5, 0.5], [0.25, 0.75]], dp = [[1, 3], [2, 8]]", otherwise="two rows: each has a sum of its own", suspects={
        "p ∘ dp is summed over the rows: sum along the last dimension, within each row": p * (dp - weighed.sum(0, keepdim=True)),
        "column j is shifted by the sum of row j: the sum has lost its dimension (keepdim=True)": p * (dp - delta),
        "p ∘ dp is summed over everything: each row has its own sum": p * (dp - delta.sum()),
        "one sum is taken, that of the first row: each row has its own": p * (dp - delta[0]),
    })  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    p, dp = torch.softmax(torch.randn(2, 3, 2, 3, generator=generator), -1), torch.randn(2, 3, 2, 3, generator=generator)
    weighed = p * dp
    compare(p, dp, on="p of shape (2, 3, 2, 3)", otherwise="batch and heads may stand in front: sum along the last dimension", suspects={
        f"p ∘ dp is summed along dimension {dim}: sum along the last one": p * (dp - weighed.sum(dim, keepdim=True)) for dim in (0, 1, 2)
    })  # fmt: skip
    compare(torch.zeros(2, 3), torch.ones(2, 3), on="p = 0 in a row that sees nothing", otherwise="a row that sees nothing has ds = 0")
    _refuse_softmax_jacobian(answer)
    generator = fresh()
    for shape in ((1,), (1, 1), (5, 7), (2, 3, 4, 33)):
        s, dp = (torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(2))
        hidden = s.masked_fill(torch.rand(*shape, generator=generator) < 0.5, -INF)
        for words, p in (
            ("randn", torch.softmax(s, -1)),
            ("3·randn", torch.softmax(3 * s, -1)),
            ("one p near 1", torch.softmax(30 * s, -1)),
            ("hidden pairs", torch.softmax(hidden, -1).nan_to_num(0.0)),
        ):
            for more, drawn in (("dp randn", dp), ("dp near −100", dp - 100), ("dp = 3·randn", 3 * dp)):
                for dtype in (torch.float32, torch.float64, torch.float16):
                    compare(
                        p.to(dtype),
                        drawn.to(dtype),
                        on=f"{words}, {more}, shape {shape}, {dtype_name(dtype)}",
                        otherwise=OTHERS,
                        values=False,
                    )
    compare(strided_copy(p.float()), strided_copy(dp.float()), on="slices of wider tensors", otherwise=STRIDES, values=False)


def _refuse_softmax_jacobian(answer) -> None:
    n = 64
    generator = torch.Generator().manual_seed(0)
    p, dp = torch.softmax(torch.randn(3, n, generator=generator), -1), torch.randn(3, n, generator=generator)
    with ShapeWatch(p) as watch:
        run(answer, p, dp, on=f"p of shape (3, {n})")
    if (n, n) in watch.shapes:
        raise Wrong(f"the Jacobian is built: p has shape (3, {n}), and a matrix of {n} × {n} comes up: one sum for each row does")


# ---------------------------------------------------------------- 6.3


def _noise(q: torch.Tensor, k: torch.Tensor, scale: float) -> float:
    """How far rounding may move a score, in units of the dtype it is computed in: a few of the sum of absolute values it is made of."""
    return 4 * abs(scale) * _largest(q.double().abs() @ k.double().abs().mT)


def _is_half(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype in (torch.float16, torch.bfloat16)


def _p_from(s: torch.Tensor, lse: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return torch.where(seen, torch.exp(s - lse[..., None]), 0.0)


HALF_SCORES = "right in float32, and digits are lost in float16: turn q and k to float32 before they are multiplied, by scale too"
HALF_INPUTS = "right in float32, and digits are lost in float16: turn the inputs to float32 before the first product, by scale too"


def grade_recompute_p(answer) -> None:
    def compare(q, k, lse, scale=1.0, is_causal=False, *, on, otherwise, suspects=None, values=True):
        with PoisonedEmpty():
            p = run(answer, q, k, lse, scale, is_causal, on=on)
        s, seen = scale * (q.double() @ k.double().mT), torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
        seen = (reference.causal_mask(*seen.shape) if is_causal else seen) & (lse[..., None] != -INF)
        want = _p_from(s, lse.double(), seen)
        refuse_shape(p, want, "p", on, "(B, H, S_q, S_k)")
        if _is_half(p):
            raise Wrong(f"p comes in {dtype_name(p.dtype)}: it is computed in float32, and stays so: {on}")
        one = (0, 0) if q.shape[:2].numel() == 1 else ()  # what is compared and shown: no leading 1s
        part = _Part("p", as_tensor(p, "p")[one], want[one], max(1.0, _largest(want)), suspects, _noise(q, k, scale))
        _expect_parts((part,), q.dtype, on=on, otherwise=otherwise, values=values)

    def with_scores(s, lse, scale=1.0, is_causal=False, *, otherwise, suspects=None):
        """q is the identity and k = sᵀ, so that q kᵀ is s."""
        s = torch.tensor(s)
        q, k = torch.eye(len(s)), s.T.contiguous()
        on = f"q kᵀ = {show_nested(s.tolist())}, lse = {show_nested(lse)}, scale = {scale:g}{', causal' if is_causal else ''}"
        compare(
            q[None, None], k[None, None], torch.tensor(lse)[None, None], scale, is_causal, on=on, otherwise=otherwise, suspects=suspects
        )

    _grade_p_values(with_scores)
    _grade_p_masks(with_scores)
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 3, 4, 5, generator=generator), torch.randn(2, 3, 6, 5, generator=generator)
    lse = reference.attention(q, k, k, False, 0.5)[1]
    p = torch.exp(0.5 * (q.double() @ k.double().mT) - lse[..., None])
    compare(q, k, lse.float(), 0.5, on="B = 2, H = 3, S_q = 4, S_k = 6, scale = 0.5", otherwise="every head has scores and an lse of its own", suspects={
        "every head gets the p of head 0": p[:, :1].expand(-1, 3, -1, -1),
        "every batch element gets the p of batch element 0": p[:1].expand(2, -1, -1, -1),
    })  # fmt: skip
    half = torch.full((1, 1, 1, 1), 300.0, dtype=torch.float16)
    compare(half, half, torch.full((1, 1, 1), 9.0), 1e-4, on="float16, q = k = 300, scale = 1e-4, lse = 9",
            otherwise="q kᵀ is 90,000, and float16 ends at 65,504: compute the scores in float32")  # fmt: skip
    half = torch.full((1, 1, 1, 1), 100.0, dtype=torch.float16)
    compare(half, half, torch.full((1, 1, 1), 110.0), 0.011, on="float16, q = k = 100, scale = 0.011, lse = 110", otherwise=HALF_SCORES)
    compare(
        torch.ones(1, 1, 2, 1), torch.ones(1, 1, 0, 1), torch.full((1, 1, 2), -INF), on="S_q = 2, S_k = 0", otherwise="no key: p is empty"
    )
    generator = fresh()
    for shape, scale in (((1, 1, 1, 1, 1), 1.0), ((2, 3, 5, 9, 8), 0.3), ((2, 2, 9, 5, 4), 0.5), ((1, 2, 1, 17, 16), -0.25)):
        for words, (q, k, v) in distributions(generator, *shape):
            for is_causal in (False, True):
                for dtype in (torch.float32, torch.float64, torch.float16):
                    if dtype == torch.float16 and "1e4" in words:
                        continue
                    q_in, k_in = q.to(dtype), k.to(dtype)
                    lse = reference.attention(q_in, k_in, v.to(dtype), is_causal, scale)[1].to(torch.promote_types(dtype, torch.float32))
                    on = f"{words}, (B, H, S_q, S_k, D) = {shape}, {dtype_name(dtype)}{', causal' if is_causal else ''}"
                    otherwise = OTHERS
                    if dtype == torch.float16:  # which input shows it first is luck
                        on, otherwise = "float16 inputs", HALF_SCORES
                    compare(q_in, k_in, lse, scale, is_causal, on=on, otherwise=otherwise, values=False)
    q, k = torch.randn(2, 3, 4, 5, generator=generator), torch.randn(2, 3, 6, 5, generator=generator)
    lse = reference.attention(q, k, k, True, 0.5)[1].float()
    compare(strided_copy(q), strided_copy(k), strided_copy(lse), 0.5, True, on="slices of wider tensors", otherwise=STRIDES, values=False)


def _grade_p_values(with_scores) -> None:
    """exp, lse and scale, without a mask. lse is not the logsumexp of the row, so that an answer which sums again is seen."""
    s, lse = torch.tensor([[1.0, 2.0]], dtype=torch.float64), 3.0
    with_scores([[1.0, 2.0]], [lse], otherwise="p = exp(s − lse), with the lse that is given", suspects={
        "lse is forgotten: p = exp(s − lse)": torch.exp(s),
        "p is divided by its sum: lse holds the sum already, and with another lse p would not add up to 1": torch.softmax(s, -1),
        "exp is missing: p = exp(s − lse)": s - lse,
        "the exponent has the wrong sign: it is s − lse": torch.exp(lse - s),
        "exp2 is taken: lse is the natural logarithm, so the base is e": 2 ** (s - lse),
        "lse is taken for a logarithm of base 2: with exp2, multiply the scores and lse by log2(e)": torch.exp(s - lse * math.log(2)),
        "s is divided by lse: subtract it": torch.exp(s / lse),
        "exp(s) is divided by lse: lse is the logarithm of the sum, so subtract it in the exponent": torch.exp(s) / lse,
        "lse is added: subtract it": torch.exp(s + lse),
        "p is shifted by the row's maximum, not by lse": torch.exp(s - 2),
        "the row's maximum is subtracted as well: lse alone is": torch.exp(s - 2 - lse),
    })  # fmt: skip
    raw, scale = torch.tensor([[2.0, 4.0]], dtype=torch.float64), 0.5
    with_scores([[2.0, 4.0]], [lse], scale, otherwise="s = scale · q kᵀ, and p = exp(s − lse)", suspects={
        "the scale is ignored: p = exp(scale · q kᵀ − lse)": torch.exp(raw - lse),
        "lse is subtracted before the scale, and scaled too: it is that of the scaled scores": torch.exp(scale * (raw - lse)),
        "the scale is applied twice": torch.exp(scale * scale * raw - lse),
        "the scores are divided by the scale: multiply them": torch.exp(raw / scale - lse),
        "p is multiplied by the scale: the scores are": scale * torch.exp(raw - lse),
    })  # fmt: skip
    with_scores([[2.0, 4.0]], [lse], 0.0, otherwise="a scale of 0 is a scale too: every score is 0", suspects={
        "a scale of 0 is taken for none given: every score is 0": torch.exp(raw - lse),
    })  # fmt: skip
    s, lse = torch.tensor([[1.0, 2.0], [3.0, 1.0]], dtype=torch.float64), torch.tensor([3.0, 5.0], dtype=torch.float64)
    with_scores([[1.0, 2.0], [3.0, 1.0]], [3.0, 5.0], otherwise="two rows: each has its own lse", suspects={
        "lse runs along the wrong axis: column j is shifted by the lse of row j (lse[..., None])": torch.exp(s - lse),
        "the scores are scaled by 1/√D: multiply them by the scale that is given, and nothing else": torch.exp(s / math.sqrt(2) - lse[:, None]),
        "p is transposed: rows are queries": torch.exp(s - lse[:, None]).T,
        "one lse is taken for all rows, the first: each has its own": torch.exp(s - lse[0]),
        "one lse is taken for all rows, the largest: each has its own": torch.exp(s - lse.max()),
    })  # fmt: skip
    with_scores([[1000.0, 1001.0]], [1002.0], otherwise="exp overflows: subtract lse before exp, not divide after it")
    with_scores([[-1000.0, -1001.0]], [-999.0], otherwise="exp underflows: subtract lse before exp, not divide after it")


NEGATIVE_SHIFT = "rows see more than they may: S_k − S_q is negative here, and the mask has to move left by it"


def _grade_p_masks(with_scores) -> None:
    s = torch.tensor([[1.0, 2.0, 0.0], [4.0, 1.0, 3.0], [2.0, 0.0, 1.0]], dtype=torch.float64)
    lse, whole = torch.tensor([3.0, 5.0, 4.0], dtype=torch.float64), torch.ones(3, 3, dtype=torch.bool)
    with_scores(s.float().tolist(), lse.tolist(), is_causal=True, otherwise="query i sees keys 0 … i, and the other pairs have p = 0", suspects={
        "is_causal changes nothing": _p_from(s, lse, whole),
        "the mask is strict: query i sees key i too": _p_from(s, lse, whole.tril(-1)),
        "the mask is one key too wide: the last key that query i sees is key i": _p_from(s, lse, whole.tril(1)),
        "the mask is upside down: it hides the past": _p_from(s, lse, whole.triu()),
        "hidden scores are set to 0, and exp(0 − lse) is not 0: use −inf": _p_from(s.tril(), lse, whole),
        "hidden pairs are −inf in p: set the scores to −inf, before exp": _p_from(s, lse, whole).masked_fill(~whole.tril(), -INF),
    })  # fmt: skip
    wide = torch.tensor([[1.0, 2.0, 0.0], [4.0, 1.0, 3.0]], dtype=torch.float64)
    lse, whole = lse[:2], torch.ones(2, 3, dtype=torch.bool)
    with_scores([[1.0, 2.0, 0.0], [4.0, 1.0, 3.0]], [3.0, 5.0], is_causal=True, otherwise="S_q < S_k: query i sees keys 0 … i + S_k − S_q", suspects={
        "the mask starts at the top left: align it so that the last query sees the last key": _p_from(wide, lse, whole.tril()),
        "S_k − S_q has the wrong sign: query i sees keys 0 … i + S_k − S_q": _p_from(wide, lse, whole.tril(-1)),
        "with S_q < S_k nothing is masked any more": _p_from(wide, lse, whole),
    })  # fmt: skip
    with_scores([[1.0, 1000.0], [4.0, 1.0]], [3.0, 5.0], is_causal=True, otherwise="exp overflows at a hidden pair: hide it before exp", suspects={
        "exp overflows at a hidden pair, and inf · 0 is NaN: set the score to −inf before exp": torch.tensor(
            [[math.exp(-2), NAN], [math.exp(-1), math.exp(-4)]], dtype=torch.float64),
    })  # fmt: skip
    seen = math.exp(-1)
    with_scores([[1.0], [3.0], [2.0]], [-INF, -INF, 3.0], is_causal=True, otherwise="rows 0 and 1 see no key, lse = −inf: p = 0 there", suspects={
        "rows that see nothing give NaN: s and lse are −inf there, and −inf − (−inf) is NaN": torch.tensor([[NAN], [NAN], [seen]], dtype=torch.float64),
        "rows that see nothing give inf: lse is −inf there, and −(−inf) is inf": torch.tensor([[INF], [INF], [seen]], dtype=torch.float64),
        "rows that see nothing give 1: p is 0 there": torch.tensor([[1.0], [1.0], [seen]], dtype=torch.float64),
        "the mask starts at the top left: align it so that the last query sees the last key": torch.tensor(
            [[INF], [0.0], [0.0]], dtype=torch.float64),
    })  # fmt: skip
    tall, lse = torch.tensor([[0.0, 0.0], [1.0, 2.0], [0.0, 1.0]], dtype=torch.float64), torch.tensor([-INF, 3.0, 2.0], dtype=torch.float64)
    with_scores([[0.0, 0.0], [1.0, 2.0], [0.0, 1.0]], [-INF, 3.0, 2.0], is_causal=True, otherwise="S_q > S_k: query i sees keys 0 … i + S_k − S_q", suspects={
        NEGATIVE_SHIFT: _p_from(tall, lse, lse[:, None] != -INF),
    })  # fmt: skip


# ---------------------------------------------------------------- 6.4 and 6.5


class _Head:
    """One head in float64, (S, D) tensors, and the gradients that a mistake in one of their parts gives."""

    def __init__(self, q, k, v, do, scale: float = 1.0, is_causal: bool = False):
        self.inputs = [torch.tensor(x)[None, None] for x in (q, k, v, do)]
        self.q, self.k, self.v, self.do = (x[0, 0].double() for x in self.inputs)
        self.scale, self.is_causal = scale, is_causal
        self.o, self.lse = (x[0, 0] for x in reference.attention(*self.inputs[:3], is_causal, scale))
        self.s = scale * self.q @ self.k.T
        whole = torch.ones(self.s.shape, dtype=torch.bool)
        self.seen = whole.tril(self.s.shape[1] - self.s.shape[0]) if is_causal else whole
        self.p = self.p_where(self.seen)
        self.dp = self.do @ self.v.T
        self.delta = (self.do * self.o).sum(-1, keepdim=True)
        self.ds = self.p * (self.dp - self.delta)
        self.dq, self.dk, self.dv = self.gradients()

    def p_where(self, seen: torch.Tensor, s: torch.Tensor | None = None) -> torch.Tensor:
        return torch.where(seen & (self.lse[:, None] != -INF), torch.exp((self.s if s is None else s) - self.lse[:, None]), 0.0)

    def gradients(self, p: torch.Tensor | None = None, ds: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        """dq, dk, dv from another p, from which ds follows, or from another ds alone."""
        ds = ds if ds is not None else self.ds if p is None else p * (self.dp - self.delta)
        p = self.p if p is None else p
        return self.scale * ds @ self.k, self.scale * ds.T @ self.q, p.T @ self.do

    def with_masks(self, masks: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Tensor, ...]]:
        """Diagnosis -> the gradients where this mistake lets each row see what its mask says."""
        return {name: self.gradients(self.p_where(mask)) for name, mask in masks.items()}

    @property
    def words(self) -> str:
        tensors = (f"{name} = {show_nested(x[0, 0].tolist())}" for name, x in zip(("q", "k", "v", "do"), self.inputs, strict=True))
        return f"{', '.join(tensors)}, scale = {self.scale:g}{', causal' if self.is_causal else ''}"


class _Gradients:
    """Runs an answer to 6.4, or with blocks (6.5), and compares its gradients with those of autograd in float64."""

    def __init__(self, answer, blocks: tuple[int, int] | None = None):
        self.answer, self.blocks = answer, blocks

    def head(self, head: _Head, *, blocks=None, otherwise, variants=None, of_dq=None, of_dk=None, of_dv=None):
        self(*head.inputs, head.is_causal, head.scale, blocks=blocks, on=head.words, otherwise=otherwise, variants=variants,
             suspects=(of_dq, of_dk, of_dv))  # fmt: skip

    def if_skipped(self, head: _Head) -> dict[str, tuple[torch.Tensor, ...]]:
        """Diagnosis -> the gradients of 6.5 where head lies in one ragged tile, and that tile is not walked over."""
        if self.blocks is None:
            return {}
        dq, dk, dv = (torch.zeros_like(x) for x in (head.dq, head.dk, head.dv))
        why = f"as if the one tile were skipped: a tile that is smaller than a block{' and hidden in part' if head.is_causal else ''} counts too"
        return {
            f"the gradients stay 0, {why}": (dq, dk, dv),
            f"dk and dv stay 0, {why}": (head.dq, dk, dv),
            f"dq stays 0, {why}": (dq, head.dk, head.dv),
        }

    def __call__(self, q, k, v, do, is_causal=False, scale=1.0, *, blocks=None, on, otherwise, variants=None, suspects=(None,) * 3,
                 values=True, atols=(None,) * 3, strided=False):  # fmt: skip
        blocks = blocks or self.blocks
        state = torch.promote_types(q.dtype, torch.float32)
        truth_o, truth_lse = reference.attention(q, k, v, is_causal, scale)
        tensors = (q, k, v, truth_o.to(q.dtype), do, truth_lse.to(state))
        if strided:
            tensors = tuple(strided_copy(x) for x in tensors)
        on = f"{on}, blocks {blocks[0]} × {blocks[1]}" if blocks else on
        with PoisonedEmpty():
            got = run(self.answer, *tensors, *((*blocks, is_causal, scale) if blocks else (scale, is_causal)), on=on)
        got = unpack(got, ("dq", "dk", "dv"), on)
        wants = reference.gradients(q, k, v, do, is_causal, scale)
        _refuse_order(got, q, k, on)
        _refuse_halves(got, q.dtype, on)
        one = (0, 0) if q.shape[:2].numel() == 1 else ()  # what is compared and shown: no leading 1s
        sizes, noise = _sizes(q, k, v, do, is_causal, scale), _noise(q, k, scale)
        parts = [
            _Part(what, as_tensor(x, what)[one], want[one], size, named, noise, atol)
            for what, x, want, size, named, atol in zip(("dq", "dk", "dv"), got, wants, sizes, suspects, atols, strict=True)
        ]
        _expect_parts(parts[::-1], q.dtype, on=on, otherwise=otherwise, values=values,
                      variants={name: tuple(value)[::-1] for name, value in (variants or {}).items()})  # fmt: skip


def _refuse_order(got: Sequence[Any], q: torch.Tensor, k: torch.Tensor, on: str) -> None:
    shapes = [as_tensor(x, what).shape for x, what in zip(got, ("dq", "dk", "dv"), strict=True)]
    if q.shape != k.shape and shapes[0] == k.shape and q.shape in shapes[1:]:
        raise Wrong(f"the gradients come in another order: return (dq, dk, dv): {on}")
    for x, like, what, because in zip(got, (q, k, k), ("dq", "dk", "dv"), ("that of q", "that of k", "that of v"), strict=True):
        refuse_shape(x, like, what, on, because)


def _refuse_halves(got: Sequence[Any], dtype: torch.dtype, on: str) -> None:
    """Wrong if a gradient has fewer digits than the inputs: it may come in their dtype, or in what it is computed in."""
    for x, what in zip(got, ("dq", "dk", "dv"), strict=True):
        if _is_half(x) and x.dtype != dtype:
            raise Wrong(
                f"{what} comes in {dtype_name(x.dtype)}, and {dtype_name(dtype)} goes in: return that, or the dtype it is computed in: {on}"
            )


def _sizes(q, k, v, do, is_causal: bool, scale: float) -> tuple[float, ...]:
    """The largest sums of absolute values that elements of dq, dk and dv are added up from."""
    q, k, v, do = (x.double() for x in (q, k, v, do))
    seen = reference.causal_mask(q.shape[2], k.shape[2]) if is_causal else torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    p = torch.softmax((scale * q @ k.mT).masked_fill(~seen, -INF), -1).nan_to_num(0.0)
    dp = do.abs() @ v.abs().mT
    spread = abs(scale) * p * (dp + (p * dp).sum(-1, keepdim=True))
    return _largest(spread @ k.abs()), _largest(spread.mT @ q.abs()), _largest(p.mT @ do.abs())


def _half_tolerances(q, k, v, do, is_causal: bool, scale: float) -> list[float]:
    """The bound for gradients in float16: three times the error of PyTorch's plain attention in that dtype, and 1e-5."""
    truth = reference.gradients(q, k, v, do, is_causal, scale)
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    plain = torch.autograd.grad(reference.naive_attention(*inputs, is_causal, scale), inputs, do)
    return [3 * float((x.double() - want).abs().max()) + 1e-5 for x, want in zip(plain, truth, strict=True)]


def _grade_formulas(compare: _Gradients) -> None:
    """One head, every tensor in one tile: p, delta, ds, the scale, what is transposed."""
    head = _Head([[1.0]], [[1.0], [2.0]], [[3.0], [5.0]], [[2.0]])
    p, dp, delta, ds = head.p, head.dp, head.delta, head.ds
    mixed = p * (head.do @ head.k.T - delta)
    compare.head(head, otherwise="p = exp(s − lse), dv = pᵀ do, dp = do vᵀ, ds = p ∘ (dp − delta), dq = scale · ds k, dk = scale · dsᵀ q", variants={
        "delta is forgotten: ds = p ∘ (dp − delta)": head.gradients(ds=p * dp),
        "delta has the wrong sign: ds = p ∘ (dp − delta)": head.gradients(ds=p * (dp + delta)),
        "ds has the wrong sign: it is p ∘ (dp − delta)": head.gradients(ds=-ds),
        "p is missing in ds: it is p ∘ (dp − delta)": head.gradients(ds=dp - delta),
        "delta is subtracted after p is multiplied: ds = p ∘ (dp − delta)": head.gradients(ds=p * dp - delta),
        "delta is rowsum(o ∘ o): it is rowsum(do ∘ o)": head.gradients(ds=p * (dp - head.o * head.o)),
        "delta is rowsum(do ∘ do): it is rowsum(do ∘ o)": head.gradients(ds=p * (dp - head.do * head.do)),
        "delta is rowsum(dp): weigh dp by p, or take rowsum(do ∘ o)": head.gradients(ds=p * (dp - dp.sum())),
        "delta is rowsum(o): it is rowsum(do ∘ o)": head.gradients(ds=p * (dp - head.o)),
        "k stands where v belongs: dp = do vᵀ": head.gradients(ds=mixed),
        "o stands where do belongs: dp = do vᵀ": head.gradients(ds=p * (head.o @ head.v.T - delta)),
        "o stands where do belongs: dv = pᵀ do": (head.dq, head.dk, p.T @ head.o),
        "lse is forgotten: p = exp(s − lse)": head.gradients(p * head.lse.exp()),
        "softmax's gradient is not taken: ds is not dp": head.gradients(ds=dp),
        "ds stands where p belongs: dv = pᵀ do": (head.dq, head.dk, ds.T @ head.do),
        "p stands where ds belongs: dq = scale · ds k, dk = scale · dsᵀ q": head.gradients(ds=p),
        "dv is missing": (head.dq, head.dk, 0 * head.dv),
        "dk and dv are exchanged: return (dq, dk, dv)": (head.dq, head.dv, head.dk),
        **compare.if_skipped(head),
    }, of_dq={
        "v stands where k belongs: dq = scale · ds k": ds @ head.v,
        "dq is never written": torch.full_like(head.dq, NAN),
    }, of_dk={
        "do stands where q belongs: dk = scale · dsᵀ q": ds.T @ head.do,
        "dk is never written": torch.full_like(head.dk, NAN),
    }, of_dv={
        "dv is never written": torch.full_like(head.dv, NAN),
    })  # fmt: skip
    scale = 0.25
    head = _Head([[2.0, 1.0]], [[1.0, 1.0], [2.0, 3.0]], [[1.0, 0.0], [4.0, 2.0]], [[3.0, 1.0]], scale)
    p, ds, whole = head.p, head.ds, torch.ones(1, 2, dtype=torch.bool)
    unscaled, rooted = (head.p_where(whole, factor * head.s / scale) for factor in (1.0, 1 / math.sqrt(2)))
    compare.head(head, otherwise="the scale: s = scale · q kᵀ, dq = scale · ds k, dk = scale · dsᵀ q, and dv without it", variants={
        "dq is without the scale: dq = scale · ds k": (head.dq / scale, head.dk, head.dv),
        "dk is without the scale: dk = scale · dsᵀ q": (head.dq, head.dk / scale, head.dv),
        "dq and dk are without the scale: s = scale · q kᵀ, so both gradients hold it": (head.dq / scale, head.dk / scale, head.dv),
        "the scale is applied twice in dq and dk": (head.dq * scale, head.dk * scale, head.dv),
        "the scale is applied twice in dq": (head.dq * scale, head.dk, head.dv),
        "the scale is applied twice in dk": (head.dq, head.dk * scale, head.dv),
        "dq and dk are scaled by 1/√D: by the scale that is given": (head.dq / scale / math.sqrt(2), head.dk / scale / math.sqrt(2), head.dv),
        "the scores are without the scale: p = exp(scale · q kᵀ − lse)": head.gradients(unscaled),
        "the scale is ignored: it belongs to the scores, and so to dq and dk": tuple(
            x / y for x, y in zip(head.gradients(unscaled), (scale, scale, 1.0), strict=True)),
        "1/√D is taken for the scale: take the scale that is given": tuple(
            x / y for x, y in zip(head.gradients(rooted), (scale * math.sqrt(2), scale * math.sqrt(2), 1.0), strict=True)),
        "dv is scaled: only the scores are, and so dq and dk": (head.dq, head.dk, head.dv * scale),
        "delta is a mean over D: it is the sum": head.gradients(ds=p * (head.dp - head.delta / 2)),
        "dp is scaled: it is do vᵀ, without the scale": head.gradients(ds=p * (scale * head.dp - head.delta)),
    })  # fmt: skip
    head = _Head([[1.0, 0.0], [0.5, 2.0]], [[1.0, 2.0], [0.0, 1.0]], [[3.0, 1.0], [0.0, 2.0]], [[1.0, 2.0], [4.0, 1.0]])
    p, dp, delta, ds = head.p, head.dp, head.delta, head.ds
    compare.head(head, otherwise="two rows and two keys: rows of p are queries, columns are keys", variants={
        "delta is taken for each column: it is one number for each row, rowsum(p ∘ dp)": head.gradients(ds=p * (dp - (p * dp).sum(0))),
        "column j is shifted by the delta of row j: it has lost its dimension (delta[..., None])": head.gradients(ds=p * (dp - delta.T)),
        "one delta is summed over all rows: each has its own": head.gradients(ds=p * (dp - delta.sum())),
        "dq and dk are exchanged: return (dq, dk, dv)": (head.dk, head.dq, head.dv),
        "the gradients come in another order: return (dq, dk, dv)": (head.dv, head.dk, head.dq),
        "column j is shifted by the lse of row j: p = exp(s − lse[..., None])": head.gradients(torch.exp(head.s - head.lse)),
        "v is not transposed: dp = do vᵀ": head.gradients(ds=p * (head.do @ head.v - delta)),
    }, of_dq={
        "ds is transposed in dq: dq = scale · ds k": ds.T @ head.k,
        "q stands where k belongs: dq = scale · ds k": ds @ head.q,
    }, of_dk={
        "ds is not transposed: dk = scale · dsᵀ q": ds @ head.q,
        "k stands where q belongs: dk = scale · dsᵀ q": ds.T @ head.k,
        "dq stands where q belongs: dk = scale · dsᵀ q": ds.T @ head.dq,
    }, of_dv={
        "p is not transposed: dv = pᵀ do": p @ head.do,
        "v stands where do belongs: dv = pᵀ do": p.T @ head.v,
    })  # fmt: skip


def _grade_heads(compare: _Gradients) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v, do = (torch.randn(2, 3, S, 4, generator=generator) for S in (3, 5, 5, 3))
    truth = reference.gradients(q, k, v, do, False, 0.5)
    compare(q, k, v, do, scale=0.5, on="B = 2, H = 3, S_q = 3, S_k = 5, D = 4, scale = 0.5", otherwise="every head of every batch element has gradients of its own", variants={
        "every head gets the gradients of head 0": [x[:, :1].expand(-1, 3, -1, -1) for x in truth],
        "every batch element gets the gradients of batch element 0": [x[:1].expand(2, -1, -1, -1) for x in truth],
        "the gradients are summed over the heads": [x.sum(1, keepdim=True).expand(-1, 3, -1, -1) for x in truth],
    })  # fmt: skip


def _grade_masks(compare: _Gradients) -> None:
    """The causal mask inside one tile, and rows that see nothing."""
    head = _Head([[1.0], [2.0], [0.5]], [[1.0], [0.5], [2.0]], [[3.0], [5.0], [1.0]], [[2.0], [1.0], [3.0]], is_causal=True)
    whole, zeroed = torch.ones(3, 3, dtype=torch.bool), torch.exp(head.s.tril() - head.lse[:, None])
    compare.head(head, otherwise="causal: query i sees keys 0 … i, and p and ds are 0 elsewhere", variants={
        **head.with_masks({
            "is_causal changes nothing": whole,
            "the mask is strict: query i sees key i too": whole.tril(-1),
            "the mask is one key too wide: the last key that query i sees is key i": whole.tril(1),
            "the mask is upside down: it hides the past": whole.triu(),
        }),
        **compare.if_skipped(head),
        "hidden scores are set to 0, and exp(0 − lse) is not 0: use −inf": head.gradients(zeroed),
        "ds is not masked: at a hidden pair it is 0, for p is": head.gradients(ds=head.p_where(whole) * (head.dp - head.delta)),
    })  # fmt: skip
    head = _Head([[1.0], [2.0]], [[1.0], [0.5], [0.0]], [[3.0], [5.0], [1.0]], [[2.0], [1.0]], is_causal=True)
    whole = torch.ones(2, 3, dtype=torch.bool)
    compare.head(head, otherwise="S_q < S_k: query i sees keys 0 … i + S_k − S_q", variants=head.with_masks({
        "the mask starts at the top left: align it so that the last query sees the last key": whole.tril(),
        "S_k − S_q has the wrong sign: query i sees keys 0 … i + S_k − S_q": whole.tril(-1),
        "with S_q < S_k nothing is masked any more": whole,
    }))  # fmt: skip
    _grade_dead_rows(compare)


def _grade_dead_rows(compare: _Gradients, blocks: tuple[int, int] | None = None) -> None:
    head = _Head([[1.0], [2.0], [3.0], [1.0]], [[1.0], [0.5]], [[3.0], [5.0]], [[2.0], [1.0], [1.0], [4.0]], is_causal=True)
    whole = torch.ones(4, 2, dtype=torch.bool)
    dead, nan = torch.tensor([NAN, NAN, 0.0, 0.0])[:, None], torch.full((2, 1), NAN)
    leak = "rows that see nothing give NaN, and it reaches all keys: lse and s are −inf there, and −inf − (−inf) is NaN; p must be 0"
    inf_leak = "rows that see nothing give NaN or inf: lse is −inf there, and exp(s + inf) is not 0; p must be 0"
    compare.head(head, blocks=blocks, otherwise="rows 0 and 1 see no key: lse = −inf, dq = 0, and they add nothing to dk and dv", variants={
        leak: (head.dq + dead, nan, nan),
        f"{leak} (in dk and dv alone)": (head.dq, nan, nan),
        "rows that see nothing get dq = NaN: p must be 0 there, and with it ds": (head.dq + dead, head.dk, head.dv),
        inf_leak: (head.dq + dead, nan, torch.full((2, 1), INF)),
        **head.with_masks({NEGATIVE_SHIFT: whole}),
        **({} if blocks else compare.if_skipped(head)),
    }, of_dv={inf_leak: torch.full((2, 1), INF)})  # fmt: skip
    nothing = torch.zeros(1, 1, 0, 1)
    compare(head.inputs[0], nothing, nothing, head.inputs[3], blocks=blocks, on="S_q = 4, S_k = 0", otherwise="no key at all: dq = 0",
            suspects=({"no key at all, and dq is never written, or 0 / 0: it must be 0": torch.full((4, 1), NAN)}, None, None))  # fmt: skip


def _grade_half_products(compare: _Gradients) -> None:
    """float16 in: products that overflow there have to be float32."""
    rows = [torch.tensor(x, dtype=torch.float16).view(1, 1, -1, 1) for x in ([1.0], [0.0, 0.0], [300.0, 300.0], [300.0])]
    compare(*rows, on="float16, k = 0, v = do = 300", otherwise="dp is 90,000, and float16 ends at 65,504: compute dp and delta in float32",
            atols=(1e-2, 1e-2, 1.0))  # fmt: skip
    rows = [torch.tensor(x, dtype=torch.float16).view(1, 1, -1, 1) for x in ([300.0], [300.0], [1.0], [1.0])]
    compare(*rows, scale=1e-4, on="float16, q = k = 300, scale = 1e-4", otherwise="q kᵀ is 90,000, and float16 ends at 65,504: compute the scores in float32",
            atols=(1e-2, 1e-2, 1e-2))  # fmt: skip


def _grade_fresh_gradients(compare: _Gradients, block_sizes: Sequence[tuple[int, int] | None]) -> None:
    generator = fresh()
    cases = ((1, 1, 1, 1, 1), 1.0), ((2, 3, 9, 17, 8), 0.3), ((1, 2, 13, 13, 5), 0.5), ((2, 2, 20, 9, 4), 0.5), ((1, 2, 1, 25, 16), -0.25)
    for (shape, scale), blocks in zip(cases, block_sizes, strict=True):
        for words, (q, k, v) in distributions(generator, *shape):
            do = torch.randn(q.shape, generator=generator)
            for is_causal in (False, True):
                on = f"{words}, (B, H, S_q, S_k, D) = {tuple(shape)}{', causal' if is_causal else ''}"
                for dtype in (torch.float32, torch.float64) if words in ("randn", "equal keys") else (torch.float32,):
                    given = [x.to(dtype) for x in (q, k, v, do)]
                    compare(*given, is_causal, scale, blocks=blocks, on=f"{on}, {dtype_name(dtype)}", otherwise=OTHERS, values=False)
    q, k, v, do = (torch.randn(2, 3, S, 8, generator=generator) for S in (7, 10, 10, 7))
    for words, drawn in (("randn", (q, k, v, do)), ("3·randn", (3 * q, 3 * k, v, do))):
        for is_causal in (False, True):
            halves = [x.half() for x in drawn]
            compare(*halves, is_causal, 0.35, blocks=block_sizes[1], on=f"{words}, S_q = 7, S_k = 10{', causal' if is_causal else ''}, float16",
                    otherwise=HALF_INPUTS, values=False, atols=_half_tolerances(*halves, is_causal, 0.35))  # fmt: skip
    transposed = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    stride_0 = do[:, :, :1, :1].expand(do.shape)  # what o.sum().backward() hands in has stride 0
    compare(
        *transposed,
        stride_0,
        True,
        0.35,
        blocks=block_sizes[1],
        on="transposed views, do expanded from one element",
        otherwise=STRIDES,
        values=False,
    )
    compare(q, k, v, do, True, 0.35, blocks=block_sizes[1], on="slices of wider tensors", otherwise=STRIDES, values=False, strided=True)


def grade_attention_backward(answer) -> None:
    compare = _Gradients(answer)
    _grade_formulas(compare)
    _grade_heads(compare)
    _grade_masks(compare)
    _grade_half_products(compare)
    _grade_fresh_gradients(compare, [None] * 5)


# ---------------------------------------------------------------- 6.5


def _grade_tiles(compare: _Gradients) -> None:
    """Several blocks, no mask: sums over tiles, ragged ends, loops that run to the right length."""
    head = _Head([[1.0], [2.0]], [[1.0], [0.5]], [[3.0], [5.0]], [[2.0], [1.0]])
    p, dp, ds, nan, zero = head.p, head.dp, head.ds, torch.full((1, 1), NAN), torch.zeros(1, 1)
    own, scaled = p * (dp - p * dp), torch.zeros(2, 1, dtype=torch.float64)
    last_dk, last_dv = ds[1:].T @ head.q[1:], p[1:].T @ head.do[1:]
    compare.head(head, blocks=(1, 1), otherwise="four tiles: dk and dv are summed over row blocks, dq over key blocks", variants={
        "delta is summed over one tile alone: it is rowsum(do ∘ o), over all keys": head.gradients(ds=own),
        "dk and dv are overwritten in every step: add up the row blocks": (head.dq, last_dk, last_dv),
        "dq, dk and dv are overwritten in every step: add up the tiles": (ds[:, 1:] @ head.k[1:], last_dk, last_dv),
        "only the first block of rows reaches dk and dv": (head.dq, ds[:1].T @ head.q[:1], p[:1].T @ head.do[:1]),
    }, of_dq={
        "only the last key block is left in dq: add up the key blocks": ds[:, 1:] @ head.k[1:],
        "only the first key block is in dq: add up the key blocks": ds[:, :1] @ head.k[:1],
        "only the first block of rows of dq is computed": torch.cat([head.dq[:1], nan]),
        "only the first block of rows of dq is computed, the others stay 0": torch.cat([head.dq[:1], zero]),
        "every block of rows is written to the place of the first": torch.cat([head.dq[1:], nan]),
        "dq stays 0": scaled,
    }, of_dk={
        "dk is overwritten in every step: add up the row blocks": last_dk,
        "the sum in dk is carried over from one key block to the next: it begins with 0": head.dk.cumsum(0),
        "only the first key block of dk is computed": torch.cat([head.dk[:1], nan]),
        "dk stays 0": scaled,
    }, of_dv={
        "dv is overwritten in every step: add up the row blocks": last_dv,
        "the sum in dv is carried over from one key block to the next: it begins with 0": head.dv.cumsum(0),
        "dv is divided by the number of row blocks: add up": head.dv / 2,
        "only the first key block of dv is computed": torch.cat([head.dv[:1], nan]),
        "dv stays 0": scaled,
    })  # fmt: skip
    head = _Head([[1.0], [2.0], [0.5]], [[1.0], [0.5]], [[3.0], [5.0]], [[2.0], [1.0], [3.0]])
    short, p, ds = head.gradients(p=head.p * torch.tensor([1.0, 1.0, 0.0])[:, None]), head.p, head.ds
    rows = "the ragged last block of rows is skipped: 3 rows are a block of 2 and a block of 1"
    for blocks, otherwise in (((2, 2), "3 rows in blocks of 2: the last block has one row"),
                              ((1, 1), "S_q > S_k: the loop over rows runs to S_q")):  # fmt: skip
        named = rows if blocks == (2, 2) else "the loop over rows runs to S_k: q has S_q rows"
        compare.head(head, blocks=blocks, otherwise=otherwise, variants={
            named: short,
            f"{named} (dq is not written there)": (torch.cat([short[0][:2], nan]), *short[1:]),
            f"{named} (in the loop for dk and dv)": (head.dq, *short[1:]),
            f"{named} (in the loop for dq)": (short[0], head.dk, head.dv),
            f"{named} (in the loop for dq, which is not written there)": (torch.cat([short[0][:2], nan]), head.dk, head.dv),
        })  # fmt: skip
    head = _Head([[1.0], [2.0]], [[1.0], [0.5], [2.0]], [[3.0], [5.0], [1.0]], [[2.0], [1.0]])
    short = head.gradients(p=head.p * torch.tensor([1.0, 1.0, 0.0]))
    for blocks, named in (((2, 2), "the ragged last block of keys is skipped: 3 keys are a block of 2 and a block of 1"),
                          ((1, 1), "the loop over keys runs to S_q: k and v have S_k rows")):  # fmt: skip
        compare.head(head, blocks=blocks, otherwise="3 keys and 2 rows: the loop over keys runs to S_k, and its last block may be ragged", variants={
            named: short,
            f"{named} (dk and dv are not written there)": (short[0], *(torch.cat([x[:2], nan]) for x in short[1:])),
            f"{named} (in the loop for dk and dv)": (head.dq, *short[1:]),
            f"{named} (in the loop for dk and dv, which are not written there)": (head.dq, *(torch.cat([x[:2], nan]) for x in short[1:])),
            f"{named} (in the loop for dq)": (short[0], head.dk, head.dv),
        })  # fmt: skip


def _loop_variants(head: _Head, masks: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Tensor, ...]]:
    """Diagnosis -> the gradients where the mistake is in both loops, in the one for dk and dv, and in the one for dq."""
    variants = {}
    for name, (dq, dk, dv) in head.with_masks(masks).items():
        variants[name] = (dq, dk, dv)
        variants[f"{name} (in the loop for dk and dv)"] = (head.dq, dk, dv)
        variants[f"{name} (in the loop for dq)"] = (dq, head.dk, head.dv)
    return variants


def _grade_causal_tiles(compare: _Gradients) -> None:
    """Which tiles are skipped and which are masked, in both loops."""
    head = _Head([[1.0], [2.0], [0.5], [1.5]], [[1.0], [0.5], [2.0], [-1.0]], [[3.0], [5.0], [1.0], [2.0]], [[2.0], [1.0], [3.0], [1.0]],
                 is_causal=True)  # fmt: skip
    i, j = torch.arange(4)[:, None], torch.arange(4)[None, :]
    seen = head.seen
    for (block_m, block_n), otherwise, masks in (
        ((2, 2), "causal, four tiles: those below the diagonal whole, those on it masked, those above it skipped", {
            "the tile on the diagonal is skipped: some of its keys are seen": j // 2 < i // 2,
            "the tile on the diagonal is not masked: some of its keys come after some of its queries": j // 2 <= i // 2,
            "the mask is by positions in the tile: compare positions in the sequence, the tile's own start added": j % 2 <= i % 2,
            "tiles above the diagonal are left unmasked: skip them": seen | (j // 2 > i // 2),
            "tiles below the diagonal are skipped: they are seen whole": seen & (j // 2 == i // 2),
        }),
        ((2, 1), "causal, tiles of 2 rows and 1 key: the first block of rows that sees a key is found by positions", {
            "row_block is compared with key_block as if block_m and block_n were equal: too many tiles are skipped": seen & (j <= i // 2),
            "the tile on the diagonal is not masked: some of its keys come after some of its queries": j <= i // 2 * 2 + 1,
        }),
        ((1, 2), "causal, tiles of 1 row and 2 keys: the tile on the diagonal is found by positions, not by block numbers", {
            "row_block is compared with key_block as if block_m and block_n were equal: too few tiles are masked": seen | (j // 2 < i),
            "a block of rows that sees a part of the key block is skipped: it starts where its first key is seen": seen & ((j // 2 + 1) * 2 <= i + 1),
        }),
        ((1, 4), "causal, tiles of 1 row and 4 keys: a block of keys needs the mask for several blocks of rows", {
            "only the first block of rows is masked: several may see the key block in part": seen | (i > 0),
        }),
        ((4, 1), "causal, tiles of 4 rows and 1 key: a block of rows needs the mask for several blocks of keys", {
            "only the last block of keys is masked: a block of rows may see several in part": seen | (j < 3),
        }),
        ((2, 3), "causal, 4 keys in blocks of 3: masked tiles may be ragged", {}),
        ((3, 2), "causal, 4 rows in blocks of 3: the last block has one row", {}),
    ):  # fmt: skip
        compare.head(head, blocks=(block_m, block_n), otherwise=otherwise, variants=_loop_variants(head, masks))
    head = _Head([[1.0], [2.0]], [[1.0], [0.5], [2.0]], [[3.0], [5.0], [1.0]], [[2.0], [1.0]], is_causal=True)
    i, j = torch.arange(2)[:, None], torch.arange(3)[None, :]
    compare.head(head, blocks=(1, 1), otherwise="causal, S_q < S_k, tiles of one score: query i sees keys 0 … i + S_k − S_q", variants=_loop_variants(head, {
        "the tiles to skip are found top left: S_k − S_q is missing": j <= i,
        "S_k − S_q has the wrong sign where tiles are skipped": j <= i - 1,
    }))  # fmt: skip
    head = _Head([[1.0], [2.0]], [[1.0], [0.5], [2.0], [-1.0]], [[3.0], [5.0], [1.0], [2.0]], [[2.0], [1.0]], is_causal=True)
    twice = torch.ones(2, 4).index_put((torch.tensor(0), torch.tensor(0)), torch.tensor(2.0))
    compare.head(head, blocks=(1, 1), otherwise="causal, all of q sees the first blocks of keys: every row is counted once", variants={
        "row 0 is counted twice for key 0: no block of rows comes before row 0, and a slice with a negative start takes it from the end": (
            head.dq, *head.gradients(head.p * twice)[1:]),
    })  # fmt: skip
    for blocks in ((1, 1), (3, 2)):
        _grade_dead_rows(compare, blocks)


class _TileWatch(TorchFunctionMode):
    """Notes the last two dimensions of all tensors that come up, of any dtype, and how many elements of tiles are held at the same time."""

    def __init__(self, block_m: int, block_n: int):
        super().__init__()
        self.tile = {(block_m, block_n), (block_n, block_m)}
        self.shapes: set[tuple[int, ...]] = set()
        self.tiles: list[weakref.ref] = []
        self.held = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, torch.Tensor) and x.ndim >= 2:
                shape = tuple(x.shape[-2:])
                self.shapes.add(shape)
                if shape in self.tile:
                    self._hold(x)
        return result

    def _hold(self, x: torch.Tensor) -> None:
        self.tiles = [ref for ref in self.tiles if ref() is not None] + [weakref.ref(x)]
        sizes = {tile.untyped_storage().data_ptr(): tile.numel() for ref in self.tiles if (tile := ref()) is not None}  # views count once
        self.held = max(self.held, sum(sizes.values()))


def _refuse_whole_matrices(answer) -> None:
    """Wrong if a matrix of scores comes up that is larger than a tile, 4.2's watch, on the backward; or a whole mask; or if tiles are kept."""

    def draw(B, H, S_q, S_k, D, is_causal):
        generator = torch.Generator().manual_seed(0)
        q, k = (torch.randn(B, H, S, D, generator=generator) for S in (S_q, S_k))
        return q, k, *(x.float() for x in reference.attention(q, k, k, is_causal, 1.0))

    for causal in (False, True):
        _, _, o, lse = draw(1, 2, 11, 14, 3, causal)  # the sizes that 4.2's watch draws

        def backward(q, k, v, block_m, block_n, is_causal, scale, causal=causal, o=o, lse=lse):
            return answer(q, k, v, o, torch.ones_like(q), lse, block_m, block_n, causal, scale)

        with told_on("causal" if causal else ""), _TileWatch(4, 6) as watch:
            refuse_whole_scores(backward)
        if (11, 14) in watch.shapes or (14, 11) in watch.shapes:
            raise Wrong(
                "the mask, or what it is made from, is built for the whole matrix: causal, S_q = 11, S_k = 14, a matrix of 11 × 14 "
                "comes up, and nothing of that size may be held: a tile's mask follows from where the tile lies"
            )
    q, k, o, lse = draw(1, 1, 32, 36, 5, False)
    on = "S_q = 32, S_k = 36, blocks 2 × 3"
    with _TileWatch(2, 3) as watch:
        run(answer, q, k, k, o, q, lse, 2, 3, False, 1.0, on=on)
    if watch.held >= 32 * 36:
        raise Wrong(
            f"tiles are kept: {on}, at some time as many of their elements are held as S_q × S_k has: make a tile anew where it is used again"
        )


def _grade_half_sums(compare: _Gradients) -> None:
    """float16 in: sums over blocks that lose small terms there have to be float32."""
    half = torch.float16
    first = [2048.0, *[1.0] * 8]
    v = torch.tensor([1.0, -1.0] * 4, dtype=half).view(1, 1, 8, 1)
    lost = "2,048 + 1 is 2,048 in float16: keep the sums over blocks in float32"
    one, zero = torch.ones(1, 1, 1, 1, dtype=half), torch.zeros(1, 1, 1, 1, dtype=half)
    rows = torch.tensor(first, dtype=half).view(1, 1, 9, 1)
    compare(torch.zeros_like(rows), zero, one, rows, blocks=(1, 1), on="float16, one key, do = 2,048, 1, … 1",
            otherwise=f"dv loses its small terms: {lost}", atols=(1e-2, 1e-2, 3.0))  # fmt: skip
    pair = torch.tensor([1.0, -1.0], dtype=half).view(1, 1, 2, 1)
    compare(rows, torch.zeros_like(pair), pair, torch.full_like(rows, 2.0), blocks=(1, 1), on="float16, k = 0, v = 1, −1, do = 2, q = 2,048, 1, … 1",
            otherwise=f"dk loses its small terms: {lost}", atols=(1e-2, 3.0, 1e-2))  # fmt: skip
    keys = torch.tensor([2048.0, *[-1.0, 1.0] * 3, -1.0], dtype=half).view(1, 1, 8, 1)
    compare(zero, keys, v, torch.full_like(one, 8.0), blocks=(1, 1), on="float16, q = 0, v = 1, −1, … , do = 8, k = 2,048, −1, 1, … −1",
            otherwise=f"dq loses its small terms: {lost}", atols=(3.0, 1e-2, 1e-2))  # fmt: skip
    tiles = "2,049 and −2,048 make 1, and float16 has no 2,049: add up a tile's product in float32, as it is computed"
    rows, column = (torch.tensor(x, dtype=half).view(1, 1, 4, 1) for x in ([2048.0, 1.0, -2048.0, 0.0], [1.0, -1.0, -1.0, 1.0]))
    keys = torch.tensor([2048.0, -1.0, 2048.0, 0.0], dtype=half).view(1, 1, 4, 1)
    compare(torch.zeros_like(rows), zero, one, rows, blocks=(2, 1), on="float16, one key, do = 2,048, 1, −2,048, 0",
            otherwise=f"dv is rounded before it is summed: {tiles}", atols=(1e-2, 1e-2, 0.5))  # fmt: skip
    compare(rows, torch.zeros_like(pair), pair, torch.full_like(rows, 2.0), blocks=(2, 1), on="float16, k = 0, v = 1, −1, do = 2, q = 2,048, 1, −2,048, 0",
            otherwise=f"dk is rounded before it is summed: {tiles}", atols=(1e-2, 0.5, 1e-2))  # fmt: skip
    compare(zero, keys, column, torch.full_like(one, 4.0), blocks=(1, 2), on="float16, q = 0, v = 1, −1, −1, 1, do = 4, k = 2,048, −1, 2,048, 0",
            otherwise=f"dq is rounded before it is summed: {tiles}", atols=(0.5, 1e-2, 1e-2))  # fmt: skip


def grade_flash_backward(answer) -> None:
    compare = _Gradients(answer, (4, 4))
    _grade_formulas(compare)
    _grade_tiles(compare)
    _grade_heads(compare)
    _grade_masks(compare)
    _grade_causal_tiles(compare)
    _refuse_whole_matrices(answer)
    _grade_half_products(compare)
    _grade_half_sums(compare)
    _grade_fresh_gradients(compare, [(4, 4), (8, 4), (4, 8), (8, 4), (16, 16)])


EXERCISES = (
    Exercise(
        "6.1", "matmul_backward", "Write the gradients of c = a b, for matrices and for batches of them.", grade_matmul_backward,
        ("c_ij = Σ_k a_ik b_kj: which elements of c does a_ik reach, and with which factor? Sum dc over them.",
         "da = dc bᵀ is (M, N) × (N, K), and db = aᵀ dc is (K, M) × (M, N): where M, K and N differ, no other product has these shapes. In a batch, x.transpose(-1, -2) turns the last two dimensions."),
        algorithm.matmul_backward,
        "a_ik reaches row i of c, c_ij with the factor b_kj: da_ik = Σ_j dc_ij b_kj, which is dc bᵀ. b_kj reaches column j, with the factors "
        "a_ik: db = aᵀ dc. The Jacobian that stands between them is never built: with 1,024 for every size it has 2⁴⁰ elements.",
    ),
    Exercise(
        "6.2", "softmax_backward", "Write the gradient of softmax along the last dimension, from its result p, without its Jacobian.", grade_softmax_backward,
        ("The Jacobian of a row is diag(p) − p pᵀ. Multiply it by dp by hand: what does each of the two terms give?",
         "diag(p) dp is p ∘ dp, and p pᵀ dp is p times one number, rowsum(p ∘ dp): factor p out, and mind keepdim=True."),
        algorithm.softmax_backward,
        "(diag(p) − p pᵀ) dp = p ∘ dp − p · (pᵀ dp), and pᵀ dp is one number a row, rowsum(p ∘ dp). So ds = p ∘ (dp − rowsum(p ∘ dp)): one sum a row "
        "and two products an element, where the Jacobian has n² elements a row.",
    ),
    Exercise(
        "6.3", "recompute_p", "Bring p back from q, k and lse, hidden pairs and rows that see nothing as 0.", grade_recompute_p,
        ("Softmax divides exp(s) by the sum of exp(s). lse is the logarithm of that sum: what becomes of the division inside exp?",
         "p = exp(scale · q kᵀ − lse[..., None]), hidden scores set to −inf before exp: key j is hidden where j > i + S_k − S_q. Scores are float32.",
         "A row that sees nothing has s = lse = −inf, and −inf − (−inf) is NaN: put another number in lse's place there, for which exp gives 0."),
        algorithm.recompute_p,
        "exp(s) / Σ exp(s) = exp(s − log Σ exp(s)): one exponential, no maximum and no sum, and any tile of p can be had without the others. Rows "
        "that see nothing get +inf in lse's place: exp(−inf − inf) is 0.",
        helpers=(algorithm.scores, algorithm.finite_or_inf),
    ),
    Exercise(
        "6.4", "attention_backward", "Write attention's gradients dq, dk, dv from q, k, v, o, do and lse, with whole matrices, in float32 at least.", grade_attention_backward,
        ("o = p v is a matmul, p = softmax(s) a softmax, s = scale · q kᵀ a matmul: go backward through them with what 6.1 to 6.3 gave.",
         "dv = pᵀ do and dp = do vᵀ; ds = p ∘ (dp − delta) with delta = rowsum(do ∘ o), one number a row; dq = scale · ds k, dk = scale · dsᵀ q.",
         "Compute in float32 (float64 where that comes in). p and ds may be rounded for their matmuls, and each gradient once, at the end. With p = 0 in a row that sees nothing, ds is 0 too."),
        algorithm.attention_backward,
        "Five matmuls: q kᵀ to bring back p, pᵀ do, do vᵀ, ds k and dsᵀ q. delta = rowsum(p ∘ dp) = rowsum(do ∘ o), which needs no matrix. The "
        "scale multiplies the scores, so it is a factor of dq and of dk, and not of dv.",
        helpers=(algorithm.recompute_p, algorithm.row_delta, algorithm.scores, algorithm.weighted, algorithm.sum_groups),
    ),
    Exercise(
        "6.5", "flash_backward", "Write attention's backward tile by tile, block_m queries by block_n keys, the sums in float32 at least.", grade_flash_backward,
        ("dk and dv of a key block are sums over blocks of rows, dq of a row block is a sum over blocks of keys: two loops, each with one owner for what "
         "it sums. What can be had before both, in one pass over the rows?",
         "delta = rowsum(do ∘ o) first. Then every tile: s, p = exp(s − lse), dp = do vᵀ, ds = p ∘ (dp − delta). Add pᵀ do to dv and scale · dsᵀ q to dk "
         "of the key block; in the second loop, add scale · ds k to dq of the row block.",
         "Causal, bottom right: key j is hidden where j > i + S_k − S_q, with positions in the sequence. Slices past the end are cut short by PyTorch. "
         "A row whose lse is −inf must give p = 0. Keep the sums in float32: p and ds may be rounded for their matmuls, and each gradient once, at the end."),
        algorithm.flash_backward,
        "delta is a sum over all keys, and rowsum(do ∘ o) gives it without them. After that, tiles need nothing of one another. The first loop keeps a block of keys and "
        "sums dk and dv over the rows from causal_rows on, the second keeps a block of rows and sums dq: both compute the tile anew, "
        "and no sum has two owners.",
        helpers=(algorithm.p_and_ds, algorithm.row_delta, algorithm.finite_or_inf, algorithm.causal_rows, algorithm.causal_tiles,
                 algorithm.seen_in_tile, algorithm.scores, algorithm.weighted, algorithm.sum_groups),
    ),
)  # fmt: skip
