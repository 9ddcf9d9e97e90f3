import itertools
import random

import torch

from fa_tutorial import ring
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting

KV_S, DKV_S = 1.0, 2.0  # seconds of a message


def overlapped_backward(kv, ranks, start, tile):
    """One rank's backward, as serial_backward: dk and dv of its own keys. ranks: 2 or more."""
    passing = start(kv)
    dkv = tile(kv)
    for step in range(1, ranks):
        kv = passing.wait()
        home = start(dkv)
        if step < ranks - 1:
            passing = start(kv)
        dkv = tile(kv) + home.wait()
    return start(dkv).wait()


PASS = "        if step < ranks - 1:\n            passing = start(kv)\n"
TILE, KEYS = "dkv = tile(kv) + home.wait()", "kv = passing.wait()"
FIRST, LAST = "    passing = start(kv)\n    dkv = tile(kv)\n", "return start(dkv).wait()"
MISTAKES = {
    "nothing is hidden: no message is on its way during a tile. Start each as soon as its contents are there, and wait only where what comes is needed": [
        (FIRST, "    dkv = tile(kv)\n"), (KEYS, "kv = start(kv).wait()"), (PASS, ""), (TILE, "dkv = home.wait() + tile(kv)")],
    "dk and dv travel while nothing is computed: start them before the next tile, and wait for them after it (in a sum Python takes the left side first)": (TILE, "dkv = home.wait() + tile(kv)"),
    "dk and dv leave behind k and v, and travel while nothing is computed: start them before the next tile, and wait for them after it": [
        ("        home = start(dkv)\n", ""), (TILE, "dkv = start(dkv).wait() + tile(kv)")],
    "k and v travel while nothing is computed: start them before a tile, and wait for them after it": [
        (FIRST, "    dkv = tile(kv)\n"), (KEYS, "kv = start(kv).wait()"), (PASS, "")],
    "the first k and v leave only after their tile: they are there before it, so start them first": (FIRST, "    dkv = tile(kv)\n    passing = start(kv)\n"),
    "a visitor's k and v leave only after their tile: they are there before it, so start them first": [(PASS, ""), (TILE, f"{TILE}\n{PASS.rstrip()}")],
    "its own k and v are sent in each step: pass on what came": [("    passing = start(kv)\n    dkv", "    own, passing = kv, start(kv)\n    dkv"), (PASS, PASS.replace("kv", "own"))],
    "the gradients stop one rank before home: send dk and dv once more at the end": (LAST, "return dkv"),
    "the gradients that come are those of the keys that are here now: add this tile's part to them": (TILE, "home.wait(); dkv = tile(kv)"),
    "dk and dv stay here while the keys travel, so that gradients of different keys are added up: they travel with their keys": [
        ("        home = start(dkv)\n", ""), (TILE, "dkv = dkv + tile(kv)"), (LAST, "return dkv")],
    "a tile's part is added to the dk and dv of other keys: pass these on first, and add it to those that come": [
        ("        home = start(dkv)\n", ""), (TILE, "dkv = start(dkv + tile(kv)).wait()")],
    "its own tile is never computed: add its part to the dk and dv that come home": [
        (FIRST, "    kv, home = start(kv).wait(), None\n"), ("        kv = passing.wait()\n        home = start(dkv)\n", ""),
        (TILE, "dkv = tile(kv) + (home.wait() if home else 0)\n        kv = passing.wait() if step < ranks - 1 else None\n        home = start(dkv)"),
        (LAST, "return home.wait()")],
    "this tile's part is added before the others come: dk and dv leave, and then are lost": (TILE, "dkv = dkv + tile(kv); home.wait()"),
}  # fmt: skip


RULES = {
    "dk and dv": "the parts of all ranks come home to the keys that began here: a row for each rank's keys, a column for each rank's part",
    "seconds": "a rank computes `ranks` tiles, and all messages but the first or the last hide behind them: start each as soon as its contents are there, and wait only where what comes is needed",
    "seconds of all messages": "k and v travel ranks − 1 times, dk and dv ranks times at most",
}


def truth(ranks, tile_s):
    dkv = torch.zeros(ranks, ranks)
    dkv[0] = 1  # its own keys, with the parts of all ranks
    return dkv, torch.tensor(ranks * tile_s + DKV_S), torch.tensor((ranks - 1) * KV_S + ranks * DKV_S)


@adapting
def adapt(answer, ranks, tile_s):
    """The answer on a clock: its gradients, its seconds and those of its messages. Less than in the truth is as right, and better, down to `ranks`
    tiles and one message of k and v: in every order a tile waits for the first visitor, or the last dk and dv hide behind nothing."""
    events = []
    dkv, now, sent = ring.play_backward(watched(answer, events), ranks, tile_s, KV_S, DKV_S)
    want, *most = truth(ranks, tile_s)
    is_right = isinstance(dkv, torch.Tensor) and dkv.equal(want)
    least = ranks * tile_s + KV_S
    if is_right and now < least - 1e-6:
        raise Wrong(
            f"with {ranks} ranks it takes {now:.3g} s, but `ranks` tiles and one message of k and v take {least:.3g} s in any order: "
            "compute each visitor's tile, and use what comes only after its wait()"
        )
    if isinstance(dkv, ring.Message):
        raise Wrong("it returns a Message, which is still on its way: its wait() returns what comes")
    if not is_right and tiles_of(answer, 2) == tiles_of(answer, 3) == 4:
        raise Wrong(f"with {ranks} ranks it computes 4 tiles: there are `ranks` ranks, which aren't always 4")
    is_late = is_right and now > most[0].item() + 1e-6
    if is_late and waits_in_turn(events):
        raise Wrong(
            f"with {ranks} ranks it takes {now:.3g} s: your own tile is last, but each visitor's k and v are waited for right after their "
            "start: start them before the tile that can hide them, and wait after it"
        )
    if is_late and events[:2] == ["own tile", "start kv"] and events.count("start dkv") < ranks:
        raise Wrong(
            f"with {ranks} ranks it takes {now:.3g} s: keeping its part of dk and dv at home is right, but with the own tile first nothing hides "
            "the last dk and dv: start k and v first, and compute the own tile last"
        )
    if is_late and events[-3:] == ["start dkv", "wait dkv", "own tile"]:
        raise Wrong(
            f"with {ranks} ranks it takes {now:.3g} s: the last dk and dv are waited for before your own tile, which could hide them: "
            "start them, compute tile(own), and only then wait (in a sum Python takes the left side first)"
        )
    right = isinstance(dkv, torch.Tensor) and dkv.equal(want)  # else nothing is as right, and how long it takes tells mistakes apart
    return (dkv, *map(max, (now, sent), (x.item() for x in most))) if right else (dkv, now, sent)


def tiles_of(answer, ranks):
    """How many tiles it computes; 0 where it raises."""
    events = []
    try:
        ring.play_backward(watched(answer, events), ranks)
    except Exception:
        return 0
    return sum(event.endswith("tile") for event in events)


def waits_in_turn(events):
    """Whether the own tile is last, and k and v are waited for at once after the first visitor's, too, for which nothing else is there."""
    tiles = [i for i, event in enumerate(events) if event.endswith("tile")]
    later = events[tiles[0] :] if tiles else []
    return bool(tiles) and events[tiles[-1]] == "own tile" and ("start kv", "wait kv") in itertools.pairwise(later)


def watched(answer, events):
    """The answer, which writes into `events` what it does, in order: start, wait, tile, own tile."""

    def backward(kv, ranks, start, tile):
        def watched_start(x):
            message, name = start(x), "kv" if x.ndim == 1 else "dkv"
            events.append(f"start {name}")
            wait = message.wait
            message.wait = lambda: (events.append(f"wait {name}"), wait())[1]
            return message

        def watched_tile(x):
            dkv = tile(x)
            events.append("own tile" if x.equal(kv) else "tile")
            return dkv

        return answer(kv, ranks, watched_start, watched_tile)

    return backward


def note(answer):
    seconds = ring.play_backward(answer, 4)[1]
    return "17 s with 4 ranks: no order takes less" if seconds < 18 else "18 s with 4 ranks: one second is left to save"


def inputs():
    def one(ranks, tile_s, fresh=False):
        on = f"{ranks} ranks, {tile_s:g} s a tile, 1 s for k and v, 2 s for dk and dv"
        return case(ranks, tile_s, on=on, otherwise=RULES, fresh=fresh)

    yield one(2, 4.0)
    yield one(3, 4.0)
    yield one(4, 6.0)
    yield one(random.randint(4, 8), random.uniform(4.0, 9.0), fresh=True)


EXERCISE = Exercise(
    task="Place the starts and the waits of a rank's backward, so that all messages but one hide behind tiles.",
    hints=(
        "Write down for each message when its contents are there first, and when somebody needs what comes. Start at the one, wait at the other.",
        "k and v are there before their tile, and the next ones are needed after it. dk and dv are there after their tile, and needed after the next one.",
        "Before the loop: start kv, then compute its tile. In the loop: wait for the next kv, start dkv, start kv unless this is the last step, compute the tile, and last wait "
        "for the dkv that comes, and add.",
        "That takes 18 s with 4 ranks. For 17, find a tile that can hide the last dkv: it needs no visitor.",
    ),
    solution=overlapped_backward,
    reasoning="A message can start when its contents are there, and what comes is waited for when it is needed. k and v travel during their own tile, dk and dv "
    "during the next one. After the last tile nothing is left to hide behind. Whoever computes the own tile last hides the last dk and dv behind it, "
    "and waits for the first k and v instead, which are shorter.",
    more="The package's version, ring.ring_attention's backward, computes the own tile last, and sends what leaves at one time in one message.",
    inputs=inputs,
    truth=truth,
    rule="the parts of all ranks come home to this rank's keys, and one message alone takes time",
    mistakes=MISTAKES,
    parts=("dk and dv", "seconds", "seconds of all messages"),
    note=note,
    adapt=adapt,
)
