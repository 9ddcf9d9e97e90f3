"""Chapter 3: what its page shows of the stored results of its matmul kernel."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.figure import Figure

from fa_tutorial import hardware
from fa_tutorial.bench import results, timing

FROM_HBM, TO_SMS = "dram__bytes_read.sum", "l1tex__m_xbar2l1tex_read_bytes.sum"  # as ncu names them


def show_rates(card: dict, calls: dict[str, tuple[str, Callable]]) -> None:
    """Print TFLOP/s of calls (a, b) -> c in fp16: here, or stored ones where there is no GPU. calls: a column's head ->
    (the stored provider, the call)."""
    on_gpu = hardware.device().type == "cuda"
    print("     n", *(f"{name:>12}" for name in calls), f"  (TFLOP/s, {'this GPU' if on_gpu else 'stored, H200'})")
    for n in (1_024, 2_048, 4_096, 8_192, 16_384):
        rates = results.select(card["kernels"], kernel="matmul", dtype="fp16", M=n).set_index("provider").tflops
        if on_gpu:
            ab = [torch.randn(n, n, dtype=torch.float16, device="cuda") for _ in range(2)]
            rates = {name: 2 * n**3 / timing.time_call(partial(call, *ab)).ms / 1e9 for name, call in calls.values()}
        print(f"{n:6,}", *(f"{rates[name]:12.0f}" for name, _ in calls.values()))


def six_tiles(card: dict) -> pd.DataFrame:
    """The stored tiles: warps, ms in row order, with loads and without, and by ncu the GB that the SMs received, which
    no order changes. card: results.load's."""
    kinds = {"ms": "course, row order", "ms, no loads": "course, row order, no loads"}
    ms = {name: _tile_rows(card, provider)["ms"].to_list() for name, provider in kinds.items()}
    rows = results.select(card["kernels"], kernel="matmul_traffic", provider="course", M=4_096)
    sides = {"BLOCK_M": rows["block_m"].to_list(), "BLOCK_N": rows["block_n"].to_list()}
    counted = {"GB counted": [x / 1e9 for x in rows[TO_SMS]]}
    return pd.DataFrame(sides | {"warps": [1, 4, 4, 4, 8, 8]} | counted | ms)


def _tile_rows(card: dict, provider: str) -> pd.DataFrame:
    return results.select(card["kernels"], kernel="matmul_tile", provider=provider)


def draw_six_tiles(card: dict, loops: Iterable[tuple[str, int]]) -> Figure:
    """TFLOP/s of the kernel and of the one without its loads, with the middle 60 % of the runs, by tile; what the loads
    cost; and below each tile what compiling.matmul_loops found: its instruction, and copies into registers."""
    figure, ax = plt.subplots()
    kinds = {"without its loads": ("course, row order, no loads", "C1s--"), "the kernel": ("course, row order", "C0o-")}
    speeds, places = [], range(6)
    for label, (provider, style) in kinds.items():
        rows = _tile_rows(card, provider)
        low, speed, high = (2 * 4_096**3 / rows[ms].to_numpy(float) / 1e9 for ms in ("ms_80", "ms", "ms_20"))
        ax.errorbar(places, speed, yerr=(speed - low, high - speed), fmt=style, markersize=4, capsize=4, label=label)
        for place, rate in zip(places, speed, strict=True):
            aside = (-9 if place == 1 else 0, 7) if label == "without its loads" else (0, -16)  # where no line runs
            ax.annotate(f"{rate:.0f}", (place, rate), aside, textcoords="offset points", ha="center")
        speeds.append(speed)
    for place, without, speed in zip(places, *speeds, strict=True):
        ax.annotate("", (place, speed), (place, without), arrowprops={"arrowstyle": "-", "color": "0.6"}, zorder=0)
        cost, align = f"   {without / speed:.3g}x   ", "left" if place > 1 else "right"
        ax.text(place, (without * speed) ** 0.5, cost, ha=align, va="center", color="0.25")
    ax.set_yscale("log")
    ax.minorticks_off()
    sides = rows[["block_m", "block_n"]].values
    names = (f"{name.split()[0]}\n{copies or 'no'} copies" for name, copies in loops)
    ax.set_xticks(places, [f"{m} x {n}\n{name}" for (m, n), name in zip(sides, names, strict=True)])
    ax.set_yticks([50, 100, 200, 400, 800], [50, 100, 200, 400, 800])
    ax.set(xlabel="tile, its instruction, a step's copies into registers", ylabel="TFLOP/s", xlim=(-0.55, 5.6))
    ax.set_ylim(38, 1_150)
    ax.set_title(f"{card['provenance']['gpu']}, fp16, 4,096 x 4,096: what the loads cost")
    ax.legend(loc="lower right")
    return figure


def show_orders(card: dict, wave_bytes: Callable[[int, int], Iterable[float]]) -> None:
    """Print what HBM delivered in row order and in bands of 8, beside the count of strips. wave_bytes: (n, group) -> of
    each wave, what it reads."""
    print("     n   order         a wave's strips    counted   from HBM   (a wave's strips: the mean)")
    for n, group in itertools.product((4_096, 8_192, 16_384), (1, 8)):
        waves = list(wave_bytes(n, group))
        sizes = {"M": n, "provider": "course" if group == 8 else "course, row order", "block_n": 256}
        read = results.select(card["kernels"], kernel="matmul_traffic", **sizes)[FROM_HBM].item()
        print(f"{n:6,}   {f'bands of {group}' if group > 1 else 'rows':11}", end="")
        print(f" {sum(waves) / len(waves) / 1e6:14.0f} MB {sum(waves) / 1e9:7.2f} GB {read / 1e9:7.2f} GB")


def show_fusion(card: dict, *calls: Callable, D: int = 64) -> None:
    """Print how long an H200 takes at least to move s and to multiply, and the times of one kernel and of two products,
    which `calls` computes from q, k and v: here, or stored ones where there is no GPU."""
    ceilings, device = card["provenance"]["ceilings"], hardware.device()
    for S in (4_096, 16_384):
        moving = 2 * S * S * 2 / (ceilings["copy_gb_s"] * 1e9) * 1e3
        multiplying = 4 * S * S * D / (ceilings["matmul_fp16_tflops"] * 1e12) * 1e3
        print(f"S = {S:6,}: at least {moving:.3f} ms to move s, {multiplying:.3f} ms to multiply")
        one, two = results.select(card["kernels"], kernel="scores_values", S=S)["ms"]
        if device.type == "cuda":
            qkv = [torch.randn(S, D, dtype=torch.float16, device=device) for _ in range(3)]
            one, two = (timing.time_call(partial(call, *qkv)).ms for call in calls)
        where = "this GPU" if device.type == "cuda" else "stored, H200"
        print(f"            one kernel {one:.3f} ms, two products {two:.3f} ms   ({where})")
