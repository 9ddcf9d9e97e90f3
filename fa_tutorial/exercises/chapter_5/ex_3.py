import torch

from fa_tutorial.exercises import forward_cases as cases
from fa_tutorial.exercises.chapter_5 import inner_step
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, load_tile, store_tile


@triton.jit
def key_loop_kernel(q, k, v, o, H, S_q, S_k, D, scale,
                    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """o = softmax(scale · q kᵀ) v. S_q is a multiple of BLOCK_M, S_k of BLOCK_N, and D = BLOCK_D.

    q, o: Heads (B, H, S_q, D); k, v: Heads (B, H, S_k, D). Grid: (row_blocks · B · H,), by (5.1).
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


ALPHA, L = "tl.exp(m - m_new)", "alpha * l + tl.sum(p, axis=1)"
ACC, LAST = "dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None])", "        m = m_new\n"
MISTAKES = {
    "acc is not divided: o = acc / l, after the loop": ("acc / l[:, None], b", "acc, b"),
    "acc is not rescaled when the maximum grows: acc = alpha · acc + p v": (ACC, "dot(p.to(v_tile.dtype), v_tile, acc)"),
    "l is not rescaled when the maximum grows: l = alpha · l + Σ p": (L, "l + tl.sum(p, axis=1)"),
    "alpha multiplies the columns of acc: alpha[:, None] gives one number to each row": ("acc * alpha[:, None]", "acc * alpha"),
    "p v is rescaled too: bring acc to the new maximum first, acc · alpha, and then add p v": (
        ACC, "dot(p.to(v_tile.dtype), v_tile, acc) * alpha[:, None]"),
    "acc is divided by l in every iteration, so earlier tiles lose weight with each that follows: divide once, after the loop": [
        (LAST, LAST + "        acc = acc / l[:, None]\n"), ("acc / l[:, None], b", "acc, b")],
    "the loop ends at S_q, and keys end at S_k": ("range(0, S_k, BLOCK_N)", "range(0, S_q, BLOCK_N)"),
    "v's tile never moves: it starts at start_n, as k's does": ("load_tile(v, b, h, start_n", "load_tile(v, b, h, 0"),
    inner_step.TF32: ("scale * dot(", "scale * tl.dot("),
    "acc counts twice: dot(p, v, acc · alpha) is acc · alpha + p v already": (ACC, f"acc + {ACC}"),
    "acc and l are not rescaled: alpha is exp(m − m_new) with the old m, so m = m_new comes last": (ALPHA, "tl.exp(m_new - m_new)"),
    "only the last tile counts: m must carry over to the next iteration, and l and acc with it": (LAST, ""),
}  # fmt: skip
STATE = (
    "for each tile m_new = max(m, the tile's maximum), alpha = exp(m − m_new), l = alpha · l + Σ p and acc = alpha · acc + p v, by "
    "(4.2) and (4.3)"
)
CONDITIONS = {"low": "m starts at −∞: all scores may be as low as −2³⁰", "half": inner_step.HALF}


@cases.with_fresh(
    ((1, 2, 2, 16, 48, 16), torch.float32, (16, 16, 16), 3.0),
    ((2, 1, 1, 32, 32, 32), torch.float16, (32, 16, 32), 3.0),
    ((1, 2, 2, 32, 64, 64), torch.bfloat16, (16, 32, 64), 1.0),
)
def inputs():
    yield from inner_step.one_tile_inputs()
    yield inner_step.own_maximum()
    yield inner_step.two_tiles_input()
    yield cases.attention_case(*inner_step.logits(-200), "all logits −200", inner_step.LOW)
    yield cases.attention_case(*inner_step.logits(200, 0), "logits 200 in the first tile, 0 in the second", inner_step.FALLS)
    on, rule = "S_q = S_k = 32, BLOCK_M = 16, BLOCK_N = 32", f"{inner_step.BLOCKS}, and an iteration takes BLOCK_N keys"
    yield cases.attention_case(*cases.draw_qkv(1, 1, 32, 32, 16), on, rule, blocks=(16, 32, 16))
    yield cases.attention_case(*cases.draw_qkv(1, 1, 32, 16, 16), "S_q = 32, S_k = 16, BLOCK_M = BLOCK_N = 16", inner_step.ROWS)
    yield inner_step.heads_input()
    yield cases.attention_case(*inner_step.logits(-(2.0**30)), "all logits −2³⁰", edge="low")
    yield from inner_step.half_inputs()


EXERCISE = Exercise(
    task="Let the keys stream past in tiles of BLOCK_N, with m, l and acc carried from one iteration to the next.",
    conditions=CONDITIONS,
    hints=(
        "Which three tensors does chapter 4's loop carry? They need a value before the loop: what are the maximum and the sum of nothing?",
        'm = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32); l and acc are tl.zeros. The loop is for start_n in range(0, S_k, '
        "BLOCK_N), and k's and v's tiles start at start_n.",
        "m_new = tl.maximum(m, tl.max(s, axis=1)), then alpha = tl.exp(m - m_new) before m = m_new. l becomes alpha * l + the sum of p, "
        "and acc becomes dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None]).",
    ),
    solution=key_loop_kernel,
    reasoning="m, l and acc stay in registers for the whole loop. A program reads q's tile once, k and v once, and writes o once. s and p "
    "never reach memory.",
    inputs=inputs,
    truth=cases.o_truth,
    rule=f"o = softmax(scale · q kᵀ) v, whatever the tiles: {STATE}",
    mistakes=MISTAKES,
    launch=cases.launch,
    tolerance=cases.tolerance,
    refused=cases.streams,
    adapt=cases.by_infinity,
    seen={"overlap": inner_step.OVERLAP, "stored_again": inner_step.ONCE},
)
