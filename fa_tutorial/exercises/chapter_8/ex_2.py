import numpy as np
import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_8.loop_length import not_counted, too_long
from fa_tutorial.exercises.harness import ANYTHING, Exercise, case
from fa_tutorial.exercises.harness_kernel import check_begun
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import INF, Wrong, chain
from fa_tutorial.matmul import tl, triton


@triton.jit
def softmax_step(s, m, l, scale_log2):
    """A tile of scores that are not scaled joins m and l. Returns p, m_new, l_new, alpha."""
    m_new = tl.maximum(m, tl.max(s, axis=1) * scale_log2)  # [BLOCK_M]
    shift = tl.where(m_new == -float("inf"), 0.0, m_new)  # −inf − (−inf) would be NaN
    p = tl.exp2(s * scale_log2 - shift[:, None])  # [BLOCK_M, BLOCK_N]
    alpha = tl.exp2(m - shift)  # [BLOCK_M]
    return p, m_new, alpha * l + tl.sum(p, axis=1), alpha


ROWS, KEYS = 2, 4
ORDER = "it returns p, [BLOCK_M, BLOCK_N], and m_new, l_new, alpha, [BLOCK_M] each, in this order"


@triton.jit
def run_step(s_ptr, m_ptr, l_ptr, p_ptr, state_ptr, scale_log2, STEP: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """One step of one tile. state: m_new, l_new and alpha, (3, ROWS)."""
    rows = tl.arange(0, ROWS)
    tile = rows[:, None] * KEYS + tl.arange(0, KEYS)[None, :]
    p, m, l, alpha = STEP(tl.load(s_ptr + tile), tl.load(m_ptr + rows), tl.load(l_ptr + rows), scale_log2)
    tl.store(p_ptr + tile, p)
    tl.store(state_ptr + rows, m)
    tl.store(state_ptr + ROWS + rows, l)
    tl.store(state_ptr + 2 * ROWS + rows, alpha)


def adapt(step):
    """The jitted step as a function of tensors."""
    check_begun(step)

    def on_tensors(s, m, l, scale_log2):
        p, state = torch.empty_like(s), torch.empty(3, ROWS, device=s.device)
        try:  # the interpreter computes with NumPy, which would warn of every inf and NaN
            with np.errstate(all="ignore"):
                run_step[(1,)](s, m, l, p, state, scale_log2, STEP=step, ROWS=ROWS, KEYS=KEYS)
        except Exception as error:
            root = chain(error)[-1]
            if "outside of the scope of a kernel" in f"{root}":
                raise Wrong("stops, because triton was imported before fa_tutorial: restart, and import fa_tutorial first") from None
            raise Wrong(f"stops with {type(root).__name__}: {root} ({ORDER})") from None
        return p, *state

    return on_tensors


M_NEW, SHIFT = "tl.maximum(m, tl.max(s, axis=1) * scale_log2)", 'tl.where(m_new == -float("inf"), 0.0, m_new)'
P, ALPHA, L_NEW = "tl.exp2(s * scale_log2 - shift[:, None])", "tl.exp2(m - shift)", "alpha * l + tl.sum(p, axis=1)"
MISTAKES = {
    "p and alpha are in base e: scale_log2 holds log₂ e already, so both take tl.exp2": ("tl.exp2", "tl.exp"),
    "p is in base e: scale_log2 holds log₂ e already, so it takes tl.exp2": (P, P.replace("exp2", "exp")),
    "s is not scaled in the exponent: p = 2^(s · scale_log2 − m_new)": (P, "tl.exp2(s - shift[:, None])"),
    "nothing is scaled: s arrives without its scale, so the maximum and the exponent both multiply it by scale_log2": (" * scale_log2", ""),
    "alpha is in base e: use tl.exp2 there, too": (ALPHA, "tl.exp(m - shift)"),
    "m_new is the maximum of s, and s · scale_log2 is subtracted from: both must be scaled": (M_NEW, "tl.maximum(m, tl.max(s, axis=1))"),
    "m_new is scaled a second time: it is in units of s · scale_log2 already": (P, "tl.exp2((s - shift[:, None]) * scale_log2)"),
    "m_new is scaled as a whole: the old m in it is in units of s · scale_log2 already, so scale only the tile's maximum": (
        M_NEW, "tl.maximum(m, tl.max(s, axis=1)) * scale_log2"),
    "log₂ e is multiplied twice: scale_log2 is scale · log₂ e already": ("* scale_log2", "* (scale_log2 * 1.4426950408889634)"),
    "alpha is upside down: it is 2^(m − m_new), at most 1": (ALPHA, "tl.exp2(shift - m)"),
    "your l is not rescaled when the maximum grows": (L_NEW, "l + tl.sum(p, axis=1)"),
    "the old l alone is rescaled: the tile's p is relative to m_new already": (L_NEW, "alpha * (l + tl.sum(p, axis=1))"),
    "l_new = alpha · l + Σ p adds p as it is, not rounded to fp16": (L_NEW, "alpha * l + tl.sum(p.to(tl.float16).to(tl.float32), axis=1)"),
    "a row that has seen nothing must keep m = −inf: only the shift is 0 there": ("return p, m_new", "return p, shift"),
    "a row that has seen nothing gives NaN: m_new is −inf, and −inf − (−inf) is NaN": (SHIFT, "m_new"),
}  # fmt: skip
STEP = "base 2"
CONDITIONS = {"unseen": "a row that has seen no key yet keeps m = −∞ and l = 0, and its p is 0", "low": "scores may be as low as −2³⁰"}


def truth(s, m, l, scale_log2):
    s, m, l = scale_log2 * s.double().cpu(), m.double().cpu(), l.double().cpu()
    m_new = torch.maximum(m, s.amax(-1))
    shift = m_new.masked_fill(m_new == -INF, 0.0)
    p, alpha = torch.exp2(s - shift[:, None]), torch.exp2(m - shift)
    return p, m_new, alpha * l + p.sum(-1), alpha.masked_fill(m == -INF, ANYTHING)  # alpha multiplies 0 there


def inputs():
    def step(s, m, l, scale_log2, otherwise="", **options):
        tensors = (torch.tensor(x, device=hardware.device()) for x in (s, m, l))
        return case(*tensors, scale_log2, otherwise=otherwise, **options)

    first = [-INF] * ROWS, [0.0] * ROWS
    own = "each row has its own m, l and alpha, and m comes in units of s · scale_log2 already"
    tile = f"a first tile: m_new is the maximum of s · scale_log2, p = 2^(s · scale_log2 − m_new), alpha = 2^(m − m_new), l_new = alpha · l + Σ p; {ORDER}"
    yield step([[1.0, 3.0, 2.0, 0.0]] * 2, *first, 0.5, tile)
    yield step([[1.0, 3.0, 2.0, 0.0], [5.0, 4.0, 6.0, 7.0]], [1.0, 1.5], [2.0, 1.0], 0.5, own)
    yield step([[1.0, 3.0, 2.0, 0.0]] * 2, [4.0, 6.0], [2.0, 1.0], 0.5, "the maximum was seen before")
    nothing = "a row that has seen nothing keeps m = −inf and l = 0: only what is subtracted, from s and from m, is 0"
    yield step([[-INF] * 4, [1.0, 2.0, -INF, 0.0]], *first, 0.5, nothing, edge="unseen")
    low = "scores may be as low as −2³⁰: where a row has seen a key, m_new itself is subtracted"
    yield step([[-(2.0**30)] * 4, [1.0, 2.0, -INF, 0.0]], *first, 4.0, low, edge="low")
    draw = generator()
    s, m = 5 * torch.randn(ROWS, KEYS, generator=draw), torch.randn(ROWS, generator=draw)
    yield case(*(x.to(hardware.device()) for x in (s, m, torch.ones(ROWS))), 0.18, on="a random tile", fresh=True)


EXERCISE = Exercise(
    task="Write softmax_step in base 2, one multiply-add a score: s arrives without its scale, and m is kept in units of s · scale_log2.",
    conditions=CONDITIONS,
    hints=(
        "Chapter 5's step is nearly right. Which of its lines see a score, and which see only m?",
        "A score must be multiplied by scale_log2 once. m and m_new hold scaled numbers already, so alpha needs no multiplication.",
        "m_new = max(m, scale_log2 · the row's maximum), and p = tl.exp2(s * scale_log2 - shift[:, None]), with chapter 5's shift.",
    ),
    solution=softmax_step,
    reasoning="2^(s · scale · log2(e)) is e^(s · scale). scale_log2 is positive, so the largest score stays the largest. The product and "
    "the difference in p become one multiply-add per element. Only the maximum, one number per row, is multiplied by itself.",
    more="The package's step is a part of tuned.forward.attend. It also rounds m up a little.",
    inputs=inputs,
    truth=truth,
    rule="p = 2^(s · scale_log2 − m_new), alpha = 2^(m − m_new), and l_new = alpha · l + Σ p",
    mistakes=MISTAKES,
    parts=("p", "m_new", "l_new", "alpha"),
    tolerance=lambda args, part: (3e-5, 1e-6),  # also where the scores are large: those here are exact
    adapt=adapt,
    refused=lambda answer: too_long("step 1's", STEP, softmax_step=answer),
    note=lambda answer: not_counted(STEP),
)
