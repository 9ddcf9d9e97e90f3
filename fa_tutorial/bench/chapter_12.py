"""Chapter 12: what its page draws, and how it judges a broken result."""

import re
from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from fa_tutorial.figures import COLOURS

# how a row looks: 0 right, 1 wrong, 2 NaN
LOOKS = (
    {"facecolor": "white", "edgecolor": "lightgrey"},
    {"facecolor": COLOURS["orange"], "edgecolor": "black", "hatch": "////"},
    {"facecolor": "black", "edgecolor": "white"},
)
NAMES = ("right", "wrong", "NaN")


def row_states(got: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """What has become of each row of a result: 0 for right, 1 for wrong, 2 for NaN."""
    is_wrong = ~torch.isclose(got.double(), truth, atol=1e-5).all(dim=1)
    return torch.where(got.isnan().any(dim=1), 2, is_wrong.int())


def in_words(states: dict[str, torch.Tensor]) -> str:
    """What a change does to one tensor: "right", or the worst of it, in some or all rows. Of several tensors those that
    stay right, or "none"."""
    if len(states) > 1:
        return " ".join(name for name, rows in states.items() if not rows.any()) or "none"
    (rows,) = states.values()
    worst = int(rows.max())
    return NAMES[0] if worst == 0 else f"{'all' if (rows == worst).all() else 'some'} {NAMES[worst]}"


SAME = {"nothing": "none", "every": "all", "everywhere": "all", "correct": "right", "false": "wrong"}
ONE = "say right, some wrong, all wrong, some NaN or all NaN"
SEVERAL = "name those that stay right, or say none"


def marked(guess: str, states: dict[str, torch.Tensor]) -> str:
    """A guess with its mark, and what is right where it's wrong, or, where nobody can tell what it says, what to say.

    It is marked by the words that `in_words` has, in any order: all others may stand beside them. Of several tensors
    "all" are all of them, and "all but" or "all except" leaves out those that follow.
    """
    said = [SAME.get(word, word) for word in re.findall(r"\w+", guess.lower())]
    several = len(states) > 1
    named = [name for name in states if name in said]
    meant = meaning_of_several(said, named, list(states)) if several else meaning_of_one(said)
    if meant is None:
        return f"? {guess}: {SEVERAL if several else ONE}"
    right = in_words(states)
    if meant == right.lower():
        return f"✓ {guess}"
    if not several and meant == right.lower().split()[-1]:
        return f"? {guess}: in all rows, or in some"
    return f"✗ {guess} → {right}"


def meaning_of_several(said: list[str], named: list[str], names: list[str]) -> str | None:
    """The tensors that a guess says to stay right, in the words of `in_words`; None where it doesn't say."""
    if {"wrong", "nan", "not", "t"} & set(said):
        return None
    if {"but", "except"} & set(said):
        left_out = [name for name in names if name in said]
        return " ".join(name for name in names if name not in left_out) or "none"
    if named:
        return " ".join(named) if "none" not in said else None
    return " ".join(names) if "all" in said else "none" if "none" in said else None


def meaning_of_one(said: list[str]) -> str | None:
    """What a guess says of o's rows, in the words of `in_words`; None where it doesn't say."""
    worst = next((name for name in ("nan", "wrong", "right") if name in said), None)
    extents = {"all", "some"} & set(said)
    if worst is None or len(extents) > 1 or {"not", "none", "t"} & set(said) or (worst == "right" and "some" in said):
        return None
    return worst if worst == "right" or not extents else f"{extents.pop()} {worst}"


def ruined_rows(changes: dict[str, dict[str, torch.Tensor]], guesses: Sequence[str] = ()) -> Figure:
    """A strip for each change, with a square for each row of each tensor: 0 right, 1 wrong, 2 NaN.

    guesses: the reader's, a change each, in the words of `in_words`, or "all" tensors; "" for none.
    """
    tensors = next(iter(changes.values()))
    widths = [len(rows) for rows in tensors.values()]
    size = 10, 0.95 + 0.27 * len(changes)
    options = {"width_ratios": widths, "layout": "constrained", "squeeze": False}
    figure, panels = plt.subplots(1, len(widths), figsize=size, **options)
    for ax, name, width in zip(panels[0], tensors, widths, strict=True):
        for line, states in enumerate(changes.values()):
            for row, state in enumerate(states[name].tolist()):
                ax.add_patch(Rectangle((row, line + 0.12), 1, 0.76, linewidth=0.5, **LOOKS[state]))
        ax.set(xlim=(-0.1, width + 0.1), ylim=(len(changes), 0), yticks=[], title=f"rows of {name}")
        ax.set_xticks([row + 0.5 for row in range(0, width, 8)], [f"{row}" for row in range(0, width, 8)])
        ax.tick_params(length=0)
        ax.grid(False)
        for spine in ax.spines.values():
            spine.set_visible(False)
    panels[0][0].set_yticks([line + 0.5 for line in range(len(changes))], list(changes))
    for line, (guess, states) in enumerate(zip(guesses, changes.values(), strict=False)):
        if guess:
            text = marked(guess, states)
            colour = "black" if text.startswith("✓") else COLOURS["vermilion"]
            panels[0][-1].text(widths[-1] + 0.4, line + 0.5, text, va="center", color=colour)
    handles = [Patch(linewidth=0.5, label=label, **look) for label, look in zip(NAMES, LOOKS, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure
