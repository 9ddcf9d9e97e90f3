"""Exercise 0.2, memory_peak."""

import random

from fa_tutorial.exercises.harness import Exercise, case


def memory_peak(events):
    """(peak, held): the most bytes in memory at once, and the names of the tensors that held them.

    events: (name, bytes) in order; bytes > 0 where a tensor is made, < 0 where it is freed.
    """
    peak, held, now = 0, [], {}
    for name, size in events:
        if size > 0:
            now[name] = size
        else:
            del now[name]
        if sum(now.values()) > peak:
            peak, held = sum(now.values()), list(now)
    return peak, held


FREED, PEAK = "            del now[name]", "peak, held = sum(now.values()), list(now)"
MISTAKES = {
    "you add up all tensors that are ever made, but a tensor that was freed holds nothing any more": (FREED, "            pass"),
    "that is what is in memory at the end: the peak may be earlier": ("sum(now.values()) > peak", "True"),
    "that is the largest tensor alone: the peak is what all tensors in memory hold together": [
        ("sum(now.values()) > peak", "size > peak"), (PEAK, "peak, held = size, [name]")],
    "held names only the tensor that is made at the peak: the others are still in memory": (PEAK, "peak, held = sum(now.values()), [name]"),
    "held names every tensor that was made before the peak: some were freed by then": (
        PEAK, "peak, held = sum(now.values()), [made for made, size in events[: events.index((name, size)) + 1] if size > 0]"),
    "held names what is in memory at the end: asked is the time of the peak": ("return peak, held", "return peak, list(now)"),
    "peak and held are swapped: return (peak, held)": ("return peak, held", "return held, peak"),
    "where the peak is reached twice, the first time counts": ("sum(now.values()) > peak", "sum(now.values()) >= peak"),
}  # fmt: skip


def truth(events):
    totals = [sum(size for _, size in events[:end]) for end in range(len(events) + 1)]
    peak = max(totals)
    first = events[: totals.index(peak)]
    freed = {name for name, size in first if size < 0}
    return peak, [name for name, _ in first if name not in freed]


def inputs():
    def made_of(*events, **options):
        return case(list(events), on=", ".join(f"{name} {size:+,}".replace("-", "−") for name, size in events), **options)

    yield made_of(("a", 5), ("b", 3), ("a", -5), ("c", 4))
    yield made_of(("a", 5), ("a", -5), ("b", 3), ("c", 4), ("c", -4))
    yield made_of(("a", 5), ("b", 3), ("b", -3), ("c", 2), ("d", 4), ("a", -5))
    yield made_of(("c", 2), ("b", 9), ("b", -9), ("a", 3), ("d", 1))
    yield made_of(("a", 5), ("b", 3), ("b", -3), ("c", 3), otherwise="where the peak is reached twice, the first time counts")
    for _ in range(20):
        events, now = [], {}
        for number in range(random.randint(5, 40)):
            if now and random.random() < 0.4:
                name = random.choice(list(now))
                events.append((name, -now.pop(name)))
            else:
                now[f"tensor {number}"] = random.randint(1, 1_000)
                events.append((f"tensor {number}", now[f"tensor {number}"]))
        yield case(events, on="random events", fresh=True)


EXERCISE = Exercise(
    task="Find in a record of memory how much a call holds at its peak, and which tensors hold it.",
    hints=(
        "Go through the events, and keep what is in memory now: which tensors, and how many bytes each?",
        "A dict from name to bytes will do. After each event compare its sum with the peak so far. Where it is larger, keep the sum and a "
        "copy of the names.",
    ),
    solution=memory_peak,
    reasoning="What counts is how long a tensor lives: a tensor that is freed before the peak costs nothing there. Only a larger sum replaces "
    "the peak, so the first of two equal ones stays.",
    inputs=inputs,
    truth=truth,
    rule="peak is the largest number of bytes in memory after an event, and held names the tensors that are in memory then, in the order they were made",
    mistakes=MISTAKES,
    parts=("peak", "held"),
    exact=True,
)
