"""Tests of serialization: events, jobs and errors arrive unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from ensemble_service.event_delivery import Inbox, Outbox
from ensemble_service.heartbeats import MemberStats
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.wire import (
    MOST_BYTES,
    from_error,
    from_event,
    from_jobs,
    in_parts,
    to_error,
    to_event,
    to_jobs,
)

from ensemble_core import (
    Event,
    ExecutorError,
    ExecutorLost,
    Job,
    JobEvent,
    PluginEvent,
    Problem,
    ResizeOutcome,
    Resources,
)


@pytest.mark.parametrize(
    "event",
    [
        JobEvent(1.25, "a.0", "submit"),
        JobEvent(1795268785.6163082, "a.0", "finish", {"status": 256, "x": [1, {"y": None}]}),
        JobEvent(2.0, "ƒ23", "start", ours=False),
        Resources(3.0, {"nodes.up": 4.0}),
        ResizeOutcome(4.0, "r", "granted", 0, ""),
        ResizeOutcome(4.0, "r", "denied", None, "no"),
        Problem(5.0, "oh", "error"),
        ExecutorLost(6.0, "flux", "gone", "start it"),
        Problem(5.0, "cannot be cancelled", "error", ("a.0", "a.1")),
        Resources(6.0, {"nodes.up": float("inf")}),
        PluginEvent(7.0, "disk-full", {"percent": 99}, "a.0"),
    ],
)
def test_an_event_arrives_unchanged(event: Event) -> None:
    data = from_event(event).SerializeToString()
    assert to_event(pb.Event.FromString(data)) == event


@pytest.mark.parametrize(
    "message",
    [
        pb.Event(timestamp=1),
        pb.Event(data='{"type": "job", "job": [1], "name": "start"}'),
        pb.Event(data='{"type": "resources", "values": {"nodes.up": null}}'),
        pb.Event(data="[]"),
        pb.Event(data='{"type": "job", "job": "a.0", "name": "start", "context": [1]}'),
        pb.Event(data='{"type": "job", "job": "a.0", "name": "start", "context": {'),
        pb.Event(data='{"type": "resize-outcome", "request": "r", "outcome": "perhaps"}'),
        pb.Event(data='{"type": "nonsense"}'),
    ],
)
def test_an_invalid_event_is_rejected(message: pb.Event) -> None:
    with pytest.raises((ValueError, TypeError)):
        to_event(message)


def test_a_too_long_event_is_shortened_and_not_lost() -> None:
    event = JobEvent(1.0, "a.0", "exception", {"type": "exec", "note": "x" * (MOST_BYTES + 1)})
    arrived = to_event(from_event(event))
    assert isinstance(arrived, JobEvent)
    assert arrived.context["type"] == "exec"
    assert len(arrived.context["note"]) == 10_000


def test_jobs_arrive_without_data_that_only_their_controller_needs() -> None:
    full: dict[str, Any] = {
        "id": "sim.3",
        "group": "sim",
        "index": 3,
        "command": ("sh", "-c", "exit 0"),
        "nodes": 2,
        "environment": {"A": "ä"},
        "parameters": {"T": 1.5},
        "options": {"flux": {"queue": "debug"}},
    }
    job = Job(**full, executor="left", observe={"lammps": {}})
    assert to_jobs(from_jobs([job])) == [Job(**full)]


def test_many_jobs_are_split_into_messages() -> None:
    small = [pb.Job(data="x" * 10)] * 1_200
    assert [len(part) for part in in_parts(small)] == [500, 500, 200]
    large = [pb.Job(data="x" * 600_000)] * 3
    assert [len(part) for part in in_parts(large)] == [1, 1, 1]


def test_an_error_arrives_with_its_hint_and_origin() -> None:
    error = ExecutorError("full", cause="quota", hint="wait", code="full", transient=True)
    arrived = to_error(from_error(error), "ns/a")
    assert arrived.to_dict() == {**error.to_dict(), "what": "member ns/a: full"}
    assert to_error(from_error(RuntimeError("boom"))).what == "RuntimeError: boom"


def numbered(count: int, begin: int = 1) -> list[pb.Event]:
    return [pb.Event(timestamp=number) for number in range(begin, begin + count)]


def taken(outbox: Outbox) -> tuple[int, list[float]] | None:
    found = outbox.take()
    return found and (found[0], [event.timestamp for event in found[1]])


def test_an_outbox_resends_from_the_oldest_unacknowledged_event() -> None:
    outbox = Outbox("l")
    assert outbox.add(numbered(5))
    assert taken(outbox) is None  # nothing was requested yet
    outbox.rewind()
    assert taken(outbox) == (1, [1, 2, 3, 4, 5])
    assert taken(outbox) is None
    outbox.acknowledge(2)
    outbox.acknowledge(99)  # ignored: event 99 was never sent
    outbox.add(numbered(1, 6))
    assert outbox.first == 6
    outbox.stop()
    assert taken(outbox) is None
    outbox.rewind()
    assert taken(outbox) == (6, [6])
    outbox.stop()
    outbox.acknowledge(5)
    outbox.rewind()
    assert (outbox.first, outbox.pending) == (6, 1)


def test_a_full_outbox_rejects_a_batch_as_a_whole() -> None:
    outbox = Outbox("l", most=3)
    assert outbox.add(numbered(2))
    assert not outbox.add(numbered(2, 3))
    outbox.rewind()
    assert outbox.pending == 2


def test_unacknowledged_events_are_resent_with_backoff() -> None:
    outbox = Outbox("l")
    outbox.add(numbered(2))
    outbox.rewind()
    assert not outbox.overdue(0.0)
    taken(outbox)
    found = [now for now in range(1, 100) if outbox.overdue(float(now)) and taken(outbox)]
    assert found == [11, 31, 71]
    outbox.acknowledge(2)
    assert not outbox.overdue(1000.0)


def test_an_inbox_takes_each_event_once_and_detects_missing_ones() -> None:
    inbox = Inbox()
    assert inbox.new("l", 1, numbered(2)) == ()  # this life has not begun
    inbox.begin("l", 1)
    assert inbox.new("l", 1, numbered(3)) == numbered(3)
    assert inbox.new("l", 2, numbered(4, 2)) == numbered(2, 4)  # 2 and 3 are duplicates
    assert inbox.new("l", 7, numbered(1, 7)) is None  # 6 is missing
    assert inbox.new("l", 6, numbered(2, 6)) == numbered(2, 6)
    inbox.begin("m", 1)
    assert inbox.new("l", 8, numbered(1, 8)) == ()
    assert inbox.new("m", 1, numbered(1)) == numbered(1)


def test_an_inbox_acknowledges_many_events_at_once_and_few_each_second() -> None:
    inbox = Inbox()
    inbox.begin("l", 1)
    inbox.new("l", 1, numbered(10))
    assert inbox.to_acknowledge() is None
    assert inbox.to_acknowledge(100.0) == 10
    inbox.new("l", 11, numbered(1, 11))
    assert inbox.to_acknowledge(100.5) is None
    assert inbox.to_acknowledge(101.5) == 11
    inbox.new("l", 12, numbered(500, 12))
    assert inbox.to_acknowledge() == 511
    inbox.begin("l", 400)  # as if the acknowledgement were lost
    assert inbox.to_acknowledge(200.0) == 511


def test_jobs_are_counted_by_group_and_state() -> None:
    stats = MemberStats()

    def happens(job: str, *names: str, status: int = 0) -> None:
        for when, name in enumerate(names):
            context: dict[str, Any] = {"status": status} if name == "finish" else {}
            if name == "exception":
                context = {"type": "cancel", "severity": 0}
            stats.add("run", [JobEvent(float(when), job, name, context)])

    begun = ("submit", "depend", "priority", "alloc", "start")
    happens("a.0", *begun, "finish", "clean")
    happens("a.1", *begun, "finish", "clean", status=256)
    happens("a.2", *begun)
    happens("a.3", "submit", "depend", "priority")
    happens("a.4", "submit", "exception", "clean")
    happens("a.9", "clean")  # of an unknown job
    stats.add("run", [Resources(0.0, {"nodes.up": 3.0})])
    beat = stats.beat()
    (group,) = beat.groups
    assert group == pb.Group(name="a", waiting=1, running=1, success=1, failed=1, cancelled=1)
    assert beat.gauges["queue.run"] == 1
    assert beat.gauges["queue.sched"] == 1
    assert beat.gauges["nodes.up"] == 3
    assert beat.metrics["mean.a-duration"] == 1.0
    assert beat.metrics["mean.a-pending"] == 4.0
    stats.leave("run")
    (group,) = stats.beat().groups
    assert (group.waiting, group.running, group.success) == (0, 0, 1)


def test_interrupted_jobs_do_not_run() -> None:
    stats = MemberStats()

    def happens(at: float, *names: str) -> dict[str, float]:
        for name in names:
            context = {"status": 0} if name == "finish" else {}
            stats.add("run", [JobEvent(at, "a.0", name, context)])
        gauges = stats.beat().gauges
        return {name: gauges[f"queue.{name}"] for name in ("sched", "run")}

    assert happens(0, "submit", "depend", "priority") == {"sched": 1, "run": 0}
    assert happens(1, "alloc", "start") == {"sched": 0, "run": 1}
    assert happens(3, "suspend") == {"sched": 0, "run": 0}
    assert happens(10, "unsuspend") == {"sched": 0, "run": 1}
    assert happens(11, "requeue") == {"sched": 1, "run": 0}
    assert happens(20, "alloc", "start", "suspend") == {"sched": 0, "run": 0}
    assert happens(25, "unsuspend", "finish", "clean") == {"sched": 0, "run": 0}
    beat = stats.beat()
    assert beat.metrics["mean.a-duration"] == 3
    assert beat.metrics["mean.a-pending"] == (1 + 9) / 2
