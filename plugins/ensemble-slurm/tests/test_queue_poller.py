"""The queue poller: jobs that slurmctld has forgotten, and cancels that it forgot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from ensemble_batch import CommandResult
from ensemble_slurm.job_state import JobStates
from ensemble_slurm.parse import SEPARATOR, Site
from ensemble_slurm.queue_poller import QueuePoller


class Queue:
    """A poller's owner, with a ``squeue`` and a ``sacct`` of the test's own."""

    def __init__(self, accounted: str = "", queued: str = "") -> None:
        self.time = 1000.0
        self.queued = queued
        self.cancelled: list[str] = []
        self.accounted = accounted
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.states = JobStates("cancelled")
        self.states.expect("sim.0", {})
        self.states.accepted("sim.0", "7", self.time)
        self.poller = QueuePoller(self, self.states, Site(accounting=True), 30.0)
        self.poller.begin()

    def now(self) -> float:
        return self.time

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self.timers.append((self.time + seconds, what))

    def ask(
        self, words: Sequence[str], deadline: float, then: Callable[[CommandResult], None]
    ) -> None:
        then(CommandResult(0, self.accounted if words[0] == "sacct" else self.queued, ""))

    def read_spool(self) -> None: ...

    def publish(self) -> None: ...

    def trouble(self, of: str, what: str | None, hint: str | None = None) -> None: ...

    def warn(self, message: str) -> None: ...

    def cancel_again(self, jobs: Sequence[str]) -> None:
        self.cancelled += jobs

    def run(self, seconds: float) -> None:
        end = self.time + seconds
        while (due := min(self.timers, key=lambda each: each[0]))[0] <= end:
            self.timers.remove(due)
            self.time = due[0]
            due[1]()
        self.time = end


def accounted(state: str) -> str:
    return SEPARATOR.join(("7", state, "0:0", "900", "950", "Unknown", "n1", "x", "")) + "\n"


def test_a_job_that_only_accounting_believes_to_run_is_lost_in_the_end() -> None:
    queue = Queue(accounted("RUNNING"))
    queue.run(50.0)
    assert "sim.0" in queue.states.jobs
    queue.run(300.0)
    assert [event.name for event in queue.states.take()].count("clean") == 1


def test_a_job_that_slurmctld_has_forgotten_ends_as_accounting_says() -> None:
    queue = Queue(accounted("TIMEOUT"))
    queue.run(50.0)
    events = {event.name: event.context for event in queue.states.take()}
    assert events["exception"]["type"] == "timeout"


def queued(state: str) -> str:
    fields = ("7", state, "None", "0", "0", "900", "950", "N/A", "n1", "x")
    return SEPARATOR.join(fields) + SEPARATOR + "\n"


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_a_cancel_that_a_crashed_slurmctld_forgot_is_made_again(state: str) -> None:
    queue = Queue(queued=queued(state))
    queue.states.cancelling("sim.0")
    queue.poller.soon()
    queue.run(15.0)
    assert queue.cancelled == []
    queue.run(15.0)
    assert queue.cancelled == ["sim.0"]


@pytest.mark.parametrize("state", ["COMPLETING", "RUNNING"])
def test_a_job_that_is_ending_or_was_not_cancelled_is_not_cancelled_again(state: str) -> None:
    queue = Queue(queued=queued(state))
    if state == "COMPLETING":
        queue.states.cancelling("sim.0")
    queue.poller.soon()
    queue.run(90.0)
    assert queue.cancelled == []
