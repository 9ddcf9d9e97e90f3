import torch

from fa_tutorial.exercises import forward_cases as cases
from fa_tutorial.exercises.chapter_5 import inner_step
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, load_tile, store_tile


@triton.jit
def one_tile_kernel(q, k, v, o, H, S_q, S_k, D, scale,
                    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """o = softmax(scale · q kᵀ) v, where one tile holds all keys: S_k = BLOCK_N.

    q, o: Heads (B, H, S_q, D); k, v: Heads (B, H, S_k, D). Grid: (row_blocks · B · H,), by (5.1).
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    start_m = tl.program_id(0) % row_blocks * BLOCK_M
    batch_head = tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H

    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    k_tile = load_tile(k, b, h, 0, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    v_tile = load_tile(v, b, h, 0, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    s = scale * dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N]
    m = tl.max(s, axis=1)  # [BLOCK_M]
    p = tl.exp(s - m[:, None])  # [BLOCK_M, BLOCK_N]
    l = tl.sum(p, axis=1)  # [BLOCK_M]
    acc = dot(p.to(v_tile.dtype), v_tile)  # [BLOCK_M, BLOCK_D]
    store_tile(o, acc / l[:, None], b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


PV = "dot(p.to(v_tile.dtype), v_tile)"
S, P, O = "scale * dot(q_tile, tl.trans(k_tile))", "tl.exp(s - m[:, None])", "acc / l[:, None], b, h"
MISTAKES = {
    "scale is missing: s = scale · q kᵀ": (S, S[8:]),
    "acc is not divided: o = acc / l": (O, "acc, b, h"),
    "exp overflows: subtract the row's maximum before exp": (P, "tl.exp(s)"),
    inner_step.TF32: (S, S.replace("dot(", "tl.dot(")),
    "tl.max(s, axis=0) is the maximum of each column, over all queries: axis 1 gives each row its own": ("tl.max(s, axis=1)", "tl.max(s, axis=0)"),
    "q is multiplied by k, not by kᵀ: dot(q_tile, tl.trans(k_tile))": ("tl.trans(k_tile)", "k_tile"),
    "s − m[None, :] subtracts the m of row j from column j: m[:, None] gives one number to each row": ("m[:, None]", "m[None, :]"),
    "p and v are rounded to fp16, whatever v's dtype is: leave v as it is, and round p to v's dtype": (
        PV, "dot(p.to(tl.float16), v_tile.to(tl.float16))"),
    "o is rounded to fp16, whatever its dtype is: store_tile rounds to o's dtype by itself": ("acc / l[:, None]", "(acc / l[:, None]).to(tl.float16)"),
    "the base is 2: tl.exp2(s) is 2 to the power s, and exp(s) is exp2(s · log2(e))": ("tl.exp(", "tl.exp2("),
}  # fmt: skip
CONDITIONS = {"large": "scores may reach from −200 to 200: subtract each row's maximum", "half": inner_step.HALF}


@cases.with_fresh(
    ((1, 2, 2, 32, 32, 16), torch.float32, (16, 32, 16), 1.0),
    ((2, 1, 1, 32, 16, 32), torch.float16, (32, 16, 32), 3.0),
    ((1, 2, 2, 32, 32, 64), torch.bfloat16, (16, 32, 64), 1.0),
)
def inputs():
    yield from inner_step.one_tile_inputs()
    yield inner_step.own_maximum()
    rows = "program pid takes row block pid % row_blocks of q and o, of head pid // row_blocks, and all keys, from 0 on"
    yield cases.attention_case(*cases.draw_qkv(1, 1, 32, 16, 16), "S_q = 32, two programs", rows)
    on, blocks = "S_q = BLOCK_M = 16, S_k = BLOCK_N = 32", f"{inner_step.ROWS}; {inner_step.BLOCKS}"
    yield cases.attention_case(*cases.draw_qkv(1, 1, 16, 32, 16), on, blocks, blocks=(16, 32, 16))
    yield inner_step.heads_input()
    shift = "scores may be large, or low: m is the maximum of a row of scale · q kᵀ, and p = exp(scale · q kᵀ − m)"
    for logit in (200, -200):
        yield cases.attention_case(*inner_step.logits(logit), f"all logits {logit}, scale = 0.25".replace("-", "−"), shift, edge="large")
    yield from inner_step.half_inputs(loop=False)


EXERCISE = Exercise(
    task="Write attention for one full tile of keys: each program takes one block of query rows of one head.",
    conditions=CONDITIONS,
    hints=(
        "Find b, h and start_m as in 5.1, and load the three tiles. Write the shape of each next line as a comment first: s and p are "
        "[BLOCK_M, BLOCK_N], m and l [BLOCK_M].",
        "s = scale * dot(q_tile, tl.trans(k_tile)). m is the maximum of s along axis 1, and s - m[:, None] subtracts it from every row.",
        "acc = dot(p.to(v_tile.dtype), v_tile), and store_tile(o, acc / l[:, None], b, h, start_m, S_q, D, BLOCK_M, BLOCK_D).",
    ),
    solution=one_tile_kernel,
    reasoning="A softmax over keys is a maximum and a sum along axis 1. Both stay unrounded in float32, and only p is rounded to v's "
    "dtype, because the tensor cores multiply two tiles of one dtype.",
    inputs=inputs,
    truth=cases.o_truth,
    rule="o = softmax(scale · q kᵀ) v for each row of each head",
    mistakes=MISTAKES,
    launch=cases.launch,
    tolerance=cases.tolerance,
    refused=cases.widened,
    seen={"overlap": inner_step.OVERLAP},
)
