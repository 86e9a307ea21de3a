"""Tests of the fleet: placement, and when pilots are requested and given back."""

from __future__ import annotations

import pytest
from ensemble_pilot.fleet import FAILURES, TRANSITIONS, Fleet, Kind, Pilot
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ensemble_core import Job


def job(number: int, **fields: object) -> Job:
    return Job(id=f"t.{number}", group="t", index=number, command=("true",), **fields)  # type: ignore[arg-type]


def fleet_with(*cores: int, kind: Kind | None = None, ends: float | None = None) -> Fleet:
    """Return a fleet with one ready pilot of one node for each number of cores."""
    fleet = Fleet(kind or Kind(cores=max(cores, default=4), most=10))
    for number, size in enumerate(cores, 1):
        pilot = fleet.add_pilot(number, 0.0)
        pilot.ends = ends
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
    pilot = fleet.add_pilot(1, 0.0)
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
        pilot = fleet.add_pilot(number, 0.0)
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


def test_pilots_follow_waiting_jobs_up_to_the_limits() -> None:
    fleet = Fleet(Kind(nodes=2, cores=4, most=3, backlog=2))
    assert fleet.requests(0.0) == 0
    fleet.add(job(0, urgency=0), 0)
    assert fleet.requests(0.0) == 0, "a held job needs no pilot"
    for number in range(1, 10):
        fleet.add(job(number), number)
    assert fleet.requests(0.0) == 2  # 9 jobs, 8 for each pilot
    fleet.add_pilot(1, 0.0)
    fleet.add_pilot(2, 0.0)
    for number in range(10, 100):
        fleet.add(job(number), number)
    assert fleet.requests(0.0) == 0, "two wait in the queue"
    fleet.pilots[1].to("starting")
    assert fleet.requests(0.0) == 1
    fleet.add_pilot(3, 0.0)
    fleet.pilots[2].to("starting")
    assert fleet.requests(0.0) == 0, "there are three"


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
        pilot = fleet.add_pilot(number, 0.0)
        fleet.drain(pilot, "ended")
        pilot.to("fenced")
        told = fleet.end(pilot, 100.0, wanted=False)
        assert told is (number == FAILURES)
        assert fleet.requests(100.0) == (1 if number < FAILURES else 0)
        assert fleet.requests(10_000.0) == 1


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
            pilot = Pilot(1, 0.0, state=state)
            if other in following:
                pilot.to(other)
                assert pilot.state == other
            else:
                with pytest.raises(ValueError, match="cannot change"):
                    pilot.to(other)


class FleetMachine(RuleBasedStateMachine):
    """Random jobs, ends and pilots. Each job is waiting, placed or over, and in one place only."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(
            Kind(nodes=2, cores=4, gpus=1, duration=50.0, margin=5.0, most=3, idle=9)
        )
        self.now, self.made, self.pilots = 0.0, 0, 0
        self.left: set[str] = set()

    @rule(cores=st.integers(1, 4), gpus=st.integers(0, 1), urgency=st.sampled_from((0, 16, 31)),
          duration=st.sampled_from((0.0, 10.0, 45.0)))  # fmt: skip
    def submit(self, cores: int, gpus: int, urgency: int, duration: float) -> None:
        self.made += 1
        made = job(
            self.made, cores_per_task=cores, gpus_per_task=gpus, urgency=urgency, duration=duration
        )
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
        for _ in range(self.fleet.requests(self.now)):
            self.pilots += 1
            self.fleet.add_pilot(self.pilots, self.now)
        for pilot in self.fleet.surplus(self.now):
            assert not pilot.busy
            self.fleet.drain(pilot)

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
            self.fleet.connect(node, 4, 1, None, self.now)

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data())
    def end_job(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.fleet.placed)))
        self.fleet.release(name, self.now)
        self.left.discard(name)

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
        assert len(bound) == len(set(bound))
        assert set(bound) == fleet.placed.keys()
        waiting = {name for name in self.left if fleet.waits(name)}
        assert waiting | set(bound) == self.left
        assert not waiting & set(bound)
        for node in nodes:
            assert not node.connected or node.free_cores == node.cores - sum(
                each.cores for each in node.jobs.values()
            )
            assert not node.connected or node.free_cores >= 0
            assert not node.connected or node.free_gpus >= 0

    @invariant()
    def pilots_stay_within_their_limit(self) -> None:
        assert len(self.fleet.pilots) <= 3
        assert sum(p.state == "requested" for p in self.fleet.pilots.values()) <= 2


TestFleetMachine = FleetMachine.TestCase
