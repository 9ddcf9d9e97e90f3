import operator
import random

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting


def owner(rank, step, ranks):
    """The rank whose keys and values `rank` holds in step 0, 1, …, ranks − 1."""
    return (rank - step) % ranks


OWNER = "(rank - step) % ranks"
MISTAKES = {
    "that is where this rank's own keys are by then: they travel to rank + 1, so what arrives comes from rank − 1": (OWNER, "(rank + step) % ranks"),
    "before rank 0 comes the last rank: the result is a rank's number, 0 to ranks − 1": (OWNER, "rank - step"),
    "in step 0 each rank still holds its own keys: nothing has been sent yet": (OWNER, "(rank - step - 1) % ranks"),
    "the numbers repeat after `ranks`, which isn't always 4": (OWNER, "(rank - step) % 4"),
    "that rank is as far away as the keys have come, but a ring has no ends, and they come from one side": (OWNER, "abs(rank - step)"),
    "that is the rank from which this one receives: what it sends belongs to somebody further back": (OWNER, "(rank - 1) % ranks if step else rank"),
}  # fmt: skip


def truth(rank, step, ranks):
    holds = [*range(ranks)]
    for _ in range(step):
        holds = holds[-1:] + holds[:-1]  # all pass on at once
    return holds[rank]


@adapting
def adapt(answer, rank, step, ranks):
    held = answer(rank, step, ranks)
    if not hasattr(held, "__index__"):
        raise Wrong(f"returns a {type(held).__name__}, want an int, for it is a list's index")
    return operator.index(held)


def inputs():
    yield case(2, 0, 4, otherwise="in step 0 each rank holds its own keys")
    yield case(2, 1, 4, otherwise="after one step a rank holds what the rank before it held")
    yield case(0, 1, 4, otherwise="the rank before rank 0 is the last one")
    yield case(1, 3, 4, otherwise="after three steps they have come three ranks far")
    yield case(0, 0, 1, otherwise="one rank alone keeps its keys")
    yield case(1, 4, 6)
    yield case(4, 5, 6, otherwise="in the last step a rank holds the keys of the rank after it")
    for _ in range(10):
        ranks = random.randint(2, 30)
        yield case(random.randrange(ranks), random.randrange(ranks), ranks, on="random ranks", fresh=True)


EXERCISE = Exercise(
    task="Say whose keys and values a rank holds in a step.",
    hints=(
        "In each step all keys move one rank up. So where were the ones that are here now, `step` steps ago?",
        "They were `step` ranks further down. Below rank 0 comes rank ranks − 1, which Python's % does for you.",
    ),
    solution=owner,
    reasoning="Each step moves all keys from rank r to rank r + 1. So what is at `rank` after `step` steps started at rank − step, counted around the ring.",
    inputs=inputs,
    truth=truth,
    rule="the keys that are here have come `step` ranks far, each step from rank r to rank r + 1",
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
)
