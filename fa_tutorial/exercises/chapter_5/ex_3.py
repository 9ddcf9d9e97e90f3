"""Exercise 5.3, flash_forward_causal_kernel."""

import math

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_5.inner_step import KEYS_PAST, ONE_TILE, one_tile_inputs
from fa_tutorial.exercises.forward_kernels import TILE, attention_case, draw_qkv, fixed, fresh_inputs, kernel_twin, launch, tolerance
from fa_tutorial.exercises.harness import Exercise

triton = hardware.require_triton("Exercise 5.3")
import triton.language as tl  # noqa: E402


@triton.jit
def flash_forward_causal_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """As flash_forward_kernel, causal: query i sees keys 0 … i + S_k − S_q; if none, o = 0."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    o_ptr += b * stride_ob + h * stride_oh

    offs_m = row_block * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D)  # [BLOCK_D]
    mask_q = (offs_m[:, None] < S_q) & (offs_d[None, :] < D)  # of o, too
    q_ptrs = q_ptr + offs_m[:, None] * stride_qs + offs_d[None, :] * stride_qd
    q = tl.load(q_ptrs, mask=mask_q, other=0.0)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    # The block's last row sees this many keys; if none, the loop takes no step.
    end = tl.minimum((row_block + 1) * BLOCK_M, S_q) + S_k - S_q
    for start_n in range(0, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        mask_k = (offs_n[:, None] < S_k) & (offs_d[None, :] < D)
        k_ptrs = k_ptr + offs_n[:, None] * stride_ks + offs_d[None, :] * stride_kd
        k = tl.load(k_ptrs, mask=mask_k, other=0.0)  # [BLOCK_N, BLOCK_D]
        s = scale * tl.dot(q, tl.trans(k), input_precision="ieee")  # [BLOCK_M, BLOCK_N]
        seen = offs_n[None, :] <= offs_m[:, None] + S_k - S_q  # [BLOCK_M, BLOCK_N]
        s = tl.where(seen & (offs_n[None, :] < S_k), s, -float("inf"))
        m_new = tl.maximum(m, tl.max(s, axis=1))  # [BLOCK_M]
        shift = tl.where(m_new == -float("inf"), 0.0, m_new)  # −inf − (−inf) would be NaN
        alpha = tl.exp(m - shift)  # [BLOCK_M]
        p = tl.exp(s - shift[:, None])  # [BLOCK_M, BLOCK_N]
        l = alpha * l + tl.sum(p, axis=1)
        v_ptrs = v_ptr + offs_n[:, None] * stride_vs + offs_d[None, :] * stride_vd
        v = tl.load(v_ptrs, mask=mask_k, other=0.0)  # [BLOCK_N, BLOCK_D]
        acc = alpha[:, None] * acc  # [BLOCK_M, BLOCK_D]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        m = m_new

    o = acc / tl.where(l == 0.0, 1.0, l)[:, None]  # a row that sees nothing has acc = 0 and l = 0
    o_ptrs = o_ptr + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=mask_q)


_BOTTOM = "query i sees keys 0 to i + S_k − S_q, so that the last query sees the last key"
_EARLY = "the tile that the diagonal crosses holds keys that are seen"
_PLACE = "the mask is by positions in the tile: compare positions in the sequence, the tile's own start added"
MISTAKES = ONE_TILE | {
    "no_mask": "nothing is hidden: query i sees keys 0 to i + S_k − S_q",
    "strict": "the mask is strict: a query sees its own key too, j ≤ i + S_k − S_q",
    "upside": "the mask is turned round: keys after the query are hidden, not those before",
    "hide_zero": "hidden keys get a score of 0, and exp(0 − m) is not 0: −inf it must be",
    "mask_after": "the mask comes after exp, and l has counted the hidden keys: hide them in s, before m and l",
    "mask_maximum": "hidden keys must not move the maximum: hide them in s, before m",
    "diagonal_skipped": f"the loop stops one tile too early: {_EARLY}",
    "diagonal_open": "the tile that the diagonal crosses is not masked: with two loops, the one without a mask ends where the block's first row "
    "stops seeing, full = (row_block · BLOCK_M + 1 + S_k − S_q) // BLOCK_N · BLOCK_N",
    "end_first": "every block of rows stops where the first one does",
    "by_place_skips": _PLACE,
    "by_place": f"{_PLACE} (no tile is skipped)",
    "by_place_keys": f"{_PLACE} (the rows' is there)",
    "by_place_rows": f"{_PLACE} (the keys' is there)",
    "end_block_n": "the loop stops before the last row's diagonal: it goes on while start_n < (row_block + 1) · BLOCK_M + S_k − S_q",
    "end_down": f"the number of tiles is rounded down: {_EARLY}",
    "top_left": f"the mask is aligned top-left: {_BOTTOM}",
    "skip_top_left": "the mask is right, but the loop stops at key (row_block + 1) · BLOCK_M: add S_k − S_q",
    "shift_sign": f"S_k − S_q has the wrong sign: {_BOTTOM}",
    "keys_dropped": "the ragged last tile of keys is left out: the last row sees all S_k keys",
    "end_early": "the loop stops one key too early: its end is exclusive, and the last row's key i + S_k − S_q is seen too",
    "pads_v": KEYS_PAST,
    "none_skipped": "a tile that no row of the block sees is not skipped",
    "unseen_nan": "rows that see no key give NaN, from −inf − (−inf) or 0 / 0; they must be 0",
    "unseen_finite": "rows that see no key give an average of v, as where a finite number stands for −inf; they must be 0",
}  # fmt: skip

CONDITIONS = {
    "unseen": "a row that sees no key gets o = 0: S_q may be larger than S_k",
    "skip": "tiles that no row of the block sees are skipped",
    "half": "fp16 works too (and bf16 on a GPU): the scores, m, l and acc are float32, and p is rounded to v's dtype",
}


def twin(*args, mistake=None):
    return kernel_twin(*args, is_causal=True, mistake=mistake)[0]


@fixed
def fixed_inputs():
    yield from one_tile_inputs()
    q, k, v = draw_qkv(1, 1, 16, 16, 16)
    k[:, :, 15] = 100
    yield attention_case(q.abs() + 1, k, v, "the last key's logits over 400, all others small", MISTAKES["mask_maximum"])
    square, differ = draw_qkv(1, 1, 32, 32, 16), "BLOCK_M and BLOCK_N may differ"
    yield attention_case(*square, "S_q = S_k = 32, two blocks of rows", "a block of rows walks over every tile that its last row sees")
    for m, n in ((32, 16), (16, 32)):
        yield attention_case(*square, f"S_q = S_k = 32, BLOCK_M = {m}, BLOCK_N = {n}", differ, blocks=(m, n, 16))
    yield attention_case(*draw_qkv(1, 1, 16, 32, 16), "S_q = 16, S_k = 32", _BOTTOM)
    for S_k in (20, 17):  # in the second case only the last row sees into the second tile, one key
        yield attention_case(*draw_qkv(1, 1, 16, S_k, 16), f"S_q = 16, S_k = {S_k}, BLOCK_N = 16", "the last tile of keys may be ragged",
                             stray="keys past S_k are read: offs_n < S_k is in the masks of k's load and of v's")  # fmt: skip
    before = "the loop starts before key 0, where S_k − S_q is negative: tl.maximum(…, 0) where a second loop begins"
    for S_q, words in ((24, "rows 0 to 7 see no key"), (40, "rows 0 to 23 see no key")):
        on = f"S_q = {S_q}, S_k = 16, so that {words}"
        yield attention_case(*draw_qkv(1, 1, S_q, 16, 16), on, "S_q may be larger than S_k", stray=before, edge="unseen")
    q, k, v = draw_qkv(1, 1, 32, 32, 16)
    v[:, :, 16:] = math.nan  # it shows in the o of rows 0 to 15 if they read it, for 0 · NaN is NaN
    yield attention_case(q, k, v, "S_q = S_k = 32, where rows 0 to 15 see no key of the second tile, whose v is NaN", edge="skip")


def inputs():
    yield from fixed_inputs()
    yield from fresh_inputs(
        ((1, 1, 1, 1, 1, 1), torch.float32, TILE, 1.0),
        ((1, 2, 2, 33, 40, 20), torch.float16, (32, 32, 32), 3.0),
        ((1, 2, 2, 20, 25, 12), torch.float32, TILE, 1.0),
        ((1, 1, 1, 20, 40, 40), torch.float32, (16, 32, 64), 3.0),
    )


EXERCISE = Exercise(
    id="5.3",
    task="Make it causal, bottom-right aligned, and give o = 0 to rows that see no key.",
    conditions=CONDITIONS,
    hints=(
        "Query i sees keys 0 to i + S_k − S_q. Which keys does a block's last row see, and which tiles can the loop leave out?",
        "seen = offs_n[None, :] <= offs_m[:, None] + (S_k - S_q), besides offs_n < S_k; hide with −inf in s, before the maximum is taken.",
        "A row that has seen nothing has m = −inf, and −inf − (−inf) is NaN: shift by 0 there. Its l stays 0: divide by 1 where l is 0.",
    ),
    solution=flash_forward_causal_kernel,
    reasoning="The loop ends where the block's last real row stops seeing; with an end of 0 or less it takes no step, and l = 0 then tells the rows "
    "that see nothing. Every tile is masked here, which costs only time.",
    more="The package's version, forward.flash_forward_kernel, runs the tiles that every row sees whole in a first loop without a mask.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    launch=launch,
    tolerance=tolerance,
    overlap="blocks of rows are computed by more than one program: program pid computes row block pid % row_blocks of batch and head pid // row_blocks",
)  # fmt: skip
