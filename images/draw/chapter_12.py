"""The drawings of chapter 12."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draw.drawing import DARK, HEAD, MASKED, WAITS, WIDTH, box, canvas, grid, image, legend, outline, write
from fa_tutorial.exercises.chapter_12.ex_2 import window_tiles

# ---------------------------------------------------------------- the file with the forward kernels

# Lines of csrc/flash_attn/src/flash_fwd_kernel.h at v2.8.3, as (first, name, colour): each part ends where the next one begins.
LINES = 1294
FILE = ((1, "", None), (51, "compute_attn_1rowblock", "green"), (495, "", None), (498, "compute_attn_1rowblock_splitkv", "sky"),
        (1072, "", None), (1110, "combine", "purple"), (1293, "", None))  # fmt: skip
KERNEL = ((51, "setup", "green"), (301, "loop, masks", "orange"), (377, "loop", "orange"), (431, "epilogue", "green"), (495, "", None))
# What flash_forward_kernel and attend do, too: tiles that are seen, loads, (4.1) to (4.5), stores. Read by hand, as are the sums below.
YOURS = ((83, 87), (91, 91), (250, 251), (267, 267), (269, 270), (283, 283), (285, 285), (298, 300), (302, 304), (310, 310), (313, 315),
         (319, 322), (328, 330), (335, 335), (342, 344), (347, 347), (367, 367), (375, 375), (378, 380), (383, 383), (386, 389), (397, 397),
         (403, 405), (407, 407), (409, 409), (428, 429), (433, 433), (436, 436), (475, 478), (491, 493))  # fmt: skip
KINDS = (("as in yours", 62, "black", 0.85), ("who copies what, and waits", 133, "blue", 0.45), ("features", 99, "yellow", 0.6),
         ("comments, blank lines", 150, "black", 0.12))  # fmt: skip


@image("12_kernel_lines.png")
def draw_kernel_lines() -> Figure:
    """The file of FA2's forward kernels to scale, its first kernel enlarged with the lines that the reader wrote, and what the others
    are."""
    figure, ax = canvas(4.45)
    left, wide = 0.15, WIDTH - 0.3
    draw_parts(ax, FILE, 1, LINES + 1, left, 0.45, wide)
    write(ax, left, 0.22, f"flash_fwd_kernel.h: {LINES:,} lines", HEAD, ha="left", weight="bold")
    first, last = KERNEL[0][0], KERNEL[-1][0]
    per_line = wide / LINES
    for line, x in ((first, left), (last, left + wide)):
        ax.plot((left + (line - 1) * per_line, x), (1.05, 1.77), color=DARK, linewidth=1, linestyle="--")
    write(ax, left + 0.35, 1.5, "black: the lines that do what yours do", HEAD, ha="left", weight="bold")
    draw_parts(ax, KERNEL, first, last, left, 1.77, wide)
    per_line = wide / (last - first)
    for start, end in YOURS:
        ax.fill_between((left + (start - first) * per_line, left + (end + 1 - first) * per_line), 2.37, 2.67, color="black", linewidth=0)
    outline(ax, left, 2.37, wide, 0.3, line=1)
    write(ax, left, 3.12, f"the same {last - first} lines, sorted by what they do", HEAD, ha="left", weight="bold")
    assert sum(count for _, count, _, _ in KINDS) == last - first
    assert sum(end + 1 - start for start, end in YOURS) == KINDS[0][1]
    x = left
    for name, count, colour, share in KINDS:
        box(ax, x, 3.37, count * per_line, 0.6, colour=colour, share=share)
        write(ax, x + count * per_line / 2, 3.67, f"{count}", HEAD, color="white" if share > 0.8 else "black")
        write(ax, x + count * per_line / 2, 4.2, name)
        x += count * per_line
    return figure


def draw_parts(ax: Axes, parts: tuple, first: int, last: int, left: float, top: float, wide: float) -> None:
    """A bar of lines first … last − 1 in its parts, each with its name and its number of lines."""
    per_line = wide / (last - first)
    for (start, name, colour), (end, *_) in zip(parts, (*parts[1:], (last,)), strict=True):
        if start < end:
            text = f"{name}\n{end - start}" if name else ""
            box(ax, left + (start - first) * per_line, top, (end - start) * per_line, 0.6, text, colour, share=0.4)


# ---------------------------------------------------------------- the loop's copies

# A lane's bars of the forward loop, as (start, end, text, whether it is a copy), in inches. Copies are drawn shorter than the work that
# hides them.
STEPS = (2.3, 3.7, 5.45, 6.85, 8.6)  # where an iteration's two halves begin: q kᵀ and the mask, softmax and p v
COPY = 1.1
LANES = {"k's buffer": 0.75, "v's buffer": 1.25, "work": 1.75}


@image("12_copies_and_work.png")
def draw_copies_and_work() -> Figure:
    """Two iterations of FA2's forward loop: what the buffers of k and v hold, what is computed meanwhile, and where the loop waits."""
    figure, ax = canvas(2.9)
    for lane, y in LANES.items():
        write(ax, 0.1, y + 0.2, lane, HEAD, ha="left")
    key, value, work = LANES.values()
    box(ax, STEPS[0] - COPY, work, COPY, 0.4, **WAITS)
    draw_held(ax, key, "orange", "k[n]", STEPS[0] - COPY, STEPS[1])
    for step, name in ((0, "n"), (2, "n − 1")):
        begin, middle, end = STEPS[step : step + 3]
        ax.plot([begin + 0.03, begin + 0.03, end - 0.03, end - 0.03], [0.4, 0.33, 0.33, 0.4], color="black", linewidth=1.2)
        write(ax, (begin + end) / 2, 0.16, f"n_block = {name}")
        draw_held(ax, value, "green", f"v[{name}]", begin, end)
        draw_held(ax, key, "orange", "k[n − 1]" if step == 0 else "k[n − 2]", middle, STEPS[3] if step == 0 else end)
        box(ax, begin, work, middle - begin, 0.4, "q kᵀ, mask", "sky", share=0.5)
        box(ax, middle, work, end - middle, 0.4, "softmax, p v", "sky", share=0.5)
    for wait in STEPS[:-1]:
        ax.plot([wait, wait], [0.5, 2.25], color="black", linewidth=2, linestyle="--", zorder=3)
        write(ax, wait, 0.6, "wait", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1}, zorder=4)
    legend(ax, 2.68, (
        (0.1, {"colour": "orange", "share": 0.8}, "copy of k"),
        (1.75, {"colour": "green", "share": 0.6}, "copy of v"),
        (3.4, {"colour": "orange", "share": 0.2}, "k is there"),
        (5.05, {"colour": "green", "share": 0.2}, "v is there"),
        (6.7, WAITS, "nothing to work on"),
    ))  # fmt: skip
    return figure


def draw_held(ax: Axes, y: float, colour: str, text: str, start: float, end: float) -> None:
    """A tile in its buffer: the copy from `start` on, then what it holds until the next copy may overwrite it."""
    box(ax, start, y, COPY, 0.4, text, colour, share=0.8 if colour == "orange" else 0.6)
    box(ax, start + COPY, y, end - start - COPY, 0.4, colour=colour, share=0.2)


# ---------------------------------------------------------------- windows

S, BLOCK, SIDE = 16, 4, 0.168
WINDOWS = ((-1, 0), (7, 3), (1, 1))  # (left, right); a left of −1 is no limit
NUMBERED = 2  # the block of rows whose bounds are written under the drawing


@image("12_window_tiles.png")
def draw_window_tiles() -> Figure:
    """Tiles of three windows, whole, masked and skipped: causal alone, seven keys back with three ahead, and one key on each side."""
    figure, ax = canvas(4.9)
    for column, (left, right) in enumerate(WINDOWS):
        draw_window(ax, 0.15 + column * 3.0, 0.95, left, right)
    legend(ax, 4.5, (
        (0.15, {"colour": "sky", "share": 0.6}, "whole: no mask"),
        (2.1, {"colour": "orange", "share": 0.7}, "masked tile, seen"),
        (4.3, {"colour": "orange", "share": 0.15, "hatch": MASKED}, "masked tile, hidden"),
        (6.7, {}, "skipped: never read"),
    ))  # fmt: skip
    return figure


def draw_window(ax: Axes, x: float, top: float, left: int, right: int) -> None:
    """The S x S elements of one window in tiles of BLOCK x BLOCK, and how many tiles of each kind there are."""
    ahead = torch.arange(S) - torch.arange(S)[:, None]
    seen = (ahead <= right) & ((left < 0) | (ahead >= -left))
    tiles = seen.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))  # [row block, row, key block, key]
    whole, touched = tiles.all(dim=3).all(dim=1), tiles.any(dim=3).any(dim=1)

    def look(row: int, col: int) -> dict:
        tile = (row // BLOCK, col // BLOCK)
        if whole[tile]:
            return {"colour": "sky", "share": 0.6}
        if not touched[tile]:
            return {}
        return {"colour": "orange", "share": 0.7} if seen[row, col] else {"colour": "orange", "share": 0.15, "hatch": MASKED}

    name = "no limit" if left < 0 else f"{left}"
    write(ax, x, 0.2, f"left {name}, right {right}", HEAD, ha="left", weight="bold")
    grid(ax, x, top, S, S, SIDE, look)
    for row in range(0, S, BLOCK):
        for col in range(0, S, BLOCK):
            outline(ax, x + col * SIDE, top + row * SIDE, BLOCK * SIDE, BLOCK * SIDE, line=1.3)
    counts = int(whole.sum()), int((touched & ~whole).sum()), int((~touched).sum())
    write(ax, x, 0.46, "{} whole, {} masked, {} skipped".format(*counts), ha="left")
    write(ax, x, 0.76, "queries ↓, keys →", ha="left")
    start, full_0, full_1, end = window_tiles(NUMBERED, BLOCK, BLOCK, S, S, left, right)
    outline(ax, x, top + NUMBERED * BLOCK * SIDE, S * SIDE, BLOCK * SIDE, line=3)
    write(ax, x, top + S * SIDE + 0.25, f"thick: start = {start}, end = {end},", ha="left")
    write(ax, x, top + S * SIDE + 0.52, f"full_0 = {full_0}, full_1 = {full_1}", ha="left")
    assert x + S * SIDE < WIDTH
