import inspect

import torch

from fa_tutorial import backward, forward, hardware
from fa_tutorial.exercises.chapter_7.shared import Given, draw
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import NotAttempted, Wrong, kind, show, written_once


def launch_backward(q, k, v, o, do, lse, is_causal, scale):
    """As the chapter's, by the package's kernels."""
    return backward.flash_backward(q, k, v, o, do, lse, None, is_causal, scale)


class FlashAttention(torch.autograd.Function):
    """FlashAttention.apply(q, k, v, is_causal, scale) gives o, with gradients for q, k and v."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal, scale):
        o, lse = forward.flash_forward(q, k, v, is_causal, scale)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal, ctx.scale = is_causal, scale
        return o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        dq, dk, dv = launch_backward(q, k, v, o, do, lse, ctx.is_causal, ctx.scale)
        return dq, dk, dv, None, None


FORWARD, BACKWARD = "flash_forward(q, k, v, is_causal, scale)", "launch_backward(q, k, v, o, do, lse, ctx.is_causal, ctx.scale)"
MISTAKES = {
    "is_causal does not reach launch_backward: keep it on ctx": (BACKWARD, BACKWARD.replace("ctx.is_causal", "False")),
    "scale does not reach launch_backward: keep it on ctx": (BACKWARD, BACKWARD.replace("ctx.scale", "q.shape[-1] ** -0.5")),
    "is_causal does not reach flash_forward: pass it on": (FORWARD, FORWARD.replace("is_causal", "False")),
    "the gradients come in the order of forward's arguments, dq, dk, dv, and here they come as dq, dv, dk": ("return dq, dk, dv,", "return dq, dv, dk,"),
    "launch_backward gets o and do in the wrong order: its fourth and fifth arguments are o, do": (BACKWARD, BACKWARD.replace("o, do,", "do, o,")),
    "dq and dk are multiplied by scale, which launch_backward has already done": (
        "return dq, dk,", "return ctx.scale * dq, ctx.scale * dk,"),
    "do does not reach launch_backward: the gradients are those of o.sum()": (BACKWARD, BACKWARD.replace("do,", "torch.ones_like(o),")),
}  # fmt: skip


def by_apply(answer):
    """(q, k, v, do, is_causal, scale) -> o, dq, dk, dv, for the harness. Its `fn` is where a line of the reader's code is looked for."""
    if not inspect.isclass(answer) or not issubclass(answer, torch.autograd.Function):
        raise Wrong(f"a subclass of torch.autograd.Function is wanted: pass the class itself, not {show(answer)}")
    try:
        answer.forward(*[None] * 6)
    except NotImplementedError:
        raise NotAttempted from None
    except Exception:
        pass

    def applied(q, k, v, do, is_causal, scale):
        leaves = [x.to(hardware.device()).requires_grad_() for x in (q, k, v)]
        o = answer.apply(*leaves, is_causal, scale)
        if not isinstance(o, torch.Tensor):
            raise Wrong(f"forward returns {kind(o)}: o alone is the result, lse goes to save_for_backward")
        answer.apply(*leaves, not is_causal, 2 * scale)  # another layer, whose settings must not reach this one's backward
        do = do[written_once(do.stride())].to(o.device).expand(do.shape)  # its strides of 0 on a GPU too
        return o, *torch.autograd.grad(o, leaves, do, allow_unused=True)

    applied.fn, applied.__name__, applied.__module__ = answer.backward, answer.__name__, answer.__module__
    return applied


def refused(answer):
    """What a right result must not hide: what is kept for backward, and a second derivative."""
    H, S, D = 1, 24, 4
    leaves = [x.to(hardware.device()).requires_grad_() for x in draw(1, H, S, S, D)[:3]]
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        o = answer.apply(*leaves, False, 0.5)
    if sum(x.numel() for x in saved) != H * S * (4 * D + 1):
        shapes = ", ".join(str(tuple(x.shape)) for x in saved) or "no tensor"
        return f"with S_q = S_k = {S} and D = {D}, save_for_backward gets {shapes}: keep q, k, v, o and lse by it, and no others"
    loss = (o * o).sum()
    try:
        gradients = torch.autograd.grad(loss, leaves, create_graph=True)
        (loss + sum((x * x).sum() for x in gradients)).backward()
    except RuntimeError:
        return ""
    return ("a second derivative is silently wrong: with create_graph=True the kernels' gradients count as constants. "
            "@once_differentiable, between @staticmethod and backward, raises a RuntimeError there")  # fmt: skip


def truth(q, k, v, do, is_causal, scale):
    given = Given(q, k, v, do, is_causal, scale)
    s = (scale * q.double() @ k.double().mT).masked_fill(given.hidden, -torch.inf)
    return torch.softmax(s, -1).nan_to_num() @ v.double(), *given.right.values()


def tolerance(args, part):
    """In fp16, o, p, ds and the gradients are rounded once each."""
    q, _, v, do = (x.double() for x in args[:4])
    size = max(1.0, float(v.abs().max()) * (1.0 if part == "o" else float(do.abs().max()) * float(q.abs().max())))
    return 1e-5, {torch.float32: 2e-5, torch.float16: 4e-3}[args[0].dtype] * size


def inputs():
    def attention(sizes, on, otherwise="", is_causal=False, scale=0.5, random=None, dtype=torch.float32, do=lambda do: do, **options):
        q, k, v, weight = (x.to(dtype) for x in draw(*sizes, random))
        return case(q, k, v, do(weight), is_causal, scale, on=on, otherwise=otherwise, **options)

    small, random = (1, 1, 4, 4, 4), generator()
    own = "launch_backward(q, k, v, o, do, lse, is_causal, scale) gives dq, dk, dv, by settings of this call, which ctx keeps: the other call has others"
    yield attention(small, "S_q = S_k = D = 4, with another call of apply before backward", own)
    yield attention(small, "is_causal = True, scale = 1", "is_causal and scale reach forward and backward", True, 1.0)
    summed = "o.sum().backward(), where do has strides of 0"
    yield attention(small, summed, do=lambda do: torch.ones(()).expand(do.shape), edge="strides")
    view = "do a (B, S, H, D) tensor seen as (B, H, S, D)"
    yield attention((2, 2, 4, 4, 4), view, do=lambda do: do.transpose(1, 2).contiguous().transpose(1, 2), edge="strides")
    for sizes, dtype, is_causal in (((2, 1, 5, 3, 8), torch.float32, True), ((1, 1, 5, 9, 20), torch.float16, False)):
        on = f"{str(dtype).removeprefix('torch.')}, (B, H, S_q, S_k, D) = {sizes}, is_causal = {is_causal}"
        yield attention(sizes, on, "", is_causal, 0.3, random, dtype, fresh=True)


EXERCISE = Exercise(
    task="Join the forward and the backward kernels in a torch.autograd.Function.",
    conditions={"strides": "do may have any strides, 0 after o.sum().backward()"},
    hints=(
        "forward(ctx, …) keeps tensors by ctx.save_for_backward and other values as attributes of ctx; backward(ctx, do) finds them in "
        "ctx.saved_tensors. Both are static methods. How many values does backward return?",
        "One for each argument of forward: dq, dk, dv, None, None. launch_backward stands above in the chapter: it takes q, k, v, o, do, "
        "lse, is_causal and scale.",
        "Put @torch.autograd.function.once_differentiable between @staticmethod and backward: a second derivative then raises.",
    ),
    solution=FlashAttention,
    reasoning="save_for_backward notices when a saved tensor changes before backward, and frees it afterwards; a tensor set as an "
    "attribute of ctx escapes both. With lse, backward can compute p again, so no (S_q, S_k) matrix is kept. The kernels leave no graph: "
    "without once_differentiable, a second derivative would take their results for constants.",
    more="The package's node, in attention.py, also returns lse, takes its gradient, and leaves out gradients that nobody asks for.",
    inputs=inputs,
    truth=truth,
    rule="o is attention with is_causal and scale, and its gradients are dq, dk and dv, in this order",
    adapt=by_apply,
    refused=refused,
    mistakes=MISTAKES,
    parts=("o", "dq", "dk", "dv"),
    tolerance=tolerance,
)
