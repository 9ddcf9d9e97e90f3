"""Exercise 4.4, flash_hbm_bytes."""

import random

import torch

from fa_tutorial.exercises.harness import Exercise, case


def flash_hbm_bytes(S_q, S_k, D, block_m, itemsize):
    """Bytes that one head moves through HBM in FA2's loop order, lse (float32) included."""
    row_blocks = -(-S_q // block_m)  # rounded up
    elements = 2 * S_q * D + row_blocks * 2 * S_k * D  # q and o once; k and v once a block of rows
    return elements * itemsize + 4 * S_q


MISTAKES = {
    "no_lse": "lse is not counted: 4 bytes a row",
    "lse_itemsize": "lse is counted with itemsize: it is float32, 4 bytes a row",
    "lse_one": "one byte a row is counted for lse: it is float32, 4 bytes",
    "lse_twice": "lse is counted twice, or m and l are: only lse goes to HBM, 4 bytes a row",
    "lse_times": "lse's 4 bytes are multiplied by itemsize: they are bytes already",
    "lse_D": "lse is counted as D numbers a row: it is one",
    "lse_blocks": "one lse is counted a block of rows: every row has its own",
    "elements": "elements are counted, not bytes: multiply by itemsize",
    "elements_and_lse": "elements are counted, not bytes: multiply by itemsize, and lse by 4",
    "elements_no_lse": "elements are counted, not bytes: multiply by itemsize (lse is missing too: 4 bytes a row)",
    "kv_once": "k and v are read once in this count: each block of rows reads all of them",
    "k_alone": "k alone is counted: v is read as often",
    "one_once": "one of k and v is read once in this count: each block of rows reads both",
    "no_o": "o is not counted, or q is not: q is read once and o written once",
    "no_qo": "neither q nor o is counted: q is read once and o written once",
    "o_read": "o is counted as read and written: acc stays on the chip, o is written once",
    "qo_blocks": "q and o are counted once a block of rows: a block moves its own rows",
    "q_blocks": "q is counted once a block of rows: a block reads its own rows",
    "exchanged": "the loops are the wrong way round: in FA2's order q and o move once, k and v once a block of rows",
    "fa1": "that is FA1's order: in FA2's, q and o move once, k and v once a block of rows",
    "down": "the number of blocks is rounded down: the ragged last block reads k and v too",
    "not_rounded": "the number of blocks is not rounded: the ragged last block reads all of k and v",
    "one_more": "the number of blocks is rounded down and 1 is added: S_q may be a multiple of block_m",
    "blocks_of_keys": "blocks are counted along S_k: there is one for every block_m rows of q",
    "block_for_count": "block_m stands where the number of blocks belongs",
    "every_row": "k and v are read for every row: a block of block_m rows reads them once",
    "S_q_twice": "S_q is used for k and v: they have S_k rows",
    "S_k_twice": "S_k is used for q and o: they have S_q rows",
    "lengths": "the lengths are exchanged: q, o and lse have S_q rows, k and v have S_k",
    "padded": "ragged rows are counted whole: masked rows of q, o and lse are neither read nor written",
    "padded_qo": "ragged rows are counted whole: masked rows of q and o are neither read nor written",
    "scores": "s and p are counted: they stay on the chip",
    "naive": "that is naive attention: s and p stay on the chip",
    "no_D": "D is missing: a row of q, k, v or o has D elements",
    "float32": "large counts must be exact: stay with integers",
}

CONDITIONS = {"large": "large counts are exact integers"}


def twin(S_q, S_k, D, block_m, itemsize, mistake=None):
    if mistake == "lengths":
        S_q, S_k = S_k, S_q
    blocks, D = -(-S_q // block_m), 1 if mistake == "no_D" else D
    reads = {"kv_once": 1, "k_alone": blocks / 2, "one_once": (blocks + 1) / 2, "exchanged": 1, "down": S_q // block_m, "not_rounded": S_q / block_m,
             "one_more": S_q // block_m + 1, "blocks_of_keys": -(-S_k // block_m), "block_for_count": block_m, "every_row": S_q, "naive": 1,
             }.get(mistake, blocks)  # fmt: skip
    moves = {"no_o": 1, "no_qo": 0, "o_read": 3, "qo_blocks": 2 * blocks, "q_blocks": blocks + 1, "exchanged": 2 * blocks}.get(mistake, 2)
    rows = {"S_k_twice": S_k, "padded": blocks * block_m, "padded_qo": blocks * block_m}.get(mistake, S_q)
    elements = moves * rows * D + 2 * reads * (S_q if mistake == "S_q_twice" else S_k) * D
    elements += 4 * S_q * S_k if mistake in ("scores", "naive") else 0
    lse = {"no_lse": 0, "lse_itemsize": S_q * itemsize, "lse_one": S_q, "lse_twice": 8 * S_q, "lse_times": 4 * S_q * itemsize, "lse_D": 4 * S_q * D,
           "lse_blocks": 4 * blocks, "elements_and_lse": S_q, "elements_no_lse": 0, "naive": 0,
           "padded": 4 * blocks * block_m}.get(mistake, 4 * S_q)  # fmt: skip
    if mistake == "fa1":
        key_blocks = -(-S_k // block_m)
        return (2 * S_k * D + key_blocks * 3 * S_q * D) * itemsize + key_blocks * 16 * S_q
    total = elements * (1 if mistake in ("elements", "elements_and_lse", "elements_no_lse") else itemsize) + lse
    return float(torch.tensor(total, dtype=torch.float32)) if mistake == "float32" else total


def inputs():
    rule = "q and o once, k and v once for each block of rows, lse 4 bytes a row"
    yield case(9, 7, 5, 3, 4, otherwise=rule)  # each mistake gives another number, here or with itemsize 2
    yield case(9, 7, 4, 3, 2, otherwise=rule)
    yield case(11, 7, 3, 2, 2, otherwise="S_q = 11 is six blocks of 2 rows, the last one ragged")
    yield case(3, 5, 2, 16, 2, otherwise="a block larger than S_q makes one block")
    for _ in range(30):
        sizes = [random.randint(1, high) for high in (500, 500, 256, 128)]
        yield case(*sizes, random.choice((1, 2, 4)), on="a random case", fresh=True)
    yield case(99_999, 99_999, 127, 64, 2, edge="large")


EXERCISE = Exercise(
    id="4.4",
    task="Count the bytes that one head moves through HBM in FA2's loop order.",
    conditions=CONDITIONS,
    hints=(
        "Which tensors does a block of rows touch only in its own rows, and which does it read from end to end?",
        "There are ceil(S_q / block_m) blocks of rows. Add up: q read and o written once, k and v once a block, and 4 bytes of lse for each row.",
    ),
    solution=flash_hbm_bytes,
    reasoning="q, o and lse move once, for every block of rows touches its own rows only. k and v are read from end to end by each of the "
    "ceil(S_q / block_m) blocks: that is the term with S_q · S_k · D / block_m, and larger blocks make it smaller. s and p never leave the chip.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
)
