from fa_tutorial.exercises.harness import Exercise, case


def key_at(position):
    """The key that must stand at this position of p's columns and v's rows: no p leaves its thread."""
    group, place = position // 16, position % 16
    thread, slot = place // 4, place % 4
    return 16 * group + 8 * (slot // 2) + 2 * thread + slot % 2


RETURN = "16 * group + 8 * (slot // 2) + 2 * thread + slot % 2"
MISTAKES = {
    "that's the natural order, in which 12 of 16 p would have to change threads": (RETURN, "position"),
    "that is the way back, from a key to its position": (
        "thread, slot = place // 4, place % 4\n    return " + RETURN,
        "thread, slot = place % 8 // 2, place // 8 * 2 + place % 2\n    return 16 * group + 4 * thread + slot"),
    "a thread's neighbouring keys are 2c and 2c + 1, not c and c + 4": ("2 * thread + slot % 2", "thread + 4 * (slot % 2)"),
    "each p stays in its thread, but a thread's four keys come in descending order: want ascending": (
        "place // 4, place % 4", "place // 4, 3 - place % 4"),
    "each p stays in its thread, but a thread's four keys must stay in ascending order: 2c + 1 follows 2c": (
        "8 * (slot // 2) + 2 * thread + slot % 2", "8 * (slot % 2) + 2 * thread + slot // 2"),
    "the groups of 16 are missing: after 16 positions the same pattern begins again at key 16": ("16 * group + ", ""),
}  # fmt: skip


def truth(position):
    held = [2 * c + more for c in range(4) for more in (0, 1, 8, 9)]  # of 16 keys, thread by thread, as q kᵀ leaves them
    return position // 16 * 16 + held[position % 16]


def inputs():
    for position, rule in (
        (0, "position 0 is thread 0's, and key 0 is the first of its keys in ascending order"),
        (2, "positions 0 to 3 are thread 0's, which holds keys 0, 1, 8 and 9, in this order"),
        (4, "positions 4 to 7 are thread 1's, which holds keys 2, 3, 10 and 11, in this order"),
        (16, "positions 16 to 31 hold keys 16 to 31 in the same order"),
    ):
        yield case(position, otherwise=rule)
    yield from map(case, range(64))


EXERCISE = Exercise(
    task="Give the order of the keys in which each p is already where the second matmul reads it. A thread's four keys stay in ascending order.",
    hints=(
        "Which thread reads this position? Which four of the 16 keys does it hold, in order?",
        "Write position = 16 · group + 4 · thread + slot. Thread c holds 2c, 2c + 1, 2c + 8, 2c + 9 for slots 0, 1, 2, 3: slot % 2 picks within a pair, "
        "slot // 2 the pair.",
    ),
    solution=key_at,
    reasoning="p v is a sum over keys, so any order will do, if p's columns and v's rows have the same. v is written anew anyway, so its order is free.",
    more="The package's version, fp8.key_order, also takes tensors, and is the quantiser's own line.",
    inputs=inputs,
    truth=truth,
    rule="of 16 keys, thread c holds 2c, 2c + 1, 2c + 8 and 2c + 9, and reads positions 4c to 4c + 3",
    mistakes=MISTAKES,
    exact=True,
    refused=lambda answer: "" if hasattr(answer(1), "__index__") else "it is no whole number, and so no index",
)
