"""The drawings of chapters 6 and 7."""

import math

import torch
from matplotlib.axes import Axes

from draw.drawing import arrow, box, digits, grid, heading, image, legend, note, notes, outline, sample, write, writes
from draw.look import BODY, HEAD, MASKED, SMALL, TENSOR_COLOUR
from fa_tutorial import algorithm, ledger, reference
from fa_tutorial.bench import chapter_6, results


def tensor_box(ax: Axes, x: float, y: float, width: float, height: float, name: str, **look) -> None:
    """A named tensor in its colour; a gradient has the colour of what it is the gradient of."""
    base = "" if name in ("delta", "lse") else name.removeprefix("d")
    standard = {"colour": TENSOR_COLOUR.get(base, "sky"), "share": 0.45, "size": BODY, "weight": "bold"}
    box(ax, x, y, width, height, name, **standard | look)


@image("06_pull.png", 3.1)
def draw_pull(ax: Axes) -> None:
    """The values of six keys on a line, o among them, and ds of each: up where the value lies above o, and down where it lies below."""
    s, v = (torch.tensor(x, dtype=torch.float64) for x in ([3.0, 2.0, 5.0, 1.0, 4.0, 6.0], [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]))
    p = torch.softmax(s, dim=0)
    o, line, place = (p @ v).item(), 1.65, lambda value: 1.7 + (value - 10) * 0.135
    ax.plot((1.1, 8.9), (line, line), color="black", linewidth=1.2)
    ax.plot((place(o), place(o)), (0.75, 2.3), color="black", linewidth=2.2, linestyle=":")
    write(ax, place(o), 0.55, f"o = {o:.2f}", weight="bold")
    for row, name in ((0.22, "value"), (2.55, "p"), (2.9, "ds")):
        write(ax, 0.9, row, name, ha="right", weight="bold")
    for value, weight in zip(v.tolist(), p.tolist(), strict=True):
        x, ds = place(value), weight * (value - o)
        writes(ax, x, 2.55, (f"{weight:.4f}", f"{ds:.4f}".replace("-", "−")), dy=0.35)
        write(ax, x, 0.22, f"{value:.0f}")
        ax.plot((x, x), (line - 0.07, line + 0.07), color="black", linewidth=1.2)
        look = {"colour": "blue"} if ds > 0 else {"colour": "orange", "hatch": MASKED}
        box(ax, x - 0.2, min(line, line - 0.13 * ds), 0.4, 0.13 * abs(ds), share=0.6, **look)


@image("06_delta.png", 4.95)
def draw_delta(ax: Axes) -> None:
    """delta of a query as the sum of one table, D by keys: down first, over D, it needs all tiles, across first, over the keys, it needs o alone."""
    s = torch.tensor([3.0, 2.0, 5.0, 1.0, 4.0, 6.0], dtype=torch.float64)
    v = torch.tensor([[10.0, 20.0, 30.0, 40.0, 50.0, 60.0], [5.0, 4.0, 3.0, 6.0, 2.0, 1.0]], dtype=torch.float64)
    p, do = torch.softmax(s, dim=0), torch.tensor([1.0, 3.0], dtype=torch.float64)
    table = p * v * do[:, None]
    o, dp = v @ p, do @ v
    assert torch.allclose(table.sum(1), do * o) and torch.allclose(table.sum(0), p * dp)
    left, wide, top, tall, right, bottom = 1.75, 0.76, 2.15, 0.5, 7.0, 3.65
    heading(ax, 0.1, 0.25, "query 0: delta is the sum of p · v · do over the keys and over D")
    for name, y in (("vᵀ, d = 0", 1.13), ("vᵀ, d = 1", 0.78), ("p", 0.25)):
        write(ax, left - 0.1, top - y, name, BODY, ha="right", weight="bold")
    write(ax, right + 0.5, top - 0.25, "do ∘ o", BODY, weight="bold")
    writes(ax, left + wide / 2, top - 1.47, [f"key {j}" for j in range(6)], dx=wide)
    grid(ax, left, top - 0.45, 1, 6, wide, lambda _, j: {"text": digits(p[j].item()), "colour": "yellow", "share": 0.4}, 0.38)
    grid(ax, left, bottom, 1, 6, wide, lambda _, j: {"text": f"{p[j] * dp[j]:.2f}", "colour": "yellow", "share": 0.4}, 0.38)
    for j in range(6):
        x = left + j * wide
        grid(ax, x, top - 1.3, 2, 1, wide, lambda d, _: {"text": digits(v[d, j].item()), "colour": "green", "share": 0.45}, 0.35)
        grid(ax, x, top, 2, 1, wide, lambda d, _: {"text": f"{table[d, j]:.2f}"}, tall)
        arrow(ax, (x + wide / 2, top + 2 * tall + 0.05), (x + wide / 2, bottom - 0.02))
    for d in range(2):
        y = top + d * tall
        write(ax, left - 0.1, y + tall / 2, f"do, d = {d}: {do[d]:.0f}", BODY, ha="right", weight="bold")
        box(ax, right, y, 1.0, tall, f"{do[d] * o[d]:.2f}", "purple", share=0.4)
        arrow(ax, (left + 6 * wide + 0.05, y + tall / 2), (right - 0.03, y + tall / 2))
    for tile in range(3):
        outline(ax, left + 2 * tile * wide, top, 2 * wide, 2 * tall)
    write(ax, left - 0.1, bottom + 0.19, "p ∘ dp", BODY, ha="right", weight="bold")
    box(ax, right, bottom, 1.0, 0.38, f"{table.sum():.2f}", "sky", share=0.5, weight="bold", line=2.2)
    note(ax, right + 1.1, bottom + 0.19, "delta", BODY, weight="bold")
    arrow(ax, (left + 6 * wide + 0.05, bottom + 0.19), (right - 0.03, bottom + 0.19))
    arrow(ax, (right + 0.5, top + 2 * tall + 0.05), (right + 0.5, bottom - 0.03))
    notes(ax, 0.1, 4.35, ("down first (over D): delta needs p ∘ dp of every tile (framed)", "across first (over the keys): forward has added up the keys and stored o, so delta needs no tile"),
          step=0.32)  # fmt: skip


@image("06_data_flow.png", 5.35)
def draw_data_flow(ax: Axes) -> None:
    """Attention's backward from left to right: what forward kept, what is computed again, and the five matmuls with their equations."""
    y_p, y_ds, y_delta, mid = 1.1, 2.95, 4.1, 5.4  # mid: of p and ds
    y_dq, y_dk = y_ds - 0.35, y_ds + 0.35
    kept = {"q": (0.45, y_p - 0.35), "k": (0.45, y_p + 0.35), "lse": (4.0, y_p - 0.8), "v": (0.45, y_ds - 0.35), "o": (0.45, y_delta)}
    again = {"k": (6.45, y_dq - 0.7), "q": (6.45, y_dk + 0.7)}  # as factors of dq and dk
    stored = {"dv": (8.5, y_p), "dq": (8.5, y_dq), "dk": (8.5, y_dk), "delta": (mid, y_delta)}
    tiles = {"s": (2.85, y_p), "p": (mid, y_p), "dp": (2.85, y_ds), "ds": (mid, y_ds)}
    for names, look in ((kept, {"line": 2.2}), (again, {"line": 2.2}), (stored, {}), (tiles, {"dashed": True})):
        for name, (x, y) in names.items():
            tensor_box(ax, x - 0.325, y - 0.18, 0.65, 0.36, name, **look)
    for x, y in ((0.45, y_ds + 0.35), (6.45, y_p - 0.8)):
        tensor_box(ax, x - 0.325, y - 0.18, 0.65, 0.36, "do")
    arrows = [((2.85 + 0.33, y_p), (mid - 0.33, y_p)), ((2.85 + 0.33, y_ds), (mid - 0.33, y_ds)), ((4.0, y_p - 0.62), (4.0, y_p)),
              ((mid, y_p + 0.18), (mid, y_ds - 0.18)), ((mid, y_delta - 0.18), (mid, y_ds + 0.18)), ((0.78, y_delta), (mid - 0.33, y_delta)),
              ((0.6, y_ds + 0.53), (1.4, y_delta - 0.02))]  # fmt: skip
    arrows += [((x + 0.14, y), (end - 0.33, y)) for x, y, end in
               ((1.36, y_p, 2.85), (6.45, y_p, 8.5), (1.36, y_ds, 2.85), (6.45, y_dq, 8.5), (6.45, y_dk, 8.5))]  # fmt: skip
    arrows += [((0.78, y + side * 0.35), (1.24, y + side * 0.1)) for y in (y_p, y_ds) for side in (-1, 1)]
    arrows += [((mid + 0.33, y_p), (6.31, y_p)), ((mid + 0.33, y_ds - 0.06), (6.31, y_dq)), ((mid + 0.33, y_ds + 0.06), (6.31, y_dk)),
               ((6.45, y_p - 0.62), (6.45, y_p - 0.14)), ((6.45, y_dq - 0.52), (6.45, y_dq - 0.14)), ((6.45, y_dk + 0.52), (6.45, y_dk + 0.14))]  # fmt: skip
    for start, end in arrows:
        arrow(ax, start, end)
    for x, y, text in ((1.36, y_p, "①"), (6.45, y_p, "②"), (1.36, y_ds, "③"), (6.45, y_dq, "④"), (6.45, y_dk, "⑤")):
        write(ax, x, y, text, HEAD + 2, weight="bold", zorder=4)
    for x, y, formula, number in (
        (2.0, y_p, "scale · q kᵀ", ""),
        (4.2, y_p + 0.45, "exp(s − lse)  (6.7)", ""),
        (7.4, y_p, "pᵀ do", "(6.8)"),
        (2.0, y_ds, "do vᵀ", "(6.9)"),
        (4.2, y_ds, "p ∘ (dp − delta)", "(6.10)"),
        (7.35, y_dq, "scale · ds k  (6.11)", ""),
        (7.35, y_dk + 0.4, "scale · dsᵀ q  (6.12)", ""),
        (3.2, y_delta, "rowsum(do ∘ o)", "(6.6)"),
    ):
        write(ax, x, y - 0.2, formula)
        write(ax, x, y + 0.2, number)
    legend(ax, 4.75, (
        (0.1, {"line": 2.2}, "forward keeps it"), (2.6, {}, "backward gets or stores it"), (6.0, {"dashed": True}, "a tile at a time"),
    ))  # fmt: skip
    legend(ax, 5.1, ((0.1, {"colour": "sky", "share": 0.5}, "lse and delta: one number for each query"),))
    note(ax, 6.0, 5.1, "① to ⑤: five matmuls")


@image("06_trips.png", 4.05)
def draw_trips(ax: Axes) -> None:
    """Naive attention's twelve trips with four matmuls inside them, and the two loops' work and L2's, each beside the measured time."""
    h200, shape = results.load("h200"), {"B": 1, "H": 16, "S_q": 16_384, "S_k": 16_384}
    trip = ledger.score_bytes(**shape, itemsize=2) / h200["provenance"]["ceilings"]["copy_gb_s"] / 1e6  # ms
    matmul = ledger.backward_flops(**shape, D=64, matmuls=1) / h200["provenance"]["ceilings"]["matmul_fp16_tflops"] / 1e9
    pairs = 16 * 16_384**2 / (h200["provenance"]["multiprocessors"] * 1.98e6)  # of an SM, in those that it has in a ms at 1.98 GHz
    exponentials, others = pairs / 16, chapter_6.OTHER_INSTRUCTIONS * pairs / 128  # of a loop, and of both
    layer = {"mode": "bwd", "dtype": "fp16", "B": 1, "H_q": 16, "D": 64, "is_causal": False, "S_q": shape["S_q"]}
    naive, basic = (results.select(h200["rows"], provider=name, **layer).iloc[0]["ms"] for name in ("naive", "basic"))
    left, inch, tall = 1.75, 0.26, 0.42  # inch: of a millisecond
    kernels = (("dv", "r"), ("dp", "w"), ("p ∘ dp", "rrw"), ("ds", "rrw"), ("scale · ds", "rw"), ("dq", "r"), ("dk", "r"))
    x, look = left, {"r": {"colour": "sky"}, "w": {"colour": "orange", "hatch": MASKED}}
    for name, trips in kernels:
        write(ax, x + len(trips) * trip * inch / 2, 0.2, name, weight="bold")
        for way in trips:
            box(ax, x, 0.4, trip * inch, tall, share=0.45, **look[way])
            if name.startswith("d") and len(trips) == 1:
                box(ax, x, 0.4 + tall / 2, matmul * inch, tall / 2, colour="black", share=0.75)
            x += trip * inch
        ax.plot((x, x), (0.3, 0.4 + tall), color="black", linewidth=1.6, zorder=3)
    in_turns = 7 * matmul + 2 * exponentials + others
    exp, other = {"colour": "green", "hatch": "..", "share": 0.4}, {"colour": "purple", "share": 0.4}
    grid(ax, left, 1.7, 1, 7, matmul * inch, lambda *_: {"colour": "black", "share": 0.75}, tall)
    grid(ax, left + 7 * matmul * inch, 1.7, 1, 2, exponentials * inch, lambda *_: exp, tall)
    box(ax, left + (in_turns - others) * inch, 1.7, others * inch, tall, **other)
    note(ax, left + in_turns * inch + 0.75, 1.7 + tall / 2, "or more at a lower clock")
    asked = (2 + 2) * 16 * 16_384**2 * 2 / 10e9  # ms, at 10 TB/s: 2 + 2 elements of 2 bytes a pair
    box(ax, left, 2.2, asked * inch, tall, colour="sky", share=0.45)
    note(ax, left + asked * inch + 0.75, 2.2 + tall / 2, "at 10 TB/s, hidden by the matmuls if loads run ahead")
    note(ax, left + basic * inch + 0.75, 2.7 + tall / 2, "less, so some of the work overlaps")
    for y, name, ms in (
        (0.4, "12 trips of 8 GiB", 12 * trip),
        (0.9, "measured: naive", naive),
        (1.7, "two loops, in series", in_turns),
        (2.2, "32 GiB from L2", asked),
        (2.7, "measured: basic", basic),
    ):
        if name.startswith("measured"):
            box(ax, left, y, ms * inch, tall, line=2.2)
        write(ax, left - 0.1, y + tall / 2, name, ha="right")
        note(ax, left + ms * inch + 0.08, y + tall / 2, f"{ms:.1f} ms", weight="bold")
    legend(ax, 3.5, ((0.1, look["r"] | {"share": 0.45}, "reads"), (3.3, look["w"] | {"share": 0.45}, "writes"),
                     (6.2, {"colour": "black", "share": 0.75}, "a matmul")))  # fmt: skip
    legend(ax, 3.85, ((0.1, exp, "a loop's exponentials"), (3.3, other, "both loops' other instructions")))


LOOP_SHAPE = {"block_m": 2, "block_n": 4, "S_q": 12, "S_k": 12}
LOOP_LOOKS = {"whole": {"colour": "yellow"}, "masked": {"colour": "yellow", "hatch": MASKED}, "skipped": {}}  # p's colour
TILE_LOOKS = {"whole": {"colour": "sky"}, "masked": {"colour": "orange", "hatch": MASKED}, "skipped": {}}


@image("06_two_loops.png", 6.25)
def draw_two_loops(ax: Axes) -> None:
    """The tiles twice: a block of keys stays and the queries stream past, for dk and dv; a block of queries stays, for dq."""
    J, I = 1, 3
    start, full_row = algorithm.causal_rows(J, **LOOP_SHAPE)
    full, end = algorithm.causal_tiles(I, **LOOP_SHAPE)
    rows = LOOP_SHAPE["S_q"] // LOOP_SHAPE["block_m"]
    draw_loop(ax, 0.1, "key block J stays", J, range(start, rows), down=True)
    draw_loop(ax, 4.7, "query block I stays", I, range(end), down=False)
    note(ax, 0.1, 4.7, "dk_J, dv_J: sums over I", BODY, weight="bold")
    notes(ax, 0.1, 4.97, (f"J = {J}: start = {start}, full = {full_row}", "query blocks stream past; dk, dv written once"))
    note(ax, 4.7, 4.7, "dq_I: a sum over J", BODY, weight="bold")
    notes(ax, 4.7, 4.97, (f"I = {I}: full = {full}, end = {end} (4.6)", "key blocks stream past; dq written once"))
    legend(ax, 5.65, tuple((x, {**LOOP_LOOKS[kind], "share": 0.6}, text) for x, kind, text in (
        (0.1, "whole", "whole: no mask"), (2.1, "masked", "with mask"), (3.6, "skipped", "skipped: never read"))))  # fmt: skip
    block_m, block_n, S, _ = LOOP_SHAPE.values()
    note(ax, 0.1, 6.0, f"causal: S_q = S_k = {S}, BLOCK_M = {block_m}, BLOCK_N = {block_n}. A dot: this query sees this key.")


def tile_kind(row_block: int, key_block: int) -> str:
    """How a tile is met, whole, masked or skipped, by the key block's bounds (6.13); those of the row block (4.6) must agree."""
    start, full_row = algorithm.causal_rows(key_block, **LOOP_SHAPE)
    full, end = algorithm.causal_tiles(row_block, **LOOP_SHAPE)
    by_rows = "skipped" if row_block < start else "masked" if row_block < full_row else "whole"
    by_keys = "skipped" if key_block >= end else "masked" if key_block >= full else "whole"
    assert by_rows == by_keys
    return by_rows


def draw_loop(ax: Axes, left: float, title: str, fixed: int, steps: range, *, down: bool) -> None:
    """One loop: the tiles by kind, strong where this program goes (down column `fixed`, or right along row `fixed`), and its results."""
    wide, tall, x, y = 1.0, 0.42, left + 0.65, 1.45
    rows, cols = LOOP_SHAPE["S_q"] // LOOP_SHAPE["block_m"], LOOP_SHAPE["S_k"] // LOOP_SHAPE["block_n"]
    heading(ax, left, 0.25, title)
    note(ax, x, 0.66, "k, v", BODY, weight="bold")
    note(ax, left, 1.25, "q, do", BODY, weight="bold")
    on_rows, on_cols = (steps, [fixed]) if down else ([fixed], steps)  # what the program reads
    line_q, line_k = (1, 2.2) if down else (2.2, 1)
    tile = lambda *place: LOOP_LOOKS[tile_kind(*place)] | {"share": 0.7 if place[down] == fixed else 0.2}

    def part(name: str, reads: bool, line: float) -> dict:
        strong, pale = (0.55, 0.12) if name == "q" else (0.6, 0.15)
        return {"colour": TENSOR_COLOUR[name], **({"share": strong, "line": line} if reads else {"share": pale})}

    grid(ax, x, y, rows, cols, wide, tile, tall)
    grid(ax, left, y, rows, 1, 0.4, lambda row, _: part("q", row in on_rows, line_q), tall)
    for col in range(cols):
        grid(ax, x + col * wide, 0.85, 2, 1, wide, lambda i, _: part("kv"[i], col in on_cols, line_k), 0.2)
    for i in range(LOOP_SHAPE["S_q"]):  # block_m queries share a height of tall, block_n keys a width of wide
        ax.scatter([x + (j + 0.5) * wide / 4 for j in range(i + 1)], [y + (i + 0.5) * tall / 2] * (i + 1), s=6, color="black", zorder=3)
    if down:  # the column of a key block: its tiles in order, then dk and dv below it
        middle, bottom = x + (fixed + 0.5) * wide, y + rows * tall
        outline(ax, x + fixed * wide, y + steps.start * tall, wide, len(steps) * tall)
        arrow(ax, (middle, y + (steps.start + 0.25) * tall), (middle, bottom + 0.22), width=2.4)
        for i, (name, colour) in enumerate((("dk", "orange"), ("dv", "green"))):
            box(ax, middle - 0.6 + i * 0.6, bottom + 0.22, 0.6, 0.3, name, colour, share=0.6, size=BODY, weight="bold")
    else:  # the row of a query block, then dq on the right
        middle, right = y + (fixed + 0.5) * tall, x + cols * wide
        outline(ax, x, y + fixed * tall, len(steps) * wide, tall)
        arrow(ax, (x + 0.25 * wide, middle), (right + 0.1, middle), width=2.4)
        box(ax, right + 0.1, y + fixed * tall, 0.45, tall, "dq", "blue", share=0.6, size=BODY, weight="bold")


@image("06_race.png", 3.0)
def draw_race(ax: Axes) -> None:
    """Programs of several key blocks add to one tile of dq with plain loads and stores: one addition is lost."""
    note(ax, 0.1, 0.25, "a program for each key block J", BODY, weight="bold")
    for J in range(3):
        y = 0.6 + J * 0.62
        box(ax, 0.1, y, 1.2, 0.5, f"J = {J}", "orange", share=0.4, hatch=".." if J == 1 else None)
        arrow(ax, (1.3, y + 0.25), (3.0, 1.47 + (J - 1) * 0.12), "vermilion", dashed=True)
    box(ax, 3.0, 1.17, 1.0, 0.6, "dq_I", "blue", share=0.6, size=HEAD, line=2, weight="bold")
    note(ax, 0.1, 2.75, "each adds scale · ds_IJ k_J")
    # two programs read, add and write without an atomic
    left, top, old, added = 4.75, 0.25, 10, (5, 3)
    note(ax, left, top, "plain load, add, store: one is lost", BODY, weight="bold")
    for col, head in enumerate(("J = 0", "J = 1", "dq_I")):
        write(ax, left + (0.75, 2.25, 3.65)[col], top + 0.4, head, weight="bold")
    steps = (((0, f"load {old}"), old), ((1, f"load {old}"), old), ((0, f"store {old} + {added[0]}"), old + added[0]),
             ((1, f"store {old} + {added[1]}"), old + added[1]))  # fmt: skip
    for row, ((program, text), value) in enumerate(steps):
        y = top + 0.6 + row * 0.42
        box(ax, left + program * 1.5, y, 1.45, 0.38, text, "orange", share=0.4, hatch=".." if program else None)
        box(ax, left + 3.2, y, 0.9, 0.38, str(value), "blue", share=0.3)
    note(ax, left, top + 2.5, f"want {old} + {added[0]} + {added[1]} = {old + sum(added)}, got {old + added[1]}")


@image("06_atomics.png", 3.0)
def draw_atomics(ax: Axes) -> None:
    """Three programs add to one element of dq with atomic adds, in two orders."""
    left, top, added = 0.1, 0.25, (2.0**24, 3.0, 3.0)
    note(ax, left, top, "atomic adds: none lost, each rounded", BODY, weight="bold")
    note(ax, left, top + 0.4, f"J = 0 adds {added[0]:,.0f}, J = 1 and 2 add 3 each; fp32")
    for row, order in enumerate(((0, 1, 2), (1, 2, 0))):
        y = top + 0.68 + row * 0.85
        total = torch.zeros((), dtype=torch.float32)
        note(ax, left, y + 0.44, f"run {row + 1}", weight="bold")
        for col, J in enumerate(order):
            total = total + added[J]
            x = left + 0.9 + col * 2.2
            write(ax, x + 1.05, y + 0.1, f"+ J = {J}")
            look = {"share": 0.5, "weight": "bold"} if col == 2 else {"share": 0.3}
            box(ax, x, y + 0.25, 2.1, 0.38, f"{total.item():,.0f}", "blue", **look)
    note(ax, left, top + 2.5, "both right within rounding, and not the same bits")


@image("07_transposed_tile.png", 6.9)
def draw_transposed_tile(ax: Axes) -> None:
    """A program that keeps k makes dv: once from s, whose p must be transposed, and once from s_t, whose p_t is as dv needs it."""
    keys, queries, dim, gap, right = 0.95, 0.65, 1.2, 0.12, 5.75
    for row, title, (left, streams, made, weights), (tall, wide), shape in (
        (1.85, "computing s: a computed tile must be transposed", ("q", "k", "s", "p"), (queries, keys), "[BLOCK_M, BLOCK_N]"),
        (5.1, "computing s_t, the transpose of s: only q is transposed", ("k", "q", "s_t", "p_t"), (keys, queries), "[BLOCK_N, BLOCK_M]"),
    ):
        note(ax, 0.1, row - dim - gap - 0.27, title, BODY, weight="bold")
        x, looks = 0.1 + dim + gap, {"k": {"line": 2.4}, "q": {"hatch": ".."}}
        tensor_box(ax, 0.1, row, dim, tall, left, size=HEAD, **looks[left])
        tensor_box(ax, x, row - dim - gap, wide, dim, f"{streams}ᵀ", size=HEAD, colour=TENSOR_COLOUR[streams], **looks[streams])
        box(ax, x, row, wide, tall, made, "yellow", share=0.6, size=HEAD, weight="bold")
        write(ax, x + wide / 2, row + tall + 0.22, shape)
        at = 3.45 if weights == "p" else right
        arrow(ax, (x + wide + 0.06, row + tall / 2), (at - 0.06, row + tall / 2))
        write(ax, (x + wide + at) / 2, row + tall / 2 - 0.2, "exp")
        box(ax, at, row, wide, tall, weights, "yellow", share=0.6, size=HEAD, weight="bold")
        if weights == "p":
            write(ax, at + wide / 2, row + tall + 0.22, shape)
            arrow(ax, (at + wide + 0.06, row + tall / 2), (right - 0.06, row + tall / 2), "vermilion", dashed=True)
            write(ax, (at + wide + right) / 2, row + tall / 2 - 0.32, "tl.trans(p),\nat every step", weight="bold", linespacing=1.2)
            box(ax, right, row, queries, keys, "pᵀ", "yellow", share=0.6, size=HEAD, weight="bold")
        write(ax, right + queries / 2, row + keys + 0.22, "[BLOCK_N, BLOCK_M]")
        x = right + queries + gap
        tensor_box(ax, x, row - queries - gap, dim, queries, "do", hatch="..", size=HEAD, colour=TENSOR_COLOUR["o"])
        tensor_box(ax, x, row, dim, keys, "dv", line=2.4, size=HEAD)
        note(ax, x + dim + 0.1, row + keys / 2, "+= pᵀ do" if weights == "p" else "+= p_t do")
    legend(ax, 6.65, ((0.1, {"line": 2.4}, "the program holds it"), (3.3, {"hatch": ".."}, "arrives at every step"),
                     (6.2, {"colour": "yellow", "share": 0.6}, "computed, in registers")))  # fmt: skip


@image("07_kernels.png", 6.6)
def draw_kernels(ax: Axes) -> None:
    """The three kernels of backward in order: what streams past a program, what it holds and adds up, what it writes."""
    for x, text in ((0.1, "streams past"), (2.3, "a program, and what it holds"), (7.45, "writes")):
        note(ax, x, 0.25, text, BODY, weight="bold")
    for i, (name, what, work, past, held, summed, written) in enumerate((
        ("1  delta_kernel", "a block of rows", "rowsum(do ∘ o)", (), ("o", "do"), (), ("delta",)),
        ("2  dkdv_kernel", "a block of keys", "matmuls: s, dp, dv, dk", ("lse", "delta", "q", "do"), ("k", "v"), ("dk", "dv"), ("dk", "dv")),
        ("3  dq_kernel", "a block of queries", "matmuls: s, dp, dq", ("k", "v"), ("lse", "delta", "q", "do"), ("dq",), ("dq",)),
    )):  # fmt: skip
        top, middle = 0.5 + i * 1.6, 0.5 + i * 1.6 + 0.65
        box(ax, 2.3, top, 4.5, 1.3, line=2)
        for y, text, look in ((0.22, name, {"size": BODY, "weight": "bold"}), (0.63, what, {}), (1.02, work, {})):
            note(ax, 2.42, top + y, text, **look)
        tensor_group(ax, 0.1, middle, past, hatch="..")
        tensor_group(ax, 5.3, middle, held, line=2)
        tensor_group(ax, 4.6, middle, summed, "+=", columns=1, line=2)
        tensor_group(ax, 7.45, middle, written)
        if past:
            arrow(ax, (1.6, middle), (2.3, middle), "blue")
        arrow(ax, (6.8, middle), (7.45, middle), "vermilion", dashed=True)
    note(ax, 7.45, 1.55, "read by 2 and 3")
    sample(ax, 0.1, 5.5, "read at every step", "blue")
    legend(ax, 5.5, ((2.3, {"line": 2.4}, "the program holds it"),))
    note(ax, 4.9, 5.5, "+=", BODY, weight="bold")
    note(ax, 5.3, 5.5, "added up")
    sample(ax, 6.9, 5.5, "written once", "vermilion", dashed=True)
    notes(ax, 0.1, 5.95, ("programs: ⌈S_q / BLOCK_M⌉ · B · H (1 and 3), ⌈S_k / BLOCK_N⌉ · B · H (2)",
                          "No tensor has S_q × S_k elements."), step=0.32)  # fmt: skip


def tensor_group(ax: Axes, left: float, middle: float, names: tuple[str, ...], sign: str = "", columns: int = 2, **look) -> None:
    """Tensors in rows of `columns` around `middle`, each with `sign` before it."""
    lines = -(-len(names) // columns)
    for i, name in enumerate(names):
        x, y = left + i % columns * 0.72, middle - lines * 0.22 + i // columns * 0.44
        tensor_box(ax, x, y, 0.66, 0.38, name, **{"size": SMALL, **look})
        write(ax, x - 0.04, y + 0.19, sign, ha="right", weight="bold")


@image("07_missing.png", 3.9)
def draw_missing(ax: Axes) -> None:
    """What isn't there: a query adds 0 to every row of dk and dv; a key's own rows aren't stored, and it adds to every row of dq."""
    real, side, top = 3, 0.55, 0.95
    scores = [[shift, shift + 1.0, shift] for shift in (0.0, -10.0, -12.0)]  # of three queries, whose delta is 2, as in the chapter's cell
    ds = [(-2.0 * torch.exp(-torch.logsumexp(torch.tensor(row), dim=0))).half() for row in scores]

    def words(x: float) -> str:
        return f"{x:.{int(0 < abs(x) < 1)}f}".replace("-", "−").replace("inf", "∞")

    for left, missing, kernel, text in ((0.75, "query", "dkdv_kernel", "p"), (5.1, "key", "dq_kernel", "ds")):
        rows, cols = real + (missing == "query"), real + (missing == "key")
        note(ax, left - 0.65, 0.25, f"{kernel}: a missing {missing}", BODY, weight="bold")
        write(ax, left + real * side / 2, top - 0.2, "keys")
        write(ax, left - 0.12, top + real * side / 2, "queries", ha="right", rotation=90)
        absent, there = {"text": text, "dashed": True, "colour": "vermilion", "share": 0.25}, {"colour": "yellow", "share": 0.5}
        if missing == "query":
            grid(ax, left, top, rows, cols, side, lambda *place: absent if real in place else there)
        else:
            texts = [[words(float(x)) for x in (*row, part)] for row, part in zip(scores, ds, strict=True)]
            grid(
                ax,
                left,
                top,
                rows,
                cols,
                side,
                lambda row, col: (absent if col == real else there) | {"text": texts[row][col], "size": SMALL},
            )
        if missing == "query":
            bottom = top + rows * side
            for col in range(real):
                x = left + (col + 0.5) * side
                arrow(ax, (x, bottom), (x, bottom + 0.3), "vermilion", dashed=True)
                box(ax, left + col * side, bottom + 0.3, side, 0.3, "dk, dv", "green", share=0.4)
            notes(ax, left + real * side + 0.2, top + real * side + 0.1, ("p = 1, and q = do = 0:", "it adds 0 everywhere"))
        else:
            right = left + cols * side
            for row in range(real):
                y = top + (row + 0.5) * side
                arrow(ax, (right, y), (right + 0.3, y), "vermilion", dashed=True)
                added = float(ds[row] * 0.0)
                box(ax, right + 0.3, top + row * side, 0.6, side, "NaN" if math.isnan(added) else "+ 0", "blue", share=0.5)
            write(ax, right - side / 2, top - 0.2, "ds")
            write(ax, right + 0.6, top - 0.2, "dq")
            lines = ("Its score is 0. Where the other scores", "are far below, its ds is huge: −∞ in fp16,", "and −∞ · k = −∞ · 0 is NaN")
            notes(ax, left, top + real * side + 0.3, lines)


@image("07_group_sum.png", 3.85)
def draw_group_sum(ax: Axes) -> None:
    """One program of a key head, three query heads to a key head, causal: it walks over the queries of one head after the other."""
    serves = reference.repeat_heads(torch.arange(2).view(1, 2, 1, 1), 6).flatten().tolist()
    heads, blocks = [head for head, key_head in enumerate(serves) if key_head == 1], 8
    first, full = algorithm.causal_rows(3, 64, 64, 64 * blocks, 64 * blocks)
    left, side, tall = 3.55, 0.6, 0.42
    note(ax, 0.1, 0.2, "one program: key head 1, one block of keys", BODY, weight="bold")
    note(ax, 0.1, 0.85, "holds")
    note(ax, 0.1, 1.85, "adds up")
    for y, names in ((0.64, ("k", "v")), (1.64, ("dk", "dv"))):
        for i, name in enumerate(names):
            tensor_box(ax, 0.95 + 0.75 * i, y, 0.7, 0.42, name, line=2.4)
    for i, head in enumerate(heads):
        y = 0.95 + i * 0.68
        write(ax, left - 0.15, y + tall / 2, f"h = {head}", BODY, ha="right")
        for block in range(blocks):
            look = {"dashed": True} if block < first else TILE_LOOKS["masked" if block < full else "whole"] | {"share": 0.6}
            step = i * (blocks - first) + (block - full if block >= full else blocks - full + block - first) + 1
            box(ax, left + block * side, y, side, tall, "" if block < first else f"{step}", **look)
    for block, name, align in ((first, "first_m", "right"), (full, "full_m", "left")):
        x = left + block * side
        ax.plot((x, x), (0.7, 0.95 + 2 * 0.68 + tall), color="black", linewidth=1.6, linestyle=":", zorder=3)
        write(ax, x, 0.55, name, ha=align)
    write(ax, left + blocks * side, 0.55, "blocks of q and do →", ha="right")
    legend(ax, 3.1, ((0.1, {"dashed": True}, "sees none of these keys: not read"), (4.4, TILE_LOOKS["masked"] | {"share": 0.6}, "with the mask"),
                     (6.6, TILE_LOOKS["whole"] | {"share": 0.6}, "without it")))  # fmt: skip
    note(ax, 0.1, 3.55, "Six query heads read two key heads, so heads 3, 4 and 5 read key head 1. The numbers are the program's steps.")


@image("07_dkdv_step.png", 6.95)
def draw_dkdv_step(ax: Axes) -> None:
    """One step of dkdv_kernel with the shape of every tile: keys are the rows, from left to right."""
    first, second = 1.6, 4.65
    draw_dkdv_row(ax, first, ("k", "q", "s_t", "scale · k qᵀ (7.1)"), ("lse", "exp(s_t − lse)", "(6.7)"), "p_t", ("do", "dv", "p_t do"))
    weights = ("delta", "p_t ∘ (dp_t − delta)", "(6.10)")
    draw_dkdv_row(ax, second, ("v", "do", "dp_t", "v doᵀ (7.1)"), weights, "ds_t", ("q", "dk", "scale · ds_t q"))
    ax.plot((5.0, 4.78, 4.78), (first + 0.85, first + 0.85, second + 0.2), color="black", linewidth=1.2)
    arrow(ax, (4.78, second + 0.2), (4.97, second + 0.2))
    write(ax, 4.7, first + 1.4, "p_t in float32", ha="right")
    note(ax, 0.1, 6.3, "M is BLOCK_M, N is BLOCK_N, D is BLOCK_D.")
    legend(ax, 6.7, ((0.1, {"line": 2.4}, "the program holds it"), (3.3, {"hatch": ".."}, "arrives at every step"),
                      (6.5, {"colour": "yellow", "share": 0.6}, "computed, in registers")))  # fmt: skip


def draw_dkdv_row(ax: Axes, row: float, scores: tuple[str, ...], weights: tuple[str, ...], name: str, sums: tuple[str, ...]) -> None:
    """A product whose left operand stays, the tile of weights made of it, and the product of that. row: the tiles' upper edge."""
    keys, queries, dim, gap, middle = 1.05, 0.9, 1.35, 0.12, 5.0
    (stays, streams, made, first), (per_query, rule, second), (other, gradient, product) = scores, weights, sums
    left, right, colour = 0.1 + dim + gap, middle + queries + gap, {"q": TENSOR_COLOUR["q"], "do": TENSOR_COLOUR["o"]}
    for x, y, width, height, tensor, shape, look in (
        (0.1, row, dim, keys, stays, "N × D", {"line": 2.4}),
        (left, row - dim - gap, queries, dim, f"{streams}ᵀ", "D × M", {"hatch": "..", "colour": colour[streams]}),
        (left, row, queries, keys, made, "N × M", {"colour": "yellow"}),
        (middle, row, queries, keys, name, "N × M", {"colour": "yellow"}),
        (right, row - queries - gap, dim, queries, other, "M × D", {"hatch": "..", "colour": colour[other]}),
        (right, row, dim, keys, gradient, "N × D", {"line": 2.4}),
    ):
        tensor_box(ax, x, y, width, height, f"{tensor}\n{shape}", **{"colour": TENSOR_COLOUR.get(tensor.removeprefix("d")), **look})
    write(ax, left + queries / 2, row + keys + 0.2, first)
    arrow(ax, (left + queries + 0.06, row + keys / 2), (middle - 0.06, row + keys / 2))
    write(ax, (left + queries + middle) / 2, row + keys / 2 - 0.22, rule)
    write(ax, (left + queries + middle) / 2, row + keys / 2 + 0.22, second)
    tensor_box(ax, middle, row - 0.4, queries, 0.28, per_query, hatch="..", size=SMALL)
    write(ax, middle + queries / 2, row - 0.52, "1 × M")
    note(ax, right + dim + 0.1, row + keys / 2, f"+= {product}\n(7.2)", linespacing=1.35)
    note(ax, right + dim + 0.1, row + keys - 0.05, f"{name} in {other}'s dtype")
