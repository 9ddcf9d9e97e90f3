"""Stops a kernel in the interpreter where a loop changes the type of a variable, as Triton's compiler does and the interpreter doesn't.

A compiled loop carries each variable in registers of one shape and dtype. The interpreter runs Python, where m may be a number before
the loop and a block after an iteration.
"""

import ast
import collections
import contextlib
import dis
import functools
import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple
from unittest import mock

from fa_tutorial.exercises.running import Wrong

SAID = re.compile(r"Loop-carried variable (\w+) has initial type (.+?) but is re-assigned to (.+?) in loop!")
TOLD = (  # what a reader is told of a variable whose type a loop changes: the compiler's words, and what to do
    'Triton\'s compiler refuses it: "Loop-carried variable {0} has initial type {1} but is re-assigned to {2} in loop!" '
    "Before the loop, give {0} the shape and dtype that it has after an iteration, with tl.full or tl.zeros"
)

NEEDS = "Before the loop, give {0} the shape and dtype that it has after an iteration, with tl.zeros or tl.full"
NONE = f'Triton\'s compiler refuses it: "Loop carried variable {{0}} is not a triton value", because it is None. {NEEDS}'
UNSET = f'Triton\'s compiler refuses it: "{{0}} is not defined", because it reads a loop once, for all iterations. {NEEDS}'


def refuse_unset(function: ast.FunctionDef) -> None:
    """Wrong where a loop changes what was None, or reads what only an earlier iteration can have set. Loops of static_range are unrolled."""
    assigning = ast.Assign, ast.AugAssign, ast.AnnAssign
    own = {name for node in ast.walk(function) if isinstance(node, assigning) for name in _names(node, ast.Store)}

    def follow(statements: list[ast.stmt], known: dict[str, bool], in_loop: bool) -> dict[str, bool]:
        """known: whether each variable that is set is None."""
        for node in statements:
            head = getattr(node, "test", getattr(node, "iter", None)) or node
            read = _names(head, ast.Load) | (_names(node.target, ast.Store) if isinstance(node, ast.AugAssign) else set())
            if in_loop and not isinstance(node, ast.With):
                for name in sorted((read & own) - known.keys()):
                    raise Wrong(UNSET.format(name))
            if isinstance(node, ast.For | ast.While):
                unrolled = "static_range" in ast.unparse(head)
                if not unrolled:
                    changed = {name for one in node.body if isinstance(one, assigning) for name in _names(one, ast.Store)}
                    for name in sorted(name for name in changed if known.get(name)):
                        raise Wrong(NONE.format(name))
                earlier = _names(node, ast.Store) if unrolled else _names(head if isinstance(node, ast.While) else node.target, ast.Store)
                known = known | follow(node.body, dict.fromkeys(earlier, False) | known, in_loop or not unrolled)
            elif isinstance(node, ast.If):
                yes, no = (follow(branch, dict(known), in_loop) for branch in (node.body, node.orelse))
                known = {name: yes.get(name, True) and no.get(name, True) for name in yes | no}
            elif isinstance(node, ast.With):
                known = follow(node.body, known, in_loop)
            else:
                is_none = isinstance(node, ast.Assign) and ast.unparse(node.value) == "None"
                known = known | dict.fromkeys(_names(node, ast.Store), is_none)
        return known

    follow(function.body, {one.arg: False for one in ast.walk(function.args) if isinstance(one, ast.arg)}, False)


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, context)}


@contextlib.contextmanager
def entering_a_kernel(then: Callable[[], None]) -> Iterator[None]:
    """Within, call `then` whenever the interpreter has put its own functions in the place of Triton's, for the run of a kernel."""
    from triton.runtime import interpreter

    patch = getattr(interpreter, "_patch_lang", None)  # a private function, which another Triton may not have, and then doesn't call

    def patch_and_more(function: Any) -> Any:
        scope = patch(function)
        then()
        return scope

    with mock.patch.object(interpreter, "_patch_lang", patch_and_more, create=True):
        yield


class Loop(NamedTuple):
    """A loop in a function's code: the offsets of its header and of its last jump back, and the header's line."""

    head: int
    end: int
    line: int | None


@functools.cache
def loops(code: CodeType) -> tuple[Loop, ...]:
    """The loops of a function that the compiler keeps: those of tl.static_range are unrolled, so a variable's type may change there."""
    instructions = list(dis.get_instructions(code))
    lines = {one.offset: one.positions.lineno for one in instructions if one.positions}
    unrolled = {lines.get(one.offset) for one in instructions if one.argval == "static_range"}
    ends: dict[int, int] = {}
    for one in instructions:
        if "JUMP_BACKWARD" in one.opname and "INTERRUPT" not in one.opname:
            ends[one.argval] = max(ends.get(one.argval, 0), one.offset)
    return tuple(Loop(head, end, lines.get(head)) for head, end in ends.items() if lines.get(head) not in unrolled)


def _types(frame: FrameType) -> dict[str, Any]:
    """The types of a frame's tensors, and of its numbers, which a kernel makes tensors of one element."""
    import triton.language as tl

    plain = {float: tl.float32, int: tl.int32}
    found = {name: plain.get(type(value), getattr(value, "type", None)) for name, value in frame.f_locals.items()}
    return {name: kind for name, kind in found.items() if isinstance(kind, tl.dtype)}


def _differ(before: Any, after: Any) -> bool:
    """Whether no loop may carry a variable from one type to the other; integers of two widths are left to the compiler."""
    if before.is_block() != after.is_block() or (before.is_block() and before.shape != after.shape):
        return True
    return before.scalar != after.scalar and (before.scalar.is_floating() or after.scalar.is_floating())


@functools.cache
def has_while(code: CodeType) -> bool:
    """Whether a function has a loop that no iterator drives."""
    instructions = [one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG"]  # which may stand before the one it extends
    return any(next(one for one in instructions if one.offset >= loop.head).opname != "FOR_ITER" for loop in loops(code))


@contextlib.contextmanager
def watched(kernel: Any) -> Iterator[None]:
    """Within, Wrong where a loop of the kernel, or of a function beside it, gives a variable another type than it had before the loop."""
    from triton import language
    from triton.runtime import interpreter

    # A loop over range or tl.range tells of each iteration itself. Python's tracing, which sees any loop, slows every call beneath.
    names = kernel.fn.__globals__
    beside = (value.fn for value in names.values() if isinstance(value, interpreter.InterpretedFunction))
    codes = [kernel.fn.__code__, *(function.__code__ for function in beside if function.__globals__ is names)]
    if "range" in names or not hasattr(interpreter, "_patch_lang") or any(map(has_while, codes)):
        with _traced(kernel):
            yield
        return
    ended = collections.defaultdict(set)  # by frame, the variables of loops that have ended, which the compiler doesn't know any more

    def watched_range(first: Any, end: Any = None, step: Any = None, **_: Any) -> Iterator[int]:
        frame = sys._getframe(1)
        before = {name: kind for name, kind in _types(frame).items() if name not in ended[frame]} if frame.f_globals is names else {}
        try:
            for value in range(*(number for number in (first, end, step) if number is not None)):
                yield value
                _check(before, frame)
        finally:
            ended[frame] |= set(frame.f_locals) - before.keys()

    def watch() -> None:
        language.range = watched_range  # the scope's end puts Triton's own back

    names["range"] = lambda *args: watched_range(*args)
    try:
        with entering_a_kernel(watch):
            yield
    finally:
        del names["range"]


def _check(before: dict[str, Any], frame: FrameType) -> None:
    now = _types(frame)
    for name, kind in before.items():
        if name in now and _differ(kind, now[name]):
            raise Wrong(TOLD.format(name, kind, now[name]))


@contextlib.contextmanager
def _traced(kernel: Any) -> Iterator[None]:
    """The same for any loop, by Python's tracing: a run takes three times as long."""
    names, file = kernel.fn.__globals__, kernel.fn.__code__.co_filename

    def call(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if (code.co_filename != file and frame.f_globals is not names) or not loops(code):
            return None
        kept: dict[Loop, dict[str, Any]] = {}
        ended: set[str] = set()  # the variables of loops that have ended, which the compiler doesn't know any more

        def line(frame: FrameType, event: str, _: Any) -> Any:
            if event != "line":
                return line
            at = frame.f_lasti
            for loop in loops(code):
                enters = frame.f_lineno == loop.line and at < loop.head
                if enters or (at == loop.head and loop not in kept):
                    kept[loop] = {name: kind for name, kind in _types(frame).items() if name not in ended}
                elif at == loop.head:
                    _check(kept[loop], frame)
                elif loop in kept and not loop.head <= at <= loop.end:
                    ended.update(frame.f_locals.keys() - kept.pop(loop).keys())
            return line

        return line

    outer = sys.gettrace()
    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(outer)
