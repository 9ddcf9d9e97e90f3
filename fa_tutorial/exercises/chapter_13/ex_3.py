from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting, show


def chunks_of(rank, ranks):
    """(one, other): the numbers of the two chunks, of 2 · ranks, that make up this rank's shard."""
    return rank, 2 * ranks - 1 - rank


PAIR = "rank, 2 * ranks - 1 - rank"
WORK = "; each rank's work, in chunks × chunks"
MISTAKES = {
    f"two neighbours: the last rank's queries see nearly all keys, and the first one's hardly any{WORK}": (PAIR, "2 * rank, 2 * rank + 1"),
    f"the two chunks lie half the sequence apart for every rank, so the later ranks still have more{WORK}": (PAIR, "rank, rank + ranks"),
    f"both chunks come earlier for a later rank: one must come earlier and one later{WORK}": (PAIR, "ranks - 1 - rank, 2 * ranks - 1 - rank"),
}  # fmt: skip


def truth(ranks):
    return (2 * ranks,) * ranks  # chunk c sees c whole chunks and half of its own, so all 2 · ranks of them see 2 · ranks²


@adapting
def adapt(answer, ranks):
    """The work of every rank, by the chunks that the answer gives it. Wrong where the chunks aren't shared out once each."""
    given = [answer(rank, ranks) for rank in range(ranks)]
    for rank, chunks in enumerate(given):
        if not (isinstance(chunks, tuple | list) and len(chunks) == 2 and all(isinstance(chunk, int) for chunk in chunks)):
            raise Wrong(f"chunks_of({rank}, {ranks}) gives {show(chunks)}, want a tuple or a list of two whole numbers")
    dealt = sorted(chunk for chunks in given for chunk in chunks)
    if dealt != [*range(2 * ranks)]:
        raise Wrong(f"chunks {', '.join(map(str, dealt))} are dealt out: each of 0 to {2 * ranks - 1} must go to one rank")
    return tuple(sum(chunks) + 1 for chunks in given)


def inputs():
    for ranks in (2, 3, 4, 7, 1):
        yield case(ranks, on=f"{ranks} rank{'s' * (ranks > 1)}")


def note(answer):
    return "" if sorted(answer(0, 2)) == [0, 3] else "as fair as (13.4), the course's order, and another one"


EXERCISE = Exercise(
    task="Give each rank two chunks, so that all ranks have the same work under the causal mask.",
    hints=(
        "Chunk c's queries see c whole chunks of keys, and half of their own. So which pairs of chunks have the same sum?",
        "The first chunk has the least work and the last one the most: put them together. Then the second and the last but one.",
    ),
    solution=chunks_of,
    reasoning="Chunk c has work c + ½. The numbers of the two chunks always add up to 2 · ranks − 1, so every rank has the work 2 · ranks.",
    inputs=inputs,
    truth=truth,
    rule=f"every rank has the same work where the numbers of its two chunks have the same sum{WORK}",
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
    note=note,
)
