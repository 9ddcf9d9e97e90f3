"""Attention with mods of the reader's own."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
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
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    score_mod: Any = None,
    score_grad: Any = None,
    mask_mod: Any = None,
    aux: tuple = (),
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(score_mod(scale · q kᵀ)) v over the pairs that mask_mod sees, forward and backward, by chapter 10's kernels.

    q, k, v, scale, return_lse, autocast and the result as for flash_attention. score_mod(s, b, h, i, j, aux), its derivative by s score_grad (None where that is
    1), and mask_mod(b, h, i, j, aux): functions decorated with @triton.jit, as fa_tutorial.variants.mods says. aux: their contiguous tensors and their
    numbers, no tuples in it; for the ready mods that read aux by name, mods.Aux, as in score_mod=mods.soft_cap, aux=mods.Aux(softcap=30.0).
    block_mask: make_block_mask's for mask_mod and these lengths, made once for many calls; aux begins with the block mask's. Without one every call
    makes its own, for every batch entry and head, and looks at every pair for it.

    Gradients: of q, k and v, once; not of what aux holds. Under torch.compile this is a graph break. Raises TypeError and ValueError as
    flash_attention does, for a mod that is no jitted function, for an aux that mods cannot read, and for a block mask of another call, or without the B or H that
    mask_mod reads.
    """
    q, k, v = autocast(q, k, v)
    scale = check_attention(q, k, v, scale, max_d=MAX_D)
    require_kernel_device(q, "q")
    for name, mod in (("score_mod", score_mod), ("score_grad", score_grad), ("mask_mod", mask_mod)):
        check_mod(name, mod)
    if score_grad is not None and score_mod is None:
        raise ValueError("score_grad is the derivative of a score_mod, and score_mod is None")
    check_aux(aux, q.device)
    (B, H_q, S_q, _), S_k = q.shape, k.shape[2]
    if block_mask is None:
        block_mask = BlockMask(mask_mod, aux, *((1, 1) if mask_mod is None else (B, H_q)), S_q, S_k, q.device)
    else:
        check_block_mask(block_mask, mask_mod, aux, q, S_k)
    o, lse = AttentionWith.apply(q, k, v, scale, Mods(score_mod, score_grad, mask_mod), aux, block_mask)
    return (o, lse) if return_lse else o


def make_block_mask(mask_mod: Any, S_q: int, S_k: int, *, aux: tuple = (), B: int = 1, H: int = 1, device: torch.device) -> BlockMask:
    """The tiles that mask_mod leaves of S_q queries and S_k keys, for many calls of attention_with.

    They are found by the first call that needs them on a stream, and kept. A call inside a CUDA graph finds its own at each replay.
    B, H: how many batch entries and query heads, where mask_mod reads b or h; otherwise leave them 1. attention_with raises ValueError if they're missing.
    """
    check_mod("mask_mod", mask_mod)
    device = torch.empty(0, device=device).device  # with its index
    check_aux(aux, device)
    sizes = (check_int(name, size, least) for name, size, least in (("B", B, 1), ("H", H, 1), ("S_q", S_q, 0), ("S_k", S_k, 0)))
    return BlockMask(mask_mod, aux, *sizes, device)


def check_block_mask(block_mask: Any, mask_mod: Any, aux: tuple, q: torch.Tensor, S_k: int) -> None:
    """TypeError for what is no BlockMask, ValueError for one of other sizes, of another mask_mod or aux, or of one B or H where the mask has many."""
    if not isinstance(block_mask, BlockMask):
        raise TypeError(f"block_mask must be make_block_mask's, got {block_mask!r}")
    B, H_q, S_q, _ = q.shape
    about, wanted = (block_mask.S_q, block_mask.S_k, block_mask.device), (S_q, S_k, q.device)
    if about != wanted or block_mask.B not in (1, B) or block_mask.H not in (1, H_q) or mask_mod is not block_mask.mask:
        raise ValueError(
            f"block_mask is of another call: B, H, S_q, S_k, device {(block_mask.B, block_mask.H, *about)}, here {(B, H_q, *wanted)}, "
            "and its mask_mod must be this call's"
        )
    same = [x is y or (not isinstance(x, torch.Tensor) and x == y) for x, y in zip(block_mask.aux, aux, strict=False)]
    if sum(same) < len(block_mask.aux):
        raise ValueError(f"aux must begin with the block_mask's, the same tensors and numbers, got {aux}, block_mask's {block_mask.aux}")
    for name, size, made, parameter in (("B", B, block_mask.B, 0), ("H", H_q, block_mask.H, 1)):
        if made < size and mask_mod is not None and _reads(mask_mod, parameter):
            raise ValueError(
                f"mask_mod reads its argument {parameter}, so block_mask needs {name} = {size}, got 1: make_block_mask(…, {name}={size})"
            )


@functools.cache
def _reads(mod: KernelInterface, parameter: int) -> bool:
    """Whether the text of a jitted function uses one of its parameters, other than to hand it on to a jitted function that does not."""
    [function] = ast.parse(textwrap.dedent(inspect.getsource(mod.fn))).body
    name = function.args.args[parameter].arg
    unread = 0
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        called = mod.fn.__globals__.get(getattr(call.func, "id", ""))
        for n, given in enumerate(call.args) if isinstance(called, KernelInterface) else ():
            unread += isinstance(given, ast.Name) and given.id == name and not _reads(called, n)
    return sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(function)) > unread


def check_mod(name: str, mod: Any) -> None:
    if mod is not None and not isinstance(mod, KernelInterface):
        raise TypeError(f"{name} must be a function decorated with @triton.jit, got {mod!r}")


def check_aux(aux: tuple, device: torch.device) -> None:
    """TypeError unless aux is a flat tuple of tensors without gradient, numbers and None; ValueError for tensors elsewhere or not contiguous."""
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
                f"aux[{i}] must be contiguous, because mods get its pointer alone, got strides {x.stride()}: call .contiguous()"
            )
        if x.requires_grad:
            raise TypeError(
                f"aux[{i}] has no gradient here, got a tensor that requires one: detach it, or use flash_attention's bias or sinks"
            )


class AttentionWith(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, mods, aux, mask):
        if not (q.numel() and k.numel()):
            o, lse = nothing_seen(q)
        else:
            with on_device_of(q):
                o, lse = variant_forward(q, k, v, scale, mods, aux, mask)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.rest = scale, mods, aux, mask
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        if not (q.numel() and k.numel()):
            return *(torch.zeros_like(x) for x in (q, k, v)), None, None, None, None
        with on_device_of(q):
            do = torch.zeros_like(o) if do is None else do
            found = variant_backward(q, k, v, o, do, lse, None if dlse is None else dlse.contiguous(), *ctx.rest)
        return found.dq, found.dk, found.dv, None, None, None, None
