"""Exercise 6.4, recompute_p."""

import math

import torch

from fa_tutorial import reference
from fa_tutorial.exercises.gradient_twin import scores, seen, weights
from fa_tutorial.exercises.harness import RTOL, Exercise, case
from fa_tutorial.exercises.inputs import exp32, generator, views
from fa_tutorial.exercises.running import INF, show_nested


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


_DIGITS = "right in float32, and digits are lost in float16: convert q and k to float32 before they are multiplied, by scale too"
_IN_HALF = "p comes in float16: it is computed in float32, and stays so"
_OVERFLOW = "q kᵀ is 90,000, and float16 ends at 65,504: compute the scores in float32"
_CLIPPED = "rows see more than they may: S_k − S_q is negative here, and the mask has to move left by it"
MISTAKES = {
    "no_lse": "lse is missing: p = exp(s − lse)",
    "normalised": "p is divided by its sum: lse contains the sum already",
    "no_exp": "exp is missing: p = exp(s − lse)",
    "sign": "the exponent has the wrong sign: it is s − lse",
    "base_2": "this is exp2: lse is the natural logarithm, so use exp",
    "half_base_2": "lse is used as a logarithm of base 2: with exp2, multiply both the scores and lse by log2(e)",
    "s_by_lse": "s is divided by lse: subtract it",
    "p_by_lse": "exp(s) is divided by lse: lse is the logarithm of the sum, so subtract it in the exponent",
    "plus_lse": "lse is added: subtract it",
    "row_maximum": "p is shifted by the row's maximum, not by lse",
    "maximum_too": "the row's maximum is subtracted too: subtract only lse",
    "scale_ignored": "the scale is ignored: p = exp(scale · q kᵀ − lse)",
    "scale_after": "lse is multiplied by the scale: scale the scores, then subtract lse",
    "scale_twice": "the scale is applied twice",
    "scale_divides": "the scores are divided by the scale: multiply them",
    "scales_p": "p is multiplied by the scale: scale the scores",
    "scale_zero": "a scale of 0 is treated as no scale: with 0, every score is 0",
    "lse_columns": "lse runs along the wrong axis: column j is shifted by the lse of row j (lse[..., None])",
    "scale_own": "the scores are scaled by 1/√D: use the scale that is given",
    "scale_both": "the scores are scaled by 1/√D as well: use only the scale that is given",
    "transposed": "p is transposed: rows are queries",
    "first_lse": "all rows use the lse of the first: each has its own",
    "largest_lse": "all rows use the largest lse: each has its own",
    "divided_late": "exp overflows: subtract lse before exp, not divide after it",
    "no_mask": "is_causal changes nothing",
    "strict": "the mask is strict: query i sees key i too",
    "wide": "the mask is one key too wide: the last key that query i sees is key i",
    "upside": "the mask is upside down: it hides the past",
    "hide_zero": "hidden scores are set to 0, and exp(0 − lse) is not 0: use −inf",
    "hidden_inf": "hidden pairs are −inf in p: set the scores to −inf, before exp",
    "mask_after": "exp overflows at a hidden pair, and inf · 0 is NaN: set the score to −inf before exp",
    "top_left": "the mask starts at the top left: align it so that the last query sees the last key",
    "shift_sign": "S_k − S_q has the wrong sign: query i sees keys 0 … i + S_k − S_q",
    "shift_opens": "with S_q < S_k nothing is masked any more",
    "one_head": "every head gets the p of head 0",
    "one_batch": "every batch element gets the p of batch element 0",
    "unseen_nan": "rows that see nothing give NaN: s and lse are −inf there, and −inf − (−inf) is NaN",
    "unseen_inf": "rows that see nothing give inf: lse is −inf there, and −(−inf) is inf",
    "unseen_one": "rows that see nothing give 1: p is 0 there",
    "shift_clipped": _CLIPPED,
    "half_scores": _OVERFLOW,
    "half_scale": _DIGITS,
    "half_p": _IN_HALF,
    "always_half": _IN_HALF,
}

CONDITIONS = {
    "unseen": "a row that sees no key has lse = −inf, and p = 0: causal with S_q > S_k, or S_k = 0",
    "half": "for fp16 and bf16 the scores and p are float32",
    "float64": "float64 in gives float64's accuracy out",
    "views": "q, k and lse may be views: any strides work",
}


def twin(q, k, lse, scale, is_causal, mistake=None):
    blocks = q.shape[2], max(1, k.shape[2])
    s, given, row = scores(q, k, scale, mistake), lse.double(), lse.double()[..., None]
    counts = seen(q.shape[2], k.shape[2], *blocks, is_causal, mistake) & (row != -INF)
    p = weights(q, k, lse, *blocks, is_causal, scale, mistake)
    largest = s.masked_fill(~counts, -INF).amax(-1, keepdim=True) if k.shape[2] else row
    exponent = {
        "base_2": (s - row) * math.log(2),
        "half_base_2": s - row * math.log(2),
        "sign": row - s,
        "s_by_lse": s / row,
        "plus_lse": s + row,
        "row_maximum": s - largest,
        "maximum_too": s - row - largest,
        "scale_after": scale * (scores(q, k, 1.0) - row),
        "first_lse": s - given[..., :1, None],
        "largest_lse": s - given.amax(-1)[..., None, None],
    }.get(mistake)
    if exponent is not None:
        return exp32(exponent).masked_fill(~counts, 0.0)
    return {
        "normalised": lambda: p / p.sum(-1, keepdim=True).clamp(min=1e-300),
        "no_exp": lambda: (s - row).masked_fill(~counts, 0.0),
        "p_by_lse": lambda: (exp32(s) / row).masked_fill(~counts, 0.0),
        "divided_late": lambda: exp32(s.masked_fill(~counts, -INF)) / exp32(row),
        "scales_p": lambda: scale * weights(q, k, lse, *blocks, is_causal, 1.0),
        "transposed": lambda: p.mT,
        "hidden_inf": lambda: p.masked_fill(~counts, -INF),
        "mask_after": lambda: exp32(s - row.masked_fill(row == -INF, INF)) * counts,
        "one_head": lambda: p[:, :1].expand(p.shape),
        "one_batch": lambda: p[:1].expand(p.shape),
        "unseen_one": lambda: p.masked_fill(row == -INF, 1.0),
        "half_p": lambda: p.half().double() if q.dtype == torch.float16 else p,
        "always_half": lambda: p.half().double(),
    }.get(mistake, lambda: p)()


def tolerance(args, part):
    """A score is off by a few units of the sum of absolute values that it is made of, and p by as large a part of itself."""
    q, k, _, scale, _ = args
    dtype = torch.promote_types(q.dtype, torch.float32)
    size = float((q.double().abs() @ k.double().abs().mT).max()) if k.numel() else 0.0
    rtol = RTOL[dtype] + 4 * torch.finfo(dtype).eps * abs(scale) * size
    return rtol, 1e-9 if dtype == torch.float64 else 1e-6


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
    yield given([[2.0, 4.0]], [3.0], MISTAKES["scale_zero"], 0.0)
    yield given([[1.0, 2.0], [3.0, 1.0]], [3.0, 5.0], "two rows: each has its own lse")
    yield given([[1000.0, 1001.0]], [1002.0], MISTAKES["divided_late"])
    yield given([[-1000.0, -1001.0]], [-999.0], "exp underflows: subtract lse before exp, not divide after it")
    seed = torch.Generator().manual_seed(0)
    yield drawn((2, 3, 4, 6, 5), 0.5, False, seed, otherwise="every head has scores and an lse of its own")
    s = [[1.0, 2.0, 0.0], [4.0, 1.0, 3.0], [2.0, 0.0, 1.0]]
    yield given(s, [3.0, 5.0, 4.0], "query i sees keys 0 … i, and the other pairs have p = 0", is_causal=True)
    yield given(s[:2], [3.0, 5.0], "S_q < S_k: query i sees keys 0 … i + S_k − S_q", is_causal=True)
    yield given([[1.0, 1000.0], [4.0, 1.0]], [3.0, 5.0], "exp overflows at a hidden pair: hide it before exp", is_causal=True)
    draw = generator()
    for sizes, scale in (((1, 1, 1, 1, 1), 1.0), ((2, 3, 5, 9, 8), 0.3), ((1, 2, 1, 17, 16), -0.25), ((2, 2, 9, 5, 4), 0.5)):
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
    for q, k, lse, scale, words in ((300.0, 300.0, 9.35, 1e-4, _OVERFLOW), (1000.0, 1.0, 1000.4, 1.0004, _DIGITS)):
        q, k = (torch.full((1, 1, 1, 1), x, dtype=torch.float16) for x in (q, k))
        on = f"float16, q = {q.item():g}, k = {k.item():g}, scale = {scale:g}, lse = {lse:g}"
        yield case(q, k, torch.full((1, 1, 1), lse), scale, False, on=on, otherwise=words, edge="half")
    yield drawn((1, 1, 2, 3, 2), 1 / 3, False, seed, "float64, ", change=torch.Tensor.double, edge="float64")
    for n in range(3):
        yield drawn((2, 3, 4, 6, 5), 0.5, True, draw, "views, ", change=lambda x, n=n: list(views(x))[n][1], fresh=True, edge="views")


EXERCISE = Exercise(
    id="6.4",
    task="Recompute p from q, k and lse.",
    conditions=CONDITIONS,
    hints=(
        "Softmax divides exp(s) by the sum of exp(s), and lse is the logarithm of that sum. What does the division become inside exp?",
        "p = exp(scale · q kᵀ − lse[..., None]), hidden scores set to −inf before exp: key j is hidden where j > i + S_k − S_q. Scores are float32.",
        "A row that sees nothing has s = lse = −inf, and −inf − (−inf) is NaN. Put +inf in place of lse there: exp(−inf − inf) is 0.",
    ),
    solution=recompute_p,
    reasoning="exp(s) / Σ exp(s) = exp(s − log Σ exp(s)). There is no maximum and no sum, so each tile of p can be computed by itself. In rows that see "
    "nothing, lse = +inf works: exp(−inf − inf) is 0.",
    more="The package's version, algorithm.recompute_p, takes fewer heads for k than for q, and checks its arguments.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    tolerance=tolerance,
)
