"""Chapter 9's try at the backward: dk and dv by warp roles, to measure and nothing else. Full attention, fp16, D = 64 or 128, compute capability 9.0.

Loop order and mathematics of tuned.dkdv_kernel (7.1), roles and barriers of fa_tutorial.hopper: k and v of a consumer stay, q and do go through rings.

| barrier | one for each | who arrives | who waits |
|---|---|---|---|
| kv_full | consumer | the load of its 64 rows of k and of v | that consumer, before each piece |
| kv_empty | consumer | that consumer, when dk and dv have left shared memory | the producer, before it loads the next piece's k and v |
| q_full, do_full | stage of the ring | the load of a tile of q and of its lse2; of do and of its delta | every consumer, before the matmul that reads it |
| q_empty, do_empty | stage of the ring | every consumer, when the last matmul that reads it is done | the producer, before it loads into the stage again |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from fa_tutorial import tuned
from fa_tutorial.hardware import require_triton
from fa_tutorial.hopper import NUM_WARPS, barriers, descriptor, pack, processors, unpack

require_triton("Chapter 9's try at the backward (fa_tutorial.bench.hopper_dkdv)")
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import (  # noqa: E402
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # noqa: E402

KEYS = gl.constexpr(64)  # that one consumer keeps


class Shared(NamedTuple):
    """What the roles share. Tiles: k, v [consumers, 1, 1, KEYS, D]; q, do [stages, 1, 1, BLOCK_M, D]; lse2, delta [stages, 1, BLOCK_M]; mbarriers."""

    k: object
    v: object
    q: object
    do: object
    lse2: object
    delta: object
    kv_full: object
    kv_empty: object
    q_full: object
    q_empty: object
    do_full: object
    do_empty: object


class Problem(NamedTuple):
    """The arguments of dkdv_kernel that both roles need; key_blocks of CONSUMERS · KEYS keys each; heads = B · H_k."""

    H_q: object
    H_k: object
    key_blocks: object
    heads: object
    S_q: object


@gluon.jit
def load_rows(x_desc, row_desc, b, h, H_q, start_m, full, empty, tiles, rows, stage, parity):
    """Producer: a tile of q or do, and its rows' lse2 or delta, as soon as the stage is free. Both arrive at one barrier."""
    BLOCK_M: gl.constexpr = tiles.shape[3]
    mbarrier.wait(empty.index(stage), parity)
    mbarrier.expect(full.index(stage), BLOCK_M * (tiles.shape[4] * 2 + 4))
    tma.async_copy_global_to_shared(x_desc, [b, h, start_m, 0], full.index(stage), tiles.index(stage))
    tma.async_copy_global_to_shared(row_desc, [b * H_q + h, start_m], full.index(stage), rows.index(stage))


@gluon.jit
def producer(q_desc, k_desc, v_desc, do_desc, lse2_desc, delta_desc, shared, problem):
    """One warp: k and v of each piece, then q and do of every query head that reads them, block after block."""
    CONSUMERS: gl.constexpr = shared.k.shape[0]
    STAGES: gl.constexpr = shared.q.shape[0]
    BLOCK_M: gl.constexpr = shared.q.shape[3]
    D: gl.constexpr = shared.q.shape[4]
    blocks = gl.cdiv(problem.S_q, BLOCK_M)
    group = problem.H_q // problem.H_k
    tile = 0  # of q and do, over all pieces
    for i in range(gl.program_id(0), problem.key_blocks * problem.heads, gl.num_programs(0)):
        turn = i // gl.num_programs(0)  # of this program's pieces
        b = i // problem.key_blocks // problem.H_k
        h_k = i // problem.key_blocks % problem.H_k
        start_n = i % problem.key_blocks * (CONSUMERS * KEYS)
        for c in gl.static_range(CONSUMERS):
            mbarrier.wait(shared.kv_empty.index(c), turn & 1 ^ 1)
            mbarrier.expect(shared.kv_full.index(c), 2 * KEYS * D * 2)
            tma.async_copy_global_to_shared(k_desc, [b, h_k, start_n + c * KEYS, 0], shared.kv_full.index(c), shared.k.index(c))
            tma.async_copy_global_to_shared(v_desc, [b, h_k, start_n + c * KEYS, 0], shared.kv_full.index(c), shared.v.index(c))
        for j in range(blocks * group):
            h = h_k * group + j // blocks
            start_m = j % blocks * BLOCK_M
            stage = tile % STAGES
            parity = tile // STAGES & 1 ^ 1
            load_rows(q_desc, lse2_desc, b, h, problem.H_q, start_m, shared.q_full, shared.q_empty, shared.q, shared.lse2, stage, parity)
            load_rows(
                do_desc, delta_desc, b, h, problem.H_q, start_m, shared.do_full, shared.do_empty, shared.do, shared.delta, stage, parity
            )
            tile += 1


@gluon.jit
def add_to_dk_dv(k, v, dk, dv, zeros, shared, tile, scale_log2):
    """sᵀ, pᵀ, dpᵀ and dsᵀ [KEYS, BLOCK_M] of tile `tile` of q and do; returns dk + dsᵀ q and dv + pᵀ do [KEYS, D].

    dpᵀ is waited for after pᵀ is computed, dv's matmul after dsᵀ is: two overlaps inside the warpgroup, where the compiler leaves them.
    """
    STAGES: gl.constexpr = shared.q.shape[0]
    BLOCK_M: gl.constexpr = shared.q.shape[3]
    D: gl.constexpr = shared.q.shape[4]
    dtype: gl.constexpr = shared.q.dtype
    ROWS: gl.constexpr = gl.SliceLayout(0, zeros.type.layout)
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=dk.type.layout, k_width=2)
    stage = tile % STAGES
    phase = tile // STAGES & 1
    q = shared.q.index(stage).reshape([BLOCK_M, D])
    do = shared.do.index(stage).reshape([BLOCK_M, D])
    mbarrier.wait(shared.q_full.index(stage), phase)
    s = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
    lse2 = shared.lse2.index(stage).reshape([BLOCK_M]).load(ROWS)
    mbarrier.wait(shared.do_full.index(stage), phase)
    dp = warpgroup_mma(v, do.permute((1, 0)), zeros, use_acc=False, is_async=True)
    delta = shared.delta.index(stage).reshape([BLOCK_M]).load(ROWS)
    s = warpgroup_mma_wait(1, [s])
    p = gl.exp2(s * scale_log2 - lse2[None, :])  # (8.5)
    p_pairs = pack(p, dtype)
    dp = warpgroup_mma_wait(0, [dp])
    dv = warpgroup_mma(unpack(p_pairs, dtype, LEFT), do, dv, is_async=True)
    ds_pairs = pack(p * (dp - delta[None, :]), dtype)
    dk = warpgroup_mma(unpack(ds_pairs, dtype, LEFT), q, dk, is_async=True)
    dv = warpgroup_mma_wait(1, [dv])
    mbarrier.arrive(shared.do_empty.index(stage), count=1)
    dk = warpgroup_mma_wait(0, [dk])
    mbarrier.arrive(shared.q_empty.index(stage), count=1)
    return dk, dv


@gluon.jit
def consumer(dk_desc, dv_desc, scale, scale_log2, shared, problem, C: gl.constexpr):
    """Warpgroup C: KEYS keys of each piece, over all rows of q."""
    CONSUMERS: gl.constexpr = shared.k.shape[0]
    BLOCK_M: gl.constexpr = shared.q.shape[3]
    D: gl.constexpr = shared.q.shape[4]
    dtype: gl.constexpr = shared.q.dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_M, 16])
    D_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    zeros = gl.zeros([KEYS, BLOCK_M], gl.float32, S_LAYOUT)
    tiles = gl.cdiv(problem.S_q, BLOCK_M) * (problem.H_q // problem.H_k)
    tile = 0
    for i in range(gl.program_id(0), problem.key_blocks * problem.heads, gl.num_programs(0)):
        mbarrier.wait(shared.kv_full.index(C), i // gl.num_programs(0) & 1)
        k = shared.k.index(C).reshape([KEYS, D])
        v = shared.v.index(C).reshape([KEYS, D])
        dk = gl.zeros([KEYS, D], gl.float32, D_LAYOUT)
        dv = gl.zeros([KEYS, D], gl.float32, D_LAYOUT)
        for j in range(tiles):
            dk, dv = add_to_dk_dv(k, v, dk, dv, zeros, shared, tile + j, scale_log2)
        tile += tiles
        k.store((dk * scale).to(dtype))  # k and v have been read: their tiles take dk and dv
        v.store(dv.to(dtype))
        fence_async_shared()
        b = i // problem.key_blocks // problem.H_k
        h_k = i // problem.key_blocks % problem.H_k
        start_n = i % problem.key_blocks * (CONSUMERS * KEYS) + C * KEYS
        tma.async_copy_shared_to_global(dk_desc, [b, h_k, start_n, 0], shared.k.index(C))
        tma.async_copy_shared_to_global(dv_desc, [b, h_k, start_n, 0], shared.v.index(C))
        tma.store_wait(0)
        mbarrier.arrive(shared.kv_empty.index(C), count=1)


@gluon.jit(do_not_specialize=["H_q", "H_k", "key_blocks", "heads", "S_q"])
def dkdv_kernel(
    q_desc, k_desc, v_desc, do_desc, lse2_desc, delta_desc, dk_desc, dv_desc, H_q, H_k, key_blocks, heads, S_q, scale, scale_log2,
    CONSUMERS: gl.constexpr, STAGES: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """dk and dv as tuned.dkdv_kernel gives them, of full attention in fp16.

    q, do: (B, H_q, S_q, D), descriptors of tiles (1, 1, BLOCK_M, D); k, v, dk, dv: (B, H_k, S_k, D), of tiles (1, 1, KEYS, D); lse2, delta:
    (B · H_q, S_padded) float32, of tiles (1, BLOCK_M). key_blocks = ceil(S_k / (CONSUMERS · KEYS)), heads = B · H_k. Grid: any number of programs.
    """
    dtype: gl.constexpr = q_desc.dtype
    BLOCK_M: gl.constexpr = q_desc.block_type.shape[2]
    D: gl.constexpr = q_desc.block_type.shape[3]
    shared = Shared(
        gl.allocate_shared_memory(dtype, [CONSUMERS, 1, 1, KEYS, D], k_desc.layout),
        gl.allocate_shared_memory(dtype, [CONSUMERS, 1, 1, KEYS, D], v_desc.layout),
        gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_M, D], q_desc.layout),
        gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_M, D], do_desc.layout),
        gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], lse2_desc.layout),
        gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], delta_desc.layout),
        barriers(CONSUMERS, 1), barriers(CONSUMERS, 1), barriers(STAGES, 1), barriers(STAGES, CONSUMERS), barriers(STAGES, 1), barriers(STAGES, CONSUMERS),
    )  # fmt: skip
    problem = Problem(H_q, H_k, key_blocks, heads, S_q)
    if CONSUMERS == 2:
        gl.warp_specialize([
            (consumer, (dk_desc, dv_desc, scale, scale_log2, shared, problem, 0)),
            (consumer, (dk_desc, dv_desc, scale, scale_log2, shared, problem, 1)),
            (producer, (q_desc, k_desc, v_desc, do_desc, lse2_desc, delta_desc, shared, problem)),
        ], [4, 1], [CONSUMER_REGISTERS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (consumer, (dk_desc, dv_desc, scale, scale_log2, shared, problem, 0)),
            (consumer, (dk_desc, dv_desc, scale, scale_log2, shared, problem, 1)),
            (consumer, (dk_desc, dv_desc, scale, scale_log2, shared, problem, 2)),
            (producer, (q_desc, k_desc, v_desc, do_desc, lse2_desc, delta_desc, shared, problem)),
        ], [4, 4, 1], [CONSUMER_REGISTERS, CONSUMER_REGISTERS, 24])  # fmt: skip


@dataclass(frozen=True)
class DkdvConfig:
    """consumers: warpgroups of KEYS keys each; block_m: rows of q a tile; stages of the rings; registers: of a consumer's thread."""

    consumers: int
    block_m: int
    stages: int
    registers: int


# What fits, by head dimension; the first is the fastest on an H200.
CONFIGS = {64: (DkdvConfig(2, 64, 3, 240), DkdvConfig(3, 64, 3, 160), DkdvConfig(2, 128, 2, 240)), 128: (DkdvConfig(2, 64, 2, 240),)}


def dk_and_dv(case: tuned.Backward, config: DkdvConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """tuned.Backward.dk_and_dv by this module's kernel: (B, H_k, S_k, D) fp16 each. case: of full attention, fp16, with descriptors."""
    q, k, v, do = case.q, case.k, case.v, case.do
    dk, dv = (torch.empty(k.shape, dtype=k.dtype, device=k.device) for _ in range(2))
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    rows = [
        TensorDescriptor(x, [case.B * case.H_q, case.S_padded], [case.S_padded, 1], [1, config.block_m], layout)
        for x in (case.lse2, case.delta)
    ]
    key_blocks, heads = -(-case.S_k // (KEYS.value * config.consumers)), case.B * case.H_k
    dkdv_kernel[(min(key_blocks * heads, processors(q.device.index)),)](
        descriptor(q, config.block_m), descriptor(k, KEYS.value), descriptor(v, KEYS.value), descriptor(do, config.block_m), *rows,
        descriptor(dk, KEYS.value), descriptor(dv, KEYS.value), case.H_q, case.H_k, key_blocks, heads, case.S_q, case.scale,
        case.scale * tuned.LOG2_E, CONSUMERS=config.consumers, STAGES=config.stages, CONSUMER_REGISTERS=config.registers, num_warps=NUM_WARPS,
    )  # fmt: skip
    return dk, dv
