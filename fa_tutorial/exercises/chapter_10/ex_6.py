"""Exercise 10.6, sink_kernel."""

import math

import torch

from fa_tutorial.exercises.chapter_10.ex_1 import window
from fa_tutorial.exercises.chapter_10.ex_3 import is_seen
from fa_tutorial.exercises.forward_cases import draw_qkv
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.forward import softmax_step
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, load_tile, store_tile


@triton.jit
def sink_kernel(
    q, k, v, o, lse_ptr, sinks_ptr, H, S_q, S_k, D, scale, aux,
    MASK_MOD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """masked_kernel with a sink for each head, and lse."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    start_m, b, h = row * BLOCK_M, batch_head // H, batch_head % H

    q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    i = start_m + tl.arange(0, BLOCK_M)[:, None]  # [BLOCK_M, 1]
    m = tl.zeros((BLOCK_M,), dtype=tl.float32) + tl.load(sinks_ptr + h)
    l = tl.full((BLOCK_M,), 1.0, dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    for start_n in range(0, S_k, BLOCK_N):
        k_tile = load_tile(k, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
        j = start_n + tl.arange(0, BLOCK_N)[None, :]  # [1, BLOCK_N]
        seen = (j < S_k) & MASK_MOD(b, h, i, j, aux)  # [BLOCK_M, BLOCK_N]
        s = tl.where(seen, scale * dot(q_tile, tl.trans(k_tile)), -float("inf"))  # [BLOCK_M, BLOCK_N]
        p, m, l, alpha = softmax_step(s, m, l)
        v_tile = load_tile(v, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
        acc = dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None])
    store_tile(o, acc / l[:, None], b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)
    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    tl.store(lse_ptr + batch_head * S_q + offs_m, m + tl.log(l), mask=offs_m < S_q)


M, L, ACC = "tl.zeros((BLOCK_M,), dtype=tl.float32) + tl.load(sinks_ptr + h)", "tl.full((BLOCK_M,), 1.0", "acc = tl.zeros("
STEP = "p, m, l, alpha = softmax_step(s, m, l)\n"
NO_SINK, LSE = 'tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)', "m + tl.log(l)"
GUARD = ("acc / l[:, None]", "acc / tl.where(l == 0, 1.0, l)[:, None]")
MISTAKES = {
    "the sink is in no row's sum: m starts at the sink and l at 1 (from m = −∞ the first tile rescales any l to 0)": [
        (M, NO_SINK), (L, "tl.full((BLOCK_M,), 0.0"), GUARD],
    ("the sink is in no row's sum, and a row that sees no key gives NaN, from 0 / 0: m starts at the sink and l at 1 (from m = −∞ the first "
    "tile rescales any l to 0)"): [
        (M, NO_SINK), (L, "tl.full((BLOCK_M,), 0.0")],
    "m starts at the sink, but l at 0: the sink's own term is e^(sink − m), which is 1 at the start": (L, "tl.full((BLOCK_M,), 0.0"),
    "l starts at 0 where m starts at the sink: the sink's own term, e^(sink − m), is 1 at the start": [
        (L, "tl.full((BLOCK_M,), 0.0"), GUARD],
    "l starts at 0 and gets 1 after the loop: m may have grown by then, and the sink's own term is e^(sink − m)": [
        (L, "tl.full((BLOCK_M,), 0.0"), ("    store_tile(o, acc", "    l += 1.0\n    store_tile(o, acc")],
    "m starts at −∞, so the first tile rescales l's e^sink to 0: m starts at the sink, and l at 1": [
        (M, NO_SINK), (L, "tl.exp(tl.load(sinks_ptr + h)) + tl.full((BLOCK_M,), 0.0")],
    "every tile adds the sink again: it joins the sum once, at the start": (
        STEP, f"{STEP}        l += tl.exp(tl.load(sinks_ptr + h) - m)\n"),
    "l starts at the sink: its own term is e^(sink − m), which is 1 at the start": (L, f"{M} + tl.full((BLOCK_M,), 0.0"),
    "l starts at e^sink: m is the sink already, so its own term is e^(sink − m) = 1": (
        L, "tl.exp(tl.load(sinks_ptr + h)) * tl.full((BLOCK_M,), 1.0"),
    "m starts at 0, so the sink counts as 0: m starts at the head's own": (M, "tl.zeros((BLOCK_M,), dtype=tl.float32)"),
    "the sink is found by the batch entry: a head's own is at sinks_ptr + h": ("sinks_ptr + h", "sinks_ptr + b"),
    "every head takes the sink of head 0: a head's own is at sinks_ptr + h": ("sinks_ptr + h", "sinks_ptr"),
    "the sink is multiplied by scale: it joins the scores as it is, after the scale": (M, f"scale * ({M})"),
    "the sink joins the numerator, too: its value is 0, so acc starts at 0": (f"{ACC}(BLOCK_M, BLOCK_D)", "acc = tl.full((BLOCK_M, BLOCK_D), 1.0"),
    "lse is without the maximum: it is m + log l": (LSE, "tl.log(l)"),
    "lse is l, without the log: it is m + log l": (LSE, "m + l"),
    "lse is that of the keys alone: the sink is in l, and it stays there": [
        (LSE, "lse"), (M, NO_SINK), (L, "tl.full((BLOCK_M,), 0.0"), ("    store_tile(o, acc", "    lse, sink = m + tl.log(l), tl.load(sinks_ptr + h)\n"
         "    both = tl.maximum(m, sink)\n    l, acc = l * tl.exp(m - both) + tl.exp(sink - both), acc * tl.exp(m - both)[:, None]\n"
         "    store_tile(o, acc")],
    "the sink is added to lse: it is in l already": (LSE, f"{LSE} + tl.load(sinks_ptr + h)"),
    "lse is in base 2: softmax_step computes in base e, so take tl.log": (LSE, "m + tl.log2(l)"),
    "lse's rows are found without the batch: a head's rows start at batch_head · S_q": ("batch_head * S_q", "h * S_q"),
}  # fmt: skip
CONDITIONS = {
    "large": "a sink may be far above or far below the scores: the maximum that is subtracted is that of the keys and the sink",
    "empty": "a row may see no key: then its o is 0, and its lse is the sink",
}


def launch(q, k, v, sinks, left, blocks):
    (B, H, S_q, D), S_k = q.shape, k.shape[2]
    outputs = Out(q.shape, q.dtype, as_heads=True), Out((B, H, S_q), torch.float32)
    tensors = *(In(x, as_heads=True) for x in (q, k, v)), *outputs, In(sinks)
    meta = {"MASK_MOD": window, "BLOCK_M": blocks[0], "BLOCK_N": blocks[1], "BLOCK_D": D}
    return Launch((-(-S_q // blocks[0]) * B * H,), (*tensors, H, S_q, S_k, D, D**-0.5, (left, S_k - S_q)), meta)


def truth(q, k, v, sinks, left, blocks):
    seen = is_seen(*q.shape[:3], k.shape[2], left)
    s = (q.shape[-1] ** -0.5 * q.double() @ k.double().mT).masked_fill(~seen, -math.inf)
    lse = torch.logaddexp(s.logsumexp(dim=-1), sinks.double()[:, None])
    return torch.exp(s - lse[..., None]) @ v.double(), lse


def inputs():
    def rows(B, sinks, S_q, S_k, left, otherwise="", *, blocks=(16, 16), draw=None, **options):
        q, k, v = draw_qkv(B, len(sinks), S_q, S_k, 16, draw=draw)
        words = "random sinks" if draw else f"sinks {', '.join(f'{sink:g}' for sink in sinks)}"
        on = f"B = {B}, {words}, S_q = {S_q}, S_k = {S_k}, tiles of {blocks[0]} × {blocks[1]}, a window of {left} keys and the query's own"
        place = "a head's sink is at sinks_ptr + h, and its rows of lse start at batch_head · S_q"
        return case(q, k, v, torch.tensor(sinks), left, blocks, on=on, otherwise=otherwise or place, **{"stray": place} | options)

    both = {
        "o": "the softmax is over the keys that are seen and the sink, whose value is 0",
        "lse": "o is right, but lse isn't: it is m + log l of the l that o is divided by, with the sink's term in it",
    }
    yield rows(1, [1.5], 16, 16, 3, both)
    yield rows(1, [1.5], 32, 32, 20, "the sink counts once a row, not once a tile, and each block stores the lse of its own rows")
    yield rows(2, [1.5, -1.0, 0.5], 32, 32, 5)
    yield rows(1, [1.5], 40, 40, 10, stray="the last block is ragged: a mask keeps its store of lse within S_q rows")
    yield rows(1, torch.randn(2, generator=generator()).tolist(), 40, 50, 20, blocks=(32, 16), draw=generator(), fresh=True)
    yield rows(1, [100.0, -100.0], 32, 32, 5, CONDITIONS["large"], edge="large")
    yield rows(1, [1.5], 48, 16, 20, CONDITIONS["empty"], edge="empty")  # rows 0 to 31 see no key


EXERCISE = Exercise(
    task="Give each head of masked_kernel a sink, and store lse.",
    conditions=CONDITIONS,
    hints=(
        "The sink acts like a key before all others, with the score sink and the value 0. What are m, l and acc after this key alone?",
        "m is the sink, l is e^(sink − m) = 1, and acc is 0. The loop stays as it is.",
        "lse is m + tl.log(l), because the sink is already in l. A head's rows start at batch_head · S_q, and a block's are "
        "offs_m = start_m + tl.arange(0, BLOCK_M). Store with mask=offs_m < S_q.",
    ),
    solution=sink_kernel,
    reasoning="The loop merges each tile into what came before it, and it doesn't care what that was. So the sink comes first, as a key with "
    "value 0, and no line of the loop changes. A row that sees no key has l = 1, so nothing is divided by 0 any more.",
    more="The package's forward computes in base 2, so its m starts at sink · log₂ e.",
    inputs=inputs,
    truth=truth,
    rule="softmax over the keys that are seen and the sink, whose value is 0, with the lse of both",
    mistakes=MISTAKES,
    launch=launch,
    parts=("o", "lse"),
    tolerance=lambda args, part: (2e-5, 2e-5 * float(args[2].double().abs().max())),
)
