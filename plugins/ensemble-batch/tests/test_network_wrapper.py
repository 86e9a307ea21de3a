"""Tests of the wrapper with reports over the network, run by bash.

Jobs are suspended, time out, or are restarted by the queue.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ensemble_batch import Batch, BatchExecutor, Place
from ensemble_batch.job_script import report_script_of
from ensemble_batch.network_reports import VOIDED, Listener
from ensemble_testing import wait_until
from ensemble_testing.processes import processes_of_session

from ensemble_core import Job


class Odd(BatchExecutor):
    name = "odd"
    task_place = "$((${TASK:-0} + 1))"
    task_id = "7${TASK:+_$TASK}"
    task_restarts = "${LIFE:-0}"

    def launcher(self, job: Job) -> Sequence[str]:
        return tuple(job.options.get("odd", {}).get("launcher", ()))

    def may_restart(self, job: Job) -> bool:
        return bool(job.options.get("odd", {}).get("restarts"))

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        raise NotImplementedError

    ask = find_batch = end_jobs = submit_batch  # type: ignore[assignment]  # not used here


def script_of(folder: Path, jobs: Sequence[Job], grace: float = 0.3) -> bytes:
    """Return a batch's script. Its jobs run and write below this folder."""
    hooks = Odd()
    hooks.grace = grace
    placed = []
    for job in jobs:
        kept = (str(folder / f"{job.id}.out"), str(folder / f"{job.id}.err"))
        workdir = os.path.join(folder, job.workdir or ".")
        placed.append((job, Place(workdir, job.stdout or kept[0], job.stderr or kept[1], kept)))
    return report_script_of(
        "k_1", placed, tag="melt-1", folder=str(folder), token="t0ken", port=0, hosts=(),
        hooks=hooks,
    )  # fmt: skip


class Wrapped:
    """A running batch script, in a separate session as under slurmstepd."""

    def __init__(self, folder: Path, *command: str, grace: float = 0.3, **more: Any) -> None:
        environment = more.pop("outer", {})
        self.folder = folder
        self.job = Job(id="sim.0", group="sim", index=0, command=command, **more)
        (folder / "reports").mkdir()
        script = folder / "slurm_script"
        script.write_bytes(script_of(folder, [self.job], grace))
        self.process = subprocess.Popen(
            ["bash", str(script)],
            cwd=folder,
            env={"PATH": os.environ["PATH"], **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def family(self) -> list[int]:
        """Return the ids of all processes of the session."""
        return processes_of_session(self.process.pid)

    def signal(self, number: signal.Signals, *, but: Sequence[int] = ()) -> None:
        for pid in self.family():
            if pid not in but:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def wait(self) -> int:
        """Wait until the output is closed by all processes; return the script's exit code."""
        self.process.communicate(timeout=150)
        return self.process.returncode

    def told(self) -> list[list[str]]:
        files = sorted((self.folder / "reports").iterdir())
        lines = [line for file in files for line in file.read_text().splitlines()]
        return sorted((line.split()[3:] for line in lines), key=lambda words: words[2] == "end")

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        self.process.communicate(timeout=150)


@pytest.fixture
def wrapped(tmp_path: Path) -> Iterator[Callable[..., Wrapped]]:
    made: list[Wrapped] = []

    def make(*command: str, **more: Any) -> Wrapped:
        made.append(Wrapped(tmp_path, *command, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_stopped_command_uses_no_cpu_and_has_not_ended(
    wrapped: Callable[..., Wrapped],
) -> None:
    job = wrapped("sh", "-c", "touch began; until [ -e end ]; do sleep 0.1; done; exit 3")
    wait_until((job.folder / "began").exists)
    job.signal(signal.SIGSTOP, but=[job.process.pid])
    time.sleep(0.1)
    before = _ticks(job.process.pid)
    time.sleep(1.0)
    assert _ticks(job.process.pid) - before < os.sysconf("SC_CLK_TCK") // 4
    (job.folder / "end").touch()
    assert [words[2] for words in job.told() if words[2] == "end"] == []
    job.signal(signal.SIGCONT)
    assert job.wait() == 3
    assert job.told()[-1][2:5] == ["end", "3", "-"]


def _ticks(pid: int) -> int:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


def test_a_job_that_obeys_its_time_limit_leaves_no_processes(
    wrapped: Callable[..., Wrapped],
) -> None:
    job = wrapped("sleep", "1000", duration=0.2, grace=600.0)
    assert job.wait() == 143
    wait_until(lambda: not job.family())


def test_a_command_gets_sigterm_once(wrapped: Callable[..., Wrapped]) -> None:
    text = (
        "n=0; trap 'n=$((n + 1)); echo $n > count' TERM; touch began; "
        "until [ -e end ]; do sleep 0.1; done"
    )
    job = wrapped("bash", "-c", text, duration=8.0, grace=600.0)
    wait_until((job.folder / "began").exists)
    for number in range(3):
        os.kill(job.process.pid, signal.SIGTERM)
        wait_until((job.folder / "count").exists)
        time.sleep(0.2 * number)
    time.sleep(8.0)  # its time limit
    (job.folder / "end").touch()
    job.wait()
    assert (job.folder / "count").read_text() == "1\n"


def older_bash(folder: Path) -> dict[str, str]:
    """Return variables with which bash has no clock, as before version 5."""
    (folder / "rc").write_text("unset EPOCHREALTIME SECONDS\n")
    return {"BASH_ENV": str(folder / "rc")}


@pytest.mark.parametrize(("end", "stopped"), [("1000.050001", True), ("1000.050000", False)])
def test_a_command_that_a_cancel_ends_before_the_wrapper_has_not_succeeded(
    wrapped: Callable[..., Wrapped], tmp_path: Path, end: str, stopped: bool
) -> None:
    """``sh -c 'prepare; run; post'`` goes on if the cancel first reaches ``run``.

    The signal comes as soon as the wrapper waits. The shortest jobs do not wait.
    """
    (tmp_path / "bin").mkdir()
    commands = {
        "sleep": f'[ "$1" != 0.02 ] || kill $PPID\nexec {shutil.which("sleep")} "$@"',
        "date": f"if mkdir {tmp_path}/began; then echo 1000.000000; else echo {end}; fi",
    }
    for name, text in commands.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    job = wrapped("true", outer={"PATH": path, **older_bash(tmp_path)})
    job.wait()
    assert job.told()[-1][2:7] == [
        "end", "0", "stopped" if stopped else "-", "1000.000000", end,
    ]  # fmt: skip


def test_times_are_in_microseconds_if_bash_has_no_clock(
    wrapped: Callable[..., Wrapped], tmp_path: Path
) -> None:
    """The wrapper subtracts them as integers."""
    job = wrapped("true", outer=older_bash(tmp_path))
    assert job.wait() == 0
    assert [len(time.partition(".")[2]) for time in job.told()[-1][5:7]] == [6, 6]


@pytest.mark.parametrize(("own", "line"), [(None, "_ens_grace=7"), (90.0, "_ens_grace=90")])
def test_a_group_sets_the_grace_of_its_jobs(tmp_path: Path, own: float | None, line: str) -> None:
    job = Job(id="sim.0", group="sim", index=0, command=("true",), grace=own)
    assert line in script_of(tmp_path, [job], 7.0).decode().splitlines()


def test_a_job_restarted_unasked_runs_nothing(
    wrapped: Callable[..., Wrapped],
) -> None:
    job = wrapped("touch", "ran", outer={"LIFE": "1"})
    assert job.wait() != 0
    assert job.told()[-1][1:4] == ["1", "fail", "requeued"]
    assert not (job.folder / "ran").exists()


@pytest.mark.parametrize(("answer", "runs"), [("no", False), ("ok", True)])
def test_a_job_restarted_unasked_asks_the_controller(
    wrapped: Callable[..., Wrapped], tmp_path: Path, answer: str, runs: bool
) -> None:
    """The queue restarts a job that its node could not start."""
    lines: list[str] = []

    def take(line: bytes) -> bool:
        lines.append(line.decode())
        return lines[-1].split()[5] != "again" or answer == "ok"

    listener = Listener("127.0.0.1", 0, take)
    thread = threading.Thread(target=listener.listen)
    thread.start()
    try:
        (tmp_path / "address").write_text(f"{listener.port} 127.0.0.1\n")
        job = wrapped("touch", "ran", outer={"LIFE": "1"})
        assert (job.wait() == 0) is runs
    finally:
        listener.close()
        thread.join()
    assert lines[0].split()[3:] == ["7", "1", "again"]
    assert lines[-1].split()[5] == ("end" if runs else "fail")
    assert (job.folder / "ran").exists() is runs
    assert not job.told()


def test_a_job_that_may_be_restarted_runs_again(wrapped: Callable[..., Wrapped]) -> None:
    options = {"odd": {"restarts": True}}
    job = wrapped("touch", "ran", outer={"LIFE": "1"}, options=options)
    assert job.wait() == 0
    assert (job.folder / "ran").exists()


def test_options_of_the_users_shell_do_not_affect_the_wrapper(
    wrapped: Callable[..., Wrapped],
) -> None:
    shell = {"SHELLOPTS": "braceexpand:errexit:nounset:allexport"}
    job = wrapped("sh", "-c", "env; exit 5", outer=shell)
    assert job.wait() == 5
    assert job.told()[-1][2:5] == ["end", "5", "-"]
    assert "t0ken" not in (job.folder / "sim.0.out").read_text()


def test_a_script_has_no_dos_line_ends_and_the_command_keeps_its_own(
    wrapped: Callable[..., Wrapped],
) -> None:
    job = wrapped("printf", "%s", "a\r\nb\r'\r")
    assert job.wait() == 0
    assert b"\r" not in (job.folder / "slurm_script").read_bytes()
    assert (job.folder / "sim.0.out").read_bytes() == b"a\r\nb\r'\r"


# -- scripts of batches, run to their end -----------------------------------------------------------


def job(index: int, *command: str, **fields: Any) -> Job:
    return Job(id=f"sim.{index}", group="sim", index=index, command=command or ("true",), **fields)


def play(folder: Path, *given: Job, task: int | None = None) -> tuple[int, list[list[str]]]:
    """Run a batch's script as the queue would.

    Return its exit code and its reports, read from files because no listener runs.
    """
    for name in ("reports", "void"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    script = folder / "script"
    script.write_bytes(script_of(folder, given))
    tasks = {} if task is None else {"TASK": str(task)}
    done = subprocess.run(
        ["bash", str(script)], cwd=folder, timeout=150,
        env={"PATH": os.environ["PATH"], **tasks}, capture_output=True, check=False,
    )  # fmt: skip
    files = sorted((folder / "reports").iterdir())
    told = [line.split()[2:] for file in files for line in file.read_text().splitlines()]
    # The start is written in the background, possibly after the end.
    return done.returncode, sorted(told, key=lambda words: words[3] == "end")


def test_a_job_runs_with_exactly_its_arguments(tmp_path: Path) -> None:
    odd = ["", "a b", "it's", '"$HOME"', "`x`", "$(y)", "a\nb", "*", "\\", "é", "-n"]
    given = job(3, "python3", "-c", "import sys; print(sys.argv[1:])", *odd)
    code, reports = play(tmp_path, given)
    assert code == 0
    assert (tmp_path / "sim.3.out").read_text() == f"{odd}\n"
    assert not (tmp_path / "sim.3.err").exists()
    assert [(words[0], words[1], words[2], words[3]) for words in reports] == [
        ("sim.3", "7", "0", "start"),
        ("sim.3", "7", "0", "end"),
    ]


def test_a_task_of_an_array_runs_its_own_command(tmp_path: Path) -> None:
    given = [
        job(index, "sh", "-c", f"echo {index} $A $ENSEMBLE_INDEX $ENSEMBLE_JOB_ID; pwd; exit {index}",
            workdir=f"d{index}", environment={"A": f"a{index}"})
        for index in (4, 5, 9)
    ]  # fmt: skip
    code, reports = play(tmp_path, *given, task=2)
    assert code == 9
    assert (tmp_path / "sim.9.out").read_text() == f"9 a9 9 sim.9\n{tmp_path}/d9\n"
    assert reports[-1][:5] == ["sim.9", "7_2", "0", "end", "9"]


def test_a_jobs_environment_does_not_affect_the_wrapper(tmp_path: Path) -> None:
    environment = {"PATH": "/nowhere", "_ens_dir": "/x", "not-a-name": "1", "IFS": "x"}
    given = job(0, "/usr/bin/env", environment=environment)
    code, reports = play(tmp_path, given)
    assert code == 0
    lines = (tmp_path / "sim.0.out").read_text().splitlines()
    assert {f"{name}={value}" for name, value in environment.items()} <= set(lines)
    assert not [line for line in lines if "t0ken" in line]
    assert reports[-1][3] == "end"


def test_a_missing_command_is_reported_by_name(tmp_path: Path) -> None:
    code, reports = play(tmp_path, job(0, "there-is-no-such-command"))
    assert code == 127
    assert "there-is-no-such-command" in (tmp_path / "sim.0.err").read_text()
    assert reports[-1][3:5] == ["end", "127"]


def test_a_time_limit_also_ends_background_processes(tmp_path: Path) -> None:
    given = job(
        0, "sh", "-c", "sleep 1000 & echo $!; trap '' TERM; while :; do sleep 1; done", duration=0.5
    )
    code, reports = play(tmp_path, given)
    assert code == 137
    assert reports[-1][3:6] == ["end", "137", "timeout"]
    pid = int((tmp_path / "sim.0.out").read_text())
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()


def test_output_is_appended_and_an_unwritable_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    play(tmp_path, job(0, "echo", "after", stdout=str(tmp_path / "log")))
    assert (tmp_path / "log").read_text() == "before\nafter\n"
    code, reports = play(tmp_path, job(1, stdout="/proc/none/x"))
    assert code == 1
    (failed,) = [words for words in reports if words[0] == "sim.1"]
    assert failed[3:5] == ["fail", "output"]
    assert "/proc/none/x" in failed


def test_an_abandoned_attempt_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "void").mkdir()
    (tmp_path / "void" / "k_1").touch()
    assert play(tmp_path, job(0, "touch", "ran")) == (VOIDED, [])
    assert not (tmp_path / "ran").exists()


def test_a_launcher_starts_the_command_in_the_jobs_environment(tmp_path: Path) -> None:
    given = job(
        0,
        "printenv",
        "A",
        environment={"A": "it's"},
        options={"odd": {"launcher": ("nice", "-n1")}},
    )
    assert play(tmp_path, given)[0] == 0
    assert (tmp_path / "sim.0.out").read_text() == "it's\n"


@pytest.mark.parametrize(
    ("outer", "own", "threads"), [({}, {}, "3"), ({"OMP_NUM_THREADS": "5"}, {}, "5"),
    ({"OMP_NUM_THREADS": "5"}, {"OMP_NUM_THREADS": "7"}, "7"),
    ({"OMP_NUM_THREADS": "6", "NCPUS": "6"}, {}, "3")],  # PBS: the cores of all tasks
)  # fmt: skip
def test_a_job_knows_its_cores_and_threads_unless_they_are_set(
    wrapped: Callable[..., Wrapped], outer: dict[str, str], own: dict[str, str], threads: str
) -> None:
    script = "echo $ENSEMBLE_CORES $OMP_NUM_THREADS"
    job = wrapped("sh", "-c", script, cores_per_task=3, outer=outer, environment=own)
    assert job.wait() == 0
    assert (job.folder / "sim.0.out").read_text().split() == ["3", threads]
