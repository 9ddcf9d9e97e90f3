"""Chapter 5: what its page shows of the stored results of its kernel."""

import re
from collections.abc import Mapping
from typing import Any

from fa_tutorial import forward
from fa_tutorial.bench import results
from fa_tutorial.tiles import TileConfig

LAYER = {"mode": "fwd", "dtype": "fp16", "B": 1}


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
    print("\nms, 32 heads, S = 16,384    full  causal")
    for provider, name in names.items():
        found = results.select(rows, provider=provider, H_q=32, D=64, S_q=16_384, **LAYER).sort_values("is_causal")
        print(f"{name:24}", *(f"{ms:7.2f}" for ms in found["ms"]))


def room_on_an_sm(row: Mapping[str, Any], num_warps: int) -> tuple[int, int]:
    """For how many programs a Hopper SM's 65,536 registers have room, which a thread gets in eights, and for how many
    its 228 KiB of shared memory, of which each program takes 1 KiB more than its own. row: what the compiler made of a
    kernel.
    """
    of_program = -(-int(row["registers"]) // 8) * 8 * 32 * num_warps
    return 65_536 // of_program, 228 * 1_024 // (int(row["shared_bytes"]) + 1_024)


def show_programs(card: dict) -> None:
    """Print what a tile with room for two programs on an SM does, and with the stage that leaves room for one."""
    rows = results.select(card["kernels"], kernel="forward_tile")
    for D, tile, stages in ((64, "128x64, 8 warps", (6, 7)), (128, "64x64, 4 warps", (3, 4))):
        found = []
        for n in stages:
            row = results.select(rows, D=D, provider=f"{tile}, {n} stages").iloc[0]
            programs = min(room_on_an_sm(row, int(tile.split()[1])))
            found.append(f"{n} stages, {programs} on an SM: {row['ms']:.2f} ms, {row['tflops']:.0f} TFLOP/s")
        print(f"D = {D:3}, {tile} (stored, H200):", *found, sep="\n    ")


def show_tiles(card: dict, dims: tuple[int, ...], *, room: bool = True, times: bool = True) -> None:
    """Print what the compiler made of the kernel with each tile that was timed for all of dims, and its time; * marks
    forward.CONFIGS."""
    rows = results.select(card["kernels"], kernel="forward_tile", is_causal=False)
    rows, chosen = rows[rows["D"].isin(dims)], forward.CONFIGS[232_448]  # bytes of shared memory
    heading = f"{'numbers  registers  programs  ' if room else ''}{'    time' if times else ''}"
    wide = len(heading) + 3
    print(f"{'(stored, H200)':26}", "".join(f"D = {D}".ljust(wide) for D in dims).rstrip())
    print(f"{'':26}", "".join(heading.ljust(wide) for _ in dims).rstrip())
    for tile, count in rows["provider"].value_counts(sort=False).items():
        if count < len(dims):
            continue
        block_m, block_n, num_warps, _ = sizes = [int(word) for word in re.findall(r"\d+", tile)]
        line = f"{tile:26} "
        for D in dims:
            row = results.select(rows, provider=tile, D=D).iloc[0]
            numbers = block_m * block_n // (32 * min(num_warps, block_m // 16)) + block_m * D // (32 * num_warps)
            spilled = f"+{row['spilled_registers']:.0f}" if row["spilled_registers"] else ""
            made = f"{numbers:7}  {row['registers']:5.0f}{spilled:4}  {min(room_on_an_sm(row, num_warps)):8}  "
            time = f"{'*' if TileConfig(*sizes) == chosen[D] else ' '}{row['ms']:.2f} ms"
            line += f"{made if room else ''}{time if times else ''}".ljust(wide)
        print(line.rstrip())
    of_a_thread = "a thread's numbers of s and acc, and its registers (+: spilled); programs: on an SM"
    print("; ".join([of_a_thread] * room + ["*: the tile of the package"] * times))
