from unittest import mock

from fa_tutorial import hardware
from fa_tutorial.exercises import harness_kernel
from fa_tutorial.exercises.chapter_7 import shared
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, load_tile, store_tile


@triton.jit
def dkdv_tile_kernel(
    q, k, v, do, dk, dv, lse_ptr, delta_ptr, H, D, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dk and dv of BLOCK_M queries and BLOCK_N keys.

    q, do: Heads (B, H, BLOCK_M, D); k, v, dk, dv: Heads (B, H, BLOCK_N, D).
    lse_ptr, delta_ptr: (B, H, BLOCK_M) float32, contiguous. Grid: (B · H,).
    """
    b, h = tl.program_id(0) // H, tl.program_id(0) % H
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    k_tile = load_tile(k, b, h, 0, BLOCK_N, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    v_tile = load_tile(v, b, h, 0, BLOCK_N, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    q_tile = load_tile(q, b, h, 0, BLOCK_M, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    do_tile = load_tile(do, b, h, 0, BLOCK_M, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    lse = tl.load(lse_ptr + rows)  # [BLOCK_M]
    delta = tl.load(delta_ptr + rows)  # [BLOCK_M]

    s_t = scale * dot(k_tile, tl.trans(q_tile))  # [BLOCK_N, BLOCK_M]
    p_t = tl.exp(s_t - lse[None, :])  # [BLOCK_N, BLOCK_M]
    dv_acc = dot(p_t.to(do_tile.dtype), do_tile)  # [BLOCK_N, BLOCK_D]
    dp_t = dot(v_tile, tl.trans(do_tile))  # [BLOCK_N, BLOCK_M]
    ds_t = p_t * (dp_t - delta[None, :])  # [BLOCK_N, BLOCK_M]
    dk_acc = dot(ds_t.to(q_tile.dtype), q_tile)  # [BLOCK_N, BLOCK_D]
    store_tile(dk, dk_acc * scale, b, h, 0, BLOCK_N, D, BLOCK_N, BLOCK_D)
    store_tile(dv, dv_acc, b, h, 0, BLOCK_N, D, BLOCK_N, BLOCK_D)


MISTAKES = {
    shared.NO_SCALE: ("dk_acc * scale", "dk_acc"),
    "dk is scaled twice: ds = p ∘ (dp − delta) is without the scale, and dk gets it once, at the end": ("ds_t = p_t * (", "ds_t = scale * p_t * ("),
    "the scores are without the scale: s = scale · q kᵀ": ("scale * dot(k_tile", "dot(k_tile"),
    "q is not transposed: sᵀ = scale · k qᵀ (where S = D the kernel runs all the same)": ("tl.trans(q_tile)", "q_tile"),
    "do is not transposed: dpᵀ = v doᵀ (where S = D the kernel runs all the same)": ("tl.trans(do_tile)", "do_tile"),
    "lse and delta belong to the queries, but here they run along the keys": [
        ("lse[None, :]", "lse[:, None]"), ("delta[None, :]", "delta[:, None]")],
    "lse belongs to the queries, but here it runs along the keys": ("lse[None, :]", "lse[:, None]"),
    "dp is made of k: dpᵀ = v doᵀ": ("dot(v_tile", "dot(k_tile"),
    "dv is scaled: only the scores, and so dk, have the factor scale": ("store_tile(dv, dv_acc", "store_tile(dv, dv_acc * scale"),
    "delta is not subtracted: ds = p ∘ (dp − delta)": ("dp_t - delta[None, :]", "dp_t"),
    shared.DELTA_OF_A_TILE: ("delta[None, :]", "tl.sum(p_t * dp_t, axis=0)[None, :]"),
    shared.TF32: (" dot(", " tl.dot("),
    shared.FP16: [("p_t.to(do_tile.dtype), do_tile", "p_t.to(tl.float16), do_tile.to(tl.float16)"),
                  ("ds_t.to(q_tile.dtype), q_tile", "ds_t.to(tl.float16), q_tile.to(tl.float16)")],
    "dk and dv are exchanged: dk = scale · dsᵀ q goes to dk, dv = pᵀ do to dv": [
        ("store_tile(dk, dk_acc", "store_tile(dv, dk_acc"), ("store_tile(dv, dv_acc", "store_tile(dk, dv_acc")],
}  # fmt: skip


@shared.kept
def fixed():
    yield shared.given((1, 1, 16, 16, 16), "S_q = S_k = D = 16")
    yield shared.given((1, 1, 16, 32, 16), "16 queries, 32 keys", "p_t and ds_t are [BLOCK_N, BLOCK_M]", blocks=(16, 32, 16))
    yield shared.several_heads("dk and dv", "(b · H + h) · BLOCK_M")
    rest = "a row has keys in other tiles, and lse counts them all, as delta does"
    yield shared.given((1, 1, 16, 16, 16), "lse of rows that have keys in other tiles", rest, other_keys=1.0)
    yield shared.narrow()
    yield shared.large_logits()
    yield from shared.rounding()


def inputs():
    yield from fixed()
    random = generator()
    for blocks in ((16, 64, 32), (32, 16, 64)):
        on, tensors = f"random values, BLOCK_M, BLOCK_N, BLOCK_D = {blocks}", shared.draw(1, 2, *blocks[:2], blocks[2] - 7, random)
        yield shared.given(None, on, tensors=tensors, blocks=blocks, fresh=True)


def note(kernel):
    """Whether a computed tile, of 16 queries and 32 keys, is transposed: the interpreter shows it."""
    if not hardware.interpreter_on():
        return ""
    from triton.runtime.interpreter import interpreter_builder as builder

    transposed, plain = [], builder.create_trans
    noting = lambda x, order: transposed.append(x.data.shape) or plain(x, order)  # noqa: E731
    launch = shared.Given(*shared.draw(1, 1, 16, 32, 64), blocks=(16, 32, 64)).launch(("dk", "dv"), True, False, False)
    with mock.patch.object(builder, "create_trans", noting):
        harness_kernel.results(kernel, launch, kernel, "", "", once=True)
    told = "but a computed tile is transposed: compute s_t = scale · k qᵀ, and only q and do are"
    return told if {(16, 32), (32, 16)} & {*transposed} else ""


EXERCISE = shared.exercise(
    outputs=("dk", "dv"),
    one_tile=True,
    note=note,
    task="Compute dk and dv of one tile: BLOCK_M queries and BLOCK_N keys, one head to a program.",
    conditions={"range": "no finite logits overflow: exp(s − lse) is computed in one step", "half": shared.HALF},
    hints=(
        "Write the shape above each tile. k_tile is [BLOCK_N, BLOCK_D]: what must q_tile look like, so that their product is [BLOCK_N, "
        "BLOCK_M]?",
        "tl.trans(q_tile) is [BLOCK_D, BLOCK_M]. lse has one number for each query: are the queries the rows of s_t, or its columns?",
        "p_t is tl.exp(scale * dot(k_tile, tl.trans(q_tile)) - lse[None, :]), and dv is dot(p_t.to(do_tile.dtype), do_tile). dp_t is made like s_t, from v_tile and do_tile; ds_t = p_t * (dp_t - delta[None, :]). "
        "dk is dot(ds_t.to(q_tile.dtype), q_tile), times scale.",
    ),
    solution=dkdv_tile_kernel,
    reasoning="s_t and dp_t come out of dot as [BLOCK_N, BLOCK_M], which is the shape that dk and dv need on their left, so only loaded "
    "tiles are transposed. In fp16 p_t and ds_t are rounded once, right before their products, and everything else stays in float32.",
    more="Exercise 7.3 puts the middle of this kernel into a loop.",
    inputs=inputs,
    rule="dv = pᵀ do and dk = scale · dsᵀ q, where p = exp(s − lse) and ds = p ∘ (dp − delta), with lse and delta along the queries, all in float32's digits, by dot: tl.dot multiplies float32 in TF32",
    mistakes=MISTAKES,
)
