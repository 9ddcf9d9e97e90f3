"""Time a call on the GPU: events, warm-up, median; memory: the peak above what was there before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fa_tutorial import hardware


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: median, and the 20 % and 80 % quantiles."""

    ms: float
    ms_20: float
    ms_80: float


def require_gpu() -> None:
    """Raise RuntimeError where there is nothing whose speed could be measured."""
    if hardware.device().type != "cuda":
        raise RuntimeError(
            "measuring needs a CUDA GPU and TRITON_INTERPRET unset: the interpreter's times say nothing about a kernel. "
            "Stored results: fa_tutorial.bench.results.load()"
        )


def time_call(call: Callable[[], Any], warmup_ms: int = 25, repeat_ms: int = 100) -> Timing:
    """Time `call` by CUDA events (triton.testing.do_bench, L2 flushed before each call), after a warm-up."""
    require_gpu()
    import triton.testing

    ms, low, high = triton.testing.do_bench(call, warmup=warmup_ms, rep=repeat_ms, quantiles=[0.5, 0.2, 0.8])
    return Timing(ms, low, high)


def peak_bytes(call: Callable[[], Any]) -> int:
    """Bytes of GPU memory that one call holds at its peak, beyond what was allocated before it.

    A first call goes unmeasured: libraries keep a workspace from it.
    """
    require_gpu()
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
