"""What chapter 9 shows of a GPU: its kernel's steps. The kernel beside others is `bench sweep`'s provider "hopper"."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from fa_tutorial.bench.cases import GRIDS, Case
from fa_tutorial.bench.measure import measure
from fa_tutorial.bench.peers import HOPPER_STEPS
from fa_tutorial.bench.sweep import Measurement


def ablation_cases() -> Iterator[Measurement]:
    """Each step's forward at the twelve points."""
    for shape in GRIDS["points"].shapes:
        for provider in HOPPER_STEPS:
            case = Case(provider, "fwd", "fp16", shape)
            yield case.about(), functools.partial(measure, case)
