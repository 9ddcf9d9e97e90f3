import math

import torch

from fa_tutorial import reading
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import INF, Wrong, adapting

PARTS = "p", "row_max", "row_sum", "acc"


def fa2_softmax(s, row_max, row_sum, acc, scale_log2, is_first):
    """softmax_rescale_o in PyTorch. Returns p, row_max, row_sum and acc as it leaves them."""
    if is_first:
        new_max = s.amax(dim=1)
    else:
        new_max = torch.maximum(row_max, s.amax(dim=1))
    safe = torch.where(new_max == -math.inf, 0.0, new_max)  # −inf − (−inf) would be NaN
    p = torch.exp2(s * scale_log2 - (safe * scale_log2)[:, None])
    new_sum = reading.by_thread(p).sum(dim=2)  # each thread adds up its own columns
    if not is_first:
        alpha = torch.exp2((row_max - safe) * scale_log2)
        new_sum = alpha[:, None] * row_sum + new_sum
        acc = alpha[:, None] * acc
    return p, new_max, new_sum, acc


FIRST_MAX = "    if is_first:\n        new_max = s.amax(dim=1)\n    else:\n        new_max = torch.maximum(row_max, s.amax(dim=1))\n"
P, ALPHA = "torch.exp2(s * scale_log2 - (safe * scale_log2)[:, None])", "torch.exp2((row_max - safe) * scale_log2)"
SCALED = [("    if is_first:\n        new_max", "    s = s * scale_log2\n    if is_first:\n        new_max"),
          (P, "torch.exp2(s - safe[:, None])"), (ALPHA, "torch.exp2(row_max - safe)")]  # fmt: skip
SUM = "reading.by_thread(p).sum(dim=2)"
UNSET = [(FIRST_MAX, "    new_max = torch.maximum(row_max, s.amax(dim=1))\n"), ("if not is_first:", "if True:")]
MISTAKES = {
    "row_max is scaled: theirs is the maximum of the scores as gemm left them, and the scale comes only inside exp2": SCALED,
    "that is chapter 8's step: their row_max stays unscaled, and their first block reads no old state": [*SCALED, *UNSET],
    "the first block reads row_max and row_sum, which nothing has set: with Is_first the block's own maximum and sum become them": UNSET,
    "row_max is multiplied by log₂ e alone: Scale_max is true here, so scale_apply_exp2 multiplies it by the scale, too": (
        P, P.replace("safe * scale_log2", "safe * math.log2(math.e)")),
    "acc comes back as zeros from the first block, as a row_max of −∞ makes alpha 0: with Is_first the function doesn't touch acc_o": (
        "    return p,", "    acc = torch.exp2(-math.inf - safe)[:, None] * acc if is_first else acc\n    return p,"),
    "the exponentials are in base e: softmax_scale_log2 holds log₂ e already, so both are exp2": [
        (P, P.replace("exp2", "exp")), (ALPHA, ALPHA.replace("exp2", "exp"))],
    "scale_log2 is divided by log₂ e: it holds log₂ e already, and exp2 wants it": [
        (P, P.replace("scale_log2", "scale_log2 / math.log2(math.e)")), (ALPHA, ALPHA.replace("scale_log2", "scale_log2 / math.log2(math.e)"))],
    "a row that has seen nothing gives NaN: where its maximum is −inf, both exponentials take 0 for it": (
        "torch.where(new_max == -math.inf, 0.0, new_max)", "new_max"),
    "scores_scale is upside down: it is 2^((old row_max − new row_max) · scale_log2), at most 1": (
        ALPHA, "torch.exp2((safe - row_max) * scale_log2)"),
    "scores_scale lacks softmax_scale_log2: row_max is unscaled, so line 157 multiplies the difference of two maxima by it": (
        ALPHA, "torch.exp2(row_max - safe)"),
    "each thread's row_sum is the whole row's: reduce_max joins a row's four threads, but reduce_sum adds up a thread's own columns": (
        SUM, "p.sum(dim=1, keepdim=True).expand(-1, 4)"),
    "row_max is one thread's maximum: reduce_max calls quad_allreduce_, which joins the four threads of a row": (
        FIRST_MAX, FIRST_MAX.replace("s.amax", "reading.by_thread(s)[:, 0].amax")),
    "p is rounded to 16 bits: line 347 does that, after these lines": ("    return p,", "    p = p.half().float()\n    return p,"),
    "a thread's columns are a quarter in one piece: it holds two of each eight, as by_thread gives them": (SUM, "p.unflatten(1, (4, -1)).sum(dim=2)"),
}  # fmt: skip
CONDITIONS = {
    "hidden": "a row may see none of the keys so far: its scores and its maximum are −∞, and nothing becomes NaN",
    "nan": "a row's scores may be NaN, as its row_max is then: nothing hides that",
}


@adapting
def adapt(answer, *args):
    """The answer, where nothing that it returns is wider than its inputs."""
    results = answer(*args)
    for name, result in zip(PARTS, results if isinstance(results, tuple | list) else (), strict=False):
        if getattr(result, "dtype", None) == torch.float64:
            raise Wrong(f"{name} is float64, want float32: the kernel keeps all four in float32")
    return results


def truth(s, row_max, row_sum, acc, scale_log2, is_first):
    s, row_max, row_sum, acc = (x.double() for x in (s, row_max, row_sum, acc))
    old = torch.full_like(row_max, -INF) if is_first else row_max
    new = torch.maximum(old, s.amax(dim=1))
    seen = new != -INF  # NaN is seen
    weight = torch.where(seen, torch.exp2((old - new) * scale_log2), 0.0)
    p = torch.where(seen[:, None], torch.exp2((s - new[:, None]) * scale_log2), 0.0)
    before = torch.zeros_like(row_sum) if is_first else row_sum
    sums = torch.stack([p[:, 2 * t :: 8].sum(1) + p[:, 2 * t + 1 :: 8].sum(1) for t in range(4)], dim=1)
    return p, new, weight[:, None] * before + sums, acc if is_first else weight[:, None] * acc


def inputs():
    def step(s, row_max, row_sum, acc, scale_log2, is_first, on="", **options):
        return case(*(torch.as_tensor(x) for x in (s, row_max, row_sum, acc)), scale_log2, is_first, on=on, **options)

    later = {
        "p": "a later block: p is 2^((s − row_max) · scale_log2), where row_max is the row's largest score so far, unscaled, all in float32",
        "row_max": "a later block: row_max is the largest score so far, unscaled",
        "row_sum": "a later block: each thread's row_sum is rescaled by 2^((old − new row_max) · scale_log2), and then the sum of its own columns of p, as by_thread gives them, is added",
        "acc": "a later block: acc is rescaled by 2^((old − new row_max) · scale_log2), and nothing else",
    }
    s, maxima, sums, old = (
        [[1.0, 3.0, 0.0, 2.0, 1.0, 1.0, -2.0, 0.0], [2.0, 0.0, 1.0, 3.0, 0.0, 0.0, 2.0, 2.0]],
        [2.0, 4.0],
        [[1.5, 0.5, 1.0, 0.25], [1.25, 2.0, 0.5, 1.0]],
        [[8.0, 4.0], [2.0, 6.0]],
    )
    yield step(s, maxima, sums, old, 0.5, False, otherwise=later)
    unset, no_sums = [math.nan, math.nan], [[math.nan] * 4] * 2
    first = {
        "p": "the first block: p is 2^((s − row_max) · scale_log2), where row_max is the row's largest score in s, unscaled, all in float32",
        "row_max": "the first block: row_max becomes the block's largest score, unscaled, whatever it held",
        "row_sum": "the first block: each thread's row_sum becomes the sum of its own columns of p, as by_thread gives them, whatever it held",
        "acc": "the first block: acc stays as it was, and no row_max or row_sum of before is read",
    }
    s = [s[0], [-6.0, -2.0, -4.0, -3.0, -8.0, -2.0, -5.0, -9.0]]
    yield step(s, maxima, sums, old, 0.5, True, otherwise=first)
    yield step(s, unset, no_sums, old, 0.5, True, otherwise=first)
    draw = generator()
    for is_first in (False, True):
        s, row_max, row_sum = (
            6 * torch.randn(8, 16, generator=draw),
            4 * torch.rand(8, generator=draw),
            1 + torch.rand(8, 4, generator=draw),
        )
        acc = torch.randn(8, 4, generator=draw)
        yield step(s, row_max, row_sum, acc, 0.18, is_first, f"8 rows, is_first={is_first}", fresh=True,
                   otherwise=first if is_first else later)  # fmt: skip
    hidden = "a row whose maximum is −inf has p = 0 and row_sum = 0, and its row_max stays −inf"
    s = [[-INF] * 8, [-INF, 2.0, *[-INF] * 6]]
    sevens = [[0.0, 0.0], [7.0, 7.0]]  # row 1 has seen nothing yet, so acc holds anything
    yield step(s, unset, no_sums, old, 0.5, True, edge="hidden", otherwise=hidden)
    wiped = "a row whose old row_max is −∞ has alpha = 2^(−∞) = 0, which wipes out what acc holds"
    of_parts = dict.fromkeys(later, hidden) | {"acc": wiped}
    yield step(s, [-INF, -INF], [[0.0] * 4] * 2, sevens, 0.5, False, edge="hidden", otherwise=of_parts)
    yield step(s, [3.0, 1.0], sums, old, 0.5, False, edge="hidden", otherwise=hidden)
    shows = "a NaN score stays NaN in p: exp2f(NaN) is NaN, and that is how a bad tile shows"
    s = [[math.nan] * 8, [1.0, 3.0, 0.0, 2.0, 1.0, 1.0, -2.0, 0.0]]
    for is_first in (False, True):
        yield step(s, [math.nan, 2.0], sums, old, 0.5, is_first, edge="nan", otherwise=shows)


EXERCISE = Exercise(
    task="Write in PyTorch what softmax_rescale_o does, from its source.",
    conditions=CONDITIONS,
    hints=(
        "The function has two branches. Which old values does the first one read, and what does it never write? (In their lines, `zero_init` "
        "says whether a reduction reads the old value, and `quad_allreduce_` joins a row's four threads: which of reduce_max and reduce_sum calls it?)",
        "gemm left the scores without their scale, and only scale_apply_exp2 multiplies by it. So what is in row_max, and what must line 157 "
        "do with a difference of two maxima?",
        "scores_scale is 2^((old row_max − scores_max_cur) · scale_log2). p takes the same maximum as scores_scale, with 0 for −inf, and row_max "
        "keeps its −inf. The first block has no scores_scale.",
    ),
    solution=fa2_softmax,
    reasoning="It is your softmax_step, and the rescaling of acc, with three differences. The scale waits for the exponential. The first block sets "
    "the state, so nobody starts it at −∞ and 0, and nothing is rescaled. And the four threads' sums are joined only after the loop: alpha is "
    "the whole row's, so each thread may rescale its own.",
    inputs=inputs,
    truth=truth,
    rule="p = 2^((s − row_max) · scale_log2), where row_max is the unscaled maximum so far; row_sum and acc are rescaled, but not in the "
    "first block",
    mistakes=MISTAKES,
    adapt=adapt,
    parts=PARTS,
)
