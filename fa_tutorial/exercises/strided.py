"""Tensors (B, H, S, D) by their strides, and the ways to read them by wrong ones, for the twins of kernels that take views.

A mistake "how q+k" reads q and k in the way `how`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch

OWN = "each tensor has its own four strides"
BHSD, BSHD, BHDS, BDHS = (0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (0, 3, 1, 2)  # dimensions, from the slowest in memory to the fastest
UNLIKE = (0, 2, 3, 1), (0, 3, 2, 1), (2, 0, 3, 1), BDHS  # no last stride is 1, no batch lies H heads on, and all strides differ


def reread(memory, strides, shape, how, S_other=0):
    """A tensor of this shape in memory by these strides, read in the way that `how` says; RuntimeError where that leaves the memory."""
    H = shape[1]
    own = torch.empty(shape, device="meta").stride()
    used = {"contiguous": own, "last_stride": (*strides[:-1], 1), "batch_by_heads": (H * strides[1], *strides[1:]),
            "origin": (0, 0, *strides[2:]), "head_0": (strides[0], 0, *strides[2:]), "batch_0": (0, *strides[1:]), "exchanged": (strides[1], strides[0], *strides[2:]),
            "by_keys": (H * S_other, S_other, 1)}.get(how, strides)  # fmt: skip
    return memory.as_strided(shape, how if isinstance(how, tuple) else used)


HOW = {
    "origin": "read from head 0 by every program, and from batch 0: add the batch's and the head's offset",
    "head_0": "read from head 0 by every program: add the head's offset, h = (pid // blocks) % H",
    "batch_0": "read from batch 0 by every program: add the batch's offset, b = (pid // blocks) // H",
    "exchanged": "read with batch and head exchanged: // H gives b, % H gives h",
    "contiguous": f"read as if it were contiguous: {OWN}",
    "last_stride": "read without the last stride, from one column to the next: it need not be 1",
    "batch_by_heads": "read at (b · H + h) times a head's stride: in a view a batch need not lie H heads on, so it has a stride of its own",
}


def joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def read_mistakes(hows: Iterable[str], groups: Iterable[str]) -> dict[str, str]:
    """The mistakes to read each group of tensors, "q+k", in each of these ways."""
    found = {f"{how} {group}": f"{joined(group.split('+'))} is {HOW[how]}" for how in hows for group in groups}
    return {how: words.replace(" is ", " are ").replace("it were", "they were") if "+" in how else words for how, words in found.items()}


def stride_mistakes(names: Sequence[str]) -> dict[str, str]:
    """Ways to read tensors, all of which have other strides, by wrong ones."""
    found = read_mistakes(("contiguous", "last_stride", "batch_by_heads"), ("+".join(names), *names))
    return found | {f"strides_of_{b} {a}": f"{a} is read by the strides of {b}: {OWN}" for a, b in itertools.permutations(names, 2)}


def strides_in(shape: Sequence[int], order: Sequence[int], pad: int = 0) -> tuple[int, ...]:
    """Strides of a tensor whose dimensions lie in memory in this order; pad: unused elements after each run of the last."""
    strides, step = [0] * 4, 1
    for dim in reversed(order):
        strides[dim], step, pad = step, step * shape[dim] + pad, 0
    return tuple(strides)
