import math

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.watch import LargestTensor


def packed_tiles(cu, block):
    """(first, end), (blocks,) integer tensors: each block of queries needs tiles first … end − 1."""
    total = int(cu[-1])
    top = torch.arange(0, total, block, device=cu.device)  # each block's first query
    last = (top + block - 1).clamp(max=total - 1)  # its last
    start = cu[torch.searchsorted(cu, top, right=True) - 1]  # of the first query's sequence
    stop = cu[torch.searchsorted(cu, last, right=True)]  # the end of the last query's
    return start // block, (stop + block - 1) // block


TOP, LAST = "cu[torch.searchsorted(cu, top, right=True) - 1]", "cu[torch.searchsorted(cu, last, right=True)]"
MISTAKES = {
    "first is rounded up: the tile in which the sequence begins counts": ("return start // block", "return (start + block - 1) // block"),
    "end is rounded down: the last tile counts even if the sequence ends inside it": ("(stop + block - 1) // block", "stop // block"),
    "end comes from the block's first query: its last query may be of a later sequence": (LAST, LAST.replace("last", "top")),
    "first comes from the block's last query: its first query may be of an earlier sequence": (TOP, TOP.replace("top", "last")),
    "first is where the first query's sequence ends: count entries of cu are at most this query, so it begins at cu[count − 1]": (
        TOP, "cu[torch.searchsorted(cu, top, right=True)]"),
    "end stops at the block's own tile, as under a causal mask: here a query also sees later keys of its sequence": (
        "(stop + block - 1) // block", "torch.minimum((stop + block - 1) // block, top // block + 1)"),
    "token 0, and every token that begins a sequence, is taken for one of the sequence before: search with right=True": [
        (TOP, "cu[torch.searchsorted(cu, top) - 1]"), (LAST, LAST.replace(", right=True", ""))],
}  # fmt: skip


def truth(cu, block):
    lengths = cu.diff().long()
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    tiles = sequence.split(block)
    places = [[n for n, keys in enumerate(tiles) if (own[:, None] == keys).any()] for own in tiles]
    return torch.tensor([row[0] for row in places]).double(), torch.tensor([row[-1] + 1 for row in places]).double()


class NoPairs(LargestTensor):
    """No tensor with an entry for each pair of a tile comes up."""

    def __init__(self, cu, block):
        super().__init__()
        self.pairs = block**2 if block**2 > int(cu[-1]) * len(cu) else math.inf  # tokens may meet sequences

    def complaint(self, result):
        told = f"the tiles are right, but a tensor holds the {self.pairs} pairs of a tile, or more: two queries decide a block"
        return told if self.largest >= self.pairs else ""


def inputs():
    def packed(block, *lengths, otherwise="", on="", **options):
        cu = torch.tensor([0, *lengths]).cumsum(0).int()
        return case(cu, block, on=on or f"cu_seqlens = {cu.tolist()}, blocks of {block}", otherwise=otherwise, **options)

    yield packed(4, 8, 8)
    yield packed(4, 6, 10, otherwise="first and end are integers, and a block with queries of both sequences needs the tiles of both")
    border = "a block needs all tiles from its first query's sequence to its last query's, and a query on a border begins the later one"
    yield packed(4, 3, 3, 10, otherwise=border)
    yield packed(16, 12, 20)
    yield packed(4, 5, 0, 7, edge="ragged")
    yield packed(4, 0, 6, 4, on="cu_seqlens = [0, 0, 6, 10], blocks of 4, the last one of queries 8 and 9", edge="ragged")
    yield packed(8, *torch.randint(20, (6,), generator=generator()).tolist(), 64, on="random lengths", fresh=True, edge="ragged")


EXERCISE = Exercise(
    task="Find the tiles of keys that each block of queries needs in packed rows, from cu_seqlens.",
    conditions={"ragged": "the last block may have fewer queries, and a sequence may be empty"},
    hints=(
        "A block's queries stand one after another, so their sequences do too. Whose sequence begins first, and whose ends last?",
        "The block's first query decides `first`, its last query `end`. With count = torch.searchsorted(cu, token, right=True), "
        "a token's sequence begins at cu[count − 1] and ends before cu[count].",
        "Round the beginning down to a tile and the end up. The last block's last query is token total − 1 at most.",
    ),
    solution=packed_tiles,
    reasoning="Sequences lie in order, so a block's keys reach from the start of its first query's sequence to the end of its last query's. "
    "Every tile between them holds a key that one of these queries sees. right=True steps over empty sequences.",
    more="The package's packed_range does this in a kernel, by bisection, so that the CPU never waits for the lengths.",
    inputs=inputs,
    truth=truth,
    rule="first is the tile in which the first query's sequence begins, end is one past the tile in which the last query's sequence ends",
    mistakes=MISTAKES,
    parts=("first", "end"),
    watch=NoPairs,
)
