"""Exercise 9.2, ring_roles."""

import functools
import random

from fa_tutorial.barriers import arrive, load, use, wait
from fa_tutorial.exercises.harness import OTHERS, Exercise, case
from fa_tutorial.exercises.ring_play import Ring


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


_AT_ONCE = "and that passes at once: an earlier phase had it"
_SOON = "who arrives at a stage's barrier must do so as soon as it has finished with the stage"
MISTAKES = {
    "first_round": "in the first round the producer's wait must pass at once: nobody has used the stage yet, so nobody releases it",
    "full_other": f"the consumer waits for the other parity of full[stage], {_AT_ONCE}",
    "no_empty_wait": "the producer does not wait for empty[stage] before it loads (is the wait yielded?)",
    "no_full_wait": "the consumer does not wait for full[stage] before it uses a tile",
    "empty_after": "the producer waits for empty[stage] after it has loaded: the wait comes first",
    "full_after": "the consumer waits for full[stage] after it has used the tile: the wait comes first",
    "full_never": "the producer does not arrive at full[stage] after it has loaded a tile, and whoever needs that tile waits for it",
    "empty_never": "the consumer does not arrive at empty[stage] after it has used a tile, and whoever needs that stage waits for it",
    "full_early": "the producer arrives at full[stage] before it has loaded the tile",
    "empty_early": "the consumer arrives at empty[stage] before it has used the tile",
    "parity_never": "the parities never flip: in round 1 of the ring that is not the phase that the tile needs",
    "parity_every_tile": "the parities flip with every tile: a stage's phase number grows once a round",
    "full_parity_never": f"the consumer waits for parity 0 of full[stage] in every round, {_AT_ONCE}",
    "empty_parity_once": f"the producer waits for parity 0 of empty[stage] in every round but the first, {_AT_ONCE}",
    "lockstep": "the producer waits for the release of the tile before, and it needs empty[stage] of its own stage alone: no load runs ahead",
    "release_late": f"the consumer releases a stage a tile late: {_SOON}",
    "release_late_2": f"the consumer releases a stage a tile late where there are several: {_SOON}",
    "full_twice": "the producer arrives at full[stage] twice for one tile: once a tile",
    "empty_twice": "the consumer arrives at empty[stage] twice for one tile: once a tile",
    "empty_for_all": "each consumer arrives at empty[stage] for all of them: once a tile, because the barrier expects an arrival from each",
    "arrives_at_empty": "the producer arrives at empty[stage]: the producer arrives at full, and consumers arrive at empty",
    "waits_for_full": "the producer waits for full[stage], at which it is to arrive itself: before a load it needs empty[stage]",
    "next_stage": "the producer waits for empty of the next stage, and it needs empty[stage] of its own stage alone",
    "last_dropped": "the producer never loads the last tile: every tile from 0 to tiles − 1",
    "not_yielded": "the producer never loads: each action must be yielded, as in yield load(i, stage)",
    "wait_more": "the producer waits once more after its last load, and nothing comes",
    "late_full": "the producer arrives at full[stage] a tile late: as soon as a tile is loaded, its consumer may start",
}


def _flawed_roles(mistake):
    """ring_roles with one mistake."""

    def ring_roles(tiles, stages, full, empty):
        def parity(i):
            return {"parity_never": 0, "parity_every_tile": i % 2}.get(mistake, i // stages % 2)

        def producer():
            for i in range(tiles - (mistake == "last_dropped")):
                stage = i % stages
                if mistake == "lockstep" and i > 0:
                    yield wait(empty[(i - 1) % stages], parity(i - 1))
                needed = {"waits_for_full": wait(full[stage], parity(i)), "first_round": wait(empty[stage], parity(i)),
                          "next_stage": wait(empty[(i + 1) % stages], 1 - parity(i)),
                          "empty_parity_once": wait(empty[stage], int(i < stages))}.get(mistake, wait(empty[stage], 1 - parity(i)))  # fmt: skip
                yield from () if mistake in ("no_empty_wait", "empty_after") else (needed,)
                done = arrive(empty[stage] if mistake == "arrives_at_empty" else full[stage])
                yield from (done,) if mistake == "full_early" else ()
                yield from () if mistake == "not_yielded" else (load(i, stage),)
                yield from (needed,) if mistake == "empty_after" else ()
                if mistake == "late_full":
                    yield from (arrive(full[(i - 1) % stages]),) if i else ()
                else:
                    yield from [done] * {"full_never": 0, "full_early": 0, "full_twice": 2}.get(mistake, 1)
            if mistake == "wait_more":
                yield wait(empty[0], parity(tiles))

        def consumer():
            for i in range(tiles):
                stage = i % stages
                needed = wait(full[stage], {"full_other": 1 - parity(i), "full_parity_never": 0}.get(mistake, parity(i)))
                yield from () if mistake in ("no_full_wait", "full_after") else (needed,)
                yield from (arrive(empty[stage]),) if mistake == "empty_early" else ()
                yield use(i, stage)
                yield from (needed,) if mistake == "full_after" else ()
                if mistake == "release_late" or (mistake == "release_late_2" and stages > 1):
                    yield from (arrive(empty[(i - 1) % stages]),) if i else ()
                else:
                    more = {"empty_never": 0, "empty_early": 0, "empty_twice": 2, "empty_for_all": empty[stage].count}
                    yield from [arrive(empty[stage])] * more.get(mistake, 1)

        return producer, consumer

    return ring_roles


def twin(ring, mistake=None):
    return ring.play(_flawed_roles(mistake))


def adapt(answer):
    return functools.wraps(answer)(lambda ring: ring.play(answer))


def inputs():
    rule = "each load and each use waits for what (9.6) says, and for nothing else"

    def ring(*args, **options):
        one = Ring(*args, **options)
        return case(
            one,
            on="times that differ from tile to tile" if one.seed else str(one),
            otherwise=OTHERS if one.seed else rule,
            fresh=bool(one.seed),
        )

    for tiles, stages in ((1, 1), (1, 2), (2, 1), (2, 2), (3, 2), (5, 2), (4, 3), (0, 2)):
        for load_units, use_units in ((1, 2), (2, 1)):
            yield ring(tiles, stages, load_units, (use_units,))
    for uses in ((1, 3), (3, 1), (2, 2)):
        for tiles in (1, 2, 5):
            yield ring(tiles, 2, 1, uses)
    for stages in range(1, 5):
        for load_units, uses in ((1, (3,)), (3, (1,)), (2, (4, 1))):
            yield ring(2 * stages + 1, stages, load_units, uses, is_consumer_first=load_units == 2)
        for _ in range(3):
            yield ring(4 * stages + 3, stages, uses=(1, 1), seed=random.randrange(1, 2**32), is_consumer_first=random.random() < 0.5)


EXERCISE = Exercise(
    id="9.2",
    task="Write ring_roles(tiles, stages, full, empty), which defines two generator functions without arguments, producer() and consumer(), and returns "
    "(producer, consumer) without calling them.",
    hints=(
        "Each role does four things for a tile: find its stage and parity, wait, work, arrive. For which barrier does each wait, and at which does it "
        "arrive?",
        "The producer waits for empty[stage], loads, and arrives at full[stage]. The consumer waits for full[stage], uses, and arrives at empty[stage].",
        "The stage and both parities are those of exercise 9.1, and ring_phase may be called here. The arrival comes right after the work, neither "
        "before it nor a tile later.",
    ),
    solution=ring_roles,
    reasoning="Two waits make it safe: none uses a tile before its load is over, and none loads over a tile that is in use. Nothing else waits, so the "
    "loads run ahead by as many tiles as there are stages. It cannot deadlock: of the tiles that are not finished the earliest one has all that it "
    "waits for.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
)
