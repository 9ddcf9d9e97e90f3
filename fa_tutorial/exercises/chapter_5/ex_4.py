"""Exercise 5.4, flash_forward_gqa_kernel."""

from functools import partial

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_5.inner_step import KEYS_PAST, ONE_TILE, STEPS, logits, one_tile_inputs, two_tiles_input
from fa_tutorial.exercises.forward_kernels import TILE, attention_case, draw_qkv, fixed, fresh_inputs, kernel_twin, launch, tolerance
from fa_tutorial.exercises.harness import Exercise

triton = hardware.require_triton("Exercise 5.4")
import triton.language as tl  # noqa: E402


@triton.jit
def flash_forward_gqa_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, H_q, H_k, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """As flash_forward_kernel, with H_q query heads on H_k key heads, and lse.

    lse: (B, H_q, S_q) float32, contiguous.
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = batch_head // H_q, batch_head % H_q
    h_k = h // (H_q // H_k)  # (5.2)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h_k * stride_kh
    v_ptr += b * stride_vb + h_k * stride_vh
    o_ptr += b * stride_ob + h * stride_oh

    offs_m = row_block * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D)  # [BLOCK_D]
    mask_q = (offs_m[:, None] < S_q) & (offs_d[None, :] < D)  # of o, too
    q_ptrs = q_ptr + offs_m[:, None] * stride_qs + offs_d[None, :] * stride_qd
    q = tl.load(q_ptrs, mask=mask_q, other=0.0)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    for start_n in range(0, S_k, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        mask_k = (offs_n[:, None] < S_k) & (offs_d[None, :] < D)
        k_ptrs = k_ptr + offs_n[:, None] * stride_ks + offs_d[None, :] * stride_kd
        k = tl.load(k_ptrs, mask=mask_k, other=0.0)  # [BLOCK_N, BLOCK_D]
        s = scale * tl.dot(q, tl.trans(k), input_precision="ieee")  # [BLOCK_M, BLOCK_N]
        s = tl.where(offs_n[None, :] < S_k, s, -float("inf"))  # a key that is not there has no score
        m_new = tl.maximum(m, tl.max(s, axis=1))  # [BLOCK_M]
        alpha = tl.exp(m - m_new)  # [BLOCK_M]
        p = tl.exp(s - m_new[:, None])  # [BLOCK_M, BLOCK_N]
        l = alpha * l + tl.sum(p, axis=1)
        v_ptrs = v_ptr + offs_n[:, None] * stride_vs + offs_d[None, :] * stride_vd
        v = tl.load(v_ptrs, mask=mask_k, other=0.0)  # [BLOCK_N, BLOCK_D]
        acc = alpha[:, None] * acc  # [BLOCK_M, BLOCK_D]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        m = m_new

    l_or_one = tl.where(l == 0.0, 1.0, l)  # l is 0 where S_k is
    o = acc / l_or_one[:, None]
    o_ptrs = o_ptr + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=mask_q)
    lse = m + tl.log(l_or_one)  # [BLOCK_M], (4.5); −inf where l is 0, because m is
    tl.store(lse_ptr + (b * H_q + h) * S_q + offs_m, lse, mask=offs_m < S_q)


_PLACE = "row i of head h of batch b lies at (b · H_q + h) · S_q + i of lse, i < S_q"
_GROUP = "a key head serves H_q / H_k neighbouring query heads: query head h reads key head h // (H_q // H_k)"
_SPLIT = "pid // row_blocks counts query heads: it is b · H_q + h"
_NATURAL = "lse = m + log l"
_NO_KEY = "with no key l is 0: o must be 0, not 0 / 0"
_NO_LSE = "with no key lse is −inf, the logarithm of an empty sum"
MISTAKES = ONE_TILE | {name: STEPS[name] for name in ("acc_kept", "l_kept")} | {
    "lse_never": f"lse is never stored, and o is: {_PLACE}",
    "lse_base_2": "lse is in base 2: with exp2, m and log2(l) are to be divided by log2(e)",
    "lse_log2": "m is natural, but l's logarithm is in base 2: tl.log, or tl.log2 divided by log2(e)",
    "lse_m_l": f"l is added without its logarithm: {_NATURAL}",
    "lse_log_l": f"m is left out: l is a sum of exp(s − m), so {_NATURAL}",
    "lse_m": f"that is m alone: {_NATURAL}",
    "lse_l": f"that is l: {_NATURAL}",
    "lse_minus_m": f"m has the wrong sign: {_NATURAL}",
    "lse_minus": f"the logarithm has the wrong sign: {_NATURAL}",
    "lse_m_raw": "m is not scaled: lse is that of scale · q kᵀ",
    "lse_tile": "lse is that of the last tile: it is stored once, after the loop",
    "kv_modulo": f"h % H_k is the head read: {_GROUP}",
    "kv_over_H_k": f"h // H_k is the head read: {_GROUP}",
    "kv_head0": f"every query head reads key head 0: {_GROUP}",
    "v_modulo": f"k's head is mapped, but not v's: {_GROUP}",
    "k_modulo": f"v's head is mapped, but not k's: {_GROUP}",
    "kv_batch0": "k and v are read from batch 0 by every program: the batch's offset, b · stride, is forgotten",
    "lse_head0": f"lse of all heads is stored at head 0: {_PLACE}",
    "lse_batch0": f"lse of all batches is stored at batch 0: {_PLACE}",
    "lse_key_heads": f"a batch of lse has H_q heads, not H_k: {_PLACE}",
    "keys_zeros": "keys past S_k count with a score of 0, and exp(0 − m) is not 0: set their scores to −inf",
    "pads_v": KEYS_PAST,
    "no_keys_nan": _NO_KEY,
    "unseen_lse_nan": f"lse is NaN: {_NO_LSE}",
    "unseen_lse_zero": f"lse is 0: {_NO_LSE}",
    "unseen_lse_inf": f"lse is +inf: {_NO_LSE}",
    "from_finite": "m starts at a finite number, not at −inf: where every score is lower, that is the maximum, and every p 0",
    "pads_finite": "keys past S_k get a finite score, which may be the largest of all: they must be −inf",
}  # fmt: skip

CONDITIONS = {
    "empty": "S_k may be 0: then o is 0, and lse is −inf, the logarithm of an empty sum",
    "low": "no score is so low that a finite number may stand for −inf",
    "half": "fp16 works too (and bf16 on a GPU): the scores, m, l, acc and lse are float32, and p is rounded to v's dtype",
}


@fixed
def fixed_inputs():
    yield from one_tile_inputs()
    yield two_tiles_input()
    heads = f"an offset is wrong: {_GROUP}; {_SPLIT}"
    yield attention_case(*draw_qkv(1, 6, 16, 16, 16, H_k=3), "H_q = 6, H_k = 3", _GROUP, stray=heads)
    yield attention_case(*draw_qkv(2, 2, 16, 16, 16, H_k=1), "B = 2, H_q = 2, H_k = 1", f"{_SPLIT}; {_PLACE}", stray=heads)
    yield attention_case(*draw_qkv(2, 2, 20, 16, 16), "B = H_q = 2, S_q = 20, BLOCK_M = 16", _PLACE,
                         stray=f"rows past S_q are loaded or stored, of o or lse: {_PLACE}")  # fmt: skip
    yield attention_case(*draw_qkv(1, 1, 16, 20, 16), "S_k = 20, BLOCK_N = 16", "the last tile of keys may be ragged",
                         stray="keys past S_k are read: offs_n < S_k is in the masks of k's load and of v's")  # fmt: skip
    nothing = "with no key nothing may be read"
    yield attention_case(*draw_qkv(1, 1, 16, 0, 16), "S_k = 0", stray=nothing, edge="empty")
    low = -(2.0**30)  # below −1e4, −1e6 and −1e9
    yield attention_case(*logits(low), "all logits −2³⁰, one whole tile of keys", MISTAKES["from_finite"], edge="low")
    yield attention_case(*logits(low, S_k=4), "S_k = 4, all logits −2³⁰", MISTAKES["pads_finite"], edge="low")


def inputs():
    yield from fixed_inputs()
    yield from fresh_inputs(
        ((1, 1, 1, 1, 1, 1), torch.float32, TILE, 1.0),
        ((2, 2, 1, 17, 40, 20), torch.float16, (32, 32, 32), 3.0),
        ((1, 2, 1, 15, 40, 40), torch.float32, (16, 32, 64), 1.0),
    )


EXERCISE = Exercise(
    id="5.4",
    task="Let key heads serve groups of query heads, and store the lse for the backward pass.",
    conditions=CONDITIONS,
    hints=(
        "Programs count query heads. How many of them share one key head, and which pointers does that concern?",
        "h_k = h // (H_q // H_k), for k and v alone. lse = m + log l, natural, of the scaled scores, at (b · H_q + h) · S_q + offs_m where "
        "offs_m < S_q.",
        "With S_k = 0 the loop takes no step: m is −inf and l is 0. o = acc / 1 is 0, and m + log(1) is the −inf that lse must be.",
    ),
    solution=flash_forward_gqa_kernel,
    reasoning="Only two pointers change: h_k replaces h for k and v, so neighbouring query heads read the same keys, which the L2 cache then holds. lse "
    "is all that the backward pass needs to compute p again, one number a row instead of S_k.",
    more="The package's version, forward.flash_forward_kernel, is causal too, as in 5.3.",
    inputs=inputs,
    twin=kernel_twin,
    mistakes=MISTAKES,
    parts=("o", "lse"),
    launch=partial(launch, has_lse=True),
    tolerance=tolerance,
    overlap="blocks of rows are computed by more than one program: program pid computes row block pid % row_blocks of batch and head pid // row_blocks",
)  # fmt: skip
