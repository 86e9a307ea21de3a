"""Tests of jobs that others cancel, or that an ending instance cancels, without Flux."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import pytest
from ensemble_flux.interrupted_jobs import InterruptedJobs

from ensemble_core import JobEvent

if TYPE_CHECKING:
    from ensemble_flux.reactor import Reactor


class Broker:
    """Stands in for the reactor; :meth:`answer` answers a request for the broker's state."""

    def __init__(self) -> None:
        self.asked: list[Callable[[str | None], None]] = []

    def ask(self, topic: str, payload: object, answer: Any, refused: Any, **rank: int) -> None:
        assert topic == "state-machine.get"
        self.asked.append(answer)

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        """Never: the tests take less time."""

    def answer(self, state: str) -> None:
        self.asked.pop(0)(json.dumps({"state": state}))


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def told() -> list[JobEvent]:
    return []


@pytest.fixture
def end(broker: Broker, told: list[JobEvent]) -> InterruptedJobs:
    return InterruptedJobs(cast("Reactor", broker), told.extend)


def event(name: str, job: str = "a.0", **context: Any) -> JobEvent:
    return JobEvent(1.0, job, name, context)


def cancel(job: str = "a.0") -> JobEvent:
    return event("exception", job, type="cancel", severity=0, note="by its user")


def causes(events: Sequence[JobEvent]) -> list[str]:
    """Return the types of the exceptions."""
    return [each.context["type"] for each in events if each.name == "exception"]


def test_a_job_that_others_cancelled_stays_cancelled_if_its_allocation_ends_before_it(
    end: InterruptedJobs, broker: Broker, told: list[JobEvent]
) -> None:
    """It was also interrupted, so a resume ran it again."""
    end.temporary = True
    told += end.pass_on([cancel()])
    broker.answer("run")
    told += end.pass_on([event("finish", status=15)])
    told += end.drain(["a.0"], [])
    told += end.pass_on([event("clean")])
    told += end.lost(2.0)
    assert causes(told) == ["cancel"]
    assert [each.name for each in told] == ["exception", "finish", "clean"]


def test_a_job_that_others_and_then_the_run_cancelled_was_not_interrupted(
    end: InterruptedJobs, broker: Broker, told: list[JobEvent]
) -> None:
    """``flux cancel --all``, and a rule that cancels all jobs after the first one."""
    told += end.pass_on([cancel("a.0"), cancel("a.1")])
    end.cancel(["a.1"])
    told += end.pass_on([event("finish", "a.1", status=15)])
    while broker.asked:
        broker.answer("run")
    assert causes(told) == ["cancel", "cancel"]
    told += end.pass_on([event("clean", "a.0"), event("clean", "a.1")])
    assert [each.name for each in told if each.job == "a.1"] == ["exception", "finish", "clean"]


def test_a_job_that_an_ending_instance_cancelled_was_interrupted(
    end: InterruptedJobs, broker: Broker, told: list[JobEvent]
) -> None:
    told += end.pass_on([cancel()])
    broker.answer("cleanup")
    told += end.pass_on([event("finish", status=15), event("clean")])
    assert told == []
    told += end.lost(2.0)
    assert causes(told) == ["interrupted"]
