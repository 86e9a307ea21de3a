"""Supervisors of local jobs: the jobs survive their controller, and a resume reattaches them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing.processes import process_files
from ensemble_testing.session import Session, alive, wait_until

from ensemble_core.errors import ExecutorError
from ensemble_core.local.epoll_loop import Poller
from ensemble_core.local.executor import LocalExecutor
from ensemble_core.local.ledger import with_checksum
from ensemble_core.local.supervisor_start import SECRET, StartedSupervisor, address
from ensemble_core.model.events import Event, ExecutorLost, JobEvent, Problem, ResizeOutcome
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Run
from ensemble_core.posix import boot_id
from ensemble_core.quick_dataclass import replace

#: A controller to be killed: submits jobs and records events.
CONTROLLER = """
import json, sys, time
from pathlib import Path
from ensemble_core.local.executor import LocalExecutor
from ensemble_core.plugin.executor import Run
from ensemble_core.model.jobs import Job
tag, folder, slots, state, jobs = sys.argv[1:]
folder = Path(folder)
heard = open(folder / "heard", "w", buffering=1)
def emit(events):
    for event in events:
        heard.write(json.dumps(event.to_dict()) + "\\n")
executor = LocalExecutor(slots=int(slots), grace=0.3)
executor.open(Run(tag, folder, time.time, Path(state) if state else None), emit)
(folder / "supervisor.tmp").write_text(str(executor._client.supervisor))
(folder / "supervisor.tmp").rename(folder / "supervisor")
executor.submit([Job.from_dict(job) for job in json.loads(jobs)])
time.sleep(1000)
"""


class Stage:
    """A run's folder, the controllers to be killed, and the controller that follows them."""

    def __init__(self, folder: Path, slots: int = 2) -> None:
        self.folder = folder
        self.slots = slots
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        self.session = self.next()
        self.tag = self.session.tag
        self.state: Path | None = folder / "state" / self.tag
        self.controller: subprocess.Popen[bytes] | None = None
        self.supervisors: list[int] = []

    def next(self) -> Session:
        """Return the next controller of the run."""
        executor = LocalExecutor(slots=self.slots, grace=0.3)
        session = Session(executor, self.folder, 120, tidy=True)
        if hasattr(self, "tag"):
            session.resume(self.session)
        return session

    def job(self, script: str, **fields: Any) -> Job:
        """Return a job that adds a line to its own file each time it runs."""
        text = f"echo ran >> ran.$ENSEMBLE_JOB_ID; {script}"
        return self.session.job("sh", "-c", text, workdir=str(self.work), **fields)

    def runs(self, job: Job) -> int:
        path = self.work / f"ran.{job.id}"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def start(self, *jobs: Job) -> None:
        (self.folder / "supervisor").unlink(missing_ok=True)
        (self.folder / "heard").unlink(missing_ok=True)
        text = json.dumps([job.to_dict() for job in jobs])
        state = str(self.state or "")
        command = [sys.executable, "-c", CONTROLLER, self.tag, str(self.folder)]
        self.controller = subprocess.Popen([*command, str(self.slots), state, text])

    def supervisor(self) -> int:
        path = self.folder / "supervisor"
        wait_until(path.exists)
        return int(path.read_text())

    def heard(self, job: Job) -> dict[str, dict[str, Any]]:
        path = self.folder / "heard"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return {event["name"]: event for event in events if event.get("job") == job.id}

    def wait_heard(self, job: Job, name: str) -> None:
        wait_until(lambda: name in self.heard(job))

    def kill_controller(self) -> None:
        assert self.controller is not None
        self.controller.kill()
        self.controller.wait()

    def kill_supervisor(self) -> None:
        pid = self.supervisor()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not alive(pid))

    def open_gate(self) -> None:
        (self.work / "gate").touch()

    def end(self) -> None:
        if self.controller is not None:
            self.kill_controller()
        mark = f"ENSEMBLE_RUN={self.tag}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                ours = mark in (path / "environ").read_bytes().split(b"\0")
                ours = ours or self.tag.encode() in (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if ours and alive(int(path.name)):
                os.kill(int(path.name), signal.SIGKILL)


GATE = "until [ -e gate ]; do sleep 0.02; done"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "run")
    yield made
    made.end()


def code(session: Session, job: Job) -> int:
    return os.waitstatus_to_exitcode(session.context(job, "finish")["status"])


def fatal(session: Session, job: Job) -> list[str]:
    return [
        event.context["type"]
        for event in session.of(job)
        if event.name == "exception" and event.context["severity"] == 0
    ]


def everything(*jobs: Job) -> dict[str, float]:
    return dict.fromkeys((job.id for job in jobs), 0.0)


def states_of_children(parent: int) -> list[str]:
    """Return the states of the processes with this parent, such as ``Z`` for a zombie."""
    words = [stat.decode().rpartition(")")[2].split() for _, stat in process_files("stat")]
    return [state for state, its_parent, *_ in words if int(its_parent) == parent]


def states_of_threads(process: int) -> set[str]:
    stats = Path(f"/proc/{process}/task").glob("*/stat")
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in stats}


def threads_with(process: int, number: signal.Signals) -> list[int]:
    """Return the threads of a process that do not block a signal."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    masks = {int(task.name): (task / "status").read_text() for task in tasks}
    blocked = {
        thread: int(re.search(r"^SigBlk:\s*(\w+)", text, re.MULTILINE)[1], 16)  # type: ignore[index]
        for thread, text in masks.items()
    }
    return [thread for thread, mask in blocked.items() if not mask >> (number - 1) & 1]


def ordered(session: Session, jobs: Sequence[Job]) -> None:
    for job in jobs:
        times = [event.timestamp for event in session.of(job)]
        assert times == sorted(set(times))
        names = session.names(job)
        assert len(names) == len(set(names)), names
        assert names[-1] == "clean"


def test_jobs_of_a_killed_controller_continue_and_their_ends_are_known(stage: Stage) -> None:
    stage.slots = 3
    ends = [stage.job(f"{GATE}; exit 7"), stage.job(f"{GATE}; kill -9 $$")]
    limited = stage.job("sleep 1000", duration=1.5)
    waiting = [stage.job("exit 5") for _ in range(4)]
    jobs = [*ends, limited, *waiting]
    stage.start(*jobs)
    stage.wait_heard(limited, "start")
    first = stage.heard(ends[0])
    stage.kill_controller()
    stage.open_gate()
    wait_until(lambda: all(stage.runs(job) for job in waiting))  # started without a controller
    with stage.next() as session:
        assert session.executor.reattach(everything(*jobs)) == dict.fromkeys(
            everything(*jobs), True
        )
        session.wait_clean(*jobs)
        assert [code(session, job) for job in ends] == [7, -9]
        assert fatal(session, limited) == ["timeout"]
        assert {code(session, job) for job in waiting} == {5}
        assert all(stage.runs(job) == 1 for job in jobs)
        ordered(session, jobs)
        again = session.of(ends[0])
        assert {e.name: e.timestamp for e in again}.items() >= {
            (name, event["timestamp"]) for name, event in first.items()
        }


def test_only_newer_events_of_requested_jobs_are_repeated(stage: Stage) -> None:
    one, two, other = stage.job("exit 3"), stage.job(GATE), stage.job(GATE)
    stage.start(one, two, other)
    stage.wait_heard(two, "start")
    stage.wait_heard(one, "clean")
    known = stage.heard(one)["start"]["timestamp"]
    newest = max(event["timestamp"] for event in stage.heard(two).values())
    stage.kill_controller()
    with stage.next() as session:
        assert session.executor.reattach({one.id: known, two.id: newest, "t.99": 0.0}) == {
            one.id: True,
            two.id: True,
            "t.99": False,
        }
        stage.open_gate()
        session.wait_clean(one, two)
        assert session.names(one) == ["finish", "release", "free", "clean"]
        assert session.names(two) == ["finish", "release", "free", "clean"]
        wait_until(lambda: session.executor.resources()["cores.free"] == 2)
        assert session.of(other) == []


@pytest.mark.parametrize("victims", ["controller", "supervisor", "both"])
@pytest.mark.parametrize("seed", range(4))
def test_no_job_is_lost_or_run_twice_after_a_kill_at_any_time(
    stage: Stage, victims: str, seed: int
) -> None:
    chance = random.Random(f"{victims}{seed}")
    jobs = [stage.job(f"sleep 0.0{chance.randrange(10)}; exit {n % 4}") for n in range(30)]
    stage.start(*jobs)
    supervisor = 0
    if victims == "controller" and seed == 0:
        time.sleep(chance.uniform(0.0, 0.2))  # perhaps before the supervisor starts
    else:
        supervisor = stage.supervisor()
        time.sleep(chance.uniform(0.0, 0.25))
    if victims in ("supervisor", "both"):
        os.kill(supervisor, signal.SIGKILL)
    stage.kill_controller()
    left = {job.id: job for job in jobs}
    lost: set[str] = set()
    for step in range(3):  # the second controller closes at once; the third waits for the end
        with stage.next() as session:
            session.tidy = False
            found = session.executor.reattach(everything(*jobs))
            session.submit(*(left[name] for name, known in found.items() if not known))
            if step == 1:
                continue
            if step == 0:
                time.sleep(chance.uniform(0, 0.1))
                continue
            session.wait_clean(*jobs)
            ordered(session, jobs)
            for n, job in enumerate(jobs):
                if fatal(session, job) == ["lost"]:
                    lost.add(job.id)
                else:
                    assert code(session, job) == n % 4
    runs = {job.id: stage.runs(job) for job in jobs}
    assert all(count <= 1 for count in runs.values()), runs
    assert all(count == 1 or name in lost for name, count in runs.items()), runs
    assert len(lost) <= (0 if victims == "controller" else stage.slots)


def test_if_the_supervisor_is_killed_running_jobs_are_lost_and_waiting_ones_continue(
    stage: Stage,
) -> None:
    stage.slots = 1
    running = stage.job(GATE)
    waiting = [stage.job("exit 4") for _ in range(3)]
    stage.start(running, *waiting)
    stage.wait_heard(running, "start")
    stage.wait_heard(waiting[-1], "priority")
    stage.kill_supervisor()
    stage.kill_controller()
    with stage.next() as session:
        found = session.executor.reattach(everything(running, *waiting))
        assert all(found.values())
        time.sleep(0.3)
        # The left process holds its slot until it exits.
        assert "exception" not in session.names(running)
        assert "alloc" not in session.names(waiting[0])
        stage.open_gate()
        session.wait_clean(running, *waiting)
        assert fatal(session, running) == ["lost"]
        assert "exit code cannot be known" in session.context(running, "exception")["note"]
        assert "finish" not in session.names(running)
        assert [code(session, job) for job in waiting] == [4, 4, 4]
        ordered(session, [running, *waiting])
        alloc = session.of(waiting[0])[4]
        assert alloc.name == "alloc"
        assert alloc.timestamp > session.of(running)[-1].timestamp
    assert [stage.runs(job) for job in (running, *waiting)] == [1, 1, 1, 1]


@pytest.mark.parametrize("hide", ["", "setsid ", "env -i setsid ", "exec env -i "])
@pytest.mark.parametrize("end", ["cancel", "timeout"])
def test_jobs_of_a_killed_supervisor_can_be_ended(stage: Stage, hide: str, end: str) -> None:
    script = f"echo $$ > pid; {hide}sleep 1000 & echo $! > child; {hide}sleep 1000"
    job = stage.job(script, duration=8.0 if end == "timeout" else 0.0)
    stage.start(job)
    stage.wait_heard(job, "start")
    wait_until(lambda: (stage.work / "child").exists() and (stage.work / "child").read_text() != "")
    pids = [int((stage.work / name).read_text()) for name in ("pid", "child")]
    stage.kill_supervisor()
    stage.kill_controller()
    with stage.next() as session:
        session.executor.reattach(everything(job))
        if end == "cancel":
            session.executor.cancel([job.id])
        session.wait_clean(job)
        assert fatal(session, job) == [end]
    assert [pid for pid in pids if alive(pid)] == []


def test_reattached_jobs_can_be_cancelled(stage: Stage) -> None:
    stage.slots = 1
    running, waiting = stage.job("sleep 1000"), stage.job("sleep 1000")
    stage.start(running, waiting)
    stage.wait_heard(running, "start")
    stage.kill_controller()
    with stage.next() as session:
        session.executor.reattach(everything(running, waiting))
        session.executor.cancel([running.id, waiting.id])
        session.wait_clean(running, waiting)
        assert fatal(session, running) == fatal(session, waiting) == ["cancel"]
        assert code(session, running) == -15
        assert stage.runs(waiting) == 0


def test_a_second_controller_is_rejected_with_the_first_ones_name(stage: Stage) -> None:
    job = stage.job(GATE)
    stage.start(job)
    stage.wait_heard(job, "start")
    assert stage.controller is not None
    with pytest.raises(ExecutorError, match="another controller") as caught:
        stage.next().__enter__()
    assert str(stage.controller.pid) in str(caught.value)
    stage.open_gate()
    stage.wait_heard(job, "clean")


def test_a_job_that_ran_is_not_run_again(stage: Stage) -> None:
    job = stage.job("exit 2")
    stage.start(job)
    stage.wait_heard(job, "clean")
    stage.kill_controller()
    with stage.next() as session:
        session.executor.submit([job])
        session.wait(lambda: any(isinstance(e, Problem) for e in session.events), "a problem")
    assert stage.runs(job) == 1


def test_without_state_jobs_continue_and_the_supervisor_exits_after_them(stage: Stage) -> None:
    stage.state = None
    jobs = [stage.job(f"{GATE}; touch over.{n}") for n in range(4)]
    stage.start(*jobs)
    stage.wait_heard(jobs[1], "start")
    supervisor = stage.supervisor()
    stage.kill_controller()
    stage.open_gate()
    wait_until(lambda: all((stage.work / f"over.{n}").exists() for n in range(4)))
    wait_until(lambda: not alive(supervisor))


def test_a_fork_of_a_killed_controller_does_not_block_the_next_one(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from ensemble_core.local.executor import LocalExecutor\n"
        "from ensemble_core.plugin.executor import Run\n"
        "executor = LocalExecutor(slots=1)\n"
        "executor.open(Run(sys.argv[1], Path('.'), time.time, Path('s')), lambda events: None)\n"
        "pid = os.fork()\n"
        "if pid: print(pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    tag = f"fork-{tmp_path.name}-{os.getpid()}"
    first = subprocess.Popen(
        [sys.executable, "-c", code, tag], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    fork = int(first.stdout.readline())
    try:
        first.kill()
        first.wait()
        executor = LocalExecutor(slots=1)
        executor.open(Run(tag, tmp_path, time.time, tmp_path / "s"), lambda events: None)
        executor.close()
    finally:
        os.kill(fork, signal.SIGKILL)
        first.stdout.close()


def test_a_dead_supervisor_is_reported_once_with_a_hint(stage: Stage) -> None:
    with stage.next() as session:
        job = stage.job("sleep 1000")
        session.submit(job)
        session.wait_for(job, "start")
        executor = session.executor
        assert isinstance(executor, LocalExecutor)
        assert executor._client is not None
        os.kill(executor._client.supervisor, signal.SIGKILL)
        session.wait(lambda: isinstance(session.events[-1], ExecutorLost), "the loss")
        lost = [event for event in session.events if isinstance(event, ExecutorLost)]
        assert len(lost) == 1
        assert f"ensemble resume {stage.tag}" in lost[0].hint
        calls: list[Any] = [
            lambda: executor.submit([stage.job("true")]),
            lambda: executor.cancel([job.id]),
            lambda: executor.reattach({job.id: 0.0}),
            lambda: executor.resize("r", 1),
        ]
        for call in calls:
            with pytest.raises(ExecutorError, match="stopped"):
                call()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGQUIT])
def test_a_supervisor_drains_at_a_signal_that_ends_an_allocation(stage: Stage, number: int) -> None:
    with stage.next() as session:
        running, waiting = stage.job("sleep 1000", tasks=2), stage.job("true")
        session.submit(running, waiting)
        session.wait_for(running, "start")
        executor = session.executor
        assert isinstance(executor, LocalExecutor)
        assert executor._client is not None
        os.kill(executor._client.supervisor, number)
        session.wait_clean(running)
        assert fatal(session, running) == ["interrupted"]
        session.wait(lambda: isinstance(session.events[-1], ExecutorLost), "the loss")
        assert session.events[-1].drained
        assert fatal(session, waiting) == []
        executor.cancel([waiting.id])  # no error: it does not run
        assert executor.reattach({waiting.id: 1.0}) == {waiting.id: True}  # a resume that begins
    with stage.next() as session:
        assert session.executor.reattach({waiting.id: 1.0}) == {waiting.id: True}
        session.wait_clean(waiting)
        assert session.context(waiting, "finish")["status"] == 0


@pytest.mark.timeout(60)
def test_a_signal_that_arrives_while_a_supervisor_closes_does_not_stop_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler of the signal waited for a lock of its own thread, so the process never ended."""
    poller: Poller[str] = Poller()
    signals: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        poller.wake()
        signals.append(number)

    close = os.close

    def signalled(fd: int) -> None:
        os.kill(os.getpid(), signal.SIGUSR2)
        close(fd)

    before = signal.signal(signal.SIGUSR2, on_signal)
    try:
        monkeypatch.setattr("ensemble_core.local.epoll_loop.os.close", signalled)
        poller.close()
    finally:
        monkeypatch.undo()
        signal.signal(signal.SIGUSR2, before)
    assert signals


def test_a_job_that_exits_as_its_supervisor_starts_to_drain_ends_normally(stage: Stage) -> None:
    with stage.next() as session:
        job, waiting = stage.job("read line < go"), stage.job("true")
        os.mkfifo(stage.work / "go")
        session.submit(job, waiting)
        session.wait_for(job, "start")
        executor = session.executor
        assert isinstance(executor, LocalExecutor)
        assert executor._client is not None
        supervisor = executor._client.supervisor
        # Any thread takes a signal that came while the process was stopped.
        assert threads_with(supervisor, signal.SIGTERM) == [supervisor]
        os.kill(supervisor, signal.SIGSTOP)
        wait_until(lambda: states_of_threads(supervisor) == {"T"})  # or the job could be reaped
        (stage.work / "go").write_text("go\n")
        wait_until(lambda: "Z" in states_of_children(supervisor))
        os.kill(supervisor, signal.SIGTERM)
        os.kill(supervisor, signal.SIGCONT)
        session.wait_clean(job)
        assert session.context(job, "finish")["status"] == 0
        session.wait(lambda: isinstance(session.events[-1], ExecutorLost), "the loss")
        assert session.events[-1].drained


def test_without_a_ledger_a_supervisor_cancels_its_jobs_at_sigterm(tmp_path: Path) -> None:
    with Session(LocalExecutor(slots=1), tmp_path / "run", 120, kept=False) as session:
        running, waiting = session.job("sleep", "1000"), session.job("true")
        session.submit(running, waiting)
        session.wait_for(running, "start")
        executor = session.executor
        assert isinstance(executor, LocalExecutor)
        assert executor._client is not None
        os.kill(executor._client.supervisor, signal.SIGTERM)
        session.wait_clean(running, waiting)
        assert fatal(session, running) == fatal(session, waiting) == ["cancel"]
        session.wait(lambda: isinstance(session.events[-1], ExecutorLost), "the loss")
        assert not session.events[-1].drained


@pytest.mark.parametrize(
    ("program", "words"), [("/no/such/python", "no such file"), ("/bin/false", "without a message")]
)
def test_a_supervisor_that_cannot_start_causes_an_error_with_a_hint(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(ExecutorError, match="cannot start") as caught:
        stage.next().__enter__()
    assert words in str(caught.value).lower()
    assert caught.value.hint


def test_resizes_survive_and_are_carried_out_once(stage: Stage) -> None:
    def answer(session: Session, request: str) -> ResizeOutcome:
        def answers() -> list[ResizeOutcome]:
            return [e for e in session.events if isinstance(e, ResizeOutcome)]

        session.wait(lambda: any(e.request == request for e in answers()), request)
        return next(e for e in answers() if e.request == request)

    def session() -> Session:
        made = Session(LocalExecutor(slots=4, max_slots=8), stage.folder, 120)
        return made.resume(stage.session)

    for kill in (False, True):
        with session() as now:
            now.executor.resize("grow", 2)
            outcome = answer(now, "grow")
            assert (outcome.outcome, outcome.size) == ("granted", 6)
            assert now.executor.resources()["cores.up"] == 6
            assert isinstance(now.executor, LocalExecutor)
            assert now.executor._client is not None
            if kill:
                os.kill(now.executor._client.supervisor, signal.SIGKILL)
                now.wait(lambda: isinstance(now.events[-1], ExecutorLost), "the loss")
    with session() as now:
        now.executor.resize("grow", 2)
        assert answer(now, "grow").size == 6
        now.executor.resize("shrink", -1)
        assert answer(now, "shrink").size == 5


def test_a_shared_file_is_not_emptied_by_a_later_supervisor(stage: Stage) -> None:
    file = stage.work / "all.txt"
    first = stage.job("echo first", stdout=str(file))
    second = stage.job("echo second", stdout=str(file))
    stage.start(first)
    stage.wait_heard(first, "clean")
    stage.kill_supervisor()
    stage.kill_controller()
    with stage.next() as session:
        session.run(second)
    assert file.read_text() == "first\nsecond\n"


def test_no_job_starts_while_the_disk_is_full(stage: Stage) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        try:
            session = stack.enter_context(stage.next())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        executor = session.executor
        assert isinstance(executor, LocalExecutor)
        assert executor._client is not None
        running = stage.job(GATE)
        session.submit(running)
        session.wait_for(running, "start")
        jobs = [stage.job("exit 6") for _ in range(100)]
        session.submit(*jobs)

        def problems() -> list[str]:
            return [e.message for e in session.events if isinstance(e, Problem)]

        session.wait(lambda: bool(problems()), "the problem")
        assert "cannot write" in problems()[0]
        started = sum("start" in session.names(job) for job in jobs)
        assert started == 0
        session.executor.cancel([jobs[-1].id])  # a full disk does not prevent a cancel
        session.wait_clean(jobs[-1])
        stage.open_gate()
        session.wait_clean(running)
        time.sleep(1.2)  # the write is retried; the disk is still full
        assert not any("start" in session.names(job) for job in jobs)
        assert not any(stage.runs(job) for job in jobs)
        assert len(problems()) == 1
        resource.prlimit(executor._client.supervisor, resource.RLIMIT_FSIZE, limits)
        session.wait_clean(*jobs)
        assert {code(session, job) for job in jobs[:-1]} == {6}
        assert len(problems()) == 2
        assert "again" in problems()[1]
    with stage.next() as session:
        assert all(session.executor.reattach(everything(*jobs)).values())
        session.wait_clean(*jobs)
        ordered(session, jobs)


def test_forgotten_jobs_are_unknown(stage: Stage) -> None:
    over, running = stage.job("true"), stage.job(GATE)
    stage.start(over, running)
    stage.wait_heard(over, "clean")
    stage.kill_controller()
    for kill in (False, True):
        with stage.next() as session:
            session.tidy = False
            session.executor.forget([over.id, running.id, "t.77"])
            found = session.executor.reattach(everything(over, running))
            assert found == {over.id: False, running.id: True}
            assert isinstance(session.executor, LocalExecutor)
            assert session.executor._client is not None
            if kill:
                os.kill(session.executor._client.supervisor, signal.SIGKILL)
    stage.open_gate()
    with stage.next() as session:
        assert session.executor.reattach(everything(over, running)) == found


def test_a_flipped_bit_in_the_ledger_is_reported(stage: Stage) -> None:
    """The line stays readable: ``ran`` becomes ``run``."""
    running, waiting = stage.job(GATE), stage.job("true")
    stage.slots = 1
    stage.start(running, waiting)
    stage.wait_heard(running, "start")
    stage.wait_heard(waiting, "priority")
    stage.kill_supervisor()
    stage.kill_controller()
    assert stage.state is not None
    path = stage.state / "local.log"
    lines = path.read_bytes().splitlines(keepends=True)
    (at,) = (
        n for n, text in enumerate(lines) if b'"submit"' in text and waiting.id.encode() in text
    )
    lines[at] = lines[at].replace(b"echo ran", b"echo run")
    path.write_bytes(b"".join(lines))
    stage.open_gate()
    heard = stage.heard(waiting)["priority"]["timestamp"]
    with stage.next() as session:
        found = session.executor.reattach({running.id: 0.0, waiting.id: heard})
        assert found == {running.id: True, waiting.id: True}
        session.wait_clean(running, waiting)
        assert fatal(session, waiting) == ["lost"]
        told = [e.message for e in session.events if isinstance(e, Problem)]
        assert any("1 lines of" in text and "damaged" in text for text in told)
    assert stage.runs(waiting) == 0


def test_waiting_jobs_start_only_after_a_controller_confirms_them(
    stage: Stage,
) -> None:
    running, first, second = stage.job(GATE), stage.job("true"), stage.job("true")
    stage.slots = 1
    stage.start(running, first, second)
    stage.wait_heard(second, "priority")
    stage.kill_supervisor()
    stage.kill_controller()
    stage.open_gate()
    with stage.next() as session:
        session.tidy = False
        session.wait(lambda: session.executor.resources()["cores.free"] == 1, "a free slot")
    wait_until(lambda: not supervisors_of(stage.tag))
    assert (stage.runs(first), stage.runs(second)) == (0, 0)
    with stage.next() as session:
        assert all(session.executor.reattach(everything(running, second)).values())
        session.wait_clean(second)
        assert session.executor.reattach(everything(first)) == {first.id: False}
    assert (stage.runs(first), stage.runs(second)) == (0, 1)


def test_a_job_of_which_the_journal_has_lost_the_submit_does_not_run_twice(stage: Stage) -> None:
    """As after a power cut: the new controller submits all jobs again, without a reattach."""
    over, changed, running, waiting = (
        *(stage.job("exit 3"), stage.job("true")),
        *(stage.job(GATE), stage.job("true")),
    )
    stage.slots = 1
    stage.start(over, changed, running, waiting)
    stage.wait_heard(running, "start")
    stage.wait_heard(waiting, "priority")
    stage.kill_supervisor()
    stage.kill_controller()
    stage.open_gate()
    other = replace(changed, environment={"OTHER": "1"})
    with stage.next() as session:
        session.submit(over, other, running, waiting)
        session.wait_clean(over, other, running, waiting)
        assert code(session, over) == 3
        assert fatal(session, other) == fatal(session, running) == ["lost"]
        assert code(session, waiting) == 0
        told = [e.message for e in session.events if isinstance(e, Problem)]
        assert [text.split()[1] for text in told] == [over.id, running.id]
        assert all("does not run twice" in text for text in told)
    assert [stage.runs(job) for job in (over, changed, running, waiting)] == [1, 1, 1, 1]


def test_after_a_power_cut_a_waiting_job_that_the_ledger_has_lost_is_submitted_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_testing.session.Run", partial(Run, syncs_late=True))
    running, waiting = stage.job(GATE), stage.job("true")
    stage.slots = 1
    stage.start(running, waiting)
    stage.wait_heard(running, "start")
    stage.wait_heard(waiting, "priority")
    heard = stage.heard(waiting)["priority"]["timestamp"]
    stage.kill_supervisor()
    stage.kill_controller()
    stage.open_gate()
    assert stage.state is not None
    path = stage.state / "local.log"
    kept = [
        with_checksum(text[9:].replace(boot_id().encode(), b"earlier"))
        if text[:1] != b"["
        else text
        for text in path.read_bytes().splitlines(keepends=True)
        if waiting.id.encode() not in text or b'"submit"' in text
    ]
    path.write_bytes(b"".join(kept))
    with stage.next() as session:
        found = session.executor.reattach({running.id: 0.0, waiting.id: heard})
        assert found == {running.id: True, waiting.id: False}
        assert session.executor.queue_is_new
        session.submit(waiting)
        session.wait_clean(running, waiting)
        assert fatal(session, running) == ["lost"]
        assert code(session, waiting) == 0
    assert stage.runs(waiting) == 1


def test_a_run_with_a_damaged_ledger_continues_with_a_warning(stage: Stage) -> None:
    over = stage.job("true")
    stage.start(over)
    stage.wait_heard(over, "clean")
    stage.kill_supervisor()
    stage.kill_controller()
    assert stage.state is not None
    with (stage.state / "local.log").open("ab") as file:
        file.write(b"\0\0\0\n[]\n")
    with stage.next() as session:
        session.wait(lambda: any(isinstance(e, Problem) for e in session.events), "a problem")
        (problem,) = [e for e in session.events if isinstance(e, Problem)]
        assert "2 lines" in problem.message
        assert session.executor.reattach(everything(over)) == {over.id: True}


def test_an_unwritable_ledger_is_an_error_of_open(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    executor = LocalExecutor(slots=1)
    with pytest.raises(ExecutorError):
        executor.open(
            Run("nowhere", tmp_path, time.time, tmp_path / "file" / "state"), lambda events: None
        )


def hello(folder: Path, tag: str = "same") -> tuple[LocalExecutor, list[Event]]:
    """Return an executor for a run with this tag and folder, and the list of its events."""
    heard: list[Event] = []
    executor = LocalExecutor(slots=1, grace=0.3)
    executor.open(Run(tag, folder, time.time, folder / "executor"), heard.extend)
    return executor, heard


def over(heard: list[Event]) -> list[str]:
    return [e.job for e in heard if isinstance(e, JobEvent) and e.name == "clean"]


def test_two_runs_with_one_tag_have_separate_supervisors(tmp_path: Path) -> None:
    (one, heard), (other, heard_too) = hello(tmp_path / "one"), hello(tmp_path / "other")
    try:
        assert one._client is not None
        assert other._client is not None
        assert one._client.supervisor != other._client.supervisor
        for executor, name in ((one, "a.0"), (other, "b.0")):
            executor.submit([Job(id=name, group=name[0], index=0, command=("true",))])
        wait_until(lambda: over(heard) == ["a.0"])
        wait_until(lambda: over(heard_too) == ["b.0"])
    finally:
        one.close()
        other.close()


def test_another_user_cannot_guess_the_name_of_a_supervisors_socket(tmp_path: Path) -> None:
    state = tmp_path / "executor"
    name = address("same", state)
    assert name == address("same", state) != address("same", tmp_path / "another")
    assert stat.S_IMODE((state / SECRET).stat().st_mode) == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: another user's process is started")
def test_a_socket_name_taken_by_another_user_is_replaced(tmp_path: Path) -> None:
    """The other user may have seen the name while the supervisor was alive."""
    name = address("same", tmp_path / "executor")
    squat = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX)\n"
        f"s.bind('\\0{name}'); s.listen(); print(flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", squat]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as squatter:
        assert squatter.stdout is not None
        squatter.stdout.readline()
        executor, heard = hello(tmp_path)
        executor.submit([Job(id="a.0", group="a", index=0, command=("true",))])
        wait_until(lambda: over(heard) == ["a.0"])
        executor.close()
        assert address("same", tmp_path / "executor") != name


def test_a_prepared_supervisor_without_a_hello_exits(tmp_path: Path) -> None:
    """For example, if the file is invalid."""
    started = StartedSupervisor("prepared-1", tmp_path / "executor", "0123456789abcdef")
    wait_until(lambda: supervisors_of("prepared-1"))
    started.sock.close()
    assert started.last_error_line() == ""  # waits for the supervisor's exit
    wait_until(lambda: not supervisors_of("prepared-1"))


def supervisors_of(tag: str) -> list[str]:
    """Return processes of this machine with a run's tag in their command line."""
    return [str(pid) for pid, line in process_files("cmdline") if tag.encode() in line.split(b"\0")]
