"""The cycles of warpgroups on one SM: what is counted operation by operation is what chapter 9's formulas say."""

import itertools

import pytest

from fa_tutorial.warpgroups import SEAM, cycles_per_block, cycles_together, timeline, together


@pytest.mark.parametrize("D", [64, 128, 256])
def test_one_warpgroup_takes_the_cycles_of_the_formulas(D):
    assert cycles_per_block(D) == 8 * D + 512  # (9.2)
    assert cycles_per_block(D, overlap=True) == 4 * D + max(4 * D, 512)  # (9.3)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("warpgroups", [2, 3])
@pytest.mark.parametrize("D", [64, 128, 256])
def test_several_warpgroups_keep_one_unit_busy_and_end_together(D, warpgroups, overlap):
    each = max(8 * D, 512)
    assert cycles_per_block(D, warpgroups, overlap) == each  # (9.3)
    operations = timeline(D, warpgroups, overlap, blocks=20)
    ends = [max(op.end for op in operations if op.warpgroup == w) for w in range(warpgroups)]
    assert max(ends) - min(ends) <= each * (warpgroups - 1), "none is served last again and again"


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("D", [64, 128])
def test_a_unit_does_one_thing_at_a_time(D, overlap):
    operations = timeline(D, warpgroups=2, overlap=overlap)
    for kinds in (("s", "o"), ("exp",)):
        spans = sorted((op.start, op.end) for op in operations if op.kind in kinds)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)), "a unit does one thing at a time"


@pytest.mark.parametrize("D", [64, 128])
def test_only_a_consumer_that_stops_twice_lets_the_others_matmul_in_between(D):
    away = 1600
    for apart in (0, 100, 800, 1600):
        assert cycles_together(D, away, 1, apart) == 8 * D + away
    assert cycles_together(D, away, 2, 800) == 8 * D + SEAM + away
    assert cycles_together(D, away, 2, 0) == 12 * D + away  # the other's matmul fills the seam


@pytest.mark.parametrize("stops", [1, 2])
@pytest.mark.parametrize("apart", [0, 600])
def test_two_consumers_share_the_tensor_cores_and_keep_their_order(stops, apart):
    operations = together(128, 1600, stops, apart, blocks=6)
    assert all(before.end <= after.start for before, after in itertools.pairwise(operations))
    for consumer in (0, 1):
        mine = [(op.block, op.kind) for op in operations if op.warpgroup == consumer]
        assert mine == [(block, kind) for block in range(7) for kind in "os"][: len(mine)]
