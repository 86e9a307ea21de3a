"""Session: an open executor and everything that it has emitted, for tests of executors.

Used by the contract suite, and by an author's own tests::

    with Session(MyExecutor(), tmp_path) as session:
        job = session.job("true")
        session.run(job)
        assert session.context(job, "finish")["status"] == 0
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from ensemble_core.model.causes import Cause, cause_of, said_cause
from ensemble_core.model.events import Event, ExecutorLost, JobEvent, Problem
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Executor, Run

__all__ = ["Session", "alive", "wait_until", "within"]

#: Seconds that an event may be ahead of the run's clock, whose readers do not read it at once; and
#: before the submit of its job: the queue's clock may be off, and count whole seconds.
_AHEAD, _BEFORE = 1e-3, 60.0
#: What earlier tests could not remove from the queue, in words.
_left_behind: list[str] = []


class Session:
    """An open executor and everything it has emitted. Use it with ``with``.

    ``timeout`` (seconds) is how long each wait, and each call of the executor, may last before the
    test fails with what did come. With ``tidy``, and where the test fails, jobs that are not over
    are cancelled before the executor is closed: the queue would keep them, and later tests would
    wait for its slots. ``misdated`` are events whose times cannot be, in words. With ``kept`` false
    the run has no state folder, as with ``--no-journal``. The run's clock is ``clock_off`` seconds
    ahead of this machine's.
    """

    def __init__(
        self,
        executor: Executor,
        folder: Path,
        timeout: float = 60.0,
        *,
        tidy: bool = False,
        kept: bool = True,
        clock_off: float = 0.0,
    ) -> None:
        self.executor = executor
        self.folder = folder
        self.timeout = timeout
        self.tidy = tidy
        self.kept = kept
        self.clock_off = clock_off
        self.tag = f"contract-{uuid.uuid4().hex[:12]}"
        self.events: list[Event] = []
        self.batches: list[int] = []
        self.misdated: list[str] = []
        #: Our ids of all jobs that this session made or submitted.
        self.made: set[str] = set()
        self._news = threading.Condition()
        self._numbers = itertools.count()
        self._last = 0.0
        #: Our ids of the jobs that were submitted, and when.
        self._submitted: dict[str, float] = {}
        current = os.environ.get("PYTEST_CURRENT_TEST", "this test")
        self._test = current.rpartition("::")[2].partition(" (")[0]

    def now(self) -> float:
        """The run's clock: seconds since the epoch, never going back."""
        self._last = max(self._last, time.time() + self.clock_off)
        return self._last

    def _emit(self, events: Sequence[Event]) -> None:
        with self._news:
            self.batches.append(len(events))
            self.events.extend(events)
            self.misdated += filter(None, map(self._wrong_time, events))
            self._news.notify_all()

    def _wrong_time(self, event: Event) -> str | None:
        if not isinstance(event, JobEvent):
            return None
        ahead = event.timestamp - self.now()
        if ahead > _AHEAD:
            return f"{event.name} of {event.job} is {ahead:g} s in the future of the run's clock"
        before = self._submitted.get(event.job, 0.0) - event.timestamp
        if before > _BEFORE:
            return f"{event.name} of {event.job} is {before:g} s before the job was submitted"
        return None

    def __enter__(self) -> Session:
        state = self.folder / "state" / self.tag if self.kept else None
        self.executor.open(Run(self.tag, self.folder, self.now, state), self._emit)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self.tidy or error is not None:
                self._cancel_all()
        except BaseException as failure:
            held = f"{self._held()}, which could not be cancelled"
            _left_behind.append(held)
            if error is None:
                raise
            # The test's own failure is the one to be told.
            print(f"{held}: {failure}", file=sys.stderr)
        finally:
            self.executor.close()

    def _cancel_all(self) -> None:
        left = self._active()
        if left and not any(isinstance(event, ExecutorLost) for event in self.events):
            self.cancel(*left)
            self.wait_clean(*left)

    def _active(self) -> list[str]:
        """Our ids of submitted jobs that are not over."""
        over = self.over()
        return [job for job in self._submitted if job not in over]

    def _held(self) -> str:
        left = self._active()
        count = f"{len(left)} job{'s' * (len(left) != 1)}"
        return f"the queue still holds {count} of {self._test} ({', '.join(left[:5]) or 'none'})"

    def over(self) -> set[str]:
        """Our ids of the jobs that are over."""
        return {e.job for e in list(self.events) if isinstance(e, JobEvent) and e.name == "clean"}

    def take_over(self, left: Iterable[str]) -> None:
        """Find jobs of an earlier session again; they are cancelled as this one's own are."""
        found = self.executor.reattach(dict.fromkeys(left, 0.0))
        self._submitted.update(dict.fromkeys((job for job, known in found.items() if known), 0.0))

    def job(self, *command: str, group: str = "t", **fields: Any) -> Job:
        """A job with an id of its own; ``fields`` are those of :class:`Job`."""
        number = next(self._numbers)
        job = Job(id=f"{group}.{number}", group=group, index=number, command=command, **fields)
        self.made.add(job.id)
        return job

    def submit(self, *jobs: Job) -> None:
        """Submit jobs. Fails where that blocks."""
        within(self.timeout, "submit", lambda: self.submit_here(jobs))

    def submit_here(self, jobs: Sequence[Job]) -> None:
        """Submit jobs in this thread, for as long as that takes."""
        self.made.update(job.id for job in jobs)
        self._submitted.update(dict.fromkeys((job.id for job in jobs), self.now()))
        try:
            self.executor.submit(jobs)
        except BaseException:  # then nothing was submitted
            for job in jobs:
                self._submitted.pop(job.id, None)
            raise

    def cancel(self, *jobs: Job | str) -> None:
        """Cancel jobs. Fails where that blocks."""
        names = [job if isinstance(job, str) else job.id for job in jobs]
        within(self.timeout, "cancel", lambda: self.executor.cancel(names))

    def wait(self, done: Callable[[], bool], what: str) -> None:
        """Wait until ``done()``; asked again after each emission. Fails after ``timeout``."""
        with self._news:
            if not self._news.wait_for(done, self.timeout):
                came = "\n".join(str(event) for event in self.events[-30:])
                held = "\n".join([self._held(), *_left_behind])
                pytest.fail(
                    f"{what} did not come within {self.timeout:g} s\n{held}\n"
                    f"what came last:\n{came}"
                )

    def of(self, job: Job | str) -> list[JobEvent]:
        """The events of one job so far."""
        name = job if isinstance(job, str) else job.id
        return [e for e in list(self.events) if isinstance(e, JobEvent) and e.job == name]

    def names(self, job: Job | str) -> list[str]:
        """The names of the events of one job so far."""
        return [event.name for event in self.of(job)]

    def context(self, job: Job | str, name: str) -> Mapping[str, Any]:
        """The context of the first event of this name; fails if there is none."""
        for event in self.of(job):
            if event.name == name:
                return event.context
        pytest.fail(f"{job} has no {name} event: {self.names(job)}")

    def queue_id(self, job: Job) -> str:
        """The queue's id of the job."""
        return str(self.context(job, "submit")["queue_id"])

    def exception(self, job: Job) -> str:
        """The type of the job's first exception."""
        return str(self.context(job, "exception")["type"])

    def cause(self, job: Job) -> Cause:
        """Why the job ended, as rules hear it."""
        exception = finish = None
        for event in self.of(job):
            if event.name == "finish":
                finish = event.context
                break
            if event.name == "exception" and event.context.get("severity", 0) == 0:
                exception = exception or event.context
        said = said_cause((finish or {}) if exception is None else exception)
        kind = None if exception is None else str(exception["type"])
        return said or cause_of(kind, None if finish is None else finish["status"])

    def problems(self) -> list[str]:
        """The executor's warnings so far."""
        return [event.message for event in list(self.events) if isinstance(event, Problem)]

    def check_ended_once(self) -> None:
        """Each job of which there was any event is over, and that was told once."""
        for job in {event.job for event in self.events if isinstance(event, JobEvent)}:
            assert self.names(job).count("clean") == 1, self.names(job)

    def wait_for(self, job: Job, name: str) -> Mapping[str, Any]:
        """Wait for a job's event; its context."""
        self.wait(lambda: name in self.names(job), f"{name} of {job.id}")
        return self.context(job, name)

    def run(self, *jobs: Job) -> None:
        """Submit jobs and wait until each is over."""
        self.submit(*jobs)
        self.wait_clean(*jobs)

    def wait_clean(self, *jobs: Job | str) -> None:
        """Wait until each of these jobs is over."""
        left = {job if isinstance(job, str) else job.id for job in jobs}
        seen = 0

        def done() -> bool:
            nonlocal seen
            for event in self.events[seen:]:
                if isinstance(event, JobEvent) and event.name == "clean":
                    left.discard(event.job)
            seen = len(self.events)
            return not left

        self.wait(done, f"clean of {', '.join(sorted(left)[:5])}")


def within(seconds: float, what: str, call: Callable[[], object]) -> None:
    """Call something that is not to block; fails, and does not hang, where it does so for so many
    seconds. What it raises is raised here."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # whatever it is: it is raised where the test can see it
            raised.append(error)

    thread = threading.Thread(target=run, name=what, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        pytest.fail(f"{what} did not return within {seconds:g} s: is it waiting for a job?")
    if raised:
        raise raised[0]


def alive(pid: int) -> bool:
    """True if a process exists and is not merely waiting to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] not in "ZX"


def wait_until(done: Callable[[], object], timeout: float = 120.0) -> None:
    """Wait for something that no event tells of. Fails after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while not done():
        if time.monotonic() > end:
            pytest.fail(f"not so within {timeout:g} s", pytrace=True)
        time.sleep(0.005)
