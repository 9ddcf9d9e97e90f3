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


def draw_limits(card: dict, transposes: list[tuple[int, float]], softmaxes: dict[str, tuple[int, float]]) -> Figure:
    """GB/s of stored launches over the KiB that the programs on an SM load together, softmaxes by name; with what 1.6
    programs of 1 KiB a nanosecond move, and a copy. card: results.load's."""
    figure = Figure()
    ax = figure.subplots()
    ax.plot(*zip(*sorted(transposes), strict=True), "o-", label="transpose, 16 × 16: 8, 4, 2 and 1 warps")
    ax.plot(*zip(*softmaxes.values(), strict=True), "^", label="softmax, 256 columns")
    for name, point in softmaxes.items():
        ax.annotate(name, point, (0, -20), textcoords="offset points", ha="center", fontsize="small")
    copy = card["provenance"]["ceilings"]["copy_gb_s"]
    starts = 1.6 * 2 * 1024  # GB/s, where each program reads and writes 1 KiB
    ax.axhline(starts, color="0.3", linestyle="--", label="1.6 programs of 1 KiB a nanosecond")
    ax.axhline(copy, color="0.3", linestyle=":", label="a copy")
    ax.set(xlim=(0, 72), xticks=[0, 8, 16, 32, 64], ylim=(0, 4700), ylabel="GB/s")
    ax.set(xlabel="KiB that the programs on an SM load together", title="NVIDIA H200, stored results")
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
