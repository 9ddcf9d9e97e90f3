"""What can be measured: shapes, cases, and the grids of the sweep. Needs neither a GPU nor Triton."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fa_tutorial import ledger
from fa_tutorial.arguments import check_int, check_name

MODES = {"fwd": "forward", "bwd": "backward", "fwd_bwd": "forward and backward"}
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}

# The providers that are compared, by the names that readers know, in the order of tables and figures.
LABELS = {
    "tuned": "tuned (chapter 8)",
    "hopper": "Hopper (chapter 9)",
    "basic": "basic (chapters 5, 7)",
    "sdpa_cudnn": "SDPA cuDNN",
    "sdpa_flash": "SDPA flash",
    "sdpa_efficient": "SDPA efficient",
    "flex": "FlexAttention",
    "flash_attn": "flash-attn 2",
    "flash_attn_4": "flash-attn 4",
    "naive": "naive",
}


@dataclass(frozen=True)
class Shape:
    """Sizes of one attention: q (B, H_q, S_q, D), k and v (B, H_k, S_k, D). ValueError for sizes that cannot be."""

    B: int
    H_q: int
    H_k: int
    S_q: int
    S_k: int
    D: int
    is_causal: bool

    def __post_init__(self):
        for name in ("B", "H_q", "H_k", "S_q", "S_k", "D"):
            check_int(name, getattr(self, name))
        if self.H_q % self.H_k:
            raise ValueError(f"H_q must be a multiple of H_k, got H_q = {self.H_q} and H_k = {self.H_k}")


SHAPE = [field.name for field in dataclasses.fields(Shape)]


@dataclass(frozen=True)
class Case:
    """One row of the results before it is measured. provider: of peers.PROVIDERS; mode: of MODES; dtype: of DTYPES."""

    provider: str
    mode: str
    dtype: str
    shape: Shape

    def __post_init__(self):
        check_name("mode", self.mode, MODES)
        check_name("dtype", self.dtype, DTYPES)

    def about(self) -> dict[str, Any]:
        """The fields of the row that say what it is about."""
        return {"provider": self.provider, "mode": self.mode, "dtype": self.dtype, **dataclasses.asdict(self.shape)}

    def flops(self) -> int:
        """FLOPs of the case by the ledger: pairs that are seen, 2 matmuls forward and 5 backward (8.1)."""
        shape = self.shape
        sizes = (shape.B, shape.H_q, shape.S_q, shape.S_k, shape.D, shape.is_causal)
        forward, backward = ledger.attention_flops(*sizes), ledger.backward_flops(*sizes)
        return {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[self.mode]


@dataclass(frozen=True)
class Grid:
    """Shapes of a sweep, with the dtypes and modes that are measured unless others are asked for."""

    about: str
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    modes: tuple[str, ...]


TOKENS, HIDDEN = 16_384, 2_048  # of every shape of the literature's grid
LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384)
HEAD_DIMS = (64, 128)


def literature(lengths: Sequence[int]) -> tuple[Shape, ...]:
    """B · S = 16,384 tokens and H · D = 2,048 (FA2, section 4.1)."""
    points = itertools.product(HEAD_DIMS, (False, True), lengths)
    return tuple(Shape(TOKENS // S, HIDDEN // D, HIDDEN // D, S, S, D, is_causal) for D, is_causal, S in points)


GRIDS = {
    "literature": Grid("16,384 tokens, hidden size 2,048", literature(LENGTHS), ("fp16", "bf16"), ("fwd", "bwd")),
}
SIZES = "16,384 tokens, hidden size 2,048, three lengths"
GRIDS["points"] = Grid(SIZES, literature((1024, 4096, 16_384)), ("fp16",), ("fwd", "bwd"))


def cases_of(grid: Grid, providers: Sequence[str], modes: Sequence[str] = (), dtypes: Sequence[str] = ()) -> Iterator:
    """Every case of a grid. The providers of a point follow one another, so that they meet one temperature."""
    points = itertools.product(dtypes or grid.dtypes, modes or grid.modes, grid.shapes, providers)
    return (Case(provider, mode, dtype, shape) for dtype, mode, shape, provider in points)


def about(chapter: int, kernel: str, provider: str, dtype: str = "fp16", **sizes: Any) -> dict[str, Any]:
    """The fields that say what a row of a chapter's own kernel is about."""
    return {"chapter": chapter, "kernel": kernel, "provider": provider, "dtype": dtype, **sizes}
