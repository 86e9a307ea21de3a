"""The end of an allocation: a queue signals every process of it, and local jobs run again."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ensemble_testing.processes import Allocation
from ensemble_testing.session import Session, wait_until

from ensemble_core.cli.main import main
from ensemble_core.local.executor import LocalExecutor
from ensemble_core.local.inside_allocation import allocation_process
from ensemble_core.local.process_tree import parent_of

#: Jobs that last until the file ``go`` exists. They react to SIGTERM in four ways: they end, exit
#: with an error, finish their work, or ignore it.
FILE = """
logging: {heartbeat: 0}
jobs:
  - {name: a, command: "sh {here}/job.sh {how}", parameters: {how: [end, fail, finish, ignore]},
     count: 3, grace: 1s, retry: {times: 5}}
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {id: failed, trigger: job-fail, repetitions: unlimited, action: {name: log, message: "{job}"}}
"""
JOB = """cd "$(dirname "$0")"
case $1 in
fail) trap 'exit 3' TERM INT ALRM USR1 ;;
finish) trap 'echo $ENSEMBLE_JOB_ID >> ended; exit 0' TERM INT ALRM USR1 ;;
ignore) trap '' TERM INT ALRM USR1 ;;
esac
echo $ENSEMBLE_JOB_ID >> started
until [ -e go ]; do sleep 0.2; done
echo $ENSEMBLE_JOB_ID >> ended
"""
SLOTS = 8  # so that four jobs wait


class Study:
    """A run with twelve jobs in an allocation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "e.yaml").write_text(FILE)
        (folder / "job.sh").write_text(JOB)
        self.allocation = self.start("run", "e.yaml", "--executor", "local", "--slots", str(SLOTS))

    def start(self, *words: str) -> Allocation:
        command = [sys.executable, "-m", "ensemble_core.cli", *words, "--tag", "t"]
        with (self.folder / "said").open("a") as said:
            return Allocation([*command, "--state", "state"], self.folder, dict(os.environ), said)

    def lines(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    def wait_started(self, count: int = SLOTS) -> None:
        wait_until(lambda: len(self.lines("started")) >= count, 100.0)

    def of(self, *words: str) -> list[int]:
        """Return the processes whose command line has one of these words."""
        return [
            process
            for process, line in self.allocation.processes().items()
            if any(word in line for word in words)
        ]

    @property
    def controller(self) -> list[int]:
        return self.of("-m ensemble_core.cli")

    @property
    def supervisor(self) -> list[int]:
        return self.of("supervisor import main")

    @property
    def jobs(self) -> list[int]:
        return self.of("job.sh", "sleep 0.2")

    def resume(self) -> dict[str, Any]:
        """Resume the run until its end. Return its status."""
        (self.folder / "go").touch()
        state = ["--state", str(self.folder / "state")]
        done = CliRunner().invoke(main, ["resume", "t", *state])
        assert done.exit_code == 0, done.output
        assert CliRunner().invoke(main, ["replay", "t", *state]).exit_code == 0
        status = CliRunner().invoke(main, ["status", "t", "--json", *state])
        found: dict[str, Any] = json.loads(status.output)
        return found

    def check(self, *, once: bool = True) -> None:
        """Resume the run: all jobs succeed at their first attempt.

        With ``once``, each has ended once. A controller that gets a signal first cancels the jobs:
        then a job that finishes its work within its grace runs again.
        """
        status = self.resume()
        (group,) = status["report"]["groups"]
        assert (group["success"], group["failed"], group["cancelled"]) == (12, 0, 0)
        ended = self.lines("ended")
        assert sorted(ended if once else {*ended}) == sorted(f"a.{each}" for each in range(12))
        fired = {rule["id"]: rule["fired"] for rule in status["report"]["rules"]}
        assert fired["failed"] == 0


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make controllers believe that they run in an allocation."""
    monkeypatch.setenv("SLURM_JOB_ID", "1")


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    study = Study(tmp_path)
    yield study
    study.allocation.kill()


@pytest.mark.parametrize("seed", range(3))
def test_a_signal_to_every_process_loses_no_job(study: Study, seed: int) -> None:
    chance = random.Random(seed)
    study.wait_started(chance.randint(1, SLOTS))
    study.allocation.end(chance, chance.choice((signal.SIGTERM, signal.SIGINT, signal.SIGALRM)))
    code = study.allocation.wait_over()
    assert code in (130, 142, 143), "\n".join(study.lines("said"))
    study.check(once=False)


ORDERS = list(itertools.permutations(("controller", "supervisor", "jobs")))


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_the_order_of_the_signals_does_not_matter(study: Study, order: tuple[str, ...]) -> None:
    study.wait_started()
    processes = {name: getattr(study, name) for name in order}
    for name in order:
        study.allocation.send(processes[name])
        time.sleep(0.3)  # long enough for a reaction, and less than the wait for the same signal
    assert study.allocation.wait_over() == 143
    study.check(once=order[0] == "supervisor")


@pytest.mark.parametrize("who", [("supervisor",), ("controller",), ("controller", "jobs")])
def test_a_signal_to_some_processes_loses_no_job(study: Study, who: tuple[str, ...]) -> None:
    study.wait_started()
    study.allocation.send([process for name in who for process in getattr(study, name)])
    assert study.allocation.wait_over() == 143
    study.check(once="controller" not in who)


def test_a_signal_to_a_supervisor_that_starts_loses_no_job(study: Study) -> None:
    while not (found := study.supervisor):
        assert study.allocation.parent.poll() is None
    study.allocation.send(found)
    # A process that has forked in the meantime may be over: a queue would have found its child.
    study.allocation.send([each for each in study.supervisor if each not in found])
    time.sleep(0.2)
    study.allocation.send(study.controller)
    assert study.allocation.wait_over() == 143, "\n".join(study.lines("said"))
    assert study.lines("state/runs/t/executor/supervisor.log") == []
    # On a busy machine, the controller may handle its signal first.
    study.check(once=False)


@pytest.mark.parametrize("starter", ["slurmstepd", "pbs_mom"])
def test_the_process_that_exits_with_the_allocation_is_watched(
    starter: str, tmp_path: Path
) -> None:
    """The daemon ``pbs_mom`` of a node outlives the allocation; its child is the job's script."""
    inner = "sleep 1000 & echo $! > pid.new; mv pid.new pid; wait"
    script = f"echo {starter} > /proc/self/comm; sh -c '{inner}' & wait"
    # The shell itself writes its name, because 'echo' is built in.
    with subprocess.Popen(["sh", "-c", script], cwd=tmp_path, start_new_session=True) as daemon:
        try:
            wait_until((tmp_path / "pid").exists)
            job = int((tmp_path / "pid").read_text())
            expected = parent_of(job) if starter == "pbs_mom" else daemon.pid
            assert allocation_process(job) == expected
            assert expected != job
        finally:
            os.killpg(daemon.pid, signal.SIGKILL)


def test_a_controller_in_an_allocation_drains_at_sigterm(allocated: None, study: Study) -> None:
    study.wait_started()
    study.allocation.send(study.controller)
    assert study.allocation.wait_over() == 143
    assert any("the allocation ends" in line for line in study.lines("said"))
    study.check()


@pytest.mark.parametrize("command", ["stop", "cancel"])
def test_a_stop_by_the_user_in_an_allocation_is_no_end_of_it(
    allocated: None, study: Study, command: str
) -> None:
    study.wait_started()
    state = ["--state", str(study.folder / "state")]
    done = CliRunner().invoke(main, [command, "t", *state])
    assert done.exit_code == 0, done.output
    assert study.allocation.wait_over() == {"stop": 5, "cancel": 130}[command]
    status = json.loads(CliRunner().invoke(main, ["status", "t", "--json", *state]).output)
    assert status["state"] == {"stop": "stopped", "cancel": "ended"}[command]


def test_jobs_do_not_outlive_an_allocation_that_does_not_track_them(study: Study) -> None:
    """Only the program that has started the allocation's processes exits."""
    study.allocation.kill()
    (study.folder / "sub").mkdir()
    again = Study.__new__(Study)
    again.folder = study.folder / "sub"
    (again.folder / "e.yaml").write_text(FILE)
    (again.folder / "job.sh").write_text(JOB)
    starter = again.folder / "slurmstepd"
    starter.write_text('#!/bin/sh\n"$@" &\nwait\n')
    starter.chmod(0o755)
    words = ["run", "e.yaml", "--executor", "local", "--slots", str(SLOTS), "--tag", "t"]
    command = [str(starter), sys.executable, "-m", "ensemble_core.cli", *words, "--state", "state"]
    again.allocation = Allocation(command, again.folder)
    again.wait_started()
    again.allocation.send(again.of("/slurmstepd"), signal.SIGKILL)
    assert again.allocation.wait_over() == 128 + signal.SIGKILL
    again.check()


def test_the_wait_for_the_signal_of_its_queue_is_no_time_of_a_job(tmp_path: Path) -> None:
    with Session(LocalExecutor(slots=1), tmp_path) as session:
        for _ in range(5):  # one of them is not delayed by a busy machine
            job = session.job("sh", "-c", f"touch {tmp_path}/last; kill -TERM $$")
            session.run(job)
            assert session.cause(job) == "signal"
            (finish,) = (event for event in session.of(job) if event.name == "finish")
            if finish.timestamp - (tmp_path / "last").stat().st_mtime < 4.0:
                return
    pytest.fail("each job lasts until its end was reported")


def test_a_job_that_someone_else_terminates_fails(study: Study) -> None:
    study.wait_started()
    study.allocation.send(study.jobs)
    wait_until(lambda: any("failed a.0" in line for line in study.lines("said")), 100.0)
    (study.folder / "go").touch()
    assert study.allocation.wait_over() == 0


def test_a_repeated_signal_changes_nothing(study: Study) -> None:
    study.wait_started()
    supervisor = study.supervisor
    for _ in range(3):
        study.allocation.end(random.Random(0), pause=0.0)
        study.allocation.send(supervisor)
    assert study.allocation.wait_over() == 143
    study.check(once=False)


def test_a_preemption_as_slurm_signals_it_loses_no_job(study: Study) -> None:
    study.wait_started()
    for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGCONT):
        study.allocation.end(random.Random(0), number, pause=0.0)
    assert study.allocation.wait_over() == 143
    study.check(once=False)


@pytest.mark.parametrize("who", [("supervisor",), ("controller", "supervisor", "jobs")])
def test_sigkill_within_the_grace_loses_no_job(study: Study, who: tuple[str, ...]) -> None:
    study.wait_started()
    study.allocation.send([process for name in who for process in getattr(study, name)])
    ledger = study.folder / "state" / "runs" / "t" / "executor" / "local.log"
    # If the controller was faster than the supervisor, it has cancelled the jobs.
    wait_until(lambda: b'["d",' in ledger.read_bytes() or not study.jobs, 100.0)
    study.allocation.kill()
    study.check(once=False)


def test_a_user_who_cancels_a_run_at_its_end_cancels_it(study: Study) -> None:
    study.wait_started()
    study.allocation.send(study.supervisor)
    state = ["--state", str(study.folder / "state")]
    CliRunner().invoke(main, ["cancel", "t", *state])
    assert study.allocation.wait_over() in (130, 143)
    assert study.supervisor == study.jobs == []
