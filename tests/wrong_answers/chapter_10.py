"""Chapter 10: mods that are plain functions or stop, sequences found by an index that runs over."""

import torch

from fa_tutorial.matmul import tl, triton


def plain_window(b, h, i, j, aux):
    return (j <= i + aux[1]) & (j >= i + aux[1] - aux[0])


@triton.jit
def window_by_names(b, h, i, j, aux):
    return (j <= i + aux.shift) & (j >= i + aux.shift - aux.left)


def plain_cap_grad(s, b, h, i, j, aux):
    return 1 - torch.tanh(s / aux[0]) ** 2


@triton.jit
def cap_grad_with_missing_tanh(s, b, h, i, j, aux):
    return 1 - tl.no_such_tanh(s / aux[0])


def first_alone(cu_q, cu_k):
    return cu_k[:-1].repeat_interleave(cu_q.diff())


WRONG_ANSWERS = (
    ("10.1", plain_window, "put @triton.jit above it"),
    ("10.1", window_by_names, "stops with"),
    ("10.3", plain_cap_grad, "put @triton.jit above it"),
    ("10.3", cap_grad_with_missing_tanh, "stops with AttributeError"),
    ("10.5", first_alone, "want a tuple (first, end)"),
)
