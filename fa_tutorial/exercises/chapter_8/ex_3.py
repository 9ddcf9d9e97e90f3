from dataclasses import replace

import torch

from fa_tutorial.exercises import forward_cases as cases
from fa_tutorial.exercises.chapter_5.inner_step import HALF, half_inputs, logits, one_tile_inputs, two_tiles_input
from fa_tutorial.exercises.forward_cases import attention_case, draw_qkv
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.exercises.harness_kernel import In, Launch, Out, launched_by
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot


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
        s = scale * dot(q, tl.trans(k))  # [BLOCK_M, BLOCK_N]
        offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        s = tl.where(offs_n[None, :] < S_k, s, -float("inf"))  # a key of zeros has the score 0
        m_new = tl.maximum(m, tl.max(s, axis=1))  # [BLOCK_M]
        p = tl.exp(s - m_new[:, None])  # [BLOCK_M, BLOCK_N]
        alpha = tl.exp(m - m_new)  # [BLOCK_M]
        l = alpha * l + tl.sum(p, axis=1)
        acc = alpha[:, None] * acc + dot(p.to(v.dtype), v)  # [BLOCK_M, D]
        m = m_new

    o = (acc / l[:, None]).to(o_desc.dtype)  # [BLOCK_M, D]
    o_desc.store([b, h, start_m, 0], o.reshape([1, 1, BLOCK_M, D]))  # rows from S_q on are left out


ACC, L = "alpha[:, None] * acc + dot", "alpha * l + tl.sum(p, axis=1)"
MISTAKES = {
    "keys past S_k count: they are zeros, and a score of 0 weighs exp(0 − m), so set the scores with offs_n ≥ S_k to −inf": (
        "s = tl.where(offs_n[None, :] < S_k, s, -float(\"inf\"))", "pass"),
    "real keys with the score 0 are left out: only offs_n tells which keys are missing": ("offs_n[None, :] < S_k", "s != 0.0"),
    "only the first head of the first batch entry is stored: b and h come from the program's number, and o's row is q's, which starts anew in each head": (
        "o_desc.store([b, h, start_m,", "o_desc.store([b, h, tl.program_id(0) * BLOCK_M,"),
    "k is not transposed: a descriptor gives [BLOCK_N, D], and tl.trans turns it": ("tl.trans(k)", "k"),
    "k is reshaped, which keeps the order of its elements: tl.trans turns it": ("tl.trans(k)", "k.reshape([D, BLOCK_N])"),
    "m stays as it starts: the next tile needs this one's m_new": ("        m = m_new\n", ""),
    "acc is not rescaled when the maximum grows: acc = alpha · acc + p v": (ACC, "acc + dot"),
    "l is not rescaled when the maximum grows: l = alpha · l + Σ p": (L, "l + tl.sum(p, axis=1)"),
    "the loop ends at S_q: a head has S_k keys": ("range(0, S_k, BLOCK_N)", "range(0, S_q, BLOCK_N)"),
    "the mask ends at S_q: a head has S_k keys": ("offs_n[None, :] < S_k", "offs_n[None, :] < S_q"),
    "the scale is missing: s = scale · q kᵀ": ("scale * dot(q", "dot(q"),
    "q kᵀ and p v are rounded to TF32: tl.dot rounds fp32 unless you say otherwise, the course's dot doesn't": [
        ("scale * dot(q", "scale * tl.dot(q"), (f"{ACC}(p", f"{ACC.replace('dot', 'tl.dot')}(p")],
    "acc isn't divided by l: o = acc / l": ("acc / l[:, None]", "acc"),
    "the tile of v comes from k_desc": ("v = v_desc", "v = k_desc"),
    "softmax is in base 2: scores in units of scale · q kᵀ take tl.exp, and tl.exp2 takes them times log₂ e": ("tl.exp(", "tl.exp2("),
}  # fmt: skip
CONDITIONS = {"half": HALF.replace(" (and bf16 on a GPU)", "") + ", and o has q's dtype"}


def launch(q, k, v, blocks, strides, scale, is_causal):
    (B, H, S_q, D), S_k = q.shape, k.shape[2]
    tensors = (*(In(x, lies) for x, lies in zip((q, k, v), strides, strict=False)), Out(q.shape, q.dtype, strides[3]))
    meta = {"BLOCK_M": blocks[0], "BLOCK_N": blocks[1], "D": D}
    return Launch((triton.cdiv(S_q, blocks[0]) * B * H,), (*tensors, H, S_q, S_k, scale), meta)


@cases.with_fresh(
    ((2, 2, 2, 15, 17, 16), torch.float32, cases.TILE, 3.0),
    ((1, 3, 3, 33, 20, 16), torch.float16, (32, 16, 16), 3.0),
    ((1, 1, 1, 20, 20, 16), torch.bfloat16, cases.TILE, 1.0),
    pad=0,
    layouts=("bshd",) * 4,
)
def inputs():
    yield from one_tile_inputs(
        "one tile gives softmax(scale · q kᵀ) v over all keys, in float32's digits: scale is an argument, multiply by dot, not by tl.dot, and cast nothing but p, to v's "
        "dtype, and o, to o_desc.dtype"
    )
    two = two_tiles_input()
    yield replace(two, otherwise=f"the second tile has the coordinates [b, h, BLOCK_N, 0], in k and in v; {two.otherwise}")
    yield attention_case(*logits(200, 0), "logits 200 in the first tile, 0 in the second", "m never falls, and p is exp(s − m)")
    own = "b and h are coordinates of their own, the same in q, k, v and o: h = (pid // row_blocks) % H, b = (pid // row_blocks) // H"
    yield attention_case(*draw_qkv(2, 3, 16, 16, 16), "B = 2, H = 3", own)
    sizes = "all but p and o stay float32, a descriptor's coordinates count rows, not tiles, and BLOCK_M, BLOCK_N, S_q, S_k may differ: a head has tl.cdiv(S_q, BLOCK_M) row blocks, o's row is q's, a step takes BLOCK_N keys at a time"
    on = "two heads, BLOCK_M = 64, BLOCK_N = 16, D = 32, S_q = 128, S_k = 48"
    yield attention_case(*draw_qkv(1, 2, 128, 48, 32), on, sizes, blocks=(64, 16, 32))
    ragged = "tiles may be ragged: keys below S_k count, none from S_k on exists, and a head has tl.cdiv(S_q, BLOCK_M) row blocks"
    yield attention_case(*draw_qkv(1, 2, 32, 20, 16), "two heads, S_q = 32, S_k = 20, BLOCK_N = 16", ragged)
    yield attention_case(*draw_qkv(1, 2, 20, 16, 16), "two heads, S_q = 20, S_k = 16, BLOCK_M = 16", ragged)
    low = "scores may be as low as −2³⁰: −inf stands where a key is missing, before the maximum is taken, and where m starts"
    yield attention_case(*logits(-(2.0**30), -(2.0**30), S_k=20), "S_k = 20, BLOCK_N = 16, all logits −2³⁰", low)
    yield from half_inputs()


@launched_by
def with_descriptors(kernel, grid, *args, **meta):
    """The kernel gets a descriptor in place of each of its first four arguments, the tensors q, k, v and o."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    rows = (meta["BLOCK_M"], meta["BLOCK_N"], meta["BLOCK_N"], meta["BLOCK_M"])
    descriptors = [TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, n, x.shape[3]]) for x, n in zip(args[:4], rows, strict=True)]
    kernel[grid](*descriptors, *args[4:], **meta)


def refused(kernel):
    """The kernel loads and stores by itself, and what cases.widened asks."""
    if {"load_tile", "store_tile"} & set(kernel.fn.__code__.co_names):
        return "load_tile and store_tile do what you should write: the .load, .reshape and .store of the descriptors"
    kernel, launched = with_descriptors(kernel), launch(*attention_case(*(x.half() for x in draw_qkv(1, 1, 16, 16, 16)), "").args)
    return cases.widened(kernel, launched)


EXERCISE = Exercise(
    task="Write the forward with tensor descriptors of shape (B, H, S, D) and tiles [1, 1, BLOCK_M or BLOCK_N, D]: full attention, any S_q "
    "and S_k.",
    conditions=CONDITIONS,
    hints=(
        "Coordinates count elements: row_block · BLOCK_M for q and o, start_n for k and v. There are no pointers, strides or masks of "
        "loads left.",
        "Keys past S_k are zeros. What does exp make of their scores? tl.where(start_n + tl.arange(0, BLOCK_N)[None, :] < S_k, s, −inf), "
        "as in exercise 5.4.",
        "x_desc.load([b, h, row, 0]) gives a tile of shape [1, 1, rows, D], and .reshape([rows, D]) drops the ones. o_desc.store takes "
        "the same coordinates, and a tile of shape [1, 1, BLOCK_M, D].",
    ),
    solution=flash_forward_descriptor_kernel,
    reasoning="The shape (B, H, S, D) is what stops a tile at its head's end: the hardware compares each coordinate with its own size. A "
    "2-D descriptor of (B · H · S, D) knows one end alone, and its ragged tiles hold rows of the next head, and overwrite them at the "
    "store. The zeros that stand in are harmless in q and v; as keys they have the score 0, so the mask on the scores stays.",
    more="The package's forward, tuned/forward.py, takes descriptors or Heads, because tiles.load_tile loads from both.",
    inputs=inputs,
    truth=cases.o_truth,
    rule="o = softmax(scale · q kᵀ) v, for any S_q and S_k",
    mistakes=MISTAKES,
    launch=launch,
    tolerance=cases.tolerance,
    refused=refused,
    adapt=with_descriptors,
)
