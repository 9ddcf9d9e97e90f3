"""What chapter 9 shows of a GPU: its kernel's steps, and its try at dk and dv. The kernel beside others is `bench sweep`'s provider "hopper"."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import torch

from fa_tutorial import ledger, tuned
from fa_tutorial.attention import best
from fa_tutorial.bench.cases import GRIDS, Case, Shape
from fa_tutorial.bench.chapter_8 import inputs
from fa_tutorial.bench.measure import measure
from fa_tutorial.bench.peers import HOPPER_STEPS
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import randn, timed

DKDV_MATMULS = 4  # s, dp, dk and dv; dq_kernel computes s and dp again, for its dq


def ablation_cases() -> Iterator[Measurement]:
    """Each step's forward at the twelve points."""
    for shape in GRIDS["points"].shapes:
        for provider in HOPPER_STEPS:
            case = Case(provider, "fwd", "fp16", shape)
            yield case.about(), functools.partial(measure, case)


def dkdv_cases() -> Iterator[Measurement]:
    """The kernel for dk and dv by itself, full attention: chapter 8's, and this chapter's try with each of its tiles (an index of its CONFIGS).

    None on a GPU that is not of compute capability 9.0.
    """
    if best() != "hopper":
        return
    from fa_tutorial.bench import hopper_dkdv  # not above: only Hopper needs Gluon, an experimental part of Triton

    for shape in GRIDS["points"].shapes:
        if not shape.is_causal:
            for tile in (None, *range(len(hopper_dkdv.CONFIGS[shape.D]))):
                provider = "tuned" if tile is None else "hopper"
                about = {"chapter": 9, "kernel": "dkdv", "provider": provider, "tile": tile, "dtype": "fp16", **dataclasses.asdict(shape)}
                yield about, functools.partial(_dkdv_row, shape, tile)


def dkdv_inputs(shape: Shape) -> tuple[list[torch.Tensor], tuned.Backward]:
    """[q, k, v, do], (B, H, S, D) fp16, normally distributed, and the full attention's backward on them as far as delta and lse2."""
    q, k, v = inputs(shape)
    do = randn(*q.shape)
    o, lse = tuned.flash_forward(q, k, v)
    case = tuned.Backward(q, k, v, o, do, lse, None, False, shape.D**-0.5, tuned.STEPS[tuned.BEST], tuned.BEST, tma=True)
    return [q, k, v, do], case


def _dkdv_row(shape: Shape, tile: int | None) -> dict[str, Any]:
    from fa_tutorial.bench import hopper_dkdv

    _, case = dkdv_inputs(shape)
    flops = ledger.backward_flops(shape.B, shape.H_q, shape.S_q, shape.S_k, shape.D, matmuls=DKDV_MATMULS)
    if tile is None:
        return timed(lambda: case.dk_and_dv(None), flops=flops)
    config = hopper_dkdv.CONFIGS[shape.D][tile]
    return timed(lambda: hopper_dkdv.dk_and_dv(case, config), flops=flops) | dataclasses.asdict(config)
