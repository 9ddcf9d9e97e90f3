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


def prices(mode: str) -> pd.DataFrame:
    """The stored ms of causal attention by chapter 8's kernels and this chapter's, a column for each run in turns."""
    stored = rows("price", mode=mode)
    return stored.pivot(columns="run", values="ms").loc[stored.index.unique()]


VARIANTS = ("causal", "window", "documents", "alibi", "softcap")


def price_bars() -> Figure:
    """Each variant's stored time, and FlexAttention's with its mask and score, as a share of what chapter 8's causal
    kernel took in the same run. A line at the package's spans the middle three fifths of its calls."""
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
    package = {"facecolor": COLOURS["blue"]}
    flex = {"facecolor": COLOURS["orange"], "hatch": "////", "edgecolor": "black"}
    for ax, mode, name in zip(panels, ("fwd", "bwd"), ("forward", "backward"), strict=True):
        for place, (_, one) in enumerate(rows("variant", mode=mode).loc[list(VARIANTS)].iterrows()):
            low, ours, high, theirs = one[["ms_20", "ms", "ms_80", "flex_ms"]] / one["causal_ms"]
            spread = {"xerr": [[ours - low], [high - ours]], "ecolor": "black", "capsize": 2}
            ax.barh(place - 0.2, ours, 0.38, **package, **spread)
            ax.barh(place + 0.2, theirs, 0.38, **flex, linewidth=0.5)
            ax.text(high + 0.04, place - 0.2, f"{ours:.2f}", va="center", fontsize=9)
            ax.text(theirs + 0.04, place + 0.2, f"{theirs:.2f}", va="center", fontsize=9)
        ax.axvline(1, color="black", linewidth=1, linestyle=":")
        ax.set(title=name, xlim=(0, 3), xlabel="time / chapter 8's causal kernel")
    panels[0].set_yticks(range(len(VARIANTS)), VARIANTS)
    panels[0].invert_yaxis()
    handles = [Patch(label=name, **look) for name, look in (("the package", package), ("FlexAttention", flex))]
    panels[1].legend(handles=handles, title="line: the middle 60 % of its calls", loc="center right", fontsize=10)
    return figure
