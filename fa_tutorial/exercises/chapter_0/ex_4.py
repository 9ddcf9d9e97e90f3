"""Exercise 0.4, attainable_flops."""

import random

from fa_tutorial.exercises.harness import Exercise, case


def attainable_flops(intensity, peak_flops, bandwidth):
    """FLOP/s that a kernel can reach. Units: FLOP/byte, FLOP/s and byte/s."""
    return min(peak_flops, intensity * bandwidth)


ROOF = "min(peak_flops, intensity * bandwidth)"
MISTAKES = {
    "you take the larger of the two limits, but the slower one decides": ("min", "max"),
    "the arithmetic limit is missing: no intensity gets past peak_flops": (ROOF, "intensity * bandwidth"),
    "the memory limit is missing: at low intensity the bytes do not arrive fast enough": (ROOF, "peak_flops"),
    "you divide the bandwidth by the intensity, but FLOP/byte times byte/s is FLOP/s": ("intensity * bandwidth", "bandwidth / intensity"),
    "you divide the intensity by the bandwidth, but FLOP/byte times byte/s is FLOP/s": ("intensity * bandwidth", "intensity / bandwidth"),
    "you add the two times as if one waited for the other: they overlap, so the slower one decides": (
        ROOF, "1 / (1 / peak_flops + 1 / (intensity * bandwidth))"),
    "you average the two limits, but the slower one decides": (ROOF, "(peak_flops + intensity * bandwidth) / 2"),
    "you compare the intensity with the bandwidth: compare intensity · bandwidth with peak_flops": (
        ROOF, "peak_flops if intensity > bandwidth else intensity * bandwidth"),
    "you cut the result to a whole number, but FLOP/s need not be one": (ROOF, f"int({ROOF})"),
}  # fmt: skip


def truth(intensity, peak_flops, bandwidth):
    return intensity / max(intensity / peak_flops, 1 / bandwidth)  # the FLOPs of one byte, and their time


def inputs():
    for intensity in (2.0, 12.0, 50.0, 20.0):  # below the ridge, below it, above it, on it
        yield case(intensity, 100.0, 5.0)
    yield case(0.02, 100.0, 5.0, otherwise="below the ridge the memory decides, and FLOP/s need not be a whole number")
    yield case(0.25, 7.83e14, 4.3e12)
    for _ in range(20):
        peak_flops, bandwidth = 10 ** random.uniform(12, 15), 10 ** random.uniform(10, 13)
        factor = 10 ** random.uniform(0, 2)
        yield case(peak_flops / bandwidth / factor, peak_flops, bandwidth, on="a random case below the ridge", fresh=True)
        yield case(peak_flops / bandwidth * factor, peak_flops, bandwidth, on="a random case above the ridge", fresh=True)


EXERCISE = Exercise(
    id="0.4",
    task="Predict the FLOP/s that a kernel of a given intensity can reach.",
    hints=(
        (
            "The memory delivers `bandwidth` bytes per second. How many FLOPs does that allow per second, if each byte feeds `intensity` "
            "FLOPs?"
        ),
        "The memory allows intensity · bandwidth FLOP/s, and the units allow peak_flops. Both work at the same time: which limit decides?",
    ),
    solution=attainable_flops,
    reasoning="The memory delivers `bandwidth` bytes per second, and each feeds `intensity` FLOPs; the units do at most peak_flops per "
    "second. Both work at the same time, so the slower one decides.",
    more="The package's version, ledger.attainable_flops, also checks its arguments.",
    inputs=inputs,
    truth=truth,
    rule="the memory allows intensity · bandwidth FLOP/s, the units allow peak_flops, and the slower of the two decides",
    mistakes=MISTAKES,
)
