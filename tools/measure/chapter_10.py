"""Chapter 10: each variant beside the same kernel without it, and some beside FlexAttention, compiled, in turns; what
lists of tiles cost and save, and what a soft cap's tanh is off by.

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
from fa_tutorial.bench.cases import DTYPES, HIDDEN, TOKENS, about
from fa_tutorial.bench.chapter_10 import documents
from fa_tutorial.bench.measure import call_of
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import randn, timed_in_turns
from fa_tutorial.tiles import TileConfig
from fa_tutorial.tuned.backward import flash_backward
from fa_tutorial.tuned.forward import flash_forward
from fa_tutorial.variants import attention_with, make_block_mask, mods
from fa_tutorial.variants import backward as variant_backward_kernels
from fa_tutorial.variants.forward import CONFIGS, tl, triton, variant_forward
from measure.turns import in_turns

D, WINDOW = 128, 1024
GEMMAS_CAP = 50.0


class Contest(NamedTuple):
    """One variant on one shape, by functions of q, k, v."""

    ours: Callable
    flex: Callable


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
    return Contest(partial(flash_attention, **options), compiled_flex(S, mask, score))


def same_document(S: int) -> tuple[torch.Tensor, Callable]:
    """The first token of each token's document, (S,) int32; and FlexAttention's mask, causal within each."""
    lengths = torch.tensor(documents(S))
    first = (lengths.cumsum(0) - lengths).repeat_interleave(lengths).int().to(hardware.device())
    return first, lambda b, h, i, j: (i >= j) & (j >= first[i])


def documents_contest(S: int, H: int) -> Contest:
    first, mask = same_document(S)
    by, aux = mods.causal_documents, (first,)
    block_mask = make_block_mask(by, S, S, aux=aux, B=1, H=1, device=first.device)
    return Contest(partial(attention_with, mask_mod=by, aux=aux, block_mask=block_mask), compiled_flex(S, mask))


def packed_contest(S: int, H: int) -> Contest:
    """Packed rows, B = 1: as (S, H, D) for flash_attention_varlen."""
    cu = torch.tensor([0, *itertools.accumulate(documents(S))], dtype=torch.int32, device=hardware.device())

    def ours(q, k, v):
        rows = (x.squeeze(0).transpose(0, 1) for x in (q, k, v))
        return flash_attention_varlen(*rows, cu, cu, is_causal=True).transpose(0, 1).unsqueeze(0)

    return Contest(ours, compiled_flex(S, same_document(S)[1]))


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
    """The times of ours, of FlexAttention (flex_ms) and of causal attention by chapter 8's kernels (causal_ms), all in
    turns."""
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
    for x, y in zip(*([r] if mode == "fwd" else r for r in results), strict=True):
        assert float((x - y).abs().max()) < 0.01, f"{variant}, {mode}: FlexAttention gives another result"
    rows = timed_in_turns(calls)
    return rows["ours"] | {f"{name}_ms": rows[name]["ms"] for name in ("flex", "causal")}


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


# What is timed: our kernel with the causal mask alone, chapter 8's in the tile that its autotuner picks and in ours,
# and each variant by itself, dropout also with as many stages as the others. Both backwards have the same tile for dq.
EIGHTS = TileConfig(128, 64, 4, 2), BackwardConfig(TileConfig(64, 64, 4, 2), TileConfig(128, 64, 8, 3))
IN_OUR_TILE = CONFIGS[D], variant_backward_kernels.CONFIGS[D]
VARIANTS = ("sinks", "dropout", "cap", "alibi", "bias", "window", "packed")
COSTS = {
    "fwd": ("causal", "chapter 8", "chapter 8, our tile", *VARIANTS, "cap, tanh.approx", "dropout, three stages"),
    "bwd": ("causal", "chapter 8", "chapter 8, our tile", *VARIANTS),
}


def cost_cases() -> Iterator[Measurement]:
    """Each variant on 16,384 tokens beside the same kernel with the causal mask alone, in turns: three runs of the
    forward, and of the backward."""
    for mode, run in itertools.product(COSTS, (1, 2, 3)):
        words = {name: about(10, "cost", name, mode=mode, run=run, S=TOKENS, D=D) for name in COSTS[mode]}
        yield from in_turns(words, _costs_in_turns, mode)


def _costs_in_turns(mode: str) -> dict[str, dict[str, Any]]:
    return timed_in_turns(cost_calls(mode), rounds=2)


def cost_calls(mode: str, S: int = TOKENS, H: int = HIDDEN // D) -> dict[str, Callable]:
    """COSTS[mode], on new inputs. A call takes the lists of tiles that an earlier one made, but packed rows find theirs
    in every call. The backward is that of q, k, v, and of the sinks or the bias."""
    q, k, v, do = (randn(1, H, S, D) for _ in range(4))
    learned = {"sinks": randn(H), "bias": randn(1, H, S, S)}
    if mode == "bwd":
        for x in (q, k, v, *learned.values()):
            x.requires_grad_()
    slopes = torch.exp2(-8 * torch.arange(1, H + 1, device=q.device) / H)
    cu = torch.tensor([0, *itertools.accumulate(documents(S))], dtype=torch.int32, device=q.device)
    mask, aux = mods.sliding_window, mods.Aux(offset=0, right=0, softcap=GEMMAS_CAP)
    block_mask = make_block_mask(mask, S, S, aux=aux, B=1, H=1, device=q.device)
    causal_alone = partial(attention_with, mask_mod=mask, aux=aux, block_mask=block_mask)

    def packed():
        rows = (x.squeeze(0).transpose(0, 1) for x in (q, k, v))
        return flash_attention_varlen(*rows, cu, cu, is_causal=True).transpose(0, 1).unsqueeze(0)

    def with_option(**option: Any) -> Callable:
        return partial(flash_attention, q, k, v, is_causal=True, **option)

    attentions = {
        "causal": partial(causal_alone, q, k, v),
        "sinks": with_option(sinks=learned["sinks"]),
        "dropout": with_option(dropout_p=0.1),
        "cap": with_option(softcap=GEMMAS_CAP),
        "alibi": with_option(alibi_slopes=slopes),
        "bias": with_option(attn_mask=learned["bias"]),
        "window": with_option(window=(WINDOW - 1, -1)),
        "packed": packed,
        "cap, tanh.approx": partial(causal_alone, q, k, v, score_mod=cap_of_one_instruction),
    }
    calls = {}
    for name in COSTS[mode]:
        if name in attentions:
            inputs = (q, k, v, *([learned[name]] if name in learned else []))
            calls[name] = call_of(mode, attentions[name], inputs, do)
    scale, (q, k, v) = D**-0.5, (x.detach() for x in (q, k, v))
    drop = mods.Dropout(torch.ones(2, dtype=torch.int64, device=q.device), round(0.1 * 2**32), 1 / 0.9, H)
    dropped = mods.Mods(mask=mask, scale=scale, drop=drop)
    calls["dropout, three stages"] = partial(variant_forward, q, k, v, dropped, aux, block_mask, config=IN_OUR_TILE[0])
    o, lse = flash_forward(q, k, v, True, scale, tile=IN_OUR_TILE[0])
    for name, (tile, config) in {"chapter 8": EIGHTS, "chapter 8, our tile": IN_OUR_TILE}.items():
        calls[name] = (
            partial(flash_forward, q, k, v, True, scale, tile=tile)
            if mode == "fwd"
            else partial(flash_backward, q, k, v, o, do, lse, None, True, scale, config=config)
        )
        for x, y in zip(as_tuple(calls[name]()), as_tuple(calls["causal"]()), strict=False):
            assert float((x - y).abs().max()) < 0.01, f"{name}: another result"
    return {name: calls[name] for name in COSTS[mode]}


def as_tuple(results: Any) -> tuple:
    return results if isinstance(results, tuple) else (results,)


# q is randn times these: of 16,384 keys the largest score is then about 5, 27 and 107, and a cap leaves ±50
SCORES = (1, 5, 20)
CAPS = {"tanh": mods.soft_cap, "tanh.approx": cap_of_one_instruction}


def cap_error_cases() -> Iterator[Measurement]:
    """How far a capped causal head of 16,384 tokens is off, by the package's tanh and by the GPU's own."""
    for dtype, times in itertools.product(("fp16", "bf16"), SCORES):
        words = {cap: about(10, "cap_error", cap, q_times=times, S=TOKENS, D=D) | {"dtype": dtype} for cap in CAPS}
        yield from in_turns(words, cap_errors, DTYPES[dtype], times)


def cap_errors(dtype: torch.dtype, times: float, S: int = TOKENS) -> dict[str, dict[str, Any]]:
    """error: the largest of o against float64; largest: that of the scores before the cap."""
    q, k, v = times * randn(1, 1, S, D, dtype=dtype), *(randn(1, 1, S, D, dtype=dtype) for _ in range(2))
    mask, aux = mods.sliding_window, mods.Aux(offset=0, right=0, softcap=GEMMAS_CAP)
    s = D**-0.5 * q[0, 0].double() @ k[0, 0].double().mT
    hidden = torch.ones(S, S, dtype=torch.bool, device=s.device).triu(1)
    largest = float(s.masked_fill(hidden, 0).abs().max())
    s = (GEMMAS_CAP * torch.tanh(s / GEMMAS_CAP)).masked_fill(hidden, -torch.inf)
    truth = torch.softmax(s, dim=-1) @ v[0, 0].double()
    rows = {}
    for name, cap in CAPS.items():
        o = attention_with(q, k, v, score_mod=cap, mask_mod=mask, aux=aux)[0, 0].double()
        rows[name] = {"error": float((o - truth).abs().max()), "largest": round(largest, 1)}
    return rows


def kernels_cases() -> Iterator[Measurement]:
    """Everything of this chapter."""
    kinds = (variant_cases, mixed_cases, cost_cases, cap_error_cases)
    return itertools.chain.from_iterable(cases() for cases in kinds)
