"""Exercise 8.2, softmax_step in base 2."""

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.harness import ANYTHING, Exercise, case
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import INF, NotAttempted, Wrong, chain, show

triton = hardware.require_triton("Exercise 8.2")
import triton.language as tl  # noqa: E402


@triton.jit
def softmax_step(s, m, l, scale_log2):
    """A tile of scores that are not scaled joins m and l. Returns p, m_new, l_new, alpha."""
    m_new = tl.maximum(m, tl.max(s, axis=1) * scale_log2)  # [BLOCK_M]
    shift = tl.where(m_new == -float("inf"), 0.0, m_new)  # −inf − (−inf) would be NaN
    p = tl.exp2(s * scale_log2 - shift[:, None])  # [BLOCK_M, BLOCK_N]
    alpha = tl.exp2(m - shift)  # [BLOCK_M]
    return p, m_new, alpha * l + tl.sum(p, axis=1), alpha


ROWS, KEYS = 2, 4


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
    if not hasattr(step, "fn"):
        raise Wrong("is a plain function: put @triton.jit above it")
    try:
        step.fn(None, None, None, None)
    except NotImplementedError:
        raise NotAttempted from None
    except Exception:
        pass

    def on_tensors(s, m, l, scale_log2):
        p, state = torch.empty_like(s), torch.empty(3, ROWS, device=s.device)
        try:
            run_step[(1,)](s, m, l, p, state, scale_log2, STEP=step, ROWS=ROWS, KEYS=KEYS)
        except Exception as error:
            root = chain(error)[-1]
            # What the interpreter and the compiler raise for a wrong number or order of results.
            if "make_shape_compatible" in str(root) or "unpack" in str(root) or isinstance(root, IndexError):
                raise Wrong(
                    "gives other results than p, [BLOCK_M, BLOCK_N], and m_new, l_new, alpha, [BLOCK_M] each, in this order"
                ) from None
            raise Wrong(f"stops with {type(root).__name__}: {root}") from None
        return p, *state

    return on_tensors


MISTAKES = {
    "exchanged": "m_new and l_new are swapped: return p, m_new, l_new, alpha",
    "alpha_for_l": "l_new and alpha are swapped: return p, m_new, l_new, alpha",
    "alpha_second": "alpha stands second: return p, m_new, l_new, alpha",
    "base_e": "p is in base e: by tl.exp, or because log₂ e is in the exponent once more, which scale_log2 holds already",
    "alpha_base_e": "the base of alpha is e: use tl.exp2 there, too",
    "no_scale": "s is not scaled: p = 2^(s · scale_log2 − m_new)",
    "m_unscaled": "m_new holds the maximum of s: it is the maximum of s · scale_log2, so that nothing has to scale it later",
    "m_mixed": "m_new is the maximum of s, and s · scale_log2 is subtracted from: both must be scaled",
    "scaled_twice": "m_new is scaled a second time in the exponent: it is in units of s · scale_log2 already",
    "m_scaled_again": "m_new is scaled as a whole: the old m in it is in units of s · scale_log2 already, so scale only the tile's maximum",
    "m_again": "the old m is scaled a second time: it comes in units of s · scale_log2 already, so scale only the tile's maximum",
    "alpha_scaled": "alpha scales m a second time: m and m_new are in units of s · scale_log2 already",
    "alpha_inverted": "alpha is inverted: it is 2^(m − m_new), which is at most 1",
    "m_block": "m_new is the tile's own maximum: the running one never falls",
    "m_columns": "the maximum runs down the columns: take it over axis 1, the keys",
    "l_no_rescale": "your l is not rescaled when the maximum grows",
    "l_anew": "l starts anew with every tile: add to the rescaled l",
    "l_block_rescaled": "the new tile's sum is multiplied by alpha, too: only the old l was added up with the old maximum",
    "l_no_block": "the new tile's sum is missing in l_new",
    "m_is_shift": "a row that has seen nothing must keep m = −inf: only the shift is 0 there",
    "nan": "a row that has seen nothing gives NaN: m_new is −inf, and −inf − (−inf) is NaN",
}
CONDITIONS = {"unseen": "a row that has seen no key yet keeps m = −∞ and l = 0, and its p is 0"}


def twin(s, m, l, scale_log2, mistake=None):
    s, m, l = s.double().cpu(), m.double().cpu(), l.double().cpu()
    m = m * scale_log2 if mistake == "m_again" else m
    c = 1.0 if mistake == "no_scale" else scale_log2
    own = s.amax(-1) * (1.0 if mistake in ("m_unscaled", "m_mixed") else scale_log2)
    own = s.amax(-2)[:ROWS] * scale_log2 if mistake == "m_columns" else own
    m_new = own if mistake == "m_block" else torch.maximum(m, own)
    m_new = torch.maximum(m, s.amax(-1)) * scale_log2 if mistake == "m_scaled_again" else m_new
    shift = m_new if mistake == "nan" else m_new.masked_fill(m_new == -INF, 0.0)
    k = scale_log2 if mistake in ("m_unscaled", "scaled_twice") else 1.0
    power = {"base_e": torch.exp}.get(mistake, torch.exp2)
    p = power(s * c - (k * shift)[:, None])
    j = scale_log2 if mistake in ("m_unscaled", "alpha_scaled") else 1.0
    alpha = (torch.exp if mistake in ("base_e", "alpha_base_e") else torch.exp2)(j * (m - shift))
    alpha = 1 / alpha if mistake == "alpha_inverted" else alpha
    l_new = {"l_no_rescale": l + p.sum(-1), "l_anew": p.sum(-1), "l_no_block": alpha * l, "l_block_rescaled": alpha * (l + p.sum(-1))}.get(
        mistake, alpha * l + p.sum(-1)
    )
    if mistake not in ("nan", "alpha_inverted"):
        alpha = alpha.masked_fill(m_new == -INF, ANYTHING)  # it multiplies 0
    m_new = shift if mistake == "m_is_shift" else m_new
    return {"exchanged": (p, l_new, m_new, alpha), "alpha_for_l": (p, m_new, alpha, l_new), "alpha_second": (p, alpha, m_new, l_new)}.get(
        mistake, (p, m_new, l_new, alpha)
    )


def inputs():
    def step(s, m, l, scale_log2, otherwise="", **options):
        s, m, l = (torch.tensor(x, device=hardware.device()) for x in (s, m, l))
        on = f"s = {show(s)}, m = {show(m)}, l = {show(l)}, scale_log2 = {scale_log2}"
        return case(s, m, l, scale_log2, on=on, otherwise=otherwise, **options)

    first = [-INF] * ROWS, [0.0] * ROWS
    yield step([[1.0, 3.0, 2.0, 0.0]] * 2, *first, 0.5, "a first tile: p = 2^(s · scale_log2 − m_new)")
    yield step([[1.0, 3.0, 2.0, 0.0], [5.0, 4.0, 6.0, 7.0]], [1.0, 1.5], [2.0, 1.0], 0.5, "each row has its own m, l and alpha")
    yield step([[1.0, 3.0, 2.0, 0.0]] * 2, [4.0, 6.0], [2.0, 1.0], 0.5, "the maximum was seen before")
    yield step([[-9.0, -8.0, -7.0, -6.0]] * 2, *first, 0.25, "negative scores: m_new is their scaled maximum")
    yield step(
        [[-INF] * 4, [1.0, 2.0, -INF, 0.0]],
        *first,
        0.5,
        "a row that has seen nothing keeps m = −inf and l = 0: only what is subtracted, from s and from m, is 0",
        edge="unseen",
    )
    draw = generator()
    for _ in range(3):
        s, m = 5 * torch.randn(ROWS, KEYS, generator=draw), torch.randn(ROWS, generator=draw)
        tensors = (x.to(hardware.device()) for x in (s, m, torch.ones(ROWS)))
        yield case(*tensors, 0.18, on="a random tile", fresh=True, otherwise="right on the small tiles, wrong on others")


EXERCISE = Exercise(
    id="8.2",
    task="Write softmax_step in base 2: the scores s arrive without their scale, and m is kept in units of s · scale_log2.",
    conditions=CONDITIONS,
    hints=(
        "Chapter 5's step is nearly right. Which of its lines see a score, and which see only m?",
        "A score must be multiplied by scale_log2 once. m and m_new hold scaled numbers already, so alpha needs no multiplication.",
        "m_new = max(m, scale_log2 · the row's maximum), and p = tl.exp2(s * scale_log2 - shift[:, None]), with chapter 5's shift.",
    ),
    solution=softmax_step,
    reasoning="2^(s · scale · log2(e)) is e^(s · scale). scale_log2 is positive, so the largest score stays the largest. The product and the difference in p "
    "become one multiply-add per element. Only the maximum, one number per row, is multiplied by itself.",
    more="The package's step is a part of tuned.forward.attend. It also rounds m up a little. Scaling all of s before the maximum is right, too, but then "
    "that multiply is an instruction of its own: nothing is left for it to join.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("p", "m_new", "l_new", "alpha"),
    adapt=adapt,
)
