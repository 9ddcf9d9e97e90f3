"""Chapter 9: what its pages show of the stored results, which tools/measure measures. card: results.load's."""

import collections
import itertools
import re
import textwrap
from collections.abc import Sequence
from functools import partial
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
from fa_tutorial.bench.chapter_8 import at_4096, flops_of
from fa_tutorial.bench.timing import timed
from fa_tutorial.source import defined, edited, excerpt, source_of, specialised
from fa_tutorial.warpgroups import KEYS, ROWS, TWO_STOPS, matmul_cycles, two_consumers

hardware.require_triton("Chapter 9's measurements")


def gpu(card: dict[str, Any]) -> str:
    """A GPU's short name: H200."""
    return card["provenance"]["gpu"].split()[1]


# When a consumer is in a block: its tiles are there, its turn has come, the stop is over, p is there, p v is in acc,
# acc is rescaled and p in fp16; with two stops: this block's own p v is in acc. A loop needn't store all.
STAMPS = ("tiles", "turn", "stop", "softmax", "end", "packed", "done")
SCORES = "        s = warpgroup_mma(q, k_t, zeros, use_acc=False, is_async=True)\n"
P_V = "        acc = warpgroup_mma(p, v.index(before), acc, is_async=True)\n"
STOP = "        s = warpgroup_mma_wait(1, [s])  # p v, which was issued last, may be under way\n"
SUM = "        acc, p = warpgroup_mma_wait(0, [acc, p])\n"
PASS = "mbarrier.arrive(turns.index(1 - C), count=1)\n"
SUM_9_3 = "        acc = warpgroup_mma(p, v.index(stage), rescaled(acc, alpha), is_async=True)\n"
TAKES_TURNS = ("empty, zeros", "empty, turns, zeros", 1), ("scale_log2, blocks):", "scale_log2, blocks, C):", 1)
ROUND = 4 * matmul_cycles(128)  # the cycles that a round's matmuls take (9.1)
NOTE = "D = 128, no mask, S = 4,096"
# What makes another loop of the solution of 9.3, which has two stops, and of 9.4's, which ptxas leaves half overlapped.
# A turn of 9.6 lasts from p v to the next q kᵀ.
LOOP_CHANGES = {
    "two stops": (),
    "two stops, by turns": (
        *TAKES_TURNS, ("    for i in", "    mbarrier.wait(turns.index(C), 1 - C)\n    for i in", 1),
        (SCORES, f"{SCORES}        {PASS}", 1),
        (SUM_9_3, "        acc = rescaled(acc, alpha)\n        mbarrier.wait(turns.index(C), (i + C) % 2)\n"
         + SUM_9_3.replace("rescaled(acc, alpha)", "acc"), 1),
        ("    return l, acc", f"    {PASS}    return l, acc", 1),
    ),
    "half overlapped": (),
    "half overlapped, by turns": (
        *TAKES_TURNS, (SCORES, f"        mbarrier.wait(turns.index(C), (i + C) % 2)\n{SCORES}", 1),
        (P_V, f"{P_V}        {PASS}", 1),
    ),
    "one stop": ((STOP, "        s, acc, p = warpgroup_mma_wait(0, [s, acc, p])\n", 1), (SUM, "", 1)),
    "overlapped": ((P_V, "", 1), (STOP, f"        s = warpgroup_mma_wait(0, [s])\n{P_V}", 1)),
}  # fmt: skip


def loop_of(name: str) -> str:
    """The source of one of LOOP_CHANGES, a consumer's loop."""
    solution = hopper.ladder.attend if name.startswith("two stops") else hopper.ladder.attend_overlapped
    return edited(source_of(solution), *LOOP_CHANGES[name])


def attend_of(name: str):
    """loop_of(name) as a function for ladder.forward_kernel, all but those that take turns."""
    names = defined(loop_of(name), vars(hopper.ladder))
    return names["attend" if name == "two stops" else "attend_overlapped"]


def block_of(name: str) -> str:
    """The lines of a block of loop_of that issue matmuls, wait for them, or compute the softmax."""
    lines = excerpt(loop_of(name), "s = warpgroup_mma(q, k_t", "acc = rescaled").splitlines()[:-1]
    return "\n".join(line.split("  #")[0] for line in lines if not line.startswith("mbarrier.arrive(empty"))


# What a block of each of the chapter's kernels does, in order.
BLOCKS = {
    "chapter 8's": "p v of the block before, q kᵀ, wait for both, softmax",
    "two stops": "q kᵀ, wait for it, softmax, p v, wait for it",
    "one stop": "q kᵀ, p v of the block before, wait for both, softmax",
    "half overlapped": "the same matmuls, wait for q kᵀ, then for p v, softmax",
    "overlapped": "q kᵀ, wait, p v of the block before under the softmax",
    "finished": "as half overlapped, but a program's ends are hidden",
}


def finished_block() -> str:
    """A block of the finished kernel's loop, as it is compiled for D = 128 without a mask, where nobody takes turns."""
    choices = source_of(hopper.forward.next_block).replace("flags.OVERLAP", "OVERLAP")
    block = specialised(choices, OVERLAP=True, MASK=False)
    return excerpt(edited(block, ("    pass_turn(turns, C, flags.TURNS)\n", "", 1)), "s = issue_qk", "release(shared.v")


def loops(card: dict[str, Any], **shape: int) -> pd.DataFrame:
    """The kernels that were timed in turns, D = 128, full, S = 4,096, by name: "cycles" of an SM for a round,
    "mhz", "tflops", "instructions" of a block where they were counted, and as "one" the share of the time in which
    exactly one consumer is at a softmax, where there are stamps. shape: another than 16 heads."""
    found = results.select(card["kernels"], kernel="loop", **{"H_q": 16} | shape).set_index("provider")
    table = found[["mhz", "tflops", "instructions"]].copy()
    for column in ("cycles", "cycles_20", "cycles_80"):
        table[column] = [_cycles_a_round(card, row, column) for _, row in found.iterrows()]
    table["one"] = [of[1] if isinstance(of, list) else None for of in found["softmax_at_once"]]
    return table


def print_kernels(card: dict[str, Any]) -> None:
    """The chapter's six kernels: what a block does, the cycles of an SM for a round, and the rate."""
    table = loops(card)
    print(f"{f'{gpu(card)}, {NOTE}':74}cycles  TFLOP/s")
    for name, block in BLOCKS.items():
        print(f"{name:17}{block:56}{table.loc[name, 'cycles']:7,.0f}{table.loc[name, 'tflops']:9.0f}")


def print_cycles(card: dict[str, Any], *names: str) -> None:
    """The cycles of an SM for a round, of these loops."""
    cycles = loops(card)["cycles"]
    print(f"{f'{gpu(card)}, {NOTE}':50}cycles")
    for name in names:
        print(f"{name:50}{cycles[name]:6,.0f}")


def print_late(card: dict[str, Any]) -> None:
    """Two stops, and the same with a late consumer 1: cycles, and those of the model of two consumers."""
    table = loops(card)
    print(f"{'D = 128, cycles':34}{gpu(card):>6}   model, no ends")
    for name, late in (("two stops", 0), ("two stops, consumer 1 late", LATER)):
        model, _ = two_consumers(TWO_STOPS, late=late)
        print(f"{name:34}{table.loc[name, 'cycles']:6,.0f}{model:8,.0f}")
    print(f"after a late start, by stamps: one at a softmax {table.loc[name, 'one']:.0%}")


def print_turns(card: dict[str, Any]) -> None:
    """Two stops and half overlapped, and both by turns: cycles and clock; and of two stops how often one consumer is at
    a softmax."""
    table = loops(card)
    print(f"{f'{gpu(card)}, {NOTE}':50}cycles    MHz")
    for name in ("two stops", "two stops, by turns", "half overlapped", "half overlapped, by turns"):
        print(f"{name:50}{table.loc[name, 'cycles']:6,.0f}{table.loc[name, 'mhz']:7,}")
    before, after = table.loc[["two stops", "two stops, by turns"], "one"]
    print(f"two stops, by stamps: one at a softmax {before:.0%}, by turns {after:.0%}")


LATER = 1200  # cycles by which a late consumer 1 begins after consumer 0
# From each kernel to the next, from chapter 8's to the finished one, what changes; and how it is drawn.
CHANGES = {
    "chapter 8's": ("", "0.9"), "one stop": ("a producer and three stages", "C4"),
    "half overlapped": ("waiting for q kᵀ alone", "C1"), "finished": ("persistent", "C2"),
}  # fmt: skip


def draw_account(card: dict[str, Any]) -> Figure:
    """A bar for the cycles of each kernel of CHANGES, with what its change saved; the line is what the matmuls take by
    (9.1)."""
    table = loops(card).loc[list(CHANGES)]
    figure = Figure(figsize=(10, 2.9))
    ax, matmuls = figure.subplots(), ROUND
    before = None
    for n, (name, row) in enumerate(table.iterrows()):
        cycles = round(row["cycles"])
        ax.barh(n, cycles, facecolor="0.9", **EDGE)
        spread = (row.cycles_80 - row.cycles_20) / row.cycles / 2
        ax.text(40, n, f"{cycles:,} ± {spread:.1%}", va="center", size="small")
        if before:
            ax.barh(n, before - cycles, left=cycles, facecolor=CHANGES[name][1], **EDGE)
            ax.text(before + 30, n, f"−{before - cycles:,}", va="center", size="small")
        before = cycles
    ax.barh(n, matmuls - before, left=before, facecolor="white", hatch="////", **EDGE)
    ax.text((matmuls + before) / 2, n + 0.42, f"{before - matmuls:,} left", ha="center", va="top", size="small")
    ax.axvline(matmuls, color="black", linestyle="--", linewidth=1.3)
    ax.text(matmuls + 20, -0.55, f"the matmuls alone (9.1): {matmuls:,}", ha="left", va="bottom", size="small")
    ax.set(xlim=(0, 3_800), ylim=(len(table) - 0.2, -1.05))
    ax.set_xlabel(f"cycles a round, {gpu(card)}, {NOTE}", loc="left")
    _lanes(ax, list(table.index))
    told = [change for change in CHANGES.values() if change[0]]
    handles = [Patch(facecolor=colour, edgecolor="black") for _, colour in told]
    figure.legend(handles, [words for words, _ in told], loc="outside lower center", ncols=3)
    return figure


# What each change took away, as in CHANGES, and what is left of the finished kernel's.
CAUSES = {
    "late tiles, collisions, a longer loop": {"facecolor": "C4"},
    "waiting for p v before the maximum": {"facecolor": "C1"},
    "a program's ends": {"facecolor": "C2"},
    "left: the softmax": {"facecolor": "0.7"},
    "left: SMs without work": {"facecolor": "0.9"},
    "left, unexplained": {"facecolor": "white", "hatch": "////"},
}


def draw_answer(card: dict[str, Any]) -> Figure:
    """The cycles a round that chapter 8's kernel takes beyond those of its matmuls, by CAUSES."""
    cycles = loops(card)["cycles"].round()
    finished = cycles["finished"]
    gone = [a - b for a, b in itertools.pairwise(cycles[list(CHANGES)])]
    softmax = finished - cycles["finished, without all of these"]
    idle = finished - loops(card, H_q=33)["cycles"].round()["finished"]
    parts = [*gone, softmax, idle, finished - ROUND - softmax - idle]
    figure = Figure(figsize=(10, 2.0))
    ax, left = figure.subplots(), 0
    for part, look in zip(parts, CAUSES.values(), strict=True):
        ax.barh(0, part, left=left, **EDGE, **look)
        ax.text(left + part / 2, 0, f"{part:,.0f}", ha="center", va="center", size="small", bbox=ON_DOTS)
        left += part
    ax.set(xlim=(0, left + 20), xlabel=f"chapter 8's cycles a round beyond the matmuls' {ROUND:,}: {left:,.0f}")
    _lanes(ax, [])
    handles = [Patch(edgecolor="black", **look) for look in CAUSES.values()]
    figure.legend(handles, list(CAUSES), loc="outside upper center", ncols=2, frameon=False)
    return figure


def _cycles_a_round(card: dict[str, Any], row: pd.Series, column: str = "cycles") -> float:
    """Cycles of an SM for a round of scores that are seen."""
    pairs = row["B"] * row["H_q"] * ledger.visible_pairs(row["S_q"], row["S_q"], row["is_causal"])
    return row[column] / pairs * 2 * ROWS * KEYS * card["provenance"]["multiprocessors"]


def clocked(card: dict[str, Any], loop: str) -> pd.Series:
    """A loop's stored stamps, D = 128, three stages: "cycles" by part of a block, "stamps" of a few blocks."""
    return results.select(card["kernels"], kernel="clocked", provider=loop).iloc[0]


def softmaxes(card: dict[str, Any], loop: str) -> list[list[tuple[int, int]]]:
    """For each consumer of one program the (begin, end) of its softmaxes in a few blocks."""
    begin, end = (STAMPS.index(name) for name in ("stop", "softmax"))
    return [[(block[begin], block[end]) for block in blocks] for blocks in clocked(card, loop)["stamps"]]


# What a consumer does, how it is called, and how it is drawn.
PARTS = {
    "matmul": ("waits for matmuls", {"facecolor": "C0"}),
    "softmax": ("softmax", {"facecolor": "C1"}),
    "rest": ("rescales, p to fp16", {"facecolor": "0.85"}),
    "tiles": ("releases, waits for tiles", {"facecolor": "white", "hatch": "....."}),
}
IDLE = {"facecolor": "white", "hatch": "////"}
ON_DOTS = {"facecolor": "white", "pad": 1, "linewidth": 0}  # behind a number


def parts_of(block: Sequence[int], after: Sequence[int]) -> list[tuple[str, int, int]]:
    """(part, from, to) of a block, by its stamps and those of the block after it."""
    at = dict(zip(STAMPS, block, strict=True)) | {"next": after[1]}
    parts = {
        ("turn", "stop"): "matmul", ("stop", "softmax"): "softmax", ("softmax", "end"): "matmul",
        ("end", "packed"): "rest", ("packed", "done"): "matmul", ("done", "next"): "tiles",
    }  # fmt: skip
    return [(part, at[start], at[end]) for (start, end), part in parts.items() if at[end] > at[start]]


def mean_parts(row: pd.Series) -> list[tuple[str, int]]:
    """(part, cycles) of a clocked row's mean block, in its order."""
    block = [0, *itertools.accumulate(row["cycles"].values())]
    return [(part, end - start) for part, start, end in parts_of(block[:-1], [block[-1] + at for at in block])]


class Block(NamedTuple):
    """The cycles of a consumer's mean block at D = 128, by stamps: it waits for matmuls, for tiles, and all others. In
    the finished kernel, which is half overlapped, the wait for p v is one of the others."""

    waits: int
    tiles: int
    away: int


def by_stamps(card: dict[str, Any], loop: str) -> Block:
    """A mean block of a clocked loop."""
    row = clocked(card, loop)
    cycles = row["cycles"]
    if loop == "chapter 8's":
        return Block(cycles["p v to asked"] + cycles["k to stop"], cycles["asked to k"], cycles["away"])
    if loop == "finished":
        return Block(cycles["k"], cycles["packed"], cycles["s"])
    parts: collections.Counter[str] = collections.Counter()
    for part, length in mean_parts(row):
        parts[part] += length
    return Block(parts["matmul"], parts["tiles"], parts["softmax"] + parts["rest"])


def draw_blocks(card: dict[str, Any], *names: str) -> Figure:
    """A bar for a round of each of these kernels, as one consumer spends it: by_stamps of its block, and what a call
    with stamps takes more than its blocks, the ends of its programs. First what is best: it waits for its own matmuls,
    or where they overlap for q kᵀ, and is away while the other's run (9.1)."""
    plain, own = loops(card)["cycles"], 2 * matmul_cycles(128)
    best = {"at best": own} | ({"at best, overlapped": own // 2} if {"overlapped", "finished"} & {*names} else {})
    rows: dict[str, tuple[int, ...]] = {name: (waits, 0, ROUND - waits, 0) for name, waits in best.items()}
    for name in names:
        block = by_stamps(card, name)
        rows[name] = *block, round(_cycles_a_round(card, clocked(card, name), "call")) - sum(block)
    figure = Figure(figsize=(10, 0.42 * len(rows) + 1.2))
    ax = figure.subplots()
    looks = [PARTS["matmul"][1], PARTS["tiles"][1], PARTS["softmax"][1], {"facecolor": "white"}]
    for y, (name, parts) in enumerate(rows.items()):
        left = 0
        for x, look in zip(parts, looks, strict=True):
            ax.barh(y, x, left=left, **EDGE, **look)
            ink = {"color": "white"} if look["facecolor"].startswith("C") else {"bbox": ON_DOTS}
            if x:
                ax.text(left + x / 2, y, f"{x:,}", ha="center", va="center", size="small", **ink)
            left += x
        told = f"{left:,}" + (f", without stamps {plain[name]:,.0f}" if name in plain else "")
        ax.text(left + 30, y, told, va="center", size="small")
    ax.set(xlim=(0, 5_000), xlabel=f"cycles a round, {gpu(card)}, {NOTE}")
    _lanes(ax, list(rows))
    handles = [Patch(edgecolor="black", **look) for look in looks]
    figure.legend(handles, ["waits", "tiles", "away", "ends"], loc="outside lower center", ncols=4)
    return figure


def draw_clocked(card: dict[str, Any], *loops: str) -> Figure:
    """Both consumers of one program over a few blocks, a panel for each of `loops`, by their stamps. A bar's number is
    its own length. The third lane shows when both wait for matmuls at once."""
    figure = Figure(figsize=(10, 2.2 * len(loops) + 1.1))
    panels = figure.subplots(len(loops), 1, sharex=True, squeeze=False)[:, 0]
    for ax, loop in zip(panels, loops, strict=True):
        stamps = clocked(card, loop)["stamps"]
        for c, blocks in enumerate(stamps):
            for part in itertools.chain.from_iterable(itertools.starmap(parts_of, itertools.pairwise(blocks))):
                _part(ax, c, *part)
        first, last, spans = both_wait(stamps)
        _busy(ax, 2, first, last, spans, facecolor="white")
        _lanes(ax, ["consumer 0", "consumer 1", "both wait\nfor matmuls"])
        share = sum(end - start for start, end in spans) / (last - first)
        ax.set_title(f"{loop}: both wait for {share:.0%} of the time", loc="left", fontsize="medium")
    panels[-1].set(xlim=(0, 13_000), xlabel=f"cycles of the SM, {gpu(card)}, {NOTE}")
    handles = [Patch(edgecolor="black", **look) for _, look in PARTS.values()]
    figure.legend(handles, [words for words, _ in PARTS.values()], loc="outside lower center", ncols=4)
    return figure


EDGE = {"height": 0.7, "edgecolor": "black", "linewidth": 0.5}  # of a bar


def _part(ax: Axes, lane: int, look: str, left: int, right: int) -> None:
    """A consumer's part, with its own length where there is room."""
    ax.barh(lane, right - left, left=left, **EDGE, **PARTS[look][1])
    if look in ("matmul", "softmax") and right - left > 580 and left < 12_500:
        place = (left + right) / 2, lane, f"{right - left:,}"
        ax.text(*place, ha="center", va="center", color="white", fontsize="small", clip_on=True)


def _busy(ax: Axes, lane: int, first: int, last: int, spans: Sequence[tuple[int, int]], **rest: Any) -> None:
    """A lane from first to last that is busy in `spans`; rest: how it looks elsewhere, if not as IDLE."""
    ax.barh(lane, last - first, left=first, **EDGE, **(rest or IDLE))
    for start, end in spans:
        ax.barh(lane, end - start, left=start, height=0.7, linewidth=0, facecolor="C0")


def _lanes(ax: Axes, names: Sequence[str], places: Sequence[float] | None = None) -> None:
    ax.set_yticks(places or range(len(names)), names)
    if not ax.yaxis_inverted():
        ax.invert_yaxis()
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.grid(False)


def draw_parts(card: dict[str, Any]) -> Figure:
    """The finished kernel, with 33 heads in place of 16, whose work tiles 132 SMs share evenly, without parts of its
    softmax, and with exponentials by a polynomial, D = 128, full, S = 4,096: an SM's cycles for a round beyond
    those of the matmuls, and instructions a block."""
    found, shared = loops(card), loops(card, H_q=33).rename({"finished": "finished, SMs share evenly"})
    found = found[found.index.str.match("finished($|, with)")]
    found = pd.concat([found[:1], shared, found[1:]])
    figure = Figure(figsize=(10, 3.3))
    ax, matmuls = figure.subplots(), ROUND
    places = [n + 0.4 * (n > 1) for n in range(len(found))]  # the softmax's parts are another experiment
    for n, (name, row) in zip(places, found.iterrows(), strict=True):
        beyond = round(row.cycles - matmuls)
        colour = "C3" if "polynomial" in name else "C1" if "without" in name else "0.85"
        ax.barh(n, beyond, facecolor=colour, **EDGE)
        ax.text(beyond + 8, n, f"{beyond:,}", va="center", size="small")
        ax.text(880, n, f"{row.instructions:.0f}", va="center", ha="right", size="small")
    ax.text(880, -0.6, "instructions", va="bottom", ha="right", size="small")
    ax.set(xlim=(0, 890), ylim=(len(found) - 0.1, -1.2))
    _lanes(ax, [name.removeprefix("finished, ").removeprefix("with ") for name in found.index], places)
    ax.set_xlabel(f"cycles a round beyond the matmuls' {matmuls:,}, {gpu(card)}, {NOTE}", loc="left")
    return figure


def print_beside(card: dict[str, Any]) -> None:
    """One stop: a block of consumer 0, by what the other consumer does."""
    print(f"{f'one stop, {gpu(card)}, cycles of consumer 0':45}waits  tiles   away")
    for words in (", consumer 1 only releases its tiles", ", consumer 1 only multiplies", ""):
        block = by_stamps(card, f"one stop{words}")
        print(f"{words.removeprefix(', ') or 'consumer 1 as usual':45}{block.waits:5,}{block.tiles:7,}{block.away:7,}")


def print_maximum(card: dict[str, Any]) -> None:
    """D = 128, one stop, beside a second consumer: the cycles of a block's maximum by stamps."""
    row = clocked(card, "one stop, its maximum")
    print(f"one stop, {gpu(card)}: {row['cycles']['stop']} cycles from the scores to their maximum")


def print_maxima(loops: dict[str, dict[str, Any]]) -> None:
    """Where the maxima of loops stand, which sass.stored or sass.compiled gives: between the two waits, or after."""
    print(f"{'maxima, by ptxas':28}between the waits  after them")
    for name, loop in loops.items():
        print(f"{name:28}{loop['maxima'][1]:17}{loop['maxima'][2]:12}")


def both_wait(stamps: list) -> tuple[int, int, list[tuple[int, int]]]:
    """(from, to, spans): while both consumers have stamps, when both wait for matmuls."""
    first, last = max(blocks[0][1] for blocks in stamps), min(blocks[-1][1] for blocks in stamps)
    waits = [
        [
            (start, end)
            for pair in itertools.pairwise(blocks)
            for part, start, end in parts_of(*pair)
            if part == "matmul"
        ]
        for blocks in stamps
    ]
    both = [(max(a, c), min(b, d)) for (a, b), (c, d) in itertools.product(*waits)]
    return first, last, [(start, end) for start, end in both if start < end]


def print_errors(card: dict[str, Any], attend=None) -> None:
    """The largest error of the ladder's forward with this loop, on this machine's Hopper GPU, and its rate; None: the
    error as stored."""
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
    q, k, v = torch.randn(3, 4, 16, 4096, 128, dtype=torch.float16, device="cuda")
    call = partial(hopper.ladder.flash_forward, q, k, v, 128**-0.5, attend=attend)
    row = timed(call, flops=flops_of(at_4096(128, False)))
    print(f"largest error {ours:.1e}, of plain attention {plain:.1e}; {row['tflops']:.0f} TFLOP/s, {NOTE}")


MASKS = {True: "causal", False: "no mask"}  # not full, which is a barrier here


def print_compared(card: dict[str, Any], mode: str, *others: str) -> None:
    """The speed of hopper over that of others, at the twelve points: its geometric mean, the most and the least."""
    rates = tables.table(card["rows"], GRIDS["points"], mode, "fp16")
    print(f"{MODES[mode]}, {gpu(card)}: speed of the hopper kernel over another's, twelve cases, geometric mean")
    for peer in others:
        of = rates["hopper"] / rates[peer]
        mean, (D, is_causal, S) = np.exp(np.log(of).mean()), of.idxmin()
        least = f"least {of.min():.2f}, at D = {D}, {MASKS[is_causal]}, S = {S:,}"
        print(f"  {peer:13} mean {mean:.2f}, most {of.max():.2f}, {least}; below 0.995: {(of < 0.995).sum()}")


def print_persistent(card: dict[str, Any]) -> None:
    """TFLOP/s with a program for each work tile, and persistent, by how the next is found, D = 64: causal, S = 4,096,
    and a short full one."""
    found = results.select(card["kernels"], chapter=9, kernel="step", D=64)
    heads = "a program each", "fixed numbers", "a counter"
    print(f"{f'{gpu(card)}, D = 64, TFLOP/s':34}" + "".join(f"{head:>15}" for head in heads))
    for S, is_causal in ((4096, True), (1024, False)):
        of = results.select(found, S_q=S, is_causal=is_causal).set_index("provider")["tflops"]
        cells = "".join(f"{of[step]:15.0f}" for step in ("overlap", "persistent", "counter"))
        print(f"{f'{MASKS[is_causal]}, S = {S:,}':34}{cells}")


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
    lanes = lanes_of([line.replace("'", "′").replace("’", "′") for line in order])
    figure = Figure(figsize=(10, 2.1))
    ax = figure.subplots()
    ax.barh((0, 1), lanes.end, **EDGE, **IDLE)
    looks = dict.fromkeys(("s", "dp"), "C0") | dict.fromkeys(("dk", "dv"), "C2") | {"dq": "C3"}
    for lane, spans in enumerate((lanes.matmuls, lanes.work)):
        for what, (start, end) in spans.items():
            colour = "C1" if lane else looks[what.removesuffix("′")]
            ax.barh(lane, end - start, left=start, facecolor=colour, **EDGE)
            text = what.removeprefix("hand over ").replace("add dq", "add\ndq")
            ink = "black" if what == "dq" else "white"
            ax.text((start + end) / 2, lane, text, color=ink, ha="center", va="center", size="small")
    for line, words, side in (("hand over ds", "ds handed over ", "right"), ("meet", " met", "left")):
        ax.axvline(lanes.done[line], color="black", linestyle="--", linewidth=1.3)
        ax.text(lanes.done[line], -0.42, words, va="bottom", ha=side, size="small")
    ax.set(ylim=(1.5, -0.75), xlim=(0, 2200))
    _lanes(ax, ("tensor cores", "its warps"))
    idle = lanes.end - BLOCK_MATMUL * len(lanes.matmuls)
    ax.set_title(f"{name}: {lanes.end:,} cycles, the tensor cores idle for {idle:,}", loc="left")
    ax.set_xlabel("cycles; matmuls and p by (9.1), the rest guessed; hatched: idle, or waiting")
    return figure


def gluon_lines(order: Sequence[str]) -> list[str]:
    """The lines of hopper.backward.one_block, D = 128, in this order of exercise 9.9's, with the waits' numbers that it
    needs."""
    order = [line.replace("'", "′").replace("’", "′") for line in order]
    block = specialised(hopper.backward.one_block, MORE=True, UNDER_DQ=True)
    kernels = excerpt(block, "dp_t = issue_dp", "dv = warpgroup_mma_wait(0").replace("p_t = ahead\n", "")
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in kernels.splitlines():
        code, _, words = line.partition("  # ")
        lines.append(f"{code}  # {words.partition(':')[0]}" if words else code)
        label = next((name for name in order if words.removeprefix("meet, ").startswith(name)), None)
        if label:
            found[label], lines = lines, []
    written, issued = ["p_t = ahead  # computed ahead, in the block before"], []
    for line in order:
        if line.startswith("issue "):
            issued.append(line.removeprefix("issue "))
        after = 0
        if line.startswith("wait for "):
            last = max(issued.index(name) for name in line.removeprefix("wait for ").split(", "))
            after = len(issued) - 1 - last
        written += [re.sub(r"_wait\(\d", f"_wait({after}", code) for code in found.get(line, ())]
    return written


def in_gluon(order: Sequence[str]) -> str:
    """gluon_lines to look at: of the arguments those that many calls share are left out."""
    return "\n".join(re.sub(r", (dq_desc, )?shared, [^)]*\)", ", …)", line) for line in gluon_lines(order))


def backward_with(order: Sequence[str]) -> str:
    """hopper.backward's source with gluon_lines for each block of a work tile but the last, D = 128."""
    before, first, rest = source_of(hopper.backward).partition("    dp_t = issue_dp(block")
    kernels, end, after = f"{first}{rest}".partition("    return ahead, dk, dv\n")
    written, indented = textwrap.indent("\n".join(gluon_lines(order)), " " * 8), textwrap.indent(kernels, " " * 4)
    return f"{before}    if MORE and UNDER_DQ:\n{written}\n    else:\n{indented}{end}{after}"


def print_orders(card: dict[str, Any]) -> None:
    """The backward with s′ issued earlier, both orders with more stages of q and do, and each matmul waited for before
    the next line: cycles of an SM for 64 queries and 128 keys, their share of the kernel's, and a call's time."""
    found = results.select(card["kernels"], chapter=9, kernel="order").set_index("provider")
    print(f"{f'{gpu(card)}, {NOTE}':44}cycles for 64 queries, 128 keys   share      ms")
    usual = "the kernel's", "s′ right behind dp"
    for name in (*usual, *(f"{order}, three stages" for order in usual), "line by line"):
        row = found.loc[name]
        cycles = _cycles_a_round(card, row) / 2
        print(f"{name:44}{cycles:31,.0f}{row.cycles / found.loc[usual[0], 'cycles']:8.2f}{row.ms:8.3f}")
