"""Chapter 9: what its pages show of the stored results, and the errors that they measure on a Hopper GPU.

tools/measure measures what is stored.
"""

from __future__ import annotations

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
from fa_tutorial.bench import peers, results, tables
from fa_tutorial.bench.cases import GRIDS, MODES
from fa_tutorial.bench.timing import randn
from fa_tutorial.hopper import ping_pong
from fa_tutorial.source import excerpt, specialised
from fa_tutorial.warpgroups import KEYS, ONE_STOP, ROWS, TWO_STOPS, cycles_per_block, matmul_cycles, two_consumers

hardware.require_triton("Chapter 9's measurements")


def finished_errors(D: int) -> dict[str, float]:
    """The largest errors of o, dq, dk and dv, causal: 4 heads of 113 queries share 2 heads of 203 keys. "plain dq" is
    plain attention's.
    """
    q, do = randn(1, 4, 113, D), randn(1, 4, 113, D)
    k, v = randn(1, 2, 203, D), randn(1, 2, 203, D)
    truth = (reference.attention(q, k, v, True)[0], *reference.gradients(q, k, v, do, True))
    errors = {}
    for kind, attend in (("", peers.provider("hopper")), ("plain ", reference.naive_attention)):
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        o = attend(*inputs, True)
        found = (o.detach(), *torch.autograd.grad(o, inputs, do))
        errors |= {
            kind + name: (x - true).abs().max().item()
            for name, x, true in zip(("o", "dq", "dk", "dv"), found, truth, strict=True)
        }
    return errors


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


def draw_ladder(card: dict[str, Any], *names: str) -> Figure:
    """A block of 64 x 128 scores, full, S = 4,096, in some of LOOPS and in "hopper": an SM's cycles, of them those that
    its matmuls need, and the rate. Dashed: (9.2)."""
    figure = Figure(figsize=(10, 1.2 + 0.36 * len(names)))
    panels = figure.subplots(1, 2, sharey=True)
    for ax, D in zip(panels, (64, 128), strict=True):
        need, wall = 2 * matmul_cycles(D), cycles_per_block(D)
        for n, name in enumerate(names):
            cycles, rate = _ladder(card, name, D)
            ax.barh(n, cycles, height=0.7, facecolor="C0", alpha=0.35)
            ax.barh(n, need, height=0.7, facecolor="C0")
            ax.text(need / 2, n, f"{need / cycles:.0%}", color="white", ha="center", va="center")
            ax.text(1.03 * max(cycles, wall), n, f"{cycles:,.0f}; {rate:.0f} TFLOP/s", va="center")
        ax.axvline(wall, color="black", linestyle="--", linewidth=1)
        ax.set_xlim(0, 2.05 * wall)
        ax.set_title(f"D = {D}: matmuls {need:,}; dashed: {wall:,.0f}", loc="left")
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.grid(False)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    figure.supxlabel(f"an SM's cycles a block, {gpu(card)}, full, S = 4,096; dark: its matmuls", fontsize="medium")
    return figure


def _ladder(card: dict[str, Any], name: str, D: int) -> tuple[float, float]:
    """Cycles a block, and TFLOP/s."""
    wanted = {"provider": LOOPS.get(name, name), "D": D, "S_q": 4096, "is_causal": False}
    row = results.select(card["kernels"], kernel="ladder", **wanted).iloc[0]
    return _cycles_a_block(card, row), row["tflops"]


def print_cycles(card: dict[str, Any], name: str) -> None:
    """draw_ladder's cycles of one of its names, for D = 64 and 128, as a line of a table."""
    print(f"{f'{name}, measured, {gpu(card)}':42}" + "".join(f"{_ladder(card, name, D)[0]:9,.0f}" for D in (64, 128)))


def print_over_one_stop(card: dict[str, Any], *loops: str) -> None:
    """The speed of some of ping_pong's loops over that of one stop, with and without a mask, at three lengths."""
    found = results.select(card["kernels"], chapter=9, kernel="ladder")
    of = found.pivot_table(index=["D", "is_causal", "S_q"], columns="provider", values="tflops", aggfunc="first")
    print(f"speed over one stop's, {gpu(card)}, six cases each         D = 64             D = 128")
    for loop in loops:
        ratios = (of[LOOPS[loop]] / of[LOOPS["one stop"]]).dropna()
        least_most = (f"{ratios[D].min():.2f} to {ratios[D].max():.2f}" for D in (64, 128))
        print(f"{loop:45}" + "".join(f"{cell:>20}" for cell in least_most))


def _cycles_a_block(card: dict[str, Any], row: pd.Series) -> float:
    """Cycles of an SM for 64 x 128 scores that are seen."""
    blocks = row["B"] * row["H_q"] * ledger.visible_pairs(row["S_q"], row["S_q"], row["is_causal"]) / (ROWS * KEYS)
    return row["cycles"] / blocks * card["provenance"]["multiprocessors"]


def clocked(card: dict[str, Any], loop: str, D: int) -> pd.Series:
    """A consumer's stamps in one of LOOPS: "cycles" by part of a block, "stamps" of a few blocks."""
    return results.select(card["kernels"], kernel="clocked", provider=LOOPS[loop], D=D).iloc[0]


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
        one, chance = row["softmax_at_once"][1], 2 * alone * (cycles - alone) / cycles**2
        shares = f"exactly one at a softmax: {one:.0%} of the time, by chance {chance:.0%}"
        ax.set_title(f"{loop}: {cycles / 2:,.0f} cycles a block; {shares}", loc="left")
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


def print_late(card: dict[str, Any]) -> None:
    """What becomes of two stops if consumer 1 starts later, and of one stop, by the model and measured: the share of
    the time in which exactly one consumer is at a softmax, and the cycles a block without stamps."""
    found = results.select(card["kernels"], kernel="late")
    print(f"{gpu(card)}, D = 128, full, S = 4,096    one at a softmax      cycles a block")
    print("consumer 1 starts                model measured      model measured")
    for _, row in found.iterrows():
        name, late = row["provider"].split(",")[0], int(row["late"])
        if name == "two stops" or not late:
            cycles, shares = two_consumers(TWO_STOPS if name == "two stops" else ONE_STOP, late=late)
            when = f"{name}, {f'{late:,} cycles later' if late else 'together'}"
            line = f"{when:33}{shares[1]:5.0%}{row['softmax_at_once'][1]:9.0%}"
            print(f"{line}{cycles:11,.0f}{_cycles_a_block(card, row):9,.0f}")


def print_programs(card: dict[str, Any], *names: str) -> None:
    """Consumers that share a program, or have one each, D = 128: SM cycles of 64 x 128 scores, MHz, and the rate."""
    found = results.select(card["kernels"], kernel="alone", D=128).set_index("provider")
    watts = found.loc[list(names), "watts"]
    print(f"{gpu(card)}, D = 128, full, S = {found['S_q'].iloc[0]:,}, 64 keys at a time;", end=" ")
    print(f"{watts.min():.0f} to {watts.max():.0f} W")
    print(" " * 50 + "cycles for 64 x 128    MHz  TFLOP/s")
    for name in names:
        row = found.loc[name]
        print(f"{name:50}{_cycles_a_block(card, row):19,.0f}{row['mhz']:7,.0f}{row['tflops']:9.0f}")


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
    """hopper beside others at the twelve points, and how it compares with each of them, in words."""
    rates = tables.table(card["rows"], GRIDS["points"], mode, "fp16")
    figure = Figure(figsize=(10, 3.2))
    panels = figure.subplots(1, 4, sharey=True)
    lengths = sorted({S for _, _, S in rates.index})
    looks = {"hopper": "C0o-", "tuned": "C1s--", "sdpa_cudnn": "C2^-.", "flash_attn_4": "C3D:"}
    for ax, (D, is_causal) in zip(panels, itertools.product((64, 128), (False, True)), strict=True):
        for kernel in ("hopper", *others):
            of = [rates.loc[(D, is_causal, S), kernel] for S in lengths]
            ax.plot(range(len(lengths)), of, looks[kernel], label=kernel, linewidth=2.4 if kernel == "hopper" else 1.4)
        ax.set_xticks(range(len(lengths)), [f"{S // 1024}" for S in lengths])
        ax.set_title(f"D = {D}, {tables.mask(is_causal)}")
        ax.set_xlabel("S / 1,024")
    panels[0].set_ylim(0, 1.08 * rates[["hopper", *others]].max(axis=None))
    panels[0].set_ylabel(f"TFLOP/s, {MODES[mode]}, {gpu(card)}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    print(f"{MODES[mode]}, {gpu(card)}: speed of the hopper kernel over another's, twelve cases")
    for peer in others:
        ratios = rates["hopper"] / rates[peer]
        mean, (D, is_causal, S) = np.exp(np.log(ratios).mean()), ratios.idxmin()
        least = f"least {ratios.min():.2f}, at D = {D}, {tables.mask(is_causal)}, S = {S:,}"
        print(f"  {peer:13} mean {mean:.2f}, most {ratios.max():.2f}, {least}")
    return figure


def gains(card: dict[str, Any]) -> pd.DataFrame:
    """What each step of the chapter, from chapter 8's kernel to hopper, gains over the one before: a column a step, a
    row for each D, mask and length; 1 where a step changes nothing."""
    found = results.select(card["kernels"], chapter=9, kernel="step")
    of = found.pivot_table(index=["D", "is_causal", "S_q"], columns="provider", values="tflops", aggfunc="first")
    two = of["two consumers"].fillna(of["roles"])  # where a third is not used
    # Without a mask "order" is the same kernel.
    with_counter = of["counter"].where(of.index.get_level_values("is_causal"), of["order"])
    return pd.DataFrame({
        "two consumers": of["one stop"] / of["tuned"],
        "k's ring, any S": two / of["one stop"] * of["overlap"] / of["roles"],
        "third consumer": of["roles"] / two,
        "persistent": with_counter / of["overlap"],
        "longest first": of["order"] / with_counter,
        "ping-pong": (of["turns"] / of["order"]).fillna(1),
    })  # fmt: skip


def draw_steps(card: dict[str, Any]) -> Figure:
    """`gains`, one after another, as speed over chapter 8's kernel, for three lengths; mean of full and causal. Hollow:
    not a kernel that was measured, but the product of two gains."""
    found = np.log(gains(card)).groupby(level=["D", "S_q"]).mean()
    figure = Figure(figsize=(10, 4.2))
    panels = figure.subplots(1, 2, sharey=True)
    for ax, D in zip(panels, (64, 128), strict=True):
        of = found.loc[D]
        steps = [step for step in of.columns if (of[step] != 0).any()]
        ends = []
        looks = "C0o-", "C1s--", "C2^-."
        for (S, row), look in zip(of.loc[[1024, 4096, 16_384], steps].iterrows(), looks, strict=True):
            speed = np.exp(np.cumsum([0, *row]))
            ax.plot(range(len(speed)), speed, look, label=f"S = {S:,}")
            if "third consumer" in steps:  # k's ring with two consumers isn't measured
                place = steps.index("k's ring, any S") + 1
                ax.plot(place, speed[place], look[:3], markerfacecolor="white")
            ends.append((speed[-1], look[:2]))
            for n, gain in enumerate(np.exp(row)):
                if gain < 0.97:  # a step that costs
                    ax.text(
                        n + 1,
                        speed[n + 1] - 0.012,
                        f"{gain - 1:.0%}".replace("-", "−"),
                        color=look[:2],
                        va="top",
                        ha="center",
                    )
        middle = sum(last for last, _ in ends) / len(ends)
        for place, (last, colour) in enumerate(sorted(ends)):
            ax.text(len(steps) + 0.15, middle + 0.035 * (place - 1), f"{last:.2f}", color=colour, va="center")
        ax.axhline(1, color="black", linewidth=1)
        ax.set_xticks(range(len(steps) + 1), ["chapter 8's", *steps], rotation=30, ha="right")
        ax.set_xlim(-0.3, len(steps) + 0.7)
        ax.set_title(f"D = {D}", loc="left")
    panels[0].set_ylim(0.88, 1.28)
    panels[0].set_ylabel("speed over chapter 8's kernel,\nmean of full and causal")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    last = gains(card).prod(axis=1)
    print(f"{gpu(card)}, all steps together: {last.min():.2f} to {last.max():.2f} times as fast as chapter 8's kernel")
    for D in (64, 128):
        cycles, _ = _ladder(card, "hopper", D)
        need = 2 * matmul_cycles(D)
        busy = f"{need:,.0f} of them the tensor cores are busy: {need / cycles:.0%}"
        print(f"D = {D:3}, full, S = 4,096: {cycles:,.0f} cycles a block; for {busy}")
    return figure


def print_persistent(card: dict[str, Any]) -> None:
    """TFLOP/s, causal, S = 4,096, with a program for each work tile, and persistent, by how the next is found."""
    found = results.select(card["kernels"], chapter=9, kernel="step", S_q=4096, is_causal=True)
    heads = "a program each", "fixed numbers", "a counter"
    print(f"{f'{gpu(card)}, causal, S = 4,096, TFLOP/s':34}" + "".join(f"{head:>15}" for head in heads))
    for D in (64, 128):
        of = results.select(found, D=D).set_index("provider")["tflops"]
        print(f"{f'D = {D}':34}" + "".join(f"{of[step]:15.0f}" for step in ("overlap", "persistent", "counter")))


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
    """Plays a block's lines, in exercise 9.7's words, at a consumer that has the tensor cores to itself."""
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
    ax.set_ylim(1.5, -0.75)
    ax.set_xlim(0, 2200)
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
