"""What every kernel shares: a tensor as one argument, its tiles loaded and stored, a dot product that is exact for
every dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fa_tutorial.arguments import check_int
from fa_tutorial.hardware import interpreter_on, require_triton

triton = require_triton("Every kernel (fa_tutorial.tiles)")
import triton.language as tl  # noqa: E402

INTERPRETED = tl.constexpr(interpreter_on())
MIN_DOT = 16  # tl.dot needs this along K on a GPU; a shorter M or N would leave a tensor core idle
MAX_D = 256


class Heads(NamedTuple):
    """A (B, H, S, D) tensor as one argument of a kernel: its pointer and four strides, in elements."""

    ptr: Any
    strides: Any


def heads(x: torch.Tensor) -> Heads:
    return Heads(x, x.stride())


@triton.jit
def tile_pointers(x, b, h, start, ROWS: tl.constexpr, COLS: tl.constexpr):
    """[ROWS, COLS] pointers to rows start … of head h, batch entry b, and the row and column numbers.

    x: Heads. Offsets are int64: a product of an index and a stride can pass 2³¹. tl.cast takes a plain int too.
    """
    offs_s = tl.arange(0, ROWS).to(tl.int64)[:, None]  # [ROWS, 1]
    offs_d = tl.arange(0, COLS).to(tl.int64)[None, :]  # [1, COLS]
    head = x.ptr + tl.cast(b, tl.int64) * x.strides[0] + tl.cast(h, tl.int64) * x.strides[1]
    head += tl.cast(start, tl.int64) * x.strides[2]  # moved by start: in a loop only that changes
    return head + (offs_s * x.strides[2] + offs_d * x.strides[3]), start + offs_s, offs_d


@triton.jit
def load_tile(x, b, h, start, S, D, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Rows start … start + ROWS − 1 of head h, batch entry b: [ROWS, COLS], 0 beyond S and D.

    x: Heads, or a descriptor of (B, H, S, D) with tiles (1, 1, ROWS, COLS), which puts the zeros there
    by itself. S: None where all rows are there.
    """
    if isinstance(x, tl.tensor_descriptor):
        tile = x.load([b, h, start, 0]).reshape([ROWS, COLS])
    else:
        pointers, offs_s, offs_d = tile_pointers(x, b, h, start, ROWS, COLS)
        mask = offs_d < D if S is None else (offs_s < S) & (offs_d < D)
        tile = tl.load(pointers, mask=mask, other=0.0)
    if INTERPRETED and tile.dtype == tl.bfloat16:
        tile = tile.to(tl.float32)  # the interpreter cannot compute with bf16
    return tile


@triton.jit
def store_tile(x, tile, b, h, start, S, D, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Store [ROWS, COLS] where load_tile reads it, in x's dtype; nothing beyond S rows and D columns."""
    if isinstance(x, tl.tensor_descriptor):
        x.store([b, h, start, 0], tile.to(x.dtype).reshape([1, 1, ROWS, COLS]))
    else:
        pointers, offs_s, offs_d = tile_pointers(x, b, h, start, ROWS, COLS)
        tl.store(pointers, tile.to(x.ptr.dtype.element_ty), mask=(offs_s < S) & (offs_d < D))


@triton.jit
def dot(a, b, acc=None):
    """a @ b, plus acc if given, accumulated in float32; fp32 tiles multiply in IEEE precision, not TF32.

    a: [M, K], b: [K, N], acc: [M, N] float32. The interpreter's dot is wrong for bf16, so there tiles
    are widened, after the compiler's check.
    """
    if INTERPRETED:
        tl.static_assert(a.dtype == b.dtype,
                         f"Both operands must be same dtype. Got {a.dtype} and {b.dtype}")  # fmt: skip
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


def padded_d(D: int) -> int:
    """BLOCK_D: D rounded up to a power of two of at least 16, as tl.arange and tl.dot ask."""
    return max(1 << (D - 1).bit_length(), MIN_DOT)


def check_block(name: str, block: int, minimum: int = 1) -> int:
    """Return `block` if it is a power of two of at least `minimum`, as tl.arange and tl.dot ask; raise otherwise."""
    block = check_int(name, block, minimum)
    if block & (block - 1):
        raise ValueError(f"{name} must be a power of two, got {block}")
    return block


@dataclass(frozen=True)
class TileConfig:
    """A tile, block_m rows of q by block_n rows of k, and how a GPU runs it."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int

    def __post_init__(self):
        check_block("block_m", self.block_m, MIN_DOT)
        check_block("block_n", self.block_n, MIN_DOT)

    def launch(self) -> dict[str, int]:
        """The configuration as a launch takes it: kernel[grid](…, **config.launch())."""
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }
