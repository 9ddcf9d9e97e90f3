"""Chapter 10: what its page draws, and the lengths of its measurements. tools/measure measures what is stored."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from fa_tutorial.bench import results
from fa_tutorial.figures import COLOURS, GREY

NAMES = {"softcap": "soft cap", "alibi": "ALiBi"}
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


def document_tiles(lengths: list[int], block: int) -> list[int]:
    """How many tiles of block × block a causal mask within each document leaves of each block of queries."""
    ends = torch.tensor(lengths).cumsum(0)
    first = (ends - torch.tensor(lengths)).repeat_interleave(torch.tensor(lengths))[::block]  # of each tile row's keys
    return (torch.arange(len(first)) - first // block + 1).tolist()


def padded_lengths(B: int, S: int, seed: int = 0) -> list[int]:
    """Long-tailed lengths of a batch that is padded to S: many texts of some hundred tokens, one that fills S."""
    lengths = 400 * torch.exp(torch.randn(B, generator=torch.Generator().manual_seed(seed)))
    return [S, *lengths.clamp(64, S).int().tolist()[1:]]


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


def score_curves(c: float, H: int) -> Figure:
    """The soft cap at c with its derivative, and what ALiBi adds to a score in each of H heads."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8))
    s, distance = torch.linspace(-3 * c, 3 * c, 121), torch.arange(33)
    left.plot(s, s, color=GREY, linewidth=1, label="s")
    left.plot(s, c * torch.tanh(s / c), "-", label=f"soft cap, c = {c:g}")
    left.plot(s, 1 - torch.tanh(s / c) ** 2, "--", label="its derivative")
    left.set(xlabel="s", ylabel="score, or derivative", ylim=(-2 * c, 2 * c))
    left.legend()
    for h, style in zip(range(1, H + 1), ("-", "--", "-.", ":"), strict=False):
        right.plot(distance, -(2.0 ** (-8 * h / H)) * distance, style, label=f"head {h}")
    right.set(xlabel="distance", ylabel="added to s")
    right.legend()
    return figure


def dropout_masks(kept: torch.Tensor) -> Figure:
    """A square for each pair of a query and a key, a panel for each head. kept: (heads, queries, keys) booleans."""
    figure, panels = plt.subplots(1, len(kept), figsize=(3.4 * len(kept), 3.5), layout="constrained")
    colours = ListedColormap(["black", COLOURS["sky"]])
    for head, (ax, mask) in enumerate(zip(panels, kept.int(), strict=True)):
        ax.imshow(mask, cmap=colours, vmin=0, vmax=1, interpolation="nearest")
        ax.set(title=f"head {head}: black is dropped", xlabel="keys", ylabel="queries")
        ax.grid(False)
    return figure


def time_against_tiles(rows: pd.DataFrame, tiles: dict[str, float]) -> Figure:
    """Each variant's time at S = 16,384, in shares of `causal`'s, with its runs from the 20th to the 80th percentile.

    rows: those of kernel "variant"; tiles: each variant's share of the causal mask's tiles, a line.
    """
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.2), sharey=True, layout="constrained")
    places = dict(zip(tiles, range(len(tiles)), strict=True))
    starts = [place - 0.35 for place in places.values()]
    for ax, D in zip(panels, (64, 128), strict=True):
        for (mode, label), marker, shift in zip(PASSES.items(), "os", (-0.15, 0.15), strict=True):
            found = results.select(rows, mode=mode, S=16_384, D=D)
            base = results.select(found, provider="causal")["ms"].item()
            shares = found["ms"] / base
            spread = [abs(found[f"ms_{end}"] - found["ms"]) / base for end in (20, 80)]
            ax.errorbar(found["provider"].map(places) + shift, shares, spread, fmt=marker, capsize=4, label=label)
        ax.hlines(list(tiles.values()), starts, [x + 0.7 for x in starts], color="black", label="share of the tiles")
        ax.set(yscale="log", ylim=(0.07, 3), title=f"D = {D}, {2048 // D} heads")
        ax.set_xticks(list(places.values()), [NAMES.get(name, name) for name in places], rotation=30)
        ax.set_yticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
        ax.minorticks_off()
    panels[0].set_ylabel("time / causal's")
    panels[1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def places_at_work(idle: dict[str, list[float]], measured: dict[str, float]) -> Figure:
    """How many places of the GPU still work at each time, for each mask, with the measured times as vertical lines.

    idle: when each place falls idle, in ms, from early to late; measured: ms.
    """
    figure, ax = plt.subplots(figsize=(8, 2.8), layout="constrained")
    for (mask, times), colour, style in zip(idle.items(), ("blue", "vermilion"), ("-", "--"), strict=True):
        busy = [*range(len(times), 0, -1), 0]
        ax.step([0, *times], [len(times), *busy[1:]], style, where="post", color=COLOURS[colour], label=mask)
        ax.axvline(measured[mask], color=COLOURS[colour], linestyle=":", label=f"{mask}, measured")
    ax.set(xlabel="ms", ylabel="places at work", xlim=(0.3, 0.5), ylim=(0, 450), xticks=[0.3, 0.35, 0.4, 0.45, 0.5])
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def flex_against_ours(rows: pd.DataFrame) -> Figure:
    """FlexAttention's time over ours at S = 16,384, a panel for each pass, with our runs' 20th to 80th percentile.

    Without the soft cap, whose tanhs differ, and without the documents by number, which have no such time.
    """
    figure, panels = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
    for ax, (mode, name) in zip(panels, PASSES.items(), strict=True):
        for D, marker in ((64, "o"), (128, "s")):
            found = results.select(
                rows[~rows["provider"].isin(("softcap", "documents_by_number"))], mode=mode, S=16_384, D=D
            )
            ratio, low, high = (found["flex_ms"] / found[f"ms{end}"] for end in ("", "_80", "_20"))
            names = found["provider"].replace(NAMES)
            ax.errorbar(names, ratio, [ratio - low, high - ratio], fmt=marker, capsize=4, label=f"D = {D}")
        ax.axhline(1, color=GREY, linewidth=1)
        ax.tick_params(axis="x", rotation=30)
        ax.set(title=f"{name}, S = 16,384", ylim=(0, 1.6))
    panels[0].set_ylabel("FlexAttention's time / ours")
    panels[1].legend(loc="lower left")
    return figure
