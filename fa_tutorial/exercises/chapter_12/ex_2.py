import math

import torch

from fa_tutorial import reading
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import INF, Wrong, adapting, unpack

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
MISTAKES = {
    "row_max is scaled: theirs is the maximum of the scores as gemm left them, and the scale comes only inside exp2": [
        ("    if is_first:\n        new_max", "    s = s * scale_log2\n    if is_first:\n        new_max"),
        (P, "torch.exp2(s - safe[:, None])"), (ALPHA, "torch.exp2(row_max - safe)")],
    "the first block reads row_max and row_sum, which nothing has set: with Is_first the block's own maximum and sum become them": [
        (FIRST_MAX, "    new_max = torch.maximum(row_max, s.amax(dim=1))\n"), ("if not is_first:", "if True:")],
    "row_max is multiplied by log₂ e alone: Scale_max is true here, so scale_apply_exp2 multiplies it by the scale, too": (
        P, P.replace("safe * scale_log2", "safe * math.log2(math.e)")),
    "the exponentials are in base e: softmax_scale_log2 holds log₂ e already, so both are exp2": [
        (P, P.replace("exp2", "exp")), (ALPHA, ALPHA.replace("exp2", "exp"))],
    "a row that has seen nothing gives NaN: where its maximum is −inf, both exponentials take 0 for it": (
        "torch.where(new_max == -math.inf, 0.0, new_max)", "new_max"),
    "scores_scale lacks softmax_scale_log2: row_max is unscaled, so line 157 multiplies the difference of two maxima by it": (
        ALPHA, "torch.exp2(row_max - safe)"),
    "each thread's row_sum is the whole row's: reduce_max joins a row's four threads, but reduce_sum adds up a thread's own columns": (
        "reading.by_thread(p).sum(dim=2)", "p.sum(dim=1, keepdim=True).expand(-1, 4)"),
}  # fmt: skip
CONDITIONS = {
    "hidden": "where a row has seen nothing, row_max stays −∞ and p is 0; where it had seen nothing before, alpha = 2^(−∞) = 0",
    "nan": "a NaN score stays NaN in p: exp2f(NaN) is NaN, and that is how a bad tile shows",
}


@adapting
def adapt(answer, *args):
    """The answer, where nothing that it returns is wider than its inputs."""
    results = unpack(answer(*args), PARTS)
    for name, result in results.items():
        if getattr(result, "dtype", None) == torch.float64:
            raise Wrong(f"{name} is float64, want float32: the kernel keeps all four in float32")
    return tuple(results.values())


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
    def step(s, row_max, row_sum, acc, is_first, **options):
        return case(*(torch.as_tensor(x) for x in (s, row_max, row_sum, acc)), 0.5, is_first, **options)

    later = {
        "p": "a later block: p is 2^((s − row_max) · scale_log2), where row_max is the row's largest score so far, unscaled, all in float32",
        "row_max": "a later block: row_max is the largest score so far, unscaled",
        "row_sum": "a later block: each thread's row_sum is rescaled by 2^((old − new row_max) · scale_log2), and then the sum of its own columns of p, as by_thread gives them, is added",
        "acc": "a later block: acc is rescaled by 2^((old − new row_max) · scale_log2), and nothing else",
    }
    first = (
        "a first block reads no old state: row_max becomes the block's largest score, unscaled, row_sum each thread's sum of its own columns "
        "of p, as by_thread gives them, and acc stays as it was; p is 2^((s − row_max) · scale_log2), all in float32"
    )
    row = [1.0, 0.0, 3.0, 2.0, 1.0, 1.0, -2.0, 0.0]
    sums, acc = [[1.5, 0.5, 1.0, 0.25], [1.25, 2.0, 0.5, 1.0]], [[8.0, 4.0], [2.0, 6.0]]
    unset, no_sums, nothing = [math.nan] * 2, [[math.nan] * 4] * 2, [-INF] * 8
    yield step([row, [2.0, 0.0, 1.0, 3.0, 0.0, 0.0, 2.0, 2.0]], [2.0, 4.0], sums, acc, False, otherwise=later)
    yield step([row, [-6.0, -4.0, -2.0, -3.0, -8.0, -2.0, -5.0, -9.0]], unset, no_sums, acc, True, otherwise=first)
    draw = generator()
    for is_first, words in ((False, later), (True, first)):
        s, old = 6 * torch.randn(8, 16, generator=draw), 4 * torch.rand(8, 5, generator=draw)
        yield step(s, old[:, 0], 1 + old[:, 1:], old[:, :3] - 2, is_first, on=f"8 rows, is_first={is_first}", otherwise=words, fresh=True)
    yield step([nothing, [-INF, 2.0, *nothing[2:]]], unset, no_sums, acc, True, edge="hidden")
    none, sevens = [0.0] * 4, [7.0, 7.0]  # what acc holds before a row's first key doesn't matter
    yield step([nothing, row, nothing], [-INF, -INF, 3.0], [none, none, sums[0]], [none[:2], sevens, acc[0]], False, edge="hidden")
    yield step([[math.nan] * 8, row], unset, no_sums, acc, True, edge="nan")


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
