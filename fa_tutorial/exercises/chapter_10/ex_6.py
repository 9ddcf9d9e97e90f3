"""Exercise 10.6, key_range."""

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator


def key_range(cu_q, cu_k):
    """(first, end), each (total_q,): each query's own sequence has keys first … end − 1."""
    lengths = cu_q.diff()
    return cu_k[:-1].repeat_interleave(lengths), cu_k[1:].repeat_interleave(lengths)


MISTAKES = {
    "exchanged": "first and end are swapped: return (first, end)",
    "queries": "these are numbers of queries: the bounds of the keys stand in cu_k",
    "by_keys": "there is one entry a key: there must be one a query",
    "last": "end is the last key: it is one past it",
    "length": "end is the number of keys: it is where they end in the packed tensor",
    "local": "the keys are counted from their own sequence's start: number them in the packed tensor",
    "all": "every query gets all keys: each has its own sequence's",
    "not_repeated": "there is one entry a sequence: there must be one a query",
    "next": "the bounds are those of the next sequence",
    "boundary": "a sequence's first query gets the bounds of the sequence before: cu_q[s] belongs to sequence s",
    "empty_lost": "an empty sequence of queries isn't counted: those after it get the wrong keys",
}

CONDITIONS = {"empty": "a sequence may have no queries, or no keys: then first = end"}


def twin(cu_q, cu_k, mistake=None):
    bounds_q, bounds_k, total = cu_q.tolist(), cu_k.tolist(), int(cu_q[-1])
    sequences = len(bounds_q) - 1
    if mistake == "not_repeated":
        return cu_k[:-1].double(), cu_k[1:].double()
    if mistake == "by_keys":
        bounds_q, total = bounds_k, bounds_k[-1]
    if mistake == "empty_lost":
        bounds_q = sorted(set(bounds_q))
    behind = 1 if mistake == "boundary" else 0
    own = [max(sum(bound + behind <= i for bound in bounds_q) - 1, 0) for i in range(total)]
    if mistake == "next":
        own = [min(s + 1, sequences - 1) for s in own]
    if mistake == "queries":
        bounds_k = bounds_q
    first, end = [bounds_k[s] for s in own], [bounds_k[s + 1] for s in own]
    lengths = [y - x for x, y in zip(first, end, strict=True)]
    first, end = {
        "exchanged": (end, first),
        "last": (first, [x - 1 for x in end]),
        "length": (first, lengths),
        "local": ([0] * total, lengths),
        "all": ([0] * total, [bounds_k[-1]] * total),
    }.get(mistake, (first, end))
    return torch.tensor(first, dtype=torch.float64), torch.tensor(end, dtype=torch.float64)


def packed(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


def inputs():
    yield case(packed((2, 1)), packed((2, 1)), otherwise="query i sees the keys of its own sequence, and no others")
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
    reasoning="All queries of sequence s have the bounds cu_k[s] and cu_k[s + 1]. Repeating each bound as often as its sequence has queries lays them out "
    "in the queries' order, and an empty sequence repeats it zero times.",
    more="The package's packed_rows_kernel finds each query's sequence by bisection, since the lengths are on the GPU and the CPU shouldn't wait for them.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("first", "end"),
)
