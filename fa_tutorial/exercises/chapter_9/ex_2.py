import random

from fa_tutorial.barriers import arrive, load, use, wait
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.ring_play import RIGHT, Ring
from fa_tutorial.exercises.running import adapting


def ring_roles(tiles, stages, full, empty):
    """(producer, consumer), which yield wait, arrive, load, use. full, empty: lists, by stage."""

    def producer():
        for i in range(tiles):
            stage, parity = i % stages, i // stages % 2
            yield wait(empty[stage], 1 - parity)
            yield load(i, stage)
            yield arrive(full[stage])

    def consumer():
        for i in range(tiles):
            stage, parity = i % stages, i // stages % 2
            yield wait(full[stage], parity)
            yield use(i, stage)
            yield arrive(empty[stage])

    return producer, consumer


MISTAKES = {
    "in the first round the producer's wait must pass at once: nobody has used the stage yet, so nobody releases it": ("1 - parity", "parity"),
    "the parities flip with every tile: a stage's phase number grows once a round": ("i // stages % 2", "i % 2"),
    "the producer does not wait for empty[stage] before it loads (is the wait yielded?)": (
        "yield wait(empty[stage], 1 - parity)", "pass"),
    "the producer waits for full[stage], at which it arrives itself: before a load it waits for empty[stage]": (
        "wait(empty[stage]", "wait(full[stage]"),
    "the consumer does not wait for full[stage] before it uses a tile (is the wait yielded?)": ("yield wait(full[stage], parity)", "pass"),
    "the consumer waits for the other parity, which a fresh full[stage] passes before anything is loaded": (
        "wait(full[stage], parity)", "wait(full[stage], 1 - parity)"),
    "the consumer releases a tile before it has used it, and the next may land on it": [
        ("            yield use(i, stage)\n", ""), ("yield arrive(empty[stage])\n", "yield arrive(empty[stage])\n            yield use(i, stage)\n")],
    "the producer arrives at full[stage] before it has loaded the tile": [
        ("            yield load(i, stage)\n", ""), ("yield arrive(full[stage])\n", "yield arrive(full[stage])\n            yield load(i, stage)\n")],
    "the producer does not arrive at full[stage] after it has loaded a tile, and whoever needs that tile waits for it": ("yield arrive(full[stage])", "pass"),
    "the consumer does not arrive at empty[stage] after it has used a tile, and whoever needs that stage waits for it": ("yield arrive(empty[stage])", "pass"),
}  # fmt: skip


def inputs():
    def ring(*args, **options):
        one = Ring(*args, **options)
        return case(one, on="times that differ from tile to tile" if one.seed else str(one), fresh=bool(one.seed))

    for tiles, stages in ((1, 1), (2, 1), (2, 2), (5, 2), (4, 3), (0, 2)):
        for load_units, use_units in ((1, 2), (2, 1)):
            yield ring(tiles, stages, load_units, (use_units,))
    yield ring(5, 2, 1, (1, 3))
    yield ring(5, 2, 2, (4, 1), is_consumer_first=True)
    for stages in range(1, 5):
        for _ in range(3):
            yield ring(4 * stages + 3, stages, uses=(1, 1), seed=random.randrange(1, 2**32), is_consumer_first=random.random() < 0.5)


EXERCISE = Exercise(
    task="Write ring_roles(tiles, stages, full, empty), which defines two generator functions without arguments, producer() and "
    "consumer(), and returns (producer, consumer) without calling them.",
    hints=(
        "Each role does four things for a tile: find its stage and parity, wait, work, arrive. For which barrier does each wait, and at "
        "which does it arrive?",
        "The producer waits for empty[stage], loads, and arrives at full[stage]. The consumer waits for full[stage], uses, and arrives at "
        "empty[stage].",
        "The stage and both parities are those of exercise 9.1, and ring_phase may be called here. The arrival comes right after the "
        "work, neither before it nor a tile later.",
    ),
    solution=ring_roles,
    reasoning="Two waits make it safe: none uses a tile before its load is over, and none loads over a tile that is in use. Nothing else "
    "waits, so the loads run ahead by as many tiles as there are stages. It cannot deadlock: of the tiles that are not finished the "
    "earliest one has all that it waits for.",
    inputs=inputs,
    truth=lambda ring: RIGHT,
    rule="each load and each use waits for what (9.6) says, and for nothing else, and every tile is released",
    mistakes=MISTAKES,
    exact=True,
    adapt=adapting(lambda answer, ring: ring.play(answer)),
)
