import random

from fa_tutorial.exercises.harness import Exercise, case


def ring_phase(i, stages):
    """(stage, full_parity, empty_parity) of the i-th tile of a ring."""
    round_of_ring, stage = divmod(i, stages)
    full_parity = round_of_ring % 2  # each round completes one phase of full[stage] and of empty[stage]
    empty_parity = 1 - full_parity  # of the round before; before round 0 parity 1 passes at once
    return stage, full_parity, empty_parity


FULL, EMPTY, RETURN = "full_parity = round_of_ring % 2", "empty_parity = 1 - full_parity", "return stage, full_parity, empty_parity"
MISTAKES = {
    "the producer waits for phase 0 of empty, which is complete when a consumer has released the stage, and nothing has been loaded yet: "
    "deadlock. On a fresh barrier one of the parities passes at once": (EMPTY, "empty_parity = full_parity"),
    "the two parities are exchanged, or the rounds counted from 1: the consumer would pass a fresh full barrier before anything is "
    "loaded, and the producer wait forever": (RETURN, "return stage, empty_parity, full_parity"),
    "the parities flip with every tile: stage 1 is as fresh as stage 0 was, so they flip once a round": (FULL, "full_parity = i % 2"),
    "the parities never flip: the second tile of a stage completes phase 1 of full": (FULL, "full_parity = 0"),
    "empty_parity does not flip: in the second round the stage is free when phase 0 of empty is complete, by the release of the first "
    "tile": (EMPTY, "empty_parity = 1"),
    "a parity is the last bit of a phase's number, 0 or 1, and here it is the round": (FULL, "full_parity = round_of_ring"),
}  # fmt: skip


def truth(i, stages):
    return i % stages, i // stages % 2, 1 - i // stages % 2


def inputs():
    turn = "the stages are taken in turn, 0 … stages − 1, and then again from 0, and the parities flip once a round"

    def rules(full, empty):
        return {"stage": turn, "full_parity": full, "empty_parity": empty}

    fresh = "every stage of the first round is fresh"
    yield case(0, 2, otherwise=rules("the first tile's load completes phase 0 of full", "the producer's first wait passes, at parity 1"))
    yield case(1, 2, otherwise=rules(fresh, fresh))
    yield case(2, 2, otherwise=rules("the second tile of stage 0: phase 1 of full", "the second tile of stage 0: phase 0 of empty"))
    yield case(4, 2, otherwise=rules("the third tile of stage 0: phase 2 of full", "the third tile of stage 0: phase 1 of empty"))
    for stages in (3, 1, 4):
        for i in range(3 * stages + 1):
            yield case(i, stages, otherwise=f"with {stages} stages a round has {stages} tiles, and {turn}")
    for _ in range(20):
        yield case(random.randint(0, 5_000), random.randint(1, 12), on="a random case", otherwise=turn, fresh=True)


EXERCISE = Exercise(
    task="Say which stage the i-th tile of a ring goes to, which parity its consumer waits for on full[stage], and which its producer "
    "waits for on empty[stage] before the load. The barriers are fresh at tile 0.",
    hints=(
        "Write down for 2 stages and tiles 0 to 5 which phase of full[stage] each load completes, and which phase of empty[stage] must be "
        "complete before it.",
        "The round is i // stages. In round r the load completes phase r of full[stage], and the stage is free when phase r − 1 of "
        "empty[stage] is complete.",
        "A parity is a phase's number modulo 2. Before round 0 the producer waits for phase −1, whose parity is 1, and on a fresh barrier "
        "that passes at once.",
    ),
    solution=ring_phase,
    reasoning="Every round completes one phase of each barrier, so consumer and producer count the same rounds. The producer is one phase "
    "behind: it waits for the release of the tile before. Its first wait passes at once without a special case, because a fresh barrier "
    "looks as if a phase of parity 1 were over.",
    inputs=inputs,
    truth=truth,
    rule="the stages are taken in turn, and the parities flip once a round",
    mistakes=MISTAKES,
    parts=("stage", "full_parity", "empty_parity"),
    exact=True,
)
