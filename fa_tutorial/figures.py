"""Every image of the course, drawn by code, and the look of the notebooks' own plots.

`python -m fa_tutorial.figures` draws all of FIGURES into images/. A drawing's coordinates are inches from its top left corner, y
downwards as the rows of a matrix. Numbers in a drawing are computed by the package, not typed. Colours are those of Okabe and Ito
(2008), which readers with any colour vision tell apart; hatching, labels or line styles say the same thing again.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import textwrap
from collections.abc import Callable
from pathlib import Path

import matplotlib
import matplotlib.style
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Polygon, Rectangle
from matplotlib.text import Text

from fa_tutorial import ledger, softmax
from fa_tutorial.arguments import check_positive

IMAGES = Path(__file__).resolve().parents[1] / "images"

COLOURS = {
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "green": "#009E73",
    "orange": "#E69F00",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "black": "#000000",
    "yellow": "#F0E442",  # last: too pale for a line on white, good for an area
}
GREY = "#999999"
DARK = "#444444"
TENSOR_COLOUR = {"q": "blue", "k": "orange", "v": "green", "s": "yellow", "p": "yellow", "o": "purple"}  # acc is o in the making

DPI = 150
WIDTH = 9.0  # inches
SMALL, BODY, HEAD = 11, 12, 13  # points
MASKED = "////"  # hatching of what a mask leaves out

DRAWING_STYLE = {"font.family": "DejaVu Sans", "hatch.linewidth": 0.8, "text.hinting": "force_autohint", "text.usetex": False}


# ---------------------------------------------------------------- notebooks' plots


def style() -> None:
    """Set matplotlib's defaults for a notebook's plots. Lines differ in dash as well as in colour."""
    lines = ["-", "--", "-.", ":", (0, (8, 1)), (0, (1, 3)), (0, (6, 1, 1, 1, 1, 1))]
    matplotlib.rcParams.update(
        {
            "figure.figsize": (7, 3.6),
            "figure.dpi": 110,
            "figure.facecolor": "white",
            "figure.constrained_layout.use": True,
            "font.size": 11,
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": matplotlib.cycler(color=list(COLOURS.values())[: len(lines)], linestyle=lines),
            "grid.color": "#DDDDDD",
            "grid.linewidth": 0.8,
            "legend.frameon": False,
        }
    )


def roofline(ax: Axes, peak_flops: float, bandwidth: float, points: dict[str, tuple[float, float]]) -> None:
    """Draw the roofline (0.8) with its ridge marked, and a labelled point for each (intensity, flops), on log-log axes.

    peak_flops and flops in FLOP/s, bandwidth in byte/s, intensity in FLOP/byte, all above 0. The y axis is in TFLOP/s.
    """
    ridge = check_positive("peak_flops", peak_flops) / check_positive("bandwidth", bandwidth)
    intensities = [ridge, *(intensity for intensity, _ in points.values())]
    low, high = min(intensities) / 4, max(intensities) * 8
    corners = [low, ridge, high]  # straight lines on log-log axes
    roof = [ledger.attainable_flops(intensity, peak_flops, bandwidth) / 1e12 for intensity in corners]
    floor = min([roof[0], *(flops / 1e12 for _, flops in points.values())])
    ax.plot(corners, roof, color=COLOURS["black"], linestyle="-", linewidth=2)
    ax.axvline(ridge, color=GREY, linestyle=":")
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(floor / 3, 4 * roof[-1]))
    ax.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="TFLOP/s")
    ax.figure.draw_without_rendering()  # lays the axes out, so that labels can be placed by their extents
    labels = [place_label(ax, f"ridge: {ridge:.0f} FLOP/byte", (ridge, floor / 2), [])]
    colours = [colour for name, colour in COLOURS.items() if name not in ("black", "yellow")]
    for (name, (intensity, flops)), colour, marker in zip(
        points.items(), itertools.cycle(colours), itertools.cycle("osD^vP*"), strict=False
    ):
        ax.plot([intensity], [flops / 1e12], color=colour, marker=marker, markersize=9, linestyle="none")
        labels.append(place_label(ax, name, (intensity, flops / 1e12), labels))


def place_label(ax: Axes, text: str, point: tuple[float, float], others: list[Text]) -> Text:
    """Write `text` beside `point` (data coordinates), at the first of six places that is inside the axes and free of `others`."""
    frame, taken = ax.get_window_extent(), [other.get_window_extent() for other in others]
    label = ax.annotate(text, point, xytext=(0, 0), textcoords="offset points", va="center", fontsize=SMALL)
    for dx, dy in ((9, -9), (9, 9), (-9, 9), (-9, -9), (9, -25), (-9, 25)):
        label.set(position=(dx, dy), ha="left" if dx > 0 else "right")
        extent = label.get_window_extent()
        inside = frame.x0 <= extent.x0 and extent.x1 <= frame.x1 and frame.y0 <= extent.y0 and extent.y1 <= frame.y1
        if inside and not any(extent.overlaps(other) for other in taken):
            break
    return label


# ---------------------------------------------------------------- drawing helpers


def in_drawing_style(draw: Callable) -> Callable:
    """Run `draw` under DRAWING_STYLE alone, whatever the reader's matplotlib settings are."""

    @functools.wraps(draw)
    def wrapper(*args, **kwargs):
        with matplotlib.style.context(["default", DRAWING_STYLE]):
            return draw(*args, **kwargs)

    return wrapper


def canvas(height: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    """A white figure of width x height inches, and axes over all of it in inches from the top left corner."""
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()
    return figure, ax


def tint(colour: str, share: float = 0.3) -> tuple[float, ...]:
    """A colour of COLOURS mixed into white; share 1 is the colour itself."""
    return tuple(1 - share * (1 - part) for part in to_rgb(COLOURS[colour]))


def write(ax: Axes, x: float, y: float, text: str, size: float = SMALL, **options) -> None:
    """Text centred on (x, y) unless `options` (ha, va, weight, …) say otherwise."""
    ax.text(x, y, text, **{"fontsize": size, "ha": "center", "va": "center", **options})


def box(ax: Axes, x: float, y: float, width: float, height: float, text: str = "", colour: str | None = None, *, share: float = 0.3,
        size: float = SMALL, hatch: str | None = None, line: float = 1.0, dashed: bool = False, weight: str = "normal") -> None:  # fmt: skip
    """A rectangle from its top left corner, tinted with a colour of COLOURS (white without one), with text in its middle."""
    face = tint(colour, share) if colour else "white"
    edge = COLOURS["black"] if line > 1.5 else DARK if hatch else GREY  # hatching takes the colour of the edge
    look = {"facecolor": face, "edgecolor": edge, "hatch": hatch, "linewidth": line, "linestyle": "--" if dashed else "-"}
    ax.add_patch(Rectangle((x, y), width, height, zorder=2 if line > 1.5 else 1, **look))
    if text:
        behind = {"facecolor": face, "edgecolor": "none", "pad": 1} if hatch else None
        write(ax, x + width / 2, y + height / 2, text, size, weight=weight, zorder=3, bbox=behind)


def outline(ax: Axes, x: float, y: float, width: float, height: float, *, dashed: bool = False, line: float = 2.2) -> None:
    """A black frame over what is already drawn."""
    style = "--" if dashed else "-"
    ax.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=COLOURS["black"], linewidth=line, linestyle=style, zorder=2.5))


def grid(ax: Axes, x: float, y: float, rows: int, cols: int, side: float, look: Callable[[int, int], dict]) -> None:
    """rows x cols square cells; look(row, col) gives each one's options for `box`."""
    for row in range(rows):
        for col in range(cols):
            box(ax, x + col * side, y + row * side, side, side, **look(row, col))


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = "black", *, dashed: bool = False,
          curve: float = 0.0, width: float = 1.6) -> None:  # fmt: skip
    """An arrow between two points, bent by `curve` (a share of its length)."""
    ax.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=13, shrinkA=0, shrinkB=0, color=COLOURS[colour], linewidth=width,
            linestyle="--" if dashed else "-", connectionstyle=f"arc3,rad={curve}", zorder=2.8,
        )
    )  # fmt: skip


def number(value: float) -> str:
    """A number in at most four digits, −∞ for the maximum of nothing."""
    return "−∞" if value == -math.inf else f"{value:.4g}".replace("-", "−")


# ---------------------------------------------------------------- chapter 0

CHAPTER_TITLES = (
    "Why attention is slow", "Safe and online softmax", "Strides and first kernels", "Tiled matmul", "Flash forward in PyTorch",
    "Flash forward in Triton", "Backward by hand", "Flash backward in Triton", "Tuning", "Past Triton",
)  # fmt: skip
HANDS_ON = (
    "scores are too many to store", "softmax in one pass, block by block", "kernels that read tiles", "(q kᵀ) v, tile by tile",
    "the algorithm, proved", "o, and LSE for backward", "gradients of a tile, from LSE", "right kernels, both ways", "the plateau, and why",
)  # fmt: skip
PHASES = (
    ("phase 1", "the problem", "blue", (0, 1)), ("phase 2", "the machine", "orange", (2, 3)), ("phase 3", "forward", "green", (4, 5)),
    ("phase 4", "backward", "purple", (6, 7)), ("phase 5", "tuning", "sky", (8,)), ("after", "past Triton", "yellow", (9,)),
)  # fmt: skip


@in_drawing_style
def draw_course_map() -> Figure:
    """Five phases and what follows, left to right: each chapter, and what it hands to the next."""
    figure, ax = canvas(5.35)
    width, gap, top, bottom = 1.36, 0.13, 0.95, 4.2
    for column, (phase, name, colour, chapters) in enumerate(PHASES):
        x = 0.09 + column * (width + gap)
        middle = x + width / 2
        box(ax, x, 0.1, width, 0.65, colour=colour, share=0.6)
        write(ax, middle, 0.29, phase)
        write(ax, middle, 0.54, name, BODY, weight="bold")
        height = 1.1 if len(chapters) == 2 else bottom - top
        for chapter, y in zip(chapters, (top, bottom - height), strict=False):
            box(ax, x, y, width, height, f"{chapter}\n{textwrap.fill(CHAPTER_TITLES[chapter], 14)}", colour, share=0.2)
        if len(chapters) == 2:
            ax.plot([middle, middle], [top + height, top + height + 0.15], color="black", linewidth=1.6)
            write(ax, middle, (top + bottom) / 2, textwrap.fill(HANDS_ON[chapters[0]], 14), style="italic")
            arrow(ax, (middle, bottom - height - 0.2), (middle, bottom - height))
        if chapters[-1] < len(HANDS_ON):
            y, tall, tip = bottom + 0.15, 0.85, x + width + gap
            ax.add_patch(Polygon([(x, y), (x + width, y), (tip, y + tall / 2), (x + width, y + tall), (x, y + tall)],
                                 facecolor="white", edgecolor="black", linewidth=1.2))  # fmt: skip
            write(ax, middle, y + tall / 2, textwrap.fill(HANDS_ON[chapters[-1]], 14), style="italic")
    write(ax, WIDTH - 0.09, bottom + 0.57, "on arrows:\nwhat one hands\nto the next", ha="right")
    return figure


A100_SMS, A100_SHARED_KB = 108, 192  # FA1, section 2.1
H200_SMS, H200_SHARED_KB = 132, 227  # NVIDIA: SMs, and the shared memory that one block may ask for


@in_drawing_style
def draw_memory_hierarchy() -> Figure:
    """Registers, shared memory, L2, HBM: size and bandwidth on an A100 and an H200, each with its source."""
    figure, ax = canvas(4.75)
    a100_total, h200_total = A100_SMS * A100_SHARED_KB / 1024, H200_SMS * H200_SHARED_KB / 1024
    levels = (
        ("registers", "green", "256 KB an SM [b]", "256 KB an SM [b]"),
        ("shared memory\nand L1", "sky",
         f"{A100_SHARED_KB} KB an SM [a]\n{a100_total:.0f} MB together, 19 TB/s [a]",
         f"up to {H200_SHARED_KB} KB a block [b]\n{h200_total:.0f} MB on {H200_SMS} SMs"),
        ("L2 cache", "orange", "40 MB [b]", "50 MB usable [b]\n60 MB reported [c]"),
        ("HBM", "purple", "40 GB [a]\n1.5 TB/s [a]", "141 GB [b]\n4.3 TB/s, a copy [c]"),
    )  # fmt: skip
    top, tall, middle, half = 0.6, 0.85, 1.65, (0.5, 0.77, 1.04, 1.31, 1.58)
    write(ax, middle, 0.3, "small, fast, close to the arithmetic", style="italic")
    write(ax, middle, top + 4 * tall + 0.2, "large, slow, far away", style="italic")
    write(ax, 4.75, 0.3, f"A100, {A100_SMS} SMs [a]", BODY, weight="bold")
    write(ax, 7.6, 0.3, f"H200, {H200_SMS} SMs [b]", BODY, weight="bold")
    for i, (name, colour, a100, h200) in enumerate(levels):
        y = top + i * tall
        corners = [(middle - half[i], y), (middle + half[i], y), (middle + half[i + 1], y + tall), (middle - half[i + 1], y + tall)]
        ax.add_patch(Polygon(corners, facecolor=tint(colour, 0.4), edgecolor="black", linewidth=1.2))
        write(ax, middle, y + tall / 2, name, BODY)
        write(ax, 4.75, y + tall / 2, a100)
        write(ax, 7.6, y + tall / 2, h200)
        ax.plot([3.35, 8.9], [y, y], color=GREY, linewidth=0.8)
    sources = "[a] FlashAttention paper, 2022    [b] NVIDIA's documentation    [c] measured on an H200, or reported by it"
    write(ax, WIDTH / 2, 4.55, sources)
    return figure


def draw_flow(ax: Axes, y: float, kernel: str, left: float, right: float, reads: list[float], writes: list[float]) -> None:
    """A kernel's box from `left` to `right`, with an arrow down at each x in `reads` and one up at each in `writes`; tensors end at y."""
    box(ax, left, y + 1.0, right - left, 0.5, kernel, "sky", line=1.6)
    for x in reads:
        arrow(ax, (x, y), (x, y + 1.0), "blue")
    for x in writes:
        arrow(ax, (x, y + 1.0), (x, y), "vermilion", dashed=True)


def draw_hbm(ax: Axes, x: float, y: float, tensors: dict[str, str], width: float) -> list[float]:
    """A band of HBM with tensors side by side, name over number of elements, each `width` wide. Returns the middle of each."""
    box(ax, x, y, width * len(tensors) + 0.1, 1.15, colour="black", share=0.08)
    write(ax, x + 0.1, y + 0.2, "HBM", ha="left", weight="bold")
    middles = [x + 0.05 + (i + 0.5) * width for i in range(len(tensors))]
    for middle, (name, elements) in zip(middles, tensors.items(), strict=True):
        box(ax, middle - width / 2 + 0.05, y + 0.4, width - 0.1, 0.65, colour=TENSOR_COLOUR[name])
        write(ax, middle, y + 0.59, name, weight="bold", zorder=3)
        write(ax, middle, y + 0.86, elements, zorder=3)
    return middles


@in_drawing_style
def draw_naive_kernels() -> Figure:
    """What three kernels of naive attention, and one fused kernel, read from and write to HBM."""
    figure, ax = canvas(4.3)
    size = {"q": "S_q·D", "k": "S_k·D", "s": "S_q·S_k", "p": "S_q·S_k", "v": "S_k·D", "o": "S_q·D"}
    top, naive, fused = 0.5, 0.1, 5.82
    end = top + 1.05  # where the tensors end and the arrows begin
    write(ax, naive, 0.25, "three kernels", HEAD, ha="left", weight="bold")
    q, k, s, p, v, o = draw_hbm(ax, naive, top, size, 0.88)
    draw_flow(ax, end, "q kᵀ", q - 0.2, s - 0.1, [q, k], [s - 0.2])
    draw_flow(ax, end, "softmax", s + 0.05, p - 0.05, [s + 0.2], [p - 0.2])
    draw_flow(ax, end, "p v", p + 0.1, o + 0.2, [p + 0.2, v], [o])
    write(ax, fused, 0.25, "one fused kernel", HEAD, ha="left", weight="bold")
    q, k, v, o = draw_hbm(ax, fused, top, {name: size[name] for name in "qkvo"}, 0.74)
    draw_flow(ax, end, "q kᵀ, softmax, p v", q - 0.2, o + 0.2, [q, k, v], [o])
    S, D, block_m, itemsize = 4096, 64, 128, 2
    naive_mb = ledger.naive_hbm_bytes(1, 1, S, S, D, itemsize) / 1e6
    flash_mb = ledger.flash_hbm_bytes(S, S, D, block_m, itemsize) / 1e6
    write(ax, naive, 3.45, f"4·S_q·S_k + 2·(S_q + S_k)·D elements\n{naive_mb:.0f} MB for one head", ha="left", linespacing=1.4)
    write(ax, fused, 3.45, f"S_q·S_k stays on the chip\n{flash_mb:.0f} MB for one head", ha="left", linespacing=1.4)
    arrow(ax, (0.1, 4.05), (0.55, 4.05), "blue")
    write(ax, 0.65, 4.05, "read", ha="left")
    arrow(ax, (1.3, 4.05), (1.75, 4.05), "vermilion", dashed=True)
    write(ax, 1.85, 4.05, "written", ha="left")
    note = f"S_q = S_k = {S:,}, D = {D}, fp16; fused: k and v read once for each {block_m} rows of q"
    write(ax, WIDTH - 0.1, 4.05, note, ha="right")
    return figure


# ---------------------------------------------------------------- chapter 1

EXAMPLE = (3.0, 2.0, 5.0, 1.0)


@in_drawing_style
def draw_online_softmax() -> Figure:
    """m and l of x = [3, 2, 5, 1], element by element: the terms of the sum, and the correction where the maximum jumps."""
    figure, ax = canvas(5.7)
    left, width, base, scale = 2.2, 1.65, 2.85, 1.45  # scale: inches for 1.0
    rows = ("x", "m so far", "l before", "alpha", "l after")
    top, tall = 3.15, 0.38
    write(ax, left - 0.25, base, "0", ha="right")
    write(ax, left - 0.25, base - scale, "1", ha="right")
    write(ax, 0.15, base - scale / 2, "terms of l:\nexp(x_j − m), each\nwith its pattern", ha="left")
    for height in (0, scale):
        ax.plot([left - 0.15, left + 4 * width], [base - height, base - height], color=GREY, linewidth=0.8, zorder=0.5)
    for row, name in enumerate(rows):
        write(ax, 0.15, top + (row + 0.5) * tall, name, BODY, ha="left")
    m_old, l_before = softmax.online_normalizer(torch.tensor([], dtype=torch.float64))
    for step, value in enumerate(EXAMPLE):
        m, l = softmax.online_normalizer(torch.tensor(EXAMPLE[: step + 1], dtype=torch.float64))
        alpha = math.exp(m_old - m)
        x = left + step * width
        jump = step > 0 and m > m_old
        look = {"colour": "vermilion", "weight": "bold"} if jump else {}
        draw_terms(ax, x + 0.375, base, scale, EXAMPLE[: step + 1], m)
        for row, cell in enumerate((value, m, l_before, alpha, l)):
            box(ax, x, top + row * tall, width, tall, number(cell), size=BODY, **look)
        if jump:
            outline(ax, x, top, width, len(rows) * tall)
            write(ax, x + width / 2, 0.4, f"maximum jumps {number(m_old)} → {number(m)}:\nterms so far shrink by alpha", weight="bold")
        m_old, l_before = m, l
    write(ax, 0.15, 5.4, "alpha = exp(m_old − m_new)          l after = alpha · l before + exp(x − m_new)", BODY, ha="left")
    return figure


def draw_terms(ax: Axes, x: float, base: float, scale: float, values: tuple[float, ...], m: float) -> None:
    """A bar of height Σ exp(value − m), one patterned piece a value, named where the piece is tall enough."""
    y = base
    for value, colour, hatch in zip(values, ("sky", "orange", "green", "purple"), ("", "////", "....", "xxxx"), strict=False):
        height = math.exp(value - m) * scale
        y -= height
        box(ax, x, y, 0.9, height, f"exp({number(value - m)})" if height > 0.3 else "", colour, hatch=hatch, share=0.5)


Node = tuple[float, float]  # (m, l)


def draw_node(ax: Axes, x: float, y: float, node: Node, colour: str, line: float = 1.0) -> None:
    """A pair (m, l) centred on (x, y); the empty part is hatched."""
    m, l = node
    look = {"hatch": MASKED, "dashed": True} if m == -math.inf else {"colour": colour, "line": line}
    box(ax, x - 0.32, y - 0.25, 0.64, 0.5, f"m {number(m)}\nl {number(l)}", **look)


def draw_tree(ax: Axes, left: float, leaves: list[Node], plan: list[tuple[int, int, float, int]]) -> None:
    """Leaves side by side from `left`, then plan's merges: (node, node, x in leaf widths, depth), each adding a node. The last is the result."""
    step, top, drop = 0.7, 0.9, 0.95
    nodes, places = list(leaves), [(left + 0.35 + i * step, top) for i in range(len(leaves))]
    for node, (x, y) in zip(nodes, places, strict=True):
        draw_node(ax, x, y, node, "orange")
    for number_of, (a, b, leaf, depth) in enumerate(plan, start=1):
        x, y = left + 0.35 + leaf * step, top + depth * drop
        for x_from, y_from in (places[a], places[b]):
            ax.plot([x_from, x], [y_from + 0.25, y - 0.25], color="black", linewidth=1.4, zorder=0.5)
        parts = torch.tensor([*nodes[a], *nodes[b]], dtype=torch.float64)
        m, l = (float(value) for value in softmax.merge(*parts))
        last = number_of == len(plan)
        draw_node(ax, x, y, (m, l), "green" if last else "sky", line=2.2 if last else 1.0)
        nodes.append((m, l))
        places.append((x, y))


@in_drawing_style
def draw_merge_tree() -> Figure:
    """The pairs (m, l) of four elements merged left to right, as a balanced tree, and with an empty part: one result."""
    figure, ax = canvas(4.6, 9.7)
    leaves = [softmax.online_normalizer(torch.tensor([value], dtype=torch.float64)) for value in EXAMPLE]
    empty = softmax.online_normalizer(torch.tensor([], dtype=torch.float64))
    write(ax, 1.45, 0.3, "left to right", HEAD, weight="bold")
    draw_tree(ax, 0.05, leaves, [(0, 1, 0.5, 1), (4, 2, 1.25, 2), (5, 3, 2.1, 3)])
    write(ax, 4.5, 0.3, "balanced tree", HEAD, weight="bold")
    draw_tree(ax, 3.1, leaves, [(0, 1, 0.5, 1), (2, 3, 2.5, 1), (4, 5, 1.5, 2)])
    write(ax, 7.9, 0.3, "with an empty part", HEAD, weight="bold")
    draw_tree(ax, 6.15, [*leaves[:2], empty, *leaves[2:]], [(0, 1, 0.5, 1), (2, 3, 2.5, 1), (6, 4, 3.2, 2), (5, 7, 1.85, 3)])
    write(ax, 4.85, 4.3, "top row: one element each, m = x and l = 1     hatched: the empty part (−∞, 0)     thick frame: the whole row")
    return figure


# ---------------------------------------------------------------- chapter 2


@in_drawing_style
def draw_strides() -> Figure:
    """One piece of memory, three views of it: a row-major tensor, its transpose, and a column, with their strides."""
    figure, ax = canvas(5.1)
    x = torch.arange(12).view(3, 4)
    column = x[:, 1]
    picked = set(column.tolist())
    views = (("x", x, 0.5), ("x.t()", x.t(), 3.8), ("x[:, 1]", column, 7.2))
    side = 0.46

    def cells(x0: float, y0: float, values: list[list[int]]) -> None:
        def look(row: int, col: int) -> dict:
            cell = values[row][col]
            return {"text": str(cell), "size": BODY, **({"colour": "orange", "hatch": "\\\\"} if cell in picked else {"colour": "sky"})}

        grid(ax, x0, y0, len(values), len(values[0]), side, look)

    for name, view, left in views:
        terms = [str(view.storage_offset())] if view.storage_offset() else []
        terms += [f"{stride}·{index}" for stride, index in zip(view.stride(), "ij", strict=False)]
        where = f"[{', '.join('ij'[: view.ndim])}] lies at {' + '.join(terms)}"
        write(ax, left, 0.25, name, HEAD, ha="left", weight="bold")
        write(ax, left, 0.79, f"shape {tuple(view.shape)}\nstrides {view.stride()}\n{where}", ha="left", linespacing=1.3)
        cells(left, 1.25, view.tolist() if view.ndim == 2 else [[value] for value in view.tolist()])
    left, top = 1.74, 4.05
    cells(left, top, [x.flatten().tolist()])
    write(ax, 0.15, top + side / 2, "memory", BODY, ha="left", weight="bold")
    write(ax, left, top + 0.72, "number in a cell: its offset in memory, in elements", ha="left")
    row_step, col_step = x.stride()
    draw_hop(ax, left + 1.5 * side, top, row_step * side, f"+{row_step}: next row of x")
    draw_hop(ax, left + 10.5 * side, top, col_step * side, f"+{col_step}: next column of x")
    return figure


def draw_hop(ax: Axes, x: float, y: float, length: float, text: str) -> None:
    arrow(ax, (x, y), (x + length, y), curve=-0.3 if length > 1 else -0.8)
    write(ax, x + length / 2, y - 0.45, text)


@in_drawing_style
def draw_grid_and_mask() -> Figure:
    """Ten elements, three programs of four lanes: each lane's offset, and the last two lanes masked off."""
    figure, ax = canvas(4.1)
    n, block = 10, 4
    side, gap, left = 0.56, 0.22, 1.75
    programs = -(-n // block)
    memory = [left + (offset + 0.5) * side for offset in range(n)]  # middle of each element's cell
    rows = {"lane": 0.55, "offs": 1.5, "mask": 2.06, "memory": 3.2}
    labels = {"lane": "arange(0, BLOCK)", "offs": "offs", "mask": "mask: offs < n", "memory": f"memory, n = {n}"}
    for row, text in labels.items():
        write(ax, 0.1, rows[row] + side / 2, text, ha="left")
    write(ax, 0.1, 1.305, f"+ program_id · {block}", ha="left")
    for program in range(programs):
        start = left + program * (block * side + gap)
        write(ax, start + block * side / 2, 0.25, f"program {program}", HEAD, weight="bold")
        for lane in range(block):
            offset = program * block + lane
            inside = offset < n
            x = start + lane * side
            look = {"size": BODY, **({"colour": "sky"} if inside else {"hatch": MASKED})}
            box(ax, x, rows["lane"], side, side, str(lane), size=BODY)
            box(ax, x, rows["offs"], side, side, str(offset), **look)
            box(ax, x, rows["mask"], side, side, str(int(inside)), **look)
            if inside:
                arrow(ax, (x + side / 2, rows["mask"] + side), (memory[offset], rows["memory"]), width=1.2)
        outline(ax, start, rows["lane"], block * side, rows["mask"] + side - rows["lane"])
    for offset, x in enumerate(memory):
        box(ax, x - side / 2, rows["memory"], side, side, f"x[{offset}]", "orange")
    outside = " and ".join(str(offset) for offset in range(n, programs * block))
    write(ax, memory[-1] + side / 2 + 0.12, rows["memory"] + side / 2, f"{outside} are\nmasked off: the\nload gives other", ha="left")
    return figure


@in_drawing_style
def draw_transpose_tiles() -> Figure:
    """One tile of x, read at tile (r, c) and stored at tile (c, r) of out; ragged tiles hatched."""
    rows, cols, block_r, block_c = 5, 7, 2, 4
    tile_r, tile_c = 1, 0
    side, top = 0.42, 0.95
    figure, ax = canvas(4.9)
    letters = {(r, c): chr(ord("a") + r * block_c + c) for r in range(block_r) for c in range(block_c)}

    def look(row: int, col: int) -> dict:
        if row >= rows or col >= cols:
            return {"hatch": MASKED, "dashed": True}
        here = letters.get((row - tile_r * block_r, col - tile_c * block_c))
        if here is not None:
            return {"text": here, "colour": "orange", "size": BODY, "share": 0.5}
        ragged = row // block_r * block_r + block_r > rows or col // block_c * block_c + block_c > cols
        return {"colour": "sky", "share": 0.3, "hatch": ".." if ragged else None}

    padded_rows, padded_cols = -(-rows // block_r) * block_r, -(-cols // block_c) * block_c
    left, right = 0.75, 5.9
    grid(ax, left, top, padded_rows, padded_cols, side, look)
    grid(ax, right, top, padded_cols, padded_rows, side, lambda row, col: look(col, row))
    for x, tall, wide in ((left, padded_rows, padded_cols), (right, padded_cols, padded_rows)):
        step_r, step_c = (block_r, block_c) if x == left else (block_c, block_r)
        for row in range(0, tall, step_r):
            for col in range(0, wide, step_c):
                outline(ax, x + col * side, top + row * side, step_c * side, step_r * side, line=1.2)
    outline(ax, left + tile_c * block_c * side, top + tile_r * block_r * side, block_c * side, block_r * side, line=3)
    outline(ax, right + tile_r * block_r * side, top + tile_c * block_c * side, block_r * side, block_c * side, line=3)
    write(ax, left, 0.25, f"x, ({rows}, {cols})", HEAD, ha="left", weight="bold")
    write(ax, right, 0.25, f"out, ({cols}, {rows})", HEAD, ha="left", weight="bold")
    write(ax, left, 0.62, f"tiles of (BLOCK_R, BLOCK_C) = ({block_r}, {block_c})", ha="left")
    write(ax, right, 0.62, f"tiles of (BLOCK_C, BLOCK_R) = ({block_c}, {block_r})", ha="left")
    gap = (left + padded_cols * side, right)
    write(ax, sum(gap) / 2, 1.6, f"program\n({tile_r}, {tile_c})", weight="bold")
    arrow(ax, (gap[0] + 0.2, 2.05), (gap[1] - 0.2, 2.05), width=2.4)
    write(ax, sum(gap) / 2, 2.5, f"tile ({tile_r}, {tile_c})\nto tile ({tile_c}, {tile_r})")
    y = 4.6
    for x, options, text in ((0.1, {"colour": "sky", "hatch": ".."}, "ragged tile: partly inside"),
                             (3.0, {"hatch": MASKED, "dashed": True}, "masked: outside")):  # fmt: skip
        box(ax, x, y - 0.14, 0.4, 0.28, **options)
        write(ax, x + 0.5, y, text, ha="left")
    return figure


# ---------------------------------------------------------------- chapter 3


def example_matrices() -> tuple[torch.Tensor, torch.Tensor]:
    """Two (4, 4) float32 matrices of small integers."""
    i, j = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
    return ((i + j) % 4).float(), ((2 * i + j) % 3).float()


@in_drawing_style
def draw_block_matmul() -> Figure:
    """Tile (0, 1) of c: the row of a's tiles times the column of b's, in two steps over k."""
    from fa_tutorial.matmul import blocked_matmul  # needs Triton, which the notebooks' plots do not

    figure, ax = canvas(4.75)
    a, b = example_matrices()
    side, gap, block = 0.4, 0.2, 2
    tile_m, tile_n = 0, 1
    for step in range(2):
        left, top = 0.45 + step * 4.45, 0.65
        write(ax, left, 0.3, f"step {step + 1}: k tile {step}", HEAD, ha="left", weight="bold")
        x_c, y_c = left + 4 * side + gap, top + 4 * side + gap
        done = (step + 1) * block
        c = blocked_matmul(a[:, :done], b[:done], block, block, block)

        def look_a(row: int, col: int, now: int = step) -> dict:
            return operand(a[row, col], row // block == tile_m, col // block, now, "blue")

        def look_b(row: int, col: int, now: int = step) -> dict:
            return operand(b[row, col], col // block == tile_n, row // block, now, "orange")

        def look_c(row: int, col: int, partial: torch.Tensor = c) -> dict:
            here = row // block == tile_m and col // block == tile_n
            return {"text": number(float(partial[row, col])), "colour": "purple", "share": 0.5} if here else {}

        for name, x, y, look in (("a", left, y_c, look_a), ("b", x_c, top, look_b), ("c", x_c, y_c, look_c)):
            grid(ax, x, y, 4, 4, side, look)
            for i in range(4):
                outline(ax, x + i % 2 * 2 * side, y + i // 2 * 2 * side, 2 * side, 2 * side, line=1.2)
            write(ax, x - 0.17 if name != "c" else x + 4 * side + 0.17, y + 2 * side, name, HEAD, weight="bold")
        outline(ax, left + step * 2 * side, y_c + tile_m * 2 * side, 2 * side, 2 * side, line=3)
        outline(ax, x_c + tile_n * 2 * side, top + step * 2 * side, 2 * side, 2 * side, line=3)
        outline(ax, x_c + tile_n * 2 * side, y_c + tile_m * 2 * side, 2 * side, 2 * side, line=3)
        terms = f"acc = a({tile_m},0)·b(0,{tile_n})" + (f" + a({tile_m},1)·b(1,{tile_n})" if step else "")
        write(ax, left, y_c + 4 * side + 0.35, terms, BODY, ha="left")
    return figure


def operand(value: torch.Tensor, in_strip: bool, k_tile: int, step: int, colour: str) -> dict:
    """Look of a cell of a or b: strong where this step reads it, pale where another step does."""
    share = 0 if not in_strip else 0.6 if k_tile == step else 0.18
    return {"text": number(float(value)), "colour": colour, "share": share}


@in_drawing_style
def draw_program_order() -> Figure:
    """8 x 8 tiles of c by program id, in row order and in groups of 4: what the first wave of 16 programs reads of a and b."""
    from fa_tutorial.matmul import grouped_tile, strips_per_wave  # needs Triton, which the notebooks' plots do not

    tiles, wave, side = 8, 16, 0.41
    figure, ax = canvas(5.0)
    for panel, (group, name) in enumerate(((1, "row order"), (4, "groups of 4 rows"))):
        left, top = 0.95 + panel * 4.45, 1.2
        program = {grouped_tile(pid, tiles, tiles, group): pid for pid in range(tiles * tiles)}
        first = {tile for tile, pid in program.items() if pid < wave}
        rows, cols = {row for row, _ in first}, {col for _, col in first}

        def look(row: int, col: int, ids: dict = program) -> dict:
            now = ids[row, col] < wave
            return {"text": str(ids[row, col]), "colour": "purple" if now else None, "share": 0.5, "weight": "bold" if now else "normal"}

        grid(ax, left, top, tiles, tiles, side, look)
        for i in range(tiles):
            strip(ax, left - 0.5, top + i * side + 0.05, 0.4, side - 0.1, "blue", i in rows)
            strip(ax, left + i * side + 0.05, top - 0.5, side - 0.1, 0.4, "orange", i in cols)
        outline(ax, left + min(cols) * side, top + min(rows) * side, len(cols) * side, len(rows) * side, line=2.5)
        write(ax, left - 0.5, 0.25, f"{name} (group = {group})", HEAD, ha="left", weight="bold")
        write(ax, left - 0.7, top + tiles * side / 2, "a", HEAD, weight="bold")
        write(ax, left + tiles * side + 0.15, top - 0.3, "b", HEAD, weight="bold")
        total = strips_per_wave(tiles, tiles, group, wave)[0]
        reads = f"programs 0 to {wave - 1} read {len(rows)} + {len(cols)} = {total} strips"
        write(ax, left - 0.5, top + tiles * side + 0.3, reads, BODY, ha="left", weight="bold")
    return figure


def strip(ax: Axes, x: float, y: float, width: float, height: float, colour: str, is_read: bool) -> None:
    """A strip of a or b in draw_program_order, filled and hatched where the wave reads it."""
    box(ax, x, y, width, height, colour=colour if is_read else None, share=0.6, hatch=MASKED if is_read else None)


@in_drawing_style
def draw_skeleton() -> Figure:
    """(q kᵀ) v by blocks: the tile of q and acc stay on chip, tiles of k and v stream past, the tile of s never leaves."""
    figure, ax = canvas(5.25)
    block_m, block_n, dim = 0.75, 0.85, 1.1  # inches for BLOCK_M, BLOCK_N and D on the chip
    row, high = 3.0, 2.8  # top of the tiles of q, s and acc; bottom of those of k and v
    x_q, x_s, x_acc = 1.65, 3.1, 5.7
    draw_blocks(ax, 0.2, 1.5, 4, 2, "q", "q (S_q, D)", down=True)
    draw_blocks(ax, 8.05, 1.5, 4, 2, "o", "o (S_q, D)", down=True)
    draw_blocks(ax, 2.55, 0.35, 4, 1, "k", "k (S_k, D)", down=False)
    draw_blocks(ax, 5.275, 0.35, 4, 1, "v", "v (S_k, D)", down=False)
    outline(ax, 1.35, 1.3, 6.1, 3.5, dashed=True, line=1.6)
    write(ax, 1.5, 1.53, "on the chip", BODY, ha="left", weight="bold")
    tiles = {"q": (x_q, row, dim, block_m), "kᵀ": (x_s, high - dim, block_n, dim), "s": (x_s, row, block_n, block_m),
             "v": (x_acc, high - block_n, dim, block_n), "acc": (x_acc, row, dim, block_m)}  # fmt: skip
    for name, place in tiles.items():
        box(ax, *place, name, TENSOR_COLOUR["o" if name == "acc" else name[0]], share=0.6, size=HEAD, line=2, weight="bold")
    middle = row + block_m / 2
    arrow(ax, (0.9, middle), (x_q, middle))
    arrow(ax, (x_s + block_n / 2, 0.85), (x_s + block_n / 2, high - dim))
    arrow(ax, (x_acc + dim / 2, 0.85), (x_acc + dim / 2, high - block_n))
    arrow(ax, (x_q + dim, middle), (x_s, middle))
    arrow(ax, (x_s + block_n, middle), (x_acc, middle))
    arrow(ax, (x_acc + dim, middle), (8.05, middle))
    write(ax, x_q + dim / 2, 2.65, "[BLOCK_M, D]\nread once, stays")
    write(ax, x_s + block_n + 0.1, 1.95, "[D, BLOCK_N]\nstreams past", ha="left")
    write(ax, x_acc - 0.1, 2.5, "[BLOCK_N, D]\nstreams past", ha="right")
    write(ax, (x_s + block_n + x_acc) / 2, middle - 0.18, "acc += s v", BODY)
    write(ax, x_s + block_n / 2, 4.25, "s = scale · q kᵀ\n[BLOCK_M, BLOCK_N]\nnever leaves the chip")
    write(ax, x_acc + dim / 2, 4.15, "[BLOCK_M, D]\nstays, stored once")
    write(ax, 1.35, 5.03, "dashed frame: one program; outside it: HBM. Hatched: the blocks in use now.", ha="left")
    return figure


def draw_blocks(ax: Axes, x: float, y: float, blocks: int, now: int, name: str, label: str, *, down: bool) -> None:
    """A tensor in HBM, cut into blocks of rows, drawn downwards or sideways; block `now` is hatched."""
    for i in range(blocks):
        left, top, width, height = (x, y + i * 0.75, 0.7, 0.75) if down else (x + i * 0.65, y, 0.65, 0.5)
        look = {"share": 0.6, "hatch": MASKED, "line": 2.2} if i == now else {"share": 0.12}
        box(ax, left, top, width, height, colour=TENSOR_COLOUR[name], **look)
    if down:
        write(ax, x + 0.35, y - 0.17, label)
    else:
        write(ax, x, y - 0.17, f"{label}, block after block", ha="left")


FIGURES: dict[str, Callable[[], Figure]] = {
    "00_course_map": draw_course_map,
    "00_memory_hierarchy": draw_memory_hierarchy,
    "00_naive_kernels": draw_naive_kernels,
    "01_online_softmax": draw_online_softmax,
    "01_merge_tree": draw_merge_tree,
    "02_strides": draw_strides,
    "02_grid_and_mask": draw_grid_and_mask,
    "02_transpose_tiles": draw_transpose_tiles,
    "03_block_matmul": draw_block_matmul,
    "03_program_order": draw_program_order,
    "03_skeleton": draw_skeleton,
}


@in_drawing_style
def save(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG that holds nothing but its pixels: no date, no software."""
    figure.savefig(path, dpi=DPI, metadata={"Software": None})


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m fa_tutorial.figures", description="Draw the course's figures.")
    parser.add_argument(
        "--out", type=Path, default=IMAGES, metavar="DIR", help="folder for the PNG files (default: the repository's images/)"
    )
    out = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        path = out / f"{name}.png"
        figure = draw()
        save(figure, path)
        width, height = (round(inches * DPI) for inches in figure.get_size_inches())
        print(f"{path.name}: {width} x {height} pixels, {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
