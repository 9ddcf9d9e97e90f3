"""Chapter 3: tiled products at every size, layout and dtype, the order of tiles, and what is counted; broken copies are caught."""

import itertools
import math

import pytest
import torch
from buffers import (
    DEVICE,
    DTYPES,
    assert_as_accurate,
    dtypes,
    far_apart,
    guarded_outputs,
    in_nan,
    randn,
    unchanged,
    vast_memory,
)
from mutants import assert_caught, each, mutant
from triton import cdiv

from fa_tutorial import hardware, matmul
from fa_tutorial.exercises import catalogue

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and inf are what some broken kernels compute
CONFIG = matmul.choose_config(torch.float16, hardware.shared_memory_limit() if DEVICE.type == "cuda" else None)
SMALL = [(1, 1, 1), (1, 15, 16), (17, 16, 15), (33, 47, 31)]
LONG = [(1000, 17, 16), (17, 1000, 16), (1, 1, 1000)]
AROUND_A_TILE = [(CONFIG.block_m + i, CONFIG.block_n - i, CONFIG.block_k + i) for i in (-1, 0, 1)]


def product(a, b):
    """a @ b in float64, and PyTorch's own in their dtype."""
    return a.double() @ b.double(), a @ b


def scores_values(q, k, v, scale):
    """As product, for scale · (q kᵀ) v."""
    truth, s = scale * (q.double() @ k.double().T) @ v.double(), scale * (q @ k.T)
    if q.dtype == torch.float32:  # added up key after key, as in the kernel: a GPU's matmul adds parts, and errs less
        return truth, sum((s[:, j, None] * v[j] for j in range(len(v))), torch.zeros_like(q))
    return truth, s @ v


# ---------------------------------------------------------------- the launchers


def check_matmul(a, b, **options):
    with unchanged(a, b), guarded_outputs():
        c = matmul.matmul(a, b, **options)
    assert c.is_contiguous()
    assert_as_accurate(c, *product(a, b))


@dtypes
@pytest.mark.parametrize("size", [*SMALL, *LONG, *AROUND_A_TILE], ids=str)
def test_matmul(size, dtype):
    M, N, K = size
    check_matmul(randn(M, K, dtype=dtype) / math.sqrt(K), randn(K, N, dtype=dtype, seed=1))  # near 1, which the bound's 1e-5 is meant for


@pytest.mark.parametrize("group", [1, 2, 8])
def test_matmul_with_a_config(group):
    """On the device, too, each program has the tile that grouped_tile gives it: one twice, and another would be missing."""
    config = matmul.MatmulConfig(16, 32, 16, num_warps=4, num_stages=2, group=group)
    check_matmul(randn(100, 20), randn(20, 70, seed=1), config=config)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("size", [*SMALL, *LONG], ids=str)
def test_blocked_matmul(size, dtype):
    """The twin in PyTorch."""
    M, N, K = size
    a, b = randn(M, K, dtype=dtype), randn(K, N, dtype=dtype, seed=1)
    assert_as_accurate(matmul.blocked_matmul(a, b, 16, 32, 24), *product(a, b))


@pytest.mark.parametrize("multiply", [matmul.matmul, lambda a, b: matmul.blocked_matmul(a, b, 16, 16, 16)], ids=["kernel", "twin"])
def test_nothing_and_nan(multiply):
    for M, N, K in ((0, 3, 4), (3, 0, 4), (0, 0, 0), (3, 4, 0)):
        assert torch.equal(multiply(randn(M, K), randn(K, N)), torch.zeros(M, N, device=DEVICE))
    a, b = randn(20, 30), randn(30, 18)
    a[3, 29] = b[29, 5] = float("nan")
    reached = torch.zeros(20, 18, dtype=torch.bool, device=DEVICE)
    reached[3] = reached[:, 5] = True
    assert torch.equal(multiply(a, b).isnan(), reached)


@dtypes
@pytest.mark.parametrize("size", [(300, 17, 16), (17, 300, 16), (1, 1, 1), (17, 33, 128), (65, 64, 63), (0, 5, 8), (5, 0, 8)], ids=str)
def test_scores_times_values(size, dtype):
    S_q, S_k, D = size
    q, k, v = (randn(S, D, dtype=dtype, seed=seed) for seed, S in enumerate((S_q, S_k, S_k)))
    for scale in (1 / math.sqrt(D * max(S_k, 1)), 0.0, -2):
        with unchanged(q, k, v), guarded_outputs():
            o = matmul.scores_times_values(q, k, v, scale)
        assert o.is_contiguous()
        assert_as_accurate(o, *scores_values(q, k, v, scale))


# ---------------------------------------------------------------- the kernels, and broken ones


def check_matmul_kernel(kernel, M=17, N=33, K=23, dtype=torch.float32, positive=False):
    a, b = randn(M, K, dtype=dtype), randn(K, N, dtype=dtype, seed=1)
    if positive:
        a, b = a.abs(), b.abs()
    sides, grid = (in_nan(a, (K + 1, 1)), in_nan(b, (3 * N, 3))), (cdiv(M, 16) * cdiv(N, 16),)
    with unchanged(*sides), guarded_outputs():
        c = torch.empty_strided((M, N), (2 * N + 1, 2), dtype=dtype, device=DEVICE)
        kernel[grid](*sides, c, M, N, K, K + 1, 1, 3 * N, 3, 2 * N + 1, 2, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16)
    assert_as_accurate(c, *product(a, b))


A_MASK, B_MASK = "mask_m & (offs_k[None, :] < K - k)", "mask_n & (offs_k[:, None] < K - k)"
A, B = f"tl.load(a_ptrs, mask={A_MASK}, other=0.0)", f"tl.load(b_ptrs, mask={B_MASK}, other=0.0)"
TILES = "grouped_tile_device(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)"
# The kernel -> name of the mistake -> its statement, what stands there instead (see mutants.py), and the check's sizes.
MUTATIONS = {
    "matmul_kernel": {
        "no K mask on a": ("a", A.replace(A_MASK, "mask_m")),
        "no K mask on b": ("b", B.replace(B_MASK, "mask_n")),
        "K mask of the first block": ("a", A.replace("K - k", "K")),
        "strides of a swapped": ("a_ptrs 1", "a_ptr + offs_m[:, None] * stride_ak + offs_k[None, :] * stride_am"),
        "tiles counted along M": ("tile_m, tile_n", TILES.replace("tl.cdiv(N, BLOCK_N)", "tl.cdiv(M, BLOCK_M)")),
        "accumulator overwritten": ("acc 2", "dot(a, b)"),
        "accumulator in fp16": ("acc 2", "dot(a, b, acc).to(tl.float16).to(tl.float32)", 3, 4, 2000, torch.float16, True),
        "no mask at the store": ("tl.store", "tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask_n)"),
    },
}


@each(MUTATIONS)
def test_a_mistake_is_caught(mutation):
    assert_caught(matmul, {"matmul_kernel": check_matmul_kernel}, mutation)


# ---------------------------------------------------------------- far offsets


def check_matmul_far_apart(kernel, strides_a, strides_b):
    K = 3 if max(strides_a) == 2**30 else 17  # K's last step starts at 16 · 2**27 = 2**31
    a, b = randn(3, K, dtype=torch.float16), randn(K, 3, dtype=torch.float16, seed=1)
    memory = vast_memory()
    far = (far_apart(memory, a, strides_a), far_apart(memory, b, strides_b, offset=64))
    with guarded_outputs():
        c = torch.empty((3, 3), dtype=torch.float16, device=DEVICE)
        kernel[(1,)](*far, c, 3, 3, K, *strides_a, *strides_b, 3, 1, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16)
    assert_as_accurate(c, *product(a, b))


def test_matmul_kernel_beyond_32_bits():
    check_matmul_far_apart(matmul.matmul_kernel, (2**30, 1), (1, 2**30))
    check_matmul_far_apart(matmul.matmul_kernel, (1, 2**27), (2**27, 1))
    check_matmul_far_apart(catalogue.find("3.2").solution, (2**30, 1), (1, 2**30))
    check_matmul_far_apart(catalogue.find("3.2").solution, (1, 2**27), (2**27, 1))
    with pytest.raises(AssertionError):
        int32 = mutant(matmul.matmul_kernel, "matmul_kernel", "step", "tl.full((), BLOCK_K, dtype=tl.int32)")
        check_matmul_far_apart(int32, (1, 2**27), (2**27, 1))


# ---------------------------------------------------------------- the order of tiles


@pytest.mark.parametrize(("tiles_m", "tiles_n"), [*itertools.product((1, 2, 4, 7), repeat=2)])
def test_grouped_tile_is_a_permutation(tiles_m, tiles_n):
    every = set(itertools.product(range(tiles_m), range(tiles_n)))
    for group in range(1, 8):
        tiles = [matmul.grouped_tile(pid, tiles_m, tiles_n, group) for pid in range(tiles_m * tiles_n)]
        assert len(tiles) == len(every) and set(tiles) == every
        bands = [m // group for m, _ in tiles]
        assert bands == sorted(bands), "a band of rows is finished before the next begins"
        columns = [(m // group, n) for m, n in tiles]
        assert columns == sorted(columns), "within a band the row changes fastest"
        waves = [tiles[start : start + 4] for start in range(0, len(tiles), 4)]
        strips = [len({m for m, _ in wave}) + len({n for _, n in wave}) for wave in waves]
        assert matmul.strips_per_wave(tiles_m, tiles_n, group, 4) == strips


# ---------------------------------------------------------------- what is chosen


@dtypes
@pytest.mark.parametrize("kilobytes", [64, 99, 163, 227])
def test_chosen_config_fits(kilobytes, dtype):
    config = matmul.choose_config(dtype, kilobytes * 1024)
    assert config.shared_bytes(dtype.itemsize) <= kilobytes * 1024
    larger = [other for other in matmul.HALF_CONFIGS if other.block_m * other.block_n > config.block_m * config.block_n]
    if dtype != torch.float32:
        assert all(other.shared_bytes(dtype.itemsize) > kilobytes * 1024 for other in larger), "a larger tile would fit"
