"""The drawings of chapter 14."""

import torch
from matplotlib.axes import Axes

from draw.drawing import arrow, box, grid, heading, image, legend, note, outline, sample, write
from draw.look import BODY, HEAD, MASKED
from fa_tutorial.bench import chapter_14, results
from fa_tutorial.figures import COLOURS
from fa_tutorial.fp8 import key_order, tensor_core_sum
from fa_tutorial.fp8.model import KEPT_BITS

THREADS = ("blue", "orange", "green", "purple")  # of four neighbouring threads
KEYS = 16


def held_by(key: int) -> int:
    """The thread that holds this key's p after q kᵀ."""
    return key % 8 // 2


@image("14_key_order.png", 5.15)
def draw_key_order(ax: Axes) -> None:
    """One row of p: which thread holds which key, and reads which in fp16 and in e4m3; question marks for the order in which both agree."""
    cell, left = 0.43, 1.95
    heading(ax, 0.1, 0.25, "one row of p, 16 keys, and the four threads that hold it")
    draw_row(ax, 0.55, "q kᵀ leaves\nkey", range(KEYS), held_by)
    draw_row(ax, 1.25, "fp16:\np v reads key", range(KEYS), held_by)
    draw_row(ax, 2.5, "e4m3:\np v reads key", range(KEYS), lambda position: position // 4)
    for key in range(KEYS):
        x = left + (key + 0.5) * cell
        if held_by(key) != key // 4:
            arrow(ax, (x, 1.77), (x, 2.48), "vermilion", dashed=True)
    note(ax, 0.1, 3.27, "dashed: 12 of the 16 keys change colour, so their p would have to move to another thread", BODY)
    draw_row(ax, 3.7, "e4m3, your order:\np v reads key", "?" * KEYS, lambda position: position // 4)
    draw_threads(ax, 4.75)


@image("14_quantiser.png", 5.0)
def draw_quantiser(ax: Axes) -> None:
    """16 of v's keys as rows, and the same keys as columns of y in key order, above the p that meets each column."""
    order = [key_order(position) for position in range(KEYS)]
    assert all(held_by(key) == position // 4 for position, key in enumerate(order))
    write(ax, 1.05, 0.25, "v: a key is a row", HEAD, weight="bold")
    grid(ax, 0.5, 0.5, KEYS, 1, 1.1, lambda key, _: {"text": f"{key}", "colour": THREADS[held_by(key)], "share": 0.45}, 0.22)
    write(ax, 1.05, 4.22, "D numbers in a row")
    arrow(ax, (1.7, 1.5), (3.7, 1.5), "vermilion")
    write(ax, 2.7, 1.05, "scaled, in e4m3,\ntransposed,\nin key order")
    left, side = 3.85, 0.31
    write(ax, left + 8 * side, 0.25, "y: a key is a column", HEAD, weight="bold")
    for position, key in enumerate(order):
        box(ax, left + position * side, 0.5, side, 1.9, f"{key}", THREADS[position // 4], share=0.45)
        box(ax, left + position * side, 3.0, side, 0.55, f"{key}\nt{position // 4}", THREADS[position // 4], share=0.45)
        write(ax, left + (position + 0.5) * side, 2.58, f"{position}", BODY - 2)
    write(ax, left - 0.1, 2.58, "position", ha="right")
    write(ax, left - 0.1, 3.27, "p v reads\np of key", ha="right")
    write(ax, left + 8 * side, 3.85, "p stays in its thread, and meets its own key")
    draw_threads(ax, 4.65)


def draw_threads(ax: Axes, y: float) -> None:
    """The colour of each thread."""
    looks = [(0.15 + 1.55 * c, {"colour": colour, "share": 0.45}, f"t{c}, thread {c}") for c, colour in enumerate(THREADS)]
    legend(ax, y, tuple(looks))
    note(ax, 6.3, y, "t: the thread that holds or reads it")


def draw_row(ax: Axes, y: float, text: str, keys, thread_of) -> None:
    """A row of 16 keys; thread_of: (place) -> the thread whose colour it has."""
    write(ax, 1.85, y + 0.25, text, BODY, ha="right")
    look = [{"text": f"{key}\nt{thread_of(i)}", "colour": THREADS[thread_of(i)], "share": 0.45} for i, key in enumerate(keys)]
    grid(ax, 1.95, y, 1, KEYS, 0.43, lambda _, i: look[i], 0.5)


@image("14_one_block.png", 4.6)
def draw_one_block(ax: Axes) -> None:
    """A block of 128 keys at one consumer: shapes, formats, and where each sum is made."""
    eight, wide = {"colour": "sky", "share": 0.45}, {"colour": "yellow", "share": 0.5}
    box(ax, 0.1, 0.55, 0.95, 0.75, "q\n[64, D]", **eight)
    box(ax, 0.1, 1.75, 0.95, 0.75, "k\n[128, D]", **eight)
    box(ax, 1.6, 1.15, 1.05, 0.75, "s\n[64, 128]", **wide)
    box(ax, 3.45, 1.15, 1.05, 0.75, "p · 2⁸\n[64, 128]", **eight)
    box(ax, 3.45, 0.1, 1.05, 0.6, "ones\n[8, 128]", **eight)
    box(ax, 3.45, 2.4, 1.05, 0.75, "vᵀ\n[D, 128]", **eight)
    box(ax, 5.25, 0.35, 1.05, 0.75, "new_l\n[64, 8]", **wide)
    box(ax, 5.25, 1.95, 1.05, 0.75, "new\n[64, D]", **wide)
    box(ax, 7.75, 0.35, 1.1, 0.75, "l\n[64]", **wide)
    box(ax, 7.75, 1.95, 1.1, 0.75, "acc\n[64, D]", **wide)
    for start, end in (((1.07, 0.95), (1.58, 1.4)), ((1.07, 2.1), (1.58, 1.65)), ((4.52, 1.4), (5.23, 0.9)), ((4.52, 0.4), (5.23, 0.6)),
                       ((4.52, 1.65), (5.23, 2.15)), ((4.52, 2.75), (5.23, 2.45))):  # fmt: skip
        arrow(ax, start, end, "blue")
    for start, end in (((2.67, 1.52), (3.43, 1.52)), ((6.32, 0.72), (7.73, 0.72)), ((6.32, 2.32), (7.73, 2.32))):
        arrow(ax, start, end, "vermilion")
    write(ax, 3.05, 2.1, "exp2,\nround,\nreorder")
    write(ax, 5.78, 1.52, "both from 0:\na chain is a block")
    write(ax, 7.02, 0.4, "alpha · l + a\nnew column")
    write(ax, 7.02, 2.0, "acc rescaled,\n+ new")
    write(ax, 8.3, 1.52, "sums of blocks,\nin float32")
    note(ax, 0.1, 3.45, "q, k and v: one scale for 128 rows", BODY)
    note(ax, 0.1, 3.8, "in shared memory: q, k, vᵀ and the ones (8 equal rows, a wgmma's least); all else lies in registers", BODY)
    legend(ax, 4.2, ((0.15, eight, "e4m3, 8 bits"), (2.0, wide, "float32")))
    sample(ax, 3.55, 4.2, "tensor cores", "blue", long=0.5)
    sample(ax, 5.65, 4.2, "all other units", "vermilion", long=0.5)


@image("14_cut.png", 3.05)
def draw_cut(ax: Axes) -> None:
    """The sum so far and two products in binary, one below the other: the columns that are kept, and the bits that are cut off."""
    factors, acc, leading, least = ((1.125, 1.125), (0.140625, 0.40625)), 300.5, 8, -11
    last = leading - (KEPT_BITS - 1)
    kept = [2.0**last * int(a * b / 2.0**last) for a, b in factors]
    a, b = torch.tensor(factors, dtype=torch.float64).T[:, None]
    assert tensor_core_sum(a, b, torch.tensor([[acc]], dtype=torch.float64)).item() == acc + sum(kept)
    left, side = 2.55, 0.315
    for power in range(leading, least - 1, -1):
        if (power % 4 == 0 and power != last + 1) or power == last:
            write(ax, left + (leading - power + 0.5) * side, 0.62, f"$2^{{{power}}}$")
    write(ax, left + 7 * side, 0.25, f"{KEPT_BITS} bits are kept", BODY)
    write(ax, left + 17 * side, 0.25, f"cut off, {sum(a * b for a, b in factors) - sum(kept):.2g} in all", BODY)
    names = (f"the sum so far, {acc:g}", *(f"a product, {a * b:.5g}" for a, b in factors), f"the new sum, {acc + sum(kept):.5g}")
    for row, (name, value) in enumerate(zip(names, (acc, *(a * b for a, b in factors), acc + sum(kept)), strict=True)):
        y = 0.8 + row * 0.5 + 0.12 * (row == 3)
        write(ax, left - 0.15, y + side / 2, name, BODY, ha="right")
        for power in range(leading, least - 1, -1):
            bit, x = int(value / 2.0**power) % 2, left + (leading - power) * side
            blank = value < 2.0**power or not value % 2.0 ** (power + 1)
            look = {"colour": "sky", "share": 0.5} if power >= last else {"colour": "vermilion", "share": 0.35, "hatch": MASKED}
            box(ax, x, y, side, side, "" if blank else str(bit), **({} if blank else look))
    outline(ax, left, 0.72, KEPT_BITS * side, 2.1)


@image("14_leading_bit.png", 3.3)
def draw_leading_bit(ax: Axes) -> None:
    """A sum of one sign as it grows, and below it the staircase of its leading bit, whose last step is as wide as all before; and the mean of each."""
    left, wide, bottom, high, end = 0.9, 5.4, 2.65, 2.3, 16
    place = lambda products, value: (left + wide * products / end, bottom - high * value / end)
    arrow(ax, place(0, 0), (left + wide + 0.25, bottom), "black")
    arrow(ax, place(0, 0), (left, 0.15), "black")
    for low in (1, 2, 4, 8):
        (x, y), (right, _) = place(low, low), place(2 * low, low)
        box(ax, x, y, right - x, bottom - y, colour="sky", share=0.45)
    ax.plot(*zip(place(0, 0), place(end, end), strict=True), color=COLOURS["vermilion"], linewidth=2.5)
    write(ax, *place(5.2, 10), "the sum so far", BODY, color=COLOURS["vermilion"])
    write(ax, *place(12, 4), "its leading bit", BODY)
    for n in range(1, 5):
        write(ax, left - 0.12, place(0, 2**n)[1], f"$2^{{{n}}}$", ha="right")
    write(ax, left + wide / 2, 2.95, "products added so far", BODY)
    for value, words, colour in ((end / 2, "the sum: 1/2 of its end", "vermilion"), (end / 3, "its leading bit: 1/3", "blue")):
        (x, y), right = place(0, value), left + wide + 0.25
        ax.plot([x, right], [y, y], color=COLOURS[colour], linestyle=(0, (4, 3)), linewidth=1.5)
        write(ax, right + 0.1, y, words, BODY, ha="left", color=COLOURS[colour])
    write(ax, left + wide + 0.35, place(0, 10.6)[1], "On average:", BODY, ha="left")


@image("14_twice.png", 4.75)
def draw_twice(ax: Axes) -> None:
    """A block's cycles in fp16 and in FP8: tensor cores and exponentials in turn, side by side, and as an H200 counted them."""
    left, cycle = 1.75, 5.1 / 1536
    tensor, exponentials = {"colour": "sky", "share": 0.6}, {"colour": "orange", "share": 0.45}
    for top, words, start, half, middle, gain in (
        (0.3, "in turn", 1, 0.3, 0.15, "1,536 / 1,024:\n1.5 times as fast"),
        (1.5, "side by side", 0, 0.2, 0.2, "1,024 / 512:\n2 times as fast"),
    ):
        note(ax, 0.1, top + 0.45, words, BODY)
        note(ax, 7.0, top + 0.45, gain, BODY)
        for row, (name, matmuls) in enumerate((("fp16", 1024), ("FP8", 512))):
            y = top + 0.55 * row
            write(ax, left - 0.1, y + middle, name, BODY, ha="right")
            box(ax, left, y, matmuls * cycle, half, f"{matmuls:,}", **tensor)
            box(ax, left + start * matmuls * cycle, y + (0 if start else half), 512 * cycle, half, "512", **exponentials)
    h200 = results.load("h200")
    fp16, whole, *cuts = (chapter_14.cycles_of_a_block(h200, part) for part in chapter_14.PARTS)
    found = [whole - cut for cut in cuts]
    rest, joins, sums = {"hatch": MASKED}, {"colour": "green", "share": 0.45}, {"colour": "purple", "share": 0.45}
    note(ax, 0.1, 3.15, "on an H200", BODY)
    note(ax, 7.0, 3.15, f"{fp16:,} / {whole:,}:\n{fp16 / whole:.2f} times as fast", BODY)
    for row, (name, pieces) in enumerate((
        ("fp16", ((1024, tensor), (fp16 - 1024, rest))),
        ("FP8", ((512, tensor), *zip(found, (exponentials, joins, sums), strict=True), (whole - 512 - sum(found), rest))),
    )):  # fmt: skip
        y, x = 2.7 + 0.55 * row, left
        write(ax, left - 0.1, y + 0.15, name, BODY, ha="right")
        for cycles, look in pieces:
            box(ax, x, y, cycles * cycle, 0.3, "" if cycles < 60 else f"{cycles:,}", **look)
            x += cycles * cycle
    legend(ax, 4.05, ((left, tensor, "tensor cores, at their peak rate"), (left + 3.3, exponentials, "exponentials")))
    others = "all else, fp16's exponentials, too"
    legend(ax, 4.45, ((left, joins, "joining acc"), (left + 1.55, sums, f"the sum of p, {found[2]}"), (left + 3.3, rest, others)))
