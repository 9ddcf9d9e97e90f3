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
    "neighbours are 2^(e − 3) apart: three bits stand behind the leading one": ("exponent - 3", "exponent - 2"),
    "neighbours are 2^(e − 3) apart: the fourth bit of e4m3's significand is the leading one, which isn't stored": (
        "exponent - 3", "exponent - 4"),
    "you cut towards zero: take the nearest number": ("torch.round(x / step)", "torch.trunc(x / step)"),
    "you round down: take the nearest number": ("torch.round(x / step)", "torch.floor(x / step)"),
    "a tie goes to the even neighbour, as torch.round does it, not always up": ("torch.round(x / step)", "torch.floor(x / step + 0.5)"),
    "the exponent is rounded up: 2^e is the largest power of two that is not above |x|": ("torch.floor(torch", "torch.ceil(torch"),
    "−9 is the exponent of the smallest step; the smallest exponent of a number is −6": ("min=-6", "min=-9"),
}  # fmt: skip


def truth(x):
    return x.double().float().to(torch.float8_e4m3fn).double()


class ByHand(Operations):
    """No conversion of PyTorch's rounds for the answer. (A table of e4m3's numbers, viewed from their bytes, is none.)"""

    def __init__(self, x):
        super().__init__()
        self.converted, self.dtype = False, x.dtype

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("_to_copy", "copy_"):
            self.converted |= result.dtype == torch.float8_e4m3fn
        return result

    def complaint(self, result):
        if self.converted:
            return "PyTorch's conversion to e4m3 rounds the numbers here: find the step and round by hand"
        dtype = getattr(result, "dtype", self.dtype)
        return "" if dtype == self.dtype else f"the numbers are right, but {dtype} where x is {self.dtype}: return them in x's dtype"


def inputs():
    def numbers(*values):
        return torch.tensor(values, dtype=torch.float64)

    yield case(numbers(1.0), otherwise="1 is a number of e4m3")
    yield case(numbers(1.1), otherwise="the neighbours of 1.1 are 1 and 1.125")
    yield case(numbers(3.3), otherwise="between 2 and 4 the step is 0.25")
    yield case(numbers(-3.3), otherwise="a negative number is rounded like its opposite")
    yield case(numbers(300.0), otherwise="between 256 and 448 the step is 32")
    yield case(numbers(1.1, 300.0), otherwise="each number has a step of its own")
    yield case(numbers(0.01), otherwise="below 2⁻⁶ = 0.0156 the step is 2⁻⁹, whatever the number")
    yield case(numbers(0.0), otherwise="0 is a number of e4m3")
    yield case(numbers(0.003, 0.0045), otherwise="below 2⁻⁶ the numbers are multiples of 2⁻⁹ = 0.00195")
    yield case(
        numbers(0.0006, 0.0011), otherwise="below 2⁻⁶ the numbers are multiples of 2⁻⁹: 0.0006 becomes 0, and 0.0011 becomes 0.00195"
    )
    yield case(numbers(1.0625, 1.1875), otherwise="halfway between two numbers the even one is taken: 1 and 1.25")
    draw = generator()
    for size in (0.003, 1.0, 90.0):
        # Numbers of float32, so that the truth's conversion rounds once.
        x = (size * torch.randn(50, generator=draw)).clamp(-448, 448).double()
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
    tolerance=lambda args, part: (1e-12, 0.0),
)
