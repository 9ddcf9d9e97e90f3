"""Measure one case of attention on the GPU: a row of the results."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fa_tutorial.bench import peers
from fa_tutorial.bench.cases import DTYPES, Case
from fa_tutorial.bench.timing import first_call_s, graph_of, peak_bytes, randn, timed, timed_in_turns
from fa_tutorial.hardware import require_triton
from fa_tutorial.tiles import MAX_D

triton = require_triton("Measuring (fa_tutorial.bench.measure)")
from triton.runtime.errors import OutOfResources  # noqa: E402

CANNOT = (torch.cuda.OutOfMemoryError, OutOfResources, peers.Unsupported)
NUMBERS = ("ms", "ms_20", "ms_80", "tflops", "peak_bytes", "first_call_s")


def check(case: Case) -> Case:
    """Return `case`; ValueError for a provider that is not known, or D beyond the course's kernels."""
    peers.provider(case.provider)
    if case.shape.D > MAX_D:
        raise ValueError(f"D must be from 1 to {MAX_D}, got {case.shape.D}")
    return case


def measure(case: Case) -> dict[str, Any]:
    """A row's numbers: ms, ms_20, ms_80, tflops, peak_bytes, and first_call_s, the seconds of the first call in this
    process, with what had to be compiled and tuned; of a backward without the forward.

    Where memory does not suffice, or the provider has no kernel for the case, all of them are None, and `reason` says
    why. Other exceptions are raised.
    """
    try:
        call = prepared(case)
        first = first_numbers(call)
        return timed(call, flops=case.flops()) | first
    except CANNOT as error:
        return unmeasured(error)


def measure_in_turns(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """`measure`'s numbers of each of `cases`, one point and mode of several providers; the times are taken in turns,
    so that a drift of the clocks hits all of them alike, and of CUDA graphs, which no host holds up."""
    calls, replays, rows = {}, {}, []  # calls: a graph reads their inputs
    for case in cases:
        stream = torch.cuda.Stream()
        try:
            with torch.cuda.stream(stream):
                call = prepared(case)
                rows.append(first_numbers(call))
        except CANNOT as error:
            rows.append(unmeasured(error))
        else:
            calls[case], replays[case] = call, graph_of(call, stream).replay
    times = timed_in_turns(replays, flops=cases[0].flops(), rounds=6)
    return [times.get(case, {}) | row for case, row in zip(cases, rows, strict=True)]


def unmeasured(error: Exception) -> dict[str, Any]:
    """The numbers of a case that this GPU or provider cannot run: None, and the reason."""
    reasons = {torch.cuda.OutOfMemoryError: "out of memory", OutOfResources: "not enough shared memory"}
    return dict.fromkeys(NUMBERS) | {"reason": reasons.get(type(error), str(error))}


def first_numbers(call: Callable[[], Any]) -> dict[str, Any]:
    first = first_call_s(call)
    return {"peak_bytes": peak_bytes(call), "first_call_s": round(first, 6)}


def prepared(case: Case) -> Callable[[], Any]:
    """What is timed of a case, on random inputs."""
    attention = peers.provider(check(case).provider)
    shape, dtype = case.shape, DTYPES[case.dtype]
    q, do = (randn(shape.B, shape.H_q, shape.S_q, shape.D, dtype=dtype) for _ in range(2))
    k, v = (randn(shape.B, shape.H_k, shape.S_k, shape.D, dtype=dtype) for _ in range(2))
    if case.mode != "fwd":
        q, k, v = (x.requires_grad_() for x in (q, k, v))
    return call_of(case.mode, functools.partial(attention, q, k, v, shape.is_causal), (q, k, v), do)


def call_of(mode: str, attend: Callable, inputs: tuple[torch.Tensor, ...], do: torch.Tensor) -> Callable[[], Any]:
    """What is timed: the forward, the backward by itself on one graph that stays, or both."""
    if mode == "fwd":
        return attend
    if mode == "fwd_bwd":
        return lambda: torch.autograd.grad(attend(), inputs, do)
    o = attend()
    return lambda: torch.autograd.grad(o, inputs, do, retain_graph=True)
