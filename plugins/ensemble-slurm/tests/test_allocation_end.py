"""Slurm ends an allocation in which a run has local jobs. It does not track daemons (linuxproc)."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ensemble_testing import wait_until

from ensemble_core.cli.main import main

FILE = """
logging: {heartbeat: 0}
jobs:
  - {name: a, command: "sh -c 'echo >> {here}/started; test -e {here}/go || sleep 1; echo {id} >> {here}/ended'",
     count: 20}
rules: [{trigger: start, action: {name: submit, label: a}}]
"""


class Study:
    def __init__(self, cluster: Any, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        (folder / "e.yaml").write_text(FILE)
        words = f"{sys.executable} -m ensemble_core.cli run e.yaml --executor local --slots 2"
        (folder / "job.sh").write_text(
            f"#!/bin/bash\n{words} --tag t --or-resume --state state >> said 2>&1\n"
        )

    def submit(self, *options: str) -> str:
        words = ["sbatch", "--parsable", "-c2", "--no-requeue", "-D", str(self.folder), *options]
        words += ["-o", "/dev/null", str(self.folder / "job.sh")]
        return str(self.cluster.run(*words)).split(";")[0].strip()

    def started(self, count: int) -> None:
        file = self.folder / "started"
        wait_until(lambda: file.exists() and len(file.read_text().splitlines()) >= count, 300)

    def wait_over(self, job: str) -> None:
        # A requeued job waits two minutes.
        end = time.monotonic() + 600
        while job in {each[0] for each in self.cluster.active()}:
            assert time.monotonic() < end, f"job {job} does not end"
            time.sleep(0.5)

    def processes(self) -> list[str]:
        """Return the processes of the run: its controller, supervisor and jobs."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.fsencode(self.folder) in (path / "cmdline").read_bytes() or (
                    os.readlink(path / "cwd") == str(self.folder)
                ):
                    found.append(path.name)
        return found

    def status(self) -> dict[str, Any]:
        words = ["status", "t", "--json", "--state", str(self.folder / "state")]
        found: dict[str, Any] = json.loads(CliRunner().invoke(main, words).output)
        return found

    def check(self) -> None:
        """The allocation is over: no process is left, and the next allocation does the rest."""
        said = self.folder / "said"
        wait_until(lambda: not self.processes(), 300)
        assert self.status()["state"] in ("stopped", "interrupted"), said.read_text()
        assert len((self.folder / "ended").read_text().splitlines()) < 20
        (self.folder / "go").touch()
        self.wait_over(self.submit())
        self.check_complete()

    def check_complete(self) -> None:
        """Each job has succeeded, and none ended twice."""
        said = self.folder / "said"
        status = self.status()
        (group,) = status["report"]["groups"]
        counts = group["success"], group["failed"], group["cancelled"]
        assert (counts, status["exit_code"]) == ((20, 0, 0), 0), said.read_text()
        ended = (self.folder / "ended").read_text().split()
        assert sorted(ended) == sorted(f"a.{number}" for number in range(20))


@pytest.fixture
def study(cluster: Any, tmp_path: Path) -> Study:
    return Study(cluster, tmp_path)


@pytest.mark.parametrize("how", [(), ("--full", "--signal=TERM"), ("--batch", "--signal=TERM")])
def test_a_cancelled_allocation_loses_no_job(study: Study, how: tuple[str, ...]) -> None:
    job = study.submit()
    study.started(4)
    study.cluster.run("scancel", *how, job)
    study.wait_over(job)
    study.check()


def test_an_allocation_at_its_time_limit_loses_no_job(study: Study) -> None:
    (study.folder / "e.yaml").write_text(FILE.replace("sleep 1", "sleep 10"))
    job = study.submit("--time=1")
    study.wait_over(job)
    study.check()


def test_a_preempted_allocation_loses_no_job(study: Study) -> None:
    job = study.submit("-p", "all", "-w", "n4")
    study.started(4)
    words = ["sbatch", "--parsable", "-p", "urgent", "-n1", "-c2", "-o", "/dev/null"]
    urgent = str(study.cluster.run(*words, "--wrap", "sleep 1")).strip()
    study.wait_over(job)
    study.wait_over(urgent)
    study.check()


def test_an_allocation_that_slurm_requeues_continues_its_run(
    site_cluster: Any, tmp_path: Path
) -> None:
    """Slurm ends all processes, and runs the same script again under the same id."""
    study = Study(site_cluster, tmp_path)
    job = study.submit("--requeue")
    study.started(4)
    site_cluster.run("scontrol", "requeue", job)
    study.wait_over(job)
    study.check_complete()
    said = (tmp_path / "said").read_text()
    assert said.count("exit code 0") == 1, said
    wait_until(lambda: not study.processes(), 60)
