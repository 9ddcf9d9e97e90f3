"""Draw every image of the course: `make figures`, or `PYTHONPATH=images python -m draw`."""

import argparse
from pathlib import Path

import matplotlib.style

from draw import IMAGES

FOLDER = Path(__file__).resolve().parents[1]
STYLE = {"font.family": "DejaVu Sans", "hatch.linewidth": 0.8, "text.hinting": "force_autohint", "text.usetex": False}


def save(name: str, folder: Path) -> None:
    """Draw one of IMAGES into `folder`, the same way whatever matplotlib's settings are on this machine."""
    with matplotlib.style.context(["default", STYLE]):
        IMAGES[name]().savefig(folder / name, metadata={"Software": None})  # without matplotlib's version, so that only the pixels count


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
