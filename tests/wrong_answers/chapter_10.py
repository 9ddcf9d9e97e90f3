"""Chapter 10: mods that are plain functions, stop, or ask for a tile's truth value; a list found by the program's number; sequences' first keys alone."""

import torch

from fa_tutorial.exercises.chapter_10.ex_3 import listed_kernel
from fa_tutorial.matmul import tl, triton
from fa_tutorial.source import defined, source_of


def plain_window(b, h, i, j, aux):
    return (j <= i + aux[1]) & (j >= i + aux[1] - aux[0])


@triton.jit
def window_by_names(b, h, i, j, aux):
    return (j <= i + aux.shift) & (j >= i + aux.shift - aux.left)


@triton.jit
def window_without_brackets(b, h, i, j, aux):
    d = j - (i + aux[1])
    return d <= 0 & d >= -aux[0]


@triton.jit
def window_joined_by_and(b, h, i, j, aux):
    d = j - (i + aux[1])
    return (d <= 0) and (d >= -aux[0])


@triton.jit
def window_in_numbers(b, h, i, j, aux):
    d = j - (i + aux[1])
    return tl.where((d <= 0) & (d >= -aux[0]), 1, 0)


def listed_by_program():
    """The list's row is the program's number, which is right for one head."""
    text = (
        source_of(listed_kernel)
        .replace("count_ptr + row", "count_ptr + tl.program_id(0)")
        .replace("row * across", "tl.program_id(0) * across")
    )
    return defined(text, listed_kernel.fn.__globals__)["listed_kernel"]


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
    ("10.1", window_without_brackets, "join masks by &, not by `and`, with each comparison in brackets", "stops with"),
    ("10.1", window_joined_by_and, "join masks by &, not by `and`", None),
    ("10.1", window_in_numbers, "a mask mod returns booleans"),
    ("10.3", listed_by_program(), "all heads and batch entries share the lists"),
    ("10.4", plain_cap_grad, "put @triton.jit above it"),
    ("10.4", cap_grad_with_missing_tanh, "stops with AttributeError"),
    ("10.6", first_alone, "want a tuple (first, end)"),
)
