"""Exercise 4.3, causal_tiles."""

import random

from fa_tutorial.exercises.harness import Exercise, case


def causal_tiles(row_block, block_m, block_n, S_q, S_k):
    """(full, end) for the query rows from row_block · block_m on; causal, bottom-right aligned."""
    first = row_block * block_m
    last = min(first + block_m, S_q) - 1
    seen_by_first = max(0, first + 1 + S_k - S_q)
    seen_by_last = max(0, last + 1 + S_k - S_q)
    full = seen_by_first // block_n
    end = -(-seen_by_last // block_n)  # rounded up
    return full, end


_SEES = "row i sees i + 1 + S_k − S_q keys, key i + S_k − S_q among them"
MISTAKES = {
    "exchanged": "full and end are swapped: return (full, end)",
    "full_last": "full is found from the last row: a tile is whole only if the first row, which sees least, sees all of it",
    "full_ragged": "a ragged last block is counted as whole: its missing keys need the mask",
    "full_up": "full counts a tile of which the first row sees only a part: round down",
    "full_top_left": "full is counted top left: S_k − S_q is missing",
    "full_strict": f"full is one short at the diagonal: {_SEES}",
    "full_sign": "S_k − S_q has the wrong sign in full",
    "full_keys": "full counts keys: divide by block_n",
    "full_row": "row_block is used as a row: the block's first row is row_block · block_m",
    "full_blocks": "block_m and block_n are swapped in full",
    "full_number": "full is row_block, as if block_m and block_n were equal: divide the number of keys by block_n",
    "full_index": "full is the index of the last whole tile: return how many there are",
    "full_masked": "full is how many tiles need the mask: return how many come before them",
    "full_negative": "full is negative: the first row sees no key, so no tile is whole",
    "end_index": "end is the last key block that is seen: return one past it",
    "end_open": "end goes on past the last row: the last block of rows is ragged, and its last row is S_q − 1",
    "end_down": "end leaves out a tile that the last row sees in part: round up",
    "end_first": "end is found from the first row, or one past full: the last row sees most",
    "end_full": "end is one past full: the last row sees most, and several tiles may need the mask",
    "end_top_left": "end is counted top left: S_k − S_q is missing",
    "end_strict": f"end is one short at the diagonal: {_SEES}",
    "end_sign": "S_k − S_q has the wrong sign in end",
    "end_all": "no tile is skipped: end is where all key blocks end",
    "end_keys": "end counts keys: divide by block_n",
    "end_blocks": "block_m and block_n are swapped in end",
    "end_number": "end is row_block + 1, as if block_m and block_n were equal: divide the number of keys by block_n",
    "end_more": "end is one too many: it is one past the last tile that the block's last row sees, even if it sees that tile whole",
    "end_masked": "end is how many tiles need the mask: return one past the last of them",
    "end_negative": "end is negative: a block of rows that sees no key ends at 0",
}

CONDITIONS = {
    "ragged": "the last block of rows and the last block of keys may be shorter, and a shorter block of keys never counts as whole",
    "unseen": "if S_q > S_k, the first S_q − S_k rows see no key; full and end are never negative",
}


def _up(x, y):
    return -(-x // y)


def twin(row_block, block_m, block_n, S_q, S_k, mistake=None):
    shift, first, stop = S_k - S_q, row_block * block_m, min((row_block + 1) * block_m, S_q)
    by_first, by_last = first + 1 + shift, stop + shift  # keys that the first and the last row see; negative where even later rows see none
    full, end = max(0, by_first) // block_n, _up(max(0, by_last), block_n)
    wrong = {
        "full_last": by_last // block_n, "full_ragged": end if by_first == S_k else full, "full_up": _up(max(0, by_first), block_n),
        "full_top_left": (first + 1) // block_n, "full_strict": max(0, by_first - 1) // block_n, "full_sign": max(0, first + 1 - shift) // block_n,
        "full_keys": by_first, "full_row": max(0, row_block + 1 + shift) // block_n, "full_number": row_block, "full_index": full - 1,
        "full_blocks": max(0, row_block * block_n + 1 + shift) // block_m, "full_masked": end - full, "full_negative": by_first // block_n,
        "end_index": max(0, end - 1), "end_open": _up(max(0, first + block_m + shift), block_n), "end_down": max(0, by_last) // block_n,
        "end_first": _up(max(0, by_first), block_n), "end_full": full + 1, "end_top_left": _up(stop, block_n),
        "end_strict": _up(max(0, by_last - 1), block_n), "end_sign": _up(max(0, stop - shift), block_n), "end_all": _up(S_k, block_n),
        "end_keys": by_last, "end_blocks": _up(max(0, min((row_block + 1) * block_n, S_q) + shift), block_m), "end_number": row_block + 1,
        "end_more": max(0, by_last) // block_n + 1, "end_masked": end - full, "end_negative": _up(by_last, block_n),
    }.get(mistake)  # fmt: skip
    if wrong is not None:
        return (wrong, end) if mistake.startswith("full") else (full, wrong)
    return (end, full) if mistake == "exchanged" else (full, end)


def inputs():
    small = "full: tiles that the block's first row sees whole; end: one past the last tile that its last row sees"
    yield case(2, 8, 2, 32, 32, otherwise=small)  # here nearly each mistake gives another number
    yield case(2, 2, 4, 16, 16, otherwise="block_m < block_n: the tile on the diagonal is not that of the same number")
    yield case(3, 1, 2, 8, 8, otherwise="row i sees key i too")
    yield case(2, 1, 2, 8, 8, otherwise="row i sees key i too")
    yield case(2, 2, 2, 8, 11, otherwise="S_q < S_k: row i sees keys 0 … i + S_k − S_q")
    yield case(0, 1, 2, 1, 5, otherwise=MISTAKES["full_ragged"])
    for _ in range(100):
        block_m, block_n, blocks = random.choice((1, 2, 3, 16)), random.choice((1, 2, 3, 16)), random.randint(1, 6)
        S_q, keys = blocks * block_m, random.randint(1, 300)
        S_k = max(S_q, keys)
        yield case(random.randrange(blocks), block_m, block_n, S_q, S_k, on="a random case with S_q ≤ S_k", fresh=True)
        S_q = max(1, S_q - random.randrange(block_m))
        S_k = min(keys, S_q)
        yield case(
            _up(S_q, block_m) - 1, block_m, block_n, S_q, S_k, on="a random case with S_q ≥ S_k, the last rows", fresh=True, edge="unseen"
        )
    yield case(1, 4, 2, 5, 5, otherwise="the last block of rows is ragged: its last row is S_q − 1", edge="ragged")
    yield case(4, 1, 2, 5, 5, otherwise="a ragged last key block is seen, and is not whole", edge="ragged")
    yield case(1, 4, 2, 6, 9, otherwise="ragged rows and S_q < S_k", edge="ragged")
    yield case(0, 64, 32, 3, 200, otherwise="blocks may be larger than S_q", edge="ragged")
    yield case(0, 2, 2, 8, 3, edge="unseen")
    yield case(0, 4, 4, 20, 4, edge="unseen")
    yield case(1, 4, 2, 8, 3, otherwise="S_q > S_k, a block of rows of which some see nothing", edge="unseen")
    yield case(0, 4, 2, 4, 0, otherwise="no key at all: (0, 0)", edge="unseen")


EXERCISE = Exercise(
    id="4.3",
    task="Find how many key blocks a block of rows sees whole, and where the ones begin that it does not see at all.",
    conditions=CONDITIONS,
    hints=(
        "Row i sees keys 0 … i + S_k − S_q. How many keys is that? Which row of the block sees fewest, and which most?",
        "A tile is whole if the first row sees all of it: round down. A tile is seen if the last row sees any of it: round up. "
        "A number of keys is never below 0, and the last row is never past S_q − 1.",
    ),
    solution=causal_tiles,
    reasoning="The first row sees the fewest keys, max(0, first + 1 + S_k − S_q), and every other row of the block sees these too. Divided by block_n and "
    "rounded down, they are the tiles that need no mask. The last row sees the most keys. Divided and rounded up, they say where to stop. "
    "The last row of a shorter block is S_q − 1.",
    more="The package's version, algorithm.causal_tiles, also checks its arguments.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("full", "end"),
    exact=True,
)
