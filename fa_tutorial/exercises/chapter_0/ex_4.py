import random

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting


def gain_of_fusing(kernels, fused_bytes, peak_flops, bandwidth):
    """(gain, limit): how many times as fast fusing makes perfect kernels, what limits the fused one.

    kernels: a list of (FLOPs, bytes), one pair per kernel. limit: "memory" or "arithmetic".
    fused_bytes: in bytes. peak_flops: in FLOP/s. bandwidth: in bytes/s.
    """
    before = sum(max(flops / peak_flops, moved / bandwidth) for flops, moved in kernels)  # seconds
    arithmetic = sum(flops for flops, _ in kernels) / peak_flops
    after = max(arithmetic, fused_bytes / bandwidth)
    limit = "arithmetic" if after == arithmetic else "memory"
    return before / after, limit


EACH, FLOPS, MOVED = (
    "max(flops / peak_flops, moved / bandwidth)",
    "sum(flops for flops, _ in kernels)",
    "sum(moved for _, moved in kernels)",
)
BEFORE, AFTER = f"sum({EACH} for flops, moved in kernels)", "max(arithmetic, fused_bytes / bandwidth)"
GAIN, LIMIT, RIGHT = "before / after", '"arithmetic" if after == arithmetic else "memory"', "arithmetic >= fused_bytes / bandwidth"
MISTAKES = {
    "you count the kernels as one: they run one after another, so no kernel's FLOPs hide the bytes of another": (
        BEFORE, f"max({FLOPS} / peak_flops, {MOVED} / bandwidth)"),
    "the gain is the ratio of the bytes, as if the FLOPs took no time: past the ridge, fewer bytes save nothing": (
        GAIN, f"{MOVED} / fused_bytes"),
    "a kernel with 0 FLOPs still waits for its bytes: you leave its time out": (
        f"{EACH} for flops, moved in kernels", f"{EACH} for flops, moved in kernels if flops"),
    "you take the slowest kernel alone: the kernels run one after another, so their times add up": (f"sum({EACH}", f"max({EACH}"),
    "the fused kernel does the FLOPs of all kernels, not only those of one": (FLOPS, "max(flops for flops, _ in kernels)"),
    "you give how much faster the fused kernel is: asked is how many times as fast, one more": (GAIN, "before / after - 1"),
    "the gain is upside down: it is the time before over the time after": (GAIN, "after / before"),
    "the fused kernel waits for its bytes alone: its FLOPs may take longer": (f"after = {AFTER}", "after = fused_bytes / bandwidth"),
    "the kernels before wait for their bytes alone: their FLOPs may take longer": (EACH, "moved / bandwidth"),
    "you add the two times as if one waited for the other: a kernel loads and computes at the same time": [
        (EACH, "flops / peak_flops + moved / bandwidth"), (AFTER, "arithmetic + fused_bytes / bandwidth"), ("after == arithmetic", RIGHT)],
    "you take the shorter of the two times, but the slower limit decides": [
        (EACH, EACH.replace("max", "min")), (AFTER, AFTER.replace("max", "min")), ("after == arithmetic", RIGHT)],
    "that is what limits the kernels before: the question is what limits the fused one": (
        "after == arithmetic", f"arithmetic >= {MOVED} / bandwidth"),
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


def truth(kernels, fused_bytes, peak_flops, bandwidth):
    def seconds(flops, moved):
        return flops / min(peak_flops, flops / moved * bandwidth) if flops else moved / bandwidth  # by (0.8)

    total = sum(flops for flops, _ in kernels)
    limit = "memory" if total / fused_bytes < peak_flops / bandwidth else "arithmetic"
    return sum(seconds(*kernel) for kernel in kernels) / seconds(total, fused_bytes), limit


def inputs():
    toy = (100.0, 5.0)
    still = "100 s of bytes become 20 s, and the FLOPs take 10 s: the bytes still decide, so the gain is 100 s / 20 s"
    yield case([(1000, 500)], 100, *toy, otherwise=still)
    yield case([(1000, 250), (0, 250)], 20, *toy, otherwise="100 s of bytes become 4 s, and then the FLOPs decide: they take 10 s")
    turns = "the kernels take 10 s of FLOPs, 80 s of bytes and 10 s of FLOPs, one after another; fused, the FLOPs take 20 s"
    yield case([(1000, 20), (0, 400), (1000, 20)], 60, *toy, otherwise=turns)
    yield case([(1000, 40)], 20, *toy, otherwise="the FLOPs took longer than the bytes before, so fewer bytes save nothing")
    yield case([(2000, 10), (0, 500)], 400, *toy, otherwise="20 s of FLOPs and then 100 s of bytes become 80 s of bytes")
    ridge = "here the ridge is at 5 FLOP/byte: the kernels take 500 s and 100 s, and the fused one 200 s of FLOPs"
    yield case([(500, 500), (500, 50)], 100, 5.0, 1.0, otherwise=ridge)
    yield case([(1000, 500)], 400, *toy)
    product, middle = (34_359_738_368, 553_648_128), (0, 1_073_741_824)
    yield case([product, middle, middle, product], 33_816_576, 6.572e14, 4.2735e12)  # chapter 0's own
    for _ in range(20):
        flops, peak_flops, bandwidth = (10 ** random.uniform(low, low + 3) for low in (9, 12, 10))
        ridge = flops / (peak_flops / bandwidth)  # bytes at the ridge
        for side, factor in (("left", random.uniform(1.1, 9)), ("right", random.uniform(0.1, 0.9))):
            kernels = [(flops * share, ridge * random.uniform(0.1, 9)) for share in (0.5, 0.0, 0.3, 0.2)]
            on = f"random kernels, and a fused one {side} of the ridge"
            yield case(kernels, ridge * factor, peak_flops, bandwidth, on=on, fresh=True)


EXERCISE = Exercise(
    task="Say how much faster fusing can make perfect kernels, and what limits the fused one.",
    hints=(
        "How long does one perfect kernel take that does `flops` and moves `moved` bytes? It loads and computes at the same time. But one "
        "kernel starts after the other.",
        "A perfect kernel takes max(flops / peak_flops, moved / bandwidth) seconds. Add these times up, divide by the time of the fused "
        "kernel, which does all the FLOPs, and let the larger of its two times name the limit.",
    ),
    solution=gain_of_fusing,
    reasoning="A perfect kernel takes the longer of two times. In a fused kernel all FLOPs go on while all bytes arrive, and there are fewer "
    "bytes. So fusing helps until the arithmetic takes longer: from the ridge on the gain stops growing.",
    inputs=inputs,
    truth=truth,
    rule="a perfect kernel takes the longer of flops / peak_flops and bytes / bandwidth, and the kernels run one after another; the gain is "
    "their time over the fused kernel's",
    mistakes=MISTAKES,
    adapt=in_two_words,
    parts=("gain", "limit"),
)
