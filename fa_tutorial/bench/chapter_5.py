"""Chapter 5: what its page shows of the stored results of its kernel."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import matplotlib.pyplot as plt

from fa_tutorial import forward
from fa_tutorial.bench import results
from fa_tutorial.figures import GREY
from fa_tutorial.tiles import TileConfig

LAYER = {"mode": "fwd", "dtype": "fp16", "B": 1}
# The package's tile with so many stages that an SM has room for one program, not two.
ALONE = {64: "128x64, 8 warps, 7 stages", 128: "64x64, 4 warps, 4 stages"}


def show_one_loop(card: dict) -> None:
    """Print a single loop's times, and by how much they are those of two loops. card: results.load's."""
    lengths, cases = (1_024, 4_096, 16_384), ((D, c) for D in (64, 128) for c in (False, True))

    def times(loops: str, D: int, is_causal: bool) -> dict[int, float]:
        case = {"kernel": "loops", "D": D, "is_causal": is_causal}
        return results.select(card["kernels"], provider=loops, **case).set_index("S_q")["ms"]

    full, causal = (times("one", 64, is_causal)[16_384] for is_causal in (False, True))
    print(f"one loop, D = 64, S = 16,384: full {full:.2f} ms, causal {causal:.2f} ms   (stored, H200)\n")
    print("time of one loop / of two, S =", *(f"{S:6,}" for S in lengths))
    for D, is_causal in cases:
        one, two = (times(loops, D, is_causal) for loops in ("one", "two"))
        print(f"D = {D:3}, {'causal' if is_causal else 'full':21}", *(f"{one[S] / two[S]:6.2f}" for S in lengths))


def show_times(card: dict, names: dict[str, str]) -> None:
    """Print times of D = 64: one sequence of S tokens with 16 heads, and 16,384 tokens with 32. names: by provider."""
    lengths, rows = (512, 1_024, 2_048, 4_096), card["rows"]
    print("ms, 16 heads, S =", *(f"{S:7,}" for S in lengths), "  MiB at 4,096")
    for provider in ("naive", "sdpa_flash", "basic"):
        found = results.select(rows, provider=provider, H_q=16, D=64, is_causal=False, **LAYER).set_index("S_q")
        times = [f"{found['ms'][S]:7.3f}" for S in lengths]
        print(f"{names[provider]:17}", *times, f"{found['peak_bytes'][4_096] / 2**20:14,.1f}")
    long = results.select(rows, H_q=32, D=64, S_q=16_384, is_causal=False, **LAYER).set_index("provider")["ms"]
    print("\nms, 32 heads, S = 16,384:", ", ".join(f"{name} {long[provider]:.2f}" for provider, name in names.items()))


def room_on_an_sm(row: Mapping[str, Any], num_warps: int) -> tuple[int, int]:
    """For how many programs a Hopper SM's 65,536 registers have room, which a thread gets in eights, and for how many
    its 228 KiB of shared memory, of which each program takes 1 KiB more than its own. row: what the compiler made of a
    kernel.
    """
    of_program = -(-int(row["registers"]) // 8) * 8 * 32 * num_warps
    return 65_536 // of_program, 228 * 1_024 // (int(row["shared_bytes"]) + 1_024)


def show_tiles(card: dict, D: int) -> None:
    """Print what the compiler made of the kernel with each tile of the page's tables, and its time; * marks
    forward.CONFIGS."""
    rows = results.select(card["kernels"], kernel="forward_tile", D=D, is_causal=False)
    print(f"D = {D} (stored, H200)      registers  spilled  programs on an SM       time")
    for row in rows[rows["provider"] != ALONE.get(D)].to_dict("records"):
        sizes = [int(word) for word in re.findall(r"\d+", row["provider"])]
        star = "*" if TileConfig(*sizes) == forward.CONFIGS[232_448][D] else " "  # bytes of shared memory
        programs = min(room_on_an_sm(row, sizes[2]))
        made = f"{row['registers']:9.0f} {row['spilled_registers'] or '-':>8} {programs:18}"
        print(f"{row['provider']:26} {made} {star:>3}{row['ms']:.2f} ms")
    print("a thread's registers, and the numbers that it spills; *: the tile of the package")


def draw_limits(card: dict, limits: Callable, executed: dict[int, tuple[float, float]]) -> None:
    """Draw in which share of an SM's cycles its tensor cores are busy at most, and are.

    limits: exercise 5.9's. executed: by D, the instructions of the chapter's loop for a score, and its softmax's.
    """
    kernels = card["kernels"]
    figure, ax = plt.subplots(figsize=(9, 4.4))
    names, rows = {}, [(D, provider) for D in executed for provider in ("sdpa_cudnn", "basic")]
    for y, (D, provider) in zip((3.5, 2.5, 1, 0), rows, strict=True):
        row = results.select(kernels, kernel="step", provider=provider, D=D, is_causal=False).iloc[0]
        every, softmax = (4, 4) if provider == "sdpa_cudnn" else executed[D]
        at_once, _, in_series = limits(D, every, 100)
        in_turns = limits(D, softmax, 100)[1]
        name = "cuDNN" if provider == "sdpa_cudnn" else "this chapter"
        names[y] = f"D = {D}, {name}\n{row['cycles'] / row['ms'] / 1e6:.2f} GHz"
        ax.plot([0, 100], [y, y], color=GREY, linestyle="-", linewidth=1, zorder=1)
        ticks = ((in_series, "in series", "right"), (in_turns, "in turns", "left"), (at_once, "at once", "left"))
        for at, what, ha in ticks:
            ax.plot([at, at], [y - 0.17, y + 0.17], color="black", linestyle="-", linewidth=2, zorder=2)
            ax.text(at, y + 0.22, what, ha="right" if at > 90 else ha, va="bottom", fontsize="small")
        marks = [(row, "o", "C0", "full", "measured")]
        if provider == "basic":
            alone = results.select(kernels, kernel="forward_tile", provider=ALONE[D], D=D).iloc[0]
            marks.append((alone, "D", "C1", "none", "measured, one program on an SM"))
        for one, marker, colour, fill, what in marks:
            busy = 100 * one["tflops"] * one["ms"] * 1e9 / (one["cycles"] * 132 * 4096)
            ax.plot(busy, y, marker, color=colour, fillstyle=fill, markersize=9, label=what, zorder=3)
            ax.text(busy, y - 0.22, f"{busy:.0f}", ha="center", va="top", color=colour, fontsize="small")
    about = "H200, full attention, S = 4,096"
    ax.set(xlim=(0, 101), ylim=(-0.6, 4.1), xlabel=f"tensor cores busy, % of an SM's cycles ({about})")
    ax.set_yticks(list(names), names.values())
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="y", visible=False)
    lines, labels = ax.get_legend_handles_labels()
    legend = dict(zip(labels, lines, strict=True))  # each once
    figure.legend(legend.values(), legend.keys(), loc="outside upper center", ncols=2)
    plt.show()
