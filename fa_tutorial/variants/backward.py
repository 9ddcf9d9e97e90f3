"""Chapter 10's backward: chapter 8's kernels with mods, over lists of tiles; the gradients of
attn_mask and of sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fa_tutorial import backward
from fa_tutorial.hardware import card_of, require_triton
from fa_tutorial.matmul import grouped_tile_device
from fa_tutorial.tiles import TileConfig, dot, load_tile, padded_d, store_tile
from fa_tutorial.tuned.backward import MAX_BLOCK, prepare
from fa_tutorial.tuned.forward import LOG2_E
from fa_tutorial.variants.forward import (
    HOPPER_SHARED_MEMORY,
    Block,
    as_argument,
    kept,
    modified,
    positive_scale,
    sizes_of,
    use_descriptors,
)
from fa_tutorial.variants.mods import Mods
from fa_tutorial.variants.tile_lists import BlockMask, seen_pairs, tile_list

triton = require_triton("Chapter 10 (fa_tutorial.variants)")
import triton.language as tl  # noqa: E402


class Rows(NamedTuple):
    """lse2, delta: pointers to what tuned.backward.prepare gives for each row of q."""

    lse2: Any
    delta: Any


class Queries(NamedTuple):
    """What rows of q bring to a gradient: in global memory (dkdv_kernel), or the tiles of one block (dq_kernel)."""

    q: Any
    do: Any
    lse2: Any
    delta: Any


@triton.jit
def score_gradient(s, dp, lse2, delta, keep, b, h, i, j, sizes, mods, aux, MASK: tl.constexpr):
    """(p that meets v, ds): ds is the gradient of the modified score.

    s: q kᵀ, not scaled; dp: do vᵀ. The tiles lie either way; i, j, lse2, delta and keep with them.
    p lacks dropout's rescale, which the caller applies once.
    """
    s, factor = modified(s, b, h, i, j, sizes, mods, aux, MASK)
    p = tl.exp2(s * factor - lse2)
    if MASK:
        p = tl.where(seen_pairs(b, h, i, j, aux, sizes.S_q, sizes.S_k, mods.mask), p, 0.0)
    p_kept = p
    if mods.drop is not None:
        p_kept = tl.where(keep, p, 0.0)
        dp = tl.where(keep, dp * mods.drop.rescale, 0.0)
    return p_kept, p * (dp - delta)


@triton.jit
def through_mod(ds, s, b, h, i, j, sizes, mods, aux, MASK: tl.constexpr):
    """The gradient of the scaled score from that of the modified one. s: as in score_gradient."""
    if mods.grad is not None:
        if MASK:
            i, j = tl.minimum(i, sizes.S_q - 1), tl.minimum(j, sizes.S_k - 1)
        ds = ds * mods.grad(s * mods.scale, b, h, i, j, aux)
    return ds


@triton.jit
def add_to_dkdv(k_tile, v_tile, dk, dv, queries, block, start_m, sizes, mods, aux,
                MASK: tl.constexpr, BLOCK_M: tl.constexpr):  # fmt: skip
    """tuned.backward.add_to_dkdv with mods. MASK: the tile is mixed."""
    b, h, start_n = block.b, block.h, block.start
    BLOCK_N: tl.constexpr = k_tile.shape[0]
    BLOCK_D: tl.constexpr = k_tile.shape[1]
    rows = sizes.S_q if MASK else None
    q_tile = load_tile(queries.q, b, h, start_m, rows, sizes.D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    do_tile = load_tile(queries.do, b, h, start_m, rows, sizes.D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    lse2 = tl.load(queries.lse2 + offs_m)  # [BLOCK_M]
    delta = tl.load(queries.delta + offs_m)  # [BLOCK_M]
    i, j = offs_m[None, :], start_n + tl.arange(0, BLOCK_N)[:, None]  # [1, BLOCK_M], [BLOCK_N, 1]
    keep = None
    if mods.drop is not None:
        keep = tl.trans(kept(b, h, start_m, start_n, mods.drop, BLOCK_M, BLOCK_N))  # [BLOCK_N, BLOCK_M]
    s_t = dot(k_tile, tl.trans(q_tile))  # [BLOCK_N, BLOCK_M], not scaled
    dp_t = dot(v_tile, tl.trans(do_tile))  # [BLOCK_N, BLOCK_M]
    p_t, ds_t = score_gradient(s_t, dp_t, lse2[None, :], delta[None, :], keep, b, h, i, j, sizes, mods, aux, MASK)
    dv = dot(p_t.to(do_tile.dtype), do_tile, dv)  # [BLOCK_N, BLOCK_D]
    ds_t = through_mod(ds_t, s_t, b, h, i, j, sizes, mods, aux, MASK)
    dk = dot(ds_t.to(q_tile.dtype), q_tile, dk)  # [BLOCK_N, BLOCK_D]
    return dk, dv


@triton.jit
def walk_queries(k_tile, v_tile, dk, dv, queries, tiles, block, sizes, mods, aux,
                 MASK: tl.constexpr, BLOCK_M: tl.constexpr):  # fmt: skip
    """add_to_dkdv for every tile of a list: the mixed ones (MASK), or the whole ones."""
    index, step, count = tile_list(tiles, block.b, block.h, block.start // k_tile.shape[0], not MASK)
    tile = tl.load(index, mask=count > 0, other=0)
    for t in range(count):
        start_m = tile * BLOCK_M
        tile = tl.load(index + (t + 1) * step, mask=t + 1 < count, other=0)
        dk, dv = add_to_dkdv(k_tile, v_tile, dk, dv, queries, block, start_m, sizes, mods, aux, MASK, BLOCK_M)
    return dk, dv


@triton.jit
def dkdv_kernel(q, k, v, do, dk, dv, rows, tiles, aux, sizes, mods, GROUP: tl.constexpr,
                BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """dk and dv, summed over the GROUP = H_q / H_k query heads of a key head.

    Tensors as in tuned.backward.dkdv_kernel, the rest as in forward_kernel; tiles: TileLists of key blocks.
    Grid: (ceil(S_k / BLOCK_N) · B · H_k,).
    """
    H_k, S_q, S_k, D = sizes.H_k, sizes.S_q, sizes.S_k, sizes.D
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
        block, queries = Block(b, h, h_k, start_n), Queries(q, do, rows.lse2 + row, rows.delta + row)
        dk_acc, dv_acc = walk_queries(k_tile, v_tile, dk_acc, dv_acc, queries, tiles, block, sizes, mods, aux,
                                      False, BLOCK_M)  # fmt: skip
        dk_acc, dv_acc = walk_queries(k_tile, v_tile, dk_acc, dv_acc, queries, tiles, block, sizes, mods, aux,
                                      True, BLOCK_M)  # fmt: skip
    if mods.drop is not None:
        dv_acc = dv_acc * mods.drop.rescale
    store_tile(dk, dk_acc * mods.scale, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)
    store_tile(dv, dv_acc, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)


@triton.jit
def add_to_dq(queries, dq, k, v, block, start_n, sizes, mods, aux, MASK: tl.constexpr, BLOCK_N: tl.constexpr):
    """tuned.backward.add_to_dq with mods. MASK: the tile is mixed."""
    b, h, h_k, start_m = block
    BLOCK_M: tl.constexpr = queries.q.shape[0]
    BLOCK_D: tl.constexpr = queries.q.shape[1]
    rows = sizes.S_k if MASK else None
    k_tile = load_tile(k, b, h_k, start_n, rows, sizes.D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    v_tile = load_tile(v, b, h_k, start_n, rows, sizes.D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    i = start_m + tl.arange(0, BLOCK_M)[:, None]  # [BLOCK_M, 1]
    j = start_n + tl.arange(0, BLOCK_N)[None, :]  # [1, BLOCK_N]
    keep = None
    if mods.drop is not None:
        keep = kept(b, h, start_m, start_n, mods.drop, BLOCK_M, BLOCK_N)  # [BLOCK_M, BLOCK_N]
    s = dot(queries.q, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N], not scaled
    dp = dot(queries.do, tl.trans(v_tile))  # [BLOCK_M, BLOCK_N]
    lse2, delta = queries.lse2[:, None], queries.delta[:, None]  # [BLOCK_M, 1]
    _, ds = score_gradient(s, dp, lse2, delta, keep, b, h, i, j, sizes, mods, aux, MASK)
    ds = through_mod(ds, s, b, h, i, j, sizes, mods, aux, MASK)
    return dot(ds.to(k_tile.dtype), k_tile, dq)  # [BLOCK_M, BLOCK_D]


@triton.jit
def walk_keys(queries, dq, k, v, tiles, block, sizes, mods, aux, MASK: tl.constexpr, BLOCK_N: tl.constexpr):
    """add_to_dq for every tile of a list: the mixed ones (MASK), or the whole ones."""
    index, step, count = tile_list(tiles, block.b, block.h, block.start // queries.q.shape[0], not MASK)
    tile = tl.load(index, mask=count > 0, other=0)
    for t in range(count):
        start_n = tile * BLOCK_N
        tile = tl.load(index + (t + 1) * step, mask=t + 1 < count, other=0)
        dq = add_to_dq(queries, dq, k, v, block, start_n, sizes, mods, aux, MASK, BLOCK_N)
    return dq


@triton.jit
def dq_kernel(q, k, v, do, dq, rows, tiles, aux, sizes, mods,
              BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """dq. Arguments as in dkdv_kernel; tiles, order and grid of programs as in forward_kernel."""
    H_q, H_k, S_q, D = sizes.H_q, sizes.H_k, sizes.S_q, sizes.D
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    batch_head, row_block = grouped_tile_device(
        tl.program_id(0), tl.num_programs(0) // row_blocks, row_blocks, sizes.heads_at_once)  # fmt: skip
    start_m = (row_blocks - 1 - row_block) * BLOCK_M
    b, h = batch_head // H_q, batch_head % H_q
    block = Block(b, h, h // (H_q // H_k), start_m)

    first = batch_head.to(tl.int64) * tl.cdiv(S_q, MAX_BLOCK) * MAX_BLOCK + start_m
    offs_m = first + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    do_tile = load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    queries = Queries(q_tile, do_tile, tl.load(rows.lse2 + offs_m), tl.load(rows.delta + offs_m))
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    acc = walk_keys(queries, acc, k, v, tiles, block, sizes, mods, aux, False, BLOCK_N)
    acc = walk_keys(queries, acc, k, v, tiles, block, sizes, mods, aux, True, BLOCK_N)
    store_tile(dq, acc * mods.scale, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


@triton.jit
def dmask_kernel(q, k, v, do, dmask_ptr, rows, aux, shared_by, sizes, mods,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """The gradient of an attn_mask of numbers: ds, summed over the batch entries and heads that share each number.

    shared_by: how many batch entries and how many heads. dmask_ptr: (B / entries, H_q / heads, S_q, S_k) float32,
    contiguous. Grid: its tiles, row by row.
    """
    H_q, H_k, S_q, S_k, D = sizes.H_q, sizes.H_k, sizes.S_q, sizes.S_k, sizes.D
    b_shared, h_shared = shared_by
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
        row = (b * H_q + h).to(tl.int64) * tl.cdiv(S_q, MAX_BLOCK) * MAX_BLOCK + offs_m  # [BLOCK_M]
        s = dot(load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D),
                tl.trans(load_tile(k, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)))  # fmt: skip
        dp = dot(load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D),
                 tl.trans(load_tile(v, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)))  # fmt: skip
        keep = None
        if mods.drop is not None:
            keep = kept(b, h, start_m, start_n, mods.drop, BLOCK_M, BLOCK_N)
        lse2, delta = tl.load(rows.lse2 + row)[:, None], tl.load(rows.delta + row)[:, None]  # [BLOCK_M, 1]
        _, ds = score_gradient(s, dp, lse2, delta, keep, b, h, i, j, sizes, mods, aux, True)
        acc += ds
    at = (own.to(tl.int64) * S_q + i) * S_k + j  # [BLOCK_M, BLOCK_N]
    tl.store(dmask_ptr + at, acc, mask=(i < S_q) & (j < S_k))


# As forward.CONFIGS.
CONFIGS = {
    64: backward.BackwardConfig(TileConfig(64, 64, 4, 3), TileConfig(64, 64, 4, 3)),
    128: backward.BackwardConfig(TileConfig(32, 64, 4, 3), TileConfig(128, 64, 8, 3)),
    256: backward.BackwardConfig(TileConfig(32, 64, 8, 2), TileConfig(64, 32, 8, 2)),
}
INTERPRETER_CONFIG = backward.BackwardConfig(TileConfig(32, 32, 4, 1), TileConfig(32, 32, 4, 1))


def choose_config(D: int, dtype: torch.dtype, shared_memory: int | None) -> backward.BackwardConfig:
    """The tiles for a card with `shared_memory` bytes per thread block, or for the interpreter (None). ValueError as
    backward.choose_config."""
    if shared_memory is None:
        return INTERPRETER_CONFIG
    if dtype != torch.float32 and shared_memory >= HOPPER_SHARED_MEMORY:
        return CONFIGS[max(padded_d(D), 64)]
    return backward.choose_config(D, dtype, shared_memory)


@dataclass
class Gradients:
    """Of one variant_backward. dsinks, dmask: float32, None where nobody asked."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    dsinks: torch.Tensor | None = None
    dmask: torch.Tensor | None = None


def variant_backward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, do: torch.Tensor,
                     lse: torch.Tensor, dlse: torch.Tensor | None, mods: Mods, aux: tuple, mask: BlockMask,
                     sinks: torch.Tensor | None = None, mask_shape: tuple[int, ...] | None = None, *,
                     config: backward.BackwardConfig | None = None) -> Gradients:  # fmt: skip
    """Launch the backward's kernels on q's GPU, which must be current. Arguments as variant_forward's and
    flash_backward's; they are not checked.

    mask_shape: (B or 1, H_q or 1, S_q, S_k) where the gradient of an attn_mask is asked for, which the score mod
    must add last.
    """
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    config = config or choose_config(D, q.dtype, card_of(q).shared_memory)
    tma = use_descriptors(q, k, v)
    if tma and not use_descriptors(do):
        do = do.clone(memory_format=torch.contiguous_format)  # o.sum() sends strides of 0
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    rows = Rows(*prepare(o, do, lse, dlse))
    sizes, mods = sizes_of(q, k), positive_scale(mods)

    def on_tiles(tile: TileConfig, *outputs: tuple[torch.Tensor, int]) -> list:
        inputs = (q, tile.block_m), (k, tile.block_n), (v, tile.block_n), (do, tile.block_m)
        return [as_argument(x, block, tma) for x, block in (*inputs, *outputs)]

    block_m, block_n = config.dkdv.block_m, config.dkdv.block_n
    dkdv_kernel[(triton.cdiv(S_k, block_n) * B * H_k,)](
        *on_tiles(config.dkdv, (dk, block_n), (dv, block_n)), rows, mask.tiles(block_m, block_n, of_keys=True),
        aux, sizes, mods, GROUP=H_q // H_k, BLOCK_D=padded_d(D), **config.dkdv.launch(),
    )  # fmt: skip
    block_m, block_n = config.dq.block_m, config.dq.block_n
    dq_kernel[(triton.cdiv(S_q, block_m) * B * H_q,)](
        *on_tiles(config.dq, (dq, block_m)), rows, mask.tiles(block_m, block_n), aux, sizes, mods,
        BLOCK_D=padded_d(D), **config.dq.launch(),
    )  # fmt: skip
    gradients = Gradients(dq, dk, dv)
    if sinks is not None:
        # p of the sink times −delta; in rows beyond S_q p = 0, because prepare gives them lse2 = +inf
        gradients.dsinks = -(torch.exp2(LOG2_E.value * sinks[:, None] - rows.lse2) * rows.delta).sum((0, 2))
    if mask_shape is not None:
        gradients.dmask = torch.empty(mask_shape, dtype=torch.float32, device=q.device)
        shared_by = B // mask_shape[0], H_q // mask_shape[1]
        dmask_kernel[(triton.cdiv(S_q, block_m) * triton.cdiv(S_k, block_n) * mask_shape[0] * mask_shape[1],)](
            *on_tiles(config.dq), gradients.dmask, rows, aux, shared_by, sizes, mods,
            BLOCK_D=padded_d(D), **config.dq.launch(),
        )  # fmt: skip
    return gradients
