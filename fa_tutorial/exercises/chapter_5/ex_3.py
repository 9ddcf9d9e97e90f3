"""Exercise 5.3, key_loop_kernel."""

import torch

from fa_tutorial.exercises.chapter_5.inner_step import HALF, OVERLAP, STEPS, logits, one_tile_inputs, two_tiles_input
from fa_tutorial.exercises.forward_kernels import attention_case, draw_qkv, launch, o_twin, tolerance, with_fresh
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, load_tile, store_tile


@triton.jit
def key_loop_kernel(q, k, v, o, H, S_q, S_k, D, scale,
                    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """o = softmax(scale · q kᵀ) v. S_q is a multiple of BLOCK_M, S_k of BLOCK_N, and D = BLOCK_D.

    q, o: Heads (B, H, S_q, D); k, v: Heads (B, H, S_k, D). Grid: (S_q / BLOCK_M · B · H,).
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    start_m = tl.program_id(0) % row_blocks * BLOCK_M
    batch_head = tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H

    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    for start_n in range(0, S_k, BLOCK_N):
        k_tile = load_tile(k, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
        v_tile = load_tile(v, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
        s = scale * dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N]
        m_new = tl.maximum(m, tl.max(s, axis=1))  # [BLOCK_M]
        p = tl.exp(s - m_new[:, None])  # [BLOCK_M, BLOCK_N]
        alpha = tl.exp(m - m_new)  # [BLOCK_M]
        l = alpha * l + tl.sum(p, axis=1)
        acc = dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None])  # [BLOCK_M, BLOCK_D]
        m = m_new
    store_tile(o, acc / l[:, None], b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


_STEP = "BLOCK_M is used where BLOCK_N belongs: an iteration takes BLOCK_N keys, and the next one starts BLOCK_N keys further on"
MISTAKES = STEPS | {
    "step_m": f"keys 16 to 31 count twice: {_STEP}",
    "one_on": "start_n counts tiles, but load_tile takes the first key: range(0, S_k, BLOCK_N)",
    "width_m": f"keys 16 to 31 are left out: {_STEP}",
}
CONDITIONS = {
    "low": "m starts at −inf: all scores may be as low as −2³⁰",
    "half": HALF,
}


@with_fresh(
    ((1, 2, 2, 32, 64, 16), torch.float32, (16, 16, 16), 3.0),
    ((2, 1, 1, 32, 64, 32), torch.float16, (32, 16, 32), 3.0),
    ((1, 2, 2, 32, 64, 64), torch.bfloat16, (16, 32, 64), 1.0),
)
def inputs():
    yield from one_tile_inputs()
    yield two_tiles_input()
    yield attention_case(*logits(-200), "all logits −200", STEPS["from_zero"])
    yield attention_case(*logits(200, 0), "logits 200 in the first tile, 0 in the second", STEPS["falls"])
    blocks = "BLOCK_M and BLOCK_N may differ: a tile of q or o has BLOCK_M rows, a tile of k or v BLOCK_N"
    for m, n in ((16, 32), (32, 16)):
        yield attention_case(*draw_qkv(1, 1, 32, 32, 16), f"S_q = S_k = 32, BLOCK_M = {m}, BLOCK_N = {n}", blocks, blocks=(m, n, 16))
    yield attention_case(*draw_qkv(2, 2, 16, 32, 16), "B = H = 2", "pass b and h to every load_tile and store_tile")
    yield attention_case(*logits(-(2.0**30)), "all logits −2³⁰", STEPS["from_finite"], edge="low")
    half = torch.zeros(1, 1, 48, 16, dtype=torch.float16)
    yield attention_case(half[:, :, :16], half, half + 60000, "fp16, equal scores, v all 60000", STEPS["half_acc"], edge="half")


EXERCISE = Exercise(
    id="5.3",
    task="Let the keys stream past in tiles of BLOCK_N, with m, l and acc carried from one iteration to the next.",
    conditions=CONDITIONS,
    hints=(
        "Which three tensors does chapter 4's loop carry? They need a value before the loop: what are the maximum and the sum of nothing?",
        'm = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32); l and acc are tl.zeros. The loop is for start_n in range(0, S_k, BLOCK_N), and '
        "k's and v's tiles start at start_n.",
        "m_new = tl.maximum(m, tl.max(s, axis=1)), then alpha = tl.exp(m - m_new) before m = m_new. l becomes alpha * l + the sum of p, and "
        "acc becomes dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None]).",
    ),
    solution=key_loop_kernel,
    reasoning="m, l and acc stay in registers for the whole loop. A program reads q's tile once, k and v once, and writes o once. s and p never reach memory.",
    inputs=inputs,
    twin=o_twin,
    mistakes=MISTAKES,
    launch=launch,
    tolerance=tolerance,
    overlap=OVERLAP,
)
