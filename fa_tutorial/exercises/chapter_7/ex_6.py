from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_7 import shared
from fa_tutorial.exercises.forward_cases import noted
from fa_tutorial.exercises.harness_kernel import launched_by
from fa_tutorial.exercises.running import Wrong
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, load_tile, store_tile


@triton.jit
def one_loop_kernel(
    q, k, v, do, dq, dk, dv, lse_ptr, delta_ptr, H, S_q, S_k, D, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dk and dv of one block of keys, and its part of dq, a Heads (B, H, S_q, D) of float32 zeros.

    q, do: Heads (B, H, S_q, D); k, v, dk, dv: Heads (B, H, S_k, D).
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

    here = start_n + tl.arange(0, BLOCK_N) < S_k  # [BLOCK_N], False for a key that isn't there
    offs_d = tl.arange(0, BLOCK_D)  # [BLOCK_D]
    for start_m in range(0, S_q, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
        q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
        do_tile = load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
        lse = tl.load(lse_ptr + batch_head * S_q + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
        delta = tl.load(delta_ptr + batch_head * S_q + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]

        s_t = scale * dot(k_tile, tl.trans(q_tile))  # [BLOCK_N, BLOCK_M]
        p_t = tl.where(here[:, None], tl.exp(s_t - lse[None, :]), 0.0)  # [BLOCK_N, BLOCK_M]
        dv_acc = dot(p_t.to(do_tile.dtype), do_tile, dv_acc)  # [BLOCK_N, BLOCK_D]
        dp_t = dot(v_tile, tl.trans(do_tile))  # [BLOCK_N, BLOCK_M]
        ds_t = (p_t * (dp_t - delta[None, :])).to(q_tile.dtype)  # [BLOCK_N, BLOCK_M]
        dk_acc = dot(ds_t, q_tile, dk_acc)  # [BLOCK_N, BLOCK_D]

        dq_part = scale * dot(tl.trans(ds_t), k_tile)  # [BLOCK_M, BLOCK_D]
        head = dq.ptr + b.to(tl.int64) * dq.strides[0] + h.to(tl.int64) * dq.strides[1]
        places = head + offs_m.to(tl.int64)[:, None] * dq.strides[2] + offs_d[None, :] * dq.strides[3]
        inside = (offs_m[:, None] < S_q) & (offs_d[None, :] < D)
        tl.atomic_add(places, dq_part, mask=inside, sem="relaxed")
    store_tile(dk, dk_acc * scale, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)
    store_tile(dv, dv_acc, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)


P = "tl.where(here[:, None], tl.exp(s_t - lse[None, :]), 0.0)"
PART = "scale * dot(tl.trans(ds_t), k_tile)"
NO_MASK = "missing keys need a mask now, from key S_k on: all keys share dq, exp(0 − lse) may be inf, and inf · 0 is NaN, so put 0 for their p with tl.where"
MISTAKES = {
    NO_MASK: (P, "tl.exp(s_t - lse[None, :])"),
    "a store overwrites what other programs have added: use tl.atomic_add": [
        ("tl.atomic_add(", "tl.store("), (', sem="relaxed"', "")],
    shared.TF32: (PART, PART.replace("dot", "tl.dot")),
    "dq is without the scale: dq = scale · ds k": (PART, "dot(tl.trans(ds_t), k_tile)"),
    "dq is scaled twice: dq = scale · ds k, and s has its own factor": (PART, f"scale * {PART}"),
    "ds is not transposed for dq: dq = scale · ds k, and ds_t is the transpose of ds": (PART, "scale * dot(ds_t, k_tile)"),
    "dq's strides of batch and head are exchanged: a head's rows start at b · strides[0] + h · strides[1]": (
        "strides[0] + h.to(tl.int64) * dq.strides[1]", "strides[1] + h.to(tl.int64) * dq.strides[0]"),
    "each part of dq is rounded to the inputs' dtype before it is added: keep it in float32": ("places, dq_part,", "places, dq_part.to(k_tile.dtype),"),
}  # fmt: skip


@launched_by
def on_zeros(kernel, grid, *args, **meta):
    """The kernel finds zeros in dq, its fifth argument. In the interpreter its matmuls are counted."""
    args[4].ptr.zero_()
    if not hardware.interpreter_on():
        return kernel[grid](*args, **meta)
    with noted() as (products, _):
        kernel[grid](*args, **meta)
    if (each := len(products) / (grid[0] * -(-args[10] // meta["BLOCK_M"]))) > 5:
        raise Wrong(f"a step takes {each:.0f} matmuls, and dq needs one more than 7.3's four: it takes the ds that dk is made of")


@shared.with_fresh((16, 32, 16), ragged="ragged")  # one or two programs add to an element, so that a GPU's sums have one order
def inputs():
    one = {
        "dq": "dq = scale · ds k, added once: ds is the transpose of the ds_t that dk is made of, and each part stays float32",
        "dk": "dk = scale · dsᵀ q, as in 7.3",
        "dv": "dv = pᵀ do, as in 7.3",
    }
    yield shared.given((1, 1, 16, 16, 16), "S_q = S_k = D = 16, one tile", one)
    yield shared.given((1, 1, 32, 16, 16), "S_q = 32, two blocks of queries", "a step's part belongs to the rows of dq from start_m on")
    yield shared.given((1, 1, 16, 32, 16), "S_k = 32, two programs", "dq is the sum of what the programs add")
    yield shared.several_heads("dq, dk and dv", "batch_head · S_q, those of dq at b · dq.strides[0] + h · dq.strides[1]")
    yield shared.narrow()
    strides = "dq has four strides of its own: its row i begins at b · dq.strides[0] + h · dq.strides[1] + i · dq.strides[2]"
    yield shared.given((2, 2, 16, 16, 16), "dq a (B, D, H, S) tensor seen as (B, H, S, D), q not", strides, stray=strides, dq_layout="bdhs")
    yield from shared.ragged("the last block of queries may be ragged", f"{shared.LOADED}, as the atomic add does")
    yield from shared.low_logits()
    q, k, v, do = shared.zeros(16, 32)  # ds = ±1
    v[:, :, 0::2, 0], v[:, :, 1::2, 0], do[..., 0] = 1, -1, 32
    k[:, :, 0], k[:, :, 2], k[:, :, 16] = 2048, 1, -2048
    on = "fp16, equal scores, ds k of the two programs is 2049 and −2048"
    yield shared.given(None, on, "dq is float32, and so is each part of it", tensors=(q, k, v, do), scale=1.0, near=0.1, edge="half")
    yield from shared.rounding()


EXERCISE = shared.exercise(
    outputs=("dq", "dk", "dv"),
    overlap="several programs store to the same elements of dq: between a load and a store another program may add, so use tl.atomic_add",
    task="Let your kernel of 7.3 compute dq as well: each step adds its part to dq in memory.",
    conditions={
        "ragged": "S_q and S_k need not be multiples of the block sizes",
        "range": "finite logits, however large, give no infinity and no NaN",
        "half": f"dq is float32 for every dtype; {shared.HALF}",
    },
    hints=(
        "Which of the step's tiles does dq need, and which shape must it have on the left of k_tile?",
        "dq_part = scale * dot(tl.trans(ds_t), k_tile), after ds_t is rounded to the inputs' dtype. It has the rows offs_m. Its places are dq.ptr + "
        "b * dq.strides[0] + h * dq.strides[1] + offs_m[:, None] * dq.strides[2] + offs_d[None, :] * dq.strides[3], with offs_d below D.",
        "A key past S_k has a row of dk and dv to itself, which store_tile leaves out. Which of the three gradients does it share with the "
        "keys that are there, and what is its p where all logits are −200?",
    ),
    solution=one_loop_kernel,
    reasoning="s and dp are computed once, so five matmuls are enough. But every block of keys adds to every row of dq, and nobody says in "
    "which order. For one of dk and dq a computed tile must be transposed, whichever of s and s_t you compute. And a missing key, which only "
    "spoiled rows of its own, would spoil all of dq where its p is inf.",
    more="Chapter 7 compares it with two loops, in bits and in time. Its places are in int64, because a tensor may hold more than 2³¹ elements.",
    inputs=inputs,
    rule="dq = scale · Σ ds k over the blocks of keys, beside dv = Σ pᵀ do and dk = scale · Σ dsᵀ q",
    mistakes=MISTAKES,
    adapt=on_zeros,
)
