"""What chapter 11 measures on a GPU: decoding by each provider, by the number of splits and of new tokens, and chapter 5's kernel
with a tile of fewer rows; and a plain read, and a copy, of as many bytes.

Every call is replayed from a CUDA graph, as a server does it: it takes the GPU tens of microseconds, and the host longer to launch it. gb_s counts
the bytes of the live keys and values, each once.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fa_tutorial import forward
from fa_tutorial.bench import peers
from fa_tutorial.bench.cases import Shape, about
from fa_tutorial.bench.chapter_8 import graph_of
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import randn, timed
from fa_tutorial.decode import FP8, flash_decode
from fa_tutorial.hardware import card_of, device

PEERS = ("basic", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "flex")
PROVIDERS = ("decode", "paged 16", "paged 64", "paged 256", "fp8", *PEERS)


def shape_of(B: int, S: int, S_q: int = 1) -> Shape:
    """64 query heads, 8 key heads, D = 128: the heads of many models of 70 billion parameters."""
    return Shape(B, 64, 8, S_q, S, 128, True)


def decode_cases() -> Iterator[Measurement]:
    """One token for each of B sequences, S keys each, by the course's kernel and its variants, and by other attentions.

    The largest cache comes first, while memory is in one piece, as a server's is: after the others, pages read at 64 sequences took a quarter longer.
    """
    for B, S, provider in itertools.product((64, 8, 1), (131_072, 32_768, 4096), PROVIDERS):
        shape = shape_of(B, S)
        yield about(11, "decode", provider, **vars(shape)), partial(_decode_row, provider, shape)


def split_cases() -> Iterator[Measurement]:
    """The same token, one sequence of 32,768 keys, by the number of splits."""
    shape = shape_of(1, 32_768)
    for splits in (1, 2, 4, 8, 12, 16, 24, 32, 33, 34, 48, 64, 128):
        yield about(11, "splits", "decode", **vars(shape)) | {"splits": splits}, partial(_decode_row, "decode", shape, splits)


def token_cases() -> Iterator[Measurement]:
    """More new tokens at once: 8 sequences of 32,768 keys."""
    for tokens in (1, 2, 4, 8, 16):
        shape = shape_of(8, 32_768, tokens)
        yield about(11, "tokens", "decode", **vars(shape)), partial(_decode_row, "decode", shape)


def row_cases() -> Iterator[Measurement]:
    """Chapter 5's kernel with 16 rows a tile in place of 64, of which one is a query: the same reads, a quarter of the multiplications."""
    for B in (1, 8):
        shape = shape_of(B, 32_768)
        yield about(11, "rows", "basic", **vars(shape)) | {"block_m": 16}, partial(_rows_row, shape, 16)


def read_cases() -> Iterator[Measurement]:
    """One sequence's keys and values, as many numbers summed by PyTorch, and as many bytes moved by a copy; clean_us: see _clean_us."""
    for S, provider in itertools.product((4096, 32_768, 131_072), ("decode", "torch", "copy")):
        shape = shape_of(1, S)
        yield about(11, "read", provider, **vars(shape)), partial(_read_row, provider, shape)


def _read_row(provider: str, shape: Shape) -> dict[str, Any]:
    x = randn(2, shape.B, shape.H_k, shape.S_k, shape.D)
    halves = x.view(-1).chunk(2)
    calls = {"decode": call_of("decode", shape)[0], "torch": x.sum, "copy": partial(halves[0].copy_, halves[1])}
    return _row(calls[provider], x.nbytes) | {"clean_us": _clean_us(graph_of(calls[provider]).replay)}


def _clean_us(call: Callable[[], Any], repeats: int = 200) -> float:
    """The median time of a call, where 512 MB that are read empty L2 before it. do_bench writes 256 MB, whose last part is still to be written back."""
    filler = torch.zeros(2**27, device=device())
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, end in events:
        filler.sum()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return round(1000 * statistics.median(start.elapsed_time(end) for start, end in events), 2)


def _decode_row(provider: str, shape: Shape, splits: int | None = None) -> dict[str, Any]:
    return _row(*call_of(provider, shape, splits))


def _rows_row(shape: Shape, block_m: int) -> dict[str, Any]:
    return _row(*basic_call_of(shape, block_m))


def _row(call: Callable[[], Any], live_bytes: int) -> dict[str, Any]:
    try:
        graph = graph_of(call)
    except (torch.cuda.OutOfMemoryError, peers.Unsupported) as error:
        return {"ms": None, "reason": str(error).splitlines()[0]}
    return timed(graph.replay, bytes_moved=live_bytes)


def call_of(provider: str, shape: Shape, splits: int | None = None) -> tuple[Callable[[], Any], int]:
    """A call of the provider, and the bytes of the keys and values that it reads."""
    kind, _, page = provider.partition(" ")
    q = randn(shape.B, shape.H_q, shape.S_q, shape.D)
    pages = shape.B * shape.S_k // int(page or shape.S_k)  # a cache without pages is one page a sequence
    cache_shape = pages, shape.H_k, int(page or shape.S_k), shape.D
    if kind == "fp8":  # any positive numbers of the format will do
        k, v = (torch.randint(0, 100, cache_shape, dtype=torch.uint8, device=q.device).view(FP8) for _ in range(2))
    else:
        k, v = randn(*cache_shape), randn(*cache_shape)
    live_bytes = k.nbytes + v.nbytes
    if provider in PEERS:  # the one new token sees every key, as without a mask
        return partial(peers.provider(provider), q, k, v, False), live_bytes
    lengths = torch.full((shape.B,), shape.S_k, dtype=torch.int32, device=device())
    options: dict[str, Any] = {"num_splits": splits}
    if kind == "paged":
        options["block_table"] = torch.randperm(pages, device=device()).view(shape.B, -1).int()
    if kind == "fp8":
        options["k_scale"] = options["v_scale"] = torch.full((shape.H_k,), 0.01, device=device())
    return partial(flash_decode, q, k, v, lengths, **options), live_bytes


def basic_call_of(shape: Shape, block_m: int) -> tuple[Callable[[], Any], int]:
    """A call of chapter 5's kernel with block_m rows a tile, and the bytes of the keys and values that it reads."""
    q = randn(shape.B, shape.H_q, shape.S_q, shape.D)
    k, v = (randn(shape.B, shape.H_k, shape.S_k, shape.D) for _ in range(2))
    config = replace(forward.choose_config(shape.D, q.dtype, card_of(q).shared_memory), block_m=block_m)
    return partial(forward.flash_forward, q, k, v, False, 1 / math.sqrt(shape.D), config=config), k.nbytes + v.nbytes


def cases() -> Iterator[Measurement]:
    return itertools.chain(decode_cases(), split_cases(), token_cases(), row_cases(), read_cases())
