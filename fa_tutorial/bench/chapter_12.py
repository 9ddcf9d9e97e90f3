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


def marked(guess: str, states: dict[str, torch.Tensor]) -> str:
    """A guess with its mark, and what is right where it's wrong. "all" stands for all tensors, "nothing" for "none",
    "all right" for "right"."""
    said = re.findall(r"\w+", guess.lower().replace("nothing", "none"))
    said = [word for word in said if word not in ("and", "in", "rows", "of", "o", "stay")]
    if len(states) > 1:
        said = [word for word in said if word != "right"]
        said = list(states) if said == ["all"] else said
    elif sorted(said) == ["all", "right"]:
        said = ["right"]
    if sorted(said) == sorted(in_words(states).lower().split()):
        return f"✓ {guess}"
    if len(states) == 1 and len(said) == 1 and said[0] == in_words(states).lower().split()[-1]:
        return f"? {guess}: in all rows, or in some"
    return f"✗ {guess} → {in_words(states)}"


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
