"""Chapter 10: what its page draws, and the lengths of its measurements. tools/measure measures what is stored."""

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from fa_tutorial.bench import results
from fa_tutorial.figures import COLOURS

NAMES = {"alibi": "ALiBi"}
PASSES = {"fwd": "forward", "bwd": "backward"}
# how a tile of each kind looks: 0 skipped, 1 mixed, 2 whole
LOOKS = (
    {"facecolor": "white", "edgecolor": "lightgrey"},
    {"facecolor": COLOURS["orange"], "edgecolor": "black", "hatch": "////"},
    {"facecolor": COLOURS["sky"], "edgecolor": "white"},
)
KINDS = ("skipped: not computed", "mixed: computed with the mask", "whole: computed without")


def documents(S: int, seed: int = 0) -> list[int]:
    """Lengths of documents that fill S tokens, long-tailed: many of some hundred tokens and few of some thousand."""
    generator = torch.Generator().manual_seed(seed)
    lengths: list[int] = []
    while sum(lengths) < S:
        length = int(torch.randn((), generator=generator).mul(1.3).add(6.0).exp())
        lengths.append(min(max(length, 16), S - sum(lengths)))
    return lengths


def document_kinds(lengths: list[int], block: int) -> torch.Tensor:
    """(blocks, blocks) integers: the kinds of the tiles of a causal mask within each document."""
    sizes = torch.tensor(lengths)
    first = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)  # each query's first key
    start = block * torch.arange(len(first) // block)
    row, column = start[:, None], start[None, :]
    needed = (column <= row) & (column + block > first[::block, None])
    whole = (column < row) & (column >= first[block - 1 :: block, None])
    return needed.int() + whole.int()


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
    """An H200's stored rows of this chapter: of "variant", "block_mask", "whole_tile", "cap", "order" or "crowded"."""
    return results.select(results.load("h200")["kernels"], chapter=10, kernel=kernel, **fields)


def stored(S: int = 16_384, mode: str = "fwd") -> pd.DataFrame:
    """The stored times of each variant at S."""
    return rows("variant", mode=mode, S=S)


def measured(mask: str, D: int, S: int = 16_384, mode: str = "fwd") -> float:
    """The stored ms with this mask, of the forward, or of the backward ("bwd")."""
    return results.select(stored(S, mode), provider=mask, D=D)["ms"].item()


def list_times(mask: str, D: int) -> list[float]:
    """The stored ms of a forward with this mask: with two lists of tiles, and with every whole tile listed as mixed."""
    return rows("whole_tile", mask=mask, D=D)["ms"].tolist()


def slots_at_work(idle: dict[str, list[float]], D: int) -> Figure:
    """How many slots of the GPU still work at each time, with the masks' measured times as vertical lines.

    idle: when each slot falls idle, in ms, from early to late, for two masks with two lists of tiles.
    """
    figure, ax = plt.subplots(figsize=(8.5, 2.8), layout="constrained")
    for (name, times), look in zip(idle.items(), (("blue", "-"), ("vermilion", "--")), strict=True):
        colour, style = look
        busy = range(len(times) - 1, -1, -1)
        ax.step(
            [0, *times], [len(times), *busy], style, where="post", color=COLOURS[colour], label=f"{name}, predicted"
        )
        ax.axvline(list_times(name, D)[0], color=COLOURS[colour], linestyle=":", label=f"{name}, measured end")
    ax.set(xlim=(0.3, 0.5), ylim=(0, 450), xticks=[0.3, 0.35, 0.4, 0.45, 0.5])
    ax.set_title(f"D = {D}")
    end = times[-1]  # of the second mask, whose longest programs end last
    words = f"{sum(t > end - 0.01 for t in times)} slots left"
    ax.annotate(words, (end - 0.005, 4), (end + 0.01, 70), arrowprops={"arrowstyle": "->"}, fontsize=10)
    ax.set(xlabel="ms (until 0.3 all slots work)", ylabel="slots at work")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def ours_against_flex() -> Figure:
    """Our time at S = 16,384 in shares of FlexAttention's, with our runs' 20th to 80th percentile.

    Without the documents by number, whose backward wasn't measured, and the soft cap, whose tanh is another one.
    """
    names = ("causal", "window", "alibi", "documents", "packed")
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.2), sharex=True, sharey=True, layout="constrained")
    for ax, D in zip(panels, (64, 128), strict=True):
        ax.axvline(1, color="black", linewidth=1)
        for mode, marker, aside in (("fwd", "o", -0.17), ("bwd", "s", 0.17)):
            times = results.select(stored(mode=mode), D=D).set_index("provider").loc[list(names)]
            ratio, low, high = (times[x] / times["flex_ms"] for x in ("ms", "ms_20", "ms_80"))
            down = [y + aside for y in range(len(names))]
            ax.errorbar(ratio, down, xerr=[ratio - low, high - ratio], fmt=marker, capsize=3, label=PASSES[mode])
            for y, x, end in zip(down, ratio, high, strict=True):
                behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
                ax.annotate(f"{x:.2f}", (end + 0.015, y), va="center", fontsize=9, bbox=behind)
        ax.set_title(f"D = {D}")
        ax.set(xlim=(0.7, 1.52), ylim=(len(names) - 0.5, -0.5))
    panels[0].set_yticks(range(len(names)), [NAMES.get(name, name) for name in names])
    words = "our time / FlexAttention's (left of 1: ours is faster; whiskers: our 20th to 80th percentile)"
    figure.supxlabel(words, fontsize=10)
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside right upper")
    return figure
