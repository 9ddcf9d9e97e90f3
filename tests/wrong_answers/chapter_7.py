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

FLAW = tl.constexpr("")


def flawed(kernel, flaw):
    """The kernel with another FLAW, which is a global of its own."""
    copy = types.FunctionType(kernel.fn.__code__, {**kernel.fn.__globals__, "FLAW": tl.constexpr(flaw)}, kernel.fn.__name__)
    copy.__annotations__ = kernel.fn.__annotations__
    copy.__module__ = __name__
    return triton.jit(copy)


@triton.jit
def _delta(
    o_ptr, do_ptr, delta_ptr, H, S_q, D,
    stride_ob, stride_oh, stride_os, stride_od, stride_dob, stride_doh, stride_dos, stride_dod,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row_blocks = S_q // BLOCK_M if FLAW == "row blocks rounded down" else tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H
    offs_m, offs_d = row_block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    cols = D + BLOCK_D if FLAW == "columns not masked" else D
    mask = (offs_m[:, None] < S_q) & (offs_d[None, :] < cols)
    o_ptrs = o_ptr + b * stride_ob + h * stride_oh + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    do_ptrs = do_ptr + b * stride_dob + h * stride_doh + offs_m[:, None] * stride_dos + offs_d[None, :] * stride_dod
    if FLAW == "no other":
        o, do = tl.load(o_ptrs, mask=mask), tl.load(do_ptrs, mask=mask)
    else:
        o, do = tl.load(o_ptrs, mask=mask, other=0.0), tl.load(do_ptrs, mask=mask, other=0.0)
    row = batch_head * (row_blocks * BLOCK_M if FLAW == "rows padded to whole blocks" else S_q)
    last = row_blocks * BLOCK_M if FLAW == "rows stored past the end" else S_q
    tl.store(delta_ptr + row + offs_m, tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1), mask=offs_m < last)


@triton.jit
def _dkdv(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_dob, stride_doh, stride_dos, stride_dod,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    key_blocks = tl.cdiv(S_k, BLOCK_N)
    key_block, batch_head = tl.program_id(0) % key_blocks, tl.program_id(0) // key_blocks
    b, h = batch_head // H, batch_head % H
    offs_n, offs_d, row = key_block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D), batch_head * S_q
    mask_n = (offs_n[:, None] < S_k) & (offs_d[None, :] < D)
    k = tl.load(k_ptr + b * stride_kb + h * stride_kh + offs_n[:, None] * stride_ks + offs_d * stride_kd, mask=mask_n, other=0.0)
    v = tl.load(v_ptr + b * stride_vb + h * stride_vh + offs_n[:, None] * stride_vs + offs_d * stride_vd, mask=mask_n, other=0.0)
    dk = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    start = 0
    if IS_CAUSAL:
        start = key_block * BLOCK_N + S_q - S_k
        if FLAW != "start not clamped":
            start = tl.maximum(start, 0)
    for start_m in range(start // BLOCK_M * BLOCK_M, S_q, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)
        last = S_q + BLOCK_M if FLAW == "queries not masked" else S_q
        mask_m = (offs_m[:, None] < last) & (offs_d[None, :] < D)
        q_ptrs = q_ptr + b * stride_qb + h * stride_qh + offs_m[:, None] * stride_qs + offs_d * stride_qd
        do_ptrs = do_ptr + b * stride_dob + h * stride_doh + offs_m[:, None] * stride_dos + offs_d * stride_dod
        if FLAW == "no other":
            q, do = tl.load(q_ptrs, mask=mask_m), tl.load(do_ptrs, mask=mask_m)
        else:
            q, do = tl.load(q_ptrs, mask=mask_m, other=0.0), tl.load(do_ptrs, mask=mask_m, other=0.0)
        lse = tl.load(lse_ptr + row + offs_m, mask=offs_m < last, other=0.0)
        delta = tl.load(delta_ptr + row + offs_m, mask=offs_m < last, other=0.0)
        p_t = tl.exp(scale * tl.dot(k, tl.trans(q), input_precision="ieee") - lse)
        if IS_CAUSAL:
            p_t = tl.where(offs_n[:, None] <= offs_m + S_k - S_q, p_t, 0.0)
        ds_t = p_t * (tl.dot(v, tl.trans(do), input_precision="ieee") - delta)
        dv += tl.dot(p_t.to(do.dtype), do, input_precision="ieee")
        dk += tl.dot(ds_t.to(q.dtype), q, input_precision="ieee")
    out = (batch_head * (S_q if FLAW == "head of dk by S_q" else S_k) + offs_n[:, None]) * D + offs_d
    end = key_blocks * BLOCK_N if FLAW == "keys stored past the end" else S_k
    tl.store(dk_ptr + out, (scale * dk).to(dk_ptr.dtype.element_ty), mask=(offs_n[:, None] < end) & (offs_d < D))
    tl.store(dv_ptr + out, dv.to(dv_ptr.dtype.element_ty), mask=(offs_n[:, None] < end) & (offs_d < D))


@triton.jit
def _dq(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_dob, stride_doh, stride_dos, stride_dod,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row_blocks = S_q // BLOCK_M if FLAW == "row blocks rounded down" else tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H
    offs_m, offs_d, row = row_block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D), batch_head * S_q
    mask_m = (offs_m[:, None] < S_q) & (offs_d[None, :] < D)
    q = tl.load(q_ptr + b * stride_qb + h * stride_qh + offs_m[:, None] * stride_qs + offs_d * stride_qd, mask=mask_m, other=0.0)
    do = tl.load(do_ptr + b * stride_dob + h * stride_doh + offs_m[:, None] * stride_dos + offs_d * stride_dod, mask=mask_m, other=0.0)
    lse = tl.load(lse_ptr + row + offs_m, mask=offs_m < S_q, other=0.0)
    delta = tl.load(delta_ptr + row + offs_m, mask=offs_m < S_q, other=0.0)
    dq = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    end = tl.minimum((row_block + 1) * BLOCK_M, S_q) + S_k - S_q if IS_CAUSAL else S_k
    for start_n in range(0, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        last = S_k + BLOCK_N if FLAW == "keys not masked" else S_k
        mask_n = (offs_n[:, None] < last) & (offs_d[None, :] < D)
        k_ptrs = k_ptr + b * stride_kb + h * stride_kh + offs_n[:, None] * stride_ks + offs_d * stride_kd
        v_ptrs = v_ptr + b * stride_vb + h * stride_vh + offs_n[:, None] * stride_vs + offs_d * stride_vd
        if FLAW == "no other":
            k, v = tl.load(k_ptrs, mask=mask_n), tl.load(v_ptrs, mask=mask_n)
        else:
            k, v = tl.load(k_ptrs, mask=mask_n, other=0.0), tl.load(v_ptrs, mask=mask_n, other=0.0)
        seen = offs_n[None, :] < S_k
        if IS_CAUSAL:
            seen = offs_n[None, :] <= offs_m[:, None] + S_k - S_q
        p = tl.where(seen, tl.exp(scale * tl.dot(q, tl.trans(k), input_precision="ieee") - lse[:, None]), 0.0)
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    out = row * D + offs_m[:, None] * (BLOCK_D if FLAW == "rows of dq BLOCK_D apart" else D) + offs_d
    tl.store(dq_ptr + out, (scale * dq).to(dq_ptr.dtype.element_ty), mask=mask_m)


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
    ("7.1", flawed(_delta, "rows stored past the end"), "rows past S_q are loaded or stored"),
    ("7.1", flawed(_delta, "columns not masked"), "columns past D are loaded"),
    ("7.1", flawed(_delta, "no other"), "without other=0.0", None),
    ("7.2", flawed(_dkdv, "queries not masked"), "rows past S_q are loaded"),
    ("7.2", flawed(_dkdv, "keys stored past the end"), "keys past S_k are loaded or stored"),
    ("7.2", flawed(_dkdv, "head of dk by S_q"), "a head starts at (b · H + h) · S_k · D of dk and dv"),
    ("7.2", flawed(_dkdv, "start not clamped"), "the loop starts before query 0"),
    ("7.2", flawed(_dkdv, "no other"), "without other=0.0", None),
    ("7.3", flawed(_dq, "row blocks rounded down"), "a head has tl.cdiv(S_q, BLOCK_M) row blocks"),
    ("7.3", flawed(_dq, "keys not masked"), "keys past S_k are loaded"),
    ("7.3", flawed(_dq, "rows of dq BLOCK_D apart"), "rows of dq lie D apart"),
    ("7.3", flawed(_dq, "no other"), "without other=0.0", None),
    ("7.4", function("matrix saved"), "a matrix of scores is saved"),
    ("7.4", function("float64 copies saved"), "more is saved than q, k, v, o and lse"),
    ("7.4", function("tensors on ctx"), "a tensor is kept on ctx"),
    ("7.4", function("tensors on the class"), "a tensor is kept on the class"),
    ("7.4", function("forward run again"), "less is saved than q, k, v, o and lse"),
    ("7.4", function("lse returned"), "forward returns 2 values"),
    ("7.4", function("do.view"), "do a (B, S, H, D) tensor seen as"),
    ("7.4", function("do changed"), "backward changes do in place"),
    ("7.4", function("ctx emptied"), "backward twice"),
    ("7.4", function("no dv"), "backward returns None for dv"),
    ("7.4", function("two values missing"), "backward returns one value for each argument"),
    ("7.4", function("twice differentiable"), "a second derivative is silently wrong"),
    ("7.4", Module, "is no subclass of torch.autograd.Function"),
    ("7.4", function("").apply, "pass the class itself"),
)
