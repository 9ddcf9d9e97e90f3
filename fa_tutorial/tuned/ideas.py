"""Chapter 8's ideas that do not help: kernels to show and to measure them with, and nothing else. Full attention, S a
multiple of the tile, contiguous tensors.

One flag separates each idea from the same kernel without it, so a difference in time comes from the idea.
"""

from __future__ import annotations

import math

import torch

from fa_tutorial.hardware import require_triton
from fa_tutorial.tiles import TileConfig

triton = require_triton("Chapter 8's ideas (fa_tutorial.tuned)")
import triton.language as tl  # noqa: E402


@triton.jit
def weights(s, m, l, scale_log2):
    """softmax_step in base 2 (8.3) without a mask. s: [BLOCK_M, BLOCK_N]; m, l: [BLOCK_M]. Returns p, m, l, alpha."""
    m_new = tl.maximum(m, tl.max(s, axis=1))
    p = tl.exp2(s * scale_log2 - (m_new * scale_log2)[:, None])
    alpha = tl.exp2(m * scale_log2 - m_new * scale_log2)
    return p, m_new, alpha * l + tl.sum(p, axis=1), alpha


@triton.jit
def forward_loop(q, k, v, m, l, acc, S, scale_log2, WARP_SPECIALIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """The loop of chapter 5. k, v: descriptors of one head's (S, D)."""
    for start_n in tl.range(0, S, BLOCK_N, warp_specialize=WARP_SPECIALIZE):
        s = tl.dot(q, k.load([start_n, 0]).T)  # [BLOCK_M, BLOCK_N]
        p, m, l, alpha = weights(s, m, l, scale_log2)
        acc = tl.dot(p.to(q.dtype), v.load([start_n, 0]), acc * alpha[:, None])
    return m, l, acc


@triton.jit
def overlapped_loop(q, k, v, m, l, acc, S, scale_log2, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The same loop, shifted: it issues the next block's scores before this block's softmax, and p v one iteration
    later.

    So q kᵀ of one block could run beside the softmax of the block before. p is carried as int16. As fp16
    the compiler would move it to shared memory.
    """
    s = tl.dot(q, k.load([0, 0]).T)  # [BLOCK_M, BLOCK_N]
    p = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int16)
    alpha = tl.full((BLOCK_M,), 1.0, dtype=tl.float32)
    for start_n in tl.range(0, S, BLOCK_N):
        v_before = v.load([tl.maximum(start_n - BLOCK_N, 0), 0])
        acc = tl.dot(p.to(q.dtype, bitcast=True), v_before, acc * alpha[:, None])
        s_next = tl.dot(q, k.load([start_n + BLOCK_N, 0]).T)
        p_now, m, l, alpha = weights(s, m, l, scale_log2)
        p = p_now.to(q.dtype).to(tl.int16, bitcast=True)
        s = s_next
    acc = tl.dot(p.to(q.dtype, bitcast=True), v.load([S - BLOCK_N, 0]), acc * alpha[:, None])
    return m, l, acc


@triton.jit
def idea_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, S, scale_log2, IDEA: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    """o = softmax(scale · q kᵀ) v. q_ptr … o_ptr: (heads, S, D) fp16, contiguous; scale_log2: scale · log2(e).

    Grid: (S / BLOCK_M · heads,).

    IDEA: one of IDEAS. Descriptors are made here: warp specialisation needs that.
    """
    blocks = S // BLOCK_M
    head = (tl.program_id(0) // blocks).to(tl.int64) * S * D
    start_m = tl.program_id(0) % blocks * BLOCK_M
    q = tl.make_tensor_descriptor(q_ptr + head, shape=[S, D], strides=[D, 1], block_shape=[BLOCK_M, D])
    q = q.load([start_m, 0])  # [BLOCK_M, D]
    k = tl.make_tensor_descriptor(k_ptr + head, shape=[S, D], strides=[D, 1], block_shape=[BLOCK_N, D])
    v = tl.make_tensor_descriptor(v_ptr + head, shape=[S, D], strides=[D, 1], block_shape=[BLOCK_N, D])
    o = tl.make_tensor_descriptor(o_ptr + head, shape=[S, D], strides=[D, 1], block_shape=[BLOCK_M, D])
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    if IDEA == "overlap":
        m, l, acc = overlapped_loop(q, k, v, m, l, acc, S, scale_log2, BLOCK_M, BLOCK_N)
    else:
        m, l, acc = forward_loop(q, k, v, m, l, acc, S, scale_log2, IDEA == "warp_specialize", BLOCK_N)
    o.store([start_m, 0], (acc * (1.0 / l)[:, None]).to(q.dtype))


IDEAS = ("none", "warp_specialize", "overlap")


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, idea: str, tile: TileConfig) -> torch.Tensor:
    """o by idea_kernel. q, k, v: (B, H, S, D) fp16, contiguous, S a multiple of the tile's rows and columns."""
    B, H, S, D = q.shape
    # for the descriptors
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=q.device))
    o = torch.empty_like(q)
    idea_kernel[(S // tile.block_m * B * H,)](
        q, k, v, o, S, math.log2(math.e) / math.sqrt(D), IDEA=idea, BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, D=D,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return o
