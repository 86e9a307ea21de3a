"""Tests of the virtual cluster's scheduler: order of starts, and placement on nodes."""

from __future__ import annotations

from typing import Any

from ensemble_simulate.virtual_cluster import (
    Backfill,
    Demand,
    Entry,
    Nodes,
    VirtualQueue,
    demand_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_core import Job


def _job(name: str, *, nodes: int = 1, cores: int = 1, urgency: int = 16, **more: Any) -> Job:
    return Job(
        id=name, group="g", index=0, command=("x",), nodes=nodes, tasks=nodes,
        cores_per_task=cores, urgency=urgency, **more,
    )  # fmt: skip


class _Cluster:
    def __init__(self, nodes: int, cores: int, backfill: Backfill = "easy") -> None:
        self.queue = VirtualQueue(Nodes(nodes, cores), backfill)
        self.entries: dict[str, Entry] = {}

    def add(self, name: str, seconds: float, **shape: int) -> None:
        job = _job(name, **shape)
        self.entries[name] = Entry(job, demand_of(job), seconds)
        self.queue.add(self.entries[name])

    def begin(self, now: float) -> list[str]:
        return [entry.job.id for entry in self.queue.begin(now)]

    def end(self, name: str) -> None:
        self.queue.end(self.entries[name])


def test_jobs_start_in_the_order_of_their_arrival() -> None:
    cluster = _Cluster(1, 2)
    for name in "abc":
        cluster.add(name, 10)
    assert cluster.begin(0) == ["a", "b"]
    cluster.end("a")
    assert cluster.begin(10) == ["c"]


def test_more_urgent_jobs_come_first() -> None:
    cluster = _Cluster(1, 1)
    cluster.add("low", 10, urgency=8)
    cluster.add("high", 10, urgency=20)
    assert cluster.begin(0) == ["high"]


def test_a_job_of_two_nodes_needs_two_whole_nodes_at_once() -> None:
    cluster = _Cluster(2, 4, "none")
    cluster.add("small", 10, cores=1)
    cluster.add("wide", 10, nodes=2, cores=4)
    assert cluster.begin(0) == ["small"]
    cluster.end("small")
    assert cluster.begin(10) == ["wide"]


def test_backfill_starts_jobs_that_delay_no_other() -> None:
    cluster = _Cluster(2, 4)
    cluster.add("first", 100, cores=4)
    cluster.add("wide", 10, nodes=2, cores=4)
    cluster.add("short", 50, cores=4)
    cluster.add("long", 200, cores=4)
    assert cluster.begin(0) == ["first", "short"]  # "short" ends before "wide" can start
    cluster.end("short")
    assert cluster.begin(50) == []  # "long" would delay it
    cluster.end("first")
    assert cluster.begin(100) == ["wide"]


def test_without_backfill_no_job_overtakes_the_first() -> None:
    cluster = _Cluster(2, 4, "none")
    cluster.add("first", 100, cores=4)
    cluster.add("wide", 10, nodes=2, cores=4)
    cluster.add("short", 50, cores=4)
    assert cluster.begin(0) == ["first"]


def test_a_long_job_may_use_a_node_that_no_job_waits_for() -> None:
    cluster = _Cluster(1, 4)
    nodes = cluster.queue.nodes
    nodes.add(1)
    cluster.add("half", 100, cores=3)
    cluster.add("other", 20, cores=4)
    cluster.add("next", 10, cores=4)
    cluster.add("tiny", 1000, cores=1)
    assert cluster.begin(0) == ["half", "other", "tiny"]  # "next" gets the other node


def test_tasks_are_spread_evenly_over_nodes() -> None:
    job = Job(id="a", group="g", index=0, command=("x",), nodes=3, tasks=10, cores_per_task=2)
    assert demand_of(job) == Demand(3, 8, 0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 50)), min_size=1, max_size=40
    ),
    st.sampled_from(["easy", "none"]),
)
def test_no_core_is_used_twice_and_every_job_runs(
    shapes: list[tuple[int, int, int]], backfill: Backfill
) -> None:
    cluster = _Cluster(3, 4, backfill)
    for place, (nodes, cores, seconds) in enumerate(shapes):
        cluster.add(f"j{place}", seconds, nodes=nodes, cores=cores)
    now, running, done = 0.0, dict[str, float](), 0
    while done < len(shapes):
        for name in cluster.begin(now):
            running[name] = now + cluster.entries[name].seconds
        taken = [0, 0, 0]
        for name in running:
            for node in cluster.entries[name].nodes:
                taken[node] += cluster.entries[name].demand.cores
        assert max(taken) <= 4
        assert running, "jobs wait and nothing runs"
        name = min(running, key=lambda each: running[each])
        now = running.pop(name)
        cluster.end(name)
        done += 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 50)), max_size=25))
def test_backfill_never_delays_the_first_waiting_job(shapes: list[tuple[int, int, int]]) -> None:
    """The job never starts later than its first reservation."""
    cluster = _Cluster(3, 4)
    for place, (nodes, cores, seconds) in enumerate(shapes):
        cluster.add(f"j{place}", seconds, nodes=nodes, cores=cores)
    now, running, promised = 0.0, dict[str, float](), dict[str, float]()
    while True:
        for name in cluster.begin(now):
            running[name] = now + cluster.entries[name].seconds
            assert now <= promised.get(name, now)
        head = next(cluster.queue._in_order(), None)
        if head is not None:
            promised.setdefault(head.job.id, cluster.queue._reservation(head.demand)[0])
        if not running:
            assert head is None
            return
        name = min(running, key=lambda each: running[each])
        now = running.pop(name)
        cluster.end(name)
