"""What the attention tests share: the hard inputs, each in its layout inside NaN, and the comparison with float64."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from buffers import DEVICE, DTYPES, ON_GPU, Named, copy_of, guarded_outputs, in_nan, randn, same_bits, unchanged

from fa_tutorial import attention, flash_attention, reference
from fa_tutorial.tuned import autotuning

# What kernel= may name on this machine. The interpreter runs the tuned kernels too.
KERNELS = ("basic", "tuned", "hopper") if attention.best(torch.empty(0, device=DEVICE)) == "hopper" else ("basic", "tuned")

causal = pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
on_gpu = pytest.mark.skipif(not ON_GPU, reason="the interpreter would take too long, and shows no more than with the cases it runs")
on_hopper = pytest.mark.skipif("hopper" not in KERNELS, reason="Gluon has no interpreter, and this is no GPU of compute capability 9.0")

# Name -> element strides and storage offset of a (B, H, S, D) tensor.
LAYOUTS: dict[str, Callable[[int, int, int, int], tuple[tuple[int, int, int, int], int]]] = {
    "contiguous": lambda B, H, S, D: ((H * S * D, S * D, D, 1), 0),
    "(B, S, H, D)": lambda B, H, S, D: ((S * H * D, D, H * D, 1), 0),
    "slice of fused": lambda B, H, S, D: ((S * 3 * H * D, D, 3 * H * D, 1), H * D),
    "padded rows": lambda B, H, S, D: ((H * S * (D + 1), S * (D + 1), D + 1, 1), 0),
    "offset of one": lambda B, H, S, D: ((H * S * D, S * D, D, 1), 1),
    "every third row": lambda B, H, S, D: ((3 * H * S * D, 3 * S * D, 3 * D, 1), 0),
    "every second head": lambda B, H, S, D: ((2 * H * S * D, 2 * S * D, D, 1), 0),
    "last stride 2": lambda B, H, S, D: ((2 * H * S * D, 2 * S * D, 2 * D, 2), 0),
    "(B, H, D, S)": lambda B, H, S, D: ((H * S * D, S * D, 1, S), 0),
    "one head expanded": lambda B, H, S, D: ((S * D, 0, D, 1), 0),
    "one batch expanded": lambda B, H, S, D: ((0, S * D, D, 1), 0),
    "one number": lambda B, H, S, D: ((0, 0, 0, 0), 0),
}

# Name -> layouts of q, k, v and do.
VIEWS: dict[str, tuple[str, str, str, str]] = {
    "contiguous": ("contiguous",) * 4,
    "(B, S, H, D) transposed": ("(B, S, H, D)",) * 4,
    "slices of fused qkv": (*("slice of fused",) * 3, "every second head"),
    "padded row stride": ("padded rows",) * 4,
    "storage offset of one": ("offset of one",) * 4,
    "last stride 2": ("last stride 2",) * 4,
    "(B, H, D, S) transposed": ("(B, H, D, S)",) * 4,
    "k and v expanded from one head": ("contiguous", "one head expanded", "one head expanded", "contiguous"),
    "k and v expanded from one batch": ("contiguous", "one batch expanded", "one batch expanded", "one head expanded"),
    "three strides, do of a sum": ("contiguous", "every third row", "padded rows", "one number"),
    "four strides": ("(B, S, H, D)", "(B, H, D, S)", "last stride 2", "padded rows"),
}


def growing_maximum(q, k, v):
    """q · k is 0.25 j for key j, whatever D: the maximum grows with every key, so with every block."""
    q.fill_(0).select(-1, 0).fill_(1)
    k.select(-1, 0).copy_(0.25 * torch.arange(k.shape[2], device=k.device))


def falling_maximum(q, k, v):
    growing_maximum(q, k, v)
    k.copy_(k.flip(2))


def logits_near_minus_10_000(q, k, v):
    """q · k is −1e4 and some units, a float16 number's spacing of 8 away from its neighbours: for scale = 1."""
    q.mul_(0.01).select(-1, 0).fill_(-100)
    k.select(-1, 0).fill_(100)


def logits_up_to_10_000(q, k, v):
    """q · k is between −1e4 and 1e4: for scale = 1."""
    q.mul_(0.01).select(-1, 0).fill_(100)
    k.select(-1, 0).copy_(torch.linspace(-100, 100, k.shape[2], device=k.device).roll(k.shape[2] // 3))


# Name -> what changes contiguous standard normal q, k, v in place.
VALUES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]] = {
    "randn": lambda q, k, v: None,
    "3x randn": lambda *qkv: [x.mul_(3) for x in qkv],
    "equal keys": lambda q, k, v: k.copy_(k[:, :, :1].clone().expand_as(k)),
    "growing maximum": growing_maximum,
    "falling maximum": falling_maximum,
    "logits near -1e4": logits_near_minus_10_000,
    "logits up to 1e4": logits_up_to_10_000,
}


@dataclass(frozen=True)
class Case(Named):
    """One call of attention, and of its backward. H_k: H_q unless given. dlse: lse has a gradient too."""

    S_q: int
    S_k: int
    D: int = 64
    dtype: torch.dtype = torch.float16
    is_causal: bool = False
    B: int = 2
    H_q: int = 2
    H_k: int | None = None
    scale: float | None = None
    view: str = "contiguous"
    values: str = "randn"
    dlse: bool = False

    def data(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Contiguous q (B, H_q, S_q, D), k and v (B, H_k, S_k, D)."""
        H_k = self.H_q if self.H_k is None else self.H_k
        shapes = (self.H_q, self.S_q), (H_k, self.S_k), (H_k, self.S_k)
        q, k, v = (randn(self.B, *shape, self.D, dtype=self.dtype, seed=i) for i, shape in enumerate(shapes, 1))
        VALUES[self.values](q, k, v)
        return q, k, v

    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """data() in the layouts of this view, inside NaN."""
        return tuple(place(x, layout) for x, layout in zip(self.data(), VIEWS[self.view], strict=False))

    def output_gradients(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """do (B, H_q, S_q, D) in the layout of this view, inside NaN, and dlse (B, H_q, S_q) or None."""
        do = randn(self.B, self.H_q, self.S_q, self.D, dtype=self.dtype, seed=4)
        return place(do, VIEWS[self.view][3]), randn(self.B, self.H_q, self.S_q, seed=5) if self.dlse else None


def place(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The (B, H, S, D) tensor in one of LAYOUTS, inside NaN."""
    return in_nan(x, *LAYOUTS[layout](*x.shape))


def same(got, want) -> bool:
    return all(bool(same_bits(a, b).all()) for a, b in zip(got, want, strict=True))


# ---------------------------------------------------------------- the hard inputs


def hard_inputs() -> list[Case]:
    """The rows of HARD_INPUTS that are one call. On a GPU each with both masks and every dtype; in the interpreter these take turns, and
    two heads are where a row is about lengths, heads or views."""
    lengths = [(1, 1), (1, 239), (239, 1), (113, 203), (127, 513), (799, 3)]
    if not ON_GPU:  # four tiles and a part one way, and as many the other
        lengths = [(1, 1), (1, 139), (139, 1), (67, 203), (299, 3)]
    lengths += [(S + more, S + more) for S in ((16, 32, 64, 128) if ON_GPU else (32, 64)) for more in (-1, 0, 1)]  # around every block size
    cases = [Case(S_q, S_k, D=40, B=1, dlse=S_q % 2 == 0) for S_q, S_k in lengths]
    cases += [Case(33, 47, D=D, B=1, H_q=1, view="padded row stride") for D in (1, 8, 16, 40, 59, 64, 80, 96, 111, 128, 192, 256)]
    cases += [Case(45, 35, D=32, B=B, H_q=H_q, H_k=H_k) for B, H_q, H_k in ((2, 4, 2), (1, 3, 1))]
    cases += [Case(37, 45, D=40, view=view) for view in VIEWS]
    cases += [
        Case(20, 70, D=24, B=1, H_q=1, values=name, scale=1.0 if "1e4" in name else None, dlse=True) for name in VALUES if name != "randn"
    ]
    cases += [Case(20, 45, D=40, B=1, H_q=1, scale=scale, dlse=True) for scale in (0.3, 0.0, 1.0, -0.7)]
    cases += [Case(37, 0, D=16, dlse=True)]
    few_or_many = (1, 70), (33, 70), (64, 65), (69, 70), (70, 1), (70, 33), (65, 64), (130, 2)
    always_causal = [Case(S_q, S_k, D=40, B=1, H_q=1, is_causal=True, dlse=True) for S_q, S_k in few_or_many]
    if ON_GPU:
        cases = [replace(case, is_causal=is_causal) for case in cases for is_causal in (False, True)]
        return [replace(case, dtype=dtype) for case in cases + always_causal for dtype in DTYPES]
    cases = [replace(case, is_causal=is_causal) for case, is_causal in zip(cases, itertools.cycle((False, True)), strict=False)]
    return [replace(case, dtype=dtype) for case, dtype in zip(cases + always_causal, itertools.cycle(DTYPES), strict=False)]


def a_tile_by_turns(name, kernel, grid, tensors, arguments, tma, constants) -> dict[str, int]:
    """In place of autotuning.fastest: no measuring, and every candidate has its turn."""
    q = tensors["q"]
    tiles = autotuning.candidates(name, q.shape[3], autotuning.card_of(q).shared_memory)
    return tiles[zlib.crc32(repr((name, q.dtype, constants)).encode()) % len(tiles)].launch()


# ---------------------------------------------------------------- what a call gives


def attend(q, k, v, is_causal=False, scale=None):
    """flash_attention's o and lse; all of them is written and nothing around it, and q, k, v are as they were."""
    with unchanged(q, k, v), guarded_outputs():
        return flash_attention(q, k, v, is_causal=is_causal, scale=scale, return_lse=True)


def differentiate(q, k, v, do=None, is_causal=False, scale=None, dlse=None):
    """(dq, dk, dv) of flash_attention for the gradients do of o and dlse of lse, either None where it was not used."""
    leaves, given = [x.detach().requires_grad_() for x in (q, k, v)], [x for x in (do, dlse) if x is not None]
    with unchanged(q, k, v, *given), guarded_outputs():
        outputs = flash_attention(*leaves, is_causal=is_causal, scale=scale, return_lse=True)
        used = [output for output, gradient in zip(outputs, (do, dlse), strict=True) if gradient is not None]
        return torch.autograd.grad(used, leaves, given)


def check(case: Case, kernel: str = "auto"):
    """flash_attention and its gradients are accurate on the case; returns o, lse, dq, dk, dv."""
    inputs, (do, dlse) = case.inputs(), case.output_gradients()
    leaves, given = [x.detach().requires_grad_() for x in inputs], [x for x in (do, dlse) if x is not None]
    with unchanged(*inputs, *given), guarded_outputs():
        o, lse = flash_attention(*leaves, is_causal=case.is_causal, scale=case.scale, return_lse=True, kernel=kernel)
        gradients = torch.autograd.grad((o, lse)[: len(given)], leaves, given)
    o, lse = o.detach(), lse.detach()
    assert_attention(o, lse, *inputs, case.is_causal, case.scale)
    assert_gradients(gradients, *inputs, do, case.is_causal, case.scale, dlse)
    return o, lse, *gradients


def check_forward(flash_forward: Callable, case: Case, **options) -> None:
    """A launcher's o and lse are accurate on the case, all of them is written, and nothing else."""
    q, k, v = case.inputs()
    scale = case.D**-0.5 if case.scale is None else case.scale
    with unchanged(q, k, v), guarded_outputs():
        o, lse = flash_forward(q, k, v, case.is_causal, scale, **options)
    assert_attention(o, lse, q, k, v, case.is_causal, scale)


def check_backward(flash_backward: Callable, case: Case, **options) -> None:
    """As check_forward, for dq, dk and dv, from the reference's o and lse."""
    q, k, v = case.inputs()
    do, dlse = case.output_gradients()
    scale = case.D**-0.5 if case.scale is None else case.scale
    o, lse = reference.attention(q, k, v, case.is_causal, scale)
    o, lse = place(o.to(case.dtype), "slice of fused"), lse.float()
    given = [x for x in (q, k, v, o, do, lse, dlse) if x is not None]
    with unchanged(*given), guarded_outputs():
        gradients = flash_backward(q, k, v, o, do, lse, dlse, case.is_causal, scale, **options)
    assert_gradients(gradients, q, k, v, do, case.is_causal, scale, dlse)


# ---------------------------------------------------------------- the comparison with float64


def assert_attention(o, lse, q, k, v, is_causal: bool = False, scale: float | None = None) -> None:
    """o and lse are as accurate as DESIGN's bound asks."""
    truth, truth_lse = reference.attention(q, k, v, is_causal, scale)
    assert (o.dtype, o.shape, o.device) == (q.dtype, q.shape, q.device), f"o is {o.dtype}, {tuple(o.shape)}, on {o.device}"
    assert lse.dtype == torch.float32 and lse.shape == q.shape[:3], f"lse is {lse.dtype}, {tuple(lse.shape)}"
    reference.assert_accurate(o, truth, plain_attention(truth, q, k, v, is_causal, scale))
    reference.assert_lse_accurate(lse, truth_lse, q.dtype)


def plain_attention(truth, q, k, v, is_causal: bool = False, scale: float | None = None) -> torch.Tensor:
    """Unfused attention in the inputs' dtype; a row that sees nothing, where it gives NaN, counts as exact."""
    plain = reference.naive_attention(*map(copy_of, (q, k, v)), is_causal, scale)
    return plain.where(torch.isfinite(plain), truth.to(plain.dtype))


def assert_gradients(got, q, k, v, do, is_causal: bool = False, scale: float | None = None, dlse=None) -> None:
    """got, (dq, dk, dv), is as accurate as DESIGN's bound asks; like q, k and v in shape, dtype and device.

    Where logits are in the thousands, what one float32 of lse cannot hold is allowed: its rounding is a relative error of p.
    """
    truth = reference.gradients(q, k, v, do, is_causal, scale, dlse)
    plain = plain_gradients(q, k, v, do, is_causal, scale, dlse)
    lse = reference.attention(q, k, v, is_causal, scale)[1].detach()
    largest_lse = float(lse.nan_to_num(neginf=0.0).abs().max()) if lse.numel() else 0.0
    rounding = torch.finfo(torch.float32).eps * largest_lse if largest_lse > 1000 else 0.0
    for name, x, like, want, peer in zip(("dq", "dk", "dv"), got, (q, k, v), truth, plain, strict=True):
        about = x.dtype, x.shape, x.device
        assert about == (like.dtype, like.shape, like.device), f"{name} is {about}"
        slack = rounding * float(want.abs().max()) if want.numel() else 0.0
        try:
            reference.assert_accurate(x, want, peer, factor=3.0, slack=slack)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def plain_gradients(q, k, v, do, is_causal: bool = False, scale: float | None = None, dlse=None) -> tuple[torch.Tensor, ...]:
    """(dq, dk, dv) by autograd through unfused attention in the inputs' dtype.

    Rows that see nothing are left out, for they would make all of it NaN: their dq is 0.
    """
    blind = max(q.shape[2] - k.shape[2], 0) if is_causal else 0
    with torch.enable_grad():
        leaves = [copy_of(x).requires_grad_() for x in (q[:, :, blind:], k, v)]
        outputs, weights = [reference.naive_attention(*leaves, is_causal, scale)], [copy_of(do[:, :, blind:])]
        if dlse is not None:
            s = (leaves[0] @ reference.repeat_heads(leaves[1], q.shape[1]).mT) * (q.shape[3] ** -0.5 if scale is None else scale)
            hidden = ~reference.causal_mask(*s.shape[2:], s.device) if is_causal else torch.zeros_like(s, dtype=torch.bool)
            outputs.append(torch.logsumexp(s.masked_fill(hidden, -math.inf), dim=-1))
            weights.append(dlse[:, :, blind:].to(q.dtype))
        dq, dk, dv = torch.autograd.grad(outputs, leaves, weights)
    return torch.cat([torch.zeros_like(q[:, :, :blind]), dq], dim=2), dk, dv


def check_attention(attention, H_k: int, S: int, D: int, is_causal: bool):
    """o and the gradients in fp16 are attention's."""
    q, do = (randn(1, 4, S, D, dtype=torch.float16, seed=seed) for seed in (0, 1))
    k, v = (randn(1, H_k, S, D, dtype=torch.float16, seed=seed) for seed in (2, 3))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    o = attention(*inputs, is_causal)
    want = (reference.attention(q, k, v, is_causal)[0], *reference.gradients(q, k, v, do, is_causal))
    for x, truth in zip((o, *torch.autograd.grad(o, inputs, do)), want, strict=True):
        torch.testing.assert_close(x.double(), truth, atol=0.02, rtol=0.02)
