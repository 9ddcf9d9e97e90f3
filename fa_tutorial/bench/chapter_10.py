"""What chapter 10 measures on a GPU: each variant beside FlexAttention, compiled, in turns.

FlexAttention's block mask and the documents' are made once, outside of what is timed; packed rows find their tiles in every call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from fa_tutorial import hardware
from fa_tutorial.attention import flash_attention, flash_attention_varlen
from fa_tutorial.bench.cases import HEAD_DIMS, HIDDEN, TOKENS, about
from fa_tutorial.bench.measure import call_of
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import randn, timed_in_turns
from fa_tutorial.variants import attention_with, make_block_mask, mods

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


def documents(S: int, seed: int = 0) -> list[int]:
    """Lengths of documents that fill S tokens, long-tailed: many of some hundred tokens and few of some thousand."""
    generator = torch.Generator().manual_seed(seed)
    lengths = []
    while sum(lengths) < S:
        length = int(torch.randn((), generator=generator).mul(1.3).add(6.0).exp())
        lengths.append(min(max(length, 16), S - sum(lengths)))
    return lengths


def window_contest(S: int, H: int) -> Contest:
    flex = compiled_flex(S, lambda b, h, i, j: (i >= j) & (i - j < WINDOW))
    return Contest(partial(flash_attention, is_causal=True, window=(WINDOW - 1, -1)), flex, WINDOW * S - WINDOW * (WINDOW - 1) // 2)


def softcap_contest(S: int, H: int) -> Contest:
    flex = compiled_flex(S, causal, lambda s, b, h, i, j: SOFTCAP * torch.tanh(s / SOFTCAP))
    return Contest(partial(flash_attention, is_causal=True, softcap=SOFTCAP), flex, S * (S + 1) // 2)


def alibi_contest(S: int, H: int) -> Contest:
    slopes = torch.exp2(-8 * torch.arange(1, H + 1, device=hardware.device()) / H)
    flex = compiled_flex(S, causal, lambda s, b, h, i, j: s - slopes[h] * (i - j))
    return Contest(partial(flash_attention, is_causal=True, alibi_slopes=slopes), flex, S * (S + 1) // 2)


def same_document(S: int) -> tuple[torch.Tensor, Callable, int]:
    """Each token's document, (S,) int32; FlexAttention's mask, causal within each; and the pairs that are seen."""
    lengths = documents(S)
    numbers = torch.arange(len(lengths), dtype=torch.int32).repeat_interleave(torch.tensor(lengths)).to(hardware.device())
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    return numbers, lambda b, h, i, j: (i >= j) & (numbers[i] == numbers[j]), pairs


def documents_contest(S: int, H: int) -> Contest:
    numbers, mask, pairs = same_document(S)
    aux = (numbers, numbers)
    block_mask = make_block_mask(mods.causal_documents, S, S, aux=aux, device=numbers.device)
    ours = partial(attention_with, mask_mod=mods.causal_documents, aux=aux, block_mask=block_mask)
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
    "window": window_contest,
    "softcap": softcap_contest,
    "alibi": alibi_contest,
    "documents": documents_contest,
    "packed": packed_contest,
}


def variant_cases() -> Iterator[Measurement]:
    """Every variant, forward and backward, on 16,384 tokens; packed rows as one row of all of them."""
    for variant, S, D, mode in itertools.product(CONTESTS, LENGTHS, HEAD_DIMS, ("fwd", "bwd")):
        if variant != "packed" or S == TOKENS:
            sizes = {"B": TOKENS // S, "H": HIDDEN // D, "S": S, "D": D}
            yield about(10, "variant", variant, **sizes) | {"mode": mode}, partial(contest_row, variant, mode, **sizes)


def contest_row(variant: str, mode: str, B: int, H: int, S: int, D: int) -> dict[str, Any]:
    """ms and TFLOP/s of ours, and of FlexAttention as flex_ms and flex_tflops; ratio: how many times as fast as FlexAttention ours is.

    difference: the largest between the two results, o or dq, dk and dv.
    """
    contest = CONTESTS[variant](S, H)
    q, k, v, do = (randn(B, H, S, D) for _ in range(4))
    if mode == "bwd":
        q, k, v = (x.requires_grad_() for x in (q, k, v))
    calls = {
        name: call_of(mode, partial(attend, q, k, v), (q, k, v), do) for name, attend in (("ours", contest.ours), ("flex", contest.flex))
    }
    results = [call() for call in calls.values()]
    difference = max(float((x - y).abs().max()) for x, y in zip(*([r] if mode == "fwd" else r for r in results), strict=True))
    rows = timed_in_turns(calls, flops=(4 if mode == "fwd" else 10) * D * B * H * contest.pairs)
    flex = {f"flex_{name}": rows["flex"][name] for name in ("ms", "tflops")}
    return rows["ours"] | flex | {"ratio": round(rows["flex"]["ms"] / rows["ours"]["ms"], 3), "difference": difference}
