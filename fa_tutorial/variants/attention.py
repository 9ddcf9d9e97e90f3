"""Chapter 10: the variants as registered PyTorch operators, torch.ops.fa_tutorial.variant_forward and variant_backward.

They trust their arguments, which options.py checks. `plan` says which mods, aux, block mask a call takes.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from fa_tutorial.hardware import on_device_of, require_kernel_device
from fa_tutorial.operators import (
    LIBRARY,
    below_autograd,
    differentiable,
    gradients_of,
    nothing_seen,
    once_differentiable,
)
from fa_tutorial.variants.backward import variant_backward
from fa_tutorial.variants.forward import variant_forward
from fa_tutorial.variants.mods import Aux, Dropout, Mods, all_scores, allowed_in_window, sliding_window, soft_cap_grad
from fa_tutorial.variants.packed import packed_block_mask
from fa_tutorial.variants.tile_lists import BlockMask


class Options(NamedTuple):
    """What makes a variant, in the order of the operators' arguments.

    alibi_slopes: (1 or B, H_q) float32; sinks: (H_q,) float32; attn_mask: (B or 1, H_q or 1, S_q, S_k), uint8 (1: seen)
    or float (added), any strides; rng: (2,) int64, dropout's seed and offset; cu_q, cu_k: (sequences + 1,) int32 of
    packed rows, B = 1. left, right: the window, −1 for no limit. Each tensor may be None.
    """

    alibi_slopes: torch.Tensor | None
    sinks: torch.Tensor | None
    attn_mask: torch.Tensor | None
    rng: torch.Tensor | None
    cu_q: torch.Tensor | None
    cu_k: torch.Tensor | None
    left: int
    right: int
    softcap: float | None
    dropout_p: float
    scale: float


ARGUMENTS = (
    "Tensor? alibi_slopes, Tensor? sinks, Tensor? attn_mask, Tensor? rng, Tensor? cu_q, Tensor? cu_k, "
    "int left, int right, float? softcap, float dropout_p, float scale"
)


@functools.lru_cache(maxsize=16)
def window_block_mask(left: int | None, right: int | None, S_q: int, S_k: int, device: torch.device) -> BlockMask:
    """The block mask of a window, kept for the next call of the same sizes."""
    mask = None if left is None and right is None else sliding_window
    return BlockMask(mask, Aux(offset=S_k - S_q, left=left, right=right), 1, 1, S_q, S_k, device)


def plan(q: torch.Tensor, k: torch.Tensor, options: Options) -> tuple[Mods, Aux, BlockMask]:
    """What the launchers take for these options."""
    left, right = (None if limit < 0 else limit for limit in (options.left, options.right))
    S_q, S_k = q.shape[2], k.shape[2]
    given, slopes, score, drop = options.attn_mask, options.alibi_slopes, None, None
    strides = {}
    if given is not None:
        of_batch, of_heads = (0 if given.shape[axis] == 1 else given.stride(axis) for axis in (0, 1))
        keys_alone = given.stride(2) == 0  # (B, 1, 1, S_k): the same for every query
        of_queries = None if keys_alone else given.stride(2)
        strides = {"mask_b": of_batch, "mask_h": of_heads, "mask_i": of_queries, "mask_j": given.stride(3)}
    if options.cu_q is not None:
        mask = packed_block_mask(options.cu_q, options.cu_k, S_q, S_k, left, right)
    elif given is not None and given.dtype == torch.uint8:
        aux = Aux(offset=S_k - S_q, left=left, right=right, attn_mask=given, **strides)
        mask = BlockMask(allowed_in_window, aux, *given.shape[:2], S_q, S_k, q.device, keys_alone=keys_alone)
    else:
        mask = window_block_mask(left, right, S_q, S_k, q.device)
    aux = mask.aux._replace(attn_mask=given, **strides)
    if options.softcap is not None or slopes is not None or (given is not None and given.is_floating_point()):
        score = all_scores
        aux = aux._replace(softcap=options.softcap)
    if slopes is not None:
        aux = aux._replace(slopes=slopes, slope_stride=slopes.stride(0) if slopes.shape[0] > 1 else 0)
    if options.rng is not None:
        drop = Dropout(
            options.rng, min(round(options.dropout_p * 2**32), 2**32 - 1), 1 / (1 - options.dropout_p), q.shape[1]
        )
    grad = None if options.softcap is None else soft_cap_grad
    return Mods(score, grad, mask.mask, options.scale, drop), aux, mask


def like_rows(x: torch.Tensor) -> torch.Tensor:
    """An empty tensor of x's shape, (1, H, S, D), whose memory is (S, H, D): where packed rows' results go."""
    return torch.empty_like(x.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def run_forward(q, k, v, *arguments):
    """The operator variant_forward on a device."""
    options = Options(*arguments)
    require_kernel_device(q, "q")
    check_lengths(q, k, options)
    if not (q.numel() and k.numel()):  # nothing is seen, but the sinks
        o, lse = nothing_seen(q)
        return o if options.cu_q is None else like_rows(q).zero_(), lse if options.sinks is None else lse.copy_(
            options.sinks[:, None]
        )
    with on_device_of(q):
        mods, aux, mask = plan(q, k, options)
        o = None if options.cu_q is None else like_rows(q)
        return variant_forward(q, k, v, mods, aux, mask, options.sinks, o)


def run_backward(do, dlse, q, k, v, o, lse, *arguments):
    """The operator variant_backward on a device. A gradient that isn't needed comes back as an empty tensor."""
    *arguments, need_dsinks, need_dmask = arguments
    options = Options(*arguments)
    sinks, added = options.sinks if need_dsinks else None, options.attn_mask if need_dmask else None
    none = [q.new_empty(0, dtype=torch.float32) for _ in range(2)]
    if not (q.numel() and k.numel()):
        dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        dsinks = none[0] if sinks is None else torch.zeros_like(sinks) if dlse is None else dlse.sum((0, 2))
        return dq, dk, dv, dsinks, none[1] if added is None else torch.zeros(added.shape, device=q.device)
    with on_device_of(q):
        mods, aux, mask = plan(q, k, options)
        dlse = None if dlse is None else dlse.contiguous()
        mask_shape = None if added is None else tuple(added.shape)
        found = variant_backward(q, k, v, o, do, lse, dlse, mods, aux, mask, sinks, mask_shape)
    return (
        found.dq,
        found.dk,
        found.dv,
        none[0] if sinks is None else found.dsinks,
        none[1] if added is None else found.dmask,
    )


def check_lengths(q, k, options: Options) -> None:
    """ValueError for cu_seqlens that do not lead from 0 to the number of tokens. A GPU's are not looked at, for the CPU
    would have to wait for it."""
    if options.cu_q is None or options.cu_q.device.type != "cpu":
        return
    for name, cu, total in (("cu_seqlens_q", options.cu_q, q.shape[2]), ("cu_seqlens_k", options.cu_k, k.shape[2])):
        bounds = cu.tolist()
        if bounds[0] != 0 or bounds[-1] != total or bounds != sorted(bounds):
            raise ValueError(
                f"{name} must start at 0, never decrease, and end at the number of tokens, {total}; got {bounds}"
            )


# ---------------------------------------------------------------- the operators

LIBRARY.define(
    f"variant_forward(Tensor q, Tensor k, Tensor v, {ARGUMENTS}) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
LIBRARY.define(
    f"variant_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {ARGUMENTS}, "
    "bool need_dsinks, bool need_dmask) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
for device in ("CPU", "CUDA"):
    LIBRARY.impl("variant_forward", run_forward, device)
    LIBRARY.impl("variant_backward", run_backward, device)


@torch.library.register_fake("fa_tutorial::variant_forward", lib=LIBRARY)
def fake_forward(q, k, v, *arguments):
    packed = Options(*arguments).cu_q is not None
    o = like_rows(q) if packed else torch.empty_like(q, memory_format=torch.contiguous_format)
    return o, q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.register_fake("fa_tutorial::variant_backward", lib=LIBRARY)
def fake_backward(do, dlse, q, k, v, o, lse, *arguments):
    *arguments, need_dsinks, need_dmask = arguments
    options = Options(*arguments)
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    dsinks = q.new_empty(options.sinks.shape if need_dsinks else 0, dtype=torch.float32)
    dmask = q.new_empty(options.attn_mask.shape if need_dmask else 0, dtype=torch.float32)
    return dq, dk, dv, dsinks, dmask


class VariantAttention(torch.autograd.Function):
    """The operator variant_forward as a node of autograd's graph."""

    @staticmethod
    def forward(ctx, q, k, v, *arguments):
        o, lse = below_autograd(FORWARD, q, k, v, *arguments)
        options = Options(*arguments)
        ctx.save_for_backward(q, k, v, o, lse, *options[:6])
        ctx.numbers = options[6:]
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        q, k, v, o, lse, *tensors = ctx.saved_tensors
        do = torch.zeros_like(o) if do is None else do
        needs = ctx.needs_input_grad[4:6]  # sinks and attn_mask
        dq, dk, dv, dsinks, dmask = gradients_of(BACKWARD, do, dlse, q, k, v, o, lse, *tensors, *ctx.numbers, *needs)
        _, _, attn_mask, *_ = tensors
        dmask = dmask.to(attn_mask.dtype) if needs[1] else None
        return dq, dk, dv, None, dsinks if needs[0] else None, dmask, *[None] * 8


FORWARD, BACKWARD = torch.ops.fa_tutorial.variant_forward.default, torch.ops.fa_tutorial.variant_backward.default
LIBRARY.impl("variant_forward", differentiable(VariantAttention, FORWARD), "Autograd")
LIBRARY.impl("variant_backward", differentiable(once_differentiable(BACKWARD), BACKWARD), "Autograd")
