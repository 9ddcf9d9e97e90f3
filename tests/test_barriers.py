"""The simulator of mbarriers: phases and parities, the clock, deadlocks, races, and that it needs neither torch nor Triton."""

import ast
from pathlib import Path

import pytest

from fa_tutorial import barriers
from fa_tutorial.barriers import Barrier, Deadlock, TooManyActions, arrive, draw, ds_rows, load, races, ring, run, use, wait, work, write


def test_fresh_barrier_passes_parity_1_alone():
    barrier = Barrier(1)
    assert barrier.phase == 0 and barrier.test_wait(1) and not barrier.test_wait(0)


def test_phase_flips_with_the_last_arrival():
    barrier = Barrier(2, "empty[0]")
    barrier.arrive()
    assert repr(barrier) == "empty[0]: phase 0, 1 of 2 arrivals" and not barrier.test_wait(0)
    barrier.arrive()
    assert repr(barrier) == "empty[0]: phase 1, 0 of 2 arrivals"
    assert barrier.test_wait(0) and not barrier.test_wait(1)


def test_parity_cannot_tell_phases_two_apart():
    barrier = Barrier(1)
    for _ in range(2):
        barrier.arrive()
    assert not barrier.test_wait(0) and barrier.test_wait(1), "phase 0 is long complete, but parity 0 now means phase 2"


@pytest.mark.parametrize("call", [lambda: Barrier(0), lambda: ring(0), lambda: ring(2, 0), lambda: load(0, 0, 0), lambda: work("s", -1)])
def test_sizes_below_1(call):
    with pytest.raises(ValueError, match="must be at least 1"):
        call()


@pytest.mark.parametrize("call", [lambda: wait(Barrier(1), 2), lambda: Barrier(1).test_wait(-1)])
def test_parity_is_a_bit(call):
    with pytest.raises(ValueError, match="a parity is 0 or 1"):
        call()


def test_two_stages():
    timeline = barriers.ring_timeline(2, 3, loads=[1])
    assert [str(event) for event in timeline if event.action.units or event.start < event.end] == [
        "  0 to 1   producer: load tile 0 into stage 0",
        "  0 to 1   consumer: wait for full[0], parity 0",
        "  1 to 2   producer: load tile 1 into stage 1",
        "  1 to 3   consumer: use tile 0 in stage 0",
        "  2 to 3   producer: wait for empty[0], parity 0",
        "  3 to 4   producer: load tile 2 into stage 0",
        "  3 to 5   consumer: use tile 1 in stage 1",
        "  5 to 7   consumer: use tile 2 in stage 0",
    ]
    assert draw(timeline) == "producer |01.2   |\nconsumer |.001122|"
    assert races(timeline) == []


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("tiles", [0, 1, 2, 3, 9])
@pytest.mark.parametrize("consumers", [1, 2])
def test_a_right_protocol_ends_without_races(tiles, stages, consumers):
    timeline = barriers.ring_timeline(stages, tiles, loads=[1], uses=[2] * consumers)
    assert races(timeline) == []
    assert sum(event.action.kind == "use" for event in timeline) == tiles * consumers
    first = [event.end for event in timeline if event.action.kind == "load"][:stages]
    assert first == list(range(1, len(first) + 1)), "the first round waits for nobody"


def test_deadlock_names_who_waits_for_what():
    full, empty = ring(2)

    def stuck():
        yield wait(empty[0], 0)

    with pytest.raises(Deadlock) as caught:
        run({"producer": stuck(), "consumer": barriers.ring_consumer(1, full, empty), "other": iter([work("s", 3)])})
    assert str(caught.value) == (
        "deadlock at time 3: producer waits for phase 0 of empty[0] (parity 0), which has 0 of 1 arrivals; "
        "consumer waits for phase 0 of full[0] (parity 0), which has 0 of 1 arrivals"
    )
    assert [event.role for event in caught.value.waiting] == ["producer", "consumer"]
    assert draw(caught.value.timeline) == "producer |...|\nconsumer |...|\nother    |~~~|"


def test_a_wait_passes_when_its_phase_ends_even_if_the_next_ends_at_once():
    barrier = Barrier(1)
    timeline = run({"waiter": iter([wait(barrier, 0), work("s")]), "other": iter([work("s"), arrive(barrier), arrive(barrier)])})
    assert [(event.start, event.end) for event in timeline if event.role == "waiter"] == [(0, 1), (1, 2)]


def test_a_role_without_end():
    def endless():
        while True:
            yield work("s")

    with pytest.raises(TooManyActions, match="no end after 50 actions"):
        run({"endless": endless()}, max_actions=50)


def test_what_is_no_action():
    with pytest.raises(TypeError, match="producer yields 3, want wait"):
        run({"producer": iter([3])})


@pytest.mark.parametrize(("stages", "loads", "uses"), [(1, (2,), (2,)), (2, (1, 1, 4), (2,)), (3, (1, 1, 4), (2, 3)), (4, (1,), (3, 1))])
def test_ring_timeline_is_as_early_as_the_ring_allows(stages, loads, uses):
    timeline = barriers.ring_timeline(stages, 9, loads, uses)
    assert races(timeline) == []
    load_ends, use_ends = [0], [[0] * len(uses)]  # by (9.6), each after a 0 for what comes before tile 0
    for i in range(9):
        free = max(use_ends[i - stages + 1]) if i >= stages else 0
        load_ends.append(max(load_ends[-1], free) + loads[i % len(loads)])
        use_ends.append([max(end, load_ends[-1]) + units for end, units in zip(use_ends[-1], uses, strict=True)])
    assert barriers.last_end(timeline) == max(use_ends[-1])


def test_a_producer_that_does_not_wait_overwrites():
    full, empty = ring(1)
    careless = (action for action in barriers.ring_producer(2, full, empty) if action.kind != "wait")
    timeline = run({"producer": careless, "consumer": (a for a in barriers.ring_consumer(2, full, empty) if a.kind != "wait")})
    assert races(timeline) == [
        "time 0: consumer uses tile 0 in stage 0, which holds nothing",
        "time 0: producer loads tile 0 into stage 0, where consumer uses tile 0 until 2",
        "time 1: producer loads tile 1 into stage 0, where consumer uses tile 0 until 2",
    ]


def test_what_is_written_too_early_is_called_a_write():
    timeline = run({"consumer 0": iter([write(0, ds_rows(0, 0), 3)]), "consumer 1": iter([use(0, ds_rows(0, 0))])})
    assert "time 0: consumer 0 writes tile 0 into stage ds[0], rows of consumer 0, where consumer 1 uses tile 0 until 2" in races(timeline)


def test_a_tile_that_was_overwritten_before():
    timeline = run({"producer": iter([load(0, 0), load(1, 0)]), "consumer": iter([work("s", 2), use(0, 0)])})
    assert races(timeline) == ["time 2: consumer uses tile 0 in stage 0, which holds tile 1"]


def test_a_stage_may_have_a_name():
    timeline = run({"consumer 0": iter([load(0, ds_rows(0, 0))]), "consumer 1": iter([use(0, 0), use(0, ds_rows(0, 0))])})
    assert races(timeline) == ["time 0: consumer 1 uses tile 0 in stage 0, which holds nothing"]


def test_imports_neither_torch_nor_triton():
    tree = ast.parse(Path(barriers.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules == {"__future__", "collections.abc", "dataclasses", "typing"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
