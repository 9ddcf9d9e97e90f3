"""The public functions: flash_attention checks its arguments once, and calls a registered PyTorch operator that picks
the kernel.

The operators torch.ops.fa_tutorial.flash_forward and flash_backward carry what PyTorch asks of one of its own: fake
tensors, so that torch.compile, torch.export and meta tensors know the shapes without a launch; a gradient; a rule for
torch.vmap, which the variants lack: there vmap is a loop. They trust their arguments.
"""

from __future__ import annotations

import functools

import torch

from fa_tutorial import backward, forward, tuned
from fa_tutorial.arguments import check_attention, check_flag, check_name
from fa_tutorial.hardware import HOPPER_CAPABILITY, card_of, interpreter_on, on_device_of, require_kernel_device
from fa_tutorial.operators import (
    LIBRARY,
    autocast,
    below_autograd,
    differentiable,
    gradients_of,
    nothing_seen,
    once_differentiable,
)
from fa_tutorial.tiles import MAX_D
from fa_tutorial.variants.attention import FORWARD as VARIANT
from fa_tutorial.variants.options import check_cu_seqlens, check_options, check_packed, check_window

KERNELS = ("auto", "basic", "tuned", "hopper")
# Elements of q from which "auto" takes chapter 9's kernels. Below, an H200 ran chapter 8's as fast or faster, and their
# launch is cheaper for the host.
HOPPER_FROM = {"forward": 2**23, "backward": 2**20}
# From here on chapter 8's kernels take descriptors. Below, making them costs the host more than they bring.
DESCRIPTORS_FROM = 2**20
OTHER_NAMES = {  # other libraries' names, and ours
    "causal": "is_causal=",
    "softmax_scale": "scale=",
    "window_size": "window=",
    "return_attn_probs": "return_lse=",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "mask": "flash_attention's attn_mask=",
}


def tell_our_names(function):
    """Where a call has a name of flash-attn's, or SDPA's mask by its place, raise a TypeError that says our name, and
    how the layouts differ."""
    code = function.__code__
    by_place = code.co_varnames[: code.co_argcount]
    by_name = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]

    @functools.wraps(function)
    def call(*args, **kwargs):
        for name in kwargs:
            if name in OTHER_NAMES:
                raise TypeError(
                    f"{function.__name__} has no {name}=: here it is {OTHER_NAMES[name]}. flash_attention's q, k and v "
                    "are (B, H, S, D), as SDPA's; flash-attn's are (B, S, H, D)"
                )
        if len(args) > len(by_place):
            raise TypeError(
                f"{function.__name__} takes {', '.join(by_place)} by position, and only by name: {', '.join(by_name)}"
            )
        return function(*args, **kwargs)

    return call


@tell_our_names
def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool = False, scale: float | None = None,
    return_lse: bool = False, kernel: str = "auto", attn_mask: torch.Tensor | None = None,
    window: tuple[int, int] | None = None, softcap: float | None = None, alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None, dropout_p: float = 0.0, enable_gqa: bool = True,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """softmax(scale · q kᵀ) v, forward and backward, with memory linear in the sequence length
    (FlashAttention-2, Dao, 2023).

        o = flash_attention(q, k, v, is_causal=True)  # like q
        o, lse = flash_attention(q, k, v, window=(1023, 0), return_lse=True)

    q: (B, H_q, S_q, D), fp16, bf16 or fp32, any strides, 1 ≤ D ≤ 256. torch.autocast casts q, k and v to its dtype.
    k, v: (B, H_k, S_k, D), of q's dtype; H_q is a multiple of H_k (grouped-query attention).
    is_causal: query i sees keys 0 … i + S_k − S_q. The last query sees the last key, as in flash-attn 2.1 and later;
        PyTorch's SDPA aligns top left, which differs where S_q ≠ S_k.
    scale: 1/√D unless given; no gradient.
    return_lse: return (o, lse).
    kernel: "basic" for the kernels of chapters 5 and 7; "tuned" for those of chapter 8, whose first call of a kind
        measures which tiles are the fastest on this GPU; "hopper" for chapter 9's, on a GPU of compute capability 9.0
        alone. Inputs that one does not take go to the next simpler one. "auto" takes "hopper" on such a GPU where q is
        large enough (HOPPER_FROM), otherwise "tuned", and "basic" in the interpreter.
    enable_gqa: False refuses fewer key heads than query heads, as SDPA does.

    Variants, by the kernels of chapter 10: leave kernel="auto" with them. They may be combined; to the scaled scores
    they apply in this order.
    softcap: c > 0 makes s c · tanh(s / c).
    alibi_slopes: (H_q,) or (B, H_q) float32, no gradient; slope · |i + S_k − S_q − j| is subtracted.
    attn_mask: as SDPA's, any shape that broadcasts to (B, H_q, S_q, S_k). Of booleans: True takes part, and tiles that
        nobody sees are skipped. Of numbers, any of the dtypes: added to the scores, −inf hides. It may come with
        is_causal and a window: then all have to allow a pair. A mask of keys is mask[:, None, None, :].
    window: (left, right), query i sees keys i + S_k − S_q − left … i + S_k − S_q + right; −1 is no limit, and is_causal
        makes right 0.
    sinks: (H_q,), one logit per head, which joins the denominator and nothing else; lse counts it.
    dropout_p: each p becomes 0 with this probability, and p / (1 − dropout_p) otherwise; the seed comes from PyTorch's
        generator.

    Returns o (B, H_q, S_q, D), contiguous, in q's dtype; with return_lse also lse (B, H_q, S_q), float32, the natural
    logarithm of the sum of exponentials of the scaled scores. A query that sees no key gets o = 0 and lse = −inf.

    Gradients: o and lse are differentiable with respect to q, k, v, sinks and an attn_mask of numbers, once: a second
    derivative raises RuntimeError. For backward q, k, v, o and lse are kept, and what the caller gave. Two runs with
    the same tiles give the same bits, but for "hopper"'s dq, whose parts are added in the order in which they come:
    under torch.use_deterministic_algorithms(True) the backward is "tuned"'s instead.

    Memory of the variants isn't linear: three lists of tiles take S_q · S_k / 1,024 bytes each with tiles of 64 by 64,
    for each batch entry and head that a mask tells apart, and an attn_mask's gradient 4 bytes a pair.

    Not promised: that NaN or inf in a key or value which the causal mask hides stays hidden from the other rows of its
    tile; values within a factor S of the dtype's largest, whose sum before the division may overflow; full accuracy for
    logits beyond 10,000, where the rounding of the maximum in float32 shows, and any accuracy for logits beyond 2**25,
    where a row's p may all round to 0 in fp16.

    Raises TypeError for other dtypes, sparse or nested tensors, a non-tensor, a non-bool is_causal, a non-numeric
    scale; ValueError for shapes, devices, head counts, D, scale, kernel and the variants' values; RuntimeError for a
    device on which no kernel runs.
    """
    q, k, v = autocast(q, k, v)
    scale = check_attention(q, k, v, scale, max_d=MAX_D)
    check_name("kernel", kernel, KERNELS)
    left, right = check_window(window, is_causal)
    if not check_flag("enable_gqa", enable_gqa) and q.shape[1] != k.shape[1]:
        raise ValueError(
            f"q has {q.shape[1]} heads and k {k.shape[1]}: enable_gqa=True lets query heads share key heads"
        )
    no_window = left < 0 and right <= 0  # all keys, or the causal mask's
    given = [x for x in (attn_mask, softcap, alibi_slopes, sinks) if x is not None]
    if no_window and not given and dropout_p == 0.0:
        o, lse = FORWARD(q, k, v, right == 0, scale, kernel)
    else:
        if kernel != "auto":
            raise ValueError(f'the variants have kernels of their own: leave kernel="auto", got {kernel!r}')
        o, lse = VARIANT(
            q, k, v, *check_options(q, k, scale, left, right, softcap, alibi_slopes, attn_mask, sinks, dropout_p)
        )
    return (o, lse) if return_lse else o


@tell_our_names
def flash_attention_varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, *, is_causal: bool = False,
    scale: float | None = None, return_lse: bool = False, window: tuple[int, int] | None = None,
    softcap: float | None = None, alibi_slopes: torch.Tensor | None = None, sinks: torch.Tensor | None = None,
    dropout_p: float = 0.0,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """flash_attention inside each of many sequences that lie packed, back to back, without padding and without work
    across sequences.

    Shapes: q (total_q, H_q, D); k and v (total_k, H_k, D). cu_seqlens_q, cu_seqlens_k: (sequences + 1,) int32 on the
    same device, from 0 to total_q and total_k; queries cu_seqlens_q[s] … cu_seqlens_q[s + 1] − 1 see keys
    cu_seqlens_k[s] … cu_seqlens_k[s + 1] − 1, any number of each, also none. Their values are checked on the CPU only:
    to look at a GPU's, the CPU would have to wait for it. With others the result is undefined, but no memory outside
    the tensors is touched. max_seqlen_q, max_seqlen_k: accepted for flash-attn's signature, and ignored.

    Returns o (total_q, H_q, D), contiguous, and with return_lse also lse (H_q, total_q). The rest is as for
    flash_attention: is_causal and window are aligned bottom right in each sequence, and so are ALiBi's distances;
    alibi_slopes: (H_q,). Errors as flash_attention's.
    """
    q, k, v = autocast(q, k, v)
    rows = check_packed(q, k, v)
    scale = check_attention(*rows, scale, max_d=MAX_D)
    check_cu_seqlens(rows[0], cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    left, right = check_window(window, is_causal)
    options = check_options(rows[0], rows[1], scale, left, right, softcap, alibi_slopes, None, sinks, dropout_p)
    o, lse = VARIANT(*rows, *options._replace(cu_q=cu_seqlens_q, cu_k=cu_seqlens_k))
    o, lse = o.squeeze(0).transpose(0, 1), lse.squeeze(0)
    return (o, lse) if return_lse else o


# ---------------------------------------------------------------- which kernel


def best(q: torch.Tensor) -> str:
    """What "auto" takes on q's device for large q; in the interpreter the plain kernels, which run faster there."""
    if interpreter_on():
        return "basic"
    return "hopper" if card_of(q).capability == HOPPER_CAPABILITY else "tuned"


def pick(kernel: str, q: torch.Tensor, direction: str) -> str:
    """The kernel for a name of KERNELS and a key of HOPPER_FROM.

    RuntimeError for a device on which no kernel runs, ValueError for "hopper" on another GPU.
    """
    require_kernel_device(q, "q")
    if kernel == "hopper" and best(q) != "hopper":
        raise ValueError(
            'kernel "hopper" is for GPUs of compute capability 9.0 (H100, H200); "auto" takes what q\'s device can run'
        )
    if kernel != "auto":
        return kernel
    large = best(q)
    return "tuned" if large == "hopper" and q.numel() < HOPPER_FROM[direction] else large


def run_forward(q, k, v, is_causal, scale, kernel):
    """The operator flash_forward on a device. Launches at most one kernel."""
    kernel = pick(kernel, q, "forward")
    if not (q.numel() and k.numel()):
        return nothing_seen(q)
    with on_device_of(q):
        if kernel == "hopper" and hopper().applies(q, k, v, scale):
            return hopper().flash_forward(q, k, v, is_causal, scale)
        if kernel != "basic" and tuned.applies(q, scale):
            return tuned.flash_forward(q, k, v, is_causal, scale, descriptors=q.numel() >= DESCRIPTORS_FROM)
        return forward.flash_forward(q, k, v, is_causal, scale)


def run_backward(do, dlse, q, k, v, o, lse, is_causal, scale, kernel):
    """The operator flash_backward on a device. Launches three kernels, or none. Where the user asks for deterministic
    results, not chapter 9's."""
    kernel = pick(kernel, q, "backward")
    if not (q.numel() and k.numel()):
        return tuple(torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    dlse = None if dlse is None else dlse.contiguous()
    with on_device_of(q):
        given = q, k, v, o, do, lse, dlse, is_causal, scale
        if kernel == "hopper" and not torch.are_deterministic_algorithms_enabled() and hopper().applies(q, k, v, scale):
            return hopper().flash_backward(*given)
        if kernel != "basic" and tuned.applies(q, scale):
            return tuned.flash_backward(*given, descriptors=q.numel() >= DESCRIPTORS_FROM)
        return backward.flash_backward(*given)


@functools.cache
def hopper():
    """The module, imported when it is needed: only Hopper needs Gluon, an experimental part of Triton."""
    from fa_tutorial import hopper

    return hopper


# ---------------------------------------------------------------- the operators

LIBRARY.define(
    "flash_forward(Tensor q, Tensor k, Tensor v, bool is_causal, float scale, str kernel) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
LIBRARY.define(
    "flash_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, bool is_causal, "
    "float scale, str kernel) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
for device in ("CPU", "CUDA"):
    LIBRARY.impl("flash_forward", run_forward, device)
    LIBRARY.impl("flash_backward", run_backward, device)


@torch.library.register_fake("fa_tutorial::flash_forward", lib=LIBRARY)
def fake_forward(q, k, v, is_causal, scale, kernel):
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.register_fake("fa_tutorial::flash_backward", lib=LIBRARY)
def fake_backward(do, dlse, q, k, v, o, lse, is_causal, scale, kernel):
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))


class FlashAttention(torch.autograd.Function):
    """The operator flash_forward as a node of autograd's graph."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal, scale, kernel):
        o, lse = below_autograd(FORWARD, q, k, v, is_causal, scale, kernel)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal, ctx.scale, ctx.kernel = is_causal, scale, kernel
        ctx.set_materialize_grads(False)  # None, not a tensor of zeros, for an output that nobody used
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        do = torch.zeros_like(o) if do is None else do
        arguments = do, dlse, q, k, v, o, lse, ctx.is_causal, ctx.scale, ctx.kernel
        return *gradients_of(BACKWARD, *arguments), None, None, None


FORWARD, BACKWARD = torch.ops.fa_tutorial.flash_forward.default, torch.ops.fa_tutorial.flash_backward.default
LIBRARY.impl("flash_forward", differentiable(FlashAttention, FORWARD), "Autograd")
LIBRARY.impl("flash_backward", differentiable(once_differentiable(BACKWARD), BACKWARD), "Autograd")


def map_over_batch(operator, tensors: int):
    """A rule for torch.vmap: the mapped dimension of the first `tensors` arguments becomes a part of the batch, and of
    the results' too."""

    def rule(info, in_dims, *arguments):
        def fold(x, dim):
            if x is None:
                return None
            x = x.unsqueeze(0).expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            return x.flatten(0, 1)

        folded = [fold(x, dim) for x, dim in zip(arguments[:tensors], in_dims, strict=False)]
        results = operator(*folded, *arguments[tensors:])
        return tuple(x.unflatten(0, (info.batch_size, -1)) for x in results), (0,) * len(results)

    return rule


torch.library.register_vmap(FORWARD, map_over_batch(FORWARD, 3), lib=LIBRARY)
torch.library.register_vmap(BACKWARD, map_over_batch(BACKWARD, 7), lib=LIBRARY)
