import numpy as np
import torch

from fa_tutorial import hardware, reference
from fa_tutorial.exercises.chapter_8.loop_length import not_counted, too_long
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Out, Trace, buffer_of, check_begun, run_poisoned
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, heads, load_tile
from fa_tutorial.tuned import steps


@triton.jit
def attend(
    q_tile, k, v, m, l, acc, b, h_k, start_n, last_seen, S_k, D, scale_log2,
    MASK: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A block of keys joins m, l and acc, in as few instructions as step 3's. Returns m, l, acc."""
    k_tile = load_tile(k, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    s = dot(q_tile, tl.trans(k_tile))  # [BLOCK_M, BLOCK_N]
    if MASK:
        offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        s = tl.where(offs_n[None, :] <= last_seen[:, None], s, -float("inf"))
    m_new = tl.maximum(m, tl.max(s, axis=1) * scale_log2)  # [BLOCK_M]
    shift = m_new
    if MASK:  # only here may a row have seen no key
        shift = tl.where(m_new == -float("inf"), 0.0, m_new)
    p = tl.exp2(s * scale_log2 - shift[:, None])  # [BLOCK_M, BLOCK_N]
    alpha = tl.exp2(m - shift)  # [BLOCK_M]
    l = alpha * l + tl.sum(p, axis=1)
    acc = acc * alpha[:, None]  # [BLOCK_M, BLOCK_D]
    v_tile = load_tile(v, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    acc = dot(p.to(v_tile.dtype), v_tile, acc)
    return m_new, l, acc


@triton.jit
def unseen_m(x, m_ptr, ATTEND: tl.constexpr):
    """m after one block of 16 keys of which no row sees one. x: q, k and v, Heads with D = 16."""
    tile, l = load_tile(x, 0, 0, 0, 16, 16, 16, 16), tl.zeros((16,), tl.float32)
    m, _, _ = ATTEND(tile, x, x, l - float("inf"), l, tile, 0, 0, 0, l.to(tl.int32) - 1, 16, 16, 1.0, True, 16, 16)
    tl.store(m_ptr + tl.arange(0, 16), m)


MISTAKES = {
    "a row that has seen no key gives NaN: m_new is −inf there, and −inf − (−inf) is NaN, so the loop with a mask needs a guard": (
        "shift = tl.where(m_new == -float(\"inf\"), 0.0, m_new)", "shift = m_new"),
    "where MASK is True, keys past last_seen must be hidden": ("    if MASK:\n", "    if not MASK:\n"),
    "m_new is the maximum of s, and s · scale_log2 is subtracted from: both must be scaled": (
        "tl.max(s, axis=1) * scale_log2", "tl.max(s, axis=1)"),
    "s is not scaled: p = 2^(s · scale_log2 − m_new)": ("s * scale_log2 - shift", "s - shift"),
    "p and alpha are powers of 2, not of e: scale_log2 is scale · log₂ e": ("tl.exp2(", "tl.exp("),
    "q is scaled and rounded: it is multiplied as it is, and the scores are scaled": [
        ("dot(q_tile, ", "dot((q_tile * scale_log2).to(q_tile.dtype), "), ("axis=1) * scale_log2", "axis=1)"), ("s * scale_log2 - shift", "s - shift")],
    "acc is not rescaled when the maximum grows": ("acc * alpha[:, None]", "acc"),
}  # fmt: skip
STEP = "descriptors"  # step 3 is this kernel with steps.LARGER


def adapt(answer):
    """The jitted function as attention of tensors, by step 3's kernel."""
    check_begun(answer)
    kernel = steps.kernel(STEP, attend=answer)

    @np.errstate(all="ignore")  # the interpreter computes with NumPy, which would warn of every inf and NaN
    def on_tensors(q, k, v, is_causal):
        (B, H, S_q, D), S_k = q.shape, k.shape[2]
        tensors = *(In(x, None, True) for x in (q, k, v)), Out(q.shape, q.dtype, None, True), Out((B, H, S_q), torch.float32)
        buffers = [buffer_of(name, x) for name, x in zip(("q", "k", "v", "o", "lse"), tensors, strict=True)]
        args, meta = [*buffers, H, H, S_q, S_k, D, D**-0.5], {"IS_CAUSAL": is_causal, "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_D": D}
        [out] = run_poisoned(kernel, (triton.cdiv(S_q, 16) * B * H,), args, meta, Trace(buffers), (float("nan"),))
        return out["o"], out["lse"]

    return on_tensors


@np.errstate(all="ignore")
def refused(answer):
    x, m = torch.zeros(1, 1, 16, 16, device=hardware.device()), torch.empty(16, device=hardware.device())
    unseen_m[(1,)](heads(x), m, answer)
    if m[0] != -float("inf"):
        return f"m stays −∞ for a row that has seen no key: yours is {m[0].item():.4g}"
    return too_long("step 3's", STEP, attend=answer)


def inputs():
    fixed = torch.Generator().manual_seed(8)

    def of(S_q, S_k, is_causal, words, otherwise="", factor=1.0, draw=fixed, dtype=torch.float32):
        q, k, v = (torch.randn(1, 2, S, 16, generator=draw).to(hardware.device(), dtype) for S in (S_q, S_k, S_k))
        on = f"{'causal, ' * is_causal}{S_q} queries, {S_k} keys{words}"
        return case(factor * q, k, v, is_causal, on=on, otherwise=otherwise, fresh=draw is not fixed)

    first = {
        "o": "one block of head h_k: p = 2^(s · scale_log2 − m_new), l = alpha · l + Σ p, acc = alpha · acc + p v, all float32, by dot, not tl.dot; "
        "it returns m_new, l, acc",
        "lse": "m_new is in units of s · scale_log2, and l = alpha · l + Σ p",
    }
    yield of(16, 16, False, "", first)
    yield of(16, 48, False, "", "needed: k and v from row start_n on; l and acc that shrink by alpha, a float32, when the maximum grows")
    yield of(32, 40, True, "", "needed where MASK is True: keys up to last_seen and no others, and m that never falls")
    yield of(40, 20, True, "", "the first 20 rows see no key: their m stays −inf, their l and acc 0")
    yield of(32, 40, True, ", large scores", "scores may be large: m is the maximum of s · scale_log2", factor=40.0)
    low = of(32, 32, True, ", scores of −2³⁰", "scores may be as low as −2³⁰, and what is subtracted is m itself")
    low.args[0].fill_(2.0**14), low.args[1].fill_(-(2.0**14))
    yield low
    high = of(
        32,
        32,
        True,
        ", each key far above the one before",
        "m is the maximum of the keys that a row sees: a hidden one may be far above them",
    )
    high.args[0][..., 0], high.args[1][..., 0] = 1.0, 600.0 * torch.arange(32, device=high.args[1].device)
    yield high
    yield of(
        16,
        16,
        False,
        ", fp16",
        "only p is rounded, for p v: q and k are multiplied as they are, and l adds p before it is rounded, in float32",
        dtype=torch.float16,
    )
    yield of(40, 56, True, ", random", draw=generator())


EXERCISE = Exercise(
    task="Make attend's loop without a mask as short as step 3's, with right results.",
    hints=(
        "What does the loop do for each score that could be done once a row, once in the loop with a mask, or by another instruction? "
        "A thread has 64 scores of step 3's tile, so an instruction too many for each score shows as 64 in the counts.",
        "Without a mask, each row sees every key: no comparison is needed, and no guard. Where does a multiplication go into a multiply-add "
        "(8.3)?",
        "Mask only under `if MASK:`. Take the maximum of s, scale it, and subtract it in the exponent, s * scale_log2 − m. Guard a row by "
        "its shift, as in 8.2, and only under `if MASK:`.",
    ),
    solution=attend,
    reasoning="Each thread has 64 scores of the larger tile, so what is done for a score counts 64 times, and what is done for a row two or four times. "
    "A constant MASK makes two loops, and the loop that runs most often pays for neither mask nor guard.",
    inputs=inputs,
    truth=lambda q, k, v, is_causal: reference.attention(q, k, v, is_causal=is_causal),
    rule="o = softmax(scale · q kᵀ) v, and 0 for a row that sees no key",
    mistakes=MISTAKES,
    parts=("o", "lse"),
    tolerance=lambda args, part: (1e-5, 1e-5) if part == "lse" else (1e-2, 1e-2) if args[0].dtype == torch.float16 else (3e-5, 1e-5),
    adapt=adapt,
    refused=refused,
    note=lambda answer: not_counted(STEP),
)
