"""Chapter 9: when the programs of chapter 8's forward that share an SM multiply, and when they are at a softmax.

Takes what `ladder` takes, without a mask. The kernel is steps.LAST's, with a clock.
"""

import functools
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fa_tutorial import hardware
from fa_tutorial.bench.cases import Shape, about
from fa_tutorial.bench.chapter_8 import at_4096, inputs
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.source import defined, edited
from fa_tutorial.tiles import padded_d
from fa_tutorial.tuned import steps
from fa_tutorial.tuned.descriptors import descriptor_template
from measure.clocks import cycles_in_turns
from measure.stamps import groups_of, mean_parts, mean_shares

triton = hardware.require_triton("Chapter 9's measurements")

STAMPS = 5  # of chapter_9.STAMPS the first; 0 and 4 aren't stored
# One thread reads the clock and stores it, without a detour over a layout in which tl.store would store.
CLOCK = '''
@triton.jit
def stamp(stamps_ptr, block, n: tl.constexpr, after):
    """The SM's clock as block's n-th stamp, once `after`, [BLOCK_M], has been computed."""
    first = (tl.arange(0, after.shape[0]) == 0).to(tl.int32)
    place = stamps_ptr.to(tl.int64) + (block * 5 + n) * 8
    tl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .u64 t; setp.ne.s32 p, $2, 0; @p mov.u64 t, %clock64; @p st.global.u64 [$3], t; "
        "mov.u32 $0, 0; } // $1", "=r,f,r,l", [after, first, place], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def attend('''
SM = """    sm = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(sm_ptr + tl.program_id(0), sm)
    l_or_one = tl"""
STAMP = "    if STAMPED and not MASK:\n        stamp(stamps_ptr, start_n // BLOCK_N{}, {}, {})\n"
EDITS = (
    ("\n@triton.jit\ndef attend(", CLOCK, 1),
    ("scale_log2,\n           MASK", "scale_log2, stamps_ptr,\n           STAMPED: tl.constexpr, MASK", 1),
    ("    if MASK:\n        offs_n", STAMP.format("", 2, "m") + "    if MASK:\n        offs_n", 1),
    ("    acc = acc * alpha", STAMP.format("", 3, "l") + "    acc = acc * alpha", 1),
    ("    acc = dot(p", STAMP.format(" + 1", 1, "l") + "    acc = dot(p", 1),
    ("lse_ptr, H_q", "lse_ptr, stamps_ptr, sm_ptr, H_q", 1),
    ("BLOCK_D: tl.constexpr):\n    row_blocks",
     "BLOCK_D: tl.constexpr, STAMPED: tl.constexpr):\n"
     "    stamps_ptr += tl.program_id(0).to(tl.int64) * (S_k // BLOCK_N + 1) * 5\n    row_blocks", 1),
    ("S_k, D, scale_log2,\n                           ", "S_k, D, scale_log2, stamps_ptr, STAMPED,\n    ", 2),
    ("    l_or_one = tl", SM, 1),
)  # fmt: skip


@functools.cache
def kernel():
    text = edited(steps.file_of(steps.LAST).read_text(encoding="utf-8"), *EDITS)
    file = Path(tempfile.mkdtemp(), "clocked.py")
    file.write_text(text, encoding="utf-8")
    return defined(text, {"__name__": f"{steps.__name__}.clocked"}, str(file))["flash_forward_kernel"]


def flash_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, stamps: torch.Tensor, sm: torch.Tensor
) -> torch.Tensor:
    """o. stamps: (programs, blocks + 1, 5) int64; sm: (programs,) int32, gets each one's SM."""
    B, H, S, D = q.shape
    tile = steps.LARGER[D]
    o = torch.empty_like(q)
    lse = torch.empty((B, H, S), dtype=torch.float32, device=q.device)
    rows = tile.block_m, tile.block_n, tile.block_n, tile.block_m
    tensors = [descriptor_template(x, n)(x) for x, n in zip((q, k, v, o), rows, strict=True)]
    kernel()[(triton.cdiv(S, tile.block_m) * B * H,)](
        *tensors, lse, stamps, sm, H, H, 1, S, S, D, D**-0.5, IS_CAUSAL=False, BLOCK_D=padded_d(D), STAMPED=True,
        **tile.launch(),
    )  # fmt: skip
    return o


def clocked_cases() -> Iterator[Measurement]:
    """Chapter 8's programs, D = 128, full, S = 4,096, by the SM's clock."""
    shape = at_4096(128, False)
    yield about(9, "clocked", "tuned", **vars(shape)), partial(_clocked_row, shape)


def room(shape: Shape) -> dict[str, torch.Tensor]:
    """Empty stamps and sm for flash_forward."""
    tile = steps.LARGER[shape.D]
    programs = shape.B * shape.H_q * shape.S_q // tile.block_m
    stamps = torch.zeros(programs, shape.S_k // tile.block_n + 1, STAMPS, dtype=torch.int64, device="cuda")
    return {"stamps": stamps, "sm": torch.zeros(programs, dtype=torch.int32, device="cuda")}


def _clocked_row(shape: Shape) -> dict[str, Any]:
    """As chapter_9's of two consumers: "call", "cycles", "stamps" of four blocks of the programs of one SM,
    "softmax_at_once". A block has BLOCK_M x BLOCK_N scores, as many as 64 x 128 in steps.LARGER's tile."""
    q, k, v = inputs(shape)
    into = room(shape)
    call = cycles_in_turns({"": partial(flash_forward, q, k, v, **into)}, rounds=1)[""]
    clock, sm = into["stamps"].cpu(), into["sm"].cpu()
    clock[:, :, 0], clock[:, :, 4] = clock[:, :, 1], clock[:, :, 3]
    clock = clock[:, 4:-5]
    groups = groups_of(clock, sm)
    group = groups[len(groups) // 2]
    shown = clock[group]
    start = shown[:, 8, 0].max()
    first = [int((of[:, 0] <= start).sum()) - 1 for of in shown]
    shown = torch.stack([of[n : n + 5] for of, n in zip(shown, first, strict=True)])
    return {
        "call": call,
        "cycles": mean_parts(clock[:, None]),
        "stamps": (shown - shown.min()).tolist(),
        "softmax_at_once": mean_shares(clock[group] for group in groups if len(group) == len(groups[0])),
    }
