"""Exercise 14.6, longest_chain."""

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.fp8 import tensor_core_sum, to_e4m3


def longest_chain(a, b, tolerance):
    """How many products a chain may add up, so that no sum is off by more than tolerance · the largest.

    a: [M, K], b: [N, K], float64, K = 32 · a power of two. The sums are a bᵀ, in chains of 32, 64, … K
    products, whose results are added in float64. 0: no length is accurate enough.
    """
    zeros = torch.zeros(len(a), len(b), dtype=torch.float64)
    truth, found, length = a @ b.T, 0, 32
    while length <= a.shape[1]:
        chains = zip(a.split(length, dim=1), b.split(length, dim=1), strict=True)
        sums = sum(tensor_core_sum(a_part, b_part, zeros) for a_part, b_part in chains)
        if (sums - truth).abs().max() <= tolerance * truth.abs().max():
            found = length
        length *= 2
    return found


CHAINS, SUMS = "tensor_core_sum(a_part, b_part, zeros)", "sum(tensor_core_sum(a_part, b_part, zeros) for a_part, b_part in chains)"
MISTAKES = {
    "every chain goes on where the one before stopped, so all is one chain: begin each at zero": (
        SUMS, "zeros\n        for a_part, b_part in chains:\n            sums = tensor_core_sum(a_part, b_part, sums)"),
    "the shortest chain that is accurate enough is found, and the longest is wanted": ("found = length", "found = found or length"),
    "the search stops before K: one chain over everything may do as well": ("length <= a.shape[1]", "length < a.shape[1]"),
    "the number of chains is returned, not their length": ("return found", "return a.shape[1] // found if found else 0"),
    "the error's sign is lost: a chain loses, so its error is negative, and its size counts": ("(sums - truth).abs().max()", "(sums - truth).max()"),
    "the tolerance is of the largest sum, not an absolute one": ("tolerance * truth.abs().max()", "tolerance"),
    "the tolerance is of the largest sum in size: where all are negative, max() alone finds the smallest": ("truth.abs().max()", "truth.max()"),
    "the shortest chain has 32 products, one instruction": ("0, 32\n", "0, 64\n"),
    "the sums are exact products: the tensor core's are tensor_core_sum's": (CHAINS, "a_part @ b_part.T"),
    "each error is compared with its own sum, and the tolerance is of the largest sum": (
        "(sums - truth).abs().max() <= tolerance * truth.abs().max()", "((sums - truth).abs() <= tolerance * truth.abs()).all()"),
    "the search ends at the first length that isn't accurate enough, and a longer one may be: errors can cancel": (
        "            found = length\n", "            found = length\n        else:\n            break\n"),
    "the mean error is compared, and no sum may be off by more": ("(sums - truth).abs().max()", "(sums - truth).mean().abs()"),
}  # fmt: skip


def truth(a, b, tolerance):
    exact, zeros = a @ b.T, torch.zeros(len(a), len(b), dtype=torch.float64)
    lengths = [length for length in (2**i for i in range(5, 20)) if length <= a.shape[1]]
    errors = {
        n: max_error(sum(tensor_core_sum(a[:, i : i + n], b[:, i : i + n], zeros) for i in range(0, a.shape[1], n)), exact) for n in lengths
    }
    return max([n for n, error in errors.items() if error <= tolerance], default=0)


def max_error(sums, exact):
    return float((sums - exact).abs().max() / exact.abs().max())


def inputs():
    draw = torch.Generator().manual_seed(0)
    ones = torch.ones(1, 128, dtype=torch.float64)
    yield case(ones, ones, 1e-6, on="128 ones times ones", otherwise="a chain of ones is exact up to 2¹⁴, so all 128 may be one chain")
    a, b = (to_e4m3(torch.rand(2, 1024, generator=draw, dtype=torch.float64)) for _ in range(2))
    rule = "each length gives chains that begin at zero, whose results are added in float64; the longest that is accurate enough counts"
    for tolerance in (5e-2, 6e-3, 1e-3, 1e-4, 1e-12):
        yield case(a, b, tolerance, on=f"numbers between 0 and 1, K = 1,024, tolerance = {tolerance:g}", otherwise=rule)
    below = "all sums are negative: the tolerance is of the largest in size"
    yield case(-a, b, 6e-3, on="numbers between −1 and 0, and between 0 and 1, K = 1,024, tolerance = 0.006", otherwise=below)
    a, b = (to_e4m3(100 * torch.randn(3, 512, generator=draw, dtype=torch.float64).clamp(-4, 4)) for _ in range(2))
    for tolerance in (1e-3, 2e-4):
        yield case(a, b, tolerance, on=f"numbers of both signs, K = 512, tolerance = {tolerance:g}", otherwise=rule)
    a, b = torch.zeros(2, 1, 64, dtype=torch.float64)
    a[0, [0, 1, 32]], b[0, [0, 1, 32]] = torch.tensor([[256.0, 1, -1], [256, 1, 1]], dtype=torch.float64)
    rest = "chains of 32 cut the 1 off and keep the −1; one chain of 64 cuts off both, and is exact"
    yield case(a, b, 1e-6, on="256 · 256 and 1, and −1 in the next 32 products, tolerance = 1e-06", otherwise=rest)


EXERCISE = Exercise(
    id="14.6",
    task="Find the longest chain of sums in the tensor core that stays accurate enough, by the model.",
    hints=(
        "Write the sum for one length first: cut a and b along K, give each piece to tensor_core_sum with zeros, and add up the results.",
        "Try length = 32, 64, … K. The error is (sums − a @ b.T).abs().max(), and its limit tolerance · (a @ b.T).abs().max(). Keep the last length "
        "that passes.",
    ),
    solution=longest_chain,
    reasoning="A chain of K products of one sign loses a share that grows with K (14.7). Chains that start again at zero lose as little as their own "
    "length asks for, and float32 adds up their results almost without loss.",
    more="The kernel's chains have 128 products, one block of keys.",
    inputs=inputs,
    truth=truth,
    rule="the longest of 32, 64, … K with which every sum is within the tolerance",
    mistakes=MISTAKES,
    exact=True,
)
