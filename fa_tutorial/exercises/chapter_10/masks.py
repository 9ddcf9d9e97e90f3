"""The masks of chapter 10's inputs, each called by a number: a window with so many keys before the query's own, or one of MODS."""

import torch

from fa_tutorial.exercises.chapter_10.ex_1 import window
from fa_tutorial.exercises.chapter_10.jitted_mod import Aux
from fa_tutorial.exercises.harness_kernel import In, Out
from fa_tutorial.matmul import tl, triton


@triton.jit
def every_third(b, h, i, j, aux):
    """Each head of each batch entry sees keys of its own in every tile."""
    return (i >= 0) & ((j + b + 2 * h) % 3 == 0)


@triton.jit
def late(b, h, i, j, aux):
    """The first 16 queries see no key, and nobody the first 16 keys."""
    return (i >= 16) & (j >= 16)


@triton.jit
def noting(b, h, i, j, aux):
    """Shows nothing, and sets aux.asked to 1 when it is asked."""
    tl.store(aux.asked + 0 * (i + j), 1.0)
    return (i < 0) & (j < 0)


THIRD, LATE = -1, -2
MODS = {THIRD: (every_third, "every third key"), LATE: (late, "from query 16 and key 16 on")}


def mod_and_words(left):
    """The mask mod, and the mask in words."""
    return MODS.get(left, (window, f"a window of {left} key{'s' * (left != 1)} and the query's own"))


def is_seen(B, H, S_q, S_k, left):
    """(B, H, S_q, S_k) booleans."""
    b, h, i, j = torch.meshgrid(*map(torch.arange, (B, H, S_q, S_k)), indexing="ij")
    return mod_and_words(left)[0].fn(b, h, i, j, Aux(left, S_k - S_q))


def views(*tensors):
    """Each as a kernel's input, and an output like the first: Heads (B, H, S, D) that lie in memory as (B, S, H, D)."""
    strides = [(H * S * D, D, H * D, 1) for _, H, S, D in (x.shape for x in tensors)]
    inputs = [In(x, its, as_heads=True) for x, its in zip(tensors, strides, strict=True)]
    return *inputs, Out(tensors[0].shape, tensors[0].dtype, strides[0], as_heads=True)


def lists(seen, block_m, block_n):
    """(index, count) of a mask's tiles as the package's block masks have them, int32: in each row of index the mixed tiles, and the whole
    ones from its end, even and odd ones apart, so that no list is a run; count: (2, blocks of queries). An entry between them repeats a
    needed tile."""
    tiles = [rows.split(block_n, dim=1) for rows in seen[0, 0].split(block_m)]
    pairs = torch.tensor([[tile.sum() for tile in row] for row in tiles])
    mixed, whole = (pairs > 0) & (pairs < block_m * block_n), pairs == block_m * block_n
    place = torch.arange(len(tiles[0]))
    index = ((whole.int() - mixed.int()) * (2 - place % 2)).argsort(dim=1, stable=True)
    count = torch.stack([mixed.sum(dim=1), whole.sum(dim=1)])
    unused = (place >= count[0][:, None]) & (place < len(place) - count[1][:, None])
    return torch.where(unused, pairs.argmax(dim=1)[:, None], index).int(), count.int()
