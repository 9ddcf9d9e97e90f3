"""What chapter 9 measures on a GPU: its plain forward, with and without overlap, how busy each kernel keeps the tensor cores, and at which clock."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

from fa_tutorial import hardware, hopper
from fa_tutorial.bench import chapter_8, peers
from fa_tutorial.bench.cases import Case, Shape, about, literature
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import randn, timed_in_turns

hardware.require_triton("Chapter 9's measurements")
from fa_tutorial.hopper import ladder  # noqa: E402

LOOPS = {"in turns": ladder.attend, "overlapped": ladder.attend_overlapped, "held": ladder.attend_held}
LADDER = {  # provider -> what flash_forward takes
    f"{loop}, {stages} stages": {"attend": attend, "stages": stages} for (loop, attend), stages in itertools.product(LOOPS.items(), (2, 3))
}


def ladder_cases() -> Iterator[Measurement]:
    """The plain forward with each loop, and the chapter's forward, in turns: full, S = 4,096 and 16,384."""
    for shape in literature((4096, 16_384)):
        for name in (*LADDER, "hopper") if not shape.is_causal else ():
            yield about(9, "ladder", name, **vars(shape)), lambda shape=shape, name=name: _in_turns(shape)[name]


@functools.cache
def _in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    q, k, v = chapter_8.inputs(shape)
    calls = {name: partial(ladder.flash_forward, q, k, v, shape.D**-0.5, **options) for name, options in LADDER.items()}
    calls["hopper"] = partial(hopper.flash_forward, q, k, v, False, shape.D**-0.5)
    return timed_in_turns(calls, flops=Case("hopper", "fwd", "fp16", shape).flops())


def clock_cases() -> Iterator[Measurement]:
    """The clock, power and rate at which a plain matmul and two forwards settle, as chapter_8.clock_cases."""
    for name in ("matmul", "hopper", "sdpa_cudnn"):
        yield about(9, "settled", name), partial(_clock_row, name)


def _clock_row(name: str) -> dict[str, Any]:
    if name == "matmul":
        a, b = randn(8192, 8192), randn(8192, 8192)
        return chapter_8.settled(lambda: a @ b, 2 * 8192**3)
    q, k, v = chapter_8.inputs(chapter_8.POINT)
    attend = peers.provider(name)
    return chapter_8.settled(lambda: attend(q, k, v, False), Case(name, "fwd", "fp16", chapter_8.POINT).flops())


def kernels_cases() -> Iterator[Measurement]:
    """What is stored of this module."""
    return itertools.chain(ladder_cases(), clock_cases())


PROFILED = {  # as chapter_8.PROFILED
    ("tuned", "fwd"): "forward_kernel",
    ("hopper", "fwd"): "forward_kernel",
    ("sdpa_flash", "fwd"): "flash_fwd_kernel",
    ("sdpa_cudnn", "fwd"): "cudnn",
    ("hopper", "bwd"): "backward_kernel",
    ("sdpa_cudnn", "bwd"): "bprop",
}


def busy_cases() -> Iterator[Measurement]:
    """chapter_8's counters of each kernel of PROFILED, D = 64 and 128, full, S = 4,096, where chapter 8 has none: not stored yet.

    Needs Nsight Compute (ncu).
    """
    for D, ((provider, mode), kernel) in itertools.product((64, 128), PROFILED.items()):
        if D == chapter_8.POINT.D and (provider, mode) in chapter_8.PROFILED:
            continue
        shape = Shape(4, 2048 // D, 2048 // D, 4096, 4096, D, False)
        yield about(9, "busy", provider, **vars(shape)) | {"mode": mode}, partial(chapter_8.counter_row, provider, mode, kernel, shape)
