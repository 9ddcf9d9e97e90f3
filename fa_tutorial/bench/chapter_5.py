"""Chapter 5: what its page shows of the stored results of its kernel."""

from __future__ import annotations

from fa_tutorial import forward
from fa_tutorial.bench import results

LAYER = {"mode": "fwd", "dtype": "fp16", "B": 1}


def show_one_loop(card: dict) -> None:
    """Print how many times as long as the finished kernel one with a single loop takes. card: results.load's."""
    lengths = (1_024, 4_096, 16_384)
    print("one loop takes … times as long at S =", *(f"{S:6,}" for S in lengths), "  (stored, H200)")
    for is_causal in (False, True):
        case = {"kernel": "loops", "H_q": 32, "D": 64, "is_causal": is_causal}
        one, two = (
            results.select(card["kernels"], provider=loops, **case).set_index("S_q")["ms"] for loops in ("one", "two")
        )
        print(f"causal {is_causal!s:30}", *(f"{one[S] / two[S]:6.2f}" for S in lengths))


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


def show_tiles(card: dict) -> None:
    """Print the kernel's time and registers with six tiles, at S = 4,096; * marks those of forward.CONFIGS."""
    rows = results.select(card["kernels"], kernel="forward_tile", S_q=4_096, is_causal=False)
    chosen = forward.CONFIGS[232_448]  # bytes of shared memory
    print(f"(stored, H200)              {'D = 64: time, registers':27} D = 128: time, registers")
    for tile in rows["provider"].unique():
        line = f"{tile:27}"
        for D in (64, 128):
            row, mine = results.select(rows, provider=tile, D=D).iloc[0], chosen[D]
            name = f"{mine.block_m}x{mine.block_n}, {mine.num_warps} warps, {mine.num_stages} stages"
            spilled = f", {row['spilled_registers']:.0f} spilled" if row["spilled_registers"] else ""
            mark = "*" if tile == name else " "
            line += f"{mark}{row['ms']:.2f} ms, {row['registers']:.0f}{spilled}".ljust(28)
        print(line.rstrip())
    print("* the package's tile for this D")
