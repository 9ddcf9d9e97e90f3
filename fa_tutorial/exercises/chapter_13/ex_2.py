import torch

from fa_tutorial import ring
from fa_tutorial.exercises.chapter_13 import played
from fa_tutorial.exercises.chapter_13.played import attend
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting
from fa_tutorial.ring import merge as join


def ring_rank(q, k, v, ranks):
    """One rank's routine: (o, lse) of its queries to all keys. q, k, v: this rank's (B, H, rows, D).

    `k, v = yield k, v` sends k and v to the next rank, and receives those of the rank before.
    """
    o, lse = attend(q, k, v)
    for _ in range(1, ranks):
        k, v = yield k, v
        o, lse = join(o, lse, *attend(q, k, v))
    return o, lse


STEP, YIELD = "for _ in range(1, ranks):", "        k, v = yield k, v\n"
JOIN, FIRST = "o, lse = join(o, lse, *attend(q, k, v))", "    o, lse = attend(q, k, v)\n"
MISTAKES = {
    "one step too many: after `ranks` steps a rank meets its own keys again": (STEP, "for _ in range(ranks):"),
    "one step is missing: each rank has to see the keys of all ranks": (STEP, "for _ in range(2, ranks):"),
    "the last part never joins: the keys that come in the last step are used, too": [
        (STEP, "for step in range(1, ranks):"), (f"{YIELD}        {JOIN}", f"        part = attend(q, k, v)\n{YIELD}        if step > 1:\n            o, lse = join(o, lse, *part)")],
    "what comes is thrown away, and its own keys are used again: take what yield gives": (YIELD, "        yield k, v\n"),
    "its own keys are sent in each step, so it only ever sees its neighbour's: pass on what came": [
        (FIRST, f"{FIRST}    mine = k, v\n"), (YIELD, "        k, v = yield mine\n")],
    "only the last part is left: each part joins what is there": (JOIN, "o, lse = attend(q, k, v)"),
    "the parts are added up: each is divided by its own sum already, so join them by their lse": (
        JOIN, "part, lse_part = attend(q, k, v)\n        o, lse = o + part, torch.logaddexp(lse, lse_part)"),
    "the parts are averaged: a part with a larger lse has a larger weight, so join them by their lse": [
        (JOIN, "part, lse_part = attend(q, k, v)\n        o, lse = o + part, torch.logaddexp(lse, lse_part)"), ("return o, lse", "return o / ranks, lse")],
    "you add each part to o, and lse stays that of its own keys: each part is divided by its own sum already, so join them by their lse": (
        JOIN, "o = o + attend(q, k, v)[0]"),
    "you take the mean of o and each part: the one with the larger lse has the larger weight, so join them by their lse": (
        JOIN, "part, lse_part = attend(q, k, v)\n        o, lse = (o + part) / 2, torch.logaddexp(lse, lse_part)"),
    "you take the mean of o and each part, and lse stays that of its own keys: join gives both": (JOIN, "o = (o + attend(q, k, v)[0]) / 2"),
    "lse has this part already when o joins it, so the part counts twice: join takes the lse from before": (
        JOIN, "part, lse_part = attend(q, k, v)\n        lse = torch.logaddexp(lse, lse_part)\n        o = join(o, lse, part, lse_part)[0]"),
    "k and v change places: they come in the order in which they left": (YIELD, "        v, k = yield k, v\n"),
    "its own keys are left out": (FIRST, "    o, lse = torch.zeros_like(q), torch.full(q.shape[:3], -torch.inf, dtype=q.dtype)\n"),
    "two yields are two steps: k and v travel in one, k, v = yield k, v": (YIELD, "        k = yield k\n        v = yield v\n"),
    "join takes o and lse of what is there, and then o and lse of the part: join(o, lse, *attend(q, k, v))": (
        JOIN, "part, lse_part = attend(q, k, v)\n        o, lse = join(o, lse_part, part, lse)"),
    "o = 0 with lse = 0 counts as one more key, of score 0: before any key lse is −∞": (
        FIRST, f"{FIRST}    o, lse = join(torch.zeros_like(o), torch.zeros_like(lse), o, lse)\n"),
}  # fmt: skip


def truth(q, k, v, ranks):
    q, k, v = q.double(), k.double(), v.double()
    s = q @ k.mT / q.shape[-1] ** 0.5
    return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1), torch.tensor(ranks - 1)


TOO_MUCH = "a rank sends more than k and v of one shard in a step: q stays, and so do o and lse, which belong to its queries"


def tolerance(args, part):
    """float32's, so that a part may be cast: the last edge tells whether the sums are. With bf16, o may be rounded at the end."""
    if args[0].dtype == torch.float64 and not args[0].any():
        return 0.0, 1e-10
    return (2.0**-8, 0.0) if part == "o" and args[0].dtype == torch.bfloat16 else (1e-4, 1e-5)


@adapting
def adapt(answer, q, k, v, ranks):
    """The answer's routine on every rank: o and lse of the whole sequence, and how often a rank sends."""
    sends = []

    def look(message, _):
        if any(x.dtype != k.dtype for x in played.tensors_of(message)):
            raise Wrong("k and v travel as they are, in their own dtype")
        if ring.bytes_of(message) > (k.nbytes + v.nbytes) // ranks:
            raise Wrong(TOO_MUCH)
        sends.append(1)

    results, _ = played.play(answer, (q, k, v), ranks, look)
    return *played.joined(results, ("o", "lse")), torch.tensor(len(sends) // ranks)  # all ranks send equally often


RULES = {
    "o": "a shard's k and v, unmasked, give a part, which joins the running o by (13.2)",
    "lse": "lse is that of all keys so far: each part's lse joins it by (13.2)",
    "sends": "ranks − 1 times what came last is passed on",
}


def inputs():
    alone = "where `ranks` is 1, one rank has all keys: o and lse are attention without a mask, and nothing is sent"
    for ranks, rows, words in ((1, 2, alone), (2, 1, RULES), (3, 1, RULES), (4, 3, RULES), (played.MANY, 1, RULES)):
        for fresh in (False, True)[: 1 + (ranks < played.MANY)]:
            q, k, v, _ = played.draws(1, 2, ranks * rows, 4, fresh=fresh)
            on = f"{ranks} rank{'s' * (ranks > 1)}, S = {ranks * rows}, H = 2, D = 4"
            yield case(q, k, v, ranks, on=on, otherwise=words, fresh=fresh)
    q, k, v, _ = played.draws(2, 1, 10, 3, fresh=False)
    yield case(
        q, 300 * k, v, 5, on="5 ranks, scores up to 1,000", otherwise="e¹⁰⁰⁰ overflows, so exponentials are of differences, as in (13.2)"
    )
    q, k = torch.zeros(2, 1, 1, 8, 2, dtype=torch.bfloat16)  # equal scores: o is the mean of v
    v = torch.full_like(q, 1 + 2**-7)  # bf16's next number after 1
    v[:, :, 0] = 1
    yield case(q, k, v, 8, on="8 ranks, bf16, equal scores, v is 1 once and 1.0078 seven times", otherwise="o and lse aren't rounded between two steps",
               edge="half")  # fmt: skip
    v = torch.ones(2, 1, 8, 2, dtype=torch.float64)
    v[:, :, 1:] += 2**-23  # float32's next number after 1
    yield case(torch.zeros_like(v), torch.zeros_like(v), v, 8, on="8 ranks, equal scores, v is 1 once and 1 + 2⁻²³ seven times", edge="wide",
               otherwise="join returns float64 here: keep o and lse so, for float32 rounds them in each step")  # fmt: skip


EXERCISE = Exercise(
    task="Write one rank's routine, with attend and join.",
    conditions={
        "half": "with fp16 and bf16, the running o and lse stay as wide as join returns them",
        "wide": "where join returns float64, the running o and lse stay float64",
    },
    hints=(
        "Start with what needs nobody else. How many ranks' keys are then still missing?",
        "A step after the first: receive, attend, join. Which of these does step 0 need?",
        "o, lse = attend(q, k, v) first. Then ranks − 1 times: k, v = yield k, v, attend to what came, and join.",
        "join(o, lse, *attend(q, k, v)) hands over both results of attend.",
    ),
    solution=ring_rank,
    reasoning="A rank begins with its own keys. In each of the ranks − 1 steps it passes on the keys that it holds and gets the next ones. So each rank "
    "sees each shard once, and the merge makes the order irrelevant.",
    more="The package's version, ring.ring_attention, starts to send before it computes, so that both run at the same time.",
    inputs=inputs,
    truth=truth,
    rule="each rank attends to its own keys, then ranks − 1 times passes on what it holds and joins its attention to what comes",
    mistakes=MISTAKES,
    parts=("o", "lse", "sends"),
    tolerance=tolerance,
    adapt=adapt,
)
