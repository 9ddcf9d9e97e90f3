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
    """The GB that counted transposes move: between HBM and L2, and between L2 and the SMs. card: results.load's."""
    rows = results.select(card["kernels"], kernel="transpose_traffic")
    tiles = [f"{r:,} × {c:,}" for r, c in zip(rows["block_r"].astype(int), rows["block_c"].astype(int), strict=True)]
    hbm = rows["dram__bytes_read.sum"] + rows["dram__bytes_write.sum"]
    sms = rows["l1tex__m_xbar2l1tex_read_bytes.sum"] + rows["l1tex__m_l1tex2xbar_write_bytes.sum"]
    return pd.DataFrame({"HBM": hbm, "L2 and SMs": sms}).div(1e9).round(2).set_axis(tiles)


def draw_in_flight(card: dict) -> Figure:
    """GB/s over the KiB in flight on an SM, where 64 warps and 32 programs fit, of the stored transposes by tiles of 1
    KiB with 1 to 8 warps; beside a copy, and (2.5) with the time of a program of 8 warps. card: results.load's."""
    rows = results.select(card["kernels"], kernel="transpose_warps")
    kib, gb_s = (64 // rows["warps"].astype(int)).clip(upper=32), rows["gb_s"]
    copy = card["provenance"]["ceilings"]["copy_gb_s"]
    per_kib = (gb_s / kib)[rows["warps"] == 8].item()
    took = 2 * 1024 * card["provenance"]["multiprocessors"] / per_kib / 1e3  # µs: what is in flight is read and written
    figure = Figure()
    ax = figure.subplots()
    ax.plot(kib, gb_s, "o")
    for place, warps, side in ((8, "8", "left"), (16, "4", "left"), (32, "1 or 2", "center")):
        speed = gb_s[kib == place].max()
        ax.text(place + 0.4, speed - 130, f"{warps} warps: {speed:,.0f}", ha=side, va="top")
    label = f"if a program always took {took:.2f} µs, as with 8 warps"
    ax.plot([0, 4700 / per_kib], [0, 4700], color="0.3", linestyle="--", label=label)
    ax.axhline(copy, color="0.3", linestyle=":", label="copy")
    ax.set(xlim=(0, 37), xticks=[0, 8, 16, 32], ylim=(0, 4700), xlabel="KiB in flight on an SM")
    ax.set(ylabel="GB/s", title="Tiles of 16 × 16, measured again, NVIDIA H200, stored results")
    ax.legend(loc="lower right")
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
