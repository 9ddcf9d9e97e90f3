"""Chapter 9: a ring of tiles in shared memory between a producer, which fills them, and consumers, which read them.

Each stage of the ring has two mbarriers. At `full` the load arrives; at `empty` every consumer arrives that has read
the tile. The n-th use of the ring takes stage n % STAGES in phase n // STAGES, on both sides, so the parity that a wait
needs follows from n alone (9.5).

| | producer | consumer |
|---|---|---|
| before | producer_acquire: wait until the stage is empty | consumer_wait: wait until the stage is full |
| | start the load, which arrives at full when its bytes are there | read the tile |
| after | | consumer_release: arrive at empty |

`fa_tutorial.barriers` plays this protocol in plain Python.
"""

from __future__ import annotations

from typing import NamedTuple

from fa_tutorial.hardware import require_triton

require_triton("Chapter 9 (fa_tutorial.hopper)")
from triton._C.libtriton import ir  # noqa: E402
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon.language._core import builtin  # noqa: E402
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma  # noqa: E402


class Pipeline(NamedTuple):
    """tiles: [STAGES, 1, 1, ROWS, D] in shared memory; full, empty: an mbarrier for each stage."""

    tiles: object
    full: object
    empty: object


@gluon.jit
def stage_of(n, STAGES: gl.constexpr):
    """Where the n-th use of a ring lies. n is never negative; unsigned, the division by a power of two is a shift and
    takes no registers."""
    return (gl.to_tensor(n).to(gl.uint32) % STAGES).to(gl.int32)


@gluon.jit
def parity_of(n, STAGES: gl.constexpr):
    """The parity of the phase n // STAGES that the n-th use is."""
    return (gl.to_tensor(n).to(gl.uint32) // STAGES & 1).to(gl.int32)


@gluon.jit
def make_barriers(STAGES: gl.constexpr, COUNT: gl.constexpr):
    """An mbarrier for each of STAGES, whose phase ends after COUNT arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(barriers.index(stage), count=COUNT)
    return barriers


@gluon.jit
def make_pipeline(desc, STAGES: gl.constexpr, CONSUMERS: gl.constexpr):
    """A ring of STAGES of desc's tiles, each read by CONSUMERS warpgroups."""
    block: gl.constexpr = desc.block_type.shape
    tiles = gl.allocate_shared_memory(desc.dtype, [STAGES, block[0], block[1], block[2], block[3]], desc.layout)
    return Pipeline(tiles, make_barriers(STAGES, 1), make_barriers(STAGES, CONSUMERS))


@gluon.jit
def producer_acquire(pipeline, n):
    """Wait until the stage of the n-th use is empty. A fresh barrier lets the first use of each stage through."""
    STAGES: gl.constexpr = pipeline.tiles.shape[0]
    mbarrier.wait(pipeline.empty.index(stage_of(n, STAGES)), parity_of(n, STAGES) ^ 1)


@gluon.jit
def load(pipeline, n, desc, b, h, start):
    """Start the load of rows start … of head h, batch entry b, into the stage of the n-th use; it arrives at full when
    its bytes are there."""
    STAGES: gl.constexpr = pipeline.tiles.shape[0]
    ROWS: gl.constexpr = pipeline.tiles.shape[3]
    D: gl.constexpr = pipeline.tiles.shape[4]
    stage = stage_of(n, STAGES)
    mbarrier.expect(pipeline.full.index(stage), ROWS * D * (desc.dtype.primitive_bitwidth // 8))
    tma.async_copy_global_to_shared(desc, [b, h, start, 0], pipeline.full.index(stage), pipeline.tiles.index(stage))


@gluon.jit
def consumer_wait(pipeline, n):
    """Wait until the tile of the n-th use is there, and return it: [ROWS, D] in shared memory."""
    STAGES: gl.constexpr = pipeline.tiles.shape[0]
    mbarrier.wait(pipeline.full.index(stage_of(n, STAGES)), parity_of(n, STAGES))
    return pipeline.tiles.index(stage_of(n, STAGES)).reshape([pipeline.tiles.shape[3], pipeline.tiles.shape[4]])


@gluon.jit
def consumer_release(pipeline, n):
    """This warpgroup has read the tile of the n-th use."""
    STAGES: gl.constexpr = pipeline.tiles.shape[0]
    mbarrier.arrive(pipeline.empty.index(stage_of(n, STAGES)), count=1)


@builtin
def tma_add(desc, coordinates, tile, _semantic=None):
    """Start to add a tile of shared memory to desc's tensor, element by element; tma.store_wait waits until the tile
    may be written again.

    PTX's cp.reduce.async.bulk.tensor with .add (section 9.7.9). Triton's compiler knows it; Gluon as of 3.7 has no name
    for it.
    """
    to = _semantic._convert_to_ir_values(coordinates, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, to, tile.handle)
