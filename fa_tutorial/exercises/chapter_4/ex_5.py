"""Exercise 4.5, fa1_hbm_bytes."""

import random

import torch

from fa_tutorial.exercises.harness import Exercise, case


def fa1_hbm_bytes(S_q, S_k, D, block_n, itemsize):
    """Bytes that one head moves between HBM and the chip in FA1's loop order."""
    columns = -(-S_k // block_n)  # rounded up
    elements = 2 * S_k * D + columns * 3 * S_q * D  # k, v once; in each column q, and o twice
    return elements * itemsize + columns * 4 * S_q * 4  # in each column m and l twice, float32


MISTAKES = {
    "elements": "elements of k, v, q and o are counted, not bytes: multiply by itemsize",
    "all_elements": "elements are counted, not bytes: multiply by itemsize, and m and l by 4",
    "no_ml": "m and l are not counted: each is read and written in every column, 4 bytes a row",
    "ml_half": "8 bytes a row are counted in each column for m and l: both are read, and both are written",
    "ml_itemsize": "m and l are counted with itemsize: they are float32, 4 bytes a row",
    "ml_once": "m and l are counted once: they are read and written in every column",
    "ml_times": "the bytes of m and l are multiplied by itemsize: they are bytes already",
    "ml_D": "m and l are counted as D numbers a row: each is one",
    "two_of_three": "q and o are counted twice in each column, not three times: q is read, o is read, and o is written",
    "q_once": "q is counted once: each column reads all of it",
    "no_o": "o is not counted: each column reads and writes all of it",
    "o_once": "o is counted once: each column reads and writes all of it",
    "kv_columns": "k and v are counted whole in every column: a column reads its own block of them",
    "k_alone": "only one of k and v is counted",
    "no_kv": "k and v are not counted",
    "first_column": "the first column is counted without reading o, m and l: it reads them like every other",
    "lse": "lse is counted too: m and l are in HBM already, and nothing else is written",
    "fa2": "that is FA2's order: in FA1's, k and v move once, and q, o, m and l in every column",
    "down": "the number of columns is rounded down: the ragged last block of keys is a column too",
    "not_rounded": "the number of columns is not rounded: the ragged last block of keys is a whole column for q, o, m and l",
    "one_more": "the number of columns is rounded down and 1 is added: S_k may be a multiple of block_n",
    "blocks_of_rows": "columns are counted along S_q: there is one for every block_n keys",
    "block_for_count": "block_n stands where the number of columns belongs",
    "every_key": "a column is counted for every key: there is one for every block_n keys",
    "S_q_for_kv": "S_q is used for k and v: they have S_k rows",
    "S_k_for_qo": "S_k is used for q, o, m and l: they have S_q rows",
    "lengths": "the lengths are swapped: q, o, m and l have S_q rows, k and v have S_k",
    "padded": "ragged keys are counted whole: what lies past S_k is not read",
    "scores": "s and p are counted: they stay on the chip",
    "no_D": "D is missing: a row of q, k, v or o has D elements",
    "float32": "large counts must be exact: stay with integers",
}

CONDITIONS = {"large": "large counts are exact, so stay with integers"}


def twin(S_q, S_k, D, block_n, itemsize, mistake=None):
    if mistake == "lengths":
        S_q, S_k = S_k, S_q
    D = 1 if mistake == "no_D" else D
    true_columns = -(-S_k // block_n)
    columns = {"down": S_k // block_n, "not_rounded": S_k / block_n, "one_more": S_k // block_n + 1, "blocks_of_rows": -(-S_q // block_n),
              "block_for_count": block_n, "every_key": S_k}.get(mistake, true_columns)  # fmt: skip
    if mistake == "fa2":
        row_blocks = -(-S_q // block_n)
        return (2 * S_q * D + row_blocks * 2 * S_k * D) * itemsize + 4 * S_q
    rows = S_k if mistake == "S_k_for_qo" else S_q
    keys = {"S_q_for_kv": S_q, "padded": true_columns * block_n}.get(mistake, S_k)
    kv = {"kv_columns": 2 * columns, "k_alone": 1, "no_kv": 0}.get(mistake, 2) * keys * D
    qo = {"two_of_three": 2 * columns, "q_once": 2 * columns + 1, "no_o": columns, "o_once": columns + 1,
          "first_column": 3 * columns - 1}.get(mistake, 3 * columns) * rows * D  # fmt: skip
    ml = {"no_ml": 0, "ml_half": 8 * columns, "ml_itemsize": 4 * itemsize * columns, "ml_once": 16, "ml_times": 16 * itemsize * columns,
          "ml_D": 16 * D * columns, "first_column": 16 * columns - 8, "lse": 16 * columns + 4,
          "all_elements": 4 * columns}.get(mistake, 16 * columns) * rows  # fmt: skip
    elements = kv + qo + (4 * S_q * S_k if mistake == "scores" else 0)
    total = elements * (1 if mistake in ("elements", "all_elements") else itemsize) + ml
    return float(torch.tensor(total, dtype=torch.float32)) if mistake == "float32" else total


def inputs():
    rule = "k and v once; in every column q is read, and o, m and l are read and written; m and l take 4 bytes a row"
    yield case(7, 9, 5, 3, 4, otherwise=rule)  # each mistake gives another number, here or with itemsize 2
    yield case(7, 9, 4, 3, 2, otherwise=rule)
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
        "There are ceil(S_k / block_n) columns. Over all columns k and v are read once. Each column reads all of q, and reads and writes all of o, "
        "m and l. m and l have one float32 per row.",
    ),
    solution=fa1_hbm_bytes,
    reasoning="Each of the ceil(S_k / block_n) columns goes through all blocks of queries, and reads q, o, m and l whole, and writes o, m and l whole. "
    "k and v are read once, because a column keeps its own block of them on the chip.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
)
