"""A hostile site: late pilots, wrong clocks, taken ports, full disks, stopped processes."""

from __future__ import annotations

import json
import os
import platform
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ensemble_pilot import credentials
from ensemble_pilot.node import Task
from ensemble_pilot.outer_queue import Pilots
from ensemble_pilot.pilot import Kind
from ensemble_testing import Session
from ensemble_testing.executor import wait_until
from ensemble_testing.processes import run_and_kill
from ensemble_testing.session import alive
from pilot_sessions import WORK, controller, new_session, patch_nodes, ran, stop

from ensemble_core import ExecutorError, Job, JobEvent
from ensemble_core.local.leftover_jobs import supervisor_pid
from ensemble_core.local.process_tree import parent_of


def pilot_folder(session: Session, number: int = 1) -> Path:
    return session.folder / "state" / session.tag / f"pilot-{number}"


def supervisor(session: Session, number: int = 1) -> int:
    """Return the supervisor of a pilot, once there is one."""
    wait_until(lambda: supervisor_pid(pilot_folder(session, number) / "node-0"))
    return supervisor_pid(pilot_folder(session, number) / "node-0")


def submitted(session: Session, *command: str, **fields: Any) -> Job:
    job = session.job(*(command or ("sh", "-c", WORK)), **fields)
    session.submit(job)
    return job


def test_pilot_that_starts_after_the_end_of_the_run_ends_at_once(folder: Path) -> None:
    (folder / "go").touch()
    with new_session(folder) as session:
        session.run(session.job("sh", "-c", WORK))
    command = [sys.executable, "-m", "ensemble_pilot.node", str(pilot_folder(session))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert "it counts as ended" in done.stderr
    assert len(ran(folder)) == 1


@pytest.mark.parametrize("hours", [-1, 1])
def test_clock_of_the_nodes_may_be_an_hour_off(
    folder: Path, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times of events are those of the controller, and time limits those of the node's task."""
    code = f"import time\nreal = time.time\ntime.time = lambda: real() + {3600 * hours}\n"
    code += f"import os\nos.mkdir('{folder}/off.%d' % os.getpid())\n"
    patch_nodes(folder, monkeypatch, code)
    began = time.time()
    (folder / "go").touch()
    with new_session(folder, duration=300, margin=10) as session:
        job = submitted(session, "sh", "-c", WORK, duration=200.0)
        session.wait_clean(job)
        assert session.cause(job) == "exit"
        times = [event.timestamp for event in session.of(job)]
        ends = controller(session).request(lambda c: [p.ends for p in c.fleet.pilots.values()])
        keeper = supervisor(session)
        assert {*folder.glob("off.*")} == {
            folder / f"off.{pid}" for pid in (keeper, parent_of(keeper))
        }
    assert began <= times[0] <= times[-1] <= time.time() + 1
    assert times == sorted(times)
    assert all(began < end < time.time() + 301 for end in ends)


def test_taken_port_is_an_error_with_a_hint(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ExecutorError, match=f"port {port}") as refused,
            new_session(folder, listen=f"127.0.0.1:{port}"),
        ):
            pass
    assert "-o listen=" in (refused.value.hint or "")


def test_relay_tells_a_stranger_at_the_address_nothing(folder: Path) -> None:
    """The controller is gone, and another program has its port: it gets no token."""
    credentials.make(folder / "link")
    credentials.make(folder / "other")
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            plain, _ = server.accept()
            try:
                with credentials.server_context(folder / "other").wrap_socket(
                    plain, server_side=True
                ) as sock:
                    heard.append(sock.recv(1000))
            except OSError:
                heard.append(b"")

        thread = threading.Thread(target=serve)
        thread.start()
        addresses = {"addresses": [["127.0.0.1", server.getsockname()[1]]]}
        (folder / "link" / "address.json").write_text(json.dumps(addresses))
        task = Task.__new__(Task)
        task._link = folder / "link"
        with pytest.raises(ssl.SSLCertVerificationError):
            task._connect()
        thread.join()
    assert heard == [b""]


def test_two_runs_with_pilots_at_once_do_not_touch_each_other(folder: Path) -> None:
    """They have the same names of jobs and pilots; one ends while the other works."""
    (folder / "other").mkdir()
    with new_session(folder) as first:
        job = submitted(first)
        first.wait_for(job, "start")
        with new_session(folder / "other") as second:
            script = WORK.replace("ran", "../ran").replace("go", "../off")
            other = submitted(second, "sh", "-c", script, workdir=str(folder / "other"))
            assert other.id == job.id
            second.wait_for(other, "start")
            (folder / "off").touch()
            second.wait_clean(other)
            assert second.cause(other) == "exit"
        assert alive(supervisor(first))
        assert first.names(job)[-1] == "start"
        (folder / "go").touch()
        first.wait_clean(job)
        assert first.cause(job) == "exit"
    assert ran(folder) == [job.id] * 2


@pytest.mark.parametrize("moment", ["before", "after"])
def test_controller_killed_at_the_request_of_a_pilot_does_not_leave_two(
    folder: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pilot is in the ledger; the outer queue has it (``after``) or not."""
    first = new_session(folder, most=1)
    request = Pilots._submit

    def killed(pilots: Pilots, number: int, kind: Kind) -> None:
        if moment == "after":
            request(pilots, number, kind)
        os.kill(os.getpid(), signal.SIGKILL)

    def control() -> None:
        monkeypatch.setattr(Pilots, "_submit", killed)
        first.__enter__()
        first.submit(first.job("sh", "-c", WORK))
        time.sleep(60)

    run_and_kill(control, folder / "trace")
    job = first.job("sh", "-c", WORK)
    with new_session(folder, most=1).resume(first) as later:
        assert later.executor.reattach({job.id: 0.0}) == {job.id: True}
        later.wait_for(job, "start")
        pilots = controller(later).request(lambda c: sorted(c.fleet.pilots))
        assert pilots == [1 if moment == "after" else 2]
        (folder / "go").touch()
        later.wait_clean(job)
        assert later.cause(job) == "exit"
    assert ran(folder) == [job.id]


def test_stopped_pilot_goes_on_if_it_continues_in_time(folder: Path) -> None:
    with new_session(folder, cores=2) as session:
        running = submitted(session)
        session.wait_for(running, "start")
        keeper = supervisor(session)
        task = parent_of(keeper)
        assert task is not None
        for pid in (task, keeper):
            stop(pid)
        waiting = submitted(session)
        time.sleep(3.0)
        (folder / "go").touch()
        for pid in (task, keeper):
            os.kill(pid, signal.SIGCONT)
        session.wait_clean(running, waiting)
        assert {session.cause(running), session.cause(waiting)} == {"exit"}
        session.check_ended_once()
    assert sorted(ran(folder)) == [running.id, waiting.id]


def test_full_disk_of_a_node_delays_starts_and_doubles_none(folder: Path) -> None:
    with new_session(folder, least=1, cores=2) as session:
        first = submitted(session)
        wait_until(lambda: ran(folder) == [first.id])
        keeper = supervisor(session)
        size = (pilot_folder(session) / "node-0" / "local.log").stat().st_size
        before = resource.prlimit(keeper, resource.RLIMIT_FSIZE)
        resource.prlimit(keeper, resource.RLIMIT_FSIZE, (size, before[1]))
        second = submitted(session)
        session.wait(session.problems, "a warning")
        assert "local.log" in session.problems()[0]
        assert ran(folder) == [first.id]
        resource.prlimit(keeper, resource.RLIMIT_FSIZE, before)
        (folder / "go").touch()
        session.wait_clean(first, second)
        assert {session.cause(first), session.cause(second)} == {"exit"}
        session.check_ended_once()
    assert ran(folder) == [first.id, second.id]


def test_at_its_time_limit_a_pilot_ends_its_jobs_and_others_run_in_the_next(folder: Path) -> None:
    """One job ends at SIGTERM with exit code 0, one does not, and one has not started."""
    (folder / "end").write_text("trap 'exit 0' TERM; echo $1 >> ran; while :; do sleep 0.05; done")
    with new_session(folder, cores=2, most=1, duration=40, margin=24) as session:
        good = submitted(session, "sh", "end", "good")
        bad = submitted(session)
        session.wait_for(good, "start")
        session.wait_for(bad, "start")
        later = submitted(session, "sh", "-c", "echo later >> ran", duration=16.0)
        session.wait_clean(good, bad, later)
        assert session.cause(good) == "exit"
        assert session.cause(bad) == "preempted"
        assert session.cause(later) == "exit"
        assert "exception" not in session.names(later)
        session.check_ended_once()
    assert sorted(ran(folder)) == ["good", "later", bad.id]


@pytest.mark.parametrize(("victim", "kind"), [("task", "interrupted"), ("supervisor", "preempted")])
def test_requeue_is_only_for_jobs_of_which_certainly_nothing_is_left(
    folder: Path, victim: str, kind: str
) -> None:
    """The run submits an interrupted job again. A killed supervisor cannot say what is left."""
    with new_session(folder, requeue=True) as session:
        job = submitted(session)
        session.wait_for(job, "start")
        keeper = supervisor(session)
        task = parent_of(keeper)
        assert task is not None
        os.kill(task if victim == "task" else keeper, signal.SIGKILL)
        session.wait_clean(job)
        assert session.exception(job) == kind
    assert ran(folder) == [job.id]


def test_node_with_another_version_is_told_to_leave_and_the_reason_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_pilot.node_connections.VERSION", "0.0.1")
    with new_session(folder) as session:
        job = submitted(session)
        session.wait(session.problems, "the warning")
        (problem,) = session.problems()
        assert "3 pilots in a row ended before they were ready" in problem
        assert f"{socket.gethostname()} has another version of Ensemble" in problem
        assert "install the same version" in problem
        session.cancel(job)
        session.wait_clean(job)


def test_refusal_of_the_outer_queue_is_said_in_its_own_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_session(folder) as session:

        def refuse(jobs: object) -> None:
            raise ExecutorError("sbatch: error: Invalid account", code="refused")

        monkeypatch.setattr(controller(session).pilots.outers[""], "submit", refuse)
        job = submitted(session)
        session.wait(session.problems, "the warning")
        (problem,) = session.problems()
        assert "3 pilots in a row" in problem
        assert "sbatch: error: Invalid account" in problem
        monkeypatch.undo()
        session.cancel(job)
        session.wait_clean(job)


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("", "python3"),
        ('exec {python} -S "$@"', "No module named"),
        ("exec {python} -c 'from ensemble_core import nothing'", "cannot import name 'nothing'"),
    ],
    ids=["missing", "without packages", "another release"],
)
def test_python_of_the_nodes_that_cannot_start_pilots_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, python: str, words: str
) -> None:
    """The controller runs in an environment of which the nodes have another one, or nothing."""
    of_nodes = folder / "python3"
    if python:
        of_nodes.write_text(f"#!/bin/sh\n{python.format(python=sys.executable)}\n")
        of_nodes.chmod(0o700)
    with new_session(folder) as session:
        monkeypatch.setattr(sys, "executable", str(of_nodes))
        job = submitted(session)
        session.wait(session.problems, "the warning")
        monkeypatch.undo()
        (problem,) = session.problems()
        assert "3 pilots in a row" in problem
        assert words in problem
        assert f"is Python {platform.python_version()} here: install ensemble-pilot" in problem
        (folder / "go").touch()
        session.wait_clean(job)
        assert session.cause(job) == "exit"
    assert ran(folder) == [job.id]


@pytest.mark.parametrize("hours", [-1, 1])
def test_clock_of_the_outer_queue_may_be_an_hour_off(
    folder: Path, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much time a pilot has left is known from its nodes, not from when it began."""
    take = Pilots._on_event

    def shifted(pilots: Pilots, event: JobEvent) -> None:
        when = event.timestamp + 3600 * hours
        take(pilots, JobEvent(when, event.job, event.name, event.context))

    monkeypatch.setattr(Pilots, "_on_event", shifted)
    (folder / "go").touch()
    with new_session(folder, duration=300, margin=20) as session:
        job = submitted(session, "sh", "-c", WORK, duration=250.0)
        session.wait_clean(job)
        assert session.cause(job) == "exit"
        (ends,) = controller(session).request(lambda c: [p.ends for p in c.fleet.pilots.values()])
    assert 200 < ends - time.time() < 301


def test_pilots_that_cannot_see_the_folder_are_explained(folder: Path) -> None:
    """Then the pilot's own words are unseen, too."""
    with new_session(folder) as session:
        pilots = controller(session).pilots
        kind = replace(pilots._settings.kinds[""], queue="slurm")
        pilots._settings = replace(pilots._settings, kinds={"": kind})
        outer = controller(session).pilots.outers[""]
        submit = outer.submit

        def fail(jobs: list[Job]) -> None:
            submit([replace(job, command=("false",)) for job in jobs])

        outer.submit = fail  # type: ignore[method-assign, assignment]
        job = submitted(session)
        session.wait(session.problems, "the warning")
        (problem,) = session.problems()
        assert "3 pilots in a row" in problem
        assert f"{session.folder / 'state'}" in problem
        assert "--state" in problem
        session.cancel(job)
        session.wait_clean(job)


def test_started_job_is_not_given_up_while_its_node_is_about_to_end_it(folder: Path) -> None:
    """The queue says that the pilot has ended, but its supervisor is slow: a retry would overlap."""
    with new_session(folder, requeue=True) as session:
        job = submitted(session)
        session.wait_for(job, "start")
        keeper = supervisor(session)
        stop(keeper)
        controller(session).request(lambda c: c.pilots.on_ended(1))
        time.sleep(1.5)
        assert session.names(job)[-1] == "start"
        os.kill(keeper, signal.SIGCONT)  # it finds the fence, and ends its jobs
        session.wait_clean(job)
        assert session.exception(job) == "interrupted"
        assert not alive(keeper)


def tasks_of(session: Session, number: int = 1) -> dict[int, int]:
    """Return the tasks of a pilot, by rank."""
    found = {}
    for rank in range(2):
        wait_until(lambda rank=rank: supervisor_pid(pilot_folder(session, number) / f"node-{rank}"))  # type: ignore[misc]
        task = parent_of(supervisor_pid(pilot_folder(session, number) / f"node-{rank}"))
        assert task is not None
        found[rank] = task
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_pilot_of_which_one_node_has_ended_ends_as_a_whole(
    folder: Path, number: signal.Signals
) -> None:
    """Otherwise, the jobs of that node would wait for the end of the others."""
    with new_session(folder, nodes=2) as session:
        jobs = [submitted(session) for _ in range(2)]
        for job in jobs:
            session.wait_for(job, "start")
        os.kill(tasks_of(session)[1], number)
        session.wait_clean(*jobs)
        assert {session.cause(job) for job in jobs} == {"preempted"}


def test_idle_node_without_a_controller_waits_for_the_other_nodes_of_its_pilot(
    folder: Path,
) -> None:
    first = new_session(folder, nodes=2, orphan=0.5)

    def control() -> None:
        first.__enter__()
        first.submit(job := first.job("sh", "-c", WORK))
        first.wait_for(job, "start")

    run_and_kill(control, folder / "trace")
    job = first.job("sh", "-c", WORK)
    time.sleep(3.0)
    with new_session(folder, nodes=2, orphan=0.5).resume(first) as later:
        later.take_over([job.id])
        later.job()  # this name is taken
        more = submitted(later)
        later.wait_for(more, "start")  # on the node that was idle
        (folder / "go").touch()
        later.wait_clean(job, more)
        assert {later.cause(job), later.cause(more)} == {"exit"}
        assert controller(later).request(lambda c: sorted(c.fleet.pilots)) == [1]
