"""Exercise 9.6, meeting_consumer."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from fa_tutorial import barriers
from fa_tutorial.barriers import Action, Barrier, Event, arrive, ds_rows, use, wait, write
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.ring_play import RIGHT, compared, explained, played, timed, unreleased
from fa_tutorial.exercises.running import adapting
from fa_tutorial.source import source_of


def meeting_consumer(c, blocks, full, empty, ds_full):
    """What consumer c (0 or 1) does with all blocks of q. Each list holds two barriers, by stage."""
    for i in range(blocks):
        stage, parity = i % 2, i // 2 % 2
        yield wait(full[stage], parity)
        yield use(i, stage)  # s and dp
        yield write(i, ds_rows(stage, c))
        yield arrive(ds_full[stage])
        yield use(i, stage)  # dk
        yield arrive(empty[stage])
        yield wait(ds_full[stage], parity)
        yield use(i, ds_rows(stage, 1 - c))  # dq


STEPS = ("s and dp", "ds", "dk", "dq")
FULL, S, _, HAND_OVER, DK, RELEASE, MEET, DQ = source_of(meeting_consumer).splitlines(keepends=True)[4:]
MISTAKES = {
    "nobody arrives at ds_full[stage] after writing ds, and both consumers wait for it": (HAND_OVER, ""),
    "you do not wait for ds_full[stage] before dq, so it may read rows that the other consumer has not written": (MEET, ""),
    "s and dp start before their tiles are there: they need yield wait(full[stage], parity), with the parity of exercise 9.1": (FULL, ""),
    "you release q's stage before dk has read it: arrive at empty[stage] after dk": (DK + RELEASE, RELEASE + DK),
    "you release q's stage after dq, and dk is the last that reads it: the next load could start earlier": (RELEASE + MEET + DQ, f"{MEET}{DQ}\n{RELEASE}"),
    "you do not release q's stage, and the producer waits for it": (RELEASE, ""),
    "s and dp of the next block come before dq of this one: that is the next section's step, and here a block ends before the next begins": [
        (FULL + S, f"        if i == 0:\n    {FULL}    {S}"),
        (RELEASE, f"{RELEASE}        if i + 1 < blocks:\n            yield wait(full[1 - stage], (i + 1) // 2 % 2)\n            yield use(i + 1, 1 - stage)\n")],
    "you arrive at ds_full[stage] after dk: hand ds over as soon as it is written": (HAND_OVER + DK, DK + HAND_OVER),
    "dq comes before dk, and dk reads only your own ds: dk fills the time until the meeting": (DK + RELEASE + MEET + DQ, f"{MEET}{DQ}\n{DK}{RELEASE}"),
    "you wait for ds_full[stage] before dk, which reads only your own ds: dk fills the time until the meeting": (
        DK + RELEASE + MEET, MEET + DK + RELEASE),
}  # fmt: skip


@dataclass(frozen=True)
class Meeting:
    """How long a load and each consumer's steps take; seed: draw each duration instead."""

    blocks: int
    load: int = 1
    steps: tuple[int, int] = (2, 2)
    seed: int | None = None

    def __str__(self) -> str:
        times = f"loads of {self.load}, steps of {self.steps[0]} in consumer 0 and of {self.steps[1]} in consumer 1"
        return f"{self.blocks} block{'s' * (self.blocks != 1)}, {times}"

    def run(self, consumer: Callable) -> tuple[list[Event] | str, dict[str, list[Action | None]], list[Barrier], str]:
        """The timeline, or the deadlock; what each consumer yielded; empty, which says what was released; and the arrivals at ds_full."""
        full, empty = barriers.ring(2, 2)
        ds_full = [Barrier(2, f"ds_full[{stage}]") for stage in range(2)]
        yielded: dict[str, list[Action | None]] = {f"consumer {c}": [] for c in range(2)}
        roles = {"producer": barriers.ring_producer(self.blocks, full, empty)}
        roles |= {role: consumer(int(role[-1]), self.blocks, full, empty, ds_full) for role in yielded}
        timeline = played(
            {role: timed(role, actions, yielded.get(role, []), self.load, self.steps, self.seed) for role, actions in roles.items()}
        )
        arrivals = " and ".join(f"{one.phase * one.count + one.arrived} arrivals at {one.name}" for one in ds_full)
        return timeline, yielded, empty, f", after {arrivals}"

    def play(self, consumer: Callable) -> str:
        """What comes of a reader's consumer: RIGHT, or the first thing that goes wrong, with its cause."""
        timeline, yielded, empty, handed_over = self.run(consumer)
        right, in_order, _, _ = self.run(meeting_consumer)
        text = f"{timeline}{handed_over}" if isinstance(timeline, str) else compared(timeline, right, due_in_words)
        text = text or unreleased(empty, self.blocks)
        if waits := next((str(a) for actions in yielded.values() for a in actions if a and a.kind == "wait" and a.barrier in empty), ""):
            text = text and f"{text}, after a “{waits}”, where the producer waits"
        return explained(text, yielded, in_order)


def due_in_words(role, n, action):
    return f"“{action}”" if role == "producer" else f"{STEPS[n % 4]} of block {n // 4}"


def truth(meeting):
    return RIGHT


@adapting
def adapt(answer, meeting):
    return meeting.play(answer)


def inputs():
    for blocks in (1, 2, 3, 5, 0):
        for load_units, steps in ((1, (2, 2)), (1, (1, 4)), (1, (4, 1)), (12, (2, 1))):
            one = Meeting(blocks, load_units, steps)
            yield case(one, on=str(one))
    for _ in range(8):
        yield case(Meeting(9, seed=random.randrange(1, 2**32)), on="times that differ", fresh=True)


EXERCISE = Exercise(
    task=(
        "Write meeting_consumer(c, blocks, full, empty, ds_full), the generator of one consumer of the backward: q's ring and the meeting."
    ),
    hints=(
        "Each block has four steps that take time, s and dp, ds, dk, dq, and two waits and two arrivals around them. Which step needs "
        "which barrier?",
        "Wait for full[stage] before s and dp. Arrive at ds_full[stage] right after ds is written, at empty[stage] right after dk. Which "
        "wait is left?",
        "Before dq: wait(ds_full[stage], parity). Stage and parity are those of exercise 9.1 for two stages, the same for q's ring and for "
        "ds.",
    ),
    solution=meeting_consumer,
    reasoning="Only dq needs the other consumer, so only dq waits for it, and dk fills the time until then. ds needs no empty barrier: "
    "before a consumer writes a stage again it has met the other once more, in the block between, and the other arrived there after its "
    "dq of two blocks ago.",
    inputs=inputs,
    truth=truth,
    rule="each step waits for what it reads, and for nothing else",
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
)
