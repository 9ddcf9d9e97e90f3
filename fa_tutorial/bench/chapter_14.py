"""Chapter 14: the numbers that its errors are measured on, and what its page shows of the stored results.

tools/measure measures what is stored.
"""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from fa_tutorial import fp8, hardware, reference
from fa_tutorial.bench import results, training
from fa_tutorial.bench.tables import mask
from fa_tutorial.figures import COLOURS
from fa_tutorial.fp8.model import to_e4m3

SPEEDS = {
    "fp8": "FP8, kernel alone",
    "fp8 and quantiser": "FP8 with the quantiser",
    "fp8, rotation and quantiser": "… and rotation",
    "hopper": "fp16, chapter 9",
    "sdpa_cudnn": "fp16, cuDNN",
    "matmul, chain": "FP8 matmul, one chain of sums",
    "matmul, blocks": "FP8 matmul, sums by blocks",
}
CHOICES = {name: SPEEDS[name] for name in ("fp8", "fp8 and quantiser", "fp8, rotation and quantiser")}
WAYS = ("fp16", "fp8", "fp8, rotated")
LENGTHS = (1024, 4096, 16_384)
PROBES = {  # factors of products that one instruction adds up
    "2¹³ + 31 · 1.5": [(128, 64)] + 31 * [(1.5, 1)],
    "2¹³ − 31 · 1.5": [(128, 64)] + 31 * [(-1.5, 1)],
    "2¹⁴ + 30 · 1 − 2¹⁴": [(128, 128)] + 30 * [(1, 1)] + [(-128, 128)],
}
ONES = (1024, 16_384, 20_000)  # to be added up
SPEED_LENGTHS = (1024, 2048, 4096, 16_384)
CALLS = ("hopper", "fp8 and quantiser", "fp8, rotation and quantiser")  # of SPEEDS: what a user calls
SHORT_LENGTHS = SPEED_LENGTHS[:3]
GRAPH = ", from a CUDA graph"


class Kind(NamedTuple):
    """Numbers to measure errors on. S: keys and queries; outliers: one of 1,000 numbers gets a sample of N(0, 100)
    added; mean: of v."""

    S: int
    outliers: bool = False
    mean: float = 0.0


KINDS = {
    "N(0, 1)": Kind(4096),
    "with outliers": Kind(4096, outliers=True),
    "16,384 keys": Kind(16_384),
    "16,384 keys, v + 1": Kind(16_384, mean=1.0),
}


def data(kind: str, H: int, S: int, D: int) -> list[torch.Tensor]:
    """q, k and v of KINDS, (1, H, S, D) fp16 on the CPU, the same at every call."""
    generator = torch.Generator().manual_seed(14)
    _, outliers, mean = KINDS[kind]
    found = [torch.randn(1, H, S, D, generator=generator) for _ in range(3)]
    if outliers:
        for x in found:
            x += 10 * torch.randn(x.shape, generator=generator) * (torch.rand(x.shape, generator=generator) < 0.001)
    found[2] += mean
    return [x.half() for x in found]


def factors(kind: str, rows: int, K: int, in_e4m3: bool = True) -> list[torch.Tensor]:
    """Two matrices (rows, K) of numbers of e4m3, in float64: uniform in [0, 1], N(0, 1), or p · 2⁸ of
    N(0, 1) scores, and v of mean 0 or 1. in_e4m3=False: before they are rounded."""
    generator = torch.Generator().manual_seed(14)
    if kind == "uniform":
        found = [torch.rand(rows, K, generator=generator) for _ in range(2)]
    else:
        found = [torch.randn(rows, K, generator=generator) for _ in range(2)]
    if kind.startswith("p v"):
        found[0] = 2**8 * torch.exp(found[0] - found[0].amax(dim=1, keepdim=True))
        found[1] += float(kind[-1])
        found[1] *= 448 / found[1].abs().max()
    return [(to_e4m3(x) if in_e4m3 else x).double() for x in found]


def rms(x: torch.Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def error_of(x: torch.Tensor, truth: torch.Tensor) -> dict[str, float]:
    """Root mean square and mean of x − truth, each over the root mean square of truth."""
    error = x.double() - truth
    return {"rms": float(f"{rms(error) / rms(truth):.3g}"), "mean": float(f"{float(error.mean()) / rms(truth):.3g}")}


def error_by_row(x: torch.Tensor, truth: torch.Tensor) -> dict[str, float]:
    """Each row's root mean square of x − truth, over the row's own: the median row's, what 90 % of the rows are below,
    and the worst row's."""
    error, truth = (y.double().square().mean(dim=-1).sqrt().flatten() for y in (x.double() - truth, truth))
    off = (error / truth).quantile(torch.tensor([0.5, 0.9, 1.0], dtype=torch.float64, device=x.device))
    return {name: float(f"{value:.3g}") for name, value in zip(("median", "most", "worst"), off.tolist(), strict=True)}


def parts(kind: str, S: int, D: int = 64) -> list[torch.Tensor]:
    """q, k and v of data's one head, (S, D), in float64."""
    return [x[0, 0].double() for x in data(kind, 1, S, D)]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores, scaled, and o."""
    s = q @ k.T / q.shape[1] ** 0.5
    return s, torch.softmax(s, dim=1) @ v


def of_rows(x: torch.Tensor, truth: torch.Tensor) -> list[float]:
    """Each row's own error in %: the median row's, and what 90 % of the rows stay below."""
    by_row = 100 * ((x - truth).square().mean(dim=1) / truth.square().mean(dim=1)).sqrt()
    return by_row.quantile(torch.tensor([0.5, 0.9]).double()).tolist()


def probe(name: str, rows: int = 64) -> list[torch.Tensor]:
    """Two matrices (rows, 128), float64, whose equal rows multiply to these products, and to 0 from there on."""
    found = torch.zeros(2, rows, 128, dtype=torch.float64)
    for i, product in enumerate(PROBES[name]):
        found[:, :, i] = torch.tensor(product, dtype=torch.float64)[:, None]
    return list(found)


def sum_of_ones(K: int, fast: bool) -> float:
    """K ones added up by this GPU's torch._scaled_mm. 2,048 rows, since cuBLAS cuts K in parts where rows are few."""
    ones, scale = torch.ones(2048, K, device="cuda").to(torch.float8_e4m3fn), torch.ones((), device="cuda")
    sums = torch._scaled_mm(ones, ones.T, scale, scale, out_dtype=torch.float32, use_fast_accum=fast)
    return sums[0, 0].item()


# ---------------------------------------------------------------- a trained model: chapter 11's, on random texts

COPIER = dataclasses.replace(training.SMALL, batch=32)
COPIED = 200  # texts of 20 tokens to repeat
SEEDS = range(10)  # of the stored models
FULLY, HALF = 500, 250  # steps of training
REMEDIES = {"plain": (False, False), "rotated": (True, False), "k's mean": (False, True), "both": (True, True)}
TRAINED = Path(__file__).with_name("trained_fp8.json")


def trained(seed: int, steps: int = FULLY) -> training.TinyTransformer:
    """A model that has learned to repeat 20 tokens, as long as chapter 11's, or nearly, in HALF as many steps."""
    return training.train_copier(training.ATTENTIONS["sdpa_math"], COPIER, steps=steps, seed=seed)


def texts() -> torch.Tensor:
    """410 texts of 40 tokens, the same at every call: 16,400 tokens."""
    draw = torch.Generator().manual_seed(14)
    return training.copy_batch(dataclasses.replace(COPIER, batch=410), draw).to(hardware.device())


def wrong_tokens(model: nn.Module, attention: training.Attention, texts: torch.Tensor) -> int:
    """How many of the repeated tokens the model gets wrong with this attention."""
    for block in model.blocks:
        block.attention = attention
    with torch.no_grad():
        guesses = model(texts)[:, COPIER.half - 1 : -1].argmax(dim=2)
    return int((guesses != texts[:, COPIER.half :]).sum())


def in_fp8(rotate: bool = False, subtract: bool = False) -> training.Attention:
    """Causal attention in FP8; subtract: k's mean over all keys, taken off first."""

    def attention(q, k, v):
        k = k - subtract * k.mean(dim=2, keepdim=True)
        q, k, v = (x.half() for x in (q, k, v))
        return fp8.flash_attention_fp8(q, k, v, is_causal=True, rotate=rotate).float()

    return attention


def heads_of(model: training.TinyTransformer, texts: torch.Tensor) -> list[list[torch.Tensor]]:
    """q, k and v of each head of the model, (1, 1, keys, D) fp16: all texts joined to one row of keys, and its last 64
    tokens ask."""
    heads, attention = [], training.ATTENTIONS["sdpa_math"]

    def noted(q, k, v):
        for h in range(COPIER.heads):
            q_h, k_h, v_h = (x[:, h].flatten(0, 1)[None, None].half() for x in (q, k, v))
            heads.append([q_h[:, :, -64:], k_h, v_h])
        return attention(q, k, v)

    wrong_tokens(model, noted, texts)
    return heads


def print_keys(heads: list[list[torch.Tensor]]) -> None:
    """k's largest number and the offset that all keys share, over k's rms: of a model's heads, and of the data with
    outliers or with an offset."""
    shifted = data("N(0, 1)", 1, 1024, 64)[1]
    shifted[..., [3, 40]] += 10
    keys = {"your model's heads": [k for _, k, _ in heads]}
    keys |= {"with outliers": [data("with outliers", 1, 1024, 64)[1]], "N(0, 1), offset 10": [shifted]}
    for name, of in keys.items():
        peaks = ", ".join(f"{float(k.abs().max()) / rms(k):.1f}" for k in of)
        offsets = ", ".join(f"{rms(k.double().mean(dim=2)) / rms(k):.2f}" for k in of)
        print(f"{name:20} k's largest number, over its rms: {peaks}; its offset: {offsets}")
    print()


def of_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, float]:
    """v's mean, of v's rms, and o's error in % by rounding alone, and with acc in one chain."""
    truth = reference.attention(q, k, v)[0].cpu()
    found = fp8.emulated(q, k, v, fp8.sums_in_float32, fp8.sums_in_one_chain)
    rounding, chain = (100 * rms(o.double() - truth) / rms(truth) for o in found)
    return {"v_mean": rms(v.double().mean(dim=2)) / rms(v), "rounding": rounding, "chain": chain}


def print_heads(heads: list[dict[str, float]]) -> None:
    """Of of_head's rows: each if there are few, else the least, the middle and the largest of them."""
    found = pd.DataFrame(heads)
    if len(found) > 4:
        found = found.quantile([0, 0.5, 1]).set_axis(["least", "middle", "most"])
    print(f"{'':10}{'rms of v’s mean, over v’s':>26}{'o off, by rounding':>22}{'with acc in one chain':>24}")
    for name, head in found.iterrows():
        print(f"{name!s:10}{head.v_mean:26.2f}{head.rounding:20.1f} %{head.chain:22.1f} %")


def stored_models(steps: int = FULLY) -> pd.DataFrame:
    """Of each stored model: seed, wrong tokens in float32 and in FP8 with each of REMEDIES, and `heads`, of_head's."""
    models = pd.DataFrame(json.loads(TRAINED.read_text(encoding="utf-8"))["rows"])
    return models[models.steps == steps]


def print_trained(wrong: dict[str, int]) -> None:
    """Wrong tokens of your model, by way, and the mean of the stored ones, fully and half trained; and of how many of
    these each remedy makes fewer."""
    print(f"{f'wrong of {COPIED * COPIER.half:,} tokens':36}" + "".join(f"{name:>11}" for name in wrong))
    print(f"{'your model':36}" + "".join(f"{number:11}" for number in wrong.values()))
    for steps in (FULLY, HALF):
        models = stored_models(steps)
        words = f"{len(models)} stored models, {steps} steps, mean"
        print(f"{words:36}" + "".join(f"{models[name].mean():11.1f}" for name in wrong))
        fewer = (f"{(models[name] < models.plain).sum():8} of {len(models)}"[-11:] for name in list(REMEDIES)[1:])
        print(f"{'    fewer than plain':36}" + " " * 22 + "".join(f"{words:>11}" for words in fewer))


# ---------------------------------------------------------------- what the notebook shows; card: results.load's


def row(card: dict[str, Any], **wanted: Any) -> dict[str, Any]:
    """The one stored row of this chapter whose fields equal `wanted`."""
    return results.select(card["kernels"], chapter=14, **wanted).iloc[0].to_dict()


def tflops(card: dict[str, Any], provider: str, D: int, S: int, is_causal: bool) -> float:
    return row(card, kernel="speed", provider=provider, D=D, S_q=S, is_causal=is_causal)["tflops"]


def print_off_header(keys: int = LENGTHS[-1], D: int = 64, means: tuple[int, ...] = (0, 1, 3)) -> None:
    """The head of print_off's table: v and its means, and how large o is with each."""
    q, k, v = data("N(0, 1)", 1, keys, D)
    o = reference.attention(q[:, :, :32], k, v)[0]
    columns = (f"v + {mean}" if mean else "v" for mean in means)
    print(f"{f'{keys:,} keys':34}" + "".join(f"{name:>8}" for name in columns))
    print(f"{'the rms of o':34}" + "".join(f"{rms(o + mean):8.3f}" for mean in means))
    print("o is off by, in % of it")


def print_off(words: str, errors: list[float]) -> None:
    print(f"{words:34}" + "".join(f"{error:8.2f}" for error in errors))


def print_choices(card: dict[str, Any], D: int = 128, S: int = LENGTHS[-1]) -> None:
    """How many times as fast as chapter 9's fp16, full and causal, and how far off the rows of o are on two kinds of
    data: the median row, and what 90 % of the rows are below."""
    ways = {"hopper": ("fp16, chapter 9", "fp16"), **{name: (words, "fp8") for name, words in CHOICES.items()}}
    ways["fp8, rotation and quantiser"] = (CHOICES["fp8, rotation and quantiser"], "fp8, rotated")
    keys = KINDS["N(0, 1)"].S
    print(f"{f'D = {D}':26}{f'times as fast, S = {S:,}':>28}{f'rows of o off in %, S = {keys:,}':>36}")
    print(" " * 54 + f"{'N(0, 1)':>18}{'outliers':>18}")
    print(f"{'full':>42}{'causal':>12}" + 2 * f"{'median':>10}{'90 %':>8}")
    for name, (words, way) in ways.items():
        rates = [[tflops(card, who, D, S, c) for who in (name, "hopper")] for c in (False, True)]
        found = [row(card, kernel="error", provider=way, data=kind, D=D) for kind in list(KINDS)[:2]]
        off = [f"{100 * one[which]:.{1 if one[which] > 0.01 else 2}f}" for one in found for which in ("median", "most")]
        gains = "".join(f"{rate / fp16:12.2f}" for rate, fp16 in rates)
        print(f"{words:30}{gains}{off[0]:>10}{off[1]:>8}{off[2]:>10}{off[3]:>8}")


Lines = dict[str, tuple[torch.Tensor, torch.Tensor]]  # by label, moved scores, and which of them count


def plot_score_errors(s: torch.Tensor, lines: Lines) -> Figure:
    """How far positive scores move, by root mean square, against their size."""
    figure = Figure(figsize=(6, 3.2))
    _draw_score_errors(figure.subplots(), s, lines)
    return figure


def plot_rotation(key: torch.Tensor, rotated: torch.Tensor, s: torch.Tensor, lines: Lines) -> Figure:
    """One key's channels before and after a rotation, and plot_score_errors' lines."""
    figure = Figure(figsize=(9, 3.4))
    axes = figure.subplot_mosaic([["before", "scores"], ["after", "scores"]])
    axes["before"].sharey(axes["after"])
    for name, numbers, colour in (("before", key, "vermilion"), ("after", rotated, "black")):
        axes[name].bar(range(len(numbers)), numbers, color=COLOURS[colour])
        axes[name].set(ylabel=name, ylim=(-1.1 * key.abs().max(), 1.1 * key.abs().max()))
    axes["before"].set_title(f"one key's {len(key)} numbers, rotated")
    axes["before"].set_xticks([])
    axes["after"].set_xlabel("channel")
    _draw_score_errors(axes["scores"], s, lines)
    return figure


def _draw_score_errors(ax: Axes, s: torch.Tensor, lines: Lines) -> None:
    sizes = [0, 1, 2, 3, 4, 5, 6, 8, 12]
    looks = (("vermilion", "-", "o"), ("blue", "--", "s"), ("black", ":", "^"))
    for (label, (moved, counts)), (colour, line, marker) in zip(lines.items(), looks, strict=False):
        parts = [counts & (low <= s) & (s < high) for low, high in itertools.pairwise(sizes)]
        found = [(s[part].mean(), (moved - s)[part].square().mean().sqrt()) for part in parts if part.sum() > 50]
        ax.plot(*zip(*found, strict=True), color=COLOURS[colour], linestyle=line, marker=marker, label=label)
    ax.set(xlabel="score (negative ones have little weight)", ylabel="moved by rounding, rms", ylim=(0, 0.25))
    ax.legend()


def plot_rows(cases: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> Figure:
    """Which share of o's rows is off by at most so many %, and on each line the rms over all rows. cases: by label, o
    and its truth."""
    figure = Figure(figsize=(6, 3.4))
    ax = figure.subplots()
    for (label, (o, truth)), colour, line in zip(
        cases.items(), ("blue", "vermilion", "black"), ("-", "--", ":"), strict=False
    ):
        off = 100 * ((o - truth).square().mean(dim=1) / truth.square().mean(dim=1)).sqrt().sort().values
        share = np.arange(1, len(off) + 1) / len(off)
        ax.plot(off, share, color=COLOURS[colour], linestyle=line, label=label)
        whole = 100 * rms(o - truth) / rms(truth)
        ax.plot(whole, np.interp(whole, off, share), "o", color=COLOURS[colour], markersize=9)
    ax.set_xscale("log")
    ax.set_xlim(1, 60)
    ax.set_xticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    ax.minorticks_off()
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    ax.set(xlabel="a row is off by at most, in % of itself (dots: the rms over all rows)", ylabel="of the rows")
    ax.legend(loc="lower right")
    return figure


def plot_chains(panels: dict[str, dict[tuple[int, int], float]]) -> Figure:
    """o's error in % against the number of keys, one line for each mean of v, in a panel for each title. Errors: by
    (mean, keys)."""
    figure = Figure(figsize=(3 + 2.2 * len(panels), 3.4))
    looks = {0: ("blue", "-", "o"), 1: ("orange", "--", "s"), 3: ("vermilion", "-.", "^")}
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, (title, errors) in zip(axes, panels.items(), strict=True):
        means, lengths = (list(dict.fromkeys(key[i] for key in errors)) for i in range(2))
        for mean in means:
            colour, line, marker = looks[mean]
            found = [errors[mean, keys] for keys in lengths]
            ax.plot(lengths, found, color=COLOURS[colour], linestyle=line, marker=marker, label=f"v has mean {mean}")
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(lengths, [f"{keys:,}" for keys in lengths])
        ax.minorticks_off()
        ax.set_ylim(0.02, 200)
        ax.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
        ax.set(xlabel="keys", title=title)
    axes[0].set_ylabel("o is off by, in %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def print_clock(card: dict[str, Any]) -> None:
    """Of both formats' kernels, full, S = 16,384: an SM's cycles for 64 x 128 scores, how much of them its tensor cores
    are busy, its power and clock, and the rate."""
    ways = {"hopper": "fp16", "fp8": "FP8", "fp8, 2 consumers": "FP8, 2 consumers"}
    kernels = [(64, "hopper", 3), (64, "fp8", 3), (128, "hopper", 2), (128, "fp8", 3), (128, "fp8, 2 consumers", 2)]
    print(" " * 29 + "consumers  cycles a block  tensor cores busy     W    MHz  TFLOP/s")
    for D, name, consumers in kernels:
        found = row(card, kernel="clock", provider=name, D=D)
        flops, work = 4 * 64 * 128 * D, 8 * D if name == "hopper" else 4 * D
        cycles = found["mhz"] * card["provenance"]["multiprocessors"] * flops / found["tflops"] / 1e6
        print(f"D = {D:3}, {ways[name]:20}{consumers:9}{cycles:16,.0f}{work / cycles:19.0%}", end="")
        print(f"{found['watts']:6.0f}{found['mhz']:7,.0f}{found['tflops']:9.0f}")


# What the page shows of whole calls: words, the row's kernel and its provider.
CALLED = (
    ("fp16, chapter 9", "whole call", "hopper"),
    (SPEEDS["fp8 and quantiser"], "whole call", "fp8 and quantiser"),
    (SPEEDS["fp8, rotation and quantiser"], "whole call", "fp8, rotation and quantiser"),
)


def call_ms(card: dict[str, Any], kernel: str, provider: str, is_causal: bool) -> list[float]:
    """The ms of a call at D = 128 and each of SHORT_LENGTHS, in batches of 16,384 tokens."""
    wanted = {"kernel": kernel, "provider": provider, "D": 128, "is_causal": is_causal}
    return [row(card, S_q=S, **wanted)["ms"] for S in SHORT_LENGTHS]


def crossing(fp16: list[float], eight: list[float]) -> tuple[float, float]:
    """The S from which `eight`, the ms at SHORT_LENGTHS, are fewer than fp16's, on plot_calls' straight lines; and the
    ms there."""
    lengths, fp16, eight = np.log(SHORT_LENGTHS), np.log(fp16), np.log(eight)
    S = np.interp(0, fp16 - eight, lengths)  # what is gained grows with S
    return float(np.exp(S)), float(np.exp(np.interp(S, lengths, fp16)))


def plot_calls(card: dict[str, Any]) -> Figure:
    """For each mask the ms of CALLS against S, and where those in FP8 become faster than fp16."""
    figure = Figure(figsize=(8, 3.6))
    looks = (("vermilion", "-", "o"), ("blue", "--", "s"), ("black", ":", "^"))
    axes = figure.subplots(1, 2, sharey=True)
    for ax, is_causal in zip(axes, (False, True), strict=True):
        lines = [(words, call_ms(card, *of, is_causal)) for words, *of in CALLED]
        for (words, ms), (colour, line, marker) in zip(lines, looks, strict=True):
            ax.plot(SHORT_LENGTHS, ms, color=COLOURS[colour], linestyle=line, marker=marker, label=words)
        for (_, ms), (colour, *_), place in zip(lines[1:], looks[1:], ((6, -17), (-7, 7)), strict=True):
            where = crossing(lines[0][1], ms)
            ax.plot(*where, "D", color=COLOURS[colour], markersize=10, fillstyle="none")
            beside = {"xytext": place, "textcoords": "offset points", "ha": "right" if place[0] < 0 else "left"}
            ax.annotate(f"{round(where[0], -2):,.0f}", where, color=COLOURS[colour], **beside)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(SHORT_LENGTHS, [f"{S:,}" for S in SHORT_LENGTHS])
        ax.minorticks_off()
        ax.set_yticks([0.2, 0.3, 0.5, 1], ["0.2", "0.3", "0.5", "1"])
        ax.set(title=f"D = 128, {mask(is_causal)}", xlabel="S, in batches of 16,384 tokens")
    axes[0].set_ylabel("ms of a call")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
