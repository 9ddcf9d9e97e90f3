"""The drawings of chapter 12."""

import math
import re
from collections import Counter

import torch
from matplotlib.axes import Axes

from draw.drawing import arrow, box, bracket, heading, image, legend, note, notes, number, outline, tint, write, writes
from draw.look import BODY, DARK, HEAD, SEEN, WAITS, WHOLE, WIDTH
from fa_tutorial.algorithm import causal_tiles
from fa_tutorial.exercises.chapter_12.ex_1 import PIECES, place
from fa_tutorial.exercises.chapter_12.ex_6 import lagging_step
from fa_tutorial.exercises.chapter_12.ex_7 import ruined
from fa_tutorial.reading import BLOCK_N


@image("12_kernel_lines.png", 3.05)
def draw_kernel_lines(ax: Axes) -> None:
    """The lines of FA2's forward kernel in their order, each in the colour of what it does."""
    # Lines of csrc/flash_attn/src/flash_fwd_kernel.h at v2.8.3: compute_attn_1rowblock's first line, and the first one after it.
    start, after = 51, 495
    # Each of these lines, read by hand: how many, and a letter of kinds. y: what flash_forward_kernel and attend do, too (tiles that are seen,
    # loads, (4.1) to (4.5), stores); f: dropout, soft cap, ALiBi, windows and lengths that vary; e: the early exit of a block of rows that sees
    # no key; d: lines that only declare or close something; t: what is left.
    lines = (
        "2d1.3d2.1t2.1t1.4t1.3f3.4f1.2f1.5y3.1y2.7e1.1e1.5e1.1e1.6e1.10e6.2f1.18t3f1.2t1.5t1.2t1.6t1.5t1.1f1.1t5.2t1.1t2.3t1.3t10"
        ".2t14.2t2.2t2.5t1d4.2y1t5.7t1d1.1y1.2y1t3.6t1d1.1y1.1y1.2f9.3y1t3y2t2.1t1y1t1.3y1d1t1.4y1.3f1.3y1.3t1y2.1t1d2.3y2.1y14f3"
        ".1t1.1y3.3t1d1y2.3y2t1y1t1.4y3f1.3t1y2.1t1d1.3y1.1y1.1y14f3.1t2y3.1y2.1y1t1.4t2.1t1.1t1.7t1.4t1.1t1.2t1.3t1.4t4y1d2.1t1."
        "5t1d1.3y1d"
    )
    kinds = {"y": ("as in yours", "black", 0.85), "t": ("tiles, copies, waits", "blue", 0.45), "f": ("features", "orange", 0.6),
             "e": ("early exit", "green", 0.4), "d": ("declarations, closing brackets", "purple", 0.4),
             ".": ("comments and blank lines", "black", 0.06)}  # fmt: skip
    # Its parts in their order: their first and last lines. The two loops go over blocks of keys.
    parts_of_kernel = ((52, 91, "bounds"), (92, 128, "early exit"), (138, 245, "each thread's shares"), (250, 281, "first copies"),
                       (302, 375, "loop with a mask"), (378, 429, "without"), (431, 494, "o and lse"))  # fmt: skip
    counts = {"y": 62, "t": 136, "f": 51, "e": 30, "d": 15, ".": 150}  # as the page has them
    left, wide, top, high = 0.15, WIDTH - 0.3, 1.17, 0.55
    per_line = wide / (after - start)
    letters = "".join(kind * int(times) for times, kind in re.findall(r"(\d+)(\D)", lines))
    assert len(letters) == after - start and Counter(letters) == counts
    at = lambda line: left + (line - start) * per_line
    for line, kind in enumerate(letters, start):
        ax.fill_between((at(line), at(line) + per_line), top, top + high, color=tint(*kinds[kind][1:]), linewidth=0)
    outline(ax, left, top, wide, high, line=1.0)
    for line in (start, *range(100, after, 50)):
        ax.plot([at(line)] * 2, (top + high, top + high + 0.07), color="black", linewidth=1.0)
        write(ax, at(line), top + high + 0.19, f"{line}")
    heading(ax, left, 0.2, "flash_fwd_kernel.h, line by line")
    for first, last, name in parts_of_kernel:
        bracket(ax, at(first), at(last + 1), top - 0.06)
        write(ax, at((first + last) // 2), top - 0.55, name)
        write(ax, at((first + last) // 2), top - 0.28, f"{first}–{last}", size=8.5)
    for n, (kind, (name, colour, share)) in enumerate(kinds.items()):
        x, y = (0.15, 1.95, 5.2)[n % 3], 2.3 + n // 3 * 0.4
        legend(ax, y, ((x, {"colour": colour, "share": share}, f"{counts[kind]} {name}"),))


@image("12_names.png", 2.75)
def draw_names(ax: Axes) -> None:
    """Five names of FA2's, each cut into its slots."""
    titles = ("one thread's share?", "for which copy or product", "where", "of which tensor", "transposed?")
    slot_names = (("gK", "", "", "g: global memory", "K: k", ""), ("tKgK", "t: yes", "K: the copy of k", "g: global memory", "K: k", ""),
                  ("tKsK", "t: yes", "K: the copy of k", "s: shared memory", "K: k", ""), ("tSrK", "t: yes", "S: s = q kᵀ", "r: registers", "K: k", ""),
                  ("tdVsPt", "t: yes", "dV: dv = pᵀ do", "s: shared memory", "P: p", "t: yes"))  # fmt: skip
    left, wide, high = (0.95, 2.75, 4.65, 6.3, 7.75), (1.75, 1.85, 1.6, 1.4, 1.1), 0.36
    for x, width, text in zip(left, wide, titles, strict=True):
        write(ax, x + width / 2, 0.25, text)
    for n, (name, *slots) in enumerate(slot_names):
        y = 0.5 + n * 0.43
        heading(ax, 0.1, y + high / 2, name)
        for x, width, text, colour in zip(left, wide, slots, ("black", "yellow", "sky", "orange", "purple"), strict=True):
            if text:
                box(ax, x, y, width - 0.05, high, text, colour, share=0.12 if colour == "black" else 0.4)


@image("12_two_loops.png", 7.9)
def draw_two_loops(ax: Axes) -> None:
    """The steps of attend beside those of FA2's loop, in the order of each, and which does which."""
    # A step: its text, and its colour, that of the tensor. Theirs have a line, and the number of the step of yours that they do.
    attend = (("load k", "orange"), ("q kᵀ", "yellow"), ("times scale", "yellow"), ("mask", "black"), ("softmax_step: m, alpha", "sky"), ("softmax_step: p, l", "sky"),
              ("acc · alpha", "purple"), ("load v", "green"), ("acc + p v", "purple"))  # fmt: skip
    theirs = (("305, 306", "wait: k is there, v was read", None, None), ("310, 317", "begin to copy v", "green", 7), ("319", "q kᵀ", "yellow", 1),
              ("328", "mask", "black", 3), ("332, 333", "wait: v is there, k was read", None, None), ("335, 338", "begin to copy the next k", "orange", 0))  # fmt: skip
    inside = (("148", "m", "sky", 4), ("157", "alpha", "sky", None), ("158", "l · alpha", "sky", None), ("160", "acc · alpha", "purple", 6),
              ("162", "times scale, and p", "sky", 5), ("165", "l plus the thread's own sum", "sky", None))  # fmt: skip
    last = (("347", "p in 16 bits", "sky", None), ("367", "acc + p v", "purple", 8))
    pitch, tall, wide_mine, yours_at, theirs_at, top, wide = 0.42, 0.34, 2.5, 0.2, 4.9, 0.55, 3.9
    # Where each step of yours stands, in rows of theirs: beside its like, where that hasn't moved.
    mine = [top + row * pitch for row in (0, 2, 2.95, 3.9, 8.1, 10.1, 11.1, 12.6, 15.4)]
    shares = {"black": 0.12, "sky": 0.45, "orange": 0.6}
    heading(ax, yours_at, 0.25, "yours: attend")
    heading(ax, theirs_at, 0.25, "theirs: lines 302 to 375")
    inside_top = top + (len(theirs) + 1.25) * pitch
    last_top = inside_top + (len(inside) + 1.15) * pitch
    for n, (text, colour) in enumerate(attend):
        box(ax, yours_at, mine[n], wide_mine, tall, text, colour, share=shares.get(colour, 0.4))
    outline(ax, theirs_at - 0.12, inside_top, wide + 0.02, (len(inside) + 0.95) * pitch, dashed=True, line=1.3)
    note(ax, theirs_at, inside_top + 0.2, "344: softmax_rescale_o, of softmax.h")
    for rows, start in ((theirs, top), (inside, inside_top + 0.85 * pitch), (last, last_top)):
        for n, (line, text, colour, step) in enumerate(rows):
            y = start + (n + 0.9 * (rows is theirs and n > 2)) * pitch  # a gap beside “times scale”
            box(ax, theirs_at + 0.8, y, wide - 1.05, tall, text, colour or "black", share=shares.get(colour, 0.4) if colour else 0.03)
            write(ax, theirs_at + 0.7, y + tall / 2, line, ha="right")
            if step is not None:
                moved = step in (0, 2, 7)
                ax.plot((yours_at + wide_mine + 0.05, theirs_at - (0.16 if rows is inside else 0.08)), (mine[step] + tall / 2, y + tall / 2),
                        color=tint(colour, 1) if moved else DARK, linewidth=2.8 if moved else 1, linestyle="-" if moved else ":")  # fmt: skip
    scale_to = inside_top + (0.85 + 4) * pitch + tall / 2  # the scale goes with p
    ax.plot((yours_at + wide_mine + 0.05, theirs_at - 0.16), (mine[2] + tall / 2, scale_to), color="black", linewidth=2.8)
    note(ax, yours_at, 7.65, "thick lines: what has moved; one dotted line for m and alpha, one for p and l; not drawn: 304 and 365")


@image("12_schedules.png", 3.95)
def draw_schedules(ax: Axes) -> None:
    """Two iterations of three schedules: which work hides which copy, and where the warps wait for one. Not to scale."""
    # A schedule -> how long the work waits after p v, and its copies: the place of each (k above v), its beginning in steps, its block.
    schedules = (
        ("FA2", 0.0, ((1, 0.0, "v[n]"), (0, 1.0, "k[n − 1]"), (1, 3.0, "v[n − 1]"), (0, 4.0, "k[n − 2]"))),
        ("yours,\n2 stages", 0.85, ((0, 3.0, "k[n + 1]"), (1, 3.0, "v[n + 1]"))),
        ("yours,\n3 stages", 0.0, ((0, 0.0, "k[n + 1]"), (1, 0.0, "v[n + 1]"), (0, 3.0, "k[n + 2]"), (1, 3.0, "v[n + 2]"))),
    )
    left, wide, long, lane = 1.75, 1.03, 0.85, 0.26
    looks = {"colour": "sky", "share": 0.5}, {"colour": "orange", "share": 0.8}, {"colour": "green", "share": 0.6}, WAITS
    for n, (name, idle, copies) in enumerate(schedules):
        top = 0.2 + n * 1.12
        note(ax, 0.05, top + 0.2, name, HEAD)
        for step, text in enumerate(("q kᵀ", "softmax", "p v") * 2):
            box(ax, left + (step + idle * (step > 2)) * wide, top, wide, 0.4, text, "sky", share=0.5)
        if idle:
            box(ax, left + 3 * wide, top, idle * wide, 0.4, **WAITS)
        for below, begin, text in copies:
            box(ax, left + begin * wide, top + 0.44 + below * lane, long * wide, lane, text, **looks[1 + below])
    note(ax, 0.05, 3.25, "time →, not to scale")
    words = "block n, and the next one", "copy of k", "copy of v", "waits for the copies"
    legend(ax, 3.72, tuple(zip((0.1, 3.3, 4.95, 6.6), looks, words, strict=True)))


@image("12_lost_barrier.png", 4.2)
def draw_lost_barrier(ax: Axes) -> None:
    """The first products of two warps without each barrier, and what each half of the buffer that they read holds then."""
    # A barrier -> what the first products read without it, in their order: who multiplies, what, and both halves of the buffer, with what is
    # wrong with them.
    lost = {
        306: (("first warp", "q kᵀ of block 2", ("k[2]", ""), "the other half isn't there yet"),
              ("second warp", "q kᵀ of block 2", ("k[2]", "k[2]"), ""),
              ("first warp", "p v of block 2", ("v[2]", "v[2]"), ""),
              ("first warp", "q kᵀ of block 1", ("k[1]", "k[2]"), "the other half is still the old one"),
              ("second warp", "p v of block 2", ("v[1]", "v[2]"), "the first warp's copy came too early")),
        333: (("first warp", "q kᵀ of block 2", ("k[2]", "k[2]"), ""),
              ("first warp", "p v of block 2", ("v[2]", ""), "the other half isn't there yet"),
              ("second warp", "q kᵀ of block 2", ("k[1]", "k[2]"), "the first warp's copy came too early")),
    }  # fmt: skip
    y = 0.2
    for barrier, products in lost.items():
        for x, name in ((0.1, f"without {barrier}"), (1.55, "computes"), (3.4, "from a tile's halves"), (5.75, "what is wrong")):
            heading(ax, x, y, name)
        y += 0.25
        for who, what, halves, harm in products:
            note(ax, 0.1, y + 0.16, who, BODY)
            note(ax, 1.55, y + 0.16, what, BODY)
            for half, text in enumerate(halves):
                look = {"colour": "orange" if what.startswith("q") else "green", "share": 0.5 if text else 0.0}
                box(ax, 3.4 + 1.1 * half, y, 1.1, 0.32, text or "NaN", **look)
            note(ax, 5.75, y + 0.16, harm)
            y += 0.41
        y += 0.25


PIECE_LOOKS = {"colour": "sky", "share": 0.2}, {"colour": "orange", "share": 0.7}  # of one, and of the one that is marked


@image("12_banks.png", 3.4)
def draw_banks(ax: Axes) -> None:
    """Eight rows of a tile in shared memory, each in the same 32 banks, and the piece of each that is read together."""
    draw_pieces(ax, "eight rows of a tile, one below the other", swizzled=False)
    note(ax, 4.75, 0.65, "32 banks: 4 bytes of each in an access")
    notes(ax, 4.75, 1.1, ("a row: 64 elements, 128 bytes, all 32 banks", "a piece: 8 elements, 16 bytes, 4 banks"), step=0.3)
    notes(ax, 4.75, 2.15, ("orange: what ldmatrix reads together.", "All of it lies in banks 12 to 15: eight accesses"), step=0.3)


@image("12_swizzle.png", 3.4)
def draw_swizzle(ax: Axes) -> None:
    """Eight rows of a tile in shared memory, swizzled: in which banks each piece of a row lies."""
    draw_pieces(ax, "the same rows, swizzled", swizzled=True)
    notes(ax, 4.75, 1.1, ("each row has an order of its own:", "piece c of row r stands at place c ^ (r % 8)"), step=0.3)
    notes(ax, 4.75, 2.15, ("orange: what ldmatrix reads together.", "It lies in all 32 banks: one access"), step=0.3)


def draw_pieces(ax: Axes, title: str, swizzled: bool) -> None:
    """Eight rows of eight pieces over their banks, with one piece of each marked."""
    PIECE = 3  # the piece of each row that is marked: eight columns in fp16, 16 bytes, four banks
    left, wide, high, top = 0.75, 0.43, 0.3, 0.95
    heading(ax, left, 0.2, title)
    write(ax, left - 0.1, 0.65, "bank", ha="right")
    writes(ax, left, 0.65, range(0, 32, 4), dx=wide, ha="left")
    for row in range(PIECES):
        y = top + row * high
        write(ax, left - 0.1, y + high / 2, f"row {row}", ha="right")
        for piece in range(PIECES):
            x = left + (place(row, piece) if swizzled else piece) * wide
            box(ax, x, y, wide, high, f"{piece}", **PIECE_LOOKS[piece == PIECE])


def lane_of(row: int, column: int) -> int:
    """Which thread of a warp holds an element of c, of 16 x 8, and which one of a, of 16 x 16, by mma.sync.m16n8k16."""
    return row % 8 * 4 + column % 8 // 2


@image("12_registers.png", 3.8)
def draw_registers(ax: Axes) -> None:
    """Which thread of a warp holds which of 16 x 16 scores, and which thread must hold them as p for the next product."""
    shown_rows, shown = (0, 1, 2, None, 8, 9, 10), 5  # None: rows that aren't drawn
    colours, wide, high, top = ("sky", "orange", "green", "purple"), 0.44, 0.32, 0.95
    for left, name, pieces in ((0.85, "acc_s: what q kᵀ leaves", (0, 4)), (5.3, "p: what p v wants as its A", (0,))):
        heading(ax, left, 0.22, name)
        write(ax, left - 0.1, 0.75, "column", ha="right")
        writes(ax, left + 0.5 * wide, 0.75, [f"{2 * pair}, {2 * pair + 1}" for pair in range(8)], dx=wide, size=8.5)
        for n, row in enumerate(shown_rows):
            y = top + n * high
            if row is None:
                for pair in (2, 6):
                    write(ax, left + pair * wide, y + high / 2, "⋮")
                continue
            write(ax, left - 0.1, y + high / 2, f"row {row}", ha="right")
            for pair in range(8):
                lane = lane_of(row, 2 * pair)
                assert lane == lane_of(row, 2 * pair + 1)
                box(ax, left + pair * wide, y, wide, high, f"{lane}", colours[lane % 4], share=0.3 + 0.5 * (lane == shown))
                if lane == shown:
                    outline(ax, left + pair * wide + 0.03, y + 0.03, wide - 0.06, high - 0.06, line=1.5)
        for pair in pieces:
            outline(ax, left + pair * wide, top, 8 * wide / len(pieces), len(shown_rows) * high, line=2.5)
    note(ax, 0.85, 3.4, f"a number: the thread of the warp; framed: thread {shown}; a colour: one of the four threads that share a row")
    note(ax, 0.85, 3.65, "left: two results of 16 x 8 side by side; right: one operand of 16 x 16")


ROWS_OF_LOOP, OFFSETS = 32, (48, 52, 63)  # of the chapter's loop; S_k − S_q: the first key of a block, one inside, the last


@image("12_masked_blocks.png", 3.3)
def draw_masked_blocks(ax: Axes) -> None:
    """32 rows over the last blocks of 16 keys: the diagonal from a block's first key, from one inside, and from its last."""
    side, top, first = 0.044, 0.95, 32  # `first`: the first key that is drawn
    for column, offset in enumerate(OFFSETS):
        left, S_k = 0.1 + 2.95 * column, offset + ROWS_OF_LOOP
        full, end = causal_tiles(0, ROWS_OF_LOOP, BLOCK_N, ROWS_OF_LOOP, S_k)
        heading(ax, left, 0.2, f"S_k − S_q = {offset}")
        note(ax, left, 0.5, f"{S_k} keys: {end - full} blocks need a mask")
        for block in range(first // BLOCK_N, end):
            x, wide = left + (block * BLOCK_N - first) * side, min(BLOCK_N, S_k - block * BLOCK_N) * side
            box(ax, x, top, wide, ROWS_OF_LOOP * side, **(WHOLE if block < full else SEEN))
            note(ax, x, top - 0.17, f"{block * BLOCK_N}")
            for row in range(ROWS_OF_LOOP):
                after = max(offset + row + 1, block * BLOCK_N)  # the first key that is hidden
                if after < min((block + 1) * BLOCK_N, S_k):
                    x_hidden = left + (after - first) * side
                    ax.fill_between((x_hidden, x + wide), top + row * side, top + (row + 1) * side, color="white", alpha=0.8, linewidth=0)
            outline(ax, x, top, wide, ROWS_OF_LOOP * side, line=1.3)
    note(ax, 0.1, 2.57, f"32 queries ↓, keys from {first} on →")
    hidden = {"colour": "orange", "share": 0.15}, "needs a mask: hidden"
    legend(ax, 3.0, ((0.1, WHOLE, "whole: no mask"), (2.6, SEEN, "needs a mask: seen"), (5.4, *hidden)))


@image("12_before_key_0.png", 2.8)
def draw_before_key_0(ax: Axes) -> None:
    """Rows 0 to 31 of 62 over the block of keys before key 0, which is all that their loop reads if S_k is 30."""
    S_q, S_k, side, left, top, hidden = 62, 30, 0.062, 1.05, 0.65, {"colour": "black", "share": 0.0}
    wrong = ruined(S_q, S_k)
    note(ax, left, 0.2, "keys", ha="right")
    note(ax, left + 2 * BLOCK_N * side + 0.4, 0.2, f"S_q = {S_q}, S_k = {S_k}")
    writes(ax, left, 0.45, [number(key) for key in (-BLOCK_N, 0, BLOCK_N)], dx=BLOCK_N * side)
    for row in range(ROWS_OF_LOOP):
        seen = row + S_k - S_q + 1 + BLOCK_N  # of the 16 keys before key 0, those up to the diagonal
        y = top + row * side
        if row in wrong:
            ax.fill_between((left, left + seen * side), y, y + side, color=tint("orange", 0.8), linewidth=0)
    for row in (0, wrong[0], ROWS_OF_LOOP - 1):
        write(ax, left - 0.1, top + (row + 0.5) * side, f"row {row}", ha="right")
    box(ax, left + BLOCK_N * side, top, BLOCK_N * side, ROWS_OF_LOOP * side, colour="black", share=0.06)
    outline(ax, left, top, BLOCK_N * side, ROWS_OF_LOOP * side)
    outline(ax, left + BLOCK_N * side, top, BLOCK_N * side, ROWS_OF_LOOP * side, line=1.3)
    write(ax, left + BLOCK_N * side / 2, top + 8 * side, "hidden by\nthe mask")
    middle, x = top + ROWS_OF_LOOP * side / 2, left + 2 * BLOCK_N * side + 0.4
    for n, (look, text) in enumerate((
        (hidden, "block −1, in the thick frame: all that the loop reads"),
        ({"colour": "orange", "share": 0.8}, "the mask hides keys after the diagonal alone, so these stay"),
        ({"colour": "black", "share": 0.06}, "block 0: after the diagonal in each row, and never read"),
    )):  # fmt: skip
        legend(ax, middle + (n - 1) * 0.45, ((x, look, text),))


@image("12_lagging_shift.png", 4.45)
def draw_lagging_shift(ax: Axes) -> None:
    """A row's shift over three blocks, on a line of scores: set by the first, kept in the second, moved in the third."""
    threshold = 8  # FA4's for fp16 and bf16
    # Three blocks of one row: its scores, and what lagging_step does with the shift.
    blocks = (
        ((-1.5, 0.4, 1.1, 2.0), "the first block:", "the shift becomes m = 2"),
        ((-0.8, 2.9, 4.2, 6.0), "exp(4) = 55 ≤ 2⁸:", "the shift stays, alpha = 1"),
        ((1.3, 5.0, 7.3, 9.0), "exp(7) = 1,097 > 2⁸:", "it moves to 9, alpha = exp(−7)"),
    )
    left, per_score, top, apart, room = 1.2, 0.44, 1.0, 1.05, threshold * math.log(2)
    at = lambda score: left + (score + 2) * per_score
    write(ax, at(2) + room * per_score / 2, 0.25, "the shift stays while m is in the blue band: p ≤ 2⁸")
    shift = -math.inf
    for n, (scores, first, second) in enumerate(blocks):
        y, before = top + n * apart, shift
        shift = lagging_step(torch.tensor([scores]), torch.tensor([shift]), torch.zeros(1), threshold)[1].item()
        heading(ax, 0.1, y, f"block {n + 1}")
        if before > -math.inf:
            box(ax, at(before), y - 0.26, room * per_score, 0.52, colour="sky", share=0.45)
        ax.plot((at(-2), at(9.5)), (y, y), color=DARK, linewidth=1, zorder=2)
        ax.plot([at(score) for score in scores], [y] * len(scores), "o", color=tint("orange", 1), markersize=8, zorder=3)
        write(ax, at(max(scores)), y - 0.37, f"m = {max(scores):g}")
        ax.plot([at(shift)] * 2, (y - 0.26, y + 0.26), color="black", linewidth=3.5, zorder=2.6)
        if before not in (-math.inf, shift):
            arrow(ax, (at(before) + 0.03, y + 0.26), (at(shift) - 0.03, y + 0.26), dashed=True)
        note(ax, at(9.5) + 0.15, y - 0.12, first)
        note(ax, at(9.5) + 0.15, y + 0.14, second)
    y = top + 2 * apart + 0.5
    writes(ax, at(-2), y, [number(score) for score in range(-2, 10)], dx=per_score)
    y += 0.55
    ax.plot((0.25, 0.25), (y - 0.14, y + 0.14), color="black", linewidth=3.5)
    note(ax, 0.45, y, "shift after the block")
    ax.plot((2.85,), (y,), "o", color=tint("orange", 1), markersize=8)
    note(ax, 3.05, y, "a score")
    legend(ax, y, ((4.4, {"colour": "sky", "share": 0.45}, f"from the old shift to {threshold} · ln 2 = {room:.1f} above it"),))


@image("12_fa3_step.png", 6.3)
def draw_fa3_step(ax: Axes) -> None:
    """The calls of FA3's step beside FA2's lines for the same, which matmul may run during which, and which calls must wait for p v."""
    # (call of fwd_step, what it does, the lines of FA2's loop and of its softmax that do it there), in their order; and from which line to
    # which something is under way.
    fwd_step = (("consumer_wait", "wait until k has arrived", "305, 306"), ("warp_scheduler_barrier_sync", "wait for the turn", ""),
                ("gemm", "issue q kᵀ of block n", "319"), ("consumer_wait", "wait until v has arrived", "332, 333"),
                ("gemm", "issue p v of block n + 1", "367"), ("warp_scheduler_barrier_arrive", "pass the turn on", ""), ("warpgroup_wait<1>", "wait for q kᵀ", ""),
                ("consumer_release", "give k's buffer back", "333"), ("mask_fn", "mask s", "328"), ("max_get_scale", "m and alpha, l · alpha", "148–158"),
                ("online_softmax", "p, and l plus its sum", "162, 165"), ("warpgroup_wait<0>", "wait for p v", ""),
                ("consumer_release", "give v's buffer back", "306"), ("convert_type_out", "p to 16 bits", "347"), ("rescale_o", "acc · alpha", "160"))  # fmt: skip
    meets = ("give v's buffer back", "p to 16 bits", "acc · alpha")  # what p v, still under way, would meet
    under_way = (("the turn", 1, 5, "black", 0.15), ("q kᵀ of\nblock n", 2, 6, "yellow", 0.5), ("p v of\nblock n + 1", 4, 11, "green", 0.4))
    top, high, lines, does_at, way_at = 0.55, 0.35, 0.95, 3.8, 5.95
    for x, name in ((0.15, "in FA2"), (lines, "fwd_step calls"), (does_at, "to"), (way_at, "what may be under way")):
        heading(ax, x, 0.25, name)
    for n, (call, does, line) in enumerate(fwd_step):
        y = top + n * high
        if call in ("max_get_scale", "online_softmax") or does in meets:
            look = {"colour": "orange", "share": 0.4} if does in meets else {"colour": "sky", "share": 0.3}
            box(ax, 0.02, y, WIDTH - 0.04, high, **look)
        colour = "dimgrey" if call == "consumer_wait" else "black"
        write(ax, lines - 0.1, y + high / 2, line, ha="right")
        note(ax, lines, y + high / 2, call, family="DejaVu Sans Mono", color=colour)
        note(ax, does_at, y + high / 2, does, BODY, color=colour)
    for n, (name, first, last, colour, share) in enumerate(under_way):
        y = top + (first + 0.5) * high
        box(ax, way_at + n, y, 0.95, (last - first) * high, name, colour, share=share)
    note(ax, 0.15, 6.05, "blue: the softmax; orange: calls that change what p v reads or writes; grey: waits for the producer")


@image("12_fa4_warps.png", 5.65)
def draw_fa4_warps(ax: Axes) -> None:
    """FA4's warps around shared and tensor memory: who writes the scores, p and acc, who takes acc out to rescale it, and where o leaves."""
    left, part, high, warps = 1.3, 1.9, 0.62, {"colour": "black", "share": 0.08}
    heading(ax, 0.1, 0.42, "shared\nmemory")
    box(ax, left, 0.15, 2 * part - 0.1, 0.55, "q, k and v", "sky", share=0.35)
    box(ax, left + 2.4 * part, 0.15, 1.6 * part - 0.1, 0.55, "warp 13 loads them", **warps)
    arrow(ax, (left + 2.4 * part, 0.42), (left + 2 * part - 0.1, 0.42))
    box(ax, left, 1.2, 4 * part - 0.1, 0.45, "tensor cores: warp 12 issues both matmuls", **warps)
    arrow(ax, (left + part, 0.7), (left + part, 1.2))
    heading(ax, 0.1, 2.75, "tensor\nmemory")
    for n, name in enumerate(("s and p\ntile 0", "s and p\ntile 1", "acc\ntile 0", "acc\ntile 1")):  # of tensor memory
        x = left + n * part
        box(ax, x, 2.45, part - 0.1, high, name, "yellow" if n < 2 else "purple", share=0.4)
        if n < 2:
            arrow(ax, (x + 0.5, 1.65), (x + 0.5, 2.45))
            note(ax, x + 0.6, 1.95, "q kᵀ")
            arrow(ax, (x + 1.25, 2.45), (x + 1.25, 1.65))
            note(ax, x + 1.35, 1.95, "p")
            box(ax, x, 3.85, part - 0.1, 0.55, f"softmax:\nwarps {4 * n} to {4 * n + 3}", **warps)
            arrow(ax, (x + 0.5, 2.45 + high), (x + 0.5, 3.85))
            arrow(ax, (x + 1.1, 3.85), (x + 1.1, 2.45 + high))
            write(ax, x + 0.42, 3.45, "s", ha="right")
            note(ax, x + 1.2, 3.45, "p")
        else:
            arrow(ax, (x + 0.9, 1.65), (x + 0.9, 2.45))
            note(ax, x + 1.0, 1.95, "p v")
            arrow(ax, (x + 0.5, 2.45 + high), (x + 0.5, 3.85), "vermilion", width=3)
            arrow(ax, (x + 0.9, 3.85), (x + 0.9, 2.45 + high), "vermilion", width=3)
            write(ax, x + 0.42, 3.45, "acc", ha="right")
            note(ax, x + 0.98, 3.45, "· alpha")
    box(ax, left + 2 * part, 3.85, 2 * part - 0.1, 0.55, "correction: warps 8 to 11", **warps)
    for n in range(2):
        ax.plot([left + (n + 0.5) * part] * 2, (4.4, 4.7), color="black", linewidth=1.6)
    ax.plot((left + 0.5 * part, left + 3 * part), (4.7, 4.7), color="black", linewidth=1.6)
    arrow(ax, (left + 3 * part, 4.7), (left + 3 * part, 4.4))
    write(ax, left + 1.75 * part, 4.88, "alpha, through shared memory")
    arrow(ax, (left + 3.5 * part, 4.4), (left + 3.5 * part, 4.95))
    write(ax, left + 4 * part - 0.1, 5.13, "after the last block: lse, and o to warp 14", ha="right")
    notes(ax, 0.1, 5.13, ("thick: what FA4 often leaves out",
                          "two tiles of q: the tensor cores multiply for one while the softmax of the other runs"), step=0.32)  # fmt: skip
