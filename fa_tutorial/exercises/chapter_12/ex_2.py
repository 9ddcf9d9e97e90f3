"""Exercise 12.2, window_tiles."""

import random

from fa_tutorial.exercises.harness import Exercise, case


def window_tiles(row_block, block_m, block_n, S_q, S_k, left, right):
    """(start, full_0, full_1, end) for a block of rows; a negative left or right is no limit."""
    first = row_block * block_m
    last = min(first + block_m, S_q) - 1

    def low(i):  # the first key that row i sees
        return max(0, i + S_k - S_q - left) if left >= 0 else 0

    def high(i):  # one past the last key that row i sees
        return max(0, min(S_k, i + 1 + S_k - S_q + right)) if right >= 0 else S_k

    full_0 = -(-low(last) // block_n)  # rounded up
    full_1 = max(full_0, high(first) // block_n)
    return low(first) // block_n, full_0, full_1, -(-high(last) // block_n)


_SEES = "row i sees keys i + S_k − S_q − left … i + S_k − S_q + right, both included"
MISTAKES = {
    "reversed": "the four numbers come in the order start, full_0, full_1, end",
    "full_0_start": "full_0 is start: the tiles at the window's left edge need the mask, too",
    "swapped_rows": "first and last row are exchanged: start comes from the first row, end from the last",
    "sides": "left and right are swapped: left counts keys back, right counts keys ahead",
    "left_strict": f"the window is one key too narrow on the left: {_SEES}",
    "right_strict": f"the window is one key too narrow on the right: {_SEES}",
    "shift_sign": "S_k − S_q has the wrong sign: the last row is aligned with the last key",
    "top_left": "S_k − S_q is missing: the last row is aligned with the last key",
    "row": "row_block is used as a row: the block's first row is row_block · block_m",
    "keys": "these are keys: divide by block_n",
    "start_up": "start leaves out a tile that the first row sees in part: round down",
    "start_last": "start is found from the last row: the first row reaches back furthest",
    "start_zero": "no tile is skipped on the left: start is where the first row's window begins",
    "none_whole": "no tile is called whole, though every row sees some of them whole: full_0 … full_1 − 1",
    "full_1_is_0": "full_1 is full_0, though there are whole tiles: it is one past the last of them, found from the first row",
    "full_0_down": "full_0 counts a tile of which the last row sees only a part: round up",
    "full_0_first": "full_0 is found from the first row: the last row's window begins furthest to the right",
    "full_1_up": "full_1 counts a tile of which the first row sees only a part: round down",
    "full_1_last": "full_1 is found from the last row: the first row's window ends first",
    "end_down": "end leaves out a tile that the last row sees in part: round up",
    "end_first": "end is found from the first row: the last row's window ends last",
    "end_index": "end is the last tile that is seen: return one past it",
    "end_all": "no tile is skipped on the right: end is where the last row's window ends",
    "crossed": "full_1 is below full_0: a narrow window has no whole tile, and two loops would visit the tiles between them twice",
    "left_number": "left = −1 is no limit: low is 0",
    "zero": "left = 0 or right = 0 is taken for no limit: it is one, and only a negative number is none",
    "right_number": "right = −1 is no limit: high is S_k",
    "open": "the last block of rows is ragged: its last row is S_q − 1",
    "whole": "a ragged last block of keys is counted as whole: its missing keys need the mask",
    "past": "the window runs past the last key: high is at most S_k",
    "low_negative": "low is negative: no key comes before key 0",
    "high_negative": "high is negative: a row that sees no key ends at 0",
}

CONDITIONS = {
    "narrow": "a window narrower than a tile has no whole tile: full_1 = full_0",
    "unlimited": "a negative left or right is no limit on that side",
    "lengths": "S_q and S_k may differ: row i stands at key i + S_k − S_q",
    "ragged": "the last block of rows and the last block of keys may be shorter, and a shorter block of keys never counts as whole",
}


def _up(x, y):
    return -(-x // y)


def _settled(bounds, *args):
    """The bounds with an empty middle in our place: where no tile is whole, full_0 = full_1 may stand anywhere from start to end."""
    start, full_0, full_1, end = bounds
    _, ours, past, _ = window_tiles(*args)
    return (start, ours, past, end) if ours == past and full_0 == full_1 and start <= full_0 <= end else bounds


def adapt(answer):
    """The answer with an empty middle in our place; what is not four numbers passes as it is, to be told of by the harness."""

    def settled(*args):
        bounds = answer(*args)
        return _settled(bounds, *args) if isinstance(bounds, tuple | list) and len(bounds) == 4 else bounds

    return settled


def twin(*args, mistake=None):
    return _settled(_bounds(*args, mistake), *args)


def _bounds(row_block, block_m, block_n, S_q, S_k, left, right, mistake):
    left, right = (right, left) if mistake == "sides" else (left, right)
    left, right = (left or -1, right or -1) if mistake == "zero" else (left, right)
    shift = {"shift_sign": S_q - S_k, "top_left": 0}.get(mistake, S_k - S_q)
    first = row_block * (1 if mistake == "row" else block_m)
    last = (first + block_m if mistake == "open" else min(first + block_m, S_q)) - 1

    def low(i):
        key = i + shift - left + (mistake == "left_strict") if left >= 0 or mistake == "left_number" else 0
        return key if mistake == "low_negative" else max(0, key)

    def high(i):
        key = i + 1 + shift + right - (mistake == "right_strict") if right >= 0 or mistake == "right_number" else S_k
        key = key if mistake == "past" else min(S_k, key)
        return key if mistake == "high_negative" else max(0, key)

    first, last = (last, first) if mistake == "swapped_rows" else (first, last)
    full_0, full_1, end = _up(low(last), block_n), high(first) // block_n, _up(high(last), block_n)
    if mistake == "keys":
        return low(first), low(last), max(low(last), high(first)), high(last)
    start = {"start_up": _up(low(first), block_n), "start_last": low(last) // block_n, "start_zero": 0}.get(mistake, low(first) // block_n)
    full_0 = {"full_0_start": start, "full_0_down": low(last) // block_n, "full_0_first": _up(low(first), block_n)}.get(mistake, full_0)
    wrong = {"full_1_up": _up(high(first), block_n), "full_1_last": high(last) // block_n}
    full_1 = _up(S_k, block_n) if mistake == "whole" and high(first) == S_k else wrong.get(mistake, full_1)
    end = {"end_down": high(last) // block_n, "end_first": _up(high(first), block_n), "end_index": end - 1,
           "end_all": _up(S_k, block_n)}.get(mistake, end)  # fmt: skip
    if mistake == "none_whole":
        return start, start, start, end
    if mistake == "full_1_is_0":
        return start, full_0, full_0, end
    bounds = start, full_0, full_1 if mistake == "crossed" else max(full_0, full_1), end
    return bounds[::-1] if mistake == "reversed" else bounds


def _edge(block_m, block_n, S_q, S_k, left, right):
    """The condition that a random window tests; the fixed cases of that condition come before it, and show their arguments."""
    if S_k % block_n:
        return "ragged"
    if S_q != S_k:
        return "lengths"
    if left < 0 or right < 0:
        return "unlimited"
    return "narrow" if left + right + 1 < block_m + 2 * block_n else ""


def inputs():
    rule = "start, end: from the first tile that any row sees to one past the last; full_0, full_1: the tiles that every row sees whole"
    yield case(7, 4, 3, 64, 64, 3, 8, otherwise=rule)  # here nearly each mistake gives other numbers
    yield case(6, 4, 2, 64, 64, 13, 10, otherwise=rule)
    yield case(5, 2, 4, 64, 64, 12, 6, otherwise=rule)
    yield case(0, 4, 2, 64, 64, 6, 5, otherwise="the window begins before key 0")
    yield case(15, 4, 2, 64, 64, 12, 6, otherwise="the window ends past the last key")
    yield case(3, 4, 2, 32, 45, 9, 4, otherwise="the last of 32 rows stands at the last of 45 keys")
    yield case(3, 4, 2, 64, 64, 0, 5, otherwise="left = 0 is a limit: no key before the row's own")
    yield case(3, 4, 2, 64, 64, 5, 0, otherwise="right = 0 is a limit: no key after the row's own")
    for _ in range(100):
        block_m, block_n, blocks = random.choice((1, 2, 3, 16)), random.choice((1, 2, 3, 16)), random.randint(1, 6)
        S_q, left, right = blocks * block_m, random.randint(-1, 40), random.randint(-1, 40)
        S_k = max(1, S_q + random.choice((0, 0, 7, 60, -5)))
        edge = _edge(block_m, block_n, S_q, S_k, left, right)
        yield case(random.randrange(blocks), block_m, block_n, S_q, S_k, left, right, on="a random window", edge=edge, fresh=True)
    yield case(3, 4, 4, 16, 16, 0, 0, edge="narrow")
    yield case(2, 8, 4, 32, 32, 2, 1, edge="narrow")
    yield case(5, 4, 2, 64, 64, -1, 0, otherwise="left = −1 and right = 0 are the causal mask", edge="unlimited")
    yield case(5, 4, 2, 64, 64, 7, -1, edge="unlimited")
    yield case(5, 4, 2, 64, 64, -1, -1, edge="unlimited")
    yield case(3, 4, 2, 32, 45, 9, 4, edge="lengths")
    yield case(3, 4, 2, 32, 21, 9, 4, edge="lengths")
    yield case(0, 4, 2, 32, 21, 9, 4, otherwise="no row of this block sees a key: (0, 0, 0, 0)", edge="lengths")
    yield case(4, 4, 2, 18, 18, 5, 0, otherwise="the last block has two rows", edge="ragged")
    yield case(4, 4, 4, 18, 18, 7, 3, otherwise="18 keys in blocks of 4: the last block is never whole", edge="ragged")
    yield case(2, 4, 4, 18, 18, 7, -1, otherwise="18 keys in blocks of 4: the last block is never whole", edge="ragged")
    yield case(0, 4, 4, 2, 6, 7, 8, otherwise="6 keys in blocks of 4: the last block is never whole", edge="ragged")


EXERCISE = Exercise(
    id="12.2",
    task="Find the tiles of a window for one block of rows: where they start, which need no mask, and where they end.",
    conditions=CONDITIONS,
    hints=(
        "Write low(i), the first key that row i sees, and high(i), one past the last. Which row of the block reaches furthest, on each side?",
        "A tile is seen if any row sees any of it: start from the first row's low, rounded down, end from the last row's high, rounded up. "
        "It is whole if every row sees all of it: full_0 from the last row's low, rounded up, full_1 from the first row's high, rounded down.",
        "low(i) = max(0, i + S_k − S_q − left), high(i) = max(0, min(S_k, i + 1 + S_k − S_q + right)), the last row is "
        "min(first + block_m, S_q) − 1, and full_1 = max(full_0, …).",
    ),
    solution=window_tiles,
    reasoning="low and high both grow with i. So the union of all rows' keys runs from the first row's low to the last row's high, and their common keys "
    "from the last row's low to the first row's high. A tile is visited if it touches the union, and whole if it lies in the common keys. Without a "
    "limit on the left and with right = 0 the common keys begin at 0, and this is causal_tiles.",
    inputs=inputs,
    twin=twin,
    adapt=adapt,
    mistakes=MISTAKES,
    parts=("start", "full_0", "full_1", "end"),
    exact=True,
)
