"""Chapter 11: what its page shows of the H200's stored times, and of a reader's kernels."""

import ast
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from fa_tutorial import compiling
from fa_tutorial.bench import results
from fa_tutorial.exercises import catalogue
from fa_tutorial.figures import COLOURS
from fa_tutorial.forward import attend
from fa_tutorial.source import defined, edited, source_of


def row(provider: str, S: int, B: int = 1, kernel: str = "decode", **more: Any) -> pd.Series:
    """The H200's stored time of one kernel at one size, ms and us."""
    wanted = {"chapter": 11, "kernel": kernel, "provider": provider, "B": B, "S_k": S, **more}
    found = results.select(results.load("h200")["kernels"], **wanted).iloc[0].copy()
    found["us"] = 1000 * found["ms"]
    return found


def us_by_splits(B: int, S: int) -> dict[int, float]:
    """The stored µs of a step of 11.3's kernel and the merge, L2 emptied by reading, by the number of splits."""
    wanted = {"chapter": 11, "kernel": "steps", "provider": "11.3", "B": B, "S_k": S}
    found = results.select(results.load("h200")["kernels"], **wanted).sort_values("splits")
    return dict(zip(found["splits"].astype(int), found["clean_us"], strict=True))


def body_of(kernel: Any) -> list[str]:
    """The lines of a kernel from its first statement on, without its signature and its docstring."""
    text = source_of(kernel)
    [function] = ast.parse(text).body
    first = function.body[ast.get_docstring(function) is not None]
    return text.splitlines()[first.lineno - 1 :]


def windowed(split_heads: Any, bound: str) -> Any:
    """A split kernel like 11.3's, whose attend has a second bound in its mask."""
    seen = "offs_n[None, :] <= last_seen[:, None]"
    bounded = defined(edited(source_of(attend), (seen, f"({seen}) & ({bound})")), attend.fn.__globals__)["attend"]
    names = split_heads.fn.__globals__ | {"attend": bounded}
    return defined(source_of(split_heads), names)[split_heads.fn.__name__]


def split_resources(kernel: Any, *stages: int) -> list[tuple[int, int]]:
    """compiling.split_resources of 11.3's kernel or 11.5's, or a reader's."""
    course = catalogue.find("11.5" if "PAGE_SIZE" in kernel.arg_names else "11.3").solution
    return compiling.of_a_kernel(course)(compiling.split_resources)(kernel, *stages)


def two_lanes(start: float, tiles: float, transfer: float, merge: float, measured: float) -> Figure:
    """The µs of a step: its start, the tiles beside the bytes, its merge; and what was measured."""
    figure, ax = plt.subplots(figsize=(8, 2.3), layout="constrained")
    end = start + max(tiles, transfer)
    for y, left, us, high, name, colour in (
        (0.5, 0, start, 1.8, "start", "sky"),
        (0, start, tiles, 0.8, "tiles, one after another", "orange"),
        (1, start, transfer, 0.8, "bytes, at a copy's rate", "green"),
        (0.5, end, merge, 1.8, "merge", "purple"),
    ):
        ax.barh(y, us, high, left, color=COLOURS[colour], edgecolor="black", alpha=0.55)
        text = f"{name}\n{us:.1f}" if us < 12 else f"{name}: {us:.1f}"
        if name == "merge":  # a bar too small for its name
            ax.text(left + us + 0.4, 0.0, text, va="center")
        else:
            ax.text(left + us / 2, y, text, ha="center", va="center")
    ax.axvline(measured, color="black", linestyle="--")
    ax.text(measured - 0.4, -0.75, f"measured: {measured:.1f}", ha="right", va="center")
    ax.text(end + merge + 0.4, 1.0, f"model:\n{end + merge:.1f}", va="center")
    ax.set_yticks((0, 1), ("SMs", "memory"))
    ax.set(xlabel="µs of a step", xlim=(0, end + merge + 5), ylim=(1.5, -1.1))
    return figure


def by_splits(model_us: Callable[[int, int, int], float]) -> Figure:
    """The measured µs of a step by the number of splits, and a model's with up to three programs on each SM, for one
    sequence and for eight, above the bytes' at a copy's rate; a line where the busiest SM gets one program more."""
    copy = results.load("h200")["provenance"]["ceilings"]["copy_gb_s"]
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.4), layout="constrained", width_ratios=(3, 2))
    sms, cases = 132, ((1, 34_816, 8, "one sequence"), (8, 32_768, 2, "eight sequences"))
    for ax, (B, S, least, words) in zip(axes, cases, strict=True):
        us = {splits: one for splits, one in us_by_splits(B, S).items() if splits >= least}
        possible = range(least, 3 * sms // (8 * B) + 1)
        modelled = [model_us(B, S, splits) for splits in possible]
        ax.plot(possible, modelled, "-", color=COLOURS["blue"], label="our model")
        inside = {splits: one for splits, one in us.items() if splits in possible}
        for dots, face, label in ((us, "white", "measured, programs wait"), (inside, None, "measured")):
            look = {"color": COLOURS["vermilion"], "markerfacecolor": face, "markersize": 5, "label": label}
            ax.plot(list(dots), list(dots.values()), "o", **look)
        transfer = 4 * 8 * B * S * 128 / copy / 1e3
        ax.axhline(transfer, color=COLOURS["green"], linestyle="--", label="bytes, at a copy's rate")
        for programs in (1, 2, 3):
            x = programs * sms / (8 * B)
            ax.axvline(x, color="gray", linestyle=":", zorder=0)
            first = "1 on an SM " if programs == 1 and B == 1 else f"{programs} "
            ax.text(x, 0.98, first, ha="right", va="top", transform=ax.get_xaxis_transform(), size="small")
        ax.set(title=words, xlabel="splits", ylabel="µs of a step", ylim=(0, 1.1 * max(us.values())))
    axes[0].set_xlim(left=-1)
    axes[1].set_xticks(range(2, 13, 2))
    axes[0].legend(loc="lower right", fontsize="small")
    return figure
