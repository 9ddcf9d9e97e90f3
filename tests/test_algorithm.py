"""Chapters 4 and 6: the forward and the backward against float64, the causal tiles and the traffic against counting."""

import itertools
import math

import pytest
import torch
from attention_cases import causal, plain_attention, plain_gradients
from buffers import unchanged
from test_reference import make, randn

from fa_tutorial import algorithm, ledger, reference
from fa_tutorial.algorithm import Traffic


def check(q, k, v, block_m, block_n, is_causal=False, scale=None):
    """The forward and both backwards are accurate and change no input. The largest errors of few elements depend on luck, so half a unit in
    the last place is allowed."""
    truth, truth_lse = reference.attention(q, k, v, is_causal, scale)
    with unchanged(q, k, v):
        o, lse = algorithm.flash_forward(q, k, v, block_m, block_n, is_causal, scale)
    assert o.is_contiguous() and lse.dtype == torch.promote_types(q.dtype, torch.float32)
    reference.assert_accurate(o, truth, plain_attention(truth, q, k, v, is_causal, scale))
    reference.assert_lse_accurate(lse, truth_lse, q.dtype)
    do = randn(*q.shape, seed=4, dtype=q.dtype)
    inputs = q, k, v, *algorithm.flash_forward(q, k, v, 4, 4, is_causal, scale), do
    truth, plain = (gradients(q, k, v, do, is_causal, scale) for gradients in (reference.gradients, plain_gradients))
    with unchanged(*inputs):
        q, k, v, o, lse, do = inputs
        whole = algorithm.attention_backward(q, k, v, o, do, lse, scale, is_causal)
        tiled = algorithm.flash_backward(q, k, v, o, do, lse, block_m, block_n, is_causal, scale)
    for got, want, peer in (*zip(whole, truth, plain, strict=True), *zip(tiled, truth, plain, strict=True)):
        slack = torch.finfo(q.dtype).eps / 2 * float(want.abs().max()) if want.numel() else 0.0
        reference.assert_accurate(got, want, peer, factor=3.0, slack=slack)


# ---------------------------------------------------------------- results, forward and backward


@causal
@pytest.mark.parametrize(("S_q", "S_k"), [(1, 9), (8, 8), (7, 13), (13, 7), (0, 5), (5, 0)])
def test_shapes_and_block_sizes(S_q, S_k, is_causal):
    for dtype, blocks in itertools.product((torch.float32, torch.float64), ((4, 1), (3, 7), (64, 64))):
        check(*make(S_q, S_k, H_q=4, H_k=2, dtype=dtype), *blocks, is_causal)


@pytest.mark.parametrize(
    ("inputs", "is_causal", "scale"),
    [(make(5, 7, B=0), True, None), (make(5, 7, H_q=0), True, None), (make(9, 12), True, 0), (make(9, 12), True, -2.0)]
    + [(make(33, 70, D=32, dtype=dtype), True, None) for dtype in (torch.float16, torch.bfloat16)],
    ids=["no batch", "no heads", "scale 0", "scale -2", "fp16", "bf16"],
)
def test_other_inputs(inputs, is_causal, scale):
    check(*inputs, 4, 5, is_causal, scale)


def test_p_is_rounded_to_the_dtype_of_v():
    """As the kernels do it. The product is not: it stays in float32."""
    p, v = torch.tensor([[1 + 2**-12]]), torch.tensor([[1 + 2**-10, 2.0**-14]], dtype=torch.float16)
    assert algorithm.weighted(p, v).equal(v.float())
    assert algorithm.weighted(p, v.float()).equal(p * v.float())


def test_hidden_tiles_are_not_touched():
    """FA2's order never reads a tile that the mask hides from all its rows: a NaN there reaches neither their o nor their dq."""
    q, k, v = make(8, 8)
    do = randn(*q.shape, seed=4)

    def first_rows():
        o, lse = algorithm.flash_forward(q, k, v, 4, 4, True)
        return [x[:, :, :4] for x in (o, algorithm.flash_backward(q, k, v, o, do, lse, 4, 4, True)[0])]

    want = first_rows()
    k[:, :, 4:], v[:, :, 4:] = math.nan, math.nan
    assert all(map(torch.equal, first_rows(), want))


@pytest.mark.parametrize(("S_q", "S_k", "is_causal"), [(4, 5, False), (4, 5, True), (5, 4, True)])
def test_tiled_attention_passes_gradcheck(S_q, S_k, is_causal):
    """Numerical derivatives in float64, of o and of lse where it is finite."""
    leaves = [x.requires_grad_() for x in make(S_q, S_k, D=2, B=1, H_q=2, H_k=1)]
    blind = max(S_q - S_k, 0) if is_causal else 0

    def outputs(q, k, v):
        o, lse = algorithm.TiledAttention.apply(q, k, v, 2, 3, is_causal, 0.7)
        return o, lse[:, :, blind:]

    assert torch.autograd.gradcheck(outputs, leaves)


# ---------------------------------------------------------------- causal tiles


def test_tiles_and_rows_by_counting():
    for S_q, S_k, block_m, block_n in itertools.product(range(1, 8), range(8), range(1, 4), range(1, 4)):
        sizes, mask = (block_m, block_n, S_q, S_k), reference.causal_mask(S_q, S_k).tolist()
        starts = range(0, S_k, block_n)
        tiles = [[[row[j : j + block_n] for row in mask[i : i + block_m]] for j in starts] for i in range(0, S_q, block_m)]
        seen = [[any(map(any, tile)) for tile in row] for row in tiles]
        whole = [[all(map(all, tile)) for tile in row] for row in tiles]
        for row_block, row in enumerate(tiles):
            full = sum(is_whole and len(tile[0]) == block_n for is_whole, tile in zip(whole[row_block], row, strict=True))
            assert algorithm.causal_tiles(row_block, *sizes) == (full, sum(seen[row_block])), (
                "a ragged last block needs a mask, whoever sees it"
            )
        ends = [min(block_n, S_k - j) for j in starts]
        assert algorithm.all_tiles(block_n, S_k) == (ends.count(block_n), len(ends))
        for key_block in range(len(starts)):
            unseen, masked = (sum(not row[key_block] for row in those) for those in (seen, whole))
            assert algorithm.causal_rows(key_block, *sizes) == (unseen, masked)


# ---------------------------------------------------------------- traffic

TRAFFIC_CASES = list(itertools.product((0, 7, 16), (0, 10), (4, 32), (5, 32), (torch.float16, torch.float32)))


@causal
def test_traffic_by_counting(is_causal):
    """And without a mask it is the ledger's."""
    B, H, D = 2, 3, 4
    for S_q, S_k, block_m, block_n, dtype in TRAFFIC_CASES:
        q, k, v = make(S_q, S_k, D=D, B=B, H_q=H, dtype=dtype)
        traffic = Traffic()
        algorithm.flash_forward(q, k, v, block_m, block_n, is_causal, traffic=traffic)
        assert traffic.written_bytes == B * H * S_q * (D * dtype.itemsize + 4)
        assert traffic.most_scores == min(block_m, S_q) * min(block_n, S_k), "one tile, of one head"
        if not is_causal:
            assert traffic.total == B * H * ledger.flash_hbm_bytes(S_q, S_k, D, block_m, dtype.itemsize)
            continue
        seen = reference.causal_mask(S_q, S_k)
        tiles = itertools.product(range(0, S_q, block_m), range(0, S_k, block_n))
        keys = sum(min(block_n, S_k - j) for i, j in tiles if seen[i : i + block_m, j : j + block_n].any())
        assert traffic.total == B * H * ((2 * S_q + 2 * keys) * D * dtype.itemsize + 4 * S_q)


# ---------------------------------------------------------------- the backward's steps


def test_softmax_backward_is_autograds():
    s, dp = (randn(2, 3, 5, seed=i, dtype=torch.float64) for i in range(2))
    assert algorithm.row_delta(s.half(), s.half()).dtype == torch.float32
    p = torch.softmax(s.requires_grad_(), -1)
    torch.testing.assert_close(algorithm.softmax_backward(p.detach(), dp), torch.autograd.grad(p, s, dp)[0])


@pytest.mark.parametrize(
    ("rows", "keys", "words"),
    [((2, 4), (0, 2), "ends past S_q = 3"), ((0, 2), (4, 6), "ends past S_k = 5"), ((-2, 0), (0, 2), "begins before 0")],
)
def test_a_slice_that_leaves_the_sequence_is_named(rows, keys, words):
    with pytest.raises(ValueError, match=words):
        algorithm.seen_in_tile(slice(*rows), slice(*keys), 3, 5, torch.device("cpu"))
