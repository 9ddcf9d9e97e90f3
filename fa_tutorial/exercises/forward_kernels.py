"""What the exercises on forward kernels share: the launch, the tolerance, the float64 twin with what each program reads and stores, inputs."""

from __future__ import annotations

import functools
import math

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.forward_twin import forward_twin
from fa_tutorial.exercises.harness import case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import UNWRITTEN
from fa_tutorial.matmul import round_to_tf32

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


# ---------------------------------------------------------------- the twin


def kernel_twin(q, k, v, blocks, strides, scale, is_causal, mistake=None):
    """(o, lse) of a forward kernel, with every mistake of forward_twin, and those in what its programs read and where they store.

    Of the latter, "kv_head0" names the tensors, and what is wrong with their heads or lengths.
    """
    (B, H, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    block_m, block_n, block_d = blocks
    tensors, _, flaw = (mistake or "").partition("_")

    def read(name, x):
        heads = torch.arange(H)
        wrong = flaw if name in tensors else ""
        if name != "q":
            x = x[:, {"modulo": heads % H_k, "over_H_k": heads // H_k}.get(wrong, heads // (H // H_k))]
        if wrong in ("by_S_q", "by_S_k"):
            x = torch.where(torch.arange(x.shape[2])[:, None] < (S_q if wrong == "by_S_q" else S_k), x, 0.0)
        x = {"head0": x[:, :1], "batch0": x[:1], "transposed": x.mT}.get(wrong, x).expand_as(x)
        return round_to_tf32(x) if mistake == "tf32" and x.dtype == torch.float32 else x

    scale = {"scale_block_d": block_d**-0.5}.get(mistake, scale)
    o, lse = forward_twin(read("q", q), read("k", k), read("v", v), block_m, block_n, is_causal, scale, mistake)
    if mistake == "pads_d" and block_d > D:
        o, lse = o * math.nan, lse * math.nan
    stored, rows = torch.full_like(o, UNWRITTEN), torch.full((B * H * S_q,), UNWRITTEN, dtype=torch.float64)
    end = S_k if mistake == "o_by_S_k" else S_q
    for b in range(B):
        for h in range(H):
            place = {"head0": (b, 0), "batch0": (0, h)}.get(flaw if "o" in tensors else "", (b, h))
            stored[place][:end] = o[b, h, :end]
            start = {"lse_key_heads": b * H_k + h, "lse_head0": b * H, "lse_batch0": h}.get(mistake, b * H + h) * S_q
            rows[start : start + S_q] = lse[b, h]
    return stored, rows.view(lse.shape)


def o_twin(*args, mistake=None):
    return kernel_twin(*args, mistake=mistake)[0]


# ---------------------------------------------------------------- inputs


def draw_qkv(B, H, S_q, S_k, D, *, H_k=0, draw=None):
    """q, k and v of normal values, the same on every call unless a generator is given."""
    draw = draw or torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=draw) for shape in ((B, H, S_q, D), *[(B, H_k or H, S_k, D)] * 2))


def with_fresh(*shapes, is_causal=False):
    """Decorates the inputs of an exercise, which are then drawn once, so that their twins are computed once, and adds views of fresh numbers.

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
