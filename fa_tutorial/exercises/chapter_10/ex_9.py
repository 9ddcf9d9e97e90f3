"""Exercise 10.9, idle_times."""

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import Wrong, adapting


def idle_times(tiles, places, start, tile):
    """When each place falls idle for good, from early to late."""
    idle = [0.0] * places
    for n in tiles:
        place = idle.index(min(idle))
        idle[place] += start + n * tile
    return sorted(idle)


LOOP, PLACE, TAKES = "for n in tiles:", "place = idle.index(min(idle))", "start + n * tile"
MISTAKES = {
    "the places take turns: a program waits for the first place that falls idle, whichever that is": [
        (LOOP, "for k, n in enumerate(tiles):"), (PLACE, "place = k % places")],
    "a program goes to the place that falls idle last: it takes the first one": ("min(idle)", "max(idle)"),
    "the start is missing: each program has one, however few its tiles": (TAKES, "n * tile"),
    "a start comes with every tile: each program has one": (TAKES, "n * (start + tile)"),
    "every program takes as long as one with one tile: n tiles take n times as long": (TAKES, "start + tile"),
    "a place forgets what it computed before: add the program's time": ("+= start", "= start"),
    "each place has one start: every program has one of its own": [(TAKES, "n * tile"), ("sorted(idle)", "sorted(x + start for x in idle)")],
    "the longest program starts first: they start in the list's order": (LOOP, "for n in sorted(tiles, reverse=True):"),
    "the shortest program starts first: they start in the list's order": (LOOP, "for n in sorted(tiles):"),
    "the last program starts first: they start in the list's order": (LOOP, "for n in reversed(tiles):"),
    "the work is shared evenly, as the sum did: a program stays on its place": (
        "sorted(idle)", "[sum(idle) / places] * places"),
}  # fmt: skip
CONDITIONS = {"few": "there may be fewer programs than places: a place that gets none is idle from 0 on"}


def truth(tiles, places, start, tile):
    idle = torch.zeros(places, dtype=torch.float64)
    for n in tiles:
        idle[idle.argmin()] += start + n * tile
    return idle.sort().values


@adapting
def adapt(answer, *args):
    """The answer, with a list of numbers as a tensor. A list whose order alone is wrong, and one number, are told here."""
    got = answer(*args)
    is_list = isinstance(got, list | tuple) and all(isinstance(x, int | float) for x in got)
    if isinstance(got, int | float):
        raise Wrong(f"returns one number, want a list of {args[1]}, one for each place")
    if not is_list:
        return got
    got = torch.tensor(got, dtype=torch.float64)
    wanted = truth(*args)
    if got.shape == wanted.shape and not torch.allclose(got, wanted) and torch.allclose(got.sort().values, wanted):
        raise Wrong("the times are right, but not in order: return them from early to late")
    return got


def inputs():
    def queue(tiles, places, start, tile, otherwise="", on="", **options):
        on = on or f"programs of {', '.join(map(str, tiles))} tiles, {places} places, start = {start}, tile = {tile}"
        return case(tiles, places, start, tile, on=on, otherwise=otherwise, **options)

    yield queue([3, 1], 2, 1.0, 2.0, "a program takes start + n · tile")
    yield queue([3, 1, 1], 2, 1.0, 2.0, "the third program takes the place that falls idle first, and has a start of its own")
    yield queue([1, 2, 3, 1, 2, 2, 1, 5], 4, 0.5, 1.0, "the programs start in the list's order, each in the place that falls idle first")
    yield queue([4, 4, 1, 1, 1], 1, 0.5, 2.0, "one place computes all programs, one after another")
    draw = generator()
    yield queue(torch.randint(1, 50, (60,), generator=draw).tolist(), 7, 0.3, 0.1, on="60 random programs, 7 places", fresh=True)
    yield queue([2, 1], 4, 1.0, 1.0, edge="few")


EXERCISE = Exercise(
    task="Say when each place of a GPU falls idle, if the next program always takes the first place that does.",
    conditions=CONDITIONS,
    hints=(
        "Keep one number for each place: when it falls idle. All are 0 at first. Which place does the next program take?",
        "The place with the least number. The program keeps it busy for start + n · tile more, so add that.",
    ),
    solution=idle_times,
    reasoning="A place is busy until its number, and the next program waits for the least of them. The largest number is when the kernel ends, "
    "and what the others lie below it is time that their places wait.",
    inputs=inputs,
    truth=truth,
    rule="the next program in the list takes the place that falls idle first, for start + n · tile, and the result is sorted",
    mistakes=MISTAKES,
    adapt=adapt,
)
