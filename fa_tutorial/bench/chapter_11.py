"""Chapter 11: calls of decoding kernels, which its page times on a GPU; tools/measure measures what is stored."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fa_tutorial import forward
from fa_tutorial.bench import peers
from fa_tutorial.bench.cases import Shape
from fa_tutorial.bench.timing import randn
from fa_tutorial.decode import FP8, flash_decode
from fa_tutorial.hardware import card_of, device


def shape_of(B: int, S: int, S_q: int = 1) -> Shape:
    """64 query heads, 8 key heads, D = 128: the heads of many models of 70 billion parameters."""
    return Shape(B, 64, 8, S_q, S, 128, True)


def call_of(provider: str, shape: Shape, splits: int | None = None) -> tuple[Callable[[], Any], int]:
    """A call of the provider, and the bytes of the keys and values that it reads.

    provider: "decode", "paged 16" for pages of 16 tokens, "fp8", "window 1024" for a window of the last 1,024 keys,
    "masked 1024" for a mask that shows these alone, or one of peers.PROVIDERS.
    """
    kind, _, number = provider.partition(" ")
    page = number if kind == "paged" else ""
    q = randn(shape.B, shape.H_q, shape.S_q, shape.D)
    pages = shape.B * shape.S_k // int(page or shape.S_k)  # a cache without pages is one page a sequence
    cache_shape = pages, shape.H_k, int(page or shape.S_k), shape.D
    if kind == "fp8":  # any positive numbers of the format will do
        k, v = (torch.randint(0, 100, cache_shape, dtype=torch.uint8, device=q.device).view(FP8) for _ in range(2))
    else:
        k, v = randn(*cache_shape), randn(*cache_shape)
    live_bytes = k.nbytes + v.nbytes
    if provider in peers.PROVIDERS:  # the one new token sees every key, as without a mask
        return partial(peers.provider(provider), q, k, v, False), live_bytes
    lengths = torch.full((shape.B,), shape.S_k, dtype=torch.int32, device=device())
    options: dict[str, Any] = {"num_splits": splits}
    if kind == "paged":
        options["block_table"] = torch.randperm(pages, device=device()).view(shape.B, -1).int()
    if kind in ("window", "masked"):
        live_bytes = live_bytes // shape.S_k * int(number)
    if kind == "window":
        options["window"] = (int(number) - 1, 0)  # the token's own key is one of them
    if kind == "masked":
        options["attn_mask"] = torch.arange(shape.S_k, device=device()) >= shape.S_k - int(number)
    if kind == "fp8":
        options["k_scale"] = options["v_scale"] = torch.full((shape.H_k,), 0.01, device=device())
    return partial(flash_decode, q, k, v, lengths, **options), live_bytes


def basic_call_of(shape: Shape, block_m: int) -> tuple[Callable[[], Any], int]:
    """A call of chapter 5's kernel with block_m rows a tile, and the bytes of the keys and values that it reads."""
    q = randn(shape.B, shape.H_q, shape.S_q, shape.D)
    k, v = (randn(shape.B, shape.H_k, shape.S_k, shape.D) for _ in range(2))
    config = replace(forward.choose_config(shape.D, q.dtype, card_of(q).shared_memory), block_m=block_m)
    return partial(forward.flash_forward, q, k, v, False, 1 / math.sqrt(shape.D), config=config), k.nbytes + v.nbytes
