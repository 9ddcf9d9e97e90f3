"""Chapter 9: what chapter 8's forward waits for in a block.

Takes what `ladder` takes, without a mask. The kernel is steps.LAST's, with a clock. Its loads and their waits are
Triton's, so two of the stamps are put into the PTX.
"""

import contextlib
import functools
import re
import tempfile
from collections.abc import Callable, Iterator
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

triton = hardware.require_triton("Chapter 9's measurements")

# When a program is in a block: it has asked for the next k and v, k is there, p v of the block before is issued, the
# scores are there.
STAMPS = ("asked", "k", "p v", "stop")
# One thread reads the clock and stores it, without a detour over a layout in which tl.store would store.
CLOCK = '''
@triton.jit
def stamp(stamps_ptr, block, n: tl.constexpr, after):
    """The SM's clock as block's n-th stamp, once `after`, [BLOCK_M], has been computed."""
    first = (tl.arange(0, after.shape[0]) == 0).to(tl.int32)
    place = stamps_ptr.to(tl.int64) + (block * 4 + n) * 8
    tl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .u64 t; setp.ne.s32 p, $2, 0; @p mov.u64 t, %clock64; @p st.global.u64 [$3], t; "
        "mov.u32 $0, 0; } // $1", "=r,f,r,l", [after, first, place], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def attend('''
STAMP = "    if STAMPED and not MASK:\n        stamp(stamps_ptr, start_n // BLOCK_N{}, {}, {})\n"
EDITS = (
    ("\n@triton.jit\ndef attend(", CLOCK, 1),
    ("scale_log2,\n           MASK", "scale_log2, stamps_ptr,\n           STAMPED: tl.constexpr, MASK", 1),
    ("    if MASK:\n        offs_n", STAMP.format("", 3, "m") + "    if MASK:\n        offs_n", 1),
    ("    acc = dot(p", STAMP.format(" + 1", 2, "l") + "    acc = dot(p", 1),
    ("lse_ptr, H_q", "lse_ptr, stamps_ptr, H_q", 1),
    ("BLOCK_D: tl.constexpr):\n    row_blocks",
     "BLOCK_D: tl.constexpr, STAMPED: tl.constexpr):\n"
     "    stamps_ptr += tl.program_id(0).to(tl.int64) * (S_k // BLOCK_N + 1) * 4\n    row_blocks", 1),
    ("S_k, D, scale_log2,\n                           ", "S_k, D, scale_log2, stamps_ptr, STAMPED,\n    ", 2),
)  # fmt: skip


# In PTX: the loop, its wait for k, and the stamp behind it, which has the predicate and the place.
LOOP, ASM, END = "$L__BB0_2:", "// begin inline asm", "// end inline asm"
STORED = re.compile(r"setp\.ne\.s32 p, (%r\d+), 0; @p mov\.u64 t, %clock64; @p st\.global\.u64 \[(%rd\d+)\]")


def with_its_wait(ptx: str) -> str:
    """The PTX with the clock before and behind the wait for k, as the first two of STAMPS."""
    wait = ptx.index(ASM, ptx.index(LOOP))
    behind = ptx.index(END, ptx.index("waitLoop;", wait)) + len(END)
    stored = STORED.search(ptx, behind)
    store = "@p st.global.u64 [{}+{}], %{};".format
    predicate, place = stored.groups()
    stamps = f"{store(place, -24, 'asked')} {store(place, -16, 'there')}"
    first = ptx.rindex("{", 0, stored.start())
    head = ptx.index("{\n", ptx.index(".entry")) + 2
    clock = "\n\tmov.u64 \t%{}, %clock64;\n\t".format
    return "".join((
        ptx[:head], "\t.reg .b64 \t%asked, %there;\n", ptx[head:wait], clock("asked"), ptx[wait:behind],
        clock("there"), ptx[behind:first], f"{{ .reg .pred p; setp.ne.s32 p, {predicate}, 0; {stamps} }}\n\t",
        ptx[first:],
    ))  # fmt: skip


@functools.cache
def kernel():
    text = edited(steps.file_of(steps.LAST).read_text(encoding="utf-8"), *EDITS)
    file = Path(tempfile.mkdtemp(), "clocked.py")
    file.write_text(text, encoding="utf-8")
    return defined(text, {"__name__": f"{steps.__name__}.clocked"}, str(file))["flash_forward_kernel"]


@contextlib.contextmanager
def ptx_changed(change: Callable[[str], str]) -> Iterator[None]:
    """Within, what is compiled is compiled anew, from its PTX so changed."""
    from triton import knobs
    from triton.backends.nvidia.compiler import CUDABackend

    make_ptx, always = CUDABackend.make_ptx, knobs.compilation.always_compile
    CUDABackend.make_ptx = lambda *arguments: change(make_ptx(*arguments))
    knobs.compilation.always_compile = True
    try:
        yield
    finally:
        CUDABackend.make_ptx, knobs.compilation.always_compile = make_ptx, always


def flash_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, stamps: torch.Tensor) -> torch.Tensor:
    """o. stamps: (programs, blocks + 1, 4) int64. Its first call is compiled within ptx_changed(with_its_wait)."""
    B, H, S, D = q.shape
    tile = steps.LARGER[D]
    o = torch.empty_like(q)
    lse = torch.empty((B, H, S), dtype=torch.float32, device=q.device)
    rows = tile.block_m, tile.block_n, tile.block_n, tile.block_m
    tensors = [descriptor_template(x, n)(x) for x, n in zip((q, k, v, o), rows, strict=True)]
    kernel()[(triton.cdiv(S, tile.block_m) * B * H,)](
        *tensors, lse, stamps, H, H, 1, S, S, D, D**-0.5, IS_CAUSAL=False, BLOCK_D=padded_d(D), STAMPED=True,
        **tile.launch(),
    )  # fmt: skip
    return o


def clocked_cases() -> Iterator[Measurement]:
    """Chapter 8's programs, D = 128, full, S = 4,096, by the SM's clock."""
    shape = at_4096(128, False)
    yield about(9, "clocked", "chapter 8's", **vars(shape)), partial(_clocked_row, shape)


def _clocked_row(shape: Shape) -> dict[str, Any]:
    """SM cycles of a call; the mean cycles from each of STAMPS to the next, in the middle of the loops. A block has
    BLOCK_M x BLOCK_N scores, as many as 64 x 128 in steps.LARGER's tile."""
    q, k, v = inputs(shape)
    tile = steps.LARGER[shape.D]
    programs = shape.B * shape.H_q * shape.S_q // tile.block_m
    stamps = torch.zeros(programs, shape.S_k // tile.block_n + 1, len(STAMPS), dtype=torch.int64, device="cuda")
    call = partial(flash_forward, q, k, v, stamps=stamps)
    with ptx_changed(with_its_wait):
        kernel.cache_clear()  # what was compiled for another shape may not fit
        call()
    cycles = cycles_in_turns({"": call}, rounds=1)[""]
    for _ in range(2):
        call()  # k and v of few heads are in L2 again, which cycles_in_turns flushes
    clock = stamps.cpu()[:, 4:-5]
    asked, there, p_v, stop = clock.double().unbind(-1)
    parts = {
        "p v to asked": asked - p_v, "asked to k": there - asked, "k to stop": stop - there,
        "away": p_v.roll(-1, 1)[:, :-1] - stop[:, :-1],
    }  # fmt: skip
    return {"call": cycles, "cycles": {name: round(of.mean().item()) for name, of in parts.items()}}
