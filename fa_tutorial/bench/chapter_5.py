"""Chapter 5: what its page shows of its kernel, stored, compiled and timed."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import torch
import triton

from fa_tutorial import forward, hardware, reference, sass
from fa_tutorial.bench import results, timing
from fa_tutorial.figures import GREY
from fa_tutorial.tiles import TileConfig

LAYER = {"mode": "fwd", "dtype": "fp16", "B": 1}
TILES = forward.CONFIGS[232_448]  # the package's for an H200, by its bytes of shared memory
# Of the softmax, by the names of its machine instructions.
WORK = {"multiply": ("FMUL", "FFMA"), "compare": ("FMNMX", "FSETP"), "add": ("FADD",)}
WORK |= {"exponential": ("MUFU",), "round to fp16": ("F2FP",)}


def outcome(kernel: Any, *args: Any) -> str:
    """What one program of a kernel does with these arguments: "works", or its compiler's own words."""
    try:
        kernel[(1,)](*args)
    except Exception as error:
        while error.__cause__:
            error = error.__cause__
        return str(error)
    return "works"


def show_rates(card: dict) -> None:
    """Print the rate of a matmul in fp16, and in float32 that isn't rounded. card: results.load's."""
    for name in ("fp16", "fp32_ieee"):
        rate = card["provenance"]["ceilings"][f"matmul_{name}_tflops"]
        print(f"matmul, {name:9}: {rate:3.0f} TFLOP/s   (stored, H200)")


def show_one_loop(card: dict) -> None:
    """Print the times of naive attention, of one loop that masks each tile, and of two, for one sequence of
    16,384 tokens. card: results.load's."""
    cases = [{"D": D, "is_causal": is_causal, "S_q": 16_384} for D in (64, 128) for is_causal in (False, True)]
    naive = [results.select(card["rows"], provider="naive", H_q=2_048 // case["D"], **case, **LAYER) for case in cases]
    print("stored, H200: 1 sequence, S = 16,384  D = 64, 32 heads   D = 128, 16 heads")
    print("ms                                    full     causal     full     causal")
    ways = {"naive attention": naive}
    for loops, name in {"one": "one loop, all tiles masked", "two": "your two loops"}.items():
        ways[name] = [results.select(card["kernels"], kernel="loops", provider=loops, **case) for case in cases]
    for name, found in ways.items():
        print(f"{name:33}", *(f"{rows.iloc[0]['ms']:9.2f}" for rows in found))


def show_times(card: dict, names: dict[str, str]) -> None:
    """Print times and memory at D = 64 of one sequence of S tokens with 16 heads. names: by provider."""
    lengths = (512, 1_024, 2_048, 4_096)
    print("ms, 16 heads, S =", *(f"{S:7,}" for S in lengths), "  MiB at 4,096")
    for provider in ("naive", "sdpa_flash", "basic"):
        rows = results.select(card["rows"], provider=provider, H_q=16, D=64, is_causal=False, **LAYER)
        found = rows.set_index("S_q")
        times = [f"{found['ms'][S]:7.3f}" for S in lengths]
        print(f"{names[provider]:17}", *times, f"{found['peak_bytes'][4_096] / 2**20:14,.2f}")
    print("at 512 FlashAttention-2 takes 5 MiB: it splits the keys (chapter 11), each part's o in float32")


def time_here(flash: Callable) -> None:
    """Print the times of the reader's kernel and of its peers on this machine's GPU, in the table's largest case.
    flash: (q, k, v, is_causal, tile) → (o, lse)."""
    if hardware.device().type != "cuda":
        print("your own times need a GPU")
        return
    q, k, v = (torch.randn(1, 16, 4_096, 64, device="cuda").half() for _ in range(3))
    tile = forward.choose_config(64, torch.float16, hardware.shared_memory_limit())
    kernels = {
        "naive": lambda: reference.naive_attention(q, k, v),
        "PyTorch's": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
        "yours": lambda: flash(q, k, v, False, tile),
    }
    times = (f"{name} {timing.time_call(call).ms:.3f}" for name, call in kernels.items())
    print("here, ms at S = 4,096:", ", ".join(times))


def room_on_an_sm(row: Mapping[str, Any], num_warps: int) -> tuple[int, int]:
    """For how many programs a Hopper SM's 65,536 registers have room, which a thread gets in eights, and for how many
    its 228 KiB of shared memory, of which each takes 1 KiB more than its own. row: what the compiler made of it."""
    of_program = -(-int(row["registers"]) // 8) * 8 * 32 * num_warps
    return 65_536 // of_program, 228 * 1_024 // (int(row["shared_bytes"]) + 1_024)


def show_tiles(card: dict, D: int) -> None:
    """Print what the compiler made of the kernel with each timed tile, and its time; * marks the package's. And cuDNN's
    time."""
    rows = results.select(card["kernels"], kernel="forward_tile", D=D, is_causal=False)
    print(f"stored: H200, 4 sequences of 4,096 tokens, {2_048 // D} heads")
    print(f"D = {D:<3}                    registers  spilled  programs on an SM       time")
    for row in rows.to_dict("records"):
        sizes = [int(word) for word in re.findall(r"\d+", row["provider"])]
        star = "*" if TileConfig(*sizes) == TILES[D] else " "
        programs = min(room_on_an_sm(row, sizes[2]))
        made = f"{row['registers']:9.0f} {row['spilled_registers'] or '-':>8} {programs:18}"
        print(f"{row['provider']:26} {made} {star:>3}{row['ms']:.2f} ms")
    cudnn = results.select(card["kernels"], kernel="step", provider="sdpa_cudnn", D=D, is_causal=False).iloc[0]
    print(f"{'cuDNN, in another run':67}{cudnn['ms']:.2f} ms")
    print(f"a thread's registers, and the numbers that it spills; *: the package's tile at D = {D}")
    print(f"compiled by Triton {card['provenance']['triton']}: other versions differ, in spills most")


def count_loop(kernel: Any, D: int) -> tuple[float, float]:
    """How many instructions of a reader's kernel, compiled here for an H200, one score takes: for its softmax, and in
    all. Prints them by what they do."""
    tile = TILES[D]
    loop = sass.forward_loop(kernel, D, tile)
    scores = tile.block_m * tile.block_n / (32 * tile.num_warps)  # of one thread
    by_work = {what: sum(loop.get(name, 0) for name in names) / scores for what, names in WORK.items()}
    softmax, every = sum(by_work.values()), sum(loop.values()) / scores
    print(f"D = {D}, {tile.block_m}x{tile.block_n}: instructions for a score, by Triton {triton.__version__}")
    for what, number in by_work.items():
        print(f"  {what} ({', '.join(WORK[what])})".ljust(42), f"{number:6.1f}")
    rest = {"softmax": softmax, "loads, addresses, waiting and products": every - softmax, "all": every}
    print(*(f"{what:42} {number:6.1f}" for what, number in rest.items()), sep="\n")
    return softmax, every


def stored_cycles(card: dict) -> dict[str, tuple[int, float]]:
    """An SM's cycles in a call of full attention at D = 128 (4 sequences of 4,096 tokens, 16 heads), and its ms: of
    yours, and of cuDNN. card: results.load's."""
    tile = TILES[128]
    words = f"{tile.block_m}x{tile.block_n}, {tile.num_warps} warps"
    ways = {
        "yours, 4 stages: one on an SM": ("forward_tile", f"{words}, 4 stages"),
        "yours, 3 stages: two on an SM": ("forward_tile", f"{words}, 3 stages"),
        "cuDNN": ("step", "sdpa_cudnn"),
    }
    select = partial(results.select, card["kernels"], D=128, is_causal=False)
    rows = {name: select(kernel=kernel, provider=provider).iloc[0] for name, (kernel, provider) in ways.items()}
    return {name: (int(row["cycles"]), float(row["ms"])) for name, row in rows.items()}


def draw_limits(busy: dict[str, float], yours: tuple, cudnn: tuple) -> None:
    """Draw in which share of an SM's cycles tensor cores are busy, and could be: a line for each of the two kernels,
    with its three limits. busy: (5.4), in %, for stored_cycles' names. yours, cudnn: 5.9's limits, in %."""
    one, two, peer = busy.values()
    _, ax = plt.subplots(figsize=(9, 2.9))
    for y, limits in ((1, cudnn), (0, yours)):
        ax.plot([0, 100], [y, y], color=GREY, linestyle="-", linewidth=1, zorder=1)
        for at, what, ha in zip(limits, ("in series", "in turns", "at once"), ("right", "left", "right"), strict=True):
            ax.plot([at, at], [y - 0.17, y + 0.17], color="black", linestyle="-", linewidth=2, zorder=2)
            ax.text(at, y + 0.22, f"{what} {at:.0f}", ha=ha, va="bottom", fontsize="small")
    marks = ((1, peer, "C0", "full", "center", ""), (0, two, "C0", "full", "left", "\ntwo on an SM"))
    for y, share, colour, fill, ha, about in (*marks, (0, one, "C1", "none", "right", "\none on an SM")):
        ax.plot(share, y, "D" if about.endswith("one") else "o", color=colour, fillstyle=fill, markersize=9, zorder=3)
        ax.text(share, y - 0.22, f"{share:.0f}{about}", ha=ha, va="top", color=colour, fontsize="small")
    ax.annotate("", (two - 1, 0), (one + 1, 0), arrowprops={"arrowstyle": "-|>", "color": "black", "linewidth": 1.5})
    ax.set(xlim=(0, 101), ylim=(-0.8, 1.6), xlabel="tensor cores busy, % of an SM's cycles")
    ax.set_title("D = 128, full attention on an H200, S = 4,096: measured (5.4), and the three limits")
    ax.set_yticks((1, 0), ("cuDNN, if it has\n4 instructions", "yours"))
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="y", visible=False)
    plt.show()
