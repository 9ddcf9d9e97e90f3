"""Exercise 5.2, one_tile_kernel."""

import torch

from fa_tutorial.exercises.chapter_5.inner_step import HALF, ONE_TILE, OVERLAP, logits, one_tile_inputs
from fa_tutorial.exercises.forward_kernels import attention_case, draw_qkv, launch, o_twin, tolerance, with_fresh
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, load_tile, store_tile


@triton.jit
def one_tile_kernel(q, k, v, o, H, S_q, S_k, D, scale,
                    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """o = softmax(scale · q kᵀ) v, where one tile holds all keys: S_k = BLOCK_N.

    q, o: Heads (B, H, S_q, D); k, v: Heads (B, H, S_k, D). Grid: (S_q / BLOCK_M · B · H,).
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


_WHERE = "pass b and h to every load_tile and store_tile: pid // row_blocks is b · H + h, so // H gives b and % H gives h"
MISTAKES = ONE_TILE | {
    "first_q": "every program loads the first rows of q: they start at row_block · BLOCK_M",
    "first_place": "every program stores to the first rows of o: they start at row_block · BLOCK_M",
    "qkvo_head0": f"every program works on head 0: {_WHERE}",
    "qkvo_batch0": f"every program works on batch entry 0: {_WHERE}",
    "kv_head0": f"k and v come from head 0 in every program: {_WHERE}",
    "o_head0": f"only head 0 of o is written: {_WHERE}",
}
CONDITIONS = {
    "large": "scores may be as large as 200: subtract each row's maximum",
    "half": HALF,
}


@with_fresh(
    ((2, 3, 3, 32, 32, 16), torch.float32, (16, 32, 16), 1.0),
    ((1, 2, 2, 32, 16, 32), torch.float16, (32, 16, 32), 3.0),
    ((1, 2, 2, 32, 32, 64), torch.bfloat16, (16, 32, 64), 1.0),
)
def inputs():
    yield from one_tile_inputs()
    q, k, v = logits(200)
    q[:, :, :15] = 0
    yield attention_case(q, k, v, "logits 200 in row 15, 0 in all others", "subtract from each row its own maximum")
    yield attention_case(*draw_qkv(1, 1, 32, 16, 16), "S_q = 32, two programs", "a program's rows start at row_block · BLOCK_M")
    yield attention_case(*draw_qkv(1, 1, 16, 16, 16), "scale = 0.5, D = 16", ONE_TILE["scale_own"], scale=0.5)
    blocks = "BLOCK_M and BLOCK_N may differ: a tile of q or o has BLOCK_M rows, a tile of k or v BLOCK_N"
    yield attention_case(*draw_qkv(1, 1, 16, 32, 16), "S_k = BLOCK_N = 32, BLOCK_M = 16", blocks, blocks=(16, 32, 16))
    yield attention_case(*draw_qkv(1, 2, 16, 16, 16), "two heads", _WHERE, stray=_WHERE)
    yield attention_case(*draw_qkv(2, 2, 16, 16, 16), "B = H = 2", _WHERE)
    yield attention_case(*logits(200, scale=1.0), "all logits 200, scale = 1", ONE_TILE["unshifted"], scale=1.0, edge="large")
    yield attention_case(*logits(200), "all logits 200, scale = 0.25", ONE_TILE["m_raw"], edge="large")
    half, v = torch.full((1, 1, 16, 16), 64.0).half(), draw_qkv(1, 1, 16, 16, 16)[2].half()
    yield attention_case(
        half, half, v, "fp16, all of q and k 64, so that q kᵀ is 65536 before it is scaled", ONE_TILE["half_scores"], edge="half"
    )


EXERCISE = Exercise(
    id="5.2",
    task="Write attention for one full tile of keys: each program takes one block of query rows of one head.",
    conditions=CONDITIONS,
    hints=(
        "Find b, h and start_m as in 5.1, and load the three tiles. Write the shape of each next line as a comment first: s and p are "
        "[BLOCK_M, BLOCK_N], m and l [BLOCK_M].",
        "s = scale * dot(q_tile, tl.trans(k_tile)). m is the maximum of s along axis 1, and s - m[:, None] subtracts it from every row.",
        "acc = dot(p.to(v_tile.dtype), v_tile), and store_tile(o, acc / l[:, None], b, h, start_m, S_q, D, BLOCK_M, BLOCK_D).",
    ),
    solution=one_tile_kernel,
    reasoning="A softmax over keys is a maximum and a sum along axis 1. Both stay unrounded in float32, and only p is rounded to v's dtype, because the "
    "tensor cores multiply two tiles of one dtype.",
    inputs=inputs,
    twin=o_twin,
    mistakes=MISTAKES,
    launch=launch,
    tolerance=tolerance,
    overlap=OVERLAP,
)
