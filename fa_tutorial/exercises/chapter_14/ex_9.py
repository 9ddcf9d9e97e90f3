import torch

from fa_tutorial.exercises.chapter_14.ex_2 import quantise_blocks
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong
from fa_tutorial.fp8 import tensor_core_sum, to_e4m3


def sums_are_right(forward):
    """Whether an FP8 forward adds up acc and l rightly: True or False.

    forward: (q, k, v) -> o = softmax(q kᵀ / √D) v. q, o: (rows, D); k, v: (keys, D); float64, no mask.
    """
    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(rows, 64, generator=draw).double() for rows in (8, 16_384))
    k = k / 2
    q[:, 0], k[:, 0], k[0] = 8, 0, 0
    k[0, 0] = 9  # key 0 is heavy: its score is 9 for each query
    v = torch.ones_like(k)
    v[0], v[:, 0] = 0, 0
    v[0, 0] = 1  # column 0 is 1 at the heavy key, the others at all other keys
    o = forward(q, k, v)
    return bool(((o[:, 0] + o[:, 1] - 1).abs() < 0.01).all())


MISTAKES = {"right and wrong are exchanged: return True for right sums": ("< 0.01", "> 0.01")}


def exactly(a, b):
    return a @ b.T


def in_a_chain(a, b):
    return tensor_core_sum(a, b, a.new_zeros(len(a), len(b)))


def in_chains_of(keys):
    return lambda a, b: sum(in_a_chain(x, y) for x, y in zip(a.split(keys, dim=1), b.split(keys, dim=1), strict=True))


by_blocks, in_long_chains = in_chains_of(128), in_chains_of(2048)


def nearly(add):
    """Loses a fifth less: a test's bound must leave room for that."""
    return lambda a, b: 0.8 * add(a, b) + 0.2 * exactly(a, b)


def up_to_256(add):
    """By a scale for v with which its largest number is stored as 256, not as 448."""
    return lambda a, b: 1.75 * add(a, to_e4m3(b / 1.75))


def by_length(a, b):
    """As a kernel that takes another way from some length on: right on every shorter one."""
    return (in_a_chain if a.shape[1] >= 16_384 else by_blocks)(a, b)


def in_row(row, add):
    """By blocks, but this row by `add`."""

    def add_up(a, b):
        c = by_blocks(a, b)
        c[row : row + 1] = add(a[row : row + 1], b)  # of no row, if there are fewer
        return c

    return add_up


def forward_with(add_acc, add_l, is_right):
    """An FP8 forward: everything rounded as in the chapter, and the sums of acc and of l made in these ways."""

    def forward(q, k, v):
        if len(q) > 64:
            raise Wrong(f"your test asks for {len(q):,} queries, which takes minutes: a few show the same, 64 at most")
        (q_8, q_scale), (k_8, k_scale), (v_8, v_scale) = (quantise_blocks(x.double(), len(x)) for x in (q, k, v))
        s = q_8 @ k_8.T * (q_scale * k_scale / q.shape[1] ** 0.5)
        p = to_e4m3(2**8 * torch.exp(s - s.amax(dim=1, keepdim=True)))
        return (add_acc(p, v_8.T) * v_scale / add_l(p, torch.ones_like(p[:1]))).to(q.dtype)

    forward.is_right = is_right
    return forward


def truth(forward):
    return forward.is_right


def inputs():
    right = "its sums are right: your test must let through the rounding of q, k, p and v, and what blocks of 128 keys lose"
    chain = "its sums are wrong, and your test doesn't see it: choose q, k, v and a bound with which it does"
    longer = "its sums are wrong from 16,384 keys on, and right below: take as many keys"
    row = "one row's acc is wrong, and your test doesn't see it: it takes 8 queries, each row's own error, light scores that differ, as 14 bits may hold equal p exactly, and enough light weight for your bound"
    both = "your test doesn't see it, as acc and l lose nearly the same share unless a key comes first that is heavy enough and that acc doesn't meet, beside light p that differ"
    for words, add_acc, add_l, rule in (
        ("acc and l exact", exactly, exactly, right),
        ("acc in one chain, l exact", in_a_chain, exactly, chain),
        ("acc exact, l in one chain", exactly, in_a_chain, chain),
        ("acc and l in one chain each, which lose a fifth less", nearly(in_a_chain), nearly(in_a_chain), chain),
        ("acc and l by blocks of 128 keys", by_blocks, by_blocks, right),
        ("acc and l by blocks below 16,384 keys, and in one chain each from there on", by_length, by_length, longer),
        ("acc and l by blocks, but row 7's acc in chains of 2,048", in_row(7, in_long_chains), by_blocks, row),
        ("acc and l by blocks, but row 2's in chains of 2,048 that lose a fifth less", in_row(2, nearly(in_long_chains)), by_blocks, row),
        ("acc and l in chains of 2,048, v's largest number stored as 256", up_to_256(in_long_chains), in_long_chains, both),
    ):
        yield case(forward_with(add_acc, add_l, rule is right), on=f"a forward with {words}", otherwise=rule)


EXERCISE = Exercise(
    task="Write the test that tells right sums of an FP8 forward from chains that are too long.",
    hints=(
        "A kernel may add up differently at another length, so which length must the test take? And which v lets what acc loses show in o?",
        "If all of v is 1, o is 1 however q, k and p are rounded. But then acc and l lose nearly the same. Can two columns of v share the keys, so that their o add up to 1?",
        "Let key 0 have a score of 9 for each query, and the others scores that differ, as randn's do: 14 bits may hold equal p exactly. "
        "One column of v is 1 at key 0 alone, and another at all other keys. "
        "Is o of the one plus o of the other within 1 % of 1, in each row?",
    ),
    solution=sums_are_right,
    reasoning="The two columns' o add up to 1 however q, k and p are rounded, so they show the sums alone. l begins with the heavy key, whose last bit is 1/32, and acc "
    "of the other keys doesn't. So in chains of 2,048 l and acc lose different shares, and the total is 4 % off. One row's acc in such chains lacks 2 %, and l by blocks 0.3 % "
    "at most: a bound of 1 % in each row tells them apart.",
    inputs=inputs,
    truth=truth,
    rule="True for right sums, False for wrong ones",
    mistakes=MISTAKES,
    exact=True,
)
