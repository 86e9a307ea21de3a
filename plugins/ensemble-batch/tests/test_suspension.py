"""Tests of both wrappers whose processes are stopped and continued by signals, run by bash."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest
from ensemble_batch import Batch, BatchExecutor, Place
from ensemble_batch.job_script import report_script_of, script_of
from ensemble_testing import wait_until
from ensemble_testing.processes import processes_of_session

from ensemble_core import Job

Kind = Literal["claims", "reports"]
#: Signals that stop a process.
STOPS = (signal.SIGTSTP, signal.SIGSTOP, signal.SIGTTIN, signal.SIGTTOU)


class Hooks(BatchExecutor):
    name = "odd"
    task_id = "7"
    grace = 0.3

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        raise NotImplementedError

    ask = find_batch = end_jobs = submit_batch  # type: ignore[assignment]  # not used here


class Wrapped:
    """A running wrapper, in its own session as under a queue's daemon."""

    def __init__(self, kind: Kind, folder: Path, script: str, **more: Any) -> None:
        self.kind, self.folder = kind, folder
        notice = more.pop("notice", "")
        environment = {**os.environ, **more.pop("outer", {})}
        job = Job(id="sim.0", group="sim", index=0, command=("sh", "-c", script), **more)
        out = str(folder / "out")
        orders = [(job, Place(str(folder), out, out))]
        (folder / "reports").mkdir()
        (folder / "variables").mkdir()
        (folder / "variables" / "sim.0@k").touch()
        shared: Mapping[str, Any] = {"tag": "melt-1", "folder": str(folder)}
        if kind == "claims":
            text = script_of(
                "k", orders, place="1", queue_id="7", grace=Hooks.grace, notice=notice, **shared
            )
        else:
            text = report_script_of(
                "k_1", orders, token="t0ken", port=0, hosts=(), hooks=Hooks(), **shared
            )
        path = folder / "script"
        path.write_bytes(text)
        self.process = subprocess.Popen(
            ["bash", str(path)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def family(self) -> list[int]:
        """Return the ids of all processes of the session."""
        return processes_of_session(self.process.pid)

    def signal(self, *numbers: signal.Signals, only: Collection[int] | None = None) -> None:
        for number in numbers:
            for pid in self.family() if only is None else only:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def state(self, pid: int) -> str:
        with suppress(OSError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return ""

    def end(self) -> tuple[int, str]:
        """Return the exit code and reason that the wrapper has reported."""
        assert self.process.wait(150) is not None
        if self.kind == "claims":
            words = next((self.folder / "reports").glob("*.end")).read_text().split()
            return int(words[0]), words[1]
        lines = [
            line.split()
            for path in (self.folder / "reports").iterdir()
            for line in path.read_text().splitlines()
        ]
        (end,) = (words for words in lines if words[5] == "end")
        return int(end[6]), end[7]

    def close(self) -> None:
        self.signal(signal.SIGCONT, signal.SIGKILL)
        self.process.wait(150)


Start = Callable[..., Wrapped]


@pytest.fixture(params=["claims", "reports"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    made: list[Wrapped] = []

    def begin(script: str, **more: Any) -> Wrapped:
        made.append(Wrapped(request.param, tmp_path, script, **more))
        wait_until((tmp_path / "began").exists)
        return made[-1]

    yield begin
    for each in made:
        each.close()


GATED = "touch began; until [ -e end ]; do sleep 0.1; done; exit 3"


def stopped(job: Wrapped, *, but: Collection[int] = ()) -> bool:
    # D: the parent of a stopped child that has not yet started its program (vfork).
    return all(job.state(pid) in ("T", "D", "") for pid in job.family() if pid not in but)


def test_a_wrapper_ends_although_bash_has_lost_the_end_of_its_job(
    start: Start, tmp_path: Path
) -> None:
    """Bash loses it if a signal comes at the same moment, and then waits for another child."""
    lost = 'wait() { builtin wait "$1"; [ -n "$_ens_gone" ] || { sleep 100 & builtin wait $!; }; }'
    (tmp_path / "bash-env").write_text(lost)
    outer = {"BASH_ENV": str(tmp_path / "bash-env")}
    job = start("touch began; exit 3", duration=20.0, outer=outer)
    assert job.end() == (3, "-")


@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("times", [1, 3])
def test_a_suspended_and_continued_job_ends_by_itself(
    start: Start, number: signal.Signals, times: int
) -> None:
    """Slurm sends SIGTSTP to all processes of a job, and then SIGSTOP."""
    job = start(GATED)
    for _ in range(times):
        job.signal(number)
        time.sleep(0.3)  # processes may react to SIGTSTP
        job.signal(signal.SIGSTOP)
        wait_until(lambda: stopped(job))
        job.signal(signal.SIGCONT)
        time.sleep(0.3)
    assert job.process.poll() is None
    (job.folder / "end").touch()
    assert job.end() == (3, "-")


@pytest.mark.parametrize("number", STOPS)
def test_a_command_that_alone_is_stopped_and_continued_ends_by_itself(
    start: Start, number: signal.Signals
) -> None:
    job = start(GATED)
    command = [pid for pid in job.family() if pid != job.process.pid]
    job.signal(number, only=command)
    time.sleep(0.5)
    assert job.process.poll() is None
    (job.folder / "end").touch()
    time.sleep(0.5)
    assert job.process.poll() is None
    job.signal(signal.SIGCONT, only=command)
    assert job.end() == (3, "-")


def test_a_command_that_stops_itself_at_once_ends_by_itself(start: Start) -> None:
    """It may be stopped before the wrapper waits for it."""
    job = start(f"touch began; kill -TSTP $$; {GATED}")
    time.sleep(0.5)
    job.signal(signal.SIGCONT)
    time.sleep(0.3)
    (job.folder / "end").touch()
    assert job.end() == (3, "-")


#: A ``sleep`` whose minutes the test counts. As with the real one, time goes on while it is stopped.
SLEEP = """#!/bin/bash
case $1 in 60*) ;; *) PATH=$SLEEP_PATH exec sleep "$@" ;; esac
now() { read -r minutes <"$SLEEP_CLOCK"; }
until now; do :; done
end=$((minutes + 1))
echo >>"$SLEEP_CLOCK.calls"
until now && [ "$minutes" -ge "$end" ]; do PATH=$SLEEP_PATH sleep 0.05; done
"""
LIMIT = 10  #: minutes


class Clock:
    """The time of a job whose limit is ten minutes, counted by the wrapper one by one."""

    def __init__(self, folder: Path) -> None:
        self._file, self._minutes = folder / "clock", 0
        self._set()
        tools = folder / "tools"
        tools.mkdir()
        (tools / "sleep").write_text(SLEEP)
        (tools / "sleep").chmod(0o755)
        path = os.environ["PATH"]
        self.job = {
            "duration": 60.0 * LIMIT,
            "outer": {
                "PATH": f"{tools}{os.pathsep}{path}",
                "SLEEP_PATH": path,
                "SLEEP_CLOCK": str(self._file),
            },
        }

    def _set(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{self._minutes}\n")
        new.replace(self._file)

    def calls(self) -> int:
        """Return how many minutes the wrapper has begun to wait for."""
        with suppress(FileNotFoundError):
            return self._file.with_suffix(".calls").read_text().count("\n")
        return 0

    def wait(self, calls: int) -> None:
        wait_until(lambda: self.calls() >= calls)

    def forward(self, minutes: int) -> None:
        self._minutes += minutes
        self._set()


def test_a_job_ends_at_its_limit_in_slices(start: Start, tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    job = start(GATED, **clock.job)
    for minute in range(1, LIMIT + 1):
        clock.wait(minute)
        assert job.process.poll() is None
        clock.forward(1)
    assert job.end() == (143, "timeout")


def test_time_while_suspended_does_not_count_for_the_limit(start: Start, tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    job = start(GATED, **clock.job)
    clock.wait(1)
    job.signal(signal.SIGTSTP, signal.SIGSTOP)
    wait_until(lambda: stopped(job))
    clock.forward(5 * LIMIT)
    job.signal(signal.SIGCONT)
    clock.wait(2)
    (job.folder / "end").touch()
    assert job.end() == (3, "-")


def test_a_clock_that_runs_while_the_job_is_stopped_does_not_count(
    start: Start, tmp_path: Path
) -> None:
    """A queue lists the processes and then stops them, so it misses one that is just started."""
    clock = Clock(tmp_path)
    job = start(GATED, **clock.job)
    clock.wait(1)
    wrapper = [job.process.pid]
    job.signal(signal.SIGSTOP, only=wrapper)
    wait_until(lambda: job.state(wrapper[0]) == "T")
    for minute in range(2, 2 * LIMIT):
        clock.forward(1)
        clock.wait(minute)
    (job.folder / "end").touch()
    job.signal(signal.SIGCONT, only=wrapper)
    assert job.end() == (3, "-")


@pytest.mark.parametrize("kind", ["claims", "reports"])
@pytest.mark.parametrize("line", ["set -m", "_ens_pids+=($!)", "_ens_started=1"])
def test_a_job_that_is_cancelled_while_it_starts_ends(
    tmp_path: Path, line: str, kind: Kind
) -> None:
    """The signal comes when the wrapper does not know its command's id yet."""
    begin = tmp_path / "begin"
    begin.write_text(
        "set -T\n"
        "trap 'case $BASH_COMMAND in $LINE_OF_SIGNAL*) trap - DEBUG; kill -TERM $$ ;; esac' DEBUG\n"
    )
    outer = {"BASH_ENV": str(begin), "LINE_OF_SIGNAL": line.replace("(", "\\(").replace("$", "\\$")}
    job = Wrapped(kind, tmp_path, "exec sleep 1000", outer=outer)
    try:
        assert job.end() == (143, "stopped")
        wait_until(lambda: not job.family())
    finally:
        job.close()


def test_a_suspended_job_that_is_ended_leaves_no_process(start: Start) -> None:
    job = start("touch began; exec sleep 1000")
    command = [pid for pid in job.family() if pid != job.process.pid]
    job.signal(signal.SIGSTOP, only=command)
    job.signal(signal.SIGTERM, only=[job.process.pid])
    assert job.end() == (143, "stopped")
    wait_until(lambda: not job.family())


def test_a_job_that_is_suspended_before_it_starts_runs(tmp_path: Path) -> None:
    """The queue sends its notice to the wrapper's group while the wrapper reads its files."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "rm").write_text('#!/bin/bash\nkill -USR1 -- -$PPID; exec /bin/rm "$@"\n')
    (tools / "rm").chmod(0o755)
    outer = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    job = Wrapped("claims", tmp_path, "exit 3", notice="USR1", outer=outer)
    try:
        assert job.end() == (3, "-")
        assert not list((tmp_path / "variables").iterdir())
    finally:
        job.close()


@pytest.fixture
def noticed(tmp_path: Path) -> Iterator[Wrapped]:
    """Yield a job whose queue announces suspensions by SIGUSR1, and then stops only the wrapper."""
    job = Wrapped("claims", tmp_path, GATED, notice="USR1", duration=600.0)
    wait_until((tmp_path / "began").exists)
    yield job
    job.close()


def _leads(pid: int) -> bool:
    """Return whether this process leads a process group."""
    with suppress(ProcessLookupError):
        return os.getpgid(pid) == pid
    return False


def wait_followed(job: Wrapped) -> None:
    """Wait for all groups: the wrapper, its task, clock, post and follower."""
    wait_until(lambda: sum(_leads(pid) for pid in job.family()) == 5)


def suspend(job: Wrapped) -> None:
    """Suspend a job as Grid Engine does."""
    wrapper = job.process.pid
    job.signal(signal.SIGUSR1, only=[wrapper])
    # Grid Engine waits for a minute between the two signals.
    wait_followed(job)
    job.signal(signal.SIGSTOP, only=[wrapper])
    wait_until(lambda: sum(job.state(pid) == "T" for pid in job.family()) > 2)


def test_notice_of_a_suspension_does_not_end_the_job(noticed: Wrapped) -> None:
    noticed.signal(signal.SIGUSR1, only=[noticed.process.pid])
    time.sleep(0.5)
    assert noticed.process.poll() is None
    (noticed.folder / "end").touch()
    assert noticed.end() == (3, "-")
    wait_until(lambda: not noticed.family())


@pytest.mark.parametrize(("notice", "reason"), [("USR1", "deleted"), ("", "stopped")])
def test_only_a_queue_with_notices_says_by_usr2_that_it_has_deleted_the_job(
    tmp_path: Path, notice: str, reason: str
) -> None:
    job = Wrapped("claims", tmp_path, GATED, notice=notice)
    try:
        wait_until((tmp_path / "began").exists)
        job.signal(signal.SIGUSR2, only=[job.process.pid])
        assert job.end()[1] == reason
    finally:
        job.close()


def test_tasks_stop_and_continue_with_their_wrapper(noticed: Wrapped) -> None:
    wrapper = noticed.process.pid
    tasks = [pid for pid in noticed.family() if pid != wrapper]
    for _ in range(2):
        suspend(noticed)
        assert "T" in {noticed.state(pid) for pid in tasks}
        noticed.signal(signal.SIGCONT, only=[wrapper])
        wait_until(lambda: all(noticed.state(pid) != "T" for pid in noticed.family()))
    (noticed.folder / "end").touch()
    assert noticed.end() == (3, "-")
    wait_until(lambda: not noticed.family())


def test_tasks_of_a_suspended_job_die_with_their_wrapper(noticed: Wrapped) -> None:
    wrapper = noticed.process.pid
    suspend(noticed)
    noticed.signal(signal.SIGKILL, only=[wrapper])
    noticed.process.wait(120)
    wait_until(lambda: not noticed.family())


def test_notice_that_comes_while_a_job_starts_leaves_no_process(tmp_path: Path) -> None:
    """The wrapper does not know the id of its clock yet."""
    begin = tmp_path / "begin"
    begin.write_text(
        "trap 'case $BASH_COMMAND in _ens_clock=*!) trap - DEBUG; kill -USR1 $$ ;; esac' DEBUG\n"
    )
    outer = {"BASH_ENV": str(begin)}
    job = Wrapped("claims", tmp_path, GATED, notice="USR1", duration=600.0, outer=outer)
    try:
        wait_followed(job)
        job.signal(signal.SIGKILL, only=[job.process.pid])
        job.process.wait(120)
        wait_until(lambda: not job.family())
    finally:
        job.close()
