"""Chapter 4: both loop orders against float64, the causal tiles and the traffic against counting."""

import itertools
import math

import pytest
import torch

from fa_tutorial import algorithm, ledger, reference
from fa_tutorial.algorithm import Traffic

ORDERS = {"FA2": algorithm.flash_forward, "FA1": algorithm.flash_forward_fa1}
orders = pytest.mark.parametrize("flash", ORDERS.values(), ids=ORDERS)
causal = pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])


def randn(*shape, seed, dtype):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def make(S_q, S_k, D=8, B=2, H_q=2, H_k=None, dtype=torch.float32):
    H_k = H_q if H_k is None else H_k
    return tuple(randn(B, H, S, D, seed=i, dtype=dtype) for i, (H, S) in enumerate(((H_q, S_q), (H_k, S_k), (H_k, S_k))))


def check(flash, q, k, v, block_m, block_n, is_causal=False, scale=None, slack=0.0):
    before = [x.clone() for x in (q, k, v)]
    o, lse = flash(q, k, v, block_m, block_n, is_causal, scale)
    truth, truth_lse = reference.attention(q, k, v, is_causal, scale)
    plain = reference.naive_attention(q, k, v, is_causal, scale)
    reference.assert_accurate(o, truth, plain.where(torch.isfinite(plain), 0), slack=slack)
    assert lse.dtype == torch.promote_types(q.dtype, torch.float32)
    reference.assert_lse_accurate(lse, truth_lse, q.dtype)
    assert all(torch.equal(x, y) for x, y in zip((q, k, v), before, strict=True)), "an input changed"


# ---------------------------------------------------------------- results


@orders
@causal
@pytest.mark.parametrize(("block_m", "block_n"), [(1, 1), (1, 5), (4, 1), (4, 4), (3, 7), (64, 64)])
@pytest.mark.parametrize(("S_q", "S_k"), [(1, 1), (1, 9), (9, 1), (8, 8), (7, 13), (13, 7), (0, 5), (5, 0)])
def test_shapes_and_block_sizes(flash, S_q, S_k, block_m, block_n, is_causal):
    check(flash, *make(S_q, S_k), block_m, block_n, is_causal)
    check(flash, *make(S_q, S_k, dtype=torch.float64), block_m, block_n, is_causal)


@orders
@causal
@pytest.mark.parametrize(("H_q", "H_k"), [(6, 2), (4, 1)], ids=["GQA", "MQA"])
def test_grouped_queries(flash, H_q, H_k, is_causal):
    check(flash, *make(11, 14, H_q=H_q, H_k=H_k), 4, 5, is_causal)


@orders
@causal
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_half_precision(flash, dtype, is_causal):
    """FA1 rounds o to its dtype once for every block of keys: each may cost another half unit of the largest value."""
    q, k, v = make(65, 130, D=32, dtype=dtype)
    roundings = -(-130 // 32) if flash is algorithm.flash_forward_fa1 else 0
    check(flash, q, k, v, 16, 32, is_causal, slack=roundings * torch.finfo(dtype).eps / 2 * float(v.abs().max()))


@orders
@pytest.mark.parametrize("scale", [0.3, 0, 1.0, -2.0])
def test_scale(flash, scale):
    check(flash, *make(9, 12), 4, 5, True, scale)


@orders
def test_logits_of_any_size(flash):
    q, k, v = make(9, 40)
    for logits in (torch.linspace(-1e4, 1e4, 40), torch.linspace(1e4, -1e4, 40), torch.full((40,), -1e4), 0.5 * torch.arange(40)):
        q.zero_()[..., 0] = 1
        k[..., 0] = logits
        check(flash, q, k, v, 4, 8, True, scale=1.0)


@orders
def test_rows_that_see_nothing(flash):
    o, lse = flash(*make(10, 4), 3, 2, True)
    assert (o[:, :, :6] == 0).all() and (lse[:, :, :6] == -math.inf).all() and torch.isfinite(lse[:, :, 6:]).all()


@orders
def test_views(flash):
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in make(9, 12))
    check(flash, q, k[..., ::2, :], v[..., 1::2, :], 4, 5)
    assert flash(q, k, v, 4, 5)[0].is_contiguous()


def test_hidden_tiles_are_not_touched():
    """FA2's order never reads a tile that the mask hides from all its rows: a NaN there does not reach them."""
    q, k, v = make(8, 8)
    want, _ = algorithm.flash_forward(q, k, v, 4, 4, True)
    k[:, :, 4:], v[:, :, 4:] = math.nan, math.nan
    assert torch.equal(algorithm.flash_forward(q, k, v, 4, 4, True)[0][:, :, :4], want[:, :, :4])


# ---------------------------------------------------------------- the step


def test_softmax_step_over_any_split_is_the_whole_softmax():
    s = 5 * randn(3, 4, 12, seed=0, dtype=torch.float64)
    s[0, 1] = s[1, 2, 5:] = -math.inf
    for block in (1, 4, 5, 12):
        m, l = torch.full((3, 4), -math.inf, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64)
        for tile in s.split(block, dim=-1):
            p, m_new, l, alpha = algorithm.softmax_step(tile, m, l)
            assert p.shape == tile.shape and alpha.shape == m.shape
            assert not any(torch.isnan(x).any() for x in (p, m_new, l, alpha))
            assert torch.equal(m_new, torch.maximum(m, tile.amax(-1)))
            m = m_new
        torch.testing.assert_close(m + torch.log(l), torch.logsumexp(s, -1))
    assert m[0, 1] == -math.inf and l[0, 1] == 0


# ---------------------------------------------------------------- causal tiles


def counted_tiles(row_block, block_m, block_n, S_q, S_k):
    """(full, end) by looking at every pair."""
    rows = range(row_block * block_m, min((row_block + 1) * block_m, S_q))
    blocks = [range(j, min(j + block_n, S_k)) for j in range(0, S_k, block_n)]
    # A ragged last block needs a mask, whoever sees it.
    whole = [len(block) == block_n and all(j <= i + S_k - S_q for i in rows for j in block) for block in blocks]
    seen = [any(j <= i + S_k - S_q for i in rows for j in block) for block in blocks]
    assert whole == sorted(whole, reverse=True) and seen == sorted(seen, reverse=True)
    return sum(whole), sum(seen)


def test_causal_tiles_by_counting():
    for S_q, S_k, block_m, block_n in itertools.product(range(1, 10), range(10), range(1, 5), range(1, 5)):
        for row_block in range(-(-S_q // block_m)):
            args = row_block, block_m, block_n, S_q, S_k
            assert algorithm.causal_tiles(*args) == counted_tiles(*args), args


def test_all_tiles_by_counting():
    for S_k, block_n in itertools.product(range(10), range(1, 5)):
        sizes = [min(block_n, S_k - j) for j in range(0, S_k, block_n)]
        assert algorithm.all_tiles(block_n, S_k) == (sizes.count(block_n), len(sizes))


# ---------------------------------------------------------------- traffic

TRAFFIC_CASES = list(itertools.product((0, 1, 7, 16), (0, 1, 10, 12), (1, 4, 32), (1, 5, 32), (torch.float16, torch.float32)))


def test_traffic_is_the_ledgers():
    B, H, D = 2, 3, 4
    for S_q, S_k, block_m, block_n, dtype in TRAFFIC_CASES:
        q, k, v = make(S_q, S_k, D=D, B=B, H_q=H, dtype=dtype)
        fa2, fa1 = Traffic(), Traffic()
        algorithm.flash_forward(q, k, v, block_m, block_n, traffic=fa2)
        assert fa2.total == B * H * ledger.flash_hbm_bytes(S_q, S_k, D, block_m, dtype.itemsize)
        assert fa2.written_bytes == B * H * S_q * (D * dtype.itemsize + 4)
        algorithm.flash_forward_fa1(q, k, v, block_m, block_n, traffic=fa1)
        assert fa1.total == B * H * ledger.fa1_hbm_bytes(S_q, S_k, D, block_n, dtype.itemsize)


def test_causal_traffic_by_counting():
    B, H, D = 2, 3, 4
    for S_q, S_k, block_m, block_n, dtype in TRAFFIC_CASES:
        q, k, v = make(S_q, S_k, D=D, B=B, H_q=H, dtype=dtype)
        fa2, fa1 = Traffic(), Traffic()
        algorithm.flash_forward(q, k, v, block_m, block_n, True, traffic=fa2)
        algorithm.flash_forward_fa1(q, k, v, block_m, block_n, True, traffic=fa1)
        seen = reference.causal_mask(S_q, S_k)
        row_blocks, key_blocks = (range(0, S, block) for S, block in ((S_q, block_m), (S_k, block_n)))
        tiles = [(i, j) for i in row_blocks for j in key_blocks if seen[i : i + block_m, j : j + block_n].any()]
        keys = sum(min(block_n, S_k - j) for _, j in tiles)
        assert fa2.total == B * H * ((2 * S_q + 2 * keys) * D * dtype.itemsize + 4 * S_q)
        rows = sum(min(block_m, S_q - i) for i, _ in tiles)
        assert fa1.total == B * H * ((2 * S_k + 3 * rows) * D * dtype.itemsize + 16 * rows)


def test_grouped_heads_are_counted_once_for_every_query_head():
    """As the kernel reads them: each program loads its own tiles of k and v."""
    whole, grouped = Traffic(), Traffic()
    algorithm.flash_forward(*make(7, 9, H_q=4), 4, 4, traffic=whole)
    algorithm.flash_forward(*make(7, 9, H_q=4, H_k=2), 4, 4, traffic=grouped)
    assert whole == grouped


def test_traffic_counts_what_lies_in_memory():
    traffic, target = Traffic(), torch.zeros(3, 4, dtype=torch.float16)
    tile = torch.full((3, 4), 1 / 3)
    assert traffic.read(tile) is tile
    traffic.write(target, tile)
    assert (traffic.read_bytes, traffic.written_bytes, traffic.total) == (48, 24, 72)
    assert torch.equal(target, tile.half())


def test_fa1_block_sizes():
    """Four tiles fill the chip: 100 KB of fp16 are 51,200 elements, 200 rows of D = 64."""
    assert algorithm.fa1_block_sizes(51_200, 64) == (64, 200)
    assert algorithm.fa1_block_sizes(51_200, 256) == (50, 50)
    assert algorithm.fa1_block_sizes(1, 64) == (1, 1)
    assert algorithm.fa1_block_sizes(257, 64) == (2, 2)
    for sram, D in itertools.product((64, 100, 1000, 51_200), (1, 3, 64, 128)):
        assert algorithm.fa1_block_sizes(sram, D) == (min(math.ceil(sram / (4 * D)), D), math.ceil(sram / (4 * D)))


# ---------------------------------------------------------------- bad input


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


BAD_CALLS = [
    (([[1.0]], zeros(1, 1, 2, 4), zeros(1, 1, 2, 4), 1, 1), TypeError, ["q", "list", "torch.Tensor"]),
    ((*[zeros(1, 1, 2, 4, dtype=torch.int64)] * 3, 1, 1), TypeError, ["q", "int64", "float64"]),
    ((zeros(1, 1, 2, 4), *[zeros(1, 1, 2, 4, dtype=torch.float16)] * 2, 1, 1), TypeError, ["q: float32", "k: float16"]),
    ((*[zeros(1, 2, 4)] * 3, 1, 1), ValueError, ["(B, H, S, D)", "(1, 2, 4)"]),
    ((zeros(1, 1, 2, 4), zeros(1, 1, 3, 4), zeros(1, 1, 2, 4), 1, 1), ValueError, ["(1, 1, 3, 4)", "(1, 1, 2, 4)"]),
    ((zeros(1, 3, 2, 4), *[zeros(1, 2, 2, 4)] * 2, 1, 1), ValueError, ["3 query heads", "2 key heads"]),
    ((*[zeros(1, 1, 2, 0)] * 3, 1, 1), ValueError, ["D", "at least 1", "0"]),
    ((*[zeros(1, 1, 2, 4)] * 3, 0, 1), ValueError, ["block_m", "at least 1", "0"]),
    ((*[zeros(1, 1, 2, 4)] * 3, 1, -1), ValueError, ["block_n", "at least 1", "-1"]),
    ((*[zeros(1, 1, 2, 4)] * 3, 1.5, 1), TypeError, ["block_m", "integer", "1.5"]),
    ((*[zeros(1, 1, 2, 4)] * 3, 1, 1, False, math.nan), ValueError, ["scale", "finite", "nan"]),
]


@orders
@pytest.mark.parametrize(("args", "error", "words"), BAD_CALLS, ids=[f"{words[0]} {i}" for i, (_, _, words) in enumerate(BAD_CALLS)])
def test_bad_input(flash, args, error, words):
    with pytest.raises(error) as caught:
        flash(*args)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: algorithm.causal_tiles(2, 4, 4, 8, 8), ValueError, ["row_block", "below 2", "got 2"]),
        (lambda: algorithm.causal_tiles(0, 4, 4, 0, 8), ValueError, ["row_block", "below 0", "got 0"]),
        (lambda: algorithm.causal_tiles(-1, 4, 4, 8, 8), ValueError, ["row_block", "at least 0", "-1"]),
        (lambda: algorithm.causal_tiles(0, 0, 4, 8, 8), ValueError, ["block_m", "at least 1"]),
        (lambda: algorithm.causal_tiles(0, 4, 0, 8, 8), ValueError, ["block_n", "at least 1"]),
        (lambda: algorithm.causal_tiles(0, 4, 4, -8, 8), ValueError, ["S_q", "at least 0"]),
        (lambda: algorithm.causal_tiles(0, 4, 4, 8, 8.0), TypeError, ["S_k", "integer"]),
        (lambda: algorithm.fa1_block_sizes(0, 64), ValueError, ["sram_elements", "at least 1"]),
        (lambda: algorithm.fa1_block_sizes(64, 0), ValueError, ["D", "at least 1"]),
        (lambda: algorithm.fa1_block_sizes(6.4, 64), TypeError, ["sram_elements", "integer"]),
    ],
)
def test_bad_sizes(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
