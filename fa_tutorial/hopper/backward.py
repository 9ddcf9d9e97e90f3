"""Chapter 9's backward: dk, dv and dq in one launch. Two consumer warpgroups keep 64 keys each; TMA adds dq up in
global memory.

For what `forward.applies` to. Five matmuls a block, where chapter 8's two kernels compute s and dp twice and so need
seven. A program keeps 128 keys of one head, with their dk and dv in registers, and walks over the blocks of queries
that see them, through all query heads of the group. Tiles of scores are transposed, [64 keys, BLOCK_M queries]: so p
and ds are the first operands of dv += p do and dk += ds q as they lie in a consumer's registers. For dq = dsᵀ k a
consumer needs the other's rows of ds too, so the two meet once a block.

| ring | a stage holds | stages | who arrives at full | who arrives at empty |
|---|---|---|---|---|
| k | 128 rows of k, and the number of their work tile | STAGES | the load | both consumers, after their last dq |
| v | 128 rows of v | V_STAGES | the load | both consumers, when dv has left v's rows |
| q, do | BLOCK_M rows of q and −lse / scale; of do and −delta | STAGES | the load | both, after dk, at one barrier |
| ds | [128, BLOCK_M] | STAGES | both consumers, each with its 64 rows | nobody, see issue_dq |

Three launches: prepare_kernel (what a row brings, and zeros), backward_kernel, convert_kernel
(dq in order and in its dtype).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import NamedTuple

import torch

from fa_tutorial.backward import delta_tile
from fa_tutorial.hardware import card_of, require_triton
from fa_tutorial.hopper.forward import LOG2_E, NUM_WARPS, layout
from fa_tutorial.hopper.pipeline import (
    Pipeline,
    consumer_release,
    consumer_wait,
    load,
    make_barriers,
    make_pipeline,
    mbarrier,
    parity_of,
    producer_acquire,
    stage_of,
    tma,
    tma_add,
)
from fa_tutorial.hopper.softmax import pack, unpack
from fa_tutorial.hopper.tile_scheduler import (
    KEYS,
    ROWS,
    announce,
    announced,
    key_sizes_of,
    key_tile,
    make_numbers,
    next_work_tile,
)
from fa_tutorial.tiles import heads
from fa_tutorial.tuned.descriptors import can_use_tma, descriptor_template
from fa_tutorial.tuned.forward import heads_at_once
from fa_tutorial.tuned.launching import Launch, launch_prepared, signature_of

triton = require_triton("Chapter 9 (fa_tutorial.hopper)")
import triton.language as tl  # noqa: E402
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait  # noqa: E402
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # noqa: E402

STAGES = gl.constexpr(2)  # of every ring but v
# A consumer's part of a block of dq is [PART, PART]: half of the columns with D = 128, half of the rows with D = 64.
PART = gl.constexpr(64)


class Shared(NamedTuple):
    """What the roles share. k, v, q, do: rings; work: [STAGES, 1], the work tile of each stage of k; lse, delta:
    [STAGES, 1, BLOCK_M] float32, −lse / scale and −delta of the rows in q and do; ds: [STAGES, KEYS, BLOCK_M]; ds_full:
    its barriers; dq: [2, 16, 256] float32, each consumer's part."""

    k: object
    work: object
    v: object
    q: object
    do: object
    lse: object
    delta: object
    ds: object
    ds_full: object
    dq: object


class Block(NamedTuple):
    """A block of q at a consumer. n: blocks before it, over all work tiles; turn: work tiles before; start_m: its first
    row; row_block: its number among those of all heads."""

    n: object
    turn: object
    start_m: object
    row_block: object


class Flags(NamedTuple):
    """What the kernel knows when it compiles. MASK: some query does not see every key; GROUP: query heads of a key
    head; UNDER_DQ: one_block's."""

    IS_CAUSAL: bool
    MASK: bool
    GROUP: int
    UNDER_DQ: bool


# ---------------------------------------------------------------- producer


@gluon.jit
def load_rows(ring, values, n, desc, values_desc, b, h, start, H_q):
    """pipeline.load with the values of the tile's rows, [BLOCK_M] float32: both arrive at full together."""
    BLOCK_M: gl.constexpr = ring.tiles.shape[3]
    D: gl.constexpr = ring.tiles.shape[4]
    stage = stage_of(n, STAGES)
    mbarrier.expect(ring.full.index(stage), BLOCK_M * (D * (desc.dtype.primitive_bitwidth // 8) + 4))
    tma.async_copy_global_to_shared(desc, [b, h, start, 0], ring.full.index(stage), ring.tiles.index(stage))
    tma.async_copy_global_to_shared(values_desc, [b * H_q + h, start], ring.full.index(stage), values.index(stage))


@gluon.jit
def producer(q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, counter_ptr, shared, sizes, flags: gl.constexpr):
    """One warp: loads k and v of each work tile, and the blocks of q and do that see them."""
    BLOCK_M: gl.constexpr = shared.q.tiles.shape[3]
    work_tiles = sizes.key_blocks * sizes.heads
    n = 0  # blocks of q so far, over all work tiles
    turn = 0  # work tiles so far
    i = gl.program_id(0)
    while i < work_tiles:
        batch_head, start_n, first_m = key_tile(i, sizes, BLOCK_M, flags.IS_CAUSAL)
        b = batch_head // sizes.H_k
        h_k = batch_head % sizes.H_k
        producer_acquire(shared.k, turn)
        announce(i, shared.work, turn)
        load(shared.k, turn, k_desc, b, h_k, start_n)
        first_n = n
        for h in range(h_k * flags.GROUP, h_k * flags.GROUP + flags.GROUP):
            for start_m in range(first_m, sizes.S_q, BLOCK_M):
                producer_acquire(shared.q, n)
                load_rows(shared.q, shared.lse, n, q_desc, lse_desc, b, h, start_m, sizes.H_q)
                load_rows(shared.do, shared.delta, n, do_desc, delta_desc, b, h, start_m, sizes.H_q)
                if n == first_n:  # only now, because v's stage may still hold the dv of a work tile before
                    producer_acquire(shared.v, turn)
                    load(shared.v, turn, v_desc, b, h_k, start_n)
                n += 1
        turn += 1
        i = next_work_tile(i, counter_ptr, True)
    producer_acquire(shared.k, turn)
    announce(work_tiles, shared.work, turn)  # there is no such work tile: the consumers end
    mbarrier.arrive(shared.k.full.index(stage_of(turn, STAGES)), count=1)


# ---------------------------------------------------------------- consumer: the five matmuls


@gluon.constexpr_function
def tile_layout(N):
    """Of a [64, N] tile in a warpgroup's registers, as wgmma gives it."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16])


@gluon.jit
def keys_of(ring, block):
    """The work tile's rows of k or v, [KEYS, D] in shared memory."""
    # block.n >> 30 is 0: without it the compiler keeps the tile's addresses in 16 registers
    stage = stage_of(block.turn, ring.tiles.shape[0]) + (block.n >> 30)
    return ring.tiles.index(stage).reshape([KEYS, ring.tiles.shape[4]])


@gluon.jit
def zeros_of(shared):
    """[64, BLOCK_M] float32, as a wgmma leaves s and dp."""
    BLOCK_M: gl.constexpr = shared.q.tiles.shape[3]
    return gl.zeros([ROWS, BLOCK_M], gl.float32, tile_layout(BLOCK_M))


@gluon.jit
def row_values(values, n, like):
    """[64, BLOCK_M]: what values holds for the rows of the n-th block, the same for every key."""
    x = values.index(stage_of(n, STAGES)).reshape([values.shape[2]]).load(gl.SliceLayout(0, like.type.layout))
    return gl.broadcast(x[None, :], like)[0]


@gluon.jit
def issue_s(block, shared, start_n, sizes, C: gl.constexpr, flags: gl.constexpr):
    """Start s = k qᵀ − lse / scale, [64, BLOCK_M], whose exp(scale · s) is p (6.7).

    The accumulator starts at −lse / scale, or at −∞ where the query does not see the key (6.13): that
    costs no instruction after the matmul.
    """
    q_t = consumer_wait(shared.q, block.n).permute((1, 0))
    s = row_values(shared.lse, block.n, zeros_of(shared))
    if flags.MASK:
        before = sizes.S_k - sizes.S_q if flags.IS_CAUSAL else 2**30  # query i sees keys 0 … i + before
        if block.start_m + before < start_n + ROWS - 1 or start_n + ROWS > sizes.S_k:
            offs_m = block.start_m + gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
            offs_n = start_n + gl.arange(0, ROWS, gl.SliceLayout(1, s.type.layout))
            first_seeing = gl.where(offs_n < sizes.S_k, offs_n - before, 2**30)
            s = gl.where(offs_m[None, :] >= first_seeing[:, None], s, -float("inf"))
    return warpgroup_mma(keys_of(shared.k, block).slice(C * ROWS, ROWS), q_t, s, is_async=True)


@gluon.jit
def issue_dp(block, shared, C: gl.constexpr, MINUS_DELTA: gl.constexpr):
    """Start dp = v doᵀ, [64, BLOCK_M] (6.9); with MINUS_DELTA dp − delta."""
    do_t = consumer_wait(shared.do, block.n).permute((1, 0))
    v_rows = keys_of(shared.v, block).slice(C * ROWS, ROWS)
    zeros = zeros_of(shared)
    if MINUS_DELTA:
        return warpgroup_mma(v_rows, do_t, row_values(shared.delta, block.n, zeros), is_async=True)
    else:
        return warpgroup_mma(v_rows, do_t, zeros, use_acc=False, is_async=True)


@gluon.jit
def issue_dkdv(pairs, acc, ring, n):
    """Start acc + p do (6.8), or acc + ds q (6.12), [64, D]. pairs: p or ds, packed; ring: do or q."""
    LEFT: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=acc.type.layout, k_width=2)
    tile = ring.tiles.index(stage_of(n, STAGES)).reshape([ring.tiles.shape[3], ring.tiles.shape[4]])
    return warpgroup_mma(unpack(pairs, ring.tiles.dtype, LEFT), tile, acc, is_async=True)


@gluon.jit
def hand_over(ds_pairs, n, shared, C: gl.constexpr):
    """Write this consumer's rows of ds to shared memory, and say so."""
    stage = stage_of(n, STAGES)
    ds = unpack(ds_pairs, shared.ds.dtype, tile_layout(shared.ds.shape[2]))  # [64, BLOCK_M]
    shared.ds.index(stage).slice(C * ROWS, ROWS).store(ds)
    fence_async_shared()  # else wgmma may still see what was there before
    mbarrier.arrive(shared.ds_full.index(stage), count=1)


@gluon.jit
def issue_dq(block, shared, C: gl.constexpr):
    """Wait for both consumers' rows of ds, start this one's part of dq = dsᵀ k, [PART, PART] (6.11)."""
    stage = stage_of(block.n, STAGES)
    mbarrier.wait(shared.ds_full.index(stage), parity_of(block.n, STAGES))
    ds_t = shared.ds.index(stage).permute((1, 0))
    k = keys_of(shared.k, block)
    zeros = gl.zeros([PART, PART], gl.float32, tile_layout(PART))
    if k.shape[1] == PART:
        return warpgroup_mma(ds_t.slice(C * PART, PART), k, zeros, use_acc=False, is_async=True)
    else:
        return warpgroup_mma(ds_t, k.slice(C * PART, PART, 1), zeros, use_acc=False, is_async=True)


@gluon.jit
def add_dq(dq, block, dq_desc, shared, C: gl.constexpr):
    """Add this consumer's part of dq to global memory, its registers as they lie: a warp's 32 times four
    floats side by side, see convert_kernel."""
    part = shared.dq.index(C)
    tma.store_wait(0)  # the part before has left shared memory
    part.store(dq.reshape([4, 2, 8, 8, 4, 2]).permute((3, 0, 2, 4, 1, 5)).reshape([16, 256]))
    fence_async_shared()
    tma_add(dq_desc, [(block.row_block * 2 + C) * 16, 0], part)


# ---------------------------------------------------------------- consumer: one block of q


@gluon.jit
def next_block(block, first_m, S_q, BLOCK_M: gl.constexpr, GROUP: gl.constexpr):
    """The block after this one: of the same head, or the first that the work tile takes of the group's next head."""
    start_m = block.start_m + BLOCK_M
    row_block = block.row_block + 1
    if GROUP > 1:  # noqa: SIM102 (only this is known when it compiles)
        if start_m >= S_q:
            start_m = first_m
            row_block += first_m // BLOCK_M
    return Block(block.n + 1, block.turn, start_m, row_block)


@gluon.jit
def one_block(ahead, dk, dv, block, after, dq_desc, shared, start_n, sizes, scale_log2,
              C: gl.constexpr, flags: gl.constexpr, MORE: gl.constexpr, UNDER_DQ: gl.constexpr):  # fmt: skip
    """Adds a block of q to dk, dv and dq, and begins the block `after` it where there is MORE. Returns ahead, dk, dv.

    ahead: what was computed ahead for the block. UNDER_DQ: its p_t, and dv has it already; p_t of the block after is
    computed while dq is. Else its s_t, and p_t is computed while dp_t is.
    """
    dtype: gl.constexpr = shared.q.tiles.dtype
    dp_t = issue_dp(block, shared, C, MINUS_DELTA=UNDER_DQ)  # issue dp (6.9), which starts at −delta
    p_t = ahead if UNDER_DQ else gl.exp2(ahead * scale_log2)
    dp_t = warpgroup_mma_wait(0, [dp_t])  # wait for dp
    ds_t = p_t * dp_t if UNDER_DQ else p_t * (dp_t + row_values(shared.delta, block.n, dp_t))  # (6.10)
    ds_pairs = pack(ds_t, dtype)  # two numbers of 16 bits in a register
    hand_over(ds_pairs, block.n, shared, C)  # hand over ds
    if not UNDER_DQ:
        dv = issue_dkdv(pack(p_t, dtype), dv, shared.do, block.n)
    dk = issue_dkdv(ds_pairs, dk, shared.q, block.n)  # issue dk (6.12)
    if not UNDER_DQ:
        dv = warpgroup_mma_wait(1, [dv])
    if MORE:
        ahead = issue_s(after, shared, start_n, sizes, C, flags)  # issue s′, which starts at −lse / scale
    dq = issue_dq(block, shared, C)  # meet, issue dq (6.11)
    if MORE and UNDER_DQ:
        ahead, dk = warpgroup_mma_wait(1, [ahead, dk])  # wait for dk, s′: dq, issued last, stays under way
        consumer_release(shared.q, block.n)  # release q, do: the producer loads both when q's stage is empty
        ahead = gl.exp2(ahead * scale_log2)  # p′ (6.7)
        consumer_wait(shared.do, after.n)  # do′ is there
        dv = issue_dkdv(pack(ahead, dtype), dv, shared.do, after.n)  # issue dv′ (6.8)
        dq = warpgroup_mma_wait(1, [dq])  # wait for dq
        add_dq(dq, block, dq_desc, shared, C)  # add dq: by TMA, while dv′ is computed
        dv = warpgroup_mma_wait(0, [dv])  # wait for dv′
    else:
        dk = warpgroup_mma_wait(2 if MORE else 1, [dk])
        consumer_release(shared.q, block.n)
        if MORE:
            dq, ahead = warpgroup_mma_wait(0, [dq, ahead])
        else:
            dq = warpgroup_mma_wait(0, [dq])
        add_dq(dq, block, dq_desc, shared, C)
    return ahead, dk, dv


@gluon.jit
def consumer(dk_desc, dv_desc, dq_desc, scale, shared, sizes, C: gl.constexpr, flags: gl.constexpr):
    """Warpgroup C: dk and dv of keys C · 64 … of each work tile, and a part of dq of every block of q that sees one of
    the work tile's keys."""
    BLOCK_M: gl.constexpr = shared.q.tiles.shape[3]
    D: gl.constexpr = shared.q.tiles.shape[4]
    scale_log2 = scale * LOG2_E
    row_blocks = gl.cdiv(sizes.S_q, BLOCK_M)
    n = 0
    turn = 0
    consumer_wait(shared.k, turn)
    i = announced(shared.work, turn)
    while i < sizes.key_blocks * sizes.heads:
        batch_head, start_n, first_m = key_tile(i, sizes, BLOCK_M, flags.IS_CAUSAL)
        start_n += C * ROWS
        blocks = flags.GROUP * (row_blocks - first_m // BLOCK_M)
        block = Block(n, turn, first_m, batch_head * flags.GROUP * row_blocks + first_m // BLOCK_M)
        dk = gl.zeros([ROWS, D], gl.float32, tile_layout(D))
        dv = gl.zeros([ROWS, D], gl.float32, tile_layout(D))
        x = warpgroup_mma_wait(0, [issue_s(block, shared, start_n, sizes, C, flags)])
        if flags.UNDER_DQ:
            x = gl.exp2(x * scale_log2)
            consumer_wait(shared.do, n)
            dv = warpgroup_mma_wait(0, [issue_dkdv(pack(x, shared.q.tiles.dtype), dv, shared.do, n)])
        consumer_wait(shared.v, turn)
        for _ in range(blocks - 1):
            after = next_block(block, first_m, sizes.S_q, BLOCK_M, flags.GROUP)
            x, dk, dv = one_block(
                x, dk, dv, block, after, dq_desc, shared, start_n, sizes, scale_log2, C, flags, True, flags.UNDER_DQ
            )
            block = after
        x, dk, dv = one_block(
            x, dk, dv, block, block, dq_desc, shared, start_n, sizes, scale_log2, C, flags, False, flags.UNDER_DQ
        )
        consumer_release(shared.k, turn)
        epilogue(
            dk_desc, dv_desc, dk * scale, dv, shared, batch_head // sizes.H_k, batch_head % sizes.H_k, start_n, turn, C
        )
        n += blocks
        turn += 1
        consumer_wait(shared.k, turn)
        i = announced(shared.work, turn)
    tma.store_wait(0)


@gluon.jit
def epilogue(dk_desc, dv_desc, dk, dv, shared, b, h_k, start_n, turn, C: gl.constexpr):
    """Store 64 rows of dv by way of v's rows, which this consumer alone has read, and of dk by way of its part of
    dq."""
    D: gl.constexpr = shared.v.tiles.shape[4]
    tile = shared.v.tiles.index(stage_of(turn, shared.v.tiles.shape[0]))
    tile.reshape([KEYS, D]).slice(C * ROWS, ROWS).store(dv.to(tile.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(dv_desc, [b, h_k, start_n, 0], tile.slice(C * ROWS, ROWS, 2))
    tma.store_wait(1)  # the last part of dq has left
    rows = shared.dq.index(C)._reinterpret(tile.dtype, [1, 1, ROWS, D], dk_desc.layout)
    rows.reshape([ROWS, D]).store(dk.to(tile.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(dk_desc, [b, h_k, start_n, 0], rows)
    tma.store_wait(1)  # dv has left
    consumer_release(shared.v, turn)


# ---------------------------------------------------------------- kernels


@gluon.jit
def backward_kernel(
    q_desc, k_desc, v_desc, do_desc, dk_desc, dv_desc, dq_desc, lse_desc, delta_desc, counter_ptr, heads_at_once, scale,
    flags: gl.constexpr, V_STAGES: gl.constexpr,
):  # fmt: skip
    """dk and dv, and dq / scale added to what dq_desc holds (FA2, algorithm 2, all five matmuls in one loop). scale
    must be positive.

    q_desc, do_desc: descriptors of (B, H_q, S_q, D), tiles (1, 1, BLOCK_M, D); k_desc, v_desc: of (B, H_k, S_k, D),
    tiles (1, 1, KEYS, D); dk_desc,
    dv_desc: the same with tiles (1, 1, ROWS, D); dq_desc, lse_desc, delta_desc: of what prepare_kernel writes, tiles
    (16, 256), (1, BLOCK_M) and (1, BLOCK_M). Grid: any number of programs up to that of work tiles, 128 keys of a head
    each.
    """
    BLOCK_M: gl.constexpr = q_desc.block_type.shape[2]
    D: gl.constexpr = q_desc.block_type.shape[3]
    dtype: gl.constexpr = q_desc.dtype
    q = make_pipeline(q_desc, STAGES, 2)
    shared = Shared(
        make_pipeline(k_desc, STAGES, 2),
        make_numbers(STAGES),
        make_pipeline(v_desc, V_STAGES, 2),
        q,
        Pipeline(
            gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_M, D], do_desc.layout),
            make_barriers(STAGES, 1),
            q.empty,
        ),
        gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], lse_desc.layout),
        gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], delta_desc.layout),
        gl.allocate_shared_memory(dtype, [STAGES, KEYS, BLOCK_M], gl.NVMMASharedLayout(128, 16, rank=2)),
        make_barriers(STAGES, 2),
        gl.allocate_shared_memory(gl.float32, [2, 16, 256], dq_desc.layout),
    )
    sizes = key_sizes_of(q_desc, k_desc, heads_at_once)
    gl.warp_specialize([
        (consumer, (dk_desc, dv_desc, dq_desc, scale, shared, sizes, 0, flags)),
        (consumer, (dk_desc, dv_desc, dq_desc, scale, shared, sizes, 1, flags)),
        (producer, (q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, counter_ptr, shared, sizes, flags)),
    ], [4, 1], [240, 24])  # fmt: skip


@triton.jit
def prepare_kernel(o, do, lse_ptr, dlse_ptr, minus_lse_ptr, minus_delta_ptr, dq_acc_ptr, counter_ptr, H_q, S_q, scale,
                   BLOCK_M: tl.constexpr, D: tl.constexpr):  # fmt: skip
    """−lse / scale and −delta, where delta = rowsum(do ∘ o) − dlse, for a block of q; zeros in its dq_acc. Grid:
    (blocks of q,).

    o, do: Heads (B, H_q, S_q, D); lse_ptr, dlse_ptr (or None): (B, H_q, S_q) float32; minus_lse_ptr, minus_delta_ptr:
    [blocks, BLOCK_M] float32;
    dq_acc_ptr: [blocks, BLOCK_M · D] float32; counter_ptr: int32, gets 0. A row that sees nothing gets −∞ for
    −lse / scale: its p is 0.
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    start_m = tl.program_id(0) % row_blocks * BLOCK_M
    batch_head = tl.program_id(0) // row_blocks
    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    delta = delta_tile(o, do, dlse_ptr, batch_head, H_q, start_m, S_q, D, BLOCK_M, D)  # [BLOCK_M]
    lse = tl.load(lse_ptr + batch_head.to(tl.int64) * S_q + offs_m, mask=offs_m < S_q, other=-float("inf"))  # [BLOCK_M]
    block = tl.program_id(0).to(tl.int64)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    tl.store(minus_lse_ptr + rows, tl.where(lse == -float("inf"), lse, -lse / scale))
    tl.store(minus_delta_ptr + rows, -delta)
    elements = block * (BLOCK_M * D) + tl.arange(0, BLOCK_M * D)  # [BLOCK_M · D]
    tl.store(dq_acc_ptr + elements, tl.zeros((BLOCK_M * D,), tl.float32))
    if tl.program_id(0) == 0:
        tl.store(counter_ptr, 0)


@triton.jit
def convert_kernel(dq_acc_ptr, dq_ptr, S_q, scale, BLOCK_M: tl.constexpr, D: tl.constexpr, PART: tl.constexpr):
    """dq = scale · dq_acc, in order and in dq's dtype. dq_ptr: (B, H_q, S_q, D). Grid: (2 · blocks of q,), a program
    for each part.

    wgmma leaves element (row, column) of a [64, 64] tile in warp row // 16, thread 4 · (row % 8) + column // 2 % 4 of
    it, and add_dq stored what the threads have in this order: column // 8, warp, thread, row // 8 % 2, column % 2. Here
    that is undone.
    """
    block, part = tl.program_id(0) // 2, tl.program_id(0) % 2
    x = tl.load(dq_acc_ptr + tl.program_id(0).to(tl.int64) * (PART * PART) + tl.arange(0, PART * PART))  # [PART · PART]
    x = x.reshape(8, 4, 8, 4, 2, 2).permute(1, 4, 2, 0, 3, 5).reshape(PART, PART)
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    offs_m = block % row_blocks * BLOCK_M + tl.arange(0, PART)  # [PART]
    offs_d = tl.arange(0, PART)  # [PART]
    if D == PART:
        offs_m += part * PART
    else:
        offs_d += part * PART
    rows = (block // row_blocks).to(tl.int64) * S_q + offs_m  # [PART]
    tl.store(
        dq_ptr + rows[:, None] * D + offs_d[None, :],
        (x * scale).to(dq_ptr.dtype.element_ty),
        mask=(offs_m < S_q)[:, None],
    )


# ---------------------------------------------------------------- launching


@dataclass(frozen=True)
class BackwardConfig:
    """block_m: rows of q a block, BLOCK_M · D = 2 · PART²; v_stages: of the ring v; under_dq: one_block's UNDER_DQ."""

    block_m: int
    v_stages: int
    under_dq: bool


# The fastest of those tried on an H200. With D = 128 a second stage of v does not fit.
CONFIGS = {64: BackwardConfig(128, 2, under_dq=False), 128: BackwardConfig(64, 1, under_dq=True)}


def flash_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, do: torch.Tensor, lse: torch.Tensor,
    dlse: torch.Tensor | None, is_causal: bool, scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """backward.flash_backward by backward_kernel, for what forward.applies to. Same arguments and results.

    dk and dv have the same bits in every run. dq has not: the work tiles add to it in the order in which they come.
    """
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    block_m, v_stages, under_dq = astuple(CONFIGS[D])
    if not can_use_tma(signature_of(do)):
        do = do.clone(memory_format=torch.contiguous_format)  # o.sum() sends strides of 0
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    row_blocks = -(-S_q // block_m)
    blocks = row_blocks * B * H_q
    minus_lse, minus_delta = torch.empty(
        (2, B * H_q, row_blocks * block_m), dtype=torch.float32, device=q.device
    ).unbind()
    dq_acc = torch.empty((blocks * block_m * D // 256, 256), dtype=torch.float32, device=q.device)
    counter = torch.empty((1,), dtype=torch.int32, device=q.device)

    def prepare() -> Launch:
        return Launch(prepare_kernel, blocks, [heads, heads], {"BLOCK_M": block_m, "D": D})

    def main() -> Launch:
        rows = block_m, KEYS.value, KEYS.value, block_m, ROWS.value, ROWS.value
        to_argument = [
            descriptor_template(x, n, TensorDescriptor, layout())
            for x, n in zip((q, k, v, do, dk, dv), rows, strict=True)
        ]
        to_argument += [matrix_template(dq_acc, [16, 256]), *[matrix_template(minus_lse, [1, block_m])] * 2]
        masked = is_causal or S_k % KEYS.value != 0
        constants = {"flags": Flags(is_causal, masked, H_q // H_k, under_dq), "V_STAGES": v_stages}
        programs = min(triton.cdiv(S_k, KEYS.value) * B * H_k, card_of(q).multiprocessors)
        return Launch(backward_kernel, programs, to_argument, constants | {"num_warps": NUM_WARPS})

    def convert() -> Launch:
        return Launch(convert_kernel, 2 * blocks, [], {"BLOCK_M": block_m, "D": D, "PART": PART.value})

    key = is_causal, *signature_of(q, k, v, o, do)
    launch_prepared(
        ("prepare dq", *key), prepare, (o, do), (lse, dlse, minus_lse, minus_delta, dq_acc, counter, H_q, S_q, scale)
    )
    # Heads alternate under a causal mask alone: without one every work tile is as long as the others.
    on_tiles, at_once = (q, k, v, do, dk, dv, dq_acc, minus_lse, minus_delta), heads_at_once(S_k) if is_causal else 1
    launch_prepared(("hopper backward", *key), main, on_tiles, (counter, at_once, scale))
    launch_prepared(("convert dq", *key), convert, (), (dq_acc, dq, S_q, scale))
    return dq, dk, dv


def matrix_template(x: torch.Tensor, tile: list[int]) -> Callable[[torch.Tensor], TensorDescriptor]:
    """descriptors.descriptor_template for a matrix of float32, whose tiles lie in shared memory row after row."""
    rows = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    box = list(x.shape), list(x.stride()), tile, rows
    return lambda x: TensorDescriptor(x, *box)
