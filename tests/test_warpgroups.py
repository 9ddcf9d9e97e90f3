"""The cycles of warpgroups on one SM: what is counted operation by operation is what chapter 9's formulas say."""

import itertools

import pytest

from fa_tutorial.warpgroups import cycles_per_block, timeline


@pytest.mark.parametrize("D", [64, 128, 256])
def test_one_warpgroup_takes_the_cycles_of_the_formulas(D):
    assert cycles_per_block(D) == 8 * D + 512  # (9.2)
    assert cycles_per_block(D, overlap=True) == 4 * D + max(4 * D, 512)  # (9.3)


@pytest.mark.parametrize("overlap", [False, True])
def test_two_warpgroups_share_the_units(overlap):
    operations = timeline(64, warpgroups=2, overlap=overlap)
    for kinds in (("s", "o"), ("exp",)):
        spans = sorted((op.start, op.end) for op in operations if op.kind in kinds)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)), "a unit does one thing at a time"
    assert cycles_per_block(64, 2, overlap) >= max(8 * 64, 512)  # (9.3)
