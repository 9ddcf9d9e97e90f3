"""Exercise 5.8, review_inputs: inputs that tell six broken kernels from the right one."""

import warnings

import torch

from fa_tutorial import forward, hardware
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting, show
from fa_tutorial.matmul import triton
from fa_tutorial.source import defined, edited, source_of
from fa_tutorial.tiles import Heads

BLOCK_M, BLOCK_N = 32, 16
LINES = {  # changes of the kernel; A and B are changes of its launch
    "A": (),
    "B": (),
    "C": ("full_n, end_n = S_k // BLOCK_N * BLOCK_N, S_k", "full_n, end_n = S_k, S_k"),
    "D": ("offs_m + (S_k - S_q)", "offs_m"),
    "E": ("h // (H_q // H_k)", "h % H_k"),
    "F": ("tl.where(l == 0.0, 1.0, l)", "l"),
}
RULES = (
    "A reads k with q's strides, so these must differ on an axis with more than one entry",
    "B launches too few programs, which shows where S_q is no multiple of BLOCK_M",
    "C sends a ragged tile of keys through the loop without a mask, which shows without a causal mask where S_k is no multiple of BLOCK_N",
    "D lets query i see keys 0 to i, which is wrong under a causal mask where S_q isn't S_k",
    "E deals key heads out in turns, which differs from groups where 1 < H_k < H_q",
    "F divides 0 by 0 where a row sees no key: under a causal mask with S_q > S_k",
)


def review_inputs():
    """At most two inputs (q, k, v, is_causal), float32. q: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D)."""
    q = torch.randn(1, 4, 40, 16)
    k, v = torch.randn(1, 2, 25, 16), torch.randn(1, 2, 25, 16)
    return [(q, k, v, False), (q, k, v, True)]


LAST = ", (q, k, v, True)]"
MISTAKES = {
    "D and F show under a causal mask alone, with S_q > S_k": (LAST, "]"),
    "C shows without a causal mask alone, where S_k is no multiple of BLOCK_N": ("[(q, k, v, False), ", "["),
    "A shows where q and k have different strides, and D and F under a causal mask with S_q > S_k": ("25", "40", 2),
    "B shows where S_q is no multiple of BLOCK_M, and C without a causal mask where S_k is no multiple of BLOCK_N": [
        ("40", "64"), ("25", "32", 2)],
    "E shows with several key heads, and more query heads: with one group, or groups of one, h % H_k is right": ("1, 4, 40", "1, 2, 40"),
    "F shows in rows that see no key: under a causal mask with S_q > S_k": ("1, 4, 40", "1, 4, 20"),
}  # fmt: skip


def padded(x, like):
    """x with its strides in a larger memory, so that a wrong offset, by its own strides or `like`'s, finds 7 and no other tensor."""
    steps = [max(a, b) for a, b in zip(x.stride(), like.stride(), strict=True)]
    size = 1 + sum((n + max(BLOCK_M, BLOCK_N)) * step for n, step in zip(x.shape, steps, strict=True))
    memory = torch.full((size,), 7.0, device=hardware.device())
    return memory.as_strided(x.shape, x.stride()).copy_(x)


def launched(name, q, k, v, is_causal):
    """o and lse of the right kernel, or of the one that `name` breaks."""
    kernel = forward.flash_forward_kernel
    if LINES.get(name):
        kernel = defined(edited(source_of(kernel), LINES[name]), vars(forward))[kernel.fn.__name__]
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    o = torch.full((B, H_q, S_q, D), torch.nan, device=q.device)
    lse = torch.full((B, H_q, S_q), torch.nan, device=q.device)
    programs = (S_q // BLOCK_M if name == "B" else triton.cdiv(S_q, BLOCK_M)) * B * H_q
    if programs:
        kernel[(programs,)](
            Heads(q, q.stride()), Heads(k, (q if name == "A" else k).stride()), Heads(v, v.stride()), Heads(o, o.stride()), lse,
            H_q, H_k, S_q, S_k, D, D**-0.5, IS_CAUSAL=is_causal, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
            BLOCK_D=max(16, triton.next_power_of_2(D)),
        )  # fmt: skip
    return o, lse


def same(found, right):
    """Whether o and lse are the right kernel's, but for rounding."""
    sizes = (max(1.0, float(x.nan_to_num(posinf=0, neginf=0).abs().max())) for x in right)
    return all(torch.allclose(a, b, rtol=0, atol=1e-4 * size, equal_nan=True) for a, b, size in zip(found, right, sizes, strict=True))


def complaint(one):
    """Why `one` is no input of attention; "" if it is."""
    if not isinstance(one, tuple | list) or len(one) != 4 or not all(isinstance(x, torch.Tensor) and x.ndim == 4 for x in one[:3]):
        return f"an input is (q, k, v, is_causal), with tensors of four axes; this one is {show(one)}"
    (B, H_q, S_q, D), (H_k, S_k) = one[0].shape, one[1].shape[1:3]
    if any(x.shape != (B, H_k, S_k, D) for x in one[1:3]) or not 0 < H_k <= H_q or H_q % H_k:
        return f"q {tuple(one[0].shape)}, k {tuple(one[1].shape)}, v {tuple(one[2].shape)}: k and v are (B, H_k, S_k, D), H_q a multiple of H_k"
    if any(x.dtype != torch.float32 or not x.isfinite().all() for x in one[:3]):
        return "q, k and v are float32, and finite"
    if min(B, S_q, S_k, D) < 1 or D > 64 or max(S_q, S_k) > 256 or B * H_q > 16:
        return "keep inputs small: no axis empty, D up to 64, S_q and S_k up to 256, B · H_q up to 16"
    return ""


@adapting
def adapt(answer):
    """The inputs, run through the right kernel and each broken one: which are caught."""
    found = answer()
    if not isinstance(found, tuple | list):
        raise Wrong(f"it returns {show(found)}, want a list of inputs (q, k, v, is_causal)")
    if len(found) > 2:
        raise Wrong(f"it returns {len(found)} inputs, want two at most: one input can catch several kernels")
    caught = set()
    for one in found:
        if why := complaint(one):
            raise Wrong(why)
        q, k, v = (padded(x, one[0]) for x in one[:3])
        with warnings.catch_warnings(action="ignore"):  # F divides 0 by 0
            right = launched("", q, k, v, bool(one[3]))
            caught |= {name for name in LINES if name not in caught and not same(launched(name, q, k, v, bool(one[3])), right)}
    return tuple("caught" if name in caught else "unnoticed" for name in LINES)


def inputs():
    yield case(otherwise=dict(zip(LINES, RULES, strict=True)))


EXERCISE = Exercise(
    task="Choose at most two inputs on which each of the six broken kernels gives a wrong o or lse.",
    hints=(
        "Ask of each line: for which sizes, heads, strides or scores does it give the same as yours? Your inputs must avoid all of these.",
        "C shows without a causal mask alone, D and F with it alone. So one input is full and one causal, and all others may share them.",
        "S_q = 40 and S_k = 25 are both ragged, S_q > S_k leaves rows without a key, and four query heads on two key heads are groups.",
    ),
    solution=review_inputs,
    reasoning="A kernel that is right on a round size, one head, and one layout may be right by luck. Each of these "
    "choices hides a line, so a good test avoids all of them at once.",
    inputs=inputs,
    truth=lambda: ("caught",) * len(LINES),
    rule="each broken kernel is wrong on one of the inputs",
    mistakes=MISTAKES,
    parts=tuple(LINES),
    exact=True,
    adapt=lambda answer: adapt(answer) if hasattr(answer, "__code__") else answer,
)
