"""Chapter 2: what its page draws of the speeds of transpose and softmax."""

from __future__ import annotations

from matplotlib.figure import Figure

from fa_tutorial.bench import plots, results
from fa_tutorial.figures import COLOURS


def draw_transposes(speeds: dict[str, float], gpu: str) -> Figure:
    """A bar for each kernel, name -> GB/s; PyTorch's have a colour of their own. gpu: where they were measured."""
    figure = Figure()
    ax = figure.subplots()
    colours = [COLOURS["orange" if "PyTorch" in name else "blue"] for name in speeds]
    ax.bar_label(ax.barh(list(speeds), list(speeds.values()), color=colours), fmt="{:,.0f}", padding=4)
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.15 * max(speeds.values())), xlabel="GB/s", title=f"Transposing 8,192 × 8,192 floats, {gpu}")
    ax.grid(axis="y", visible=False)
    return figure


def draw_limits(card: dict) -> Figure:
    """GB/s of stored launches over the KiB that an SM has room to load together: transposes by tiles of 1 KiB and
    softmaxes of 1 KiB a row, with what programs of 1 KiB move as fast as they start, and a copy.

    card: results.load's."""
    figure = Figure()
    ax = figure.subplots()
    for kernel, style, label in (
        ("transpose_warps", "o-", "transpose, tiles of 16 × 16"),
        ("softmax_rows", "^", "softmax, rows of 256"),
    ):
        rows = results.select(card["kernels"], kernel=kernel)
        each = rows["rows_each"] if kernel == "softmax_rows" else 1
        ax.plot((64 // rows["warps"]).clip(upper=32) * each, rows["gb_s"], style, label=label)
    for x, y, side, name in (
        (8.6, 1730, "left", "8 warps"),
        (17, 2660, "left", "4 warps"),
        (33.5, 3010, "left", "1 or 2 warps"),
        (30.5, 3450, "right", "1 row, 1 warp"),
        (30.5, 3890, "right", "2 rows, 4 warps"),
        (64, 3580, "center", "2 rows, 1 warp\n4 rows, 4 warps"),
        (128, 3800, "center", "4 rows, 1 warp"),
    ):
        ax.text(x, y, name, ha=side, fontsize="small")
    copy = card["provenance"]["ceilings"]["copy_gb_s"]
    start_ms = results.select(card["kernels"], kernel="start", warps=1)["ms"].item()  # of 2¹⁸ programs
    most = 2**18 * 2 * 1024 / start_ms / 1e6  # GB/s, where each program reads and writes 1 KiB
    ax.axhline(most, color="0.3", linestyle="--", label="1.63 programs of 1 KiB a nanosecond")
    ax.axhline(copy, color="0.3", linestyle=":", label="copy")
    ax.set_xscale("log", base=2)
    ax.set(xlim=(6.5, 190), xticks=[8, 16, 32, 64, 128], xticklabels=[8, 16, 32, 64, 128], ylim=(0, 4700))
    ax.set(xlabel="KiB that the programs on an SM can load together", ylabel="GB/s")
    ax.set_title("NVIDIA H200, stored results")
    ax.legend(loc="lower right")
    return figure


def draw_softmaxes(card: dict) -> Figure:
    """The stored speeds of four softmaxes over the number of columns, beside a copy's. card: results.load's."""
    lines = {
        "course": ("this kernel", "o-", -10),
        "torch": ("torch.softmax", "s--", -8),
        "torch, five calls, compiled": ("compiled", "D:", 8),
        "torch, five calls": ("five calls", "^-.", 0),
    }
    figure = Figure()
    ax = figure.subplots()
    for provider, (label, style, up) in lines.items():
        rows = results.select(card["kernels"], kernel="softmax", provider=provider)
        (line,) = ax.plot(rows["cols"], rows["gb_s"], style)
        end = (rows["cols"].iloc[-1], rows["gb_s"].iloc[-1])
        ax.annotate(label, end, (10, up), textcoords="offset points", color=line.get_color())
    plots.other_cards(ax, "cols", "gb_s", kernel="softmax", provider="course")
    ceiling = card["provenance"]["ceilings"]["copy_gb_s"]
    ax.axhline(ceiling, color="0.3", linestyle=":")
    ax.text(2**16 * 1.15, ceiling + 60, "copy", color="0.3")
    ax.set_xscale("log", base=2)
    ax.set(xlim=(200, 2**18.2), xticks=[2**power for power in range(8, 17, 2)], ylim=(0, 4700))
    ax.set(xlabel="columns", ylabel="GB/s", title="Softmax of 2²⁶ floats, NVIDIA H200, stored results")
    return figure
