"""flash_attention on the hard inputs, each by name: what must give the exact result, and what must raise a clear error. Its gradients:
test_attention_gradients.py.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch
from attention_cases import (
    KERNELS,
    VALUES,
    VIEWS,
    Case,
    a_tile_by_turns,
    assert_attention,
    assert_gradients,
    check_kernel,
    plain_attention,
    run_guarded,
)
from buffers import DEVICE, DTYPES, ON_GPU, far_apart, needs_gpu, needs_two_gpus, randn, same_bits, unchanged, vast_memory, zeros
from torch.nn.functional import scaled_dot_product_attention

from fa_tutorial import attention, flash_attention, forward, reference, tuned
from fa_tutorial.arguments import dtype_name

# NaN and inf are among the inputs, and NumPy, beneath the interpreter, tells of every one.
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning"),
]

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["fp16", "bf16", "fp32"])
# In the interpreter one dtype shows these; on a GPU vector widths, layouts and instructions depend on it.
dtypes_on_gpu = pytest.mark.parametrize("dtype", DTYPES if ON_GPU else [torch.float16], ids=dtype_name)
causal = pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
full_on_gpu = pytest.mark.parametrize("is_causal", [False, True] if ON_GPU else [True], ids=lambda on: "causal" if on else "full")
on_gpu = pytest.mark.skipif(not ON_GPU, reason="the interpreter would take too long, and shows no more than with the cases it runs")


@pytest.fixture(name="kernel", autouse=True, params=KERNELS)
def every_kernel(request, monkeypatch) -> str:
    """What kernel="auto" takes: every test here is made with every kernel (test_tuned.py has the tuned ones in the interpreter)."""
    monkeypatch.setattr(attention, "best", lambda index=None: request.param)
    monkeypatch.setattr(tuned, "fastest", a_tile_by_turns)
    return request.param


def attend(q, k, v, is_causal=False, scale=None):
    """flash_attention's o and lse, which leaves q, k, v and what lies around them as they were."""
    with unchanged(q, k, v):
        return flash_attention(q, k, v, is_causal=is_causal, scale=scale, return_lse=True)


def check(case: Case):
    """flash_attention is accurate on the case; returns o and lse."""
    q, k, v = case.inputs()
    o, lse = attend(q, k, v, case.is_causal, case.scale)
    assert_attention(o, lse, q, k, v, case.is_causal, case.scale)
    return o, lse


def same(got, want) -> bool:
    return all(bool(same_bits(a, b).all()) for a, b in zip(got, want, strict=True))


# ---------------------------------------------------------------- lengths and head dimensions


@dtypes_on_gpu
@causal
@pytest.mark.parametrize(("S_q", "S_k"), [(1, 1), (1, 239), (239, 1)])
def test_one_query_or_one_key(S_q, S_k, is_causal, dtype):
    check(Case(S_q, S_k, dtype=dtype, is_causal=is_causal))


@causal
@pytest.mark.parametrize("S", [15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129])
def test_lengths_around_every_block_size(S, is_causal):
    check(Case(S, S, is_causal=is_causal))


@causal
@pytest.mark.parametrize(("S_q", "S_k"), [(113, 203), (127, 513), (799, 3)])
def test_odd_lengths(S_q, S_k, is_causal):
    check(Case(S_q, S_k, is_causal=is_causal, dtype=torch.float32))


@pytest.mark.parametrize("D", [1, 8, 16, 40, 59, 64, 80, 96, 111, 128, 192, 256])
@pytest.mark.parametrize("turn", range(3) if ON_GPU else [0])
def test_any_head_dimension(D, turn):
    """In the interpreter the dtypes take turns."""
    check(Case(33, 47, D=D, dtype=DTYPES[(D // 8 + turn) % 3], is_causal=D % 16 == 0, view="padded row stride"))


@causal
@pytest.mark.parametrize(
    ("block_m", "block_n"), [pytest.param(16, 16, marks=on_gpu), (32, 64), (64, 32), pytest.param(128, 64, marks=on_gpu)]
)
@pytest.mark.parametrize(("S_q", "S_k", "D"), [(1, 33, 16), (65, 33, 40), (33, 65, 59), (64, 64, 64), (47, 47, 111)])
def test_every_output_is_written_and_nothing_around_it(S_q, S_k, D, block_m, block_n, is_causal):
    """The kernel by itself, on outputs that are NaN between guard cells, for several tiles."""
    dtype = {16: torch.float32, 40: torch.bfloat16}.get(D, torch.float16)
    case = Case(S_q, S_k, D=D, dtype=dtype, is_causal=is_causal, view="three strides")
    check_kernel(forward, case, forward.TileConfig(block_m, block_n, 4, 1))


# ---------------------------------------------------------------- causal, and nothing to see


@dtypes_on_gpu
@pytest.mark.parametrize(("S_q", "S_k"), [(1, 70), (33, 70), (64, 65), (69, 70)])
def test_causal_with_fewer_queries_than_keys(S_q, S_k, dtype):
    """Bottom-right aligned: query i sees keys 0 … i + S_k − S_q, so the last query sees every key."""
    q, k, v = Case(S_q, S_k, dtype=dtype).inputs()
    o, lse = attend(q, k, v, is_causal=True)
    assert_attention(o, lse, q, k, v, is_causal=True)
    last, last_lse = (x[:, :, -1:] for x in (o, lse))
    assert_attention(last, last_lse, q[:, :, -1:], k, v)


@dtypes
@pytest.mark.parametrize(("S_q", "S_k"), [(70, 1), (70, 33), (65, 64), (130, 2)])
def test_causal_with_rows_that_see_no_key(S_q, S_k, dtype):
    o, lse = check(Case(S_q, S_k, dtype=dtype, is_causal=True))
    blind = S_q - S_k
    assert (o[:, :, :blind] == 0).all() and (lse[:, :, :blind] == -math.inf).all()
    assert torch.isfinite(lse[:, :, blind:]).all()


@dtypes
@causal
def test_no_keys(is_causal, dtype):
    o, lse = check(Case(37, 0, dtype=dtype, is_causal=is_causal))
    assert (o == 0).all() and (lse == -math.inf).all()


@causal
@pytest.mark.parametrize("empty", [{"S_q": 0}, {"B": 0}, {"H_q": 0}, {"H_q": 0, "H_k": 2}, {"S_q": 0, "S_k": 0}], ids=str)
def test_no_queries_no_batch_no_heads(empty, is_causal, monkeypatch):
    monkeypatch.setattr(forward, "flash_forward_kernel", None)  # a launch would fail
    o, lse = check(dataclasses.replace(Case(5, 7, is_causal=is_causal), **empty))
    assert o.numel() == lse.numel() == 0


# ---------------------------------------------------------------- heads, views, memory


@dtypes_on_gpu
@causal
@pytest.mark.parametrize(("H_q", "H_k"), [(6, 2), (4, 1)], ids=["GQA", "MQA"])
def test_grouped_queries(H_q, H_k, is_causal, dtype):
    check(Case(45, 35, D=32, dtype=dtype, is_causal=is_causal, H_q=H_q, H_k=H_k))


@dtypes_on_gpu
@causal
@pytest.mark.parametrize("view", VIEWS)
def test_views(view, is_causal, dtype, kernel):
    case = Case(37, 45, D=64, dtype=dtype, is_causal=is_causal, view=view)
    got = check(case)
    if kernel == "hopper" and not tuned.can_use_tma(*case.inputs()):
        return  # the tuned kernel took it: as accurate, and not by the bit
    contiguous = (x.contiguous() for x in case.inputs())
    assert same(got, attend(*contiguous, is_causal)), "a view gives another result than its contiguous copy"


@causal
def test_slices_of_one_fused_qkv_tensor(is_causal):
    fused = randn(2, 49, 3, 4, 32, dtype=torch.float16)
    q, k, v = fused.transpose(1, 3).unbind(2)  # (B, H, 3, S, D)
    assert q.shape == (2, 4, 49, 32) and q.data_ptr() != k.data_ptr()
    assert_attention(*attend(q, k, v, is_causal), q, k, v, is_causal)
    grouped = randn(2, 49, 6 + 2 + 2, 32, dtype=torch.float16).transpose(1, 2)  # 6 query heads, 2 key heads, 2 value heads
    q, k, v = grouped.split([6, 2, 2], dim=1)
    assert_attention(*attend(q, k, v, is_causal), q, k, v, is_causal)


@dtypes_on_gpu
@causal
def test_nan_beyond_the_ends(is_causal, dtype):
    """Bit-equal to the run on tensors of their own, for the ends of S and, with padded rows, of D."""
    case = Case(41, 53, D=40, dtype=dtype, is_causal=is_causal, H_q=4, H_k=2, view="padded row stride")
    assert same(attend(*case.inputs(), is_causal), attend(*case.data(), is_causal))
    longer = [torch.cat([x, torch.full_like(x, math.nan)], dim=2)[:, :, : x.shape[2]] for x in case.data()]
    assert same(attend(*longer, is_causal), attend(*case.data(), is_causal))


@dtypes_on_gpu
@causal
def test_q_is_k_is_v(is_causal, dtype):
    q, _, _ = Case(67, 67, dtype=dtype).inputs()
    assert_attention(*attend(q, q, q, is_causal), q, q, q, is_causal)


@dtypes
def test_inputs_are_unchanged(dtype):
    q, k, v = Case(35, 35, dtype=dtype, view="three strides").inputs()
    before = [x.clone() for x in (q, k, v)]
    with unchanged(q, k, v):  # the memory around them too
        flash_attention(q, k, v, is_causal=True)
    assert all(torch.equal(x, y) for x, y in zip((q, k, v), before, strict=True))


def far_inputs(memory, axis: int, lengths=(3, 5, 5)):
    """q (2, 2, 3, 16), k and v (2, 2, 5, 16), or as many as `lengths`, 3 long at least along `axis`, where the stride fits int32 and the
    last offset does not.
    """
    for i, S in enumerate(lengths):
        shape = [2, 2, S, 16]
        shape[axis] = max(shape[axis], 3)
        data = randn(*shape, dtype=torch.float16, seed=i)
        strides = list(data.stride())
        strides[axis] = 2**31 // (shape[axis] - 1) + 16
        yield far_apart(memory, data, strides, offset=2048 * (i + 1))


@pytest.mark.parametrize("axis", range(4), ids=["batch", "head", "S", "D"])
def test_offsets_of_2_to_the_31_and_more(axis):
    """Forward and backward."""
    memory = vast_memory()
    q, k, v, do = far_inputs(memory, axis, (3, 5, 5, 3))
    assert min(x.stride(axis) * (x.shape[axis] - 1) for x in (q, k, v, do)) >= 2**31
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    o, lse = flash_attention(*leaves, is_causal=True, return_lse=True)
    small = [x.contiguous() for x in (q, k, v, do)]
    assert_attention(o, lse, *small[:3], is_causal=True)
    assert_gradients(torch.autograd.grad(o, leaves, do), *small, is_causal=True)


@on_gpu
@causal
@pytest.mark.parametrize(("B", "H"), [(1, 65_537), (65_537, 1), (257, 256)])
def test_more_than_65535_blocks_along_batch_and_heads(B, H, is_causal):
    check(Case(3, 5, D=16, B=B, H_q=H, is_causal=is_causal))


# ---------------------------------------------------------------- values


@dtypes
@full_on_gpu
@pytest.mark.parametrize("values", ["3x randn", "equal keys", "growing maximum", "falling maximum", "logits near -1e4", "logits up to 1e4"])
def test_hard_logits(values, is_causal, dtype):
    """Also within what rounding p and o once costs, where unfused attention rounds its scores and is no bound at all."""
    assert values in VALUES
    case = Case(40, 101, D=40, dtype=dtype, is_causal=is_causal, values=values, scale=1.0 if "1e4" in values else None)
    o, _ = check(case)
    q, k, v = case.inputs()
    truth, _ = reference.attention(q, k, v, is_causal, case.scale)
    largest_logit = float((q.double() @ k.double().mT).abs().max()) * (case.scale or case.D**-0.5)
    relative = 2 * torch.finfo(dtype).eps + 4 * torch.finfo(torch.float32).eps * largest_logit
    reference.assert_accurate(o, truth, truth.to(dtype), slack=relative * float(v.abs().max()))


@dtypes
@causal
def test_values_near_the_largest_finite(is_causal, dtype):
    """The sum of p v before the division is beyond float32, its quotient is not."""
    o, _ = check(Case(41, 300, D=16, dtype=dtype, is_causal=is_causal, values="values near the largest"))
    assert torch.isfinite(o).all()


@causal
def test_bf16_queries_near_the_largest_finite(is_causal):
    """q near 3e38 and k near 1e-38, so that their products are of ordinary size."""
    q, k, v = Case(41, 50, D=16, dtype=torch.bfloat16).data()
    q, k = 3e38 * torch.sign(q), 3e-38 * k.clamp(-1, 1).where(k.abs() > 0.4, 0.4)
    o, lse = attend(q, k, v, is_causal)
    assert torch.isfinite(o).all()
    assert_attention(o, lse, q, k, v, is_causal)


@dtypes
def test_huge_finite_values_at_masked_keys(dtype):
    q, k, v = Case(70, 70, dtype=dtype).inputs()
    want = attend(q, k, v, is_causal=True)
    v[:, :, 40:] = torch.finfo(dtype).max
    got = attend(q, k, v, is_causal=True)
    assert same((x[:, :, :40] for x in got), (x[:, :, :40] for x in want)), "rows that may not see the huge values changed"
    assert torch.isfinite(got[0]).all()


@dtypes_on_gpu
@causal
def test_nan_in_one_query_row(is_causal, dtype):
    q, k, v = Case(70, 70, dtype=dtype).inputs()
    o, lse = attend(q, k, v, is_causal)
    q[1, 0, 33, 5] = math.nan
    got_o, got_lse = attend(q, k, v, is_causal)
    assert torch.isnan(got_o[1, 0, 33]).all() and torch.isnan(got_lse[1, 0, 33])
    got_o[1, 0, 33], got_lse[1, 0, 33] = o[1, 0, 33], lse[1, 0, 33]
    assert same((got_o, got_lse), (o, lse)), "another row changed"


@dtypes_on_gpu
@pytest.mark.parametrize("stray", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("which", ["key", "value"])
def test_nan_or_inf_in_a_hidden_key_or_value(which, stray, dtype):
    """Rows that may not see it are bit-equal; rows that see it have NaN and inf where the reference has."""
    S_q, S_k = 60, 90
    q, k, v = Case(S_q, S_k, dtype=dtype).inputs()
    want = attend(q, k, v, is_causal=True)
    (k if which == "key" else v)[1, :, 70, 3] = stray
    got = attend(q, k, v, is_causal=True)
    blind = 70 - (S_k - S_q)  # the first row that sees key 70
    assert same((x[:, :, :blind] for x in got), (x[:, :, :blind] for x in want))
    assert same((x[0] for x in got), (x[0] for x in want))
    if which == "value" or math.isnan(stray):
        assert not torch.isfinite(got[0][1, :, blind:, 3]).any()
    assert_attention(*got, q, k, v, is_causal=True)


@causal
@pytest.mark.parametrize("stray", [math.nan, math.inf], ids=str)
def test_nan_or_inf_in_a_value_that_is_seen(stray, is_causal):
    """It stays in its own column of o, and in its own batch and key head."""
    q, k, v = Case(40, 70, H_q=4, H_k=2).inputs()
    want, _ = attend(q, k, v, is_causal)
    v[0, 1, 2, 5] = stray
    o, lse = attend(q, k, v, is_causal)
    assert not torch.isfinite(o[0, 2:, :, 5]).any()
    o[0, 2:, :, 5] = want[0, 2:, :, 5]
    assert_attention(o, lse, *Case(40, 70, H_q=4, H_k=2).inputs(), is_causal)


@dtypes_on_gpu
@causal
@pytest.mark.parametrize("scale", [0.3, 0, 1.0, -0.7], ids=["0.3", "0", "1.0", "negative"])
def test_scale_given_by_the_caller(scale, is_causal, dtype):
    check(Case(20, 45, D=40, dtype=dtype, is_causal=is_causal, scale=scale))


# ---------------------------------------------------------------- calls


def test_a_second_call_with_another_shape_then_the_first_again():
    first, other = (Case(65, 40, is_causal=True, view=view).inputs() for view in ("contiguous", "three strides"))
    want = attend(*first, is_causal=True)
    attend(*Case(17, 90, D=24, dtype=torch.float32).inputs())
    attend(*other, is_causal=True)
    assert same(attend(*first, is_causal=True), want)


@needs_gpu
@dtypes
def test_250_repeats_are_bit_equal(dtype):
    q, k, v = Case(257, 511, H_q=6, H_k=2, dtype=dtype).inputs()
    want = attend(q, k, v, is_causal=True)
    assert all(same(flash_attention(q, k, v, is_causal=True, return_lse=True), want) for _ in range(250))


def test_nothing_is_saved_without_gradients():
    q, k, v = Case(20, 30).inputs()
    o, lse = attend(q, k, v)
    assert o.grad_fn is None and lse.grad_fn is None and not o.requires_grad
    with torch.no_grad():
        o, lse = attend(*(x.requires_grad_() for x in (q, k, v)))
    assert o.grad_fn is None and lse.grad_fn is None and not o.requires_grad and not lse.requires_grad
    assert all(x.grad is None for x in (q, k, v))


@needs_two_gpus
@causal
def test_tensors_on_a_second_gpu_while_the_first_is_current(is_causal):
    q, k, v = Case(70, 101, dtype=torch.float16).inputs()
    want = attend(q, k, v, is_causal)
    with torch.cuda.device(0):
        got = attend(*(x.to("cuda:1") for x in (q, k, v)), is_causal)
    assert {x.device for x in got} == {torch.device("cuda:1")}
    assert same([x.to("cuda:0") for x in got], want)


@needs_gpu
def test_a_non_default_stream():
    q, k, v = Case(70, 101, is_causal=True).data()
    want = attend(q, k, v)
    late = [torch.zeros_like(x) for x in (q, k, v)]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for x, data in zip(late, (q, k, v), strict=True):
            x.copy_(data)
        got = flash_attention(*late, return_lse=True)
    stream.synchronize()
    assert same(got, want)


@needs_gpu
@causal
def test_cuda_graph_capture_after_a_warm_up_call(is_causal):
    q, k, v = Case(70, 101).data()
    flash_attention(q, k, v, is_causal=is_causal)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = flash_attention(q, k, v, is_causal=is_causal, return_lse=True)
    for factor in (1, 2):  # the graph reads q anew at every replay
        q.mul_(factor)
        graph.replay()
        torch.cuda.synchronize()
        assert same(got, attend(q, k, v, is_causal))


@full_on_gpu
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=on_gpu)])
def test_torch_compile(backend, is_causal):
    torch._dynamo.reset()
    compiled = torch.compile(flash_attention, backend=backend)
    for S_q, S_k in ((20, 30), (33, 17)):
        q, k, v = Case(S_q, S_k, H_q=4, H_k=2).inputs()
        assert same(compiled(q, k, v, is_causal=is_causal, return_lse=True), attend(q, k, v, is_causal))
        assert torch.equal(compiled(q, k, v, is_causal=is_causal), attend(q, k, v, is_causal)[0])


@full_on_gpu
@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@dtypes
def test_torch_autocast(dtype, to, is_causal):
    q, k, v = Case(40, 40, dtype=dtype).inputs()
    with torch.autocast(DEVICE.type, dtype=to):
        o, lse = attend(q, k, v, is_causal)
        assert o.dtype == to == scaled_dot_product_attention(q, k, v, is_causal=is_causal).dtype
        with torch.autocast(DEVICE.type, enabled=False):
            assert flash_attention(q, k, v).dtype == dtype
    assert same((o, lse), attend(*(x.to(to) for x in (q, k, v)), is_causal))


def test_autocast_makes_mixed_dtypes_one():
    q, k, v = Case(20, 20, dtype=torch.float32).inputs()
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        assert flash_attention(q, k.half(), v.bfloat16()).dtype == torch.bfloat16


def test_o_alone_unless_lse_is_asked_for(kernel):
    q, k, v = Case(20, 30).inputs()
    o = flash_attention(q, k, v)
    assert isinstance(o, torch.Tensor) and torch.equal(o, attend(q, k, v)[0])
    assert torch.equal(o, flash_attention(q, k, v, kernel=kernel))


@needs_gpu
def test_131072_tokens_in_memory_of_o_and_lse_alone(kernel):
    from fa_tutorial.bench.timing import peak_bytes

    q, k, v = Case(131_072, 131_072, D=64, B=1, H_q=1).data()
    outputs = q.numel() * q.element_size() + 4 * q.shape[2]
    counter = 512 if kernel == "hopper" else 0  # an integer, the least that is allocated
    assert peak_bytes(lambda: flash_attention(q, k, v, is_causal=True, return_lse=True)) == outputs + counter
    o, lse = flash_attention(q, k, v, is_causal=True, return_lse=True)
    rows = torch.arange(2047, 131_072, 2048, device=DEVICE)  # 64 of them, the last row among them
    truth, truth_lse, plain = (torch.cat(parts, dim=2) for parts in zip(*(row_alone(q, k, v, int(i)) for i in rows), strict=True))
    reference.assert_accurate(o[:, :, rows], truth, plain)
    reference.assert_lse_accurate(lse[:, :, rows], truth_lse, q.dtype)


def row_alone(q, k, v, i: int):
    """The reference's o and lse of row i under the causal mask, S_q = S_k, and plain attention's o."""
    row = q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1]
    truth, truth_lse = reference.attention(*row)
    return truth, truth_lse, plain_attention(truth, *row)


# ---------------------------------------------------------------- what must raise

# Name -> the call, the error, and words that its message must hold.
BAD_INPUTS = {
    "float64": (lambda: flash_attention(*[zeros(1, 1, 2, 4, dtype=torch.float64)] * 3), TypeError, ["q", "float64", "float16, bfloat16, float32"]),
    "integer": (lambda: flash_attention(*[zeros(1, 1, 2, 4, dtype=torch.int64)] * 3), TypeError, ["q", "int64", "float16, bfloat16, float32"]),
    "bool": (lambda: flash_attention(*[zeros(1, 1, 2, 4, dtype=torch.bool)] * 3), TypeError, ["q", "bool", "float16, bfloat16, float32"]),
    "complex": (lambda: flash_attention(*[zeros(1, 1, 2, 4, dtype=torch.complex64)] * 3), TypeError, ["q", "complex64", "float16, bfloat16, float32"]),
    "float64 k and v": (lambda: flash_attention(zeros(1, 1, 2, 4), *[zeros(1, 1, 2, 4, dtype=torch.float64)] * 2), TypeError, ["k", "float64", "float32"]),
    "sparse": (lambda: flash_attention(zeros(1, 1, 2, 4).to_sparse(), *[zeros(1, 1, 2, 4)] * 2), TypeError, ["q", "dense", "sparse"]),
    "nested": (lambda: flash_attention(zeros(1, 1, 2, 4), torch.nested.nested_tensor([zeros(1, 2, 4)]), zeros(1, 1, 2, 4)), TypeError, ["k", "dense"]),
    "jagged": (lambda: flash_attention(*[torch.nested.nested_tensor([zeros(2, 4)], layout=torch.jagged)] * 3), TypeError, ["q", "dense"]),
    "not a tensor": (lambda: flash_attention(zeros(1, 1, 2, 4), zeros(1, 1, 2, 4), [[[[0.0]]]]), TypeError, ["v", "list", "torch.Tensor"]),
    "None": (lambda: flash_attention(None, zeros(1, 1, 2, 4), zeros(1, 1, 2, 4)), TypeError, ["q", "NoneType", "torch.Tensor"]),
    "different dtypes": (lambda: flash_attention(zeros(1, 1, 2, 4), zeros(1, 1, 2, 4, dtype=torch.float16), zeros(1, 1, 2, 4, dtype=torch.bfloat16)), TypeError, ["q: float32", "k: float16", "v: bfloat16"]),
    "different devices": (lambda: flash_attention(zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4, device="meta"), zeros(1, 1, 2, 4)), ValueError, ["one device", f"q: {DEVICE.type}", "k: meta"]),
    "3-D": (lambda: flash_attention(*[zeros(1, 2, 4)] * 3), ValueError, ["q", "(B, H, S, D)", "3 dimensions", "(1, 2, 4)"]),
    "5-D": (lambda: flash_attention(*[zeros(1, 1, 1, 2, 4)] * 3), ValueError, ["q", "(B, H, S, D)", "5 dimensions", "(1, 1, 1, 2, 4)"]),
    "3-D v": (lambda: flash_attention(*[zeros(1, 1, 2, 4)] * 2, zeros(1, 2, 4)), ValueError, ["v", "(B, H, S, D)", "(1, 2, 4)"]),
    "k and v of different lengths": (lambda: flash_attention(zeros(1, 1, 2, 4), zeros(1, 1, 3, 4), zeros(1, 1, 2, 4)), ValueError, ["k (1, 1, 3, 4)", "v (1, 1, 2, 4)"]),
    "k and v of different D": (lambda: flash_attention(zeros(1, 1, 2, 4), zeros(1, 1, 3, 4), zeros(1, 1, 3, 5)), ValueError, ["k (1, 1, 3, 4)", "v (1, 1, 3, 5)"]),
    "batch mismatch": (lambda: flash_attention(zeros(2, 1, 2, 4), *[zeros(1, 1, 2, 4)] * 2), ValueError, ["q (2, 1, 2, 4)", "k (1, 1, 2, 4)"]),
    "head-dim mismatch": (lambda: flash_attention(zeros(1, 1, 2, 4), *[zeros(1, 1, 2, 8)] * 2), ValueError, ["q (1, 1, 2, 4)", "k (1, 1, 2, 8)"]),
    "query heads not a multiple": (lambda: flash_attention(zeros(1, 6, 2, 4), *[zeros(1, 4, 2, 4)] * 2), ValueError, ["6 query heads", "4 key heads"]),
    "fewer query heads than key heads": (lambda: flash_attention(zeros(1, 2, 2, 4), *[zeros(1, 4, 2, 4)] * 2), ValueError, ["2 query heads", "4 key heads"]),
    "no key heads": (lambda: flash_attention(zeros(1, 2, 2, 4), *[zeros(1, 0, 2, 4)] * 2), ValueError, ["2 query heads", "0 key heads"]),
    "D of 257": (lambda: flash_attention(*[zeros(1, 1, 2, 257)] * 3), ValueError, ["256", "257"]),
    "D of 0": (lambda: flash_attention(*[zeros(1, 1, 2, 0)] * 3), ValueError, ["1 to 256", "got 0"]),
    "D of 257, no queries": (lambda: flash_attention(zeros(1, 1, 0, 257), *[zeros(1, 1, 2, 257)] * 2), ValueError, ["256", "257"]),
    "scale NaN": (lambda: flash_attention(*[zeros(1, 1, 2, 4)] * 3, scale=math.nan), ValueError, ["scale", "finite", "nan"]),
    "scale inf": (lambda: flash_attention(*[zeros(1, 1, 2, 4)] * 3, scale=math.inf), ValueError, ["scale", "finite", "inf"]),
    "scale -inf": (lambda: flash_attention(*[zeros(1, 1, 2, 4)] * 3, scale=-math.inf), ValueError, ["scale", "finite", "-inf"]),
    "scale a string": (lambda: flash_attention(*[zeros(1, 1, 2, 4)] * 3, scale="1"), TypeError, ["scale", "number", "'1'"]),
    "scale beyond float32": (lambda: flash_attention(*[zeros(1, 1, 2, 4)] * 3, scale=1e39), ValueError, ["scale", "finite in float32", "1e+39"]),
    "scale to be learned": (lambda: flash_attention(*[zeros(1, 1, 2, 4)] * 3, scale=torch.tensor(0.5, requires_grad=True)), TypeError, ["scale", "multiply q by it"]),
    "is_causal a string": (lambda: flash_attention(*[zeros(1, 1, 2, 4)] * 3, is_causal="false"), TypeError, ["is_causal", "True or False", "'false'"]),
    "is_causal a mask": (lambda: flash_attention(*[zeros(1, 1, 2, 4)] * 3, is_causal=torch.ones(2, 2).bool()), TypeError, ["is_causal", "True or False", "Tensor"]),
    "meta": (lambda: flash_attention(*[torch.zeros(1, 1, 2, 4, device="meta")] * 3), RuntimeError, ["q is on meta", "CUDA GPUs"]),
    "unknown kernel": (lambda: flash_attention(*[zeros(1, 1, 2, 4)] * 3, kernel="best"), ValueError, ["kernel", "'auto'", "'basic'", "'best'"]),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_bad_input(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("flag", [1, np.True_, True])
def test_flags(flag):
    q, k, v = Case(5, 7).inputs()
    assert same(flash_attention(q, k, v, is_causal=flag, return_lse=True), attend(q, k, v, True))


def test_views_with_the_opposite_sign_in_memory():
    """x.conj().imag of a complex x is −x.imag as a view: PyTorch keeps the sign as a note, and memory holds x.imag."""
    negated = [torch.complex(x.float(), x.float()).conj().imag for x in Case(20, 30, dtype=torch.float32).data()]
    assert all(x.is_neg() for x in negated)
    assert same(flash_attention(*negated, return_lse=True), attend(*(x.clone().resolve_neg() for x in negated), False))
    with pytest.raises(ValueError, match=r"q is a view .*q\.resolve_neg\(\)"):
        forward.flash_forward(*negated)


@pytest.mark.parametrize("S_q", [2, 0])
def test_a_cpu_tensor_where_the_interpreter_is_off(S_q, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(RuntimeError, match=r"q is on cpu.*TRITON_INTERPRET=1"):
        flash_attention(torch.zeros(1, 1, S_q, 4), *[torch.zeros(1, 1, 2, 4)] * 2)


def test_guarded_run_is_flash_attention_bit_for_bit():
    """What the guarded launches prove holds of the public function: it launches the same kernel."""
    case = Case(70, 50, D=40, is_causal=True, H_q=6, H_k=2)
    config = forward.choose_config(40, case.dtype, forward.shared_memory_limit())
    got = flash_attention(*case.inputs(), is_causal=True, return_lse=True, kernel="basic")
    assert same((x.contiguous() for x in run_guarded(forward, case, config)), got)
