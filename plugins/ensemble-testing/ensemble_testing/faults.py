"""Fault suite: a real queue that is away, slow, garbled or forgetful, by its commands.

An author's own test file, for an executor that runs commands of its queue::

    from ensemble_testing import FaultSuite

    class TestMyQueueAtFault(FaultSuite):
        commands = {"connect": "qinfo", "submit": "qsub", "ask": "qstat", "cancel": "qdel"}
        away = "qsub: cannot connect to server"
        nothing = "0 jobs"

        @pytest.fixture
        def queue(self, my_cluster): ...

        def make_executor(self, period=1.0):
            return MyExecutor(poll=period)

Programs of the same names come first on the PATH: they do what a test says, and else call the real
ones. Whatever they do, nothing runs twice, nothing is lost, and each trouble is told once, with
what to do. Needs ensemble-batch.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ensemble_batch import Records, Sent, pace

from ensemble_core.errors import ExecutorError
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Executor
from ensemble_testing.session import Session, wait_until

__all__ = ["FaultSuite"]

#: A program in the place of a queue's: what it is to do stands in a file, a line for each call;
#: ``… always`` stays.
_PROGRAM = """#!/bin/bash
plan={folder}/{name}.plan
mode=
if [ -s "$plan" ]; then
    read -r mode <"$plan"
    case $mode in
    *" always") mode=${{mode% always}} ;;
    *) tail -n +2 "$plan" >"$plan.new"; mv "$plan.new" "$plan" ;;
    esac
fi
echo "$mode" >>{folder}/{name}.calls
case $mode in
away) cat {folder}/away >&2; exit 1 ;;
lost) {real} "$@" >/dev/null; cat {folder}/away >&2; exit 1 ;;
garbled) echo '%! <<< }} 0x1f'; exit 0 ;;
cut) out=$({real} "$@"); printf '%s' "${{out:0:${{#out}}/2}}" ;;
nothing) cat {folder}/nothing ;;
slow) sleep 2; exec {real} "$@" ;;
*) exec {real} "$@" ;;
esac
"""


class FaultSuite:
    """Tests of an executor on a queue that fails: a real one, begun by the fixture ``queue``."""

    #: The queue's commands by what they do: ``connect``, ``submit``, ``ask``, ``cancel``. One
    #: command may do several.
    commands: ClassVar[Mapping[str, str]]
    #: What they say where the queue is away; and what ``ask`` prints where there is no job.
    away: ClassVar[str]
    nothing: ClassVar[str]
    #: Seconds that each wait may last.
    timeout: ClassVar[float] = 120.0

    def make_executor(self, period: float = 1.0) -> Executor:
        """An executor that asks its queue every ``period`` seconds."""
        raise NotImplementedError

    @pytest.fixture
    def queue(self) -> None:
        """The queue, and its commands on the PATH: to be overridden by a fixture that begins it."""

    @pytest.fixture(autouse=True)
    def _programs(self, queue: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = tmp_path / "programs"
        self.folder.mkdir()
        (self.folder / "away").write_text(f"{self.away}\n")
        (self.folder / "nothing").write_text(f"{self.nothing}\n")
        for name in set(self.commands.values()):
            real = shutil.which(name)
            assert real is not None, f"{name} is not on the PATH"
            program = self.folder / name
            program.write_text(_PROGRAM.format(folder=self.folder, name=name, real=real))
            program.chmod(0o755)
        monkeypatch.setattr(pace, "SETTLE", 2.0)
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
        """Sets the faults of commands from now on, by their purpose; the others do as they
        should."""
        for name in set(self.commands.values()):
            (self.folder / f"{name}.plan").unlink(missing_ok=True)
        for what, lines in faults.items():
            new = self.folder / "new"
            new.write_text(lines + "\n")
            new.replace(self.folder / f"{self.commands[what]}.plan")

    def calls(self, what: str, mode: str) -> int:
        """How often a command has done this."""
        path = self.folder / f"{self.commands[what]}.calls"
        return path.read_text().split("\n").count(mode) if path.exists() else 0

    def counted(self, session: Session, seconds: float = 0, **fields: Any) -> Job:
        """A job that says when it ran."""
        script = f"echo $ENSEMBLE_JOB_ID >> {self.ran_in}; sleep {seconds}"
        return session.job("sh", "-c", script, **fields)

    def check(self, session: Session, *jobs: Job, told: Collection[int] = (1,)) -> None:
        """Each ran once and succeeded, and of the trouble was told so often, with what to do."""
        assert {job.id: session.context(job, "finish")["status"] for job in jobs} == dict.fromkeys(
            (job.id for job in jobs), 0
        )
        assert sorted(self.ran_in.read_text().split()) == sorted(job.id for job in jobs)
        troubles = [text for text in session.problems() if "does again" not in text]
        assert len(troubles) in told, troubles
        for text in troubles:
            assert "again" in text or "hint" in text, text

    def test_a_queue_that_is_away_at_the_start_is_an_error_with_what_to_do(
        self, tmp_path: Path
    ) -> None:
        self.plan({"connect": "away always", "submit": "away always"})
        session = Session(self.make_executor(), tmp_path, self.timeout)
        with pytest.raises(ExecutorError) as refused, session:
            pass
        assert refused.value.hint
        assert refused.value.transient  # who opens it may try again
        self.plan({})
        with session:
            session.run(job := self.counted(session))
            self.check(session, job, told=(0,))

    def test_a_queue_that_goes_away_in_the_middle_costs_nothing(self, session: Session) -> None:
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
        self.check(session, running, *later)

    def test_many_jobs_are_few_commands(self, session: Session) -> None:
        before, began = self.asked(), time.monotonic()
        jobs = [self.counted(session) for _ in range(40)]
        session.run(*jobs)
        seconds = time.monotonic() - began
        # All at once, five questions for all in four periods, one now and then for the nodes.
        assert self.calls("submit", "") <= 2
        assert self.asked() - before <= 1.25 * seconds + seconds / 10 + 4
        self.check(session, *jobs, told=(0,))

    def asked(self) -> int:
        """How often the queue was asked so far."""
        return self.calls("ask", "")

    def test_an_end_that_a_job_tells_itself_is_known_without_a_question(
        self, tmp_path: Path
    ) -> None:
        with Session(self.make_executor(600.0), tmp_path, self.timeout, tidy=True) as session:
            session.run(first := self.counted(session))
            before = self.asked()
            jobs = [self.counted(session) for _ in range(3)]
            session.run(*jobs)
            assert self.asked() - before <= 1  # what nodes there are
            self.check(session, first, *jobs, told=(0,))

    def test_an_end_of_which_nobody_tells_is_known_by_asking(self, session: Session) -> None:
        job = session.job("sh", "-c", "kill -9 $PPID; exec sleep 1")
        session.run(job)
        statuses = [e.context["status"] for e in session.of(job) if e.name == "finish"]
        assert statuses != [0]
        assert "exception" in session.names(job) or statuses

    def test_a_slow_queue_is_waited_for(self, session: Session) -> None:
        self.plan(dict.fromkeys(self.commands, "slow always"))
        jobs = [self.counted(session) for _ in range(3)]
        session.run(*jobs)
        self.check(session, *jobs, told=(0,))

    def test_answers_that_nobody_can_read_are_asked_for_again(self, session: Session) -> None:
        job = self.counted(session, 4)
        self.plan({"ask": "garbled\ngarbled\ngarbled\ngarbled"})
        session.run(job)
        assert self.calls("ask", "garbled") >= 1
        self.check(session, job)

    def test_an_answer_that_was_cut_short_loses_no_job(self, session: Session) -> None:
        gate = self.folder / "gate"
        script = f"echo $ENSEMBLE_JOB_ID >> {self.ran_in}; until [ -e {gate} ]; do sleep 0.1; done"
        jobs = [session.job("sh", "-c", script) for _ in range(4)]
        session.submit(*jobs)
        for job in jobs[: 2 if session.executor.resources().get("cores.up", 1) > 1 else 1]:
            session.wait_for(job, "start")
        self.plan({"ask": "cut\ncut"})
        wait_until(lambda: self.calls("ask", "cut") == 2)
        gate.touch()
        session.wait_clean(*jobs)
        assert sorted(self.ran_in.read_text().split()) == sorted(job.id for job in jobs)
        assert not any(event.name == "exception" for job in jobs for event in session.of(job))

    def test_a_job_that_the_queue_forgets_is_told_as_lost_once(self, session: Session) -> None:
        job = session.job("true", urgency=0)
        session.submit(job)
        session.wait_for(job, "priority")
        self.plan({"ask": "nothing always"})
        session.wait_clean(job)
        assert session.exception(job) == "lost"
        assert "does not know this job any more" in session.context(job, "exception")["note"]

    def test_a_submit_whose_answer_is_lost_is_made_once(self, session: Session) -> None:
        self.plan({"submit": "lost"})
        jobs = [self.counted(session) for _ in range(3)]
        session.run(*jobs)
        assert self.calls("submit", "lost") == 1
        # A job may speak for itself before anybody looks for it.
        self.check(session, *jobs, told=(0, 1))

    def test_a_submit_that_never_arrived_is_made_again(self, session: Session) -> None:
        self.plan({"submit": "away"})
        jobs = [self.counted(session) for _ in range(3)]
        session.run(*jobs)
        self.check(session, *jobs)

    def test_a_full_disk_submits_nothing_until_it_has_room(
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
        assert any("can be written again" in text for text in session.problems())
        assert sorted(self.ran_in.read_text().split()) == sorted(job.id for job in jobs)
        assert len(session.problems()) == 2

    @pytest.mark.parametrize("off", [3600.0, -3600.0])
    def test_a_clock_that_is_an_hour_off_changes_no_order_and_no_length(
        self, off: float, tmp_path: Path
    ) -> None:
        session = Session(self.make_executor(), tmp_path, self.timeout, tidy=True, clock_off=off)
        with session:
            before = session.now()
            jobs = [self.counted(session, 4), self.counted(session, 0)]
            session.run(*jobs)
            after = session.now()
        for job in jobs:
            times = [event.timestamp for event in session.of(job)]
            assert times == sorted(times)
            assert before <= times[0]
            assert times[-1] <= after + 1e-3
        at = {event.name: event.timestamp for event in session.of(jobs[0])}
        # With a clock that is off it began when that was heard of, which a busy machine is late to.
        late = at["start"] - before
        assert max(0.2, 3.9 - late) < at["finish"] - at["start"] < 3.9 + (after - before)
        self.check(session, *jobs, told=(0,))
