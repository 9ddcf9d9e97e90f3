import random

from fa_tutorial.exercises.harness import Exercise, case


def three_ways(T_c, T_s, ranks, G):
    """(ring, all-gather, Ulysses): seconds of a causal forward.

    T_c: to compute a tile. T_s: to send a shard's k and v.
    G: query heads on a key head, H_q / H_k.
    """
    ring = T_c + (ranks - 1) * max(T_c, T_s)
    all_gather = (ranks - 1) * T_s + ranks * T_c
    ulysses = (ranks - 1) / ranks * (1 + G) * T_s + ranks * T_c
    return ring, all_gather, ulysses


RING, GATHER = "T_c + (ranks - 1) * max(T_c, T_s)", "(ranks - 1) * T_s + ranks * T_c"
ULYSSES = "(ranks - 1) / ranks * (1 + G) * T_s + ranks * T_c"
MISTAKES = {
    "the ring sends during a tile, so a step takes the longer of the two times, not their sum": (RING, "(ranks - 1) * T_s + ranks * T_c"),
    "a ring's last tile has no message beside it: it takes T_c": (RING, "ranks * max(T_c, T_s)"),
    "a ring's step waits for its own message: take the longer time in each step, not of the whole sums": (
        RING, "max(ranks * T_c, (ranks - 1) * T_s)"),
    "the all-gather computes only when all keys are there: nothing is hidden": (GATHER, "max((ranks - 1) * T_s, ranks * T_c)"),
    "Ulysses computes only when q, k and v are there, and o leaves only after that: nothing is hidden": (
        ULYSSES, "max(ranks * T_c, (ranks - 1) / ranks * (1 + G) * T_s)"),
    "Ulysses doesn't send what it keeps, 1 / ranks of each tensor": (ULYSSES, "(1 + G) * T_s + ranks * T_c"),
    "k and v are exchanged, too: they add T_s to the G · T_s of q and o": (ULYSSES, "(ranks - 1) / ranks * G * T_s + ranks * T_c"),
    "q and o have `G` times as many heads as k and v": (ULYSSES, "(ranks - 1) / ranks * 2 * T_s + ranks * T_c"),
    "the order is ring, all-gather, Ulysses": ("return ring, all_gather, ulysses", "return ring, ulysses, all_gather"),
    "T_s is that of k and v together, so q and o take G · T_s, not twice as long": (
        ULYSSES, "(ranks - 1) / ranks * (1 + 2 * G) * T_s + ranks * T_c"),
}  # fmt: skip


def truth(T_c, T_s, ranks, G):
    ring = all_gather = ulysses = T_c * ranks
    for _ in range(ranks - 1):
        ring += max(T_s - T_c, 0)
        all_gather += T_s
        ulysses += (T_s + G * T_s) / ranks
    return ring, all_gather, ulysses


RULES = {
    "ring": "each tile but the last has a message beside it, and takes as long as the longer of the two",
    "all-gather": "ranks − 1 shards of k and v come, and then ranks · T_c is computed",
    "Ulysses": "all of a shard's k and v take T_s, and q and o G · T_s; a rank keeps 1 / ranks of each; ranks · T_c adds to that",
}


def inputs():
    for T_c, T_s, ranks, G in ((3.0, 1.0, 2, 1), (1.0, 3.0, 2, 1), (1.0, 2.0, 4, 1), (3.0, 1.0, 4, 4), (2.0, 3.0, 16, 8)):
        yield case(T_c, T_s, ranks, G, otherwise=RULES)
    for _ in range(4):
        times = random.uniform(0.1, 5.0), random.uniform(0.1, 5.0)
        yield case(*times, random.randint(2, 16), random.randint(1, 8), on="random times", otherwise=RULES, fresh=True)


EXERCISE = Exercise(
    task="Say how long the ring, the all-gather and Ulysses take, from a tile's time and a message's.",
    hints=(
        "Draw each way's two lanes, computing and sending, once for T_c > T_s and once for T_c < T_s. What waits for what?",
        "A ring's step sends while it computes, except the last, which sends nothing. The other two send all before or after they compute.",
        "Ulysses sends (ranks − 1) / ranks of k and v (T_s) and of q and o (G · T_s).",
    ),
    solution=three_ways,
    reasoning="A ring's step takes as long as the longer of its tile and its message, and the last tile has no message. The other two add sending and computing.",
    inputs=inputs,
    truth=truth,
    rule="what travels while a tile is computed adds nothing unless it takes longer, and everything else adds up",
    mistakes=MISTAKES,
    parts=("ring", "all-gather", "Ulysses"),
)  # fmt: skip
