"""Chapter 10: what its page draws, and the lengths of its measurements. tools/measure measures what is stored."""

import matplotlib.pyplot as plt
import pandas as pd
import torch
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


def list_times(mask: str) -> list[float]:
    """The stored ms with this mask: of a forward with two lists of tiles, of one with every whole tile listed as mixed,
    and of finding the tiles."""
    return rows("whole_tile", mask=mask)["ms"].tolist()


# a row of the page's chart -> the stored forward and backward that took turns with chapter 8's
PRICED = {
    "chapter 8, our tile": ("chapter 8, 64x64", "chapter 8, 32x64"),
    "ours": ("lists", "lists"),
    "ours, chapter 8's tile": ("lists, 128x64", "lists, 64x64"),
    "ours, a window of all keys": ("window", "window"),
}
# another row -> the stored contest with FlexAttention
VARIANTS = {
    "ours, a window of all keys": "causal",
    "window of 1,024 keys": "window",
    "ALiBi": "alibi",
    "24 documents": "documents",
    "24 documents, packed": "packed",
}


def prices(mode: str) -> dict[str, tuple[list[float], list[float]]]:
    """By the chart's rows: stored times of the runs, ours and FlexAttention's, each divided by chapter 8's of causal
    attention in the same run."""
    runs = rows("price", mode=mode).pivot(columns="run", values="ms")
    place = ("fwd", "bwd").index(mode)
    found: dict[str, tuple[list[float], list[float]]] = {
        name: ((runs.loc[both[place]] / runs.loc["chapter 8"]).tolist(), []) for name, both in PRICED.items()
    }
    contests = rows("variant", mode=mode)
    shares = contests[["ms", "flex_ms"]].div(contests["causal_ms"], axis=0)
    for name, provider in VARIANTS.items():
        for times, share in zip(found.setdefault(name, ([], [])), shares.loc[provider], strict=True):
            times.append(float(share))
    return found


def price_chart() -> Figure:
    """The prices, forward and backward. A bar ends at the most of its runs; beside it stand the least and the most."""
    figure, panels = plt.subplots(1, 2, figsize=(9, 4.6), sharey=True, layout="constrained")
    for ax, (mode, title) in zip(panels, (("fwd", "forward"), ("bwd", "backward")), strict=True):
        found = prices(mode)
        for row, (name, (ours, flex)) in enumerate(found.items()):
            own = "lightgrey" if name.startswith("chapter 8") else COLOURS["blue"]
            y, height = (row - 0.2, 0.38) if flex else (row, 0.7)
            for times, colour in ((ours, own), (flex, COLOURS["orange"])):
                if times:
                    ax.barh(y, max(times), height, color=colour)
                    text = "–".join(sorted({f"{min(times):.2f}", f"{max(times):.2f}"}))
                    ax.text(max(times) + 0.02, y, text, va="center", fontsize=9)
                y += 0.4
        ax.axvline(1, color="black", linestyle="--", linewidth=1)
        ax.axhline(len(PRICED) - 0.5, color="lightgrey", linewidth=1)
        ax.set(title=title, xlim=(0, 1.65), xticks=(0, 0.5, 1, 1.5), xlabel="time / chapter 8's of causal attention")
        ax.grid(visible=False, axis="y")
    panels[0].set_yticks(range(len(found)), list(found))
    panels[0].invert_yaxis()
    looks = (("lightgrey", "chapter 8"), (COLOURS["blue"], "ours"), (COLOURS["orange"], "FlexAttention"))
    handles = [Patch(color=colour, label=name) for colour, name in looks]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure
