"""Chapter 2: strides, and the three kernels at every size, layout and dtype; broken kernels show that the comparisons can fail."""

import itertools

import pytest
import torch
from buffers import (
    DEVICE,
    LAYOUTS,
    SIZES,
    assert_as_accurate,
    assert_same_on_other_stream,
    assert_same_on_second_gpu,
    dtypes,
    far_apart,
    guarded_input,
    guarded_output,
    laid_out,
    launch,
    needs_gpu,
    needs_two_gpus,
    randn,
    unchanged,
    vast_memory,
    zeros,
)

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from fa_tutorial import layout  # noqa: E402

SHAPES = [*itertools.product(SIZES, SIZES), (1, 1000), (1000, 1), (17, 1000), (1000, 17), (31, 33), (64, 63), (65, 128)]
layouts = pytest.mark.parametrize("name", LAYOUTS)


# ---------------------------------------------------------------- strides


@pytest.mark.parametrize("shape", [(), (5,), (1,), (2, 3), (2, 3, 4, 5), (3, 1, 2), (0,), (0, 3), (3, 0), (2, 0, 5), (1, 1, 1)])
def test_contiguous_strides_are_those_of_pytorch(shape):
    assert layout.contiguous_strides(shape) == torch.empty(shape, device="meta").stride()


def test_flat_offset_finds_every_element():
    storage = torch.arange(1000)
    for shape, strides in (((3, 4), (4, 1)), ((3, 4), (1, 3)), ((2, 3, 4), (100, 7, 2)), ((3, 2), (0, 1)), ((), ())):
        view = storage.as_strided(shape, strides)
        for index in itertools.product(*map(range, shape)):
            assert layout.flat_offset(index, strides) == int(view[index])


# ---------------------------------------------------------------- add


def check_add_kernel(kernel, n, dtype=torch.float32, block=16, **meta):
    x, y = randn(n, dtype=dtype), randn(n, dtype=dtype, seed=1)
    out = guarded_output((n,), dtype)
    launch(kernel, (triton.cdiv(n, block),), guarded_input(x), guarded_input(y), out, n, BLOCK=block, **meta)
    assert_as_accurate(out.tensor, x.double() + y.double(), x + y)


@dtypes
@pytest.mark.parametrize("n", [*SIZES, 1000])
def test_add_kernel(n, dtype):
    check_add_kernel(layout.add_kernel, n, dtype)
    check_add_kernel(layout.add_kernel, n, dtype, block=1024)


@dtypes
@pytest.mark.parametrize("n", [*SIZES, 1000, 1023, 1024, 1025])
def test_add_of_vectors(n, dtype):
    x, y = randn(n, dtype=dtype), randn(n, dtype=dtype, seed=1)
    with unchanged(x, y):
        out = layout.add(x, y)
    assert_as_accurate(out, x.double() + y.double(), x + y)


@dtypes
@layouts
def test_add_of_layouts(name, dtype):
    x, y = laid_out(randn(17, 33, dtype=dtype), name), randn(17, 33, dtype=dtype, seed=1)
    with unchanged(x, y):
        out, mirrored = layout.add(x, y), layout.add(y, x)
    assert out.is_contiguous()
    assert_as_accurate(out, x.double() + y.double(), x + y)
    assert torch.equal(out, mirrored)


@pytest.mark.parametrize("shape", [(), (2, 3, 4), (0,), (3, 0), (0, 5, 2)])
def test_add_of_other_ranks_and_nothing(shape):
    x, y = randn(*shape), randn(*shape, seed=1)
    torch.testing.assert_close(layout.add(x, y), x + y, rtol=0, atol=0)


@triton.jit
def broken_add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr, FLAW: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    if FLAW == "no mask":
        mask = offs >= 0
    if FLAW == "last element left out":
        mask = offs < n - 1
    if FLAW == "mask of the first block":
        mask = tl.arange(0, BLOCK) < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0)
    if FLAW == "input overwritten":
        tl.store(x_ptr + offs, x + y, mask=mask)
    tl.store(out_ptr + offs, x + y, mask=mask)


def test_add_comparison_accepts_the_kernel_without_its_flaw():
    check_add_kernel(broken_add_kernel, 17, FLAW="")


@pytest.mark.parametrize("flaw", ["no mask", "last element left out", "mask of the first block", "input overwritten"])
def test_broken_add_kernel_is_caught(flaw):
    with pytest.raises(AssertionError):
        check_add_kernel(broken_add_kernel, 17, FLAW=flaw)


# ---------------------------------------------------------------- transposing copy


def check_transpose_kernel(kernel, shape, dtype=torch.float32, x_layout="padded rows", out_strides=None, **meta):
    rows, cols = shape
    x = guarded_input(data := randn(rows, cols, dtype=dtype), LAYOUTS[x_layout](rows, cols)[0])
    out = guarded_output((cols, rows), dtype, out_strides)
    grid = (triton.cdiv(rows, 16), triton.cdiv(cols, 16))
    launch(kernel, grid, x, out, rows, cols, *x.tensor.stride(), *out.tensor.stride(), BLOCK_R=16, BLOCK_C=16, **meta)
    assert_as_accurate(out.tensor, data.double().T, data.T)


@dtypes
@pytest.mark.parametrize("shape", [*itertools.product(SIZES, SIZES), (17, 33)])
def test_transpose_kernel(shape, dtype):
    check_transpose_kernel(layout.transpose_kernel, shape, dtype)
    check_transpose_kernel(layout.transpose_kernel, shape, dtype, x_layout="every third column", out_strides=(2 * shape[0] + 3, 2))


@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_transpose_copy(shape, dtype):
    x = randn(*shape, dtype=dtype)
    with unchanged(x):
        out = layout.transpose_copy(x)
    assert out.is_contiguous()
    torch.testing.assert_close(out, x.T, rtol=0, atol=0)


@layouts
@pytest.mark.parametrize("blocks", [(1, 1), (2, 64), (128, 16)])
def test_transpose_copy_of_layouts(name, blocks):
    x = laid_out(randn(5, 33, dtype=torch.float16), name)
    with unchanged(x):
        out = layout.transpose_copy(x, *blocks)
    torch.testing.assert_close(out, x.T, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_transpose_copy_of_nothing(shape):
    assert layout.transpose_copy(randn(*shape)).shape == shape[::-1]


@triton.jit
def broken_transpose_kernel(x_ptr, out_ptr, rows, cols, stride_xr, stride_xc, stride_or, stride_oc,
                            BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, FLAW: tl.constexpr):  # fmt: skip
    offs_r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    offs_c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    if FLAW != "int32 offsets":
        offs_r = offs_r.to(tl.int64)
        offs_c = offs_c.to(tl.int64)
    mask = (offs_r[:, None] < rows) & (offs_c[None, :] < cols)
    if FLAW == "no mask":
        mask = (offs_r[:, None] >= 0) & (offs_c[None, :] >= 0)
    if FLAW == "mask of the rows alone":
        mask = (offs_r[:, None] < rows) & (offs_c[None, :] >= 0)
    x_ptrs = x_ptr + offs_r[:, None] * stride_xr + offs_c[None, :] * stride_xc
    if FLAW == "strides of x swapped":
        x_ptrs = x_ptr + offs_r[:, None] * stride_xc + offs_c[None, :] * stride_xr
    out_ptrs = out_ptr + offs_c[None, :] * stride_or + offs_r[:, None] * stride_oc
    if FLAW == "not transposed":
        out_ptrs = out_ptr + offs_r[:, None] * stride_or + offs_c[None, :] * stride_oc
    if FLAW == "contiguous out":
        out_ptrs = out_ptr + offs_c[None, :] * rows + offs_r[:, None]
    tl.store(out_ptrs, tl.load(x_ptrs, mask=mask, other=0.0), mask=mask)


TRANSPOSE_FLAWS = ["no mask", "mask of the rows alone", "strides of x swapped", "not transposed", "contiguous out"]


def test_transpose_comparison_accepts_the_kernel_without_its_flaw():
    check_transpose_kernel(broken_transpose_kernel, (17, 15), out_strides=(19, 1), FLAW="")


@pytest.mark.parametrize("flaw", TRANSPOSE_FLAWS)
def test_broken_transpose_kernel_is_caught(flaw):
    with pytest.raises(AssertionError):
        check_transpose_kernel(broken_transpose_kernel, (17, 15), out_strides=(19, 1), FLAW=flaw)


def check_transpose_far_apart(kernel, **meta):
    data = randn(3, 5, dtype=torch.float16)
    memory = vast_memory()
    x = far_apart(memory, data, (2**30, 1))
    out = far_apart(memory, torch.zeros_like(data), (2**30, 1), offset=64).T
    kernel[(1, 1)](x, out, 3, 5, *x.stride(), *out.stride(), BLOCK_R=4, BLOCK_C=8, **meta)
    assert torch.equal(out, data.T)


def test_transpose_kernel_beyond_32_bits():
    check_transpose_far_apart(layout.transpose_kernel)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_int32_offsets_are_caught():
    with pytest.raises(AssertionError):
        check_transpose_far_apart(broken_transpose_kernel, FLAW="int32 offsets")


# ---------------------------------------------------------------- softmax


def growing(rows, cols, dtype):
    """Rows whose maximum grows with every column."""
    return (randn(rows, cols) + torch.arange(cols, device=DEVICE)).to(dtype)


HARD_ROWS = {
    "near −1e4": lambda rows, cols, dtype: (randn(rows, cols) - 1e4).to(dtype),
    "up to ±1e4": lambda rows, cols, dtype: (randn(rows, cols) * 2500).clamp(-1e4, 1e4).to(dtype),
    "growing": growing,
    "equal": lambda rows, cols, dtype: torch.full((rows, cols), 3.0, dtype=dtype, device=DEVICE),
    "all negative": lambda rows, cols, dtype: (-100 - randn(rows, cols).abs()).to(dtype),
    "some −inf": lambda rows, cols, dtype: randn(rows, cols, dtype=dtype).index_fill(
        1, torch.arange(0, cols - 1, 2, device=DEVICE), -torch.inf
    ),
}


def check_softmax_kernel(kernel, rows, cols, dtype=torch.float32, make=None, **meta):
    data = randn(rows, cols, dtype=dtype) if make is None else make(rows, cols, dtype)
    x, out = guarded_input(data, (cols + 3, 1)), guarded_output((rows, cols), dtype, (cols + 5, 1))
    launch(kernel, (rows,), x, out, cols, cols + 3, cols + 5, BLOCK=triton.next_power_of_2(cols), **meta)
    assert_as_accurate(out.tensor, torch.softmax(data.double(), -1), torch.softmax(data, -1))


@dtypes
@pytest.mark.parametrize("cols", [*SIZES, 1000])
def test_softmax_kernel(cols, dtype):
    for rows in (1, 17):
        check_softmax_kernel(layout.softmax_kernel, rows, cols, dtype)


@dtypes
@pytest.mark.parametrize("rows", HARD_ROWS)
def test_softmax_kernel_on_hard_rows(rows, dtype):
    check_softmax_kernel(layout.softmax_kernel, 3, 17, dtype, HARD_ROWS[rows])


@dtypes
@pytest.mark.parametrize("shape", [*itertools.product((1, 17), SIZES), (17, 1000), (100, 17)], ids=str)
def test_softmax(shape, dtype):
    x = randn(*shape, dtype=dtype)
    with unchanged(x):
        out = layout.softmax(x)
    assert out.is_contiguous()
    assert_as_accurate(out, torch.softmax(x.double(), -1), torch.softmax(x, -1))


def test_softmax_of_many_rows():
    x = randn(1000, 16)  # in one dtype: the interpreter runs the rows one by one
    assert_as_accurate(layout.softmax(x), torch.softmax(x.double(), -1), torch.softmax(x, -1))


@dtypes
@layouts
def test_softmax_of_layouts(name, dtype):
    x = laid_out(randn(5, 33, dtype=dtype), name)
    with unchanged(x):
        out = layout.softmax(x)
    assert_as_accurate(out, torch.softmax(x.double(), -1), torch.softmax(x, -1))


def test_softmax_of_no_rows():
    assert layout.softmax(randn(0, 7)).shape == (0, 7)


def test_softmax_of_the_longest_row():
    x = randn(1, layout.MAX_SOFTMAX_COLUMNS)
    assert_as_accurate(layout.softmax(x), torch.softmax(x.double(), -1), torch.softmax(x, -1))


def test_softmax_keeps_nan_in_its_row():
    x = randn(4, 17)
    x[1, 3] = float("nan")
    x[2] = -torch.inf  # a row with nothing in it: NaN, as torch.softmax
    out = layout.softmax(x)
    torch.testing.assert_close(out, torch.softmax(x, -1), equal_nan=True)
    assert out[1].isnan().all() and out[2].isnan().all() and out[[0, 3]].isfinite().all()


@triton.jit
def broken_softmax_kernel(x_ptr, out_ptr, cols, stride_x, stride_out, BLOCK: tl.constexpr, FLAW: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < cols
    if FLAW == "no mask":
        mask = offs >= 0
    x = tl.load(x_ptr + row * stride_x + offs, mask=mask, other=-float("inf"))
    if FLAW == "0 past the end":
        x = tl.load(x_ptr + row * stride_x + offs, mask=mask, other=0.0)
    if FLAW == "stride of out for x":
        x = tl.load(x_ptr + row * stride_out + offs, mask=mask, other=-float("inf"))
    m = tl.max(x, axis=0)
    if FLAW == "no maximum":
        m = 0.0
    p = tl.exp(x - m)
    y = p / tl.sum(p, axis=0)
    if FLAW == "no division":
        y = p
    tl.store(out_ptr + row * stride_out + offs, y, mask=mask)


SOFTMAX_FLAWS = [
    ("no mask", None), ("0 past the end", "all negative"), ("0 past the end", None), ("stride of out for x", None),
    ("no maximum", "up to ±1e4"), ("no maximum", "near −1e4"), ("no division", None),
]  # fmt: skip


@pytest.mark.parametrize("rows", [None, *HARD_ROWS])
def test_softmax_comparison_accepts_the_kernel_without_its_flaw(rows):
    check_softmax_kernel(broken_softmax_kernel, 3, 17, make=HARD_ROWS.get(rows), FLAW="")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("flaw", "rows"), SOFTMAX_FLAWS)
def test_broken_softmax_kernel_is_caught(flaw, rows):
    with pytest.raises(AssertionError):
        check_softmax_kernel(broken_softmax_kernel, 3, 17, make=HARD_ROWS.get(rows), FLAW=flaw)


# ---------------------------------------------------------------- the launchers: far offsets, streams, devices, bad input


@pytest.mark.parametrize(("launcher", "own"), [(layout.softmax, lambda x: torch.softmax(x, -1)), (layout.transpose_copy, torch.t),
                                               (lambda x: layout.add(x, x), lambda x: x + x)], ids=["softmax", "transpose_copy", "add"])  # fmt: skip
def test_launchers_beyond_32_bits(launcher, own):
    data = randn(3, 5, dtype=torch.float16)
    x = far_apart(vast_memory(), data, (2**30, 1))
    assert_as_accurate(launcher(x), own(data.double()), own(data))


LAUNCHES = [(layout.softmax, 1), (layout.transpose_copy, 1), (layout.add, 2)]


@needs_gpu
@pytest.mark.parametrize(("launcher", "inputs"), LAUNCHES)
def test_launchers_use_the_current_stream(launcher, inputs):
    assert_same_on_other_stream(launcher, *(randn(100, 200, seed=seed) for seed in range(inputs)))


@needs_two_gpus
@pytest.mark.parametrize(("launcher", "inputs"), LAUNCHES)
def test_launchers_use_the_gpu_of_their_input(launcher, inputs):
    assert_same_on_second_gpu(launcher, *(randn(100, 200, seed=seed) for seed in range(inputs)))


@pytest.mark.parametrize(("launcher", "inputs"), LAUNCHES)
def test_cpu_tensor_without_the_interpreter(launcher, inputs, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(RuntimeError, match=r"is on cpu.*TRITON_INTERPRET=1"):
        launcher(*[torch.zeros(2, 3)] * inputs)


BAD_INPUTS = [
    (lambda: layout.contiguous_strides((2, -1)), ValueError, ["size", "-1", "at least 0"]),
    (lambda: layout.contiguous_strides((2, 1.5)), TypeError, ["size", "1.5", "integer"]),
    (lambda: layout.flat_offset((1, 2), (3,)), ValueError, ["2", "1", "one length"]),
    (lambda: layout.flat_offset((-1,), (3,)), ValueError, ["index", "-1", "at least 0"]),
    (lambda: layout.flat_offset((1,), (-3,)), ValueError, ["stride", "-3", "at least 0"]),
    (lambda: layout.flat_offset((1.0,), (3,)), TypeError, ["index", "1.0", "integer"]),
    (lambda: layout.add([1.0], zeros(1)), TypeError, ["x", "list", "torch.Tensor"]),
    (lambda: layout.add(zeros(2), zeros(2, dtype=torch.float64)), TypeError, ["y", "float64", "float16, bfloat16, float32"]),
    (lambda: layout.add(zeros(2), zeros(2, dtype=torch.float16)), TypeError, ["x: float32", "y: float16"]),
    (lambda: layout.add(zeros(2), torch.zeros(2, device="meta")), ValueError, ["one device", "y: meta"]),
    (lambda: layout.add(zeros(2, 3), zeros(3)), ValueError, ["(2, 3)", "(3,)", "one shape"]),
    (lambda: layout.add(zeros(2).to_sparse(), zeros(2)), TypeError, ["x", "sparse", "dense"]),
    (lambda: layout.transpose_copy(zeros(2, 3, 4)), ValueError, ["x", "2 dimensions", "(2, 3, 4)"]),
    (lambda: layout.transpose_copy(zeros(2, 3, dtype=torch.int32)), TypeError, ["int32", "float16, bfloat16, float32"]),
    (lambda: layout.transpose_copy(zeros(2, 3), block_r=24), ValueError, ["block_r", "24", "power of two"]),
    (lambda: layout.transpose_copy(zeros(2, 3), block_c=0), ValueError, ["block_c", "0", "at least 1"]),
    (lambda: layout.transpose_copy(zeros(2, 3), block_c=2.0), TypeError, ["block_c", "2.0", "integer"]),
    (lambda: layout.transpose_copy(zeros(1, 65_536), block_c=1), ValueError, ["65536", "65535"]),
    (lambda: layout.softmax(zeros(3)), ValueError, ["x", "2 dimensions", "(3,)"]),
    (lambda: layout.softmax(zeros(3, 0)), ValueError, ["(3, 0)", "1 to 65536"]),
    (lambda: layout.softmax(zeros(1, 65_537)), ValueError, ["65537", "1 to 65536"]),
    (lambda: layout.softmax(zeros(3, 3, dtype=torch.float64)), TypeError, ["float64", "float16, bfloat16, float32"]),
    (lambda: layout.check_block("block", 24), ValueError, ["block", "24", "power of two"]),
    (lambda: layout.check_block("block", 8, 16), ValueError, ["block", "8", "at least 16"]),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), BAD_INPUTS)
def test_bad_input(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


def test_row_warps():
    assert [layout.row_warps(block) for block in (1, 256, 512, 4096, 65_536)] == [1, 1, 2, 16, 16]
