"""Chapter 10: which tiles a mask leaves (FlexAttention's block mask).

For every block of queries these are the tiles of keys that it sees in part and those that it sees whole, and the other
way round. The kernels walk over these lists, so a tile that nobody sees costs nothing, and one that is seen whole costs
no mask.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from fa_tutorial.hardware import require_triton
from fa_tutorial.variants.mods import mask_pointers

triton = require_triton("Chapter 10 (fa_tutorial.variants)")
import triton.language as tl  # noqa: E402


class TileLists(NamedTuple):
    """Lists as one argument of a kernel. index: (B or 1, H or 1, blocks, across) int32, tile numbers: in each row the
    mixed tiles from its start on, and the whole ones from its end backwards. count: (2, B or 1, H or 1, blocks) int32,
    how many mixed tiles, and how many whole ones.

    rows: how many there are in index; stride_b, stride_h: from one batch entry's or head's first row to the next, 0
    where they share their lists.
    """

    index: Any
    count: Any
    rows: Any
    stride_b: Any
    stride_h: Any
    across: Any


@triton.jit
def tile_list(tiles, b, h, block, WHOLE: tl.constexpr):
    """This block's mixed tiles, or whole ones: pointer to the first, step to the next, how many."""
    row = b * tiles.stride_b + h * tiles.stride_h + block
    index = tiles.index + tl.cast(row, tl.int64) * tiles.across
    if WHOLE:
        return index + tiles.across - 1, -1, tl.load(tiles.count + tiles.rows + row)
    else:
        return index, 1, tl.load(tiles.count + row)


@triton.jit
def seen_pairs(b, h, i, j, aux, S_q, S_k, MASK_MOD: tl.constexpr):
    """Where query i may see key j and both exist. The mod is asked of pairs inside the sequences only.
    i, j: [M, 1] and [1, N], or [1, M] and [N, 1]."""
    inside = (i < S_q) & (j < S_k)
    if MASK_MOD is not None:
        inside = inside & MASK_MOD(b, h, tl.minimum(i, S_q - 1), tl.minimum(j, S_k - 1), aux)
    return inside


@triton.jit
def ask_every_pair(b, h, start_m, start_n, aux, S_q, S_k, MASK_MOD: tl.constexpr,
                   BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """(whether any pair of a tile is seen, whether all are)."""
    i = start_m + tl.arange(0, BLOCK_M)[:, None]  # [BLOCK_M, 1]
    j = start_n + tl.arange(0, BLOCK_N)[None, :]  # [1, BLOCK_N]
    pairs = tl.sum(tl.sum(seen_pairs(b, h, i, j, aux, S_q, S_k, MASK_MOD).to(tl.int32), axis=1), axis=0)
    return pairs > 0, pairs == BLOCK_M * BLOCK_N


@triton.jit
def ask_keys(b, h, start_m, start_n, aux, S_q, S_k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """ask_every_pair of mods.allowed_in_window, where attn_mask is the same for every query, from BLOCK_N looks and the
    window's two corners. A tile may count as seen that shows no pair: where attn_mask and the window show other keys.
    """
    j = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
    keys = tl.load(mask_pointers(b, h, 0, j, aux), mask=j < S_k, other=0)  # [BLOCK_N], 1: seen
    shown = tl.sum(keys.to(tl.int32), axis=0)
    is_needed, is_whole = shown > 0, (shown == BLOCK_N) & (start_m + BLOCK_M <= S_q)
    least = start_n - (tl.minimum(start_m + BLOCK_M, S_q) - 1 + aux.offset)  # distance of first key and last query
    largest = tl.minimum(start_n + BLOCK_N, S_k) - 1 - (start_m + aux.offset)  # of last key and first query
    if aux.left is not None:
        is_needed, is_whole = is_needed & (largest >= -aux.left), is_whole & (least >= -aux.left)
    if aux.right is not None:
        is_needed, is_whole = is_needed & (least <= aux.right), is_whole & (largest <= aux.right)
    return is_needed, is_whole


@triton.jit
def tile_lists_kernel(tiles, aux, H, S_q, S_k, MASK_MOD: tl.constexpr, KEYS_ALONE: tl.constexpr,
                      RANGE: tl.constexpr, OF_KEYS: tl.constexpr,
                      BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """Write one block's two lists: a query block's over tiles of keys, or (OF_KEYS) a key block's over tiles of
    queries.

    KEYS_ALONE: the mask is one for ask_keys. RANGE: None, or a function (first, last, aux, OF_KEYS) of a block's rows
    that gives the rows of the other side that it can see: from the first one to before the second. Grid: (blocks ·
    batch entries · heads of the lists,).
    """
    S, across_S = (S_k, S_q) if OF_KEYS else (S_q, S_k)
    ROWS: tl.constexpr = BLOCK_N if OF_KEYS else BLOCK_M
    COLUMNS: tl.constexpr = BLOCK_M if OF_KEYS else BLOCK_N
    blocks = tl.cdiv(S, ROWS)
    block, b, h = tl.program_id(0) % blocks, tl.program_id(0) // blocks // H, tl.program_id(0) // blocks % H
    row = b * tiles.stride_b + h * tiles.stride_h + block
    index = tiles.index + row.to(tl.int64) * tiles.across
    first, end = 0, tiles.across
    if RANGE is not None:
        first, end = RANGE(block * ROWS, tl.minimum(block * ROWS + ROWS, S) - 1, aux, OF_KEYS)
        first, end = tl.maximum(first, 0) // COLUMNS, tl.cdiv(tl.minimum(end, across_S), COLUMNS)
    mixed, whole = 0, 0
    for tile in range(first, end):
        start_m, start_n = (tile if OF_KEYS else block) * BLOCK_M, (block if OF_KEYS else tile) * BLOCK_N
        if KEYS_ALONE:
            is_needed, is_whole = ask_keys(b, h, start_m, start_n, aux, S_q, S_k, BLOCK_M, BLOCK_N)
        else:
            is_needed, is_whole = ask_every_pair(b, h, start_m, start_n, aux, S_q, S_k, MASK_MOD, BLOCK_M, BLOCK_N)
        is_mixed = is_needed & (is_whole == 0)
        tl.store(index + mixed, tile, mask=is_mixed)
        tl.store(index + tiles.across - 1 - whole, tile, mask=is_whole)
        mixed += is_mixed.to(tl.int32)
        whole += is_whole.to(tl.int32)
    tl.store(tiles.count + row, mixed)
    tl.store(tiles.count + tiles.rows + row, whole)


@dataclass
class BlockMask:
    """The tile lists of a mask mod for one B, H, S_q and S_k, made when a kernel first asks for those of its tiles, and
    kept for their stream.

    Lists that a CUDA graph makes aren't kept: their memory is the graph's, and nothing is in it until the graph is
    replayed. B, H: 1 where the mask is the same for every batch entry or head; None for as many as a call has, see
    of_call.
    range: None, or tile_lists_kernel's RANGE; keys_alone: its KEYS_ALONE.
    """

    mask: Any
    aux: tuple
    B: int | None
    H: int | None
    S_q: int
    S_k: int
    device: torch.device
    range: Any = None
    keys_alone: bool = False
    made: dict = field(default_factory=dict)

    def of_call(self, B: int, H: int) -> BlockMask:
        """The block mask of a call with B batch entries and H query heads. It keeps its lists where this one does."""
        return replace(self, B=B if self.B is None else self.B, H=H if self.H is None else self.H)

    def tiles(self, block_m: int, block_n: int, of_keys: bool = False) -> TileLists:
        """The lists for tiles of block_m queries and block_n keys, for every query block, or (of_keys) every key block.

        Where B or H is None, those of the first batch entry or head.
        """
        stream = 0
        if self.device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return self.make(block_m, block_n, of_keys)
            stream = torch.cuda.current_stream(self.device).cuda_stream
        key = (block_m, block_n, of_keys, stream, self.B, self.H)
        if key not in self.made:
            self.made[key] = self.make(block_m, block_n, of_keys)
        return self.made[key]

    def make(self, block_m: int, block_n: int, of_keys: bool) -> TileLists:
        blocks, across = triton.cdiv(self.S_q, block_m), triton.cdiv(self.S_k, block_n)
        if of_keys:
            blocks, across = across, blocks
        B, H = self.B or 1, self.H or 1
        index = torch.empty((B, H, blocks, across), dtype=torch.int32, device=self.device)
        count = torch.empty((2, B, H, blocks), dtype=torch.int32, device=self.device)
        stride_b, stride_h = (H * blocks if B > 1 else 0), (blocks if H > 1 else 0)
        tiles = TileLists(index, count, B * H * blocks, stride_b, stride_h, across)
        tile_lists_kernel[(blocks * B * H,)](
            tiles, self.aux, H, self.S_q, self.S_k, MASK_MOD=self.mask, KEYS_ALONE=self.keys_alone,
            RANGE=self.range, OF_KEYS=of_keys, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=8,
        )  # fmt: skip
        return tiles
