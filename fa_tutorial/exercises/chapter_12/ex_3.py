import torch

from fa_tutorial.exercises.chapter_12.ex_2 import fa2_softmax
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.ring_play import verdict
from fa_tutorial.exercises.running import Wrong, adapting, kind
from fa_tutorial.reading import BLOCK_N, SCALE, their_loop
from fa_tutorial.reference import attention


def two_tests():
    """(S_q, S_k, lower) of a test that changes 3 and 4 pass, and of one that both fail."""
    both_pass = 24, 46, 0.0  # row 0 sees keys 0 … 22, and the last two blocks begin at key 16
    both_fail = 31, 100, 110.0  # row 0 sees a part of the third block from the end; e^−110 is 0
    return both_pass, both_fail


FEWEST, MOST, D, MOST_KEYS, LOWEST = 24, 31, 16, 1024, 1e6
CHANGES = {3: {"peel": False, "unset": 0.0}, 4: {"masked": 2}}
RIGHT, WRONG = 1e-3, 1e-2  # the largest error of o that passes a test, and the least that fails it
ARE_SEEN = {
    3: "change 3 fails the first test: so far below 0, e to the power of a score has few digits or none in float32",
    4: "change 4 fails the first test: a block before the last two holds a key after S_k − S_q, the last one that row 0 sees",
}
HIDE = {
    3: "change 3 passes the second test: float32 still holds e to the power of these scores, so a shift of 0 is as good as another",
    4: "change 4 passes the second test: row 0 sees every key before the last two blocks, so only these two need a mask",
}
SWAPPED = "the two tests are swapped: return the one that changes 3 and 4 pass first"
FIRST, SECOND = "both_pass = 24, 46, 0.0", "both_fail = 31, 100, 110.0"
MISTAKES = {
    ARE_SEEN[3]: (FIRST, "both_pass = 24, 46, 110.0"),
    ARE_SEEN[4]: (FIRST, "both_pass = 24, 66, 0.0"),
    HIDE[3]: (SECOND, "both_fail = 31, 100, 0.0"),
    SWAPPED: ("return both_pass, both_fail", "return both_fail, both_pass"),
    HIDE[4]: (SECOND, "both_fail = 24, 46, 110.0"),
}


def errors(S_q, S_k, lower):
    """The largest errors of o of the loop as it is, None, and of each change, with scaled scores that lie around −lower."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(S, D, generator=draw) for S in (S_q, S_k, S_k))
    q[:, 0], k[:, 0] = 1.0, -lower / SCALE
    truth = attention(*(x[None, None] for x in (q, k, v)), scale=SCALE, is_causal=True)[0][0, 0]
    changes = {None: {}, **CHANGES}
    return {name: float((their_loop(fa2_softmax, q, k, v, **change) - truth).abs().max()) for name, change in changes.items()}


def valid(test, which):
    """The three numbers of a test. Wrong where they are none, or out of bounds."""
    if not isinstance(test, tuple | list) or len(test) != 3:
        raise Wrong(f"the {which} test is {kind(test)}, want a tuple (S_q, S_k, lower)")
    S_q, S_k, lower = test
    for name, length, least, most in (("S_q", S_q, FEWEST, MOST), ("S_k", S_k, 2 * BLOCK_N + 1, MOST_KEYS)):
        if isinstance(length, bool) or not isinstance(length, int) or not least <= length <= most:
            raise Wrong(f"{name} of the {which} test is {length!r}, want a whole number from {least} to {most:,}")
    if S_k % BLOCK_N == 0:
        raise Wrong(f"S_k of the {which} test is {S_k}, a multiple of {BLOCK_N}: want a last block that isn't full")
    if (edge := (S_k - S_q) % BLOCK_N) in (0, BLOCK_N - 1):
        raise Wrong(f"S_k − S_q of the {which} test is {S_k - S_q}, which is {edge} modulo {BLOCK_N}: want neither 0 nor {BLOCK_N - 1}")
    if isinstance(lower, bool) or not isinstance(lower, int | float) or not 0 <= lower <= LOWEST:
        raise Wrong(f"lower of the {which} test is {lower!r}, want a number from 0 to {LOWEST:,.0f}")
    return S_q, S_k, float(lower)


def judged(test, which, told):
    """What comes of a test, in words, with what to tell of the first change that should have done otherwise."""
    found = errors(*valid(test, which))
    if not found.pop(None) <= RIGHT:
        raise Wrong(f"the loop as it is fails the {which} test: scores near −{test[2]:,g} have too few digits in float32")
    want, words, cause = "passes" if told is ARE_SEEN else "fails", [], ""
    for change, error in found.items():
        word = "passes" if error <= RIGHT else "fails" if error >= WRONG else "is off by less than 0.01"
        words.append(f"change {change} {word}")
        if word != want:
            small = told is HIDE and word != "passes"
            few = ": with fewer keys one that leaks weighs more" if change == 4 else ""
            cause = cause or (f"change {change} is off by less than 0.01, which is too little for a test{few}" if small else told[change])
    return verdict(" and ".join(words), cause)


@adapting
def adapt(answer):
    """The answer with the verdicts of their loop in place of its tests."""
    tests = answer()
    if not isinstance(tests, tuple | list) or len(tests) != 2:
        raise Wrong(f"returns {kind(tests)}, want two tuples (S_q, S_k, lower)")
    first, second = judged(tests[0], "first", ARE_SEEN), judged(tests[1], "second", HIDE)
    if (second, first) == truth():
        first = verdict(first, SWAPPED)
    return first, second


def truth():
    return tuple(" and ".join(f"change {change} {word}" for change in CHANGES) for word in ("passes", "fails"))


def inputs():
    yield case(on="run with their loop")


EXERCISE = Exercise(
    task="Find a test that two broken loops pass, and one that both fail.",
    hints=(
        "Only the lengths decide what change 4 does, and only the size of the scores what change 3 does. Which is the last key that row 0 "
        "sees? And what is p if a score is far below the shift that it is measured from?",
        "Row 0 sees keys 0 … S_k − S_q. Change 4 is right where all blocks before the last two end there or earlier: with fewer rows than 32, "
        "row 0 stands nearer to the last key. Change 3 begins with row_max = 0 and row_sum = 0, so p is e to the power of the score as long as no score exceeds 0.",
        "Write b for the first key of the last two blocks: 16 · (⌈S_k / 16⌉ − 2). Change 4 passes where S_k − S_q is at least b − 1. For change 3: "
        "from which x on is e^−x 0 in float32, whose smallest number is 2^−149?",
    ),
    solution=two_tests,
    reasoning="Of 46 keys row 0 of 24 sees keys 0 … 22, and the last two blocks begin at key 16. So the block before them needs no mask, "
    "though the diagonal starts inside a block: 24 rows end before they reach a third. Of 100 keys row 0 of 31 sees keys 0 … 69, and the "
    "last two blocks begin at key 80: block 4, keys 64 … 79, needs a mask. Scores around −110 lie so far below change 3's shift of 0 that p, row_sum and acc are 0.",
    inputs=inputs,
    truth=truth,
    rule="changes 3 and 4 pass the first test, and both fail the second",
    mistakes=MISTAKES,
    adapt=adapt,
    parts=("the first test", "the second test"),
)
