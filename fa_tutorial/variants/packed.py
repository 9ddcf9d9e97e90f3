"""Chapter 10: packed rows, sequences of different lengths, back to back, without padding.

Their mask is a mod like any other; its tiles are found in ranges. Nothing here makes the CPU wait for the GPU: what
depends on the sequences' lengths is made by kernels.
"""

from __future__ import annotations

import torch

from fa_tutorial.hardware import require_triton
from fa_tutorial.variants.mods import Aux, packed_window
from fa_tutorial.variants.tile_lists import BlockMask

triton = require_triton("Chapter 10 (fa_tutorial.variants)")
import triton.language as tl  # noqa: E402

TOKENS = 256  # a program of packed_rows_kernel


@triton.jit
def sequence_of(token, cu, sequences):
    """The number of the sequence in which a token stands, by bisection: how many of the ends cu[1], cu[2], … are at or
    before it. At most sequences − 1."""
    found = token * 0
    step = 1 << 30
    while step > sequences:
        step = step // 2
    while step > 0:
        is_past = found + step < sequences
        is_past = is_past & (tl.load(cu + found + step, mask=is_past, other=0) <= token)
        found = tl.where(is_past, found + step, found)
        step = step // 2
    return found


@triton.jit
def packed_range(first, last, aux, OF_KEYS: tl.constexpr):
    """tile_lists_kernel's RANGE: from the first row's sequence to the last row's."""
    own = aux.cu_k if OF_KEYS else aux.cu_q
    other = aux.cu_q if OF_KEYS else aux.cu_k
    return tl.load(other + sequence_of(first, own, aux.sequences)), tl.load(
        other + sequence_of(last, own, aux.sequences) + 1
    )


@triton.jit
def packed_rows_kernel(aux, total_q, BLOCK: tl.constexpr):
    """Write aux's diagonal, first and end, (total_q,) int32 each. Grid: (ceil(total_q / BLOCK),)."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sequence = sequence_of(i, aux.cu_q, aux.sequences)
    first, end = tl.load(aux.cu_k + sequence), tl.load(aux.cu_k + sequence + 1)
    diagonal = i + end - tl.load(aux.cu_q + sequence + 1)  # the last query of a sequence sees its last key
    tl.store(aux.diagonal + i, diagonal, mask=i < total_q)
    tl.store(aux.first + i, first, mask=i < total_q)
    tl.store(aux.end + i, end, mask=i < total_q)


def packed_block_mask(
    cu_q: torch.Tensor, cu_k: torch.Tensor, total_q: int, total_k: int, left: int | None, right: int | None
) -> BlockMask:
    """The block mask of rows that are packed as cu_q and cu_k say, (sequences + 1,) int32, with a window in each
    sequence."""
    diagonal, first, end = torch.empty((3, total_q), dtype=torch.int32, device=cu_q.device).unbind()
    cu_q, cu_k = cu_q.contiguous(), cu_k.contiguous()
    aux = Aux(
        diagonal=diagonal, first=first, end=end, cu_q=cu_q, cu_k=cu_k, sequences=cu_q.shape[0] - 1, left=left,
        right=right,
    )  # fmt: skip
    packed_rows_kernel[(triton.cdiv(total_q, TOKENS),)](aux, total_q, BLOCK=TOKENS)
    return BlockMask(packed_window, aux, 1, 1, total_q, total_k, cu_q.device, packed_range)
