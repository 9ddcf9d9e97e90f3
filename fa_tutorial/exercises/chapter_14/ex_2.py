import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.fp8 import to_e4m3


def quantise_blocks(x, block):
    """(values, scales): x ≈ values · scale of its rows, values rounded to e4m3.

    x: (S, D). values: (S, D), in x's dtype. scales: (ceil(S / block),), one for each `block` rows.
    """
    scales = torch.stack([rows.abs().max() / 448 for rows in x.split(block)])
    scales = torch.where(scales == 0, 1.0, scales)
    of_row = scales.repeat_interleave(block)[: len(x), None]
    return to_e4m3(x / of_row), scales


ROUNDED = "to_e4m3(x / of_row)"
MISTAKES = {
    "the scale is 1 / 448 of the block's largest number, so that this one becomes 448": (".max() / 448", ".max()"),
    "a scale is inverted: x = values · scale": [
        ("rows.abs().max() / 448", "448 / rows.abs().max()"), ("scales == 0", "scales.isinf()"), ("x / of_row", "x * of_row")],
    "the values are not rounded": (ROUNDED, "x / of_row"),
    "the values are multiplied by the scale again: return what e4m3 stores": (ROUNDED, f"{ROUNDED} * of_row"),
    "x is multiplied by its scale: x ≈ values · scale, so divide": (ROUNDED, "to_e4m3(x * of_row)"),
    "the numbers are rounded before they are scaled": (ROUNDED, "to_e4m3(x) / of_row"),
}  # fmt: skip


def truth(x, block):
    blocks = x.double().split(block)
    scales = [float(rows.abs().max()) / 448 or 1.0 for rows in blocks]
    values = [to_e4m3(rows / scale) for rows, scale in zip(blocks, scales, strict=True)]
    return torch.cat(values), torch.tensor(scales, dtype=torch.float64)


def inputs():
    for rows, block, rule in (
        ([[1.0, 448.0]], 1, "a block of one row: its largest number is 448, so its one scale is 1"),
        ([[1.0, -2.0]], 1, "the scale is the largest number in size / 448, whatever its sign: 2 / 448 here"),
        ([[1.0, 3.3], [7.0, 0.1]], 2, "a block of two rows has one scale"),
        ([[1.0, 2.0], [1.5, 0.2], [70.0, 80.0], [3.0, 90.0]], 2, "two blocks: each has a scale of its own, rows 0 and 1 the first"),
    ):
        yield case(torch.tensor(rows, dtype=torch.float64), block, otherwise=rule)
    rows = torch.tensor([[1.0, 2.0], [1.5, 0.2], [70.0, 80.0]], dtype=torch.float64)
    yield case(rows, 2, edge="ragged", on="three rows in blocks of two, so the last block has one row")
    yield case(torch.tensor([[0.0, 0.0], [1.0, 3.0]], dtype=torch.float64), 1, edge="zeros")
    draw = generator()
    for S, edge in ((12, ""), (10, "ragged")):
        x = torch.randn(S, 5, generator=draw).double() * torch.logspace(-3, 3, S)[:, None]
        yield case(x, 4, on=f"randn, rows of many sizes, S = {S}, block = 4", fresh=True, edge=edge)


EXERCISE = Exercise(
    task="Quantise a matrix to e4m3, with a scale for each block of rows.",
    conditions={"ragged": "the last block may have fewer rows", "zeros": "a block of zeros has the scale 1"},
    hints=(
        "What must a block be divided by, so that its largest number in size becomes 448?",
        "x.split(block) gives the blocks. scales.repeat_interleave(block)[:len(x), None] is the scale of each row. Divide, and round by to_e4m3.",
    ),
    solution=quantise_blocks,
    reasoning="The scale moves a block's largest number to e4m3's largest, so nothing is cut off, and as little as possible becomes small.",
    more="The package's kernel, fp8.quantise, does it in one pass for a block of 128 rows a program.",
    inputs=inputs,
    truth=truth,
    rule="values are to_e4m3(x / scale), and a block's scale is its largest number in size / 448",
    mistakes=MISTAKES,
    parts=("values", "scales"),
    refused=lambda answer: "" if answer(torch.ones(1, 2).double(), 1)[0].dtype == torch.float64 else "values aren't in x's dtype",
    tolerance=lambda args, part: (1e-6, 0.0),
)
