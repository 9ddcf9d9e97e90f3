"""Chapter 9: mbarriers simulated in plain Python, so that a ring of stages can deadlock, and be mended, without a GPU.

Shows on a clock that two barriers a stage, waited for by parity, are enough: nothing is read before it has come or
overwritten while it is read, and loads run ahead by as many tiles as there are stages. The barrier is Hopper's mbarrier
(PTX ISA, mbarrier.init, mbarrier.arrive and mbarrier.test_wait.parity): it expects `count` arrivals, and when the last
one has come its phase is complete, the next phase begins, and the count starts anew. Phases are numbered 0, 1, 2, …; a
wait names one by its parity alone, the number's last bit. A role (a producer warp, a consumer warpgroup) is a generator
that yields actions; `run` plays several of them against one clock.

Left out: bytes. On Hopper the producer announces a load's bytes at full (expect_tx) and goes on, and the phase is
complete when the arrivals and the bytes have come; here `load` takes the producer's own time, and it arrives
afterwards. As loads come one after another over the same wires, both give the same times. Also left out: memory order
(an arrive releases, a wait acquires), the cost of the instructions themselves, the threads of a role, and a waiter that
polls too rarely to see a phase which passes while it looks away: here a wait is let through in the moment its phase
ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAX_ACTIONS = 100_000


class Barrier:
    """An mbarrier that expects `count` arrivals a phase. phase: the number of the current one; arrived: the arrivals it
    has."""

    def __init__(self, count: int, name: str = "barrier"):
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        self.count, self.name = count, name
        self.phase = self.arrived = 0

    def arrive(self) -> None:
        """One arrival; the last that is expected completes the phase."""
        self.arrived += 1
        if self.arrived == self.count:
            self.phase, self.arrived = self.phase + 1, 0

    def test_wait(self, parity: int) -> bool:
        """True where a wait for `parity` passes (9.5): the current phase has the other one, so the last phase of this
        parity is complete.

        A fresh barrier is in phase 0: parity 0 waits for its arrivals, and parity 1 passes at once.
        """
        return self.phase % 2 != check_parity(parity)

    def __repr__(self) -> str:
        return f"{self.name}: phase {self.phase}, {self.arrived} of {self.count} arrivals"


def check_parity(parity: int) -> int:
    """Return `parity`; ValueError unless it is 0 or 1."""
    if parity not in (0, 1):
        raise ValueError(f"a parity is 0 or 1, the last bit of a phase's number; got {parity!r}")
    return int(parity)


def ring(stages: int, consumers: int = 1) -> tuple[list[Barrier], list[Barrier]]:
    """(full, empty): two fresh barriers for each stage of a ring.

    full[stage] expects the producer: its tile is loaded. empty[stage] expects every consumer: none needs the tile any
    longer.
    """
    if stages < 1:
        raise ValueError(f"stages must be at least 1, got {stages}")
    return [Barrier(1, f"full[{i}]") for i in range(stages)], [Barrier(consumers, f"empty[{i}]") for i in range(stages)]


# ---------------------------------------------------------------- what a role yields


@dataclass(frozen=True)
class Action:
    """What a role does next. kind: "wait", "arrive", "load", "use" or "work"; units: how long it takes, 0 for a wait
    that passes."""

    kind: str
    barrier: Barrier | None = None
    parity: int | None = None
    tile: int | None = None
    stage: int | str | None = None
    units: int = 0
    name: str = ""

    def __post_init__(self):
        if self.kind in ("load", "use", "work") and self.units < 1:
            raise ValueError(f"units must be at least 1, got {self.units!r}")

    def __str__(self) -> str:
        if self.kind == "wait":
            return f"wait for {self.barrier.name}, parity {self.parity}"
        if self.kind == "arrive":
            return f"arrive at {self.barrier.name}"
        if self.kind == "work":
            return self.name
        return f"{self.verb} tile {self.tile} {'into' if self.kind == 'load' else 'in'} stage {self.stage}"

    @property
    def verb(self) -> str:
        """Its kind; a "load" into a stage with a name is a `write`."""
        return "write" if self.kind == "load" and isinstance(self.stage, str) else self.kind


def wait(barrier: Barrier, parity: int) -> Action:
    """Wait until the phase of this parity is complete: mbarrier.wait."""
    return Action("wait", barrier=barrier, parity=check_parity(parity))


def arrive(barrier: Barrier) -> Action:
    """Arrive once: mbarrier.arrive."""
    return Action("arrive", barrier=barrier)


def load(tile: int, stage: int | str, units: int = 1) -> Action:
    """Load tile number `tile` into a stage, which holds it from the end of the `units` on. A stage has a number, or a
    name as ds_rows gives it."""
    return Action("load", tile=tile, stage=stage, units=units)


def write(tile: int, stage: str, units: int = 1) -> Action:
    """Write tile number `tile` from registers into a stage with a name: on the clock, what `load` is."""
    return load(tile, stage, units)


def use(tile: int, stage: int | str, units: int = 2) -> Action:
    """Multiply with the tile that a stage holds, for `units` of time."""
    return Action("use", tile=tile, stage=stage, units=units)


def work(name: str, units: int = 1) -> Action:
    """Anything else that takes time: a softmax, say."""
    return Action("work", name=name, units=units)


def ds_rows(stage: int, consumer: int) -> str:
    """The name of one consumer's rows of ds in one stage, for write and use: where the backward's consumers meet."""
    return f"ds[{stage}], rows of consumer {consumer}"


# ---------------------------------------------------------------- playing roles


class Event(NamedTuple):
    """One action of a role, from `start` to `end`; both are the same for an arrive, and for a wait that passes at
    once."""

    role: str
    action: Action
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.start:>3} to {self.end:<3} {self.role}: {self.action}"


class Deadlock(RuntimeError):
    """Some role waits, and none can act. waiting: a wait for each that does; timeline: what came before, those waits at
    its end."""

    def __init__(self, waiting: Sequence[Event], timeline: list[Event]):
        self.waiting, self.timeline = tuple(waiting), timeline
        words = []
        for role, action, _, _ in waiting:  # a blocked wait waits for the current phase
            phase, arrived = action.barrier.phase, f"{action.barrier.arrived} of {action.barrier.count} arrivals"
            words.append(
                f"{role} waits for phase {phase} of {action.barrier.name} (parity {phase % 2}), which has {arrived}"
            )
        super().__init__(f"deadlock at time {waiting[0].end}: {'; '.join(words)}")


class TooManyActions(RuntimeError):
    """The roles did not end within the actions they were given."""


class _Role:
    """A role as it is played. time: when it acts next, or since when it waits; blocked: the wait that has not
    passed."""

    def __init__(self, name: str, actions: Iterable[Action]):
        self.name, self.actions = name, iter(actions)
        self.time, self.blocked, self.is_over = 0, None, False

    def act(self) -> Iterator[Event]:
        """Take the next action: an event for what is done with it, none for a wait that blocks and at the end."""
        action = next(self.actions, None)
        if action is None:
            self.is_over = True
            return
        if not isinstance(action, Action):
            raise TypeError(f"{self.name} yields {action!r}, want wait(…), arrive(…), load(…), use(…) or work(…)")
        if action.kind == "wait" and not action.barrier.test_wait(action.parity):
            self.blocked = action
            return
        if action.kind == "arrive":
            action.barrier.arrive()
        start, self.time = self.time, self.time + action.units
        yield Event(self.name, action, start, self.time)

    def waited(self, now: int) -> Event:
        """The event for the wait that blocks, up to `now`."""
        return Event(self.name, self.blocked, self.time, now)

    def wake(self, now: int) -> Iterator[Event]:
        """An event for a wait that `now` passes."""
        if self.blocked is not None and self.blocked.barrier.test_wait(self.blocked.parity):
            yield self.waited(now)
            self.time, self.blocked = now, None


def run(roles: Mapping[str, Iterable[Action]], max_actions: int = MAX_ACTIONS) -> list[Event]:
    """Play `roles` (name -> generator of actions) until all have ended: their timeline, by start, then in the order of
    `roles`.

    The role with the earliest time acts first, and of those with the same time the first of `roles`: the same roles
    give the same timeline. The barriers keep their phases: take a fresh `ring` for each run. Raises Deadlock,
    TooManyActions, and TypeError for what is no action.
    """
    playing = [_Role(name, actions) for name, actions in roles.items()]
    order = list(roles)
    timeline: list[Event] = []
    now = 0
    for _ in range(max_actions):
        ready = [role for role in playing if role.blocked is None and not role.is_over]
        if not ready:
            waiting = [role.waited(now) for role in playing if role.blocked is not None]
            # stable within a role
            timeline = sorted([*timeline, *waiting], key=lambda event: (event.start, order.index(event.role)))
            if waiting:
                raise Deadlock(waiting, timeline)
            return timeline
        role = min(ready, key=lambda role: role.time)
        now = role.time
        timeline += role.act()
        for other in playing:
            timeline += other.wake(now)
    raise TooManyActions(f"no end after {max_actions:,} actions: does a role's loop end?")


# ---------------------------------------------------------------- the finished ring

USE = 2  # units of time that a consumer needs for a tile


def ring_producer(tiles: int, full: Sequence[Barrier], empty: Sequence[Barrier],
                  loads: Sequence[int] = (1,)) -> Iterator[Action]:  # fmt: skip
    """The producer of a ring. loads: units of time of each load, in turn."""
    for i in range(tiles):
        stage, parity = i % len(full), i // len(full) % 2
        yield wait(empty[stage], 1 - parity)
        yield load(i, stage, loads[i % len(loads)])
        yield arrive(full[stage])


def ring_consumer(tiles: int, full: Sequence[Barrier], empty: Sequence[Barrier], units: int = USE) -> Iterator[Action]:
    """A consumer of a ring, which needs `units` of time for a tile."""
    for i in range(tiles):
        stage, parity = i % len(full), i // len(full) % 2
        yield wait(full[stage], parity)
        yield use(i, stage, units)
        yield arrive(empty[stage])


# ---------------------------------------------------------------- reading a timeline


def races(timeline: Iterable[Event]) -> list[str]:
    """What went wrong with the stages' contents, in words: a tile that is used and is not there, or is overwritten
    meanwhile.

    Nothing is found where the barriers do their part. A race may also hide: other times for loads and uses can bring it
    out.
    """
    events = list(timeline)
    loads = [event for event in events if event.action.kind == "load"]
    found = []
    for role, action, start, end in (event for event in events if event.action.kind == "use"):
        there = [event for event in loads if event.action.stage == action.stage]
        before = [event for event in there if event.end <= start]
        held = f"tile {before[-1].action.tile}" if before else "nothing"
        where = f"stage {action.stage}"
        if held != f"tile {action.tile}":
            found.append(f"time {start}: {role} uses tile {action.tile} in {where}, which holds {held}")
        found += [
            (
                f"time {event.start}: {event.role} {event.action.verb}s tile {event.action.tile} into {where}, where "
                f"{role} uses tile {action.tile} until {end}"
            )
            for event in there
            if event.start < end and event.end > start
        ]
    return found


def draw(timeline: Iterable[Event]) -> str:
    """A line for each role, a column for each unit of time: a tile's last digit while it is loaded or used, "~" for
    other work, "." for a wait."""
    events = list(timeline)
    lines = {role: [" "] * max(event.end for event in events) for role in dict.fromkeys(event.role for event in events)}
    for role, action, start, end in events:
        mark = {"wait": ".", "work": "~"}.get(action.kind) or str(action.tile)[-1]
        lines[role][start:end] = mark * (end - start)
    width = max(map(len, lines), default=0)
    return "\n".join(f"{role:<{width}} |{''.join(marks)}|" for role, marks in lines.items())
