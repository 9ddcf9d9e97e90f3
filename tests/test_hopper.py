"""Chapter 9's kernels: their work tiles cover every row and key; on Hopper they are right, their bits repeat, and broken copies are caught.

    python tests/test_hopper.py "forward_kernel: the diagonal is hidden"    runs one of them
"""  # fmt: skip

import functools
import itertools
import math
import sys
import types

import pytest
import torch
from attention_cases import Case, a_tile_by_turns, assert_gradients, causal, check_backward, check_forward, differentiate, on_hopper, same
from buffers import DTYPES
from mutants import mutation_tests_alone

from fa_tutorial import reference
from fa_tutorial.hopper import backward, forward, ladder, tile_scheduler
from fa_tutorial.matmul import grouped_tile
from fa_tutorial.tuned import autotuning

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


@pytest.mark.parametrize(
    ("is_causal", "S", "grouped"), [(False, 1024, False), (False, 1024, True), (True, 1024, False), (False, 1000, False)]
)
def test_a_counter_hands_out_work_tiles_that_differ_and_those_of_a_process_group(is_causal, S, grouped, monkeypatch):
    """In a process group programs may start late, after a message's kernel, and must find less to do."""
    launched = []
    monkeypatch.setattr(forward, "launch_prepared", lambda key, prepare, tensors, arguments: launched.append(arguments))
    monkeypatch.setattr(forward, "card_of", lambda q: types.SimpleNamespace(multiprocessors=132))
    monkeypatch.setattr(forward, "in_process_group", lambda: grouped)
    forward.flash_forward(*(torch.empty(4, 16, S, 128, dtype=torch.float16) for _ in range(3)), is_causal, 1.0)
    ((_, counter, _, _),) = launched
    assert (counter is not None) == (is_causal or S % 128 != 0 or grouped)


@causal
@pytest.mark.parametrize("block_m", [64, 128])
@pytest.mark.parametrize(("S_q", "S_k"), [(1, 1), (64, 300), (300, 64), (128, 128), (1000, 1000), (200, 130)])
def test_the_backwards_work_tiles_cover_every_key_and_what_sees_it(S_q, S_k, block_m, is_causal):
    key_tile = on_host(tile_scheduler.key_tile, grouped_tile_in_gluon=grouped_tile, KEYS=128)
    heads, key_blocks = 5, -(-S_k // 128)
    sizes = tile_scheduler.KeySizes(1, 1, S_q, S_k, heads, key_blocks, heads_at_once=2)
    tiles = [key_tile(i, sizes, block_m, is_causal) for i in range(key_blocks * heads)]
    assert sorted((head, start_n) for head, start_n, _ in tiles) == [(head, n) for head in range(heads) for n in range(0, S_k, 128)]
    for _, start_n, first_m in tiles:
        first_seeing = max(start_n - (S_k - S_q), 0) if is_causal else 0
        assert first_m % block_m == 0 and first_m <= first_seeing < min(first_m + block_m, S_q)
    lengths = [S_q - first_m for _, _, first_m in tiles[: 2 * key_blocks]]
    assert lengths == sorted(lengths, reverse=True), "longest first, within a group of heads"


class Registers(torch.Tensor):
    type = types.SimpleNamespace(layout=None)


class Ring:
    """A ring as a consumer sees it: its n-th tile is waited for, and then released, once."""

    def __init__(self, tile_at, shape=()):
        self.tile_at, self.tiles = tile_at, types.SimpleNamespace(shape=shape, dtype=torch.float64)
        self.waited, self.released = [], []

    def wait(self, n):
        self.waited.append(n)
        return self.tile_at(n)

    def release(self, n):
        assert n in self.waited, f"use {n} is released before it is waited for"
        self.released.append(n)


def consumer_on_host(c, q, k, v, consumers, flags, block_n):
    """The rows that consumer c computes, as (batch_head, first row, acc, m, l), the mask of each block that it multiplies, as
    (MASK, keys that each row sees in it), its rings and its turns, taken (n) and passed ("passed")."""
    (heads, S_q, D), S_k = q.shape, k.shape[1]
    sizes = tile_scheduler.Sizes(heads, heads, S_q, S_k, heads, -(-S_q // (64 * consumers)), heads_at_once=2)
    work_tile = on_host(tile_scheduler.work_tile, grouped_tile_in_gluon=grouped_tile)
    tiles = [work_tile(i, sizes, consumers, block_n, flags.LONGEST_FIRST, flags.IS_CAUSAL) for i in range(sizes.row_blocks * heads)]
    blocks = [(head, j * block_n) for head, _, _, key_blocks in tiles for j in reversed(range(key_blocks))]

    def rows(x, head, first, count):
        return torch.nn.functional.pad(x[head, first : first + count], (0, 0, 0, max(first + count - x.shape[1], 0)))

    def q_rows(n):
        return rows(q, tiles[n // consumers][0], tiles[n // consumers][1] + c * 64, 64) if n // consumers < len(tiles) else None

    rings = [Ring(q_rows)] + [Ring(lambda n, x=x: rows(x, *blocks[n], block_n), (2, 1, 1, block_n, D)) for x in (k, v)]
    masks, outputs, turns = [], [], []

    def announced_rows(work, n):
        if n // consumers == len(tiles):
            return heads, 0, 0
        head, start_m, end_m, key_blocks = tiles[n // consumers]
        return head, start_m + c * 64 if start_m + c * 64 < end_m else -1, key_blocks

    def softmax_step(s, m, scale_log2, seen, mask):
        masks.append((mask, seen))
        s = torch.where(torch.arange(block_n) < seen[:, None], s, -torch.inf) if mask else s
        m_new = torch.maximum(m, s.amax(1))
        shift = torch.where(m_new == -torch.inf, 0.0, m_new)
        return torch.exp2((s - shift[:, None]) * scale_log2), m_new, torch.exp2((m - shift) * scale_log2)

    names = {
        "gl": types.SimpleNamespace(
            cdiv=lambda a, b: -(-a // b), minimum=torch.minimum, sum=torch.sum, int32=torch.int64, float32=torch.float64,
            arange=lambda start, end, layout: torch.arange(start, end), zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype).as_subclass(Registers),
            full=lambda shape, value, dtype, layout: torch.full(shape, value, dtype=dtype), convert_layout=lambda x, layout: x,
            NVMMADistributedLayout=lambda **_: None, SliceLayout=lambda *_: None,
        ),
        "LOG2_E": math.log2(math.e), "tma": types.SimpleNamespace(store_wait=lambda pending: None),
        "consumer_wait": Ring.wait, "consumer_release": Ring.release, "announced_rows": announced_rows, "NO_ROWS": -1,
        "issue_qk": lambda q, shared, n, zeros: q @ shared.k.wait(n).T, "softmax_step": softmax_step, "pack": lambda p, dtype: p,
        "issue_pv": lambda pairs, acc, shared, n: acc + pairs @ shared.v.wait(n),
        "warpgroup_mma_wait": lambda pending, xs: xs[0] if len(xs) == 1 else xs,
        "take_turn": lambda turns, n, C, TURNS: turns.append(n), "pass_turn": lambda turns, C, TURNS: turns.append("passed"),
        "epilogue": lambda o, lse, acc, m, l, scale, shared, head, sizes, first, *_: outputs.append((head, first, acc, m, l)),
    }  # fmt: skip
    names |= {function.fn.__name__: on_host(function, **names) for function in (forward.next_block, forward.skip)}
    shared = forward.Shared(rings[0], None, *rings[1:], types.SimpleNamespace(shape=(consumers,)))
    on_host(forward.consumer, **names)(None, None, D**-0.5, shared, turns, sizes, c, flags)
    return outputs, masks, rings, turns, len(tiles), len(blocks)


@pytest.mark.parametrize("overlap", [False, True])
@causal
@pytest.mark.parametrize("consumers", [2, 3])
@pytest.mark.parametrize(("S_q", "S_k"), [(1, 1), (65, 300), (191, 7), (300, 200), (450, 450), (130, 96)])
def test_a_consumer_is_right_releases_every_tile_and_masks_only_what_needs_it(S_q, S_k, consumers, is_causal, overlap):
    q, k, v = (torch.randn(2, S, 8, dtype=torch.float64) for S in (S_q, S_k, S_k))
    truth, lse = reference.attention(q[None], k[None], v[None], is_causal)
    left = torch.ones(2, S_q, dtype=torch.bool)
    is_masked = is_causal or S_k % 32 != 0
    for c in range(consumers):
        outputs, masks, (q_ring, *kv_rings), turns, work_tiles, blocks = consumer_on_host(
            c, q, k, v, consumers, forward.Flags(is_causal, is_masked, False, True, overlap, True), block_n=32
        )
        assert turns == [turn for n in range(blocks) for turn in (n, "passed")], "the other consumers wait for each of them"
        assert q_ring.released == [c + i * consumers for i in range(work_tiles)]
        assert all(sorted(ring.waited) == sorted(ring.released) == list(range(blocks)) for ring in kv_rings)
        needless = sum(bool(mask and seen.min() >= 32) for mask, seen in masks)
        assert needless <= is_masked * len(outputs), "at most a work tile's first block is masked where all of its rows see it whole"
        for head, first, acc, m, l in outputs:
            count = min(64, S_q - first)
            assert left[head, first : first + count].all()
            left[head, first : first + count] = False
            torch.testing.assert_close((acc / torch.where(l == 0, 1.0, l)[:, None])[:count], truth[0, head, first : first + count])
            torch.testing.assert_close((m * 8**-0.5 + torch.log(l))[:count], lse[0, head, first : first + count])
    assert not left.any(), "rows that no consumer computes"


# ---------------------------------------------------------------- on Hopper


@on_hopper
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("D", [64, 128])
def test_the_small_kernels_are_right(D, dtype):
    x = torch.randn(512, D, dtype=dtype, device="cuda")
    assert torch.equal(ladder.copy(x), x)
    q, k = x[:64], x[128:256]
    torch.testing.assert_close(ladder.scores(q, k).double(), q.double() @ k.double().T, rtol=1e-5, atol=1e-4)


@on_hopper
@pytest.mark.parametrize("attend", [ladder.attend, ladder.attend_overlapped], ids=lambda loop: loop.__name__)
@pytest.mark.parametrize("S", [128, 256, 384, 1152, 4096])
@pytest.mark.parametrize("D", [64, 128])
def test_the_plain_forward_is_right(D, S, attend):
    for dtype, stages in itertools.product(DTYPES[:2], (2, 3)):
        q, k, v = (torch.randn(2, 3, S, D, dtype=dtype, device="cuda") for _ in range(3))
        truth, plain = reference.attention(q, k, v)[0], reference.naive_attention(q, k, v)
        for _ in range(10):
            reference.assert_accurate(ladder.flash_forward(q, k, v, D**-0.5, attend=attend, stages=stages), truth, plain)


@on_hopper
@causal
@pytest.mark.parametrize(
    ("S_q", "S_k"), [(1, 239), (64, 128), (113, 203), (192, 192), (203, 113), (799, 3), (512, 512), (1030, 1030), (4096, 130)]
)
@pytest.mark.parametrize("D", [64, 128])
def test_every_step_and_config_is_right(D, S_q, S_k, is_causal):
    configs = forward.CONFIGS[D], forward.SHORT_CAUSAL[D]
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
@causal
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (8, 1)], ids=str)
@pytest.mark.parametrize(
    "lengths", [(1, 239), (64, 128), (113, 203), (203, 113), (799, 3), (1030, 1030), (130, 4096), (4096, 130)], ids=str
)
@pytest.mark.parametrize("D", [64, 128])
def test_the_backward_is_right(D, lengths, heads, is_causal):
    for dtype, dlse in itertools.product(DTYPES[:2], (False, True)):
        check_backward(
            backward.flash_backward, Case(*lengths, D=D, dtype=dtype, is_causal=is_causal, H_q=heads[0], H_k=heads[1], dlse=dlse)
        )


@on_hopper
@causal
@pytest.mark.parametrize("D", [64, 128])
def test_1000_backwards_are_right_and_dk_and_dv_bit_equal(D, is_causal):
    case = Case(1000, 1000, D=D, H_q=24, H_k=8, is_causal=is_causal)
    q, k, v = case.data()
    do, _ = case.output_gradients()
    o, lse = forward.flash_forward(q, k, v, is_causal, D**-0.5)
    runs = [backward.flash_backward(q, k, v, o, do, lse, None, is_causal, D**-0.5) for _ in range(1000)]
    assert all(same(run[1:], runs[0][1:]) for run in runs)
    dq = torch.stack([dq for dq, _, _ in runs])
    for extreme in (dq.amin(0), dq.amax(0)):
        assert_gradients((extreme, *runs[0][1:]), q, k, v, do, is_causal)


@on_hopper
def test_deterministic_algorithms_take_the_split_kernels(monkeypatch):
    case = Case(600, 600, H_q=4, is_causal=True)
    given = *case.data(), case.output_gradients()[0]
    monkeypatch.setattr(autotuning, "fastest", a_tile_by_turns)
    torch.use_deterministic_algorithms(True)
    try:
        monkeypatch.setattr(backward, "launch_prepared", lambda *_: pytest.fail("the fused kernel was launched"))
        first = differentiate(*given, is_causal=True)
        assert all(same(differentiate(*given, is_causal=True), first) for _ in range(20))
    finally:
        torch.use_deterministic_algorithms(False)


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
O_BELOW = "[0, batch_head, first + 1, 0]"

GROUPED = Case(600, 700, is_causal=True, H_q=6, H_k=2, dlse=True)
WIDE = Case(600, 700, D=128, is_causal=True, H_q=6, H_k=2)
RAGGED = Case(130, 300, scale=1.0, values="logits near -1e4")
TMA_ADD = "tma_add(dq_desc, [(block.row_block * 2 + C) * 16 + 16, 0], part)"

# See mutants.mutation_tests_alone.
MUTATIONS = {
    "forward_kernel": {
        "a stage is never released": ("consumer_release", "mbarrier.arrive", "None", LONG),
        "the producer waits for the wrong parity": (
            "producer_acquire", "mbarrier.wait", "mbarrier.wait(pipeline.empty.index(stage_of(n, STAGES)), parity_of(n, STAGES))", CAUSAL),
        "a consumer waits for the wrong parity": (
            "consumer_wait", "mbarrier.wait", "mbarrier.wait(pipeline.full.index(stage_of(n, STAGES)), parity_of(n, STAGES) ^ 1)", CAUSAL),
        "a barrier counts one consumer too many": (
            "make_pipeline", "return", "Pipeline(tiles, make_barriers(STAGES, 1), make_barriers(STAGES, CONSUMERS + 1))", LONG),
        "a turn is never passed": ("pass_turn", "mbarrier.arrive", "None", LONG),
        "the first rows for all consumers": ("producer", "load 1", "load(shared.q, turn * CONSUMERS + c, q_desc, b, h, start_m)", CAUSAL),
        "a work tile is left out": ("next_work_tile", "return", "i + gl.num_programs(0) + 1", MANY),
        "the diagonal is hidden": ("softmax_step", "s", "gl.where(key[None, :] < seen[:, None] - 1, s, -float('inf'))", CAUSAL),
        "rows that see nothing become NaN": ("softmax_step", "if MASK 2", "False", BLIND_ROWS),
        "l is not rescaled": ("next_block", "l", "l + gl.sum(p, axis=1)", CAUSAL),
        "acc is not rescaled": ("next_block", "return", "(pairs_new, m, l, new)", CAUSAL),
        "p in pairs that are exchanged": ("pack", "return 1", PACK, CAUSAL),
        "top-left mask": ("consumer", "seen 2", "gl.minimum(seen, offs_m + 1)", CAUSAL),
        "lse in base 2": ("epilogue", "lse", "gl.where(l == 0.0, -float('inf'), mul_up(m, scale_log2) + gl.log2(l_or_one))", CAUSAL),
    },
    "backward_kernel": {
        "ds is not handed over": ("hand_over", "mbarrier.arrive", "None", GROUPED),
        "dq does not wait for the other's ds": ("issue_dq", "mbarrier.wait", "None", GROUPED),
        "dq waits for the wrong parity": (
            "issue_dq", "mbarrier.wait", "mbarrier.wait(shared.ds_full.index(stage), parity_of(block.n, STAGES) ^ 1)", GROUPED),
        "q is released by nobody": ("one_block", "consumer_release 2", "None", GROUPED),
        "k is released by nobody": ("consumer", "consumer_release", "None", MANY),
        "the group's next head begins at its first row": ("next_block", "row_block 2", "0", GROUPED),
        "half of the bytes are announced": (
            "load_rows", "mbarrier.expect", "mbarrier.expect(ring.full.index(stage), BLOCK_M * D)", GROUPED),
        "lse of the first head": ("load_rows", "tma.async_copy_global_to_shared 2",
            "tma.async_copy_global_to_shared(values_desc, [b, start], ring.full.index(stage), values.index(stage))", GROUPED),
        "a work tile is left out": ("next_work_tile", "return", "i + gl.num_programs(0) + 1", MANY),
        "top-left mask": ("issue_s", "before", "0", GROUPED),
        "keys that are not there are seen": ("issue_s", "first_seeing", "offs_n - before", RAGGED),
        "a block too few": ("key_tile", "first_m 2", "max(start_n + sizes.S_q - sizes.S_k, 0) // BLOCK_M * BLOCK_M + BLOCK_M", GROUPED),
        "delta is not subtracted": ("one_block", "ds_t", "p_t * dp_t", GROUPED),
        "dk without scale": ("consumer", "epilogue",
            "epilogue(dk_desc, dv_desc, dk, dv, shared, batch_head // sizes.H_k, batch_head % sizes.H_k, start_n, turn, C)", GROUPED),
    },
    "prepare_kernel": {
        "rows that see nothing": ("prepare_kernel", "tl.store 1", "tl.store(minus_lse_ptr + rows, -lse / scale)", BLIND_ROWS),
        "dq does not begin at zero": ("prepare_kernel", "tl.store 3", "None", GROUPED),
        "the counter does not begin at zero": ("prepare_kernel", "tl.store 4", "tl.store(counter_ptr, 1)", MANY),
    },
    "convert_kernel": {
        "halves of dq exchanged": ("convert_kernel", "block, part", "(tl.program_id(0) // 2, 1 - tl.program_id(0) % 2)", GROUPED),
    },
}  # fmt: skip
FORWARD = forward, functools.partial(check_forward, forward.flash_forward)
BACKWARD = backward, functools.partial(check_backward, backward.flash_backward)
test_a_mistake_follows_the_kernel, test_a_mistake_is_caught, run_copy = mutation_tests_alone(
    __file__, MUTATIONS, dict.fromkeys(MUTATIONS, BACKWARD) | {"forward_kernel": FORWARD}, [CAUSAL, BLIND_ROWS, MANY, GROUPED, WIDE, RAGGED]
)
if __name__ == "__main__":
    run_copy(*sys.argv[1:])
