import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import Wrong, adapting


def idle_times(tiles, slots, start, tile):
    """When each slot falls idle for good, from early to late."""
    idle = [0.0] * slots
    for n in tiles:
        slot = idle.index(min(idle))
        idle[slot] += start + n * tile
    return sorted(idle)


LOOP, SLOT, TAKES = "for n in tiles:", "slot = idle.index(min(idle))", "start + n * tile"
MISTAKES = {
    "the slots take turns, so each gets as many programs: a program waits for the first slot that falls idle, whichever that is": [
        (LOOP, "for k, n in enumerate(tiles):"), (SLOT, "slot = k % slots")],
    "each slot computes its own piece of the list: a program waits for the first slot that falls idle, whichever that is": [
        (LOOP, "for k, n in enumerate(tiles):"), (SLOT, "slot = k // -(-len(tiles) // slots)")],
    "a program goes to the slot with the fewest tiles, but starts take time, too: it takes the slot that falls idle first": [
        ("idle = [0.0] * slots", "idle, load = [0.0] * slots, [0] * slots"), (SLOT, "slot = load.index(min(load))\n        load[slot] += n")],
    "a program goes to the slot that falls idle last: it takes the first one": ("min(idle)", "max(idle)"),
    "the start is missing: each program has one, however few its tiles": (TAKES, "n * tile"),
    "a start comes with every tile: each program has one": (TAKES, "n * (start + tile)"),
    "a slot forgets what it computed before: add the program's time": ("+= start", "= start"),
    "the longest program starts first: they start in the list's order": (LOOP, "for n in sorted(tiles, reverse=True):"),
    "the work is shared evenly, as the sum did: a program stays on its slot": ("sorted(idle)", "[sum(idle) / slots] * slots"),
}  # fmt: skip
CONDITIONS = {"few": "there may be fewer programs than slots: a slot that gets none is idle from 0 on"}


def truth(tiles, slots, start, tile):
    idle = torch.zeros(slots, dtype=torch.float64)
    for n in tiles:
        idle[idle.argmin()] += start + n * tile
    return idle.sort().values


@adapting
def adapt(answer, *args):
    """The answer, with a list of numbers as a tensor. A list whose order alone is wrong, and one number, are told here."""
    got = answer(*args)
    is_list = isinstance(got, list | tuple) and all(isinstance(x, int | float) for x in got)
    if isinstance(got, int | float):
        raise Wrong(f"returns one number, want a list of {args[1]}, one for each slot")
    if not is_list:
        return got
    got = torch.tensor(got, dtype=torch.float64)
    wanted = truth(*args)
    if got.shape == wanted.shape and not torch.allclose(got, wanted) and torch.allclose(got.sort().values, wanted):
        raise Wrong("the times are right, but not in order: return them from early to late")
    return got


def inputs():
    def queue(tiles, slots, start, tile, otherwise="", on="", **options):
        on = on or f"programs of {', '.join(map(str, tiles))} tiles, {slots} slots, start = {start}, tile = {tile}"
        return case(tiles, slots, start, tile, on=on, otherwise=otherwise, **options)

    yield queue([3, 1], 2, 1.0, 2.0, "a program keeps its own slot, and no other, for start + n · tile")
    yield queue([3, 1, 2], 2, 1.0, 2.0, "in order, the third program takes the slot that falls idle first, and has a start of its own")
    yield queue([1, 2, 3, 1, 2, 2, 1, 5], 4, 0.5, 1.0, "the programs start in the list's order, each in the slot that falls idle first")
    yield queue([2, 0, 0], 2, 1.0, 2.0, "a program of 0 tiles has its start, too")
    yield queue([4, 4, 1, 1, 1], 1, 0.5, 2.0, "one slot computes all programs, one after another")
    draw = generator()
    yield queue(torch.randint(1, 50, (60,), generator=draw).tolist(), 7, 0.3, 0.1, on="60 random programs, 7 slots", fresh=True)
    yield queue([2, 1], 4, 1.0, 1.0, edge="few")


EXERCISE = Exercise(
    task="Say when each slot of a GPU falls idle, if the next program always takes the first slot that does.",
    conditions=CONDITIONS,
    hints=(
        "Keep one number for each slot: when it falls idle. All are 0 at first. Which slot does the next program take?",
        "The slot with the least number. The program keeps it busy for start + n · tile more, so add that.",
    ),
    solution=idle_times,
    reasoning="A slot is busy until its number, and the next program waits for the least of them. The largest number is when the kernel ends, "
    "and what the others lie below it is time that their slots wait.",
    inputs=inputs,
    truth=truth,
    rule="the next program in the list takes the slot that falls idle first, for start + n · tile, and the result is sorted",
    mistakes=MISTAKES,
    adapt=adapt,
)
