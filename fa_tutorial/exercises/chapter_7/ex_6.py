"""Exercise 7.6, FlashAttention."""

import torch

from fa_tutorial import backward, forward
from fa_tutorial.exercises.chapter_7.function import NAMES, FunctionExercise
from fa_tutorial.exercises.chapter_7.shared import draw
from fa_tutorial.exercises.harness import case
from fa_tutorial.exercises.inputs import exp32, generator


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
        dq, dk, dv = backward.flash_backward(q, k, v, o, do, lse, None, ctx.is_causal, ctx.scale)
        return dq, dk, dv, None, None


ORDER = "the gradients come in the order of forward's arguments, dq, dk, dv, and here they come as"
MISTAKES = {
    "forward_full": "is_causal does not reach flash_forward: pass it on",
    "forward_scale": "scale does not reach flash_forward: pass it on",
    **{f"order {' '.join(order)}": f"{ORDER} {', '.join(order)}"
       for order in (("dq", "dv", "dk"), ("dk", "dq", "dv"), ("dk", "dv", "dq"), ("dv", "dq", "dk"), ("dv", "dk", "dq"))},
    "ones": "do does not reach flash_backward: the gradients are those of o.sum()",
    "o_for_do": "flash_backward gets o where it needs do, which are its fourth and fifth arguments: o, do",
    "scaled": "the gradients are multiplied by scale, which flash_backward has already done",
    "divided": "dq and dk are multiplied by scale, which flash_backward has already done",
    "backward_full": "is_causal does not reach flash_backward: keep it on ctx",
    "backward_scale": "scale does not reach flash_backward: keep it on ctx",
}  # fmt: skip


def twin(q, k, v, do, is_causal, scale, mistake=None):
    q, k, v, do = (x.double() for x in (q, k, v, do))
    own, S_q, S_k = q.shape[3] ** -0.5, q.shape[2], k.shape[2]
    hidden = ~torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q) & is_causal
    s = (own if mistake == "forward_scale" else scale) * q @ k.mT
    s = s if mistake == "forward_full" else s.masked_fill(hidden, -torch.inf)
    lse = torch.logsumexp(s, -1, keepdim=True)
    o = exp32(s - lse.masked_fill(lse == -torch.inf, 0.0)) @ v
    do = {"ones": torch.ones_like(o), "o_for_do": o}.get(mistake, do)
    factor = own if mistake == "backward_scale" else scale
    p = exp32(factor * q @ k.mT - lse)
    p = p if mistake == "backward_full" else p.masked_fill(hidden, 0.0)
    ds = factor * p * (do @ v.mT - (do * o).sum(-1, keepdim=True))
    found = dict(zip(NAMES, (ds @ k, ds.mT @ q, p.mT @ do), strict=True))
    if mistake in ("scaled", "divided"):
        found = {name: x * scale if mistake == "scaled" or name != "dv" else x for name, x in found.items()}
    return o, *(found[name] for name in (mistake.split()[1:] if (mistake or "").startswith("order") else NAMES))


def tolerance(args, part):
    """In fp16, o, p, ds and the gradients are rounded once each."""
    q, _, v, do = (x.double() for x in args[:4])
    size = max(1.0, float(v.abs().max()) * (1.0 if part == "o" else float(do.abs().max()) * float(q.abs().max())))
    return 1e-5, {torch.float32: 2e-5, torch.float16: 4e-3}[args[0].dtype] * size


def inputs():
    def attention(sizes, on, otherwise="", do=None, is_causal=False, scale=None, random=None, dtype=torch.float32, **options):
        q, k, v, weight = (x.to(dtype) for x in draw(*sizes, random))
        do = weight if do is None else do(weight)
        return case(q, k, v, do, is_causal, sizes[4] ** -0.5 if scale is None else scale, on=on, otherwise=otherwise, **options)

    small = (1, 1, 4, 4, 4)
    yield attention(small, "S_q = S_k = D = 4", "flash_backward(q, k, v, o, do, lse, None, is_causal, scale) gives dq, dk, dv")
    yield attention(small, "is_causal = True, scale = 1", "is_causal and scale reach forward and backward", is_causal=True, scale=1.0)
    any_strides = "do may have any strides"
    yield attention(
        small, "o.sum().backward(), where do has strides of 0", any_strides, lambda do: torch.ones(()).expand(do.shape), edge="strides"
    )
    yield attention((1, 2, 4, 4, 4), "do a (B, S, H, D) tensor seen as (B, H, S, D)", any_strides,
                    lambda do: do.transpose(1, 2).contiguous().transpose(1, 2), edge="strides")  # fmt: skip
    random = generator()
    for sizes, dtype, is_causal in (((2, 1, 5, 3, 8), torch.float32, True), ((1, 1, 5, 9, 20), torch.float16, False)):
        on = f"{str(dtype).removeprefix('torch.')}, (B, H, S_q, S_k, D) = {sizes}, is_causal = {is_causal}"
        yield attention(sizes, on, is_causal=is_causal, scale=0.3, random=random, dtype=dtype, fresh=True)


EXERCISE = FunctionExercise(
    id="7.6",
    task="Join the forward and the backward kernels in a torch.autograd.Function.",
    conditions={"strides": "do may have any strides, 0 after o.sum().backward()"},
    hints=(
        "forward(ctx, …) keeps tensors by ctx.save_for_backward and other values as attributes of ctx; backward(ctx, do) finds them in ctx.saved_tensors. "
        "Both are static methods. How many values does backward return?",
        "One for each argument of forward: dq, dk, dv, None, None. flash_backward's dlse is the gradient of lse: forward returns o alone, so it is None.",
        "Put @torch.autograd.function.once_differentiable between @staticmethod and backward: a second derivative then raises.",
    ),
    solution=FlashAttention,
    reasoning="save_for_backward notices when a saved tensor changes before backward, and frees it afterwards; a tensor set as an attribute of ctx escapes "
    "both. With lse, backward can compute p again, so no (S_q, S_k) matrix is kept. The kernels leave no graph: without once_differentiable, a second "
    "derivative would take their results for constants.",
    more="The package's node, in attention.py, also returns lse, takes its gradient, and leaves out gradients that nobody asks for.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("o", *NAMES),
    tolerance=tolerance,
)
