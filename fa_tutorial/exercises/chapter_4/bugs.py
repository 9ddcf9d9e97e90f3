"""The forwards that exercise 4.5 hands to a reader's test, a right one and such as hide a bug; which inputs show which bug."""

import functools

from fa_tutorial.exercises.chapter_4 import ex_1, ex_3, ex_4
from fa_tutorial.source import defined, edited, source_of

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
    "−1e6": ("hides a score with −1e6", "a row that sees no key gets o = 0 and lse = −∞, also where another row of its block sees one",
             [("S_q, -math.inf", "S_q, -1e6")]),
    "0 / 0": ("divides by l = 0", "a row that sees no key gets o = 0, not NaN: compare o, too, and with torch.allclose, because NaN > tol is False",
              [(O, "acc / l[..., None]")]),
    "unseen lse": ("returns NaN as the lse of a row that sees no key", "a row that sees no key gets lse = −∞: compare lse, too, and "
                   "with torch.allclose, because −∞ − (−∞) is NaN",
                   [(LSE, "torch.where(l == 0, math.nan, m + torch.log(l))")]),
    "more keys": ("aligns its mask at the top left where S_q < S_k", "S_q and S_k may differ, in both directions",
                  [("j > i + S_k - S_q", "j > i + min(0, S_k - S_q)")]),
    "top left": ("aligns its mask at the top left", "S_q and S_k may differ", [("j > i + S_k - S_q", "j > i")]),
    "ragged": ("forgets the last, shorter block of keys", "the last block of keys may be shorter",
               [("range(end)", "range(min(end, S_k // block_n))")]),
    "block_m keys": ("takes block_m keys at a time, and steps by block_n", "block_m and block_n may differ",
                     [("(key_block + 1) * block_n, S_k", "key_block * block_n + block_m, S_k")]),
    "one masked": ("masks only the last tile of a row of tiles", "block_m and block_n may differ, and a mask may cross several tiles",
                   [("key_block >= full", "key_block == end - 1")]),
    "heads": ("multiplies every head of q by the first head of k", "every head has its own q, k and v", [("k[:, :, keys]", "k[:, :1, keys]")]),
    "batch": ("takes the first batch entry's v for all of them", "every batch entry has its own q, k and v", [("v[:, :, keys]", "v[:1, :, keys]")]),
    "scale": ("scales by 1/√D, not by the scale that it is given", "scale may be any number", [("scale * (q_tile", "q.shape[-1] ** -0.5 * (q_tile")]),
    "half": ("computes the scores of fp16 inputs in fp16", "fp16 inputs are computed in float32 or better",
             [(S, f"scale * (q[:, :, rows] @ {K.replace('.float()', '')}.transpose(-1, -2)).float()")]),
    "1 %": ("returns an o that is 1 % too large", "only rounding may part a right o from the reference",
            [("= acc /", "= 1.01 * acc /")]),
    "lse": ("returns m as lse", "lse is m + log l", [(LSE, "m")]),
}  # fmt: skip


@functools.cache
def forward_with(bug: str = ""):
    """causal_forward, with a bug of HIDDEN or without one."""
    step = defined(edited(source_of(ex_1.softmax_step), *STEPS.get(bug, [])), vars(ex_1))["softmax_step"]
    text = edited(source_of(ex_4.causal_forward), *(HIDDEN[bug][2] if bug else []))
    return defined(text, vars(ex_4) | {"step": step, "tiles_of": ex_3.causal_tiles})["causal_forward"]


def show_bugs(test):
    """For each hidden bug, which of the test's inputs show it: the forward has its bug there alone, and the test says False."""
    right, inputs = forward_with(), []

    def notes(q, k, v, block_m, block_n, scale):
        largest = scale * (q.double() @ k.double().mT).abs().max()
        inputs.append(
            f"{tuple(q.shape[:2])} heads, S_q = {q.shape[2]}, S_k = {k.shape[2]}, blocks {block_m} × {block_n}, "
            f"scores up to {largest:,.0f}, {str(q.dtype).removeprefix('torch.')}"
        )
        return right(q, k, v, block_m, block_n, scale)

    def is_caught(bug, number):
        calls = iter(range(len(inputs)))
        return not test(lambda *args: forward_with(bug if next(calls, None) == number else "")(*args))

    test(notes)
    for number, words in enumerate(inputs):
        print(f"{number}: {words}")
    print("\na forward that …" + "".join(f"{number:4}" for number in range(len(inputs))).rjust(60 + 4 * len(inputs) - 16))
    for bug, (does, *_) in HIDDEN.items():
        print(f"{does:60}" + "".join("   ■" if is_caught(bug, number) else "   ·" for number in range(len(inputs))))
