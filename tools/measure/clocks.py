"""Chapters 8 and 9: cycles as an SM counts them.

Unlike a call's time, their number hardly depends on the clock, which power and heat move all the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fa_tutorial import hardware
from fa_tutorial.bench.timing import require_gpu, rounds_of

triton = hardware.require_triton("Counting cycles (tools/measure)")
import triton.language as tl  # noqa: E402


@triton.jit
def clock_kernel(out_ptr):
    """out: (SMs, 2) int64, each SM's count of cycles and the GPU's nanoseconds. Grid: several programs an SM, so that
    each gets one; 1 warp.
    """
    nothing = tl.zeros((1,), dtype=tl.int32)
    sm = tl.inline_asm_elementwise("mov.u32 $0, %smid; // $1", "=r,r", [nothing], dtype=tl.int32, is_pure=False, pack=1)
    cycles = tl.inline_asm_elementwise(
        "mov.u64 $0, %clock64; // $1", "=l,r", [nothing], dtype=tl.int64, is_pure=False, pack=1
    )
    ns = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer; // $1", "=l,r", [nothing], dtype=tl.int64, is_pure=False, pack=1
    )
    tl.store(out_ptr + 2 * sm, cycles)
    tl.store(out_ptr + 2 * sm + 1, ns)


def read_clocks() -> torch.Tensor:
    """(SMs, 2) int64, on the GPU: cycles and nanoseconds, when the launches before are done."""
    require_gpu()
    multiprocessors = torch.cuda.get_device_properties().multi_processor_count
    counts = torch.zeros((multiprocessors, 2), dtype=torch.int64, device="cuda")
    clock_kernel[(8 * multiprocessors,)](counts, num_warps=1)
    return counts


def mhz_between(before: torch.Tensor, after: torch.Tensor) -> float:
    """The mean clock between two of read_clocks, the median of the SMs."""
    cycles, ns = (after - before).double().unbind(1)
    return (cycles / ns).median().item() * 1e3


def cycles_in_turns(calls: dict[str, Callable[[], Any]], *, rounds: int = 5) -> dict[str, int]:
    """SM cycles of each of `calls`, measured a little at a time in turns: the median of the SMs and of 10 calls a
    round.

    L2 is flushed before each call, and what the two readings take by themselves is subtracted. A call must take longer
    than its launch.
    """
    require_gpu()
    flush = torch.empty(2**28, dtype=torch.int8, device="cuda")  # several times as large as L2
    found: dict[str, list[float]] = {name: [] for name in calls}
    nothing: list[float] = []
    for order in rounds_of(calls, rounds):
        for into, call in [(nothing, lambda: None), *((found[name], calls[name]) for name in order)]:
            call()
            readings = []
            for _ in range(10):
                flush.zero_()
                before = read_clocks()
                call()
                readings.append(read_clocks() - before)
            into += torch.stack(readings)[:, :, 0].double().median(1).values.tolist()

    def median(numbers: list[float]) -> float:
        return torch.tensor(numbers, dtype=torch.float64).median().item()

    return {name: round(median(numbers) - median(nothing)) for name, numbers in found.items()}
