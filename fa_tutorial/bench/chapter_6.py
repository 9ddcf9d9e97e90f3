"""Chapter 6: what its page shows of the backward's stored results, and what autograd keeps for a backward."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import torch

from fa_tutorial import ledger
from fa_tutorial.bench import results

# Of a query and a key, exponentials left out: 8 in the loop of chapter 7's dkdv_kernel without a mask (scale and lse,
# exp's four, delta, p, and half a rounding each of p and ds), and 7.5 in that of dq_kernel, which rounds no p.
OTHER_INSTRUCTIONS = 15.5


def backward_row(card: dict, provider: str, S: int) -> pd.Series:
    """The stored row of the backward of 16 heads with D = 64 in fp16, without a mask. card: results.load's."""
    layer = {"mode": "bwd", "dtype": "fp16", "B": 1, "H_q": 16, "D": 64, "is_causal": False}
    return results.select(card["rows"], **layer, provider=provider, S_q=S).iloc[0]


def show_backward(card: dict) -> None:
    """Print the time and the peak memory of the backward of 16 heads, without p and with it. card: results.load's."""
    print(f"{'S':>6}   {'naive':>21}   {'basic':>21}   (stored, H200)")
    for S in (4_096, 8_192, 16_384):
        line = f"{S:6,}"
        for provider in ("naive", "basic"):
            row = backward_row(card, provider, S)
            line += f"   {row['ms']:7.2f} ms, {row['peak_bytes'] / 2**20:6,.0f} MiB"
        print(line)


def show_trips(card: dict) -> None:
    """Print the kernels of naive attention's backward of 16 heads at S = 16,384: what their trips take at the bandwidth
    of a copy, and what they take. card: results.load's."""
    trips = {"dv": 1, "dp": 1, "p ∘ dp": 3, "ds": 3, "scale · ds": 2, "dq": 1, "dk": 1}
    took = results.select(card["kernels"], chapter=6, kernel="naive_backward").set_index("provider")["ms"]
    trip = ledger.score_bytes(1, 16, 16_384, 16_384, itemsize=2) / card["provenance"]["ceilings"]["copy_gb_s"] / 1e6
    print("kernel       trips   at a copy's rate   measured   (stored, H200)")
    for name, count in (*trips.items(), ("all", sum(trips.values()))):
        ms = took.sum() if name == "all" else took[name]
        print(f"{name:10} {count:7}   {count * trip:13.2f} ms {ms:7.2f} ms")


def kept_bytes(function: Callable[..., Any], *args: Any) -> int:
    """The bytes that autograd keeps for backward when function(*args) runs; memory that several tensors share counts
    once."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        function(*args)
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in kept}.values())
