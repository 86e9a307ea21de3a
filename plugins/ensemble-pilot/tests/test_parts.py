"""A part of a running pilot fails: its task, the network, or the shared file system."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from ensemble_pilot import ensemble_executors
from ensemble_pilot.controller import Controller
from ensemble_testing import Session
from ensemble_testing.session import alive, wait_until

from ensemble_core import Job
from ensemble_core.local.ledger_reader import read_ledger
from ensemble_core.local.leftover_jobs import supervisor_pid
from ensemble_core.local.process_tree import parent_of

(PLUGIN,) = ensemble_executors()
#: A job that notes its process, and waits for the file ``go``.
WORK = 'echo "$$" >> ran.$ENSEMBLE_INDEX; until [ -e go ]; do sleep 0.05; done'


class Pilots:
    """An open executor whose pilots have one core, and are jobs of this machine."""

    def __init__(self, folder: Path) -> None:
        options = {"slots": 4, "pool": "none"}
        times = {"idle": 60, "orphan": 60, "grace": 0.3}
        executor = PLUGIN.build({"options": options, "cores": 1, "most": 2, **times})
        self.session = Session(executor, folder, 100.0, tidy=True)
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
        controller: Controller = self.session.executor._controller  # type: ignore[attr-defined]
        controller.request(lambda c: [c.nodes.drop(pilot) for pilot in c.fleet.pilots.values()])


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
