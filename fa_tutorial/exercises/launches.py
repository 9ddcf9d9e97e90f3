"""Looks at every launch of chapter 7's backward kernels while an answer runs: each argument before the kernel runs, and their order afterwards.

What a launch gets decides where its kernel reads and writes, so a wrong argument is told and never run.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import torch

from fa_tutorial import backward
from fa_tutorial.exercises.harness import Wrong, show
from fa_tutorial.exercises.harness_kernel import patched_once
from fa_tutorial.tiles import padded_d

KERNELS = (backward.delta_kernel, backward.dkdv_kernel, backward.dq_kernel)
ONCE = "delta_kernel is launched once, and dkdv_kernel and dq_kernel read what it wrote"
WHY = {"BLOCK_D": ": tiles.padded_d(D)", "GROUP": ": H_q // H_k", "IS_CAUSAL": ": is_causal does not reach it",
       "scale": ": the scale does not reach it", "dlse": ": lse has no gradient here, so pass None for dlse_ptr"}  # fmt: skip


class Launches:
    """A context manager for one input of backward_once(q, k, v, o, do, lse, is_causal, scale), and the launches that were made in it."""

    def __init__(self, q, k, v, o, do, lse, is_causal, scale) -> None:
        (self.B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
        self.read = {"q": q, "k": k, "v": v, "o": o, "do": do, "lse": lse, "delta": (o.float() * do.float()).sum(-1)}
        self.written = {"dq": q, "dk": k, "dv": v, "delta": lse}
        self.numbers = {"H_q": H_q, "H_k": H_k, "S_q": S_q, "S_k": S_k, "D": D, "GROUP": H_q // max(H_k, 1), "BLOCK_D": padded_d(D),
                        "IS_CAUSAL": is_causal, "scale": scale, "dlse": None}  # fmt: skip
        self.records: list[tuple[str, int]] = []  # kernel, address of its delta
        kind = type(KERNELS[0])
        self._patch = mock.patch.object(kind, "__getitem__", self._watched(kind.__getitem__))

    def __enter__(self) -> Launches:
        self._patch.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._patch.stop()

    def _watched(self, start: Callable) -> Callable:
        def item(kernel: Any, grid: Any) -> Callable:
            launch = start(kernel, grid)
            if not any(kernel is known for known in KERNELS):
                return launch

            def checked(*args: Any, **meta: Any) -> Any:
                self._check(kernel, grid, args, meta)
                with patched_once(strict=False):
                    return launch(*args, **meta)

            return checked

        return item

    def _check(self, kernel: Any, grid: Any, args: tuple, meta: Mapping[str, Any]) -> None:
        """Wrong unless a launch gets what the kernel has to get; else it is recorded."""
        name = kernel.fn.__name__
        if backward.flash_backward.__code__ in _callers():
            raise Wrong("flash_backward launches the kernels here: launch the three of them yourself")
        if not self.read["q"].numel() or not self.read["k"].numel():
            raise Wrong(f"{name} is launched, though nothing is there to compute: where q or k is empty, the gradients are 0")
        signature = inspect.signature(kernel.fn)
        try:
            given = signature.bind(*args, **{key: value for key, value in meta.items() if key in signature.parameters}).arguments
        except TypeError as error:
            raise Wrong(f"{name} gets other arguments than it takes: {error}") from None
        given = {what.removesuffix("_ptr"): value for what, value in given.items()}
        for what, value in given.items():
            if what in self.written and (what != "delta" or name == "delta_kernel"):
                self._check_written(name, what, value)
            elif what in self.read:
                self._check_read(name, what, value)
            elif what in self.numbers and not _is_number(value, self.numbers[what]):
                shown = value if isinstance(value, bool) or value is None else "a tensor" if torch.is_tensor(value) else show(value)
                raise Wrong(f"{name} gets {what} = {shown}, want {self.numbers[what]}{WHY.get(what, '')}")
        self._check_grid(name, grid(meta) if callable(grid) else grid, {**meta, **given})
        self.records.append((name, given["delta"].data_ptr()))

    def _check_read(self, name: str, what: str, value: Any) -> None:
        want = self.read[what]
        x = value if what in ("lse", "delta") else _tensor_of(name, what, value)
        if not isinstance(x, torch.Tensor) or x.shape != want.shape or not torch.allclose(x, want, rtol=0.0, atol=1e-3 * (what == "delta")):
            if what == "delta":
                raise Wrong(f"{name} is launched before delta_kernel has written delta, or gets another tensor for it")
            same = (known for known, y in self.read.items() if torch.is_tensor(x) and x.shape == y.shape and torch.equal(x, y.to(x.dtype)))
            raise Wrong(f"{name} gets {next(same, 'something else')} where {what} belongs")

    def _check_written(self, name: str, what: str, value: Any) -> None:
        x, like = (value if what == "delta" else _tensor_of(name, what, value)), self.written[what]
        if not isinstance(x, torch.Tensor) or x.shape != like.shape:
            raise Wrong(f"{what}, which {name} gets, is {show(x)}, want a tensor of shape {tuple(like.shape)}")
        if x.dtype != like.dtype:
            why = "delta is a sum, and the kernels take it as float32, whatever q is" if what == "delta" else f"{what} is like {what[1:]}"
            raise Wrong(f"{what} is {_name(x.dtype)}, want {_name(like.dtype)}: {why}")
        if what == "delta" and not x.is_contiguous():
            raise Wrong(f"delta is not contiguous, and {name} takes it as if it were")

    def _check_grid(self, name: str, grid: Any, meta: Mapping[str, Any]) -> None:
        own = ("S_k", "BLOCK_N", "H_k") if name == "dkdv_kernel" else ("S_q", "BLOCK_M", "H_q")
        other = ("S_q", "BLOCK_M") if name == "dkdv_kernel" else ("S_k", "BLOCK_N")
        length, block, heads = self.numbers[own[0]], meta[own[1]], self.numbers[own[2]]
        blocks, B, programs = -(-length // block), self.B, math.prod(grid) if isinstance(grid, tuple | list) else grid
        want = blocks * B * heads
        if programs == want:
            return
        mistakes = {
            f"{name} has one program for each query head: dk and dv have H_k heads": blocks * B * self.numbers["H_q"],
            f"H_q is missing in {name}'s grid: its output has H_q heads": blocks * B * self.numbers["H_k"],
            f"the number of blocks is rounded down for {name}": length // block * B * heads,
            f"the heads are missing in {name}'s grid": blocks * B,
            f"the batch is missing in {name}'s grid": blocks * heads,
            f"{name} has one program for each row, not for each block": length * B * heads,
            f"batch and heads are missing in {name}'s grid": blocks,
            f"{name} divides the other length: its programs own blocks of {own[0]}":
                -(-self.numbers[other[0]] // meta.get(other[1], block)) * B * heads,
        }  # fmt: skip
        words = next((words for words, value in mistakes.items() if value == programs), f"{name} has the wrong grid")
        raise Wrong(f"{words}: {show(programs)} programs, want (cdiv({own[0]}, {own[1]}) · B · {own[2]},), which is {want}")

    def complaint(self, result: Any) -> str:
        """What is wrong with the launches of two calls, or with the dtypes of the result; "" for nothing."""
        half = len(self.records) // 2
        first, second = ([name for name, _ in records] for records in (self.records[:half], self.records[half:]))
        if first != second:
            return "a second call launches other kernels than the first: delta belongs to one call's o and do, and is not kept"
        is_empty = not self.read["q"].numel() or not self.read["k"].numel()
        for kernel, remedy in (("delta_kernel", ONCE), ("dkdv_kernel", "it computes dk and dv"), ("dq_kernel", "it computes dq")):
            times = first.count(kernel)
            if times == 0 and not is_empty:
                return f"{kernel} is never launched: {remedy}"
            if times > 1:
                return f"{kernel} is launched {times} times in a call, want once: {remedy}"
        given = dict(self.records[:half])
        for kernel in ("dkdv_kernel", "dq_kernel"):
            if not is_empty and given[kernel] != given["delta_kernel"]:
                return f"{kernel} reads another delta than delta_kernel wrote, which is a second sum or a copy: {ONCE}"
        for name, x in zip(("dq", "dk", "dv"), result, strict=True):
            if x.dtype != self.written[name].dtype:
                return f"{name} is {_name(x.dtype)}, want {_name(self.written[name].dtype)}, like {name[1:]}"
        return ""


def _callers() -> list[Any]:
    frame, codes = sys._getframe(1), []
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    return codes


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _is_number(value: Any, want: Any) -> bool:
    return value is None if want is None else not torch.is_tensor(value) and value is not None and math.isclose(value, want, rel_tol=1e-6)


def _tensor_of(name: str, what: str, given: Any) -> torch.Tensor:
    """The tensor of an argument that must be Heads, with that tensor's own strides."""
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], torch.Tensor) and len(given[1]) == 4):
        raise Wrong(f"{name} gets {show(given)} for {what}, want heads({what}): the tensor with its four strides")
    x, strides = given
    if any(u != stride for u, stride, size in zip(strides, x.stride(), x.shape, strict=True) if size > 1):
        raise Wrong(f"{name} gets wrong strides for {what}: heads({what}) takes its own; {tuple(strides)} instead of {x.stride()}")
    return x
