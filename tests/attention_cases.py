"""What the attention tests share: q, k and v in every layout inside NaN, the comparison with float64, launches on guarded outputs,
modules with a piece of their source changed.
"""

from __future__ import annotations

import importlib.util
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from buffers import ON_GPU, Guarded, guarded_input, guarded_output, in_nan, launch, randn

from fa_tutorial import attention, backward, forward, reference
from fa_tutorial.arguments import dtype_name

# What kernel= may name on this machine; the tuned kernels in the interpreter: test_tuned.py.
KERNELS = ["basic", "tuned", "hopper"] if attention.best() == "hopper" else ["basic", "tuned"] if ON_GPU else ["basic"]

# Name -> element strides and storage offset of a (B, H, S, D) tensor.
LAYOUTS: dict[str, Callable[[int, int, int, int], tuple[tuple[int, int, int, int], int]]] = {
    "contiguous": lambda B, H, S, D: ((H * S * D, S * D, D, 1), 0),
    "(B, S, H, D)": lambda B, H, S, D: ((S * H * D, D, H * D, 1), 0),
    "slice of fused": lambda B, H, S, D: ((S * 3 * H * D, D, 3 * H * D, 1), H * D),
    "padded rows": lambda B, H, S, D: ((H * S * (D + 1), S * (D + 1), D + 1, 1), 0),
    "offset of one": lambda B, H, S, D: ((H * S * D, S * D, D, 1), 1),
    "every third row": lambda B, H, S, D: ((3 * H * S * D, 3 * S * D, 3 * D, 1), 0),
    "last stride 2": lambda B, H, S, D: ((2 * H * S * D, 2 * S * D, 2 * D, 2), 0),
    "(B, H, D, S)": lambda B, H, S, D: ((H * S * D, S * D, 1, S), 0),
    "one head expanded": lambda B, H, S, D: ((S * D, 0, D, 1), 0),
    "one batch expanded": lambda B, H, S, D: ((0, S * D, D, 1), 0),
}

# Name -> layouts of q, k and v.
VIEWS: dict[str, tuple[str, str, str]] = {
    "contiguous": ("contiguous",) * 3,
    "(B, S, H, D) transposed": ("(B, S, H, D)",) * 3,
    "slices of fused qkv": ("slice of fused",) * 3,
    "padded row stride": ("padded rows",) * 3,
    "storage offset of one": ("offset of one",) * 3,
    "last stride 2": ("last stride 2",) * 3,
    "(B, H, D, S) transposed": ("(B, H, D, S)",) * 3,
    "k and v expanded from one head": ("contiguous", "one head expanded", "one head expanded"),
    "k and v expanded from one batch": ("contiguous", "one batch expanded", "one batch expanded"),
    "three strides": ("contiguous", "every third row", "padded rows"),
    "three other strides": ("(B, S, H, D)", "(B, H, D, S)", "last stride 2"),
}

# Each changes contiguous standard normal q, k, v in place.
Values = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def three_times(q, k, v):
    for x in (q, k, v):
        x.mul_(3)


def equal_keys(q, k, v):
    k.copy_(k[:, :, :1].clone().expand_as(k))


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


def values_near_the_largest(q, k, v):
    """v near the largest finite number of its dtype, half of them of either sign; the sum over keys is beyond it."""
    v.copy_(torch.finfo(v.dtype).max * (1 - 0.05 * v.float().abs().clamp(max=2)) * torch.where(v.float() > 0.5, -1.0, 1.0))


VALUES: dict[str, Values] = {
    "randn": lambda q, k, v: None,
    "3x randn": three_times,
    "equal keys": equal_keys,
    "growing maximum": growing_maximum,
    "falling maximum": falling_maximum,
    "logits near -1e4": logits_near_minus_10_000,
    "logits up to 1e4": logits_up_to_10_000,
    "values near the largest": values_near_the_largest,
}


@dataclass(frozen=True)
class Case:
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

    def __str__(self) -> str:
        heads = f"{self.B}x{self.H_q}" + (f"/{self.H_k}" if self.H_k else "")
        words = [dtype_name(self.dtype), f"B*H {heads}", f"S {self.S_q}x{self.S_k}", f"D {self.D}"]
        words += ["causal"] * self.is_causal + ["dlse"] * self.dlse
        words += [self.view] * (self.view != "contiguous") + [self.values] * (self.values != "randn")
        return ", ".join(words + ([f"scale {self.scale}"] if self.scale is not None else []))

    def data(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Contiguous q (B, H_q, S_q, D), k and v (B, H_k, S_k, D)."""
        H_k = self.H_q if self.H_k is None else self.H_k
        q = randn(self.B, self.H_q, self.S_q, self.D, dtype=self.dtype, seed=1)
        k = randn(self.B, H_k, self.S_k, self.D, dtype=self.dtype, seed=2)
        v = randn(self.B, H_k, self.S_k, self.D, dtype=self.dtype, seed=3)
        VALUES[self.values](q, k, v)
        return q, k, v

    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """data() in the layouts of this view, inside NaN."""
        return tuple(buffer.tensor for buffer in self.buffers())

    def buffers(self) -> tuple[Guarded, Guarded, Guarded]:
        """inputs(), as what buffers.launch watches."""
        return tuple(place(x, layout) for x, layout in zip(self.data(), VIEWS[self.view], strict=True))

    def output_gradients(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Contiguous do (B, H_q, S_q, D), and dlse (B, H_q, S_q) or None.

        Beside values near the largest it is smaller, so that dq and dk are finite; dp = do vᵀ is beyond the largest, except in fp16.
        """
        do = randn(self.B, self.H_q, self.S_q, self.D, dtype=self.dtype, seed=4)
        if self.values == "values near the largest":
            do.mul_(0.01 if self.dtype == torch.float16 else 0.5)
        return do, randn(self.B, self.H_q, self.S_q, seed=5) if self.dlse else None


def place(x: torch.Tensor, layout: str) -> Guarded:
    """The (B, H, S, D) tensor in one of LAYOUTS, inside NaN."""
    strides, offset = LAYOUTS[layout](*x.shape)
    return Guarded(*in_nan(x, strides, offset), is_output=False)


def assert_attention(o, lse, q, k, v, is_causal: bool = False, scale: float | None = None) -> None:
    """o and lse are as accurate as DESIGN's bound asks; NaN and inf stand exactly where the float64 reference has them."""
    truth, truth_lse = reference.attention(q, k, v, is_causal, scale)
    assert o.dtype == q.dtype and o.shape == q.shape and o.device == q.device, f"o is {o.dtype}, {tuple(o.shape)}, on {o.device}"
    assert lse.dtype == torch.float32 and lse.shape == q.shape[:3], f"lse is {lse.dtype}, {tuple(lse.shape)}"
    finite = torch.isfinite(truth)
    assert torch.equal(torch.isfinite(o), finite), f"{int((torch.isfinite(o) != finite).sum())} elements of o are NaN or inf, or should be"
    torch.testing.assert_close(o[~finite].double(), truth[~finite], equal_nan=True)
    plain = plain_attention(truth, q, k, v, is_causal, scale)
    reference.assert_accurate(o.where(finite, 0), truth.where(finite, 0), plain.where(finite, 0))
    lost, truth_lost = (torch.isnan(x) | (x == torch.inf) for x in (lse, truth_lse))  # a score of +inf gives o = NaN and either lse
    assert torch.equal(lost, truth_lost), "lse is NaN or inf elsewhere than the reference's"
    reference.assert_lse_accurate(lse.where(~lost, 0), truth_lse.where(~lost, 0), q.dtype)


def plain_attention(truth, q, k, v, is_causal: bool = False, scale: float | None = None) -> torch.Tensor:
    """Unfused attention in the inputs' dtype; where it gives NaN or inf (rows that see nothing, say) it counts as exact."""
    plain = reference.naive_attention(q, k, v, is_causal, scale)
    return plain.where(torch.isfinite(plain), truth.to(plain.dtype))


def run_guarded(module: ModuleType, case: Case, config: forward.TileConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch `module`'s flash_forward_kernel; o (its rows padded) and lse are NaN in guard cells, AssertionError where these change."""
    q, k, v = case.buffers()
    (B, H_q, S_q, D), (H_k, S_k) = q.tensor.shape, k.tensor.shape[1:3]
    o = guarded_output(q.tensor.shape, case.dtype, LAYOUTS["padded rows"](*q.tensor.shape)[0])
    lse = guarded_output((B, H_q, S_q), torch.float32)
    scale = case.scale if case.scale is not None else D**-0.5
    strides = [stride for x in (q, k, v, o) for stride in x.tensor.stride()]
    launch(
        module.flash_forward_kernel, (-(-S_q // config.block_m) * B * H_q,), q, k, v, o, lse, H_q, H_k, S_q, S_k, D, scale, *strides,
        IS_CAUSAL=case.is_causal, P_SCALE=module.p_scale(case.dtype), BLOCK_M=config.block_m, BLOCK_N=config.block_n,
        BLOCK_D=forward.padded_d(D), num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return o.tensor, lse.tensor


def check_kernel(module: ModuleType, case: Case, config: forward.TileConfig) -> None:
    """run_guarded, and its results are accurate."""
    o, lse = run_guarded(module, case, config)
    assert_attention(o, lse, *case.inputs(), case.is_causal, case.scale)


def assert_gradients(got, q, k, v, do, is_causal: bool = False, scale: float | None = None, dlse=None) -> None:
    """got, (dq, dk, dv), is as accurate as DESIGN's bound asks, and finite; like q, k and v in shape, dtype and device.

    Where logits are in the thousands, what one float32 of lse cannot hold is allowed: its rounding is a relative error of p.
    Where unfused attention overflows it counts as exact, and 8 units in the last place of the largest gradient are allowed instead.
    """
    truth = reference.gradients(q, k, v, do, is_causal, scale, dlse)
    plain = plain_gradients(q, k, v, do, is_causal, scale, dlse)
    lse = reference.attention(q, k, v, is_causal, scale)[1].detach()
    largest_lse = float(lse.where(torch.isfinite(lse), 0).abs().max()) if lse.numel() else 0.0
    rounding = torch.finfo(torch.float32).eps * largest_lse if largest_lse > 1000 else 0.0
    for name, x, like, want, peer in zip(("dq", "dk", "dv"), got, (q, k, v), truth, plain, strict=True):
        assert (x.dtype, x.shape, x.device) == (like.dtype, like.shape, like.device), (
            f"{name} is {x.dtype}, {tuple(x.shape)}, on {x.device}"
        )
        finite = torch.isfinite(peer)
        relative = max(rounding, 0.0 if finite.all() else 8 * torch.finfo(x.dtype).eps)
        slack = relative * float(want.abs().max()) if want.numel() else 0.0
        try:
            reference.assert_accurate(x, want, peer.where(finite, want.to(x.dtype)), factor=3.0, slack=slack)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def plain_gradients(q, k, v, do, is_causal: bool = False, scale: float | None = None, dlse=None) -> tuple[torch.Tensor, ...]:
    """(dq, dk, dv) by autograd through unfused attention in the inputs' dtype.

    Rows that see nothing are left out, for they would make all of it NaN: their dq is 0.
    """
    blind = max(q.shape[2] - k.shape[2], 0) if is_causal else 0
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (q[:, :, blind:], k, v)]
        outputs, weights = [reference.naive_attention(*leaves, is_causal, scale)], [do[:, :, blind:]]
        if dlse is not None:
            outputs.append(plain_lse(*leaves[:2], is_causal, scale))
            weights.append(dlse[:, :, blind:].to(q.dtype))
        dq, dk, dv = torch.autograd.grad(outputs, leaves, weights)
    return torch.cat([torch.zeros_like(q[:, :, :blind]), dq], dim=2), dk, dv


def plain_lse(q, k, is_causal: bool, scale: float | None) -> torch.Tensor:
    """The lse of unfused attention's scores, in the inputs' dtype."""
    s = (q @ reference.repeat_heads(k, q.shape[1]).mT) * (q.shape[3] ** -0.5 if scale is None else scale)
    if is_causal:
        s = s.masked_fill(~reference.causal_mask(q.shape[2], k.shape[2], q.device), -torch.inf)
    return torch.logsumexp(s, dim=-1)


def run_guarded_backward(module: ModuleType, case: Case, config: backward.BackwardConfig) -> tuple[torch.Tensor, ...]:
    """Launch `module`'s three kernels on the reference's o and lse, each input in a layout of its own inside NaN.

    dq, dk, dv and delta are NaN in guard cells; AssertionError where anything else changes. Returns dq, dk, dv, delta.
    """
    q, k, v = case.buffers()
    (B, H_q, S_q, D), (H_k, S_k) = q.tensor.shape, k.tensor.shape[1:3]
    truth, truth_lse = reference.attention(q.tensor, k.tensor, v.tensor, case.is_causal, case.scale)
    do, dlse = case.output_gradients()
    o, do = place(truth.to(case.dtype), "slice of fused"), place(do, "last stride 2")
    lse, delta = guarded_input(truth_lse.float()), guarded_output((B, H_q, S_q), torch.float32)
    dlse = delta if dlse is None else guarded_input(dlse, (3 * H_q * S_q, 3 * S_q, 3))
    block_d = forward.padded_d(D)
    block_m = module.DELTA_ELEMENTS // block_d
    launch(
        module.delta_kernel, (-(-S_q // block_m) * B * H_q,), o, do, dlse, delta, H_q, S_q, D,
        *o.tensor.stride(), *do.tensor.stride(), *dlse.tensor.stride(),
        HAS_DLSE=case.dlse, P_SCALE=module.p_scale(case.dtype), BLOCK_M=block_m, BLOCK_D=block_d,
    )  # fmt: skip
    dq, dk, dv = (guarded_output(x.tensor.shape, case.dtype) for x in (q, k, v))
    inputs = q, k, v, do, lse, replace(delta, is_output=False)
    scale = case.scale if case.scale is not None else D**-0.5
    sizes = (H_q, H_k, S_q, S_k, D, scale, *(stride for x in (q, k, v, do) for stride in x.tensor.stride()))
    for_dkdv, for_dq = (module.constants(q.tensor, case.is_causal, tile) for tile in (config.dkdv, config.dq))
    launch(module.dkdv_kernel, (-(-S_k // config.dkdv.block_n) * B * H_k,), *inputs, dk, dv, *sizes, **for_dkdv)
    launch(module.dq_kernel, (-(-S_q // config.dq.block_m) * B * H_q,), *inputs, dq, *sizes, **for_dq)
    return dq.tensor, dk.tensor, dv.tensor, delta.tensor


def check_backward_kernels(module: ModuleType, case: Case, config: backward.BackwardConfig) -> None:
    """run_guarded_backward, and its results are accurate."""
    *gradients, delta = run_guarded_backward(module, case, config)
    q, k, v = case.inputs()
    do, dlse = case.output_gradients()
    assert torch.isfinite(delta).all(), "delta is not written everywhere, or not finite"
    assert_gradients(gradients, q, k, v, do, case.is_causal, case.scale, dlse)


def load_changed(original: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *changes: tuple[str, str]) -> ModuleType:
    """`original` as a module of its own, with every (old, new) put in; AssertionError where an old piece is not there."""
    source = Path(original.__file__).read_text(encoding="utf-8")
    for old, new in changes:
        assert old in source, f"{original.__name__} no longer holds {old!r}: the mutation has to follow it"
        source = source.replace(old, new)
    name = f"changed_{original.__name__.rpartition('.')[2]}_{abs(hash(changes))}"
    path = tmp_path / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def a_tile_by_turns(kernel, tiles, key: tuple, launch) -> forward.TileConfig:
    """In place of tuned.fastest: no measuring, and every candidate has its turn; one for a card, BLOCK_D, dtype and mask, so that little is compiled."""
    return tiles[zlib.crc32(repr((kernel.__name__, key[:4])).encode()) % len(tiles)]
