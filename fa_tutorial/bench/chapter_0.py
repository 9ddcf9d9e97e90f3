"""Chapter 0: naive attention's stored results, its kernels on this machine, and a record of a call's memory."""

import weakref
from collections.abc import Callable
from functools import partial
from timeit import repeat
from typing import NamedTuple

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch.utils._python_dispatch import TorchDispatchMode

from fa_tutorial import hardware, ledger
from fa_tutorial.bench import results, timing
from fa_tutorial.figures import COLOURS, GREY

KERNELS = {"q kᵀ": "sky", "divide": "yellow", "softmax": "vermilion", "p v": "green"}  # with their colours


def measured(card: dict, provider: str, S: int, B: int = 1, H: int = 16, is_causal: bool = False) -> pd.Series:
    """The row of attention's forward at length S, D = 64, fp16. card: results.load's."""
    case = {"mode": "fwd", "dtype": "fp16", "B": B, "H_q": H, "D": 64, "is_causal": is_causal}
    return results.select(card["rows"], provider=provider, S_q=S, **case).iloc[0]


def naive_steps(card: dict) -> pd.DataFrame:
    """The rows of naive attention's kernels by name, of the whole calls, of flash attention and of what torch.compile
    makes, of one run: 16 heads, S = 4,096, D = 64, fp16. card: results.load's."""
    return results.select(card["kernels"], kernel="naive_step").set_index("provider")


def memory_events(call: Callable[..., torch.Tensor], *args: torch.Tensor) -> list[tuple[str, int]]:
    """(name, bytes) of each tensor that call(*args) makes, and (name, −bytes) where it is freed, but not the result."""
    events, made = [], weakref.WeakSet()

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, given=(), named=None):
            out = function(*given, **(named or {}))
            memory = out.untyped_storage()
            if memory not in made and all(memory is not arg.untyped_storage() for arg in args):  # else a view
                made.add(memory)
                name = f"{1 + sum(size > 0 for _, size in events)} {function.overloadpacket.__name__}"
                events.append((name, memory.nbytes()))
                weakref.finalize(memory, events.append, (name, -memory.nbytes()))
            return out

    with Recorder():
        result = call(*args)
    record = list(events)
    del result  # it counts until here
    return record


def draw_memory(events: list[tuple[str, int]], names: dict[str, str]) -> Figure:
    """What is in memory after each of memory_events' events, as a stack of tensors. names: of each tensor made. The
    axis says chapter 0's sizes."""
    figure = Figure(figsize=(7.5, 3.4))
    ax = figure.subplots()
    colours = dict(zip(names, KERNELS.values(), strict=True))
    held, totals = {}, []
    for place, (name, size) in enumerate(events):
        held = {**held, name: size} if size > 0 else {other: held[other] for other in held if other != name}
        bottom = 0.0
        for other, count in held.items():
            mib = count / 2**20
            ax.bar(place, mib, 0.8, bottom, color=COLOURS[colours[other]], edgecolor="black", linewidth=0.8, alpha=0.8)
            if mib > 100:
                ax.text(place, bottom + mib / 2, names[other], ha="center", va="center")
            bottom += mib
        totals.append(bottom)
        ax.annotate(f"{bottom:,.0f}", (place, bottom), (0, 6), textcoords="offset points", ha="center")
    ax.axhline(max(totals), color=GREY, linestyle=":", zorder=0)
    made = [f"{'make' if size > 0 else 'free'}\n{names[name]}" for name, size in events]
    ax.set_xticks(range(len(events)), made)
    ax.set(ylabel="MiB in memory", xlabel="16 heads, S = 4,096, D = 64, fp16", ylim=(0, 1.15 * max(totals)))
    ax.grid(axis="x", visible=False)
    return figure


def draw_roofline(points: dict[str, tuple[float, float]], peak: float, bandwidth: float) -> Figure:
    """The roofline (0.8), naive attention's kernels, and flash attention by two counts of its bytes; each point with
    the share of its roof that it reaches.

    points: (FLOP/byte, FLOP/s) of each of KERNELS, of "flash, k and v from HBM" and of "flash, k and v once".
    """
    figure = Figure(figsize=(7.5, 4))
    ax = figure.subplots()
    xs = [10 ** (place / 40) for place in range(-44, 169)]
    ax.loglog(xs, [ledger.attainable_flops(x, peak, bandwidth) / 1e12 for x in xs], "k-")
    shares = {
        name: f"{100 * rate / ledger.attainable_flops(x, peak, bandwidth):.0f} %" for name, (x, rate) in points.items()
    }
    for (name, (x, rate)), marker in zip(points.items(), "os^vDD", strict=True):
        colour, edge = COLOURS[KERNELS.get(name, "blue")], "black" if name in KERNELS else COLOURS["blue"]
        face = "white" if "once" in name else colour
        ax.plot(x, rate / 1e12, marker, color=face, markeredgecolor=edge, markersize=9)
    for name, label, place in (
        ("divide", "divide: {}", (0.45, 0.35)),
        ("softmax", "softmax: {}", (2.2, 0.9)),
        ("q kᵀ", "q kᵀ: {}", (12, 30)),
        ("p v", "p v: {}", (8, 330)),
        ("flash, k and v from HBM", "k and v 32 times\nfrom HBM: {}", (190, 18)),
        ("flash, k and v once", "k and v once: {}", (1_000, 90)),
    ):
        x, rate = points[name]
        ax.annotate(
            label.format(shares[name]), (x, rate / 1e12), place, va="center", zorder=1,
            arrowprops={"arrowstyle": "-", "color": GREY, "shrinkB": 5, "relpos": (0.5 if place[0] < x else 0, 0.5)},
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
    (far, rate), (near, _) = list(points.values())[-2:]
    ax.plot([far, near], [rate / 1e12] * 2, "--", color=COLOURS["blue"], zorder=1)
    ax.text((far * near) ** 0.5, 1.2 * rate / 1e12, "flash", ha="center")
    ax.axvline(peak / bandwidth, color=GREY, linestyle=":", zorder=0)
    ax.text(170, 0.25, f"ridge: {peak / bandwidth:.0f} FLOP/byte")
    ax.text(0.12, 90, "memory-bound", fontstyle="italic")
    ax.text(0.12, 1_500, "FLOPs: divide 1 a score, softmax 5,\nelse the products' alone", fontsize=9, va="center")
    ax.text(180, 1_500, "compute-bound", fontstyle="italic")
    ax.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="TFLOP/s", ylim=(0.1, 4_500))
    return figure


def draw_times_floor(rows: list[dict[str, float]]) -> Figure:
    """Each call's time over its floor, by length. rows: at each S "naive" and "flash" over their floors, and "gain",
    how many times as fast flash is."""
    figure = Figure(figsize=(6.5, 3.3), layout="constrained")
    ax = figure.subplots()
    lengths = [row["S"] for row in rows]
    for name, colour, marker in (("naive", "vermilion", "s"), ("flash", "blue", "D")):
        ax.plot(lengths, [row[name] for row in rows], marker=marker, color=COLOURS[colour], label=name)
        for row in rows:
            above = row[name] == max(row["naive"], row["flash"])
            place = (7 if name == "flash" and above else 0, 7 if above else -16)
            text = f"{row[name]:.1f}"
            ax.annotate(
                text, (row["S"], row[name]), place, textcoords="offset points", ha="center", color=COLOURS[colour]
            )
    ax.set_xscale("log", base=2)
    ax.set_xticks(lengths, [f"S = {row['S']:,}\nflash {row['gain']:.1f} times\nas fast" for row in rows], fontsize=9)
    ax.set(ylabel="times its floor", ylim=(0, 3.5))
    ax.legend(loc="lower right")
    ax.margins(x=0.1)
    return figure


def draw_floors(ms: pd.Series, floors: dict[str, float], flash: dict[str, float], more: dict[str, float]) -> Figure:
    """Naive attention and flash attention as measured, filled, and what we count for them, in outline.

    ms: naive_steps', whose compiled call is cuDNN's. floors: of naive attention's kernels. flash: what its call would
    do in turns, and last what we can't account for; more: its other floors, bar -> milliseconds.
    """
    naive = {name: ms[name] for name in KERNELS}
    bars = {"naive": naive, "its floors": floors, "cuDNN": {"": ms["naive, compiled"]}}
    bars |= {"flash": {"": ms["flash"]}, "if in turns": flash}
    bars |= {bar: {"": part} for bar, part in more.items()}
    figure = Figure(figsize=(7.5, 4.0))
    ax = figure.subplots()
    unknown = list(flash)[-1]
    for place, (bar, parts) in enumerate(bars.items()):
        left = 0.0
        for name, part in parts.items():
            colour = GREY if name == unknown else COLOURS[KERNELS.get(name, "blue")]
            look = {"hatch": "////", "linestyle": ":"} if name == unknown else {}
            face = colour if bar in ("naive", "flash", "cuDNN") else "white"
            ax.barh(place, part, 0.65, left, color=face, edgecolor=colour, linewidth=1.5, **look)
            if bar != "if in turns":
                ax.text(left + part / 2, place, name, ha="center", va="center", fontsize=9)
            left += part
        words = (
            ", ".join(f"{name} {part:.2f}" for name, part in parts.items())
            if bar == "if in turns"
            else f"{left:.2f} ms"
        )
        ax.text(left + 0.015, place, words, va="center")
    looks = {"measured": {"facecolor": GREY}, "counted": {"facecolor": "white"}}
    looks["not counted"] = {"facecolor": "white", "hatch": "////", "linestyle": ":"}
    handles = [Patch(edgecolor=GREY, label=label, **look) for label, look in looks.items()]
    ax.legend(handles=handles, loc="lower right")
    ax.set_yticks(range(len(bars)), bars)
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.6), xlabel="ms at S = 4,096, 16 heads, D = 64, fp16 (NVIDIA H200)")
    ax.grid(axis="y", visible=False)
    return figure


class Here(NamedTuple):
    """What measure_here finds: the sizes, this machine's FLOP/s and bytes/s, the best that it saw, and milliseconds by
    name."""

    H: int
    S: int
    D: int
    itemsize: int
    peak: float
    bandwidth: float
    ms: dict[str, float]


def measure_here(naive: Callable, sdpa: Callable) -> Here:
    """Naive attention's kernels by themselves, and both calls: in fp16 on a GPU, in fp32 and smaller on a CPU."""
    on_gpu = hardware.device().type == "cuda"
    H, S, D, dtype = (16, 4_096, 64, torch.float16) if on_gpu else (4, 2_048, 64, torch.float32)
    q, k, v = (torch.randn(1, H, S, D, device=hardware.device()).to(dtype) for _ in range(3))
    s, root = q @ k.transpose(-1, -2), D**0.5
    used = torch.empty_like(s)
    calls = {
        "q kᵀ": lambda: q @ k.transpose(-1, -2),
        "q kᵀ, into memory in use": lambda: torch.matmul(q, k.transpose(-1, -2), out=used),
        "divide": lambda: s / root,
        "softmax": lambda: torch.softmax(s, dim=-1),
        "p v": lambda: s @ v,
        "naive": lambda: naive(q, k, v),
        "sdpa": lambda: sdpa(q, k, v),
    }
    if on_gpu:
        ms = {name: timing.time_call(call).ms for name, call in calls.items()}
    else:  # in turns, so that what else the machine does hits all of them
        turns = [{name: _fastest(call, 1) for name, call in calls.items()} for _ in range(7)]
        ms = {name: min(turn[name] for turn in turns) for name in calls}
    product, matrix, vectors = 2 * H * S * S * D, s.nbytes, q.nbytes
    rates = [product / ms[name] for name in ("q kᵀ", "q kᵀ, into memory in use", "p v")]
    rates.append(2 * product / ms["sdpa"])
    speeds = [2 * matrix / ms["divide"], 2 * matrix / ms["softmax"]]
    speeds += [(2 * vectors + matrix) / ms[name] for name in ("q kᵀ", "p v")]
    if on_gpu:
        ceilings = timing.measure_ceilings()
        rates.append(ceilings["matmul_fp16_tflops"] * 1e9)
        speeds.append(ceilings["copy_gb_s"] * 1e6)
    else:
        rates += [2 * n**3 / _fastest(partial(torch.mm, *torch.randn(2, n, n))) for n in (512, 1_024, 2_048)]
        x = torch.randn(2**25)
        speeds.append(2 * x.nbytes / _fastest(partial(torch.empty_like(x).copy_, x)))
    return Here(H, S, D, q.itemsize, max(rates) * 1e3, max(speeds) * 1e3, ms)


def _fastest(call: Callable, times: int = 7) -> float:
    return min(repeat(call, number=1, repeat=times)) * 1e3
