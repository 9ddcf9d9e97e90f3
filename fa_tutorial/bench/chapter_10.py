"""Chapter 10: what its page draws, and the lengths of its measurements. tools/measure measures what is stored."""

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from fa_tutorial.bench import results
from fa_tutorial.figures import COLOURS

# how a tile of each kind looks: 0 skipped, 1 mixed, 2 whole
LOOKS = (
    {"facecolor": "white", "edgecolor": "lightgrey"},
    {"facecolor": COLOURS["orange"], "edgecolor": "black", "hatch": "////"},
    {"facecolor": COLOURS["sky"], "edgecolor": "white"},
)
KINDS = ("skipped: not computed", "mixed: computed with the mask", "whole: computed without")


def documents(S: int) -> list[int]:
    """Lengths of documents that fill S tokens, long-tailed: many of some hundred tokens and few of some thousand."""
    generator = torch.Generator().manual_seed(0)
    lengths: list[int] = []
    while sum(lengths) < S:
        length = int(torch.randn((), generator=generator).mul(1.3).add(6.0).exp())
        lengths.append(min(max(length, 16), S - sum(lengths)))
    return lengths


def tile_grids(kinds: dict[str, torch.Tensor]) -> Figure:
    """A grid for each mask. kinds: (blocks of queries, blocks of keys) integers, 0 skipped, 1 mixed, 2 whole."""
    figure, panels = plt.subplots(1, len(kinds), figsize=(11, 3.1), layout="constrained")
    for ax, (name, grid) in zip(panels, kinds.items(), strict=True):
        for (row, column), kind in zip((grid >= 0).nonzero().tolist(), grid.flatten().tolist(), strict=True):
            ax.add_patch(Rectangle((column, row), 1, 1, linewidth=0.5, **LOOKS[kind]))
        ax.set(xlim=(0, grid.shape[1]), ylim=(len(grid), 0), aspect="equal", xticks=[], yticks=[])
        ax.set_xlabel("blocks of keys")
        mixed, whole = (int((grid == kind).sum()) for kind in (1, 2))
        ax.set_title(f"{name}\n{mixed} mixed, {whole} whole", fontsize=10)
    panels[0].set_ylabel("blocks of queries")
    handles = [Patch(linewidth=0.5, label=name, **look) for name, look in zip(KINDS, LOOKS, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def rows(kernel: str, **fields: object) -> pd.DataFrame:
    """An H200's stored rows of this chapter, by provider: of "variant", "whole_tile", "cap" or "price"."""
    return results.select(results.load("h200")["kernels"], chapter=10, kernel=kernel, **fields).set_index("provider")


def list_times(mask: str) -> dict[str, float]:
    """The stored ms with this mask: of a forward with two lists of tiles, of one with every whole tile listed as mixed,
    and of finding the tiles."""
    return dict(zip(("two lists", "all mixed", "finding"), rows("whole_tile", mask=mask)["ms"], strict=True))


# a row of the chart's upper panels, with its tile, in the backward dk's and dv's -> the stored run of causal attention
# that took turns with chapter 8's
PRICED = {
    "fwd": {"chapter 8, 64 × 64": "chapter 8, 64x64", "ours, 64 × 64": "lists", "ours, 128 × 64": "lists, 128x64"},
    "bwd": {"chapter 8, 32 × 64": "chapter 8, 32x64", "ours, 32 × 64": "lists", "ours, 64 × 64": "lists, 64x64"},
}
# a row of the lower ones -> the stored contest with FlexAttention
VARIANTS = {
    "window of all keys": "causal",
    "window of 1,024 keys": "window",
    "ALiBi": "alibi",
    "24 documents": "documents",
    "24 documents, packed": "packed",
}


def prices(mode: str) -> tuple[dict[str, list[float]], dict[str, tuple[list[float], list[float]]]]:
    """By the rows of the upper panel, and of the lower one: stored times of the runs, in the lower one ours and
    FlexAttention's, each divided by chapter 8's of causal attention in the same run."""
    runs = rows("price", mode=mode).pivot(columns="run", values="ms")
    upper = {name: (runs.loc[provider] / runs.loc["chapter 8"]).tolist() for name, provider in PRICED[mode].items()}
    contests = rows("variant", mode=mode)
    shares = contests[["ms", "flex_ms"]].div(contests["causal_ms"], axis=0)
    lower = {name: tuple([float(share)] for share in shares.loc[provider]) for name, provider in VARIANTS.items()}
    lower["window of all keys"][0].extend((runs.loc["window"] / runs.loc["chapter 8"]).tolist())
    return upper, lower


def price_chart() -> Figure:
    """The prices, forward and backward: above those of our kernels and tiles, below those of variants. A bar ends at
    the most of its runs; beside it stand the least and the most."""
    figure, panels = plt.subplots(2, 2, figsize=(9, 5.4), sharex=True, height_ratios=(3, 5), layout="constrained")
    for (upper, lower), mode, title in zip(panels.T, PRICED, ("forward", "backward"), strict=True):
        ours_alone, contests = prices(mode)
        for row, (name, times) in enumerate(ours_alone.items()):
            draw_price(upper, row, times, "lightgrey" if name.startswith("chapter 8") else COLOURS["blue"], 0.7)
        for row, times in enumerate(contests.values()):
            for place, own, colour in zip((row - 0.2, row + 0.2), times, ("blue", "orange"), strict=True):
                draw_price(lower, place, own, COLOURS[colour], 0.38)
        for ax, names in ((upper, ours_alone), (lower, contests)):
            ax.axvline(1, color="black", linestyle="--", linewidth=1)
            ax.set_yticks(range(len(names)), list(names))
            ax.invert_yaxis()
            ax.grid(visible=False, axis="y")
        upper.set_title(f"{title}, causal{' (tiles of dk and dv)' if mode == 'bwd' else ''}")
        lower.set(xlim=(0, 1.65), xticks=(0, 0.5, 1, 1.5))
        lower.set(title=f"{title}, variants", xlabel="time / chapter 8's of causal attention")
    lower.tick_params(labelleft=False)  # as the forward's
    looks = (("lightgrey", "chapter 8 in our tile"), (COLOURS["blue"], "ours"), (COLOURS["orange"], "FlexAttention"))
    handles = [Patch(color=colour, label=name) for colour, name in looks]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def draw_price(ax: Axes, y: float, times: list[float], colour: str, height: float) -> None:
    ax.barh(y, max(times), height, color=colour)
    digits = 2 if max(times) > 0.5 else 3  # of a short bar one more
    text = "–".join(sorted({f"{min(times):.{digits}f}", f"{max(times):.{digits}f}"}))
    ax.text(max(times) + 0.02, y, text, va="center", fontsize=9)
