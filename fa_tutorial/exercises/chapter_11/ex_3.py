"""Exercise 11.3, merge_parts."""

import math

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import INF


def merge_parts(o_parts, lse_parts):
    """(o, lse) of each row from those of its parts.

    o_parts: (splits, rows, D); lse_parts: (splits, rows). Returns o: (rows, D) and lse: (rows,).
    """
    lse = torch.logsumexp(lse_parts, dim=0)
    shift = torch.where(lse == -math.inf, 0.0, lse)
    share = torch.exp(lse_parts - shift)
    o = (share[:, :, None] * o_parts).sum(dim=0)
    return o, lse


SHARE, RETURN = "torch.exp(lse_parts - shift)", "return o, lse"
MISTAKES = {
    "the parts are averaged, as if each had the same share: a part's share is exp(its lse − lse)": (SHARE, ("torch.full_like(lse_parts, "
                                                                                                           "1 / len(lse_parts))")),
    "the parts are added up without their shares: a part's share is exp(its lse − lse)": (SHARE, "torch.ones_like(lse_parts)"),
    "the lse themselves are the shares: take their exponentials first": (SHARE, "lse_parts / lse_parts.sum(dim=0)"),
    "the shares are taken over the rows: each row is shared out among its parts, along the first dimension": (SHARE, "torch.softmax(lse_parts, dim=1)"),
    "the shares don't add up to 1: measured from the largest lse, they must be divided by their sum": (
        "shift = torch.where(lse == -math.inf, 0.0, lse)", "shift = lse_parts.amax(dim=0).nan_to_num(neginf=0.0)"),
    "exp overflows: subtract lse before exp": (SHARE, "torch.exp(lse_parts) / torch.exp(lse_parts).sum(dim=0)"),
    "the shares are powers of 2: lse is a natural logarithm": (SHARE, "torch.exp2(lse_parts - shift)"),
    "lse is the logarithm of a sum that is measured from the largest lse: add the largest": (
        RETURN, f"{RETURN} - lse_parts.amax(dim=0).nan_to_num(neginf=0.0)"),
    "the lse are added up: add their exponentials, and take the logarithm": (RETURN, "return o, lse_parts.sum(dim=0)"),
    "lse is the largest part's: the others count too": (RETURN, "return o, lse_parts.amax(dim=0)"),
    "lse is the parts' mean: add their exponentials, and take the logarithm": (RETURN, "return o, lse_parts.mean(dim=0)"),
    "a row without keys gives NaN: look for −∞ − (−∞), or for 0 / 0 where you divide by the sum": (("torch.where(lse == -math.inf, 0.0, "
                                                                                                   "lse)"), "lse"),
}  # fmt: skip
CONDITIONS = {"empty": "a part without keys has o = 0 and lse = −∞; where all parts of a row are such, so is the result"}


def truth(o_parts, lse_parts):
    weights = torch.softmax(lse_parts.double(), dim=0).nan_to_num()
    return (weights[:, :, None] * o_parts.double()).sum(dim=0), torch.logsumexp(lse_parts.double(), dim=0)


def inputs():
    def one_row(lse_parts, **options):
        """With the identity for the parts' o, o is the shares themselves."""
        lse_parts = torch.tensor(lse_parts)
        on = f"one row, the parts' lse = {[f'{x:g}' for x in lse_parts.tolist()]}, their o = the identity".replace("'", "")
        return case(torch.eye(len(lse_parts))[:, None], lse_parts[:, None], on=on, **options)

    yield one_row([0.0, 1.0])
    yield one_row([2.0, 1.0, -3.0], otherwise="three parts: the shares add up to 1")
    yield one_row([1000.0, 1001.0], otherwise="an lse may be large: exp(1000) overflows, so only differences of them may be exponents")
    two_rows = torch.tensor([[0.0, 2.0], [1.0, -1.0]])
    o_parts = torch.tensor([[[1.0], [2.0]], [[3.0], [5.0]]])
    yield case(
        o_parts, two_rows, on="two rows in two parts", otherwise="each row is shared out among its own parts, along the first dimension"
    )
    draw = generator()
    yield case(torch.randn(5, 7, 3, generator=draw), 4 * torch.randn(5, 7, generator=draw), on="five parts of seven rows", fresh=True)
    yield one_row([-INF, 1.0], edge="empty", otherwise="a part without keys has the share 0")
    nothing = torch.full((2, 1), -INF)
    yield case(
        torch.zeros(2, 1, 2),
        nothing,
        on="one row, both parts without keys",
        edge="empty",
        otherwise="where all parts are without keys, o = 0 and lse = −∞",
    )


EXERCISE = Exercise(
    id="11.3",
    task="Merge the parts of each row.",
    conditions=CONDITIONS,
    hints=(
        "It is (1.13) for more than two parts. Which function of PyTorch gives the logarithm of a sum of exponentials?",
        "lse = torch.logsumexp(lse_parts, dim=0), and a part's share is exp(lse_parts − lse).",
        "Where lse is −∞, subtract 0 instead: all shares are then 0.",
    ),
    solution=merge_parts,
    reasoning=(
        "e^lse of a part is the plain sum of its exponentials. So its share of the whole row's sum is e^(lse of the part − lse), "
        "and the shares add up to 1."
    ),
    inputs=inputs,
    truth=truth,
    rule=(
        "o is the sum of the parts' o, each times its share exp(lse of the part − lse), and lse is the logarithm of the sum of exp(lse "
        "of a part)"
    ),
    mistakes=MISTAKES,
    parts=("o", "lse"),
)
