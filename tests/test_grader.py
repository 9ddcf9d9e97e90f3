"""What graders are made of: answers are run safely, compared strictly, and a kernel's every stray access is seen."""

import math

import numpy as np
import pytest
import torch
from buffers import ON_GPU

from fa_tutorial.exercises import grader
from fa_tutorial.exercises.grader import NotAttempted, Wrong

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

# ---------------------------------------------------------------- running a function


def test_run_returns_the_result():
    assert grader.run(lambda a, b: a + b, 2, 3) == 5
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(grader.run(lambda x: x.T, x), x.T)


def test_run_passes_copies():
    x = torch.ones(3)
    grader.run(lambda y: y.data_ptr() == x.data_ptr() and pytest.fail("the grader's own tensor was handed out"), x)


@pytest.mark.parametrize("view", [lambda x: x.T, lambda x: x[:, ::2], lambda x: x[1:, 1:], lambda x: x[:1].expand(4, 6)])
def test_run_keeps_strides_and_offsets(view):
    x = view(torch.arange(24.0).view(4, 6))
    strides = grader.run(lambda y: (y.stride(), y.storage_offset(), y.tolist()), x)
    assert strides == (x.stride(), x.storage_offset(), x.tolist())


def raises_on_its_third_line(x):
    y = x + 1
    return y / 0


def test_run_tells_an_exception_with_its_line():
    with pytest.raises(Wrong) as caught:
        grader.run(raises_on_its_third_line, 1)
    message = str(caught.value)
    assert "ZeroDivisionError" in message and "division by zero" in message
    assert "line 3 of raises_on_its_third_line" in message and "return y / 0" in message


def test_run_tells_where_a_callee_was_called():
    def calls_torch(x):
        return x @ x

    with pytest.raises(Wrong, match="line 2 of calls_torch"):
        grader.run(calls_torch, torch.ones(2, 3))


def test_run_tells_wrong_parameters():
    with pytest.raises(Wrong, match="TypeError"):
        grader.run(lambda: 1, 2)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_run_lets_interruptions_through(interruption):
    def interrupted():
        raise interruption

    with pytest.raises(interruption):
        grader.run(interrupted)


@pytest.mark.parametrize("answer", [lambda: (x for x in (1, 2)), lambda: {"m": torch.ones(2)}, lambda: map(int, "12")])
def test_run_tells_what_is_no_value(answer):
    with pytest.raises(Wrong, match=r"returns a (generator|dict|map), want a number, a tensor, or a tuple"):
        grader.run(answer)


def test_starter_is_not_attempted():
    def starter(x):
        raise NotImplementedError

    with pytest.raises(NotAttempted):
        grader.run(starter, 1)


def adds_in_place(x, y):
    y += 1
    return x + y


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.T, lambda x: x[:, ::2]])
def test_run_sees_a_change_in_place(view):
    with pytest.raises(Wrong, match=r"input y in place"):
        grader.run(adds_in_place, 1, view(torch.zeros(4, 4)))


def test_run_sees_a_change_that_brings_nan():
    with pytest.raises(Wrong, match="in place"):
        grader.run(lambda x: x.fill_(math.nan), torch.zeros(3))


def test_run_sees_what_is_kept_between_calls():
    seen = []

    def remembers(x):
        seen.append(x)
        return len(seen)

    with pytest.raises(Wrong, match="two calls"):
        grader.run(remembers, 1)


def test_two_calls_that_both_give_nan_agree():
    assert math.isnan(grader.run(lambda: math.nan))
    assert grader.run(lambda: torch.full((2,), math.nan)).isnan().all()
    assert grader.run(lambda: (1, torch.tensor(math.inf), math.nan))[0] == 1


@pytest.mark.parametrize("answer", [3, None, torch.zeros(2), "answer"])
def test_run_wants_a_function(answer):
    with pytest.raises(Wrong, match="function"):
        grader.run(answer, 1)


# ---------------------------------------------------------------- comparing


def expect(got, want, **options):
    grader.expect(got, want, on="x = 1", otherwise="wrong number", **options)


@pytest.mark.parametrize(("got", "want"), [
    (1.0, 1.0), (1, 1.0), (torch.tensor(2.0), 2), (1.00001, 1.0), (-math.inf, -math.inf), (math.nan, math.nan),
    (torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.nan])), (torch.ones(2, dtype=torch.float16), torch.ones(2).double()),
    (torch.zeros(0), torch.zeros(0)),
])  # fmt: skip
def test_expect_accepts(got, want):
    expect(got, want)


@pytest.mark.parametrize(("got", "want"), [
    (1.001, 1.0), (math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (math.inf, -math.inf), (1e30, math.inf),
    (torch.tensor([1.0, math.nan]), torch.ones(2)), (torch.ones(2, 1), torch.ones(1, 2)), (torch.ones(2), torch.ones(3)),
    (torch.ones(1), torch.tensor(1.0)), (None, 1.0), ("1", torch.ones(2)), ([1.0, 2.0], torch.ones(2)),
    (torch.full((100,), math.nan), torch.zeros(100)),
])  # fmt: skip
def test_expect_refuses(got, want):
    with pytest.raises(Wrong):
        expect(got, want)


def test_expect_shows_input_result_and_what_is_wanted():
    with pytest.raises(Wrong) as caught:
        expect(2.0, 1.37)
    assert all(word in str(caught.value) for word in ("wrong number", "x = 1", "2", "1.37"))
    want = torch.zeros(2, 3)
    with pytest.raises(Wrong, match=r"\[1, 2\], want 0"):
        expect(want.index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(5.0)), want)


def test_expect_hides_values_of_fresh_inputs():
    messages = []
    for seed in range(2):
        with pytest.raises(Wrong) as caught:
            expect(torch.rand(3, generator=torch.Generator().manual_seed(seed)), torch.ones(3), values=False, what="y")
        messages.append(str(caught.value))
    assert messages[0] == messages[1] and "y" in messages[0]


def test_expect_names_the_mistake():
    suspects = {"halved": 0.5, "doubled": 2.0, "doubled too": 2.0}
    with pytest.raises(Wrong, match=r"^doubled: "):
        expect(2.0, 1.0, suspects=suspects)
    with pytest.raises(Wrong, match=r"^wrong number: "):
        expect(3.0, 1.0, suspects=suspects)
    expect(1.0, 1.0, suspects={"right": 1.0})


def test_expect_equal_wants_exactness():
    options = {"on": "n = 2", "otherwise": "wrong count", "suspects": {"one short": 2**60 - 1}}
    grader.expect_equal(2**60, 2**60, **options)
    grader.expect_equal((1, 2), (1, 2), **options)
    grader.expect_equal(float(2**60), 2**60, **options)
    for got in (2**60 + 1, None, (2**60,), math.nan, "1"):
        with pytest.raises(Wrong, match="wrong count"):
            grader.expect_equal(got, 2**60, **options)
    with pytest.raises(Wrong, match="one short"):
        grader.expect_equal(2**60 - 1, 2**60, **options)


@pytest.mark.parametrize("got", [torch.zeros(3), np.zeros(3), (torch.zeros(3), 1)], ids=["tensor", "ndarray", "tuple with a tensor"])
def test_expect_equal_refuses_what_is_no_count(got):
    with pytest.raises(Wrong, match="wrong count"):
        grader.expect_equal(got, (1, 1) if isinstance(got, tuple) else 1, on="n = 2", otherwise="wrong count")


def test_run_takes_an_answer_that_returns_an_array():
    assert grader.run(lambda: np.ones(3)).shape == (3,)


def test_a_starter_with_lines_above_it_is_told_so():
    def half(x):
        x.append(1)
        raise NotImplementedError

    def starter(x):
        """Its docstring."""
        raise NotImplementedError

    for answer, words in ((half, "delete it"), (starter, "")):
        with pytest.raises(grader.NotAttempted) as raised:
            grader.run(answer, [])
        assert words in str(raised.value) and bool(str(raised.value)) == bool(words)


def test_unpack():
    assert grader.unpack((1, 2), ("m", "l")) == [1, 2]
    for result in (None, 1, (1,), (1, 2, 3), torch.ones(2)):
        with pytest.raises(Wrong, match=r"m, l"):
            grader.unpack(result, ("m", "l"))


def test_fresh_inputs_differ():
    draws = {float(torch.rand((), generator=grader.fresh(), dtype=torch.float64)) for _ in range(3)}
    assert len(draws) == 3


def test_values_are_shown_alike_on_every_run():
    assert grader.show(1234567) == "1,234,567"
    assert grader.show(1 / 3) == "0.3333"
    assert grader.show((1, 0.5)) == "(1, 0.5)"
    assert grader.show(torch.tensor([1.0, 2.5])) == "[1, 2.5]"
    assert "(4, 5)" in grader.show(torch.zeros(4, 5))
    assert grader.show(math.exp) == "the function exp" and grader.show(lambda x: x) == "the function <lambda>"
    assert grader.show(torch.nn.Linear) == "the class Linear" and grader.show(silent) == "the kernel silent"


@triton.jit
def silent(x_ptr):
    pass


def raises_with_an_address(x):
    raise KeyError(object())


@pytest.mark.parametrize("answer", [raises_with_an_address, lambda x: math, [object()]])
def test_no_verdict_names_an_address(answer):
    with pytest.raises(Wrong) as caught:
        grader.expect_equal(grader.run(answer, 1), 1, on="x = 1", otherwise="want 1")
    assert "0x" not in str(caught.value)


# ---------------------------------------------------------------- running a kernel

N, BLOCK = 13, 8


def run_kernel(kernel, n=N, strides=None, **meta):
    """A kernel (x_ptr, out_ptr, n, stride, BLOCK) that should double n elements of x."""
    x = torch.arange(1.0, n + 1)
    x_strides = None if strides is None else (strides,)
    args = [grader.input_buffer("x_ptr", x, x_strides), grader.output_buffer("out_ptr", (n,), torch.float32, x_strides), n, strides or 1]
    return grader.run_kernel(kernel, (triton.cdiv(n, BLOCK),), args, **(meta or {"BLOCK": BLOCK}))


@triton.jit
def doubles(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs * stride, 2 * tl.load(x_ptr + offs * stride, mask=mask, other=0.0), mask=mask)


@pytest.mark.parametrize("strides", [None, 1, 3])
def test_right_kernel(strides):
    (out,) = run_kernel(doubles, strides=strides)
    assert out.dtype == torch.float64 and out.device.type == "cpu"
    assert torch.equal(out, 2 * torch.arange(1.0, N + 1).double())


def test_kernel_that_needs_no_mask_has_none():
    assert len(run_kernel(unmasked, n=2 * BLOCK)[0]) == 2 * BLOCK


@triton.jit
def unmasked(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs * stride, 2 * tl.load(x_ptr + offs * stride))


@triton.jit
def unmasked_store(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs * stride, 2 * tl.load(x_ptr + offs * stride, mask=offs < n, other=0.0))


@triton.jit
def ignores_the_stride(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, 2 * tl.load(x_ptr + offs * stride, mask=offs < n, other=0.0), mask=offs < n)


@triton.jit
def calls_torch_inside(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    offs = torch.arange(0, BLOCK)
    tl.store(out_ptr + offs * stride, tl.load(x_ptr + offs * stride, mask=offs < n), mask=offs < n)


@triton.jit
def asserts(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    assert BLOCK > 10**9
    tl.store(out_ptr, tl.load(x_ptr))


@triton.jit
def indexes_a_pointer(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    tl.store(out_ptr, x_ptr[0])


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (calls_torch_inside, "(torch.arange|offs comes from PyTorch or NumPy, which) is not part of Triton"),
        pytest.param(
            asserts, "its assert does not hold.*`assert BLOCK", marks=pytest.mark.skipif(ON_GPU, reason="a compiled assert is left out")
        ),
        (indexes_a_pointer, "a pointer takes no index"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_kernel_that_does_not_run_is_told_why(kernel, words):
    with pytest.raises(Wrong, match=f"does not run: .*{words}"):
        run_kernel(kernel)


@pytest.mark.parametrize(("kernel", "strides"), [(unmasked_store, None), (unmasked_store, 3), (ignores_the_stride, 3)])
def test_stray_write_is_seen(kernel, strides):
    with pytest.raises(Wrong, match="outside") as caught:
        run_kernel(kernel, strides=strides)
    assert "out" in str(caught.value) and f"({N},)" in str(caught.value)


@triton.jit
def unmasked_sum(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.sum(tl.load(x_ptr + offs * stride), axis=0)
    tl.store(out_ptr + offs * stride, total + tl.zeros((BLOCK,), dtype=tl.float32), mask=offs < n)


def test_stray_read_is_seen_or_brings_nan():
    try:
        (out,) = run_kernel(unmasked_sum)
    except Wrong as wrong:
        assert "outside" in str(wrong)
    else:
        assert out[BLOCK:].isnan().all()


@triton.jit
def leaves_the_last_out(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n - 1
    tl.store(out_ptr + offs * stride, 2 * tl.load(x_ptr + offs * stride, mask=mask, other=0.0), mask=mask)


@triton.jit
def does_nothing(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    pass


@pytest.mark.parametrize(("kernel", "place"), [(leaves_the_last_out, N - 1), (does_nothing, 0)])
def test_unwritten_output_is_seen(kernel, place):
    with pytest.raises(Wrong, match="never writes") as caught:
        run_kernel(kernel)
    assert f"out[{place}]" in str(caught.value)


@triton.jit
def writes_its_input(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = 2 * tl.load(x_ptr + offs * stride, mask=mask, other=0.0)
    tl.store(x_ptr + offs * stride, x, mask=mask)
    tl.store(out_ptr + offs * stride, x, mask=mask)


def test_write_to_an_input_is_seen():
    with pytest.raises(Wrong, match="writes to x"):
        run_kernel(writes_its_input)


@triton.jit
def adds_to_its_output(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    out = tl.load(out_ptr + offs * stride, mask=mask, other=0.0)
    tl.store(out_ptr + offs * stride, out + tl.load(x_ptr + offs * stride, mask=mask, other=0.0), mask=mask)


def test_reading_what_should_be_written_is_seen():
    with pytest.raises(Wrong, match="two runs"):
        run_kernel(adds_to_its_output)


@triton.jit
def gives_nan(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs * stride, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs * stride, tl.where(x < 0, x, float("nan")), mask=offs < n)


def test_computed_nan_is_returned_and_refused_by_expect():
    (out,) = run_kernel(gives_nan)
    assert out.isnan().all()
    with pytest.raises(Wrong):
        expect(out, torch.zeros(N))


@triton.jit
def misspelt(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arrange(0, BLOCK)
    tl.store(out_ptr + offs, offs)


def test_kernel_that_does_not_run_is_told_with_its_line():
    with pytest.raises(Wrong) as caught:
        run_kernel(misspelt)
    assert "arrange" in str(caught.value) and "\n" not in str(caught.value)


@triton.jit
def starter(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    raise NotImplementedError


def test_starter_kernel_is_not_attempted():
    with pytest.raises(NotAttempted):
        run_kernel(starter)


def plain(x_ptr, out_ptr, n, stride, BLOCK):
    pass


@triton.jit
def other_parameters(x_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    pass


@triton.jit
def one_parameter_more(x_ptr, out_ptr, n, stride, offset, BLOCK: tl.constexpr):
    pass


@triton.jit
def other_block(x_ptr, out_ptr, n, stride, SIZE: tl.constexpr):
    pass


@triton.jit
def no_constexpr(x_ptr, out_ptr, n, stride, BLOCK):
    pass


@pytest.mark.parametrize(("kernel", "words"), [
    (plain, "@triton.jit"), (3, "kernel"), (None, "kernel"), (other_parameters, "keep the parameters"),
    (one_parameter_more, "keep the parameters"), (other_block, "BLOCK"), (no_constexpr, "tl.constexpr"),
])  # fmt: skip
def test_what_is_no_kernel_of_the_exercise(kernel, words):
    with pytest.raises(Wrong) as caught:
        run_kernel(kernel)
    assert words in str(caught.value)


def test_buffers_lie_inside_guards():
    x = grader.input_buffer("x_ptr", torch.arange(6.0).view(2, 3), (5, 2))
    out = grader.output_buffer("out_ptr", (2, 3), torch.float16)
    x.reset(math.nan)
    out.reset(math.nan)
    assert x.tensor.stride() == (5, 2) and torch.equal(x.tensor.cpu(), torch.arange(6.0).view(2, 3))
    assert int(x.memory.isfinite().sum()) == 6, "all but the data is NaN"
    assert out.tensor.dtype == torch.float16 and out.tensor.isnan().all()
    assert int(out.memory.isnan().sum()) == 6 and out.memory[0] == grader.SENTINEL
    for buffer in (x, out):
        last = 1 + sum((size - 1) * stride for size, stride in zip(buffer.tensor.shape, buffer.tensor.stride(), strict=True))
        assert buffer.tensor.storage_offset() >= 4096 and buffer.memory.numel() - buffer.tensor.storage_offset() - last >= 4096
