"""Plays the roles of a ring against a clock, for exercises 9.2 and 9.7, and says what comes too early or too late."""

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


class Verdict(str):
    """What comes of a play, in words. cause: what to tell of it, "" where it isn't known."""

    cause = ""


def verdict(text: str, cause: str) -> Verdict:
    found = Verdict(text)
    found.cause = cause
    return found


@dataclass(frozen=True)
class Ring:
    """How long a load and each consumer's use take; seed: draw each duration instead."""

    tiles: int
    stages: int
    load: int = 1
    uses: tuple[int, ...] = (2,)
    seed: int | None = None
    is_consumer_first: bool = False

    @property
    def consumers(self) -> list[str]:
        return ["consumer"] if len(self.uses) == 1 else [f"consumer {c}" for c in range(len(self.uses))]

    def __str__(self) -> str:
        def many(number: int, what: str) -> str:
            return f"{number} {what}{'' if number == 1 else 's'}"

        times = f"loads of {many(self.load, 'unit')}, uses of {' and '.join(map(str, self.uses))}"
        return f"{many(self.tiles, 'tile')}, {many(self.stages, 'stage')}, {many(len(self.uses), 'consumer')}, {times}"

    def units(self, role: str, tile: int) -> int:
        if self.seed is not None:
            return random.Random(f"{self.seed} {role} {tile}").randint(1, 6)
        return self.load if role == "producer" else self.uses[self.consumers.index(role)]

    def starts(self) -> dict[tuple[str, int], int]:
        """(role, tile) -> when its load or use starts, if each is as early as the ring allows (9.6)."""
        starts: dict[tuple[str, int], int] = {}

        def end(role: str, tile: int) -> int:
            return starts[role, tile] + self.units(role, tile) if tile >= 0 else 0

        for i in range(self.tiles):
            starts["producer", i] = max(end("producer", i - 1), *(end(role, i - self.stages) for role in self.consumers))
            for role in self.consumers:
                starts[role, i] = max(end(role, i - 1), end("producer", i))
        return starts

    def play(self, ring_roles: Callable) -> str:
        """What comes of a reader's ring_roles: RIGHT, or the first thing that goes wrong. Wrong for what no role does."""
        full, empty = barriers.ring(self.stages, len(self.uses))
        producer, consumer = two_functions(ring_roles(self.tiles, self.stages, full, empty))
        yielded: dict[str, list[Action | None]] = {role: [] for role in ("producer", *self.consumers)}
        roles = {role: self._timed(role, (producer if role == "producer" else consumer)(), found) for role, found in yielded.items()}
        timeline = played(dict(reversed(roles.items())) if self.is_consumer_first else roles)
        text = timeline if isinstance(timeline, str) else self._verdict(timeline)
        right = {role: barriers.ring_consumer(self.tiles, full, empty) for role in self.consumers}
        right["producer"] = barriers.ring_producer(self.tiles, full, empty)
        return explained(text or unreleased(empty, self.tiles), yielded, right)

    def _timed(self, role: str, actions: Any, found: list[Action | None]) -> Iterator[Action]:
        """The actions of a role, with this ring's durations; Wrong for what no role of this kind does."""
        own, other = ("load", "use") if role == "producer" else ("use", "load")
        for action in checked(role, actions, found):
            if action.kind == other:
                raise Wrong(f"{the(role)} yields {other}(…): the producer loads, and consumers use")
            if action.kind == own and action.tile not in range(self.tiles):
                raise Wrong(f"{the(role)} yields {action}: the tiles are 0 … tiles − 1")
            if action.kind == own and action.stage != action.tile % self.stages:
                turn = "the tiles go round the ring, stage 0, 1, … and 0 again, or fewer loads run ahead than could"
                raise Wrong(f"{the(role)} yields {action}: {turn}")
            yield replace(action, units=self.units(role, action.tile)) if action.kind == own else action

    def _verdict(self, timeline: Sequence[Event]) -> str:
        starts, work = self.starts(), [event for event in timeline if event.action.tile is not None]
        done = [(event.role, event.action.tile) for event in work]
        for role, tile in starts:
            if (times := done.count((role, tile))) != 1:
                own = "load" if role == "producer" else "use"
                return f"{times or 'no'} {own}{'s' * (times > 1)} of tile {tile} by {the(role)}"
        for event in work:  # races first: what comes too late is often their consequence
            role, action, start, _ = event
            before, by = (action.tile - self.stages, "use") if role == "producer" else (action.tile, "load")
            ends = (other.end for other in work if (other.action.kind, other.action.tile) == (by, before))
            ready = max(ends, default=0)
            if start < ready:
                own = [other for other in timeline if other.role == role]
                place = next(place for place, other in enumerate(own) if other is event)
                when = f"at time {start}, {f'right after “{own[place - 1].action}”' if place else 'its first action'}"
                why = f"where tile {before} is needed until time {ready}" if role == "producer" else f"and its load ends at time {ready}"
                return f"a {action.kind} of tile {action.tile} by {the(role)} {when}, {why}"
        for role, action, start, _ in work:
            if start > starts[role, action.tile]:
                late = f"at time {start}, and it could start at {starts[role, action.tile]}"
                return f"a {action.kind} of tile {action.tile} by {the(role)} {late}"
        return RIGHT


def unreleased(empty: Sequence[Barrier], tiles: int) -> str:
    """RIGHT, or which stage of a ring that `tiles` tiles went through has not all arrivals when everybody has ended."""
    for stage, barrier in enumerate(empty):
        got, want = barrier.phase * barrier.count + barrier.arrived, barrier.count * len(range(stage, tiles, len(empty)))
        if got != want:
            return f"{barrier.name} has had {got} of {want} arrivals when all roles have ended"
    return RIGHT


def explained(text: str, yielded: Mapping[str, Sequence[Action | None]], right: Mapping[str, Iterable[Action | None]]) -> str:
    """What comes of a play, with the first slip of a role as its cause. yielded: what each role did, as `checked` finds it."""
    slips = (slip(role, got, [*filter(None, right[role])]) for role, got in yielded.items())
    return text and verdict(text, next(filter(None, slips), ""))


def waiting_last(got: Sequence[Action | None]) -> list[Action | None]:
    """What the producer did, with its waits for empty stages moved down to the next load, where the protocol has them: a wait that comes
    earlier, or with no load to follow, is no slip.
    """
    found: list[Action | None] = []
    waits: list[Action] = []
    for action in got:
        if action is not None and action.kind == "wait" and action.barrier.name.startswith("empty"):
            waits += [action] if str(action) not in map(str, waits) else []
            continue
        if action is not None and action.kind == "load":
            found += waits
            waits = []
        found.append(action)
    return found + waits if None not in found else found


def slip(role: str, got: Sequence[Action | None], right: Sequence[Action]) -> str:
    """The first action that a role does in another order than the protocol's, in words; "" where there is none. A wait of the first round
    may be missing, as it passes at once. got: as `checked` finds it.
    """
    place = 0
    for action in waiting_last(got) if role == "producer" else got:
        n = next(n for n, one in enumerate(got) if one is action)
        if action is None:
            if place == len(right):
                return ""
            why = ": what comes next in a kernel takes the same ring, so each stage is released" if right[place].kind == "arrive" else ""
            return f"{the(role)} ends, where “{right[place]}” is due{why}"
        while place < len(right) and _passes_at_once(right[place], right[:place]) and not _at_one(action, right[place]):
            place += 1
        when = f"right after “{got[n - 1]}”" if n else "at its start"
        if place == len(right):
            return f"{when}, {the(role)} yields “{action}”, where it should end"
        if str(right[place]) != str(action):
            asked = " (is the wait yielded?)" if right[place].kind == "wait" != action.kind else ""
            if action.kind == right[place].kind == "wait" and _at_one(action, right[place]):
                is_stage = action.barrier.name.endswith("]")
                asked = f": {'a stage' if is_stage else action.barrier.name}'s parity flips "
                asked += "once a round of its ring" if is_stage else "with every work tile"
            return f"{when}, {the(role)} yields “{action}”, where “{right[place]}” is due{asked}"
        place += 1
    return ""  # it stands at a wait


def _at_one(action: Action, other: Action) -> bool:
    return action.barrier is not None and other.barrier is not None and action.barrier.name == other.barrier.name


def _passes_at_once(action: Action, before: Sequence[Action]) -> bool:
    return action.kind == "wait" and action.parity == 1 and all(other.barrier is not action.barrier for other in before)


def played(roles: Mapping[str, Iterator[Action]]) -> list[Event] | str:
    """The timeline of the roles, or the deadlock that they end in, in words."""
    try:
        return barriers.run(roles, ACTION_LIMIT)
    except barriers.TooManyActions:
        raise Wrong(f"the roles have not ended after {ACTION_LIMIT:,} actions: each goes through its tiles once") from None
    except barriers.Deadlock as deadlock:
        waits = (f"{the(role)} waits for {action.barrier.name}, parity {action.parity}" for role, action, *_ in deadlock.waiting)
        return f"a deadlock at time {deadlock.waiting[0].end} ({' and '.join(waits)})"


def checked(role: str, actions: Any, found: list[Action | None]) -> Iterator[Action]:
    """What a role yields; Wrong for what is no action, or waits for, or arrives at, what is no barrier.

    Each action is added to `found` when it is yielded, and None at the end.
    """
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
    found.append(None)


def timed(role: str, actions: Any, found: list[Action | None], load: int, uses: Sequence[int], seed: int | None) -> Iterator[Action]:
    """The actions of a role, which are added to `found`, with these durations, one of `uses` for each consumer; seed: draw each instead."""
    draw, units = random.Random(f"{seed} {role}"), load if role == "producer" else uses[int(role[-1])]
    for action in checked(role, actions, found):
        if role != "producer" and action.kind == "arrive" and action.barrier.name.startswith("full"):
            raise Wrong(f"{role} arrives at {action.barrier.name}, which expects the producer: it says that the tile is there")
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
            waits = [e.action for e in timeline if e.role == mine.role and e.action.kind == "wait" and e.start < e.end <= mine.start]
            after = f", after “{waits[-1]}”" if waits and mine.start > due.start else ""
            why = "it could start at" if mine.start > due.start else "what it needs is there at"
            return f"{the(mine.role)}: “{mine.action}” at time {mine.start}{after}, and {why} {due.start}"
    return RIGHT


def the(role: str) -> str:
    return role if role[-1].isdigit() else f"the {role}"


def two_functions(result: Any) -> tuple[Callable, Callable]:
    if isinstance(result, Iterator):
        raise Wrong("is one generator: define two, producer and consumer, inside, and return both")
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise Wrong(f"returns {kind(result)}, want (producer, consumer)")
    if any(isinstance(part, Iterator) for part in result):
        raise Wrong("returns generators: return the functions without calling them: each consumer plays its own")
    if not all(map(callable, result)):
        raise Wrong("want (producer, consumer), two generator functions")
    return result[0], result[1]
