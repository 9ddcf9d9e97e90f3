"""Exercise 8.3, flash_forward_descriptor_kernel."""

import math

import torch
import torch.nn.functional as F

from fa_tutorial import hardware
from fa_tutorial.exercises.forward_twin import forward_twin
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import exp32, generator
from fa_tutorial.exercises.running import UNWRITTEN
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


_ROWS = "a tile's coordinate counts rows, not tiles"
_START = "a program's rows start at row_block · BLOCK_M"
_WHERE = "h = (pid // row_blocks) % H, b = (pid // row_blocks) // H"
_OWN = f"b and h are coordinates of their own, 0 and 1; {_WHERE}"
_FLAT = "a row past S is 0, and not a row of the next head"
_BLOCKS = "a head has tl.cdiv(S_q, BLOCK_M) row blocks, and the descriptor drops what a store puts past S_q"
_GROWS = "is not rescaled when the maximum grows"
MISTAKES = {
    "scale_ignored": "scale is forgotten: s = scale · q kᵀ",
    "scale_twice": "scale is applied twice",
    "scale_own": "the scale is computed in the kernel: it is an argument, which the caller may choose",
    "not_divided": "acc is not divided: o = acc / l",
    "k_turned": "k is not transposed: a descriptor gives [BLOCK_N, D], and tl.trans turns it",
    "v_turned": "v is transposed: p v",
    "k_for_v": "v is loaded from k_desc",
    "v_for_k": "k is loaded from v_desc",
    "last_hidden": "a key that is there is hidden: the mask is start_n + tl.arange(0, BLOCK_N) < S_k",
    "no_exp": "the scores themselves weigh v: p = exp(s − m)",
    "base_2": "the base is 2: tl.exp2(s) is 2 to the power s, and exp(s) is exp2(s · log2(e))",
    "log2_e": "log₂ e is in the scores, but the exponential is e to a power, as forward.softmax_step's is: scale them by scale alone",
    "over_queries": "the softmax runs over the queries: a row's maximum and sum run over the keys, axis 1",
    "next_row kv": f"the second tile of k and v is loaded from row 1: {_ROWS}",
    "next_row k": f"the second tile of k is loaded from row 1: {_ROWS}",
    "next_row v": f"the second tile of v is loaded from row 1: {_ROWS}",
    "past_end kv": "the second tile of k and v is past the end, and 0: the coordinates are [b, h, row, 0], and row counts rows, not tiles",
    "same_tile kv": "every step loads the first tile of k and v: their row is start_n",
    "same_tile k": "every step loads the first tile of k: its row is start_n",
    "same_tile v": "every step loads the first tile of v: its row is start_n",
    "acc_kept": f"acc {_GROWS}: acc = alpha · acc + p v",
    "l_kept": f"l {_GROWS}: l = alpha · l + Σ p",
    "both_kept": "neither acc nor l is rescaled when the maximum grows",
    "last_block": "only the last tile counts: is m kept from step to step?",
    "first_block": "only the first tile counts: the loop runs to S_k",
    "keys_to_S_q": "keys from S_q on do not count: the loop runs to S_k, and the mask lets all keys below S_k through",
    "keys_dropped": "the ragged last tile of keys is left out: the loop goes on while start_n < S_k",
    "keys_zeros": "keys past S_k are zeros, and a score of 0 still weighs exp(0 − m): the mask on the scores stays, with −inf",
    "zero_joins": "the score 0 of a key past S_k joins the maximum, and every p underflows: hide the scores before the maximum is taken",
    "first_q": f"every program loads the first rows of q: {_START}",
    "first_place": f"every program stores to the first rows of o: {_START}, in o too",
    "rows_by_tiles": f"the second block of rows is never stored: {_START}, in o too, and {_ROWS}",
    "rows_dropped": f"the ragged last rows are never stored: {_BLOCKS}",
    "unshifted": "exp overflows: subtract the row's maximum before exp",
    "from_zero": "every p underflows to 0: m starts at −inf, not at 0 or another finite value",
    "falls": "the maximum is that of the last tile alone, so alpha overflows: m_new = max(m, the tile's maximum)",
    **{f"first {names} {dim}": f"{words} loaded from {what} 0 by every program: {_OWN}"
       for dim, what in ((1, "head"), (0, "batch entry"))
       for names, words in (("qkv", "q, k and v are"), ("kv", "k and v are"), ("q", "q is"), ("k", "k is"), ("v", "v is"))},
    **{f"zero {names} {dim}": f"{words} of {what} 0: {_OWN}; {_FLAT}"
       for dim, what in ((1, "head 1 are"), (0, "batch entry 1 are"), (2, "all heads but the first are"))
       for names, words in (("kv", "k and v"), ("q", "the rows of q"))},
    **{f"stored o {dim}": f"only {what} 0 of o is stored. Are b and h swapped, or is one missing? {_WHERE}. And {_FLAT}"
       for dim, what in ((1, "head"), (0, "batch entry"))},
    **{f"swap {names}": f"batch and head are exchanged in {words}: // H gives b, % H gives h"
       for names, words in (("kv", "k and v"), ("k", "k"), ("v", "v"), ("q", "q"), ("qkv", "q, k and v, or in o"))},
    "half_o": "o is rounded to fp16: its dtype is o_desc.dtype",
    "half_acc": "acc is kept in fp16, which ends at 65504: m, l and acc are float32",
    "half_scores": "the scores overflow: keep what tl.dot returns in float32, fp16 ends at 65504",
    "half_scaled": "the scaled scores overflow: they too stay in float32, fp16 ends at 65504",
    "half_scale": "scale · q is rounded to fp16, and the errors are as large as the scores: scale what tl.dot returns, in float32",
}  # fmt: skip

CONDITIONS = {
    "half": "for fp16 the scores, m, l and acc are float32, and o has the descriptor's dtype",
    "views": "the tensors may lie in memory in another order: the descriptors know their strides",
}


def _loaded(x, block, kind, dim):
    """What the tiles of x hold where a mistake of this kind is made in their coordinates."""
    if kind == "first":
        return x.narrow(dim, 0, 1).expand_as(x)
    if kind == "zero":
        is_first = torch.stack(torch.meshgrid(*map(torch.arange, x.shape[:2]), indexing="ij")) == 0
        return x * (is_first.all(0) if dim == 2 else is_first[dim])[..., None, None]
    if kind == "swap":
        B, H = x.shape[:2]
        return F.pad(x, (0, 0, 0, 0, 0, max(B - H, 0), 0, max(H - B, 0))).transpose(0, 1)[:B, :H]
    step = {"next_row": 1, "past_end": block * block, "same_tile": 0}[kind]
    tiles = [F.pad(x[:, :, step * t : step * t + block], (0, 0, 0, block))[:, :, :block] for t in range(triton.cdiv(x.shape[2], block))]
    return torch.cat(tiles, 2)[:, :, : x.shape[2]]


def twin(q, k, v, scale, block_m, block_n, is_view, mistake=None):
    kind, names, dim = (*(mistake or "").split(" "), "", "0")[:3]
    dim = int(dim or 0)
    q, k, v = (_loaded(x, block_n, kind, dim) if name in names else x for name, x in zip("qkv", (q, k, v), strict=True))
    k, v = {"k_turned": (k.mT, v), "v_turned": (k, v.mT), "v_for_k": (v, v)}.get(mistake, (k, v))
    k, v = (k[:, :, :-1], v[:, :, :-1]) if mistake == "last_hidden" else (k, v)
    s = scale * (q.double() @ k.double().mT)
    if mistake == "no_exp":
        return s @ v.double()
    if mistake == "zero_joins" and k.shape[2] % block_n:
        p = exp32(s - s.amax(-1, keepdim=True).clamp(min=0))
        return p @ v.double() / p.sum(-1, keepdim=True)
    if mistake == "half_scaled":
        q, scale, mistake = (q * scale).to(q.dtype), 1.0, "half_scores"
    own_scale = {"base_2": scale * math.log(2), "log2_e": scale / math.log(2)}.get(mistake, scale)
    o, _ = forward_twin(q, k, v, block_m, block_n, False, own_scale, mistake)
    if mistake == "rows_by_tiles":
        o[:, :, block_m + triton.cdiv(q.shape[2], block_m) - 1 :] = UNWRITTEN
    if mistake == "half_o":
        return o.half()
    if kind == "stored":
        o.narrow(dim, 1, o.shape[dim] - 1).fill_(UNWRITTEN)
    return o


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
    return 0.0, ({torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 5e-5}[q.dtype] + noise) * float(v.double().abs().max())


def inputs():
    def draw(B, H, S_q, S_k, seed=None):
        seed = seed or torch.Generator().manual_seed(0)
        return [torch.randn(B, H, S, 16, generator=seed) for S in (S_q, S_k, S_k)]

    def tile(qkv, on, otherwise, scale=0.25, edge=""):
        return case(*qkv, scale, 16, 16, False, on=on, otherwise=otherwise, edge=edge)

    yield tile(
        draw(1, 1, 16, 16),
        "S_q = S_k = D = 16, one tile",
        'one tile gives softmax(scale · q kᵀ) v, stored whole; every tile that is loaded is reshaped to [rows, D]; float32 keeps its digits by dot, or by input_precision="ieee", '
        "and if p, v and o are cast to v.dtype and o_desc.dtype, never to tl.float16 by name",
    )
    q, k, v = draw(1, 1, 16, 32)
    k[:, :, 16:] *= 3  # most rows' maximum grows
    yield tile((q, k, v), "S_q = 16, S_k = 32, two tiles of keys", "a second tile joins m, l and acc as in exercise 5.4")
    yield tile(draw(1, 1, 32, 16), "S_q = 32, two programs", f"{_START}, in q and in o, and a head has tl.cdiv(S_q, BLOCK_M) of them")
    yield tile(draw(1, 1, 16, 16), "scale = 0.5, D = 16", MISTAKES["scale_own"], scale=0.5)

    def logits(*values):
        """All scores of a tile of keys are one of these numbers, if the scale is 0.25."""
        q, _, v = draw(1, 1, 16, 16 * len(values))
        return torch.ones_like(q), torch.cat([torch.full_like(q, value / 4) for value in values], 2), v

    yield tile(logits(800), "all logits 800, scale = 1", MISTAKES["unshifted"], scale=1.0)
    yield tile(logits(200), "all logits 200, scale = 0.25", "exp under- or overflows: m is the maximum of scale · q kᵀ, not of q kᵀ")
    yield tile(logits(-200), "all logits −200", MISTAKES["from_zero"])
    yield tile(logits(200, 0), "logits 200 in the first tile, 0 in the second", MISTAKES["falls"])
    yield tile(draw(1, 2, 16, 16), "two heads", _OWN)
    yield tile(draw(2, 1, 16, 16), "two batch entries", _OWN)
    yield tile(draw(2, 2, 16, 16), "B = H = 2", "pid // row_blocks is b · H + h")
    yield tile(draw(2, 3, 16, 16), "B = 2, H = 3", f"a program's number is (b · H + h) · row_blocks + row_block: {_OWN}")
    # Two heads, so that the next head lies past a head's end.
    yield tile(
        draw(1, 2, 16, 20),
        "two heads, S_k = 20, BLOCK_N = 16",
        "the last tile of keys may be ragged: no key from S_k on exists, nor S_k itself",
    )
    q, k, v = logits(-200, -200)
    yield tile((q, k[:, :, :20], v[:, :, :20]), "S_k = 20, BLOCK_N = 16, all logits −200", MISTAKES["zero_joins"])
    yield tile(draw(1, 2, 20, 16), "two heads, S_q = 20, BLOCK_M = 16", f"the last block of rows may be ragged: {_BLOCKS}")
    yield tile(draw(1, 1, 28, 28), "S_q = S_k = 28", "ragged ends on both sides")

    q, k, v = (x.half() for x in draw(1, 1, 16, 16))
    one, zero = torch.ones_like(q), torch.zeros_like(q)
    half = {"edge": "half"}
    yield tile((zero, zero, 6e4 * one), "fp16, equal scores, all of v 60,000", MISTAKES["half_acc"], **half)
    yield tile((64 * one, 64 * one, v), "fp16, all of q and k 64, all of q kᵀ 65536", MISTAKES["half_scores"], **half)
    yield tile((128 * one, 128 * one, v), "fp16, all of q and k 128, scale = 1 / 4, all scores 65536", MISTAKES["half_scaled"], **half)
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
    twin=twin,
    mistakes=MISTAKES,
    launch=launch,
    tolerance=tolerance,
    adapt=lambda kernel: WithDescriptors(kernel) if hasattr(kernel, "fn") else kernel,
)
