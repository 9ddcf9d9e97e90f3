"""Chapter 10's forward: chapter 8's kernel, in base 2, with a score mod and a mask mod, walking over lists of tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from fa_tutorial import forward
from fa_tutorial.hardware import card_of, require_triton
from fa_tutorial.matmul import grouped_tile_device
from fa_tutorial.tiles import TileConfig, dot, heads, load_tile, padded_d, store_tile
from fa_tutorial.tuned.descriptors import can_use_tma, descriptor_template
from fa_tutorial.tuned.forward import DOWN, LN_2, LOG2_E, UP, heads_at_once
from fa_tutorial.tuned.launching import signature_of
from fa_tutorial.variants.mods import Mods, unchanged
from fa_tutorial.variants.tile_lists import BlockMask, seen_pairs, tile_list

triton = require_triton("Chapter 10 (fa_tutorial.variants)")
import triton.language as tl  # noqa: E402


class Sizes(NamedTuple):
    """The sizes of a call as one argument of a kernel. heads_at_once: heads whose programs run side by side (8.6)."""

    H_q: Any
    H_k: Any
    heads_at_once: Any
    S_q: Any
    S_k: Any
    D: Any


class Block(NamedTuple):
    """A program's block: its batch entry, query head and key head, and its first row of q, or of k in dkdv_kernel."""

    b: Any
    h: Any
    h_k: Any
    start: Any


@triton.jit
def kept(b, h, start_m, start_n, drop, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """[BLOCK_M, BLOCK_N] booleans, False where dropout takes p away.

    The pair of query i and key j has word j % 4 of Philox's four at the counter
    (i, j // 4, b · H_q + h, offset), whatever the tiles are.
    """
    zero = tl.zeros((BLOCK_M, BLOCK_N // 4), dtype=tl.int32)
    i = zero + start_m + tl.arange(0, BLOCK_M)[:, None]
    fours = zero + start_n // 4 + tl.arange(0, BLOCK_N // 4)[None, :]  # four keys share a counter
    seed, offset = tl.load(drop.rng), tl.load(drop.rng + 1).to(tl.int32)
    w0, w1, w2, w3 = tl.philox(seed, i, fours, zero + (b * drop.H_q + h), zero + offset)
    t = tl.cast(drop.threshold, tl.uint32)
    # [BLOCK_M, BLOCK_N // 4, 2, 2]: join interleaves two tiles, so words 0, 1, 2, 3 lie side by side
    words = tl.join(tl.join(w0 >= t, w2 >= t), tl.join(w1 >= t, w3 >= t))
    return words.reshape([BLOCK_M, BLOCK_N])


@triton.jit
def modified(s, b, h, i, j, sizes, mods, aux, MASK: tl.constexpr):
    """(s, factor): the scores to be used times factor are in base 2. s: a tile of q kᵀ, not scaled."""
    if mods.score is None:
        factor = mods.scale * LOG2_E
    else:
        if MASK:
            i, j = tl.minimum(i, sizes.S_q - 1), tl.minimum(j, sizes.S_k - 1)
        s = mods.score(s * mods.scale, b, h, i, j, aux)
        factor = LOG2_E
    return s, factor


@triton.jit
def attend(q_tile, k, v, m, l, acc, block, start_n, sizes, mods, aux,
           MASK: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """tuned.forward.attend with mods. MASK: the tile is mixed."""
    b, h, h_k, start_m = block
    BLOCK_M: tl.constexpr = q_tile.shape[0]
    BLOCK_D: tl.constexpr = q_tile.shape[1]
    if mods.drop is not None:
        keep = kept(b, h, start_m, start_n, mods.drop, BLOCK_M, BLOCK_N)  # [BLOCK_M, BLOCK_N]
    rows = sizes.S_k if MASK else None
    k_tile = load_tile(k, b, h_k, start_n, rows, sizes.D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    i = start_m + tl.arange(0, BLOCK_M)[:, None]  # [BLOCK_M, 1]
    j = start_n + tl.arange(0, BLOCK_N)[None, :]  # [1, BLOCK_N]
    s = dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N], not scaled yet
    s, factor = modified(s, b, h, i, j, sizes, mods, aux, MASK)
    if MASK:
        s = tl.where(seen_pairs(b, h, i, j, aux, sizes.S_q, sizes.S_k, mods.mask), s, -float("inf"))
    row_max = tl.max(s, axis=1)  # [BLOCK_M]
    m_new = tl.maximum(m, tl.maximum(row_max * (factor * UP), row_max * (factor * DOWN)))  # [BLOCK_M]
    shift = m_new
    if MASK or mods.score is not None:  # only here can a row have seen nothing yet
        shift = tl.where(m_new == -float("inf"), 0.0, m_new)  # [BLOCK_M]
    p = tl.exp2(s * factor - shift[:, None])  # [BLOCK_M, BLOCK_N]
    alpha = tl.exp2(m - shift)  # [BLOCK_M]
    l = alpha * l + tl.sum(p, axis=1)  # of all pairs that are seen, dropped or not
    if mods.drop is not None:
        p = tl.where(keep, p, 0.0)
    acc = acc * alpha[:, None]  # [BLOCK_M, BLOCK_D]
    v_tile = load_tile(v, b, h_k, start_n, rows, sizes.D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    acc = dot(p.to(v_tile.dtype), v_tile, acc)
    return m_new, l, acc


@triton.jit
def attend_tiles(q_tile, k, v, m, l, acc, tiles, block, sizes, mods, aux,
                 MASK: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """`attend` for every tile of a list: the mixed ones (MASK), or the whole ones."""
    index, step, count = tile_list(tiles, block.b, block.h, block.start // q_tile.shape[0], not MASK)
    tile = tl.load(index, mask=count > 0, other=0)
    for t in range(count):
        start_n = tile * BLOCK_N
        # A tile ahead, so that no load of keys waits for it.
        tile = tl.load(index + (t + 1) * step, mask=t + 1 < count, other=0)
        m, l, acc = attend(q_tile, k, v, m, l, acc, block, start_n, sizes, mods, aux, MASK, BLOCK_N)
    return m, l, acc


@triton.jit
def forward_kernel(q, k, v, o, lse_ptr, sinks_ptr, tiles, aux, sizes, mods,
                   BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """o and lse of softmax(mods.score(scale · q kᵀ)) v over the pairs of mods.mask.

    q, o: Heads (B, H_q, S_q, D); k, v: Heads (B, H_k, S_k, D); lse_ptr: (B, H_q, S_q) float32; sinks_ptr: (H_q,)
    float32, or None; tiles: TileLists of query blocks; mods.scale: positive, unless there is a score mod.
    Grid: (ceil(S_q / BLOCK_M) · B · H_q,), as tuned.forward's, the last row blocks first, which under a causal mask are
    the longest.
    """
    H_q, H_k, S_q, D = sizes.H_q, sizes.H_k, sizes.S_q, sizes.D
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    batch_head, row_block = grouped_tile_device(
        tl.program_id(0), tl.num_programs(0) // row_blocks, row_blocks, sizes.heads_at_once)  # fmt: skip
    start_m = (row_blocks - 1 - row_block) * BLOCK_M
    b, h = batch_head // H_q, batch_head % H_q
    block = Block(b, h, h // (H_q // H_k), start_m)

    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    if sinks_ptr is not None:  # a key before all others, whose value is 0
        m = tl.full((BLOCK_M,), 0.0, dtype=tl.float32) + tl.load(sinks_ptr + h) * LOG2_E
        l += 1.0
    m, l, acc = attend_tiles(q_tile, k, v, m, l, acc, tiles, block, sizes, mods, aux, False, BLOCK_N)
    m, l, acc = attend_tiles(q_tile, k, v, m, l, acc, tiles, block, sizes, mods, aux, True, BLOCK_N)

    l_or_one = tl.where(l == 0.0, 1.0, l)
    weight = 1.0 / l_or_one  # [BLOCK_M]
    if mods.drop is not None:
        weight = weight * mods.drop.rescale
    store_tile(o, acc * weight[:, None], b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)
    lse = tl.where(l == 0.0, -float("inf"), (m + tl.log2(l_or_one)) * LN_2)
    tl.store(lse_ptr + batch_head.to(tl.int64) * S_q + offs_m, lse, mask=offs_m < S_q)


# As forward.CONFIGS, for fp16 and bf16 on cards with 227 KiB of shared memory per thread block. Others take the tiles
# of chapter 5: with mods they compile there, see tools/compile_report.py, and were not measured.
CONFIGS = {64: TileConfig(64, 64, 4, 3), 128: TileConfig(64, 64, 4, 3), 256: TileConfig(64, 32, 4, 2)}
HOPPER_SHARED_MEMORY = 232_448
INTERPRETER_CONFIG = TileConfig(32, 32, 4, 1)


def choose_config(D: int, dtype: torch.dtype, shared_memory: int | None, dropout: bool = False) -> TileConfig:
    """The tile for a card with `shared_memory` bytes per thread block; None means the interpreter."""
    if shared_memory is None:
        return INTERPRETER_CONFIG
    if dtype != torch.float32 and shared_memory >= HOPPER_SHARED_MEMORY:
        tile = CONFIGS[max(padded_d(D), 64)]
        # Three stages and dropout leave room for one program on an SM at D = 128, two stages for two.
        return replace(tile, num_stages=2) if dropout else tile
    return forward.choose_config(D, dtype, shared_memory)


def positive_scale(mods: Mods) -> Mods:
    """The kernels' mods. Without a score mod they take the maximum before they scale: that takes a positive scale."""
    return mods._replace(score=unchanged) if mods.score is None and mods.scale <= 0 else mods


def sizes_of(q: torch.Tensor, k: torch.Tensor) -> Sizes:
    (_, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    return Sizes(H_q, H_k, heads_at_once(S_k), S_q, S_k, D)


def use_descriptors(*tensors: torch.Tensor) -> bool:
    """True where TMA can reach the tensors, on a card with the shared memory that these tiles are made for."""
    shared_memory = card_of(tensors[0]).shared_memory
    return (shared_memory is None or shared_memory >= HOPPER_SHARED_MEMORY) and can_use_tma(signature_of(*tensors))


def as_argument(x: torch.Tensor, rows: int, tma: bool) -> Any:
    """x as a kernel takes it: a descriptor of tiles of `rows` rows, or Heads."""
    return descriptor_template(x, rows)(x) if tma else heads(x)


def variant_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mods: Mods, aux: tuple, mask: BlockMask,
                    sinks: torch.Tensor | None = None, o: torch.Tensor | None = None, *,
                    config: TileConfig | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Launch forward_kernel on q's GPU, which must be current. It trusts its arguments.

    q: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D), any strides, none empty; mask: of mods.mask and aux; sinks: (H_q,)
    float32, contiguous. o: where the result goes, of q's shape. Returns o, contiguous unless it was given, and lse
    (B, H_q, S_q) float32.
    """
    B, H_q, S_q, D = q.shape
    o = torch.empty_like(q, memory_format=torch.contiguous_format) if o is None else o
    lse = torch.empty((B, H_q, S_q), dtype=torch.float32, device=q.device)
    config = config or choose_config(D, q.dtype, card_of(q).shared_memory, mods.drop is not None)
    block_m, block_n, tma = config.block_m, config.block_n, use_descriptors(q, k, v)
    on_tiles = [as_argument(x, rows, tma) for x, rows in ((q, block_m), (k, block_n), (v, block_n), (o, block_m))]
    forward_kernel[(triton.cdiv(S_q, block_m) * B * H_q,)](
        *on_tiles, lse, sinks, mask.tiles(block_m, block_n), aux, sizes_of(q, k), positive_scale(mods),
        BLOCK_D=padded_d(D), **config.launch(),
    )  # fmt: skip
    return o, lse
