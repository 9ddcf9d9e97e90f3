"""Exercise 9.1, ring_phase."""

import random

from fa_tutorial.exercises.harness import Exercise, case


def ring_phase(i, stages):
    """(stage, full_parity, empty_parity) of the i-th tile of a ring."""
    round_of_ring, stage = divmod(i, stages)
    full_parity = round_of_ring % 2  # each round completes one phase of full[stage] and of empty[stage]
    empty_parity = 1 - full_parity  # of the round before; before round 0 parity 1 passes at once
    return stage, full_parity, empty_parity


PARTS = ("stage", "full_parity", "empty_parity")
PLACES = ((1, 2, 0), (1, 0, 2), (2, 1, 0), (2, 0, 1))  # the stage does not come first
_NO_BIT = "a parity is the last bit of a phase's number, 0 or 1"
MISTAKES = {
    "exchanged": "the two parities are exchanged: the consumer would pass a fresh full barrier before anything is loaded, and the producer wait "
    "forever",
    "empty_first": "the producer waits for phase 0 of empty, which is complete when a consumer has released the stage, and nothing has been loaded "
    "yet: deadlock. On a fresh barrier one of the parities passes at once",
    "full_first": "the consumer passes a fresh full barrier at once, before anything is loaded",
    "empty_early": "the producer waits for a stage that nobody has used yet: every stage of the first round is fresh",
    "every_tile": "the parities flip with every tile: stage 1 is as fresh as stage 0 was, so they flip once a round",
    "never": "the parities never flip: the second tile of a stage completes phase 1 of full",
    "full_never": "full_parity does not flip: in the second round the tile is there when phase 1 of full is complete",
    "empty_never": "empty_parity does not flip: in the second round the stage is free when phase 0 of empty is complete, by the release of the first "
    "tile",
    "once": "the parities flip once and stay: the third tile of a stage completes phase 2 of full",
    "full_once": "full_parity flips once and stays: the third tile of a stage completes phase 2 of full",
    "empty_once": "empty_parity is 1 in the first round alone: it flips with every round, as full_parity does",
    "of_two": "a ring of two is taken for granted: with 3 stages the first round has 3 tiles",
    "of_one": "with one stage every tile begins a round",
    "round_itself": _NO_BIT,
    "negative": _NO_BIT,
    "next_round": _NO_BIT,
    "stage_of_two": "the ring is taken for one of two stages",
    "round": "that is the round, how often the ring has been gone through; the stage is what is left",
    "number": "the tile's own number is no stage: after the last stage comes stage 0 again",
    "stays": "the stages are taken in turn, 0 … stages − 1, and then again from 0: here all later tiles go to the last stage",
    "from_one": "the first tile goes to stage 0",
    **{str(places): f"the parts come as ({', '.join(PARTS[place] for place in places)}), want ({', '.join(PARTS)})" for places in PLACES},
}


def twin(i, stages, mistake=None):
    turn = {"every_tile": i, "of_two": i // 2, "of_one": i // max(stages, 2), "never": 0, "once": min(i // stages, 1)}.get(
        mistake, i // stages
    )
    bit = turn % 2
    stage = {"stage_of_two": i % 2, "round": turn, "number": i, "stays": min(i, stages - 1), "from_one": (i + 1) % stages}.get(
        mistake, i % stages
    )
    full, empty = {
        "exchanged": (1 - bit, bit),
        "empty_first": (bit, bit),
        "full_first": (1 - bit, 1 - bit),
        "empty_early": (bit, 1 - (i + 1) // stages % 2),
        "full_never": (0, 1 - bit),
        "empty_never": (bit, 1),
        "full_once": (min(turn, 1), 1 - bit),
        "empty_once": (bit, int(turn == 0)),
        "round_itself": (turn, 1 - turn),
        "negative": (bit, bit - 1),
        "next_round": (turn, turn + 1),
    }.get(mistake, (bit, 1 - bit))
    right = stage, full, empty
    return next((tuple(right[place] for place in places) for places in PLACES if mistake == str(places)), right)


def inputs():
    fresh = "every stage of the first round is fresh"
    turn = "the stages are taken in turn, 0 … stages − 1, and then again from 0, and the parities flip once a round"
    yield case(0, 2, otherwise="the first tile's load completes phase 0 of full, and the producer must not wait")
    yield case(1, 2, otherwise=fresh)
    yield case(2, 2, otherwise="the second tile of stage 0: phase 1 of full, and phase 0 of empty")
    yield case(4, 2, otherwise="the third tile of stage 0: phase 2 of full, and phase 1 of empty")
    yield case(2, 3, otherwise=f"with 3 stages the first round has 3 tiles, and {turn}")
    yield case(3, 3, otherwise=f"with 3 stages the second round begins at tile 3, and {turn}")
    yield case(1, 1, otherwise="with one stage every tile begins a round")
    for stages in range(1, 5):
        for i in range(3 * stages + 1):
            yield case(i, stages, otherwise=turn)
    for _ in range(20):
        yield case(random.randint(0, 5_000), random.randint(1, 12), on="a random case", otherwise=turn, fresh=True)


EXERCISE = Exercise(
    id="9.1",
    task="Say which stage the i-th tile of a ring goes to, which parity its consumer waits for on full[stage], and which its producer waits for on "
    "empty[stage] before the load. The barriers are fresh at tile 0.",
    hints=(
        "Write down for 2 stages and tiles 0 to 5 which phase of full[stage] each load completes, and which phase of empty[stage] must be complete "
        "before it.",
        "The round is i // stages. In round r the load completes phase r of full[stage], and the stage is free when phase r − 1 of empty[stage] is "
        "complete.",
        "A parity is a phase's number modulo 2. Before round 0 the producer waits for phase −1, whose parity is 1, and on a fresh barrier that "
        "passes at once.",
    ),
    solution=ring_phase,
    reasoning="Every round completes one phase of each barrier, so consumer and producer count the same rounds. The producer is one phase behind: it "
    "waits for the release of the tile before. Its first wait passes at once without a special case, because a fresh barrier looks as if a phase of "
    "parity 1 were over.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=PARTS,
    exact=True,
)
