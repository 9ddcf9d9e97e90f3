"""Exercise 10.6, sink_gradient."""

import torch

from fa_tutorial.exercises.harness import RTOL, Exercise, case
from fa_tutorial.exercises.inputs import generator


def sink_gradient(o, do, lse, sinks):
    """The gradient of sinks, (H,). o, do: (B, H, S, D); lse: (B, H, S), and counts the sink."""
    p_sink = torch.exp(sinks[:, None] - lse)  # [B, H, S], what the sink takes of each row
    delta = (do * o).sum(dim=-1)  # [B, H, S]
    return -(p_sink * delta).sum(dim=(0, 2))


SHARE, DELTA, TOTAL = "torch.exp(sinks[:, None] - lse)", "(do * o).sum(dim=-1)", "-(p_sink * delta).sum(dim=(0, 2))"
MISTAKES = {
    "the gradient has the wrong sign: the sink's dp is 0, so ds = p (0 − delta)": (TOTAL, TOTAL[1:]),
    "the sink's share of each row is missing: ds = p (dp − delta)": (TOTAL, "-delta.sum(dim=(0, 2))"),
    "delta is missing: that is minus the sum of the shares": (TOTAL, "-p_sink.sum(dim=(0, 2))"),
    "delta is the row sum of do alone: it is that of do ∘ o": (DELTA, "do.sum(dim=-1)"),
    "exp(sink) isn't divided by the row's sum: subtract lse in the exponent": (SHARE, "torch.exp(sinks[:, None] + 0 * lse)"),
    "exp(sink) overflows from 89 on: subtract lse first, then take one exp": (
        SHARE, "torch.exp(sinks[:, None]) / torch.exp(lse)"),
    "lse is a natural logarithm: the share is exp(sink − lse), not exp2": ("torch.exp", "torch.exp2"),
    "the sink is counted twice: lse has it already, so its share is exp(sink − lse)": (SHARE, "torch.sigmoid(sinks[:, None] - lse)"),
    "the exponent has the wrong sign: the share is exp(sink − lse)": ("sinks[:, None] - lse", "lse - sinks[:, None]"),
    "delta is weighted by p (1 − p): ds = p (dp − delta), and delta holds the rest": (TOTAL, ("-(p_sink * (1 - p_sink) * "
                                                                                             "delta).sum(dim=(0, 2))")),
    "the mean over the batch and the rows is taken: the sink is used in every row, so add up": ("sum(dim=(0, 2))", "mean(dim=(0, 2))"),
    "each batch entry has a gradient of its own: the sinks are shared, so add up": ("sum(dim=(0, 2))", "sum(dim=2)"),
    "the heads are added up: each has its own sink": ("sum(dim=(0, 2))", "sum()"),
}  # fmt: skip
CONDITIONS = {"large": "a sink and an lse may be large: only their difference is an exponent, so nothing overflows"}


def truth(o, do, lse, sinks):
    o, do, lse, sinks = (x.double() for x in (o, do, lse, sinks))
    return -(torch.exp(sinks[:, None] - lse) * (do * o).sum(dim=-1)).sum(dim=(0, 2))


def tolerance(args, part):
    """Relative to the sum of the absolute values that are added up."""
    o, do, lse, sinks = (x.double() for x in args)
    size = (torch.exp(sinks[:, None] - lse) * (do * o).abs().sum(dim=-1)).sum()
    return RTOL[args[0].dtype], RTOL[args[0].dtype] * float(size)


def inputs():
    def rows(*shape, draw, otherwise="", fresh=False, words="", shift=0.0, edge=""):
        B, H, S, D = shape
        o, do = (torch.randn(B, H, S, D, generator=draw) for _ in range(2))
        sinks = torch.randn(H, generator=draw) + shift
        lse = torch.logaddexp(torch.randn(B, H, S, generator=draw) + shift, sinks[:, None])
        return case(o, do, lse, sinks, on=words or f"(B, H, S, D) = {shape}", otherwise=otherwise, fresh=fresh, edge=edge)

    one, two = torch.full((1, 1, 1, 1), 3.0), torch.full((1, 1, 1, 1), 2.0)
    yield case(one, two, two[0].log(), torch.zeros(1), on="one row with o = 3 and do = 2, of which the sink takes half")
    seed = torch.Generator().manual_seed(0)
    yield rows(1, 1, 1, 4, draw=seed, otherwise="delta is the sum of do ∘ o along D")
    yield rows(1, 1, 3, 2, draw=seed, otherwise="every row uses the sink, with its own lse and delta: add up over the rows")
    yield rows(1, 2, 3, 2, draw=seed, otherwise="each head has its own sink and its own gradient")
    yield rows(2, 3, 5, 4, draw=seed, otherwise="all batch entries use the same sinks: add up over the batch, too")
    yield rows(3, 2, 17, 8, draw=generator(), fresh=True, words="a random case")
    yield rows(1, 2, 3, 2, draw=seed, words="(B, H, S, D) = (1, 2, 3, 2), sinks and lse near 100", shift=100.0, edge="large")


EXERCISE = Exercise(
    id="10.6",
    task="Write the gradient of the sinks from what the backward pass has.",
    conditions=CONDITIONS,
    hints=(
        "A sink is a column of s that every row of its head has. You know what ds is for a column: p (dp − delta).",
        "p of the sink is exp(sink − lse), and its value is 0. So what is dp = do · v there?",
        "−exp(sinks[:, None] − lse) times the row sums of do ∘ o, added up over the batch and the rows.",
    ),
    solution=sink_gradient,
    reasoning="The sink is a key with the score `sink` and the value 0. So its dp is 0, and each row gives ds = −p delta. The sink is the "
    "same number in every row of its head, so its gradient is the sum.",
    more="The package also adds dlse's part, and reads delta where the backward has stored it.",
    inputs=inputs,
    truth=truth,
    rule="a row gives the sink ds = p (dp − delta), where p = exp(sink − lse), dp = 0 and delta is the sum of do ∘ o",
    mistakes=MISTAKES,
    tolerance=tolerance,
)
