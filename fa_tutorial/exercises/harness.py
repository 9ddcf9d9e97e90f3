"""The harness of the exercises: what an exercise is, how an answer is run, and how the mistake in it is named.

An exercise says what is right once, in float64: `twin(*args, mistake=None)` gives what a right answer gives, and `twin(..., mistake="no_rescale")`
what an answer with that mistake gives. `judge` walks up the exercise's ladder of inputs, compares the answer with the twin, and where they differ
names the mistake whose twin gives the same result. First come the inputs of the main case, then the edges, which are reported as edges.
Messages hold no random numbers, so the same mistake always gets the same line. harness_kernel.py runs the answers that are Triton kernels.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
import math
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

OTHERS = "right on the small cases, wrong on others"
FIRST = "wrong on the first case"
COARSE = "float64 goes in, and the result has less accuracy: a tensor inside is float32 (make it in the input's dtype), or a small constant is added"
ANYTHING = 2.5e300  # stands in a twin's float64 result where it does not matter what comes out
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
    """A run of the answer took longer than TIME_LIMIT. It is no Exception, so that no `except Exception` on its way to `judge` catches it."""


# ---------------------------------------------------------------- an exercise


@dataclass(frozen=True)
class Case:
    """One input of the ladder.

    args: what the answer gets (a kernel gets what the exercise's `launch` makes of them). on: the input in words, made from args unless given.
    otherwise: the diagnosis where no mistake explains the result. edge: the key of the condition that this input tests; "" for the main case.
    fresh: drawn anew each time, so its numbers are not shown. stray: the diagnosis where a kernel leaves its tensors; otherwise unless given.
    """

    args: tuple
    on: str = ""
    otherwise: str = ""
    edge: str = ""
    fresh: bool = False
    stray: str = ""
    twins: dict = field(default_factory=dict, compare=False, repr=False)  # what _twin_results has computed


def case(*args: Any, on: str = "", otherwise: str = "", edge: str = "", fresh: bool = False, stray: str = "") -> Case:
    """A Case of these arguments."""
    return Case(args, on, otherwise, edge, fresh, stray)


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise: one of these in a file exercises/chapter_N/ex_M.py, under the name EXERCISE.

    id: "N.M". task: one sentence. solution: a self-contained function or kernel, which is shown; its name is the exercise's.
    reasoning: why the solution is right. more: one line on what the package's version does besides. hints: from a nudge to nearly the line.
    inputs: yields the ladder of cases, smallest first. twin: (*args, mistake=None) -> the result in float64. mistakes: name -> diagnosis.
    conditions: what must hold beyond the main case, by the key that the cases of that edge carry. parts: names, where the result is a tuple.
    exact: compare integers and texts, not floats. tolerance: (args, part) -> (rtol, atol). launch: for a kernel, (*args) -> harness_kernel.Launch.
    adapt: (answer) -> what is run in its place, where an answer does not return by itself what the twin gives.
    overlap: the diagnosis where two programs of a kernel write the same element. again: the remedy where a kernel with right results reads or writes
    an element more than once, "" where it may. widened: the diagnosis where tl.dot gets float32 tiles though all inputs are 16-bit, "" where it may.
    watch: for a function, (*args) -> a context manager in which it
    runs, whose complaint(result) says what a right result must not hide, "" for nothing. note: (answer) -> what a right answer could do better, or "".
    """

    id: str
    task: str
    solution: Any
    reasoning: str
    hints: tuple[str, ...]
    inputs: Callable[[], Iterable[Case]]
    twin: Callable[..., Any]
    mistakes: Mapping[str, str]
    conditions: Mapping[str, str] = field(default_factory=dict)
    more: str = ""
    parts: tuple[str, ...] = ()
    exact: bool = False
    tolerance: Callable[[Sequence[Any], str], tuple[float, float]] | None = None
    launch: Callable[..., Any] | None = None
    adapt: Callable[[Any], Any] | None = None
    watch: Callable[..., Any] | None = None
    note: Callable[[Any], str] | None = None
    overlap: str = "two programs write the same element: each element of an output belongs to one program"
    again: str = ""
    widened: str = ""

    @property
    def name(self) -> str:
        return self.solution.__name__

    @property
    def chapter(self) -> int:
        return int(self.id.split(".")[0])

    def grade(self, answer: Any) -> None:
        """Raise Wrong or NotAttempted unless `answer` is right."""
        judge(self, answer)


@dataclass(frozen=True)
class Twin:
    """An answer that makes one mistake, for the tests: its results come from the exercise's twin, so no code has to be written for it."""

    exercise: Exercise
    mistake: str | None = None


# ---------------------------------------------------------------- judging


def judge(exercise: Exercise, answer: Any) -> None:
    """Raise Wrong with the first mistake in the main case, or with the edges that are left, unless the answer is right everywhere."""
    cases = sorted(exercise.inputs(), key=lambda one: one.fresh)  # the same mistake is found on the same input, if any shows it
    passed: list[Case] = []
    left: dict[str, Wrong] = {}
    try:
        for one in cases:
            if not one.edge:
                _judge_case(exercise, answer, one, cases, passed)
        for one in cases:
            if one.edge and one.edge not in left:
                try:
                    _judge_case(exercise, answer, one, cases, passed)
                except Wrong as wrong:
                    left[one.edge] = wrong
    except Endless as endless:  # no other input is tried: each would take as long
        raise Wrong(f"{'right on the main case; ' if one.edge else ''}{endless}") from None
    if left:
        first = next(iter(left.values()))
        several = f"{('two', 'three', 'four')[min(len(left), 4) - 2]}{' or more' * (len(left) > 4)} edges are left; the first"
        raise Wrong(f"right on the main case; {'one edge is left' if len(left) == 1 else several}: {first}") from first


def _judge_case(exercise: Exercise, answer: Any, one: Case, cases: Sequence[Case], passed: list[Case]) -> None:
    """Raise Wrong unless the answer is right on this input; else add it to `passed`, unless it is drawn anew each time."""
    otherwise = one.otherwise or (exercise.conditions[one.edge] if one.edge else FIRST if one is cases[0] else OTHERS)
    on = described(exercise, one)
    got, complaint = results(exercise, answer, one, on, one.stray or otherwise)
    want = _twin_results(exercise, one)
    wrong = next((part for part in want if not _agree(exercise, got[part], want[part], one, part)), None)
    if wrong is None and not complaint:
        passed += [] if one.fresh else [one]
        return
    if wrong is None:
        raise Wrong(f"{complaint}: {on}")
    diagnosis, shown = _named(exercise, answer, got, want, one, wrong, cases, passed) or otherwise, not one.fresh
    if diagnosis is otherwise and exercise.launch and all(bool((value == UNWRITTEN).all()) for value in got.values()):
        raise Wrong(f"nothing is stored: a kernel returns no value, its result goes to memory by tl.store ({on})")
    if diagnosis is otherwise and _is_coarse(exercise, got, want, one):
        diagnosis, shown = COARSE, False
    raise Wrong(f"{diagnosis}: {on}{_told(exercise, got[wrong], want[wrong], one, wrong, shown)}")


def _named(exercise: Exercise, answer: Any, got: Mapping, want: Mapping, one: Case, wrong: str, cases: Sequence[Case],
           passed: Sequence[Case]) -> str | None:  # fmt: skip
    """The diagnosis of the mistake whose twin gives what the answer gives, here and on the inputs that the answer passed.

    Where there are several, those that agree in every part of the result come first, then the main case's other inputs decide. A mistake that
    an input which the answer passed rules out is named only if no other fits, and it alone gives these very numbers.
    """
    whole, partly, elsewhere_not = [], [], []
    for name in exercise.mistakes:
        twin = _twin_results(exercise, one, name)
        is_it = twin is not None and _agree(exercise, got[wrong], twin[wrong], one, wrong, loosely=True)
        if is_it and not _agree(exercise, twin[wrong], want[wrong], one, wrong):
            if not all(_is_right(exercise, name, other) for other in passed):
                elsewhere_not += [name] if _is_finite(got[wrong]) else []
            else:
                is_whole = all(_agree(exercise, got[part], twin[part], one, part, loosely=True) for part in want)
                (whole if is_whole else partly).append(name)
    names = whole or partly or (elsewhere_not if len(elsewhere_not) == 1 else [])
    for other in cases:
        if len(names) > 1 and other is not one and not other.fresh and not other.edge:
            names = [name for name in names if _gives(exercise, answer, other, name)] or names
    return exercise.mistakes[names[0]] if names else None


def _is_finite(value: Any) -> bool:
    return bool(torch.isfinite(value).all()) and value.numel() > 0 if isinstance(value, torch.Tensor) else True


def _is_right(exercise: Exercise, mistake: str, one: Case) -> bool:
    """True where this mistake does not show on this input."""
    twin, want = _twin_results(exercise, one, mistake), _twin_results(exercise, one)
    return twin is not None and all(_agree(exercise, twin[part], want[part], one, part) for part in want)


def _gives(exercise: Exercise, answer: Any, one: Case, mistake: str) -> bool:
    """True where the answer gives on this input what the mistake gives."""
    twin = _twin_results(exercise, one, mistake)
    try:
        got, _ = results(exercise, answer, one, described(exercise, one), "")
    except Wrong:
        return twin is None
    return twin is not None and all(_agree(exercise, got[part], twin[part], one, part, loosely=True) for part in twin)


def results(exercise: Exercise, answer: Any, one: Case, on: str, stray: str) -> tuple[dict[str, Any], str]:
    """The answer's results on one input, by part, and a complaint about how it came to them ("" for none)."""
    if isinstance(answer, Twin):
        twin = _twin_results(exercise, one, answer.mistake)
        if twin is None:
            raise Wrong(f"{on}: the twin gives no result")
        return twin, ""
    try:
        adapted = exercise.adapt(answer) if exercise.adapt and callable(getattr(answer, "fn", answer)) else answer
        if exercise.launch is not None:
            from fa_tutorial.exercises import harness_kernel

            got, trace = harness_kernel.results(adapted, exercise.launch(*one.args), exercise.solution, on, stray)
            if trace.overlap:
                return got, f"{exercise.overlap} (more than one program writes the same elements of {trace.overlap})"
            if exercise.widened and trace.widened:
                return got, f"the result is right, but {exercise.widened}"
            return got, f"the result is right, but {trace.again}: {exercise.again}" if exercise.again and trace.again else ""
        if exercise.watch is None or one.fresh:
            return _by_part(exercise, run(adapted, *one.args, on=on), on), ""
        with exercise.watch(*one.args) as watch:
            result = run(adapted, *one.args, on=on)
        return _by_part(exercise, result, on), watch.complaint(result)
    except Endless as endless:
        still = f"{on}: is still running after {TIME_LIMIT:g} s{where_in(endless, answer)}"
        raise Endless(f"{still}. Does every iteration bring its loop closer to the end?{endless}") from None


def _twin_results(exercise: Exercise, one: Case, mistake: str | None = None) -> dict[str, Any] | None:
    """What the twin gives, by part; None where an answer with this mistake gives nothing on this input."""
    if (exercise.id, mistake) not in one.twins:
        one.twins[exercise.id, mistake] = _compute_twin(exercise, one, mistake)
    return one.twins[exercise.id, mistake]


def _compute_twin(exercise: Exercise, one: Case, mistake: str | None) -> dict[str, Any] | None:
    try:
        result = exercise.twin(*one.args, mistake=mistake)
    except Exception:
        if mistake is None:
            raise
        return None
    if exercise.launch is None:
        return _by_part(exercise, result, "")
    outs = exercise.launch(*one.args).outputs(exercise.solution)
    parts = result if isinstance(result, tuple) else (result,)
    return {
        name: torch.where((part == UNWRITTEN) | (part == ANYTHING), part, part.to(out.dtype).double())
        for (name, out), part in zip(outs.items(), parts, strict=True)
    }


def _by_part(exercise: Exercise, result: Any, on: str) -> dict[str, Any]:
    """A function's result as {part: value}: float64 tensors, or integers and tuples of them where the exercise is exact."""
    parts = dict(zip(exercise.parts, unpack(result, exercise.parts, on), strict=True)) if exercise.parts else {"": result}
    if exercise.exact:
        return {part: _exact(value) for part, value in parts.items()}
    return {part: as_tensor(value, part or "the result", on) for part, value in parts.items()}


def _exact(value: Any) -> Any:
    """An integer or a tuple: a list is taken for a tuple, a tensor of one element for a number."""
    value = tuple(value) if isinstance(value, list) else value
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def described(exercise: Exercise, one: Case) -> str:
    """An input in words: the case's own, else a call where all arguments are numbers, else "x = [1, 2], block = 1"."""
    args = one.args
    if one.on:
        return one.on
    if not any(isinstance(arg, torch.Tensor) and arg.ndim for arg in args):
        return f"{exercise.name}({', '.join(f'{arg:g}' if isinstance(arg, float) else show(arg).replace(',', ', ') if torch.is_tensor(arg) else str(arg) for arg in args)})"
    words = []
    for name, arg in zip(inspect.signature(exercise.twin).parameters, args, strict=False):
        large = isinstance(arg, torch.Tensor) and arg.numel() > 12
        words.append(f"{name} of shape {tuple(arg.shape)}" if large else f"{name} = {show(arg)}")
    return ", ".join(words)


# ---------------------------------------------------------------- comparing

RTOL = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 5e-5, torch.float64: 1e-9}
ATOL = {torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float32: 1e-6, torch.float64: 1e-12}


def dtype_of(args: Sequence[Any]) -> torch.dtype | None:
    """The dtype of the first float tensor among the arguments."""
    return next((arg.dtype for arg in args if isinstance(arg, torch.Tensor) and arg.is_floating_point()), None)


def tolerance(args: Sequence[Any], part: str = "", dtype: torch.dtype | None = None) -> tuple[float, float]:
    """(rtol, atol) that the inputs' dtype calls for, in `dtype` if given; an exponent as large as x is itself rounded by eps · |x|."""
    dtype = dtype or dtype_of(args)
    if dtype is None:
        return 1e-6, 0.0
    finite = [arg[torch.isfinite(arg)].double().abs() for arg in args if isinstance(arg, torch.Tensor) and arg.is_floating_point()]
    size = max((float(x.max()) for x in finite if len(x)), default=0.0)
    return RTOL[dtype] + 4 * torch.finfo(dtype).eps * size, ATOL[dtype]


def _agree(exercise: Exercise, a: Any, b: Any, one: Case, part: str, *, loosely: bool = False) -> bool:
    """Whether two results are the same within the exercise's tolerance.

    Where b is ANYTHING, any finite number does. loosely: to recognise a mistake b, with at least float32's tolerance; what it never writes
    may then be 0 or NaN, and ANYTHING is NaN too.
    """
    if exercise.exact:
        return same(a, b)
    if loosely and a.shape == b.shape:
        a = torch.where((b == UNWRITTEN) & ((a == 0) | torch.isnan(a)), b, a)
    if a.shape == b.shape:
        a = torch.where((b == ANYTHING) & (torch.isfinite(a) | loosely), b, a)
    rtol, atol = (exercise.tolerance or tolerance)(one.args, part)
    if loosely and rtol:
        rough = tolerance(one.args, part, torch.float32) if dtype_of(one.args) == torch.float64 else (1e-5, 1e-7)
        rtol, atol = max(rtol, rough[0]), max(atol, rough[1])
    return a.shape == b.shape and close(a, b, rtol, atol)


def _is_coarse(exercise: Exercise, got: Mapping, want: Mapping, one: Case) -> bool:
    """True for a float64 input whose result would be right for float32."""
    return dtype_of(one.args) == torch.float64 and all(_agree(exercise, got[part], want[part], one, part, loosely=True) for part in want)


def close(got: torch.Tensor, want: torch.Tensor, rtol: float, atol: float) -> bool:
    """True where every element agrees; infinities must be equal, NaN agrees with NaN alone."""
    return torch.allclose(got.double(), want.double(), rtol=rtol, atol=atol, equal_nan=True)


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


def _told(exercise: Exercise, got: Any, want: Any, one: Case, part: str, shown: bool) -> str:
    """What the answer gives and what it should give, after the input in words."""
    subject = f"{part} = " if part else ""
    if exercise.exact:
        if isinstance(got, str) and isinstance(want, str):
            return f" gives {got}, want {want}" if shown else ""
        value = show(got) if isinstance(got, int | float | tuple) else kind(got)
        return f" gives {subject}{value}, want {show(want)}" if shown else f": {part} is wrong" if part else ""
    if got.shape != want.shape:
        return f" gives {part + ' of ' if part else ''}shape {tuple(got.shape)}, want {tuple(want.shape)}"
    if (got == UNWRITTEN).any():
        place = ", ".join(map(str, torch.nonzero(got == UNWRITTEN)[0].tolist()))
        return f": it never writes {part}[{place}] of shape {tuple(got.shape)}"
    return f" gives {subject}{_difference(exercise, got, want, one, part)}" if shown else f": {part or 'the result'} is wrong"


def _difference(exercise: Exercise, got: torch.Tensor, want: torch.Tensor, one: Case, part: str) -> str:
    if want.numel() <= 4:
        while want.ndim > 1 and len(want) == 1:
            got, want = got[0], want[0]
        shown, wanted, place = _show_tensor(got), _show_tensor(want), ""
    else:
        rtol, atol = (exercise.tolerance or tolerance)(one.args, part)
        index = tuple(torch.nonzero(~torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True))[0].tolist())
        got, want = got[index], want[index]
        shown, wanted, place = _show_tensor(got), _show_tensor(want), f" at [{', '.join(map(str, index))}]"
    off = f" (they differ by {_show_number(float((got - want).abs().nan_to_num(0.0).max()))})" if shown == wanted else ""
    return f"{shown}{place}, want {wanted}{off}"


# ---------------------------------------------------------------- showing values


def show(value: Any) -> str:
    """A value in at most four digits, the same on every run: numbers, short tensors, else the shape; functions, classes and kernels by name."""
    if isinstance(value, tuple):
        return "(" + ", ".join(show(item) for item in value) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, bool | int):
        return f"{value:,}"
    if isinstance(value, float):
        return _show_number(value)
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}" if value.numel() > 12 else show_nested(value.tolist())
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if hasattr(value, "fn"):
        return f"the kernel {getattr(value.fn, '__name__', '')}".strip()
    return f"the function {value.__name__}" if inspect.isroutine(value) else repr(value)


def show_nested(values: Any) -> str:
    """Nested lists of numbers in at most four digits each."""
    return "[" + ", ".join(map(show_nested, values)) + "]" if isinstance(values, list) else _show_number(values)


def _show_number(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def _show_tensor(value: torch.Tensor) -> str:
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


def unpack(result: Any, names: Sequence[str], on: str = "") -> list[Any]:
    """The parts of a result that should be a tuple of len(names). on: the input, in words."""
    if not isinstance(result, tuple | list) or len(result) != len(names):
        raise Wrong(f"{on + ': ' if on else ''}returns {kind(result)}, want a tuple ({', '.join(names)})")
    return list(result)


def as_tensor(result: Any, what: str = "the result", on: str = "") -> torch.Tensor:
    """A number, tensor or NumPy array as float64 on the CPU."""
    if isinstance(result, np.ndarray) and result.dtype.kind in "fiub":
        result = torch.as_tensor(result)
    if isinstance(result, torch.Tensor):
        return result.detach().double().cpu()
    try:
        return torch.tensor(float(result), dtype=torch.float64)
    except (TypeError, ValueError):
        raise Wrong(f"{on + ': ' if on else ''}{what} is {kind(result)}, want a number or a tensor") from None


# ---------------------------------------------------------------- running a function


def run(answer: Callable, *args: Any, on: str = "") -> Any:
    """answer(*args), called twice on fresh copies. Wrong if it raises, changes its input, or differs between the two calls.

    on: the input, in words; what goes wrong is told with it.
    """
    try:
        if not callable(answer):
            raise Wrong(f"pass the function itself, not {show(answer)}")
        first, second = _call(answer, args), _call(answer, args)
        if isinstance(first, Iterator) or not (same(first, second) or isinstance(first, VALUES)):
            remedy = " (brackets around a loop make no tuple, tuple(…) does)" if isinstance(first, Iterator) else ""
            raise Wrong(f"returns {kind(first)}, want a number, a tensor, or a tuple of them{remedy}")
        if not same(first, second):
            raise Wrong("two calls with the same input differ: nothing may be kept from one call to the next, or left uninitialised")
    except Wrong as wrong:
        raise (Wrong(f"{on}: {wrong}") if on else wrong) from wrong.__cause__
    return first


REMEDIES = (  # what PyTorch says to a newcomer, and what to do about it
    ("torch.return_types.m", "max and min along a dimension return a pair: take its .values, or use amax and amin"),
    ("Boolean value of Tensor", "an if can't decide for several elements at once: torch.where decides for each"),
)
VALUES = (int, float, str, tuple, list, torch.Tensor, np.ndarray, np.generic, type(None))


def _call(answer: Callable, args: Sequence[Any]) -> Any:
    copies = [copy_of(arg) for arg in args]
    try:
        with PoisonedEmpty(), time_limit():
            result = answer(*copies)
    except NotImplementedError as error:
        if empty := _empty_helper(error, answer):
            raise Wrong(f"{empty}, which your {answer.__name__} calls, is still empty: it raises NotImplementedError") from None
        raise NotAttempted(_left_over(error, answer)) from None
    except Wrong:  # by what stands in the answer's place or watches it
        raise
    except Exception as error:
        remedy = next((f"; {advice}" for words, advice in REMEDIES if words in str(error)), "")
        raise Wrong(f"raises {type(error).__name__}: {error}{where_in(error, answer)}{remedy}") from error
    for position, (arg, copy) in enumerate(zip(args, copies, strict=True)):
        if isinstance(arg, torch.Tensor) and not same(arg, copy):
            raise Wrong(f"changes its input {_parameter(answer, position)} in place: work on a copy")
    return result


LIBRARIES = {*sys.stdlib_module_names, "torch", "triton", "numpy"}


@contextlib.contextmanager
def time_limit(advice: str = "") -> Iterator[None]:
    """Raise Endless(advice) in what still runs after TIME_LIMIT. Only the main thread can be interrupted, and on Windows not even that.

    A library is not stopped in the middle of a function: torch might not restore its modes. The signal comes again until it meets other code.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(_: int, frame: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if module != __name__ and module.partition(".")[0] not in LIBRARIES:  # PoisonedEmpty, in this module, is called by torch
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
    """A copy of a tensor with its own memory, the same strides and the same surroundings; other values as they are."""
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage().clone()
    return torch.empty(0, dtype=value.dtype, device=value.device).set_(storage, value.storage_offset(), value.shape, value.stride())


def _parameter(answer: Callable, position: int) -> str:
    try:
        return list(inspect.signature(answer).parameters)[position]
    except (TypeError, ValueError, IndexError):
        return f"number {position + 1}"


def _empty_helper(error: NotImplementedError, answer: Callable) -> str:
    """The name of another starter that the answer calls and that raised the error; "" where the answer itself did, or what stands in its place."""
    code = getattr(inspect.unwrap(answer), "__code__", None)
    if code is None or (answer.__module__ or "").startswith("fa_tutorial."):
        return ""
    raised_in = traceback.extract_tb(error.__traceback__)[-1].name
    return raised_in if raised_in != code.co_name else ""


def _left_over(error: NotImplementedError, answer: Callable) -> str:
    """Words for a reader whose code stands above the starter's raise; empty where the raise is the first line that runs."""
    code = getattr(inspect.unwrap(answer), "__code__", None)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if code is not None and frame.name == code.co_name]
    if not frames:
        return ""
    first = min((line for _, _, line in code.co_lines() if line is not None and line > code.co_firstlineno), default=code.co_firstlineno)
    return "the starter's `raise NotImplementedError` still stands below your lines: delete it" if frames[-1].lineno > first else ""


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
    is_own = frame.name == code.co_name
    place = f"line {frame.lineno - code.co_firstlineno + 1} of {function.__name__}" if is_own else f"in {frame.name}"
    return f" ({place}: `{line}`)" if line else ""


def chain(error: BaseException | None) -> list[BaseException]:
    """The error and what caused it, outermost first."""
    found = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


# ---------------------------------------------------------------- inputs


def generator() -> torch.Generator:
    """A generator with a new seed each time: an answer that knows the inputs cannot pass."""
    fresh = torch.Generator()
    fresh.seed()
    return fresh


def laid_out(x: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The memory that x lies in by these strides, in float64; NaN between its elements."""
    memory = torch.full(
        (1 + sum((size - 1) * stride for size, stride in zip(x.shape, strides, strict=True)),), math.nan, dtype=torch.float64
    )
    once = written_once(strides)
    memory.as_strided(x.shape, tuple(strides))[once].copy_(x[once])
    return memory


def written_once(strides: Sequence[int]) -> tuple[slice, ...]:
    """The part of a tensor that reaches each element of its memory once: what repeats, along a stride of 0, is left out."""
    return tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)


def gather(memory: torch.Tensor, offsets: torch.Tensor, mask: torch.Tensor, other: float = 0.0) -> torch.Tensor:
    """What a masked load from `memory` gives; IndexError where it leaves the memory."""
    mask = mask.expand(offsets.shape)
    loaded = torch.full(offsets.shape, other, dtype=torch.float64)
    loaded[mask] = memory[offsets[mask]]
    return loaded


def exp32(x: torch.Tensor) -> torch.Tensor:
    """exp in float64 that overflows and underflows where float32's does: what a twin needs to show a missing shift."""
    return torch.exp(x).masked_fill(x > 88.7228, INF).masked_fill(x < -103.98, 0.0)


def vectors(draw: torch.Generator, *shape: int) -> Iterator[tuple[str, torch.Tensor]]:
    """(in words, float64 values) for each distribution that has once broken a softmax."""
    n = shape[-1]
    randn = torch.randn(*shape, generator=draw, dtype=torch.float64)
    yield "randn", randn
    yield "a maximum that keeps growing", torch.arange(n) * 0.7 + 0.1 * randn
    yield "a maximum at the start", -torch.arange(n) * 0.7 + 0.1 * randn
    yield "all values near −1e4", randn - 1e4
    yield "values up to ±1e4", 2e4 * torch.rand(*shape, generator=draw, dtype=torch.float64) - 1e4
    yield "equal values", torch.full(shape, 2.5, dtype=torch.float64)


def masked_vectors(draw: torch.Generator, *shape: int) -> Iterator[tuple[str, torch.Tensor]]:
    """The same with −inf entries; none is −inf throughout."""
    x = torch.randn(*shape, generator=draw, dtype=torch.float64)
    half = x.clone()
    half[..., : shape[-1] // 2] = -INF  # whole blocks hold nothing but −inf
    yield "−inf in the first half", half
    scattered = x.masked_fill(torch.rand(*shape, generator=draw) < 0.5, -INF)
    scattered[..., 0] = x[..., 0]
    yield "−inf here and there", scattered


def views(x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """x with other strides and a storage offset; what lies between and around its elements is NaN."""
    if x.ndim > 1:
        yield "a transposed view", x.transpose(-1, -2).contiguous().transpose(-1, -2)
    for words, step in (("a slice of a wider tensor", 1), ("every second column of a tensor", 2)):
        wide = torch.full((*x.shape[:-1], 3 + step * x.shape[-1]), math.nan, dtype=x.dtype)
        view = wide[..., 2 : 2 + step * x.shape[-1] : step]
        yield words, view.copy_(x)
