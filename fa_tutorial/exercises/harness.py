"""The harness of the exercises: what an exercise is, and how an answer is judged.

An exercise says what is right once: `truth(*args)`, in float64. `judge` walks up the exercise's ladder of inputs and compares the answer
with the truth. First come the inputs of the main case, then the edges, which are reported as edges. Where they differ it tells what the run
shows by itself; else the one mistake that gives what the answer gives on every fixed input, each mistake being a change of the solution's
text; else the rule that the input tests. Messages hold no random numbers, so the same mistake always gets the same line.
"""

import contextlib
import functools
import inspect
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tqdm import tqdm

from fa_tutorial import hardware
from fa_tutorial.exercises import running
from fa_tutorial.exercises.running import (
    UNWRITTEN,
    Endless,
    Wrong,
    as_tensor,
    kind,
    run,
    same,
    show,
    show_number,
    show_tensor,
    unpack,
    where_in,
)
from fa_tutorial.source import defined, edited, source_of, unwrapped

COARSE = (
    "float64 goes in, and the result has less accuracy: a tensor inside is float32 (convert only fp16 and bf16 to it, and make new "
    "tensors in the input's dtype), or a small constant is added"
)
ANYTHING = 2.5e300  # stands in a truth where it does not matter what comes out
NAMING_SECONDS = 5.0  # to look for an answer's mistake on a GPU, where each candidate is compiled first


# ---------------------------------------------------------------- an exercise


@dataclass(frozen=True, eq=False)
class Case:
    """One input of the ladder.

    args: what the answer gets (a kernel gets what the exercise's `launch` makes of them). on: the input in words, made from args unless
    given. otherwise: the diagnosis where no mistake explains the result, or one for each part. edge: the key of the condition that this
    input tests; "" for the main case. fresh: drawn anew each time, so its numbers are not shown. stray: the diagnosis where a kernel leaves
    its tensors, infinite: that where a result is NaN or ∞ and shouldn't be; otherwise unless given.
    """

    args: tuple
    on: str = ""
    otherwise: str | Mapping[str, str] = ""
    edge: str = ""
    fresh: bool = False
    stray: str = ""
    infinite: str = ""
    wanted: dict = field(default_factory=dict, repr=False)  # the truth, once _truth_of has computed it


def case(*args: Any, **options: Any) -> Case:
    """A Case of these arguments."""
    return Case(args, **options)


@dataclass(frozen=True, eq=False, kw_only=True)
class Exercise:
    """One exercise: one of these in a file exercises/chapter_N/ex_M.py, under the name EXERCISE.

    task: one sentence. solution: a self-contained function or kernel, which is shown; its name is the exercise's.
    reasoning: why the solution is right. more: one line on what the package's version does besides. hints: from a nudge to nearly the line.
    inputs: yields the ladder of cases, smallest first. truth: (*args) -> the right result in float64. rule: what a right result is, in a
    sentence, for the inputs that test no rule of their own. mistakes: what to tell -> the change of the solution's text that makes this
    mistake, (old, new) or a list of them, the likeliest first.
    conditions: what must hold beyond the main case, by the key that the cases of that edge carry. parts: names, where the result is a
    tuple.
    exact: compare integers and texts, not floats.
    tolerance: (args, part) -> (rtol, atol). launch: for a kernel, (*args) ->
    harness_kernel.Launch.
    adapt: (answer) -> what is run in its place, where an answer does not return by itself what truth gives.
    seen: what to tell of a kernel's accesses. "overlap": two programs write the same element; "again": a program reads or writes an element more
    than once; "stored_again": a program stores an element twice; "pieces": a program has more than one store to an output; "widened": tiles are
    multiplied as float32 though all inputs are 16-bit. All but the first are allowed where nothing is to be told.
    watch: for a function, (*args) -> a context manager in which it runs, whose complaint(result) says what a right result must not hide, ""
    for nothing. refused: (answer) -> why a right result isn't enough, or "". note: (answer) -> what a right answer could do better, or "".
    """

    task: str
    solution: Any
    reasoning: str
    hints: tuple[str, ...]
    inputs: Callable[[], Iterable[Case]]
    truth: Callable[..., Any]
    rule: str
    mistakes: Mapping[str, Any]
    conditions: Mapping[str, str] = field(default_factory=dict)
    more: str = ""
    parts: tuple[str, ...] = ()
    exact: bool = False
    tolerance: Callable[[Sequence[Any], str], tuple[float, float]] | None = None
    launch: Callable[..., Any] | None = None
    adapt: Callable[[Any], Any] | None = None
    watch: Callable[..., Any] | None = None
    refused: Callable[[Any], str] | None = None
    note: Callable[[Any], str] | None = None
    seen: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """ "N.M", as its solution stands in chapter_N/ex_M.py."""
        return ".".join(re.findall(r"\d+", unwrapped(self.solution).__module__))

    @property
    def name(self) -> str:
        return self.solution.__name__

    @property
    def chapter(self) -> int:
        return int(self.id.split(".")[0])

    def grade(self, answer: Any) -> None:
        """Raise Wrong or NotAttempted unless `answer` is right."""
        judge(self, answer)


# ---------------------------------------------------------------- judging


def judge(exercise: Exercise, answer: Any) -> None:
    """Raise Wrong with the first mistake in the main case, or with the edges that are left, unless the answer is right everywhere."""
    cases = sorted(exercise.inputs(), key=lambda one: one.fresh)  # the same mistake is found on the same input, if any shows it
    left: dict[str, Wrong] = {}
    try:
        for one in cases:
            if not one.edge:
                _judge_case(exercise, answer, one, cases)
        for one in cases:
            if one.edge and one.edge not in left:
                try:  # the first edge's message is shown, the others are counted
                    _judge_case(exercise, answer, one, cases, in_words=not left)
                except Wrong as wrong:
                    left[one.edge] = wrong
    except Endless as endless:  # no other input is tried: each would take as long
        raise Wrong(f"{'right on the main case; ' if one.edge else ''}{endless}") from None
    if left:
        first = next(iter(left.values()))
        several = f"{('two', 'three', 'four')[min(len(left), 4) - 2]}{' or more' * (len(left) > 4)} edges are left; the first"
        raise Wrong(f"right on the main case; {'one edge is left' if len(left) == 1 else several}: {first}") from first
    if exercise.refused and (why := exercise.refused(answer)):
        raise Wrong(f"the result is right, but {why}")


def _judge_case(exercise: Exercise, answer: Any, one: Case, cases: Sequence[Case], in_words: bool = True) -> None:
    """Raise Wrong unless the answer is right on this input; with the reason, if it's to be told in words."""
    rules = one.otherwise or (exercise.conditions[one.edge] if one.edge else exercise.rule)
    otherwise = rules if isinstance(rules, str) else "; ".join(rules.values())
    on = described(exercise, one)
    got, complaint = results(exercise, answer, one, on, one.stray or otherwise)
    want = _truth_of(exercise, one)
    wrong = next((part for part in want if not _agree(exercise, got[part], want[part], one, part)), None)
    if wrong is None:
        if complaint:
            raise Wrong(f"{complaint}: {on}")
        return
    otherwise = rules if isinstance(rules, str) else rules[wrong]
    if one.infinite and got[wrong].shape == want[wrong].shape and not got[wrong][want[wrong].isfinite()].isfinite().all():
        otherwise = one.infinite
    if not in_words:
        raise Wrong(otherwise)
    diagnosis, shown = _named(exercise, answer, got, one, cases) or otherwise, not one.fresh
    if diagnosis is otherwise and exercise.launch and all(bool((value == UNWRITTEN).all()) for value in got.values()):
        raise Wrong(f"nothing is stored: does your kernel call tl.store, and does its mask let any element through? ({on})")
    if diagnosis is otherwise and _is_coarse(exercise, got, want, one):
        diagnosis, shown = COARSE, False
    raise Wrong(f"{diagnosis}: {on}{_told(exercise, got[wrong], want[wrong], one, wrong, shown)}")


@functools.cache
def slipped(exercise: Exercise, told: str) -> Any:
    """The solution with one of the exercise's mistakes in it. ValueError where a text to be changed does not stand there."""
    changes = exercise.mistakes[told]
    names = vars(sys.modules[unwrapped(exercise.solution).__module__]) | {"__name__": "slip"}
    text = edited(source_of(exercise.solution), *(changes if isinstance(changes, list) else [changes]))
    return defined(text, names)[exercise.name]


_outcomes: dict[tuple[Any, int], dict[str, Any] | None] = {}  # (changed solution, number of the fixed input) -> what it gives


def _named(exercise: Exercise, answer: Any, got: Mapping, one: Case, cases: Sequence[Case]) -> str | None:
    """The first mistake that gives what the answer gives on this input, where it is wrong, and on every fixed one; None for none."""
    compiled = exercise.launch is not None and hardware.device().type == "cuda"
    end = time.monotonic() + (NAMING_SECONDS if compiled else math.inf)
    fixed = [other for other in cases if not other.fresh]  # the same in every call, so what a changed solution gives on them is kept
    yours = {} if one.fresh else {fixed.index(one): got}

    def outcome(of: Any, number: int) -> dict[str, Any] | None:
        kept, key = (yours, number) if of is answer else (_outcomes, (of, number))
        if key not in kept:
            kept[key] = _outcome(exercise, of, fixed[number])
        return kept[key]

    for told in tqdm(exercise.mistakes, desc="looking for the mistake", leave=False, disable=not compiled):
        if time.monotonic() > end:
            return None
        candidate = slipped(exercise, told)
        made = _outcome(exercise, candidate, one) if one.fresh else outcome(candidate, fixed.index(one))
        if not _alike(exercise, got, made, one) or _alike(exercise, made, _truth_of(exercise, one), one):
            continue
        if candidate is answer or all(  # itself, as where the tests grade it, needs no other input
            _alike(exercise, outcome(answer, number), outcome(candidate, number), other) for number, other in enumerate(fixed)
        ):
            return told
    return None


def _outcome(exercise: Exercise, answer: Any, one: Case) -> dict[str, Any] | None:
    """What an answer gives on this input, by part; None where it does not run."""
    try:
        return results(exercise, answer, one, described(exercise, one), "", watched=False)[0]
    except Wrong:
        return None


def _alike(exercise: Exercise, a: Mapping | None, b: Mapping | None, one: Case) -> bool:
    """Whether two answers give the same in every part, or neither runs."""
    if a is None or b is None:
        return a is b
    return all(_agree(exercise, a[part], b[part], one, part, loosely=True) for part in b)


def results(exercise: Exercise, answer: Any, one: Case, on: str, stray: str, watched: bool = True) -> tuple[dict[str, Any], str]:
    """The answer's results on one input, by part, and a complaint about how it came to them ("" for none, or where nobody watched)."""
    try:
        function = getattr(answer, "fn", None if exercise.launch else answer)  # a plain function is no kernel, and told so
        adapted = exercise.adapt(answer) if exercise.adapt and callable(function) else answer
        if exercise.launch is not None:
            from fa_tutorial.exercises import harness_kernel

            launch = exercise.launch(*one.args)
            got, trace = harness_kernel.results(adapted, launch, exercise.solution, on, stray, once=not watched)
            seen = exercise.seen
            if trace.overlap:
                belongs = "each element of an output belongs to one program"
                return got, f"{seen.get('overlap', belongs)} (more than one program writes the same elements of {trace.overlap})"
            words = {
                "stored_again": f"{trace.stored_again} is stored more than once: ",
                "widened": "",
                "again": f"{trace.again}: ",
                "pieces": f"a program has several stores to {trace.pieces}: ",
            }
            told = (
                f"the result is right, but {found}{seen[what]}" for what, found in words.items() if what in seen and getattr(trace, what)
            )
            return got, next(told, "")
        try:
            with exercise.watch(*one.args) if exercise.watch and watched and not one.fresh else contextlib.nullcontext() as watch:
                result = run(adapted, *one.args, once=not watched)
            return _by_part(exercise, result), watch.complaint(result) if watch is not None else ""
        except Wrong as wrong:
            raise Wrong(f"{on}: {wrong}") from wrong.__cause__
    except Endless as endless:
        still = f"{on}: is still running after {running.TIME_LIMIT:g} s{where_in(endless, answer)}"
        raise Endless(f"{still}. Does every iteration bring its loop closer to the end?{endless}") from None


def _truth_of(exercise: Exercise, one: Case) -> dict[str, Any]:
    """The right results on one input, by part. What overflows a kernel's output is ±∞; the rest isn't rounded, for at the
    middle of two numbers float32 may lead to either."""
    if not one.wanted:
        result = exercise.truth(*one.args)
        if exercise.launch is None:
            one.wanted.update(_by_part(exercise, result))
        else:
            outs = exercise.launch(*one.args).outputs(exercise.solution)
            parts = result if isinstance(result, tuple) else (result,)
            for (name, out), part in zip(outs.items(), parts, strict=True):
                free = (part == UNWRITTEN) | (part == ANYTHING)
                held = part.to(out.dtype).double()
                one.wanted[name] = torch.where(free | held.isfinite(), part, held)
    return one.wanted


def _by_part(exercise: Exercise, result: Any) -> dict[str, Any]:
    """A function's result as {part: value}: float64 tensors and texts, or integers and tuples of them where the exercise is exact."""
    parts = unpack(result, exercise.parts) if exercise.parts else {"": result}
    return {part: _value(exercise, value, part or "the result") for part, value in parts.items()}


def _value(exercise: Exercise, value: Any, what: str) -> Any:
    """A text as it is, everything else as a tensor. Where it is exact, a list is taken for a tuple, a tensor of one element for a number."""
    if not exercise.exact:
        return value if isinstance(value, str) else as_tensor(value, what)
    if isinstance(value, list):
        return tuple(value)
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def described(exercise: Exercise, one: Case) -> str:
    """An input in words: the case's own, else a call where all arguments are numbers, else "x = [1, 2], block = 1"."""
    args = one.args
    if one.on:
        return one.on
    if not any(isinstance(arg, torch.Tensor) and arg.ndim for arg in args):
        return f"{exercise.name}({', '.join(f'{arg:g}' if isinstance(arg, float) else show(arg).replace(',', ', ') if torch.is_tensor(arg) else str(arg) for arg in args)})"
    words = []
    for name, arg in zip(inspect.signature(exercise.truth).parameters, args, strict=False):
        large = isinstance(arg, torch.Tensor) and arg.numel() > 12
        words.append(f"{name} of shape {tuple(arg.shape)}" if large else f"{name} = {show(arg)}")
    return ", ".join(words)


# ---------------------------------------------------------------- comparing

RTOL = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 5e-5, torch.float64: 1e-13}
ATOL = {torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float32: 1e-6, torch.float64: 1e-14}


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
    """Whether two results are the same within the exercise's tolerance. Where b is ANYTHING, any finite number does.

    loosely: with at least float32's tolerance, to recognise a mistake b.
    """
    if exercise.exact or isinstance(a, str) or isinstance(b, str):
        return same(a, b)
    if a.shape == b.shape:
        a = torch.where((b == ANYTHING) & torch.isfinite(a), b, a)
    rtol, atol = (exercise.tolerance or tolerance)(one.args, part)
    if loosely and rtol:
        rough = tolerance(one.args, part, torch.float32) if dtype_of(one.args) == torch.float64 else (1e-5, 1e-7)
        rtol, atol = max(rtol, rough[0]), max(atol, rough[1])
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=rtol, atol=atol, equal_nan=True)


def _is_coarse(exercise: Exercise, got: Mapping, want: Mapping, one: Case) -> bool:
    """True for a float64 input whose result would be right for float32."""
    return dtype_of(one.args) == torch.float64 and all(_agree(exercise, got[part], want[part], one, part, loosely=True) for part in want)


def _told(exercise: Exercise, got: Any, want: Any, one: Case, part: str, shown: bool) -> str:
    """What the answer gives and what it should give, after the input in words."""
    subject = f"{part} = " if part else ""
    if exercise.exact or isinstance(got, str) or isinstance(want, str):
        value = got if isinstance(got, str) else show(got) if isinstance(got, int | float | tuple) or not exercise.exact else kind(got)
        if want == "":  # got is a sentence
            return f": {value}"
        wanted = want if isinstance(want, str) else show(want)
        return f" gives {subject}{value}, want {wanted}" if shown else f": {part} is wrong" if part else ""
    if got.shape != want.shape:
        return f" gives {part + ' of ' if part else ''}shape {tuple(got.shape)}, want {tuple(want.shape)}"
    if (got == UNWRITTEN).any():
        place = ", ".join(map(str, torch.nonzero(got == UNWRITTEN)[0].tolist()))
        return f": it never writes {part}[{place}] of shape {tuple(got.shape)}"
    return f" gives {subject}{_difference(exercise, got, want, one, part)}" if shown else f": {part or 'the result'} is wrong"


def _difference(exercise: Exercise, got: torch.Tensor, want: torch.Tensor, one: Case, part: str) -> str:
    want = want.masked_fill(want == ANYTHING, 0.0)  # a number that will do
    if want.numel() <= 4:
        while want.ndim > 1 and len(want) == 1:
            got, want = got[0], want[0]
        shown, wanted, place = show_tensor(got), show_tensor(want), ""
    else:
        rtol, atol = (exercise.tolerance or tolerance)(one.args, part)
        index = tuple(torch.nonzero(~torch.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True))[0].tolist())
        got, want = got[index], want[index]
        shown, wanted, place = show_tensor(got), show_tensor(want), f" at [{', '.join(map(str, index))}]"
    off = f" (they differ by {show_number(float((got - want).abs().nan_to_num(0.0).max()))})" if shown == wanted else ""
    return f"{shown}{place}, want {wanted}{off}"
