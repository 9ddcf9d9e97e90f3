"""Exercise 11.2, keys_of_split."""

import functools
import math
import random

from fa_tutorial.exercises.harness import Exercise, case


def keys_of_split(split, splits, S, BLOCK_N):
    """(start, end) of a split's keys: ceil(tiles / splits) whole tiles, while there are any."""
    tiles = -(-S // BLOCK_N)
    part = -(-tiles // splits) * BLOCK_N
    return split * part, min((split + 1) * part, S)


TILES, PART, END = "-(-S // BLOCK_N)", "-(-tiles // splits) * BLOCK_N", "min((split + 1) * part, S)"
BALANCED = """    each, more = divmod(tiles, splits)
    first = split * each + min(split, more)
    return first * BLOCK_N, min((first + each + (split < more)) * BLOCK_N, S)"""
MISTAKES = {
    "a split starts inside a tile: split the tiles, not the keys": (PART, "-(-S // splits)"),
    "a split has fewer tiles than ceil(tiles / splits): round up when you divide by splits": (PART, "tiles // splits * BLOCK_N"),
    "the ragged last tile isn't counted: S keys are ceil(S / BLOCK_N) tiles": (TILES, "S // BLOCK_N"),
    "the last split ends beyond the last key: end is at most S": (END, "(split + 1) * part"),
    "every split goes on to the last key: end is the next split's start": (END, "S"),
    "the tiles are dealt out one more here, one less there: each split takes ceil(tiles / splits), as long as there are any": (
        f"    return split * part, {END}", BALANCED),
    "end is the last key: it is one past that": (END, f"{END} - 1"),
    "a part is counted in tiles: a tile has BLOCK_N keys": (PART, "-(-tiles // splits)"),
    "that is tiles: a tile has BLOCK_N keys": [(PART, "-(-tiles // splits)"), (END, "min((split + 1) * part, tiles)")],
    "that is (start, length): return (start, end)": (END, f"{END} - split * part"),
}  # fmt: skip


def truth(split, splits, S, BLOCK_N):
    part = math.ceil(math.ceil(S / BLOCK_N) / splits) * BLOCK_N
    start, end = split * part, min((split + 1) * part, S)
    return (start, end) if start < end else (S, S)


def adapt(answer):
    """The answer, with (S, S) for what it says of a split without keys, which may be any start ≥ end."""

    @functools.wraps(answer)
    def settled(split, splits, S, BLOCK_N):
        result = answer(split, splits, S, BLOCK_N)
        is_pair = isinstance(result, tuple | list) and len(result) == 2 and all(isinstance(number, int) for number in result)
        return (S, S) if is_pair and truth(split, splits, S, BLOCK_N) == (S, S) and result[0] >= result[1] else result

    return settled


def inputs():
    yield case(0, 2, 8, 2, otherwise="8 keys are 4 tiles of 2: two tiles for each of two splits")
    yield case(1, 2, 8, 2, otherwise="the second split starts where the first one ends, and ends with the last key")
    yield case(0, 2, 6, 2, otherwise="3 tiles for two splits: the first one takes two")
    yield case(1, 2, 6, 2, otherwise="3 tiles for two splits: the second one takes what is left")
    yield case(1, 2, 7, 2, otherwise="the last tile is ragged: it holds one key")
    yield case(2, 3, 5, 2, otherwise="5 keys are 3 tiles, one for each split")
    yield case(1, 4, 10, 2, otherwise="5 tiles for four splits: two, two, one and none")
    yield case(0, 1, 5, 2, otherwise="one split takes all keys, those of a ragged last tile too")
    yield case(3, 4, 6, 2, otherwise="more splits than tiles: a split may be left without keys, which is any start ≥ end")
    for _ in range(20):
        splits = random.randint(1, 9)
        sizes = random.randrange(splits), splits, random.randint(1, 300), random.choice((16, 32))
        yield case(*sizes, on="random lengths", fresh=True)


EXERCISE = Exercise(
    id="11.2",
    task="Say which keys belong to which split.",
    hints=(
        "How many tiles are there, and how many does each split get? Round up both times.",
        "tiles = -(-S // BLOCK_N) rounds up, and a split has -(-tiles // splits) · BLOCK_N keys.",
        "start = split · part, and end = min((split + 1) · part, S).",
    ),
    solution=keys_of_split,
    reasoning="All splits but the last ones have the same number of whole tiles, so their programs take equally long. A split may be left "
    "without keys: its loop does nothing, its o is 0 and its lse is −∞, and the merge gives it the weight 0.",
    inputs=inputs,
    truth=truth,
    rule="a split takes ceil(tiles / splits) whole tiles of BLOCK_N keys, as long as there are any, and ends at S at the latest",
    mistakes=MISTAKES,
    parts=("start", "end"),
    exact=True,
    adapt=adapt,
)
