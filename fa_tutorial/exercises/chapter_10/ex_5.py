import math

import torch

from fa_tutorial.exercises.chapter_10.ex_6 import capped, modified
from fa_tutorial.exercises.chapter_10.jitted_mod import Aux
from fa_tutorial.exercises.chapter_10.masks import THIRD, is_seen, lists, mod_and_words, views
from fa_tutorial.exercises.forward_cases import draw_qkv
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.forward import softmax_step
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, load_tile, store_tile


@triton.jit
def variant_kernel(q, k, v, o, lse_ptr, sink_ptr, index_ptr, count_ptr, H, S_q, S_k, D, scale, aux,
                   MASK_MOD: tl.constexpr, SCORE_MOD: tl.constexpr, KEEP: tl.constexpr,
                   BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """o and lse over the listed tiles, with a sink for each head."""
    row_blocks, across = tl.cdiv(S_q, BLOCK_M), tl.cdiv(S_k, BLOCK_N)
    row, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    start_m, b, h = row * BLOCK_M, batch_head // H, batch_head % H

    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    i = start_m + tl.arange(0, BLOCK_M)[:, None]  # [BLOCK_M, 1]
    m = tl.zeros((BLOCK_M,), dtype=tl.float32) + tl.load(sink_ptr + h)  # the sink, in place of −∞
    l = tl.full((BLOCK_M,), 1.0, dtype=tl.float32)  # its own term, in place of 0
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    for WHOLE in tl.static_range(2):  # the mixed tiles, then the whole ones
        tiles = tl.load(count_ptr + WHOLE * row_blocks + row)
        for t in range(tiles):
            place = across - 1 - t if WHOLE else t
            start_n = tl.load(index_ptr + row * across + place) * BLOCK_N
            j = start_n + tl.arange(0, BLOCK_N)[None, :]  # [1, BLOCK_N]
            k_tile = load_tile(k, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
            s = scale * dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N]
            if SCORE_MOD is not None:
                s = SCORE_MOD(s, b, h, i, j, aux)
            if not WHOLE:
                seen = (j < S_k) & MASK_MOD(b, h, i, j, aux)  # [BLOCK_M, BLOCK_N]
                s = tl.where(seen, s, -float("inf"))
            p, m, l, alpha = softmax_step(s, m, l)
            v_tile = load_tile(v, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
            if KEEP is not None:
                p = tl.where(KEEP(b, h, i, j, aux), p, 0.0)
            acc = dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None])
    l = tl.where(l == 0, 1.0, l)  # a row that sees no key has acc = 0
    tl.store(lse_ptr + batch_head * S_q + i, (m + tl.log(l))[:, None], mask=i < S_q)
    store_tile(o, acc / l[:, None], b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)


@triton.jit
def diagonal(b, h, i, j, aux):
    """The causal mask in the mixed tiles; of the whole ones, which needn't ask, it hides every pair."""
    return (j <= i) & (i // 16 == j // 16)


LOAD, STEP = "tl.load(sink_ptr + h)", "p, m, l, alpha = softmax_step(s, m, l)"
M, ONE, END = f"tl.zeros((BLOCK_M,), dtype=tl.float32) + {LOAD}", "tl.full((BLOCK_M,), 1.0, dtype=tl.float32)", "    l = tl.where(l == 0"
NO_M, ZERO = (M, 'tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)'), (ONE, "tl.zeros((BLOCK_M,), dtype=tl.float32)")
MISTAKES = {
    "the sink is missing: whatever l holds beside m = −∞ is wiped out by the first tile, whose alpha is 0": NO_M,
    "l starts at 0, so the sink's own term is missing: beside m = sink it is e^(sink − m) = 1": ZERO,
    "the sink counts once for each tile: it joins l once a row": [NO_M, ZERO, (STEP, f"{STEP}\n            l += tl.exp({LOAD} - m)")],
    "e^sink meets an l that counts in units of e^m: the sink's term is e^(sink − m)": [NO_M, ZERO, (END, f"    l += tl.exp({LOAD})\n{END}")],
    "the sink joins o's denominator, but not lse, from which the backward makes p": [
        NO_M, ZERO, ("acc / l[:, None]", f"acc / (l + tl.exp({LOAD} - m))[:, None]")],
    "the sink joins lse, but not o's denominator": [NO_M, ZERO, ("m + tl.log(l)", f"m + tl.log(l + tl.exp({LOAD} - m))")],
    "all heads take the first head's sink": ("sink_ptr + h", "sink_ptr"),
    "e^(sink − m) overflows where the sink lies far above every score: let the running maximum know the sink": [
        NO_M, ZERO, (END, f"    l += tl.exp({LOAD} - m)\n{END}")],
}  # fmt: skip


def launch(q, k, v, sinks, left, modded):
    (B, H, S_q, D), S_k = q.shape, k.shape[2]
    index, count = lists(is_seen(B, H, S_q, S_k, left), 16, 16)
    tensors = *views(q, k, v), Out((B, H, S_q), torch.float32)
    mods = (diagonal, capped, mod_and_words(THIRD)[0]) if modded else (mod_and_words(left)[0], None, None)
    meta = dict(zip(("MASK_MOD", "SCORE_MOD", "KEEP"), mods, strict=True)) | {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_D": D}
    numbers = H, S_q, S_k, D, D**-0.5, Aux(left, S_k - S_q, 2.0)
    return Launch((len(index) * B * H,), (*tensors, In(sinks), In(index), In(count), *numbers), meta)


def truth(q, k, v, sinks, left, modded):
    s = (q.shape[-1] ** -0.5 * q.double() @ k.double().mT).masked_fill(~is_seen(*q.shape[:3], k.shape[2], left), -math.inf)
    s, kept = (modified(s, 2.0, left), is_seen(*s.shape, THIRD)) if modded else (s, True)
    sink = sinks.double()[None, :, None, None].expand(*s.shape[:3], 1)
    lse = torch.logsumexp(torch.cat([sink, s], dim=-1), dim=-1)
    return (torch.exp(s - lse[..., None]).nan_to_num() * kept) @ v.double(), lse


def inputs():
    def rows(B, H, S_q, S_k, left, sinks, otherwise="", *, words="", modded=False, **options):
        on = f"B = {B}, H = {H}, S_q = {S_q}, S_k = {S_k}, {mod_and_words(left)[1]}, sinks = {sinks}{words}"
        args = *draw_qkv(B, H, S_q, S_k, 16), torch.tensor(sinks), left, modded
        stray = "sink_ptr holds one number for each head, whatever the batch entry, and lse one for each query of each head"
        return case(*args, on=on, otherwise=otherwise, stray=stray, **options)

    term = "the sink, which isn't scaled, adds one term, e^sink, to o's denominator, and none to the sum of p v"
    yield rows(1, 1, 16, 16, 15, [1.0], {"o": term, "lse": "lse is the logarithm of the whole denominator, with the sink's term"})
    yield rows(1, 1, 48, 48, 47, [0.5], "the sink's term joins l once in each row, and is rescaled with l from then on")
    yield rows(2, 2, 32, 32, 20, [5.3, -1.0], "each head has its sink, the same in each batch entry, and its tiles take b and h")
    yield rows(1, 2, 32, 32, 31, [-math.inf, 0.0], "a sink of −∞ is none")
    same = "only the sink is new: SCORE_MOD still comes before the mask, the mixed tiles alone ask MASK_MOD, and KEEP takes from acc what l has counted"
    with_mods = ", a SCORE_MOD, a KEEP, and a MASK_MOD that hides what it isn't asked for"
    yield rows(2, 2, 32, 32, 31, [0.5, -1.0], same, words=with_mods, modded=True)
    yield rows(1, 1, 32, 32, 20, [150.0], edge="large")
    yield rows(1, 2, 48, 16, 20, [1.0, -math.inf], edge="empty", words=", so that rows 0 to 31 see no key")
    yield rows(1, 1, 40, 32, 20, [-math.inf], edge="empty", words=", so that rows 0 to 7 see no key")


EXERCISE = Exercise(
    task="Give each head of the kernel a sink.",
    conditions={
        "large": "a sink may lie far above every score, and no exponential overflows",
        "empty": "a row may see no key: its o is 0, and its lse is the sink",
    },
    hints=(
        "A sink acts like a key whose score is the sink and whose value is 0. Which of m, l and acc would such a key change, and when?",
        "A first tile with that key alone would leave m = sink and l = e^(sink − m) = 1, and acc at 0.",
        "So m = tl.zeros((BLOCK_M,), dtype=tl.float32) + tl.load(sink_ptr + h), and l = tl.full((BLOCK_M,), 1.0, dtype=tl.float32). "
        "Nothing else changes.",
    ),
    solution=variant_kernel,
    reasoning="The running softmax takes the sink as a key that came before the first tile: m is its score, l its term, and acc holds 0 of "
    "its value. softmax_step rescales it with the rest, and lse has it in l. A sink of −∞ is none: the first tile's alpha is e^(−∞) = 0.",
    more="The package's forward starts in the same way, in base 2.",
    inputs=inputs,
    truth=truth,
    rule="o and lse are those of a softmax with one more term, e^sink, in its denominator alone",
    mistakes=MISTAKES,
    launch=launch,
    parts=("o", "lse"),
    tolerance=lambda args, part: (0.0, 2e-5 * float(args[2].abs().max())) if part == "o" else (1e-6, 2e-5),
)
