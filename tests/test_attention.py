"""flash_attention on the hard inputs, with every kernel: what must be exact, forward and backward, and what must raise a clear error."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from attention_cases import (
    KERNELS,
    Case,
    a_tile_by_turns,
    assert_attention,
    assert_gradients,
    attend,
    causal,
    check,
    differentiate,
    hard_inputs,
    on_gpu,
    place,
    plain_attention,
    same,
)
from buffers import (
    DEVICE,
    ON_GPU,
    assert_refused,
    assert_same_on_other_stream,
    assert_same_on_second_gpu,
    dtypes,
    far_apart,
    needs_gpu,
    needs_two_gpus,
    randn,
    vast_memory,
)
from torch.nn.functional import scaled_dot_product_attention

from fa_tutorial import attention, backward, flash_attention, forward, hardware, reference
from fa_tutorial.tuned import autotuning

# NaN and inf are among the inputs, and NumPy, beneath the interpreter, tells of every one.
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning"),
]


@pytest.fixture(name="kernel", autouse=True, params=KERNELS)
def every_kernel(request, monkeypatch) -> str:
    """What kernel="auto" takes: every test here is made with every kernel."""
    monkeypatch.setattr(attention, "best", lambda q: request.param)
    monkeypatch.setattr(autotuning, "fastest", a_tile_by_turns)
    return request.param


# ---------------------------------------------------------------- what must be exact


EVERY = [(kernel, case) for kernel in KERNELS for i, case in enumerate(hard_inputs()) if kernel != "tuned" or ON_GPU or i % 3 == 1]


@pytest.mark.parametrize(("kernel", "case"), EVERY, indirect=["kernel"], ids=str)
def test_hard_input(kernel, case):
    check(case)


@causal
@pytest.mark.parametrize("empty", [{"S_k": 0}, {"S_q": 0}, {"B": 0}, {"H_q": 0}, {"H_q": 0, "H_k": 2}, {"S_q": 0, "S_k": 0}], ids=str)
def test_without_keys_queries_batch_or_heads_nothing_is_launched(empty, is_causal, monkeypatch):
    for module in (forward, backward, autotuning):
        monkeypatch.setattr(module, "card_of", None)  # a launch would fail
    case = dataclasses.replace(Case(5, 7, is_causal=is_causal, dlse=True), **empty)
    assert all((x == 0).all() for x in check(case)[2:])


@causal
def test_nan_beyond_the_ends(is_causal):
    """Bit-equal to the run on tensors of their own, for the ends of S and, with padded rows, of D."""
    case = Case(41, 53, D=40, B=1, H_q=2, H_k=1)
    data = *case.data(), case.output_gradients()[0]
    longer = [torch.cat([x, torch.full_like(x, math.nan)], dim=2)[:, :, : x.shape[2]] for x in data]
    want, gradients = attend(*data[:3], is_causal), differentiate(*data, is_causal)
    for views in ([place(x, "padded rows") for x in data], longer):
        assert same(attend(*views[:3], is_causal), want) and same(differentiate(*views, is_causal), gradients)


@causal
def test_q_is_k_is_v(is_causal):
    """The three gradients add."""
    x, _, _ = Case(40, 40, D=24, B=1, dtype=torch.float32).data()
    do = randn(*x.shape, seed=4)
    assert_attention(*attend(x, x, x, is_causal), x, x, x, is_causal)
    leaf = x.clone().requires_grad_()
    (got,) = torch.autograd.grad(flash_attention(leaf, leaf, leaf, is_causal=is_causal), leaf, do)
    torch.testing.assert_close(got, sum(differentiate(x, x, x, do, is_causal)))


def far_inputs(memory, axis: int):
    """q and do (2, 2, 3, 16), k and v (2, 2, 5, 16), 3 long at least along `axis`, where the stride fits int32 and the last offset does
    not."""
    for i, S in enumerate((3, 5, 5, 3)):
        shape = [2, 2, S, 16]
        shape[axis] = max(shape[axis], 3)
        data = randn(*shape, dtype=torch.float16, seed=i)
        strides = list(data.stride())
        strides[axis] = 2**31 // (shape[axis] - 1) + 16
        yield far_apart(memory, data, strides, offset=2048 * (i + 1))


@pytest.mark.parametrize("axis", range(4), ids=["batch", "head", "S", "D"])
def test_offsets_of_2_to_the_31_and_more(axis):
    q, k, v, do = far_inputs(vast_memory(), axis)
    assert min(x.stride(axis) * (x.shape[axis] - 1) for x in (q, k, v, do)) >= 2**31
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    o, lse = flash_attention(*leaves, is_causal=True, return_lse=True)
    small = [x.contiguous() for x in (q, k, v, do)]
    assert_attention(o.detach(), lse.detach(), *small[:3], is_causal=True)
    assert_gradients(torch.autograd.grad(o, leaves, do), *small, is_causal=True)


@on_gpu
@causal
@pytest.mark.parametrize(("B", "H"), [(1, 65_537), (65_537, 1), (257, 256)])
def test_more_than_65535_blocks_along_batch_and_heads(B, H, is_causal):
    check(Case(3, 5, D=16, B=B, H_q=H, is_causal=is_causal))


@dtypes
@pytest.mark.parametrize("values", ["falling maximum", "logits near -1e4", "logits up to 1e4"])
def test_large_logits_cost_no_more_than_rounding_p_and_o_once(values, dtype):
    """Where unfused attention rounds its scores, and is no bound at all."""
    case = Case(40, 101, D=40, dtype=dtype, is_causal=True, B=1, H_q=1, values=values, scale=1.0 if "1e4" in values else None)
    q, k, v = case.inputs()
    o, _ = attend(q, k, v, True, case.scale)
    truth, _ = reference.attention(q, k, v, True, case.scale)
    largest_logit = float((q.double() @ k.double().mT).abs().max()) * (case.scale or case.D**-0.5)
    relative = 2 * torch.finfo(dtype).eps + 4 * torch.finfo(torch.float32).eps * largest_logit
    reference.assert_accurate(o, truth, truth.to(dtype), slack=relative * float(v.abs().max()))


def test_values_of_1e30_at_keys_that_the_causal_mask_hides():
    q, k, v = Case(70, 70, D=24, B=1, H_q=1, H_k=1, dtype=torch.bfloat16).inputs()
    do = randn(*q.shape, dtype=q.dtype, seed=4)
    want = *attend(q, k, v, is_causal=True), differentiate(q, k, v, do, is_causal=True)[0]
    v[:, :, 40:] = 1e30
    got = *attend(q, k, v, is_causal=True), differentiate(q, k, v, do, is_causal=True)[0]
    assert same((x[:, :, :40] for x in got), (x[:, :, :40] for x in want))
    assert torch.isfinite(got[0]).all()


@pytest.mark.parametrize(("row", "is_causal"), [(5, True), (33, True), (33, False)])
def test_nan_in_one_query_row_stays_in_that_row(row, is_causal):
    q, k, v = Case(40, 30, D=24, H_q=1, H_k=1).inputs()
    do = randn(*q.shape, dtype=q.dtype, seed=4)
    want = *attend(q, k, v, is_causal), differentiate(q, k, v, do, is_causal)[0]
    q[1, 0, row, 5] = math.nan
    got = *attend(q, k, v, is_causal), differentiate(q, k, v, do, is_causal)[0]
    sees = row >= 10 or not is_causal
    for x, clean in zip(got, want, strict=True):
        if sees:
            assert torch.isnan(x[1, 0, row]).all()
        x[1, 0, row] = clean[1, 0, row]
    assert same(got, want), "another row changed"


# ---------------------------------------------------------------- calls


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_torch_autocast(to):
    """The result is in the autocast dtype, the gradients are in the inputs'."""
    leaves, do = [x.requires_grad_() for x in Case(20, 20, B=1, dtype=torch.float32).data()], randn(1, 2, 20, 64, dtype=to, seed=4)
    with torch.autocast(DEVICE.type, dtype=to):
        o = flash_attention(*leaves)
        assert o.dtype == to == scaled_dot_product_attention(*leaves).dtype
        assert flash_attention(leaves[0], leaves[1].half(), leaves[2].bfloat16()).dtype == to
        with pytest.raises(TypeError, match="float64"):  # PyTorch's autocast leaves it as it is
            flash_attention(*[leaves[0].double()] * 3)
        with torch.autocast(DEVICE.type, enabled=False):
            assert flash_attention(*leaves).dtype == torch.float32
    cast = [x.detach().to(to) for x in leaves]
    assert same([o.detach()], attend(*cast)[:1])
    assert same(torch.autograd.grad(o, leaves, do), (x.float() for x in differentiate(*cast, do)))


@pytest.mark.parametrize("deterministic", [False, True])
def test_chapter_9s_backward_is_not_taken_where_bits_must_be_the_same(deterministic, monkeypatch):
    """Its dq is added up in the order in which programs come."""
    taken = []
    chapter_9 = SimpleNamespace(applies=lambda *_: True, flash_backward=lambda *_: taken.append("chapter 9"))
    monkeypatch.setattr(attention, "hopper", lambda: chapter_9)
    monkeypatch.setattr(attention, "pick", lambda *_: "hopper")
    q = randn(1, 2, 5, 16)
    torch.use_deterministic_algorithms(deterministic)
    try:
        attention.run_backward(q, None, q, q, q, q, randn(1, 2, 5), False, 0.25, "auto")
    finally:
        torch.use_deterministic_algorithms(False)
    assert taken == ([] if deterministic else ["chapter 9"])


@needs_gpu
def test_250_repeats_are_bit_equal(kernel):
    """But for dq of "hopper", which takes other kernels where bits are asked for, see test_hopper.py."""
    case = Case(257, 511, H_q=6, H_k=2, is_causal=True)
    leaves, do = [x.requires_grad_() for x in case.inputs()], case.output_gradients()[0]

    def step():
        o, lse = flash_attention(*leaves, is_causal=True, return_lse=True)
        gradients = torch.autograd.grad(o, leaves, do)
        return o.detach(), lse.detach(), *gradients[kernel == "hopper" :]

    want = step()
    assert all(same(step(), want) for _ in range(250))


def all_of(q, k, v, do):
    """o, dq, dk and dv in one tensor."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    o = flash_attention(*leaves, is_causal=True)
    return torch.cat([x.detach().flatten() for x in (o, *torch.autograd.grad(o, leaves, do))])


@needs_two_gpus
def test_tensors_on_a_second_gpu_while_the_first_is_current():
    assert_same_on_second_gpu(all_of, *Case(70, 101).data(), randn(2, 2, 70, 64, dtype=torch.float16, seed=4))


@needs_gpu
def test_a_non_default_stream():
    assert_same_on_other_stream(all_of, *Case(70, 101).data(), randn(2, 2, 70, 64, dtype=torch.float16, seed=4))


@needs_gpu
@causal
def test_cuda_graph_capture_after_a_warm_up_call(is_causal):
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


@needs_gpu
def test_131072_tokens_in_memory_of_o_and_lse_alone(kernel):
    from fa_tutorial.bench.timing import peak_bytes

    q, k, v = Case(131_072, 131_072, D=64, B=1, H_q=1).data()
    outputs = q.numel() * q.element_size() + 4 * q.shape[2]
    counter = 512 if kernel == "hopper" else 0  # an integer, the least that is allocated
    assert peak_bytes(lambda: flash_attention(q, k, v, is_causal=True, return_lse=True)) == outputs + counter
    o, lse = flash_attention(q, k, v, is_causal=True, return_lse=True)
    for i in (2047, 65_535, 131_071):
        row = q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1]
        truth, truth_lse = reference.attention(*row)
        reference.assert_accurate(o[:, :, i : i + 1], truth, plain_attention(truth, *row), slack=1e-4)
        reference.assert_lse_accurate(lse[:, :, i : i + 1], truth_lse, q.dtype)


@needs_gpu
@causal
def test_memory_of_forward_and_backward_is_linear_in_S(is_causal):
    from fa_tutorial.bench.timing import peak_bytes

    def bytes_per_token(S):
        leaves = [x.requires_grad_() for x in Case(S, S, B=1).data()]
        do = torch.ones_like(leaves[0])
        return peak_bytes(lambda: torch.autograd.grad(flash_attention(*leaves, is_causal=is_causal), leaves, do)) / S

    measured = [bytes_per_token(S) for S in (8192, 16_384, 32_768)]
    assert max(measured) <= 1.05 * min(measured), measured


# ---------------------------------------------------------------- what must raise


def ones(*shape, dtype=torch.float32, device=DEVICE):
    return torch.ones(shape, device=device).to(dtype)


X = ones(1, 1, 2, 4)
# Name -> q, k, v and more arguments; the error; words that its message must hold.
BAD_INPUTS = {
    "float64": ([X.double()] * 3, TypeError, ["q", "float64", "float16, bfloat16, float32"]),
    "nested": ([X, torch.nested.nested_tensor([X[0]]), X], TypeError, ["k", "dense"]),
    "different dtypes": ([X, X.half(), X.bfloat16()], TypeError, ["q: float32", "k: float16", "v: bfloat16"]),
    "different devices": ([X, X.to("meta"), X], ValueError, ["one device", f"q: {DEVICE.type}", "k: meta"]),
    "3-D": ([X[0]] * 3, ValueError, ["q", "(B, H, S, D)", "3 dimensions", "(1, 2, 4)"]),
    "k and v of different lengths": ([X, ones(1, 1, 3, 4), X], ValueError, ["k (1, 1, 3, 4)", "v (1, 1, 2, 4)"]),
    "head-dim mismatch": ([X, *[ones(1, 1, 2, 8)] * 2], ValueError, ["q (1, 1, 2, 4)", "k (1, 1, 2, 8)"]),
    "query heads not a multiple": ([ones(1, 6, 2, 4), *[ones(1, 4, 2, 4)] * 2], ValueError, ["6 query heads", "4 key heads"]),
    "D of 257": ([ones(1, 1, 2, 257)] * 3, ValueError, ["256", "257"]),
    "scale NaN": ([X, X, X, {"scale": math.nan}], ValueError, ["scale", "finite", "nan"]),
    "unknown kernel": ([X, X, X, {"kernel": "best"}], ValueError, ["kernel", "'auto'", "'basic'", "'best'"]),
}


@pytest.mark.parametrize(("given", "error", "words"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_bad_input(given, error, words):
    q, k, v, *more = given
    assert_refused(lambda: flash_attention(q, k, v, **(more[0] if more else {})), error, words)


@pytest.mark.skipif("hopper" in KERNELS, reason="here it is allowed")
def test_hopper_is_refused_elsewhere(kernel):
    with pytest.raises(ValueError, match=r'(?s)"hopper".*9\.0.*"auto"'):
        flash_attention(X, X, X, kernel="hopper")


@pytest.mark.parametrize(("capability", "rows", "forward", "backward"), [
    (75, 2**20, "tuned", "tuned"), (90, 2**14 - 1, "tuned", "tuned"), (90, 2**14, "tuned", "hopper"),
    (90, 2**17 - 1, "tuned", "hopper"), (90, 2**17, "hopper", "hopper"), (100, 2**20, "tuned", "tuned"),
])  # fmt: skip
def test_what_auto_takes_depends_on_the_tensors_card_and_size(capability, rows, forward, backward, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(attention, "interpreter_on", lambda: False)
    monkeypatch.setattr(attention, "require_kernel_device", lambda *_: None)
    monkeypatch.setattr(attention, "card_of", lambda q: hardware.Card("", capability, 101_376, 100))
    q = torch.empty(1, 1, rows, 64, device="meta")
    assert [attention.pick("auto", q, direction) for direction in ("forward", "backward")] == [forward, backward]
