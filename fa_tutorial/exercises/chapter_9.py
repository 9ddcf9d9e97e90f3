"""Graders, hints and reasoning of chapter 9: a ring's phases, its roles without deadlock, the longest rows first, registers for each role."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fa_tutorial import barriers
from fa_tutorial.algorithm import all_tiles, causal_tiles
from fa_tutorial.barriers import Action, Event
from fa_tutorial.exercises import solutions
from fa_tutorial.exercises.catalogue import Exercise
from fa_tutorial.exercises.grader import OTHERS, Wrong, expect_equal, run, show, unpack


class _Adapted:
    """A reader's function whose result is turned into something that `run` can compare. fn and __code__ let it find the reader's lines."""

    def __init__(self, fn: Callable):
        if not callable(fn):
            raise Wrong(f"pass the function itself, not {show(fn)}")
        self.fn, self.__code__ = fn, getattr(fn, "__code__", None)


# ---------------------------------------------------------------- 9.1

MOST_TILES = 5_000  # more than any table holds, and an answer that steps through the ring tile by tile still ends at once


def grade_ring_phase(answer) -> None:
    names = ("stage", "full_parity", "empty_parity")

    def parts(i: int, stages: int, on: str = "") -> list[Any]:
        return unpack(run(answer, i, stages, on=on or f"ring_phase({i}, {stages})"), names, on or f"ring_phase({i}, {stages})")

    def compare(i: int, stages: int, suspects: Mapping[str, tuple[int, int]], otherwise: str, values: bool = True) -> None:
        """suspects: diagnosis -> the two parities that this very mistake gives."""
        on = f"ring_phase({i}, {stages})" if values else "a random case"
        stage, full_parity, empty_parity = parts(i, stages, on)
        expect_equal(stage, i % stages, on=f"{on}, stage:", otherwise="the stages are taken in turn, 0 … stages − 1, and then again from 0", suspects={
            "the ring is taken for one of two stages": i % 2,
            "that is the round, how often the ring has been gone through; the stage is what is left": i // stages if i < stages else -1,
            "the tile's own number is no stage: after the last stage comes stage 0 again": i,
            "the first tile goes to stage 0": 1 if i == 0 else -1,
        }, values=values)  # fmt: skip
        parity = i // stages % 2
        got = (full_parity, empty_parity)
        expect_equal(
            got, (parity, 1 - parity), on=f"{on}, parities:", otherwise=otherwise, suspects=_no_bits(got) | dict(suspects), values=values
        )

    def _no_bits(got: tuple) -> dict[str, tuple]:
        is_bits = all(any(part == bit for bit in (0, 1)) for part in got)
        return {} if is_bits else {"a parity is the last bit of a phase's number, 0 or 1": got}

    _check_places(names, {i: parts(i, 3) for i in (2, 5, 6)})
    compare(0, 2, {
        "the two parities are exchanged: the consumer would pass a fresh full barrier before anything is loaded, and the producer wait for ever": (1, 0),
        "the producer waits for phase 0 of empty, which is complete when a consumer has released the stage, and nothing has been loaded yet: deadlock. "
        "On a fresh barrier one of the parities passes at once": (0, 0),
        "the consumer passes a fresh full barrier at once, before anything is loaded": (1, 1),
    }, "the first tile's load completes phase 0 of full, and the producer must not wait")  # fmt: skip
    compare(1, 2, {
        "the parities flip with every tile: stage 1 is as fresh as stage 0 was, for they flip once a round": (1, 0),
        "the producer waits for a stage that nobody has used yet: every stage of the first round is fresh": (0, 0),
        "the consumer passes a fresh full barrier: every stage of the first round is fresh": (1, 1),
    }, "every stage of the first round is fresh")  # fmt: skip
    compare(2, 2, {
        "the parities never flip: this is the second tile of stage 0, whose load completes phase 1 of full": (0, 1),
        "full_parity does not flip: in the second round the tile is there when phase 1 of full is complete": (0, 0),
        "empty_parity does not flip: in the second round the stage is free when phase 0 of empty is complete, by the release of the first tile": (1, 1),
    }, "the second tile of stage 0: phase 1 of full, and phase 0 of empty")  # fmt: skip
    compare(4, 2, {
        "the parities flip once and stay: the third tile of stage 0 completes phase 2 of full": (1, 0),
        "empty_parity is 1 in the first round alone: it flips with every round, as full_parity does": (0, 0),
        "full_parity flips once and stays: the third tile of stage 0 completes phase 2 of full": (1, 1),
    }, "the third tile of stage 0: phase 2 of full, and phase 1 of empty")  # fmt: skip
    compare(
        2,
        3,
        {"a ring of two is taken for granted: with 3 stages the first round has 3 tiles": (1, 0)},
        "with 3 stages the first round has 3 tiles",
    )
    compare(3, 3, {}, "with 3 stages the second round begins at tile 3")
    compare(1, 1, {"with one stage every tile begins a round": (0, 1)}, "with one stage every tile begins a round")
    for stages in range(1, 5):
        for i in range(3 * stages + 1):
            compare(i, stages, {}, "the parities flip once a round: i // stages tiles have gone through the stage before")
    for _ in range(20):
        compare(random.randint(0, MOST_TILES), random.randint(1, 12), {}, OTHERS, values=False)


def _check_places(names: Sequence[str], got: Mapping[int, Sequence[Any]]) -> None:
    """Wrong where the stage does not come first. got: tile -> parts, 3 stages; tile 2 has three different numbers, and tells every order."""
    rights = {i: (i % 3, i // 3 % 2, 1 - i // 3 % 2) for i in got}
    for places in itertools.permutations(range(3)):
        if places[0] != 0 and all([rights[i][place] for place in places] == [*map(_whole, parts)] for i, parts in got.items()):
            raise Wrong(f"{_places_told(names, places)}: ring_phase(2, 3) gives {show(tuple(got[2]))}, want {rights[2]}")


def _places_told(names: Sequence[str], places: Sequence[int]) -> str:
    return f"the parts come as ({', '.join(names[place] for place in places)}), want ({', '.join(names)})"


# ---------------------------------------------------------------- 9.2

ACTION_LIMIT = 2_000  # far more than any case needs


@dataclass(frozen=True)
class _Ring:
    """A case: how long a load and each consumer's use take; seed: draw each duration instead."""

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

        if self.seed is not None:
            return "a random case"
        times = f"loads of {many(self.load, 'unit')}, uses of {' and '.join(map(str, self.uses))}"
        return f"{many(self.tiles, 'tile')}, {many(self.stages, 'stage')}, {many(len(self.uses), 'consumer')}, {times}"

    def units(self, role: str, tile: int) -> int:
        if self.seed is not None:
            return random.Random(f"{self.seed} {role} {tile}").randint(1, 6)
        return self.load if role == "producer" else self.uses[self.consumers.index(role)]

    def times(self) -> dict[tuple[str, int], int]:
        """(role, tile) -> when its load or use starts, if each is as early as the ring allows (9.6)."""
        starts: dict[tuple[str, int], int] = {}

        def end(role: str, tile: int) -> int:
            return starts[role, tile] + self.units(role, tile) if tile >= 0 else 0

        for i in range(self.tiles):
            starts["producer", i] = max(end("producer", i - 1), *(end(role, i - self.stages) for role in self.consumers))
            for role in self.consumers:
                starts[role, i] = max(end(role, i - 1), end("producer", i))
        return starts


@dataclass(frozen=True)
class _Played:
    """What came of a case. fault: what kept it from being played; waiting: the waits of a deadlock."""

    text: str
    fault: str = field(default="", compare=False)
    timeline: Sequence[Event] = field(default=(), compare=False)
    waiting: Sequence[Event] = field(default=(), compare=False)


class _Fault(Exception):
    """A role yields what it must not."""


class _Play(_Adapted):
    """The reader's ring_roles as a function of a case."""

    def __call__(self, case: _Ring) -> _Played:
        full, empty = barriers.ring(case.stages, len(case.uses))
        result = self.fn(case.tiles, case.stages, full, empty)
        try:
            producer, consumer = _two_functions(result)
            roles = {"producer": _timed("producer", producer(), case)}
            consumers = {name: _timed(name, consumer(), case) for name in case.consumers}
            timeline, waiting = barriers.run(consumers | roles if case.is_consumer_first else roles | consumers, ACTION_LIMIT), ()
        except _Fault as fault:
            return _Played(str(fault), fault=str(fault))
        except barriers.TooManyActions:
            words = f"the roles have not ended after {ACTION_LIMIT:,} actions: each goes through its tiles once"
            return _Played(words, fault=words)
        except barriers.Deadlock as deadlock:
            timeline, waiting = deadlock.timeline, deadlock.waiting
        return _Played("\n".join(map(str, timeline)), timeline=timeline, waiting=waiting)


def _two_functions(result: Any) -> tuple[Callable, Callable]:
    if isinstance(result, Iterator):
        raise _Fault("ring_roles is one generator: it defines two, producer and consumer, inside, and returns both")
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise _Fault(f"returns {'None' if result is None else 'a ' + type(result).__name__}, want (producer, consumer)")
    if any(isinstance(part, Iterator) for part in result):
        raise _Fault(
            "returns generators that have been started: return producer and consumer without calling them, for each consumer plays its own"
        )
    if not all(map(callable, result)):
        raise _Fault("want (producer, consumer), two generator functions")
    return result[0], result[1]


def _timed(role: str, actions: Any, case: _Ring) -> Iterator[Action]:
    """The actions of a role, with the case's durations; refuses what no role of this kind does."""
    is_producer = role == "producer"
    if not isinstance(actions, Iterable):
        raise _Fault(f"{role}() yields nothing: each action must be yielded, as in yield {'load' if is_producer else 'use'}(i, stage)")

    def checked() -> Iterator[Action]:
        for action in actions:
            if not isinstance(action, Action):
                raise _Fault(f"the {role} yields {show(action)}, want wait(…), arrive(…), load(…) or use(…)")
            if action.kind == ("use" if is_producer else "load"):
                raise _Fault(f"the {role} yields {action.kind}(…): the producer loads, and consumers use")
            if action.kind == "work":
                raise _Fault(f"the {role} yields work(…): nothing but waits, arrivals, loads and uses is needed")
            if action.kind in ("load", "use"):
                _check_place(role, action, case)
                yield replace(action, units=case.units(role, action.tile))
            else:
                yield action

    return checked()


def _check_place(role: str, action: Action, case: _Ring) -> None:
    if action.tile not in range(case.tiles):
        raise _Fault(f"the {role} yields {action}: the tiles are 0 … tiles − 1")
    if action.stage not in range(case.stages):
        raise _Fault(f"the {role} yields {action}: the stages are 0 … stages − 1")
    if action.stage != action.tile % case.stages:
        raise _Fault(
            f"the {role} yields {action}: the tiles go round the ring, stage 0, 1, … and 0 again, or fewer loads run ahead than could"
        )


def grade_ring_roles(answer) -> None:
    play = _Play(answer)

    def grade(case: _Ring) -> None:
        played = run(play, case, on=str(case))
        diagnosis = played.fault or _diagnosis(case, played)
        if diagnosis and case.seed is not None:
            raise Wrong(f"{OTHERS}: times that differ from tile to tile")
        if diagnosis:
            raise Wrong(f"{diagnosis}: {case}")

    for tiles, stages in ((1, 1), (1, 2), (2, 1), (2, 2), (3, 2), (5, 2), (4, 3), (0, 2)):
        for load, use in ((1, 2), (2, 1)):
            grade(_Ring(tiles, stages, load, (use,)))
    for uses in ((1, 3), (3, 1), (2, 2)):
        for tiles in (1, 2, 5):
            grade(_Ring(tiles, 2, 1, uses))
    for stages in range(1, 5):
        for tiles in (0, 1, stages, stages + 1, 2 * stages + 1, 4 * stages + 3):
            for load, uses in ((1, (3,)), (3, (1,)), (1, (1, 4)), (2, (4, 1)), (4, (1, 1))):
                grade(_Ring(tiles, stages, load, uses, is_consumer_first=load == 2))
            for _ in range(3):
                grade(_Ring(tiles, stages, uses=(1, 1), seed=random.randrange(2**32), is_consumer_first=random.random() < 0.5))


def _diagnosis(case: _Ring, played: _Played) -> str:
    """What is wrong with a case that was played, or nothing."""
    passes = {
        role: _Passes(role, [event for event in played.timeline if event.role == role], case) for role in ("producer", *case.consumers)
    }
    if played.waiting:
        return _why_deadlocked(played.waiting, passes)
    for role in passes.values():
        if words := role.wrong_tiles():
            return words
    starts = case.times()
    work = sorted((event for event in played.timeline if event.action.tile is not None), key=lambda event: event.start)
    for event in work:  # races first: what comes too late is often their consequence
        want = max(starts[event.role, event.action.tile], _ready(event, work, passes))
        if event.start < want:
            return _too_early(event, want, passes)
    for event in work:
        want = starts[event.role, event.action.tile]
        if event.start > want:
            return _too_late(event, want, passes)
    return _miscounted(passes)


def _ready(event: Event, work: Sequence[Event], passes: Mapping[str, _Passes]) -> int:
    """When the others had done, as it was played, what `event` must come after: a tile's load, or the uses of the tile before in its stage."""
    role, tile = passes[event.role], event.action.tile
    before = tile - role.case.stages if role.is_producer else tile
    kind = "use" if role.is_producer else "load"
    return max((other.end for other in work if (other.action.kind, other.action.tile) == (kind, before)), default=0)


def _why_deadlocked(waiting: Sequence[Event], passes: Mapping[str, _Passes]) -> str:
    blocked = {event.role: event.action for event in waiting}
    own = [passes[role].why_it_waits(action) for role, action in blocked.items()]
    never_done = [passes[role].wrong_tiles() for role in passes if role not in blocked]
    causes = (*own, *never_done, _miscounted(passes), "nobody completes that phase")
    cause = next(words for words in causes if words)
    who = " and ".join(f"the {role} waits for {action.barrier.name}, parity {action.parity}" for role, action in blocked.items())
    return f"deadlock at time {waiting[0].end}: {who}; {cause}"


class _Passes:
    """What one role did, tile by tile. before[i]: its waits and arrivals since the tile before; after[i]: those that follow, up to the next tile."""

    def __init__(self, role: str, events: Sequence[Event], case: _Ring):
        self.role, self.case, self.is_producer = role, case, role == "producer"
        self.tiles = [event.action.tile for event in events if event.action.tile is not None]
        self.groups: list[list[Action]] = [[]]
        for event in events:
            if event.action.tile is not None:
                self.groups.append([])
            else:
                self.groups[-1].append(event.action)

    @property
    def verb(self) -> str:
        return "load" if self.is_producer else "use"

    def before(self, place: int) -> list[Action]:
        return self.groups[place]

    def after(self, place: int) -> list[Action]:
        return self.groups[place + 1]

    def arrivals(self, place: int | None = None) -> Counter[str]:
        """How often it arrives at each barrier, by name: before its tile number `place`, or in all."""
        groups = self.groups if place is None else self.groups[: place + 1]
        return Counter(action.barrier.name for group in groups for action in group if action.kind == "arrive")

    def awaited(self, tile: int) -> tuple[str, int]:
        """The name of the barrier that this role waits for before `tile`, and the parity."""
        stage, full_parity, empty_parity = solutions.ring_phase(tile, self.case.stages)
        return (f"empty[{stage}]", empty_parity) if self.is_producer else (f"full[{stage}]", full_parity)

    def announced(self, tile: int) -> str:
        """The name of the barrier that it arrives at after `tile`."""
        return f"{'full' if self.is_producer else 'empty'}[{tile % self.case.stages}]"

    def wrong_tiles(self) -> str:
        want = list(range(self.case.tiles))
        if self.tiles == want:
            return ""
        missing = [tile for tile in want if tile not in self.tiles]
        if missing:
            return f"the {self.role} never {self.verb}s tile {missing[0]} (every tile from 0 to tiles − 1, each action yielded)"
        return f"the {self.role} {self.verb}s the tiles {', '.join(map(str, self.tiles))}: each once, in order"

    def why_it_waits(self, wait: Action) -> str:
        """What is wrong with a wait that does not pass, or nothing where others keep it."""
        tile = len(self.tiles)
        if tile >= self.case.tiles:
            return f"the {self.role} waits once more after its last {self.verb}, and nothing comes"
        name, parity = self.awaited(tile)
        if wait.barrier.name in self.arrivals_of_its_own():
            return f"the {self.role} waits for {wait.barrier.name}, at which it is to arrive itself: before it {self.verb}s tile {tile} it needs {name}"
        if wait.barrier.name != name:
            return f"the {self.role} is about to {self.verb} tile {tile}, which needs {name} and no other stage"
        if wait.parity == parity:
            return ""
        if self.is_producer and tile < self.case.stages:
            return "nobody has used this stage yet, so nobody releases it: in the first round the producer's wait must pass at once"
        return f"in round {tile // self.case.stages} of the ring that is not the phase that tile {tile} needs"

    def arrivals_of_its_own(self) -> list[str]:
        kind = "full" if self.is_producer else "empty"
        return [f"{kind}[{stage}]" for stage in range(self.case.stages)]


def _miscounted(passes: Mapping[str, _Passes]) -> str:
    """A barrier with more arrivals than tiles, or fewer before the last round; nothing where all are right."""
    for role in passes.values():
        arrivals, tiles = role.arrivals(), Counter(role.announced(tile) for tile in role.tiles)
        own = "full" if role.is_producer else "empty"
        for name in arrivals:
            if not name.startswith(own):
                return f"the {role.role} arrives at {name}: the producer arrives at full, and consumers arrive at empty"
            if arrivals[name] > tiles[name]:
                return f"the {role.role} arrives at {name} {_times(arrivals[name])}, for {tiles[name]} tile{'' if tiles[name] == 1 else 's'} there: once a tile"
        for place, tile in enumerate(role.tiles):
            name = role.announced(tile)
            is_needed = role.is_producer or tile + role.case.stages < role.case.tiles
            if is_needed and arrivals[name] < tiles[name] and not any(action.kind == "arrive" for action in role.after(place)):
                what = "has loaded" if role.is_producer else "has used"
                return f"the {role.role} does not arrive at {name} after it {what} tile {tile}, and whoever needs that stage waits for it"
    return ""


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _too_early(event: Event, want: int, passes: Mapping[str, _Passes]) -> str:
    role, tile = passes[event.role], event.action.tile
    others = [other for name, other in passes.items() if other.is_producer != role.is_producer]
    if role.is_producer:
        result = f"tile {tile} is loaded into stage {event.action.stage} at time {event.start}, where tile {tile - role.case.stages} is needed until time {want}"
    else:
        result = f"the {event.role} uses tile {tile} at time {event.start}, and its load ends at time {want}"
    name, parity = role.awaited(tile)
    waits = [action for action in role.before(tile) if action.kind == "wait"]
    theirs = tile - role.case.stages if role.is_producer else tile  # the tile that the others had to finish
    later = [action for action in role.after(tile) if action.kind == "wait"]
    if any((action.barrier.name, action.parity) == (name, parity) for action in later):
        return f"{result}. The {event.role} waits for {name} after it has {'loaded' if role.is_producer else 'used'} tile {tile}: the wait comes first"
    if not any(action.barrier.name == name for action in waits):
        return f"{result}. The {event.role} does not wait for {name} before it {role.verb}s tile {tile}"
    if not any((action.barrier.name, action.parity) == (name, parity) for action in waits):
        return f"{result}. The {event.role} waits for parity {1 - parity} of {name}, and that passes at once: an earlier phase had it"
    for other in others:
        if other.arrivals(theirs)[name] > sum(other.announced(earlier) == name for earlier in range(theirs)):
            return (
                f"{result}. The {other.role} arrives at {name} before it has {other.verb}{'ed' if other.is_producer else 'd'} tile {theirs}"
            )
    return f"{result}. {_miscounted(passes) or f'{name} completes its phase too early'}"


def _too_late(event: Event, want: int, passes: Mapping[str, _Passes]) -> str:
    role, tile = passes[event.role], event.action.tile
    verb = "loaded" if role.is_producer else "used"
    result = f"tile {tile} could be {verb} at time {want}, and is {verb} at time {event.start}"
    result = result if role.is_producer else f"{event.role}: {result}"
    name, _ = role.awaited(tile)
    other_waits = [action.barrier.name for action in role.before(tile) if action.kind == "wait" and action.barrier.name != name]
    if other_waits:
        return f"{result}. The {event.role} waits for {other_waits[0]}, and it needs {name} alone"
    awaited = "the release of the tile before in its stage" if role.is_producer else "its load"
    return f"{result}. Nothing but {awaited} may hold it up: who arrives at {name} must do so as soon as it has finished with the stage"


# ---------------------------------------------------------------- 9.3


class _AsList(_Adapted):
    """The reader's longest_first; an iterator that it returns becomes a list."""

    def __call__(self, *args: Any) -> Any:
        result = self.fn(*args)
        return list(result) if isinstance(result, Iterator) else result


def _key_blocks(row_block: int, S_q: int, S_k: int, block_m: int, block_n: int, is_causal: bool) -> int:
    return (causal_tiles(row_block, block_m, block_n, S_q, S_k) if is_causal else all_tiles(block_n, S_k))[1]


def _blocks(rows: int, block: int) -> int:
    return -(-rows // block)


def _suspect_lengths(row_block: int, S_q: int, S_k: int, block_m: int, block_n: int, is_causal: bool) -> dict[str, int]:
    """diagnosis -> the key blocks that this very mistake gives to a row block."""
    first, end, offset = row_block * block_m, min((row_block + 1) * block_m, S_q), S_k - S_q
    keys = max(0, end + offset) if is_causal else S_k
    suspects = {
        "keys are counted, not blocks of block_n keys": keys,
        "the number of key blocks is rounded down: a ragged block has keys too": keys // block_n,
        "S_q is used for both lengths: the keys are S_k": _key_blocks(row_block, S_q, S_q, block_m, block_n, is_causal),
    }
    if not is_causal:
        masked = _key_blocks(row_block, S_q, S_k, block_m, block_n, True)
        return suspects | {"the mask is used where there is none: with is_causal = False every row block visits all key blocks": masked}
    full, stop = causal_tiles(row_block, block_m, block_n, S_q, S_k)
    rounded_down = "the number of key blocks is rounded down: a ragged block has keys too"
    return {
        "is_causal changes nothing: a row block visits the key blocks up to its last row's last key": _blocks(S_k, block_n),
        rounded_down: suspects[rounded_down],
        "a row block's first row is asked: its last row sees the most": _blocks(max(0, first + 1 + offset), block_n),
        "only the key blocks that are seen whole are counted: those on the diagonal are visited too": max(0, first + 1 + offset) // block_n,
        "the mask starts at the top left: with S_q ≠ S_k the last row sees the last key": _blocks(min(end, S_k), block_n),
        "the diagonal is not counted: query i sees key i + S_k − S_q too": _blocks(max(0, end - 1 + offset), block_n),
        "a ragged last row block is taken for a whole one: its last row is S_q − 1": _blocks(max(0, first + block_m + offset), block_n),
        "a row block that sees nothing visits 0 key blocks, never less": _blocks(end + offset, block_n),
        "end − full is counted, the key blocks that need the mask: those that are seen whole are visited too": stop - full,
        "row block r is given r + 1 key blocks: it has as many where S_q = S_k and block_m = block_n, and not in general": row_block + 1,
        **suspects,
    }


def grade_longest_first(answer) -> None:
    as_list = _AsList(answer)

    def compare(S_q: int, S_k: int, block_m: int, block_n: int, heads: int, is_causal: bool, values: bool = True) -> None:
        args = (S_q, S_k, block_m, block_n, heads, is_causal)
        on = f"longest_first({', '.join(map(str, args))})" if values else "a random case"
        diagnosis = _order_fault(run(as_list, *args, on=on), *args)
        if diagnosis:
            raise Wrong(f"{on}: {diagnosis}" if values else f"{OTHERS}: a random case")

    compare(4, 4, 2, 2, 1, True)  # first, for what leaves out a single block that is seen whole may have several reasons
    compare(1, 1, 1, 1, 1, True)
    compare(4, 4, 2, 2, 2, True)
    compare(4, 6, 2, 2, 1, False)
    compare(2, 3, 2, 2, 1, False)
    compare(3, 3, 1, 2, 1, True)
    compare(2, 2, 2, 1, 1, True)
    compare(3, 3, 2, 1, 1, True)
    compare(2, 5, 1, 1, 1, True)
    compare(5, 2, 1, 1, 2, True)
    compare(8, 8, 4, 2, 1, True)
    compare(3, 0, 2, 2, 2, False)
    compare(0, 3, 2, 2, 2, True)
    for _ in range(60):
        S_q, S_k, block_m, block_n = (random.randint(1, high) for high in (90, 90, 20, 20))
        for is_causal in (False, True):
            compare(S_q, S_k, block_m, block_n, random.randint(1, 4), is_causal, values=False)


def _order_fault(result: Any, S_q: int, S_k: int, block_m: int, block_n: int, heads: int, is_causal: bool) -> str:
    """What is wrong with an order of work, or nothing."""
    if not isinstance(result, list | tuple):
        return f"returns {'None (is the return missing?)' if result is None else 'a result of type ' + type(result).__name__}, want a list of (head, row_block, key_blocks)"
    entries = [tuple(map(_whole, entry)) if isinstance(entry, list | tuple) else (entry,) for entry in result]
    if odd := next((entry for entry in entries if len(entry) != 3 or None in entry), None):
        return f"an entry is {'of ' + str(len(odd)) + ' parts' if len(odd) != 3 else 'not of integers'}, want (head, row_block, key_blocks)"
    sizes = (S_q, S_k, block_m, block_n, is_causal)
    lengths = [_key_blocks(r, *sizes) for r in range(_blocks(S_q, block_m))]
    return (
        _other_places(entries, lengths, heads)
        or _missing_work(entries, lengths, heads, sizes)
        or _wrong_lengths(entries, lengths, sizes)
        or _wrong_order(entries, heads)
    )


def _whole(part: Any) -> int | None:
    """`part` as an int, None where it is no whole number."""
    try:
        return int(part) if int(part) == part else None
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a tensor of several elements
        return None


def _other_places(entries: Sequence[tuple], lengths: Sequence[int], heads: int) -> str:
    """The diagnosis where all entries are right, with key_blocks in another place than the third."""
    want = Counter((head, r, length) for head in range(heads) for r, length in enumerate(lengths))
    pairs = Counter(entry[:2] for entry in want.elements())
    if Counter(entry[:2] for entry in entries) == pairs:
        return ""
    for places in itertools.permutations(range(3)):
        if places[2] != 2 and Counter(entries) == Counter(tuple(entry[place] for place in places) for entry in want.elements()):
            return f"{_places_told(('head', 'row_block', 'key_blocks'), places)}: an entry is {show(max(entries))}"
    return ""


def _missing_work(entries: Sequence[tuple], lengths: Sequence[int], heads: int, sizes: tuple) -> str:
    S_q, _, block_m, block_n, _ = sizes
    rows, rows_exchanged = len(lengths), _blocks(S_q, block_n)
    got, want = Counter(entry[:2] for entry in entries), Counter((head, r) for head in range(heads) for r in range(rows))
    if got == want:
        return ""
    if got == Counter((r, head) for head, r in want):
        return "head and row_block are exchanged: an entry is (head, row_block, key_blocks)"
    if got == Counter(pair for pair in want if lengths[pair[1]]):
        return "the row blocks that see nothing are left out: they have 0 key blocks, and somebody must still write their o = 0"
    if got == Counter(pair for pair in want if pair[1] < S_q // block_m):
        return "the ragged last row block is left out: the number of row blocks is rounded up"
    if got == Counter(pair for pair in want if pair[0] == 0):
        return "the other heads are missing: every head has its own row blocks"
    if rows_exchanged != rows and got == Counter((head, r) for head in range(heads) for r in range(rows_exchanged)):
        return "block_m and block_n are exchanged: a row block has block_m rows"
    lost = next((pair for pair in want if pair not in got), None)
    if lost:
        return f"head {lost[0]}, row block {lost[1]} is missing"
    head, row_block = next(pair for pair in got if got[pair] > want[pair])[:2]
    return f"head {head}, row block {row_block} is there {_times(got[head, row_block])}" + (
        "" if (head, row_block) in want else ", and there is no such block"
    )


def _wrong_lengths(entries: Sequence[tuple], lengths: Sequence[int], sizes: tuple) -> str:
    got = {entry[:2]: entry[2] for entry in entries}
    bad = [(pair, length) for pair, length in sorted(got.items()) if length != lengths[pair[1]]]
    if not bad:
        return ""
    (head, row_block), length = bad[0]
    suspects = {pair: _suspect_lengths(pair[1], *sizes) for pair in got}
    fits = (words for words in suspects[head, row_block] if all(value == suspects[pair][words] for pair, value in got.items()))
    words = next(fits, "key_blocks is the number of key blocks that any row of the block sees a key of")
    return f"{words}: head {head}, row block {row_block} has key_blocks = {show(length)}, want {lengths[row_block]}"


def _wrong_order(entries: Sequence[tuple], heads: int) -> str:
    order = [entry[2] for entry in entries]
    place = next((place for place in range(1, len(order)) if order[place] > order[place - 1]), None)
    if place is None:
        return ""
    by_head = [[entry[2] for entry in entries if entry[0] == head] for head in range(heads)]
    if order == sorted(order):
        words = "the shortest come first: the longest that is left at the end keeps one multiprocessor busy while the others wait"
    elif all(lengths == sorted(lengths, reverse=True) for lengths in by_head):
        words = "each head is in order by itself, and the next head begins with its longest again: the order is across all heads"
    else:
        words = "a longer one comes after a shorter one"
    (head_a, row_a, a), (head_b, row_b, b) = entries[place - 1], entries[place]
    return f"{words}: (head {head_a}, row block {row_a}) with {a} comes before (head {head_b}, row block {row_b}) with {b}"


# ---------------------------------------------------------------- 9.4

MAX_WARPGROUPS = 8  # of a block: 1,024 threads


def _eights(number: float) -> int:
    return int(number) // 8 * 8


def grade_register_budget(answer) -> None:
    def compare(
        consumers: int, producer_warps: int, producer_registers: int, suspects: Mapping[str, float], otherwise: str = OTHERS
    ) -> None:
        args = (consumers, producer_warps, producer_registers)
        on = f"register_budget{args}"
        expect_equal(run(answer, *args, on=on), solutions.register_budget(*args), on=on, otherwise=otherwise, suspects=suspects)

    few, many = (show(run(answer, 2, 1, registers, on=f"register_budget(2, 1, {registers})")) for registers in (24, 56))
    compare(2, 1, 24, {
        "producer_registers changes nothing, 56 gives the same: what the producer keeps is not there to be shared": 248 if few == many else -1,
        "that is what every thread has at the launch: the producer gives most of its registers away, and the consumers share them": 168,
        "more than there is for each: the launch gives every thread 168, the producer's 128 too, and what these give up is shared by both consumers": 256,
        "the producer's warp is taken for 32 threads: setmaxnreg is for whole warpgroups, so 1 warp is padded to 128": 248,
        "that is for all consumers together: return what a thread of one has": 480,
        "what the consumers gain is returned: what the launch gave them is theirs too": 72,
        "the registers of a whole consumer are returned: return those of one of its 128 threads": 240 * 128,
        "a register has 4 bytes, and registers are counted here: an SM has 65,536 of them": _eights((40 * 3 - 24) / 2),
    }, "the launch gives every thread the same; what the producer then leaves, the consumers share")  # fmt: skip
    compare(2, 1, 56, {
        "the producer keeps producer_registers, not 24": 240,
    }, "a producer that keeps more leaves less")  # fmt: skip
    compare(3, 1, 24, {
        "setmaxnreg takes multiples of 8: round down": 162,
        "rounded up to a multiple of 8: more than there is cannot be given": 168,
        "two consumers are taken for granted": 240,
    }, "three consumers share what the producer leaves")  # fmt: skip
    compare(3, 1, 40, {
        "rounded to the nearest multiple of 8, and that may be up: more than there is cannot be given": 160,
    }, "the largest multiple of 8 that is there")  # fmt: skip
    compare(2, 1, 32, {
        "what is shared is what the block was launched with, 384 threads · 168 registers, not all 65,536: the rest of the SM cannot be had": 240,
    }, "what is shared is what the block was launched with, less producer_registers for each thread of the producer")  # fmt: skip
    compare(4, 1, 24, {
        "the launch gives multiples of 8 as well, rounded down": 120,
    }, "five warpgroups: the launch gives every thread 96")  # fmt: skip
    compare(1, 1, 24, {
        "no thread can have more than 256": 488,
        "one consumer can have 256: that is setmaxnreg's limit, and the launch gives it already": 248,
        "256 is allowed: 240 is what two consumers get, and no limit": 240,
        "255 is no multiple of 8": 255,
    }, "at most 256 a thread")  # fmt: skip
    compare(
        2, 4, 24, {"4 warps are one whole warpgroup, and need no padding": solutions.register_budget(2, 5, 24)}, "4 warps are one warpgroup"
    )
    compare(3, 8, 24, {
        "the producer is taken for one warpgroup: 8 warps are two": solutions.register_budget(3, 4, 24),
        "every warpgroup of the producer keeps producer_registers, not one of them alone": 152,
    }, "8 warps are two warpgroups")  # fmt: skip
    compare(2, 5, 24, {
        "5 warps are padded to two warpgroups: round up": solutions.register_budget(2, 4, 24),
        "5 warps are padded to two warpgroups, 256 threads": _eights((152 * 416 - 24 * 160) / 256),
    }, "5 warps are padded to two warpgroups")  # fmt: skip
    for consumers in range(1, MAX_WARPGROUPS):
        for producer_warps in range(1, 4 * (MAX_WARPGROUPS - consumers) + 1):
            for producer_registers in (24, 32, 40, 56, 64):
                compare(consumers, producer_warps, producer_registers, {})


EXERCISES = (
    Exercise(
        "9.1", "ring_phase",
        "Say which stage the i-th tile of a ring goes to, which parity its consumer waits for on full[stage], and which its producer waits for on "
        "empty[stage] before the load. The barriers are fresh at tile 0.", grade_ring_phase,
        ("Write down for 2 stages and tiles 0 to 5 which phase of full[stage] each load completes, and which phase of empty[stage] must be complete before it.",
         "The round is i // stages. In round r the load completes phase r of full[stage], and the stage is free when phase r − 1 of empty[stage] is complete.",
         "A parity is a phase's number modulo 2. Before round 0 the producer waits for phase −1, whose parity is 1, and on a fresh barrier that passes at once."),
        solutions.ring_phase,
        "Every round completes one phase of each barrier, so consumer and producer count the same rounds. The producer is one phase behind: it waits for the "
        "release of the tile before. That its first wait passes at once needs no special case, for a fresh barrier looks as if a phase of parity 1 were over.",
    ),
    Exercise(
        "9.2", "ring_roles",
        "Write ring_roles(tiles, stages, full, empty), which defines two generator functions without arguments, producer() and consumer(), and returns "
        "(producer, consumer) without calling them. They yield wait(barrier, parity), arrive(barrier), load(tile, stage) and use(tile, stage) for tiles "
        "0 … tiles − 1, tile i in stage i % stages. The producer is played once, the consumer by one role or by two, each of which uses every tile; empty "
        "expects an arrival from each.", grade_ring_roles,
        ("Each role does four things for a tile: find its stage and parity, wait, work, arrive. For which barrier does each wait, and at which does it arrive?",
         "The producer waits for empty[stage], loads, and arrives at full[stage]. The consumer waits for full[stage], uses, and arrives at empty[stage].",
         "The stage and both parities are those of exercise 9.1, and ring_phase may be called here. The arrival comes right after the work, neither before it nor "
         "a tile later."),
        solutions.ring_roles,
        "Two waits make it safe: none uses a tile before its load is over, and none loads over a tile that is in use. Nothing else waits, so the loads run ahead by "
        "as many tiles as there are stages. It cannot deadlock: of the tiles that are not finished the earliest one has all that it waits for.",
        helpers=(solutions.ring_phase,),
    ),
    Exercise(
        "9.3", "longest_first",
        "List the work of a persistent kernel, (head, row_block, key_blocks), from the most key blocks to the fewest across all heads; ties in any order. "
        "key_blocks is how many blocks of block_n keys a block of block_m rows visits: all, or with is_causal (bottom right) those of which one of its rows "
        "sees a key. Row blocks with 0 key blocks are listed too.", grade_longest_first,
        ("Which row block of a causal head visits the most key blocks, and which the fewest? Where do the other heads' equally long ones go?",
         "The last row of a row block is min((row_block + 1) · block_m, S_q) − 1, and row i sees i + 1 + S_k − S_q keys, none if that is negative.",
         "fa_tutorial.algorithm.causal_tiles(row_block, block_m, block_n, S_q, S_k)[1] is a causal row block's number of key blocks. Go through the row blocks "
         "from the last to the first, and for each through the heads."),
        solutions.longest_first,
        "Where the next piece of work goes to whoever is free, as in an ordinary grid or by a counter, what is begun last should be short, or one multiprocessor "
        "works on it while all others are done; where pieces are dealt out beforehand, longest first need not help. The key blocks never fall from one row block "
        "to the next, so counting row blocks backwards sorts them, and a kernel can do it with a division: row_block = row_blocks − 1 − n // heads, head = n % heads.",
        helpers=(causal_tiles, all_tiles),
    ),
    Exercise(
        "9.4", "register_budget",
        "Compute the most registers that each thread of a consumer can have. An SM has 65,536 registers; a consumer is one warpgroup (4 warps, 128 threads), and the "
        "producer's warps are padded to whole warpgroups. The launch gives every thread of all of them the same number, the largest multiple of 8 that fits, at "
        "most 256. Then, by setmaxnreg, the threads of the producer keep producer_registers, and the consumers share what is left of the launch's registers "
        "equally, in multiples of 8 and at most 256 a thread.", grade_register_budget,
        ("How many warpgroups are there, the producer's padding included? What does the launch give each of their threads?",
         "Two consumers and one producer are 3 warpgroups: 65,536 / 384 is 170.7, so the launch gives 168. In registers a thread, there are 3 · 168 to be shared.",
         "left = launch · warpgroups − producer_registers · producer_warpgroups, for one thread of each consumer together; divide, round down to a multiple of 8, "
         "and mind the 256."),
        solutions.register_budget,
        "A consumer's accumulators are in registers: acc of 64 × 128 in float32 is 64 a thread, the scores of 64 × 128 as many again, and p beside them. A "
        "uniform 168 would leave little room. The producer needs an address and a counter. setmaxnreg moves registers within the block's own pool, and what "
        "the launch did not take, 65,536 − 384 · 168 = 1,024 here, is in nobody's pool. So 240 beside 24 with two consumers, and 160 with three.",
    ),
)  # fmt: skip
