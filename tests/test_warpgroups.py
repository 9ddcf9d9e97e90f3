"""The cycles of warpgroups on one SM: what is counted operation by operation is what chapter 9's formulas say."""

import ast
import itertools

import pytest

from fa_tutorial import warpgroups
from fa_tutorial.bench import chapter_9, results
from fa_tutorial.exercises import catalogue
from fa_tutorial.source import source_of
from fa_tutorial.warpgroups import cycles_per_round, timeline


@pytest.mark.parametrize("D", [64, 128, 256])
def test_one_warpgroup_takes_the_cycles_of_the_formulas(D):
    assert cycles_per_round(D) == 16 * D + 1024  # (9.2)
    assert cycles_per_round(D, overlap=True) == 8 * D + max(8 * D, 1024)  # (9.3)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("warpgroups", [2, 3])
@pytest.mark.parametrize("D", [64, 128, 256])
def test_several_warpgroups_keep_one_unit_busy_and_end_together(D, warpgroups, overlap):
    each = max(8 * D, 512)
    assert cycles_per_round(D, warpgroups, overlap) == 2 * each  # (9.3)
    operations = timeline(D, warpgroups, overlap, blocks=20)
    ends = [max(op.end for op in operations if op.warpgroup == w) for w in range(warpgroups)]
    assert max(ends) - min(ends) <= each * (warpgroups - 1), "none is served last again and again"
    for kinds in (("s", "o"), ("exp",)):
        spans = sorted((op.start, op.end) for op in operations if op.kind in kinds)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)), "a unit does one thing at a time"


def test_the_model_alternates_where_the_gpu_does():
    """By the model and by stamps, exactly one is at a softmax for more than 60 % of the time, or for less."""
    one = chapter_9.loops(results.load("h200"))["one"]
    for name, loop, late in (
        ("two stops", warpgroups.TWO_STOPS, 0),
        ("two stops, consumer 1 late", warpgroups.TWO_STOPS, 1200),
        ("one stop", warpgroups.ONE_STOP, 0),
    ):
        _, shares = warpgroups.two_consumers(loop, late=late)
        assert (shares[1] > 0.6) == (one[name] > 0.6), name
    assert warpgroups.two_consumers(warpgroups.TWO_STOPS, 0)[0] < 2500
    assert all(warpgroups.two_consumers(warpgroups.TWO_STOPS, gap)[0] == pytest.approx(2847, abs=2) for gap in (1, 100, 500))


def test_a_block_of_the_backward_idles_where_the_text_says_so():
    """Line by line at p, ds, the meeting and the store of dq; in the kernel's order at ds; nowhere with s′ behind dp."""
    kernels = catalogue.find("9.9").solution()
    without = [line for line in kernels if line != "issue s′"]
    idle = {}
    for name, order in (("line", chapter_9.LINE_BY_LINE), ("kernel", kernels), ("s′", [without[0], "issue s′", *without[1:]])):
        lanes = chapter_9.lanes_of(order)
        spans = sorted(lanes.matmuls.values())
        assert len(spans) == 5 and all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        idle[name] = lanes.end - 5 * chapter_9.BLOCK_MATMUL
    work = chapter_9.WORK
    assert idle == {"line": work["p"] + work["hand over ds"] + chapter_9.MEETING + work["add dq"], "kernel": work["hand over ds"], "s′": 0}


def test_the_model_takes_its_lengths_from_the_stamps():
    parts = {loop: chapter_9.clocked(results.load("h200"), loop)["cycles"] for loop in ("two stops", "one stop")}
    two, one = parts["two stops"], parts["one stop"]
    assert (two["stop"], two["end"], two["done"]) == (*warpgroups.TWO_STOPS[1:], warpgroups.GAP)
    assert (one["stop"], sum(one.values()) - one["stop"] - one["turn"]) == warpgroups.ONE_STOP[1:]


@pytest.mark.parametrize(("number", "loop"), [("9.3", "two stops"), ("9.4", "half overlapped"), ("9.6", "two stops, by turns")])
def test_the_loops_that_are_measured_are_the_exercises_solutions(number, loop):
    def code(source):
        (function,) = ast.parse(source_of(source)).body
        return ast.unparse(function.args), [ast.unparse(line) for line in function.body[1:]]

    assert code(chapter_9.loop_of(loop)) == code(catalogue.find(number).solution)
