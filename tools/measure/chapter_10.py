"""Chapter 10: each variant beside FlexAttention, compiled, and chapter 8's causal kernel, in turns; what lists of tiles
cost and save, and what a soft cap costs.

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
from fa_tutorial.backward import BackwardConfig
from fa_tutorial.bench.cases import HIDDEN, TOKENS, about
from fa_tutorial.bench.chapter_10 import documents
from fa_tutorial.bench.measure import call_of
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import randn, timed_in_turns
from fa_tutorial.tiles import TileConfig
from fa_tutorial.tuned.backward import flash_backward
from fa_tutorial.tuned.forward import flash_forward
from fa_tutorial.variants import attention_with, make_block_mask, mods
from fa_tutorial.variants import backward as variant_backward_kernels
from fa_tutorial.variants import forward as variant_kernels
from fa_tutorial.variants.forward import CONFIGS, tl, triton
from measure.turns import in_turns

D, WINDOW = 128, 1024
GEMMAS_CAP = 50.0


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
    """The causal mask by this chapter's kernels, as a window as long as the sequence; or with a window or with
    ALiBi's slopes."""
    slopes = torch.exp2(-8 * torch.arange(1, H + 1, device=hardware.device()) / H)
    options, mask, score = {
        "causal": ({"window": (S - 1, 0)}, causal, None),
        "window": ({"is_causal": True, "window": (WINDOW - 1, -1)}, in_window, None),
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


def documents_contest(S: int, H: int) -> Contest:
    first, mask, pairs = same_document(S)
    by, aux = mods.causal_documents, (first,)
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


CONTESTS = {name: partial(causal_contest, variant=name) for name in ("causal", "window", "alibi")} | {
    "documents": documents_contest,
    "packed": packed_contest,
}


def variant_cases() -> Iterator[Measurement]:
    """Every variant on 16,384 tokens, forward and backward."""
    for variant, mode in itertools.product(CONTESTS, ("fwd", "bwd")):
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


class Near(NamedTuple):
    """What the page's window reads."""

    left: int
    shift: int = 0


@triton.jit
def window(b, h, i, j, aux):
    """The page's window, exercise 10.1."""
    distance = j - (i + aux.shift)
    return (distance <= 0) & (distance >= -aux.left)


def mixed_cases() -> Iterator[Measurement]:
    """Forwards of 16,384 tokens with the page's window as they are, and with every whole tile listed as a mixed one;
    and finding the forward's tiles. In turns."""
    for mask in ("causal", "window"):
        names = ("asks no mask", "asks the mask", "finds the tiles")
        words = {name: about(10, "whole_tile", name, mask=mask, S=TOKENS, D=D) for name in names}
        yield from in_turns(words, _mixed_in_turns, mask)


def _mixed_in_turns(mask: str) -> dict[str, dict[str, Any]]:
    sizes = {"device": hardware.device(), "B": 1, "H": 1}
    q, k, v = (randn(1, HIDDEN // D, TOKENS, D) for _ in range(3))
    aux = Near(WINDOW - 1 if mask == "window" else TOKENS - 1)  # the causal mask is a window of all keys before
    found = {}
    for whole in ("asks no mask", "asks the mask"):
        block_mask = make_block_mask(window, TOKENS, TOKENS, aux=aux, **sizes)
        if whole == "asks the mask":
            list_all_as_mixed(block_mask)
        found[whole] = partial(attention_with, q, k, v, mask_mod=window, aux=aux, block_mask=block_mask)
    same, changed = (found[whole]() for whole in found)
    assert torch.equal(same, changed), "every tile asks the mask, and the result is another"
    found["finds the tiles"] = partial(block_mask.make, CONFIGS[D].block_m, CONFIGS[D].block_n, False)
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
    yield from in_turns({cap: about(10, "cap", cap, S=TOKENS, D=D, c=GEMMAS_CAP) for cap in CAPS}, _caps_in_turns)


def _caps_in_turns() -> dict[str, dict[str, Any]]:
    """With the largest difference of o from that of the package's cap, as `difference`."""
    q, k, v = (randn(1, HIDDEN // D, TOKENS, D) for _ in range(3))
    aux = mods.Aux(offset=0, left=TOKENS, right=0, softcap=GEMMAS_CAP)
    mask = mods.sliding_window
    block_mask = make_block_mask(mask, TOKENS, TOKENS, aux=aux, B=1, H=1, device=q.device)
    calls = {
        name: partial(attention_with, q, k, v, score_mod=cap, mask_mod=mask, aux=aux, block_mask=block_mask)
        for name, cap in CAPS.items()
    }
    truth = calls["tanh"]().float()
    difference = {name: float((call().float() - truth).abs().max()) for name, call in calls.items()}
    return {name: row | {"difference": difference[name]} for name, row in timed_in_turns(calls).items()}


@triton.jit
def causal_mask(b, h, i, j, aux):
    return j <= i


LARGER = TileConfig(128, 64, 4, 2)
# Chapter 8's and this chapter's backward have the same tile for dq, and these for dk and dv.
DQ_TILE = variant_backward_kernels.CONFIGS[D].dq
OTHERS = {"64x64": TileConfig(64, 64, 4, 2), "32x64": variant_backward_kernels.CONFIGS[D].dkdv}
PRICED = {
    "fwd": ("chapter 8", "chapter 8, 64x64", "lists", "lists, 128x64", "window"),
    "bwd": ("chapter 8", "chapter 8, 32x64", "lists", "lists, 64x64", "window"),
}


def price_cases() -> Iterator[Measurement]:
    """Causal attention of 16,384 tokens by chapter 8's kernels, and by this chapter's with the causal mask and with a
    window of all keys, in turns: three runs of the forward, with either tile, and of the backward, with either tile
    for dk and dv."""
    for mode, run in itertools.product(PRICED, (1, 2, 3)):
        words = {name: about(10, "price", name, mode=mode, run=run, S=TOKENS, D=D) for name in PRICED[mode]}
        yield from in_turns(words, _prices_in_turns, mode)


def priced_calls(mode: str) -> dict[str, Callable]:
    q, k, v, do = (randn(1, HIDDEN // D, TOKENS, D) for _ in range(4))
    if mode == "bwd":
        q, k, v = (x.requires_grad_() for x in (q, k, v))
    sizes = (TOKENS, TOKENS)
    block_mask = make_block_mask(causal_mask, *sizes, B=1, H=1, device=q.device)
    attentions = {
        "chapter 8": partial(flash_attention, is_causal=True, kernel="tuned"),
        "lists": partial(attention_with, mask_mod=causal_mask, block_mask=block_mask),
        "window": partial(flash_attention, window=(TOKENS - 1, 0)),
    }
    calls = {name: call_of(mode, partial(attend, q, k, v), (q, k, v), do) for name, attend in attentions.items()}
    if mode == "fwd":
        scale = D**-0.5
        arguments = (q, k, v, mods.Mods(mask=causal_mask, scale=scale), (), block_mask)
        calls["lists, 128x64"] = partial(variant_kernels.variant_forward, *arguments, config=LARGER)
        calls["chapter 8, 64x64"] = partial(flash_forward, q, k, v, True, scale, tile=CONFIGS[D])
        o = calls["chapter 8"]()
        for name, call in calls.items():
            found = call()
            found = found[0] if isinstance(found, tuple) else found
            assert float((found - o).abs().max()) < 0.01, f"{name}: another result"
    else:
        scale, q, k, v = D**-0.5, *(x.detach() for x in (q, k, v))
        priced = mods.Mods(mask=causal_mask, scale=scale)
        o, lse = variant_kernels.variant_forward(q, k, v, priced, (), block_mask)
        small, large = (BackwardConfig(OTHERS[tile], DQ_TILE) for tile in ("32x64", "64x64"))
        calls["chapter 8, 32x64"] = partial(flash_backward, q, k, v, o, do, lse, None, True, scale, config=small)
        arguments = (q, k, v, o, do, lse, None, priced, (), block_mask)
        calls["lists, 64x64"] = partial(variant_backward_kernels.variant_backward, *arguments, config=large)
        theirs, ours = calls["chapter 8, 32x64"](), calls["lists, 64x64"]()
        for x, y in zip(theirs, (ours.dq, ours.dk, ours.dv), strict=True):
            assert float((x - y).abs().max()) < 0.01, "another result"
    return {name: calls[name] for name in PRICED[mode]}


def _prices_in_turns(mode: str) -> dict[str, dict[str, Any]]:
    return timed_in_turns(priced_calls(mode), rounds=5)


def kernels_cases() -> Iterator[Measurement]:
    """Everything of this chapter."""
    kinds = (variant_cases, mixed_cases, cap_cases, price_cases)
    return itertools.chain.from_iterable(cases() for cases in kinds)
