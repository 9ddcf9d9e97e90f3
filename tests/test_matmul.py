"""Chapter 3: tiled products at every size, layout and dtype, the order of tiles, and what is counted; broken kernels are caught."""

import itertools
import math

import pytest
import torch
from buffers import (
    DEVICE,
    DTYPES,
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

from fa_tutorial import hardware, matmul  # noqa: E402

CONFIG = matmul.choose_config(torch.float16, hardware.shared_memory_limit() if DEVICE.type == "cuda" else None)
MIXED = [*itertools.product((1, 17), (15, 16), (1, 16, 17))]
LONG = [(1000, 17, 16), (17, 1000, 16), (17, 16, 1000), (1000, 1, 1), (1, 1000, 1), (1, 1, 1000)]
AROUND_A_TILE = [(CONFIG.block_m + i, CONFIG.block_n - i, CONFIG.block_k + i) for i in (-1, 0, 1)]


def product(a, b):
    """a @ b in float64, and PyTorch's own in their dtype."""
    return a.double() @ b.double(), a @ b


# ---------------------------------------------------------------- the kernel


def check_matmul_kernel(kernel, M, N, K, dtype=torch.float32, layout="padded rows", positive=False, **meta):
    a, b = randn(M, K, dtype=dtype), randn(K, N, dtype=dtype, seed=1)
    if positive:
        a, b = a.abs(), b.abs()
    buffers = (
        guarded_input(a, LAYOUTS[layout](M, K)[0]),
        guarded_input(b, LAYOUTS[layout](K, N)[0]),
        guarded_output((M, N), dtype, (2 * N + 1, 2)),
    )
    strides = [stride for buffer in buffers for stride in buffer.tensor.stride()]
    grid = (triton.cdiv(M, 16) * triton.cdiv(N, 16),)
    launch(kernel, grid, *buffers, M, N, K, *strides, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16, **meta)
    assert_as_accurate(buffers[-1].tensor, *product(a, b))


@dtypes
@pytest.mark.parametrize("size", [*itertools.product(SIZES, SIZES, SIZES), (33, 47, 31)], ids=str)
def test_matmul_kernel(size, dtype):
    check_matmul_kernel(matmul.matmul_kernel, *size, dtype)


@dtypes
@pytest.mark.parametrize("layout", ["transposed", "every third column"])
def test_matmul_kernel_in_groups_and_layouts(layout, dtype):
    for group in (1, 2, 3, 8):
        check_matmul_kernel(matmul.matmul_kernel, 50, 33, 17, dtype, layout, GROUP=group)


@dtypes
@pytest.mark.parametrize("size", [*MIXED, *LONG, *AROUND_A_TILE], ids=str)
def test_matmul(size, dtype):
    M, N, K = size
    a, b = randn(M, K, dtype=dtype) / math.sqrt(K), randn(K, N, dtype=dtype, seed=1)  # results near 1, which the bound's 1e-5 is meant for
    with unchanged(a, b):
        c = matmul.matmul(a, b)
    assert c.is_contiguous()
    assert_as_accurate(c, *product(a, b))


@dtypes
@pytest.mark.parametrize("layout", LAYOUTS)
def test_matmul_of_layouts(layout, dtype):
    for a_is, b_is in ((layout, "contiguous"), ("contiguous", layout), (layout, layout)):
        a, b = laid_out(randn(17, 33, dtype=dtype), a_is), laid_out(randn(33, 15, dtype=dtype, seed=1), b_is)
        with unchanged(a, b):
            c = matmul.matmul(a, b)
        assert_as_accurate(c, *product(a, b))


@pytest.mark.parametrize("group", [1, 2, 5])
def test_matmul_with_a_config(group):
    a, b = randn(33, 20), randn(20, 50, seed=1)
    config = matmul.MatmulConfig(16, 32, 16, num_warps=4, num_stages=2, group=group)
    assert_as_accurate(matmul.matmul(a, b, config=config), *product(a, b))


@pytest.mark.parametrize("size", [(0, 3, 4), (3, 0, 4), (0, 0, 0), (3, 4, 0)])
def test_matmul_of_nothing(size):
    M, N, K = size
    for c in (matmul.matmul(randn(M, K), randn(K, N)), matmul.blocked_matmul(randn(M, K), randn(K, N), 2, 2, 2)):
        assert torch.equal(c, torch.zeros(M, N, device=DEVICE))


def test_matmul_keeps_nan_in_its_row_and_column():
    a, b = randn(20, 30), randn(30, 18)
    a[3, 29] = float("nan")
    b[29, 5] = float("nan")
    for c in (matmul.matmul(a, b), matmul.blocked_matmul(a, b, 16, 16, 16)):
        reached = torch.zeros(20, 18, dtype=torch.bool, device=DEVICE)
        reached[3] = reached[:, 5] = True
        assert torch.equal(c.isnan(), reached)


# ---------------------------------------------------------------- the twin in PyTorch


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("size", [*MIXED, *LONG], ids=str)
def test_blocked_matmul(size, dtype):
    M, N, K = size
    a, b = randn(M, K, dtype=dtype), randn(K, N, dtype=dtype, seed=1)
    with unchanged(a, b):
        c = matmul.blocked_matmul(a, b, 16, 32, 24)
    assert_as_accurate(c, *product(a, b))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocked_matmul_of_layouts(layout):
    a, b = laid_out(randn(17, 33), layout), laid_out(randn(33, 15, seed=1), layout)
    for blocks in ((16, 16, 16), (64, 1, 7), (7, 64, 64), (64, 7, 1)):
        assert_as_accurate(matmul.blocked_matmul(a, b, *blocks), *product(a, b))


# ---------------------------------------------------------------- (q kᵀ) v


def check_scores_values_kernel(kernel, S_q, S_k, D, dtype=torch.float32, scale=0.3, **meta):
    q, k, v = randn(S_q, D, dtype=dtype), randn(S_k, D, dtype=dtype, seed=1), randn(S_k, D, dtype=dtype, seed=2)
    buffers = (
        guarded_input(q, (D + 1, 1)),
        guarded_input(k, (1, S_k + 2)),
        guarded_input(v, (2 * D + 3, 2)),
        guarded_output((S_q, D), dtype, (3 * D, 3)),
    )
    strides = [stride for buffer in buffers for stride in buffer.tensor.stride()]
    block_d = max(16, triton.next_power_of_2(D))
    launch(kernel, (triton.cdiv(S_q, 16),), *buffers, S_q, S_k, D, scale, *strides, BLOCK_M=16, BLOCK_N=16, BLOCK_D=block_d, **meta)
    assert_as_accurate(buffers[-1].tensor, *scores_values(q, k, v, scale))


def scores_values(q, k, v, scale):
    return scale * (q.double() @ k.double().T) @ v.double(), (scale * (q @ k.T)) @ v


@dtypes
@pytest.mark.parametrize("size", [*itertools.product(SIZES, SIZES, (15, 17)), (1, 1, 1), (17, 17, 1), (33, 47, 40)], ids=str)
def test_scores_values_kernel(size, dtype):
    check_scores_values_kernel(matmul.scores_values_kernel, *size, dtype)


@dtypes
@pytest.mark.parametrize("size", [(1000, 17, 16), (17, 1000, 16), (1, 1, 128), (17, 33, 128), (65, 64, 63)], ids=str)
def test_scores_times_values(size, dtype):
    S_q, S_k, D = size
    q, k, v = randn(S_q, D, dtype=dtype), randn(S_k, D, dtype=dtype, seed=1), randn(S_k, D, dtype=dtype, seed=2)
    scale = 1 / math.sqrt(D * S_k)  # results near 1, which the bound's 1e-5 is meant for
    with unchanged(q, k, v):
        o = matmul.scores_times_values(q, k, v, scale)
    assert o.is_contiguous()
    assert_as_accurate(o, *scores_values(q, k, v, scale))


@dtypes
@pytest.mark.parametrize("layout", LAYOUTS)
def test_scores_times_values_of_layouts(layout, dtype):
    q, k, v = (randn(17, 40, dtype=dtype, seed=seed) for seed in range(3))
    for tensors in ((laid_out(q, layout), k, v), (q, laid_out(k, layout), v), (q, k, laid_out(v, layout))):
        with unchanged(*tensors):
            o = matmul.scores_times_values(*tensors, scale=0.2, block_m=16, block_n=16)
        assert_as_accurate(o, *scores_values(*tensors, 0.2))


@pytest.mark.parametrize("scale", [1.0, 0.3, 0.0, -2.0, 2])
def test_scores_times_values_with_a_scale(scale):
    q, k, v = (randn(9, 8, seed=seed) for seed in range(3))
    assert_as_accurate(matmul.scores_times_values(q, k, v, scale), *scores_values(q, k, v, scale))


def test_scores_times_values_of_nothing():
    assert matmul.scores_times_values(randn(0, 8), randn(5, 8), randn(5, 8)).shape == (0, 8)
    assert torch.equal(matmul.scores_times_values(randn(5, 8), randn(0, 8), randn(0, 8)), torch.zeros(5, 8, device=DEVICE))


# ---------------------------------------------------------------- broken kernels


@triton.jit
def broken_matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
                         BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, FLAW: tl.constexpr):  # fmt: skip
    tiles_n = tl.cdiv(N, BLOCK_N)
    if FLAW == "tiles counted along M":
        tiles_n = tl.cdiv(M, BLOCK_M)
    offs_m = (tl.program_id(0) // tiles_n).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = (tl.program_id(0) % tiles_n).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    mask_m = offs_m[:, None] < M
    mask_n = offs_n[None, :] < N
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    if FLAW == "strides of a swapped":
        a_ptrs = a_ptr + offs_m[:, None] * stride_ak + offs_k[None, :] * stride_am
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    step = tl.full((), BLOCK_K, dtype=tl.int64)
    if FLAW == "int32 steps":
        step = step.to(tl.int32)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        mask_a = mask_m & (offs_k[None, :] < K - k)
        mask_b = mask_n & (offs_k[:, None] < K - k)
        if FLAW == "no K mask":
            mask_a = mask_m
            mask_b = mask_n
        if FLAW == "K mask on a alone":
            mask_b = mask_n
        if FLAW == "K mask on b alone":
            mask_a = mask_m
        if FLAW == "K mask of the first block":
            mask_a = mask_m & (offs_k[None, :] < K)
            mask_b = mask_n & (offs_k[:, None] < K)
        a = tl.load(a_ptrs, mask=mask_a, other=0.0)
        b = tl.load(b_ptrs, mask=mask_b, other=0.0)
        if FLAW == "accumulator overwritten":
            acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        if FLAW == "fp16 accumulator":
            acc = acc.to(tl.float16).to(tl.float32)
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk
    mask = mask_m & mask_n
    if FLAW == "no mask at the store":
        mask = (offs_m[:, None] >= 0) & (offs_n[None, :] >= 0)
    c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask)


MATMUL_FLAWS = ["no K mask", "K mask on a alone", "K mask on b alone", "K mask of the first block", "strides of a swapped",
                "tiles counted along M", "accumulator overwritten", "no mask at the store"]  # fmt: skip


def test_matmul_comparison_accepts_the_kernel_without_its_flaw():
    check_matmul_kernel(broken_matmul_kernel, 17, 33, 23, FLAW="")
    check_matmul_kernel(broken_matmul_kernel, 3, 4, 2000, torch.float16, positive=True, FLAW="")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("flaw", MATMUL_FLAWS)
def test_broken_matmul_kernel_is_caught(flaw):
    with pytest.raises(AssertionError):
        check_matmul_kernel(broken_matmul_kernel, 17, 33, 23, FLAW=flaw)


def test_fp16_accumulator_is_caught():
    with pytest.raises(AssertionError, match="bound"):
        check_matmul_kernel(broken_matmul_kernel, 3, 4, 2000, torch.float16, positive=True, FLAW="fp16 accumulator")


@triton.jit
def broken_scores_values_kernel(q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale, stride_qs, stride_qd, stride_ks, stride_kd,
                                stride_vs, stride_vd, stride_os, stride_od,
                                BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, FLAW: tl.constexpr):  # fmt: skip
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)
    mask_q = (offs_m[:, None] < S_q) & (offs_d[None, :] < D)
    q = tl.load(q_ptr + offs_m[:, None] * stride_qs + offs_d[None, :] * stride_qd, mask=mask_q, other=0.0)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    if FLAW == "strides of v for k":
        stride_ks = stride_vs
        stride_kd = stride_vd
    for start in range(0, S_k, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N).to(tl.int64)
        mask_k = (offs_d[:, None] < D) & (offs_n[None, :] < S_k)
        mask_v = (offs_n[:, None] < S_k) & (offs_d[None, :] < D)
        if FLAW == "no mask on the keys":
            mask_k = offs_d[:, None] < D
            mask_v = offs_d[None, :] < D
        if FLAW == "no mask on D":
            mask_k = offs_n[None, :] < S_k
        k_t = tl.load(k_ptr + offs_d[:, None] * stride_kd + offs_n[None, :] * stride_ks, mask=mask_k, other=0.0)
        v = tl.load(v_ptr + offs_n[:, None] * stride_vs + offs_d[None, :] * stride_vd, mask=mask_v, other=0.0)
        s = tl.dot(q, k_t, input_precision="ieee")
        if FLAW != "no scale":
            s = scale * s
        acc = tl.dot(s, v, acc, input_precision="ieee")
    o_ptrs = o_ptr + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    tl.store(o_ptrs, acc, mask=mask_q)


def test_scores_values_comparison_accepts_the_kernel_without_its_flaw():
    check_scores_values_kernel(broken_scores_values_kernel, 17, 23, 11, FLAW="")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("flaw", ["no mask on the keys", "no mask on D", "strides of v for k", "no scale"])
def test_broken_scores_values_kernel_is_caught(flaw):
    with pytest.raises(AssertionError):
        check_scores_values_kernel(broken_scores_values_kernel, 17, 23, 11, FLAW=flaw)


# ---------------------------------------------------------------- far offsets, streams, devices


@pytest.mark.parametrize(("strides_a", "strides_b"), [((2**30, 1), (1, 2**30)), ((1, 2**27), (2**27, 1))], ids=["rows", "K"])
def test_matmul_kernel_beyond_32_bits(strides_a, strides_b):
    check_matmul_far_apart(matmul.matmul_kernel, strides_a, strides_b)


def check_matmul_far_apart(kernel, strides_a, strides_b, **meta):
    K = 3 if max(strides_a) == 2**30 else 17  # K's last step starts at 16 · 2**27 = 2**31
    a, b = randn(3, K, dtype=torch.float16), randn(K, 3, dtype=torch.float16, seed=1)
    memory = vast_memory()
    far = (far_apart(memory, a, strides_a), far_apart(memory, b, strides_b, offset=64))
    c = guarded_output((3, 3), torch.float16)
    launch(kernel, (1,), *far, c, 3, 3, K, *strides_a, *strides_b, 3, 1, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16, **meta)
    assert_as_accurate(c.tensor, *product(a, b))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_int32_steps_are_caught():
    check_matmul_far_apart(broken_matmul_kernel, (1, 2**27), (2**27, 1), FLAW="")
    with pytest.raises(AssertionError):
        check_matmul_far_apart(broken_matmul_kernel, (1, 2**27), (2**27, 1), FLAW="int32 steps")


def test_launchers_beyond_32_bits():
    data = [randn(3, 8, dtype=torch.float16, seed=seed) for seed in range(3)]
    memory = vast_memory()
    q, k, v = (far_apart(memory, tensor, (2**30, 1), offset=64 * i) for i, tensor in enumerate(data))
    assert_as_accurate(matmul.scores_times_values(q, k, v, 0.3), *scores_values(*data, 0.3))
    assert_as_accurate(matmul.matmul(q, k.T), *product(data[0], data[1].T))


@needs_gpu
def test_launchers_use_the_current_stream():
    assert_same_on_other_stream(matmul.matmul, randn(100, 70), randn(70, 90))
    assert_same_on_other_stream(matmul.scores_times_values, randn(100, 64), randn(70, 64), randn(70, 64))


@needs_two_gpus
def test_launchers_use_the_gpu_of_their_input():
    assert_same_on_second_gpu(matmul.matmul, randn(100, 70), randn(70, 90))
    assert_same_on_second_gpu(matmul.scores_times_values, randn(100, 64), randn(70, 64), randn(70, 64))


@pytest.mark.parametrize(("launcher", "inputs"), [(matmul.matmul, 2), (matmul.scores_times_values, 3)])
def test_cpu_tensor_without_the_interpreter(launcher, inputs, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(RuntimeError, match=r"is on cpu.*TRITON_INTERPRET=1"):
        launcher(*[torch.zeros(2, 2)] * inputs)


# ---------------------------------------------------------------- the order of tiles


@pytest.mark.parametrize(("tiles_m", "tiles_n"), [*itertools.product(range(1, 8), repeat=2)])
def test_grouped_tile_is_a_permutation(tiles_m, tiles_n):
    every = set(itertools.product(range(tiles_m), range(tiles_n)))
    for group in range(1, 8):
        tiles = [matmul.grouped_tile(pid, tiles_m, tiles_n, group) for pid in range(tiles_m * tiles_n)]
        assert len(tiles) == len(every) and set(tiles) == every
        bands = [m // group for m, _ in tiles]
        assert bands == sorted(bands), "a band of rows is finished before the next begins"
        columns = [(m // group, n) for m, n in tiles]
        assert columns == sorted(columns), "within a band the row changes fastest"


def test_grouped_tile_of_one_row_is_row_order():
    assert [matmul.grouped_tile(pid, 3, 4, 1) for pid in range(12)] == list(itertools.product(range(3), range(4)))


@triton.jit
def tile_ids_kernel(out_ptr, tiles_m, tiles_n, GROUP: tl.constexpr):
    pid = tl.program_id(0)
    tile_m, tile_n = matmul.grouped_tile_device(pid, tiles_m, tiles_n, GROUP)
    tl.store(out_ptr + 2 * pid, tile_m)
    tl.store(out_ptr + 2 * pid + 1, tile_n)


@pytest.mark.parametrize("group", range(1, 8))
def test_grouped_tile_on_the_device_agrees(group):
    for tiles_m, tiles_n in [(1, 1), (1, 7), (7, 1), (2, 3), (4, 4), (5, 6), (7, 2), (7, 7)]:
        out = torch.full((tiles_m * tiles_n, 2), -1, dtype=torch.int32, device=DEVICE)
        tile_ids_kernel[(tiles_m * tiles_n,)](out, tiles_m, tiles_n, GROUP=group)
        assert [tuple(tile) for tile in out.tolist()] == [matmul.grouped_tile(pid, tiles_m, tiles_n, group) for pid in range(len(out))]


def test_strips_per_wave_by_counting():
    for tiles_m, tiles_n, group, wave in itertools.product((1, 3, 7), (1, 4, 6), (1, 2, 5), (1, 4, 50)):
        programs = range(tiles_m * tiles_n)
        counted = []
        for start in programs[::wave]:
            strips = set()
            for pid in programs[start : start + wave]:
                tile_m, tile_n = matmul.grouped_tile(pid, tiles_m, tiles_n, group)
                strips |= {("a", tile_m), ("b", tile_n)}
            counted.append(len(strips))
        assert matmul.strips_per_wave(tiles_m, tiles_n, group, wave) == counted


def test_groups_read_fewer_strips_than_rows():
    assert matmul.strips_per_wave(16, 16, 1, 16)[0] == 17  # one row of a, every column of b
    assert matmul.strips_per_wave(16, 16, 4, 16)[0] == 8  # a square of 4 by 4


# ---------------------------------------------------------------- what is counted, rounded and chosen


def test_tiled_matmul_bytes_by_walking_the_tiles():
    for M, N, K, block_m, block_n in itertools.product((0, 1, 5, 8), (1, 6), (0, 3, 7), (1, 4, 16), (2, 5)):
        moved = 0
        a, b, c = torch.empty(M, K), torch.empty(K, N), torch.empty(M, N)
        for m, n in itertools.product(range(0, M, block_m), range(0, N, block_n)):
            moved += c[m : m + block_m, n : n + block_n].numel()
            for k in range(0, K, 2):
                moved += a[m : m + block_m, k : k + 2].numel() + b[k : k + 2, n : n + block_n].numel()
        assert matmul.tiled_matmul_bytes(M, N, K, block_m, block_n, 2) == 2 * moved


def test_round_to_tf32():
    x = torch.cat([randn(1000), randn(1000) * 1e30, randn(1000) * 1e-30, torch.tensor([0.0, -0.0, 1.0, -1.0], device=DEVICE)])
    before = x.clone()
    y = matmul.round_to_tf32(x)
    assert torch.equal(x, before)
    assert (y.view(torch.int32) & 0x1FFF == 0).all(), "13 of the 23 bits are cleared"
    assert torch.equal(matmul.round_to_tf32(y), y)
    assert ((y - x).abs() <= 2.0**-11 * x.abs()).all()
    assert torch.equal(matmul.round_to_tf32(-x), -y)
    assert torch.equal(torch.signbit(y), torch.signbit(x))
    assert matmul.round_to_tf32(torch.tensor([1 + 2.0**-11, 1 + 2.0**-10])).tolist() == [1 + 2.0**-10] * 2  # halfway goes away from 0


def test_round_to_tf32_keeps_what_is_not_finite_and_takes_views():
    special = torch.tensor([torch.inf, -torch.inf, torch.nan])
    torch.testing.assert_close(matmul.round_to_tf32(special), special, rtol=0, atol=0, equal_nan=True)
    x = randn(6, 8)
    assert torch.equal(matmul.round_to_tf32(x[::2, 1::3]), matmul.round_to_tf32(x)[::2, 1::3])
    assert matmul.round_to_tf32(x.T).shape == (8, 6)
    assert matmul.round_to_tf32(x[0, 0]).shape == ()


@dtypes
@pytest.mark.parametrize("kilobytes", [64, 99, 163, 227])
def test_chosen_config_fits(kilobytes, dtype):
    config = matmul.choose_config(dtype, kilobytes * 1024)
    assert config.shared_bytes(dtype.itemsize) <= kilobytes * 1024
    larger = [
        other for other in (*matmul.HALF_CONFIGS, *matmul.FULL_CONFIGS) if other.block_m * other.block_n > config.block_m * config.block_n
    ]
    if dtype != torch.float32:
        assert all(other.shared_bytes(dtype.itemsize) > kilobytes * 1024 for other in larger), "a larger tile would fit"


def test_shared_bytes_counts_the_stages():
    assert matmul.MatmulConfig(128, 64, 32, 4, 3).shared_bytes(2) == 3 * (128 * 32 + 32 * 64) * 2


def test_interpreter_has_its_own_config():
    assert matmul.choose_config(torch.float16, None) is matmul.INTERPRETER_CONFIG


# ---------------------------------------------------------------- bad input


BAD_INPUTS = [
    (lambda: matmul.matmul([[1.0]], zeros(1, 1)), TypeError, ["a", "list", "torch.Tensor"]),
    (lambda: matmul.matmul(zeros(2), zeros(2, 2)), ValueError, ["a", "2 dimensions", "(2,)"]),
    (lambda: matmul.matmul(zeros(2, 2), zeros(1, 2, 2)), ValueError, ["b", "2 dimensions", "(1, 2, 2)"]),
    (lambda: matmul.matmul(zeros(2, 3), zeros(2, 3)), ValueError, ["(2, 3) and (2, 3)", "must match"]),
    (lambda: matmul.matmul(zeros(2, 2), zeros(2, 2, dtype=torch.float16)), TypeError, ["a: float32", "b: float16"]),
    (lambda: matmul.matmul(zeros(2, 2), torch.zeros(2, 2, device="meta")), ValueError, ["one device", "b: meta"]),
    (lambda: matmul.matmul(zeros(2, 2, dtype=torch.float64), zeros(2, 2)), TypeError, ["a", "float64", "float16, bfloat16, float32"]),
    (lambda: matmul.matmul(zeros(2, 2).to_sparse(), zeros(2, 2)), TypeError, ["a", "dense"]),
    (lambda: matmul.MatmulConfig(16, 16, 16, 4, 1, group=0), ValueError, ["group", "0", "at least 1"]),
    (lambda: matmul.MatmulConfig(16, 16, 16, 4, 1, group=1.5), TypeError, ["group", "1.5", "integer"]),
    (lambda: matmul.MatmulConfig(8, 16, 16, 4, 1), ValueError, ["block_m", "8", "at least 16"]),
    (lambda: matmul.MatmulConfig(16, 16, 24, 4, 1), ValueError, ["block_k", "24", "power of two"]),
    (lambda: matmul.blocked_matmul(zeros(2, 3), zeros(2, 3), 1, 1, 1), ValueError, ["(2, 3) and (2, 3)"]),
    (lambda: matmul.blocked_matmul(zeros(2, 2), zeros(2, 2), 0, 1, 1), ValueError, ["block_m", "0", "at least 1"]),
    (lambda: matmul.blocked_matmul(zeros(2, 2), zeros(2, 2), 1, -1, 1), ValueError, ["block_n", "-1", "at least 1"]),
    (lambda: matmul.blocked_matmul(zeros(2, 2), zeros(2, 2), 1, 1, "1"), TypeError, ["block_k", "'1'", "integer"]),
    (lambda: matmul.blocked_matmul(zeros(2, 2, dtype=torch.int64), zeros(2, 2), 1, 1, 1), TypeError, ["a", "int64", "float64"]),
    (lambda: matmul.scores_times_values(zeros(2, 4), zeros(3, 4), zeros(2, 4)), ValueError, ["(3, 4)", "(2, 4)", "one shape"]),
    (lambda: matmul.scores_times_values(zeros(2, 5), zeros(3, 4), zeros(3, 4)), ValueError, ["(2, 5)", "(3, 4)"]),
    (lambda: matmul.scores_times_values(*[zeros(2, 129)] * 3), ValueError, ["D", "129", "1 to 128"]),
    (lambda: matmul.scores_times_values(*[zeros(2, 0)] * 3), ValueError, ["D", "0", "1 to 128"]),
    (lambda: matmul.scores_times_values(*[zeros(2, 4)] * 3, block_m=8), ValueError, ["block_m", "8", "at least 16"]),
    (lambda: matmul.scores_times_values(*[zeros(2, 4)] * 3, block_n=48), ValueError, ["block_n", "48", "power of two"]),
    (lambda: matmul.scores_times_values(*[zeros(2, 4)] * 3, scale=float("nan")), ValueError, ["scale", "nan", "finite"]),
    (lambda: matmul.scores_times_values(*[zeros(2, 4)] * 3, scale="1"), TypeError, ["scale", "'1'", "number"]),
    (lambda: matmul.scores_times_values(zeros(2, 4), zeros(2, 4), zeros(2, 4, dtype=torch.float16)), TypeError, ["q: float32", "v: float16"]),
    (lambda: matmul.tiled_matmul_bytes(-1, 1, 1, 1, 1, 1), ValueError, ["M", "-1", "at least 0"]),
    (lambda: matmul.tiled_matmul_bytes(1, 1, 1, 0, 1, 1), ValueError, ["block_m", "0", "at least 1"]),
    (lambda: matmul.tiled_matmul_bytes(1, 1, 1, 1, 1, 0.5), TypeError, ["itemsize", "0.5", "integer"]),
    (lambda: matmul.strips_per_wave(0, 1, 1, 1), ValueError, ["tiles_m", "0", "at least 1"]),
    (lambda: matmul.strips_per_wave(1, 1, 1, True), TypeError, ["wave", "True", "integer"]),
    (lambda: matmul.round_to_tf32(zeros(2, dtype=torch.float16)), TypeError, ["x", "float16", "float32"]),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), BAD_INPUTS)
def test_bad_input(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
