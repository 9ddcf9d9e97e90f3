import math

import numpy as np
import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import adapting


def prices(runs, times, slots):
    """(start, tile): what each takes, if no slot was idle in either of two runs."""
    (programs, programs_2), (tiles, tiles_2) = map(len, runs), map(sum, runs)
    work, work_2 = (slots * time for time in times)  # of all slots together
    tile = (programs_2 * work - programs * work_2) / (programs_2 * tiles - programs * tiles_2)
    return (work - tiles * tile) / programs, tile


TILE, START = "(programs_2 * work - programs * work_2) / (programs_2 * tiles - programs * tiles_2)", "(work - tiles * tile) / programs"
WORK = "(slots * time for time in times)"
MISTAKES = {
    "the slots are missing: in a run all slots work at once, so together they work slots times as long": (WORK, "times"),
    "the time is divided by the slots: each slot works all of the time, so together they work slots times as long": (
        WORK, "(time / slots for time in times)"),
    "start and tile are exchanged: return the start first": (f"return {START}, tile", f"return tile, {START}"),
    "the starts don't cancel: the runs may have different numbers of programs": (TILE, "(work - work_2) / (tiles - tiles_2)"),
    "one run can't tell two prices: the start is missing in this tile": [(TILE, "work / tiles"), (START, "(work_2 - tiles_2 * tile) / programs_2")],
    "the start is what all programs of the run take together: divide by their number": (START, "(work - tiles * tile)"),
    "the start's tiles are one program's: a run pays for all tiles of all its programs": (START, "(work - runs[0][0] * tile) / programs"),
    "a run's tiles are taken for those of its longest program: all slots together compute all of them": ("map(sum, runs)", "map(max, runs)"),
    "a start is paid with every tile: each program has one": (START, "(work - tiles * tile) / tiles"),
}  # fmt: skip
CONDITIONS = {"programs": "the runs may have different numbers of programs"}


def truth(runs, times, slots):
    counts = torch.tensor([[len(run), sum(run)] for run in runs], dtype=torch.float64)
    start, tile = torch.linalg.solve(counts, slots * torch.tensor(times, dtype=torch.float64))
    return start, tile


@adapting
def adapt(answer, *args):
    """The answer, with both prices in one array, as torch.linalg.solve or NumPy's gives them, as a tuple.

    To nine decimals, because the last bits of torch.linalg.lstsq differ between two calls.
    """
    got = answer(*args)
    if isinstance(got, torch.Tensor | np.ndarray) and math.prod(got.shape) == 2:
        got = tuple(torch.as_tensor(got).flatten().tolist())
    is_two_numbers = isinstance(got, tuple | list) and all(isinstance(x, float) for x in got)
    return tuple(round(x, 9) for x in got) if is_two_numbers else got


def inputs():
    def two(long, short, slots, start, tile, otherwise="", on="", **options):
        times = [(len(run) * start + sum(run) * tile) / slots for run in (long, short)]
        said = " and ".join(
            f"programs of {', '.join(map(str, run))} tiles took {time:g}" for run, time in zip((long, short), times, strict=True)
        )
        return case([long, short], times, slots, on=on or f"{said}, on {slots} slots", otherwise=otherwise, **options)

    both = "slots · time = programs · start + tiles · tile holds in both runs, with one start and one tile"
    yield two([3, 3], [1, 1], 2, 1.0, 2.0, f"the prices fit both runs: {both}")
    yield two([1, 2, 3, 4], [1, 1, 2, 2], 2, 0.5, 1.0, f"programs may differ: {both}")
    yield two([2, 2, 2], [5, 1, 1], 1, 3.0, 0.25, "a start may take longer than a program's tiles, and the second run may have more tiles")
    yield two([4, 0, 4], [2, 0, 1], 3, 0.5, 2.0, "a program of 0 tiles has its start, too")
    draw = generator()
    long, short = (torch.randint(1, high, (40,), generator=draw).tolist() for high in (90, 20))
    yield two(long, short, 7, 0.3, 0.1, on="two runs of 40 random programs, 7 slots", fresh=True)
    yield two([3, 2, 1], [4, 4], 2, 1.0, 2.0, edge="programs")


EXERCISE = Exercise(
    task="Find what a program's start takes, and a tile, from the times of two runs.",
    conditions=CONDITIONS,
    hints=(
        "No slot is idle, so all slots together work slots · time. What do they do in that time, in starts and in tiles?",
        "slots · time = programs · start + tiles · tile, once for each run: two equations, two unknowns. Multiply each by the other's number of "
        "programs, and in their difference the starts cancel.",
    ),
    solution=prices,
    reasoning="All slots together work slots · time, and that is a start for each program and the tiles of all of them. The difference of two runs, "
    "each multiplied by the other's number of programs, has no start in it. torch.linalg.solve does the same.",
    inputs=inputs,
    truth=truth,
    rule="slots · time = programs · start + tiles · tile in both runs, with one start and one tile",
    mistakes=MISTAKES,
    adapt=adapt,
    parts=("start", "tile"),
)
