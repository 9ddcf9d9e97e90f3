"""Exercise 14.4, rotate."""

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator


def rotate(x, signs):
    """x times diag(signs) times Hadamard's matrix over √D.

    x: (..., D), D a power of two; signs: (D,), each 1 or −1.
    """
    h = torch.ones(1, 1, dtype=x.dtype)
    while len(h) < len(signs):
        h = torch.cat([torch.cat([h, h], dim=1), torch.cat([h, -h], dim=1)])
    return x * signs @ h / len(signs) ** 0.5


MISTAKES = {
    "without 1 / √D the rotation makes everything longer, and q kᵀ D times as large": (" / len(signs) ** 0.5", ""),
    "the matrix is divided by D: q kᵀ has it twice, so each side takes √D": ("len(signs) ** 0.5", "len(signs)"),
    "each row of the matrix has D entries of ±1, so divide by √D; √2 is right for D = 2 alone": ("len(signs) ** 0.5", "2**0.5"),
    "the signs are missing": ("x * signs @ h", "x @ h"),
    "the signs come after Hadamard's matrix: they must come before it": ("x * signs @ h", "x @ h * signs"),
    "that matrix has another sign: the minus is at the bottom right": (
        "torch.cat([h, h], dim=1), torch.cat([h, -h], dim=1)", "torch.cat([h, -h], dim=1), torch.cat([h, h], dim=1)"),
    "the minus stands at the wrong place: at the bottom right, so that the matrix is symmetric": (
        "torch.cat([h, -h], dim=1)", "torch.cat([-h, h], dim=1)"),
    "no two rows of that matrix are orthogonal: one of the four quarters is −h": ("[h, -h]", "[h, h]"),
}  # fmt: skip


def truth(x, signs):
    D = len(signs)
    matrix = torch.tensor([[(-1.0) ** (i & j).bit_count() for j in range(D)] for i in range(D)], dtype=torch.float64)
    return x.double() @ (signs.double()[:, None] * matrix) / D**0.5


def inputs():
    def numbers(*values):
        return torch.tensor(values, dtype=torch.float64)

    yield case(
        numbers([3.0, 1.0]), numbers(1.0, 1.0), otherwise="only the signs are random, H is not: D = 2 gives (a + b) / √2 and (a − b) / √2"
    )
    yield case(numbers([3.0, 1.0]), numbers(1.0, -1.0), otherwise="D = 2 with a sign: (a − b) / √2 and (a + b) / √2")
    yield case(numbers([8.0, 0.0, 0.0, 0.0]), numbers(1.0, 1.0, 1.0, 1.0), otherwise="an outlier is spread: 4, 4, 4, 4")
    yield case(numbers([1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 1.0]), numbers(1.0, -1.0, -1.0, 1.0), otherwise="each row by itself, D = 4")
    yield case(numbers([3.0]), numbers(1.0), otherwise="D = 1: nothing to rotate")
    draw = generator()
    for shape in ((5, 8), (2, 3, 64)):
        x = torch.randn(*shape, generator=draw, dtype=torch.float64)
        signs = torch.randint(0, 2, (shape[-1],), generator=draw).double() * 2 - 1
        yield case(x, signs, on=f"randn, shape {shape}", fresh=True)


EXERCISE = Exercise(
    task="Rotate rows by random signs and Hadamard's matrix.",
    hints=(
        "Build the matrix by doubling: four copies of the one before, and the copy at the bottom right is negative.",
        "torch.cat([torch.cat([h, h], dim=1), torch.cat([h, -h], dim=1)]) doubles h. Multiply x by the signs first, then by h, and divide by √D.",
    ),
    solution=rotate,
    reasoning="Rows of the doubled matrix are orthogonal because those of h are: in (h, h) · (h, −h) the second half takes back what the first gives. "
    "So h hᵀ = D · 1, and over √D it keeps every dot product.",
    more="The package's quantiser multiplies a block by random_hadamard with a tl.dot, since a tensor core has time for it.",
    inputs=inputs,
    truth=truth,
    rule="x · diag(signs) · H / √D, where H is doubled as (H, H; H, −H)",
    mistakes=MISTAKES,
)
