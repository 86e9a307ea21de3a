"""Losses of pilots: a pilot, one of its parts or the controller ends, and no job is lost or doubled."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ensemble_pilot import ensemble_executors
from ensemble_pilot.controller import Controller
from ensemble_pilot.ledger import PilotLedger
from ensemble_testing import Session
from ensemble_testing.executor import wait_until
from ensemble_testing.executor_reattach import _run_and_kill
from ensemble_testing.session import alive

from ensemble_core import ExecutorError, Job
from ensemble_core.local.leftover_jobs import supervisor_pid

(PLUGIN,) = ensemble_executors()
#: A job that notes that it ran, and waits for the file ``go``.
WORK = 'echo "$ENSEMBLE_JOB_ID" >> ran; until [ -e go ]; do sleep 0.05; done'


def new_session(folder: Path, **options: Any) -> Session:
    given = {
        "options": {"slots": 4, "pool": "none"},
        "cores": 1,
        "idle": 60,
        "orphan": 60,
        "grace": 0.3,
    }
    return Session(PLUGIN.build({**given, **options}), folder, 40.0, tidy=True)


def ran(folder: Path) -> list[str]:
    file = folder / "ran"
    return file.read_text().split() if file.exists() else []


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    (tmp_path / "go").touch()


def controller(session: Session) -> Controller:
    found: Controller = session.executor._controller  # type: ignore[attr-defined]
    return found


def state_of(session: Session, pilot: int) -> Path:
    return session.folder / "state" / session.tag / f"pilot-{pilot}" / "node-0"


def supervisor(session: Session, pilot: int) -> int:
    """Return the supervisor of a pilot, once it is ready."""
    wait_until(lambda: controller(session).gauges["pilots.ready"])
    return supervisor_pid(state_of(session, pilot))


def job_that_is_sent_but_not_started(session: Session, keeper: int) -> Job:
    """Return a job that was sent to a supervisor that is stopped."""
    os.kill(keeper, signal.SIGSTOP)
    job = session.job("sh", "-c", WORK)
    session.submit(job)
    wait_until(lambda: controller(session).request(lambda c: job.id in c.fleet.placed))
    return job


def test_job_that_never_started_runs_in_another_pilot_and_no_rule_notices(folder: Path) -> None:
    with new_session(folder, least=1) as session:
        keeper = supervisor(session, 1)
        job = job_that_is_sent_but_not_started(session, keeper)
        (folder / "go").touch()
        os.kill(keeper, signal.SIGKILL)  # the task notices, and the pilot ends
        session.wait_clean(job)
        assert session.cause(job) == "exit"
        assert "exception" not in session.names(job)
        session.check_ended_once()
    assert ran(folder) == [job.id]


def test_job_does_not_run_twice_if_a_pilot_that_counts_as_ended_is_alive(folder: Path) -> None:
    """A node is declared down and is not: its supervisor still has the job when it continues."""
    with new_session(folder, least=1, most=2) as session:
        keeper = supervisor(session, 1)
        job = job_that_is_sent_but_not_started(session, keeper)
        # The queue's word is wrong: all processes of the pilot are alive.
        controller(session).request(lambda c: c.pilots.on_ended(1))
        session.wait_for(job, "start")
        os.kill(keeper, signal.SIGCONT)
        wait_until(lambda: not alive(keeper))
        (folder / "go").touch()
        session.wait_clean(job)
        assert session.cause(job) == "exit"
    assert ran(folder) == [job.id]


def test_resume_settles_a_pilot_that_ended_without_a_controller(folder: Path) -> None:
    """The pilot had one job that was over, one that ran, and one that never started."""
    first = new_session(folder, least=1, cores=2)
    over, running = first.job("true"), first.job("sh", "-c", WORK)

    def control() -> None:
        first.__enter__()
        first.run(over)
        first.submit(running)
        first.wait_for(running, "start")
        keeper = supervisor(first, 1)
        job_that_is_sent_but_not_started(first, keeper)
        (folder / "keeper").write_text(str(keeper))

    _run_and_kill(control, folder / "trace")
    os.kill(int((folder / "keeper").read_text()), signal.SIGKILL)
    waiting = first.job()
    with new_session(folder, cores=2).resume(first) as later:
        wait_until(lambda: not supervisor_pid(state_of(later, 1)))
        known = later.executor.reattach(
            {over.id: 0.0, running.id: 0.0, waiting.id: 0.0, "t.9": 0.0}
        )
        assert known == {over.id: True, running.id: True, waiting.id: True, "t.9": False}
        later.wait_clean(over, running)
        assert later.cause(over) == "exit"
        assert later.cause(running) == "preempted"
        later.wait_for(waiting, "start")
        (folder / "go").touch()
        later.wait_clean(waiting)
        assert later.cause(waiting) == "exit"
        later.check_ended_once()
    assert ran(folder) == [running.id, waiting.id]


def test_pilot_without_a_controller_ends_when_its_jobs_are_over(folder: Path) -> None:
    first = new_session(folder, orphan=0.2)

    def control() -> None:
        first.__enter__()
        job = first.job("sh", "-c", f"{WORK}; echo done >> ran")
        first.submit(job)
        first.wait_for(job, "start")

    _run_and_kill(control, folder / "trace")
    said = folder / "state" / first.tag / "pilot-1" / "err"
    wait_until(lambda: "the jobs go on" in said.read_text())
    (folder / "go").touch()
    wait_until(lambda: "no job is left" in said.read_text())
    assert ran(folder) == ["t.0", "done"]


def test_paused_controller_loses_its_nodes_to_a_later_one(folder: Path) -> None:
    """The first one is not closed: it only does nothing, as if its machine was suspended."""
    first = new_session(folder, least=1)
    with first:
        job = first.job("sh", "-c", WORK)
        first.submit(job)
        first.wait_for(job, "start")
        go_on = threading.Event()
        controller(first).post(lambda: go_on.wait(100.0) and None)  # type: ignore[func-returns-value]
        try:
            outer = controller(first).outer
            outer.close()  # its supervisor serves one controller at a time
            with new_session(folder).resume(first) as later:
                later.take_over([job.id])
                (folder / "go").touch()
                later.wait_clean(job)
                assert later.cause(job) == "exit"
        finally:
            go_on.set()
            first.made.clear()
            first._submitted.clear()


@pytest.mark.parametrize("token", ["", "0" * 64])
def test_stranger_gets_no_answer(folder: Path, token: str) -> None:
    """Without the run's secret, a connection is closed after its first line."""
    with new_session(folder) as session:
        link = session.folder / "state" / session.tag / "link"
        ((_, port),) = json.loads((link / "address.json").read_text())["addresses"]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(socket.create_connection(("127.0.0.1", port))) as sock:
            hello = ["node", {"pilot": 1, "rank": 0, "token": token}]
            sock.sendall(json.dumps(hello).encode() + b"\n")
            sock.settimeout(60)
            assert sock.recv(100) == b""


def test_ledger_survives_a_line_that_is_cut_off_but_no_other_damage(folder: Path) -> None:
    path = folder / "pilots.log"
    ledger = PilotLedger(path, "0" * 16)
    jobs = [Job(id=f"t.{n}", group="t", index=n, command=("true",)) for n in range(3)]
    ledger.submit(jobs, 10.0)
    ledger.add(["n", 7, 11.0], ["p", 7, 0, ["t.0", "t.1"]], ["w", ["t.1"]], ["o", 7])
    ledger.sync()
    ledger.close()
    with path.open("ab") as file:
        file.write(b'00000000 ["p",7,0,["t.2"')

    def check(again: PilotLedger) -> None:
        assert {name: entry.place for name, entry in again.jobs.items()} == {
            "t.0": (7, 0),
            "t.1": None,
            "t.2": None,
        }
        assert again.last_pilot == 7
        assert again.pilots == {}
        assert [entry.number for entry in again.jobs.values()] == [1, 2, 3]
        again.close()

    check(PilotLedger(path, "another"))
    check(PilotLedger(path, "another"))
    assert PilotLedger(path, "another").run_id == "0" * 16
    path.write_bytes(path.read_bytes().replace(b'"t.2"', b'"t.3"'))
    with pytest.raises(ExecutorError, match="damaged"):
        PilotLedger(path, "another")
