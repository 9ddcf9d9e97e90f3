"""Exercise 0.2, fused_hbm_bytes."""

import random

from fa_tutorial.exercises.harness import Exercise, case


def fused_hbm_bytes(S, D, block_m, itemsize):
    """Bytes that the fused kernel reads from HBM and writes to it, for one head."""
    blocks = -(-S // block_m)  # blocks of queries; the last may be smaller
    elements = 2 * S * D + blocks * 2 * S * D  # q and o once, k and v once per block
    return elements * itemsize + 4 * S  # and a float32 per query


MISTAKES = {
    "elements": "you count elements, not bytes: multiply by itemsize",
    "itemsize_2": "you fix the bytes of an element at 2: multiply by itemsize",
    "k_v_once": "you count k and v once, but each block of queries reads all of k and v",
    "k_v_once_no_float": "you count k and v once, but each block of queries reads all of k and v",
    "megabytes": "you give megabytes: return bytes",
    "k_alone": "you count only one of k and v again for each block: each block of queries reads both",
    "block_m_times": "you count k and v block_m times, but there are S / block_m blocks, and each reads them once",
    "q_again": "you count q once per block, but each block reads only its own queries, so q travels once in all",
    "q_and_o_again": "you count q and o once per block, but each block has its own queries and rows of o, so they travel once in all",
    "per_query": "you count k and v once per query, but a block reads them once for all of its queries",
    "no_q_o": "q and o are missing: q is read once, and o is written once",
    "no_o": "one of q and o is missing: q is read once, and o is written once",
    "o_twice": "one of q and o travels twice in your count: q is read once, and o is written once",
    "no_float": "the float32 of each query is missing: 4 bytes for each",
    "float_times_itemsize": "you multiply the float32 of each query by itemsize too: it takes 4 bytes, whatever itemsize is",
    "float_itemsize": "the number written for each query is a float32: 4 bytes, whatever itemsize is",
    "float_per_block": "you count one float32 per block, but there is one per query",
    "float_padded": "you write a float32 for each query of a full last block, but only S queries exist",
    "scores": "s is in your count: in the fused kernel the scores never leave the chip",
    "naive": "that is what the kernels of naive attention move: in the fused kernel the scores never leave the chip",
    "naive_scaled_q": "that is what the kernels of naive attention move: in the fused kernel the scores never leave the chip",
    "rounded_down": "the last block is missing where it is smaller than the others: it reads all of k and v too",
    "k_v_once_more": "you count k and v once more than there are blocks, as a 4·S·D does, which holds them already, and as S // block_m + 1 does",
    "fraction": "a smaller last block reads all of k and v too: round the number of blocks up",
    "padded": "you count the last block as a full one: q and o have S rows, however many the blocks would hold",
    "padded_with_floats": "you count the last block as a full one: q, o and the float32 have S rows, however many the blocks would hold",
    "keys_padded": "you round the number of keys up to whole blocks, but each block of queries reads the S rows of k and v",
    "all_padded": "you round S up to whole blocks, but a tensor has S rows, however many the blocks would hold",
}


def twin(S, D, block_m, itemsize, mistake=None):
    itemsize = 2 if mistake == "itemsize_2" else itemsize
    blocks = -(-S // block_m)
    blocks = {
        "rounded_down": S // block_m,
        "k_v_once_more": S // block_m + 1,  # or blocks + 1: where block_m divides S, the two are one
        "fraction": S / block_m,
        "k_v_once": 1,
        "k_v_once_no_float": 1,
        "naive": 1,
        "naive_scaled_q": 1,
        "per_query": S,
        "block_m_times": block_m,
    }.get(mistake, blocks)
    padded = blocks * block_m
    rows = padded if mistake in ("padded", "padded_with_floats", "all_padded") else S
    keys = padded if mistake in ("keys_padded", "all_padded") else S
    q_o = {"no_q_o": 0, "no_o": 1, "o_twice": 3, "q_again": blocks + 1, "q_and_o_again": 2 * blocks}.get(mistake, 2) * rows * D
    k_v = blocks * (1 if mistake == "k_alone" else 2) * keys * D
    scores = {"scores": 1, "naive": 6, "naive_scaled_q": 4}.get(mistake, 0) * S * S
    floats = {
        "no_float": 0,
        "naive": 0,
        "naive_scaled_q": 0,
        "k_v_once_no_float": 0,
        "float_itemsize": itemsize * S,
        "float_times_itemsize": 4 * S * itemsize,
        "float_per_block": 4 * blocks,
        "float_padded": 4 * padded,
        "padded_with_floats": 4 * padded,
        "all_padded": 4 * padded,
    }.get(mistake, 4 * S)
    total = (q_o + k_v + scores) * (1 if mistake == "elements" else itemsize) + floats
    return total / 1e6 if mistake == "megabytes" else total


def inputs():
    rule = "add up q and o once, k and v once per block of queries, and 4 bytes per query"
    yield case(12, 5, 2, 2, otherwise=rule)  # no two of the mistakes agree here
    yield case(12, 5, 2, 4, otherwise=rule)
    yield case(4096, 64, 128, 2, otherwise=rule)  # the picture's 35 MB
    yield case(10, 3, 4, 2, edge="ragged")
    yield case(3, 7, 4, 2, edge="ragged")
    for _ in range(20):
        D, block_m, blocks = random.randint(1, 128), random.randint(1, 64), random.randint(1, 9)
        yield case(blocks * block_m, D, block_m, random.choice((1, 2, 4)), on="a random case", fresh=True)
        yield case(random.randint(1, 500), D, block_m, 2, on="a random case with a smaller last block", fresh=True, edge="ragged")


EXERCISE = Exercise(
    id="0.2",
    task="Count the bytes that one head of the fused kernel moves through HBM.",
    conditions={"ragged": "S need not be a multiple of block_m: a smaller last block reads all of k and v too"},
    hints=(
        "Go through the right side of the picture arrow by arrow. Which arrows carry a tensor once, and which once per block of queries?",
        "q and o carry S·D elements each, in all. Every block reads 2·S·D elements of k and v. How many blocks do S queries make?",
        "There are -(-S // block_m) blocks, which rounds up. Multiply the elements by itemsize, and then add 4 bytes per query.",
    ),
    solution=fused_hbm_bytes,
    reasoning="Each query belongs to one block, so q is read once and o is written once. Each block reads all of k and v, because its queries "
    "meet every key. The scores stay on the chip and cost nothing.",
    more="The package's version, ledger.flash_hbm_bytes, also takes different numbers of queries and keys, and checks its arguments.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
)
