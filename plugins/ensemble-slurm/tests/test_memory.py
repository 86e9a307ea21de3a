"""Tests on a real Slurm that kills jobs for their use of memory (``OverMemoryKill``)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ensemble_slurm.executor import SlurmExecutor
from ensemble_testing.executor import Session

if TYPE_CHECKING:
    from conftest import Cluster

#: Uses 300 MB, and stays.
GREEDY = """
import time
held = bytearray(300 * 1024 * 1024)
for at in range(0, len(held), 4096):
    held[at] = 1
time.sleep(600)
"""


@pytest.mark.timeout(300)
def test_a_job_killed_for_its_memory_has_that_cause_and_slurms_words(
    memory_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Session(SlurmExecutor(look=1.0, rate=50), tmp_path, 120.0, tidy=True) as session:
        options = {"slurm": {"mem": 50}}
        single = session.job(sys.executable, "-c", GREEDY, group="single", options=options)
        array = [
            session.job(sys.executable, "-c", GREEDY, group="array", options=options)
            for _ in range(2)
        ]
        launched = session.job(sys.executable, "-c", GREEDY, group="srun", tasks=2, options=options)
        good = session.job("true", group="good", options=options)
        session.run(single, *array, launched, good)
        for job in (single, *array, launched):
            assert session.cause(job) == "memory", session.of(job)
            assert "memory limit" in session.context(job, "exception")["note"]
        assert session.context(good, "finish")["status"] == 0
        assert not list(tmp_path.rglob(f"slurm-{session.queue_id(good)}.err"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("code", [0, 3])
def test_a_job_that_lost_a_process_to_the_kernel_has_failed_as_slurm_says(
    cgroup_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Its command ends as if nothing had happened."""
    monkeypatch.chdir(tmp_path)
    with Session(SlurmExecutor(look=1.0, rate=50), tmp_path, 120.0, tidy=True) as session:
        options = {"slurm": {"mem": 50}}
        greedy = GREEDY.replace("time.sleep(600)", "")
        script = f'"$1" -c "$2"; exit {code}'
        words = ("sh", "-c", script, "sh", sys.executable, greedy)
        jobs = [session.job(*words, group="array", options=options) for _ in range(2)]
        good = session.job("true", group="good", options=options)
        session.run(*jobs, good)
        for job in jobs:
            assert session.cause(job) == "memory", session.of(job)
            assert "OUT_OF_MEMORY" in session.context(job, "exception")["note"]
            assert session.context(job, "finish")["status"] == (code << 8 or 9)
        assert session.context(good, "finish")["status"] == 0
