"""Exercise 10.7, dropout_gradients."""

import torch

from fa_tutorial.exercises.harness import RTOL, Exercise, case
from fa_tutorial.exercises.inputs import generator


def dropout_gradients(p, z, v, o, do):
    """(dv, ds) of o = (z ∘ p) v. p, z: (M, N); v: (N, D); o, do: (M, D)."""
    dv = (z * p).mT @ do
    dp = z * (do @ v.mT)
    delta = (do * o).sum(dim=-1, keepdim=True)
    return dv, p * (dp - delta)


DP, DELTA, DS = "z * (do @ v.mT)", "(do * o).sum(dim=-1, keepdim=True)", "p * (dp - delta)"
MISTAKES = {
    "dv takes the p before dropout: what met v is z ∘ p": ("(z * p).mT", "p.mT"),
    "dp lacks z: p reaches o only through z ∘ p": (DP, "do @ v.mT"),
    "ds takes the dropped p: softmax's derivative is that of its own result, p before dropout": (DS, "z * p * (dp - delta)"),
    "z is applied twice, to p and to dp": [(DP, "z * (z * (do @ v.mT))")],
    "delta is taken without z: it is the sum of p dp with this dp, or do · o": (DELTA, "(p * (do @ v.mT)).sum(dim=-1, keepdim=True)"),
    "delta has z twice: dp holds it already": (DELTA, "(z * p * dp).sum(dim=-1, keepdim=True)"),
    "delta is missing: ds = p (dp − delta)": (DS, "p * dp"),
    "ds has the wrong sign: it is p (dp − delta)": (DS, "p * (delta - dp)"),
    "kept pairs lack the factor 1 / (1 − P): z holds it, where it isn't 0": ("(z * p).mT", "((z > 0) * p).mT"),
    "dp's kept pairs lack the factor 1 / (1 − P): z holds it, where it isn't 0": (DP, "(z > 0) * (do @ v.mT)"),
    "the factor 1 / (1 − P) is missing in both: z holds it, where it isn't 0": [
        ("(z * p).mT", "((z > 0) * p).mT"), (DP, "(z > 0) * (do @ v.mT)")],
    "delta is multiplied by z: a dropped pair has dp = 0, but softmax's delta goes to every pair": (DS, "p * (dp - z * delta)"),
    "the two results are exchanged: return (dv, ds)": (f"return dv, {DS}", f"return {DS}, dv"),
}  # fmt: skip


def truth(p, z, v, o, do):
    p, z, v, do = (x.double() for x in (p, z, v, do))
    dp = z * (do @ v.mT)
    return (z * p).mT @ do, p * dp - p * (p * dp).sum(dim=-1, keepdim=True)


def tolerance(args, part):
    _, z, v, _, do = (x.double() for x in args)
    return RTOL[args[0].dtype], RTOL[args[0].dtype] * float((z * (do.abs() @ v.abs().mT)).max() + do.abs().sum())


def inputs():
    def rows(M, N, D, share, *, draw=None, otherwise="", **options):
        draw = draw or torch.Generator().manual_seed(M)
        p = torch.softmax(torch.randn(M, N, generator=draw), dim=-1)
        z = (torch.rand(M, N, generator=draw) >= share) / (1 - share)
        v, do = torch.randn(N, D, generator=draw), torch.randn(M, D, generator=draw)
        on = f"{M} queries, {N} keys, D = {D}, dropout of {share:g}"
        return case(p, z, v, (z * p) @ v, do, on=on, otherwise=otherwise, **options)

    half, z = torch.tensor([[0.5, 0.5]]), torch.tensor([[2.0, 0.0]])
    v, do = torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0]])
    yield case(half, z, v, (z * half) @ v, do, on="p = [0.5, 0.5], of which the second is dropped, v = [1, 3], do = 1")
    yield rows(3, 4, 2, 0.0, otherwise="without dropout these are chapter 6's dv and ds")
    yield rows(4, 6, 3, 0.5)
    yield rows(5, 8, 4, 0.25)
    yield rows(9, 16, 8, 0.1, draw=generator(), fresh=True)


EXERCISE = Exercise(
    id="10.7",
    task="Write attention's dv and ds under dropout, whose mask is known.",
    hints=(
        "o = (z ∘ p) v is a product of two matrices: what is the gradient of its left factor, and then of p?",
        "softmax's backward is as always, ds = p ∘ (dp − delta), with the p that softmax returned. What is delta, the row sum of p ∘ dp?",
        "The row sum of p ∘ z ∘ (do vᵀ) is do · ((z ∘ p) v), that is do · o.",
    ),
    solution=dropout_gradients,
    reasoning="What meets v is z ∘ p, so dv takes it, and the gradient of p is z times that of z ∘ p. Softmax knows nothing of z. And "
    "delta is the row sum of p ∘ dp, in which z stands beside p: that is do · o again.",
    more="The package draws z anew in each kernel, and applies the factor 1 / (1 − P) once at the end.",
    inputs=inputs,
    truth=truth,
    rule="dv = (z ∘ p)ᵀ do, dp = z ∘ (do vᵀ) and ds = p ∘ (dp − delta), where delta is the row sum of do ∘ o",
    mistakes=MISTAKES,
    parts=("dv", "ds"),
    tolerance=tolerance,
)
