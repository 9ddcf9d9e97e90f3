"""Chapter 5: flash attention's forward in Triton. The loop of chapter 4 as one kernel, whose memory grows with S, not
with S².

One program takes one block of query rows of one head, and keeps m, l and acc on the chip while tiles of k and v stream
past.
"""

from __future__ import annotations

import torch

from fa_tutorial.hardware import card_of, require_triton
from fa_tutorial.tiles import TileConfig, dot, heads, load_tile, padded_d, store_tile

triton = require_triton("Chapter 5 (fa_tutorial.forward)")
import triton.language as tl  # noqa: E402


@triton.jit
def softmax_step(s, m, l):
    """A tile of scores joins the running maximum and sum (4.2): algorithm.softmax_step, line for line.

    s: [BLOCK_M, BLOCK_N] float32, −inf where hidden; m, l: [BLOCK_M] float32.
    Returns p, m_new, l_new, alpha.
    """
    m_new = tl.maximum(m, tl.max(s, axis=1))  # [BLOCK_M]
    shift = tl.where(m_new == -float("inf"), 0.0, m_new)  # −inf − (−inf) would be NaN
    p = tl.exp(s - shift[:, None])  # [BLOCK_M, BLOCK_N]
    alpha = tl.exp(m - shift)  # [BLOCK_M]
    return p, m_new, alpha * l + tl.sum(p, axis=1), alpha


@triton.jit
def attend(q_tile, k, v, m, l, acc, b, h_k, start_n, last_seen, S_k, D, scale,
           MASK: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """One iteration: keys start_n … start_n + BLOCK_N − 1 join m, l and acc.

    q_tile: [BLOCK_M, BLOCK_D]; last_seen: [BLOCK_M], the last key that each row may see.
    MASK: some row may not see the whole tile.
    """
    rows = S_k if MASK else None  # a tile without a mask is full: there is no end to check
    k_tile = load_tile(k, b, h_k, start_n, rows, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    s = scale * dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N], (4.1)
    if MASK:
        offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        s = tl.where(offs_n[None, :] <= last_seen[:, None], s, -float("inf"))
    p, m, l, alpha = softmax_step(s, m, l)  # (4.2)
    acc = acc * alpha[:, None]  # [BLOCK_M, BLOCK_D]
    v_tile = load_tile(v, b, h_k, start_n, rows, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    acc = dot(p.to(v_tile.dtype), v_tile, acc)  # (4.3)
    return m, l, acc


@triton.jit
def flash_forward_kernel(q, k, v, o, lse_ptr, H_q, H_k, S_q, S_k, D, scale, IS_CAUSAL: tl.constexpr,
                         BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                         BLOCK_D: tl.constexpr):  # fmt: skip
    """o = softmax(scale · q kᵀ) v and its lse, (4.1) to (4.6) (FA2, algorithm 1).

    q, o: Heads (B, H_q, S_q, D); k, v: Heads (B, H_k, S_k, D); lse_ptr: (B, H_q, S_q) float32,
    contiguous. BLOCK_D: D padded to a power of two. Causal is bottom-right aligned; a row that sees
    no key gets o = 0 and lse = −inf. Grid: (ceil(S_q / BLOCK_M) · B · H_q,), by (5.1).
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)  # (5.1)
    start_m = tl.program_id(0) % row_blocks * BLOCK_M
    batch_head = tl.program_id(0) // row_blocks
    b, h = batch_head // H_q, batch_head % H_q
    h_k = h // (H_q // H_k)  # (5.2): H_q / H_k query heads share a key head

    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    last_seen = tl.full((BLOCK_M,), S_k - 1, dtype=tl.int32)  # [BLOCK_M]
    full_n, end_n = S_k // BLOCK_N * BLOCK_N, S_k  # keys 0 … full_n − 1 need no mask, the others do
    if IS_CAUSAL:  # (4.6), in keys
        last_seen = offs_m + (S_k - S_q)
        full_n = tl.maximum(start_m + 1 + S_k - S_q, 0) // BLOCK_N * BLOCK_N
        end_n = tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q
    for start_n in range(0, full_n, BLOCK_N):
        m, l, acc = attend(q_tile, k, v, m, l, acc, b, h_k, start_n, last_seen, S_k, D, scale,
                           False, BLOCK_N, BLOCK_D)  # fmt: skip
    for start_n in tl.range(full_n, end_n, BLOCK_N, num_stages=1):  # a few tiles: don't load ahead
        m, l, acc = attend(q_tile, k, v, m, l, acc, b, h_k, start_n, last_seen, S_k, D, scale,
                           True, BLOCK_N, BLOCK_D)  # fmt: skip

    l_or_one = tl.where(l == 0.0, 1.0, l)
    store_tile(o, acc / l_or_one[:, None], b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # (4.4)
    lse = m + tl.log(l_or_one)  # (4.5); −inf for a row that sees no key, because its m is −inf
    tl.store(lse_ptr + batch_head.to(tl.int64) * S_q + offs_m, lse, mask=offs_m < S_q)


# Minimum shared memory per thread block, in bytes -> BLOCK_D -> tile. ptxas compiles each tile without spills, or
# nearly (tools/compile_report.py). 227 KiB: Hopper, B200; of the tiles that fit and were timed, the fastest on an
# H200. 99 KiB: Ampere, Ada, RTX 50xx.
CONFIGS = {
    232_448: {64: TileConfig(128, 64, 8, 3), 128: TileConfig(64, 64, 4, 3), 256: TileConfig(128, 64, 8, 2)},
    101_376: {64: TileConfig(128, 64, 8, 3), 128: TileConfig(64, 64, 8, 3), 256: TileConfig(32, 64, 8, 2)},
}
# For fp32, which uses no tensor cores in IEEE precision, and for cards with 64 KiB (Turing), where Triton uses none.
SMALL_CONFIGS = {64: TileConfig(32, 32, 8, 1), 128: TileConfig(16, 32, 8, 1), 256: TileConfig(16, 16, 16, 1)}
INTERPRETER_CONFIG = TileConfig(64, 32, 4, 1)


def choose_config(D: int, dtype: torch.dtype, shared_memory: int | None) -> TileConfig:
    """The tile for a card with `shared_memory` bytes per thread block; None means the interpreter."""
    if shared_memory is None:
        return INTERPRETER_CONFIG
    configs = next((configs for least, configs in CONFIGS.items() if least <= shared_memory), SMALL_CONFIGS)
    return (SMALL_CONFIGS if dtype == torch.float32 else configs)[max(padded_d(D), 64)]


def flash_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool, scale: float,
                  *, config: TileConfig | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Launch flash_forward_kernel on q's GPU, which must be current. It trusts its arguments: attention.flash_attention
    checks them.

    q: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D), any strides, none empty. Returns o like q, contiguous, and lse
    (B, H_q, S_q) float32.
    """
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty((B, H_q, S_q), dtype=torch.float32, device=q.device)
    config = config or choose_config(D, q.dtype, card_of(q).shared_memory)
    flash_forward_kernel[(triton.cdiv(S_q, config.block_m) * B * H_q,)](
        heads(q), heads(k), heads(v), heads(o), lse, H_q, H_k, S_q, S_k, D, scale,
        IS_CAUSAL=is_causal, BLOCK_D=padded_d(D), **config.launch(),
    )  # fmt: skip
    return o, lse
