"""Exercise 14.9, sums_are_right."""

import functools

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, show
from fa_tutorial.fp8 import tensor_core_sum, to_e4m3


def sums_are_right(forward):
    """Whether an FP8 forward adds up acc and l rightly: True or False.

    forward: (q, k, v) -> o. q, o: (rows, D); k, v: (keys, D); float64, no mask.
    """
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(rows, 64, generator=draw).double() for rows in (8, 16_384, 16_384))
    v = v + 1
    truth = torch.softmax(q @ k.T / 8, dim=1) @ v
    off = (forward(q, k, v) - truth).square().mean().sqrt() / truth.square().mean().sqrt()
    return bool(off < 0.01)


MISTAKES = {
    "one chain for acc passes: with a v of mean 0 its cuts cancel, and what is left is far below the rounding of q, k, p and v": [
        ("v + 1", "v"), ("0.01", "0.1")],
    "acc and l in one chain each pass: with so large a mean both lose nearly the same share, which cancels in acc / l": [
        ("v + 1", "v + 3"), ("0.01", "0.05")],
    "no forward passes: the rounding of q, k, p and v alone takes o further off than your bound": ("0.01", "0.0001"),
    "every forward passes: a short chain loses little, and a wide bound lets much through": ("16_384, 16_384", "128, 128"),
    "right and wrong are exchanged: return True for right sums": ("off < 0.01", "off > 0.01"),
}  # fmt: skip


def in_a_chain(a, b):
    return tensor_core_sum(a, b, a.new_zeros(len(a), len(b)))


def by_blocks(a, b):
    return sum(in_a_chain(x, y) for x, y in zip(a.split(128, dim=1), b.split(128, dim=1), strict=True))


def exactly(a, b):
    return a @ b.T


def forward_with(add_acc, add_l):
    """An FP8 forward: everything rounded as in the chapter, and the sums of acc and of l made in these ways."""

    def rounded(x):
        x = x.double()
        scale = x.abs().max().clamp(min=1e-30) / 448
        return to_e4m3(x / scale), scale

    def forward(q, k, v):
        (q_8, q_scale), (k_8, k_scale), (v_8, v_scale) = map(rounded, (q, k, v))
        s = q_8 @ k_8.T * (q_scale * k_scale / q.shape[1] ** 0.5)
        p = to_e4m3(2**8 * torch.exp(s - s.amax(dim=1, keepdim=True)))
        return (add_acc(p, v_8.T) * v_scale / add_l(p, torch.ones_like(p[:1]))).to(q.dtype)

    forward.sums = add_acc, add_l
    return forward


def in_words(answer):
    """The answer, with "True" or "False" for its result."""

    @functools.wraps(answer)
    def called(forward):
        result = answer(forward)
        word = str(result.item() if isinstance(result, torch.Tensor) and result.numel() == 1 else result)
        if word not in ("True", "False"):
            raise Wrong(f"returns {show(result)}, want True or False")
        return word

    return called


def truth(forward):
    return str(in_a_chain not in forward.sums)


def inputs():
    right = "its sums are right, and o is off by the rounding of q, k, p and v alone"
    for words, sums, otherwise in (
        ("acc and l exact", (exactly, exactly), right),
        (
            "acc in one chain, l exact",
            (in_a_chain, exactly),
            "over many keys acc loses bits, and o with it, unless the cuts of both signs cancel",
        ),
        ("acc and l in one chain each", (in_a_chain, in_a_chain), "over many keys both lose bits, and not the same share of them"),
        ("acc exact, l in one chain", (exactly, in_a_chain), "over many keys l loses bits, so o is too large"),
        ("acc and l by blocks of 128 keys", (by_blocks, by_blocks), right),
        ("acc by blocks of 128 keys, l exact", (by_blocks, exactly), right),
    ):
        yield case(forward_with(*sums), on=f"a forward with {words}", otherwise=otherwise)


EXERCISE = Exercise(
    id="14.9",
    task="Write the test that tells right sums of an FP8 forward from chains that are too long.",
    hints=(
        "How many keys must it take until a chain loses much? And which v lets what acc loses show in o?",
        "With v of mean 0 rounding costs 5 % of o, and hides one chain of acc. With v + 1 and 16,384 keys it costs 0.13 %, one chain of acc 19 %, and one of acc "
        "and of l 8 %.",
        "truth = torch.softmax(q @ k.T / D**0.5, dim=1) @ v, for a few queries. The result is whether the rms of forward(q, k, v) − truth is below 1 % of truth's.",
    ),
    solution=sums_are_right,
    reasoning="A mean makes what the chain loses large, and rounding's share of o small. So one bound between the two tells all of them apart.",
    inputs=inputs,
    truth=truth,
    rule="True where acc and l are exact or summed by blocks, False where one of them is one chain over all keys",
    mistakes=MISTAKES,
    adapt=in_words,
)
