"""Chapter 5: flash attention's forward in Triton, the kernel for teaching: clear before fast, and right for every input.

Proves that the loop of chapter 4 runs as one kernel with memory linear in S. One program takes one block of query rows of one head,
and keeps m, l and acc on the chip while tiles of k and v stream past.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_tutorial.arguments import check_attention, check_flag
from fa_tutorial.hardware import interpreter_on, on_device_of, require_kernel_device, require_triton, shared_memory_limit
from fa_tutorial.layout import check_block
from fa_tutorial.matmul import INTERPRETED, MIN_DOT, dot

triton = require_triton("Chapter 5 (fa_tutorial.forward)")
import triton.language as tl  # noqa: E402

MAX_D = 256


@triton.jit
def softmax_step(s, m, l):
    """A tile of scores joins the running maximum and sum (4.2): algorithm.softmax_step, line for line.

    s: [BLOCK_M, BLOCK_N] float32, −inf where hidden; m, l: [BLOCK_M] float32. Returns p, m_new, l_new, alpha.
    """
    m_new = tl.maximum(m, tl.max(s, axis=1))  # [BLOCK_M]
    shift = tl.where(m_new == -float("inf"), 0.0, m_new)  # −inf − (−inf) would be NaN
    p = tl.exp(s - shift[:, None])  # [BLOCK_M, BLOCK_N]
    alpha = tl.exp(m - shift)  # [BLOCK_M]
    return p, m_new, alpha * l + tl.sum(p, axis=1), alpha


@triton.jit
def load_tile(ptr, offs_r, offs_c, rows, cols, stride_r, stride_c, MASK_R: tl.constexpr, MASK_C: tl.constexpr):
    """The tile [len(offs_r), len(offs_c)] of a (rows, cols) matrix by its strides; with MASK_R, MASK_C, 0 beyond rows or cols."""
    mask = (offs_r[:, None] >= 0) & (offs_c[None, :] >= 0)
    if MASK_R:
        mask = mask & (offs_r[:, None] < rows)
    if MASK_C:
        mask = mask & (offs_c[None, :] < cols)
    tile = tl.load(ptr + offs_r[:, None] * stride_r + offs_c[None, :] * stride_c, mask=mask, other=0.0)
    if INTERPRETED and tile.dtype == tl.bfloat16:
        return tile.to(tl.float32)  # the interpreter cannot compute with bf16
    else:
        return tile


@triton.jit
def weigh_finite(p, v, acc, clean):
    """acc + p v with every NaN and inf in v left out: in a dot, 0 · NaN would reach rows that may not see its key.

    p: [BLOCK_M, BLOCK_N]; v: [BLOCK_N, BLOCK_D]; acc: [BLOCK_M, BLOCK_D] float32. Returns acc, and clean, which turns 0 where one was left out.
    """
    finite = tl.abs(v.to(tl.float32)) < float("inf")  # False for NaN too
    clean = tl.minimum(clean, tl.min(tl.min(finite.to(tl.int32), axis=1), axis=0))
    return dot(p.to(v.dtype), tl.where(finite, v, 0.0).to(v.dtype), acc), clean


@triton.jit
def add_strays(acc, v_ptr, start, end, offs_m, offs_d, S_q, S_k, D, stride_vs, stride_vd):
    """acc with what weigh_finite left out of keys start … end − 1, added to the rows that see it: inf times any weight is inf.

    Rare, so it may be slow: one key after another, and none of it lives in registers while the loop over tiles runs.
    """
    v_ptrs = v_ptr + (tl.zeros((), dtype=tl.int64) + start) * stride_vs + offs_d * stride_vd  # [BLOCK_D]
    for n in tl.range(start, end, num_stages=1):
        v = tl.load(v_ptrs, mask=offs_d < D, other=0.0).to(tl.float32)  # [BLOCK_D]
        stray = (tl.abs(v) < float("inf")) == 0  # [BLOCK_D]
        sees = n <= offs_m + (S_k - S_q)  # [BLOCK_M]
        acc += tl.where(sees[:, None] & stray[None, :], v[None, :], 0.0)  # [BLOCK_M, BLOCK_D]
        v_ptrs += stride_vs
    return acc


@triton.jit
def attend_block(q, k_ptr, v_ptr, m, l, acc, clean, start_n, offs_m, offs_d, S_q, S_k, D, scale,
                 stride_ks, stride_kd, stride_vs, stride_vd,
                 IS_CAUSAL: tl.constexpr, MASK: tl.constexpr, P_SCALE: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """One step of the loop: the scores of a tile (4.1), softmax_step (4.2), acc (4.3).

    q: [BLOCK_M, BLOCK_D]; k_ptr, v_ptr: one head's (S_k, D). MASK: the tile is ragged, or crossed by the diagonal.
    clean: 0 once a causal tile with a mask held a NaN or inf among its values, which is then still to be added. Returns m, l, acc, clean.
    """
    offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)  # [BLOCK_N]
    # k is read as its transpose: the rows of this tile run along D, so the strides change places.
    k_t = load_tile(k_ptr, offs_d, offs_n, D, S_k, stride_kd, stride_ks, True, MASK)  # [BLOCK_D, BLOCK_N]
    s = scale * dot(q, k_t, tl.zeros((q.shape[0], BLOCK_N), dtype=tl.float32))  # [BLOCK_M, BLOCK_N]
    if MASK:
        left = S_k - start_n  # keys from this tile on; the mask is int32, which takes half the registers of int64
        if IS_CAUSAL:
            last_seen = (offs_m - S_q).to(tl.int32) + left  # [BLOCK_M], within this tile
            s = tl.where(tl.arange(0, BLOCK_N)[None, :] <= last_seen[:, None], s, -float("inf"))
        s = tl.where(tl.arange(0, BLOCK_N)[None, :] < left, s, -float("inf"))
    p, m, l, alpha = softmax_step(s, m, l)
    v = load_tile(v_ptr, offs_n, offs_d, S_k, D, stride_vs, stride_vd, MASK, True)  # [BLOCK_N, BLOCK_D]
    acc = acc * alpha[:, None]  # [BLOCK_M, BLOCK_D]
    if MASK and IS_CAUSAL:
        acc, clean = weigh_finite(p * P_SCALE, v, acc, clean)
    else:
        acc = dot((p * P_SCALE).to(v.dtype), v, acc)
    return m, l, acc, clean


@triton.jit
def flash_forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, H_q, H_k, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    IS_CAUSAL: tl.constexpr, P_SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """o = softmax(scale · q kᵀ) v and its lse, (4.1) to (4.6), in FA2's loop order (FA2, algorithm 1).

    B batch, H_q and H_k heads (H_q a multiple of H_k), S_q and S_k lengths, D head dimension, BLOCK_D its next power of two.
    q_ptr, o_ptr: (B, H_q, S_q, D); k_ptr, v_ptr: (B, H_k, S_k, D); each with its four strides. lse_ptr: (B, H_q, S_q) float32, contiguous.
    One program computes BLOCK_M rows of one head. m, l [BLOCK_M] and acc [BLOCK_M, BLOCK_D] are float32 and stay on the chip.
    Causal is bottom-right aligned; a row that sees no key gets o = 0 and lse = −inf.
    P_SCALE: a power of two that keeps acc, a sum of up to S_k values before it is divided, inside float32. Grid: (ceil(S_q / BLOCK_M) · B · H_q,).
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block = tl.program_id(0) % row_blocks
    batch_head = tl.program_id(0) // row_blocks
    b = (batch_head // H_q).to(tl.int64)
    h = (batch_head % H_q).to(tl.int64)
    h_k = h // (H_q // H_k)  # grouped-query attention: a key head serves H_q / H_k query heads
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h_k * stride_kh
    v_ptr += b * stride_vb + h_k * stride_vh
    o_ptr += b * stride_ob + h * stride_oh

    offs_m = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)  # [BLOCK_D]
    q = load_tile(q_ptr, offs_m, offs_d, S_q, D, stride_qs, stride_qd, True, True)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    clean = 1

    full, end = S_k // BLOCK_N, tl.cdiv(S_k, BLOCK_N)
    if IS_CAUSAL:  # (4.6)
        seen_by_first = tl.maximum(row_block * BLOCK_M + 1 + S_k - S_q, 0)
        seen_by_last = tl.maximum(tl.minimum((row_block + 1) * BLOCK_M, S_q) + S_k - S_q, 0)
        full, end = seen_by_first // BLOCK_N, tl.cdiv(seen_by_last, BLOCK_N)
    for start_n in range(0, full * BLOCK_N, BLOCK_N):
        m, l, acc, clean = attend_block(q, k_ptr, v_ptr, m, l, acc, clean, start_n, offs_m, offs_d, S_q, S_k, D, scale,
                                        stride_ks, stride_kd, stride_vs, stride_vd, IS_CAUSAL, False, P_SCALE, BLOCK_N)  # fmt: skip
    # No more than a few tiles: buffers that fetch ahead would cost registers and save nothing.
    for start_n in tl.range(full * BLOCK_N, end * BLOCK_N, BLOCK_N, num_stages=1):
        m, l, acc, clean = attend_block(q, k_ptr, v_ptr, m, l, acc, clean, start_n, offs_m, offs_d, S_q, S_k, D, scale,
                                        stride_ks, stride_kd, stride_vs, stride_vd, IS_CAUSAL, True, P_SCALE, BLOCK_N)  # fmt: skip
    if clean == 0:
        acc = add_strays(acc, v_ptr, full * BLOCK_N, tl.minimum(end * BLOCK_N, S_k), offs_m, offs_d, S_q, S_k, D, stride_vs, stride_vd)

    l_or_one = tl.where(l == 0.0, 1.0, l)
    o = acc / (l_or_one * P_SCALE)[:, None]  # (4.4)
    lse = tl.where(l == 0.0, -float("inf"), m + tl.log(l_or_one))  # (4.5)
    mask_m = offs_m < S_q
    o_ptrs = o_ptr + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=mask_m[:, None] & (offs_d[None, :] < D))
    tl.store(lse_ptr + (b * H_q + h) * S_q + offs_m, lse, mask=mask_m)


@dataclass(frozen=True)
class TileConfig:
    """A tile and how a GPU runs it."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int

    def __post_init__(self):
        check_block("block_m", self.block_m, MIN_DOT)
        check_block("block_n", self.block_n, MIN_DOT)

    def shared_bytes(self, block_d: int, itemsize: int) -> int:
        """Bytes of shared memory: a tile of q, and num_stages tiles each of k and v. A GPU that keeps q in registers needs less."""
        return block_d * itemsize * (self.block_m + 2 * self.num_stages * self.block_n)


# BLOCK_D to its tile, for cards with at least so many bytes of shared memory a block; ptxas compiles each without spills, or nearly
# (fa_tutorial.compile_report). 227 KB: Hopper, B200; of the tiles that fit, the fastest on an H200. 99 KB: Ampere, Ada, RTX 50xx.
CONFIGS = {
    232_448: {64: TileConfig(64, 64, 4, 3), 128: TileConfig(64, 64, 4, 3), 256: TileConfig(64, 32, 4, 2)},
    101_376: {64: TileConfig(128, 64, 8, 3), 128: TileConfig(64, 64, 8, 3), 256: TileConfig(32, 64, 8, 2)},
}
# For fp32, which in IEEE precision has no tensor cores, and for cards with 64 KB (Turing), where Triton uses none.
SMALL_CONFIGS = {64: TileConfig(32, 32, 8, 1), 128: TileConfig(16, 32, 8, 1), 256: TileConfig(16, 16, 16, 1)}
INTERPRETER_CONFIG = TileConfig(64, 32, 4, 1)


def padded_d(D: int) -> int:
    """BLOCK_D: D rounded up to a power of two of at least 16, as tl.arange and tl.dot ask."""
    return max(1 << (D - 1).bit_length(), MIN_DOT)  # triton.next_power_of_2 takes 40 times as long, at every call


def choose_config(D: int, dtype: torch.dtype, shared_memory: int | None) -> TileConfig:
    """The tile for a card with `shared_memory` bytes a block; None stands for the interpreter."""
    if shared_memory is None:
        return INTERPRETER_CONFIG
    configs = next((configs for least, configs in CONFIGS.items() if least <= shared_memory), SMALL_CONFIGS)
    return (SMALL_CONFIGS if dtype == torch.float32 else configs)[max(padded_d(D), 64)]


def p_scale(dtype: torch.dtype) -> float:
    """What p is multiplied by before p v: 2⁻²⁰ where v may be as large as float32 goes, 1 for fp16, whose p would underflow."""
    return 1.0 if dtype == torch.float16 else 2.0**-20


def flash_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    config: TileConfig | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Flash attention's forward by flash_forward_kernel. Carries no gradient; attention.flash_attention is the public door.

    q: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D), any strides, one dtype of fp16, bf16, fp32; H_q a multiple of H_k; D ≤ 256.
    scale: 1/√D unless given. config: None takes choose_config's. Returns o like q, contiguous, and lse (B, H_q, S_q) float32.
    TypeError and ValueError as check_attention; RuntimeError for CPU tensors where the interpreter is off.
    """
    scale, is_causal = check_attention(q, k, v, scale, max_d=MAX_D), check_flag("is_causal", is_causal)
    require_kernel_device(q, "q")
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((B, H_q, S_q), dtype=torch.float32, device=q.device)
    if not lse.numel():
        return o, lse
    with on_device_of(q):
        if config is None:
            config = choose_config(D, q.dtype, None if interpreter_on() else shared_memory_limit())
        flash_forward_kernel[(triton.cdiv(S_q, config.block_m) * B * H_q,)](
            q, k, v, o, lse, H_q, H_k, S_q, S_k, D, scale, *q.stride(), *k.stride(), *v.stride(), *o.stride(),
            IS_CAUSAL=is_causal, P_SCALE=p_scale(q.dtype), BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_D=padded_d(D),
            num_warps=config.num_warps, num_stages=config.num_stages,
        )  # fmt: skip
    return o, lse
