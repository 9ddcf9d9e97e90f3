"""Exercise 7.2, dkdv_kernel."""

import functools

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_7.shared import (
    CONDITIONS,
    FORMULAS,
    MASKS,
    draw,
    fresh_cases,
    given,
    place_mistakes,
    places,
    ranges,
    tolerance,
    zero_strides,
)
from fa_tutorial.exercises.harness import Exercise

triton = hardware.require_triton("Exercise 7.2")
import triton.language as tl  # noqa: E402


@triton.jit
def dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, H, S_q, S_k, D, scale,
    stride_qb, stride_qh, stride_qs, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_dob, stride_doh, stride_dos, stride_dod,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dk, dv: (B, H, S_k, D), contiguous. q, do: (B, H, S_q, D); lse, delta: (B, H, S_q) float32.

    Grid: (ceil(S_k / BLOCK_N) · B · H,).
    """
    key_blocks = tl.cdiv(S_k, BLOCK_N)
    key_block, batch_head = tl.program_id(0) % key_blocks, tl.program_id(0) // key_blocks
    b, h = batch_head // H, batch_head % H
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh
    do_ptr += b * stride_dob + h * stride_doh

    offs_n = key_block * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N]
    offs_d = tl.arange(0, BLOCK_D)  # [BLOCK_D]
    mask_n = (offs_n[:, None] < S_k) & (offs_d[None, :] < D)  # [BLOCK_N, BLOCK_D]
    k_ptrs = k_ptr + offs_n[:, None] * stride_ks + offs_d[None, :] * stride_kd
    v_ptrs = v_ptr + offs_n[:, None] * stride_vs + offs_d[None, :] * stride_vd
    k = tl.load(k_ptrs, mask=mask_n, other=0.0)
    v = tl.load(v_ptrs, mask=mask_n, other=0.0)
    dk = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)

    start = 0
    if IS_CAUSAL:  # the block of the first query that sees the first key (6.13)
        start = tl.maximum(key_block * BLOCK_N + S_q - S_k, 0) // BLOCK_M * BLOCK_M
    for start_m in range(start, S_q, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
        mask_m = (offs_m[:, None] < S_q) & (offs_d[None, :] < D)  # [BLOCK_M, BLOCK_D]
        q_ptrs = q_ptr + offs_m[:, None] * stride_qs + offs_d[None, :] * stride_qd
        do_ptrs = do_ptr + offs_m[:, None] * stride_dos + offs_d[None, :] * stride_dod
        q = tl.load(q_ptrs, mask=mask_m, other=0.0)
        do = tl.load(do_ptrs, mask=mask_m, other=0.0)
        lse = tl.load(lse_ptr + batch_head * S_q + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
        delta = tl.load(delta_ptr + batch_head * S_q + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]

        s_t = scale * tl.dot(k, tl.trans(q), input_precision="ieee")  # [BLOCK_N, BLOCK_M]
        p_t = tl.exp(s_t - lse[None, :])  # [BLOCK_N, BLOCK_M]
        if IS_CAUSAL:  # where a query sees nothing, lse is −inf and p_t inf: this clears it too
            p_t = tl.where(offs_n[:, None] <= offs_m[None, :] + (S_k - S_q), p_t, 0.0)
        dv = tl.dot(p_t.to(do.dtype), do, dv, input_precision="ieee")  # [BLOCK_N, BLOCK_D]
        dp_t = tl.dot(v, tl.trans(do), input_precision="ieee")  # [BLOCK_N, BLOCK_M]
        ds_t = p_t * (dp_t - delta[None, :])  # [BLOCK_N, BLOCK_M]
        dk = tl.dot(ds_t.to(q.dtype), q, dk, input_precision="ieee")  # [BLOCK_N, BLOCK_D]

    out = (batch_head * S_k + offs_n[:, None]) * D + offs_d[None, :]  # [BLOCK_N, BLOCK_D]
    tl.store(dk_ptr + out, (scale * dk).to(dk_ptr.dtype.element_ty), mask=mask_n)
    tl.store(dv_ptr + out, dv.to(dv_ptr.dtype.element_ty), mask=mask_n)


START = "a program's keys start at key_block · BLOCK_N"
KEPT = "kept in fp16, in which 2048 + 1 is 2048: sums over blocks are float32"
COUNTED = "rows past S_q count in dk and dv: q and do are 0 there, or p is"
FIRST_SEEING = "it is the block that holds query key_block · BLOCK_N + S_q − S_k"
EARLIER = "every block adds to what the others gave"
MISTAKES = {
    "dk_and_dv": "dk and dv are exchanged: dk = scale · dsᵀ q goes to dk_ptr, dv = pᵀ do to dv_ptr",
    "p_turned": "p is not transposed: dv = pᵀ do",
    "ds_turned": "ds is not transposed: dk = scale · dsᵀ q",
    "both_turned": "neither p nor ds is transposed: dv = pᵀ do, dk = scale · dsᵀ q",
    "factor_1": "scale is forgotten in dk: dk = scale · dsᵀ q",
    "factor_squared": "scale is applied twice to dk",
    "scale_dv": "scale is applied to dv: dv = pᵀ do, for v is not scaled",
    "dv_not_dk": "scale is applied to dv, and not to dk: dv = pᵀ do, dk = scale · dsᵀ q",
    "ds_for_p": "ds stands where p is meant: dv = pᵀ do",
    "p_for_ds": "p stands where ds is meant: dk = scale · dsᵀ q",
    "k_for_q": "k stands where q is meant: dk = scale · dsᵀ q",
    "v_for_do": "v stands where do is meant: dv = pᵀ do",
    "sign": "dk has the wrong sign",
    **FORMULAS,
    "ds_unmasked": "p is masked, but not ds: p ∘ (dp − delta) is to be 0 where p is",
    "p_unmasked": "ds is masked, but not p: dv = pᵀ do needs the mask too",
    "last_block": f"only the last block of queries counts: {EARLIER}",
    "last_block_dk": f"only the last block of queries counts in dk: {EARLIER}",
    "last_block_dv": f"only the last block of queries counts in dv: {EARLIER}",
    "first_block": "only the first block of queries counts: the loop runs to S_q",
    "skips_always": "blocks of queries are skipped, and there is no mask: without a mask the loop starts with query 0",
    **{f"first {'+'.join(names)}": f"every step reads the first rows of {' and '.join(names)}: they start at start_m"
       for names in (("q", "do", "lse", "delta"), ("q", "do"), ("lse", "delta"), ("q",), ("do",), ("lse",), ("delta",))},
    "ragged_query": "the ragged last block of queries is left out: the loop goes on while start_m < S_q",
    "last_query": f"{COUNTED}; here the last row stands in for them",
    "first_query": f"{COUNTED}; here the first rows stand in for them",
    **{f"first {'+'.join(names)}": f"every program loads the first rows of {' and '.join(names)}: {START}" for names in (("k", "v"), ("k",), ("v",))},
    "first_place dk+dv": f"the second block of keys is never stored: {START}, in dk and dv too",
    "ragged_unstored dk+dv": "the ragged last keys are never stored: there are tl.cdiv(S_k, BLOCK_N) key blocks a head",
    **MASKS,
    "late": "the loop starts one block too late: the block of queries that the diagonal crosses sees some of the keys",
    "ends_early": "queries after the diagonal's block are left out: they see every key of the block",
    "rows_open": "blocks before the diagonal are walked, and not masked",
    "by_number": f"the first block of queries is found by block number: {FIRST_SEEING}",
    "rounded": f"the first block of queries is rounded up, and earlier queries of its block see the first keys: {FIRST_SEEING}",
    "start_by_last": "the loop starts where the last key is seen: earlier queries see the first keys",
    "first_masked": "only the first block of queries is masked: several see the block of keys in part",
    "start_top_left": "the mask is right, but the loop starts at query key_block · BLOCK_N: add S_q − S_k",
    "walks_unseen": "blocks of queries that see none of the keys are read: the loop starts with the block of the first query that sees one",
    **place_mistakes("dk", "dv"),
    "half_dv": f"dv is {KEPT}",
    "half_dk": f"dk is {KEPT}",
}  # fmt: skip


def twin(given, mistake=None):
    return given.gradients(mistake)[1:]


def launch(given):
    return given.launch("dk", "dv")


@functools.cache
def fixed():
    return tuple(_fixed())


def inputs():
    yield from fixed()
    yield from fresh_cases((16, 32, 16))


def _fixed():
    fits = "an offset is wrong, not a mask, for whole tiles fit here"
    yield given((1, 1, 16, 16, 16), "S_q = S_k = D = 16, one tile", "one tile gives dv = pᵀ do and dk = scale · dsᵀ q", stray=fits)
    yield given((1, 1, 32, 16, 16), "S_q = 32, two blocks of queries", "dk and dv are sums over the blocks of queries",
                stray="a step's rows are start_m to start_m + BLOCK_M − 1, and start_m stays below S_q")  # fmt: skip
    yield given((1, 1, 20, 16, 16), "S_q = 20, BLOCK_M = 16", "the last block of queries may be ragged",
                stray="rows past S_q are loaded: offs_m < S_q is in the masks of q, do, lse and delta")  # fmt: skip
    yield given((1, 1, 16, 32, 16), "S_k = 32, two programs", START)
    yield given((1, 1, 16, 20, 16), "S_k = 20, BLOCK_N = 16", "the last block of keys may be ragged",
                stray="keys past S_k are loaded or stored: offs_n < S_k is in the masks of k and v, and of the stores of dk and dv")  # fmt: skip
    yield from places("dk and dv", "S_k")
    yield given((1, 1, 16, 16, 16), "causal, S_q = S_k = 16, one tile", "query i sees keys 0 to i", is_causal=True)
    rule = "a block of keys meets the queries from its first key on"
    for S, blocks in ((32, (16, 16, 16)), (48, (32, 16, 16)), (32, (16, 32, 16))):
        yield given(
            (1, 1, S, S, 16),
            f"causal, S_q = S_k = {S}, blocks of {blocks[0]} queries and {blocks[1]} keys",
            rule,
            is_causal=True,
            blocks=blocks,
        )
    yield given((1, 1, 16, 32, 16), "causal, S_q = 16, S_k = 32", "query i sees keys 0 to i + S_k − S_q", is_causal=True,
                stray="the loop starts before query 0: key_block · BLOCK_N + S_q − S_k may be negative")  # fmt: skip
    yield from ranges()
    yield from zero_strides()
    on = "causal, S_q = 24, S_k = 16, so that rows 0 to 7 see no key"
    yield given((1, 1, 24, 16, 16), on, MASKS["dead_nan"], is_causal=True, edge="unseen")
    tensors = draw(1, 1, 48, 16, 16)
    tensors[0][:, :, :32] = tensors[3][:, :, :32] = torch.nan  # who reads them gives NaN
    on = "causal, S_q = 48, S_k = 16, so that rows 0 to 31 see no key, and are not to be read"
    yield given(None, on, MISTAKES["walks_unseen"], tensors=tensors, is_causal=True, edge="unseen")
    q, k, v, do = (torch.zeros(1, 1, S, 16, dtype=torch.float16) for S in (48, 16, 16, 48))  # equal scores, so p = 1 / 16
    do[:, :, 0], do[:, :, 16], do[:, :, 32] = 32768, 16, -32768
    on = "fp16, equal scores, {} of the three blocks is {}"
    yield given(None, on.format("pᵀ do", "2048, 1 and −2048"), KEPT, tensors=(q, k, v, do), near=0.1, edge="half")
    q, v, do = q.clone(), v.clone(), torch.zeros_like(do)
    v[:, :, 0::2, 0], v[:, :, 1::2, 0], do[..., 0] = 1, -1, 16
    q[:, :, 0], q[:, :, 16], q[:, :, 32] = 2048, 1, -2048
    yield given(None, on.format("dsᵀ q", "±2048, ±1 and ∓2048"), KEPT, tensors=(q, k, v, do), scale=1.0, near=0.1, edge="half")


EXERCISE = Exercise(
    id="7.2",
    task="Write dk and dv: a program keeps one block of keys and walks over the blocks of queries, full or causal.",
    conditions=CONDITIONS,
    hints=(
        "k and v are loaded once, before the loop; q, do, lse and delta at every step. Write the shape above each tile: with sᵀ = k qᵀ, [BLOCK_N, BLOCK_M], "
        "no computed tile has to be transposed; lse and delta then run along its second axis.",
        "p = exp(s − lse), ds = p ∘ (dp − delta). dv += pᵀ do and dk += dsᵀ q, both float32: "
        'dv = tl.dot(p_t.to(do.dtype), do, dv, input_precision="ieee"); scale · dk after the loop.',
        "Causal: the first query that sees the block's first key is key_block · BLOCK_N + S_q − S_k, if that is not negative; the loop starts with its "
        "block. Hide by tl.where, in p, before ds is computed from it: that also clears the rows that see nothing, whose lse is −inf.",
        "Rows past S_q: q, do, lse and delta load as 0, so their p is 1, and is multiplied by do = 0 and q = 0. Keys past S_k give rows of dk and dv that "
        "are not stored.",
    ),
    solution=dkdv_kernel,
    reasoning="A program owns its rows of dk and dv: nobody else adds to them, so no atomics, and the same bits on every run. The mask needs only "
    "j ≤ i + S_k − S_q: padded queries have q = do = 0, and padded keys end up in rows that are not stored. Where a row sees nothing, p is "
    "exp(s + inf) = inf until tl.where puts 0 there.",
    more="The package's version, backward.dkdv_kernel, sums over the query heads of a group, walks the blocks that need no mask in a loop of their own, "
    "and has int64 offsets.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    launch=launch,
    tolerance=tolerance,
    overlap="programs store to one another's rows: a head starts at (b · H + h) · S_k · D of dk and dv, and a program's keys at key_block · BLOCK_N",
)
