import torch

from fa_tutorial.exercises.chapter_14.ex_4 import numbers
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.fp8 import to_e4m3


def attend_fp8(s, v, m, l, acc):
    """Update m, l and acc with a block of keys, p in e4m3.

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
    "2⁷ isn't the largest: with the next power of two no p passes 448 either, and half as many p fall below e4m3's numbers": (
        "2**8", "2**7"),
    "p · 2⁹ goes up to 512, and what is above 448 is cut off": ("2**8", "2**9"),
    "p · 448 rounds p as well as 2⁸, but it is no power of two, whose exponent the kernel adds before exp2": ("2**8", "448"),
    "l adds up the p before they are rounded, and acc those after: then the weights don't add up to 1": (
        L, "(2**8 * torch.exp(s - m_new[:, None])).sum(dim=1)"),
    "l lacks the factor that p has: then it doesn't cancel in acc / l": (L, "torch.exp(s - m_new[:, None]).sum(dim=1)"),
    "the factor is taken back after the rounding: it cancels in acc / l, so leave it there": (P, f"{P} / 2**8"),
}  # fmt: skip


def truth(s, v, m, l, acc):
    m_new = torch.cat([m[:, None], s], dim=1).amax(dim=1, keepdim=True)
    p = to_e4m3(256 * torch.exp(s - m_new))
    alpha = torch.exp(m[:, None] - m_new)
    return m_new[:, 0], (alpha * l[:, None])[:, 0] + p.sum(1), alpha * acc + p @ v


def inputs():
    start = numbers(-torch.inf), numbers(0.0), numbers([0.0])  # m, l, acc before the first block
    later = numbers(0.0), numbers(256.0), numbers([512.0])
    equal = "equal scores: m is 0, alpha is e^(−∞) = 0, and e^(s − m) is 1 for both, so p is 2⁸, l is 2 · 2⁸, and acc is 2⁸ · (1.1 + 0), with v as it came"
    yield case(numbers([0.0, 0.0]), numbers([1.1], [0.0]), *start, otherwise=equal)
    rounded = "p is multiplied by 2⁸ and then rounded, so 2⁸ · 0.905 = 231.6 becomes 224, in l as in acc"
    yield case(numbers([0.0, -0.1]), numbers([0.0], [1.0]), *start, otherwise=rounded)
    small = "e⁻⁷ is below e4m3's smallest number, and 2⁸ · e⁻⁷ = 0.233 is not"
    yield case(numbers([0.0, -7.0]), numbers([0.0], [1.0]), *start, otherwise=small)
    yield case(numbers([-1.0, -2.0]), numbers([1.0], [3.0]), *later, otherwise="the maximum stays 0: alpha is 1, and p is e4m3(2⁸ · e^s)")
    yield case(numbers([1.0, 0.5]), numbers([1.0], [3.0]), *later, otherwise="the maximum grows to 1: l and acc shrink by e⁻¹, unrounded")
    draw = generator()
    s, v, acc = (torch.randn(shape, generator=draw).double() for shape in ((5, 64), (64, 3), (5, 3)))
    m, l = torch.randn(5, generator=draw).double(), 256 + torch.rand(5, generator=draw).double()
    yield case(s, v, m, l, acc, on="randn, 5 rows, 64 keys", fresh=True)


EXERCISE = Exercise(
    task="Update m, l and acc with a block of keys, p rounded to e4m3. Multiply p by the largest power of two with which no p can pass 448.",
    hints=(
        "p is at most 1. Which powers of two are below 448? And which l makes a row of equal values come out exactly as that value?",
        "p = to_e4m3(2**8 * torch.exp(s - m_new[:, None])), and both l and acc take this p. The factor cancels in acc / l.",
    ),
    solution=attend_fp8,
    reasoning="The heaviest p is 1 and becomes the factor, so the factor must be a number of e4m3. A power of two changes the exponent alone: the kernel adds 8 to it before exp2. "
    "With l of the rounded p, o is a mean of values whose weights add up to 1, however coarse they are.",
    inputs=inputs,
    truth=truth,
    rule="p = to_e4m3(2⁸ · e^(s − m)) with each row's m, and l and acc are sums of this p",
    mistakes=MISTAKES,
    parts=("m", "l", "acc"),
    tolerance=lambda args, part: (1e-9, 1e-12),
)
