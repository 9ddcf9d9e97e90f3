"""What the exercises on forward kernels share: the launch, the tolerance, the truth, the count of a causal kernel's tiles, inputs."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.harness import case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import Wrong

TILE = (16, 16, 16)  # BLOCK_M, BLOCK_N, BLOCK_D


def strides_of(shape, layout="bhsd", pad=0):
    """Strides of a (B, H, S, D) tensor whose dimensions lie in memory in the order of `layout`; pad: unused elements after each run of the last."""
    strides, step = {}, 1
    for dim in reversed(layout):
        strides[dim] = step
        step, pad = step * max(shape["bhsd".index(dim)], 1) + pad, 0
    return tuple(strides[dim] for dim in "bhsd")


def attention_case(q, k, v, on, otherwise="", *, scale=None, blocks=TILE, layouts=("bhsd",) * 4, pad=0, is_causal=False, **options):
    """A case of q, k and v; layouts: of q, k, v and o, in words as strides_of takes them, or the strides."""
    shapes = zip((q.shape, k.shape, v.shape, q.shape), layouts, strict=True)
    strides = tuple(strides_of(shape, layout, pad) if isinstance(layout, str) else layout for shape, layout in shapes)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return case(q, k, v, blocks, strides, scale, is_causal, on=on, otherwise=otherwise, **options)


def launch(q, k, v, blocks, strides, scale, is_causal, *, has_causal=False, has_lse=False):
    """has_causal: the kernel has the parameter IS_CAUSAL; has_lse: it has lse_ptr, and H_q and H_k in place of H."""
    (B, H, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    tensors = [*(In(x, lies, True) for x, lies in zip((q, k, v), strides, strict=False)), Out(q.shape, q.dtype, strides[3], True)]
    lse, heads = ([Out((B, H, S_q), torch.float32)], (H, H_k)) if has_lse else ([], (H,))
    meta = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_D"), blocks, strict=True)) | ({"IS_CAUSAL": is_causal} if has_causal else {})
    return Launch((-(-S_q // blocks[0]) * B * H,), (*tensors, *lse, *heads, S_q, S_k, D, scale), meta)


def tolerance(args, part):
    """A sum of products is rounded by a few float32 units of the sum of their absolute values; halves round p and o once."""
    q, k, v, _, _, scale, _ = args
    if part == "lse":
        return 1e-6, 1e-5 if q.dtype == torch.float32 else 1e-3
    noise = 4 * torch.finfo(torch.float32).eps * abs(scale) * float((q.abs().double() @ k.abs().double().mT.repeat_interleave(
        q.shape[1] // k.shape[1], 1)).max()) if k.numel() else 0.0  # fmt: skip
    rounding = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 2e-5}[q.dtype]
    return 0.0, (rounding + min(noise, 1e-4)) * float(v.double().nan_to_num().abs().max() if v.numel() else 1.0)


def truth(q, k, v, blocks, strides, scale, is_causal):
    """(o, lse). A row that sees no key has o = 0 and lse = −inf; one that sees a key whose v is NaN has o = NaN."""
    group, S_q, S_k = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    seen = torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q if is_causal else S_k)
    s = (scale * (q.double() @ k.mT)).masked_fill(~seen, -math.inf)
    p = torch.softmax(s, -1).masked_fill(~seen, 0.0)
    o = (p @ v.nan_to_num()).masked_fill(seen.double() @ v.isnan().double() > 0, math.nan)
    return o, torch.logsumexp(s, -1)


def o_truth(*args):
    return truth(*args)[0]


class CausalTiles:
    """A causal kernel whose tiles are counted in the interpreter, on the inputs of the sizes COUNTED.

    Wrong where it multiplies for a tile that no row of its block sees, or compares the keys of a tile that all rows of its block see whole.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.fn = kernel, kernel.fn

    def __getitem__(self, grid: Any) -> Callable:
        def launch(q, k, v, o, *rest, **meta):
            S_q, S_k = rest[-4:-2]
            block_m, block_n = meta["BLOCK_M"], meta["BLOCK_N"]
            if not (hardware.interpreter_on() and meta["IS_CAUSAL"] and (S_q, S_k) in COUNTED):
                return self.kernel[grid](q, k, v, o, *rest, **meta)
            blocks = [(start, min(start + block_m, S_q)) for start in range(0, S_q, block_m)]
            seen = sum(-(-(stop + S_k - S_q) // block_n) for _, stop in blocks)
            programs = grid[0] // len(blocks)
            with _counted(block_m, block_n) as counts:
                self.kernel[grid](q, k, v, o, *rest, **meta)
            if COUNTED[S_q, S_k] == "products" and counts["products"] > 2 * programs * seen * block_m * block_n * meta["BLOCK_D"]:
                raise Wrong("tiles are multiplied that no row of their block sees, or that don't exist: end is one past "
                            "the last key that the block's last row sees, and its last row is at most S_q − 1")  # fmt: skip
            if COUNTED[S_q, S_k] == "compared" and counts["compared"]:
                raise Wrong("tiles are masked that every row of their block sees whole: the loop without a mask takes "
                            "all tiles before full")  # fmt: skip

        return launch


COUNTED = {(17, 64): "products", (32, 63): "compared"}  # what is counted for inputs of these S_q and S_k


@contextlib.contextmanager
def _counted(block_m: int, block_n: int) -> Iterator[dict[str, int]]:
    """Counts the multiply-adds of tl.dot, and the comparisons that are true for a whole tile, [BLOCK_M, BLOCK_N]."""
    from triton.runtime.interpreter import interpreter_builder as builder

    counts = {"products": 0, "compared": 0}

    def watched(name: str, method: Callable) -> Callable:
        def run(a: Any, b: Any, *args: Any, **options: Any) -> Any:
            result = method(a, b, *args, **options)
            if name == "create_dot":
                counts["products"] += result.data.size * a.data.shape[-1]
            elif a.data.dtype.kind in "iu" and result.data.shape in ((block_m, block_n), (block_n, block_m)):
                counts["compared"] += bool(result.data.all())
            return result

        return run

    names = ["create_dot", *(name for name in dir(builder) if name.startswith("create_icmp"))]
    before = {name: vars(builder).get(name) for name in names}
    for name in names:
        setattr(builder, name, watched(name, getattr(builder, name)))
    try:
        yield counts
    finally:
        for name, method in before.items():
            if method is None:
                delattr(builder, name)
            else:
                setattr(builder, name, method)


# ---------------------------------------------------------------- inputs


def draw_qkv(B, H, S_q, S_k, D, *, H_k=0, draw=None):
    """q, k and v of normal values, the same on every call unless a generator is given."""
    draw = draw or torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=draw) for shape in ((B, H, S_q, D), *[(B, H_k or H, S_k, D)] * 2))


def with_fresh(*shapes, is_causal=False):
    """Decorates the inputs of an exercise, which are then drawn once, so that their truth is computed once, and adds views of fresh numbers.

    shapes: (B, H_q, H_k, S_q, S_k, D), dtype, blocks, factor. Those of bf16 are for a GPU: the interpreter's bf16 is wrong.
    """

    def decorate(inputs):
        once = functools.cache(lambda: tuple(inputs()))

        @functools.wraps(inputs)
        def both():
            yield from once()
            yield from _fresh(shapes, is_causal)

        return both

    return decorate


def _fresh(shapes, is_causal):
    draw = generator()
    for (B, H, H_k, S_q, S_k, D), dtype, blocks, factor in shapes:
        if dtype == torch.bfloat16 and hardware.device().type != "cuda":
            continue
        q, k, v = ((factor * x).to(dtype) for x in draw_qkv(B, H, S_q, S_k, D, H_k=H_k, draw=draw))
        heads = f"H = {H}" if H_k == H else f"H_q = {H}, H_k = {H_k}"
        name = str(dtype).removeprefix("torch.")
        yield attention_case(q, k, v, f"{name}, B = {B}, {heads}, S_q = {S_q}, S_k = {S_k}, D = {D}, views", blocks=blocks, pad=1,
                             is_causal=is_causal, layouts=("bshd", "bhds", "bhsd", "bshd"), fresh=True,
                             edge="" if dtype == torch.float32 else "half")  # fmt: skip
