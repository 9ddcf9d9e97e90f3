"""Chapter 9's kernel: its pieces of work cover every row, its protocol neither deadlocks nor races, and on Hopper it is right and its bits repeat."""

import math
import random
import types
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from attention_cases import Case, assert_attention, assert_gradients, load_changed
from buffers import DEVICE, DTYPES, ON_GPU, randn, same_bits, unchanged

from fa_tutorial import attention, barriers, flash_attention, hopper, tuned
from fa_tutorial.bench import results
from fa_tutorial.matmul import grouped_tile

on_hopper = pytest.mark.skipif(
    attention.best() != "hopper", reason="Gluon has no interpreter, and this is no GPU of compute capability 9.0"
)
CONFIGS = {64: (hopper.CONFIGS[64], hopper.SHORT_CAUSAL), 128: (hopper.CONFIGS[128],)}


# ---------------------------------------------------------------- pieces of work, on any machine


def host_function(function, **names):
    """A jitted function as plain Python, with these names beside its arguments."""
    integers = types.SimpleNamespace(cdiv=lambda a, b: -(-a // b))
    return types.FunctionType(function.fn.__code__, {"gl": integers, "min": min, "max": max, "ROWS": 64, **names})


@pytest.mark.parametrize("longest_first", [False, True])
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("consumers", [2, 3])
@pytest.mark.parametrize(
    ("S_q", "S_k"), [(1, 1), (64, 64), (65, 300), (191, 7), (192, 192), (193, 193), (1000, 1000), (1024, 1024), (300, 200)]
)
def test_the_pieces_cover_every_row_once(S_q, S_k, consumers, is_causal, longest_first):
    piece_of = host_function(hopper.piece_of, grouped_tile_in_gluon=grouped_tile)
    heads, block_n, row_blocks = 5, 128, -(-S_q // (64 * consumers))
    problem = hopper.Problem(1, 1, row_blocks, heads, 2, S_q, S_k)
    rows, lengths = [], []
    for i in range(row_blocks * heads):
        head, start_m, end_m, blocks = piece_of(i, problem, consumers, block_n, longest_first, is_causal)
        assert 0 <= start_m < end_m <= start_m + 64 * consumers and start_m < S_q
        rows += [(head, first) for first in range(start_m, end_m, 64)]
        last = min(end_m, S_q) - 1
        seen = min(max(last + 1 + S_k - S_q, 0), S_k) if is_causal else S_k
        assert blocks == max(-(-seen // block_n), 1)
        lengths.append(blocks)
    assert sorted(rows) == [(head, first) for head in range(heads) for first in range(0, S_q, 64)]
    if longest_first and is_causal:
        assert all(lengths[i] >= lengths[i + 1] for i in range(2 * row_blocks - 1)), "within a group of heads"


# ---------------------------------------------------------------- the protocol, on any machine


def roles(pieces: list[list[int]], stages: int, units, forget: str | None = None):
    """The kernel's roles as fa_tutorial.barriers plays them. pieces: for each, how many blocks each consumer has a use for.

    units: how long the next action takes. forget: an arrival that is left out.
    """
    consumers, q_stages = len(pieces[0]), hopper.Q_STAGES.value
    (k_full, k_empty), (v_full, v_empty) = barriers.ring(stages, consumers), barriers.ring(stages, consumers)
    rings = [barriers.ring(q_stages) for _ in range(consumers)]

    def arrive(barrier, name):
        return [] if name == forget else [barriers.arrive(barrier)]

    def producer():
        tile = 0
        for turn, blocks in enumerate([*map(max, pieces), 0]):
            slot, parity = turn % q_stages, turn // q_stages % 2
            for c, (full, empty) in enumerate(rings):
                yield barriers.wait(empty[slot], 1 - parity)
                yield barriers.load(turn, 100 * (c + 1) + slot, units())
                yield barriers.arrive(full[slot])
            for _ in range(blocks):
                stage, parity = tile % stages, tile // stages % 2
                for full, empty, place in ((k_full, k_empty, 0), (v_full, v_empty, 50)):
                    yield barriers.wait(empty[stage], 1 - parity)
                    yield barriers.load(tile, place + stage, units())
                    yield barriers.arrive(full[stage])
                tile += 1

    def read(tile, full, empty, place, name):
        stage = tile % stages
        yield barriers.wait(full[stage], tile // stages % 2)
        yield barriers.use(tile, place + stage, units())
        yield from arrive(empty[stage], name)

    def consumer(c):
        (full, empty), tile = rings[c], 0
        for turn, uses in enumerate(pieces):
            slot = turn % q_stages
            yield barriers.wait(full[slot], turn // q_stages % 2)
            for block in range(max(uses)):
                yield from read(tile, k_full, k_empty, 0, "k_empty")
                yield barriers.use(turn, 100 * (c + 1) + slot, 1)
                yield barriers.work("softmax", units())
                if block == max(uses) - 1:
                    yield from arrive(empty[slot], "q_empty")
                yield from read(tile, v_full, v_empty, 50, "v_empty")
                tile += 1
        yield barriers.wait(full[len(pieces) % q_stages], len(pieces) // q_stages % 2)  # told that there is no more

    return {"producer": producer()} | {f"consumer {c}": consumer(c) for c in range(consumers)}


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_the_protocol_neither_deadlocks_nor_races(consumers, stages):
    draw = random.Random(consumers * 10 + stages)
    for _ in range(20):
        pieces = [[draw.randint(1, 6) for _ in range(consumers)] for _ in range(draw.randint(1, 6))]
        timeline = barriers.run(roles(pieces, stages, lambda: draw.randint(1, 6)))
        assert barriers.races(timeline) == []


@pytest.mark.parametrize("forgotten", ["q_empty", "k_empty", "v_empty"])
def test_an_arrival_that_is_left_out_is_a_deadlock(forgotten):
    with pytest.raises(barriers.Deadlock):
        barriers.run(roles([[4, 4]] * 4, 2, lambda: 1, forgotten))


# ---------------------------------------------------------------- the door, on any machine


@pytest.mark.skipif(attention.best() == "hopper", reason="here it is allowed")
def test_the_name_is_refused_where_there_is_no_hopper():
    q = randn(1, 1, 4, 64).half()
    with pytest.raises(ValueError, match=r'(?s)"hopper".*9\.0.*"auto"'):
        flash_attention(q, q, q, kernel="hopper")


@pytest.mark.skipif(ON_GPU, reason="the interpreter is off")
def test_in_the_interpreter_the_tuned_kernels_take_over():
    q = randn(1, 2, 40, 64).half()
    assert not hopper.applies(q, q, q, 1.0)
    got, want = hopper.flash_forward(q, q, q, True), tuned.flash_forward(q, q, q, True)
    assert all(bool(same_bits(a, b).all()) for a, b in zip(got, want, strict=True))


def test_an_unknown_step_is_refused():
    q = randn(1, 1, 4, 64).half()
    with pytest.raises(ValueError, match=r"'roles'.*'order'.*got 'best'"):
        hopper.flash_forward(q, q, q, step="best")


def test_a_descriptor_holds_its_tensor_and_no_other():
    x, y = (randn(2, 3, 5, 64, seed=seed).half() for seed in (0, 1))
    first, second = hopper.descriptor(x, 64), hopper.descriptor(y, 64)
    assert first.base is x and second.base is y and first.block_shape == [1, 1, 64, 64] == second.block_shape
    assert hopper._blank(x.shape, x.stride(), x.dtype, 64).base.numel() == 0


# ---------------------------------------------------------------- on Hopper


@on_hopper
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("S_q", "S_k"), [(1, 239), (64, 128), (113, 203), (192, 192), (203, 113), (799, 3), (1030, 1030), (4096, 130)])
@pytest.mark.parametrize("D", [64, 128])
def test_every_step_and_config(D, S_q, S_k, is_causal):
    for dtype in DTYPES[:2]:
        q, k, v = (case := Case(S_q, S_k, D=D, dtype=dtype, is_causal=is_causal, H_q=6, H_k=2)).inputs()
        for step, config in [(step, None) for step in hopper.STEPS] + [(hopper.BEST, config) for config in CONFIGS[D]]:
            with unchanged(q, k, v):
                o, lse = hopper.flash_forward(q, k, v, is_causal, case.scale, step=step, config=config)
            assert_attention(o, lse, q, k, v, is_causal, case.scale)


@on_hopper
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("D", [64, 128])
def test_1000_repeats_are_bit_equal(D, is_causal):
    """More pieces than multiprocessors, of many lengths: who computes which differs from run to run."""
    q, k, v = Case(1000, 1000, D=D, is_causal=is_causal, B=2, H_q=24, H_k=8).data()
    first = hopper.flash_forward(q, k, v, is_causal)
    for _ in range(1000):
        again = hopper.flash_forward(q, k, v, is_causal)
        assert all(bool(same_bits(a, b).all()) for a, b in zip(first, again, strict=True))


@on_hopper
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("D", [64, 128])
def test_rows_that_are_computed_once_more_keep_their_bits(D, is_causal, dtype):
    """tuned.repair_kernel goes through many blocks of keys as this kernel does, operation by operation."""
    q, k, v = Case(500, 700, D=D, dtype=dtype, is_causal=is_causal, H_q=2, H_k=1).inputs()
    o, lse = hopper.flash_forward(q, k, v, is_causal)
    q[0, 0, 290, 5] = math.nan  # its row is NaN, its block is repaired
    blind = slice(0, 500)
    if is_causal:
        v[0, 0, 600, 3] = math.inf  # rows before 400 may not see it
        blind = slice(0, 400)
    got_o, got_lse = hopper.flash_forward(q, k, v, is_causal)
    assert torch.isnan(got_o[0, 0, 290]).all() and torch.isnan(got_lse[0, 0, 290])
    got_o[0, 0, 290], got_lse[0, 0, 290] = o[0, 0, 290], lse[0, 0, 290]
    assert same_bits(got_o[:, :, blind], o[:, :, blind]).all() and same_bits(got_lse, lse).all()


@on_hopper
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("D", [64, 128])
def test_every_element_is_written(D, is_causal, monkeypatch):
    q, k, v = Case(333, 200, D=D, is_causal=is_causal, B=2, H_q=4, H_k=2).data()
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: empty(*size, **options).fill_(math.nan))
    o, lse = hopper.flash_forward(q, k, v, is_causal)
    monkeypatch.undo()
    assert not torch.isnan(o).any() and not torch.isnan(lse).any()
    assert_attention(o, lse, q, k, v, is_causal)


@on_hopper
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_rows_of_large_logits_and_rows_with_nan_are_done_again(is_causal):
    q, k, v = Case(300, 300, D=64, B=1, H_q=2).data()
    q[0, 0, 40] *= 3000
    q[0, 1, 70] = math.nan
    o, lse = hopper.flash_forward(q, k, v, is_causal)
    assert lse[0, 0, 40] > tuned.LARGE_LOGIT.value * math.log(2)
    assert torch.isnan(lse[0, 1, 70]) and torch.isnan(o[0, 1, 70]).all()
    others = torch.arange(300, device=DEVICE) != 70
    assert not torch.isnan(o[:, :, others]).any() and not torch.isnan(lse[:, :, others]).any()
    q[0, 1, 70] = 0.0
    assert_attention(*hopper.flash_forward(q, k, v, is_causal), q, k, v, is_causal)


@on_hopper
@pytest.mark.parametrize(
    "case",
    [
        Case(70, 70, D=80),
        Case(70, 70, D=64, dtype=torch.float32),
        Case(70, 70, D=64, view="storage offset of one"),
        Case(70, 70, D=64, scale=-0.5),
    ],
    ids=["D = 80", "fp32", "no descriptor", "negative scale"],
)
def test_what_it_does_not_take_is_the_tuned_kernels(case, monkeypatch):
    monkeypatch.setattr(tuned, "fastest", lambda kernel, tiles, key, launch: tiles[0])
    q, k, v = case.inputs()
    assert not hopper.applies(q, k, v, case.scale or 1.0)
    got, want = hopper.flash_forward(q, k, v, False, case.scale), tuned.flash_forward(q, k, v, False, case.scale)
    assert all(bool(same_bits(a, b).all()) for a, b in zip(got, want, strict=True))


# Each leaves the protocol alone: who breaks that gets a kernel that hangs, and the simulation above is where it is broken.
MUTATIONS = {
    "a key too many": ("key[None, :] < seen[:, None]", "key[None, :] <= seen[:, None]"),
    "no mask where the diagonal is": ("whole = max(first + 1 + S_k - S_q, 0) // BLOCK_N", "whole = mine"),
    "top-left alignment": ("rows + (1 + S_k - S_q)", "rows + 1"),
    "l not rescaled": ("l = alpha * l + gl.sum(p, axis=1)", "l = l + gl.sum(p, axis=1)"),
    "acc not rescaled": (
        "return pairs_new, m, l, new * gl.convert_layout(alpha,",
        "return pairs_new, m, l, new * gl.convert_layout(alpha * 0 + 1,",
    ),
    "acc not divided": ("o = acc * gl.convert_layout(1.0 / l_or_one,", "o = acc * gl.convert_layout(l_or_one * 0 + 1,"),
    "lse in base 2": ("SHIFT + gl.log2(l_or_one)) * LN_2)", "SHIFT + gl.log2(l_or_one)))"),
    "lse without the shift": ("SHIFT + gl.log2(l_or_one)", "gl.log2(l_or_one)"),
    "key heads in turns": ("h_k = h // (problem.H_q // problem.H_k)", "h_k = h % problem.H_k"),
    "the first rows for all consumers": ("q_desc, [b, h, start_m + c * ROWS, 0]", "q_desc, [b, h, start_m, 0]"),
    "blocks of v from the first to the last": ("v_desc, [b, h_k, start_n, 0]", "v_desc, [b, h_k, j * BLOCK_N, 0]"),
    "p in halves, exchanged": ("cvt.rn.bf16x2.f32 $0, $2, $1;", "cvt.rn.bf16x2.f32 $0, $1, $2;"),
    "o a row too low": ("[batch_head // H_q, batch_head % H_q, first, 0]", "[batch_head // H_q, batch_head % H_q, first + 1, 0]"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_kernel_is_caught(name, tmp_path, monkeypatch):
    old, new = MUTATIONS[name]
    assert Path(hopper.__file__).read_text(encoding="utf-8").count(old) == 1, "the mutation has to follow the kernel"
    if attention.best() != "hopper":
        pytest.skip("the broken kernel runs on Hopper")
    broken = load_changed(hopper, tmp_path, monkeypatch, (old, new))
    q, k, v = (case := Case(300, 450, D=64, dtype=torch.bfloat16, is_causal=True, H_q=4, H_k=2)).inputs()
    assert_attention(*hopper.flash_forward(q, k, v, case.is_causal), q, k, v, case.is_causal)
    with pytest.raises(AssertionError):
        assert_attention(*broken.flash_forward(q, k, v, case.is_causal), q, k, v, case.is_causal)


@on_hopper
@pytest.mark.parametrize(("S_q", "S_k", "H_q", "H_k"), [(128, 128, 1, 1), (300, 200, 4, 2), (1, 70, 2, 2), (1024, 1024, 2, 1)])
@pytest.mark.parametrize("D", [64, 128])
def test_the_try_at_dk_and_dv_is_right(D, S_q, S_k, H_q, H_k):
    """The chapter's measurement of it would mean nothing else."""
    from fa_tutorial.bench import cases, chapter_9, hopper_dkdv

    (q, k, v, do), case = chapter_9.dkdv_inputs(cases.Shape(2, H_q, H_k, S_q, S_k, D, False))
    for config in hopper_dkdv.CONFIGS[D]:
        assert_gradients((case.dq(None), *hopper_dkdv.dk_and_dv(case, config)), q, k, v, do)


def test_what_is_stored_of_dk_and_dv_is_what_is_measured(monkeypatch):
    """A stored row names its tile by number, and says what that tile was."""
    from fa_tutorial.bench import chapter_9, hopper_dkdv

    monkeypatch.setattr(chapter_9, "best", lambda: "hopper")
    stored = results.select(results.load("h200")["kernels"], kernel="dkdv")
    abouts = [about for about, _ in chapter_9.dkdv_cases()]
    assert len(stored) == len(abouts) and all(any(about.items() <= row.items() for row in stored) for about in abouts)
    for row in stored:
        if row["tile"] is not None:
            assert asdict(hopper_dkdv.CONFIGS[row["D"]][row["tile"]]).items() <= row.items()


def test_another_gpu_measures_no_dk_and_dv(monkeypatch):
    from fa_tutorial.bench import chapter_9

    monkeypatch.setattr(chapter_9, "best", lambda: "tuned")
    assert not list(chapter_9.dkdv_cases())
