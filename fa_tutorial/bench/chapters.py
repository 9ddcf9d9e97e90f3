"""What the chapters show of a GPU, all but the sweep of attention: the rows of results.json.

    python -m fa_tutorial.bench.chapters results.json

Writes after every row; rows that stand in the file already are kept, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fa_tutorial import hardware, layout, matmul, reference
from fa_tutorial.bench import chapter_8, chapter_9, peers, training
from fa_tutorial.bench.cases import Case, Shape
from fa_tutorial.bench.measure import measure
from fa_tutorial.bench.sweep import Measurement, opened, run
from fa_tutorial.bench.timing import randn, require_gpu, timed, timed_in_turns


def attention_cases() -> Iterator[Measurement]:
    """Chapters 0, 5 and 7: time and peak memory as S grows, of naive attention, PyTorch's flash kernel, and the course's basic ones."""
    for mode in ("fwd", "bwd", "fwd_bwd"):
        for S in (2**power for power in range(9, 18)):
            for provider in ("naive", "sdpa_flash", "basic"):
                case = Case(provider, mode, "fp16", Shape(1, 16, 16, S, S, 64, False))
                yield case.about(), functools.partial(measure, case)


def naive_step_cases() -> Iterator[Measurement]:
    """Chapter 0: the four operations of naive attention, each timed by itself, on the shape of attention_cases."""
    B, H, S, D = 1, 16, 4096, 64
    for step in ("q kᵀ", "divide", "softmax", "p v"):
        about = {"chapter": 0, "kernel": "naive_step", "provider": step, "dtype": "fp16", "B": B, "H": H, "S": S, "D": D}
        yield about, lambda step=step: _naive_step_row(step, B, H, S, D)


def _naive_step_row(step: str, B: int, H: int, S: int, D: int) -> dict[str, Any]:
    q, k, s = randn(B, H, S, D), randn(B, H, S, D), randn(B, H, S, S)
    call = {
        "q kᵀ": lambda: q @ k.transpose(-1, -2),
        "divide": lambda: s / math.sqrt(D),
        "softmax": lambda: torch.softmax(s, dim=-1),
        "p v": lambda: s @ k,
    }[step]
    return timed(call)


def first_kernel_cases() -> Iterator[Measurement]:
    """Chapter 2: add, transpose with several tiles, row softmax; each beside PyTorch. 2**26 elements."""
    n = 2**26
    for dtype, name in ((torch.float32, "fp32"), (torch.float16, "fp16")):
        for provider, add in (("course", layout.add), ("torch", torch.add)):
            about = {"chapter": 2, "kernel": "add", "provider": provider, "dtype": name, "n": n}
            yield about, lambda add=add, dtype=dtype: _add_row(add, n, dtype)
    side = 8192
    for tile in ((1, 1024), (1024, 1), (16, 16), (32, 32), (64, 64), (128, 32), (None, None)):
        provider = "course" if tile[0] else "torch"
        about = {
            "chapter": 2,
            "kernel": "transpose",
            "provider": provider,
            "dtype": "fp32",
            "rows": side,
            "cols": side,
            "block_r": tile[0],
            "block_c": tile[1],
        }
        yield about, lambda tile=tile: _transpose_row(side, *tile)
    for cols in (256, 1024, 4096, 16_384, 65_536):
        for provider, softmax in (("course", layout.softmax), ("torch", _torch_softmax), ("torch, five calls", _five_call_softmax)):
            about = {"chapter": 2, "kernel": "softmax", "provider": provider, "dtype": "fp32", "rows": n // cols, "cols": cols}
            yield about, lambda softmax=softmax, cols=cols: _softmax_row(softmax, n // cols, cols)


def _add_row(add: Callable, n: int, dtype: torch.dtype) -> dict[str, Any]:
    x, y = randn(n, dtype=dtype), randn(n, dtype=dtype)
    return timed(lambda: add(x, y), bytes_moved=3 * x.nbytes)


def _transpose_row(side: int, block_r: int | None, block_c: int | None) -> dict[str, Any]:
    x = randn(side, side, dtype=torch.float32)
    call = (lambda: x.t().contiguous()) if block_r is None else (lambda: layout.transpose_copy(x, block_r, block_c))
    return timed(call, bytes_moved=2 * x.nbytes)


def _torch_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


def _five_call_softmax(x: torch.Tensor) -> torch.Tensor:
    """max, subtract, exp, sum, divide: each a kernel of its own, as eager PyTorch runs them."""
    shifted = x - x.amax(dim=-1, keepdim=True)
    p = torch.exp(shifted)
    return p / p.sum(dim=-1, keepdim=True)


def _softmax_row(softmax: Callable, rows: int, cols: int) -> dict[str, Any]:
    x = randn(rows, cols, dtype=torch.float32)
    return timed(lambda: softmax(x), bytes_moved=2 * x.nbytes)  # the least that any softmax moves: x read once, y written once


def matmul_cases() -> Iterator[Measurement]:
    """Chapter 3: square matmul beside PyTorch, in row order and in groups; the tile's size; what TF32 loses; (q kᵀ) v in one kernel."""
    for n in (512, 1024, 2048, 4096, 8192, 16_384):
        for provider in ("course", "course, row order", "torch"):
            about = {"chapter": 3, "kernel": "matmul", "provider": provider, "dtype": "fp16", "M": n, "N": n, "K": n}
            yield about, lambda n=n, provider=provider: _matmul_in_turns(n)[provider]
    for provider, group in (("course", 8), ("torch", None)):
        about = {"chapter": 3, "kernel": "matmul", "provider": provider, "dtype": "fp32", "M": 4096, "N": 4096, "K": 4096}
        yield about, lambda group=group: _matmul_row(4096, torch.float32, group)
    for tile in (
        (16, 16, 64, 1, 3),
        (32, 32, 64, 4, 3),
        (64, 64, 64, 4, 3),
        (128, 64, 64, 4, 3),
        (128, 128, 64, 8, 3),
        (128, 256, 64, 8, 3),
    ):
        config = matmul.MatmulConfig(*tile)
        about = {
            "chapter": 3,
            "kernel": "matmul_tile",
            "provider": "course",
            "dtype": "fp16",
            "M": 4096,
            "N": 4096,
            "K": 4096,
            "block_m": tile[0],
            "block_n": tile[1],
            "block_k": tile[2],
        }
        yield about, lambda config=config: _tile_row(config)
    for provider in ("ieee", "tf32"):
        about = {"chapter": 3, "kernel": "fp32_precision", "provider": provider, "dtype": "fp32", "M": 4096, "N": 4096, "K": 4096}
        yield about, lambda provider=provider: _precision_row(provider)
    for S in (4096, 16_384):
        for provider in ("course", "torch, two products"):
            about = {"chapter": 3, "kernel": "scores_values", "provider": provider, "dtype": "fp16", "S": S, "D": 64}
            yield about, lambda S=S, provider=provider: _scores_values_in_turns(S, 64)[provider]


@functools.cache
def _matmul_in_turns(n: int) -> dict[str, dict[str, Any]]:
    """Both orders of programs and PyTorch, in fp16, by provider."""
    a, b = randn(n, n), randn(n, n)
    config = matmul.choose_config(torch.float16, hardware.shared_memory_limit())
    row_order = dataclasses.replace(config, group=1)
    calls = {
        "course": lambda: matmul.matmul(a, b, config=config),
        "course, row order": lambda: matmul.matmul(a, b, config=row_order),
        "torch": lambda: a @ b,
    }
    return timed_in_turns(calls, flops=2 * n**3)


@functools.cache
def _scores_values_in_turns(S: int, D: int) -> dict[str, dict[str, Any]]:
    """(q kᵀ) v of one head, in one kernel and as two products of PyTorch's, by provider."""
    q, k, v = randn(S, D), randn(S, D), randn(S, D)
    q /= math.sqrt(D * S)  # or else o overflows fp16
    calls = {
        "course": lambda: matmul.scores_times_values(q, k, v, 1.0, block_m=128, block_n=64),
        "torch, two products": lambda: (q @ k.T) @ v,
    }
    return timed_in_turns(calls, flops=4 * S * S * D)


def _matmul_row(n: int, dtype: torch.dtype, group: int | None) -> dict[str, Any]:
    a, b = randn(n, n, dtype=dtype), randn(n, n, dtype=dtype)
    if group is None:
        return timed(lambda: a @ b, flops=2 * n**3)
    config = matmul.choose_config(dtype, hardware.shared_memory_limit())
    config = dataclasses.replace(config, group=group)
    return timed(lambda: matmul.matmul(a, b, config=config), flops=2 * n**3)


def _tile_row(config: matmul.MatmulConfig) -> dict[str, Any]:
    a, b = randn(4096, 4096), randn(4096, 4096)
    requested = matmul.tiled_matmul_bytes(4096, 4096, 4096, config.block_m, config.block_n, a.itemsize)
    return timed(lambda: matmul.matmul(a, b, config=config), flops=2 * 4096**3) | {"requested_bytes": requested}


def _precision_row(precision: str) -> dict[str, Any]:
    """PyTorch's fp32 matmul with and without TF32: time, and the largest error relative to the largest result, against float64."""
    n = 4096
    a, b = randn(n, n, dtype=torch.float32), randn(n, n, dtype=torch.float32)
    truth = a.double() @ b.double()
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        error = ((a @ b).double() - truth).abs().max() / truth.abs().max()
        return timed(lambda: a @ b, flops=2 * n**3) | {"relative_error": float(f"{error.item():.3g}")}
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def gradient_error_cases() -> Iterator[Measurement]:
    """Chapter 7: the largest error of dq, dk and dv against float64, of the course's kernels and of PyTorch's."""
    attentions = {name: peers.provider(name) for name in ("naive", "sdpa_flash", "basic")}
    for dtype, name in ((torch.float16, "fp16"), (torch.bfloat16, "bf16")):
        for D, is_causal in itertools.product((64, 128), (False, True)):
            for provider, attention in attentions.items():
                about = {"chapter": 7, "kernel": "gradient_error", "provider": provider, "dtype": name, "B": 1, "H": 8, "S": 2048, "D": D}
                about["is_causal"] = is_causal
                yield about, lambda about=about, attention=attention, dtype=dtype: _gradient_error_row(about, attention, dtype)


def _gradient_error_row(about: dict[str, Any], attention: Callable, dtype: torch.dtype) -> dict[str, Any]:
    torch.manual_seed(0)
    q, k, v, do = (randn(about["B"], about["H"], about["S"], about["D"], dtype=dtype) for _ in range(4))
    truth = reference.gradients(q, k, v, do, about["is_causal"])
    inputs = [x.requires_grad_() for x in (q, k, v)]
    got = torch.autograd.grad(attention(*inputs, is_causal=about["is_causal"]), inputs, do)
    errors = [(x.double() - t).abs().max().item() for x, t in zip(got, truth, strict=True)]
    return {name: float(f"{error:.3g}") for name, error in zip(("dq", "dk", "dv"), errors, strict=True)}


def training_cases() -> Iterator[Measurement]:
    """Chapter 7: one small transformer trained with each attention, from the same seeds; its loss every few steps."""
    for provider, attention in training.ATTENTIONS.items():
        about = {"chapter": 7, "kernel": "training", "provider": provider, "dtype": "bf16", **dataclasses.asdict(training.LARGE)}
        yield about, lambda attention=attention: _training_row(attention)


def _training_row(attention: training.Attention) -> dict[str, Any]:
    losses = training.train(attention, training.LARGE, torch.bfloat16)
    return {"losses": [round(loss, 4) for loss in losses]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, help="JSON file to write; rows that it holds are kept")
    path = parser.parse_args().file
    require_gpu()

    kept = opened(path)
    rows = itertools.chain(attention_cases(), chapter_8.ablation_cases(), chapter_9.ablation_cases())
    kernels = itertools.chain(
        naive_step_cases(), first_kernel_cases(), matmul_cases(), gradient_error_cases(), training_cases(), chapter_8.kernels_cases(),
    )  # fmt: skip
    failed = [about for key, cases in (("rows", rows), ("kernels", kernels)) for about in run(path, kept, key, cases)]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
