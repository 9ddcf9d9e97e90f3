"""Exercise 10.6, key_range."""

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator


def key_range(cu_q, cu_k):
    """(first, end), each (total_q,): each query's own sequence has keys first … end − 1."""
    lengths = cu_q.diff()
    return cu_k[:-1].repeat_interleave(lengths), cu_k[1:].repeat_interleave(lengths)


FIRST, END = "cu_k[:-1].repeat_interleave(lengths)", "cu_k[1:].repeat_interleave(lengths)"
OWN_KEYS = f"{END} - {FIRST}"
MISTAKES = {
    "first and end are swapped: return (first, end)": (f"{FIRST}, {END}", f"{END}, {FIRST}"),
    "these are numbers of queries: the bounds of the keys stand in cu_k": ("cu_k[", "cu_q["),
    "there is one entry a key: there must be one a query": ("cu_q.diff()", "cu_k.diff()"),
    "there is one entry a sequence: there must be one a query": (f"{FIRST}, {END}", "cu_k[:-1], cu_k[1:]"),
    "end is the last key: it is one past it": (END, f"{END} - 1"),
    "end is the number of keys: it is where they end in the packed tensor": (END, OWN_KEYS),
    "the keys are counted from their own sequence's start: number them in the packed tensor": (f"{FIRST}, {END}", f"0 * {FIRST}, {OWN_KEYS}"),
    "every query gets all keys: each has its own sequence's": (f"{FIRST}, {END}", f"0 * {FIRST}, 0 * {END} + cu_k[-1]"),
    "a sequence's first query gets the bounds of the sequence before: cu_q[s] belongs to sequence s": (
        f"{FIRST}, {END}", ("(at := (torch.searchsorted(cu_q, torch.arange(int(cu_q[-1])).int()) - 1).clamp(min=0), cu_k[at], cu_k[at + "
                           "1])[1:]")),
    "an empty sequence of queries isn't counted: those after it get the wrong keys": (
        "cu_q.diff()", "torch.nn.functional.pad(cu_q.unique().diff(), (0, len(cu_q) - len(cu_q.unique())))"),
}  # fmt: skip

CONDITIONS = {"empty": "a sequence may have no queries, or no keys: then first = end"}


def truth(cu_q, cu_k):
    own = [s for s, length in enumerate(cu_q.diff().tolist()) for _ in range(length)]  # each query's sequence
    return cu_k[own].double(), cu_k[1:][own].double()


def packed(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


def inputs():
    yield case(packed((2, 1)), packed((2, 1)))
    yield case(packed((2, 3, 1)), packed((4, 1, 2)), otherwise="queries and keys of a sequence may differ in number")
    draw = generator()
    yield case(*(packed(torch.randint(1, 9, (5,), generator=draw).tolist()) for _ in range(2)), on="a random packing", fresh=True)
    yield case(packed((2, 0, 1)), packed((1, 2, 3)), edge="empty")
    yield case(packed((1, 2)), packed((0, 2)), edge="empty")


EXERCISE = Exercise(
    id="10.6",
    task="Find the keys of each query's own sequence in packed tensors.",
    conditions=CONDITIONS,
    hints=(
        "Sequence s has queries cu_q[s] … cu_q[s + 1] − 1 and keys cu_k[s] … cu_k[s + 1] − 1. How many queries share its bounds?",
        "cu_q.diff() holds the lengths. torch.repeat_interleave(x, lengths) repeats each entry of x as often as its length says.",
    ),
    solution=key_range,
    reasoning="All queries of sequence s have the bounds cu_k[s] and cu_k[s + 1]. Repeating each bound as often as its sequence has "
    "queries lays them out in the queries' order, and an empty sequence repeats it zero times.",
    more=(
        "The package's packed_rows_kernel finds each query's sequence by bisection, since the lengths are on the GPU and the CPU "
        "shouldn't wait for them."
    ),
    inputs=inputs,
    truth=truth,
    rule="query i sees the keys of its own sequence s, cu_k[s] … cu_k[s + 1] − 1, and no others",
    mistakes=MISTAKES,
    parts=("first", "end"),
)
