"""What the exercises of chapter 6 share: attention's gradients in float64, the error that a right answer may have, and inputs."""

import functools
import math

import torch

from fa_tutorial import reference
from fa_tutorial.exercises.harness import RTOL, case
from fa_tutorial.exercises.inputs import generator, views
from fa_tutorial.exercises.running import show_nested

NAN = "a NaN in an input comes out as NaN: whatever turns NaN into 0 hides it"
CONDITIONS = {
    "unseen": "a row that sees no key has lse = −inf, and p = 0: causal with S_q > S_k, or S_k = 0",
    "half": "for fp16 and bf16 everything is computed and summed in float32; only p, ds and each gradient at the end may be rounded",
    "float64": "float64 in gives float64's accuracy out",
    "views": "the inputs may be views: any strides work, 0 too",
    "nan": NAN,
    "memory": "nothing of size S_q × S_k is held, and neither is a mask of that size",
}
SKIP = "under the causal mask, only tiles of which some query sees some key are computed"


def weights(q, k, lse, is_causal, scale):
    """p = exp(s − lse) in float64, 0 where a pair is hidden."""
    s = scale * q.double() @ k.double().mT
    hidden = torch.ones(s.shape[-2:], dtype=torch.bool).triu(k.shape[2] - q.shape[2] + 1) & is_causal
    return torch.exp(s - lse.double()[..., None]).masked_fill(hidden, 0.0)


def gradients(q, k, v, p, do, scale, delta=None):
    """(dq, dk, dv) in float64; delta is rowsum(p ∘ dp) unless given."""
    q, k, v, p, do = (x.double() for x in (q, k, v, p, do))
    dp = do @ v.mT
    ds = scale * p * (dp - ((p * dp).sum(-1, keepdim=True) if delta is None else delta.double()[..., None]))
    return ds @ k, ds.mT @ q, p.mT @ do


def truth(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    return gradients(q, k, v, weights(q, k, lse, is_causal, scale), do, scale, delta)


def tolerance(args, part):
    return 1e-9 if args[0].dtype == torch.float64 else 1e-5, _atols(*args)[("dq", "dk", "dv").index(part)]


@functools.lru_cache(maxsize=256)  # a tensor equals only itself as a key
def _atols(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    """The error allowed in dq, dk and dv: p, ds and the results may be rounded to the inputs' dtype, and the rest is a share of the sums.

    A score's error is a few units of the sum of absolute values behind it, and p's relative error is as large.
    """
    dtype, p = q.dtype, weights(q, k, lse, is_causal, scale)
    grads = gradients(q, k, v, p, do, scale, delta)
    q, k, v, do = (x.double() for x in (q, k, v, do))
    dp, delta = do @ v.mT, delta.double()[..., None]
    size = p * (do.abs() @ v.abs().mT + (p * (do.abs() @ v.abs().mT)).sum(-1, keepdim=True))
    ds, off_p = p * (dp - delta), (p - p.to(dtype).double()).abs()
    off_ds = (ds - ds.to(dtype).double()).abs() + off_p * (dp - delta).abs() + p * (delta - (p * dp).sum(-1, keepdim=True)).abs()
    eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    noise = min(RTOL[dtype], RTOL[torch.float32]) + 4 * eps * abs(scale) * float(
        (q.abs() @ k.abs().mT).nan_to_num().max() if k.numel() else 0.0
    )
    off_s, off_p = abs(scale) * (size * noise + off_ds), p * noise + off_p
    sums = (off_s @ k.abs(), off_s.mT @ q.abs(), off_p.mT @ do.abs())
    return [float(x.nan_to_num().max() if x.numel() else 0.0) + torch.finfo(dtype).eps * float(grad.abs().nan_to_num().max() if grad.numel() else 0.0)
            for x, grad in zip(sums, grads, strict=True)]  # fmt: skip


# ---------------------------------------------------------------- inputs


def given_p(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    """The arguments of 6.2, of those of 6.5 and 6.6."""
    return q, k, v, weights(q, k, lse, is_causal, scale).to(q.dtype), do, scale


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


def drawn(sizes, scale, is_causal, draw, blocks=None, words="", factor=1.0, dtype=torch.float32, **options):
    B, H, S_q, S_k, D = sizes
    q, k, v, do = (torch.randn(B, H, S, D, generator=draw) for S in (S_q, S_k, S_k, S_q))
    tensors = [x.to(dtype) for x in (factor * q, factor * k, v, do)]
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


def masks(**options):
    """The mask within one tile."""
    q, k, v, do = [1.0, 2.0, 0.5], [1.0, 0.5, 2.0], [3.0, 5.0, 1.0], [2.0, 1.0, 3.0]
    yield head(q, k, v, do, True, otherwise="query i sees keys 0 … i, and p and ds are 0 elsewhere", **options)
    yield head(q[:2], k, v, do[:2], True, otherwise="S_q < S_k: query i sees keys 0 … i + S_k − S_q", **options)


_MANY, _SIGNS, _ROWS = [2048.0, *[1.0] * 8], [1.0, -1.0] * 4, [2048.0, 1.0, -2048.0, 0.0]
FP16_SUMS = {  # q, k, v, do and blocks: a sum in float16 loses terms over the blocks, or within a tile
    "dv": (([0.0] * 9, [0.0], [1.0], _MANY, (1, 1)), ([0.0] * 4, [0.0], [1.0], _ROWS, (2, 1))),
    "dk": ((_MANY, [0.0, 0.0], [1.0, -1.0], [2.0] * 9, (1, 1)), (_ROWS, [0.0, 0.0], [1.0, -1.0], [2.0] * 4, (2, 1))),
    "dq": (([0.0], [2048.0, *[-1.0, 1.0] * 3, -1.0], _SIGNS, [8.0], (1, 1)),
           ([0.0], [2048.0, -1.0, 2048.0, 0.0], [1.0, -1.0, -1.0, 1.0], [4.0], (1, 2))),
}  # fmt: skip


def ladder(sums, rule, *parts):
    """The inputs of a loop over tiles. sums: which gradient is summed over what, in words. parts: the gradients that the loop makes."""
    seed = torch.Generator().manual_seed(0)
    yield from one_tile(f"one tile holds all rows and all keys: {rule}")
    q, k, v, do = [1.0, 2.0, 0.5, 1.5], [1.0, 0.5, 2.0, -1.0], [3.0, 5.0, 1.0, 2.0], [2.0, 1.0, 3.0, 1.0]
    yield head(q[:2], k[:2], v[:2], do[:2], blocks=(1, 1), otherwise=f"four tiles: {sums}")
    rows = "3 rows and 2 keys in blocks of 2: there are S_q rows, and their last block has one"
    yield head(q[:3], k[:2], v[:2], do[:3], blocks=(2, 2), otherwise=rows)
    keys = "2 rows and 3 keys in blocks of 2: there are S_k keys, and their last block has one"
    yield head(q[:2], k[:3], v[:3], do[:2], blocks=(2, 2), otherwise=keys)
    yield head(q[:2], k[:3], v[:3], do[:2], blocks=(8, 8), otherwise="blocks may be larger than S_q and S_k")
    yield from masks()
    for blocks, otherwise in (((2, 2), "four tiles: the one below the diagonal is seen whole, two are masked, the one above it is hidden"),
                              ((3, 1), "tiles of 3 rows and 1 key: bounds and mask come from positions, which are block number · block size"),
                              ((1, 2), "tiles of 1 row and 2 keys: bounds and mask come from positions, which are block number · block size"),
                              ((3, 3), "4 rows and 4 keys in blocks of 3: masked tiles may be ragged")):  # fmt: skip
        yield head(q, k, v, do, True, blocks=blocks, otherwise=otherwise)
    first = "2 queries and 3 keys: query i sees keys 0 … i + S_k − S_q, so query 0 sees two"
    yield head(q[:2], k[1:], v[1:], do[:2], True, blocks=(1, 1), otherwise=first)
    yield drawn((1, 2, 11, 14, 3), 1.0, False, seed, (4, 6), otherwise=f"tiles of 4 rows and 6 keys: {sums}")
    nothing = "rows 0 and 1 see no key: lse = −inf, dq = 0, and they add nothing to dk and dv"
    yield head(q, k[:2], v[:2], do, True, blocks=(3, 2), otherwise=nothing, edge="unseen")
    later = "5 rows and 3 keys: query i sees keys 0 … i − 2, so that key j is first seen by query j + 2"
    yield head([*q, 1.0], k[:3], v[:3], [*do, 2.0], True, blocks=(2, 1), otherwise=later, edge="unseen")
    yield head([math.nan, 1.0], k[:2], v[:2], do[:2], blocks=(1, 1), edge="nan")
    for at, name in ((3, "do"), (4, "lse"), (5, "delta")):
        nan_in = lambda *args, at=at: (*args[:at], args[at].index_fill(2, torch.tensor([0]), math.nan), *args[at + 1 :])  # noqa: E731
        yield head(q[:2], k[:2], v[:2], do[:2], blocks=(1, 1), otherwise=f"{name} of query 0 is NaN: {NAN}", edge="nan", pack=nan_in)
    rows, empty = torch.ones(1, 1, 4, 1), torch.zeros(1, 1, 0, 1)
    yield made(rows, empty, empty, rows, on="S_q = 4, S_k = 0", otherwise="no key at all: dq = 0", edge="unseen")
    half = {"dtype": torch.float16, "edge": "half"}
    large = "dp is 90,000, and float16 ends at 65,504: compute dp in float32"
    yield head([1.0], [0.0, 0.0], [300.0, 300.0], [300.0], otherwise=large, **half)
    digits = "float16 has too few digits for this score: convert the inputs to float32 before the first product"
    yield head([1000.0], [1.0], [1.0], [1.0], scale=1.0004, otherwise=digits, **half)
    unscaled = "the sum of dq or dk is 480,000 before the scale, and float16 ends at 65,504: scale before you convert"
    q, k = [[6e4, 0.0]] * 2, [[0.0, 6e4], [0.0, -6e4]]
    yield head(q, k, [[8.0, 0.0], [-8.0, 0.0]], [[1.0, 0.0]] * 2, scale=0.125, otherwise=unscaled, **half)
    for part in parts:
        told = (f"{part}: 2,048 + 1 is 2,048 in float16: keep the sums over blocks in float32",
                f"{part}: 2,049 − 2,048 is 1, and float16 has no 2,049: add up a tile's product in float32")  # fmt: skip
        for (*tensors, blocks), otherwise in zip(FP16_SUMS[part], told, strict=True):
            yield head(*tensors, blocks=blocks, otherwise=otherwise, **half)
    yield drawn((1, 1, 2, 3, 2), 1 / 3, False, seed, words="float64, ", dtype=torch.float64, edge="float64")
    yield drawn((1, 2, 11, 14, 3), 1.0, True, seed, (4, 6), edge="memory")
    yield drawn((1, 1, 12, 15, 5), 1.0, False, seed, (2, 3), edge="memory")


def skips():
    """A causal input of many tiles, whose products are counted."""
    return drawn((1, 1, 13, 17, 3), 1.0, True, torch.Generator().manual_seed(0), (2, 5), edge="skip")


def fresh():
    draw, blocks = generator(), (8, 4)
    for shape, scale in (((1, 1, 1, 1, 1), 1.0), ((2, 3, 9, 17, 8), 0.3), ((2, 2, 20, 9, 4), -0.25)):
        yield drawn(shape, scale, False, draw, blocks, "randn, ")
        yield drawn(shape, scale, True, draw, blocks, "randn, ", edge="unseen" if shape[2] > shape[3] else "")
    shape = (2, 3, 7, 10, 8)
    yield drawn(shape, 0.35, True, draw, blocks, "30·randn, ", 30.0)
    for words, dtype in (("float16, ", torch.float16), ("bfloat16, ", torch.bfloat16)):
        yield drawn(shape, 0.35, True, draw, blocks, words, dtype=dtype, edge="half")
    for n in range(3):
        yield drawn(shape, 0.35, True, draw, blocks, "views, ", change=lambda x, n=n: list(views(x))[n][1], edge="views")
    q, k, v = (torch.randn(1, 2, S, 4, generator=draw) for S in (7, 10, 10))
    do = torch.randn(1, generator=draw).expand(q.shape)  # o.sum().backward() hands in strides of 0
    yield made(q, k, v, do, blocks=blocks, on="do expanded from one element", fresh=True, edge="views")
