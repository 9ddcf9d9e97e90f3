"""Exercise 10.2, tile_kinds."""

import contextlib

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator


def tile_kinds(seen, block_m, block_n):
    """0 for each tile of seen that is skipped, 1 for mixed, 2 for whole. seen: (S_q, S_k) booleans."""
    rows, columns = -(-seen.shape[0] // block_m), -(-seen.shape[1] // block_n)
    padded = seen.new_zeros(rows * block_m, columns * block_n)
    padded[: seen.shape[0], : seen.shape[1]] = seen
    pairs = padded.view(rows, block_m, columns, block_n).sum(dim=(1, 3))
    return (pairs > 0).int() + (pairs == block_m * block_n).int()


ROWS, PADDED = "-(-seen.shape[0] // block_m), -(-seen.shape[1] // block_n)", "seen.new_zeros(rows * block_m, columns * block_n)"
FILLED = f"{PADDED}\n    padded[: seen.shape[0], : seen.shape[1]] = seen"
EXIST = "torch.nn.functional.pad(torch.ones_like(seen), (0, columns * block_n - seen.shape[1], 0, rows * block_m - seen.shape[0]))"
SOME, ALL = "(pairs > 0).int()", "(pairs == block_m * block_n).int()"
MISTAKES = {
    "whole and mixed are exchanged: 1 is mixed, 2 is whole": (f"{SOME} + {ALL}", f"2 * {SOME} - {ALL}"),
    "the numbers run the wrong way: 0 is skipped, 2 is whole": (f"{SOME} + {ALL}", f"2 - {SOME} - {ALL}"),
    "no tile is whole: one whose pairs are all seen needs no mask": (f"{SOME} + {ALL}", SOME),
    "a tile that is seen in part counts as whole: its hidden pairs would be computed as seen": (f"{SOME} + {ALL}", f"2 * {SOME}"),
    "a tile that is seen in part is skipped: its seen pairs would be lost": (f"{SOME} + {ALL}", f"2 * {ALL}"),
    "these are counts of pairs: compare them with 0 and with block_m · block_n": (f"{SOME} + {ALL}", "pairs"),
    "the tiles hold the wrong pairs: view(rows, columns, block_m, block_n) takes them in memory's order": (
        "view(rows, block_m, columns, block_n).sum(dim=(1, 3))", "view(rows, columns, block_m, block_n).sum(dim=(2, 3))"),
    "block_m and block_n are exchanged: block_m counts queries": ("(seen, block_m, block_n)", "(seen, block_n, block_m)"),
    "a ragged tile counts as whole: it has rows or keys that don't exist, so it needs the mask": (
        "block_m * block_n).int()", f"{EXIST}.view(rows, block_m, columns, block_n).sum(dim=(1, 3))).int()"),
    "pairs that don't exist count as seen: pad with False": (PADDED, PADDED.replace("zeros", "ones")),
    "the ragged last tiles are missing: round the number of blocks up": [
        (ROWS, "seen.shape[0] // block_m, seen.shape[1] // block_n"), (FILLED, "seen[: rows * block_m, : columns * block_n].contiguous()")],
}  # fmt: skip

CONDITIONS = {"ragged": "the last tiles may be ragged; such a tile is never whole, because its missing pairs need the mask"}


def truth(seen, block_m, block_n):
    tiles = [[tile.double() for tile in rows.split(block_n, dim=1)] for rows in seen.split(block_m)]
    kinds = [[0 if not tile.any() else 2 if tile.sum() == block_m * block_n else 1 for tile in row] for row in tiles]
    return torch.tensor(kinds, dtype=torch.float64)


class Integers(contextlib.AbstractContextManager):
    """The result holds integers: they choose a tile's colour, and later its list."""

    def __exit__(self, *_):
        pass

    def complaint(self, result):
        if not isinstance(result, torch.Tensor) or not result.is_floating_point():
            return ""
        return f"the kinds are right, but they are in {str(result.dtype).removeprefix('torch.')}: a kind is an integer, as .int() gives"


def inputs():
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    band = causal & ~causal.tril(-2)
    yield case(causal, 2, 2, on="the causal mask of 4 × 4 pairs in tiles of 2 × 2")
    sizes = "a tile holds block_m queries, which are rows of seen, and block_n keys, which are its columns"
    yield case(causal, 4, 1, on="the causal mask of 4 × 4 pairs in tiles of 4 × 1", otherwise=sizes)
    yield case(causal, 1, 2, on="the causal mask of 4 × 4 pairs in tiles of 1 × 2", otherwise=sizes)
    yield case(torch.ones(2, 4, dtype=torch.bool), 2, 2, on="2 × 4 pairs, all seen, in tiles of 2 × 2", otherwise="these tiles are whole")
    yield case(band, 2, 2, on="a window of two keys, 4 × 4 pairs in tiles of 2 × 2")
    hole = torch.ones(3, 3, dtype=torch.bool)
    hole[1, 1] = False
    yield case(hole, 3, 3, on="one tile of 3 × 3 pairs, its middle hidden", otherwise="one hidden pair makes a tile mixed")
    yield case(~hole, 3, 3, on="one tile of 3 × 3 pairs, only its middle seen", otherwise="one seen pair makes a tile mixed")
    draw = generator()
    yield case(torch.rand(12, 16, generator=draw) < 0.8, 2, 2, on="a random mask", fresh=True)
    yield case(causal[:, :3], 2, 2, on="the causal mask's first 3 keys, 4 × 3 pairs in tiles of 2 × 2", edge="ragged")
    yield case(causal[1:], 2, 2, on="3 × 4 pairs, query i sees keys 0 … i + 1, in tiles of 2 × 2", edge="ragged")
    yield case(torch.ones(1, 1, dtype=torch.bool), 2, 2, on="one pair, seen, in a tile of 2 × 2", edge="ragged")


EXERCISE = Exercise(
    id="10.2",
    task="Say of each tile of a mask whether it is skipped, mixed or whole.",
    conditions=CONDITIONS,
    hints=(
        "How many of its pairs does a tile see? None, all, or some: that's all you need.",
        "For whole blocks seen.view(rows, block_m, columns, block_n) has a tile's pairs in dimensions 1 and 3. Sum over both.",
        "Make the mask larger first, with False where nothing exists: then a ragged tile never has all block_m · block_n pairs.",
    ),
    solution=tile_kinds,
    reasoning="A tile whose count is 0 may be skipped, and one with all block_m · block_n pairs needs no mask. Padding with False keeps "
    "every ragged tile below that, so its ends are masked.",
    more="The package's tile_lists_kernel asks the mask mod tile by tile, so the matrix of all pairs is never in memory.",
    inputs=inputs,
    truth=truth,
    rule="a tile's kind is 0 where none of its pairs is seen, 2 where all are, and 1 otherwise",
    mistakes=MISTAKES,
    watch=lambda *args: Integers(),
)
