"""Exercise 5.2, flash_forward_kernel."""

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_5.inner_step import KEYS_PAST, ONE_TILE, STEPS, logits, one_tile_inputs, range_inputs, two_tiles_input
from fa_tutorial.exercises.forward_kernels import TILE, attention_case, draw_qkv, fixed, fresh_inputs, kernel_twin, launch, tolerance
from fa_tutorial.exercises.harness import Exercise

triton = hardware.require_triton("Exercise 5.2")
import triton.language as tl  # noqa: E402


@triton.jit
def flash_forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_ob, stride_oh, stride_os, stride_od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """o = softmax(scale · q kᵀ) v. q, o: (B, H, S_q, D); k, v: (B, H, S_k, D).

    Grid: (ceil(S_q / BLOCK_M) · B · H,).
    """
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

    o = acc / l[:, None]
    o_ptrs = o_ptr + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    tl.store(o_ptrs, o.to(o_ptr.dtype.element_ty), mask=mask_q)


_OWN = "each tensor has its own four strides"
_SPLIT = "pid // row_blocks is b · H + h, so // H gives b and % H gives h"
_STEP = "as where BLOCK_M stands for BLOCK_N: a step takes BLOCK_N keys, and the next begins BLOCK_N further on"
_ROWS = "rows past S_q are loaded or stored: offs_m < S_q is in the masks of q's load and of o's store"
WHAT = {"q": "q is", "k": "k is", "v": "v is", "kv": "k and v are", "qkv": "q, k and v are"}
MISTAKES = ONE_TILE | STEPS | {
    "first_q": "every program loads the first rows of q: offs_m starts at row_block · BLOCK_M",
    "first_place": "the second block of rows is never stored: a program's rows start at row_block · BLOCK_M, in o too",
    "keys_zeros": "keys past S_k count with a score of 0, and exp(0 − m) is not 0: set their scores to −inf",
    "keys_dropped": "the ragged last tile of keys is left out: the loop goes on while start_n < S_k",
    "pads_v": KEYS_PAST,
    "rows_dropped": "the ragged last rows are never stored: there are tl.cdiv(S_q, BLOCK_M) row blocks a head",
    "step_m": f"keys 16 to 31 count twice, {_STEP}",
    "width_m": f"keys 16 to 31 are left out, {_STEP}",
    "scale_block_d": "the scale comes from BLOCK_D: it is an argument",
    "scale_own": "the scale is computed in the kernel: it is an argument, which the caller may choose",
    "pads_d": "what a load puts in place of columns past D is not 0: it enters the sums of q kᵀ, and 0 · NaN or 0 · inf is NaN. "
    "Load q and k with other=0.0; without it these lanes hold anything",
    **{f"{t}_head0": f"{words} read from head 0 by every program: add h · stride" for t, words in WHAT.items()},
    **{f"{t}_batch0": f"{words} read from batch 0 by every program: the batch's offset, b · stride, is forgotten" for t, words in WHAT.items()},
    "o_head0": "only head 0 of o is written: add h · stride_oh",
    "o_batch0": "only batch 0 of o is written: add b · stride_ob",
    **{f"{t}_exchanged": f"batch and head are exchanged in {t}: {_SPLIT}" for t in "qkvo"},
    "kv_exchanged": f"batch and head are exchanged in k and v: {_SPLIT}",
    **{f"{t}_by_{u}": f"{t} is {'stored' if t == 'o' else 'read'} by the strides of {u}: {_OWN}" for t in "kvo" for u in "qkv" if t != u},
    "kv_by_q": f"k and v are read by the strides of q: {_OWN}",
    "kvo_by_q": f"all tensors are walked over by the strides of q: {_OWN}",
    "qkvo_joined": "b · H + h is multiplied by the head's stride: batch b starts at b · the batch's stride, its head h at h · the head's stride "
    "further on",
    "from_finite": "m starts at a finite number, not at −inf: where every score is lower, that is the maximum, and every p 0",
    "pads_finite": "keys past S_k get a finite score, which may be the largest of all: they must be −inf",
}  # fmt: skip

CONDITIONS = {
    "low": "no score is so low that a finite number may stand for −inf",
    "half": "fp16 works too (and bf16 on a GPU): the scores, m, l and acc are float32, and p is rounded to v's dtype",
}


def twin(*args, mistake=None):
    return kernel_twin(*args, mistake=mistake)[0]


@fixed
def fixed_inputs():
    yield from one_tile_inputs()
    yield two_tiles_input()
    yield from range_inputs()
    yield attention_case(
        *draw_qkv(1, 1, 32, 16, 16), "S_q = 32, two programs", "a program's rows start at row_block · BLOCK_M, in q and in o"
    )
    yield attention_case(*draw_qkv(1, 1, 16, 20, 16), "S_k = 20, BLOCK_N = 16", "the last tile of keys may be ragged",
                         stray="keys past S_k are read: offs_n < S_k is in the masks of k's load and of v's")  # fmt: skip
    yield attention_case(*draw_qkv(1, 1, 20, 16, 16), "S_q = 20, BLOCK_M = 16", "the last block of rows may be ragged",
                         layouts=((0, 0, 16, 1),) * 4, stray=_ROWS)  # fmt: skip
    blocks = "BLOCK_M and BLOCK_N may differ: a tile of q or o has BLOCK_M rows, one of k or v BLOCK_N"
    for m, n in ((16, 32), (32, 16)):
        yield attention_case(*draw_qkv(1, 1, 32, 32, 16), f"S_q = S_k = 32, BLOCK_M = {m}, BLOCK_N = {n}", blocks, blocks=(m, n, 16))
    yield attention_case(*draw_qkv(1, 1, 16, 16, 12), "D = 12, BLOCK_D = 16", "D may be less than BLOCK_D",
                         stray="columns past D are loaded or stored: offs_d < D is in the mask of every load and of the store")  # fmt: skip
    yield attention_case(*draw_qkv(1, 1, 16, 16, 16), "scale = 0.5, D = 16", MISTAKES["scale_own"], scale=0.5)
    heads = f"each program stays within its own batch and head: b · the batch's stride + h · the head's stride, and {_SPLIT}"
    yield attention_case(*draw_qkv(2, 2, 16, 16, 16), "B = H = 2", heads)
    yield attention_case(*draw_qkv(1, 2, 16, 16, 16), "q, k, v and o laid out differently", _OWN, layouts=("bhsd", "bshd", "bhds", "bdhs"),
                         stray=f"an offset is wrong, as where batch and head are exchanged: {_SPLIT}; {_OWN}")  # fmt: skip
    yield attention_case(*draw_qkv(1, 2, 20, 16, 16), "two heads, S_q = 20, BLOCK_M = 16",
                         "a head has tl.cdiv(S_q, BLOCK_M) row blocks, and tiles of one head must not touch the next", stray=_ROWS)  # fmt: skip
    yield attention_case(*draw_qkv(2, 1, 16, 16, 16), "B = 2, H = 1, all tensors views of (B, S, H, D)", heads, layouts=("bshd",) * 4)
    low = -(2.0**30)  # below −1e4, −1e6 and −1e9
    yield attention_case(*logits(low), "all logits −2³⁰, one whole tile of keys", MISTAKES["from_finite"], edge="low")
    yield attention_case(*logits(low, S_k=4), "S_k = 4, all logits −2³⁰", MISTAKES["pads_finite"], edge="low")


def inputs():
    yield from fixed_inputs()
    yield from fresh_inputs(
        ((1, 1, 1, 1, 1, 1), torch.float32, TILE, 1.0),
        ((1, 2, 2, 33, 40, 20), torch.float16, (32, 32, 32), 3.0),
        ((2, 1, 1, 15, 17, 16), torch.float32, TILE, 3.0),
        ((1, 1, 1, 20, 40, 40), torch.float32, (16, 32, 64), 1.0),
    )


EXERCISE = Exercise(
    id="5.2",
    task="Write flash attention's forward: full attention, any S from 1 on, any D, one block of query rows a program.",
    conditions=CONDITIONS,
    hints=(
        "Chapter 4's flash_forward for one block of rows: q's tile, m, l and acc before the loop, one tile of k and v a step, one store after it. "
        "Write the shape of every tile above its line: q [BLOCK_M, BLOCK_D], k and v [BLOCK_N, BLOCK_D], s and p [BLOCK_M, BLOCK_N], acc as q.",
        "Load as in 5.1, with zeros past the ends; tl.trans(k), or k read with its strides exchanged, is kᵀ. Then (4.2): m_new, p, alpha, l.",
        "A key past S_k was loaded as 0, so its score is 0, not −inf: s = tl.where(offs_n[None, :] < S_k, s, -float(\"inf\")) before the maximum.",
        "acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=\"ieee\"); after the loop o = acc / l[:, None], stored where "
        "offs_m < S_q and offs_d < D.",
    ),
    solution=flash_forward_kernel,
    reasoning="m, l and acc live in float32 for the whole loop, and memory sees q, k and v once a program and o once. Zeros past D are harmless, since "
    "0 · 0 adds nothing to a score; for keys past S_k a 0 is a score like any other, so they are set to −inf. Rows past S_q compute something finite "
    "and are never stored.",
    more="The package's version, forward.flash_forward_kernel, also does what 5.3 and 5.4 ask, takes each tensor with its strides as one argument, and has "
    "int64 offsets, because a tensor may have more than 2³¹ elements.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    launch=launch,
    tolerance=tolerance,
    overlap="blocks of rows are computed by more than one program: program pid computes row block pid % row_blocks of batch and head pid // row_blocks",
)  # fmt: skip
