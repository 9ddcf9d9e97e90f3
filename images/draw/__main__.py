"""Draw every image of the course: `make figures`, or `PYTHONPATH=images python -m draw`."""

import argparse
from pathlib import Path

import matplotlib.style
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from draw import IMAGES

FOLDER = Path(__file__).resolve().parents[1]
STYLE = {"font.family": "DejaVu Sans", "hatch.linewidth": 0.8, "text.hinting": "force_autohint", "text.usetex": False}
ANIMATION_DPI = 100
FRAME_MS, LAST_FRAME_MS = 1500, 4000


def save(name: str, folder: Path) -> None:
    """Draw one of IMAGES into `folder`, the same way whatever matplotlib's settings are on this machine."""
    with matplotlib.style.context(["default", STYLE]):
        drawn = IMAGES[name]()
        if isinstance(drawn, list):
            save_animation(drawn, folder / name)
        else:
            drawn.savefig(folder / name, metadata={"Software": None})  # without matplotlib's version, so that only the pixels count


def save_animation(frames: list[Figure], path: Path) -> None:
    """Write frames of one size as a GIF that repeats for ever; the last frame stays longest.

    All frames share one palette, the 256 most frequent colours, and each other colour becomes the nearest of them. So flat areas keep their
    colours exactly, and only shades at the edges of lines are rounded.
    """
    pixels = []
    for frame in frames:
        frame.set_dpi(ANIMATION_DPI)
        canvas = FigureCanvasAgg(frame)
        canvas.draw()
        pixels.append(np.asarray(canvas.buffer_rgba())[..., :3])
    colours, where, counts = np.unique(np.concatenate(pixels).reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    palette = colours[np.argsort(-counts, kind="stable")[:256]]
    distance = ((colours[:, None].astype(int) - palette.astype(int)) ** 2).sum(axis=-1)
    images = []
    for indices in distance.argmin(axis=1).astype(np.uint8)[where].reshape(len(frames), *pixels[0].shape[:2]):
        images.append(Image.fromarray(indices))
        images[-1].putpalette(palette.tobytes())
    times = [FRAME_MS] * (len(images) - 1) + [LAST_FRAME_MS]
    images[0].save(path, format="GIF", save_all=True, append_images=images[1:], duration=times, loop=0, optimize=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m draw", description="Draw the course's images.")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="DIR", help="folder for the files (default: the repository's images/)")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name in IMAGES:
        save(name, out)
        print(f"{name}: {(out / name).stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
