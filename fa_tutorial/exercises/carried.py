"""Stops a kernel in the interpreter where a for loop changes the type of a variable, as Triton's compiler does: it carries each in
registers of one shape and dtype. The interpreter runs Python, where m may be a number before the loop and a block after an iteration."""

import ast
import collections
import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from unittest import mock

from fa_tutorial.exercises.running import Wrong

NEEDS = "Before the loop, give {0} the shape and dtype that it has after an iteration, with tl.zeros or tl.full"
SAID = re.compile(r"Loop-carried variable (\w+) has initial type (.+?) but is re-assigned to (.+?) in loop!")
SAYS = "Triton's compiler refuses it: "
TOLD = f'{SAYS}"Loop-carried variable {{0}} has initial type {{1}} but is re-assigned to {{2}} in loop!" {NEEDS}'
NONE = f'{SAYS}"Loop carried variable {{0}} is not a triton value", because it is None. {NEEDS}'
UNSET = f'{SAYS}"{{0}} is not defined", because it reads a loop once, for all iterations. {NEEDS}'


def refuse_unset(function: ast.FunctionDef) -> None:
    """Wrong where a loop reads what only an earlier iteration can have set. Loops of static_range are unrolled."""
    assigning = ast.Assign, ast.AugAssign, ast.AnnAssign
    own = {name for node in ast.walk(function) if isinstance(node, assigning) for name in _names(node, ast.Store)}

    def follow(statements: list[ast.stmt], known: set[str], in_loop: bool) -> set[str]:
        """known: the variables that may be set. Gives those that may be after the statements."""
        for node in statements:
            head = getattr(node, "test", getattr(node, "iter", None)) or node
            read = _names(head, ast.Load) | (_names(node.target, ast.Store) if isinstance(node, ast.AugAssign) else set())
            if in_loop and (unset := (read & own) - known):
                raise Wrong(UNSET.format(min(unset)))
            if isinstance(node, ast.For | ast.While):
                unrolled = "static_range" in ast.unparse(head)
                set_before = _names(node if unrolled else getattr(node, "target", head), ast.Store)
                known = follow(node.body, known | set_before, in_loop or not unrolled)
            elif isinstance(node, ast.If):
                known = follow(node.body, known, in_loop) | follow(node.orelse, known, in_loop)
            else:
                known = known | _names(node, ast.Store)
        return known

    follow(function.body, {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}, False)


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


def _types(frame: FrameType) -> dict[str, Any]:
    """The types of a frame's tensors, and of its numbers, which a kernel makes tensors of one element; None for None."""
    import triton.language as tl

    plain = {float: tl.float32, int: tl.int32}
    found = {name: plain.get(type(value), getattr(value, "type", value)) for name, value in frame.f_locals.items()}
    return {name: kind for name, kind in found.items() if kind is None or isinstance(kind, tl.dtype)}


def _check(before: dict[str, Any], frame: FrameType) -> None:
    """Wrong where a variable has another type than before the loop; integers of two widths are left to the compiler."""
    for name, now in _types(frame).items():
        first = before.get(name, now)
        if first is None and now is not None:
            raise Wrong(NONE.format(name))
        if now is not first and now is not None:
            is_float = first.scalar.is_floating() or now.scalar.is_floating()
            if getattr(first, "shape", ()) != getattr(now, "shape", ()) or (is_float and first.scalar != now.scalar):
                raise Wrong(TOLD.format(name, first, now))


@contextlib.contextmanager
def watched(kernel: Any) -> Iterator[None]:
    """Within, Wrong where a loop over range or tl.range, of the kernel or of a function beside it, gives a variable another type than it
    had before the loop."""
    from triton import language

    names = kernel.fn.__globals__
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

    names["range"] = lambda *args: watched_range(*args)
    try:
        with entering_a_kernel(lambda: setattr(language, "range", watched_range)):  # the scope's end puts Triton's own back
            yield
    finally:
        del names["range"]
