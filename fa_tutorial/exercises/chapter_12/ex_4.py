import math

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import INF


def fa2_backward_step(q, k, v, do, lse, delta, seen, scale_log2):
    """What lines 472 to 687 add to dq, dk and dv for one block of rows and one of keys."""
    s = torch.where(seen, q @ k.T, -math.inf)
    max_scaled = torch.where(lse == -math.inf, 0.0, lse * math.log2(math.e))  # softmax.h, 76
    p = torch.exp2(s * scale_log2 - max_scaled[:, None])
    ds = p * (do @ v.T - delta[:, None])
    return ds @ k, ds.T @ q, p.T @ do


S, P = "torch.where(seen, q @ k.T, -math.inf)", "torch.exp2(s * scale_log2 - max_scaled[:, None])"
GUARDED, RESULTS = "torch.where(lse == -math.inf, 0.0, lse * math.log2(math.e))", "ds @ k, ds.T @ q, p.T @ do"
SCALE = "scale_log2 * math.log(2)"
MISTAKES = {
    "dq and dk are scaled: line 731 scales dk after the loop, and convert_dQ scales dq": (
        RESULTS, f"{SCALE} * (ds @ k), {SCALE} * (ds.T @ q), p.T @ do"),
    "dq's and dk's shares are swapped: return those of dq, dk and dv, in this order": (RESULTS, "ds.T @ q, ds @ k, p.T @ do"),
    "a hidden key's score is 0, and p = 2^(0 − lse · log₂ e) is more than 0: the score is −∞, so that p is 0": (S, S.replace("-math.inf", "0.0")),
    "delta is summed over this block's keys alone: it is the whole row's, and comes as an argument": (
        "delta[:, None]", "(p * (do @ v.T)).sum(dim=1, keepdim=True)"),
    "lse is multiplied by scale_log2: it is a logarithm of scaled scores, so it needs only log₂ e": (
        GUARDED, GUARDED.replace("math.log2(math.e)", "scale_log2")),
    "lse is in base e: p is a power of two, so lse is multiplied by log₂ e": (GUARDED, GUARDED.replace(" * math.log2(math.e)", "")),
    "p is e to a power that is in base 2: scale_log2 and lse · log₂ e hold log₂ e already, so p is exp2 of their difference": (
        P, P.replace("exp2", "exp")),
    "an lse of −∞ gives NaN: line 534 calls scale_apply_exp2, and its line 76 takes 0 for a −∞": (
        GUARDED, "lse * math.log2(math.e)"),
    "the mask is left out: a hidden key's score is −∞, so its p is 0": (S, "q @ k.T"),
    "p is multiplied by the mask: a hidden score may lie so far above the row's own that its exp2 is ∞, and ∞ · 0 is NaN; replace the score by −∞": [
        (S, "q @ k.T"), (P, P + " * seen")],
}  # fmt: skip
CONDITIONS = {
    "hidden": "a hidden key's p is 0, because its score is −∞, however far that lies above the row's own scores or below them",
    "blind": "a row that sees no key adds nothing, and no result is NaN: its lse is +∞, or −∞, for which line 76 takes 0",
    "overflow": "a p that overflows is ∞ in float32, and nothing hides that: only where lse is −∞ does line 76 take another number",
}


def truth(q, k, v, do, lse, delta, seen, scale_log2):
    q, k, v, do, lse, delta = (x.double() for x in (q, k, v, do, lse, delta))
    p = torch.where(seen, torch.exp(math.log(2) * scale_log2 * (q @ k.T) - lse[:, None]), 0.0)
    p[p > torch.finfo(torch.float32).max] = INF
    ds = p * (do @ v.T - delta[:, None])
    return ds @ k, ds.T @ q, p.T @ do


def inputs():
    def step(q, k, v, do, lse, delta, seen, on, **options):
        tensors = (torch.as_tensor(x) for x in (q, k, v, do, lse, delta, seen))
        return case(*tensors, 0.5, on=on, **options)

    two = [[1.0], [2.0]], [[2.0], [-1.0]], [[1.0], [3.0]], [[1.0], [-2.0]]
    yield step(*two, [1.0, 2.0], [0.5, -1.0], [[True, True]] * 2, "two rows and two keys, D = 1")
    yield step(*two, [1.0, 2.0], [0.5, -1.0], [[True, False], [True, True]], "row 0 doesn't see key 1")
    draw = generator()
    q, k, v, do = (torch.randn(rows, 8, generator=draw) for rows in (6, 4, 4, 6))
    lse, delta, seen = 2 + torch.rand(6, generator=draw), torch.randn(6, generator=draw), torch.rand(6, 4, generator=draw) > 0.3
    yield step(q, k, v, do, lse, delta, seen, "6 rows, 4 keys, D = 8", fresh=True)
    q, _, v, do = two
    k, seen, on = [[-25_000.0], [-25_001.0]], [[True, False], [True, True]], "row 0 doesn't see key 1, and all scores are below −10,000"
    lse = [-12_500 * math.log(2), -25_000 * math.log(2) + math.log(1.5)]
    yield step(q, k, v, do, lse, [0.5, -1.0], seen, on, edge="hidden")
    k, seen, on = [[1.0], [400.0]], [[True, False]] * 2, "no row sees key 1, whose scores are hundreds above those of key 0"
    yield step(q, k, v, do, [0.5 * math.log(2), math.log(2)], [0.5, -1.0], seen, on, edge="hidden")
    some = [[False, False], [True, True]]
    yield step(*two, [INF, 2.0], [0.0, -1.0], some, "row 0 sees no key, and its lse is +∞", edge="blind")
    # fresh, so that an answer without line 76 is still told its other mistake
    yield step(*two, [-INF, 2.0], [0.0, -1.0], some, "row 0 sees no key, and its lse is −∞", fresh=True, edge="blind")
    q, do, on = [[1.0], [0.0]], [[1.0], [0.0]], "row 1 is past S_q: its q and do are 0, and its lse is −100"
    yield step(q, two[1], v, do, [1.0, -100.0], [0.5, 0.0], [[True, True]] * 2, on, edge="overflow")


EXERCISE = Exercise(
    task="Write in PyTorch what a step of FA2's backward adds to dq, dk and dv.",
    conditions=CONDITIONS,
    hints=(
        "Begin with the scores, and go through the calls. Which of them reads a scale?",
        "lse is a logarithm of scaled scores, and softmax_scale_log2 is the scale times log₂ e. So what must exp2 subtract from s · scale_log2? "
        "(Scale_max is false in this call.) And what does line 76 do with an lse of −∞?",
        "The matmuls read what their operands are called: tdVsPt is pᵀ, tdKsdSt is dsᵀ, and tdQsdS is ds as it is. None of these lines has a scale.",
    ),
    solution=fa2_backward_step,
    reasoning="The scale enters once, inside exp2, and lse joins it there in base 2. dq and dk are sums over blocks, and a factor that all of "
    "them have is multiplied once, at the end: line 731 for dk, convert_dQ for dq.",
    inputs=inputs,
    truth=truth,
    rule="the shares are ds k of dq, dsᵀ q of dk and pᵀ do of dv, as the loop leaves them, with the scale inside exp2 alone, where "
    "ds = p · (dp − delta), with p of (6.7), all in float32",
    mistakes=MISTAKES,
    parts=("dq", "dk", "dv"),
)  # fmt: skip
