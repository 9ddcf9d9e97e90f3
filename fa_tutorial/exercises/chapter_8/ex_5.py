"""Exercise 8.5, attend: a right but slow loop, as short as step 3's."""

import math

import numpy as np
import torch

from fa_tutorial import hardware, reference, sass
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Out, Stray, Trace, buffer_of, check_begun, run_poisoned
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import Wrong, show
from fa_tutorial.tiles import dot, heads, load_tile
from fa_tutorial.tuned import steps

triton = hardware.require_triton("Exercise 8.5")
import triton.language as tl  # noqa: E402


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
def first_m(q, k, m_ptr, ATTEND: tl.constexpr, MASK: tl.constexpr, N: tl.constexpr):
    """m after one block of keys, [N], of which a row sees all without MASK and none with it; scale_log2 = 1/2. k is v, too.

    q, k: Heads with D = N.
    """
    l, last_seen = tl.zeros((N,), tl.float32), tl.full((N,), -1 if MASK else N - 1, tl.int32)
    q_tile = load_tile(q, 0, 0, 0, N, N, N, N)
    m, _, _ = ATTEND(q_tile, k, k, l - float("inf"), l, tl.zeros((N, N), tl.float32), 0, 0, 0, last_seen, N, N, 0.5, MASK, N, N)
    tl.store(m_ptr + tl.arange(0, N), m)


MISTAKES = {
    "a row that has seen no key gives NaN: m_new is −inf there, and −inf − (−inf) is NaN, so the loop with a mask needs a guard": (
        "shift = tl.where(m_new == -float(\"inf\"), 0.0, m_new)", "shift = m_new"),
    "keys past last_seen are not hidden where MASK is True, and there some rows don't see all keys": ("    if MASK:\n", "    if not MASK:\n"),
    "m_new is the maximum of s, and s · scale_log2 is subtracted from: both must be scaled": (
        "tl.max(s, axis=1) * scale_log2", "tl.max(s, axis=1)"),
    "m is the maximum of s in what you return: the kernel makes lse of m in units of s · scale_log2": [
        ("tl.max(s, axis=1) * scale_log2", "tl.max(s, axis=1)"), ("s * scale_log2 - shift[:, None]", "(s - shift[:, None]) * scale_log2"),
        ("tl.exp2(m - shift)", "tl.exp2((m - shift) * scale_log2)")],
    "p and alpha are in base e: scale_log2 holds log₂ e already, so both take tl.exp2": ("tl.exp2", "tl.exp"),
    "s is not scaled: p = 2^(s · scale_log2 − m_new)": ("s * scale_log2 - shift", "s - shift"),
    "l adds p in v's dtype: it adds p as it is, in float32": ("tl.sum(p, axis=1)", "tl.sum(p.to(k_tile.dtype), axis=1)"),
    "p is rounded to fp16 before l adds it: only p v takes p in v's dtype": ("    l = alpha", "    p = p.to(tl.float16)\n    l = alpha"),
    "q is scaled and rounded before q kᵀ: multiply it as it is, and scale s in the exponent": [
        ("dot(q_tile, tl", "dot((q_tile * scale_log2).to(q_tile.dtype), tl"), ("axis=1) * scale_log2", "axis=1)"), ("s * scale_log2 - shift", "s - shift")],
    "l is not rescaled when the maximum grows": ("alpha * l + tl.sum", "l + tl.sum"),
    "alpha multiplies p v, too: it rescales acc before p v is added": (
        "acc = dot(p.to(v_tile.dtype), v_tile, acc)", "acc = dot(p.to(v_tile.dtype), v_tile, acc) * alpha[:, None]"),
    "acc is not rescaled when the maximum grows": ("acc * alpha[:, None]", "acc"),
    "the scores have the 11 bits of TF32: dot multiplies fp32 as it is, tl.dot doesn't": ("s = dot(", "s = tl.dot("),
}  # fmt: skip
STRAY = "load_tile must know S_k where a tile may run past the last key: None loads all BLOCK_N rows"
PLACE = "a tile is one of batch b and head h_k, from key start_n on: load_tile(k, b, h_k, start_n, …), and v alike"
FLOAT32 = "only p v takes p in v's dtype: q is multiplied as it is, and the scores, l's sum of p, and alpha are float32"
KEPT = "a row keeps its m, l and acc where it sees no key of a block: m_new is the larger of m and the block's maximum"
STEP, MORE = "descriptors", 12  # step 3 is this kernel with steps.LARGER; an edit makes ptxas arrange the whole loop anew
COUNTED = {
    "MUFU.EX2": "exponentials", "FFMA": "multiply-adds", "FMUL": "multiplications", "FADD": "additions", "FSETP": "comparisons",
    "ISETP": "integer comparisons, as of a mask", "FSEL": "selects", "LDL": "loads of spilled registers",
}  # fmt: skip


def adapt(answer):
    """The jitted function as attention of tensors, by step 3's kernel."""
    check_begun(answer)
    kernel = steps.kernel(STEP, attend=answer)

    def on_tensors(q, k, v, is_causal):
        (B, H, S_q, D), S_k = q.shape, k.shape[2]
        given = {name: In(x, None, True) for name, x in (("q", q), ("k", k), ("v", v))}
        made = {"o": Out(q.shape, q.dtype, None, True), "lse": Out((B, H, S_q), torch.float32)}
        buffers = [buffer_of(name, arg) for name, arg in (given | made).items()]
        args = [*buffers, H, H, S_q, S_k, D, D**-0.5]
        meta = {"IS_CAUSAL": is_causal, "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_D": D}
        try:  # the interpreter computes with NumPy, which would warn of every inf and NaN
            with np.errstate(all="ignore"):
                [out] = run_poisoned(kernel, (triton.cdiv(S_q, 16) * B * H,), args, meta, Trace(buffers), (math.nan,))
        except Stray as error:
            raise Wrong(f"{STRAY if S_k % 16 else PLACE}. It {error.access}") from None  # whole tiles end at S_k
        return out["o"], out["lse"]

    return on_tensors


def counts(answer):
    """The rows of sass.counted for `answer` and for step 3; None where Triton can't compile for a Hopper GPU."""
    try:
        aim = sass.counted(STEP, steps.LARGER)
    except (ValueError, RuntimeError):
        return None
    return sass.counted(STEP, steps.LARGER, attend=answer), aim


def refused(answer):
    k = torch.arange(16.0, device=hardware.device()).view(1, 1, 16, 1).expand(1, 1, 16, 16)
    q, m = torch.full_like(k, 1 / 16), torch.empty(16, device=k.device)
    first_m[(1,)](heads(q), heads(k), m, answer, True, 16)
    if m[0] != -math.inf:
        return f"m stays −∞ for a row that has seen no key: yours is {show(m[0].item())}, and a score may be lower"
    first_m[(1,)](heads(q), heads(k), m, answer, False, 16)
    if (m - 7.5).abs().max() > 1e-3:  # the scores of each row are 0 to 15
        return f"m is the maximum of s · scale_log2: for scores of 0 to 15 and scale_log2 = 0.5, yours is {m[0].item():.4g}, want 7.5"
    try:
        found = counts(answer)
    except ValueError as error:
        return str(error)
    if found is None or all(mine["loop"] <= aim["loop"] + MORE for mine, aim in zip(*found, strict=True)):
        return ""
    told = []
    for mine, aim in zip(*found, strict=True):
        more = {words: mine[op] - aim[op] for op, words in COUNTED.items() if mine[op] > aim[op] + 2}
        kinds = ", ".join(f"{n} more {words}" for words, n in more.items()) or "no more floating-point arithmetic"
        told.append(f"at D = {mine['D']} the loop has {mine['loop']} instructions, step 3's {aim['loop']}, with {kinds}")
    return "; ".join(told)


def note(answer):
    if not (found := counts(answer)):
        return "Triton can't compile for a Hopper GPU here, so the instructions aren't counted"
    left = max(row["FSETP"] for row in found[0])
    guards = f"your loop without a mask still makes {left} comparisons, as of a row's guard, and each row sees a key there: guard under `if MASK:`"
    return guards if left else ""


def truth(q, k, v, is_causal):
    return reference.attention(q, k, v, is_causal=is_causal)


def tolerance(args, part):
    """lse never goes through v's dtype, so it shows what was rounded to it."""
    if part == "o" and args[0].dtype == torch.float16:
        return 1e-2, 1e-2
    return 1e-4 if args[0].abs().max() > 50 else 1e-5, 1e-5


def inputs():
    fixed = torch.Generator().manual_seed(8)

    def of(S_q, S_k, is_causal, on, otherwise="", factor=1.0, draw=fixed, dtype=torch.float32):
        q, k, v = (torch.randn(1, 2, S, 16, generator=draw).to(hardware.device(), dtype) for S in (S_q, S_k, S_k))
        return case(factor * q, k, v, is_causal, on=on, otherwise=otherwise, fresh=draw is not fixed)

    yield of(16, 16, False, "16 queries, 16 keys", "each row sees every key, p = 2^(s · scale_log2 − m), and s, p, l, acc are float32")
    yield of(16, 48, False, "16 queries, 48 keys", "when the maximum grows, l and acc shrink by alpha, which stays in float32")
    yield of(16, 20, False, "16 queries, 20 keys", "the ragged block has a mask: its keys past last_seen are hidden")
    yield of(32, 32, True, "causal, 32 queries, 32 keys", "where MASK is True, a row sees the keys up to its last_seen")
    yield of(32, 40, True, "causal, 32 queries, 40 keys", KEPT)
    yield of(40, 20, True, "causal, 40 queries, 20 keys", "the first 20 rows see no key: their m stays −inf, their l and acc 0")
    yield of(32, 40, True, "causal, large scores", "scores may be large: m is the maximum of s · scale_log2", factor=100.0)
    for words, is_causal in (("", False), ("causal, ", True)):
        low = of(16, 16, is_causal, f"{words}16 queries, 16 keys, scores of −2³⁰", "scores may be as low as −2³⁰")
        low.args[0].fill_(2.0**14), low.args[1].fill_(-(2.0**14))
        yield low
    yield of(16, 48, False, "fp16, 16 queries, 48 keys", FLOAT32, dtype=torch.float16)
    yield of(40, 56, True, "causal, random", draw=generator())


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
    reasoning="Each thread has 64 scores of the larger tile, so what is done for a score counts 64 times, and what is done for a row twice. "
    "A constant MASK makes two loops, and the loop that runs most often pays for neither mask nor guard.",
    inputs=inputs,
    truth=truth,
    rule="o = softmax(scale · q kᵀ) v, and 0 for a row that sees no key",
    mistakes=MISTAKES,
    parts=("o", "lse"),
    tolerance=tolerance,
    adapt=adapt,
    refused=refused,
    note=note,
)  # fmt: skip
