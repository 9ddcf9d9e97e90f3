"""Exercise 8.4, rows_of_program."""

import random

from fa_tutorial.exercises.harness import Exercise, case


def rows_of_program(pid, heads, row_blocks, at_once, is_causal):
    """(head, row_block) of program `pid`, with at_once heads side by side, causal ones longest first."""
    group, within = divmod(pid, at_once * row_blocks)
    together = min(at_once, heads - group * at_once)  # the last group may have fewer heads
    row_block = within // together
    if is_causal:
        row_block = row_blocks - 1 - row_block
    return group * at_once + within % together, row_block


HEAD, ROW, LEFT = "group * at_once + within % together", "within // together", "min(at_once, heads - group * at_once)"
GROUP, LAST = "divmod(pid, at_once * row_blocks)", "row_blocks - 1 - row_block"
MISTAKES = {
    "that is chapter 5's order, whatever at_once is: the head changes fastest, not the row block": [
        (HEAD, "pid // row_blocks"), (ROW, "pid % row_blocks")],
    "all heads run side by side: only at_once of them do": ("group, within", "at_once = heads\n    group, within"),
    "the longest row block comes last: under the causal mask the last row block sees the most keys": (LAST, "row_block"),
    "the order is reversed without a mask, too: there row blocks run from the first to the last": ("if is_causal:", "if True:"),
    ("the wrong heads are reversed: under the causal mask the last row block comes first, without it the "
    "first"): ("if is_causal", "if not is_causal"),
    "the last row block is row_blocks, which doesn't exist: blocks count from 0": (LAST, "row_blocks - row_block"),
    "head and row block are swapped: return (head, row_block)": (f"return {HEAD}, row_block", f"return row_block, {HEAD}"),
    "every group starts at head 0: group g starts at head g · at_once": (HEAD, "within % together"),
    "group g starts at head g: it starts at head g · at_once": (HEAD, "group + within % together"),
    "there is one group only: after at_once · row_blocks programs the next group of heads begins": (GROUP, "0, pid"),
    "the last group is taken for a full one: it has only the heads that are left": (LEFT, "at_once"),
    "the last group is taken for a full one, and its missing heads for the last head: it has only the heads that are left": [
        (LEFT, "at_once"), (f"return {HEAD}", f"return min({HEAD}, heads - 1)")],
}  # fmt: skip
CONDITIONS = {"last_group": "the last group has fewer heads, when heads is not a multiple of at_once"}


def truth(pid, heads, row_blocks, at_once, is_causal):
    rows = range(row_blocks)[:: -1 if is_causal else 1]
    groups = (range(first, min(first + at_once, heads)) for first in range(0, heads, at_once))
    return [(head, row) for group in groups for row in rows for head in group][pid]


def inputs():
    def order(heads, row_blocks, at_once, is_causal, otherwise="", **options):
        for pid in range(heads * row_blocks):
            yield case(pid, heads, row_blocks, at_once, is_causal, otherwise=otherwise, **options)

    yield from order(4, 3, 2, False, "two heads at once: program 0 has head 0, program 1 has head 1, both the first row block")
    yield from order(4, 3, 2, True, "causal: the same, from the last row block to the first")
    yield from order(3, 2, 2, False, edge="last_group")
    yield from order(5, 2, 3, True, edge="last_group")
    for _ in range(4):
        groups, row_blocks, at_once = (random.randint(1, high) for high in (3, 6, 4))
        for is_causal in (False, True):
            yield from order(groups * at_once, row_blocks, at_once, is_causal, on="a random grid of whole groups", fresh=True)


EXERCISE = Exercise(
    id="8.4",
    task=(
        "Return the head and the row block of program `pid`, when `at_once` heads run side by side and a causal head starts with its "
        "longest row block."
    ),
    conditions=CONDITIONS,
    hints=(
        (
            "This is exercise 3.4 with other names: heads are its rows of tiles, row blocks its columns. How many programs does a full "
            "group of heads have?"
        ),
        "divmod(pid, at_once * row_blocks) gives the group and the place in it. The head changes fastest: place % (heads in the group).",
        "Under the mask count the row blocks from the end: row_blocks − 1 − row_block.",
    ),
    solution=rows_of_program,
    reasoning="Programs start roughly in the order of their numbers. With the head fastest, programs that run together share few heads' "
    "keys and values. With the longest first, the short ones fill the gaps at the end.",
    more="The package's kernel calls matmul.grouped_tile_device for the first half, chapter 3's order of tiles.",
    inputs=inputs,
    truth=truth,
    rule="groups of at_once heads follow one another; in a group the head changes fastest, then the row block",
    mistakes=MISTAKES,
    exact=True,
)
