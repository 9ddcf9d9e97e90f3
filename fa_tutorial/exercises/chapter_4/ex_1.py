"""Exercise 4.1, softmax_step."""

import math

import torch

from fa_tutorial.exercises.harness import ANYTHING, Exercise, case
from fa_tutorial.exercises.inputs import exp32, generator, vectors
from fa_tutorial.exercises.running import INF, show


def softmax_step(s, m, l):
    """A tile of scores joins the running m and l of its rows. Returns (p, m_new, l_new, alpha)."""
    m_new = torch.maximum(m, s.amax(dim=-1))
    shift = torch.where(m_new == -math.inf, 0.0, m_new)  # −inf − (−inf) would be NaN
    p = torch.exp(s - shift[..., None])
    alpha = torch.exp(m - shift)
    l_new = alpha * l + p.sum(dim=-1)
    return p, m_new, l_new, alpha


_NAN = "a row that has seen nothing gives NaN: m_new is −inf, and −inf − (−inf) is NaN"
MISTAKES = {
    "exchanged": "m_new and l_new are swapped: return (p, m_new, l_new, alpha)",
    "keepdim": "m_new, l_new and alpha have one number per row, as m has: no keepdim",
    "m_minimum": "m_new is the minimum of the scores",
    "m_old": "m_new is the old m: it is the larger of m and the row's largest score",
    "m_added": "the maxima are added: m_new is the larger of the two",
    "m_block": "m_new is the block's own maximum: the running one never falls",
    "m_tile": "one maximum is taken over the whole tile: each row has its own",
    "m_columns": "the maximum runs down the columns: take it over the last dimension, the keys",
    "m_positive": "m_new is never below 0: the scores are",
    "p_normalised": "p is divided by its sum: the division waits until every block has been seen",
    "p_unshifted": "the scores are not shifted: p = exp(s − m_new)",
    "p_sign": "the exponent has the wrong sign: it is s − m_new, which is never positive",
    "p_no_exp": "that is s − m_new: exp is missing",
    "p_old": "p is relative to the old maximum: it must be relative to m_new",
    "p_block": "p is relative to the block's own maximum: it must be relative to m_new",
    "p_tile": "p of both rows is relative to the largest score of the tile: each row has its own maximum",
    "p_columns": "column j is shifted by the maximum of row j: it has lost its dimension",
    "p_base_2": "the base is e, not 2",
    "alpha_inverted": "alpha is inverted: it is exp(m − m_new), which is at most 1",
    "alpha_inverted_too": "alpha is inverted, and l_new with it: it is exp(m − m_new), which is at most 1",
    "alpha_one": "alpha is 1, and the maximum has grown: it is exp(m − m_new)",
    "alpha_no_exp": "alpha is the exponent m − m_new: exp is missing",
    "alpha_base_2": "the base of alpha is e, not 2",
    "alpha_part": "alpha is the part of l_new that comes from before: it is exp(m − m_new)",
    "alpha_block": "alpha is taken with the block's own maximum: it is exp(m − m_new), which is at most 1",
    "alpha_tile": "one alpha is taken for the whole tile: each row has its own",
    "l_no_rescale": "your l is not rescaled when the maximum grows",
    "l_sign": "your l is rescaled with the wrong sign of the exponent",
    "l_all": "the new block's sum is rescaled as well: multiply by alpha only what was summed before it",
    "l_anew": "l starts anew with every block: add to the rescaled l",
    "l_no_block": "the new block's sum is missing in l_new",
    "l_new_rescaled": "the new block's sum is rescaled, and the old one is not",
    "l_block": "l_new adds the block's sum relative to its own maximum",
    "l_tile": "l_new adds the sum of the whole tile: each row has its own sum",
    "l_columns": "the sum runs down the columns: take it over the last dimension, the keys",
    "l_log": "l_new is the logarithm of the sum: return the sum itself",
    "nan": _NAN,
    "alpha_nan": "alpha is NaN in a row that has seen nothing: −inf − (−inf)",
    "hidden_counts": "hidden scores count as 1 in a row that has seen nothing: exp(−inf) is 0",
    "hidden_anew": "alpha drops what was seen before a hidden block: m has not changed, so it is 1",
    "finite": "a row that has seen nothing keeps m = −inf: m starts at a finite number here",
}

CONDITIONS = {
    "hidden": "a block that is hidden from a row leaves its m and l as they are, and its p is 0",
    "unseen": "a row that has seen nothing keeps m = −inf and l = 0, and its p is 0",
    "float64": "a float64 input gives a result with float64's accuracy",
    "views": "s, m and l may be views with any strides: no .view",
}


def twin(s, m, l, mistake=None):
    s, m, l = s.double(), m.double(), l.double()
    old, own = (m.clamp(min=-1e6) if mistake == "finite" else m), s.amax(-1)
    m_new = torch.maximum(old, own)
    m_new = {"m_minimum": s.amin(-1), "m_old": m, "m_added": m + own, "m_block": own, "m_positive": m_new.clamp(min=0)}.get(mistake, m_new)
    m_new = torch.maximum(m, s.max()) if mistake == "m_tile" else torch.maximum(m, s.amax(-2)) if mistake == "m_columns" else m_new
    shift = m_new if mistake == "nan" else m_new.masked_fill(m_new == -INF, 0.0)
    shift_p = {"p_unshifted": 0 * shift, "p_old": m, "p_block": own.masked_fill(own == -INF, 0.0), "p_tile": s.max().expand(m.shape)}.get(
        mistake, shift
    )
    x = s - (shift_p if mistake == "p_columns" else shift_p[..., None])
    p = {"p_sign": exp32(-x), "p_no_exp": x, "p_base_2": 2**x}.get(mistake, exp32(x))
    p = p / p.sum(-1, keepdim=True) if mistake == "p_normalised" else p
    p = p.masked_fill((m_new == -INF)[..., None], 1.0) if mistake == "hidden_counts" else p
    right = exp32(old - shift)
    sums, inverted = p.sum(-1), exp32(shift - m)
    alpha = {"alpha_inverted": inverted, "alpha_inverted_too": inverted, "alpha_one": torch.ones_like(m), "alpha_no_exp": m - shift,
             "alpha_base_2": 2 ** (m - shift), "alpha_part": right * l / (right * l + sums), "alpha_block": exp32(m - own),
             "alpha_tile": exp32(m - shift.max()), "hidden_anew": torch.where(own == -INF, 0.0, right),
             "alpha_nan": exp32(m - m_new)}.get(mistake, right)  # fmt: skip
    carried = alpha if mistake in ("alpha_inverted_too", "hidden_anew", "alpha_nan") else right
    l_new = {"l_no_rescale": l + sums, "l_sign": inverted * l + sums, "l_all": right * (l + sums), "l_anew": sums, "l_no_block": right * l,
             "l_new_rescaled": l + right * sums, "l_block": right * l + exp32(s - own[..., None]).sum(-1), "l_tile": right * l + p.sum(),
             "l_log": (right * l + sums).log()}.get(mistake, carried * l + sums)  # fmt: skip
    l_new = right * l + p.sum(-2) if mistake == "l_columns" else l_new
    if mistake not in ("nan", "alpha_nan", "alpha_inverted", "alpha_inverted_too"):
        alpha = alpha.masked_fill(torch.maximum(m, own) == -INF, ANYTHING)  # it multiplies 0
    if mistake == "keepdim":
        return p, m_new[..., None], l_new[..., None], alpha[..., None]
    return (p, l_new, m_new, alpha) if mistake == "exchanged" else (p, m_new, l_new, alpha)


def inputs():
    def step(s, m, l, otherwise="", **options):
        s, m, l = torch.tensor(s), torch.tensor(m), torch.tensor(l)
        return case(s, m, l, on=f"s = {show(s)}, m = {show(m)}, l = {show(l)}", otherwise=otherwise, **options)

    yield step([[1.0, 3.0]], [-INF], [0.0], "a first block: p = exp(s − m_new), l_new is the sum of p")
    yield step([[2.0]], [1.0], [2.0], "the maximum grows: l and whatever was summed before must be rescaled to it")
    yield step([[1.0]], [3.0], [2.0], "the maximum was seen before: the new block must be relative to it")
    yield step([[1.0, 2.0], [4.0, 6.0]], [3.0, 5.0], [2.0, 1.0], "a square tile: a row's maximum and sum run over its keys")
    yield step([[1.0, 2.0, 0.0], [4.0, 3.0, 6.0]], [3.0, 5.0], [2.0, 1.0], "two rows: each has its own m, l and alpha")
    s, ones = torch.arange(12.0).view(2, 2, 3) ** 0.5, torch.ones(2, 2)
    yield case(s, ones, ones, on="s of shape (2, 2, 3)", otherwise="s may have more dimensions, batch and heads, in front")
    yield step([[-2.0, -1.0]], [-INF], [0.0], "negative scores: m_new is their maximum")
    yield step([[1000.0, 1001.0]], [999.0], [1.0], "exp overflows: every exponent must be relative to m_new")
    yield step([[-1000.0, -1001.0]], [-INF], [0.0], "exp underflows: every exponent must be relative to m_new")
    yield step([[0.0], [1000.0]], [0.0, 0.0], [1.0, 1.0], "row 0 underflows (it would if one maximum were taken for the whole tile)")
    draw = generator()
    for shape in ((1, 1), (5, 7), (2, 3, 4, 8)):
        for words, s in vectors(draw, *shape):
            m, l = s[..., 0] + torch.randn(shape[:-1], generator=draw), 1 + torch.rand(shape[:-1], generator=draw)
            yield case(s.float(), m.float(), l, on=f"{words}, s of shape {shape}", fresh=True)
            yield case(s, m.double(), l.double(), on=f"{words}, s of shape {shape}, float64", fresh=True, edge="float64")
    thirds = torch.arange(1.0, 7.0, dtype=torch.float64).view(2, 3) / 3  # no float32 holds most of them
    yield case(thirds, thirds[:, 0] / 3, thirds[:, 1], on="s = [[1/3, 2/3, 1], [4/3, 5/3, 2]] in float64", edge="float64")
    yield step([[-INF, 1.0]], [-INF], [0.0], "a hidden score beside one that is seen has p = 0", edge="hidden")
    yield step([[-INF, -INF]], [2.0], [3.0], edge="hidden")
    yield step([[-INF, -INF]], [-INF], [0.0], edge="unseen")
    yield step(
        [[-INF, -INF], [1.0, 2.0]],
        [-INF, 0.0],
        [0.0, 1.0],
        "one row has seen nothing, the other has: tell them apart row by row",
        edge="unseen",
    )
    s = torch.randn(3, 4, 6, generator=draw)
    wide = torch.stack([s, s * math.nan], -1).flatten(-2)[..., ::2]
    m = torch.randn(4, 3, generator=draw).T
    yield case(wide, m, m.abs() + 1, on="views, s of shape (3, 4, 6)", fresh=True, edge="views")


EXERCISE = Exercise(
    id="4.1",
    task="Let a tile of scores join the running maximum and sum of its rows.",
    conditions=CONDITIONS,
    hints=(
        "It is (1.10) for many rows at once. By which factor must you multiply what was summed before, and which tensors have one number per row?",
        "m_new is the larger of m and s.amax(dim=-1), p = exp(s − m_new[..., None]), alpha = exp(m − m_new), l_new = alpha · l + p.sum(dim=-1).",
        "A row that has seen nothing has m_new = −inf, and −inf − (−inf) is NaN. Shift such rows by 0 instead; torch.where decides row by row.",
    ),
    solution=softmax_step,
    reasoning="p is measured from the new maximum, so alpha = exp(m − m_new) moves the old sum there as well. While the maximum stays, alpha is 1. "
    "The function returns alpha because acc needs the same factor. Rows that have seen nothing are shifted by 0 instead of −inf: "
    "exp(−inf − 0) gives 0 for p and alpha, and −inf − (−inf) would give NaN.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("p", "m_new", "l_new", "alpha"),
)
