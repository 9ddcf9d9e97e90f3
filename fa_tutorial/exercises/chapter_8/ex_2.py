"""Exercise 8.2, fits."""

import functools
import random

import torch

from fa_tutorial import tiles
from fa_tutorial.exercises.harness import Exercise, Wrong, case, show


def fits(config, D, itemsize, shared_memory_limit):
    """True where a block of the forward kernel asks for no more than shared_memory_limit bytes."""
    rows = config.block_m + 2 * config.num_stages * config.block_n  # q; num_stages tiles each of k and v
    return rows * tiles.padded_d(D) * itemsize <= shared_memory_limit


_PADDING = "a tile has BLOCK_D columns, D rounded up to a power of two of at least 16"
MISTAKES = {
    "less": "a tile that needs exactly the limit fits: at most the limit, not less",
    "one_stage": "num_stages is not used: that many tiles each of k and v are in flight",
    "q_streams": "q is counted num_stages times: its tile stays, k and v stream",
    "k_or_v": "one of k and v is missing: num_stages tiles of each",
    "no_q": "q is missing: its tile stays in shared memory",
    "with_o": "o is counted too: acc is in registers",
    "exchanged": "block_m and block_n are exchanged: q has block_m rows, k and v have block_n",
    "stage_less": "one stage too few is counted",
    "stage_more": "one stage too many is counted",
    "scores": "the tile of scores is counted too: s and p are in registers",
    "half_scores": "the tile of scores is counted too, in half precision: s and p are in registers",
    "kilobyte": "1 KB is added: a block costs that of the SM's 228 KB, not of its own limit",
    "elements": "elements are counted, not bytes: multiply by itemsize",
    "bits": "bits are counted: the limit is in bytes",
    "two_bytes": "itemsize is taken for 2: it is an argument",
    "four_bytes": "itemsize is taken for 4: it is an argument",
    "twice": "twice the bytes are counted: one tile of q, and num_stages tiles each of k and v",
    "no_columns": "D is missing: a tile has D columns, padded to BLOCK_D",
    "kilobytes": "bytes are compared with kilobytes: the limit is in bytes",
    "thousand": "the limit is multiplied by 1,000 or 1,024: it is in bytes",
    "next_power": "D = 256 is padded to 512: a D that is a power of two stays as it is",
    "not_padded": f"D is not padded: {_PADDING}",
    "to_16": f"D is padded to a multiple of 16 alone: {_PADDING}",
    "to_32": f"D is padded to a multiple of 32: {_PADDING}",
    "down": f"D is padded down: {_PADDING}",
    "no_least": f"D = 8 stays 8: {_PADDING}",
    "least_32": f"D is padded to at least 32: {_PADDING}",
    "least_64": f"D is padded to at least 64: {_PADDING}",
}


def _columns(D, mistake):
    power = 1 << (D - 1).bit_length()
    return {"no_columns": 1, "next_power": max(1 << D.bit_length(), 16), "not_padded": D, "to_16": -(-D // 16) * 16, "to_32": -(-D // 32) * 32,
            "down": max(1 << D.bit_length() - 1, 16), "no_least": power, "least_32": max(power, 32),
            "least_64": max(power, 64)}.get(mistake, tiles.padded_d(D))  # fmt: skip


def twin(config, D, itemsize, mistake=None):
    """The smallest limit that fits, which `adapt` finds by asking."""
    m, n, stages = config.block_m, config.block_n, config.num_stages
    rows = {"one_stage": m + 2 * n, "q_streams": stages * (m + 2 * n), "k_or_v": m + stages * n, "no_q": 2 * stages * n,
            "with_o": 2 * m + 2 * stages * n, "exchanged": n + 2 * stages * m, "stage_less": m + 2 * (stages - 1) * n,
            "stage_more": m + 2 * (stages + 1) * n, "twice": 2 * (m + 2 * stages * n)}.get(mistake, m + 2 * stages * n)  # fmt: skip
    elements = rows * _columns(D, mistake)
    size = elements * {"elements": 1, "two_bytes": 2, "four_bytes": 4, "bits": 8 * itemsize}.get(mistake, itemsize)
    added = {"less": 1, "scores": 4 * m * n, "half_scores": 2 * m * n, "kilobyte": 1024}.get(mistake, 0)
    return (-(-size // {"kilobytes": 1024, "thousand": 1000}.get(mistake, 1)) + added,)


ENOUGH = 2**26  # bytes: more than any tile of a case asks for


def adapt(answer):
    """fits as a function that returns the smallest limit that fits."""

    @functools.wraps(answer)
    def smallest_limit(config, D, itemsize):
        def says(limit):
            result = answer(config, D, itemsize, limit)
            result = result.tolist() if isinstance(result, torch.Tensor) else result
            if result not in (True, False):  # so 1 and NumPy's bools are right too
                raise Wrong(f"with limit = {show(limit)} it returns {show(result)}, want True or False")
            return result

        at_nothing, at_enough = says(0), says(ENOUGH)
        if at_nothing and not at_enough:
            raise Wrong("the comparison is turned round: a tile fits where it needs at most the limit, and here none fits into 64 MB")
        if at_nothing or not at_enough:
            raise Wrong(f"the limit is not asked: the result is {bool(at_nothing)} with 0 bytes and with 64 MB")
        too_little, enough = 0, ENOUGH
        while enough - too_little > 1:
            middle = (too_little + enough) // 2
            too_little, enough = (too_little, middle) if says(middle) else (middle, enough)
        return (enough,)

    return smallest_limit


def inputs():
    def tile(block_m, block_n, num_stages, D, itemsize, otherwise="", fresh=False):
        on = f"block_m = {block_m}, block_n = {block_n}, num_stages = {num_stages}, D = {D}, itemsize = {itemsize}"
        config, on = tiles.TileConfig(block_m, block_n, 4, num_stages), "a random case" if fresh else on
        return case(config, D, itemsize, on=on, otherwise=otherwise, fresh=fresh)

    yield tile(128, 16, 3, 256, 2, "q's tile stays, num_stages tiles each of k and v stream")  # most mistakes give a number of their own
    yield tile(64, 32, 1, 64, 4, "with num_stages = 1 one tile each of k and v is there")
    yield tile(64, 32, 2, 80, 2, _PADDING)
    yield tile(64, 32, 2, 8, 2, _PADDING)
    for _ in range(6):
        block_m, block_n = (2 ** random.randint(4, 8) for _ in range(2))
        yield tile(block_m, block_n, random.randint(1, 5), random.randint(1, 256), random.choice((2, 4)), fresh=True)


EXERCISE = Exercise(
    id="8.2",
    task="Say whether a tile of the forward kernel fits into a block's shared memory: a tile of q, num_stages tiles each of k and v.",
    hints=(
        "How many rows does a block hold at once, over q, k and v? block_m of q once; how often block_n?",
        "(block_m + 2 · num_stages · block_n) rows of BLOCK_D elements of itemsize bytes. acc, s and p are in registers.",
        "BLOCK_D is D rounded up to a power of two of at least 16: fa_tutorial.tiles.padded_d(D). A tile of exactly the limit fits.",
    ),
    solution=fits,
    reasoning="q is loaded once, and k and v stream through num_stages buffers each, so that the loads of later tiles run while one is computed. "
    "That sum decides which tiles a card can try at all: what does not fit is left out before anything is compiled.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("the smallest limit",),
    exact=True,
    adapt=adapt,
)
