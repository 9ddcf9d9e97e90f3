"""Exercise 9.4, longest_first."""

import functools
import math
import random
from collections.abc import Iterator

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong


def longest_first(S_q, S_k, block_m, block_n, heads, is_causal):
    """[(head, row_block, key_blocks), …], those with the most key blocks first."""
    work = []
    for row_block in reversed(range(-(-S_q // block_m))):  # a later block never sees fewer keys (4.6)
        keys = S_k
        if is_causal:
            end = min((row_block + 1) * block_m, S_q)
            keys = max(0, end + S_k - S_q)  # of the block's last row
        work += [(head, row_block, -(-keys // block_n)) for head in range(heads)]
    return work


ROW_BLOCKS, KEY_BLOCKS, KEYS = "-(-S_q // block_m)", "-(-keys // block_n)", "max(0, end + S_k - S_q)"
END = "min((row_block + 1) * block_m, S_q)"
MISTAKES = {
    "the shortest come first: the longest that is left at the end keeps one multiprocessor busy while the others wait": (
        f"reversed(range({ROW_BLOCKS}))", f"range({ROW_BLOCKS})"),
    "each head is in order by itself, and the next head begins with its longest again: the order is across all heads": (
        "return work", "return sorted(work, key=lambda entry: entry[0])"),
    "the number of key blocks is rounded down: a ragged block has keys too": (KEY_BLOCKS, "keys // block_n"),
    "the ragged last row block is left out: the number of row blocks is rounded up": (ROW_BLOCKS, "S_q // block_m"),
    "is_causal changes nothing: a row block visits the key blocks up to its last row's last key": ("if is_causal:", "if False:"),
    "the mask starts at the top left: with S_q ≠ S_k the last row sees the last key": (KEYS, "end"),
    "a row block's first row is asked: its last row sees the most": (END, "row_block * block_m + 1"),
    "the diagonal is not counted: query i sees key i + S_k − S_q too": (KEYS, "max(0, end - 1 + S_k - S_q)"),
    "a ragged last row block is taken for a whole one: its last row is S_q − 1": (END, "(row_block + 1) * block_m"),
    "the row blocks that see nothing are left out: they have 0 key blocks, and somebody must still write their o = 0": (
        "return work", "return [entry for entry in work if entry[2]]"),
    "block_m and block_n are exchanged: a row block has block_m rows, a key block block_n keys": [
        (ROW_BLOCKS, "-(-S_q // block_n)"), (END, "min((row_block + 1) * block_n, S_q)"), (KEY_BLOCKS, "-(-keys // block_m)")],
    "head and row_block are exchanged: an entry is (head, row_block, key_blocks)": ("(head, row_block, ", "(row_block, head, "),
}  # fmt: skip


def in_order(work):
    """What is compared: all entries, in an order of their own, and the key blocks in the order of the work; ties may come in any order."""
    return tuple(sorted(work)), tuple(entry[2] for entry in work)


def truth(S_q, S_k, block_m, block_n, heads, is_causal):
    last_rows = [min(first + block_m, S_q) - 1 for first in range(0, S_q, block_m)]
    blocks = [math.ceil((max(0, row + 1 + S_k - S_q) if is_causal else S_k) / block_n) for row in last_rows]
    work = [(head, row_block, count) for head in range(heads) for row_block, count in enumerate(blocks)]
    return in_order(sorted(work, key=lambda entry: -entry[2]))


def adapt(answer):
    @functools.wraps(answer)
    def entries_and_order(*args):
        work = answer(*args)
        if not isinstance(work, list | tuple | Iterator):
            what = "None (is the return missing?)" if work is None else f"a {type(work).__name__}"
            raise Wrong(f"returns {what}, want a list of (head, row_block, key_blocks)")
        return in_order([_entry(entry) for entry in work])

    return entries_and_order


def _entry(entry):
    if not isinstance(entry, list | tuple) or len(entry) != 3:
        parts = f"of {len(entry)} parts" if isinstance(entry, list | tuple) else "no tuple"
        raise Wrong(f"an entry is {parts}, want (head, row_block, key_blocks)")
    try:
        whole = tuple(int(part) for part in entry)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        whole = None
    if whole is None or any(number != part for number, part in zip(whole, entry, strict=True)):
        raise Wrong("an entry is not of integers, want (head, row_block, key_blocks)")
    return whole


def inputs():
    blocks = "key_blocks is the number of key blocks that any row of the block sees a key of"
    order = "from the most key blocks to the fewest, across all heads"
    yield case(4, 4, 2, 2, 1, True, otherwise=f"{blocks}, {order}")
    yield case(1, 1, 1, 1, 1, True, otherwise=blocks)
    yield case(4, 4, 2, 2, 2, True, otherwise=f"a longer one comes after a shorter one, or a head is missing: {order}")
    yield case(4, 6, 2, 2, 1, False, otherwise=blocks)
    yield case(2, 3, 2, 2, 1, False, otherwise=blocks)
    yield case(3, 3, 1, 2, 1, True, otherwise=blocks)
    yield case(2, 2, 2, 1, 1, True, otherwise=blocks)
    yield case(3, 3, 2, 1, 1, True, otherwise=blocks)
    yield case(2, 5, 1, 1, 1, True, otherwise=blocks)
    yield case(5, 2, 1, 1, 1, True, otherwise="row blocks that see nothing are listed too, with 0 key blocks")
    yield case(8, 8, 4, 2, 1, True, otherwise=blocks)
    yield case(3, 0, 2, 2, 2, False, otherwise="with no key at all every row block has 0 key blocks")
    yield case(0, 3, 2, 2, 2, True, otherwise="with no query there is no work")
    for _ in range(30):
        sizes = [random.randint(1, high) for high in (90, 90, 20, 20)]
        for is_causal in (False, True):
            yield case(*sizes, random.randint(1, 4), is_causal, on="a random case", fresh=True)


EXERCISE = Exercise(
    id="9.4",
    task="List the work of a persistent kernel, (head, row_block, key_blocks), from the most key blocks to the fewest across all heads; "
    "ties in any order.",
    hints=(
        (
            "Which row block of a causal head visits the most key blocks, and which the fewest? Where do the other heads' equally long "
            "ones go?"
        ),
        (
            "The last row of a row block is min((row_block + 1) · block_m, S_q) − 1, and row i sees i + 1 + S_k − S_q keys, none if that "
            "is negative."
        ),
        "fa_tutorial.algorithm.causal_tiles(row_block, block_m, block_n, S_q, S_k)[1] is a causal row block's number of key blocks. Go "
        "through the row blocks from the last to the first, and for each through the heads.",
    ),
    solution=longest_first,
    reasoning="Where the next piece of work goes to whoever is free, as in an ordinary grid or by a counter, what is begun last should be "
    "short, or one multiprocessor works on it while all others are done; where pieces are dealt out beforehand, longest first need not "
    "help. The key blocks never fall from one row block to the next, so counting row blocks backwards sorts them, and a kernel can do it "
    "with a division: row_block = row_blocks − 1 − n // heads, head = n % heads.",
    inputs=inputs,
    truth=truth,
    rule="each head has its row blocks, each with the number of key blocks that it visits, the most first",
    mistakes=MISTAKES,
    parts=("entries", "order of key_blocks"),
    exact=True,
    adapt=adapt,
)
