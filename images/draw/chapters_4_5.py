"""The drawings of chapters 4 and 5."""

import math

import torch
from matplotlib.axes import Axes

from draw.chapters_2_3 import draw_program
from draw.drawing import arrow, box, bracket, frames, grid, heading, image, legend, note, notes, number, outline, sample, write, writes
from draw.look import BODY, HEAD, MASKED, SEEN, TENSOR_COLOUR, WHOLE
from fa_tutorial import algorithm, reference

BLOCKS, NOW = 4, 6  # of draw_two_loop_orders: blocks of queries, and of keys; the step at hand, of BLOCKS² counted from 1


@image("04_loop.png", 6.25)
def draw_tiled_loop(ax: Axes) -> None:
    """Chapter 3's program with the softmax in it: m, l and acc stay on the chip, and one division comes after the last tile."""
    draw_program(ax, 4.5, {"s": 3.1, "p": 4.4}, "o (S_q, D), lse", "kᵀ (D, S_k)", "D")
    for name, x in (("m", 3.525), ("l", 4.825)):
        box(ax, x - 0.14, 4.45, 0.28, 0.75, name, "vermilion", size=HEAD, weight="bold", line=2)
        arrow(ax, (x, 3.75), (x, 4.45))
    note(ax, 3.42, 4.1, "row max", ha="right")
    note(ax, 4.93, 3.98, "row sum")
    arrow(ax, (3.665, 4.6), (4.45, 3.75))
    write(ax, 3.525, 5.42, "[BLOCK_M]")
    write(ax, 4.825, 5.42, "[BLOCK_M]")
    write(ax, 2.4, 4.72, "m, l and acc stay;\ns and p never\nleave the chip")
    write(ax, 3.99, 4.95, "alpha")
    arrow(ax, (3.665, 5.1), (4.685, 5.1))
    for xs, ys in (((4.35, 4.35, 4.77), (5.1, 4.27, 4.27)), ((4.88, 5.9), (4.27, 4.27))):  # alpha's way to acc, with a gap at l's arrow
        ax.plot(xs, ys, color="black", linewidth=1.75)
    arrow(ax, (5.9, 4.27), (5.9, 3.75))
    write(ax, 6.3, 4.6, "acc = alpha · acc + p v\n[BLOCK_M, D]")
    write(ax, 6.3, 5.3, "after the last tile, once:\no = acc / l\nlse = m + log l")


@image("04_two_loop_orders.png", 5.45)
def draw_two_loop_orders(ax: Axes) -> None:
    """FA1 goes down the columns of tiles, FA2 along the rows: the order of visits, and what each reads and writes when."""
    by_rows = {(row, col): 1 + row * BLOCKS + col for row in range(BLOCKS) for col in range(BLOCKS)}
    by_columns = {(row, col): step for (col, row), step in by_rows.items()}
    draw_loop_order(ax, 0.1, "FA1: outer loop over k, v", by_columns, "o, m, l")
    draw_loop_order(ax, 4.7, "FA2: outer loop over q", by_rows, "o, lse")
    notes(ax, 0.1, 4.15, ("each column: read k, v", "each tile: read q, o, m, l; write o, m, l"), BODY)
    notes(ax, 4.7, 4.15, ("each row: read q; at its end write o, lse", "each tile: read k, v (acc, m, l stay on the chip)"), BODY)
    sample(ax, 0.1, 4.85, f"tile {NOW} reads", "blue")
    sample(ax, 1.95, 4.85, f"tile {NOW} writes", "vermilion", dashed=True)
    done = f"n/{BLOCKS}: o, or acc, contains n of the {BLOCKS} blocks of keys so far"
    note(ax, 0.1, 5.2, f"1 to {BLOCKS**2}: order of visits; dark: on the chip now; {done}")


def draw_loop_order(ax: Axes, left: float, title: str, order: dict[tuple[int, int], int], results: str) -> None:
    """One panel: the tiles numbered by `order`, q on the left, k and v above, the results on the right with the blocks that each holds."""
    side, x, y = 0.55, left + 0.85, 1.6
    x_out, down = x + BLOCKS * side + 0.5, order[1, 0] == 2  # down: the inner loop runs over the rows
    places = {step: (x + (col + 0.5) * side, y + (row + 0.5) * side) for (row, col), step in order.items()}
    [(now_row, now_col)] = [tile for tile, step in order.items() if step == NOW]
    heading(ax, left, 0.25, title)
    write(ax, left + 0.2, 0.62, "q", BODY, weight="bold")
    write(ax, x + BLOCKS * side / 2, 0.62, "k, v", BODY, weight="bold")
    write(ax, x_out + 0.275, 0.62, results, BODY, weight="bold")
    looks = {"colour": "yellow", "share": 0.35}, {"colour": "yellow", "share": 0.8, "weight": "bold"}, {}  # done, at hand, to come
    look = lambda *tile: {"text": str(order[tile]), "size": BODY, **looks[(order[tile] >= NOW) + (order[tile] > NOW)]}
    grid(ax, x, y, BLOCKS, BLOCKS, side, look)
    outline(ax, x + now_col * side, y + now_row * side, side, side)
    for i in range(BLOCKS):
        on_chip_q, on_chip_k = i == now_row, i == now_col
        box(ax, left, y + i * side, 0.4, side, colour="blue", share=0.6 if on_chip_q else 0.15, line=2.2 if on_chip_q else 1)
        box(ax, x + i * side, 0.82, side, 0.2, colour="orange", share=0.6 if on_chip_k else 0.15, line=2.2 if on_chip_k else 1)
        box(ax, x + i * side, 1.02, side, 0.2, colour="green", share=0.6 if on_chip_k else 0.15, line=2.2 if on_chip_k else 1)
        done = sum(order[i, col] <= NOW for col in range(BLOCKS))
        look_of_o = {"share": 0.7 if on_chip_q else 0.4 if done else 0.0, "line": 2.2 if on_chip_q else 1}
        box(ax, x_out, y + i * side, 0.55, side, f"{done}/{BLOCKS}" if done else "", colour="purple", **look_of_o)
    for step in range(1, BLOCKS**2):
        (x0, y0), (x1, y1) = places[step], places[step + 1]
        if step % BLOCKS:
            arrow(ax, (x0 + 0.3 * (x1 - x0), y0 + 0.3 * (y1 - y0)), (x1 - 0.3 * (x1 - x0), y1 - 0.3 * (y1 - y0)), width=0.8)
        elif down:
            arrow(ax, (x0 + 0.1, y0 - 0.12), (x1 - 0.15, y1 + 0.08), dashed=True, width=0.8)
        else:
            arrow(ax, (x0 - 0.1, y0 + 0.13), (x1 + 0.12, y1 - 0.1), dashed=True, width=0.8)
    middle = y + (now_row + 0.5) * side
    if not down:  # FA2 has q on the chip since its row began, and FA1 has k and v since its column began
        arrow(ax, (places[NOW][0], 1.22), (places[NOW][0], y), "blue")
    else:
        arrow(ax, (left + 0.4, middle), (x, middle), "blue")
        arrow(ax, (x_out, middle - 0.12), (x_out - 0.5, middle - 0.12), "blue")
        arrow(ax, (x_out - 0.5, middle + 0.12), (x_out, middle + 0.12), "vermilion", dashed=True)


HIDDEN, BEYOND = {"colour": "orange", "share": 0.15, "hatch": MASKED}, {"hatch": "xxx", "dashed": True}  # by the mask; past S_k


def look_of(place: int, full: int, end: int, seen: bool) -> dict:
    """The look of an element in a row, or in a row of tiles, whose bounds are full and end."""
    return WHOLE if place < full else {} if place >= end else SEEN if seen else HIDDEN


@image("04_causal_tiles.png", 4.6)
def draw_causal_tiles(ax: Axes) -> None:
    """Tiles under the causal mask, whole, masked and skipped, with (full, end) of each row block: S_q = S_k, S_q < S_k, S_q > S_k."""
    block, side, top = 2, 0.205, 0.85
    for left, S_q, S_k in ((0.1, 8, 8), (3.05, 8, 11), (6.6, 11, 6)):
        heading(ax, left, 0.25, f"S_q = S_k = {S_k}" if S_q == S_k else f"S_q = {S_q} {'<' if S_q < S_k else '>'} S_k = {S_k}")
        seen = reference.causal_mask(S_q, S_k)
        bounds = [algorithm.causal_tiles(row_block, block, block, S_q, S_k) for row_block in range(-(-S_q // block))]
        grid(ax, left, top, S_q, S_k, side, lambda row, col: look_of(col // block, *bounds[row // block], seen[row, col]))
        frames(ax, left, top, S_q, S_k, side, (block, block), line=1.3)
        note(ax, left + S_k * side + 0.08, top - 0.2, "full, end")
        for row_block, (full, end) in enumerate(bounds):
            y, tall = top + row_block * block * side, min(block, S_q - row_block * block) * side
            note(ax, left + S_k * side + 0.08, y + tall / 2, f"{full}, {end}")
        if blind := int((~seen.any(dim=1)).sum()):
            note(ax, left, top + S_q * side + 0.4, f"rows 0 to {blind - 1} see nothing:\no = 0, lse = −∞")
    legend(ax, 3.95, (
        (0.1, WHOLE, "whole: no mask"), (1.95, SEEN, "masked tile, seen"), (4.05, HIDDEN, "masked tile, hidden"), (6.35, {}, "skipped: never read"),
    ))  # fmt: skip
    note(ax, 0.1, 4.35, "one square: one query (row) and one key (column); thick lines: tiles of 2 × 2; on the right: full, end")


@image("04_one_tile.png", 5.0)
def draw_one_tile(ax: Axes) -> None:
    """softmax_step on a tile of two queries and two keys, the second of its row: what has one number per row, and what has more."""
    s = torch.tensor([[3, 2, 5, 1], [6, 4, 1, 5]], dtype=torch.float64)  # scores; the first query's are chapter 1's
    v = torch.tensor([[10, 4], [20, 3], [30, 2], [40, 1]], dtype=torch.float64)
    p, m, l, _ = algorithm.softmax_step(s[:, :2], torch.full((2,), -math.inf, dtype=s.dtype), torch.zeros(2, dtype=s.dtype))
    acc = p @ v[:2]
    p, m_new, l_new, alpha = algorithm.softmax_step(s[:, 2:], m, l)
    wide, tall, top, low, one = 0.78, 0.46, 0.8, 2.95, "[BLOCK_M]"

    def tile(x: float, y: float, name: str, shape: str, values: torch.Tensor, colour: str | None = None, weight: str = "normal") -> float:
        """Cells of one tensor with its name and shape above; returns where they end."""
        values = values[:, None] if values.ndim == 1 else values
        end = x + values.shape[1] * wide
        write(ax, (x + end) / 2, y - 0.5, name, HEAD, weight="bold")
        write(ax, (x + end) / 2, y - 0.19, shape)
        look = {"size": BODY, "weight": weight, "colour": colour, "share": 0.4}
        grid(ax, x, y, *values.shape, wide, lambda *place: {"text": number(round(values[place].item(), 4)), **look}, tall)
        return end

    def before_and_after(x: float, y: float, name: str, shape: str, before: torch.Tensor, after: torch.Tensor, colour: str) -> float:
        """Two tiles, and an arrow for each row, because each query goes its own way; returns where the first ends."""
        end = tile(x, y, f"{name} before", shape, before)
        for row in range(2):
            arrow(ax, (end, y + (row + 0.5) * tall), (end + 0.5, y + (row + 0.5) * tall))
        tile(end + 0.5, y, f"{name} after", shape, after, colour, "bold")
        return end

    for y in (top, low):
        writes(ax, 0.1, y + 0.5 * tall, ("query 0", "query 1"), dy=tall, ha="left")
    tile(1.0, top, "s", "[BLOCK_M, BLOCK_N]", s[:, 2:], "orange")
    tile(5.75, top, "alpha", one, alpha, "sky")
    tile(7.3, top, "p", "[BLOCK_M, BLOCK_N]", p, "orange")
    tile(3.4, low, "v", "[BLOCK_N, D]", v[2:], "green")
    m_end = before_and_after(3.1, top, "m", one, m, m_new, "sky")
    l_end = before_and_after(1.0, low, "l", one, l, l_new, "yellow")
    acc_end = before_and_after(5.3, low, "acc", "[BLOCK_M, D]", acc, alpha[:, None] * acc + p @ v[2:], "purple")
    for x, y, text in (
        (m_end + 0.1, top, "max(m, rowmax s)"),
        (6.05, top, "exp(m before − m after)"),
        (8.08, top, "exp(s − m after)"),
        (l_end + 0.25, low, "alpha · l + rowsum p"),
        (4.18, low, "rows: keys 2, 3"),
        (acc_end + 0.25, low, "alpha · acc + p v"),
    ):
        write(ax, x, y + 2 * tall + 0.24, text, BODY)
    note(ax, 0.1, 4.5, "query 0: the maximum grows from 3 to 5, so alpha shrinks its l and its acc")
    note(ax, 0.1, 4.8, "query 1: the maximum stays 6, so its alpha is 1 and nothing is corrected")


@image("05_grid.png", 5.2)
def draw_grid(ax: Axes) -> None:
    """The programs of two batch entries with two heads each, in one row; what one of them reads and writes."""
    B, H, row_blocks, key_blocks, mine, left, wide = 2, 2, 3, 5, 7, 0.15, 0.725
    heading(ax, left, 0.25, f"B = {B}, H = {H}, {row_blocks} row blocks: {B * H * row_blocks} programs on one axis")
    look = {"colour": "black", "share": 0.2, "weight": "bold"}, {}
    grid(ax, left, 0.9, 1, B * H * row_blocks, wide, lambda _, pid: {"text": str(pid), "size": BODY, **look[pid != mine]}, 0.5)
    for batch_head in range(B * H):
        start, stop = left + batch_head * row_blocks * wide, left + (batch_head + 1) * row_blocks * wide
        bracket(ax, start + 0.04, stop - 0.04, 0.86, f"b = {batch_head // H}, h = {batch_head % H}")
    outline(ax, left + mine * wide, 0.9, wide, 0.5, line=3)
    b, h, row_block = mine // row_blocks // H, mine // row_blocks % H, mine % row_blocks
    heading(ax, left, 1.75, f"Program {mine}: b = {b}, h = {h}, row block {row_block}")
    top, tall, cell = 2.65, 0.6, 1.3
    for name, x in zip("qkvo", (0.5, 2.75, 5.0, 7.25), strict=True):
        rows, what = ("S_k", "read, tile by tile") if name in "kv" else ("S_q", "read once" if name == "q" else "written once")
        write(ax, x + cell / 2, top - 0.45, f"{name}[{b}, {h}]", BODY, weight="bold")
        write(ax, x + cell / 2, top - 0.17, f"[{rows}, D]")
        blocks, high, side = (key_blocks, 0.4, "BLOCK_N") if name in "kv" else (row_blocks, tall, "BLOCK_M")
        mine, look = range(blocks) if name in "kv" else [row_block], {"text": f"{side} rows", "colour": TENSOR_COLOUR[name], "share": 0.45}
        grid(ax, x, top, blocks, 1, cell, lambda block, _: look if block in mine else {}, high)
        outline(ax, x, top + mine[0] * high, cell, len(mine) * high)
        write(ax, x + cell / 2, top + blocks * high + 0.25, what)


@image("05_two_loops.png", 6.0)
def draw_two_loops(ax: Axes) -> None:
    """A row block under the causal mask against all keys, each tile named by the loop that it falls to: S_q = S_k, and S_q < S_k."""
    draw_row_block(ax, 0.25, 21)
    draw_row_block(ax, 3.0, 16)
    legend(ax, 5.75, (
        (0.1, WHOLE, "tile seen whole by all rows"), (2.95, SEEN, "seen"), (3.95, HIDDEN, "hidden by the mask"), (6.05, {}, "never read"),
        (7.45, BEYOND, "beyond S_k"),
    ))  # fmt: skip


def draw_row_block(ax: Axes, y: float, S_q: int) -> None:
    """Row block 2 of S_q queries against 21 keys."""
    S_k, block_m, block_n, row_block = 21, 4, 2, 2
    left, side, top, first = 1.1, 0.34, y + 0.65, row_block * block_m
    full, end = algorithm.causal_tiles(row_block, block_m, block_n, S_q, S_k)
    full_n, end_n, keys = full * block_n, end * block_n, -(-S_k // block_n) * block_n
    seen = reference.causal_mask(S_q, S_k)
    lengths = f"S_q = S_k = {S_k}" if S_q == S_k else f"S_q = {S_q}, S_k = {S_k}"
    heading(ax, 0.1, y, f"{lengths}, BLOCK_M = {block_m}, BLOCK_N = {block_n}, row block {row_block}")
    look = lambda row, col: look_of(col, full_n, end_n, seen[first + row, col]) if col < S_k else BEYOND
    grid(ax, left, top, block_m, keys, side, look)
    frames(ax, left, top, block_m, keys, side, (block_m, block_n), line=1.3)
    writes(ax, left + 0.5 * side, top - 0.15, range(S_k), dx=side)
    write(ax, 0.95, top - 0.15, "key", ha="right")
    writes(ax, 0.95, top + 0.5 * side, [f"row {first + row}" for row in range(block_m)], dy=side, ha="right")
    last = min(first + block_m, S_q) + S_k - S_q  # the kernel's end_n, which may lie within a tile
    for name, key, ha in (("full_n", full_n, "right"), ("end_n", last, "left")):
        ax.plot([left + key * side] * 2, [top - 0.29, top], color="black", linewidth=1.8)
        write(ax, left + key * side, top - 0.39, f"{name} = {key}", BODY, weight="bold", ha=ha)
    for start, stop, name in ((0, full_n, "loop without a mask"), (full_n, end_n, "loop with it"), (end_n, keys, "never read")):
        bracket(ax, left + start * side + 0.04, left + stop * side - 0.04, top + block_m * side + 0.1, name, high=-0.08)


@image("05_over_the_end.png", 5.6)
def draw_over_the_end(ax: Axes) -> None:
    """Two heads stored one after another: the last tile of the first runs into the second, unless the mask stops it."""
    block, unit, left, shades = 64, 0.0365, 1.5, (0.25, 0.6)  # of q's colour: both heads are q's

    def heads(y: float, S: int) -> None:
        note(ax, 0.1, y + 0.21, "memory")
        for head, share in enumerate(shades):
            text = f"head {head}: rows {head * S} to {head * S + S - 1}"
            box(ax, left + head * S * unit, y, S * unit, 0.42, text, TENSOR_COLOUR["q"], share=share)

    def tiles(y: float, S: int, *, masked: bool) -> None:
        note(ax, 0.1, y + 0.21, "with a mask" if masked else "no mask")
        for start in range(0, S, block):
            stop, x = start + block, left + start * unit
            inside = min(stop, S)
            box(ax, x, y, (inside - start) * unit, 0.42, f"rows {start} to {inside - 1}", TENSOR_COLOUR["q"], share=shades[0])
            if stop > S:
                look = {"hatch": MASKED, "dashed": True} if masked else {"colour": "vermilion", "share": 0.5, "hatch": "xx"}
                box(ax, left + S * unit, y, (stop - S) * unit, 0.42, f"{S} to {stop - 1}", **look)
            outline(ax, x, y, block * unit, 0.42)

    S = 100
    stop = -(-S // block) * block
    heading(ax, 0.1, 0.25, f"S = {S}, BLOCK_M = {block}: the last tile of head 0 ends at row {stop}")
    heads(0.55, S)
    ax.plot([left + S * unit] * 2, [0.45, 2.7], color="black", linewidth=1.2, linestyle=":", zorder=0.5)
    tiles(1.25, S, masked=False)
    note(ax, left + stop * unit + 0.12, 1.46, f"its o is stored over\nrows 0 to {stop - S - 1} of head 1's", weight="bold")
    tiles(2.15, S, masked=True)
    note(ax, left + stop * unit + 0.12, 2.36, "load gives 0,\nstore writes nothing", weight="bold")
    S = 64
    heading(ax, 0.1, 3.25, f"S = {S}: tile and head end together, so a test at S = {S} cannot tell")
    heads(3.55, S)
    tiles(4.25, S, masked=False)
    note(ax, 0.1, 5.2, "thick frames: the tiles of head 0; hatched: rows of a tile that are not in head 0")


@image("05_gqa.png", 4.3)
def draw_gqa(ax: Axes) -> None:
    """Six query heads on two key heads: a bracket joins each group to its key head, and one program is marked."""
    H_q, H_k, blocks, tiles, mine, row_block = 6, 2, 3, 5, 4, 1
    serves = reference.repeat_heads(torch.arange(H_k).view(1, H_k, 1, 1), H_q).flatten().tolist()
    left, step, wide, tall, group, y, y_k = 1.6, 1.24, 1.06, 0.34, H_q // H_k, 0.55, 2.6
    note(ax, 0.1, y + blocks * tall / 2, f"q: H_q = {H_q}", BODY, weight="bold")
    note(ax, 0.1, y_k + 0.3, f"k, v: H_k = {H_k}", BODY, weight="bold")
    for h in range(H_q):
        x = left + h * step
        write(ax, x + wide / 2, y - 0.2, f"h = {h}", BODY, weight="bold")
        look = {"share": 0.6, "line": 2.4, "text": "program"}, {"share": 0.25}
        grid(ax, x, y, blocks, 1, wide, lambda block, _: {"colour": TENSOR_COLOUR["q"], **look[(h, block) != (mine, row_block)]}, tall)
    for h_k in range(H_k):
        x, long, is_mine = left + h_k * group * step, (group - 1) * step + wide, h_k == serves[mine]
        below, line = y + blocks * tall + 0.08, {"color": "black", "linewidth": 1.4}
        ax.plot([x, x, x + long, x + long], [below, below + 0.12, below + 0.12, below], **line)
        ax.plot([x + long / 2] * 2, [below + 0.12, y_k - 0.06], **line)
        note(ax, x + long / 2 + 0.12, (below + 0.12 + y_k) / 2, f"a group of {group}")
        inset, look = 0.4, {"colour": TENSOR_COLOUR["k"], "share": 0.6 if is_mine else 0.25}
        grid(ax, x + inset, y_k, 1, tiles, (long - 2 * inset) / tiles, lambda *_: look, 0.6)
        if is_mine:
            outline(ax, x + inset, y_k, long - 2 * inset, 0.6)
        write(ax, x + long / 2, y_k + 0.82, f"h_k = {h_k}", BODY, weight="bold")
    words = f"thick: row block {row_block} of query head {mine} reads all tiles of key head {serves[mine]}; k and v are not copied"
    note(ax, 0.1, 3.95, words, BODY)


@image("05_loop.png", 7.8)
def draw_loop(ax: Axes) -> None:
    """One program of the loop over keys: what it loads once, what streams past, and how an iteration makes the new state of the old one."""
    m, n, d, thin = 0.75, 1.75, 0.85, 0.28  # inches for BLOCK_M, BLOCK_N, BLOCK_D and a column
    left, right, top, bottom = 1.75, 7.75, 0.45, 7.65  # of an iteration
    x_q, x_s, x_p, x_v, x_old, x_new, x_o = 0.42, 2.85, 4.75, 6.68, 2.2, 6.6, 8.05
    y_k, y_s, y_pv, y_m, y_alpha, y_l, y_acc, y_back = 0.85, 2.1, 3.3, 3.85, 4.43, 5.0, 6.05, 6.75  # tops of tiles, middles of lanes
    at_max, at_alpha, at_l, at_acc = x_s + n / 2, 4.25, 5.85, 6.28  # where something joins a lane

    def tile(name: str, x: float, y: float, wide: float, tall: float, text: str, shape: str = "", *, below: bool = False) -> None:
        box(ax, x, y, wide, tall, text, TENSOR_COLOUR[name], size=BODY, weight="bold", share=0.3 if name == "s" else 0.45)
        write(ax, x + wide / 2, y + tall + 0.17 if below else y - 0.17, shape)

    def node(x: float, y: float, text: str, size: float = 19) -> None:
        ax.plot([x], [y], "o", markersize=size, markerfacecolor="white", markeredgecolor="black", zorder=4)
        write(ax, x, y, text, HEAD if size < 20 else BODY, weight="bold", zorder=5)

    def down(x: float, start: float, *crossed_and_end: float) -> None:
        """An arrow with a gap at each lane that it crosses."""
        *crossed, end = crossed_and_end
        for lane in crossed:
            ax.plot([x, x], [start, lane - 0.09], color="black", linewidth=1.75)
            start = lane + 0.09
        arrow(ax, (x, start), (x, end))

    box(ax, left, top, right - left, bottom - top, colour="sky", share=0.08)
    note(ax, left, 0.22, "each iteration: keys start_n … start_n + BLOCK_N − 1", BODY, weight="bold")
    write(ax, x_q + d / 2, y_s - 0.25, "loaded once", BODY, weight="bold")
    tile("q", x_q, y_s, d, m, "q_tile", "[BLOCK_M, BLOCK_D]", below=True)
    tile("k", x_s, y_k, n, d, "k_tileᵀ", "[BLOCK_D, BLOCK_N]")
    tile("s", x_s, y_s, n, m, "s")
    tile("p", x_p, y_s, n, m, "p\n", "[BLOCK_M, BLOCK_N]")
    write(ax, x_p + n / 2, y_s + 0.68 * m, "exp(s − m after)")
    tile("v", x_v, y_k, d, n, "v_tile")
    write(ax, right - 0.08, y_k - 0.17, "[BLOCK_N, BLOCK_D]", ha="right")
    arrow(ax, (x_q + d, y_s + m / 2), (x_s, y_s + m / 2))
    arrow(ax, (at_max, y_k + d), (at_max, y_s))
    write(ax, at_max - 0.1, y_s - 0.2, "scale, (4.1)", ha="right")
    arrow(ax, (x_s + n, y_s + m / 2), (x_p, y_s + m / 2))
    for x, column in ((x_old, "before"), (x_new, "after")):
        write(ax, x + d / 2, y_m - m / 2 - 0.2, column, BODY, weight="bold")
        for name, y in (("m", y_m), ("l", y_l)):
            box(ax, x + (d - thin) / 2, y - m / 2, thin, m, name, "vermilion", size=BODY, weight="bold", share=0.25)
        tile("o", x, y_acc - m / 2, d, m, "acc")
    x_thin = x_old + (d + thin) / 2  # right edge of the columns before
    for y, start, stop in ((y_m, x_thin, x_new + (d - thin) / 2), (y_l, x_thin, x_new + (d - thin) / 2), (y_acc, x_old + d, x_new)):
        arrow(ax, (start, y), (stop, y))
    arrow(ax, (at_max, y_s + m), (at_max, y_m - 0.2))
    node(at_max, y_m, "row\nmax", 34)
    arrow(ax, (at_alpha + 0.25, y_m), (x_p + 0.15, y_s + m))
    write(ax, at_alpha + 0.3, y_m - 0.55, "m after", ha="right")
    box(ax, at_alpha - 0.4, y_alpha - 0.2, 0.8, 0.4, "alpha", "sky", size=BODY, weight="bold", share=0.75)
    arrow(ax, (x_thin, y_m + m / 2 - 0.08), (at_alpha - 0.4, y_alpha))
    arrow(ax, (at_alpha, y_m), (at_alpha, y_alpha - 0.2))
    note(ax, at_alpha + 0.46, y_alpha, "exp(m before\n− m after)")
    at_old_l, at_old_acc = at_alpha - 0.25, at_alpha + 0.25
    arrow(ax, (at_old_l, y_alpha + 0.2), (at_old_l, y_l - 0.14))
    node(at_old_l, y_l, "×")
    down(at_old_acc, y_alpha + 0.2, y_l, y_acc - 0.14)
    node(at_old_acc, y_acc, "×")
    down(at_l, y_s + m, y_m, y_l - 0.14)
    write(ax, at_l - 0.08, y_s + m + 0.3, "row sum", ha="right")
    node(at_l, y_l, "+")
    arrow(ax, (at_acc, y_s + m), (at_acc, y_pv - 0.17))
    arrow(ax, (x_v + 0.3, y_k + n), (at_acc + 0.14, y_pv - 0.1))
    down(at_acc, y_pv, y_m, y_l, y_acc - 0.14)
    node(at_acc, y_pv, "p v", 24)
    write(ax, at_l, y_l + 0.3, "(4.2)")
    write(ax, at_acc - 0.08, y_acc - 0.35, "(4.3)", ha="right")
    node(at_acc, y_acc, "+")
    x_out, x_in = x_new + d + 0.12, x_old - 0.25
    for y, edge in ((y_m, (d + thin) / 2), (y_l, (d + thin) / 2), (y_acc, d)):
        ax.plot([x_new + edge, x_out], [y, y], color="black", linewidth=1.5)
        arrow(ax, (x_in, y), (x_old + (0 if y == y_acc else (d - thin) / 2), y))
    ax.plot([x_out, x_out, x_in, x_in], [y_m, y_back, y_back, y_m], color="black", linewidth=1.5)
    arrow(ax, (x_out, y_back), ((x_in + x_out) / 2 - 0.9, y_back))
    write(ax, (x_in + x_out) / 2, y_back - 0.15, "next iteration", BODY, weight="bold")
    write(ax, (left + right) / 2, bottom - 0.55, "before the first iteration: m = −∞, l = 0, acc = 0", BODY, weight="bold")
    write(ax, (left + right) / 2, bottom - 0.25, "m and l are [BLOCK_M], acc is [BLOCK_M, BLOCK_D], all in float32")
    write(ax, x_o + d / 2, y_acc - 0.9, "after\nthe loop", BODY, weight="bold")
    write(ax, x_o + d / 2, y_acc - 0.55, "acc / l (4.4)")
    tile("o", x_o, y_acc - m / 2, d, m, "o", "stored", below=True)
    arrow(ax, (x_out, y_acc), (x_o, y_acc))


@image("05_kinds_of_work.png", 5.65)
def draw_kinds_of_work(ax: Axes) -> None:
    """640 cycles of an SM at D = 128, with 12 instructions for a score's softmax and 5 others: in series, in turns, and at once."""
    left, window = 1.75, 640  # two tiles in series
    cycle = 7.1 / window
    looks = {kind: {"colour": colour, "share": share} for kind, colour, share in (
        ("product", "blue", 0.35), ("softmax", "green", 0.4), ("other", "purple", 0.3), ("exp", "orange", 0.45),
    )}  # fmt: skip
    first, last, load, exps = (64, "product", "q kᵀ"), (64, "product", "p v"), (20, "other", ""), [(64, "exp", "")]
    ways = {  # for a tile of 1,024 scores: what begins when all before it has ended, as (cycles, kind, text) by lane
        "in series": [{1: [load]}, {0: [first]}, {1: [(52, "softmax", "")]}, {2: exps}, {1: [(36, "softmax", ""), load]}, {0: [last]}],
        "in turns": [{0: [first], 1: [load]}, {1: [(96, "softmax", "")], 2: exps}, {0: [last], 1: [load]}],
        "at once": [{0: [(128, "product", "q kᵀ and p v")], 1: [(96, "softmax", ""), (40, "other", "")], 2: exps}],
    }
    for way, (name, steps) in enumerate(ways.items()):
        y, begin = 0.25 + 1.4 * way, 0
        note(ax, 0.1, y, name, BODY, weight="bold")
        for lane, unit in enumerate(("tensor cores", "instructions", "exponentials")):
            note(ax, 0.1, y + 0.33 + 0.3 * lane, unit)
            box(ax, left, y + 0.2 + 0.3 * lane, window * cycle, 0.26)
        while begin < window:
            for step in steps:
                for lane, works in step.items():
                    at = begin
                    for cycles, kind, text in works:
                        if (seen := min(cycles, window - at)) > 0:
                            place, shown = (left + at * cycle, y + 0.2 + 0.3 * lane), text if seen == cycles else ""
                            box(ax, *place, seen * cycle, 0.26, shown, **looks[kind])
                        at += cycles
                begin += max(sum(cycles for cycles, *_ in works) for works in step.values())
    for at in range(0, window + 1, 128):
        x = left + at * cycle
        ax.plot([x, x], [4.36, 4.46], color="black", linewidth=1.2)
        write(ax, x, 4.6, str(at))
    note(ax, 0.1, 4.6, "cycles of an SM")
    words = "instructions of the softmax", "other instructions, as for loads", "idle"
    legend(ax, 4.97, tuple(zip((0.1, 3.1, 6.5), (looks["softmax"], looks["other"], {}), words, strict=True)))
    note(ax, 0.1, 5.4, "to scale: tiles of 1,024 scores at D = 128; a score takes 12 instructions for its softmax, and 5 others")
