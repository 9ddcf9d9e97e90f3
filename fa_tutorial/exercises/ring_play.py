"""Plays the roles of a ring against a clock, for exercises 9.2, 9.7 and 9.8, and says what comes too early or too late."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from fa_tutorial import barriers
from fa_tutorial.barriers import Action, Barrier, Event
from fa_tutorial.exercises.running import Wrong, kind, show

ACTION_LIMIT = 2_000  # far more than any right answer needs
RIGHT = ""


@dataclass(frozen=True)
class Ring:
    """How long a load and each consumer's use take; seed: draw each duration instead."""

    tiles: int
    stages: int
    load: int = 1
    uses: tuple[int, ...] = (2,)
    seed: int | None = None
    is_consumer_first: bool = False

    def __str__(self) -> str:
        def many(number: int, what: str) -> str:
            return f"{number} {what}{'' if number == 1 else 's'}"

        times = f"loads of {many(self.load, 'unit')}, uses of {' and '.join(map(str, self.uses))}"
        return f"{many(self.tiles, 'tile')}, {many(self.stages, 'stage')}, {many(len(self.uses), 'consumer')}, {times}"

    def play(self, ring_roles: Callable) -> str:
        """What comes of a reader's ring_roles: RIGHT, or the first thing that goes wrong. Wrong for what no role does."""
        (timeline, left), (right, _) = self._run(ring_roles), self._run(right_roles)
        return timeline if isinstance(timeline, str) else compared(timeline, right, lambda role, n, action: f"“{action}”") or left

    def _run(self, ring_roles: Callable) -> tuple[list[Event] | str, str]:
        """The timeline, or the deadlock in words; and which stage isn't released."""
        full, empty = barriers.ring(self.stages, len(self.uses))
        producer, consumer = two_functions(ring_roles(self.tiles, self.stages, full, empty))
        actions = {"producer": producer()} | {f"consumer {c}" if c else "consumer": consumer() for c in range(len(self.uses))}
        roles = {role: timed(role, its, [], self.load, self.uses, self.seed) for role, its in actions.items()}
        return played(dict(reversed(roles.items())) if self.is_consumer_first else roles), unreleased(empty, self.tiles)


def right_roles(tiles: int, stages: int, full: list[Barrier], empty: list[Barrier]) -> tuple[Callable, Callable]:
    return lambda: barriers.ring_producer(tiles, full, empty), lambda: barriers.ring_consumer(tiles, full, empty)


def unreleased(empty: Sequence[Barrier], tiles: int) -> str:
    """RIGHT, or which stage of a ring that `tiles` tiles went through has not all arrivals when everybody has ended."""
    for stage, barrier in enumerate(empty):
        got, want = barrier.phase * barrier.count + barrier.arrived, barrier.count * len(range(stage, tiles, len(empty)))
        if got != want:
            return f"{barrier.name} has had {got} of {want} arrivals when all roles have ended"
    return RIGHT


def played(roles: Mapping[str, Iterator[Action]]) -> list[Event] | str:
    """The timeline of the roles, or the deadlock that they end in, in words."""
    try:
        return barriers.run(roles, ACTION_LIMIT)
    except barriers.TooManyActions:
        raise Wrong(f"the roles have not ended after {ACTION_LIMIT:,} actions: each goes through its tiles once") from None
    except barriers.Deadlock as deadlock:
        waits = (f"{the(role)} waits for {action.barrier.name}, parity {action.parity}" for role, action, *_ in deadlock.waiting)
        return f"a deadlock at time {deadlock.waiting[0].end} ({' and '.join(waits)})"


def checked(role: str, actions: Any, found: list[Action]) -> Iterator[Action]:
    """What a role yields, added to `found`; Wrong for what is no action, or waits for, or arrives at, what is no barrier."""
    if not isinstance(actions, Iterable):
        raise Wrong(f"{the(role)} yields nothing: each action must be yielded, as in yield use(i, stage)")
    for action in actions:
        found.append(action)
        if not isinstance(action, Action):
            raise Wrong(f"{the(role)} yields {show(action)}, want wait(…), arrive(…), load(…) or use(…)")
        if action.kind in ("wait", "arrive") and not isinstance(action.barrier, Barrier):
            what = "a list of barriers" if isinstance(action.barrier, list | tuple) else show(action.barrier)
            does = "waits for" if action.kind == "wait" else "arrives at"
            raise Wrong(f"{the(role)} {does} {what}: each stage has a barrier of its own, such as full[stage]")
        yield action


def timed(role: str, actions: Any, found: list[Action], load: int, uses: Sequence[int], seed: int | None) -> Iterator[Action]:
    """The actions of a role, which are added to `found`, with these durations, one of `uses` for each consumer; seed: draw each instead."""
    draw, units = random.Random(f"{seed} {role}"), load if role == "producer" else uses[int(role[-1]) if role[-1].isdigit() else 0]
    for action in checked(role, actions, found):
        if role != "producer" and action.kind == "arrive" and action.barrier.name.startswith("full"):
            raise Wrong(f"{the(role)} arrives at {action.barrier.name}, which expects the producer: it says that the tile is there")
        yield replace(action, units=units if seed is None else draw.randint(1, 6)) if action.units else action


def compared(timeline: Sequence[Event], right: Sequence[Event], due_in_words: Callable[[str, int, Action], str]) -> str:
    """RIGHT, or the first step of a timeline that differs from the right one's, in what is done or when. due_in_words: of a role's n-th."""
    pairs = []
    for role in dict.fromkeys(event.role for event in (*right, *timeline)):
        got, want = ([e for e in events if e.role == role and e.action.units] for events in (timeline, right))
        for n, (mine, due) in enumerate(zip_longest(got, want)):
            if mine is None or due is None:
                return f"{the(role)} ends before “{due.action}”" if due else f"{the(role)} goes on after its last step: “{mine.action}”"
            if str(mine.action) != str(due.action):
                return f"{the(role)} yields “{mine.action}”, where {due_in_words(role, n, due.action)} is due"
            pairs.append((mine, due))
    for mine, due in sorted(pairs, key=lambda pair: (pair[0].start >= pair[1].start, pair[0].start)):  # races first
        if mine.start != due.start:
            waits = [e for e in timeline if e.role == mine.role and e.action.kind == "wait" and e.end <= mine.start]
            waits = [e.action for e in waits if mine.start < due.start or e.start < e.end]
            after = f", after “{waits[-1]}”" if waits else ""
            why = "it could start at" if mine.start > due.start else "what it needs is there at"
            return f"{the(mine.role)}: “{mine.action}” at time {mine.start}{after}, and {why} {due.start}"
    return RIGHT


def the(role: str) -> str:
    return role if role[-1].isdigit() else f"the {role}"


def two_functions(result: Any) -> tuple[Callable, Callable]:
    if not isinstance(result, tuple | list) or len(result) != 2 or not all(map(callable, result)):
        raise Wrong(f"returns {kind(result)}: define two, producer and consumer, inside, and return the functions without calling them")
    return result[0], result[1]
