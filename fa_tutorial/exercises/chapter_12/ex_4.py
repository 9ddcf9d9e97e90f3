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


S, GUARDED, P, DS = (
    "torch.where(seen, q @ k.T, -math.inf)",
    "torch.where(lse == -math.inf, 0.0, lse * math.log2(math.e))",
    "torch.exp2(s * scale_log2 - max_scaled[:, None])",
    "p * (do @ v.T - delta[:, None])",
)
RESULTS, SCALE = "ds @ k, ds.T @ q, p.T @ do", "scale_log2 * math.log(2)"
AFTER = "line 731 scales dk after the loop, and convert_dQ scales dq"
MISTAKES = {
    f"dq and dk are scaled: {AFTER}": (RESULTS, f"{SCALE} * (ds @ k), {SCALE} * (ds.T @ q), p.T @ do"),
    f"dq and dk are multiplied by scale_log2: {AFTER}, by the scale alone": (
        RESULTS, "scale_log2 * (ds @ k), scale_log2 * (ds.T @ q), p.T @ do"),
    "dq's and dk's shares are swapped: return those of dq, dk and dv, in this order": (RESULTS, "ds.T @ q, ds @ k, p.T @ do"),
    "the shares of dv, dk and dq are returned: return those of dq, dk and dv, in this order": (RESULTS, "p.T @ do, ds.T @ q, ds @ k"),
    "the shares of dk, dv and dq are returned: return those of dq, dk and dv, in this order": (RESULTS, "ds.T @ q, p.T @ do, ds @ k"),
    "a hidden key's score is 0, and p = 2^(0 − lse · log₂ e) is more than 0: the score is −∞, so that p is 0": (S, S.replace("-math.inf", "0.0")),
    "delta is added: pointwise_mult is p · (dp − delta)": (DS, DS.replace("- delta", "+ delta")),
    "delta is summed over this block's keys alone: it is the whole row's, and comes as an argument": (
        DS, "p * (do @ v.T - (p * (do @ v.T)).sum(dim=1, keepdim=True))"),
    "lse is multiplied by scale_log2: it is a logarithm of scaled scores, so it needs only log₂ e": (
        GUARDED, GUARDED.replace("math.log2(math.e)", "scale_log2")),
    "lse is in base e: p is a power of two, so lse is multiplied by log₂ e": (GUARDED, GUARDED.replace(" * math.log2(math.e)", "")),
    "p is e to a power that is in base 2: scale_log2 and lse · log₂ e hold log₂ e already, so p is exp2 of their difference": (
        P, P.replace("exp2", "exp")),
    "p is in base e: scale_log2 holds log₂ e already, so p is exp2, of lse · log₂ e": [
        (GUARDED, GUARDED.replace(" * math.log2(math.e)", "")), (P, P.replace("exp2", "exp"))],
    "p and ds are rounded to 16 bits: FA2 rounds them for its matmuls, but here all stays in float32": (
        f"    return {RESULTS}", f"    p, ds = p.half().float(), ds.half().float()\n    return {RESULTS}"),
    "an lse of −∞ gives NaN: line 534 calls scale_apply_exp2, and its line 76 takes 0 for a −∞": (
        GUARDED, "lse * math.log2(math.e)"),
    "the mask is left out: a hidden key's score is −∞, so its p is 0": (S, "q @ k.T"),
    "p is multiplied by the mask: a hidden score may lie so far above the row's own that its exp2 is ∞, and ∞ · 0 is NaN; replace the score by −∞": [
        (S, "q @ k.T"), (P, P + " * seen")],
    "delta isn't subtracted: pointwise_mult is p · (dp − delta)": (DS, "p * (do @ v.T)"),
    "p is a softmax of this block alone: lse is the whole row's, so p is 2^(s · scale_log2 − lse · log₂ e)": (
        P, f"torch.softmax(s * {SCALE}, dim=1)"),
}  # fmt: skip
CONDITIONS = {
    "hidden": "a row may see no key, in this block or at all; in the second case its lse is +∞ or −∞",
    "overflow": "a row's lse may be so low that p is ∞ in float32: nothing hides that",
}
RULES = {
    "dq": "dq's share is ds k, as the loop leaves it (convert_dQ scales dq, after the loop), where ds = p · (dp − delta), with p of (6.7), all in float32",
    "dk": "dk's share is dsᵀ q, as the loop leaves it (line 731 scales dk, after the loop), where ds = p · (dp − delta), with p of (6.7), all in float32",
    "dv": "dv's share is pᵀ do, with p of (6.7), all in float32",
}


def truth(q, k, v, do, lse, delta, seen, scale_log2):
    q, k, v, do, lse, delta = (x.double() for x in (q, k, v, do, lse, delta))
    p = torch.where(seen, torch.exp(math.log(2) * scale_log2 * (q @ k.T) - lse[:, None]), 0.0)
    p[p > torch.finfo(torch.float32).max] = INF
    ds = p * (do @ v.T - delta[:, None])
    return ds @ k, ds.T @ q, p.T @ do


def inputs():
    def step(q, k, v, do, lse, delta, seen, **options):
        tensors = (torch.as_tensor(x) for x in (q, k, v, do, lse, delta, seen))
        return case(*tensors, 0.5, **{"otherwise": RULES} | options)

    draw = torch.Generator().manual_seed(3)  # the same in every call, unlike what a fresh case has
    every, two = [[True, True], [True, True]], ([[1.0], [2.0]], [[2.0], [-1.0]], [[1.0], [3.0]], [[1.0], [-2.0]])
    yield step(*two, [1.0, 2.0], [0.5, -1.0], every, on="two rows and two keys, D = 1")
    yield step(*two, [1.0, 2.0], [0.5, -1.0], [[True, False], [True, True]], on="row 0 doesn't see key 1")
    q, k, v, do = (torch.randn(rows, 4, generator=draw) for rows in (3, 5, 5, 3))
    yield step(q, k, v, do, torch.ones(3), torch.ones(3), torch.rand(3, 5, generator=draw) > 0.3, on="3 rows, 5 keys, D = 4")
    draw = generator()
    q, k, v, do = (torch.randn(rows, 8, generator=draw) for rows in (6, 4, 4, 6))
    lse, delta = 2 + torch.rand(6, generator=draw), torch.randn(6, generator=draw)
    yield step(q, k, v, do, lse, delta, torch.rand(6, 4, generator=draw) > 0.3, on="6 rows, 4 keys, D = 8", fresh=True)
    nothing = "a row that sees no key of this block adds nothing: its scores are −∞, so its p is 0, and no result is NaN"
    some = [[False, False], [True, True]]
    yield step(*two, [1.0, 2.0], [0.5, -1.0], some, on="row 0 sees no key of this block", edge="hidden", otherwise=nothing)
    yield step(*two, [INF, 2.0], [0.0, -1.0], some, on="row 0 sees no key at all", edge="hidden", otherwise=nothing)
    low = "a hidden key's p is 0, because its score is −∞: a row's own scores may lie below any number but −∞"
    (q, _, v, do), k, seen = two, [[-25_000.0], [-25_001.0]], [[True, False], [True, True]]
    lse, on = [-12_500 * math.log(2), -25_000 * math.log(2) + math.log(1.5)], "row 0 doesn't see key 1, and all scores are below −10,000"
    yield step(q, k, v, do, lse, [0.5, -1.0], seen, on=on, edge="hidden", otherwise=low)
    high = "a hidden key's p is 0, however far its score lies above the row's own: exp2 of that is ∞, and ∞ · 0 is NaN, so −∞ replaces the score"
    (q, _, v, do), k, seen = two, [[1.0], [400.0]], [[True, False], [True, False]]
    lse, on = [0.5 * math.log(2), math.log(2)], "no row sees key 1, whose scores are hundreds above those of key 0"
    yield step(q, k, v, do, lse, [0.5, -1.0], seen, on=on, edge="hidden", otherwise=high)
    guard = "a row whose lse is −∞ adds nothing, and no result is NaN: line 534 calls scale_apply_exp2, and so runs its line 76"
    q, k, v, do = (torch.randn(rows, 4, generator=draw) for rows in (2, 3, 3, 2))
    seen, on = [[False] * 3, [True] * 3], "row 0 sees no key at all, and its lse is −∞"
    # fresh, so that an answer without line 76 is still told its other mistake
    yield step(q, k, v, do, [-INF, 2.0], [0.0, -1.0], seen, on=on, fresh=True, edge="hidden", otherwise=guard)
    shows = "a p that overflows is ∞ in float32, and nothing hides that: only where lse is −∞ does line 76 take another number"
    q, k, v, do = [[1.0], [0.0]], [[2.0], [-1.0]], [[1.0], [3.0]], [[1.0], [0.0]]
    on = "row 1 is past S_q: its q and do are 0, and its lse is −100"
    yield step(q, k, v, do, [1.0, -100.0], [0.5, 0.0], every, on=on, edge="overflow", otherwise=shows)


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
    rule="dq += ds k, dk += dsᵀ q, dv += pᵀ do, with the scale inside exp2 alone",
    mistakes=MISTAKES,
    parts=("dq", "dk", "dv"),
)  # fmt: skip
