import random

from fa_tutorial import ledger
from fa_tutorial.exercises.harness import Exercise, case


def fa1_bytes(S_q, S_k, D, block_n, itemsize):
    """Bytes that FA1's order reads and writes for one head."""
    columns = -(-S_k // block_n)  # rounded up
    once = 2 * S_k * D * itemsize  # k and v: each column reads its own
    every = 3 * S_q * D * itemsize + 4 * S_q * 4  # q; o, m and l, each read and written
    return once + columns * every


TOTAL, OF_O, OF_M = "once + columns * every", "3 * S_q * D", "4 * S_q * 4"
MISTAKES = {
    "o moves twice in each column: it is read and written": (OF_O, "2 * S_q * D"),
    "m and l move twice in each column: they are read and written": (OF_M, "2 * S_q * 4"),
    "m and l have 4 bytes an element, whatever itemsize is": (OF_M, "4 * S_q * itemsize"),
    "those are elements: one of q, k, v and o has itemsize bytes, and one of m and l has 4": [
        ("D * itemsize", "D", 2), (OF_M, "4 * S_q")],
    "q moves once in each column: it is read, and nothing writes it": (OF_O, "4 * S_q * D"),
    "S_q and S_k are exchanged: a column is a block of keys, and visits all queries": ("    columns = ", "    S_q, S_k = S_k, S_q\n    columns = "),
    "m and l are missing: they wait in memory between the columns, as o does": (f" + {OF_M}", ""),
    "the first column reads o, m and l as every other does": (TOTAL, "once + columns * every - S_q * (D * itemsize + 2 * 4)"),
    "the start values of o, m and l are not counted: they lie in memory": (TOTAL, "once + columns * every + S_q * (D * itemsize + 2 * 4)"),
    "a column reads only its own block of k and v: over all columns each is read once": (TOTAL, "columns * (once + every)"),
    "q, o, m and l move in every column": (TOTAL, "once + every"),
    "the columns are blocks of keys, so S_k decides how many there are": ("-(-S_k // block_n)", "-(-S_q // block_n)"),
    "these are FA2's bytes (4.7): here the outer loop is over keys": (
        TOTAL, "(2 * S_q * D + -(-S_q // block_n) * 2 * S_k * D) * itemsize + 4 * S_q"),
}  # fmt: skip


def inputs():
    yield case(4, 4, 2, 2, 2)
    yield case(2, 6, 1, 2, 4)
    yield case(6, 5, 3, 2, 2, otherwise="the last column may be shorter: round the columns up, and count only the keys that exist")
    for _ in range(10):
        sizes = (random.randint(1, 500) for _ in range(4))
        yield case(*sizes, random.choice((2, 4)), on="random sizes", fresh=True)


EXERCISE = Exercise(
    task="Count the bytes that FA1's loop order reads and writes for one head.",
    hints=(
        "Which tensors does a column read, and which does it write? How many columns are there, and which tensors does each move anew?",
        "All columns together read k and v once. Each column reads q, reads and writes o, and reads and writes m and l, for all queries.",
    ),
    solution=fa1_bytes,
    reasoning="k and v are cut into columns, so each of their elements is read once. Every column visits all queries: it reads q, and it "
    "reads and writes o, m and l.",
    more="The package's version is ledger.fa1_hbm_bytes.",
    inputs=inputs,
    truth=ledger.fa1_hbm_bytes,
    rule="a column reads its own k and v; for every query it reads q, o, m and l, and writes o, m and l",
    mistakes=MISTAKES,
    exact=True,
)
