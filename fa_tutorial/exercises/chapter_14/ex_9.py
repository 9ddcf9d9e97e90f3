import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting, show
from fa_tutorial.fp8 import tensor_core_sum, to_e4m3


def sums_are_right(forward):
    """Whether an FP8 forward adds up acc and l rightly: True or False.

    forward: (q, k, v) -> o = softmax(q kᵀ / √D) v. q, o: (rows, D); k, v: (keys, D); float64, no mask.
    """
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(rows, 64, generator=draw).double() for rows in (8, 16_384, 16_384))
    v = v + 1
    truth = torch.softmax(q @ k.T / 8, dim=1) @ v
    off = (forward(q, k, v) - truth).square().mean(dim=1) / truth.square().mean(dim=1)  # of each row
    return bool(off.max().sqrt() < 0.01)


MISTAKES = {"right and wrong are exchanged: return True for right sums": ("sqrt() < 0.01", "sqrt() > 0.01")}
MOST_QUERIES = 64
LENGTH = 16_384  # keys that the test is about
ROWS = 8  # one of them may have a fault
UNSEEDED = (
    "your test draws other inputs at each call, and its answer depends on them: seed the draw, or choose a bound (or a v) that leaves "
    "more room"
)


def in_a_chain(a, b):
    return tensor_core_sum(a, b, a.new_zeros(len(a), len(b)))


def nearly_in_a_chain(a, b):
    """Loses a fifth less, as a chain of other keys may: a test must not hang on that."""
    return 0.8 * in_a_chain(a, b) + 0.2 * exactly(a, b)


def by_blocks(a, b):
    return sum(in_a_chain(x, y) for x, y in zip(a.split(128, dim=1), b.split(128, dim=1), strict=True))


def in_long_chains(a, b):
    """An eighth of LENGTH each."""
    return sum(in_a_chain(x, y) for x, y in zip(a.split(LENGTH // 8, dim=1), b.split(LENGTH // 8, dim=1), strict=True))


def nearly_in_long_chains(a, b):
    """in_long_chains' loss, a fifth less."""
    return 0.8 * in_long_chains(a, b) + 0.2 * exactly(a, b)


def short_of_blocks(a, b):
    """1.2 % too small: less than in_long_chains, and more than rounding."""
    return 0.988 * by_blocks(a, b)


def by_length(a, b):
    """As a kernel that takes another way from some length on: right on every shorter one."""
    return (in_a_chain if a.shape[1] >= LENGTH else by_blocks)(a, b)


def exactly(a, b):
    return a @ b.T


def forward_with(add_acc, add_l, faulty=None, add_row=in_long_chains):
    """An FP8 forward: everything rounded as in the chapter, and the sums of acc and of l made in these ways. add_row: that of acc in the one
    row `faulty`, if there is one."""

    def rounded(x):
        x = x.double()
        scale = x.abs().max().clamp(min=1e-30) / 448
        return to_e4m3(x / scale), scale

    def sums(q, k, v, add_acc=add_acc, add_l=add_l, faulty=faulty):
        (q_8, q_scale), (k_8, k_scale), (v_8, v_scale) = map(rounded, (q, k, v))
        s = q_8 @ k_8.T * (q_scale * k_scale / q.shape[1] ** 0.5)
        p = to_e4m3(2**8 * torch.exp(s - s.amax(dim=1, keepdim=True)))
        acc = add_acc(p, v_8.T)
        if faulty is not None:
            row = slice(faulty, faulty + 1)  # empty, if there are fewer rows
            acc[row] = add_row(p[row], v_8.T)
        return acc * v_scale, add_l(p, torch.ones_like(p[:1]))

    def forward(q, k, v):
        acc, l = sums(q, k, v)
        return (acc / l).to(q.dtype)

    forward.asked = {}  # by test: what its first call gave
    forward.sums, forward.faulty = sums, faulty
    forward.is_right = faulty is None and not {in_a_chain, nearly_in_a_chain, by_length} & {add_acc, add_l}
    return forward


class Word(str):
    """ "True" or "False"; where that is wrong, `cause` says what the test's own q, k and v show."""

    cause = ""


@adapting
def in_words(answer, forward):
    """The answer, with a Word for its result."""
    given = []

    def watched(q, k, v):
        if len(q) > MOST_QUERIES:
            raise Wrong(f"your test asks for {len(q):,} queries, which takes minutes: a few show the same, {MOST_QUERIES} at most")
        given.append((q, k, v))
        return forward(q, k, v)

    result = answer(watched)
    word = Word(result.item() if isinstance(result, torch.Tensor) and result.numel() == 1 else result)
    if word not in ("True", "False"):
        raise Wrong(f"returns {show(result)}, want True or False")
    before, drawn = forward.asked.setdefault(answer, (word, given))
    if word != before and not alike(given, drawn):
        raise Wrong(UNSEEDED)
    if word != truth(forward):
        seen = [(*seen_by_the_test(forward, *call), number) for number, call in enumerate(given, 1)]
        _, cause, number = max(seen, default=(0, "your test must call forward", 0))  # the call in which the fault shows most
        word.cause = f"in call {number} of {len(given)}, {cause}" if len(given) > 1 else cause
        if forward.is_right and [bool(answer(other)) for other in (unscaled, twice_unscaled)] == [True, False]:
            word.cause = "your test takes softmax(q kᵀ) v for right: attention's scores are divided by √D"
            return word
        if given and max(len(k) for _, k, _ in given) < LENGTH:
            word.cause = f"the sums must be right over {LENGTH:,} keys, and a shorter chain loses less: {word.cause}"
    return word


def unscaled(q, k, v):
    return torch.softmax(q @ k.T, dim=1) @ v


def twice_unscaled(q, k, v):
    return 2 * unscaled(q, k, v)


def alike(given, drawn):
    """Whether two calls of a test ask with the same numbers."""
    return len(given) == len(drawn) and all(
        x.shape == y.shape and x.equal(y) for one, other in zip(given, drawn, strict=True) for x, y in zip(one, other, strict=True)
    )


def seen_by_the_test(forward, q, k, v):
    """How many times as far off o is as with exact sums on these inputs, and in words what a test can make of it."""
    q, k, v = (x.double() for x in (q, k, v))
    o = torch.softmax(q @ k.T / q.shape[1] ** 0.5, dim=1) @ v

    def off(x, right):
        return float(100 * ((x - right).square().mean() / right.square().mean()).sqrt())

    (acc, l), exact = forward.sums(q, k, v), forward.sums(q, k, v, exactly, exactly, None)
    wrong, rounding = off(acc / l, o), off(exact[0] / exact[1], o)
    times = (wrong + 0.01) / (rounding + 0.01)
    if forward.is_right:
        worst = max(off(x, right) for x, right in zip(acc / l, o, strict=True))
        return (
            rounding,
            f"on your {len(k):,} keys its o is {rounding:.2g} % off in rms, {worst:.2g} % in the worst row, which is the rounding of q, k, p "
            "and v: your test refuses that",
        )
    row = forward.faulty
    if row is not None and row >= len(q):
        return 0, f"the row with the fault is q's row {row}, and your test asks for {len(q)} of the {ROWS} rows among which it may be"
    if row is not None:
        one, rounded_one = off(acc[row] / l[row], o[row]), off(exact[0][row] / exact[1][row], o[row])
        alike = one < 2 * rounded_one + 0.01
        cause = (
            "they are too alike to be told apart, so choose another q, k or v, or more keys" if alike else "your test lets that row through"
        )
        return (one + 0.01) / (rounded_one + 0.01), (
            f"on your {len(k):,} keys row {row} of o is {one:.2g} % off, with exact sums {rounded_one:.2g} %, and all {len(q)} rows together "
            f"are {wrong:.2g} % off: {cause}"
        )
    found = (
        f"on your {len(k):,} keys acc is {off(acc, exact[0]):.2g} % off and l {off(l, exact[1]):.2g} %, so o is {wrong:.2g} % off in rms, "
        f"and with exact sums {rounding:.2g} %"
    )
    if wrong < 2 * rounding + 0.01:
        return times, f"{found}: they are too alike to be told apart, so choose another q, k or v, or more keys"
    sign = "large" if (acc / l - o).mean() * o.mean() > 0 else "small"
    return times, f"{found}: its o is too {sign}, and your test lets that through"


def truth(forward):
    return str(forward.is_right)


def inputs():
    for words, sums in (
        ("acc and l exact", (exactly, exactly)),
        ("acc in one chain, l exact", (in_a_chain, exactly)),
        ("acc and l in one chain each", (in_a_chain, in_a_chain)),
        ("acc exact, l in one chain", (exactly, in_a_chain)),
        ("acc and l in chains that lose a fifth less, as with other keys", (nearly_in_a_chain, nearly_in_a_chain)),
        ("acc and l by blocks of 128 keys", (by_blocks, by_blocks)),
        ("acc by blocks of 128 keys, l exact", (by_blocks, exactly)),
        ("acc and l by blocks of 128 keys, but row 7's acc in chains of 2,048", (by_blocks, by_blocks, 7)),
        ("acc and l by blocks of 128 keys, but row 2's acc in chains of 2,048", (by_blocks, by_blocks, 2)),
        (
            "acc and l by blocks of 128 keys, but row 2's acc in chains of 2,048 that lose a fifth less, as with other keys",
            (by_blocks, by_blocks, 2, nearly_in_long_chains),
        ),
        ("acc and l by blocks below 16,384 keys, and in one chain each from there on", (by_length, by_length)),
    ):
        yield case(forward_with(*sums), on=f"a forward with {words}")


def note(test):
    """Of a bound that right sums only just meet, and of a test that looks at all rows together."""
    right = forward_with(by_blocks, by_blocks)

    def a_quarter_worse(q, k, v):
        exact = torch.softmax(q.double() @ k.double().T / q.shape[1] ** 0.5, dim=1) @ v.double()
        return (exact + 1.25 * (right(q, k, v) - exact)).to(q.dtype)

    if not test(a_quarter_worse):
        return "your bound is tight: with a quarter more rounding, right sums would fail"
    one, every = forward_with(by_blocks, by_blocks, ROWS - 1, short_of_blocks), forward_with(short_of_blocks, by_blocks)
    if test(one) and not test(every):
        return "one row that is 1.2 % off passes, and eight don't: next time look at each row's own error"
    return ""


EXERCISE = Exercise(
    task="Write the test that tells right sums of an FP8 forward from chains that are too long.",
    hints=(
        "A kernel may add up differently at another length, so which length must the test take? And which v lets what acc loses show in o?",
        "With v of mean 0 rounding costs 5 % of o, and hides one chain of acc. With v + 1 and 16,384 keys it costs 0.13 %, one chain of acc 19 %, and one of acc "
        "and of l 8 %.",
        "truth = torch.softmax(q @ k.T / D**0.5, dim=1) @ v, for a few queries. The result is whether in each row the rms of forward(q, k, v) − truth is below 1 % of "
        "that row's.",
    ),
    solution=sums_are_right,
    reasoning="With a mean as large as v's spread, each chain costs 8 % of o or more, and rounding 0.13 %. So one bound between the two tells all of them apart. With a larger "
    "mean acc loses more than l, no longer less: with v + 3 both cost 3 %, which the bound still shows. One row in chains of 2,048 is 2.4 % off, and all rows together, "
    "of which the others are right, 0.9 %: so the largest error of a row must stay below the bound. Chains of 256 keys pass: with such scores they cost 0.2 %. A peaked row would show them.",
    inputs=inputs,
    truth=truth,
    rule="True where acc and l are exact or summed by blocks in every row, False where one of them is one chain, or acc is in chains of 2,048 keys "
    "in a single row",
    mistakes=MISTAKES,
    adapt=in_words,
    note=note,
)
