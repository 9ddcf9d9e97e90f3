"""What the tests of decoding share: a case with its caches inside NaN, in pages or not, and the comparison with float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from attention_cases import place
from buffers import DEVICE, Named, copy_of, guarded_outputs, randn, unchanged

from fa_tutorial import reference
from fa_tutorial.decode import FP8, flash_decode, quantise_fp8

NAN_BYTE = 0x7F  # NaN in float8_e4m3fn


def int32(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


@dataclass(frozen=True)
class Decode(Named):
    """One call. lengths: keys of each sequence; group: query heads of a key head; page: rows of a page, 0 for a cache without pages."""

    lengths: tuple[int, ...]
    S_q: int = 1
    group: int = 1
    H_k: int = 2
    D: int = 16
    dtype: torch.dtype = torch.float16
    page: int = 0
    splits: int | None = None
    scale: float | None = None
    layout: str = "contiguous"
    growing: bool = False
    fp8: bool = False

    def data(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, and k and v as long as the longest sequence and 5 more; each next key of a growing case has a larger score."""
        B, S_max = len(self.lengths), max(self.lengths) + 5
        q = randn(B, self.H_k * self.group, self.S_q, self.D, dtype=self.dtype, seed=1)
        k, v = (randn(B, self.H_k, S_max, self.D, dtype=self.dtype, seed=seed) for seed in (2, 3))
        if self.growing:
            q.fill_(0).select(-1, 0).fill_(1)
            k.select(-1, 0).copy_(0.25 * torch.arange(S_max, device=DEVICE))
        return q, k, v

    def call(self) -> tuple[list[torch.Tensor], dict]:
        """The arguments of flash_decode. Beyond each length the caches hold NaN, and the block table pages that are not there."""
        q, k, v = self.data()
        lengths, options = int32(*self.lengths), {"scale": self.scale, "num_splits": self.splits}
        if self.fp8:
            k, options["k_scale"] = quantise_fp8(k)
            v, options["v_scale"] = quantise_fp8(v)
        if self.page:
            (k, v), options["block_table"] = self.paged(k, v)
        for x in () if self.page else (k, v):
            for b, length in enumerate(self.lengths):
                raw(x)[b, :, length:] = NAN_BYTE if self.fp8 else math.nan
        if not self.fp8:
            q, k, v = (place(x, self.layout) for x in (q, k, v))
        return [q, k, v, lengths], options

    def paged(self, k, v) -> tuple[list[torch.Tensor], torch.Tensor]:
        """k and v in shuffled pages among NaN, with three that nobody owns, and their block table, with two entries more than needed."""
        wanted = [-(-length // self.page) for length in self.lengths]
        order = iter(torch.randperm(sum(wanted) + 3, generator=torch.Generator().manual_seed(4)).tolist())
        table = torch.full((len(wanted), max(wanted) + 2), -1, dtype=torch.int32, device=DEVICE)
        pages = [torch.empty(sum(wanted) + 3, self.H_k, self.page, self.D, dtype=k.dtype, device=DEVICE) for _ in range(2)]
        for x in pages:
            raw(x).fill_(NAN_BYTE if self.fp8 else math.nan)
        for b, length in enumerate(self.lengths):
            for i, start in enumerate(range(0, length, self.page)):
                table[b, i] = page = next(order)
                for x, paged in zip((k, v), pages, strict=True):
                    raw(paged)[page, :, : min(self.page, length - start)] = raw(x)[b, :, start : min(start + self.page, length)]
        return pages, table

    def truth(self):
        """o and lse in float64, and o of unfused attention in q's dtype, of each sequence by itself."""
        q, k, v = self.data()
        if self.fp8:
            k, v = (x8.float() * scale[:, None, None] for x8, scale in map(quantise_fp8, (k, v)))
        parts = []
        for b, length in enumerate(self.lengths):
            wide = [x[b : b + 1, :, :length].to(k.dtype) for x in (k, v)]
            o, lse = reference.attention(q[b : b + 1].to(k.dtype), *wide, True, self.scale)
            narrow = [copy_of(x.to(q.dtype)) for x in (q[b : b + 1], *wide)]
            plain = reference.naive_attention(*narrow, True, self.scale)
            parts.append((o, lse, plain.where(torch.isfinite(plain), o.to(plain.dtype))))
        return [torch.cat(part) for part in zip(*parts, strict=True)]


def raw(x: torch.Tensor) -> torch.Tensor:
    """x, or the bytes of an fp8 tensor, which can be indexed and compared."""
    return x.view(torch.uint8) if x.dtype == FP8 else x


def check(case: Decode) -> torch.Tensor:
    """flash_decode is accurate on the case, writes all of its outputs and nothing else; returns o."""
    inputs, options = case.call()
    with unchanged(*inputs), guarded_outputs():
        o, lse = flash_decode(*inputs, **options, return_lse=True)
    truth, truth_lse, plain = case.truth()
    assert o.is_contiguous() and (o.dtype, o.shape, lse.dtype) == (case.dtype, inputs[0].shape, torch.float32)
    reference.assert_accurate(o, truth, plain)
    reference.assert_lse_accurate(lse, truth_lse, case.dtype)
    unseen = truth_lse == -math.inf
    assert bool((o[unseen] == 0).all())
    return o
