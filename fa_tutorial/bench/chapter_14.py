"""Chapter 14: the numbers that its errors are measured on, and what its page shows of the results that tools/measure
stored. card: results.load's."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import nn

from fa_tutorial import fp8, hardware
from fa_tutorial.bench import results, training
from fa_tutorial.figures import COLOURS
from fa_tutorial.fp8.model import to_e4m3

SPEEDS = {
    "hopper": "fp16, chapter 9",
    "fp8": "FP8, kernel alone",
    "fp8 and quantiser": "FP8, quantising q, k, v",
    "fp8, rotation and quantiser": "… and rotating q, k",
    "matmul, blocks": "FP8 matmul, equal FLOPs",
}
LENGTHS = (1024, 4096, 16_384)
PROBES = {  # factors of products that one instruction adds up
    "2¹³ + 31 · 1.5": [(128, 64)] + 31 * [(1.5, 1)],
    "2¹³ − 31 · 1.5": [(128, 64)] + 31 * [(-1.5, 1)],
    "2¹⁴ + 30 · 1 − 2¹⁴": [(128, 128)] + 30 * [(1, 1)] + [(-128, 128)],
    "192² + 30 · 2 − 192²": [(192, 192)] + 30 * [(2, 1)] + [(-192, 192)],
}
ONES = (1024, 16_384, 20_000)  # to be added up
S_SPEED = 16_384
as_in_chapter_9 = fp8.sums_in_one_chain  # the page asks what it does before it says so


class Kind(NamedTuple):
    """S: keys and queries; outliers: one of 1,000 numbers gets a sample of N(0, 100) added; mean: of v."""

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
    """Two matrices (rows, K) of numbers of e4m3, in float64: uniform in [0, 1], or for "p v, mean 1"
    p · 2⁸ of N(0, 1) scores, and v of that mean."""
    generator = torch.Generator().manual_seed(14)
    draw = torch.rand if kind == "uniform" else torch.randn
    found = [draw(rows, K, generator=generator) for _ in range(2)]
    if kind != "uniform":
        found[0] = 2**8 * torch.exp(found[0] - found[0].amax(dim=1, keepdim=True))
        found[1] += float(kind[-1])
        found[1] *= 448 / found[1].abs().max()
    return [to_e4m3(x).double() for x in found]


def peaked(K: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A row of p · 2⁸ in which one heavy key comes first, and all others are light; and a column of ones."""
    p = to_e4m3(torch.full((1, K), 0.03)).double()
    p[0, 0] = 2**8
    return p, torch.ones(1, K, dtype=torch.float64)


def rms(x: torch.Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def error_of(x: torch.Tensor, truth: torch.Tensor) -> dict[str, float]:
    """Root mean square and mean of x − truth, each over the root mean square of truth."""
    error = x.double() - truth
    return {"rms": float(f"{rms(error) / rms(truth):.3g}"), "mean": float(f"{float(error.mean()) / rms(truth):.3g}")}


def parts(kind: str, S: int, D: int = 64) -> list[torch.Tensor]:
    """q, k and v of data's one head, (S, D), in float64."""
    return [x[0, 0].double() for x in data(kind, 1, S, D)]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores, scaled, and o."""
    s = q @ k.T / q.shape[1] ** 0.5
    return s, torch.softmax(s, dim=1) @ v


def median_off(x: torch.Tensor, truth: torch.Tensor) -> float:
    """How far off the median row is, in % of its own size: by their root mean squares."""
    error, size = (y.double().square().mean(dim=-1).sqrt() for y in (x.double() - truth, truth))
    return 100 * (error / size).median().item()


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
SEEDS = range(10)  # of the other models, whose results are stored
REMEDIES = {"plain": (False, False), "rotated": (True, False), "k's mean": (False, True), "both": (True, True)}
TRAINED = Path(__file__).with_name("trained_fp8.json")


def trained(seed: int) -> training.TinyTransformer:
    """A model that has learned to repeat 20 tokens, as chapter 11's has."""
    return training.train_copier(training.ATTENTIONS["sdpa_math"], COPIER, seed=seed)


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
    """q, k and v of each head of the model, (1, 1, keys, D) fp16: all texts joined to one row of keys."""
    heads, attention = [], training.ATTENTIONS["sdpa_math"]

    def noted(q, k, v):
        heads.extend([x[:, h].flatten(0, 1)[None, None].half() for x in (q, k, v)] for h in range(COPIER.heads))
        return attention(q, k, v)

    wrong_tokens(model, noted, texts)
    return heads


def print_keys(heads: list[list[torch.Tensor]]) -> None:
    """The largest number of k in a model's heads, and the largest offset that all keys share, over k's rms."""
    peak = max(float(k.abs().max()) / rms(k) for _, k, _ in heads)
    offset = max(rms(k.double().mean(dim=2)) / rms(k) for _, k, _ in heads)
    print(f"in your model's k the largest number is {peak:.1f} times the rms, and the offset {offset:.2f} times")


def print_trained(wrong: dict[str, int]) -> None:
    """Wrong tokens of your model, by way, and the mean of the stored ones."""
    print(f"{f'wrong of {COPIED * COPIER.half:,} tokens':26}" + "".join(f"{name:>10}" for name in wrong))
    print(f"{'your model':26}" + "".join(f"{number:10}" for number in wrong.values()))
    models = pd.DataFrame(json.loads(TRAINED.read_text(encoding="utf-8"))["rows"])
    print(f"{f'{len(models)} other models, mean':26}" + "".join(f"{models[name].mean():10.1f}" for name in wrong))


# ---------------------------------------------------------------- what the notebook shows


def row(card: dict[str, Any], **wanted: Any) -> dict[str, Any]:
    """The one stored row of this chapter whose fields equal `wanted`."""
    return results.select(card["kernels"], chapter=14, **wanted).iloc[0].to_dict()


def speed(card: dict[str, Any], provider: str, is_causal: bool = False) -> dict[str, Any]:
    """The row of one of SPEEDS."""
    return row(card, kernel="speed", provider=provider, D=128, S_q=S_SPEED, is_causal=is_causal)


HEADS_OF_FOUR = (  # what is shown; kind, keys, a factor for q, and what the kernel's row is stored as
    ("N(0, 1), 512 keys", "N(0, 1)", 512, 1, None),
    ("N(0, 1), 4,096 keys", "N(0, 1)", 4096, 1, "fp8"),
    ("N(0, 1), 4,096 keys, q / 2", "N(0, 1)", 4096, 0.5, None),
    ("with outliers, 4,096 keys", "with outliers", 4096, 1, "fp8"),
    ("with outliers, 4,096 keys, rotated", "with outliers", 4096, 1, "fp8, rotated"),
)


def print_all_four(card: dict[str, Any], stores: Sequence[Callable], by_blocks: Callable, predicted: Callable) -> None:
    """The median row's error in % with all in e4m3, as predicted, and by a GPU's kernel; and with q and k in int8.

    stores: to e4m3 and back, to int8 and back. by_blocks: (scores, v) -> o, p in e4m3. predicted: (standard deviation
    of the scores) -> the error in %.
    """
    print(f"{'median row off, in %':34}{'in PyTorch':>12}{'(14.5)':>10}{'an H200':>11}{'q, k in int8':>15}")
    rotation = fp8.random_hadamard(128, torch.float64, torch.device("cpu")) / 128**0.5
    for words, kind, S, factor, stored in HEADS_OF_FOUR:
        found = []  # of the two heads that the kernel was given
        for q, k, v in zip(*(x[0].double() for x in data(kind, 2, S, 128)), strict=True):
            q = factor * q[:256]
            s, o = attend(q, k, v)
            if "rotated" in words:
                q, k = q @ rotation, k @ rotation
            found.append((s, o, *(by_blocks(attend(store(q), store(k), v)[0], stores[0](v)) for store in stores)))
        s, o, *stored_so = (torch.cat(x) for x in zip(*found, strict=True))
        ours, with_int8 = (median_off(x, o) for x in stored_so)
        kernel = row(card, kernel="error", provider=stored, data=kind, D=128) if stored else None
        measured = f"{100 * kernel['median']:11.1f}" if kernel else ""
        print(f"{words:34}{ours:12.1f}{predicted(s.std().item()):10.1f}{measured:11}{with_int8:15.1f}")


Lines = dict[str, tuple[torch.Tensor, torch.Tensor]]  # by label, moved scores, and which of them count


def plot_rotation(q: torch.Tensor, k: torch.Tensor, R: torch.Tensor, s_8: torch.Tensor, s_r: torch.Tensor) -> Figure:
    """The products of the score with the largest outlier, as it is and rotated by R; and how far positive scores move,
    by root mean square, against their size: s_8 of q and k rounded, and s_r of q R and k R rounded."""
    s = attend(q, k, q)[0]
    far = (q.abs() > 5).any(dim=1)[:, None] | (k.abs() > 5).any(dim=1)  # numbers of N(0, 1) alone stay below 5
    lines = {
        "an outlier in q or k": (s_8, far),
        "no outlier": (s_8, ~far),
        "an outlier, rotated": (s_r, far),
    }
    key = k.abs().amax(dim=1).argmax()
    query = s[:, key].argmax()
    products = {"as it is": q[query] * k[key], "rotated": (q @ R)[query] * (k @ R)[key]}
    figure = Figure(figsize=(9, 3.6))
    mosaic = figure.subplot_mosaic([["before", "scores"], ["after", "scores"]], gridspec_kw={"wspace": 0.12})
    axes = {name: mosaic[name] for name in ("before", "after", "scores")}
    axes["before"].sharey(axes["after"])
    for ax, (title, numbers), colour in zip(axes.values(), products.items(), ("vermilion", "black"), strict=False):
        ax.bar(range(len(numbers)), numbers, color=COLOURS[colour])
        ax.set_title(f"{title}: the sum is {numbers.sum():.1f}", fontsize="medium")
    axes["before"].set_xticks([])
    axes["after"].set_xlabel("channel i")
    figure.supylabel("products $q_i k_i$ of one score", fontsize="medium")
    ax, sizes = axes["scores"], [0, 1, 2, 3, 4, 5, 6, 8, 12]
    looks = (("vermilion", "-", "o"), ("blue", "--", "s"), ("black", ":", "^"))
    for (label, (moved, counts)), (colour, line, marker) in zip(lines.items(), looks, strict=False):
        parts = [counts & (low <= s) & (s < high) for low, high in itertools.pairwise(sizes)]
        found = [(s[part].mean(), (moved - s)[part].square().mean().sqrt()) for part in parts if part.sum() > 50]
        ax.plot(*zip(*found, strict=True), color=COLOURS[colour], linestyle=line, marker=marker, label=label)
    ax.set(xlabel="score (negative ones have little weight)", ylabel="moved by rounding, rms", ylim=(0, 0.25))
    ax.legend()
    return figure


def plot_off(panels: dict[str, dict[tuple[int, int], float]]) -> Figure:
    """o's error in % against the number of keys, one line for each mean of v, in a panel for each title; at the longest
    its value. Errors: by (mean, keys)."""
    figure = Figure(figsize=(3 + 2.4 * len(panels), 3.4))
    looks = {0: ("blue", "-", "o"), 1: ("orange", "--", "s"), 3: ("vermilion", "-.", "^")}
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, (title, errors) in zip(axes, panels.items(), strict=True):
        means, lengths = (list(dict.fromkeys(key[i] for key in errors)) for i in range(2))
        for mean in means:
            colour, line, marker = looks[mean]
            found = [errors[mean, keys] for keys in lengths]
            ax.plot(lengths, found, color=COLOURS[colour], linestyle=line, marker=marker, label=f"v has mean {mean}")
        last = sorted(errors[mean, lengths[-1]] for mean in means)
        for i, x in enumerate(last):
            over, under = i and x < 2 * last[i - 1], i + 1 < len(last) and last[i + 1] < 2 * x
            side = "bottom" if over else "top" if under else "center"
            ax.text(1.3 * lengths[-1], x, f"{x:.0f}" if x >= 1 else f"{x:.2f}", va=side, fontsize=10)
        ax.set_xscale("log", base=2)
        ax.set(yscale="log", xlim=(lengths[0] / 1.3, lengths[-1] * 2.6), ylim=(0.02, 200), xlabel="keys", title=title)
        ax.set_xticks(lengths, [f"{keys:,}" for keys in lengths])
        ax.minorticks_off()
        ax.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes[0].set_ylabel("o is off by, in %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def print_speeds(card: dict[str, Any]) -> None:
    """Of the attention of SPEEDS, D = 128 and S_SPEED: full, the time and the rate; and how many times as fast as
    chapter 9's in fp16, full and causal."""
    print(f"{f'D = 128, S = {S_SPEED:,}':24}{'ms':>9}{'TFLOP/s':>10}{'times as fast':>16}{'… and causal':>15}")
    for provider, words in itertools.islice(SPEEDS.items(), 4):
        found, fp16 = ([speed(card, who, is_causal) for is_causal in (False, True)] for who in (provider, "hopper"))
        gains = (one["tflops"] / other["tflops"] for one, other in zip(found, fp16, strict=True))
        print(f"{words:24}{found[0]['ms']:9.3f}{found[0]['tflops']:10,.0f}" + "{:16.2f}{:15.2f}".format(*gains))


PARTS = {
    "fp16": "fp16, chapter 9",
    "the whole kernel": "FP8, kernel alone",
    "without exponentials": "… without exponentials",
    "without joining acc": "… without joining acc",
    "without the sum of p": "… without the sum of p",
}


def cycles_of_a_block(card: dict[str, Any], part: str) -> int:
    """Cycles that a block of 64 queries and 128 keys takes an SM in one of PARTS."""
    blocks = 16 * S_SPEED // 64 * S_SPEED // 128 / card["provenance"]["multiprocessors"]  # of 16 heads, for each SM
    return round(row(card, kernel="part", provider=part)["cycles"] / blocks)


def print_parts(card: dict[str, Any]) -> None:
    """Cycles of a block of 64 queries and 128 keys, clock and power: of both kernels, and FP8 without a part."""
    print(f"{'a block of 64 x 128':26}{'cycles':>8}{'GHz':>8}{'watts':>8}")
    for part, words in PARTS.items():
        one = row(card, kernel="part", provider=part)
        print(f"{words:26}{cycles_of_a_block(card, part):8,}{one['mhz'] / 1000:8.3f}{one['watts']:8.0f}")
