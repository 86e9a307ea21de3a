"""Tests of both wrappers: signals before the time limit, and signals that the run sends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import pytest
from ensemble_batch import Batch, BatchExecutor, Place
from ensemble_batch.job_script import report_script_of, script_of
from ensemble_testing import wait_until

from ensemble_core import Job
from ensemble_core.model.jobs import SIGNALS

Kind = Literal["claims", "reports"]

#: Writes each signal to the file ``got``, and ends when the file ``end`` exists.
RECORDS = """
for s in INT QUIT USR1 USR2 TERM; do trap "echo $s >>got" $s; done
touch began; until [ -e end ]; do sleep 0.1; done 2>/dev/null; exit 0
"""


class Queue(BatchExecutor):
    name = "odd"
    task_id = "7"
    grace = 30.0
    relay = """'echo "$1" "$_ens_id" >>relayed'"""

    def launcher(self, job: Job) -> Sequence[str]:
        return ("env",) if job.tasks > 1 else ()

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        raise NotImplementedError

    ask = find_batch = end_jobs = submit_batch  # type: ignore[assignment]  # not used here


class Wrapped:
    """A running wrapper, in its own session as under a queue's daemon."""

    def __init__(self, kind: Kind, folder: Path, script: str, **more: Any) -> None:
        self.kind, self.folder = kind, folder
        job = Job(id="sim.0", group="sim", index=0, command=("bash", "-c", script), **more)
        out = str(folder / "out")
        orders = [(job, Place(str(folder), out, out))]
        for name in ("reports", "variables", "signals"):
            (folder / name).mkdir()
        (folder / "variables" / "sim.0@k").touch()
        shared: Mapping[str, Any] = {"tag": "melt-1", "folder": str(folder)}
        if kind == "claims":
            text = script_of("k", orders, place="1", queue_id="7", grace=Queue.grace, **shared)
        else:
            text = report_script_of(
                "k_1", orders, token="t0ken", port=0, hosts=(), hooks=Queue(), **shared
            )
        path = folder / "script"
        path.write_bytes(text)
        self.process = subprocess.Popen(
            ["bash", str(path)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stderr=(folder / "messages").open("wb"),
            start_new_session=True,
        )
        wait_until((folder / "began").exists)

    def send(self, name: str) -> None:
        """Send a signal as the executor does."""
        if self.kind == "claims":
            (self.folder / "signals" / f"sim.0@k.1.{name}").touch()
        else:  # as slurmstepd does for 'scancel --batch'
            number = signal.Signals.SIGRTMIN + signal.Signals[f"SIG{name}"]
            os.kill(self.process.pid, number)

    def got(self) -> list[str]:
        path = self.folder / "got"
        return path.read_text().split() if path.exists() else []

    def end(self) -> tuple[int, str]:
        """Return the exit code and reason that the wrapper has reported."""
        assert self.process.wait(150) is not None
        paths = (self.folder / "reports").iterdir()
        lines = [line.split() for path in paths for line in path.read_text().splitlines()]
        if self.kind == "claims":
            (words,) = (words for words in lines if len(words) > 4)
            return int(words[0]), words[1]
        (end,) = (words for words in lines if words[5] == "end")
        return int(end[6]), end[7]


Start = Callable[..., Wrapped]


@pytest.fixture(params=["claims", "reports"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    made: list[Wrapped] = []

    def begin(script: str = RECORDS, **more: Any) -> Wrapped:
        made.append(Wrapped(request.param, tmp_path, script, **more))
        return made[-1]

    yield begin
    for each in made:
        (each.folder / "end").touch()
        each.process.wait(150)


def test_a_job_gets_each_signal_once_and_ends_by_itself(start: Start) -> None:
    """Also SIGTERM, which a queue sends to end a job, is only passed on."""
    job = start()
    for name in SIGNALS:
        job.send(name)
        wait_until(lambda name=name: name in job.got())
    (job.folder / "end").touch()
    assert job.end() == (0, "-")
    assert sorted(job.got()) == sorted(SIGNALS)
    assert not [*(job.folder / "signals").iterdir()]
    assert "Killed" not in (job.folder / "messages").read_text()


def test_a_job_is_warned_before_its_time_limit(start: Start) -> None:
    """The program reacts to the warning. The limit does not count then."""
    job = start(duration=3600.0, warn={"signal": "USR2", "before": 3599.0})
    wait_until(lambda: job.got() == ["USR2"])
    (job.folder / "end").touch()
    assert job.end() == (0, "-")


def test_a_warned_job_still_ends_at_its_time_limit(start: Start) -> None:
    """The wrapper's own processes survive the signal that a queue sends to all of them."""
    job = start(duration=10.0, warn={"signal": "USR1", "before": 5.0})
    wait_until(lambda: "TERM" in job.got())
    assert job.got() == ["USR1", "TERM"]
    (job.folder / "end").touch()
    assert job.end()[1] == "timeout"


def test_a_launcher_gets_no_signal_because_the_queue_signals_its_tasks(tmp_path: Path) -> None:
    job = Wrapped("reports", tmp_path, RECORDS, tasks=2)
    job.send("INT")
    wait_until((tmp_path / "relayed").exists)
    assert (tmp_path / "relayed").read_text() == "INT 7\n"
    assert not job.got()
    (tmp_path / "end").touch()
    assert job.end() == (0, "-")


def test_a_signal_while_a_killed_shell_is_awaited_is_not_its_exit_code(tmp_path: Path) -> None:
    """The shell has closed the pipe, and ends a moment later: a trap ends bash's 'wait'."""
    script = tmp_path / "script"
    script.write_text(
        "_ens_forces= _ens_early=\n"
        + files("ensemble_batch").joinpath("tasks.sh").read_text("utf-8")
        + "trap '_ens_stop stopped' TERM\n"
        "exec 8< <(:) 9>/proc/self/fd/8\n"
        "{ exec 9>&-; for ((i = 0; i < 8; i++)); do sleep 0.1; kill -TERM $$; done; exit 3; } &\n"
        "_ens_pids=($!)\n"
        "exec 9>&-\n"
        "_ens_wait\n"
        "trap '' TERM\n"
        "echo $_ens_rc\n"
    )
    done = subprocess.run(["bash", script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["3"], done.stderr
