"""Exercise 12.2, window_tiles."""

import random
import sys

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import LIBRARIES, Wrong, adapting, same
from fa_tutorial.exercises.watch import LargestTensor


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


SEES = "row i sees keys i + S_k − S_q − left … i + S_k − S_q + right, both included"
START, FULL_0 = "low(first) // block_n,", "-(-low(last) // block_n)"
FULL_1, END = "max(full_0, high(first) // block_n)", "-(-high(last) // block_n)"
LATE = "full_0 is found from a row after the block's last, so it may be a tile late"
MISTAKES = {
    "full_0 counts a tile of which the last row sees only a part: round up": (FULL_0, "low(last) // block_n"),
    "full_0 is found from the first row: the last row's window begins furthest to the right": (FULL_0, "-(-low(first) // block_n)"),
    f"{LATE}, as FA3 and FA4 find it": (FULL_0, "max(low(first) // block_n, -(-max(0, first + block_m + S_k - S_q - left) // block_n))"
                                        " if left >= 0 else 0"),
    f"{LATE}; besides, low is at least 0": (FULL_0, "-(-(first + block_m + S_k - S_q - left) // block_n) if left >= 0 else 0"),
    f"{LATE}": (FULL_0, "-(-low(last + 1) // block_n)"),
    "full_1 counts a tile of which the first row sees only a part: round down": (FULL_1, "max(full_0, -(-high(first) // block_n))"),
    "full_1 is found from the last row: the first row's window ends first": (FULL_1, "max(full_0, high(last) // block_n)"),
    "start leaves out a tile that the first row sees in part: round down": (START, "-(-low(first) // block_n),"),
    "start is found from the last row: the first row reaches back furthest": (START, "low(last) // block_n,"),
    "end leaves out a tile that the last row sees in part: round up": (END, "high(last) // block_n"),
    "end is found from the first row: the last row's window ends last": (END, "-(-high(first) // block_n)"),
    "end is the last tile that is seen: return one past it": (END, f"{END} - 1"),
    "full_1 is the last whole tile: return one past it": (f"{START} full_0, full_1", f"{START} full_0, full_1 - 1"),
    "full_1 and end are the last tiles: return one past each": (f"{START} full_0, full_1, {END}", f"{START} full_0, full_1 - 1, {END} - 1"),
    "the results are in another order, start, end, full_0, full_1: return start, full_0, full_1, end": (
        f"{START} full_0, full_1, {END}", f"{START} {END}, full_0, full_1"),
    "the results are in another order, full_0, full_1, start, end: return start, full_0, full_1, end": (
        f"{START} full_0, full_1,", f"full_0, full_1, {START}"),
    "full_0 and full_1 are swapped: the whole tiles are full_0 to full_1 − 1": (f"{START} full_0, full_1", f"{START} full_1, full_0"),
    "these are numbers of keys: return numbers of tiles of block_n keys": (
        f"{START} full_0, full_1, {END}", f"{START.replace(',', ' * block_n,')} full_0 * block_n, full_1 * block_n, {END} * block_n"),
    "only −1 counts as no limit: any negative left or right does": (
        "    first = row_block", "    if left < -1 or right < -1:\n        return 0, 0, 0, 0\n    first = row_block"),
    f"the window is one key too narrow on the right: {SEES}": ("i + 1 + S_k", "i + S_k"),
    f"the window is one key too wide on the right: {SEES}": ("i + 1 + S_k", "i + 2 + S_k"),
    f"the window is one key too narrow on the left: {SEES}": ("S_q - left", "S_q - left + 1"),
    f"the window is one key too wide on the left: {SEES}": ("S_q - left", "S_q - left - 1"),
    "the first row and the last are swapped: the window moves right with the row, so the first row's begins first and ends first": [
        (START, "low(last) // block_n,"), (FULL_0, "-(-low(first) // block_n)"), (FULL_1, "max(full_0, high(last) // block_n)"),
        (END, "-(-high(first) // block_n)")],
    "full_1 is below full_0: a narrow window has no whole tile, and two loops would visit the tiles between them twice": (
        FULL_1, "high(first) // block_n"),
    "both limits are left out: these are causal_tiles, whatever left and right are": (
        "    first = row_block", "    left, right = -1, 0\n    first = row_block"),
    "left = −1 and right = −1 count as numbers of keys: negative is no limit, so low is 0 and high is S_k": [
        (" if left >= 0 else 0", ""), (" if right >= 0 else S_k", "")],
}  # fmt: skip

CONDITIONS = {
    "narrow": "a window narrower than a tile has no whole tile: full_1 = full_0",
    "unlimited": "a negative left or right is no limit on that side",
    "lengths": "S_q and S_k may differ: row i stands at key i + S_k − S_q",
    "ragged": "the last block of rows and the last block of keys may be shorter, and a shorter block of keys never counts as whole",
}


def truth(row_block, block_m, block_n, S_q, S_k, left, right):
    """By the keys of each row, one by one; an empty middle stands at the first tile that the last row sees from its start."""
    rows = [i + S_k - S_q for i in range(row_block * block_m, min((row_block + 1) * block_m, S_q))]
    sees = [{j for j in range(S_k) if (left < 0 or j >= i - left) and (right < 0 or j <= i + right)} for i in rows]
    seen, common = sorted(set.union(*sees)), set.intersection(*sees)
    whole = [tile for tile in range(S_k // block_n) if common.issuperset(range(tile * block_n, (tile + 1) * block_n))]
    nowhere = -(-min(sees[-1], default=0) // block_n)
    full = (whole[0], whole[-1] + 1) if whole else (nowhere, nowhere)
    return (seen[0] // block_n, *full, seen[-1] // block_n + 1) if seen else (0, 0, 0, 0)


@adapting
def adapt(answer, *args):
    """The answer with an empty middle in truth's place, where any place will do; what is not four numbers is told of by the harness."""
    bounds = answer(*args)
    if not isinstance(bounds, tuple | list) or len(bounds) != 4:
        return bounds
    start, full_0, full_1, end = bounds
    want = truth(*args)
    if any(isinstance(bound, float) for bound in bounds) and same(tuple(bounds), want):
        raise Wrong("gives floats: a tile's number is an integer, as // of integers gives it and range takes it")
    _, ours, past, _ = want
    return (start, ours, past, end) if ours == past and full_0 == full_1 and start <= full_0 <= end else bounds


def _edge(block_m, block_n, S_q, S_k, left, right):
    """The condition that a random window tests; the fixed cases of that condition come before it, and show their arguments."""
    if S_k % block_n or S_q != S_k:
        return "ragged" if S_k % block_n else "lengths"
    if min(left, right) < 0:
        return "unlimited"
    return "narrow" if left + right + 1 < block_m + 2 * block_n else ""


MANY = 10_000


class NoPairs(LargestTensor):
    """No tensor comes up with a number for each pair of a row of the block and a key, and where these are many, no loop walks over them."""

    def __init__(self, row_block, block_m, block_n, S_q, S_k, left, right):
        super().__init__()
        self.pairs = min(block_m, S_q - row_block * block_m) * S_k
        self.lines = 0  # of both calls

    def __enter__(self):
        self.traced = sys.gettrace()
        if self.pairs >= MANY:
            sys.settrace(self.count)
        return super().__enter__()

    def __exit__(self, *error):
        sys.settrace(self.traced)
        return super().__exit__(*error)

    def count(self, frame, event, _):
        if frame.f_globals.get("__name__", "").partition(".")[0] in {"fa_tutorial", *LIBRARIES}:
            return None
        self.lines += event == "line"
        return self.count

    def complaint(self, result):
        if self.largest >= self.pairs:
            return f"the tiles are right, but a tensor of all {self.pairs:,} pairs of the block is made: its first and last row decide"
        if self.pairs >= MANY and self.lines >= self.pairs:
            return (
                f"the tiles are right, but {self.lines // 2:,} lines run for a block with {self.pairs:,} pairs of a row and a key: its first "
                f"and last row decide"
            )
        return ""


def inputs():
    yield case(7, 4, 3, 64, 64, 3, 8)  # here nearly each mistake gives other numbers
    yield case(6, 4, 2, 64, 64, 13, 10)
    yield case(0, 4, 2, 64, 64, 6, 5, otherwise="the window begins before key 0: low is at least 0")
    yield case(5, 2, 4, 64, 64, 12, 6)
    yield case(15, 4, 2, 64, 64, 12, 6, otherwise="the window ends past the last key: high is at most S_k")
    yield case(3, 4, 2, 32, 45, 9, 4, otherwise="the last of 32 rows stands at the last of 45 keys")
    yield case(3, 4, 2, 64, 64, 0, 5, otherwise="left = 0 is a limit: no key before the row's own")
    yield case(3, 4, 2, 64, 64, 5, 0, otherwise="right = 0 is a limit: no key after the row's own")
    yield case(40, 16, 16, 1024, 1024, 95, 0)  # MANY pairs: a loop over them is seen
    yield case(3, 4, 4, 16, 16, 0, 0, otherwise="no tile is whole here: full_0 = full_1, at any place from start to end, so 3 or 4")
    for _ in range(100):
        block_m, block_n, blocks = random.choice((1, 2, 3, 16)), random.choice((1, 2, 3, 16)), random.randint(1, 6)
        S_q, left, right = blocks * block_m, random.randint(-1, 40), random.randint(-1, 40)
        S_k = max(1, S_q + random.choice((0, 0, 7, 60, -5)))
        edge = _edge(block_m, block_n, S_q, S_k, left, right)
        yield case(random.randrange(blocks), block_m, block_n, S_q, S_k, left, right, on="a random window", edge=edge, fresh=True)
    yield case(2, 8, 4, 32, 32, 2, 1, edge="narrow")
    yield case(5, 4, 2, 64, 64, -1, 0, otherwise="left = −1 and right = 0 are the causal mask", edge="unlimited")
    yield case(5, 4, 2, 64, 64, 7, -1, edge="unlimited")
    yield case(5, 4, 2, 64, 64, -1, -1, edge="unlimited")
    yield case(5, 4, 2, 64, 64, -3, 6, otherwise="left = −3 is no limit either: any negative number is none", edge="unlimited")
    yield case(5, 4, 2, 64, 64, 6, -70, otherwise="right = −70 is no limit either: any negative number is none", edge="unlimited")
    yield case(3, 4, 2, 32, 45, 9, 4, edge="lengths")
    yield case(3, 4, 2, 32, 21, 9, 4, edge="lengths")
    yield case(0, 4, 2, 32, 21, 9, 4, otherwise="no row of this block sees a key: (0, 0, 0, 0)", edge="lengths")
    yield case(4, 4, 2, 18, 18, 5, 0, otherwise="the last block has two rows: its last row is S_q − 1", edge="ragged")
    yield case(4, 4, 4, 18, 18, 7, 3, otherwise="18 keys in blocks of 4: the last block is never whole", edge="ragged")
    yield case(2, 4, 4, 18, 18, 7, -1, otherwise="18 keys in blocks of 4: the last block is never whole", edge="ragged")
    yield case(0, 4, 4, 2, 6, 7, 8, otherwise="6 keys in blocks of 4: the last block is never whole", edge="ragged")


EXERCISE = Exercise(
    task="Find the tiles of a window for one block of rows: where they start, which need no mask, and where they end.",
    conditions=CONDITIONS,
    hints=(
        "Write low(i), the first key that row i sees, and high(i), one past the last. Which row of the block reaches furthest, on each "
        "side?",
        "A tile is seen if any row sees any of it, and whole if every row sees all of it. low and high grow with i: so is each of the four "
        "decided by the block's first row or by its last, and does a tile that is cut count?",
        "low(i) = max(0, i + S_k − S_q − left), high(i) = max(0, min(S_k, i + 1 + S_k − S_q + right)), and the last row is "
        "min(first + block_m, S_q) − 1. start is the first row's low, rounded down, and full_0 the last row's, rounded up. The two others "
        "mirror them, with full_1 = max(full_0, …).",
    ),
    solution=window_tiles,
    reasoning="low and high both grow with i. So the union of all rows' keys runs from the first row's low to the last row's high, and "
    "their common keys from the last row's low to the first row's high. A tile is visited if it touches the union, and whole if it lies "
    "in the common keys. Without a limit on the left and with right = 0 the common keys begin at 0, and this is causal_tiles.",
    inputs=inputs,
    truth=truth,
    rule="start, end: from the first tile that any row sees to one past the last; full_0, full_1: the tiles that every row sees whole",
    adapt=adapt,
    mistakes=MISTAKES,
    parts=("start", "full_0", "full_1", "end"),
    exact=True,
    watch=NoPairs,
)
