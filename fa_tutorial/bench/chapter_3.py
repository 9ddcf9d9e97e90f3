"""Chapter 3: what its page shows of the stored results of its matmul kernel."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from fa_tutorial import hardware
from fa_tutorial.bench import results, timing

FROM_HBM, TO_SMS = "dram__bytes_read.sum", "l1tex__m_xbar2l1tex_read_bytes.sum"  # as ncu names them
L2_BUSY = "lts__throughput.avg.pct_of_peak_sustained_elapsed"


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
        print(f"{n:6,}", *(f"{rates[name]:12.0f}" if name in rates else f"{'-':>12}" for name, _ in calls.values()))


def show_traffic(card: dict, flops_per_byte: Callable[[int, int], float], n: int = 4_096) -> None:
    """Print what the SMs received and what HBM delivered with each tile, beside the prediction, and how busy L2 was.
    flops_per_byte: (block_m, block_n) -> (3.3). card: results.load's."""
    rows = results.select(card["kernels"], kernel="matmul_traffic", provider="course", M=n)
    print("tile        FLOPs/byte   GB by (3.3)   counted   from HBM   L2 busy")
    for m, k, counted, from_hbm, busy in rows[["block_m", "block_n", TO_SMS, FROM_HBM, L2_BUSY]].values:
        rate = flops_per_byte(m, k)
        print(f"{m:3.0f} x {k:3.0f} {rate:12.1f} {2 * n**3 / rate / 1e9:13.2f}", end="")
        print(f" {counted / 1e9:9.2f} {from_hbm / 1e9:10.2f} {busy / 100:9.0%}")


def draw_without_loads(card: dict, n: int = 4_096) -> Figure:
    """TFLOP/s of the kernel and of the one without its loads, with the middle 60 % of the runs, by tile; and print what
    the loads cost."""
    figure, ax = plt.subplots()
    kinds = {"without its loads": ("course, row order, no loads", "C1s--"), "the kernel": ("course, row order", "C0o-")}
    speeds, places = {}, range(6)
    for label, (provider, style) in kinds.items():
        rows = results.select(card["kernels"], kernel="matmul_tile", provider=provider)
        speed = speeds[label] = rows["tflops"].to_numpy()
        low, high = (2 * n**3 / rows[ms].to_numpy() / 1e9 for ms in ("ms_80", "ms_20"))
        ax.errorbar(places, speed, yerr=(speed - low, high - speed), fmt=style, markersize=4, capsize=4, label=label)
    without, kernel = speeds.values()
    sides = rows[["block_m", "block_n"]].astype(int).values
    print(f"{'tile':17}", *(f"{f'{m} x {k}':>9}" for m, k in sides))
    for label, speed in speeds.items():
        print(f"{label:17}", *(f"{x:9.0f}" for x in speed), " TFLOP/s")
    print("the loads cost   ", *(f"{x:8.1f}x" for x in without / kernel))
    for place, height, x, align in ((0, 130, 0.1, "left"), (5, 460, 5.2, "right")):
        ends = (place, kernel[place]), (place, without[place])
        ax.annotate("", *ends, arrowprops={"arrowstyle": "<->", "color": "0.25"})
        ax.text(x, height, f"loads: {without[place] / kernel[place]:.1f}x", ha=align, color="0.25")
    ax.text(1.4, 400, f"{without[2] / without[1]:.1f}x", ha="right", color="0.25")
    ax.set_yscale("log")
    ax.minorticks_off()
    ax.set_xticks(places, [f"{m} x {k}\n{m * k / (m + k):.0f}" for m, k in sides])
    ax.set_yticks([50, 100, 200, 400, 800], [50, 100, 200, 400, 800])
    ax.set(xlabel="tile, and below it its FLOPs per byte (3.3)", ylabel="TFLOP/s")
    ax.set_title(f"{card['provenance']['gpu']}, fp16, 4,096 x 4,096; bars: the middle 60 % of runs")
    ax.legend(loc="lower right")
    return figure


def show_orders(card: dict, wave_bytes: Callable[[int, int], Iterable[float]]) -> None:
    """Print what HBM delivered in row order and in bands of 8, beside the count of strips, and the count
    in bands of 16. wave_bytes: (n, group) -> of
    each wave, what it reads."""
    print("     n   order         a wave's strips    counted   from HBM       ms (middle 60 % of runs)")
    for n, group in itertools.product((4_096, 8_192, 16_384), (1, 8, 16)):
        waves = list(wave_bytes(n, group))
        print(f"{n:6,}   {f'bands of {group}' if group > 1 else 'rows':11}", end="")
        print(f" {sum(waves) / len(waves) / 1e6:14.0f} MB {sum(waves) / 1e9:7.2f} GB", end="")
        if group == 16:
            print(f" {'-':>10} {'-':>8}")
            continue
        sizes = {"M": n, "provider": "course" if group == 8 else "course, row order", "dtype": "fp16"}
        read = results.select(card["kernels"], kernel="matmul_traffic", block_n=256, **sizes)[FROM_HBM].item()
        time = results.select(card["kernels"], kernel="matmul", **sizes).iloc[0]
        print(f" {read / 1e9:7.2f} GB {time.ms:8.3f} ({time.ms_20:.3f} to {time.ms_80:.3f})")


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
