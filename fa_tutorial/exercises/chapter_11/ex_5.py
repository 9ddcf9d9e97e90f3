"""Exercise 11.5, fewest_splits."""

import random

from fa_tutorial.exercises.harness import OTHERS, Exercise, case


def fewest_splits(programs, wave, most):
    """The fewest splits, 1 to most, whose share of the GPU is at least 0.95 of the best share."""
    shares = []
    for splits in range(1, most + 1):
        waves = -(-programs * splits // wave)
        shares.append(programs * splits / (waves * wave))
    best = max(shares)
    return next(splits for splits, share in enumerate(shares, 1) if share >= 0.95 * best)


MISTAKES = {
    "best": "that is the best share's number of splits: take the fewest that reach 0.95 of it",
    "most": "that is the largest number of splits: a second wave that is nearly empty costs as much as a full one",
    "one_wave": "more than one wave is counted as one: programs · splits programs need ceil(programs · splits / wave) waves",
    "rounded_down": "waves are rounded down: the last, partly filled one takes as long as a full one",
    "of_one": "the share is compared with 0.95 itself: compare it with 0.95 of the best share",
    "from_zero": "that is one too few: the first number of splits is 1",
}


def twin(programs, wave, most, mistake=None):
    shares = []
    for splits in range(1, most + 1):
        jobs = programs * splits
        waves = {"one_wave": 1, "rounded_down": max(jobs // wave, 1)}.get(mistake, -(-jobs // wave))
        shares.append(jobs / (waves * wave))
    best = max(shares)
    if mistake == "best":
        return shares.index(best) + 1
    if mistake == "most":
        return most
    enough = [splits for splits, share in enumerate(shares, 1) if share >= (0.95 if mistake == "of_one" else 0.95 * best)]
    return (enough[0] if enough else most) - (mistake == "from_zero")


def inputs():
    yield case(1, 4, 4, otherwise="1, 2, 3, 4 splits keep 1/4, 2/4, 3/4 and all of the GPU busy")
    yield case(1, 4, 2, otherwise="1 and 2 splits keep 1/4 and 2/4 of the GPU busy: the best share may be far below 1")
    yield case(3, 4, 4, otherwise="3, 6, 9 and 12 programs take 1, 2, 3 and 3 waves of 4")
    yield case(4, 4, 3, otherwise="4 programs fill a wave of 4: one split is enough")
    yield case(8, 264, 64, otherwise="8 key heads, and 264 programs run at once")
    yield case(7, 264, 64, otherwise="7 · 37 programs are 98 % of a wave of 264, and 7 · 36 are 95 %")
    for _ in range(20):
        yield case(random.randint(1, 80), random.randint(1, 300), random.randint(1, 64), on="random numbers", fresh=True, otherwise=OTHERS)


EXERCISE = Exercise(
    id="11.5",
    task="Choose the number of splits by counting waves.",
    hints=(
        "For each number of splits: how many programs are there, and how many waves do they need?",
        "The share by (11.3) is programs · splits / (waves · wave), with waves = ceil(programs · splits / wave).",
        "Collect all shares, take the largest, and return the first number of splits that reaches 0.95 of it.",
    ),
    solution=fewest_splits,
    reasoning="A wave takes as long as its slowest program, so a last wave with few programs wastes the rest of the GPU. Each split also adds a result "
    "that is written, read and merged, so fewer is better where the shares are nearly the same.",
    more="The package's choose_num_splits also makes no split of less than 256 keys.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    exact=True,
)
