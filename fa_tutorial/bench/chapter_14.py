"""Chapter 14: the numbers that its errors are measured on, and what its page shows of the stored results.

tools/measure measures what is stored.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure

from fa_tutorial.bench import results
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
WAYS = ("fp16", "fp8", "fp8, rotated")
LENGTHS = (1024, 4096, 16_384)


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


def error_of(x: torch.Tensor, truth: torch.Tensor) -> dict[str, float]:
    """Root mean square and mean of x − truth, each over the root mean square of truth."""
    error, size = x.double() - truth, float(truth.square().mean().sqrt())
    return {
        "rms": float(f"{float(error.square().mean().sqrt()) / size:.3g}"),
        "mean": float(f"{float(error.mean()) / size:.3g}"),
    }


def modelled(kind: str, K: int, way: str, rows: int = 8) -> dict[str, float]:
    """error_of of sums by tensor_core_sum: one chain, or blocks of 128 added in float64."""
    a, b = factors(kind, rows, K)
    zeros = torch.zeros(rows, rows, dtype=torch.float64)
    if way == "chain":
        return error_of(tensor_core_sum(a, b, zeros), a @ b.T)
    return error_of(
        sum(tensor_core_sum(a[:, i : i + 128], b[:, i : i + 128], zeros) for i in range(0, K, 128)), a @ b.T
    )


# ---------------------------------------------------------------- what the notebook shows; card: results.load's


def row(card: dict[str, Any], **wanted: Any) -> dict[str, Any]:
    """The one stored row of this chapter whose fields equal `wanted`."""
    return results.select(card["kernels"], chapter=14, **wanted).iloc[0].to_dict()


def tflops(card: dict[str, Any], provider: str, D: int, S: int, is_causal: bool) -> float:
    return row(card, kernel="speed", provider=provider, D=D, S_q=S, is_causal=is_causal)["tflops"]


def print_sums(card: dict[str, Any]) -> None:
    """Chains of K products, of the model and of the GPU: the mean error, in % of the sums' root mean square."""
    print(f"{'one chain, mean error in %':34}{'model':>9}{'H200':>9}")
    for kind, K in itertools.product(("uniform", "p v, mean 0", "p v, mean 1"), LENGTHS):
        stored = row(card, kernel="sums", data=kind, K=K, provider="chain")
        means = (round(100 * found["mean"], 2) + 0.0 for found in (modelled(kind, K, "chain"), stored))  # no −0
        print(f"{kind:14} K = {K:6,}        " + "".join(f"{mean:9.2f}" for mean in means))


def print_unrounded_sums(rows: int = 8) -> None:
    """The model's chains of factors not rounded to e4m3: the mean error in %, and what a unit of 1/4 cuts."""
    generator = torch.Generator().manual_seed(14)
    a, b, even = (torch.rand(rows, 16_384, generator=generator).double() for _ in range(3))
    kinds = {"uniform": (a, b), "products even in [0, 1/2]": (torch.ones_like(even), even / 2)}
    print("\nthe model, factors not rounded")
    for (kind, (x, y)), K in itertools.product(kinds.items(), (LENGTHS[0], LENGTHS[-1])):
        truth = x[:, :K] @ y[:, :K].T
        found = error_of(tensor_core_sum(x[:, :K], y[:, :K], torch.zeros_like(truth)), truth)
        print(f"{kind:25} K = {K:6,}{100 * found['mean']:11.2f}")
    for kind, (x, y) in kinds.items():
        below, cut = (x * y < 1 / 4).double().mean(), 4 * (x * y % (1 / 4)).mean()
        print(f"{kind}: {below:.0%} of the products are below 1/4, which cuts {cut:.2f} units on average")


def print_errors(card: dict[str, Any], *kinds: str) -> None:
    """Errors of o on the GPU: root mean square and mean, in % of o's root mean square."""
    print("H200, in % of o's rms     D = 64             D = 128")
    for kind in kinds:
        print(kind)
        for way in WAYS:
            found = [row(card, kernel="error", provider=way, data=kind, D=D) for D in (64, 128)]
            print(f"  {way:20}" + "".join(f"{100 * r['rms']:8.3f} ({100 * r['mean']:+.3f})" for r in found))


def print_speeds(card: dict[str, Any]) -> None:
    """How many times as fast as chapter 9's fp16 the three ways are, by D and S, and what the quantiser adds."""
    ways = list(SPEEDS)[:3]
    print("times fp16, the geometric mean of full and causal")
    print(f"{'':32}{'FP8 alone':>11}{'+ quantiser':>13}{'+ rotation':>13}")
    for D, lengths in itertools.product((64, 128), ((1024,), (4096, 16_384))):
        gains = "".join(f"{speedup(card, name, D, lengths):13.2f}" for name in ways)
        print(f"D = {D:3}, S = {' and '.join(f'{S:,}' for S in lengths):16}{gains}")
    for S in (1024, 16_384):
        added = [quantiser_share(card, D, S, is_causal) for D, is_causal in itertools.product((64, 128), (False, True))]
        print(f"S = {S:6,}: the quantiser adds {min(added):.1%} to {max(added):.1%} of the kernel's time")


def plot_chains(errors: dict[tuple[str, int, int], float]) -> Figure:
    """o's error in % against the number of keys, one line for each way to sum l and each mean of v.

    errors: by (way, mean, keys); the two ways are the panels' titles.
    """
    figure = Figure(figsize=(8, 3.2))
    ways, means, lengths = (list(dict.fromkeys(key[i] for key in errors)) for i in range(3))
    looks = {0: ("blue", "-", "o"), 1: ("orange", "--", "s"), 3: ("vermilion", "-.", "^")}
    for ax, way in zip(figure.subplots(1, 2, sharey=True), ways, strict=True):
        for mean in means:
            colour, line, marker = looks[mean]
            found = [errors[way, mean, keys] for keys in lengths]
            ax.plot(lengths, found, color=COLOURS[colour], linestyle=line, marker=marker, label=f"v has mean {mean}")
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(lengths, [f"{keys:,}" for keys in lengths])
        ax.minorticks_off()
        ax.set_ylim(0.02, 200)
        ax.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
        ax.set_xlabel("keys")
        ax.set_title(way)
    figure.axes[0].set_ylabel("o is off by, in %")
    figure.get_layout_engine().set(wspace=0.08)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def quantiser_share(card: dict[str, Any], D: int, S: int, is_causal: bool) -> float:
    """What the quantiser adds, without the rotation, to the kernel alone, as a share of the latter's time."""
    alone, both = (
        row(card, kernel="speed", provider=name, D=D, S_q=S, is_causal=is_causal)["ms"] for name in list(SPEEDS)[:2]
    )
    return both / alone - 1


def speedup(card: dict[str, Any], name: str, D: int, lengths: tuple[int, ...] = (4096, 16_384)) -> float:
    """How many times as fast as chapter 9's fp16: the geometric mean over these S, causal and not."""
    points = itertools.product(lengths, (False, True))
    return math.exp(
        np.mean([math.log(tflops(card, name, D, *point) / tflops(card, "hopper", D, *point)) for point in points])
    )


def plot_speeds(card: dict[str, Any]) -> Figure:
    """A panel for each D and mask: TFLOP/s against S."""
    figure = Figure(figsize=(9, 6.4))
    looks = {
        "matmul, blocks": ("black", ":", "^"),
        "fp8": ("vermilion", "-", "o"),
        "fp8 and quantiser": ("orange", "--", "s"),
        "hopper": ("blue", "-", "v"),
        "sdpa_cudnn": ("sky", "--", "P"),
    }
    panels = figure.subplots(2, 2, sharex=True, sharey="row")
    for ax, (D, is_causal) in zip(panels.flat, itertools.product((64, 128), (False, True)), strict=True):
        for name, (colour, line, marker) in looks.items():
            rates = [tflops(card, name, D, S, is_causal) for S in LENGTHS]
            ax.plot(LENGTHS, rates, color=COLOURS[colour], linestyle=line, marker=marker, label=SPEEDS[name])
        ax.set_xscale("log", base=2)
        ax.set_xticks(LENGTHS, [f"{S:,}" for S in LENGTHS])
        ax.minorticks_off()
        ax.set_ylim(bottom=0)
        ax.set_title(f"D = {D}, {mask(is_causal)}")
    for ax in panels[1]:
        ax.set_xlabel("S")
    for ax in panels[:, 0]:
        ax.set_ylabel("TFLOP/s")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
