"""The float64 reference, against PyTorch's own attention, and on the inputs that PyTorch leaves to the caller."""

import itertools
import math
import weakref

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from fa_tutorial import reference


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def make(S_q=5, S_k=7, D=8, B=2, H_q=2, H_k=None, dtype=torch.float64):
    H_k = H_q if H_k is None else H_k
    return randn(B, H_q, S_q, D, dtype=dtype), randn(B, H_k, S_k, D, seed=1, dtype=dtype), randn(B, H_k, S_k, D, seed=2, dtype=dtype)


def same(got, want):
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


LENGTHS = [(1, 9), (9, 1), (5, 7), (7, 5), (8, 8)]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("S_q", "S_k"), LENGTHS)
def test_attention_and_its_gradients_are_pytorchs(S_q, S_k, is_causal):
    """In rows that see a key; others get o = 0 and lse = −inf."""
    from torch.nn.attention import SDPBackend, sdpa_kernel  # imports Triton, so it has to come after fa_tutorial

    blind = max(S_q - S_k, 0) if is_causal else 0
    mask = reference.causal_mask(S_q, S_k)[blind:] if is_causal else torch.ones(S_q, S_k, dtype=torch.bool)
    for (H_q, H_k), scale in itertools.product(((2, 2), (6, 2)), (None, 0.0, -0.7)):
        q, k, v = make(S_q=S_q, S_k=S_k, H_q=H_q, H_k=H_k)
        o, lse = reference.attention(q, k, v, is_causal, scale)
        assert (o[:, :, :blind] == 0).all() and (lse[:, :, :blind] == -math.inf).all()
        leaves = [x.requires_grad_() for x in (q[:, :, blind:].clone(), k, v)]
        with sdpa_kernel(SDPBackend.MATH):
            want = scaled_dot_product_attention(*leaves, attn_mask=mask, scale=scale, enable_gqa=True)
        same(o[:, :, blind:], want)
        s = (8**-0.5 if scale is None else scale) * (leaves[0] @ k.repeat_interleave(H_q // H_k, 1).mT)
        same(lse[:, :, blind:], torch.logsumexp(s.masked_fill(~mask, -math.inf), -1))
        do = randn(*want.shape, seed=4)
        same(reference.gradients(*leaves, do, is_causal, scale), torch.autograd.grad(want, leaves, do))


def test_causal_mask_is_bottom_right_aligned():
    for S_q, S_k in itertools.product(range(6), range(6)):
        mask = reference.causal_mask(S_q, S_k)
        assert mask.dtype == torch.bool and mask.shape == (S_q, S_k)
        assert mask.tolist() == [[j <= i + S_k - S_q for j in range(S_k)] for i in range(S_q)]


@pytest.mark.parametrize("is_causal", [False, True])
def test_no_keys_or_no_queries(is_causal):
    o, lse = reference.attention(*make(S_k=0), is_causal)
    assert torch.equal(o, torch.zeros(2, 2, 5, 8, dtype=torch.float64)) and (lse == -math.inf).all() and lse.shape == (2, 2, 5)
    for empty in ({"S_k": 0}, {"S_q": 0}, {"B": 0}, {"H_q": 0}, {"H_q": 0, "H_k": 2}):
        q, k, v = make(**empty)
        o, lse = reference.attention(q, k, v, is_causal)
        assert o.shape == q.shape and lse.shape == q.shape[:-1]
        gradients = reference.gradients(q, k, v, torch.ones_like(q), is_causal)
        assert [x.shape for x in gradients] == [x.shape for x in (q, k, v)] and all((x == 0).all() for x in gradients)


@pytest.mark.parametrize("is_causal", [False, True])
def test_nan_in_a_query_stays_in_its_row(is_causal):
    q, k, v = make(S_q=6, S_k=6)
    clean, _ = reference.attention(q, k, v, is_causal)
    q[:, :, 2] = math.nan
    o, lse = reference.attention(q, k, v, is_causal)
    others = [0, 1, 3, 4, 5]
    assert o[:, :, 2].isnan().all() and lse[:, :, 2].isnan().all()
    same(o[:, :, others], clean[:, :, others])


# ---------------------------------------------------------------- the bound


def bound(x=(1.0, 2.0), truth=(1.0, 2.0), plain=(1.0, 2.001), **more):
    x, plain = (torch.tensor(values, dtype=torch.float32) for values in (x, plain))
    reference.assert_accurate(x, torch.tensor(truth, dtype=torch.float64), plain, **more)


def test_an_error_is_compared_with_the_plain_results():
    bound(x=(1.0, 2.0019))
    bound(x=(1.0, 2.0029), factor=3)
    bound(x=(1.0, 2.0029), slack=0.001)
    with pytest.raises(AssertionError, match=r"largest error 0\.0021.*bound 0\.00201"):
        bound(x=(1.0, 2.0021))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_accurate(value):
    """In x it is x's fault; in truth or plain there is nothing to compare with."""
    with pytest.raises(AssertionError, match="1 of 2 elements are NaN or inf"):
        bound(x=(1.0, value))
    for name in ("truth", "plain"):
        with pytest.raises(ValueError, match=f"no bound .*1 of 2 elements of `{name}`"):
            bound(**{name: (1.0, value)})


def test_another_shape_or_dtype_is_not_accurate():
    with pytest.raises(AssertionError, match="shapes differ"):
        bound(x=(1.0,))
    with pytest.raises(AssertionError, match=r"dtype is torch\.float16"):
        reference.assert_accurate(torch.zeros(2).half(), torch.zeros(2).double(), torch.zeros(2))


def test_lse_has_a_tolerance_of_its_own():
    truth = torch.tensor([1.0, -math.inf], dtype=torch.float64)
    reference.assert_lse_accurate(torch.tensor([1.0005, -math.inf]), truth, torch.float16)
    for wrong, dtype in (([1.002, -math.inf], torch.float16), ([1.0005, -math.inf], torch.float32), ([1.0, 0.0], torch.float16)):
        with pytest.raises(AssertionError):
            reference.assert_lse_accurate(torch.tensor(wrong), truth, dtype)


# ---------------------------------------------------------------- gradients


def test_gradients_of_rows_that_see_nothing():
    """Their dq is 0, and the others' gradients are those of the call without them, whatever do and dlse are there."""
    q, k, v = make(S_q=9, S_k=4)
    do, dlse = randn(*q.shape, seed=4), randn(*q.shape[:3], seed=5)
    for given in (None, dlse):
        dq, dk, dv = reference.gradients(q, k, v, do, True, dlse=given)
        assert (dq[:, :, :5] == 0).all()
        seen = None if given is None else given[:, :, 5:]
        same((dq[:, :, 5:], dk, dv), reference.gradients(q[:, :, 5:], k, v, do[:, :, 5:], True, dlse=seen))


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_of_lse(is_causal):
    """The gradient of a sum of exponentials' logarithm is softmax: d lse / dq = scale · p k."""
    q, k, v = make(S_q=5, S_k=7)
    do, dlse = torch.zeros_like(q), randn(*q.shape[:3], seed=5)
    dq, dk, dv = reference.gradients(q, k, v, do, is_causal, 0.3, dlse)
    s = 0.3 * (q @ k.mT)
    if is_causal:
        s = s.masked_fill(~reference.causal_mask(5, 7), -math.inf)
    ds = dlse[..., None] * torch.softmax(s, -1)
    same(dq, 0.3 * (ds @ k))
    same(dk, 0.3 * (ds.mT @ q))
    assert (dv == 0).all()


# ---------------------------------------------------------------- naive attention


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_reference_is_float64_and_naive_attention_as_accurate_as_its_dtype(dtype, is_causal):
    """Large scores do not overflow; the inputs, and their grads, are left alone."""
    for S_q, S_k, size in ((5, 7, 1), (7, 5, 1), (4, 4, 1e4)):
        q, k, v = (x.requires_grad_() for x in make(S_q=S_q, S_k=S_k, dtype=dtype))
        given = [x.detach().clone() for x in (size * q, k, v)]
        with torch.no_grad():
            (want, lse), o = reference.attention(size * q, k, v, is_causal), reference.naive_attention(size * q, k, v, is_causal)
            assert all(x.dtype == torch.float64 for x in (want, lse, *reference.gradients(q, k, v, torch.ones_like(q), is_causal)))
        same(want, reference.attention(*(x.double() for x in given), is_causal)[0])
        assert o.dtype == dtype and torch.isfinite(want).all() and q.grad is None
        error = (o.double() - want)[lse > -math.inf].abs().max()
        assert size > 1 or error <= 8 * torch.finfo(dtype).eps * v.double().abs().max()


class MostScores(TorchDispatchMode):
    """How many (S, S) matrices are alive at most: results of operations that share no storage."""

    def __init__(self, S: int):
        super().__init__()
        self.S, self.most, self.alive = S, 0, weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.shape[-2:] == (self.S, self.S) and result.is_floating_point():
            self.alive.add(result)
        self.most = max(self.most, len({x.data_ptr() for x in self.alive}))
        return result


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_naive_attention_holds_two_matrices(is_causal, scale):
    """More would flatter every kernel whose memory is shown beside it."""
    S = 96
    q, k, v = torch.randn(3, 1, 2, S, 16)
    with torch.no_grad(), MostScores(S) as scores:
        reference.naive_attention(q, k, v, is_causal, scale)
    assert scores.most == 2
