import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.watch import BY_AUTOGRAD, ByHand


def dropout_gradients(p, p_sink, z, v, do):
    """(ds, dv, dsink) of a head. p, z: (S_q, S_k); p_sink: (S_q,); v: (S_k, D); do: (S_q, D)."""
    o = (z * p) @ v
    dv = (z * p).T @ do
    dp = z * (do @ v.T)
    delta = (do * o).sum(dim=1)
    ds = p * (dp - delta[:, None])
    return ds, dv, -(p_sink * delta).sum()


DP, DS, DSINK = "z * (do @ v.T)", "p * (dp - delta[:, None])", "-(p_sink * delta).sum()"
MISTAKES = {
    "z is missing in dp, and so in delta: a kept pair's p was multiplied by z on its way to o, so its dp is z (do · v)": [
        (DP, "do @ v.T"), ("(do * o).sum", "(p * dp).sum")],
    "z is missing in dp: a kept pair's p was multiplied by z on its way to o, so its dp is z (do · v)": (DP, "do @ v.T"),
    "z multiplies ds as well as dp: a dropped pair's p still took part in the softmax, so its ds is p (0 − delta)": (DS, f"z * {DS}"),
    "z is missing in dv: o = (z ∘ p) v, so dv = (z ∘ p)ᵀ do": ("(z * p).T @ do", "p.T @ do"),
    "z is used as 0 or 1: it holds the factor 1 / (1 − P) of a kept pair": ("    o = (z", "    z = (z > 0).to(p.dtype)\n    o = (z"),
    "delta is that of o without dropout: o = (z ∘ p) v": ("o = (z * p)", "o = p"),
    "delta has a z too many: dp holds z already, so delta is the sum of p ∘ dp": ("(do * o).sum(dim=1)", "(z * p * dp).sum(dim=1)"),
    "ds and dv are exchanged: return ds, dv, dsink": ("return ds, dv, ", "return dv, ds, "),
    "dsink has the wrong sign: the sink's value is 0, so its dp is 0, and its ds is p_sink (0 − delta)": (DSINK, DSINK[1:]),
    "p_sink is missing in dsink: the sink's ds is p_sink (0 − delta), as a key's is p (dp − delta)": (DSINK, "-delta.sum()"),
    "dsink is averaged over the rows: it is their sum, because each row uses the same sink": (DSINK, "-(p_sink * delta).mean()"),
    "p_sink and delta broadcast to a matrix, so that each row's share meets the delta of every row: give both the shape (S_q,)": (
        DSINK, "-(p_sink * delta[:, None]).sum()"),
}  # fmt: skip
RULES = {
    "ds": "z enters ds through dp alone, and delta is do · o as it is: the sink's share is in p already",
    "dv": "o = (z ∘ p) v, and dv is its gradient by v",
    "dsink": "dsink is one number, the sum over the rows of p_sink (dp − delta): the sink's value is 0, so its dp is 0, and its delta is "
    "the row's own, with z",
}


def truth(p, p_sink, z, v, do):
    """By the softmax's Jacobian, with the sink as one more column, whose value is 0."""
    p, p_sink, z, v, do = (x.double() for x in (p, p_sink, z, v, do))
    share = torch.cat([p_sink[:, None], p], dim=1)
    dshare = torch.cat([0 * p_sink[:, None], z * (do @ v.T)], dim=1)
    jacobian = torch.diag_embed(share) - share[:, :, None] * share[:, None, :]
    ds = (jacobian @ dshare[:, :, None])[:, :, 0]
    return ds[:, 1:], (z * p).T @ do, ds[:, 0].sum()


class NoAutograd(ByHand):
    def __init__(self, *_):
        super().__init__()

    def complaint(self, result):
        return BY_AUTOGRAD if self.by_autograd else ""


def inputs():
    for z in ([1.0, 1.0], [2.0, 0.0]):
        yield case(*map(torch.tensor, ([[0.5, 0.25]], [0.25], [z], [[1.0], [3.0]], [[2.0]])), otherwise=RULES)
    shares, z, v, do = (torch.randn(shape, generator=generator()) for shape in ((4, 6), (4, 5), (5, 3), (4, 3)))
    shares = torch.softmax(shares, dim=1)
    args = shares[:, 1:].contiguous(), shares[:, 0].contiguous(), 2.0 * (z > 0), v, do
    yield case(*args, on="4 queries, 5 keys, D = 3, P = 0.5", otherwise=RULES, fresh=True)
    hidden = [[0.0, 0.0], [0.5, 0.25]], [1.0, 0.25], [[2.0, 2.0], [0.0, 0.0]], [[1.0], [3.0]], [[2.0], [1.0]]
    yield case(*map(torch.tensor, hidden), on="row 0 sees no key, and row 1 keeps none", edge="hidden")


EXERCISE = Exercise(
    task="Write the gradients of a head with dropout and a sink.",
    conditions={"hidden": "a pair may be hidden, and a row may see no key or keep none: p or z is 0 there, and nothing is divided"},
    hints=(
        "o = (z ∘ p) v is a product of two matrices: what are the gradients of its factors? And dp is one more step back than that of z ∘ p.",
        "The softmax doesn't know of z: ds = p ∘ (dp − delta), with delta the row sums of do ∘ o. Which dp does a key have whose value is 0?",
        "dv = (z * p).T @ do, dp = z * (do @ v.T), ds = p * (dp − delta). The sink's dp is 0, so dsink = −(p_sink * delta).sum().",
    ),
    solution=dropout_gradients,
    reasoning="z stands between p and v, so it enters the gradients of both, and nothing else. delta is the row sum of p ∘ dp, with the sink, "
    "whose dp is 0, so it is do · o as ever. A dropped pair has dp = 0, but its p took part in the softmax, and so did the sink's.",
    more="The package's kernels have no z in memory: they draw it anew for each tile.",
    inputs=inputs,
    truth=truth,
    rule="the gradients of the sum of do ∘ o, where o = (z ∘ p) v, by the scores, by v and by the sink",
    mistakes=MISTAKES,
    parts=("ds", "dv", "dsink"),
    watch=NoAutograd,
)
