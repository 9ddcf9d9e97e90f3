"""Chapter 8's forward, one step at a time: a file for each step, with the whole kernel, from chapter 5's to
tuned.forward's.

A step is run as the kernel that stands in its file, so what you read is what is measured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fa_tutorial.forward import choose_config
from fa_tutorial.hardware import card_of, require_triton
from fa_tutorial.source import defined
from fa_tutorial.tiles import TileConfig, heads, padded_d
from fa_tutorial.tuned import forward
from fa_tutorial.tuned.descriptors import can_use_tma, descriptor_template
from fa_tutorial.tuned.launching import signature_of

triton = require_triton("Chapter 8 (fa_tutorial.tuned)")

TILE = TileConfig(64, 64, 4, 3)  # with which the steps are compared
LARGER = {64: TileConfig(64, 128, 4, 2), 128: TileConfig(128, 64, 4, 2)}  # by D: a tile that needs more registers
FOLDER = Path(__file__).parent
STORED = FOLDER.with_name("steps_sm90.json")  # what ptxas makes of each: tools/machine_code.py
# In the order of the chapter: step -> the file that holds its kernel.
STEPS = {
    "chapter 5": FOLDER / "chapter_5.py",
    "base 2": FOLDER / "base_2.py",
    "descriptors": FOLDER / "descriptors.py",
    "order": FOLDER / "order.py",
    "one division": FOLDER / "one_division.py",
    "guard": FOLDER / "guard.py",
    "load ahead": FOLDER / "load_ahead.py",
    "round up": FOLDER / "round_up.py",
}
LAST = "round up"  # tuned.forward is this kernel
WITH_TILE = tuple(STEPS)[:4]  # steps that the chapter shows with TILE; it shows all with LARGER


def file_of(step: str) -> Path:
    """The file with the kernel after `step`."""
    return Path(STEPS[step])


def kernel(step: str, **functions: Callable):
    """The kernel after `step`. functions: jitted functions that take the place of its own, softmax_step for one."""
    file = file_of(step)
    state = file.stat()  # a file that changes makes another kernel
    return _kernel(file, (state.st_mtime_ns, state.st_size), tuple(functions.items()))


@functools.cache  # while it is timed, a call must not take longer than its kernel
def _kernel(file: Path, state: tuple[int, int], functions: tuple):
    names = defined(file.read_text(encoding="utf-8"), {"__name__": f"{__name__}.{file.stem}"}, str(file))
    names.update(functions)  # a kernel looks its functions up when it is first launched
    return names["flash_forward_kernel"]


def flash_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool, scale: float,
                  *, step: str, tile: TileConfig | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """forward.flash_forward of chapter 5 by the kernel after `step`, for what forward.applies to. tile: chapter 5's
    unless given.
    """
    return launched(q, k, v, is_causal, scale, step=step, tile=tile)[:2]


def launched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool, scale: float,
             *, step: str, tile: TileConfig | None = None) -> tuple[torch.Tensor, torch.Tensor, Any]:  # fmt: skip
    """flash_forward's o and lse, and what Triton compiled for it."""
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty((B, H_q, S_q), dtype=torch.float32, device=q.device)
    tile = tile or choose_config(D, q.dtype, card_of(q).shared_memory)
    order = list(STEPS)
    tma = order.index(step) >= order.index("descriptors") and can_use_tma(signature_of(q, k, v))
    rows = (tile.block_m, tile.block_n, tile.block_n, tile.block_m)
    tensors = [descriptor_template(x, n)(x) if tma else heads(x) for x, n in zip((q, k, v, o), rows, strict=True)]
    at_once = (forward.heads_at_once(S_k),) if order.index(step) >= order.index("order") else ()
    compiled = kernel(step)[(triton.cdiv(S_q, tile.block_m) * B * H_q,)](
        *tensors, lse, H_q, H_k, *at_once, S_q, S_k, D, scale, IS_CAUSAL=is_causal, BLOCK_D=padded_d(D), **tile.launch()
    )
    return o, lse, compiled
