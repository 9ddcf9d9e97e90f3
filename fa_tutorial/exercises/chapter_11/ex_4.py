"""Exercise 11.4, choose_splits."""

import math

from fa_tutorial.exercises.harness import Exercise, case


def choose_splits(n, S, sms):
    """Parts into which to cut each key head's S keys.

    n: programs a split, B · H_k. sms: the SMs; each has room for two programs at a time.
    """
    wave = 2 * sms

    def share(splits):
        return n * splits / (math.ceil(n * splits / wave) * wave)

    possible = range(1, max(S // 256, 1) + 1)
    best = max(share(splits) for splits in possible)
    return next(splits for splits in possible if share(splits) >= 0.95 * best)


WAVE, POSSIBLE, CHOSEN = "2 * sms", "range(1, max(S // 256, 1) + 1)", "next(splits for splits in possible if share(splits) >= 0.95 * best)"
MISTAKES = {
    "the best share is taken, however many splits it needs: take the fewest within 5 % of it": ("0.95 * best", "best"),
    "95 % of the card is asked for, and some caches can't reach it: take the fewest within 5 % of the best that they can": (
        CHOSEN, "next((splits for splits in possible if share(splits) >= 0.95), possible[-1])"),
    "the most splits within 5 % of the best are taken: each costs something, so take the fewest": (CHOSEN, CHOSEN.replace("next(", "max(")),
    "a wave has one program an SM: two fit": (WAVE, "sms"),
    "a part has fewer than 256 keys: of S keys there are at most S // 256 such parts": (POSSIBLE, "range(1, math.ceil(S / 256) + 1)"),
    "a part may have a single key: it must have at least 256": (POSSIBLE, "range(1, S + 1)"),
    "more than one wave is never tried, and with many heads the last wave may be fuller with more splits": (
        POSSIBLE, "range(1, max(min(S // 256, 2 * sms // n), 1) + 1)"),
    "the waves are not rounded up: a part of a wave takes as long as a full one": ("math.ceil(n * splits / wave)", "(n * splits / wave)"),
    "there is one program a split: there are n": ("n * splits", "splits", 2),
}  # fmt: skip


def truth(n, S, sms):
    busy = {splits: n * splits / (-(-n * splits // (2 * sms)) * 2 * sms) for splits in range(1, max(S // 256, 1) + 1)}
    return min(splits for splits, share in busy.items() if share >= 0.95 * max(busy.values()))


def inputs():
    yield case(8, 32_768, 132, otherwise="32 splits are 256 programs, 0.97 of a wave of 264, and nothing is fuller with fewer")
    yield case(8, 4_096, 132, otherwise="16 splits of 256 keys are all that fit, and the fullest")
    yield case(8, 1_000, 132, otherwise="three parts of at least 256 keys fit into 1,000")
    yield case(64, 32_768, 132, otherwise="4 splits are 256 programs, 0.97 of a wave")
    yield case(512, 32_768, 132, otherwise="one split is 512 programs, 0.97 of two waves")
    yield case(300, 32_768, 132, otherwise="one split fills 0.57 of two waves, and more splits leave less of the last one empty")
    yield case(150, 512, 132, otherwise="one split fills 0.57 of its waves, and so do two")
    yield case(2, 100, 132, otherwise="a short cache has one split")
    yield case(8, 65_536, 108, otherwise="a wave is twice the SMs, here 216")


EXERCISE = Exercise(
    task="Choose the number of splits: the fewest whose share (11.3) is within 5 % of the best, each of at least 256 keys.",
    hints=(
        "How many parts of 256 keys or more are there at most? Compute the share of each number of splits from 1 to that.",
        "share = n · splits / (ceil(n · splits / wave) · wave), with wave = 2 · sms. best is the largest of them. Which is the first that reaches 0.95 · best?",
    ),
    solution=choose_splits,
    reasoning="The best share alone would ask for many splits to gain a percent. A fixed share such as 0.95 can't be reached by a short cache.",
    more="The package's choose_num_splits does the same, and keeps what it found.",
    inputs=inputs,
    truth=truth,
    rule="the fewest splits whose share is within 5 % of the best, each of at least 256 keys, or one split",
    mistakes=MISTAKES,
    exact=True,
)
