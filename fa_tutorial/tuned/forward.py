"""Chapter 8's forward: flash_forward_kernel of chapter 5 in base 2, with descriptors, an order of programs and tiles
that are measured."""

from __future__ import annotations

import math

import torch

from fa_tutorial.hardware import TENSOR_CORE_CAPABILITY, card_of, require_triton
from fa_tutorial.matmul import grouped_tile_device
from fa_tutorial.tiles import TileConfig, dot, load_tile, padded_d, store_tile
from fa_tutorial.tuned.autotuning import autotune, launch
from fa_tutorial.tuned.descriptors import can_use_tma
from fa_tutorial.tuned.launching import signature_of

triton = require_triton("Chapter 8 (fa_tutorial.tuned)")
import triton.language as tl  # noqa: E402

LOG2_E, LN_2 = tl.constexpr(math.log2(math.e)), tl.constexpr(math.log(2.0))
# m is rounded up a little, whatever its sign. Rounded down, at logits of 10,000 it makes p = 1.0003 for the largest
# score. The dot rounds that to 1 in fp16 and l does not, so where one key has all the weight, o is off by a digit.
# Below 1, where fp16 is finer, that is rare. The price: where |m| is above 10⁸, a row's p all round to 0 in fp16.
UP, DOWN = tl.constexpr(1 + 2.0**-22), tl.constexpr(1 - 2.0**-22)


@triton.jit
def attend(q_tile, k, v, m, l, acc, b, h_k, start_n, last_seen, S_k, D, scale_log2,
           MASK: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """forward.attend in base 2 (8.3): m is the maximum of s · scale_log2, an exponent one multiply-add.

    scale_log2: scale · log2(e), positive.
    """
    k_tile = load_tile(k, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    s = dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N], not scaled yet
    if MASK:
        offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        s = tl.where(offs_n[None, :] <= last_seen[:, None], s, -float("inf"))
    row_max = tl.max(s, axis=1)  # [BLOCK_M]
    m_new = tl.maximum(m, tl.maximum(row_max * (scale_log2 * UP), row_max * (scale_log2 * DOWN)))
    shift = m_new
    if MASK:  # only here can a row have seen nothing yet
        shift = tl.where(m_new == -float("inf"), 0.0, m_new)
    p = tl.exp2(s * scale_log2 - shift[:, None])  # [BLOCK_M, BLOCK_N]
    alpha = tl.exp2(m - shift)  # [BLOCK_M]
    l = alpha * l + tl.sum(p, axis=1)  # [BLOCK_M]
    acc = acc * alpha[:, None]  # [BLOCK_M, BLOCK_D]
    v_tile = load_tile(v, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    acc = dot(p.to(v_tile.dtype), v_tile, acc)
    return m_new, l, acc


@autotune("forward")
@triton.jit(do_not_specialize=["autotune_key"])
def forward_kernel(q, k, v, o, lse_ptr, H_q, H_k, heads_at_once, S_q, S_k, D, scale, autotune_key,
                   IS_CAUSAL: tl.constexpr,
                   BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """o and lse as forward.flash_forward_kernel gives them. scale must be positive.

    q, o: (B, H_q, S_q, D), k, v: (B, H_k, S_k, D), as Heads or as descriptors of tiles
    (1, 1, BLOCK_M or BLOCK_N, BLOCK_D); lse_ptr: (B, H_q, S_q) float32.
    Causal programs take heads_at_once heads at a time, from the longest row block to the shortest (8.6).
    Grid: (ceil(S_q / BLOCK_M) · B · H_q,).
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    batch_head = tl.program_id(0) // row_blocks
    row_block = tl.program_id(0) - batch_head * row_blocks
    if IS_CAUSAL:
        batch_head, row_block = grouped_tile_device(
            tl.program_id(0), tl.num_programs(0) // row_blocks, row_blocks, heads_at_once)  # fmt: skip
        row_block = row_blocks - 1 - row_block
    start_m = row_block * BLOCK_M
    b, h = batch_head // H_q, batch_head % H_q
    h_k = h // (H_q // H_k)

    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    scale_log2 = scale * LOG2_E
    last_seen = tl.full((BLOCK_M,), S_k - 1, dtype=tl.int32)  # [BLOCK_M]
    full_n, end_n = S_k // BLOCK_N * BLOCK_N, S_k  # keys from full_n on need a mask
    if IS_CAUSAL:  # (4.6)
        last_seen = offs_m + (S_k - S_q)
        full_n = tl.maximum(start_m + 1 + S_k - S_q, 0) // BLOCK_N * BLOCK_N
        end_n = tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q
    # Full: one ragged tile at most, so nothing to load ahead. With stages ptxas, NVIDIA's assembler,
    # would make matmuls of pointer tiles wait for each other (its warning C7515).
    TAIL_STAGES: tl.constexpr = None if IS_CAUSAL else 1
    for start_n in range(0, full_n, BLOCK_N):
        m, l, acc = attend(q_tile, k, v, m, l, acc, b, h_k, start_n, last_seen,
                           S_k, D, scale_log2, False, BLOCK_N, BLOCK_D)  # fmt: skip
    for start_n in tl.range(full_n, end_n, BLOCK_N, num_stages=TAIL_STAGES):
        m, l, acc = attend(q_tile, k, v, m, l, acc, b, h_k, start_n, last_seen,
                           S_k, D, scale_log2, True, BLOCK_N, BLOCK_D)  # fmt: skip

    l_or_one = tl.where(l == 0.0, 1.0, l)
    o_tile = acc * (1.0 / l_or_one)[:, None]  # (4.4), with one division a row instead of one an element
    store_tile(o, o_tile, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)
    lse = tl.where(l == 0.0, -float("inf"), (m + tl.log2(l_or_one)) * LN_2)  # (4.5)
    tl.store(lse_ptr + batch_head.to(tl.int64) * S_q + offs_m, lse, mask=offs_m < S_q)


# That a limit pays, no measurement shows: of 1 to 8 causal heads on an H200, 4 and 8 are the fastest for S = 4,096, and
# for S = 16,384 all eight are as fast as two, or up to 4 % faster.
KEYS_AT_ONCE = 32_768


def heads_at_once(S_k: int) -> int:
    """Heads whose programs run side by side (8.6): as many as hold KEYS_AT_ONCE keys, at least 2, at most 64."""
    return min(max(2, KEYS_AT_ONCE // S_k), 64)


def applies(q: torch.Tensor, scale: float) -> bool:
    """True if this chapter's kernels take the input: fp16 or bf16, a positive scale, a card with tensor cores."""
    return q.dtype != torch.float32 and scale > 0 and card_of(q).capability >= TENSOR_CORE_CAPABILITY


def flash_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool, scale: float, *, tile: TileConfig | None = None,
    descriptors: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """forward.flash_forward by forward_kernel, for what `applies` to. Same arguments and results.

    tile: None takes the fastest, which the first call for a kind of input measures. descriptors: False leaves out that
    step of the chapter.
    """
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty((B, H_q, S_q), dtype=torch.float32, device=q.device)
    signature = signature_of(q, k, v)
    launch(
        "forward",
        forward_kernel,
        lambda meta: (triton.cdiv(S_q, meta["BLOCK_M"]) * B * H_q,),
        {"q": q, "k": k, "v": v, "o": o},
        lse,
        H_q,
        H_k,
        heads_at_once(S_k),
        S_q,
        S_k,
        D,
        scale,
        signature=signature,
        tma=descriptors and can_use_tma(signature),
        tile=tile,
        IS_CAUSAL=is_causal,
        BLOCK_D=padded_d(D),
    )
    return o, lse
