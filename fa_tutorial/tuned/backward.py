"""Chapter 8's backward: the kernels of chapter 7 in base 2, with descriptors, an order of programs and tiles that are
measured."""

from __future__ import annotations

import torch

from fa_tutorial.backward import DELTA_ELEMENTS, BackwardConfig, delta_tile
from fa_tutorial.hardware import require_triton
from fa_tutorial.matmul import grouped_tile_device
from fa_tutorial.tiles import dot, heads, load_tile, padded_d, store_tile
from fa_tutorial.tuned.autotuning import autotune, launch
from fa_tutorial.tuned.descriptors import can_use_tma
from fa_tutorial.tuned.forward import LOG2_E, heads_at_once
from fa_tutorial.tuned.launching import Launch, launch_prepared, signature_of

triton = require_triton("Chapter 8 (fa_tutorial.tuned)")
import triton.language as tl  # noqa: E402

# Of any tile's rows of q: lse2 and delta are padded to a multiple of it, so that no kernel has to mask them.
MAX_BLOCK = tl.constexpr(128)


@triton.jit
def prepare_kernel(
    o, do, lse_ptr, dlse_ptr, lse2_ptr, delta_ptr, H_q, S_q, D,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """lse2 = lse · log2(e) and delta = rowsum(do ∘ o) − dlse, once for both kernels (8.5).

    o, do: Heads (B, H_q, S_q, D); lse_ptr, dlse_ptr (or None): (B, H_q, S_q) float32;
    lse2_ptr, delta_ptr: (B, H_q, S_padded) float32. A row that sees nothing, and a row beyond S_q,
    gets lse2 = +inf: then p = 2^(s − lse2) = 0. Grid: (ceil(S_padded / BLOCK_M) · B · H_q,).
    """
    S_padded = tl.cdiv(S_q, MAX_BLOCK) * MAX_BLOCK
    row_blocks = tl.cdiv(S_padded, BLOCK_M)
    start_m = tl.program_id(0) % row_blocks * BLOCK_M
    batch_head = tl.program_id(0) // row_blocks
    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    delta = delta_tile(o, do, dlse_ptr, batch_head, H_q, start_m, S_q, D, BLOCK_M, BLOCK_D)
    row = lse_ptr + batch_head.to(tl.int64) * S_q
    lse = tl.load(row + offs_m, mask=offs_m < S_q, other=-float("inf"))  # [BLOCK_M]
    lse2 = tl.where(lse == -float("inf"), float("inf"), lse * LOG2_E)
    rows = batch_head.to(tl.int64) * S_padded + offs_m  # [BLOCK_M]
    tl.store(lse2_ptr + rows, lse2, mask=offs_m < S_padded)
    tl.store(delta_ptr + rows, delta, mask=offs_m < S_padded)


@triton.jit
def add_to_dkdv(k_tile, v_tile, dk, dv, q, do, lse2_ptr, delta_ptr, b, h, start_m, first_seeing,
                S_q, D, scale_log2, MASK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """backward.add_to_dkdv in base 2."""
    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    do_tile = load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    lse2 = tl.load(lse2_ptr + offs_m)  # [BLOCK_M]
    delta = tl.load(delta_ptr + offs_m)  # [BLOCK_M]
    s_t = dot(k_tile, tl.trans(q_tile))  # [BLOCK_N, BLOCK_M], not scaled
    dp_t = dot(v_tile, tl.trans(do_tile))  # [BLOCK_N, BLOCK_M], (7.1)
    p_t = tl.exp2(s_t * scale_log2 - lse2[None, :])  # [BLOCK_N, BLOCK_M]
    if MASK:
        p_t = tl.where(offs_m[None, :] >= first_seeing[:, None], p_t, 0.0)
    dv = dot(p_t.to(do_tile.dtype), do_tile, dv)  # [BLOCK_N, BLOCK_D], (6.8)
    ds_t = p_t * (dp_t - delta[None, :])  # [BLOCK_N, BLOCK_M], (6.10)
    dk = dot(ds_t.to(q_tile.dtype), q_tile, dk)  # [BLOCK_N, BLOCK_D], (6.12)
    return dk, dv


@autotune("dkdv")
@triton.jit(do_not_specialize=["autotune_key"])
def dkdv_kernel(
    q, k, v, do, dk, dv, lse2_ptr, delta_ptr, H_k, S_q, S_k, D, scale, autotune_key, IS_CAUSAL: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dk and dv as backward.dkdv_kernel gives them. Each tensor as Heads or as a descriptor; lse2_ptr, delta_ptr:
    prepare_kernel's.

    A causal key block is the longer the earlier it comes, so the order of programs is right as it is. Grid:
    (ceil(S_k / BLOCK_N) · B · H_k,).
    """
    key_blocks = tl.cdiv(S_k, BLOCK_N)
    start_n = tl.program_id(0) % key_blocks * BLOCK_N
    batch_head = tl.program_id(0) // key_blocks
    b, h_k = batch_head // H_k, batch_head % H_k
    S_padded = tl.cdiv(S_q, MAX_BLOCK) * MAX_BLOCK

    k_tile = load_tile(k, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    v_tile = load_tile(v, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)

    scale_log2 = scale * LOG2_E
    first_seeing = start_n + tl.arange(0, BLOCK_N) - (S_k - S_q)  # [BLOCK_N]
    first_m, full_m = 0, 0  # queries first_m … full_m − 1 need a mask, from full_m on none does
    if IS_CAUSAL:  # (6.13)
        first_m = tl.maximum(start_n + S_q - S_k, 0) // BLOCK_M * BLOCK_M
        full_m = tl.cdiv(tl.maximum(tl.minimum(start_n + BLOCK_N, S_k) - 1 + S_q - S_k, 0), BLOCK_M) * BLOCK_M
    for member in tl.range(0, GROUP, num_stages=1):
        h = h_k * GROUP + member  # (7.4)
        row = (b * H_k * GROUP + h).to(tl.int64) * S_padded
        for start_m in range(full_m, S_q, BLOCK_M):
            dk_acc, dv_acc = add_to_dkdv(
                k_tile, v_tile, dk_acc, dv_acc, q, do, lse2_ptr + row, delta_ptr + row, b, h, start_m, first_seeing,
                S_q, D, scale_log2, False, BLOCK_M, BLOCK_D,
            )  # fmt: skip
        if IS_CAUSAL:
            for start_m in range(first_m, tl.minimum(full_m, S_q), BLOCK_M):
                dk_acc, dv_acc = add_to_dkdv(
                    k_tile, v_tile, dk_acc, dv_acc, q, do, lse2_ptr + row, delta_ptr + row, b, h, start_m, first_seeing,
                    S_q, D, scale_log2, True, BLOCK_M, BLOCK_D,
                )  # fmt: skip

    store_tile(dk, dk_acc * scale, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)
    store_tile(dv, dv_acc, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)


@triton.jit
def add_to_dq(q_tile, do_tile, lse2, delta, dq, k, v, b, h_k, start_n, last_seen, S_k, D, scale_log2,
              MASK: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """backward.add_to_dq in base 2."""
    k_tile = load_tile(k, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    v_tile = load_tile(v, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    s = dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N], not scaled
    dp = dot(do_tile, tl.trans(v_tile))  # [BLOCK_M, BLOCK_N]
    p = tl.exp2(s * scale_log2 - lse2[:, None])  # [BLOCK_M, BLOCK_N]
    if MASK:
        offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        p = tl.where(offs_n[None, :] <= last_seen[:, None], p, 0.0)
    ds = p * (dp - delta[:, None])  # [BLOCK_M, BLOCK_N]
    return dot(ds.to(k_tile.dtype), k_tile, dq)  # (6.11)


@autotune("dq")
@triton.jit(do_not_specialize=["autotune_key"])
def dq_kernel(
    q, k, v, do, dq, lse2_ptr, delta_ptr, H_q, H_k, heads_at_once, S_q, S_k, D, scale, autotune_key,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dq as backward.dq_kernel gives it. Arguments as in dkdv_kernel, order and grid of programs as in
    forward_kernel."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    batch_head, row_block = tl.program_id(0) // row_blocks, tl.program_id(0) % row_blocks
    if IS_CAUSAL:
        batch_head, row_block = grouped_tile_device(
            tl.program_id(0), tl.num_programs(0) // row_blocks, row_blocks, heads_at_once
        )
        row_block = row_blocks - 1 - row_block
    start_m = row_block * BLOCK_M
    b, h = batch_head // H_q, batch_head % H_q
    h_k = h // (H_q // H_k)

    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    rows = batch_head.to(tl.int64) * tl.cdiv(S_q, MAX_BLOCK) * MAX_BLOCK + offs_m  # [BLOCK_M]
    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    do_tile = load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    lse2 = tl.load(lse2_ptr + rows)  # [BLOCK_M]
    delta = tl.load(delta_ptr + rows)  # [BLOCK_M]
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    scale_log2 = scale * LOG2_E
    last_seen = tl.full((BLOCK_M,), 0, dtype=tl.int32) + (S_k - 1)  # [BLOCK_M]
    full_n, end_n = S_k // BLOCK_N * BLOCK_N, S_k
    if IS_CAUSAL:  # (4.6)
        last_seen = offs_m + (S_k - S_q)
        full_n = tl.maximum(start_m + 1 + S_k - S_q, 0) // BLOCK_N * BLOCK_N
        end_n = tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q
    TAIL_STAGES: tl.constexpr = None if IS_CAUSAL else 1  # as in forward_kernel
    for start_n in range(0, full_n, BLOCK_N):
        acc = add_to_dq(
            q_tile, do_tile, lse2, delta, acc, k, v, b, h_k, start_n, last_seen, S_k, D, scale_log2, False, BLOCK_N,
            BLOCK_D,
        )  # fmt: skip
    for start_n in tl.range(full_n, end_n, BLOCK_N, num_stages=TAIL_STAGES):
        acc = add_to_dq(
            q_tile, do_tile, lse2, delta, acc, k, v, b, h_k, start_n, last_seen, S_k, D, scale_log2, True, BLOCK_N,
            BLOCK_D,
        )  # fmt: skip
    store_tile(dq, acc * scale, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


def prepare(
    o: torch.Tensor, do: torch.Tensor, lse: torch.Tensor, dlse: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """lse2 and delta by prepare_kernel, (B, H_q, S_padded) float32."""
    B, H_q, S_q, D = o.shape
    block_d = padded_d(D)
    block_m = DELTA_ELEMENTS // block_d
    S_padded = -(-S_q // MAX_BLOCK.value) * MAX_BLOCK.value  # triton.cdiv takes 4 us of the host
    lse2, delta = torch.empty((2, B, H_q, S_padded), dtype=torch.float32, device=o.device).unbind()
    programs, constants = -(-S_padded // block_m) * B * H_q, {"BLOCK_M": block_m, "BLOCK_D": block_d}
    launch_prepared(
        ("prepare", *signature_of(o, do, lse, dlse)),
        lambda: Launch(prepare_kernel, programs, [heads, heads], constants),
        (o, do),
        (lse, dlse, lse2, delta, H_q, S_q, D),
    )
    return lse2, delta


def flash_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, do: torch.Tensor, lse: torch.Tensor,
    dlse: torch.Tensor | None, is_causal: bool, scale: float, *, config: BackwardConfig | None = None,
    descriptors: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """backward.flash_backward by this module's kernels, for what forward.applies to. Same arguments and results.

    config: None takes the fastest tiles, which the first call of a kind measures. descriptors: as in
    forward.flash_forward.
    """
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    tma = descriptors and can_use_tma(signature_of(q, k, v))
    if tma and not can_use_tma(signature_of(do)):
        do = do.clone(memory_format=torch.contiguous_format)  # o.sum() sends strides of 0
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    lse2, delta = prepare(o, do, lse, dlse)
    inputs = {"q": q, "k": k, "v": v, "do": do}
    common = {"signature": signature_of(q, k, v, do), "tma": tma, "IS_CAUSAL": is_causal, "BLOCK_D": padded_d(D)}
    launch(
        "dkdv", dkdv_kernel, lambda meta: (triton.cdiv(S_k, meta["BLOCK_N"]) * B * H_k,), inputs | {"dk": dk, "dv": dv},
        lse2, delta, H_k, S_q, S_k, D, scale, tile=config and config.dkdv, GROUP=H_q // H_k, **common,
    )  # fmt: skip
    launch(
        "dq",
        dq_kernel,
        lambda meta: (triton.cdiv(S_q, meta["BLOCK_M"]) * B * H_q,),
        inputs | {"dq": dq},
        lse2,
        delta,
        H_q,
        H_k,
        heads_at_once(S_k),
        S_q,
        S_k,
        D,
        scale,
        tile=config and config.dq,
        **common,
    )
    return dq, dk, dv
