"""Exercise 3.4, tiled_matmul_bytes."""

import math
import random

import torch

from fa_tutorial.exercises.harness import Exercise, case


def tiled_matmul_bytes(M, N, K, block_m, block_n, itemsize):
    """Bytes that all tiles of a matmul ask for, nothing cached between tiles."""
    tiles_m = -(-M // block_m)  # rounded up
    tiles_n = -(-N // block_n)
    elements = tiles_n * M * K + tiles_m * K * N + M * N
    return elements * itemsize


MISTAKES = {
    "elements": "elements are counted, not bytes: multiply by itemsize",
    "once": "a and b are each read once: without a cache every tile of c reads its rows of a and its columns of b anew",
    "a_once": "a is read once: every column of tiles reads all of it",
    "b_once": "b is read once: every row of tiles reads all of it",
    "exchanged": "the two factors are exchanged: a is read once for each column of tiles, b once for each row",
    "both_n": "b's factor is that of a: b is read once for each row of tiles",
    "both_m": "a's factor is that of b: a is read once for each column of tiles",
    "all": "every tile is charged all of a and all of b: it reads its own rows and its own columns",
    "blocks": "block sizes stand where the numbers of tiles belong",
    "untiled": "a and b are read for every multiply-add, as without tiles",
    "no_c": "c is not counted: every tile is written once",
    "c_twice": "c is counted twice: it is written, never read",
    "c_each_step": "c is written at every step along K: the accumulator stays in registers",
    "c_alone": "itemsize multiplies the bytes of c alone: a and b have it too",
    "one_more": "one tile too many is counted where the block divides the size: a quotient that is whole is not rounded up",
    "down": "the number of tiles is rounded down: the ragged last ones read too",
    "not_rounded": "the number of tiles is not rounded: a ragged column of tiles reads all of a, a ragged row all of b",
    "padded": "ragged tiles are counted whole: masked elements are neither read nor written",
    "padded_reads": "ragged tiles of a and b are counted whole: masked elements are not read",
    "float32": "large counts must be exact: stay with integers",
}

CONDITIONS = {
    "ragged": "ragged tiles count for what they hold, and a block larger than the matrix makes one tile",
    "large": "large counts are exact integers",
}


def twin(M, N, K, block_m, block_n, itemsize, mistake=None):
    rows, columns = M / block_m, N / block_n
    up_m, up_n = math.ceil(rows), math.ceil(columns)
    a_reads, b_reads = {
        "once": (1, 1), "a_once": (1, up_m), "b_once": (up_n, 1), "exchanged": (up_m, up_n), "both_n": (up_n, up_n), "both_m": (up_m, up_m),
        "all": (up_m * up_n, up_m * up_n), "blocks": (block_n, block_m), "untiled": (N, M), "one_more": (N // block_n + 1, M // block_m + 1),
        "down": (N // block_n, M // block_m), "not_rounded": (columns, rows),
    }.get(mistake, (up_n, up_m))  # fmt: skip
    M_read, N_read = (up_m * block_m, up_n * block_n) if mistake in ("padded", "padded_reads") else (M, N)
    c = (M_read * N_read if mistake == "padded" else M * N) * {"no_c": 0, "c_twice": 2, "c_each_step": K}.get(mistake, 1)
    reads = a_reads * M_read * K + b_reads * K * N_read
    if mistake == "float32":
        a, b = torch.tensor([float(up_n), M, K]), torch.tensor([float(up_m), K, N])
        return int((a.prod() + b.prod() + M * N) * itemsize)
    return {"elements": reads + c, "c_alone": reads + c * itemsize}.get(mistake, (reads + c) * itemsize)


def inputs():
    rule = "a once for each column of tiles, b once for each row of tiles, c once"
    yield case(6, 8, 5, 2, 4, 1, otherwise=rule)
    yield case(6, 8, 5, 2, 4, 2, otherwise=rule)
    yield case(5, 6, 3, 2, 4, 2, edge="ragged")
    yield case(3, 5, 2, 16, 16, 4, edge="ragged")
    yield case(99_999, 99_999, 99_999, 65_536, 32_768, 2, edge="large")
    for _ in range(20):
        tiles_m, tiles_n, K, block_m, block_n = (random.randint(1, high) for high in (9, 9, 200, 64, 64))
        itemsize = random.choice((1, 2, 4))
        on = "a random case of whole tiles"
        yield case(tiles_m * block_m, tiles_n * block_n, K, block_m, block_n, itemsize, on=on, fresh=True)
        on = "a random case with ragged tiles"
        yield case(tiles_m * block_m + 1, tiles_n * block_n + 1, K, block_m, block_n, itemsize, on=on, fresh=True, edge="ragged")


EXERCISE = Exercise(
    id="3.4",
    task="Count the bytes that a tiled matmul asks for when no cache helps.",
    conditions=CONDITIONS,
    hints=(
        "A tile of c needs block_m rows of a and block_n columns of b, each K long. Add that up over one row of tiles: what has been read of a, and of b?",
        "A column of tiles reads all of a between them, a row of tiles all of b. How many of each are there, when the last is ragged?",
    ),
    solution=tiled_matmul_bytes,
    reasoning="There are ceil(N / block_n) columns of tiles, and the tiles of each read all of a; there are ceil(M / block_m) rows of tiles, and each "
    "reads all of b; c is written once. Larger tiles mean fewer of them: the traffic falls with the side of the tile.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
)
