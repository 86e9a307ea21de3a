"""Supervisors in a pilot: tied to the pilot's task, fenced, and without forged ends of jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing.session import Session, alive, wait_until

from ensemble_core.errors import ExecutorError
from ensemble_core.local import fence as fence_module
from ensemble_core.local.epoll_loop import Poller
from ensemble_core.local.event_recorder import EventRecorder
from ensemble_core.local.executor import LocalExecutor
from ensemble_core.local.fence import Fence
from ensemble_core.local.ledger import Ledger
from ensemble_core.local.ledger_reader import LedgerReading, read_ledger, set_fence
from ensemble_core.local.leftover_jobs import supervisor_pid
from ensemble_core.local.local_job import LocalJob
from ensemble_core.local.protocol import encode_event, encode_job, line
from ensemble_core.local.slots import Slots
from ensemble_core.local.supervisor_start import StartedSupervisor
from ensemble_core.model.events import ExecutorLost, JobEvent
from ensemble_core.model.jobs import Job

#: A pilot's task: starts the supervisor, and then connects standard input and output with it.
TASK = """
import os, sys, threading
from pathlib import Path
from ensemble_core.local.supervisor_start import StartedSupervisor
state = Path(sys.argv[1])
sock = StartedSupervisor("t", state, "id", fence=state.parent / "fence").sock
def down():
    while piece := sock.recv(65536):
        os.write(1, piece)
threading.Thread(target=down).start()
for text in sys.stdin.buffer:
    sock.sendall(text)
"""


class Pilot:
    """A pilot of one node, whose task is this process, and its controller."""

    def __init__(self, folder: Path, earlier: Pilot | None = None, **options: Any) -> None:
        executor = LocalExecutor(**{"slots": 2, "grace": 1.0, "pool": "none", **options})
        self.session = Session(executor, folder, 100)
        if earlier is not None:
            self.session.resume(earlier.session)
        self.folder = folder / "state" / self.session.tag
        self.fence = self.folder.parent / "fence"
        executor._started = StartedSupervisor(
            self.session.tag, self.folder, self.session.run_id, fence=self.fence
        )
        self.session.__enter__()
        self.supervisor = supervisor_pid(self.folder)

    def job(self, script: str, **fields: Any) -> Job:
        """Submit a job that writes its process id into a file, and return it."""
        text = f"echo $$ > {self.session.folder}/$ENSEMBLE_JOB_ID; {script}"
        job = self.session.job("sh", "-c", text, **fields)
        self.session.submit(job)
        return job

    def started(self, script: str) -> tuple[Job, int]:
        """Return a job that has started, and its process id."""
        job = self.job(script)
        path = self.session.folder / job.id
        wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
        return job, int(path.read_text())

    def has_run(self, job: Job) -> bool:
        return (self.session.folder / job.id).exists()

    def wait_over(self) -> LedgerReading:
        """Wait until the supervisor has exited. Return its ledger."""
        wait_until(lambda: not alive(self.supervisor))
        return read_ledger(self.folder, dict.fromkeys(self.session.made, 0.0))

    def lost(self) -> list[ExecutorLost]:
        return [event for event in self.session.events if isinstance(event, ExecutorLost)]


@pytest.fixture
def pilot(tmp_path: Path) -> Iterator[Pilot]:
    pilot = Pilot(tmp_path)
    yield pilot
    pilot.session.executor.close()
    if alive(pilot.supervisor):
        os.kill(pilot.supervisor, signal.SIGTERM)
        wait_until(lambda: not alive(pilot.supervisor))


def names(reading: LedgerReading, job: Job) -> list[str]:
    return [event.name for event in reading.events if event.job == job.id]


def test_a_job_that_is_ready_when_the_fence_appears_never_starts_and_nothing_is_left(
    pilot: Pilot,
) -> None:
    over = pilot.job("exit 3")
    pilot.session.wait_clean(over)
    assert alive(pilot.supervisor)
    running, pid = pilot.started("sleep 1000")
    set_fence(pilot.fence)
    late = pilot.job("true")
    reading = pilot.wait_over()
    assert not pilot.has_run(late)
    assert not alive(pid)
    assert [reading.state(job.id) for job in (over, running, late)] == [
        *("ended", "started", "waiting"),
    ]
    assert reading.quit is not None
    assert names(reading, running)[-1] == "start"
    assert names(reading, over)[-1] == "clean"
    assert "finish" not in pilot.session.names(running)


def test_no_job_starts_while_the_fence_cannot_be_looked_for(pilot: Pilot) -> None:
    moved = pilot.folder.parent.rename(pilot.folder.parent.with_name("moved"))
    job = pilot.job("true")
    pilot.session.wait(pilot.session.problems, "the problem")
    (problem,) = pilot.session.problems()
    assert problem.startswith(f"cannot look for {pilot.fence} (No such file or directory)")
    assert not pilot.has_run(job)
    moved.rename(pilot.folder.parent)
    pilot.session.wait_clean(job)
    assert pilot.session.problems()[1:] == [
        f"{pilot.fence} can be looked for again: waiting jobs start now"
    ]
    assert pilot.session.names(job).count("start") == 1


def test_a_job_that_was_about_to_start_at_sigterm_runs_with_the_next_supervisor(
    tmp_path: Path,
) -> None:
    """It waited for the fence to be looked for. Nobody else would start it, or report its end."""
    pilot = Pilot(tmp_path)
    moved = pilot.folder.parent.rename(pilot.folder.parent.with_name("moved"))
    job = pilot.job("true")
    pilot.session.wait(pilot.session.problems, "the problem")
    os.kill(pilot.supervisor, signal.SIGTERM)
    wait_until(lambda: not alive(pilot.supervisor))
    moved.rename(pilot.folder.parent)
    pilot.session.executor.close()
    assert read_ledger(pilot.folder, {}).state(job.id) == "waiting"
    later = Pilot(tmp_path, pilot)
    later.session.take_over([job.id])
    later.session.wait_clean(job)
    assert later.has_run(job)
    assert later.session.cause(job) == "exit"
    later.session.executor.close()
    wait_until(lambda: not alive(later.supervisor))


def test_a_look_for_the_fence_that_hangs_blocks_nothing_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence_module, "_SLOW", 0.0)
    ledger = Ledger(str(tmp_path), "t", time.time())
    go = threading.Event()

    def look(path: str) -> bool:
        go.wait()
        return False

    fence = Fence(str(tmp_path / "fence"), ledger, lambda: None, look)
    poller: Poller[Any] = Poller()
    said: list[bytes] = []
    log = EventRecorder(time.time, said.extend, Slots(1, 1, 1, ()), ledger)
    fence.attach(poller, log)
    first, second = (LocalJob(Job(id=i, group="a", index=0, command=()), 0) for i in "ab")
    assert not fence.pass_jobs(deque([first]))
    later = deque([second])
    assert not fence.pass_jobs(later)
    assert list(later) == [second], "its line may not be synced before the look under way"
    poller.run_timers()
    log.publish()
    assert b"has not answered for" in b"".join(said)
    go.set()
    passed: deque[LocalJob] = deque()
    while not passed:
        poller.wait()
        passed = fence.pass_jobs(later)
    assert list(passed) == [first]
    poller.close()
    ledger.close()


def test_at_sigterm_only_the_exit_code_0_is_a_jobs_own_end(tmp_path: Path) -> None:
    pilot = Pilot(tmp_path, slots=4)
    done, _ = pilot.started("trap 'exit 0' TERM; while :; do sleep 0.1; done")
    failed, failed_pid = pilot.started("trap 'exit 3' TERM; while :; do sleep 0.1; done")
    deaf, deaf_pid = pilot.started("trap '' TERM; while :; do sleep 0.1; done")
    killed, killed_pid = pilot.started("sleep 1000")
    waiting = pilot.job("true")
    os.kill(killed_pid, signal.SIGKILL)  # as a queue that ends one process after another
    wait_until(lambda: not Path(f"/proc/{killed_pid}").exists())  # the supervisor has reaped it
    os.kill(pilot.supervisor, signal.SIGTERM)
    reading = pilot.wait_over()
    assert [reading.state(job.id) for job in (done, failed, deaf, killed, waiting)] == [
        *("ended", "started", "started", "started", "waiting"),
    ]
    assert names(reading, done)[-4:] == ["finish", "release", "free", "clean"]
    for job in (failed, deaf, killed):
        assert names(reading, job)[-1] == "start"
        assert pilot.session.names(job)[-1] == "start"
    assert reading.quit is not None
    assert not any(map(alive, (failed_pid, deaf_pid, killed_pid)))
    assert not pilot.has_run(waiting)
    wait_until(pilot.lost)
    (lost,) = pilot.lost()
    assert lost.drained
    pilot.session.executor.close()


def test_when_the_task_is_gone_no_process_of_a_job_is_left_and_no_end_is_written(
    tmp_path: Path,
) -> None:
    state = tmp_path / "pilot-1" / "node-0"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    task = subprocess.Popen([sys.executable, "-c", TASK, str(state)], **pipes)
    script = (
        f"cd {tmp_path}; ls -l /proc/$$/fd > files; setsid setsid sleep 1000 & "
        "trap '' TERM; echo $$ > pid.tmp; mv pid.tmp pid; while :; do sleep 0.1; done"
    )
    job = Job(id="a.0", group="a", index=0, command=("sh", "-c", script))
    hello = {
        "version": 1,
        "tag": "t",
        "id": "id",
        "clock": [time.time(), time.monotonic()],
        "environment": dict(os.environ),
        "folder": str(tmp_path),
        "output": str(tmp_path),
        "state": str(state),
        "slots": [1, 1, 1],
        "gpus": [],
        "grace": 1000.0,
    }
    assert task.stdin is not None
    assert task.stdout is not None
    for message in (["hello", hello], ["submit", [encode_job(job)]]):
        task.stdin.write(line(message))
        task.stdin.flush()
        task.stdout.readline()
    wait_until((tmp_path / "pid").exists)
    supervisor, pid = supervisor_pid(state), int((tmp_path / "pid").read_text())
    assert str(tmp_path) in folders()
    task.kill()
    task.communicate()
    wait_until(lambda: not alive(supervisor))
    assert not alive(pid)
    assert str(tmp_path) not in folders()
    reading = read_ledger(state, {"a.0": 0.0})
    assert reading.state("a.0") == "started"
    assert names(reading, job)[-1] == "start"
    assert reading.quit is not None
    assert "anon_inode:[pidfd]" not in (tmp_path / "files").read_text()


def folders() -> list[str]:
    """Return the working directories of all processes."""
    found = []
    for name in os.listdir("/proc"):
        try:
            found.append(os.readlink(f"/proc/{name}/cwd"))
        except OSError:
            continue
    return found


def written(folder: Path, *texts: bytes) -> Path:
    """Return the folder of a ledger with these lines."""
    ledger = Ledger(str(folder), "t", 100.0)
    for text in texts:
        ledger.add("", text)
    assert ledger.flush(300.0)
    ledger.close()
    return folder


def event(job: str, name: str, when: float = 200.0) -> bytes:
    return encode_event(JobEvent(when, job, name))


def test_a_job_in_a_ledger_is_said_to_wait_only_if_it_certainly_has_not_started(
    tmp_path: Path,
) -> None:
    texts = [event(job, "submit") for job in "abcdefg"]
    texts += [event(job, "alloc", 201.0) for job in "bcde"]
    texts += [line(["u", "c"]), line(["u", "d"]), line(["l", "d"])]
    texts += [event("e", "clean", 202.0), line(["f", ["e", "g"]]), line(["q", 203.0])]
    folder = written(tmp_path / "whole", *texts)
    reading = read_ledger(folder, {"a": 0.0, "b": 200.0})
    states = {
        **dict.fromkeys("acfgx", "waiting"),  # g was recalled
        **dict.fromkeys("bd", "started"),
        **dict.fromkeys("e", "ended"),
    }
    assert {job: reading.state(job) for job in "abcdefgx"} == states
    assert [(each.job, each.name) for each in reading.events] == [("a", "submit"), ("b", "alloc")]
    assert (reading.began, reading.quit, reading.damaged) == (100.0, 203.0, 0)
    assert (reading.torn, reading.problem) == (False, "")

    path = folder / "local.log"
    whole = path.read_bytes()
    alloc = next(text for text in whole.splitlines(True) if b'"b",201' in text)
    path.write_bytes(whole.replace(alloc, b"\0" * 9 + b"\r" + alloc[10:]))
    reading = read_ledger(folder, {})
    assert [reading.state(job) for job in "abdex"] == [
        *("unknown", "unknown", "started", "ended", "unknown"),
    ]
    assert reading.problem.startswith(f"1 lines of {path} are damaged")

    path.write_bytes(whole + alloc[:-1])
    assert read_ledger(folder, {}).torn
    assert read_ledger(folder, {}).state("a") == "waiting"
    written(folder)  # the next supervisor
    assert read_ledger(folder, {}).quit is None


def test_a_folder_that_cannot_be_read_is_not_one_without_a_ledger(tmp_path: Path) -> None:
    assert read_ledger(tmp_path / "node-0", {}).state("a") == "waiting"
    with pytest.raises(ExecutorError, match="its folder does not exist"):
        read_ledger(tmp_path / "gone" / "node-0", {})
    (tmp_path / "node-1" / "local.log").mkdir(parents=True)
    with pytest.raises(ExecutorError, match="Is a directory"):
        read_ledger(tmp_path / "node-1", {})
