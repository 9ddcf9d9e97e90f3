"""Exercise 0.4, attainable_flops."""

import math
import random

from fa_tutorial.exercises.harness import Exercise, case


def attainable_flops(intensity, peak_flops, bandwidth):
    """FLOP/s under the roof: intensity in FLOP/byte, peak_flops in FLOP/s, bandwidth in byte/s."""
    return min(peak_flops, intensity * bandwidth)


MISTAKES = {
    "larger": "the larger of the two limits is taken: the slower one decides",
    "always_peak": "the memory limit is missing: at low intensity the bytes cannot come fast enough",
    "never_peak": "the arithmetic limit is missing: no intensity lifts it",
    "upside_down": "bandwidth is divided by the intensity: FLOP/byte times byte/s is FLOP/s",
    "divided": "intensity is divided by the bandwidth: FLOP/byte times byte/s is FLOP/s",
    "series": "the two limits are combined as if one waited for the other; they overlap, so the slower one decides",
    "average": "the limits are averaged: the slower one decides",
    "threshold": "the intensity is compared with the bandwidth: the ridge is where intensity · bandwidth reaches peak_flops",
    "whole": "the result is cut to a whole number: FLOP/s need not be one",
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
    rule = "the roof is the smaller of peak_flops and intensity · bandwidth"
    for intensity in (2.0, 12.0, 50.0, 20.0, 0.25):  # twice below the ridge, above it, on it, and a roof that is no whole number
        yield case(intensity, 100.0, 5.0, otherwise=rule)
    yield case(0.25, 7.83e14, 4.3e12, otherwise=rule)
    for _ in range(20):
        peak_flops, bandwidth = 10 ** random.uniform(12, 15), 10 ** random.uniform(10, 13)
        factor = 10 ** random.uniform(0, 2)
        yield case(peak_flops / bandwidth / factor, peak_flops, bandwidth, on="a random case below the ridge", otherwise=rule, fresh=True)
        yield case(peak_flops / bandwidth * factor, peak_flops, bandwidth, on="a random case above the ridge", otherwise=rule, fresh=True)


EXERCISE = Exercise(
    id="0.4",
    task="Draw the roof: the FLOP/s that an intensity allows.",
    hints=(
        "Bytes arrive at `bandwidth`. How many FLOPs does each of them feed?",
        "intensity · bandwidth is the slope, peak_flops the flat part; the lower of the two is the roof.",
    ),
    solution=attainable_flops,
    reasoning="Memory delivers bandwidth bytes a second, and each feeds `intensity` FLOPs; the units do at most peak_flops. Both work at once, "
    "so the slower one decides.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
)
