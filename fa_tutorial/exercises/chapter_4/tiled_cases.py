"""What the exercises on a tiled forward share: inputs whose scores and weights can be read off, random inputs, and the tolerance."""

import torch

from fa_tutorial.exercises.harness import case
from fa_tutorial.exercises.running import show_nested

ONE_KEY = "one key: p = l = 1, so o = acc / l is its row of v and lse = m + log l its score; nothing is added to l"


def scores_case(s, blocks, otherwise="", scale=1.0, **options):
    """q is the identity and k = sᵀ, so that q kᵀ is s; v is the identity, so that o is the weights themselves."""
    s = torch.tensor(s)
    (S_q, S_k), D = s.shape, max(s.shape)
    q, k, v = torch.eye(S_q, D), torch.zeros(S_k, D), torch.eye(S_k, D)
    k[:, :S_q] = s.T
    on = f"q kᵀ = {show_nested(s.tolist())}, v = the identity, blocks {blocks[0]} × {blocks[1]}, scale = {scale:g}"
    return case(q[None, None], k[None, None], v[None, None], *blocks, scale, on=on, otherwise=otherwise, **options)


def column(*values, dtype=torch.float32):
    """One head with D = 1."""
    return torch.tensor(values, dtype=dtype).view(1, 1, -1, 1)


def random_case(draw, words, sizes, blocks, scale, factor=1.0, edge="", change=lambda x: x):
    """Normally distributed q, k, v of sizes (B, H, S_q, S_k, D), q and k times `factor`."""
    B, H, S_q, S_k, D = sizes
    q, k, v = (change(torch.randn(B, H, S, D, generator=draw)) for S in (S_q, S_k, S_k))
    on = f"{words}, (B, H, S_q, S_k, D) = {sizes}, blocks {blocks[0]} × {blocks[1]}"
    return case(factor * q, factor * k, v, *blocks, scale, on=on, fresh=True, edge=edge)


def half_cases(draw):
    """float16 and bfloat16, as the edge "half". Where one query is there, a causal mask hides no key, so each case is for both forms."""
    one, three = (column(*[1.0] * n, dtype=torch.float16) for n in (1, 3))
    two = column(2.0, dtype=torch.bfloat16)
    sums = "p v may pass 65,504, where float16 ends, and lse has float32's digits: multiply in float32, and keep m, l, acc and lse there"
    for args, on, rule in (
        (
            (300 * one, 300 * one, one, 1, 1, 1e-4),
            "float16, q = k = 300, scale = 1e-4",
            "keep the scores in float32: float16 ends at 65,504",
        ),
        ((one, 9 * three, 6e4 * three, 1, 2, 1.0), "float16, three scores of 9, v = 60,000", sums),
        (
            (one, 9.5 * one, one, 1, 1, 1.0004),
            "float16, q = 1, k = 9.5, scale = 1.0004",
            "scale the scores: a scaled q would be rounded to float16",
        ),
        ((two / 2, two, two, 1, 1, 1.0), "bfloat16, one key", ""),
    ):
        yield case(*args, on=on, otherwise=rule, edge="half")
    yield random_case(draw, "randn in bfloat16", (2, 3, 7, 10, 8), (4, 4), 0.35, edge="half", change=torch.Tensor.bfloat16)


def tolerance(args, part):
    """Scores are sums of products: each is rounded by a few float32 units of the sum of their absolute values; halves round p and o once.

    A single huge score rounds nothing, so o's part of that is limited. A single key has the weight 1, exactly.
    """
    q, k, v, *_, scale = args
    noise = 4 * torch.finfo(torch.float32).eps * abs(scale) * float((q.abs().double() @ k.abs().double().mT).max()) if k.numel() else 0.0
    if part == "lse":
        return 1e-6, noise + (2e-5 if q.dtype == torch.float32 else 1e-3)
    rounding = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 5e-7 if k.shape[2] == 1 else 5e-5}[q.dtype]
    noise = 0.0 if k.shape[2] == 1 else min(noise, 0.1)
    return 0.0, (rounding + noise) * (float(v.double().abs().max()) if v.numel() else 1.0)
