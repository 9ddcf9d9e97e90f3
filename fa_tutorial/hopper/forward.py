"""Chapter 9's forward: a producer warp loads, and two or three consumer warpgroups compute 64 rows each, q kᵀ of one
block beside the softmax of another.

Compute capability 9.0, D = 64 or 128, fp16 and bf16; everything else takes the kernels of chapters 5 and 8. The
protocol is `pipeline`'s, over three rings:

| ring | a stage holds | stages | consumers a stage | the n-th use |
|---|---|---|---|---|
| q | 64 rows of q, and where they are | Q_STAGES · CONSUMERS | 1 | consumer n % CONSUMERS, by turns |
| k, v | BLOCK_N rows of k or v | STAGES | CONSUMERS | a work tile's blocks of keys, from the last to the first |

Producer and consumers walk over the same work tiles and the same blocks of keys in one order. A consumer that has no
use for a block still waits for it and releases it, so that all count alike.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist

from fa_tutorial import tuned
from fa_tutorial.hardware import HOPPER_CAPABILITY, card_of, interpreter_on, require_triton
from fa_tutorial.hopper.pipeline import (
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
)
from fa_tutorial.hopper.softmax import mul_up, pack, softmax_step, unpack
from fa_tutorial.hopper.tile_scheduler import (
    NO_ROWS,
    ROWS,
    announce_rows,
    announced_rows,
    make_work,
    next_work_tile,
    sizes_of,
    work_tile,
)
from fa_tutorial.tuned.descriptors import can_use_tma, descriptor_template
from fa_tutorial.tuned.forward import heads_at_once
from fa_tutorial.tuned.launching import Launch, launch_prepared, signature_of

triton = require_triton("Chapter 9 (fa_tutorial.hopper)")
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait  # noqa: E402
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # noqa: E402

Q_STAGES = gl.constexpr(2)  # a consumer's rows of its next work tile are there before it is done with this one
LOG2_E, LN_2 = gl.constexpr(math.log2(math.e)), gl.constexpr(math.log(2.0))


class Shared(NamedTuple):
    """What the roles share: the rings q, k, v; work: where the rows of each stage of q are; o:
    [CONSUMERS, 1, 1, ROWS, D]."""

    q: object
    work: object
    k: object
    v: object
    o: object


class Flags(NamedTuple):
    """What a kernel knows when it compiles. MASK: not every query sees whole blocks of keys alone; the last four are
    what Step switches on."""

    IS_CAUSAL: bool
    MASK: bool
    COUNTER: bool
    LONGEST_FIRST: bool
    OVERLAP: bool
    TURNS: bool


# ---------------------------------------------------------------- producer


@gluon.jit
def producer(q_desc, k_desc, v_desc, counter_ptr, shared, sizes, flags: gl.constexpr):
    """One warp: loads q of each work tile, then its blocks of k and v, as soon as the rings have room."""
    CONSUMERS: gl.constexpr = shared.o.shape[0]
    BLOCK_N: gl.constexpr = shared.k.tiles.shape[3]
    work_tiles = sizes.row_blocks * sizes.heads
    n = 0  # uses of the rings k and v, over all work tiles
    turn = 0  # work tiles so far
    i = gl.program_id(0)
    while i < work_tiles:
        batch_head, start_m, end_m, key_blocks = work_tile(
            i, sizes, CONSUMERS, BLOCK_N, flags.LONGEST_FIRST, flags.IS_CAUSAL)  # fmt: skip
        b = batch_head // sizes.H_q
        h = batch_head % sizes.H_q
        h_k = h // (sizes.H_q // sizes.H_k)
        for c in gl.static_range(CONSUMERS):
            first = start_m + c * ROWS
            nth = turn * CONSUMERS + c
            producer_acquire(shared.q, nth)
            announce_rows(batch_head, first if first < end_m else NO_ROWS, key_blocks, shared.work, nth)
            load(shared.q, nth, q_desc, b, h, first)
        for j in range(key_blocks):
            start_n = (key_blocks - 1 - j) * BLOCK_N
            producer_acquire(shared.k, n)
            load(shared.k, n, k_desc, b, h_k, start_n)
            producer_acquire(shared.v, n)
            load(shared.v, n, v_desc, b, h_k, start_n)
            n += 1
        turn += 1
        i = next_work_tile(i, counter_ptr, flags.COUNTER)
    for c in gl.static_range(CONSUMERS):  # there is no such work tile: the consumer ends
        producer_acquire(shared.q, turn * CONSUMERS + c)
        announce_rows(sizes.heads, 0, 0, shared.work, turn * CONSUMERS + c)
        mbarrier.arrive(shared.q.full.index(stage_of(turn * CONSUMERS + c, shared.q.tiles.shape[0])), count=1)


# ---------------------------------------------------------------- consumer


@gluon.jit
def take_turn(turns, n, C: gl.constexpr, TURNS: gl.constexpr):
    """With TURNS wait until consumer C may issue its matmuls of the n-th block: consumer 0 begins, then one after the
    other. turns: a barrier for each."""
    if TURNS:
        mbarrier.wait(turns.index(C), parity_of(n, 1) ^ (C == 0))


@gluon.jit
def pass_turn(turns, C: gl.constexpr, TURNS: gl.constexpr):
    if TURNS:
        mbarrier.arrive(turns.index((C + 1) % turns.shape[0]), count=1)


@gluon.jit
def issue_qk(q, shared, n, zeros):
    """Wait for k of the n-th use, and start s = q kᵀ, [ROWS, BLOCK_N] (4.1): warpgroup_mma_wait waits for it."""
    return warpgroup_mma(q, consumer_wait(shared.k, n).permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def issue_pv(pairs, acc, shared, n):
    """Wait for v of the n-th use, and start acc + p v, [ROWS, D] (4.3). pairs: p, packed."""
    layout: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=acc.type.layout, k_width=2)
    return warpgroup_mma(unpack(pairs, shared.v.tiles.dtype, layout), consumer_wait(shared.v, n), acc, is_async=True)


@gluon.jit
def next_block(q, pairs, m, l, acc, zeros, shared, turns, n, seen, scale_log2, C: gl.constexpr, MASK: gl.constexpr,
               flags: gl.constexpr):  # fmt: skip
    """The scores and softmax of the n-th block, and p v of the block before it, whose p comes in `pairs`. Returns
    pairs, m, l, acc.

    Without flags.OVERLAP both matmuls are waited for before the softmax. With it p v is waited for after the softmax;
    ptxas moves that wait up, and leaves half of the maximum before it.
    """
    take_turn(turns, n, C, flags.TURNS)
    s = issue_qk(q, shared, n, zeros)  # [ROWS, BLOCK_N]
    new = issue_pv(pairs, acc, shared, n - 1)  # [ROWS, D]
    pass_turn(turns, C, flags.TURNS)
    if flags.OVERLAP:
        s = warpgroup_mma_wait(1, [s])  # at most one is in flight: s, which was issued first, is done
    else:
        s, new = warpgroup_mma_wait(0, [s, new])
    consumer_release(shared.k, n)
    p, m, alpha = softmax_step(s, m, scale_log2, seen, MASK)
    l = alpha * l + gl.sum(p, axis=1)
    pairs_new = pack(p, shared.v.tiles.dtype)
    if flags.OVERLAP:
        new, pairs = warpgroup_mma_wait(0, [new, pairs])
    consumer_release(shared.v, n - 1)
    return pairs_new, m, l, new * gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout))[:, None]


@gluon.jit
def skip(shared, n):
    """Wait for the n-th block of k and v, and release it unread."""
    consumer_wait(shared.k, n)
    consumer_release(shared.k, n)
    consumer_wait(shared.v, n)
    consumer_release(shared.v, n)


@gluon.jit
def consumer(o_desc, lse_ptr, scale, shared, turns, sizes, C: gl.constexpr, flags: gl.constexpr):
    """Warpgroup C: rows C · ROWS … of each work tile, (4.1) to (4.5) in base 2, one block of keys after the other, from
    the last to the first."""
    CONSUMERS: gl.constexpr = shared.o.shape[0]
    BLOCK_N: gl.constexpr = shared.k.tiles.shape[3]
    D: gl.constexpr = shared.k.tiles.shape[4]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16]
    )
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    ROW_LAYOUT: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, S_LAYOUT)
    scale_log2 = scale * LOG2_E
    n = 0
    turn = 0
    q = consumer_wait(shared.q, C)
    batch_head, first, key_blocks = announced_rows(shared.work, C)
    while batch_head < sizes.heads:
        offs_m = first + gl.arange(0, ROWS, ROW_LAYOUT)  # [ROWS]
        seen = gl.zeros([ROWS], gl.int32, ROW_LAYOUT) + sizes.S_k  # [ROWS] keys that a row sees
        mine = key_blocks  # blocks that one of these rows sees
        full = sizes.S_k // BLOCK_N  # blocks that need no mask
        if flags.IS_CAUSAL:  # (4.6)
            seen = gl.minimum(seen, offs_m + (1 + sizes.S_k - sizes.S_q))
            mine = max(gl.cdiv(min(first + ROWS, sizes.S_q) + sizes.S_k - sizes.S_q, BLOCK_N), 1)
            full = max(first + 1 + sizes.S_k - sizes.S_q, 0) // BLOCK_N
        if first == NO_ROWS:  # this work tile has fewer rows
            mine = 0
        for _ in range(key_blocks - mine):
            take_turn(turns, n, C, flags.TURNS)
            pass_turn(turns, C, flags.TURNS)
            skip(shared, n)
            n += 1
        if mine > 0:
            take_turn(turns, n, C, flags.TURNS)
            s = issue_qk(q, shared, n, zeros)
            pass_turn(turns, C, flags.TURNS)
            s = warpgroup_mma_wait(0, [s])
            consumer_release(shared.k, n)
            n += 1
            m = gl.full([ROWS], -float("inf"), gl.float32, ROW_LAYOUT)
            acc = gl.zeros([ROWS, D], gl.float32, O_LAYOUT)
            p, m, _ = softmax_step(s, m, scale_log2, seen - (mine - 1) * BLOCK_N, flags.MASK)
            l = gl.sum(p, axis=1)
            pairs = pack(p, shared.v.tiles.dtype)
            masked = max(min(mine - 1 - full, mine - 1), 0)  # of the blocks that are left
            for j in range(masked):
                pairs, m, l, acc = next_block(q, pairs, m, l, acc, zeros, shared, turns, n,
                                              seen - (mine - 2 - j) * BLOCK_N, scale_log2, C, True, flags)  # fmt: skip
                n += 1
            for _ in range(masked, mine - 1):
                pairs, m, l, acc = next_block(q, pairs, m, l, acc, zeros, shared, turns, n, seen,
                                              scale_log2, C, False, flags)  # fmt: skip
                n += 1
            consumer_release(shared.q, turn * CONSUMERS + C)
            acc = warpgroup_mma_wait(0, [issue_pv(pairs, acc, shared, n - 1)])
            consumer_release(shared.v, n - 1)
            epilogue(o_desc, lse_ptr, acc, m, l, scale_log2, shared, batch_head, sizes, first, offs_m, C)
        else:
            consumer_release(shared.q, turn * CONSUMERS + C)
        turn += 1
        q = consumer_wait(shared.q, turn * CONSUMERS + C)
        batch_head, first, key_blocks = announced_rows(shared.work, turn * CONSUMERS + C)
    tma.store_wait(0)


@gluon.jit
def epilogue(o_desc, lse_ptr, acc, m, l, scale_log2, shared, batch_head, sizes, first, offs_m, C: gl.constexpr):
    """o = acc / l (4.4) and lse (4.5) of ROWS rows."""
    l_or_one = gl.where(l == 0.0, 1.0, l)
    lse = gl.where(l == 0.0, -float("inf"), (mul_up(m, scale_log2) + gl.log2(l_or_one)) * LN_2)
    gl.store(lse_ptr + batch_head.to(gl.int64) * sizes.S_q + offs_m, lse, mask=offs_m < sizes.S_q)
    o = acc * gl.convert_layout(1.0 / l_or_one, gl.SliceLayout(1, acc.type.layout))[:, None]
    tma.store_wait(0)  # the rows of the work tile before have left shared memory
    shared.o.index(C).reshape([ROWS, acc.shape[1]]).store(o.to(shared.o.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(o_desc, [0, batch_head, first, 0], shared.o.index(C))


# ---------------------------------------------------------------- kernel


@gluon.jit
def forward_kernel(q_desc, k_desc, v_desc, o_desc, lse_ptr, counter_ptr, heads_at_once, scale,
                   flags: gl.constexpr, CONSUMERS: gl.constexpr, STAGES: gl.constexpr,
                   CONSUMER_REGISTERS: gl.constexpr):  # fmt: skip
    """o and lse as chapter 8's forward_kernel gives them, by one producer warp and CONSUMERS warpgroups. scale must be
    positive.

    q_desc: descriptor of (B, H_q, S_q, D), o_desc: of (1, B · H_q, S_q, D), tiles (1, 1, ROWS, D); k_desc, v_desc: of
    (B, H_k, S_k, D), tiles (1, 1, BLOCK_N, D).
    lse_ptr: (B, H_q, S_q) float32; counter_ptr: an int32 that is 0, read with flags.COUNTER.
    Grid: any number of programs up to that of work tiles; each computes work tiles until there are none.
    """
    Q_TILES: gl.constexpr = Q_STAGES * CONSUMERS
    shared = Shared(
        make_pipeline(q_desc, Q_TILES, 1),
        make_work(Q_TILES),
        make_pipeline(k_desc, STAGES, CONSUMERS),
        make_pipeline(v_desc, STAGES, CONSUMERS),
        gl.allocate_shared_memory(o_desc.dtype, [CONSUMERS, 1, 1, ROWS, o_desc.block_type.shape[3]], o_desc.layout),
    )
    turns = make_barriers(CONSUMERS, 1)
    sizes = sizes_of(q_desc, k_desc, heads_at_once, CONSUMERS)
    # The roles stand here one by one: Gluon takes this list as it is written, and the first role is that of the warps
    # that are here already.
    if CONSUMERS == 2:
        gl.warp_specialize([
            (consumer, (o_desc, lse_ptr, scale, shared, turns, sizes, 0, flags)),
            (consumer, (o_desc, lse_ptr, scale, shared, turns, sizes, 1, flags)),
            (producer, (q_desc, k_desc, v_desc, counter_ptr, shared, sizes, flags)),
        ], [4, 1], [CONSUMER_REGISTERS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (consumer, (o_desc, lse_ptr, scale, shared, turns, sizes, 0, flags)),
            (consumer, (o_desc, lse_ptr, scale, shared, turns, sizes, 1, flags)),
            (consumer, (o_desc, lse_ptr, scale, shared, turns, sizes, 2, flags)),
            (producer, (q_desc, k_desc, v_desc, counter_ptr, shared, sizes, flags)),
        ], [4, 4, 1], [CONSUMER_REGISTERS, CONSUMER_REGISTERS, 24])  # fmt: skip


# ---------------------------------------------------------------- launching


@dataclass(frozen=True)
class Step:
    """What a step of the chapter switches on. overlap: next_block's; persistent: one program a multiprocessor, not one
    a work tile;
    counter: work tiles that differ are handed out as programs ask; order: under a causal mask (8.6), longest first;
    else head by head, from the first row on; turns: three consumers issue their matmuls by turns."""

    overlap: bool = True
    persistent: bool = True
    counter: bool = True
    order: bool = True
    turns: bool = True


# In the order of the chapter.
STEPS = {
    "roles": Step(overlap=False, persistent=False, counter=False, order=False, turns=False),
    "overlap": Step(persistent=False, counter=False, order=False, turns=False),
    "persistent": Step(counter=False, order=False, turns=False),
    "counter": Step(order=False, turns=False),
    "order": Step(turns=False),
    "turns": Step(),
}
BEST = STEPS["turns"]
NUM_WARPS = 4  # that a program begins with: the first consumer


@dataclass(frozen=True)
class HopperConfig:
    """consumers: warpgroups of 64 rows each; block_n: keys a tile; stages of the rings k and v; registers: of a
    consumer's thread."""

    consumers: int
    block_n: int
    stages: int
    registers: int


# The fastest of those tried on an H200. The tiles that a causal mask cuts cost less where they are small: at S = 512
# that brings 7 % at D = 64 and 1 to 2 % at 128, at 1,024 at D = 64 2 to 5 %, at 128 it costs 2 to 4 %.
CONFIGS = {64: HopperConfig(3, 128, 2, 160), 128: HopperConfig(2, 128, 2, 240)}
SHORT_CAUSAL = {64: HopperConfig(3, 64, 4, 160), 128: HopperConfig(2, 64, 4, 240)}
SHORT_ROWS = {64: 1024, 128: 512}


def choose_config(D: int, S_q: int, is_causal: bool) -> HopperConfig:
    """The tile for head dimension D, one of CONFIGS' keys."""
    return (SHORT_CAUSAL if is_causal and S_q <= SHORT_ROWS[D] else CONFIGS)[D]


@functools.cache
def layout() -> gl.NVMMASharedLayout:
    """How a tile of 16-bit elements lies in shared memory: what TMA writes and wgmma reads."""
    return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)


def applies(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> bool:
    """True where this module's kernel takes the input: a card of capability 9.0, fp16 or bf16, D = 64 or 128, strides
    that TMA takes."""
    is_hopper = card_of(q).capability == HOPPER_CAPABILITY and not interpreter_on()  # Gluon has no interpreter
    return is_hopper and q.shape[3] in CONFIGS and tuned.applies(q, scale) and can_use_tma(signature_of(q, k, v))


def in_process_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def flash_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool, scale: float, *, step: Step = BEST,
    config: HopperConfig | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """forward.flash_forward by forward_kernel, for what `applies` to. Same arguments and results.

    step: one of STEPS; config: None takes choose_config's.
    """
    (B, H_q, S_q, D), S_k = q.shape, k.shape[2]
    config = config or choose_config(D, S_q, is_causal)
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty((B, H_q, S_q), dtype=torch.float32, device=q.device)
    work_tiles = -(-S_q // (ROWS.value * config.consumers)) * B * H_q
    programs = min(work_tiles, card_of(q).multiprocessors) if step.persistent else work_tiles
    # Where work tiles are alike, a counter balances nothing, and costs 1 to 6 % of the time. But in a process group a
    # message has a kernel, too, and programs that wait for its multiprocessors start late.
    alike = not is_causal and S_q % (ROWS.value * config.consumers) == 0 and not in_process_group()
    counted = step.counter and programs < work_tiles and not alike
    masked = is_causal or S_k % config.block_n != 0
    counter = torch.zeros(1, dtype=torch.int32, device=q.device) if counted else None

    def prepare() -> Launch:
        rows = ROWS.value, config.block_n, config.block_n, ROWS.value
        to_argument = [
            descriptor_template(x, n, TensorDescriptor, layout())
            for x, n in zip((q, k, v, o.view(1, B * H_q, S_q, D)), rows, strict=True)
        ]
        turns = step.turns and config.consumers == 3  # two alternate by themselves
        constants = {"flags": Flags(is_causal, masked, counted, step.order and is_causal, step.overlap, turns)}
        constants |= {"CONSUMERS": config.consumers, "STAGES": config.stages, "CONSUMER_REGISTERS": config.registers}
        return Launch(forward_kernel, programs, to_argument, constants | {"num_warps": NUM_WARPS})

    key = ("hopper", step, config, is_causal, counted, *signature_of(q, k, v))
    at_once = heads_at_once(S_k) if step.order and is_causal else 1
    launch_prepared(key, prepare, (q, k, v, o), (lse, counter, at_once, scale))
    return o, lse
