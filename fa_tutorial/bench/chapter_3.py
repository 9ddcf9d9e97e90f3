"""Chapter 3: what its page shows of the stored results of its matmul kernel."""

import itertools
from collections.abc import Callable, Iterable
from functools import partial

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.figure import Figure

from fa_tutorial import compiling, hardware
from fa_tutorial.bench import results, timing

# As ncu names them.
FROM_HBM, TO_SMS = "dram__bytes_read.sum", "l1tex__m_xbar2l1tex_read_bytes.sum"
L2_BUSY, CYCLES = "lts__throughput.avg.pct_of_peak_sustained_elapsed", "sm__cycles_elapsed.max"
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
    """The stored tiles at n = 4,096 in row order, and by ncu the GB that the SMs received and how busy L2 was: the
    share of its nearest limit. card: results.load's."""
    counted = results.select(card["kernels"], M=4_096, kernel="matmul_traffic", provider=ORDERS[1])
    columns = {"BLOCK_M": "block_m", "BLOCK_N": "block_n", "GB counted": TO_SMS, "L2 busy, %": L2_BUSY}
    table = pd.DataFrame({name: list(counted[column]) for name, column in columns.items()})
    return table.assign(**{"GB counted": table["GB counted"] / 1e9})


def pieces(card: dict) -> pd.DataFrame:
    """Stored launches at n = 4,096 in row order: the six tiles, 256 x 256, and others: SM cycles with and without the
    loads, and the TFLOP/s and clock of the kernel with them. card: results.load's."""
    names = {"block_m": "BLOCK_M", "block_n": "BLOCK_N", "warps": "warps", "cycles": "cycles"}
    stored = results.select(card["kernels"], kernel="matmul_piece")
    bare = stored["provider"].str.endswith(", no loads")
    table = stored[~bare].reset_index(drop=True)
    columns = {new: list(table[old]) for old, new in names.items()}
    columns |= {"instruction": list(table["provider"]), "cycles, no loads": list(stored[bare]["cycles"])}
    return pd.DataFrame(columns | {"TFLOP/s": 2 * 4_096**3 / table["ms"] / 1e9, "GHz": table["mhz"] / 1e3})


def draw_pieces(launches: pd.DataFrame, loops: Iterable[compiling.Loop], at_most: Callable) -> Figure:
    """FLOPs in a cycle of an SM without loads, by the piece of c that is computed at once, beside what shared memory
    allows. launches: of `pieces`, with "no loads"; loops: of the same; at_most: (rows, columns of a piece) -> FLOPs."""
    shown = [(loop, launch) for loop, (_, launch) in zip(loops, launches.iterrows(), strict=True) if not loop.spilled]
    shown.sort(key=lambda row: (row[0].instruction, row[0].piece, row[1]["BLOCK_M"], row[1]["BLOCK_N"]))
    figure, ax = plt.subplots(figsize=(8.5, 5.0))
    ends, y, last, look = [], 0.0, None, {"color": "black", "linestyle": "-", "linewidth": 2.5}
    for loop, launch in shown:
        if last is not None and loop[:2] != last:
            y += 0.5 if loop.instruction == last[0] else 1.0
        last, colour = loop[:2], {"mma.sync": "C0", "wgmma": "C1"}[loop.instruction]
        ax.barh(y, launch["no loads"], 0.8, color=colour)
        flops = launch["no loads"]
        ax.text(flops - 60, y, f"{flops:,}", va="center", ha="right", color="white", fontsize=9)
        limit = at_most(*loop.piece)
        if limit < 5_000:
            ax.plot([limit, limit], [y - 0.48, y + 0.48], **look)
        warps = f"{launch['warps']} warp{'s' if launch['warps'] > 1 else ''}"
        piece, tile = "{} x {}".format(*loop.piece), f"tile {launch['BLOCK_M']} x {launch['BLOCK_N']}, {warps}"
        ends.append((y, f"{loop.instruction}, {piece}   ({tile})"))
        y += 1.0
    ax.axvline(4_096, color="0.4", linestyle=":")
    ax.text(4_130, y - 0.4, "tensor cores:\n4,096", color="0.25", va="bottom", fontsize=9)
    ax.plot([], [], **look, label="at most, by (3.3) for the piece\n(of the last two: off the axis)")
    ax.set_yticks([place for place, _ in ends], [text for _, text in ends], fontsize=9)
    ax.set(xlim=(0, 4_750), ylim=(y - 0.3, -0.7), xlabel="FLOPs per cycle of an SM, without loads (stored, H200)")
    ax.grid(visible=False, axis="y")
    ax.legend(loc="upper left", bbox_to_anchor=(0.3, 1.0))
    return figure


def show_orders(card: dict, wave_bytes: Callable[[int, int], Iterable[float]]) -> None:
    """Print what HBM delivered in row order and in bands, beside what (3.4) predicts, how long it takes at a copy's
    rate, the kernel's time, and its cycles in ncu's run. wave_bytes: (n, group) -> of each wave, what it reads."""
    rate = card["provenance"]["ceilings"]["copy_gb_s"] * 1e9
    heads = "     n   order        one wave   by (3.4)   measured"
    print(f"{heads}   at {rate / 1e12:.2f} TB/s   the kernel   M cycles  (stored, H200)")
    for n, group in itertools.product((4_096, 8_192, 16_384), ORDERS):
        select = partial(results.select, card["kernels"], dtype="fp16", M=n, provider=ORDERS[group])
        ms, counted = select(kernel="matmul").iloc[0]["ms"], select(kernel="matmul_traffic", block_n=256).iloc[0]
        waves, read = list(wave_bytes(n, group)), counted[FROM_HBM]
        words = f"{n:6,}   {f'bands of {group}' if group > 1 else 'rows':11} {sum(waves) / len(waves) / 1e6:5.0f} MB"
        taken = f"{read / rate * 1e3:11.2f} ms {ms:9.3f} ms {counted[CYCLES] / 1e6:10.3f}"
        print(f"{words} {sum(waves) / 1e9:7.2f} GB {read / 1e9:7.2f} GB {taken}")


def show_small(card: dict, n: int = 1_024) -> None:
    """Print the programs and the TFLOP/s of stored tiles at a small n, and PyTorch's."""
    print(f"n = {n:,}      programs   TFLOP/s  (stored, H200)")
    for _, row in results.select(card["kernels"], kernel="matmul_small", M=n).iterrows():
        tiled = row.provider != "torch"
        words = f"{row.block_m:.0f} x {row.block_n:.0f}" if tiled else "PyTorch"
        programs = f"{(n // row.block_m) * (n // row.block_n):.0f}" if tiled else ""
        print(f"{words:9} {programs:>13} {row.tflops:9.0f}")


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
