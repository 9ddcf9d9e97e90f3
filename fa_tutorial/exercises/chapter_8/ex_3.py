"""Exercise 8.3, flash_forward_descriptor_kernel."""

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.with_descriptors import WithDescriptors

triton = hardware.require_triton("Exercise 8.3")
import triton.language as tl  # noqa: E402


@triton.jit
def flash_forward_descriptor_kernel(
    q_desc, k_desc, v_desc, o_desc, H, S_q, S_k, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """o = softmax(scale · q kᵀ) v. q_desc, o_desc: (B, H, S_q, D); k_desc, v_desc: (B, H, S_k, D)."""
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    start_m = tl.program_id(0) % row_blocks * BLOCK_M
    batch_head = tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H
    q = q_desc.load([b, h, start_m, 0]).reshape([BLOCK_M, D])  # 0 from row S_q on, whatever lies there
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)

    for start_n in range(0, S_k, BLOCK_N):
        k = k_desc.load([b, h, start_n, 0]).reshape([BLOCK_N, D])
        v = v_desc.load([b, h, start_n, 0]).reshape([BLOCK_N, D])
        s = scale * tl.dot(q, tl.trans(k), input_precision="ieee")  # [BLOCK_M, BLOCK_N]
        offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        s = tl.where(offs_n[None, :] < S_k, s, -float("inf"))  # a key of zeros has the score 0
        m_new = tl.maximum(m, tl.max(s, axis=1))  # [BLOCK_M]
        p = tl.exp(s - m_new[:, None])  # [BLOCK_M, BLOCK_N]
        alpha = tl.exp(m - m_new)  # [BLOCK_M]
        l = alpha * l + tl.sum(p, axis=1)
        acc = alpha[:, None] * acc + tl.dot(p.to(v.dtype), v, input_precision="ieee")  # [BLOCK_M, D]
        m = m_new

    o = (acc / l[:, None]).to(o_desc.dtype)  # [BLOCK_M, D]
    o_desc.store([b, h, start_m, 0], o.reshape([1, 1, BLOCK_M, D]))  # rows from S_q on are left out


START = "a program's rows start at row_block · BLOCK_M, in q and in o, and a head has tl.cdiv(S_q, BLOCK_M) row blocks"
OWN = "b and h are coordinates of their own, 0 and 1: h = (pid // row_blocks) % H, b = (pid // row_blocks) // H"
HALF = "the scores, m, l and acc are float32, before and after the scale"
KV, S = "_desc.load([b, h, start_n, 0])", "scale * tl.dot("
ACC, L = "alpha[:, None] * acc + tl.dot", "alpha * l + tl.sum(p, axis=1)"
WHERE = 'tl.where(offs_n[None, :] < S_k, s, -float("inf"))'
HIDDEN = f"        s = {WHERE}  # a key of zeros has the score 0\n"
MAXIMUM = "        m_new = tl.maximum(m, tl.max(s, axis=1))  # [BLOCK_M]\n"
MISTAKES = {
    "keys past S_k are zeros, and a score of 0 still weighs exp(0 − m): the mask on the scores stays, with −inf": (HIDDEN, ""),
    "the score 0 of a key past S_k joins the maximum: hide the scores before the maximum is taken": (HIDDEN + MAXIMUM, MAXIMUM + HIDDEN),
    "keys past S_k get a finite score, which may be the largest of all: it must be −inf": (WHERE, WHERE.replace('-float("inf")', "-1e6")),
    "k's and v's row counts tiles: a tile's coordinate counts rows": (KV, "_desc.load([b, h, start_n // BLOCK_N, 0])"),
    "every step loads the first tile of k and v: their row is start_n": (KV, "_desc.load([b, h, 0, 0])"),
    "every program loads the first rows of q: they start at row_block · BLOCK_M": ("q_desc.load([b, h, start_m", "q_desc.load([b, h, 0"),
    "every program stores to the first rows of o: they start at row_block · BLOCK_M": ("o_desc.store([b, h, start_m", "o_desc.store([b, h, 0"),
    "q's and o's row counts row blocks: a tile's coordinate counts rows": ("row_blocks * BLOCK_M\n", "row_blocks\n"),
    "the number of row blocks is rounded down: a head has tl.cdiv(S_q, BLOCK_M), and the descriptor drops what a store puts past S_q": (
        "tl.cdiv(S_q, BLOCK_M)", "S_q // BLOCK_M"),
    "batch and head are exchanged: pid // row_blocks is b · H + h, so // H gives b and % H gives h": ("b, h = batch", "h, b = batch"),
    "every program takes head 0 of k and v: h is their second coordinate": (KV, "_desc.load([b, 0, start_n, 0])"),
    "k is not transposed: a descriptor gives [BLOCK_N, D], and tl.trans turns it": ("tl.trans(k)", "k"),
    "v is loaded from k_desc": (f"v{KV}", f"k{KV}"),
    "the scale is missing: s = scale · q kᵀ": (S, "tl.dot("),
    "log₂ e is in the scores, but the exponential is e to a power: scale them by scale alone": (S, "scale * 1.4426950408889634 * tl.dot("),
    "acc is not divided: o = acc / l": ("(acc / l[:, None])", "acc"),
    "acc is not rescaled when the maximum grows: acc = alpha · acc + p v": (ACC, "acc + tl.dot"),
    "l is not rescaled when the maximum grows: l = alpha · l + Σ p": (L, "l + tl.sum(p, axis=1)"),
    "the loop runs to S_q: there are S_k keys": ("range(0, S_k", "range(0, S_q"),
    "o is rounded to fp16: its dtype is o_desc.dtype": ("to(o_desc.dtype)", "to(tl.float16)"),
}  # fmt: skip

CONDITIONS = {
    "half": "for fp16 the scores, m, l and acc are float32, and o has the descriptor's dtype",
    "views": "the tensors may lie in memory in another order: the descriptors know their strides",
}


def truth(q, k, v, scale, block_m, block_n, is_view):
    return torch.softmax(scale * (q.double() @ k.double().mT), -1) @ v.double()


def launch(q, k, v, scale, block_m, block_n, is_view):
    (B, H, S_q, D), S_k = q.shape, k.shape[2]

    def strides(S):
        return (S * H * D, D, H * D, 1) if is_view else None

    tensors = (In(q, strides(S_q)), In(k, strides(S_k)), In(v, strides(S_k)), Out(q.shape, q.dtype, strides(S_q)))
    return Launch((triton.cdiv(S_q, block_m) * B * H,), (*tensors, H, S_q, S_k, scale), {"BLOCK_M": block_m, "BLOCK_N": block_n, "D": D})


def tolerance(args, part):
    """Scores are sums of products: each is rounded by a few float32 units of the sum of their absolute values; halves round p and o once."""
    q, k, v, scale = args[:4]
    noise = 4 * torch.finfo(torch.float32).eps * abs(scale) * float((q.abs().double() @ k.abs().double().mT).max())
    return 0.0, ({torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 5e-5}[q.dtype] + min(noise, 1e-2)) * float(
        v.double().abs().max()
    )


def inputs():
    def draw(B, H, S_q, S_k, seed=None):
        seed = seed or torch.Generator().manual_seed(0)
        return [torch.randn(B, H, S, 16, generator=seed) for S in (S_q, S_k, S_k)]

    def tile(qkv, on, otherwise, scale=0.25, edge=""):
        return case(*qkv, scale, 16, 16, False, on=on, otherwise=otherwise, edge=edge)

    yield tile(
        draw(1, 1, 16, 16),
        "S_q = S_k = D = 16, one tile",
        'one tile gives softmax(scale · q kᵀ) v in float32\'s digits: multiply by dot, or with input_precision="ieee", '
        "and cast p to v's dtype and o to o_desc.dtype, never to tl.float16 by name",
    )
    q, k, v = draw(1, 1, 16, 32)
    k[:, :, 16:] *= 3  # most rows' maximum grows
    yield tile((q, k, v), "S_q = 16, S_k = 32, two tiles of keys", "a second tile joins m, l and acc as in exercise 5.4")
    yield tile(draw(1, 1, 32, 16), "S_q = 32, two programs", START)
    yield tile(draw(1, 1, 16, 16), "scale = 0.5, D = 16", "scale is an argument, which the caller chooses: s = scale · q kᵀ", scale=0.5)

    def logits(*values):
        """All scores of a tile of keys are one of these numbers, if the scale is 0.25."""
        q, _, v = draw(1, 1, 16, 16 * len(values))
        return torch.ones_like(q), torch.cat([torch.full_like(q, value / 4) for value in values], 2), v

    yield tile(logits(800), "all logits 800, scale = 1", "scores may be large: subtract the row's maximum before exp", scale=1.0)
    yield tile(logits(200), "all logits 200, scale = 0.25", "m is the maximum of scale · q kᵀ, not of q kᵀ")
    yield tile(logits(-200), "all logits −200", "all scores may be low: m starts at −inf, so that it is the maximum of the scores alone")
    yield tile(
        logits(200, 0),
        "logits 200 in the first tile, 0 in the second",
        "the maximum may be in the first tile: m never falls, so alpha is at most 1",
    )
    yield tile(draw(1, 2, 16, 16), "two heads", OWN)
    yield tile(draw(2, 1, 16, 16), "two batch entries", OWN)
    yield tile(draw(2, 2, 16, 16), "B = H = 2", "pid // row_blocks is b · H + h")
    yield tile(draw(2, 3, 16, 16), "B = 2, H = 3", f"a program's number is (b · H + h) · row_blocks + row_block: {OWN}")
    # Two heads, so that the next head lies past a head's end.
    yield tile(
        draw(1, 2, 16, 20),
        "two heads, S_k = 20, BLOCK_N = 16",
        "the last tile of keys may be ragged: no key from S_k on exists, nor S_k itself",
    )
    q, k, v = logits(-(2.0**30), -(2.0**30))
    yield tile(
        (q, k[:, :, :20], v[:, :, :20]),
        "S_k = 20, BLOCK_N = 16, all logits −2³⁰",
        "scores may be as low as −2³⁰: only −inf, or a number far below, can stand where a key is missing, and it joins no maximum",
    )
    yield tile(draw(1, 2, 20, 16), "two heads, S_q = 20, BLOCK_M = 16", f"the last block of rows may be ragged: {START}")
    yield tile(draw(1, 1, 28, 28), "S_q = S_k = 28", "ragged ends on both sides")

    q, k, v = (x.half() for x in draw(1, 1, 16, 16))
    one, zero = torch.ones_like(q), torch.zeros_like(q)
    half = {"edge": "half"}
    yield tile((zero, zero, 6e4 * one), "fp16, equal scores, all of v 60,000", f"{HALF}: fp16 ends at 65504", **half)
    yield tile((64 * one, 64 * one, v), "fp16, all of q and k 64, all of q kᵀ 65536", f"{HALF}: fp16 ends at 65504", **half)
    yield tile(
        (128 * one, 128 * one, v), "fp16, all of q and k 128, scale = 1 / 4, all scores 65536", f"{HALF}: fp16 ends at 65504", **half
    )
    q, k = zero.clone(), zero.clone()
    q[..., 0], q[..., 1] = 5, -1
    k[:, :, ::2, 0], k[:, :, ::2, 1] = 4096, 5 * 4096
    yield tile((q, k, v), "fp16, q = (5, −1, 0 …), even keys 4096 · (1, 5, 0 …), odd keys 0, scale = 0.3",
               "5 · 4096 − 1 · 5 · 4096 is 0, so all keys weigh the same: q and k are multiplied as they are, and summed in float32",
               scale=0.3, **half)  # fmt: skip
    seed = generator()
    last = torch.bfloat16 if hardware.device().type == "cuda" else torch.float16  # the interpreter's dot is wrong for bf16
    for (B, H, S_q, S_k), factor, dtype in (((1, 1, 1, 1), 1.0, torch.float32), ((2, 2, 15, 17), 3.0, torch.float32),
                                            ((1, 3, 33, 40), 3.0, torch.float16), ((1, 1, 20, 20), 1.0, last)):  # fmt: skip
        kind = str(dtype).removeprefix("torch.")
        q, k, v = ((factor * x).to(dtype) for x in draw(B, H, S_q, S_k, seed))
        blocks = (16, 16) if dtype == torch.float32 else (32, 16)
        yield case(q, k, v, 0.25, *blocks, True, on=f"{kind}, B = {B}, H = {H}, S_q = {S_q}, S_k = {S_k}, (B, S, H, D) in memory", fresh=True,
                   edge="views")  # fmt: skip


EXERCISE = Exercise(
    id="8.3",
    task="Write the forward with tensor descriptors of shape (B, H, S, D) and tiles [1, 1, BLOCK_M or BLOCK_N, D]: full attention, any S_q and S_k.",
    conditions=CONDITIONS,
    hints=(
        "Coordinates count elements: row_block · BLOCK_M for q and o, start_n for k and v. There are no pointers, strides or masks of loads left.",
        "Keys past S_k are zeros. What does exp make of their scores? tl.where(start_n + tl.arange(0, BLOCK_N)[None, :] < S_k, s, −inf), as in "
        "exercise 5.4.",
        "x_desc.load([b, h, row, 0]) gives a tile of shape [1, 1, rows, D], and .reshape([rows, D]) drops the ones. o_desc.store takes the same "
        "coordinates, and a tile of shape [1, 1, BLOCK_M, D].",
    ),
    solution=flash_forward_descriptor_kernel,
    reasoning="The shape (B, H, S, D) is what stops a tile at its head's end: the hardware compares each coordinate with its own size. A 2-D "
    "descriptor of (B · H · S, D) knows one end alone, and its ragged tiles hold rows of the next head, and overwrite them at the store. The zeros "
    "that stand in are harmless in q and v; as keys they have the score 0, so the mask on the scores stays.",
    more="The package's forward, tuned/forward.py, takes either descriptors or Heads, because tiles.load_tile loads from both.",
    inputs=inputs,
    truth=truth,
    rule="o = softmax(scale · q kᵀ) v, for any S_q and S_k",
    mistakes=MISTAKES,
    launch=launch,
    tolerance=tolerance,
    adapt=lambda kernel: WithDescriptors(kernel) if hasattr(kernel, "fn") else kernel,
)
