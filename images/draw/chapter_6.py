"""Chapter 6: two queries and six keys go through both loops of the tiled backward."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draw.chapters_4_5 import EXAMPLE_SCORES, EXAMPLE_VALUES
from draw.drawing import BODY, DPI, HEAD, TENSOR_COLOUR, WIDTH, arrow, box, image, number, outline, write
from fa_tutorial import algorithm, reference

# With q = 1 the first query has the scores of chapter 4's example.
Q, K, V, DO = (1.0, -1.0), EXAMPLE_SCORES, EXAMPLE_VALUES, (1.0, 2.0)
KEYS = 2  # keys a block; a block of queries is one query
CELL_W, CELL_H = 0.92, 0.52
LEFT, TOP = 1.95, 1.35  # of the grid of tiles


def gradient_steps() -> list[tuple[str, int, int, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]]:
    """(loop, query, key block, p, ds, sums so far) of each tile: first the loop that owns keys, then the one that owns queries."""
    q, k, v, do = (torch.tensor(x, dtype=torch.float64).view(1, 1, -1, 1) for x in (Q, K, V, DO))
    o, lse = reference.attention(q, k, v, scale=1.0)
    delta = algorithm.row_delta(o, do)
    sums = {"dq": torch.zeros(2, dtype=torch.float64), "dk": torch.zeros(6, dtype=torch.float64), "dv": torch.zeros(6, dtype=torch.float64)}
    tiles = [(i, j) for j in range(3) for i in range(2)], [(i, j) for i in range(2) for j in range(3)]
    steps = []
    for loop, order in zip(("keys", "queries"), tiles, strict=True):
        for i, j in order:
            rows, keys = slice(i, i + 1), slice(j * KEYS, (j + 1) * KEYS)
            p, ds = (x[0, 0] for x in algorithm.p_and_ds(q, k, v, do, lse, delta, rows, keys, False, 1.0))
            if loop == "keys":
                sums["dv"][keys] += (p.T @ do[0, 0, rows])[:, 0]
                sums["dk"][keys] += (ds.T @ q[0, 0, rows])[:, 0]
            else:
                sums["dq"][rows] += (ds @ k[0, 0, keys])[:, 0]
            steps.append((loop, i, j, p[0], ds[0], {name: x.clone() for name, x in sums.items()}))
    truth = reference.gradients(q, k, v, do, scale=1.0)
    assert all(torch.allclose(sums[name], x[0, 0, :, 0]) for name, x in zip(("dq", "dk", "dv"), truth, strict=True))
    return steps


@image("06_two_walks.png")
def draw_two_walks() -> Figure:
    """A step of each loop, the second tile of its walk: the numbers at hand, and the sums so far."""
    upper, lower = 3.75, 3.95  # inches
    height = upper + lower
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
    for bottom, tall, count in ((lower, upper, 3), (0, lower, 7)):
        ax = figure.add_axes((0, bottom / height, 1, tall / height), xlim=(0, WIDTH), ylim=(tall, 0))
        ax.set_axis_off()
        draw_step(ax, gradient_steps()[count], complete(count + 1))
    note = "strong frame: the sums that this tile adds to; dashed: empty; bold: complete. scale = 1"
    write(ax, 0.15, 3.75, note, ha="left")
    return figure


def complete(count: int) -> set[tuple[str, int]]:
    """Which sums are complete after `count` tiles: (name, index)."""
    done = {(name, key) for key in range(6) if count >= 2 * (key // KEYS + 1) for name in ("dk", "dv")}
    return done | {("dq", i) for i in range(2) if count >= 6 + 3 * (i + 1)}


def draw_step(ax: Axes, step: tuple, done: set[tuple[str, int]]) -> None:
    """The tensors around the grid of tiles, the tile at hand with its numbers, and the sums so far."""
    loop, now_i, now_j, *_, sums = step
    keys = f"keys {now_j * KEYS} and {now_j * KEYS + 1}"
    if loop == "keys":
        title = f"first loop owns {keys}, meets query {now_i}: adds pᵀ do to dv and scale · dsᵀ q to dk"
    else:
        title = f"second loop owns query {now_i}, meets {keys}: adds scale · ds k to dq"
    write(ax, 0.15, 0.25, title, HEAD, ha="left", weight="bold")
    bottom = TOP + 2 * CELL_H + 0.35
    for row, (name, values) in enumerate((("k", K), ("v", V))):
        write(ax, LEFT - 0.15, TOP - 0.63 + row * 0.32, name, BODY, ha="right", weight="bold")
        for key, value in enumerate(values):
            look = {"colour": TENSOR_COLOUR[name], "share": 0.6 if key // KEYS == now_j else 0.15}
            box(ax, LEFT + key * CELL_W, TOP - 0.79 + row * 0.32, CELL_W, 0.32, number(value), **look)
    for col, (name, values, colour) in enumerate((("q", Q, "q"), ("do", DO, "o"))):
        x = 0.15 + col * 0.65
        write(ax, x + 0.325, TOP - 0.2, name, BODY, weight="bold")
        for i, value in enumerate(values):
            look = {"share": 0.6 if i == now_i else 0.15, "size": BODY}
            box(ax, x, TOP + i * CELL_H, 0.65, CELL_H, number(value), TENSOR_COLOUR[colour], **look)
    draw_tiles(ax, step)
    for row, name in enumerate(("dk", "dv")):
        write(ax, LEFT - 0.15, bottom + 0.2 + row * 0.42, name, BODY, ha="right", weight="bold")
        for key in range(6):
            draw_sum(ax, LEFT + key * CELL_W, bottom + row * 0.42, 0.4, name, key, sums, done)
    x = LEFT + 6 * CELL_W + 0.5
    write(ax, x + CELL_W / 2, TOP - 0.2, "dq", BODY, weight="bold")
    for i in range(2):
        draw_sum(ax, x, TOP + i * CELL_H, CELL_H, "dq", i, sums, done)
    if loop == "keys":
        middle = LEFT + (now_j + 0.5) * KEYS * CELL_W
        arrow(ax, (middle, TOP + (now_i + 1) * CELL_H), (middle, bottom), width=2.2)
        outline(ax, LEFT + now_j * KEYS * CELL_W, bottom, KEYS * CELL_W, 0.82)
    else:
        arrow(ax, (LEFT + (now_j + 1) * KEYS * CELL_W, TOP + (now_i + 0.5) * CELL_H), (x, TOP + (now_i + 0.5) * CELL_H), width=2.2)
        outline(ax, x, TOP + now_i * CELL_H, CELL_W, CELL_H)


def draw_tiles(ax: Axes, step: tuple) -> None:
    """The grid of tiles: only the one at hand has numbers."""
    for i in range(2):
        for key in range(6):
            x, y = LEFT + key * CELL_W, TOP + i * CELL_H
            if (i, key // KEYS) == step[1:3]:
                _, _, j, p, ds, _ = step
                text = f"{places(p[key - j * KEYS])}\n{places(ds[key - j * KEYS])}"
                box(ax, x, y, CELL_W, CELL_H, text, "yellow", share=0.6)
            else:
                box(ax, x, y, CELL_W, CELL_H)
    write(ax, LEFT - 0.07, TOP + (step[1] + 0.5) * CELL_H, "p\nds", ha="right", weight="bold")
    for i in range(2):
        for j in range(3):
            outline(ax, LEFT + j * KEYS * CELL_W, TOP + i * CELL_H, KEYS * CELL_W, CELL_H, line=1.4)


def places(value: float) -> str:
    """A number to four places, as the chapter's cells print it."""
    return f"{value:.4f}".replace("-", "−")


def draw_sum(ax: Axes, x: float, y: float, tall: float, name: str, index: int, sums: dict[str, torch.Tensor], done: set) -> None:
    """One element of a gradient: dashed while empty, pale while it grows, strong when it is complete."""
    value, is_done = float(sums[name][index]), (name, index) in done
    colour = TENSOR_COLOUR[name[1:]] if value else None
    look = {"share": 0.6 if is_done else 0.2, "weight": "bold" if is_done else "normal", "dashed": not value}
    box(ax, x, y, CELL_W, tall, places(value) if value else "", colour, **look)
