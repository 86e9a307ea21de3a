"""Contract suite for executors.

An author's own test file::

    from ensemble_testing import ExecutorContract

    class TestMyExecutor(ExecutorContract):
        plugin = my_record

        def make_executor(self):
            return MyExecutor()

Each test checks one sentence of the contract in :class:`ensemble_core.plugin.executor.Executor`.
:class:`ExecutorKnobs` lists the attributes that describe your queue. :class:`ExecutorSuite` adds
:class:`CrashSuite` and :class:`DecisionSuite`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ensemble_core.cli.toolkit import option_defaults
from ensemble_core.errors import ExecutorError
from ensemble_core.model.causes import CAUSES, Cause
from ensemble_core.model.events import ResizeOutcome
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Executor
from ensemble_core.plugin.option_schemas import plain
from ensemble_core.plugin.record_validation import CAPABILITIES, check_record
from ensemble_testing.crash import CrashSuite
from ensemble_testing.decisions import DecisionSuite
from ensemble_testing.executor_jobs import (
    JobEnvironmentContract,
    JobFieldsContract,
    SignalsContract,
)
from ensemble_testing.executor_reattach import LeavingContract
from ensemble_testing.executor_settings import ExecutorKnobs
from ensemble_testing.session import Session, alive, wait_until, within

__all__ = ["ExecutorContract", "ExecutorKnobs", "ExecutorSuite", "Session", "wait_until"]


@dataclass
class _Cost:
    """Processes and connections that a thread started, and seconds that it slept."""

    calls: int = 0
    slept: float = 0.0


#: Audit events that count as calls (``sys.addaudithook``), and the threads whose calls are counted.
_CALLS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.fork", "os.system", "socket.connect"})
_counted: dict[int, _Cost] = {}


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _CALLS and _counted:
        cost = _counted.get(threading.get_ident())
        if cost is not None:
            cost.calls += 1


@contextmanager
def _costs(patch: pytest.MonkeyPatch) -> Iterator[_Cost]:
    """Count the resources that this thread uses in the block."""
    if not getattr(_audit, "installed", False):
        sys.addaudithook(_audit)
        _audit.installed = True  # type: ignore[attr-defined]  # a hook cannot be taken away again
    cost, thread, sleep = _Cost(), threading.get_ident(), time.sleep

    def counted(seconds: float) -> None:
        if threading.get_ident() == thread:
            cost.slept += seconds
        sleep(seconds)

    with patch.context() as patched:
        patched.setattr(time, "sleep", counted)
        _counted[thread] = cost
        try:
            yield cost
        finally:
            del _counted[thread]


class ExecutorContract(JobFieldsContract, JobEnvironmentContract, SignalsContract, LeavingContract):
    """Tests of the contract. Override :meth:`make_executor`, and set the attributes if needed."""

    def test_record_lists_the_capabilities(self) -> None:
        record = self.plugin
        if record is None:
            pytest.skip("the suite's attribute 'plugin' is not a record")
        check_record(record)
        schema = plain(record.options)
        for name, option in (schema.get("properties") or {}).items():
            assert option.get("description"), f"option {name!r} has no description"
        import jsonschema_rs

        given = option_defaults(schema, self.build_options)
        if schema:
            wrong = [e.message for e in jsonschema_rs.validator_for(schema).iter_errors(given)]
            assert not wrong, (
                f"the options {given!r} are rejected: {wrong[0]}; put required options without a "
                f"default into the suite's attribute 'build_options'"
            )
        made = self.make_executor()
        assert record.capabilities == made.capabilities
        assert record.shared == made.shared
        built: object = record.build(given)
        assert isinstance(built, Executor)
        assert built.capabilities == made.capabilities

    def test_submit_cost_is_independent_of_the_number_of_jobs(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Jobs are submitted in bulk: no sleep, process or connection per job."""
        jobs = [session.job(*self.succeeding) for _ in range(1 + self.many)]
        costs: list[_Cost] = []

        def submit(jobs: Sequence[Job]) -> None:
            with _costs(monkeypatch) as cost:
                costs.append(cost)
                session.submit_here(jobs)

        for some in (jobs[:1], jobs[1:]):
            within(self.timeout, "submit", partial(submit, some))
        one, bulk = costs
        session.wait_clean(*jobs)
        assert bulk.slept <= self.sleep_allowed, f"submit sleeps for {bulk.slept:g} s"
        assert bulk.calls <= one.calls + self.calls_allowed, (
            f"{bulk.calls} processes and connections for {self.many} jobs, {one.calls} for one"
        )

    def test_capabilities_are_declared(self) -> None:
        assert self.make_executor().capabilities <= CAPABILITIES

    def test_successful_job_emits_its_events_in_order(self, session: Session) -> None:
        job = session.job(*self.succeeding)
        session.run(job)
        self.check_order(session, job)
        names = session.names(job)
        assert names.index("start") < names.index("finish")
        assert os.WIFEXITED(session.context(job, "finish")["status"])
        assert os.WEXITSTATUS(session.context(job, "finish")["status"]) == 0
        assert not self.fatal(session, job)

    def test_failed_job_reports_its_exit_code(self, session: Session) -> None:
        job = session.job(*self.failing)
        session.run(job)
        self.check_order(session, job)
        status = session.context(job, "finish")["status"]
        assert os.waitstatus_to_exitcode(status) == self.failing_code

    def test_missing_command_fails_only_its_job(self, session: Session) -> None:
        bad, good = session.job(*self.missing), session.job(*self.succeeding)
        session.run(bad, good)
        self.check_order(session, bad)
        failed = [e for e in session.of(bad) if e.name == "finish" and e.context["status"]]
        assert self.fatal(session, bad) or failed
        assert session.context(good, "finish")["status"] == 0

    def test_exceptions_have_type_severity_and_note(self, session: Session) -> None:
        job = session.job(*self.lasting)
        session.submit(job)
        session.wait_for(job, "start")
        session.cancel(job)
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
            assert {"start", "finish"} <= set(session.names(job)), session.names(job)
            assert session.context(job, "finish")["status"] == 0

    def test_cancelling_a_running_job_ends_it(self, session: Session) -> None:
        job = session.job(*self.lasting)
        session.submit(job)
        session.wait_for(job, "start")
        session.cancel(job)
        session.wait_clean(job)
        self.check_order(session, job)
        self.check_end(session, job, "cancel")
        names = session.names(job)
        assert names.index("exception") < names.index("finish")
        assert session.context(job, "finish")["status"] != 0

    def test_cancelled_waiting_jobs_never_start(self, session: Session) -> None:
        jobs = [session.job(*self.lasting) for _ in range(self.many)]
        session.submit(*jobs)
        session.cancel(*jobs)
        session.wait_clean(*jobs)
        for job in jobs:
            self.check_order(session, job)
            self.check_end(session, job, "cancel")
        assert any("start" not in session.names(job) for job in jobs)

    def test_no_more_jobs_run_at_once_than_there_are_slots(self, session: Session) -> None:
        """All slots are in use before a job is cancelled, because a cancelled job may free a slot
        for another one. The last job is over before the first check. Without a limit, earlier jobs
        would have started by then.
        """
        slots = self.slots_of(session)
        jobs = [session.job(*self.lasting) for _ in range(max(self.many, (slots or 0) + 2))]

        def began() -> list[str]:
            return [job.id for job in jobs if "start" in session.names(job)]

        session.submit(*jobs)
        session.wait(lambda: len(began()) >= (slots or 1), f"the start of {slots or 1} jobs")
        slots = self.slots_of(session) or len(jobs) - 1
        for ended in (jobs[-1:], None):
            waiting = [job for job in jobs if "start" not in session.names(job)]
            session.cancel(*(ended or waiting))
            session.wait_clean(*(ended or waiting))
            count = len(began())
            assert count <= slots, f"{count} jobs run at once in {slots} slots"

    def test_redundant_cancel_does_nothing(self, session: Session) -> None:
        over = session.job(*self.succeeding)
        session.run(over)
        before = session.names(over)
        lasting = session.job(*self.lasting)
        session.submit(lasting)
        session.wait_for(lasting, "start")
        session.cancel(over, "nobody.7", lasting)
        session.cancel(lasting, over)
        session.wait_clean(lasting)
        assert session.names(over) == before
        assert not session.of("nobody.7")
        self.check_end(session, lasting, "cancel")

    def test_time_limit_ends_a_job(self, session: Session) -> None:
        job = session.job(*self.lasting, duration=1.0)
        session.run(job)
        self.check_order(session, job)
        self.check_end(session, job, "timeout")

    @pytest.mark.parametrize("cause", CAUSES)
    def test_cause_of_each_end_is_reported(
        self, cause: Cause, request: pytest.FixtureRequest
    ) -> None:
        """Each of the executor's ``causes`` is reported.

        For each cause, a method ``end_by_CAUSE`` ends a job that way and returns the cause that was
        reported. Executors with other causes add such methods.
        """
        if cause not in self.make_executor().causes:
            return
        how = getattr(self, f"end_by_{cause.replace('-', '_')}", None)
        assert how is not None, f"the suite has no method end_by_{cause.replace('-', '_')}"
        assert how(request.getfixturevalue("session")) == cause

    def end_by_exit(self, session: Session) -> Cause:
        """Run a job that fails, and one that succeeds. Return the cause."""
        jobs = session.job(*self.succeeding), session.job(*self.failing)
        session.run(*jobs)
        (cause,) = {session.cause(job) for job in jobs}
        return cause

    def end_by_signal(self, session: Session) -> Cause:
        """Run a job that a signal kills. Return the cause."""
        job = session.job(*self.killing)
        session.run(job)
        return session.cause(job)

    def end_by_timeout(self, session: Session) -> Cause:
        """Run a job that exceeds its time limit. Return the cause."""
        job = session.job(*self.lasting, duration=1.0)
        session.run(job)
        return session.cause(job)

    def end_by_cancelled(self, session: Session) -> Cause:
        """Cancel many jobs, some of which have not started. Return the cause."""
        jobs = [session.job(*self.lasting) for _ in range(self.many)]
        session.submit(*jobs)
        # A queue may start the jobs in any order.
        session.wait(lambda: any("start" in session.names(job) for job in jobs), "a job's start")
        session.cancel(*jobs)
        session.wait_clean(*jobs)
        (cause,) = {session.cause(job) for job in jobs}
        return cause

    def end_by_submit(self, session: Session) -> Cause:
        """Run a job with an impossible output file. Return the cause."""
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
        try:
            assert all(alive(pid) for pid in pids)
            session.cancel(job)
            session.wait_clean(job)
            assert [pid for pid in pids if alive(pid)] == []
        finally:
            for pid in filter(alive, pids):
                os.kill(pid, signal.SIGKILL)

    def test_resize_is_answered_once(self, session: Session) -> None:
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

    def test_repeated_resize_is_idempotent(self, session: Session) -> None:
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
        """Return the resize requests answered so far."""
        return [e.request for e in session.events if isinstance(e, ResizeOutcome)]

    def test_gauges_are_numbers_by_metric_path(self, session: Session) -> None:
        gauges = session.executor.resources()
        for path, value in gauges.items():
            assert "." in path
            assert isinstance(value, (int, float))
        for what in ("nodes", "cores", "gpus"):
            if f"{what}.up" in gauges:
                assert f"{what}.free" in gauges, (
                    f"gauge {what}.up without {what}.free: report both or neither"
                )
                assert 0 <= gauges[f"{what}.free"] <= gauges[f"{what}.up"]


class ExecutorSuite(ExecutorContract, CrashSuite, DecisionSuite):
    """All tests of an executor: its contract, :class:`CrashSuite` and :class:`DecisionSuite`.

    The last two use the attributes ``executor`` and ``options`` for the command line.
    """
