"""Exercise 7.5, dq_kernel."""

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_7 import shared
from fa_tutorial.tiles import dot, load_tile, store_tile

triton = hardware.require_triton("Exercise 7.5")
import triton.language as tl  # noqa: E402


@triton.jit
def dq_kernel(
    q, k, v, do, dq, lse_ptr, delta_ptr, H, S_q, S_k, D, scale,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dq of one block of queries. q, do, dq: Heads (B, H, S_q, D); k, v: Heads (B, H, S_k, D).

    lse_ptr, delta_ptr: (B, H, S_q) float32, contiguous. Grid: (ceil(S_q / BLOCK_M) · B · H,).
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    start_m = tl.program_id(0) % row_blocks * BLOCK_M
    batch_head = tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H

    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    do_tile = load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    lse = tl.load(lse_ptr + batch_head * S_q + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
    delta = tl.load(delta_ptr + batch_head * S_q + offs_m, mask=offs_m < S_q, other=0.0)  # [BLOCK_M]
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)

    end = S_k
    if IS_CAUSAL:  # the keys that the block's last row sees; none where it is negative
        end = tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q
    for start_n in range(0, end, BLOCK_N):
        k_tile = load_tile(k, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
        v_tile = load_tile(v, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
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


START = "a program's rows begin at start_m"
P, END = "tl.where(seen, tl.exp(s - lse[:, None]), 0.0)", "tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q"
SUM, CAUSAL = "acc = dot(ds.to(k_tile.dtype), k_tile, acc)", "offs_n[None, :] <= offs_m[:, None] + (S_k - S_q)"
Q, DO, K, V = (f"load_tile({name}, b, h, start_{letter}," for name, letter in (("q", "m"), ("do", "m"), ("k", "n"), ("v", "n")))
TOP_LEFT = "query i sees keys 0 to i + S_k − S_q, so that the last query sees the last key"
UNMASKED = "a key past S_k has a score of 0, and exp(0 − lse) may be inf, so inf · 0 gives NaN: p is 0 from S_k on"
PRODUCT = "what is hidden is multiplied by 0, and inf · 0 is NaN: exp(100 − lse) is inf in float32, so choose with tl.where"
UNSEEN = "tiles that no row of the block sees are not read: the loop ends at min(start_m + BLOCK_M, S_q) + S_k − S_q"
MISTAKES = {
    "dq is without the scale: dq = scale · ds k": ("acc * scale", "acc"),
    "only the last tile counts: dq is a sum over the tiles of keys": (SUM, "acc = dot(ds.to(k_tile.dtype), k_tile)"),
    shared.ADDED_TWICE: (SUM, SUM.replace("acc =", "acc +=")),
    "scale is applied in every step, so the earlier tiles get it again and again: apply it once, after the loop": [
        (SUM, f"{SUM} * scale"), ("acc * scale, b", "acc, b")],
    "k is not transposed: s = scale · q kᵀ (where S = D the kernel runs all the same)": ("tl.trans(k_tile)", "k_tile"),
    "v is not transposed: dp = do vᵀ (where S = D the kernel runs all the same)": ("tl.trans(v_tile)", "v_tile"),
    "lse belongs to the queries, but here it runs along the keys": ("lse[:, None]", "lse[None, :]"),
    "every step reads the first tile of k and v: its rows are start_n to start_n + BLOCK_N − 1": [
        (K, K.replace("start_n", "0")), (V, V.replace("start_n", "0"))],
    f"every program loads the first rows of q and do: {START}": [(Q, Q.replace("start_m", "0")), (DO, DO.replace("start_m", "0"))],
    f"the mask is without S_k − S_q: {TOP_LEFT}": (CAUSAL, "offs_n[None, :] <= offs_m[:, None]"),
    "the mask is strict: a query sees its own key too, j ≤ i + S_k − S_q": (CAUSAL, CAUSAL.replace("<=", "<")),
    "the mask is the wrong way round: it hides the keys before the query and shows those after it": (CAUSAL, CAUSAL.replace("<=", ">=")),
    "the causal loop ends at key start_m + BLOCK_M: add S_k − S_q": (END, "start_m + BLOCK_M"),
    "the causal loop ends before the block's last row: it goes on to start_m + BLOCK_M + S_k − S_q": (END, "start_m + 1 + S_k - S_q"),
    "hidden keys get a score of 0, and exp(0 − lse) is not 0: set p to 0 there": (P, "tl.exp(tl.where(seen, s, 0.0) - lse[:, None])"),
    "rows that see nothing have lse = −inf, and −inf − (−inf) is NaN: mask p, not s": (
        P, 'tl.exp(tl.where(seen, s, -float("inf")) - lse[:, None])'),
    PRODUCT: (P, "tl.exp(s - lse[:, None]) * seen.to(tl.float32)"),
    UNMASKED: ("seen = offs_n[None, :] < S_k", "seen = offs_n[None, :] >= 0"),
    **shared.FROM_HEAD_0,
    **shared.EXCHANGED,
}  # fmt: skip


def inputs():
    yield from fixed()
    yield from shared.fresh_cases((32, 16, 16), causal=True, ragged="ragged")


@shared.kept
def fixed():
    fits = "an offset is wrong, not a mask, because whole tiles fit here"
    yield shared.given((1, 1, 16, 16, 16), "S_q = S_k = D = 16, one tile", "one tile gives dq = scale · ds k", stray=fits)
    yield shared.given((1, 1, 16, 32, 16), "S_k = 32, two tiles of keys", "dq is a sum over the tiles of keys", stray=fits)
    yield shared.given((1, 1, 32, 16, 16), "S_q = 32, two programs", START)
    yield shared.several_heads("dq")
    yield shared.two_heads()
    yield shared.narrow()
    yield shared.given((1, 1, 16, 16, 16), "causal, S_q = S_k = 16, one tile", "query i sees keys 0 to i", is_causal=True)
    rule = "a block of rows walks over every tile that its last row sees"
    for blocks in ((16, 16, 16), (32, 16, 16), (16, 32, 16)):
        on = f"causal, S_q = S_k = 32, blocks of {blocks[0]} queries and {blocks[1]} keys"
        yield shared.given((1, 1, 32, 32, 16), on, rule, is_causal=True, blocks=blocks)
    yield shared.causal_heads()
    yield shared.given((1, 1, 16, 32, 16), "causal, S_q = 16, S_k = 32", "query i sees keys 0 to i + S_k − S_q", is_causal=True)
    past = "rows past S_q are loaded: mask lse and delta by offs_m < S_q; a head has tl.cdiv(S_q, BLOCK_M) row blocks"
    yield shared.given((1, 1, 16, 20, 16), "S_k = 20, BLOCK_N = 16", "the last tile of keys may be ragged", edge="ragged")
    yield shared.given((1, 1, 20, 16, 16), "S_q = 20, BLOCK_M = 16", "the last block of rows may be ragged", stray=past, edge="ragged")
    # Where a border falls on a tile's edge, one more or less than it shows.
    short = "the last row sees key 16, alone in the second tile: end is the first key that the last row does not see"
    yield shared.given((1, 1, 17, 17, 16), "causal, S_q = S_k = 17, blocks of 16", short, is_causal=True, edge="ragged")
    far = "the first row of a block sees fewer keys than its last, so a tile that only the last row sees whole needs the mask"
    yield shared.given((1, 1, 18, 32, 16), "causal, S_q = 18, S_k = 32, blocks of 16", far, is_causal=True, edge="ragged")
    yield shared.large_logits()
    q, k, v, do = shared.draw(1, 1, 16, 16, 16)
    q[..., 0], q[:, :, 15, 0], k[:, :, 15], k[:, :, 15, 0] = 1, 0, 0, 400
    on = "causal, one tile, key 15 with a score of 100 for the queries that do not see it"
    yield shared.given(
        None,
        on,
        "a hidden key has p = 0, however large exp(s − lse) would be: choose with tl.where, because inf · 0 is NaN",
        tensors=(q, k, v, do),
        is_causal=True,
        edge="range",
    )
    q, k, v, do = shared.draw(1, 1, 16, 20, 16)
    low = torch.ones_like(q), torch.full_like(k, -50.0), v, do
    yield shared.given(
        None,
        "all logits −200, S_k = 20",
        "a key past S_k has p = 0: its score would be 0, and exp(0 − lse) may be inf",
        tensors=low,
        edge="range",
    )
    q, k, v, do = shared.draw(1, 1, 32, 32, 16)
    size = torch.where(torch.arange(32) < 16, 1e-30, 1e30)[:, None]  # dp overflows for rows 0 to 15 and keys 16 to 31, and 0 · inf is NaN
    on = "causal, S_q = S_k = 32, where v of keys 16 to 31 is so large that dp of rows 0 to 15 overflows"
    yield shared.given(None, on, UNSEEN, tensors=(q, k, v * size, do / size), is_causal=True, edge="unseen")
    for S_q, dead in ((24, "0 to 7"), (32, "0 to 15")):
        on = f"causal, S_q = {S_q}, S_k = 16, so that rows {dead} see no key"
        yield shared.given((1, 1, S_q, 16, 16), on, "rows that see no key have dq = 0", is_causal=True, edge="unseen")
    yield shared.half_scores()
    q, k, v, do = (torch.zeros(1, 1, S, 16, dtype=torch.float16) for S in (16, 64, 64, 16))  # equal scores, so p = 1 / 64, and ds = ±1
    v[:, :, 0::2, 0], v[:, :, 1::2, 0], do[..., 0] = 1, -1, 64
    k[:, :, 0], k[:, :, 16], k[:, :, 32] = 2048, 1, -2048
    on = "fp16, equal scores, ds k of the four tiles is 2048, 1, −2048 and 0"
    yield shared.given(None, on, shared.SUMS, tensors=(q, k, v, do), scale=1.0, near=0.1, edge="half")


EXERCISE = shared.exercise(
    "dq",
    causal=True,
    id="7.5",
    task="Compute dq: each program keeps one block of queries and loops over the tiles of keys, full or causal.",
    conditions={
        "ragged": "S_q and S_k need not be multiples of the block sizes",
        "range": "logits may be any finite numbers",
        "unseen": "tiles that no row of the block sees are not read; rows that see nothing have lse = −inf, and get dq = 0",
        "half": shared.HALF,
    },
    hints=(
        "The loop is the forward kernel's. Which four things are loaded before it, which two at every step, and what is summed?",
        "s = scale · q kᵀ, p = exp(s − lse[:, None]), dp = do vᵀ, ds = p ∘ (dp − delta[:, None]), dq += ds k, and scale · dq after the loop. The last "
        "product is acc = dot(ds.to(k_tile.dtype), k_tile, acc).",
        "Keys past S_k have k = 0, yet exp(0 − lse) overflows where all logits are very negative, and inf · 0 is NaN. tl.where(seen, …, 0.0) sets p to 0 "
        "there, and for hidden keys.",
        "Causal: the loop ends at min(start_m + BLOCK_M, S_q) + S_k − S_q. A block that sees nothing takes no step, and still stores its zeros.",
    ),
    solution=dq_kernel,
    reasoning="One tl.where clears what the causal mask hides, the keys that are not there, and rows that see nothing, whose p would be exp(s + inf). "
    "s and dp are computed a second time, after dkdv_kernel: seven matmuls instead of five, in exchange for sums with one owner each.",
    more="The package's version, backward.dq_kernel, reads the key head of its group, walks the tiles that need no mask in a loop of their own, and has "
    "int64 offsets.",
    inputs=inputs,
    rule="dq = scale · Σ ds k, over the tiles of keys, where ds = p ∘ (dp − delta)",
    mistakes=MISTAKES,
)
