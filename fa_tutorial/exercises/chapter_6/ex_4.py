import math

import torch

from fa_tutorial.exercises.chapter_6 import shared
from fa_tutorial.exercises.chapter_6.shared import drawn, head, transposed, weights
from fa_tutorial.exercises.harness import RTOL, Exercise
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.watch import NoStandIn, Weights


def p_and_ds(q, k, v, do, lse, delta, rows, keys, mask, scale):
    """p and ds of one tile, each (B, H, block_m, block_n). rows, keys: slices."""
    S_q, S_k, dtype = q.shape[2], k.shape[2], lse.dtype
    s = scale * (q[:, :, rows].to(dtype) @ k[:, :, keys].to(dtype).transpose(-1, -2))
    if mask:
        i, j = torch.arange(S_q)[rows, None], torch.arange(S_k)[keys]
        s = s.masked_fill(j > i + S_k - S_q, -math.inf)
    lse = torch.where(lse == -math.inf, math.inf, lse)  # rows that see nothing: exp(s − inf) is 0
    p = torch.exp(s - lse[:, :, rows, None])
    dp = do[:, :, rows].to(dtype) @ v[:, :, keys].to(dtype).transpose(-1, -2)
    return p, p * (dp - delta[:, :, rows, None])


EXP, DS = "torch.exp(s - lse[:, :, rows, None])", "p * (dp - delta[:, :, rows, None])"
DELTA, HIDES = "delta[:, :, rows, None]", "j > i + S_k - S_q"
GUARD = "    lse = torch.where(lse == -math.inf, math.inf, lse)  # rows that see nothing: exp(s − inf) is 0\n"
I_AND_J = "torch.arange(S_q)[rows, None], torch.arange(S_k)[keys]"
MISTAKES = {
    "p is divided by the sum of this tile: lse holds the sum of the whole row": (EXP, "torch.softmax(s, dim=-1)"),
    "delta is the sum of this tile: the delta that is given is the sum of the whole row": (DELTA, "(p * dp).sum(dim=-1, keepdim=True)"),
    "ds is scaled: the scale is in the scores, and dq and dk get it later": (DS, f"scale * {DS}"),
    "p and ds are exchanged: return (p, ds)": (f"return p, {DS}", f"return {DS}, p"),
    "the mask is on although mask is False": ("if mask", "if True"),
    "the mask starts at the top left: align it so that the last query sees the last key": (HIDES, "j > i"),
    "the mask counts from the corner of the tile: i and j are places in the whole sequence, from rows.start and keys.start on": (
        I_AND_J, "torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])"),
    "rows that see nothing give NaN: s and lse are −inf there, and −inf − (−inf) is NaN": (GUARD, ""),
    "p is rounded to float16: for fp16 and bf16 it is float32": (EXP, f"{EXP}.to(q.dtype).to(dtype)"),
}  # fmt: skip

CONDITIONS = {
    **shared.CONDITIONS,
    "unseen": "a row that sees no key has lse = −inf, and p = ds = 0: causal with S_q > S_k",
    "half": "for fp16 and bf16 everything is float32, p and ds too",
    "memory": "nothing of size S_q × S_k is built, no mask either",
}


def truth(q, k, v, do, lse, delta, rows, keys, mask, scale):
    p = weights(q, k, lse, mask, scale)[:, :, rows, keys]
    dp = do[:, :, rows].double() @ v[:, :, keys].double().mT
    return p, p * (dp - delta[:, :, rows, None].double())


def tolerance(args, part):
    """A score is off by a few units of the sum of absolute values that it is made of, and p and ds by as large a part of themselves."""
    q, k, v, do, _, delta, *_, scale = args
    dtype, q, k, v, do = torch.promote_types(q.dtype, torch.float32), *(x.double().abs() for x in (q, k, v, do))
    rtol = RTOL[dtype] + 4 * torch.finfo(dtype).eps * abs(scale) * float((q @ k.mT).nan_to_num().max())
    size = 1.0 if part == "p" else max(1.0, float((do @ v.mT).nan_to_num().max()), float(delta.abs().nan_to_num().max()))
    return rtol, size * (1e-9 if dtype == torch.float64 else 1e-6)


class Tile(NoStandIn, Weights):
    """p and ds are float32, or float64 where the inputs are; nothing is as large as the whole matrix; and no finite number stands for −∞."""

    names = ("p", "ds")

    def __init__(self, q, k, v, do, lse, delta, rows, keys, mask, scale):
        super().__init__(q)
        self.sizes = q.shape[2], k.shape[2]
        self.can_tell = self.sizes != (rows.stop - rows.start, keys.stop - keys.start) and q.shape[3] not in self.sizes
        self.has_whole = False

    def see(self, name, args, result):
        super().see(name, args, result)
        self.has_whole |= isinstance(result, torch.Tensor) and tuple(result.shape[-2:]) == self.sizes

    def complaint(self, result):
        if (found := super().complaint(result)) or not (self.can_tell and self.has_whole):
            return found
        return f"a tensor of the whole size, {self.sizes[0]} × {self.sizes[1]}, is built: compute this tile alone, and its mask alone"


def at(rows, keys):
    """The options of a case for this tile."""
    pack = lambda *args: (*args[:6], slice(*rows), slice(*keys), *args[8:])  # noqa: E731
    return {"where": f", rows {rows[0]}:{rows[1]}, keys {keys[0]}:{keys[1]}", "pack": pack}


def inputs():
    seed, draw = torch.Generator().manual_seed(0), generator()
    q, k, v, do = [1.0, 2.0, 0.5, 1.5], [1.0, 0.5, 2.0, -1.0], [3.0, 5.0, 1.0, 2.0], [2.0, 1.0, 3.0, 1.0]

    def few(rows, keys, otherwise, is_causal=False, S_q=4, S_k=4, **options):
        return head(q[:S_q], k[:S_k], v[:S_k], do[:S_q], is_causal, otherwise=otherwise, **at(rows, keys), **options)

    yield head([[1.0, 0.5]], [[1.0, 2.0], [0.0, 1.0]], [[3.0, 1.0], [0.0, 2.0]], [[1.0, 2.0]], scale=0.25, **at((0, 1), (0, 2)))
    yield few((0, 2), (0, 1), "each query has one lse and one delta, for all of its keys: lse[:, :, rows, None] has a row for each")
    yield few((1, 3), (2, 4), "rows 1 and 2, keys 2 and 3: take the tile's own rows of q, do, lse and delta, and its own of k and v")
    overflow = "exp(s) overflows: subtract lse before exp, don't divide after it"
    yield head([1.0], [1000.0, 1001.0], [3.0, 5.0], [2.0], otherwise=overflow, **at((0, 1), (0, 2)))
    yield few((0, 2), (0, 3), "mask = True: query i sees keys 0 … i + S_k − S_q", True)
    yield few((2, 4), (1, 4), "i and j are places in the whole sequence: row 2 sees keys 0 … 2", True)
    yield few((0, 2), (1, 4), "S_q < S_k: query i sees keys 0 … i + S_k − S_q", True, S_q=2)
    for last in ([1.0, 1000.0], [-3e30, -3e30], [-5e3, -5e3]):
        large = "scores, and so lse, may be any finite numbers, so no finite one hides a pair: −inf does, before exp"
        yield head([1.0, 1.0], last, [3.0, 5.0], [2.0, 1.0], True, otherwise=large, **at((0, 2), (0, 2)))
    yield few((0, 3), (0, 2), "rows 0 and 1 see no key, and lse = −inf: p = ds = 0 there", True, S_k=2, edge="unseen")
    yield head([math.nan, 1.0], k[:2], v[:2], do[:2], edge="nan", **at((0, 2), (0, 1)))
    half = {"dtype": torch.float16, "edge": "half", **at((0, 1), (0, 1))}
    dp = "dp is 90,000, and float16 ends at 65,504: compute dp in float32"
    yield head([1.0], [0.0, 0.0], [300.0, 300.0], [300.0], otherwise=dp, **half)
    digits = "float16 has too few digits for this score: convert q and k to float32 before they are multiplied, by scale too"
    yield head([1000.0], [1.0], [1.0], [1.0], scale=1.0004, otherwise=digits, **half)
    yield drawn((1, 2, 3, 5, 4), 0.5, False, seed, words="float16, ", dtype=torch.float16, edge="half", **at((0, 2), (1, 4)))
    yield drawn((1, 1, 2, 3, 2), 1 / 3, False, seed, words="float64, ", dtype=torch.float64, edge="float64", **at((0, 1), (0, 2)))
    yield drawn((1, 2, 11, 14, 3), 1.0, True, seed, edge="memory", **at((4, 8), (6, 12)))
    for shape, scale, tile in (((2, 3, 9, 17, 8), 0.3, at((4, 8), (8, 16))), ((2, 2, 9, 5, 4), -0.25, at((3, 9), (0, 2)))):
        yield drawn(shape, scale, False, draw, words="randn, ", **tile)
        yield drawn(shape, scale, True, draw, words="randn, ", edge="unseen" if shape[2] > shape[3] else "", **tile)
        yield drawn(shape, scale, True, draw, words="bfloat16, ", dtype=torch.bfloat16, edge="half", **tile)
    yield drawn((2, 3, 7, 10, 8), 0.35, True, draw, words="views, ", change=transposed, edge="views", **at((2, 7), (3, 9)))


EXERCISE = Exercise(
    task="Compute p and ds of one tile.",
    conditions=CONDITIONS,
    hints=(
        "Softmax divides exp(s) by the sum of exp(s) over the row, and lse is the logarithm of that sum. What does the division become inside exp?",
        "p = exp(s − lse), with the tile's own rows of lse: lse[:, :, rows, None]. Then dp = do vᵀ, and ds = p ∘ (dp − delta) by (6.5).",
        "With mask, hide s before exp, as in exercise 4.4: i = torch.arange(S_q)[rows, None] and j = torch.arange(S_k)[keys] are places in the "
        "whole sequence, and s is −inf where j > i + S_k − S_q. A row that sees nothing has s = lse = −inf, and −inf − (−inf) is NaN: put "
        "+inf in place of lse there.",
    ),
    solution=p_and_ds,
    reasoning="exp(s) / Σ exp(s) = exp(s − log Σ exp(s)), so lse replaces the row's maximum and its sum, and delta the row's sum of p ∘ dp. "
    "Both belong to the whole row, so each tile can be computed by itself. In rows that see nothing, lse = +inf works: exp(−inf − inf) is 0.",
    more="The package's version is algorithm.p_and_ds. Its algorithm.recompute_p makes the whole p.",
    inputs=inputs,
    truth=truth,
    rule="s = scale · q kᵀ, lse is log Σ exp(s) of the whole row, and delta is the row sum in (6.5)",
    mistakes=MISTAKES,
    parts=("p", "ds"),
    tolerance=tolerance,
    watch=Tile,
)
