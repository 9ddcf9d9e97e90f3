"""Chapter 3: what its page shows of the stored results of its matmul kernel."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.figure import Figure

from fa_tutorial import hardware
from fa_tutorial.bench import results, timing

# As ncu names them.
FROM_HBM, TO_SMS, CYCLES = "dram__bytes_read.sum", "l1tex__m_xbar2l1tex_read_bytes.sum", "sm__cycles_elapsed.max"
ORDERS = {1: "course, row order", 8: "course", 16: "course, bands of 16"}  # the stored provider of each group


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
    """The stored tiles at n = 4,096 in row order: warps, ms, and by ncu the GB that the SMs received, and cycles,
    also without the loads. card: results.load's."""
    select, order = partial(results.select, card["kernels"], M=4_096), ORDERS[1]
    counted = select(kernel="matmul_traffic", provider=order)
    bare = select(kernel="matmul_traffic", provider=f"{order}, no loads")
    columns = {
        "BLOCK_M": counted["block_m"],
        "BLOCK_N": counted["block_n"],
        "warps": [1, 4, 4, 4, 8, 8],
        "ms": select(kernel="matmul_tile", provider=order)["ms"],
        "GB counted": counted[TO_SMS] / 1e9,
        "cycles": counted[CYCLES],
        "cycles, no loads": bare[CYCLES],
    }
    return pd.DataFrame({name: list(column) for name, column in columns.items()})


def draw_six_tiles(tiles: pd.DataFrame, loops: Iterable[tuple[str, int]]) -> Figure:
    """FLOPs in a cycle of an SM by tile, of the kernel and of the one without its loads, and what the loads cost; below
    each tile what compiling.matmul_loops found: its instruction, and copies into registers."""
    figure, ax = plt.subplots()
    ax.axhline(4_096, color="0.4", linestyle=":")
    ax.text(-0.5, 4_150, "tensor cores: 4,096", color="0.25", va="bottom")
    columns = ("cycles", "C0", "the kernel"), ("cycles, no loads", "C1", "without its loads")
    for place, (name, colour, label) in enumerate(columns):
        rates = 2 * 4_096**3 / tiles[name] / 132
        bars = ax.bar([tile + 0.4 * place - 0.2 for tile in range(6)], rates, 0.4, color=colour, label=label)
        ax.bar_label(bars, [f"{rate:,.0f}" for rate in rates], fontsize=8)
    names = [f"{m} x {n}" for m, n in zip(tiles["BLOCK_M"], tiles["BLOCK_N"], strict=True)]
    costs = [f"loads: {cost:.2f}x" for cost in tiles["cycles"] / tiles["cycles, no loads"]]
    found = [f"{name.split()[0]}\n{copies or 'no'} ldmatrix" for name, copies in loops]
    ax.set_xticks(range(6), ["\n".join(lines) for lines in zip(names, costs, found, strict=True)], fontsize=9)
    ax.set(xlabel="tile, what its loads cost, instruction, a warp's copies into registers in a step (ldmatrix)")
    ax.set(xlim=(-0.55, 5.6), ylim=(0, 4_600), ylabel="FLOPs per cycle")
    ax.set_title("H200, fp16, 4,096 x 4,096: what an SM does in a cycle")
    ax.legend(loc="upper left", bbox_to_anchor=(0, 0.88))
    return figure


def _each_order(card: dict) -> Iterator[tuple[int, int, pd.Series, pd.Series]]:
    """Print the words of each n and order; give n, the group, its stored times, and what ncu counted."""
    for n, group in itertools.product((4_096, 8_192, 16_384), ORDERS):
        print(f"{n:6,}   {f'bands of {group}' if group > 1 else 'rows':11}", end="")
        select = partial(results.select, card["kernels"], dtype="fp16", M=n, provider=ORDERS[group])
        yield n, group, select(kernel="matmul").iloc[0], select(kernel="matmul_traffic", block_n=256).iloc[0]


def show_spread(card: dict) -> None:
    """Print the stored times in each of ORDERS, with their spread."""
    print("     n   order           ms (20 % to 80 % of the runs)   (stored, H200)")
    for _, _, time, _ in _each_order(card):
        print(f" {time.ms:6.3f} ({time.ms_20:.3f} to {time.ms_80:.3f})")


def show_orders(card: dict, wave_bytes: Callable[[int, int], Iterable[float]]) -> None:
    """Print what HBM delivered in row order and in bands, beside the count of strips. wave_bytes: (n, group) -> of each
    wave, what it reads."""
    print("     n   order         strips of a wave    counted   from HBM   HBM / counted   (of a wave: the mean)")
    for n, group, _, counted in _each_order(card):
        waves, read = list(wave_bytes(n, group)), counted[FROM_HBM]
        bytes_ = f"{sum(waves) / len(waves) / 1e6:14.0f} MB {sum(waves) / 1e9:7.2f} GB {read / 1e9:7.2f} GB"
        print(f" {bytes_} {read / sum(waves):14.2f}")


def show_fusion(card: dict, lengths: Iterable[tuple[int, int]], *calls: Callable, D: int = 64) -> None:
    """Print, for each S_q and S_k, how long an H200 takes at least to move s and to multiply, and the times of one
    kernel and of two products, which `calls` computes from q, k and v: here, or stored ones where there is no GPU."""
    ceilings, device = card["provenance"]["ceilings"], hardware.device()
    where = "this GPU" if device.type == "cuda" else "stored, H200"
    print(f"   S_q     S_k   at least: move s   multiply   measured: one kernel   two products   (ms, {where})")
    for S_q, S_k in lengths:
        moving = 2 * S_q * S_k * 2 / (ceilings["copy_gb_s"] * 1e9) * 1e3
        multiplying = 4 * S_q * S_k * D / (ceilings["matmul_fp16_tflops"] * 1e12) * 1e3
        one, two = results.select(card["kernels"], kernel="fusion", S_q=S_q, S_k=S_k)["ms"]
        if device.type == "cuda":
            qkv = [torch.randn(S, D, dtype=torch.float16, device=device) for S in (S_q, S_k, S_k)]
            one, two = (timing.time_call(partial(call, *qkv)).ms for call in calls)
        print(f"{S_q:6,} {S_k:7,} {moving:18.3f} {multiplying:10.3f} {one:22.3f} {two:14.3f}")
