"""What the forward kernels' exercises share: the launch, the tolerance, the float64 twin with its strides and heads, and inputs."""

from __future__ import annotations

import functools
import math

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.forward_twin import forward_twin
from fa_tutorial.exercises.harness import UNWRITTEN, case, generator, laid_out
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.matmul import round_to_tf32

TILE = (16, 16, 16)  # BLOCK_M, BLOCK_N, BLOCK_D


def strides_of(shape, layout="bhsd", pad=0):
    """Strides of a (B, H, S, D) tensor whose dimensions lie in memory in the order of `layout`; pad: unused elements after each run of the last."""
    strides, step = {}, 1
    for dim in reversed(layout):
        strides[dim] = step
        step, pad = step * max(shape["bhsd".index(dim)], 1) + pad, 0
    return tuple(strides[dim] for dim in "bhsd")


def attention_case(q, k, v, on, otherwise="", *, scale=None, blocks=TILE, layouts=("bhsd",) * 4, pad=0, **options):
    """A case of q, k and v; layouts: of q, k, v and o, in words as strides_of takes them, or the strides."""
    shapes = zip((q.shape, k.shape, v.shape, q.shape), layouts, strict=True)
    strides = tuple(strides_of(shape, layout, pad) if isinstance(layout, str) else layout for shape, layout in shapes)
    return case(q, k, v, blocks, strides, q.shape[-1] ** -0.5 if scale is None else scale, on=on, otherwise=otherwise, **options)


def fixed(inputs):
    """Draw these inputs once for all checks, so that their twins are computed once."""
    return functools.cache(lambda: tuple(inputs()))


def launch(q, k, v, blocks, strides, scale, has_lse=False):
    (B, H, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    tensors = [*map(In, (q, k, v), strides), Out(q.shape, q.dtype, strides[3])]
    lse, heads = ([Out((B, H, S_q), torch.float32)], (H, H_k)) if has_lse else ([], (H,))
    args = (*tensors, *lse, *heads, S_q, S_k, D, scale, *(step for lies in strides for step in lies))
    return Launch((-(-S_q // blocks[0]) * B * H,), args, dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_D"), blocks, strict=True)))


def tolerance(args, part):
    """A sum of products is rounded by a few float32 units of the sum of their absolute values; halves round p and o once."""
    q, k, v, *_, scale = args
    if part == "lse":
        return 1e-6, 1e-5 if q.dtype == torch.float32 else 1e-3
    noise = 4 * torch.finfo(torch.float32).eps * abs(scale) * float((q.abs().double() @ k.abs().double().mT.repeat_interleave(
        q.shape[1] // k.shape[1], 1)).max()) if k.numel() else 0.0  # fmt: skip
    rounding = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 2e-5}[q.dtype]
    return 0.0, (rounding + min(noise, 1e-4)) * float(v.double().nan_to_num().abs().max() if v.numel() else 1.0)


# ---------------------------------------------------------------- the twin

# Mistakes in the reads of q, k, v and in the stores of o are named "kv_head0": the tensors, and what is wrong with their strides or heads.
STRIDES = {
    "transposed": lambda b, h, s, d, shape: (b, h, d, s),
    "head0": lambda b, h, s, d, shape: (b, 0, s, d),
    "batch0": lambda b, h, s, d, shape: (0, h, s, d),
    "exchanged": lambda b, h, s, d, shape: (h, b, s, d),
    "joined": lambda b, h, s, d, shape: (shape[1] * h, h, s, d),
    "contiguous": lambda b, h, s, d, shape: strides_of(shape),
}


def kernel_twin(q, k, v, blocks, strides, scale, is_causal=False, mistake=None):
    """(o, lse) of a forward kernel, with every mistake of forward_twin, and those in what is read and where it is stored."""
    (B, H, S_q, D), H_k = q.shape, k.shape[1]
    block_m, block_n, block_d = blocks
    lies = dict(zip("qkvo", strides, strict=True))
    tensors, _, flaw = (mistake or "").partition("_")
    is_flawed = flaw in STRIDES or (flaw[:3] == "by_" and flaw[3:] in lies)

    def used(name, shape):
        return STRIDES[flaw](*lies[name], shape) if flaw in STRIDES else lies[flaw[3:]]

    def read(name, x):
        if name in tensors and is_flawed:
            x = laid_out(x, lies[name]).as_strided(x.shape, used(name, x.shape)).to(x.dtype)
        heads = torch.arange(H)
        is_here = name in tensors and name != "q"
        heads_k = {"modulo": heads % H_k, "over_H_k": heads // H_k}.get(flaw if is_here else "", heads // (H // H_k))
        x = x if name == "q" else x[:, heads_k]
        return round_to_tf32(x) if mistake == "tf32" and x.dtype == torch.float32 else x

    scale = {"scale_block_d": block_d**-0.5}.get(mistake, scale)
    o, lse = forward_twin(read("q", q), read("k", k), read("v", v), block_m, block_n, is_causal, scale, mistake)
    if mistake == "pads_d" and block_d > D:
        o, lse = o * math.nan, lse * math.nan
    memory = laid_out(o, lies["o"]).fill_(UNWRITTEN)
    rows = torch.full((B * H * S_q,), UNWRITTEN, dtype=torch.float64)
    o_strides = used("o", o.shape) if "o" in tensors and is_flawed else lies["o"]
    for b in range(B):
        for h in range(H):
            memory.as_strided((S_q, D), o_strides[2:], b * o_strides[0] + h * o_strides[1]).copy_(o[b, h])
            start = {"lse_key_heads": b * H_k + h, "lse_head0": b * H, "lse_batch0": h}.get(mistake, b * H + h) * S_q
            rows[start : start + S_q] = lse[b, h]
    return memory.as_strided(o.shape, lies["o"]), rows.view(lse.shape)


# ---------------------------------------------------------------- inputs


def draw_qkv(B, H, S_q, S_k, D, *, H_k=0, draw=None):
    """q, k and v of normal values, the same on every call unless a generator is given."""
    draw = draw or torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=draw) for shape in ((B, H, S_q, D), *[(B, H_k or H, S_k, D)] * 2))


def fresh_inputs(*shapes):
    """shapes: (B, H_q, H_k, S_q, S_k, D), dtype, blocks, factor. bf16 joins on a GPU: the interpreter's is wrong."""
    draw = generator()
    on_gpu = [((1, 2, 2, 40, 50, 40), torch.bfloat16, (16, 32, 64), 1.0)] if hardware.device().type == "cuda" else []
    for (B, H, H_k, S_q, S_k, D), dtype, blocks, factor in (*shapes, *on_gpu):
        q, k, v = ((factor * x).to(dtype) for x in draw_qkv(B, H, S_q, S_k, D, H_k=H_k, draw=draw))
        heads = f"H = {H}" if H_k == H else f"H_q = {H}, H_k = {H_k}"
        name = str(dtype).removeprefix("torch.")
        yield attention_case(q, k, v, f"{name}, B = {B}, {heads}, S_q = {S_q}, S_k = {S_k}, D = {D}, views", blocks=blocks, pad=1,
                             layouts=("bshd", "bhds", "bhsd", "bshd"), fresh=True, edge="" if dtype == torch.float32 else "half")  # fmt: skip
