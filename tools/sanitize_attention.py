"""Ragged, causal, grouped calls in fp16, forward and backward, small enough for the CUDA toolkit's compute-sanitizer.

    PYTHONPATH=tests compute-sanitizer --tool memcheck python tools/sanitize_attention.py
    PYTHONPATH=tests compute-sanitizer --tool racecheck python tools/sanitize_attention.py

The kernels to run may be named; all that this GPU has are run unless some are.
"""  # fmt: skip

import sys

import torch
from attention_cases import KERNELS, Case, a_tile_by_turns, assert_attention, assert_gradients

from fa_tutorial import flash_attention, flash_attention_fp8, reference
from fa_tutorial.tuned import autotuning


def attend(case: Case, kernel: str) -> None:
    # Tensors of their own, and not inside NaN: there a stray access lands outside an allocation.
    q, k, v = (x.requires_grad_() for x in case.data())
    do, dlse = case.output_gradients()
    o, lse = flash_attention(q, k, v, is_causal=True, return_lse=True, kernel=kernel)
    gradients = torch.autograd.grad((o, lse), (q, k, v), (do, dlse))
    if o.is_cuda:
        torch.cuda.synchronize()
    q, k, v = q.detach(), k.detach(), v.detach()
    assert_attention(o.detach(), lse.detach(), q, k, v, is_causal=True)
    assert_gradients(gradients, q, k, v, do, is_causal=True, dlse=dlse)
    print(f"right: {kernel}, {case}")


def attend_fp8(case: Case) -> None:
    """Chapter 14's, whose error is 5 % of o."""
    q, k, v = case.data()
    o, lse = flash_attention_fp8(q, k, v, is_causal=True, return_lse=True)
    truth, truth_lse = reference.attention(q, k, v, True)
    assert (o - truth).square().mean() <= 0.01 * truth.square().mean()
    torch.testing.assert_close(lse.double(), truth_lse, rtol=0, atol=0.2)
    print(f"right: fp8, {case}")


if __name__ == "__main__":
    autotuning.fastest = a_tile_by_turns
    for kernel, D in (
        ("basic", 59),
        ("tuned", 59),
        ("tuned", 64),
        ("hopper", 64),
        ("hopper", 128),
    ):  # a descriptor takes 64 and not 59
        if kernel in (sys.argv[1:] or KERNELS):
            attend(Case(113, 203, D=D, is_causal=True, H_q=6, H_k=2, dlse=True), kernel)
    for D in (40, 64, 128):
        if "fp8" in (sys.argv[1:] or ("fp8",)):
            attend_fp8(Case(113, 203, D=D, is_causal=True, H_q=6, H_k=2))
