import math

from fa_tutorial.exercises.harness import Exercise, case


def choose_splits(n, tiles, sms, prices):
    """Parts into which to cut each key head's tiles of keys.

    n: programs a split, B · H_k.
    prices: with p programs an SM finishes a tile every prices[p] µs, {1: 0.89, …}.
    """

    def us(splits):
        programs = math.ceil(n * splits / sms)
        return math.ceil(tiles / splits) * programs * prices[programs]

    possible = [splits for splits in range(1, tiles // 4 + 1) if n * splits <= len(prices) * sms]
    least = min(map(us, possible), default=0)
    return next((splits for splits in possible if us(splits) <= 1.05 * least), 1)


PART, CHOSEN = "math.ceil(tiles / splits)", "next((splits for splits in possible if us(splits) <= 1.05 * least), 1)"
TIME = f"{PART} * programs * prices[programs]"
MISTAKES = {
    "the shortest time is taken, however many splits it needs: take the fewest splits within 5 % of it": ("1.05 * least", "least"),
    "the most splits within 5 % of the best are taken: each costs something, so take the fewest": (
        CHOSEN, "max((splits for splits in possible if us(splits) <= 1.05 * least), default=1)"),
    "one price for all: an SM with two programs takes prices[2] for a tile": ("prices[programs]", "prices[1]"),
    "one program's tiles are counted: an SM with p programs computes p parts": (TIME, f"{PART} * prices[programs]"),
    "the programs of the busiest SM are not rounded up, though it has a whole number of them": (
        TIME, f"{PART} * (n * splits / sms) * prices[programs]"),
    "a split may have a single tile: tiles / splits is at least 4": ("tiles // 4 + 1", "tiles + 1"),
    "there is one program a split: there are n": [("n * splits / sms", "splits / sms"), ("if n * splits", "if splits")],
}  # fmt: skip


def truth(n, tiles, sms, prices):
    us = {}
    for splits in range(1, max(tiles // 4, 1) + 1):
        programs = -(-n * splits // sms)
        if programs in prices:
            us[splits] = -(-tiles // splits) * programs * prices[programs]
    return min((splits for splits, each in us.items() if each <= 1.05 * min(us.values())), default=1)


ALONE, SHARED = {1: 0.9}, {1: 0.9, 2: 0.6, 3: 0.5}


def inputs():
    first = "of all numbers of splits 12 take the least, 38.7 µs; 11 take 42.3, over 5 % more; 13 would put two programs on some SMs, and `prices` has no price for two"
    yield case(8, 512, 100, ALONE, otherwise=first)
    yield case(7, 70, 132, ALONE, otherwise="at most 17 splits have 4 tiles each; 14 to 17 have parts of 5, and fewer have longer ones")
    yield case(8, 298, 132, {1: 1.0}, otherwise="16 splits are 19 tiles an SM, the fewest; 15 splits are 20, over 5 % more than 19")
    yield case(12, 540, 132, {1: 0.9, 2: 0.6}, otherwise="22 splits take the least, 2 · 25 · 0.6 = 30 µs; 21 take 31.2, within 5 % of that")
    yield case(64, 512, 110, SHARED, otherwise="5 splits are 3 programs of 103 tiles on an SM, 3 · 103 · 0.5 = 154.5 µs, the least")
    yield case(66, 12, 132, {1: 0.9, 2: 0.9}, otherwise="2 splits are one program of 6 tiles, 5.4 µs; 3 are two of 4 on some SMs, 7.2 µs")
    yield case(
        512, 512, 132, SHARED, on="choose_splits(512, 512, 132, prices), one split already needs more than `prices` has, so one split"
    )
    yield case(300, 512, 132, SHARED, otherwise="one split puts 3 programs on an SM; two would put 5, more than `prices` has")
    yield case(150, 8, 132, SHARED, otherwise="two splits have exactly 4 tiles each, 3 · 4 · 0.5 = 6 µs; one split is 2 · 8 · 0.6 = 9.6")
    yield case(2, 2, 132, SHARED, on="choose_splits(2, 2, 132, prices), fewer than 4 tiles, so one split")


EXERCISE = Exercise(
    task="Choose the number of splits: the fewest for which the busiest SM's time (11.3) is within 5 % of the least possible, with at least 4 tiles a split.",
    hints=(
        "At most how many splits have 4 tiles each? For each number of splits from 1 to that: how long is a part, how many programs has the busiest SM, "
        "and has `prices` a price for so many?",
        "List (11.3) for every number of splits that is possible. What is the least of the list, and where does the list first come close enough?",
    ),
    solution=choose_splits,
    reasoning="More splits make shorter parts, until some SMs get one program more than the others. And programs that share an SM need less time for a tile.",
    more="The package's choose_num_splits is simpler: it counts tiles, with two programs on each SM.",
    inputs=inputs,
    truth=truth,
    rule="the fewest splits for which part · programs of the busiest SM · their price is within 5 % of the least, with tiles / splits at least 4, or one split",
    mistakes=MISTAKES,
    exact=True,
)
