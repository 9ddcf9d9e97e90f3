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
    """An H200's stored rows of this chapter, by provider: of "variant", "whole_tile", "cost" or "cap_error"."""
    return results.select(results.load("h200")["kernels"], chapter=10, kernel=kernel, **fields).set_index("provider")


def list_times(mask: str) -> dict[str, float]:
    """The stored ms with this mask: of a forward with two lists of tiles, of one with every whole tile listed as mixed,
    and of finding the tiles."""
    return dict(zip(("two lists", "all mixed", "finding"), rows("whole_tile", mask=mask)["ms"], strict=True))


# a bar of the chart -> the stored run that took turns with "causal", our kernel with the causal mask alone
COSTS = {
    "chapter 8's kernel": "chapter 8",
    "chapter 8's, in our tile": "chapter 8, our tile",
    "sinks": "sinks",
    "dropout, P = 0.1": "dropout",
    "soft cap": "cap",
    "ALiBi": "alibi",
    "bias for each pair": "bias",
    "window of 1,024 keys": "window",
    "24 documents, packed": "packed",
}


def costs(mode: str) -> pd.DataFrame:
    """The stored times of three runs, divided by those of our kernel with the causal mask alone, by provider. ms: the
    middle run's; from ms_20 to ms_80 lie at least three fifths of each run's launches."""
    runs = rows("cost", mode=mode)
    causal = runs.loc["causal"].set_index("run")["ms"]
    shares = runs[["ms", "ms_20", "ms_80"]].div(runs["run"].map(causal), axis=0)
    return shares.groupby(level="provider").agg({"ms": "median", "ms_20": "min", "ms_80": "max"})


def cost_chart() -> Figure:
    """The costs, forward and backward. A bar ends at the middle run, or is cut; a line shows its ms_20 and ms_80."""
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.9), sharey=True, layout="constrained")
    right = 2.75
    colours = ["lightgrey" if name.startswith("chapter 8") else COLOURS["blue"] for name in COSTS]
    for ax, mode, title in zip(panels, ("fwd", "bwd"), ("forward", "backward"), strict=True):
        shares = costs(mode).loc[list(COSTS.values())]
        ax.barh(range(len(COSTS)), shares["ms"], 0.7, color=colours)
        for row, (end, least, most) in enumerate(shares.itertuples(index=False)):
            ax.hlines(row, least, most, color="black", linewidth=1.5)
            x, look = max(most, 1) + 0.02 * right, {}
            if end > right:
                x, look = 0.98 * right, {"ha": "right", "color": "white"}
                ax.plot([0.75 * right, 0.78 * right], [row + 0.45, row - 0.45], "w-", linewidth=5)
            ax.text(x, row, f"{end:.2f}", va="center", fontsize=9, **look)
        ax.axvline(1, color="black", linestyle="--", linewidth=1)
        ax.set_yticks(range(len(COSTS)), list(COSTS))
        ax.set(title=title, xlim=(0, right), xlabel="time / our kernel's, causal mask alone")
        ax.grid(visible=False, axis="y")
    panels[0].invert_yaxis()
    return figure


def flex_shares() -> pd.DataFrame:
    """Stored times, divided by ours of the same run: of chapter 8's causal kernel, and of FlexAttention by variant."""
    shares = {}
    for mode, name in (("fwd", "forward"), ("bwd", "backward")):
        ms = rows("variant", mode=mode)
        flex = (ms["flex_ms"] / ms["ms"])[["causal", "window", "alibi", "packed"]].add_prefix("FlexAttention, ")
        shares[name] = {"chapter 8's kernel, causal": ms["causal_ms"]["causal"] / ms["ms"]["causal"], **flex}
    return pd.DataFrame(shares).round(2)


def cap_errors() -> pd.DataFrame:
    """How far o of a capped head is off with either tanh, by dtype, where scores go far beyond the cap."""
    errors = rows("cap_error").sort_values("largest").groupby(["dtype", "provider"])["error"].last()
    return errors.unstack().rename_axis(index=None, columns=None).round(4)
