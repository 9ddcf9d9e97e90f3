"""Exercise 0.3, gain_of_fusing."""

import random

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting


def gain_of_fusing(flops, bytes_before, bytes_after, peak_flops, bandwidth):
    """(gain, limit): how many times as fast fusing makes perfect kernels, what limits the fused one.

    limit: "memory" or "arithmetic". Units: FLOPs, bytes, FLOP/s and bytes/s.
    """
    arithmetic = flops / peak_flops  # seconds, before and after
    before = max(arithmetic, bytes_before / bandwidth)
    after = max(arithmetic, bytes_after / bandwidth)
    limit = "arithmetic" if after == arithmetic else "memory"
    return before / after, limit


BEFORE, AFTER = "max(arithmetic, bytes_before / bandwidth)", "max(arithmetic, bytes_after / bandwidth)"
GAIN, LIMIT = "before / after", '"arithmetic" if after == arithmetic else "memory"'
MISTAKES = {
    "the gain is the ratio of the bytes, as if the FLOPs took no time: past the ridge, fewer bytes save nothing": (
        GAIN, "bytes_before / bytes_after"),
    "you give how much faster the fused kernel is: asked is how many times as fast, one more": (GAIN, "before / after - 1"),
    "the gain is upside down: it is the time before over the time after": (GAIN, "after / before"),
    "the fused kernel waits for its bytes alone: its FLOPs may take longer": (f"after = {AFTER}", "after = bytes_after / bandwidth"),
    "the kernels before wait for their bytes alone: their FLOPs may take longer": (BEFORE, "bytes_before / bandwidth"),
    "you add the two times as if one waited for the other: a kernel loads and computes at the same time": [
        (BEFORE, "arithmetic + bytes_before / bandwidth"), (f"after = {AFTER}", "after = arithmetic + bytes_after / bandwidth"),
        ("after == arithmetic", "arithmetic > bytes_after / bandwidth")],
    "you take the shorter of the two times, but the slower limit decides": [
        ("before = max", "before = min"), ("after = max", "after = min"), ("after == arithmetic", "arithmetic > bytes_after / bandwidth")],
    "that is what limits the kernels before: the question is what limits the fused one": (
        "after == arithmetic", "before == arithmetic"),
    "gain and limit are swapped: return (gain, limit)": (f"return {GAIN}, limit", f"return limit, {GAIN}"),
    "the limits are exchanged: left of the ridge the bytes take longer, right of it the FLOPs": (
        LIMIT, '"memory" if after == arithmetic else "arithmetic"'),
}  # fmt: skip


@adapting
def in_two_words(answer, *args):
    """The answer; Wrong where its limit is another text than the two."""
    result = answer(*args)
    limit = result[1] if isinstance(result, tuple | list) and len(result) == 2 else "memory"
    if isinstance(limit, str) and limit not in ("memory", "arithmetic"):
        raise Wrong(f'limit is the text "{limit}", want "memory" or "arithmetic"')
    return result


def truth(flops, bytes_before, bytes_after, peak_flops, bandwidth):
    def rate(count):
        return min(peak_flops, flops / count * bandwidth)  # (0.8)

    return rate(bytes_after) / rate(bytes_before), "memory" if rate(bytes_after) < peak_flops else "arithmetic"


def inputs():
    toy = (100.0, 5.0)
    still = "100 s of bytes become 20 s, and the FLOPs take 10 s: the bytes still decide, so the gain is 100 s / 20 s"
    yield case(1000, 500, 100, *toy, otherwise=still)
    yield case(1000, 500, 20, *toy, otherwise="100 s of bytes become 4 s, and then the FLOPs decide: they take 10 s")
    yield case(1000, 40, 20, *toy, otherwise="the FLOPs took longer than the bytes before, so fewer bytes save nothing")
    yield case(1000, 600, 100, 5.0, 1.0, otherwise="here the ridge is at 5 FLOP/byte: the bytes take 100 s, and the FLOPs 200 s")
    yield case(1000, 500, 400, *toy)
    yield case(68_719_476_736, 3_254_779_904, 553_910_272, 6.572e14, 4.2735e12)  # chapter 0's own, k and v from HBM
    for _ in range(20):
        flops, peak_flops, bandwidth = (10 ** random.uniform(low, low + 3) for low in (9, 12, 10))
        ridge = flops / (peak_flops / bandwidth)  # bytes at the ridge
        for side, factor in (("left", random.uniform(1.1, 9)), ("right", random.uniform(0.1, 0.9))):
            after = ridge * factor
            on = f"a random fused kernel {side} of the ridge"
            yield case(flops, after * random.uniform(1.2, 40), after, peak_flops, bandwidth, on=on, fresh=True)


EXERCISE = Exercise(
    task="Say how much faster fusing can make perfect kernels, and what limits the fused one.",
    hints=(
        "How long do the bytes take before and after, and how long do the FLOPs take? Both go on at the same time.",
        "A perfect kernel takes max(flops / peak_flops, bytes / bandwidth) seconds. The gain is that time before over that time "
        "after, and the larger of the two times after names the limit.",
    ),
    solution=gain_of_fusing,
    reasoning="Fusing changes the bytes and leaves the FLOPs. A perfect kernel takes the longer of the two times. So each byte saved "
    "helps only until the ridge: from there on the arithmetic takes longer, and the gain stops growing.",
    inputs=inputs,
    truth=truth,
    rule="a perfect kernel takes the longer of flops / peak_flops and bytes / bandwidth; the gain is the time before over the time after",
    mistakes=MISTAKES,
    adapt=in_two_words,
    parts=("gain", "limit"),
)
