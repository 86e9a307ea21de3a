"""No process outlives its job in the local executor, not even a detached one."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing.processes import process_files
from ensemble_testing.session import Session, alive, wait_until

from ensemble_core.local.epoll_loop import Poller
from ensemble_core.local.executor import LocalExecutor
from ensemble_core.model.jobs import Job

#: A classic daemon: two forks, a new session, and a new environment.
DAEMON = """
import os, sys, time
name, clear, ignore = sys.argv[1], "clear" in sys.argv, "ignore" in sys.argv
if os.fork(): sys.exit()
os.setsid()
if os.fork(): os._exit(0)
program = "import os,signal,sys,time;"
if ignore: program += "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
program += "open(sys.argv[1] + '.tmp', 'w').write(str(os.getpid()));"
program += "os.rename(sys.argv[1] + '.tmp', sys.argv[1]); time.sleep(1000)"
os.execve(sys.executable, [sys.executable, "-S", "-c", program, name], {} if clear else os.environ)
"""


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Session]:
    with Session(LocalExecutor(slots=4, grace=0.3), tmp_path / "run", 120, tidy=True) as session:
        yield session


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "daemon.py").write_text(DAEMON)
    return folder


def pids(folder: Path, *names: str) -> list[int]:
    files = [folder / name for name in names]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    return [int((folder / name).read_text()) for name in names]


def daemon(name: str, *how: str) -> str:
    return f"{sys.executable} -S daemon.py {name} {' '.join(how)}"


def script(session: Session, text: str, work: Path, **fields: Any) -> Job:
    return session.job("sh", "-c", text, workdir=str(work), **fields)


def zombies(*parents: int) -> set[str]:
    """Return dead children of these processes that were not reaped."""
    found = set()
    for pid, stat in process_files("stat"):
        state, parent, *_ = stat.decode().rpartition(")")[2].split()
        if state == "Z" and int(parent) in parents:
            found.add(str(pid))
    return found


def supervisor_of(session: Session) -> int:
    assert isinstance(session.executor, LocalExecutor)
    assert session.executor._client is not None
    return session.executor._client.supervisor


@pytest.mark.parametrize("how", [(), ("clear",), ("ignore",), ("clear", "ignore")])
@pytest.mark.parametrize("end", ["cancel", "timeout", "exit"])
def test_daemons_end_with_their_job(
    local: Session, work: Path, how: tuple[str, ...], end: str
) -> None:
    rest = "until [ -e pid ]; do sleep 0.01; done" if end == "exit" else "sleep 1000"
    job = script(local, f"{daemon('pid', *how)}; {rest}", work, duration=8 * (end == "timeout"))
    local.submit(job)
    (pid,) = pids(work, "pid")
    if end == "cancel":
        local.executor.cancel([job.id])
    local.wait_clean(job)
    assert not alive(pid)
    types = {"cancel": ["cancel"], "timeout": ["timeout"], "exit": []}
    assert [e.context["type"] for e in local.of(job) if e.name == "exception"] == types[end]


def test_no_zombies_remain(tmp_path: Path, work: Path) -> None:
    of_other_tests = zombies(os.getpid())
    with Session(LocalExecutor(slots=4, grace=0.3), tmp_path / "run", 120) as local:
        text = f"{daemon('a')}; {daemon('b', 'clear')}; until [ -e a -a -e b ]; do :; done"
        local.run(script(local, text, work))
        supervisor = supervisor_of(local)
        assert zombies(supervisor, os.getpid()) <= of_other_tests
        text = "for n in 1 2 3; do (setsid -f env -i true &); done; sleep 0.1"
        local.run(script(local, text, work), local.job("true"))
        assert zombies(supervisor, os.getpid()) <= of_other_tests
    wait_until(lambda: not Path(f"/proc/{supervisor}").exists())


def test_background_processes_end_with_their_job(local: Session, work: Path) -> None:
    text = "sleep 1000 & echo $! > a; (setsid sleep 1000 & echo $! > b); echo $$ > c"
    job = script(local, text, work)
    local.run(job)
    assert [pid for pid in pids(work, "a", "b", "c") if alive(pid)] == []
    assert local.context(job, "finish")["status"] == 0


def test_a_daemon_does_not_end_with_another_job(local: Session, work: Path) -> None:
    first = script(local, f"{daemon('one')}; sleep 1000", work)
    local.submit(first)
    (one,) = pids(work, "one")
    second = script(local, f"{daemon('two')}; until [ -e two ]; do sleep 0.01; done", work)
    local.run(second)
    (two,) = pids(work, "two")
    assert not alive(two)
    assert alive(one)
    local.executor.cancel([first.id])
    local.wait_clean(first)
    assert not alive(one)


def test_an_untraceable_daemon_ends_with_the_last_candidate_job(local: Session, work: Path) -> None:
    first = script(local, "sleep 1000", work)
    second = script(local, f"{daemon('pid', 'clear')}; until [ -e pid ]; do :; done", work)
    local.submit(first)
    local.wait_for(first, "start")
    local.run(second)
    (pid,) = pids(work, "pid")
    local.executor.cancel([first.id])
    local.wait_clean(first)
    assert not alive(pid)


def test_a_job_that_keeps_forking_is_ended(local: Session, work: Path) -> None:
    text = (
        "trap '' TERM; n=0; while :; do (sleep 1000) & n=$((n+1));"
        " [ $n -lt 40 ] || touch up; sleep 0.005; done"
    )
    job = script(local, text, work)
    local.submit(job)
    wait_until(lambda: (work / "up").exists())
    local.executor.cancel([job.id])
    local.wait_clean(job)
    mark = f"ENSEMBLE_RUN={local.tag}".encode()
    left = [pid for pid, found in process_files("environ") if mark in found and alive(pid)]
    assert left == []


def test_stopped_processes_are_ended(local: Session, work: Path) -> None:
    job = script(local, "trap 'touch told; exit 3' TERM; touch up; kill -STOP $$; sleep 1000", work)
    local.submit(job)
    wait_until(lambda: (work / "up").exists())
    local.executor.cancel([job.id])
    local.wait_clean(job)
    assert local.context(job, "finish")["status"] != 0


def test_sigterm_comes_first_so_that_a_job_can_save_its_work(local: Session, work: Path) -> None:
    job = script(
        local, "trap 'echo saved; exit 0' TERM; touch up; while :; do sleep 0.01; done", work
    )
    local.submit(job)
    wait_until(lambda: (work / "up").exists())
    local.executor.cancel([job.id])
    local.wait_clean(job)
    assert Path(local.context(job, "start")["stdout"]).read_text() == "saved\n"


def test_sigkill_comes_after_the_grace_and_not_before(local: Session, work: Path) -> None:
    job = script(local, "trap '' TERM; touch up; while :; do sleep 0.01; done", work)
    local.submit(job)
    wait_until(lambda: (work / "up").exists())
    local.executor.cancel([job.id])
    local.wait_clean(job)
    by_name = {event.name: event.timestamp for event in local.of(job)}
    assert by_name["finish"] - by_name["exception"] >= 0.29
    assert os.WTERMSIG(local.context(job, "finish")["status"]) == signal.SIGKILL


def test_every_task_of_a_job_is_ended(local: Session, work: Path) -> None:
    job = script(local, "echo $$ > r$ENSEMBLE_TASK_RANK; exec sleep 1000", work, tasks=4)
    local.submit(job)
    ranks = pids(work, "r0", "r1", "r2", "r3")
    local.executor.cancel([job.id])
    local.wait_clean(job)
    assert not any(alive(pid) for pid in ranks)


def test_slots_are_released_after_the_last_process(tmp_path: Path, work: Path) -> None:
    with Session(LocalExecutor(slots=1, grace=0.2), tmp_path / "run", 120, tidy=True) as local:
        first = script(local, f"{daemon('pid', 'ignore')}; until [ -e pid ]; do :; done", work)
        second = script(local, "kill -0 $(cat pid)", work)
        local.run(first, second)
        assert local.context(first, "finish")["status"] == 0
        assert local.context(second, "finish")["status"] != 0


def test_close_kills_jobs_that_are_being_ended_and_leaves_others(
    tmp_path: Path, work: Path
) -> None:
    with Session(LocalExecutor(slots=3, grace=100), tmp_path / "run", 120) as local:
        one = script(local, f"{daemon('one', 'ignore')}; sleep 1000", work)
        two = script(local, "echo $$ > two; exec sleep 1000", work, tasks=2)
        local.submit(one, two)
        ending, going = pids(work, "one", "two")
        local.executor.cancel([one.id])
        local.wait(lambda: "exception" in local.names(one), "the cancel")
        before = len(local.events)
        supervisor = supervisor_of(local)
    assert not alive(ending)
    assert alive(going)
    assert len(local.events) == before
    again = Session(LocalExecutor(slots=3, grace=0.2), tmp_path / "run", 120)
    again.resume(local)
    with again:
        assert supervisor_of(again) == supervisor
        assert again.executor.reattach({one.id: 0.0, two.id: 0.0}) == {one.id: True, two.id: True}
        again.executor.cancel([two.id])
        again.wait_clean(one, two)
    wait_until(lambda: not alive(supervisor))
    assert not alive(going)


def test_the_controller_adopts_no_orphans(tmp_path: Path) -> None:
    with Session(LocalExecutor(slots=1), tmp_path / "a") as local:
        local.run(local.job("true"))
        value = ctypes.c_int(-1)
        ctypes.CDLL(None).prctl(37, ctypes.byref(value), 0, 0, 0)
        assert value.value == 0


def test_two_executors_leave_each_others_jobs_alone(tmp_path: Path, work: Path) -> None:
    with (
        Session(LocalExecutor(slots=2, grace=0.2), tmp_path / "a", 120, tidy=True) as first,
        Session(LocalExecutor(slots=2, grace=0.2), tmp_path / "b", 120, tidy=True) as second,
    ):
        keep = script(first, f"{daemon('keep')}; sleep 1000", work)
        first.submit(keep)
        (kept,) = pids(work, "keep")
        gone = script(second, f"{daemon('gone')}; until [ -e gone ]; do :; done", work)
        second.run(gone)
        assert alive(kept)
        assert not alive(pids(work, "gone")[0])


def test_processes_of_the_users_own_functions_are_left_alone(local: Session, work: Path) -> None:
    own = [
        subprocess.Popen(["sleep", "1000"]),
        subprocess.Popen(["sleep", "1000"], start_new_session=True),
    ]
    over = subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=True)
    try:
        job = script(local, f"{daemon('pid')}; until [ -e pid ]; do :; done", work)
        local.run(job)
        local.run(local.job("true"))
        assert all(child.poll() is None for child in own)
        assert over.wait(60) == 7
    finally:
        for child in own:
            child.kill()
            child.wait()


def test_finished_timers_are_forgotten() -> None:
    poller: Poller[None] = Poller()
    for _ in range(20_000):
        poller.at(time.monotonic() + 1000, lambda: None).cancel()
    assert len(poller._timers) < 5000
    poller.close()


def test_end_that_is_held_is_reported_once_if_the_grace_after_another_task_is_over(
    tmp_path: Path,
) -> None:
    """The executor had lost all its jobs by the second report."""
    text = "[ $ENSEMBLE_TASK_RANK = 0 ] && kill -TERM $$; sleep 0.1; exit 143"
    with Session(LocalExecutor(slots=4, grace=1), tmp_path, 120, tidy=True) as session:
        job = session.job("sh", "-c", text, tasks=2)
        session.run(job)
        # An end by a signal is held for 5 s, because the allocation may be ending.
        other = session.job("sleep", "6")
        session.run(other)
        assert session.cause(other) == "exit"
        session.check_ended_once()
