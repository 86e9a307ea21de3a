"""Session: an open executor with all its events, for tests of executors.

An author's own test::

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

from ensemble_core.model.causes import Cause, cause_of, reported_cause
from ensemble_core.model.events import Event, ExecutorLost, JobEvent, Problem
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Executor, Run, new_run_id

#: Seconds by which an event may be ahead of the run's clock (which may be read late), and by which
#: it may precede its job's submission (the queue's clock may differ and have whole seconds).
_AHEAD, _BEFORE = 1e-3, 60.0
#: Hint about a suite's attribute ``executor``.
NAME = "the executor's name, as in 'ensemble run --executor NAME'"
#: Descriptions of jobs that earlier tests could not remove from the queue.
_left_behind: list[str] = []


class Session:
    """An open executor and all events that it has emitted. Use it with ``with``.

    - ``timeout``: limit of each wait and each call of the executor in seconds. Afterwards, the test
      fails and shows the events received
    - ``tidy``: cancel unfinished jobs at the end, even if the test passed
    - ``kept``: whether the run has a state folder; ``False`` tests ``--no-journal``
    - ``clock_off``: seconds by which the run's clock is ahead of this machine's

    Each session is a run of its own, with a new identity (``run_id``); :meth:`resume` makes it a
    later controller of an earlier session's run. The attribute ``misdated`` describes events with
    impossible times.
    """

    def __init__(
        self,
        executor: Executor,
        folder: Path,
        timeout: float = 120.0,
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
        self.run_id = new_run_id()
        self.events: list[Event] = []
        self.batches: list[int] = []
        self.misdated: list[str] = []
        #: Ids of all jobs that this session created or submitted.
        self.made: set[str] = set()
        self._news = threading.Condition()
        self._numbers = itertools.count()
        self._last = 0.0
        #: Ids of the submitted jobs, each with the time of submission.
        self._submitted: dict[str, float] = {}
        current = os.environ.get("PYTEST_CURRENT_TEST", "this test")
        self._test = current.rpartition("::")[2].partition(" (")[0]

    def now(self) -> float:
        """Return the run's clock: seconds since the epoch, never decreasing."""
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
        run = Run(self.tag, self.folder, self.now, state, self.run_id)
        self.executor.open(run, self._emit)
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
            held = f"{self._held_text()}, which could not be cancelled"
            _left_behind.append(held)
            if error is None:
                raise
            # Report the test's own failure.
            print(f"{held}: {failure}", file=sys.stderr)
        finally:
            self.executor.close()

    def _cancel_all(self) -> None:
        left = self._active()
        if left and not any(isinstance(event, ExecutorLost) for event in self.events):
            self.cancel(*left)
            self.wait_clean(*left)

    def _active(self) -> list[str]:
        """Return the ids of unfinished jobs."""
        over = self.over()
        return [job for job in self._submitted if job not in over]

    def _held_text(self) -> str:
        left = self._active()
        count = f"{len(left)} job{'s' * (len(left) != 1)}"
        return f"the queue still holds {count} of {self._test} ({', '.join(left[:5]) or 'none'})"

    def over(self) -> set[str]:
        """Return the ids of finished jobs."""
        return {e.job for e in list(self.events) if isinstance(e, JobEvent) and e.name == "clean"}

    def resume(self, earlier: Session) -> Session:
        """Make this session, which is not open yet, a later controller of the same run."""
        self.tag, self.run_id = earlier.tag, earlier.run_id
        return self

    def take_over(self, left: Iterable[str]) -> None:
        """Reattach to jobs of an earlier session. They are cancelled like this session's jobs."""
        found = self.executor.reattach(dict.fromkeys(left, 0.0))
        self._submitted.update(dict.fromkeys((job for job, known in found.items() if known), 0.0))

    def job(self, *command: str, group: str = "t", **fields: Any) -> Job:
        """Return a job with a new id. The ``fields`` are those of :class:`Job`."""
        number = next(self._numbers)
        job = Job(id=f"{group}.{number}", group=group, index=number, command=command, **fields)
        self.made.add(job.id)
        return job

    def submit(self, *jobs: Job) -> None:
        """Submit jobs. Fail if that blocks."""
        within(self.timeout, "submit", lambda: self.submit_here(jobs))

    def submit_here(self, jobs: Sequence[Job]) -> None:
        """Submit jobs in this thread, however long that takes."""
        self.made.update(job.id for job in jobs)
        self._submitted.update(dict.fromkeys((job.id for job in jobs), self.now()))
        try:
            self.executor.submit(jobs)
        except BaseException:  # nothing was submitted
            for job in jobs:
                self._submitted.pop(job.id, None)
            raise

    def cancel(self, *jobs: Job | str) -> None:
        """Cancel jobs. Fail if that blocks."""
        names = [job if isinstance(job, str) else job.id for job in jobs]
        within(self.timeout, "cancel", lambda: self.executor.cancel(names))

    def wait(self, done: Callable[[], bool], what: str) -> None:
        """Wait until ``done()`` is true, checked after each emission. Fail after ``timeout``."""
        with self._news:
            if not self._news.wait_for(done, self.timeout):
                came = "\n".join(str(event) for event in self.events[-30:])
                held = "\n".join([self._held_text(), *_left_behind])
                pytest.fail(
                    f"{what} did not happen within {self.timeout:g} s\n{held}\nlast events:\n{came}"
                )

    def of(self, job: Job | str) -> list[JobEvent]:
        """Return the events of one job so far."""
        name = job if isinstance(job, str) else job.id
        return [e for e in list(self.events) if isinstance(e, JobEvent) and e.job == name]

    def names(self, job: Job | str) -> list[str]:
        """Return the names of one job's events so far."""
        return [event.name for event in self.of(job)]

    def context(self, job: Job | str, name: str) -> Mapping[str, Any]:
        """Return the context of the first event of this name; fail if it is missing."""
        for event in self.of(job):
            if event.name == name:
                return event.context
        pytest.fail(self.lacks(job, name))

    def lacks(self, job: Job | str, name: str) -> str:
        """Return a message that a job has no event of this name, with its events and exception
        notes.
        """
        notes = [
            f"{event.context['type']}: {event.context.get('note', '')}"
            for event in self.of(job)
            if event.name == "exception"
        ]
        id_ = job if isinstance(job, str) else job.id
        events = ", ".join(self.names(job)) or "none"
        return "\n".join([f"{id_} has no event {name!r}; its events: {events}", *notes])

    def queue_id(self, job: Job) -> str:
        """Return the queue's id of the job."""
        return str(self.context(job, "submit")["queue_id"])

    def exception(self, job: Job) -> str:
        """Return the type of the job's first exception."""
        return str(self.context(job, "exception")["type"])

    def cause(self, job: Job) -> Cause:
        """Return why the job ended, in the terms of rules."""
        exception = finish = None
        for event in self.of(job):
            if event.name == "finish":
                finish = event.context
                break
            if event.name == "exception" and event.context.get("severity", 0) == 0:
                exception = exception or event.context
        said = reported_cause((finish or {}) if exception is None else exception)
        kind = None if exception is None else str(exception["type"])
        return said or cause_of(kind, None if finish is None else finish["status"])

    def problems(self) -> list[str]:
        """Return the executor's warnings so far."""
        return [
            event.message
            for event in list(self.events)
            if isinstance(event, Problem) and event.level != "info"
        ]

    def check_ended_once(self) -> None:
        """Check that each job with an event is over, and that this was reported once."""
        for job in {event.job for event in self.events if isinstance(event, JobEvent)}:
            assert self.names(job).count("clean") == 1, self.names(job)

    def wait_for(self, job: Job, name: str) -> Mapping[str, Any]:
        """Wait for a job's event. Return its context. Fail at once if the job ends without it."""
        self.wait(lambda: not {name, "clean"}.isdisjoint(self.names(job)), f"{name} of {job.id}")
        return self.context(job, name)

    def run(self, *jobs: Job) -> None:
        """Submit jobs and wait for their ends."""
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


def need(suite: object, **attributes: str) -> None:
    """Fail if a suite's class lacks one of these attributes. The message says what to set."""
    for name, what in attributes.items():
        if getattr(suite, name, None) is None:
            whose = type(suite).__name__
            pytest.fail(f"set the attribute {name!r} of {whose}: {what}", pytrace=False)


def within(seconds: float, what: str, call: Callable[[], object]) -> None:
    """Call a function that must not block; fail after this many seconds.

    The function's exceptions are raised here.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # any exception: it is raised where the test sees it
            raised.append(error)

    thread = threading.Thread(target=run, name=what, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        pytest.fail(f"{what} did not return within {seconds:g} s: is it waiting for a job?")
    if raised:
        raise raised[0]


def alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] not in "ZX"


def wait_until(done: Callable[[], object], timeout: float = 300.0) -> None:
    """Wait for a condition that no event reports. Fail after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    pause = 0.002
    while not done():
        if time.monotonic() > end:
            pytest.fail(f"the condition was not met within {timeout:g} s", pytrace=True)
        time.sleep(pause)
        pause = min(1.1 * pause, 0.05)  # long waits leave the processor to what they wait for
