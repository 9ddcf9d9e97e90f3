"""Chapter 9's kernel: its work tiles cover every row, and on Hopper it is right, its bits repeat, and broken copies are caught.

    python tests/test_hopper.py "the diagonal is hidden"    runs one of them
"""  # fmt: skip

import itertools
import subprocess
import sys
import types

import pytest
import torch
from attention_cases import Case, causal, check_forward, on_hopper, same
from buffers import DTYPES
from mutants import mutant, put_in

from fa_tutorial.hopper import forward, tile_scheduler
from fa_tutorial.matmul import grouped_tile

# ---------------------------------------------------------------- work tiles, on any machine


def on_host(function, **names):
    """A jitted function as plain Python, with these names beside its arguments."""
    integers = types.SimpleNamespace(cdiv=lambda a, b: -(-a // b))
    return types.FunctionType(function.fn.__code__, {"gl": integers, "min": min, "max": max, "ROWS": 64, **names})


@pytest.mark.parametrize("longest_first", [False, True])
@causal
@pytest.mark.parametrize("consumers", [2, 3])
@pytest.mark.parametrize(
    ("S_q", "S_k"), [(1, 1), (64, 64), (65, 300), (191, 7), (192, 192), (193, 193), (1000, 1000), (1024, 1024), (300, 200)]
)
def test_work_tiles_cover_every_row_once(S_q, S_k, consumers, is_causal, longest_first):
    work_tile = on_host(tile_scheduler.work_tile, grouped_tile_in_gluon=grouped_tile)
    heads, block_n, row_blocks = 5, 128, -(-S_q // (64 * consumers))
    sizes = tile_scheduler.Sizes(1, 1, S_q, S_k, heads, row_blocks, heads_at_once=2)
    rows, lengths = [], []
    for i in range(row_blocks * heads):
        head, start_m, end_m, key_blocks = work_tile(i, sizes, consumers, block_n, longest_first, is_causal)
        assert 0 <= start_m < end_m <= start_m + 64 * consumers and start_m < S_q
        rows += [(head, first) for first in range(start_m, end_m, 64)]
        seen = min(max(min(end_m, S_q) + S_k - S_q, 0), S_k) if is_causal else S_k
        assert key_blocks == max(-(-seen // block_n), 1)
        lengths.append(key_blocks)
    assert sorted(rows) == [(head, first) for head in range(heads) for first in range(0, S_q, 64)]
    if longest_first and is_causal:
        assert all(lengths[i] >= lengths[i + 1] for i in range(2 * row_blocks - 1)), "within a group of heads"


@pytest.mark.parametrize("consumers", [2, 3])
def test_sizes(consumers):
    sizes_of = on_host(tile_scheduler.sizes_of, Sizes=tile_scheduler.Sizes)
    q, k = types.SimpleNamespace(shape=(2, 6, 1000, 64)), types.SimpleNamespace(shape=(2, 3, 700, 64))
    assert sizes_of(q, k, 64, consumers) == (6, 3, 1000, 700, 12, -(-1000 // (64 * consumers)), 12)


# ---------------------------------------------------------------- on Hopper


@on_hopper
@causal
@pytest.mark.parametrize(("S_q", "S_k"), [(1, 239), (64, 128), (113, 203), (192, 192), (203, 113), (799, 3), (1030, 1030), (4096, 130)])
@pytest.mark.parametrize("D", [64, 128])
def test_every_step_and_config_is_right(D, S_q, S_k, is_causal):
    configs = (forward.CONFIGS[D], *([forward.SHORT_CAUSAL] if D == 64 else []))
    for dtype, (step, config) in itertools.product(
        DTYPES[:2], [(step, None) for step in forward.STEPS.values()] + [(forward.BEST, c) for c in configs]
    ):
        check_forward(forward.flash_forward, Case(S_q, S_k, D=D, dtype=dtype, is_causal=is_causal, H_q=6, H_k=2), step=step, config=config)


@on_hopper
@causal
@pytest.mark.parametrize("D", [64, 128])
def test_1000_repeats_are_bit_equal(D, is_causal):
    """More work tiles than multiprocessors, of many lengths: who computes which differs from run to run."""
    q, k, v = Case(1000, 1000, D=D, H_q=24, H_k=8).data()
    first = forward.flash_forward(q, k, v, is_causal, D**-0.5)
    assert all(same(forward.flash_forward(q, k, v, is_causal, D**-0.5), first) for _ in range(1000))


@on_hopper
@pytest.mark.parametrize(
    ("case", "takes"),
    [
        (Case(70, 70), True),
        (Case(70, 70, view="(B, S, H, D) transposed"), True),
        (Case(70, 70, D=80), False),
        (Case(70, 70, dtype=torch.float32), False),
        (Case(70, 70, view="storage offset of one"), False),
        (Case(70, 70, scale=-0.5), False),
    ],
    ids=str,
)
def test_what_it_applies_to(case, takes):
    assert forward.applies(*case.inputs(), case.scale or 1.0) == takes


# ---------------------------------------------------------------- broken kernels

CAUSAL = Case(300, 450, dtype=torch.float16, is_causal=True, H_q=4, H_k=2)
BLIND_ROWS = Case(450, 300, is_causal=True, B=1)
LONG = Case(200, 1500, B=1)  # more blocks of keys than stages
MANY = Case(1000, 1000, B=2, H_q=24)  # more work tiles than multiprocessors
PACK = "gl.inline_asm_elementwise('cvt.rn.f16x2.f32 $0, $1, $2;', '=r,f,f', [first, second], dtype=gl.int32, is_pure=True, pack=1)"
O_BELOW = "[batch_head // sizes.H_q, batch_head % sizes.H_q, first + 1, 0]"

# Name -> the function, its statement, what stands there instead (see mutants.py), and the case that has to fail.
MUTATIONS = {
    "a stage is never released": ("consumer_release", "mbarrier.arrive", "None", LONG),
    "the producer waits for the wrong parity": ("producer_acquire", "mbarrier.wait", "mbarrier.wait(pipeline.empty.index(n % STAGES), (n // STAGES) & 1)", CAUSAL),
    "a consumer waits for the wrong parity": ("consumer_wait", "mbarrier.wait", "mbarrier.wait(pipeline.full.index(n % STAGES), ((n // STAGES) & 1) ^ 1)", CAUSAL),
    "a consumer does not wait": ("consumer_wait", "mbarrier.wait", "None", CAUSAL),
    "a barrier counts one consumer too many": ("make_pipeline", "return", "Pipeline(tiles, make_barriers(STAGES, 1), make_barriers(STAGES, CONSUMERS + 1))", LONG),
    "every load is of the first head": ("load", "tma.async_copy_global_to_shared", "tma.async_copy_global_to_shared(desc, [b, 0, start, 0], pipeline.full.index(n % STAGES), pipeline.tiles.index(n % STAGES))", CAUSAL),
    "the first rows for all consumers": ("producer", "load 1", "load(shared.q, turn * CONSUMERS + c, q_desc, b, h, start_m)", CAUSAL),
    "v from the first block to the last": ("producer", "load 3", "load(shared.v, n, v_desc, b, h_k, j * BLOCK_N)", CAUSAL),
    "key heads in turns": ("producer", "h_k", "h % sizes.H_k", CAUSAL),
    "a work tile is left out": ("next_work_tile", "return", "i + gl.num_programs(0) + 1", MANY),
    "the diagonal is hidden": ("softmax_step", "s", "gl.where(key[None, :] < seen[:, None] - 1, s, -float('inf'))", CAUSAL),
    "a key too many": ("softmax_step", "s", "gl.where(key[None, :] <= seen[:, None], s, -float('inf'))", CAUSAL),
    "rows that see nothing become NaN": ("softmax_step", "if MASK 2", "False", BLIND_ROWS),
    "nothing is rescaled": ("softmax_step", "return", "(gl.exp2(s * scale_log2 - shift_log2[:, None]), m_new, gl.exp2(shift_log2 - shift_log2))", CAUSAL),
    "l is not rescaled": ("next_block", "l", "l + gl.sum(p, axis=1)", CAUSAL),
    "acc is not rescaled": ("next_block", "return", "(pairs_new, m, l, new)", CAUSAL),
    "p in pairs that are exchanged": ("pack", "return 1", PACK, CAUSAL),
    "top-left mask": ("consumer", "seen 2", "gl.minimum(seen, offs_m + 1)", CAUSAL),
    "no mask where the diagonal is": ("consumer", "full 2", "mine", CAUSAL),
    "o is not divided": ("epilogue", "o", "acc", CAUSAL),
    "o a row too low": ("epilogue", "tma.async_copy_shared_to_global", f"tma.async_copy_shared_to_global(o_desc, {O_BELOW}, shared.o.index(C))", CAUSAL),
    "lse in base 2": ("epilogue", "lse", "gl.where(l == 0.0, -float('inf'), mul_up(m, scale_log2) + gl.log2(l_or_one))", CAUSAL),
}  # fmt: skip
RIGHT, WRONG, STOPPED = 0, 3, 4  # how a process ends that runs a copy of the kernel


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_a_mistake_follows_the_kernel(mutation):
    """On any machine: there is such a statement."""
    *change, _ = mutation
    mutant(forward.forward_kernel, *change)


@on_hopper
def test_a_copy_without_a_mistake_is_right():
    assert run_alone("none") == RIGHT


@on_hopper
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_is_caught(name):
    assert run_alone(name) in (WRONG, STOPPED)


def run_alone(name: str) -> int:
    """In a process of its own: a broken protocol may wait for ever."""
    try:
        return subprocess.run([sys.executable, __file__, name], timeout=60).returncode
    except subprocess.TimeoutExpired:
        return STOPPED


def run_copy(name: str) -> int:
    *change, case = MUTATIONS.get(name, (None,))
    cases = [case] if change else [CAUSAL, BLIND_ROWS, MANY]
    put_in(pytest.MonkeyPatch(), forward, "forward_kernel", *change)
    try:
        for case in cases:
            check_forward(forward.flash_forward, case)
    except AssertionError as error:
        print(f"{name}: {error}")
        return WRONG
    except torch.AcceleratorError as error:
        print(f"{name}: {error}")
        return STOPPED
    return RIGHT


if __name__ == "__main__":
    sys.exit(run_copy(sys.argv[1]))
