"""Fault suite: a real queue whose commands fail, hang, print garbage or forget jobs.

:class:`FaultSuite` has an example. Needs ensemble-batch.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ensemble_batch import BatchExecutor, QueueExecutor, Records, Sent, timing
from ensemble_batch.shared_folder import SharedFolder

from ensemble_core.errors import ExecutorError
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Executor
from ensemble_testing.session import Session, need, wait_until

_PURPOSES = ("connect", "submit", "ask", "cancel")
#: Replacement for a queue's program. A file has one line per call with the call's fault; a line ``…
#: always`` stays. The ``cases`` select the command by its first arguments.
_PROGRAM = """#!/bin/bash
case "$* " in
{cases}
*) name={name} ;;
esac
plan={folder}/$name.plan
mode=
if [ -s "$plan" ]; then
    read -r mode <"$plan"
    case $mode in
    *" always") mode=${{mode% always}} ;;
    *) tail -n +2 "$plan" >"$plan.new"; mv "$plan.new" "$plan" ;;
    esac
fi
echo "$mode" >>{folder}/$name.calls
case $mode in
away) cat {folder}/away >&2; exit 1 ;;
lost) {real} "$@" >/dev/null; cat {folder}/away >&2; exit 1 ;;
garbled) echo '%! <<< }} 0x1f'; exit 0 ;;
cut) out=$({real} "$@"); printf '%s' "${{out:0:${{#out}}/2}}" ;;
nothing) cat {folder}/nothing ;;
partial) {real} "$@" | {partial} ;;
slow) sleep 2; exec {real} "$@" ;;
*) exec {real} "$@" ;;
esac
"""


def _file(command: str) -> str:
    """Return a command without spaces, for use in file names."""
    return "_".join(command.split())


class FaultSuite:
    """Tests of an executor on a real queue whose commands fail. In an author's test file::

        from ensemble_testing import FaultSuite

        class TestFaults(FaultSuite):
            commands = {"connect": "qinfo", "submit": "qsub", "ask": "qstat", "cancel": "qdel"}
            away = "qsub: cannot connect to server"
            nothing = "0 jobs"

            @pytest.fixture
            def queue(self, my_cluster): ...

            def make_executor(self, period=1.0):
                return MyExecutor(poll=period)

    The suite puts programs with the names of your ``commands`` first on the PATH. They fail when a
    test requires it, and otherwise call the real programs. No job may run twice or be lost, and
    each problem must be reported once, with a hint.

    A queue without commands (a library, a folder) cannot use these programs. For it, override
    ``plan`` and ``calls`` to inject the faults, and the fixture ``_programs``, as the tests of
    ensemble-kubernetes do.

    Attributes
    ----------
    commands:
        The command that your executor runs for each of four purposes: ``connect``, ``submit``,
        ``ask`` and ``cancel``. All four are required. If one program serves several purposes, add
        the first arguments that distinguish them: ``"tsp -L"`` and ``"tsp"``. Only ``connect`` and
        ``ask`` may be the same. Jobs should not call the program of ``submit``, because the suite
        counts its calls.
    away:
        What the commands print to stderr if the queue is unreachable; their exit code is then 1.
    nothing:
        What ``ask`` prints to stdout if the queue has no jobs; its exit code is then 0.
    partial:
        A shell command that removes the first job from the output of ``ask``: ``"sed 1d"``. Without
        it, answers that list only some jobs are not tested.
    acts:
        Commands by which other people or the queue change a job with the id ``{id}``: ``suspend``
        and ``unsuspend``, ``requeue``. Tests of missing ones are skipped. ``acts = {"suspend":
        "qhold {id}"}``
    requeue_options:
        Fields of a job that the queue may requeue, such as ``{"options": {"my": {"requeue":
        True}}}``.
    restart_codes:
        Exit codes of a job's script at which the queue starts the job again, or holds it.
    lists_prove:
        Set this to ``True`` if the queue's lists are consistent, so that a missing job is over.
    holds:
        Whether the queue holds a job with urgency 0. Set this to ``False`` if such a job is
        rejected; a test then fills all slots to keep a job waiting.
    names_cancels:
        The states of jobs for which the queue tells that another client has cancelled them. In
        other states, such a job may be ``lost`` or end by a signal. Empty: skip this test.
    slots:
        Number of one-core jobs that run concurrently; ``None``: use the gauge ``cores.up``, or 1.
    timeout:
        Time limit of each wait in seconds.
    """

    commands: ClassVar[Mapping[str, str]]
    away: ClassVar[str]
    nothing: ClassVar[str]
    partial: ClassVar[str | None] = None
    acts: ClassVar[Mapping[str, str]] = {}
    requeue_options: ClassVar[Mapping[str, Any]] = {}
    restart_codes: ClassVar[Collection[int]] = ()
    lists_prove: ClassVar[bool] = False
    holds: ClassVar[bool] = True
    names_cancels: ClassVar[Collection[str]] = ("waiting", "running")
    slots: ClassVar[int | None] = None
    timeout: ClassVar[float] = 120.0

    def make_executor(self, period: float = 1.0) -> Executor:
        """Return an executor that polls its queue every ``period`` seconds."""
        raise NotImplementedError("override make_executor(self, period=1.0)")

    @pytest.fixture
    def queue(self) -> None:
        """Start the queue and put its commands on the PATH. Override this fixture if needed."""

    @pytest.fixture(autouse=True)
    def _programs(self, queue: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        need(
            self,
            commands=f"the queue's command for each of {', '.join(_PURPOSES)}",
            away="what these commands print to stderr if the queue is unreachable",
            nothing="what the command 'ask' prints to stdout if the queue has no jobs",
        )
        whose = f"the attribute 'commands' of {type(self).__name__}"
        missing = [purpose for purpose in _PURPOSES if purpose not in self.commands]
        if missing:
            pytest.fail(
                f"add {', '.join(missing)} to {whose}; for a queue without such a command, see "
                "help(ensemble_testing.FaultSuite)",
                pytrace=False,
            )
        submit = self.commands["submit"]
        if list(self.commands.values()).count(submit) > 1:
            pytest.fail(
                f"in {whose}, {submit!r} is used for 'submit' and for another purpose: add the "
                f"arguments that only a submit has, such as '{submit} -s'",
                pytrace=False,
            )
        self.folder = tmp_path / "programs"
        self.folder.mkdir()
        (self.folder / "away").write_text(f"{self.away}\n")
        (self.folder / "nothing").write_text(f"{self.nothing}\n")
        for name in {command.split()[0] for command in self.commands.values()}:
            real = shutil.which(name)
            if real is None:
                pytest.fail(f"{name} is not on the PATH: extend the PATH in the fixture 'queue'")
            cases = {
                f'"{command.removeprefix(name).strip()} "*) name={_file(command)} ;;'
                for command in self.commands.values()
                if command.startswith(f"{name} ")
            }
            text = _PROGRAM.format(
                folder=self.folder,
                name=name,
                real=real,
                cases="\n".join(sorted(cases)[::-1]),
                partial=self.partial or "cat",
            )
            program = self.folder / name
            program.write_text(text)
            program.chmod(0o755)
        monkeypatch.setattr(timing, "SETTLE", 2.0)
        monkeypatch.setenv("PATH", f"{self.folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.chdir(tmp_path)
        self.ran_in = tmp_path / "ran"

    @pytest.fixture
    def session(self, tmp_path: Path) -> Iterator[Session]:
        session = Session(self.make_executor(), tmp_path, self.timeout, tidy=True)
        with session:
            yield session
            self.plan({})
        session.check_ended_once()

    def plan(self, faults: Mapping[str, str]) -> None:
        """Set the faults of commands from now on, by the commands' purpose; the other commands
        work.
        """
        for command in self.commands.values():
            (self.folder / f"{_file(command)}.plan").unlink(missing_ok=True)
        for what, lines in faults.items():
            new = self.folder / "new"
            new.write_text(lines + "\n")
            new.replace(self.folder / f"{_file(self.commands[what])}.plan")

    def calls(self, what: str, mode: str) -> int:
        """Return how often a command was called with this fault."""
        path = self.folder / f"{_file(self.commands[what])}.calls"
        return path.read_text().split("\n").count(mode) if path.exists() else 0

    def counted(self, session: Session, seconds: float = 0, **fields: Any) -> Job:
        """Return a job that records its run."""
        script = f"echo $ENSEMBLE_JOB_ID >> {self.ran_in}; sleep {seconds}"
        return session.job("sh", "-c", script, **fields)

    def gated(self, session: Session, gate: Path, **fields: Any) -> Job:
        """Return a job that records its run, and ends once the file ``gate`` exists."""
        script = f"echo $ENSEMBLE_JOB_ID >> {self.ran_in}; until [ -e {gate} ]; do sleep 0.1; done"
        return session.job("sh", "-c", script, **fields)

    #: How many warnings a lost submit may cause: a queue that forgets jobs that have ended also
    #: says that the repeated one may run twice.
    repeated: ClassVar[Collection[int]] = (1, 2)

    def check(self, session: Session, *jobs: Job, told: Collection[int] = (1,)) -> None:
        """Check that each job ran once and succeeded, and that the problem was reported with a
        hint.

        The number of reports must be one of ``told``.
        """
        assert {job.id: session.context(job, "finish")["status"] for job in jobs} == dict.fromkeys(
            (job.id for job in jobs), 0
        )
        assert sorted(self.ran_in.read_text().split()) == sorted(job.id for job in jobs)
        troubles = [text for text in session.problems() if "responds again" not in text]
        wanted = " or ".join(map(str, told))
        assert len(troubles) in told, f"{len(troubles)} warnings instead of {wanted}: {troubles}"
        for text in troubles:
            assert any(word in text for word in ("again", "retr", "hint")), (
                f"this warning neither says what is retried nor has a hint: {text}"
            )

    def test_unreachable_queue_at_start_is_an_error_with_a_hint(self, tmp_path: Path) -> None:
        self.plan({"connect": "away always", "submit": "away always"})
        session = Session(self.make_executor(), tmp_path, self.timeout)
        with pytest.raises(ExecutorError) as refused, session:
            pass
        assert refused.value.hint, f"the error of connect() has no hint: {refused.value}"
        assert refused.value.transient, (
            "if the queue is unreachable, connect() must raise CannotTake(message, hint=...), so "
            f"that opening can be retried; it raised {refused.value!r}"
        )
        self.plan({})
        with session:
            session.run(job := self.counted(session))
            self.check(session, job, told=(0,))

    def test_queue_outage_loses_no_job(self, session: Session) -> None:
        running, doomed = self.counted(session, 1), session.job("sleep", "600")
        session.submit(running, doomed)
        session.wait_for(running, "start")
        session.wait_for(doomed, "start")
        self.plan(dict.fromkeys(self.commands, "away always"))
        session.wait_clean(running)
        later = [self.counted(session) for _ in range(3)]
        session.submit(*later)
        session.cancel(doomed)
        session.wait(lambda: bool(session.problems()), "a warning")
        wait_until(lambda: sum(self.calls(what, "away") for what in ("submit", "ask")) > 3)
        self.plan({})
        session.wait_clean(*later, doomed)
        assert session.exception(doomed) == "cancel"
        self.check(session, running, *later, told=self.repeated)

    def cancel_from_outside(self, session: Session, *jobs: Job) -> None:
        """Cancel jobs as another client of the queue does: with the command ``cancel``.

        Override this method if the command needs more than the queue's id of a job.
        """
        for job in jobs:
            words = (*self.commands["cancel"].split(), session.queue_id(job))
            done = subprocess.run(words, capture_output=True, text=True, timeout=self.timeout)
            assert done.returncode == 0, f"{words} failed: {done.stdout}{done.stderr}"

    def test_jobs_that_others_cancel_are_cancelled(self, session: Session) -> None:
        if not self.names_cancels:
            pytest.skip("the queue does not tell that another client cancelled a job")
        gate = self.folder / "gate"
        try:
            waiting = self.waiting(session, gate)
            jobs = [waiting]
            if self.holds:
                jobs.append(running := self.gated(session, gate))
                session.submit(running)
                session.wait_for(running, "start")
            self.cancel_from_outside(session, *jobs)
            session.wait_clean(*jobs)
        finally:
            gate.touch()
        assert "start" not in session.names(waiting)
        for job, state in zip(jobs, ("waiting", "running"), strict=False):
            cause = session.cause(job)
            assert cause == "cancelled" or state not in self.names_cancels, (
                f"another client cancelled the {state} job {job.id}, and its cause is {cause!r}: "
                f"emit an exception of type 'cancel', or remove {state!r} from "
                f"'names_cancels' of {type(self).__name__} if the queue does not tell"
            )
            assert cause != "exit", f"{job.id} was cancelled, and looks as if it ended by itself"

    def test_a_job_that_others_and_the_run_cancel_ends_once(self, session: Session) -> None:
        gate = self.folder / "gate"
        session.submit(job := self.gated(session, gate))
        session.wait_for(job, "start")
        self.plan({"cancel": "slow"})
        self.cancel_from_outside(session, job)
        session.cancel(job)
        session.wait_clean(job)
        gate.touch()
        assert session.cause(job) in ("cancelled", "signal")

    def test_many_jobs_need_few_commands(self, session: Session) -> None:
        before, began = self.asked(), time.monotonic()
        jobs = [self.counted(session) for _ in range(40)]
        session.run(*jobs)
        seconds = time.monotonic() - began
        most = getattr(session.executor, "most_jobs", len(jobs))
        if most > 1:
            batches, submits = 1 + math.ceil(len(jobs) / most), self.calls("submit", "")
            assert submits <= batches, (
                f"{len(jobs)} jobs took {submits} calls of {self.commands['submit']!r}, and "
                f"most_jobs = {most} allows {batches}: submit each batch with one call, or set "
                "most_jobs = 1 if the queue has no arrays"
            )
        # If all start together, there are five polls in four periods, and sometimes one query for
        # nodes.
        asked, allowed = self.asked() - before, 1.25 * seconds + seconds / 10 + 4
        assert asked <= allowed, (
            f"{asked} calls of {self.commands['ask']!r} in {seconds:.0f} s, and poll = 1 allows "
            f"{allowed:.0f}: ask about all jobs with one call"
        )
        self.check(session, *jobs, told=(0,))

    def asked(self) -> int:
        """Return how often the queue was polled so far."""
        return self.calls("ask", "")

    def test_reported_end_needs_no_query(self, tmp_path: Path) -> None:
        with Session(self.make_executor(600.0), tmp_path, self.timeout, tidy=True) as session:
            session.run(first := self.counted(session))
            before = self.asked()
            jobs = [self.counted(session) for _ in range(3)]
            session.run(*jobs)
            assert self.asked() - before <= 1  # the query for nodes
            self.check(session, first, *jobs, told=(0,))

    def test_unreported_end_is_found_by_polling(self, session: Session) -> None:
        # The wrapper may be the parent of a shell that waits for the job.
        script = (
            "p=$(($(ps -o ppid= $PPID))); cmp -s /proc/$p/cmdline /proc/$PPID/cmdline || p=$PPID; "
            "kill -9 $p; exec sleep 1"
        )
        job = session.job("sh", "-c", script)
        session.run(job)
        statuses = [e.context["status"] for e in session.of(job) if e.name == "finish"]
        assert statuses != [0]
        assert "exception" in session.names(job) or statuses

    def test_slow_queue_loses_no_job(self, session: Session) -> None:
        self.plan(dict.fromkeys(self.commands, "slow always"))
        jobs = [self.counted(session) for _ in range(3)]
        session.run(*jobs)
        self.check(session, *jobs, told=(0,))

    def test_garbled_reply_is_requested_again(self, session: Session) -> None:
        gate = self.folder / "gate"
        job = self.gated(session, gate)
        session.submit(job)
        session.wait_for(job, "start")
        self.plan({"ask": "garbled always"})
        session.wait(lambda: bool(session.problems()), "a warning")
        wait_until(lambda: self.calls("ask", "garbled") > 3)
        self.plan({})
        gate.touch()
        session.wait_clean(job)
        self.check(session, job)

    def test_garbled_submit_reply_is_not_taken_for_an_id(self, session: Session) -> None:
        self.plan({"submit": "garbled"})
        session.run(job := self.counted(session))
        self.check(session, job, told=self.repeated)

    def test_truncated_reply_loses_no_job(self, session: Session) -> None:
        gate = self.folder / "gate"
        jobs = [self.gated(session, gate) for _ in range(4)]
        session.submit(*jobs)
        for job in jobs[: 2 if session.executor.resources().get("cores.up", 1) > 1 else 1]:
            session.wait_for(job, "start")
        self.plan({"ask": "cut\ncut"})
        wait_until(lambda: self.calls("ask", "cut") == 2)
        gate.touch()
        session.wait_clean(*jobs)
        assert sorted(self.ran_in.read_text().split()) == sorted(job.id for job in jobs)
        assert not any(event.name == "exception" for job in jobs for event in session.of(job))

    def act(self, what: str, session: Session, job: Job) -> None:
        """Change a job as somebody else, or skip the test."""
        if what not in self.acts:
            pytest.skip(f"the suite's attribute 'acts' has no command for {what!r}")
        words = self.acts[what].format(id=session.queue_id(job))
        done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"

    def test_removed_job_ends_once(self, session: Session) -> None:
        """Somebody else removes a waiting job."""
        executor = session.executor
        if not isinstance(executor, QueueExecutor):
            pytest.skip("it is not based on ensemble-batch")
        executor.lost_after = min(executor.lost_after, 3.0)
        gate = self.folder / "gate"
        try:
            job = self.waiting(session, gate)
            executor.end_jobs([session.queue_id(job)])
            session.wait_clean(job)
        finally:
            gate.touch()
        assert session.exception(job) in ("lost", "cancel")
        assert "finish" not in session.names(job)

    def test_blind_queue_loses_no_job(self, session: Session) -> None:
        """A queue in maintenance or fail-over answers, but lists no jobs."""
        self._blind(session, "nothing")

    def test_queue_that_lists_only_some_jobs_loses_none(self, session: Session) -> None:
        if self.partial is None:
            pytest.skip("the suite's attribute 'partial' is not set")
        self._blind(session, "partial")

    def _blind(self, session: Session, mode: str) -> None:
        if self.lists_prove:
            pytest.skip("the queue's lists are consistent")
        gate = self.folder / "gate"
        jobs = [self.gated(session, gate, duration=600.0 + number) for number in range(2)]
        session.submit(*jobs)
        session.wait_for(jobs[0], "start")
        waiting = session.job("true", urgency=0) if self.holds else None
        if waiting is not None:
            session.submit(waiting)
            session.wait_for(waiting, "priority")
        self.plan({"ask": f"{mode} always"})
        # A job that waits shows no sign of life, so the executor may ask about it more often.
        wait_until(lambda: self.calls("ask", mode) > (25 if waiting is not None else 8))
        ended = [job.id for job in jobs if "clean" in session.names(job)]
        assert not ended, f"absence from a list is no proof, but these jobs ended: {ended}"
        told = len(session.problems())
        assert told <= 1, f"several warnings: {session.problems()}"
        gate.touch()
        session.wait_clean(jobs[0])
        self.plan({})
        session.wait_clean(*jobs)
        if waiting is not None:
            assert "clean" not in session.names(waiting)
            session.cancel(waiting)
            session.wait_clean(waiting)
        self.check(session, *jobs, told=(0, 1))

    def test_blind_queue_at_a_resume_runs_no_job_twice(self, tmp_path: Path) -> None:
        if self.lists_prove:
            pytest.skip("the queue's lists are consistent")
        gate = self.folder / "gate"
        with Session(self.make_executor(), tmp_path, self.timeout) as first:
            job = self.gated(first, gate)
            first.submit(job)
            first.wait_for(job, "start")
        again = Session(self.make_executor(), tmp_path, self.timeout, tidy=True)
        again.resume(first)
        self.plan({"ask": "nothing always"})
        with again:
            assert again.executor.reattach({job.id: 0.0}) == {job.id: True}
            wait_until(lambda: self.calls("ask", "nothing") > 6)
            assert "clean" not in again.names(job)
            gate.touch()
            again.wait_clean(job)
            self.plan({})
        assert again.context(job, "finish")["status"] == 0
        assert self.ran_in.read_text().split() == [job.id]

    def test_suspended_job_is_reported_and_continues(self, session: Session) -> None:
        gate = self.folder / "gate"
        job = self.gated(session, gate)
        session.submit(job)
        session.wait_for(job, "start")
        self.act("suspend", session, job)
        session.wait_for(job, "suspend")
        self.act("unsuspend", session, job)
        session.wait_for(job, "unsuspend")
        gate.touch()
        session.wait_clean(job)
        names = session.names(job)
        assert names.index("suspend") < names.index("unsuspend") < names.index("finish")
        self.check(session, job, told=(0,))

    def test_requeued_job_waits_again(self, session: Session) -> None:
        gate = self.folder / "gate"
        job = self.gated(session, gate, **self.requeue_options)
        session.submit(job)
        session.wait_for(job, "start")
        wait_until(self.ran_in.exists)
        self.act("requeue", session, job)
        session.wait_for(job, "requeue")
        assert "finish" not in session.names(job)
        session.cancel(job)
        gate.touch()
        session.wait_clean(job)

    def test_failed_job_is_not_restarted_or_held_by_the_queue(self, session: Session) -> None:
        """Some queues do that after certain exit codes of a job's script."""
        executor = session.executor
        if not self.restart_codes or not isinstance(executor, QueueExecutor):
            pytest.skip("the suite's attribute 'restart_codes' is not set")
        script = f"echo $ENSEMBLE_JOB_ID >> {self.ran_in}; exit $1"
        jobs = [session.job("sh", "-c", script, "sh", str(code)) for code in self.restart_codes]
        session.run(*jobs)
        statuses = [session.context(job, "finish")["status"] for job in jobs]
        assert statuses == [code << 8 for code in self.restart_codes]
        ids = [session.queue_id(job) for job in jobs]

        def left() -> list[str]:
            rows = executor.ask(ids)
            return [row.id for row in rows if row.id in ids and row.state != "over"]

        wait_until(lambda: not left(), self.timeout)
        assert sorted(self.ran_in.read_text().split()) == sorted(job.id for job in jobs)

    def test_forgotten_job_is_reported_lost_once(self, session: Session) -> None:
        if not self.lists_prove:
            pytest.skip("a queue's list is no proof: see test_removed_job_ends_once")
        gate = self.folder / "gate"
        try:
            job = self.waiting(session, gate)
            self.plan({"ask": "nothing always"})
            session.wait_clean(job)
        finally:
            gate.touch()
        assert session.exception(job) == "lost"
        assert "no longer knows this job" in session.context(job, "exception")["note"]

    def waiting(self, session: Session, gate: Path) -> Job:
        """Return a job that waits in the queue.

        It is a held job, or one behind jobs that run until ``gate`` exists.
        """
        if self.holds:
            job = session.job("true", urgency=0)
            session.submit(job)
            session.wait(
                lambda: not {"priority", "clean"}.isdisjoint(session.names(job)),
                f"priority of {job.id}",
            )
            if "priority" not in session.names(job):
                pytest.fail(
                    "the queue ran a job with urgency 0 instead of holding it: set "
                    f"'holds = False' in {type(self).__name__}\n{session.lacks(job, 'priority')}"
                )
        else:
            up = self.slots or int(session.executor.resources().get("cores.up", 1))
            script = f"until [ -e {gate} ]; do sleep 0.1; done"
            running = [session.job("sh", "-c", script) for _ in range(up)]
            session.submit(*running)
            for each in running:
                session.wait_for(each, "start")
            job = session.job("true")
            session.submit(job)
            session.wait_for(job, "priority")
        return job

    def test_submit_with_a_lost_reply_runs_once(self, session: Session) -> None:
        self.plan({"submit": "lost"})
        jobs = [self.counted(session) for _ in range(3)]
        session.run(*jobs)
        assert self.calls("submit", "lost") == 1
        # A job may report itself before the executor looks for it.
        self.check(session, *jobs, told=(0, 1))

    def test_lost_submit_is_repeated(self, session: Session) -> None:
        self.plan({"submit": "away"})
        jobs = [self.counted(session) for _ in range(3)]
        session.run(*jobs)
        self.check(session, *jobs, told=self.repeated)

    def test_second_run_with_the_same_tag_runs_its_own_jobs(
        self, session: Session, tmp_path: Path
    ) -> None:
        """Foreign jobs in the queue have our tag and our ids, and a submit gets no reply."""
        gate = self.folder / "gate"
        session.submit(foreign := self.gated(session, gate))
        session.wait_for(foreign, "submit")
        other = Session(self.make_executor(), tmp_path / "other", self.timeout, tidy=True)
        other.folder.mkdir()
        other.tag = session.tag
        with other:
            ours = self.gated(other, gate)
            assert ours.id == foreign.id
            self.plan({"submit": "lost"})
            other.submit(ours)
            other.wait_for(ours, "submit")
            gate.touch()
            other.wait_clean(ours)
            session.wait_clean(foreign)
        assert self.ran_in.read_text().split() == [ours.id] * 2

    def test_full_disk_delays_submits(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        full = [True]
        send = Records.send

        def refused(records: Records, sent: Sent) -> None:
            if full:
                raise OSError(28, "No space left on device")
            send(records, sent)

        monkeypatch.setattr(Records, "send", refused)
        jobs = [self.counted(session) for _ in range(3)]
        session.submit(*jobs)
        session.wait(lambda: bool(session.problems()), "a warning")
        assert "No space left on device" in session.problems()[0]
        assert not self.ran_in.exists()
        assert self.calls("submit", "") == 0
        full.clear()
        session.wait_clean(*jobs)
        assert any("is writable again" in text for text in session.problems())
        assert sorted(self.ran_in.read_text().split()) == sorted(job.id for job in jobs)
        assert len(session.problems()) == 2

    def test_job_on_an_isolated_node_ends_once(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its node neither sees the run's folder nor reaches the controller."""
        if not isinstance(session.executor, BatchExecutor):
            pytest.skip("its jobs do not report")
        script = SharedFolder.script

        def unseen(folder: SharedFolder, key: str, text: bytes) -> str:
            text = text.replace(os.fsencode(folder.folder), b"/nowhere")
            return script(folder, key, re.sub(rb"(?m)^_ens_port=.*", b"_ens_port=9", text))

        monkeypatch.setattr(SharedFolder, "script", unseen)
        session.run(job := self.counted(session))
        good = [e.context.get("status") for e in session.of(job) if e.name == "finish"] == [0]
        if session.executor.claims:  # without a claim it must not run
            assert not self.ran_in.exists()
            assert not good
        else:  # the queue knows how it ended
            assert self.ran_in.read_text().split() == [job.id]
            assert good

    @pytest.mark.parametrize("off", [3600.0, -3600.0])
    def test_clock_skew_changes_neither_order_nor_durations(
        self, off: float, tmp_path: Path
    ) -> None:
        session = Session(self.make_executor(), tmp_path, self.timeout, tidy=True, clock_off=off)
        with session:
            before = session.now()
            jobs = [self.counted(session, 2), self.counted(session, 0)]
            session.run(*jobs)
            after = session.now()
        for job in jobs:
            times = [event.timestamp for event in session.of(job)]
            assert times == sorted(times)
            assert before <= times[0]
            assert times[-1] <= after + 1e-3
        at = {event.name: event.timestamp for event in session.of(jobs[0])}
        # With a wrong clock, the job's start is the time of the report, which a busy machine
        # delays.
        late = at["start"] - before
        assert max(0.2, 1.9 - late) < at["finish"] - at["start"] < 1.9 + (after - before)
        self.check(session, *jobs, told=(0,))
