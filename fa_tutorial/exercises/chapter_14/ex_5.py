"""Exercise 14.5, attend_fp8."""

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.fp8 import to_e4m3


def attend_fp8(s, v, m, l, acc):
    """A block of keys joins m, l and acc, with p in e4m3.

    s: (rows, keys), scaled; v: (keys, D); m, l: (rows,); acc: (rows, D). Returns m, l, acc.
    """
    m_new = torch.maximum(m, s.amax(dim=1))
    alpha = torch.exp(m - m_new)
    p = to_e4m3(2**8 * torch.exp(s - m_new[:, None]))
    l = alpha * l + p.sum(dim=1)
    acc = alpha[:, None] * acc + p @ v
    return m_new, l, acc


P, L = "to_e4m3(2**8 * torch.exp(s - m_new[:, None]))", "p.sum(dim=1)"
MISTAKES = {
    "p is at most 1, so more than half of e4m3's positive numbers are never used: multiply it before you round": ("2**8 * ", ""),
    "p · 2⁹ goes up to 512, and what is above 448 is cut off": ("2**8", "2**9"),
    "one more power of two has room: 2⁸ = 256 is below 448": ("2**8", "2**7"),
    "p · 448 uses all of the range, but it is no power of two, so it rounds p differently": ("2**8", "448"),
    "l adds up the p before they are rounded, and acc those after: then the weights don't add up to 1": (
        L, "(2**8 * torch.exp(s - m_new[:, None])).sum(dim=1)"),
    "l lacks the factor that p has: then it doesn't cancel in acc / l": (L, "torch.exp(s - m_new[:, None]).sum(dim=1)"),
    "the factor is taken back after the rounding: it cancels in acc / l, so leave it there": (P, f"{P} / 2**8"),
    "l isn't rescaled when the maximum grows": ("alpha * l", "l"),
    "acc isn't rescaled when the maximum grows": ("alpha[:, None] * acc", "acc"),
    "the maximum is this block's alone": ("torch.maximum(m, s.amax(dim=1))", "s.amax(dim=1)"),
    "p isn't rounded": (P, P.removeprefix("to_e4m3")),
    "p is rounded before it is multiplied": (P, "2**8 * to_e4m3(torch.exp(s - m_new[:, None]))"),
}  # fmt: skip


def truth(s, v, m, l, acc):
    m_new = torch.cat([m[:, None], s], dim=1).amax(dim=1, keepdim=True)
    p = to_e4m3(256 * torch.exp(s - m_new))
    alpha = torch.exp(m[:, None] - m_new)
    return m_new[:, 0], (alpha * l[:, None])[:, 0] + p.sum(1), alpha * acc + p @ v


def inputs():
    def fresh(rows, D):
        return torch.full((rows,), -torch.inf).double(), torch.zeros(rows).double(), torch.zeros(rows, D).double()

    def numbers(*values):
        return torch.tensor(values, dtype=torch.float64)

    unit = numbers([1.0], [0.0])
    yield case(numbers([0.0, 0.0]), unit, *fresh(1, 1), otherwise="equal scores: p is 1 for both, before the factor") if False else case(
        numbers([[0.0, 0.0]])[0], unit, *fresh(1, 1), otherwise="equal scores: p is 1 for both, before the factor"
    )


EXERCISE = None
