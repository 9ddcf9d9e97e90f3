"""The drawings of chapter 9: warpgroups on a Hopper multiprocessor, their roles, a ring of stages, and the backward."""

from matplotlib.axes import Axes

from draw.drawing import arrow, box, bracket, grid, heading, image, note, notes, outline, write
from draw.look import BODY, WAITS
from fa_tutorial.barriers import ring, ring_consumer, ring_producer, run
from fa_tutorial.warpgroups import GAP, KEYS, ROWS, TWO_STOPS, cycles_per_round, matmul_cycles, timeline

LOOKS = {"s": {"colour": "blue", "share": 0.45}, "o": {"colour": "green", "share": 0.5}, "exp": {"colour": "orange", "share": 0.55}}
INCH, LANE, LANES_LEFT = 0.0016, 0.34, 1.45  # inches: of a cycle, of a lane's height, where time 0 is


@image("09_one_warpgroup.png", 2.5)
def draw_one_warpgroup(ax: Axes) -> None:
    """One warpgroup with one stop a block, three blocks of keys, D = 128: matmuls, softmax, matmuls (9.2)."""
    draw_timeline(ax, 0.25, "one warpgroup, one stop: a round every {} cycles, cores {} busy", 128)
    draw_key(ax, 1.85)


@image("09_two_warpgroups.png", 2.5)
def draw_two_warpgroups(ax: Axes) -> None:
    """The same for two warpgroups, each with one stop a block (9.3)."""
    draw_timeline(ax, 0.25, "two warpgroups, one stop: a round every {} cycles, cores {} busy", 128, 2, warpgroups=2)
    draw_key(ax, 1.85, "; B (darker): the second warpgroup")


@image("09_waits_and_away.png", 1.8)
def draw_waits_and_away(ax: Axes) -> None:
    """Two rounds of two warpgroups at best: each waits for its own matmuls, and is away while the other's run."""
    heading(ax, 0.1, 0.25, "D = 128 at best: each is away while the other's matmuls run")
    own, parts = 2 * matmul_cycles(128), (("waits", "blue", 0.6), ("away", "orange", 0.55))
    for c in range(2):
        y = 0.5 + c * (LANE + 0.1)
        note(ax, 0.1, y + LANE / 2, f"warpgroup {'AB'[c]}")
        for n in range(4):
            words, colour, share = parts[(n + c) % 2]
            span(ax, n * own, (n + 1) * own, y, f"{words}: {own:,}", colour=colour, share=share)
    bracket(ax, LANES_LEFT, LANES_LEFT + 2 * own * INCH, 1.38, f"a round: {2 * own:,} cycles", -0.08)


@image("09_overlapped.png", 4.1)
def draw_overlapped(ax: Axes) -> None:
    """The same for one warpgroup, D = 64 and 128, whose p v runs under the next block's softmax (9.3)."""
    for D, top in ((64, 0.25), (128, 1.8)):
        draw_timeline(ax, top, "one warpgroup, overlapped: a round every {} cycles, cores {} busy", D, overlap=True)
    draw_key(ax, 3.45)


def draw_timeline(ax: Axes, top: float, title: str, D: int, blocks: int = 3, warpgroups: int = 1, overlap: bool = False) -> None:
    """Two lanes, the tensor cores and the exponentials, with what is idle hatched."""
    each = cycles_per_round(D, warpgroups, overlap)
    busy = 4 * matmul_cycles(D) / each
    heading(ax, 0.1, top, f"D = {D}, " + title.format(f"{each:,.0f}", f"{busy:.0%}"))
    operations = timeline(D, warpgroups, overlap, blocks)
    end = max(op.end for op in operations)
    for lane, (unit, kinds) in enumerate((("tensor cores", ("s", "o")), ("exponentials", ("exp",)))):
        y, free = top + 0.25 + lane * (LANE + 0.08), 0
        note(ax, 0.1, y + LANE / 2, unit)
        for op in sorted((op for op in operations if op.kind in kinds), key=lambda op: op.start):
            if op.start > free:
                span(ax, free, op.start, y, **WAITS)
            look = LOOKS[op.kind] | ({"share": LOOKS[op.kind]["share"] + 0.25} if op.warpgroup else {})
            span(ax, op.start, op.end, y, f"{op.kind} {'AB'[op.warpgroup] if warpgroups > 1 else ''}{op.block}", **look)
            free = op.end
        if free < end:
            span(ax, free, end, y, **WAITS)
    y = top + 0.25 + 2 * (LANE + 0.08)
    for cycles in range(0, end + 1, 1024):
        ax.plot([LANES_LEFT + cycles * INCH] * 2, [y - 0.05, y + 0.02], color="black", linewidth=1)
        write(ax, LANES_LEFT + cycles * INCH, y + 0.13, f"{cycles:,}")


def span(ax: Axes, start: int, end: int, y: float, text: str = "", **look) -> None:
    box(ax, LANES_LEFT + start * INCH, y, (end - start) * INCH, LANE, text, **look)


def draw_key(ax: Axes, y: float, more: str = "") -> None:
    x = 0.1
    for kind, text in (("s", "q kᵀ of a block"), ("o", "p v of a block"), ("exp", "its exponentials"), ("", "idle")):
        box(ax, x, y, 0.45, 0.26, kind, **LOOKS.get(kind, WAITS))
        note(ax, x + 0.55, y + 0.13, text)
        x += 2.15
    note(ax, 0.1, y + 0.45, f"counted for {ROWS} rows and {KEYS} keys a block; numbers: blocks of keys{more}")


@image("09_turns.png", 2.2)
def draw_turns(ax: Axes) -> None:
    """Two consumers with two stops by turns, two blocks each, and who has the turn."""
    (p_v, q_k), softmax, rest = TWO_STOPS
    turn, period = p_v + GAP + q_k, p_v + GAP + q_k + softmax + rest
    heading(ax, 0.1, 0.25, f"two stops, by turns: by the model a round every {period:,.0f} cycles")
    for c in range(2):
        y = 0.5 + 0.75 * c
        note(ax, 0.1, y + LANE / 2, f"consumer {c}")
        for block in range(2):
            start = c * turn + block * period
            has = 0 if start == 0 else start - q_k - (not c) * (period - 2 * turn)  # since the other has issued its q kᵀ
            span(ax, has, start + p_v + GAP, y + LANE + 0.06, colour="black", share=0.85)
            ax.patches[-1].set_height(0.1)
            span(ax, start, start + p_v, y, f"p v {block}", **LOOKS["o"])
            span(ax, start + p_v, start + p_v + GAP, y, **WAITS)
            if not (c and block):  # there the picture ends
                span(ax, start + p_v + GAP, start + turn, y, f"q kᵀ {block + 1}", **LOOKS["s"])
            if not block:
                span(ax, start + turn, start + turn + softmax, y, f"softmax {block + 1}", **LOOKS["exp"])
    note(ax, 0.1, 2.02, "black: who has the turn. A turn begins before p v, and ends once the next q kᵀ is issued; hatched: the gap.")


@image("09_roles_and_ring.png", 5.6)
def draw_roles_and_ring(ax: Axes) -> None:
    """A producer warp, a ring of two stages in shared memory with its barriers, two consumer warpgroups."""
    for x, title in ((0.1, "producer: 1 warp"), (2.75, "shared memory: a ring of 2 stages"), (6.95, "2 consumers")):
        heading(ax, x, 0.25, title)
    box(ax, 0.1, 0.55, 1.75, 3.75, colour="sky", share=0.3)
    write(ax, 0.97, 1.2, "24 registers\na thread", linespacing=1.3)
    write(ax, 0.97, 2.45, "for each tile:\nwait for empty,\nannounce its bytes,\nask TMA for it", linespacing=1.4)
    for stage, y in ((0, 0.55), (1, 2.55)):
        box(ax, 2.75, y, 3.3, 1.75, colour="orange", share=0.12, line=1.4)
        box(ax, 2.95, y + 0.62, 2.9, 0.5, f"tiles {stage}, {stage + 2}, {stage + 4}, … of k and v", "orange", share=0.5)
        box(ax, 2.95, y + 0.1, 2.9, 0.4, f"full[{stage}]: 1 arrival + bytes", "green", share=0.35)
        box(ax, 2.95, y + 1.25, 2.9, 0.4, f"empty[{stage}]: 2 arrivals", "purple", share=0.35)
        arrow(ax, (1.85, y + 0.87), (2.95, y + 0.87), "black", width=2.2)
        arrow(ax, (6.95, y + 1.45), (5.85, y + 1.45), "purple")
        arrow(ax, (5.85, y + 0.3), (6.95, y + 0.3), "green")
        arrow(ax, (5.85, y + 0.87), (6.95, y + 0.87), "black", width=2.2)
        arrow(ax, (2.95, y + 1.45), (1.85, y + 1.45), "purple")
        write(ax, 2.35, y + 0.7, "TMA")
        write(ax, 6.4, y + 0.7, "wgmma")
    box(ax, 6.95, 0.55, 1.95, 3.75, colour="blue", share=0.1, line=1.4)
    for name, y in (("consumer 0", 0.65), ("consumer 1", 2.65)):
        box(ax, 7.05, y, 1.75, 1.55, colour="blue", share=0.3)
        write(ax, 7.92, y + 0.3, name, BODY, weight="bold")
        write(ax, 7.92, y + 0.95, "4 warps, 64 rows:\nm, l, acc in 240\nregisters a thread", linespacing=1.35)
    write(ax, 7.92, 2.425, "both read every tile")
    for y, colour, text in (
        (4.7, "green", "full: whoever loads arrives, both consumers wait, and then read the tile"),
        (5.05, "purple", "empty: each consumer arrives when it has read the tile, the producer waits, and then loads over it"),
    ):
        arrow(ax, (0.1, y), (0.6, y), colour)
        note(ax, 0.75, y, text)
    words = "thick arrows: data. The chapter's finished kernel has a ring for k, one for v, and a small one for each consumer's q."
    note(ax, 0.1, 5.4, words)


@image("09_phases.png", 4.35)
def draw_phases(ax: Axes) -> None:
    """The phases of stage 0's two barriers while the ring of two loads three tiles: who ends a phase, who waits for one."""
    full, empty = ring(stages=2)
    roles = {"producer": ring_producer(3, full, empty), "consumer": ring_consumer(3, full, empty)}
    events = [event for event in run(roles) if event.action.kind in ("wait", "arrive")]
    left, unit, tall, last = 1.0, 0.96, 0.5, 8
    heading(ax, 0.1, 0.25, "stage 0 of the ring: its barriers' phases, with their parities")
    for name, y, who, colour in (("full[0]", 1.1, "consumer", "green"), ("empty[0]", 2.85, "producer", "purple")):
        note(ax, 0.1, y + tall / 2, name, weight="bold")
        mine = [event for event in events if event.action.barrier.name == name]
        ends = [event.end for event in mine if event.action.kind == "arrive"]
        for phase, (start, end) in enumerate(zip([0, *ends], [*ends, last], strict=True)):
            text = f"phase {phase}: parity {phase % 2}" if end - start > 1 else f"{phase}"
            box(ax, left + start * unit, y, (end - start) * unit, tall, text, colour, share=0.2 + 0.25 * (phase % 2))
        for end, tile in zip(ends, (0, 2), strict=True):
            x = left + end * unit
            arrow(ax, (x, y + tall + 0.32), (x, y + tall), colour)
            write(ax, x, y + tall + 0.45, f"{'load' if name == 'full[0]' else 'use'} of tile {tile} ends: arrive", size=10)
        for event in mine:
            if event.action.kind == "wait":
                x = left + event.end * unit
                arrow(ax, (x, y - 0.3), (x, y), dashed=True)
                text, at = f"{who}'s wait({event.action.parity}) passes", {} if event.end else {"ha": "left"}
                write(ax, x if event.end else left - 0.3, y - 0.42, text, size=10, **at)
    note(ax, 0.1, 4.15, "wait(parity) passes while the current phase has the other parity. On a fresh barrier that is wait(1).")


@image("09_slices.png", 4.75)
def draw_slices(ax: Axes) -> None:
    """Which threads of warp 0 hold row 3 of s, its maximum, and row 3 of acc: layout, SliceLayout, and the other layout."""
    side, top, row, looks = 0.34, 1.05, 3, ({}, {"colour": "yellow", "share": 0.6})

    def tile(x: float, title: str, layout: str, columns: int) -> None:
        heading(ax, x, 0.25, title)
        note(ax, x, 0.55, layout, size=10)
        grid(ax, x, top, 8, columns, side, lambda r, c: {"text": f"{4 * r + c // 2 % 4}", "size": 9, **looks[r == row]})
        write(ax, x + columns * side + 0.16, top + 4 * side, "…")

    tile(0.1, "s, [64, 128]", "layout L", 8)
    heading(ax, 3.85, 0.25, "m, l, alpha, [64]")
    note(ax, 3.85, 0.55, "SliceLayout(1, L)", size=10)
    threads = lambda r, _: {"text": f"{4 * r}, {4 * r + 1}, {4 * r + 2}, {4 * r + 3}", "size": 9, **looks[r == row]}
    grid(ax, 3.85, top, 8, 1, 1.5, threads, side)
    tile(6.6, "acc, [64, D]", "layout O", 6)
    y = top + (row + 0.5) * side
    arrow(ax, (3.1, y), (3.85, y), width=2.2)
    write(ax, 3.47, y - 0.2, "max", size=10)
    arrow(ax, (5.35, y), (6.6, y), width=2.2)
    write(ax, 5.97, y - 0.2, "convert_layout", size=10)
    lines = (
        "numbers: the threads of warp 0 that hold an element; rows 0 to 7; yellow: row 3",
        "A row of s lies in four threads. After the maximum over columns, all four of them hold the result.",
        "At D = 64, O is another layout than L: its slice has the rows in the same threads, but it is another type.",
    )
    notes(ax, 0.1, top + 8 * side + 0.28, lines, step=0.29)


@image("09_persistent.png", 3.95)
def draw_persistent(ax: Axes) -> None:
    """Two work tiles on one multiprocessor: by a program each, and by one persistent program."""
    for title, top, load, tile in (
        ("a program for each work tile: the tensor cores idle while the next one starts and loads", 0.25, 4.3, 5.2),
        ("one persistent program: the next tiles are there, and o leaves in the background", 2.05, 2.5, 3.6),
    ):
        note(ax, 0.1, top, title, BODY, weight="bold")
        lanes = (
            ("loads", {"colour": "sky", "share": 0.45}, ((0.3, 0.9, "q, k, v"), (load, 0.9, "q, k, v"))),
            ("tensor cores", {"colour": "blue", "share": 0.45}, ((1.2, 2.2, "work tile 0"), (tile, 2.2, "work tile 1"))),
            ("stores", {"colour": "purple", "share": 0.35}, ((3.4, 0.6, "o"), (tile + 2.2, 0.6, "o"))),
        )
        box(ax, 1.3, top + 0.31 + LANE, 0.94 * tile, LANE, **WAITS)
        for lane, (name, look, spans) in enumerate(lanes):
            y = top + 0.25 + lane * (LANE + 0.06)
            note(ax, 0.1, y + LANE / 2, name)
            for start, length, text in spans:
                box(ax, 1.3 + start * 0.94, y, length * 0.94, LANE, text, **look)
    note(ax, 0.1, 3.75, "loads: of q, and the first of k and v; hatched: idle; the lengths are not measured")


@image("09_backward_roles.png", 6.75)
def draw_backward_roles(ax: Axes) -> None:
    """Who owns what in the backward: keys, dk and dv a consumer each, ds shared between them, parts of dq added up in global memory."""
    for x, title in ((0.1, "producer: 1 warp"), (2.45, "shared memory"), (6.25, "2 consumers")):
        heading(ax, x, 0.25, title)
    box(ax, 0.1, 0.55, 1.5, 1.75, "loads k and v\nonce, then\nblock after block\nof q and do", "sky")
    box(ax, 2.45, 0.55, 2.9, 0.65, "k, v: 128 keys, of both", "orange", share=0.5)
    box(ax, 2.45, 1.45, 2.9, 0.85, "q, do: 64 rows,\n2 stages", "blue", share=0.35)
    box(ax, 6.25, 0.55, 2.65, 5.0, colour="blue", share=0.1, line=1.4)
    for y in (0.87, 1.87):
        arrow(ax, (1.6, y), (2.45, y), width=2.2)
        arrow(ax, (5.35, y), (6.25, y), width=2.2)
        write(ax, 2.0, y - 0.17, "TMA")
    write(ax, 3.9, 2.62, "ds: [128, 64], 2 stages", weight="bold")
    write(ax, 3.9, 4.47, "a block of dq, float32", weight="bold")
    for name, y, ds_y, dq_x in (("consumer 0", 0.65, 2.8, 2.45), ("consumer 1", 3.15, 3.35, 3.9)):
        box(ax, 2.45, ds_y, 2.9, 0.55, f"{name}'s 64 rows", "yellow", share=0.5)
        box(ax, dq_x, 4.65, 1.45, 0.7, f"of {name}", "purple", share=0.35)
        box(ax, 6.35, y, 2.45, 2.3, colour="blue", share=0.25)
        write(ax, 7.57, y + 0.22, f"{name}: 64 keys", weight="bold")
        for x, text in ((6.45, "dk\n[64, D]"), (7.62, "dv\n[64, D]")):
            box(ax, x, y + 0.43, 1.08, 0.65, text, "green", share=0.45)
        box(ax, 6.45, y + 1.2, 2.25, 0.42, "s, p, dp, ds: [64, 64]", "yellow", share=0.3, size=10, dashed=True)
        box(ax, 6.45, y + 1.74, 2.25, 0.42, "a part of dq: [64, 64]", "purple", share=0.2, size=10, dashed=True)
    outline(ax, 2.45, 2.8, 2.9, 1.1)
    outline(ax, 2.45, 4.65, 2.9, 0.7)
    arrow(ax, (6.45, 2.06), (5.35, 3.0), "orange", width=2.2)
    arrow(ax, (6.45, 4.56), (5.35, 3.7), "orange", width=2.2)
    arrow(ax, (5.35, 3.35), (6.25, 3.05), "green", width=2.2)
    arrow(ax, (6.25, 5.0), (5.35, 5.0), "purple", width=2.2)
    box(ax, 0.1, 4.4, 1.5, 1.15, "dq in global\nmemory, float32:\nevery program\nadds to it", "purple", share=0.15)
    arrow(ax, (2.45, 5.0), (1.6, 5.0), "purple", width=2.2)
    write(ax, 2.02, 4.8, "TMA add", size=10)
    for y, colour, text in (
        (5.9, "orange", "hand over: each consumer writes its rows of ds, then arrives at ds_full"),
        (6.22, "green", "the meeting: each waits until ds_full has both arrivals, then reads all of ds for its part of dq"),
    ):
        arrow(ax, (0.1, y), (0.6, y), colour, width=2.2)
        note(ax, 0.75, y, text)
    note(ax, 0.1, 6.54, "solid: in registers for all blocks of q; dashed: in registers for one block")
