"""Graders, hints and reasoning of chapter 7: flash attention's backward kernels, and the autograd.Function that joins them to the forward."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fa_tutorial import hardware, reference
from fa_tutorial.arguments import dtype_name
from fa_tutorial.exercises import solutions
from fa_tutorial.exercises.catalogue import Exercise
from fa_tutorial.exercises.chapter_5 import BDHS, BHDS, BHSD, BSHD, INF, TILE, Order, reread, seen_pairs, strides_of
from fa_tutorial.exercises.grader import (
    OTHERS,
    Buffer,
    NotAttempted,
    Stray,
    Wrong,
    close,
    expect,
    fresh,
    input_buffer,
    misses_told,
    output_buffer,
    run_kernel,
    show,
    where_in,
)
from fa_tutorial.exercises.pieces import load_lse, load_tile, p_and_ds
from fa_tutorial.tiles import dot

Tensor = torch.Tensor
LN_2 = 0.6931471805599453
BSDH: Order = (0, 2, 3, 1)
BDSH: Order = (0, 3, 2, 1)
OWN = "each tensor has its own four strides"
PLACE = "row i of head h of batch b lies at (b · H + h) · S_q + i of delta, i < S_q"


class _Input(Buffer):
    """An input that may have strides of 0: what repeats is written once."""

    def reset(self, poison: float) -> None:
        once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in self.tensor.stride())
        self.memory.fill_(float("nan"))
        self.tensor[once].copy_(self.data[once])


def _input(name: str, data: Tensor, strides: Sequence[int] | None = None) -> _Input:
    """As grader.input_buffer; along a stride of 0, data repeats."""
    return _Input(**vars(input_buffer(name, data, strides)))


def _forbid(buffer: Buffer, rows: int) -> None:
    """The first rows of every head become guards: NaN, and no element of the tensor for who reads them."""
    buffer.data[:, :, :rows] = float("nan")
    tensor = buffer.tensor
    buffer.own.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())[:, :, :rows] = False


def _layout_mistakes(strides: Mapping[str, Sequence[int]], shape: Sequence[int]) -> dict[str, dict[str, Sequence[int]]]:
    """Ways to read tensors of one shape by wrong strides: the diagnosis, and the strides used of each tensor that is misread.

    strides: of each tensor, without gaps, and none of them contiguous or with a last stride of 1.
    """
    names, H = list(strides), shape[1]
    groups = [names, *([names[0], names[-1]], names[1:-1])] if len(names) > 2 else [names]
    groups += [[name] for name in names]
    found: dict[str, dict[str, Sequence[int]]] = {}
    for group in groups:
        words = f"{' and '.join(filter(None, (', '.join(group[:-1]), group[-1])))} {'is' if len(group) == 1 else 'are'} read"
        found[f"{words} as if {'it were' if len(group) == 1 else 'they were'} contiguous: {OWN}"] = dict.fromkeys(group, strides_of(shape))
        found[f"{words} without the last stride, from one column to the next: it need not be 1"] = {
            name: (*strides[name][:3], 1) for name in group
        }
        found[f"{words} at (b · H + h) times a head's stride: in a view a batch need not lie H heads on, so it has a stride of its own"] = {
            name: (H * strides[name][1], *strides[name][1:]) for name in group
        }
    others = ((name, other) for name in names for other in names if other != name)
    return found | {f"{name} is read by the strides of {other}: {OWN}": {name: strides[other]} for name, other in others}


# ---------------------------------------------------------------- 7.1


def _whole(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Whole numbers from −4 to 4: sums of their products are exact."""
    return torch.randint(-4, 5, tuple(shape), generator=generator).float()


def grade_delta_kernel(kernel) -> None:
    generator = torch.Generator().manual_seed(0)

    def compare(o, do, on, otherwise, suspects=None, *, strides=(None, None), blocks=(16, 16), stray="", unwritten="", values=True) -> None:
        """stray, unwritten: the diagnosis where an access misses its tensor, or where a part of delta stays as it was."""
        (B, H, S, D), (block_m, block_d) = o.shape, blocks
        buffers = [_input(name, x, lies) for name, x, lies in zip(("o_ptr", "do_ptr"), (o, do), strides, strict=True)]
        steps = [stride for buffer in buffers for stride in buffer.tensor.stride()]
        buffers.append(output_buffer("delta_ptr", (B, H, S), torch.float32))
        products = o.double() * do.double()
        want, atol = products.sum(-1), 1e-6 * float(products.abs().sum(-1).amax())
        with misses_told(on, stray=stray or otherwise, unwritten=unwritten or otherwise):
            (delta,) = run_kernel(kernel, (-(-S // block_m) * B * H,), (*buffers, H, S, D, *steps), BLOCK_M=block_m, BLOCK_D=block_d)
        by_default = stray if stray and torch.isnan(delta).any() else otherwise  # on a GPU a stray read shows only as NaN
        expect(delta, want, on=on, otherwise=by_default, suspects=suspects, rtol=0.0, atol=atol, values=values, what="delta")

    def draw(*shape: int) -> tuple[Tensor, Tensor]:
        return _whole(shape, generator), _whole(shape, generator)

    o, do = draw(1, 1, 16, 16)
    rule = "delta = rowsum(do ∘ o)"
    compare(o, do, "one head, S_q = D = 16, one tile", f"one tile gives {rule}", {
        f"the sum runs over the rows: a row is summed along D, axis 1: {rule}": (o * do).sum(-2),
        f"o is multiplied by itself: {rule}": (o * o).sum(-1),
        f"do is multiplied by itself: {rule}": (do * do).sum(-1),
        f"the mean is taken: {rule}": (o * do).mean(-1),
        f"delta has the wrong sign: {rule}": -(o * do).sum(-1),
        f"do alone is summed: {rule}": do.sum(-1),
        f"o alone is summed: {rule}": o.sum(-1),
        f"the largest product is taken: {rule}": (o * do).amax(-1),
        f"delta is divided by √D: no scale belongs to {rule}": (o * do).sum(-1) / 4,
    }, stray="an offset is wrong, not a mask, for whole tiles fit here", unwritten="delta's tile is not stored whole")  # fmt: skip
    o, do = draw(1, 1, 32, 16)
    first = slice(0, 16)
    compare(o, do, "S_q = 32, two programs", "a program's rows start at row_block · BLOCK_M", {
        "every program loads the first rows: offs_m starts at row_block · BLOCK_M": (o * do)[:, :, first].sum(-1).repeat(1, 1, 2),
        "every program loads the first rows of o: offs_m starts at row_block · BLOCK_M": (o[:, :, first].repeat(1, 1, 2, 1) * do).sum(-1),
        "every program loads the first rows of do: offs_m starts at row_block · BLOCK_M": (o * do[:, :, first].repeat(1, 1, 2, 1)).sum(-1),
    }, unwritten="the second block of rows is never stored: a program's rows start at row_block · BLOCK_M, in delta too")  # fmt: skip
    _grade_delta_heads(compare, draw)
    _grade_delta_strides(compare, draw)

    rows = f"rows past S_q are loaded or stored: offs_m < S_q is in the masks of both loads and of the store, and a head has tl.cdiv(S_q, BLOCK_M) row blocks; {PLACE}"
    compare(*draw(1, 1, 20, 16), "S_q = 20, BLOCK_M = 16", "the last block of rows may be ragged", stray=rows,
            unwritten="the ragged last rows are never stored: there are tl.cdiv(S_q, BLOCK_M) row blocks a head")  # fmt: skip
    compare(*draw(2, 2, 20, 16), "B = H = 2, S_q = 20, BLOCK_M = 16", PLACE, stray=rows, unwritten=f"a row of delta is left out: {PLACE}")
    o, do = draw(1, 1, 16, 12)
    columns = "columns past D are loaded, which belong to the next row: offs_d < D is in the mask of both loads"
    compare(o, do, "D = 12, BLOCK_D = 16", columns, stray=columns)
    _grade_delta_half(compare)

    cases = [
        ((1, 1, 1, 1), torch.float32, 16, 16, 1.0),
        ((2, 3, 33, 20), torch.float16, 32, 32, 3.0),
        ((2, 2, 15, 40), torch.float32, 16, 64, 1.0),
    ]
    if hardware.device().type == "cuda":
        cases.append(((2, 2, 50, 40), torch.bfloat16, 16, 64, 1.0))
    for shape, dtype, block_m, block_d, factor in cases:
        o, do = ((factor * torch.randn(shape, generator=fresh())).to(dtype) for _ in range(2))
        on = f"{dtype_name(dtype)}, o and do of shape {shape}"
        compare(o, do, f"{on}, views", OTHERS, strides=(strides_of(shape, BSHD, pad=3), strides_of(shape, BHDS, pad=3)), blocks=(block_m, block_d),
                values=False)  # fmt: skip
        compare(o, do[:, :, :1, :1].expand(shape), f"{on}, do an expanded view", OTHERS, strides=(None, (do.stride(0), do.stride(1), 0, 0)),
                blocks=(block_m, block_d), values=False)  # fmt: skip


def _grade_delta_heads(compare: Callable, draw: Callable) -> None:
    for shape, dim, on, rule in (
        ((1, 2, 16, 16), 1, "two heads", "head 0 by every program: add h · stride, h = (pid // row_blocks) % H"),
        ((2, 1, 16, 16), 0, "two batches", "batch 0 by every program: add b · stride, b = (pid // row_blocks) // H"),
    ):
        o, do = draw(*shape)
        first_o, first_do = (x.narrow(dim, 0, 1).expand_as(x) for x in (o, do))
        compare(o, do, f"{on}, S_q = 16", "each program stays within its own head", {
            f"o and do are read from {rule}": (first_o * first_do).sum(-1),
            f"o is read from {rule}": (first_o * do).sum(-1),
            f"do is read from {rule}": (o * first_do).sum(-1),
        }, stray="an offset is wrong, as where batch and head are exchanged (// H gives b, % H gives h), or where delta, which is contiguous, is stored by strides of o",
            unwritten=f"not every head has its rows: {PLACE}")  # fmt: skip
    o, do = draw(2, 2, 16, 16)
    exchanged = "batch and head are exchanged in {}: // H gives b, % H gives h"
    compare(o, do, "B = H = 2, S_q = 16", "pid // row_blocks is b · H + h", {
        exchanged.format("o and do, or in delta"): (o * do).sum(-1).transpose(0, 1),
        exchanged.format("o"): (o.transpose(0, 1) * do).sum(-1),
        exchanged.format("do"): (o * do.transpose(0, 1)).sum(-1),
    }, unwritten=f"programs store to one another's rows of delta: {PLACE}")  # fmt: skip


def _grade_delta_strides(compare: Callable, draw: Callable) -> None:
    o, do = draw(2, 2, 16, 16)
    at = {"o": strides_of(o.shape, BSDH), "do": strides_of(o.shape, BDHS)}

    def misread(used: Mapping[str, Sequence[int]]) -> Tensor:
        read = (reread(x, at[name], used.get(name, at[name])) for name, x in (("o", o), ("do", do)))
        return torch.mul(*read).sum(-1)

    suspects = {words: misread(used) for words, used in _layout_mistakes(at, o.shape).items()}
    suspects[f"the strides of o and do are exchanged: {OWN}"] = misread({"o": at["do"], "do": at["o"]})
    compare(o, do, "B = H = 2, o and do laid out differently", OWN, suspects, strides=tuple(at.values()))
    o, do = draw(1, 2, 16, 16)
    zero = "do has strides of 0, as o.sum().backward() gives it: read it by its own strides"
    compare(o, torch.ones_like(o), "do = 1, expanded from one element", zero, stray=zero, strides=(None, (0, 0, 0, 0)))


def _grade_delta_half(compare: Callable) -> None:
    o, do = torch.zeros(1, 1, 16, 16, dtype=torch.float16), torch.ones(1, 1, 16, 16, dtype=torch.float16)
    o[..., 0], o[..., 1], do[..., :2] = 256, -256, 256
    overflow = "the products overflow in fp16, which ends at 65504: turn o and do to float32 before they are multiplied"
    compare(o, do, "fp16, every row of do ∘ o is 65536, −65536, 0, …", overflow, stray=overflow)
    o, do = torch.zeros_like(o), torch.ones_like(do)
    o[..., 0], o[..., 1], do[..., 0] = 64, 1, 32
    compare(o, do, "fp16, every row of do ∘ o is 2048, 1, 0, …", "delta is float32", {
        "the sum is kept in fp16, in which 2048 + 1 is 2048: delta is float32": torch.full((1, 1, 16), 2048.0),
    })  # fmt: skip


# ---------------------------------------------------------------- 7.2 and 7.3: what they share


@dataclass(frozen=True)
class _Exact:
    """What a kernel is given, and by it the gradients, in float64; `replace` makes one mistake.

    scale: of the scores. factor: of dq and dk, the same unless that is the mistake. seen: (S_q, S_k) booleans. hidden: the score of a key that is
    not seen. dtype: what p, ds and the gradients are rounded to; s and dp are float32, as tl.dot gives them.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    lse: Tensor
    delta: Tensor
    seen: Tensor
    scale: float
    factor: float
    hidden: float = -INF
    dtype: torch.dtype = torch.float64

    def rounded(self, x: Tensor) -> Tensor:
        return x.to(self.dtype).double()

    def summed(self, x: Tensor) -> Tensor:
        return x if self.dtype == torch.float64 else x.float().double()

    @property
    def s(self) -> Tensor:
        return self.summed(self.scale * (self.q @ self.k.mT))

    @property
    def p(self) -> Tensor:
        s = torch.where(self.seen, self.s, self.hidden)
        return self.rounded(torch.exp(s - torch.where(self.lse == -INF, INF, self.lse)[..., None]))

    @property
    def dp(self) -> Tensor:
        return self.summed(self.do @ self.v.mT)

    @property
    def ds(self) -> Tensor:
        return self.rounded(self.p * (self.dp - self.delta[..., None]))

    @property
    def dq(self) -> Tensor:
        return self.rounded(self.factor * (self.ds @ self.k))

    @property
    def dk(self) -> Tensor:
        return self.rounded(self.factor * (self.ds.mT @ self.q))

    @property
    def dv(self) -> Tensor:
        return self.rounded(self.p.mT @ self.do)

    def size(self, name: str) -> float:
        """The largest sum of absolute values that an element of dq, dk or dv is added up from."""
        parts = {"dq": (self.factor * self.ds, self.k), "dk": (self.factor * self.ds.mT, self.q), "dv": (self.p.mT, self.do)}[name]
        return float((parts[0].abs() @ parts[1].abs()).amax())

    def rows(self, index: Any) -> _Exact:
        """With these rows of q alone, repeated ones counted again."""
        chosen = {name: getattr(self, name)[:, :, index] for name in ("q", "do", "lse", "delta")}
        return replace(self, **chosen, seen=self.seen[index])

    def keys(self, index: Any) -> _Exact:
        return replace(self, k=self.k[:, :, index], v=self.v[:, :, index], seen=self.seen[:, index])


class _HalfScores(_Exact):
    """The mistake to round s to fp16."""

    @property
    def s(self) -> Tensor:
        return super().s.half().double()


class _HalfDp(_Exact):
    """The mistake to round dp to fp16."""

    @property
    def dp(self) -> Tensor:
        return super().dp.half().double()


Mistakes = Mapping[str, "_Exact | Mapping[str, Tensor]"]


def _exact(inputs: Sequence[Tensor], is_causal: bool, scale: float) -> _Exact:
    """lse and delta are the float64 truth, rounded to float32 as the kernels get them."""
    q, k, v, do = inputs
    o, lse = reference.attention(q, k, v, is_causal, scale)
    S_q, S_k = q.shape[2], k.shape[2]
    seen = seen_pairs(S_q, S_k) if is_causal else torch.ones(S_q, S_k, dtype=torch.bool)
    delta = (do.double() * o).sum(-1)
    return _Exact(*(x.double() for x in inputs), lse.float().double(), delta.float().double(), seen, scale, scale)


def _draw(B: int, H: int, S_q: int, S_k: int, D: int, *, generator: torch.Generator | None = None) -> list[Tensor]:
    """q, k, v, do of normal values, the same on every call unless a generator is given."""
    generator = generator or torch.Generator().manual_seed(0)
    return [torch.randn((B, H, S, D), generator=generator) for S in (S_q, S_k, S_k, S_q)]


@contextlib.contextmanager
def _strays_told(on: str, strays: Mapping[str, str]) -> Iterator[None]:
    """Turn a Stray at one of these tensors into Wrong with the diagnosis that belongs to it. on: the input, in words."""
    try:
        yield
    except Stray as wrong:
        words = strays.get(wrong.brief.split()[-1])
        raise (Wrong(f"{words}: {on}, it {wrong.brief}") if words else wrong) from wrong


class _Grader:
    """Runs one kernel on inputs and compares its gradients, `names`: ("dk", "dv") or ("dq",)."""

    def __init__(self, kernel: Any, *names: str) -> None:
        self.kernel, self.names = kernel, names

    def run(
        self, given: _Exact, dtype: torch.dtype, is_causal: bool, blocks: Sequence[int], strides: Sequence[Any], unread: int = 0
    ) -> dict[str, Tensor]:
        """unread: so many rows of q and do, the first of every head, are NaN, and whoever reads them is Stray."""
        (B, H, S_q, D), S_k = given.q.shape, given.k.shape[2]
        read = zip(("q", "k", "v", "do"), strides, strict=True)
        buffers = [_input(f"{name}_ptr", getattr(given, name).to(dtype), lies) for name, lies in read]
        for buffer in (buffers[0], buffers[3]) if unread else ():
            _forbid(buffer, unread)
        steps = [stride for buffer in buffers for stride in buffer.tensor.stride()]
        buffers += [_input("lse_ptr", given.lse.float()), _input("delta_ptr", given.delta.float())]
        buffers += [output_buffer(f"{name}_ptr", getattr(given, name[1:]).shape, dtype) for name in self.names]
        owned = (S_q, blocks[0]) if self.names == ("dq",) else (S_k, blocks[1])
        meta = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_D"), blocks, strict=True))
        args = (*buffers, H, S_q, S_k, D, given.scale, *steps)
        outputs = run_kernel(self.kernel, (-(-owned[0] // owned[1]) * B * H,), args, IS_CAUSAL=is_causal, **meta)
        return dict(zip(self.names, outputs, strict=True))

    def compare(
        self, inputs: Sequence[Tensor], on: str, otherwise: str, mistakes: Callable[[_Exact], Mistakes] | None = None, *,
        is_causal: bool = False, scale: float | None = None, blocks: Sequence[int] = TILE, strides: Sequence[Any] = (None,) * 4,
        stray: str = "", unwritten: str = "", lost: str = "", atol: float | None = None, values: bool = True, unread: int = 0,
        strays: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """mistakes: of the exact gradients, the diagnosis and what the mistake gives: all of them, or those that it changes.

        stray, unwritten: the diagnosis where an access misses its tensor, or where a part of a gradient stays as it was. lost: the one
        where NaN or inf comes out; stray unless given. strays: of a tensor, the diagnosis in stray's place. unread: as for run.
        """
        dtype = inputs[0].dtype
        given = _exact(inputs, is_causal, inputs[0].shape[-1] ** -0.5 if scale is None else scale)
        with misses_told(on, stray=stray or otherwise, unwritten=unwritten or otherwise), _strays_told(on, strays or {}):
            got = self.run(given, dtype, is_causal, blocks, strides, unread)
        wants = dict(zip(("dq", "dk", "dv"), reference.gradients(*inputs, is_causal, given.scale), strict=True))
        atols = {name: _tolerance(given, name, wants[name], dtype) if atol is None else atol for name in self.names}
        failed = [name for name in self.names if not close(got[name], wants[name], 0.0, atols[name])]
        if not failed:
            return
        diagnosis = _name_mistake({} if mistakes is None else mistakes(given), got, wants, atols, failed[0])
        if diagnosis is None:
            finite = all(bool(torch.isfinite(x).all()) for x in got.values())
            diagnosis = otherwise if finite else lost or stray or otherwise  # on a GPU a stray read shows only as NaN
        name = failed[0]
        expect(got[name], wants[name], on=on, otherwise=diagnosis, rtol=0.0, atol=atols[name], values=values, what=name)

    def on_fresh_inputs(self, cases: Sequence[tuple]) -> None:
        """cases: (B, H, S_q, S_k, D), dtype, is_causal, blocks, factor. bf16 joins on a GPU: the interpreter's is wrong."""
        cases = list(cases)
        if hardware.device().type == "cuda":
            cases.append(((1, 2, 40, 50, 40), torch.bfloat16, True, (16, 32, 64), 1.0))
        for (B, H, S_q, S_k, D), dtype, is_causal, blocks, factor in cases:
            inputs = [(factor * x).to(dtype) for x in _draw(B, H, S_q, S_k, D, generator=fresh())]
            kind = "causal" if is_causal else "full"
            on = f"{dtype_name(dtype)}, {kind}, B = {B}, H = {H}, S_q = {S_q}, S_k = {S_k}, D = {D}, views"
            orders = zip(inputs, (BSHD, BHDS, BHSD, BDHS), strict=True)
            strides = [strides_of(x.shape, order, pad=1) for x, order in orders]
            self.compare(inputs, on, OTHERS, is_causal=is_causal, blocks=blocks, strides=strides, values=False)


def _tolerance(given: _Exact, name: str, want: Tensor, dtype: torch.dtype) -> float:
    """Three times what rounding p, ds and the gradient to dtype costs, and a little of the sum's size."""
    slip = float(torch.nan_to_num(getattr(replace(given, dtype=dtype), name) - want, posinf=0.0, neginf=0.0).abs().amax())
    share = 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps
    return 3 * slip + share * given.size(name) + 1e-5


def _name_mistake(
    mistakes: Mistakes, got: Mapping[str, Tensor], wants: Mapping[str, Tensor], atols: Mapping[str, float], failed: str
) -> str | None:
    """The first mistake that gives all that was got; then, where two mistakes meet, the first that gives `failed`."""

    def gives(value: Any, name: str) -> bool:
        given = getattr(value, name) if isinstance(value, _Exact) else value.get(name, wants[name])
        return close(got[name], given, 1e-5, atols[name])

    whole = (words for words, value in mistakes.items() if all(gives(value, name) for name in got))
    part = (words for words, value in mistakes.items() if gives(value, failed))
    return next(whole, None) or next(part, None)


def _formulas(g: _Exact) -> dict[str, Any]:
    """Mistakes in s, p and ds."""
    return {
        "scale is forgotten in the scores: s = scale · q kᵀ": replace(g, scale=1.0),
        "scale is applied twice to the scores": replace(g, scale=g.scale**2),
        "lse is not subtracted: p = exp(s − lse)": replace(g, lse=0 * g.lse),
        "the base is 2: tl.exp2(x) is 2 to the power x, and exp(x) is exp2(x · log2(e))": replace(
            g, scale=LN_2 * g.scale, lse=LN_2 * g.lse
        ),
        "delta is forgotten: ds = p ∘ (dp − delta)": replace(g, delta=0 * g.delta),
        "delta is added: ds = p ∘ (dp − delta)": replace(g, delta=-g.delta),
    }


def _grade_heads(grader: _Grader) -> None:
    def changed(change: Callable[[Tensor], Tensor], words: str) -> Callable[[_Exact], Mistakes]:
        """Every tensor alone, and those that are likely together."""
        groups = (
            ("q", "k", "v", "do"),
            ("lse", "delta"),
            ("k", "v"),
            ("q", "do"),
            *((name,) for name in ("q", "k", "v", "do", "lse", "delta")),
        )

        def mistakes(g: _Exact) -> Mistakes:
            return {
                f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} {words}": replace(
                    g, **{n: change(getattr(g, n)) for n in names}
                )
                for names in groups
            }

        return mistakes

    outputs = " and ".join(grader.names)
    grader.compare(_draw(1, 2, 16, 16, 16), "two heads", "each program stays within its own head",
                   changed(lambda x: x[:, :1].expand_as(x), "read from head 0 by every program: add the head's offset"),
                   stray="an offset is wrong, as where batch and head are exchanged: // H gives b, % H gives h",
                   unwritten=f"only head 0 of {outputs} is written: add the head's offset, (b · H + h) · S · D")  # fmt: skip
    exchanged = changed(lambda x: x.transpose(0, 1), "read with batch and head exchanged: // H gives b, % H gives h")
    first = changed(lambda x: x[:1].expand_as(x), "read from batch 0 by every program: add the batch's offset")

    def batches(g: _Exact) -> Mistakes:
        stored = {name: getattr(g, name).transpose(0, 1) for name in grader.names}
        both = f"batch and head are exchanged in all that is read, or in {outputs}: // H gives b, % H gives h"
        return {both: stored, **exchanged(g), **first(g)}

    grader.compare(_draw(2, 2, 16, 16, 16), "B = H = 2", "the program's number is (b · H + h) · blocks + block", batches,
                   unwritten=f"not every head of every batch is written: head h of batch b starts at (b · H + h) · S · D of {outputs}")  # fmt: skip


def _grade_strides(grader: _Grader) -> None:
    """Four layouts without gaps, all different: whose strides were used shows in the values."""
    inputs = _draw(2, 2, 16, 16, 16)
    shape, names = inputs[0].shape, ("q", "k", "v", "do")
    strides = {name: strides_of(shape, order) for name, order in zip(names, (BSDH, BDSH, BHDS, BDHS), strict=True)}

    def mistakes(g: _Exact) -> Mistakes:
        found: dict[str, Any] = {
            words: replace(g, **{name: reread(getattr(g, name), strides[name], at) for name, at in used.items()})
            for words, used in _layout_mistakes(strides, shape).items()
        }
        outputs = " and ".join(grader.names)
        rule = f"{outputs} {'is' if len(grader.names) == 1 else 'are'} contiguous, (b · H + h) · S · D to a head and D to a row"
        for name, at in strides.items():
            stored = {output: reread(getattr(g, output), at, strides_of(shape)) for output in grader.names}
            found |= {f"{outputs} stored by the strides of {name}: {rule}": stored}
            found |= {f"{output} stored by the strides of {name}: {rule}": {output: value} for output, value in stored.items()}
        if len(grader.names) > 1:
            each = {output: reread(getattr(g, output), strides[output[1:]], strides_of(shape)) for output in grader.names}
            found[f"{outputs} stored by the strides of k and v: {rule}"] = each
        return found

    grader.compare(inputs, "B = H = 2, q, k, v and do laid out differently", OWN, mistakes, strides=tuple(strides.values()))
    inputs = _draw(1, 1, 16, 16, 16)
    inputs[3] = torch.ones_like(inputs[3])
    zero = "do has strides of 0, as o.sum().backward() gives it: read it by its own strides"
    grader.compare(inputs, "do = 1, expanded from one element", zero, stray=zero, strides=(None, None, None, (0, 0, 0, 0)))
    _grade_ragged_heads(grader)


def _grade_ragged_heads(grader: _Grader) -> None:
    """Two heads, of which the side that the programs divide is ragged."""
    S_q, S_k = (20, 16) if grader.names == ("dq",) else (16, 20)
    outputs, own = " and ".join(grader.names), "S_q" if grader.names == ("dq",) else "S_k"
    touch = f"tiles of one head must not touch the next: a head starts at (b · H + h) · {own} · D of {outputs}, and its ragged block ends with it"
    start = "a head's rows of {} start at (b · H + h) · S_q, for they belong to the queries"
    both = start.format("lse and delta")

    def by_keys(g: _Exact) -> Mistakes:
        """lse and delta of head h read from h · S_k on, which here stays inside."""
        if S_k > S_q:
            return {}
        lse, delta = (x.as_strided(x.shape, (0, S_k, 1)) for x in (g.lse, g.delta))
        return {
            both: replace(g, lse=lse, delta=delta),
            start.format("lse"): replace(g, lse=lse),
            start.format("delta"): replace(g, delta=delta),
        }

    grader.compare(_draw(1, 2, S_q, S_k, 16), f"two heads, S_q = {S_q}, S_k = {S_k}, blocks of 16", touch, by_keys, stray=touch,
                   strays={"lse": start.format("lse"), "delta": start.format("delta")},
                   unwritten=f"not every row of {outputs} is written: a head starts at (b · H + h) · {own} · D of {outputs}")  # fmt: skip


def _constant_logits(logit: float, S_q: int, S_k: int) -> list[Tensor]:
    """q is all 1, so that with D = 16 and the scale 1 / 4 a key of logit / 4 gives that logit."""
    q, k, v, do = _draw(1, 1, S_q, S_k, 16)
    return [torch.ones_like(q), torch.full_like(k, logit / 4), v, do]


def _grade_range(grader: _Grader) -> None:
    both = "exp overflows: exp(s − lse) is at most 1, exp(s) / exp(lse) is inf / inf"
    grader.compare(_constant_logits(200, 16, 16), "all logits 200", "p = exp(s − lse)", lost=both)


def _grade_columns(grader: _Grader) -> None:
    rows = f"a row of {' and '.join(grader.names)} holds D numbers: rows lie D apart, not BLOCK_D, and offs_d < D is in the store's mask"
    grader.compare(_draw(1, 1, 16, 16, 12), "D = 12, BLOCK_D = 16", "D may be less than BLOCK_D", lambda g: {
        "the scale comes from BLOCK_D: it is an argument": replace(g, scale=0.25, factor=0.25),
    }, stray="columns past D are loaded or stored: offs_d < D is in the mask of every load and store of a tile",
        strays=dict.fromkeys(grader.names, rows), unwritten=rows)  # fmt: skip
    grader.compare(_draw(1, 1, 16, 16, 16), "scale = 0.5, D = 16", "the scale is an argument, which the caller may choose", lambda g: {
        "the scale is computed in the kernel: it is an argument, which the caller may choose": replace(g, scale=0.25, factor=0.25),
    }, scale=0.5)  # fmt: skip


def _grade_half_scores(grader: _Grader) -> None:
    """q kᵀ is beyond fp16. Scaled, s is near 2,080 and dp near 2,050, where fp16 numbers lie 2 apart: more than scores of a row differ."""
    q, k, v, do = _draw(1, 1, 16, 16, 16)
    q[..., 0], k[..., 0], v[..., 0], do[..., 0] = 256, 260, 1367, 1.5
    overflow = "the scores overflow: keep what tl.dot returns in float32, fp16 ends at 65504"
    kept = "fp16 numbers lie 2 apart from 2,048 on: what tl.dot returns stays float32"
    grader.compare([x.to(torch.float16) for x in (q, k, v, do)], "fp16, q kᵀ near 66,560 before it is scaled, s near 2,080, dp and delta near 2,050",
                   f"s, dp or delta is not kept in float32: {kept}", lambda g: {
        f"s is rounded to fp16: {kept}": _HalfScores(**vars(g)),
        f"dp is rounded to fp16: {kept}": _HalfDp(**vars(g)),
        "delta is rounded to fp16, and 2 apart lie its numbers from 2,048 on: it stays float32": replace(g, delta=g.delta.half().double()),
    }, scale=2.0**-5, lost=overflow)  # fmt: skip


def _tile_mistakes(g: _Exact) -> dict[str, dict[str, Tensor]]:
    """S_k = 32, blocks of 16: what belongs to a row is computed from the keys of one tile."""

    def joined(change: Callable[[_Exact], _Exact]) -> dict[str, Tensor]:
        first, last = (change(g.keys(keys)) for keys in (slice(0, 16), slice(16, 32)))
        return {"dq": first.dq + last.dq, "dk": torch.cat((first.dk, last.dk), 2), "dv": torch.cat((first.dv, last.dv), 2)}

    def delta(tile: _Exact) -> _Exact:
        return replace(tile, delta=(tile.p * tile.dp).sum(-1))

    def softmax(tile: _Exact) -> _Exact:
        return replace(tile, lse=torch.logsumexp(tile.s, -1))

    return {
        "delta is summed over one tile's keys: delta_ptr holds the sum over all keys": joined(delta),
        "p is a softmax over one tile's keys: p = exp(s − lse), and lse_ptr holds the lse of all keys": joined(softmax),
        "p is a softmax, and delta a sum, over one tile's keys: lse_ptr and delta_ptr hold those of all keys": joined(
            lambda tile: delta(softmax(tile))
        ),
    }


def _positions(g: _Exact) -> tuple[Tensor, Tensor]:
    """i of the queries, j of the keys."""
    return torch.arange(g.seen.shape[0])[:, None], torch.arange(g.seen.shape[1])[None, :]


def _mask_mistakes(g: _Exact) -> dict[str, Any]:
    """One causal tile."""
    S_q, S_k = g.seen.shape
    everything = replace(g, seen=torch.ones_like(g.seen))
    return {
        "nothing is hidden: query i sees keys 0 to i + S_k − S_q": everything,
        "the mask is strict: a query sees its own key too, j ≤ i + S_k − S_q": replace(g, seen=seen_pairs(S_q, S_k, S_k - S_q - 1)),
        "the mask is turned round: keys after the query are hidden, not those before": replace(g, seen=g.seen.mT),
        "hidden keys get a score of 0, and exp(0 − lse) is not 0: p is 0 there": replace(g, hidden=0.0),
    }


POSITIONS = "the mask is by positions in the tile: compare positions in the sequence"
TOP_LEFT = "the mask is aligned top-left: query i sees keys 0 to i + S_k − S_q, so that the last query sees the last key"


def _grade_hidden(grader: _Grader) -> None:
    """Query 15 alone sees key 15, whose score is 0 for it and 100 for the others."""
    q, k, v, do = _draw(1, 1, 16, 16, 16)
    q[..., 0], q[:, :, 15, 0], k[:, :, 15], k[:, :, 15, 0] = 1, 0, 0, 400
    times = "what is hidden is multiplied by 0, and inf · 0 is NaN: exp(100 − lse) is inf in float32; tl.where chooses, and what it leaves out counts for nothing"
    grader.compare((q, k, v, do), "causal, one tile, key 15 with a score of 100 for the queries that do not see it", "query i sees keys 0 to i",
                   is_causal=True, lost=times)  # fmt: skip


DEAD = "rows that see nothing have lse = −inf, and −inf − (−inf) is NaN: their p must be 0, as with +inf in lse's place"


# ---------------------------------------------------------------- 7.2


def grade_dkdv_kernel(kernel) -> None:
    grader = _Grader(kernel, "dk", "dv")
    grader.compare(_draw(1, 1, 16, 16, 16), "S_q = S_k = D = 16, one tile", "one tile gives dv = pᵀ do and dk = scale · dsᵀ q", lambda g: {
        "dk and dv are exchanged: dk = scale · dsᵀ q goes to dk_ptr, dv = pᵀ do to dv_ptr": {"dk": g.dv, "dv": g.dk},
        "p is not transposed: dv = pᵀ do": {"dv": g.p @ g.do},
        "ds is not transposed: dk = scale · dsᵀ q": {"dk": g.factor * g.ds @ g.q},
        "neither p nor ds is transposed: dv = pᵀ do, dk = scale · dsᵀ q": {"dv": g.p @ g.do, "dk": g.factor * g.ds @ g.q},
        "scale is forgotten in dk: dk = scale · dsᵀ q": replace(g, factor=1.0),
        "scale is applied twice to dk": replace(g, factor=g.factor**2),
        "scale is applied to dv: dv = pᵀ do, for v is not scaled": {"dv": g.scale * g.dv},
        "scale is applied to dv, and not to dk: dv = pᵀ do, dk = scale · dsᵀ q": {"dv": g.scale * g.dv, "dk": g.dk / g.factor},
        "ds stands where p is meant: dv = pᵀ do": {"dv": g.ds.mT @ g.do},
        "p stands where ds is meant: dk = scale · dsᵀ q": {"dk": g.factor * g.p.mT @ g.q},
        "k stands where q is meant: dk = scale · dsᵀ q": {"dk": g.factor * g.ds.mT @ g.k},
        "v stands where do is meant: dv = pᵀ do": {"dv": g.p.mT @ g.v},
        "ds is not multiplied by p: ds = p ∘ (dp − delta)": {"dk": g.factor * (g.dp - g.delta[..., None]).mT @ g.q},
        "delta belongs to the queries, and here it runs along the keys": {"dk": g.factor * (g.p * (g.dp - g.delta[..., None, :])).mT @ g.q},
        "lse belongs to the queries, and here it runs along the keys": _lse_along_keys(g),
        "dk has the wrong sign": {"dk": -g.dk},
        **_formulas(g),
    }, stray="an offset is wrong, not a mask, for whole tiles fit here", unwritten="dk's and dv's tiles are not stored whole")  # fmt: skip
    _grade_query_blocks(grader)
    _grade_key_programs(grader)
    _grade_range(grader)
    _grade_half_scores(grader)
    _grade_causal_keys(grader)
    _grade_columns(grader)
    _grade_heads(grader)
    _grade_strides(grader)
    _grade_half_dkdv(grader)
    grader.on_fresh_inputs((
        ((1, 1, 1, 1, 1), torch.float32, True, TILE, 1.0),
        ((2, 1, 33, 40, 20), torch.float16, True, (32, 32, 32), 1.0),
        ((1, 2, 37, 19, 16), torch.float32, True, (16, 32, 16), 3.0),
        ((2, 1, 17, 31, 40), torch.float32, False, (32, 16, 64), 3.0),
    ))  # fmt: skip


def _lse_along_keys(g: _Exact) -> Mapping[str, Tensor]:
    p = torch.exp(g.scale * (g.q @ g.k.mT) - g.lse[..., None, :])
    return {"dv": p.mT @ g.do, "dk": g.factor * (p * (g.dp - g.delta[..., None])).mT @ g.q}


def _grade_query_blocks(grader: _Grader) -> None:
    def two_blocks(g: _Exact) -> Mistakes:
        first, last = g.rows(slice(0, 16)), g.rows(slice(16, 32))
        added = "without a mask the loop starts with query 0, and every block adds to what the others gave"
        again = {
            name: getattr(first, name).repeat(1, 1, 2, *(1,) * (getattr(first, name).ndim - 3)) for name in ("q", "do", "lse", "delta")
        }
        groups = (("q", "do", "lse", "delta"), ("q", "do"), ("lse", "delta"), ("q",), ("do",), ("lse",), ("delta",))
        return {
            f"only the last block of queries counts: {added}": last,
            f"only the last block of queries counts in dk: {added}": {"dk": last.dk},
            f"only the last block of queries counts in dv: {added}": {"dv": last.dv},
            "only the first block of queries counts: the loop runs to S_q": first,
            **{f"every step reads the first rows of {' and '.join(names)}: they start at start_m": replace(g, **{n: again[n] for n in names})
               for names in groups},
        }  # fmt: skip

    grader.compare(_draw(1, 1, 32, 16, 16), "S_q = 32, two blocks of queries", "dk and dv are sums over the blocks of queries", two_blocks,
                   stray="a step's rows are start_m to start_m + BLOCK_M − 1, and start_m stays below S_q")  # fmt: skip
    counted = "rows past S_q count in dk and dv: q and do are 0 there, or p is"
    grader.compare(_draw(1, 1, 20, 16, 16), "S_q = 20, BLOCK_M = 16", "the last block of queries may be ragged", lambda g: {
        "the ragged last block of queries is left out: the loop goes on while start_m < S_q": g.rows(slice(0, 16)),
        f"{counted}; here the last row stands in for them": g.rows([*range(20), *[19] * 12]),
        f"{counted}; here the first rows stand in for them": g.rows([*range(20), *range(12)]),
    }, stray="rows past S_q are loaded: offs_m < S_q is in the masks of q, do, lse and delta, and what stands in for them must be finite")  # fmt: skip


def _grade_key_programs(grader: _Grader) -> None:
    start = "a program's keys start at key_block · BLOCK_N"
    grader.compare(_draw(1, 1, 16, 32, 16), "S_k = 32, two programs", start, lambda g: {
        f"every program loads the first rows of k: {start}": replace(g, k=g.k[:, :, :16].repeat(1, 1, 2, 1)),
        f"every program loads the first rows of v: {start}": replace(g, v=g.v[:, :, :16].repeat(1, 1, 2, 1)),
        f"every program loads the first rows of k and v: {start}": replace(
            g, k=g.k[:, :, :16].repeat(1, 1, 2, 1), v=g.v[:, :, :16].repeat(1, 1, 2, 1)),
        **_tile_mistakes(g),
    }, unwritten=f"the second block of keys is never stored: {start}, in dk and dv too")  # fmt: skip
    keys = "keys past S_k are loaded or stored: offs_n < S_k is in the masks of k and v, and of the stores of dk and dv"
    unwritten = "the ragged last keys are never stored: there are tl.cdiv(S_k, BLOCK_N) key blocks a head"
    grader.compare(
        _draw(1, 1, 16, 20, 16), "S_k = 20, BLOCK_N = 16", "the last block of keys may be ragged", stray=keys, unwritten=unwritten
    )


def _grade_causal_keys(grader: _Grader) -> None:
    grader.compare(_draw(1, 1, 16, 16, 16), "causal, S_q = S_k = 16, one tile", "query i sees keys 0 to i", lambda g: {
        **_mask_mistakes(g),
        "p is masked, but not ds: p ∘ (dp − delta) is to be 0 where p is": {"dk": replace(g, seen=torch.ones_like(g.seen)).dk},
        "ds is masked, but not p: dv = pᵀ do needs the mask too": {"dv": replace(g, seen=torch.ones_like(g.seen)).dv},
        "the loop starts one block too late: the block of queries that the diagonal crosses sees some of the keys": g.rows(slice(0, 0)),
    }, is_causal=True)  # fmt: skip
    _grade_hidden(grader)

    def walked(g: _Exact) -> Mistakes:
        i, j = _positions(g)
        return {
            "the loop starts one block too late: the block of queries that the diagonal crosses sees some of the keys": replace(
                g, seen=g.seen & (i // 16 > j // 16)),
            "queries after the diagonal's block are left out: they see every key of the block": replace(g, seen=g.seen & (i // 16 <= j // 16)),
            "the block of queries that the diagonal crosses is not masked": replace(g, seen=g.seen | (i // 16 == j // 16)),
            "blocks before the diagonal are walked, and not masked": replace(g, seen=g.seen | (i // 16 != j // 16)),
            POSITIONS: replace(g, seen=(j % 16 <= i % 16) & (j // 16 <= i // 16)),
        }  # fmt: skip

    inputs = _draw(1, 1, 32, 32, 16)
    grader.compare(
        inputs, "causal, S_q = S_k = 32, two blocks", "a block of keys meets the queries from its first key on", walked, is_causal=True
    )
    position = (
        "the first block of queries is found by block number, or rounded up: it is the one that holds query key_block · BLOCK_N + S_q − S_k"
    )

    def tall(g: _Exact) -> Mistakes:
        i, j = _positions(g)
        return {position: replace(g, seen=g.seen & (i >= j // 16 * 32))}

    grader.compare(inputs, "causal, S_q = S_k = 32, BLOCK_M = 32, BLOCK_N = 16", "BLOCK_M and BLOCK_N may differ", tall, is_causal=True,
                   blocks=(32, 16, 16))  # fmt: skip
    grader.compare(inputs, "causal, S_q = S_k = 32, BLOCK_M = 16, BLOCK_N = 32", "BLOCK_M and BLOCK_N may differ", lambda g: {
        "the loop starts where the last key is seen: earlier queries see the first keys": g.rows(slice(16, 32)),
        "only the first block of queries is masked: several see the block of keys in part": replace(
            g, seen=g.seen | (_positions(g)[0] >= 16)),
    }, is_causal=True, blocks=(16, 32, 16))  # fmt: skip
    grader.compare(_draw(1, 1, 16, 32, 16), "causal, S_q = 16, S_k = 32", "query i sees keys 0 to i + S_k − S_q", lambda g: {
        TOP_LEFT: replace(g, seen=seen_pairs(16, 32, 0)),
        "the mask is right, but the loop starts at query key_block · BLOCK_N: add S_q − S_k": replace(
            g, seen=g.seen & (_positions(g)[0] >= _positions(g)[1] // 16 * 16)),
        "S_k − S_q has the wrong sign: query i sees keys 0 to i + S_k − S_q": replace(g, seen=seen_pairs(16, 32, -16)),
    }, is_causal=True, stray="the loop starts before query 0: key_block · BLOCK_N + S_q − S_k may be negative")  # fmt: skip
    grader.compare(_draw(1, 1, 24, 16, 16), "causal, S_q = 24, S_k = 16, so that rows 0 to 7 see no key", "S_q may be larger than S_k", lambda g: {
        TOP_LEFT: replace(g, seen=seen_pairs(24, 16, 0), lse=torch.where(g.lse == -INF, INF, g.lse)),
        "the block of the first query is rounded up: earlier queries of its block see the first keys": g.rows(slice(16, 24)),
    }, is_causal=True, lost=DEAD)  # fmt: skip
    walked = "blocks of queries that see none of the keys are read: the loop starts with the block of the first query that sees one"
    grader.compare(_draw(1, 1, 48, 16, 16), "causal, S_q = 48, S_k = 16, so that rows 0 to 31 see no key", DEAD, is_causal=True, stray=walked,
                   unread=32)  # fmt: skip


def _grade_half_dkdv(grader: _Grader) -> None:
    """Equal scores, so p = 1 / 16; fp16 holds 2,048 but not 2,049."""
    q, k, v, do = (torch.zeros(1, 1, S, 16, dtype=torch.float16) for S in (48, 16, 16, 48))
    lost = "kept in fp16, in which 2048 + 1 is 2048: sums over blocks are float32"
    do[:, :, 0], do[:, :, 16], do[:, :, 32] = 32768, 16, -32768
    grader.compare((q, k, v, do), "fp16, equal scores, pᵀ do of the three blocks is 2048, 1 and −2048", "fp16 needs float32 sums", lambda g: {
        f"dv is {lost}": {"dv": torch.zeros(1, 1, 16, 16)},
    }, atol=0.1)  # fmt: skip
    v[:, :, 0::2, 0], v[:, :, 1::2, 0] = 1, -1
    do = torch.zeros_like(do)
    do[..., 0] = 16
    q[:, :, 0], q[:, :, 16], q[:, :, 32] = 2048, 1, -2048
    grader.compare((q, k, v, do), "fp16, equal scores, dsᵀ q of the three blocks is ±2048, ±1 and ∓2048", "fp16 needs float32 sums", lambda g: {
        f"dk is {lost}": {"dk": torch.zeros(1, 1, 16, 16)},
    }, scale=1.0, atol=0.1)  # fmt: skip


# ---------------------------------------------------------------- 7.3


def grade_dq_kernel(kernel) -> None:
    grader = _Grader(kernel, "dq")
    grader.compare(_draw(1, 1, 16, 16, 16), "S_q = S_k = D = 16, one tile", "one tile gives dq = scale · ds k", lambda g: {
        "scale is forgotten in dq: dq = scale · ds k": replace(g, factor=1.0),
        "scale is applied twice to dq": replace(g, factor=g.factor**2),
        "ds is transposed: dq = scale · ds k": {"dq": g.factor * g.ds.mT @ g.k},
        "k is transposed: dq = scale · ds k": {"dq": g.factor * g.ds @ g.k.mT},
        "q stands where k is meant: dq = scale · ds k": {"dq": g.factor * g.ds @ g.q},
        "v stands where k is meant: dq = scale · ds k": {"dq": g.factor * g.ds @ g.v},
        "p stands where ds is meant: dq = scale · ds k": {"dq": g.factor * g.p @ g.k},
        "ds is not multiplied by p: ds = p ∘ (dp − delta)": {"dq": g.factor * (g.dp - g.delta[..., None]) @ g.k},
        "delta belongs to the queries, and here it runs along the keys": {"dq": g.factor * (g.p * (g.dp - g.delta[..., None, :])) @ g.k},
        "dq has the wrong sign": {"dq": -g.dq},
        "dk is computed: dq = scale · ds k": {"dq": g.dk},
        **_formulas(g),
    }, stray="an offset is wrong, not a mask, for whole tiles fit here", unwritten="dq's tile is not stored whole")  # fmt: skip
    _grade_key_blocks(grader)
    _grade_query_programs(grader)
    _grade_range(grader)
    _grade_half_scores(grader)
    _grade_causal_queries(grader)
    _grade_columns(grader)
    _grade_heads(grader)
    _grade_strides(grader)
    _grade_half_dq(grader)
    grader.on_fresh_inputs((
        ((1, 1, 1, 1, 1), torch.float32, True, TILE, 1.0),
        ((2, 1, 33, 40, 20), torch.float16, True, (32, 32, 32), 1.0),
        ((1, 2, 37, 19, 16), torch.float32, True, (32, 16, 16), 3.0),
        ((2, 1, 31, 17, 40), torch.float32, False, (16, 32, 64), 3.0),
    ))  # fmt: skip


def _grade_key_blocks(grader: _Grader) -> None:
    def two_tiles(g: _Exact) -> Mistakes:
        first, last = g.keys(slice(0, 16)), g.keys(slice(16, 32))
        again = {"k": first.k.repeat(1, 1, 2, 1), "v": first.v.repeat(1, 1, 2, 1)}
        start = "its rows are start_n + tl.arange(0, BLOCK_N)"
        return {
            "only the last tile counts: dq is a sum over the tiles of keys": last,
            "only the first tile counts: the loop runs to S_k": first,
            f"every step reads the first tile of k and v: {start}": replace(g, **again),
            f"every step reads the first tile of k: {start}": replace(g, k=again["k"]),
            f"every step reads the first tile of v: {start}": replace(g, v=again["v"]),
            "scale is applied at every step: once, to the sum": {"dq": g.scale * first.dq + last.dq},
            **_tile_mistakes(g),
        }

    grader.compare(_draw(1, 1, 16, 32, 16), "S_k = 32, two tiles of keys", "dq is a sum over the tiles of keys", two_tiles,
                   stray="a step's keys are start_n to start_n + BLOCK_N − 1, and start_n stays below S_k")  # fmt: skip
    keys = "keys past S_k are loaded: offs_n < S_k is in the masks of k and of v"
    grader.compare(_draw(1, 1, 16, 20, 16), "S_k = 20, BLOCK_N = 16", "the last tile of keys may be ragged", lambda g: {
        "the ragged last tile of keys is left out: the loop goes on while start_n < S_k": g.keys(slice(0, 16)),
        "keys past S_k count: here the last key stands in for them": g.keys([*range(20), *[19] * 12]),
        "keys past S_k count: here the first keys stand in for them": g.keys([*range(20), *range(12)]),
    }, stray=keys)  # fmt: skip
    grader.compare(_constant_logits(-200, 16, 20), "all logits −200, S_k = 20", "p = exp(s − lse)",
                   lost="a key past S_k has a score of 0, and exp(0 − lse) is inf here, inf · 0 NaN: p and ds are 0 from S_k on")  # fmt: skip


def _grade_query_programs(grader: _Grader) -> None:
    start = "a program's rows start at row_block · BLOCK_M"

    def first_rows(g: _Exact) -> Mistakes:
        first = g.rows(slice(0, 16))
        again = {
            name: getattr(first, name).repeat(1, 1, 2, *(1,) * (getattr(first, name).ndim - 3)) for name in ("q", "do", "lse", "delta")
        }
        groups = (("q", "do", "lse", "delta"), ("q", "do"), ("lse", "delta"), ("q",), ("do",), ("lse",), ("delta",))
        return {
            f"every program loads the first rows of {' and '.join(names)}: {start}": replace(g, **{name: again[name] for name in names})
            for names in groups
        }

    grader.compare(_draw(1, 1, 32, 16, 16), "S_q = 32, two programs", start, first_rows,
                   unwritten=f"the second block of rows is never stored: {start}, in dq too")  # fmt: skip
    rows = ("rows past S_q are loaded or stored: offs_m < S_q is in the masks of q, do, lse and delta, and of dq's store, "
            "and a head has tl.cdiv(S_q, BLOCK_M) row blocks")  # fmt: skip
    grader.compare(_draw(1, 1, 20, 16, 16), "S_q = 20, BLOCK_M = 16", "the last block of rows may be ragged", stray=rows,
                   unwritten="the ragged last rows are never stored: there are tl.cdiv(S_q, BLOCK_M) row blocks a head")  # fmt: skip


def _grade_causal_queries(grader: _Grader) -> None:
    grader.compare(_draw(1, 1, 16, 16, 16), "causal, S_q = S_k = 16, one tile", "query i sees keys 0 to i", lambda g: {
        **_mask_mistakes(g),
        "no tile is walked, the loop stops one tile too early: the tile that the diagonal crosses holds keys that are seen": {"dq": 0 * g.dq},
    }, is_causal=True)  # fmt: skip
    _grade_hidden(grader)
    early = "the loop stops one tile too early: the tile that the diagonal crosses holds keys that are seen"

    def walked(g: _Exact) -> Mistakes:
        i, j = _positions(g)
        return {
            early: replace(g, seen=g.seen & (j // 16 < i // 16)),
            "tiles before the diagonal's are left out: all of their keys are seen": replace(g, seen=g.seen & (j // 16 == i // 16)),
            "the tile that the diagonal crosses is not masked": replace(g, seen=g.seen | (i // 16 == j // 16)),
            "tiles after the diagonal are walked, and not masked": replace(g, seen=g.seen | (i // 16 != j // 16)),
            POSITIONS: replace(g, seen=(j % 16 <= i % 16) & (j // 16 <= i // 16)),
            "every block of rows stops where the first one does": replace(g, seen=g.seen & (j < 16)),
        }

    inputs = _draw(1, 1, 32, 32, 16)
    grader.compare(inputs, "causal, S_q = S_k = 32, two blocks", "a block of rows walks over every tile that its last row sees", walked,
                   is_causal=True)  # fmt: skip
    grader.compare(inputs, "causal, S_q = S_k = 32, BLOCK_M = 32, BLOCK_N = 16", "BLOCK_M and BLOCK_N may differ", lambda g: {
        "the loop stops before the last row's diagonal: it goes on while start_n < (row_block + 1) · BLOCK_M + S_k − S_q": replace(
            g, seen=g.seen & (_positions(g)[1] < 16)),
        "only the last tile is masked: a block of rows may see several in part": replace(g, seen=g.seen | (_positions(g)[1] < 16)),
    }, is_causal=True, blocks=(32, 16, 16))  # fmt: skip
    grader.compare(inputs, "causal, S_q = S_k = 32, BLOCK_M = 16, BLOCK_N = 32", "BLOCK_M and BLOCK_N may differ", lambda g: {
        early: replace(g, seen=g.seen & False),
        "the number of tiles is rounded down: the tile that the diagonal crosses holds keys that are seen": replace(
            g, seen=g.seen & (_positions(g)[0] >= 16)),
    }, is_causal=True, blocks=(16, 32, 16))  # fmt: skip
    grader.compare(_draw(1, 1, 16, 32, 16), "causal, S_q = 16, S_k = 32", "query i sees keys 0 to i + S_k − S_q", lambda g: {
        TOP_LEFT: replace(g, seen=seen_pairs(16, 32, 0)),
        "the mask is right, but the loop stops at key (row_block + 1) · BLOCK_M: add S_k − S_q": g.keys(slice(0, 16)),
        "S_k − S_q has the wrong sign: query i sees keys 0 to i + S_k − S_q": replace(g, seen=seen_pairs(16, 32, -16)),
    }, is_causal=True)  # fmt: skip
    for S_q, dead in ((24, "0 to 7"), (32, "0 to 15")):
        on = f"causal, S_q = {S_q}, S_k = 16, so that rows {dead} see no key"
        grader.compare(_draw(1, 1, S_q, 16, 16), on, "rows that see no key have dq = 0", lambda g: {
            TOP_LEFT: replace(g, seen=seen_pairs(g.seen.shape[0], 16, 0)),
        }, is_causal=True, lost=DEAD, unwritten="a block of rows that sees no key must store dq = 0")  # fmt: skip


def _grade_half_dq(grader: _Grader) -> None:
    """Equal scores, so p = 1 / 64, and ds = ±1; fp16 holds 2,048 but not 2,049."""
    q, k, v, do = (torch.zeros(1, 1, S, 16, dtype=torch.float16) for S in (16, 64, 64, 16))
    v[:, :, 0::2, 0], v[:, :, 1::2, 0], do[..., 0] = 1, -1, 64
    k[:, :, 0], k[:, :, 16], k[:, :, 32] = 2048, 1, -2048
    grader.compare((q, k, v, do), "fp16, equal scores, ds k of the four tiles is 2048, 1, −2048 and 0", "fp16 needs a float32 sum", lambda g: {
        "dq is kept in fp16, in which 2048 + 1 is 2048: the sum over tiles is float32": {"dq": torch.zeros(1, 1, 16, 16)},
    }, scale=1.0, atol=0.1)  # fmt: skip


# ---------------------------------------------------------------- 7.4

NAMES = ("dq", "dk", "dv")
FIVE = "backward returns one value for each argument of forward: dq, dk, dv, None, None"


def grade_flash_attention_function(answer) -> None:
    _check_function(answer)
    _grade_apply(answer)
    _grade_settings(answer)
    _grade_saved(answer)
    _grade_repeats(answer)
    _grade_second_derivative(answer)
    for (B, H, S_q, S_k, D), dtype, is_causal in (
        ((2, 1, 5, 3, 8), torch.float32, True), ((1, 2, 17, 33, 20), torch.float16, False), ((1, 1, 1, 1, 1), torch.float32, True)
    ):  # fmt: skip
        inputs = [x.to(dtype) for x in _draw(B, H, S_q, S_k, D, generator=fresh())]
        on = f"{dtype_name(dtype)}, B = {B}, H = {H}, S_q = {S_q}, S_k = {S_k}, D = {D}, is_causal = {is_causal}"
        _compare_gradients(answer, inputs, on, OTHERS, is_causal=is_causal, scale=0.3, values=False)


def _check_function(answer: Any) -> None:
    if not inspect.isclass(answer):
        raise Wrong(f"pass the class itself, not {show(answer)}")
    if not issubclass(answer, torch.autograd.Function):
        raise Wrong("is no subclass of torch.autograd.Function, so it has no apply: class FlashAttention(torch.autograd.Function)")
    for name in ("forward", "backward"):
        if inspect.isfunction(inspect.getattr_static(answer, name)) and name in vars(answer):
            raise Wrong(f"{name} is no static method: put @staticmethod above it, for apply passes ctx and not self")


def _apply(answer: Any, inputs: Sequence[Tensor], is_causal: bool = False, scale: float | None = None, *, on: str = "") -> Tensor:
    scale = inputs[0].shape[-1] ** -0.5 if scale is None else scale
    try:
        o = answer.apply(*inputs, is_causal, scale)
    except NotImplementedError:
        raise NotAttempted from None
    except Exception as error:
        raise Wrong(f"forward raises {type(error).__name__}: {error}{where_in(error, answer.forward)}: {on}") from error
    if isinstance(o, tuple | list):
        raise Wrong(f"forward returns {len(o)} values: o alone is the result, lse goes to save_for_backward")
    if not isinstance(o, torch.Tensor):
        raise Wrong(f"forward returns {show(o)}, want o")
    return o


def _backward(answer: Any, start: Callable[[], Any], on: str) -> Any:
    """start(), which runs the answer's backward, with its errors told."""
    try:
        return start()
    except NotImplementedError:
        raise Wrong("backward is not written yet: it raises NotImplementedError") from None
    except Exception as error:
        text = " ".join(str(error).split())
        if "incorrect number of gradients" in text or "different from None" in text:
            raise Wrong(f"{FIVE}: {on}, PyTorch says: {text}") from error
        raise Wrong(f"backward raises {type(error).__name__}: {text}{where_in(error, answer.backward)}: {on}") from error


def _leaves(inputs: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """q, k, v on the course's device, each asking for a gradient, and do."""
    q, k, v, do = (x.to(hardware.device()) for x in inputs)
    return [x.clone().requires_grad_() for x in (q, k, v)], do


def _compare_gradients(
    answer: Any, inputs: Sequence[Tensor], on: str, otherwise: str, mistakes: Callable[[_Exact], Mistakes] | None = None, *,
    is_causal: bool = False, scale: float | None = None, do: Tensor | None = None, values: bool = True,
) -> None:  # fmt: skip
    """o and its gradients against float64. do: what backward gets, where its strides are other than those of inputs[3]."""
    leaves, weight = _leaves(inputs)
    do = weight if do is None else do.to(weight.device)
    before = do.clone()
    given = _exact(inputs, is_causal, inputs[0].shape[-1] ** -0.5 if scale is None else scale)
    o = _apply(answer, leaves, is_causal, scale, on=on)
    want_o = reference.attention(*inputs[:3], is_causal, given.scale)[0]
    atol = 1e-5 + 4 * torch.finfo(o.dtype).eps * float(want_o.abs().amax())
    expect(o, want_o, on=on, otherwise="forward returns the o of flash_forward(q, k, v, is_causal, scale)", rtol=0.0, atol=atol, values=values,
           what="o", suspects={
               "is_causal does not reach flash_forward": reference.attention(*inputs[:3], False, given.scale)[0],
               "scale does not reach flash_forward": reference.attention(*inputs[:3], is_causal)[0],
           })  # fmt: skip
    if not o.requires_grad:
        raise Wrong(f"o has no grad_fn, though q, k and v ask for gradients: {on}")
    got = dict(zip(NAMES, _backward(answer, lambda: torch.autograd.grad(o, leaves, do, allow_unused=True), on), strict=True))
    absent = [name for name in NAMES if got[name] is None]
    if absent:
        raise Wrong(f"backward returns None for {' and '.join(absent)}, which the input asks for: {FIVE}: {on}")
    if not torch.equal(do, before):
        raise Wrong(f"backward changes do in place, which belongs to autograd: {on}")
    wants = dict(zip(NAMES, reference.gradients(*inputs, is_causal, given.scale), strict=True))
    atols = {name: _tolerance(given, name, wants[name], o.dtype) for name in NAMES}
    got = {name: x.detach().double().cpu() for name, x in got.items()}
    failed = [name for name in NAMES if not close(got[name], wants[name], 0.0, atols[name])]
    if failed:
        name = failed[0]
        words = _name_mistake({} if mistakes is None else mistakes(given), got, wants, atols, name) or otherwise
        expect(got[name], wants[name], on=on, otherwise=words, rtol=0.0, atol=atols[name], values=values, what=name)


def _grade_apply(answer: Any) -> None:
    def mistakes(g: _Exact) -> Mistakes:
        order = "the gradients come in the order of forward's arguments, dq, dk, dv"
        orders = (("dq", "dv", "dk"), ("dk", "dq", "dv"), ("dk", "dv", "dq"), ("dv", "dq", "dk"), ("dv", "dk", "dq"))
        exchanged = {
            f"{order}, and here they come as {', '.join(given)}": {
                name: getattr(g, other) for name, other in zip(NAMES, given, strict=True)
            }
            for given in orders
        }
        ones = replace(g, do=torch.ones_like(g.do))
        ones = replace(ones, delta=(ones.p @ ones.v).sum(-1))
        return {
            **exchanged,
            "do does not reach flash_backward: the gradients are those of o.sum()": ones,
            "do is not multiplied in, or o stands in its place": replace(g, do=g.p @ g.v, delta=((g.p @ g.v) ** 2).sum(-1)),
            "the gradients are divided by a number that does not belong there: flash_backward has the scale already": {
                "dq": g.factor * g.dq, "dk": g.factor * g.dk},
        }  # fmt: skip

    inputs = _draw(1, 1, 4, 4, 4)
    _compare_gradients(
        answer, inputs, "S_q = S_k = D = 4", "flash_backward(q, k, v, o, do, lse, None, is_causal, scale) gives dq, dk, dv", mistakes
    )
    inputs[3] = torch.ones_like(inputs[3])
    _compare_gradients(answer, inputs, "o.sum().backward(), where do has strides of 0", "do may have any strides",
                       do=torch.ones((), device=hardware.device()).expand(inputs[3].shape))  # fmt: skip
    inputs = _draw(1, 2, 4, 4, 4)
    do = inputs[3].transpose(1, 2).contiguous().transpose(1, 2)
    _compare_gradients(answer, inputs, "do a (B, S, H, D) tensor seen as (B, H, S, D)", "do may have any strides", do=do)


def _grade_settings(answer: Any) -> None:
    inputs = _draw(1, 1, 4, 4, 4)
    _compare_gradients(answer, inputs, "is_causal = True", "is_causal reaches forward and backward", lambda g: {
        "is_causal does not reach flash_backward: keep it on ctx": replace(g, seen=torch.ones_like(g.seen)),
    }, is_causal=True)  # fmt: skip
    _compare_gradients(answer, inputs, "is_causal = False, scale = 1", "scale reaches forward and backward", lambda g: {
        "scale does not reach flash_backward: keep it on ctx": replace(g, scale=0.5, factor=0.5),
    }, scale=1.0)  # fmt: skip


def _tensors_in(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """The tensors that a value holds: itself, in tuples, lists, dicts, or in what a function closes over."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 4:
        inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple | set) else ()
        if inspect.isfunction(value):
            inside = [cell.cell_contents for cell in value.__closure__ or ()]
        for item in inside:
            yield from _tensors_in(item, depth + 1)


def _grade_saved(answer: Any) -> None:
    """S_q = S_k = 24, D = 4: a matrix of scores is larger than anything that may be kept."""
    B, H, S, D = 1, 2, 24, 4
    on = f"H = {H}, S_q = S_k = {S}, D = {D}"
    leaves, do = _leaves(_draw(B, H, S, S, D))
    saved: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        saved.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        o = _apply(answer, leaves, on=on)
    kept = [(name, x) for name, value in vars(o.grad_fn).items() for x in _tensors_in(value)]
    if kept:
        name, x = kept[0]
        raise Wrong(
            f"a tensor is kept on ctx, ctx.{name} of shape {tuple(x.shape)}: ctx.save_for_backward keeps tensors, and sees it when one changes in between"
        )
    static = [name for name, value in vars(answer).items() if not isinstance(value, staticmethod) and list(_tensors_in(value))]
    if static:
        raise Wrong(f"a tensor is kept on the class, {static[0]}: the next call overwrites it; ctx.save_for_backward keeps tensors")
    quadratic = [tuple(x.shape) for x in saved if tuple(x.shape[-2:]) == (S, S)]
    if quadratic:
        raise Wrong(
            f"a matrix of scores is saved, of shape {quadratic[0]}: memory grows with S_q · S_k, and backward computes p anew from lse"
        )
    allowed = B * H * S * (4 * D + 1)
    total = sum(x.numel() for x in saved)
    if total > allowed:
        shapes = ", ".join(str(tuple(x.shape)) for x in saved)
        raise Wrong(f"more is saved than q, k, v, o and lse: {on}, {total:,} elements, want {allowed:,} at most; the shapes are {shapes}")
    if total < allowed:
        shapes = ", ".join(str(tuple(x.shape)) for x in saved)
        raise Wrong(f"less is saved than q, k, v, o and lse, so backward has to run the forward again: {on}, {total:,} elements, want {allowed:,}; "
                    f"the shapes are {shapes}")  # fmt: skip
    # Backward must live on what was saved: the rest is gone.
    _backward(answer, lambda: torch.autograd.grad(o, leaves, do), on)


def _grade_repeats(answer: Any) -> None:
    on = "backward twice, with retain_graph=True"
    leaves, do = _leaves(_draw(1, 1, 4, 4, 4))
    before = [x.detach().clone() for x in leaves]
    o = _apply(answer, leaves, on=on)
    first, second = (_backward(answer, lambda: torch.autograd.grad(o, leaves, do, retain_graph=True), on) for _ in range(2))
    if not all(torch.equal(a, b) for a, b in zip(first, second, strict=True)):
        raise Wrong(f"two backward passes differ: what is kept must not change: {on}")
    if not all(torch.equal(a, b.detach()) for a, b in zip(before, leaves, strict=True)):
        raise Wrong("an input is changed in place: q, k and v belong to the caller")
    x = leaves[0].detach().clone().requires_grad_()
    total = _backward(answer, lambda: torch.autograd.grad(_apply(answer, (x, x, x)), x, do)[0], "q is k is v")
    want = sum(reference.gradients(x, x, x, do))
    expect(total, want, on="q is k is v", otherwise="the three gradients add", rtol=0.0, atol=1e-4, what="the gradient")
    other = _apply(answer, leaves, True, 1.0)
    third = _backward(answer, lambda: torch.autograd.grad(o, leaves, do), "a second call, then the first one's backward")
    del other
    if not all(torch.equal(a, b) for a, b in zip(first, third, strict=True)):
        raise Wrong("a second call changes the first one's gradients: what backward needs is kept on ctx, not on the class or in a global")


def _grade_second_derivative(answer: Any) -> None:
    """The gradient of Σ o², and then the gradient of its square: without once_differentiable the second is dropped silently."""
    leaves, _ = _leaves(_draw(1, 1, 4, 4, 4))
    o = _apply(answer, leaves)
    loss = (o * o).sum()
    try:
        gradients = torch.autograd.grad(loss, leaves, create_graph=True)
        (loss + sum((x * x).sum() for x in gradients)).backward()
    except RuntimeError:
        return
    raise Wrong(
        "a second derivative is silently wrong: with create_graph=True the kernels' gradients count as constants. "
        "@once_differentiable, between @staticmethod and backward, raises a RuntimeError there"
    )


EXERCISES = (
    Exercise(
        "7.1", "delta_kernel", "Sum do ∘ o by rows, in float32, for strided o and do: a program takes BLOCK_M rows of one head.", grade_delta_kernel,
        ("Exercise 5.1's tile, twice: once of o, once of do, each by its own four strides. Which axis of [BLOCK_M, BLOCK_D] is summed?",
         "delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1), [BLOCK_M]. delta is contiguous: head h of batch b starts at (b · H + h) · S_q.",
         "The loads are masked by offs_m < S_q and offs_d < D, with other=0.0; the store by offs_m < S_q."),
        solutions.delta_kernel,
        "Zeros past D add nothing to the sum, and rows past S_q are not stored. Products of two fp16 numbers reach far past 65504, so both are turned "
        "to float32 first. do is read by its own strides, which are 0 after o.sum().backward(), so that one element is read again and again.",
        helpers=(load_tile,),
    ),
    Exercise(
        "7.2", "dkdv_kernel", "Write dk and dv: a program keeps one block of keys and walks over the blocks of queries, full or causal.",
        grade_dkdv_kernel,
        ("k and v are loaded once, before the loop; q, do, lse and delta at every step. Write the shape above each tile: with sᵀ = k qᵀ, [BLOCK_N, BLOCK_M], no "
         "computed tile has to be transposed; lse and delta then run along its second axis.",
         "dv += pᵀ do and dk += dsᵀ q, both float32: tl.dot(p_t.to(do.dtype), do, dv, input_precision=\"ieee\"); scale · dk after the loop. p = exp(s − lse), "
         "ds = p ∘ (dp − delta). load_lse and p_and_ds may be imported from fa_tutorial.exercises.pieces.",
         "Causal: the first query that sees the block's first key is key_block · BLOCK_N + S_q − S_k, if that is not negative; the loop starts with its block. Hide "
         "by tl.where, in p, before ds is computed from it. A row that sees nothing has lse = −inf.",
         "Rows past S_q: q, do and delta load as 0, so whatever finite p they get is multiplied by 0. Keys past S_k give rows of dk and dv that are not stored."),
        solutions.dkdv_kernel,
        "A program owns its rows of dk and dv: nobody else adds to them, so no atomics, and the same bits on every run. The mask needs only j ≤ i + S_k − S_q: "
        "padded queries have q = do = 0 and p = exp(s − inf) = 0, and padded keys end up in rows that are not stored. lse = +inf for −inf makes p 0 in rows that see nothing.",
        helpers=(load_tile, load_lse, p_and_ds, dot),
    ),
    Exercise(
        "7.3", "dq_kernel", "Write dq: a program keeps one block of queries and walks over the blocks of keys, full or causal.", grade_dq_kernel,
        ("The loop is that of the forward kernel. Which four things are loaded before it, which two at every step, and what is summed?",
         "s = scale · q kᵀ, p = exp(s − lse[:, None]), dp = do vᵀ, ds = p ∘ (dp − delta[:, None]), dq += ds k; scale · dq after the loop. The last dot is "
         "tl.dot(ds.to(k.dtype), k, dq, input_precision=\"ieee\").",
         "Keys past S_k have k = 0, yet exp(0 − lse) overflows where all logits are very negative, and inf · 0 is NaN: set p to 0 there, and for hidden keys.",
         "Causal: the loop ends at min((row_block + 1) · BLOCK_M, S_q) + S_k − S_q. A block that sees nothing takes no step, and still stores its zeros."),
        solutions.dq_kernel,
        "The same tile as in dkdv_kernel is computed a second time, seven matmuls in all where five would do: the price of sums with one owner each. last_seen is S_k − 1 "
        "at most, so that one comparison hides both what causality hides and what is not there.",
        helpers=(load_tile, load_lse, p_and_ds, dot),
    ),
    Exercise(
        "7.4", "FlashAttention", "Join flash_forward and flash_backward in a torch.autograd.Function that saves q, k, v, o and lse.",
        grade_flash_attention_function,
        ("forward(ctx, …) keeps tensors by ctx.save_for_backward and other values as attributes of ctx; backward(ctx, do) finds them in ctx.saved_tensors. Both are "
         "static methods. How many values does backward return?",
         "One for each argument of forward: dq, dk, dv, None, None. flash_backward's dlse is the gradient of lse: forward returns o alone, so it is None.",
         "from torch.autograd.function import once_differentiable, and put @once_differentiable between @staticmethod and backward: a second derivative then raises."),
        solutions.FlashAttention,
        "save_for_backward notices when a saved tensor is changed before backward, and frees it afterwards; a tensor on ctx escapes both, and o there makes a cycle. lse is what "
        "makes p cheap to bring back, so no (S_q, S_k) matrix is kept. The kernels leave no graph: without once_differentiable, what a second derivative "
        "needs would count as a constant.",
    ),
)  # fmt: skip
