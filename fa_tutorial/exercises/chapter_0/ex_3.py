"""Exercise 0.3, naive_attention."""

import math

import torch

from fa_tutorial.exercises.harness import INF, Exercise, case, exp32, generator


def naive_attention(q, k, v, is_causal):
    """softmax(q kᵀ / √D) v. q: (B, H, S_q, D); k, v: (B, H, S_k, D). Returns o: (B, H, S_q, D)."""
    S_q, S_k, D = q.shape[-2], k.shape[-2], q.shape[-1]
    s = q @ k.transpose(-1, -2) / math.sqrt(D)  # [B, H, S_q, S_k]
    if is_causal:
        seen = torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q)
        s = s.masked_fill(~seen, -math.inf)
    p = torch.softmax(s, dim=-1)
    return p @ v


_STRICT = "the mask is strict: query i sees key i too"
MISTAKES = {
    "no_scale": "the scores are not scaled: divide q kᵀ by √D",
    "by_d": "the scores are divided by D: the scale is 1/√D",
    "times": "the scores are multiplied by √D: divide",
    "root_s": "the scores are divided by the root of S, the number of rows: D is the last dimension",
    "root_h": "the scores are divided by the root of H, the number of heads: D is the last dimension",
    "root_b": "the scores are divided by the root of B, the batch size: D is the last dimension",
    "over_queries": "the softmax runs over the queries: each query's weights over the keys must add up to 1",
    "over_heads": "the softmax runs over the heads: each query's weights over the keys must add up to 1",
    "over_batch": "the softmax runs over the batch: each query's weights over the keys must add up to 1",
    "no_sum": "the weights are not divided by their sum",
    "no_mask": "is_causal changes nothing",
    "mask_after": "the mask comes after the softmax: the weights that are left no longer add up to 1",
    "mask_zero": "hidden scores are set to 0, and exp(0) = 1 is a weight like any other: use −inf",
    "mask_product": "the mask is multiplied by −inf and added, and 0 · (−inf) is NaN: use masked_fill or torch.where",
    "mask_strict": _STRICT,
    "mask_strict_zero": _STRICT,
    "mask_upper": "the mask is upside down: it hides the past",
    "top_left": "the mask starts at the top left: align it so that the last query sees the last key",
    "overflow": "exp overflows: use a softmax that subtracts the maximum",
}

CONDITIONS = {"views": "q, k and v may be views: any strides work"}


def twin(q, k, v, is_causal, mistake=None):
    q, k, v = q.double(), k.double(), v.double()
    B, H, S_q, D = q.shape
    S_k = k.shape[2]
    divisors = {"no_scale": 1, "by_d": D, "times": D**-0.5, "root_s": S_q**0.5, "root_h": H**0.5, "root_b": B**0.5}
    s = q @ k.transpose(-1, -2) / divisors.get(mistake, D**0.5)
    seen = torch.ones(S_q, S_k).tril(
        {"top_left": 0, "mask_strict": S_k - S_q - 1, "mask_strict_zero": S_k - S_q - 1}.get(mistake, S_k - S_q)
    )
    seen = torch.ones(S_q, S_k).triu(S_k - S_q) if mistake == "mask_upper" else seen
    if is_causal and mistake == "mask_product":
        s = s + (1 - seen) * -INF
    elif is_causal and mistake == "mask_zero":
        s = s * seen
    elif is_causal and mistake not in ("no_mask", "mask_after"):
        s = s.masked_fill(seen == 0, -INF)
    p = torch.softmax(s, dim={"over_queries": -2, "over_heads": 1, "over_batch": 0}.get(mistake, -1))
    if mistake in ("no_sum", "overflow"):
        p = exp32(s) if mistake == "no_sum" else exp32(s) / exp32(s).sum(-1, keepdim=True)
    if is_causal and mistake == "mask_after":
        p = p * seen
    return (p.nan_to_num(0.0) if mistake == "mask_strict_zero" else p) @ v


def tolerance(args, part):
    """A score as large as |q|·|k| is rounded by eps times that, and exp makes it a relative error."""
    q, k = args[:2]
    return 1e-4 + 1e-6 * float(q.abs().max() * k.abs().max()) * q.shape[-1] ** 0.5, 1e-5


def inputs():
    def draw(B, H, S_q, S_k, D, factor=1.0, seed=None):
        source = generator() if seed is None else torch.Generator().manual_seed(seed)
        return [factor * torch.randn(B, H, S, D, generator=source) for S in (S_q, S_k, S_k)]

    # Every query is the first key: s = [2, 0] before the scale and [1, 0] after it. B, H, S and D differ, so that a scale tells its dimension.
    k = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]).repeat(5, 3, 1, 1)
    q, v = k[..., :1, :].repeat(1, 1, 2, 1), torch.eye(2, 4).repeat(5, 3, 1, 1)
    on = "B = 5, H = 3, S = 2, D = 4, every q = [1, 1, 0, 0], the keys q and [0, 0, 1, 1]"
    yield case(q, k, v, False, on=on, otherwise="o = softmax(q kᵀ / √D) v")
    yield case(*draw(2, 3, 5, 5, 8, seed=0), False, on="B = 2, H = 3, S = 5, D = 8", otherwise="o = softmax(q kᵀ / √D) v for each head")
    yield case(*draw(1, 1, 4, 4, 8, seed=1), True, on="S = 4, causal", otherwise="query i sees keys 0 … i")
    bottom_right = "with S_q < S_k query i sees keys 0 … i + S_k − S_q"
    yield case(*draw(1, 2, 2, 5, 8, seed=2), True, on="S_q = 2, S_k = 5, causal", otherwise=bottom_right)
    yield case(*draw(1, 1, 4, 4, 8, 20.0, seed=3), False, on="scores in the hundreds", otherwise=MISTAKES["overflow"])
    for shape in ((1, 1, 1, 1, 1), (2, 3, 17, 33, 16), (1, 2, 33, 70, 5)):
        for is_causal in (False, True):
            yield case(*draw(*shape), is_causal, on=f"(B, H, S_q, S_k, D) = {shape}, is_causal = {is_causal}", fresh=True)
    transposed = [x.transpose(1, 2) for x in draw(2, 6, 3, 3, 8)]
    yield case(*transposed, True, on="transposed views", fresh=True, edge="views")


EXERCISE = Exercise(
    id="0.3",
    task="Write attention as three steps in PyTorch.",
    conditions=CONDITIONS,
    hints=(
        "Three lines: scores, softmax, weighted sum. Which dimension of the scores runs over the keys?",
        "For the mask: torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q) is True where a query may look; "
        "fill the rest of the scores with −inf before the softmax.",
    ),
    solution=naive_attention,
    reasoning="The mask goes in before the softmax and holds −inf, so that exp makes it 0 and the rest still adds up to 1. tril's diagonal "
    "S_k − S_q aligns it at the bottom right.",
    more="The package's version, reference.naive_attention, also takes a scale and fewer heads for k and v than for q, and checks its arguments.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    tolerance=tolerance,
)
