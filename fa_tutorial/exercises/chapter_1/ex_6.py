import math

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import INF


def join(o_a, lse_a, o_b, lse_b):
    """(o, lse) of one query from two parts of its keys.

    o_a, o_b: (D,). lse_a, lse_b: tensors of one number.
    """
    lse = torch.logaddexp(lse_a, lse_b)
    shift = torch.where(lse == -math.inf, 0.0, lse)  # two empty parts: both shares are 0, not NaN
    return torch.exp(lse_a - shift) * o_a + torch.exp(lse_b - shift) * o_b, lse


SUM = "torch.exp(lse_a - shift) * o_a + torch.exp(lse_b - shift) * o_b"
MISTAKES = {
    "the two outputs count the same in your o: the weight of a part is its share of the plain sum": (SUM, "(o_a + o_b) / 2"),
    "the shares are exchanged: each output has the share of its own lse": (
        SUM, "torch.exp(lse_b - shift) * o_a + torch.exp(lse_a - shift) * o_b"),
    "the shares are measured from the larger lse, so they don't add up to 1: measure them from the joined lse": (
        "-math.inf, 0.0, lse)", "-math.inf, 0.0, torch.maximum(lse_a, lse_b))"),
    "exp(lse) overflows or underflows: only differences of lse may be exponents": [
        ("torch.logaddexp(lse_a, lse_b)", "torch.log(torch.exp(lse_a) + torch.exp(lse_b))"),
        (SUM, "(torch.exp(lse_a) * o_a + torch.exp(lse_b) * o_b) / (torch.exp(lse_a) + torch.exp(lse_b))")],
    "o and lse are swapped: return (o, lse)": (f"return {SUM}, lse", f"return lse, {SUM}"),
    "two empty parts give NaN: −inf − (−inf) is NaN": ("torch.where(lse == -math.inf, 0.0, lse)", "lse"),
}  # fmt: skip


def truth(o_a, lse_a, o_b, lse_b):
    both = torch.stack([lse_a, lse_b]).double()
    return torch.softmax(both, 0).nan_to_num() @ torch.stack([o_a, o_b]).double(), torch.logsumexp(both, 0)


def inputs():
    def parts(o_a, lse_a, o_b, lse_b, dtype=torch.float32, **options):
        return case(*(torch.tensor(value, dtype=dtype) for value in (o_a, lse_a, o_b, lse_b)), **options)

    shares = {
        "o": "the plain sums are exp(lse): each output counts with its part's share",
        "lse": "the plain sums exp(lse) add up; measured from M, their log needs M added",
    }
    on = "o = [1, 0] with lse = 0, o = [0, 1] with lse = log 3"
    yield parts([1.0, 0.0], 0.0, [0.0, 1.0], math.log(3.0), on=on, otherwise=shares)
    far = "exp(1000) overflows, and exp(−1000) is 0: only differences of lse may be exponents"
    for lse in (1000.0, -1000.0):
        yield parts([1.0, 2.0], lse, [3.0, 6.0], lse + 1.0, otherwise=far)
    yield parts([1 / 3, 2 / 3], 1 / 3, [1 / 7, 2 / 7], 2 / 3, torch.float64, on="thirds and sevenths in float64", edge="float64")
    x = torch.randn(2, 6, generator=generator())
    yield case(x[0, 1:], x[0, 0], x[1, 1:], x[1, 0], on="randn, D = 5", fresh=True)
    yield parts([0.0, 0.0], -INF, [3.0, 6.0], 2.0, edge="empty")
    yield parts([1.0, 2.0], -50.0, [0.0, 0.0], -INF, edge="empty")
    yield parts([0.0, 0.0], -INF, [0.0, 0.0], -INF, edge="two_empty")


EXERCISE = Exercise(
    task="Join the outputs of two processors that each saw some of one query's keys.",
    conditions={
        "empty": "an empty part, with o = 0 and lse = −inf, leaves the other as it is",
        "two_empty": "two empty parts give an empty part: o is 0 and lse is −inf",
        "float64": "float64 tensors give a result with float64's accuracy",
    },
    hints=(
        "What is exp(lse_a)? Which part of the whole row's plain sum is that? The weights of a's keys add up to this part.",
        "The joined lse is torch.logaddexp(lse_a, lse_b), and a's share is exp(lse_a − lse). Where lse is −inf, subtract 0 instead.",
    ),
    solution=join,
    reasoning="exp(lse) is the plain sum of a part's keys, and the plain sums add up. Each part's o is already divided by its own sum. "
    "Multiplied by the part's share, it is divided by the sum of all keys.",
    inputs=inputs,
    truth=truth,
    rule="lse is the logarithm of the sum of both plain sums, and o is the outputs' average, weighted by their shares of it",
    mistakes=MISTAKES,
    parts=("o", "lse"),
)
