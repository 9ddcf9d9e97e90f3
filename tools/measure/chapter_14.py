"""Chapter 14: FP8 attention beside chapter 9's fp16 and a plain FP8 matmul; its errors; and sums of the tensor
cores."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from fa_tutorial import flash_attention_fp8, fp8, hopper, reference
from fa_tutorial.bench.cases import Shape, about, literature
from fa_tutorial.bench.chapter_8 import flops_of, inputs
from fa_tutorial.bench.chapter_14 import (
    KINDS,
    LENGTHS,
    ONES,
    PROBES,
    S_SPEED,
    SPEEDS,
    data,
    error_of,
    factors,
    median_off,
    probe,
    sum_of_ones,
)  # fmt: skip
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import timed_in_turns
from fa_tutorial.decode import FP8
from fa_tutorial.fp8 import forward
from measure import fp8_parts
from measure.clocks import settled_in_turns
from measure.fp8_sums import sums
from measure.turns import by_shape


def speed_cases() -> Iterator[Measurement]:
    """All of SPEEDS, in turns: fp8 is the kernel alone, the others of it with what quantises; FLOPs as attention's."""
    shapes = [shape for shape in literature((S_SPEED,)) if shape.D == 128]
    return by_shape(14, "speed", _speeds_in_turns, shapes, SPEEDS)


def _speeds_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    q, k, v = inputs(shape)
    scale, flops = shape.D**-0.5, flops_of(shape)
    quantised = fp8.quantised(q, k, v, scale, False)
    calls = {
        "fp8": partial(forward.flash_forward, *quantised, shape.D, q.dtype, shape.is_causal),
        "fp8 and quantiser": partial(flash_attention_fp8, q, k, v, is_causal=shape.is_causal, rotate=False),
        "fp8, rotation and quantiser": partial(flash_attention_fp8, q, k, v, is_causal=shape.is_causal),
        "hopper": partial(hopper.flash_forward, q, k, v, shape.is_causal, scale),
        "matmul, blocks": matmul_of(flops),
    }
    for call in calls.values():
        call()
    return timed_in_turns(calls, flops=flops, rounds=6)


def part_cases() -> Iterator[Measurement]:
    """Cycles of the kernel whole, without each of fp8_parts.PARTS, and of chapter 9's in fp16, in turns."""
    shape = next(shape for shape in literature((S_SPEED,)) if shape.D == 128 and not shape.is_causal)
    return by_shape(14, "part", _parts_in_turns, [shape], ("fp16", *fp8_parts.PARTS))


def _parts_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    q, k, v = inputs(shape)
    scale = shape.D**-0.5
    arguments = *fp8.quantised(q, k, v, scale, False), shape.D, q.dtype, False
    calls = {"fp16": partial(hopper.flash_forward, q, k, v, False, scale)}
    calls |= {part: partial(fp8_parts.flash_forward, part, *arguments) for part in fp8_parts.PARTS}
    for call in calls.values():
        call()
    return settled_in_turns(calls, flops_of(shape))


def matmul_of(flops: int) -> Callable[[], torch.Tensor]:
    """torch._scaled_mm with as many FLOPs, 8,192 x 8,192 x K in e4m3, its sums in blocks of 128."""
    K = flops // (2 * 8192 * 8192)
    a, b = (torch.randn(8192, K, device="cuda").to(FP8) for _ in range(2))
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=False)


ERRORS = (  # D, data, whether q and k are rotated
    (128, "N(0, 1)", False),
    (128, "with outliers", False),
    (128, "with outliers", True),
    (64, "16,384 keys", False),
    (64, "16,384 keys, v + 1", False),
)


def error_cases() -> Iterator[Measurement]:
    """Errors of the FP8 kernel's o against float64, of all rows, and the median row's."""
    for D, kind, rotate in ERRORS:
        provider = "fp8, rotated" if rotate else "fp8"
        yield about(14, "error", provider, D=D, S=KINDS[kind].S, data=kind), partial(_error_row, D, kind, rotate)


def _error_row(D: int, kind: str, rotate: bool) -> dict[str, Any]:
    q, k, v = (x.cuda() for x in data(kind, 2, KINDS[kind].S, D))
    truth = torch.cat([reference.attention(*(x[:, h : h + 1] for x in (q, k, v)))[0] for h in range(q.shape[1])], dim=1)
    o = flash_attention_fp8(q, k, v, rotate=rotate)
    return error_of(o, truth) | {"median": float(f"{median_off(o, truth) / 100:.3g}")}


def sum_cases() -> Iterator[Measurement]:
    """Errors of sums of K products, of their own root mean square, by one chain and by blocks."""
    for K, kind, way in itertools.product(LENGTHS, ("uniform", "p v, mean 0", "p v, mean 1"), ("chain", "blocks")):
        yield about(14, "sums", way, "e4m3", K=K, data=kind), partial(_sums_row, K, kind, way)


def _sums_row(K: int, kind: str, way: str) -> dict[str, Any]:
    a, b = (x.float().to("cuda", FP8) for x in factors(kind, 64, K))
    return error_of(sums(a, b, way == "blocks"), a.double() @ b.double().T)


def ones_cases() -> Iterator[Measurement]:
    """torch._scaled_mm of ones, with its two ways to add up."""
    for K, way in itertools.product(ONES, ("fast", "accurate")):
        yield about(14, "ones", way, "e4m3", K=K), lambda K=K, way=way: {"sum": sum_of_ones(K, way == "fast")}


def probe_cases() -> Iterator[Measurement]:
    """Products that show how an instruction cuts them."""
    for name in PROBES:
        yield about(14, "probe", "chain", "e4m3", data=name), partial(_probe_row, name)


def _probe_row(name: str) -> dict[str, Any]:
    return {"sum": sums(*(x.float().to("cuda", FP8) for x in probe(name)), False)[0, 0].item()}


def kernels_cases() -> Iterator[Measurement]:
    """Everything of this chapter."""
    sums_of = (sum_cases(), ones_cases(), probe_cases())
    return itertools.chain(error_cases(), *sums_of, speed_cases(), part_cases())
