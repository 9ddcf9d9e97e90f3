"""The drawings of chapter 10."""

import math
from itertools import accumulate

from matplotlib.axes import Axes

from draw.drawing import arrow, box, frames, grid, heading, image, legend, note, outline, tint, write, writes
from draw.look import BODY, MASKED, SMALL, WHOLE
from fa_tutorial.figures import COLOURS, GREY


@image("10_places.png", 4.55)
def draw_places(ax: Axes) -> None:
    """Chapter 5's loop, and the lines at which a variant enters, each with who does."""
    # (a line of chapter 5's loop, its colour, the place that a variant takes there, who does), from top to bottom
    loop = (
        ("m, l, acc = −∞, 0, 0", None, "", ""),
        ("for each tile of keys:", "sky", "the set of tiles", "those that a mask leaves"),
        ("    k_tile, v_tile = load(…)", None, "", ""),
        ("    s = scale · q_tile k_tileᵀ", "yellow", "the score", "soft cap, ALiBi, bias"),
        ("    s = where(seen, s, −∞)", "orange", "the mask", "window, documents, prefix"),
        ("    p, m, l, alpha = softmax_step(s, m, l)", None, "", ""),
        ("    acc = alpha · acc + p v_tile", "green", "the numerator", "dropout: fewer terms"),
        ("o = acc / l;  lse = m + log l", "purple", "the denominator", "sinks add a term: where?"),
    )
    tall, left = 0.5, 0.1
    heading(ax, left, 0.25, "chapter 5's loop")
    heading(ax, 4.65, 0.25, "what a variant changes there")
    for row, (line, colour, place, who) in enumerate(loop):
        y = 0.5 + row * tall
        box(ax, left, y, 4.2, tall - 0.08, colour=colour, share=0.35 if colour else 0.0)
        note(ax, left + 0.12, y + tall / 2 - 0.04, line, family="DejaVu Sans Mono")
        if place:
            box(ax, 4.65, y, 4.25, tall - 0.08, colour=colour, share=0.35 if colour else 0.0)
            note(ax, 4.75, y + tall / 2 - 0.04, place, BODY, weight="bold")
            note(ax, 6.55, y + tall / 2 - 0.04, who)
            arrow(ax, (4.63, y + tall / 2 - 0.04), (4.32, y + tall / 2 - 0.04))


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
    c, slopes = 2.0, ((1 / 2, "blue", "-"), (1 / 4, "vermilion", "--"), (1 / 8, "green", ":"))
    cap = panel_at(ax, 1.2, "soft cap: the new score", "score, with c = 2")
    alibi = panel_at(ax, 5.4, "ALiBi: added to a score", "distance of the key")
    scores = [x / 20 for x in range(-120, 121)]
    cap.plot(scores, scores, color=GREY, linewidth=1.2, linestyle=":")
    cap.plot(scores, [max(-c, min(c, x)) for x in scores], color=COLOURS["vermilion"], linewidth=1.6, linestyle="--")
    cap.plot(scores, [c * math.tanh(x / c) for x in scores], color=COLOURS["blue"], linewidth=2.2)
    cap.set(xlim=(-6, 6), ylim=(-3.2, 3.2), xticks=(-4, 0, 4), yticks=(-2, 0, 2))
    for x, y, text, colour in (
        (-5.6, 2.7, "dotted: as it was", "black"),
        (1.35, 0.6, "capped", "blue"),
        (-0.35, -1.25, "clipped: flat,", "vermilion"),
        (-0.35, -1.75, "so no gradient", "vermilion"),
    ):
        cap.text(x, y, text, color=COLOURS[colour], fontsize=SMALL)
    for slope, colour, style in slopes:
        alibi.plot((0, 16), (0, -16 * slope), style, color=COLOURS[colour], linewidth=2.0)
        alibi.text(16.3, -16 * slope, f"1/{1 / slope:.0f}", color=COLOURS[colour], fontsize=SMALL, va="center")
    alibi.text(16.3, 0.2, "slope", fontsize=SMALL, va="center")
    alibi.set(xlim=(0, 16), ylim=(-8.6, 0.6), xticks=(0, 8, 16), yticks=(-8, -4, 0))


@image("10_sink.png", 3.3)
def draw_sink(ax: Axes) -> None:
    """What a sink leaves of a row's weights."""
    panel, sink = panel_at(ax, 1.2, "a row's weights", "", wide=6.8), 2.0
    scores = (0.5, 1.5, -1.0, 1.0)
    terms, joined = [math.exp(x) for x in scores], {"facecolor": tint("sky", 0.8)}
    total, without = sum(terms) + math.exp(sink), {"facecolor": "white", "hatch": MASKED}
    bars = [(4.2, math.exp(sink) / total, {"facecolor": tint("purple", 0.8)})]
    for place, term in enumerate(terms):
        bars += [(place - 0.2, term / sum(terms), without), (place + 0.2, term / total, joined)]
    for x, weight, look in bars:
        panel.bar(x, weight, 0.38, edgecolor="black", **look)
        panel.text(x, weight + 0.015, f"{weight:.2f}", fontsize=SMALL, ha="center")
    panel.set(xlim=(-0.6, 4.7), ylim=(0, 0.72), yticks=(0, 0.25, 0.5))
    names = zip(("key 0", "key 1", "key 2", "key 3", "sink"), (*scores, sink), strict=True)
    panel.set_xticks((0, 1, 2, 3, 4.2), [f"{name}\nscore {x:g}".replace("-", "−") for name, x in names])
    for x, look, text in ((1.75, without, "without the sink"), (3.2, joined, "with the sink")):
        panel.bar(x, 0.05, 0.2, bottom=0.64, edgecolor="black", **look)
        panel.text(x + 0.17, 0.665, text, fontsize=SMALL, va="center")


@image("10_cu_seqlens.png", 4.75)
def draw_cu_seqlens(ax: Axes) -> None:
    """Three sequences, padded to a rectangle, and packed in one row that cu_seqlens divides, in blocks of four tokens; the pairs that they see."""
    lengths, of_sequence = (5, 2, 4), ("blue", "orange", "green")
    side, left, longest, block = 0.5, 0.4, max(lengths), 4
    heading(ax, left, 0.25, f"padded: {len(lengths)} × {longest} tokens")
    colours = [colour for length, colour in zip(lengths, of_sequence, strict=True) for _ in range(length)]  # of each token
    look = lambda row, n: {"colour": of_sequence[row], "share": 0.45, "text": f"{n}"} if n < lengths[row] else {"hatch": MASKED}
    grid(ax, left, 0.5, len(lengths), longest, side, look)
    bounds, top = [0, *accumulate(lengths)], 2.85
    heading(ax, left, top - 0.3, f"packed: {bounds[-1]} tokens")
    grid(ax, left, top, 1, bounds[-1], side, lambda _, token: {"text": f"{token}", "colour": colours[token], "share": 0.45})
    for start, length in zip(bounds, lengths, strict=False):
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
    seen = lambda query, key: {"colour": colours[query], "share": 0.45} if colours[query] == colours[key] else None
    grid(ax, corner, high, bounds[-1], bounds[-1], pair, seen)
    frames(ax, corner, high, bounds[-1], bounds[-1], pair, (block, block), line=1.2)


# A causal window of 48 keys: blocks of 16 queries by blocks of 16 keys, keys before a query's own; the row and the column that are marked.
ROWS, LEFT, QUERY_ROW, KEY_COLUMN = 6, 47, 4, 3
LOOKS = {"skipped": {}, "mixed": {"colour": "orange", "share": 0.6}, "whole": WHOLE}


def kind_of(row: int, column: int) -> str:
    nearest, farthest = 16 * (column - row) + 15, 16 * (column - row) - 15
    if farthest > 0 or nearest < -LEFT:
        return "skipped"
    return "whole" if nearest <= 0 and farthest >= -LEFT else "mixed"


@image("10_tile_lists.png", 3.75)
def draw_tile_lists(ax: Axes) -> None:
    """One row of tiles, and the row of index that holds its two lists."""
    kinds = [kind_of(QUERY_ROW, column) for column in range(ROWS)]
    side, left, top = 0.8, 2.9, 0.45
    mixed, whole = ([tile for tile, found in enumerate(kinds) if found == kind] for kind in ("mixed", "whole"))
    write(ax, left - 0.2, top + side / 2, "tiles of keys that\nqueries 64 … 79 need", BODY, ha="right")
    grid(ax, left, top, 1, len(kinds), side, lambda _, tile: LOOKS[kinds[tile]])
    for y, texts in ((top - 0.2, range(len(kinds))), (top + side / 2, kinds)):
        writes(ax, left + 0.5 * side, y, texts, dx=side, size=BODY)
    below = top + 1.75
    write(ax, left - 0.2, below + side / 2, "row 4 of index", BODY, ha="right", weight="bold")
    for place, tile in enumerate(mixed + [None] * (len(kinds) - len(mixed) - len(whole)) + whole[::-1]):
        look = {} if tile is None else LOOKS[kinds[tile]]
        box(ax, left + place * side, below, side, side, "" if tile is None else f"{tile}", **look)
        if tile is not None:
            arrow(ax, (left + (tile + 0.5) * side, top + side + 0.04), (left + (place + 0.5) * side, below - 0.04))
    end, under = left + len(kinds) * side, below + side + 0.3
    arrow(ax, (left + 0.1, under), (left + len(mixed) * side - 0.1, under))
    note(ax, left, under + 0.3, f"mixed: step +1, count {len(mixed)}", BODY)
    arrow(ax, (end - 0.1, under), (end - len(whole) * side + 0.1, under))
    write(ax, end, under + 0.3, f"whole: step −1, count {len(whole)}", BODY, ha="right")


@image("10_two_directions.png", 4.4)
def draw_two_directions(ax: Axes) -> None:
    """The tiles of a mask: a block of queries needs those of a row, a block of keys those of a column."""
    side, left, top = 0.52, 0.95, 0.85
    write(ax, left + ROWS / 2 * side, 0.22, "blocks of keys", BODY, weight="bold")
    ax.text(0.2, top + ROWS / 2 * side, "blocks of queries", rotation=90, ha="center", va="center", fontsize=BODY, weight="bold")
    writes(ax, left - 0.25, top + 0.5 * side, range(ROWS), dy=side)
    writes(ax, left + 0.5 * side, top - 0.22, range(ROWS), dx=side)
    grid(ax, left, top, ROWS, ROWS, side, lambda *tile: LOOKS[kind_of(*tile)])
    outline(ax, left, top + QUERY_ROW * side, ROWS * side, side)
    outline(ax, left + KEY_COLUMN * side, top, side, ROWS * side, dashed=True)
    for y, dashed, first, second, tiles, axis in (
        (1.35, False, "o and dq: a block of queries", "walks along its row, over tiles of keys", [(QUERY_ROW, n) for n in range(ROWS)], 1),
        (2.85, True, "dk and dv: a block of keys", "walks down its column, over tiles of queries", [(n, KEY_COLUMN) for n in range(ROWS)], 0),
    ):  # fmt: skip
        note(ax, 4.75, y - 0.5, first, BODY, weight="bold")
        note(ax, 4.75, y - 0.22, second, BODY)
        needed = [tile for tile in tiles if kind_of(*tile) != "skipped"]
        grid(ax, 4.75, y, 1, len(needed), side, lambda _, i: {"text": f"{needed[i][axis]}", **LOOKS[kind_of(*needed[i])]})
        outline(ax, 4.75, y, len(needed) * side, side, dashed=dashed)
    legend(ax, 4.2, ((left, LOOKS["mixed"], "mixed"), (left + 1.4, LOOKS["whole"], "whole"), (left + 2.8, {}, "skipped")))


@image("10_there_and_back.png", 4.2)
def draw_there_and_back(ax: Axes) -> None:
    """The forward from s to o, and the backward from do to ds, with the place at which each variant enters."""
    # (a tensor, where a variant enters it, that place's colour as in draw_places), in the order in which they are computed
    forward = (
        ("s = scale · q kᵀ", "", None),
        ("s′ = f(s)", "the score: f", "yellow"),
        ("p = exp(s′ − lse)", "mask; the sink in lse", "purple"),
        ("z ∘ p", "dropout: z", "green"),
        ("o = (z ∘ p) v", "", None),
    )
    backward = (
        ("ds = ds′ ∘ f′(s)", "the score: f′", "yellow"),
        ("ds′ = p ∘ (dp − delta)", "p from the same lse", "purple"),
        ("dp = z ∘ (do vᵀ)", "dropout: the same z", "green"),
    )
    wide, tall, gap, left = 1.58, 0.5, 0.21, 0.12
    heading(ax, left, 0.25, "forward")
    top = 0.95
    for place, (words, who, colour) in enumerate(forward):
        x = left + place * (wide + gap)
        box(ax, x, top, wide, tall, words, colour, share=0.45 if colour else 0.0)
        write(ax, x + wide / 2, top - 0.2, who)
        if place:
            arrow(ax, (x - gap + 0.02, top + tall / 2), (x - 0.02, top + tall / 2))
    heading(ax, left, 1.95, "backward")
    below, broad, room = 2.65, 2.05, 0.26
    for place, (words, who, colour) in enumerate(backward):
        x = left + place * (broad + room)
        box(ax, x, below, broad, tall, words, colour, share=0.45)
        write(ax, x + broad / 2, below - 0.2, who)
        arrow(ax, (x + broad + room - 0.02, below + tall / 2), (x + broad + 0.02, below + tall / 2))
    end = left + 3 * (broad + room)
    box(ax, end, below, 9 - left - end, tall, "do, and delta = do · o")
    under = below + tall + 0.4
    for x, across, words, colour, start in (
        (left, 3.4, "dq = scale · ds k,  dk = scale · dsᵀ q", None, left + broad / 2),
        (4.35, 2.55, "dsink = −Σ p_sink · delta", "purple", end + 0.15),
        (end, 9 - left - end, "dv = (z ∘ p)ᵀ do", "green", end + 1.0),
    ):
        box(ax, x, under, across, tall, words, colour, share=0.45 if colour else 0.0)
        arrow(ax, (start, below + tall + 0.02), (min(start, x + across - 0.25), under - 0.02))
    write(ax, end + 1.45, below + tall + 0.2, "z, p again")
