"""The look of the notebooks' own plots, the course's colours, the roofline, and the explorable figures. What draws
images/ is in images/draw."""

import base64
import html
import itertools
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from fa_tutorial import ledger

# Okabe and Ito (2008): readers with any colour vision tell them apart.
COLOURS = {
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "green": "#009E73",
    "orange": "#E69F00",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "black": "#000000",
    "yellow": "#F0E442",  # last: too pale for a line on white, good for an area
}
GREY = "#999999"

EXPLORABLE = Path(__file__).resolve().parents[1] / "images" / "explore"
FIRST_HEIGHT, WIDEST = 700, 860  # pixels; the page inside sets its own height


def style() -> None:
    """Set matplotlib's defaults for a notebook's plots: fa_tutorial.mplstyle."""
    plt.style.use(Path(__file__).with_name("fa_tutorial.mplstyle"))
    plt.switch_backend(plt.get_backend())  # now, so that a Figure shows as a picture before the first plt.subplots()


def roofline(ax: Axes, peak_flops: float, bandwidth: float, points: dict[str, tuple[float, float]]) -> None:
    """Draw the roofline (0.8) with its ridge marked, and a labelled point for each (intensity, flops), on log-log axes.
    peak_flops and flops in FLOP/s, bandwidth in byte/s, intensity in FLOP/byte, all above 0. The y axis is in
    TFLOP/s."""
    ridge = peak_flops / bandwidth
    intensities = [ridge, *(intensity for intensity, _ in points.values())]
    low, high = min(intensities) / 4, max(intensities) * 8
    corners = [low, ridge, high]  # straight lines on log-log axes
    roof = [ledger.attainable_flops(intensity, peak_flops, bandwidth) / 1e12 for intensity in corners]
    floor = min([roof[0], *(flops / 1e12 for _, flops in points.values())])
    ax.plot(corners, roof, color=COLOURS["black"], linestyle="-", linewidth=2)
    ax.axvline(ridge, color=GREY, linestyle=":")
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(floor / 3, 4 * roof[-1]))
    ax.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="TFLOP/s")
    ax.figure.draw_without_rendering()  # lays the axes out, so that labels can be placed by their extents
    marks = ax.transData.transform([(x, y / 1e12) for x, y in points.values()])
    taken = [Bbox.from_bounds(x - 8, y - 8, 16, 16) for x, y in marks]
    place_label(ax, f"ridge: {ridge:.0f} FLOP/byte", (ridge, floor / 2), taken)
    place_label(ax, f"roof: {peak_flops / 1e12:.0f} TFLOP/s", (ridge, 1.5 * roof[-1]), taken)
    colours = [colour for name, colour in COLOURS.items() if name not in ("black", "yellow")]
    looks = zip(itertools.cycle(colours), itertools.cycle("osD^vP*"), strict=False)
    for (name, (intensity, flops)), (colour, marker) in zip(points.items(), looks, strict=False):
        ax.plot([intensity], [flops / 1e12], color=colour, marker=marker, markersize=9, linestyle="none")
        place_label(ax, name, (intensity, flops / 1e12), taken)


def place_label(ax: Axes, text: str, point: tuple[float, float], taken: list[Bbox]) -> None:
    """Write `text` beside `point` (data coordinates), at the first of six places that is inside the axes and free of
    what is `taken`, and take it."""
    frame = ax.get_window_extent()
    label = ax.annotate(text, point, xytext=(0, 0), textcoords="offset points", va="center")
    label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})  # a label may lie on the ridge's line
    for dx, dy in ((9, -9), (9, 9), (-9, 9), (-9, -9), (9, -25), (-9, 25)):
        label.set(position=(dx, dy), ha="left" if dx > 0 else "right")
        extent = label.get_window_extent()
        inside = frame.x0 <= extent.x0 and extent.x1 <= frame.x1 and frame.y0 <= extent.y0 and extent.y1 <= frame.y1
        if inside and not any(extent.overlaps(other) for other in taken):
            break
    taken.append(label.get_window_extent())


def explore(name: str):
    """Show the explorable figure images/explore/<name>.html in a notebook, and its picture where scripts or frames
    don't run.

    The output holds the whole page, so a stored notebook needs no other file. Returns an IPython.display.HTML. Raises
    FileNotFoundError for an unknown name, or outside a clone of the course; ImportError without IPython.
    """
    try:
        from IPython.display import HTML
    except ModuleNotFoundError as error:
        raise ImportError(
            "figures.explore shows its figure in a notebook: open one, or `pip install ipython`"
        ) from error
    if not (EXPLORABLE / f"{name}.html").exists():
        there = ", ".join(sorted(page.stem for page in EXPLORABLE.glob("*.html")))
        known = f"there are {there}" if there else "they come with a clone of the course, not with the package"
        raise FileNotFoundError(f"no explorable figure {name!r} in {EXPLORABLE}: {known}")
    page = html.escape((EXPLORABLE / f"{name}.html").read_text(encoding="utf-8"))
    picture = base64.b64encode((EXPLORABLE / f"{name}.png").read_bytes()).decode()
    style = "grid-area: 1 / 1; max-width: 100%"
    image = f'<img data-explore src="data:image/png;base64,{picture}" alt="{name}" style="{style}">'
    # Transparent until the script inside hides the picture, which shows where that doesn't run.
    style = f"grid-area: 1 / 1; width: 100%; height: {FIRST_HEIGHT}px; border: 0; opacity: 0"
    frame = f'<iframe srcdoc="{page}" title="{name}" style="{style}"></iframe>'
    return HTML(f'<div style="display: grid; max-width: {WIDEST}px">{image}{frame}</div>')
