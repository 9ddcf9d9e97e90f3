"""The drawings of chapters 0 and 1."""

import math
from textwrap import fill

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Polygon

from draw.drawing import arrow, box, digits, grid, heading, image, legend, note, notes, number, sample, write, writes
from draw.look import BODY, HEAD, MASKED, TENSOR_COLOUR, WIDTH
from fa_tutorial import ledger, softmax
from fa_tutorial.bench import chapter_0, results
from fa_tutorial.figures import GREY


@image("00_course_map.png", 6.1)
def draw_course_map(ax: Axes) -> None:
    """Five phases and what follows, left to right: each chapter, and what it hands to the next."""
    chapter_titles = (
        "Why attention is slow", "Safe and online softmax", "Strides and first kernels", "Tiled matmul", "Flash forward in PyTorch",
        "Flash forward in Triton", "Backward by hand", "Flash backward in Triton", "Tuning", "Past Triton", "Variants", "Decoding",
        "Reading flash attention", "Past one GPU", "Half the bits",
    )  # fmt: skip
    hands_on = (
        "scores are too many to store", "softmax, block by block", "kernels that read tiles", "(q kᵀ) v, tile by tile",
        "the algorithm, proved", "o, and LSE for backward", "gradients of a tile, from LSE", "right kernels, both ways", "the plateau, and why",
    )  # fmt: skip
    phases = (
        ("phase 1", "the problem", "blue", (0, 1)), ("phase 2", "the machine", "orange", (2, 3)), ("phase 3", "forward", "green", (4, 5)),
        ("phase 4", "backward", "purple", (6, 7)), ("phase 5", "tuning", "sky", (8,)), ("after", "past Triton", "yellow", (9, 10, 11, 12, 13, 14)),
    )  # fmt: skip
    width, gap, top, bottom = 1.36, 0.13, 0.95, 4.95
    for column, (phase, name, colour, chapters) in enumerate(phases):
        x = 0.09 + column * (width + gap)
        middle = x + width / 2
        box(ax, x, 0.1, width, 0.65, colour=colour, share=0.6)
        write(ax, middle, 0.29, phase)
        write(ax, middle, 0.54, name, BODY, weight="bold")
        is_long = len(chapters) > 4
        between = 1.05 if len(chapters) == 2 else 0.1 if is_long else 0.15
        height = (bottom - top - (len(chapters) - 1) * between) / len(chapters)
        for place, chapter in enumerate(chapters):
            y, called = top + place * (height + between), chapter_titles[chapter]
            title = fill(f"{chapter} {called}", 15) if is_long else f"{chapter}\n{fill(called, 14)}"
            box(ax, x, y, width, height, title, colour, share=0.2)
            if place and len(chapters) > 2:
                ax.plot([middle, middle], [y - between, y], color="black", linewidth=1.6)
        if len(chapters) == 2:
            ax.plot([middle, middle], [top + height, top + height + 0.15], color="black", linewidth=1.6)
            write(ax, middle, (top + bottom) / 2, fill(hands_on[chapters[0]], 14), style="italic")
            arrow(ax, (middle, bottom - height - 0.2), (middle, bottom - height))
        if column < len(phases) - 1:
            y, tall, tip = bottom + 0.15, 0.85, x + width + gap
            ax.add_patch(Polygon([(x, y), (x + width, y), (tip, y + tall / 2), (x + width, y + tall), (x, y + tall)],
                                 facecolor="white", edgecolor="black", linewidth=1.2))  # fmt: skip
            write(ax, middle, y + tall / 2, fill(hands_on[chapters[-1]], 14), style="italic")
    write(ax, WIDTH - 0.09, bottom + 0.57, "on arrows:\nwhat one hands\nto the next", ha="right")


@image("00_payoff.png", 2.75)
def draw_payoff(ax: Axes) -> None:
    """Time and memory of naive and of flash attention on the same input, as two bars each."""
    h200 = results.load("h200")
    ms = chapter_0.naive_steps(h200)["ms"]
    naive, flash = (chapter_0.measured(h200, name, 4096)["peak_bytes"] / 2**20 for name in ("naive", "sdpa_flash"))
    panels = (
        ("time: {:.0f} times as fast", ms["naive"], ms["flash"], ("{:.2f} ms",) * 2, 0.1),
        ("extra memory: {:.0f} times less", naive, flash, ("{:,.0f} MiB", "{:.2f} MiB"), 4.75),
    )
    for title, slow, fast, units, left in panels:
        heading(ax, left + 0.75, 0.25, title.format(slow / fast))
        for row, (name, value, colour, hatch) in enumerate((("naive", slow, "vermilion", "////"), ("flash", fast, "blue", None))):
            y, length = 0.6 + row * 0.75, max(2.4 * value / slow, 0.03)
            write(ax, left + 0.65, y + 0.27, name, BODY, ha="right")
            box(ax, left + 0.75, y, length, 0.55, colour=colour, share=0.75, hatch=hatch)
            note(ax, left + 0.85 + length, y + 0.27, units[row].format(value), BODY, weight="bold")
    note(ax, 0.1, 2.45, f"{h200['provenance']['gpu']}, fp16, S = 4,096 tokens, 16 heads, D = 64. Extra memory: besides q, k and v")


@image("00_memory_hierarchy.png", 5.5)
def draw_memory_hierarchy(ax: Axes) -> None:
    """An H200 as boxes: SMs with registers and shared memory, the L2 cache below, HBM outside the chip; sizes and rates."""
    h200_sms, registers_kib, shared_kib = 132, 256, 228  # NVIDIA, Hopper tuning guide, whose KB are KiB
    shared_bytes, h200_hz = 128, 1.98e9  # bytes that an SM's shared memory delivers a cycle; the highest clock
    h200_l2_mib = 60  # torch.cuda.get_device_properties on an H200; the guide's 50 MB are an H100's
    # L2's rate: chapter 8's counters say that sdpa_flash takes 19.9 % of it for the 4.4 GB that its blocks read in 2.03 ms.
    provenance = results.load("h200")["provenance"]
    chip, side = 6.15, 6.4  # right edge of the boxes, left edge of the notes
    box(ax, 0.1, 0.1, chip, 3.62, colour="black", share=0.05)
    note(ax, 0.25, 0.32, f"the chip: {h200_sms} SMs and an L2 cache", BODY, weight="bold")
    for x, name in ((0.25, "SM 0"), (1.97, "SM 1"), (4.48, f"SM {h200_sms - 1}")):
        box(ax, x, 0.58, 1.62, 2.0)
        write(ax, x + 0.81, 0.76, name)
        for y, text, colour in ((0.98, "arithmetic", "yellow"), (1.52, "registers", "green"), (2.06, "shared memory", "sky")):
            box(ax, x + 0.08, y, 1.46, 0.36, text, colour, share=0.45)
            ax.plot([x + 0.81] * 2, [y + 0.36, y + (0.81 if y > 2 else 0.54)], color="black", linewidth=1.6, zorder=2)  # to the next level
    write(ax, 4.04, 1.5, "…", HEAD, weight="bold")
    box(ax, 0.25, 2.87, chip - 0.3, 0.7, "L2 cache, shared by all SMs", "orange", share=0.45, size=BODY)
    box(ax, 0.1, 4.55, chip, 0.75, "HBM, the GPU's main memory: every tensor lives here", "purple", share=0.45, size=BODY)
    arrow(ax, (2.4, 4.55), (2.4, 3.59), "vermilion", width=3.0)
    arrow(ax, (2.8, 3.59), (2.8, 4.55), "vermilion", width=3.0)
    note(ax, 3.0, 4.13, f"{provenance['ceilings']['copy_gb_s'] / 1000:.1f} TB/s, both ways together", BODY, weight="bold")
    note(ax, side, 0.32, "size, and what it delivers", BODY, weight="bold")
    for y, text in (
        (1.7, f"{registers_kib} KiB per SM, {h200_sms * registers_kib / 1024:.0f} MiB in all"),
        (
            2.24,
            f"{shared_kib} KiB per SM, {h200_sms * shared_kib / 1024:.0f} MiB in all,\nup to {h200_sms * shared_bytes * h200_hz / 1e12:.0f} TB/s in all",
        ),
        (3.22, f"{h200_l2_mib} MiB, over 10 TB/s"),
        (4.92, f"{provenance['memory_bytes'] / 2**30:.0f} GiB"),
    ):
        note(ax, side, y, text)


END, LARGE = 1.15, 5.0  # where the tensors end and the arrows begin; the width of an arrow that carries S·S elements


def draw_flow(ax: Axes, kernel: str, left: float, right: float, reads: list[float], stores: list[float], large: dict[float, float]) -> None:
    """A kernel's box from `left` to `right`, with an arrow down at each x in `reads` and one up at each in `stores`; the width of the thick ones by x."""
    box(ax, left, END + 1.0, right - left, 0.5, kernel, "sky", line=1.6)
    for x in reads:
        arrow(ax, (x, END), (x, END + 1.0), "blue", width=large.get(x, 1.6))
    for x in stores:
        arrow(ax, (x, END + 1.0), (x, END), "vermilion", width=large.get(x, 1.6))


def draw_hbm(ax: Axes, tensors: dict[str, str], name: str = "HBM") -> list[float]:
    """A band of HBM with tensors side by side, name over number of elements. Returns the middle of each."""
    width = 1.24
    box(ax, 0.1, 0.1, width * len(tensors) + 0.1, END, colour="black", share=0.08)
    note(ax, 0.2, 0.3, name, weight="bold")
    middles = [0.15 + (i + 0.5) * width for i in range(len(tensors))]
    for middle, (name, elements) in zip(middles, tensors.items(), strict=True):
        box(ax, middle - width / 2 + 0.05, 0.5, width - 0.1, 0.65, colour=TENSOR_COLOUR[name])
        write(ax, middle, 0.69, name, weight="bold", zorder=3)
        write(ax, middle, 0.96, elements, zorder=3)
    return middles


def draw_arrows(ax: Axes, aside: str) -> None:
    """What the two kinds of arrow mean, and `aside` on the right."""
    sample(ax, 0.1, 2.98, "read", "blue")
    sample(ax, 1.3, 2.98, "written", "vermilion")
    write(ax, WIDTH - 0.1, 2.98, aside, ha="right")


@image("00_naive_kernels.png", 3.2)
def draw_naive_kernels(ax: Axes) -> None:
    """What the four kernels of naive attention read from HBM and write to it."""
    tensors = {"q": "S·D", "k": "S·D", "q kᵀ": "S·S", "s": "S·S", "p": "S·S", "v": "S·D", "o": "S·D"}
    q, k, qk, s, p, v, o = draw_hbm(ax, tensors)
    trips = [x + aside for x in (qk, s, p) for aside in (-0.25, 0.25)]
    large = dict.fromkeys(trips, LARGE)
    draw_flow(ax, "q kᵀ", q - 0.3, qk - 0.1, [q, k], [trips[0]], large)
    draw_flow(ax, "divide", qk + 0.1, s - 0.1, [trips[1]], [trips[2]], large)
    draw_flow(ax, "softmax", s + 0.1, p - 0.1, [trips[3]], [trips[4]], large)
    draw_flow(ax, "p v", p + 0.1, o + 0.3, [trips[5], v], [o], large)
    draw_arrows(ax, "for 16 heads, a thick arrow carries 512 MiB and a thin one 8 MiB")


@image("00_fused_kernel.png", 3.2)
def draw_fused_kernel(ax: Axes) -> None:
    """What the blocks of one fused kernel read and write: k and v once for each block of queries."""
    S, D, block_m, itemsize = 4096, 64, 128, 2
    q, k, v, o = draw_hbm(ax, dict.fromkeys("qkvo", "S·D"), "memory: HBM or L2")
    draw_flow(ax, "q kᵀ, divide, softmax, p v", q - 0.3, o + 0.3, [q, k, v], [o], {k: LARGE / 2, v: LARGE / 2})
    writes(ax, k + 0.1, END + 0.5, [f"{S // block_m} ×"] * 2, dx=v - k, ha="left", weight="bold")
    note(ax, 5.5, 0.3, f"{ledger.flash_hbm_bytes(S, S, D, block_m, itemsize) / 1e6:.0f} MB for each head", BODY, weight="bold")
    notes(ax, 5.5, 0.75, (f"k and v: read by each\nblock of {block_m} queries", "with o: one float32 per query"), BODY, 0.45)
    draw_arrows(ax, f"S = {S:,}, D = {D}, fp16; for 16 heads, a thick arrow carries {S // block_m * 8} MiB")


@image("00_tiling.png", 5.35)
def draw_tiling(ax: Axes) -> None:
    """One head of the fused kernel at one moment: each SM has its block of queries, and reads all of k and v for it."""
    blocks, side, thin, left, top, pitch = 8, 0.4, 0.17, 2.75, 0.75, 0.98
    looks = {"colour": "yellow", "share": 0.25, "hatch": MASKED}, {"colour": "vermilion", "share": 0.7, "line": 2.0}, {}  # done, now, ahead
    write(ax, left - 0.9, top - 0.4, "q", BODY, weight="bold")
    write(ax, left + blocks * side / 2, top - 0.4, "k, v and the scores, 128 keys a block →", BODY)
    write(ax, left + blocks * side + 0.45, top - 0.4, "o", BODY, weight="bold")
    note(ax, left + blocks * side + 0.95, top - 0.4, "read by this SM", BODY)
    for sm, now in enumerate((4, 5, 3, 4)):
        y = top + sm * pitch
        scores = y + 2 * thin
        write(ax, left - 1.2, scores + side / 2, f"SM {sm}:\n128 queries", ha="right")
        box(ax, left - 1.1, scores, side, side, colour="blue", share=0.75, line=2.0)
        writes(ax, left - 0.15, y + 0.5 * thin, "kv", dy=thin, weight="bold")
        read = lambda row, col: {"colour": TENSOR_COLOUR["kv"[row]], "share": 0.75 if col == now else 0.3} if col <= now else {}
        grid(ax, left, y, 2, blocks, side, read, thin)
        grid(ax, left, scores, 1, blocks, side, lambda _, col: looks[(col >= now) + (col > now)])
        box(ax, left + blocks * side + 0.25, scores, side, side, colour="purple", share=0.15, dashed=True)
        note(ax, left + blocks * side + 0.95, scores + side / 2, f"{now + 1} blocks of k and v")
    texts = ("used and forgotten", "128 × 128 scores on the chip now: 32 KiB in fp16", "still to come")
    legend(ax, 4.8, tuple(zip((4.6, 0.2, 6.9), looks, texts, strict=True)))
    note(ax, 0.2, 5.15, f"Drawn are {blocks} of the 32 blocks of keys. SMs don't wait for each other.")


EXAMPLE = (3.0, 2.0, 5.0, 1.0)
TERM_LOOKS = (("sky", ""), ("orange", "////"), ("green", "...."), ("purple", "xxxx"))  # colour and hatching of each element's term


@image("01_passes.png", 3.95)
def draw_passes(ax: Axes) -> None:
    """How often a softmax reads its row from HBM: three passes, once where it fits on the chip, and flash attention, which has no row there."""
    ways = (
        ("three passes", "4·n elements", ("find the\nmaximum", "find the\nsum", "divide"), 0.1, 2.95),
        ("short row", "2·n elements", ("keep the\nrow on\nthe chip",), 4.05, 1.6),
        ("flash attention", "0 scores, 0 weights", ("make scores,\nuse them up",), 6.65, 1.85),
    )
    cell, cells, strip_top, strip_bottom, top = 0.09, 6, 1.05, 1.27, 2.2
    for title, moved, passes, left, width in ways:
        heading(ax, left, 0.25, title)
        box(ax, left, 0.5, width, 0.9, colour="black", share=0.08)
        note(ax, left + 0.1, 0.68, "HBM", weight="bold")
        step = width / len(passes)
        centres = [left + (number_of + 0.5) * step for number_of in range(len(passes))]
        for x, name in zip(centres, passes, strict=True):
            box(ax, x - step / 2 + 0.05, top, step - 0.1, 0.8, name, "sky")
        write(ax, left + width / 2, top + 1.08, moved, BODY, weight="bold")
        if title == "flash attention":
            for x, name in zip((left + 0.28 + i * 0.4 for i in range(4)), "qkvo", strict=True):
                box(ax, x - 0.12, strip_top, 0.24, strip_bottom - strip_top, colour=TENSOR_COLOUR[name], share=0.3)
                write(ax, x, strip_top - 0.14, name, BODY)
                if name != "o":
                    arrow(ax, (x, strip_bottom), (x, top), "blue")
            arrow(ax, (x, top), (x, strip_bottom), "vermilion", dashed=True)
            continue
        x_at, y_at = sum(centres) / len(centres) - (0.32 if len(passes) == 1 else 0.1), min(centres[-1] + 0.32, left + width - 0.37)
        for name, x, colour in (("x", x_at, "yellow"), ("y", y_at, "purple")):
            for i in range(cells):
                box(ax, x + (i - cells / 2) * cell, strip_top, cell, strip_bottom - strip_top, colour=colour, share=0.5)
            write(ax, x, strip_top - 0.14, name, BODY)
        for number_of, x in enumerate(centres):
            start = x_at + (number_of - (len(passes) - 1) / 2) * 0.18
            arrow(ax, (start, strip_bottom), (x - 0.2 * (number_of == len(passes) - 1), top), "blue")
        arrow(ax, (centres[-1] + 0.25, top), (y_at, strip_bottom), "vermilion", dashed=True)
    sample(ax, 0.1, 3.75, "reads the n scores x, or q, k and v", "blue")
    sample(ax, 3.95, 3.75, "writes the n weights y, or o", "vermilion", dashed=True)


@image("01_two_maxima.png", 4.3)
def draw_two_maxima(ax: Axes) -> None:
    """The numerators of 3, 2 | 5, 1: each block measured from its own maximum, and both from 5."""
    base, scale, own, shared = 3.0, 1.7, (3.0, 3.0, 5.0, 5.0), (5.0,) * 4
    for title, maxima, left, below in (
        ("each block from its own maximum", own, 0.75, "3 gets the same weight as 5"), ("both blocks from 5", shared, 5.15, "all four on one scale"),
    ):  # fmt: skip
        write(ax, left + 1.65, 0.3, title, HEAD, weight="bold")
        write(ax, left + 1.65, 3.98, below)
        for height in (0, scale):
            ax.plot([left - 0.1, left + 3.3], [base - height, base - height], color=GREY, linewidth=0.8, zorder=0.5)
            write(ax, left - 0.2, base - height, "1" if height else "0", ha="right")
        ax.plot([left + 1.65, left + 1.65], [0.75, base + 0.35], color="black", linestyle=":", linewidth=1.2)
        for i, (value, m, (colour, hatch)) in enumerate(zip(EXAMPLE, maxima, TERM_LOOKS, strict=True)):
            height = math.exp(value - m) * scale
            x = left + 0.1 + i * 0.82
            box(ax, x, base - height, 0.62, height, colour=colour, hatch=hatch, share=0.5)
            write(ax, x + 0.31, base - height - 0.15, digits(math.exp(value - m)))
            write(ax, x + 0.31, base + 0.2, f"x = {number(value)}", BODY)
        writes(ax, left + 0.82, base + 0.55, [f"measured from {number(m)}" for m in maxima[::2]], dx=1.66)
    arrow(ax, (4.15, 1.9), (4.75, 1.9))
    write(ax, 4.45, 2.3, f"left block\n· {digits(math.exp(3 - 5))}")


def draw_tree(ax: Axes, left: float, title: str, leaves: list[tuple], plan: list[tuple[int, int, float, int]]) -> None:
    """Leaves (m, l) side by side from `left`, then plan's merges: (node, node, x in leaf widths, depth), each a node more. Hatched: empty."""
    write(ax, left + 0.35 * len(leaves), 0.3, title, HEAD, weight="bold")
    nodes = [(*leaf, left + 0.35 + i * 0.7, 0.9) for i, leaf in enumerate(leaves)]
    for a, b, leaf, depth in plan:
        x, y = left + 0.35 + leaf * 0.7, 0.9 + depth * 0.95
        for *_, x_from, y_from in (nodes[a], nodes[b]):
            ax.plot([x_from, x], [y_from + 0.25, y - 0.25], color="black", linewidth=1.4, zorder=0.5)
        parts = torch.tensor([*nodes[a][:2], *nodes[b][:2]], dtype=torch.float64)
        nodes.append((*(float(value) for value in softmax.merge(*parts)), x, y))
    for place, (m, l, x, y) in enumerate(nodes, start=1):
        look = {"colour": "green", "line": 2.2} if place == len(nodes) else {"colour": "orange" if place <= len(leaves) else "sky"}
        width = 0.64 if l in (0, 1) else 0.94
        look = {"hatch": MASKED, "dashed": True} if m == -math.inf else look
        box(ax, x - width / 2, y - 0.25, width, 0.5, f"({number(m)}, {number(l)})", **look)


@image("01_merge_tree.png", 4.6, 9.7)
def draw_merge_tree(ax: Axes) -> None:
    """The pairs (m, l) of four elements merged left to right, as a balanced tree, and with an empty part: one result."""
    leaves = [softmax.online_normalizer(torch.tensor([value], dtype=torch.float64)) for value in EXAMPLE]
    empty = softmax.online_normalizer(torch.tensor([], dtype=torch.float64))
    draw_tree(ax, 0.05, "left to right", leaves, [(0, 1, 0.5, 1), (4, 2, 1.25, 2), (5, 3, 2.1, 3)])
    draw_tree(ax, 3.1, "balanced tree", leaves, [(0, 1, 0.5, 1), (2, 3, 2.5, 1), (4, 5, 1.5, 2)])
    with_empty = [(0, 1, 0.5, 1), (2, 3, 2.5, 1), (6, 4, 3.2, 2), (5, 7, 1.85, 3)]
    draw_tree(ax, 6.15, "with an empty part", [*leaves[:2], empty, *leaves[2:]], with_empty)
    write(ax, 4.85, 4.3, "each box: a pair (m, l)     top row: one score each     hatched: the empty part     thick frame: the whole row")


@image("01_loop.png", 4.2)
def draw_loop(ax: Axes) -> None:
    """The loop over two blocks: each comes once, three states go from block to block, and a division stands at the end."""
    top, tall = 2.35, 0.95
    box(ax, 1.3, 0.1, 5.25, 0.4, "one query q: it stays for all blocks", "blue", size=BODY)
    states = ["m = −∞\nl = 0\nacc = 0"]
    for block, (s, v) in enumerate((((3, 2), (10, 20)), ((5, 1), (30, 40)))):
        x = 2.3 + block * 3.2  # the middle of this step
        arrow(ax, (x - 0.5, 0.5), (x - 0.5, 0.98), "blue")
        write(ax, x - 0.6, 0.75, "q kᵀ", ha="right")
        write(ax, x + 0.5, 0.8, f"block {block + 1}", BODY, weight="bold")
        box(ax, x - 1.0, 1.0, 1.0, 0.45, f"s = {s[0]}, {s[1]}", TENSOR_COLOUR["s"], size=BODY)
        box(ax, x, 1.0, 1.05, 0.45, f"v = {v[0]}, {v[1]}", TENSOR_COLOUR["v"], size=BODY)
        arrow(ax, (x, 1.45), (x, top), "blue")
        note(ax, x + 0.12, 1.87, "read once,\nthen gone")
        box(ax, x - 0.5, top, 1.0, tall, "your\nstep", "sky", size=BODY)
        arrow(ax, (x - 0.95, top + tall / 2), (x - 0.5, top + tall / 2))
        arrow(ax, (x + 0.5, top + tall / 2), (x + 1.0, top + tall / 2))
        m, l = softmax.online_normalizer(torch.tensor(EXAMPLE[: 2 * block + 2], dtype=torch.float64))
        states.append(f"m = {number(m)}\nl = {digits(l)}\nacc = ?")
    for place, state in enumerate(states):
        box(ax, 0.1 + place * 3.2, top, 1.25, tall, state, "orange")
    arrow(ax, (7.75, top + tall / 2), (8.2, top + tall / 2))
    write(ax, 7.97, top + 0.22, "÷ ?", BODY)
    box(ax, 8.2, top, 0.7, tall, "o =\n27.49", "purple", size=BODY)
    note(ax, 0.1, 3.65, "carried from block to block: m, l and acc, which are 1 + 1 + D numbers (66 in the opening, where D = 64)")
    note(ax, 0.1, 4.0, "not carried: a block's scores, weights and values")


@image("01_running_sum.png", 5.3)
def draw_running_sum(ax: Axes) -> None:
    """l and acc of scores 3, 2 | 5, 1 with values 10, 20, 30, 40: after the first block, rescaled to the new maximum, after the second."""
    values, alpha = (10.0, 20.0, 30.0, 40.0), math.exp(3 - 5)
    steps = (("after block 1, m = 3", 2, 3.0), ("the maximum becomes 5", 2, 5.0), ("after block 2, m = 5", 4, 5.0))
    for row, (name, base, scale, weights) in enumerate((("l", 2.3, 0.95, (1.0,) * 4), ("acc", 4.45, 0.036, values))):
        heading(ax, 0.15, base - 0.6, name)
        note(ax, 0.15, base - 0.35, ("Σ exp(x − m)", "Σ exp(x − m) · v")[row])
        ax.plot([1.75, 8.9], [base, base], color=GREY, linewidth=0.8, zorder=0.5)
        for column, (title, seen, m) in enumerate(steps):
            x, y = 1.95 + column * 2.55, base
            if row == 0:
                write(ax, x + 0.6, 0.3, title, BODY, weight="bold")
            terms = [math.exp(score - m) * weight for score, weight in zip(EXAMPLE[:seen], weights, strict=False)]
            for term, score, value, (colour, hatch) in zip(terms, EXAMPLE, values, TERM_LOOKS, strict=False):
                y -= term * scale
                text = f"exp({number(score - m)})" + (f" · {number(value)}" if row else "")
                box(ax, x, y, 1.2, term * scale, text if term * scale > 0.25 else "", colour, hatch=hatch, share=0.5)
                if score == 1:  # too thin for its name
                    ax.plot([x + 0.6, x + 0.6], [y - 0.1, y + term * scale / 2], color="black", linewidth=0.9, zorder=3)
                    write(ax, x + 0.6, y - 0.21, text)
            write(ax, x + 0.6, base + 0.2, f"{name} = {digits(sum(terms))}", BODY, weight="bold")
            if column < 2:
                arrow(ax, (x + 1.35, base - 0.45), (x + 2.4, base - 0.45))
                write(ax, x + 1.87, base - 0.65, (f"· {digits(alpha)}", "+ block 2")[column], BODY)
    note(ax, 0.15, 5.05, "alpha = exp(3 − 5) shrinks both sums alike     o = acc / l at the end     l and acc: each on its own scale")


@image("01_shares.png", 3.0)
def draw_shares(ax: Axes) -> None:
    """The plain sum of scores 3, 2 | 5, 1 as one bar: each processor's piece is the share with which its output counts."""
    x, top, height, wide, counted = 0.4, 1.0, 0.6, 8.2 / sum(math.exp(score) for score in EXAMPLE), []
    for part, place in ((slice(0, 2), "first"), (slice(2, 4), "second")):
        start, terms = x, [math.exp(score) for score in EXAMPLE[part]]
        o = sum(term * value for term, value in zip(terms, (10, 20, 30, 40)[part], strict=True)) / sum(terms)
        share = sum(terms) * wide / 8.2
        counted.append(f"{share:.3f} · {o:.2f}")
        for score, term, (colour, hatch) in zip(EXAMPLE[part], terms, TERM_LOOKS[part], strict=True):
            thin = term * wide < 0.6
            box(ax, x, top, term * wide, height, "" if thin else f"exp({number(score)})", colour, hatch=hatch, share=0.5)
            if thin:
                write(ax, x + term * wide / 2, top + height + 0.17, f"exp({number(score)})")
            x += term * wide
        middle = (start + x) / 2
        write(ax, middle, 0.3, f"{place} processor", BODY, weight="bold")
        write(ax, middle, 0.6, f"o = {o:.2f}", BODY)
        ax.plot([start + 0.03, x - 0.03], [0.85, 0.85], color="black", linewidth=2)
        write(ax, middle, top + height + 0.47, f"share {share:.3f}", BODY)
    write(ax, 4.5, 2.65, f"both together: o = {' + '.join(counted)} = 27.49", HEAD, weight="bold")
