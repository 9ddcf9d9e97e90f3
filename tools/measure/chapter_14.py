"""Chapter 14: FP8 attention beside chapter 9's fp16, cuDNN's and a plain FP8 matmul; its errors; and sums of the tensor
cores."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from fa_tutorial import flash_attention_fp8, fp8, hopper, ledger, reference
from fa_tutorial.bench import peers
from fa_tutorial.bench.cases import Shape, about, literature
from fa_tutorial.bench.chapter_14 import (
    CALLS,
    GRAPH,
    KINDS,
    LENGTHS,
    ONES,
    PROBES,
    SHORT_LENGTHS,
    SPEED_LENGTHS,
    SPEEDS,
    WAYS,
    data,
    error_by_row,
    error_of,
    factors,
    probe,
    sum_of_ones,
)  # fmt: skip
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import graph_of, randn, timed_in_turns
from fa_tutorial.decode import FP8
from fa_tutorial.fp8 import forward
from fa_tutorial.hopper.forward import HopperConfig
from measure.chapter_8 import settled
from measure.fp8_sums import sums
from measure.turns import by_shape


def speed_cases() -> Iterator[Measurement]:
    """All of SPEEDS, in turns: fp8 is the kernel alone, the others of it with what quantises; FLOPs as attention's."""
    return by_shape(14, "speed", _speeds_in_turns, literature(SPEED_LENGTHS), SPEEDS)


def _speeds_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    q, k, v = (randn(shape.B, shape.H_q, shape.S_q, shape.D) for _ in range(3))
    scale = shape.D**-0.5
    flops = ledger.attention_flops(shape.B, shape.H_q, shape.S_q, shape.S_k, shape.D, shape.is_causal)
    quantised = fp8.quantised(q, k, v, scale, False)
    calls = {
        "fp8": partial(forward.flash_forward, *quantised, shape.D, q.dtype, shape.is_causal),
        "fp8 and quantiser": partial(flash_attention_fp8, q, k, v, is_causal=shape.is_causal, rotate=False),
        "fp8, rotation and quantiser": partial(flash_attention_fp8, q, k, v, is_causal=shape.is_causal),
        "hopper": partial(hopper.flash_forward, q, k, v, shape.is_causal, scale),
        "sdpa_cudnn": partial(peers.provider("sdpa_cudnn"), q, k, v, shape.is_causal),
        "matmul, chain": matmul_of(flops, True),
        "matmul, blocks": matmul_of(flops, False),
    }
    for call in calls.values():
        call()
    return timed_in_turns(calls, flops=flops, rounds=6)


def graph_cases() -> Iterator[Measurement]:
    """The whole call beside chapter 9's, D = 128, lengths at which Python may hold up the GPU: each called from Python,
    and replayed from a CUDA graph, all in turns."""
    names = [name + where for name, where in itertools.product(CALLS, ("", GRAPH))]
    shapes = [shape for shape in literature(SHORT_LENGTHS) if shape.D == 128]
    return by_shape(14, "whole call", _graphs_in_turns, shapes, names)


def _graphs_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    q, k, v = (randn(shape.B, shape.H_q, shape.S_q, shape.D) for _ in range(3))
    eight = partial(flash_attention_fp8, q, k, v, is_causal=shape.is_causal)
    calls = {
        "hopper": partial(hopper.flash_forward, q, k, v, shape.is_causal, shape.D**-0.5),
        "fp8 and quantiser": partial(eight, rotate=False),
        "fp8, rotation and quantiser": eight,
    }
    graphs = {name + GRAPH: graph_of(call) for name, call in calls.items()}
    return timed_in_turns(calls | {name: graph.replay for name, graph in graphs.items()}, rounds=6)


def matmul_of(flops: int, fast: bool) -> Callable[[], torch.Tensor]:
    """torch._scaled_mm with as many FLOPs, 8,192 x 8,192 x K in e4m3; fast: one chain of sums, else blocks of 128."""
    K = flops // (2 * 8192 * 8192)
    a, b = (torch.randn(8192, K, device="cuda").to(FP8) for _ in range(2))
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=fast)


TWO_CONSUMERS = HopperConfig(2, fp8.BLOCK, 2, 240)  # chapter 9's of D = 128


def clock_cases() -> Iterator[Measurement]:
    """The clock and the rate at which both formats' kernels settle, full, S = 16,384; and FP8 with as many consumers as
    fp16 has at D = 128."""
    for D, name in ((64, "hopper"), (64, "fp8"), (128, "hopper"), (128, "fp8"), (128, "fp8, 2 consumers")):
        shape = Shape(1, 2048 // D, 2048 // D, 16_384, 16_384, D, False)
        yield about(14, "clock", name, **vars(shape)), partial(_clock_row, shape, name)


def _clock_row(shape: Shape, name: str) -> dict[str, Any]:
    q, k, v = (randn(shape.B, shape.H_q, shape.S_q, shape.D) for _ in range(3))
    scale = shape.D**-0.5
    if name == "hopper":
        call = partial(hopper.flash_forward, q, k, v, False, scale)
    else:
        config = TWO_CONSUMERS if name == "fp8, 2 consumers" else None
        quantised = fp8.quantised(q, k, v, scale, False)
        call = partial(forward.flash_forward, *quantised, shape.D, q.dtype, False, config=config)
    return settled(call, ledger.attention_flops(shape.B, shape.H_q, shape.S_q, shape.S_k, shape.D, False))


def error_cases() -> Iterator[Measurement]:
    """Errors of o against float64, of all rows and row by row, on each of KINDS: chapter 9's fp16, and FP8."""
    for D, kind, way in itertools.product((64, 128), KINDS, WAYS):
        yield about(14, "error", way, D=D, S=KINDS[kind].S, data=kind), partial(_error_row, D, kind, way)


def _error_row(D: int, kind: str, way: str) -> dict[str, Any]:
    q, k, v = (x.cuda() for x in data(kind, 2, KINDS[kind].S, D))
    truth = torch.cat([reference.attention(*(x[:, h : h + 1] for x in (q, k, v)))[0] for h in range(q.shape[1])], dim=1)
    if way == "fp16":
        o = hopper.flash_forward(q, k, v, False, D**-0.5)[0]
    else:
        o = flash_attention_fp8(q, k, v, rotate=way == "fp8, rotated")
    return error_of(o, truth) | error_by_row(o, truth)


def sum_cases() -> Iterator[Measurement]:
    """Errors of sums of K products, of their own root mean square, by one chain and by blocks."""
    for K, kind, way in itertools.product(
        LENGTHS, ("uniform", "normal", "p v, mean 0", "p v, mean 1"), ("chain", "blocks")
    ):
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
    return itertools.chain(error_cases(), *sums_of, speed_cases(), graph_cases(), clock_cases())
