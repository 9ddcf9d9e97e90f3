import random
from collections.abc import Iterator

from fa_tutorial import barriers
from fa_tutorial.barriers import Barrier, arrive, ds_rows, use, wait, write
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.ring_play import RIGHT, compared, played, timed, unreleased
from fa_tutorial.exercises.running import Wrong, adapting, kind


def meeting_consumer(c, blocks, full, empty, ds_full):
    """Consumer c, which yields wait, arrive, use, write. full, empty, ds_full: lists, by stage."""
    for i in range(blocks):
        stage, parity = i % 2, i // 2 % 2
        yield wait(full[stage], parity)
        yield use(i, stage)  # s, dp and dv
        yield write(i, ds_rows(stage, c))
        yield arrive(ds_full[stage])
        yield use(i, stage)  # dk
        yield arrive(empty[stage])
        yield wait(ds_full[stage], parity)  # the meeting
        yield use(i, ds_rows(stage, 1 - c))  # dq


WRITE, TELL = "        yield write(i, ds_rows(stage, c))\n", "        yield arrive(ds_full[stage])\n"
DK, RELEASE = "        yield use(i, stage)  # dk\n", "        yield arrive(empty[stage])\n"
MEET, DQ = "        yield wait(ds_full[stage], parity)  # the meeting\n", "        yield use(i, ds_rows(stage, 1 - c))  # dq"
MISTAKES = {
    "dq reads the other consumer's rows before the meeting: nothing says that they are there": (MEET, ""),
    "a consumer arrives at ds_full before it has written its rows": (WRITE + TELL, TELL + WRITE),
    "dk waits for the meeting: it reads this consumer's own ds_t from registers, so it needs nothing of the other": (
        DK + RELEASE + MEET, MEET + DK + RELEASE),
    "q and do are released before dk has read q": (DK + RELEASE, RELEASE + DK),
    "q and do are released after dq, which reads ds: dk is the last that reads them": (RELEASE + MEET + DQ, f"{MEET}{DQ}\n{RELEASE}"),
    "dq is used with the rows that it waits for, the other's: its own are there already": ("1 - c", "c"),
    "nobody releases q and do, so the producer cannot load a third block": (RELEASE, ""),
    "a consumer does not arrive at ds_full[stage], where the other waits for it": (TELL, ""),
    "the parities flip with every block: a stage's phase number grows once a round": ("i // 2 % 2", "i % 2"),
    "a block's ds is written in the stage of the block before, whose ds the other consumer may still read": (
        "ds_rows(stage, ", "ds_rows(0, ", 2),
}  # fmt: skip
STEPS = "s, dp and dv", "ds", "dk", "dq"


def run(meeting_consumer, blocks, load_units, uses, seed, is_second_first):
    """The timeline, or a deadlock in words; and which barrier has not the arrivals that it expects."""
    (full, empty), ds_full = barriers.ring(2, 2), [Barrier(2, f"ds_full[{stage}]") for stage in range(2)]
    roles = {}
    for c in range(2):
        actions = meeting_consumer(c, blocks, full, empty, ds_full)
        if not isinstance(actions, Iterator):
            raise Wrong(f"returns {kind(actions)}, want a generator, which yields each action")
        roles[f"consumer {c}"] = timed(f"consumer {c}", actions, [], load_units, uses, seed)
    roles["producer"] = barriers.ring_producer(blocks, full, empty, (load_units,))
    timeline = played(dict(reversed(roles.items())) if is_second_first else roles)
    return timeline, unreleased(empty, blocks) or unreleased(ds_full, blocks)


def due_in_words(role, n, action):
    return f"“{action}”" if role == "producer" else f"“{action}” ({STEPS[n % len(STEPS)]})"


@adapting
def adapt(answer, *meeting):
    timeline, left = run(answer, *meeting)
    return timeline if isinstance(timeline, str) else compared(timeline, run(meeting_consumer, *meeting)[0], due_in_words) or left


def inputs():
    for blocks in (1, 2, 5, 0):
        for load_units, uses in ((1, (2, 2)), (1, (1, 4)), (1, (4, 1)), (5, (1, 2))):
            on = f"{blocks} block{'s' * (blocks != 1)}, loads of {load_units}, steps of {uses[0]} and {uses[1]}"
            for is_second_first in (False, True):
                yield case(blocks, load_units, uses, None, is_second_first, on=on)
    for _ in range(8):
        yield case(7, 1, (2, 2), random.randrange(1, 2**32), False, on="times that differ", fresh=True)


EXERCISE = Exercise(
    task="Write meeting_consumer(c, blocks, full, empty, ds_full), a generator function, which yields all that consumer c, 0 or 1, does.",
    hints=(
        "A block has four steps: s, dp and dv; ds is written; dk; dq. Which barrier does each have to wait for, and after which is one to "
        "arrive at?",
        "ds_full is a barrier of two arrivals: each consumer says there that its rows are written, and waits there for the other's. Which of "
        "the two steps dk and dq can run before the other has come?",
        "Wait for full, use, write, arrive at ds_full, use for dk, arrive at empty, wait for ds_full, use the other's rows for dq. Both "
        "waits have the same parity: q, do and ds go round two stages together.",
    ),
    solution=meeting_consumer,
    reasoning="dk is between the arrival and the wait, so a consumer that comes first works meanwhile. ds needs no empty barrier: a consumer "
    "writes a stage again two blocks later, and in the block between it has met the other, which was done with its dq by then.",
    inputs=inputs,
    truth=lambda *meeting: RIGHT,
    rule="ds is read once the other has written it, and each step starts as early as that allows",
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
)
