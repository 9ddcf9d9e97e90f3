"""TFLOP/s against S from stored results. Call fa_tutorial.figures.style() first: it sets the look."""

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fa_tutorial import ledger
from fa_tutorial.bench import results
from fa_tutorial.bench.cases import GRIDS, LABELS, MODES, Grid
from fa_tutorial.bench.tables import label, mask, table
from fa_tutorial.figures import GREY

MARKERS = "osD^vP*X<h"
# Past the style's seven colours: colours, and dashes.
PAST_CYCLE = (("#8C510A", (3, 1, 1, 1)), ("#6A3D9A", (4, 2)), ("#999999", (1, 1)))


def look(provider: str) -> dict[str, Any]:
    """Colour, dash and marker of a provider of LABELS, each of which tells it apart: the same in every figure."""
    place, more = list(LABELS).index(provider), ({"color": c, "linestyle": (0, dashes)} for c, dashes in PAST_CYCLE)
    return [*matplotlib.rcParams["axes.prop_cycle"], *more][place] | {"marker": MARKERS[place], "markersize": 5}


def tflops_against_length(ax: Axes, tflops: pd.DataFrame, D: int, is_causal: bool) -> None:
    """One curve a provider, all of them of LABELS, over the points with this D and mask; one without a number is a gap.
    tflops: tables.table's."""
    curves = tflops.loc[D, is_causal]
    for provider in curves:
        is_known = curves[provider].notna()
        # no two neighbours to join
        lone = {} if (is_known & is_known.shift(fill_value=False)).any() else {"linestyle": "none"}
        ax.plot(curves.index, curves[provider], label=label(provider), **look(provider) | lone)
    ax.set_xscale("log", base=2)
    ax.set_xticks(curves.index, curves.index.astype(str))
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    ax.set(title=f"D = {D}, {mask(is_causal)}", xlabel="S", ylabel="TFLOP/s")


def draw(cards: Sequence[dict], grid: Grid, mode: str, dtype: str) -> Figure:
    """Speed on each card, of results.load's, that has rows of this grid, mode and dtype; ValueError if none has. A
    panel for each D and mask, a card's on one scale and the cards' below one another."""
    found = []
    for card in cards:
        with contextlib.suppress(ValueError):  # no such row in this card's file
            tflops = table(card["rows"], grid, mode, dtype)
            found.append((card["provenance"]["gpu"], tflops.filter(LABELS)))
    if not found:
        raise ValueError(f"no row of {mode}, {dtype} is stored on this grid: {grid.about}")
    rows = list(itertools.product(found[0][1].index.unique("D"), found))
    figure = Figure(figsize=(9, 3.5 * len(rows) + 0.9))
    panels = figure.subplots(len(rows), 2, squeeze=False, sharey="row")
    for pair, (D, (gpu, tflops)) in zip(panels, rows, strict=True):
        for ax, is_causal in zip(pair, (False, True), strict=True):
            tflops_against_length(ax, tflops, D, is_causal)
            if len(found) > 1:
                ax.set_title(f"{gpu}: {ax.get_title()}")
        pair[1].set_ylabel("")
        highest = tflops.max(axis=None)
        pair[0].set_ylim(0, 1.05 * highest if highest > 0 else 1)
    figure.suptitle(f"{MODES[mode]}, {dtype}, {', '.join(gpu for gpu, _ in found)}: {grid.about}")
    legend = {name: line for ax in panels.flat for line, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=4)
    return figure


def other_cards(ax: Axes, x: str, y: str, **wanted: Any) -> None:
    """A thin curve for each GPU but the H200 whose results are stored, labelled with its name: its kernels whose
    fields equal `wanted`."""
    for card in results.cards()[1:]:
        with contextlib.suppress(ValueError):  # no such row in this card's file
            rows = results.select(card["kernels"], **wanted).dropna(subset=y).sort_values(x)
            name = card["provenance"]["gpu"]
            ax.plot(rows[x], rows[y], color=GREY, linestyle="-", linewidth=1, marker=".", label=name)


def memory_and_speed(names: dict[str, str]) -> Figure:
    """Chapter 5's plot on the H200, of D = 64 in fp16: extra memory of one sequence of S tokens with 16 heads, and
    TFLOP/s of 16,384 tokens in sequences of S, with 32. names: each provider's, in the legend."""
    card = results.load("h200")
    layer = {"mode": "fwd", "dtype": "fp16", "D": 64, "is_causal": False}
    figure, (memory, speed) = plt.subplots(1, 2, figsize=(9, 4.2))
    for (provider, name), style in zip(names.items(), ("o-", "s--", "^:", "D-."), strict=True):
        rows = results.select(card["rows"], provider=provider, **layer)
        marks = {"label": name, "fillstyle": "none" if provider == "basic" else "full", "markersize": 8}
        single = rows[(rows["H_q"] == 16) & (rows["B"] == 1)].dropna(subset="ms")  # no row of cuDNN's
        memory.loglog(single["S_q"], single["peak_bytes"] / 2**20, style, **marks)
        several = rows[rows["H_q"] == 32].sort_values("S_q")
        speed.plot(several["S_q"], several["tflops"], style, **marks)
    figure.suptitle("forward on an H200, D = 64, fp16")
    memory.set(title="one sequence, 16 heads", ylabel="extra memory at the peak, MiB", ylim=(0.5, 1e6))
    speed.set(title="16,384 / S sequences, 32 heads", ylabel="TFLOP/s", ylim=(0, 700))
    speed.axhline(card["provenance"]["ceilings"]["matmul_fp16_tflops"], color=GREY, linestyle="-", linewidth=1)
    speed.text(512, 610, "a plain matmul")
    most = card["provenance"]["memory_bytes"] / 2**20
    memory.axhline(most, color=GREY, linestyle=":")
    memory.text(512, 1.5 * most, f"{most / 1024:.0f} GiB")
    computed = 2 * 16 * 65_536**2 * 2 / 2**20  # s and p of naive attention
    memory.plot(65_536, computed, "o", color="C0", fillstyle="none", markersize=8)
    memory.text(55_000, computed, "computed", ha="right", va="center")
    memory.text(8_192, 3, "both flash kernels")
    for axes, ticks in ((memory, (1_024, 4_096, 16_384, 65_536)), (speed, (1_024, 4_096, 16_384))):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{S:,}" for S in ticks])
        axes.set_xlabel("S")
    figure.legend(*speed.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def backward_speed(card: dict[str, Any], yours: dict[int, float]) -> Figure:
    """Chapter 7's plot: the backward pass, TFLOP/s against S by five matmuls, and of `basic` by seven. yours: of the
    reader's kernels at S = 4,096, by D, where there is a GPU."""
    tflops = table(card["rows"], GRIDS["literature"], "bwd", "fp16")[["sdpa_flash", "sdpa_cudnn", "basic"]]
    seven = ledger.SPLIT_BACKWARD_MATMULS / ledger.BACKWARD_MATMULS
    figure, panels = plt.subplots(1, 2, figsize=(9, 4.4), sharey=True)
    for ax, D in zip(panels, (64, 128), strict=True):
        tflops_against_length(ax, tflops, D, False)
        basic = tflops.loc[D, False]["basic"]
        ax.plot(basic.index, seven * basic, color="black", linestyle="-", label="basic, counting seven")
        cudnn = tflops.loc[D, False]["sdpa_cudnn"]
        ax.plot(cudnn.index[-1], seven * cudnn.iloc[-1], "ko", fillstyle="none", label="cuDNN, if it computed seven")
        matmul = card["provenance"]["ceilings"]["matmul_fp16_tflops"]
        ax.axhline(matmul, color=GREY, linewidth=1, linestyle="-", label="a plain matmul")
        if D in yours:
            ax.plot(4_096, yours[D], "*", color="black", markersize=14, label="your kernels, here")
        ax.set_ylim(0, 760)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


ONE_LOOP_COLORS = {
    "dkdv_kernel": "C0",
    "dkdv's steps": "C0",
    "dq_kernel": "C2",
    "matmul": "C5",
    "trans": "C3",
    "adds": "C1",
    "matmul, trans,": "0.85",  # three in one
}


def one_loop(card: dict[str, Any]) -> Figure:
    """Chapter 7's trial, 16 heads and S = 4,096: what the time of two loops is made of, and that of one, whose parts
    were added one by one."""
    figure, axes = plt.subplots(2, figsize=(9, 5), layout="constrained", sharex=True)
    for ax, D in zip(axes, (64, 128), strict=True):
        rows = results.select(card["kernels"], kernel="one_loop", D=D).set_index("provider")
        ms, tile = rows["ms"], rows.loc["with dq's matmul", "tile"].split(",")[0]
        steps = {"dkdv's steps": "in the one loop's tile"}
        if D == 64:
            steps |= {"matmul": "with a fifth matmul", "trans": "of transposed ds"}
        steps["dq to its\nplaces" if D == 64 else "matmul, trans,\nplaces"] = "with dq's matmul"
        ends = {name: ms[step] for name, step in steps.items()} | {"adds": ms["one loop"]}
        bars = {"two loops": {"dkdv_kernel": ms["dkdv_kernel"], "dq_kernel": ms["two loops"]}, "one loop": ends}
        for place, parts in enumerate(bars.values()):
            start = 0.0
            for name, end in parts.items():
                color = ONE_LOOP_COLORS.get(name.split("\n")[0], "C4")
                bar = ax.barh(place, end - start, 0.7, start, color=color, edgecolor="black")
                label, look = f"{name}\n{end - start:.2f}", {"fontsize": "x-small", "fontweight": "bold"}
                if end - start < 0.05:  # above its part, and away from its neighbour's
                    edge, side = (end - 0.01, "right") if name == "matmul" else (start + 0.01, "left")
                    ax.text(edge, place - 0.37, label.replace("\n", " "), ha=side, va="bottom", **look)
                else:
                    dark = "black" if color in ("C4", "0.85") else "white"
                    ax.bar_label(bar, [label], label_type="center", color=dark, **look)
                start = end
            ax.text(start, place, f"  {start:.2f} ms", va="center")
        ax.set_yticks(range(len(bars)), bars)
        used, spilled = rows.loc["with dq's matmul", ["registers", "spilled_registers"]]
        room = f"{used:.0f} registers a thread, {spilled:.0f} spilled to memory"
        ax.set_title(f"D = {D}, one loop in its fastest tile, {tile}: {room}", fontsize="medium", loc="left")
        ax.set_xlim(0, 1.12 * ms["one loop"])
        ax.invert_yaxis()
    axes[-1].set_xlabel("ms, 16 heads, S = 4,096")
    return figure


def training_losses(runs: dict[str, Sequence[float]], guess: float) -> Figure:
    """Chapter 7's training, right and spoiled: the loss at each step, by a run's name. guess: of guessing."""
    figure, ax = plt.subplots(figsize=(8.5, 2.8), layout="constrained")
    # the right run shows beneath another
    looks = ({"linewidth": 5, "alpha": 0.4}, {"linestyle": "--"}, {"linestyle": ":"})
    for (name, losses), look in zip(runs.items(), looks, strict=True):
        ax.plot(pd.Series(losses).rolling(5, min_periods=1, center=True).mean(), label=name, **look)
    ax.axhline(guess, color=GREY, linewidth=1, label="guessing")
    ax.set(xlabel="step", ylabel="loss (mean of 5 steps)", ylim=(0, None))
    ax.legend(loc="upper right", bbox_to_anchor=(1, 0.9), ncols=2)
    return figure
