import math

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import adapting


def window_part(split, splits, S, S_q, left, BLOCK_N):
    """(start, end): the split's loop takes keys start … end − 1, from the first of a tile.

    S keys, of which the last S_q are the new tokens'. A token sees its own key and the `left` before it.
    """
    first = max(S - S_q - left, 0) // BLOCK_N
    tiles = math.ceil(S / BLOCK_N) - first
    part = math.ceil(tiles / splits) * BLOCK_N
    start = first * BLOCK_N + split * part
    return start, min(start + part, S)


FIRST, TILES = "max(S - S_q - left, 0) // BLOCK_N", "math.ceil(S / BLOCK_N) - first"
MISTAKES = {
    "the loop begins where the newest token's window does, and the oldest one sees further back": (FIRST, "max(S - 1 - left, 0) // BLOCK_N"),
    "the oldest token's own key is at S − S_q, and it sees `left` keys before it: one key too few": (FIRST, "max(S - S_q - left + 1, 0) // BLOCK_N"),
    "the parts are as long as without a window: share out the window's tiles alone": (TILES, "math.ceil(S / BLOCK_N)"),
    "the window's length is counted in tiles: a window that begins inside a tile touches one tile more": (
        TILES, "math.ceil((left + S_q) / BLOCK_N)"),
    "the loop begins inside a tile, and so does each part: start is the first key of a tile": (
        "first * BLOCK_N + split", "max(S - S_q - left, 0) + split"),
    "the tiles are divided by splits and rounded down, so the last keys belong to no split": ("math.ceil(tiles / splits)", "tiles // splits"),
    "end is the part's last key: the loop takes keys up to end − 1": ("min(start + part, S)", "min(start + part, S) - 1"),
    "the last part goes on behind key S − 1": ("min(start + part, S)", "start + part"),
}  # fmt: skip


def truth(split, splits, S, S_q, left, BLOCK_N):
    seen = [tile for tile in range(-(-S // BLOCK_N)) if (tile + 1) * BLOCK_N > S - S_q - left]  # a tile's last key isn't before the window
    size = -(-len(seen) // splits)
    mine = seen[split * size : (split + 1) * size]
    return (mine[0] * BLOCK_N, min((mine[-1] + 1) * BLOCK_N, S)) if mine else "no keys"


@adapting
def without_empty_parts(answer, *args):
    """The answer, with "no keys" for each part that ends where it starts, or before."""
    part = answer(*args)
    is_part = isinstance(part, tuple | list) and len(part) == 2
    return "no keys" if is_part and part[0] >= part[1] else part


def inputs():
    yield case(0, 1, 100, 1, 9, 16, otherwise="keys 90 to 99 count, the first of them in the tile that begins at 80, so end is 100")
    yield case(0, 1, 96, 1, 15, 16, otherwise="the window's keys are 80 to 95, one tile")
    yield case(0, 1, 97, 1, 17, 16, otherwise="the window's keys are 79 to 96, and the first is the last of its tile")
    yield case(0, 1, 98, 4, 16, 16, otherwise="the oldest of four tokens has its own key at 94, and sees keys from 78 on")
    wide = "tiles of BLOCK_N = 64 keys: three from key 128 on, so split 1 has the last, keys 256 to 299"
    yield case(1, 2, 300, 2, 129, 64, otherwise=wide)
    yield case(0, 1, 30, 1, 63, 16, otherwise="the window is longer than the sequence")
    yield case(0, 2, 64, 1, 63, 16, otherwise="four tiles for two splits, so two for each")
    yield case(2, 3, 200, 1, 99, 16, otherwise="seven tiles from key 96 on, in parts of 3, 3 and 1")
    yield case(3, 4, 200, 2, 20, 16, otherwise="two tiles for four splits: the last two have no keys")


EXERCISE = Exercise(
    task="Give each split its part of the keys that a window shows: whole tiles, from the first that a row sees.",
    hints=(
        "Which token sees the furthest back, and which key is its first? In which tile does that key stand?",
        "The oldest token's own key is S − S_q, so its first is S − S_q − left, or 0. From that tile on there are ceil(S / BLOCK_N) − first tiles, "
        "and a part has ceil(tiles / splits) of them, as in 11.3.",
    ),
    solution=window_part,
    reasoning="The window moves the loop's first tile, and only what is left from there on is shared out. So every split works, and the keys before are never read.",
    more="In the package's split_kernel these are the lines from `first_seen` to `end`.",
    inputs=inputs,
    truth=truth,
    rule="from the tile of the oldest token's first key on, ceil(tiles / splits) tiles each, and no key behind S − 1",
    mistakes=MISTAKES,
    exact=True,
    adapt=without_empty_parts,
)
