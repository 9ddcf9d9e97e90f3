"""flash_attention's error over dtypes, head dimensions, lengths, masks, heads and views, forward and backward: on a GPU, for the
interpreter would take hours. A failure shows the cases, and the one whose error comes nearest to its bound."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from attention_cases import KERNELS, VIEWS, Case, a_tile_by_turns, assert_attention, assert_gradients, plain_attention, plain_gradients
from buffers import DTYPES, ON_GPU

from fa_tutorial import flash_attention, reference
from fa_tutorial.tuned import autotuning

HEAD_DIMS = (1, 16, 40, 59, 64, 80, 96, 128, 192, 256)
LENGTHS = ((1, 239), (113, 203), (127, 513), (799, 3), (64, 64), (128, 128), (203, 113))
HEADS = ((6, 6), (6, 2))
MIN_ELEMENTS = 2048  # of o, and of k, so that the plain result's largest error is not small by luck


def cases() -> list[Case]:
    """Every dtype, head dimension, pair of lengths, mask and kind of heads; the views take turns, and so does a gradient of lse."""
    grid = itertools.product(DTYPES, HEAD_DIMS, LENGTHS, (False, True), HEADS)
    turns = zip(itertools.cycle(VIEWS), itertools.cycle((False, False, True)), strict=False)  # 11 views, so that each meets both
    made = []
    for (dtype, D, (S_q, S_k), is_causal, (H_q, H_k)), (view, dlse) in zip(grid, turns, strict=False):
        B = max(2, -(-MIN_ELEMENTS // min(H_q * S_q * D, H_k * S_k * D)))
        made.append(Case(S_q, S_k, D=D, dtype=dtype, is_causal=is_causal, B=B, H_q=H_q, H_k=H_k, view=view, dlse=dlse))
    return made


@dataclass(frozen=True)
class Finding:
    """What one case gave. ratio: the largest error / bound of o, dq, dk and dv. failure: what the assertion said, or None."""

    case: Case
    ratio: float
    failure: str | None


def find(case: Case, kernel: str) -> Finding:
    inputs, (do, dlse) = case.inputs(), case.output_gradients()
    leaves = [x.detach().requires_grad_() for x in inputs]
    o, lse = flash_attention(*leaves, is_causal=case.is_causal, scale=case.scale, return_lse=True, kernel=kernel)
    gradients = torch.autograd.grad([o, lse][: 1 + case.dlse], leaves, [do, dlse][: 1 + case.dlse])
    forward, backward = (*inputs, case.is_causal, case.scale), (*inputs, do, case.is_causal, case.scale, dlse)
    truth, _ = reference.attention(*forward)
    ratios = [ratio(o, truth, plain_attention(truth, *forward), 2)]
    ratios += [ratio(*results, 3) for results in zip(gradients, reference.gradients(*backward), plain_gradients(*backward), strict=True)]
    try:
        assert_attention(o.detach(), lse.detach(), *forward)
        assert_gradients(gradients, *backward)
    except AssertionError as error:
        return Finding(case, max(ratios), str(error))
    return Finding(case, max(ratios), None)


def ratio(x: torch.Tensor, truth: torch.Tensor, plain: torch.Tensor, factor: float) -> float:
    """x's largest error by DESIGN's bound on it."""
    return float((x.double() - truth).abs().max()) / (factor * float((plain.double() - truth).abs().max()) + 1e-5)


def take_turns() -> None:
    """In a worker: the tuned kernels' tiles are not measured, each has its turn; and more threads would be in the others' way."""
    autotuning.fastest = a_tile_by_turns
    torch.set_num_threads(1)


def run_all(kernel: str) -> list[Finding]:
    """Every case, in several processes: what takes the time is compiling the kernels for each kind of strides and lengths."""
    workers = min(14, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=take_turns) as pool:
        return list(pool.map(functools.partial(find, kernel=kernel), cases(), chunksize=4))


def report(findings: list[Finding]) -> str:
    lines = [f"{finding.case}: {finding.failure}" for finding in findings if finding.failure]
    worst = max(findings, key=lambda finding: finding.ratio)
    return "\n".join([*lines, f"{len(findings)} cases, {len(lines)} failed, worst error / bound {worst.ratio:.3f} ({worst.case})"])


@pytest.mark.slow
@pytest.mark.skipif(not ON_GPU, reason="the interpreter would take hours")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kernel", KERNELS)
def test_accuracy_over_the_grid(kernel):
    findings = run_all(kernel)
    assert not any(finding.failure for finding in findings), report(findings)
