"""Runs a reader's function for the harness: twice, on copies, for 30 s at most; and shows values, errors and lines in words."""

import contextlib
import functools
import inspect
import linecache
import math
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

UNWRITTEN = -1.5e300  # stands in a float64 result where a kernel stores nothing
INF = math.inf
TIME_LIMIT = 30.0  # seconds for one run of an answer; a right one takes 1 at most


class Wrong(Exception):
    """The answer is wrong. The message says how, in the chapter's terms, and shows no object's address, which differs from run to run."""

    def __init__(self, message: str) -> None:
        super().__init__(re.sub(r" at 0x[0-9a-fA-F]+", "", message))


class NotAttempted(Exception):
    """The answer is still the starter."""


class Endless(BaseException):
    """A run of the answer took longer than TIME_LIMIT. It is no Exception, so no `except Exception` on its way to `judge` catches it."""


def same(a: Any, b: Any) -> bool:
    """Whether two values are exactly equal: numbers, tensors, arrays, tuples and lists of them; NaN equals NaN."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return same(torch.as_tensor(a), torch.as_tensor(b))
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
    try:
        return bool(a == b or (a != a and b != b))
    except (RuntimeError, ValueError):  # an array against a number has no single truth value
        return False


# ---------------------------------------------------------------- showing values


def show(value: Any) -> str:
    """A value in at most four digits, the same on every run: numbers, short tensors, else the shape; what has a name, by its name."""
    if isinstance(value, tuple):
        return "(" + ", ".join(show(item) for item in value) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return show_number(value)
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}" if value.numel() > 12 else show_nested(value.tolist())
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if hasattr(value, "fn"):
        return f"the kernel {getattr(value.fn, '__name__', '')}".strip()
    return f"the function {value.__name__}" if inspect.isroutine(value) else repr(value)


def show_nested(values: Any) -> str:
    """Nested lists of numbers in at most four digits each."""
    return "[" + ", ".join(map(show_nested, values)) + "]" if isinstance(values, list) else show_number(values)


def show_number(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def show_tensor(value: torch.Tensor) -> str:
    is_whole = value.ndim == 0 and float(value).is_integer() and abs(float(value)) < 2**53
    return f"{int(value):,}".replace("-", "−") if is_whole else show_nested(value.tolist())


def kind(result: Any) -> str:
    """What kind of thing a result is, in words."""
    if result is None:
        return "None (is the return missing?)"
    if isinstance(result, tuple | list):
        return f"a {type(result).__name__} of {len(result)}"
    if isinstance(result, torch.Tensor):
        return f"a tensor of shape {tuple(result.shape)}"
    return show(result) if isinstance(result, int | float) else f"a {type(result).__name__}"


def unpack(result: Any, names: Sequence[str]) -> dict[str, Any]:
    """The parts of a result that should be a tuple of len(names), by name."""
    if not isinstance(result, tuple | list) or len(result) != len(names):
        raise Wrong(f"returns {kind(result)}, want a tuple ({', '.join(names)})")
    return dict(zip(names, result, strict=True))


def as_tensor(result: Any, what: str) -> torch.Tensor:
    """A number, tensor or NumPy array as float64 on the CPU."""
    if isinstance(result, np.ndarray) and result.dtype.kind in "fiub":
        result = torch.as_tensor(result)
    if isinstance(result, torch.Tensor):
        return result.detach().double().cpu()
    try:
        return torch.tensor(float(result), dtype=torch.float64)
    except (TypeError, ValueError):
        raise Wrong(f"{what} is {kind(result)}, want a number or a tensor") from None


# ---------------------------------------------------------------- running a function


def run(answer: Callable, *args: Any, once: bool = False) -> Any:
    """answer(*args), called twice on fresh copies, or once. Wrong if it raises, changes its input, or differs between the two calls."""
    if not callable(answer):
        raise Wrong(f"pass the function itself, not {show(answer)}")
    first = _call(answer, args)
    second = first if once else _call(answer, args)
    try:
        is_same = same(first, second)
    except RecursionError:
        raise Wrong("returns a list that holds itself") from None
    if isinstance(first, Iterator) or not (is_same or isinstance(first, VALUES)):
        remedy = " (brackets around a loop make no tuple, tuple(…) does)" if isinstance(first, Iterator) else ""
        raise Wrong(f"returns {kind(first)}, want a number, a tensor, or a tuple of them{remedy}")
    if not is_same:
        raise Wrong("two calls with the same input differ: nothing may be kept between calls, left uninitialised, or drawn without a seed")
    return first


def adapting(run: Callable) -> Callable:
    """Decorates (answer, *args), which is run in an answer's place, for an exercise's `adapt`."""

    def adapt(answer: Callable) -> Callable:
        @functools.wraps(answer)
        def called(*args: Any) -> Any:
            return run(answer, *args)

        return called

    return adapt


REMEDIES = (  # what PyTorch says to a newcomer, and what to do about it
    ("torch.return_types.m", "max and min along a dimension return a pair: take its .values, or use amax and amin"),
    ("Boolean value of Tensor", "an if can't decide for several elements at once: torch.where decides for each"),
    ("Did you forget to add @triton.jit", "tl works only inside a kernel: outside use Python's own min, max and //"),
    ("math range error", "math.exp overflows above 709: no exponent may be positive, not even for a while"),
)
VALUES = (int, float, str, tuple, list, torch.Tensor, np.ndarray, np.generic, type(None))


def _call(answer: Callable, args: Sequence[Any]) -> Any:
    copies = [copy_of(arg) for arg in args]
    try:
        with PoisonedEmpty(), time_limit():
            result = answer(*copies)
    except Wrong:  # by what stands in the answer's place or watches it
        raise
    except Exception as error:
        if isinstance(error, NotImplementedError) and not error.args:  # a starter's: PyTorch's has a reason
            raise _of_a_starter(error, answer) from None
        remedy = next((f"; {advice}" for words, advice in REMEDIES if words in str(error)), "") or _narrowed(error, args)
        raise Wrong(f"raises {type(error).__name__}: {error}{where_in(error, answer)}{remedy}") from error
    for position, (arg, copy) in enumerate(zip(args, copies, strict=True)):
        if isinstance(arg, torch.Tensor | list) and not same(arg, copy):
            raise Wrong(f"changes its input {_parameter(answer, position)} in place: work on a copy")
    return result


def _narrowed(error: Exception, args: Sequence[Any]) -> str:
    """What to do where PyTorch refuses to mix float64, which went in, with a float32 that the answer made."""
    mixes = {"double", "float"} <= set(re.findall(r"[a-z]+", str(error).lower()))
    went_in = any(isinstance(arg, torch.Tensor) and arg.dtype == torch.float64 for arg in args)
    return (
        "; float64 went in: convert only fp16 and bf16 to float32, and make new tensors in the input's dtype" if mixes and went_in else ""
    )


LIBRARIES = {*sys.stdlib_module_names, "torch", "triton", "numpy"}
# PoisonedEmpty is called by torch. And carried's trace is called at each line of time_limit's end, where an error would leave the timer
# running.
HARNESS = (__name__, "fa_tutorial.exercises.harness_kernel", "fa_tutorial.exercises.carried")


@contextlib.contextmanager
def time_limit(advice: str = "") -> Iterator[None]:
    """Raise Endless(advice) in what still runs after TIME_LIMIT. Only the main thread can be interrupted, and on Windows not even that.

    A library is not stopped in the middle of a function: torch might not restore its modes. The signal comes again until it meets other
    code.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(_: int, frame: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if module not in HARNESS and module.partition(".")[0] not in LIBRARIES:
            raise Endless(advice)

    start, handler = time.monotonic(), signal.signal(signal.SIGALRM, stop)
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT, 0.001)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if remaining:  # an outer timer, such as that of a test: it goes on, and what came due meanwhile comes now
            signal.setitimer(signal.ITIMER_REAL, max(remaining - (time.monotonic() - start), 1e-6), interval)


class PoisonedEmpty(TorchFunctionMode):
    """Fills what torch.empty and its kin give with NaN, so that what is never written shows, and shows the same on every run."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if "empty" in getattr(func, "__name__", "") and isinstance(result, torch.Tensor) and result.is_floating_point():
            result.fill_(torch.nan)
        return result


def copy_of(value: Any) -> Any:
    """A copy of a tensor with its own memory, the same strides and the same surroundings; of a list too; other values as they are."""
    if isinstance(value, list):
        return [copy_of(item) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage().clone()
    return torch.empty(0, dtype=value.dtype, device=value.device).set_(storage, value.storage_offset(), value.shape, value.stride())


def _parameter(answer: Callable, position: int) -> str:
    try:
        return list(inspect.signature(answer).parameters)[position]
    except (TypeError, ValueError, IndexError):
        return f"number {position + 1}"


def _of_a_starter(error: NotImplementedError, answer: Callable) -> Wrong | NotAttempted:
    """NotAttempted, with words for a reader whose code stands above the starter's raise; Wrong where another starter raised, which the answer
    calls."""
    code = getattr(inspect.unwrap(answer), "__code__", None)
    if code is None:
        return NotAttempted()
    *_, last = frames = traceback.extract_tb(error.__traceback__)
    if last.name != code.co_name and not (answer.__module__ or "").startswith("fa_tutorial."):  # the answer itself, no stand-in
        return Wrong(f"{last.name}, which your {answer.__name__} calls, is still empty: it raises NotImplementedError")
    lines = [frame.lineno for frame in frames if frame.name == code.co_name]
    first = min((line for *_, line in code.co_lines() if line is not None and line > code.co_firstlineno), default=code.co_firstlineno)
    below = "the starter's `raise NotImplementedError` still stands below your lines: delete it"
    return NotAttempted(below if lines and lines[-1] > first else "")


def where_in(error: BaseException, answer: Any) -> str:
    """The last line of the answer's own code that the error passed through, as " (line 3 of f: `…`)", or nothing."""
    function = inspect.unwrap(getattr(answer, "fn", answer))
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    frames = [frame for cause in chain(error) for frame in traceback.extract_tb(cause.__traceback__) if frame.filename == code.co_filename]
    if not frames:
        return ""
    frame = frames[-1]
    line = linecache.getline(code.co_filename, frame.lineno).strip()
    is_own = frame.name == code.co_name and frame.lineno >= code.co_firstlineno  # not another lambda above it
    place = f"line {frame.lineno - code.co_firstlineno + 1} of {function.__name__}" if is_own else f"in {frame.name}"
    return f" ({place}: `{line}`)" if line else ""


def chain(error: BaseException | None) -> list[BaseException]:
    """The error and what caused it, outermost first."""
    found = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def written_once(strides: Sequence[int]) -> tuple[slice, ...]:
    """The part of a tensor that reaches each element of its memory once: what repeats, along a stride of 0, is left out."""
    return tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
