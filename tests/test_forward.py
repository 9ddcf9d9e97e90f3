"""Chapter 5's kernel: broken copies show that the comparisons can fail; its configurations."""

import functools
import itertools

import pytest
import torch
from attention_cases import Case, causal, check_forward
from buffers import DTYPES, assert_refused, needs_gpu
from mutants import mutation_tests

from fa_tutorial import forward, hardware, tiles

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and inf are what some broken kernels compute
CONFIG = tiles.TileConfig(32, 32, 4, 1)


@causal
@pytest.mark.parametrize(("block_m", "block_n"), [(16, 16), (32, 64), (128, 32)])
@pytest.mark.parametrize(("S_q", "S_k", "D"), [(1, 33, 16), (65, 33, 111)])
def test_every_tile_writes_all_of_its_outputs_and_nothing_else(S_q, S_k, D, block_m, block_n, is_causal):
    case = Case(S_q, S_k, D=D, is_causal=is_causal, B=1, view="four strides")
    check_forward(forward.flash_forward, case, config=tiles.TileConfig(block_m, block_n, 4, 1))


# ---------------------------------------------------------------- broken kernels

RAGGED = Case(35, 45, D=40, B=1)
FP32 = Case(35, 101, D=40, dtype=torch.float32, B=1)
CAUSAL = Case(70, 70, D=16, is_causal=True, B=1)
FEWER_QUERIES = Case(35, 70, D=16, is_causal=True, B=1)
BLIND_ROWS = Case(70, 35, D=16, is_causal=True, B=1)
GQA = Case(20, 40, D=16, H_q=6, H_k=2, B=1)
STRIDES = Case(20, 40, D=16, view="four strides")
FALLING = Case(35, 101, D=16, dtype=torch.float32, values="falling maximum", scale=20.0, B=1)

KERNEL = "flash_forward_kernel"
# See mutants.mutation_tests.
MUTATIONS = {KERNEL: {
    "the diagonal is hidden": ("attend", "s 2", "tl.where(offs_n[None, :] < last_seen[:, None], s, -float('inf'))", CAUSAL),
    "scale is forgotten": ("attend", "s 1", "dot(q_tile, tl.trans(k_tile))", RAGGED),
    "acc is not rescaled": ("attend", "acc 1", "acc", RAGGED),
    "v of another head": ("attend", "v_tile", "load_tile(v, b, 0 * h_k, start_n, rows, D, BLOCK_N, BLOCK_D)", GQA),
    "the maximum does not run": ("softmax_step", "m_new", "tl.max(s, axis=1)", FALLING),
    "rows that see nothing become NaN": ("softmax_step", "shift", "m_new", BLIND_ROWS),
    "l is not rescaled": ("softmax_step", "return", "(p, m_new, l + tl.sum(p, axis=1), alpha)", RAGGED),
    "key heads in turns": (KERNEL, "h_k", "h % H_k", GQA),
    "top-left mask": (KERNEL, "last_seen 2", "offs_m", FEWER_QUERIES),
    "tiles that the diagonal crosses are full": (KERNEL, "full_n", "tl.cdiv(start_m + 1 + S_k - S_q, BLOCK_N) * BLOCK_N", CAUSAL),
    "lse runs over a head's end": (KERNEL, "tl.store", "tl.store(lse_ptr + batch_head.to(tl.int64) * S_q + offs_m, lse)", RAGGED),
    "rows beyond the end are loaded": ("load_tile", "mask", "(offs_s >= 0) & (offs_d < D)", RAGGED),
    "o runs over a head's end": (
        "store_tile", "tl.store", "tl.store(pointers, tile.to(x.ptr.dtype.element_ty), mask=(offs_s >= 0) & (offs_d < D))", RAGGED),
    "sums in fp16": ("dot", "return", "tl.dot(a, b, acc, input_precision='ieee').to(tl.float16).to(tl.float32)", FP32),
    "heads by the batch's stride": ("tile_pointers", "head 1", "x.ptr + (b + h).to(tl.int64) * x.strides[0]", STRIDES),
}}  # fmt: skip


test_copies_without_a_mistake_are_right, test_a_mistake_is_caught = mutation_tests(
    forward, MUTATIONS, functools.partial(check_forward, forward.flash_forward, config=CONFIG)
)


# ---------------------------------------------------------------- configurations


@pytest.mark.parametrize("D", [1, 64, 65, 128, 129, 256])
def test_the_configuration_of_a_card(D):
    """By its shared memory. That each really fits is shown by compiling it for the card."""
    block_d = max(tiles.padded_d(D), 64)
    largest, middle = forward.CONFIGS.values()
    for kilobytes, configs in ((48, forward.SMALL_CONFIGS), (64, forward.SMALL_CONFIGS), (99, middle), (163, middle), (227, largest)):
        assert forward.choose_config(D, torch.float16, kilobytes * 1024) is configs[block_d]
        assert forward.choose_config(D, torch.float32, kilobytes * 1024) is forward.SMALL_CONFIGS[block_d]
    assert forward.choose_config(D, torch.float16, None) is forward.INTERPRETER_CONFIG


def test_padded_d():
    assert [tiles.padded_d(D) for D in (1, 15, 16, 17, 59, 64, 65, 128, 192, 256)] == [16, 16, 16, 32, 64, 64, 128, 128, 256, 256]


@pytest.mark.parametrize(("blocks", "words"), [((8, 16), ["block_m", "8", "at least 16"]), ((16, 48), ["block_n", "48", "power of two"])])
def test_a_tile_that_no_dot_takes_is_refused(blocks, words):
    assert_refused(lambda: tiles.TileConfig(*blocks, 4, 1), ValueError, words)


@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_configuration_gives_the_right_result(dtype):
    limit = hardware.shared_memory_limit()
    fitting = [configs for least, configs in forward.CONFIGS.items() if least <= limit and dtype != torch.float32]
    for configs in (*fitting, forward.SMALL_CONFIGS):
        for (block_d, config), is_causal in itertools.product(configs.items(), (False, True)):
            check_forward(
                forward.flash_forward, Case(200, 331, D=block_d - 5, dtype=dtype, is_causal=is_causal, H_q=4, H_k=2), config=config
            )
