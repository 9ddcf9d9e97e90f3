"""Film online_softmax.html for the README, in headless Chromium: python images/explore/animation.py
(Playwright is in the extra `browser`)."""

import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).resolve().parent
SIZE = {"width": 640, "height": 800}
COLOURS = 64
LOOK_MS, MOVE_MS = 1_800, 160


def film(page: Page) -> list[tuple[Image.Image, int]]:
    """The frames, each with the milliseconds that it stays: three blocks are seen, a score grows, and alpha is left out."""
    top, last = (page.locator(name).bounding_box() for name in (".controls", "#verdict"))
    clip = {"x": 0, "y": top["y"] - 4, "width": SIZE["width"], "height": last["y"] + last["height"] + 12 - top["y"]}
    frames = []

    def keep(milliseconds: int) -> None:
        frames.append((Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB"), milliseconds))

    page.locator("#carry").set_checked(True)
    page.locator("#carry").blur()
    page.locator("#block").select_option("2")
    page.locator("#back").click(click_count=2)
    for _ in range(3):
        page.locator("#forward").click()
        keep(LOOK_MS)
    slider = page.locator("#score4")
    slider.focus()
    while float(slider.input_value()) < 7.5:
        page.keyboard.press("ArrowRight")
        keep(MOVE_MS)
    slider.blur()
    keep(LOOK_MS)
    for is_on in (False, True):
        for name in ("#rescale_l", "#rescale_acc"):
            page.locator(name).set_checked(is_on)
            page.locator(name).blur()
        keep(2 * LOOK_MS)
    return frames


def main() -> None:
    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=shutil.which("chromium") or shutil.which("google-chrome"))
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto((FOLDER / "online_softmax.html").as_uri())
        pictures, times = zip(*film(page), strict=True)
        browser.close()
    # One palette for all frames, and each frame only where it differs from the one before: that keeps the file small.
    strip = Image.new("RGB", (pictures[0].width, sum(picture.height for picture in pictures)))
    for place, picture in enumerate(pictures):
        strip.paste(picture, (0, place * picture.height))
    palette = strip.quantize(COLOURS)
    first, *rest = (picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures)
    target = FOLDER / "online_softmax.gif"
    first.save(target, save_all=True, append_images=rest, duration=times, loop=0, optimize=True)
    print(f"{target.name}: {target.stat().st_size / 1024:.0f} KiB, {len(pictures)} frames")


if __name__ == "__main__":
    main()
