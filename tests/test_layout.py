"""Chapter 2: strides, and the three kernels at every size, layout and dtype; broken copies show that the comparisons can fail."""

import itertools

import pytest
import torch
from buffers import (
    DEVICE,
    SIZES,
    assert_as_accurate,
    dtypes,
    guarded_outputs,
    in_nan,
    randn,
    unchanged,
)
from mutants import assert_caught, each
from triton import cdiv, next_power_of_2

from fa_tutorial import layout

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and inf are what some broken kernels compute

# Name -> what launches a kernel on a matrix, and PyTorch's own.
LAUNCHERS = {
    "add": (lambda x: layout.add(x, x.flip(-1)), lambda x: x + x.flip(-1)),
    "transpose_copy": (layout.transpose_copy, lambda x: x.T),
    "softmax": (layout.softmax, lambda x: torch.softmax(x, -1)),
}
launchers = pytest.mark.parametrize(("launcher", "own"), LAUNCHERS.values(), ids=LAUNCHERS)


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("strides", [(64, 1), (1, 64), (3, 5), (0, 1), (8192, 1)])
def test_sectors_are_counted_one_by_one(strides, itemsize):
    for tile, start in itertools.product(((1, 32), (16, 16), (5, 3), (1024, 1)), (0, 3, 100)):
        offsets = {start + r * strides[0] + c * strides[1] for r in range(tile[0]) for c in range(tile[1])}
        assert layout.sectors(strides, tile, itemsize, start) == len({offset * itemsize // 32 for offset in offsets})


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 4, 5), (0, 3), (3, 0)])
def test_contiguous_strides_are_those_of_pytorch(shape):
    assert layout.contiguous_strides(shape) == torch.empty(shape, device="meta").stride()


def test_flat_offset_finds_every_element():
    storage = torch.arange(1000)
    for shape, strides in (((3, 4), (4, 1)), ((3, 4), (1, 3)), ((2, 3, 4), (100, 7, 2)), ((3, 2), (0, 1)), ((), ())):
        view = storage.as_strided(shape, strides)
        for index in itertools.product(*map(range, shape)):
            assert layout.flat_offset(index, strides) == int(view[index])


def check(launcher, own, x):
    with unchanged(x), guarded_outputs():
        out = launcher(x)
    assert out.is_contiguous()
    assert_as_accurate(out, own(x.double()), own(x))


@dtypes
@launchers
@pytest.mark.parametrize("shape", [(1, 1), *((17, size) for size in SIZES), (1, 1025), (65, 128)], ids=str)
def test_sizes(launcher, own, shape, dtype):
    check(launcher, own, randn(*shape, dtype=dtype))


def test_the_longest_row_no_row_other_ranks_and_other_blocks():
    check(*LAUNCHERS["softmax"], randn(1, layout.MAX_SOFTMAX_COLUMNS))
    for launcher, own in LAUNCHERS.values():
        assert launcher(randn(0, 3)).shape == own(randn(0, 3)).shape
    for shape in ((), (2, 3, 4), (3, 0)):
        torch.testing.assert_close(layout.add(randn(*shape), randn(*shape, seed=1)), randn(*shape) + randn(*shape, seed=1), rtol=0, atol=0)
    for blocks in ((1, 1), (128, 16)):
        assert torch.equal(layout.transpose_copy(randn(5, 33), *blocks), randn(5, 33).T)
    assert [layout.row_warps(block) for block in (1, 256, 512, 65_536)] == [1, 1, 2, 16]


def check_add_kernel(kernel):
    n = 37
    x, y = in_nan(randn(n), (1,)), in_nan(randn(n, seed=1), (1,))
    with unchanged(x, y), guarded_outputs():
        out = torch.empty_like(x)
        kernel[(cdiv(n, 16),)](x, y, out, n, BLOCK=16)
    assert_as_accurate(out, x.double() + y.double(), x + y)


def check_transpose_kernel(kernel):
    x = in_nan(randn(17, 15), (16, 1))
    with unchanged(x), guarded_outputs():
        out = torch.empty_strided((15, 17), (19, 1), dtype=x.dtype, device=DEVICE)
        kernel[(2, 1)](x, out, 17, 15, 16, 1, 19, 1, BLOCK_R=16, BLOCK_C=16)
    assert_as_accurate(out, x.double().T, x.T)


HARD_ROWS = {
    "near −1e4": lambda x: x - 1e4,
    "up to ±1e4": lambda x: (x * 2500).clamp(-1e4, 1e4),
    "growing": lambda x: x + torch.arange(x.shape[1], device=x.device),
    "equal": lambda x: torch.full_like(x, 3.0),
    "all negative": lambda x: -100 - x.abs(),
    "some −inf": lambda x: x.index_fill(1, torch.arange(0, x.shape[1] - 1, 2, device=x.device), -torch.inf),
}


def check_softmax_kernel(kernel, rows, dtype=torch.float32):
    data = HARD_ROWS[rows](randn(3, 17)).to(dtype)
    x = in_nan(data, (20, 1))
    with unchanged(x), guarded_outputs():
        out = torch.empty_strided((3, 17), (22, 1), dtype=dtype, device=DEVICE)
        kernel[(3,)](x, out, 17, 20, 22, BLOCK=next_power_of_2(17))
    assert_as_accurate(out, torch.softmax(data.double(), -1), torch.softmax(data, -1))


@dtypes
@pytest.mark.parametrize("rows", HARD_ROWS)
def test_softmax_of_hard_rows(rows, dtype):
    check_softmax_kernel(layout.softmax_kernel, rows, dtype)


CHECKS = {"add_kernel": check_add_kernel, "transpose_kernel": check_transpose_kernel, "softmax_kernel": check_softmax_kernel}
# The kernel -> name of the mistake -> its statement, what stands there instead (see mutants.py), and on which rows.
MUTATIONS = {
    "add_kernel": {
        "no mask": ("mask", "offs >= 0"),
        "programs overlap": ("offs", "tl.program_id(0).to(tl.int64) + tl.arange(0, BLOCK)"),
        "input overwritten": ("tl.store", "tl.store(x_ptr + offs, x + y, mask=mask)"),
    },
    "transpose_kernel": {
        "no mask": ("mask", "(offs_r[:, None] >= 0) & (offs_c[None, :] >= 0)"),
        "mask of the rows alone": ("mask", "(offs_r[:, None] < rows) & (offs_c[None, :] >= 0)"),
        "strides of x swapped": ("x", "tl.load(x_ptr + offs_r[:, None] * stride_xc + offs_c[None, :] * stride_xr, mask=mask, other=0.0)"),
        "not transposed": ("tl.store", "tl.store(out_ptr + offs_r[:, None] * stride_or + offs_c[None, :] * stride_oc, x, mask=mask)"),
    },
    "softmax_kernel": {
        "no mask": ("mask", "offs >= 0", "growing"),
        "0 past the end": ("x", "tl.load(x_ptr + row * stride_x + offs, mask=mask, other=0.0)", "all negative"),
        "no maximum": ("p", "tl.exp(x)", "up to ±1e4"),
        "no division": ("y", "p", "equal"),
    },
}


@each(MUTATIONS)
def test_a_mistake_is_caught(mutation):
    assert_caught(layout, CHECKS, mutation)
