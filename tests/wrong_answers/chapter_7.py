"""Wrong answers to the exercises of chapter 7, each with words that its diagnosis must hold.

Each exercise has one answer here, right as long as FLAW is "". A wrong answer is that one with a FLAW, by which a line differs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from fa_tutorial import reference
from fa_tutorial.backward import flash_backward
from fa_tutorial.exercises.pieces import load_tile, tl, triton
from fa_tutorial.forward import flash_forward
from wrong_answers import WrongAnswer, chapter_5

FLAW = tl.constexpr("")


# ---------------------------------------------------------------- 7.1


@triton.jit
def _delta(
    o_ptr, do_ptr, delta_ptr, H, S_q, D,
    stride_ob, stride_oh, stride_os, stride_od, stride_dob, stride_doh, stride_dos, stride_dod,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row_blocks = S_q // BLOCK_M if FLAW == "row blocks rounded down" else tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H
    if FLAW == "batch and head exchanged":
        b, h = h, b
    if FLAW == "strides of do taken from o":
        stride_dob, stride_doh, stride_dos, stride_dod = stride_ob, stride_oh, stride_os, stride_od
    if FLAW == "do taken for contiguous":
        stride_dob, stride_doh, stride_dos, stride_dod = H * S_q * D, S_q * D, D, 1
    if FLAW == "head of do forgotten":
        stride_doh = 0
    if FLAW == "batches H heads apart":
        stride_ob, stride_dob = H * stride_oh, H * stride_doh
    if FLAW == "last stride of do forgotten":
        stride_dod = 1
    offs_m, offs_d = row_block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    cols = D + BLOCK_D if FLAW == "columns not masked" else D
    o = load_tile(o_ptr + b * stride_ob + h * stride_oh, offs_m, offs_d, S_q, cols, stride_os, stride_od)
    do = load_tile(do_ptr + b * stride_dob + h * stride_doh, offs_m, offs_d, S_q, cols, stride_dos, stride_dod)
    if FLAW == "o by itself":
        do = o
    product = o.to(tl.float32) * do.to(tl.float32)
    if FLAW == "products in half precision":
        product = o * do
    if FLAW == "wrong axis":
        delta = tl.sum(product, axis=0)
    else:
        delta = tl.sum(product, axis=1)
    if FLAW == "sum in half precision":
        delta = delta.to(o.dtype).to(tl.float32)
    if FLAW == "mean":
        delta = delta / D
    row = batch_head * S_q
    if FLAW == "head of delta forgotten":
        row = b * H * S_q
    if FLAW == "rows padded to whole blocks":
        row = batch_head * row_blocks * BLOCK_M
    last = S_q
    if FLAW == "rows stored past the end":
        last = row_blocks * BLOCK_M
    tl.store(delta_ptr + row + offs_m, delta, mask=offs_m < last)


# ---------------------------------------------------------------- 7.2, 7.3


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
    if FLAW == "strides of k taken from q":
        stride_kb, stride_kh, stride_ks, stride_kd = stride_qb, stride_qh, stride_qs, stride_qd
    if FLAW == "last stride of q forgotten":
        stride_qd = 1
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    do_ptr += b * stride_dob + h * stride_doh
    row = 0 if FLAW == "head of lse and delta forgotten" else (b * H + h) * S_q
    offs_n, offs_d = key_block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    k = tl.load(
        k_ptr + offs_n[:, None] * stride_ks + offs_d[None, :] * stride_kd, mask=(offs_n[:, None] < S_k) & (offs_d[None, :] < D), other=0.0
    )
    v = tl.load(
        v_ptr + offs_n[:, None] * stride_vs + offs_d[None, :] * stride_vd, mask=(offs_n[:, None] < S_k) & (offs_d[None, :] < D), other=0.0
    )
    dk = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    start, end = 0, S_q
    if FLAW == "ragged block left out":
        end = S_q // BLOCK_M * BLOCK_M
    if IS_CAUSAL or FLAW == "blocks skipped without a mask":
        start = tl.maximum(key_block * BLOCK_N + S_q - S_k, 0) // BLOCK_M * BLOCK_M
        if FLAW == "start one block late":
            start = start + BLOCK_M
        if FLAW == "start by block number":
            start = key_block * BLOCK_M
        if FLAW == "start rounded up":
            start = tl.cdiv(tl.maximum(key_block * BLOCK_N + S_q - S_k, 0), BLOCK_M) * BLOCK_M
        if FLAW == "ends at the diagonal":
            end = tl.minimum(start + BLOCK_M, S_q)
        if FLAW == "aligned top-left" or FLAW == "unseen blocks walked":
            start = 0
    for start_m in range(start, end, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)
        if FLAW == "rows past the end read the last row":
            offs_m = tl.minimum(offs_m, S_q - 1)
        last = S_q + BLOCK_M if FLAW == "queries not masked in the loads" else S_q
        q = tl.load(
            q_ptr + offs_m[:, None] * stride_qs + offs_d[None, :] * stride_qd,
            mask=(offs_m[:, None] < last) & (offs_d[None, :] < D),
            other=0.0,
        )
        do = tl.load(
            do_ptr + offs_m[:, None] * stride_dos + offs_d[None, :] * stride_dod,
            mask=(offs_m[:, None] < last) & (offs_d[None, :] < D),
            other=0.0,
        )
        lse = tl.load(lse_ptr + row + offs_m, mask=offs_m < last, other=0.0)
        delta = tl.load(delta_ptr + row + offs_m, mask=offs_m < last, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        if FLAW != "scale forgotten in the scores":
            s = s * scale
        if FLAW == "s in half precision":
            s = s.to(q.dtype).to(tl.float32)
        if FLAW == "lse along the keys":
            p = tl.exp(s - lse[None, :])
        elif FLAW == "exp over exp":
            p = tl.exp(s) / tl.exp(lse)[:, None]
        elif FLAW == "exp2 without log2 e":
            p = tl.exp2(s - lse[:, None])
        else:
            p = tl.exp(s - lse[:, None])
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        if FLAW == "delta of one tile":
            delta = tl.sum(p * dp, axis=1)
        seen = offs_n[None, :] <= offs_m[:, None] + (S_k - S_q)
        if FLAW == "aligned top-left":
            seen = offs_n[None, :] <= offs_m[:, None]
        if FLAW == "mask by positions in the tile":
            seen = tl.arange(0, BLOCK_N)[None, :] <= tl.arange(0, BLOCK_M)[:, None]
        if FLAW == "hidden keys score 0" and IS_CAUSAL:
            p = tl.exp(tl.where(seen, s, 0.0) - lse[:, None])
        elif FLAW == "NaN in rows that see nothing" and IS_CAUSAL:
            p = tl.exp(tl.where(seen, s, -float("inf")) - lse[:, None])
        elif FLAW == "hidden by a product" and IS_CAUSAL:
            p = p * seen
        elif FLAW != "nothing hidden" and FLAW != "ds not masked" and IS_CAUSAL:
            p = tl.where(seen, p, 0.0)
        ds = p * dp if FLAW == "delta forgotten" else p * (dp - delta[:, None])
        if FLAW == "ds not masked" and IS_CAUSAL:
            p = tl.where(seen, p, 0.0)
        p_t = p if FLAW == "p not transposed" else tl.trans(p)
        dv_step = tl.dot(p_t.to(do.dtype), do, input_precision="ieee")
        dk_step = tl.dot(tl.trans(ds).to(q.dtype), k if FLAW == "k for q" else q, input_precision="ieee")
        if FLAW == "blocks replace one another":
            dk, dv = dk_step, dv_step
        else:
            dk, dv = dk + dk_step, dv + dv_step
        if FLAW == "sums in half precision":
            dk, dv = dk.to(q.dtype).to(tl.float32), dv.to(q.dtype).to(tl.float32)
    if FLAW == "scale in dv":
        dv = dv * scale
    if FLAW != "scale forgotten in dk":
        dk = dk * scale
    if FLAW == "dk and dv exchanged":
        dk, dv = dv, dk
    out = ((b * H + h) * S_k + offs_n[:, None]) * D + offs_d[None, :]
    if FLAW == "head of dk by S_q":
        out = ((b * H + h) * S_q + offs_n[:, None]) * D + offs_d[None, :]
    if FLAW == "stored by the strides of k":
        out = b * stride_kb + h * stride_kh + offs_n[:, None] * stride_ks + offs_d[None, :] * stride_kd
    mask = (offs_n[:, None] < (key_blocks * BLOCK_N if FLAW == "keys stored past the end" else S_k)) & (offs_d[None, :] < D)
    tl.store(dk_ptr + out, dk.to(dk_ptr.dtype.element_ty), mask=mask)
    tl.store(dv_ptr + out, dv.to(dv_ptr.dtype.element_ty), mask=mask)


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
    if FLAW == "strides of k taken from q":
        stride_kb, stride_kh, stride_ks, stride_kd = stride_qb, stride_qh, stride_qs, stride_qd
    if FLAW == "last strides forgotten":
        stride_qd, stride_kd, stride_vd, stride_dod = 1, 1, 1, 1
    if FLAW == "batches H heads apart":
        stride_qb, stride_kb, stride_vb, stride_dob = H * stride_qh, H * stride_kh, H * stride_vh, H * stride_doh
    if FLAW == "head of k forgotten":
        stride_kh = 0
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    row = (b * H + h) * S_q
    offs_m, offs_d = row_block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    q = tl.load(
        q_ptr + b * stride_qb + h * stride_qh + offs_m[:, None] * stride_qs + offs_d[None, :] * stride_qd,
        mask=(offs_m[:, None] < S_q) & (offs_d[None, :] < D),
        other=0.0,
    )
    do = tl.load(
        do_ptr + b * stride_dob + h * stride_doh + offs_m[:, None] * stride_dos + offs_d[None, :] * stride_dod,
        mask=(offs_m[:, None] < S_q) & (offs_d[None, :] < D),
        other=0.0,
    )
    lse = tl.load(lse_ptr + ((b * H + h) * S_k if FLAW == "head of lse by S_k" else row) + offs_m, mask=offs_m < S_q, other=0.0)
    if FLAW != "NaN in rows that see nothing":
        lse = tl.where(lse == -float("inf"), float("inf"), lse)
    delta = tl.load(delta_ptr + row + offs_m, mask=offs_m < S_q, other=0.0)
    dq = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    end = S_k // BLOCK_N * BLOCK_N if FLAW == "ragged tile left out" else S_k
    if IS_CAUSAL:
        end = tl.minimum((row_block + 1) * BLOCK_M, S_q) + S_k - S_q
        if FLAW == "one tile too early":
            end = (row_block * BLOCK_M + S_k - S_q) // BLOCK_N * BLOCK_N
        if FLAW == "aligned top-left":
            end = S_k
    for start_n in range(0, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        if FLAW == "last key stands in":
            offs_n = tl.minimum(offs_n, S_k - 1)
        last = S_k + BLOCK_N if FLAW == "keys not masked in the loads" else S_k
        k = tl.load(
            k_ptr + offs_n[:, None] * stride_ks + offs_d[None, :] * stride_kd,
            mask=(offs_n[:, None] < last) & (offs_d[None, :] < D),
            other=0.0,
        )
        v = tl.load(
            v_ptr + offs_n[:, None] * stride_vs + offs_d[None, :] * stride_vd,
            mask=(offs_n[:, None] < last) & (offs_d[None, :] < D),
            other=0.0,
        )
        s = scale * tl.dot(q, tl.trans(k), input_precision="ieee")
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        if FLAW == "dp in half precision":
            dp = dp.to(q.dtype).to(tl.float32)
        seen = offs_n[None, :] < (S_k + BLOCK_N if FLAW == "padded keys score 0" else S_k)
        diagonal = S_k - S_q
        if FLAW == "aligned top-left":
            diagonal = 0
        if FLAW == "mask by positions in the tile":
            seen_by = (tl.arange(0, BLOCK_N)[None, :] <= tl.arange(0, BLOCK_M)[:, None]) & seen
        else:
            seen_by = (offs_n[None, :] <= offs_m[:, None] + diagonal) & seen
        if IS_CAUSAL and FLAW != "nothing hidden":
            seen = seen_by
        if FLAW == "padded keys score 0":  # with a mask on s, 0 · k would hide it
            p = tl.exp(s - lse[:, None])
        else:
            p = tl.exp(tl.where(seen, s, -float("inf")) - lse[:, None])
        if FLAW == "padded keys score 0" and IS_CAUSAL:
            p = tl.where(seen, p, 0.0)
        if FLAW == "no exp":
            p = tl.where(seen, s, 0.0)
        if FLAW == "softmax of one tile":
            p = tl.exp(s - tl.max(s, axis=1)[:, None])
            p = p / tl.sum(p, axis=1)[:, None]
        ds = p * dp if FLAW == "delta forgotten" else p * (dp - delta[:, None])
        if FLAW == "scale at every step":
            dq = dq * scale
        if FLAW == "tiles replace one another":
            dq = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
        dq = dq + tl.dot(ds.to(k.dtype), v if FLAW == "v for k" else k, input_precision="ieee")
        if FLAW == "sum in half precision":
            dq = dq.to(k.dtype).to(tl.float32)
    if FLAW == "scale twice":
        dq = dq * scale
    if FLAW != "scale forgotten":
        dq = dq * scale
    if FLAW == "wrong sign":
        dq = -dq
    dq_ptrs = dq_ptr + (row + offs_m[:, None]) * D + offs_d[None, :]
    if FLAW == "rows of dq BLOCK_D apart":
        dq_ptrs = dq_ptr + row * D + offs_m[:, None] * BLOCK_D + offs_d[None, :]
    if FLAW == "blocks that see nothing not stored":
        if end > 0:
            tl.store(dq_ptrs, dq.to(dq_ptr.dtype.element_ty), mask=(offs_m[:, None] < S_q) & (offs_d[None, :] < D))
    else:
        tl.store(dq_ptrs, dq.to(dq_ptr.dtype.element_ty), mask=(offs_m[:, None] < S_q) & (offs_d[None, :] < D))


# ---------------------------------------------------------------- 7.4


def _function(flaw: str) -> Any:
    class FlashAttention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, is_causal, scale):
            o, lse = flash_forward(q, k, v, is_causal, q.shape[-1] ** -0.5 if flaw == "scale ignored" else scale)
            if flaw == "forward run again":
                ctx.save_for_backward(q, k, v)
            elif flaw == "matrix saved":
                p = torch.softmax(q @ k.mT, dim=-1)
                ctx.save_for_backward(q, k, v, o, lse, p)
            elif flaw == "float32 copies saved":
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
            if flaw == "tensors on ctx":
                q, k, v, o, lse = ctx.tensors
            elif flaw == "tensors on the class":
                q, k, v, o, lse = FlashAttention.tensors
            elif flaw == "forward run again":
                q, k, v = ctx.saved_tensors
                o, lse = flash_forward(q, k, v, ctx.is_causal, ctx.scale)
            else:
                q, k, v, o, lse = ctx.saved_tensors[:5]
            is_causal = False if flaw == "is_causal not passed" else ctx.is_causal
            scale = q.shape[-1] ** -0.5 if flaw == "scale not passed" else ctx.scale
            if flaw == "gradient of ones":
                do = torch.ones_like(o)
            if flaw == "do.view":
                do = do.view(-1).view(o.shape)
            dq, dk, dv = flash_backward(q, k, v, o, do, lse, None, is_causal, scale)
            if flaw == "do changed":
                do.zero_()
            if flaw == "ctx emptied":
                del ctx.scale
            if flaw == "dk before dq":
                return dk, dq, dv, None, None
            if flaw == "dv before dk":
                return dq, dv, dk, None, None
            return (dq, dk, dv) if flaw == "two values missing" else (dq, dk, dv, None, None)

        backward = staticmethod(backward if flaw == "twice differentiable" else once_differentiable(backward))

    return FlashAttention


class _Module(torch.nn.Module):
    def forward(self, q, k, v, is_causal, scale):
        return reference.naive_attention(q, k, v, is_causal, scale)


FLAWS = {
    ("7.1", _delta): {
        "wrong axis": "the sum runs over the rows",
        "o by itself": "o is multiplied by itself",
        "mean": "the mean is taken",
        "head of do forgotten": "do is read from head 0",
        "head of delta forgotten": "not every head has its rows: row i of head h",
        "batch and head exchanged": "batch and head are exchanged",
        "strides of do taken from o": "do is read by the strides of o",
        "do taken for contiguous": "do is read as if it were contiguous",
        "row blocks rounded down": "a head has tl.cdiv(S_q, BLOCK_M) row blocks",
        "rows padded to whole blocks": "at (b · H + h) · S_q + i of delta",
        "rows stored past the end": "rows past S_q are loaded or stored",
        "columns not masked": "columns past D are loaded",
        "products in half precision": "the products overflow in fp16",
        "sum in half precision": "the sum is kept in fp16",
        "batches H heads apart": "o and do are read at (b · H + h) times a head's stride",
        "last stride of do forgotten": "do is read without the last stride",
    },
    ("7.2", _dkdv): {
        "dk and dv exchanged": "dk and dv are exchanged",
        "scale forgotten in dk": "scale is forgotten in dk",
        "scale in dv": "scale is applied to dv",
        "scale forgotten in the scores": "scale is forgotten in the scores",
        "delta forgotten": "delta is forgotten",
        "p not transposed": "p is not transposed",
        "k for q": "k stands where q is meant",
        "lse along the keys": "lse belongs to the queries",
        "exp2 without log2 e": "the base is 2",
        "blocks replace one another": "only the last block of queries counts",
        "ragged block left out": "the ragged last block of queries is left out",
        "rows past the end read the last row": "rows past S_q count in dk and dv",
        "queries not masked in the loads": "rows past S_q are loaded",
        "keys stored past the end": "keys past S_k are loaded or stored",
        "exp over exp": "exp overflows",
        "head of lse and delta forgotten": "lse and delta are read from head 0",
        "strides of k taken from q": "k is read by the strides of q",
        "nothing hidden": "nothing is hidden",
        "hidden keys score 0": "hidden keys get a score of 0",
        "ds not masked": "p is masked, but not ds",
        "start one block late": "the loop starts one block too late",
        "ends at the diagonal": "queries after the diagonal's block are left out",
        "start by block number": "found by block number",
        "aligned top-left": "the mask is aligned top-left",
        "start rounded up": "or rounded up",
        "unseen blocks walked": "blocks of queries that see none of the keys are read",
        "NaN in rows that see nothing": "−inf − (−inf) is NaN",
        "sums in half precision": "dv is kept in fp16",
        "last stride of q forgotten": "q is read without the last stride",
        "hidden by a product": "inf · 0 is NaN",
        "s in half precision": "s is rounded to fp16",
        "mask by positions in the tile": "the mask is by positions in the tile",
        "delta of one tile": "delta is summed over one tile's keys",
        "blocks skipped without a mask": "without a mask the loop starts with query 0",
        "stored by the strides of k": "dk and dv stored by the strides of k",
        "head of dk by S_q": "a head starts at (b · H + h) · S_k · D of dk and dv",
    },
    ("7.3", _dq): {
        "scale forgotten": "scale is forgotten in dq",
        "scale twice": "scale is applied twice to dq",
        "delta forgotten": "delta is forgotten",
        "v for k": "v stands where k is meant",
        "wrong sign": "dq has the wrong sign",
        "scale at every step": "scale is applied at every step",
        "tiles replace one another": "only the last tile counts",
        "ragged tile left out": "the ragged last tile of keys is left out",
        "last key stands in": "here the last key stands in",
        "keys not masked in the loads": "keys past S_k are loaded",
        "padded keys score 0": "a key past S_k has a score of 0",
        "row blocks rounded down": "a head has tl.cdiv(S_q, BLOCK_M) row blocks",
        "head of k forgotten": "k is read from head 0",
        "strides of k taken from q": "k is read by the strides of q",
        "nothing hidden": "nothing is hidden",
        "one tile too early": "the loop stops one tile too early",
        "mask by positions in the tile": "the mask is by positions in the tile",
        "aligned top-left": "the mask is aligned top-left",
        "NaN in rows that see nothing": "−inf − (−inf) is NaN",
        "blocks that see nothing not stored": "must store dq = 0",
        "sum in half precision": "dq is kept in fp16",
        "last strides forgotten": "q, k, v and do are read without the last stride",
        "batches H heads apart": "are read at (b · H + h) times a head's stride",
        "dp in half precision": "dp is rounded to fp16",
        "softmax of one tile": "p is a softmax over one tile's keys",
        "head of lse by S_k": "a head's rows of lse start at (b · H + h) · S_q",
        "rows of dq BLOCK_D apart": "rows lie D apart",
    },
}
FUNCTION_FLAWS = {
    "scale ignored": "scale does not reach flash_forward",
    "matrix saved": "a matrix of scores is saved",
    "float32 copies saved": "more is saved than q, k, v, o and lse",
    "tensors on ctx": "a tensor is kept on ctx",
    "tensors on the class": "a tensor is kept on the class",
    "lse returned": "forward returns 2 values",
    "is_causal not passed": "is_causal does not reach flash_backward",
    "scale not passed": "scale does not reach flash_backward",
    "forward run again": "less is saved than q, k, v, o and lse",
    "gradient of ones": "do does not reach flash_backward",
    "do.view": "do a (B, S, H, D) tensor seen as",
    "do changed": "backward changes do in place",
    "ctx emptied": "backward twice",
    "dk before dq": "here they come as dk, dq, dv",
    "dv before dk": "here they come as dq, dv, dk",
    "two values missing": "backward returns one value for each argument",
    "twice differentiable": "a second derivative is silently wrong",
}
# What differs on a GPU, where a stray read shows as NaN or not at all.
ON_GPU: dict[tuple[str, str], str] = {}


def _flawed(kernel: Any, flaw: str) -> Any:
    flawed = chapter_5.flawed(kernel, flaw)
    flawed.__module__ = flawed.fn.__module__ = __name__
    return flawed


WRONG_ANSWERS = (
    *(
        WrongAnswer(id, _flawed(kernel, flaw), diagnosis, ON_GPU.get((id, flaw)))
        for (id, kernel), flaws in FLAWS.items()
        for flaw, diagnosis in flaws.items()
    ),
    *(WrongAnswer("7.4", _function(flaw), diagnosis) for flaw, diagnosis in FUNCTION_FLAWS.items()),
    WrongAnswer("7.4", _Module, "is no subclass of torch.autograd.Function"),
    WrongAnswer("7.4", _function("").apply, "pass the class itself"),
)
