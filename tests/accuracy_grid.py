"""flash_attention's error over dtypes, head dimensions, lengths, masks, heads and views, on a GPU.

    python tests/accuracy_grid.py

ends with the number of cases, and the case whose error comes nearest to its bound. pytest runs the same grid (on a GPU).
"""  # fmt: skip

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import pytest
from attention_cases import VIEWS, Case, assert_attention, plain_attention
from buffers import DTYPES, ON_GPU

from fa_tutorial import flash_attention, reference

HEAD_DIMS = (1, 16, 40, 59, 64, 80, 96, 128, 192, 256)
LENGTHS = ((1, 239), (113, 203), (127, 513), (799, 3), (64, 64), (128, 128), (203, 113))
HEADS = ((6, 6), (6, 2))
MIN_ELEMENTS = 2048  # of o, so that the plain result's largest error is not small by luck


def cases() -> list[Case]:
    """Every dtype, head dimension, pair of lengths, mask and kind of heads; the views take turns."""
    grid = itertools.product(DTYPES, HEAD_DIMS, LENGTHS, (False, True), HEADS)
    views = itertools.cycle(VIEWS)
    return [
        Case(S_q, S_k, D=D, dtype=dtype, is_causal=is_causal, H_q=H_q, H_k=H_k, B=max(2, -(-MIN_ELEMENTS // (H_q * S_q * D))), view=view)
        for (dtype, D, (S_q, S_k), is_causal, (H_q, H_k)), view in zip(grid, views, strict=False)
    ]


@dataclass(frozen=True)
class Finding:
    """What one case gave. ratio: error / bound. failure: what assert_attention said, or None."""

    case: Case
    ratio: float
    failure: str | None


def run(case: Case) -> Finding:
    """One case: the ratio of flash_attention's largest error to DESIGN's bound, and whether o and lse pass."""
    q, k, v = case.inputs()
    o, lse = flash_attention(q, k, v, is_causal=case.is_causal, scale=case.scale, return_lse=True)
    truth, _ = reference.attention(q, k, v, case.is_causal, case.scale)
    plain = plain_attention(truth, q, k, v, case.is_causal, case.scale)
    bound = 2 * float((plain.double() - truth).abs().max()) + 1e-5
    failure = None
    try:
        assert_attention(o, lse, q, k, v, case.is_causal, case.scale)
    except AssertionError as error:
        failure = str(error)
    return Finding(case, float((o.double() - truth).abs().max()) / bound, failure)


def run_all() -> list[Finding]:
    """Every case, in several processes: what takes the time is compiling the kernel for each kind of strides and lengths."""
    workers = min(12, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(run, cases(), chunksize=4))


def closing_line(findings: list[Finding]) -> str:
    worst = max(findings, key=lambda finding: finding.ratio)
    failed = sum(finding.failure is not None for finding in findings)
    return f"{len(findings)} cases, {failed} failed, worst error / bound {worst.ratio:.3f} ({worst.case})"


def main() -> int:
    if not ON_GPU:
        print("The accuracy grid needs a GPU: the interpreter would take hours.", file=sys.stderr)
        return 2
    findings = run_all()
    for finding in findings:
        if finding.failure:
            print(f"{finding.case}: {finding.failure}")
    print(closing_line(findings))
    return int(any(finding.failure for finding in findings))


def test_the_grid_has_500_cases_and_every_view():
    grid = cases()
    assert len(set(grid)) == len(grid) >= 500
    assert {case.view for case in grid} == set(VIEWS)


@pytest.mark.skipif(not ON_GPU, reason="the interpreter would take hours")
@pytest.mark.timeout(900)
def test_accuracy_over_the_grid():
    findings = run_all()
    failures = "\n".join(f"{finding.case}: {finding.failure}" for finding in findings if finding.failure)
    assert not failures, f"{closing_line(findings)}\n{failures}"


if __name__ == "__main__":
    sys.exit(main())
