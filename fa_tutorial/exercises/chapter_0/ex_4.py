import random

from fa_tutorial.exercises.harness import Exercise, case


def tiled_bytes(S, D, block_m, itemsize):
    """Bytes that the blocks of the fused kernel read and write, for one head."""
    blocks = -(-S // block_m)  # blocks of queries; the last may be smaller
    elements = 2 * S * D + blocks * 2 * S * D  # q and o once, k and v once per block
    return elements * itemsize + 4 * S  # and a float32 per query


KEYS, FLOATS = "blocks * 2 * S * D", "4 * S"
MISTAKES = {
    "you count k and v once, but each block of queries reads all of k and v": (KEYS, "2 * S * D"),
    "where block_m divides S, you count k and v once more than there are blocks": ("-(-S // block_m)", "S // block_m + 1"),
    "you count q and o once per block, but each block has its own rows of q and o, so they travel once in all": (
        "2 * S * D + blocks * 2", "blocks * 4"),
    "you count elements, not bytes: multiply by itemsize": ("elements * itemsize", "elements"),
    "the float32 of each query is missing: 4 bytes for each": (f" + {FLOATS}", ""),
    "the number written for each query is a float32: 4 bytes, whatever itemsize is": (FLOATS, "itemsize * S"),
}  # fmt: skip


def truth(S, D, block_m, itemsize):
    rows = [min(block_m, S - start) for start in range(0, S, block_m)]  # of each block of queries
    return sum((2 * n * D + 2 * S * D) * itemsize + 4 * n for n in rows)


def inputs():
    yield case(12, 5, 2, 2)
    yield case(12, 5, 2, 4, otherwise="an element takes itemsize bytes, and the float32 of each query takes 4, whatever itemsize is")
    yield case(4096, 64, 128, 2)  # the picture's 35 MB
    yield case(10, 3, 4, 2, edge="ragged")
    for _ in range(20):
        D, block_m, blocks = random.randint(1, 128), random.randint(1, 64), random.randint(1, 9)
        yield case(blocks * block_m, D, block_m, random.choice((1, 2, 4)), on="a random case", fresh=True)
        yield case(random.randint(1, 500), D, block_m, 2, on="a random case with a smaller last block", fresh=True, edge="ragged")


EXERCISE = Exercise(
    task="Count the bytes that the blocks of the fused kernel read and write, for one head.",
    conditions={"ragged": "a smaller last block reads all of k and v too, but only its own rows of q, and writes only its own of o"},
    hints=(
        "Go through the picture of the fused kernel arrow by arrow. Which arrows carry a tensor once, and which once per block of queries?",
        "q and o carry S·D elements each, in all. Every block reads 2·S·D elements of k and v. How many blocks do S queries make?",
        "There are -(-S // block_m) blocks, which rounds up. Multiply the elements by itemsize, and then add 4 bytes per query.",
    ),
    solution=tiled_bytes,
    reasoning="Each query belongs to one block, so q is read once and o is written once. Each block reads all of k and v, because its "
    "queries meet every key. The scores stay on the chip, so no block reads or writes them.",
    more="The package's version, ledger.flash_hbm_bytes, also takes different numbers of queries and keys, and checks its arguments.",
    inputs=inputs,
    truth=truth,
    rule="q and o travel once, each block of queries reads all of k and v, and each query writes 4 bytes; nothing else is read or written",
    mistakes=MISTAKES,
    exact=True,
)
