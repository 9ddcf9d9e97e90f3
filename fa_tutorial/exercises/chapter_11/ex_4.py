"""Exercise 11.4, choose_splits."""

import math

from fa_tutorial.exercises.harness import Exercise, case


def choose_splits(n, tiles, sms):
    """Parts into which to cut each key head's tiles of keys.

    n: programs a split, B · H_k. sms: the SMs; each has room for two programs at a time.
    """

    def in_a_row(splits):
        return math.ceil(tiles / splits) * math.ceil(n * splits / (2 * sms))

    possible = range(1, max(tiles // 4, 1) + 1)
    least = min(in_a_row(splits) for splits in possible)
    return next(splits for splits in possible if in_a_row(splits) <= 1.05 * least)


PART, WAVES, POSSIBLE = "math.ceil(tiles / splits)", "math.ceil(n * splits / (2 * sms))", "range(1, max(tiles // 4, 1) + 1)"
CHOSEN = "next(splits for splits in possible if in_a_row(splits) <= 1.05 * least)"
MISTAKES = {
    "the fewest tiles in a row are taken, however many splits they need: take the fewest splits within 5 % of them": ("1.05 * least", "least"),
    "the most splits within 5 % of the best are taken: each costs something, so take the fewest": (CHOSEN, CHOSEN.replace("next(", "max(")),
    "a wave has one program an SM: two fit": (WAVES, "math.ceil(n * splits / sms)"),
    "the waves are left out: the second begins when the first is done": (f" * {WAVES}", ""),
    "the waves are not rounded up: a part of a wave takes as long as a full one": (WAVES, "(n * splits / (2 * sms))"),
    "the parts are not rounded up: they are whole tiles, so a fuller wave may take longer": (PART, "(tiles / splits)"),
    "a split may have a single tile: tiles / splits is at least 4": (POSSIBLE, "range(1, tiles + 1)"),
    "tiles / splits is below 4: at most tiles // 4 splits have 4 tiles each": (POSSIBLE, "range(1, math.ceil(tiles / 4) + 1)"),
    "more than one wave is never tried, and with many heads more waves of shorter parts may end sooner": (
        POSSIBLE, "range(1, max(min(tiles // 4, 2 * sms // n), 1) + 1)"),
    "there is one program a split: there are n": ("n * splits", "splits"),
}  # fmt: skip


def truth(n, tiles, sms):
    rows = {splits: -(-tiles // splits) * -(-n * splits // (2 * sms)) for splits in range(1, max(tiles // 4, 1) + 1)}
    return min(splits for splits, row in rows.items() if 100 * row <= 105 * min(rows.values()))


def inputs():
    yield case(
        8, 512, 132, otherwise="32 splits are 256 programs in one wave of 264, with 16 tiles each, and fewer splits have longer parts"
    )
    yield case(8, 64, 132, otherwise="16 splits of 4 tiles are all that fit, and the shortest")
    yield case(8, 70, 132, otherwise="at most 17 splits have 4 tiles each; 17 have parts of 5, and so have 14 splits")
    yield case(64, 512, 132, otherwise="4 splits are 256 programs in one wave, so 128 tiles in a row; the fewest are 125")
    yield case(512, 512, 132, otherwise="one split is 512 programs in two waves, so 1,024 tiles in a row; no other is 5 % better")
    yield case(300, 512, 132, otherwise="one split leaves most of the second wave empty: 6 splits are 7 waves of 86 tiles, 602 in a row")
    yield case(150, 8, 132, otherwise="two splits, the most with 4 tiles each, are two waves of 4 tiles: no shorter than one wave of 8")
    yield case(2, 2, 132, otherwise="a short cache has one split")
    yield case(8, 1_024, 108, otherwise="a wave is twice the SMs, here 216")


EXERCISE = Exercise(
    task="Choose the number of splits: the fewest whose tiles in a row (11.3) are within 5 % of the fewest possible, with at least 4 tiles a split.",
    hints=(
        "At most how many splits have 4 tiles each? For each number of splits from 1 to that: how long is a part, and how many waves are there?",
        "A part has ceil(tiles / splits) tiles, and there are ceil(n · splits / (2 · sms)) waves. Which is the first number of splits whose "
        "product of the two is at most 1.05 times the smallest?",
    ),
    solution=choose_splits,
    reasoning="More splits make shorter parts, until they need another wave. Where two numbers of splits give the same parts, the larger "
    "one adds only empty ones, so it is never taken.",
    more="The package's choose_num_splits does the same, and keeps what it found.",
    inputs=inputs,
    truth=truth,
    rule="the fewest splits whose part · waves is within 5 % of the fewest, with tiles / splits at least 4, or one split",
    mistakes=MISTAKES,
    exact=True,
)
