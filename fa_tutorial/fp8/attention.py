"""Chapter 14: flash_attention_fp8, the public function. It checks once, quantises, and multiplies."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from fa_tutorial.arguments import check_attention, check_flag
from fa_tutorial.fp8 import forward, model
from fa_tutorial.fp8.quantise import Quantised, quantise
from fa_tutorial.hardware import HOPPER_CAPABILITY, card_of, interpreter_on, on_device_of, require_kernel_device
from fa_tutorial.operators import LIBRARY, autocast, nothing_seen

MAX_D, STEP_D = 128, 8


def flash_attention_fp8(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool = False, scale: float | None = None,
    rotate: bool = True, return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """flash_attention's forward on 8-bit tensor cores (FlashAttention-3, Shah et al., 2024, section 3.3).

    On an H200, at D = 128 and S = 16,384, it is 1.3 to 1.5 times as fast, and about 5 % off.

    Shapes, is_causal, scale, return_lse and what a row without keys gets: as flash_attention. D: a multiple of 8 up to
    128; one that isn't 64 or 128 is padded, and costs what the next of them costs. Dtypes: fp16 or bf16, one for all
    three; o comes in it. Any strides. Inputs must be finite.
    q, k and v become e4m3 with a float32 scale for each 128 rows of a head; p becomes e4m3, too. rotate: multiply q and
    k by one random orthogonal matrix before, which leaves q kᵀ as it is and spreads outliers (incoherent processing).

    The root mean square of the error, of o's, on an H200 at D = 128: 5 % on N(0, 1) inputs, and on inputs with outliers
    4 % with rotate, 9 % without. That is of all rows together: with outliers the median row is 6 % off with rotate,
    7 % without. A mean of v survives. If k's channels have offsets, subtract k's mean over the keys before, which
    softmax doesn't see. What is less than 2⁻¹⁹ of the largest number in its 128 rows becomes 0, so one huge key or
    value hides its block. Two runs give the same bits. There is no gradient: train with flash_attention.

    On a Hopper GPU (compute capability 9.0) it runs in FP8. Where Triton's interpreter is on, PyTorch computes the
    same, but with sums in float32; `emulated` has the tensor core's as well. Raises TypeError for other dtypes,
    ValueError for shapes, D and numbers, RuntimeError for another GPU, and where a gradient is asked for.
    """
    q, k, v = autocast(q, k, v)
    scale = check_attention(q, k, v, scale, dtypes=(torch.float16, torch.bfloat16), max_d=MAX_D)
    if q.shape[3] % STEP_D:
        raise ValueError(f"head dimension D must be a multiple of {STEP_D} up to {MAX_D}, got {q.shape[3]}")
    is_causal, rotate = check_flag("is_causal", is_causal), check_flag("rotate", rotate)
    asked = [name for name, x in zip("qkv", (q, k, v), strict=True) if x.requires_grad]
    if asked and torch.is_grad_enabled():
        remedy = "call it under torch.no_grad(), or train with flash_attention"
        raise RuntimeError(f"flash_attention_fp8 has no gradient, and {', '.join(asked)} requires one: {remedy}")
    o, lse = torch.ops.fa_tutorial.flash_attention_fp8.default(q, k, v, is_causal, scale, rotate)
    return (o, lse) if return_lse else o


def quantised(
    q, k, v, scale: float, rotate: bool, quantise: Callable = quantise
) -> tuple[Quantised, Quantised, Quantised]:
    """q · scale · log2(e), k and v, as forward.flash_forward takes them. rotate: q and k."""
    q = quantise(q, factor=scale * math.log2(math.e), rotate=rotate)
    return q, quantise(k, rotate=rotate), quantise(v, as_columns=True)


def emulated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *joins: Callable) -> list[torch.Tensor]:
    """flash_attention_fp8's o without a mask and without rotate, by PyTorch on the CPU, whatever the device: one o for
    each of `joins`.

    joins: how a block joins l and acc. model.sums_by_blocks are the tensor core's sums as the kernel makes them.
    """
    operands = quantised(q.cpu(), k.cpu(), v.cpu(), q.shape[3] ** -0.5, False, model.quantise)
    return [model.flash_forward(*operands, q.shape[3], q.dtype, False, join)[0] for join in joins]


def run(q, k, v, is_causal, scale, rotate):
    """The operator on a device: four launches, or none."""
    require_kernel_device(q, "q")
    emulated = interpreter_on()
    if not emulated and card_of(q).capability != HOPPER_CAPABILITY:
        needs = "flash_attention_fp8 needs a GPU of compute capability 9.0 (H100, H200)"
        raise RuntimeError(f"{needs}, {card_of(q).name} is another: take flash_attention")
    if not (q.numel() and k.numel()):
        return nothing_seen(q)
    with on_device_of(q):
        attend, by = (model.flash_forward, model.quantise) if emulated else (forward.flash_forward, quantise)
        return attend(*quantised(q, k, v, scale, rotate, by), q.shape[3], q.dtype, is_causal)


LIBRARY.define(
    "flash_attention_fp8(Tensor q, Tensor k, Tensor v, bool is_causal, float scale, bool rotate) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
for device in ("CPU", "CUDA"):
    LIBRARY.impl("flash_attention_fp8", run, device)


@torch.library.register_fake("fa_tutorial::flash_attention_fp8", lib=LIBRARY)
def fake(q, k, v, is_causal, scale, rotate):
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=torch.float32)
