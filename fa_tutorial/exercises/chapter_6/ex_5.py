import math

import torch

from fa_tutorial.exercises.chapter_6 import shared
from fa_tutorial.exercises.chapter_6.ex_4 import p_and_ds as my_p_and_ds
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.exercises.watch import SeenByKeys, where_it_tells


def dkdv_loop(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    """(dk, dv). q, do: (B, H, S_q, D); k, v: (B, H, S_k, D); lse, delta: (B, H, S_q)."""
    S_q, S_k = q.shape[2], k.shape[2]
    dk, dv = torch.zeros(k.shape, dtype=lse.dtype), torch.zeros(v.shape, dtype=lse.dtype)
    for j in range(0, S_k, block_n):
        keys = slice(j, min(j + block_n, S_k))
        start, full = 0, 0
        if is_causal:  # decided by the block's first key and by its last
            start = max(0, j - S_k + S_q) // block_m
            full = math.ceil(max(0, keys.stop - 1 - S_k + S_q) / block_m)
        for row_block in range(start, math.ceil(S_q / block_m)):
            rows = slice(row_block * block_m, min((row_block + 1) * block_m, S_q))
            p, ds = my_p_and_ds(q, k, v, do, lse, delta, rows, keys, row_block < full, scale)
            dv[:, :, keys] += p.transpose(-1, -2) @ do[:, :, rows].to(p.dtype)
            dk[:, :, keys] += scale * ds.transpose(-1, -2) @ q[:, :, rows].to(ds.dtype)
    return dk.to(k.dtype), dv.to(v.dtype)


START, FULL = "max(0, j - S_k + S_q) // block_m", "math.ceil(max(0, keys.stop - 1 - S_k + S_q) / block_m)"
CALL, DK = "rows, keys, row_block < full, scale", "ds.transpose(-1, -2) @ q[:, :, rows].to(ds.dtype)"
MISTAKES = {
    "dk is without the scale: s = scale · q kᵀ, so dk = scale · dsᵀ q": ("scale * ds", "ds"),
    "dk and dv are exchanged: return (dk, dv)": ("return dk.to(k.dtype), dv.to(v.dtype)", "return dv.to(v.dtype), dk.to(k.dtype)"),
    "dk and dv are overwritten in every step: add up the row blocks": ("[:, :, keys] +=", "[:, :, keys] ="),
    "the blocks before full are not masked: my_p_and_ds masks where its `mask` is True": (CALL, "rows, keys, False, scale"),
    "bounds and mask are those of the causal mask: unless is_causal, start and full are 0": ("if is_causal:", "if True:"),
    "the mask is on although is_causal is False": (CALL, "rows, keys, True, scale"),
    "the causal loop is aligned top left: query i sees keys 0 … i + S_k − S_q, so key j is first seen by query j − (S_k − S_q)": [
        (" - S_k + S_q", "")],
    "start is negative where the first keys are seen by every query: no block comes before block 0": (START, "(j - S_k + S_q) // block_m"),
    "start is rounded up: the block that holds the first query which sees a key counts, although earlier queries of it may see none": (
        START, "math.ceil(max(0, j - S_k + S_q) / block_m)"),
    "start comes from the last key: the first one decides which queries see any of them": (START, START.replace("j", "keys.stop - 1")),
    "full comes from the first key: queries from there on may not see the others, and the last key decides which see all": (
        FULL, FULL.replace("keys.stop - 1", "j")),
    "scale is applied to dk in every step, so the earlier blocks get it again and again: apply it to each share once": (
        f"scale * {DK}", f"{DK}\n            dk[:, :, keys] *= scale"),
    "full is rounded down: not every query of its block sees all of the keys": (FULL, "max(0, keys.stop - 1 - S_k + S_q) // block_m"),
}  # fmt: skip


def truth(*args):
    return shared.truth(*args)[1:]


EXERCISE = Exercise(
    task="Write the loop that owns keys: dk and dv, tile by tile, without the tiles that the causal mask hides.",
    conditions=shared.CONDITIONS,
    hints=(
        "The outer loop takes a block of keys, the inner loop walks over the blocks of queries. Which rows of dk and dv does a tile add "
        "to?",
        f"my_p_and_ds(q, k, v, do, lse, delta, {CALL}) gives a tile's p and ds. Add pᵀ do to dv[:, :, keys] and scale · "
        "dsᵀ q to dk[:, :, keys], with the tile's own rows of do and q, converted to float32.",
        "Key j is first seen by query j − (S_k − S_q), or by query 0 where that is negative. For the block's first key, the block that "
        "holds this query is start. For its last key, the queries from it on see all keys, so round up to the block that is full.",
    ),
    solution=dkdv_loop,
    reasoning="Each tile needs only its own rows of q, do, lse and delta and its own rows of k and v. The outer loop owns a block of "
    "keys, so dk and dv of these keys are complete when the inner loop ends, and nobody else adds to them. Queries before start "
    "see none of the keys, so they would add zeros.",
    more="In the package this is the first loop of algorithm.flash_backward. It also rounds p and ds to the inputs' dtype for their "
    "matmuls, and takes fewer heads for k and v than for q.",
    inputs=shared.inputs(
        "dk and dv are summed over the row blocks, each with its own rows of do and q",
        "dv = pᵀ do, dk = scale · dsᵀ q",
        "dk",
        "dv",
    ),
    truth=truth,
    rule="dv = Σ pᵀ do and dk = scale · Σ dsᵀ q, over all blocks of rows",
    mistakes=MISTAKES,
    parts=("dk", "dv"),
    tolerance=shared.tolerance,
    watch=where_it_tells(SeenByKeys),
)
