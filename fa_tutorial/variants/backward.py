"""Chapter 10's backward: chapter 8's kernels with mods, walking over lists of tiles; and the gradients of a bias and of sinks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_tutorial import backward
from fa_tutorial.hardware import card_of, require_triton
from fa_tutorial.matmul import grouped_tile_device
from fa_tutorial.tiles import TileConfig, dot, load_tile, padded_d, store_tile
from fa_tutorial.tuned.backward import MAX_BLOCK, prepare
from fa_tutorial.tuned.forward import LOG2_E, heads_at_once
from fa_tutorial.variants.forward import HOPPER_SHARED_MEMORY, Dropout, as_argument, kept, modified, positive_scale, use_descriptors
from fa_tutorial.variants.mods import Mods
from fa_tutorial.variants.tile_lists import BlockMask, seen_pairs, tile_list

triton = require_triton("Chapter 10 (fa_tutorial.variants)")
import triton.language as tl  # noqa: E402


@triton.jit
def score_gradient(s, dp, lse2, delta, keep, b, h, i, j, aux, scale, drop, S_q, S_k,
                   SCORE_MOD: tl.constexpr, MASK_MOD: tl.constexpr, MASK: tl.constexpr):  # fmt: skip
    """(p that meets v, ds): ds is the gradient of the modified score.

    s: q kᵀ, not scaled; dp: do vᵀ. The tiles lie either way; i, j, lse2, delta and keep with them.
    p lacks dropout's rescale, which the caller applies once.
    """
    s, factor = modified(s, b, h, i, j, aux, scale, S_q, S_k, SCORE_MOD, MASK)
    p = tl.exp2(s * factor - lse2)
    if MASK:
        p = tl.where(seen_pairs(b, h, i, j, aux, S_q, S_k, MASK_MOD), p, 0.0)
    p_kept = p
    if drop is not None:
        p_kept = tl.where(keep, p, 0.0)
        dp = tl.where(keep, dp * drop.rescale, 0.0)
    return p_kept, p * (dp - delta)


@triton.jit
def through_mod(ds, s, b, h, i, j, aux, scale, S_q, S_k, SCORE_GRAD: tl.constexpr, MASK: tl.constexpr):
    """The gradient of the scaled score from that of the modified one. s: as in score_gradient."""
    if SCORE_GRAD is not None:
        if MASK:
            i, j = tl.minimum(i, S_q - 1), tl.minimum(j, S_k - 1)
        ds = ds * SCORE_GRAD(s * scale, b, h, i, j, aux)
    return ds


@triton.jit
def add_to_dkdv(k_tile, v_tile, dk, dv, q, do, lse2_ptr, delta_ptr, b, h, start_m, start_n, S_q, S_k, D, scale, aux, drop,
                SCORE_MOD: tl.constexpr, SCORE_GRAD: tl.constexpr, MASK_MOD: tl.constexpr, MASK: tl.constexpr,
                BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """tuned.backward.add_to_dkdv with mods. MASK: the tile is mixed."""
    rows = S_q if MASK else None
    q_tile = load_tile(q, b, h, start_m, rows, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    do_tile = load_tile(do, b, h, start_m, rows, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    lse2 = tl.load(lse2_ptr + offs_m)  # [BLOCK_M]
    delta = tl.load(delta_ptr + offs_m)  # [BLOCK_M]
    i, j = offs_m[None, :], start_n + tl.arange(0, BLOCK_N)[:, None]  # [1, BLOCK_M], [BLOCK_N, 1]
    keep = None
    if drop is not None:
        keep = tl.trans(kept(b, h, start_m, start_n, drop, BLOCK_M, BLOCK_N))  # [BLOCK_N, BLOCK_M]
    s_t = dot(k_tile, tl.trans(q_tile))  # [BLOCK_N, BLOCK_M], not scaled
    dp_t = dot(v_tile, tl.trans(do_tile))  # [BLOCK_N, BLOCK_M]
    p_t, ds_t = score_gradient(s_t, dp_t, lse2[None, :], delta[None, :], keep, b, h, i, j, aux, scale, drop, S_q, S_k,
                               SCORE_MOD, MASK_MOD, MASK)  # fmt: skip
    dv = dot(p_t.to(do_tile.dtype), do_tile, dv)  # [BLOCK_N, BLOCK_D]
    ds_t = through_mod(ds_t, s_t, b, h, i, j, aux, scale, S_q, S_k, SCORE_GRAD, MASK)
    dk = dot(ds_t.to(q_tile.dtype), q_tile, dk)  # [BLOCK_N, BLOCK_D]
    return dk, dv


@triton.jit
def walk_queries(k_tile, v_tile, dk, dv, q, do, lse2_ptr, delta_ptr, tiles, b, h, start_n, S_q, S_k, D, scale, aux, drop,
                 SCORE_MOD: tl.constexpr, SCORE_GRAD: tl.constexpr, MASK_MOD: tl.constexpr, MASK: tl.constexpr,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """add_to_dkdv for every tile of a list: the mixed ones (MASK), or the whole ones."""
    index, step, count = tile_list(tiles, b, h, start_n // BLOCK_N, not MASK)
    tile = tl.load(index, mask=count > 0, other=0)
    for t in range(count):
        start_m = tile * BLOCK_M
        tile = tl.load(index + (t + 1) * step, mask=t + 1 < count, other=0)
        dk, dv = add_to_dkdv(k_tile, v_tile, dk, dv, q, do, lse2_ptr, delta_ptr, b, h, start_m, start_n, S_q, S_k, D, scale, aux, drop,
                             SCORE_MOD, SCORE_GRAD, MASK_MOD, MASK, BLOCK_M, BLOCK_N, BLOCK_D)  # fmt: skip
    return dk, dv


@triton.jit
def dkdv_kernel(q, k, v, do, dk, dv, lse2_ptr, delta_ptr, tiles, aux, drop, H_k, S_q, S_k, D, scale,
                SCORE_MOD: tl.constexpr, SCORE_GRAD: tl.constexpr, MASK_MOD: tl.constexpr, GROUP: tl.constexpr,
                BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """dk and dv, summed over the GROUP = H_q / H_k query heads of a key head.

    Arguments as in tuned.backward.dkdv_kernel and forward_kernel; tiles: TileLists of key blocks. Grid: (ceil(S_k / BLOCK_N) · B · H_k,).
    """
    key_blocks = tl.cdiv(S_k, BLOCK_N)
    start_n = tl.program_id(0) % key_blocks * BLOCK_N
    batch_head = tl.program_id(0) // key_blocks
    b, h_k = batch_head // H_k, batch_head % H_k
    S_padded = tl.cdiv(S_q, MAX_BLOCK) * MAX_BLOCK

    k_tile = load_tile(k, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    v_tile = load_tile(v, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    for member in tl.range(0, GROUP, num_stages=1):
        h = h_k * GROUP + member
        row = (b * H_k * GROUP + h).to(tl.int64) * S_padded
        dk_acc, dv_acc = walk_queries(k_tile, v_tile, dk_acc, dv_acc, q, do, lse2_ptr + row, delta_ptr + row, tiles, b, h, start_n, S_q, S_k, D,
                                      scale, aux, drop, SCORE_MOD, SCORE_GRAD, MASK_MOD, False, BLOCK_M, BLOCK_N, BLOCK_D)  # fmt: skip
        dk_acc, dv_acc = walk_queries(k_tile, v_tile, dk_acc, dv_acc, q, do, lse2_ptr + row, delta_ptr + row, tiles, b, h, start_n, S_q, S_k, D,
                                      scale, aux, drop, SCORE_MOD, SCORE_GRAD, MASK_MOD, True, BLOCK_M, BLOCK_N, BLOCK_D)  # fmt: skip
    if drop is not None:
        dv_acc = dv_acc * drop.rescale
    store_tile(dk, dk_acc * scale, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)
    store_tile(dv, dv_acc, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)


@triton.jit
def add_to_dq(q_tile, do_tile, lse2, delta, dq, k, v, b, h, h_k, start_m, start_n, S_q, S_k, D, scale, aux, drop,
              SCORE_MOD: tl.constexpr, SCORE_GRAD: tl.constexpr, MASK_MOD: tl.constexpr, MASK: tl.constexpr,
              BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """tuned.backward.add_to_dq with mods. MASK: the tile is mixed."""
    rows = S_k if MASK else None
    k_tile = load_tile(k, b, h_k, start_n, rows, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    v_tile = load_tile(v, b, h_k, start_n, rows, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    i = start_m + tl.arange(0, BLOCK_M)[:, None]  # [BLOCK_M, 1]
    j = start_n + tl.arange(0, BLOCK_N)[None, :]  # [1, BLOCK_N]
    keep = None
    if drop is not None:
        keep = kept(b, h, start_m, start_n, drop, BLOCK_M, BLOCK_N)  # [BLOCK_M, BLOCK_N]
    s = dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N], not scaled
    dp = dot(do_tile, tl.trans(v_tile))  # [BLOCK_M, BLOCK_N]
    _, ds = score_gradient(s, dp, lse2[:, None], delta[:, None], keep, b, h, i, j, aux, scale, drop, S_q, S_k, SCORE_MOD, MASK_MOD, MASK)
    ds = through_mod(ds, s, b, h, i, j, aux, scale, S_q, S_k, SCORE_GRAD, MASK)
    return dot(ds.to(k_tile.dtype), k_tile, dq)  # [BLOCK_M, BLOCK_D]


@triton.jit
def walk_keys(q_tile, do_tile, lse2, delta, dq, k, v, tiles, b, h, h_k, start_m, S_q, S_k, D, scale, aux, drop,
              SCORE_MOD: tl.constexpr, SCORE_GRAD: tl.constexpr, MASK_MOD: tl.constexpr, MASK: tl.constexpr,
              BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """add_to_dq for every tile of a list: the mixed ones (MASK), or the whole ones."""
    index, step, count = tile_list(tiles, b, h, start_m // BLOCK_M, not MASK)
    tile = tl.load(index, mask=count > 0, other=0)
    for t in range(count):
        start_n = tile * BLOCK_N
        tile = tl.load(index + (t + 1) * step, mask=t + 1 < count, other=0)
        dq = add_to_dq(q_tile, do_tile, lse2, delta, dq, k, v, b, h, h_k, start_m, start_n, S_q, S_k, D, scale, aux, drop,
                       SCORE_MOD, SCORE_GRAD, MASK_MOD, MASK, BLOCK_M, BLOCK_N, BLOCK_D)  # fmt: skip
    return dq


@triton.jit
def dq_kernel(q, k, v, do, dq, lse2_ptr, delta_ptr, tiles, aux, drop, H_q, H_k, heads_at_once, S_q, S_k, D, scale,
              SCORE_MOD: tl.constexpr, SCORE_GRAD: tl.constexpr, MASK_MOD: tl.constexpr,
              BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """dq. Arguments as in dkdv_kernel; tiles, order and grid of programs as in forward_kernel."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    batch_head, row_block = grouped_tile_device(tl.program_id(0), tl.num_programs(0) // row_blocks, row_blocks, heads_at_once)
    start_m = (row_blocks - 1 - row_block) * BLOCK_M
    b, h = batch_head // H_q, batch_head % H_q
    h_k = h // (H_q // H_k)

    rows = batch_head.to(tl.int64) * tl.cdiv(S_q, MAX_BLOCK) * MAX_BLOCK + start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    do_tile = load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    lse2 = tl.load(lse2_ptr + rows)  # [BLOCK_M]
    delta = tl.load(delta_ptr + rows)  # [BLOCK_M]
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    acc = walk_keys(q_tile, do_tile, lse2, delta, acc, k, v, tiles, b, h, h_k, start_m, S_q, S_k, D, scale, aux, drop,
                    SCORE_MOD, SCORE_GRAD, MASK_MOD, False, BLOCK_M, BLOCK_N, BLOCK_D)  # fmt: skip
    acc = walk_keys(q_tile, do_tile, lse2, delta, acc, k, v, tiles, b, h, h_k, start_m, S_q, S_k, D, scale, aux, drop,
                    SCORE_MOD, SCORE_GRAD, MASK_MOD, True, BLOCK_M, BLOCK_N, BLOCK_D)  # fmt: skip
    store_tile(dq, acc * scale, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


@triton.jit
def dbias_kernel(q, k, v, do, dbias_ptr, lse2_ptr, delta_ptr, aux, drop, b_shared, h_shared, H_q, H_k, S_q, S_k, D, scale,
                 SCORE_MOD: tl.constexpr, MASK_MOD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                 BLOCK_D: tl.constexpr):  # fmt: skip
    """The gradient of an additive bias: ds, summed over the b_shared batch entries and h_shared heads that share each number.

    dbias_ptr: (B / b_shared, H_q / h_shared, S_q, S_k) float32, contiguous. Grid: its tiles, row by row.
    """
    tiles_m, tiles_n = tl.cdiv(S_q, BLOCK_M), tl.cdiv(S_k, BLOCK_N)
    start_m = tl.program_id(0) // tiles_n % tiles_m * BLOCK_M
    start_n = tl.program_id(0) % tiles_n * BLOCK_N
    own = tl.program_id(0) // tiles_n // tiles_m  # which (S_q, S_k) matrix
    first_b, first_h = own // (H_q // h_shared) * b_shared, own % (H_q // h_shared) * h_shared
    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    i, j = offs_m[:, None], start_n + tl.arange(0, BLOCK_N)[None, :]  # [BLOCK_M, 1], [1, BLOCK_N]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for member in tl.range(0, b_shared * h_shared, num_stages=1):
        b, h = first_b + member // h_shared, first_h + member % h_shared
        h_k = h // (H_q // H_k)
        rows = (b * H_q + h).to(tl.int64) * tl.cdiv(S_q, MAX_BLOCK) * MAX_BLOCK + offs_m  # [BLOCK_M]
        s = dot(load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D), tl.trans(load_tile(k, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)))
        dp = dot(load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D), tl.trans(load_tile(v, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)))
        keep = None
        if drop is not None:
            keep = kept(b, h, start_m, start_n, drop, BLOCK_M, BLOCK_N)
        _, ds = score_gradient(s, dp, tl.load(lse2_ptr + rows)[:, None], tl.load(delta_ptr + rows)[:, None], keep, b, h, i, j, aux, scale, drop,
                               S_q, S_k, SCORE_MOD, MASK_MOD, True)  # fmt: skip
        acc += ds
    at = (own.to(tl.int64) * S_q + i) * S_k + j  # [BLOCK_M, BLOCK_N]
    tl.store(dbias_ptr + at, acc, mask=(i < S_q) & (j < S_k))


# As forward.CONFIGS.
CONFIGS = {
    64: backward.BackwardConfig(TileConfig(64, 64, 4, 3), TileConfig(64, 64, 4, 3)),
    128: backward.BackwardConfig(TileConfig(32, 64, 4, 3), TileConfig(128, 64, 8, 3)),
    256: backward.BackwardConfig(TileConfig(32, 64, 8, 2), TileConfig(64, 32, 8, 2)),
}
INTERPRETER_CONFIG = backward.BackwardConfig(TileConfig(32, 32, 4, 1), TileConfig(32, 32, 4, 1))


def choose_config(D: int, dtype: torch.dtype, shared_memory: int | None) -> backward.BackwardConfig:
    """The tiles for a card with `shared_memory` bytes per thread block, or for the interpreter (None). ValueError as backward.choose_config."""
    if shared_memory is None:
        return INTERPRETER_CONFIG
    if dtype != torch.float32 and shared_memory >= HOPPER_SHARED_MEMORY:
        return CONFIGS[max(padded_d(D), 64)]
    return backward.choose_config(D, dtype, shared_memory)


@dataclass
class Gradients:
    """Of one variant_backward. dsinks, dbias: float32, None where nobody asked."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    dsinks: torch.Tensor | None = None
    dbias: torch.Tensor | None = None


def variant_backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, do: torch.Tensor, lse: torch.Tensor,
                     dlse: torch.Tensor | None, scale: float, mods: Mods, aux: tuple, mask: BlockMask, sinks: torch.Tensor | None = None,
                     drop: Dropout | None = None, bias_shape: tuple[int, ...] | None = None, *,
                     config: backward.BackwardConfig | None = None) -> Gradients:  # fmt: skip
    """Launch the backward's kernels on q's GPU, which must be current. Arguments as variant_forward's and flash_backward's; they are not checked.

    bias_shape: (B or 1, H_q or 1, S_q, S_k) where the gradient of a bias is asked for, which the score mod must add last.
    """
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    config = config or choose_config(D, q.dtype, card_of(q).shared_memory)
    tma = use_descriptors(q, k, v)
    if tma and not use_descriptors(do):
        do = do.clone(memory_format=torch.contiguous_format)  # o.sum() sends strides of 0
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    lse2, delta = prepare(o, do, lse, dlse)
    constants = {"SCORE_MOD": positive_scale(mods.score, scale), "MASK_MOD": mods.mask, "BLOCK_D": padded_d(D)}

    def arguments(tile: TileConfig, *outputs) -> list:
        rows = (q, tile.block_m), (k, tile.block_n), (v, tile.block_n), (do, tile.block_m)
        return [as_argument(x, block, tma) for x, block in (*rows, *outputs)]

    block_m, block_n = config.dkdv.block_m, config.dkdv.block_n
    dkdv_kernel[(triton.cdiv(S_k, block_n) * B * H_k,)](
        *arguments(config.dkdv, (dk, block_n), (dv, block_n)), lse2, delta, mask.tiles(block_m, block_n, of_keys=True), aux, drop,
        H_k, S_q, S_k, D, scale, SCORE_GRAD=mods.grad, GROUP=H_q // H_k, **constants, **config.dkdv.launch(),
    )  # fmt: skip
    block_m, block_n = config.dq.block_m, config.dq.block_n
    dq_kernel[(triton.cdiv(S_q, block_m) * B * H_q,)](
        *arguments(config.dq, (dq, block_m)), lse2, delta, mask.tiles(block_m, block_n), aux, drop,
        H_q, H_k, heads_at_once(S_k), S_q, S_k, D, scale, SCORE_GRAD=mods.grad, **constants, **config.dq.launch(),
    )  # fmt: skip
    gradients = Gradients(dq, dk, dv)
    if sinks is not None:  # p of the sink times −delta; in rows beyond S_q p = 0, because prepare gives them lse2 = +inf
        gradients.dsinks = -(torch.exp2(LOG2_E.value * sinks[:, None] - lse2) * delta).sum((0, 2))
    if bias_shape is not None:
        gradients.dbias = torch.empty(bias_shape, dtype=torch.float32, device=q.device)
        dbias_kernel[(triton.cdiv(S_q, block_m) * triton.cdiv(S_k, block_n) * bias_shape[0] * bias_shape[1],)](
            *arguments(config.dq), gradients.dbias, lse2, delta, aux, drop, B // bias_shape[0], H_q // bias_shape[1], H_q, H_k, S_q, S_k, D, scale,
            **constants, **config.dq.launch(),
        )  # fmt: skip
    return gradients
