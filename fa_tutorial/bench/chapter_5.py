"""Chapter 5: what its page shows of its kernel, stored, compiled and timed."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import matplotlib.pyplot as plt
import torch
import triton

from fa_tutorial import compiling, forward, hardware, reference
from fa_tutorial.bench import results, timing
from fa_tutorial.figures import GREY
from fa_tutorial.tiles import TileConfig

LAYER = {"mode": "fwd", "dtype": "fp16", "B": 1}
TILES = forward.CONFIGS[232_448]  # the package's for an H200, by its bytes of shared memory
WORK = {
    "multiply": ("FMUL", "FFMA"),
    "compare": ("FMNMX", "FSETP"),
    "add": ("FADD",),
    "exponential": ("MUFU",),
    "round to fp16": ("F2FP",),
}  # of the softmax, by the names of its machine instructions


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
        case = f"D = {D:3}, {2_048 // D} heads, {'causal' if is_causal else 'full'}"
        print(f"{case:29}", *(f"{one[S] / two[S]:6.2f}" for S in lengths))


def show_times(card: dict, names: dict[str, str]) -> None:
    """Print times of D = 64: one sequence of S tokens with 16 heads, and 16,384 tokens with 32. names: by provider."""
    lengths, rows = (512, 1_024, 2_048, 4_096), card["rows"]
    print("ms, 16 heads, S =", *(f"{S:7,}" for S in lengths), "  MiB at 4,096")
    for provider in ("naive", "sdpa_flash", "basic"):
        found = results.select(rows, provider=provider, H_q=16, D=64, is_causal=False, **LAYER).set_index("S_q")
        times = [f"{found['ms'][S]:7.3f}" for S in lengths]
        print(f"{names[provider]:17}", *times, f"{found['peak_bytes'][4_096] / 2**20:14,.2f}")
    long = results.select(rows, H_q=32, D=64, S_q=16_384, is_causal=False, **LAYER).set_index("provider")["ms"]
    print("\nms, 32 heads, S = 16,384:", ", ".join(f"{name} {long[provider]:.2f}" for provider, name in names.items()))


def time_here(flash: Callable, D: int = 64) -> None:
    """Print the times of the reader's kernel and of its peers on this machine's GPU, in the table's largest case.

    flash: (q, k, v, is_causal, tile) → (o, lse)."""
    if hardware.device().type != "cuda":
        print("your own times need a GPU")
        return
    q, k, v = (torch.randn(1, 16, 4_096, D, device="cuda").half() for _ in range(3))
    tile = forward.choose_config(D, torch.float16, hardware.shared_memory_limit())
    kernels = {
        "naive": lambda: reference.naive_attention(q, k, v),
        "PyTorch's": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
        "yours": lambda: flash(q, k, v, False, tile),
    }
    times = (f"{name} {timing.time_call(call).ms:.3f}" for name, call in kernels.items())
    print("here, ms at S = 4,096:", ", ".join(times))


def room_on_an_sm(row: Mapping[str, Any], num_warps: int) -> tuple[int, int]:
    """For how many programs a Hopper SM's 65,536 registers have room, which a thread gets in eights, and for how many
    its 228 KiB of shared memory, of which each program takes 1 KiB more than its own. row: what the compiler made of a
    kernel.
    """
    of_program = -(-int(row["registers"]) // 8) * 8 * 32 * num_warps
    return 65_536 // of_program, 228 * 1_024 // (int(row["shared_bytes"]) + 1_024)


def show_tiles(card: dict, D: int) -> None:
    """Print what the compiler made of the kernel with each timed tile, and its time; * marks the package's. And cuDNN's
    time."""
    rows = results.select(card["kernels"], kernel="forward_tile", D=D, is_causal=False)
    print(f"stored: H200, Triton {card['provenance']['triton']}, 4 sequences of 4,096 tokens, {2_048 // D} heads")
    print(f"D = {D:<3}                    registers  spilled  programs on an SM       time")
    for row in rows.to_dict("records"):
        sizes = [int(word) for word in re.findall(r"\d+", row["provider"])]
        star = "*" if TileConfig(*sizes) == TILES[D] else " "
        programs = min(room_on_an_sm(row, sizes[2]))
        made = f"{row['registers']:9.0f} {row['spilled_registers'] or '-':>8} {programs:18}"
        print(f"{row['provider']:26} {made} {star:>3}{row['ms']:.2f} ms")
    cudnn = results.select(card["kernels"], kernel="step", provider="sdpa_cudnn", D=D, is_causal=False).iloc[0]
    print(f"{'cuDNN, in another run':67}{cudnn['ms']:.2f} ms")
    print("a thread's registers, and the numbers that it spills; *: the tile of the package")


def count_loop(kernel: Any, D: int) -> tuple[float, float]:
    """How many instructions of a reader's kernel, compiled here for an H200, one score takes: for its softmax, and in
    all. Prints them by what they do."""
    tile = TILES[D]
    loop = compiling.forward_loop(kernel, D, tile)
    scores = tile.block_m * tile.block_n / (32 * tile.num_warps)  # of one thread
    by_work = {what: sum(loop.get(name, 0) for name in names) / scores for what, names in WORK.items()}
    softmax, every = sum(by_work.values()), sum(loop.values()) / scores
    print(f"D = {D}, {tile.block_m}x{tile.block_n}: instructions for a score, by Triton {triton.__version__}")
    for what, number in by_work.items():
        print(f"  {what} ({', '.join(WORK[what])})".ljust(42), f"{number:6.1f}")
    print("softmax".ljust(42), f"{softmax:6.1f}")
    print("loads, addresses, waiting and products".ljust(42), f"{every - softmax:6.1f}")
    print("all".ljust(42), f"{every:6.1f}")
    return softmax, every


def busy_share(row: Mapping[str, Any]) -> float:
    """In which share of an SM's cycles its tensor cores multiply, in %."""
    return 100 * row["tflops"] * row["ms"] * 1e9 / (row["cycles"] * 132 * 4096)


def draw_limits(card: dict, yours: tuple, cudnn: tuple) -> None:
    """Draw in which share of an SM's cycles tensor cores are busy at most at D = 128, and are. yours, cudnn: exercise
    5.9's limits, in %."""
    tile = TILES[128]
    words = f"{tile.block_m}x{tile.block_n}, {tile.num_warps} warps"

    def row(**case: str) -> Mapping[str, Any]:
        return results.select(card["kernels"], D=128, is_causal=False, **case).iloc[0]

    cudnn_row = row(kernel="step", provider="sdpa_cudnn")
    two, one = (row(kernel="forward_tile", provider=f"{words}, {stages} stages") for stages in (3, 4))
    kernels = {
        "cuDNN\n4 instructions assumed": (cudnn, [(cudnn_row, "o", "C0", "full", "center", "")]),
        f"this chapter\n{words}": (
            yours,
            [
                (two, "o", "C0", "full", "left", "3 stages, room for two programs"),
                (one, "D", "C1", "none", "right", "4 stages, room for one"),
            ],
        ),
    }
    _, ax = plt.subplots(figsize=(9, 3.2))
    for y, ((in_series, in_turns, at_once), marks) in zip((1, 0), kernels.values(), strict=True):
        ax.plot([0, 100], [y, y], color=GREY, linestyle="-", linewidth=1, zorder=1)
        ticks = ((in_series, "in series", "right"), (in_turns, "in turns", "left"), (at_once, "at once", "right"))
        for at, what, ha in ticks:
            ax.plot([at, at], [y - 0.17, y + 0.17], color="black", linestyle="-", linewidth=2, zorder=2)
            ax.text(at, y + 0.22, what, ha=ha, va="bottom", fontsize="small")
        for measured, marker, colour, fill, ha, about in marks:
            busy, shift = busy_share(measured), {"left": -1, "center": 0, "right": 1}[ha]
            ax.plot(busy, y, marker, color=colour, fillstyle=fill, markersize=9, zorder=3)
            said = f"{busy:.0f}, at {measured['cycles'] / measured['ms'] / 1e6:.2f} GHz\n{about}"
            ax.text(busy + shift, y - 0.22, said, ha=ha, va="top", color=colour, fontsize="small")
    ax.set(xlim=(0, 101), ylim=(-0.8, 1.6), xlabel="tensor cores busy, % of an SM's cycles")
    ax.set_title("D = 128, full attention on an H200, S = 4,096: measured, and the three limits")
    ax.set_yticks((1, 0), kernels)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="y", visible=False)
    plt.show()
