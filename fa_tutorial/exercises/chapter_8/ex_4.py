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


MISTAKES = {
    "as_they_come": "that is chapter 5's order, whatever at_once is: the head changes fastest, not the row block",
    "exchanged": "head and row block are swapped: return (head, row_block)",
    "shortest_first": "the longest row block comes last: under the causal mask the last row block sees the most keys",
    "always_reversed": "the order is reversed without a mask, too: there all row blocks are equally long",
    "inverted": "the wrong heads are reversed: under the causal mask the last row block comes first, without it the first",
    "one_past": "the first row block is row_blocks, which doesn't exist: blocks count from 0",
    "all_heads": "all heads run side by side: only at_once of them do",
    "one_group": "there is one group only: after at_once · row_blocks programs the next group of heads begins",
    "first_group": "every group starts at head 0: group g starts at head g · at_once",
    "last_full": "the last group has only the heads that are left",
    "clamped": "the last group has only the heads that are left, so its programs count those alone: no head gets another's row blocks",
}
CONDITIONS = {"last_group": "the last group has fewer heads, when heads is not a multiple of at_once"}


def twin(pid, heads, row_blocks, at_once, is_causal, mistake=None):
    at_once = heads if mistake == "all_heads" else at_once
    group, within = divmod(pid, at_once * row_blocks)
    together = at_once if mistake in ("last_full", "clamped") else min(at_once, heads - group * at_once)
    head, row = within % together, within // together
    head += 0 if mistake == "first_group" else group * at_once
    head = min(head, heads - 1) if mistake == "clamped" else head
    if mistake == "one_group":
        row, head = divmod(pid, at_once)
    if mistake == "as_they_come":
        head, row = divmod(pid, row_blocks)
    is_reversed = {"shortest_first": False, "always_reversed": True, "inverted": not is_causal}.get(mistake, is_causal)
    if is_reversed:
        row = row_blocks - row - (mistake != "one_past")
    return (row, head) if mistake == "exchanged" else (head, row)


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
    task="Return the head and the row block of program `pid`, when `at_once` heads run side by side and a causal head starts with its longest row block.",
    conditions=CONDITIONS,
    hints=(
        "This is exercise 3.3 with other names: heads are its rows of tiles, row blocks its columns. How many programs does a full group of heads have?",
        "divmod(pid, at_once * row_blocks) gives the group and the place in it. The head changes fastest: place % (heads in the group).",
        "Under the mask count the row blocks from the end: row_blocks − 1 − row_block.",
    ),
    solution=rows_of_program,
    reasoning="Programs start roughly in the order of their numbers. With the head fastest, programs that run together share few heads' keys and values. "
    "With the longest first, the short ones fill the gaps at the end.",
    more="The package's kernel calls matmul.grouped_tile_device for the first half, chapter 3's order of tiles.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
)
