"""What the exercises of chapter 6 share: attention's gradients in float64, the error that a right answer may have, and inputs."""

import functools
import math

import torch

from fa_tutorial import reference
from fa_tutorial.exercises.harness import RTOL, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import show_nested

NAN = "a NaN in an input comes out as NaN: whatever turns NaN into 0 hides it"
CONDITIONS = {
    "unseen": "a row that sees no key has lse = −inf, and p = 0: causal with S_q > S_k, or S_k = 0",
    "half": "for fp16 and bf16 everything is computed and summed in float32; only p, ds and each gradient at the end may be rounded",
    "float64": "float64 in gives float64's accuracy out",
    "views": "the inputs may be views: any strides work",
    "nan": NAN,
    "memory": "nothing of size S_q × S_k is held, no mask either, and only tiles of which some query sees some key are computed",
}


def weights(q, k, lse, is_causal, scale):
    """p = exp(s − lse) in float64, 0 where a pair is hidden."""
    s = scale * q.double() @ k.double().mT
    hidden = torch.ones(s.shape[-2:], dtype=torch.bool).triu(k.shape[2] - q.shape[2] + 1) & is_causal
    return torch.exp(s - lse.double()[..., None]).masked_fill(hidden, 0.0)


def gradients(q, k, v, p, do, scale, delta=None, dtype=torch.float64):
    """(dq, dk, dv) in float64; delta is rowsum(p ∘ dp) unless given. dtype: p and ds are rounded to it."""
    q, k, v, p, do = (x.double() for x in (q, k, v, p, do))
    dp = do @ v.mT
    ds = p * (dp - ((p * dp).sum(-1) if delta is None else delta.double())[..., None])
    p, ds = (x.to(dtype).double() for x in (p, ds))
    return scale * ds @ k, scale * ds.mT @ q, p.mT @ do


def sizes(q, k, v, p, do, scale):
    """The largest sum of absolute values that an element of dq, dk and dv is added up from."""
    q, k, v, p, do = (x.double().abs() for x in (q, k, v, p, do))
    return [largest(x) for x in gradients(q, k, v, p, do, abs(scale), -(p * (do @ v.mT)).sum(-1))]


def largest(x):
    return float(x.abs().nan_to_num().max()) if x.numel() else 0.0


def truth(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    return gradients(q, k, v, weights(q, k, lse, is_causal, scale), do, scale, delta)


def tolerance(args, part):
    return 1e-9 if args[0].dtype == torch.float64 else 1e-5, _atols(*args)[("dq", "dk", "dv").index(part)]


@functools.lru_cache(maxsize=256)  # a tensor equals only itself as a key
def _atols(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    """Three times what rounding p and ds to the inputs' dtype costs, one rounding of the gradient, and a share of what it is the sum of.

    A score's error is a few units of the sum of absolute values behind it, and p's relative error is as large.
    """
    p = weights(q, k, lse, is_causal, scale)
    grads, rounded = (gradients(q, k, v, p, do, scale, delta, dtype) for dtype in (torch.float64, q.dtype))
    eps = torch.finfo(torch.promote_types(q.dtype, torch.float32)).eps
    noise = min(RTOL[q.dtype], RTOL[torch.float32]) + 4 * eps * abs(scale) * largest(q.double().abs() @ k.double().abs().mT)
    return [
        3 * largest(x - y) + torch.finfo(q.dtype).eps * largest(x) + noise * size
        for x, y, size in zip(grads, rounded, sizes(q, k, v, p, do, scale), strict=True)
    ]


# ---------------------------------------------------------------- inputs


def given_p(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    """The arguments of 6.2, of those of 6.5 and 6.6."""
    return q, k, v, weights(q, k, lse, is_causal, scale).to(q.dtype), do, scale


def transposed(x):
    """x in other strides."""
    return x.mT.contiguous().mT


def pack(*args):
    return args


def made(q, k, v, do, is_causal=False, scale=1.0, blocks=None, on="", change=lambda x: x, pack=pack, where=None, **options):
    """lse and delta are those of the forward. change: makes a view of each tensor. pack: what an exercise takes of all this. where: the tiles
    in words, the blocks' sizes unless given."""
    o, lse = reference.attention(q, k, v, is_causal, scale)
    state = torch.promote_types(q.dtype, torch.float32)
    delta = (do.double() * o.to(q.dtype).double()).sum(-1)
    tensors = map(change, (q, k, v, do, lse.to(state), delta.to(state)))
    sizes = blocks or (q.shape[2], max(1, k.shape[2]))
    blocks = "" if pack is given_p else f", blocks {sizes[0]} × {sizes[1]}"
    on += f", scale = {scale:g}{', causal' if is_causal else ''}{blocks if where is None else where}"
    return case(*pack(*tensors, *sizes, is_causal, scale), on=on, **options)


def head(q, k, v, do, is_causal=False, scale=1.0, blocks=None, otherwise="", dtype=torch.float32, **options):
    """One head of the rows that are given; a number is a row of one column."""
    rows = [torch.tensor(x, dtype=dtype) for x in (q, k, v, do)]
    rows = [x[:, None] if x.ndim == 1 else x for x in rows]
    words = [f"{name} = {show_nested(x.tolist())}" for name, x in zip(("q", "k", "v", "do"), rows, strict=True)]
    on = ", ".join(["float16"] * (dtype == torch.float16) + words)
    return made(*(x[None, None] for x in rows), is_causal, scale, blocks, on, otherwise=otherwise, **options)


def drawn(sizes, scale, is_causal, draw, blocks=None, words="", dtype=torch.float32, **options):
    B, H, S_q, S_k, D = sizes
    tensors = [torch.randn(B, H, S, D, generator=draw).to(dtype) for S in (S_q, S_k, S_k, S_q)]
    on = f"{words}(B, H, S_q, S_k, D) = {sizes}"
    return made(*tensors, is_causal, scale, blocks, on, fresh=draw.initial_seed() != 0, **options)


def one_tile(rule, **options):
    """p, delta, ds, the scale, what is transposed, and the heads, with all of a head in one tile."""
    yield head([[1.0, 0.0], [0.5, 2.0]], [[1.0, 2.0], [0.0, 1.0]], [[3.0, 1.0], [0.0, 2.0]], [[1.0, 2.0], [4.0, 1.0]],
               otherwise=rule, **options)  # fmt: skip
    scale = "s = scale · q kᵀ, so dq and dk have the factor scale once, and dv doesn't"
    k, v = [[1.0, 1.0], [2.0, 3.0]], [[1.0, 0.0], [4.0, 2.0]]
    yield head([[2.0, 1.0]], k, v, [[3.0, 1.0]], scale=0.25, otherwise=scale, **options)
    seed = torch.Generator().manual_seed(0)
    yield drawn((2, 3, 3, 5, 4), 0.5, False, seed, otherwise="every head of every batch element has gradients of its own", **options)


def masks(words="and p and ds are 0 elsewhere", **options):
    """The mask within one tile. words: what follows from it."""
    q, k, v, do = [1.0, 2.0, 0.5], [1.0, 0.5, 2.0], [3.0, 5.0, 1.0], [2.0, 1.0, 3.0]
    yield head(q, k, v, do, True, otherwise=f"query i sees keys 0 … i, {words}", **options)
    yield head(q[:2], k, v, do[:2], True, otherwise=f"S_q < S_k: query i sees keys 0 … i + S_k − S_q, {words}", **options)


FP16_SUMS = {  # q, k, v, do and blocks: float16 loses a 1 of a sum, over the blocks or within a tile, and 2 of scale · q or scale · k
    "dv": ([0.0] * 4, [0.0], [1.0], [2732.0, 3.0, -2730.0, 0.0], (2, 1)),
    "dk": ([2732.0, 3.0, -2730.0, 0.0], [0.0, 0.0], [1.0, -1.0], [2.0] * 4, (2, 1)),
    "dq": ([0.0], [2732.0, -3.0, 2730.0, 0.0], [1.0, -1.0, -1.0, 1.0], [4.0], (1, 2)),
}


def ladder(sums, rule, *parts):
    """The fixed inputs of a loop over tiles. sums: which gradient is summed over what, in words. parts: the gradients that the loop makes."""
    seed = torch.Generator().manual_seed(0)
    yield from one_tile(f"one tile without a mask: {rule}")
    q, k, v, do = [1.0, 2.0, 0.5, 1.5], [1.0, 0.5, 2.0, -1.0], [3.0, 5.0, 1.0, 2.0], [2.0, 1.0, 3.0, 1.0]
    yield head(q[:2], k[:2], v[:2], do[:2], blocks=(1, 1), otherwise=f"four tiles: {sums}")
    rows = "3 rows and 2 keys in blocks of 2: there are S_q rows, and their last block has one"
    yield head(q[:3], k[:2], v[:2], do[:3], blocks=(2, 2), otherwise=rows)
    keys = "2 rows and 3 keys in blocks of 2: there are S_k keys, and their last block has one"
    yield head(q[:2], k[:3], v[:3], do[:2], blocks=(2, 2), otherwise=keys)
    yield from masks("so a tile with such a pair counts, and is masked where another pair of it is hidden")
    four = "four tiles: the one below the diagonal is seen whole, two are masked, the one above it is hidden"
    yield head(q, k, v, do, True, blocks=(2, 2), otherwise=four)
    sizes = "tiles of 3 rows and 1 key: bounds and mask come from positions, which are block number · block size"
    yield head(q, k, v, do, True, blocks=(3, 1), otherwise=sizes)
    first = "2 queries and 3 keys: query i sees keys 0 … i + S_k − S_q, so query 0 sees two"
    yield head(q[:2], k[1:], v[1:], do[:2], True, blocks=(1, 1), otherwise=first)
    yield drawn((1, 2, 11, 14, 3), 1.0, False, seed, (4, 6), otherwise=f"tiles of 4 rows and 6 keys: {sums}")
    nothing = "rows 0 and 1 see no key: lse = −inf, dq = 0, and they add nothing to dk and dv"
    yield head(q, k[:2], v[:2], do, True, blocks=(3, 2), otherwise=nothing, edge="unseen")
    rows, empty = torch.ones(1, 1, 4, 1), torch.zeros(1, 1, 0, 1)
    yield made(rows, empty, empty, rows, on="S_q = 4, S_k = 0", otherwise="no key at all: dq = 0", edge="unseen")
    yield head([math.nan, 1.0], k[:2], v[:2], do[:2], blocks=(1, 1), edge="nan")
    half = {"dtype": torch.float16, "edge": "half"}
    for part in parts:
        *tensors, blocks = FP16_SUMS[part]
        told = f"{part}: float16 has no 2,735 and no 1.5 · 2,732: multiply in float32, by scale too, and add up in float32"
        yield head(*tensors, scale=1.5, blocks=blocks, otherwise=told, **half)
    unscaled = f"the sum of {parts[0]} is 480,000 before the scale, and float16 ends at 65,504: scale before you convert"
    q, k = [[6e4, 0.0]] * 2, [[0.0, 6e4], [0.0, -6e4]]
    yield head(q, k, [[8.0, 0.0], [-8.0, 0.0]], [[1.0, 0.0]] * 2, scale=0.125, otherwise=unscaled, **half)
    yield drawn((1, 1, 2, 3, 2), 1 / 3, False, seed, words="float64, ", dtype=torch.float64, edge="float64")
    yield drawn((1, 1, 13, 17, 3), 1.0, True, seed, (2, 5), edge="memory")
    yield drawn((1, 1, 12, 15, 5), 1.0, False, seed, (2, 3), edge="memory")


def fresh():
    draw, blocks, shape = generator(), (8, 4), (2, 3, 7, 10, 8)
    for sizes, scale in (((2, 3, 9, 17, 8), 0.3), ((2, 2, 20, 9, 4), -0.25)):
        yield drawn(sizes, scale, False, draw, blocks, "randn, ")
        yield drawn(sizes, scale, True, draw, blocks, "randn, ", edge="unseen" if sizes[2] > sizes[3] else "")
    for words, dtype in (("float16, ", torch.float16), ("bfloat16, ", torch.bfloat16)):
        yield drawn(shape, 0.35, True, draw, blocks, words, dtype=dtype, edge="half")
    yield drawn(shape, 0.35, True, draw, blocks, "views, ", change=transposed, edge="views")


def inputs(*of_ladder):
    """An exercise's `inputs`. The fixed ones are made once: what is right for them is computed once then."""
    fixed = functools.cache(lambda: tuple(ladder(*of_ladder)))
    return lambda: (*fixed(), *fresh())
