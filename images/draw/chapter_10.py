"""The drawings of chapter 10."""

import math
from itertools import accumulate

from matplotlib.axes import Axes

from draw.drawing import BODY, GREY, MASKED, SMALL, arrow, box, heading, image, legend, note, outline, tint, write
from fa_tutorial.figures import COLOURS as PALETTE

MONO = {"family": "DejaVu Sans Mono"}

# (a line of chapter 5's loop, its colour, the place that a variant takes there, who does), from top to bottom
LOOP = (
    ("m, l, acc = −∞, 0, 0", "purple", "the denominator", "sinks: one more term"),
    ("for each tile of keys:", "sky", "the set of tiles", "those that a mask leaves"),
    ("    k_tile, v_tile = load(…)", None, "", ""),
    ("    s = scale · q_tile k_tileᵀ", "yellow", "the score", "soft cap, ALiBi, bias"),
    ("    s = where(seen, s, −∞)", "orange", "the mask", "window, documents, prefix"),
    ("    p, m, l, alpha = softmax_step(s, m, l)", None, "", ""),
    ("    acc = alpha · acc + p v_tile", "green", "the numerator", "dropout: fewer terms than in l"),
    ("o = acc / l;  lse = m + log l", None, "", ""),
)


@image("10_places.png", 0.55 + 0.5 * len(LOOP))
def draw_places(ax: Axes) -> None:
    """Chapter 5's loop, and the lines at which a variant enters, each with who does."""
    tall, left = 0.5, 0.1
    heading(ax, left, 0.25, "chapter 5's loop")
    heading(ax, 4.65, 0.25, "what a variant changes there")
    for row, (line, colour, place, who) in enumerate(LOOP):
        y = 0.5 + row * tall
        box(ax, left, y, 4.2, tall - 0.08, colour=colour, share=0.35 if colour else 0.0)
        note(ax, left + 0.12, y + tall / 2 - 0.04, line, **MONO)
        if place:
            box(ax, 4.65, y, 4.25, tall - 0.08, colour=colour, share=0.35 if colour else 0.0)
            note(ax, 4.75, y + tall / 2 - 0.04, place, BODY, weight="bold")
            note(ax, 6.55, y + tall / 2 - 0.04, who)
            arrow(ax, (4.63, y + tall / 2 - 0.04), (4.32, y + tall / 2 - 0.04))


CAP, SLOPES = 2.0, ((1 / 2, "blue", "-"), (1 / 4, "vermilion", "--"), (1 / 8, "green", ":"))
SCORES, SINK = (0.5, 1.5, -1.0, 1.0), 2.0


def panel_at(ax: Axes, left: float, title: str, below: str, wide: float = 2.6) -> Axes:
    """A plot inside the drawing, with its title above and what its x axis shows below."""
    high = ax.get_ylim()[0]
    write(ax, left + wide / 2, 0.25, title, BODY, weight="bold")
    write(ax, left + wide / 2, high - 0.22, below)
    panel = ax.figure.add_axes((left / 9, 0.72 / high, wide / 9, (high - 1.2) / high))
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=SMALL)
    return panel


@image("10_scores.png", 3.6)
def draw_scores(ax: Axes) -> None:
    """What the soft cap makes of a score, and what ALiBi takes off it."""
    cap = panel_at(ax, 1.2, "soft cap: the new score", "score, with c = 2")
    alibi = panel_at(ax, 5.4, "ALiBi: added to a score", "key's number less the query's")

    scores = [x / 20 for x in range(-120, 121)]
    cap.plot(scores, scores, color=GREY, linewidth=1.2, linestyle=":")
    cap.plot(scores, [max(-CAP, min(CAP, x)) for x in scores], color=PALETTE["vermilion"], linewidth=1.6, linestyle="--")
    cap.plot(scores, [CAP * math.tanh(x / CAP) for x in scores], color=PALETTE["blue"], linewidth=2.2)
    cap.set(xlim=(-6, 6), ylim=(-3.2, 3.2), xticks=(-4, 0, 4), yticks=(-2, 0, 2))
    for x, y, text, colour in (
        (-5.6, 2.7, "dotted: as it was", "black"),
        (1.35, 0.6, "capped", "blue"),
        (0.2, -1.0, "clipped:", "vermilion"),
    ):
        cap.text(x, y, text, color=PALETTE[colour], fontsize=SMALL)
    cap.text(0.2, -1.55, "dashed", color=PALETTE["vermilion"], fontsize=SMALL)

    for slope, colour, style in SLOPES:
        alibi.plot((-16, 0), (-16 * slope, 0), style, color=PALETTE[colour], linewidth=2.0)
        alibi.text(-16.3, -16 * slope, f"1/{1 / slope:.0f}", color=PALETTE[colour], fontsize=SMALL, ha="right", va="center")
    alibi.text(-16.3, 0.2, "slope", fontsize=SMALL, ha="right", va="center")
    alibi.set(xlim=(-16, 0.5), ylim=(-8.6, 0.6), xticks=(-16, -8, 0), yticks=(-8, -4, 0))
    alibi.yaxis.tick_right()
    alibi.spines[["left"]].set_visible(False)
    alibi.spines[["right"]].set_visible(True)


@image("10_sink.png", 3.3)
def draw_sink(ax: Axes) -> None:
    """What a sink leaves of a row's weights."""
    sink = panel_at(ax, 1.2, "a row's weights", "", wide=6.8)
    terms = [math.exp(x) for x in SCORES]
    bars = [(4.2, math.exp(SINK) / (sum(terms) + math.exp(SINK)), {"facecolor": tint("purple", 0.8)})]
    for place, term in enumerate(terms):
        bars.append((place - 0.2, term / sum(terms), {"facecolor": "white", "hatch": MASKED}))
        bars.append((place + 0.2, term / (sum(terms) + math.exp(SINK)), {"facecolor": tint("sky", 0.8)}))
    for x, weight, look in bars:
        sink.bar(x, weight, 0.38, edgecolor="black", **look)
        sink.text(x, weight + 0.015, f"{weight:.2f}", fontsize=SMALL, ha="center")
    sink.set(xlim=(-0.6, 4.7), ylim=(0, 0.72), xticks=(0, 1, 2, 3, 4.2), yticks=(0, 0.25, 0.5))
    names = ("key 0", "key 1", "key 2", "key 3", "sink")
    scores = [f"{score:g}".replace("-", "−") for score in (*SCORES, SINK)]
    sink.set_xticklabels([f"{name}\nscore {score}" for name, score in zip(names, scores, strict=True)])
    for x, look, text in (
        (1.75, {"facecolor": "white", "hatch": MASKED}, "without the sink"),
        (3.2, {"facecolor": tint("sky", 0.8)}, "with the sink"),
    ):
        sink.bar(x, 0.05, 0.2, bottom=0.64, edgecolor="black", **look)
        sink.text(x + 0.17, 0.665, text, fontsize=SMALL, va="center")


LENGTHS = (5, 2, 4)
COLOURS = ("blue", "orange", "green")


@image("10_cu_seqlens.png", 4.75)
def draw_cu_seqlens(ax: Axes) -> None:
    """Three sequences, padded to a rectangle, and packed in one row that cu_seqlens divides, with blocks of four tokens below, and the
    pairs that they see."""
    side, left, longest, block = 0.5, 0.4, max(LENGTHS), 4
    heading(ax, left, 0.25, f"padded: {len(LENGTHS)} × {longest} tokens")
    for row, (length, colour) in enumerate(zip(LENGTHS, COLOURS, strict=True)):
        for column in range(longest):
            look = {"colour": colour, "share": 0.45, "text": f"{column}"} if column < length else {"hatch": MASKED}
            box(ax, left + column * side, 0.5 + row * side, side, side, **look)
    bounds = [0, *accumulate(LENGTHS)]
    top = 2.85
    heading(ax, left, top - 0.3, f"packed: {bounds[-1]} tokens")
    for start, length, colour in zip(bounds, LENGTHS, COLOURS, strict=False):
        for column in range(length):
            box(ax, left + (start + column) * side, top, side, side, f"{start + column}", colour, share=0.45)
        outline(ax, left + start * side, top, length * side, side, line=1.8)
    note(ax, 6.3, top + side / 2, "cu_seqlens = " + str(bounds), BODY, weight="bold")
    for bound in bounds:
        arrow(ax, (left + bound * side, top + side + 0.38), (left + bound * side, top + side + 0.03))
        write(ax, left + bound * side, top + side + 0.52, f"{bound}", BODY, weight="bold")
    below = top + side + 0.85
    for number, start in enumerate(range(0, bounds[-1], block)):
        stop = min(start + block, bounds[-1])
        box(ax, left + start * side + 0.04, below, (stop - start) * side - 0.08, 0.4, f"block {number}")
    note(ax, 6.3, below + 0.2, f"blocks of {block}, the last ragged", BODY)
    legend(ax, 1.25, ((3.3, {"hatch": MASKED}, "padding"),))
    pair, corner, high = 0.2, 6.3, 0.5
    heading(ax, corner, 0.25, "pairs seen, in tiles")
    for start, length, colour in zip(bounds, LENGTHS, COLOURS, strict=False):
        for query in range(start, start + length):
            for key in range(start, start + length):
                box(ax, corner + key * pair, high + query * pair, pair, pair, colour=colour, share=0.45)
    for query in range(0, bounds[-1], block):
        for key in range(0, bounds[-1], block):
            width, tall = (min(block, bounds[-1] - x) * pair for x in (key, query))
            outline(ax, corner + key * pair, high + query * pair, width, tall, line=1.2)


# Block of queries 4 of 6 under a causal window of 48 keys, in tiles of 16 × 16: each tile of keys' kind.
KINDS = ("skipped", "mixed", "whole", "whole", "mixed", "skipped")
LOOKS = {"skipped": {}, "mixed": {"colour": "orange", "share": 0.6}, "whole": {"colour": "sky", "share": 0.6}}


@image("10_tile_lists.png", 3.75)
def draw_tile_lists(ax: Axes) -> None:
    """One row of tiles, and the row of index that holds its two lists."""
    side, left, top = 0.8, 2.9, 0.45
    mixed, whole = ([tile for tile, found in enumerate(KINDS) if found == kind] for kind in ("mixed", "whole"))
    write(ax, left - 0.2, top + side / 2, "tiles of keys that\nqueries 64 … 79 need", BODY, ha="right")
    for tile, kind in enumerate(KINDS):
        box(ax, left + tile * side, top, side, side, **LOOKS[kind])
        write(ax, left + (tile + 0.5) * side, top - 0.2, f"{tile}", BODY)
        write(ax, left + (tile + 0.5) * side, top + side / 2, kind, BODY)
    below = top + 1.75
    write(ax, left - 0.2, below + side / 2, "row 4 of index", BODY, ha="right", weight="bold")
    places = mixed + [None] * (len(KINDS) - len(mixed) - len(whole)) + whole[::-1]
    for place, tile in enumerate(places):
        look = {} if tile is None else LOOKS[KINDS[tile]]
        box(ax, left + place * side, below, side, side, "" if tile is None else f"{tile}", **look)
        if tile is not None:
            arrow(ax, (left + (tile + 0.5) * side, top + side + 0.04), (left + (place + 0.5) * side, below - 0.04))
    end = left + len(KINDS) * side
    under = below + side + 0.3
    arrow(ax, (left + 0.1, under), (left + len(mixed) * side - 0.1, under))
    note(ax, left, under + 0.3, f"mixed: step +1, count {len(mixed)}", BODY)
    arrow(ax, (end - 0.1, under), (end - len(whole) * side + 0.1, under))
    write(ax, end, under + 0.3, f"whole: step −1, count {len(whole)}", BODY, ha="right")


# The six rows of that mask, each as KINDS is its row 4.
ROWS, LEFT = 6, 47  # blocks of 16 queries, keys before a query's own
QUERY_ROW, KEY_COLUMN = 4, 3


def kind_of(row: int, column: int) -> str:
    nearest, farthest = 16 * (column - row) + 15, 16 * (column - row) - 15
    if farthest > 0 or nearest < -LEFT:
        return "skipped"
    return "whole" if nearest <= 0 and farthest >= -LEFT else "mixed"


@image("10_two_directions.png", 4.4)
def draw_two_directions(ax: Axes) -> None:
    """The tiles of a mask: a block of queries needs those of a row, a block of keys those of a column."""
    assert tuple(kind_of(QUERY_ROW, column) for column in range(ROWS)) == KINDS
    side, left, top = 0.52, 0.95, 0.85
    write(ax, left + ROWS / 2 * side, 0.22, "blocks of keys", BODY, weight="bold")
    ax.text(0.2, top + ROWS / 2 * side, "blocks of queries", rotation=90, ha="center", va="center", fontsize=BODY, weight="bold")
    for row in range(ROWS):
        write(ax, left - 0.25, top + (row + 0.5) * side, f"{row}")
        write(ax, left + (row + 0.5) * side, top - 0.22, f"{row}")
        for column in range(ROWS):
            box(ax, left + column * side, top + row * side, side, side, **LOOKS[kind_of(row, column)])
    outline(ax, left, top + QUERY_ROW * side, ROWS * side, side)
    outline(ax, left + KEY_COLUMN * side, top, side, ROWS * side, dashed=True)
    rows = (
        (1.35, False, "o and dq: a block of queries", "walks along its row, over tiles of keys", [(QUERY_ROW, n) for n in range(ROWS)], 1),
        (2.85, True, "dk and dv: a block of keys", "walks down its column, over tiles of queries", [(n, KEY_COLUMN) for n in range(ROWS)], 0),
    )  # fmt: skip
    for y, dashed, first, second, tiles, axis in rows:
        note(ax, 4.75, y - 0.5, first, BODY, weight="bold")
        note(ax, 4.75, y - 0.22, second, BODY)
        needed = [tile for tile in tiles if kind_of(*tile) != "skipped"]
        for place, tile in enumerate(needed):
            box(ax, 4.75 + place * side, y, side, side, f"{tile[axis]}", **LOOKS[kind_of(*tile)])
        outline(ax, 4.75, y, len(needed) * side, side, dashed=dashed)
    legend(ax, 4.2, ((left, LOOKS["mixed"], "mixed"), (left + 1.4, LOOKS["whole"], "whole"), (left + 2.8, {}, "skipped")))


# (a tensor, where a variant enters it, that place's colour as in LOOP), in the order in which they are computed
FORWARD = (
    ("s = scale · q kᵀ", "", None),
    ("s′ = f(s)", "the score: f", "yellow"),
    ("p = exp(s′ − lse)", "mask; the sink in lse", "purple"),
    ("z ∘ p", "dropout: z", "green"),
    ("o = (z ∘ p) v", "", None),
)
BACKWARD = (
    ("ds = ds′ ∘ f′(s)", "the score: f′", "yellow"),
    ("ds′ = p ∘ (dp − delta)", "p from the same lse", "purple"),
    ("dp = z ∘ (do vᵀ)", "dropout: the same z", "green"),
)


@image("10_there_and_back.png", 4.2)
def draw_there_and_back(ax: Axes) -> None:
    """The forward from s to o, and the backward from do to ds, with the place at which each variant enters."""
    wide, tall, gap, left = 1.58, 0.5, 0.21, 0.12
    heading(ax, left, 0.25, "forward")
    top = 0.95
    for place, (words, who, colour) in enumerate(FORWARD):
        x = left + place * (wide + gap)
        box(ax, x, top, wide, tall, words, colour, share=0.45 if colour else 0.0)
        write(ax, x + wide / 2, top - 0.2, who)
        if place:
            arrow(ax, (x - gap + 0.02, top + tall / 2), (x - 0.02, top + tall / 2))
    heading(ax, left, 1.95, "backward")
    below, broad, room = 2.65, 2.05, 0.26
    for place, (words, who, colour) in enumerate(BACKWARD):
        x = left + place * (broad + room)
        box(ax, x, below, broad, tall, words, colour, share=0.45)
        write(ax, x + broad / 2, below - 0.2, who)
        arrow(ax, (x + broad + room - 0.02, below + tall / 2), (x + broad + 0.02, below + tall / 2))
    end = left + 3 * (broad + room)
    box(ax, end, below, 9 - left - end, tall, "do, and delta = do · o")
    under = below + tall + 0.4
    sink, dv = left + broad + room, end - 0.2
    box(ax, sink, under, 2.6, tall, "dsink = −Σ p_sink · delta", "purple", share=0.45)
    arrow(ax, (sink + broad / 2, below + tall + 0.02), (sink + broad / 2, under - 0.02))
    box(ax, dv, under, 9 - left - dv, tall, "dv = (z ∘ p)ᵀ do", "green", share=0.45)
    arrow(ax, (end + 0.85, below + tall + 0.02), (end + 0.85, under - 0.02))
