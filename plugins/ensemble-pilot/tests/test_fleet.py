"""Tests of the fleet: placement, and when pilots are requested and given back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from ensemble_pilot.demand import FAILURES, Demand
from ensemble_pilot.fleet import TRANSITIONS, Fleet, Kind, Pilot
from ensemble_pilot.grow_and_shrink import Resizes
from ensemble_pilot.pilot import share
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ensemble_core import Job, WhenBusy


def job(number: int, **fields: object) -> Job:
    return Job(id=f"t.{number}", group="t", index=number, command=("true",), **fields)  # type: ignore[arg-type]


def only(fleet: Fleet) -> Demand:
    """Return the demand for the only kind of pilot."""
    (demand,) = fleet.demands.values()
    return demand


def fleet_with(*cores: int, kind: Kind | None = None, ends: float | None = None) -> Fleet:
    """Return a fleet with one ready pilot of one node for each number of cores."""
    fleet = Fleet(kind or Kind(cores=max(cores, default=4), most=10))
    for number, size in enumerate(cores, 1):
        pilot = fleet.add_pilot(number, only(fleet).kind, 0.0)
        pilot.ends = ends
        pilot.to("starting")  # how long it has waited is not known
        assert fleet.connect(pilot.nodes[0], size, 0, 1 << 30, 0.0)
    return fleet


def placed(fleet: Fleet, now: float = 1.0, **options: int) -> dict[str, int]:
    return {each.id: node.pilot.number for each, node in fleet.place(now, **options)}


def test_jobs_fill_nodes_by_urgency_then_in_order_of_submission() -> None:
    fleet = fleet_with(1, 2)
    for number, urgency in enumerate((16, 16, 31, 16, 0)):
        fleet.add(job(number, urgency=urgency), number)
    assert placed(fleet) == {"t.2": 1, "t.0": 2, "t.1": 2}
    assert fleet.waiting == 1  # the job with urgency 0 is held
    fleet.release("t.2", 2.0)
    assert placed(fleet) == {"t.3": 1}
    assert placed(fleet) == {}


def test_job_is_not_placed_where_its_time_limit_does_not_fit() -> None:
    kind = Kind(cores=4, duration=100.0, margin=10.0)
    fleet = fleet_with(4, kind=kind, ends=100.0)
    fleet.add(job(0, duration=50.0), 0)
    fleet.add(job(1, duration=20.0), 1)
    fleet.add(job(2), 2)
    assert placed(fleet, 60.0) == {"t.1": 1, "t.2": 1}
    fleet.add(job(3), 3)
    assert placed(fleet, 95.0) == {}, "no job starts within the half of the margin for the end"


def test_job_that_takes_all_the_time_of_a_pilot_fits_although_pilots_need_time_to_start() -> None:
    """Without that, each new pilot would be ready too late for it, and another be requested."""
    kind = Kind(cores=1, most=9, duration=100.0, margin=10.0)
    fleet = Fleet(kind)
    fleet.add(job(0, duration=90.0), 0)
    assert kind.never(job(0, duration=90.0)) is None
    pilot = fleet.add_pilot(1, only(fleet).kind, 0.0)
    pilot.ends = 100.0
    fleet.connect(pilot.nodes[0], 1, 0, None, 4.9)
    assert placed(fleet, 4.9) == {"t.0": 1}


def test_job_for_which_pilots_start_too_slowly_is_ended_with_the_numbers() -> None:
    """Pilots are not requested for it again and again."""
    fleet = Fleet(Kind(cores=1, most=9, duration=100.0, margin=10.0))
    fleet.add(job(0, duration=90.0), 0)
    fleet.add(job(1, duration=80.0, urgency=0), 1)
    for number in range(1, FAILURES + 1):
        assert fleet.impossible() == []
        pilot = fleet.add_pilot(number, only(fleet).kind, 0.0)
        pilot.ends = 100.0
        fleet.connect(pilot.nodes[0], 1, 0, None, 10.0 - number)
        assert placed(fleet, 10.0) == {}
    ((found, why),) = fleet.impossible()
    assert found.id == "t.0"
    assert "90 s" in why
    assert "88 s" in why
    assert fleet.never(job(2, duration=89.0)) is not None
    assert fleet.never(job(2, duration=88.0)) is None


def test_small_jobs_may_overtake_a_large_one_only_in_limited_number() -> None:
    fleet = fleet_with(4)
    fleet.add(job(0), 0)
    assert placed(fleet) == {"t.0": 1}
    fleet.add(job(1, cores_per_task=4), 1)
    for number in range(2, 200):
        fleet.add(job(number), number)
    running, overtook = ["t.0"], 0
    while running:
        new = list(placed(fleet))
        if "t.1" in new:
            break
        overtook += len(new)
        running += new
        fleet.release(running.pop(0), 1.0)
    assert placed(fleet) | {"t.1": 1} == {"t.1": 1}
    assert fleet.placed.keys() == {"t.1"}
    assert 0 < overtook <= 8 + 4


def test_waiting_jobs_are_handed_over_when_the_controller_leaves() -> None:
    fleet = fleet_with(1, 3)
    for number in range(41):
        fleet.add(job(number, cores_per_task=1 + number % 2), number)
    bound = fleet.hand_over(1.0)
    assert len(bound) == 21 + 20
    held = [sum(each.cores for each, node in bound if node.pilot.number == n) for n in (1, 2)]
    assert held[0] < held[1]
    assert all(node.cores >= each.cores for each, node in bound)
    assert Fleet(Kind()).hand_over(1.0) == []


def short_jobs(waiting: int, lasting: float = 0.01) -> Fleet:
    """Return a fleet of one node of four cores, which is full, after 40 jobs that were short."""
    fleet = fleet_with(4)
    for number in range(44 + waiting):
        fleet.add(job(number), number)
    for number in range(0, 40, 4):
        for name in placed(fleet, float(number)):
            fleet.started(name, float(number))
            fleet.release(name, number + 1.0, number + lasting)
    assert len(placed(fleet, 40.0)) == 4
    return fleet


def prefetched(fleet: Fleet, now: float = 41.0) -> list[str]:
    return [each.id for each, _ in fleet.prefetch(now)]


def test_a_full_node_gets_one_short_job_ahead_for_each_core_in_order() -> None:
    fleet = short_jobs(20)
    assert prefetched(fleet) == ["t.44", "t.45", "t.46", "t.47"]
    assert prefetched(fleet) == []
    fleet.release("t.40", 42.0)
    assert prefetched(fleet) == [], "it waits until half of them have begun: fewer messages"
    fleet.release("t.41", 42.0)
    assert prefetched(fleet) == ["t.48", "t.49"]
    fleet.drain(fleet.pilots[1], "ended")
    fleet.pilots[1].to("fenced")
    for name in list(fleet.placed):
        fleet.give_back(name, 43.0)
    assert fleet.waiting == 22, "they are still in no pilot that is over"


def test_no_job_is_sent_ahead_if_it_could_wait_there_for_long() -> None:
    assert prefetched(short_jobs(20, lasting=0.5)) == [], "its jobs are not short"
    assert prefetched(short_jobs(4)) == [], "other nodes may be free for the few jobs that wait"
    fleet = short_jobs(20)
    fleet.add(job(99, tasks=2), 99)
    assert prefetched(fleet) == [], "a larger job would wait for smaller ones"
    fleet.remove("t.99")
    fleet.leave(fleet.pilots[1], forced=False)
    assert prefetched(fleet) == [], "the pilot leaves"


def test_after_a_long_job_the_jobs_of_its_group_count_as_short_only_much_later() -> None:
    fleet = short_jobs(20)
    fleet.started("t.40", 40.0)
    fleet.release("t.40", 50.0)
    assert placed(fleet, 50.0) == {"t.44": 1}
    assert prefetched(fleet, 50.0) == []


def test_job_that_waits_on_a_full_node_for_long_is_recalled_and_placed_in_order() -> None:
    fleet = short_jobs(20)
    assert prefetched(fleet) == ["t.44", "t.45", "t.46", "t.47"]
    fleet.release("t.40", 41.1)
    fleet.started("t.44", 41.1)
    assert fleet.take_late(41.4) == {}
    assert fleet.wake_time(41.4) == 41.5
    assert fleet.take_late(41.5) == {fleet.placed["t.45"]: ["t.45", "t.46", "t.47"]}
    assert fleet.take_late(99.0) == {}, "each is recalled once"
    with pytest.raises(ValueError, match="has started"):
        fleet.recalled("t.44", 41.6)
    for name in ("t.46", "t.45"):  # the node has started t.47 meanwhile
        fleet.recalled(name, 41.6)
    fleet.release("t.47", 41.7)
    assert prefetched(fleet) == [], "the jobs of its group are not short any more"
    fleet.release("t.41", 41.8)
    assert placed(fleet, 41.8) == {"t.45": 1}


def test_jobs_that_a_leaving_controller_has_handed_over_are_recalled_after_the_resume() -> None:
    fleet = fleet_with(1)
    for number in range(3):
        fleet.add(job(number), number)
    assert len(fleet.hand_over(1.0)) == 3
    node = fleet.pilots[1].nodes[0]
    fleet.disconnect(node)
    fleet.started("t.0", 1.0)
    fleet.connect(node, 1, 0, None, 2.0)
    assert {name for names in fleet.take_late(2.5).values() for name in names} == {"t.1", "t.2"}


def test_decisions_about_pilots_are_made_less_often_if_there_are_many() -> None:
    """Each of them looks at every pilot."""
    pauses = [fleet_with(*[1] * count).pause for count in (0, 1, 40, 400)]
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] == pauses[1] < pauses[2] < pauses[3]


def test_pilots_follow_waiting_jobs_up_to_the_limits() -> None:
    fleet = Fleet(Kind(nodes=2, cores=4, most=3, backlog=2))
    assert len(fleet.requests(0.0)) == 0
    fleet.add(job(0, urgency=0), 0)
    assert len(fleet.requests(0.0)) == 0, "a held job needs no pilot"
    for number in range(1, 10):
        fleet.add(job(number), number)
    assert len(fleet.requests(0.0)) == 2  # 9 jobs, 8 for each pilot
    fleet.add_pilot(1, only(fleet).kind, 0.0)
    fleet.add_pilot(2, only(fleet).kind, 0.0)
    for number in range(10, 100):
        fleet.add(job(number), number)
    assert len(fleet.requests(0.0)) == 0, "two wait in the queue"
    fleet.pilots[1].to("starting")
    assert len(fleet.requests(0.0)) == 1
    fleet.add_pilot(3, only(fleet).kind, 0.0)
    fleet.pilots[2].to("starting")
    assert len(fleet.requests(0.0)) == 0, "there are three"


def waiting_jobs(fleet: Fleet, count: int, **fields: object) -> None:
    for number in range(1000, 1000 + count):
        fleet.add(job(number, **fields), number)


def test_another_pilot_is_requested_only_for_work_that_lasts_longer_than_the_queues_wait() -> None:
    fleet = fleet_with(1, kind=Kind(cores=1, most=9, backlog=9, patience=600.0))
    waiting_jobs(fleet, 11, duration=60.0)
    assert len(placed(fleet, 0.0)) == 1
    assert len(fleet.requests(0.0)) == 0, (
        "the pilot is through with ten jobs before another is ready"
    )
    for number in range(15):
        fleet.add(job(number, duration=60.0), number)
    assert len(fleet.requests(0.0)) == 8, "25 jobs, of which 10 are done in 600 s; at most 9 pilots"
    assert Fleet(only(fleet).kind).requests(0.0) == []


def test_nodes_that_are_not_connected_do_no_work() -> None:
    fleet = fleet_with(1, kind=Kind(cores=1, most=9, backlog=9, patience=600.0))
    waiting_jobs(fleet, 1, duration=60.0)
    fleet.disconnect(fleet.pilots[1].nodes[0])
    assert placed(fleet, 0.0) == {}
    assert len(fleet.requests(0.0)) == 1, "the job would wait until the node is back"


def test_run_times_that_were_seen_count_more_than_time_limits() -> None:
    fleet = fleet_with(1, kind=Kind(cores=1, most=9, backlog=9, patience=100.0))
    waiting_jobs(fleet, 11, duration=60.0)
    (first,) = placed(fleet, 0.0)
    assert len(fleet.requests(0.0)) == 8, "10 jobs of at most 60 s, of which less than 2 are done"
    fleet.started(first, 0.0)
    fleet.release(first, 25.0, 20.0)
    placed(fleet, 20.0)
    assert len(fleet.requests(20.0)) == 4, "9 jobs of 20 s, of which 5 are done in 100 s"


def test_jobs_of_unknown_length_ask_for_pilots_at_once() -> None:
    fleet = fleet_with(1, kind=Kind(cores=1, most=9, backlog=9, patience=1e6))
    waiting_jobs(fleet, 4)
    placed(fleet, 0.0)
    assert len(fleet.requests(0.0)) == 3


def test_usual_wait_is_the_mean_of_the_last_pilots() -> None:
    fleet = Fleet(Kind(most=9, patience=7.0))
    assert only(fleet).usual_wait == 7.0
    for number, wait in enumerate((1000.0, 10.0, 20.0, 30.0, 40.0, 50.0), 1):
        fleet.begin(fleet.add_pilot(number, only(fleet).kind, 100.0), 100.0 + wait)
    assert only(fleet).usual_wait == 30.0
    fleet.connect(fleet.add_pilot(7, only(fleet).kind, 0.0).nodes[0], 1, 0, None, 60.0)
    assert only(fleet).usual_wait == 40.0, (
        "also if its nodes connect before the queue reports its start"
    )


def test_a_job_that_needs_more_time_than_all_pilots_have_left_gets_a_new_one() -> None:
    kind = Kind(cores=1, most=9, duration=1000.0, margin=0.0, patience=600.0)
    fleet = fleet_with(1, 1, kind=kind, ends=1000.0)
    waiting_jobs(fleet, 2, duration=500.0)
    placed(fleet, 0.0)
    fleet.add(job(1, duration=500.0), 1)
    assert len(fleet.requests(0.0)) == 0
    assert fleet.wake_time(0.0) == 30.0, "pilots have less and less time left"
    assert len(fleet.requests(501.0)) == 1


def test_no_pilot_is_requested_for_idle_after_one_was_given_back_unless_none_is_left() -> None:
    fleet = fleet_with(1, 1, kind=Kind(cores=1, most=4, idle=30.0, patience=0.0))
    waiting_jobs(fleet, 1)
    placed(fleet, 0.0)
    (surplus,) = fleet.surplus(30.0)
    fleet.drain(surplus)
    only(fleet).rest(30.0)
    fleet.add(job(1), 1)
    assert len(fleet.requests(59.0)) == 0
    assert fleet.wake_time(59.0) == 60.0
    assert len(fleet.requests(60.0)) == 1
    fleet.drain(fleet.pilots[1], "ended")
    only(fleet).rest(70.0)
    assert len(fleet.requests(70.0)) == 1, "without a pilot, the job would only wait"


def test_core_hours_of_jobs_are_counted_once_also_after_a_resume() -> None:
    fleet = fleet_with(4)
    pilot = fleet.pilots[1]
    pilot.began = 0.0
    for number in range(2):
        fleet.add(job(number, cores_per_task=2), number)
    placed(fleet)
    fleet.started("t.0", 10.0)
    fleet.started("t.0", 12.0)
    assert pilot.used_until(40.0) == 60.0
    fleet.release("t.0", 60.0, 50.0)
    assert pilot.used_until(60.0) == 80.0
    fleet.release("t.1", 61.0)
    assert pilot.used_until(100.0) == 80.0, "it has never started"
    gauges = fleet.gauges(3600.0)
    assert (gauges["pilots.core_hours"], gauges["pilots.used_core_hours"]) == (4.0, 80 / 3600)
    again = fleet_with(4)
    later = again.pilots[1]
    later.used, later.counted = 60.0, 40.0  # at 40 s, an earlier controller has written this
    again.add(job(0, cores_per_task=2), 0)
    placed(again)
    again.started("t.0", 10.0)
    assert later.used_until(45.0) == 70.0
    again.release("t.0", 60.0, 50.0)
    assert later.used == 80.0


def test_fleet_says_why_no_pilot_is_requested() -> None:
    fleet = Fleet(Kind(cores=1, most=3, backlog=2, idle=30.0))

    def why(now: float = 0.0) -> str:
        fleet.requests(now)
        return fleet.why

    assert why() == "no job waits"
    fleet.add(job(0), 0)
    assert why() == ""
    fleet.add_pilot(1, only(fleet).kind, 0.0)
    assert why() == "those that are coming have room for the waiting jobs"
    for number in range(1, 9):
        fleet.add(job(number), number)
    fleet.add_pilot(2, only(fleet).kind, 0.0)
    assert why() == "2 wait in the queue, and 'backlog' allows no more"
    fleet.begin(fleet.pilots[1], 1.0)
    fleet.add_pilot(3, only(fleet).kind, 0.0)
    assert why() == "there are 3, and 'most' allows no more"
    fleet.drain(fleet.pilots[3], "ended")
    fleet.pilots[3].to("fenced")
    fleet.end(fleet.pilots[3], 10.0, wanted=True)
    assert why(11.0) == "one was given back less than 'idle' ago"
    for _ in range(FAILURES):
        only(fleet).failed(50.0)
    assert why(51.0) == "3 pilots in a row ended before they were ready"
    fleet.steered = True
    assert why(10_000.0) == "rules decide how many there are: 1 now"


def test_pilot_without_work_is_given_back_after_idle() -> None:
    fleet = fleet_with(1, 1, kind=Kind(cores=1, most=4, least=1, idle=30.0))
    fleet.add(job(0), 0)
    assert placed(fleet) == {"t.0": 1}
    assert fleet.surplus(29.0) == []
    assert fleet.surplus(31.0) == [fleet.pilots[2]]
    fleet.release("t.0", 40.0)
    assert fleet.surplus(50.0) == [fleet.pilots[2]]
    fleet.drain(fleet.pilots[2])
    assert fleet.surplus(1000.0) == [], "one is kept"
    assert fleet.wake_time(50.0) is None


def test_failed_pilots_delay_the_next_request() -> None:
    fleet = Fleet(Kind(most=1))
    fleet.add(job(0), 0)
    for number in range(1, FAILURES + 3):
        pilot = fleet.add_pilot(number, only(fleet).kind, 0.0)
        fleet.drain(pilot, "ended")
        pilot.to("fenced")
        is_third = fleet.end(pilot, 100.0, wanted=False)
        assert is_third is (number == FAILURES)
        assert len(fleet.requests(100.0)) == (1 if number < FAILURES else 0)
        assert len(fleet.requests(10_000.0)) == 1


def test_impossible_jobs_are_named_with_their_numbers() -> None:
    kind = Kind(cores=4, gpus=1, duration=100.0, margin=10.0)
    for wrong, words in (
        ({"cores_per_task": 5}, ("5 cores", "4")),
        ({"gpus_per_task": 2}, ("2 gpus", "1")),
        ({"duration": 91.0}, ("91 s", "90 s")),
        ({"nodes": 2, "tasks": 2}, ("2 nodes", "one node")),
    ):
        said = " ".join(kind.never(job(0, **wrong)) or ())
        assert all(word in said for word in words), said
    fleet = fleet_with(4, kind=kind)
    large = job(1, memory_per_task=2 << 30)
    fleet.add(large, 1)
    (found,) = fleet.impossible()
    assert found[0] is large
    assert "2G" in found[1]
    assert "1G" in found[1]


def test_states_change_only_as_the_table_says() -> None:
    for state, following in TRANSITIONS.items():
        for other in TRANSITIONS:
            pilot = Pilot(1, Kind(), 0.0, state=state)
            if other in following:
                pilot.to(other)
                assert pilot.state == other
            else:
                with pytest.raises(ValueError, match="cannot change"):
                    pilot.to(other)


def flux_fleet(*sizes: int, nodes: int = 2) -> Fleet:
    """Return a fleet with one ready pilot for each number of cores of a node."""
    fleet = Fleet(Kind(nodes=nodes, cores=max(sizes), most=10, flux=True))
    for number, size in enumerate(sizes, 1):
        pilot = fleet.add_pilot(number, only(fleet).kind, 0.0)
        pilot.to("starting")
        for node in pilot.nodes:
            fleet.connect(node, size, 0, 1 << 30, 0.0)
    return fleet


def test_job_of_several_nodes_takes_its_share_of_each_and_none_of_another_pilot() -> None:
    fleet = flux_fleet(1, 4)
    large = job(0, nodes=2, tasks=4, cores_per_task=1)
    fleet.add(large, 0)
    assert placed(fleet) == {"t.0": 2}
    assert [node.free_cores for node in fleet.pilots[2].nodes] == [2, 2]
    assert [node.free_cores for node in fleet.pilots[1].nodes] == [1, 1]
    fleet.part_over("t.0", fleet.pilots[2].nodes[0])
    assert fleet.has_parts("t.0"), "the end of the head ends no other part"
    fleet.part_over("t.0", fleet.pilots[2].nodes[1])
    assert not fleet.has_parts("t.0")
    assert [node.free_cores for node in fleet.pilots[2].nodes] == [2, 4]
    fleet.release("t.0", 2.0)
    assert [node.free_cores for node in fleet.pilots[2].nodes] == [4, 4]


def test_nodes_are_kept_for_a_job_of_several_so_that_small_ones_do_not_starve_it() -> None:
    fleet = flux_fleet(2)
    for number in range(4):
        fleet.add(job(number), number)
    assert len(placed(fleet)) == 4
    fleet.add(job(4, nodes=2, tasks=2, cores_per_task=2), 4)
    for number in range(5, 60):
        fleet.add(job(number), number)
    for _ in range(60):
        if "t.4" in fleet.placed:
            break
        fleet.release(next(iter(fleet.placed)), 2.0)
        placed(fleet, 2.0)
    assert "t.4" in fleet.placed
    assert fleet.waiting > 20, "it has not waited for all of them"


def test_controller_that_leaves_hands_over_no_job_of_several_nodes_that_would_wait() -> None:
    """Its parts would hold room on one node while they wait for another."""
    fleet = flux_fleet(2)
    fleet.add(job(0, cores_per_task=2), 0)
    fleet.add(job(1, nodes=2, tasks=2), 1)
    assert {each.id for each, _ in fleet.hand_over(1.0)} == {"t.0"}
    assert fleet.waits("t.1")


class FleetMachine(RuleBasedStateMachine):
    """Random jobs, ends and pilots. Each job is waiting, placed or over, and in one place only."""

    kinds: Sequence[Kind] = (
        Kind(nodes=2, cores=4, gpus=1, duration=50.0, margin=5.0, most=3, idle=9),
    )

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(*self.kinds)
        self.resizes = Resizes(self.fleet)
        self.now, self.made, self.pilots = 0.0, 0, 0
        self.resting = {kind.name: 0.0 for kind in self.kinds}
        self.left: set[str] = set()
        self.asked = 0
        self.answered: set[str] = set()

    @rule(cores=st.integers(1, 4), gpus=st.integers(0, 1), urgency=st.sampled_from((0, 16, 31)),
          duration=st.sampled_from((0.0, 10.0, 45.0)), data=st.data())  # fmt: skip
    def submit(
        self, cores: int, gpus: int, urgency: int, duration: float, data: st.DataObject
    ) -> None:
        self.made += 1
        nodes = 2 if any(k.flux for k in self.kinds) and data.draw(st.booleans()) else 1
        made = job(
            self.made,
            nodes=nodes,
            tasks=nodes,
            cores_per_task=cores,
            gpus_per_task=gpus,
            urgency=urgency,
            duration=duration,
            executor=data.draw(st.sampled_from((None, *(kind.name for kind in self.kinds)))),
        )
        if self.fleet.never(made) is not None:
            # Pilots had less time left for jobs when they were ready, or its kind is too small.
            learned = any(each.readies >= FAILURES for each in self.fleet.demands.values())
            assert learned or len(self.kinds) > 1
            return
        self.fleet.add(made, self.made)
        self.left.add(made.id)

    @rule(seconds=st.floats(0.0, 10.0))
    def turn(self, seconds: float) -> None:
        self.now += seconds
        for each, node in self.fleet.place(self.now):
            assert each.urgency
            assert node.connected
            assert node.pilot.state == "ready"
            assert node.pilot.ends is not None
            assert self.now + each.duration <= node.pilot.ends - 2.5
            assert not node.pilot.leaving
            assert each.executor in (None, node.pilot.kind.name)
        live = {name: demand.live for name, demand in self.fleet.demands.items()}
        wanted = self.fleet.requests(self.now)
        assert bool(wanted) is not bool(self.fleet.why)
        for kind in wanted:
            if not self.fleet.steered:
                assert self.fleet.demands[kind.name].is_useful
                assert not live[kind.name] or self.now >= self.resting[kind.name], "no flapping"
            self.pilots += 1
            self.fleet.add_pilot(self.pilots, kind, self.now)
        for pilot in self.fleet.surplus(self.now):
            demand = self.fleet.demands[pilot.kind.name]
            assert pilot.forced or not pilot.busy
            assert pilot.leaving or not demand.is_useful
            self.fleet.drain(pilot)
            demand.rest(self.now)
            self.resting[pilot.kind.name] = self.now + 9
        self.take_answers()

    def take_answers(self) -> None:
        for answer in self.resizes.answers():
            assert answer.request not in self.answered
            self.answered.add(answer.request)
            assert 0 <= answer.size <= 6

    @precondition(lambda self: any(p.state == "requested" for p in self.fleet.pilots.values()))
    @rule()
    def begin(self) -> None:
        pilot = next(p for p in self.fleet.pilots.values() if p.state == "requested")
        self.fleet.begin(pilot, self.now)

    @precondition(lambda self: self.fleet.pilots)
    @rule(data=st.data())
    def connect_or_lose(self, data: st.DataObject) -> None:
        pilot = data.draw(
            st.sampled_from(sorted(self.fleet.pilots.values(), key=lambda p: p.number))
        )
        node = data.draw(st.sampled_from(pilot.nodes))
        if node.connected:
            self.fleet.disconnect(node)
        elif pilot.state != "draining":
            pilot.ends = pilot.ends or self.now + 50.0
            self.fleet.connect(node, pilot.kind.cores, pilot.kind.gpus, None, self.now)

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data())
    def end_job(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.fleet.placed)))
        self.fleet.release(name, self.now)
        self.left.discard(name)

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data())
    def recall_job(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.fleet.placed)))
        if name in self.fleet.members or name in self.fleet._since:
            with pytest.raises(ValueError, match="has started"):
                self.fleet.recalled(name, self.now)
        else:
            self.fleet.recalled(name, self.now)
            assert self.fleet.waits(name)

    @precondition(lambda self: self.fleet.members)
    @rule(data=st.data())
    def end_part(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.fleet.members)))
        self.fleet.part_over(name, self.fleet.members[name][1])
        assert not self.fleet.has_parts(name)
        assert name in self.fleet.placed

    @precondition(lambda self: self.fleet.pilots)
    @rule(data=st.data())
    def end_pilot(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.fleet.pilots)))
        pilot = self.fleet.pilots[number]
        for name in [name for node in pilot.nodes for name in node.jobs]:
            with pytest.raises(ValueError, match="may still start"):
                self.fleet.give_back(name, self.now)
        self.fleet.drain(pilot, "ended")
        pilot.to("fenced")
        for node in pilot.nodes:
            for name in list(node.jobs):
                if data.draw(st.booleans()):
                    self.fleet.give_back(name, self.now)
                else:
                    self.fleet.release(name, self.now)
                    self.left.discard(name)
        self.fleet.end(pilot, self.now, wanted=data.draw(st.booleans()))

    @invariant()
    def each_job_is_in_one_place(self) -> None:
        fleet = self.fleet
        nodes = [node for pilot in fleet.pilots.values() for node in pilot.nodes]
        bound = [name for node in nodes for name in node.jobs]
        for name in {name for name in bound if bound.count(name) > 1}:
            head, other = fleet.members[name]
            assert head.pilot is other.pilot
            assert bound.count(name) == 2
            assert head is not other
        assert set(bound) == fleet.placed.keys()
        waiting = {name for name in self.left if fleet.waits(name)}
        assert waiting | set(bound) == self.left
        assert not waiting & set(bound)
        for node in nodes:
            assert not node.connected or node.free_cores == node.cores - sum(
                share(each)[0] for each in node.jobs.values()
            )
            assert not node.connected or node.free_cores >= 0
            assert not node.connected or node.free_gpus >= 0

    @invariant()
    def pilots_stay_within_their_limit(self) -> None:
        for demand in self.fleet.demands.values():
            assert len(demand.pilots) <= 3
            assert sum(p.state == "requested" for p in demand.pilots) <= 2

    def settle(self) -> None:
        """Let all jobs and pilots do what they should, for twelve seconds."""
        for _ in range(12):
            for name in list(self.fleet.placed):
                self.fleet.release(name, self.now)
            self.turn(1.0)
            for pilot in list(self.fleet.pilots.values()):
                if pilot.state == "draining":
                    self.fleet.drain(pilot, "ended")
                    pilot.to("fenced")
                    self.fleet.end(pilot, self.now, wanted=True)
                    continue
                for node in pilot.nodes:
                    if not node.connected:
                        pilot.ends = pilot.ends or self.now + 50.0
                        size = pilot.kind.cores, pilot.kind.gpus
                        self.fleet.connect(node, *size, None, self.now)


class KindsMachine(FleetMachine):
    """The same, with two kinds of pilots. Each job that one of them can hold is placed."""

    kinds = (
        Kind("plain", nodes=2, cores=4, duration=500.0, margin=5.0, most=3, idle=9),
        Kind("fast", cores=2, gpus=1, duration=500.0, margin=5.0, most=3, idle=9),
    )

    def teardown(self) -> None:
        for pilot in [*self.fleet.pilots.values()]:
            if pilot.ends is not None and not pilot.busy:
                self.fleet.drain(pilot, "ended")
                pilot.to("fenced")
                self.fleet.end(pilot, self.now, wanted=True)
        self.now += 2000.0  # after failures, the next request waits
        for _ in range(self.made):
            for pilot in self.fleet.pilots.values():
                pilot.ends = self.now + 500.0
            if self.fleet.waiting:
                self.settle()
        assert not self.fleet.waiting


class FluxMachine(KindsMachine):
    """The same, where some jobs need two nodes of one pilot at the same time."""

    kinds = (
        Kind("flux", nodes=3, cores=4, duration=500.0, margin=5.0, most=3, idle=9, flux=True),
        Kind("fast", cores=2, gpus=1, duration=500.0, margin=5.0, most=3, idle=9),
    )


class SteeredMachine(FleetMachine):
    """The same, with rules that grow and shrink the fleet. Each of their requests is answered once."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet.steered = True

    @rule(delta=st.sampled_from((-5, -2, -1, 1, 2, 5)),
          when_busy=st.sampled_from(("wait", "skip", "force")))  # fmt: skip
    def resize(self, delta: int, when_busy: WhenBusy) -> None:
        before = only(self.fleet).live
        resize = self.resizes.plan(delta, when_busy)
        self.asked += 1
        request = f"r{self.asked}"
        if isinstance(resize, str):
            self.answered.add(request)
            return
        self.resizes.begin(request, resize)
        assert only(self.fleet).live <= before, "pilots are requested in the next turn"
        floor = 1 if self.fleet.waiting else 0
        assert floor <= only(self.fleet).target <= 3
        for number in resize.leaving:
            assert when_busy != "skip" or not self.fleet.pilots[number].busy

    @rule()
    def start(self) -> None:
        for each in [*self.fleet.placed][:2]:
            self.fleet.started(each, self.now)

    def teardown(self) -> None:
        """Without trouble, each request gets its answer."""
        self.now += 2000.0  # after failures, the next request waits
        self.settle()
        self.take_answers()
        assert not self.resizes.pending
        assert len(self.answered) == self.asked


TestFleetMachine = FleetMachine.TestCase
TestKindsMachine = KindsMachine.TestCase
TestFluxMachine = FluxMachine.TestCase
TestSteeredMachine = SteeredMachine.TestCase
