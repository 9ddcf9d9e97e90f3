"""A reader's kernel's speed on this machine's GPU, or where there is none the stored result of an H200."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from fa_tutorial import hardware, ledger
from fa_tutorial.bench import results, timing


def gpu() -> str:
    """The GPU whose times milliseconds gives, in words."""
    return torch.cuda.get_device_name() if hardware.device().type == "cuda" else "NVIDIA H200, stored results"


def milliseconds(call: Callable[[], Any], **stored: Any) -> float:
    """The time of `call` on this GPU. Without one, call isn't run, and the H200's row whose fields are `stored` has
    it."""
    if hardware.device().type == "cuda":
        return timing.time_call(call).ms
    return results.select(results.load("h200")["kernels"], **stored)["ms"].item()


def gb_per_s(call: Callable[[], Any], bytes_moved: int, **stored: Any) -> float:
    """The GB/s at which `call` moves bytes_moved, in the time that milliseconds gives. kernel="copy" is the H200's
    plain copy."""
    if stored == {"kernel": "copy"} and hardware.device().type != "cuda":
        return results.load("h200")["provenance"]["ceilings"]["copy_gb_s"]
    return bytes_moved / milliseconds(call, **stored) / 1e6


def backward_tflops(launch: Callable[..., Any]) -> dict[int, float]:
    """TFLOP/s by five matmuls, by D, of a reader's backward on this GPU at S = 4,096, as chapter 7's plot has them;
    empty without one. launch: (q, k, v, o, do, lse, is_causal, scale) -> the gradients."""
    rates = {}
    for D, H in ((64, 32), (128, 16)) if hardware.device().type == "cuda" else ():
        from fa_tutorial import forward

        q, k, v, do = (timing.randn(4, H, 4_096, D) for _ in range(4))
        o, lse = forward.flash_forward(q, k, v, False, D**-0.5)
        call = functools.partial(launch, q, k, v, o, do, lse, False, D**-0.5)
        rates[D] = ledger.backward_flops(4, H, 4_096, 4_096, D) / timing.time_call(call).ms / 1e9
    return rates
