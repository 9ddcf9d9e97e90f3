"""Chapter 10: attention with mods that a reader writes, attention_with, and their block mask, make_block_mask."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from fa_tutorial.arguments import check_attention, check_int
from fa_tutorial.hardware import on_device_of, require_kernel_device, require_triton
from fa_tutorial.operators import autocast, nothing_seen
from fa_tutorial.tiles import MAX_D
from fa_tutorial.variants.backward import variant_backward
from fa_tutorial.variants.forward import variant_forward
from fa_tutorial.variants.mods import Mods
from fa_tutorial.variants.tile_lists import BlockMask

require_triton("Chapter 10 (fa_tutorial.variants)")
from triton.runtime.jit import KernelInterface  # noqa: E402


@torch.compiler.disable
def attention_with(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, score_mod: Any = None, score_grad: Any = None,
    mask_mod: Any = None, aux: tuple = (), block_mask: BlockMask | None = None, scale: float | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """softmax(score_mod(scale · q kᵀ)) v over the pairs that mask_mod sees, forward and backward, by chapter 10's
    kernels.

    q, k, v, scale, return_lse, autocast and the result as for flash_attention. score_mod(s, b, h, i, j, aux), its
    derivative by s score_grad (or 1, where the score is only shifted), and mask_mod(b, h, i, j, aux): functions
    decorated with @triton.jit, as fa_tutorial.variants.mods says. aux: their contiguous tensors and their numbers, no
    tuples in it; for the ready mods that read aux by name, mods.Aux, as in score_mod=mods.soft_cap,
    aux=mods.Aux(softcap=30.0).
    block_mask: make_block_mask's for mask_mod and these lengths, made once for many calls; aux begins with the block
    mask's. Without one every call makes its own, for every batch entry and head, and looks at every pair for it.

    Gradients: of q, k and v, once; not of what aux holds. Under torch.compile this is a graph break. Raises TypeError
    and ValueError as flash_attention does, for a mod that is no jitted function, for an aux that mods cannot read, and
    for a block mask of another call.
    """
    q, k, v = autocast(q, k, v)
    scale = check_attention(q, k, v, scale, max_d=MAX_D)
    require_kernel_device(q, "q")
    if score_grad is not None and score_mod is None:
        raise ValueError("score_grad is the derivative of a score_mod, and score_mod is None")
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    if learns and score_mod is not None and score_grad is None:
        raise ValueError(
            "a gradient through score_mod needs score_grad, its derivative by s: a function decorated with "
            "@triton.jit, or 1 where score_mod only shifts s"
        )
    score_grad = None if score_grad == 1 else score_grad
    for name, mod in (("score_mod", score_mod), ("score_grad", score_grad), ("mask_mod", mask_mod)):
        check_mod(name, mod)
    check_aux(aux, q.device)
    (B, H_q, S_q, _), S_k = q.shape, k.shape[2]
    if block_mask is None:
        block_mask = BlockMask(mask_mod, aux, *((1, 1) if mask_mod is None else (B, H_q)), S_q, S_k, q.device)
    else:
        check_block_mask(block_mask, mask_mod, aux, q, S_k)
        block_mask = block_mask.of_call(B, H_q)
    o, lse = AttentionWith.apply(q, k, v, Mods(score_mod, score_grad, mask_mod, scale), aux, block_mask)
    return (o, lse) if return_lse else o


def make_block_mask(mask_mod: Any, S_q: int, S_k: int, *, aux: tuple = (), B: int | None = None, H: int | None = None,
                    device: torch.device) -> BlockMask:  # fmt: skip
    """The tiles that mask_mod leaves of S_q queries and S_k keys, for many calls of attention_with.

    They are found by the first call that needs them on a stream, and kept. A call inside a CUDA graph finds its own at
    each replay. B, H: 1 where mask_mod doesn't read b or h, so that one list serves every batch entry or query head,
    and is found once. Unless given, a call has lists for each of its own.
    """
    check_mod("mask_mod", mask_mod)
    device = torch.empty(0, device=device).device  # with its index
    check_aux(aux, device)
    B, H = (None if size is None else check_int(name, size, 1) for name, size in (("B", B), ("H", H)))
    return BlockMask(mask_mod, aux, B, H, check_int("S_q", S_q, 0), check_int("S_k", S_k, 0), device)


def check_block_mask(block_mask: Any, mask_mod: Any, aux: tuple, q: torch.Tensor, S_k: int) -> None:
    """TypeError for what is no BlockMask, ValueError for one of other sizes, or of another mask_mod or aux."""
    if not isinstance(block_mask, BlockMask):
        raise TypeError(f"block_mask must be make_block_mask's, got {block_mask!r}")
    B, H_q, S_q, _ = q.shape
    about, wanted = (block_mask.S_q, block_mask.S_k, block_mask.device), (S_q, S_k, q.device)
    fits = block_mask.B in (None, 1, B) and block_mask.H in (None, 1, H_q)
    if about != wanted or not fits or mask_mod is not block_mask.mask:
        raise ValueError(
            f"block_mask is of another call: B, H, S_q, S_k, device {(block_mask.B, block_mask.H, *about)}, here "
            f"{(B, H_q, *wanted)}, and its mask_mod must be this call's"
        )
    same = [x is y or (not isinstance(x, torch.Tensor) and x == y) for x, y in zip(block_mask.aux, aux, strict=False)]
    if sum(same) < len(block_mask.aux):
        raise ValueError(
            f"aux must begin with the block_mask's, the same tensors and numbers, got {aux}, block_mask's "
            f"{block_mask.aux}"
        )


def check_mod(name: str, mod: Any) -> None:
    if mod is not None and not isinstance(mod, KernelInterface):
        raise TypeError(f"{name} must be a function decorated with @triton.jit, got {mod!r}")


def check_aux(aux: tuple, device: torch.device) -> None:
    """TypeError unless aux is a flat tuple of tensors without gradient, numbers and None; ValueError for tensors
    elsewhere or not contiguous."""
    if not isinstance(aux, tuple):
        raise TypeError(f"aux must be a tuple, got a {type(aux).__name__}")
    for i, x in enumerate(aux):
        if isinstance(x, tuple):
            raise TypeError(f"aux[{i}] is a tuple itself: put its {len(x)} entries into aux, one by one")
        if x is not None and not isinstance(x, (torch.Tensor, int, float)):
            raise TypeError(f"aux[{i}] must be a tensor, a number or None, got {x!r}")
        if not isinstance(x, torch.Tensor):
            continue
        if x.device != device:
            raise ValueError(f"aux[{i}] must be on {device}, as q, k and v are, got {x.device}")
        if not x.is_contiguous():
            raise ValueError(
                f"aux[{i}] must be contiguous, because mods get its pointer alone, got strides {x.stride()}: call "
                f".contiguous()"
            )
        if x.requires_grad:
            raise TypeError(
                f"aux[{i}] has no gradient here, got a tensor that requires one: detach it, or use "
                f"flash_attention's attn_mask or sinks"
            )


class AttentionWith(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, mods, aux, mask):
        if not (q.numel() and k.numel()):
            o, lse = nothing_seen(q)
        else:
            with on_device_of(q):
                o, lse = variant_forward(q, k, v, mods, aux, mask)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.rest = mods, aux, mask
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        if not (q.numel() and k.numel()):
            return *(torch.zeros_like(x) for x in (q, k, v)), None, None, None
        with on_device_of(q):
            do = torch.zeros_like(o) if do is None else do
            found = variant_backward(q, k, v, o, do, lse, None if dlse is None else dlse.contiguous(), *ctx.rest)
        return found.dq, found.dk, found.dv, None, None, None
