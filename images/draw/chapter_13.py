"""The drawings of chapter 13."""

from matplotlib.axes import Axes

from draw.drawing import arrow, box, grid, heading, image, legend, note, outline, write, writes
from draw.look import BODY, HEAD, WAITS
from fa_tutorial.bench import chapter_13
from fa_tutorial.exercises.chapter_13.ex_1 import owner
from fa_tutorial.exercises.chapter_13.ex_3 import chunks_of

RANKS, CHUNKS = 4, 8  # two chunks a rank
RANK_COLOUR = ("blue", "orange", "green", "purple")  # of what began on a rank: its keys, and its queries' row


@image("13_ring.png", 3.7)
def draw_ring(ax: Axes) -> None:
    """Four ranks that pass their keys to the next one, and a table of who holds whose keys, to be filled in after step 0."""
    for rank, (x, y) in enumerate(((2.05, 0.6), (3.35, 1.86), (2.05, 3.12), (0.75, 1.86))):  # clockwise
        outline(ax, x - 0.68, y - 0.38, 1.36, 0.76)
        write(ax, x, y - 0.16, f"rank {rank}: q, o", BODY)
        box(ax, x - 0.46, y + 0.02, 0.92, 0.26, f"k, v of {rank}", RANK_COLOUR[rank], share=0.4)
    for begin, end in (((2.8, 0.75), (3.25, 1.42)), ((3.25, 2.3), (2.8, 2.97)), ((1.3, 2.97), (0.85, 2.3)), ((0.85, 1.42), (1.3, 0.75))):
        arrow(ax, begin, end, curve=-0.2, width=2)
    write(ax, 2.05, 1.86, "k, v", HEAD, weight="bold")
    left, top, wide, high = 4.98, 0.85, 0.95, 0.5
    write(ax, left + 2 * wide, 0.2, "whose k and v are where", HEAD, weight="bold")
    writes(ax, left + 0.5 * wide, top - 0.22, [f"rank {rank}" for rank in range(RANKS)], dx=wide, size=BODY)
    writes(ax, left - 0.15, top + 0.5 * high, [f"step {step}" for step in range(RANKS)], dy=high, size=BODY, ha="right")
    for rank in range(RANKS):
        first = {"text": f"{owner(rank, 0, RANKS)}", **look_of(rank)}
        grid(ax, left + rank * wide, top, RANKS, 1, wide, lambda step, _: {"size": HEAD, **({"text": "?"} if step else first)}, high)
    note(ax, left, top + RANKS * high + 0.32, "All ranks send at the same time, one rank up.", BODY)


def look_of(rank: int) -> dict:
    """Of what began on a rank: its keys."""
    return {"colour": RANK_COLOUR[rank], "share": 0.4}


@image("13_zigzag.png", 5.75)
def draw_zigzag(ax: Axes) -> None:
    """Which step computes which pair of chunks, in plain and in zigzag order; and how much each rank has to do in each step."""
    zigzag = {chunk: rank for rank in range(RANKS) for chunk in chunks_of(rank, RANKS)}
    draw_order(ax, 1.15, 0.85, "plain order", [chunk // 2 for chunk in range(CHUNKS)])
    draw_order(ax, 5.5, 0.85, "zigzag order", [zigzag[chunk] for chunk in range(CHUNKS)])
    legend(ax, 5.5, tuple((0.15 + 1.65 * rank, look_of(rank), f"keys of rank {rank}") for rank in range(RANKS)))
    note(ax, 6.95, 5.5, "the numbers: the step")


def draw_order(ax: Axes, x: float, top: float, name: str, rank_of: list[int]) -> None:
    """The chunks of queries by the chunks of keys, in their rank's colour, with the step; the rank and chunk beside each row; below, each rank's work in each step."""
    side = 0.36
    heading(ax, x, 0.2, name)
    note(ax, x, 0.47, "chunks of queries ↓, of keys →")
    work = [[0.0] * RANKS for _ in range(RANKS)]
    for row in range(CHUNKS):
        rank = rank_of[row]
        write(ax, x - 0.12, top + (row + 0.5) * side, f"rank {rank}    {row}", ha="right")
        write(ax, x + (row + 0.5) * side, top - 0.16, str(row))
        for col in range(CHUNKS):
            step = (rank - rank_of[col]) % RANKS
            look = look_of(rank_of[col]) | {"text": str(step)} if col <= row else {}
            box(ax, x + col * side, top + row * side, side, side, **look)
            work[step][rank] += (col < row) + 0.5 * (col == row)
    outline(ax, x, top, CHUNKS * side, CHUNKS * side, line=1.5)
    below = top + CHUNKS * side + 0.3
    write(ax, x - 0.12, below, "work of", ha="right")
    writes(ax, x + 0.35, below, [f"step {step}" for step in range(RANKS)], dx=0.72)
    for rank in range(RANKS):
        y = below + 0.1 + rank * 0.27
        write(ax, x - 0.12, y + 0.14, f"rank {rank}", ha="right")
        for step in range(RANKS):
            left = x + step * 0.72
            box(ax, left, y, 0.66, 0.2)
            if work[step][rank]:
                box(ax, left, y, 0.66 * work[step][rank] / 4, 0.2, **look_of(owner(rank, step, RANKS)))


@image("13_tiles.png", 2.3)
def draw_tiles(ax: Axes) -> None:
    """Rank 2's tile (13.5) in each step: its two chunks of queries by the visitor's two of keys, side by side as in their shards."""
    note(ax, 0.1, 1.02, "rank 2's\nqueries", BODY)
    note(ax, 1.3, 2.12, "The numbers are chunks. White pairs aren't seen.")
    for step, words in enumerate(("u = r", "u < r", "u < r", "u > r")):
        visitor, x, queries = owner(2, step, RANKS), 1.5 + step * 1.95, chunks_of(2, RANKS)
        keys = chunks_of(visitor, RANKS)
        note(ax, x - 0.2, 0.2, f"step {step}: {words}", BODY, weight="bold")
        writes(ax, x - 0.15, 0.9, queries, dy=0.5)
        writes(ax, x + 0.25, 0.5, keys, dx=0.5)
        for col, key in enumerate(keys):
            for row, query in enumerate(queries):
                look = look_of(visitor) if key <= query else {}
                box(ax, x + col * 0.5, 0.65 + row * 0.5, 0.5, 0.5, "causal" if key == query else "", size=9, **look)
        write(ax, x + 0.5, 1.82, f"keys of rank {visitor}")


@image("13_overlap.png", 3.3)
def draw_overlap(ax: Axes) -> None:
    """A rank's steps: sending hides behind computing where the shard is long, and computing waits where it is short."""
    draw_steps(ax, 0.1, "a long shard: computing takes longer than sending", computing=1.75, sending=1.05)
    draw_steps(ax, 1.65, "a short shard: sending takes longer than computing", computing=0.7, sending=1.05)
    texts = ("compute with the keys of …", "send and receive the keys of …", "nothing to compute with")
    legend_of_steps(ax, 3.1, (0.15, 3.1, 6.35), *texts)


def legend_of_steps(ax: Axes, y: float, at: tuple[float, ...], computes: str, sends: str, waits: str = "nothing to compute") -> None:
    looks = {"colour": "sky", "share": 0.5}, {"colour": "orange", "share": 0.6}, WAITS
    legend(ax, y, tuple(zip(at, looks, (computes, sends, waits), strict=True)))


def draw_steps(ax: Axes, top: float, name: str, computing: float, sending: float) -> None:
    """Rank 1's lanes: its tensor cores above; below, whose keys leave it and whose come."""
    heading(ax, 0.15, top + 0.12, name)
    for lane, y in (("computing", top + 0.38), ("sending", top + 0.78)):
        note(ax, 0.15, y + 0.16, lane, BODY)
    x = 1.4
    for step in range(RANKS):
        last = step == RANKS - 1
        box(ax, x, top + 0.36, computing, 0.34, str(owner(1, step, RANKS)), "sky", share=0.5, size=BODY)
        if not last:
            box(ax, x, top + 0.76, sending, 0.34, f"{owner(1, step, RANKS)} out, {owner(1, step + 1, RANKS)} in", "orange", share=0.6)
            if sending > computing:
                box(ax, x + computing, top + 0.36, sending - computing, 0.34, **WAITS)
        x += computing if last else max(computing, sending)


@image("13_late_program.png", 4.15)
def draw_late_program(ax: Axes) -> None:
    """The four steps of rank 3 with 262,144 tokens over the host's memory, by the stored times: with equal shares the program on the SM that a message holds ends two steps late, with a counter none. The held SM itself is lost."""
    shown, sm_high, sm_gap = 4, 0.26, 0.29  # of 132 SMs, the last of them held by messages
    share = 65_536 // 128 * 16 // 132  # work tiles of an SM's program: rank 3's queries by 128, 16 heads
    case = chapter_13.clock_times(chapter_13.load()["rows"], "forward").loc["host memory", 262_144, 16]
    tile, message = case["T_c"], case["T_s"]
    for top, name, is_counted in ((0.15, "equal shares in steps 1 to 3", False), (2.1, "a counter in every step", True)):
        left, now, unit = 0.85, 0.0, 8.0 / (4 * tile + 2 * message)
        for step in range(RANKS):
            sends, counts = step < RANKS - 1, is_counted or step == 0  # the own tile is causal, so it has a counter
            end = tile + message * sends / 132 if counts else tile + message * sends  # a counter spreads what the held SM leaves
            for sm in range(shown):
                held = message if sends and sm == shown - 1 else 0.0  # of SM 131
                y, work = top + 0.5 + sm * sm_gap, end - held if counts else tile
                work_tiles = f"{share} or {share + 1}" if counts and not held else f"{share * work / tile:.0f}"
                if held:
                    box(ax, left + now * unit, y, held * unit, sm_high, "message", "orange", share=0.6)
                look = {"text": work_tiles if step else "", "size": 9 if work < held else BODY}
                box(ax, left + (now + held) * unit, y, work * unit, sm_high, colour="sky", share=0.5, **look)
                if (stop := held + work) < end:
                    box(ax, left + (now + stop) * unit, y, (end - stop) * unit, sm_high, **WAITS)
            write(ax, left + (now + end / 2) * unit, top + 0.36, f"step {step}: {end:.1f} ms")
            now += end
            if step < RANKS - 1:
                ax.plot([left + now * unit] * 2, [top + 0.25, top + 0.5 + shown * sm_gap], color="black", linewidth=2)
        heading(ax, 0.15, top + 0.06, f"rank 3, {name}: {now:.1f} ms")
        for sm, number in enumerate((0, 1, 2, 131)):
            write(ax, left - 0.1, top + 0.5 + sm * sm_gap + sm_high / 2, f"SM {number}", ha="right")
    legend_of_steps(ax, 3.97, (0.85, 4.3, 6.75), "compute, and how many work tiles", "a message's kernel")


@image("13_way_home.png", 2.75)
def draw_way_home(ax: Axes) -> None:
    """The keys of rank 0 and their gradient on their way: one part more on each rank. After four steps the gradient alone is home."""
    wide, gap = 1.4, 0.42
    for step in range(RANKS + 1):
        rank, x = step % RANKS, 0.12 + step * (wide + gap)
        outline(ax, x, 0.42, wide, 1.75)
        write(ax, x + wide / 2, 0.2, f"step {step}: rank {rank}" if step < RANKS else "home: rank 0", BODY, weight="bold")
        if step < RANKS:
            box(ax, x + 0.12, 0.55, wide - 0.24, 0.36, "k, v of 0", RANK_COLOUR[0], share=0.4)
        else:
            write(ax, x + wide / 2, 0.73, "kept its k, v")
        write(ax, x + wide / 2, 1.13, "dk, dv of 0:")
        some = lambda _, part: {"text": f"{part}", **look_of(part)} if part <= step else {"dashed": True}
        grid(ax, x + 0.12, 1.33, 1, RANKS, (wide - 0.24) / RANKS, some, 0.36)
        write(ax, x + wide / 2, 1.95, f"adds part {rank}" if step < RANKS else "complete")
        if step < RANKS:
            arrow(ax, (x + wide + 0.05, 1.3), (x + wide + gap - 0.05, 1.3), width=2)
    note(ax, 0.12, 2.5, "Part r: what the queries of rank r give to the gradients of rank 0's keys and values.")


@image("13_three_ways.png", 4.05)
def draw_three_ways(ax: Axes) -> None:
    """What rank 1 of four computes with, in a ring, with an all-gather and with Ulysses; below, when it computes and sends."""
    tile, message = 0.4, 0.3  # a tile's width on the lanes, and that of k and v of a shard
    for y, text in ((1.28, "heads ↓"), (2.0, "rank →"), (2.8, "computing"), (3.22, "sending")):
        note(ax, 0.1, y, text, BODY)
    qkv, back = (0.75 * tensors / 2 * message for tensors in (3, 1))  # k and v: two tensors
    draw_way(ax, 1.2, "ring", "k, v: one shard in each step",
             computes=[(step * tile, tile, str(owner(1, step, RANKS))) for step in range(RANKS)],
             sends=[(step * tile, message) for step in range(RANKS - 1)])  # fmt: skip
    draw_way(ax, 3.85, "all-gather", "k, v: all shards at once",
             computes=[((RANKS - 1) * message, RANKS * tile, "all")], sends=[(step * message, message) for step in range(RANKS - 1)])  # fmt: skip
    draw_way(ax, 6.5, "Ulysses", "head 1 of all tokens", head=1,
             computes=[(qkv, RANKS * tile, "head 1")], sends=[(0, qkv), (qkv + RANKS * tile, back)])  # fmt: skip
    outline(ax, 0.1, 3.7, 0.3, 0.24)
    note(ax, 0.5, 3.82, "rank 1's own shard")
    legend_of_steps(ax, 3.82, (2.4, 4.85, 6.8), "compute with …", "send and receive")


def draw_way(ax: Axes, x: float, name: str, words: str, computes: list, sends: list, head: int | None = None) -> None:
    """Heads by tokens, coloured where rank 1 computes with them, by whose they were; below, its lanes."""
    side = 0.29
    heading(ax, x, 0.2, name)
    for left, tensors in ((x, "q, o"), (x + 1.3, "k, v")):
        write(ax, left + 2 * side, 0.52, tensors, BODY)
        for row in range(RANKS):
            for col in range(RANKS):
                used = row == head if head is not None else tensors == "k, v" or col == 1
                box(ax, left + col * side, 0.7 + row * side, side, side, **(look_of(col) if used else {}))
                if head is not None and col == 1 and row != head:  # the rest of its shard goes to the rank with this head
                    write(ax, left + (col + 0.5) * side, 0.7 + (row + 0.5) * side, f"→{row}", 9)
            write(ax, left + (row + 0.5) * side, 2.0, str(row))
        outline(ax, left + side, 0.7, side, RANKS * side)
    note(ax, x, 2.34, words, BODY)
    if begin := computes[0][0]:
        box(ax, x, 2.63, begin, 0.34, **WAITS)
    for left, wide, text in computes:
        box(ax, x + left, 2.63, wide, 0.34, text, "sky", share=0.5, size=BODY)
    for left, wide in sends:
        box(ax, x + left, 3.05, wide, 0.34, colour="orange", share=0.6)
    end = computes[-1][0] + computes[-1][1]
    if (last := sends[-1][0] + sends[-1][1]) > end:
        box(ax, x + end, 2.63, last - end, 0.34, **WAITS)
