import torch

from fa_tutorial import reference
from fa_tutorial.arguments import dtype_name
from fa_tutorial.exercises.chapter_4.bugs import HIDDEN, forward_with
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting


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


def in_float64(q, k, v, block_m, block_n, scale):
    o, lse = reference.attention(q, k, v, is_causal=True, scale=scale)
    return o.to(q.dtype), lse.float()


def unmasked(q, k, v, block_m, block_n, scale):
    o, lse = reference.attention(q, k, v, scale=scale)
    return o.to(q.dtype), lse.float()


RIGHT = (forward_with(), in_float64)
LAST = "a right forward must pass, and your test gave False. In its last call ({}, S_q = {}, S_k = {}, scale = {:g}) o was off by {:.0e} and lse "
LAST += "by {:.0e} from reference.attention with this scale. Leave room for that (o has q's dtype, lse float32); torch.allclose takes −∞ as equal to −∞, where a difference is NaN"
MISTAKES = {"every forward passes your test, one without a mask too": ("return False", "return True")}


@adapting
def with_errors(test, forward):
    """The test's verdict; Wrong where it fails a right forward, with how far off that was."""
    last = []

    def noted(q, k, v, block_m, block_n, scale):
        result, wants = forward(q, k, v, block_m, block_n, scale), reference.attention(q, k, v, is_causal=True, scale=scale)
        off = ((x.double() - want).abs().nan_to_num().max().item() for x, want in zip(result, wants, strict=True))
        last[:] = dtype_name(q.dtype), q.shape[2], k.shape[2], scale, *off
        return result

    verdict = test(noted if forward in RIGHT else forward)
    if last and verdict is False:
        raise Wrong(LAST.format(*last))
    return verdict


CONDITIONS = {bug: f"a forward that {does} fails: {promise}" for bug, (does, promise, _) in HIDDEN.items()}


def truth(forward):
    return forward in RIGHT


def inputs():
    right = "a right forward must pass"
    yield case(forward_with(), on="solution 4.4", otherwise=right)
    yield case(in_float64, on="attention in float64, rounded at the end", otherwise=right)
    yield case(unmasked, on="attention without a mask", otherwise="it must fail")
    for bug, (does, promise, _) in HIDDEN.items():
        yield case(forward_with(bug), on=f"a forward that {does}", otherwise=f"your test misses a bug; {promise}", edge=bug)


EXERCISE = Exercise(
    task="Write the test that a causal forward must pass: it catches every forward that hides a bug, and no right one.",
    conditions=CONDITIONS,
    hints=(
        "Each promise of 4.2 and 4.4 can be broken on its own. For each, which inputs would show it? What is a test blind to that uses one "
        "head, equal lengths, equal blocks that divide them, and scale = 1/√D?",
        "Take B and H above 1, S_q < S_k and S_q > S_k, lengths that no block divides, block_m > block_n, and another scale. Compare o and "
        "lse with reference.attention(q, k, v, is_causal=True, scale=scale).",
        "Multiply q and k by 20 as well: then the scores of a tile lie hundreds apart. With fp16 inputs o rounds to fp16, but lse stays "
        "float32, so compare lse tightly there: torch.allclose with atol = 1e-4.",
    ),
    solution=is_right,
    reasoning="Three pairs of lengths and dtypes, each with small and with large scores, find each of the sixteen bugs. NaN never "
    "compares equal, so a 0 / 0 fails by itself. With fp16 inputs it's lse that tells: o is rounded to fp16 anyway.",
    inputs=inputs,
    truth=truth,
    rule="True for a forward that is right, False for any other",
    mistakes=MISTAKES,
    exact=True,
    adapt=with_errors,
)
