"""The official source's loops in PyTorch."""

import math

import pytest
import torch

from fa_tutorial import reading


def counting(seen):
    """A softmax that puts down each block's scores, and gives every key the same weight."""

    def softmax(s, row_max, row_sum, acc, scale_log2, is_first):
        seen.append(s)
        return torch.ones_like(s), row_max, torch.ones(len(s), 4), acc

    return softmax


@pytest.mark.parametrize(("deleted", "spoilt"), [([], ""), ([305], "k"), ([317], "v"), ([332], "v"), ([305, 332], "kv"), ([338], "")])
def test_a_tile_is_there_only_after_a_fence_and_a_wait(deleted, spoilt):
    seen = []
    o = reading.their_loop(counting(seen), *torch.ones(3, 4, 4), deleted=deleted, masked=0)
    assert seen[0][:, :4].isnan().any() == ("k" in spoilt)
    assert o.isnan().any() == ("v" in spoilt)


def test_without_the_fence_after_k_s_copy_a_product_reads_the_old_k():
    numbers = (torch.arange(48) // 16).float()[:, None].expand(48, 16) + 1
    q, seen = torch.full((32, 16), 1 / 16), []
    reading.their_loop(counting(seen), q, numbers, numbers, deleted=[338], masked=0)
    assert [s[0, [0, 8]].tolist() for s in seen] == [[3, 3], [3, 3], [3, 3], [2, 3], [2, 2], [1, 2]]


@pytest.mark.parametrize("line", [306, 333])
def test_without_a_barrier_a_warp_reads_too_early_and_spoils_a_tile_for_the_other(line):
    """k and v hold the number of their block, so what a product read can be told: each warp copies eight of a tile's rows."""
    numbers = (torch.arange(48) // 16).float()[:, None].expand(48, 16) + 1
    q, seen = torch.full((32, 16), 1 / 16), []
    o = reading.their_loop(counting(seen), q, numbers, numbers, deleted=[line], masked=0)
    k_of = {warp: [s[0, [0, 8]].tolist() for s in blocks] for warp, blocks in (("ahead", seen[::2]), ("behind", seen[1::2]))}
    if line == 306:  # the one ahead multiplies by its own half and what was there before the other's
        assert [half for half, _ in k_of["ahead"]] == [3, 2, 1] and math.isnan(k_of["ahead"][0][1])
        assert [half for _, half in k_of["ahead"][1:]] == [3, 2]
        assert k_of["behind"] == [[3, 3], [2, 2], [1, 1]]
        assert (o[:16] == 8 * 2 * (3 + 2 + 1) / 4).all() and (o[16:] == 8 * ((2 + 3) + (1 + 2) + (1 + 1)) / 4).all()
    else:  # the one ahead has overwritten half of the k that the other multiplies by
        assert k_of["ahead"] == [[3, 3], [2, 2], [1, 1]] and k_of["behind"] == [[2, 3], [1, 2], [1, 1]]
        assert o[:16].isnan().all() and (o[16:] == 8 * 2 * (3 + 2 + 1) / 4).all()


@pytest.mark.parametrize(
    ("call", "running", "clash"),
    [
        ("mask_fn", ["gemm q kᵀ", "gemm p v"], "changes s, which gemm q kᵀ may still write"),
        ("max_get_scale", ["gemm q kᵀ"], "reads s, which gemm q kᵀ may still write"),
        ("online_softmax", ["gemm p v"], ""),
        ("convert_type_out", ["gemm p v"], "changes p, which gemm p v may still read"),
        ("release v", ["gemm p v"], "changes v, which gemm p v may still read"),
    ],
)
def test_a_call_meets_what_a_matmul_under_way_reads_or_writes(call, running, clash):
    assert reading.under_way([*running, call])[-1] == (call, running, clash)
    assert reading.worst_case([*running, call]).splitlines()[-1].endswith(f"✗ {clash}" if clash else running[-1].removeprefix("gemm "))


@pytest.mark.parametrize(("number", "left"), [(0, []), (1, ["gemm p v"]), (9, ["gemm q kᵀ", "gemm p v"])])
def test_matmuls_end_in_the_order_in_which_they_were_issued(number, left):
    assert reading.under_way([*reading.MATMULS, f"warpgroup_wait<{number}>", "release k"])[-1][1] == left
