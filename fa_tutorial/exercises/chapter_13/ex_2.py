"""Exercise 13.2, join."""

import math

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import INF
from fa_tutorial.exercises.watch import Operations


def join(o, lse, o_part, lse_part):
    """(o, lse) of the keys seen so far and those of a part together.

    o, o_part: (..., S, D); lse, lse_part: (..., S). o and lse are float32.
    """
    both = torch.logaddexp(lse, lse_part)
    shift = torch.where(both == -math.inf, 0.0, both)
    share, share_part = torch.exp(lse - shift), torch.exp(lse_part - shift)
    return share[..., None] * o + share_part[..., None] * o_part, both


BOTH, SHARES = "torch.logaddexp(lse, lse_part)", "torch.exp(lse - shift), torch.exp(lse_part - shift)"
SUM = "share[..., None] * o + share_part[..., None] * o_part"
MISTAKES = {
    "the two are added up, but each is divided by its own sum already: weigh them by their shares of the whole sum": (SUM, "o + o_part"),
    "the two are averaged, as if each had the same share: a share is exp(its lse − both)": (SHARES, "0.5 + 0 * lse, 0.5 + 0 * lse"),
    "the shares are exchanged": (SHARES, "torch.exp(lse_part - shift), torch.exp(lse - shift)"),
    "the shares don't add up to 1: measured from the larger lse, they must be divided by their sum": (
        SHARES, "torch.exp(lse - torch.maximum(lse, lse_part).nan_to_num(neginf=0.0)), "
        "torch.exp(lse_part - torch.maximum(lse, lse_part).nan_to_num(neginf=0.0))"),
    "the old result is shrunk, and the part is not weighed": (SUM, "share[..., None] * o + o_part"),
    "the part is weighed, and the old result is not: its share shrinks when keys join": (SUM, "o + share_part[..., None] * o_part"),
    "lse stays what it was: the next part needs the sum of all that is merged": ("o_part, both", "o_part, lse"),
    "lse is the larger of the two: add their exponentials, and take the logarithm": ("o_part, both", "o_part, torch.maximum(lse, lse_part)"),
    "the lse are added up: add their exponentials, and take the logarithm": ("o_part, both", "o_part, lse + lse_part"),
    "exp overflows: subtract the common lse before exp": (
        SHARES, "torch.exp(lse) / (torch.exp(lse) + torch.exp(lse_part)), torch.exp(lse_part) / (torch.exp(lse) + torch.exp(lse_part))"),
    "a row that has seen nothing yet gives NaN: −∞ − (−∞); subtract 0 where both are −∞": ("torch.where(both == -math.inf, 0.0, both)", "both"),
    "the running result is rounded to the part's dtype: it stays float32 until the last part is in": (SUM, f"({SUM}).to(o_part.dtype)"),
}  # fmt: skip
CONDITIONS = {
    "empty": "a row that has seen no key, here or there, has o = 0 and lse = −∞, and so has the result where both have seen none",
    "half": "the part's o may be fp16 or bf16; the running o and lse stay float32",
}


class InFloat32(Operations):
    """The running result stays float32."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

    def complaint(self, result):
        wide = [name for name, x in zip(("o", "lse"), result, strict=False) if getattr(x, "dtype", None) == torch.float64]
        if not wide:
            return ""
        return f"the numbers are right, but {' and '.join(wide)} {'are' if wide[1:] else 'is'} float64: the running o and lse stay float32"


def truth(o, lse, o_part, lse_part):
    weights = torch.softmax(torch.stack((lse, lse_part)).double(), dim=0).nan_to_num()
    return (weights[..., None] * torch.stack((o.double(), o_part.double()))).sum(0), torch.logsumexp(
        torch.stack((lse, lse_part)).double(), 0
    )


def inputs():
    def row(o, lse, o_part, lse_part, **options):
        words = f"one row: o = {o:g}, lse = {lse:g} and a part's o = {o_part:g}, lse = {lse_part:g}".replace("-", "−").replace("inf", "∞")
        return case(*(torch.tensor(x) for x in ([[o]], [lse], [[o_part]], [lse_part])), on=words, **options)

    yield row(10.0, 0.0, 20.0, 0.0, otherwise="equal lse are equal shares")
    yield row(10.0, 1.0, 20.0, 3.0, otherwise="o is both outputs, each times its share exp(its lse − the common lse)")
    yield row(10.0, 3.0, 20.0, 1.0, otherwise="o is both outputs, each times its share exp(its lse − the common lse)")
    yield row(
        10.0, 1000.0, 20.0, 1001.0, otherwise="an lse may be large: exp(1000) overflows, so only differences of them may be exponents"
    )
    seed = torch.Generator().manual_seed(0)
    o, o_part = torch.randn(2, 2, 3, 4, generator=seed)
    lse, lse_part = 2 * torch.randn(2, 2, 3, generator=seed)
    yield case(o, lse, o_part, lse_part, on="two heads, three rows, D = 4", otherwise="each row has shares of its own")
    draw = generator()
    o, o_part = torch.randn(2, 2, 3, 5, 4, generator=draw)
    lse, lse_part = 3 * torch.randn(2, 2, 3, 5, generator=draw)
    yield case(o, lse, o_part, lse_part, on="random rows", fresh=True)
    yield row(0.0, -INF, 20.0, 1.0, edge="empty", otherwise="nothing seen so far: the result is the part")
    yield row(10.0, 1.0, 0.0, -INF, edge="empty", otherwise="the part has seen nothing: the result is what was there")
    yield row(0.0, -INF, 0.0, -INF, edge="empty", otherwise="neither has seen a key: o = 0 and lse = −∞, never NaN")
    thirds = torch.tensor([[1 / 3]]), torch.tensor([0.5]), torch.tensor([[2 / 3]]).half(), torch.tensor([0.25])
    yield case(*thirds, on="one row with a part in fp16", edge="half")


EXERCISE = Exercise(
    id="13.2",
    task="Merge the result of a part into the running result of the same queries.",
    conditions=CONDITIONS,
    hints=(
        "It is (1.13), for many rows at once. Which function of PyTorch gives log(e^a + e^b)?",
        "both = torch.logaddexp(lse, lse_part), and the shares are exp(lse − both) and exp(lse_part − both): one number a row, so [..., None] before "
        "you multiply o by them.",
        "Where both are −∞ subtract 0 instead, by torch.where.",
    ),
    solution=join,
    reasoning="e^lse is the plain sum of a part's exponentials. So exp(lse − both) and exp(lse_part − both) are the parts' shares of the whole row's sum. They "
    "add up to 1, and o becomes their weighted mean. A float32 share makes the product float32, whatever the part is.",
    more="The package's version, ring.merge, leaves out the guard: in the ring every row has seen a key after step 0.",
    inputs=inputs,
    truth=truth,
    rule="o is the weighted mean of both outputs, with the weights exp(lse − both) and exp(lse_part − both), and both = log(exp(lse) + exp(lse_part))",
    mistakes=MISTAKES,
    parts=("o", "lse"),
    watch=lambda *args: InFloat32(),
)
