"""The drawings of chapter 8."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from draw.drawing import arrow, box, bracket, grid, heading, image, legend, note, notes, outline, write, writes
from draw.look import BODY, MASKED, WAITS
from fa_tutorial.bench.chapter_8 import LARGER_TILE, compiled_steps, stored_steps, tile_cycles
from fa_tutorial.matmul import grouped_tile
from fa_tutorial.tiles import TileConfig
from fa_tutorial.tuned import steps
from fa_tutorial.tuned.autotuning import shared_bytes

TILES, LOAD = 3, 2  # blocks of keys; units of time that a load takes until it has arrived
PARTS = ("q k", "exp", "p v")  # of the work on a block, one unit of time each
UNIT, LANE, LANES_LEFT = 0.355, 0.3, 1.4  # inches: of time, height of a lane, where time 0 is
LOADS, HELD = {"colour": "orange", "share": 0.55}, {"colour": "orange", "share": 0.15, "dashed": True}
WORK = {"q k": {"colour": "blue", "share": 0.5}, "exp": {"colour": "vermilion", "share": 0.4}, "p v": {"colour": "sky", "share": 0.6}}


def pipeline(num_stages: int) -> list[tuple[int, int]]:
    """When the load and when the work of each block begins in a loop that asks num_stages − 1 blocks ahead, one at least, as it is compiled:
    a step asks for a later block when it has issued its p v, into the place of the block before it. Loads are under way together."""
    loads, begins, now = [0] * (num_stages - 1), [], 0
    for tile in range(TILES):
        begins.append(max(now, loads[tile] + LOAD))
        now = begins[-1] + len(PARTS)
        loads.append(begins[-1] + PARTS.index("p v"))
    return list(zip(loads, begins, strict=False))


@image("08_model.png", 3.95)
def draw_model(ax: Axes) -> None:
    """An SM's matmuls, instructions and exponentials for 64 x 64 scores by chapter 8's model, D = 64: chapter 5's loop, and one of fewer
    instructions than its exponentials take cycles."""
    D, made = 64, compiled_steps()
    many = made["chapter 5", steps.TILE, D, False]["loop"]
    few = round(made["descriptors", steps.LARGER[D], D, False]["loop"] / 2)  # step 3's, for 64 x 64 scores
    draw_turns(ax, 0.25, f"chapter 5's loop, D = {D}: {4 * D} + {many} = {4 * D + many} cycles", D, many)
    draw_turns(ax, 2.25, f"a loop of {few} instructions: {4 * D} + 256 = {4 * D + 256} cycles, the wall", D, few)
    legend(ax, 2.68, ((7.2, WAITS, "idle"),))


def draw_turns(ax: Axes, top: float, title: str, D: int, instructions: int) -> None:
    """Three lanes to scale: matmuls, then instructions and exponentials together."""
    left, inch, tall, end = 2.1, 0.0089, 0.3, 4 * D + max(instructions, 256)
    heading(ax, 0.1, top, title)
    issues, unit = {"colour": "sky", "share": 0.6}, WORK["exp"]
    lanes = (
        ("tensor cores", 0, 4 * D, f"matmuls: 4 D = {4 * D}", {"colour": "blue", "share": 0.5}),
        ("a scheduler issues", 4 * D, instructions, f"{instructions} instructions", issues),
        ("its exponential unit", 4 * D, 256, "32 exponentials of 8 cycles", unit),
    )
    for number, (name, start, cycles, text, look) in enumerate(lanes):
        y = top + 0.28 + number * (tall + 0.1)
        note(ax, 0.1, y + tall / 2, name)
        box(ax, left, y, end * inch, tall, **WAITS)
        box(ax, left + start * inch, y, cycles * inch, tall, text, **look)


@image("08_pipeline_timeline.png", 7.1)
def draw_pipeline_timeline(ax: Axes) -> None:
    """Loads and work on three blocks of keys for num_stages 1, 2 and 3, and the shared memory of each (8.2)."""
    block, y, work = 2 * LOAD + len(PARTS), 0.5, 0.5 + LANE + 0.06
    heading(ax, 0.1, 0.25, f"num_stages = 1: loads and work take turns, {TILES * block} units")
    for row, name in ((y, "load"), (work, "compute")):
        note(ax, 0.1, row + LANE / 2, name)
    for tile in range(TILES):  # k and v share one place: v is loaded after q kᵀ, and before the exponentials, as compiled
        at = tile * block
        for name, parts in (("k", PARTS[:1]), ("v", PARTS[1:])):
            bar(ax, at, at + LOAD, y, f"{name} {tile}", **LOADS)
            bar(ax, at, at + LOAD, work, **WAITS)
            at += LOAD
            bar(ax, at, at + len(parts), y, **HELD)
            at = draw_parts(ax, at, work, parts, tile)
    draw_shared_memory(ax, work + LANE + 0.14, 1)
    draw_pipeline(ax, 2.0, 2, "as compiled, block 0 asks for block 1 at its\np v, which hides half of the load")
    draw_pipeline(ax, 4.1, 3, "as compiled, block 0 asks for block 2 at its\np v, so p v and block 1 hide all of the load")
    legend(ax, 6.5, ((0.1, LOADS, "load of k, v"), (2.05, HELD, "in shared memory"), (4.5, WAITS, "nothing to work on")))
    note(
        ax,
        0.1,
        6.85,
        f"numbers: blocks of keys. A load takes {LOAD} units of time, of one tile or two; q kᵀ, the exponentials and p v take 1 each.",
    )


def draw_parts(ax: Axes, start: int, y: float, parts: Sequence[str], tile: int) -> int:
    """The work on a block from `start` on, and when it is done."""
    for part in parts:
        bar(ax, start, start + 1, y, part if part == "exp" else f"{part}{tile}", **WORK[part])
        start += 1
    return start


def draw_pipeline(ax: Axes, top: float, num_stages: int, words: str) -> None:
    """One row: a lane for each stage's loads, one for the work, and a bar for the shared memory; `words` beside it."""
    blocks, y, free = pipeline(num_stages), top + 0.25, 0
    how = f"loads run {num_stages - 1} block{'s' * (num_stages > 2)} ahead"
    heading(ax, 0.1, top, f"num_stages = {num_stages}: {how}, {blocks[-1][1] + len(PARTS)} units")
    work = y + num_stages * LANE + 0.06
    notes(ax, 0.1, y + 0.5 * LANE, [f"load, stage {stage}" for stage in range(num_stages)], step=LANE)
    note(ax, 0.1, work + LANE / 2, "compute")
    for tile, (load, begin) in enumerate(blocks):
        lane = y + tile % num_stages * LANE
        bar(ax, load, load + LOAD, lane, f"{tile}", **LOADS)
        bar(ax, load + LOAD, begin + len(PARTS), lane, **HELD)
        if begin > free:
            bar(ax, free, begin, work, **WAITS)
        free = draw_parts(ax, begin, work, PARTS, tile)
    draw_shared_memory(ax, work + LANE + 0.14, num_stages)
    note(ax, 5.6, top - 0.03, words, linespacing=1.25)


def bar(ax: Axes, start: float, end: float, y: float, text: str = "", **look) -> None:
    box(ax, LANES_LEFT + start * UNIT, y, (end - start) * UNIT, LANE, text, **look)


def draw_shared_memory(ax: Axes, y: float, num_stages: int) -> None:
    """q and the stages of k and v as boxes, as long as they are large, and their sum, by (8.2) from two stages on; one is a single tile."""
    D, itemsize, tile = 64, 2, TileConfig(64, 64, 4, num_stages)
    q, stage, name = tile.block_m * D * itemsize // 1024, 2 * tile.block_n * D * itemsize // 1024, "k, v"
    if num_stages == 1:
        stage, name = stage // 2, "k/v"
    total = q + num_stages * stage
    assert num_stages == 1 or total * 1024 == shared_bytes("forward", tile, D)
    inch, x = 0.06, LANES_LEFT
    note(ax, 0.1, y + 0.15, "shared memory")
    for text, size, colour in (("q", q, "sky"), *[(name, stage, "green")] * num_stages):
        box(ax, x, y, size * inch, 0.3, text, colour, share=0.4)
        x += size * inch
    how = f": one place for k and v in turn; all sizes {D}, fp16" if num_stages == 1 else " (8.2)"
    note(ax, x + 0.12, y + 0.15, f"{q} + {num_stages} · {stage} = {total} KiB{how}", weight="bold")


S, TILE_SIDE, LINE, THREADS = 100, 64, 16, 128  # rows of a head; a tile of 64 x 64; bytes that one copy moves


@image("08_descriptor.png", 5.35)
def draw_descriptor(ax: Axes) -> None:
    """A 64 x 64 tile on its way to shared memory: by 128 threads with pointers, and by TMA with a descriptor."""
    copies = TILE_SIDE * TILE_SIDE * 2 // LINE
    heading(ax, 0.1, 0.25, "by pointers: every thread")
    heading(ax, 4.75, 0.25, "by a descriptor: one thread")
    draw_threads(ax, 0.1, asking=8)
    draw_threads(ax, 4.75, asking=1)
    copied = f"each: {copies // THREADS} addresses,\n{copies // THREADS} copies of {LINE} bytes"
    write(ax, 2.05, 1.95, f"{copied}\n{THREADS} · {copies // THREADS} = {copies} copies", linespacing=1.3)
    for thread in range(8):
        arrow(ax, (0.32 + thread * 0.47, 1.12), (0.32 + thread * 0.47, 1.5), width=1.0)
        arrow(ax, (0.32 + thread * 0.47, 2.4), (0.32 + thread * 0.47, 2.78), width=1.0)
    arrow(ax, (4.97, 1.12), (4.97, 1.5))
    note(ax, 5.1, 1.3, 'one instruction: "tile at [b, h, 64, 0]"')
    box(ax, 4.75, 1.5, 0.9, 0.9, "TMA", "purple", share=0.2, size=BODY, weight="bold")
    box(ax, 6.1, 1.5, 2.4, 0.9, "descriptor, in memory:\nstart, shape, strides,\ntile (1, 1, 64, 64)", dashed=True)
    arrow(ax, (6.1, 1.95), (5.65, 1.95))
    arrow(ax, (5.2, 2.4), (5.2, 2.78))
    tall, ends = 1.6, 1.6 * (S - TILE_SIDE) / TILE_SIDE
    for x, below in ((0.1, "a mask\nmakes them 0"), (4.75, "TMA\nfills in 0, without a mask")):
        box(ax, x, 2.8, 3.75, ends, f"rows {TILE_SIDE} to {S - 1} of head h", "orange", share=0.35)
        box(ax, x, 2.8 + ends, 3.75, tall - ends, f"{2 * TILE_SIDE - S} rows beyond S: {below}", dashed=True)
        outline(ax, x, 2.8, 3.75, tall)
        note(ax, x, 4.6, "the tile in shared memory")
    note(ax, 0.1, 5.1, f"S = {S}: the second tile of {TILE_SIDE} rows of a head, D = {TILE_SIDE}, fp16: {copies * LINE // 1024} KiB")


def draw_threads(ax: Axes, x: float, asking: int) -> None:
    """A row of eight boxes for a program's threads; the first `asking` of them load."""
    note(ax, x, 0.58, f"{THREADS} threads")
    for thread, name in enumerate((*"012345…", f"{THREADS - 1}")):
        look = {"colour": "blue", "share": 0.4} if thread < asking else {}
        box(ax, x + thread * 0.47, 0.75, 0.44, 0.36, name, **look)


HEAD_COLOURS, HEAD_HATCHES = ("sky", "orange"), (None, "..")


@image("08_flattened_heads.png", 6.4)
def draw_flattened_heads(ax: Axes) -> None:
    """Two heads of 100 rows by tiles of 64: flattened to two dimensions the second tile runs on; with four it ends with its head."""
    heading(ax, 0.1, 0.25, "flattened: (B·H·S, D)")
    heading(ax, 4.85, 0.25, "four dimensions: (B, H, S, D)")
    row, top, over, gap = 0.0215, 1.0, 2 * TILE_SIDE - S, 0.4
    for head in range(2):
        look = {"share": 0.45, "hatch": HEAD_HATCHES[head], "size": BODY, "weight": "bold"}
        for x, y in ((0.65, top + head * S * row), (5.4, top + head * S * row + gap * head)):
            box(ax, x, y, 1.2, S * row, f"head {head}", HEAD_COLOURS[head], **look)
    for x, y, stops in ((0.65, top, (0, S, 2 * S)), (5.4, top, (0, S)), (5.4, top + S * row + gap, (0, S))):
        writes(ax, x - 0.08, y, stops, dy=S * row, ha="right")
    for x, code in ((0.1, "x.load([(b·H + h)·S + start, 0])"), (4.85, "x.load([b, h, start, 0])")):
        note(ax, x, 0.62, code, family="DejaVu Sans Mono")
    for x in (2.35, 7.1):
        box(ax, x, top, 1.2, TILE_SIDE * row, "tile 0\nstart = 0", "sky", share=0.3)
        box(ax, x, top + TILE_SIDE * row, 1.2, (S - TILE_SIDE) * row, f"tile 1\nstart = {TILE_SIDE}", "sky", share=0.3)
        for tile in range(2):
            outline(ax, x, top + tile * TILE_SIDE * row, 1.2, TILE_SIDE * row)
        notes(ax, x + 1.28, top + TILE_SIDE * row, (TILE_SIDE, 2 * TILE_SIDE), step=TILE_SIDE * row)
    y = top + S * row
    box(ax, 2.35, y, 1.2, over * row, f"{over} rows", "vermilion", share=0.4, hatch=MASKED, weight="bold")
    box(ax, 7.1, y, 1.2, over * row, f"{over} rows of 0", dashed=True, weight="bold")
    arrow(ax, (1.85, y + over * row / 2), (2.35, y + over * row / 2), "vermilion")
    words = "head 1's rows,\ntaken for head 0's:\nwrong keys, and a\nstore writes there"
    note(ax, 2.35, y + over * row + 0.45, words, va="top", linespacing=1.25)
    note(ax, 7.1, y + over * row + 0.45, "past S: loaded as 0,\nnot stored; head 1\nstays as it is", va="top", linespacing=1.25)
    note(
        ax, 0.1, 6.15, f"S = {S}, tiles of {TILE_SIDE} rows, the tiles of head 0 in thick frames; numbers: rows that the descriptor counts"
    )


ROW_BLOCKS, HEADS, SMS = 8, 2, 4


def programs_in_order(heads_at_once: int, longest_first: bool) -> list[tuple[int, int]]:
    """(head, row block) of each program in launch order: tuned.forward's with longest_first (8.6), else chapter 5's."""
    programs = [grouped_tile(pid, HEADS, ROW_BLOCKS, heads_at_once) for pid in range(HEADS * ROW_BLOCKS)]
    return [(head, ROW_BLOCKS - 1 - row if longest_first else row) for head, row in programs]


@image("08_order_of_programs.png", 6.4)
def draw_order_of_programs(ax: Axes) -> None:
    """Causal row blocks of two heads numbered in launch order, as they come and longest first, and when four SMs are done with them."""
    side, top, unit, below, tall, pitch = 0.21, 1.15, 0.205, 3.8, 0.32, 0.38  # of the schedule
    for left, title, order in (
        (0.1, "as they come", programs_in_order(1, longest_first=False)),
        (4.6, "longest first, two heads side by side", programs_in_order(HEADS, longest_first=True)),
    ):
        heading(ax, left, 0.25, title)
        note(ax, left + 0.35, 0.9, "row blocks ↓   key blocks →")
        writes(ax, left + 0.35, 0.62, [f"head {head}" for head in range(HEADS)], dx=2.2, size=BODY, ha="left", weight="bold")
        free = [0] * SMS
        for pid, (head, row) in enumerate(order):
            x, y = left + 0.35 + head * 2.2, top + row * (side + 0.04)
            look = {"colour": HEAD_COLOURS[head], "share": 0.5}
            grid(ax, x, y, 1, row + 1, side, lambda *_: {"hatch": HEAD_HATCHES[head], **look})
            if pid < SMS:
                outline(ax, x, y, (row + 1) * side, side)
            write(ax, x - 0.06, y + side / 2, f"{pid}", ha="right", weight="bold" if pid < SMS else "normal")
            sm = free.index(min(free))  # they start in order, each as soon as an SM is free
            box(ax, left + free[sm] * unit, below + sm * pitch, (row + 1) * unit, tall, f"{pid}", **look)
            free[sm] += row + 1
        note(ax, left, 3.5, f"{SMS} SMs: done after {max(free)} units of time", BODY, weight="bold")
        arrow(ax, (left, below + SMS * pitch + 0.06), (left + 4.3, below + SMS * pitch + 0.06), width=1.0)
        write(ax, left + 4.3, below + SMS * pitch + 0.22, "time", ha="right")
    note(ax, 0.1, 5.85, "one program: a row of tiles, numbered in launch order; thick frames: the first four, one on each SM")
    note(ax, 0.1, 6.12, "a tile takes one unit of time; an SM takes the next program when it is done with one")


@image("08_overlap.png", 5.55)
def draw_overlap(ax: Axes) -> None:
    """Tensor cores and exponentials over time, D = 128: one program as compiled, and as ideas.overlapped_loop is written."""
    tiles = range(6)
    matmuls = [job for j in tiles for job in ((6 * j, f"q k{j}"), (6 * j + 4, f"p v{j}"))]
    draw_lanes(
        ax, 0.25, "as compiled: in one program, nothing runs beside anything", matmuls, [(6 * j + 2, f"exp {j}") for j in tiles], 2, 6
    )
    early = [(0, "q k0"), *(job for j in tiles for job in ((4 * j + 2, f"q k{j + 1}"), (4 * j + 4, f"p v{j}")))]
    beside = [(4 * j + 2, f"exp {j}") for j in tiles]
    draw_lanes(ax, 2.55, "overlap, as written: its exponentials run beside its next q kᵀ", early, beside, 6, 4)
    parts = ((0.1, WORK["q k"], "q kᵀ"), (1.5, WORK["exp"], "exponentials"), (3.7, WORK["p v"], "p v"), (4.95, WAITS, "nothing to do"))
    legend(ax, 4.6, parts)
    yours, cudnn = (tile_cycles(stored_steps()[128, False][name], 128, False) for name in (LARGER_TILE, "sdpa_cudnn"))
    note(ax, 0.1, 5.0, "one program, D = 128, tiles of 64 x 64, no loads, no other instructions")
    note(
        ax,
        0.1,
        5.27,
        f"On an H200, with loads and the rest, an SM takes {yours:.0f} cycles for a tile of yours, {cudnn:.0f} for one of cuDNN's.",
    )


def draw_lanes(ax: Axes, top: float, title: str, matmuls: list, exponentials: list, first: int, period: int) -> None:
    """Two lanes and the span of a tile, from beat `first` on. matmuls, exponentials: (the beat at which it starts, name), each two beats long."""
    left, end, beat, beat_tall = 1.75, 16, 0.42, 0.34
    cycles = 128  # a beat's: a matmul of 64 x 64 x 128 takes two, and so do 64 x 64 exponentials
    heading(ax, 0.1, top, title)
    for number, (name, jobs) in enumerate((("tensor cores", matmuls), ("exponentials", exponentials))):
        y = top + 0.32 + number * (beat_tall + 0.12)
        note(ax, 0.1, y + beat_tall / 2, name)
        box(ax, left, y, end * beat, beat_tall, **WAITS)
        for start, text in jobs:
            if (beats := min(2, end - start)) > 0:
                box(ax, left + start * beat, y, beats * beat, beat_tall, text if beats == 2 else "", **WORK[text[:3]])
    y = top + 0.32 + 2 * (beat_tall + 0.12) + 0.1
    begin, stop = left + first * beat, left + (first + period) * beat
    bracket(ax, begin, stop, y - 0.06, high=-0.06)
    write(ax, (begin + stop) / 2, y + 0.16, f"a tile: {period * cycles} cycles", weight="bold")
    arrow(ax, (left, y + 0.36), (left + end * beat, y + 0.36), width=1.0)
    write(ax, left + end * beat, y + 0.53, "time", ha="right")
