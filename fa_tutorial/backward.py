"""Chapter 7: flash attention's backward in Triton, the two loops of chapter 6 as kernels, whose memory grows with S,
not with S².

delta_kernel sums do ∘ o by rows. A program of dkdv_kernel keeps one block of keys and walks over the queries; a program
of dq_kernel keeps one block of queries and walks over the keys. Each gradient is summed by one program in one order, so
two runs give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_tutorial.hardware import card_of, require_triton
from fa_tutorial.tiles import MAX_D, TileConfig, dot, heads, load_tile, padded_d, store_tile

triton = require_triton("Chapter 7 (fa_tutorial.backward)")
import triton.language as tl  # noqa: E402

DELTA_ELEMENTS = 4096  # in a tile of delta_kernel


@triton.jit
def delta_tile(o, do, dlse_ptr, batch_head, H_q, start_m, S_q, D, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """[BLOCK_M] of delta = rowsum(do ∘ o) − dlse, (6.6) and (6.18); 0 beyond S_q. dlse_ptr: None where lse has no
    gradient."""
    b, h = batch_head // H_q, batch_head % H_q
    o_tile = load_tile(o, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    do_tile = load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    delta = tl.sum(o_tile.to(tl.float32) * do_tile.to(tl.float32), axis=1)  # [BLOCK_M]
    if dlse_ptr is not None:
        offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
        delta -= tl.load(dlse_ptr + batch_head.to(tl.int64) * S_q + offs_m, mask=offs_m < S_q, other=0.0)
    return delta


@triton.jit
def delta_kernel(o, do, dlse_ptr, delta_ptr, H_q, S_q, D, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """delta = rowsum(do ∘ o) − dlse, (6.6) and (6.18) (FA2, algorithm 2, line 4).

    o, do: Heads (B, H_q, S_q, D); dlse_ptr (or None), delta_ptr: (B, H_q, S_q) float32, contiguous. Grid:
    (ceil(S_q / BLOCK_M) · B · H_q,).
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    start_m = tl.program_id(0) % row_blocks * BLOCK_M
    batch_head = tl.program_id(0) // row_blocks
    delta = delta_tile(o, do, dlse_ptr, batch_head, H_q, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M]
    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    tl.store(delta_ptr + batch_head.to(tl.int64) * S_q + offs_m, delta, mask=offs_m < S_q)


@triton.jit
def add_to_dkdv(k_tile, v_tile, dk, dv, q, do, lse_ptr, delta_ptr, b, h, start_m, first_seeing,
                S_q, D, scale, MASK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """Queries start_m … start_m + BLOCK_M − 1 add to dk and dv, by (7.1) and (7.2).

    k_tile, v_tile: [BLOCK_N, BLOCK_D]; dk, dv: [BLOCK_N, BLOCK_D] float32, dk without scale.
    lse_ptr, delta_ptr: the head's first row. first_seeing: [BLOCK_N], the first query that may see
    each key. MASK: some query of this block may not see every key.
    """
    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    do_tile = load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    lse = tl.load(lse_ptr + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
    delta = tl.load(delta_ptr + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
    s_t = scale * dot(k_tile, tl.trans(q_tile))  # [BLOCK_N, BLOCK_M], (7.1)
    p_t = tl.exp(s_t - lse[None, :])  # [BLOCK_N, BLOCK_M], (6.7)
    if MASK:  # (7.3); a row that sees nothing has lse = −inf and p = inf, which becomes 0 too
        p_t = tl.where(offs_m[None, :] >= first_seeing[:, None], p_t, 0.0)
    dv = dot(p_t.to(do_tile.dtype), do_tile, dv)  # [BLOCK_N, BLOCK_D], (6.8)
    dp_t = dot(v_tile, tl.trans(do_tile))  # [BLOCK_N, BLOCK_M], (7.1)
    ds_t = p_t * (dp_t - delta[None, :])  # [BLOCK_N, BLOCK_M], (6.10)
    dk = dot(ds_t.to(q_tile.dtype), q_tile, dk)  # [BLOCK_N, BLOCK_D], (6.12)
    return dk, dv


@triton.jit
def dkdv_kernel(q, k, v, do, dk, dv, lse_ptr, delta_ptr, H_k, S_q, S_k, D, scale,
                IS_CAUSAL: tl.constexpr, GROUP: tl.constexpr,
                BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """dv = pᵀ do (6.8), dk = scale · dsᵀ q (6.12), first loop of (6.14): FA2's algorithm 2 without dq.

    q, do: Heads (B, H_q, S_q, D); k, v, dk, dv: Heads (B, H_k, S_k, D).
    lse_ptr, delta_ptr: (B, H_q, S_q) float32, contiguous. Grid: (ceil(S_k / BLOCK_N) · B · H_k,).
    A program computes BLOCK_N rows of dk and dv, summed over the GROUP = H_q / H_k query heads (7.4).
    """
    key_blocks = tl.cdiv(S_k, BLOCK_N)
    start_n = tl.program_id(0) % key_blocks * BLOCK_N
    batch_head = tl.program_id(0) // key_blocks
    b, h_k = batch_head // H_k, batch_head % H_k

    k_tile = load_tile(k, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    v_tile = load_tile(v, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)

    first_seeing = start_n + tl.arange(0, BLOCK_N) - (S_k - S_q)  # [BLOCK_N]
    first_m, full_m = 0, 0  # queries first_m … full_m − 1 need the mask, queries from full_m on do not
    if IS_CAUSAL:  # (6.13), times BLOCK_M
        first_m = tl.maximum(start_n + S_q - S_k, 0) // BLOCK_M * BLOCK_M
        last_key = tl.minimum(start_n + BLOCK_N, S_k) - 1
        full_m = tl.cdiv(tl.maximum(last_key + S_q - S_k, 0), BLOCK_M) * BLOCK_M
    for member in tl.range(0, GROUP, num_stages=1):
        h = h_k * GROUP + member  # (7.4)
        row = (b * H_k * GROUP + h).to(tl.int64) * S_q
        for start_m in tl.range(full_m, S_q, BLOCK_M, disable_licm=True):
            dk_acc, dv_acc = add_to_dkdv(
                k_tile, v_tile, dk_acc, dv_acc, q, do, lse_ptr + row, delta_ptr + row,
                b, h, start_m, first_seeing, S_q, D, scale, False, BLOCK_M, BLOCK_D)  # fmt: skip
        if IS_CAUSAL:  # last: if it came first, the matmuls of D = 128 would wait for one another
            for start_m in tl.range(first_m, full_m, BLOCK_M, num_stages=1, disable_licm=True):
                dk_acc, dv_acc = add_to_dkdv(
                    k_tile, v_tile, dk_acc, dv_acc, q, do, lse_ptr + row, delta_ptr + row,
                    b, h, start_m, first_seeing, S_q, D, scale, True, BLOCK_M, BLOCK_D)  # fmt: skip

    store_tile(dk, dk_acc * scale, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)
    store_tile(dv, dv_acc, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)


@triton.jit
def add_to_dq(q_tile, do_tile, lse, delta, dq, k, v, b, h_k, start_n, last_seen, S_k, D, scale,
              MASK: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """Keys start_n … start_n + BLOCK_N − 1 add to dq.

    q_tile, do_tile: [BLOCK_M, BLOCK_D]; lse, delta: [BLOCK_M].
    dq: [BLOCK_M, BLOCK_D] float32, without scale. last_seen: [BLOCK_M], the last key that each query
    may see. MASK: some query may not see every key of this tile.
    """
    rows = S_k if MASK else None  # every key of a tile without a mask is there
    k_tile = load_tile(k, b, h_k, start_n, rows, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    v_tile = load_tile(v, b, h_k, start_n, rows, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    s = scale * dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N]
    p = tl.exp(s - lse[:, None])  # [BLOCK_M, BLOCK_N], (6.7)
    if MASK:
        offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        p = tl.where(offs_n[None, :] <= last_seen[:, None], p, 0.0)
    dp = dot(do_tile, tl.trans(v_tile))  # [BLOCK_M, BLOCK_N], (6.9)
    ds = p * (dp - delta[:, None])  # [BLOCK_M, BLOCK_N], (6.10)
    return dot(ds.to(k_tile.dtype), k_tile, dq)  # [BLOCK_M, BLOCK_D], (6.11)


@triton.jit
def dq_kernel(q, k, v, do, dq, lse_ptr, delta_ptr, H_q, H_k, S_q, S_k, D, scale,
              IS_CAUSAL: tl.constexpr,
              BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """dq = scale · ds k (6.11), the second loop of (6.14): flash_forward_kernel's, with ds for p.

    q, do, dq: Heads (B, H_q, S_q, D); k, v: Heads (B, H_k, S_k, D). A row that sees no key gets 0.
    lse_ptr, delta_ptr: (B, H_q, S_q) float32, contiguous. Grid: (ceil(S_q / BLOCK_M) · B · H_q,).
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    start_m = tl.program_id(0) % row_blocks * BLOCK_M
    batch_head = tl.program_id(0) // row_blocks
    b, h = batch_head // H_q, batch_head % H_q
    h_k = h // (H_q // H_k)  # the key head that this query head reads

    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    rows = batch_head.to(tl.int64) * S_q + offs_m  # [BLOCK_M]
    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    do_tile = load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    lse = tl.load(lse_ptr + rows, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
    delta = tl.load(delta_ptr + rows, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    last_seen = tl.full((BLOCK_M,), 0, dtype=tl.int32) + (S_k - 1)  # [BLOCK_M]
    full_n, end_n = S_k // BLOCK_N * BLOCK_N, S_k  # keys 0 … full_n − 1 need no mask, keys full_n … end_n − 1 do
    if IS_CAUSAL:  # (4.6), times BLOCK_N
        last_seen = offs_m + (S_k - S_q)
        full_n = tl.maximum(start_m + 1 + S_k - S_q, 0) // BLOCK_N * BLOCK_N
        end_n = tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q
    for start_n in range(0, full_n, BLOCK_N):
        acc = add_to_dq(q_tile, do_tile, lse, delta, acc, k, v, b, h_k, start_n, last_seen,
                        S_k, D, scale, False, BLOCK_N, BLOCK_D)  # fmt: skip
    for start_n in tl.range(full_n, end_n, BLOCK_N, num_stages=1):
        acc = add_to_dq(q_tile, do_tile, lse, delta, acc, k, v, b, h_k, start_n, last_seen,
                        S_k, D, scale, True, BLOCK_N, BLOCK_D)  # fmt: skip
    store_tile(dq, acc * scale, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


@dataclass(frozen=True)
class BackwardConfig:
    """The tiles of dkdv_kernel and dq_kernel."""

    dkdv: TileConfig
    dq: TileConfig


# As forward.CONFIGS: the minimum shared memory per thread block, in bytes, then BLOCK_D to its tiles.
CONFIGS = {
    232_448: {
        64: BackwardConfig(TileConfig(32, 64, 4, 3), TileConfig(64, 64, 4, 3)),
        128: BackwardConfig(TileConfig(32, 64, 4, 3), TileConfig(64, 64, 4, 2)),
        256: BackwardConfig(TileConfig(64, 64, 8, 1), TileConfig(64, 32, 4, 3)),
    },
    101_376: {
        64: BackwardConfig(TileConfig(32, 64, 8, 2), TileConfig(32, 64, 4, 2)),
        128: BackwardConfig(TileConfig(32, 64, 8, 2), TileConfig(32, 64, 8, 2)),
        256: BackwardConfig(TileConfig(32, 32, 8, 1), TileConfig(32, 32, 8, 1)),
    },
}
# For cards with 64 KiB (Turing), where Triton uses no tensor cores, and for fp32, which in IEEE precision uses none
# either.
SMALL_CONFIGS = {
    64: BackwardConfig(TileConfig(16, 32, 8, 1), TileConfig(32, 32, 8, 1)),
    128: BackwardConfig(TileConfig(16, 16, 8, 1), TileConfig(16, 16, 8, 1)),
    256: BackwardConfig(TileConfig(16, 16, 8, 1), TileConfig(16, 16, 8, 1)),
}
FP32_CONFIGS = {
    64: BackwardConfig(TileConfig(32, 32, 8, 1), TileConfig(32, 32, 8, 1)),
    128: BackwardConfig(TileConfig(16, 32, 8, 1), TileConfig(32, 16, 8, 1)),
    256: SMALL_CONFIGS[256],
}
FP32_BYTES_AT_256 = 67_584  # of shared memory that dkdv_kernel's smallest tile needs with BLOCK_D = 256 in fp32
INTERPRETER_CONFIG = BackwardConfig(TileConfig(64, 32, 4, 1), TileConfig(64, 32, 4, 1))


def choose_config(D: int, dtype: torch.dtype, shared_memory: int | None) -> BackwardConfig:
    """The tiles for a card with `shared_memory` bytes per thread block, or for the interpreter (None). ValueError if
    not even the smallest fits."""
    if shared_memory is None:
        return INTERPRETER_CONFIG
    block_d = max(padded_d(D), 64)
    if dtype == torch.float32:
        if block_d == MAX_D and shared_memory < FP32_BYTES_AT_256:
            raise ValueError(
                f"backward with D = {D} in float32 needs {FP32_BYTES_AT_256:,} bytes of shared memory per thread "
                f"block, this GPU has {shared_memory:,}: use float16, or D of at most 128"
            )
        return FP32_CONFIGS[block_d]
    return next((configs for least, configs in CONFIGS.items() if least <= shared_memory), SMALL_CONFIGS)[block_d]


def flash_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, do: torch.Tensor, lse: torch.Tensor,
    dlse: torch.Tensor | None, is_causal: bool, scale: float, *, config: BackwardConfig | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Launch the three kernels on q's GPU, which must be the current one. Checks nothing: attention.flash_attention has
    checked the arguments.

    q, o, do: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D), any strides, none empty; lse, dlse: (B, H_q, S_q) float32,
    contiguous.
    dlse: the gradient of lse, None where it has none. Returns dq, dk and dv, contiguous.
    """
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    config = config or choose_config(D, q.dtype, card_of(q).shared_memory)
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    delta = row_delta(o, do, dlse)
    inputs = heads(q), heads(k), heads(v), heads(do)
    constants = {"IS_CAUSAL": is_causal, "BLOCK_D": padded_d(D)}
    dkdv_kernel[(triton.cdiv(S_k, config.dkdv.block_n) * B * H_k,)](
        *inputs, heads(dk), heads(dv), lse, delta, H_k, S_q, S_k, D, scale, GROUP=H_q // H_k, **constants,
        **config.dkdv.launch(),
    )  # fmt: skip
    dq_kernel[(triton.cdiv(S_q, config.dq.block_m) * B * H_q,)](
        *inputs, heads(dq), lse, delta, H_q, H_k, S_q, S_k, D, scale, **constants, **config.dq.launch()
    )
    return dq, dk, dv


def row_delta(o: torch.Tensor, do: torch.Tensor, dlse: torch.Tensor | None = None) -> torch.Tensor:
    """rowsum(do ∘ o) − dlse by delta_kernel. o, do: (B, H_q, S_q, D), not empty; dlse: contiguous. Returns
    (B, H_q, S_q) float32."""
    B, H_q, S_q, D = o.shape
    delta = torch.empty((B, H_q, S_q), dtype=torch.float32, device=o.device)
    block_d = padded_d(D)
    block_m = DELTA_ELEMENTS // block_d
    delta_kernel[(triton.cdiv(S_q, block_m) * B * H_q,)](
        heads(o), heads(do), dlse, delta, H_q, S_q, D, BLOCK_M=block_m, BLOCK_D=block_d
    )
    return delta
