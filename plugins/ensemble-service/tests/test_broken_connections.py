"""Regression tests for faults found by breaking connections between runs and members.

Examples: an outcome was lost, a job's end was dropped as a duplicate, a later controller ignored a
member.
"""

from __future__ import annotations

import itertools
import queue
import shutil
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ensemble_service import connection as connections
from ensemble_service import hosted_run
from ensemble_service.call_errors import Unreachable
from ensemble_service.channel import open_channel
from ensemble_service.connection import Connection
from ensemble_service.heartbeats import MemberStats
from ensemble_service.hosted_run import HOME, HostedRun
from ensemble_service.member_proxy import MemberProxy, RunContext
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.remote_executor import RemoteExecutor
from ensemble_service.run_members import Membership
from ensemble_service.wire import from_event

from ensemble_core import (
    Emit,
    EnsembleError,
    Event,
    ExecutorError,
    JobEvent,
    Problem,
    ResizeOutcome,
    Run,
)
from ensemble_core.local.executor import LocalExecutor


class Member:
    """A member as its controller sees it. The test plays the agent."""

    def __init__(self) -> None:
        self.sent: list[pb.Call] = []
        self.told: list[Event] = []
        self.acks: list[int] = []
        numbers = itertools.count(1)
        self.steered = MemberProxy(
            "default/a",
            RunContext(
                run="r",
                epoch=1,
                number=lambda: next(numbers),
                send=self._send,
                tell=self._tell,
                clock=lambda: 100.0,
                gauges=lambda paths, when: None,
                stale=lambda member, reason: None,
                elsewhere=lambda member, job: False,
                ahead=lambda member, least, now: None,
            ),
        )
        self._number = 1

    def _send(self, message: pb.FromRun) -> None:
        if message.WhichOneof("what") == "call":
            self.sent.append(message.call)
        elif message.WhichOneof("what") == "ack":
            self.acks.append(message.ack.seq)

    def _tell(self, events: Sequence[Event]) -> None:
        self.told.extend(events)

    def calls(self, kind: str) -> list[pb.Call]:
        return [call for call in self.sent if call.WhichOneof("what") == kind]

    def answer(self, call: pb.Call, **what: Any) -> None:
        answer = pb.Answer(run="r", member="default/a", epoch=1, id=call.id, **what)
        self.steered.answered(answer, 0.0)

    def connect(self, life: str, home: str = "x") -> None:
        """Connect and join the run. A new ``life`` numbers its events from 1."""
        self.steered.connected()
        self.welcome(life, home)

    def welcome(self, life: str, home: str = "x") -> None:
        """Answer the last request to join the run."""
        opened = pb.Opened(life=life, kept_from=1, capabilities=["reattach", HOME + home])
        self.answer(self.calls("open")[-1], opened=opened)

    def leave(self) -> None:
        self.steered.disconnected(0.0)

    def events(self, life: str, first: int, events: Iterable[Event]) -> None:
        self.steered.received(
            pb.Batch(
                run="r",
                member="default/a",
                life=life,
                first=first,
                events=[from_event(event) for event in events],
            )
        )

    def job_events(self) -> list[str]:
        return [event.name for event in self.told if isinstance(event, JobEvent)]


def test_a_resize_whose_outcome_was_lost_with_the_agent_is_requested_again() -> None:
    member = Member()
    member.connect("one")
    member.steered.resize("grow-1", 2, "wait")
    member.answer(member.calls("resize")[-1], done=pb.Done())
    # The agent dies before its executor has reported the outcome.
    member.leave()
    member.connect("two")
    asked = [call.resize.request for call in member.calls("resize")]
    assert asked == ["grow-1", "grow-1"]
    member.answer(member.calls("resize")[-1], done=pb.Done())
    member.events("two", 1, [ResizeOutcome(5.0, "grow-1", "granted", 3)])
    assert [event.request for event in member.told if isinstance(event, ResizeOutcome)] == [
        "grow-1"
    ]
    # The outcome is known, so the request is not repeated.
    member.leave()
    member.connect("three")
    assert len(member.calls("resize")) == 2


def test_simultaneous_events_are_all_reported_when_the_question_about_jobs_is_resent() -> None:
    member = Member()
    member.connect("one")
    member.steered.submit([pb.Job(data='{"id": "t.0"}')], ["t.0"])
    member.answer(member.calls("submit")[-1], done=pb.Done())
    member.events("one", 1, [JobEvent(1.0, "t.0", "submit")])
    member.leave()
    member.connect("two")
    # Some new events arrive, then the connection breaks before the answer.
    member.events("two", 1, [JobEvent(2.0, "t.0", "finish", {"status": 0})])
    member.leave()
    member.connect("two")
    member.answer(member.calls("reattach")[-1], found=pb.Found(jobs={"t.0": True}))
    member.events("two", 2, [JobEvent(2.0, "t.0", "clean")])
    assert member.job_events() == ["submit", "finish", "clean"]


def test_a_run_closed_at_the_member_while_it_is_asked_is_reopened() -> None:
    member = Member()
    member.connect("one")
    member.steered.submit([pb.Job(data='{"id": "t.0"}')], ["t.0"])
    member.leave()
    member.connect("two")
    member.answer(member.calls("reattach")[-1], fault=pb.Fault(message="-", code="not-open"))
    assert len(member.calls("open")) == 3
    member.welcome("three")
    member.answer(member.calls("reattach")[-1], found=pb.Found(jobs={"t.0": False}))
    assert len(member.calls("submit")) == 2


def test_a_member_that_cannot_be_recorded_gets_no_job_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = RemoteExecutor()
    run = Run(tag="r", folder=tmp_path, clock=lambda: 1.0, state=tmp_path / "state")
    executor._run = run
    member = Member()
    executor._context = member.steered._run
    executor._membership = Membership(run)
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "state").write_text("in the way")
    for _ in range(2):
        with pytest.raises(ExecutorError, match="cannot write the record"):
            executor._proxy("default/a")
    (tmp_path / "state").unlink()
    executor._proxy("default/a")
    assert '"default/a"' in (tmp_path / "state" / "remote.json").read_text()


def test_jobs_in_flight_to_a_replaced_agent_are_not_submitted_twice() -> None:
    member = Member()
    member.connect("one", home="x")
    assert member.steered.capabilities == {"reattach"}
    member.steered.submit([pb.Job(data='{"id": "t.0"}')], ["t.0"])
    member.leave()
    # Unsent jobs go to the current agent.
    member.steered.submit([pb.Job(data='{"id": "t.1"}')], ["t.1"])
    member.connect("two", home="y")
    # This agent dies, and its answer is lost.
    member.leave()
    member.connect("three", home="y")
    member.answer(member.calls("reattach")[-1], found=pb.Found(jobs={"t.0": False}))
    assert [list(call.submit.jobs) for call in member.calls("submit")] == [
        [pb.Job(data='{"id": "t.0"}')],
        [pb.Job(data='{"id": "t.1"}')],
    ]
    assert member.job_events() == ["exception", "clean"]
    assert [e.context["type"] for e in member.told if isinstance(e, JobEvent) and e.context] == [
        "lost"
    ]


def test_an_agent_reports_whether_it_has_the_same_folder(tmp_path: Path) -> None:
    homes = []
    for folder, epoch in (("a", 1), ("a", 2), ("b", 3)):
        answers: queue.Queue[pb.Answer] = queue.Queue()
        hosted = HostedRun(
            "r",
            "default/a",
            lambda: LocalExecutor(slots=1),
            tmp_path / folder,
            MemberStats(),
            answer=answers.put,
            news=lambda: None,
            over=lambda hosted: True,
        )
        hosted.take(pb.Call(run="r", member="default/a", epoch=epoch, id=1, open=pb.Open()))
        opened = answers.get(timeout=150).opened
        homes += [name for name in opened.capabilities if name.startswith(HOME)]
        hosted.leave(20)
    assert homes[0] == homes[1] != homes[2]


def test_a_connection_is_retried_after_an_unexpected_error() -> None:
    tried = []
    again = threading.Event()

    def channel() -> Any:
        tried.append(1)
        if len(tried) > 1:
            again.set()
        raise RuntimeError("can't start new thread")

    told: list[EnsembleError] = []
    connection: Connection[pb.FromRun, pb.ToRun] = Connection(
        channel, "Steer", "x:1", first=pb.FromRun, heard=lambda message: None, down=told.append
    )
    connection.start()
    assert again.wait(60)
    connection.close()
    assert told[0].code == "broken"
    assert "new thread" in str(told[0])


def test_a_connection_is_retried_even_if_the_reason_cannot_be_reported() -> None:
    told: queue.SimpleQueue[EnsembleError] = queue.SimpleQueue()

    def channel() -> Any:
        raise RuntimeError("can't start new thread")

    def down(error: EnsembleError) -> None:
        told.put(error)
        raise ValueError("the log is full")

    connection: Connection[pb.FromRun, pb.ToRun] = Connection(
        channel, "Steer", "x:1", first=pb.FromRun, heard=lambda message: None, down=down
    )
    connection.start()
    for _ in range(3):
        told.get(timeout=150)
    connection.close()


def test_closing_does_not_wait_for_a_slow_name_lookup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_CLOSING", 0.2)
    looking, found = threading.Event(), threading.Event()

    def away() -> Unreachable:
        looking.set()
        assert found.wait(60)
        return Unreachable("no such name", "")

    connection: Connection[pb.FromRun, pb.ToRun] = Connection(
        lambda: open_channel("127.0.0.1", 1),
        "Steer",
        "x:1",
        first=pb.FromRun,
        heard=lambda message: None,
        down=lambda error: None,
        away=away,
    )
    connection.start()
    assert looking.wait(60)
    begun = time.monotonic()
    connection.close()
    assert time.monotonic() - begun < 50
    found.set()


class Talker(LocalExecutor):
    """Emits more events at once than the agent buffers, each time it is opened."""

    def open(self, run: Run, emit: Emit) -> None:
        super().open(run, emit)
        emit([JobEvent(float(n), "t.0", "x") for n in range(1, 8)])


def test_after_an_overflow_more_events_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted_run, "MOST", 2)
    answers: queue.Queue[pb.Answer] = queue.Queue()
    hosted = HostedRun(
        "r",
        "default/a",
        lambda: Talker(slots=1),
        tmp_path,
        MemberStats(),
        answer=answers.put,
        news=lambda: None,
        over=lambda hosted: False,
    )
    for _ in range(3):
        hosted.take(pb.Call(run="r", member="default/a", epoch=1, id=1, open=pb.Open()))
        while answers.get(timeout=150).id != 1:
            pass
    assert len(hosted.outbox) == 7
    hosted.leave(20)


def test_a_busy_member_is_acknowledged_once_a_second_and_a_quiet_one_at_once() -> None:
    member = Member()
    member.connect("one")
    number = 0

    def more(count: int) -> None:
        nonlocal number
        member.events("one", number + 1, [Problem(1.0, "p") for _ in range(count)])
        number += count

    for tenth in range(20):
        more(1)
        member.steered.tick(100.0 + tenth / 10)
    assert member.acks == [1, 11]
    # The rest is acknowledged a second later, once.
    for tenth in range(20, 60):
        member.steered.tick(100.0 + tenth / 10)
    assert member.acks == [1, 11, 20]
    more(1)
    member.steered.tick(106.0)
    assert member.acks == [1, 11, 20, 21]
    # Many events are acknowledged at once, because the member's window is limited.
    more(500)
    assert member.acks[-1] == 521
