"""Chapter 10: each variant beside FlexAttention, compiled, and chapter 8's causal kernel, in turns; what a block mask
costs; a padded batch beside SDPA, FlexAttention, no mask and packed rows; training with windows.

FlexAttention's block mask and the documents' are made once, outside of what is timed; packed rows find their tiles in
every call. Of a padded batch everybody's are made in every call, because its lengths are new in every batch.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from fa_tutorial import hardware
from fa_tutorial.attention import flash_attention, flash_attention_varlen
from fa_tutorial.bench import training
from fa_tutorial.bench.cases import HEAD_DIMS, HIDDEN, TOKENS, about
from fa_tutorial.bench.chapter_10 import document_tiles, documents, padded_lengths
from fa_tutorial.bench.measure import call_of
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import peak_bytes, randn, timed, timed_in_turns
from fa_tutorial.tiles import load_tile, padded_d, store_tile
from fa_tutorial.variants import attention_with, make_block_mask, mods
from fa_tutorial.variants.forward import (
    CONFIGS,
    Block,
    as_argument,
    attend_tiles,
    choose_config,
    sizes_of,
    tl,
    triton,
    use_descriptors,
    variant_forward,
)  # fmt: skip

LENGTHS = (4096, 16_384)
WINDOW, SOFTCAP = 1024, 30.0


class Contest(NamedTuple):
    """One variant on one shape. ours, flex: functions of q, k, v; pairs: how many a head sees."""

    ours: Callable
    flex: Callable
    pairs: int


def compiled_flex(S: int, mask: Callable, score: Callable | None = None) -> Callable:
    """flex_attention with this mask and score mod, compiled for one kind of input."""
    from torch._functorch import config
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    config.donated_buffer = False  # else a second backward on the same graph is refused
    torch.compiler.reset()
    block_mask = create_block_mask(mask, None, None, S, S, device=hardware.device())
    return partial(torch.compile(flex_attention, dynamic=False, fullgraph=True), score_mod=score, block_mask=block_mask)


def causal(b, h, i, j):
    return i >= j


def causal_contest(S: int, H: int) -> Contest:
    """A window as long as the sequence: the causal mask, by this chapter's kernels."""
    return Contest(partial(flash_attention, window=(S - 1, 0)), compiled_flex(S, causal), S * (S + 1) // 2)


def in_window(b, h, i, j):
    return (i >= j) & (i - j < WINDOW)


def window_contest(S: int, H: int) -> Contest:
    flex = compiled_flex(S, in_window)
    return Contest(
        partial(flash_attention, is_causal=True, window=(WINDOW - 1, -1)), flex, WINDOW * S - WINDOW * (WINDOW - 1) // 2
    )


def softcap_contest(S: int, H: int) -> Contest:
    flex = compiled_flex(S, causal, lambda s, b, h, i, j: SOFTCAP * torch.tanh(s / SOFTCAP))
    return Contest(partial(flash_attention, is_causal=True, softcap=SOFTCAP), flex, S * (S + 1) // 2)


def alibi_contest(S: int, H: int) -> Contest:
    slopes = torch.exp2(-8 * torch.arange(1, H + 1, device=hardware.device()) / H)
    flex = compiled_flex(S, causal, lambda s, b, h, i, j: s - slopes[h] * (i - j))
    return Contest(partial(flash_attention, is_causal=True, alibi_slopes=slopes), flex, S * (S + 1) // 2)


def same_document(S: int) -> tuple[torch.Tensor, Callable, int]:
    """The first token of each token's document, (S,) int32; FlexAttention's mask, causal within each; and the pairs
    that are seen."""
    lengths = torch.tensor(documents(S))
    first = (lengths.cumsum(0) - lengths).repeat_interleave(lengths).int().to(hardware.device())
    pairs = int((lengths * (lengths + 1) // 2).sum())
    return first, lambda b, h, i, j: (i >= j) & (j >= first[i]), pairs


def documents_contest(S: int, H: int) -> Contest:
    first, mask, pairs = same_document(S)
    block_mask = make_block_mask(mods.causal_documents, S, S, aux=(first,), B=1, H=1, device=first.device)
    ours = partial(attention_with, mask_mod=mods.causal_documents, aux=(first,), block_mask=block_mask)
    return Contest(ours, compiled_flex(S, mask), pairs)


@triton.jit
def by_number(b, h, i, j, aux):
    """The page's mask of the documents by their numbers. aux: (each query's document, each key's)."""
    return (tl.load(aux[0] + i) == tl.load(aux[1] + j)) & (j <= i)


def by_number_contest(S: int, H: int) -> Contest:
    first, mask, pairs = same_document(S)
    aux = (first, first)  # a document's first key tells it as well as a number
    block_mask = make_block_mask(by_number, S, S, aux=aux, B=1, H=1, device=first.device)
    ours = partial(attention_with, mask_mod=by_number, aux=aux, block_mask=block_mask)
    return Contest(ours, compiled_flex(S, mask), pairs)


def packed_contest(S: int, H: int) -> Contest:
    """Packed rows, B = 1: as (S, H, D) for flash_attention_varlen."""
    _, mask, pairs = same_document(S)
    cu = torch.tensor([0, *itertools.accumulate(documents(S))], dtype=torch.int32, device=hardware.device())

    def ours(q, k, v):
        rows = (x.squeeze(0).transpose(0, 1) for x in (q, k, v))
        return flash_attention_varlen(*rows, cu, cu, is_causal=True).transpose(0, 1).unsqueeze(0)

    return Contest(ours, compiled_flex(S, mask), pairs)


CONTESTS = {
    "causal": causal_contest,
    "window": window_contest,
    "softcap": softcap_contest,
    "alibi": alibi_contest,
    "documents": documents_contest,
    "documents_by_number": by_number_contest,
    "packed": packed_contest,
}


def variant_cases() -> Iterator[Measurement]:
    """Every variant, forward and backward, on 16,384 tokens; packed rows as one row of them, and so the documents
    by number, forward alone."""
    for variant, S, D, mode in itertools.product(CONTESTS, LENGTHS, HEAD_DIMS, ("fwd", "bwd")):
        if variant in ("packed", "documents_by_number") and S != TOKENS:
            continue
        if variant == "documents_by_number" and mode == "bwd":
            continue
        sizes = {"B": TOKENS // S, "H": HIDDEN // D, "S": S, "D": D}
        yield about(10, "variant", variant, **sizes) | {"mode": mode}, partial(contest_row, variant, mode, **sizes)


def contest_row(variant: str, mode: str, B: int, H: int, S: int, D: int) -> dict[str, Any]:
    """ms and TFLOP/s of ours, and of FlexAttention as flex_ms and flex_tflops.

    causal_ms: of causal attention by chapter 8's kernels, in the same run.
    difference: the largest between ours and FlexAttention's result, o or dq, dk and dv.
    """
    contest = CONTESTS[variant](S, H)
    q, k, v, do = (randn(B, H, S, D) for _ in range(4))
    if mode == "bwd":
        q, k, v = (x.requires_grad_() for x in (q, k, v))
    attentions = {
        "ours": contest.ours,
        "flex": contest.flex,
        "causal": partial(flash_attention, is_causal=True, kernel="tuned"),
    }
    calls = {name: call_of(mode, partial(attend, q, k, v), (q, k, v), do) for name, attend in attentions.items()}
    results = [calls[name]() for name in ("ours", "flex")]
    difference = max(
        float((x - y).abs().max()) for x, y in zip(*([r] if mode == "fwd" else r for r in results), strict=True)
    )
    rows = timed_in_turns(calls, flops=(4 if mode == "fwd" else 10) * D * B * H * contest.pairs)
    flex = {f"flex_{name}": rows["flex"][name] for name in ("ms", "tflops")}
    return rows["ours"] | flex | {"causal_ms": rows["causal"]["ms"], "difference": difference}


def block_mask_cases() -> Iterator[Measurement]:
    """What a block mask costs, for one batch entry and head.

    The package's lists for the forward and the backward, and FlexAttention's block mask.
    """
    for mask, S, provider in itertools.product(("window", "documents"), LENGTHS, ("course", "flex")):
        yield about(10, "block_mask", provider, mask=mask, S=S), partial(block_mask_row, provider, mask, S)


def block_mask_row(provider: str, mask: str, S: int) -> dict[str, Any]:
    first, flex_mask, _ = same_document(S)
    if mask == "window":
        flex_mask = in_window
    mod, aux = (
        (mods.first_keys_and_window, (0, WINDOW - 1, 0)) if mask == "window" else (mods.causal_documents, (first,))
    )
    tile = CONFIGS[64].block_m, CONFIGS[64].block_n

    def ours():
        block_mask = make_block_mask(mod, S, S, aux=aux, B=1, H=1, device=first.device)
        return block_mask.tiles(*tile), block_mask.tiles(*tile, of_keys=True)

    def flex():
        from torch.nn.attention.flex_attention import create_block_mask

        return create_block_mask(flex_mask, None, None, S, S, device=first.device)

    return timed(ours if provider == "course" else flex)


@triton.jit
def ordered_kernel(order_ptr, q, k, v, o, tiles, aux, sizes, mods,
                   BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """forward_kernel of one batch entry, without lse, sinks and dropout. order_ptr: each program's block · H + head."""
    H, S, D = sizes.H_q, sizes.S_q, sizes.D
    block = tl.load(order_ptr + tl.program_id(0))
    start_m, h = block // H * BLOCK_M, block % H
    q_tile = load_tile(q, 0, h, start_m, S, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    place = Block(0, h, h, start_m)
    m, l, acc = attend_tiles(q_tile, k, v, m, l, acc, tiles, place, sizes, mods, aux, False, BLOCK_N)
    m, l, acc = attend_tiles(q_tile, k, v, m, l, acc, tiles, place, sizes, mods, aux, True, BLOCK_N)
    store_tile(o, acc * (1.0 / l)[:, None], 0, h, start_m, S, D, BLOCK_M, BLOCK_D)


def orders(tiles: list[int], H: int) -> dict[str, list[tuple[int, int]]]:
    """Orders of launch of the programs (block of queries, head), by name. As launched is (8.4)'s with two heads side by
    side. tiles: each block's number of tiles."""

    def in_pairs(blocks: list[int]) -> list[tuple[int, int]]:
        return [(block, first + head) for first in range(0, H, 2) for block in blocks for head in range(2)]

    def size(program: tuple[int, int]) -> int:
        return tiles[program[0]]

    blocks = list(reversed(range(len(tiles))))
    as_launched = in_pairs(blocks)
    return {
        "as launched": as_launched,
        "longest first": sorted(as_launched, key=size, reverse=True),
        "shortest first": sorted(as_launched, key=size),
        "longest first in each pair of heads": in_pairs(sorted(blocks, key=tiles.__getitem__, reverse=True)),
    }


def ordered_calls(H: int, S: int, D: int, dtype: torch.dtype = torch.float16) -> dict[str, Callable]:
    """The documents' forward in each of `orders`, and as "package" the package's, on the same tensors."""
    first, _, _ = same_document(S)
    mask = make_block_mask(mods.causal_documents, S, S, aux=(first,), B=1, H=1, device=first.device)
    q, k, v = (randn(1, H, S, D, dtype=dtype) for _ in range(3))
    config = choose_config(D, dtype, hardware.card_of(q).shared_memory)
    by = mods.Mods(mask=mods.causal_documents, scale=D**-0.5)

    def call(order: torch.Tensor) -> torch.Tensor:
        o, tma = torch.empty_like(q), use_descriptors(q, k, v)
        rows = (config.block_m, config.block_n, config.block_n, config.block_m)
        on_tiles = [as_argument(x, block, tma) for x, block in zip((q, k, v, o), rows, strict=True)]
        ordered_kernel[(len(order),)](
            order, *on_tiles, mask.tiles(config.block_m, config.block_n), (first,), sizes_of(q, k), by,
            BLOCK_D=padded_d(D), **config.launch(),
        )  # fmt: skip
        return o

    found = {"package": lambda: variant_forward(q, k, v, by, (first,), mask)[0]}
    for name, programs in orders(document_tiles(documents(S), config.block_m), H).items():
        order = torch.tensor([block * H + head for block, head in programs], dtype=torch.int32, device=q.device)
        found[name] = partial(call, order)
    return found


def order_cases() -> Iterator[Measurement]:
    """The documents' programs in other orders of launch. Only the orders' rows are stored, from calls in turns."""
    in_turns = functools.cache(lambda D: timed_in_turns(ordered_calls(HIDDEN // D, TOKENS, D)))
    for D, order in itertools.product(HEAD_DIMS, orders([1], 2)):
        words = about(10, "order", order, B=1, H=HIDDEN // D, S=TOKENS, D=D) | {"mode": "fwd"}
        yield words, lambda D=D, order=order: in_turns(D)[order]


PADDED = {"B": 16, "H": HIDDEN // 128, "S": 4096, "D": 128}
PADDED_BY = ("ours", "sdpa", "flex", "unmasked", "packed")


def padded_cases() -> Iterator[Measurement]:
    for is_causal, mode in itertools.product((False, True), ("fwd", "bwd")):
        yield (
            about(10, "padded", "course", **PADDED, is_causal=is_causal) | {"mode": mode},
            partial(padded_row, is_causal, mode, **PADDED),
        )


def padded_row(is_causal: bool, mode: str, B: int, H: int, S: int, D: int) -> dict[str, Any]:
    """Times and peak memory of each of PADDED_BY on a batch whose mask, (B, 1, 1, S) booleans, hides the padding.

    unmasked: ours without the mask. packed: ours on the batch's tokens alone, laid end to end beforehand. Where causal,
    SDPA gets both masks in one, made in the call. difference: the largest between ours and SDPA's, o or dq, dk and dv.
    """
    from torch._functorch import config
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    config.donated_buffer = False  # else a second backward on the same graph is refused
    lengths = torch.tensor(padded_lengths(B, S), device=hardware.device())
    keys = (torch.arange(S, device=lengths.device) < lengths[:, None])[:, None, None, :]
    q, k, v, do = (randn(B, H, S, D) for _ in range(4))
    flat = [x.transpose(1, 2)[keys[:, 0, 0]].contiguous() for x in (q, k, v, do)]  # (tokens, H, D)
    cu = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    if mode == "bwd":
        for x in (q, k, v, *flat[:3]):
            x.requires_grad_()
    torch.compiler.reset()
    flex, make = (torch.compile(x, dynamic=False, fullgraph=True) for x in (flex_attention, create_block_mask))

    def is_seen(b, h, i, j):
        return (j < lengths[b]) & (i >= j) if is_causal else j < lengths[b]

    def by_sdpa(q, k, v):
        causal_too = torch.ones(S, S, dtype=torch.bool, device=q.device).tril()
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, keys & causal_too if is_causal else keys)

    def by_flex(q, k, v):
        return flex(q, k, v, block_mask=make(is_seen, B, None, S, S, device=q.device))

    attentions = {
        "ours": partial(flash_attention, is_causal=is_causal, attn_mask=keys),
        "sdpa": by_sdpa,
        "flex": by_flex,
        "unmasked": partial(flash_attention, is_causal=is_causal),
        "packed": partial(flash_attention_varlen, cu_seqlens_q=cu, cu_seqlens_k=cu, is_causal=is_causal),
    }
    calls = {}
    for name in PADDED_BY:
        *leaves, gradient = flat if name == "packed" else (q, k, v, do)
        calls[name] = call_of(mode, partial(attentions[name], *leaves), leaves, gradient)
    ours, sdpa = ([x] if mode == "fwd" else x for x in (calls["ours"](), calls["sdpa"]()))
    difference = max(float((x - y).abs().max()) for x, y in zip(ours, sdpa, strict=True))
    del ours, sdpa
    peaks = {name: peak_bytes(call) for name, call in calls.items()}
    rows = timed_in_turns(calls)
    found = {f"{name}_{key}": value for name in PADDED_BY for key, value in rows[name].items()}
    found |= {f"{name}_bytes": peak for name, peak in peaks.items()}
    return found | {"tokens": int(lengths.sum()), "difference": difference}


def window_training_cases() -> Iterator[Measurement]:
    """Chapter 7's transformer of two layers with a window: as long as the copy is far, half as long, and one key less
    than that.
    """
    half = training.SHORT.half
    for left in (half - 1, half // 2, half // 2 - 1):
        words = about(10, "window_training", "variant", "bf16", left=left, **dataclasses.asdict(training.SHORT))
        yield words, partial(window_training_row, left)


def window_training_row(left: int) -> dict[str, Any]:
    losses = training.train(partial(flash_attention, window=(left, 0)), training.SHORT, torch.bfloat16)
    return {"losses": [round(loss, 4) for loss in losses]}


def kernels_cases() -> Iterator[Measurement]:
    """Everything of this chapter."""
    return itertools.chain(variant_cases(), block_mask_cases(), order_cases(), padded_cases(), window_training_cases())
