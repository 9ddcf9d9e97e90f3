"""Exercise 12.2, fa2_softmax."""

import math

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import INF


def fa2_softmax(s, row_max, row_sum, acc, scale_log2, is_first):
    """softmax_rescale_o in PyTorch. Returns p, row_max, row_sum and acc as it leaves them."""
    if is_first:
        new_max = s.amax(dim=1)
    else:
        new_max = torch.maximum(row_max, s.amax(dim=1))
    safe = torch.where(new_max == -math.inf, 0.0, new_max)  # −inf − (−inf) would be NaN
    p = torch.exp2(s * scale_log2 - (safe * scale_log2)[:, None])
    new_sum = p.sum(dim=1)
    if not is_first:
        alpha = torch.exp2((row_max - safe) * scale_log2)
        new_sum = alpha * row_sum + new_sum
        acc = alpha[:, None] * acc
    return p, new_max, new_sum, acc


FIRST_MAX = "    if is_first:\n        new_max = s.amax(dim=1)\n    else:\n        new_max = torch.maximum(row_max, s.amax(dim=1))\n"
P, ALPHA = "torch.exp2(s * scale_log2 - (safe * scale_log2)[:, None])", "torch.exp2((row_max - safe) * scale_log2)"
SUM, ACC = "alpha * row_sum + new_sum", "acc = alpha[:, None] * acc"
SCALED = [("new_max = s.amax(dim=1)", "s = s * scale_log2\n        new_max = s.amax(dim=1)"),
          ("new_max = torch.maximum(row_max, s.amax", "s = s * scale_log2\n        new_max = torch.maximum(row_max, s.amax"),
          (P, "torch.exp2(s - safe[:, None])"), (ALPHA, "torch.exp2(row_max - safe)")]  # fmt: skip
MISTAKES = {
    "row_max is scaled: theirs is the maximum of the scores as gemm left them, and the scale comes only inside exp2": SCALED,
    "that is chapter 8's step: their row_max stays unscaled, and their first block reads no old state": [
        *SCALED, ("if is_first:\n        s = s * scale_log2\n        new_max = s.amax(dim=1)\n    else:", "if True:"),
        ("if not is_first:", "if True:")],
    "the first block reads row_max and row_sum, which nothing has set: with Is_first the block's own maximum and sum become them": [
        (FIRST_MAX, "    new_max = torch.maximum(row_max, s.amax(dim=1))\n"), ("if not is_first:", "if True:")],
    "zero_init is upside down: a reduction with it ignores the old value, and one without it counts it in": [
        ("if is_first:\n        new_max", "if not is_first:\n        new_max"),
        ("    new_sum = p.sum(dim=1)\n", "    new_sum = p.sum(dim=1) + row_sum if is_first else p.sum(dim=1)\n"), (SUM, "new_sum")],
    "reduce_max's zero_init is upside down: with it row_max ignores the old value, and without it counts it in": (
        "if is_first:\n        new_max", "if not is_first:\n        new_max"),
    "row_max is multiplied by log₂ e alone: Scale_max is true here, so scale_apply_exp2 multiplies it by the scale, too": (
        P, P.replace("safe * scale_log2", "safe * math.log2(math.e)")),
    "the first block drops a NaN, but reads a number that nobody has set: with Is_first neither row_max nor row_sum is read": [
        (FIRST_MAX, "    row_max, row_sum = torch.where(row_max.isnan(), -math.inf, row_max), row_sum.nan_to_num()\n"
                    "    new_max = torch.maximum(row_max, s.amax(dim=1))\n"), ("if not is_first:", "if True:")],
    "acc comes back as zeros from the first block, as a row_max of −∞ makes alpha 0: with Is_first the function doesn't touch acc_o": (
        "    return p,", "    acc = torch.zeros_like(acc) if is_first else acc\n    return p,"),
    "the first block rescales by the old row_max, which nothing has set: with Is_first there is no scores_scale": (
        "if not is_first:", "if True:"),
    "the first block rescales acc by the old row_max, which nothing has set: with Is_first the function doesn't touch acc_o": (
        "    return p,", "    acc = torch.exp2((row_max - safe) * scale_log2)[:, None] * acc if is_first else acc\n    return p,"),
    "row_max comes back scaled from the first block: it stays the maximum of the scores as gemm left them, because the next block "
    "compares it with such scores": ("return p, new_max,", "return p, new_max * scale_log2 if is_first else new_max,"),
    "row_max begins at 0 in the first block: with Is_first it is the block's own maximum, which may be below 0": (
        "if is_first:\n        new_max = s.amax(dim=1)", "if is_first:\n        new_max = s.amax(dim=1).clamp(min=0)"),
    "row_max is one maximum for the whole tile: each row has its own": [
        ("new_max = s.amax(dim=1)", "new_max = s.max().expand(len(s))"), ("torch.maximum(row_max, s.amax(dim=1))", "torch.maximum(row_max, s.max())")],
    "in the first block row_max is one maximum for the whole tile: each row has its own": (
        "new_max = s.amax(dim=1)", "new_max = s.max().expand(len(s))"),
    "in a later block the maximum is one for the whole tile: each row has its own": (
        "torch.maximum(row_max, s.amax(dim=1))", "torch.maximum(row_max, s.max())"),
    "row_max is the maximum of each column: it belongs to a row, so the maximum is over the keys, dim 1": [
        ("new_max = s.amax(dim=1)", "new_max = s.amax(dim=0)"), ("torch.maximum(row_max, s.amax(dim=1))", "torch.maximum(row_max, s.amax(dim=0))")],
    "row_max forgets the blocks before: a later block's reduce_max reads the old row_max, too": (
        "torch.maximum(row_max, s.amax(dim=1))", "s.amax(dim=1)"),
    "the exponentials are in base e: softmax_scale_log2 holds log₂ e already, so both are exp2": [
        (P, P.replace("exp2", "exp")), (ALPHA, ALPHA.replace("exp2", "exp"))],
    "p is in base e: softmax_scale_log2 holds log₂ e already, so p is exp2": (P, P.replace("exp2", "exp")),
    "alpha is in base e: softmax_scale_log2 holds log₂ e already, so scores_scale is exp2": (ALPHA, ALPHA.replace("exp2", "exp")),
    "p and alpha take row_max without the scale: row_max is unscaled, so both multiply it by softmax_scale_log2": [
        (P, "torch.exp2(s * scale_log2 - safe[:, None])"), (ALPHA, "torch.exp2(row_max - safe)")],
    "p and alpha are without the scale: row_max is unscaled, so both differences are multiplied by softmax_scale_log2": [
        (P, "torch.exp2(s - safe[:, None])"), (ALPHA, "torch.exp2(row_max - safe)")],
    "p and alpha are in base e and without the scale: both are exp2 of a difference times softmax_scale_log2": [
        (P, "torch.exp(s - safe[:, None])"), (ALPHA, "torch.exp(row_max - safe)")],
    "p is in base e and without the scale: it is exp2((s − row_max) · softmax_scale_log2)": (P, "torch.exp(s - safe[:, None])"),
    "acc is divided by alpha: line 160 multiplies acc_o by scores_scale": (ACC, "acc = acc / alpha[:, None]"),
    "p takes row_max without the scale: scale_apply_exp2 multiplies both by it": (P, "torch.exp2(s * scale_log2 - safe[:, None])"),
    "p is without the scale: scale_apply_exp2 multiplies the scores and their maximum by it": (P, "torch.exp2(s - safe[:, None])"),
    "alpha is without the scale: row_max is unscaled, so the difference of two maxima is, too": (ALPHA, "torch.exp2(row_max - safe)"),
    "row_sum isn't rescaled: it is multiplied by scores_scale before this block's sum is added": (SUM, "row_sum + new_sum"),
    "row_sum is this block's sum alone: a later block's reduce_sum reads the rescaled row_sum, too": (SUM, "new_sum"),
    "acc isn't rescaled: line 160 multiplies acc_o by scores_scale": (ACC, "pass"),
    "a row that has seen nothing gives NaN: where its maximum is −inf, both exponentials take 0 for it": (
        "torch.where(new_max == -math.inf, 0.0, new_max)", "new_max"),
    "alpha is NaN where a row has seen nothing: −inf − (−inf) is NaN, so Check_inf takes 0 for its new maximum": (
        ALPHA, "torch.exp2((row_max - new_max) * scale_log2)"),
    "row_max is returned as 0 where a row has seen nothing: the 0 is for the exponentials alone, row_max stays −inf": (
        "return p, new_max", "return p, safe"),
    "row_max comes back scaled: it stays the maximum of the scores as gemm left them, because the next block compares it with such "
    "scores": ("return p, new_max,", "return p, new_max * scale_log2,"),
    "row_sum lacks this block's sum: the reduction adds p to the rescaled row_sum": (SUM, "alpha * row_sum"),
    "scores_scale is upside down: it is 2^((old row_max − new row_max) · scale_log2), at most 1": (
        ALPHA, "torch.exp2((safe - row_max) * scale_log2)"),
    "acc is divided by row_sum: the function leaves acc_o as it is summed up, and normalize_softmax_lse divides after the loop": (
        "    return p,", "    acc = acc / new_sum[:, None]\n    return p,"),
    "p is divided by row_sum: the function leaves p as exp2 gives it, and normalize_softmax_lse divides acc_o after the loop": (
        "    return p,", "    p = p / new_sum[:, None]\n    return p,"),
    "p and acc are divided by row_sum: normalize_softmax_lse divides acc_o after the loop, once": (
        "    return p,", "    p, acc = p / new_sum[:, None], acc / new_sum[:, None]\n    return p,"),
    "p is a softmax of the block alone: p is measured from row_max, and normalize_softmax_lse divides acc_o after the loop": (
        "    new_sum = p.sum(dim=1)", "    new_sum, p = p.sum(dim=1), torch.softmax(s * scale_log2 * math.log(2), dim=1)"),
    "acc is divided by row_sum in a later block: normalize_softmax_lse divides after the loop, once": (
        "    return p,", "    acc = acc if is_first else acc / new_sum[:, None]\n    return p,"),
    "the results are in another order, p, acc, row_max, row_sum: return p, row_max, row_sum, acc": (
        "p, new_max, new_sum, acc", "p, acc, new_max, new_sum"),
    "the results are in another order, row_max, row_sum, p, acc: return p, row_max, row_sum, acc": (
        "p, new_max, new_sum, acc", "new_max, new_sum, p, acc"),
    "row_max and row_sum are swapped: return p, row_max, row_sum, acc": ("p, new_max, new_sum", "p, new_sum, new_max"),
    "p is rounded to 16 bits: the function leaves it in float32, and line 347 rounds after it": (
        "    return p,", "    p = p.half().to(p.dtype)\n    return p,"),
    "alpha multiplies row_sum and this block's sum: only the old sum is rescaled": (SUM, "alpha * (row_sum + new_sum)"),
}  # fmt: skip
CONDITIONS = {"hidden": "a row may see none of the keys so far: its scores and its maximum are −∞, and nothing becomes NaN"}


def truth(s, row_max, row_sum, acc, scale_log2, is_first):
    s, row_max, row_sum, acc = (x.double() for x in (s, row_max, row_sum, acc))
    old = torch.full_like(row_max, -INF) if is_first else row_max
    new = torch.maximum(old, s.amax(dim=1))
    seen = new > -INF
    weight = torch.where(seen, torch.exp2((old - new) * scale_log2), 0.0)
    p = torch.where(seen[:, None], torch.exp2((s - new[:, None]) * scale_log2), 0.0)
    before = torch.zeros_like(row_sum) if is_first else row_sum
    return p, new, weight * before + p.sum(dim=1), acc if is_first else weight[:, None] * acc


def inputs():
    def step(s, row_max, row_sum, acc, scale_log2, is_first, on="", **options):
        return case(*(torch.as_tensor(x) for x in (s, row_max, row_sum, acc)), scale_log2, is_first, on=on, **options)

    p = "p is 2^((s − row_max) · scale_log2): row_max is unscaled, so the scale multiplies both, and the base is 2"
    later = {
        "p": p,
        "row_max": "a later block: row_max is the largest score so far, unscaled",
        "row_sum": "a later block: row_sum is rescaled by 2^((old − new row_max) · scale_log2), and then p's sum is added",
        "acc": "a later block: acc is rescaled by 2^((old − new row_max) · scale_log2), and nothing is added",
    }
    yield step([[1.0, 3.0], [2.0, 0.0]], [2.0, 4.0], [1.5, 1.25], [[8.0, 4.0], [2.0, 6.0]], 0.5, False, otherwise=later)
    unset, old = [math.nan, math.nan], [[8.0, 4.0], [2.0, 6.0]]
    first = {
        "p": p,
        "row_max": "the first block: row_max becomes the block's largest score, unscaled, whatever it held",
        "row_sum": "the first block: row_sum becomes the sum of p, whatever it held",
        "acc": "the first block: acc stays as it was, and no row_max or row_sum of before is read",
    }
    yield step([[1.0, 3.0], [-6.0, -2.0]], [2.0, 4.0], [1.5, 1.25], old, 0.5, True, otherwise=first)
    yield step([[1.0, 3.0], [-6.0, -2.0]], unset, unset, old, 0.5, True, otherwise=first)
    draw = generator()
    for is_first in (False, True):
        s, row_max, row_sum = 6 * torch.randn(8, 16, generator=draw), 4 * torch.rand(8, generator=draw), 1 + torch.rand(8, generator=draw)
        acc = torch.randn(8, 4, generator=draw)
        yield step(s, row_max, row_sum, acc, 0.18, is_first, f"8 rows, is_first={is_first}", fresh=True,
                   otherwise=first if is_first else later)  # fmt: skip
    hidden = "a row whose maximum is −inf has p = 0 and row_sum = 0, and its row_max stays −inf"
    s = [[-INF, -INF], [-INF, 2.0]]
    zeros = [[0.0, 0.0], [0.0, 0.0]]
    yield step(s, unset, unset, old, 0.5, True, edge="hidden", otherwise=hidden)
    yield step(s, [-INF, -INF], [0.0, 0.0], zeros, 0.5, False, edge="hidden", otherwise=hidden)
    yield step(s, [3.0, 1.0], [1.0, 1.5], [[8.0, 4.0], [2.0, 6.0]], 0.5, False, edge="hidden", otherwise=hidden)


EXERCISE = Exercise(
    task="Write in PyTorch what softmax_rescale_o does, from its source.",
    conditions=CONDITIONS,
    hints=(
        "The function has two branches. Which old values does the first one read, and what does it never write? (In their lines, `zero_init` "
        "says whether a reduction reads the old value.)",
        "gemm left the scores without their scale, and only scale_apply_exp2 multiplies by it. So what is in row_max, and what must line 157 "
        "do with a difference of two maxima?",
        "scores_scale is 2^((old row_max − scores_max_cur) · scale_log2). p takes the same maximum as scores_scale, with 0 for −inf, and row_max "
        "keeps its −inf. The first block has no scores_scale.",
    ),
    solution=fa2_softmax,
    reasoning="It is your softmax_step with three things moved. The scale waits for the exponential. The first block sets the state, so "
    "nobody starts it at −∞ and 0, and nothing is rescaled. And acc is rescaled here, where each thread has its rows' alpha in a register.",
    inputs=inputs,
    truth=truth,
    rule="p = 2^((s − row_max) · scale_log2), where row_max is the unscaled maximum so far; row_sum and acc are rescaled, but not in the "
    "first block",
    mistakes=MISTAKES,
    parts=("p", "row_max", "row_sum", "acc"),
)
