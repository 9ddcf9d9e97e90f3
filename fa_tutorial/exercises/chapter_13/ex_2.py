import torch

from fa_tutorial.exercises.chapter_13 import played
from fa_tutorial.exercises.chapter_13.played import attend
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import adapting
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
    "its own keys are joined twice, and the last that come never: receive first, then attend and join": (f"{YIELD}        {JOIN}", f"        {JOIN}\n        k, v = yield k, v"),
    "what comes is thrown away, and its own keys are used again: take what yield gives": (YIELD, "        yield k, v\n"),
    "its own keys are sent in each step, so it only ever sees its neighbour's: pass on what came": [
        (FIRST, f"{FIRST}    mine = k, v\n"), (YIELD, "        k, v = yield mine\n")],
    "only the last part is left: each part joins what is there": (JOIN, "o, lse = attend(q, k, v)"),
    "the parts are added up: each is divided by its own sum already, so join them by their lse": (
        JOIN, "part, lse_part = attend(q, k, v)\n        o, lse = o + part, torch.logaddexp(lse, lse_part)"),
    "lse has this part already when o joins it, so the part counts twice: join takes the lse from before": (
        JOIN, "part, lse_part = attend(q, k, v)\n        lse = torch.logaddexp(lse, lse_part)\n        o = join(o, lse, part, lse_part)[0]"),
    "o = 0 with lse = 0 counts as one more key, of score 0: before any key lse is −∞": (
        FIRST, f"{FIRST}    o, lse = join(torch.zeros_like(o), torch.zeros_like(lse), o, lse)\n"),
}  # fmt: skip
CONDITIONS = {
    "half": "o and lse aren't rounded between two steps: with fp16 and bf16, too, they stay as wide as join returns them",
    "wide": "where join returns float64, the running o and lse stay float64, for float32 rounds them in each step",
}
RULES = {
    "bytes sent": "a rank sends k and v of one shard, in their own dtype, ranks − 1 times, and nothing else",
    "o": "each shard's k and v, without a mask, give one part, which joins the running o by (13.2)",
    "lse": "lse is that of all keys so far: each part's lse joins it by (13.2)",
}


def truth(q, k, v, ranks):
    nbytes = (k.nbytes + v.nbytes) // ranks * (ranks - 1)
    q, k, v = q.double(), k.double(), v.double()
    s = q @ k.mT / q.shape[-1] ** 0.5
    return nbytes, torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)


def tolerance(args, part):
    """float32's, so that a part may be cast: the last edge tells whether the sums are. With bf16, o may be rounded at the end."""
    if args[0].dtype == torch.float64 and not args[0].any():
        return 0.0, 1e-10
    return (2.0**-8, 0.0) if part == "o" and args[0].dtype == torch.bfloat16 else (1e-4, 1e-5)


@adapting
def adapt(answer, q, k, v, ranks):
    """The answer's routine on every rank: the bytes that rank 0 sends, and o and lse of the whole sequence."""
    results, sent = played.play(answer, (q, k, v), ranks)
    return sent[0], *played.joined(results, ("o", "lse"))


def inputs():
    for ranks, rows, fresh in ((1, 2, False), (2, 1, False), (3, 1, False), (4, 3, False), (played.MANY, 1, False), (4, 3, True)):
        q, k, v, _ = played.draws(1, 2, ranks * rows, 4, fresh=fresh)
        yield case(q, k, v, ranks, on=f"{ranks} rank{'s' * (ranks > 1)}, S = {ranks * rows}, H = 2, D = 4", otherwise=RULES, fresh=fresh)
    q, k, v, _ = played.draws(2, 1, 10, 3, fresh=False)
    yield case(q, 300 * k, v, 5, on="5 ranks, scores up to 1,000", otherwise="e^lse overflows here: let join merge")
    for dtype, more, edge in ((torch.bfloat16, 2**-7, "half"), (torch.float64, 2**-23, "wide")):
        v = torch.ones(1, 1, 8, 2, dtype=dtype)
        v[:, :, 1:] += more  # bf16's next number, and float32's; with equal scores o is the mean of v
        q = torch.zeros_like(v)
        yield case(q, q.clone(), v, 8, on=f"8 ranks, {dtype}, equal scores, v is 1 once and {1 + more:.9g} seven times", edge=edge)


EXERCISE = Exercise(
    task="Write one rank's routine, with attend and join.",
    conditions=CONDITIONS,
    hints=(
        "Start with what needs nobody else. How many ranks' keys are then still missing?",
        "A step after the first: receive, attend, join. Which of these does step 0 need?",
        "o, lse = attend(q, k, v) first. Then ranks − 1 times: k, v = yield k, v, attend to what came, and join.",
    ),
    solution=ring_rank,
    reasoning="A rank begins with its own keys. In each of the ranks − 1 steps it passes on the keys that it holds and gets the next ones. So each rank "
    "sees each shard once, and the merge makes the order irrelevant.",
    more="The package's version, ring.ring_attention, starts to send before it computes, so that both run at the same time.",
    inputs=inputs,
    truth=truth,
    rule="each rank attends to its own keys, then ranks − 1 times passes on what it holds and joins its attention to what comes",
    mistakes=MISTAKES,
    parts=tuple(RULES),
    tolerance=tolerance,
    adapt=adapt,
)
