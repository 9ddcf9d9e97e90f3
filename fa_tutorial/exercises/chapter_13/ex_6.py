import torch

from fa_tutorial.algorithm import attention_backward
from fa_tutorial.exercises.chapter_13 import played
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting


def backward_rank(q, k, v, o, do, lse, ranks):
    """One rank's routine: (dq, dk, dv) of its own queries, keys and values.

    q, k, v: this rank's shards; o, lse: its result of the forward ring; do: the gradient of o.
    """
    dq, dk, dv = attention_backward(q, k, v, o, do, lse)
    dq, dk, dv = (x.to(lse.dtype) for x in (dq, dk, dv))  # float32, where q is bf16
    for _ in range(1, ranks):
        k, v, dk, dv = yield k, v, dk, dv
        dq_part, dk_part, dv_part = attention_backward(q, k, v, o, do, lse)
        dq, dk, dv = dq + dq_part, dk + dk_part, dv + dv_part
    if ranks > 1:
        dk, dv = yield dk, dv
    return dq, dk, dv


YIELD, HOME = "        k, v, dk, dv = yield k, v, dk, dv\n", "    if ranks > 1:\n        dk, dv = yield dk, dv\n"
TILE, ADD = "attention_backward(q, k, v, o, do, lse)", "        dq, dk, dv = dq + dq_part, dk + dk_part, dv + dv_part\n"
PARTS = f"        dq_part, dk_part, dv_part = {TILE}\n"
OWN_LSE = TILE.replace(" lse", " played.attend(q, k, v)[1]")
OWN = OWN_LSE.replace(" o,", " played.attend(q, k, v)[0],")
MISTAKES = {
    "the gradients stop one rank before home: after ranks − 1 steps a rank holds those of the rank after it, so they need one step more": (HOME, ""),
    "dk and dv stay here while the keys travel, so that gradients of different keys are added up: they travel with their keys": [
        (YIELD, "        k, v = yield k, v\n"), (HOME, "")],
    "each part has its own o and lse, so its weights add up to 1 over this shard alone: take the whole row's, those that came in": (TILE, OWN, 2),
    "each part has its own lse, so its weights add up to 1 over this shard alone: take the whole row's, which came in": (TILE, OWN_LSE, 2),
    "dq has its own pair's part alone: add each visitor's": ("dq + dq_part, ", "dq, "),
    "its own part of dk and dv is left out: begin their sums with it, or add it when they are home": (
        "  # float32, where q is bf16\n", "\n    dk, dv = torch.zeros_like(dk), torch.zeros_like(dv)\n"),
    "dq travels with the keys, so that gradients of different queries are added up: dq stays": (YIELD, YIELD.replace("k, v, dk", "dq, k, v, dk")),
    "its own pair is counted twice, and the last pair never: pass on first, then take the gradients of what came": (
        YIELD + PARTS + ADD, PARTS + ADD + YIELD),
    "a part is added to the sums of other keys, before those of its own have come: first receive, then add": [
        (YIELD, "        k, v = yield k, v\n"), (ADD, ADD + "        dk, dv = yield dk, dv\n")],
    "one pair too many: the last step takes dk and dv home alone, and its own pair is counted already": [("range(1, ranks)", "range(ranks)"), (HOME, "")],
    "k and v are sent once more at the end: only dk and dv have to come home": (HOME, HOME.replace("dk, dv", "k, v, dk, dv")),
    "dk and dv are overwritten in each step: add to what the earlier ranks have put in": ("dk + dk_part, dv + dv_part", "dk_part, dv_part"),
    "only the rank's own keys are used: take the ones that come": (YIELD, "        yield k, v, dk, dv\n"),
    "o and do are exchanged: attention_backward takes q, k, v, o, do, lse": (TILE, TILE.replace("o, do", "do, o"), 2),
    "the gradients are returned in the order dk, dv, dq: return dq, dk, dv": ("return dq, dk, dv", "return dk, dv, dq"),
}  # fmt: skip
RULES = {
    "dq": "dq stays, and adds up the parts of all keys, unrounded, each from the whole row's o and lse, by attention_backward(q, k, v, o, do, lse)",
    "dk": "dk travels with its keys, adds up the parts of all ranks, unrounded, and comes home as dk after `ranks` steps",
    "dv": "dv travels with its keys, adds up the parts of all ranks, unrounded, and comes home as dv after `ranks` steps",
    "bytes sent": "k and v travel ranks − 1 times, in their own dtype, and dk and dv ranks times at most, no wider than float32 or lse",
}


def truth(q, k, v, do, ranks):
    leaves = [x.double().detach().requires_grad_() for x in (q, k, v)]
    o, _ = played.attend(*leaves)
    return *torch.autograd.grad(o, leaves, do.double()), most_sent(k, ranks)


def most_sent(k, ranks):
    """Bytes: k and v ranks − 1 times, and dk and dv, at least in float32, ranks times."""
    return k.numel() // ranks * 2 * ((ranks - 1) * k.itemsize + ranks * max(4, k.itemsize)) if ranks > 1 else 0


@adapting
def adapt(answer, q, k, v, do, ranks):
    """The answer's routine on every rank, after a forward pass: dq, dk and dv of the whole sequence, and the bytes that a rank sends. Fewer are as right."""
    o, lse = played.attend(q, k, v)
    lse = lse.to(torch.promote_types(q.dtype, torch.float32))

    def look(message, mine):
        sent = {x.data_ptr() for x in played.tensors_of(message)}
        for name, x in zip(("q", "k", "v", "o", "do", "lse"), mine, strict=True):
            if name not in "kv" and x.data_ptr() in sent:
                raise Wrong(f"a rank sends its {name}: q, o, do, lse and dq stay, and keys and values come to them")

    results, sent = played.play(answer, (q, k, v, o.to(q.dtype), do, lse), ranks, look)
    return *played.joined(results, ("dq", "dk", "dv")), max(sent[0], most_sent(k, ranks))


def tolerance(args, part):
    return (2.0**-8, 0.0) if args[0].dtype == torch.bfloat16 else (1e-5, 1e-6)  # the answer may add up in float32


def inputs():
    for ranks, rows, fresh in ((2, 1, False), (3, 1, False), (4, 2, False), (played.MANY, 1, False), (4, 2, True)):
        drawn = played.draws(1, 2, ranks * rows, 4, fresh=fresh)
        yield case(*drawn, ranks, on=f"{ranks} ranks, S = {ranks * rows}, H = 2, D = 4", otherwise=RULES, fresh=fresh)
    yield case(*played.draws(1, 2, 2, 4, fresh=False), 1, on="1 rank, S = 2, H = 2, D = 4", edge="alone")
    # every part of a gradient is exact, a power of two, but bf16 can't add the small ones to the large one
    part, sign = torch.full((1, 2, 8, 1), 2.0**-9, dtype=torch.bfloat16), torch.tensor([1.0, -1.0] * 4).bfloat16()[:, None]
    part[:, :, 0] = 1
    q, k, v = torch.zeros_like(part), part * sign, sign.expand_as(part).clone()  # equal scores: p is 1/8, and o is 0
    q[:, 1], k[:, 1] = 1, 0  # the first head gives dq, and the second dk
    # fresh, so that an answer that stays in bf16 is still told its other mistake
    yield case(q, k, v, part, 8, on="8 ranks, bf16, lse in float32", edge="half", fresh=True)


EXERCISE = Exercise(
    task="Write one rank's backward routine, with attention_backward.",
    conditions={
        "alone": "one rank: the gradients of chapter 6, and nothing is sent",
        "half": "for bf16 inputs attention_backward returns bf16: sum dq, dk and dv in float32, as lse is, send dk and dv unrounded, and k and v in bf16",
    },
    hints=(
        "q, do and dq stay. k and v travel as before. Where must the gradients of the keys be when the next rank wants to add to them?",
        "They travel with their keys: k, v, dk, dv = yield k, v, dk, dv. After how many steps are they home?",
        "Begin with the own pair, in lse's dtype. Then ranks − 1 times pass on all four and add the next pair's gradients. Last, dk and dv go home alone, if there is more than one rank.",
    ),
    solution=backward_rank,
    reasoning="A pair's p = exp(s − lse) and ds = p ∘ (dp − delta) need the whole row's lse and delta, which the rank kept from its forward. dq gathers where its "
    "queries are. dk and dv gather on their way around the ring; after `ranks` steps they have visited everybody and are home. k and v needn't make the last step. "
    "Less is sent if the own dk and dv stay at home: then the first visitor starts the sums, and the own part joins them at the end.",
    more="The package's version, ring.ring_attention's backward, sends while it computes, and keeps the own dk and dv at home.",
    inputs=inputs,
    truth=truth,
    rule="each rank adds its part to dq, which stays, and to dk and dv, which travel with their keys until they are home; k and v take ranks − 1 steps",
    mistakes=MISTAKES,
    parts=tuple(RULES),
    tolerance=tolerance,
    adapt=adapt,
)
