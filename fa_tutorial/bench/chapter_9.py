"""Chapter 9: what its pages show of the stored results, and the errors that they measure on a Hopper GPU.

tools/measure measures what is stored.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

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
from fa_tutorial.warpgroups import KEYS, ROWS, TENSOR_FLOPS, cycles_per_block, matmul_cycles

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
    first = "mbarrier.wait(turns" if loop == "ping-pong" else "s = warpgroup_mma(q, k.index(stage)"
    lines = excerpt(text, first, "acc = rescaled").splitlines()[:-1]
    return "\n".join(line.split("  #")[0] for line in lines if not line.startswith(("stamp(", "mbarrier.arrive(empty")))


# One warpgroup's and two warpgroups' cycles a block.
BOUNDS = {name: partial(cycles_per_block, warpgroups=n) for n, name in ((1, "wall (9.2)"), (2, "bound (9.3)"))}


def print_ladder(card: dict[str, Any], *names: str) -> None:
    """Some of BOUNDS and LOOPS, "hopper": the SM cycles of a block of 64 x 128 scores, the share of them that its
    matmuls need, and the rate."""
    print(f"full, fp16, {gpu(card)}: an SM's cycles a block, how much of them its matmuls need, TFLOP/s")
    print(" " * 18 + "".join(f"{name:>{14 if name in BOUNDS else 23}}" for name in names))
    print(" " * 18 + "".join("  cycles  need" + ("" if name in BOUNDS else "  TFLOP/s") for name in names))
    for D, S in itertools.product((64, 128), (4096, 16_384)):
        print(f"D = {D:3}, S = {S:6,}" + "".join(_of_the_ladder(card, name, D, S) for name in names))


def _of_the_ladder(card: dict[str, Any], name: str, D: int, S: int) -> str:
    cycles, rate = (BOUNDS[name](D), None) if name in BOUNDS else _ladder(card, name, D, S)
    return f"{cycles:8,.0f}{2 * matmul_cycles(D) / cycles:6.0%}" + (f"{rate:9.0f}" if rate else "")


def _ladder(card: dict[str, Any], name: str, D: int, S: int) -> tuple[float, float]:
    """Cycles a block, and TFLOP/s."""
    wanted = {"provider": LOOPS.get(name, name), "D": D, "S_q": S, "is_causal": False}
    row = results.select(card["kernels"], kernel="ladder", **wanted).iloc[0]
    return _cycles_a_block(card, row), row["tflops"]


def print_over_one_stop(card: dict[str, Any], *loops: str) -> None:
    """The speed of some of ping_pong's loops over that of one stop, at the twelve points."""
    _print_gains_of("speed over one stop's", card, {loop: _over_one_stop(card, loop) for loop in loops})


def _over_one_stop(card: dict[str, Any], loop: str) -> pd.Series:
    kernel, name, one = ("ladder", LOOPS[loop], LOOPS["one stop"])
    if loop == "p v first":  # measured beside the steps
        kernel, name, one = ("step", loop, "one stop")
    found = results.select(card["kernels"], chapter=9, kernel=kernel)
    of = found.pivot_table(index=["D", "is_causal", "S_q"], columns="provider", values="tflops", aggfunc="first")
    return of[name] / of[one]


def _cycles_a_block(card: dict[str, Any], row: pd.Series) -> float:
    """Cycles of an SM for 64 x 128 scores that are seen."""
    blocks = row["B"] * row["H_q"] * ledger.visible_pairs(row["S_q"], row["S_q"], row["is_causal"]) / (ROWS * KEYS)
    return row["cycles"] / blocks * card["provenance"]["multiprocessors"]


def clocked(card: dict[str, Any], loop: str, D: int) -> pd.Series:
    """A consumer's stamps in one of LOOPS: "cycles" by part of a block, "stamps" of a few blocks."""
    return results.select(card["kernels"], kernel="clocked", provider=LOOPS[loop], D=D).iloc[0]


def print_clocked(card: dict[str, Any], D: int, *loops: str) -> None:
    """How many cycles one consumer spends in each part of a block, by its stamps: full, S = 4,096."""
    print(f"{f'D = {D}, {gpu(card)}, one consumer':45}" + "".join(f"{loop:>15}" for loop in loops))
    rows = [clocked(card, loop, D)["cycles"] for loop in loops]
    for stamp, part in PARTS_OF_A_BLOCK.items():
        print(f"{part:45}" + "".join(f"{row[stamp]:15,}" for row in rows))
    print(f"{'cycles together':45}" + "".join(f"{sum(row.values()):15,}" for row in rows))
    halves = (f"{sum(row.values()) / 2:,.0f} {_busy(D, row):.0%}" for row in rows)
    print(f"{'a block of either (half of them), need':45}" + "".join(f"{half:>15}" for half in halves))
    shares = [clocked(card, loop, D)["softmax_at_once"] for loop in loops]
    for n, who in enumerate(("neither consumer", "one of the two", "both consumers")):
        print(f"{f'of the time: {who} at a softmax':45}" + "".join(f"{of[n]:15.0%}" for of in shares))


def _busy(D: int, cycles: dict[str, int]) -> float:
    """The share of the time that the matmuls of both consumers need."""
    return 4 * matmul_cycles(D) / sum(cycles.values())


# From one of ping_pong.STAMPS to the next: what a consumer does meanwhile.
PARTS_OF_A_BLOCK = {
    "tiles": "stamp; in ping-pong, wait for the turn",
    "turn": "issue, and wait for the matmuls",
    "stop": "softmax",
    "softmax": "wait for p v",
    "end": "rescale, p to fp16, next tiles",
}


def draw_clocked(card: dict[str, Any], D: int, *loops: str) -> Figure:
    """Both consumers of one program over a few blocks, a panel for each of `loops`, by their stamps.

    The third lane shows when a matmul of either is issued and not finished: without one, the tensor cores are idle.
    """
    figure = Figure(figsize=(10, 2.2 * len(loops) + 1.1))
    panels = figure.subplots(len(loops), 1, sharex=True, squeeze=False)[:, 0]
    for ax, loop in zip(panels, loops, strict=True):
        row = clocked(card, loop, D)
        share = _draw_lanes(ax, row["stamps"], "end" if loop == "overlapped" else "stop")
        words = f"{loop}: no matmul issued for {share:.0%} of the time shown"
        ax.set_title(f"{words}; tensor cores busy {_busy(D, row['cycles']):.0%}", loc="left")
    panels[-1].xaxis.set_major_formatter("{x:,.0f}")
    panels[-1].set_xlabel(f"cycles of the SM, {gpu(card)}, D = {D}, full, S = 4,096")
    _legend_of_lanes(figure)
    return figure


LOOKS = {
    "tiles": {"facecolor": "white", "hatch": "...."},
    "turn": {"facecolor": "C0"},
    "stop": {"facecolor": "C1"},
    "softmax": {"facecolor": "C2"},
    "end": {"facecolor": "0.85"},
}
IDLE = {"facecolor": "white", "hatch": "////"}


def _draw_lanes(ax: Axes, stamps: list, until: str) -> float:
    """A lane for each consumer, by its stamps, and one for the matmuls that are under way until this one of
    ping_pong.STAMPS. Returns the share of the time shown without any."""
    for c, blocks in enumerate(stamps):
        times = [time for block in blocks for time in block][: -len(ping_pong.STAMPS) + 1]
        for n, (start, end) in enumerate(itertools.pairwise(times)):
            stamp = ping_pong.STAMPS[n % len(ping_pong.STAMPS)]
            ax.barh(c, end - start, left=start, height=0.7, edgecolor="black", linewidth=0.5, **LOOKS[stamp])
    first, last, under_way = matmuls_under_way(stamps, "turn", until)
    lane = len(stamps)
    ax.barh(lane, last - first, left=first, height=0.7, edgecolor="black", linewidth=0.5, **IDLE)
    for start, end in under_way:
        ax.barh(lane, end - start, left=start, height=0.7, linewidth=0, facecolor="C0")
    consumers = [f"consumer {c}" for c in range(lane)]
    ax.set_yticks(range(lane + 1), (*consumers, "a matmul issued,\nnot finished"))
    ax.invert_yaxis()
    ax.grid(False)
    return 1 - sum(end - start for start, end in under_way) / (last - first)


def _legend_of_lanes(figure: Figure) -> None:
    handles: list[Any] = [Patch(edgecolor="black", **look) for look in (*LOOKS.values(), IDLE)]
    words = [*PARTS_OF_A_BLOCK.values(), "no matmul issued"]
    figure.legend(handles, words, loc="outside lower center", ncols=3)


def print_programs(card: dict[str, Any], *names: str) -> None:
    """Consumers that share a program, or have one each: SM cycles of 64 x 128 scores, MHz, W, and the rate."""
    found = {D: results.select(card["kernels"], kernel="alone", D=D).set_index("provider") for D in (64, 128)}
    S = found[64]["S_q"].iloc[0]
    heads = ("D = 64, blocks of 128 keys", "D = 128, blocks of 64 keys")
    print(f"{f'{gpu(card)}, full, S = {S:,}':50}" + "".join(f"{head:^31}" for head in heads))
    print(" " * 50 + "  cycles    MHz    W  TFLOP/s  " * 2)
    for name in names:
        own = [rows.loc[name] for rows in found.values()]
        cells = (
            f"{_cycles_a_block(card, row):8,.0f}{row['mhz']:7,.0f}{row['watts']:5.0f}{row['tflops']:9.0f}  "
            for row in own
        )
        print(f"{name:50}" + "".join(cells))


def print_softmax(card: dict[str, Any]) -> None:
    """The cycles of a softmax of 64 x 128 scores at D = 64, by stamps: alone, and beside others."""
    of = results.select(card["kernels"], kernel="alone", D=64).set_index("provider")["clock"]
    one = "1 program of 1 consumer"
    cycles = {
        "alone on an SM": of[one],
        "while its own p v is under way": of[f"{one}, overlapped"],
        "beside a second consumer": of["2 consumers in 1 program"],
    }
    for words, row in cycles.items():
        print(f"a softmax {words:31} {row['stop']:5,} cycles")


def matmuls_under_way(stamps: list, issued: str, until: str) -> tuple[int, int, list[tuple[int, int]]]:
    """(from, to, spans): while both consumers have stamps, the spans in which a matmul of one or the other is issued
    and not finished: between these two of ping_pong.STAMPS.
    """
    places = {name: n for n, name in enumerate(ping_pong.STAMPS)}
    first, last = max(blocks[0][0] for blocks in stamps), min(blocks[-1][0] for blocks in stamps)
    spans = sorted((block[places[issued]], block[places[until]]) for blocks in stamps for block in blocks[:-1])
    found: list[tuple[int, int]] = []
    for start, end in spans:
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
        ax.set_xticks(range(len(lengths)), [f"{S:,}" for S in lengths])
        ax.set_title(f"D = {D}, {tables.mask(is_causal)}")
        ax.set_xlabel("S")
    panels[0].set_ylim(0, 1.08 * rates[["hopper", *others]].max(axis=None))
    panels[0].set_ylabel(f"TFLOP/s, {MODES[mode]}, {gpu(card)}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    print(f"{MODES[mode]}, {gpu(card)}: hopper's speed over the other's, of the twelve points")
    for peer in others:
        ratios = rates["hopper"] / rates[peer]
        mean, (D, is_causal, S) = np.exp(np.log(ratios).mean()), ratios.idxmin()
        least = f"least {ratios.min():.2f}, at D = {D}, {tables.mask(is_causal)}, S = {S:,}"
        print(f"  {peer:13} mean {mean:.2f}, most {ratios.max():.2f}, {least}")
    return figure


def print_settled(card: dict[str, Any]) -> None:
    """Where each settles at the power limit. chapter 8's rows have the first."""
    rows = {
        "tuned": ("clock", "tuned"),
        "cuDNN": ("settled", "sdpa_cudnn"),
        "hopper": ("settled", "hopper"),
        "a plain matmul": ("settled", "matmul"),
    }
    print(f"{gpu(card)}, D = 128, S = 4,096      TFLOP/s    MHz   watts   FLOPs a cycle, of {TENSOR_FLOPS:,} an SM")
    for name, (kernel, provider) in rows.items():
        row = results.select(card["kernels"], kernel=kernel, provider=provider).iloc[0]
        each = row["tflops"] * 1e6 / row["mhz"] / card["provenance"]["multiprocessors"]
        share = f"{each:,.0f} ({each / TENSOR_FLOPS:.0%})"
        print(f"{name:26}{row['tflops']:11.0f}{row['mhz']:7,.0f}{row['watts']:8.0f}{share:>16}")


def print_steps(card: dict[str, Any]) -> None:
    """What each step of the chapter gains over the one before, from tuned to hopper, at each of the three lengths."""
    found = results.select(card["kernels"], chapter=9, kernel="step")
    of = found.pivot_table(index=["D", "is_causal", "S_q"], columns="provider", values="tflops", aggfunc="first")
    two = of["two consumers"].fillna(of["roles"])  # where a third is not used
    gains = {
        "two consumers, one stop": of["one stop"] / of["tuned"],
        "any input, k earlier": two / of["one stop"] * of["overlap"] / of["roles"],
        "third consumer": of["roles"] / two,
        "persistent": of["counter"] / of["overlap"],
        "order": (of["order"] / of["counter"]).where(of.index.get_level_values("is_causal"), 1),
        "turns of three": (of["turns"] / of["order"]).fillna(1),
        "hopper over tuned": of["turns"].fillna(of["order"]) / of["tuned"],
    }
    _print_gains_of("speed over the last", card, gains)


def print_persistent(card: dict[str, Any]) -> None:
    """TFLOP/s, causal, S = 4,096, with a program for each work tile, and persistent, by how the next is found."""
    found = results.select(card["kernels"], chapter=9, kernel="step", S_q=4096, is_causal=True)
    heads = "a program each", "fixed numbers", "a counter"
    print(f"{f'{gpu(card)}, causal, S = 4,096, TFLOP/s':34}" + "".join(f"{head:>15}" for head in heads))
    for D in (64, 128):
        of = results.select(found, D=D).set_index("provider")["tflops"]
        print(f"{f'D = {D}':34}" + "".join(f"{of[step]:15.0f}" for step in ("overlap", "persistent", "counter")))


def _print_gains_of(title: str, card: dict[str, Any], gains: dict[str, pd.Series]) -> None:
    kinds = list(itertools.product((64, 128), (False, True)))
    print(f"{f'{title}, {gpu(card)}':28}" + "".join(f"{f'D = {D}, {tables.mask(c)}':>18}" for D, c in kinds))
    lengths = "".join(f"{S / 1024:5.0f}" for S in sorted({S for _, _, S in next(iter(gains.values())).index}))
    print(f"{'S / 1,024':28}" + f"{lengths:>18}" * len(kinds))
    for name, ratios in gains.items():
        cells = ("".join("    -" if x == 1 else f"{x:5.2f}" for x in ratios.loc[kind].sort_index()) for kind in kinds)
        print(f"{name:28}" + "".join(f"{cell:>18}" for cell in cells))


def print_backward_profiled(card: dict[str, Any]) -> None:
    """The backward under the profiler, D = 128, S = 4,096, full: chapter 8's two kernels, and this chapter's."""
    rows = results.select(card["kernels"], kernel="counters").set_index(["provider", "mode"])
    of = (("tuned", "dk, dv"), ("tuned", "dq"), ("hopper", "bwd"))
    ms = [rows.loc[kernel, "gpu__time_duration.sum"] / 1e6 for kernel in of]
    print(f"{gpu(card)}, under the profiler, D = 128, full, S = 4,096:")
    print(f"chapter 8's two kernels {ms[0]:.2f} + {ms[1]:.2f} ms,", end=" ")
    print(f"hopper's one {ms[2]:.2f} ms: {(ms[0] + ms[1]) / ms[2]:.2f} times as fast")
