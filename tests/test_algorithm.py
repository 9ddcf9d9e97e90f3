"""Chapters 4 and 6: both loop orders and the backward against float64, the causal tiles and the traffic against counting."""

import itertools
import math

import pytest
import torch
from attention_cases import causal, plain_attention, plain_gradients
from buffers import unchanged
from test_reference import make, randn

from fa_tutorial import algorithm, ledger, reference
from fa_tutorial.algorithm import Traffic


def check_forward(q, k, v, block_m, block_n, is_causal=False, scale=None):
    """Both loop orders are accurate and change no input."""
    truth, truth_lse = reference.attention(q, k, v, is_causal, scale)
    plain = plain_attention(truth, q, k, v, is_causal, scale)
    # FA1 rounds o to its dtype once for every block of keys: each may cost another half unit of the largest value.
    roundings = -(-k.shape[2] // block_n) if q.dtype.itemsize == 2 else 0
    slack = roundings * torch.finfo(q.dtype).eps / 2 * float(v.abs().max()) if roundings else 0.0
    for flash, more in ((algorithm.flash_forward, 0.0), (algorithm.flash_forward_fa1, slack)):
        with unchanged(q, k, v):
            o, lse = flash(q, k, v, block_m, block_n, is_causal, scale)
        assert o.is_contiguous()
        reference.assert_accurate(o, truth, plain, slack=more)
        assert lse.dtype == torch.promote_types(q.dtype, torch.float32)
        reference.assert_lse_accurate(lse, truth_lse, q.dtype)


def check(q, k, v, block_m, block_n, is_causal=False, scale=None):
    """And so are both backwards. The largest errors of few elements depend on luck, so half a unit in the last place is allowed."""
    check_forward(q, k, v, block_m, block_n, is_causal, scale)
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
@pytest.mark.parametrize(("S_q", "S_k"), [(1, 1), (1, 9), (9, 1), (8, 8), (7, 13), (13, 7), (0, 5), (5, 0)])
def test_shapes_and_block_sizes(S_q, S_k, is_causal):
    for dtype, blocks in itertools.product((torch.float32, torch.float64), ((1, 5), (4, 1), (3, 7), (64, 64))):
        check(*make(S_q, S_k, H_q=4, H_k=2, dtype=dtype), *blocks, is_causal)


def views():
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in make(9, 12))
    return q, k[..., ::2, :], v[..., 1::2, :]


@pytest.mark.parametrize(
    ("inputs", "is_causal", "scale"),
    [(make(5, 7, B=0), True, None), (make(5, 7, H_q=0), True, None), (views(), False, None)]
    + [(make(9, 12), True, scale) for scale in (0.3, 0, 1.0, -2.0)],
    ids=["no batch", "no heads", "views", "scale 0.3", "scale 0", "scale 1", "scale -2"],
)
def test_other_inputs(inputs, is_causal, scale):
    check(*inputs, 4, 5, is_causal, scale)


@causal
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_half_precision(dtype, is_causal):
    check(*make(33, 70, D=32, dtype=dtype), 16, 32, is_causal)


def test_p_is_rounded_to_the_dtype_of_v():
    """As the kernels do it. The product is not: it stays in float32."""
    p, v = torch.tensor([[1 + 2**-12]]), torch.tensor([[1 + 2**-10, 2.0**-14]], dtype=torch.float16)
    assert algorithm.weighted(p, v).equal(v.float())
    assert algorithm.weighted(p, v.float()).equal(p * v.float())


def test_logits_of_any_size():
    q, k, v = make(9, 40, dtype=torch.float32)
    for logits in (torch.linspace(-1e4, 1e4, 40), torch.linspace(1e4, -1e4, 40), torch.full((40,), -1e4), 0.5 * torch.arange(40)):
        q.zero_()[..., 0] = 1
        k[..., 0] = logits
        check_forward(q, k, v, 4, 8, True, scale=1.0)


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

TRAFFIC_CASES = list(itertools.product((0, 7, 16), (0, 10, 12), (1, 4, 32), (1, 5, 32), (torch.float16, torch.float32)))


@causal
def test_traffic_by_counting(is_causal):
    """And without a mask it is the ledger's."""
    B, H, D = 2, 3, 4
    for S_q, S_k, block_m, block_n, dtype in TRAFFIC_CASES:
        q, k, v = make(S_q, S_k, D=D, B=B, H_q=H, dtype=dtype)
        fa2, fa1 = Traffic(), Traffic()
        algorithm.flash_forward(q, k, v, block_m, block_n, is_causal, traffic=fa2)
        algorithm.flash_forward_fa1(q, k, v, block_m, block_n, is_causal, traffic=fa1)
        assert fa2.written_bytes == B * H * S_q * (D * dtype.itemsize + 4)
        assert fa1.most_scores == fa2.most_scores == min(block_m, S_q) * min(block_n, S_k), "one tile, of one head"
        if not is_causal:
            assert fa2.total == B * H * ledger.flash_hbm_bytes(S_q, S_k, D, block_m, dtype.itemsize)
            assert fa1.total == B * H * ledger.fa1_hbm_bytes(S_q, S_k, D, block_n, dtype.itemsize)
            continue
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


# ---------------------------------------------------------------- the backward's steps


def test_softmax_backward_is_autograds():
    s, dp = (randn(2, 3, 5, seed=i, dtype=torch.float64) for i in range(2))
    p = torch.softmax(s.requires_grad_(), -1)
    torch.testing.assert_close(algorithm.softmax_backward(p.detach(), dp), torch.autograd.grad(p, s, dp)[0])


def test_delta_of_half_precision_is_float32():
    do = randn(1, 1, 5, 8, dtype=torch.float16)
    assert algorithm.row_delta(do, do).dtype == torch.float32


@pytest.mark.parametrize(
    ("rows", "keys", "words"),
    [((2, 4), (0, 2), "ends past S_q = 3"), ((0, 2), (4, 6), "ends past S_k = 5"), ((-2, 0), (0, 2), "begins before 0")],
)
def test_a_slice_that_leaves_the_sequence_is_named(rows, keys, words):
    with pytest.raises(ValueError, match=words):
        algorithm.seen_in_tile(slice(*rows), slice(*keys), 3, 5, torch.device("cpu"))
