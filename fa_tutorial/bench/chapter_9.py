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
from fa_tutorial.source import defined, edited, excerpt, source_of, specialised
from fa_tutorial.warpgroups import KEYS, ONE_STOP, ROWS, TWO_STOPS, exp_cycles, matmul_cycles, two_consumers

hardware.require_triton("Chapter 9's measurements")


# ---------------------------------------------------------------- what the notebook shows; card: results.load's


def gpu(card: dict[str, Any]) -> str:
    """A GPU's short name: H200."""
    return card["provenance"]["gpu"].split()[1]


# What is stored of a loop's stamps; the chapter's have three stages.
LOOPS = {loop: loop for loop in ("9.3", "9.4, one wait")} | {"chapter 8's": "tuned"}
SCORES = "        s = warpgroup_mma(q, k_t, zeros, use_acc=False, is_async=True)\n"
P_V = "        acc = warpgroup_mma(p, v.index(before), acc, is_async=True)\n"
STOP = "        s = warpgroup_mma_wait(1, [s])  # p v, which was issued last, may be under way\n"
SUM = "        acc, p = warpgroup_mma_wait(0, [acc, p])\n"
# What makes another loop of 9.4's: its second step; one wait for both matmuls; and 9.6's.
LOOP_CHANGES = {
    "9.4": (),
    "9.4, second step": ((P_V, "", 1), (STOP, f"        s = warpgroup_mma_wait(0, [s])\n{P_V}", 1)),
    "9.4, one wait": ((STOP, "        s, acc, p = warpgroup_mma_wait(0, [s, acc, p])\n", 1), (SUM, "", 1)),
    "9.6": (
        ("empty, zeros", "empty, turns, zeros", 1), ("scale_log2, blocks):", "scale_log2, blocks, C):", 1),
        (SCORES, f"        mbarrier.wait(turns.index(C), (i - C) % 2)\n{SCORES}", 1),
        (P_V, f"{P_V}        mbarrier.arrive(turns.index(1 - C), count=1)\n", 1),
    ),
}  # fmt: skip


def loop_of(name: str) -> str:
    """The source of a consumer's loop: the solution of exercise "9.3", or one of LOOP_CHANGES."""
    text = source_of(hopper.ladder.attend if name == "9.3" else hopper.ladder.attend_overlapped)
    return edited(text, *LOOP_CHANGES.get(name, ()))


def attend_of(name: str):
    """loop_of(name) as a function for ladder.forward_kernel, all but "9.6", which takes turns."""
    return defined(loop_of(name), vars(hopper.ladder))["attend" if name == "9.3" else "attend_overlapped"]


def block_of(name: str) -> str:
    """The lines of a block of loop_of that issue matmuls, wait for them, or compute the softmax."""
    lines = excerpt(loop_of(name), "s = warpgroup_mma(q, k_t", "acc = rescaled").splitlines()[:-1]
    return "\n".join(line.split("  #")[0] for line in lines if not line.startswith("mbarrier.arrive(empty"))


# A line of a loop -> what it does.
DONE_BY = (
    ("warpgroup_mma(q", "q kᵀ"), ("warpgroup_mma(p, v.index(before)", "p v of the block before"),
    ("warpgroup_mma(p", "p v"), ("[s, acc, p])", "wait for both"), ("[s])", "wait for q kᵀ"), ("[acc", "wait for p v"),
    ("softmax_step", "softmax"),
)  # fmt: skip


def print_loops() -> None:
    """What a block of the chapter's loops does, in the order of their lines."""
    for name in ("9.3", "9.4", "9.4, one wait", "9.4, second step"):
        lines = [line for line in loop_of(name).partition("range(")[2].splitlines() if line.startswith(" " * 8)]
        done = [next((what for part, what in DONE_BY if part in line), None) for line in lines]
        print(f"{IN_FULL.get(name, name):30}{', '.join(filter(None, done))}")
    print()


# The rows of the chapter's tables, in their order.
ROWS_SHOWN = (
    "chapter 8's", "chapter 8's, 64 x 64", "two programs in Gluon", "two programs", "one program",
    "one program, each tile loaded twice", "9.3", "9.3, consumer 1 late", "9.4, one wait", "9.4", "9.4, second step",
    "9.6", "9.4, 2 stages", "finished loop", "third consumer", "persistent", "hopper",
)  # fmt: skip
IN_FULL = {
    "chapter 8's": "chapter 8's, one stop",
    "two programs in Gluon": "two programs, in Gluon",
    "two programs": "a producer for each",
    "one program": "one program for both consumers",
    "one program, each tile loaded twice": "the same, each tile loaded twice",
    "9.3": "9.3, two stops",
    "9.3, consumer 1 late": "9.3, consumer 1 late",
    "9.4, one wait": "9.4 with one wait: one stop",
    "9.4, second step": "9.4, second step: overlapped",
    "9.6": "9.6, ping-pong",
    "9.4, 2 stages": "9.4, 2 stages instead of 3",
    "finished loop": "finished loop, two consumers",
    "third consumer": "finished loop, three consumers",
    "persistent": "three consumers, persistent",
    "hopper": "three consumers, persistent, by turns",
}  # fmt: skip


def remedies(card: dict[str, Any], D: int) -> pd.DataFrame:
    """The rows of one run, full, S = 4,096, by name, in ROWS_SHOWN's order: cycles of an SM for 64 x 128 scores, MHz,
    TFLOP/s, W, and where there are stamps the share of the time in which exactly one consumer is at a softmax."""
    found = results.select(card["kernels"], kernel="remedy", D=D).set_index("provider")
    found = found.loc[[name for name in ROWS_SHOWN if name in found.index]]
    table = found[["mhz", "tflops", "watts"]].copy()
    table["cycles"] = [_cycles_a_block(card, row) for _, row in found.iterrows()]
    table["one"] = [of[1] if isinstance(of, list) else None for of in found["softmax_at_once"]]
    return table


def print_remedies(card: dict[str, Any], D: int, *new: str, beside: Sequence[str] = ()) -> None:
    """The rows `new`, which are marked, and those of `beside`, in the order of ROWS_SHOWN."""
    table = remedies(card, D)
    watts = table["watts"]
    head = f"{gpu(card)}, D = {D}, full, S = 4,096; {watts.min():.0f} to {watts.max():.0f} W"
    print(f"{head:42}   cycles    MHz  TFLOP/s  one at a softmax")
    for name in [name for name in table.index if name in (*beside, *new)]:
        row, mark = table.loc[name], ">" if name in new else " "
        one = f"{row['one']:.0%}" if pd.notna(row["one"]) else ""
        numbers = f"{row['cycles']:9,.0f}{row['mhz']:7,.0f}{row['tflops']:9.0f}"
        print(f"{mark} {IN_FULL.get(name, name):40}{numbers}{one:>18}".rstrip())


def print_times(card: dict[str, Any], D: int, *names: str) -> None:
    """How far the times of a row's calls lie apart, without the fastest and the slowest fifth."""
    found = results.select(card["kernels"], kernel="remedy", D=D).set_index("provider")
    times = (f"{name} {found.loc[name, 'ms_20']:.3f} to {found.loc[name, 'ms_80']:.3f}" for name in names)
    print("ms, the middle three fifths of a run's calls:", "; ".join(times))


def print_late(card: dict[str, Any]) -> None:
    """9.3, with a late consumer 1, too, and one stop, beside what the model of two consumers says of them: cycles and
    the share of the time in which exactly one consumer is at a softmax."""
    table, model = remedies(card, 128), {"9.3": (TWO_STOPS, 0), "9.3, consumer 1 late": (TWO_STOPS, 1200)}
    model["9.4, one wait"] = ONE_STOP, 0
    print(f"{'D = 128: cycles, one at a softmax':44}{gpu(card):>9}{'':8}{'model':>8}")
    for name, (loop, late) in model.items():
        cycles, shares = two_consumers(loop, late=late)
        measured = f"{table.loc[name, 'cycles']:9,.0f}{table.loc[name, 'one']:8.0%}"
        print(f"{IN_FULL[name]:44}{measured}{cycles:8,.0f}{shares[1]:8.0%}")


SUSPECTS = {
    1: "they don't alternate", 2: "a long softmax", 3: "loads, or a program's ends", "1 or 3": "both of it changed",
    None: "no suspect",
}  # fmt: skip
LOOKS = {1: "C0", 2: "C1", 3: "C2", "1 or 3": "C4", None: "0.6"}
# What is changed from each kernel to the next, from chapter 8's to the finished one, D = 128, and the suspect whose
# part it takes away.
CHANGES = (
    ("chapter 8's kernel", "chapter 8's", None),
    ("64 x 64 blocks", "chapter 8's, 64 x 64", None),
    ("a producer for each program, in Gluon", "two programs", "1 or 3"),
    ("one program for both consumers", "one program", None),
    ("128 keys a block: one stop", "9.4, one wait", 2),
    ("a wait for each matmul: 9.4", "9.4", 2),
    ("the rest of the finished loop", "finished loop", None),
    ("a persistent program", "persistent", 3),
)


class Bar(NamedTuple):
    """A kernel of the account: its cycles a block, what the change before it gave, and the suspect; one: the share of
    the time in which one consumer is at a softmax, where there are stamps; ms: of the same calls the fastest fifth's
    end, the median, and the slowest fifth's begin; mhz: their clock; spread: how far the cycles of the middle three
    fifths lie from their median."""

    words: str
    name: str
    suspect: int | str | None
    cycles: int
    change: int
    one: float | None
    ms: tuple[float, float, float]
    mhz: int
    spread: float


def account(card: dict[str, Any]) -> list[Bar]:
    """From chapter 8's kernel to the finished one, D = 128, full, S = 4,096: a kernel for each of CHANGES, in turns."""
    table, bars = remedies(card, 128), []
    found = results.select(card["kernels"], kernel="remedy", D=128).set_index("provider")
    for words, name, suspect in CHANGES:
        cycles, one = round(table.loc[name, "cycles"]), table.loc[name, "one"]
        change = cycles - bars[-1].cycles if bars else 0
        one, ms = one if pd.notna(one) else None, tuple(found.loc[name, ["ms_20", "ms", "ms_80"]])
        low, middle, high = found.loc[name, ["cycles_20", "cycles", "cycles_80"]]
        spread = max(middle - low, high - middle) / middle * cycles
        bars.append(Bar(words, name, suspect, cycles, change, one, ms, found.loc[name, "mhz"], spread))
    return bars


def draw_account(card: dict[str, Any], until: str = CHANGES[-1][1]) -> Figure:
    """The account up to one of its kernels. Left, a bar for its cycles, with what its change saved or cost; the line is
    what the matmuls take by (9.1). Right, of the same calls the median time, and where the middle three fifths lie."""
    every = account(card)
    bars = every[: [bar.name for bar in every].index(until) + 1]
    figure = Figure(figsize=(10, 1.35 + 0.38 * len(bars)))
    ax, times = figure.subplots(1, 2, sharey=True, width_ratios=(1.5, 1))
    edge, matmuls = {"height": 0.72, "edgecolor": "black", "linewidth": 0.5}, 2 * matmul_cycles(128)
    for n, bar in enumerate(bars):
        left = min(bar.cycles, bar.cycles - bar.change)
        ax.barh(n, left, facecolor="0.9", **edge)
        hatch = "" if bar.change < 0 else "////"
        ax.barh(n, abs(bar.change), left=left, facecolor=LOOKS[bar.suspect], hatch=hatch, **edge)
        said = f"{bar.cycles:,}" + (f"  {bar.change:+,}".replace("-", "−") if n else "")
        said += f"  suspect {bar.suspect}" if bar.suspect else ""
        ax.text(max(bar.cycles, bar.cycles - bar.change) + 20, n, said, va="center", size="small")
        low, middle, high = bar.ms
        times.plot((low, high), (n, n), color="0.6", linewidth=5, solid_capstyle="butt")
        times.plot(middle, n, "o", color=LOOKS[bar.suspect] if n and bar.suspect else "black")
        times.text(1.28, n, f"{middle:.2f} ms  {bar.mhz:,} MHz", va="center", size="small")
    ax.axvline(matmuls, color="black", linestyle="--", linewidth=1.3)
    ax.text(matmuls + 15, -0.6, f"the matmuls alone (9.1): {matmuls:,}", ha="left", va="bottom", size="small")
    ax.set_yticks(range(len(bars)), [bar.words for bar in bars])
    ax.set_ylim(len(bars) - 0.5, -1.15)
    ax.set_xlim(0, 2_950)
    ax.set_xticks(range(0, 2_001, 500))
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.set_xlabel(f"cycles for 64 x 128 scores, {gpu(card)}, D = 128, full, S = 4,096", loc="right")
    times.set_xlim(0.82, 1.98)
    times.set_xticks((0.9, 1.1))
    times.set_xlabel("ms of the same calls", loc="left")
    for each in (ax, times):
        each.grid(False)
    found = [suspect for suspect in SUSPECTS if suspect in {bar.suspect for bar in bars[1:]}]
    if found:
        handles = [Patch(facecolor=LOOKS[suspect], edgecolor="black") for suspect in found]
        words = [f"{suspect}: {SUSPECTS[suspect]}" if suspect else SUSPECTS[suspect] for suspect in found]
        figure.legend(handles, words, loc="outside lower center", ncols=4)
    return figure


def print_account(card: dict[str, Any]) -> None:
    """D = 128: from chapter 8's cycles, and its time, to those of the finished kernel, a line for all changes of a
    suspect; and what its cycles consist of: its matmuls (9.1), and what SMs idle because some have one work tile less
    than others."""
    bars = account(card)
    first, last = bars[0], bars[-1]
    lines = [(f"{gpu(card)}, D = 128, full, S = 4,096", "cycles", "ms a call")]
    lines += [(first.words, f"{first.cycles:,}", f"{first.ms[1]:.3f}")]
    for suspect, words in SUSPECTS.items():
        saved = sum(bar.change for bar in bars if bar.suspect == suspect)
        ms = sum(bar.ms[1] - before.ms[1] for before, bar in itertools.pairwise(bars) if bar.suspect == suspect)
        if not any(bar.suspect == suspect for bar in bars[1:]):
            continue
        words = f"  {suspect or '-'}: {words}".replace("-: ", "")
        lines.append((words, f"{saved:+,}".replace("-", "−"), f"{ms:+.3f}".replace("-", "−")))
    row = results.select(card["kernels"], kernel="remedy", D=128, provider=last.name).iloc[0]
    tiles, sms = row["B"] * row["H_q"] * row["S_q"] // (2 * ROWS), card["provenance"]["multiprocessors"]
    matmuls, unequal = 2 * matmul_cycles(128), round(last.cycles * (1 - tiles / sms / -(-tiles // sms)))
    lines += [("the finished kernel", f"{last.cycles:,}", f"{last.ms[1]:.3f}"), ("  its matmuls", f"{matmuls:,}", "")]
    lines += [(f"  {tiles:,} work tiles on {sms} SMs: {tiles // sms} or {-(-tiles // sms)} each", unequal, "")]
    lines += [("  the rest", last.cycles - matmuls - unequal, "")]
    print("\n".join(f"{words:46}{number:>8}{ms:>12}".rstrip() for words, number, ms in lines))
    print(f"the middle three fifths of a kernel's calls: cycles ±{max(bar.spread for bar in bars):.0f} at most")


def print_keys(card: dict[str, Any]) -> None:
    """D = 128, by stamps beside a second consumer: the cycles in which a consumer is away from its matmuls, for 64 x
    128 scores, with 64 keys a block and with 128."""
    of = results.select(card["kernels"], kernel="alone", D=128).set_index("provider")["clock"]
    parts = {64: of["2 consumers in 1 program"], 128: clocked(card, "9.4, one wait", 128)["cycles"]}
    print(f"{f'{gpu(card)}, D = 128, cycles for 64 x 128 scores':44}softmax  the rest   away")
    for keys, cycles in parts.items():
        softmax, away = (128 // keys * each for each in (cycles["stop"], sum(cycles.values()) - cycles["turn"]))
        print(f"{f'{keys:3} keys a block':42}{softmax:9,}{away - softmax:10,}{away:7,}")
    print(f"{'the other consumer’s matmuls (9.1)':61}{2 * matmul_cycles(128):7,}")


def finished_block() -> str:
    """hopper.forward.next_block as two consumers run it without a mask."""
    flags = hopper.forward.Flags(False, False, False, False, True, False)
    text = specialised(hopper.forward.next_block, flags=flags, MASK=False)
    lines = excerpt(text, "s = issue_qk", "return pairs_new").splitlines()
    return "\n".join(line for line in lines if "pass_turn" not in line)


def print_cycles(card: dict[str, Any], name: str) -> None:
    """The cycles of a row of the table, D = 128, as a line of another."""
    print(f"{f'{name}, measured, {gpu(card)}':42}{remedies(card, 128).loc[name, 'cycles']:9,.0f}")


def _cycles_a_block(card: dict[str, Any], row: pd.Series | dict[str, Any]) -> float:
    """Cycles of an SM for 64 x 128 scores that are seen."""
    blocks = row["B"] * row["H_q"] * ledger.visible_pairs(row["S_q"], row["S_q"], row["is_causal"]) / (ROWS * KEYS)
    return row["cycles"] / blocks * card["provenance"]["multiprocessors"]


def clocked(card: dict[str, Any], loop: str, D: int) -> pd.Series:
    """A consumer's stamps in one of LOOPS: "cycles" by part of a block, "stamps" of a few blocks."""
    return results.select(card["kernels"], kernel="clocked", provider=LOOPS[loop], D=D).iloc[0]


def softmaxes(card: dict[str, Any], loop: str, D: int) -> list[list[tuple[int, int]]]:
    """For each consumer of one program, or program of one SM, the (begin, end) of its softmaxes in a few blocks."""
    begin, end = (ping_pong.STAMPS.index(name) for name in ("stop", "softmax"))
    return [[(block[begin], block[end]) for block in blocks] for blocks in clocked(card, loop, D)["stamps"]]


# What a consumer does, how it is called, and how it is drawn.
PARTS = {
    "matmul": ("waits for matmuls", {"facecolor": "C0"}),
    "softmax": ("softmax", {"facecolor": "C1"}),
    "rest": ("rescales, p to fp16", {"facecolor": "0.85"}),
    "tiles": ("releases, waits for tiles", {"facecolor": "white", "hatch": "....."}),
}
IDLE = {"facecolor": "white", "hatch": "////"}


def parts_of(block: Sequence[int], after: Sequence[int]) -> list[tuple[str, int, int]]:
    """(part, from, to) of a block, by its stamps and those of the block after it. Chapter 8's programs have the first
    stamps alone, and wait for their tiles somewhere in "matmul" or "rest"."""
    at = dict(zip(ping_pong.STAMPS, block, strict=False))
    found = [("matmul", at["turn"], at["stop"]), ("softmax", at["stop"], at["softmax"])]
    if "packed" not in at:
        return [*found, ("rest", at["softmax"], after[1])]
    found += [("rest", at["softmax"], at["packed"])]
    if at["done"] > at["packed"]:
        found.append(("matmul", at["packed"], at["done"]))
    return [*found, ("tiles", at["done"], after[1])]


def mean_parts(row: pd.Series) -> list[tuple[str, int]]:
    """(part, cycles) of a clocked row's mean block, in its order."""
    block = [0, *itertools.accumulate(row["cycles"].values())]
    return [(part, end - start) for part, start, end in parts_of(block[:-1], [block[-1] + at for at in block])]


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
        parts = " + ".join(f"{each:,}" for _, each in mean_parts(row))
        words = f"one at a softmax {row['softmax_at_once'][1]:.0%}, by chance {chance:.0%}"
        ax.set_title(
            f"{IN_FULL.get(loop, loop).split(': ')[-1]}: {parts} = {cycles:,} cycles a block; {words}",
            loc="left",
            fontsize="medium",
        )
    panels[-1].set_xlim(0, 13_000)
    panels[-1].xaxis.set_major_formatter("{x:,.0f}")
    note = "; chapter 8's waits for tiles lie in blue or grey" if "chapter 8's" in loops else ""
    panels[-1].set_xlabel(f"cycles of the SM, {gpu(card)}, D = {D}, full, S = 4,096{note}")
    handles: list[Any] = [Patch(edgecolor="black", **look) for look in (*(look for _, look in PARTS.values()), IDLE)]
    words = [*(words for words, _ in PARTS.values()), "no matmul issued"]
    figure.legend(handles, words, loc="outside lower center", ncols=5)
    return figure


def _draw_lanes(ax: Axes, row: pd.Series) -> None:
    """A lane for each consumer, by its stamps, and one for the matmuls that are under way."""
    edge = {"height": 0.7, "edgecolor": "black", "linewidth": 0.5}
    lane = len(row["stamps"])
    for c, blocks in enumerate(row["stamps"]):
        for n, (block, after) in enumerate(itertools.pairwise(blocks)):
            for (part, left, right), (_, mean) in zip(parts_of(block, after), mean_parts(row), strict=True):
                ax.barh(c, right - left, left=left, **edge, **PARTS[part][1])
                if n == 0 and mean > 400:
                    ax.text(
                        (left + right) / 2, c, f"{mean:,}", ha="center", va="center", color="white", fontsize="small"
                    )
    first, last, under_way = matmuls_under_way(row["stamps"])
    ax.barh(lane, last - first, left=first, **edge, **IDLE)
    for start, end in under_way:
        ax.barh(lane, end - start, left=start, height=0.7, linewidth=0, facecolor="C0")
    who = "program" if row["provider"] == LOOPS["chapter 8's"] else "consumer"
    share = sum(end - start for start, end in under_way) / (last - first)
    issued = f"a matmul issued,\nnot finished: {share:.0%}"
    ax.set_yticks(range(lane + 1), (*(f"{who} {c}" for c in range(lane)), issued))
    ax.invert_yaxis()
    ax.grid(False)


# What a consumer does up to each stamp of a finished kernel (tools/measure/finished_clock), and a look of PARTS.
FINISHED = {
    "hopper": (
        ("waits for s", "matmul"), ("softmax, the rest of p v, rescaling", "softmax"),
        ("releases, waits for tiles", "tiles"),
    ),
    "hopper backward": (
        ("waits for a matmul", "matmul"), ("ds, p′", "softmax"), ("meets", "meets"), ("waits for a matmul", "matmul"),
        ("ds, p′", "softmax"), ("waits for a matmul", "matmul"), ("adds dq", "rest"), ("waits for a matmul", "matmul"),
        ("releases, waits for tiles", "tiles"),
    ),
}  # fmt: skip
FINISHED_LOOKS = {key: look for key, (_, look) in PARTS.items()} | {"meets": {"facecolor": "C2"}}


def draw_finished(card: dict[str, Any], kernel: str) -> Figure:
    """Both consumers of a finished kernel, "hopper" or "hopper backward", over a few blocks, by their stamps. The third
    lane shows when the tensor cores would be busy if each matmul took as long as (9.1) says.

    Forward: from k on, as soon as the other's are done. Backward: stamps don't say when, so there is no such lane.
    """
    row = results.select(card["kernels"], kernel="clocked", provider=kernel).iloc[0]
    figure = Figure(figsize=(10, 2.6 if kernel == "hopper" else 2.2))
    ax, edge, parts = figure.subplots(), {"height": 0.7, "edgecolor": "black", "linewidth": 0.5}, FINISHED[kernel]
    means = list(row["cycles"].values())
    for c, blocks in enumerate(row["stamps"]):
        for n, (block, after) in enumerate(itertools.pairwise(blocks)):
            for (_, look), mean, (left, right) in zip(
                parts, means, itertools.pairwise([*block, after[0]]), strict=True
            ):
                ax.barh(c, right - left, left=left, **edge, **FINISHED_LOOKS[look])
                if n == 0 and mean > 400 and look != "rest":
                    ax.text((left + right) / 2, c, f"{mean:,}", ha="center", va="center", color="white", size="small")
    lanes = ["consumer 0", "consumer 1"]
    if kernel == "hopper":
        first, last, busy = max(of[0][0] for of in row["stamps"]), min(of[-1][0] for of in row["stamps"]), []
        for issued in sorted(block[0] for blocks in row["stamps"] for block in blocks):
            start = max([issued, *(end for _, end in busy[-1:])])
            busy.append((start, start + 2 * matmul_cycles(128)))
        spans = [(max(start, first), min(end, last)) for start, end in busy if end > first and start < last]
        ax.barh(2, last - first, left=first, **edge, **IDLE)
        for start, end in spans:
            ax.barh(2, end - start, left=start, height=0.7, linewidth=0, facecolor="C0")
        idle = 1 - 2 * 2 * matmul_cycles(128) / sum(means)  # of a mean block, with both consumers' matmuls
        lanes.append(f"tensor cores by (9.1),\nidle: {idle:.0%}")
    ax.set_yticks(range(len(lanes)), lanes)
    ax.invert_yaxis()
    ax.grid(False)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.set_xlabel(f"cycles of the SM, {gpu(card)}, D = 128, full, S = 4,096")
    ax.set_title(
        f"{' + '.join(f'{mean:,}' for mean in means)} = {sum(means):,} cycles a block", loc="left", size="medium"
    )
    words = dict(parts)
    handles = [Patch(edgecolor="black", **FINISHED_LOOKS[look]) for look in words.values()]
    figure.legend(handles, list(words), loc="outside lower center", ncols=5)
    return figure


def print_ends(card: dict[str, Any], *loops: str) -> None:
    """Of calls with stamps, D = 128: an SM's cycles for a block in the middle of the loops, and of the whole call."""
    print(f"{f'{gpu(card)}, D = 128, full, S = 4,096, with stamps':46}   middle  whole call")
    for loop in loops:
        row = clocked(card, loop, 128)
        call = _cycles_a_block(card, {**row, "cycles": row["call"]})
        print(f"{IN_FULL.get(loop, loop):46}{sum(row['cycles'].values()) / 2:9,.0f}{call:12,.0f}")


def print_softmax(card: dict[str, Any]) -> None:
    """D = 128, the cycles of a softmax of 64 x 128 scores by stamps, alone on an SM and beside a second consumer: its
    maximum, then its exponentials and their sum; and the exponentials by (9.1)."""
    found = results.select(card["kernels"], kernel="clocked", provider="9.4, one wait, its maximum")
    print(f"{f'{gpu(card)}, D = 128, one stop, cycles':36}maximum  exponentials, sum")
    for words, alone in (("alone on an SM", True), ("beside a second consumer", False)):
        cycles = found.set_index("alone").loc[alone, "cycles"]
        print(f"{words:36}{cycles['stop']:7}{cycles['softmax']:19}")
    print(f"{'the exponentials alone (9.1)':36}{exp_cycles():26}")


def matmuls_under_way(stamps: list) -> tuple[int, int, list[tuple[int, int]]]:
    """(from, to, spans): while both consumers have stamps, the spans in which a matmul of one or the other is issued
    and not finished.
    """
    first, last = max(blocks[0][0] for blocks in stamps), min(blocks[-1][0] for blocks in stamps)
    found: list[tuple[int, int]] = []
    spans = (part for blocks in stamps for pair in itertools.pairwise(blocks) for part in parts_of(*pair))
    for start, end in sorted((start, end) for part, start, end in spans if part == "matmul"):
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


def print_compared(card: dict[str, Any], mode: str, *others: str) -> None:
    """The speed of hopper over that of others, at the twelve points: its mean, the most and the least."""
    rates = tables.table(card["rows"], GRIDS["points"], mode, "fp16")
    print(f"{MODES[mode]}, {gpu(card)}: speed of the hopper kernel over another's, twelve cases")
    for peer in others:
        of = rates["hopper"] / rates[peer]
        mean, (D, is_causal, S) = np.exp(np.log(of).mean()), of.idxmin()
        least = f"least {of.min():.2f}, at D = {D}, {tables.mask(is_causal)}, S = {S:,}"
        print(f"  {peer:13} mean {mean:.2f}, most {of.max():.2f}, {least}")


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
    lanes = lanes_of([line.replace("'", "′").replace("’", "′") for line in order])
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
    "line by line": "line by line",
    "s′ under ds": "s′ right behind dp",
    "delta by arithmetic": "the kernel's, but delta is subtracted after dp",
}


def print_orders(card: dict[str, Any]) -> None:
    """The backward with other orders of a block: the cycles of a call over those of the kernel's, the clock at
    which it then ran, and its time."""
    found, first = results.select(card["kernels"], chapter=9, kernel="order").set_index("provider"), next(iter(ORDERS))
    print(f"{f'{gpu(card)}, D = 128, full, S = 4,096':52}cycles    MHz      ms")
    for name, words in ORDERS.items():
        cycles, ms = found.loc[name, ["cycles", "ms"]]
        print(f"{words:52}{cycles / found.loc[first, 'cycles']:6.2f}{cycles / ms / 1e3:7,.0f}{ms:8.3f}")
