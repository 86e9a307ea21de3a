"""Stop suite: checks that runs can be stopped, and that a resume loses nothing.

:class:`StopSuite` has an example.
"""

from __future__ import annotations

import json
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from click.testing import CliRunner

import ensemble_testing.isolation  # noqa: F401  (what tests start heeds SIGHUP, under nohup too)
from ensemble_core.cli.main import main
from ensemble_testing.processes import Allocation
from ensemble_testing.run_process import cancel_runs, held_jobs, slots_at_once
from ensemble_testing.session import NAME, need, wait_until

STUDY = """
jobs:
  - name: work
    command: '{here}/job.sh {T}'
    parameters: {T: [1, 2, 3]}
    observe: {json-lines: {}}
    result: {x: mean.x}
  - {name: last, command: 'true'}
rules:
  - {trigger: start, action: {name: submit, label: work}}
  - {trigger: idle, name: work, action: {name: submit, label: last}}
results:
  t: {of: work, by: [T], columns: {x: mean.x, n: n}}
"""
#: Script of the jobs: print a row, wait for a file, and print another row.
JOB = """#!/bin/sh
cd "$(dirname "$0")"
trap : TERM
echo "$ENSEMBLE_JOB_ID" >> started
echo "{\\"x\\": $1}"
until [ -e go ]; do sleep 0.1; done
echo "{\\"x\\": $(($1 * 3))}"
echo "$ENSEMBLE_JOB_ID" >> ended
"""
TABLE = [{"T": 1, "x": 2.0, "n": 1}, {"T": 2, "x": 4.0, "n": 1}, {"T": 3, "x": 6.0, "n": 1}]
JOBS = ["work.0", "work.1", "work.2"]


class StopSuite:
    """Tests of stopping and resuming runs on an executor. In an author's test file::

        from ensemble_testing import StopSuite

        class TestStops(StopSuite):
            executor = "my-queue"
            options = ("-o", "partition=debug")
            on_stop = "keep"

    The result tables of a resumed run must equal those of an uninterrupted one. Three jobs run at a
    time, or fewer if the queue has fewer slots.

    Start the queue in a fixture, with the environment variables that your executor needs. Jobs must
    run as this user, on this machine or one that shares its files.

    Attributes
    ----------
    executor, options:
        The executor's name, and other options of ``ensemble run``.
    on_stop:
        What happens to jobs at a stop if the ensemble file does not specify it: ``"keep"`` if the
        executor has the capability ``detach``, otherwise ``"cancel"``.
    slots:
        Number of one-core jobs that run concurrently; ``None``: use the gauge ``cores.up``.
    ways:
        Ways to stop the runs: signals such as ``"SIGTERM"``, ``"stop"`` (the command) or ``"wall"``
        (the flag). One way is enough, because executors see no difference between them.
    timeout:
        Time limit of one run in seconds.
    """

    executor: ClassVar[str]
    options: Sequence[str] = ()
    on_stop: ClassVar[Literal["keep", "cancel"]]
    #: Whether the run's first command starts the queue, which then ends with the run's allocation.
    ends_with_allocation: ClassVar[bool] = False
    ways: ClassVar[Sequence[str]] = ("SIGTERM",)
    slots: ClassVar[int | None] = None
    timeout: ClassVar[float] = 200.0

    #: The live run, until the test has checked everything.
    process: subprocess.Popen[bytes] | None = None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "how" in metafunc.fixturenames:
            other = "cancel" if getattr(self, "on_stop", None) == "keep" else "keep"
            stops = [*((how, None) for how in self.ways), ("SIGTERM", other)]
            metafunc.parametrize(("how", "said"), stops)

    @pytest.fixture(autouse=True)
    def _study(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        need(
            self,
            executor=NAME,
            on_stop='"keep" if jobs continue after a stop (capability detach), else "cancel"',
        )
        self.folder = tmp_path / "study"
        self.folder.mkdir()
        (self.folder / "e.yaml").write_text(STUDY)
        (self.folder / "job.sh").write_text(JOB)
        (self.folder / "job.sh").chmod(0o755)
        monkeypatch.chdir(self.folder)
        monkeypatch.setenv("ENSEMBLE_STATE", str(self.folder / "state"))
        self.tag = f"study-{secrets.token_hex(4)}"
        yield
        if self.process is not None:  # the test failed: end its run and jobs
            (self.folder / "go").touch()
            self.process.kill()
            self.process.wait()
            cancel_runs(self.folder / "state")

    def at_once(self) -> int:
        """Return how many of the three jobs run concurrently."""
        slots = self.slots or slots_at_once(self.executor, self.options)
        return min(3, slots or 1)

    def wait_started(self, process: subprocess.Popen[bytes], count: int) -> None:
        """Wait until this many jobs run."""
        end = time.monotonic() + self.timeout
        while len(self.lines("started")) < count and process.poll() is None:
            if time.monotonic() > end:
                held = held_jobs(self.folder / "state")
                pytest.fail(f"{count} jobs did not start within {self.timeout:g} s: {held}")
            time.sleep(0.005)

    def ensemble(self, *words: str) -> str:
        """Return the output of a command, run in this process. It must succeed."""
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        return done.stdout

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        """Start the run, with its output in files of the study's folder."""
        command = [sys.executable, "-m", "ensemble_core.cli", "run", "e.yaml", "--tag", self.tag]
        command += ["--executor", self.executor, *self.options, *words]
        output, errors = self.folder / "output", self.folder / "errors"
        with output.open("w") as out, errors.open("w") as err:
            self.process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        return self.process

    def lines(self, name: str) -> list[str]:
        """Return the lines of a file in the study's folder; empty if it is missing."""
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    def errors(self) -> str:
        """Return the run's stderr so far."""
        return (self.folder / "errors").read_text()

    def ended(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the run's end. Return its exit code."""
        try:
            return process.wait(self.timeout)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def state(self) -> str:
        """Return the run's state, as in ``ensemble runs``."""
        return str(json.loads(self.ensemble("runs", "--json"))["state"])

    def check_result(self, *, once: bool = True) -> None:
        """Resume the run and check that the result equals that of an uninterrupted run.

        With ``once``, also check that each job ended only once.
        """
        self.ensemble("resume", self.tag)
        assert self.state() == "ended"
        assert json.loads(self.ensemble("results", self.tag, "t", "--json")) == TABLE
        self.ensemble("replay", self.tag)
        ended = self.lines("ended")
        assert sorted(ended if once else {*ended}) == JOBS
        self.process = None

    def test_stopped_run_resumes_where_it_was(self, how: str, said: str | None) -> None:
        """The file determines what happens to jobs; without a setting there, the executor does."""
        words = [] if said is None else ["--set", f"on_stop={said}"]
        running = self.at_once()
        process = self.begin(*words, *(("--wall", "4s") if how == "wall" else ()))
        code = 5
        if how != "wall":
            self.wait_started(process, running)
        if how.startswith("SIG"):
            code = 128 + signal.Signals[how]
            process.send_signal(signal.Signals[how])
        elif how == "stop":
            self.ensemble("stop", self.tag)
        assert self.ended(process) == code, self.errors()
        kept = (said or self.on_stop) == "keep"
        what = "stopping: 3 jobs left to the queue" if kept else "stopping: cancelling 3 jobs"
        assert what in self.errors()
        assert any(line.startswith("e: stopped after ") for line in self.lines("output"))
        assert f"to resume this run: ensemble resume {self.tag}" in self.lines("output")[-1]
        assert self.state() == "stopped"
        (self.folder / "go").touch()
        if kept:  # without a controller
            wait_until(lambda: len(self.lines("ended")) == 3, self.timeout)
        before = len(self.lines("started"))
        self.check_result()
        assert len(self.lines("started")) == (3 if kept else before + 3)

    def test_second_signal_exits_at_once_without_loss(self) -> None:
        running = self.at_once()
        process = self.begin("--set", "on_stop=cancel")
        self.wait_started(process, running)
        process.terminate()
        wait_until(lambda: "stopping" in self.errors(), self.timeout)
        while process.poll() is None and "leaving at once" not in self.errors():
            process.terminate()
            time.sleep(0.4)  # signals in quick succession count as one
        # The signal may arrive when everything is done; Python itself then handles it.
        assert self.ended(process) in (143, -signal.SIGTERM)
        assert self.state() in ("interrupted", "stopped")  # "stopped" if the queue was faster
        (self.folder / "go").touch()
        # These jobs ignore SIGTERM. A job that received it and ends with 0 before it is killed may
        # have been cut short, so it is cancelled and runs again.
        self.check_result(once=False)

    @pytest.mark.parametrize("seed", range(2))
    def test_end_of_the_allocation_around_a_run_loses_nothing(self, seed: int) -> None:
        """The run's allocation has its processes and, for local jobs, also those of the jobs."""
        if self.ends_with_allocation:
            pytest.skip("the queue itself ends with the allocation")
        running, chance = self.at_once(), random.Random(seed)
        command = [sys.executable, "-m", "ensemble_core.cli", "run", "e.yaml", "--tag", self.tag]
        with (self.folder / "output").open("w") as output:
            allocation = Allocation(
                [*command, "--executor", self.executor, *self.options], self.folder, None, output
            )
        self.process = allocation.parent
        try:
            self.wait_started(self.process, running)
            allocation.end(chance)
            code = allocation.wait_over(self.timeout)
        finally:
            allocation.kill()
        assert code == 143, (self.folder / "output").read_text()
        assert self.state() == "stopped"
        (self.folder / "go").touch()
        self.check_result(once=self.on_stop == "keep")
