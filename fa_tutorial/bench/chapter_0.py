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

from fa_tutorial import hardware
from fa_tutorial.bench import results, timing
from fa_tutorial.figures import COLOURS, GREY

KERNELS = {"q kᵀ": "sky", "divide": "yellow", "softmax": "vermilion", "p v": "green"}  # with their colours


def measured(card: dict, provider: str, S: int) -> pd.Series:
    """The row of full attention's forward at length S, with 16 heads of D = 64 in fp16. card: results.load's."""
    case = {"mode": "fwd", "dtype": "fp16", "B": 1, "H_q": 16, "D": 64, "is_causal": False}
    return results.select(card["rows"], provider=provider, S_q=S, **case).iloc[0]


def naive_steps(card: dict) -> pd.DataFrame:
    """One run's rows by name: naive attention's kernels, whole calls, flash attention, what torch.compile makes."""
    return results.select(card["kernels"], kernel="naive_step").set_index("provider")


def megabytes_read(card: dict) -> pd.DataFrame:
    """MB that the profiler counted, by the kernel's name: read from "HBM", and by the SMs from "L2"."""
    rows = results.select(card["kernels"], kernel="naive_traffic").set_index("provider")
    names = {"dram__bytes_read.sum": "HBM", "l1tex__m_xbar2l1tex_read_bytes.sum": "L2"}
    return rows[list(names)].rename(columns=names) / 1e6


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


def draw_memory(events: list[tuple[str, int]], names: dict[str, str], spared: str) -> Figure:
    """What is in memory after each of memory_events' events, as a stack of tensors. names: of each tensor made. spared:
    the one that a `del` before the last is made would free. The axis says chapter 0's sizes."""
    figure = Figure(figsize=(7.5, 3.4))
    ax = figure.subplots()
    colours = dict(zip(names, KERNELS.values(), strict=True))
    held, totals = {}, []
    last = max(place for place, (_, size) in enumerate(events) if size > 0)
    for place, (name, size) in enumerate(events):
        held = {**held, name: size} if size > 0 else {other: held[other] for other in held if other != name}
        bottom = 0.0
        for other, count in held.items():
            mib, goes = count / 2**20, place == last and other == spared
            look = {"edgecolor": "black", "linewidth": 0.8, "alpha": 0.8, "hatch": "///" if goes else ""}
            ax.bar(place, mib, 0.8, bottom, color=COLOURS[colours[other]], **look)
            if mib > 100:
                text = f"{names[other]}, unless\ndel {names[other]}" if goes else names[other]
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5} if goes else None
                ax.text(place, bottom + mib / 2, text, ha="center", va="center", fontsize=9 if goes else None, bbox=box)
            bottom += mib
        totals.append(bottom)
        total = f"{bottom:,.0f}"
        if mib <= 100:  # no room for the last one's name
            total += f" {'with' if len(held) > 1 else 'of'} {names[other]}"
        ax.annotate(total, (place, bottom), (0, 6), textcoords="offset points", ha="center")
    ax.axhline(max(totals), color=GREY, linestyle=":", zorder=0)
    made = [f"{'make' if size > 0 else 'free'}\n{names[name]}" for name, size in events]
    ax.set_xticks(range(len(events)), made)
    ax.set(ylabel="MiB in memory", xlabel="16 heads, S = 4,096, D = 64, fp16", ylim=(0, 1.15 * max(totals)))
    ax.grid(axis="x", visible=False)
    return figure


def draw_summary(ms: pd.Series, floors: dict[str, float], flash_floor: float) -> Figure:
    """What was measured, filled, and the floors of naive and of flash attention, in outline. ms: naive_steps', whose
    compiled call is cuDNN's. floors: of each of naive attention's kernels; all in milliseconds."""
    naive = {name: ms[name] for name in KERNELS}
    bars = {"naive": naive, "its floors": floors}
    bars |= {
        "naive, q scaled": {"": ms["naive, q scaled"]},
        "q scaled, compiled": {"": ms["naive, q scaled, compiled"]},
    }
    bars |= {"flash": {"": ms["flash"]}, "cuDNN": {"": ms["naive, compiled"]}, "their floor": {"": flash_floor}}
    figure = Figure(figsize=(7.5, 3.4))
    ax = figure.subplots()
    for place, (bar, parts) in enumerate(bars.items()):
        left = 0.0
        for name, part in parts.items():
            colour = COLOURS[KERNELS.get(name, "orange" if "q scaled" in bar else "blue")]
            face = "white" if "floor" in bar else colour
            ax.barh(place, part, 0.65, left, color=face, edgecolor=colour, linewidth=1.5)
            ax.text(left + part / 2, place, name, ha="center", va="center", fontsize=9)
            left += part
        ax.text(left + 0.015, place, f"{left:.2f} ms", va="center")
    looks = {"measured": {"facecolor": GREY}, "counted": {"facecolor": "white"}}
    handles = [Patch(edgecolor=GREY, label=label, **look) for label, look in looks.items()]
    ax.legend(handles=handles, loc="lower right")
    ax.set_yticks(range(len(bars)), bars)
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.6), xlabel="ms at S = 4,096, 16 heads, D = 64, fp16 (NVIDIA H200)")
    ax.grid(axis="y", visible=False)
    return figure


class Here(NamedTuple):
    """What measure_here finds: the sizes, a matmul's FLOP/s and a copy's bytes/s, which no kernel sets that is compared
    with them, and milliseconds by name; kept: of each kernel where it writes into memory that was written before."""

    H: int
    S: int
    D: int
    itemsize: int
    peak: float
    bandwidth: float
    ms: dict[str, float]
    kept: dict[str, float]


def measure_here(attentions: dict[str, Callable]) -> Here:
    """Naive attention's kernels by themselves, and whole calls: in fp16 on a GPU, in fp32 and smaller on a CPU.
    attentions: each (q, k, v) -> o, by name."""
    on_gpu = hardware.device().type == "cuda"
    H, S, D, dtype = (16, 4_096, 64, torch.float16) if on_gpu else (4, 2_048, 64, torch.float32)
    q, k, v = (torch.randn(1, H, S, D, device=hardware.device()).to(dtype) for _ in range(3))
    s, root = q @ k.transpose(-1, -2), D**0.5
    matrix, vectors = torch.zeros_like(s), torch.zeros_like(q)
    kernels = {
        "q kᵀ": (partial(torch.matmul, q, k.transpose(-1, -2)), matrix),
        "divide": (partial(torch.div, s, root), matrix),
        "softmax": (partial(torch.softmax, s, dim=-1), matrix),
        "p v": (partial(torch.matmul, s, v), vectors),
    }
    calls = {name: kernel for name, (kernel, _) in kernels.items()}
    calls |= {name: partial(attend, q, k, v) for name, attend in attentions.items()}
    calls |= {f"{name}, kept": partial(kernel, out=out) for name, (kernel, out) in kernels.items()}
    if on_gpu:
        ms = {name: timing.time_call(call).ms for name, call in calls.items()}
        ceilings = timing.measure_ceilings()
        peak, bandwidth = ceilings["matmul_fp16_tflops"] * 1e12, ceilings["copy_gb_s"] * 1e9
    else:  # in turns, so that what else the machine does hits all of them, and twice, so that caches hold what they can
        calls["copy"] = partial(matrix.copy_, s)
        turns = [{name: _fastest(call, 2) for name, call in calls.items()} for _ in range(5)]
        ms = {name: min(turn[name] for turn in turns) for name in calls}
        bandwidth = 2 * s.nbytes / ms.pop("copy") * 1e3
        peak = max(2 * n**3 / _fastest(partial(torch.mm, *torch.randn(2, n, n)), 3) for n in (512, 1_024, 2_048)) * 1e3
    kept = {name: ms.pop(f"{name}, kept") for name in kernels}
    return Here(H, S, D, q.itemsize, peak, bandwidth, ms, kept)


def _fastest(call: Callable, times: int) -> float:
    return min(repeat(call, number=1, repeat=times)) * 1e3
