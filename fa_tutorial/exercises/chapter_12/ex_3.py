"""Exercise 12.3, lagging_step."""

import math

import torch

from fa_tutorial.exercises.harness import ANYTHING, Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import INF


def lagging_step(s, shift, l, threshold):
    """softmax_step, but a row's shift moves only if exp(m − shift) > 2^threshold."""
    m = torch.maximum(shift, s.amax(dim=-1))
    moves = (m - shift) * math.log2(math.e) > threshold  # [block_m]
    new_shift = torch.where(moves, m, shift)
    safe = torch.where(new_shift == -math.inf, 0.0, new_shift)  # −inf − (−inf) would be NaN
    p = torch.exp(s - safe[:, None])
    alpha = torch.exp(shift - safe)
    return p, new_shift, alpha * l + p.sum(dim=-1), alpha


MISTAKES = {
    "always": "the shift moves with every larger maximum: it stays while the growth is at most the threshold",
    "never": "the shift never moves: it must become the maximum where that outgrows it by more than the threshold",
    "natural": "the growth is compared in powers of e: times log₂ e it is in powers of two",
    "divided": "the growth is divided by log₂ e: exp(x) = 2^(x · log₂ e), so multiply",
    "power": "m − shift is compared with 2^threshold: it is exp(m − shift) that must not exceed it",
    "no_power": "exp(m − shift) is compared with the threshold itself: it is 2^threshold that it must not exceed",
    "to_limit": "the shift moves by the threshold alone: where it moves, it becomes the new maximum",
    "added": "the old shift is ignored in the comparison: it is m − shift that the threshold limits",
    "all_rows": "all rows move when one of them does: each row decides for itself",
    "every_row": "no row moves unless all do: each row decides for itself",
    "p_maximum": "p is measured from the new maximum: where the shift stays, p is exp(s − shift)",
    "p_old": "p is measured from the old shift: where the shift moves, p is exp(s − new shift)",
    "alpha_maximum": "alpha rescales to the new maximum: where the shift stays, alpha is 1",
    "alpha_sign": "alpha's exponent has the wrong sign: it is the old shift minus the new one",
    "no_alpha": "l isn't rescaled: where the shift moves, multiply it by alpha",
    "fresh_l": "l is this block's sum alone: add alpha · l",
    "nan": "a row that has seen nothing gives NaN: its new shift is −inf, and −inf − (−inf) is NaN",
    "exchanged": "l and alpha are swapped: return p, shift, l, alpha",
    "returns_m": "the maximum is returned in place of the shift that p was measured from",
}
CONDITIONS = {
    "first": "a row's first block arrives with shift = −∞ and l = 0",
    "hidden": "a row may see none of a block's keys: their p is 0, and a shift of −∞ stays",
}
RULE = "p = exp(s − new shift), alpha = exp(old shift − new shift), and l joins them as in softmax_step"


def twin(s, shift, l, threshold, mistake=None):
    s, shift, l = s.double(), shift.double(), l.double()
    m = torch.maximum(shift, s.amax(dim=-1))
    growth = (s.amax(dim=-1) if mistake == "added" else m - shift) * {"natural": 1.0, "divided": math.log(2)}.get(
        mistake, math.log2(math.e)
    )
    moves = {"power": m - shift > 2**threshold, "no_power": torch.exp(m - shift) > threshold}.get(mistake, growth > threshold)
    started = shift > -INF
    moves = {"always": m > shift, "never": ~started, "all_rows": moves.any().expand_as(moves),
             "every_row": moves.all().expand_as(moves) | ~started}.get(mistake, moves)  # fmt: skip
    new = torch.where(moves, torch.where(started, shift + threshold * math.log(2), m) if mistake == "to_limit" else m, shift)
    safe = new if mistake == "nan" else new.masked_fill(new == -INF, 0.0)
    p = torch.exp(s - {"p_maximum": m, "p_old": torch.where(started, shift, m)}.get(mistake, safe)[:, None])
    alpha = torch.exp({"alpha_maximum": shift - m, "alpha_sign": torch.where(started, new - shift, -INF)}.get(mistake, shift - safe))
    total = {"no_alpha": l, "fresh_l": 0 * l}.get(mistake, alpha * l) + p.sum(dim=-1)
    alpha = alpha if mistake == "nan" else alpha.masked_fill((l == 0) | (new == -INF), ANYTHING)  # it multiplies 0
    return (p, new, alpha, total) if mistake == "exchanged" else (p, m if mistake == "returns_m" else new, total, alpha)


def inputs():
    ones = torch.ones(2)
    # growths of 1.5, 2.5, 0.5, 1, 3.5 and 5; two powers of two are 1.39
    s = torch.tensor([[0.5, 0.0], [2.5, 0.0], [1.0, 0.0], [3.0, 0.0], [3.5, 0.0], [5.0, 0.0]])
    yield case(s, torch.tensor([-1.0, 0.0, 0.5, 2.0, 0.0, 0.0]), torch.ones(6), 2.0, otherwise=RULE)
    yield case(torch.tensor([[6.0, 0.0], [9.0, 1.0]]), torch.tensor([0.0, 0.0]), ones, 8.0, otherwise=RULE)  # 6 · log₂ e is 8.7
    yield case(torch.tensor([[5.0, 1.0], [4.0, 1.0]]), torch.tensor([4.0, 3.0]), ones, 4.0, otherwise="no row outgrows its shift")
    yield case(torch.tensor([[1.0, 0.0], [2.0, 1.0]]), torch.tensor([4.0, 3.0]), ones, 0.0, otherwise="the maximum doesn't grow")
    draw = generator()
    for threshold in (0.0, 1.0, 8.0):
        s, shift = 6 * torch.randn(8, 16, generator=draw), 8 * torch.rand(8, generator=draw)
        yield case(
            s, shift, 1 + torch.rand(8, generator=draw), threshold, on=f"8 rows, threshold {threshold:g}", fresh=True, otherwise=RULE
        )
    none = torch.full((2,), -INF), torch.zeros(2)
    yield case(torch.tensor([[3.0, 0.0], [-5.0, -9.0]]), *none, 8.0, edge="first", otherwise="the first block's maximum becomes the shift")
    s = torch.tensor([[-INF, -INF], [-INF, -INF], [-INF, 3.0]])
    yield case(
        s,
        torch.tensor([-INF, 2.0, -INF]),
        torch.tensor([0.0, 1.0, 0.0]),
        8.0,
        edge="hidden",
        otherwise="a hidden key's p is 0, and a row that has seen nothing keeps shift = −∞",
    )


EXERCISE = Exercise(
    id="12.3",
    task="Write softmax_step with FA4's threshold: the shift moves only where the maximum outgrows it.",
    conditions=CONDITIONS,
    hints=(
        "Start from chapter 4's softmax_step. Only one thing is new: which rows take m as their shift, and which keep the old one?",
        "exp(m − shift) is 2 to the power of (m − shift) · log₂ e. Compare that power with the threshold, row by row.",
        "new_shift = torch.where((m - shift) * math.log2(math.e) > threshold, m, shift). Then use it wherever softmax_step uses m_new, which guards rows that saw nothing.",
    ),
    solution=lagging_step,
    reasoning="A row's output is acc / l, and a shift that is too small multiplies both by the same factor. So any shift is right, as long as acc and l "
    "use the same one and p cannot overflow: here p is at most 2 to the power of the threshold. Where the shift stays, alpha is 1.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("p", "shift", "l", "alpha"),
)
