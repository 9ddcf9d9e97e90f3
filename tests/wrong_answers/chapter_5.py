"""Wrong answers to the exercises of chapter 5, each with words that its diagnosis must hold.

Each exercise has one kernel here, right as long as the global FLAW is "". A wrong answer is that kernel with a FLAW, by which a line differs.
"""

from __future__ import annotations

import types
from typing import Any

from fa_tutorial.exercises.pieces import load_tile, tl, triton
from fa_tutorial.forward import softmax_step
from fa_tutorial.tiles import dot
from wrong_answers import WrongAnswer

FLAW = tl.constexpr("")


def flawed(kernel: Any, flaw: str) -> Any:
    """The kernel with another FLAW, which is a global of its own."""
    copy = types.FunctionType(kernel.fn.__code__, {**kernel.fn.__globals__, "FLAW": tl.constexpr(flaw)}, kernel.fn.__name__)
    copy.__annotations__ = kernel.fn.__annotations__
    copy.__module__ = __name__
    return triton.jit(copy)


# ---------------------------------------------------------------- 5.1


@triton.jit
def _load_tile(x_ptr, out_ptr, H, S, D, stride_xb, stride_xh, stride_xs, stride_xd, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    pid = tl.program_id(0)
    row_blocks = S // BLOCK_M if FLAW == "row blocks rounded down" else tl.cdiv(S, BLOCK_M)
    row_block, batch_head = pid % row_blocks, pid // row_blocks
    if FLAW == "head runs fastest":
        row_block, batch_head = pid // H % row_blocks, pid // (H * row_blocks) * H + pid % H
    b, h = batch_head // H, batch_head % H
    if FLAW == "batch and head exchanged":
        b, h = h, b
    if FLAW == "batch forgotten":
        b = 0
    if FLAW == "row block forgotten":
        row_block = 0
    start = row_block if FLAW == "row block not multiplied" else row_block * BLOCK_M
    offs_m, offs_d = start + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    if FLAW == "taken for contiguous":
        stride_xb, stride_xh, stride_xs, stride_xd = H * S * D, S * D, D, 1
    if FLAW == "columns side by side":
        stride_xd = 1
    mask = (offs_m[:, None] < S) & (offs_d[None, :] < D)
    if FLAW == "tile runs over the head's end":
        mask = (offs_m[:, None] >= 0) & (offs_d[None, :] < D)
    if FLAW == "rows masked by the end of all heads":
        mask = (batch_head * S + offs_m[:, None] < tl.num_programs(0) // row_blocks * S) & (offs_d[None, :] < D)
    if FLAW == "padded columns not masked":
        mask = (offs_m[:, None] < S) & (offs_d[None, :] < BLOCK_D)
    if FLAW == "batch and head by the head's stride":
        b, h = 0, batch_head
    x_ptrs = x_ptr + b * stride_xb + h * stride_xh + offs_m[:, None] * stride_xs + offs_d[None, :] * stride_xd
    x = tl.load(x_ptrs, mask=mask, other=1.0 if FLAW == "ends filled with ones" else 0.0)
    rows = pid * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_store = mask if FLAW == "store masked too" else (rows[:, None] >= 0) & (offs_d[None, :] >= 0)
    if FLAW == "stored by rows of the sequence":
        rows = pid * BLOCK_M + offs_m
    if FLAW == "stored by D":
        tl.store(out_ptr + rows[:, None] * D + offs_d[None, :], x, mask=mask_store)
    else:
        tl.store(out_ptr + rows[:, None] * BLOCK_D + offs_d[None, :], x, mask=mask_store)


# ---------------------------------------------------------------- 5.2, 5.3


@triton.jit
def _step(s, m, l, scale, FLAW: tl.constexpr):
    """softmax_step with a flaw: p, m_new, l_new, alpha."""
    DOWN: tl.constexpr = FLAW == "maximum and sum over the queries"
    m_tile = tl.max(s, axis=0 if DOWN or FLAW == "maximum over the queries" else 1)
    if FLAW == "maximum before the scale":
        m_tile = m_tile / scale
    m_new = m_tile if FLAW == "maximum of the last tile alone" else tl.maximum(m, m_tile)
    if FLAW == "no maximum":
        m_new = tl.zeros_like(m)
    p = tl.exp2(s - m_new[:, None]) if FLAW == "exp2 without log2 e" else tl.exp(s - m_new[:, None])
    alpha = tl.exp2(m - m_new) if FLAW == "exp2 without log2 e" else tl.exp(m - m_new)
    if FLAW == "alpha inverted":
        alpha = tl.exp(m_new - m)
    if FLAW == "nothing rescaled":
        alpha = tl.full(m.shape, 1.0, tl.float32)
    l_tile = tl.sum(p, axis=0 if DOWN or FLAW == "sum over the queries" else 1)
    l_new = l + l_tile if FLAW == "l not rescaled" else alpha * l + l_tile
    return p, m_new, l_new, alpha


def _without_jit(q_ptr, k_ptr, v_ptr, o_ptr, H, S_q, S_k, D, scale,
                 stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
                 stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    row_block = tl.program_id(0) % tl.cdiv(S_q, BLOCK_M)
    return row_block


@triton.jit
def _flash(
    q_ptr, k_ptr, v_ptr, o_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row_blocks = S_q // BLOCK_M if FLAW == "row blocks rounded down" else tl.cdiv(S_q, BLOCK_M)
    if FLAW == "row blocks of BLOCK_N":
        row_blocks = tl.cdiv(S_q, BLOCK_N)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H
    if FLAW == "batch and head by the head's stride":
        b, h = 0, batch_head
    b_k = 0 if FLAW == "batch of keys forgotten" else b
    if FLAW == "batch and head exchanged":
        b, h, b_k = h, b, h
    if FLAW == "strides of k taken from q":
        stride_kb, stride_kh, stride_ks, stride_kd = stride_qb, stride_qh, stride_qs, stride_qd
    if FLAW == "strides of o taken from q":
        stride_ob, stride_oh, stride_os, stride_od = stride_qb, stride_qh, stride_qs, stride_qd
    if FLAW == "k not transposed":
        stride_ks, stride_kd = stride_kd, stride_ks
    if FLAW == "scale from BLOCK_D":
        scale = 1.0 / tl.sqrt(BLOCK_D * 1.0)
    if FLAW == "scale from D":
        scale = 1.0 / tl.sqrt(D * 1.0)
    k_ptr += b_k * stride_kb + h * stride_kh
    v_ptr += b_k * stride_vb + h * stride_vh
    offs_m, offs_d = row_block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    KEYS: tl.constexpr = BLOCK_M if FLAW == "tiles of BLOCK_M keys" else BLOCK_N
    STEP: tl.constexpr = 1 if FLAW == "tile's number for its first key" else BLOCK_M if FLAW == "keys in steps of BLOCK_M" else BLOCK_N
    cols = D + BLOCK_D if FLAW == "padded columns not masked" else D
    q = load_tile(q_ptr + b * stride_qb + h * stride_qh, offs_m, offs_d, S_q, cols, stride_qs, stride_qd)
    m = tl.full((BLOCK_M,), 0.0 if FLAW == "m starts at 0" else -1.0e4 if FLAW == "m starts at −1e4" else -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    end = S_k // BLOCK_N * BLOCK_N if FLAW == "ragged tile left out" else S_k
    if FLAW == "tile's number for its first key":
        end = tl.cdiv(S_k, BLOCK_N)
    if FLAW == "loop over S_q":
        end = S_q
    rows = S_k + BLOCK_N if FLAW == "keys not masked in the loads" else S_k
    for start_n in range(0, end, STEP):
        offs_n = start_n + tl.arange(0, KEYS)
        k_t = load_tile(k_ptr, offs_d, offs_n, D, rows, stride_kd, stride_ks)
        if FLAW == "k filled with −inf":
            k_t = tl.where((offs_d[:, None] < D) & (offs_n[None, :] < S_k), k_t, -float("inf"))
        s = dot(q, k_t, tl.zeros((BLOCK_M, KEYS), dtype=tl.float32))
        if FLAW == "scores in half precision":
            s = s.to(q.dtype).to(tl.float32)
        if FLAW != "scale forgotten":
            s = s * scale
        if FLAW != "padded keys score 0":
            hidden = -1.0e4 if FLAW == "padded keys score −1e4" else -float("inf")
            s = tl.where(offs_n[None, :] < (S_q if FLAW == "scores masked by S_q" else S_k), s, hidden)
        p, m, l, alpha = _step(s, m, l, scale, FLAW)
        offs_v = tl.arange(0, BLOCK_N) if FLAW == "v not advanced" else offs_n
        v = load_tile(v_ptr, offs_v, offs_d, rows, D, stride_vs, stride_vd)
        if FLAW == "v filled with −inf":
            v = tl.where(offs_n[:, None] < S_k, v, -float("inf"))
        if FLAW == "acc not rescaled":
            alpha = tl.full((BLOCK_M,), 1.0, tl.float32)
        acc = dot(p.to(v.dtype), v, acc * alpha[:, None])
        if FLAW == "divided at every step":
            acc = acc / l[:, None]
        if FLAW == "acc in half precision":
            acc = acc.to(v.dtype).to(tl.float32)
    if FLAW == "divided by the number of keys":
        acc = acc / BLOCK_N
    elif FLAW != "not divided" and FLAW != "divided at every step":
        acc = acc / l[:, None]
    mask_m = offs_m[:, None] < (row_blocks * BLOCK_M if FLAW == "rows stored past the end" else S_q)
    o_ptrs = o_ptr + b * stride_ob + h * stride_oh + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    tl.store(o_ptrs, acc.to(o_ptr.dtype.element_ty), mask=mask_m & (offs_d[None, :] < D))


@triton.jit
def _causal(
    q_ptr, k_ptr, v_ptr, o_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    offs_m, offs_d = row_block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    q = load_tile(q_ptr + b * stride_qb + h * stride_qh, offs_m, offs_d, S_q, D, stride_qs, stride_qd)
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    diagonal = S_k - S_q  # query i sees keys 0 to i + diagonal
    if FLAW == "mask aligned top-left":
        diagonal = 0
    if FLAW == "mask is strict":
        diagonal = diagonal - 1
    end = tl.minimum((row_block + 1) * BLOCK_M, S_q) + S_k - S_q
    if FLAW == "hidden tiles walked, not masked":
        end = S_k
    if FLAW == "one tile too early":
        end = (row_block * BLOCK_M + S_k - S_q) // BLOCK_N * BLOCK_N
    if FLAW == "tiles counted by blocks of rows":
        end = (row_block + 1) * BLOCK_N + S_k - S_q
    if FLAW == "number of tiles rounded down":
        end = end // BLOCK_N * BLOCK_N
    if FLAW == "loop ends as if S_q were S_k":
        end = (row_block + 1) * BLOCK_M
    if FLAW == "one key too early":
        end = end - 1
    if FLAW == "finite number for minus infinity" or FLAW == "dead rows divided by 0" or FLAW == "no tile skipped":
        end = S_k
    if FLAW == "ragged tile left out":
        end = tl.minimum(end, S_k // BLOCK_N * BLOCK_N)
    for start_n in range(0, tl.minimum(end, S_k), BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        k_t = load_tile(k_ptr, offs_d, offs_n, D, S_k, stride_kd, stride_ks)
        s = scale * dot(q, k_t, tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32))
        seen = offs_n[None, :] <= offs_m[:, None] + diagonal
        if FLAW == "mask by positions in the tile":
            seen = tl.arange(0, BLOCK_N)[None, :] <= tl.arange(0, BLOCK_M)[:, None] + diagonal
        if FLAW == "diagonal tile not masked" or FLAW == "hidden tiles walked, not masked":
            seen = seen | (start_n <= S_k)
        if FLAW == "mask turned round":
            seen = offs_n[None, :] >= offs_m[:, None] + diagonal
        there = offs_n[None, :] < S_k
        if FLAW == "mask after exp" or FLAW == "mask between maximum and sum":
            s = tl.where(there, s, -float("inf"))
        elif FLAW == "hidden keys score 0":
            s = tl.where(there, tl.where(seen, s, 0.0), -float("inf"))
        else:
            s = tl.where(seen & there, s, -1.0e6 if FLAW == "finite number for minus infinity" else -float("inf"))
        if FLAW == "NaN from minus infinity" or FLAW == "mask between maximum and sum":
            m_new = tl.maximum(m, tl.max(s, axis=1))
            p = tl.exp(s - m_new[:, None])
            if FLAW == "mask between maximum and sum":
                p = tl.where(seen, p, 0.0)
            alpha = tl.exp(m - m_new)
            m, l = m_new, alpha * l + tl.sum(p, axis=1)
        else:
            p, m, l, alpha = softmax_step(s, m, l)
        if FLAW == "mask after exp":
            p = tl.where(seen, p, 0.0)
        v = load_tile(v_ptr, offs_n, offs_d, S_k, D, stride_vs, stride_vd)
        acc = dot(p.to(v.dtype), v, acc * alpha[:, None])
    if FLAW != "dead rows divided by 0":
        l = tl.where(l == 0.0, 1.0, l)
    o_ptrs = o_ptr + b * stride_ob + h * stride_oh + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    tl.store(o_ptrs, (acc / l[:, None]).to(o_ptr.dtype.element_ty), mask=(offs_m[:, None] < S_q) & (offs_d[None, :] < D))


# ---------------------------------------------------------------- 5.4


@triton.jit
def _gqa(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, H_q, H_k, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    heads = H_k if FLAW == "programs count key heads" else H_q
    b, h = batch_head // heads, batch_head % heads
    h_k = h // (H_q // H_k)
    if FLAW == "key head modulo":
        h_k = h % H_k
    if FLAW == "key head divided by H_k":
        h_k = h // H_k
    if FLAW == "key head is the query head":
        h_k = h
    h_v = h % H_k if FLAW == "head of v not mapped" else h_k
    k_ptr += b * stride_kb + h_k * stride_kh
    v_ptr += b * stride_vb + h_v * stride_vh
    offs_m, offs_d = row_block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    q = load_tile(q_ptr + b * stride_qb + h * stride_qh, offs_m, offs_d, S_q, D, stride_qs, stride_qd)
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    for start_n in range(0, S_k, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        k_t = load_tile(k_ptr, offs_d, offs_n, D, S_k, stride_kd, stride_ks)
        s = scale * dot(q, k_t, tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32))
        if FLAW != "padded keys score 0":
            s = tl.where(offs_n[None, :] < S_k, s, -1.0e4 if FLAW == "padded keys score −1e4" else -float("inf"))
        if FLAW == "lse of the last tile":
            l_tile = tl.sum(tl.exp(s - tl.max(s, axis=1)[:, None]), axis=1)
            lse_tile = tl.max(s, axis=1) + tl.log(l_tile)
            tl.store(lse_ptr + batch_head * S_q + offs_m, lse_tile, mask=offs_m < S_q)
        p, m, l, alpha = softmax_step(s, m, l)
        v = load_tile(v_ptr, offs_n, offs_d, S_k, D, stride_vs, stride_vd)
        acc = dot(p.to(v.dtype), v, acc * alpha[:, None])
    l_or_one = l if FLAW == "no key gives NaN" else tl.where(l == 0.0, 1.0, l)
    o = acc / l_or_one[:, None]
    o_ptrs = o_ptr + b * stride_ob + h * stride_oh + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=(offs_m[:, None] < S_q) & (offs_d[None, :] < D))
    lse = m + tl.log(l_or_one)
    if FLAW == "lse in base 2":
        lse = lse * 1.4426950408889634
    if FLAW == "lse with log2":
        lse = m + tl.log2(l_or_one)
    if FLAW == "lse without logarithm":
        lse = m + l_or_one
    if FLAW == "lse without m":
        lse = tl.log(l_or_one)
    if FLAW == "m is not scaled in lse":
        lse = m / scale + tl.log(l_or_one)
    if FLAW == "no key gives a finite lse":
        lse = tl.where(l == 0.0, 0.0, lse)
    row = (b * H_q + h) * S_q
    if FLAW == "lse of all heads at head 0":
        row = b * H_q * S_q
    if FLAW == "lse counts key heads":
        row = (b * H_k + h) * S_q
    if FLAW == "lse rows padded to whole blocks":
        row = (b * H_q + h) * row_blocks * BLOCK_M
    if FLAW != "lse of the last tile" and FLAW != "lse never stored":
        tl.store(lse_ptr + row + offs_m, lse, mask=offs_m < (row_blocks * BLOCK_M if FLAW == "lse stored past the end" else S_q))


FLAWS = {
    ("5.1", _load_tile): {
        "row block forgotten": "every program loads its head's first rows",
        "row block not multiplied": "row_block is not multiplied by BLOCK_M",
        "batch forgotten": "the batch is forgotten",
        "batch and head exchanged": "batch and head are exchanged",
        "head runs fastest": "the head runs fastest",
        "taken for contiguous": "x is read as if it were contiguous",
        "columns side by side": "stride_xd is not used",
        "row blocks rounded down": "the number of row blocks is rounded down",
        "tile runs over the head's end": "the tile runs over its head's end",
        "rows masked by the end of all heads": "the tile runs over its head's end",
        "padded columns not masked": "columns past D are loaded",
        "ends filled with ones": "must be 0: load them with other=0.0",
        "store masked too": "the load alone needs a mask",
        "stored by D": "its rows are BLOCK_D apart in out",
        "stored by rows of the sequence": "element (i, j) of program pid's tile lies at",
        "batch and head by the head's stride": "b · H + h is multiplied by stride_xh",
    },
    ("5.2", _flash): {
        "scale forgotten": "scale is forgotten",
        "k not transposed": "k is not transposed",
        "not divided": "acc is not divided",
        "divided by the number of keys": "divided by the number of keys",
        "exp2 without log2 e": "the base is 2",
        "alpha inverted": "NaN from the first tile on",
        "acc not rescaled": "acc is not rescaled",
        "l not rescaled": "l is not rescaled",
        "nothing rescaled": "neither acc nor l is rescaled",
        "divided at every step": "divided by l at every step",
        "v not advanced": "every step reads the first tile of v",
        "no maximum": "exp overflows",
        "m starts at 0": "m starts at −inf, not at 0",
        "maximum over the queries": "a row's maximum is its own",
        "sum over the queries": "the sum runs over the queries",
        "maximum and sum over the queries": "maximum and sum run over the queries",
        "maximum before the scale": "m is the maximum of scale · q kᵀ, not of q kᵀ",
        "m starts at −1e4": "m starts at a finite number",
        "tile's number for its first key": "the second step takes keys 1 to 16",
        "loop over S_q": "the loop runs to S_k, and so does the mask",
        "scores masked by S_q": "the loop runs to S_k, and so does the mask",
        "padded keys score −1e4": "keys past S_k get a finite score",
        "k filled with −inf": "what a load puts in place of columns past D is not 0",
        "v filled with −inf": "what a load puts in place of keys past S_k is not 0",
        "maximum of the last tile alone": "m_new = max(m, the tile's maximum)",
        "padded keys score 0": "count with a score of 0",
        "ragged tile left out": "the ragged last tile of keys is left out",
        "keys not masked in the loads": "keys past S_k are read",
        "row blocks rounded down": "the ragged last rows are never stored",
        "rows stored past the end": "rows past S_q are loaded or stored",
        "padded columns not masked": "columns past D are loaded",
        "scale from BLOCK_D": "the scale comes from BLOCK_D",
        "scale from D": "the scale is computed in the kernel",
        "batch of keys forgotten": "k and v are read from batch 0",
        "batch and head exchanged": "batch and head are exchanged",
        "batch and head by the head's stride": "its head h at h · the head's stride further on",
        "tiles of BLOCK_M keys": "keys 16 to 31 are left out",
        "keys in steps of BLOCK_M": "keys 16 to 31 count twice",
        "row blocks of BLOCK_N": "a tile of q or o has BLOCK_M rows",
        "strides of k taken from q": "k is read by the strides of q",
        "strides of o taken from q": "o is stored by the strides of q",
        "acc in half precision": "acc is kept in fp16",
        "scores in half precision": "the scores overflow",
    },
    ("5.3", _causal): {
        "hidden tiles walked, not masked": "nothing is hidden",
        "mask is strict": "the mask is strict",
        "mask turned round": "the mask is turned round",
        "hidden keys score 0": "hidden keys get a score of 0",
        "mask after exp": "the mask comes after exp",
        "mask between maximum and sum": "hidden keys must not move the maximum",
        "one tile too early": "stops one tile too early",
        "tiles counted by blocks of rows": "before the last row's diagonal",
        "number of tiles rounded down": "the number of tiles is rounded down",
        "loop ends as if S_q were S_k": "add S_k − S_q",
        "one key too early": "the loop stops one key too early",
        "ragged tile left out": "the ragged last tile of keys is left out",
        "no tile skipped": "a tile that no row of the block sees is not skipped",
        "mask by positions in the tile": "the mask is by positions in the tile",
        "mask aligned top-left": "the mask is aligned top-left",
        "NaN from minus infinity": "rows that see no key give NaN",
        "dead rows divided by 0": "rows that see no key give NaN",
        "finite number for minus infinity": "rows that see no key give an average of v",
    },
    ("5.4", _gqa): {
        "lse in base 2": "lse is in base 2",
        "lse with log2": "l's logarithm is in base 2",
        "lse without logarithm": "l is added without its logarithm",
        "lse without m": "m is left out",
        "m is not scaled in lse": "m is not scaled",
        "lse of the last tile": "lse is that of the last tile",
        "key head modulo": "h % H_k is the head read",
        "key head divided by H_k": "h // H_k is the head read",
        "key head is the query head": "a key head past H_k is read",
        "head of v not mapped": "k's head is mapped, but not v's",
        "programs count key heads": "counts query heads",
        "lse counts key heads": "at (b · H_q + h) · S_q + i of lse",
        "lse of all heads at head 0": "at (b · H_q + h) · S_q + i of lse",
        "lse rows padded to whole blocks": "at (b · H_q + h) · S_q + i of lse",
        "lse never stored": "lse is never stored",
        "padded keys score −1e4": "keys past S_k get a finite score",
        "lse stored past the end": "rows past S_q are loaded or stored",
        "padded keys score 0": "count with a score of 0",
        "no key gives NaN": "o must be 0, not 0 / 0",
        "no key gives a finite lse": "the logarithm of an empty sum",
    },
}
# A GPU shows what such a kernel stores, and not that it reads outside its tensor.
ON_GPU = {
    ("5.1", "batch and head exchanged"): "pid itself is taken for the row block",
    ("5.1", "tile runs over the head's end"): "must be 0: load them with other=0.0",
    ("5.1", "padded columns not masked"): "must be 0: load them with other=0.0",
}
WRONG_ANSWERS = (
    WrongAnswer("5.2", _without_jit, "put @triton.jit above it"),
    *(
        WrongAnswer(id, flawed(kernel, flaw), diagnosis, ON_GPU.get((id, flaw)))
        for (id, kernel), flaws in FLAWS.items()
        for flaw, diagnosis in flaws.items()
    ),
)
