"""Chapters 8 and 9: cycles as an SM counts them.

Unlike a call's time, their number hardly depends on the clock, which power and heat move all the time.
"""

import contextlib
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fa_tutorial.bench.chapter_8 import read_clocks
from fa_tutorial.bench.timing import require_gpu, rounds_of


def cycles_in_turns(calls: dict[str, Callable[[], Any]], *, rounds: int = 5) -> dict[str, int]:
    """SM cycles of each of `calls`, measured a little at a time in turns: the median of 10 calls a round."""
    return {name: round(of[:, 0].median().item()) for name, of in readings_in_turns(calls, rounds).items()}


def settled_in_turns(calls: dict[str, Callable[[], Any]], flops: int, *, rounds: int = 3) -> dict[str, dict[str, Any]]:
    """In turns, each call at the clock at which it settles when it is repeated: SM cycles, MHz, ms and TFLOP/s of the
    same calls, and the power that is drawn while it is repeated, before these. `flops`: of each call."""
    watts: dict[str, list[float]] = {name: [] for name in calls}
    with power_samples() as samples:

        def repeat(name: str) -> None:
            begun = time.perf_counter()
            while time.perf_counter() - begun < SETTLING_S:
                for _ in range(20):
                    calls[name]()
                torch.cuda.synchronize()
            watts[name] += [watt for when, watt in list(samples) if when > begun + SETTLING_S / 2]

        found = readings_in_turns(calls, rounds, calls_a_round=30, before=repeat)
    rows = {}
    for name, of in found.items():
        cycles, ns = of.median(0).values.tolist()
        ((few, low), (many, high)) = (of.quantile(q, 0).tolist() for q in (0.2, 0.8))
        rows[name] = {"cycles": round(cycles), "mhz": round(cycles / ns * 1e3), "tflops": round(flops / ns / 1e3, 2)}
        rows[name] |= {"ms": round(ns / 1e6, 6), "ms_20": round(low / 1e6, 6), "ms_80": round(high / 1e6, 6)}
        rows[name] |= {"cycles_20": round(few), "cycles_80": round(many)}
        if watts[name]:
            rows[name]["watts"] = round(torch.tensor(watts[name]).median().item())
    return rows


WARM_S, MEASURED_S = 0.8, 1.0


def powered_in_turns(calls: dict[str, Callable[[], Any]], flops: int, *, rounds: int = 2) -> dict[str, dict[str, Any]]:
    """In turns, each call again and again, WARM_S until power and clock have settled and then MEASURED_S: SM cycles,
    MHz, ms and TFLOP/s, and mean watts, all of the same calls. `flops`: of each call."""
    require_gpu()
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in calls}
    with power_samples() as samples:
        for call in calls.values():  # until the card is warm, and nvidia-smi has begun
            _repeat(call, 3.0 / len(calls))
        for order in rounds_of(calls, rounds):
            for name in order:
                _repeat(calls[name], WARM_S)
                begun, before = time.perf_counter(), read_clocks()
                n = _repeat(calls[name], MEASURED_S)
                cycles, ns = (read_clocks() - before).double().median(0).values.tolist()
                watts = [watt for when, watt in list(samples) if begun < when < time.perf_counter()]
                found[name].append((cycles / n, ns / n, statistics.fmean(watts)))
    rows = {}
    for name, of in found.items():
        cycles, ns, watts = map(statistics.fmean, zip(*of, strict=True))
        rows[name] = {"cycles": round(cycles), "mhz": round(cycles / ns * 1e3), "tflops": round(flops / ns / 1e3, 2)}
        rows[name] |= {"ms": round(ns / 1e6, 6), "watts": round(watts)}
    return rows


def _repeat(call: Callable[[], Any], seconds: float) -> int:
    """The number of calls in so many seconds, all done; the GPU has the next ones while it works on these."""
    n, begun, done = 0, time.perf_counter(), [torch.cuda.Event() for _ in range(2)]
    while time.perf_counter() - begun < seconds:
        for event in done:
            event.synchronize()
            for _ in range(10):
                call()
            event.record()
            n += 10
    torch.cuda.synchronize()
    return n


SETTLING_S = 0.3
# Behind one, an H200 waited for a slow host's next launch, and two readings took up to 539,000 cycles by themselves;
# behind four or more 7,700.
FLUSHES = 8


@contextlib.contextmanager
def power_samples() -> Iterator[list[tuple[float, float]]]:
    """A list that grows: when nvidia-smi said, by time.perf_counter, that the GPU draws how many watts."""
    samples: list[tuple[float, float]] = []
    query = f"nvidia-smi -i {torch.cuda.current_device()} --query-gpu=power.draw.instant --format=csv,noheader,nounits"

    def read(lines) -> None:
        for line in lines:
            with contextlib.suppress(ValueError):
                samples.append((time.perf_counter(), float(line)))

    with subprocess.Popen([*query.split(), "-lms", "20"], stdout=subprocess.PIPE, text=True) as sampler:
        reader = threading.Thread(target=read, args=(sampler.stdout,), daemon=True)
        reader.start()
        try:
            yield samples
        finally:
            sampler.terminate()
            reader.join(5)


def readings_in_turns(
    calls: dict[str, Callable[[], Any]], rounds: int, *, calls_a_round: int = 10,
    before: Callable[[str], None] | None = None,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """[n, 2] of each of `calls`: SM cycles and nanoseconds of n calls, the median of the SMs, measured in turns.

    L2 is flushed before each call, so often that the GPU is behind the launches, and what the two readings take by
    themselves is subtracted. A call must take longer than its launch. before: called with a name, ahead of its calls of
    a round.
    """
    require_gpu()
    flush = torch.empty(2**28, dtype=torch.int8, device="cuda")  # several times as large as L2
    found: dict[str, list[torch.Tensor]] = {name: [] for name in calls}
    nothing: list[torch.Tensor] = []
    for order in rounds_of(calls, rounds):
        for name, into, call in [(None, nothing, lambda: None), *((name, found[name], calls[name]) for name in order)]:
            call()
            if before is not None and name is not None:
                before(name)
            readings = []
            for _ in range(calls_a_round):
                for _ in range(FLUSHES):
                    flush.zero_()
                start = read_clocks()
                call()
                readings.append(read_clocks() - start)
            into.append(torch.stack(readings).double().median(1).values)
    itself = torch.cat(nothing).median(0).values
    return {name: (torch.cat(of) - itself).cpu() for name, of in found.items()}
