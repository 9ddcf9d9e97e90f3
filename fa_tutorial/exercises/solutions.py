"""Solutions of the exercises of chapters 5, 8 and 9: the finished kernels of fa_tutorial.forward, in the steps that lead to them,
and the plans behind the Hopper kernel: the ring's phases, its two roles, the order of work, the registers.

B batch, H heads (H_q of queries, H_k of keys), S_q and S_k lengths, D head dimension, BLOCK_D its padding to a power of two; q, k, v, o and
any x lie by four strides each. s scaled scores, m running maximum, l running sum, p = exp(s − m), alpha = exp(m_old − m_new), acc the
unnormalised output. offs_m, offs_n, offs_d count rows of q, rows of k, and columns. seen: True where a query may see a key.
"""

from __future__ import annotations

import torch

from fa_tutorial import backward
from fa_tutorial.algorithm import all_tiles, causal_tiles
from fa_tutorial.barriers import arrive, load, use, wait
from fa_tutorial.exercises.pieces import load_tile, tl, triton
from fa_tutorial.forward import softmax_step
from fa_tutorial.ledger import attention_flops, backward_flops
from fa_tutorial.tiles import dot, heads, padded_d


@triton.jit
def load_tile_kernel(x_ptr, out_ptr, H, S, D, stride_xb, stride_xh, stride_xs, stride_xd, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """out[pid] = the (BLOCK_M, D) tile of program pid, 0 beyond S and D. x_ptr: (B, H, S, D); out_ptr: (programs, BLOCK_M, BLOCK_D)."""
    pid = tl.program_id(0)
    row_blocks = tl.cdiv(S, BLOCK_M)
    row_block, batch_head = pid % row_blocks, pid // row_blocks
    b, h = (batch_head // H).to(tl.int64), (batch_head % H).to(tl.int64)
    offs_m = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D)  # [BLOCK_D]
    x_ptrs = x_ptr + b * stride_xb + h * stride_xh + offs_m[:, None] * stride_xs + offs_d[None, :].to(tl.int64) * stride_xd
    x = tl.load(x_ptrs, mask=(offs_m[:, None] < S) & (offs_d[None, :] < D), other=0.0)  # [BLOCK_M, BLOCK_D]
    rows = pid.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    tl.store(out_ptr + rows[:, None] * BLOCK_D + offs_d[None, :], x)


@triton.jit
def flash_forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """o = softmax(scale · q kᵀ) v, (4.1) to (4.4). q_ptr, o_ptr: (B, H, S_q, D); k_ptr, v_ptr: (B, H, S_k, D)."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = (batch_head // H).to(tl.int64), (batch_head % H).to(tl.int64)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    o_ptr += b * stride_ob + h * stride_oh
    offs_m = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)  # [BLOCK_D]
    q = load_tile(q_ptr, offs_m, offs_d, S_q, D, stride_qs, stride_qd)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    for start_n in range(0, S_k, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)  # [BLOCK_N]
        k_t = load_tile(k_ptr, offs_d, offs_n, D, S_k, stride_kd, stride_ks)  # [BLOCK_D, BLOCK_N]
        s = scale * dot(q, k_t, tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32))  # [BLOCK_M, BLOCK_N]
        s = tl.where(offs_n[None, :] < S_k, s, -float("inf"))  # a key that is not there must not count as a score of 0
        p, m, l, alpha = softmax_step(s, m, l)
        v = load_tile(v_ptr, offs_n, offs_d, S_k, D, stride_vs, stride_vd)  # [BLOCK_N, BLOCK_D]
        acc = dot(p.to(v.dtype), v, acc * alpha[:, None])  # [BLOCK_M, BLOCK_D]

    o_ptrs = o_ptr + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    tl.store(o_ptrs, (acc / l[:, None]).to(o_ptr.dtype.element_ty), mask=(offs_m[:, None] < S_q) & (offs_d[None, :] < D))


@triton.jit
def flash_forward_causal_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Query i sees keys 0 … i + S_k − S_q, (4.6); one that sees none gets o = 0. Shapes as in flash_forward_kernel."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = (batch_head // H).to(tl.int64), (batch_head % H).to(tl.int64)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    o_ptr += b * stride_ob + h * stride_oh
    offs_m = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)  # [BLOCK_D]
    q = load_tile(q_ptr, offs_m, offs_d, S_q, D, stride_qs, stride_qd)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    seen_by_last = tl.minimum((row_block + 1) * BLOCK_M, S_q) + S_k - S_q  # keys that the block's last row sees; none if negative
    for start_n in range(0, seen_by_last, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)  # [BLOCK_N]
        k_t = load_tile(k_ptr, offs_d, offs_n, D, S_k, stride_kd, stride_ks)  # [BLOCK_D, BLOCK_N]
        s = scale * dot(q, k_t, tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32))  # [BLOCK_M, BLOCK_N]
        seen = (offs_n[None, :] < S_k) & (offs_n[None, :] <= offs_m[:, None] + (S_k - S_q))
        s = tl.where(seen, s, -float("inf"))
        p, m, l, alpha = softmax_step(s, m, l)
        v = load_tile(v_ptr, offs_n, offs_d, S_k, D, stride_vs, stride_vd)  # [BLOCK_N, BLOCK_D]
        acc = dot(p.to(v.dtype), v, acc * alpha[:, None])  # [BLOCK_M, BLOCK_D]

    o = acc / tl.where(l == 0.0, 1.0, l)[:, None]  # a row that sees nothing has acc = 0 and l = 0
    o_ptrs = o_ptr + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=(offs_m[:, None] < S_q) & (offs_d[None, :] < D))


@triton.jit
def flash_forward_gqa_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, H_q, H_k, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """o and lse (4.5) with H_q query heads on H_k key heads. q_ptr, o_ptr: (B, H_q, S_q, D); k_ptr, v_ptr: (B, H_k, S_k, D).

    lse_ptr: (B, H_q, S_q) float32, contiguous. S_k = 0 gives o = 0 and lse = −inf.
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = (batch_head // H_q).to(tl.int64), (batch_head % H_q).to(tl.int64)
    h_k = h // (H_q // H_k)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h_k * stride_kh
    v_ptr += b * stride_vb + h_k * stride_vh
    o_ptr += b * stride_ob + h * stride_oh
    lse_ptr += (b * H_q + h) * S_q
    offs_m = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)  # [BLOCK_D]
    q = load_tile(q_ptr, offs_m, offs_d, S_q, D, stride_qs, stride_qd)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    for start_n in range(0, S_k, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)  # [BLOCK_N]
        k_t = load_tile(k_ptr, offs_d, offs_n, D, S_k, stride_kd, stride_ks)  # [BLOCK_D, BLOCK_N]
        s = scale * dot(q, k_t, tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32))  # [BLOCK_M, BLOCK_N]
        s = tl.where(offs_n[None, :] < S_k, s, -float("inf"))
        p, m, l, alpha = softmax_step(s, m, l)
        v = load_tile(v_ptr, offs_n, offs_d, S_k, D, stride_vs, stride_vd)  # [BLOCK_N, BLOCK_D]
        acc = dot(p.to(v.dtype), v, acc * alpha[:, None])  # [BLOCK_M, BLOCK_D]

    l_or_one = tl.where(l == 0.0, 1.0, l)
    o_ptrs = o_ptr + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    tl.store(o_ptrs, (acc / l_or_one[:, None]).to(o_ptr.dtype.element_ty), mask=(offs_m[:, None] < S_q) & (offs_d[None, :] < D))
    tl.store(lse_ptr + offs_m, m + tl.log(l_or_one), mask=offs_m < S_q)  # where l is 0, m is −inf, and so is lse


def tflops(B, H, S_q, S_k, D, is_causal, mode, seconds):
    """10^12 FLOPs a second (8.1) of a call of `mode` "fwd", "bwd" or "fwd_bwd" that takes `seconds`."""
    forward, back = attention_flops(B, H, S_q, S_k, D, is_causal), backward_flops(B, H, S_q, S_k, D, is_causal)
    flops = {"fwd": forward, "bwd": back, "fwd_bwd": forward + back}[mode]
    return flops / seconds / 1e12


def fits(config, D, itemsize, shared_memory_limit):
    """True where a block of the forward kernel with this TileConfig asks for no more than shared_memory_limit bytes (8.2)."""
    rows = config.block_m + 2 * config.num_stages * config.block_n  # q; num_stages tiles each of k and v
    return rows * padded_d(D) * itemsize <= shared_memory_limit


@triton.jit
def flash_forward_descriptor_kernel(
    q_desc, k_desc, v_desc, o_desc, H, S_q, S_k, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr
):
    """o = softmax(scale · q kᵀ) v. q_desc, o_desc: (B, H, S_q, D), tiles [1, 1, BLOCK_M, D]; k_desc, v_desc: (B, H, S_k, D), [1, 1, BLOCK_N, D]."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H
    start_m = row_block * BLOCK_M
    q = q_desc.load([b, h, start_m, 0]).reshape([BLOCK_M, D])  # 0 from row S_q on, whatever lies there in memory
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)

    for start_n in range(0, S_k, BLOCK_N):
        k = k_desc.load([b, h, start_n, 0]).reshape([BLOCK_N, D])
        s = scale * dot(q, tl.trans(k), tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32))  # [BLOCK_M, BLOCK_N]
        offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        s = tl.where(offs_n[None, :] < S_k, s, -float("inf"))  # a key of zeros has a score of 0, which would count
        p, m, l, alpha = softmax_step(s, m, l)
        v = v_desc.load([b, h, start_n, 0]).reshape([BLOCK_N, D])
        acc = dot(p.to(v.dtype), v, acc * alpha[:, None])  # [BLOCK_M, D]

    o = (acc / l[:, None]).to(o_desc.dtype)  # [BLOCK_M, D]
    o_desc.store([b, h, start_m, 0], o.reshape([1, 1, BLOCK_M, D]))  # rows from S_q on are left out


def backward_once(q, k, v, o, do, lse, is_causal, scale):
    """(dq, dk, dv) by the three kernels of fa_tutorial.backward. delta is summed once, and read by the other two."""
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    if q.numel() == 0 or k.numel() == 0:
        return dq, dk, dv
    block = 32
    row_grid, key_grid = (triton.cdiv(S_q, block) * B * H_q,), (triton.cdiv(S_k, block) * B * H_k,)
    tile = {"BLOCK_M": block, "BLOCK_D": padded_d(D)}

    delta = torch.empty((B, H_q, S_q), dtype=torch.float32, device=q.device)
    backward.delta_kernel[row_grid](heads(o), heads(do), None, delta, H_q, S_q, D, **tile)
    inputs = heads(q), heads(k), heads(v), heads(do)
    tile |= {"BLOCK_N": block, "IS_CAUSAL": is_causal}
    backward.dkdv_kernel[key_grid](*inputs, heads(dk), heads(dv), lse, delta, H_k, S_q, S_k, D, scale, GROUP=H_q // H_k, **tile)
    backward.dq_kernel[row_grid](*inputs, heads(dq), lse, delta, H_q, H_k, S_q, S_k, D, scale, **tile)
    return dq, dk, dv


def ring_phase(i, stages):
    """(stage, full_parity, empty_parity) of the i-th tile in a ring of `stages`: what its consumer and its producer wait for."""
    round_of_ring, stage = divmod(i, stages)
    full_parity = round_of_ring % 2  # each round completes one phase of full[stage], and one of empty[stage]
    return stage, full_parity, 1 - full_parity  # the producer needs the round before; before round 0 parity 1 passes at once


def ring_roles(tiles, stages, full, empty):
    """(producer, consumer): generator functions without arguments, of the actions of fa_tutorial.barriers."""

    def producer():
        for i in range(tiles):
            stage, _, empty_parity = ring_phase(i, stages)
            yield wait(empty[stage], empty_parity)
            yield load(i, stage)
            yield arrive(full[stage])

    def consumer():
        for i in range(tiles):
            stage, full_parity, _ = ring_phase(i, stages)
            yield wait(full[stage], full_parity)
            yield use(i, stage)
            yield arrive(empty[stage])

    return producer, consumer


def longest_first(S_q, S_k, block_m, block_n, heads, is_causal):
    """Every (head, row_block, key_blocks), those with the most key blocks first."""
    work = []
    for row_block in reversed(range(-(-S_q // block_m))):  # a later row block never sees fewer keys (4.6)
        _, key_blocks = causal_tiles(row_block, block_m, block_n, S_q, S_k) if is_causal else all_tiles(block_n, S_k)
        work += [(head, row_block, key_blocks) for head in range(heads)]
    return work


def register_budget(consumers, producer_warps, producer_registers):
    """The most registers that each thread of `consumers` warpgroups may have, beside a producer with `producer_registers`."""
    producer_groups = -(-producer_warps // 4)  # setmaxnreg is for whole warpgroups of 4 warps, 128 threads
    groups = consumers + producer_groups
    at_launch = min(65_536 // (128 * groups) // 8 * 8, 256)  # the same for every thread
    left = at_launch * groups - producer_registers * producer_groups  # of the block's own registers, for one thread of each consumer
    return min(left // consumers // 8 * 8, 256)
