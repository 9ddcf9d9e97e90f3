"""What every grader is made of: run the answer safely, compare it with the truth, say what is wrong in one line.

A grader is a function of the reader's answer. It goes from the smallest input that shows a known mistake to fresh random ones,
and raises Wrong with the first diagnosis. Messages hold no random numbers, so that the same mistake gets the same line.
Functions are run by `run`, kernels by `run_kernel`: both twice, on copies, with what surrounds the data poisoned.
"""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fa_tutorial import hardware

GUARD = 4096  # elements before and after a kernel's buffer: more than the largest tile that a grader asks for runs over
SENTINEL = 12_288.0  # exact in fp16, bf16 and fp32, and no grader's result


class Wrong(Exception):
    """The answer is wrong; the message says how, in the terms of the chapter."""


class NotAttempted(Exception):
    """The answer is still the starter."""


# ---------------------------------------------------------------- showing values


def show(value: Any) -> str:
    """A value in at most four digits, the same on every run: numbers, short tensors, else the shape."""
    if isinstance(value, tuple):
        return "(" + ", ".join(show(item) for item in value) + ")"
    if isinstance(value, bool | int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, torch.Tensor):
        if value.numel() > 12:
            return f"a tensor of shape {tuple(value.shape)}"
        return show_nested(value.tolist())
    return repr(value)


def show_nested(values: Any) -> str:
    if isinstance(values, list):
        return "[" + ", ".join(show_nested(value) for value in values) + "]"
    return f"{values:.4g}"


# ---------------------------------------------------------------- running a function


def run(answer: Callable, *args: Any) -> Any:
    """answer(*args), called twice on fresh copies. Wrong if it raises, changes its input, or differs between the two calls."""
    if not callable(answer):
        raise Wrong(f"pass the function itself, not {show(answer)}")
    first, second = _call(answer, args), _call(answer, args)
    if not _same(first, second):
        raise Wrong("two calls with the same input differ: nothing may be kept from one call to the next, or left uninitialised")
    return first


def _call(answer: Callable, args: Sequence[Any]) -> Any:
    copies = [_copy(arg) for arg in args]
    try:
        result = answer(*copies)
    except NotImplementedError:
        raise NotAttempted from None
    except Exception as error:
        raise Wrong(f"raises {type(error).__name__}: {error}{_where(error, answer)}") from error
    names = list(_parameters(answer))
    for position, (arg, copy) in enumerate(zip(args, copies, strict=True)):
        if isinstance(arg, torch.Tensor) and not _same(arg, copy):
            name = names[position] if position < len(names) else f"argument {position + 1}"
            raise Wrong(f"changes its input {name} in place: work on a copy")
    return result


def _parameters(answer: Callable) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(answer).parameters
    except (TypeError, ValueError):
        return {}


def _copy(value: Any) -> Any:
    """A copy of a tensor with its own memory, the same strides and the same surroundings; other values as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage().clone()
    return torch.empty(0, dtype=value.dtype, device=value.device).set_(storage, value.storage_offset(), value.shape, value.stride())


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and torch.equal(torch.nan_to_num(a, nan=SENTINEL), torch.nan_to_num(b, nan=SENTINEL))
    return a == b or (a != a and b != b)


def _where(error: BaseException, answer: Any) -> str:
    """The last line of the answer's own code that the error passed through, as " (line 3 of f: `…`)", or nothing."""
    function = inspect.unwrap(getattr(answer, "fn", answer))
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    first = code.co_firstlineno
    frames = [frame for cause in _chain(error) for frame in traceback.extract_tb(cause.__traceback__) if frame.filename == code.co_filename]
    if not frames:
        return ""
    number = frames[-1].lineno
    line = linecache.getline(code.co_filename, number).strip()
    return f" (line {number - first + 1} of {function.__name__}: `{line}`)" if line else ""


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error and what caused it, outermost first."""
    chain = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


# ---------------------------------------------------------------- comparing


def unpack(result: Any, names: Sequence[str]) -> list[Any]:
    """The parts of a result that should be a tuple of len(names)."""
    if not isinstance(result, tuple | list) or len(result) != len(names):
        raise Wrong(f"returns {_kind(result)}, want a tuple ({', '.join(names)})")
    return list(result)


def _kind(result: Any) -> str:
    if result is None:
        return "None (is the return missing?)"
    if isinstance(result, tuple | list):
        return f"a {type(result).__name__} of {len(result)}"
    if isinstance(result, torch.Tensor):
        return f"a tensor of shape {tuple(result.shape)}"
    return f"{show(result)}" if isinstance(result, int | float) else f"a {type(result).__name__}"


def as_tensor(result: Any, what: str = "the result") -> torch.Tensor:
    """A number or tensor as float64 on the CPU."""
    if isinstance(result, torch.Tensor):
        return result.detach().double().cpu()
    try:
        return torch.tensor(float(result), dtype=torch.float64)
    except (TypeError, ValueError):
        raise Wrong(f"{what} is {_kind(result)}, want a number or a tensor") from None


def expect(
    got: Any,
    want: Any,
    *,
    on: str,
    otherwise: str,
    suspects: Mapping[str, Any] | None = None,
    what: str = "",
    rtol: float = 1e-4,
    atol: float = 1e-6,
    values: bool = True,
) -> None:
    """Raise Wrong unless `got` is `want`, within atol + rtol · |want|. NaN passes only where want is NaN.

    on: the input, in words. otherwise: the diagnosis in general. suspects: diagnosis -> the value that this very mistake gives;
    the first whose value is `got` names the mistake. values: show the numbers; False for fresh inputs, whose message must not vary.
    """
    got, want = as_tensor(got, what or "the result"), as_tensor(want)
    subject = f"{what} " if what else ""
    if got.shape != want.shape:
        raise Wrong(f"{otherwise}: {on} gives {subject}shape {tuple(got.shape)}, want {tuple(want.shape)}")
    if close(got, want, rtol, atol):
        return
    named = ((name, as_tensor(value)) for name, value in (suspects or {}).items())
    diagnosis = next((name for name, value in named if value.shape == got.shape and close(got, value, rtol, atol)), otherwise)
    shown = f" gives {subject}{_difference(got, want, rtol, atol)}" if values else f", {what or 'the result'}"
    raise Wrong(f"{diagnosis}: {on}{shown}")


def close(got: torch.Tensor, want: torch.Tensor, rtol: float, atol: float) -> bool:
    """True where every element agrees; infinities must be equal, NaN agrees with NaN alone."""
    return torch.allclose(got.double(), want.double(), rtol=rtol, atol=atol, equal_nan=True)


def _difference(got: torch.Tensor, want: torch.Tensor, rtol: float, atol: float) -> str:
    if want.numel() <= 4:
        return f"{_show_tensor(got)}, want {_show_tensor(want)}"
    bad = ~torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
    index = tuple(torch.nonzero(bad)[0].tolist())
    place = ", ".join(map(str, index))
    return f"{_show_tensor(got[index])} at [{place}], want {_show_tensor(want[index])}"


def _show_tensor(value: torch.Tensor) -> str:
    exact = value.ndim == 0 and float(value).is_integer() and abs(float(value)) < 2**53
    return f"{int(value):,}" if exact else show_nested(value.tolist())


def expect_equal(got: Any, want: Any, *, on: str, otherwise: str, suspects: Mapping[str, Any] | None = None, values: bool = True) -> None:
    """Raise Wrong unless `got` equals `want` exactly: integers, or tuples of them. Floats that are whole numbers count as integers.

    The other arguments are those of `expect`.
    """
    if _same(got, want):
        return
    diagnosis = next((name for name, value in (suspects or {}).items() if _same(got, value)), otherwise)
    shown = show(got) if isinstance(got, int | float | tuple) else _kind(got)
    raise Wrong(f"{diagnosis}: {on}" + (f" gives {shown}, want {show(want)}" if values else ""))


def fresh() -> torch.Generator:
    """A generator with a new seed each time: an answer that knows the inputs cannot pass."""
    generator = torch.Generator()
    generator.seed()
    return generator


# ---------------------------------------------------------------- running a kernel


@dataclass(frozen=True)
class Buffer:
    """A tensor for a kernel, inside memory whose every other element is a guard.

    name: the kernel's parameter. data: what an input holds; None for an output, which is poisoned before each run.
    """

    name: str
    memory: torch.Tensor
    tensor: torch.Tensor
    data: torch.Tensor | None

    def reset(self, poison: float) -> None:
        """Guards of inputs are NaN, so that a stray read shows; guards of outputs SENTINEL, so that a stray write does."""
        if self.data is None:
            self.memory.fill_(SENTINEL)
            self.tensor.fill_(poison)
        else:
            self.memory.fill_(float("nan"))
            self.tensor.copy_(self.data)


def input_buffer(name: str, data: torch.Tensor, strides: Sequence[int] | None = None) -> Buffer:
    """A kernel's input holding `data`, with the given element strides (default: contiguous)."""
    return _buffer(name, data.shape, data.dtype, strides, data)


def output_buffer(name: str, shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None) -> Buffer:
    """A kernel's output of this shape, with the given element strides (default: contiguous)."""
    return _buffer(name, shape, dtype, strides, None)


def _buffer(name: str, shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None, data: torch.Tensor | None) -> Buffer:
    strides = torch.empty(tuple(shape), device="meta").stride() if strides is None else tuple(strides)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = torch.empty(GUARD + extent + GUARD, dtype=dtype, device=hardware.device())
    return Buffer(name, memory, memory.as_strided(tuple(shape), strides, GUARD), data)


def run_kernel(kernel: Any, grid: tuple[int, ...], args: Sequence[Any], **meta: int) -> list[torch.Tensor]:
    """Launch the reader's kernel on `grid` twice, and return its outputs as float64 CPU tensors.

    args: the kernel's positional arguments, Buffers and numbers. meta: its tl.constexpr arguments.
    Wrong if it is no kernel, takes other parameters, raises, writes to an input or outside an output, leaves an element of an
    output unwritten, or differs between the runs. A NaN that it computes is returned, for the grader to explain.
    """
    _check_kernel(kernel, len(args), meta)
    buffers = [arg for arg in args if isinstance(arg, Buffer)]
    runs = []
    for poison in (float("nan"), SENTINEL):
        for buffer in buffers:
            buffer.reset(poison)
        before = {buffer.name: buffer.memory.clone() for buffer in buffers}
        _launch(kernel, grid, [arg.tensor if isinstance(arg, Buffer) else arg for arg in args], meta)
        for buffer in buffers:
            _check_guards(buffer, before[buffer.name])
        runs.append([buffer.tensor.double().cpu() for buffer in buffers if buffer.data is None])
    names = [buffer.name.removesuffix("_ptr") for buffer in buffers if buffer.data is None]
    for name, first, second in zip(names, *runs, strict=True):
        _check_written(name, first, second)
    return runs[0]


def _check_kernel(kernel: Any, positional: int, meta: Mapping[str, int]) -> None:
    if not (hasattr(kernel, "fn") and hasattr(kernel, "__getitem__")):
        if callable(kernel):
            raise Wrong("is a plain function, not a kernel: put @triton.jit above it")
        raise Wrong(f"pass the kernel itself, not {show(kernel)}")
    parameters = inspect.signature(kernel.fn).parameters
    names = list(parameters)
    extra = [name for name in names[positional:] if name not in meta and parameters[name].default is inspect.Parameter.empty]
    missing = [name for name in meta if name not in parameters]
    if len(names) < positional + len(meta) or extra or missing:
        raise Wrong(f"takes ({', '.join(names)}): keep the parameters of the starter, {positional} and then {', '.join(meta)}")
    for name in meta:
        if "constexpr" not in str(parameters[name].annotation):
            raise Wrong(f"{name} must be annotated tl.constexpr: shapes of blocks are fixed when the kernel is compiled")
    _check_starter(kernel, len(names))


def _check_starter(kernel: Any, count: int) -> None:
    """NotAttempted if the body's first statement raises NotImplementedError. Run, not read: a real body stops at its first tl call."""
    try:
        kernel.fn(*[None] * count)
    except NotImplementedError:
        raise NotAttempted from None
    except Exception:
        return


def _launch(kernel: Any, grid: tuple[int, ...], args: Sequence[Any], meta: Mapping[str, int]) -> None:
    try:
        kernel[grid](*args, **meta)
        if hardware.device().type == "cuda":
            torch.cuda.synchronize()
    except Exception as error:
        root = _chain(error)[-1]
        if any(isinstance(cause, NotImplementedError) for cause in _chain(error)):
            raise NotAttempted from None
        if "CUDA error" in str(error) or "illegal memory access" in str(error):
            raise Wrong(
                "the GPU stopped it with an illegal memory access: an offset runs out of the tensor. Restart the notebook's kernel"
            ) from error
        raise Wrong(f"does not run: {_reason(error, root)}{_where(error, kernel) or _compiled_line(error)}") from error


def _reason(error: BaseException, root: BaseException) -> str:
    """The last line of an error: compilers put the source excerpt first."""
    lines = [line.strip() for line in str(root).splitlines() if line.strip() and set(line.strip()) != {"^"}]
    return f"{type(root).__name__}: {lines[-1] if lines else type(error).__name__}"


def _compiled_line(error: BaseException) -> str:
    for cause in _chain(error):
        node, source = getattr(cause, "node", None), getattr(cause, "src", None)
        if node is not None and source is not None and hasattr(node, "lineno"):
            lines = source.splitlines()
            if node.lineno <= len(lines):
                return f" (`{lines[node.lineno - 1].strip()}`)"
    return ""


def _check_guards(buffer: Buffer, before: torch.Tensor) -> None:
    """Wrong if memory changed that is not the output's own."""
    after = buffer.memory
    changed = ~((after == before) | (torch.isnan(after) & torch.isnan(before)))
    name = buffer.name.removesuffix("_ptr")
    if buffer.data is not None:
        if changed.any():
            raise Wrong(f"writes to {name}, which is an input")
        return
    own = torch.zeros_like(changed)
    own.as_strided(buffer.tensor.shape, buffer.tensor.stride(), GUARD).fill_(True)
    stray = torch.nonzero(changed & ~own).flatten()
    if len(stray):
        raise Wrong(f"writes outside {name} (shape {tuple(buffer.tensor.shape)}, strides {buffer.tensor.stride()}), "
                    f"at element offset {int(stray[0]) - GUARD}: mask the store")  # fmt: skip


def _check_written(name: str, first: torch.Tensor, second: torch.Tensor) -> None:
    """Wrong if an element kept its poison in both runs, or the runs differ."""
    unwritten = torch.nonzero(torch.isnan(first) & (second == SENTINEL))
    if len(unwritten):
        place = ", ".join(map(str, unwritten[0].tolist()))
        raise Wrong(f"never writes {name}[{place}] of shape {tuple(first.shape)}")
    if not _same(first, second):
        raise Wrong(
            f"two runs with the same input give a different {name}: it reads what it should write, or programs overwrite each other"
        )
