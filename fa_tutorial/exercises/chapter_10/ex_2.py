"""Exercise 10.2, tile_kinds."""

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


MISTAKES = {
    "exchanged": "whole and mixed are exchanged: 1 is mixed, 2 is whole",
    "from_whole": "the numbers run the wrong way: 0 is skipped, 2 is whole",
    "no_whole": "no tile is whole: one whose pairs are all seen needs no mask",
    "no_mixed": "a tile that is seen in part counts as whole: its hidden pairs would be computed as seen",
    "only_whole": "a tile that is seen in part is skipped: its seen pairs would be lost",
    "counts": "these are counts of pairs: compare them with 0 and with block_m · block_n",
    "half": "a tile counts as whole from half of its pairs on: all of them must be seen",
    "corners": "only a tile's first and last pair are looked at: any pair may be hidden, or seen",
    "order": "the tiles hold the wrong pairs: view(rows, columns, block_m, block_n) takes them in memory's order",
    "transposed": "the result is transposed: its rows are blocks of queries",
    "blocks": "block_m and block_n are exchanged: block_m counts queries",
    "ragged_whole": "a ragged tile counts as whole: it has rows or keys that don't exist, so it needs the mask",
    "ragged_lost": "the ragged last tiles are missing: round the number of blocks up",
}

CONDITIONS = {"ragged": "the last tiles may be ragged; such a tile is never whole, because its missing pairs need the mask"}


def twin(seen, block_m, block_n, mistake=None):
    if mistake == "blocks":
        block_m, block_n = block_n, block_m
    S_q, S_k = seen.shape
    rows, columns = -(-S_q // block_m), -(-S_k // block_n)
    if mistake == "ragged_lost":
        rows, columns = S_q // block_m, S_k // block_n
        seen = seen[: rows * block_m, : columns * block_n]
    exists = torch.nn.functional.pad(torch.ones_like(seen), (0, columns * block_n - seen.shape[1], 0, rows * block_m - seen.shape[0]))
    padded = torch.nn.functional.pad(seen, (0, columns * block_n - seen.shape[1], 0, rows * block_m - seen.shape[0]))
    if mistake == "order":
        tiles = padded.reshape(rows, columns, block_m, block_n).transpose(1, 2)
    else:
        tiles = padded.view(rows, block_m, columns, block_n)
    pairs = tiles.sum(dim=(1, 3))
    all_of = exists.view(rows, block_m, columns, block_n).sum(dim=(1, 3)) if mistake == "ragged_whole" else block_m * block_n
    some, whole = pairs > 0, pairs == all_of
    if mistake == "corners":
        first, last = tiles[:, 0, :, 0], tiles[:, -1, :, -1]
        some, whole = first | last, first & last
    kinds = {
        "exchanged": 2 * some.int() - whole.int(),
        "from_whole": 2 - some.int() - whole.int(),
        "no_whole": some.int(),
        "no_mixed": 2 * some.int(),
        "only_whole": 2 * whole.int(),
        "counts": pairs,
        "half": some.int() + (2 * pairs >= block_m * block_n).int(),
    }.get(mistake, some.int() + whole.int())
    return (kinds.mT if mistake == "transposed" else kinds).double()


def inputs():
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    band = causal & ~causal.tril(-2)
    yield case(causal, 2, 2, on="the causal mask of 4 × 4 pairs in tiles of 2 × 2")
    yield case(causal, 4, 1, on="the causal mask of 4 × 4 pairs in tiles of 4 × 1")
    yield case(causal, 1, 2, on="the causal mask of 4 × 4 pairs in tiles of 1 × 2")
    yield case(torch.ones(2, 4, dtype=torch.bool), 2, 2, on="2 × 4 pairs, all seen, in tiles of 2 × 2")
    yield case(band, 2, 2, on="a window of two keys, 4 × 4 pairs in tiles of 2 × 2")
    hole = torch.ones(3, 3, dtype=torch.bool)
    hole[1, 1] = False
    yield case(hole, 3, 3, on="one tile of 3 × 3 pairs, its middle hidden")
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
    reasoning="A tile whose count is 0 may be skipped, and one with all block_m · block_n pairs needs no mask. Padding with False keeps every ragged "
    "tile below that, so its ends are masked.",
    more="The package's tile_lists_kernel asks the mask mod tile by tile, so the matrix of all pairs is never in memory.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
)
