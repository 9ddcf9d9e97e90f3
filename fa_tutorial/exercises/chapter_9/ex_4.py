"""Exercise 9.4, longest_first."""

import functools
import random
from collections.abc import Iterator

from fa_tutorial.exercises.harness import OTHERS, Exercise, case
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


PLACES = ((0, 2, 1), (1, 2, 0), (2, 0, 1), (2, 1, 0))  # key_blocks does not come last
_PARTS = ("head", "row_block", "key_blocks")
_EARLIER = "each head is in order by itself, and the next head begins with its longest again: the order is across all heads"
MISTAKES = {
    "blocks_exchanged": "block_m and block_n are exchanged: a row block has block_m rows, a key block block_n keys",
    "rows_down": "the ragged last row block is left out: the number of row blocks is rounded up",
    "one_head": "the other heads are missing: every head has its own row blocks",
    "no_empty": "the row blocks that see nothing are left out: they have 0 key blocks, and somebody must still write their o = 0",
    "twice": "the first entry is there twice",
    "unmasked": "is_causal changes nothing: a row block visits the key blocks up to its last row's last key",
    "inverted": "is_causal changes nothing, or is turned round: with it a row block visits the key blocks up to its last row's last key",
    "masked": "the mask is used where there is none: with is_causal = False every row block visits all key blocks",
    "down": "the number of key blocks is rounded down: a ragged block has keys too",
    "down_masked": "the number of key blocks is rounded down under the mask: a ragged block has keys too",
    "first_row": "a row block's first row is asked: its last row sees the most",
    "seen_whole": "only the key blocks that are seen whole are counted: those on the diagonal are visited too",
    "top_left": "the mask starts at the top left: with S_q ≠ S_k the last row sees the last key",
    "strict": "the diagonal is not counted: query i sees key i + S_k − S_q too",
    "whole_rows": "a ragged last row block is taken for a whole one: its last row is S_q − 1",
    "negative": "a row block that sees nothing visits 0 key blocks, never less",
    "masked_blocks": "end − full is counted, the key blocks that need the mask: those that are seen whole are visited too",
    "number": "row block r is given r + 1 key blocks: it has as many where S_q = S_k and block_m = block_n, and not in general",
    "keys": "keys are counted, not blocks of block_n keys",
    "S_q_twice": "S_q is used for both lengths: the keys are S_k",
    "exchanged": "head and row_block are exchanged: an entry is (head, row_block, key_blocks)",
    **{str(places): f"the parts come as ({', '.join(_PARTS[place] for place in places)}), want ({', '.join(_PARTS)})" for places in PLACES},
    "shortest_first": "the shortest come first: the longest that is left at the end keeps one multiprocessor busy while the others wait",
    "not_sorted": "the shortest come first within each head, as the row blocks come: sort all of them by key_blocks, the most first",
    "by_head": _EARLIER,
}


def _keys(row_block, S_q, S_k, block_m, block_n, is_causal, mistake):
    """How many keys of a row block count."""
    first, last, offset = row_block * block_m, min((row_block + 1) * block_m, S_q), S_k - S_q
    is_causal = {"unmasked": False, "inverted": not is_causal, "masked": True}.get(mistake, is_causal)
    if not is_causal:
        return S_q if mistake == "S_q_twice" else S_k
    keys = {"first_row": first + 1 + offset, "seen_whole": (first + 1 + offset) // block_n * block_n, "top_left": min(last, S_k),
            "strict": last - 1 + offset, "whole_rows": first + block_m + offset, "S_q_twice": last,
            "number": (row_block + 1) * block_n,
            "masked_blocks": max(0, last + offset) - max(0, first + 1 + offset) // block_n * block_n}.get(mistake, last + offset)  # fmt: skip
    return keys if mistake == "negative" else max(0, keys)


def in_order(work):
    """What is compared: all entries, in an order of their own, and the key blocks in the order of the work; ties may come in any order."""
    return tuple(sorted(work)), tuple(entry[2] for entry in work)


def twin(S_q, S_k, block_m, block_n, heads, is_causal, mistake=None):
    if mistake == "blocks_exchanged":
        block_m, block_n = block_n, block_m
    work = []
    for head in range(1 if mistake == "one_head" else heads):
        for row_block in range(S_q // block_m if mistake == "rows_down" else -(-S_q // block_m)):
            keys = _keys(row_block, S_q, S_k, block_m, block_n, is_causal, mistake)
            is_down = mistake == "down" or (mistake == "down_masked" and is_causal)
            key_blocks = keys if mistake == "keys" else keys // block_n if is_down else -(-keys // block_n)
            work += [(head, row_block, key_blocks)] * (key_blocks != 0 or mistake != "no_empty")
    work += work[:1] if mistake == "twice" else []
    if mistake != "not_sorted":
        work.sort(key=lambda entry: {"shortest_first": entry[2], "by_head": (entry[0], -entry[2])}.get(mistake, -entry[2]))
    places = {str(places): places for places in PLACES}.get(mistake, (1, 0, 2) if mistake == "exchanged" else (0, 1, 2))
    return in_order([tuple(entry[place] for place in places) for entry in work])


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
            yield case(*sizes, random.randint(1, 4), is_causal, on="a random case", otherwise=OTHERS, fresh=True)


EXERCISE = Exercise(
    id="9.4",
    task="List the work of a persistent kernel, (head, row_block, key_blocks), from the most key blocks to the fewest across all heads; ties in any "
    "order.",
    hints=(
        "Which row block of a causal head visits the most key blocks, and which the fewest? Where do the other heads' equally long ones go?",
        "The last row of a row block is min((row_block + 1) · block_m, S_q) − 1, and row i sees i + 1 + S_k − S_q keys, none if that is negative.",
        "fa_tutorial.algorithm.causal_tiles(row_block, block_m, block_n, S_q, S_k)[1] is a causal row block's number of key blocks. Go through the "
        "row blocks from the last to the first, and for each through the heads.",
    ),
    solution=longest_first,
    reasoning="Where the next piece of work goes to whoever is free, as in an ordinary grid or by a counter, what is begun last should be short, or "
    "one multiprocessor works on it while all others are done; where pieces are dealt out beforehand, longest first need not help. The key blocks "
    "never fall from one row block to the next, so counting row blocks backwards sorts them, and a kernel can do it with a division: "
    "row_block = row_blocks − 1 − n // heads, head = n % heads.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("entries", "order of key_blocks"),
    exact=True,
    adapt=adapt,
)
