"""Exercise 4.5, is_right."""

import functools

import torch

from fa_tutorial import reference
from fa_tutorial.exercises.chapter_4 import ex_1, ex_3, ex_4
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import kind
from fa_tutorial.source import defined, edited, source_of


def is_right(forward):
    """True if forward(q, k, v, block_m, block_n, scale) is causal attention and its lse."""
    draw = torch.Generator().manual_seed(0)
    for S_q, S_k, dtype in (
        (37, 50, torch.float32),
        (50, 37, torch.float32),
        (37, 50, torch.float16),
    ):
        for factor in (1.0, 20.0):  # 20: the scores of a row lie hundreds apart
            shape = 2, 3, max(S_q, S_k), 16
            q, k, v = (torch.randn(shape, generator=draw).to(dtype) for _ in range(3))
            q, k, v = factor * q[:, :, :S_q], factor * k[:, :, :S_k], v[:, :, :S_k]
            o, lse = forward(q, k, v, 16, 8, 0.3)
            want_o, want_lse = reference.attention(q, k, v, is_causal=True, scale=0.3)
            rounding = 1e-3 if dtype == torch.float32 else 4e-3
            o_right = torch.allclose(o.double(), want_o, rtol=rounding, atol=rounding)
            if not (o_right and torch.allclose(lse.double(), want_lse, atol=1e-4)):
                return False
    return True


# ---------------------------------------------------------------- what is tested: right forwards, and such as hide a bug

P = ("p = torch.exp(s - shift[..., None])", "alpha = torch.exp(m - shift)", "shift = torch.where(m_new == -math.inf, 0.0, m_new)")
K, O, LSE = "k[:, :, keys].float()", "acc / torch.where(l == 0, 1.0, l)[..., None]", "m + torch.log(l)"
S = f"scale * (q_tile @ {K}.transpose(-1, -2))"
STEPS = {  # changes of softmax_step
    "one maximum": [("torch.maximum(m, s.amax(dim=-1))", "torch.maximum(m, s.amax(dim=-1)).amax().expand_as(m)")],
    "no maximum": [(P[2], "shift = torch.zeros_like(m)"), ("torch.maximum(m, s.amax(dim=-1))", "torch.where(s.amax(dim=-1) == -math.inf, m, 0.0)")],
}  # fmt: skip
HIDDEN = {  # bug -> (what it does, which of the promises it breaks), and the changes of causal_forward, softmax_step or causal_tiles
    "one maximum": ("takes one maximum for a whole tile", "the scores may be any finite numbers, also far apart", []),
    "no maximum": ("measures each score from 0, not from a maximum", "the scores may be any finite numbers, also large", []),
    "−1e6": ("hides a score with −1e6", "S_q and S_k may differ, and a row that sees no key gets o = 0 and lse = −∞",
             [("S_q, -math.inf", "S_q, -1e6")]),
    "0 / 0": ("divides by l = 0", "S_q and S_k may differ, and a row that sees no key gets o = 0 and lse = −∞", [(O, "acc / l[..., None]")]),
    "top left": ("aligns its mask at the top left", "S_q and S_k may differ", [("j > i + S_k - S_q", "j > i")]),
    "ragged": ("forgets the last, shorter block of keys", "the last block of keys may be shorter",
               [("range(end)", "range(min(end, S_k // block_n))")]),
    "one masked": ("masks only the last tile of a row of tiles", "block_m and block_n may differ, and a mask may cross several tiles",
                   [("key_block >= full", "key_block == end - 1")]),
    "heads": ("multiplies every head of q by the first head of k", "every head has its own q, k and v", [("k[:, :, keys]", "k[:, :1, keys]")]),
    "batch": ("takes the first batch entry's v for all of them", "every batch entry has its own q, k and v", [("v[:, :, keys]", "v[:1, :, keys]")]),
    "scale": ("scales by 1/√D, not by the scale that it is given", "scale may be any number", [("scale * (q_tile", "q.shape[-1] ** -0.5 * (q_tile")]),
    "half": ("computes the scores of fp16 inputs in fp16", "fp16 inputs are computed in float32 or better",
             [(S, f"scale * (q[:, :, rows] @ {K.replace('.float()', '')}.transpose(-1, -2)).float()")]),
    "lse": ("returns m as lse", "lse is m + log l", [(LSE, "m")]),
}  # fmt: skip


@functools.cache
def forward_with(bug: str = ""):
    """causal_forward, with a bug of HIDDEN or without one."""
    step = defined(edited(source_of(ex_1.softmax_step), *STEPS.get(bug, [])), vars(ex_1))["softmax_step"]
    text = edited(source_of(ex_4.causal_forward), *(HIDDEN[bug][2] if bug else []))
    return defined(text, vars(ex_4) | {"step": step, "tiles_of": ex_3.causal_tiles})["causal_forward"]


def in_float64(q, k, v, block_m, block_n, scale):
    o, lse = reference.attention(q, k, v, is_causal=True, scale=scale)
    return o.to(q.dtype), lse.float()


def unmasked(q, k, v, block_m, block_n, scale):
    o, lse = reference.attention(q, k, v, scale=scale)
    return o.to(q.dtype), lse.float()


RIGHT = (forward_with(), in_float64)
MISTAKES = {
    "True and False are swapped: return True for a forward that is right": [
        ("return False", "return None"), ("return True", "return False"), ("return None", "return True")],
    "every forward passes your test, one without a mask too": ("return False", "return True"),
    "no forward passes your test, a right one neither": ("return True", "return False"),
}  # fmt: skip

CONDITIONS = {bug: f"a forward that {does} fails: {promise}" for bug, (does, promise, _) in HIDDEN.items()}


def truth(forward):
    return str(forward in RIGHT)


def adapt(answer):
    """The answer's True or False as a text, as a reader writes it."""

    @functools.wraps(answer)
    def run(forward):
        result = answer(forward)
        is_bool = isinstance(result, bool) or (isinstance(result, torch.Tensor) and result.dtype == torch.bool and result.numel() == 1)
        return str(bool(result)) if is_bool else kind(result)

    return run


def inputs():
    right = "a right forward must pass: it rounds, o to q's dtype, so compare with torch.allclose"
    yield case(forward_with(), on="solution 4.4", otherwise=right)
    yield case(in_float64, on="attention in float64, rounded at the end", otherwise=right)
    yield case(unmasked, on="attention without a mask", otherwise="it must fail")
    for bug, (does, promise, _) in HIDDEN.items():
        yield case(forward_with(bug), on=f"a forward that {does}", otherwise=f"your test misses a bug; {promise}", edge=bug)


EXERCISE = Exercise(
    id="4.5",
    task="Write the test that a causal forward must pass: it catches every forward that hides a bug, and no right one.",
    conditions=CONDITIONS,
    hints=(
        "Each promise of 4.2 and 4.4 can be broken on its own. For each, which inputs would show it? What is a test blind to that uses one "
        "head, equal lengths, equal blocks that divide them, and scale = 1/√D?",
        "Take B and H above 1, S_q < S_k and S_q > S_k, lengths that no block divides, block_m > block_n, and another scale. Compare o and "
        "lse with reference.attention(q, k, v, is_causal=True, scale=scale).",
        "Multiply q and k by 20 as well: then the scores of a tile lie hundreds apart. With fp16 inputs o rounds to fp16, but lse stays "
        "float32, so compare lse tightly there: atol = 1e-4.",
    ),
    solution=is_right,
    reasoning="Three pairs of lengths and dtypes, each with small and with large scores, break every promise at least once. NaN never "
    "compares equal, so a 0 / 0 fails by itself. With fp16 inputs it's lse that tells: o is rounded to fp16 anyway.",
    inputs=inputs,
    truth=truth,
    rule="True for a forward that is right, False for any other",
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
)
