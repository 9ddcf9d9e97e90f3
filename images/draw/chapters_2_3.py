"""The drawings of chapters 2 and 3."""

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from draw.drawing import arrow, box, frames, grid, heading, image, legend, note, outline, sample, write, writes
from draw.look import BODY, HEAD, MASKED, TENSOR_COLOUR
from fa_tutorial.figures import GREY
from fa_tutorial.matmul import blocked_matmul, grouped_tile, strips_per_wave


@image("02_strides.png", 5.1)
def draw_strides(ax: Axes) -> None:
    """One piece of memory, three views of it: a row-major tensor, its transpose, and a column, with their strides."""
    tensor = torch.arange(12).view(3, 4)
    column = tensor[:, 1]
    picked = set(column.tolist())
    views = (("x", tensor, 0.5), ("x.t()", tensor.t(), 3.8), ("x[:, 1]", column, 7.2))
    side, looks = 0.46, ({"colour": "sky"}, {"colour": "orange", "hatch": "\\\\"})

    def cells(x: float, y: float, rows: list[list[int]]) -> None:
        grid(ax, x, y, len(rows), len(rows[0]), side, lambda i, j: {"text": f"{rows[i][j]}", "size": BODY, **looks[rows[i][j] in picked]})

    for name, view, left in views:
        terms = [str(view.storage_offset())] if view.storage_offset() else []
        terms += [f"{stride}·{index}" for stride, index in zip(view.stride(), "ij", strict=False)]
        where = f"[{', '.join('ij'[: view.ndim])}] lies at {' + '.join(terms)}"
        heading(ax, left, 0.25, name)
        note(ax, left, 0.79, f"shape {tuple(view.shape)}\nstrides {view.stride()}\n{where}", linespacing=1.3)
        cells(left, 1.25, view.tolist() if view.ndim == 2 else [[value] for value in view.tolist()])
    left, top = 1.74, 4.05
    cells(left, top, [tensor.flatten().tolist()])
    note(ax, 0.15, top + side / 2, "memory", BODY, weight="bold")
    note(ax, left, top + 0.72, "number in a cell: its offset in memory, in elements")
    row_step, col_step = tensor.stride()
    for x, step, name, curve in ((left + 1.5 * side, row_step, "row", -0.3), (left + 10.5 * side, col_step, "column", -0.8)):
        arrow(ax, (x, top), (x + step * side, top), curve=curve)
        write(ax, x + step * side / 2, top - 0.45, f"+{step}: next {name} of x")


@image("02_fused_qkv.png", 2.35)
def draw_fused_qkv(ax: Axes) -> None:
    """Two tokens of a contiguous fused qkv in memory: where k starts, and its steps to the next head and to the next token."""
    H, D, wide, high, left, top = 4, 8, 0.355, 0.5, 0.24, 0.95
    for token in range(2):
        for place, name in enumerate("qkv"):
            x = left + (3 * token + place) * H * wide
            for head in range(H):
                box(ax, x + head * wide, top, wide, high, f"{head}", TENSOR_COLOUR[name], share=0.5 if name == "k" else 0.15, size=BODY)
            write(ax, x + H * wide / 2, top + high + 0.2, f"{name} of token {token}", BODY)
        outline(ax, left + token * 3 * H * wide, top, 3 * H * wide, high)
    for start, step, name, curve, right, above in (
        (0, H * D, f"start: {H * D}", -0.25, -0.2, 0.42), (H * D, D, f"next head: +{D}", -0.9, 0.15, 0.42),
        ((H + 1) * D, 3 * H * D, f"next token: +{3 * H * D}", -0.12, 0, 0.52),
    ):  # fmt: skip
        ends = [left + offset / D * wide for offset in (start, start + step)]
        arrow(ax, (ends[0], top), (ends[1], top), curve=curve)
        write(ax, sum(ends) / 2 + right, top - above, name)
    note(ax, left, 2.1, f"number in a box: the head, whose D = {D} elements lie side by side")


@image("02_grid_and_mask.png", 4.45)
def draw_grid_and_mask(ax: Axes) -> None:
    """Ten elements, three programs with blocks of four: the offset of each position, and the last two masked off."""
    n, block, side, gap, left = 10, 4, 0.56, 0.22, 1.75
    programs = -(-n // block)
    arange, offs, mask, memory = 0.55, 1.5, 2.06, 3.2
    for y, text in ((arange, "arange(0, BLOCK)"), (offs, "offs"), (mask, "mask: offs < n"), (memory, f"memory, n = {n}")):
        note(ax, 0.1, y + side / 2, text)
    note(ax, 0.1, 1.305, f"+ program_id · {block}")
    for program in range(programs):
        start = left + program * (block * side + gap)
        write(ax, start + block * side / 2, 0.25, f"program {program}", HEAD, weight="bold")
        write(ax, start + block * side / 2, 1.305, f"+ {program * block}")
        for lane in range(block):
            offset = program * block + lane
            x, middle, inside = start + lane * side, left + (offset + 0.5) * side, offset < n
            look, element = ({"colour": "sky"}, {"text": f"x[{offset}]", "colour": "orange"}) if inside else ({"hatch": MASKED},) * 2
            box(ax, x, arange, side, side, str(lane), size=BODY)
            box(ax, x, offs, side, side, str(offset), size=BODY, **look)
            box(ax, x, mask, side, side, str(inside), **look)
            box(ax, middle - side / 2, memory, side, side, **element)
            if inside:
                arrow(ax, (x + side / 2, mask + side), (middle, memory), width=1.2)
        outline(ax, start, arange, block * side, mask + side - arange)
    write(ax, left + (n + 1) * side, memory + side + 0.22, "not ours")
    outside = " and ".join(str(offset) for offset in range(n, programs * block))
    note(ax, left, memory + side + 0.22, f"{outside} are masked off: the load gives other, the store skips them")


@image("02_transpose_tiles.png", 4.9)
def draw_transpose_tiles(ax: Axes) -> None:
    """One tile of x, read at tile (r, c) and stored at tile (c, r) of out; ragged tiles hatched."""
    rows, cols, block_r, block_c, tile_r, tile_c, side, top = 5, 7, 2, 4, 1, 0, 0.42, 0.95
    letters = {(r, c): chr(ord("a") + r * block_c + c) for r in range(block_r) for c in range(block_c)}

    def look(row: int, col: int) -> dict:
        if row >= rows or col >= cols:
            return {"hatch": MASKED, "dashed": True}
        here = letters.get((row - tile_r * block_r, col - tile_c * block_c))
        if here is not None:
            return {"text": here, "colour": "orange", "size": BODY, "share": 0.5}
        ragged = row // block_r * block_r + block_r > rows or col // block_c * block_c + block_c > cols
        return {"colour": "sky", "share": 0.3, "hatch": ".." if ragged else None}

    padded_rows, padded_cols = -(-rows // block_r) * block_r, -(-cols // block_c) * block_c
    left, right = 0.75, 5.9
    grid(ax, left, top, padded_rows, padded_cols, side, look)
    grid(ax, right, top, padded_cols, padded_rows, side, lambda row, col: look(col, row))
    frames(ax, left, top, padded_rows, padded_cols, side, (block_r, block_c), line=1.2)
    frames(ax, right, top, padded_cols, padded_rows, side, (block_c, block_r), line=1.2)
    outline(ax, left + tile_c * block_c * side, top + tile_r * block_r * side, block_c * side, block_r * side, line=3)
    outline(ax, right + tile_r * block_r * side, top + tile_c * block_c * side, block_r * side, block_c * side, line=3)
    heading(ax, left, 0.25, f"x, ({rows}, {cols})")
    heading(ax, right, 0.25, f"out, ({cols}, {rows})")
    note(ax, left, 0.62, f"tiles of (BLOCK_R, BLOCK_C) = ({block_r}, {block_c})")
    note(ax, right, 0.62, f"tiles of (BLOCK_C, BLOCK_R) = ({block_c}, {block_r})")
    gap = (left + padded_cols * side, right)
    write(ax, sum(gap) / 2, 1.6, f"program\n({tile_r}, {tile_c})", weight="bold")
    arrow(ax, (gap[0] + 0.2, 2.05), (gap[1] - 0.2, 2.05), width=2.4)
    write(ax, sum(gap) / 2, 2.5, f"tile ({tile_r}, {tile_c})\nto tile ({tile_c}, {tile_r})")
    for x, look, text in (
        (0.1, {"colour": "sky", "hatch": ".."}, "ragged tile: partly inside"),
        (3.0, {"hatch": MASKED, "dashed": True}, "masked: outside"),
    ):
        box(ax, x, 4.46, 0.4, 0.28, **look)
        note(ax, x + 0.5, 4.6, text)


@image("02_gpu.png", 5.3)
def draw_gpu(ax: Axes) -> None:
    """From the grid to the threads: twelve programs on four SMs, one program's four warps, one warp's threads."""
    chosen, side, step, left, top = 5, 0.6, 0.22, 0.15, 1.15
    heading(ax, left, 0.25, "grid")
    note(ax, left, 0.65, "what you launch:\n12 programs", linespacing=1.3)

    def program(ax_x: float, ax_y: float, high: float, pid: int) -> None:
        look = {"hatch": MASKED} if pid >= 8 else {"colour": "orange" if pid == chosen else "sky", "share": 0.6 if pid == chosen else 0.3}
        box(ax, ax_x, ax_y, side, high, str(pid), weight="bold" if pid == chosen else "normal", **look)

    for pid in range(12):
        program(left, top + pid * step, step, pid)
    sm_left, sm_wide, sm_high = 2.85, 1.42, 1.22
    heading(ax, sm_left, 0.25, "GPU")
    note(ax, sm_left, 0.65, "where they run: a toy with\n4 SMs, 2 programs on each", linespacing=1.3)
    for sm in range(4):
        x, y = sm_left + sm % 2 * (sm_wide + 0.1), top + sm // 2 * (sm_high + 0.16)
        outline(ax, x, y, sm_wide, sm_high, line=1.8)
        note(ax, x + 0.1, y + 0.2, f"SM {sm}", weight="bold")
        for place, pid in enumerate((sm, sm + 4)):
            program(x + 0.08 + place * (side + 0.06), y + 0.42, side, pid)
    slot = (sm_left + sm_wide + 0.1 + 0.08 + 2 * side + 0.06, top + 0.42 + side / 2)  # the right edge of the chosen program, on SM 1
    zoom, cell, high = 6.3, 0.08, 0.42
    heading(ax, zoom, 0.25, f"program {chosen}")
    note(ax, zoom, 0.65, "what it is made of:\n4 warps of 32 threads", linespacing=1.3)
    for warp in range(4):
        y = top + warp * (high + 0.26)
        note(ax, zoom, y + 0.05, f"warp {warp}")
        grid(ax, zoom, y + 0.2, 1, 32, cell, lambda *_: {"colour": "orange", "share": 0.6}, high - 0.12)
        outline(ax, zoom, y + 0.2, 32 * cell, high - 0.12, line=1.5)
    for corner, end in ((slot[1] - side / 2, top + 0.1), (slot[1] + side / 2, top + 4 * (high + 0.26) - 0.2)):
        ax.plot((slot[0], zoom - 0.12), (corner, end), color="black", linestyle="--", linewidth=1.2, zorder=2.6)
    note(ax, left, 4.07, "8 to 11 wait")
    note(ax, zoom, 4.07, "32 threads share each instruction")
    note(ax, left, 4.78, "You choose\nthe grid.", BODY, weight="bold", linespacing=1.3)
    note(ax, sm_left, 4.78, "The GPU places programs\non SMs, in any order.", BODY, weight="bold", linespacing=1.3)
    note(ax, zoom, 4.78, "Triton divides the block\nof data among threads.", BODY, weight="bold", linespacing=1.3)


@image("02_coalescing.png", 5.15)
def draw_coalescing(ax: Axes) -> None:
    """The 32-byte sectors that a warp touches along a row and down a column."""
    threads, columns, per_sector = torch.arange(32), 8192, 8  # fp32: eight elements fill a sector
    along, down = ((threads * stride // per_sector).unique().numel() for stride in (1, columns))
    cell, left = 0.265, 0.3
    heading(ax, 0.15, 0.25, "A warp reads or writes along a row")
    top = 1.1
    for thread in range(32):
        x = left + thread * cell
        box(ax, x, top, cell, 0.36, colour="sky", share=0.6)
        arrow(ax, (x + cell / 2, top - 0.3), (x + cell / 2, top), width=0.9)
    note(ax, left, top - 0.45, "thread 0")
    write(ax, left + 32 * cell, top - 0.45, "thread 31", ha="right")
    for sector in range(along):
        outline(ax, left + sector * per_sector * cell, top, per_sector * cell, 0.36)
    note(ax, left, top + 0.6, f"{along} sectors of 32 bytes: {32 * along} bytes delivered, 128 used", BODY, weight="bold")
    top, rows = 2.85, 0.44
    heading(ax, 0.15, 2.35, "A warp reads or writes down a column")
    for place, thread in enumerate((0, 1, 2, None, 31)):
        y = top + place * rows
        if thread is None:
            write(ax, left + 1.0 + 4 * cell, y + 0.17, "⋮", HEAD, weight="bold")
            continue
        note(ax, left, y + 0.17, f"thread {thread}")
        arrow(ax, (left + 0.83, y + 0.17), (left + 1.05, y + 0.17), width=0.9)
        looks = {"colour": "sky", "share": 0.6}, {"hatch": MASKED}
        grid(ax, left + 1.05, y, 1, per_sector, cell, lambda _, element: looks[element > 0], 0.34)
        outline(ax, left + 1.05, y, per_sector * cell, 0.34)
    used = f"{down} sectors of 32 bytes:\n{32 * down:,} bytes delivered, 128 used"
    note(ax, 4.0, 3.6, used, BODY, weight="bold", linespacing=1.3)
    note(ax, 4.0, 4.2, "hatched: not used by this warp")


@image("02_turned_tile.png", 3.15)
def draw_turned_tile(ax: Axes) -> None:
    """16 elements of x, in shared memory and in out, coloured by the thread that loads or stores them: 12 change threads on the way."""
    side, y, left, middle, right, colours = 0.45, 0.85, 0.6, 3.85, 6.6, ("blue", "orange", "green", "purple")
    for x, name, element in (
        (left, "tile of x, loaded row by row", lambda r, c: 4 * r + c),
        (middle, "shared memory", lambda r, c: 4 * r + c),
        (right, "tile of out, stored row by row", lambda r, c: 4 * c + r),
    ):
        write(ax, x + 2 * side, 0.22, name, BODY, weight="bold")
        look = lambda r, c: {"text": f"{element(r, c)}", "colour": "yellow" if x == middle else colours[c], "share": 0.45, "size": BODY}
        grid(ax, x, y, 4, 4, side, look)
        for thread in range(4):
            along, down = (-0.17, (thread + 0.5) * side) if x == middle else ((thread + 0.5) * side, -0.18)
            write(ax, x + along, y + down, f"t{thread}")
        outline(ax, x, y, *((side, 4 * side) if x == middle else (4 * side, side)))
    for x, end in ((left + 4 * side + 0.2, middle - 0.45), (middle + 4 * side + 0.2, right - 0.2)):
        arrow(ax, (x, y + 2 * side), (end, y + 2 * side), width=2.4)
    note(ax, left, 2.95, "t0 to t3: threads of a warp; framed: what they access together. Element 1 is loaded by t1 and stored by t0.")


@image("02_softmax_row.png", 3.6)
def draw_softmax_row(ax: Axes) -> None:
    """One softmax program: a row of three numbers in a block of four, whose last position is −∞, then 0, then not stored."""
    p = torch.exp(torch.tensor([-2.0, 0.0, -1.0, -torch.inf]))
    rows = (
        ("offs", "0123", ""),
        ("mask: offs < cols", ("True", "True", "True", "False"), ""),
        ("x, other = −∞", ("−3", "−1", "−2", "−∞"), "m = max(x) = −1"),
        ("p = exp(x − m)", [f"{value:.2f}" for value in p], f"l = sum(p) = {p.sum():.2f}"),
        ("y = p / l", [f"{value:.2f}" for value in p / p.sum()], "the store skips the last"),
    )
    side, wide, left, looks = 0.52, 0.85, 2.2, ({"colour": "sky"}, {"hatch": MASKED})
    for i, (label, values, aside) in enumerate(rows):
        y = 0.2 + i * (side + 0.14)
        note(ax, 0.1, y + side / 2, label, BODY)
        grid(ax, left, y, 1, 4, wide, lambda _, lane: {"text": values[lane], "size": BODY, **looks[lane == 3]}, side)
        note(ax, left + 4 * wide + 0.25, y + side / 2, aside, BODY)


@image("02_fused_softmax.png", 4.55)
def draw_fused_softmax(ax: Axes) -> None:
    """Softmax as five kernels, eight trips of n elements between HBM and the chip; fused, two."""
    steps = (("amax", "x", "m"), ("−", "xm", "z"), ("exp", "z", "p"), ("sum", "p", "l"), ("/", "pl", "y"))
    trips = sum(name not in "ml" for _, reads, made in steps for name in reads + made)  # m and l have one number a row
    memory, chip, wide, places = 0.6, 2.55, 0.62, dict(zip("xzpy", (0.45, 2.1, 3.4, 4.95), strict=True))
    for left, right, title in ((0.1, 6.15, "five kernels"), (6.75, 8.9, "one fused kernel")):
        heading(ax, left, 0.25, title)
        ax.add_patch(Rectangle((left, memory - 0.12), right - left, 1.0, facecolor="#ebebeb", edgecolor=GREY))

    def tensor(x: float, name: str) -> None:
        box(ax, x, memory + 0.1, wide, 0.56, colour="orange", share=0.4)
        write(ax, x + wide / 2, memory + 0.25, name, BODY, family="monospace", weight="bold")
        write(ax, x + wide / 2, memory + 0.49, "n", BODY)

    def trip(start: float, end: float, is_read: bool) -> None:
        high, low = memory + 0.66, chip
        ends = ((start, high), (end, low)) if is_read else ((end, low), (start, high))
        arrow(ax, *ends, colour="blue" if is_read else "vermilion", dashed=not is_read, width=2.2)

    for name, x in (*places.items(), ("x", 6.95), ("y", 8.1)):
        tensor(x, name)
    for step, (name, reads, made) in enumerate(steps):
        x = 0.55 + step * 1.14
        box(ax, x, chip, 0.82, 0.52, name, "sky", size=BODY, line=2, weight="bold")
        if reads[0] in places:
            trip(places[reads[0]] + wide / 2, x + 0.2, True)
        if made in places:
            trip(places[made] + wide / 2, x + 0.65, False)
        write(ax, x + 0.41, chip + 0.7, str(sum(tensor not in "ml" for tensor in reads + made)), BODY, weight="bold")
    box(ax, 6.95, chip, 1.77, 0.52, "softmax", "sky", size=BODY, line=2, weight="bold")
    trip(6.95 + wide / 2, 6.95 + wide / 2, True)
    trip(8.1 + wide / 2, 8.1 + wide / 2, False)
    note(ax, 0.1, 3.62, f"{trips} trips of n elements", BODY, weight="bold")
    write(ax, 6.95 + 1.77 / 2, chip + 0.7, "2", BODY, weight="bold")
    note(ax, 6.75, 3.62, "2 trips of n elements", BODY, weight="bold")
    sample(ax, 0.1, 4.1, "read", "blue", long=0.5, width=2.2)
    sample(ax, 1.5, 4.1, "written", "vermilion", long=0.5, width=2.2, dashed=True)
    note(ax, 3.2, 4.1, "Gray: HBM. m and l, one number per row, are left out.")


@image("03_block_matmul.png", 4.75)
def draw_block_matmul(ax: Axes) -> None:
    """Tile (0, 1) of c: the row of a's tiles times the column of b's, in two steps over k."""
    i = torch.arange(4)
    a, b = ((i[:, None] + i) % 4).float(), ((2 * i[:, None] + i) % 3).float()
    side, gap, block, tile_m, tile_n = 0.4, 0.2, 2, 0, 1
    for step in range(2):
        left, top = 0.45 + step * 4.45, 0.65
        heading(ax, left, 0.3, f"step {step + 1}")
        x_c, y_c = left + 4 * side + gap, top + 4 * side + gap
        c = blocked_matmul(a[:, : 2 * step + 2], b[: 2 * step + 2], block, block, block)
        for name, x, y, values in (("a", left, y_c, a), ("b", x_c, top, b), ("c", x_c, y_c, c)):

            def look(row: int, col: int) -> dict:
                tile_row, tile_col, text = row // block, col // block, f"{values[row, col]:.0f}"
                if name == "c":
                    return {"text": text, "colour": "purple", "share": 0.5} if (tile_row, tile_col) == (tile_m, tile_n) else {}
                in_strip, k = (tile_row == tile_m, tile_col) if name == "a" else (tile_col == tile_n, tile_row)
                # strong where this step reads it, pale where another step does
                return {"text": text, "colour": "blue" if name == "a" else "orange", "share": (0.6 if k == step else 0.18) * in_strip}

            grid(ax, x, y, 4, 4, side, look)
            frames(ax, x, y, 4, 4, side, (block, block), line=1.2)
            write(ax, x - 0.17 if name != "c" else x + 4 * side + 0.17, y + 2 * side, name, HEAD, weight="bold")
        outline(ax, left + step * 2 * side, y_c + tile_m * 2 * side, 2 * side, 2 * side, line=3)
        outline(ax, x_c + tile_n * 2 * side, top + step * 2 * side, 2 * side, 2 * side, line=3)
        outline(ax, x_c + tile_n * 2 * side, y_c + tile_m * 2 * side, 2 * side, 2 * side, line=3)
        if step == 0:
            note(ax, left + 4 * side + gap, y_c + 4 * side + 0.35, "A00: tile (0, 0) of a", BODY)
        terms = f"acc = A{tile_m}0 B0{tile_n}" + (f" + A{tile_m}1 B1{tile_n}" if step else "")
        note(ax, left, y_c + 4 * side + 0.35, terms, BODY)


@image("03_one_program.png", 6.1)
def draw_one_program(ax: Axes) -> None:
    """What one program of the matmul kernel touches: its tile of c, the strips of a and b that it walks along, and the lanes beyond K."""
    tiles, tile_m, tile_n, step, steps = 4, 1, 2, 1, 3.75  # K is 3.75 steps long
    wide, high, k_a, k_b, x_c, y_c = 0.75, 0.5, 0.6, 0.6, 4.8, 3.0  # inches: of a tile of c; of a step along K, in a and in b
    x_a, y_b = x_c - 0.45 - tiles * k_a, y_c - 0.3 - tiles * k_b
    row, col = y_c + tile_m * high, x_c + tile_n * wide
    for k in range(tiles):
        share, line = (0.6, 2.2) if k == step else (0.18, 1.0)
        box(ax, x_a + k * k_a, row, k_a, high, colour="blue", share=share, line=line)
        box(ax, col, y_b + k * k_b, wide, k_b, colour="orange", share=share, line=line)
    box(ax, x_a + steps * k_a, row, (tiles - steps) * k_a, high, hatch=MASKED, dashed=True)
    box(ax, col, y_b + steps * k_b, wide, (tiles - steps) * k_b, hatch=MASKED, dashed=True)
    acc = {"text": "acc", "colour": "purple", "share": 0.5, "size": BODY, "weight": "bold", "line": 2.2}
    grid(ax, x_c, y_c, tiles, tiles, wide, lambda *tile: acc if tile == (tile_m, tile_n) else {}, high)
    outline(ax, x_a, y_c, steps * k_a, tiles * high, line=1.4)
    outline(ax, x_c, y_b, tiles * wide, steps * k_b, line=1.4)
    outline(ax, x_c, y_c, tiles * wide, tiles * high, line=1.4)
    middle_a, middle_b = x_a + (step + 0.5) * k_a, y_b + (step + 0.5) * k_b
    arrow(ax, (middle_a, row + high / 2), (middle_a + 1.15 * k_a, row + high / 2), width=2.2)
    arrow(ax, (col + wide / 2, middle_b), (col + wide / 2, middle_b + 1.25 * k_b), width=2.2)
    heading(ax, x_a, y_c - 0.5, "a (M, K)")
    write(ax, x_c - 0.15, y_b + 0.12, "b (K, N)", HEAD, ha="right", weight="bold")
    heading(ax, x_c + tiles * wide + 0.15, y_c + tiles * high - 0.15, "c (M, N)")
    write(ax, middle_a, y_c - 0.18, "offs_k", BODY)
    write(ax, x_a - 0.12, row + high / 2, "offs_m", BODY, ha="right")
    write(ax, col + wide / 2, y_b - 0.18, "offs_n", BODY)
    note(ax, x_c + tiles * wide + 0.15, middle_b, "offs_k", BODY)
    note(ax, x_a - 0.5, y_c + tiles * high + 0.3, "tile [BLOCK_M, BLOCK_K]:\neach step BLOCK_K columns further", BODY)
    write(ax, x_c - 0.15, middle_b, "tile [BLOCK_K, BLOCK_N]:\neach step BLOCK_K rows further", BODY, ha="right")
    note(ax, x_c, y_c + tiles * high + 0.3, "acc [BLOCK_M, BLOCK_N]:\nstays on the chip, stored once", BODY)
    box(ax, x_a, 5.68, 0.4, 0.26, hatch=MASKED, dashed=True)
    note(ax, x_a + 0.52, 5.81, "the last step reaches beyond K: 0 there, in both tiles", BODY)


@image("03_stages.png", 2.55)
def draw_stages(ax: Axes) -> None:
    """Three places in shared memory: each loads the tiles of a step while those of another are multiplied."""
    left, unit, tall, places = 1.0, 0.96, 0.42, 3
    heading(ax, 0.1, 0.25, "num_stages = 3: while one step is multiplied, later ones are loaded")
    for place in range(places):
        y = 0.6 + place * (tall + 0.06)
        note(ax, 0.1, y + tall / 2, f"place {place}")
        for step in (place, place + places):
            work = left + (step + places - 1) * unit
            asked = left if step < places - 1 else left + step * unit  # steps 0 and 1 are asked for before the loop
            box(ax, asked, y, (places - 1) * unit, tall, f"load step {step}", "orange", share=0.35)
            if step == place and asked > left:
                box(ax, left, y, asked - left, tall, "free until the loop starts", dashed=True)
            if (loaded := asked + (places - 1) * unit) < work:
                box(ax, loaded, y, work - loaded, tall, "waits", dashed=True)
            box(ax, work, y, unit, tall, f"multiply {step}", "blue", share=0.5, weight="bold")
    arrow(ax, (left, 2.2), (left + (3 * places - 1) * unit, 2.2))
    note(ax, 0.1, 2.2, "time")


@image("03_room.png", 2.4)
def draw_room(ax: Axes) -> None:
    """What a tile of 128 × 256 takes of an SM's registers and shared memory."""
    stages, left, unit, tall, acc, operands = 3, 1.7, 7.1 / 256, 0.5, 128, {"a": (16, "blue"), "b": (32, "orange")}
    heading(ax, 0.1, 0.25, f"Room for a tile of 128 × 256, BLOCK_K = 64, num_stages = {stages}, fp16")
    for y, name, room in ((0.6, "registers", 256), (1.7, "shared memory", 227)):
        note(ax, 0.1, y + tall / 2, f"{name}\n{room} KiB")
        box(ax, left, y, room * unit, tall)
    box(ax, left, 0.6, acc * unit, tall, f"acc: {acc} KiB, the most that it may take", TENSOR_COLOUR["o"], share=0.45)
    ax.plot([left + 128 * unit] * 2, [0.5, 1.2], color="black", linewidth=1.6, linestyle="--")
    note(ax, left + 128 * unit + 0.1, 0.6 + tall / 2, "for pointers and masks")
    x = left
    for _ in range(stages):
        for name, (size, colour) in operands.items():
            box(ax, x, 1.7, size * unit, tall, f"{name}\n{size}", colour, share=0.4)
            x += size * unit
    step = (x - left) / stages
    writes(ax, left, 1.52, ("multiplied", "on their way"), dx=step, ha="left")
    outline(ax, left, 1.7, step, tall)


@image("03_operands.png", 4.1)
def draw_operands(ax: Axes) -> None:
    """How tensor cores get their operands: through a warp's registers for mma.sync, from shared memory itself for wgmma."""
    wide, tall = 3.7, 0.44
    top = {"L2 and HBM": 0.6, "shared\nmemory": 1.4, "registers\nof a warp": 2.2, "four tensor\ncores": 3.2}
    for place, y in top.items():
        note(ax, 0.05, y + tall / 2, place)
    _, shared, registers, cores = top.values()
    fork = cores - 0.35
    panels = (1.15, "mma.sync: each warp by itself", 32, 16, 1), (5.2, "wgmma: four warps together", 64, 64, 3)
    for left, name, side, columns, mine in panels:  # mine: the tensor core of the warp whose registers are drawn
        heading(ax, left, 0.25, name)
        box(ax, left, top["L2 and HBM"], wide, tall, f"a and b, for a tile of {side} × {side}")
        looks = {}, {"colour": TENSOR_COLOUR["o"], "share": 0.45}
        grid(ax, left, cores, 1, 4, wide / 4, lambda _, core: {"text": f"16 × {columns}", **looks[core == mine]}, tall)
        own = left + (mine + 0.5) * wide / 4
        for x, tile, part, colour, aside in (
            (left, f"a: {side} rows", "a: 16 rows", "blue", -0.3), (left + 1.25, f"b: {side} columns", "b: 16 columns", "orange", 0.0),
        ):  # fmt: skip
            middle = x + 0.57
            box(ax, x, shared, 1.15, tall, tile, colour, share=0.4)
            arrow(ax, (middle, top["L2 and HBM"] + tall), (middle, shared))
            if columns == 16:
                box(ax, x, registers, 1.15, tall, part, colour, share=0.4)
                arrow(ax, (middle, shared + tall), (middle, registers))
                arrow(ax, (middle, registers + tall), (own + aside, cores))
            else:
                ax.plot((middle, middle), (shared + tall, fork), color="black", linewidth=1.6)
                note(ax, middle + 0.08, registers + tall / 2, "16 rows\nto each" if x == left else "all of it\nto each")
        note(ax, left + 1.95, shared + tall + 0.18, "128 bytes in a cycle")
        if columns > 16:  # every tensor core reads a and b
            middles = [left + (core + 0.5) * wide / 4 - 0.3 for core in range(4)]
            ax.plot((middles[0], middles[-1]), (fork, fork), color="black", linewidth=1.6)
            for middle in middles:
                arrow(ax, (middle, fork), (middle, cores))
        box(ax, left + 2.5, registers, 1.2, tall, f"acc: 16 × {columns}", TENSOR_COLOUR["o"], share=0.45)
        near, above = (own + 0.2, left + 3.04) if columns == 16 else (own + 0.05, own + 0.05)
        arrow(ax, (near, cores), (above, registers + tall))
        arrow(ax, (above + 0.2, registers + tall), (near + 0.2, cores))
        start, end = (own - wide / 8, own + wide / 8) if columns == 16 else (left, left + wide)
        outline(ax, start, cores, end - start, tall)
        write(ax, (start + end) / 2, cores + tall + 0.2, f"a piece: {columns} × {columns}", BODY, weight="bold")


@image("03_program_order.png", 5.0)
def draw_program_order(ax: Axes) -> None:
    """8 x 8 tiles of c by program id, in row order and in bands of 4 rows: what the first wave of 16 programs reads of a and b."""
    tiles, wave, side = 8, 16, 0.41
    for panel, (group, name) in enumerate(((1, "row order"), (4, "bands of 4 rows"))):
        left, top = 0.95 + panel * 4.45, 1.2
        program = {grouped_tile(pid, tiles, tiles, group): pid for pid in range(tiles * tiles)}
        first = {tile for tile, pid in program.items() if pid < wave}
        rows, cols = {row for row, _ in first}, {col for _, col in first}
        looks = {}, {"colour": "purple", "share": 0.5, "weight": "bold"}
        grid(ax, left, top, tiles, tiles, side, lambda *tile: {"text": f"{program[tile]}", **looks[tile in first]})
        for i in range(tiles):
            read = {"share": 0.6, "hatch": MASKED}  # by the wave
            box(ax, left - 0.5, top + i * side + 0.05, 0.4, side - 0.1, **({"colour": "blue"} | read if i in rows else {}))
            box(ax, left + i * side + 0.05, top - 0.5, side - 0.1, 0.4, **({"colour": "orange"} | read if i in cols else {}))
        outline(ax, left + min(cols) * side, top + min(rows) * side, len(cols) * side, len(rows) * side, line=2.5)
        heading(ax, left - 0.5, 0.25, f"{name} (group = {group})")
        write(ax, left - 0.7, top + tiles * side / 2, "a", HEAD, weight="bold")
        write(ax, left + tiles * side + 0.15, top - 0.3, "b", HEAD, weight="bold")
        total = strips_per_wave(tiles, tiles, group, wave)[0]
        reads = f"programs 0 to {wave - 1} read {len(rows)} + {len(cols)} = {total} strips"
        note(ax, left - 0.5, top + tiles * side + 0.3, reads, BODY, weight="bold")


@image("03_in_l2.png", 3.95)
def draw_in_l2(ax: Axes) -> None:
    """A strip along K while four programs read it: what L2 has to hold if they go in step, if they drift apart, and if it has less room."""
    left, side, steps = 0.25, 0.265, 32
    panels = (  # and the step that each program reads now
        ("in step: L2 holds one step", 13, 13, 13, 13),
        ("apart: L2 holds all from the slowest program to the fastest", 9, 11, 14, 17),
        ("L2 has less room: HBM delivers some steps twice", 9, 11, 14, 17),
    )
    looks = (
        {"colour": "black", "share": 0.12},
        {"colour": "purple", "share": 0.55},
        {"colour": "vermilion", "share": 0.3, "hatch": MASKED},
        {},
    )
    for panel, (title, *at) in enumerate(panels):
        top, room = 0.62 + 1.08 * panel, 6 if panel == 2 else steps
        note(ax, left, top - 0.3, title, BODY, weight="bold")
        look = lambda _, step: looks[0 if step < min(at) else 3 if step > max(at) else 1 if step > max(at) - room else 2]
        grid(ax, left, top, 1, steps, side, look, 0.34)
        for x in (left + (step + 0.5) * side for step in sorted(set(at))):
            arrow(ax, (x, top + 0.6), (x, top + 0.35))
        note(ax, left + (max(at) + 1.3) * side, top + 0.5, "programs" if panel else "four programs")
    write(ax, left + steps * side, 0.32, "one strip, cut into steps along K →", ha="right")
    texts = ("read by all", "must be in L2", "dropped, still needed", "not read yet")
    legend(ax, 3.75, tuple(zip((0.25, 1.9, 3.8, 6.3), looks, texts, strict=True)))


@image("03_skeleton.png", 5.25)
def draw_skeleton(ax: Axes) -> None:
    """(q kᵀ) v by blocks: the tile of q and acc stay on chip, tiles of k and v stream past, the tile of s never leaves."""
    draw_program(ax, 3.5, {"s": 3.1}, "o (S_q, D)", "kᵀ (D, S_k): k by swapped strides")
    write(ax, 4.825, 3.195, "acc += s v", BODY)
    write(ax, 4.825, 3.555, "s in v's dtype")
    write(ax, 3.525, 4.25, "s = scale · q kᵀ\n[BLOCK_M, BLOCK_N]\nnever leaves the chip")
    write(ax, 6.25, 4.15, "[BLOCK_M, BLOCK_D]\nstays, stored once")


def draw_program(ax: Axes, tall: float, between: dict[str, float], o: str, k: str, d: str = "BLOCK_D") -> None:
    """A frame, `tall`, with what one program has on the chip: tiles of q and acc, those that stream past, and the tiles `between` at their x;
    around it the tensors in HBM, o and kᵀ under these titles. A tile of q has the shape [BLOCK_M, d]."""
    block_m, block_n, dim = 0.75, 0.85, 1.1  # inches for BLOCK_M, BLOCK_N and D on the chip
    row, high, x_q, x_acc = 3.0, 2.8, 1.65, 5.7  # top of the tiles of q, s and acc; bottom of those of k and v
    x_s = between["s"]
    for name, x, y, rows, cols, now, wide, high_one in (
        ("q", 0.2, 1.5, 4, 1, 2, 0.7, 0.75), ("o", 8.05, 1.5, 4, 1, 2, 0.7, 0.75), ("k", 2.55, 0.35, 1, 3, 1, 0.65, 0.5),
        ("v", x_acc, 0.35, 3, 1, 1, dim, 0.25),
    ):  # fmt: skip
        look = {"share": 0.12}, {"share": 0.6, "hatch": MASKED, "line": 2.2}
        grid(ax, x, y, rows, cols, wide, lambda *block: {"colour": TENSOR_COLOUR[name], **look[max(block) == now]}, high_one)
    write(ax, 0.55, 1.33, "q (S_q, D)")
    write(ax, 8.4, 1.33, o)
    note(ax, 2.55, 0.18, k)
    write(ax, x_acc + dim / 2, 0.18, "v (S_k, D)")
    outline(ax, 1.35, 1.3, 6.1, tall, dashed=True, line=1.6)
    note(ax, 1.5, 1.53, "on the chip", BODY, weight="bold")
    tiles = {"q": (x_q, row, dim, block_m), "kᵀ": (x_s, high - dim, block_n, dim), "v": (x_acc, high - block_n, dim, block_n),
             "acc": (x_acc, row, dim, block_m)} | {name: (x, row, block_n, block_m) for name, x in between.items()}  # fmt: skip
    for name, place in tiles.items():
        box(ax, *place, name, TENSOR_COLOUR["o" if name == "acc" else name[0]], share=0.6, size=HEAD, line=2, weight="bold")
    middle = row + block_m / 2
    ends = [0.9, x_q + dim, *(x + block_n for x in between.values()), x_acc + dim]
    for start, end in zip(ends, [x_q, *between.values(), x_acc, 8.05], strict=True):
        arrow(ax, (start, middle), (end, middle))
    for x, long in ((x_s + block_n / 2, dim), (x_acc + dim / 2, block_n)):
        arrow(ax, (x, 0.85), (x, high - long))
        arrow(ax, (x, high), (x, row))
    write(ax, x_q + dim / 2, 2.65, f"[BLOCK_M, {d}]\nread once, stays")
    write(ax, x_s - 0.06, 1.97, f"[{d}, BLOCK_N]\nstreams past", ha="right")
    write(ax, x_acc - 0.06, 2.4, f"[BLOCK_N, {d}]\nstreams past", ha="right")
    note(ax, 1.35, 1.53 + tall, "dashed frame: one program; outside it: HBM. Hatched: the blocks in use now.")
