"""An autograd.Function as an answer, for exercise 7.8: it is run by its apply, and inspected for what it keeps."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from unittest import mock

import torch

from fa_tutorial import forward, hardware
from fa_tutorial.exercises import running
from fa_tutorial.exercises.chapter_7.shared import draw
from fa_tutorial.exercises.harness import Exercise, judge
from fa_tutorial.exercises.running import Endless, NotAttempted, Wrong, show, where_in, written_once

NAMES = ("dq", "dk", "dv")
FIVE = "backward returns one value for each argument of forward: dq, dk, dv, None, None"


@dataclass(frozen=True, eq=False, kw_only=True)
class FunctionExercise(Exercise):
    """An Exercise whose answer is a torch.autograd.Function: it is graded by what its apply and its backward give, and by what it keeps."""

    def grade(self, answer):
        _check_class(answer)
        for check in (_check_results, _check_kept):  # they take few forwards, and the rest takes many
            _in_time(check, answer)
        judge(self, answer)
        for check in (_check_again, _check_second_derivative):
            try:
                _in_time(check, answer)
            except Wrong as wrong:
                raise Wrong(f"right on the main case; {wrong}") from wrong


def _in_time(check, answer):
    try:
        with running.time_limit():
            check(answer)
    except Endless as endless:
        raise Wrong(f"is still running after {running.TIME_LIMIT:g} s{where_in(endless, answer.forward)}{endless}") from None


def by_apply(answer):
    """(q, k, v, do, is_causal, scale) -> o, dq, dk, dv, for the harness. Its `fn` is where a line of the reader's code is looked for."""

    def applied(q, k, v, do, is_causal, scale):
        leaves = [x.to(hardware.device()).requires_grad_() for x in (q, k, v)]
        o = answer.apply(*leaves, is_causal, scale)
        do = do[written_once(do.stride())].to(o.device).expand(do.shape)  # its strides of 0 on a GPU too
        return o, *torch.autograd.grad(o, leaves, do)

    applied.fn = answer.backward
    return applied


def runs_forward_again(answer):
    """A note on a right class whose backward calls the forward kernel, "" for none."""
    leaves, do = _leaves(1, 1, 4, 4, 4)
    o = answer.apply(*leaves, False, 0.5)
    with mock.patch.object(forward, "flash_forward", wraps=forward.flash_forward) as again:
        torch.autograd.grad(o, leaves, do)
    return "backward runs the forward kernel again, although o and lse are saved" if again.called else ""


def _leaves(*sizes):
    *leaves, do = (x.to(hardware.device()) for x in draw(*sizes))
    return [x.requires_grad_() for x in leaves], do


def _check_class(answer):
    if not inspect.isclass(answer):
        raise Wrong(f"pass the class itself, not {show(answer)}")
    if not issubclass(answer, torch.autograd.Function):
        raise Wrong("is no subclass of torch.autograd.Function: write class FlashAttention(torch.autograd.Function)")
    for name in ("forward", "backward"):
        found = inspect.getattr_static(answer, name)
        if isinstance(getattr(found, "__wrapped__", None), staticmethod):  # a staticmethod has one of its own
            raise Wrong(f"the decorators of {name} stand in the wrong order: exchange the two, so that @staticmethod is above the other")
        if inspect.isfunction(found) and name in vars(answer):
            raise Wrong(f"{name} is no static method: put @staticmethod above it, because apply passes ctx, not self")


def _check_results(answer):
    """What forward and backward return, in number and kind."""
    leaves, do = _leaves(1, 1, 4, 4, 4)
    try:
        o = answer.apply(*leaves, False, 0.5)
    except NotImplementedError:
        raise NotAttempted from None
    except Exception as error:
        raise Wrong(f"forward raises {type(error).__name__}: {error}{where_in(error, answer.forward)}") from error
    if isinstance(o, tuple | list):
        raise Wrong(f"forward returns {len(o)} values: o alone is the result, lse goes to save_for_backward")
    if not isinstance(o, torch.Tensor):
        raise Wrong(f"forward returns {show(o)}, want o")
    if not o.requires_grad:
        raise Wrong("o has no grad_fn, although q, k and v require gradients")
    before = do.clone()
    try:
        gradients = torch.autograd.grad(o, leaves, do, allow_unused=True)
    except NotImplementedError:
        raise Wrong("backward is not written yet: it raises NotImplementedError") from None
    except Exception as error:
        text = " ".join(str(error).split())
        if "incorrect number of gradients" in text or "different from None" in text:
            raise Wrong(f"{FIVE}. PyTorch says: {text}") from error
        raise Wrong(f"backward raises {type(error).__name__}: {text}{where_in(error, answer.backward)}") from error
    if absent := [name for name, x in zip(NAMES, gradients, strict=True) if x is None]:
        raise Wrong(f"backward returns None for {' and '.join(absent)}, although q, k and v require gradients: {FIVE}")
    if not torch.equal(do, before):
        raise Wrong("backward changes do in place, which belongs to autograd")


def _tensors_in(value, depth=0):
    """The tensors that a value holds: itself, or in tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 4 and isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_in(item, depth + 1)


def _check_kept(answer):
    """S_q = S_k = 24, D = 4: a matrix of scores is larger than anything that may be kept."""
    H, S, D = 1, 24, 4
    leaves, _ = _leaves(1, H, S, S, D)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        o = answer.apply(*leaves, False, 0.5)
    for name, value in vars(o.grad_fn).items():
        for x in _tensors_in(value):
            raise Wrong(f"a tensor is kept on ctx, ctx.{name} of shape {tuple(x.shape)}: ctx.save_for_backward keeps tensors, "
                        "and notices when one changes in between")  # fmt: skip
    for name, value in vars(answer).items():
        if not isinstance(value, staticmethod) and list(_tensors_in(value)):
            raise Wrong(f"a tensor is kept on the class, {name}: the next call overwrites it; ctx.save_for_backward keeps tensors")
    if quadratic := [tuple(x.shape) for x in saved if tuple(x.shape[-2:]) == (S, S)]:
        raise Wrong(f"a matrix of scores is saved, of shape {quadratic[0]}: backward can compute p from lse")
    total, allowed = sum(x.numel() for x in saved), H * S * (4 * D + 1)
    shapes = ", ".join(str(tuple(x.shape)) for x in saved)
    told = f"H = {H}, S_q = S_k = {S}, D = {D}, {total:,} elements, want {allowed:,}; the shapes are {shapes}"
    if total > allowed:
        raise Wrong(f"more is saved than q, k, v, o and lse: {told}")
    if total < allowed:
        raise Wrong(f"less is saved than q, k, v, o and lse, so backward must run the forward again: {told}")


def _check_again(answer):
    """The same backward a second time, and once more after another call."""
    leaves, do = _leaves(1, 1, 4, 4, 4)
    o = answer.apply(*leaves, False, 0.5)
    first = torch.autograd.grad(o, leaves, do, retain_graph=True)
    twice = "backward twice, with retain_graph=True"
    try:
        again = torch.autograd.grad(o, leaves, do, retain_graph=True)
    except Exception as error:
        raise Wrong(f"backward raises {type(error).__name__}: {error}{where_in(error, answer.backward)}: {twice}") from error
    if not all(map(torch.equal, first, again)):
        raise Wrong(f"two backward passes differ: what is kept must not change: {twice}")
    answer.apply(*leaves, True, 1.0)
    if not all(map(torch.equal, first, torch.autograd.grad(o, leaves, do))):
        raise Wrong("a second call changes the first one's gradients: keep on ctx what backward needs")


def _check_second_derivative(answer):
    """The gradient of Σ o², and then the gradient of its square: without once_differentiable the second is dropped silently."""
    leaves, _ = _leaves(1, 1, 4, 4, 4)
    o = answer.apply(*leaves, False, 0.5)
    loss = (o * o).sum()
    try:
        gradients = torch.autograd.grad(loss, leaves, create_graph=True)
        (loss + sum((x * x).sum() for x in gradients)).backward()
    except RuntimeError:
        return
    raise Wrong("a second derivative is silently wrong: with create_graph=True the kernels' gradients count as constants. "
                "@once_differentiable, between @staticmethod and backward, raises a RuntimeError there")  # fmt: skip
