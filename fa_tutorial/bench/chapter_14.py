"""Chapter 14: the numbers that its errors are measured on, and what its page shows of the stored results.

tools/measure measures what is stored.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from fa_tutorial import fp8, hardware, reference
from fa_tutorial.bench import results, training
from fa_tutorial.bench.tables import mask
from fa_tutorial.figures import COLOURS
from fa_tutorial.fp8.model import tensor_core_sum, to_e4m3

SPEEDS = {
    "fp8": "FP8, kernel alone",
    "fp8 and quantiser": "FP8 with the quantiser",
    "fp8, rotation and quantiser": "… and rotation",
    "hopper": "fp16, chapter 9",
    "sdpa_cudnn": "fp16, cuDNN",
    "matmul, chain": "FP8 matmul, one chain of sums",
    "matmul, blocks": "FP8 matmul, sums by blocks",
}
CHOICES = {
    "fp8": "in e4m3 already",
    "fp8 and quantiser": "quantised first",
    "fp8, rotation and quantiser": "rotated and quantised",
}
WAYS = ("fp16", "fp8", "fp8, rotated")
LENGTHS = (1024, 4096, 16_384)
PROBES = {  # factors of products that one instruction adds up
    "2¹³ + 31 · 1.5": [(128, 64)] + 31 * [(1.5, 1)],
    "2¹³ − 31 · 1.5": [(128, 64)] + 31 * [(-1.5, 1)],
    "2¹⁴ + 30 · 1 − 2¹⁴": [(128, 128)] + 30 * [(1, 1)] + [(-128, 128)],
}
ONES = (1024, 16_384, 20_000)  # to be added up
SPEED_LENGTHS = (1024, 2048, 4096, 16_384)  # 2,048 by another run, on another H200


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


def factors(kind: str, rows: int, K: int) -> list[torch.Tensor]:
    """Two matrices (rows, K) of numbers of e4m3, in float64: uniform in [0, 1], N(0, 1), or p · 2⁸ of N(0, 1) scores,
    and v of mean 0 or 1."""
    generator = torch.Generator().manual_seed(14)
    if kind == "uniform":
        found = [torch.rand(rows, K, generator=generator) for _ in range(2)]
    else:
        found = [torch.randn(rows, K, generator=generator) for _ in range(2)]
    if kind.startswith("p v"):
        found[0] = 2**8 * torch.exp(found[0] - found[0].amax(dim=1, keepdim=True))
        found[1] += float(kind[-1])
        found[1] *= 448 / found[1].abs().max()
    return [to_e4m3(x).double() for x in found]


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


def modelled(kind: str, K: int, way: str, rows: int = 8) -> dict[str, float]:
    """error_of of sums by tensor_core_sum: one chain, or blocks of 128 added in float64."""
    a, b = factors(kind, rows, K)
    zeros = torch.zeros(rows, rows, dtype=torch.float64)
    if way == "chain":
        return error_of(tensor_core_sum(a, b, zeros), a @ b.T)
    return error_of(
        sum(tensor_core_sum(a[:, i : i + 128], b[:, i : i + 128], zeros) for i in range(0, K, 128)), a @ b.T
    )


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
TRAINED = Path(__file__).with_name("trained_fp8.json")


def trained(seed: int) -> training.TinyTransformer:
    """A model that has nearly learned to repeat 20 tokens."""
    return training.train_copier(training.ATTENTIONS["sdpa_math"], COPIER, steps=250, seed=seed)


def texts() -> torch.Tensor:
    """410 texts of 40 tokens, the same at every call: 16,400 tokens."""
    draw = torch.Generator().manual_seed(14)
    return training.copy_batch(dataclasses.replace(COPIER, batch=410), draw).to(hardware.device())


def wrong_tokens(model: training.TinyTransformer, attention: training.Attention, texts: torch.Tensor) -> int:
    """How many of the repeated tokens the model gets wrong with this attention."""
    for block in model.blocks:
        block.attention = attention
    with torch.no_grad():
        guesses = model(texts)[:, COPIER.half - 1 : -1].argmax(dim=2)
    return int((guesses != texts[:, COPIER.half :]).sum())


def in_fp8(q, k, v) -> torch.Tensor:
    return fp8.flash_attention_fp8(q.half(), k.half(), v.half(), is_causal=True).float()


def one_row(model: training.TinyTransformer, texts: torch.Tensor) -> list[dict[str, float]]:
    """For each head: v's mean, of v's rms, and o's error in % by rounding, and with acc in one chain. All texts are
    joined to one row of keys, and its last 64 tokens ask."""
    rows, attention = [], training.ATTENTIONS["sdpa_math"]

    def noted(q, k, v):
        whole = [x.transpose(0, 1).flatten(1, 2)[None].half() for x in (q, k, v)]  # (1, heads, keys, D)
        whole[0] = whole[0][:, :, -64:]
        truth = reference.attention(*whole)[0].cpu()
        found = fp8.emulated(*whole, fp8.sums_in_float32, fp8.sums_in_one_chain)
        for h in range(COPIER.heads):
            v_h = whole[2][0, h].double()
            off = (100 * rms(o[0, h].double() - truth[0, h]) / rms(truth[0, h]) for o in found)
            rows.append(
                {"v_mean": rms(v_h.mean(dim=0)) / rms(v_h)} | dict(zip(("rounding", "chain"), off, strict=True))
            )
        return attention(q, k, v)

    wrong_tokens(model, noted, texts)
    return rows


def print_heads(heads: list[dict[str, float]]) -> None:
    """Of one_row's: each if there are few, else the least, the middle and the largest of them."""
    found = pd.DataFrame(heads)
    if len(found) > 4:
        found = found.quantile([0, 0.5, 1]).set_axis(["least", "middle", "most"])
    print(f"{'':10}{'v’s mean, of v':>16}{'o off, by rounding':>22}{'with acc in one chain':>24}")
    for name, head in found.iterrows():
        print(f"{name!s:10}{head.v_mean:16.2f}{head.rounding:20.1f} %{head.chain:22.1f} %")


def stored_models() -> pd.DataFrame:
    """Of each stored model: seed, wrong tokens in float32 and in FP8, of `tokens`, and `heads`, one_row's."""
    return pd.DataFrame(json.loads(TRAINED.read_text(encoding="utf-8"))["rows"])


# ---------------------------------------------------------------- what the notebook shows; card: results.load's


def row(card: dict[str, Any], **wanted: Any) -> dict[str, Any]:
    """The one stored row of this chapter whose fields equal `wanted`."""
    return results.select(card["kernels"], chapter=14, **wanted).iloc[0].to_dict()


def tflops(card: dict[str, Any], provider: str, D: int, S: int, is_causal: bool) -> float:
    return row(card, kernel="speed", provider=provider, D=D, S_q=S, is_causal=is_causal)["tflops"]


def print_sums(card: dict[str, Any]) -> None:
    """Of the model and of the GPU: sums that show how it cuts, and the mean error of chains of K products, in % of the
    sums' root mean square; with what (14.7) expects of products of one sign."""
    print(f"{'one instruction adds up':34}{'model':>9}{'H200':>9}")
    for name in PROBES:
        a, b = probe(name)
        total = tensor_core_sum(a[:1], b[:1], torch.zeros(1, 1, dtype=torch.float64)).item()
        print(f"{name:34}{total:9,.0f}{row(card, kernel='probe', data=name)['sum']:9,.0f}")
    print()
    print(f"{'one chain, mean error in %':34}{'model':>9}{'H200':>9}{'(14.7)':>9}")
    chains = [("uniform", K) for K in LENGTHS] + [("p v, mean 0", LENGTHS[-1]), ("p v, mean 1", LENGTHS[-1])]
    for kind, K in chains:
        stored = row(card, kernel="sums", data=kind, K=K, provider="chain")
        sums = modelled(kind, K, "chain", rows=64), stored  # of the same numbers
        means = (round(100 * found["mean"], 2) + 0.0 for found in sums)  # no −0
        expected = f"{-100 * K / (3 * 2**14):9.2f}" if kind == "uniform" else ""
        print(f"{kind:14} K = {K:6,}        " + "".join(f"{mean:9.2f}" for mean in means) + expected)


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
    """How many times as fast as chapter 9's fp16, full and causal, and its error on two kinds of data."""
    ways = {"hopper": ("fp16, chapter 9", "fp16"), **{name: (words, "fp8") for name, words in CHOICES.items()}}
    ways["fp8, rotation and quantiser"] = (CHOICES["fp8, rotation and quantiser"], "fp8, rotated")
    keys = KINDS["N(0, 1)"].S
    print(f"{f'D = {D}':26}{f'times as fast, S = {S:,}':>28}{f'o off in %, S = {keys:,}':>24}")
    print(f"{'full':>42}{'causal':>12}{'N(0, 1)':>12}{'outliers':>12}")
    for name, (words, way) in ways.items():
        rates = [[tflops(card, who, D, S, c) for who in (name, "hopper")] for c in (False, True)]
        errors = [row(card, kernel="error", provider=way, data=kind, D=D)["rms"] for kind in list(KINDS)[:2]]
        off = "".join(f"{100 * error:12.{1 if error > 0.01 else 2}f}" for error in errors)
        print(f"{words:30}" + "".join(f"{rate / fp16:12.2f}" for rate, fp16 in rates) + off)


def plot_score_errors(s: torch.Tensor, lines: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> Figure:
    """How far positive scores move, by root mean square, against their size. lines: by label, the moved scores, and
    which of them count."""
    figure = Figure(figsize=(6, 3.2))
    ax = figure.subplots()
    sizes = [0, 1, 2, 3, 4, 5, 6, 8, 12]
    looks = (("vermilion", "-", "o"), ("blue", "--", "s"), ("black", ":", "^"))
    for (label, (moved, counts)), (colour, line, marker) in zip(lines.items(), looks, strict=False):
        parts = [counts & (low <= s) & (s < high) for low, high in itertools.pairwise(sizes)]
        found = [(s[part].mean(), (moved - s)[part].square().mean().sqrt()) for part in parts if part.sum() > 50]
        ax.plot(*zip(*found, strict=True), color=COLOURS[colour], linestyle=line, marker=marker, label=label)
    ax.set_xlabel("score (negative ones have little weight)")
    ax.set_ylabel("moved by rounding, rms")
    ax.set_ylim(0, 0.25)
    ax.legend()
    return figure


def plot_chains(panels: dict[str, dict[tuple[int, int], float]]) -> Figure:
    """o's error in % against the number of keys, one line for each mean of v, in a panel for each title. Errors: by
    (mean, keys)."""
    figure = Figure(figsize=(3 + 2.5 * len(panels), 3.4))
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
        ax.set_xlabel("keys")
        ax.set_title(title)
    axes[0].set_ylabel("o is off by, in %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def print_rates(card: dict[str, Any], S: int = LENGTHS[-1]) -> None:
    """TFLOP/s of both formats' kernels without a mask, and their shares of a plain matmul of that format."""
    plain = {"hopper": card["provenance"]["ceilings"]["matmul_fp16_tflops"]}
    plain["fp8"] = tflops(card, "matmul, blocks", 128, S, False)
    print(f"full, S = {S:,}".ljust(22), *(f"{words:>26}" for words in (SPEEDS[name] for name in plain)))
    print("a plain matmul".ljust(22), *(f"{rate:18,.0f} TFLOP/s" for rate in plain.values()))
    print(f"{'… in one chain':48}{tflops(card, 'matmul, chain', 128, S, False):19,.0f} TFLOP/s")
    for D in (64, 128):
        rates = {name: tflops(card, name, D, S, False) for name in plain}
        cells = (f"{rate:12,.0f} TFLOP/s, {rate / plain[name]:3.0%}" for name, rate in rates.items())
        print(f"attention, D = {D}".ljust(22), *cells)


def plot_gains(card: dict[str, Any]) -> Figure:
    """A panel for each D and mask: how many times as fast as chapter 9's fp16, against S. Bars: the 20th to the 80th
    percentile of FP8's times."""
    figure = Figure(figsize=(8, 5.6))
    looks = {
        "fp8": ("vermilion", "-", "o"),
        "fp8 and quantiser": ("blue", "--", "s"),
        "fp8, rotation and quantiser": ("black", ":", "^"),
    }
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for ax, (D, is_causal) in zip(panels.flat, itertools.product((64, 128), (False, True)), strict=True):
        ax.axhspan(0, 1, color="black", alpha=0.08, lw=0)
        for name, (colour, line, marker) in looks.items():
            fp16, found = (
                [row(card, kernel="speed", provider=who, D=D, S_q=S, is_causal=is_causal) for S in SPEED_LENGTHS]
                for who in ("hopper", name)
            )
            gain, low, high = (
                np.array([one["ms"] / other[key] for one, other in zip(fp16, found, strict=True)])
                for key in ("ms", "ms_80", "ms_20")
            )
            bars = np.stack([gain - low, high - gain])
            look = {"color": COLOURS[colour], "linestyle": line, "marker": marker, "capsize": 3}
            ax.errorbar(SPEED_LENGTHS, gain, yerr=bars, label=CHOICES[name], **look)
        ax.set_xscale("log", base=2)
        ax.set_xticks(SPEED_LENGTHS, [f"{S:,}" for S in SPEED_LENGTHS])
        ax.minorticks_off()
        ax.set_xlim(800, 21_000)
        ax.set_ylim(0.4, 1.7)
        ax.set_title(f"D = {D}, {mask(is_causal)}")
    panels[0, 0].text(20_000, 0.43, "slower than fp16", ha="right", va="bottom")
    for ax in panels[1]:
        ax.set_xlabel("S")
    for ax in panels[:, 0]:
        ax.set_ylabel("times as fast as fp16")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
