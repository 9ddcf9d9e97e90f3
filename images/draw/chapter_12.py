"""The drawings of chapter 12."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draw.drawing import BODY, HEAD, MASKED, WIDTH, arrow, box, canvas, grid, image, legend, number, outline, write
from fa_tutorial import softmax

# ---------------------------------------------------------------- the map of the repository

MONO = {"family": "DejaVu Sans Mono"}
# (folder, colour, ((file, what to look for there, where the course has it), …)), in reading order
REPOSITORY = (
    ("flash_attn/", "blue", (
        ("flash_attn_interface.py", "flash_attn_func", "flash_attention; 5, 7"),
    )),
    ("csrc/flash_attn/", "sky", (
        ("flash_api.cpp", "mha_fwd, mha_bwd", "check_attention; 5, 7"),
    )),
    ("csrc/flash_attn/src/", "green", (
        ("flash.h", "Flash_fwd_params", "a kernel's arguments; 2, 5"),
        ("flash_fwd_launch_template.h", "run_mha_fwd_hdim64", "CONFIGS, TILES; 5, 8"),
        ("flash_fwd_kernel.h", "compute_attn_1rowblock", "flash_forward_kernel; 5, 11"),
        ("softmax.h", "softmax_rescale_o", "softmax_step, attend; 1, 4, 8"),
        ("mask.h", "Mask", "causal_tiles; 4, 10"),
        ("block_info.h", "BlockInfo", "strides and lengths; 2, 10"),
        ("kernel_traits.h", "kBlockM, kBlockN", "TileConfig; 5, 8"),
        ("flash_bwd_preprocess_kernel.h", "compute_dot_do_o", "delta_kernel; 6, 7"),
        ("flash_bwd_kernel.h", "compute_dq_dk_dv_1colblock", "dkdv_kernel, dq_kernel; 7, 9"),
    )),
    ("hopper/", "orange", (
        ("mainloop_fwd_sm90_….hpp", "TMA, wgmma, their loop", "producer, consumer; 9"),
    )),
    ("flash_attn/cute/", "purple", (
        ("flash_fwd_sm90.py, …sm100.py", "the same in Python", "forward_kernel; 9"),
    )),
)  # fmt: skip


@image("12_repository_map.png")
def draw_repository_map() -> Figure:
    """The files of the official repository in reading order, each with what to look for, and the course's function and chapters beside it."""
    tall = 0.37
    rows = sum(len(files) for _, _, files in REPOSITORY)
    figure, ax = canvas(0.5 + rows * tall + len(REPOSITORY) * 0.34 + 0.1)
    for x, head in ((0.62, "file"), (3.5, "look for"), (6.2, "here; chapters")):
        write(ax, x, 0.25, head, HEAD, ha="left", weight="bold")
    y, place = 0.5, 0
    for folder, colour, files in REPOSITORY:
        write(ax, 0.12, y + 0.19, folder, ha="left", weight="bold", **MONO)
        y += 0.34
        for file, wanted, ours in files:
            place += 1
            box(ax, 0.12, y, 0.4, tall - 0.05, f"{place}", colour, share=0.6, weight="bold")
            box(ax, 0.52, y, 5.38, tall - 0.05, colour=colour, share=0.2)
            write(ax, 0.62, y + tall / 2 - 0.02, file, ha="left", **MONO)
            write(ax, 3.5, y + tall / 2 - 0.02, wanted, ha="left")
            arrow(ax, (5.92, y + tall / 2 - 0.02), (6.17, y + tall / 2 - 0.02))
            write(ax, 6.24, y + tall / 2 - 0.02, ours, ha="left")
            y += tall
    return figure


# ---------------------------------------------------------------- split-KV

SCORES = (2.0, 1.0, 0.0, 4.0, 3.0, 1.0, 5.0, 2.0)
VALUES = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0)
SPLITS = 4


@image("12_split_kv.png")
def draw_split_kv() -> Figure:
    """One query with D = 1 and eight keys in four parts: (o, lse) of each by a program of its own, and their sum by (12.1)."""
    figure, ax = canvas(4.75)
    scores, values = torch.tensor(SCORES, dtype=torch.float64), torch.tensor(VALUES, dtype=torch.float64)[:, None]
    size = len(scores) // SPLITS
    parts = [softmax.running_weighted_sum(s, v, block=1) for s, v in zip(scores.split(size), values.split(size), strict=True)]
    o, lse = softmax.running_weighted_sum(scores, values, block=1)
    left, cell, gap = 1.15, 0.85, 0.25
    for text, y in (("scores", 0.55), ("values", 0.93), ("programs", 1.9), ("weights", 2.87), ("combine", 3.75)):
        write(ax, 0.1, y, text, BODY, ha="left", weight="bold")
    total = 0.0
    for part, (o_part, lse_part) in enumerate(parts):
        x = left + part * (size * cell + gap)
        middle = x + size * cell / 2
        for key in range(size):
            place = part * size + key
            box(ax, x + key * cell, 0.37, cell, 0.36, f"{SCORES[place]:g}", "yellow", share=0.5)
            box(ax, x + key * cell, 0.75, cell, 0.36, f"{VALUES[place]:g}", "green", share=0.4)
        arrow(ax, (middle, 1.13), (middle, 1.48), "blue")
        box(ax, x, 1.5, size * cell, 0.8, f"o = {number(o_part.item())}\nlse = {number(lse_part.item())}", "sky", share=0.5, line=1.6)
        weight = torch.exp(lse_part - lse)
        total += float(weight * o_part[0])
        arrow(ax, (middle, 2.32), (middle, 3.38), "vermilion")
        write(ax, middle, 2.87, f"{weight.item():.4f}", BODY, bbox={"facecolor": "white", "edgecolor": "none", "pad": 2})
    assert abs(total - o.item()) < 1e-12
    wide = SPLITS * (size * cell + gap) - gap
    box(ax, left, 3.4, wide, 0.7, f"o = {number(total)}     lse = {number(lse.item())}", "purple", share=0.4, size=HEAD, line=1.6)
    write(ax, 0.1, 4.45, "a weight is the exponential of (lse of the part − lse of all); the four add up to 1 (12.1)", ha="left")
    return figure


# ---------------------------------------------------------------- windows

S, BLOCK, SIDE = 16, 4, 0.168
WINDOWS = ((-1, 0), (7, 0), (7, 3))  # (left, right); a left of −1 is no limit


@image("12_window_tiles.png")
def draw_window_tiles() -> Figure:
    """Tiles of three windows, whole, masked and skipped: causal alone, seven keys back, and seven back with three ahead."""
    figure, ax = canvas(4.3)
    for column, (left, right) in enumerate(WINDOWS):
        draw_window(ax, 0.15 + column * 3.0, 0.75, left, right)
    legend(ax, 3.9, (
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
    write(ax, x, 0.25, f"left {name}, right {right}", HEAD, ha="left", weight="bold")
    grid(ax, x, top, S, S, SIDE, look)
    for row in range(0, S, BLOCK):
        for col in range(0, S, BLOCK):
            outline(ax, x + col * SIDE, top + row * SIDE, BLOCK * SIDE, BLOCK * SIDE, line=1.3)
    counts = int(whole.sum()), int((touched & ~whole).sum()), int((~touched).sum())
    write(ax, x, 0.53, "{} whole, {} masked, {} skipped".format(*counts), ha="left")
    assert x + S * SIDE < WIDTH
