"""Chapter 5: what its page shows of the stored results of its kernel."""

import re
from collections.abc import Mapping
from typing import Any

from fa_tutorial import forward
from fa_tutorial.bench import results
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
    for row in rows[rows["provider"] != ALONE[D]].to_dict("records") if D in ALONE else rows.to_dict("records"):
        sizes = [int(word) for word in re.findall(r"\d+", row["provider"])]
        star = "*" if TileConfig(*sizes) == forward.CONFIGS[232_448][D] else " "  # bytes of shared memory
        programs = min(room_on_an_sm(row, sizes[2]))
        made = f"{row['registers']:9.0f} {row['spilled_registers'] or '-':>8} {programs:18}"
        print(f"{row['provider']:26} {made} {star:>3}{row['ms']:.2f} ms")
    print("a thread's registers, and the numbers that it spills; *: the tile of the package")
