"""The cycles of warpgroups on one SM: what is counted operation by operation is what chapter 9's formulas say."""

import itertools

import pytest

from fa_tutorial import warpgroups
from fa_tutorial.bench import results
from fa_tutorial.warpgroups import cycles_per_block, timeline


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


def test_two_consumers_fall_into_step_where_an_h200_s_do():
    """By the model and by stamps, exactly one is at a softmax for more than 60 % of the time, or for less."""
    rows = results.select(results.load("h200")["kernels"], kernel="late")
    assert len(rows) == 12
    for _, row in rows.iterrows():
        loop = warpgroups.TWO_STOPS if row["provider"].startswith("two stops") else warpgroups.ONE_STOP
        _, shares = warpgroups.two_consumers(loop, late=int(row["late"]))
        assert (shares[1] > 0.6) == (row["softmax_at_once"][1] > 0.6), row["late"]


def test_any_gap_keeps_two_stops_in_step():
    cycles = {gap: warpgroups.two_consumers(warpgroups.TWO_STOPS, gap)[0] for gap in (0, 1, 100, 500)}
    assert cycles[0] < 1200 and all(cycles[gap] == pytest.approx(1418, abs=1) for gap in (1, 100, 500))
