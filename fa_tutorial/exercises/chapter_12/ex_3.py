"""Exercise 12.3, late_windows."""

from fa_tutorial.exercises.chapter_12.ex_2 import window_tiles
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.ring_play import verdict
from fa_tutorial.exercises.running import Wrong, adapting, kind


def late_windows():
    """(S, left) of a window in which FA4's bound is one tile late, and of one with two tiles."""
    one_late = 2048, 1023  # the last row's window begins at key 1,024, the first of a tile
    two_late = 2049, 1000  # the last block has one row, so m_idx_max is 128 rows further
    return one_late, two_late


BLOCK_M, BLOCK_N, LONGEST = 128, 64, 8192
WANTED = "1 whole tile gets a mask", "2 whole tiles get a mask"
NARROW = "no tile of the last block is whole in the first window: it takes a larger left"
INSIDE = "in the first window the last row begins inside a tile: rounded up, one key later is the same tile"
CLOSE = "in the second window m_idx_max is too close to the last row: rounded up, its first key is less than two tiles later"
ONE, TWO = "one_late = 2048, 1023", "two_late = 2049, 1000"
MISTAKES = {
    NARROW: (ONE, "one_late = 2048, 63"),
    INSIDE: (ONE, "one_late = 2048, 1000"),
    CLOSE: (TWO, "two_late = 2048, 1023"),
}


def fa4_full_0(row_block, S, left):
    """FA4's bound for S queries and S keys."""
    return max(0, -(-((row_block + 1) * BLOCK_M - left) // BLOCK_N))


def judged(window, which):
    """How many whole tiles of the last block of rows get a mask, in words, with the cause where these are too few."""
    name_of = "first", "second"
    if not isinstance(window, tuple | list) or len(window) != 2:
        raise Wrong(f"the {name_of[which]} window is {kind(window)}, want a tuple (S, left)")
    S, left = window
    for name, number, least, most in (("S", S, 1, LONGEST), ("left", left, 0, S - 1)):
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise Wrong(f"{name} of the {name_of[which]} window is {number!r}, want a whole number from {least} to {most:,}")
    if which == 0 and S % BLOCK_M:
        raise Wrong(f"S of the first window is {S}, want a multiple of {BLOCK_M}")
    row_block = (S - 1) // BLOCK_M
    _, full_0, full_1, _ = window_tiles(row_block, BLOCK_M, BLOCK_N, S, S, left, 0)
    late = min(fa4_full_0(row_block, S, left), full_1) - full_0
    words = f"{late} whole tile{'s' * (late != 1)} get{'s' * (late == 1)} a mask"
    if words == WANTED[which]:
        return words
    if full_1 - full_0 == late:  # a wider window may have more
        return verdict("no tile is whole" if late == 0 else f"{words}, and no other is whole", "" if which else NARROW)
    return verdict(words, CLOSE if which else INSIDE)


@adapting
def adapt(answer):
    """The answer with what FA4's bound does in its windows."""
    windows = answer()
    if not isinstance(windows, tuple | list) or len(windows) != 2:
        raise Wrong(f"returns {kind(windows)}, want two tuples (S, left)")
    return tuple(judged(window, which) for which, window in enumerate(windows))


def truth():
    return WANTED


def inputs():
    yield case(on="in the last block of rows")


EXERCISE = Exercise(
    task="Find two windows in which FA4's bound is late, by one tile and by two.",
    hints=(
        "For the last row a window begins at key S − 1 − left, and for m_idx_max that many keys later as it is rows further down. When do "
        "they differ, rounded up to a tile?",
        "In a full block the two keys are neighbours: a and a + 1. Rounded up they differ only if a is the first key of a tile, a multiple "
        "of 64. How far is m_idx_max from the last row if the last block has only a few rows?",
        "S − 1 − left is a multiple of 64 for S = 2,048 and left = 1,023. With S = 2,049 the last block has one row, row 2,048, and "
        "m_idx_max is 2,176.",
    ),
    solution=late_windows,
    reasoning="m_idx_max is the row after a full block's last, so its window begins one key later. That is another tile only where the last "
    "row's window begins with a tile. In a ragged last block m_idx_max lies further past the end, up to 128 rows, which are two tiles. "
    "So the bound is never too early, which would be wrong, but it may be late, which costs masks.",
    inputs=inputs,
    truth=truth,
    rule="in the first window one whole tile of the last block gets a mask, and in the second two do",
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
    parts=("the first window", "the second window"),
)
