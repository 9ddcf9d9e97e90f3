import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

from fa_tutorial import barriers
from fa_tutorial.barriers import Action, Barrier, arrive, load, use, wait, work
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.ring_play import RIGHT, compared, explained, played, timed, two_functions, unreleased, verdict
from fa_tutorial.exercises.running import Wrong, adapting


def persistent_roles(next_tile, blocks, full, empty, slot, told, taken):
    """(producer, consumer) of one persistent program. full, empty: lists, by stage."""
    stages = len(full)

    def producer():
        n = 0  # blocks so far, of all work tiles
        for turn in itertools.count():
            tile = next_tile()
            yield wait(taken, 1 - turn % 2)
            slot[0] = tile
            yield arrive(told)
            if tile is None:
                return
            for _ in range(blocks[tile]):
                yield wait(empty[n % stages], 1 - n // stages % 2)
                yield load(tile, n % stages)
                yield arrive(full[n % stages])
                n += 1

    def consumer():
        n = 0
        for turn in itertools.count():
            yield wait(told, turn % 2)
            tile = slot[0]
            yield arrive(taken)
            if tile is None:
                return
            for _ in range(blocks[tile]):
                yield wait(full[n % stages], n // stages % 2)
                yield use(tile, n % stages)
                yield arrive(empty[n % stages])
                n += 1
            yield work("store o")

    return producer, consumer


FREE, WRITE, TELL = "            yield wait(taken, 1 - turn % 2)\n", "            slot[0] = tile\n", "            yield arrive(told)\n"
HEARD, READ, TAKE = "            yield wait(told, turn % 2)\n", "            tile = slot[0]\n", "            yield arrive(taken)\n"
STOP, END = "            if tile is None:\n                return\n", '            yield work("store o")\n'
LOADS, USES = (f"            for _ in range(blocks[tile]):\n                yield wait({barrier}" for barrier in ("empty", "full"))
MISTAKES = {
    "the ring's index begins anew with each work tile, but the barriers go on with their phases: count the blocks of all work tiles": [
        (LOADS, f"            n = 0\n{LOADS}"), (USES, f"            n = 0\n{USES}")],
    "the producer writes the next number before it waits for taken: a consumer may not have read the one before": (FREE + WRITE, WRITE + FREE),
    "the producer arrives at told before the number is written": (WRITE + TELL, TELL + WRITE),
    "the consumer arrives at taken before it has read the number, and the next may overwrite it": (READ + TAKE, TAKE + READ),
    "the consumer frees the slot when the work tile is done. It has read the number long before, and the producer could load the next tile": [
        (TAKE, ""), (END, END + TAKE)],
    "the producer waits until its work tile is taken before it loads: wait for taken before the next number instead": (
        TELL + STOP, f"{TELL}{FREE.replace('1 - turn', 'turn')}{STOP}"),
    "nobody tells the consumers that there is no further work tile: write None, too": [
        (STOP, "", 2), (FREE, STOP + FREE), (TAKE, TAKE + STOP)],
    "work tile 0 counts as none here: ask whether the number is None": ("if tile is None", "if not tile"),
    "each consumer draws a number of its own: the producer draws, and the consumers read slot": [
        (HEARD + READ, HEARD + READ.replace("slot[0]", "next_tile()"))],
}  # fmt: skip


class Slot(list):
    """The slot. early: whether it was written before both consumers had taken the number before."""

    def __init__(self, taken: Barrier):
        super().__init__([None])
        self.taken, self.written, self.early = taken, 0, False

    def __setitem__(self, place, number):
        self.early |= self.taken.phase < self.written
        self.written += 1
        super().__setitem__(place, number)


@dataclass(frozen=True)
class Persistent:
    """blocks: of each work tile that the counter gives this program; how long a load takes, and each consumer's use and store."""

    blocks: tuple[int, ...]
    stages: int = 2
    load: int = 1
    uses: tuple[int, int] = (2, 2)
    seed: int | None = None
    is_consumer_first: bool = False

    def __str__(self) -> str:
        return f"work tiles of {self.blocks} blocks, {self.stages} stages, loads of {self.load}, uses of {self.uses[0]} and {self.uses[1]}"

    @property
    def tiles(self) -> dict[int, int]:
        """The blocks of each work tile that this program draws, by number: other programs draw the numbers between."""
        return {i * (i + 1) // 2: n for i, n in enumerate(self.blocks)}

    def run(self, persistent_roles: Callable) -> tuple[list[barriers.Event] | str, dict[str, list[Action | None]], list[Barrier], Slot]:
        """The timeline, or the deadlock; what each role yielded; empty; the slot."""
        tiles = self.tiles
        counter, drawn, told, (full, empty) = iter(tiles), [], Barrier(1, "told"), barriers.ring(self.stages, 2)
        slot = Slot(taken := Barrier(2, "taken"))
        yielded: dict[str, list[Action | None]] = {"producer": [], "consumer 0": [], "consumer 1": []}

        def next_tile() -> int | None:
            loads = sum(action.kind == "load" for action in filter(None, yielded["producer"]))
            if loads < sum(tiles[tile] for tile in drawn if tile is not None):
                raise Wrong(
                    "draws numbers ahead, so that other programs get fewer: draw one when the loads of the work tile before are over"
                )
            drawn.append(next(counter, None))
            return drawn[-1]

        producer, consumer = two_functions(persistent_roles(next_tile, tiles, full, empty, slot, told, taken))
        roles = {role: timed(role, (producer if role == "producer" else consumer)(), found, self.load, self.uses, self.seed)
                 for role, found in yielded.items()}  # fmt: skip
        return played(dict(reversed(roles.items())) if self.is_consumer_first else roles), yielded, empty, slot

    def play(self, answer: Callable) -> str:
        """What comes of a reader's persistent_roles: RIGHT, or the first thing that goes wrong, with its cause."""
        (timeline, yielded, empty, slot), (right, in_order, *_) = self.run(answer), self.run(persistent_roles)
        text = timeline if isinstance(timeline, str) else compared(timeline, right, lambda role, n, action: f"“{action}”")
        found = explained(
            text or announced_late(yielded["producer"], list(self.tiles)) or unreleased(empty, sum(self.blocks)), yielded, in_order
        )
        if found and slot.early and "the producer" not in found.cause:
            return verdict(found, "slot is written before both consumers have taken the number before")
        return found


def announced_late(actions: list[Action | None], tiles: list[int]) -> str:
    """tiles: the work tiles' numbers, in order. RIGHT, or the first load of a work tile that comes before its number is announced."""
    told = 0
    for action in filter(None, actions):
        told += action.kind == "arrive" and action.barrier.name == "told"
        if action.kind == "load" and tiles.index(action.tile) >= told:
            return f"the producer yields “{action}” before it has arrived at told for this work tile"
    return RIGHT


def truth(program):
    return RIGHT


@adapting
def adapt(answer, program):
    return program.play(answer)


def inputs():
    for blocks in ((1,), (2, 2), (3, 1), (1, 1, 1, 2), (2, 1, 3), ()):
        for stages, load_units, uses in ((2, 1, (2, 2)), (3, 1, (1, 4)), (2, 3, (4, 1))):
            for is_consumer_first in (False, True):
                one = Persistent(blocks, stages, load_units, uses, None, is_consumer_first)
                yield case(one, on=str(one))
    for _ in range(8):
        yield case(Persistent((3, 1, 1, 4, 2), 3, seed=random.randrange(1, 2**32)), on="times that differ", fresh=True)


EXERCISE = Exercise(
    task="Write persistent_roles(next_tile, blocks, full, empty, slot, told, taken), which defines two generator functions without "
    "arguments, producer() and consumer(), and returns (producer, consumer).",
    hints=(
        "Begin with 9.2's loops, one for the blocks of a work tile, and put a loop over work tiles around each. Which of 9.2's numbers must "
        "not begin anew?",
        "The slot is a ring of one stage: told is its full barrier, taken its empty one. When has a consumer read the number, so that the "
        "slot is free?",
        "Producer: draw, wait for taken, write slot[0], arrive at told, load. Consumer: wait for told, read slot[0], arrive at taken at once, "
        "use. Count the work tiles for the slot's parities, and the blocks of all work tiles for the ring's. None goes through the slot, too.",
    ),
    solution=persistent_roles,
    reasoning="The ring doesn't know work tiles, so its index counts on. The slot is free as soon as both consumers have read the number, "
    "which they do before their first block. So the producer draws the next when its last load is over, while they still multiply.",
    inputs=inputs,
    truth=truth,
    rule="a number is written once the one before is read, and each load, use and store starts as early as that allows",
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
)
