"""Chapter 7's kernels: broken copies show that the comparisons can fail; their configurations."""

import functools
import itertools

import pytest
import torch
from attention_cases import Case, causal, check_backward
from buffers import DTYPES, assert_refused, needs_gpu
from mutants import mutation_tests

from fa_tutorial import backward, hardware, tiles

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and inf are what some broken kernels compute
TILE = tiles.TileConfig(32, 32, 4, 1)
CONFIG = backward.BackwardConfig(TILE, TILE)


@causal
@pytest.mark.parametrize(("dkdv", "dq"), [((16, 16), (16, 32)), ((32, 64), (64, 16)), ((64, 32), (32, 32))])
@pytest.mark.parametrize(("S_q", "S_k", "D"), [(1, 33, 16), (33, 65, 59)])
def test_every_tile_writes_all_of_its_gradients_and_nothing_else(S_q, S_k, D, dkdv, dq, is_causal):
    case = Case(S_q, S_k, D=D, is_causal=is_causal, B=1, view="four strides", dlse=is_causal)
    config = backward.BackwardConfig(tiles.TileConfig(*dkdv, 4, 1), tiles.TileConfig(*dq, 4, 1))
    check_backward(backward.flash_backward, case, config=config)


# ---------------------------------------------------------------- broken kernels

RAGGED = Case(20, 45, D=24, B=1, H_q=1)
HEADS = Case(20, 20, D=24, B=1)
FP32 = Case(20, 45, D=24, dtype=torch.float32, B=1, H_q=1)
DLSE = Case(20, 20, D=16, dtype=torch.float32, B=1, H_q=1, dlse=True)
CAUSAL = Case(40, 40, D=16, is_causal=True, B=1, H_q=1)
FEWER_QUERIES = Case(20, 45, D=16, is_causal=True, B=1, H_q=1)
BLIND_ROWS = Case(45, 20, D=16, is_causal=True, B=1, H_q=1)
GQA = Case(20, 30, D=16, H_q=4, H_k=2)

LOAD_DLSE = "tl.load(dlse_ptr + batch_head.to(tl.int64) * S_q + offs_m, mask=offs_m < S_q, other=0.0)"
STORE_DELTA = "tl.store(delta_ptr + batch_head.to(tl.int64) * S_q + offs_m, delta, mask=offs_m < S_q)"
OUTPUTS = "b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)"
# See mutants.mutation_tests.
MUTATIONS = {
    "delta_kernel": {
        "delta without do": ("delta_tile", "delta 1", "tl.sum(o_tile.to(tl.float32), axis=1)", RAGGED),
        "do of the first head": ("delta_tile", "do_tile", "load_tile(do, b, 0 * h, start_m, S_q, D, BLOCK_M, BLOCK_D)", HEADS),
        "dlse is ignored": ("delta_tile", "if dlse_ptr is not None", "False", DLSE),
        "dlse with the wrong sign": ("delta_tile", "delta 2", f"-{LOAD_DLSE}", DLSE),
        "delta runs over a head's end": ("delta_kernel", "tl.store", STORE_DELTA.replace("offs_m < S_q", "offs_m >= 0"), RAGGED),
        "every head writes the first": ("delta_kernel", "tl.store", STORE_DELTA.replace("batch_head", "0 * batch_head"), HEADS),
    },
    "dkdv_kernel": {
        "p without lse": ("add_to_dkdv", "p_t 1", "tl.exp(s_t)", RAGGED),
        "no mask": ("add_to_dkdv", "if MASK", "False", CAUSAL),
        "the diagonal is hidden": ("add_to_dkdv", "p_t 2", "tl.where(offs_m[None, :] > first_seeing[:, None], p_t, 0.0)", CAUSAL),
        "ds without delta": ("add_to_dkdv", "ds_t", "p_t * dp_t", RAGGED),
        "dk in fp16": ("add_to_dkdv", "dk", "dot(ds_t.to(q_tile.dtype), q_tile, dk).to(tl.float16).to(tl.float32)", FP32),
        "top-left mask": ("dkdv_kernel", "first_seeing", "start_n + tl.arange(0, BLOCK_N)", FEWER_QUERIES),
        "start is rounded up": ("dkdv_kernel", "first_m", "tl.cdiv(tl.maximum(start_n + S_q - S_k, 0), BLOCK_M) * BLOCK_M", BLIND_ROWS),
        "tiles that the diagonal crosses are full": ("dkdv_kernel", "full_m", "first_m", CAUSAL),
        "the ragged tile of queries is skipped": ("dkdv_kernel", "for start_m 1", "range(full_m, S_q // BLOCK_M * BLOCK_M, BLOCK_M)", RAGGED),
        "only the first head of a group": ("dkdv_kernel", "for member", "range(0, 1)", GQA),
        "a batch entry has H_k heads of lse and delta": ("dkdv_kernel", "row", "(b * H_k + h).to(tl.int64) * S_q", GQA),
        "dk without scale": ("dkdv_kernel", "store_tile 1", f"store_tile(dk, dk_acc, {OUTPUTS}", RAGGED),
    },
    "dq_kernel": {
        "p in base 2": ("add_to_dq", "p 1", "tl.exp2(s - lse[:, None])", RAGGED),
        "no mask": ("add_to_dq", "if MASK", "False", CAUSAL),
        "the diagonal is hidden": ("add_to_dq", "p 2", "tl.where(offs_n[None, :] < last_seen[:, None], p, 0.0)", CAUSAL),
        "delta's wrong sign": ("add_to_dq", "ds", "p * (dp + delta[:, None])", RAGGED),
        "key heads in turns": ("dq_kernel", "h_k", "h % H_k", GQA),
        "lse and delta of the key head": ("dq_kernel", "rows", "(b * H_q + h_k).to(tl.int64) * S_q + offs_m", GQA),
        "top-left mask": ("dq_kernel", "last_seen 2", "offs_m", FEWER_QUERIES),
        "the ragged tile of keys is skipped": ("dq_kernel", "full_n, end_n", "(S_k // BLOCK_N * BLOCK_N, S_k // BLOCK_N * BLOCK_N)", RAGGED),
        "tiles that the diagonal crosses are full": ("dq_kernel", "full_n", "tl.cdiv(start_m + 1 + S_k - S_q, BLOCK_N) * BLOCK_N", CAUSAL),
        "top-left tiles": ("dq_kernel", "end_n", "tl.minimum(start_m + BLOCK_M, S_q)", FEWER_QUERIES),
        "dq without scale": ("dq_kernel", "store_tile", "store_tile(dq, acc, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)", RAGGED),
    },
}  # fmt: skip
test_copies_without_a_mistake_are_right, test_a_mistake_is_caught = mutation_tests(
    backward, MUTATIONS, functools.partial(check_backward, backward.flash_backward, config=CONFIG)
)


# ---------------------------------------------------------------- configurations


@pytest.mark.parametrize("D", [1, 64, 65, 128, 129, 256])
def test_the_configuration_of_a_card(D):
    """By its shared memory. That each really fits is shown by compiling it for the card."""
    block_d, small = max(tiles.padded_d(D), 64), backward.SMALL_CONFIGS
    largest, middle = backward.CONFIGS.values()
    for kilobytes, configs in ((48, small), (64, small), (99, middle), (163, middle), (227, largest)):
        assert backward.choose_config(D, torch.float16, kilobytes * 1024) is configs[block_d]
        if kilobytes >= 99 or block_d < 256:
            assert backward.choose_config(D, torch.float32, kilobytes * 1024) is backward.FP32_CONFIGS[block_d]
    assert backward.choose_config(D, torch.float16, None) is backward.INTERPRETER_CONFIG


def test_a_card_too_small_for_fp32_is_told_so():
    words = ("D = 129", "float32", "65,536", "float16", "at most 128")
    assert_refused(lambda: backward.choose_config(129, torch.float32, 64 * 1024), ValueError, words)
    assert backward.choose_config(129, torch.float32, backward.FP32_BYTES_AT_256) is backward.FP32_CONFIGS[256], "just large enough"


@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_configuration_gives_the_right_result(dtype):
    limit = hardware.shared_memory_limit()
    fitting = [configs for least, configs in backward.CONFIGS.items() if least <= limit and dtype != torch.float32]
    for configs in (*fitting, backward.FP32_CONFIGS if dtype == torch.float32 else backward.SMALL_CONFIGS):
        for (block_d, config), is_causal in itertools.product(configs.items(), (False, True)):
            case = Case(200, 331, D=block_d - 5, dtype=dtype, is_causal=is_causal, H_q=4, H_k=2, dlse=True)
            check_backward(backward.flash_backward, case, config=config)
