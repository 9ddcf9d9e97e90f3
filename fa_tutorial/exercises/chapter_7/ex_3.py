from fa_tutorial.exercises.chapter_7 import shared
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, load_tile, store_tile


@triton.jit
def dkdv_loop_kernel(
    q, k, v, do, dk, dv, lse_ptr, delta_ptr, H, S_q, S_k, D, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dk and dv of one block of keys. q, do: Heads (B, H, S_q, D); k, v, dk, dv: Heads (B, H, S_k, D).

    lse_ptr, delta_ptr: (B, H, S_q) float32, contiguous. Grid: (ceil(S_k / BLOCK_N) · B · H,).
    """
    key_blocks = tl.cdiv(S_k, BLOCK_N)
    start_n = tl.program_id(0) % key_blocks * BLOCK_N
    batch_head = tl.program_id(0) // key_blocks
    b, h = batch_head // H, batch_head % H

    k_tile = load_tile(k, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    v_tile = load_tile(v, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)

    for start_m in range(0, S_q, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
        q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
        do_tile = load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
        lse = tl.load(lse_ptr + batch_head * S_q + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
        delta = tl.load(delta_ptr + batch_head * S_q + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]

        s_t = scale * dot(k_tile, tl.trans(q_tile))  # [BLOCK_N, BLOCK_M]
        p_t = tl.exp(s_t - lse[None, :])  # [BLOCK_N, BLOCK_M]
        dv_acc = dot(p_t.to(do_tile.dtype), do_tile, dv_acc)  # [BLOCK_N, BLOCK_D]
        dp_t = dot(v_tile, tl.trans(do_tile))  # [BLOCK_N, BLOCK_M]
        ds_t = p_t * (dp_t - delta[None, :])  # [BLOCK_N, BLOCK_M]
        dk_acc = dot(ds_t.to(q_tile.dtype), q_tile, dk_acc)  # [BLOCK_N, BLOCK_D]

    store_tile(dk, dk_acc * scale, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)
    store_tile(dv, dv_acc, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)


Q, DO = "load_tile(q, b, h, start_m,", "load_tile(do, b, h, start_m,"
SUM_DV, SUM_DK = "do_tile, dv_acc)", "q_tile, dk_acc)"
MISTAKES = {
    shared.NO_SCALE: ("dk_acc * scale", "dk_acc"),
    "only the last block of queries counts: every block adds to what the earlier ones gave": [(SUM_DV, "do_tile)"), (SUM_DK, "q_tile)")],
    "scale is applied to dk in every step, so the earlier blocks get it again and again: apply it once, after the loop": [
        (SUM_DK, f"{SUM_DK} * scale"), ("dk_acc * scale", "dk_acc")],
    "every step reads the first rows of q and do: they start at start_m": [(Q, Q.replace("start_m", "0")), (DO, DO.replace("start_m", "0"))],
    "every step reads the first rows of lse and delta: they start at start_m": ("offs_m = start_m + ", "offs_m = "),
    "the ragged last block of queries is left out: the loop goes on while start_m < S_q": (
        "range(0, S_q, BLOCK_M)", "range(0, S_q // BLOCK_M * BLOCK_M, BLOCK_M)"),
}  # fmt: skip


@shared.with_fresh((16, 32, 16), ragged="ragged")
def inputs():
    yield shared.given(
        (1, 1, 16, 16, 16),
        "S_q = S_k = D = 16, one tile",
        "dv = pᵀ do and dk = scale · dsᵀ q, in float32's digits, by dot: tl.dot multiplies float32 in TF32",
    )
    sums = (
        "dk and dv are sums over the blocks of queries, each added once, by acc = dot(a, b, acc): each step reads q, do, lse and delta from "
        "start_m on, and all four end at S_q, for the loop, for load_tile and for a mask"
    )
    yield shared.given((1, 1, 32, 16, 16), "S_q = 32, two blocks of queries", sums)
    place = (
        "each head has tl.cdiv(S_k, BLOCK_N) programs, // H gives b, % H gives h, and its rows of lse and delta start at batch_head · S_q, "
        "where the mask compares start_m + tl.arange(0, BLOCK_M) with S_q"
    )
    yield shared.given((2, 2, 32, 16, 16), "B = H = 2, S_q = 32, S_k = 16", place)
    keys = "a program's keys start at start_n and end at S_k, in k, v, dk and dv, and its lse and delta at batch_head · S_q"
    yield shared.given((1, 1, 16, 32, 16), "S_k = 32, two programs", keys)
    yield shared.two_sizes()
    yield shared.several_heads("dk and dv")
    yield shared.narrow()
    last = (
        "past S_q, in the last block, lse and delta are loaded as 0, with mask and other=0.0: what lies there, and what a masked load gives "
        "without other, may be anything"
    )
    yield from shared.ragged(last, shared.LOADED)
    q, k, v, do = shared.zeros(48)  # ds = ±1
    v[:, :, 0::2, 0], v[:, :, 1::2, 0], do[..., 0] = 1, -1, 16
    for row, number in ((0, 2048), (16, 1), (32, -2048)):
        q[:, :, row, 0], do[:, :, row, 1] = number, 16 * number
    on = "fp16, equal scores, pᵀ do of the three blocks is 2048, 1 and −2048, and dsᵀ q ±2048, ±1 and ∓2048"
    yield shared.given(None, on, shared.SUMS, tensors=(q, k, v, do), scale=1.0, near=0.1, edge="half")
    yield from shared.rounding()


EXERCISE = shared.exercise(
    outputs=("dk", "dv"),
    task="Let each program keep one block of keys and loop over all blocks of queries.",
    conditions={"ragged": "S_q and S_k need not be multiples of the block sizes", "half": shared.HALF},
    hints=(
        "What does every step need anew, and what stays? The loads of k and v and two zero accumulators come before the loop, the stores "
        "after it.",
        "A program's keys are found as chapter 5 found its rows: start_n = tl.program_id(0) % key_blocks * BLOCK_N, with key_blocks = "
        "tl.cdiv(S_k, BLOCK_N). dot(a, b, acc) returns acc + a @ b.",
        "Past S_q, load_tile gives rows of zeros for q and do. lse and delta are yours to load: mask=offs_m < S_q, other=0.0.",
    ),
    solution=dkdv_loop_kernel,
    reasoning="A program owns its rows of dk and dv, so no other program adds to them: no atomics, and the same bits on every run. Rows "
    "past S_q have q = do = 0 and a finite p, so they add nothing. Keys past S_k end up in rows that store_tile leaves out.",
    more="Exercise 7.4 skips the blocks that the causal mask hides.",
    inputs=inputs,
    rule="dv = Σ pᵀ do and dk = scale · Σ dsᵀ q, over all blocks of queries",
    mistakes=MISTAKES,
)
