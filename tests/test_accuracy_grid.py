"""flash_attention's error over dtypes, head dimensions, lengths, masks, heads and views, forward and backward: on a GPU, for the
interpreter would take hours."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from attention_cases import KERNELS, VIEWS, Case, a_tile_by_turns, check
from buffers import DTYPES, ON_GPU

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


def failure(case: Case, kernel: str) -> str:
    """What check says of the case with this kernel: nothing where it passes."""
    try:
        check(case, kernel)
    except AssertionError as error:
        return f"{case}: {error}"
    return ""


def take_turns() -> None:
    """In a worker: the tuned kernels' tiles are not measured, each has its turn; and more threads would be in the others' way."""
    autotuning.fastest = a_tile_by_turns
    torch.set_num_threads(1)


@pytest.mark.slow
@pytest.mark.skipif(not ON_GPU, reason="the interpreter would take hours")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kernel", KERNELS)
def test_accuracy_over_the_grid(kernel):
    """In several processes: what takes the time is compiling the kernels for each kind of strides and lengths."""
    workers = min(14, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=take_turns) as pool:
        failures = pool.map(functools.partial(failure, kernel=kernel), cases(), chunksize=4)
        assert [*filter(None, failures)] == []
