"""The attentions that are compared: PyTorch's, flash-attn's, the course's, each a function (q, k, v, is_causal) -> o that autograd differentiates.

q, o: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D), H_q a multiple of H_k; causal is bottom-right aligned.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from fa_tutorial import backward, forward, reference, tuned
from fa_tutorial.arguments import check_name
from fa_tutorial.attention import best, flash_attention
from fa_tutorial.hardware import card_of, require_triton
from fa_tutorial.tiles import TileConfig
from fa_tutorial.tuned.autotuning import candidates

triton = require_triton("Measuring (fa_tutorial.bench.peers)")
from triton.runtime.errors import OutOfResources  # noqa: E402

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]

NOT_INSTALLED = "not installed"


class Unsupported(Exception):
    """The provider has no kernel for this input; the message is the row's reason."""


def sdpa(backend: SDPBackend) -> Attention:
    """PyTorch's scaled_dot_product_attention by one backend, and by no other in its place."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
        if is_causal and q.shape[2] != k.shape[2]:
            raise Unsupported("SDPA's is_causal is aligned top left: S_q must be S_k")
        try:
            with torch.nn.attention.sdpa_kernel(backend):
                is_grouped = q.shape[1] != k.shape[1]
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=is_grouped)
        except RuntimeError as error:
            if "No available kernel" in str(error) or "No viable backend" in str(error):
                raise Unsupported(f"SDPA's {backend.name.lower()} has no kernel for this input") from error
            raise

    return attention


def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
    """FlexAttention, compiled; causal as a block mask, so that tiles beyond the diagonal are skipped."""
    attend = _compiled_flex(tuple(q.shape), tuple(k.shape), q.dtype, q.device, is_causal, q.requires_grad)
    mask = _causal_block_mask(q.shape[2], k.shape[2], q.device) if is_causal else None
    return attend(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


@functools.lru_cache(maxsize=1)
def _compiled_flex(*kind) -> Callable:
    """flex_attention compiled for one kind of input. Each kind starts afresh: past Dynamo's recompile limit it would run uncompiled, in silence."""
    from torch._functorch import config
    from torch.nn.attention.flex_attention import flex_attention

    config.donated_buffer = False  # else the backward overwrites what a second one on the same graph needs, and refuses retain_graph
    torch.compiler.reset()
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


@functools.lru_cache(maxsize=4)
def _causal_block_mask(S_q: int, S_k: int, device: torch.device):
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(b, h, query, key):
        return key <= query + (S_k - S_q)

    return create_block_mask(seen, None, None, S_q, S_k, device=device)


def flash_attn(module: str) -> Attention:
    """flash_attn_func of an installed `module`. Its layout is (B, S, H, D): views go in and a view comes out."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
        try:
            function = importlib.import_module(module).flash_attn_func
        except (ImportError, AttributeError) as error:  # flash-attn 4 alone leaves flash_attn empty
            raise Unsupported(NOT_INSTALLED) from error
        if q.dtype == torch.float32:
            raise Unsupported("flash-attn takes fp16 and bf16")
        o = function(*(x.transpose(1, 2) for x in (q, k, v)), causal=is_causal)
        return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)  # flash-attn 4 returns lse too

    return attention


# ---------------------------------------------------------------- the course's kernels


def course(kernel: str) -> Attention:
    """flash_attention with one of its kernels."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
        if kernel == "hopper" and best(q) != "hopper":
            raise Unsupported("chapter 9's kernel is for GPUs of compute capability 9.0")
        return flash_attention(q, k, v, is_causal=is_causal, kernel=kernel)

    return attention


class Launched(torch.autograd.Function):
    """o by a pair of launchers, which take what forward.flash_forward and backward.flash_backward take; scale is 1/√D."""

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
    """Of the usual tile and chapter 8's candidates for `kernel`, that with which run(tile) is the fastest, measured once for each kind of input."""
    tiles = list(dict.fromkeys((usual, *candidates(kernel, q.shape[3], card_of(q).shared_memory))))
    key = (kernel, q.shape, k.shape, q.dtype, is_causal)
    if key not in _fastest:
        _fastest[key] = min(tiles, key=lambda tile: milliseconds(run, tile)) if len(tiles) > 1 else tiles[0]
    return _fastest[key]


def milliseconds(run: Callable[[TileConfig], Any], tile: TileConfig) -> float:
    try:
        return triton.testing.do_bench(lambda: run(tile))
    except OutOfResources:  # a kernel with pointers may ask for more shared memory than the one that the tile was made for
        return math.inf


def autotuned_forward(q, k, v, is_causal: bool, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Chapter 5's kernel with the fastest tile."""

    def run(tile: TileConfig) -> tuple[torch.Tensor, torch.Tensor]:
        return forward.flash_forward(q, k, v, is_causal, scale, config=tile)

    usual = forward.choose_config(q.shape[3], q.dtype, card_of(q).shared_memory)
    return run(fastest("forward", usual, q, k, is_causal, run))


def autotuned_backward(q, k, v, o, do, lse, dlse, is_causal: bool, scale: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Chapter 7's kernels with the fastest tiles. Each kernel's tile is chosen beside the other one's usual tile."""

    def run(**tile: TileConfig) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return backward.flash_backward(q, k, v, o, do, lse, dlse, is_causal, scale, config=dataclasses.replace(usual, **tile))

    usual = backward.choose_config(q.shape[3], q.dtype, card_of(q).shared_memory)
    dkdv = fastest("dkdv", usual.dkdv, q, k, is_causal, lambda tile: run(dkdv=tile))
    return run(dkdv=dkdv, dq=fastest("dq", usual.dq, q, k, is_causal, lambda tile: run(dq=tile)))


def up_to(**steps: bool) -> tuple[Callable, Callable]:
    """The tuned launchers with some of the chapter's steps left out."""
    return functools.partial(tuned.flash_forward, **steps), functools.partial(tuned.flash_backward, **steps)


# In the order of chapter 8.
TUNED_STEPS = {
    "autotune": (autotuned_forward, autotuned_backward),
    "exp2": up_to(descriptors=False, in_order=False),
    "descriptors": up_to(in_order=False),
    "order": up_to(),
}
# hopper.forward.STEPS, whose module is not imported here: only Hopper needs Gluon, an experimental part of Triton. Of the forward alone.
HOPPER_STEPS = {f"hopper {step}": step for step in ("roles", "overlap", "persistent", "counter", "order")}


def hopper_step(step: str) -> Attention:
    """Chapter 9's forward up to one of its steps; it has no gradient."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
        from fa_tutorial import hopper

        if q.requires_grad:
            raise Unsupported("the steps of chapter 9 are of the forward alone")
        if not hopper.applies(q, k, v, scale=1.0):
            raise Unsupported("chapter 9's kernel is for capability 9.0, fp16 and bf16, D = 64 and 128")
        return hopper.flash_forward(q, k, v, is_causal, q.shape[3] ** -0.5, step=hopper.forward.STEPS[step])[0]

    return attention


PROVIDERS: dict[str, Attention] = {
    "naive": reference.naive_attention,
    "sdpa_flash": sdpa(SDPBackend.FLASH_ATTENTION),
    "sdpa_cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
    "sdpa_efficient": sdpa(SDPBackend.EFFICIENT_ATTENTION),
    "flex": flex,
    "flash_attn": flash_attn("flash_attn"),
    "flash_attn_4": flash_attn("flash_attn.cute"),
    **{kernel: course(kernel) for kernel in ("basic", "tuned")},
    **{name: tuned_step(*launchers) for name, launchers in TUNED_STEPS.items()},
    "hopper": course("hopper"),
    **{name: hopper_step(step) for name, step in HOPPER_STEPS.items()},
}


def provider(name: str) -> Attention:
    """One of PROVIDERS; ValueError that lists them for another name."""
    return PROVIDERS[check_name("provider", name, PROVIDERS)]
