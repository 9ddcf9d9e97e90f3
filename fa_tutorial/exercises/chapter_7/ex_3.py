"""Exercise 7.3, dq_kernel."""

import functools

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_7 import shared
from fa_tutorial.exercises.chapter_7.shared import FORMULAS, MASKS, draw, fresh_cases, given, place_mistakes, places, ranges, zero_strides
from fa_tutorial.exercises.harness import Exercise

triton = hardware.require_triton("Exercise 7.3")
import triton.language as tl  # noqa: E402


@triton.jit
def dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_dob, stride_doh, stride_dos, stride_dod,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dq: (B, H, S_q, D), contiguous; lse, delta: (B, H, S_q) float32; a row that sees no key gets 0.

    Grid: (ceil(S_q / BLOCK_M) · B · H,).
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    do_ptr += b * stride_dob + h * stride_doh

    offs_m = row_block * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D)  # [BLOCK_D]
    mask_m = (offs_m[:, None] < S_q) & (offs_d[None, :] < D)  # [BLOCK_M, BLOCK_D]
    q_ptrs = q_ptr + offs_m[:, None] * stride_qs + offs_d[None, :] * stride_qd
    do_ptrs = do_ptr + offs_m[:, None] * stride_dos + offs_d[None, :] * stride_dod
    q = tl.load(q_ptrs, mask=mask_m, other=0.0)
    do = tl.load(do_ptrs, mask=mask_m, other=0.0)
    lse = tl.load(lse_ptr + batch_head * S_q + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
    delta = tl.load(delta_ptr + batch_head * S_q + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
    dq = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    end = S_k
    if IS_CAUSAL:  # keys that the block's last row sees; none if negative (4.6)
        end = tl.minimum((row_block + 1) * BLOCK_M, S_q) + S_k - S_q
    for start_n in range(0, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        mask_n = (offs_n[:, None] < S_k) & (offs_d[None, :] < D)  # [BLOCK_N, BLOCK_D]
        k_ptrs = k_ptr + offs_n[:, None] * stride_ks + offs_d[None, :] * stride_kd
        v_ptrs = v_ptr + offs_n[:, None] * stride_vs + offs_d[None, :] * stride_vd
        k = tl.load(k_ptrs, mask=mask_n, other=0.0)
        v = tl.load(v_ptrs, mask=mask_n, other=0.0)

        s = scale * tl.dot(q, tl.trans(k), input_precision="ieee")  # [BLOCK_M, BLOCK_N]
        seen = offs_n[None, :] < S_k
        if IS_CAUSAL:
            seen = seen & (offs_n[None, :] <= offs_m[:, None] + (S_k - S_q))
        p = tl.where(seen, tl.exp(s - lse[:, None]), 0.0)  # [BLOCK_M, BLOCK_N]
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")  # [BLOCK_M, BLOCK_N]
        ds = p * (dp - delta[:, None])  # [BLOCK_M, BLOCK_N]
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")  # [BLOCK_M, BLOCK_D]

    out = (batch_head * S_q + offs_m[:, None]) * D + offs_d[None, :]  # [BLOCK_M, BLOCK_D]
    tl.store(dq_ptr + out, (scale * dq).to(dq_ptr.dtype.element_ty), mask=mask_m)


START = "a program's rows start at row_block · BLOCK_M"
STEP = "its rows are start_n + tl.arange(0, BLOCK_N)"
EARLY = "the loop stops one tile too early: the tile that the diagonal crosses holds keys that are seen"
MISTAKES = {
    "factor_1": "scale is forgotten in dq: dq = scale · ds k",
    "factor_squared": "scale is applied twice to dq",
    "ds_turned": "ds is transposed: dq = scale · ds k",
    "k_turned_too": "k is transposed: dq = scale · ds k",
    "q_for_k": "q stands where k is meant: dq = scale · ds k",
    "v_for_k": "v stands where k is meant: dq = scale · ds k",
    "p_for_ds": "p stands where ds is meant: dq = scale · ds k",
    "dk_for_dq": "dk is computed: dq = scale · ds k",
    "sign": "dq has the wrong sign",
    **FORMULAS,
    "last_block": "only the last tile counts: dq is a sum over the tiles of keys",
    "first_block": "only the first tile counts: the loop runs to S_k",
    "scale_each_step": "scale is applied at every step: once, to the sum",
    **{f"first {'+'.join(names)}": f"every step reads the first tile of {' and '.join(names)}: {STEP}" for names in (("k", "v"), ("k",), ("v",))},
    "ragged_key": "the ragged last tile of keys is left out: the loop goes on while start_n < S_k",
    "last_key": "keys past S_k count: here the last key stands in for them",
    "first_key": "keys past S_k count: here the first keys stand in for them",
    "keys_unmasked": "a key past S_k has a score of 0, and exp(0 − lse) is inf here, inf · 0 NaN: p and ds are 0 from S_k on",
    **{f"first {'+'.join(names)}": f"every program loads the first rows of {' and '.join(names)}: {START}"
       for names in (("q", "do", "lse", "delta"), ("q", "do"), ("lse", "delta"), ("q",), ("do",), ("lse",), ("delta",))},
    "first_place dq": f"the second block of rows is never stored: {START}, in dq too",
    "ragged_unstored dq": "the ragged last rows are never stored: there are tl.cdiv(S_q, BLOCK_M) row blocks a head",
    **MASKS,
    "early": EARLY,
    "early_by_first": EARLY,
    "rounded_down": "the number of tiles is rounded down: the tile that the diagonal crosses holds keys that are seen",
    "end_by_first": "the loop stops before the last row's diagonal: it goes on while start_n < (row_block + 1) · BLOCK_M + S_k − S_q",
    "end_top_left": "the mask is right, but the loop stops at key (row_block + 1) · BLOCK_M: add S_k − S_q",
    "all_stop_first": "every block of rows stops where the first one does",
    "diagonal_alone": "tiles before the diagonal's are left out: all of their keys are seen",
    "last_masked": "only the last tile is masked: a block of rows may see several in part",
    "keys_open": "tiles after the diagonal are walked, and not masked",
    "dead_unstored": "a block of rows that sees no key must store dq = 0",
    "by_other dq": "tiles of one head must not touch the next: a head starts at (b · H + h) · S_q · D of dq",
    **place_mistakes("dq"),
    "half_dq": "dq is kept in fp16, in which 2048 + 1 is 2048: the sum over tiles is float32",
}  # fmt: skip
CONDITIONS = {**shared.CONDITIONS, "unseen": "rows that see nothing have lse = −inf, and get dq = 0"}


def twin(given, mistake=None):
    return given.gradients(mistake)[0]


def launch(given):
    return given.launch("dq")


@functools.cache
def fixed():
    return tuple(_fixed())


def inputs():
    yield from fixed()
    yield from fresh_cases((32, 16, 16))


def _fixed():
    fits = "an offset is wrong, not a mask, for whole tiles fit here"
    yield given((1, 1, 16, 16, 16), "S_q = S_k = D = 16, one tile", "one tile gives dq = scale · ds k", stray=fits)
    yield given((1, 1, 16, 32, 16), "S_k = 32, two tiles of keys", "dq is a sum over the tiles of keys",
                stray="a step's keys are start_n to start_n + BLOCK_N − 1, and start_n stays below S_k")  # fmt: skip
    yield given((1, 1, 16, 20, 16), "S_k = 20, BLOCK_N = 16", "the last tile of keys may be ragged",
                stray="keys past S_k are loaded: offs_n < S_k is in the masks of k and of v")  # fmt: skip
    yield given((1, 1, 32, 16, 16), "S_q = 32, two programs", START)
    yield given((1, 1, 20, 16, 16), "S_q = 20, BLOCK_M = 16", "the last block of rows may be ragged",
                stray="rows past S_q are loaded or stored: offs_m < S_q is in the masks of q, do, lse and delta, and of dq's store, "
                "and a head has tl.cdiv(S_q, BLOCK_M) row blocks")  # fmt: skip
    yield from places("dq", "S_q")
    yield given((1, 1, 16, 16, 16), "causal, S_q = S_k = 16, one tile", "query i sees keys 0 to i", is_causal=True)
    rule = "a block of rows walks over every tile that its last row sees"
    for blocks in ((16, 16, 16), (32, 16, 16), (16, 32, 16)):
        on = f"causal, S_q = S_k = 32, blocks of {blocks[0]} queries and {blocks[1]} keys"
        yield given((1, 1, 32, 32, 16), on, rule, is_causal=True, blocks=blocks)
    yield given((1, 1, 16, 32, 16), "causal, S_q = 16, S_k = 32", "query i sees keys 0 to i + S_k − S_q", is_causal=True)
    yield from ranges()
    q, k, v, do = draw(1, 1, 16, 20, 16)
    low = torch.ones_like(q), torch.full_like(k, -50.0), v, do
    yield given(None, "all logits −200, S_k = 20", MISTAKES["keys_unmasked"], tensors=low, edge="range")
    yield from zero_strides()
    for S_q, dead in ((24, "0 to 7"), (32, "0 to 15")):
        on = f"causal, S_q = {S_q}, S_k = 16, so that rows {dead} see no key"
        yield given((1, 1, S_q, 16, 16), on, "rows that see no key have dq = 0", is_causal=True, edge="unseen")
    q, k, v, do = (torch.zeros(1, 1, S, 16, dtype=torch.float16) for S in (16, 64, 64, 16))  # equal scores, so p = 1 / 64, and ds = ±1
    v[:, :, 0::2, 0], v[:, :, 1::2, 0], do[..., 0] = 1, -1, 64
    k[:, :, 0], k[:, :, 16], k[:, :, 32] = 2048, 1, -2048
    on = "fp16, equal scores, ds k of the four tiles is 2048, 1, −2048 and 0"
    yield given(None, on, MISTAKES["half_dq"], tensors=(q, k, v, do), scale=1.0, near=0.1, edge="half")


EXERCISE = Exercise(
    id="7.3",
    task="Write dq: a program keeps one block of queries and walks over the blocks of keys, full or causal.",
    conditions=CONDITIONS,
    hints=(
        "The loop is that of the forward kernel. Which four things are loaded before it, which two at every step, and what is summed?",
        "s = scale · q kᵀ, p = exp(s − lse[:, None]), dp = do vᵀ, ds = p ∘ (dp − delta[:, None]), dq += ds k; scale · dq after the loop. The last dot is "
        'dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee").',
        "Keys past S_k have k = 0, yet exp(0 − lse) overflows where all logits are very negative, and inf · 0 is NaN: put 0 in p there by tl.where, and "
        "for hidden keys.",
        "Causal: the loop ends at min((row_block + 1) · BLOCK_M, S_q) + S_k − S_q. A block that sees nothing takes no step, and still stores its zeros.",
    ),
    solution=dq_kernel,
    reasoning="The same tile as in dkdv_kernel is computed a second time, seven matmuls in all where five would do: the price of sums with one owner "
    "each. One tl.where clears what causality hides, the keys that are not there, and the rows that see nothing, whose p would be exp(s + inf).",
    more="The package's version, backward.dq_kernel, reads the key head of its group, walks the tiles that need no mask in a loop of their own, and has "
    "int64 offsets.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    launch=launch,
    tolerance=shared.tolerance,
    overlap="programs store to one another's rows: a head starts at (b · H + h) · S_q · D of dq, and a program's rows at row_block · BLOCK_M",
)
