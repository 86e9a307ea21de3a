"""A part of a running pilot fails: its task, the network, or the shared file system."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from ensemble_testing.session import alive, wait_until
from pilot_sessions import controller, new_session, patch_nodes, stop

from ensemble_core import Job
from ensemble_core.local.ledger_reader import read_ledger
from ensemble_core.local.leftover_jobs import supervisor_pid
from ensemble_core.local.process_tree import parent_of

#: A job that notes its process, and waits for the file ``go``.
WORK = 'echo "$$" >> ran.$ENSEMBLE_INDEX; until [ -e go ]; do sleep 0.05; done'


class Pilots:
    """An open executor whose pilots have one core, and are jobs of this machine."""

    def __init__(self, folder: Path) -> None:
        self.session = new_session(folder, most=2)
        self.session.__enter__()
        self.folder = folder / "state" / self.session.tag

    def job(self) -> Job:
        job = self.session.job("sh", "-c", WORK)
        self.session.submit(job)
        return job

    def ran(self, job: Job) -> list[int]:
        """Return the processes of a job."""
        path = self.session.folder / f"ran.{job.index}"
        return [int(word) for word in path.read_text().split()] if path.exists() else []

    def cut(self) -> None:
        """End the connections to all nodes."""
        controller(self.session).request(
            lambda c: [c.nodes.drop(pilot) for pilot in c.fleet.pilots.values()]
        )


@pytest.fixture
def pilots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pilots]:
    monkeypatch.chdir(tmp_path)
    pilots = Pilots(tmp_path)
    yield pilots
    (tmp_path / "go").touch()
    pilots.session.__exit__(None, None, None)


def test_when_a_task_is_killed_its_jobs_end_and_others_run_elsewhere(pilots: Pilots) -> None:
    session, state = pilots.session, pilots.folder / "pilot-1" / "node-0"
    first = pilots.job()
    session.wait_for(first, "start")
    wait_until(lambda: pilots.ran(first))
    keeper, (process,) = supervisor_pid(state), pilots.ran(first)
    task = parent_of(keeper)
    assert task is not None
    os.kill(task, signal.SIGKILL)
    second = pilots.job()
    session.wait_clean(first)
    assert session.cause(first) == "preempted"
    assert not alive(process)
    assert not alive(keeper)
    assert read_ledger(state, {}).quit is not None
    (session.folder / "go").touch()
    session.wait_clean(second)
    assert "exception" not in session.names(second)
    session.check_ended_once()
    assert (len(pilots.ran(first)), len(pilots.ran(second))) == (1, 1)


def test_when_a_supervisor_alone_gets_sigterm_its_pilot_ends_and_no_job_hangs(
    pilots: Pilots,
) -> None:
    session, state = pilots.session, pilots.folder / "pilot-1" / "node-0"
    first = pilots.job()
    session.wait_for(first, "start")
    os.kill(supervisor_pid(state), signal.SIGTERM)
    session.wait_clean(first)
    assert session.cause(first) == "preempted"
    (session.folder / "go").touch()
    second = pilots.job()
    session.wait_clean(second)
    assert session.cause(second) == "exit"
    session.check_ended_once()


def test_ends_on_a_node_without_a_network_arrive_once_when_it_is_back(pilots: Pilots) -> None:
    session, state = pilots.session, pilots.folder / "pilot-1" / "node-0"
    job = pilots.job()
    session.wait_for(job, "start")
    address = pilots.folder / "link" / "address.json"
    away = address.rename(address.with_name("away"))
    pilots.cut()
    (session.folder / "go").touch()
    wait_until(lambda: read_ledger(state, {}).state(job.id) == "ended")
    assert session.names(job)[-1] == "start"
    away.rename(address)
    session.wait_clean(job)
    assert session.cause(job) == "exit"
    session.check_ended_once()
    assert len(pilots.ran(job)) == 1


def test_without_the_shared_file_system_nothing_starts_and_one_warning_says_so(
    pilots: Pilots,
) -> None:
    session = pilots.session
    (session.folder / "go").touch()
    first = pilots.job()
    session.wait_clean(first)
    folder = pilots.folder / "pilot-1"
    away = folder.rename(folder.with_name("away"))
    second = pilots.job()
    session.wait(session.problems, "the warning")
    (problem,) = session.problems()
    assert problem.startswith(f"node 0 of pilot 1: cannot look for {folder / 'fence'}")
    assert "start" not in session.names(second)
    away.rename(folder)
    session.wait_clean(second)
    assert session.cause(second) == "exit"
    assert len(pilots.ran(second)) == 1


def test_pilot_that_ends_while_the_runs_folder_is_away_is_settled_when_it_is_back(
    pilots: Pilots,
) -> None:
    """A missing ledger does not say that a job never started: the file system is not mounted."""
    session, folder = pilots.session, pilots.folder / "pilot-1"
    job = pilots.job()
    session.wait_for(job, "start")
    wait_until(lambda: pilots.ran(job))
    keeper = supervisor_pid(folder / "node-0")
    away = pilots.folder.rename(pilots.folder.with_name("away"))
    os.kill(keeper, signal.SIGKILL)  # the task ends the job, and the pilot
    session.wait(session.problems, "the warning")
    (problem,) = session.problems()
    assert problem.startswith("pilot 1 has ended, but its jobs wait until this works:")
    assert str(folder) in problem
    assert session.names(job)[-1] == "start"
    assert not pilots.folder.exists()
    away.rename(pilots.folder)
    session.wait_clean(job)
    assert session.cause(job) == "preempted"
    assert len(pilots.ran(job)) == 1


def test_job_about_to_start_when_the_task_is_killed_runs_in_another_pilot(pilots: Pilots) -> None:
    """Its line is in the ledger, and the fence is being looked for: nothing was spawned."""
    session, folder = pilots.session, pilots.folder / "pilot-1"
    (session.folder / "go").touch()
    first = pilots.job()
    session.wait_clean(first)
    keeper = supervisor_pid(folder / "node-0")
    task = parent_of(keeper)
    assert task is not None
    away = folder.rename(folder.with_name("away"))
    job = pilots.job()
    session.wait(session.problems, "the warning that the fence cannot be looked for")
    assert read_ledger(away / "node-0", {}).state(job.id) == "started"
    os.kill(task, signal.SIGKILL)
    wait_until(lambda: not alive(keeper))
    away.rename(folder)
    session.wait_clean(job)
    assert session.cause(job) == "exit"
    assert "exception" not in session.names(job)
    session.check_ended_once()
    assert len(pilots.ran(job)) == 1


LOCKLESS = """
import errno, fcntl, os
def flock(*_):
    os.close(os.open("NOTED" + str(os.getpid()), os.O_CREAT))
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = flock
"""


def test_on_a_file_system_without_locks_pilots_work_and_no_job_runs_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger needs no lock, because a socket admits one supervisor; the fence is a file."""
    patch_nodes(tmp_path, monkeypatch, LOCKLESS.replace("NOTED", f"{tmp_path}/noted."))
    monkeypatch.chdir(tmp_path)
    pilots = Pilots(tmp_path)
    session, state = pilots.session, pilots.folder / "pilot-1" / "node-0"
    (tmp_path / "go").touch()
    try:
        first = pilots.job()
        session.wait_clean(first)
        keeper = supervisor_pid(state)
        assert (tmp_path / f"noted.{keeper}").exists(), "it has tried to lock its ledger"
        stop(keeper)
        job = pilots.job()
        wait_until(lambda: controller(session).request(lambda c: job.id in c.fleet.placed))
        # The queue's word is wrong: all processes of the pilot are alive.
        controller(session).request(lambda c: c.pilots.on_ended(1))
        session.wait_clean(job)
        os.kill(keeper, signal.SIGCONT)
        wait_until(lambda: not alive(keeper))
        assert [session.cause(each) for each in (first, job)] == ["exit", "exit"]
        assert [len(pilots.ran(each)) for each in (first, job)] == [1, 1]
        assert session.problems() == []
    finally:
        session.__exit__(None, None, None)
