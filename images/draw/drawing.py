"""What every drawing is made of: the canvas, boxes, arrows and text, in the course's colours. Coordinates are inches from the top left."""

import math
from collections.abc import Callable, Iterable

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from draw.look import DARK, DPI, HEAD, SMALL, WIDTH
from fa_tutorial.figures import COLOURS, GREY

IMAGES: dict[str, Callable[[], Figure]] = {}  # what draws each file of images/


def image(name: str, height: float, width: float = WIDTH) -> Callable:
    """Register draw(ax) as what draws images/<name>, white and of width x height inches; ax: in inches from the top left corner."""

    def register(draw: Callable[[Axes], None]) -> Callable:
        def drawn() -> Figure:
            figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
            ax = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
            ax.set_axis_off()
            draw(ax)
            return figure

        IMAGES[name] = drawn
        return draw

    return register


def tint(colour: str, share: float) -> tuple[float, ...]:
    """A colour of COLOURS mixed into white; share 1 is the colour itself."""
    return tuple(1 - share * (1 - part) for part in to_rgb(COLOURS[colour]))


def write(ax: Axes, x: float, y: float, text: str, size: float = SMALL, **options) -> None:
    """Text centred on (x, y) unless `options` (ha, va, weight, …) say otherwise."""
    ax.text(x, y, text, **{"fontsize": size, "ha": "center", "va": "center", **options})


def note(ax: Axes, x: float, y: float, text: str, size: float = SMALL, **options) -> None:
    """Text that begins at x."""
    write(ax, x, y, text, size, **{"ha": "left", **options})


def writes(ax: Axes, x: float, y: float, texts: Iterable, dx: float = 0.0, dy: float = 0.0, size: float = SMALL, **options) -> None:
    """Texts, the first one at (x, y), each dx to the right of the one before and dy below it."""
    for i, text in enumerate(texts):
        write(ax, x + i * dx, y + i * dy, text, size, **options)


def notes(ax: Axes, x: float, y: float, lines: Iterable[str], size: float = SMALL, step: float = 0.27) -> None:
    """Lines of text from (x, y) downwards."""
    writes(ax, x, y, lines, 0, step, size, ha="left")


def bracket(ax: Axes, x0: float, x1: float, y: float, text: str = "", high: float = 0.08) -> None:
    """A bracket whose ends point to y from y − high (below y where `high` is negative), and text beyond its middle."""
    ax.plot([x0, x0, x1, x1], [y, y - high, y - high, y], color="black", linewidth=1.2)
    write(ax, (x0 + x1) / 2, y - 3 * high, text)


def heading(ax: Axes, x: float, y: float, text: str) -> None:
    """A heading that begins at x."""
    note(ax, x, y, text, HEAD, weight="bold")


def box(ax: Axes, x, y, width, height, text="", colour=None, *, share=0.3, size=SMALL, hatch=None, line=1.0, dashed=False, weight="normal"):
    """A rectangle from its top left corner, tinted with a colour of COLOURS (white without one), with text in its middle."""
    face = tint(colour, share) if colour else "white"
    edge = COLOURS["black"] if line > 1.5 else DARK if hatch else GREY  # hatching takes the colour of the edge
    look = {"facecolor": face, "edgecolor": edge, "hatch": hatch, "linewidth": line, "linestyle": "--" if dashed else "-"}
    ax.add_patch(Rectangle((x, y), width, height, zorder=2 if line > 1.5 else 1, **look))
    if text:
        behind = {"facecolor": face, "edgecolor": "none", "pad": 1} if hatch else None
        write(ax, x + width / 2, y + height / 2, text, size, weight=weight, zorder=3, bbox=behind)


def outline(ax: Axes, x: float, y: float, width: float, height: float, *, dashed: bool = False, line: float = 2.2) -> None:
    """A black frame over what is already drawn."""
    look = {"edgecolor": COLOURS["black"], "linewidth": line, "linestyle": "--" if dashed else "-"}
    ax.add_patch(Rectangle((x, y), width, height, fill=False, zorder=2.5, **look))


Look = Callable[[int, int], dict | None]


def grid(ax: Axes, x: float, y: float, rows: int, cols: int, side: float, look: Look, tall: float | None = None) -> None:
    """rows x cols cells, square or `tall`; look(row, col) gives each one's options for `box`, or None where there is no cell."""
    tall = tall or side
    for row in range(rows):
        for col in range(cols):
            if (options := look(row, col)) is not None:
                box(ax, x + col * side, y + row * tall, side, tall, **options)


def frames(ax: Axes, x: float, y: float, rows: int, cols: int, side: float, tile: tuple[int, int], line: float = 2.2) -> None:
    """A frame around each tile, of `tile` rows and columns, of a grid of square cells; the last ones end with the grid."""
    for row in range(0, rows, tile[0]):
        for col in range(0, cols, tile[1]):
            width, height = min(tile[1], cols - col) * side, min(tile[0], rows - row) * side
            outline(ax, x + col * side, y + row * side, width, height, line=line)


def legend(ax: Axes, y: float, entries: tuple[tuple[float, dict, str], ...]) -> None:
    """A line of small boxes, each (x, its look as options for `box`, text beside it); y: its middle."""
    for x, look, text in entries:
        box(ax, x, y - 0.12, 0.3, 0.24, **look)
        note(ax, x + 0.4, y, text)


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = "black", *, dashed: bool = False,
          curve: float = 0.0, width: float = 1.6) -> None:  # fmt: skip
    """An arrow between two points, bent by `curve` (a share of its length)."""
    look = {"color": COLOURS[colour], "linewidth": width, "linestyle": "--" if dashed else "-", "zorder": 2.8}
    look |= {"mutation_scale": 13 if width <= 3 else 5 * width, "connectionstyle": f"arc3,rad={curve}"}
    ax.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", shrinkA=0, shrinkB=0, **look))


def sample(ax: Axes, x: float, y: float, text: str, colour: str = "black", long: float = 0.45, **look) -> None:
    """In a line of a legend: an arrow from x on, and what it means."""
    arrow(ax, (x, y), (x + long, y), colour, **look)
    note(ax, x + long + 0.1, y, text)


def digits(value: float) -> str:
    """A whole number as it is, any other to four decimals."""
    return number(value) if float(value).is_integer() else f"{value:.4f}".replace("-", "−")


def number(value: float) -> str:
    """A number in at most four digits, −∞ for the maximum of nothing."""
    return "−∞" if value == -math.inf else f"{value:.4g}".replace("-", "−")
