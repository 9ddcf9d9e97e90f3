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


FREED, FULLER, MOST = "del now[name]", "sum(now.values()) > most", "most, held = sum(now.values()), list(now)"
MISTAKES = {
    "the two are exchanged: return most first, then held": ("return most, held", "return held, most"),
    "you add up all tensors that are ever made, but a tensor that was freed holds nothing any more": (FREED, "pass"),
    "that is what is in memory at the end, but there may have been more before": (FULLER, "True"),
    "that is the largest tensor alone: count what all tensors in memory hold together": [
        (FULLER, "size > most"), (MOST, "most, held = size, [name]")],
    "held names only the tensor that is made last: the others are still in memory": (MOST, MOST.replace("list(now)", "[name]")),
    "held names what is in memory at the end: keep a copy of the names when memory is fullest": ("return most, held", "return most, list(now)"),
    "where memory is as full twice, the first time counts": (FULLER, FULLER.replace(">", ">=")),
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
    yield made_of(("c", 2), ("b", 9), ("b", -9), ("a", 3), ("d", 1))
    yield made_of(("a", 5), ("b", 3), ("b", -3), ("c", 3), otherwise="where memory is as full twice, the first time counts")
    yield made_of(("a", 1), ("b", 9), otherwise="memory is fullest after the last event: b counts, too")
    for freed, size in ("a", 1), ("b", 2):
        yield made_of(("a", 1), ("b", 2), (freed, -size), ("c", 9), otherwise="an event frees the tensor that it names")
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
