"""Exercise 0.4, missed_floor."""

import random

from fa_tutorial.exercises.harness import Exercise, case


def missed_floor(ms, heads, S, D, bandwidth):
    """(kernel, factor): the kernel that misses its floor most, and its time over its floor.

    ms: measured milliseconds of "q kᵀ", "divide", "softmax" and "p v", in fp16. bandwidth: bytes/s.
    """
    scores, vectors = 2 * heads * S * S, 2 * heads * S * D  # bytes of s or p, and of q, k, v or o
    moved = {
        "q kᵀ": 2 * vectors + scores,
        "divide": 2 * scores,
        "softmax": 2 * scores,
        "p v": scores + 2 * vectors,
    }
    factors = {kernel: ms[kernel] / 1e3 / (count / bandwidth) for kernel, count in moved.items()}
    worst = max(factors, key=factors.get)
    return worst, factors[worst]


WORST, FACTOR = "max(factors, key=factors.get)", "ms[kernel] / 1e3 / (count / bandwidth)"
SIZES = "2 * heads * S * S, 2 * heads * S * D"
MISTAKES = {
    "that is the slowest kernel: a slow one may still be close to its floor, if it moves more bytes": (
        WORST, "max(ms, key=ms.get)"),
    "that is the kernel that loses most milliseconds: the factor is its time over its floor": (
        WORST, "max(moved, key=lambda kernel: ms[kernel] - moved[kernel] / bandwidth * 1e3)"),
    "that is always softmax: find the kernel whose factor is the largest": (WORST, '"softmax"'),
    "that is the kernel that comes closest to its floor": (WORST, "min(factors, key=factors.get)"),
    "the factor is upside down: it is the time over the floor, at least 1": [
        (FACTOR, "count / bandwidth / (ms[kernel] / 1e3)"), (WORST, "min(factors, key=factors.get)")],
    "the times are in milliseconds, and bytes / bandwidth is in seconds": (" / 1e3", ""),
    "divide and softmax read s and write a tensor as large: each moves the scores twice": [
        ('"divide": 2 * scores', '"divide": scores'), ('"softmax": 2 * scores', '"softmax": scores')],
    "softmax reads s once and writes p once: that is two trips of the scores, not three": ('"softmax": 2 * scores', '"softmax": 3 * scores'),
    "the vectors are missing: q kᵀ reads q and k, and p v reads v and writes o": [
        ("2 * vectors + scores", "scores"), ("scores + 2 * vectors", "scores")],
    "q kᵀ writes S × S numbers and p v reads as many, once each: you count them twice there": [
        ("2 * vectors + scores", "2 * vectors + 2 * scores"), ("scores + 2 * vectors", "2 * scores + 2 * vectors")],
    "the heads are missing: each has its own q, k, v, o, s and p": (SIZES, "2 * S * S, 2 * S * D"),
    "you count elements, not bytes: an fp16 number takes 2": (SIZES, "heads * S * S, heads * S * D"),
    "you count 4 bytes an element: an fp16 number takes 2": (SIZES, "4 * heads * S * S, 4 * heads * S * D"),
}  # fmt: skip


def truth(ms, heads, S, D, bandwidth):
    product, pointwise = 2 * heads * (S * S + 2 * S * D), 2 * heads * 2 * S * S
    floors = [count / bandwidth * 1e3 for count in (product, pointwise, pointwise, product)]
    return max(((kernel, time / floor) for (kernel, time), floor in zip(ms.items(), floors, strict=True)), key=lambda x: x[1])


KERNELS = ("q kᵀ", "divide", "softmax", "p v")


def inputs():
    def measured(factors, heads, S, D, bandwidth, on, **options):
        """Times that are these factors of the floors."""
        product, pointwise = 2 * heads * S * (S + 2 * D), 4 * heads * S * S
        counts = (product, pointwise, pointwise, product)
        ms = {kernel: factor * count / bandwidth * 1e3 for kernel, factor, count in zip(KERNELS, factors, counts, strict=True)}
        return case(ms, heads, S, D, bandwidth, on=on, **options)

    toy = "1 head, S = 4, D = 1, 1,000 bytes/s"
    count = "count what each kernel reads and writes: with S = 4 and D = 1, q kᵀ and p v move 48 bytes, divide and softmax 64"
    yield measured((1.5, 1, 2, 1), 1, 4, 1, 1e3, f"{toy}, softmax takes twice its floor", otherwise=count)
    yield measured((1.3, 1, 1, 1.25), 1, 4, 1, 1e3, f"{toy}, q kᵀ takes 1.3 times its floor", otherwise=count)
    slow = "p v misses its floor most, although divide takes longer and loses more milliseconds"
    yield measured((1, 1.5, 1, 1.6), 1, 8, 1, 1e3, "1 head, S = 8, D = 1, 1,000 bytes/s", otherwise=slow)
    yield measured((2, 3, 1, 1), 3, 5, 4, 2e3, "3 heads, S = 5, D = 4, 2,000 bytes/s, divide takes 3 times its floor")
    yield measured((3, 2, 2.5, 1), 3, 5, 4, 2e3, "3 heads, S = 5, D = 4, 2,000 bytes/s, q kᵀ takes 3 times its floor")
    for _ in range(20):
        factors = random.sample([1.0, 1.3, 1.9, 3.0], 4)
        sizes = (random.randint(1, 16), random.randint(2, 4096), random.choice((16, 64, 128)))
        yield measured(factors, *sizes, 10 ** random.uniform(10, 13), "random times", fresh=True)


EXERCISE = Exercise(
    task="Find the kernel of naive attention that misses its floor most, and by what factor.",
    hints=(
        "How many bytes does each of the four kernels read and write? The picture of naive attention has an arrow for each tensor.",
        "q kᵀ reads q and k and writes S × S numbers; divide and softmax read one S × S tensor and write one; p v reads p and v and writes o. "
        "A floor is bytes / bandwidth, in seconds; divide each time by its floor, and take the largest factor.",
    ),
    solution=missed_floor,
    reasoning="A kernel can't be faster than its bytes. The times alone don't tell which kernel is bad: the one that moves most bytes "
    "may be the slowest and still run at a copy's speed. Time over floor does.",
    inputs=inputs,
    truth=truth,
    rule="a kernel's floor is the bytes that it reads and writes over the bandwidth; the factor is its time over its floor",
    mistakes=MISTAKES,
    parts=("kernel", "factor"),
)
