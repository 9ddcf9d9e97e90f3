"""The public door: flash_attention checks its arguments, picks the kernel, and carries the gradients."""

from __future__ import annotations

import functools

import torch

from fa_tutorial import backward, forward, tuned
from fa_tutorial.arguments import check_name
from fa_tutorial.hardware import HOPPER_CAPABILITY, has_gpu, interpreter_on

KERNELS = ("auto", "basic", "tuned", "hopper")


def best(index: int | None = None) -> str:
    """What "auto" takes on the GPU with this index (None: the current one); in the interpreter the plain kernels, whose tiles are the faster
    ones there."""
    if interpreter_on():
        return "basic"
    is_hopper = has_gpu() and tuned.card(torch.cuda.current_device() if index is None else index).capability == HOPPER_CAPABILITY
    return "hopper" if is_hopper else "tuned"


def implementation(kernel: str, index: int | None = None):
    """(forward, backward) of a kernel's name; ValueError for a name that is not known, or not for this GPU. index: as best's."""
    if check_name("kernel", kernel, (*KERNELS, *tuned.STEPS)) == "auto":
        kernel = best(index)
    elif kernel == "hopper" and best(index) != "hopper":
        raise ValueError(
            'kernel "hopper" is for GPUs of compute capability 9.0 (H100, H200), and q lies on none; "auto" takes what its device can run'
        )
    if kernel == "hopper":
        from fa_tutorial import hopper  # not above: only Hopper needs Gluon, an experimental part of Triton

        return hopper.flash_forward, tuned.flash_backward
    if kernel == "basic":
        return forward.flash_forward, backward.flash_backward
    if kernel == "tuned":
        return tuned.flash_forward, tuned.flash_backward
    return functools.partial(tuned.flash_forward, step=kernel), functools.partial(tuned.flash_backward, step=kernel)


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    kernel: str = "auto",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale · q kᵀ) v with memory linear in the sequence length, forward and backward (FlashAttention-2, Dao, 2023).

    Shapes: q (B, H_q, S_q, D); k and v (B, H_k, S_k, D), H_q a multiple of H_k (grouped-query attention), 1 ≤ D ≤ 256; any strides.
    Dtypes: fp16, bf16, fp32, one for all three; sums are float32. Under torch.autocast the inputs are cast to the autocast dtype.
    is_causal: query i sees keys 0 … i + S_k − S_q (bottom-right aligned, as flash-attn 2.1 and later). scale: 1/√D unless given; no gradient.
    kernel: "basic" for the kernels of chapters 5 and 7; "tuned" for those of chapter 8, or one of its steps (tuned.STEPS), whose first call
    of a kind measures which tiles are fastest on this GPU; "hopper" for chapter 9's forward on a GPU of compute capability 9.0, with the
    tuned kernels wherever it does not apply. "auto" takes "hopper" on such a GPU, "tuned" on another, and "basic" in the interpreter.

    Returns o (B, H_q, S_q, D) in q's dtype; with return_lse also lse (B, H_q, S_q), float32, the natural logarithm of the sum of exponentials
    of the scaled scores. A query that sees no key gets o = 0 and lse = −inf.

    Gradients: o and lse are differentiable with respect to q, k and v, once: a second derivative raises RuntimeError. Two runs with the same
    tiles give the same bits. The backward computes p anew from lse, whose rounding in float32 grows with the logits: beyond about 10,000 the
    gradients of a row lose digits, where o does not. Where one of q, k, v asks for a gradient, q, k, v, o and lse are kept for backward, and
    nothing else.

    Raises TypeError for other dtypes, sparse or nested tensors and what is no tensor, no flag or no number; ValueError for shapes, devices,
    head counts, D, scale and kernel; RuntimeError for a device on which no kernel runs.
    """
    # The kernel's forward checks the arguments: a second check here would only take time.
    index = q.device.index if isinstance(q, torch.Tensor) else None
    o, lse = differentiable_attention(*map(as_stored, autocast(q, k, v)), is_causal, scale, implementation(kernel, index))
    return (o, lse) if return_lse else o


class FlashAttention(torch.autograd.Function):
    """A kernel's forward and backward as one node of autograd's graph."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal, scale, forward_and_backward):
        flash_forward, ctx.flash_backward = forward_and_backward
        o, lse = flash_forward(q, k, v, is_causal, scale)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal, ctx.scale = is_causal, scale
        ctx.set_materialize_grads(False)  # None, not a tensor of zeros, for an output that nobody used
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        if do is None:  # only lse was used
            do = torch.zeros((), dtype=o.dtype, device=o.device).expand_as(o)
        do, dlse = as_stored(do), as_stored(dlse)
        with torch.no_grad():
            gradients = ctx.flash_backward(q, k, v, o, do, lse, ctx.is_causal, ctx.scale, dlse=dlse, needs=ctx.needs_input_grad[:3])
        if torch.is_grad_enabled():  # create_graph=True: somebody may want to differentiate these
            gradients = OnceDifferentiable.apply(*gradients, q, k, v, do, dlse)
        return *gradients, None, None, None


class OnceDifferentiable(torch.autograd.Function):
    """Hands dq, dk, dv on, as results of the other arguments whose derivative raises.

    torch.autograd.function.once_differentiable looks at do alone. Where do asks for no gradient, as after o.sum(), it would give dq no history,
    and a loss that holds dq would lose that part of its gradient in silence.
    """

    @staticmethod
    def forward(ctx, dq, dk, dv, *arguments):
        return dq, dk, dv

    @staticmethod
    def backward(ctx, *gradients):
        raise RuntimeError(
            "flash_attention is once differentiable: autograd cannot see into its backward kernels. "
            "For second derivatives use torch.nn.functional.scaled_dot_product_attention with SDPBackend.MATH"
        )


@torch.compiler.disable
def differentiable_attention(q, k, v, is_causal, scale, forward_and_backward):
    """FlashAttention.apply behind a clean graph break: torch.compile runs the launches as eager does."""
    return FlashAttention.apply(q, k, v, is_causal, scale, forward_and_backward)


def autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors in the autocast dtype where autocast is on for their device; what is no floating-point tensor is left as it is."""
    return tuple(_cast(x) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in tensors)


def _cast(x: torch.Tensor) -> torch.Tensor:
    kind = x.device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return x.to(torch.get_autocast_dtype(kind)) if on and x.dtype != torch.float64 else x


def as_stored(x):
    """x with its values in memory, which is where a kernel reads them: PyTorch keeps some views with a note that their sign is the other one."""
    return x.resolve_neg() if isinstance(x, torch.Tensor) and x.layout == torch.strided and x.is_neg() else x
