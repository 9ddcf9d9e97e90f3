"""Chapter 13 on one GPU: the tiles and joins of a rank of four, each by itself. measure.ring measures the ring."""

import functools
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch

from fa_tutorial import attention, ring
from fa_tutorial.bench.cases import about
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import randn, timed
from fa_tutorial.hopper import forward as hopper_forward
from measure.chapter_8 import settled

H, D, RANKS = 16, 128, 4
S = 131_072
OWNERS = {"own": 1, "earlier": 0, "later": 2}  # whose keys rank 1 computes with


def kernels_cases() -> Iterator[Measurement]:
    """Each tile by the counter, one GPU's whole sequence, and the join of a visitor's part in three ways."""
    yield about(13, "ring_tile", "one GPU", "bf16", S=S, counter=True), _whole_row
    for tile in OWNERS:
        yield about(13, "ring_tile", tile, "bf16", S=S, counter=True), partial(_tile_row, tile)
    for tile, way in itertools.product(("earlier", "later"), JOINS):
        yield about(13, way, tile, "bf16", S=S), partial(_join_row, tile, way)


def _shards(tile: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, slice, bool]:
    """q, k and v of the tile, the rows of q in the rank's shard, and is_causal."""
    rows, keys, is_causal = ring.visible(1, OWNERS[tile], S // RANKS)
    q = randn(1, H, S // RANKS, D, dtype=torch.bfloat16)
    k, v = randn(2, 1, H, S // RANKS, D, dtype=torch.bfloat16)[:, :, :, keys]
    return q, k, v, rows, is_causal


def _tile_row(tile: str) -> dict[str, Any]:
    q, k, v, rows, is_causal = _shards(tile)
    flops = 4 * H * D * (S // RANKS) ** 2 // 2  # every tile has half of the pairs of two shards
    with mock.patch.object(hopper_forward, "in_process_group", lambda: True):
        row = settled(lambda: attention.FORWARD(q[:, :, rows], k, v, is_causal, D**-0.5, "hopper"), flops, at_once=20)
    return row | {"ms": round(flops / row["tflops"] / 1e9, 3)}


def _whole_row() -> dict[str, Any]:
    """The whole sequence's causal attention in a quarter of the heads: what four tiles of a rank compute."""
    q, k, v = randn(3, 1, H // RANKS, S, D, dtype=torch.bfloat16)
    flops = 4 * (H // RANKS) * D * S**2 // 2
    row = settled(lambda: attention.FORWARD(q, k, v, True, D**-0.5, "hopper"), flops, at_once=5)
    return row | {"ms": round(flops / row["tflops"] / 1e9, 3)}


JOINS = {  # of the running o and lse with a part's
    "ring_join": lambda o, lse, *part: [
        x.copy_(new) for x, new in zip((o, lse), ring.merge(o, lse, *part), strict=True)
    ],
    "ring_join_kernel": ring.merge_into,
    "ring_join_copy": lambda o, lse, o_part, lse_part: _copy_of_as_many_bytes(2 * o.nbytes + o_part.nbytes),
}


@functools.cache
def _halves(nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(2, nbytes // 2, dtype=torch.uint8, device="cuda").unbind()


def _copy_of_as_many_bytes(nbytes: int) -> None:
    """What is read and what is written are nbytes together."""
    source, target = _halves(nbytes)
    target.copy_(source)


def _join_row(tile: str, way: str) -> dict[str, Any]:
    q, k, v, rows, is_causal = _shards(tile)
    part = attention.FORWARD(q[:, :, rows], k, v, is_causal, D**-0.5, "hopper")
    o, lse = (torch.zeros(1, H, S // RANKS, *last, device="cuda")[:, :, rows] for last in ((D,), ()))
    return timed(lambda: JOINS[way](o, lse, *part))
