"""Chapter 10: each variant beside FlexAttention, compiled, and chapter 8's causal kernel, in turns; what a loop without
the mask saves, and what a soft cap costs.

FlexAttention's block mask and the documents' are made once, outside of what is timed; packed rows find their tiles in
every call.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from fa_tutorial import hardware
from fa_tutorial.attention import flash_attention, flash_attention_varlen
from fa_tutorial.bench.cases import HIDDEN, TOKENS, about
from fa_tutorial.bench.chapter_10 import documents
from fa_tutorial.bench.measure import call_of
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import randn, timed_in_turns
from fa_tutorial.variants import attention_with, make_block_mask, mods
from fa_tutorial.variants.forward import CONFIGS, tl, triton
from measure.turns import in_turns

D, WINDOW, SOFTCAP = 128, 1024, 30.0


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


def in_window(b, h, i, j):
    return (i >= j) & (i - j < WINDOW)


def causal_contest(S: int, H: int, variant: str) -> Contest:
    """The causal mask by this chapter's kernels, as a window as long as the sequence; or with a window, a soft cap or
    ALiBi's slopes."""
    slopes = torch.exp2(-8 * torch.arange(1, H + 1, device=hardware.device()) / H)
    options, mask, score = {
        "causal": ({"window": (S - 1, 0)}, causal, None),
        "window": ({"is_causal": True, "window": (WINDOW - 1, -1)}, in_window, None),
        "softcap": (
            {"is_causal": True, "softcap": SOFTCAP},
            causal,
            lambda s, b, h, i, j: SOFTCAP * torch.tanh(s / SOFTCAP),
        ),
        "alibi": ({"is_causal": True, "alibi_slopes": slopes}, causal, lambda s, b, h, i, j: s - slopes[h] * (i - j)),
    }[variant]
    hidden = (S - WINDOW) * (S - WINDOW + 1) // 2 if variant == "window" else 0
    return Contest(partial(flash_attention, **options), compiled_flex(S, mask, score), S * (S + 1) // 2 - hidden)


def same_document(S: int) -> tuple[torch.Tensor, Callable, int]:
    """The first token of each token's document, (S,) int32; FlexAttention's mask, causal within each; and the pairs
    that are seen."""
    lengths = torch.tensor(documents(S))
    first = (lengths.cumsum(0) - lengths).repeat_interleave(lengths).int().to(hardware.device())
    pairs = int((lengths * (lengths + 1) // 2).sum())
    return first, lambda b, h, i, j: (i >= j) & (j >= first[i]), pairs


@triton.jit
def by_number(b, h, i, j, aux):
    """The page's mask of the documents by their numbers. aux: (each query's document, each key's)."""
    return (tl.load(aux[0] + i) == tl.load(aux[1] + j)) & (j <= i)


def documents_contest(S: int, H: int, by: Callable) -> Contest:
    first, mask, pairs = same_document(S)
    aux = (first,) if by is mods.causal_documents else (first, first)  # a document's first key tells it, too
    block_mask = make_block_mask(by, S, S, aux=aux, B=1, H=1, device=first.device)
    ours = partial(attention_with, mask_mod=by, aux=aux, block_mask=block_mask)
    return Contest(ours, compiled_flex(S, mask), pairs)


def packed_contest(S: int, H: int) -> Contest:
    """Packed rows, B = 1: as (S, H, D) for flash_attention_varlen."""
    _, mask, pairs = same_document(S)
    cu = torch.tensor([0, *itertools.accumulate(documents(S))], dtype=torch.int32, device=hardware.device())

    def ours(q, k, v):
        rows = (x.squeeze(0).transpose(0, 1) for x in (q, k, v))
        return flash_attention_varlen(*rows, cu, cu, is_causal=True).transpose(0, 1).unsqueeze(0)

    return Contest(ours, compiled_flex(S, mask), pairs)


CONTESTS = {name: partial(causal_contest, variant=name) for name in ("causal", "window", "softcap", "alibi")} | {
    "documents": partial(documents_contest, by=mods.causal_documents),
    "documents_by_number": partial(documents_contest, by=by_number),
    "packed": packed_contest,
}


def variant_cases() -> Iterator[Measurement]:
    """Every variant on 16,384 tokens, forward and backward; the documents by number forward alone."""
    for variant, mode in itertools.product(CONTESTS, ("fwd", "bwd")):
        if variant == "documents_by_number" and mode == "bwd":
            continue
        sizes = {"B": 1, "H": HIDDEN // D, "S": TOKENS, "D": D}
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


def mixed_cases() -> Iterator[Measurement]:
    """Forwards of 16,384 tokens as they are, and with every whole tile listed as a mixed one, in turns."""
    for mask in ("causal", "window"):
        wholes = ("asks no mask", "asks the mask")
        words = {whole: about(10, "whole_tile", whole, mask=mask, S=TOKENS, D=D) for whole in wholes}
        yield from in_turns(words, _mixed_in_turns, mask)


def _mixed_in_turns(mask: str) -> dict[str, dict[str, Any]]:
    sizes = {"device": hardware.device(), "B": 1, "H": 1}
    q, k, v = (randn(1, HIDDEN // D, TOKENS, D) for _ in range(3))
    left = WINDOW - 1 if mask == "window" else TOKENS - 1
    mod, aux = mods.first_keys_and_window, (0, left, 0)
    found = {}
    for whole in ("asks no mask", "asks the mask"):
        block_mask = make_block_mask(mod, TOKENS, TOKENS, aux=aux, **sizes)
        if whole == "asks the mask":
            list_all_as_mixed(block_mask)
        found[whole] = partial(attention_with, q, k, v, mask_mod=mod, aux=aux, block_mask=block_mask)
    same, changed = (found[whole]() for whole in found)
    assert torch.equal(same, changed), "every tile asks the mask, and the result is another"
    return timed_in_turns(found)


def list_all_as_mixed(block_mask: Any) -> None:
    """Move every whole tile of the forward's lists to the mixed ones, in the order in which the kernel takes them."""
    index, count = block_mask.tiles(CONFIGS[D].block_m, CONFIGS[D].block_n)[:2]
    for row, (n_mixed, n_whole) in zip(index[0, 0], count[:, 0, 0].T.tolist(), strict=True):
        wholes = row[len(row) - n_whole :].flip(0)
        row[: n_whole + n_mixed] = torch.cat((wholes, row[:n_mixed]))
    count[0] += count[1]
    count[1] = 0


@triton.jit
def cap_of_one_instruction(s, b, h, i, j, aux):
    """The page's soft cap whose tanh is the GPU's own."""
    t = tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [s * (1 / aux.softcap)], dtype=tl.float32, is_pure=True, pack=1
    )
    return aux.softcap * t


CAPS = {"none": None, "tanh": mods.soft_cap, "tanh.approx": cap_of_one_instruction}


def cap_cases() -> Iterator[Measurement]:
    """Causal forwards of 16,384 tokens without a cap, with the package's, and with the GPU's own tanh, in turns."""
    yield from in_turns({cap: about(10, "cap", cap, S=TOKENS, D=D) for cap in CAPS}, _caps_in_turns)


def _caps_in_turns() -> dict[str, dict[str, Any]]:
    """With the largest difference of o from that of the package's cap, as `difference`."""
    q, k, v = (randn(1, HIDDEN // D, TOKENS, D) for _ in range(3))
    aux = mods.Aux(offset=0, left=TOKENS, right=0, softcap=SOFTCAP)
    mask = mods.sliding_window
    block_mask = make_block_mask(mask, TOKENS, TOKENS, aux=aux, B=1, H=1, device=q.device)
    calls = {
        name: partial(attention_with, q, k, v, score_mod=cap, mask_mod=mask, aux=aux, block_mask=block_mask)
        for name, cap in CAPS.items()
    }
    truth = calls["tanh"]().float()
    difference = {name: float((call().float() - truth).abs().max()) for name, call in calls.items()}
    return {name: row | {"difference": difference[name]} for name, row in timed_in_turns(calls).items()}


def kernels_cases() -> Iterator[Measurement]:
    """Everything of this chapter."""
    kinds = (variant_cases, mixed_cases, cap_cases)
    return itertools.chain.from_iterable(cases() for cases in kinds)
