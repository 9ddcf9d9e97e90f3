"""Chapter 1: safe and online softmax on hard rows, and merging as an operation: associative, commutative, with a neutral element."""

import functools
import itertools
import math

import pytest
import torch

from fa_tutorial import softmax


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Name -> a (3, n) float64 tensor. No row is all −inf.
ROWS = {
    "normal": lambda n: randn(3, n),
    "near −1e4": lambda n: randn(3, n) - 1e4,
    "up to ±1e4": lambda n: (2500 * randn(3, n)).clamp(-1e4, 1e4),
    "growing": lambda n: randn(3, n) + torch.arange(n),
    "some −inf": lambda n: randn(3, n).index_fill(1, torch.arange(0, n - 1, 2), -math.inf),
    "far apart": lambda n: torch.linspace(-700, 700, n, dtype=torch.float64).expand(3, n),
}
LENGTHS = (1, 2, 16, 17)
hard_rows = pytest.mark.parametrize("name", ROWS)


def same(got, want, tolerance=1e-12):
    torch.testing.assert_close(torch.as_tensor(got, dtype=torch.float64), want.double(), rtol=tolerance, atol=tolerance)


@hard_rows
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_softmax(name, dtype):
    """Safe, and online in blocks of any size, which takes float32 and float64."""
    in_blocks = [functools.partial(softmax.online_softmax, block=block) for block in (1, 3, 16, 1000)] if dtype.itemsize > 2 else []
    for n, function in itertools.product(LENGTHS, (softmax.safe_softmax, *in_blocks)):
        x = ROWS[name](n).to(dtype)
        before = x.clone()
        y, want = function(x), torch.softmax(x.double(), -1)
        assert y.dtype == dtype and y.shape == x.shape and torch.equal(x, before) and torch.isfinite(y).all()
        slack = 1e-12 if dtype == torch.float64 else 1e-5
        assert (y.double() - want).abs().max() <= 2 * (torch.softmax(x, -1).double() - want).abs().max() + slack


def test_safe_softmax_of_a_long_fp16_row():
    x = torch.zeros(70_000, dtype=torch.float16)  # l = 70,000 is more than fp16 holds
    torch.testing.assert_close(softmax.safe_softmax(x), torch.softmax(x, -1))


@hard_rows
def test_online_normalizer(name):
    for n in LENGTHS:
        for x in ROWS[name](n):
            m, l = softmax.online_normalizer(x)
            assert isinstance(m, float) and m == x.max()
            same(l, torch.exp(x - x.max()).sum())
            same(m + math.log(l), torch.logsumexp(x, 0))


@pytest.mark.parametrize("x", [[], [-math.inf], [-math.inf] * 3])
def test_online_normalizer_of_nothing(x):
    assert softmax.online_normalizer(torch.tensor(x)) == (-math.inf, 0.0)


EMPTY = (torch.tensor(-math.inf, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64))


def parts(name):
    """The pairs (m, l) of five parts of a row, the third one empty."""
    x = ROWS[name](100)[0]
    pieces = [x[:1], x[1:40], x[:0], x[40:90], x[90:]]
    pairs = [softmax.online_normalizer(piece) for piece in pieces]
    return x, [(torch.tensor(m, dtype=torch.float64), torch.tensor(l, dtype=torch.float64)) for m, l in pairs]


@hard_rows
def test_merge_is_associative_commutative_and_has_a_neutral_element(name):
    x, pairs = parts(name)
    for a, b, c in itertools.product(pairs, repeat=3):
        left, right = softmax.merge(*softmax.merge(*a, *b), *c), softmax.merge(*a, *softmax.merge(*b, *c))
        assert left[0] == right[0]
        same(left[1], right[1])
        assert softmax.merge(*a, *b) == softmax.merge(*b, *a)
    m, l = functools.reduce(lambda a, b: softmax.merge(*a, *b), pairs)
    assert m == x.max()
    same(l, torch.exp(x - m).sum())
    for pair in pairs:
        assert softmax.merge(*pair, *EMPTY) == softmax.merge(*EMPTY, *pair) == pair


def test_a_row_of_only_minus_inf_gives_nan_as_in_pytorch():
    x = torch.tensor([[-math.inf] * 5, [0.0] * 5])
    for y in (softmax.safe_softmax(x), softmax.online_softmax(x, 2)):
        torch.testing.assert_close(y, torch.softmax(x, -1), equal_nan=True)


def test_nan_stays_in_its_row_and_is_not_lost():
    x = randn(3, 7)
    x[1, 4] = math.nan
    for y in (softmax.safe_softmax(x), softmax.online_softmax(x, 3)):
        assert y[1].isnan().all() and y[[0, 2]].isfinite().all()
    for place in range(3):
        row = torch.ones(3).index_fill(0, torch.tensor(place), math.nan)
        assert math.isnan(softmax.online_normalizer(row)[1])
        o, lse = softmax.running_weighted_sum(in_blocks(row, torch.ones(3, 2), 1), 2)
        assert o.isnan().all() and lse.isnan()
    for pair in ((math.nan, 1.0, 0.0, 1.0), (0.0, 1.0, -math.inf, math.nan)):
        assert softmax.merge(*pair)[1].isnan()


def in_blocks(scores, values, block):
    return zip(scores.split(block), values.split(block), strict=True)


@hard_rows
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_running_weighted_sum(name, dtype):
    for n, block in itertools.product(LENGTHS, (1, 3, 16, 1000)):
        scores, values = ROWS[name](n)[0].to(dtype), randn(n, 5).to(dtype)
        o, lse = softmax.running_weighted_sum(in_blocks(scores, values, block), 5)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-12
        assert o.dtype == lse.dtype == dtype and o.shape == (5,) and lse.shape == ()
        same(o, torch.softmax(scores.double(), 0) @ values.double(), tolerance)
        same(lse, torch.logsumexp(scores.double(), 0), tolerance)


@pytest.mark.parametrize("scores", [[], [-math.inf] * 4])
def test_running_weighted_sum_over_no_key(scores):
    blocks = in_blocks(torch.tensor(scores), torch.ones(len(scores), 3), 2) if scores else ()
    o, lse = softmax.running_weighted_sum(blocks, 3)
    assert torch.equal(o, torch.zeros(3)) and lse == -math.inf
