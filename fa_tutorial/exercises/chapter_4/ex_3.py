import random

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.watch import in_integers


def causal_tiles(row_block, block_m, block_n, S_q, S_k):
    """(full, end) for the query rows from row_block · block_m on; causal, bottom-right aligned."""
    first = row_block * block_m
    last = min(first + block_m, S_q) - 1
    seen_by_first = max(0, first + 1 + S_k - S_q)
    seen_by_last = max(0, last + 1 + S_k - S_q)
    full = seen_by_first // block_n
    end = -(-seen_by_last // block_n)  # rounded up
    return full, end


FULL, END = "full = seen_by_first // block_n", "end = -(-seen_by_last // block_n)"
MISTAKES = {
    "full and end are swapped: return (full, end)": ("return full, end", "return end, full"),
    "full is found from the last row: a tile is whole only if the first row, which sees least, sees all of it": (
        FULL, "full = seen_by_last // block_n"),
    "full and end are numbers of keys: divide by block_n": [(FULL, "full = seen_by_first"), (END, "end = seen_by_last")],
    "end leaves out a tile that the last row sees in part: round up": (END, "end = seen_by_last // block_n"),
    "end is found from the first row: the last row sees most": (END, "end = -(-seen_by_first // block_n)"),
    "a row whose keys fill whole tiles needs no tile more: end is n / block_n, rounded up": (END, "end = seen_by_last // block_n + 1"),
    "end is not always full + 1: a row of tiles may have several masked ones": (END, "end = full + 1"),
    "end leaves out the last, shorter block of keys": (END, "end = min(-(-seen_by_last // block_n), S_k // block_n)"),
    "full and end are one key short at the diagonal: row i sees i + 1 + S_k − S_q keys, key i + S_k − S_q among them": [
        ("first + 1", "first"), ("last + 1", "last")],
    "full and end are counted top left: S_k − S_q is missing": (" + S_k - S_q", ""),
    "row_block is used as a row: the block's first row is row_block · block_m": ("row_block * block_m", "row_block"),
}  # fmt: skip

CONDITIONS = {
    "ragged": "the last block of rows and the last block of keys may be shorter, and a shorter block of keys never counts as whole",
    "unseen": "if S_q > S_k, the first S_q − S_k rows see no key; full and end are never negative",
}


def truth(row_block, block_m, block_n, S_q, S_k):
    rows = range(row_block * block_m, min((row_block + 1) * block_m, S_q))
    seen = [max(0, i + 1 + S_k - S_q) for i in rows]
    return min(seen) // block_n, -(-max(seen) // block_n)


def inputs():
    yield case(2, 8, 2, 32, 32)  # here nearly each mistake gives another number
    yield case(2, 2, 4, 16, 16, otherwise="block_m < block_n: the tile on the diagonal is not that of the same number")
    yield case(3, 1, 2, 8, 8, otherwise="row i sees keys 0 … i, i + 1 of them: row 3 sees two whole tiles, and no third")
    yield case(2, 2, 2, 8, 11, otherwise="S_q < S_k: row i sees keys 0 … i + S_k − S_q")
    yield case(0, 1, 2, 1, 5, otherwise="a shorter last block of keys counts for end, and never for full, even where a row sees all of it")
    for _ in range(100):
        block_m, block_n, blocks = random.choice((1, 2, 3, 16)), random.choice((1, 2, 3, 16)), random.randint(1, 6)
        S_q, S_k = blocks * block_m, random.randint(1, 300)
        yield case(random.randrange(blocks), block_m, block_n, S_q, max(S_q, S_k), on="a random case with S_q ≤ S_k", fresh=True)
        S_q = max(1, S_q - random.randrange(block_m))
        last, on = (S_q - 1) // block_m, "a random case with S_q ≥ S_k, the last rows"
        yield case(last, block_m, block_n, S_q, min(S_k, S_q), on=on, fresh=True, edge="unseen")
    yield case(1, 4, 2, 5, 5, otherwise="the last block of rows is ragged: its last row is S_q − 1", edge="ragged")
    yield case(0, 64, 32, 3, 200, otherwise="blocks may be larger than S_q", edge="ragged")
    yield case(0, 2, 1, 8, 3, edge="unseen")
    yield case(1, 4, 2, 8, 3, otherwise="S_q > S_k, a block of rows of which some see nothing", edge="unseen")


EXERCISE = Exercise(
    task="Find how many key blocks a block of rows sees whole, and where the ones begin that it does not see at all.",
    conditions=CONDITIONS,
    hints=(
        "Row i sees keys 0 … i + S_k − S_q. How many keys is that? Which row of the block sees fewest, and which most?",
        "A tile is whole if the first row sees all of it: round down. A tile is seen if the last row sees any of it: round up. "
        "A number of keys is never below 0, and the last row is never past S_q − 1.",
    ),
    solution=causal_tiles,
    reasoning="The first row sees the fewest keys, max(0, first + 1 + S_k − S_q), and every other row of the block sees these too. "
    "Divided by block_n and rounded down, they are the tiles that need no mask. The last row sees the most keys. Divided and rounded up, "
    "they say where to stop. The last row of a shorter block is S_q − 1.",
    inputs=inputs,
    truth=truth,
    rule="full: tiles that the block's first row sees whole; end: one past the last tile that its last row sees",
    mistakes=MISTAKES,
    parts=("full", "end"),
    exact=True,
    adapt=in_integers,
)
