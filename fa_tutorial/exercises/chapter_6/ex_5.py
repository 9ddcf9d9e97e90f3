"""Exercise 6.5, dkdv_loop."""

import functools
import math

import torch

from fa_tutorial.algorithm import p_and_ds
from fa_tutorial.exercises.chapter_6 import shared
from fa_tutorial.exercises.chapter_6.shared import CONDITIONS, DELTA, HALF, HEADS, MASK, OWNED, RAGGED, SCALES, TILE, WEIGHTS, tolerance
from fa_tutorial.exercises.gradient_twin import gradient_twin
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.exercises.watch import GradientTiles


def dkdv_loop(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    """(dk, dv). q, do: (B, H, S_q, D); k, v: (B, H, S_k, D); lse, delta: (B, H, S_q)."""
    S_q, S_k = q.shape[2], k.shape[2]
    lse = torch.where(lse == -math.inf, math.inf, lse)  # rows that see nothing: p = 0
    dk, dv = torch.zeros(k.shape, dtype=lse.dtype), torch.zeros(v.shape, dtype=lse.dtype)
    for j in range(0, S_k, block_n):
        keys = slice(j, min(j + block_n, S_k))
        for i in range(0, S_q, block_m):
            rows = slice(i, min(i + block_m, S_q))
            p, ds = p_and_ds(q, k, v, do, lse, delta, rows, keys, is_causal, scale)
            dv[:, :, keys] += p.transpose(-1, -2) @ do[:, :, rows].to(p.dtype)
            dk[:, :, keys] += scale * ds.transpose(-1, -2) @ q[:, :, rows].to(ds.dtype)
    return dk.to(k.dtype), dv.to(v.dtype)


MISTAKES = {
    **DELTA,
    **TILE,
    **WEIGHTS,
    **SCALES,
    "dk_dv": "dk and dv are exchanged: return (dk, dv)",
    **HEADS,
    **MASK,
    "ds_unmasked": "ds is not masked: at a hidden pair it is 0, because p is",
    "first_row_decides": "a block of rows is skipped where its first row does not see the first key: its later rows may see it",
    "mask_first": "only the first block of rows is masked: several may see the key block in part",
    "start_below_0": "row 0 is counted twice for key 0: no block of rows comes before row 0, and a slice with a negative start counts from the end",
    **RAGGED,
    "dk_over": "dk is overwritten in every step: add up the row blocks",
    "dv_over": "dv is overwritten in every step: add up the row blocks",
    "dkv_over": "dk and dv are overwritten in every step: add up the row blocks",
    "dkv_first_rows": "only the first block of rows reaches dk and dv",
    "dkv_first_keys": "only the first key block of dk and dv is computed",
    "dk_carried": "the sum in dk is carried over from one key block to the next: it starts at 0",
    "dv_carried": "the sum in dv is carried over from one key block to the next: it starts at 0",
    "dkv_carried": "the sums in dk and dv are carried over from one key block to the next: they start at 0",
    **HALF,
    **OWNED["dk"],
    **OWNED["dv"],
}


def twin(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale, mistake=None):
    return gradient_twin(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale, mistake)[1:]


@functools.cache  # the same tensors each time: what the twin gives for them is computed once
def fixed():
    return tuple(shared.ladder("dk and dv are summed over the row blocks", OWNED["dk"] | OWNED["dv"]))


def inputs():
    yield from fixed()
    yield from shared.fresh()


EXERCISE = Exercise(
    id="6.5",
    task="Write the loop that owns keys: dk and dv, tile by tile.",
    conditions=CONDITIONS,
    hints=(
        "The outer loop takes a block of keys, the inner loop walks over the blocks of queries. Which rows of dk and dv does a tile add to?",
        "p_and_ds(q, k, v, do, lse, delta, rows, keys, is_causal, scale) gives a tile's p and ds. Add pᵀ do to dv[:, :, keys] and scale · dsᵀ q to "
        "dk[:, :, keys], with the tile's own rows of do and q. The slices must end at S_q and S_k.",
        "p and ds are float32 for fp16 inputs: convert the tiles of do and q before you multiply, and keep the sums in float32 until the end. Where lse "
        "is −inf, pass +inf in its place, as in 6.4.",
    ),
    solution=dkdv_loop,
    reasoning="Each tile needs only its own rows of q, do, lse and delta and its own rows of k and v. The outer loop owns a block of keys, so dk and dv "
    "of these keys are complete when the inner loop ends, and nobody else adds to them.",
    more="In the package this is the first loop of algorithm.flash_backward. It also skips the tiles that the causal mask hides, rounds p and ds to the "
    "inputs' dtype for their matmuls, and takes fewer heads for k and v than for q.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("dk", "dv"),
    tolerance=tolerance,
    watch=GradientTiles,
)
