"""Every image of the course, drawn by code, and the look of the notebooks' own plots.

`python -m fa_tutorial.figures` draws all of FIGURES and ANIMATIONS into images/. A drawing's coordinates are inches from its top left
corner, y downwards as the rows of a matrix. Numbers in a drawing are computed by the package, not typed. Colours are those of Okabe and
Ito (2008), which readers with any colour vision tell apart; hatching, labels or line styles say the same thing again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from fa_tutorial.figures import chapter_8, chapter_9, chapter_10, chapters_6_7
from fa_tutorial.figures.chapters_0_1 import (
    CHAPTER_TITLES,
    HANDS_ON,
    PHASES,
    draw_course_map,
    draw_memory_hierarchy,
    draw_merge_tree,
    draw_naive_kernels,
    draw_online_softmax,
)
from fa_tutorial.figures.chapters_2_3 import (
    draw_block_matmul,
    draw_grid_and_mask,
    draw_program_order,
    draw_skeleton,
    draw_strides,
    draw_transpose_tiles,
    example_matrices,
)
from fa_tutorial.figures.chapters_4_5 import (
    animate_running_state,
    draw_causal_tiles,
    draw_gqa,
    draw_grid,
    draw_memory_of_states,
    draw_over_the_end,
    draw_running_state,
    draw_two_loop_orders,
    draw_two_loops,
)
from fa_tutorial.figures.drawing import COLOURS, DPI, canvas, in_drawing_style, write
from fa_tutorial.figures.plots import roofline, style

__all__ = [
    "ANIMATIONS", "CHAPTER_TITLES", "COLOURS", "FIGURES", "HANDS_ON", "IMAGES", "PHASES",
    "canvas", "example_matrices", "main", "roofline", "save", "save_animation", "style", "write",
]  # fmt: skip

IMAGES = Path(__file__).resolve().parents[2] / "images"
ANIMATION_DPI = 100
FRAME_MS, LAST_FRAME_MS = 1500, 4000

FIGURES: dict[str, Callable[[], Figure]] = {
    "00_course_map": draw_course_map,
    "00_memory_hierarchy": draw_memory_hierarchy,
    "00_naive_kernels": draw_naive_kernels,
    "01_online_softmax": draw_online_softmax,
    "01_merge_tree": draw_merge_tree,
    "02_strides": draw_strides,
    "02_grid_and_mask": draw_grid_and_mask,
    "02_transpose_tiles": draw_transpose_tiles,
    "03_block_matmul": draw_block_matmul,
    "03_program_order": draw_program_order,
    "03_skeleton": draw_skeleton,
    "04_two_loop_orders": draw_two_loop_orders,
    "04_causal_tiles": draw_causal_tiles,
    "04_running_state": draw_running_state,
    "04_memory_of_states": draw_memory_of_states,
    "05_grid": draw_grid,
    "05_two_loops": draw_two_loops,
    "05_over_the_end": draw_over_the_end,
    "05_gqa": draw_gqa,
    "06_vector_jacobian": chapters_6_7.draw_vector_jacobian,
    "06_softmax_jacobian": chapters_6_7.draw_softmax_jacobian,
    "06_data_flow": chapters_6_7.draw_data_flow,
    "06_two_loops": chapters_6_7.draw_two_loops,
    "06_atomics": chapters_6_7.draw_atomics,
    "06_training_memory": chapters_6_7.draw_training_memory,
    "06_five_and_seven": chapters_6_7.draw_five_and_seven,
    "07_transposed_tile": chapters_6_7.draw_transposed_tile,
    "07_kernels": chapters_6_7.draw_kernels,
    "07_group_sum": chapters_6_7.draw_group_sum,
    "08_pipeline_timeline": chapter_8.draw_pipeline_timeline,
    "08_flattened_heads": chapter_8.draw_flattened_heads,
    "08_order_of_programs": chapter_8.draw_order_of_programs,
    "09_one_warpgroup": chapter_9.draw_one_warpgroup,
    "09_overlapped": chapter_9.draw_overlapped,
    "09_roles_and_ring": chapter_9.draw_roles_and_ring,
    "09_ring_stages": chapter_9.draw_ring_stages,
    "10_repository_map": chapter_10.draw_repository_map,
    "10_split_kv": chapter_10.draw_split_kv,
    "10_window_tiles": chapter_10.draw_window_tiles,
}
# A function for the frames of each; one of FIGURES of the same name shows all steps at once.
ANIMATIONS: dict[str, Callable[[], list[Figure]]] = {"04_running_state": animate_running_state}


@in_drawing_style
def save(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG that holds nothing but its pixels: no date, no software."""
    figure.savefig(path, dpi=DPI, metadata={"Software": None})


@in_drawing_style
def save_animation(frames: list[Figure], path: Path) -> None:
    """Write frames of one size as a GIF that repeats for ever, all in one palette; the last frame stays longest."""
    pixels = []
    for frame in frames:
        frame.set_dpi(ANIMATION_DPI)
        frame_canvas = FigureCanvasAgg(frame)
        frame_canvas.draw()
        pixels.append(np.asarray(frame_canvas.buffer_rgba())[..., :3])
    images = indexed(np.stack(pixels))
    times = [FRAME_MS] * (len(images) - 1) + [LAST_FRAME_MS]
    images[0].save(path, format="GIF", save_all=True, append_images=images[1:], duration=times, loop=0, optimize=False)


def indexed(frames: np.ndarray) -> list[Image.Image]:
    """(n, height, width, 3) bytes as images in one palette, the 256 most frequent colours; each other colour becomes the nearest of them.

    Flat areas keep their colours exactly; what is rounded are shades at the edges of lines.
    """
    colours, where, counts = np.unique(frames.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    palette = colours[np.argsort(-counts, kind="stable")[:256]]
    distance = ((colours[:, None].astype(int) - palette[None].astype(int)) ** 2).sum(axis=-1)
    indices = distance.argmin(axis=1).astype(np.uint8)[where].reshape(frames.shape[:3])
    images = []
    for frame in indices:
        image = Image.fromarray(frame)
        image.putpalette(palette.tobytes())  # makes it an image of palette entries
        images.append(image)
    return images


def main(arguments: list[str] | None = None) -> None:
    """Draw FIGURES and ANIMATIONS into the folder that --out names."""
    parser = argparse.ArgumentParser(prog="python -m fa_tutorial.figures", description="Draw the course's figures.")
    parser.add_argument(
        "--out", type=Path, default=IMAGES, metavar="DIR", help="folder for the PNG and GIF files (default: the repository's images/)"
    )
    out = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        path = out / f"{name}.png"
        figure = draw()
        save(figure, path)
        report(path, figure, DPI)
    for name, animate in ANIMATIONS.items():
        path = out / f"{name}.gif"
        frames = animate()
        save_animation(frames, path)
        report(path, frames[0], ANIMATION_DPI)


def report(path: Path, figure: Figure, dpi: int) -> None:
    """Print a file's name, its size in pixels and in KiB."""
    width, height = (round(inches * dpi) for inches in figure.get_size_inches())
    print(f"{path.name}: {width} x {height} pixels, {path.stat().st_size / 1024:.0f} KiB")
