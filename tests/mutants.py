"""Broken copies of kernels, which show that the tests would see the mistake: a jitted function with one of its statements changed."""

import ast
import subprocess
import sys
import types
from collections.abc import Callable, Sequence

import pytest
import torch
from attention_cases import on_hopper
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from fa_tutorial.source import defined, source_of
from fa_tutorial.tuned import launching


def put_in(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType, kernel: str, *change: str) -> None:
    """`module` launches a mutant of `kernel` until the test ends. change: where, statement and new, as mutant takes them."""
    own = getattr(module, kernel)
    tuned = isinstance(own, Autotuner)
    broken = mutant(own.fn if tuned else own, *change)
    monkeypatch.setattr(module, kernel, types.SimpleNamespace(fn=broken) if tuned else broken)
    monkeypatch.setattr(launching, "_prepared", {})  # what is kept launches the right kernel


def named(mutations: dict[str, dict[str, tuple]]) -> dict[str, tuple]:
    """ "kernel: mistake" -> (kernel, what the table says), of a table kernel -> name of the mistake -> what mutant takes, and more."""
    return {f"{kernel}: {name}": (kernel, *mutation) for kernel, those in mutations.items() for name, mutation in those.items()}


def each(mutations: dict[str, dict[str, tuple]]) -> pytest.MarkDecorator:
    """A test's `mutation` is each of those in turn."""
    return pytest.mark.parametrize("mutation", named(mutations).values(), ids=named(mutations))


def assert_caught(module: types.ModuleType, checks: dict[str, Callable], mutation: tuple) -> None:
    """The check of a kernel passes, and fails where it has the mistake. mutation: kernel, its statement, what stands there instead, and
    more that the check takes.
    """
    kernel, statement, new, *given = mutation
    right = getattr(module, kernel)
    checks[kernel](right, *given)
    with pytest.raises(AssertionError):
        checks[kernel](mutant(right, kernel, statement, new), *given)


def mutation_tests(module: types.ModuleType, mutations: dict[str, dict[str, tuple]], check: Callable) -> tuple[Callable, Callable]:
    """Two slow tests: check(case) passes with copies of `module`'s kernels, and fails with each copy that has a mistake.

    mutations: kernel -> name of the mistake -> the function, its statement, what stands there instead, and the case that has to fail.
    """

    @pytest.mark.slow
    @pytest.mark.parametrize("case", sorted({case for *_, case in named(mutations).values()}, key=str), ids=str)
    def copies_without_a_mistake_are_right(case, monkeypatch):
        for kernel in mutations:
            put_in(monkeypatch, module, kernel)
        check(case)

    @pytest.mark.slow
    @each(mutations)
    def a_mistake_is_caught(mutation, monkeypatch):
        kernel, *change, case = mutation
        put_in(monkeypatch, module, kernel, *change)
        with pytest.raises(AssertionError):
            check(case)

    return copies_without_a_mistake_are_right, a_mistake_is_caught


RIGHT, WRONG, STOPPED = 0, 3, 4  # how a process ends that runs a copy of a kernel


def mutation_tests_alone(
    file: str, mutations: dict[str, dict[str, tuple]], checks: dict[str, tuple], cases: Sequence
) -> tuple[Callable, ...]:
    """As mutation_tests, for kernels of Hopper: a broken protocol may wait for ever, so each copy runs in a process of its own.

    checks: kernel -> its module and check; a copy without a mistake passes on all of `cases`. Returns two tests, and what `python file NAME`
    calls with its arguments.
    """
    every = named(mutations)

    @each(mutations)
    def a_mistake_follows_the_kernel(mutation):
        """On any machine: there is such a statement."""
        kernel, *change, _ = mutation
        mutant(getattr(checks[kernel][0], kernel), *change)

    @on_hopper
    @pytest.mark.parametrize("name", [*mutations, *every])
    def a_mistake_is_caught(name):
        """And a copy of a kernel without one is right."""
        try:
            ended = subprocess.run([sys.executable, file, name], timeout=60).returncode
        except subprocess.TimeoutExpired:
            ended = STOPPED
        assert ended in ((WRONG, STOPPED) if name in every else (RIGHT,))

    def run_copy(name):
        kernel, *change = every.get(name, (name,))
        module, check = checks[kernel]
        put_in(pytest.MonkeyPatch(), module, kernel, *change[:-1])
        try:
            for case in change[-1:] or cases:
                check(case)
        except (AssertionError, torch.AcceleratorError) as error:
            print(f"{name}: {error}")
            sys.exit(WRONG if isinstance(error, AssertionError) else STOPPED)

    return a_mistake_follows_the_kernel, a_mistake_is_caught, run_copy


def mutant(function, where: str | None = None, statement: str = "", new: str = ""):
    """A copy of the jitted `function` and of all that it calls; in the one whose name is `where`, `statement` is changed to `new`.

    statement: what it assigns to ("p", "m, l"), calls ("tl.store"), or begins with ("return", "if MASK", "for start_n"); what is changed is
    the value, the call, the condition or the range. "p 2" is the second such statement; without a number there has to be one alone.
    """
    found, copies = [], {}

    def copied_once(function):
        if id(function) not in copies:  # several functions call it
            copies[id(function)] = copy(function)
        return copies[id(function)]

    def copy(function):
        names = dict(function.fn.__globals__)
        [definition] = ast.parse(source_of(function)).body
        for name in {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}:
            if isinstance(names.get(name), JITFunction | InterpretedFunction):
                names[name] = copied_once(names[name])
        definition.decorator_list = []
        if definition.name == where:
            found.append(True)
            change(definition, statement, new)
        return type(function)(defined(ast.unparse(definition), names)[definition.name])

    copied = copy(function)
    assert found or where is None, f"{function.fn.__name__} calls no {where}"
    return copied


def change(definition: ast.FunctionDef, statement: str, new: str) -> None:
    label, _, number = statement.rpartition(" ")
    label, number = (label, int(number)) if number.isdigit() else (statement, 0)
    those = [node for node in ast.walk(definition) if isinstance(node, ast.stmt) and label_of(node) == label]
    those.sort(key=lambda node: node.lineno)
    assert number <= len(those) == 1 or 1 <= number <= len(those), f"{definition.name} has {len(those)} statements {label!r}"
    node = those[max(number, 1) - 1]
    field = {ast.If: "test", ast.For: "iter"}.get(type(node), "value")
    setattr(node, field, ast.parse(new, mode="eval").body)


def label_of(node: ast.stmt) -> str | None:
    match node:
        case ast.Assign(targets=[target]) | ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return ast.unparse(target).strip("()")
        case ast.Return():
            return "return"
        case ast.If():
            return f"if {ast.unparse(node.test)}"
        case ast.For():
            return f"for {ast.unparse(node.target)}"
        case ast.Expr(value=ast.Call(func=function)):
            return ast.unparse(function)
    return None
