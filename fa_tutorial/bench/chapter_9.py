"""Chapter 9: what its pages show of the stored results. tools/measure measures what is stored."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fa_tutorial import hardware, hopper, ledger, reference
from fa_tutorial.bench import results, tables
from fa_tutorial.bench.cases import GRIDS, MODES
from fa_tutorial.hopper import ping_pong
from fa_tutorial.source import excerpt, specialised
from fa_tutorial.warpgroups import KEYS, ROWS, matmul_cycles

hardware.require_triton("Chapter 9's measurements")


# ---------------------------------------------------------------- what the notebook shows; card: results.load's


def gpu(card: dict[str, Any]) -> str:
    """A GPU's short name: H200."""
    return card["provenance"]["gpu"].split()[1]


# What is stored of each, the chapter's with three stages.
LOOPS = {loop: f"{loop}, 3 stages" for loop in ("two stops", *ping_pong.LOOPS)} | {"chapter 8's": "tuned"}


def block_of(loop: str) -> str:
    """The lines of a block that issue matmuls, wait for them, or compute the softmax, in "9.4", the course's solution,
    or ping_pong's `loop`."""
    text = hopper.ladder.attend_one_stop if loop == "9.4" else specialised(ping_pong.attend, STAMPED=False, LOOP=loop)
    lines = excerpt(text, "s = warpgroup_mma(q, k.index(stage)", "acc = rescaled").splitlines()[:-1]
    return "\n".join(line.split("  #")[0] for line in lines if not line.startswith(("stamp(", "mbarrier.arrive(empty")))


# Each row of the chapter's table, in its order, and the suspect that it tests: 1, they don't alternate; 2, a long
# softmax; 3, the time goes elsewhere.
TESTS = {
    "chapter 8's": "", "two programs": "1", "one program": "3", "one program, each tile loaded twice": "3",
    "two stops": "", "one stop": "1", "overlapped": "2", "two stops, consumer 1 late": "1", "ping-pong": "1",
    "k's own ring": "3", "third consumer": "2", "persistent": "3", "hopper": "1",
}  # fmt: skip
IN_FULL = {
    "chapter 8's": "chapter 8's, one stop", "two programs": "two programs, 64 keys, one stop",
    "one program": "one program, 64 keys, one stop",
    "one program, each tile loaded twice": "the same, each tile loaded twice",
}  # fmt: skip


def remedies(card: dict[str, Any], D: int) -> pd.DataFrame:
    """The rows of one run, full, S = 4,096, by name, in the order of TESTS: cycles of an SM for 64 x 128 scores, MHz,
    TFLOP/s, W, and where there are stamps the share of the time in which exactly one consumer is at a softmax."""
    found = results.select(card["kernels"], kernel="remedy", D=D).set_index("provider")
    return _table(card, found.loc[[name for name in TESTS if name in found.index]])


def print_remedies(card: dict[str, Any], D: int, *new: str, beside: Sequence[str] = ()) -> None:
    """The rows `new`, which are marked, and those of `beside`, in the order of TESTS."""
    table = remedies(card, D)
    watts = table["watts"]
    head = f"{gpu(card)}, D = {D}, full, S = 4,096; {watts.min():.0f} to {watts.max():.0f} W"
    print(f"{head:42}   cycles    MHz  TFLOP/s  one at a softmax  suspect")
    for name in [name for name in table.index if name in (*beside, *new)]:
        mark = ">" if name in new else " "
        print(f"{mark} {IN_FULL.get(name, name):40}{_numbers(table.loc[name])}{TESTS[name]:>9}".rstrip())


def _numbers(row: pd.Series) -> str:
    """A row of _table's, in columns."""
    one = f"{row['one']:.0%}" if pd.notna(row["one"]) else ""
    return f"{row['cycles']:9,.0f}{row['mhz']:7,.0f}{row['tflops']:9.0f}{one:>18}"


def _table(card: dict[str, Any], found: pd.DataFrame) -> pd.DataFrame:
    """MHz, TFLOP/s, W, cycles of an SM for 64 x 128 scores, and the share of the time in which exactly one consumer is
    at a softmax, of these stored rows."""
    table = found[["mhz", "tflops", "watts"]].copy()
    table["cycles"] = [_cycles_a_block(card, row) for _, row in found.iterrows()]
    table["one"] = [of[1] if isinstance(of, list) else None for of in found["softmax_at_once"]]
    return table


# What changes from each row of the table to the next, from chapter 8's kernel to the finished one.
CHANGES = (
    ("64 x 64 blocks, and a producer", "two programs"),
    ("one program for both consumers", "one program"),
    ("128 keys a block", "one stop"),
    ("a ring for k, one for v", "k's own ring"),
    ("a persistent program", "persistent"),
)


def print_account(card: dict[str, Any]) -> None:
    """D = 128: from chapter 8's cycles to those of the finished kernel, a change a line; and what the latter consist
    of: its matmuls (9.1), and what SMs idle because some have one work tile less than others."""
    table = remedies(card, 128)["cycles"].round().astype(int)
    before = "chapter 8's"
    lines = [(f"{gpu(card)}, D = 128, full, S = 4,096", "cycles"), (IN_FULL[before], f"{table[before]:,}")]
    for words, name in CHANGES:
        lines.append((f"  {words}", f"{table[name] - table[before]:+,}".replace("-", "−")))
        before = name
    row = results.select(card["kernels"], kernel="remedy", D=128, provider=before).iloc[0]
    tiles, sms = row["B"] * row["H_q"] * row["S_q"] // (2 * ROWS), card["provenance"]["multiprocessors"]
    matmuls, unequal = 2 * matmul_cycles(128), round(table[before] * (1 - tiles / sms / -(-tiles // sms)))
    lines += [("the finished kernel", f"{table[before]:,}"), ("  its matmuls", f"{matmuls:,}")]
    lines += [(f"  {tiles:,} work tiles on {sms} SMs: {tiles // sms} or {-(-tiles // sms)} each", unequal)]
    lines += [("  the rest", table[before] - matmuls - unequal)]
    print("\n".join(f"{words:46}{number:>8}" for words, number in lines))


def print_cycles(card: dict[str, Any], name: str) -> None:
    """The cycles of a row of the table, for D = 64 and 128, as a line of another."""
    cycles = (remedies(card, D).loc[name, "cycles"] for D in (64, 128))
    print(f"{f'{name}, measured, {gpu(card)}':42}" + "".join(f"{each:9,.0f}" for each in cycles))


# From chapter 8's kernel to one stop, a change a row: its tile, a producer, a shared program, 128 keys a block.
PATH = {
    "chapter 8's": "chapter 8's, 128 x 64 blocks", "chapter 8's, 64 x 64": "64 x 64 blocks",
    "two programs": "a producer for each program", "one program": "one program for both consumers",
    "one stop": "128 keys a block: “one stop”",
}  # fmt: skip


def print_path(card: dict[str, Any]) -> None:
    """The rows of PATH, D = 128, which all have one stop, in a run of their own."""
    table = _table(card, results.select(card["kernels"], kernel="path").set_index("provider"))
    print(f"{f'{gpu(card)}, D = 128, full, S = 4,096, another run':46}cycles    MHz  TFLOP/s  one at a softmax")
    for name, words in PATH.items():
        print(f"{words:43}{_numbers(table.loc[name])}".rstrip())


def late_starts(card: dict[str, Any], D: int) -> list[tuple]:
    """Two stops: for each start of consumer 1 how many cycles late it is, both consumers' softmaxes in a few blocks,
    and the cycles of an SM for a block: in the loop's middle, and of the whole call."""
    rows = results.select(card["kernels"], kernel="late", D=D, provider=LOOPS["two stops"])
    return [
        (int(row["late"]), _softmaxes(row["stamps"]), row["block"] / 2, _cycles_a_block(card, row))
        for _, row in rows.iterrows()
    ]


def _cycles_a_block(card: dict[str, Any], row: pd.Series) -> float:
    """Cycles of an SM for 64 x 128 scores that are seen."""
    blocks = row["B"] * row["H_q"] * ledger.visible_pairs(row["S_q"], row["S_q"], row["is_causal"]) / (ROWS * KEYS)
    return row["cycles"] / blocks * card["provenance"]["multiprocessors"]


def clocked(card: dict[str, Any], loop: str, D: int) -> pd.Series:
    """A consumer's stamps in one of LOOPS: "cycles" by part of a block, "stamps" of a few blocks."""
    return results.select(card["kernels"], kernel="clocked", provider=LOOPS[loop], D=D).iloc[0]


def softmaxes(card: dict[str, Any], loop: str, D: int) -> list[list[tuple[int, int]]]:
    """For each consumer of one program the (begin, end) of its softmaxes in a few blocks."""
    return _softmaxes(clocked(card, loop, D)["stamps"])


def _softmaxes(stamps: list) -> list[list[tuple[int, int]]]:
    begin, end = (ping_pong.STAMPS.index(name) for name in ("stop", "softmax"))
    return [[(block[begin], block[end]) for block in blocks] for blocks in stamps]


# What a consumer does from one of ping_pong.STAMPS to a later one, how it is called, and how it is drawn.
PARTS_OF_A_BLOCK = (
    ("turn", "stop", "issue, and wait for the matmuls", {"facecolor": "C0"}),
    ("stop", "softmax", "softmax", {"facecolor": "C1"}),
    ("softmax", "turn", "rescale, p to fp16, next tiles", {"facecolor": "0.85"}),
)
IDLE = {"facecolor": "white", "hatch": "////"}


def draw_clocked(card: dict[str, Any], D: int, *loops: str) -> Figure:
    """Both consumers of one program over a few blocks, a panel for each of `loops`, by their stamps; of chapter 8's
    two programs of one SM. Numbers are mean cycles. "by chance": if neither's softmaxes depended on the other's.

    The third lane shows when a matmul of either is issued and not finished: without one, the tensor cores are idle.
    """
    figure = Figure(figsize=(10, 2.2 * len(loops) + 1.1))
    panels = figure.subplots(len(loops), 1, sharex=True, squeeze=False)[:, 0]
    for ax, loop in zip(panels, loops, strict=True):
        row = clocked(card, loop, D)
        _draw_lanes(ax, row)
        cycles, alone = sum(row["cycles"].values()), row["cycles"]["stop"]
        chance = 2 * alone * (cycles - alone) / cycles**2
        one = remedies(card, D).loc[loop, "one"]
        parts = " + ".join(f"{_from_to(row['cycles'], start, end):,}" for start, end, *_ in PARTS_OF_A_BLOCK)
        words = f"one at a softmax {one:.0%}, by chance {chance:.0%}"
        ax.set_title(
            f"{IN_FULL.get(loop, loop)}: {parts} = {cycles:,} cycles a block; {words}", loc="left", fontsize="medium"
        )
    panels[-1].set_xlim(0, 13_000)
    panels[-1].xaxis.set_major_formatter("{x:,.0f}")
    panels[-1].set_xlabel(f"cycles of the SM, {gpu(card)}, D = {D}, full, S = 4,096")
    handles: list[Any] = [Patch(edgecolor="black", **look) for look in (*(part[3] for part in PARTS_OF_A_BLOCK), IDLE)]
    words = [*(part[2] for part in PARTS_OF_A_BLOCK), "no matmul issued"]
    figure.legend(handles, words, loc="outside lower center", ncols=4)
    return figure


def _draw_lanes(ax: Axes, row: pd.Series) -> None:
    """A lane for each consumer, by its stamps, and one for the matmuls that are under way."""
    edge = {"height": 0.7, "edgecolor": "black", "linewidth": 0.5}
    names, cycles, lane = list(ping_pong.STAMPS), row["cycles"], len(row["stamps"])
    for c, blocks in enumerate(row["stamps"]):
        for n, (block, after) in enumerate(itertools.pairwise(blocks)):
            for start, end, _, look in PARTS_OF_A_BLOCK:
                first, mean = names.index(start), _from_to(cycles, start, end)
                left, right = block[first], (after if end == "turn" else block)[names.index(end)]
                ax.barh(c, right - left, left=left, **edge, **look)
                if n == 0 and mean > 300:
                    look = {"color": "black" if end == "turn" else "white", "fontsize": "small"}
                    ax.text((left + right) / 2, c, f"{mean:,}", ha="center", va="center", **look)
    first, last, under_way = matmuls_under_way(row["stamps"])
    ax.barh(lane, last - first, left=first, **edge, **IDLE)
    for start, end in under_way:
        ax.barh(lane, end - start, left=start, height=0.7, linewidth=0, facecolor="C0")
    who = "program" if row["provider"] == LOOPS["chapter 8's"] else "consumer"
    ax.set_yticks(range(lane + 1), (*(f"{who} {c}" for c in range(lane)), "a matmul issued,\nnot finished"))
    ax.invert_yaxis()
    ax.grid(False)


def _from_to(cycles: dict[str, int], start: str, end: str) -> int:
    """Cycles from one of ping_pong.STAMPS to the next time that `end` comes; cycles: from each to the one after it."""
    stamps, found, n = ping_pong.STAMPS, 0, ping_pong.STAMPS.index(start)
    while True:
        found, n = found + cycles[stamps[n]], (n + 1) % len(stamps)
        if stamps[n] == end:
            return found


def print_softmax(card: dict[str, Any], counts: list[int]) -> None:
    """The cycles of a softmax of 64 x 128 scores, D = 64: if its instructions overlap, if they take turns, and by
    stamps, alone and beside others.

    counts: of a warp's instructions by kind, exponentials first. A scheduler has one warp of a consumer, and issues an
    instruction in a cycle; the exponentials of one take eight.
    """
    of = results.select(card["kernels"], kernel="alone", D=64).set_index("provider")["clock"]
    one = "1 program of 1 consumer"
    exponentials, others = 4 * 2 * counts[0], sum(counts[1:])
    cycles = {
        "by chapter 8's model": max(exponentials, sum(counts)),
        f"in turns, {exponentials} + {others}": exponentials + others,
        "measured, alone on an SM": of[one]["stop"],
        "measured, beside a second consumer": of["2 consumers in 1 program"]["stop"],
    }
    for words, each in cycles.items():
        print(f"a softmax {words:35} {each:5,} cycles")


def matmuls_under_way(stamps: list) -> tuple[int, int, list[tuple[int, int]]]:
    """(from, to, spans): while both consumers have stamps, the spans in which a matmul of one or the other is issued
    and not finished: from its turn to its stop.
    """
    turn, stop = (ping_pong.STAMPS.index(name) for name in ("turn", "stop"))
    first, last = max(blocks[0][0] for blocks in stamps), min(blocks[-1][0] for blocks in stamps)
    found: list[tuple[int, int]] = []
    for start, end in sorted((block[turn], block[stop]) for blocks in stamps for block in blocks[:-1]):
        start, end = max(start, first, found[-1][1] if found else first), min(end, last)
        if start < end:
            found.append((start, end))
    return first, last, found


def print_errors(card: dict[str, Any], attend=None) -> None:
    """The largest error of the ladder's forward with this loop, on this machine's Hopper GPU; None: as stored."""
    if attend is None:
        errors = results.select(card["kernels"], kernel="ladder_errors").iloc[0]
        print("no Hopper GPU: nothing is launched. On an H200, the course's loop:")
        print(f"largest error {errors['forward']:.1e}, of plain attention {errors['plain']:.1e}")
        return
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 1024, 64, dtype=torch.float16, device="cuda")
    truth, _ = reference.attention(q, k, v, False)
    found = (hopper.ladder.flash_forward(q, k, v, 64**-0.5, attend=attend), reference.naive_attention(q, k, v, False))
    ours, plain = ((o - truth).abs().max().item() for o in found)
    print(f"largest error {ours:.1e}, of plain attention {plain:.1e}")


def draw_compared(card: dict[str, Any], mode: str, *others: str) -> Figure:
    """The speed of hopper over that of others, a line each, at the twelve points; and in words."""
    rates = tables.table(card["rows"], GRIDS["points"], mode, "fp16")
    ratios = pd.DataFrame({peer: rates["hopper"] / rates[peer] for peer in others})
    figure = Figure(figsize=(10, 3.0))
    panels = figure.subplots(1, 4, sharey=True)
    lengths = sorted({S for _, _, S in rates.index})
    looks = {"tuned": "C1s--", "sdpa_cudnn": "C2^-.", "flash_attn_4": "C3D:"}
    for ax, (D, is_causal) in zip(panels, itertools.product((64, 128), (False, True)), strict=True):
        for peer in others:
            of = [ratios.loc[(D, is_causal, S), peer] for S in lengths]
            ax.plot(range(len(lengths)), of, looks[peer], label=f"over {peer}")
        ax.axhline(1, color="black", linewidth=1)
        ax.set_xticks(range(len(lengths)), [f"{S // 1024}" for S in lengths])
        ax.set(title=f"D = {D}, {tables.mask(is_causal)}", xlabel="S / 1,024")
    panels[0].set_ylabel(f"hopper over another,\n{MODES[mode]}, {gpu(card)}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    print(f"{MODES[mode]}, {gpu(card)}: speed of the hopper kernel over another's, twelve cases")
    for peer in others:
        of = ratios[peer]
        mean, (D, is_causal, S) = np.exp(np.log(of).mean()), of.idxmin()
        least = f"least {of.min():.2f}, at D = {D}, {tables.mask(is_causal)}, S = {S:,}"
        print(f"  {peer:13} mean {mean:.2f}, most {of.max():.2f}, {least}")
    return figure


def print_speedup(card: dict[str, Any]) -> None:
    """The least and the most that the forward gains over chapter 8's, at twelve points."""
    found = results.select(card["kernels"], chapter=9, kernel="step")
    of = found.pivot_table(index=["D", "is_causal", "S_q"], columns="provider", values="tflops", aggfunc="first")
    last = of["turns"].fillna(of["order"]) / of["tuned"]
    print(f"{gpu(card)}, twelve cases: {last.min():.2f} to {last.max():.2f} times as fast as chapter 8's kernel")


def print_persistent(card: dict[str, Any]) -> None:
    """TFLOP/s with a program for each work tile, and persistent, by how the next is found: causal, S = 4,096; and a
    short full one. Where all work tiles are alike, nothing is counted."""
    found = results.select(card["kernels"], chapter=9, kernel="step")
    heads = "a program each", "fixed numbers", "a counter"
    print(f"{f'{gpu(card)}, TFLOP/s':34}" + "".join(f"{head:>15}" for head in heads))
    for (S, is_causal), D in itertools.product(((4096, True), (1024, False)), (64, 128)):
        of = results.select(found, D=D, S_q=S, is_causal=is_causal).set_index("provider")["tflops"]
        cells = "".join(f"{of[step]:15.0f}" for step in ("overlap", "persistent", "counter"))
        print(f"{f'{tables.mask(is_causal)}, S = {S:,}, D = {D}':34}{cells}")


# A block of the backward at one consumer: 64 keys meet 64 queries, D = 128. Cycles of a matmul and of p by (9.1); those
# of the others are guesses. The other consumer hands its rows of ds over a little later than this one.
BLOCK_MATMUL, MEETING = 256, 230
WORK = {"p": 256, "p′": 256, "hand over ds": 200, "add dq": 150}
LINE_BY_LINE = (
    "issue s", "wait for s", "p", "issue dv", "wait for dv", "issue dp", "wait for dp", "hand over ds", "meet",
    "issue dq", "wait for dq", "add dq", "issue dk", "wait for dk", "release q, do",
)  # fmt: skip


class Lanes(NamedTuple):
    """What the lines of a block keep busy, {name: (start, end)}; when each line is done; and the block."""

    matmuls: dict[str, tuple[int, int]]
    work: dict[str, tuple[int, int]]
    done: dict[str, int]

    @property
    def end(self) -> int:
        return max(end for _, end in (*self.matmuls.values(), *self.work.values()))


def lanes_of(order: Sequence[str]) -> Lanes:
    """Plays a block's lines, in exercise 9.9's words, at a consumer that has the tensor cores to itself."""
    found, now = Lanes({}, {}, {}), 0
    for line in order:
        if line.startswith("issue "):
            start = max([now, *(end for _, end in found.matmuls.values())])
            found.matmuls[line.removeprefix("issue ")] = start, start + BLOCK_MATMUL
        elif line.startswith("wait for "):
            now = max(now, *(found.matmuls[name][1] for name in line.removeprefix("wait for ").split(", ")))
        elif line == "meet":
            now = max(now, found.done["hand over ds"] + MEETING)
        elif line in WORK:
            found.work[line] = now, now + WORK[line]
            now += WORK[line]
        found.done[line] = now
    return found


def draw_block(order: Sequence[str], name: str) -> Figure:
    """lanes_of an order: its matmuls, what its warps compute, and when they hand over ds and have met."""
    lanes = lanes_of(order)
    figure = Figure(figsize=(10, 2.1))
    ax = figure.subplots()
    ax.barh((0, 1), lanes.end, height=0.7, edgecolor="black", linewidth=0.5, **IDLE)
    looks = dict.fromkeys(("s", "dp"), "C0") | dict.fromkeys(("dk", "dv"), "C2") | {"dq": "C3"}
    for lane, spans in enumerate((lanes.matmuls, lanes.work)):
        for what, (start, end) in spans.items():
            colour = "C1" if lane else looks[what.removesuffix("′")]
            ax.barh(lane, end - start, left=start, height=0.7, edgecolor="black", linewidth=0.5, facecolor=colour)
            text = what.removeprefix("hand over ").replace("add dq", "store\ndq")
            ink = "black" if what == "dq" else "white"
            ax.text((start + end) / 2, lane, text, color=ink, ha="center", va="center", size="small")
    for line, words, side in (("hand over ds", "ds handed over ", "right"), ("meet", " met", "left")):
        ax.axvline(lanes.done[line], color="black", linestyle="--", linewidth=1.3)
        ax.text(lanes.done[line], -0.42, words, va="bottom", ha=side, size="small")
    ax.set(ylim=(1.5, -0.75), xlim=(0, 2200))
    ax.set_yticks((0, 1), ("tensor cores", "its warps"))
    idle = lanes.end - BLOCK_MATMUL * len(lanes.matmuls)
    ax.set_title(f"{name}: {lanes.end:,} cycles, the tensor cores idle for {idle:,}", loc="left")
    ax.set_xlabel("cycles; matmuls and p by (9.1), the rest guessed; hatched: idle, or waiting")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.grid(False)
    return figure


ORDERS = {
    "the kernel's": "the kernel's",
    "s′ under ds": "s′ right behind dp",
    "in turn": "no block ahead: dv under ds, dk under the meeting",
    "delta by arithmetic": "the kernel's, but delta is subtracted after dp",
}


def print_orders(card: dict[str, Any]) -> None:
    """The backward with other orders of a block: the cycles of a call over those of the kernel's, the clock at
    which it then ran, and its time."""
    found, first = results.select(card["kernels"], chapter=9, kernel="order").set_index("provider"), next(iter(ORDERS))
    print(f"{f'{gpu(card)}, D = 128, full, S = 4,096':52}cycles    MHz     ms")
    for name, words in ORDERS.items():
        cycles, ms = found.loc[name, ["cycles", "ms"]]
        print(f"{words:52}{cycles / found.loc[first, 'cycles']:6.2f}{cycles / ms / 1e3:7,.0f}{ms:7.2f}")


def print_backward_profiled(card: dict[str, Any]) -> None:
    """The backward under the profiler, D = 128, S = 4,096, full: chapter 8's two kernels, and this chapter's."""
    rows = results.select(card["kernels"], kernel="counters").set_index(["provider", "mode"])
    of = (("tuned", "dk, dv"), ("tuned", "dq"), ("hopper", "bwd"))
    ms = [rows.loc[kernel, "gpu__time_duration.sum"] / 1e6 for kernel in of]
    print(f"{gpu(card)}, under the profiler, D = 128, full, S = 4,096:")
    print(f"chapter 8's two kernels {ms[0]:.2f} + {ms[1]:.2f} ms,", end=" ")
    print(f"this one {ms[2]:.2f} ms: {(ms[0] + ms[1]) / ms[2]:.2f} times as fast")
