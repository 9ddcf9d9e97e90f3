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
    q, k, v = (torch.randn(rows, 64, generator=draw).double() for rows in (8, 16_384, 16_384))
    v = v + 3  # nearly all of one sign
    truth = torch.softmax(q @ k.T / 8, dim=1) @ v
    off = (forward(q, k, v) - truth).square().mean(dim=1) / truth.square().mean(dim=1)
    return bool((off.sqrt() < 0.005).all())


MISTAKES = {"right and wrong are exchanged: return True for right sums": ("< 0.005", "> 0.005")}


def exactly(a, b):
    return a @ b.T


def in_a_chain(a, b):
    return tensor_core_sum(a, b, a.new_zeros(len(a), len(b)))


def in_chains_of(keys):
    return lambda a, b: sum(in_a_chain(x, y) for x, y in zip(a.split(keys, dim=1), b.split(keys, dim=1), strict=True))


by_blocks, in_long_chains = in_chains_of(128), in_chains_of(2048)


def by_length(a, b):
    """As a kernel that takes another way from some length on: right on every shorter one."""
    return (in_a_chain if a.shape[1] >= 16_384 else by_blocks)(a, b)


def in_row(row):
    """By blocks, but this row in chains of 2,048."""

    def add_up(a, b):
        c = by_blocks(a, b)
        c[row : row + 1] = in_long_chains(a[row : row + 1], b)  # of no row, if there are fewer
        return c

    return add_up


def forward_with(add_acc, add_l, largest, last_first, is_right):
    """An FP8 forward: all is rounded as in the chapter, v's largest number as `largest`, and acc and l are summed in these ways."""

    def forward(q, k, v):
        if len(q) > 64:
            raise Wrong(f"your test asks for {len(q):,} queries, which takes minutes: a few show the same, 64 at most")
        if last_first:
            k, v = k.flip(0), v.flip(0)
        (q_8, q_scale), (k_8, k_scale) = (quantise_blocks(x.double(), len(x)) for x in (q, k))
        v_scale = v.double().abs().max() / largest
        s = q_8 @ k_8.T * (q_scale * k_scale / q.shape[1] ** 0.5)
        p = to_e4m3(2**8 * torch.exp(s - s.amax(dim=1, keepdim=True)))
        acc, l = add_acc(p, to_e4m3(v.double() / v_scale).T), add_l(p, torch.ones_like(p[:1]))
        return (acc * v_scale / l).to(q.dtype)

    forward.is_right = is_right
    return forward


def truth(forward):
    return forward.is_right


def inputs():
    right = "its sums are right: your test must let through the rounding of q, k, p and v, and what blocks of 128 keys lose"
    chain = "its sums are wrong, and your test doesn't see it: choose q, k, v and a bound with which it does"
    longer = "its sums are wrong, though right below 16,384 keys: take as many, and v with which acc and l lose different shares, or a lower bound"
    row = "one row's acc is wrong, and your test doesn't see it: take 8 queries, each row's own error, and v and a bound that show it"
    both = "your test doesn't see what acc and l lose: the shares are alike, so choose v with which they differ more, or a lower bound"
    kernels = ((256, True), (448, False), (256, False), (448, True))
    for words, add_acc, add_l, rule, tried in (
        ("acc and l exact", exactly, exactly, right, 1),
        ("acc and l by blocks of 128 keys", by_blocks, by_blocks, right, 2),
        ("acc in one chain, l exact", in_a_chain, exactly, chain, 1),
        ("acc exact, l in one chain", exactly, in_a_chain, chain, 2),
        ("acc and l in one chain each, from 16,384 keys on", by_length, by_length, longer, 3),
        ("acc and l by blocks, but row 7's acc in chains of 2,048", in_row(7), by_blocks, row, 2),
        ("acc and l by blocks, but row 2's acc in chains of 2,048", in_row(2), by_blocks, row, 1),
        ("acc and l in chains of 2,048", in_long_chains, in_long_chains, both, 4),
    ):
        for largest, last_first in kernels[:tried]:
            end = "from the last key to the first" if last_first else "from the first key to the last"
            on = f"a forward with {words}, {end}, v's largest number stored as {largest}"
            yield case(forward_with(add_acc, add_l, largest, last_first, rule is right), on=on, otherwise=rule)


EXERCISE = Exercise(
    task="Write the test that tells right sums of an FP8 forward from chains that are too long.",
    hints=(
        "With v of mean 0 acc's cuts cancel, and with v + 1 still some do. With which v does none, so that acc loses the most?",
        "q and k may be torch.randn's. Add 3 to v, and nearly all of it has one sign. A softmax in float64 gives the truth.",
        "In each row, divide the error's rms by the truth's. By blocks that is 0.2 % at most, and in the worst row of chains of 2,048 more "
        "than 1 %: is each row below 0.5 %?",
    ),
    solution=sums_are_right,
    reasoning="v + 3 has one sign, so acc loses 3.5 % in chains of 2,048. l loses 2 %, because p has 4 bits and p v has 8. So the worst row is more than 1 % off, by blocks "
    "0.2 % at most. With v + 1 some of acc's cuts cancel: it loses 2.3 %, l's 2 % nearly hide that. In one chain of all keys the shares are alike, too, but not in each row.",
    inputs=inputs,
    truth=truth,
    rule="True for right sums, False for wrong ones",
    mistakes=MISTAKES,
    exact=True,
)
