import math

import torch

from fa_tutorial.exercises.harness import ANYTHING, Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import INF


def lagging_step(s, shift, l, threshold):
    """softmax_step with the row_max of FA4's lines 135 to 146. Returns p, the new shift, l and alpha."""
    m = torch.maximum(shift, s.amax(dim=-1))
    moves = (m - shift) * math.log2(math.e) > threshold  # [block_m]
    new_shift = torch.where(moves, m, shift)
    safe = torch.where(new_shift == -math.inf, 0.0, new_shift)  # −inf − (−inf) would be NaN
    p = torch.exp(s - safe[:, None])
    alpha = torch.exp(shift - safe)
    return p, new_shift, alpha * l + p.sum(dim=-1), alpha


MOVES, SAFE = "(m - shift) * math.log2(math.e) > threshold", "torch.where(new_shift == -math.inf, 0.0, new_shift)"
P, ALPHA = "torch.exp(s - safe[:, None])", "torch.exp(shift - safe)"
MISTAKES = {
    "the shift moves with every larger maximum: it stays while the growth is at most the threshold": ("torch.where(moves, m, shift)", "m"),
    "alpha is NaN where a row has seen nothing: −inf − (−inf) is NaN, so alpha takes 0 for the new shift, too": (
        ALPHA, "torch.exp(shift - new_shift)"),
    "m − shift is compared with the threshold: it is exp(m − shift) = 2^((m − shift) · log₂ e) that must not exceed 2^threshold": (MOVES, "m - shift > threshold"),
    "p, alpha and the comparison are FA4's lines in base 2: s and shift are in base e here, so p and alpha are exp, and m − shift is "
    "multiplied by log₂ e before it is compared with the threshold": [
        (MOVES, "m - shift > threshold"), (P, P.replace("exp", "exp2")), (ALPHA, ALPHA.replace("exp", "exp2"))],
    "m − shift is compared with 2^threshold: it is exp(m − shift) that must not exceed it": (MOVES, "m - shift > 2**threshold"),
    "all rows move when one of them does: each row decides for itself": (MOVES, f"({MOVES}).any()"),
    "p is measured from the new maximum: where the shift stays, p is exp(s − shift)": (
        P, "torch.exp(s - torch.where(m == -math.inf, 0.0, m)[:, None])"),
    "a row that has seen nothing gives NaN: its new shift is −inf, and −inf − (−inf) is NaN": (SAFE, "new_shift"),
}  # fmt: skip
CONDITIONS = {
    "first": "a row's first maximum becomes its shift, as it is more than −∞, and alpha is 0",
    "hidden": "a row that sees none of a block's keys keeps its shift, be it −∞ or as low as −30; p is 0, and alpha no NaN",
}
RULES = {
    "p": "p is exp(s − new shift), where the new shift is m if exp(m − shift) exceeds 2^threshold, and the old one if not",
    "shift": "a row's shift becomes m where exp(m − shift) exceeds 2^threshold, and stays everywhere else",
    "l": "l is alpha · l plus the row's sum of p, where alpha = exp(old shift − new shift) is 1 for a row that doesn't move",
    "alpha": "alpha is exp(old shift − new shift): 1 where a row doesn't move",
}


def truth(s, shift, l, threshold):
    s, shift, l = s.double(), shift.double(), l.double()
    m = torch.maximum(shift, s.amax(dim=-1))
    new = torch.where(m - shift > threshold * math.log(2), m, shift)
    p, alpha = torch.exp(s - new[:, None]).nan_to_num(), torch.exp(shift - new).nan_to_num()
    return p, new, alpha * l + p.sum(dim=-1), alpha.masked_fill(new == -INF, ANYTHING)  # it multiplies 0


def inputs():
    def step(s, shift, l, threshold, **options):
        return case(*(torch.as_tensor(x) for x in (s, shift, l)), threshold, **options)

    # growths of 1.5, 2.5, 0.5, 1, 3.5 and 5; two powers of two are 1.39
    s = [[0.5, 0.0], [2.5, 0.0], [1.0, 0.0], [3.0, 0.0], [3.5, 0.0], [5.0, 0.0]]
    yield step(s, [-1.0, 0.0, 0.5, 2.0, 0.0, 0.0], [1.0, 2.0, 1.5, 3.0, 2.0, 0.5], 2.0, otherwise=RULES)
    # of 6, 5 and −19; 6 · log₂ e is 8.7, and 5 · log₂ e 7.2
    yield step([[6.0, 0.0], [5.0, 1.0], [1.0, 0.0]], [0.0, 0.0, 20.0], [1.0, 1.0, 2.0], 8.0, otherwise=RULES)
    # of 0.5 and 1, so both rows stay
    yield step([[1.0, 0.0], [2.0, 1.0]], [0.5, 1.0], [1.0, 1.0], 8.0, otherwise=RULES)
    draw = generator()
    for threshold in (0.0, 1.0, 8.0):
        s, shift, l = 6 * torch.randn(8, 16, generator=draw), 8 * torch.rand(8, generator=draw), 1 + torch.rand(8, generator=draw)
        yield step(s, shift, l, threshold, on=f"8 rows, threshold {threshold:g}", otherwise=RULES, fresh=True)
    yield step([[3.0, 0.0], [-5.0, -9.0]], [-INF, -INF], [0.0, 0.0], 8.0, edge="first")
    yield step([[-INF, -INF], [-INF, -INF], [-INF, 3.0]], [-INF, -30.0, 2.0], [0.0, 1.4, 1.0], 8.0, edge="hidden")


EXERCISE = Exercise(
    task="Write softmax_step with FA4's update_row_max, from its source: the shift moves only where the maximum outgrows it.",
    conditions=CONDITIONS,
    hints=(
        "Start from chapter 4's softmax_step. Only one thing is new: which rows take m as their shift, and which keep the old one? "
        "Lines 135 to 139 are the step that you know, and 142 to 144 undo it.",
        "acc_scale_ is the power of two that alpha is: −(m − shift) · log₂ e in your units, where exp(m − shift) is 2^((m − shift) · log₂ e). "
        "Line 141 compares it with the threshold, row by row.",
        "new_shift = torch.where((m - shift) * math.log2(math.e) > threshold, m, shift). Then use it wherever softmax_step uses m_new, "
        "which guards rows that saw nothing.",
    ),
    solution=lagging_step,
    reasoning="A row's output is acc / l, and a shift that is too small multiplies both by the same factor. So any shift is right, as "
    "long as acc and l use the same one and p cannot overflow: here p is at most 2 to the power of the threshold. Where the shift stays, "
    "alpha is 1.",
    inputs=inputs,
    truth=truth,
    rule="p = exp(s − new shift), alpha = exp(old shift − new shift), and l joins them as in softmax_step",
    mistakes=MISTAKES,
    parts=tuple(RULES),
)
