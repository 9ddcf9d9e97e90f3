"""Chapter 9: flash attention's forward for Hopper in Gluon, where each warp has one job: one loads, the others multiply.

Proves that what plain Triton leaves idle can be had: the softmax of one warpgroup beside the matmuls of another, and pieces of work that are
handed to whichever multiprocessor is free. Compute capability 9.0, D = 64 or 128, fp16 and bf16; everything else takes tuned.flash_forward.
The backward is tuned.flash_backward. After FlashAttention-3 (Shah et al., 2024).

The protocol. Every tile in shared memory has two mbarriers: `full`, at which its load arrives, and `empty`, at which those arrive who have read it.

| barrier | one for each | who arrives | who waits |
|---|---|---|---|
| q_full | slot of a consumer's ring of q | the load of its 64 rows of q, or the producer where there is no more work | that consumer, before each piece |
| q_empty | slot of a consumer's ring of q | that consumer, after its last scores of a piece | the producer, before it loads into the slot again |
| k_full, v_full | stage of the ring | the load of a tile of k or v | every consumer, before the matmul that reads it |
| k_empty, v_empty | stage of the ring | every consumer, when that matmul is done | the producer, before it loads into the stage again |

Phases (9.5): the n-th use of a barrier waits for n's parity at full, and for the other at empty: a fresh barrier lets the latter through.
Producer and consumers walk over the same pieces and the same blocks of keys in one order; a consumer that has no use for a block still waits for
it and hands it back, so that all count alike. `fa_tutorial.barriers` plays this protocol in plain Python.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from fa_tutorial import tuned
from fa_tutorial.arguments import check_attention, check_flag, check_name
from fa_tutorial.forward import MAX_D, TileConfig, p_scale
from fa_tutorial.hardware import HOPPER_CAPABILITY, on_device_of, require_kernel_device, require_triton
from fa_tutorial.matmul import grouped_tile

triton = require_triton("Chapter 9 (fa_tutorial.hopper)")
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

ROWS = gl.constexpr(64)  # of q that one consumer keeps: what one wgmma takes
Q_STAGES = gl.constexpr(2)  # a consumer's rows of its next piece are there before it is done with this one
LN_2 = gl.constexpr(math.log(2.0))
LARGE_LOGIT = gl.constexpr(tuned.LARGE_LOGIT.value)
grouped_tile_in_gluon = gluon.jit(grouped_tile)


class Shared(NamedTuple):
    """What the roles share. Tiles: q [Q_STAGES · consumers, 1, 1, ROWS, D]; k, v [stages, 1, 1, BLOCK_N, D]; o [consumers, 1, 1, ROWS, D].
    piece [Q_STAGES · consumers, 1]: the piece of work that a tile of q belongs to. The rest are the protocol's mbarriers, one for each tile of q, k, v."""

    q: object
    o: object
    k: object
    v: object
    piece: object
    q_full: object
    q_empty: object
    k_full: object
    k_empty: object
    v_full: object
    v_empty: object


class Problem(NamedTuple):
    """The arguments of forward_kernel that both roles need; row_blocks of CONSUMERS · ROWS rows each."""

    H_q: object
    H_k: object
    row_blocks: object
    heads: object
    heads_at_once: object
    S_q: object
    S_k: object


# ---------------------------------------------------------------- pieces of work


@gluon.jit
def piece_of(i, problem, CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, LONGEST_FIRST: gl.constexpr, IS_CAUSAL: gl.constexpr):
    """Piece i: (batch_head, start_m, end_m, blocks), heads_at_once heads side by side (8.4).

    Its rows are start_m … end_m − 1, ROWS for each consumer; blocks: of keys that its last row sees, at least one. Row blocks are counted from the
    last row on: the one that has less than CONSUMERS · ROWS rows is then the first, which under a causal mask is the shortest.
    """
    batch_head, row_block = grouped_tile_in_gluon(i, problem.heads, problem.row_blocks, problem.heads_at_once)
    after = row_block if LONGEST_FIRST else problem.row_blocks - 1 - row_block
    end_m = (gl.cdiv(problem.S_q, ROWS) - after * CONSUMERS) * ROWS
    start_m = max(end_m - CONSUMERS * ROWS, 0)
    end_n = problem.S_k
    if IS_CAUSAL:
        end_n = min(end_m, problem.S_q) + problem.S_k - problem.S_q
    return batch_head, start_m, end_m, max(gl.cdiv(end_n, BLOCK_N), 1)


@gluon.jit
def q_slot(turn, C: gl.constexpr, CONSUMERS: gl.constexpr):
    """Where consumer C's rows of its turn-th piece stand in the ring of q."""
    return turn % Q_STAGES * CONSUMERS + C


@gluon.jit
def hand_over(i, shared, turn, C: gl.constexpr, CONSUMERS: gl.constexpr):
    """Producer: wait until consumer C has read the rows that stand in the slot, and write down that the next are piece i's. Returns the slot."""
    slot = q_slot(turn, C, CONSUMERS)
    mbarrier.wait(shared.q_empty.index(slot), turn // Q_STAGES & 1 ^ 1)
    shared.piece.index(slot).store(gl.full([1], i, gl.int32, gl.BlockedLayout([1], [32], [1], [0])))
    return slot


@gluon.jit
def take_over(shared, turn, C: gl.constexpr, CONSUMERS: gl.constexpr):
    """Consumer C: wait for its rows of q, and return the piece that they belong to, and their slot."""
    slot = q_slot(turn, C, CONSUMERS)
    mbarrier.wait(shared.q_full.index(slot), turn // Q_STAGES & 1)
    return gl.sum(shared.piece.index(slot).load(gl.BlockedLayout([1], [32], [4], [0])), axis=0), slot


# ---------------------------------------------------------------- producer


@gluon.jit
def producer(
    q_desc, k_desc, v_desc, counter_ptr, shared, problem, COUNTER: gl.constexpr, LONGEST_FIRST: gl.constexpr, IS_CAUSAL: gl.constexpr
):
    """One warp: loads q of each piece, then its blocks of k and v, from the last to the first, as soon as the ring has room.

    COUNTER: the next piece is the next number of the counter, so that whoever is done takes it; else every num_programs-th piece is this program's.
    """
    CONSUMERS: gl.constexpr = shared.o.shape[0]
    STAGES: gl.constexpr = shared.k.shape[0]
    BLOCK_N: gl.constexpr = shared.k.shape[3]
    D: gl.constexpr = shared.k.shape[4]
    BYTES: gl.constexpr = D * k_desc.dtype.primitive_bitwidth // 8  # of a row
    pieces = problem.row_blocks * problem.heads
    tile = 0  # of k and v, over all pieces: its stage is tile % STAGES, its phase tile // STAGES
    turn = 0
    i = gl.program_id(0)
    while i < pieces:
        batch_head, start_m, _, blocks = piece_of(i, problem, CONSUMERS, BLOCK_N, LONGEST_FIRST, IS_CAUSAL)
        b = batch_head // problem.H_q
        h = batch_head % problem.H_q
        h_k = h // (problem.H_q // problem.H_k)
        for c in gl.static_range(CONSUMERS):
            slot = hand_over(i, shared, turn, c, CONSUMERS)
            mbarrier.expect(shared.q_full.index(slot), ROWS * BYTES)
            tma.async_copy_global_to_shared(q_desc, [b, h, start_m + c * ROWS, 0], shared.q_full.index(slot), shared.q.index(slot))
        for j in range(blocks):
            start_n = (blocks - 1 - j) * BLOCK_N
            stage = tile % STAGES
            parity = tile // STAGES & 1 ^ 1
            mbarrier.wait(shared.k_empty.index(stage), parity)
            mbarrier.expect(shared.k_full.index(stage), BLOCK_N * BYTES)
            tma.async_copy_global_to_shared(k_desc, [b, h_k, start_n, 0], shared.k_full.index(stage), shared.k.index(stage))
            mbarrier.wait(shared.v_empty.index(stage), parity)
            mbarrier.expect(shared.v_full.index(stage), BLOCK_N * BYTES)
            tma.async_copy_global_to_shared(v_desc, [b, h_k, start_n, 0], shared.v_full.index(stage), shared.v.index(stage))
            tile += 1
        turn += 1
        if COUNTER:
            i = gl.atomic_add(counter_ptr, 1) + gl.num_programs(0)
        else:
            i += gl.num_programs(0)
    for c in gl.static_range(CONSUMERS):
        slot = hand_over(pieces, shared, turn, c, CONSUMERS)  # there is no such piece: the consumer ends
        mbarrier.arrive(shared.q_full.index(slot), count=1)


# ---------------------------------------------------------------- consumer


@gluon.jit
def pack(p, dtype: gl.constexpr):
    """[M, N] float32 -> [M, N / 2] int32, each of two neighbours rounded to dtype.

    A value of 16 bits that lives from one turn of a loop to the next gets a register of its own, and two more instructions to come and go. In pairs
    it costs nothing: an eighth fewer instructions a thread and block with D = 64.
    """
    first, second = p.reshape([p.shape[0], p.shape[1] // 2, 2]).split()
    if dtype == gl.float16:
        return gl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [first, second], dtype=gl.int32, is_pure=True, pack=1)
    else:
        return gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [first, second], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def unpack(pairs, dtype: gl.constexpr, layout: gl.constexpr):
    """pack backwards: [M, N / 2] int32 -> [M, N] of dtype, as the first operand of a wgmma."""
    both: gl.constexpr = (gl.float16, gl.float16) if dtype == gl.float16 else (gl.bfloat16, gl.bfloat16)
    first, second = gl.inline_asm_elementwise("mov.b32 {$0, $1}, $2;", "=h,=h,r", [pairs], dtype=both, is_pure=True, pack=1)
    return gl.convert_layout(gl.join(first, second).reshape([pairs.shape[0], pairs.shape[1] * 2]), layout)


@gluon.jit
def ask_scores(q, shared, tile, zeros):
    """Wait for block `tile` of k and ask for s = q kᵀ [ROWS, BLOCK_N] (4.1): it arrives later."""
    STAGES: gl.constexpr = shared.k.shape[0]
    stage = tile % STAGES
    mbarrier.wait(shared.k_full.index(stage), tile // STAGES & 1)
    k = shared.k.index(stage).reshape([shared.k.shape[3], shared.k.shape[4]])
    return warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def ask_values(pairs, acc, shared, tile):
    """Wait for block `tile` of v and ask for acc + p v [ROWS, D] (4.3): it arrives later. pairs: p, packed."""
    STAGES: gl.constexpr = shared.k.shape[0]
    layout: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=acc.type.layout, k_width=2)
    stage = tile % STAGES
    mbarrier.wait(shared.v_full.index(stage), tile // STAGES & 1)
    v = shared.v.index(stage).reshape([shared.v.shape[3], shared.v.shape[4]])
    return warpgroup_mma(unpack(pairs, shared.v.dtype, layout), v, acc, is_async=True)


@gluon.jit
def softmax_step(s, m, scale_log2, seen, MASK: gl.constexpr, SHIFT: gl.constexpr):
    """tuned.attend's softmax in base 2 (8.3). s: [ROWS, BLOCK_N]; m: [ROWS]; seen: [ROWS], how many keys of this block each row sees, used with MASK.

    Returns p, m_new, alpha; p is 2^−SHIFT of what it would be.
    """
    if MASK:
        key = gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
        s = gl.where(key[None, :] < seen[:, None], s, -float("inf"))
    m_new = gl.maximum(m, gl.max(s, axis=1))
    shift = m_new
    if MASK:  # a row that sees nothing
        shift = gl.where(m_new == -float("inf"), 0.0, m_new)
    shift_log2 = shift * scale_log2
    p = gl.exp2(s * scale_log2 - (shift_log2 + SHIFT)[:, None])
    return p, m_new, gl.exp2(m * scale_log2 - shift_log2)


@gluon.jit
def next_block(q, pairs, m, l, acc, zeros, shared, tile, more, seen, scale_log2,
               MASK: gl.constexpr, OVERLAP: gl.constexpr, SHIFT: gl.constexpr):  # fmt: skip
    """The scores and softmax of block `tile`, and p v of the block before it, whose p comes in `pairs`. Returns pairs, m, l, acc.

    OVERLAP 0: both products are waited for, then comes the softmax. 1: p v is waited for only after the softmax; ptxas moves that wait up.
    2: as 1, with a branch before the wait (for the next k, where there is `more`), which nothing is moved across.
    """
    STAGES: gl.constexpr = shared.k.shape[0]
    s = ask_scores(q, shared, tile, zeros)  # [ROWS, BLOCK_N]
    new = ask_values(pairs, acc, shared, tile - 1)  # [ROWS, D]
    if OVERLAP == 0:
        s, new = warpgroup_mma_wait(0, [s, new])
    else:
        s = warpgroup_mma_wait(1, [s])
    mbarrier.arrive(shared.k_empty.index(tile % STAGES), count=1)
    p, m, alpha = softmax_step(s, m, scale_log2, seen, MASK, SHIFT)
    l = alpha * l + gl.sum(p, axis=1)
    pairs_new = pack(p, shared.v.dtype)
    if OVERLAP == 2:
        mbarrier.wait(shared.k_full.index((tile + 1) % STAGES), (tile + 1) // STAGES & 1, pred=more)
    if OVERLAP > 0:
        new, pairs = warpgroup_mma_wait(0, [new, pairs])
    mbarrier.arrive(shared.v_empty.index((tile - 1) % STAGES), count=1)
    return pairs_new, m, l, new * gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout))[:, None]


@gluon.jit
def give_back(shared, tile, blocks):
    """Take `blocks` blocks of k and v from `tile` on, and hand them back unused."""
    STAGES: gl.constexpr = shared.k.shape[0]
    for j in range(tile, tile + blocks):
        mbarrier.wait(shared.k_full.index(j % STAGES), j // STAGES & 1)
        mbarrier.arrive(shared.k_empty.index(j % STAGES), count=1)
        mbarrier.wait(shared.v_full.index(j % STAGES), j // STAGES & 1)
        mbarrier.arrive(shared.v_empty.index(j % STAGES), count=1)


@gluon.jit
def consumer(o_desc, lse_ptr, scale_log2, shared, problem, C: gl.constexpr, IS_CAUSAL: gl.constexpr, OVERLAP: gl.constexpr,
             LONGEST_FIRST: gl.constexpr, SHIFT: gl.constexpr):  # fmt: skip
    """Warpgroup C: rows C · ROWS … of each piece of work, (4.1) to (4.6) in base 2, one block of keys after the other, from the last to the first."""
    CONSUMERS: gl.constexpr = shared.o.shape[0]
    STAGES: gl.constexpr = shared.k.shape[0]
    BLOCK_N: gl.constexpr = shared.k.shape[3]
    D: gl.constexpr = shared.k.shape[4]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    ROW_LAYOUT: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, S_LAYOUT)
    S_q = problem.S_q
    S_k = problem.S_k
    pieces = problem.row_blocks * problem.heads
    tile = 0
    turn = 0
    i, slot = take_over(shared, turn, C, CONSUMERS)
    while i < pieces:
        batch_head, start_m, end_m, blocks = piece_of(i, problem, CONSUMERS, BLOCK_N, LONGEST_FIRST, IS_CAUSAL)
        first = start_m + C * ROWS
        rows = first + gl.arange(0, ROWS, ROW_LAYOUT)  # [ROWS]
        seen = gl.zeros([ROWS], gl.int32, ROW_LAYOUT) + S_k  # [ROWS] keys that a row sees
        mine = blocks  # blocks that one of these rows sees
        whole = S_k // BLOCK_N  # blocks that all of them see whole
        if IS_CAUSAL:  # (4.6)
            seen = gl.minimum(seen, rows + (1 + S_k - S_q))
            mine = max(gl.cdiv(min(first + ROWS, S_q) + S_k - S_q, BLOCK_N), 1)
            whole = max(first + 1 + S_k - S_q, 0) // BLOCK_N
        if first >= end_m:  # this piece is not so high
            mine = 0
        give_back(shared, tile, blocks - mine)
        tile += blocks - mine
        if mine > 0:
            q = shared.q.index(slot).reshape([ROWS, D])
            s = warpgroup_mma_wait(0, [ask_scores(q, shared, tile, zeros)])
            mbarrier.arrive(shared.k_empty.index(tile % STAGES), count=1)
            tile += 1
            m = gl.full([ROWS], -float("inf"), gl.float32, ROW_LAYOUT)
            acc = gl.zeros([ROWS, D], gl.float32, O_LAYOUT)
            p, m, _ = softmax_step(s, m, scale_log2, seen - (mine - 1) * BLOCK_N, True, SHIFT)
            l = gl.sum(p, axis=1)
            pairs = pack(p, shared.v.dtype)
            masked = max(min(mine - 1 - whole, mine - 1), 0)  # of the blocks that are left
            for j in range(masked):
                pairs, m, l, acc = next_block(q, pairs, m, l, acc, zeros, shared, tile, j < mine - 2, seen - (mine - 2 - j) * BLOCK_N, scale_log2,
                                              True, OVERLAP, SHIFT)  # fmt: skip
                tile += 1
            for j in range(masked, mine - 1):
                pairs, m, l, acc = next_block(q, pairs, m, l, acc, zeros, shared, tile, j < mine - 2, seen, scale_log2,
                                              False, OVERLAP, SHIFT)  # fmt: skip
                tile += 1
            mbarrier.arrive(shared.q_empty.index(slot), count=1)
            acc = warpgroup_mma_wait(0, [ask_values(pairs, acc, shared, tile - 1)])
            mbarrier.arrive(shared.v_empty.index((tile - 1) % STAGES), count=1)
            store_rows(o_desc, lse_ptr, acc, m, l, scale_log2, shared, batch_head, problem.H_q, first, rows, S_q, C, IS_CAUSAL, SHIFT)
        else:
            mbarrier.arrive(shared.q_empty.index(slot), count=1)
        turn += 1
        i, slot = take_over(shared, turn, C, CONSUMERS)
    tma.store_wait(0)


@gluon.jit
def store_rows(o_desc, lse_ptr, acc, m, l, scale_log2, shared, batch_head, H_q, first, rows, S_q,
               C: gl.constexpr, IS_CAUSAL: gl.constexpr, SHIFT: gl.constexpr):  # fmt: skip
    """o = acc / l (4.4) and lse (4.5) of ROWS rows; lse is NaN where tuned.repair_kernel has to look at the row again."""
    l_or_one = gl.where(l == 0.0, 1.0, l)
    lse = gl.where(l == 0.0, -float("inf"), gl.fma(m, scale_log2, SHIFT + gl.log2(l_or_one)) * LN_2)  # tuned.forward_rows'
    lse = gl.where((gl.abs(m * scale_log2) > LARGE_LOGIT) & (l > 0.0), float("nan"), lse)
    o = acc * gl.convert_layout(1.0 / l_or_one, gl.SliceLayout(1, acc.type.layout))[:, None]
    if IS_CAUSAL:
        lse += gl.convert_layout(gl.sum(o * 0.0, axis=1), rows.type.layout)  # NaN where the row is not finite, else nothing
    gl.store(lse_ptr + batch_head.to(gl.int64) * S_q + rows, lse, mask=rows < S_q)
    tma.store_wait(0)  # the rows of the piece before have left shared memory
    shared.o.index(C).reshape([ROWS, acc.shape[1]]).store(o.to(shared.o.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(o_desc, [batch_head // H_q, batch_head % H_q, first, 0], shared.o.index(C))


# ---------------------------------------------------------------- kernel


@gluon.jit
def barriers(TILES: gl.constexpr, COUNT: gl.constexpr):
    """An mbarrier for each of TILES tiles, that expects COUNT arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [TILES, 1], mbarrier.MBarrierLayout())
    for tile in gl.static_range(TILES):
        mbarrier.init(made.index(tile), count=COUNT)
    return made


@gluon.jit(do_not_specialize=["H_q", "H_k", "row_blocks", "heads", "heads_at_once", "S_q", "S_k"])
def forward_kernel(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, counter_ptr, H_q, H_k, row_blocks, heads, heads_at_once, S_q, S_k, scale_log2,
    IS_CAUSAL: gl.constexpr, COUNTER: gl.constexpr, LONGEST_FIRST: gl.constexpr, OVERLAP: gl.constexpr,
    SHIFT: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """o and lse as tuned.forward_kernel gives them, by one producer warp and CONSUMERS warpgroups.

    B batch, H_q and H_k heads, heads = B · H_q, S_q and S_k lengths, D = 64 or 128 head dimension.
    q, o: (B, H_q, S_q, D), descriptors of tiles (1, 1, ROWS, D); k, v: (B, H_k, S_k, D), of tiles (1, 1, BLOCK_N, D).
    lse_ptr: (B, H_q, S_q) float32, contiguous; counter_ptr: an int32 that is 0. row_blocks = ceil(S_q / (CONSUMERS · ROWS)).
    scale_log2: scale · log2(e), positive. heads_at_once: as in tuned.forward_kernel. STAGES: of the ring of k and v.
    Grid: any number of programs up to row_blocks · heads; each does pieces of work until there are none.
    """
    dtype: gl.constexpr = q_desc.dtype
    BLOCK_N: gl.constexpr = k_desc.block_type.shape[2]
    D: gl.constexpr = k_desc.block_type.shape[3]
    Q_TILES: gl.constexpr = Q_STAGES * CONSUMERS
    shared = Shared(
        gl.allocate_shared_memory(dtype, [Q_TILES, 1, 1, ROWS, D], q_desc.layout),
        gl.allocate_shared_memory(dtype, [CONSUMERS, 1, 1, ROWS, D], o_desc.layout),
        gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_N, D], k_desc.layout),
        gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_N, D], v_desc.layout),
        gl.allocate_shared_memory(gl.int32, [Q_TILES, 1], gl.SwizzledSharedLayout(1, 1, 1, [0])),
        barriers(Q_TILES, 1), barriers(Q_TILES, 1), barriers(STAGES, 1), barriers(STAGES, CONSUMERS), barriers(STAGES, 1), barriers(STAGES, CONSUMERS),
    )  # fmt: skip
    problem = Problem(H_q, H_k, row_blocks, heads, heads_at_once, S_q, S_k)
    # The roles stand here one by one: Gluon takes this list as it is written, and the first role is that of the warps that are here already.
    if CONSUMERS == 2:
        gl.warp_specialize([
            (consumer, (o_desc, lse_ptr, scale_log2, shared, problem, 0, IS_CAUSAL, OVERLAP, LONGEST_FIRST, SHIFT)),
            (consumer, (o_desc, lse_ptr, scale_log2, shared, problem, 1, IS_CAUSAL, OVERLAP, LONGEST_FIRST, SHIFT)),
            (producer, (q_desc, k_desc, v_desc, counter_ptr, shared, problem, COUNTER, LONGEST_FIRST, IS_CAUSAL)),
        ], [4, 1], [CONSUMER_REGISTERS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (consumer, (o_desc, lse_ptr, scale_log2, shared, problem, 0, IS_CAUSAL, OVERLAP, LONGEST_FIRST, SHIFT)),
            (consumer, (o_desc, lse_ptr, scale_log2, shared, problem, 1, IS_CAUSAL, OVERLAP, LONGEST_FIRST, SHIFT)),
            (consumer, (o_desc, lse_ptr, scale_log2, shared, problem, 2, IS_CAUSAL, OVERLAP, LONGEST_FIRST, SHIFT)),
            (producer, (q_desc, k_desc, v_desc, counter_ptr, shared, problem, COUNTER, LONGEST_FIRST, IS_CAUSAL)),
        ], [4, 4, 1], [CONSUMER_REGISTERS, CONSUMER_REGISTERS, 24])  # fmt: skip


# ---------------------------------------------------------------- launching


@dataclass(frozen=True)
class Step:
    """What a step of the chapter switches on. overlap: next_block's; persistent: one program a multiprocessor, not one a piece of work;
    counter: pieces are handed out as programs ask; order: (8.4), longest first; else head by head, from the first row on."""

    overlap: int = 1
    persistent: bool = True
    counter: bool = True
    order: bool = True

    def heads_at_once(self, S_k: int) -> int:
        return tuned.STEPS[tuned.BEST].heads_at_once(S_k) if self.order else 1


# In the order of the chapter. "held" is BEST with the wait that ptxas moves up held in its place.
STEPS = {
    "roles": Step(overlap=0, persistent=False, counter=False, order=False),
    "overlap": Step(persistent=False, counter=False, order=False),
    "persistent": Step(counter=False, order=False),
    "counter": Step(order=False),
    "order": Step(),
    "held": Step(overlap=2),
}
BEST = "order"
NUM_WARPS = 4  # that a program begins with: the first consumer


@dataclass(frozen=True)
class HopperConfig:
    """consumers: warpgroups of 64 rows each; block_n: keys a tile; stages of the ring; registers: of a consumer's thread."""

    consumers: int
    block_n: int
    stages: int
    registers: int


# The fastest of those tried on an H200. Three consumers share what is loaded among more rows, but a piece of work is as long as its longest
# consumer's: at causal S = 1,024 that costs more than it brings, at 4,096 not. Where between them the border lies was not measured.
CONFIGS = {64: HopperConfig(3, 128, 2, 160), 128: HopperConfig(2, 128, 2, 240)}
SHORT_CAUSAL, SHORT_ROWS = HopperConfig(2, 128, 4, 240), 2048


def choose_config(D: int, S_q: int, is_causal: bool) -> HopperConfig:
    """The tile for head dimension D, one of CONFIGS' keys."""
    return SHORT_CAUSAL if D == 64 and is_causal and S_q <= SHORT_ROWS else CONFIGS[D]


@functools.cache
def layout() -> gl.NVMMASharedLayout:
    """How a tile of 16-bit elements lies in shared memory: what TMA writes and wgmma reads."""
    return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)


def constants_of(is_causal: bool, dtype: torch.dtype, how: Step, config: HopperConfig) -> dict[str, int | bool]:
    """forward_kernel's constants."""
    return {
        "IS_CAUSAL": is_causal, "COUNTER": how.counter, "LONGEST_FIRST": how.order and is_causal, "OVERLAP": how.overlap,
        "SHIFT": round(-math.log2(p_scale(dtype))), "CONSUMERS": config.consumers, "STAGES": config.stages,
        "CONSUMER_REGISTERS": config.registers,
    }  # fmt: skip


def descriptor(x: torch.Tensor, rows: int) -> TensorDescriptor:
    """As tuned.descriptor; Gluon's names the layout too."""
    return tuned.over(x, _blank(x.shape, x.stride(), x.dtype, rows))


@functools.lru_cache(maxsize=1024)
def _blank(shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype, rows: int) -> TensorDescriptor:
    return TensorDescriptor(torch.empty(0, dtype=dtype), *tuned.box(shape, strides, rows), layout())


def applies(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> bool:
    """True where this module's kernel takes the input: a card of capability 9.0, fp16 or bf16, D = 64 or 128, strides that TMA takes."""
    card = tuned.card_of(q)
    is_hopper = card.capability == HOPPER_CAPABILITY and card.shared_memory is not None  # the interpreter has none, and no Gluon
    return is_hopper and tuned.applies(q, scale) and q.shape[3] in CONFIGS and tuned.can_use_tma(q, k, v)


def flash_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False, scale: float | None = None,
    *, step: str = BEST, config: HopperConfig | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """tuned.flash_forward by the kernel of this chapter where it applies, else by itself. Same arguments, results and errors.

    step: one of STEPS, else ValueError. config: None takes choose_config's.
    """
    scale, is_causal = check_attention(q, k, v, scale, max_d=MAX_D), check_flag("is_causal", is_causal)
    how = STEPS[check_name("step", step, STEPS)]
    require_kernel_device(q, "q")
    if not (q.numel() and k.numel()) or not applies(q, k, v, scale):
        return tuned.flash_forward(q, k, v, is_causal, scale)
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    config = config or choose_config(D, S_q, is_causal)
    with on_device_of(q):
        o = torch.empty_like(q, memory_format=torch.contiguous_format)
        lse = torch.empty((B, H_q, S_q), dtype=torch.float32, device=q.device)
        counter = torch.zeros(1, dtype=torch.int32, device=q.device)
        row_blocks, heads = -(-S_q // (ROWS.value * config.consumers)), B * H_q
        programs = min(row_blocks * heads, processors(q.device.index)) if how.persistent else row_blocks * heads
        forward_kernel[(programs,)](
            descriptor(q, ROWS.value), descriptor(k, config.block_n), descriptor(v, config.block_n), descriptor(o, ROWS.value), lse, counter,
            H_q, H_k, row_blocks, heads, min(heads, how.heads_at_once(S_k)), S_q, S_k, scale * tuned.LOG2_E,
            **constants_of(is_causal, q.dtype, how, config), num_warps=NUM_WARPS,
        )  # fmt: skip
        tuned.repair(q, k, v, o, lse, is_causal, scale, TileConfig(ROWS.value, config.block_n, 4, 1), last_first=True)
    return o, lse


@functools.cache
def processors(index: int) -> int:
    """Multiprocessors of the GPU with this index."""
    return torch.cuda.get_device_properties(index).multi_processor_count
