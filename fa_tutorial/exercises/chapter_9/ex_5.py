import random

from fa_tutorial.exercises.harness import Exercise, case


def alternation(first, second):
    """(one, chance): shares of the time. first, second: a consumer's softmaxes, (begin, end)."""
    start, stop = max(first[0][0], second[0][0]), min(first[-1][0], second[-1][0])

    def share(spans):
        cut = (max(0, min(end, stop) - max(begin, start)) for begin, end in spans)
        return sum(cut) / (stop - start)

    p, r = share(first), share(second)
    both = share([(max(a, c), min(b, d)) for a, b in first for c, d in second])
    return p + r - 2 * both, p * (1 - r) + r * (1 - p)


CUT = "max(0, min(end, stop) - max(begin, start))"
ONE, CHANCE = "return p + r - 2 * both", "p * (1 - r) + r * (1 - p)"
MISTAKES = {
    "the two shares come as (chance, one), want (one, chance)": (
        f"{ONE}, {CHANCE}", f"return {CHANCE}, p + r - 2 * both"),
    "this counts the time in which both are at a softmax, too: exactly one is wanted": (ONE, "return p + r - both"),
    "by chance, too, exactly one is wanted: p · r is the share in which both are": (CHANCE, "p * r"),
    "by chance, exactly one is either consumer 0 alone or consumer 1 alone, and this counts one of the two": (CHANCE, "p * (1 - r)"),
    "softmaxes are counted whole, though some begin before the time that counts, or end after it: cut them": [
        (CUT, "max(0, end - begin)")],
    "a softmax that begins before the time that counts, or ends after it, is left out here: cut it": (
        "    def share(", "    first, second = ([x for x in of if x[0] >= start and x[1] <= stop] for of in (first, second))\n\n    def share("),
    "the time is longer than that of which both have stamps: it is from the later of the first begins to the earlier of the last begins": [
        ("max(first[0][0], second[0][0])", "min(first[0][0], second[0][0])"), ("min(first[-1][0], second[-1][0])", "max(first[-1][1], second[-1][1])")],
    "the time begins with the earlier of the first begins, and ends with the later of the last: longer than both have stamps": [
        ("max(first[0][0], second[0][0])", "min(first[0][0], second[0][0])"), ("min(first[-1][0], second[-1][0])", "max(first[-1][0], second[-1][0])")],
    "the time ends with the later of the last begins, when the other consumer has no stamps any more": (
        "min(first[-1][0], second[-1][0])", "max(first[-1][0], second[-1][0])"),
    "the time begins with the earlier softmax, when the other consumer has no stamps yet": (
        "max(first[0][0], second[0][0])", "min(first[0][0], second[0][0])"),
    "the time ends with a softmax, so it holds more softmaxes than rests: let it end with the earlier of the last begins": (
        "min(first[-1][0], second[-1][0])", "min(first[-1][1], second[-1][1])"),
    "the n-th softmax of one is compared with the n-th of the other alone, but it may meet two": (
        "for a, b in first for c, d in second", "for (a, b), (c, d) in zip(first, second)"),
}  # fmt: skip


def truth(first, second):
    """Cycle by cycle."""
    time = range(max(first[0][0], second[0][0]), min(first[-1][0], second[-1][0]))
    busy = [[any(begin <= t < end for begin, end in consumer) for t in time] for consumer in (first, second)]
    p, r = (sum(of) / len(time) for of in busy)
    return sum(a != b for a, b in zip(*busy, strict=True)) / len(time), p + r - 2 * p * r


def regular(begin, softmax, rest, blocks):
    """(begin, end) of the softmaxes of a consumer that takes as long for each block."""
    return [(start, start + softmax) for start in range(begin, begin + blocks * (softmax + rest), softmax + rest)]


def inputs():
    chance = "by chance it follows from each consumer's own share of the time from the later of the first begins to the earlier of the last begins: the first is alone, or the second"

    def one(first, second, rule):
        return case(regular(*first), regular(*second), otherwise={"one": rule, "chance": chance})

    yield one((0, 2, 2, 3), (2, 2, 2, 3), "they alternate: one is at a softmax all the time, and that is a share of 1")
    yield one((0, 2, 2, 3), (0, 2, 2, 3), "they are in step: both or neither")
    yield one((0, 1, 3, 3), (1, 1, 3, 3), "neither is at a softmax for half of the time or more")
    yield one((0, 3, 3, 3), (1, 2, 4, 3), "a softmax that begins before the time that counts is cut, and not left out")
    yield one((0, 5, 2, 4), (3, 5, 2, 4), "a softmax may meet two of the other's")
    yield one((7, 6, 4, 3), (2, 2, 3, 9), "one has more softmaxes than the other, and the time doesn't begin at 0")
    yield one((0, 9, 1, 4), (15, 9, 1, 2), "some softmaxes lie outside the time that counts, or are cut by its ends")
    for _ in range(8):
        both = [(random.randint(1, 40), random.randint(5, 30), random.randint(5, 30), random.randint(5, 8)) for _ in range(2)]
        yield case(*(regular(*each) for each in both), on="random lengths", otherwise="the time is cut at both ends", fresh=True)


EXERCISE = Exercise(
    task="Write alternation(first, second), of two consumers' softmaxes, each a list of (begin, end): return the share of the time in which "
    "exactly one is at a softmax, and the share that it would be if neither's softmaxes depended on the other's.",
    hints=(
        "First the time that counts: from which cycle on, and up to which, do both have stamps? Cut every softmax to it.",
        "A consumer's share is the sum of its cut lengths over the length of the time. What two softmaxes have in common is from the later begin "
        "to the earlier end, if there is anything between.",
        "With shares p and r, and a share `both` in which both are at a softmax, exactly one is p + r − 2 · both. By chance both would be "
        "p · r.",
    ),
    solution=alternation,
    reasoning="p counts the time in which both are at a softmax, and so does r, so it goes off twice. By chance, the first is alone for "
    "p (1 − r) of the time, and the second for r (1 − p).",
    inputs=inputs,
    truth=truth,
    rule="the share in which exactly one is at a softmax, and what it would be by chance",
    mistakes=MISTAKES,
    parts=("one", "chance"),
)
