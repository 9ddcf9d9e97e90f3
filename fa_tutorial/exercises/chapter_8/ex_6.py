import heapq
import itertools
import random

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting, show


def launch_order(heads, row_blocks, at_once):
    """[(head, row_block), ...]: the programs of a causal grid in the order in which they start."""
    order = []
    for first in range(0, heads, at_once):
        group = range(first, min(first + at_once, heads))  # the last group may have fewer heads
        for row_block in reversed(range(row_blocks)):  # the longest first
            order += [(head, row_block) for head in group]
    return order


GROUPS, GROUP, LONGEST = "range(0, heads, at_once)", "range(first, min(first + at_once, heads))", "reversed(range(row_blocks))"
ONE_BY_ONE = [(GROUPS, "range(heads)"), (GROUP, "range(first, first + 1)")]
MISTAKES = {
    "that is chapter 5's order: the longest row block of the last head starts last, and then one SM works alone": [
        *ONE_BY_ONE, (LONGEST, "range(row_blocks)")],
    "the shortest row blocks start first: under the causal mask the last one sees the most keys, so start with it": (LONGEST, "range(row_blocks)"),
    "one head after another leaves the last head alone at the end, with its longest row blocks: more heads may be open": ONE_BY_ONE,
    "all heads are open: L2 holds only at_once of them": [(GROUPS, "range(0, heads, heads)"), (GROUP, "range(heads)")],
    "the last group is taken for a full one: it has only the heads that are left": (GROUP, "range(first, first + at_once)"),
    "the last heads run one after another, where heads isn't a multiple of at_once: they must run side by side, too": (
        "    return order", """    rest = heads // at_once * at_once * row_blocks
    return order[:rest] + sorted(order[rest:], key=lambda program: program[0])"""),
    "fewer heads are open than L2 holds: at_once of them may be": ("    order = []", "    order, at_once = [], max(1, at_once - 1)"),
}  # fmt: skip
CONDITIONS = {"last_group": "the last heads run side by side, too, when heads isn't a multiple of at_once"}


RULES = {
    "wrong programs": "every row block of every head is in the list once, as (head, row_block)",
    "open heads": "a head is open from its first program in the list to its last, and L2 holds only at_once",
    "time": "some SMs have nothing to do at the end, while others work: of each at_once heads, the longest row blocks start first, the shortest last",
}


def open_heads(order):
    """The most heads that are open at the same time, each from its first program to its last."""
    last = {head: place for place, (head, _) in enumerate(order)}
    first = {head: place for place, (head, _) in reversed(list(enumerate(order)))}
    return max((sum(first[head] <= place <= last[head] for head in first) for place in range(len(order))), default=0)


def time_of(order, sms):
    """When all are done, if each SM takes the next program as soon as it is free, and row block n takes n + 1."""
    free = [0] * sms
    for _, row_block in order:
        heapq.heapreplace(free, free[0] + row_block + 1)
    return max(free)


def truth(heads, row_blocks, at_once, sms):
    return 0, at_once, -(-heads * row_blocks * (row_blocks + 1) // 2 // sms)  # the work divided by the SMs, rounded up


@adapting
def adapt(answer, heads, row_blocks, at_once, sms):
    """What an order is judged by: programs that aren't in it once, heads open, the time; as good as needed is good."""
    order, wanted = answer(heads, row_blocks, at_once), truth(heads, row_blocks, at_once, sms)
    try:
        order = [(head, row_block) for head, row_block in order]
    except (TypeError, ValueError):
        raise Wrong(f"returns {show(order)}, want a list of pairs (head, row_block)") from None
    wrong = len(set(itertools.product(range(heads), range(row_blocks))) ^ set(order)) + len(order) - len(set(order))
    return (wrong, *wanted[1:]) if wrong else (0, max(wanted[1], open_heads(order)), max(wanted[2], time_of(order, sms)))


GRIDS = [  # heads, row blocks, at_once, SMs: those that the order in groups does in that time
    (groups * at_once, row_blocks, at_once, sms)
    for groups, row_blocks, at_once, sms in itertools.product((1, 2, 3), range(2, 7), (2, 3, 4), range(2, 9))
    if time_of(launch_order(groups * at_once, row_blocks, at_once), sms) == truth(groups * at_once, row_blocks, at_once, sms)[2]
]


def inputs():
    for sizes in ((2, 4, 2, 4), (4, 4, 2, 8), (4, 4, 4, 8), (6, 4, 2, 6), (5, 4, 3, 5), (5, 6, 3, 6), (7, 5, 4, 9)):
        heads, row_blocks, at_once, sms = sizes
        on = f"{heads} heads of {row_blocks} row blocks, {at_once} at once, on {sms} SMs"
        yield case(*sizes, on=on, otherwise=RULES, edge="last_group" if heads % at_once else "")
    for sizes in random.sample(GRIDS, 4):
        yield case(*sizes, on="a random grid of whole groups", otherwise=RULES, fresh=True)


EXERCISE = Exercise(
    task="Decide in which order the programs of a causal grid start, so that at most at_once heads are open and no SM works alone at the end.",
    conditions=CONDITIONS,
    hints=(
        "Which programs should start last, so that all SMs are done at about the same time? And which first?",
        "Take at_once heads at a time. Of such a group, all may be open, and the order among its programs is free.",
        "In a group, start the last row block of each head, then the one before it of each, and so on. Then comes the next group.",
    ),
    solution=launch_order,
    reasoning="Programs start roughly in the order of their numbers. With a group's longest row blocks first, short ones fill the gaps at the "
    "end, and programs that run together share few heads' keys and values.",
    more="The package's kernel computes its pair from its number, by matmul.grouped_tile_device, chapter 3's order of tiles.",
    inputs=inputs,
    truth=truth,
    rule="all programs once, at most at_once heads open, and all done as early as the work allows",
    mistakes=MISTAKES,
    parts=("wrong programs", "open heads", "time"),
    exact=True,
    adapt=adapt,
)
