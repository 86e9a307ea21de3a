"""The contract of executors as tests that any executor can inherit.

An author's own test file::

    from ensemble_core.testing.executor import ExecutorContract

    class TestMyExecutor(ExecutorContract):
        def make_executor(self):
            return MyExecutor()

Each test is one sentence of the contract in :class:`ensemble_core.plugin.executor.Executor`. The
class attributes say what a job's command may be in the queue under test. :class:`Session` is also
of use on its own: it opens an executor and remembers what it emits.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import pytest

from ensemble_core.errors import ExecutorError
from ensemble_core.model.causes import CAUSES, Cause, cause_of, said_cause
from ensemble_core.model.events import Event, ExecutorLost, JobEvent, Problem, ResizeOutcome
from ensemble_core.model.jobs import RFC21_EVENTS, Job
from ensemble_core.plugin.executor import Executor, Run

__all__ = ["ExecutorContract", "Session", "wait_until"]

#: The order of a job's life; events that are not here (``exception``, ``memo`` …) may come anywhere
#: before ``clean``.
_ORDER = (
    "submit",
    "validate",
    "depend",
    "priority",
    "alloc",
    "start",
    "finish",
    "release",
    "free",
    "clean",
)


class Session:
    """An open executor and everything it has emitted. Use it with ``with``.

    ``timeout`` (seconds) is how long each wait may last before the test fails with what did come.
    With ``tidy``, jobs that are not over are cancelled before the executor is closed: where jobs
    outlive it, a test would leave them running.
    """

    def __init__(
        self, executor: Executor, folder: Path, timeout: float = 60.0, *, tidy: bool = False
    ) -> None:
        self.executor = executor
        self.folder = folder
        self.timeout = timeout
        self.tidy = tidy
        self.tag = f"contract-{uuid.uuid4().hex[:12]}"
        self.events: list[Event] = []
        self.batches: list[int] = []
        self._news = threading.Condition()
        self._numbers = itertools.count()
        self._last = 0.0
        self._submitted: dict[str, None] = {}

    def _clock(self) -> float:
        self._last = max(self._last, time.time())
        return self._last

    def _emit(self, events: Sequence[Event]) -> None:
        with self._news:
            self.batches.append(len(events))
            self.events.extend(events)
            self._news.notify_all()

    def __enter__(self) -> Session:
        state = self.folder / "state" / self.tag
        self.executor.open(Run(self.tag, self.folder, self._clock, state), self._emit)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self.tidy:
                self._cancel_all()
        finally:
            self.executor.close()

    def _cancel_all(self) -> None:
        names = {event.job: event.name for event in self.events if isinstance(event, JobEvent)}
        left = [name for name in self._submitted if names.get(name) != "clean"]
        if left and not any(isinstance(event, ExecutorLost) for event in self.events):
            self.executor.cancel(left)
            self.wait_clean(*left)

    def job(self, *command: str, group: str = "t", **fields: Any) -> Job:
        """A job with an id of its own; ``fields`` are those of :class:`Job`."""
        number = next(self._numbers)
        return Job(id=f"{group}.{number}", group=group, index=number, command=command, **fields)

    def submit(self, *jobs: Job) -> None:
        self.executor.submit(jobs)
        self._submitted.update(dict.fromkeys(job.id for job in jobs))

    def wait(self, done: Callable[[], bool], what: str) -> None:
        """Wait until ``done()``; asked again after each emission. Fails after ``timeout``."""
        with self._news:
            if not self._news.wait_for(done, self.timeout):
                came = "\n".join(str(event) for event in self.events[-30:])
                pytest.fail(
                    f"{what} did not come within {self.timeout:g} s; what came last:\n{came}"
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
        """What the queue calls the job."""
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
        """What the executor warned of so far."""
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


def _alive(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] not in "ZX"


class ExecutorContract:
    """Tests of the contract. Override :meth:`make_executor`; adjust the attributes if need be."""

    #: A command that succeeds, one that fails with ``failing_code``, one that a signal ends, one
    #: that takes very long, and one that cannot be found.
    succeeding: ClassVar[tuple[str, ...]] = ("true",)
    failing: ClassVar[tuple[str, ...]] = ("sh", "-c", "exit 3")
    failing_code: ClassVar[int] = 3
    killing: ClassVar[tuple[str, ...]] = ("sh", "-c", "kill -SEGV $$")
    lasting: ClassVar[tuple[str, ...]] = ("sleep", "1000")
    missing: ClassVar[tuple[str, ...]] = ("there-is-no-such-command",)
    #: Whether jobs run on this machine, as this user, so that their processes can be looked for.
    same_machine: ClassVar[bool] = True
    #: Whether the queue finds also those processes of a job that have left its session.
    contains: ClassVar[bool] = True
    #: More jobs than can run at once, each of which needs one core.
    many: ClassVar[int] = 50
    #: Seconds that any one thing may take.
    timeout: ClassVar[float] = 60.0

    def make_executor(self) -> Executor:
        """A new executor, not yet open. To be overridden."""
        raise NotImplementedError("override make_executor()")

    @pytest.fixture
    def session(self, tmp_path: Path) -> Iterator[Session]:
        """An open executor; closed after the test."""
        with Session(self.make_executor(), tmp_path, self.timeout, tidy=True) as session:
            yield session

    def check_order(self, session: Session, job: Job) -> None:
        """The job's events are RFC 21's, in order, begin with submit, and end with one clean."""
        names = session.names(job)
        assert names[0] == "submit", names
        assert names[-1] == "clean", names
        assert names.count("clean") == 1, names
        assert set(names) <= set(RFC21_EVENTS), names
        placed = [_ORDER.index(name) for name in names if name in _ORDER]
        assert placed == sorted(set(placed)), names
        times = [event.timestamp for event in session.of(job)]
        assert times == sorted(times), times

    def fatal(self, session: Session, job: Job) -> list[str]:
        """The types of the job's fatal exceptions."""
        return [
            str(event.context.get("type"))
            for event in session.of(job)
            if event.name == "exception" and event.context.get("severity") == 0
        ]

    def check_end(self, session: Session, job: Job, kind: str) -> None:
        """The job's first fatal exception, which says why it ended, is of this type, and no other
        is. A queue may add what befell it on the way: Flux's shell says "start failed" (``exec``)
        of a task that a cancellation met while it was being started."""
        types = self.fatal(session, job)
        assert types[:1] == [kind], types
        assert types.count(kind) == 1, types

    def test_it_says_what_it_can_do(self) -> None:
        known = {"submit", "cancel", "resize", "reattach", "detach"}
        assert self.make_executor().capabilities <= known

    def test_a_job_that_succeeds_passes_through_its_life_in_order(self, session: Session) -> None:
        job = session.job(*self.succeeding)
        session.run(job)
        self.check_order(session, job)
        names = session.names(job)
        assert names.index("start") < names.index("finish")
        assert os.WIFEXITED(session.context(job, "finish")["status"])
        assert os.WEXITSTATUS(session.context(job, "finish")["status"]) == 0
        assert not self.fatal(session, job)

    def test_a_job_that_fails_reports_its_exit_code(self, session: Session) -> None:
        job = session.job(*self.failing)
        session.run(job)
        self.check_order(session, job)
        status = session.context(job, "finish")["status"]
        assert os.waitstatus_to_exitcode(status) == self.failing_code

    def test_a_missing_command_is_that_jobs_failure_only(self, session: Session) -> None:
        bad, good = session.job(*self.missing), session.job(*self.succeeding)
        session.run(bad, good)
        self.check_order(session, bad)
        failed = [e for e in session.of(bad) if e.name == "finish" and e.context["status"]]
        assert self.fatal(session, bad) or failed
        assert session.context(good, "finish")["status"] == 0

    def test_exceptions_say_type_severity_and_note(self, session: Session) -> None:
        job = session.job(*self.lasting)
        session.submit(job)
        session.wait_for(job, "start")
        session.executor.cancel([job.id])
        session.wait_clean(job)
        context = session.context(job, "exception")
        assert isinstance(context["type"], str)
        assert isinstance(context["severity"], int)
        assert isinstance(context.get("note", ""), str)

    def test_jobs_submitted_in_bulk_each_end_exactly_once(self, session: Session) -> None:
        jobs = [session.job(*self.succeeding) for _ in range(self.many)]
        session.run(*jobs)
        for job in jobs:
            self.check_order(session, job)

    def test_cancelling_a_running_job_ends_it(self, session: Session) -> None:
        job = session.job(*self.lasting)
        session.submit(job)
        session.wait_for(job, "start")
        session.executor.cancel([job.id])
        session.wait_clean(job)
        self.check_order(session, job)
        self.check_end(session, job, "cancel")
        names = session.names(job)
        assert names.index("exception") < names.index("finish")
        assert session.context(job, "finish")["status"] != 0

    def test_cancelling_waiting_jobs_ends_them_without_a_start(self, session: Session) -> None:
        jobs = [session.job(*self.lasting) for _ in range(self.many)]
        session.submit(*jobs)
        session.executor.cancel([job.id for job in jobs])
        session.wait_clean(*jobs)
        for job in jobs:
            self.check_order(session, job)
            self.check_end(session, job, "cancel")
        assert any("start" not in session.names(job) for job in jobs)

    def test_cancelling_twice_or_too_late_or_the_unknown_does_nothing(
        self, session: Session
    ) -> None:
        over = session.job(*self.succeeding)
        session.run(over)
        before = session.names(over)
        lasting = session.job(*self.lasting)
        session.submit(lasting)
        session.wait_for(lasting, "start")
        session.executor.cancel([over.id, "nobody.7", lasting.id])
        session.executor.cancel([lasting.id, over.id])
        session.wait_clean(lasting)
        assert session.names(over) == before
        assert not session.of("nobody.7")
        self.check_end(session, lasting, "cancel")

    def test_a_time_limit_ends_a_job(self, session: Session) -> None:
        job = session.job(*self.lasting, duration=1.0)
        session.run(job)
        self.check_order(session, job)
        self.check_end(session, job, "timeout")

    @pytest.mark.parametrize("cause", CAUSES)
    def test_why_a_job_ended_is_told(self, cause: Cause, request: pytest.FixtureRequest) -> None:
        """For each of the executor's ``causes`` the suite has a method ``end_by_CAUSE``: it ends a
        job so and says what was told of it. An executor that has others adds theirs."""
        if cause not in self.make_executor().causes:
            return
        how = getattr(self, f"end_by_{cause.replace('-', '_')}", None)
        assert how is not None, f"the suite has no method end_by_{cause.replace('-', '_')}"
        assert how(request.getfixturevalue("session")) == cause

    def end_by_exit(self, session: Session) -> Cause:
        """Of two jobs, one of which succeeds."""
        jobs = session.job(*self.succeeding), session.job(*self.failing)
        session.run(*jobs)
        (cause,) = {session.cause(job) for job in jobs}
        return cause

    def end_by_signal(self, session: Session) -> Cause:
        """Of one job."""
        job = session.job(*self.killing)
        session.run(job)
        return session.cause(job)

    def end_by_timeout(self, session: Session) -> Cause:
        """Of one job."""
        job = session.job(*self.lasting, duration=1.0)
        session.run(job)
        return session.cause(job)

    def end_by_cancelled(self, session: Session) -> Cause:
        """Of many jobs, of which some have not begun."""
        jobs = [session.job(*self.lasting) for _ in range(self.many)]
        session.submit(*jobs)
        session.wait_for(jobs[0], "start")
        session.executor.cancel([job.id for job in jobs])
        session.wait_clean(*jobs)
        (cause,) = {session.cause(job) for job in jobs}
        return cause

    def end_by_submit(self, session: Session) -> Cause:
        """Of a job with an output file that cannot be."""
        job = session.job(*self.succeeding, stdout="/proc/there/is/none")
        session.run(job)
        return session.cause(job)

    def test_cancelling_leaves_no_process_behind(self, session: Session, tmp_path: Path) -> None:
        if not self.same_machine:
            pytest.skip("the jobs' processes are on another machine")
        away = "setsid " if self.contains else ""
        script = (
            f"({away}sleep 1000 & echo $! > one); sleep 1000 & echo $! > two;"
            " trap '' TERM; echo $$ > three; while :; do sleep 1000; done"
        )
        job = session.job("sh", "-c", script, workdir=str(tmp_path))
        session.submit(job)
        three = tmp_path / "three"
        wait_until(lambda: three.exists() and three.read_text() != "", self.timeout)
        pids = [int((tmp_path / name).read_text()) for name in ("one", "two", "three")]
        assert all(_alive(pid) for pid in pids)
        session.executor.cancel([job.id])
        session.wait_clean(job)
        try:
            assert [pid for pid in pids if _alive(pid)] == []
        finally:
            for pid in filter(_alive, pids):
                os.kill(pid, signal.SIGKILL)

    def test_a_resize_is_answered_once(self, session: Session) -> None:
        if "resize" not in session.executor.capabilities:
            with pytest.raises(ExecutorError):
                session.executor.resize("request-1", 1)
            return
        for request, delta in (("request-1", 1), ("request-2", -1)):
            session.executor.resize(request, delta)
            session.wait(
                lambda request=request: request in self.answers(session),  # type: ignore[misc]  # mypy cannot infer a bound default
                f"the answer to {request}",
            )
        job = session.job(*self.succeeding)
        session.run(job)
        assert self.answers(session) == ["request-1", "request-2"]
        for event in session.events:
            if isinstance(event, ResizeOutcome):
                assert event.outcome in ("granted", "denied", "timeout", "undelivered")
                assert event.outcome != "granted" or event.size is not None

    def test_a_resize_that_is_asked_again_is_answered_again_and_not_carried_out_twice(
        self, session: Session
    ) -> None:
        if "resize" not in session.executor.capabilities:
            return
        outcomes = []
        for attempt in (1, 2):
            session.executor.resize("request-1", 1)
            session.wait(
                lambda attempt=attempt: len(self.answers(session)) == attempt,  # type: ignore[misc]  # mypy cannot infer a bound default
                f"answer {attempt} to the same request",
            )
            outcomes.append([e for e in session.events if isinstance(e, ResizeOutcome)][-1])
        first, second = outcomes
        assert (first.outcome, first.size) == (second.outcome, second.size)

    def answers(self, session: Session) -> list[str]:
        """The resize requests that were answered so far."""
        return [e.request for e in session.events if isinstance(e, ResizeOutcome)]

    def test_gauges_are_numbers_by_metric_path(self, session: Session) -> None:
        gauges = session.executor.resources()
        for path, value in gauges.items():
            assert "." in path
            assert isinstance(value, (int, float))
        for what in ("nodes", "cores", "gpus"):
            if f"{what}.up" in gauges:
                assert 0 <= gauges[f"{what}.free"] <= gauges[f"{what}.up"]

    def test_nothing_is_emitted_after_close(self, tmp_path: Path) -> None:
        session = Session(self.make_executor(), tmp_path, self.timeout)
        with session:
            job = session.job(*self.succeeding)
            session.run(job)
        before = len(session.events)
        assert before
        time.sleep(0.2)  # long enough for a thread that was forgotten to speak
        assert len(session.events) == before
        assert not any(isinstance(event, ExecutorLost) for event in session.events)

    def test_close_gives_back_threads_and_descriptors(self, tmp_path: Path) -> None:
        if not Path("/proc/self/fd").exists():
            pytest.skip("no /proc on this system")
        for count in range(3):
            if count == 1:  # the first may have loaded what stays
                threads = threading.active_count()
                descriptors = len(os.listdir("/proc/self/fd"))
            with Session(self.make_executor(), tmp_path, self.timeout) as session:
                session.run(session.job(*self.succeeding), session.job(*self.missing))
        assert threading.active_count() <= threads
        assert len(os.listdir("/proc/self/fd")) <= descriptors

    def test_jobs_are_found_again_after_the_executor_was_closed(self, tmp_path: Path) -> None:
        if "reattach" not in self.make_executor().capabilities:
            opened = Session(self.make_executor(), tmp_path, self.timeout)
            with opened as session, pytest.raises(ExecutorError):
                session.executor.reattach({"t.0": 0.0})
            return
        first = Session(self.make_executor(), tmp_path, self.timeout)
        over, lasting = first.job(*self.succeeding), first.job(*self.lasting)
        soon = first.job("sleep", "2")
        waiting = [first.job(*self.lasting) for _ in range(self.many)]
        ids = [job.id for job in waiting]
        with first:
            first.run(over)
            first.submit(lasting, soon)
            first.wait_for(lasting, "start")
            first.wait_for(soon, "start")
            first.submit(*waiting)
            first.wait_for(waiting[-1], "priority")
        second = Session(self.make_executor(), tmp_path, self.timeout)
        second.tag = first.tag
        with second:
            time.sleep(3)  # one of them ends before it is asked for
            newest = first.of(lasting)[-1].timestamp
            found = second.executor.reattach(
                {over.id: 0.0, lasting.id: newest, soon.id: 0.0, "t.99999": 0.0}
                | dict.fromkeys(ids, 0.0)
            )
            assert found == {over.id: True, lasting.id: True, soon.id: True, "t.99999": False} | (
                dict.fromkeys(ids, True)
            )
            second.wait_clean(over, soon)
            for job in (over, soon):
                self.check_order(second, job)
            assert self.times(second, over) == self.times(first, over)
            assert self.times(first, soon).items() <= self.times(second, soon).items()
            assert "submit" not in second.names(lasting)
            second.executor.cancel([lasting.id, *ids])
            second.wait_clean(lasting, *waiting)
            self.check_end(second, lasting, "cancel")
            for job in waiting:
                self.check_order(second, job)
                self.check_end(second, job, "cancel")

    def test_events_of_a_job_are_told_apart_by_their_times(self, session: Session) -> None:
        """Who asks for what is newer than an event gets all that came after it."""
        if "reattach" not in session.executor.capabilities:
            pytest.skip("times are asked for by reattach only")
        jobs = [session.job(*self.succeeding) for _ in range(self.many)]
        session.run(*jobs)
        for job in jobs:
            times = [event.timestamp for event in session.of(job)]
            assert all(earlier < later for earlier, later in itertools.pairwise(times)), times

    def times(self, session: Session, job: Job) -> dict[str, float]:
        """When each step of a job's life was."""
        return {e.name: e.timestamp for e in session.of(job) if e.name in _ORDER}

    def test_an_executor_can_be_closed_at_once(self, tmp_path: Path) -> None:
        with Session(self.make_executor(), tmp_path, self.timeout) as session:
            assert session.executor is not None

    def test_the_environment_and_folder_of_a_job_are_as_asked(
        self, session: Session, tmp_path: Path
    ) -> None:
        if not self.same_machine:
            pytest.skip("the jobs' files are on another machine")
        folder = tmp_path / "made" / "when missing"
        job = session.job(
            "sh",
            "-c",
            'printf "%s %s" "$GREETING" "$(pwd)"',
            workdir=str(folder),
            stdout="out/text.txt",
            environment={"GREETING": "hello"},
        )
        session.run(job)
        assert session.context(job, "finish")["status"] == 0
        assert (folder / "out" / "text.txt").read_text() == f"hello {folder}"

    def test_a_job_does_not_inherit_the_token_of_the_service(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What jobs start from is ``ensemble_core.job_environment()``."""
        if not self.same_machine:
            pytest.skip("the jobs' files are on another machine")
        monkeypatch.setenv("ENSEMBLE_TOKEN", "secret")
        script = 'echo "token: ${ENSEMBLE_TOKEN-none}"'
        with Session(self.make_executor(), tmp_path, self.timeout) as session:
            job = session.job("sh", "-c", script, workdir=str(tmp_path), stdout="told.txt")
            session.run(job)
        assert (tmp_path / "told.txt").read_text() == "token: none\n"

    def test_a_job_inherits_the_environment_that_the_run_was_started_in(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So a secret need not stand in the ensemble file (``environment_from``)."""
        if not self.same_machine:
            pytest.skip("the jobs' files are on another machine")
        monkeypatch.setenv("DB_PASSWORD", "s3cret")
        with Session(self.make_executor(), tmp_path, self.timeout) as session:
            script = 'echo "password: $DB_PASSWORD"'
            job = session.job("sh", "-c", script, workdir=str(tmp_path), stdout="told.txt")
            session.run(job)
        assert (tmp_path / "told.txt").read_text() == "password: s3cret\n"


def wait_until(done: Callable[[], object], timeout: float = 60.0) -> None:
    """Wait for something that no event tells of. Fails after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while not done():
        if time.monotonic() > end:
            pytest.fail(f"not so within {timeout:g} s", pytrace=True)
        time.sleep(0.005)
