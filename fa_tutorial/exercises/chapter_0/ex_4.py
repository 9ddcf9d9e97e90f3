"""Exercise 0.4, attainable_flops."""

import math
import random

from fa_tutorial.exercises.harness import Exercise, case


def attainable_flops(intensity, peak_flops, bandwidth):
    """FLOP/s that a kernel can reach. Units: FLOP/byte, FLOP/s and byte/s."""
    return min(peak_flops, intensity * bandwidth)


MISTAKES = {
    "larger": "you take the larger of the two limits, but the slower one decides",
    "always_peak": "the memory limit is missing: at low intensity the bytes do not arrive fast enough",
    "never_peak": "the arithmetic limit is missing: no intensity gets past peak_flops",
    "upside_down": "you divide the bandwidth by the intensity, but FLOP/byte times byte/s is FLOP/s",
    "divided": "you divide the intensity by the bandwidth, but FLOP/byte times byte/s is FLOP/s",
    "series": "you add the two times as if one waited for the other: they overlap, so the slower one decides",
    "average": "you average the two limits, but the slower one decides",
    "threshold": "you compare the intensity with the bandwidth: compare intensity · bandwidth with peak_flops",
    "whole": "you cut the result to a whole number, but FLOP/s need not be one",
}


def twin(intensity, peak_flops, bandwidth, mistake=None):
    memory = intensity * bandwidth
    return {
        "larger": max(peak_flops, memory),
        "always_peak": peak_flops,
        "never_peak": memory,
        "upside_down": min(peak_flops, bandwidth / intensity),
        "divided": min(peak_flops, intensity / bandwidth),
        "series": 1 / (1 / peak_flops + 1 / memory),
        "average": (peak_flops + memory) / 2,
        "threshold": peak_flops if intensity > bandwidth else memory,
        "whole": math.floor(min(peak_flops, memory)),
    }.get(mistake, min(peak_flops, memory))


def inputs():
    rule = "the slower of arithmetic and memory decides"
    for intensity in (2.0, 12.0, 50.0, 20.0, 0.25):  # below the ridge, twice above it, on it, and where the roof is no whole number
        yield case(intensity, 100.0, 5.0, otherwise=rule)
    yield case(0.25, 7.83e14, 4.3e12, otherwise=rule)
    for _ in range(20):
        peak_flops, bandwidth = 10 ** random.uniform(12, 15), 10 ** random.uniform(10, 13)
        factor = 10 ** random.uniform(0, 2)
        yield case(peak_flops / bandwidth / factor, peak_flops, bandwidth, on="a random case below the ridge", otherwise=rule, fresh=True)
        yield case(peak_flops / bandwidth * factor, peak_flops, bandwidth, on="a random case above the ridge", otherwise=rule, fresh=True)


EXERCISE = Exercise(
    id="0.4",
    task="Predict the FLOP/s that a kernel of a given intensity can reach.",
    hints=(
        "The memory delivers `bandwidth` bytes per second. How many FLOPs does that allow per second, if each byte feeds `intensity` FLOPs?",
        "The memory allows intensity · bandwidth FLOP/s, and the units allow peak_flops. Both work at the same time: which limit decides?",
    ),
    solution=attainable_flops,
    reasoning="The memory delivers `bandwidth` bytes per second, and each feeds `intensity` FLOPs; the units do at most peak_flops per second. "
    "Both work at the same time, so the slower one decides.",
    more="The package's version, ledger.attainable_flops, also checks its arguments.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
)
