"""The cycles of warpgroups on one SM: what is counted operation by operation is what chapter 9's formulas say."""

import ast
import itertools

import pytest

from fa_tutorial import warpgroups
from fa_tutorial.bench import chapter_9, results
from fa_tutorial.exercises import catalogue
from fa_tutorial.source import source_of
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


def test_the_model_alternates_where_the_gpu_does():
    """By the model and by stamps, exactly one is at a softmax for more than 60 % of the time, or for less."""
    one = chapter_9.remedies(results.load("h200"), 128)["one"]
    for name, loop, late in (
        ("9.3", warpgroups.TWO_STOPS, 0),
        ("9.3, consumer 1 late", warpgroups.TWO_STOPS, 1200),
        ("9.4, one wait", warpgroups.ONE_STOP, 0),
    ):
        _, shares = warpgroups.two_consumers(loop, late=late)
        assert (shares[1] > 0.6) == (one[name] > 0.6), name


def test_any_gap_keeps_two_stops_in_step():
    cycles = {gap: warpgroups.two_consumers(warpgroups.TWO_STOPS, gap)[0] for gap in (0, 1, 100, 500)}
    assert cycles[0] < 1250 and all(cycles[gap] == pytest.approx(1423.5, abs=1) for gap in (1, 100, 500))


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


def test_chapter_8s_programs_meet_by_chance_and_one_stop_alternates():
    shares = {}
    for loop in ("chapter 8's", "9.4, one wait"):
        row = chapter_9.clocked(results.load("h200"), loop, 128)
        softmax = row["cycles"]["stop"] / sum(row["cycles"].values())
        shares[loop] = row["softmax_at_once"][1], 2 * softmax * (1 - softmax)
    (met, chance), (alternating, other) = shares.values()
    assert met - chance < 0.06 and alternating - other > 0.2


def test_the_model_takes_its_lengths_from_the_stamps():
    parts = {loop: chapter_9.clocked(results.load("h200"), loop, 128)["cycles"] for loop in ("9.3", "9.4, one wait")}
    two, one = parts["9.3"], parts["9.4, one wait"]
    assert (two["stop"], two["end"], two["done"]) == (*warpgroups.TWO_STOPS[1:], warpgroups.GAP)
    assert (one["stop"], sum(one.values()) - one["stop"] - one["turn"]) == warpgroups.ONE_STOP[1:]


def test_the_parts_of_a_block_fill_it():
    for loop in chapter_9.LOOPS:
        row = chapter_9.clocked(results.load("h200"), loop, 128)
        parts = chapter_9.mean_parts(row)
        assert sum(cycles for _, cycles in parts) == sum(row["cycles"].values()), loop
        assert [part for part, _ in parts].count("matmul") == (2 if loop == "9.3" else 1)


def test_gluon_makes_chapter_8s_programs_alternate_with_a_producer_or_without():
    one = chapter_9.remedies(results.load("h200"), 128)["one"]
    assert one["chapter 8's"] < 0.6 and one["chapter 8's, 64 x 64"] < 0.6 < 0.7 < min(one["two programs in Gluon"], one["two programs"])


def test_9_4_as_it_is_written_is_the_fastest_loop_and_as_fast_as_the_finished_one():
    cycles = chapter_9.remedies(results.load("h200"), 128)["cycles"]
    assert cycles["9.4"] < min(cycles[name] for name in ("9.3", "9.4, one wait", "9.4, second step", "9.6"))
    assert cycles["9.4"] == pytest.approx(cycles["finished loop"], rel=0.002)


@pytest.mark.parametrize(("number", "loop"), [("9.3", "9.3"), ("9.4", "9.4"), ("9.6", "9.6")])
def test_the_loops_that_are_measured_are_the_exercises_solutions(number, loop):
    def code(source):
        (function,) = ast.parse(source_of(source)).body
        return ast.unparse(function.args), [ast.unparse(line) for line in function.body[1:]]

    assert code(chapter_9.loop_of(loop)) == code(catalogue.find(number).solution)


def test_the_account_of_chapter_8s_cycles_adds_up(capsys):
    card = results.load("h200")
    bars = chapter_9.account(card)
    assert all(bar.cycles == before.cycles + bar.change for before, bar in itertools.pairwise(bars))
    chapter_9.print_account(card)
    numbers = [line[46:].replace(",", "").replace("−", "-").split() for line in capsys.readouterr().out.splitlines()[1:-1]]
    before, *suspects, after, matmuls, unequal, rest = (int(cycles) for cycles, *_ in numbers)
    assert (before, after) == (bars[0].cycles, bars[-1].cycles)
    assert before + sum(suspects) == after == matmuls + unequal + rest
    first, *changes, last = (float(ms) for _, *times in numbers for ms in times)
    assert first + sum(changes) == pytest.approx(last, abs=0.003)


def test_a_longer_block_saves_what_the_stamps_say(capsys):
    """Of two consumers each is away from its matmuls for less: half of that is what a block of the account takes less."""
    card = results.load("h200")
    chapter_9.print_keys(card)
    away = [int(line.split()[-1].replace(",", "")) for line in capsys.readouterr().out.splitlines()[1:3]]
    saved = next(-bar.change for bar in chapter_9.account(card) if bar.name == "9.4, one wait")
    assert (away[0] - away[1]) / 2 == pytest.approx(saved, rel=0.1)


@pytest.mark.parametrize("kernel", ["hopper", "hopper backward"])
def test_the_stamps_of_a_finished_kernel_are_as_many_as_its_parts(kernel):
    row = results.select(results.load("h200")["kernels"], kernel="clocked", provider=kernel).iloc[0]
    assert len(row["cycles"]) == len(chapter_9.FINISHED[kernel]) == len(row["stamps"][0][0])
