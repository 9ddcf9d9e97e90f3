"""flash_attention's gradients on the hard inputs, each by name. The result itself, and what must raise: test_attention.py."""

import dataclasses
import gc
import math

import pytest
import torch
from attention_cases import (
    LAYOUTS,
    VALUES,
    VIEWS,
    Case,
    assert_gradients,
    check_backward_kernels,
    place,
)
from buffers import DEVICE, DTYPES, ON_GPU, needs_gpu, needs_two_gpus, randn, unchanged
from test_attention import (
    causal,
    dtypes,
    dtypes_on_gpu,
    every_kernel,  # noqa: F401  a fixture that every test here takes
    full_on_gpu,
    on_gpu,
    pytestmark,  # noqa: F401
    same,
)

from fa_tutorial import backward, flash_attention, forward, ledger

# ---------------------------------------------------------------- lengths and head dimensions


def differentiate(q, k, v, do=None, is_causal=False, scale=None, dlse=None):
    """(dq, dk, dv) of flash_attention for the gradients do of o and dlse of lse, either None where it was not used."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    given = [x for x in (do, dlse) if x is not None]
    with unchanged(q, k, v, *given):
        outputs = flash_attention(*leaves, is_causal=is_causal, scale=scale, return_lse=True)
        used = [output for output, weight in zip(outputs, (do, dlse), strict=True) if weight is not None]
        return torch.autograd.grad(used, leaves, given)


def check_gradients(case: Case):
    """flash_attention's gradients are accurate on the case; returns dq, dk, dv."""
    q, k, v = case.inputs()
    do, dlse = case.output_gradients()
    got = differentiate(q, k, v, do, case.is_causal, case.scale, dlse)
    assert_gradients(got, q, k, v, do, case.is_causal, case.scale, dlse)
    return got


@dtypes_on_gpu
@full_on_gpu
@pytest.mark.parametrize(("S_q", "S_k"), [(1, 1), (1, 239), (239, 1)])
def test_gradients_of_one_query_or_one_key(S_q, S_k, is_causal, dtype):
    check_gradients(Case(S_q, S_k, D=40, dtype=dtype, is_causal=is_causal, B=1))


@full_on_gpu
@pytest.mark.parametrize("S", [31, 32, 33, 63, 64, 65, *(pytest.param(S, marks=on_gpu) for S in (15, 16, 17, 127, 128, 129))])
def test_gradients_at_lengths_around_every_block_size(S, is_causal):
    check_gradients(Case(S, S, D=16, is_causal=is_causal, B=1, dlse=True))


@full_on_gpu
@pytest.mark.parametrize(("S_q", "S_k"), [(113, 203), pytest.param(127, 513, marks=on_gpu), (799, 3)])
def test_gradients_at_odd_lengths(S_q, S_k, is_causal):
    check_gradients(Case(S_q, S_k, D=40, dtype=torch.float32, is_causal=is_causal, B=1))


@pytest.mark.parametrize("D", [1, 8, 16, 40, 59, 64, 80, 96, 111, 128, 192, 256])
@pytest.mark.parametrize("turn", range(3) if ON_GPU else [0])
def test_gradients_at_any_head_dimension(D, turn):
    """In the interpreter the dtypes take turns."""
    check_gradients(Case(17, 35, D=D, dtype=DTYPES[(D // 8 + turn) % 3], is_causal=D % 16 == 0, B=1, view="padded row stride"))


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("dkdv", "dq"), [((16, 16), (16, 32)), ((32, 64), (64, 16)), ((64, 32), (32, 32))])
@pytest.mark.parametrize(
    ("S_q", "S_k", "D"),
    [(33, 65, 59), *(pytest.param(*sizes, marks=on_gpu) for sizes in ((1, 33, 16), (65, 33, 40), (64, 64, 64), (47, 47, 111)))],
)
def test_every_gradient_is_written_and_nothing_around_it(S_q, S_k, D, dkdv, dq, is_causal):
    """The kernels by themselves, on outputs that are NaN between guard cells, for several tiles."""
    dtype = {16: torch.float32, 40: torch.bfloat16}.get(D, torch.float16)
    case = Case(S_q, S_k, D=D, dtype=dtype, is_causal=is_causal, B=1, view="three strides", dlse=is_causal)
    config = backward.BackwardConfig(forward.TileConfig(*dkdv, 4, 1), forward.TileConfig(*dq, 4, 1))
    check_backward_kernels(backward, case, config)


# ---------------------------------------------------------------- causal, and nothing to see


@dtypes_on_gpu
@pytest.mark.parametrize(("S_q", "S_k"), [(33, 70), *(pytest.param(*sizes, marks=on_gpu) for sizes in ((1, 70), (64, 65), (69, 70)))])
def test_gradients_with_fewer_queries_than_keys(S_q, S_k, dtype):
    check_gradients(Case(S_q, S_k, D=40, dtype=dtype, is_causal=True, B=1))


@dtypes_on_gpu
@pytest.mark.parametrize(("S_q", "S_k"), [(70, 33), (130, 2), *(pytest.param(*sizes, marks=on_gpu) for sizes in ((70, 1), (65, 64)))])
def test_gradients_of_rows_that_see_no_key(S_q, S_k, dtype):
    """Also where their lse has a gradient."""
    dq, _, _ = check_gradients(Case(S_q, S_k, D=40, dtype=dtype, is_causal=True, B=1, dlse=True))
    assert (dq[:, :, : S_q - S_k] == 0).all()


NOTHING_TO_SEE = [{"S_k": 0}, {"S_q": 0}, {"B": 0}, {"H_q": 0}, {"H_q": 0, "H_k": 2}, {"S_q": 0, "S_k": 0}]


@causal
@pytest.mark.parametrize("empty", NOTHING_TO_SEE, ids=str)
def test_gradients_without_keys_queries_batch_or_heads(empty, is_causal, monkeypatch):
    """Zeros of the right shape, and no launch, which would fail."""
    for kernel in ("delta_kernel", "dkdv_kernel", "dq_kernel"):
        monkeypatch.setattr(backward, kernel, None)
    q, k, v = dataclasses.replace(Case(5, 7), **empty).inputs()
    got = differentiate(q, k, v, torch.ones_like(q), is_causal, dlse=torch.ones(q.shape[:3], device=DEVICE))
    assert [x.shape for x in got] == [x.shape for x in (q, k, v)]
    assert all((x == 0).all() and x.dtype == q.dtype for x in got)


# ---------------------------------------------------------------- heads, views, memory


@dtypes_on_gpu
@full_on_gpu
@pytest.mark.parametrize(("H_q", "H_k"), [(6, 2), (4, 1)], ids=["GQA", "MQA"])
def test_gradients_of_grouped_queries(H_q, H_k, is_causal, dtype):
    check_gradients(Case(25, 35, D=32, dtype=dtype, is_causal=is_causal, B=1, H_q=H_q, H_k=H_k))


@dtypes_on_gpu
@full_on_gpu
@pytest.mark.parametrize("view", VIEWS)
def test_gradients_of_views(view, is_causal, dtype):
    case = Case(20, 30, D=24, dtype=dtype, is_causal=is_causal, view=view)
    got = check_gradients(case)
    if ON_GPU:
        contiguous = (x.contiguous() for x in case.inputs())
        assert same(got, differentiate(*contiguous, case.output_gradients()[0], is_causal)), "a view gives another result than its copy"


@dtypes_on_gpu
@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "contiguous"])
def test_any_strides_of_do(layout, dtype):
    q, k, v = Case(20, 30, D=24, dtype=dtype).data()
    do = place(randn(*q.shape, dtype=dtype, seed=4), layout).tensor
    got = differentiate(q, k, v, do, is_causal=True)
    assert_gradients(got, q, k, v, do, is_causal=True)


@full_on_gpu
def test_do_of_a_sum_a_slice_and_a_transpose(is_causal):
    """Autograd itself makes these: a do with stride 0, one sliced [:, ::2], and one transposed."""
    q, k, v = Case(20, 30, D=24, B=1).data()
    many = randn(1, 4, 20, 24, dtype=q.dtype, seed=4)
    losses = {
        "o.sum()": (lambda o: o.sum(), torch.ones_like(q)),
        "every second head": (lambda o: (many[:, ::2] * o).sum(), many[:, ::2]),
        "transposed": (lambda o: (o.transpose(1, 3).contiguous() * many[:, :2].transpose(1, 3)).sum(), many[:, :2]),
    }
    for name, (loss, do) in losses.items():
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        loss(flash_attention(*leaves, is_causal=is_causal)).backward()
        try:
            assert_gradients([x.grad for x in leaves], q, k, v, do, is_causal)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def test_gradients_of_one_fused_qkv_tensor():
    """q, k and v are slices of it, and so are their gradients."""
    fused = randn(2, 29, 3, 2, 24, dtype=torch.float16).requires_grad_()
    q, k, v = fused.transpose(1, 3).unbind(2)  # (B, H, 3, S, D)
    do = randn(*q.shape, dtype=q.dtype, seed=4)
    (got,) = torch.autograd.grad(flash_attention(q, k, v, is_causal=True), fused, do)
    assert_gradients(got.transpose(1, 3).unbind(2), q, k, v, do, is_causal=True)


def test_gradients_of_keys_and_values_expanded_from_one_head():
    """Autograd sums them over the heads that share the one."""
    q, k, v = Case(20, 30, D=24, H_q=4, H_k=1, dtype=torch.float32).data()
    do = randn(*q.shape, seed=4)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    flash_attention(leaves[0], *(x.expand(-1, 4, -1, -1) for x in leaves[1:])).backward(do)
    assert_gradients([x.grad for x in leaves], q, k, v, do)


@dtypes_on_gpu
@full_on_gpu
def test_gradients_with_nan_beyond_the_ends(is_causal, dtype):
    case = Case(21, 30, D=24, dtype=dtype, is_causal=is_causal, B=1, H_q=2, H_k=1, view="padded row stride")
    do, _ = case.output_gradients()
    want = differentiate(*case.data(), do, is_causal)
    assert same(differentiate(*case.inputs(), place(do, "padded rows").tensor, is_causal), want)
    longer = [torch.cat([x, torch.full_like(x, math.nan)], dim=2)[:, :, : x.shape[2]] for x in (*case.data(), do)]
    assert same(differentiate(*longer, is_causal), want)


@dtypes_on_gpu
@full_on_gpu
def test_gradients_add_where_q_is_k_is_v(is_causal, dtype):
    x, _, _ = Case(35, 35, D=24, dtype=dtype, B=1).data()
    do = randn(*x.shape, dtype=dtype, seed=4)
    x.requires_grad_()
    (got,) = torch.autograd.grad(flash_attention(x, x, x, is_causal=is_causal), x, do)
    dq, dk, dv = differentiate(x, x, x, do, is_causal)
    assert_gradients((dq, dk, dv), x, x, x, do, is_causal)
    torch.testing.assert_close(
        got, dq + dk + dv, rtol=2 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps * float(got.detach().abs().max())
    )


@dtypes_on_gpu
def test_backward_leaves_inputs_and_do_unchanged(dtype):
    case = Case(20, 30, D=24, dtype=dtype, B=1, view="three strides")
    q, k, v = case.inputs()
    do = place(case.output_gradients()[0], "last stride 2").tensor
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    o, lse = flash_attention(*leaves, is_causal=True, return_lse=True)
    before = [x.detach().clone() for x in (q, k, v, do, o, lse)]
    with unchanged(q, k, v, do, o.detach(), lse.detach()):  # the memory around them too
        torch.autograd.grad(o, leaves, do)
    assert same([x.detach() for x in (q, k, v, do, o, lse)], before)


@on_gpu
@causal
@pytest.mark.parametrize(("B", "H"), [(1, 65_537), (65_537, 1), (257, 256)])
def test_gradients_of_more_than_65535_blocks_along_batch_and_heads(B, H, is_causal):
    check_gradients(Case(3, 5, D=16, B=B, H_q=H, is_causal=is_causal))


# ---------------------------------------------------------------- values


@dtypes_on_gpu
@full_on_gpu
@pytest.mark.parametrize("values", [name for name in VALUES if name != "randn"])
def test_gradients_of_hard_values(values, is_causal, dtype):
    case = Case(
        20, 70, D=24, dtype=dtype, is_causal=is_causal, B=1, H_q=1, values=values, scale=1.0 if "1e4" in values else None, dlse=True
    )
    check_gradients(case)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_gradients_where_do_times_v_is_beyond_the_largest(dtype):
    """dp = do vᵀ and delta are beyond float32; what they give, p ∘ (dp − delta), is not."""
    case = Case(20, 70, D=24, dtype=dtype, B=1, values="values near the largest")
    v, (do, _) = case.inputs()[2], case.output_gradients()
    assert (do.double() @ v.double().mT).abs().max() > torch.finfo(torch.float32).max
    assert all(torch.isfinite(x).all() for x in check_gradients(case))


def test_gradients_of_bf16_queries_near_the_largest_finite():
    q, k, v = Case(21, 30, D=16, dtype=torch.bfloat16, B=1).data()
    q, k = 3e38 * torch.sign(q), 3e-38 * k.clamp(-1, 1).where(k.abs() > 0.4, 0.4)
    do = 0.1 * randn(*q.shape, dtype=q.dtype, seed=4)
    assert_gradients(differentiate(q, k, v, do, is_causal=True), q, k, v, do, is_causal=True)


@dtypes_on_gpu
def test_gradients_with_huge_finite_values_at_masked_keys(dtype):
    q, k, v = Case(40, 40, D=24, dtype=dtype, B=1).inputs()
    do = randn(*q.shape, dtype=dtype, seed=4)
    want, _, _ = differentiate(q, k, v, do, is_causal=True)
    v[:, :, 20:] = torch.finfo(dtype).max
    dq, _, dv = differentiate(q, k, v, do, is_causal=True)
    assert same([dq[:, :, :20]], [want[:, :, :20]]), "rows that may not see the huge values changed"
    assert torch.isfinite(dv).all()


@dtypes_on_gpu
@pytest.mark.parametrize("stray", [math.nan, pytest.param(math.inf, marks=on_gpu)], ids=str)
def test_gradients_with_nan_in_one_query_row(stray, dtype):
    """Only its row of dq is NaN, and dk and dv of the keys that it sees; every other head too is as it was."""
    q, k, v = Case(40, 40, D=24, dtype=dtype, B=1).inputs()
    do = randn(*q.shape, dtype=dtype, seed=4)
    want = differentiate(q, k, v, do, is_causal=True)
    q[0, 1, 20, 5] = stray
    dq, dk, dv = differentiate(q, k, v, do, is_causal=True)
    assert torch.isnan(dq[0, 1, 20]).all()
    assert torch.isnan(dk[0, 1, :21]).all() and torch.isnan(dv[0, 1, :21]).all()
    dq[0, 1, 20] = want[0][0, 1, 20]
    for got, clean in ((dk, want[1]), (dv, want[2])):
        got[0, 1, :21] = clean[0, 1, :21]
    assert same((dq, dk, dv), want), "a row or key changed that has nothing to do with it"


def test_nan_in_a_query_row_without_a_mask_stays_in_its_head():
    q, k, v = Case(20, 30, D=24, H_q=4, H_k=2, B=1).inputs()
    do = randn(*q.shape, dtype=q.dtype, seed=4)
    want = differentiate(q, k, v, do)
    q[0, 3, 7] = math.nan
    got = differentiate(q, k, v, do)
    assert torch.isnan(got[0][0, 3, 7]).all() and torch.isnan(got[1][0, 1]).all()
    got[0][0, 3, 7] = want[0][0, 3, 7]
    assert same((got[0], *(x[:, :1] for x in got[1:])), (want[0], *(x[:, :1] for x in want[1:])))


@dtypes_on_gpu
@pytest.mark.parametrize("stray", [math.nan, math.inf], ids=str)
def test_nan_in_a_query_row_that_sees_no_key(stray, dtype):
    """It has no part in any gradient: all of them are as they were."""
    q, k, v = Case(45, 20, D=24, dtype=dtype, B=1).inputs()
    do = randn(*q.shape, dtype=dtype, seed=4)
    want = differentiate(q, k, v, do, is_causal=True)
    q[0, 1, 3, 5] = stray
    assert same(differentiate(q, k, v, do, is_causal=True), want)


@dtypes_on_gpu
@pytest.mark.parametrize(
    ("which", "stray"),
    [
        ("key", math.nan),
        ("value", -math.inf),
        *(pytest.param(*x, marks=on_gpu) for x in (("value", math.nan), ("key", math.inf), ("key", -math.inf))),
    ],
)
def test_gradients_with_nan_or_inf_in_a_hidden_key_or_value(which, stray, dtype):
    """Rows of dq that may not see it are bit-equal to the clean run, and so is the other head."""
    S_q, S_k, key = 20, 45, 35
    q, k, v = Case(S_q, S_k, D=24, dtype=dtype, B=1).inputs()
    do = randn(*q.shape, dtype=dtype, seed=4)
    want = differentiate(q, k, v, do, is_causal=True)
    (k if which == "key" else v)[0, 1, key, 3] = stray
    got = differentiate(q, k, v, do, is_causal=True)
    blind = key - (S_k - S_q)  # the first row that sees the key
    assert same([got[0][:, :, :blind]], [want[0][:, :, :blind]])
    assert same((x[:, :1] for x in got), (x[:, :1] for x in want))
    assert not torch.isfinite(got[0][0, 1, blind:]).all()


@dtypes_on_gpu
@full_on_gpu
@pytest.mark.parametrize("scale", [0.3, 0, 1.0, -0.7], ids=["0.3", "0", "1.0", "negative"])
def test_gradients_with_a_scale_given_by_the_caller(scale, is_causal, dtype):
    dq, dk, _ = check_gradients(Case(20, 45, D=24, dtype=dtype, is_causal=is_causal, B=1, scale=scale))
    assert scale or ((dq == 0).all() and (dk == 0).all())


# ---------------------------------------------------------------- lse


@dtypes_on_gpu
@full_on_gpu
@pytest.mark.parametrize("of", ["lse alone", "o and lse"])
def test_lse_is_differentiable(of, is_causal, dtype):
    case = Case(20, 45, D=24, dtype=dtype, is_causal=is_causal, B=1, dlse=True)
    q, k, v = case.inputs()
    do, dlse = case.output_gradients()
    dlse = torch.stack([dlse, dlse], dim=-1)[..., 0]  # not contiguous
    if of == "o and lse":
        assert_gradients(differentiate(q, k, v, do, is_causal, dlse=dlse), q, k, v, do, is_causal, dlse=dlse)
        return
    got = differentiate(q, k, v, None, is_causal, dlse=dlse)
    assert_gradients(got, q, k, v, torch.zeros_like(do), is_causal, dlse=dlse)
    assert (got[2] == 0).all()


def test_gradients_of_the_sum_of_lse():
    q, k, v = Case(20, 45, D=24, B=1).data()
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    flash_attention(*leaves, return_lse=True)[1].sum().backward()
    assert_gradients([x.grad for x in leaves], q, k, v, torch.zeros_like(q), dlse=torch.ones(q.shape[:3], device=DEVICE))


def test_an_unused_lse_changes_nothing():
    q, k, v = Case(20, 45, D=24, B=1).data()
    do = randn(*q.shape, dtype=q.dtype, seed=4)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    want = torch.autograd.grad(flash_attention(*leaves), leaves, do)
    assert same(differentiate(q, k, v, do), want)
    assert same(differentiate(q, k, v, do, dlse=torch.zeros(q.shape[:3], device=DEVICE)), want)


# ---------------------------------------------------------------- calls


@needs_gpu
@causal
def test_a_module_as_a_graphed_callable(is_causal):
    """torch.cuda.make_graphed_callables records forward and backward apart; gradients of the parameters and of the input, eager and replayed."""

    class Heads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.project = torch.nn.Linear(64, 3 * 64, device=DEVICE, dtype=torch.float16)

        def forward(self, x):
            q, k, v = (part.unflatten(-1, (2, 32)).transpose(1, 2) for part in self.project(x).chunk(3, dim=-1))
            return flash_attention(q, k, v, is_causal=is_causal)

    torch.manual_seed(0)
    model = Heads()
    x = randn(2, 70, 64, dtype=torch.float16, seed=1).requires_grad_()
    model(x)  # what has to be compiled or measured is so before
    graphed = torch.cuda.make_graphed_callables(model, (x,))
    for seed in (2, 3):
        with torch.no_grad():
            x.copy_(randn(2, 70, 64, dtype=torch.float16, seed=seed))
        do = randn(2, 2, 70, 32, dtype=torch.float16, seed=seed + 10)
        got = [y.clone() for y in torch.autograd.grad(graphed(x), (x, *model.parameters()), do)]
        model.forward, replayed = type(model).forward.__get__(model), model.forward  # make_graphed_callables has put its own in
        want = torch.autograd.grad(model(x), (x, *model.parameters()), do)
        model.forward = replayed
        assert same(got, want)


def small_leaves(dtype=torch.float16, **more):
    """q, k, v that ask for gradients, and do."""
    case = Case(20, 40, D=24, B=1, dtype=dtype, **more)
    return [x.requires_grad_() for x in case.data()], case.output_gradients()[0]


def test_gradients_of_a_second_call_with_another_shape_then_the_first_again():
    first, other = (Case(35, 20, D=24, B=1, is_causal=True, view=view) for view in ("contiguous", "three strides"))
    do, _ = first.output_gradients()
    want = differentiate(*first.inputs(), do, is_causal=True)
    check_gradients(Case(17, 50, D=16, B=1, dtype=torch.float32))
    differentiate(*other.inputs(), do, is_causal=True)
    assert same(differentiate(*first.inputs(), do, is_causal=True), want)


def test_backward_twice_with_retain_graph():
    leaves, do = small_leaves()
    o = flash_attention(*leaves, is_causal=True)
    first = torch.autograd.grad(o, leaves, do, retain_graph=True)
    assert same(torch.autograd.grad(o, leaves, do, retain_graph=True), first)
    o.backward(do)
    assert same([x.grad for x in leaves], first)
    with pytest.raises(RuntimeError, match="second time"):
        o.backward(do)


@pytest.mark.parametrize("which", range(3), ids="qkv")
def test_only_one_of_q_k_v_requires_grad(which, monkeypatch):
    """The others' grads are None, and a kernel that nobody needs is not launched."""
    leaves, do = small_leaves()
    want = torch.autograd.grad(flash_attention(*leaves), leaves, do)[which]
    for i, x in enumerate(leaves):
        x.requires_grad_(i == which)
    monkeypatch.setattr(backward, "dkdv_kernel" if which == 0 else "dq_kernel", None)  # a launch would fail
    flash_attention(*leaves).backward(do)
    assert [x.grad is not None for x in leaves] == [i == which for i in range(3)]
    assert same([leaves[which].grad], [want])


def saved_by(call) -> list[torch.Tensor]:
    """What autograd keeps while `call` runs."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        call()
    return saved


def test_saved_are_q_k_v_o_and_lse_and_nothing_else():
    leaves, _ = small_leaves(H_q=4, H_k=2)
    outputs = []
    saved = saved_by(lambda: outputs.extend(flash_attention(*leaves, return_lse=True)))
    assert [x.data_ptr() for x in saved] == [x.data_ptr() for x in (*leaves, *outputs)]
    assert sum(x.numel() * x.element_size() for x in saved) == ledger.saved_bytes(1, 4, 2, 20, 40, 24, 2)


def test_nothing_is_saved_where_nobody_asks_for_gradients():
    leaves, _ = small_leaves()
    with torch.no_grad():
        assert not saved_by(lambda: flash_attention(*leaves))
    assert not saved_by(lambda: flash_attention(*(x.detach() for x in leaves)))


@pytest.mark.parametrize("which", range(3), ids="qkv")
@pytest.mark.parametrize("do_asks", [True, False], ids=["do asks for a gradient", "do asks for none"])
def test_a_second_derivative_is_refused(do_asks, which):
    """Whoever asked for the first, which is right all the same."""
    leaves, do = small_leaves()
    for i, x in enumerate(leaves):
        x.requires_grad_(i == which)
    o = flash_attention(*leaves)
    want = torch.autograd.grad(o, leaves[which], do, retain_graph=True)
    first = torch.autograd.grad(o, leaves[which], do.requires_grad_(do_asks), create_graph=True)
    assert same([x.detach() for x in first], want)
    with pytest.raises(RuntimeError, match="once differentiable"):
        first[0].sum().backward()


def test_a_second_derivative_of_lse_is_refused():
    leaves, _ = small_leaves()
    first = torch.autograd.grad(flash_attention(*leaves, return_lse=True)[1].sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="once differentiable"):
        first[0].sum().backward()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(use_reentrant):
    from torch.utils.checkpoint import checkpoint

    leaves, do = small_leaves()
    want = torch.autograd.grad(flash_attention(*leaves, is_causal=True), leaves, do)
    checkpoint(lambda *qkv: flash_attention(*qkv, is_causal=True), *leaves, use_reentrant=use_reentrant).backward(do)
    assert same([x.grad for x in leaves], want)


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_gradients_under_autocast_have_the_parameters_dtype(to):
    leaves, do = small_leaves(torch.float32)
    with torch.autocast(DEVICE.type, dtype=to):
        o = flash_attention(*leaves)
    assert o.dtype == to
    got = torch.autograd.grad(o, leaves, do.to(to))
    assert {x.dtype for x in got} == {torch.float32}
    want = differentiate(*(x.detach().to(to) for x in leaves), do.to(to))
    assert same(got, [x.float() for x in want])


@pytest.mark.parametrize("backend", ["eager", *(pytest.param(backend, marks=on_gpu) for backend in ("aot_eager", "inductor"))])
def test_gradients_through_torch_compile(backend):
    """Of a function that does something before flash_attention and after it."""

    def scaled(q, k, v):
        return 4 * flash_attention(2 * q, k, v, is_causal=True)

    torch._dynamo.reset()
    leaves, do = small_leaves(H_q=4, H_k=2)
    got = torch.autograd.grad(torch.compile(scaled, backend=backend)(*leaves), leaves, do)
    assert same(got, torch.autograd.grad(scaled(*leaves), leaves, do))


def test_a_gradient_with_the_opposite_sign_in_memory():
    leaves = [x.requires_grad_() for x in Case(20, 30, dtype=torch.float32).data()]
    do = randn(2, 2, 20, 64, seed=4)
    negated = torch.complex(do, -do).conj().imag
    assert negated.is_neg() and torch.equal(negated, do)
    o = flash_attention(*leaves)
    got = torch.autograd.grad(o, leaves, negated, retain_graph=True)
    assert same(got, torch.autograd.grad(o, leaves, do))


@needs_gpu
@dtypes
def test_250_repeats_of_backward_are_bit_equal(dtype):
    case = Case(257, 511, H_q=6, H_k=2, dtype=dtype, is_causal=True)
    leaves, do = [x.requires_grad_() for x in case.inputs()], case.output_gradients()[0]
    o = flash_attention(*leaves, is_causal=True)
    want = torch.autograd.grad(o, leaves, do, retain_graph=True)
    assert all(same(torch.autograd.grad(o, leaves, do, retain_graph=True), want) for _ in range(250))


@needs_gpu
@causal
def test_memory_of_forward_and_backward_is_linear_in_S(is_causal):
    from fa_tutorial.bench.timing import peak_bytes

    def bytes_per_token(S):
        gc.collect()  # what an earlier test left would be freed in the middle of this one
        leaves = [x.requires_grad_() for x in Case(S, S, D=64, B=1).data()]
        do = torch.ones_like(leaves[0])
        return peak_bytes(lambda: torch.autograd.grad(flash_attention(*leaves, is_causal=is_causal), leaves, do)) / S

    measured = [bytes_per_token(S) for S in (8192, 16_384, 32_768)]
    assert max(measured) <= 1.05 * min(measured), measured


@needs_two_gpus
@causal
def test_gradients_on_a_second_gpu_while_the_first_is_current(is_causal):
    q, k, v = Case(70, 101).data()
    do = randn(*q.shape, dtype=q.dtype, seed=4)
    want = differentiate(q, k, v, do, is_causal)
    with torch.cuda.device(0):
        got = differentiate(*(x.to("cuda:1") for x in (q, k, v, do)), is_causal)
    assert {x.device for x in got} == {torch.device("cuda:1")}
    assert same([x.to("cuda:0") for x in got], want)


@needs_gpu
def test_gradients_on_a_non_default_stream():
    given = (*Case(70, 101).data(), randn(2, 2, 70, 64, dtype=torch.float16, seed=4))
    want = differentiate(*given, is_causal=True)
    late = [torch.zeros_like(x) for x in given]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for x, data in zip(late, given, strict=True):
            x.copy_(data)
        leaves = [x.requires_grad_() for x in late[:3]]
        got = torch.autograd.grad(flash_attention(*leaves, is_causal=True), leaves, late[3])
    stream.synchronize()
    assert same(got, want)


@needs_gpu
@causal
def test_cuda_graph_capture_of_forward_and_backward(is_causal):
    leaves, do = [x.requires_grad_() for x in Case(70, 101).data()], randn(2, 2, 70, 64, dtype=torch.float16, seed=4)

    def step():
        return torch.autograd.grad(flash_attention(*leaves, is_causal=is_causal), leaves, do)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    for factor in (1, 2):  # the graph reads q anew at every replay
        with torch.no_grad():
            leaves[0].mul_(factor)
        graph.replay()
        torch.cuda.synchronize()
        assert same(got, step())
