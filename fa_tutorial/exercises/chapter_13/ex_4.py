import random

import torch

from fa_tutorial import ring
from fa_tutorial.exercises.harness import Exercise, case


def tile_of(rank, owner, rows):
    """(first, end, is_causal): this rank's queries from row `first` on see the owner's keys 0 … end − 1.

    Both shards have `rows` rows, an even number, in zigzag order.
    is_causal: whether this tile needs the mask.
    """
    if owner == rank:
        return 0, rows, True
    if owner < rank:
        return 0, rows // 2, False
    return rows // 2, rows, False


EARLIER, LATER, OWN = "return 0, rows // 2, False", "return rows // 2, rows, False", "return 0, rows, True"
MISTAKES = {
    "earlier and later owners are exchanged": ("owner < rank", "owner > rank"),
    "of an earlier owner's keys only the first chunk is seen: its last chunk comes after all queries of this rank": (EARLIER, "return 0, rows, False"),
    "a later owner's keys are hidden from the first chunk of queries, not from the second": (LATER, "return 0, rows, False"),
    "a visiting shard gets a causal mask of its own, as if its keys began where this rank's queries begin": [
        (EARLIER, "return 0, rows, True"), (LATER, "return 0, rows, True")],
    "the tile of a visiting shard needs no mask: all its pairs are seen": [
        (EARLIER, "return 0, rows // 2, True"), (LATER, "return rows // 2, rows, True")],
    "that is right for shards in plain order: in zigzag order an earlier owner's second chunk is hidden, and a later owner's keys are seen by the second chunk of queries": [
        (EARLIER, "return 0, rows, False"), (LATER, "return rows, 0, False")],
    "for a later owner you give first = 0 and half of its keys: its keys are all seen, by the second half of the queries": (LATER, "return 0, rows // 2, False"),
    "end is one more than the last key: the keys are 0 … end − 1": [
        (EARLIER, "return 0, rows // 2 - 1, False"), (LATER, "return rows // 2, rows - 1, False"), (OWN, "return 0, rows - 1, True")],
}  # fmt: skip


def truth(rank, owner, rows):
    ranks = max(rank, owner) + 1
    queries, keys = (ring.shard(torch.arange(rows * ranks), one, ranks, dim=0) for one in (rank, owner))
    seen = keys <= queries[:, None]  # [rows, rows]
    first, end = rows - int(seen.any(1).sum()), int(seen.any(0).sum())
    return first, end, not bool(seen[first:, :end].all())


def refused(answer):
    is_whole = not any(isinstance(x, float) for x in (*answer(2, 1, 4), *answer(1, 2, 4)))
    return "" if is_whole else "first and end must be whole numbers, to slice with: use //"


def inputs():
    yield case(1, 1, 4, otherwise="a rank's own rows are in order, so its own tile is causal attention of all its queries and keys")
    yield case(2, 1, 4, otherwise="an earlier owner: its first chunk, keys 0 … end − 1, comes before all queries, its second after")
    later = "a later owner: its chunks lie between this rank's two, so the first sees none of its keys, and the second all, without a mask"
    yield case(1, 2, 4, otherwise=later)
    yield case(0, 3, 4, otherwise="rank 0 has the first chunk of all, and the last one")
    yield case(3, 0, 6, otherwise="of rank 0's keys, the last chunk of the sequence is hidden from everybody else")
    yield case(0, 0, 2)
    for _ in range(8):
        ranks = random.randint(2, 6)
        yield case(random.randrange(ranks), random.randrange(ranks), 2 * random.randint(1, 8), on="random ranks", fresh=True)


EXERCISE = Exercise(
    task="Say which of a rank's queries see which of an owner's keys in zigzag order.",
    hints=(
        "Take four ranks: rank 1 has chunks 1 and 6. Draw which of them see rank 0's chunks, 0 and 7, and which see rank 2's, 2 and 5.",
        "An earlier owner has a chunk below both of yours and one above both. A later owner has both of its chunks between yours.",
        "Own keys: (0, rows, True). An earlier owner: all queries, half the keys. A later owner: the second half of the queries, all keys.",
    ),
    solution=tile_of,
    reasoning="With o < r the chunks are o < r < 2R − 1 − r < 2R − 1 − o: both chunks of queries see chunk o and neither sees the last one. With o > r they are "
    "r < o < 2R − 1 − o < 2R − 1 − r: the first chunk of queries sees nothing, and the second sees both. Either way half of the tile is seen, without a mask.",
    inputs=inputs,
    truth=truth,
    rule="a query sees the keys at its own position and before; the shard of rank r is chunk r and then chunk 2R − 1 − r",
    mistakes=MISTAKES,
    parts=("first", "end", "is_causal"),
    exact=True,
    refused=refused,
)
