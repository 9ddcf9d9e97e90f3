"""Chapter 9: which work tile comes when, forward and backward, and how the producer tells the consumers."""

from __future__ import annotations

from typing import NamedTuple

from fa_tutorial.hardware import require_triton
from fa_tutorial.hopper.pipeline import stage_of
from fa_tutorial.matmul import grouped_tile

require_triton("Chapter 9 (fa_tutorial.hopper)")
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402

ROWS = gl.constexpr(64)  # of q, or of k in the backward, that one consumer keeps: what one wgmma takes
KEYS = gl.constexpr(128)  # of a work tile of the backward
grouped_tile_in_gluon = gluon.jit(grouped_tile)


class Sizes(NamedTuple):
    """heads = B · H_q; row_blocks of CONSUMERS · ROWS rows each; heads_at_once: heads whose work tiles alternate
    (8.6)."""

    H_q: object
    H_k: object
    S_q: object
    S_k: object
    heads: object
    row_blocks: object
    heads_at_once: object


@gluon.jit
def sizes_of(q_desc, k_desc, heads_at_once, CONSUMERS: gl.constexpr):
    B, H_q, S_q = q_desc.shape[0], q_desc.shape[1], q_desc.shape[2]
    row_blocks = gl.cdiv(S_q, CONSUMERS * ROWS)
    return Sizes(H_q, k_desc.shape[1], S_q, k_desc.shape[2], B * H_q, row_blocks, min(B * H_q, heads_at_once))


@gluon.jit
def work_tile(
    i, sizes, CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, LONGEST_FIRST: gl.constexpr, IS_CAUSAL: gl.constexpr
):
    """Work tile i: (batch_head, start_m, end_m, key_blocks), where key_blocks, at least one, are those that its last
    row sees.

    Its rows are start_m … end_m − 1, ROWS for each consumer. Row blocks are counted from the last row on: the one that
    has fewer than CONSUMERS · ROWS rows is then the first, which under a causal mask is the shortest.
    """
    batch_head, row_block = grouped_tile_in_gluon(i, sizes.heads, sizes.row_blocks, sizes.heads_at_once)
    after = row_block if LONGEST_FIRST else sizes.row_blocks - 1 - row_block
    end_m = (gl.cdiv(sizes.S_q, ROWS) - after * CONSUMERS) * ROWS
    start_m = max(end_m - CONSUMERS * ROWS, 0)
    end_n = sizes.S_k
    if IS_CAUSAL:
        end_n = min(end_m, sizes.S_q) + sizes.S_k - sizes.S_q
    return batch_head, start_m, end_m, max(gl.cdiv(end_n, BLOCK_N), 1)


@gluon.jit
def next_work_tile(i, counter_ptr, COUNTER: gl.constexpr):
    """The number of this program's next work tile. COUNTER: the next number of the counter, so that whoever is done
    takes it."""
    if COUNTER:
        i = gl.atomic_add(counter_ptr, 1)
    return i + gl.num_programs(0)


@gluon.jit
def make_numbers(STAGES: gl.constexpr):
    """A number beside each stage of a ring, which the producer writes and the consumers read: [STAGES, 1]."""
    return gl.allocate_shared_memory(gl.int32, [STAGES, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def announce(number, numbers, n):
    """Write it beside the stage of the n-th use of the ring, which the producer has acquired."""
    stage = numbers.index(stage_of(n, numbers.shape[0]))
    # Every lane stores the same number, and one of them arrives after its own store: that one the consumers see. (A
    # checker of races reports the other lanes' stores; the warp's sync before the copy orders them.)
    stage.store(gl.full([1], number, gl.int32, gl.BlockedLayout([1], [32], [1], [0])))


@gluon.jit
def announced(numbers, n):
    """The number beside the n-th use of the ring, whose stage has been waited for."""
    return gl.sum(numbers.index(stage_of(n, numbers.shape[0])).load(gl.BlockedLayout([1], [32], [4], [0])), axis=0)


# ---------------------------------------------------------------- the forward's: where a consumer's rows are

NO_ROWS = gl.constexpr(2**30)


class Work(NamedTuple):
    """What a consumer is told beside its rows of q, so that it does not divide between two work tiles, each
    [Q_STAGES · CONSUMERS, 1]. head: b · H_q + h, or B · H_q after the last work tile; first: row, or NO_ROWS where the
    work tile has none for this consumer; key_blocks: of the work tile."""

    head: object
    first: object
    key_blocks: object


@gluon.jit
def make_work(STAGES: gl.constexpr):
    return Work(make_numbers(STAGES), make_numbers(STAGES), make_numbers(STAGES))


@gluon.jit
def announce_rows(head, first, key_blocks, work, n):
    announce(head, work.head, n)
    announce(first, work.first, n)
    announce(key_blocks, work.key_blocks, n)


@gluon.jit
def announced_rows(work, n):
    return announced(work.head, n), announced(work.first, n), announced(work.key_blocks, n)


# ---------------------------------------------------------------- the backward's work tiles


class KeySizes(NamedTuple):
    """heads = B · H_k; key_blocks of KEYS keys each; heads_at_once as in Sizes."""

    H_q: object
    H_k: object
    S_q: object
    S_k: object
    heads: object
    key_blocks: object
    heads_at_once: object


@gluon.jit
def key_sizes_of(q_desc, k_desc, heads_at_once):
    B, H_k, S_k = k_desc.shape[0], k_desc.shape[1], k_desc.shape[2]
    return KeySizes(
        q_desc.shape[1], H_k, q_desc.shape[2], S_k, B * H_k, gl.cdiv(S_k, KEYS), min(B * H_k, heads_at_once)
    )


@gluon.jit
def key_tile(i, sizes, BLOCK_M: gl.constexpr, IS_CAUSAL: gl.constexpr):
    """Work tile i of the backward: (batch_head of k, start_n, first_m), where first_m … S_q − 1 are the queries, from a
    block's first on, that may see one of its KEYS keys. Under a causal mask the first key block has the most, so the
    order is longest first as it is."""
    batch_head, key_block = grouped_tile_in_gluon(i, sizes.heads, sizes.key_blocks, sizes.heads_at_once)
    start_n = key_block * KEYS
    first_m = 0
    if IS_CAUSAL:  # (6.13)
        first_m = max(start_n + sizes.S_q - sizes.S_k, 0) // BLOCK_M * BLOCK_M
    return batch_head, start_n, first_m
