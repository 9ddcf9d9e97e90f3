"""Chapter 0: what its page shows of naive attention's stored results, and a record of a call's memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch.utils._python_dispatch import TorchDispatchMode

from fa_tutorial import ledger
from fa_tutorial.bench import results
from fa_tutorial.figures import COLOURS, GREY

KERNELS = {"q kᵀ": "sky", "divide": "yellow", "softmax": "vermilion", "p v": "green"}  # with their colours


def measured(card: dict, provider: str, S: int, B: int = 1, H: int = 16, is_causal: bool = False) -> pd.Series:
    """The row of attention's forward at length S, D = 64, fp16. card: results.load's."""
    case = {"mode": "fwd", "dtype": "fp16", "B": B, "H_q": H, "D": 64, "is_causal": is_causal}
    return results.select(card["rows"], provider=provider, S_q=S, **case).iloc[0]


def naive_steps(card: dict) -> pd.DataFrame:
    """The rows of naive attention's kernels, of the whole call and of flash attention, by name: S = 4,096, 16 heads,
    D = 64, fp16, in one run. card: results.load's."""
    return results.select(card["kernels"], kernel="naive_step", S=4_096).set_index("provider")


def rates(card: dict) -> dict[str, float]:
    """The FLOP/s measured of a vector add, of naive and flash attention as in naive_steps, and of a matmul of 4,096."""
    ms, fp16 = naive_steps(card)["ms"], {"provider": "torch", "dtype": "fp16"}
    add = results.select(card["kernels"], kernel="add", **fp16).iloc[0]
    matmul = results.select(card["kernels"], kernel="matmul", M=4_096, **fp16).iloc[0]
    flops = ledger.attention_flops(1, 16, 4_096, 4_096, 64)
    return {
        "vector add": add["n"] / add["ms"] * 1e3,
        "naive": flops / ms["naive"] * 1e3,
        "flash": flops / ms["flash"] * 1e3,
        "matmul": matmul["tflops"] * 1e12,
    }


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


def draw_roofline(points: dict[str, tuple[float, float]], peak: float, bandwidth: float) -> Figure:
    """The roofline (0.8), and each of five points, name -> (FLOP/byte, FLOP/s). The third and the fourth are one
    kernel with two counts of its bytes."""
    figure = Figure(figsize=(7.5, 4))
    ax = figure.subplots()
    xs = [10 ** (place / 40) for place in range(-52, 169)]
    ax.loglog(xs, [ledger.attainable_flops(x, peak, bandwidth) / 1e12 for x in xs], "k-")
    labels = "vector add", "naive", "flash", "k, v from L2", "matmul, 4,096"
    colours = "green", "vermilion", "blue", "blue", "purple"
    for (x, rate), label, colour, marker in zip(points.values(), labels, colours, "osDD^", strict=True):
        face = "white" if label == "k, v from L2" else COLOURS[colour]
        ax.plot(x, rate / 1e12, marker, color=COLOURS[colour], markerfacecolor=face, markersize=9)
        offset = (6, -23) if label == "flash" else (9, 7 if marker == "^" else -14)
        side = "right" if label == "flash" else "left"  # of the ridge's line
        ax.annotate(label, (x, rate / 1e12), offset, textcoords="offset points", ha=side)
    (far, rate), (near, _) = list(points.values())[2:4]
    ax.plot([far, near], [rate / 1e12] * 2, "--", color=COLOURS["blue"], zorder=1)
    ax.axvline(peak / bandwidth, color=GREY, linestyle=":")
    ax.text(170, 0.15, f"ridge: {peak / bandwidth:.0f} FLOP/byte")
    ax.text(1.5, 300, "memory-bound", fontstyle="italic")
    ax.text(180, 2_200, "compute-bound", fontstyle="italic")
    ax.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="TFLOP/s", ylim=(0.1, 4_500))
    return figure


def floors(bandwidth: float) -> dict[str, float]:
    """The milliseconds that the bytes of each kernel and of the mask take at `bandwidth`, bytes/s, in naive_steps."""
    scores, vectors = 2 * 16 * 4_096 * 4_096, 2 * 16 * 4_096 * 64  # bytes of s or p, and of q, k, v or o
    product, elementwise = scores + 2 * vectors, 2 * scores
    moved = {"q kᵀ": product, "divide": elementwise, "mask": elementwise, "softmax": elementwise, "p v": product}
    return {name: count / bandwidth * 1e3 for name, count in moved.items()}


def show_floors(steps: pd.DataFrame, bandwidth: float) -> None:
    """Print each kernel's floor and time. steps: naive_steps'."""
    print("               floor   measured (20 % to 80 % of the runs)     factor")
    for name, floor in floors(bandwidth).items():
        row = steps.loc[name]
        spread = f"({row['ms_20']:.3f} to {row['ms_80']:.3f})"
        print(f"{name:10} {floor:6.3f} ms  {row['ms']:6.3f} ms {spread:28} {row['ms'] / floor:5.1f}")


def draw_floors(steps: pd.DataFrame, peak: float, bandwidth: float, exponentials: float) -> Figure:
    """Naive attention's kernels and flash attention as bars, each above what its bytes, its FLOPs and its exponentials
    take at least. steps: naive_steps'. exponentials: a second."""
    blue = "blue"
    flops = ledger.attention_flops(1, 16, 4_096, 4_096, 64)
    often, once = (16 * ledger.flash_hbm_bytes(4_096, 4_096, 64, block_m, 2) for block_m in (128, 4_096))
    bars = {
        "naive": {name: (steps["ms"][name], colour) for name, colour in KERNELS.items()},
        "naive, at its floors": {name: (floors(bandwidth)[name], colour) for name, colour in KERNELS.items()},
        "flash": {"": (steps["ms"]["flash"], blue)},
        "its FLOPs": {"": (flops / peak * 1e3, blue)},
        "its exponentials": {"": (16 * 4_096 * 4_096 / exponentials * 1e3, blue)},
        "its bytes, k and v 32 times": {"": (often / bandwidth * 1e3, blue)},
        "its bytes, k and v once": {"": (once / bandwidth * 1e3, blue)},
    }
    figure = Figure(figsize=(7.5, 3.6))
    ax = figure.subplots()
    for place, (bar, parts) in enumerate(bars.items()):
        left = 0.0
        for name, (ms, colour) in parts.items():
            face = COLOURS[colour] if bar in ("naive", "flash") else "white"
            ax.barh(place, ms, left=left, color=face, edgecolor=COLOURS[colour], height=0.65, linewidth=1.5)
            ax.text(left + ms / 2, place, name, ha="center", va="center", fontsize=8)
            left += ms
        ax.text(left + 0.015, place, f"{left:.2f} ms", va="center")
    ax.set_yticks(range(len(bars)), bars)
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.6), xlabel="ms at S = 4,096, 16 heads, D = 64, fp16 (NVIDIA H200)")
    ax.grid(axis="y", visible=False)
    return figure
