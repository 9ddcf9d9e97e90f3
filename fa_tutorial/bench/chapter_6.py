"""Chapter 6: what its page shows of the backward's stored results, and what autograd keeps for a backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fa_tutorial.bench import results


def show_backward(card: dict) -> None:
    """Print the time and the peak memory of the backward of 16 heads, without p and with it. card: results.load's."""
    layer = {"mode": "bwd", "dtype": "fp16", "B": 1, "H_q": 16, "D": 64, "is_causal": False}
    rows = results.select(card["rows"], **layer)
    print(f"{'S':>6}   {'naive':>21}   {'basic':>21}   (stored, H200)")
    for S in (512, 1_024, 4_096, 16_384, 32_768):
        line = f"{S:6,}"
        for provider in ("naive", "basic"):
            row = results.select(rows, provider=provider, S_q=S).iloc[0]
            cost = "out of memory"
            if row["ms"] > 0:
                cost = f"{row['ms']:5.2f} ms, {row['peak_bytes'] / 2**20:7,.0f} MiB"
            line += f"   {cost:>21}"
        print(line)


def kept_bytes(function: Callable[..., Any], *args: Any) -> int:
    """The bytes that autograd keeps for backward when function(*args) runs; memory that several tensors share counts
    once."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        function(*args)
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in kept}.values())
