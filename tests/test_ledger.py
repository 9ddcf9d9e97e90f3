"""Chapter 0's counts, against counting: masks summed, loops walked, PyTorch's own FLOP counter."""

import itertools
import math

import numpy as np
import pytest
import torch

from fa_tutorial import ledger

LENGTHS = range(8)


@pytest.mark.parametrize("is_causal", [False, True])
def test_visible_pairs_by_summing_the_mask(is_causal):
    for S_q, S_k in itertools.product(LENGTHS, LENGTHS):
        seen = sum(not is_causal or j <= i + S_k - S_q for i in range(S_q) for j in range(S_k))
        assert ledger.visible_pairs(S_q, S_k, is_causal) == seen


def test_counts_are_exact_integers_at_any_size():
    S = 2**31 + 1
    assert ledger.visible_pairs(S, S, True) == S * (S + 1) // 2
    assert ledger.attention_flops(64, 64, S, S, 128) == 4 * 64 * 64 * S * S * 128
    count = ledger.score_bytes(*map(np.int32, (64, 64, 2**20, 2**20, 2)))
    assert count == 64 * 64 * 2**40 * 2 and type(count) is int


@pytest.mark.parametrize(("B", "H", "S_q", "S_k", "D"), [(1, 1, 1, 1, 1), (2, 3, 5, 7, 8), (1, 4, 16, 16, 64), (2, 2, 9, 1, 3)])
def test_flops_by_pytorchs_counter(B, H, S_q, S_k, D):
    """Autograd does four matmuls backward; flash attention's backward computes the scores a second time too."""
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton, so it has to come after fa_tutorial

    q, k, v = (torch.zeros(B, H, S, D, requires_grad=True) for S in (S_q, S_k, S_k))
    with FlopCounterMode(display=False) as counter:
        o = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
    assert ledger.attention_flops(B, H, S_q, S_k, D) == counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        o.sum().backward()
        q @ k.transpose(-1, -2)
    assert ledger.backward_flops(B, H, S_q, S_k, D) == counter.get_total_flops()
    split = ledger.backward_flops(B, H, S_q, S_k, D, matmuls=ledger.SPLIT_BACKWARD_MATMULS)
    assert 2 * split == 7 * ledger.attention_flops(B, H, S_q, S_k, D) and type(split) is int
    for flops in (ledger.attention_flops, ledger.backward_flops):
        assert flops(B, H, S_q, S_k, D, True) * S_q * S_k == flops(B, H, S_q, S_k, D) * ledger.visible_pairs(S_q, S_k, True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_flash_hbm_bytes_by_walking_the_blocks(dtype):
    for S_q, S_k, D, block_m in itertools.product((0, 5, 8), (0, 7), (4,), (1, 3, 16)):
        q, k, v = torch.empty(S_q, D, dtype=dtype), torch.empty(S_k, D, dtype=dtype), torch.empty(S_k, D, dtype=dtype)
        o, lse = torch.empty_like(q), torch.empty(S_q)
        moved = 0
        for start in range(0, S_q, block_m):
            rows = slice(start, start + block_m)
            moved += q[rows].nbytes + k.nbytes + v.nbytes + o[rows].nbytes + lse[rows].nbytes
        assert ledger.flash_hbm_bytes(S_q, S_k, D, block_m, dtype.itemsize) == moved


def test_attainable_flops_below_at_and_above_the_ridge():
    peak, bandwidth = 800e12, 4e12  # ridge at 200 FLOP a byte
    assert ledger.attainable_flops(50, peak, bandwidth) == 50 * bandwidth
    assert ledger.attainable_flops(200, peak, bandwidth) == peak
    assert ledger.attainable_flops(math.nextafter(200, 0), peak, bandwidth) < peak
    assert ledger.attainable_flops(201, peak, bandwidth) == peak
    assert ledger.attainable_flops(1e300, peak, bandwidth) == peak
