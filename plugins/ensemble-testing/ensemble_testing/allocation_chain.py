"""Chain suite: tests a batch script that runs a study over several allocations.

When an allocation ends, the next one resumes the run.

An author's own test file::

    from ensemble_testing import ChainSuite

    class TestMyQueue(ChainSuite):
        example = Path("examples/chain")

        def submit(self, wall):
            return self.output_of("my-submit", f"--env=WALL={wall}", "my-queue.sh")

        def wait_over(self, job): ...  # wait until this allocation is over
        def warn(self, job): ...  # signal that the allocation ends soon

The folder ``example`` needs your batch script and the study of ``examples/chain``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from ensemble_testing.session import wait_until

#: Script of the jobs: each ends when the test lets it end.
GATED = """#!/bin/sh
echo "{\\"energy\\": $1}"
until [ -e "$GATES/$1" ]; do sleep 0.1; done
echo "{\\"energy\\": $(($1 * 10))}"
"""


class ChainSuite:
    """Tests of a batch script that starts or resumes a run (``--or-resume``).

    Start the queue in a fixture, with the environment variables that your executor needs. Jobs must
    run on this machine, as this user. The queue must run one allocation at a time.
    """

    #: Folder with the script and the study.
    example: ClassVar[Path]
    #: Time limit of an allocation in seconds.
    timeout: ClassVar[float] = 200.0

    @abstractmethod
    def submit(self, wall: str) -> str:
        """Submit the script from the current folder. Return the id that the output file's name
        contains.

        The environment must have ``WALL``, and ``PATH`` and ``GATES`` as :meth:`output_of` sets
        them.
        """

    @abstractmethod
    def wait_over(self, job: str) -> None:
        """Wait until an allocation is over."""

    @abstractmethod
    def warn(self, job: str) -> None:
        """Send an allocation the signal that the queue sends before it ends the allocation."""

    @pytest.fixture(autouse=True)
    def _study_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Enter a folder with the study. After a failed test, let the jobs of its allocations
        end.
        """
        self.folder = tmp_path / "chain"
        shutil.copytree(self.example, self.folder)
        (self.folder / "step.sh").write_text(GATED)
        monkeypatch.chdir(self.folder)
        monkeypatch.setenv("GATES", str(self.folder))
        yield
        self.open(*range(1, 9))

    def output_of(self, *words: str) -> str:
        """Return the output of a command that must succeed, with ``ensemble`` on the PATH."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path}
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=150, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def said(self, job: str) -> str:
        """Return the output of an allocation."""
        return (self.folder / f"chain-{job}.out").read_text()

    def open(self, *gates: int) -> None:
        """Let these jobs end."""
        for gate in gates:
            (self.folder / str(gate)).touch()

    def check_table(self) -> None:
        """Check that the study's table equals that of a single allocation."""
        words = [sys.executable, "-m", "ensemble_core.cli", "results", "chain", "ladder", "--json"]
        table = json.loads(self.output_of(*words, "--state", "state"))
        assert [(row["T"], row["E"], row["mean"]) for row in table] == [
            (T, 10 * T, 5.5 * T) for T in range(1, 9)
        ]

    @pytest.mark.timeout(900)
    def test_three_allocations_are_one_study_with_one_table(self) -> None:
        """The first is ended by the queue, the second by its wall time; the third completes."""
        jobs = [self.submit("9m"), self.submit("3s"), self.submit("9m")]
        output = self.folder / "state" / "runs" / "chain"
        wait_until(lambda: any(output.rglob("step.1.out")), self.timeout)
        self.warn(jobs[0])
        for job, ended in zip(jobs, ((), (1, 2, 3, 4), range(5, 9)), strict=True):
            self.open(*ended)
            self.wait_over(job)
        said = [self.said(job) for job in jobs]
        assert re.search("exit code .*SIG(TERM|HUP)", said[0]), said
        codes = [re.findall(r"exit code (\d+)", text)[-1:] for text in said[1:]]
        assert codes == [["5"], ["0"]], said
        assert ["resuming run chain after event" in text for text in said] == [False, True, True]
        self.check_table()
