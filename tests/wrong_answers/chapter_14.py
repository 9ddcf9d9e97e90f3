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
    edit("14.2", "values alone", ("return to_e4m3(x / of_row), scales", "return to_e4m3(x / of_row)"), told="values"),
    edit("14.2", "scales of columns", ("rows.abs().max() / 448", "rows.abs().mean() / 448"), told="448"),
    edit("14.3", "half the error", ("2.0**-4", "2.0**-5"), told="2^(e − 4)"),
    edit("14.3", "0 too early", ("min(2.0**-10 / scaled, 1.0)", "(2.0**-10 / scaled if scaled >= 2.0**-9 else 1.0)"), told="2⁻¹⁰, not below 2⁻⁹"),
    edit("14.3", "a power of two as the largest", ("448", "256"), told="448 of the largest number, not 256"),
    edit("14.4", "unsigned and unscaled", ("x * signs @ h / len(signs) ** 0.5", "x @ h"), told="D = 2"),
    edit("14.5", "o at once", ("return m_new, l, acc", "return m_new, l, acc / l[:, None]"), told="acc"),
    edit("14.5", "powers of 2", ("torch.exp(", "torch.exp2(", 2), told="take exp"),
    edit("14.6", "of each sum", ("(sums - truth).abs().max() <= tolerance * truth.abs().max()", EACH), told="its own sum"),
    edit("14.6", "until one fails", ("            found = length", "            found = length\n        else:\n            return found"), told="first length"),
    edit("14.6", "half of K at most", ("length <= a.shape[1]", "length <= a.shape[1] // 4"), told="128"),
    edit("14.7", "in its thread", ("8 * (slot // 2) + 2 * thread + slot % 2", "8 * (slot % 2) + slot // 2 + 2 * thread"), told="ascending order"),
    edit("14.7", "half as far", ("8 * (slot // 2)", "4 * (slot // 2)"), told="keys 0, 1, 8 and 9"),
)  # fmt: skip
