"""Draw the PNG beside each explorable figure, which shows its first state where scripts don't run: python images/explore/snapshots.py."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

FOLDER = Path(__file__).parent
WIDTH, HEIGHT = 760, 1_400
MARGIN = 12
COLOURS = 128


def snapshot(page: Path) -> Path:
    """Take a picture of `page` in headless Chromium, cut off the empty space below the figure, and store it with few colours."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        options = [
            "--headless",
            "--no-sandbox",
            "--hide-scrollbars",
            f"--window-size={WIDTH},{HEIGHT}",
            f"--screenshot={shot}",
        ]
        subprocess.run([browser, *options, page.as_uri()], check=True, capture_output=True, timeout=60)
        whole = Image.open(shot).convert("RGB")
    bottom = ImageChops.difference(whole, Image.new("RGB", whole.size, "white")).getbbox()[3]
    target = page.with_suffix(".png")
    cut = whole.crop((0, 0, whole.width, bottom + MARGIN))
    cut.quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(target, optimize=True)
    return target


if __name__ == "__main__":
    for page in sorted(FOLDER.resolve().glob("*.html")):
        print(snapshot(page).name)
