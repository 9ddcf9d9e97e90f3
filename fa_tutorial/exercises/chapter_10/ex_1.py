import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_10.jitted_mod import Aux, launched
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import check_begun
from fa_tutorial.matmul import tl, triton


@triton.jit
def window(b, h, i, j, aux):
    """Query i sees its own position and the aux.left keys before it. aux.shift: S_k − S_q."""
    distance = j - (i + aux.shift)  # 0 on the diagonal, negative in the past
    return (distance <= 0) & (distance >= -aux.left)


@triton.jit
def run_mask(seen_ptr, S_q, S_k, aux, MOD: tl.constexpr):
    """Store 1.0 for each pair that MOD lets see, (S_q, S_k) float32. A program has a tile of 8 queries and 16 keys."""
    i = tl.program_id(0) * 8 + tl.arange(0, 8)[:, None]
    j = tl.program_id(1) * 16 + tl.arange(0, 16)[None, :]
    inside, seen = (i < S_q) & (j < S_k), MOD(0, 0, i, j, aux)
    tl.static_assert(seen.dtype == tl.int1, "a mask mod returns booleans, as comparisons do")
    tl.store(seen_ptr + i * S_k + j, tl.where(inside & seen, 1.0, 0.0), mask=inside)


def adapt(mod):
    """The mod as a function of the lengths and left that gives the (S_q, S_k) matrix of what is seen."""
    check_begun(mod)

    def on_pairs(S_q, S_k, left):
        seen = torch.empty(S_q, S_k, device=hardware.device())
        grid = triton.cdiv(S_q, 8), triton.cdiv(S_k, 16)
        launched(lambda: run_mask[grid](seen, S_q, S_k, Aux(left, S_k - S_q), MOD=mod))
        return seen

    return on_pairs


BOTH, OWN = "(distance <= 0) & (distance >= -aux.left)", "j - (i + aux.shift)"
MISTAKES = {
    "every pair is seen: join the two comparisons by &, so that both must hold": (BOTH, BOTH.replace("&", "|")),
    ("no key is too far back: distance >= −aux.left is missing or has no effect, as without brackets, because & binds tighter than "
    "<= and >="): (BOTH, "distance <= 0"),
    "later keys are seen: the window ends at the query's own position": (BOTH, "distance >= -aux.left"),
    "the window starts at the top left: query i stands at key i + aux.shift": (OWN, "j - i"),
    "the window is one key too narrow: aux.left counts the keys before the query's own": (">= -aux.left", "> -aux.left"),
    "the query's own key is hidden: it lies at distance 0": (BOTH, BOTH.replace("<= 0", "< 0")),
    "the window is one key too wide: aux.left counts the keys before the query's own": ("-aux.left", "-aux.left - 1"),
    "the window lies ahead of the query: the distance is negative for a key in the past": (OWN, "(i + aux.shift) - j"),
    "seen and hidden are exchanged: return True for the pairs that are seen": (BOTH, "(distance > 0) | (distance < -aux.left)"),
}  # fmt: skip


def truth(S_q, S_k, left):
    distance = torch.arange(S_k) - (torch.arange(S_q)[:, None] + S_k - S_q)
    return ((distance <= 0) & (distance >= -left)).double()


def inputs():
    def pairs(S_q, S_k, left, otherwise="", **options):
        on = f"S_q = {S_q}, S_k = {S_k}, window of {left} key{'s' * (left != 1)} and the query's own"
        return case(S_q, S_k, left, on=on, otherwise=otherwise, **options)

    yield pairs(4, 4, 1)
    yield pairs(5, 5, 2)
    yield pairs(24, 24, 9, "i and j are the numbers of a tile's queries and keys: a tile may be anywhere, and of any shape")
    yield pairs(2, 4, 1, edge="lengths")
    yield pairs(4, 2, 1, edge="lengths")


EXERCISE = Exercise(
    task="Write the mask of a causal window as a mask mod.",
    conditions={"lengths": "S_q and S_k may differ: query i stands at key i + S_k − S_q"},
    hints=(
        "On which key does query i stand? The last query stands on the last key.",
        "distance = j − (i + aux.shift) is 0 there, negative before it, positive after it.",
        "Two comparisons, each in its own brackets, joined by &: distance is at most 0, and at least −aux.left.",
    ),
    solution=window,
    reasoning="i + S_k − S_q is the key on query i's diagonal, as in the causal mask. A causal window lets distances from −left to 0 "
    "through, that is left + 1 keys.",
    more="The package's sliding_window also has a right end, and leaves out the comparison of a side without a limit.",
    inputs=inputs,
    truth=truth,
    rule="query i sees key j where the distance, j − (i + aux.shift), is at most 0 and at least −aux.left",
    mistakes=MISTAKES,
    adapt=adapt,
)
