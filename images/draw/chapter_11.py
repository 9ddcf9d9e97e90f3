"""The drawings of chapter 11."""

import math

import torch
from matplotlib.axes import Axes

from draw.drawing import arrow, box, grid, heading, image, legend, note, number, outline, write, writes
from draw.look import BODY, MASKED
from fa_tutorial import softmax
from fa_tutorial.bench.chapter_11 import row as stored
from fa_tutorial.figures import COLOURS
from fa_tutorial.forward import CONFIGS


@image("11_time_of_the_sms.png", 0.9 + 3 * 1.17)
def draw_time_of_the_sms(ax: Axes) -> None:
    """The SMs that work in a step of one sequence, and for how long: by query head, by key head, and by 16 parts of a key head's keys."""
    steps = (
        ("chapter 5: 64 programs of 512 tiles", 64, stored("basic", 32_768, kernel="own_kernels")),
        ("a shared query tile: 8 programs of 512 tiles", 8, stored("11.3", 32_768, kernel="own_kernels", splits=1)),
        ("and 16 splits: 128 programs of 32 tiles", 128, stored("11.3", 32_768, kernel="own_kernels", splits=16)),
    )
    sms, key_heads, works = 132, 8, {"colour": "orange", "share": 0.9}
    repeated = works | {"hatch": MASKED}
    left, unit, sm = 1.0, 0.0125, 0.8 / sms  # inches a µs, and an SM
    for place, (title, busy, found) in enumerate(steps):
        top, us = 0.5 + place * 1.17, found["us"]
        note(ax, left, top - 0.2, f"{title}, {us:.0f} µs", BODY, weight="bold")
        write(ax, left - 0.1, top + 0.4, f"{sms} SMs", ha="right")
        box(ax, left, top, us * unit, sms * sm)
        alone = key_heads if "chapter 5" in title else busy  # on keys of their own
        if busy > alone:
            box(ax, left, top + alone * sm, us * unit, (busy - alone) * sm, **repeated)
        box(ax, left, top, us * unit, alone * sm, **works)
        x = left + (0.12 if busy == key_heads else us * unit + 0.12)  # where there is room
        note(ax, x, top + 0.4, f"{busy} SMs · {us:.0f} µs = {busy * us / 1000:.1f} ms")
    bottom = 0.5 + 1.17 * len(steps)
    writes(ax, left, bottom - 0.2, ("0 µs", *range(100, 501, 100)), dx=100 * unit, size=10)
    words = "an SM has a program", "… on keys that others work through, too", "an SM does nothing"
    legend(ax, bottom + 0.17, tuple(zip((0.15, 2.75, 7.05), (works, repeated, {}), words, strict=True)))


@image("11_merge_tree.png", 5.2)
def draw_merge_tree(ax: Axes) -> None:
    """One query with D = 1 and eight keys in four parts, each computed by a program of its own, and merged pair by pair."""
    scores = torch.tensor([3.0, 2.0, 5.0, 1.0, 4.0, 4.0, 0.0, 2.0], dtype=torch.float64)  # the first four are chapter 1's row
    values = torch.arange(10.0, 90.0, 10.0, dtype=torch.float64)[:, None]
    parts, size, cell, gap, left = 4, 2, 0.85, 0.25, 1.15
    for text, y in (("scores", 0.35), ("values", 0.73), ("programs", 1.65), ("merge", 2.95), ("merge", 4.2)):
        note(ax, 0.1, y, text, BODY, weight="bold")
    nodes = []
    for part in range(parts):
        keys = slice(part * size, (part + 1) * size)
        x = left + part * (size * cell + gap)
        for y, numbers, colour, share in ((0.17, scores, "yellow", 0.5), (0.55, values[:, 0], "green", 0.4)):
            grid(ax, x, y, 1, size, cell, lambda _, key: {"text": f"{numbers[keys][key]:g}", "colour": colour, "share": share}, 0.36)
        o, lse = softmax.running_weighted_sum([(scores[keys], values[keys])], 1)
        middle = x + size * cell / 2
        arrow(ax, (middle, 0.93), (middle, 1.27), "blue")
        nodes.append((middle, 1.29, float(o[0]), float(lse)))
    for pair, y in ((slice(0, 2), 2.6), (slice(2, 4), 2.6), (slice(4, 6), 3.85)):
        lse, middle, o = math.log(sum(math.exp(node[3]) for node in nodes[pair])), sum(node[0] for node in nodes[pair]) / 2, 0.0
        for x, top, part_o, part_lse in nodes[pair]:
            share = math.exp(part_lse - lse)
            o += share * part_o
            end = middle + (0.45 if x > middle else -0.45)
            arrow(ax, (x, top + 0.74), (end, y - 0.02), "vermilion")
            behind = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            write(ax, (x + end) / 2, (top + 0.72 + y) / 2, f"{share:.3f}", bbox=behind, zorder=3)
        nodes.append((middle, y, o, lse))
    for place, (middle, y, o, lse) in enumerate(nodes):
        text, colour = f"o = {number(o)}\nlse = {number(lse)}", "sky" if place < parts else "purple"
        box(ax, middle - 0.8, y, 1.6, 0.72, text, colour, share=0.45, line=1.6)
    o, lse = softmax.running_weighted_sum([(scores, values)], 1)
    assert abs(nodes[-1][2] - o.item()) < 1e-12 and abs(nodes[-1][3] - lse.item()) < 1e-12
    note(ax, 0.1, 4.95, "an arrow carries a share, e to the (lse above − lse below); the two shares of a merge add up to 1 (1.13)")


@image("11_rows_of_a_tile.png", 4.9)
def draw_rows_of_a_tile(ax: Axes) -> None:
    """Eight query heads of one key head: as eight tiles with one row each, and as eight rows of one tile, drawn larger."""
    group, tile_rows, row_high = 8, 16, 0.04
    basic_rows = CONFIGS[232_448][128].block_m  # of chapter 5's tile on an H200
    heading(ax, 0.15, 0.25, f"a program for each query head: keys read {group} times")
    heading(ax, 5.95, 0.25, "for each key head: once")
    top, high = 0.85, basic_rows * row_high
    for head in range(group):
        x = 0.15 + head * 0.66
        box(ax, x, top, 0.5, row_high, colour="blue", share=0.5)
        ax.text(x + 0.25, top + high / 2, f"{basic_rows - 1} empty rows", rotation=90, ha="center", va="center", fontsize=BODY)
        outline(ax, x, top, 0.5, high, line=1.6)
        arrow(ax, (x + 0.25, 3.85), (x + 0.25, 3.45), "orange")
        write(ax, x + 0.25, 0.65, f"head {head}" if head == 0 else f"{head}")
    x, wide, tall = 5.95, 2.9, high / tile_rows
    write(ax, x + wide / 2, 0.65, f"{tile_rows} rows, drawn larger")
    looks = [{"colour": "blue", "share": 0.5, "text": f"head {row}"} for row in range(group)] + [{"text": "empty"}] * (tile_rows - group)
    grid(ax, x, top, tile_rows, 1, wide, lambda row, _: {"size": 9, **looks[row]}, tall)
    outline(ax, x, top, wide, high, line=1.6)
    arrow(ax, (x + wide / 2, 3.85), (x + wide / 2, 3.45), "orange")
    box(ax, 0.15, 3.87, 5.12, 0.42, "keys and values of one key head", "orange", share=0.4)
    box(ax, x, 3.87, wide, 0.42, "keys and values of one key head", "orange", share=0.4)
    empty = f"an empty row, multiplied all the same: {group * (basic_rows - 1)} on the left, {tile_rows - group} on the right"
    legend(ax, 4.6, ((0.15, {"colour": "blue", "share": 0.5}, "a query"), (2.0, {}, empty)))


SPLITS = {"colour": "sky", "share": 0.5}, {"colour": "orange", "share": 0.5}


@image("11_split_rows.png", 4.55)
def draw_split_rows(ax: Axes) -> None:
    """The grid of split_kernel, and the rows of one key head: whose they are, what they see, and which split computes it."""
    heads, tokens, keys, keys_a_tile = 2, 3, 7, 2  # query heads a group, new tokens of each, keys, keys a tile
    batch, key_heads, side, left, top = 2, 2, 0.52, 1.95, 0.95
    programs = batch * key_heads
    heading(ax, 0.15, 0.25, "the grid: B · H_k by splits")
    writes(ax, left + 0.5 * side, top - 0.22, ("split 0", 1), dx=side)
    for split, look in enumerate(SPLITS):
        grid(ax, left + split * side, top, programs, 1, side, lambda i, _: {"text": f"{i}, {split}", **look})
    words = [f"sequence {i // key_heads}, key head {i % key_heads}" for i in range(programs)]
    writes(ax, left - 0.1, top + 0.5 * side, words, dy=side, size=10, ha="right")
    chosen = programs - 1
    outline(ax, left, top + chosen * side, len(SPLITS) * side, side)
    heading(ax, 3.95, 0.25, "one key head's rows, and what they see")
    cell, first = 0.42, 5.75
    part = math.ceil(math.ceil(keys / keys_a_tile) / len(SPLITS)) * keys_a_tile  # the keys of a split
    middle, bottom = top + (chosen + 0.5) * side, top + heads * tokens * cell
    arrow(ax, (left + len(SPLITS) * side + 0.06, middle), (3.88, middle), "vermilion")
    ax.plot([4.02, 3.92, 3.92, 4.02], [top, top, bottom, bottom], color=COLOURS["vermilion"], linewidth=1.6)
    write(ax, left + side, top + (chosen + 1.4) * side, "program (i, split)", size=10)
    writes(ax, first + 0.5 * cell, top - 0.22, ("key 0", *range(1, keys)), dx=cell)
    words = [f"r = {r}: head {r // tokens}, token {r % tokens}" for r in range(heads * tokens)]
    writes(ax, first - 0.12, top + cell / 2, words, dy=cell, size=10, ha="right")
    look = lambda r, key: SPLITS[key // part] if key <= keys - tokens + r % tokens else {"hatch": MASKED}
    grid(ax, first, top, heads * tokens, keys, cell, look)
    for start in range(0, keys, part):
        outline(ax, first + start * cell, top, (min(start + part, keys) - start) * cell, bottom - top, line=2.2)
    for start in range(0, keys, keys_a_tile):
        end = min(start + keys_a_tile, keys)
        arrow(ax, (first + start * cell + 0.03, bottom + 0.15), (first + end * cell - 0.03, bottom + 0.15))
        write(ax, first + (start + end) / 2 * cell, bottom + 0.37, f"tile {start // keys_a_tile}", 10)
    hidden = {"hatch": MASKED}, "hidden: a later token"
    legend(ax, 4.22, ((0.15, SPLITS[0], "split 0 computes it"), (3.0, SPLITS[1], "split 1 does"), (5.75, *hidden)))


@image("11_pages.png", 4.6)
def draw_pages(ax: Axes) -> None:
    """Two sequences of 20 and 37 keys in pages of 16: the block table, the pages in memory, and where one key stands."""
    page_size, pages, cell, left = 16, 6, 0.29, 3.95
    tables, lengths = ((4, 1), (2, 5, 0)), (20, 37)  # the pages of each sequence, in order; its keys
    of_sequence = {"colour": "sky", "share": 0.55}, {"colour": "green", "share": 0.45}
    heading(ax, 0.15, 0.25, "block table")
    heading(ax, left, 0.25, f"the cache: {pages} pages of {page_size} keys")
    writes(ax, left + 0.5 * cell, 0.46, ("row 0", f"row {page_size - 1}"), dx=(page_size - 1) * cell, size=9)
    owner = {page: (b, place) for b, table in enumerate(tables) for place, page in enumerate(table)}
    for page in range(pages):
        y = 0.55 + page * 0.5
        b, place = owner.get(page, (0, 0))
        write(ax, left - 0.1, y + 0.16, f"page {page}", ha="right")
        lives = [place * page_size + row for row in range(page_size) if page in owner and place * page_size + row < lengths[b]]
        looks = [{"text": f"{key}", **of_sequence[b]} for key in lives] + [{}] * (page_size - len(lives))
        grid(ax, left, y, 1, page_size, cell, lambda _, row: {"size": 9, **looks[row]}, 0.32)
    b, key = 1, 21  # a sequence and a key of it
    entry, page, row = key // page_size, tables[b][key // page_size], key % page_size
    for sequence, table in enumerate(tables):
        y = 0.75 + sequence * 1.25
        note(ax, 0.15, y - 0.2, f"sequence {sequence}: {lengths[sequence]} keys")
        grid(ax, 0.15, y, 1, len(table), 0.6, lambda _, place: {"text": f"{table[place]}", "size": BODY, **of_sequence[sequence]}, 0.42)
    at = 0.75 + b * 1.25
    outline(ax, 0.15 + entry * 0.6, at, 0.6, 0.42)
    outline(ax, left + row * cell, 0.55 + page * 0.5, cell, 0.32)
    arrow(ax, (0.45 + entry * 0.6, at + 0.44), (left - 0.72, 0.72 + page * 0.5), "vermilion")
    where = f"{key} // {page_size} = {entry}, so page {page} by the table; {key} mod {page_size} = {row}, so row {row} of it"
    note(ax, 0.15, 3.85, f"key {key} of sequence {b}: {where}", weight="bold")
    free = next(page for page in range(pages) if page not in owner)
    note(ax, 0.15, 4.25, f"page {free} is free; the white rows of the other pages wait for their sequence's next keys")


@image("11_window.png", 2.95)
def draw_window(ax: Axes) -> None:
    """The tiles of 100 keys, those that two tokens with a window of 36 need, in two splits, and what the mask hides of them."""
    windowed, a_tile, window, new = 100, 16, 36, 2  # keys, keys a tile, the keys that a token sees, new tokens
    cell, left, top, high = 0.076, 1.0, 0.55, 0.42
    needed = range((windowed - new - window + 1) // a_tile, math.ceil(windowed / a_tile))
    part = math.ceil(len(needed) / len(SPLITS))
    for token in range(new):
        y = top + token * 0.95
        last, seen = windowed - new + token, windowed - new + token - window + 1
        write(ax, left - 0.1, y + high / 2, f"token {token}", ha="right", weight="bold")
        for tile in range(math.ceil(windowed / a_tile)):
            begin, end = tile * a_tile, min((tile + 1) * a_tile, windowed)
            look = SPLITS[(tile - needed[0]) // part] if tile in needed else {}
            box(ax, left + begin * cell, y, (end - begin) * cell, high, **look)
        for begin, end in ((needed[0] * a_tile, seen), (last + 1, windowed)):
            if begin < end:
                box(ax, left + begin * cell, y, (end - begin) * cell, high, hatch=MASKED)
        a, b = left + seen * cell, left + (last + 1) * cell
        for tip in (a, b):
            arrow(ax, ((a + b) / 2, y - 0.1), (tip, y - 0.1))
        write(ax, (a + b) / 2, y - 0.24, f"{last - seen + 1} keys, {seen} to {last}", 10)
    writes(ax, left, y + high + 0.15, range(0, windowed, a_tile), dx=a_tile * cell, size=10)
    split_0, split_1 = SPLITS
    legend(
        ax, 2.7, ((0.3, {}, "not read"), (2.0, {"hatch": MASKED}, "read, and masked"), (4.5, split_0, "split 0"), (6.2, split_1, "split 1"))
    )
