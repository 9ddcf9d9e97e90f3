"""Packed rows: sequences of different lengths, one behind the other, without padding. The mask is a mod like any other; its tiles are found in ranges."""

from __future__ import annotations

import torch

from fa_tutorial.hardware import require_triton
from fa_tutorial.variants.mods import Aux, packed_window
from fa_tutorial.variants.tile_lists import BlockMask

triton = require_triton("Chapter 10 (fa_tutorial.variants)")


def sequence_of(tokens: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
    """The number of the sequence in which each token stands; for a token behind the last sequence, the last."""
    return torch.searchsorted(cu_seqlens[1:], tokens, right=True).clamp_(max=cu_seqlens.shape[0] - 2)


def packed_rows(cu_q: torch.Tensor, cu_k: torch.Tensor, total_q: int, left: int | None, right: int | None) -> Aux:
    """Aux of rows packed as cu_q and cu_k say, (B + 1,) int32. No GPU waits for the CPU here."""
    tokens = torch.arange(total_q, dtype=torch.int32, device=cu_q.device)
    sequence = sequence_of(tokens, cu_q)
    end = cu_k[sequence + 1]
    diagonal = tokens + end - cu_q[sequence + 1]  # the last query of a sequence sees its last key
    return Aux(diagonal=diagonal, first=cu_k[sequence], end=end, left=left, right=right)


def packed_block_mask(aux: Aux, cu_q: torch.Tensor, cu_k: torch.Tensor, total_q: int, total_k: int) -> BlockMask:
    """Each block looks only at the tiles from its first token's sequence to its last token's."""

    def ranges(block_m: int, block_n: int, of_keys: bool) -> torch.Tensor:
        own, other, total, most, rows, columns = (
            (cu_k, cu_q, total_k, total_q, block_n, block_m) if of_keys else (cu_q, cu_k, total_q, total_k, block_m, block_n)
        )
        starts = torch.arange(0, total, rows, dtype=torch.int32, device=own.device)
        first = other[sequence_of(starts, own)] // columns
        end = (other[sequence_of((starts + rows - 1).clamp_(max=total - 1), own) + 1].clamp(max=most) + columns - 1) // columns
        return torch.stack([first, end])

    return BlockMask(packed_window, aux, 1, 1, total_q, total_k, cu_q.device, ranges)
