"""Chapter 5's kernel: broken copies show that the comparisons can fail; its configurations."""

import functools
import itertools

import pytest
import torch
from attention_cases import Case, assert_attention, causal, check_forward
from buffers import DTYPES, assert_refused, needs_gpu, vast_memory
from mutants import mutation_tests, put_in
from test_attention import far_inputs

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
VERY_NEGATIVE = Case(35, 45, D=16, values="logits near -1e4", scale=1.0, B=1)

KERNEL = "flash_forward_kernel"
# See mutants.mutation_tests.
MUTATIONS = {KERNEL: {
    "no mask": ("attend", "if MASK", "False", RAGGED),
    "the diagonal is hidden": ("attend", "s 2", "tl.where(offs_n[None, :] < last_seen[:, None], s, -float('inf'))", CAUSAL),
    "scale is forgotten": ("attend", "s 1", "dot(q_tile, tl.trans(k_tile))", RAGGED),
    "acc is not rescaled": ("attend", "acc 1", "acc", RAGGED),
    "p is fp16 beside fp32 v": ("attend", "acc 2", "dot(p.to(tl.float16).to(v_tile.dtype), v_tile, acc)", FP32),
    "v of another head": ("attend", "v_tile", "load_tile(v, b, 0 * h_k, start_n, rows, D, BLOCK_N, BLOCK_D)", GQA),
    "the maximum does not run": ("softmax_step", "m_new", "tl.max(s, axis=1)", FALLING),
    "rows that see nothing become NaN": ("softmax_step", "shift", "m_new", BLIND_ROWS),
    "alpha upside down": ("softmax_step", "alpha", "tl.exp(shift - m)", RAGGED),
    "l is not rescaled": ("softmax_step", "return", "(p, m_new, l + tl.sum(p, axis=1), alpha)", RAGGED),
    "m starts at 0": (KERNEL, "m", "tl.zeros((BLOCK_M,), dtype=tl.float32)", VERY_NEGATIVE),
    "key heads in turns": (KERNEL, "h_k", "h % H_k", GQA),
    "the ragged tile is skipped": (KERNEL, "full_n, end_n", "(S_k // BLOCK_N * BLOCK_N, S_k // BLOCK_N * BLOCK_N)", RAGGED),
    "full tiles are skipped": (KERNEL, "for start_n 1", "range(0, 0, BLOCK_N)", RAGGED),
    "top-left mask": (KERNEL, "last_seen 2", "offs_m", FEWER_QUERIES),
    "top-left tiles": (KERNEL, "end_n", "tl.minimum(start_m + BLOCK_M, S_q)", FEWER_QUERIES),
    "tiles that the diagonal crosses are full": (KERNEL, "full_n", "tl.cdiv(start_m + 1 + S_k - S_q, BLOCK_N) * BLOCK_N", CAUSAL),
    "rows that see nothing are divided by 0": (KERNEL, "l_or_one", "l", BLIND_ROWS),
    "o is not divided": (KERNEL, "store_tile", "store_tile(o, acc, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)", RAGGED),
    "lse in base 2": (KERNEL, "lse", "m + tl.log2(l_or_one)", RAGGED),
    "rows that see nothing have a finite lse": (KERNEL, "lse", "tl.where(l == 0.0, 0.0, m + tl.log(l_or_one))", BLIND_ROWS),
    "lse runs over a head's end": (KERNEL, "tl.store", "tl.store(lse_ptr + batch_head.to(tl.int64) * S_q + offs_m, lse)", RAGGED),
    "rows beyond the end are loaded": ("load_tile", "mask", "(offs_s >= 0) & (offs_d < D)", RAGGED),
    "columns beyond D are loaded": ("load_tile", "mask", "(offs_s < (offs_s + 1 if S is None else S)) & (offs_d >= 0)", RAGGED),
    "o runs over a head's end": (
        "store_tile", "tl.store", "tl.store(pointers, tile.to(x.ptr.dtype.element_ty), mask=(offs_s >= 0) & (offs_d < D))", RAGGED),
    "o runs over D": (
        "store_tile", "tl.store", "tl.store(pointers, tile.to(x.ptr.dtype.element_ty), mask=(offs_s < S) & (offs_d >= 0))", RAGGED),
    "sums in fp16": ("dot", "return", "tl.dot(a, b, acc, input_precision='ieee').to(tl.float16).to(tl.float32)", FP32),
    "heads by the batch's stride": ("tile_pointers", "head 1", "x.ptr + (b + h).to(tl.int64) * x.strides[0]", STRIDES),
    "D is taken for contiguous": ("tile_pointers", "return", "(head + (offs_s * x.strides[2] + offs_d), start + offs_s, offs_d)", STRIDES),
}}  # fmt: skip


test_copies_without_a_mistake_are_right, test_a_mistake_is_caught = mutation_tests(
    forward, MUTATIONS, functools.partial(check_forward, forward.flash_forward, config=CONFIG)
)


FAR = {
    "batch": ("head 1", "x.ptr + b * x.strides[0] + h.to(tl.int64) * x.strides[1]"),
    "head": ("head 1", "x.ptr + b.to(tl.int64) * x.strides[0] + h * x.strides[1]"),
    "S": ("offs_s", "tl.arange(0, ROWS)[:, None]"),
    "D": ("offs_d", "tl.arange(0, COLS)[None, :]"),
}


@pytest.mark.parametrize("axis", range(4), ids=FAR)
def test_int32_offsets_are_caught(axis, monkeypatch):
    q, k, v, _ = far_inputs(vast_memory(), axis)
    put_in(monkeypatch, forward, KERNEL, "tile_pointers", *list(FAR.values())[axis])
    o, lse = forward.flash_forward(q, k, v, False, 0.25, config=CONFIG)
    with pytest.raises(AssertionError):
        assert_attention(o, lse, *(x.contiguous() for x in (q, k, v)))


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
