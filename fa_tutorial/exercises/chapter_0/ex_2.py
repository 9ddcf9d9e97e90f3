import random

from fa_tutorial.exercises.harness import Exercise, case


def tensor_to_keep(ms, heads, S, D, bandwidth):
    """(tensor, saved): which of "q kᵀ", "s" and "p" to keep on the chip, and the ms it saves at most.

    ms: measured milliseconds of "q kᵀ", "divide", "softmax" and "p v". bandwidth: bytes/s.
    """
    scores, vectors = 2 * heads * S * S, 2 * heads * S * D  # bytes of s and of q
    ways = {  # tensor: its two kernels, and what they move once they are one
        "q kᵀ": ("q kᵀ", "divide", 2 * vectors + scores),
        "s": ("divide", "softmax", 2 * scores),
        "p": ("softmax", "p v", scores + 2 * vectors),
    }
    saved = {}
    for tensor, (a, b, moved) in ways.items():
        saved[tensor] = ms[a] + ms[b] - moved / bandwidth * 1e3
    best = max(saved, key=saved.get)
    return best, saved[best]


SAVED, SIZES = "ms[a] + ms[b] - moved / bandwidth * 1e3", "2 * heads * S * S, 2 * heads * S * D"
MISTAKES = {
    "the two are exchanged: return tensor first, then saved": ("return best, saved[best]", "return saved[best], best"),
    "that is what the call takes afterwards: asked is what it saves": ("saved[best]", "sum(ms.values()) - saved[best]"),
    "the heads are missing: each of them has its own scores and vectors": (SIZES, "2 * S * S, 2 * S * D"),
    "that is the pair that takes longest: it may also have the highest floor": (
        "max(saved, key=saved.get)", "max(ways, key=lambda tensor: ms[ways[tensor][0]] + ms[ways[tensor][1]])"),
    "your fused kernel takes the floors of both kernels, but the tensor between them makes no trip any more": [
        ("2 * vectors + scores)", "2 * vectors + 3 * scores)"), ('"softmax", 2 * scores', '"softmax", 4 * scores'),
        ("scores + 2 * vectors", "3 * scores + 2 * vectors")],
    "you save only the tensor's two trips at full bandwidth, but the fused kernel is perfect: it replaces both kernels as they were measured": (
        SAVED, "2 * scores / bandwidth * 1e3"),
    "your fused kernel takes no time, or next to none: it still moves its other tensors, which takes bytes / bandwidth · 1e3 ms": (SAVED, "ms[a] + ms[b]"),
    "the times are in milliseconds, and bytes / bandwidth is in seconds": (" * 1e3", ""),
    "the vectors are missing: with q kᵀ a kernel reads q and k, and with p v it reads v and writes o": [
        ("2 * vectors + scores", "scores"), ("scores + 2 * vectors", "scores")],
    "you count elements, not bytes: an fp16 number takes 2": (SIZES, "heads * S * S, heads * S * D"),
}  # fmt: skip


def truth(ms, heads, S, D, bandwidth):
    def floor(matrices, vectors):
        return 2 * heads * S * (matrices * S + vectors * D) / bandwidth * 1e3

    first, second, third, fourth = ms.values()
    saved = (first + second - floor(1, 2), "q kᵀ"), (second + third - floor(2, 0), "s"), (third + fourth - floor(1, 2), "p")
    return max(saved)[::-1]


def inputs():
    def measured(times, sizes, on, **options):
        return case(dict(zip(("q kᵀ", "divide", "softmax", "p v"), times, strict=True)), *sizes, on=on, **options)

    count = (
        "compute what each of q kᵀ, s and p saves: the times of the kernel that writes it and of the one that reads it, less the floor of one, "
        "which with S = 4 and D = 1 moves 48 bytes for q kᵀ or p, and 64 for s"
    )
    for times in ((50, 60, 200, 90), (50, 65, 130, 50), (50, 65, 130, 48), (60, 90, 70, 55)):
        on = f"1 head, S = 4, D = 1, 1,000 bytes/s, times {', '.join(map(str, times))} ms"
        yield measured(times, (1, 4, 1, 1e3), on, otherwise=count)
    yield measured((400, 300, 250, 300), (3, 5, 4, 2e3), "3 heads, S = 5, D = 4, 2,000 bytes/s")
    for _ in range(20):
        heads, S, D, bandwidth = random.randint(1, 16), random.randint(2, 4096), random.choice((16, 64, 128)), 10 ** random.uniform(10, 13)
        floor = 4 * heads * S * (S + D) / bandwidth * 1e3
        times = [floor * factor for factor in random.sample([1.0, 1.3, 1.9, 3.0], 4)]
        yield measured(times, (heads, S, D, bandwidth), "random times", fresh=True)


EXERCISE = Exercise(
    task="Decide which tensor to keep on the chip by fusing two neighbouring kernels, and say what that saves at most.",
    hints=(
        "Keeping s makes one kernel of divide and softmax. It reads q kᵀ and writes p. What do the other two fused kernels read and write?",
        "A fused kernel at its floor takes its bytes / bandwidth, in seconds. It replaces the two measured times. Compute what each of "
        "the three saves, and take the largest.",
    ),
    solution=tensor_to_keep,
    reasoning="Fusing saves a tensor's two trips, and also what the two kernels lose to their floors. So a pair with a bad kernel saves most, "
    "unless its fused kernel has much more to move.",
    inputs=inputs,
    truth=truth,
    rule="keeping a tensor saves the times of its two kernels, less the floor of the fused kernel, and is not rounded; the tensor is the one that saves most",
    mistakes=MISTAKES,
    parts=("tensor", "saved"),
)
