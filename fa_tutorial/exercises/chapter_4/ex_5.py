"""Exercise 4.5, fa1_hbm_bytes."""

import random

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.watch import in_integers


def fa1_hbm_bytes(S_q, S_k, D, block_n, itemsize):
    """Bytes that one head moves between HBM and the chip in FA1's loop order."""
    columns = -(-S_k // block_n)  # rounded up
    elements = 2 * S_k * D + columns * 3 * S_q * D  # k, v once; in each column q, and o twice
    return elements * itemsize + columns * 4 * S_q * 4  # in each column m and l twice, float32


ELEMENTS, ML = "2 * S_k * D + columns * 3 * S_q * D", "columns * 4 * S_q * 4"
MISTAKES = {
    "elements of k, v, q and o are counted, not bytes: multiply by itemsize": ("elements * itemsize", "elements"),
    "m and l are not counted: each is read and written in every column, 4 bytes a row": (f" + {ML}", ""),
    "8 bytes a row are counted in each column for m and l: both are read, and both are written": (ML, "columns * 2 * S_q * 4"),
    "m and l are counted with itemsize: they are float32, 4 bytes a row": (ML, "columns * 4 * S_q * itemsize"),
    ("two trips of q and o are counted in each column, and there are three: q is read, o is read, and o is "
    "written"): ("columns * 3 *", "columns * 2 *"),
    "q is counted once: each column reads all of it": ("columns * 3 * S_q * D", "S_q * D + columns * 2 * S_q * D"),
    "k and v are counted whole in every column: a column reads its own block of them": (ELEMENTS, "columns * (2 * S_k * D + 3 * S_q * D)"),
    "the first column is counted without reading o, m and l: it reads them like every other": [
        ("columns * 3 * S_q", "(columns * 3 - 1) * S_q"), (ML, "(columns * 4 - 2) * S_q * 4")],
    "an lse is counted too: m and l are in HBM already, and nothing else is written": (ML, f"{ML} + 4 * S_q"),
    "the number of columns is rounded down: the ragged last block of keys is a column too": ("-(-S_k // block_n)", "S_k // block_n"),
    "columns are counted along S_q: there is one for every block_n keys": ("-(-S_k // block_n)", "-(-S_q // block_n)"),
    "ragged keys are counted whole: what lies past S_k is not read": ("2 * S_k * D", "2 * columns * block_n * D"),
}  # fmt: skip

CONDITIONS = {"large": "large counts are exact, so stay with integers"}


def truth(S_q, S_k, D, block_n, itemsize):
    columns = len(range(0, S_k, block_n))
    return 2 * S_k * D * itemsize + columns * S_q * (3 * D * itemsize + 2 * (4 + 4))


def inputs():
    yield case(7, 9, 5, 3, 4)  # each mistake gives another number, here or with itemsize 2
    yield case(7, 9, 4, 3, 2)
    yield case(7, 11, 3, 2, 2, otherwise="S_k = 11 is six blocks of 2 keys, the last one ragged")
    yield case(5, 3, 2, 16, 2, otherwise="a block larger than S_k makes one column")
    for _ in range(30):
        sizes = [random.randint(1, high) for high in (500, 500, 256, 128)]
        yield case(*sizes, random.choice((1, 2, 4)), on="a random case", fresh=True)
    yield case(99_999, 99_999, 127, 64, 2, edge="large")


EXERCISE = Exercise(
    id="4.5",
    task="Count the bytes that one head moves between HBM and the chip in FA1's loop order.",
    conditions=CONDITIONS,
    hints=(
        "How many columns are there, and what does one column move in total, over all its tiles?",
        "There are ceil(S_k / block_n) columns. Over all columns k and v are read once. Each column reads all of q, and reads and writes "
        "all of o, m and l. m and l have one float32 per row.",
    ),
    solution=fa1_hbm_bytes,
    reasoning="Each of the ceil(S_k / block_n) columns goes through all blocks of queries, and reads q, o, m and l whole, and writes o, m "
    "and l whole. k and v are read once, because a column keeps its own block of them on the chip.",
    inputs=inputs,
    truth=truth,
    rule="k and v move once; in every column q is read, and o, m and l are read and written; m and l take 4 bytes a row",
    mistakes=MISTAKES,
    exact=True,
    adapt=in_integers,
)
