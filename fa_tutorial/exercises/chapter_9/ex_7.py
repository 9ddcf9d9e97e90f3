import itertools
import random

from fa_tutorial import barriers
from fa_tutorial.barriers import Barrier, arrive, load, use, wait, work
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.ring_play import RIGHT, compared, played, timed, two_functions, unreleased
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
    "the producer writes a number without waiting for taken: a consumer may not have read the one before": (FREE, ""),
    "the consumer reads the slot before it has waited for told (is the wait yielded?)": (HEARD, ""),
    "the producer arrives at told before the number is written": (WRITE + TELL, TELL + WRITE),
    "the consumer arrives at taken before it has read the number, and the next may overwrite it": (READ + TAKE, TAKE + READ),
    "the consumer frees the slot when the work tile is done. It has read the number long before, and the producer could load the next tile": [
        (TAKE, ""), (END, END + TAKE)],
    "nobody tells the consumers that there is no further work tile: write None, too": [
        (STOP, "", 2), (FREE, STOP + FREE), (TAKE, TAKE + STOP)],
    "work tile 0 counts as none here: ask whether the number is None": ("if tile is None", "if not tile"),
    "each consumer draws a number of its own: the producer draws, and the consumers read slot": [
        (HEARD + READ, HEARD + READ.replace("slot[0]", "next_tile()"))],
}  # fmt: skip


def run(persistent_roles, blocks, stages, load_units, uses, seed, is_consumer_first):
    """The timeline, or a deadlock in words; and which stage isn't released."""
    tiles = {i * (i + 1) // 2: n for i, n in enumerate(blocks)}  # other programs draw the numbers between
    counter, drawn, told, taken, (full, empty) = iter(tiles), [], Barrier(1, "told"), Barrier(2, "taken"), barriers.ring(stages, 2)
    yielded = {"producer": [], "consumer 0": [], "consumer 1": []}

    def next_tile():
        loads = sum(action.kind == "load" for action in filter(None, yielded["producer"]))
        if loads < sum(tiles[tile] for tile in drawn if tile is not None):
            raise Wrong("draws numbers ahead, so that other programs get fewer: draw one when the loads of the one before are over")
        drawn.append(next(counter, None))
        return drawn[-1]

    def announced(actions):
        arrivals = 0
        for action in actions:
            arrivals += action.kind == "arrive" and action.barrier is told
            if action.kind == "load" and arrivals < len(drawn):
                raise Wrong(f"the producer yields “{action}” before it has arrived at told for this work tile")
            yield action

    producer, consumer = two_functions(persistent_roles(next_tile, tiles, full, empty, [None], told, taken))
    roles = {role: timed(role, (producer if role == "producer" else consumer)(), found, load_units, uses, seed)
             for role, found in yielded.items()}  # fmt: skip
    roles["producer"] = announced(roles["producer"])
    return played(dict(reversed(roles.items())) if is_consumer_first else roles), unreleased(empty, sum(blocks))


@adapting
def adapt(answer, *program):
    timeline, left = run(answer, *program)
    if isinstance(timeline, str):
        return timeline
    return compared(timeline, run(persistent_roles, *program)[0], lambda role, n, action: f"“{action}”") or left


def inputs():
    for blocks in ((1,), (2, 2), (3, 1), (1, 1, 1, 2), (2, 1, 3), ()):
        for stages, load_units, uses in ((2, 1, (2, 2)), (3, 1, (1, 4)), (2, 3, (4, 1))):
            on = f"work tiles of {blocks} blocks, {stages} stages, loads of {load_units}, uses of {uses[0]} and {uses[1]}"
            for is_consumer_first in (False, True):
                yield case(blocks, stages, load_units, uses, None, is_consumer_first, on=on)
    for _ in range(8):
        yield case((3, 1, 1, 4, 2), 3, 1, (2, 2), random.randrange(1, 2**32), False, on="times that differ", fresh=True)


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
    truth=lambda *program: RIGHT,
    rule="a number is written once the one before is read, and each load, use and store starts as early as that allows",
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
)
