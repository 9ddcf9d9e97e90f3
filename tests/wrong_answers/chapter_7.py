"""Chapter 7: accesses outside the tensors, lanes that hold anything, programs that write to each other's rows; nodes of autograd that keep too much.

Each kernel here is right as long as FLAW is "". A wrong answer is that kernel with a FLAW, by which a line differs.
"""

import types

import torch
from torch.autograd.function import once_differentiable

from fa_tutorial import reference
from fa_tutorial.backward import flash_backward
from fa_tutorial.forward import flash_forward
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, load_tile, store_tile

FLAW = tl.constexpr("")


def flawed(kernel, flaw):
    """The kernel with another FLAW, which is a global of its own."""
    copy = types.FunctionType(kernel.fn.__code__, {**kernel.fn.__globals__, "FLAW": tl.constexpr(flaw)}, kernel.fn.__name__)
    copy.__annotations__, copy.__defaults__ = kernel.fn.__annotations__, kernel.fn.__defaults__
    copy.__module__ = __name__
    return triton.jit(copy)


@triton.jit
def _delta(o, do, delta_ptr, H, S_q, D, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    row_blocks = S_q // BLOCK_M if FLAW == "row blocks rounded down" else tl.cdiv(S_q, BLOCK_M)
    start_m, batch_head = tl.program_id(0) % row_blocks * BLOCK_M, tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H
    o_tile = load_tile(o, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)
    do_tile = load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    row = batch_head * (row_blocks * BLOCK_M if FLAW == "rows padded to whole blocks" else S_q)
    last = row_blocks * BLOCK_M if FLAW == "rows stored past the end" else S_q
    tl.store(delta_ptr + row + offs_m, tl.sum(o_tile.to(tl.float32) * do_tile.to(tl.float32), axis=1), mask=offs_m < last)


@triton.jit
def _dkdv_tile(q, k, v, do, dk, dv, lse_ptr, delta_ptr, H, D, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    b, h = tl.program_id(0) // H, tl.program_id(0) % H
    rows = tl.program_id(0) * (BLOCK_N if FLAW == "rows counted by BLOCK_N" else BLOCK_M) + tl.arange(0, BLOCK_M)
    k_tile, v_tile = load_tile(k, b, h, 0, BLOCK_N, D, BLOCK_N, BLOCK_D), load_tile(v, b, h, 0, BLOCK_N, D, BLOCK_N, BLOCK_D)
    q_tile, do_tile = load_tile(q, b, h, 0, BLOCK_M, D, BLOCK_M, BLOCK_D), load_tile(do, b, h, 0, BLOCK_M, D, BLOCK_M, BLOCK_D)
    lse, delta = tl.load(lse_ptr + rows), tl.load(delta_ptr + rows)
    if FLAW == "q not transposed":
        s_t = scale * dot(k_tile, q_tile)
    else:
        s_t = scale * dot(k_tile, tl.trans(q_tile))
    p_t = tl.exp(s_t - lse[None, :])
    ds_t = p_t * (dot(v_tile, tl.trans(do_tile)) - delta[None, :])
    store_tile(dk, dot(ds_t.to(q_tile.dtype), q_tile) * scale, b, h, 0, BLOCK_N, D, BLOCK_N, BLOCK_D)
    store_tile(dv, dot(p_t.to(do_tile.dtype), do_tile), b, h, 0, BLOCK_N, D, BLOCK_N, BLOCK_D)


@triton.jit
def _dkdv(q, k, v, do, dk, dv, lse_ptr, delta_ptr, H, S_q, S_k, D, scale,
          BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, IS_CAUSAL: tl.constexpr = False):  # fmt: skip
    key_blocks = tl.cdiv(S_k, BLOCK_N)
    start_n, batch_head = tl.program_id(0) % key_blocks * BLOCK_N, tl.program_id(0) // key_blocks
    b, h, offs_n = batch_head // H, batch_head % H, start_n + tl.arange(0, BLOCK_N)
    k_tile, v_tile = load_tile(k, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D), load_tile(v, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)
    dk_acc, dv_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32), tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    start, row = 0, batch_head * S_q
    if FLAW == "no batch" or (FLAW == "no batch where causal" and IS_CAUSAL):
        row = h * S_q
    if IS_CAUSAL:
        start = start_n + S_q - S_k + (1 if FLAW == "start one query late" else 0)
        if FLAW != "start not clamped":
            start = tl.maximum(start, 0)
    for start_m in range(start // BLOCK_M * BLOCK_M, S_q, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)
        last = S_q + BLOCK_M if FLAW == "queries not masked" else S_q
        q_tile, do_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D), load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)
        if FLAW == "no other":
            lse = tl.load(lse_ptr + row + offs_m, mask=offs_m < last)
        else:
            lse = tl.load(lse_ptr + row + offs_m, mask=offs_m < last, other=0.0)
        delta = tl.load(delta_ptr + row + offs_m, mask=offs_m < last, other=0.0)
        p_t = tl.exp(scale * dot(k_tile, tl.trans(q_tile)) - lse[None, :])
        if IS_CAUSAL:
            unmasked_from = tl.cdiv(tl.minimum(start_n + BLOCK_N, S_k) - 2 + S_q - S_k, BLOCK_M) * BLOCK_M
            if FLAW != "full one query early" or start_m < unmasked_from:
                p_t = tl.where(offs_n[:, None] <= offs_m[None, :] + S_k - S_q, p_t, 0.0)
        ds_t = p_t * (dot(v_tile, tl.trans(do_tile)) - delta[None, :])
        dv_acc = dot(p_t.to(do_tile.dtype), do_tile, dv_acc)
        dk_acc = dot(ds_t.to(q_tile.dtype), q_tile, dk_acc)
    store_tile(dk, dk_acc * scale, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)
    store_tile(dv, dv_acc, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)


@triton.jit
def _dq(q, k, v, do, dq, lse_ptr, delta_ptr, H, S_q, S_k, D, scale,
        IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    row_blocks = S_q // BLOCK_M if FLAW == "row blocks rounded down" else tl.cdiv(S_q, BLOCK_M)
    start_m, batch_head = tl.program_id(0) % row_blocks * BLOCK_M, tl.program_id(0) // row_blocks
    b, h, offs_m = batch_head // H, batch_head % H, start_m + tl.arange(0, BLOCK_M)
    q_tile, do_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D), load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)
    last = S_q + BLOCK_M if FLAW == "queries not masked" else S_q
    lse = tl.load(lse_ptr + batch_head * S_q + offs_m, mask=offs_m < last, other=0.0)
    delta = tl.load(delta_ptr + batch_head * S_q + offs_m, mask=offs_m < last, other=0.0)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    end = tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q if IS_CAUSAL and FLAW != "all tiles read" else S_k
    if IS_CAUSAL and FLAW == "end one key short":
        end -= 1
    for start_n in range(0, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        k_tile, v_tile = load_tile(k, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D), load_tile(v, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)
        last_seen = offs_m + S_k - S_q if IS_CAUSAL else offs_m * 0 + S_k - 1
        s = scale * dot(q_tile, tl.trans(k_tile))
        if FLAW == "s masked":
            p = tl.exp(tl.where(offs_n[None, :] <= last_seen[:, None], s, -float("inf")) - lse[:, None])
        else:
            p = tl.where(offs_n[None, :] <= last_seen[:, None], tl.exp(s - lse[:, None]), 0.0)
        ds = p * (dot(do_tile, tl.trans(v_tile)) - delta[:, None])
        acc = dot(ds.to(k_tile.dtype), k_tile, acc)
    store_tile(dq, acc * scale, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


def function(flaw):
    class FlashAttention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, is_causal, scale):
            o, lse = flash_forward(q, k, v, is_causal, scale)
            if flaw == "forward run again":
                ctx.save_for_backward(q, k, v)
            elif flaw == "matrix saved":
                ctx.save_for_backward(q, k, v, o, lse, torch.softmax(q @ k.mT, dim=-1))
            elif flaw == "float64 copies saved":
                ctx.save_for_backward(q, k, v, o, lse, *(x.double() for x in (q, k, v)))
            elif flaw == "tensors on ctx":
                ctx.tensors = [q, k, v, o, lse]
            elif flaw == "tensors on the class":
                FlashAttention.tensors = (q, k, v, o, lse)
            else:
                ctx.save_for_backward(q, k, v, o, lse)
            ctx.is_causal, ctx.scale = is_causal, scale
            return (o, lse) if flaw == "lse returned" else o

        def backward(ctx, do):
            saved = {"tensors on ctx": lambda: ctx.tensors, "tensors on the class": lambda: FlashAttention.tensors}
            q, k, v, *rest = saved.get(flaw, lambda: ctx.saved_tensors)()
            o, lse = rest[:2] if rest else flash_forward(q, k, v, ctx.is_causal, ctx.scale)
            do = do.view(-1).view(o.shape) if flaw == "do.view" else do
            dq, dk, dv = flash_backward(q, k, v, o, do, lse, None, ctx.is_causal, ctx.scale)
            if flaw == "do changed":
                do.zero_()
            if flaw == "ctx emptied":
                del ctx.scale
            if flaw == "no dv":
                return dq, dk, None, None, None
            return (dq, dk, dv) if flaw == "two values missing" else (dq, dk, dv, None, None)

        backward = staticmethod(backward if flaw == "twice differentiable" else once_differentiable(backward))

    return FlashAttention


class Module(torch.nn.Module):
    def forward(self, q, k, v, is_causal, scale):
        return reference.naive_attention(q, k, v, is_causal, scale)


WRONG_ANSWERS = (
    ("7.1", flawed(_delta, "row blocks rounded down"), "a head has tl.cdiv(S_q, BLOCK_M) row blocks"),
    ("7.1", flawed(_delta, "rows padded to whole blocks"), "at (b · H + h) · S_q + i of delta"),
    ("7.1", flawed(_delta, "rows stored past the end"), "rows past S_q are stored"),
    ("7.2", flawed(_dkdv_tile, "q not transposed"), "q is not transposed"),
    ("7.2", flawed(_dkdv_tile, "rows counted by BLOCK_N"), "random values, BLOCK_M, BLOCK_N, BLOCK_D = (16, 64, 32)"),
    ("7.3", flawed(_dkdv, "queries not masked"), "rows past S_q are loaded", "0 · NaN is NaN"),
    ("7.3", flawed(_dkdv, "no other"), "without other=0.0", None),
    ("7.4", flawed(_dkdv, "start not clamped"), "the loop starts before query 0", "query i sees keys 0 to"),
    ("7.4", flawed(_dkdv, "no batch"), "lse and delta are read from batch 0 by every program"),
    ("7.4", flawed(_dkdv, "no batch where causal"), "b = (pid // blocks) // H: causal, B = H = 2"),
    ("7.4", flawed(_dkdv, "start one query late"), "start is one query too late"),
    ("7.4", flawed(_dkdv, "full one query early"), "full is one query too early"),
    ("7.5", flawed(_dq, "end one key short"), "the loop ends one key short"),
    ("7.5", flawed(_dq, "row blocks rounded down"), "a head has tl.cdiv(S_q, BLOCK_M) row blocks"),
    ("7.5", flawed(_dq, "queries not masked"), "rows past S_q are loaded", None),
    ("7.5", flawed(_dq, "all tiles read"), "tiles that no row of the block sees are read"),
    ("7.5", flawed(_dq, "s masked"), "mask p, not s"),
    ("7.6", function("matrix saved"), "a matrix of scores is saved"),
    ("7.6", function("float64 copies saved"), "more is saved than q, k, v, o and lse"),
    ("7.6", function("tensors on ctx"), "a tensor is kept on ctx"),
    ("7.6", function("tensors on the class"), "a tensor is kept on the class"),
    ("7.6", function("forward run again"), "less is saved than q, k, v, o and lse"),
    ("7.6", function("lse returned"), "forward returns 2 values"),
    ("7.6", function("do.view"), "do a (B, S, H, D) tensor seen as"),
    ("7.6", function("do changed"), "backward changes do in place"),
    ("7.6", function("ctx emptied"), "backward twice"),
    ("7.6", function("no dv"), "backward returns None for dv"),
    ("7.6", function("two values missing"), "backward returns one value for each argument"),
    ("7.6", function("twice differentiable"), "a second derivative is silently wrong"),
    ("7.6", Module, "is no subclass of torch.autograd.Function"),
    ("7.6", function("").apply, "pass the class itself"),
)
