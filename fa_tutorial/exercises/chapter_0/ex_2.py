import random

from fa_tutorial.exercises.harness import Exercise, case


def most_memory(events):
    """(most, held): the most bytes in memory at once, and the names of the tensors that held them.

    events: (name, bytes) in order; bytes > 0 where a tensor is made, < 0 where it is freed.
    """
    most, held, now = 0, [], {}
    for name, size in events:
        if size > 0:
            now[name] = size
        else:
            del now[name]
        if sum(now.values()) > most:
            most, held = sum(now.values()), list(now)
    return most, held


FREED, MOST, START = "            del now[name]", "most, held = sum(now.values()), list(now)", "most, held, now = 0, [], {}"
MADE, EVENT = "            now[name] = size", "    for name, size in events:"
MISTAKES = {
    "you add up all tensors that are ever made, but a tensor that was freed holds nothing any more": (FREED, "            pass"),
    "held is right, but most still counts tensors that were freed: take off what an event frees": [
        (START, f"{START}\n    total = 0"), (MADE, f"{MADE}\n            total += size"), ("sum(now.values()) > most", "total > most"),
        (MOST, "most, held = total, list(now)")],
    "you add the size of a freed tensor, but it must be taken off": [
        (START, f"{START}\n    total = 0"), (EVENT, f"{EVENT}\n        total += abs(size)"), ("sum(now.values()) > most", "total > most"),
        (MOST, "most, held = total, list(now)")],
    "you free the oldest tensor, whichever the event names": (FREED, "            del now[next(iter(now))]"),
    "held loses the oldest tensor where the event frees another": [
        (START, f"{START}\n    total = 0"), (EVENT, f"{EVENT}\n        total += size"), (FREED, "            del now[next(iter(now))]"),
        ("sum(now.values()) > most", "total > most"), (MOST, "most, held = total, list(now)")],
    "that is what is in memory at the end, but there may have been more before": ("sum(now.values()) > most", "True"),
    "that is the largest tensor alone: count what all tensors in memory hold together": [
        ("sum(now.values()) > most", "size > most"), (MOST, "most, held = size, [name]")],
    "held names only the tensor that is made last: the others are still in memory": (MOST, "most, held = sum(now.values()), [name]"),
    "held names every tensor that was made before: some were freed by then": (
        MOST, "most, held = sum(now.values()), [made for made, size in events[: events.index((name, size)) + 1] if size > 0]"),
    "held names what is in memory at the end: asked is the time when it is most": ("return most, held", "return most, list(now)"),
    "most and held are swapped: return (most, held)": ("return most, held", "return held, most"),
    "most is in MiB: asked are bytes": ("return most, held", "return most / 2**20, held"),
    "held is sorted by name: asked is the order in which they were made": ("return most, held", "return most, sorted(held)"),
    "where memory is as full twice, the first time counts": ("sum(now.values()) > most", "sum(now.values()) >= most"),
}  # fmt: skip


def truth(events):
    totals = [sum(size for _, size in events[:end]) for end in range(len(events) + 1)]
    most = max(totals)
    first = events[: totals.index(most)]
    freed = {name for name, size in first if size < 0}
    return most, [name for name, _ in first if name not in freed]


def inputs():
    def made_of(*events, **options):
        return case(list(events), on=", ".join(f"{name} {size:+,}".replace("-", "−") for name, size in events), **options)

    yield made_of(("a", 5), ("b", 3), ("a", -5), ("c", 4))
    yield made_of(("a", 5), ("a", -5), ("b", 3), ("c", 4), ("c", -4))
    yield made_of(("a", 5), ("b", 3), ("b", -3), ("c", 2), ("d", 4), ("a", -5))
    yield made_of(("c", 2), ("b", 9), ("b", -9), ("a", 3), ("d", 1))
    yield made_of(("a", 5), ("b", 3), ("b", -3), ("c", 3), otherwise="where memory is as full twice, the first time counts")
    yield made_of(("a", 1), ("b", 9), otherwise="memory is fullest after the last event: b counts, too")
    yield made_of(
        ("a", 5), ("b", 3), ("a", -5), ("c", 9), otherwise="an event frees the tensor that it names, so b is still there when c comes"
    )
    yield made_of(
        ("a", 5), ("b", 5), ("b", -5), ("c", 7), otherwise="an event frees the tensor that it names: a and b are as large, and b goes"
    )
    yield made_of(("a", 1))
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
    task="Find in a record of memory how much memory a call holds at most, and which tensors hold it.",
    hints=(
        "Go through the events, and keep what is in memory now: which tensors, and how many bytes each?",
        "A dict from name to bytes will do. After each event compare its sum with the most so far. Where it is larger, keep the sum and a "
        "copy of the names.",
    ),
    solution=most_memory,
    reasoning="What counts is how long a tensor lives: a tensor that is freed costs nothing later. Only a larger sum replaces "
    "the most so far, so the first of two equal ones stays.",
    inputs=inputs,
    truth=truth,
    rule="most is the largest number of bytes in memory after an event, and held names the tensors that are in memory then, in the order they were made",
    mistakes=MISTAKES,
    parts=("most", "held"),
    exact=True,
)
