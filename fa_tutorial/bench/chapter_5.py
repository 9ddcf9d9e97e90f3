"""Chapter 5: what its page shows of the stored results of its kernel."""

from __future__ import annotations

from fa_tutorial.bench import results

LAYER = {"mode": "fwd", "dtype": "fp16", "B": 1}


def show_one_loop(card: dict) -> None:
    """Print how many times as long as the finished kernel one with a single loop takes. card: results.load's."""
    lengths = (1_024, 4_096, 16_384)
    print("one loop takes … times as long at S =", *(f"{S:6,}" for S in lengths), "  (stored, H200)")
    for D, H in ((64, 32), (128, 16)):
        for is_causal in (False, True):
            case = {"kernel": "loops", "H_q": H, "D": D, "is_causal": is_causal}
            one, two = (
                results.select(card["kernels"], provider=loops, **case).set_index("S_q")["ms"]
                for loops in ("one", "two")
            )
            ratios = (f"{one[S] / two[S]:6.2f}" for S in lengths)
            print(f"D = {D:3}, {H} heads, causal {is_causal!s:5}       ", *ratios)


def show_times(card: dict, names: dict[str, str]) -> None:
    """Print times and memory of 16 heads with D = 64, and times of 16,384 tokens, cuDNN's too. names: by provider."""
    lengths = (512, 1_024, 2_048, 4_096)
    print("ms at S =       ", *(f"{S:7,}" for S in lengths), "   MiB at 4,096   longest S")
    for provider, name in names.items():
        rows = results.select(card["rows"], provider=provider, H_q=16, D=64, is_causal=False, **LAYER)
        rows = rows.dropna(subset="ms").set_index("S_q")
        times = [f"{rows['ms'][S]:7.3f}" for S in lengths]
        print(f"{name:16}", *times, f"{rows['peak_bytes'][4096] / 2**20:14,.1f} {rows.index.max():11,}")
    print("\nms at 16,384 tokens:")
    for D, H in ((64, 32), (128, 16)):
        for is_causal in (False, True):
            case = LAYER | {"H_q": H, "D": D, "S_q": 16_384, "is_causal": is_causal}
            found = names | {"sdpa_cudnn": "cuDNN"}
            ms = {p: results.select(card["rows"], provider=p, **case)["ms"].item() for p in found}
            times = ", ".join(f"{name} {ms[p]:5.2f}" for p, name in found.items())
            print(f"D = {D:3}, {H} heads, causal {is_causal!s:5}: {times}")


def show_tiles(card: dict) -> None:
    """Print the kernel's times with six tiles, at S = 4,096, and its registers a thread, + those that are spilled."""
    rows = results.select(card["kernels"], kernel="forward_tile", S_q=4_096)
    print(" " * 27 + "D = 64: full  causal  registers   D = 128: full  causal  registers   (ms, stored, H200)")
    for tile in rows["provider"].unique():
        line = f"{tile:27}"
        for D, gap in ((64, 12), (128, 16)):
            full, causal = (
                results.select(rows, provider=tile, D=D, is_causal=is_causal).iloc[0] for is_causal in (False, True)
            )
            spilled = f" + {full['spilled_registers']:.0f}" if full["spilled_registers"] else ""
            line += f"{full['ms']:{gap}.2f}{causal['ms']:8.2f}{full['registers']:5.0f}{spilled:6}"
        print(line.rstrip())
