"""Chapter 8: which tensors TMA can reach, and how to make their descriptors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from fa_tutorial.hardware import HOPPER_CAPABILITY, card, require_triton
from fa_tutorial.tiles import padded_d

require_triton("Chapter 8 (fa_tutorial.tuned)")
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

TMA_CAPABILITY = HOPPER_CAPABILITY  # and all later ones


@functools.lru_cache(maxsize=1024)
def can_use_tma(signature: tuple) -> bool:
    """True where TMA can move the (B, H, S, D) tensors of launching.signature_of, and contiguous ones of the same D.

    The card must have TMA, D must have stride 1, addresses and all other strides must be multiples of 16 bytes, and no
    dimension may be expanded.
    """
    return all(
        card(device.index).capability >= TMA_CAPABILITY
        and alignment == 0
        and strides[3] == 1
        and shape[3] * dtype.itemsize % 16 == 0
        and all(
            stride > 0 and stride * dtype.itemsize % 16 == 0
            for size, stride in zip(shape[:3], strides[:3], strict=True)
            if size > 1
        )
        for shape, strides, dtype, device, alignment in signature
    )


def descriptor_template(
    x: torch.Tensor, rows: int, kind: type = TensorDescriptor, *layout
) -> Callable[[torch.Tensor], Any]:
    """Return a function that makes descriptors of tensors like x, (B, H, S, D), with tiles of `rows` rows of one head,
    D padded to BLOCK_D.

    A tile that runs over a head's end is filled with zeros, not with the next head. A stride along a dimension of size
    1 is never used, and may be anything that passes the descriptor's checks. kind, layout: Gluon has a descriptor of
    its own, which names how a tile lies in shared memory.
    """
    strides = [stride if size > 1 else 16 for size, stride in zip(x.shape[:3], x.stride()[:3], strict=True)]
    box = list(x.shape), [*strides, 1], [1, 1, rows, padded_d(x.shape[3])], *layout
    return lambda x: kind(x, *box)
