import math

from fa_tutorial.exercises.harness import Exercise, case


def choose_splits(n, tiles, slots):
    """Parts into which to cut each key head's tiles of keys.

    n: programs a split, B · H_k. slots: programs that the GPU runs at once.
    """

    def of_the_busiest(splits):
        return math.ceil(tiles / splits) * math.ceil(n * splits / slots)

    possible = range(1, max(tiles // 4, 1) + 1)
    least = min(of_the_busiest(splits) for splits in possible)
    return next(splits for splits in possible if of_the_busiest(splits) <= 1.05 * least)


PART, PROGRAMS, POSSIBLE = "math.ceil(tiles / splits)", "math.ceil(n * splits / slots)", "range(1, max(tiles // 4, 1) + 1)"
CHOSEN = "next(splits for splits in possible if of_the_busiest(splits) <= 1.05 * least)"
MISTAKES = {
    "the fewest tiles are taken, however many splits they need: take the fewest splits within 5 % of them": ("1.05 * least", "least"),
    "the most splits within 5 % of the best are taken: each costs something, so take the fewest": (CHOSEN, CHOSEN.replace("next(", "max(")),
    "the slots are doubled: `slots` counts all programs that run at once": (PROGRAMS, "math.ceil(n * splits / (2 * slots))"),
    "one split is always the best by your count: count the busiest slot's tiles, those of a part, tiles / splits, times its programs, n · splits / slots, both rounded up": (
        PROGRAMS, "(n * splits / slots)"),
    "the programs of the busiest slot are rounded down: n · splits / slots is rounded up": (PROGRAMS, "max(n * splits // slots, 1)"),
    "the parts are not rounded up: they are whole tiles": (PART, "(tiles / splits)"),
    "a split may have a single tile: tiles / splits is at least 4": (POSSIBLE, "range(1, tiles + 1)"),
    "more than one program a slot is never tried, and with many heads more and shorter parts may be even": (
        POSSIBLE, "range(1, max(min(tiles // 4, slots // n), 1) + 1)"),
    "there is one program a split: there are n": ("n * splits", "splits"),
}  # fmt: skip


def truth(n, tiles, slots):
    rows = {splits: -(-tiles // splits) * -(-n * splits // slots) for splits in range(1, max(tiles // 4, 1) + 1)}
    return min(splits for splits, row in rows.items() if 100 * row <= 105 * min(rows.values()))


def inputs():
    seventeen = "17 are 136 of 32, so a slot with two has 64; and with 15 splits a part has 37 tiles, over 5 % more than 34"
    yield case(8, 544, 132, otherwise=f"16 splits are 128 programs of 34 tiles, one a slot; {seventeen}")
    yield case(8, 64, 132, otherwise="16 splits of 4 tiles are all that fit, and the shortest")
    yield case(7, 70, 132, otherwise="at most 17 splits have 4 tiles each; 17 have parts of 5, and so have 14 splits")
    yield case(8, 328, 132, otherwise="16 splits are 21 tiles a slot; the fewest are 20, with more splits, and 21 is within 5 % of 20")
    yield case(64, 512, 132, otherwise="2 splits are 128 programs of 256 tiles; the fewest on a slot are 250")
    yield case(66, 512, 132, otherwise="2 splits are 132 programs, one a slot, and 256 tiles are the fewest")
    yield case(512, 512, 132, otherwise="one split is 4 programs on the busiest slot, so 2,048 tiles; no other is 5 % better")
    yield case(300, 512, 132, otherwise="3 splits are 7 programs of 171 tiles on the busiest slot, 1,197; one split is 3 of 512, 1,536")
    yield case(150, 8, 132, otherwise="one split is 2 programs of 8 tiles on the busiest slot, 16; two splits are 3 of 4, 12")
    yield case(2, 2, 132, on="choose_splits(2, 2, 132), fewer than 4 tiles, so one split")
    yield case(
        16, 368, 108, otherwise="another card, of 108 slots: the fewest tiles are 55; 20 splits have 57, and 13 have 58, over 5 % more"
    )
    yield case(8, 298, 132, otherwise="16 splits are 19 tiles a slot, the fewest; 15 splits are 20, over 5 % more than 19")
    yield case(
        24,
        56,
        132,
        otherwise="5 splits are 120 programs of 12 tiles, one a slot, and by (11.3), where every part counts as a whole one, no number has fewer",
    )


EXERCISE = Exercise(
    task="Choose the number of splits: the fewest for which the busiest slot's tiles (11.3) are within 5 % of the fewest possible, with at least 4 tiles a split.",
    hints=(
        "At most how many splits have 4 tiles each? For each number of splits from 1 to that: how long is a part, and how many programs has the busiest slot?",
        "List (11.3) for every number of splits from 1 to that most. What is the least of the list, and where does the list first come close enough?",
    ),
    solution=choose_splits,
    reasoning="More splits make shorter parts, until some slots get one program more than the others. Where two numbers of splits give the "
    "same parts, the larger one adds only empty ones, so it is never taken, and it doesn't matter whether those count as programs.",
    more="The package's choose_num_splits has the same rule, with two slots on each SM.",
    inputs=inputs,
    truth=truth,
    rule="the fewest splits for which part · programs of the busiest slot is within 5 % of the fewest, with tiles / splits at least 4, or one split",
    mistakes=MISTAKES,
    exact=True,
)
