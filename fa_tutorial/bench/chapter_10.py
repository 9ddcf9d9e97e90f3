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


# a row of the page's table -> the stored forward and backward that took turns with chapter 8's
PRICED = {
    "chapter 8, our tile": ("chapter 8, 64x64", "chapter 8, 32x64"),
    "ours": ("lists", "lists"),
    "ours, chapter 8's tile": ("lists, 128x64", "lists, 64x64"),
    "window": ("window", "window"),
}


def prices() -> dict[str, list[str]]:
    """Stored times of causal attention, divided by chapter 8's in the same run, forward and backward: the least and the
    most of the runs."""
    found: dict[str, list[str]] = {name: [] for name in (*PRICED, "FlexAttention")}
    for place, mode in enumerate(("fwd", "bwd")):
        runs = rows("price", mode=mode).pivot(columns="run", values="ms")
        shares = {name: (runs.loc[both[place]] / runs.loc["chapter 8"]).tolist() for name, both in PRICED.items()}
        one = rows("variant", mode=mode).loc["causal"]  # a run of the window beside FlexAttention
        shares["window"].append(one["ms"] / one["causal_ms"])
        shares["FlexAttention"] = [one["flex_ms"] / one["causal_ms"]]
        for name, some in shares.items():
            found[name].append(" to ".join(sorted({f"{min(some):.2f}", f"{max(some):.2f}"})))
    return found
