"""Chapter 7: flash attention's backward in Triton, three kernels for teaching: clear before fast, and right for every input.

Proves that the two loops of chapter 6 run as kernels with memory linear in S. delta_kernel sums do ∘ o by rows; a program of dkdv_kernel keeps
one block of keys and walks over the queries; a program of dq_kernel keeps one block of queries and walks over the keys. Every gradient has
one owner that sums it in one order, so two runs give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_tutorial.arguments import check_as, check_attention, check_flag
from fa_tutorial.forward import MAX_D, TileConfig, load_tile, p_scale, padded_d
from fa_tutorial.hardware import interpreter_on, on_device_of, require_kernel_device, require_triton, shared_memory_limit
from fa_tutorial.matmul import INTERPRETED, dot

triton = require_triton("Chapter 7 (fa_tutorial.backward)")
import triton.language as tl  # noqa: E402

DELTA_ELEMENTS = 4096  # of a tile of o and do in delta_kernel


@triton.jit
def row_delta_tile(
    o_ptr, do_ptr, dlse_ptr, b, h, offs_m, S_q, D,
    stride_ob, stride_oh, stride_os, stride_od, stride_dob, stride_doh, stride_dos, stride_dod, stride_dlseb, stride_dlseh, stride_dlses,
    HAS_DLSE: tl.constexpr, P_SCALE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """[BLOCK_M] of delta = P_SCALE · (rowsum(do ∘ o) − dlse), (6.6) and (6.15), for the rows offs_m of one head; 0 beyond S_q.

    Arguments as in delta_kernel; b, h, offs_m: int64.
    """
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)  # [BLOCK_D]
    o = load_tile(o_ptr + b * stride_ob + h * stride_oh, offs_m, offs_d, S_q, D, stride_os, stride_od, True, True)  # [BLOCK_M, BLOCK_D]
    do = load_tile(do_ptr + b * stride_dob + h * stride_doh, offs_m, offs_d, S_q, D, stride_dos, stride_dod, True, True)
    delta = tl.sum(o.to(tl.float32) * P_SCALE * do.to(tl.float32), axis=1)  # [BLOCK_M]
    if HAS_DLSE:
        dlse = tl.load(dlse_ptr + b * stride_dlseb + h * stride_dlseh + offs_m * stride_dlses, mask=offs_m < S_q, other=0.0)
        delta -= P_SCALE * dlse
    return delta


@triton.jit
def delta_kernel(
    o_ptr, do_ptr, dlse_ptr, delta_ptr, H_q, S_q, D,
    stride_ob, stride_oh, stride_os, stride_od, stride_dob, stride_doh, stride_dos, stride_dod, stride_dlseb, stride_dlseh, stride_dlses,
    HAS_DLSE: tl.constexpr, P_SCALE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """delta = P_SCALE · (rowsum(do ∘ o) − dlse), (6.6) and (6.15) (FA2, algorithm 2, line 4).

    B batch, H_q heads, S_q length, D head dimension, BLOCK_D its next power of two. o_ptr, do_ptr: (B, H_q, S_q, D); dlse_ptr: (B, H_q, S_q),
    read only with HAS_DLSE; each by its strides. delta_ptr: (B, H_q, S_q) float32, contiguous.
    One program sums BLOCK_M rows of one head. Grid: (ceil(S_q / BLOCK_M) · B · H_q,).
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    batch_head = tl.program_id(0) // row_blocks
    b, h = (batch_head // H_q).to(tl.int64), (batch_head % H_q).to(tl.int64)
    offs_m = (tl.program_id(0) % row_blocks).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    delta = row_delta_tile(o_ptr, do_ptr, dlse_ptr, b, h, offs_m, S_q, D,
                           stride_ob, stride_oh, stride_os, stride_od, stride_dob, stride_doh, stride_dos, stride_dod,
                           stride_dlseb, stride_dlseh, stride_dlses, HAS_DLSE, P_SCALE, BLOCK_D)  # fmt: skip
    tl.store(delta_ptr + (b * H_q + h) * S_q + offs_m, delta, mask=offs_m < S_q)


@triton.jit
def load_lse(lse_ptr, offs_m, S_q):
    """[BLOCK_M] of lse, +inf for rows that see nothing or are not there (7.3): exp(s − lse) is 0 for them, whatever s is."""
    lse = tl.load(lse_ptr + offs_m, mask=offs_m < S_q, other=float("inf"))
    return tl.where(lse == -float("inf"), float("inf"), lse)


@triton.jit
def p_and_ds(s, dp, lse, delta, key, last_seen, MASK: tl.constexpr):
    """A tile's p = exp(s − lse) (6.7) and ds = p ∘ (dp − delta) (6.10): algorithm.p_and_ds, for a tile that lies either way.

    s, dp: [BLOCK_M, BLOCK_N] or its transpose. lse, delta: along the queries, with 1 for the other axis. With MASK, key: the position of
    each key in the tile, and last_seen: that of the last key each query sees; beyond it both are 0, even where dp is inf or NaN.
    """
    p = tl.exp(s - lse)
    ds = p * (dp - delta)
    if MASK:
        p = tl.where(key <= last_seen, p, 0.0)
        ds = tl.where(key <= last_seen, ds, 0.0)
    return p, ds


@triton.jit
def is_finite(x):
    return tl.abs(x.to(tl.float32)) < float("inf")  # False for NaN too


@triton.jit
def finite_or_0(x):
    """x with 0 for NaN and inf: what a dot may meet where its other operand is 0 because of the mask."""
    return tl.where(is_finite(x), x, 0.0).to(x.dtype)


@triton.jit
def add_product(acc, a, b):
    """acc + a @ b. acc: [M, N] float32, a: [M, K], b: [K, N].

    fp32 has no tensor cores: one thread adds up an element's whole sum, over all queries of all heads of a group, and term by term it would lose
    more digits than plain attention does. So each block is summed by itself first. As a difference, for Triton makes acc + dot one dot again.
    """
    if a.dtype == tl.float32 and not INTERPRETED:
        return acc - dot(-a, b, tl.zeros(acc.shape, dtype=tl.float32))
    else:
        return dot(a, b, acc)


@triton.jit
def dkdv_step(k, v, dk, dv, q_ptr, do_ptr, lse_ptr, delta_ptr, start_m, start_n, offs_d, S_q, S_k, D, scale,
              stride_qs, stride_qd, stride_dos, stride_dod, MASK: tl.constexpr, BLOCK_M: tl.constexpr):  # fmt: skip
    """One block of queries adds to dk and dv, all tiles as transposes, keys by queries (7.2): no computed tile is ever transposed.

    k, v: [BLOCK_N, BLOCK_D], v times P_SCALE; dk, dv: [BLOCK_N, BLOCK_D] float32, dk without scale. q_ptr, do_ptr: one head's (S_q, D).
    MASK: the tile is crossed by the causal diagonal. Returns dk, dv.
    """
    offs_m = start_m + tl.arange(0, BLOCK_M).to(tl.int64)  # [BLOCK_M]
    lse = load_lse(lse_ptr, offs_m, S_q)  # [BLOCK_M]
    delta = tl.load(delta_ptr + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
    rows = offs_m
    if MASK:  # a query with NaN has NaN for delta, or sees nothing: it is left out, for 0 · NaN would reach keys that it may not see
        rows = tl.where(is_finite(delta) & is_finite(lse), offs_m, S_q)
    q = load_tile(q_ptr, rows, offs_d, S_q, D, stride_qs, stride_qd, True, True)  # [BLOCK_M, BLOCK_D]
    do = load_tile(do_ptr, offs_m, offs_d, S_q, D, stride_dos, stride_dod, True, True)  # [BLOCK_M, BLOCK_D]
    s_t = scale * dot(k, tl.trans(q), tl.zeros((k.shape[0], BLOCK_M), dtype=tl.float32))  # [BLOCK_N, BLOCK_M]
    dp_t = dot(v, tl.trans(do), tl.zeros((k.shape[0], BLOCK_M), dtype=tl.float32))  # [BLOCK_N, BLOCK_M]
    key = tl.arange(0, k.shape[0])  # [BLOCK_N], within this tile
    last_seen = (offs_m - S_q).to(tl.int32) + (S_k - start_n)  # [BLOCK_M], within this tile
    p_t, ds_t = p_and_ds(s_t, dp_t, lse[None, :], delta[None, :], key[:, None], last_seen[None, :], MASK)
    dv = add_product(dv, p_t.to(do.dtype), do)  # (6.8)
    dk = add_product(dk, ds_t.to(q.dtype), q)  # (6.12)
    return dk, dv


@triton.jit
def dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, H_q, H_k, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_dob, stride_doh, stride_dos, stride_dod,
    IS_CAUSAL: tl.constexpr, P_SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dv = pᵀ do (6.8) and dk = scale · dsᵀ q (6.12), the first loop of (6.14), after FA2's algorithm 2 without its dq.

    B batch, H_q and H_k heads (H_q a multiple of H_k), S_q and S_k lengths, D head dimension, BLOCK_D its next power of two.
    q_ptr, do_ptr: (B, H_q, S_q, D); k_ptr, v_ptr: (B, H_k, S_k, D); each by its four strides. lse_ptr, delta_ptr: (B, H_q, S_q) float32,
    contiguous, delta from delta_kernel. dk_ptr, dv_ptr: (B, H_k, S_k, D), contiguous.
    One program computes BLOCK_N rows of dk and dv of one key head, summed over its query heads (7.4). P_SCALE: as in flash_forward_kernel, here
    for dp (7.5). Grid: (ceil(S_k / BLOCK_N) · B · H_k,).
    """
    key_blocks = tl.cdiv(S_k, BLOCK_N)
    key_block = tl.program_id(0) % key_blocks
    batch_head = tl.program_id(0) // key_blocks
    b, h_k = (batch_head // H_k).to(tl.int64), (batch_head % H_k).to(tl.int64)
    k_ptr += b * stride_kb + h_k * stride_kh
    v_ptr += b * stride_vb + h_k * stride_vh

    start_n = key_block * BLOCK_N
    offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)  # [BLOCK_N]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)  # [BLOCK_D]
    k = load_tile(k_ptr, offs_n, offs_d, S_k, D, stride_ks, stride_kd, True, True)  # [BLOCK_N, BLOCK_D]
    v = load_tile(v_ptr, offs_n, offs_d, S_k, D, stride_vs, stride_vd, True, True)  # [BLOCK_N, BLOCK_D]
    v = (v.to(tl.float32) * P_SCALE).to(v.dtype)  # exact: a power of two (in bf16 itself Triton 3.6's product is not)
    dk = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)

    start, full = 0, 0  # blocks of queries: start … full − 1 with a mask, from full on without
    if IS_CAUSAL:  # (6.13)
        start = tl.maximum(start_n + S_q - S_k, 0) // BLOCK_M
        full = tl.cdiv(tl.maximum(tl.minimum(start_n + BLOCK_N, S_k) - 1 + S_q - S_k, 0), BLOCK_M)
    # disable_licm: addresses hoisted out of these loops would fill the registers.
    for member in tl.range(0, H_q // H_k, num_stages=1, disable_licm=True):
        h = h_k * (H_q // H_k) + member  # (7.4)
        q_head, do_head = q_ptr + b * stride_qb + h * stride_qh, do_ptr + b * stride_dob + h * stride_doh
        lse_head, delta_head = lse_ptr + (b * H_q + h) * S_q, delta_ptr + (b * H_q + h) * S_q
        for start_m in tl.range(full * BLOCK_M, S_q, BLOCK_M, disable_licm=True):
            dk, dv = dkdv_step(k, v, dk, dv, q_head, do_head, lse_head, delta_head, start_m, start_n, offs_d, S_q, S_k, D, scale,
                               stride_qs, stride_qd, stride_dos, stride_dod, False, BLOCK_M)  # fmt: skip
        if IS_CAUSAL:  # after the loop without a mask: the other order makes ptxas serialise wgmma in larger tiles
            for start_m in tl.range(start * BLOCK_M, tl.minimum(full * BLOCK_M, S_q), BLOCK_M, num_stages=1, disable_licm=True):
                dk, dv = dkdv_step(k, v, dk, dv, q_head, do_head, lse_head, delta_head, start_m, start_n, offs_d, S_q, S_k, D, scale,
                                   stride_qs, stride_qd, stride_dos, stride_dod, True, BLOCK_M)  # fmt: skip

    out = ((b * H_k + h_k) * S_k + offs_n[:, None]) * D + offs_d[None, :]  # [BLOCK_N, BLOCK_D]
    mask = (offs_n[:, None] < S_k) & (offs_d[None, :] < D)
    tl.store(dk_ptr + out, (dk * (scale / P_SCALE)).to(dk_ptr.dtype.element_ty), mask=mask)
    tl.store(dv_ptr + out, dv.to(dv_ptr.dtype.element_ty), mask=mask)


@triton.jit
def dq_step(q, do, lse, delta, dq, k_ptr, v_ptr, start_n, last_seen, offs_d, S_k, D, scale,
            stride_ks, stride_kd, stride_vs, stride_vd, MASK: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """One block of keys adds to dq.

    q, do: [BLOCK_M, BLOCK_D], do times P_SCALE; lse, delta: [BLOCK_M]; dq: [BLOCK_M, BLOCK_D] float32, without scale.
    last_seen: the last key that each query sees, [BLOCK_M], int32. MASK: the tile is ragged, or crossed by the diagonal. Returns dq.
    """
    offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)  # [BLOCK_N]
    k = load_tile(k_ptr, offs_n, offs_d, S_k, D, stride_ks, stride_kd, MASK, True)  # [BLOCK_N, BLOCK_D]
    v = load_tile(v_ptr, offs_n, offs_d, S_k, D, stride_vs, stride_vd, MASK, True)  # [BLOCK_N, BLOCK_D]
    s = scale * dot(q, tl.trans(k), tl.zeros((q.shape[0], BLOCK_N), dtype=tl.float32))  # [BLOCK_M, BLOCK_N]
    dp = dot(do, tl.trans(v), tl.zeros((q.shape[0], BLOCK_N), dtype=tl.float32))  # [BLOCK_M, BLOCK_N]
    if MASK:
        k = finite_or_0(k)  # as in dkdv_step
    key = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
    _, ds = p_and_ds(s, dp, lse[:, None], delta[:, None], key[None, :], last_seen[:, None], MASK)
    return dot(ds.to(k.dtype), k, dq)  # (6.11)


@triton.jit
def dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, H_q, H_k, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_dob, stride_doh, stride_dos, stride_dod,
    IS_CAUSAL: tl.constexpr, P_SCALE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dq = scale · ds k (6.11), the second loop of (6.14): the loop of flash_forward_kernel, with ds where that has p.

    Glossary and shapes as in dkdv_kernel; dq_ptr: (B, H_q, S_q, D), contiguous. One program computes BLOCK_M rows of dq of one head; a row
    that sees no key gets 0. Grid: (ceil(S_q / BLOCK_M) · B · H_q,).
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block = tl.program_id(0) % row_blocks
    batch_head = tl.program_id(0) // row_blocks
    b, h = (batch_head // H_q).to(tl.int64), (batch_head % H_q).to(tl.int64)
    h_k = h // (H_q // H_k)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h_k * stride_kh
    v_ptr += b * stride_vb + h_k * stride_vh
    do_ptr += b * stride_dob + h * stride_doh

    offs_m = row_block.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)  # [BLOCK_D]
    q = load_tile(q_ptr, offs_m, offs_d, S_q, D, stride_qs, stride_qd, True, True)  # [BLOCK_M, BLOCK_D]
    do = load_tile(do_ptr, offs_m, offs_d, S_q, D, stride_dos, stride_dod, True, True)  # [BLOCK_M, BLOCK_D]
    do = (do.to(tl.float32) * P_SCALE).to(do.dtype)
    lse = load_lse(lse_ptr + (b * H_q + h) * S_q, offs_m, S_q)  # [BLOCK_M]
    delta = tl.load(delta_ptr + (b * H_q + h) * S_q + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
    dq = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    full, end = S_k // BLOCK_N, tl.cdiv(S_k, BLOCK_N)
    last_seen = tl.zeros((BLOCK_M,), dtype=tl.int32) + (S_k - 1)  # [BLOCK_M]
    if IS_CAUSAL:  # (4.6)
        seen_by_first = tl.maximum(row_block * BLOCK_M + 1 + S_k - S_q, 0)
        seen_by_last = tl.maximum(tl.minimum((row_block + 1) * BLOCK_M, S_q) + S_k - S_q, 0)
        full, end = seen_by_first // BLOCK_N, tl.cdiv(seen_by_last, BLOCK_N)
        last_seen = tl.minimum(offs_m.to(tl.int32) + (S_k - S_q), S_k - 1)
    for start_n in range(0, full * BLOCK_N, BLOCK_N):
        dq = dq_step(q, do, lse, delta, dq, k_ptr, v_ptr, start_n, last_seen, offs_d, S_k, D, scale,
                     stride_ks, stride_kd, stride_vs, stride_vd, False, BLOCK_N)  # fmt: skip
    for start_n in tl.range(full * BLOCK_N, end * BLOCK_N, BLOCK_N, num_stages=1):
        dq = dq_step(q, do, lse, delta, dq, k_ptr, v_ptr, start_n, last_seen, offs_d, S_k, D, scale,
                     stride_ks, stride_kd, stride_vs, stride_vd, True, BLOCK_N)  # fmt: skip

    dq_ptrs = dq_ptr + ((b * H_q + h) * S_q + offs_m[:, None]) * D + offs_d[None, :]  # [BLOCK_M, BLOCK_D]
    mask = (offs_m[:, None] < S_q) & (offs_d[None, :] < D)
    tl.store(dq_ptrs, (dq * (scale / P_SCALE)).to(dq_ptr.dtype.element_ty), mask=mask)


@dataclass(frozen=True)
class BackwardConfig:
    """The tiles of dkdv_kernel and dq_kernel."""

    dkdv: TileConfig
    dq: TileConfig


# As forward.CONFIGS: BLOCK_D to its tiles, for cards with at least so many bytes of shared memory a block.
CONFIGS = {
    232_448: {
        64: BackwardConfig(TileConfig(64, 64, 4, 3), TileConfig(64, 64, 4, 3)),
        128: BackwardConfig(TileConfig(32, 64, 4, 3), TileConfig(64, 64, 4, 2)),
        256: BackwardConfig(TileConfig(64, 64, 8, 1), TileConfig(64, 32, 4, 3)),
    },
    101_376: {
        64: BackwardConfig(TileConfig(32, 64, 8, 2), TileConfig(32, 64, 4, 2)),
        128: BackwardConfig(TileConfig(32, 64, 8, 2), TileConfig(32, 64, 8, 2)),
        256: BackwardConfig(TileConfig(32, 32, 8, 1), TileConfig(32, 32, 8, 1)),
    },
}
# For cards with 64 KB (Turing), where Triton uses no tensor cores, and for fp32, which in IEEE precision has none.
SMALL_CONFIGS = {
    64: BackwardConfig(TileConfig(32, 32, 8, 1), TileConfig(32, 32, 8, 1)),
    128: BackwardConfig(TileConfig(16, 16, 8, 1), TileConfig(16, 16, 8, 1)),
    256: BackwardConfig(TileConfig(16, 16, 8, 1), TileConfig(16, 16, 8, 1)),
}
FP32_CONFIGS = SMALL_CONFIGS | {128: BackwardConfig(TileConfig(16, 32, 8, 1), TileConfig(32, 16, 8, 1))}
FP32_BYTES_AT_256 = 67_584  # what dkdv_kernel's smallest tile asks for with BLOCK_D = 256 in fp32
INTERPRETER_CONFIG = BackwardConfig(TileConfig(64, 32, 4, 1), TileConfig(64, 32, 4, 1))


def choose_config(D: int, dtype: torch.dtype, shared_memory: int | None) -> BackwardConfig:
    """The tiles for a card with `shared_memory` bytes a block; None stands for the interpreter. ValueError where not even the smallest fits."""
    if shared_memory is None:
        return INTERPRETER_CONFIG
    block_d = max(padded_d(D), 64)
    if dtype == torch.float32:
        if block_d == MAX_D and shared_memory < FP32_BYTES_AT_256:
            raise ValueError(
                f"backward with D = {D} in float32 needs {FP32_BYTES_AT_256:,} bytes of shared memory a block, this GPU has {shared_memory:,}: "
                "use float16, or D of at most 128"
            )
        return FP32_CONFIGS[block_d]
    return next((configs for least, configs in CONFIGS.items() if least <= shared_memory), SMALL_CONFIGS)[block_d]


def flash_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    do: torch.Tensor,
    lse: torch.Tensor,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    dlse: torch.Tensor | None = None,
    needs: tuple[bool, bool, bool] = (True, True, True),
    config: BackwardConfig | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """(dq, dk, dv) by the three kernels, from what the forward kept. attention.flash_attention is the public door.

    q, o, do: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D), any strides, one dtype of fp16, bf16, fp32; lse: (B, H_q, S_q) float32, contiguous, from
    flash_forward with the same is_causal and scale. dlse: the gradient of lse, (B, H_q, S_q) float32, where somebody used it.
    needs: which of dq, dk, dv are wanted; the others are None. config: None takes choose_config's. The results are contiguous.
    TypeError and ValueError as check_attention, for o, do, lse and dlse too; RuntimeError for CPU tensors where the interpreter is off.
    """
    scale, is_causal = check_attention(q, k, v, scale, max_d=MAX_D), check_flag("is_causal", is_causal)
    check_outputs(q, o, do, lse, dlse)
    require_kernel_device(q, "q")
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    if not (q.numel() and k.numel()):  # nothing is seen: no launch
        return tuple(
            torch.zeros(x.shape, dtype=x.dtype, device=x.device) if need else None for x, need in zip((q, k, v), needs, strict=True)
        )
    with on_device_of(q):
        if config is None:
            config = choose_config(D, q.dtype, None if interpreter_on() else shared_memory_limit())
        delta = row_delta(o, do, dlse)
        dq = dk = dv = None
        sizes = (H_q, H_k, S_q, S_k, D, scale, *q.stride(), *k.stride(), *v.stride(), *do.stride())
        if needs[1] or needs[2]:
            dk, dv = (torch.empty(k.shape, dtype=k.dtype, device=k.device) for _ in range(2))
            dkdv_kernel[(triton.cdiv(S_k, config.dkdv.block_n) * B * H_k,)](
                q, k, v, do, lse, delta, dk, dv, *sizes, **constants(q, is_causal, config.dkdv)
            )
        if needs[0]:
            dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
            dq_kernel[(triton.cdiv(S_q, config.dq.block_m) * B * H_q,)](
                q, k, v, do, lse, delta, dq, *sizes, **constants(q, is_causal, config.dq)
            )
    return dq, dk if needs[1] else None, dv if needs[2] else None


def check_outputs(q: torch.Tensor, o, do, lse, dlse) -> None:
    """Raise unless o and do are like q, and lse and dlse (or None) are (B, H_q, S_q) float32 beside it, lse contiguous."""
    for name, x in (("o", o), ("do", do)):
        check_as(name, x, q.shape, q.dtype, q.device)
    check_as("lse", lse, q.shape[:3], torch.float32, q.device)
    if dlse is not None:
        check_as("dlse", dlse, q.shape[:3], torch.float32, q.device)
    if not lse.is_contiguous():
        raise ValueError(f"lse must be contiguous, as flash_forward returns it, got strides {lse.stride()}")


def row_delta(o: torch.Tensor, do: torch.Tensor, dlse: torch.Tensor | None = None) -> torch.Tensor:
    """p_scale(dtype) · (rowsum(do ∘ o) − dlse) by delta_kernel. o, do: (B, H_q, S_q, D), not empty. Returns (B, H_q, S_q) float32."""
    B, H_q, S_q, D = o.shape
    delta = torch.empty((B, H_q, S_q), dtype=torch.float32, device=o.device)
    block_d = padded_d(D)
    block_m = DELTA_ELEMENTS // block_d
    delta_kernel[(triton.cdiv(S_q, block_m) * B * H_q,)](
        o, do, delta if dlse is None else dlse, delta, H_q, S_q, D, *o.stride(), *do.stride(), *(delta if dlse is None else dlse).stride(),
        HAS_DLSE=dlse is not None, P_SCALE=p_scale(o.dtype), BLOCK_M=block_m, BLOCK_D=block_d,
    )  # fmt: skip
    return delta


def constants(q: torch.Tensor, is_causal: bool, config: TileConfig) -> dict[str, int | float | bool]:
    """What a launch of dkdv_kernel or dq_kernel fixes at compile time."""
    return {
        "IS_CAUSAL": is_causal, "P_SCALE": p_scale(q.dtype),
        "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_D": padded_d(q.shape[3]),
        "num_warps": config.num_warps, "num_stages": config.num_stages,
    }  # fmt: skip
