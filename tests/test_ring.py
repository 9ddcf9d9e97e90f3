"""Ring attention in real processes against float64 attention of the whole sequence; its shards; a rank that dies; ranks in one process."""

import os
import re
import sys
import time

import pytest
import ring_ranks
import torch
from right_answers.chapter_13 import backward_with_own_tile_last_at_home
from wrong_answers.chapter_13 import WRONG_ANSWERS

from fa_tutorial import hardware, processes, reference, ring
from fa_tutorial.__main__ import main
from fa_tutorial.bench import chapter_13
from fa_tutorial.exercises.chapter_13.ex_7 import overlapped_backward
from fa_tutorial.source import source_of


@pytest.fixture(scope="module", autouse=True)
def imported_once():
    """Of the process that all ranks are forked from, which otherwise doesn't find ring_ranks: each rank would import it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        yield


@pytest.fixture(scope="module", params=[3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (1, 2, 4))])
def ran(request):
    """(ranks, what every_check gives on each)."""
    return request.param, processes.run(ring_ranks.every_check, request.param)


def whole(ran, *path) -> torch.Tensor:
    """What all ranks have under a path of keys, as one sequence."""
    parts = ran[1]
    for key in path:
        parts = [part[key] for part in parts]
    return ring.unshard(parts)


def truths(shape, is_causal: bool) -> dict:
    """(float64, plain attention in the inputs' dtype) by name."""
    q, k, v, do = chapter_13.inputs(*shape)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    plain = reference.naive_attention(*leaves, is_causal)
    rough = plain, None, *torch.autograd.grad(plain, leaves, do)
    truth = *reference.attention(q, k, v, is_causal), *reference.gradients(q, k, v, do, is_causal)
    return dict(zip(chapter_13.NAMES, zip(truth, rough, strict=True), strict=True))


# ---------------------------------------------------------------- real processes


@pytest.mark.parametrize("number", range(len(ring_ranks.CASES)))
def test_the_ring_is_attention(ran, number):
    for name, (truth, plain) in truths(*ring_ranks.CASES[number]).items():
        got = whole(ran, "cases", number, name)
        if name == "lse":
            reference.assert_lse_accurate(got, truth, torch.float32)
        else:
            reference.assert_accurate(got, truth, plain, factor=2.0 if name == "o" else 3.0)


@pytest.mark.parametrize("number", range(len(ring_ranks.CASES)))
def test_bytes_are_those_of_the_formula(ran, number):
    """(13.3) forward: R − 1 shards of k and v. Backward: as many, and as many of their gradients in float32: the own tile comes last."""
    ranks, parts = ran
    (B, _, H_k, S, D), _ = ring_ranks.CASES[number]
    numbers = 2 * B * H_k * S // ranks * D
    for part in parts:
        assert part["cases"][number]["sent"] == [(ranks - 1) * numbers * 4, (ranks - 1) * numbers * (4 + 4)]


def test_what_leaves_at_one_time_is_one_message(ran):
    """Backward: k and v alone before the first tile and beside it, then dk and dv beside each tile but the first. A second message of a step
    would wait for the tile: NCCL's are kernels."""
    ranks, parts = ran
    assert {part["messages"] for part in parts} == {0 if ranks == 1 else 2 if ranks == 2 else ranks + 1}


def test_gradients_through_lse_and_a_given_scale(ran):
    q, k, v, do = chapter_13.inputs(*ring_ranks.CASES[2][0])
    wanted = reference.gradients(q, k, v, torch.zeros_like(do), True, 0.3, torch.ones(do.shape[:3]))
    for number, want in enumerate(wanted):
        assert torch.allclose(whole(ran, "through lse", number).double(), want, atol=1e-5)


def test_parts_are_merged_in_float32(ran):
    """fp16 parts, rounded once each, and o once more at the end: to the bit what the same merges give here."""
    q, k, v, _ = chapter_13.inputs(*ring_ranks.CASES[2][0], dtype=torch.float16)
    got = whole(ran, "half", 0)
    assert torch.equal(got, whole(ran, "half", 1)) and got.dtype == torch.float16
    reference.assert_accurate(got, reference.attention(q, k, v)[0], reference.naive_attention(q, k, v))


def test_other_ways_to_share_a_sequence(ran):
    heads = 2 * ran[0]
    q, k, v, do = chapter_13.inputs(1, heads, heads, 24, 8)
    truth, _ = reference.attention(q, k, v, True)
    for number in (0, 1):
        assert torch.allclose(whole(ran, "others", number).double(), truth, atol=1e-5)
    for number, want in enumerate((truth, *reference.gradients(q, k, v, do, True)), 2):
        ulysses = torch.cat([part["others"][number] for part in ran[1]], 2)
        assert torch.allclose(ulysses.double(), want, atol=1e-5)


def test_without_gradients_nothing_is_kept(ran):
    assert all(part["nothing kept"] for part in ran[1])


def test_a_second_derivative_is_refused(ran):
    assert all("once differentiable" in part["twice"] for part in ran[1])


def test_two_rings_at_once():
    assert all(processes.run(ring_ranks.pair_of_ranks, 4))


# ---------------------------------------------------------------- who dies, who is late


def test_a_dead_rank_is_named():
    with pytest.raises(processes.RankFailed) as caught:
        processes.run(ring_ranks.one_rank_dies, 4, 1, backend="gloo", timeout=20.0)
    errors = caught.value.errors
    assert errors.pop(1) == "ended without a word, exit code 1"
    assert set(errors) == {0, 2, 3}  # who sees it first ends, and so do its neighbours
    assert all(
        re.search(rf"rank {rank}, forward, step \d of 4, k and v: rank \d (sends|takes) nothing", told) for rank, told in errors.items()
    )


def test_a_late_rank_is_waited_for_no_longer_than_the_timeout():
    start = time.monotonic()
    with pytest.raises(processes.RankFailed) as caught:
        processes.run(ring_ranks.late, 2, 1, 1.0, backend="gloo", timeout=0.3)
    assert set(caught.value.errors) == {0} and "forward, step 0 of 2, k and v: rank 1" in caught.value.errors[0]
    assert time.monotonic() - start < 60


def test_a_process_that_does_not_end_is_ended():
    with pytest.raises(processes.RankFailed, match=r"was still running after 0\.3 s"):
        processes.run(time.sleep, 1, 100.0, limit=0.3)


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("dim", [0, 2, -1])
def test_unshard_puts_together_what_shard_cuts(ranks, dim):
    x = torch.arange(24 * 2 * 24 * 24).reshape(24, 2, 24, 24)
    parts = [ring.shard(x, rank, ranks, dim) for rank in range(ranks)]
    assert {part.shape[dim] for part in parts} == {24 // ranks}
    assert torch.equal(ring.unshard(parts, dim), x)


def test_a_shard_is_two_chunks_in_order():
    positions = torch.arange(16)
    assert [ring.shard(positions, rank, 4, dim=0).tolist() for rank in range(4)] == [
        [0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9],
    ]  # fmt: skip
    assert ring.shard(torch.empty(0), 1, 2, dim=0).shape == ring.unshard([torch.empty(0)] * 2, dim=0).shape == (0,)


@pytest.mark.parametrize(("call", "words"), [
    (lambda: ring.shard(torch.zeros(20), 0, 4, dim=0), "S must be a multiple of 8, got 20"),
    (lambda: ring.shard(torch.zeros(16), 4, 4, dim=0), "rank must be 0 to 3 of 4 ranks, got 4"),
    (lambda: ring.shard(torch.zeros(16), 0, 0, dim=0), "ranks must be at least 1, got 0"),
    (lambda: ring.unshard([torch.zeros(2), torch.zeros(4)], dim=0), r"got [2, 4]"),
    (lambda: ring.unshard([], dim=0), r"got []"),
    (lambda: ring.ring_attention(*[torch.zeros(1, 1, 3, 8)] * 3, is_causal=True), "two chunks: got 3 and 3 rows"),
    (lambda: ring.ring_attention(torch.zeros(1, 3, 4, 8), *[torch.zeros(1, 2, 4, 8)] * 2), "query heads must be a multiple"),
])  # fmt: skip
def test_wrong_arguments_are_told_with_their_numbers(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


# ---------------------------------------------------------------- tiles and work


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_a_tile_has_the_pairs_that_are_seen_and_no_others(ranks):
    S = 6 * ranks
    positions = [ring.shard(torch.arange(S), rank, ranks, dim=0) for rank in range(ranks)]
    for rank in range(ranks):
        for owner in range(ranks):
            rows, keys, causal = ring.visible(rank, owner, S // ranks)
            tile = torch.zeros(S // ranks, S // ranks, dtype=torch.bool)
            tile[rows, keys] = torch.ones_like(tile[rows, keys]).tril() if causal else True
            assert torch.equal(tile, positions[owner] <= positions[rank][:, None])


# ---------------------------------------------------------------- ranks in one process


def test_played_ranks_pass_things_on_and_count_bytes():
    def rank(mine):
        seen = [mine]
        for _ in range(2):
            seen.append((yield seen[-1]))
        return [x.item() for x in seen]

    results, sent = ring.play(rank(torch.tensor(number)) for number in range(3))
    assert results == [[0, 2, 1], [1, 0, 2], [2, 1, 0]]
    assert sent == [16, 16, 16]


def test_played_ranks_send_a_part_to_each_rank_and_keep_their_own():
    def rank(number, rounds=1):
        for _ in range(rounds):
            parts = yield torch.tensor([[10 * number + other] for other in range(3)]).chunk(3)
        parts[0] += 100  # a copy
        return [x.item() for x in parts]

    results, sent = ring.play((rank(number) for number in range(3)), all_to_all=True)
    assert results == [[100 + number, 10 + number, 20 + number] for number in range(3)]
    assert sent == [2 * 8] * 3
    with pytest.raises(RuntimeError, match="rank 0 waits for ever: rank 1 has returned"):
        ring.play((rank(number, rounds) for number, rounds in enumerate((2, 1, 2))), all_to_all=True)


@pytest.mark.parametrize(("S", "D", "dtype"), [(1, 1, torch.float16), (15, 16, torch.bfloat16), (33, 20, torch.float32)])
def test_the_kernel_that_merges_in_place(S, D, dtype):
    """Of a view's rows, for any D, where no key has been seen yet, too; and nothing else is written."""
    draw = torch.Generator().manual_seed(0)
    whole, whole_lse = torch.randn(2, 3, 2 * S, D, generator=draw), 9 * torch.randn(2, 3, 2 * S, generator=draw)
    whole_lse[0, :, -1] = -torch.inf
    part, lse_part = torch.randn(2, S, 3, D, generator=draw).to(dtype).transpose(1, 2), 9 * torch.randn(2, 3, S, generator=draw)
    whole, whole_lse, part, lse_part = (x.to(hardware.device()) for x in (whole, whole_lse, part, lse_part))
    before = whole[:, :, :S].clone(), whole_lse[:, :, :S].clone()
    o, lse = whole[:, :, S:], whole_lse[:, :, S:]
    want = ring.merge(o, lse, part, lse_part)
    ring.merge_into(o, lse, part, lse_part)
    for got, wanted in zip((o, lse, whole[:, :, :S], whole_lse[:, :, :S]), (*want, *before), strict=True):
        assert torch.allclose(got, wanted, rtol=1e-6, atol=1e-6)


def test_messages_on_a_clock_wait_for_one_another_and_for_nothing_else():
    clock = ring.Clock()
    first, second = clock.start(1.0, "a"), clock.start(2.0, "b")
    clock.compute(0.5)
    assert (second.wait(), clock.now, first.wait(), clock.now) == ("b", 3.0, "a", 3.0)
    clock.compute(4.0)
    clock.start(1.0).wait()
    assert (clock.now, clock.sent) == (8.0, 4.0)


@pytest.mark.parametrize("ranks", [2, 3, 7])
@pytest.mark.parametrize(("T_c", "T_s"), [(4.0, 1.75), (4.0, 3.0), (1.0, 3.0)])
def test_the_clock_of_the_tables_is_the_clock_of_the_exercise(ranks, T_c, T_s):
    for own, program in (("first", overlapped_backward), ("last", backward_with_own_tile_last_at_home)):
        want = ring.play_backward(program, ranks, T_c, T_s, 2 * T_s)[1]
        assert chapter_13.on_clock("backward", T_c, T_s, ranks, own=own) == want


# ---------------------------------------------------------------- exercise 13.9 in processes


def texts_of(answers: tuple, words: str = "") -> list[str]:
    """The sources of 13.9's answers that are told `words`."""
    return [source_of(answer.answer()) for exercise_id, answer, *told in answers if exercise_id == "13.9" and words in "".join(told[:1])]


def test_answers_that_are_told_of_a_deadlock_wait_for_ever_over_gloo():
    texts = texts_of(WRONG_ANSWERS, "deadlock") + texts_of(WRONG_ANSWERS, "before it has started to send")
    assert texts
    for text in texts:
        with pytest.raises(processes.RankFailed):
            processes.run(chapter_13.meet, 3, text, backend="gloo", timeout=0.5)


# ---------------------------------------------------------------- the command


def test_the_command_says_that_all_is_right(capsys):
    assert main(["ring", "--ranks", "2", "--seq-len", "32", "--num-heads", "2", "--kv-heads", "1", "--head-dim", "8"]) == 0
    out = capsys.readouterr().out
    assert "rank 1: tokens 8 to 15 and 16 to 23; sent 1,024 bytes forward, 2,048 backward" in out
    assert "as accurate as plain attention" in out
