import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.watch import Operations


def round_to_e4m3(x):
    """Each element of x, at most 448 in size, rounded to the nearest number of e4m3, in x's dtype."""
    exponent = torch.floor(torch.log2(x.abs())).clamp(min=-6)
    step = torch.exp2(exponent - 3)
    return torch.round(x / step) * step


MISTAKES = {
    "below 2⁻⁶ the exponent stays −6, so that the step stays 2⁻⁹: without that 0 has no exponent at all": (".clamp(min=-6)", ""),
    "−9 is the exponent of the smallest step; the smallest exponent of a number is −6": ("min=-6", "min=-9"),
    "neighbours are 2^(e − 3) apart: three bits stand behind the leading one": ("exponent - 3", "exponent - 2"),
    "you cut towards zero: take the nearest number": ("torch.round(x / step)", "torch.trunc(x / step)"),
    "a tie goes to the even neighbour, as torch.round does it, not always up": ("torch.round(x / step)", "torch.floor(x / step + 0.5)"),
    "the exponent is rounded up: 2^e is the largest power of two that is not above |x|": ("torch.floor(torch", "torch.ceil(torch"),
}


def truth(x):
    return x.double().float().to(torch.float8_e4m3fn).double()


class ByHand(Operations):
    """No conversion of PyTorch's rounds for the answer."""

    converted = False

    def __init__(self, x):
        super().__init__()

    def see(self, name, args, result):
        self.converted |= name in ("_to_copy", "copy") and result.dtype == torch.float8_e4m3fn

    def complaint(self, result):
        return "PyTorch's conversion to e4m3 rounds the numbers here: find the step and round by hand" if self.converted else ""


def inputs():
    for numbers, rule in (
        ([1.0, 1.05, 1.1], "1 is a number of e4m3; 1.05 and 1.1 lie between 1 and 1.125: take the nearest"),
        ([-3.3], "between 2 and 4 in size the step is 0.25, and a negative number is rounded like its opposite"),
        ([1.1, 300.0], "each number has a step of its own, up to 448: from 256 on it is 32"),
        ([0.0], "0 is a number of e4m3"),
        ([0.003, 0.01, 0.0007], "below 2⁻⁶ = 0.0156 the numbers are multiples of 2⁻⁹ = 0.00195"),
        ([1.0625, 1.1875], "halfway between two numbers the even one is taken: 1 and 1.25"),
    ):
        yield case(torch.tensor(numbers, dtype=torch.float64), otherwise=rule)
    draw = generator()
    for size in (0.003, 90.0):
        x = (size * torch.randn(50, generator=draw)).clamp(-448, 448).double()  # of float32, so that the truth's conversion rounds once
        yield case(x, on=f"50 numbers near {size:g}", fresh=True)


EXERCISE = Exercise(
    task="Round each number to the nearest of e4m3, without a conversion of PyTorch's.",
    hints=(
        "Between 2^e and 2^(e + 1) there are eight numbers. How far apart are they? And below 2⁻⁶, where the exponent can't fall further?",
        "log2 gives the exponent, cut to a whole number and never below −6; (14.1) then gives the step. What is a multiple of the step, counted in steps?",
    ),
    solution=round_to_e4m3,
    reasoning="Three stored bits divide each octave into eight steps of 2^(e − 3). Below the smallest exponent the steps stay as they are. torch.round "
    "takes the even multiple on a tie, as the GPU does.",
    more="The package's version, fp8.to_e4m3, is PyTorch's conversion, cut off at 448. Its kernel for Triton's interpreter rounds as you do.",
    inputs=inputs,
    truth=truth,
    rule="the result is the nearest number of e4m3, and on a tie the even one",
    mistakes=MISTAKES,
    watch=ByHand,
    refused=lambda answer: "" if answer(torch.ones(1).double()).dtype == torch.float64 else "it isn't in x's dtype",
    tolerance=lambda args, part: (1e-12, 0.0),
)
