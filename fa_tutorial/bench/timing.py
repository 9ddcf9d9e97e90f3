"""Time a call on the GPU: events, warm-up, median; memory: the peak above what was there before; and the GPU's two
roofs."""

import functools
import gc
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from fa_tutorial import hardware


class Timing(NamedTuple):
    """Milliseconds of one call: median, and the 20 % and 80 % quantiles."""

    ms: float
    ms_20: float
    ms_80: float


def require_gpu() -> None:
    """Raise RuntimeError where there is nothing whose speed could be measured."""
    if hardware.device().type != "cuda":
        why = "the interpreter's times say nothing about a kernel. Stored results: python -m fa_tutorial bench table"
        raise RuntimeError(f"measuring needs a CUDA GPU and TRITON_INTERPRET unset: {why}")


def time_call(call: Callable[[], Any]) -> Timing:
    """Time `call` by CUDA events (triton.testing.do_bench, L2 flushed before each), after a warm-up. The warm-up is as
    long as the measurement, because right after a pause an H200 ran the same kernel up to a tenth faster than a moment
    later."""
    require_gpu()
    from triton.testing import do_bench

    return Timing(*do_bench(call, warmup=100, rep=100, quantiles=[0.5, 0.2, 0.8]))


def peak_bytes(call: Callable[[], Any]) -> int:
    """Bytes of GPU memory that one call holds at its peak, beyond what was allocated before it. A first call goes
    unmeasured: libraries keep a workspace from it. Of three more the largest counts: autograd's thread may still free
    one call's buffers when the next begins, which then seems to hold that much less."""
    require_gpu()
    peaks = []
    for _ in range(4):
        torch.cuda.synchronize()
        gc.collect()  # what is garbage already would be freed in the middle of the call
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    return max(peaks[1:])


def first_call_s(call: Callable[[], Any]) -> float:
    """Seconds until the results of a first call stand: what it compiles and tunes, and one run."""
    require_gpu()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def randn(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(shape, device=hardware.device(), dtype=dtype)


def timed(call: Callable[[], Any], *, bytes_moved: int | None = None, flops: int | None = None) -> dict[str, Any]:
    """A row's numbers: ms and quantiles, with GB/s or TFLOP/s where bytes or FLOPs are given."""
    timing = time_call(call)
    row = {name: round(value, 6) for name, value in timing._asdict().items()}
    if bytes_moved is not None:
        row["gb_s"] = round(bytes_moved / timing.ms / 1e6, 1)
    if flops is not None:
        row["tflops"] = round(flops / timing.ms / 1e9, 2)
    return row


def rounds_of(names: Iterable[Any], rounds: int) -> Iterator[list[Any]]:
    """`names` in another order each round: what runs right after a kernel inherits the clock that the kernel left."""
    names, draw = list(names), random.Random(0)
    for _ in range(rounds):
        yield draw.sample(names, len(names))


def timed_in_turns(calls: dict[Any, Callable], *, flops: int | None = None, rounds: int = 10) -> dict[Any, dict]:
    """The numbers of `timed` for each of `calls`, measured a little at a time in turns, so that a drift of the clocks
    hits all of them alike."""
    require_gpu()
    import triton.testing

    times: dict[Any, list[float]] = {name: [] for name in calls}
    for order in rounds_of(calls, rounds):
        for name in order:
            times[name] += triton.testing.do_bench(calls[name], warmup=50, rep=50, return_mode="all")
    rows = {}
    for name, found in times.items():
        low, ms, high = np.quantile(found, [0.2, 0.5, 0.8]).tolist()
        rows[name] = {"ms": round(ms, 6), "ms_20": round(low, 6), "ms_80": round(high, 6)}
        if flops is not None:
            rows[name]["tflops"] = round(flops / ms / 1e9, 2)
    return rows


def graph_of(call: Callable[[], Any], stream: torch.cuda.Stream | None = None) -> torch.cuda.CUDAGraph:
    """Record the launches of one call. replay() sends them again, on the same memory, without Python. Three calls
    before it compile and tune, on a stream of their own, as CUDA requires. stream: that of the forward whose backward
    is called, for there autograd runs it. What the call reads must outlive the graph."""
    stream = stream or torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph


def measure_ceilings() -> dict[str, float]:
    """The two roofs of this GPU: a large copy (bytes read plus written), large matmuls on random data."""
    source = randn(2**30)
    target = torch.empty_like(source)
    ceilings = {"copy_gb_s": timed(functools.partial(target.copy_, source), bytes_moved=2 * source.nbytes)["gb_s"]}
    n = 8192
    for dtype, name in ((torch.float16, "fp16"), (torch.bfloat16, "bf16"), (torch.float32, "fp32_ieee")):
        a, b = randn(n, n, dtype=dtype), randn(n, n, dtype=dtype)
        ceilings[f"matmul_{name}_tflops"] = timed(lambda a=a, b=b: a @ b, flops=2 * n**3)["tflops"]
    return ceilings
