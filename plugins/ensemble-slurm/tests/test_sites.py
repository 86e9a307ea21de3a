"""Tests of site settings that a run must handle, on a real Slurm."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ensemble_slurm.executor import SlurmExecutor
from ensemble_testing.executor import Session

if TYPE_CHECKING:
    from conftest import Cluster


def test_a_site_may_requeue_by_exit_code_and_limit_arrays(
    site_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Session(SlurmExecutor(look=1.0, rate=50), tmp_path, 120.0, tidy=True) as session:
        many = [session.job("printf", f"{n}\r\n") for n in range(5)]
        again = session.job("sh", "-c", f"echo ran >>{tmp_path}/ran; exit 99")
        session.submit(*many, again)
        for job in (*many, again):
            session.wait_clean(job)
            assert session.names(job).count("clean") == 1
        assert {session.context(job, "finish")["status"] for job in many} == {0}
        assert session.context(again, "finish")["status"] == 99 << 8
        columns = "-OJobID:12,RestartCnt:2,State:20"
        end = time.monotonic() + 120
        while "1 FAILED" not in (text := site_cluster.run("squeue", "-har", "-tall", columns)):
            assert time.monotonic() < end, text
            for line in text.splitlines():
                if "1 PENDING" in line:  # Slurm waits for two minutes
                    words = ("scontrol", "update", f"jobid={line.split()[0]}", "starttime=now")
                    site_cluster.run(*words, check=False)  # the array's other task has ended
            time.sleep(0.2)
    assert (tmp_path / "ran").read_text() == "ran\n"
