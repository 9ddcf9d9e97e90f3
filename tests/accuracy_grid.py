"""flash_attention's error over dtypes, head dimensions, lengths, masks, heads and views, on a GPU.

    python tests/accuracy_grid.py                   o and lse
    python tests/accuracy_grid.py --backward        dq, dk and dv
    python tests/accuracy_grid.py --kernel basic    of that kernel, not of "auto"'s

end with the number of cases, and the case whose error comes nearest to its bound. pytest runs the same grids (on a GPU).
"""  # fmt: skip

from __future__ import annotations

import argparse
import functools
import itertools
import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from attention_cases import (
    KERNELS,
    VIEWS,
    Case,
    a_tile_by_turns,
    assert_attention,
    assert_gradients,
    place,
    plain_attention,
    plain_gradients,
)
from buffers import DTYPES, ON_GPU

from fa_tutorial import flash_attention, reference, tuned
from fa_tutorial.bench import cases as bench_cases

HEAD_DIMS = (1, 16, 40, 59, 64, 80, 96, 128, 192, 256)
LENGTHS = ((1, 239), (113, 203), (127, 513), (799, 3), (64, 64), (128, 128), (203, 113))
HEADS = ((6, 6), (6, 2))
MIN_ELEMENTS = 2048  # of o, and of k, so that the plain result's largest error is not small by luck


def cases() -> list[Case]:
    """Every dtype, head dimension, pair of lengths, mask and kind of heads; the views take turns, and so does a gradient of lse."""
    grid = itertools.product(DTYPES, HEAD_DIMS, LENGTHS, (False, True), HEADS)
    turns = zip(itertools.cycle(VIEWS), itertools.cycle((False, False, True)), strict=False)  # 11 views, so that each meets both
    return [
        Case(
            S_q, S_k, D=D, dtype=dtype, is_causal=is_causal, H_q=H_q, H_k=H_k, B=batches(H_q * S_q * D, H_k * S_k * D), view=view, dlse=dlse
        )
        for (dtype, D, (S_q, S_k), is_causal, (H_q, H_k)), (view, dlse) in zip(grid, turns, strict=False)
    ]


def batches(*elements: int) -> int:
    """The batch size that makes MIN_ELEMENTS of so many elements a batch; at least 2."""
    return max(2, -(-MIN_ELEMENTS // min(elements)))


@dataclass(frozen=True)
class Finding:
    """What one case gave. ratio: error / bound. failure: what the assertion said, or None."""

    case: Case
    ratio: float
    failure: str | None


def forward(case: Case, kernel: str) -> Finding:
    """One case: the ratio of o's largest error to DESIGN's bound, and whether o and lse pass."""
    q, k, v = case.inputs()
    o, lse = flash_attention(q, k, v, is_causal=case.is_causal, scale=case.scale, return_lse=True, kernel=kernel)
    truth, _ = reference.attention(q, k, v, case.is_causal, case.scale)
    plain = plain_attention(truth, q, k, v, case.is_causal, case.scale)
    failure = failure_of(assert_attention, o, lse, q, k, v, case.is_causal, case.scale)
    return Finding(case, ratio(o, truth, plain, 2), failure)


def backward(case: Case, kernel: str) -> Finding:
    """One case: the largest ratio of an error of dq, dk and dv to DESIGN's bound, and whether they pass."""
    leaves = [x.requires_grad_() for x in case.inputs()]
    do, dlse = case.output_gradients()
    do = place(do, "padded rows").tensor
    o, lse = flash_attention(*leaves, is_causal=case.is_causal, scale=case.scale, return_lse=True, kernel=kernel)
    got = torch.autograd.grad([o, lse][: 1 + case.dlse], leaves, [do, dlse][: 1 + case.dlse])
    arguments = *(x.detach() for x in leaves), do, case.is_causal, case.scale, dlse
    truth, plain = reference.gradients(*arguments), plain_gradients(*arguments)
    failure = failure_of(assert_gradients, got, *arguments)
    return Finding(case, max(ratio(*results, 3) for results in zip(got, truth, plain, strict=True)), failure)


def ratio(x: torch.Tensor, truth: torch.Tensor, plain: torch.Tensor, factor: float) -> float:
    """x's largest error by DESIGN's bound on it."""
    return float((x.double() - truth).abs().max()) / (factor * float((plain.double() - truth).abs().max()) + 1e-5)


def failure_of(check: Callable, *args) -> str | None:
    """What the AssertionError of check(*args) says, or None."""
    try:
        check(*args)
    except AssertionError as error:
        return str(error)
    return None


DIRECTIONS = {"forward": forward, "backward": backward}


def take_turns() -> None:
    """In a worker: the tuned kernels' tiles are not measured, each has its turn; and threads of its own would only be in the others' way."""
    tuned.fastest = a_tile_by_turns
    torch.set_num_threads(1)


def run_all(direction: str, kernel: str, dtypes: tuple[torch.dtype, ...] = DTYPES) -> list[Finding]:
    """Every case of these dtypes, in several processes: what takes the time is compiling the kernels for each kind of strides and lengths."""
    workers = min(14, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=take_turns) as pool:
        return list(
            pool.map(
                functools.partial(DIRECTIONS[direction], kernel=kernel), [case for case in cases() if case.dtype in dtypes], chunksize=4
            )
        )


def closing_line(findings: list[Finding]) -> str:
    worst = max(findings, key=lambda finding: finding.ratio)
    failed = sum(finding.failure is not None for finding in findings)
    return f"{len(findings)} cases, {failed} failed, worst error / bound {worst.ratio:.3f} ({worst.case})"


def main() -> int:
    parser = argparse.ArgumentParser(description="flash_attention's error against float64, over a grid of cases, on a GPU")
    parser.add_argument("--backward", action="store_true", help="the gradients, not o and lse")
    parser.add_argument("--kernel", default="auto", help='of flash_attention; "auto" unless given')
    parser.add_argument("--dtypes", nargs="+", choices=bench_cases.DTYPES, default=list(bench_cases.DTYPES), help="all unless given")
    arguments = parser.parse_args()
    direction = "backward" if arguments.backward else "forward"
    if not ON_GPU:
        print("The accuracy grid needs a GPU: the interpreter would take hours.", file=sys.stderr)
        return 2
    findings = run_all(direction, arguments.kernel, tuple(bench_cases.DTYPES[name] for name in arguments.dtypes))
    for finding in findings:
        if finding.failure:
            print(f"{finding.case}: {finding.failure}")
    print(closing_line(findings))
    return int(any(finding.failure for finding in findings))


def test_the_grid_has_500_cases_and_every_view():
    grid = cases()
    assert len(set(grid)) == len(grid) >= 500
    assert {(case.view, case.dlse) for case in grid} == set(itertools.product(VIEWS, (False, True)))


@pytest.mark.skipif(not ON_GPU, reason="the interpreter would take hours")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_accuracy_over_the_grid(direction, kernel):
    findings = run_all(direction, kernel)
    failures = "\n".join(f"{finding.case}: {finding.failure}" for finding in findings if finding.failure)
    assert not failures, f"{closing_line(findings)}\n{failures}"


if __name__ == "__main__":
    sys.exit(main())
