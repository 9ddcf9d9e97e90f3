import torch

from fa_tutorial.exercises.chapter_12.ex_2 import fa2_softmax
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting, kind
from fa_tutorial.reading import BLOCK_N, SCALE, their_loop
from fa_tutorial.reference import attention


def two_tests():
    """(S_q, S_k, lower) of a test that changes 3 and 4 pass, and of one that both fail."""
    both_pass = 24, 46, 0.0  # row 0 sees keys 0 … 22, and the last two blocks begin at key 16
    both_fail = 31, 100, 30.0  # row 0 sees a part of the third block from the end; e^−30 is 0 in fp16
    return both_pass, both_fail


D = 16
CHANGES = {3: {"peel": False, "unset": 0.0}, 4: {"masked": 2}}
FIRST, SECOND = "both_pass = 24, 46, 0.0", "both_fail = 31, 100, 30.0"
MISTAKES = {
    "change 3 fails the first test: so far below 0, e to the power of a score has few digits or none in fp16": (
        FIRST, "both_pass = 24, 46, 30.0"),
    "change 4 fails the first test: a block before the last two holds a key after S_k − S_q, the last one that row 0 sees": (
        FIRST, "both_pass = 24, 66, 0.0"),
    "change 3 passes the second test: fp16 still holds e to the power of these scores, so a shift of 0 is as good as another": (
        SECOND, "both_fail = 31, 100, 0.0"),
    "change 4 passes the second test: row 0 sees every key before the last two blocks, so only these two need a mask": (
        SECOND, "both_fail = 24, 46, 30.0"),
    "the two tests are swapped: return the one that changes 3 and 4 pass first": ("return both_pass, both_fail", "return both_fail, both_pass"),
}  # fmt: skip


def errors(S_q, S_k, lower):
    """The largest errors of o of the loop as it is, None, and of each change, with scaled scores that lie around −lower."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(S, D, generator=draw) for S in (S_q, S_k, S_k))
    q[:, 0], k[:, 0] = 1.0, -lower / SCALE
    truth = attention(*(x[None, None] for x in (q, k, v)), scale=SCALE, is_causal=True)[0][0, 0]
    changes = {None: {}, **CHANGES}
    return {name: float((their_loop(fa2_softmax, q, k, v, **change) - truth).abs().max()) for name, change in changes.items()}


def judged(test, which):
    """What comes of a test, in words. Wrong where it isn't one of those that the task allows."""
    if not isinstance(test, tuple | list) or len(test) != 3:
        raise Wrong(f"the {which} test is {kind(test)}, want a tuple (S_q, S_k, lower)")
    S_q, S_k, lower = test
    lengths = type(S_q) is type(S_k) is int and 24 <= S_q <= 31 and 33 <= S_k <= 1024 and S_k % BLOCK_N != 0
    if not lengths or (S_k - S_q) % BLOCK_N in (0, BLOCK_N - 1) or not 0 <= lower <= 1e6:
        want = "S_q is 24 to 31, S_k 33 to 1,024 and no multiple of 16, S_k − S_q neither 0 nor 15 modulo 16, lower 0 to 1,000,000"
        raise Wrong(f"the {which} test is {(S_q, S_k, lower)}: {want}")
    found = errors(S_q, S_k, float(lower))
    if not found.pop(None) <= 1e-3:
        raise Wrong(f"the loop as it is fails the {which} test: scores near −{lower:,g} have too few digits in float32")
    words = ("passes" if error <= 1e-3 else "neither passes nor fails" if error < 1e-2 else "fails" for error in found.values())
    return " and ".join(f"change {change} {word}" for change, word in zip(CHANGES, words, strict=True))


@adapting
def adapt(answer):
    """The answer with the verdicts of their loop in place of its tests."""
    tests = answer()
    if not isinstance(tests, tuple | list) or len(tests) != 2:
        raise Wrong(f"returns {kind(tests)}, want two tuples (S_q, S_k, lower)")
    return judged(tests[0], "first"), judged(tests[1], "second")


def truth():
    return "change 3 passes and change 4 passes", "change 3 fails and change 4 fails"


def inputs():
    yield case(on="run with their loop")


EXERCISE = Exercise(
    task="Find a test that two broken loops pass, and one that both fail.",
    hints=(
        "Only the lengths decide what change 4 does, and only the size of the scores what change 3 does. Which is the last key that row 0 "
        "sees? And what is p in fp16 if a score is far below the shift that it is measured from?",
        "Row 0 sees keys 0 … S_k − S_q. Change 4 is right where all blocks before the last two end there or earlier: with fewer rows than 32, "
        "row 0 stands nearer to the last key. Change 3 begins with row_max = 0 and row_sum = 0, so p is e to the power of the score as long as no score exceeds 0.",
        "Write b for the first key of the last two blocks: 16 · (⌈S_k / 16⌉ − 2). Change 4 passes where S_k − S_q is at least b − 1. For change 3: "
        "from which x on is e^−x 0 in fp16, whose smallest number is 2^−24?",
    ),
    solution=two_tests,
    reasoning="Of 46 keys row 0 of 24 sees keys 0 … 22, and the last two blocks begin at key 16. So the block before them needs no mask, "
    "though the diagonal starts inside a block: 24 rows end before they reach a third. Of 100 keys row 0 of 31 sees keys 0 … 69, and the "
    "last two blocks begin at key 80: block 4, keys 64 … 79, needs a mask. Scores around −30 lie so far below change 3's shift of 0 that p is 0 in fp16, and so is acc.",
    inputs=inputs,
    truth=truth,
    rule="changes 3 and 4 pass the first test, and both fail the second",
    mistakes=MISTAKES,
    adapt=adapt,
    parts=("the first test", "the second test"),
)
