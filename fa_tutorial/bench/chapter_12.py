"""Chapter 12: what its page draws, and how it judges a broken result."""

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from fa_tutorial.figures import COLOURS

# how a row looks, from the best to the worst
LOOKS = {
    "right": {"facecolor": "white", "edgecolor": "lightgrey"},
    "wrong": {"facecolor": COLOURS["orange"], "edgecolor": "black", "hatch": "////"},
    "NaN": {"facecolor": "black", "edgecolor": "white"},
}


def row_states(got: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """What has become of each row of a result: 0 for right, 1 for wrong, 2 for NaN."""
    is_wrong = ~torch.isclose(got.double(), truth, atol=3e-4).all(dim=1)  # p has 11 bits
    return torch.where(got.isnan().any(dim=1), 2, is_wrong.int())


def marked(guess: str, rows: torch.Tensor) -> str:
    """A guess of the worst that happens to a row, one of LOOKS, with its mark; "" for none."""
    word, worst = guess.strip().lower(), list(LOOKS)[int(rows.max())]
    if word not in ("", *map(str.lower, LOOKS)):
        return f"? {guess}: say right, wrong or NaN"
    return word and (f"✓ {worst}" if word == worst.lower() else f"✗ {guess} → {worst}")


def ruined_rows(changes: dict[str, torch.Tensor], guesses: dict[str, str]) -> Figure:
    """A strip for each change, with a square for each row of o as `row_states` gives it, and beside it the guess, if
    there is one."""
    width = max(map(len, changes.values()))
    figure, ax = plt.subplots(figsize=(10, 0.95 + 0.27 * len(changes)), layout="constrained")
    for line, (name, rows) in enumerate(changes.items()):
        for row, state in enumerate(rows.tolist()):
            ax.add_patch(Rectangle((row, line + 0.12), 1, 0.76, linewidth=0.5, **list(LOOKS.values())[state]))
        text = marked(guesses.get(name, ""), rows)
        colour = "black" if text.startswith("✓") else COLOURS["vermilion"]
        ax.text(width + 0.4, line + 0.5, text, va="center", color=colour)
    ax.set(xlim=(-0.1, width + 0.1), ylim=(len(changes), 0), title="rows of o")
    ax.set_xticks([row + 0.5 for row in range(0, width, 8)], [f"{row}" for row in range(0, width, 8)])
    ax.set_yticks([line + 0.5 for line in range(len(changes))], list(changes))
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    handles = [Patch(linewidth=0.5, label=name, **look) for name, look in LOOKS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure
