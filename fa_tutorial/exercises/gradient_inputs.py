"""The inputs of chapter 6's exercises on attention's gradients, and how large an error a right answer may have on them."""

from __future__ import annotations

import functools

import torch

from fa_tutorial import reference
from fa_tutorial.exercises.gradient_twin import gradient_twin, weights
from fa_tutorial.exercises.harness import RTOL, case
from fa_tutorial.exercises.inputs import generator, views
from fa_tutorial.exercises.running import show_nested

DP_IN_HALF = "dp is 90,000, and float16 ends at 65,504: compute dp in float32"
HALF_SCORES = "q kᵀ is 90,000, and float16 ends at 65,504: compute the scores in float32"
HALF_SCALE = "right in float32, and digits are lost in float16: convert the inputs to float32 before the first product, by scale too"


def bounds(part, *args):
    """(rtol, atol) of a part of gradient_twin(*args)."""
    return 1e-9 if args[0].dtype == torch.float64 else 1e-5, _atols(*args)[("dq", "dk", "dv").index(part)]


@functools.lru_cache(maxsize=256)
def _atols(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    """The error allowed in dq, dk and dv: p, ds and the results may be rounded to the inputs' dtype, and the rest is a share of the sums.

    A score's error is a few units of the sum of absolute values behind it, and p's relative error is as large.
    """
    dtype, p = q.dtype, weights(q, k, lse, block_m, block_n, is_causal, scale)
    grads = gradient_twin(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale)
    q, k, v, do = (x.double() for x in (q, k, v, do))
    dp, delta = do @ v.mT, delta.double()[..., None]
    size = p * (do.abs() @ v.abs().mT + (p * (do.abs() @ v.abs().mT)).sum(-1, keepdim=True))
    ds, off_p = p * (dp - delta), (p - p.to(dtype).double()).abs()
    off_ds = (ds - ds.to(dtype).double()).abs() + off_p * (dp - delta).abs() + p * (delta - (p * dp).sum(-1, keepdim=True)).abs()
    eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    noise = min(RTOL[dtype], RTOL[torch.float32]) + 4 * eps * abs(scale) * float((q.abs() @ k.abs().mT).max() if k.numel() else 0.0)
    off_s, off_p = abs(scale) * (size * noise + off_ds), p * noise + off_p
    sums = (off_s @ k.abs(), off_s.mT @ q.abs(), off_p.mT @ do.abs())
    return [float(x.max() if x.numel() else 0.0) + torch.finfo(dtype).eps * float(grad.abs().max() if grad.numel() else 0.0)
            for x, grad in zip(sums, grads, strict=True)]  # fmt: skip


class Inputs:
    """Makes the cases of 6.3, 6.5 and 6.6. pack: (q, k, v, do, lse, delta, blocks, is_causal, scale) -> an exercise's arguments."""

    def __init__(self, pack, has_blocks):
        self.pack, self.has_blocks = pack, has_blocks  # has_blocks: the case's words name them

    def case(self, q, k, v, do, is_causal=False, scale=1.0, blocks=None, on="", change=lambda x: x, **options):
        """lse and delta are those of the forward. change: makes a view of each tensor."""
        o, lse = reference.attention(q, k, v, is_causal, scale)
        state = torch.promote_types(q.dtype, torch.float32)
        delta = (do.double() * o.to(q.dtype).double()).sum(-1)
        tensors = (q, k, v, do, lse.to(state), delta.to(state))
        blocks = blocks or (q.shape[2], max(1, k.shape[2]))
        on += f", scale = {scale:g}{', causal' if is_causal else ''}{f', blocks {blocks[0]} × {blocks[1]}' if self.has_blocks else ''}"
        return case(*self.pack(*map(change, tensors), blocks, is_causal, scale), on=on, **options)

    def head(self, q, k, v, do, is_causal=False, scale=1.0, blocks=None, otherwise="", dtype=torch.float32, **options):
        """One head of the rows that are given; a number is a row of one column."""
        rows = [torch.tensor(x, dtype=dtype) for x in (q, k, v, do)]
        rows = [x[:, None] if x.ndim == 1 else x for x in rows]
        words = [f"{name} = {show_nested(x.tolist())}" for name, x in zip(("q", "k", "v", "do"), rows, strict=True)]
        on = ", ".join(["float16"] * (dtype == torch.float16) + words)
        return self.case(*(x[None, None] for x in rows), is_causal, scale, blocks, on, otherwise=otherwise, **options)

    def drawn(self, sizes, scale, is_causal, draw, blocks=None, words="", factor=1.0, dtype=torch.float32, change=lambda x: x, **options):
        B, H, S_q, S_k, D = sizes
        q, k, v, do = (torch.randn(B, H, S, D, generator=draw) for S in (S_q, S_k, S_k, S_q))
        tensors = [x.to(dtype) for x in (factor * q, factor * k, v, do)]
        on = f"{words}(B, H, S_q, S_k, D) = {sizes}"
        return self.case(*tensors, is_causal, scale, blocks, on, change, fresh=draw.initial_seed() != 0, **options)

    def one_tile(self):
        """p, delta, ds, the scale, what is transposed, and the heads, with all of a head in one tile."""
        rule = "p = exp(s − lse), dv = pᵀ do, dp = do vᵀ, ds = p ∘ (dp − delta), dq = scale · ds k, dk = scale · dsᵀ q"
        yield self.head([[1.0, 0.0], [0.5, 2.0]], [[1.0, 2.0], [0.0, 1.0]], [[3.0, 1.0], [0.0, 2.0]], [[1.0, 2.0], [4.0, 1.0]],
                        otherwise=rule)  # fmt: skip
        yield self.head([1.0], [1.0, 2.0], [3.0, 5.0], [2.0], otherwise=rule)
        yield self.head([[2.0, 1.0]], [[1.0, 1.0], [2.0, 3.0]], [[1.0, 0.0], [4.0, 2.0]], [[3.0, 1.0]], scale=0.25,
                        otherwise="the scale: s = scale · q kᵀ, dq = scale · ds k, dk = scale · dsᵀ q, and dv without it")  # fmt: skip
        seed = torch.Generator().manual_seed(0)
        yield self.drawn((2, 3, 3, 5, 4), 0.5, False, seed, otherwise="every head of every batch element has gradients of its own")

    def masks(self):
        """The mask within one tile."""
        yield self.head([1.0, 2.0, 0.5], [1.0, 0.5, 2.0], [3.0, 5.0, 1.0], [2.0, 1.0, 3.0], True,
                        otherwise="query i sees keys 0 … i, and p and ds are 0 elsewhere")  # fmt: skip
        yield self.head([1.0, 2.0], [1.0, 0.5, 0.0], [3.0, 5.0, 1.0], [2.0, 1.0], True,
                        otherwise="S_q < S_k: query i sees keys 0 … i + S_k − S_q")  # fmt: skip

    def edges(self, *blocks):
        """Rows that see nothing, each time with another choice of blocks; float16's range and digits; float64."""
        for sizes in blocks:
            yield self.head([1.0, 2.0, 3.0, 1.0], [1.0, 0.5], [3.0, 5.0], [2.0, 1.0, 1.0, 4.0], True, 1.0, sizes,
                            "rows 0 and 1 see no key: lse = −inf, dq = 0, and they add nothing to dk and dv", edge="unseen")  # fmt: skip
        rows, nothing = torch.ones(1, 1, 4, 1), torch.zeros(1, 1, 0, 1)
        yield self.case(rows, nothing, nothing, rows, on="S_q = 4, S_k = 0", otherwise="no key at all: dq = 0", edge="unseen")
        half = {"dtype": torch.float16, "edge": "half"}
        yield self.head([1.0], [0.0, 0.0], [300.0, 300.0], [300.0], otherwise=DP_IN_HALF, **half)
        yield self.head([300.0], [300.0], [1.0], [1.0], scale=1e-4, otherwise=HALF_SCORES, **half)
        yield self.head([1000.0], [1.0], [1.0], [1.0], scale=1.0004, otherwise=HALF_SCALE, **half)
        seed = torch.Generator().manual_seed(0)
        yield self.drawn((1, 1, 2, 3, 2), 1 / 3, False, seed, words="float64, ", dtype=torch.float64, edge="float64")

    def fresh(self, block_sizes):
        draw = generator()
        sizes = (1, 1, 1, 1, 1), (2, 3, 9, 17, 8), (1, 2, 13, 13, 5), (1, 2, 1, 25, 16), (2, 2, 20, 9, 4)
        for shape, scale, blocks in zip(sizes, (1.0, 0.3, 0.5, -0.25, 0.5), block_sizes, strict=True):
            yield self.drawn(shape, scale, False, draw, blocks, "randn, ")
            yield self.drawn(shape, scale, True, draw, blocks, "randn, ", edge="unseen" if shape[2] > shape[3] else "")
        shape, blocks = (2, 3, 7, 10, 8), block_sizes[1]
        yield self.drawn(shape, 0.35, True, draw, blocks, "30·randn, ", 30.0)
        for words, dtype in (("float16, ", torch.float16), ("bfloat16, ", torch.bfloat16)):
            yield self.drawn(shape, 0.35, True, draw, blocks, words, dtype=dtype, edge="half")
        for n in range(3):
            yield self.drawn(shape, 0.35, True, draw, blocks, "views, ", change=lambda x, n=n: list(views(x))[n][1], edge="views")
        q, k, v = (torch.randn(1, 2, S, 4, generator=draw) for S in (7, 10, 10))
        do = torch.randn(1, generator=draw).expand(q.shape)  # o.sum().backward() hands in strides of 0
        yield self.case(q, k, v, do, blocks=blocks, on="do expanded from one element", fresh=True, edge="views")
