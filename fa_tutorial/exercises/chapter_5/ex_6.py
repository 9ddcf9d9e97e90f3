"""Exercise 5.6, flash_forward_kernel."""

import types
from functools import partial

import torch

from fa_tutorial import forward
from fa_tutorial.exercises.chapter_5.inner_step import HALF, OVERLAP, one_tile_inputs
from fa_tutorial.exercises.forward_kernels import TILE, attention_case, draw_qkv, kernel_twin, launch, tolerance, with_fresh
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.matmul import triton

# The package's kernel, word for word, as a solution: a copy under this module's name, because check refuses the package's own.
_kernel = forward.flash_forward_kernel.fn
_copy = types.FunctionType(_kernel.__code__, _kernel.__globals__, _kernel.__name__)
_copy.__annotations__, _copy.__doc__, _copy.__module__ = _kernel.__annotations__, _kernel.__doc__, __name__
flash_forward_kernel = triton.jit(_copy)


_PLACE = "row i of head h of batch entry b is at (b · H_q + h) · S_q + i of lse, i < S_q"
_GROUP = "a key head serves H_q / H_k neighbouring query heads: query head h reads key head h // (H_q // H_k)"
_SPLIT = "programs count query heads: pid // row_blocks is b · H_q + h"
_NATURAL = "lse = m + log l"
_NO_LSE = "without a key lse is −inf, the logarithm of an empty sum"
MISTAKES = {
    "lse_never": f"lse is never stored, and o is: {_PLACE}",
    "lse_base_2": "lse is in base 2: with exp2, divide m and log2(l) by log2(e)",
    "lse_log2": "m is natural, but l's logarithm is in base 2: tl.log, or tl.log2 divided by log2(e)",
    "lse_m_l": f"l is added without its logarithm: {_NATURAL}",
    "lse_log_l": f"m is missing: l is a sum of exp(s − m), so {_NATURAL}",
    "lse_m": f"that is m alone: {_NATURAL}",
    "lse_l": f"that is l: {_NATURAL}",
    "lse_minus_m": f"m has the wrong sign: {_NATURAL}",
    "lse_minus": f"the logarithm has the wrong sign: {_NATURAL}",
    "lse_m_raw": "m is not scaled: lse belongs to scale · q kᵀ",
    "lse_tile": "lse belongs to the last tile alone: store it once, after the loops",
    "kv_modulo": f"the kernel reads key head h % H_k: {_GROUP}",
    "kv_over_H_k": f"the kernel reads key head h // H_k: {_GROUP}",
    "kv_head0": f"every query head reads key head 0: {_GROUP}",
    "v_modulo": f"k's head is mapped, but v's is not: {_GROUP}",
    "k_modulo": f"v's head is mapped, but k's is not: {_GROUP}",
    "lse_head0": f"lse of all heads is stored at head 0: {_PLACE}",
    "lse_batch0": f"lse of all batch entries is stored at entry 0: {_PLACE}",
    "lse_key_heads": f"a batch entry of lse has H_q heads, not H_k: {_PLACE}",
    "no_keys_nan": "without a key l is 0: o must be 0, not 0 / 0",
    "unseen_lse_nan": f"lse is NaN: {_NO_LSE}",
    "unseen_lse_zero": f"lse is 0: {_NO_LSE}",
}  # fmt: skip
CONDITIONS = {
    "causal": "IS_CAUSAL works as in 5.5, and lse of a row that sees no key is −inf",
    "empty": "S_k may be 0: then o is 0, and lse is −inf, the logarithm of an empty sum",
    "half": HALF,
}


@with_fresh(
    ((1, 1, 1, 1, 1, 1), torch.float32, TILE, 1.0),
    ((2, 2, 1, 17, 40, 20), torch.float16, (32, 32, 32), 3.0),
    ((1, 2, 1, 15, 40, 40), torch.float32, (16, 32, 64), 1.0),
    ((1, 4, 2, 40, 50, 40), torch.bfloat16, (16, 32, 64), 1.0),
)
def inputs():
    yield from one_tile_inputs()
    yield attention_case(*draw_qkv(1, 1, 16, 32, 16), "S_k = 32, two tiles of keys", MISTAKES["lse_tile"])
    heads = f"an offset is wrong: {_GROUP}; {_SPLIT}"
    yield attention_case(*draw_qkv(1, 6, 16, 16, 16, H_k=3), "H_q = 6, H_k = 3", _GROUP, stray=heads)
    yield attention_case(*draw_qkv(2, 2, 16, 16, 16, H_k=1), "B = 2, H_q = 2, H_k = 1", f"{_SPLIT}; {_PLACE}", stray=heads)
    yield attention_case(*draw_qkv(2, 2, 20, 16, 16), "B = H_q = 2, S_q = 20, BLOCK_M = 16", _PLACE,
                         stray=f"rows past S_q are loaded or stored, of o or lse: {_PLACE}")  # fmt: skip
    yield attention_case(*draw_qkv(1, 2, 24, 16, 16, H_k=1), "causal, H_q = 2, H_k = 1, S_q = 24, S_k = 16", is_causal=True, edge="causal",
                         stray=f"a row past S_q or a key before 0 is read or stored: {_PLACE}")  # fmt: skip
    yield attention_case(*draw_qkv(1, 1, 16, 0, 16), "S_k = 0", stray="without a key nothing may be read", edge="empty")


EXERCISE = Exercise(
    id="5.6",
    task="Let each key head serve a group of query heads, and store lse for the backward pass.",
    conditions=CONDITIONS,
    hints=(
        "Programs count query heads. How many query heads share one key head, and which arguments of attend does that concern?",
        "h_k = h // (H_q // H_k), for k and v alone. lse = m + log l, stored at lse_ptr + (b * H_q + h) * S_q + offs_m where offs_m < S_q.",
        "Where a row has seen no key, m is −inf and l is 0. You divide by l_or_one already: m + tl.log(l_or_one) is −inf + 0 there, which is the right lse.",
    ),
    solution=flash_forward_kernel,
    reasoning="Only h_k is new for k and v, so neighbouring query heads read the same keys, and the L2 cache can serve all but the first. lse is all that the "
    "backward pass needs to compute p again: one number a row instead of S_k.",
    more="This is forward.flash_forward_kernel, which the package ships.",
    inputs=inputs,
    twin=kernel_twin,
    mistakes=MISTAKES,
    parts=("o", "lse"),
    launch=partial(launch, has_causal=True, has_lse=True),
    tolerance=tolerance,
    overlap=OVERLAP,
)
