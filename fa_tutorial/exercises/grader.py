"""What every grader is made of: run the answer safely, compare it with the truth, say what is wrong in one line.

A grader is a function of the reader's answer. It goes from the smallest input that shows a known mistake to fresh random ones,
and raises Wrong with the first diagnosis. Messages hold no random numbers, so that the same mistake gets the same line.
Functions are run by `run`, kernels by `run_kernel`: both twice, on copies, with what surrounds the data poisoned.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import linecache
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from fa_tutorial import hardware

GUARD = 8192  # elements before and after a kernel's buffer: more than the largest tile that a grader asks for runs over; small enough for one thread
OTHERS = "right on the small cases, wrong on others"
VALUES = (int, float, str, tuple, list, torch.Tensor, np.ndarray, np.generic, type(None))
SENTINEL = 12_288.0  # exact in fp16, bf16 and fp32, and no grader's result


ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Wrong(Exception):
    """The answer is wrong; the message says how, in the terms of the chapter, and names no object's address, which differs from run to run."""

    def __init__(self, message: str) -> None:
        super().__init__(ADDRESS.sub("", message))


class NotAttempted(Exception):
    """The answer is still the starter."""


# ---------------------------------------------------------------- showing values


def show(value: Any) -> str:
    """A value in at most four digits, the same on every run: numbers, short tensors, else the shape; functions, classes and kernels by name."""
    if isinstance(value, tuple):
        return "(" + ", ".join(show(item) for item in value) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, bool | int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, torch.Tensor):
        if value.numel() > 12:
            return f"a tensor of shape {tuple(value.shape)}"
        return show_nested(value.tolist())
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if hasattr(value, "fn"):
        return f"the kernel {getattr(value.fn, '__name__', '')}".strip()
    if inspect.isroutine(value):
        return f"the function {value.__name__}"
    return repr(value)


def show_nested(values: Any) -> str:
    if isinstance(values, list):
        return "[" + ", ".join(show_nested(value) for value in values) + "]"
    return f"{values:.4g}"


# ---------------------------------------------------------------- running a function


def run(answer: Callable, *args: Any, on: str = "") -> Any:
    """answer(*args), called twice on fresh copies. Wrong if it raises, changes its input, or differs between the two calls.

    on: the input, in words; what goes wrong is told with it.
    """
    if not callable(answer):
        raise Wrong(f"pass the function itself, not {show(answer)}")
    with told_on(on):
        first, second = _call(answer, args), _call(answer, args)
        if not _same(first, second):
            if not isinstance(first, VALUES):  # a generator, a dict: two of them are never the same
                raise Wrong(f"returns {_kind(first)}, want a number, a tensor, or a tuple of them")
            raise Wrong("two calls with the same input differ: nothing may be kept from one call to the next, or left uninitialised")
    return first


@contextlib.contextmanager
def told_on(on: str) -> Iterator[None]:
    """Put the input's description in front of a diagnosis that is raised inside."""
    try:
        yield
    except Wrong as wrong:
        raise (Wrong(f"{on}: {wrong}") if on else wrong) from wrong.__cause__


def _call(answer: Callable, args: Sequence[Any]) -> Any:
    copies = [_copy(arg) for arg in args]
    try:
        result = answer(*copies)
    except NotImplementedError as error:
        raise NotAttempted(_left_over(error, answer)) from None
    except Exception as error:
        raise Wrong(f"raises {type(error).__name__}: {error}{where_in(error, answer)}") from error
    names = list(_parameters(answer))
    for position, (arg, copy) in enumerate(zip(args, copies, strict=True)):
        if isinstance(arg, torch.Tensor) and not _same(arg, copy):
            name = names[position] if position < len(names) else f"argument {position + 1}"
            raise Wrong(f"changes its input {name} in place: work on a copy")
    return result


class PoisonedEmpty(TorchFunctionMode):
    """Fills what torch.empty and its kin give with NaN, so that what is never written shows, and shows the same on every run."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if "empty" in getattr(func, "__name__", "") and isinstance(result, torch.Tensor) and result.is_floating_point():
            result.fill_(torch.nan)
        return result


def _left_over(error: NotImplementedError, answer: Callable) -> str:
    """Words for a reader whose code stands above the starter's raise; empty where the raise is the first line that runs."""
    code = getattr(answer, "__code__", None)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if code is not None and frame.name == code.co_name]
    if not frames:
        return ""
    body = (line for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno)
    first = min(body, default=code.co_firstlineno)
    return "the starter's `raise NotImplementedError` still stands below your lines: delete it" if frames[-1].lineno > first else ""


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
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return _same(torch.as_tensor(a), torch.as_tensor(b))
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and torch.equal(torch.nan_to_num(a, nan=SENTINEL), torch.nan_to_num(b, nan=SENTINEL))
    try:
        return bool(a == b or (a != a and b != b))
    except (RuntimeError, ValueError):  # an array against a number has no one truth value
        return False


def where_in(error: BaseException, answer: Any) -> str:
    """The last line of the answer's own code that the error passed through, as " (line 3 of f: `…`)", or nothing."""
    function = inspect.unwrap(getattr(answer, "fn", answer))
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    first = code.co_firstlineno
    frames = [frame for cause in _chain(error) for frame in traceback.extract_tb(cause.__traceback__) if frame.filename == code.co_filename]
    if not frames:
        return ""
    frame = frames[-1]
    line = linecache.getline(code.co_filename, frame.lineno).strip()
    place = f"line {frame.lineno - first + 1} of {function.__name__}" if frame.name == code.co_name else f"in {frame.name}"
    return f" ({place}: `{line}`)" if line else ""


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error and what caused it, outermost first."""
    chain = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


# ---------------------------------------------------------------- comparing


def unpack(result: Any, names: Sequence[str], on: str = "") -> list[Any]:
    """The parts of a result that should be a tuple of len(names). on: the input, in words."""
    with told_on(on):
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
    """A number, tensor or NumPy array as float64 on the CPU."""
    if isinstance(result, np.ndarray) and result.dtype.kind in "fiub":
        result = torch.as_tensor(result)
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
    subject = f"{what} = " if what else ""
    if got.shape != want.shape:
        raise Wrong(f"{otherwise}: {on} gives {what + ' ' if what else ''}shape {tuple(got.shape)}, want {tuple(want.shape)}")
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
    own: bool, of memory's shape, on the CPU: True at the tensor's own elements.
    """

    name: str
    memory: torch.Tensor
    tensor: torch.Tensor
    data: torch.Tensor | None
    own: torch.Tensor

    def on_cpu(self) -> Buffer:
        """The same buffer in the CPU's memory."""
        memory = self.memory.cpu()
        return replace(self, memory=memory, tensor=memory.as_strided(self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset()))

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
    own = torch.zeros(memory.shape, dtype=torch.bool)
    own.as_strided(tuple(shape), strides, GUARD).fill_(True)
    return Buffer(name, memory, memory.as_strided(tuple(shape), strides, GUARD), data, own)


class Stray(Wrong):
    """A kernel reads or writes an element that belongs to none of its tensors.

    access: which, and where in the source if that is known. brief: the same without the shape, the strides, the offset and the line.
    """

    def __init__(self, access: str, remedy: str, line: str = "") -> None:
        super().__init__(f"{access}: {remedy}{line}")
        self.access = f"{access}{line}"
        self.brief = access.split(" (shape")[0]
        self.remedy = remedy


class Unwritten(Wrong):
    """A kernel leaves elements of an output unwritten. written: bool, of the output's shape, True where it wrote."""

    def __init__(self, message: str, written: torch.Tensor) -> None:
        super().__init__(message)
        self.written = written


@contextlib.contextmanager
def misses_told(on: str, *, stray: str, unwritten: str) -> Iterator[None]:
    """Turn Stray and Unwritten, raised inside, into Wrong with the diagnosis that belongs to each. on: the input, in words."""
    try:
        yield
    except Unwritten as wrong:
        raise Wrong(f"{unwritten}: {on}, it {wrong}") from wrong
    except Stray as wrong:
        raise Wrong(f"{stray}: {on}, it {wrong.brief}") from wrong


def run_kernel(kernel: Any, grid: tuple[int, ...], args: Sequence[Any], **meta: int) -> list[torch.Tensor]:
    """Launch the reader's kernel on `grid` twice, and return its outputs as float64 CPU tensors.

    args: the kernel's positional arguments, Buffers and numbers. meta: its tl.constexpr arguments.
    Wrong if it is no kernel, takes other parameters, raises, writes to an input, or differs between the runs; Stray if it writes
    outside an output; Unwritten if it leaves an element of an output as it was. A NaN that it computes is returned, for the grader
    to explain. A read outside the tensors is Stray too where the interpreter can run the kernel: see _rehearse.
    """
    _check_kernel(kernel, len(args), meta)
    _rehearse(kernel, grid, args, meta)
    buffers = [arg for arg in args if isinstance(arg, Buffer)]
    runs = []
    for poison in (float("nan"), SENTINEL):
        for buffer in buffers:
            buffer.reset(poison)
        before = {buffer.name: buffer.memory.clone() for buffer in buffers}
        with _watched(buffers):
            _launch(kernel, grid, [arg.tensor if isinstance(arg, Buffer) else arg for arg in args], meta)
        for buffer in buffers:
            _check_guards(buffer, before[buffer.name])
        runs.append([buffer.tensor.double().cpu() for buffer in buffers if buffer.data is None])
    names = [buffer.name.removesuffix("_ptr") for buffer in buffers if buffer.data is None]
    for name, first, second in zip(names, *runs, strict=True):
        _check_written(name, first, second)
    return runs[0]


def _rehearse(kernel: Any, grid: tuple[int, ...], args: Sequence[Any], meta: Mapping[str, int]) -> None:
    """On a GPU, run the kernel's function in the interpreter first, on copies, to see the reads outside its tensors that a GPU hides.

    What the interpreter cannot run in this process (tl.max and its kin are compiled already) is left to the GPU.
    """
    if hardware.interpreter_on():
        return
    from triton.runtime.interpreter import InterpretedFunction

    copies = [arg.on_cpu() if isinstance(arg, Buffer) else arg for arg in args]
    buffers = [copy for copy in copies if isinstance(copy, Buffer)]
    for buffer in buffers:
        buffer.reset(SENTINEL)
    try:
        with _watched(buffers), np.errstate(all="ignore"):
            InterpretedFunction(kernel.fn)[grid](*(copy.tensor if isinstance(copy, Buffer) else copy for copy in copies), **meta)
    except Exception as error:
        root = _chain(error)[-1]
        if isinstance(root, Stray):
            raise Stray(root.access, root.remedy, where_in(error, kernel)) from None


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
        with np.errstate(all="ignore"), _patched_once():  # the interpreter computes with NumPy, which would warn of every inf and NaN
            kernel[grid](*args, **meta)
        if hardware.device().type == "cuda":
            torch.cuda.synchronize()
    except Exception as error:
        root = _chain(error)[-1]
        if isinstance(root, Wrong):  # raised by _watched, inside the interpreter
            line = where_in(error, kernel)
            raise (Stray(root.access, root.remedy, line) if isinstance(root, Stray) else Wrong(f"{root}{line}")) from None
        if any(_is_starter(cause, kernel) for cause in _chain(error)):
            raise NotAttempted from None
        if "CUDA error" in str(error) or "illegal memory access" in str(error):
            raise Wrong(
                "the GPU stopped it with an illegal memory access: an offset runs out of the tensor. Restart the notebook's kernel"
            ) from error
        line = where_in(error, kernel) or _compiled_line(error)
        raise Wrong(f"does not run: {_reason(error, root, kernel, line)}{line}") from error


@contextlib.contextmanager
def _patched_once() -> Iterator[None]:
    """During one launch, let the interpreter replace the functions of triton.language once for each module that calls them.

    It does so again at every call of a @triton.jit function, which is a quarter of a launch's time, and changes nothing: only the end of
    the launch takes the replacements back.
    """
    from triton.runtime import interpreter

    patch, patched = getattr(interpreter, "_patch_lang", None), set()
    if patch is None:  # a private function, which another Triton may not have
        yield
        return

    def patch_once(function: Callable) -> Any:
        module = id(function.__globals__)
        if module not in patched:
            patched.add(module)
            return patch(function)
        return None

    interpreter._patch_lang = patch_once
    try:
        yield
    finally:
        interpreter._patch_lang = patch


def _is_starter(error: BaseException, kernel: Any) -> bool:
    """True where the kernel's own `raise NotImplementedError` was reached, or the compiler stumbled over it."""
    if isinstance(error, NotImplementedError):  # Triton raises it too, for what the interpreter lacks
        frames = traceback.extract_tb(error.__traceback__)
        return bool(frames) and frames[-1].filename == kernel.fn.__code__.co_filename
    node = getattr(error, "node", None)
    return isinstance(node, ast.Raise) and "NotImplementedError" in ast.dump(node)


FOREIGN_CALL = re.compile(r"(?<![\w.])((?:torch|np|numpy)(?:\.\w+)+)\(")


def _reason(error: BaseException, root: BaseException, kernel: Any, line: str) -> str:
    """Why a kernel does not run: by its source or the line, as where_in shows it, where Triton's own words lead nowhere, else by these."""
    if re.search(r"_ptr\s*\[", line):
        return "a pointer takes no index: use tl.load(pointer + offsets) and tl.store"
    if foreign := FOREIGN_CALL.search(inspect.getsource(kernel.fn)):
        return f"{foreign[1]} is no part of Triton: inside a kernel only triton.language works, tl.arange, tl.exp, tl.sum and so on"
    if "`assert " in line:
        return "its assert does not hold"
    if isinstance(root, AssertionError) and not str(root):
        return "Triton refuses the types of these operands; an accumulator, for one, must be float32"
    # The last line: compilers put the source excerpt first.
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


# The interpreter's ways to memory: at which positions their addresses and their mask come, and whether they write.
ACCESSES = {"create_masked_load": (0, 1, False), "create_masked_store": (0, 2, True), "create_atomic_rmw": (1, 3, True)}


@contextlib.contextmanager
def _watched(buffers: Sequence[Buffer]) -> Iterator[None]:
    """Look at every load and store of the interpreter before it happens: Wrong if it is outside the tensors, or writes to an input."""
    from triton.runtime.interpreter import interpreter_builder as builder

    for name in ACCESSES:
        setattr(builder, name, _watch(getattr(builder, name), buffers, *ACCESSES[name]))
    try:
        yield
    finally:
        for name in ACCESSES:
            delattr(builder, name)  # the class's own methods show again


def _watch(method: Callable, buffers: Sequence[Buffer], ptrs: int, mask: int, is_store: bool) -> Callable:
    def watched(*args: Any, **options: Any) -> Any:
        _check_access(buffers, args[ptrs], args[mask], is_store)
        return method(*args, **options)

    return watched


def _check_access(buffers: Sequence[Buffer], ptrs: Any, mask: Any, is_store: bool) -> None:
    """Wrong unless every address that the mask lets through is an element of a buffer, and of an output where it is stored to."""
    addresses = ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape).astype(bool)].astype(np.int64)
    if not addresses.size:
        return
    lowest, highest = addresses.min(), addresses.max()
    stray = np.ones(addresses.shape, dtype=bool)
    for buffer in buffers:
        start, itemsize, elements = buffer.memory.data_ptr(), buffer.memory.element_size(), buffer.memory.numel()
        if highest < start or lowest >= start + elements * itemsize:  # most accesses are to another buffer, and this runs at each one
            continue
        places = (addresses - start) // itemsize
        near = (places >= 0) & (places < elements)
        own = near.copy()
        own[near] = buffer.own.numpy()[places[near]]
        if is_store and buffer.data is not None and own.any():
            raise _written_input(buffer)
        if (near & ~own).any():
            raise _stray(buffer, int(places[near & ~own][0]) - GUARD, is_store)
        stray &= ~own
    if stray.any():
        raise Stray(f"{'writes' if is_store else 'reads'} far outside its tensors", "mend the offsets")


def _stray(buffer: Buffer, offset: int, is_store: bool) -> Stray:
    name, shape, strides = buffer.name.removesuffix("_ptr"), tuple(buffer.tensor.shape), buffer.tensor.stride()
    verb, remedy = ("writes", "mask the store, or mend its offsets") if is_store else ("reads", "mask the load, or mend its offsets")
    return Stray(f"{verb} outside {name} (shape {shape}, strides {strides}), at element offset {offset}", remedy)


def _written_input(buffer: Buffer) -> Wrong:
    return Wrong(f"writes to {buffer.name.removesuffix('_ptr')}, which is an input")


def _check_guards(buffer: Buffer, before: torch.Tensor) -> None:
    """Wrong if memory changed that is not the output's own."""
    after = buffer.memory
    changed = ~((after == before) | (torch.isnan(after) & torch.isnan(before)))
    if buffer.data is not None:
        if changed.any():
            raise _written_input(buffer)
        return
    stray = torch.nonzero(changed & ~buffer.own.to(changed.device)).flatten()
    if len(stray):
        raise _stray(buffer, int(stray[0]) - GUARD, is_store=True)


def _check_written(name: str, first: torch.Tensor, second: torch.Tensor) -> None:
    """Wrong if an element kept its poison in both runs, or the runs differ."""
    unwritten = torch.isnan(first) & (second == SENTINEL)
    if unwritten.any():
        place = ", ".join(map(str, torch.nonzero(unwritten)[0].tolist()))
        raise Unwritten(f"never writes {name}[{place}] of shape {tuple(first.shape)}", ~unwritten)
    if not _same(first, second):
        raise Wrong(
            f"two runs with the same input give a different {name}: it reads what it should write, or programs overwrite each other"
        )
