"""Chapter 2: what its page draws of the speeds of transpose and softmax."""

import pandas as pd
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


def traffic(card: dict) -> pd.DataFrame:
    """The GB that counted transposes move: between HBM and L2, between L2 and the SMs, and between L2's two halves.
    card: results.load's."""
    rows = results.select(card["kernels"], kernel="transpose_traffic")
    tiles = [f"{r:,} × {c:,}" for r, c in zip(rows["block_r"].astype(int), rows["block_c"].astype(int), strict=True)]
    hbm = rows["dram__bytes_read.sum"] + rows["dram__bytes_write.sum"]
    sms = rows["l1tex__m_xbar2l1tex_read_bytes.sum"] + rows["l1tex__m_l1tex2xbar_write_bytes.sum"]
    halves = 32 * rows["lts__t_sectors_srcunit_ltcfabric.sum"]
    return pd.DataFrame({"HBM": hbm, "L2 and SMs": sms, "L2's halves": halves}).div(1e9).round(2).set_axis(tiles)


def in_flight(card: dict) -> pd.DataFrame:
    """Stored launches of transposes by tiles of 1 KiB and of softmaxes of 1 KiB a row: the KiB that they have in flight
    on an SM, where 64 warps and 32 programs fit, and their GB/s. card: results.load's."""
    rows = pd.concat(results.select(card["kernels"], kernel=name) for name in ("transpose_warps", "softmax_rows"))
    warps, each = rows["warps"].astype(int), rows["rows_each"].fillna(1).astype(int)
    softmaxes = "softmax, " + each.map({1: "1 row", 2: "2 rows", 4: "4 rows"})
    program = softmaxes.where(rows["kernel"] == "softmax_rows", "transpose")
    kib, gb_s = (64 // warps).clip(upper=32) * each, rows["gb_s"].round().astype(int)
    table = pd.DataFrame({"program": program, "warps": warps, "KiB in flight": kib, "GB/s": gb_s})
    return table.sort_values("KiB in flight", kind="stable")


def draw_limits(card: dict) -> Figure:
    """GB/s over KiB for the launches of in_flight, transposes beside softmaxes, with a copy and with what programs of
    1 KiB move as fast as they start. card: results.load's."""
    table = in_flight(card)
    transposes = table["program"] == "transpose"
    tiles = {(8, 1886): "8 warps:\n1,886", (16, 2822): "4 warps:\n2,822", (32, 3268): "1 or 2 warps"}
    rows = {(32, 3289): "1 row, 1 warp", (32, 3947): "2 rows, 4 warps", (64, 4092): "2 rows, 1 warp\n4 rows, 4 warps",
            (128, 4110): "4 rows, 1 warp"}  # fmt: skip
    panels = (transposes, "transpose, tiles of 16 × 16", tiles), (~transposes, "softmax, rows of 256", rows)
    copy = card["provenance"]["ceilings"]["copy_gb_s"]
    start_ms = results.select(card["kernels"], kernel="start", warps=1)["ms"].item()  # of 2¹⁸ programs
    most = 2**18 * 2 * 1024 / start_ms / 1e6  # GB/s, where each program reads and writes 1 KiB
    figure = Figure()
    axes = figure.subplots(1, 2, sharey=True, width_ratios=(2, 3))
    for ax, (which, title, labels) in zip(axes, panels, strict=True):
        ax.plot(table["KiB in flight"][which], table["GB/s"][which], "o")
        for (kib, gb_s), label in labels.items():
            ax.text(kib, gb_s - 110, label, ha="center", va="top", fontsize="small")
        until = 1 if which is transposes else 0.38  # the dashed line is for programs of 1 KiB, here those of one row
        ax.axhline(most, xmax=until, color="0.3", linestyle="--", label="1.63 programs of 1 KiB a nanosecond")
        ax.axhline(copy, color="0.3", linestyle=":", label="copy")
        ax.set_xscale("log", base=2)
        ticks = sorted({kib for kib, _ in labels})
        ax.set(xlim=(ticks[0] / 1.5, ticks[-1] * 1.5), xticks=ticks, xticklabels=ticks, ylim=(0, 4700))
        ax.set(xlabel="KiB in flight on an SM", title=title)
    axes[0].set_ylabel("GB/s, NVIDIA H200")
    ax.legend(loc="lower right", fontsize="small")
    return figure


def draw_softmaxes(card: dict) -> Figure:
    """The stored speeds of four softmaxes over the number of columns, beside a copy's. card: results.load's."""
    lines = {"course": ("this kernel", "o-", -10), "torch": ("torch.softmax", "s--", -8)}
    lines |= {"torch, five calls, compiled": ("compiled", "D:", 8), "torch, five calls": ("five calls", "^-.", 0)}
    figure = Figure()
    ax = figure.subplots()
    for provider, (label, style, up) in lines.items():
        rows = results.select(card["kernels"], kernel="softmax", provider=provider)
        (line,) = ax.plot(rows["cols"], rows["gb_s"], style)
        ax.annotate(label, line.get_xydata()[-1], (10, up), textcoords="offset points", color=line.get_color())
    plots.other_cards(ax, "cols", "gb_s", kernel="softmax", provider="course")
    ceiling = card["provenance"]["ceilings"]["copy_gb_s"]
    ax.axhline(ceiling, color="0.3", linestyle=":")
    ax.text(2**16 * 1.15, ceiling + 60, "copy", color="0.3")
    ax.set_xscale("log", base=2)
    ax.set(xlim=(200, 2**18.2), xticks=[2**power for power in range(8, 17, 2)], ylim=(0, 4700), xlabel="columns")
    ax.set(ylabel="GB/s", title="Softmax of 2²⁶ floats, NVIDIA H200, stored results")
    return figure
