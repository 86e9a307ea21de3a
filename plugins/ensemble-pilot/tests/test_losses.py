"""Losses of pilots: a pilot, one of its parts or the controller ends, and no job is lost or doubled."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from ensemble_pilot.job_tracking import Tracking
from ensemble_pilot.ledger import Entry, PilotLedger
from ensemble_testing import Session
from ensemble_testing.executor import wait_until
from ensemble_testing.processes import run_and_kill
from ensemble_testing.session import alive
from pilot_sessions import WORK, controller, new_session, ran, stop

from ensemble_core import Event, ExecutorError, Job, JobEvent
from ensemble_core.local.leftover_jobs import supervisor_pid
from ensemble_core.local.process_tree import parent_of

if TYPE_CHECKING:
    from ensemble_pilot.fleet import Fleet
    from ensemble_pilot.ledger import Transaction


def state_of(session: Session, pilot: int) -> Path:
    return session.folder / "state" / session.tag / f"pilot-{pilot}" / "node-0"


def supervisor(session: Session, pilot: int) -> int:
    """Return the supervisor of a pilot, once it is ready."""
    wait_until(lambda: controller(session).gauges["pilots.ready"])
    return supervisor_pid(state_of(session, pilot))


def job_that_is_sent_but_not_started(session: Session, keeper: int) -> Job:
    """Return a job that was sent to a supervisor that is stopped."""
    stop(keeper)
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


def test_jobs_of_a_killed_pilot_end_with_it_although_the_queue_says_so_later(folder: Path) -> None:
    """Slurm was asked up to 30 s after the end: the jobs were charged for that time."""
    with new_session(folder, least=1, most=1) as session:
        job = session.job("sh", "-c", WORK)
        session.submit(job)
        session.wait_for(job, "start")
        at = next(event.timestamp for event in session.of(job) if event.name == "start")
        time.sleep(3)
        for name, when in ("finish", at + 1), ("clean", at + 3):
            event = JobEvent(when, "pilot.1", name, {"status": 9} if name == "finish" else {})
            controller(session).request(lambda c, event=event: c.pilots.on_outer([event]))
        session.wait_clean(job)
        assert session.cause(job) == "preempted"
        (end,) = [event.timestamp for event in session.of(job) if event.name == "finish"]
        assert at < end < at + 1.1


def test_jobs_are_suspended_with_their_pilot(folder: Path) -> None:
    """They looked as if they ran and printed nothing, so rules on ``silent`` cancelled them.

    Their nodes, which are stopped too, say so when they continue.
    """
    with new_session(folder, least=1, most=1, cores=1) as session:
        job, waiting = session.job("sh", "-c", WORK), session.job("sh", "-c", WORK)
        session.submit(job, waiting)
        session.wait_for(job, "start")
        keeper = supervisor(session, 1)
        for name in "suspend", "unsuspend", "suspend":
            event = JobEvent(time.time(), "pilot.1", name, {"note": "by the test"})
            controller(session).request(lambda c, event=event: c.pilots.on_outer([event]))
            session.wait(lambda name=name: session.names(job)[-1] == name, name)
        stop(keeper)
        time.sleep(2)
        os.kill(keeper, signal.SIGCONT)
        session.wait(lambda: session.names(job)[-1] == "unsuspend", "unsuspend")
        (folder / "go").touch()
        session.wait_clean(job, waiting)
        assert session.names(job).count("suspend") == 2
        assert session.names(job).count("unsuspend") == 2
        assert "suspend" not in session.names(waiting)


def test_jobs_of_a_pilot_continue_when_the_queue_says_so_although_their_node_is_silent(
    folder: Path,
) -> None:
    """They continued when they had been suspended: the time between counted as time that they ran."""
    with new_session(folder, least=1, most=1, cores=1) as session:
        job = session.job("sh", "-c", WORK)
        session.submit(job)
        session.wait_for(job, "start")
        stop(keeper := supervisor(session, 1))
        for name in "suspend", "unsuspend":
            time.sleep(2)
            event = JobEvent(time.time(), "pilot.1", name)
            controller(session).request(lambda c, event=event: c.pilots.on_outer([event]))
            session.wait(lambda name=name: session.names(job)[-1] == name, name)
            # It had run all the time since it began, but counted as suspended from its start.
            assert session.of(job)[-1].timestamp >= event.timestamp
        os.kill(keeper, signal.SIGCONT)
        (folder / "go").touch()
        session.wait_clean(job)


def test_a_job_ends_after_all_events_that_the_run_has_although_the_queues_clock_is_behind() -> None:
    """After a resume, the run waited for its end forever."""
    told: list[Event] = []
    transaction = SimpleNamespace(
        clock=lambda: 300.0, record=lambda *_: None, then=lambda call: call(), emit=told.extend
    )
    tracking = Tracking(cast("Transaction", transaction), cast("Fleet", SimpleNamespace(placed={})))
    entry = Entry(Job(group="a", index=0, id="a.0", command=("true",)), 1, 100.0)
    tracked = tracking.add(entry, since=200.0)  # its suspension, which only the queue knew
    tracking.finish(tracked, "preempted", "", 150.0)
    assert [event.name for event in told if isinstance(event, JobEvent)] == ["exception", "clean"]
    assert told[0].timestamp > 200.0


def test_jobs_stop_with_the_task_of_their_pilot(folder: Path) -> None:
    """Grid Engine stops only the processes of its job's own group: jobs went on meanwhile."""
    with new_session(folder, least=1, most=1, cores=1) as session:
        job = session.job("sh", "-c", f"echo $$ > pid; {WORK}")
        session.submit(job)
        session.wait_for(job, "start")
        task = parent_of(supervisor(session, 1))
        assert task is not None
        wait_until(lambda: (folder / "pid").exists() and (folder / "pid").read_text().strip())
        status = Path(f"/proc/{(folder / 'pid').read_text().strip()}/status")
        stop(task)
        wait_until(lambda: "(stopped)" in status.read_text(), 60)
        os.kill(task, signal.SIGCONT)
        session.wait(lambda: session.names(job)[-1] == "unsuspend", "unsuspend")
        wait_until(lambda: "(stopped)" not in status.read_text(), 60)
        (folder / "go").touch()
        session.wait_clean(job)
        assert session.cause(job) == "exit"
        assert session.names(job).count("suspend") == 1


@pytest.mark.parametrize("late", [False, True])
def test_resume_settles_a_pilot_that_ended_without_a_controller(folder: Path, late: bool) -> None:
    """The pilot had one job that was over, one that ran, and one that never started.

    ``late``: it is settled before the run says which jobs it waits for.
    """
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

    run_and_kill(control, folder / "trace")
    os.kill(int((folder / "keeper").read_text()), signal.SIGKILL)
    waiting = first.job()
    with new_session(folder, cores=2).resume(first) as later:
        wait_until(lambda: not supervisor_pid(state_of(later, 1)))
        if late:
            wait_until(lambda: controller(later).request(lambda c: 1 not in c.fleet.pilots))
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


def test_job_that_was_over_before_a_resume_takes_no_room_in_its_pilot(folder: Path) -> None:
    """The run has its end, but the earlier controller was killed before it forgot the job."""
    (folder / "go").touch()
    first = new_session(folder, least=1)

    def control() -> None:
        first.__enter__()
        first.run(first.job("sh", "-c", WORK))

    run_and_kill(control, folder / "trace")
    over = first.job("true")
    with new_session(folder, least=1).resume(first) as later:
        later.job()  # this name is taken
        job = later.job("sh", "-c", WORK)
        later.submit(job)
        later.wait_clean(job)
        assert later.cause(job) == "exit"
        pilots, known = controller(later).request(
            lambda c: (sorted(c.fleet.pilots), [*c.jobs._jobs])
        )
        assert pilots == [1]
        assert over.id not in known
    assert ran(folder) == [over.id, job.id]


def test_pilot_without_a_controller_ends_when_its_jobs_are_over_and_a_resume_reads_its_ledger(
    folder: Path,
) -> None:
    first = new_session(folder, orphan=0.2)

    def control() -> None:
        first.__enter__()
        job = first.job("sh", "-c", f"{WORK}; echo done >> ran")
        first.submit(job)
        first.wait_for(job, "start")

    run_and_kill(control, folder / "trace")
    said = folder / "state" / first.tag / "pilot-1" / "err"
    wait_until(lambda: "the jobs go on" in said.read_text())
    (folder / "go").touch()
    wait_until(lambda: "no job is left" in said.read_text())
    assert ran(folder) == ["t.0", "done"]
    job = first.job()
    with new_session(folder).resume(first) as later:
        later.take_over([job.id])
        later.wait_clean(job)
        assert later.cause(job) == "exit"
        later.check_ended_once()
    assert ran(folder) == ["t.0", "done"]


def test_pilot_without_a_controller_ends_if_the_files_of_the_run_are_gone(folder: Path) -> None:
    """It cannot leave a file for the tasks of its other nodes."""
    first = new_session(folder, orphan=0.2, least=1)

    def control() -> None:
        first.__enter__()
        supervisor(first, 1)

    run_and_kill(control, folder / "trace")
    pilot = folder / "state" / first.tag / "pilot-1"
    os.rename(folder / "state", folder / "removed")
    wait_until(
        lambda: not any(_runs_in(process, pilot) for process in Path("/proc").glob("[0-9]*"))
    )


def _runs_in(process: Path, pilot: Path) -> bool:
    """Return True if this is a task of the pilot."""
    with contextlib.suppress(OSError):
        return str(pilot).encode() in (process / "cmdline").read_bytes().split(b"\0")
    return False


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
            outer = controller(first).pilots.outers[""]
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
