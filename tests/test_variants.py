"""Chapter 10's variants against their definition: dense scores and a dense mask in float64."""

import itertools
import math

import pytest
import torch
from buffers import DEVICE, ON_GPU, randn
from variant_cases import VariantCase, check

HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
CASES = [
    VariantCase(50, 70, window=(20, -1), is_causal=True),
    VariantCase(70, 50, D=40, dtype=SINGLE, window=(9, 5), dlse=True),  # rows that see nothing
    VariantCase(45, 45, dtype=BRAIN, softcap=2.0, view="slices of fused qkv"),
    VariantCase(37, 64, H_k=2, alibi="heads", is_causal=True, view="padded row stride"),
    VariantCase(33, 40, B=2, dtype=SINGLE, alibi="batch", H_k=2),
    VariantCase(40, 33, dtype=SINGLE, sinks=True, is_causal=True, dlse=True),  # rows that see their sink alone
    VariantCase(40, 33, B=2, bias=(1, 2), dtype=SINGLE),
    VariantCase(33, 36, B=2, bias=(2, 1), is_causal=True),
    VariantCase(50, 63, D=64, H_q=4, H_k=2, is_causal=True, window=(30, -1), softcap=3.0, alibi="heads", bias=(1, 4), sinks=True, dlse=True),
    VariantCase(1, 67, D=1, dtype=SINGLE, window=(40, 0), sinks=True),
    VariantCase(20, 24, D=256, dtype=BRAIN, window=(5, 3), softcap=1.5),
    VariantCase(20, 40, dtype=SINGLE, window=(10, 0), scale=-0.4),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_variant(case):
    check(case)
