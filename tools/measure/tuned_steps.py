"""Chapter 8: attention up to each step of its tuning, forward and backward, as the ablation compares them."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from fa_tutorial import backward, forward, tuned
from fa_tutorial.bench.peers import Attention, Unsupported
from fa_tutorial.hardware import card_of, require_triton
from fa_tutorial.tiles import TileConfig
from fa_tutorial.tuned.autotuning import candidates

triton = require_triton("Measuring (tools/measure)")
from triton.runtime.errors import OutOfResources  # noqa: E402


class Launched(torch.autograd.Function):
    """o by a pair of launchers, with the arguments of chapters 5 and 7; scale is 1/√D."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal, run_forward, run_backward):
        o, lse = run_forward(q, k, v, is_causal, q.shape[3] ** -0.5)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal, ctx.run_backward = is_causal, run_backward
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        return *ctx.run_backward(q, k, v, o, do, lse, None, ctx.is_causal, q.shape[3] ** -0.5), None, None, None


def tuned_step(run_forward: Callable, run_backward: Callable) -> Attention:
    """Attention up to one of chapter 8's steps, by its pair of launchers."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
        if not tuned.applies(q, 1.0):
            raise Unsupported("chapter 8's kernels take fp16 and bf16, on cards with tensor cores")
        return Launched.apply(q, k, v, is_causal, run_forward, run_backward)

    return attention


_fastest: dict[tuple, TileConfig] = {}  # kernel, shapes, dtype and mask -> its tile


def fastest(
    kernel: str, usual: TileConfig, q: torch.Tensor, k: torch.Tensor, is_causal: bool, run: Callable[[TileConfig], Any]
) -> TileConfig:
    """Of the usual tile and chapter 8's candidates for `kernel`, that with which run(tile) is the fastest.

    Measured once for each kind of input.
    """
    tiles = list(dict.fromkeys((usual, *candidates(kernel, q.shape[3], card_of(q).shared_memory))))
    key = (kernel, q.shape, k.shape, q.dtype, is_causal)
    if key not in _fastest:
        _fastest[key] = min(tiles, key=lambda tile: milliseconds(run, tile)) if len(tiles) > 1 else tiles[0]
    return _fastest[key]


def milliseconds(run: Callable[[TileConfig], Any], tile: TileConfig) -> float:
    try:
        return triton.testing.do_bench(lambda: run(tile))
    except OutOfResources:  # by pointers a kernel may need more shared memory than the one that the tile was made for
        return math.inf


def autotuned_forward(q, k, v, is_causal: bool, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Chapter 5's kernel with the fastest tile."""

    def run(tile: TileConfig) -> tuple[torch.Tensor, torch.Tensor]:
        return forward.flash_forward(q, k, v, is_causal, scale, config=tile)

    usual = forward.choose_config(q.shape[3], q.dtype, card_of(q).shared_memory)
    return run(fastest("forward", usual, q, k, is_causal, run))


def autotuned_backward(
    q, k, v, o, do, lse, dlse, is_causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Chapter 7's kernels with the fastest tiles. Each kernel's tile is chosen beside the other one's usual tile."""

    def run(**tile: TileConfig) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return backward.flash_backward(
            q, k, v, o, do, lse, dlse, is_causal, scale, config=dataclasses.replace(usual, **tile)
        )

    usual = backward.choose_config(q.shape[3], q.dtype, card_of(q).shared_memory)
    dkdv = fastest("dkdv", usual.dkdv, q, k, is_causal, lambda tile: run(dkdv=tile))
    return run(dkdv=dkdv, dq=fastest("dq", usual.dq, q, k, is_causal, lambda tile: run(dq=tile)))


def up_to(**steps: bool) -> Attention:
    """The tuned launchers with some of the chapter's steps left out."""
    return tuned_step(functools.partial(tuned.flash_forward, **steps), functools.partial(tuned.flash_backward, **steps))


# In the order of chapter 8, by their providers' names.
ATTENTIONS = {
    "autotune": tuned_step(autotuned_forward, autotuned_backward),
    "exp2": up_to(descriptors=False, in_order=False),
    "descriptors": up_to(in_order=False),
    "order": up_to(),
}
