from fa_tutorial.exercises import forward_cases as cases
from fa_tutorial.exercises.chapter_5 import inner_step
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, load_tile, store_tile


@triton.jit
def any_length_kernel(q, k, v, o, H, S_q, S_k, D, scale,
                      BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """o = softmax(scale · q kᵀ) v for any S_q and S_k from 1 on, and any D up to BLOCK_D.

    q, o: Heads (B, H, S_q, D); k, v: Heads (B, H, S_k, D). Grid: (ceil(S_q / BLOCK_M) · B · H,).
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
        offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        s = tl.where(offs_n[None, :] < S_k, s, -float("inf"))  # a missing key has no score
        m_new = tl.maximum(m, tl.max(s, axis=1))  # [BLOCK_M]
        p = tl.exp(s - m_new[:, None])  # [BLOCK_M, BLOCK_N]
        alpha = tl.exp(m - m_new)  # [BLOCK_M]
        l = alpha * l + tl.sum(p, axis=1)
        acc = dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None])  # [BLOCK_M, BLOCK_D]
        m = m_new
    store_tile(o, acc / l[:, None], b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


KEYS_MASK, WHERE = "offs_n[None, :] < S_k", 'tl.where(offs_n[None, :] < S_k, s, -float("inf"))'
MISTAKES = {
    "missing keys have a score of 0, and exp(0 − m) is not 0: set the scores of keys past S_k to −inf": (WHERE, "s"),
    "a key that exists may have a score of 0, too: compare the keys' numbers with S_k": (WHERE, 'tl.where(s == 0.0, -float("inf"), s)'),
    "offs_n does not move with the loop: it is start_n + tl.arange(0, BLOCK_N)": ("offs_n = start_n + ", "offs_n = "),
    "offs_n[:, None] numbers the rows of s, which are queries: keys are its columns, offs_n[None, :]": (KEYS_MASK, "offs_n[:, None] < S_k"),
    "one key too many: the last key is S_k − 1, so the mask is offs_n < S_k": (KEYS_MASK, "offs_n[None, :] <= S_k"),
    "one key too few: the last key is S_k − 1, so the mask is offs_n < S_k": (KEYS_MASK, "offs_n[None, :] < S_k - 1"),
    "keys end at S_k, not at S_q: the mask is offs_n < S_k": (KEYS_MASK, "offs_n[None, :] < S_q"),
    "the last tile is left out where it is ragged: the loop goes on to S_k": ("range(0, S_k, BLOCK_N)", "range(0, S_k // BLOCK_N * BLOCK_N, BLOCK_N)"),
    "the scale comes from BLOCK_D: it is an argument, made from the true D": ("scale * dot", "BLOCK_D ** -0.5 * dot"),
}  # fmt: skip
RAGGED = "the last tile of keys may be ragged: keys past S_k have the score −inf, and their rows of v are 0, because 0 · NaN is NaN"
CONDITIONS = {
    "low": "the scores may be as low as −2³⁰, and −∞ is written as −∞, in m and in a score: from 5.5 on, m = −∞ tells a row that has seen no key",
    "half": inner_step.HALF,
}


@cases.with_fresh(*cases.ANY_LENGTH)
def inputs():
    yield from inner_step.one_tile_inputs()
    yield inner_step.own_maximum()
    yield inner_step.two_tiles_input()
    yield inner_step.heads_input()
    yield cases.attention_case(*cases.draw_qkv(1, 1, 32, 20, 16), "S_q = 32, S_k = 20, BLOCK_N = 16", RAGGED, stray=inner_step.KEYS_READ)
    yield cases.attention_case(*cases.draw_qkv(1, 2, 20, 12, 16), "two heads, S_q = 20, S_k = 12, BLOCK_M = 16", inner_step.ROW_BLOCKS)
    padded = "D may be less than BLOCK_D: columns past D must be 0 in the tiles of q and k: they enter the sums of q kᵀ"
    outside = "columns past D are loaded or stored: pass D to load_tile and store_tile"
    yield cases.attention_case(*cases.draw_qkv(1, 1, 16, 16, 12), "D = 12, BLOCK_D = 16", padded, stray=outside)
    yield cases.attention_case(*inner_step.logits(-200), "all logits −200", inner_step.LOW)
    yield cases.attention_case(*inner_step.logits(-200, S_k=4), "S_k = 4, all logits −200", inner_step.FIRST)
    yield cases.attention_case(*inner_step.logits(-(2.0**30), S_k=4), "S_k = 4, all logits −2³⁰", edge="low")
    yield from inner_step.half_inputs()


EXERCISE = Exercise(
    task="Make the kernel right for every length and every head dimension.",
    conditions=CONDITIONS,
    hints=(
        "load_tile puts zeros where a tile runs past S_k or past D. Where are these zeros harmless, and where does a 0 change the result?",
        "A zero in q's or k's padded columns adds 0 to a score. A whole row of zeros in k is a key that is not there, with a score of 0: "
        "hide it.",
        'offs_n = start_n + tl.arange(0, BLOCK_N), and s = tl.where(offs_n[None, :] < S_k, s, -float("inf")) before the maximum is taken.',
    ),
    solution=any_length_kernel,
    reasoning="Zeros past D are harmless, because 0 · 0 adds nothing to a score. A missing key would get the score 0, which is a score "
    "like any other, so it is set to −inf. Rows past S_q compute something finite, and store_tile does not store it.",
    inputs=inputs,
    truth=cases.o_truth,
    rule="o = softmax(scale · q kᵀ) v for any S_q, S_k and D",
    mistakes=MISTAKES,
    launch=cases.launch,
    tolerance=cases.tolerance,
    refused=cases.streams,
    adapt=cases.by_infinity,
    seen={"overlap": inner_step.OVERLAP, "stored_again": inner_step.ONCE},
)
