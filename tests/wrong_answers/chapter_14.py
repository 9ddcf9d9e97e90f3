"""Chapter 14: one of two parts, an error in steps, a matrix of another size, rows for keys."""

import torch
from edits import edit

from fa_tutorial import fp8


def round_by_pytorch(x):
    return x.to(torch.float8_e4m3fn).to(x.dtype)


def round_by_the_package(x):
    return fp8.to_e4m3(x)


def round_into_a_tensor(x):
    return torch.empty(x.shape, dtype=torch.float8_e4m3fn).copy_(x).double()


EACH = "((sums - truth).abs() / truth.abs()).max() <= tolerance"
WRONG_ANSWERS = (
    edit("14.1", "a step too few", ("exponent - 3", "exponent - 1"), told="1.125"),
    ("14.1", round_by_pytorch, "PyTorch's conversion"),
    ("14.1", round_by_the_package, "PyTorch's conversion"),
    ("14.1", round_into_a_tensor, "PyTorch's conversion"),
    edit("14.1", "in fp16", ("torch.round(x / step) * step", "(torch.round(x / step) * step).half()"), told="return them in x's dtype"),
    edit("14.1", "in float32", ("torch.round(x / step) * step", "(torch.round(x / step) * step).float()"), told="return them in x's dtype"),
    edit("14.2", "in e4m3", ("return to_e4m3(x / of_row), scales", "return to_e4m3(x / of_row).to(torch.float8_e4m3fn), scales"), told="return them in x's dtype"),
    edit("14.2", "in float32", ("return to_e4m3(x / of_row), scales", "return to_e4m3(x / of_row).float(), scales"), told="return them in x's dtype"),
    edit("14.2", "values alone", ("return to_e4m3(x / of_row), scales", "return to_e4m3(x / of_row)"), told="values"),
    edit("14.2", "scales of columns", ("rows.abs().max() / 448", "rows.abs().mean() / 448"), told="448"),
    edit("14.3", "a quarter of a step", ("step / 2", "step / 4"), told="half a step is 1/16 of x"),
    edit("14.3", "0 too early", ("min(step / 2 / y, 1.0)", "(step / 2 / y if y >= 2.0**-9 else 1.0)"), told="2⁻¹⁰, not below 2⁻⁹"),
    edit("14.3", "a power of two as the largest", ("448", "256"), told="448 of the largest number, not 256"),
    edit("14.3", "over the octave's first number", ("min(step / 2 / y, 1.0)", "1 / 16 if y >= 2**-6 else min(step / 2 / y, 1.0)"), told="from 2⁻⁶ on that is half a step over 2^e"),
    edit("14.4", "unsigned and unscaled", ("x * signs @ h / len(signs) ** 0.5", "x @ h"), told="D = 2"),
    edit("14.5", "o at once", ("return m_new, l, acc", "return m_new, l, acc / l[:, None]"), told="acc is divided by l already"),
    edit("14.5", "8 in e's exponent", ("2**8 * torch.exp(s - m_new[:, None])", "torch.exp(s - m_new[:, None] + 8)"), told="a factor of e⁸"),
    edit("14.5", "l alone over 2⁸", ("l = alpha * l + p.sum(dim=1)", "l = alpha * l + p.sum(dim=1) / 256"), told="l is divided by the factor, and acc isn't"),
    edit("14.5", "powers of 2", ("torch.exp(", "torch.exp2(", 2), told="take exp"),
    edit("14.6", "of each sum", ("(sums - truth).abs().max() <= tolerance * truth.abs().max()", EACH), told="its own sum"),
    edit("14.6", "until one fails", ("            found = length", "            found = length\n        else:\n            return found"), told="first length"),
    edit("14.6", "from 64 on", ("0, 32\n", "0, 64\n"), told="the shortest chain has 32 products"),
    edit("14.6", "of the largest, with its sign", ("truth.abs().max()", "truth.max()"), told="where all are negative"),
    edit("14.6", "half of K at most", ("length <= a.shape[1]", "length <= a.shape[1] // 4"), told="128"),
    edit("14.7", "in its thread", ("8 * (slot // 2) + 2 * thread + slot % 2", "8 * (slot % 2) + slot // 2 + 2 * thread"), told="ascending order"),
    edit("14.7", "descending", ("place // 4, place % 4", "place // 4, 3 - place % 4"), told="in descending order"),
    edit("14.7", "half as far", ("8 * (slot // 2)", "4 * (slot // 2)"), told="keys 0, 1, 8 and 9"),
)  # fmt: skip
