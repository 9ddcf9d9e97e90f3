import itertools

import torch

from fa_tutorial.algorithm import attention_backward
from fa_tutorial.exercises.chapter_13 import played
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting, where_in


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


YIELD, HOME, TILE = (
    "k, v, dk, dv = yield k, v, dk, dv",
    "    if ranks > 1:\n        dk, dv = yield dk, dv\n",
    "attention_backward(q, k, v, o, do, lse)",
)
MISTAKES = {
    "the gradients stop one rank before home: after ranks − 1 steps a rank holds those of the rank after it, so they need one step more": (HOME, ""),
    "dk and dv stay here while the keys travel, so that gradients of different keys are added up: they travel with their keys": [
        (YIELD, "k, v = yield k, v"), (HOME, "")],
    "dq has its own pair's part alone: add each visitor's": ("dq + dq_part, ", "dq, "),
    "its own part of dk and dv is left out: begin their sums with it, or add it when they are home": (
        "  # float32, where q is bf16\n", "\n    dk, dv = torch.zeros_like(dk), torch.zeros_like(dv)\n"),
    "dq travels with the keys, so that gradients of different queries are added up: dq stays": (YIELD, "dq, k, v, dk, dv = yield dq, k, v, dk, dv"),
    "dq goes all the way around with the keys, but it belongs to this rank's queries: dq stays": [
        (YIELD, "dq, k, v, dk, dv = yield dq, k, v, dk, dv"), (HOME, HOME.replace("dk, dv", "dq, dk, dv"))],
    "its own pair is left out": (f"dq, dk, dv = {TILE}\n", "dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))\n"),
    "its own pair is counted twice, and the last pair never: pass on first, then take the gradients of what came": (
        f"        {YIELD}\n        dq_part, dk_part, dv_part = {TILE}\n        dq, dk, dv = dq + dq_part, dk + dk_part, dv + dv_part\n",
        f"        dq_part, dk_part, dv_part = {TILE}\n        dq, dk, dv = dq + dq_part, dk + dk_part, dv + dv_part\n        {YIELD}\n"),
    "the gradients of a pair join the sums of the next keys, because they are taken before these come: pass on first, then take the gradients of what came": (
        f"        {YIELD}\n        dq_part, dk_part, dv_part = {TILE}\n", f"        dq_part, dk_part, dv_part = {TILE}\n        {YIELD}\n"),
    "its own pair is counted twice, first and last: k and v stay with the rank before their own, and dk and dv come home alone": [
        ("for _ in range(1, ranks):", "for _ in range(ranks):"), (HOME, "")],
    "dk and dv leave only after the next pair has joined, so that gradients of different keys are added up: they leave with their keys": [
        (YIELD, "k, v = yield k, v"), ("dv + dv_part\n", "dv + dv_part\n        dk, dv = yield dk, dv\n"), (HOME, "")],
    "dk and dv are overwritten in each step: add to what the earlier ranks have put in": (
        "dq + dq_part, dk + dk_part, dv + dv_part", "dq + dq_part, dk_part, dv_part"),
    "only the rank's own keys are used: take what yield gives": (YIELD, "yield k, v, dk, dv"),
    "o and do are exchanged: attention_backward takes q, k, v, o, do, lse": [
        (f"dq, dk, dv = {TILE}", "dq, dk, dv = attention_backward(q, k, v, do, o, lse)"),
        (f"dv_part = {TILE}", "dv_part = attention_backward(q, k, v, do, o, lse)")],
    "dk and dv change places on the way home: receive them in the order in which they leave": (HOME, HOME.replace("dk, dv = yield", "dv, dk = yield")),
    "the gradients are returned in the order dk, dv, dq: return dq, dk, dv": ("return dq, dk, dv", "return dk, dv, dq"),
}  # fmt: skip


def truth(q, k, v, do, ranks):
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    o, _ = played.attend(*leaves)
    return *torch.autograd.grad(o, leaves, do), torch.tensor(most_sent(ranks))


def most_sent(ranks):
    """Tensors as large as a shard of k that a rank sends: k and v ranks − 1 times, dk and dv ranks times."""
    return 4 * ranks - 2 if ranks > 1 else 0


@adapting
def adapt(answer, *args):
    """As `played_on`. Right gradients may be sent by fewer tensors than most_sent: the own dk and dv may stay at home."""
    *gradients, sent, _ = played_on(answer, *args)
    *want, most = truth(*args)
    is_right = are_close(gradients, want)
    if not is_right and (whose := own_results(*args, gradients)):
        raise Wrong(whose)
    return *gradients, torch.as_tensor(max(sent, most) if is_right else sent)


def are_close(gradients, want):
    return all(x.shape == y.shape and torch.allclose(x.double(), y, atol=1e-5) for x, y in zip(gradients, want, strict=True))


WHY = {
    "o and lse": "so its weights add up to 1 over this shard alone: take the whole row's, those that came in",
    "lse": "so its weights add up to 1 over this shard alone: take the whole row's, that which came in",
    "o": "so its delta is not the row's: take the whole row's o, that which came in",
}


def own_results(q, k, v, do, ranks, gradients):
    """Which of a part's own results, in place of the whole row's, gives these gradients; "" for none."""
    if not 1 < ranks < played.MANY:
        return ""
    whole, shards = played.attend(q, k, v), range(ranks)
    for whose, (what, why) in itertools.product(("part", "visitor's part"), WHY.items()):
        sums = [torch.zeros_like(x) for x in (q, k, v)]
        for rank, owner in itertools.product(shards, shards):
            of_rank, of_owner = ([x.chunk(ranks, 2)[i] for x in same] for i, same in ((rank, (q, *whole, do)), (owner, (k, v))))
            rows, o, lse, do_rows = of_rank
            if whose == "part" or rank != owner:
                own_o, own_lse = played.attend(rows, *of_owner)
                o, lse = own_o if "o" in what.split() else o, own_lse if "lse" in what else lse
            parts = attention_backward(rows, *of_owner, o, do_rows, lse)
            for x, i, part in zip(sums, (rank, owner, owner), parts, strict=True):
                x.chunk(ranks, 2)[i].add_(part)
        if are_close(gradients, sums):
            return f"each {whose} has its own {what}, {why}"
    return ""


def note(answer):
    *_, sent, _ = played_on(answer, *played.draws(1, 2, 4, 4, fresh=False), 4)
    return "your own dk and dv stay at home, so a rank sends less than ours" if sent < most_sent(4) else ""


def played_on(answer, q, k, v, do, ranks, lse_dtype=torch.float64, dtypes=None):
    """The answer's routine on every rank, after a forward pass: dq, dk and dv of the whole sequence, how many tensors as large as
    a shard of k a rank sends, and their bytes. The dtypes of what is sent join the set `dtypes`."""
    o, lse = played.attend(q, k, v)
    lse, sent, nbytes = lse.to(lse_dtype), [], []

    def look(message, mine):
        tensors = [*played.tensors_of(message)]
        q, _, _, *stay = mine
        for name, x in zip(("q", "o", "do", "lse"), (q, *stay), strict=True):
            if any(x.data_ptr() == leaves.data_ptr() or (name == "q" and torch.equal(x, leaves)) for leaves in tensors):
                raise Wrong(f"a rank sends its {name}: q, o, do, lse and dq stay, and keys and values come to them")
        sent.extend(x.numel() for x in tensors)
        if dtypes is not None:
            dtypes.update(x.dtype for x in tensors)
        nbytes.extend(x.nbytes for x in tensors)

    results, _ = played.play(answer, (q, k, v, o.to(q.dtype), do, lse), ranks, look)
    return *played.joined(results, ("dq", "dk", "dv")), sum(sent) / k.numel(), sum(nbytes) // ranks


def refused(answer):
    """Eight ranks of one bf16 row each, lse in float32. Every part of a gradient is exact, a power of two, but bf16 can't add the small ones to the large one."""
    part, sign = torch.full((1, 2, 8, 1), 2.0**-9, dtype=torch.bfloat16), torch.tensor([1.0, -1.0] * 4).bfloat16()[:, None]
    part[:, :, 0] = 1
    q, k, v = torch.zeros_like(part), part * sign, sign.expand_as(part)  # equal scores: p is 1/8, and o is 0
    q[:, 1], k[:, 1] = 1, 0  # the first head gives dq, and the second dk
    dtypes = set()
    try:
        *got, _, nbytes = played_on(answer, q, k, v, part, 8, torch.float32, dtypes)
    except Wrong:
        raise
    except Exception as error:
        if dtypes == {torch.float32} and isinstance(error, TypeError):
            return "with bf16 inputs and lse in float32 it sends k and v in float32: k and v travel in their own dtype, which q has, too"
        return f"with bf16 inputs and lse in float32 it raises {type(error).__name__}: {error}{where_in(error, answer)}"
    *want, _ = truth(*(x.double() for x in (q, k, v, part)), 8)
    most = 2 * (7 * k.nbytes + 8 * 2 * k.nbytes) // 8  # k and v in bf16, dk and dv in float32
    if all(torch.allclose(x.double(), y.double(), rtol=2.0**-8) for x, y in zip(got, want, strict=True)):
        if nbytes <= most:
            return ""
        return (
            f"with 8 ranks, bf16 inputs and lse in float32 a rank sends {nbytes} bytes, and k and v in bf16, dk and dv in float32 "
            f"are {most}: each travels no wider than that"
        )
    return "with bf16 inputs dq, dk or dv is rounded in each step, so errors of all steps add up: sum them in float32, as lse is"


RULES = {
    "dq": "dq stays, and adds up the parts of all keys, unrounded, each from the whole row's o and lse, by attention_backward(q, k, v, o, do, lse)",
    "dk": "dk travels with its keys, adds up the parts of all ranks, unrounded, and comes home as dk after `ranks` steps",
    "dv": "dv travels with its keys, adds up the parts of all ranks, unrounded, and comes home as dv after `ranks` steps",
    "tensors sent": "k and v travel ranks − 1 times, dk and dv ranks times at most",
}


def inputs():
    for ranks, rows in ((2, 1), (3, 1), (4, 2), (played.MANY, 1)):
        for fresh in (False, True)[: 1 + (ranks < played.MANY)]:
            drawn = played.draws(1, 2, ranks * rows, 4, fresh=fresh)
            on = f"{ranks} ranks, S = {ranks * rows}, H = 2, D = 4"
            yield case(*drawn, ranks, on=on, otherwise=RULES, fresh=fresh)
    drawn = played.draws(1, 2, 2, 4, fresh=False)
    yield case(
        *drawn, 1, on="1 rank, S = 2, H = 2, D = 4", edge="alone", otherwise="one rank: the gradients of chapter 6, and nothing is sent"
    )


EXERCISE = Exercise(
    task="Write one rank's backward routine, with attention_backward.",
    conditions={"alone": "with one rank nothing is sent"},
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
    parts=("dq", "dk", "dv", "tensors sent"),
    tolerance=lambda args, part: (1e-5, 1e-6),  # the answer may add up in float32
    refused=refused,
    note=note,
    adapt=adapt,
)
