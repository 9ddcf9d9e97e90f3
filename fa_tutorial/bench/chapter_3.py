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
L2_BUSY = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
ORDERS = {1: "course, row order", 8: "course", 16: "course, bands of 16"}  # the stored provider of each group
TILES = (16, 16), (64, 64), (128, 128), (128, 256)  # from a small one to the one that 3.3 picks
PREDICTED = (64, 64, 16, "mma.sync"), (32, 32, 1, "mma.sync"), (64, 64, 8, "wgmma")  # the page asks for these


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


def pieces(card: dict) -> pd.DataFrame:
    """Stored launches at n = 4,096 in row order: the FLOPs of an SM in a cycle, with and without the loads, and the
    TFLOP/s and clock of the kernel with them. card: results.load's."""
    stored = results.select(card["kernels"], kernel="matmul_piece")
    bare = stored["provider"].str.endswith(", no loads")
    table, sms = stored[~bare].reset_index(drop=True), card["provenance"]["multiprocessors"]
    flops = 2 * 4_096**3
    columns = {"BLOCK_M": table["block_m"], "BLOCK_N": table["block_n"], "warps": table["warps"]}
    columns |= {"instruction": table["provider"], "TFLOP/s": flops / table["ms"] / 1e9, "GHz": table["mhz"] / 1e3}
    for name, cycles in (("with loads", table["cycles"]), ("no loads", stored[bare]["cycles"].reset_index(drop=True))):
        columns[name] = (flops / sms / cycles).round().astype(int)
    return pd.DataFrame(columns)


def by_tile(card: dict, *tiles: tuple[int, int]) -> Iterable[pd.Series]:
    """Of `pieces`, the launch that choosing such a tile gives: the first of it."""
    first = pieces(card).drop_duplicates(["BLOCK_M", "BLOCK_N"])
    return (launch for _, launch in first.iterrows() if (launch.BLOCK_M, launch.BLOCK_N) in tiles)


def counted(card: dict, block_m: int, block_n: int) -> pd.Series:
    """What ncu counted with this tile at n = 4,096 in row order."""
    tile = {"block_m": block_m, "block_n": block_n, "M": 4_096, "provider": ORDERS[1]}
    return results.select(card["kernels"], kernel="matmul_traffic", **tile).iloc[0]


def show_bytes(card: dict, flops_per_byte: Callable[[int, int], float]) -> None:
    """Print, for these tiles at n = 4,096, what the SMs receive by (3.3) and by ncu, and the kernel's TFLOP/s."""
    print("     tile   FLOPs/byte   GB by (3.3)   GB counted   TFLOP/s   (stored, H200)")
    for launch in by_tile(card, *TILES):
        m, n = launch.BLOCK_M, launch.BLOCK_N
        rate, received = flops_per_byte(m, n), counted(card, m, n)[TO_SMS] / 1e9
        predicted = 2 * 4_096**3 / rate / 1e9
        print(f"{m:3} x {n:3} {rate:12.1f} {predicted:13.2f} {received:12.2f} {launch['TFLOP/s']:9.0f}")


def draw_without_loads(card: dict) -> Figure:
    """FLOPs in a cycle of an SM with and without the loads, for these tiles and 256 x 256, and what shared memory
    allows the smallest; beside each tile what L2 delivers with the loads, how busy ncu finds it, and the clock."""
    figure, ax = plt.subplots(figsize=(8.5, 4.8))
    labels = []
    for y, launch in enumerate(by_tile(card, *TILES, (256, 256))):
        m, n = launch.BLOCK_M, launch.BLOCK_N
        labels.append(f"{m} x {n}   ({launch.GHz:.2f} GHz)")
        if (m, n) in TILES:
            row, ms = counted(card, m, n), 2 * 4_096**3 / launch["TFLOP/s"] / 1e9
            labels[-1] += f"\nL2: {row[TO_SMS] / ms / 1e9:.1f} TB/s, {row[L2_BUSY]:.0f} % busy"
        for name, place, colour in (("with loads", y - 0.2, "C0"), ("no loads", y + 0.2, "C1")):
            flops, legend = launch[name], {"with loads": "with loads", "no loads": "without loads"}[name]
            ax.barh(place, flops, 0.4, color=colour, label=legend if y == 0 else None)
            inside = {"x": flops - 40, "ha": "right", "color": "white"} if flops > 600 else {"x": flops + 40}
            ax.text(y=place, s=f"{flops:,}", va="center", fontsize=9, **inside)
    ax.plot([1_024, 1_024], [0.0, 0.4], color="black", linewidth=2.5)
    ax.text(1_064, 0.2, "shared memory allows 1,024", va="center", fontsize=9)
    ax.axvline(4_096, color="0.4", linestyle=":")
    ax.text(4_130, len(labels) - 0.6, "tensor cores:\n4,096", color="0.25", va="bottom", fontsize=9)
    ax.set_yticks(range(len(labels)), labels, fontsize=9)
    where = "stored, H200; L2 and clock with loads, busy by ncu in a run of its own"
    ax.set(xlim=(0, 4_750), ylim=(len(labels) - 0.5, -0.5), xlabel=f"FLOPs per cycle of an SM\n({where})")
    ax.grid(visible=False, axis="y")
    ax.legend(loc="upper right", bbox_to_anchor=(0.84, 1.0), fontsize=10)
    return figure


def draw_pieces(launches: pd.DataFrame, loops: Iterable[compiling.Loop], at_most: Callable) -> Figure:
    """FLOPs in a cycle of an SM without loads, by the piece of c that is computed at once, beside what shared memory
    allows. launches: of `pieces`; loops: of the same; at_most: (rows, columns of a piece) -> FLOPs."""
    shown = [(loop, launch) for loop, (_, launch) in zip(loops, launches.iterrows(), strict=True) if not loop.spilled]
    shown.sort(key=lambda row: (row[0].instruction, row[0].piece, row[1]["BLOCK_M"], row[1]["BLOCK_N"]))
    figure, ax = plt.subplots(figsize=(8.5, 5.0))
    ends, beyond, y, last, look = [], [], 0.0, None, {"color": "black", "linestyle": "-", "linewidth": 2.5}
    of_page = [tuple(launch[["BLOCK_M", "BLOCK_N", "warps", "instruction"]]) in PREDICTED for _, launch in shown]
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
        else:
            beyond.append("{} x {}".format(*loop.piece))
        warps = f"{launch['warps']} warp{'s' if launch['warps'] > 1 else ''}"
        piece, tile = "{} x {}".format(*loop.piece), f"tile {launch['BLOCK_M']} x {launch['BLOCK_N']}, {warps}"
        ends.append((y, f"{loop.instruction}, {piece}   ({tile})"))
        y += 1.0
    ax.axvline(4_096, color="0.4", linestyle=":")
    ax.text(4_130, y - 0.4, "tensor cores:\n4,096", color="0.25", va="bottom", fontsize=9)
    ax.plot([], [], **look, label=f"at most, by (3.3) for the piece\n({', '.join(beyond)}: off the axis)")
    ax.set_yticks([place for place, _ in ends], [text for _, text in ends], fontsize=9)
    ax.set(xlim=(0, 4_750), ylim=(y - 0.3, -0.7), xlabel="FLOPs per cycle of an SM, without loads (stored, H200)")
    for text, bold in zip(ax.get_yticklabels(), of_page, strict=True):
        text.set_fontweight("bold" if bold else "normal")
    ax.set_title("Up to 64 x 32 the piece decides (bold: your predictions)")
    ax.grid(visible=False, axis="y")
    ax.legend(loc="upper left", bbox_to_anchor=(0.24, 1.0), fontsize=10)
    return figure


def show_orders(card: dict, wave_bytes: Callable[[int, int], Iterable[float]]) -> None:
    """Print what HBM delivered in row order and in bands, beside what (3.4) predicts, how long it takes at a copy's
    rate, and the kernel's time. wave_bytes: (n, group) -> of each wave, what it reads."""
    rate = card["provenance"]["ceilings"]["copy_gb_s"] * 1e9
    heads = "     n   order        mean wave   by (3.4)   from HBM"
    print(f"{heads}   at {rate / 1e12:.2f} TB/s   the kernel   (stored, H200)")
    for n, group in itertools.product((4_096, 8_192, 16_384), ORDERS):
        select = partial(results.select, card["kernels"], dtype="fp16", M=n, provider=ORDERS[group])
        ms, counted = select(kernel="matmul").iloc[0]["ms"], select(kernel="matmul_traffic", block_n=256).iloc[0]
        waves, read = list(wave_bytes(n, group)), counted[FROM_HBM]
        words = f"{n:6,}   {f'bands of {group}' if group > 1 else 'rows':11} {sum(waves) / len(waves) / 1e6:6.0f} MB"
        taken = f"{read / rate * 1e3:11.2f} ms {ms:9.3f} ms"
        print(f"{words} {sum(waves) / 1e9:7.2f} GB {read / 1e9:7.2f} GB {taken}")


def show_fusion(card: dict, lengths: Iterable[tuple[int, int]], *calls: Callable) -> None:
    """Print, for each S_q and S_k, the programs of one kernel with tiles of 128 rows, the size of s, how long an H200
    takes to move s through HBM and to multiply, and the times of one kernel and of two products, which `calls` computes
    from q, k and v: here, or stored ones where there is no GPU."""
    ceilings, device, D = card["provenance"]["ceilings"], hardware.device(), 64
    where = "this GPU" if device.type == "cuda" else "stored, H200"
    print(f"   S_q     S_k  programs      s   to move s  to multiply  one kernel  two products   (ms, {where})")
    for S_q, S_k in lengths:
        moving = 2 * S_q * S_k * 2 / (ceilings["copy_gb_s"] * 1e9) * 1e3
        multiplying = 4 * S_q * S_k * D / (ceilings["matmul_fp16_tflops"] * 1e12) * 1e3
        one, two = results.select(card["kernels"], kernel="fusion", S_q=S_q, S_k=S_k)["ms"]
        if device.type == "cuda":
            qkv = [torch.randn(S, D, dtype=torch.float16, device=device) for S in (S_q, S_k, S_k)]
            one, two = (timing.time_call(partial(call, *qkv)).ms for call in calls)
        size = f"{S_q // 128:9} {2 * S_q * S_k / 1e6:4.0f} MB"
        print(f"{S_q:6,} {S_k:7,} {size} {moving:10.3f} {multiplying:12.3f} {one:11.3f} {two:13.3f}")
