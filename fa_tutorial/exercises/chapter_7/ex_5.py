import torch

from fa_tutorial.exercises.chapter_7 import shared
from fa_tutorial.exercises.chapter_7.shared import causal
from fa_tutorial.exercises.forward_cases import counting_tiles
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, load_tile, store_tile


@triton.jit
def dq_kernel(
    q, k, v, do, dq, lse_ptr, delta_ptr, H_q, H_k, S_q, S_k, D, scale,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dq of one block of queries. q, do, dq: Heads (B, H_q, S_q, D); k, v: Heads (B, H_k, S_k, D).

    lse_ptr, delta_ptr: (B, H_q, S_q) float32, contiguous. Grid: (ceil(S_q / BLOCK_M) · B · H_q,).
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    start_m = tl.program_id(0) % row_blocks * BLOCK_M
    batch_head = tl.program_id(0) // row_blocks
    b, h = batch_head // H_q, batch_head % H_q
    h_k = h // (H_q // H_k)

    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    do_tile = load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    lse = tl.load(lse_ptr + batch_head * S_q + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
    delta = tl.load(delta_ptr + batch_head * S_q + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    end_n = S_k
    if IS_CAUSAL:  # the keys that the block's last row sees; none where it is negative
        end_n = tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q
    for start_n in range(0, end_n, BLOCK_N):
        k_tile = load_tile(k, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
        v_tile = load_tile(v, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
        s = scale * dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N]
        offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        seen = offs_n[None, :] < S_k
        if IS_CAUSAL:
            seen = seen & (offs_n[None, :] <= offs_m[:, None] + (S_k - S_q))
        p = tl.where(seen, tl.exp(s - lse[:, None]), 0.0)  # [BLOCK_M, BLOCK_N]
        dp = dot(do_tile, tl.trans(v_tile))  # [BLOCK_M, BLOCK_N]
        ds = p * (dp - delta[:, None])  # [BLOCK_M, BLOCK_N]
        acc = dot(ds.to(k_tile.dtype), k_tile, acc)  # [BLOCK_M, BLOCK_D]
    store_tile(dq, acc * scale, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


P = "tl.where(seen, tl.exp(s - lse[:, None]), 0.0)"
SUM, CAUSAL = "acc = dot(ds.to(k_tile.dtype), k_tile, acc)", "offs_n[None, :] <= offs_m[:, None] + (S_k - S_q)"
HEAD = "b and h count query heads, by H_q; k and v have H_k heads, and query head h reads head h // (H_q // H_k)"
PLACE = "row i of query head h of batch b is (b · H_q + h) · S_q + i of lse and delta"
MISTAKES = {
    "dq is without the scale: dq = scale · ds k": ("acc * scale", "acc"),
    "dq is scaled twice: ds = p ∘ (dp − delta) is without the scale, and dq gets it once, at the end": (
        "ds.to(k_tile.dtype)", "(ds * scale).to(k_tile.dtype)"),
    "lse and delta belong to the queries, but here they run along the keys": [
        ("lse[:, None]", "lse[None, :]"), ("delta[:, None]", "delta[None, :]")],
    "delta is not subtracted: ds = p ∘ (dp − delta)": ("dp - delta[:, None]", "dp"),
    "dp is made of k: dp = do vᵀ": ("tl.trans(v_tile)", "tl.trans(k_tile)"),
    "ds is multiplied by v: dq = scale · ds k": (SUM, SUM.replace("k_tile, acc", "v_tile, acc")),
    shared.DELTA_OF_A_TILE: ("delta[:, None]", "tl.sum(p * dp, axis=1)[:, None]"),
    shared.TF32: (" dot(", " tl.dot("),
    shared.FP16: ("ds.to(k_tile.dtype), k_tile", "ds.to(tl.float16), k_tile.to(tl.float16)"),
    f"lse and delta are the key head's: {PLACE}": ("batch_head * S_q", "(b * H_k + h_k) * S_q"),
    "the mask is without S_k − S_q: query i sees keys 0 to i + S_k − S_q, so that the last query sees the last key": (CAUSAL, "offs_n[None, :] <= offs_m[:, None]"),
    "the last key, S_k − 1, is left out": ("offs_n[None, :] < S_k", "offs_n[None, :] < S_k - 1"),
    "the mask is strict: a query sees its own key too, j ≤ i + S_k − S_q": (CAUSAL, CAUSAL.replace("<=", "<")),
    "rows that see nothing have lse = −inf, and −inf − (−inf) is NaN: mask p, not s": (
        P, 'tl.exp(tl.where(seen, s, -float("inf")) - lse[:, None])'),
}  # fmt: skip


@shared.with_fresh((32, 16, 16), causal="unseen", ragged="ragged")
def inputs():
    one = "one tile gives dq = scale · ds k over all keys, in float32's digits (by dot: tl.dot multiplies float32 in TF32), from ds = p ∘ (dp − delta), p = exp(s − lse), s = scale · q kᵀ and dp = do vᵀ, with lse and delta along the queries"
    yield shared.given((1, 1, 16, 16, 16), "S_q = S_k = D = 16, one tile", one)
    sums = "dq is a sum over the tiles of keys, each added once, by acc = dot(a, b, acc); the sum is scaled once, after the loop; k, v and the mask begin at start_n and end at S_k"
    yield shared.given((1, 1, 16, 32, 16), "S_k = 32, two tiles of keys", sums)
    yield shared.given((1, 1, 32, 16, 16), "S_q = 32, two programs", "a program's rows begin at start_m, for q, do, lse, delta and dq")
    yield shared.two_sizes()
    yield shared.several_heads("dq", f"batch_head · S_q; {HEAD}")
    yield shared.grouped((1, 2, 2, 16, 16, 16), "H_q = 4, H_k = 2", f"{HEAD}; q, do, dq, lse and delta are head h's", stray=HEAD)
    yield shared.narrow()
    whole = ": every tile with such a key is taken, and its keys that a row doesn't see are masked"
    yield causal(16, 16, f"query i sees keys 0 to i{whole}")
    yield causal(32, 32, "a block of rows walks over every tile that its last row sees", blocks=(32, 16, 16))
    yield causal(16, 32, f"query i sees keys 0 to i + S_k − S_q{whole}")
    yield causal(16, 32, B=2)
    yield from shared.ragged("the last block of rows may be ragged", f"{shared.LOADED}; a head has tl.cdiv(S_q, BLOCK_M) row blocks")
    short = "the row sees key 16, alone in the second tile: end_n is the first key that the last row does not see"
    yield causal(1, 17, short, "ragged")
    far = "row 0 does not see key 15, and row 1 does: a tile that only the last row sees whole needs the mask"
    yield causal(2, 16, far, "ragged")
    yield shared.large_logits()
    yield from shared.low_logits()
    tensors = q, k, _, _ = shared.draw(1, 1, 16, 16, 16)
    q[..., 0], q[:, :, 15, 0], k[:, :, 15], k[:, :, 15, 0] = 1, 0, 0, 400
    large = "a hidden key has p = 0, however large exp(s − lse) would be: choose with tl.where, because inf · 0 is NaN"
    on = ", key 15 with a score of 100 for the queries that do not see it"
    yield causal(16, 16, large, "range", on=on, tensors=tensors)
    q, k, v, do = shared.draw(1, 1, 16, 20, 16)
    low = torch.zeros_like(q), torch.zeros_like(k), v, do
    low[0][..., 0], low[1][..., 0] = 2.0**126, -1  # powers of two, so that every order of the products is exact
    infinite = "what is hidden or past S_k has p = 0: any finite number in place of −∞ may be larger than the logits that are there"
    yield shared.given(None, "all logits −2¹²⁶, S_k = 20", infinite, tensors=low, scale=1.0, edge="range")
    first = "start_m + 1 + S_k − S_q may be negative, and no loop starts before key 0"
    nothing = "rows that see no key have dq = 0, and the kernel must write it"
    yield causal(40, 16, nothing, "unseen", on=", so that rows 0 to 23 see no key", stray=first)
    for is_causal in (True, False):  # counting_tiles counts the tiles
        on = f"{'causal' if is_causal else 'no mask'}, S_q = S_k = 36, BLOCK_M = 32, BLOCK_N = 16"
        yield shared.given((1, 1, 36, 36, 64), on, is_causal=is_causal, blocks=(32, 16, 64), edge="unseen")
    q, k, v, do = shared.zeros(16, 48)  # ds = ±1
    v[:, :, 0::2, 0], v[:, :, 1::2, 0], do[..., 0] = 1, -1, 48
    k[:, :, 0], k[:, :, 16], k[:, :, 32] = 2048, 1, -2048
    on = "fp16, equal scores, ds k of the three tiles is 2048, 1 and −2048"
    yield shared.given(None, on, shared.SUMS, tensors=(q, k, v, do), scale=1.0, near=0.1, edge="half")
    yield from shared.rounding()


EXERCISE = shared.exercise(
    outputs=("dq",),
    causal=True,
    task="Compute dq: each program keeps one block of queries and loops over the tiles of keys, full or causal.",
    conditions={
        "ragged": "S_q and S_k need not be multiples of the block sizes",
        "range": "finite logits, however large, give no infinity and no NaN",
        "unseen": "tiles that no row of the block sees are not read; rows that see nothing have lse = −inf, and get dq = 0",
        "half": shared.HALF,
    },
    hints=(
        "The loop is the forward kernel's. Which four things are loaded before it, which two at every step, and what is summed?",
        "s = scale · q kᵀ, p = exp(s − lse[:, None]), dp = do vᵀ, ds = p ∘ (dp − delta[:, None]), dq += ds k, and scale · dq after the "
        "loop. The last product is acc = dot(ds.to(k_tile.dtype), k_tile, acc).",
        "Keys past S_k have k = 0, yet exp(0 − lse) overflows where all logits are very negative, and inf · 0 is NaN. tl.where(seen, …, "
        "0.0) sets p to 0 there, and for hidden keys. Causal: the loop ends at min(start_m + BLOCK_M, S_q) + S_k − S_q. A block that sees nothing takes no step, and still stores its "
        "zeros.",
    ),
    solution=dq_kernel,
    reasoning="One tl.where clears what the causal mask hides, the keys that are not there, and rows that see nothing, whose p would be "
    "exp(s + inf). s and dp are computed a second time, after dkdv_kernel: seven matmuls instead of five, in exchange for sums with one "
    "owner each.",
    more="The package's version, backward.dq_kernel, walks the tiles that need no mask in a loop of their own, and has int64 offsets.",
    inputs=inputs,
    rule="dq = scale · Σ ds k, over the tiles of keys, where ds = p ∘ (dp − delta)",
    mistakes=MISTAKES,
    adapt=counting_tiles(products=3, two_loops=False),
)
