"""TFLOP/s against S from stored results. Call fa_tutorial.figures.style() first: it sets the look."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fa_tutorial.bench.cases import LABELS, MODES, Grid
from fa_tutorial.bench.tables import label, mask, table

MARKERS = "osD^vP*X<h"
# Past the style's seven colours.
PAST_CYCLE = [
    {"color": "#8C510A", "linestyle": (0, (3, 1, 1, 1))},
    {"color": "#6A3D9A", "linestyle": (0, (4, 2))},
    {"color": "#999999", "linestyle": (0, (1, 1))},
]


def look(provider: str) -> dict[str, Any]:
    """Colour, dash and marker of a provider of LABELS: the same in every figure, and each of the three tells it apart."""
    place = list(LABELS).index(provider)
    cycle = list(matplotlib.rcParams["axes.prop_cycle"])
    return [*cycle, *PAST_CYCLE][place] | {"marker": MARKERS[place], "markersize": 5}


def tflops_against_length(ax: Axes, tflops: pd.DataFrame, D: int, is_causal: bool) -> None:
    """One curve a provider, all of them of LABELS, over the points with this D and mask; one without a number is a gap. tflops: tables.table's."""
    curves = tflops.loc[D, is_causal]
    for provider in curves:
        is_known = curves[provider].notna()
        lone = {} if (is_known & is_known.shift(fill_value=False)).any() else {"linestyle": "none"}  # no two neighbours to join
        ax.plot(curves.index, curves[provider], label=label(provider), **look(provider) | lone)
    ax.set_xscale("log", base=2)
    ax.set_xticks(curves.index, curves.index.astype(str))
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    ax.set(title=f"D = {D}, {mask(is_causal)}", xlabel="S", ylabel="TFLOP/s")


def draw(rows: pd.DataFrame, grid: Grid, mode: str, dtype: str, gpu: str, providers: Sequence[str] = tuple(LABELS)) -> Figure:
    """A panel for each D and mask of the grid, all on one scale; the curves of `providers`, as far as they are stored."""
    tflops = table(rows, grid, mode, dtype)
    tflops = tflops[tflops.columns.intersection(list(providers))]
    dims = tflops.index.unique("D")
    figure = Figure(figsize=(9, 3.5 * len(dims) + 0.9))
    panels = figure.subplots(len(dims), 2, squeeze=False, sharey=True)
    for ax, (D, is_causal) in zip(panels.flat, itertools.product(dims, (False, True)), strict=True):
        tflops_against_length(ax, tflops, D, is_causal)
    for ax in panels[:, 1]:
        ax.set_ylabel("")
    highest = tflops.max(axis=None)
    panels[0, 0].set_ylim(0, 1.05 * highest if highest > 0 else 1)
    figure.suptitle(f"{MODES[mode]}, {dtype}, {gpu}: {grid.about}")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure
