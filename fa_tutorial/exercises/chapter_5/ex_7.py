from dataclasses import replace
from functools import partial

import torch

from fa_tutorial import forward
from fa_tutorial.exercises.chapter_5.inner_step import HALF, ONCE, OVERLAP, ROW_BLOCKS, as_solution, half_inputs, logits, one_tile_inputs
from fa_tutorial.exercises.forward_cases import TILE, attention_case, draw_qkv, launch, tolerance, truth, with_fresh
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.forward import attend  # noqa: F401, for the changed solutions, as the next two
from fa_tutorial.matmul import tl, triton  # noqa: F401
from fa_tutorial.tiles import load_tile, store_tile  # noqa: F401

flash_forward_kernel = as_solution(forward.flash_forward_kernel, __name__)

PLACE = "row i of head h of batch entry b is at (b · H_q + h) · S_q + i of lse, i < S_q"
GROUP = "a key head serves H_q / H_k neighbouring query heads: query head h reads key head h // (H_q // H_k)"
SPLIT = "programs count query heads: pid % row_blocks is the row block, pid // row_blocks is b · H_q + h"
NATURAL = "lse = m + log l"
LSE, KEY_HEAD, LSE_PTR = "m + tl.log(l_or_one)", "h // (H_q // H_k)", "batch_head.to(tl.int64) * S_q + offs_m"
MISTAKES = {
    f"m and l are in each other's place: {NATURAL}": (LSE, "l + tl.log(m)"),
    f"l is added without its logarithm: {NATURAL}": (LSE, "m + l_or_one"),
    "m is natural, but l's logarithm is in base 2: tl.log, or tl.log2 divided by log2(e)": (LSE, "m + tl.log2(l_or_one)"),
    "lse is rounded to fp16: store the float32 number": (LSE, f"({LSE}).to(tl.float16)"),
    f"the kernel reads key head h % H_k: {GROUP}": (KEY_HEAD, "h % H_k"),
    f"the kernel reads key head h // H_k: {GROUP}": (KEY_HEAD, "h // H_k"),
    f"lse is stored at the key head's row: {PLACE}": (LSE_PTR, "(b * H_k + h_k) * S_q + offs_m"),
    "o is divided by l where l is 0: without a key o must be 0, not 0 / 0": ("acc / l_or_one[:, None]", "acc / l[:, None]"),
}  # fmt: skip
CONDITIONS = {
    "causal": "IS_CAUSAL works as in 5.6, and lse of a row that sees no key is −inf",
    "empty": "S_k may be 0: then o is 0, and lse is −inf, the logarithm of an empty sum",
    "half": HALF,
}


@with_fresh(
    ((1, 1, 1, 1, 1, 1), torch.float32, TILE, 1.0),
    ((2, 2, 1, 17, 33, 20), torch.float16, (32, 32, 32), 3.0),
    ((1, 2, 1, 40, 50, 40), torch.float32, (16, 32, 64), 1.0),
    ((1, 4, 2, 40, 50, 40), torch.bfloat16, (16, 32, 64), 1.0),
    is_causal=True,
)
def inputs():
    for one in one_tile_inputs(f"one tile gives o = softmax(scale · q kᵀ) v and {NATURAL}"):
        yield replace(one, otherwise={"o": one.otherwise, "lse": NATURAL})
    told = {"o": f"{SPLIT}; {GROUP}", "lse": f"{SPLIT}; {PLACE}"}
    large = "the scores may be large, and exp(m) infinite: lse is m + tl.log(l)"
    yield attention_case(*logits(200), "all logits 200", large)
    yield attention_case(*draw_qkv(1, 2, 32, 16, 16), "two heads, S_q = 32, S_k = 16", told, stray=f"attend gets b, then h_k; {PLACE}")
    heads = "q, o and lse have H_q heads, k and v have H_k, so both loops read key head h_k, and programs count query heads"
    yield attention_case(*draw_qkv(1, 6, 16, 24, 16, H_k=3), "H_q = 6, H_k = 3, S_k = 24", f"{GROUP}, in both loops", stray=heads)
    yield attention_case(*draw_qkv(2, 2, 16, 16, 16, H_k=1), "B = 2, H_q = 2, H_k = 1, views", told, layouts=("bshd",) * 4, stray=heads)
    past = f"a row past S_q, or of another head, is loaded or stored: {ROW_BLOCKS}; {PLACE}"
    yield attention_case(*draw_qkv(1, 2, 20, 16, 16), "H_q = 2, S_q = 20, BLOCK_M = 16", told, stray=past)
    outside = f"a row past S_q or a key before 0 is read or stored: {PLACE}"
    on = "causal, H_q = 2, H_k = 1, S_q = 24, S_k = 16"
    yield attention_case(*draw_qkv(1, 2, 24, 16, 16, H_k=1), on, is_causal=True, stray=outside, edge="causal")
    nothing = "without a key o is 0, and lse is −inf, the logarithm of an empty sum"
    yield attention_case(*draw_qkv(1, 1, 16, 0, 16), "S_k = 0", nothing, stray="without a key nothing may be read", edge="empty")
    yield from half_inputs()


EXERCISE = Exercise(
    task="Let each key head serve a group of query heads, and store lse for the backward pass.",
    conditions=CONDITIONS,
    hints=(
        "Programs count query heads. How many query heads share one key head, and which arguments of attend does that concern?",
        "h_k = h // (H_q // H_k), for k and v alone. lse = m + log l, stored at lse_ptr + (b * H_q + h) * S_q + offs_m where offs_m < S_q.",
        "Where a row has seen no key, m is −inf and l is 0. You divide by l_or_one already: m + tl.log(l_or_one) is −inf + 0 there, which "
        "is the right lse.",
    ),
    solution=flash_forward_kernel,
    reasoning="Only h_k is new for k and v, so neighbouring query heads read the same keys, and the L2 cache can serve all but the first. "
    "lse is all that the backward pass needs to compute p again: one number a row instead of S_k.",
    more="This is forward.flash_forward_kernel, which the package ships.",
    inputs=inputs,
    truth=truth,
    rule=f"o = softmax(scale · q kᵀ) v and {NATURAL}; {GROUP}; {PLACE}",
    mistakes=MISTAKES,
    parts=("o", "lse"),
    launch=partial(launch, has_causal=True, has_lse=True),
    tolerance=tolerance,
    seen={"overlap": OVERLAP, "stored_again": ONCE},
)
