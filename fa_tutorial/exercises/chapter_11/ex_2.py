"""Exercise 11.2, keys_of_split."""

import random

from fa_tutorial.exercises.harness import OTHERS, Exercise, case


def keys_of_split(split, splits, S, BLOCK_N):
    """(start, end) of a split's keys: ceil(tiles / splits) whole tiles, while there are any."""
    tiles = -(-S // BLOCK_N)
    part = -(-tiles // splits) * BLOCK_N
    return split * part, min((split + 1) * part, S)


MISTAKES = {
    "keys": "a split starts inside a tile: split the tiles, not the keys",
    "rounded_down": "a split has fewer tiles than ceil(tiles / splits): round up when you divide by splits",
    "whole_tiles": "the ragged last tile belongs to no split: S keys are ceil(S / BLOCK_N) tiles",
    "past": "the last split ends beyond the last key: end is at most S",
    "to_the_end": "every split goes on to the last key: end is the next split's start",
    "balanced": "the tiles are dealt out one more here, one less there: each split takes ceil(tiles / splits), as long as there are any",
    "last_key": "end is the last key: it is one past that",
    "in_tiles": "that is tiles: a tile has BLOCK_N keys",
    "length": "that is (start, length): return (start, end)",
}


def twin(split, splits, S, BLOCK_N, mistake=None):
    tiles = S // BLOCK_N if mistake == "whole_tiles" else -(-S // BLOCK_N)
    part = {"keys": -(-S // splits), "rounded_down": tiles // splits * BLOCK_N}.get(mistake, -(-tiles // splits) * BLOCK_N)
    start, end = split * part, (split + 1) * part
    end = {"past": end, "to_the_end": S, "whole_tiles": min(end, tiles * BLOCK_N)}.get(mistake, min(end, S))
    if mistake == "balanced":
        each, more = divmod(tiles, splits)
        first = split * each + min(split, more)
        start, end = first * BLOCK_N, min((first + each + (split < more)) * BLOCK_N, S)
    if mistake == "last_key":
        return without_keys(start, end - 1, S)
    if mistake == "in_tiles":
        return start // BLOCK_N, -(-end // BLOCK_N)
    if mistake == "length":
        return start, end - start
    return without_keys(start, end, S)


def without_keys(start, end, S):
    """(S, S) for a split without keys, which an answer may write in several ways."""
    return (start, end) if start < end else (S, S)


def adapt(answer):
    def keys_of_split(split, splits, S, BLOCK_N):
        result = answer(split, splits, S, BLOCK_N)
        is_pair = isinstance(result, tuple | list) and len(result) == 2
        return without_keys(*result, S) if is_pair and all(isinstance(number, int) for number in result) else result

    return keys_of_split


def inputs():
    yield case(0, 2, 8, 2, otherwise="8 keys are 4 tiles of 2: two tiles for each of two splits")
    yield case(1, 2, 8, 2, otherwise="the second split starts where the first one ends, and ends with the last key")
    yield case(0, 2, 6, 2, otherwise="3 tiles for two splits: the first one takes two")
    yield case(1, 2, 6, 2, otherwise="3 tiles for two splits: the second one takes what is left")
    yield case(1, 2, 7, 2, otherwise="the last tile is ragged: it holds one key")
    yield case(2, 3, 5, 2, otherwise="5 keys are 3 tiles")
    yield case(1, 4, 10, 2, otherwise="5 tiles for four splits: two, two, one and none")
    yield case(0, 1, 5, 2, otherwise="one split takes all keys")
    yield case(3, 4, 6, 2, otherwise="more splits than tiles: a split may be left without keys, which is any start ≥ end")
    for _ in range(20):
        splits = random.randint(1, 9)
        sizes = random.randrange(splits), splits, random.randint(1, 300), random.choice((16, 32))
        yield case(*sizes, on="random lengths", fresh=True, otherwise=OTHERS)


EXERCISE = Exercise(
    id="11.2",
    task="Say which keys belong to which split.",
    hints=(
        "How many tiles are there, and how many does each split get? Round up both times.",
        "tiles = -(-S // BLOCK_N) rounds up, and a split has -(-tiles // splits) · BLOCK_N keys.",
        "start = split · part, and end = min((split + 1) · part, S).",
    ),
    solution=keys_of_split,
    reasoning="All splits but the last ones have the same number of whole tiles, so their programs take equally long. A split may be left without keys: "
    "its loop does nothing, its o is 0 and its lse is −∞, and the merge gives it the weight 0.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("start", "end"),
    exact=True,
    adapt=adapt,
)
