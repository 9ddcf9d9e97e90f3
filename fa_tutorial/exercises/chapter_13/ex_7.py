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
    "dk and dv travel while nothing is computed, after k and v: start both before the next tile, and wait for both after it": [
        ("        home = start(dkv)\n", ""), (TILE, "dkv = start(dkv).wait() + tile(kv)")],
    "k and v travel while nothing is computed: start them before a tile, and wait for them after it": [
        (FIRST, "    dkv = tile(kv)\n"), (KEYS, "kv = start(kv).wait()"), (PASS, "")],
    "its own k and v are sent in each step: pass on what came": [("    passing = start(kv)\n    dkv", "    own, passing = kv, start(kv)\n    dkv"), (PASS, PASS.replace("kv", "own"))],
    "the gradients stop one rank before home: send dk and dv once more at the end": (LAST, "return dkv"),
    "the gradients that come are those of the keys that are here now: add this tile's part to them": (TILE, "home.wait(); dkv = tile(kv)"),
    "dk and dv stay here while the keys travel, so that gradients of different keys are added up: they travel with their keys": [
        ("        home = start(dkv)\n", ""), (TILE, "dkv = dkv + tile(kv)"), (LAST, "return dkv")],
    "a tile's part is added to the dk and dv of other keys: pass these on first, and add it to those that come": [
        ("        home = start(dkv)\n", ""), (TILE, "dkv = start(dkv + tile(kv)).wait()")],
}  # fmt: skip
RULES = {
    "dk and dv": "for any number of ranks the parts of all ranks come home to the keys that began here: a row for each rank's keys, a column for each rank's part",
    "tiles": "a rank computes `ranks` tiles, its own among them, each once",
    "seconds": "all messages but the first or the last hide behind tiles: start each as soon as its contents are there, and wait only where what comes is needed (in a sum Python takes the left side first)",
    "trips of k and v": "k and v travel ranks − 1 times",
    "trips of dk and dv": "dk and dv travel ranks times at most",
}


def truth(ranks, tile_s):
    dkv = torch.zeros(ranks, ranks)
    dkv[0] = 1  # its own keys, with the parts of all ranks
    return dkv, float(ranks), ranks * tile_s + DKV_S, float(ranks - 1), float(ranks)


@adapting
def adapt(answer, ranks, tile_s):
    """The answer on a clock: its gradients, tiles, seconds and how often each pair travels. Fewer seconds than the truth's, and fewer trips of dk and dv, are as right."""
    dkv, seconds, _ = ring.play_backward(answer, ranks, tile_s, KV_S, DKV_S)
    tiles = ring.play_backward(answer, ranks, 1.0, 0.0, 0.0)[1]  # 1 s each, where messages take none
    kv_trips, dkv_trips = (ring.play_backward(answer, ranks, tile_s, *messages)[2] for messages in ((1.0, 0.0), (0.0, 1.0)))
    if isinstance(dkv, ring.Message):
        raise Wrong("it returns a Message, which is still on its way: its wait() returns what comes")
    want, *_, most_seconds, _, most_trips = truth(ranks, tile_s)
    if isinstance(dkv, torch.Tensor) and dkv.equal(want):
        seconds, dkv_trips = max(seconds, most_seconds), max(dkv_trips, most_trips)
    return dkv, tiles, seconds, kv_trips, dkv_trips


def note(answer):
    seconds = ring.play_backward(answer, 4)[1]
    return "17 s with 4 ranks: no order of whole tiles takes less" if seconds < 18 else "18 s with 4 ranks: one second is left to save"


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
        "for the dkv that comes, and add. That takes 18 s with 4 ranks. For 17, find a tile that can hide the last dkv: it needs no visitor.",
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
    parts=tuple(RULES),
    note=note,
    adapt=adapt,
)
