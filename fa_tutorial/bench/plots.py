"""TFLOP/s against S from stored results. Call fa_tutorial.figures.style() first: it sets the look."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fa_tutorial.arguments import check_name
from fa_tutorial.bench.cases import LABELS, MODES, Grid, Shape, in_order, rows_of
from fa_tutorial.bench.tables import label

MARKERS = "osD^vP*Xh"
PAST_CYCLE = (
    {"color": "#8C510A", "linestyle": (0, (3, 1, 1, 1))},
    {"color": "#999999", "linestyle": (0, (1, 1))},
)  # past the style's seven


def look(provider: str) -> dict[str, Any]:
    """Colour, dash and marker of a provider of LABELS: the same in every figure, and each of the three tells it apart."""
    place = list(LABELS).index(provider)
    cycle = list(matplotlib.rcParams["axes.prop_cycle"])
    return [*cycle, *PAST_CYCLE][place] | {"marker": MARKERS[place], "markersize": 5}


def tflops_against_length(
    ax: Axes, found: dict[tuple[str, Shape], dict[str, Any]], shapes: tuple[Shape, ...], D: int, is_causal: bool
) -> None:
    """One curve a provider over the shapes with this D and mask. A row without a number is a gap. found: rows_of's."""
    shapes = sorted((shape for shape in shapes if (shape.D, shape.is_causal) == (D, is_causal)), key=lambda shape: shape.S_q)
    lengths = [shape.S_q for shape in shapes]
    for provider in in_order(provider for provider, _ in found):
        if provider in LABELS:
            rows = [found.get((provider, shape)) for shape in shapes]
            heights = [math.nan if row is None or row["tflops"] is None else row["tflops"] for row in rows]
            ax.plot(lengths, heights, label=label(provider), **look(provider))
    ax.set_xscale("log", base=2)
    ax.set_xticks(lengths, [str(S) for S in lengths])
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    ax.set(title=f"D = {D}, {'causal' if is_causal else 'full'}", xlabel="S", ylabel="TFLOP/s")


def draw(rows: list[dict[str, Any]], grid: Grid, mode: str, dtype: str, gpu: str, providers: Sequence[str] | None = None) -> Figure:
    """A panel for each D and mask of the grid, all on one scale. The steps of the tuning are left out. ValueError where no row is stored.

    providers: those of LABELS to draw, as far as they have a number; None draws all, and one that has only rows without a number keeps its
    place in the legend.
    """
    if providers is not None:
        asked = [check_name("provider", provider, LABELS) for provider in providers]
        rows = [row for row in rows if row["provider"] in asked and row["tflops"] is not None]
    found = rows_of(rows, grid.shapes, mode=mode, dtype=dtype)
    dims = sorted({shape.D for shape in grid.shapes})
    figure = Figure(figsize=(9, 3.5 * len(dims) + 0.9))
    panels = figure.subplots(len(dims), 2, squeeze=False, sharey=True)
    for ax, (D, is_causal) in zip(panels.flat, itertools.product(dims, (False, True)), strict=True):
        tflops_against_length(ax, found, grid.shapes, D, is_causal)
    for ax in panels[:, 1]:
        ax.set_ylabel("")
    highest = max((row["tflops"] or 0 for (provider, _), row in found.items() if provider in LABELS), default=0)
    panels[0, 0].set_ylim(0, 1.05 * highest or 1)
    figure.suptitle(f"{MODES[mode]}, {dtype}, {gpu}: {grid.about}")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure
