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
    """The GB that counted transposes move: between HBM and L2, between L2 and the SMs, and between the halves of L2.
    card: results.load's."""
    rows = results.select(card["kernels"], kernel="transpose_traffic")
    tiles = [f"{r:,} × {c:,}" for r, c in zip(rows["block_r"].astype(int), rows["block_c"].astype(int), strict=True)]
    hbm = rows["dram__bytes_read.sum"] + rows["dram__bytes_write.sum"]
    sms = rows["l1tex__m_xbar2l1tex_read_bytes.sum"] + rows["l1tex__m_l1tex2xbar_write_bytes.sum"]
    halves = 32 * rows["lts__t_sectors_srcunit_ltcfabric.sum"]
    return pd.DataFrame({"HBM": hbm, "L2 and SMs": sms, "halves of L2": halves}).div(1e9).round(2).set_axis(tiles)


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
