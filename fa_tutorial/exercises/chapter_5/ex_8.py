"""Exercise 5.8, review_inputs: for each of six broken kernels, an input that tells it from the right one, and from the others."""

import functools
import warnings

import torch

from fa_tutorial import forward, hardware
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting, written_once
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


def review_inputs():
    """{"A": (q, k, v, is_causal), …} up to "F", in float32, and finite.

    q: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D).
    """

    def randn(H_q, S_q, H_k, S_k):
        return torch.randn(1, H_q, S_q, 16), torch.randn(1, H_k, S_k, 16), torch.randn(1, H_k, S_k, 16)

    q, k, v = randn(1, 32, 1, 32)
    return {
        "A": (q, k.mT.contiguous().mT, v, False),  # strides of a (B, H, D, S) tensor
        "B": (*randn(1, 40, 1, 32), False),
        "C": (*randn(1, 32, 1, 25), False),
        "D": (*randn(1, 32, 1, 64), True),
        "E": (*randn(4, 32, 2, 32), False),
        "F": (*randn(1, 64, 1, 32), True),
    }


def padded(x, like):
    """x with its strides in a larger memory, so that a wrong offset, by its own strides or `like`'s, finds 7 and no other tensor."""
    steps = [max(a, b) for a, b in zip(x.stride(), like.stride(), strict=True)]
    size = 1 + sum((n + max(BLOCK_M, BLOCK_N)) * step for n, step in zip(x.shape, steps, strict=True))
    memory = torch.full((size,), 7.0, device=hardware.device())
    view, once = memory.as_strided(x.shape, x.stride()), written_once(x.stride())  # x may be expanded
    view[once].copy_(x[once])
    return view


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


INPUT = (
    "an input is (q, k, v, is_causal), float32 and finite: q (B, H_q, S_q, D), k and v (B, H_k, S_k, D), H_q a multiple of H_k; no axis "
    "but S_k is empty, D is at most 64, S_q and S_k 256, B · H_q 16"
)


def is_input(one):
    """Whether `one` is as INPUT says."""
    if not isinstance(one, tuple | list) or len(one) != 4 or not all(isinstance(x, torch.Tensor) and x.ndim == 4 for x in one[:3]):
        return False
    (B, H_q, S_q, D), (H_k, S_k) = one[0].shape, one[1].shape[1:3]
    fits = all(x.shape == (B, H_k, S_k, D) for x in one[1:3]) and 0 < H_k <= H_q and H_q % H_k == 0
    small = min(B, S_q, D) > 0 and D <= 64 and max(S_q, S_k) <= 256 and B * H_q <= 16
    return fits and small and all(x.dtype == torch.float32 and x.isfinite().all() for x in one[:3])


def caught_by(letter, one):
    """The kernels that the input for `letter` catches, without D where F's catches F: nearly each input with a row that sees no key shows both."""
    if not is_input(one):
        raise Wrong(f"{letter}: {INPUT}")
    q, k, v = (padded(x, one[0]) for x in one[:3])
    with warnings.catch_warnings(action="ignore"):  # F divides 0 by 0
        given = {name: launched(name, q, k, v, bool(one[3])) for name in ("", *LINES)}
    right = given.pop("")
    close = functools.partial(torch.allclose, rtol=1e-4, atol=1e-4, equal_nan=True)
    found = [name for name, made in given.items() if not all(map(close, made, right))]
    return ["F"] if letter == "F" and found == ["D", "F"] else found


@adapting
def adapt(answer):
    """Which inputs are right, which catch other kernels than theirs, and which are missing: "" where all are right."""
    found = answer()
    if not isinstance(found, dict) or not set(found) <= set(LINES):
        raise Wrong('want a dict of inputs for "A" to "F": {"A": (q, k, v, False), …}')
    caught = {letter: caught_by(letter, found[letter]) for letter in LINES if found.get(letter) is not None}
    right = [letter for letter in caught if caught[letter] == [letter]]
    told = [f"{letter}'s input catches {', '.join(caught[letter]) or 'none'}, want {letter}" for letter in caught if letter not in right]
    lists = {"right": right, "missing": [letter for letter in LINES if letter not in caught]}
    told += [f"{what}: {', '.join(letters)}" for what, letters in lists.items() if letters]
    return "; ".join(told) if len(right) < len(LINES) else ""


def inputs():
    yield case(on="yours so far")


EXERCISE = Exercise(
    task="For each of the six broken kernels, write an input on which it gives a wrong o or lse, and the five others are right.",
    hints=(
        "Ask of each line: for which sizes, heads, strides and masks does it give the same as yours? Five lines must, and one mustn't.",
        "Begin with one head of 32 queries and keys, contiguous, without a mask: it catches nothing. Then change one thing for each letter.",
        "A shows where q's and k's strides differ on an axis with more than one entry. D needs the mask, and S_q other than S_k; E needs "
        "1 < H_k < H_q; F a row that sees no key: the mask with S_q > S_k, or S_k = 0.",
    ),
    solution=review_inputs,
    reasoning="Each line is right under a condition: k is laid out as q; S_q is a multiple of BLOCK_M; S_k is one of BLOCK_N; S_q = S_k, or there "
    "is no mask; one key head, or as many as query heads; every row sees a key. An input that breaks one of them, and keeps the others, tells "
    "which line is wrong.",
    inputs=inputs,
    truth=lambda: "",
    rule="each input must catch its own kernel, and no other",
    mistakes={},
    exact=True,
    adapt=adapt,
)
