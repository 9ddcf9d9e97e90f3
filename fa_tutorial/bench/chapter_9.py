"""Chapter 9: what its pages show of the stored results, and the errors that they measure on a Hopper GPU.

tools/measure measures what is stored.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fa_tutorial import hardware, hopper, ledger, reference
from fa_tutorial.attention import HOPPER_FROM
from fa_tutorial.bench import chapter_8, peers, results, tables
from fa_tutorial.bench.cases import GRIDS, MODES, Case
from fa_tutorial.bench.timing import randn
from fa_tutorial.hopper import ping_pong
from fa_tutorial.warpgroups import KEYS, ROWS, TENSOR_FLOPS

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

POINTS = GRIDS["points"]
PEERS = ("tuned", "sdpa_cudnn", "flash_attn_4")
ELAPSED = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
PARTS = {
    "tensor cores": ELAPSED,
    "exponentials": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed",
    "issue slots": "sm__issue_active.avg.pct_of_peak_sustained_elapsed",
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "HBM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",  # chapter 8's alone
}


def speeds(card: dict[str, Any], mode: str = "fwd") -> pd.DataFrame:
    """TFLOP/s at the twelve points, fp16, a column for each provider."""
    return tables.table(card["rows"], POINTS, mode, "fp16")


def mean_of(ratios: pd.Series) -> str:
    """The geometric mean, the lowest and the highest."""
    return f"{np.exp(np.log(ratios).mean()):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"


def counters(card: dict[str, Any], provider: str, mode: str) -> dict[str, float]:
    """The profiler's counters: D = 128, S = 4,096, full."""
    return results.select(card["kernels"], kernel="counters", provider=provider, mode=mode).iloc[0].to_dict()


def print_busy(card: dict[str, Any], *providers: str) -> None:
    print("busy, in % of the time; full, D = 128, S = 4,096; issue slots: cycles in which an instruction starts")
    for provider in providers:
        row = counters(card, provider, "fwd")
        print(f"{provider:10}", ", ".join(f"{part} {row[name]:.0f}" for part, name in PARTS.items() if row[name] >= 0))


def tensors_busy(card: dict[str, Any], mode: str, *providers: str) -> str:
    return "measured " + ", ".join(
        f"{provider} {counters(card, provider, mode)[ELAPSED]:.0f}%" for provider in providers
    )


def print_ladder(card: dict[str, Any], *loops: str) -> None:
    """Rates of the plain forward's loops, and of "tuned" and "hopper", with the SM cycles of a block of 64 x 128
    scores.
    """
    print("TFLOP/s, full, fp16" + "".join(f"{loop:>21}" for loop in loops))
    print("(cycles a block)")
    for D, S in itertools.product((64, 128), (4096, 16_384)):
        print(f"D = {D:3}, S = {S:6,}" + "".join(f"{_rate_and_cycles(card, loop, D, S):>21}" for loop in loops))


def _rate_and_cycles(card: dict[str, Any], loop: str, D: int, S: int, is_causal: bool = False) -> str:
    row = results.select(card["kernels"], kernel="ladder", provider=loop, D=D, S_q=S, is_causal=is_causal).iloc[0]
    return f"{row['tflops']:.0f} ({_cycles_a_block(card, row):,.0f})"


def _cycles_a_block(card: dict[str, Any], row: pd.Series) -> float:
    """Cycles of an SM for 64 x 128 scores that are seen."""
    blocks = row["B"] * row["H_q"] * ledger.visible_pairs(row["S_q"], row["S_q"], row["is_causal"]) / (ROWS * KEYS)
    return row["cycles"] / blocks * card["provenance"]["multiprocessors"]


def print_loops(card: dict[str, Any]) -> None:
    """The overlapped loops with 3 stages at the twelve points, and their mean speed over that of the first."""
    loops = [f"{loop}, 3 stages" for loop in ping_pong.LOOPS]
    print("TFLOP/s, fp16 (cycles a block)" + "".join(f"{loop:>21}" for loop in ping_pong.LOOPS))
    found = results.select(card["kernels"], kernel="ladder")
    for D, is_causal, S in itertools.product((64, 128), (False, True), (1024, 4096, 16_384)):
        values = (_rate_and_cycles(card, loop, D, S, is_causal) for loop in loops)
        print(f"D = {D:3}, {tables.mask(is_causal):6}, S = {S:6,}   " + "".join(f"{value:>21}" for value in values))
    rates = found.pivot_table(index=["D", "is_causal", "S_q"], columns="provider", values="tflops")
    for loop in loops[1:]:
        print(f"{loop.split(',')[0]} / one stop, TFLOP/s: {mean_of(rates[loop] / rates[loops[0]])}")


def clocked(card: dict[str, Any], loop: str, D: int) -> pd.Series:
    """A consumer's clock in `loop`, "one stop, 3 stages" for one: "cycles" by part of a block, "stamps" of a few
    blocks."""
    return results.select(card["kernels"], kernel="clocked", provider=loop, D=D).iloc[0]


def print_clocked(card: dict[str, Any], D: int, *loops: str) -> None:
    """How many cycles one consumer spends in each part of a block, by its own clock: full, S = 4,096."""
    print(f"D = {D}, cycles of one consumer   " + "".join(f"{loop:>22}" for loop in loops))
    rows = [clocked(card, loop, D)["cycles"] for loop in loops]
    for stamp, part in PARTS_OF_A_BLOCK.items():
        print(f"{part:32} " + "".join(f"{row[stamp]:22,}" for row in rows))
    print(f"{'together':32} " + "".join(f"{sum(row.values()):22,}" for row in rows))


# From one of ping_pong.STAMPS to the next: what a consumer does meanwhile.
PARTS_OF_A_BLOCK = {
    "tiles": "its turn; the clock itself",
    "turn": "issue, and stop for the matmuls",
    "stop": "softmax",
    "softmax": "stop for p v",
    "end": "rescale, p to fp16, next tiles",
}


def draw_clocked(card: dict[str, Any], D: int, *loops: str) -> Figure:
    """Both consumers of one program over a few blocks, a panel for each of `loops`, by their clock."""
    figure = Figure(figsize=(10, 1.55 * len(loops) + 1.1))
    panels = figure.subplots(len(loops), 1, sharex=True, squeeze=False)[:, 0]
    looks = {
        "tiles": {"facecolor": "white", "hatch": "////"},
        "turn": {"facecolor": "C0"},
        "stop": {"facecolor": "C1"},
        "softmax": {"facecolor": "C2"},
        "end": {"facecolor": "0.85"},
    }
    for ax, loop in zip(panels, loops, strict=True):
        for c, blocks in enumerate(clocked(card, loop, D)["stamps"]):
            times = [time for block in blocks for time in block][: -len(ping_pong.STAMPS) + 1]
            for n, (start, end) in enumerate(itertools.pairwise(times)):
                look = looks[ping_pong.STAMPS[n % len(ping_pong.STAMPS)]]
                ax.barh(c, end - start, left=start, height=0.7, edgecolor="black", linewidth=0.5, **look)
        ax.set_yticks((0, 1), ("consumer 0", "consumer 1"))
        ax.invert_yaxis()
        ax.grid(False)
        ax.set_title(loop.split(",")[0], loc="left")
    panels[-1].set_xlabel(f"cycles of the SM, D = {D}, full, S = 4,096")
    handles = [Patch(edgecolor="black", **looks[stamp]) for stamp in looks]
    figure.legend(handles, PARTS_OF_A_BLOCK.values(), loc="outside lower center", ncols=3)
    return figure


def print_compared(card: dict[str, Any], mode: str) -> None:
    """hopper beside PEERS at the twelve points; in brackets hopper / them."""
    rates = speeds(card, mode)
    print(f"TFLOP/s, {MODES[mode]}, fp16    hopper" + "".join(f"{peer:>14}" for peer in PEERS))
    for (D, is_causal, S), row in rates.iterrows():
        words = f"D = {D:3}, {tables.mask(is_causal):6}, S = {S:6,}"
        print(
            f"{words} {row['hopper']:9.0f}"
            + "".join(f"{row[peer]:8.0f} ({row['hopper'] / row[peer]:.2f})" for peer in PEERS)
        )
    means = (np.exp(np.log(rates["hopper"] / rates[peer]).mean()) for peer in PEERS)
    print(f"hopper / them, geometric mean {'':5}" + "".join(f"{mean:14.2f}" for mean in means))


def profiled_mhz(card: dict[str, Any], provider: str) -> float:
    """The clock at which the profiler ran a forward: its FLOPs over its time and the tensor cores' busy share of it."""
    row, flops = counters(card, provider, "fwd"), Case(provider, "fwd", "fp16", chapter_8.POINT).flops()
    busy = row[ELAPSED] / 100
    return 1e3 * flops / row["gpu__time_duration.sum"] / (busy * TENSOR_FLOPS * card["provenance"]["multiprocessors"])


def print_matmuls(card: dict[str, Any], provider: str = "sdpa_cudnn") -> None:
    """How busy the tensor cores are in a backward under the profiler, and how busy five or seven matmuls would make
    them in its time.
    """
    row = results.select(card["kernels"], kernel="busy", provider=provider, mode="bwd", D=128).iloc[0]
    peak = profiled_mhz(card, provider) * TENSOR_FLOPS * card["provenance"]["multiprocessors"] / 1e6  # TFLOP/s
    five = Case(provider, "bwd", "fp16", chapter_8.POINT).flops() / row["gpu__time_duration.sum"] / 1e3
    print(f"{provider}'s backward under the profiler: tensor cores busy {row[ELAPSED]:.0f}% of the time;")
    print(f"in its time five matmuls would keep them busy for {five / peak:.0%}, and seven for {1.4 * five / peak:.0%}")


def print_settled(card: dict[str, Any]) -> None:
    """Where each settles at the power limit. chapter 8's rows have the first two."""
    rows = {
        "sdpa_flash": ("clock", "sdpa_flash"),
        "tuned": ("clock", "tuned"),
        "cuDNN": ("settled", "sdpa_cudnn"),
        "hopper": ("settled", "hopper"),
        "a plain matmul": ("settled", "matmul"),
    }
    print(f"forward, D = 128, S = 4,096   TFLOP/s    MHz   watts   FLOPs a cycle, of {TENSOR_FLOPS:,} an SM")
    for name, (kernel, provider) in rows.items():
        row = results.select(card["kernels"], kernel=kernel, provider=provider).iloc[0]
        each = row["tflops"] * 1e6 / row["mhz"] / card["provenance"]["multiprocessors"]
        print(
            f"{name:26}{row['tflops']:11.0f}{row['mhz']:7,.0f}{row['watts']:8.0f}{each:10,.0f} "
            f"({each / TENSOR_FLOPS:.0%})"
        )


SHOWN = {"overlap": "s first"}  # what the step is written for, and what it does


def draw_steps(card: dict[str, Any]) -> Figure:
    """What each of hopper.forward.STEPS gains at the twelve points, a row each, D = 64 and 128 side by side; print its
    mean, least and most.

    roles / tuned is what the steps leave of hopper / tuned, as "order" is hopper.
    """
    rates = speeds(card)
    of = {step: rates[f"hopper {step}"] for step in hopper.forward.STEPS}
    all_of_them = rates["hopper"] / rates["tuned"]
    gains = {"hopper / tuned": all_of_them, "roles / tuned": all_of_them / (of["order"] / of["roles"])}
    for step, before in (("overlap", "roles"), ("persistent", "overlap"), ("counter", "overlap"), ("order", "counter")):
        gains[f"{SHOWN.get(step, step)} / {SHOWN.get(before, before)}"] = of[step] / of[before]
    print("forward, fp16, twelve points: geometric mean, least and most")
    for name, ratios in gains.items():
        print(f"{name:21} {mean_of(ratios)}")
    figure = Figure(figsize=(10, 4))
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    looks = {
        (S, is_causal): {"color": f"C{n}", "marker": "^" if is_causal else "o"}
        for n, S in enumerate((1024, 4096, 16_384))
        for is_causal in (False, True)
    }
    for ax, D in zip(panels, (64, 128), strict=True):
        for n, (S, is_causal) in enumerate(looks):
            values = [100 * (ratios[D, is_causal, S] - 1) for ratios in gains.values()]
            # one below the other, so that none hides another
            places = [y + (n - 2.5) * 0.12 for y in range(len(gains))]
            ax.plot(values, places, linestyle="", label=f"S = {S:,}, {tables.mask(is_causal)}", **looks[S, is_causal])
        ax.axvline(0, color="black", linewidth=1)
        ax.set(title=f"D = {D}", xlabel="faster by, %")
    panels[0].set_yticks(range(len(gains)), gains)
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def print_auto_rule(card: dict[str, Any]) -> None:
    """At how many points hopper takes less of the GPU's time than tuned, from HOPPER_FROM on and below."""
    found = results.select(card["kernels"], kernel="auto_rule")
    for mode, kind in (("fwd", "forward"), ("bwd", "backward")):
        us = found[found["mode"] == mode].pivot(
            index=["S", "D", "heads", "is_causal"], columns="provider", values="graph_us"
        )
        large = np.array([S * D * heads >= HOPPER_FROM[kind] for S, D, heads, _ in us.index])
        faster = (us["hopper"] < us["tuned"]).to_numpy()
        there, below = (f"{faster[chosen].sum():2} of {chosen.sum():2}" for chosen in (large, ~large))
        print(
            f"{kind:8}: from 2^{HOPPER_FROM[kind].bit_length() - 1} elements of q on hopper is faster at {there} "
            f"points, below at {below}"
        )
