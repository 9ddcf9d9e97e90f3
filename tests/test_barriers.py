"""The simulator of mbarriers: phases and parities, the clock, deadlocks, races, and that it needs neither torch nor Triton."""

import pytest

from fa_tutorial import barriers
from fa_tutorial.barriers import Barrier, Deadlock, TooManyActions, draw, ds_rows, load, races, ring, run, use, wait, work, write


def test_a_phase_ends_with_the_last_arrival_and_a_fresh_barrier_passes_parity_1_alone():
    barrier = Barrier(2, "empty[0]")
    assert barrier.test_wait(1) and not barrier.test_wait(0)
    barrier.arrive()
    assert repr(barrier) == "empty[0]: phase 0, 1 of 2 arrivals" and not barrier.test_wait(0)
    barrier.arrive()
    assert barrier.test_wait(0) and not barrier.test_wait(1)


def test_parity_cannot_tell_phases_two_apart():
    barrier = Barrier(1)
    for _ in range(2):
        barrier.arrive()
    assert not barrier.test_wait(0) and barrier.test_wait(1), "phase 0 is long complete, but parity 0 now means phase 2"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Barrier(0), "must be at least 1"),
        (lambda: ring(2, 0), "must be at least 1"),
        (lambda: work("s", -1), "must be at least 1"),
        (lambda: wait(Barrier(1), 2), "a parity is 0 or 1"),
    ],
)
def test_sizes_and_parities_are_checked(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize(
    ("stages", "tiles", "loads", "uses"), [(1, 9, (2,), (2,)), (2, 9, (1, 1, 4), (2,)), (3, 9, (1, 1, 4), (2, 3)), (4, 2, (1,), (3, 1))]
)
def test_a_right_ring_is_as_early_as_its_stages_allow_and_has_no_races(stages, tiles, loads, uses):
    full, empty = ring(stages, len(uses))
    consumers = {f"consumer {c}": barriers.ring_consumer(tiles, full, empty, units) for c, units in enumerate(uses)}
    timeline = run({"producer": barriers.ring_producer(tiles, full, empty, loads)} | consumers)
    assert races(timeline) == []
    load_ends, use_ends = [0], [[0] * len(uses)]  # by (9.6), each after a 0 for what comes before tile 0
    for i in range(tiles):
        free = max(use_ends[i - stages + 1]) if i >= stages else 0
        load_ends.append(max(load_ends[-1], free) + loads[i % len(loads)])
        use_ends.append([max(end, load_ends[-1]) + units for end, units in zip(use_ends[-1], uses, strict=True)])
    assert [event.end for event in timeline if event.action.kind == "load"] == load_ends[1:]
    assert max(event.end for event in timeline) == max(use_ends[-1])


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


def test_a_role_without_end():
    def endless():
        while True:
            yield work("s")

    with pytest.raises(TooManyActions, match="no end after 50 actions"):
        run({"endless": endless()}, max_actions=50)


def test_a_producer_that_does_not_wait_overwrites():
    full, empty = ring(1)
    careless = (action for action in barriers.ring_producer(2, full, empty) if action.kind != "wait")
    timeline = run({"producer": careless, "consumer": (a for a in barriers.ring_consumer(2, full, empty) if a.kind != "wait")})
    assert races(timeline) == [
        "time 0: consumer uses tile 0 in stage 0, which holds nothing",
        "time 0: producer loads tile 0 into stage 0, where consumer uses tile 0 until 2",
        "time 1: producer loads tile 1 into stage 0, where consumer uses tile 0 until 2",
    ]
    late = run({"producer": iter([load(0, 0), load(1, 0)]), "consumer": iter([work("s", 2), use(0, 0)])})
    assert races(late) == ["time 2: consumer uses tile 0 in stage 0, which holds tile 1"]
    early = run({"consumer 0": iter([write(0, ds_rows(0, 0), 3)]), "consumer 1": iter([use(0, ds_rows(0, 0))])})
    assert "time 0: consumer 0 writes tile 0 into stage ds[0], rows of consumer 0, where consumer 1 uses tile 0 until 2" in races(early)
