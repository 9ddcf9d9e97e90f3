"""Exercise 6.4, recompute_p."""

import math

import torch

from fa_tutorial import reference
from fa_tutorial.exercises.chapter_6.shared import NAN, weights
from fa_tutorial.exercises.harness import RTOL, Exercise, case
from fa_tutorial.exercises.inputs import generator, views
from fa_tutorial.exercises.running import INF, show_nested
from fa_tutorial.exercises.watch import HiddenByInfinity, Weights


def recompute_p(q, k, lse, scale, is_causal):
    """p (B, H, S_q, S_k) from q (B, H, S_q, D), k (B, H, S_k, D) and lse (B, H, S_q)."""
    S_q, S_k = q.shape[2], k.shape[2]
    dtype = torch.promote_types(q.dtype, torch.float32)  # float32 for halves, float64 stays
    s = scale * (q.to(dtype) @ k.to(dtype).transpose(-1, -2))
    if is_causal:
        seen = torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q)
        s = s.masked_fill(~seen, -math.inf)
    lse = torch.where(lse == -math.inf, math.inf, lse)  # rows that see nothing: exp(s − inf) is 0
    return torch.exp(s - lse[..., None])


EXP = "torch.exp(s - lse[..., None])"
GUARD = "    lse = torch.where(lse == -math.inf, math.inf, lse)  # rows that see nothing: exp(s − inf) is 0\n"
MISTAKES = {
    "lse is missing: p = exp(s − lse)": [(EXP, "torch.exp(s)"), (GUARD, "")],
    "each row of p is divided by its sum: lse holds the sum already": [(EXP, "torch.softmax(s, dim=-1).nan_to_num()"), (GUARD, "")],
    "the scale is ignored: p = exp(scale · q kᵀ − lse)": ("scale * (", "("),
    "the scores are scaled by 1/√D: use the scale that is given": ("scale * (", "q.shape[-1] ** -0.5 * ("),
    "lse runs along the wrong axis: column j is shifted by the lse of row j (lse[..., None])": ("lse[..., None]", "lse[..., None, :]"),
    "is_causal hides nothing: query i sees keys 0 … i + S_k − S_q": ("if is_causal", "if False"),
    "the mask is strict: query i sees key i too": ("tril(S_k - S_q)", "tril(S_k - S_q - 1)"),
    "the mask starts at the top left: align it so that the last query sees the last key": ("tril(S_k - S_q)", "tril()"),
    "rows that see nothing give NaN: s and lse are −inf there, and −inf − (−inf) is NaN": (GUARD, ""),
    "p is rounded to float16: for fp16 and bf16 it is float32": (EXP, f"{EXP}.to(q.dtype)"),
    "the scores are computed in float16, which has too few digits and ends at 65,504": (
        "q.to(dtype) @ k.to(dtype).transpose(-1, -2)", "q @ k.transpose(-1, -2)"),
}  # fmt: skip

CONDITIONS = {
    "unseen": "a row that sees no key has lse = −inf, and p = 0: causal with S_q > S_k, or S_k = 0",
    "nan": NAN,
    "half": "for fp16 and bf16 the scores and p are float32",
    "float64": "float64 in gives float64's accuracy out",
    "views": "q, k and lse may be views: any strides work",
}


def truth(q, k, lse, scale, is_causal):
    return weights(q, k, lse, is_causal, scale)


def tolerance(args, part):
    """A score is off by a few units of the sum of absolute values that it is made of, and p by as large a part of itself."""
    q, k, _, scale, _ = args
    dtype = torch.promote_types(q.dtype, torch.float32)
    size = float((q.double().abs() @ k.double().abs().mT).nan_to_num().max()) if k.numel() else 0.0
    rtol = RTOL[dtype] + 4 * torch.finfo(dtype).eps * abs(scale) * size
    return rtol, 1e-9 if dtype == torch.float64 else 1e-6


class Hidden(HiddenByInfinity):
    """Weights, and no finite number may stand for −∞."""

    def __init__(self, q, k, *rest):
        super().__init__(q, k, k, q.shape[2], max(1, k.shape[2]))
        self.weights = Weights(q)

    def complaint(self, result):
        return self.weights.complaint(result) or super().complaint(result)


def inputs():
    def given(s, lse, otherwise, scale=1.0, is_causal=False, **options):
        """q is the identity and k = sᵀ, so that q kᵀ is s. lse is not that of s, so that an answer which sums again is seen."""
        s, lse = torch.tensor(s), torch.tensor(lse)
        on = f"q kᵀ = {show_nested(s.tolist())}, lse = {show_nested(lse.tolist())}, scale = {scale:g}{', causal' if is_causal else ''}"
        q, k = torch.eye(len(s)), s.T.contiguous()
        return case(q[None, None], k[None, None], lse[None, None], scale, is_causal, on=on, otherwise=otherwise, **options)

    def drawn(sizes, scale, is_causal, draw, words="", factor=1.0, change=lambda x: x, edge="", **options):
        B, H, S_q, S_k, D = sizes
        q, k = (change(factor * torch.randn(B, H, S, D, generator=draw)) for S in (S_q, S_k))
        lse = reference.attention(q, k, k, is_causal, scale)[1].to(torch.promote_types(q.dtype, torch.float32))
        on = f"{words}(B, H, S_q, S_k, D) = {sizes}, scale = {scale:g}{', causal' if is_causal else ''}"
        return case(q, k, change(lse) if edge == "views" else lse, scale, is_causal, on=on, edge=edge, **options)

    yield given([[1.0, 2.0]], [3.0], "p = exp(s − lse), with the lse that is given")
    yield given([[2.0, 4.0]], [3.0], "s = scale · q kᵀ, and p = exp(s − lse)", 0.5)
    yield given([[2.0, 4.0]], [3.0], "a scale of 0 is a scale: every score is 0", 0.0)
    yield given([[1.0, 2.0], [3.0, 1.0]], [3.0, 5.0], "two rows: each has its own lse")
    yield given([[1000.0, 1001.0]], [1002.0], "exp(1000) overflows: subtract lse before exp, not divide after it")
    yield given([[-1000.0, -1001.0]], [-999.0], "exp underflows: subtract lse before exp, not divide after it")
    seed = torch.Generator().manual_seed(0)
    yield drawn((2, 3, 4, 6, 5), 0.5, False, seed, otherwise="every head has scores and an lse of its own")
    s = [[1.0, 2.0, 0.0], [4.0, 1.0, 3.0], [2.0, 0.0, 1.0]]
    yield given(s, [3.0, 5.0, 4.0], "query i sees keys 0 … i, and the other pairs have p = 0", is_causal=True)
    yield given(s[:2], [3.0, 5.0], "S_q < S_k: query i sees keys 0 … i + S_k − S_q", is_causal=True)
    yield given([[1.0, 1000.0], [4.0, 1.0]], [3.0, 5.0], "exp overflows at a hidden pair: hide it before exp", is_causal=True)
    large = [[-3e30, 1.0], [-3e30, -3e30]]
    yield given(large, [-2e30, -2e30], "scores may be any finite numbers: a hidden pair is hidden by −inf", is_causal=True)
    draw = generator()
    for sizes, scale in (((1, 1, 1, 1, 1), 1.0), ((2, 3, 5, 9, 8), 0.3), ((2, 2, 9, 5, 4), -0.25)):
        unseen = {"edge": "unseen"} if sizes[2] > sizes[3] else {}
        for is_causal in (False, True):
            for words, factor in (("randn, ", 1.0), ("3·randn, ", 3.0), ("30·randn, ", 30.0)):
                yield drawn(sizes, scale, is_causal, draw, words, factor, fresh=True, **(unseen if is_causal else {}))
            for words, dtype in (("float16, ", torch.float16), ("bfloat16, ", torch.bfloat16)):
                yield drawn(sizes, scale, is_causal, draw, words, change=lambda x, dtype=dtype: x.to(dtype), fresh=True, edge="half")
    yield given([[1.0], [3.0], [2.0]], [-INF, -INF, 3.0], "rows 0 and 1 see no key, lse = −inf: p = 0 there", is_causal=True, edge="unseen")
    s = [[0.0, 0.0], [1.0, 2.0], [0.0, 1.0]]
    yield given(s, [-INF, 3.0, 2.0], "S_q > S_k: query i sees keys 0 … i + S_k − S_q", is_causal=True, edge="unseen")
    nothing = torch.ones(1, 1, 2, 1), torch.ones(1, 1, 0, 1), torch.full((1, 1, 2), -INF)
    yield case(*nothing, 1.0, False, on="S_q = 2, S_k = 0", otherwise="no key: p is empty", edge="unseen")
    yield given([[1.0, 2.0], [math.nan, 1.0]], [3.0, 5.0], "", edge="nan")
    yield given([[1.0, 2.0], [3.0, 1.0]], [3.0, math.nan], "", edge="nan")
    digits = "float16 has too few digits for this score: convert q and k to float32 before they are multiplied, by scale too"
    overflow = "q kᵀ is 90,000, and float16 ends at 65,504: compute the scores in float32"
    for q, k, lse, scale, words in ((300.0, 300.0, 9.35, 1e-4, overflow), (1000.0, 1.0, 1000.4, 1.0004, digits)):
        q, k = (torch.full((1, 1, 1, 1), x, dtype=torch.float16) for x in (q, k))
        on = f"float16, q = {q.item():g}, k = {k.item():g}, scale = {scale:g}, lse = {lse:g}"
        yield case(q, k, torch.full((1, 1, 1), lse), scale, False, on=on, otherwise=words, edge="half")
    yield drawn((1, 1, 2, 3, 2), 1 / 3, False, seed, "float64, ", change=torch.Tensor.double, edge="float64")
    for n in range(3):
        yield drawn((2, 3, 4, 6, 5), 0.5, True, draw, "views, ", change=lambda x, n=n: list(views(x))[n][1], fresh=True, edge="views")


EXERCISE = Exercise(
    task="Recompute p from q, k and lse.",
    conditions=CONDITIONS,
    hints=(
        "Softmax divides exp(s) by the sum of exp(s), and lse is the logarithm of that sum. What does the division become inside exp?",
        "p = exp(scale · q kᵀ − lse[..., None]), hidden scores set to −inf before exp: key j is hidden where j > i + S_k − S_q. Scores are "
        "float32.",
        "A row that sees nothing has s = lse = −inf, and −inf − (−inf) is NaN. Put +inf in place of lse there: exp(−inf − inf) is 0.",
    ),
    solution=recompute_p,
    reasoning="exp(s) / Σ exp(s) = exp(s − log Σ exp(s)). There is no maximum and no sum, so each tile of p can be computed by itself. In "
    "rows that see nothing, lse = +inf works: exp(−inf − inf) is 0.",
    more="The package's version, algorithm.recompute_p, takes fewer heads for k than for q, and checks its arguments.",
    inputs=inputs,
    truth=truth,
    rule="p = exp(s − lse), with s = scale · q kᵀ",
    mistakes=MISTAKES,
    tolerance=tolerance,
    watch=Hidden,
)
